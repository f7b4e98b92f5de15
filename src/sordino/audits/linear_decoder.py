"""Pictures from what is seen of them, by a linear decoder that is trained on pictures of others."""

from __future__ import annotations

import torch
from torch import Tensor

STRENGTHS = tuple(10.0**power for power in range(-4, 5))  #: of the ridge, in units of a hundredth of the mean square
LEAST = 1e-6  #: the weakest ridge, in the same units


def decode(seen: Tensor, pictures: Tensor, unknown: Tensor) -> Tensor:
    """Pixels `[K, p]` of what is seen of unknown pictures, learnt from `seen [N, v]` of known pictures `[N, p]`.

    Ridge regression in its dual form, `N` equations whatever `v`; its strength is the best on a fifth of the known.
    """
    held = len(seen) // 5
    trial, left = KnownPictures(seen[held:], pictures[held:]), pictures[:held].double()
    products = trial.products(seen[:held])
    errors = {strength: (trial.pixels(products, strength) - left).square().mean() for strength in STRENGTHS}
    whole = KnownPictures(seen, pictures)
    return whole.pixels(whole.products(unknown), min(STRENGTHS, key=lambda strength: float(errors[strength])))


def decode_noisy(seen: Tensor, pictures: Tensor, unknown: Tensor, variance: float) -> Tensor:
    """The same where each value of `unknown`, and none of `seen`, has noise of this variance.

    The linear decoder with the least mean squared error: the more noise, the nearer the mean of the known pictures.
    """
    ridge = KnownPictures(seen, pictures)
    return ridge.pixels(ridge.products(unknown), LEAST, variance)


class KnownPictures:
    """What is seen of known pictures, and these pictures: a ridge regression from one to the other."""

    def __init__(self, seen: Tensor, pictures: Tensor) -> None:
        self._centre, self._level = seen.double().mean(0), pictures.double().mean(0)
        self._seen, self._pictures = seen.double() - self._centre, pictures.double() - self._level
        self._grams = self._seen @ self._seen.T

    def products(self, unknown: Tensor) -> Tensor:
        """`[K, N]`: of what is seen of unknown pictures with what is seen of the known."""
        return (unknown.double() - self._centre) @ self._seen.T

    def pixels(self, products: Tensor, strength: float, variance: float = 0.0) -> Tensor:
        """`[K, p]`: the unknown pictures."""
        grams = self._grams.clone()
        unit = max(float(grams.diagonal().mean()), 1e-12) / 100
        grams.diagonal().add_(strength * unit + variance * len(grams))
        weights: Tensor = torch.linalg.solve(grams, self._pictures)
        return products @ weights + self._level


__all__ = ["decode", "decode_noisy"]

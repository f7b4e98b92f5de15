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
    chosen = min(STRENGTHS, key=lambda strength: _error(seen, pictures, held, strength))
    return _ridge(seen, pictures, unknown, chosen)


def decode_noisy(seen: Tensor, pictures: Tensor, unknown: Tensor, variance: float) -> Tensor:
    """The same where each value of `unknown`, and none of `seen`, has noise of this variance.

    The linear decoder with the least mean squared error: the more noise, the nearer the mean of the known pictures.
    """
    return _ridge(seen, pictures, unknown, LEAST, variance)


def _error(seen: Tensor, pictures: Tensor, held: int, strength: float) -> float:
    found = _ridge(seen[held:], pictures[held:], seen[:held], strength)
    return float((found - pictures[:held]).square().mean())


def _ridge(seen: Tensor, pictures: Tensor, unknown: Tensor, strength: float, variance: float = 0.0) -> Tensor:
    centre, level = seen.double().mean(0), pictures.double().mean(0)
    x, y = seen.double() - centre, pictures.double() - level
    grams = x @ x.T
    grams.diagonal().add_(strength * max(float(grams.diagonal().mean()), 1e-12) / 100 + variance * len(x))
    weights: Tensor = torch.linalg.solve(grams, y)
    return (unknown.double() - centre) @ (x.T @ weights) + level


__all__ = ["decode", "decode_noisy"]

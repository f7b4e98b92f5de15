"""Exact laws of outputs, and the normal scores that an auditor makes of them.

Of every output y a law knows P[Y < y] and P[Y = y]. A number u is drawn evenly between P[Y < y] and P[Y <= y], and the
score is Phi^-1(u). If the law is right, scores are independent standard normal numbers, *exactly*, whatever the
mechanism: bits, labels and noise on a grid alike. So all checks speak of normal numbers, and p-values are exact.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sordino.mechanisms.arrays import Float64s, Int64s, Numbers
from sordino.parts.lazy import lazy_module

if TYPE_CHECKING:
    from scipy import special
else:
    special = lazy_module("scipy.special")

FEW = 16  #: outputs of one value that are counted one by one
SMALLEST = 2.0**-60  #: scores lie within +-8.9


class Law(ABC):
    """The law of outputs `[n, d]`: independent, and the same in every row."""

    @abstractmethod
    def interval(self, outputs: Numbers) -> tuple[Float64s, Float64s]:
        """P[Y < y] and P[Y = y] for every output."""

    @abstractmethod
    def possible(self, outputs: Numbers) -> NDArray[np.bool_]:
        """Which outputs can occur, and can occur under every neighbouring input as well."""

    def atoms(self) -> Float64s | None:
        """`[a, d]`: the probability of the outputs 0, 1, .. a - 1 of every value, where there are few; else None."""
        return None

    def direction(self) -> Float64s:
        """`[d]` signs: where larger outputs speak for the input, and where smaller ones do; 0 where neither does."""
        return np.zeros(0)

    def scores(self, outputs: Numbers, rng: np.random.Generator) -> Float64s:
        """Normal scores `[n, d]`."""
        below, mass = self.interval(outputs)
        return normal(below + rng.random(outputs.shape) * mass)


def normal(u: Float64s) -> Float64s:
    """The normal numbers that even numbers from 0 to 1 stand for."""
    np.clip(u, SMALLEST, 1 - 2.0**-53, out=u)
    return np.asarray(special.ndtri(u, out=u))


@dataclass(frozen=True, eq=False)
class Atoms(Law):
    """Numbers 0 .. a - 1, each value with probabilities of its own `[a, d]`."""

    probabilities: Float64s

    @classmethod
    def bits(cls, ones: Float64s) -> Atoms:
        """Bits that are one with these probabilities `[d]`."""
        return cls(np.stack([1 - ones, ones]))

    def interval(self, outputs: Numbers) -> tuple[Float64s, Float64s]:
        a, d = self.probabilities.shape
        before = np.concatenate([np.zeros((1, d)), np.cumsum(self.probabilities, axis=0)[:-1]])
        place = np.clip(outputs, 0, a - 1).astype(np.intp) * d + np.arange(d)
        return before.ravel().take(place), self.probabilities.ravel().take(place)

    def possible(self, outputs: Numbers) -> NDArray[np.bool_]:
        """An output of probability 0 for one input would exclude that input."""
        whole = np.asarray(outputs == np.floor(outputs)) & (outputs >= 0) & (outputs < len(self.probabilities))
        return np.asarray(whole & (self.probabilities > 0).all())

    def atoms(self) -> Float64s | None:
        return self.probabilities if len(self.probabilities) <= FEW else None

    def direction(self) -> Float64s:
        half = len(self.probabilities) // 2
        return np.asarray(np.sign(self.probabilities[-half:].sum(axis=0) - self.probabilities[:half].sum(axis=0)))


@dataclass(frozen=True, eq=False)
class Whole(Law):
    """Whole numbers within +-`limit`: noise that is added to `centre [d]`."""

    centre: Int64s
    limit: int

    def direction(self) -> Float64s:
        return np.sign(self.centre).astype(np.float64)

    def possible(self, outputs: Numbers) -> NDArray[np.bool_]:
        return np.asarray((outputs == np.floor(outputs)) & (np.abs(outputs) <= self.limit))


@dataclass(frozen=True, eq=False)
class TableLaw(Whole):
    """Noise from a table, clamped to the limit: `weights[i]` is the probability of the noise `first + i`."""

    first: int
    weights: Float64s
    span: int  #: how far apart two inputs can be, in steps: every output must be possible for both

    def interval(self, outputs: Numbers) -> tuple[Float64s, Float64s]:
        index = outputs.astype(np.int64) - self.centre - self.first
        inside = (index >= 0) & (index < len(self.weights))
        below = np.concatenate([[0.0], np.cumsum(self.weights)])[np.clip(index, 0, len(self.weights))]
        mass = np.where(inside, self.weights[np.clip(index, 0, len(self.weights) - 1)], 0.0)
        highest, lowest = outputs >= self.limit, outputs <= -self.limit
        if highest.any():
            beyond = np.cumsum(np.concatenate([[0.0], self.weights[::-1]]))[::-1]  # 1 - below would cancel
            mass[highest] = beyond[np.clip(index[highest], 0, len(self.weights))]
            below[outputs > self.limit], mass[outputs > self.limit] = 1.0, 0.0
        if lowest.any():
            mass[lowest] += below[lowest]
            below[lowest] = 0.0
        return below, mass

    def possible(self, outputs: Numbers) -> NDArray[np.bool_]:
        """Within the table of every input."""
        last, half = self.first + len(self.weights) - 1, self.span // 2
        clamped = self.limit < last + half
        reach = min(self.limit, last - half, -self.first - half) if clamped else self.limit
        return np.asarray(super().possible(outputs) & (np.abs(outputs) <= reach))


@dataclass(frozen=True, eq=False)
class Normal(Whole):
    """Gaussian noise of hundreds of steps or more: a rounded Gaussian of `sigma` steps, to parts in 10^10."""

    sigma: float

    def interval(self, outputs: Numbers) -> tuple[Float64s, Float64s]:
        z = (outputs - self.centre) / self.sigma
        step = 0.5 / self.sigma
        below = special.ndtr(z - step)
        return below, special.ndtr(z + step) - below


@dataclass(frozen=True, eq=False)
class TwoSided(Whole):
    """e^(-rate |y - centre|) on -limit .. limit: the exponential mechanism on whole numbers."""

    rate: float

    def _below(self, y: Int64s) -> Float64s:
        """The sum of e^(-rate |z - centre|) over z < y, up to the common factor 1/(1 - e^-rate)."""
        left, right = self.centre + self.limit, self.limit - self.centre
        up = np.minimum(y - self.centre, right + 1)
        outside = np.exp(-self.rate * (left + 1))
        rising = np.exp(-self.rate * np.maximum(1 - up, 0)) - outside
        falling = np.exp(-self.rate) - np.exp(-self.rate * np.maximum(up, 1))
        return np.asarray(np.where(up <= 0, rising, 1 - outside + falling))

    def interval(self, outputs: Numbers) -> tuple[Float64s, Float64s]:
        y, total = outputs.astype(np.int64), self.total()
        below = self._below(y) / total
        return below, self._below(y + 1) / total - below

    def total(self) -> Float64s:
        """`[d]`: the sum over all outputs, up to the same factor."""
        return self._below(np.full(self.centre.shape, self.limit + 1))


@dataclass(frozen=True, eq=False)
class PiecewiseLaw(Whole):
    """-limit .. limit - 1, each equally likely, and `counts / 2^32` more around the centre: the piecewise mechanism."""

    threshold: float  #: the probability of an output near the centre
    counts: Int64s  #: of 2^32 words, how many lead to each of the outputs around the centre

    def interval(self, outputs: Numbers) -> tuple[Float64s, Float64s]:
        below, above = self._below(outputs), self._below(outputs + 1)
        return below, above - below

    def _below(self, outputs: Numbers) -> Float64s:
        width = len(self.counts)
        place = np.clip(outputs - self.centre + width // 2, 0, width).astype(np.intp)
        near = np.concatenate([[0.0], np.cumsum(self.counts) * 2.0**-32])[place]
        anywhere = np.clip(outputs + self.limit, 0, 2 * self.limit) / (2 * self.limit)
        return np.asarray((1 - self.threshold) * anywhere + self.threshold * near)

    def possible(self, outputs: Numbers) -> NDArray[np.bool_]:
        return np.asarray(super().possible(outputs) & (outputs < self.limit))


@dataclass(frozen=True, eq=False)
class Caps(Normal):
    """A Gaussian vector of `sigma` steps, its part along `axis [d]` drawn anew: PrivUnitG.

    That part is at least `gamma` with probability p, and below it otherwise.
    """

    axis: Float64s
    p: float
    gamma: float

    def scores(self, outputs: Numbers, rng: np.random.Generator) -> Float64s:
        """The part along the axis becomes the normal number that it stands for; the rest is normal as it is."""
        z = (outputs + rng.random(outputs.shape) - 0.5) / self.sigma
        along = z @ self.axis
        gamma, tail = special.ndtr(self.gamma), special.ndtr(-self.gamma)
        beyond = 1 - self.p * special.ndtr(-along) / tail
        u = np.where(along < self.gamma, (1 - self.p) * special.ndtr(along) / gamma, beyond)
        return np.asarray(z + (normal(u) - along)[:, None] * self.axis)

    def direction(self) -> Float64s:
        return np.sign(self.axis)


@dataclass(frozen=True, eq=False)
class EvenWords(Whole):
    """Words that are even over 0 .. limit, whatever the input: what a mask makes of a vector."""

    def interval(self, outputs: Numbers) -> tuple[Float64s, Float64s]:
        one = 1 / (self.limit + 1)
        return outputs * one, np.full(outputs.shape, one)

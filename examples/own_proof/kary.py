"""A proven mechanism of one's own: k-ary randomised response (Kairouz et al., NeurIPS 2014) over k levels of a range.

    level <- the value, rounded up or down at random, so that on average it stays the same
    y     <- level with probability q, else any of the k levels with probability 1/k

P[y] lies between (1 - q)/k and q + (1 - q)/k for every value. With q = kept/2^32 these are whole numbers over k 2^32,
2^32 - kept and 2^32 - kept + k kept. Their ratio is e^epsilon of one value. No float decides it.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any, Literal

import numpy as np
from pydantic import Field

from sordino.mechanisms import Box, Diagnostics, Randomized, cases, tuning
from sordino.mechanisms.integers import ONE, check_epsilon, exp_bounds, log_ratio
from sordino.mechanisms.interface import values_affected
from sordino.mechanisms.laws import Atoms
from sordino.mechanisms.spec import MechanismSpec, Vectors
from sordino.mechanisms.whole_numbers import WholeNumbers
from sordino.parts.tables import tag
from sordino.privacy.guarantee import SERVER, Adjacency, Guarantee, Pure
from sordino.randomness import Purpose, Randomness


class Kary(WholeNumbers):
    """Values in a box, each reported as one of k levels; epsilon is per value."""

    name = "kary"
    limited_by = "a value is one of a few levels"

    class Spec(MechanismSpec):
        """One of k levels per value, by k-ary randomised response."""

        name: str = tag("kary", "one of k levels per value; epsilon is per value")
        levels: Literal[2, 4, 8, 16, 32, 64, 128, 256] = Field(default=8, description="how many levels there are")

        def build(self, epsilon: float | None, vectors: Vectors) -> Kary:
            return Kary(self.needed(epsilon), vectors.box(), self.levels)

    def __init__(self, epsilon: float, domain: Box | None = None, levels: int = 8) -> None:
        self.domain, self.levels = domain or Box(), levels
        excess = exp_bounds(Fraction(check_epsilon(epsilon)), 64)[0] - 2**64  # (e^eps - 1) 2^64, rounded down
        self.kept = ONE * excess // (excess + levels * 2**64)  # rounded down, which is towards privacy
        self.q, self.other = self.kept / ONE, (1 - self.kept / ONE) * (levels - 1) / 2

    def limits(self, values: int, rows: int) -> Any:
        return np.zeros(rows, np.int64), np.full(rows, self.levels - 1)

    def levels_of(self, values: Any) -> Any:
        """`[K, d]` levels below the values, the chances (in 2^32) of the level above, `[K]` how many were clipped."""
        z, clipped = self.domain.normalise(values, slice(0, values.shape[1]))
        place = (z.astype(np.float64) + 1) / 2 * (self.levels - 1)
        below = np.minimum(np.floor(place), self.levels - 2)
        return below, np.rint((place - below) * ONE), clipped

    def values_at(self, levels: Any) -> Any:
        centre, radius = self.domain.in_float64()
        return centre + radius * (2 * levels / (self.levels - 1) - 1)

    def randomize(self, values: Any, randomness: Randomness, *, tensor: int = 0) -> Randomized:
        w = self.values_of(values, randomness)
        below, above, clipped = self.levels_of(w)
        words = randomness.words(np.arange(len(w)), Purpose.NOISE, tensor, 0, 2 * w.shape[1])
        keep, word, output = words[:, ::2] < np.uint32(self.kept), words[:, 1::2], self.empty(*w.shape)
        output.array[:] = np.where(keep, below + (word < above), word >> np.uint32(33 - self.levels.bit_length()))
        noise = np.sqrt(self.variance(np.zeros((1, w.shape[1])) + self.domain.centre).mean())
        return Randomized(output, Diagnostics(clipped / w.shape[1], np.full(len(w), noise)))

    def estimate(self, output: Any) -> Any:
        return self.values_at((self.whole(output) - self.other) / self.q)

    def bias(self, values: Any) -> Any:
        below, above, _ = self.levels_of(w := self.values_of(values))
        return self.values_at(below + above / ONE) - w

    def variance(self, values: Any) -> Any:
        below, above, _ = self.levels_of(self.values_of(values))
        mean = self.q * (below + above / ONE) + self.other
        square = self.q * (below**2 + (2 * below + 1) * above / ONE) + self.other * (2 * self.levels - 1) / 3
        return (2 * self.domain.in_float64()[1] / (self.levels - 1) / self.q) ** 2 * (square - mean**2)

    def guarantee(self, adjacency: Adjacency = Adjacency.CLIENT, *, values: int = 1, client: int = 0) -> Guarantee:
        epsilon = log_ratio(ONE - self.kept + self.levels * self.kept, ONE - self.kept)
        basis = f"{self.levels} levels, kept by {self.kept} of 2^32 words, by enumeration"
        return Guarantee(SERVER, adjacency, Pure(epsilon, values_affected(adjacency, values)), basis)

    def law(self, values: Any) -> Atoms:
        below, above, _ = self.levels_of(self.values_of(values))
        levels, up = np.arange(self.levels)[:, None], above / ONE
        rounded = np.where(levels == below, 1 - up, (levels == below + 1) * up)
        return Atoms((1 - self.q) / self.levels + self.q * rounded)

    @classmethod
    def tunings(cls, ranges: tuning.Ranges) -> Any:
        return tuning.by_value(cls.name, cls, ranges)

    @classmethod
    def audit_cases(cls, epsilon: float) -> Any:
        return iter([cases.one_value(cls(epsilon)), cases.upload(cls(epsilon), 100)])

    @classmethod
    def specimens(cls, epsilon: float) -> Any:
        return cases.deep_and_wide(cls(epsilon))

"""A mechanism of one's own: each value becomes one of a few levels at random, so that on average it stays the same.

Stochastic rounding alone hides next to nothing: `guarantee` says so, and the run's statement shows no epsilon.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from annotated_types import Ge, Le
from pydantic import Field

from sordino.mechanisms import Box, ClipOnly, Mechanism, Randomized
from sordino.mechanisms.arrays import as_matrix
from sordino.mechanisms.interface import Diagnostics, unproven
from sordino.mechanisms.output import RealOutput
from sordino.mechanisms.spec import MechanismSpec, Vectors
from sordino.parts.tables import tag
from sordino.privacy.guarantee import Adjacency, Guarantee
from sordino.randomness import Purpose, Randomness


class Rounding(ClipOnly):
    """Values in a box, each rounded up or down to one of `levels` levels."""

    name = "rounding"

    class Spec(MechanismSpec):
        """Rounded at random to a few levels; nothing is proven."""

        name: str = tag("rounding", "rounded at random to a few levels: no proof")
        levels: Annotated[int, Ge(2), Le(256)] = Field(default=16, description="how many levels there are")
        takes_epsilon: ClassVar[bool] = False

        def build(self, epsilon: float | None, vectors: Vectors) -> Mechanism:
            return Rounding(vectors.box(), self.levels)

    def __init__(self, domain: Box, levels: int) -> None:
        super().__init__(domain)
        self._levels = levels

    def randomize(self, values: Any, randomness: Randomness | None = None, *, tensor: int = 0) -> Randomized:
        assert randomness is not None
        w = as_matrix(values)
        low, width = self.domain.centre - self.domain.radius, 2 * self.domain.radius / (self._levels - 1)
        u = randomness.words(np.arange(len(w)), Purpose.NOISE, tensor, 0, w.shape[1]) / 2.0**32
        rounded = low + width * np.floor((self._clip(w) - low) / width + u)
        output = RealOutput(rounded.astype(np.float32), np.full(len(w), 1e30))
        return Randomized(output, Diagnostics(np.zeros(len(w)), np.full(len(w), float(np.mean(width)) / 2)))

    def variance(self, values: Any) -> Any:
        return np.full(as_matrix(values).shape, (2 * np.mean(self.domain.radius) / (self._levels - 1)) ** 2 / 4)

    def guarantee(self, adjacency: Adjacency = Adjacency.CLIENT, *, values: int = 1, client: int = 0) -> Guarantee:
        return unproven(adjacency, "rounding at random: nobody has proven what it hides")

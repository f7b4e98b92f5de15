"""The piecewise mechanism (Wang et al. 2019): values in [-1, 1] reported near themselves with high probability.

With C = (e^(eps/2) + 1)/(e^(eps/2) - 1), l(x) = (C + 1) x/2 - (C - 1)/2 and r(x) = l(x) + C - 1: uniform on [l, r]
with probability e^(eps/2)/(e^(eps/2) + 1), else uniform on the rest of [-C, C]. Unbiased, and less variance than the
two-point mechanism from eps = 1.29 up. Proven in real arithmetic; the output here is a 32-bit float.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from sordino.mechanisms.domain import Box
from sordino.mechanisms.integers import MAX_EPSILON, MIN_EPSILON, cap_note
from sordino.mechanisms.interface import (
    Diagnostics,
    Float64s,
    Floats,
    Mechanism,
    Randomized,
    as_matrix,
    as_shaped,
    check_cohort,
    client_index,
    per_client,
    row_parameters,
    store_tile,
    tile_of,
    tiles,
    values_affected,
)
from sordino.mechanisms.output import Output, RealOutput, decode_reals
from sordino.privacy.guarantee import SERVER, Adjacency, Guarantee, Pure
from sordino.randomness import Purpose, Randomness, Words


class Piecewise(Mechanism):
    """Values in a box, each reported as a real number; `epsilon` is per value: a scalar, or one per client."""

    name: ClassVar[str] = "piecewise"

    def __init__(self, epsilon: ArrayLike, domain: Box | None = None) -> None:
        self._asked = per_client("epsilon", epsilon, low=MIN_EPSILON * (1 - 1e-9), high=np.inf)
        self.epsilon = np.minimum(self._asked, MAX_EPSILON)
        self.domain: Box = domain or Box()

    @property
    def clients(self) -> int | None:
        return None if self.epsilon.size == 1 else int(self.epsilon.size)

    def _constants(self, rows: int) -> tuple[Float64s, Float64s]:
        """C and the probability of the near piece, `[K, 1]`."""
        half = row_parameters(self.epsilon, rows)[:, None] / 2
        return 1 / np.tanh(half / 2), 1 / (1 + np.exp(-half))

    def randomize(self, values: ArrayLike, randomness: Randomness, *, tensor: int = 0) -> Randomized:
        w = as_shaped(values)
        clients, d = w.shape
        self.domain.check_values(d)
        check_cohort(self, clients, randomness)
        c, near = self._constants(clients)
        out = np.empty((clients, d), np.float32)
        clipped = np.zeros(clients)
        for rows, cols in tiles(np.zeros(clients), d):
            z, outside = self.domain.normalise(tile_of(w, rows, cols), cols)
            clipped[rows] += outside / d
            words = randomness.words(rows, Purpose.NOISE, tensor, 2 * cols.start, 2 * z.shape[1])
            store_tile(out, rows, cols, self._draw(z.astype(np.float64), words, c[rows], near[rows]))
        bound = self._bound(clients)
        radius = float(np.mean(self.domain.radius, dtype=np.float64))
        scale = radius * np.sqrt(self._unit_variance(np.zeros((clients, 1))))[:, 0]
        return Randomized(RealOutput(out, bound), Diagnostics(clipped, scale))

    @staticmethod
    def _draw(z: Float64s, words: Words, c: Float64s, near: Float64s) -> Float64s:
        choose, u = ((words[:, i::2] + 0.5) * 2.0**-32 for i in (0, 1))
        left = (c + 1) / 2 * z - (c - 1) / 2
        inside = left + (c - 1) * u
        rest = (c + 1) * u - c  # uniform on [-C, 1]; beyond l it jumps over the near piece
        return np.where(choose < near, inside, np.where(rest < left, rest, rest + (c - 1)))

    def _bound(self, rows: int) -> Float64s:
        return np.asarray(self._constants(rows)[0][:, 0] * (1 + 1e-6))

    def estimate(self, output: Output) -> Floats:
        if not isinstance(output, RealOutput):
            raise TypeError(f"the piecewise mechanism puts out reals, not {type(output).__name__}")
        check_cohort(self, len(output.array))
        self.domain.check_values(output.values)
        return self.domain.centre + self.domain.radius * output.array

    def bias(self, values: ArrayLike) -> Float64s:
        """None inside the box."""
        w = as_matrix(values).astype(np.float64)
        self.domain.check_values(w.shape[1])
        c, r = (a.astype(np.float64) for a in self.domain.columns(slice(0, w.shape[1])))
        return np.clip(w, c - r, c + r) - w

    def variance(self, values: ArrayLike) -> Float64s:
        w = as_matrix(values)
        check_cohort(self, len(w))
        self.domain.check_values(w.shape[1])
        z, _ = self.domain.normalise(w, slice(0, w.shape[1]))
        unit = self._unit_variance(z.astype(np.float64))
        return np.asarray(self.domain.columns(slice(0, w.shape[1]))[1].astype(np.float64) ** 2 * unit)

    def _unit_variance(self, z: Float64s) -> Float64s:
        """Of the output for values z in [-1, 1]."""
        less = np.expm1(row_parameters(self.epsilon, len(z))[:, None] / 2)
        return np.asarray(z**2 / less + (less + 4) / (3 * less**2))

    def guarantee(self, adjacency: Adjacency = Adjacency.CLIENT, *, values: int = 1, client: int = 0) -> Guarantee:
        row = client_index(self.epsilon.size, client)
        count = values_affected(adjacency, values)
        basis = f"Wang et al. 2019, in real arithmetic only{cap_note(self._asked[row])}"
        return Guarantee(SERVER, adjacency, Pure(float(self.epsilon[row]), count), basis)

    def decode(self, reports: Sequence[bytes], values: int) -> Output:
        check_cohort(self, len(reports))
        return decode_reals(reports, values, self._bound(len(reports)))

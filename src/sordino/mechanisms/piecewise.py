"""The piecewise mechanism (Wang et al. 2019) on whole numbers: values reported near themselves with high probability.

A value is rounded to the grid point t/m of [-1, 1], t in -m .. m, and the output is one of 2^16 whole numbers. With
probability T/2^32 it is uniform on the W outputs around t, else uniform on all of them; W : 2m = 1 : e^(eps/2), as in
the paper. Of 2^64 pairs of words, (2^32 - T) 2^16 lead to an output that is not near t, and at most T ceil(2^32/W) more
to one that is. T is the largest with which the ratio of the two stays within e^eps: the guarantee is a count. Every
output is possible for every value, and the mean output is exactly (T/2^32) t.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino.mechanisms import cases, tuning
from sordino.mechanisms.arrays import (
    Float32s,
    Float64s,
    Floats,
    Int64s,
    Vector,
    per_client,
    row_parameters,
    store_tile,
    tile_of,
    tiles,
)  # fmt: skip
from sordino.mechanisms.cases import Case, Specimen
from sordino.mechanisms.domain import Box
from sordino.mechanisms.integers import MAX_EPSILON, MIN_EPSILON, ONE, cap_note, check_epsilon, exp_bounds
from sordino.mechanisms.interface import Diagnostics, Mechanism, Randomized, values_affected
from sordino.mechanisms.laws import PiecewiseLaw
from sordino.mechanisms.likelihood import Ratio
from sordino.mechanisms.output import Output
from sordino.mechanisms.spec import MechanismSpec, Vectors
from sordino.mechanisms.tuning import Ranges, Tuning
from sordino.mechanisms.whole_numbers import WholeNumbers
from sordino.parts.tables import tag
from sordino.privacy.guarantee import SERVER, Adjacency, Guarantee, Pure
from sordino.randomness import Purpose, Randomness, Words

OUTPUTS = 2**16  #: whole numbers from -2^15 to 2^15 - 1, which stand for themselves plus 1/2
_HALF = OUTPUTS // 2
_BITS = 192


@dataclass(frozen=True)
class Pieces:
    """The whole numbers that make one epsilon's mechanism: W outputs around an input, and T of 2^32 draws for them."""

    near: int  #: W, an even number
    threshold: int  #: T

    @property
    def m(self) -> int:
        """Inputs are -m .. m: for each of them the W outputs around it lie within the range."""
        return (OUTPUTS - self.near) // 2

    @property
    def base(self) -> int:
        """The weight, out of 2^64, of an output that is not near the input."""
        return (ONE - self.threshold) * (ONE // OUTPUTS)

    @property
    def peak(self) -> int:
        """The largest weight of one that is."""
        return self.base + self.threshold * -(-ONE // self.near)

    @property
    def slope(self) -> float:
        """The mean output for a value at the end of the range."""
        return self.threshold / ONE * self.m

    def counts(self) -> Int64s:
        """How many of 2^32 words lead to each of the W outputs around the input: they differ by one at most."""
        edges = [-(-(j * 2 * ONE - self.near) // (2 * self.near)) for j in range(self.near + 1)]
        return np.array(edges[1:], np.int64) - np.array(edges[:-1], np.int64)


class Piecewise(WholeNumbers):
    """Values in a box, each reported as one of 2^16 whole numbers; `epsilon` is per value: a scalar, or one per client.

    The input grid has at least 2^15 steps: a value is rounded to the nearest point, which `bias` takes into account.
    """

    name: ClassVar[str] = "piecewise"
    limited_by = "outputs lie in [-C, C] of the mechanism"

    class Spec(MechanismSpec):
        """The piecewise mechanism (Wang et al. 2019)."""

        name: str = tag("piecewise", "near the value with high probability; epsilon per value")

        def build(self, epsilon: float | None, vectors: Vectors) -> Mechanism:
            return Piecewise(self.needed(epsilon), vectors.box())

    def __init__(self, epsilon: ArrayLike, domain: Box | None = None) -> None:
        self._asked = per_client("epsilon", epsilon, low=MIN_EPSILON * (1 - 1e-9), high=np.inf)
        self.epsilon = np.minimum(self._asked, MAX_EPSILON)
        self.domain: Box = domain or Box()
        self.pieces = tuple(pieces(float(e)) for e in self.epsilon)
        self.parameter_sets = self.epsilon.size

    def _each(self, what: str, rows: int) -> Float64s:
        """One number of every client's pieces, `[K, 1]`."""
        return np.asarray(row_parameters(np.array([getattr(p, what) for p in self.pieces], np.float64), rows)[:, None])

    def randomize(self, values: ArrayLike, randomness: Randomness, *, tensor: int = 0) -> Randomized:
        w = self.values_of(values, randomness)
        clients, d = w.shape
        which, out = self.row_sets(clients), self.empty(clients, d)
        clipped = np.zeros(clients)
        for rows, cols in tiles(which, d, 2):
            chosen = self.pieces[which[rows[0]]]
            z, outside = self.domain.normalise(tile_of(w, rows, cols), cols)
            clipped[rows] += outside / d
            words = randomness.words(rows, Purpose.NOISE, tensor, 2 * cols.start, 2 * z.shape[1])
            store_tile(out.array, rows, cols, _draw(_on_grid(z, chosen.m), words, chosen))
        radius = float(np.mean(self.domain.radius, dtype=np.float64))
        scale = radius * np.sqrt(self._unit_variance(np.zeros((clients, 1))))[:, 0]
        return Randomized(out, Diagnostics(clipped, scale))

    def limits(self, values: int, rows: int) -> tuple[Int64s, Int64s]:
        return np.full(rows, -_HALF, np.int64), np.full(rows, _HALF - 1, np.int64)

    def estimate(self, output: Output) -> Floats:
        whole = self.whole(output)
        unit = (whole + 0.5) / self._each("slope", len(whole))
        return np.asarray(self.domain.centre + self.domain.radius * unit.astype(np.float32))

    def on_grid(self, values: ArrayLike) -> Float64s:
        """t, the whole numbers in -m .. m that values are rounded to: W outputs lie around each of them."""
        w = self.values_of(values)
        z, _ = self.domain.normalise(w, slice(0, w.shape[1]))
        return _on_grid(z, self._each("m", len(w)).astype(np.float32)).astype(np.float64)

    def bias(self, values: ArrayLike) -> Float64s:
        """The rounding to the grid, at most 2^-15 of the radius; beyond the box also the clipping."""
        t, (c, r) = self.on_grid(values), self.domain.in_float64()
        return np.asarray(c + r * t / self._each("m", len(t)) - self.values_of(values))

    def variance(self, values: ArrayLike) -> Float64s:
        t = self.on_grid(values)
        z = t / self._each("m", len(t))
        return np.asarray(self.domain.in_float64()[1] ** 2 * self._unit_variance(z))

    def _unit_variance(self, z: Float64s) -> Float64s:
        """The output's variance for values z in [-1, 1] on the grid, in units of the slope."""
        rows = len(z)
        p, m, slope = self._each("threshold", rows) / ONE, self._each("m", rows), self._each("slope", rows)
        around = np.array([_spread(piece) for piece in self.pieces])
        everywhere = (OUTPUTS**2 - 1) / 12
        square = (1 - p) * everywhere + p * ((m * z) ** 2 + row_parameters(around, rows)[:, None])
        return np.asarray(square / slope**2 - z**2)

    def guarantee(self, adjacency: Adjacency = Adjacency.CLIENT, *, values: int = 1, client: int = 0) -> Guarantee:
        row = self.row_of(client)
        piece = self.pieces[row]
        basis = (
            f"weights from {piece.base} to {piece.peak} out of 2^64 for each of 2^16 outputs, by enumeration"
            f"{cap_note(self._asked[row])}"
        )
        return Guarantee(SERVER, adjacency, Pure(float(self.epsilon[row]), values_affected(adjacency, values)), basis)

    # --- planning

    @classmethod
    def tunings(cls, ranges: Ranges) -> Sequence[Tuning]:
        return tuning.by_value(cls.name, cls, ranges)

    # --- audits

    def law(self, values: Vector) -> PiecewiseLaw:
        piece, t = self.pieces[0], self.on_grid(values[None])[0].astype(np.int64)
        return PiecewiseLaw(t, _HALF, piece.threshold / ONE, piece.counts())

    def likelihood_ratio(self, first: Vector, second: Vector) -> Ratio:
        """Whether an output is near the one input or near the other."""
        half = self.pieces[0].near // 2
        middles = [self.on_grid(v[None])[0] for v in (first, second)]

        def score(output: Output) -> Float64s:
            near = [np.abs(output.numbers() + 0.5 - t) < half for t in middles]
            return np.asarray(near[0].astype(np.float64) - near[1])

        return score

    @classmethod
    def audit_cases(cls, epsilon: float) -> Iterator[Case]:
        yield cases.one_value(cls(epsilon, Box()))

    @classmethod
    def specimens(cls, epsilon: float) -> Iterator[Specimen]:
        return cases.deep_and_wide(cls(epsilon, Box()))


def _on_grid(z: Float32s, m: int | Float32s) -> Float32s:
    """t, the nearest whole number to m z: m is at most 2^15, so that |t| <= m also in float32."""
    return np.rint(np.multiply(z, m, dtype=np.float32))


def _draw(t: Float32s, words: Words, piece: Pieces) -> NDArray[np.int16]:
    """One word says whether the output is near t, the other which of the outputs it is.

    floor((2u + 1) W / 2^33) takes every value below W for as many words as any other, or one more, symmetrically.
    """
    choose, u = words[:, ::2], words[:, 1::2]
    near = u.astype(np.uint64)
    near *= np.uint64(2 * piece.near)
    near += np.uint64(piece.near)
    near >>= np.uint64(33)
    around = near.astype(np.int32)
    around += t.astype(np.int32)
    around -= piece.near // 2
    anywhere = (u >> np.uint32(16)).astype(np.int32)
    anywhere -= _HALF
    return np.where(choose < np.uint32(piece.threshold), around, anywhere).astype(np.int16)


@lru_cache(maxsize=4096)
def pieces(epsilon: float) -> Pieces:
    """W as in the paper or one or two more; and the largest T with T ceil(2^32/W) <= (e^eps - 1) (2^32 - T) 2^16."""
    exact = Fraction(check_epsilon(epsilon))
    share = Fraction(1 << _BITS, exp_bounds(exact / 2)[0] + (1 << _BITS))  # 1/(1 + e^(eps/2))
    near = 2 * math.ceil(OUTPUTS * share / 2)
    gain = exp_bounds(exact)[0] - (1 << _BITS)  # e^eps - 1, rounded down
    each = -(-ONE // near) << _BITS
    return Pieces(near, gain * ONE * (ONE // OUTPUTS) // (each + gain * (ONE // OUTPUTS)))


@lru_cache(maxsize=4096)
def _spread(piece: Pieces) -> float:
    """The variance of an output near the input."""
    places = np.arange(piece.near) - (piece.near - 1) / 2
    return float((places**2 * piece.counts()).sum() / ONE)

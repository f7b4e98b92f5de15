"""Doubles with a mechanism's interface and none of its protection: an ablation is a swap, and says what it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from sordino.errors import InvalidInput
from sordino.mechanisms import reach
from sordino.mechanisms.arrays import Float32s, Float64s, Floats, Int64s, as_matrix
from sordino.mechanisms.domain import Box, L1Ball, L2Ball
from sordino.mechanisms.interface import Diagnostics, Mechanism, Randomized, unproven
from sordino.mechanisms.output import IntegerOutput, Output, RealOutput, decode_integers, decode_reals
from sordino.mechanisms.reach import Reach
from sordino.mechanisms.spec import MechanismSpec, Vectors
from sordino.parts.tables import tag
from sordino.privacy.guarantee import Adjacency, Guarantee
from sordino.randomness import Randomness

_LARGEST = float(np.finfo(np.float32).max)


class NoPrivacy(Mechanism):
    """The values themselves, as 32-bit floats."""

    name: ClassVar[str] = "none"
    randomizes: ClassVar[bool] = False
    bounded: ClassVar[bool] = False
    in_pages: ClassVar[bool] = True
    domain: Box | L1Ball | L2Ball = Box(0.0, 1e30)

    class Spec(MechanismSpec):
        """The values as they are: no clipping, no noise, no protection."""

        noise: ClassVar[str] = ""
        name: str = tag("none", "values leave as they are: no protection")
        takes_epsilon: ClassVar[bool] = False
        clips: ClassVar[bool] = False

        def build(self, epsilon: float | None, vectors: Vectors) -> Mechanism:
            return NoPrivacy()

    def _clip(self, w: Floats) -> Float64s:
        return np.clip(w.astype(np.float64), -_LARGEST, _LARGEST)

    def _clips(self, w: Floats) -> bool:
        """Whether any values may be clipped: 32-bit ones are finite, and are sent as they are."""
        return w.dtype != np.float32

    def randomize(self, values: ArrayLike, randomness: Randomness | None = None, *, tensor: int = 0) -> Randomized:
        w = as_matrix(values)
        share, clipped = np.zeros(len(w)), w
        if self._clips(w):
            clipped = self._clip(w)
            share = np.mean(np.abs(clipped - w) > 1e-6 * np.abs(w), axis=1)
        output = RealOutput(clipped.astype(np.float32, copy=False), np.full(len(w), _LARGEST))
        return Randomized(output, Diagnostics(share, np.zeros(len(w))))

    def estimate(self, output: Output) -> Floats:
        if not isinstance(output, RealOutput):
            raise TypeError(f"plain values are reals, not {type(output).__name__}")
        return output.array

    def bias(self, values: ArrayLike) -> Float64s:
        w = as_matrix(values)
        return self._clip(w).astype(np.float32).astype(np.float64) - w

    def variance(self, values: ArrayLike) -> Float64s:
        return np.zeros(as_matrix(values).shape)

    def guarantee(self, adjacency: Adjacency = Adjacency.CLIENT, *, values: int = 1, client: int = 0) -> Guarantee:
        return unproven(adjacency, "no noise is added: the values leave the client as they are")

    def decode(self, reports: Sequence[bytes], values: int) -> Output:
        return decode_reals(reports, values, np.full(len(reports), _LARGEST))

    def page_settings(self, values: int) -> dict[str, object]:
        return {"name": self.name}

    def worst_pair(self, values: int) -> tuple[Float32s, Float32s]:
        return np.ones(values, np.float32), -np.ones(values, np.float32)

    def _extent(self, values: int, limit: float | None) -> Reach:
        far = np.full(values, reach.float32_within(_LARGEST if limit is None else limit))
        bound = "the range of float32: no bound in practice" if limit is None else "the server's own limit"
        return reach.between(self, reach.real(-far), reach.real(far), bound)


class ClipOnly(NoPrivacy):
    """The values clipped to a domain and not randomised: what clipping alone costs."""

    name: ClassVar[str] = "clip-only"
    bounded: ClassVar[bool] = True
    in_pages: ClassVar[bool] = False

    class Spec(MechanismSpec):
        """Clipped and not randomised: what clipping alone costs."""

        noise: ClassVar[str] = ""
        name: str = tag("clip-only", "clipped, not randomised: no protection")
        norm: Literal["box", "l1", "l2"] = Field(default="box", description="each value, or the vector's L1 or L2 norm")
        takes_epsilon: ClassVar[bool] = False

        def build(self, epsilon: float | None, vectors: Vectors) -> Mechanism:
            return ClipOnly(vectors.within(self.norm))

    def __init__(self, domain: Box | L1Ball | L2Ball | None = None) -> None:
        self.domain = domain or Box()

    def _clips(self, w: Floats) -> bool:
        return True

    def _clip(self, w: Floats) -> Float64s:
        return self.domain.clipped(w.astype(np.float64))

    def decode(self, reports: Sequence[bytes], values: int) -> Output:
        """As sent, and within the domain (to the precision of float32)."""
        output = decode_reals(reports, values, np.full(len(reports), _LARGEST))
        if not np.allclose(self._clip(output.array), output.array, rtol=1e-5, atol=0):
            raise InvalidInput("a report holds a value outside its mechanism's output set: it was damaged or forged")
        return output

    def guarantee(self, adjacency: Adjacency = Adjacency.CLIENT, *, values: int = 1, client: int = 0) -> Guarantee:
        return unproven(adjacency, "values are clipped but no noise is added")

    def worst_pair(self, values: int) -> tuple[Float32s, Float32s]:
        return self.domain.opposite(values)

    def _extent(self, values: int, limit: float | None) -> Reach:
        if isinstance(self.domain, Box):
            low, high = self.domain.edges(values)
            return reach.between(self, reach.real(low), reach.real(high), "values are clipped to the box")
        edge = reach.float32_within(self.domain.radius)
        first = np.eye(1, values)[0] * edge
        return reach.within_ball(self, edge, reach.real(-first), reach.real(first), "vectors are clipped to the ball")


class NoisySums(NoPrivacy):
    """Whole numbers modulo 2^bits that are private already: a silo's noisy sum in grid steps of length `unit`.

    Where silos share the noise, what they send is added up modulo 2^bits too (`channels/secure_sum.py`): a sum of such
    numbers in Z would tell how often each silo wrapped around.
    """

    name: ClassVar[str] = "noisy sums"
    most_bits: ClassVar[int] = 62  #: twice such a number still fits 64 bits
    bounded: ClassVar[bool] = True
    in_pages: ClassVar[bool] = False

    def __init__(self, unit: float, bits: int, sigma: float) -> None:
        self.unit, self.bits, self._sigma = unit, bits, sigma

    def wrapped(self, whole: Int64s) -> Int64s:
        """Modulo 2^bits, around zero."""
        half = 1 << (self.bits - 1)
        found = whole + half
        found &= 2 * half - 1
        found -= half
        return found

    def output(self, sums: Int64s) -> IntegerOutput:
        """`[K, d]` sums as they leave."""
        return IntegerOutput(self.wrapped(sums), *self._limits(len(sums)))

    def _limits(self, rows: int) -> tuple[Int64s, Int64s]:
        half = 1 << (self.bits - 1)
        return np.full(rows, -half), np.full(rows, half - 1)

    def randomize(self, values: ArrayLike, randomness: Randomness | None = None, *, tensor: int = 0) -> Randomized:
        w = as_matrix(values)
        whole = np.rint(np.clip(w / self.unit, -(2.0**62), 2.0**62)).astype(np.int64)
        return Randomized(self.output(whole), Diagnostics(np.zeros(len(w)), np.full(len(w), self._sigma * self.unit)))

    def estimate(self, output: Output) -> Floats:
        if not isinstance(output, IntegerOutput):
            raise TypeError(f"noisy sums are whole numbers, not {type(output).__name__}")
        return np.asarray(output.array, np.float64) * self.unit

    def bias(self, values: ArrayLike) -> Float64s:
        return np.zeros(as_matrix(values).shape)

    def variance(self, values: ArrayLike) -> Float64s:
        return np.full(as_matrix(values).shape, (self._sigma * self.unit) ** 2)

    def decode(self, reports: Sequence[bytes], values: int) -> Output:
        return decode_integers(reports, values, *self._limits(len(reports)))

    def _extent(self, values: int, limit: float | None) -> Reach:
        half = 1 << (self.bits - 1)
        low, high = (self.output(np.full((1, values), end)) for end in (-half, half - 1))
        return reach.between(self, low, high, "whole numbers modulo a power of two")

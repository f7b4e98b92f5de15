"""Where a mechanism's inputs live. The domain includes its clipping, and the sensitivity follows from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino.errors import InvalidInput
from sordino.mechanisms.arrays import Float32s, Float64s, Floats, Numbers, as_array, check_finite
from sordino.privacy.guarantee import check_count

Pair = tuple[Numbers, Numbers]

FAR = 1000.0  #: times the radius: an input that must be clipped
_PROBES = np.array([1.0, -1.0, 0.0, 0.5, FAR, -0.25, -FAR])


class Domain(ABC):
    """A set of inputs `[d]`, with the inputs that audits use."""

    by_value: ClassVar[bool] = False  #: whether each value is clipped and randomised by itself

    @abstractmethod
    def probe(self, values: int) -> Numbers:
        """`[d]` inputs at both ends, at the centre, in between and far outside: missing clipping shows."""

    @abstractmethod
    def neighbours(self, values: int) -> Pair:
        """Two inputs that differ in one value only, as far as the domain allows."""

    def opposite(self, values: int) -> tuple[Float32s, Float32s]:
        """Two vectors as far apart as the domain allows."""
        raise InvalidInput(f"a {type(self).__name__} has no two vectors that lie furthest apart")

    def clipped(self, values: Float64s) -> Float64s:
        """`[K, d]` values moved into the domain."""
        raise InvalidInput(f"nothing is clipped to a {type(self).__name__}")

    def centre_of(self, values: int) -> tuple[Float64s, int]:
        """The centre, and how often it is repeated: one value stands for all where all are alike."""
        return np.zeros(values), 1

    def check_values(self, values: int) -> None:
        """Refuse vectors of a length that the domain does not describe."""
        return


def _per_value(name: str, given: ArrayLike) -> Float32s:
    """A scalar or one number per value, as finite float32."""
    array = as_array(name, given)
    if array.dtype.kind not in "fiu" or array.ndim > 1 or array.size == 0:
        raise InvalidInput(f"{name} must be a number or one number per value, got {given!r}")
    with np.errstate(over="ignore"):
        array = np.atleast_1d(array.astype(np.float32))
    if not np.isfinite(array).all():
        raise InvalidInput(f"{name} must be finite and within the range of float32, got {given!r}")
    return array


@dataclass(frozen=True, eq=False)
class Box(Domain):
    """Every value in [centre - radius, centre + radius]; centre and radius are scalars or one per value."""

    centre: Float32s
    radius: Float32s
    by_value: ClassVar[bool] = True

    def __init__(self, centre: ArrayLike = 0.0, radius: ArrayLike = 1.0) -> None:
        object.__setattr__(self, "centre", _per_value("centre", centre))
        object.__setattr__(self, "radius", _per_value("radius", radius))
        if not (self.radius >= 1e-30).all() or not (self.radius <= 1e30).all():
            raise InvalidInput(f"radius must lie between 1e-30 and 1e30 everywhere, got {radius!r}")
        if not (np.abs(self.centre) <= 1e30).all():
            raise InvalidInput(f"centre must lie between -1e30 and 1e30 everywhere, got {centre!r}")
        sizes = {self.centre.size, self.radius.size} - {1}
        if len(sizes) > 1:
            raise InvalidInput(f"centre and radius disagree on the number of values: {sorted(sizes)}")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Box) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[bytes, bytes]:
        return self.centre.tobytes(), self.radius.tobytes()

    @classmethod
    def per_tensor(cls, sizes: Sequence[int], centres: Sequence[float], radii: Sequence[float]) -> Box:
        """The box of a flat vector of tensors, each with its own centre and radius."""
        if not len(sizes) == len(centres) == len(radii) or not sizes:
            raise InvalidInput("give one size, one centre and one radius per tensor")
        counts = [check_count("a tensor's size", size) for size in sizes]
        middle, reach = _per_value("centre", centres), _per_value("radius", radii)
        return cls(np.repeat(middle, counts), np.repeat(reach, counts))

    def check_values(self, values: int) -> None:
        for name, array in (("centre", self.centre), ("radius", self.radius)):
            if array.size not in (1, values):
                raise InvalidInput(f"{name} has {array.size} numbers for vectors of {values} values")

    def columns(self, cols: slice) -> tuple[Float32s, Float32s]:
        """Centre and radius of some columns, ready to broadcast over clients."""
        c = self.centre if self.centre.size == 1 else self.centre[cols]
        r = self.radius if self.radius.size == 1 else self.radius[cols]
        return c, r

    def in_float64(self) -> tuple[Float64s, Float64s]:
        """Centre and radius, one number each for all values or one per value."""
        return self.centre.astype(np.float64), self.radius.astype(np.float64)

    def edges(self, values: int) -> tuple[Float64s, Float64s]:
        """The lowest and the highest number of every value `[d]`."""
        self.check_values(values)
        centre, radius = (np.broadcast_to(a, (values,)) for a in self.in_float64())
        return centre - radius, centre + radius

    def probe(self, values: int) -> Numbers:
        centre, radius = self.in_float64()
        return np.asarray(centre + radius * np.resize(_PROBES, values), np.float32)

    def neighbours(self, values: int) -> Pair:
        first, second = self.probe(values), self.probe(values)
        second[0] = 2 * float(self.centre[0]) - first[0]
        return first, second

    def opposite(self, values: int) -> tuple[Float32s, Float32s]:
        low, high = self.edges(values)
        return high.astype(np.float32), low.astype(np.float32)

    def clipped(self, values: Float64s) -> Float64s:
        return np.clip(values, *self.edges(values.shape[1]))

    def centre_of(self, values: int) -> tuple[Float64s, int]:
        if self.centre.size == self.radius.size == 1:
            return self.centre.astype(np.float64), values
        self.check_values(values)
        return np.broadcast_to(self.in_float64()[0], (values,)), 1

    def normalise(self, values: Floats, cols: slice, out: Float32s | None = None) -> tuple[Float32s, NDArray[np.intp]]:
        """z = (values - centre)/radius in float32, clipped to [-1, 1], and how many of each row lay outside.

        z is `float32(float32(x - c) * float32(1/r))` with x and c as float32; NaN and infinity are refused.
        """
        c, r = self.columns(cols)
        inverse = np.float32(1) / r
        with np.errstate(over="ignore", invalid="ignore"):
            if c.any():
                z = np.subtract(values, c, out=out, dtype=np.float32, casting="same_kind")
                np.multiply(z, inverse, out=z)
            else:
                z = np.multiply(values, inverse, out=out, dtype=np.float32, casting="same_kind")
        low, high = z.min(), z.max()
        if low >= -1 and high <= 1:
            return z, np.zeros(len(z), np.intp)
        if not (np.isfinite(low) and np.isfinite(high)):
            check_finite(values)
        outside = np.abs(z) > 1
        counts = np.array([np.count_nonzero(outside)]) if len(z) == 1 else outside.sum(axis=1)
        return np.clip(z, -1, 1, out=z), counts


@dataclass(frozen=True)
class _Ball(Domain):
    """Vectors limited as a whole, by one number."""

    radius: float
    order: ClassVar[int] = 2  #: of the norm: 1 or 2

    def __post_init__(self) -> None:
        given = self.radius
        if isinstance(given, bool) or not isinstance(given, (int, float)) or not 1e-30 <= given <= 1e30:
            raise InvalidInput(f"radius must be a number between 1e-30 and 1e30, got {given!r}")
        object.__setattr__(self, "radius", float(given))

    def probe(self, values: int) -> Numbers:
        return np.asarray(self.radius * FAR * np.resize([1.0, 0.0, -1.0, 0.0], values), np.float32)

    def neighbours(self, values: int) -> Pair:
        return self.opposite(values)

    def opposite(self, values: int) -> tuple[Float32s, Float32s]:
        north = np.eye(1, values)[0] * self.radius
        return north.astype(np.float32), (-north).astype(np.float32)

    def powers(self, rows: Numbers) -> Float64s:
        """`[K]`: the sums of absolute values or of squares, which are the norm to the power of `order`."""
        whole = np.abs(rows) if self.order == 1 else np.square(rows, dtype=np.float64)
        return np.asarray(whole.sum(axis=1, dtype=np.float64))

    def norms(self, rows: Numbers) -> Float64s:
        """`[K]`, the norm that `radius` limits."""
        return self.powers(rows) if self.order == 1 else np.sqrt(self.powers(rows))

    def clipped(self, values: Float64s) -> Float64s:
        largest = np.abs(values).max(axis=1, keepdims=True)
        largest[largest < 1e-200] = 1.0
        norms = self.norms(values / largest)
        return np.asarray(values * np.minimum(1.0, self.radius / largest / np.maximum(norms, 1e-300)[:, None]))


class L1Ball(_Ball):
    """Whole vectors with sum of absolute values at most `radius`; two of them differ by at most 2 * radius in L1."""

    order: ClassVar[int] = 1


class L2Ball(_Ball):
    """Whole vectors of Euclidean norm at most `radius`; two of them differ by at most 2 * radius in L2."""


@dataclass(frozen=True)
class Sphere(_Ball):
    """Whole vectors of Euclidean norm exactly `radius`: every input is rescaled to it."""

    radius: float = 1.0


@dataclass(frozen=True)
class FiniteSet(Domain):
    """The whole numbers 0 .. size-1; any two are neighbours."""

    size: int

    def __post_init__(self) -> None:
        if isinstance(self.size, bool) or not isinstance(self.size, int) or not 2 <= self.size <= 2**20:
            raise InvalidInput(f"a finite set has from 2 to 2^20 members, got {self.size!r}")

    def probe(self, values: int) -> Numbers:
        return np.asarray(np.arange(values) % self.size)

    def neighbours(self, values: int) -> Pair:
        first, second = self.probe(values), self.probe(values)
        first[0], second[0] = 3 % self.size, 7 % self.size
        return first, second


@dataclass(frozen=True)
class IntegerRange(Domain):
    """The whole numbers -bound .. bound, with the distance |v - v'|; reals are coded with `precision` decimals."""

    clip: float
    precision: int
    by_value: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if isinstance(self.clip, bool) or not isinstance(self.clip, (int, float)) or not 0 < self.clip <= 2**45:
            raise InvalidInput(f"the clipping range c must be a number > 0 and at most 2^45, got {self.clip!r}")
        if isinstance(self.precision, bool) or not isinstance(self.precision, int) or not 0 <= self.precision <= 18:
            raise InvalidInput(f"the precision rho must be a whole number from 0 to 18, got {self.precision!r}")
        if not 1 <= self.bound <= 2**45:
            raise InvalidInput(
                f"c * 10^rho must lie between 1 and 2^45 = 3.5e13, got {self.clip!r} * 10^{self.precision}: "
                "choose a smaller precision rho, or a larger clipping range c"
            )

    @cached_property
    def bound(self) -> int:
        """M = c * 10^rho, rounded down."""
        return int(Fraction(repr(float(self.clip))) * 10**self.precision)

    def probe(self, values: int) -> Numbers:
        return np.asarray(self.clip * np.resize(_PROBES, values), np.float64)

    def neighbours(self, values: int) -> Pair:
        first, second = self.probe(values), self.probe(values)
        second[0] = -first[0]
        return first, second

    def opposite(self, values: int) -> tuple[Float32s, Float32s]:
        return np.full(values, self.clip, np.float32), np.full(values, -self.clip, np.float32)

    def centre_of(self, values: int) -> tuple[Float64s, int]:
        return np.zeros(1), values


@dataclass(frozen=True)
class BitString(Domain):
    """Strings of `length` bits; any two are neighbours. With `one_hot`, only strings with exactly one 1."""

    length: int
    one_hot: bool = False

    def __post_init__(self) -> None:
        check_count("the length of a bit string", self.length)
        if not isinstance(self.one_hot, bool):
            raise InvalidInput(f"one_hot must be True or False, got {self.one_hot!r}")

    @property
    def differing(self) -> int:
        """In how many bits two strings can differ."""
        return min(2, self.length) if self.one_hot else self.length

    def probe(self, values: int) -> Numbers:
        places = np.arange(values)
        return np.asarray(places == values // 3 if self.one_hot else places % 3 == 0, np.uint8)

    def neighbours(self, values: int) -> Pair:
        if self.one_hot:
            return np.eye(1, values, 0, dtype=np.uint8)[0], np.eye(1, values, 1, dtype=np.uint8)[0]
        first, second = self.probe(values), self.probe(values)
        first[0], second[0] = 1, 0
        return first, second

"""What a malicious client can say: the reports that decoding accepts, and how far apart their estimates lie.

A client need not randomise. It may send any report that its mechanism could have sent, and decoding refuses all others;
so what it can shift an estimate by is bounded by the output set, and by nothing else. Where noise comes from tables
(Laplace, Gaussian), their finite reach is the bound; values that are not randomised have none of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sordino.mechanisms.arrays import Float64s
from sordino.mechanisms.output import IntegerOutput, Output, RealOutput, integer_dtype

if TYPE_CHECKING:
    from sordino.mechanisms.interface import Mechanism


@dataclass(frozen=True, eq=False)
class Reach:
    """Between which estimates a client can choose for each value, and two reports that lie furthest apart."""

    lowest: Float64s  #: [d] the smallest estimate of each value by any legal report
    highest: Float64s  #: [d] the largest
    length: float  #: the largest L2 distance between the estimates of two legal reports
    ends: tuple[bytes, bytes]  #: two legal reports at that distance; the second has the higher first estimate
    bound: str  #: what bounds it, in words

    @property
    def width(self) -> float:
        """How far one value's estimate can be moved at most, over all values."""
        return float((self.highest - self.lowest).max())


def between(mechanism: Mechanism, low: Output, high: Output, bound: str) -> Reach:
    """From the output with the smallest estimates of all values at once to the one with the largest."""
    lowest, highest = (np.asarray(mechanism.estimate(end)[0], np.float64) for end in (low, high))
    length = float(np.linalg.norm(highest - lowest))
    return Reach(lowest, highest, length, (mechanism.encode(low)[0], mechanism.encode(high)[0]), bound)


def within_ball(mechanism: Mechanism, radius: float, low: Output, high: Output, bound: str) -> Reach:
    """Any vector of the ball: its first value alone can be as large as the radius, which is the furthest there is."""
    width = np.full(low.values, radius)
    return Reach(-width, width, 2 * radius, (mechanism.encode(low)[0], mechanism.encode(high)[0]), bound)


def between_whole(mechanism: Mechanism, values: int, low: int, high: int, bound: str) -> Reach:
    """From the smallest whole number everywhere to the largest."""
    return between(mechanism, whole(low, values, low, high), whole(high, values, low, high), bound)


def whole(value: int, values: int, low: int, high: int) -> IntegerOutput:
    """One client's output with the same whole number everywhere."""
    return IntegerOutput(np.full((1, values), value, integer_dtype(low, high)), np.array([low]), np.array([high]))


def real(row: Float64s) -> RealOutput:
    """One client's output of plain values."""
    return RealOutput(row[None, :].astype(np.float32), np.array([math.inf]))


def float32_within(most: float) -> float:
    """The largest float32 that does not exceed a bound."""
    near = np.float32(most)
    return float(near if float(near) <= most else np.nextafter(near, np.float32(0)))

"""What a malicious client can say: the reports that decoding accepts, and how far apart their estimates lie.

A client need not randomise. It may send any report that its mechanism could have sent, and decoding refuses all others;
so what it can shift an estimate by is bounded by the output set, and by nothing else. Where noise comes from tables
(Laplace, Gaussian), their finite reach is the bound; values that are not randomised have none of their own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.mechanisms.additive import AdditiveNoise
from sordino.mechanisms.bits import BitRandomizer
from sordino.mechanisms.domain import Box
from sordino.mechanisms.exponential import Exponential
from sordino.mechanisms.interface import Mechanism
from sordino.mechanisms.label import RandomizedLabel
from sordino.mechanisms.output import BitOutput, IntegerOutput, Output, RealOutput, integer_dtype
from sordino.mechanisms.piecewise import Piecewise
from sordino.mechanisms.plain import ClipOnly, NoisySums, NoPrivacy
from sordino.mechanisms.privunit import PrivUnitG, longest
from sordino.mechanisms.sign import RandomizedSign
from sordino.mechanisms.two_point import TwoPoint
from sordino.privacy.guarantee import check_count

Float64s = NDArray[np.float64]


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


def reach(mechanism: Mechanism, values: int, *, limit: float | None = None) -> Reach:
    """What one client can say through this mechanism with d values; `limit` is the server's own on plain values."""
    check_count("values", values)
    if mechanism.clients is not None:
        raise InvalidInput("one client has one set of parameters: ask for the reach of its own mechanism")
    match mechanism:
        case RandomizedLabel():
            return _of_labels(mechanism, values)
        case ClipOnly() if not isinstance(mechanism.domain, Box):
            edge = _float32_within(mechanism.domain.radius)
            first = np.eye(1, values)[0] * edge
            return _of_ball(mechanism, values, edge, (_real(-first), _real(first)), "vectors are clipped to the ball")
        case PrivUnitG():
            steps = longest(values)
            limits, far = mechanism.limits(values, 1), steps * np.eye(1, values, dtype=np.int64)
            outputs = IntegerOutput(-far, *limits), IntegerOutput(far, *limits)
            return _of_ball(mechanism, values, steps * mechanism.step(), outputs, "the reach of the normal draws")
    ends, bound = _ends(mechanism, values, limit)
    lowest, highest = (np.asarray(mechanism.estimate(end)[0], np.float64) for end in ends)
    length = float(np.linalg.norm(highest - lowest))
    return Reach(lowest, highest, length, (mechanism.encode(ends[0])[0], mechanism.encode(ends[1])[0]), bound)


def _ends(mechanism: Mechanism, values: int, limit: float | None) -> tuple[tuple[Output, Output], str]:
    """The outputs with the smallest and the largest estimates of all values at once."""
    match mechanism:
        case TwoPoint() | RandomizedSign():
            return (_bits(np.zeros(values, np.bool_)), _bits(np.ones(values, np.bool_))), "a value is one of two points"
        case BitRandomizer():
            rising = mechanism.ones > mechanism.zeros
            return (_bits(~rising), _bits(rising)), "a bit is one of two points"
        case AdditiveNoise():
            most = mechanism.grid(values).limit
            return (_whole(-most, values, most), _whole(most, values, most)), "the reach of the noise's table"
        case Exponential():
            most = mechanism.domain.bound
            return (_whole(-most, values, most), _whole(most, values, most)), "outputs lie in the clipping range"
        case Piecewise():
            limits = mechanism.limits(1)
            ends = tuple(IntegerOutput(np.full((1, values), end[0], np.int64), *limits) for end in limits)
            return (ends[0], ends[1]), "outputs lie in [-C, C] of the mechanism"
        case ClipOnly():
            assert isinstance(mechanism.domain, Box)
            c, r = (
                np.broadcast_to(a, (values,)).astype(np.float64) for a in mechanism.domain.columns(slice(0, values))
            )
            return (_real(c - r), _real(c + r)), "values are clipped to the box"
        case NoisySums():
            half = 1 << (mechanism.bits - 1)
            low, high = (mechanism.output(np.full((1, values), end)) for end in (-half, half - 1))
            return (low, high), "whole numbers modulo a power of two"
        case NoPrivacy():
            far = np.full(values, _float32_within(float(np.finfo(np.float32).max) if limit is None else limit))
            words = "the range of float32: no bound in practice" if limit is None else "the server's own limit"
            return (_real(-far), _real(far)), words
    raise InvalidInput(
        f"nothing is known of what a {type(mechanism).__name__} puts out: what a malicious client can do is unbounded"
    )


def _of_labels(mechanism: RandomizedLabel, values: int) -> Reach:
    """Labels estimate one-hot vectors `[n, size]`: another label moves two entries of each."""
    size = mechanism.domain.size
    ends = tuple(IntegerOutput(np.full((1, values), y, np.int64), *_limits(0, size - 1)) for y in (size - 1, 0))
    low, high = (np.asarray(mechanism.estimate(end)[0], np.float64) for end in ends)
    spread = np.full(values * size, 1.0)
    length = float(np.linalg.norm(high - low))
    reports = (mechanism.encode(ends[0])[0], mechanism.encode(ends[1])[0])
    return Reach(low.min() * spread, low.max() * spread, length, reports, "a label is one of the set")


def _of_ball(mechanism: Mechanism, values: int, radius: float, ends: tuple[Output, Output], bound: str) -> Reach:
    """Any vector of the ball: its first value alone can be as large as the radius, which is the furthest there is."""
    width = np.full(values, radius)
    return Reach(-width, width, 2 * radius, (mechanism.encode(ends[0])[0], mechanism.encode(ends[1])[0]), bound)


def _limits(low: int, high: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.array([low]), np.array([high])


def _bits(row: NDArray[np.bool_]) -> BitOutput:
    return BitOutput.pack(row[None, :])


def _whole(value: int, values: int, most: int) -> IntegerOutput:
    return IntegerOutput(np.full((1, values), value, integer_dtype(-most, most)), *_limits(-most, most))


def _real(row: Float64s) -> RealOutput:
    return RealOutput(row[None, :].astype(np.float32), np.array([math.inf]))


def _float32_within(most: float) -> float:
    """The largest float32 that does not exceed a bound."""
    near = np.float32(most)
    return float(near if float(near) <= most else np.nextafter(near, np.float32(0)))


__all__ = ["Reach", "reach"]

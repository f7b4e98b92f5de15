"""The log-likelihood ratio of what a mechanism puts out, for two inputs: the strongest score there is.

`ratio(mechanism, first, second)` gives a function from outputs to one number for every value (for one vector in all
where the mechanism sees vectors only). Their sum over a report speaks for `first` the more the larger it is. Factors
and terms that are the same for all outputs are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.mechanisms import (
    BitRandomizer,
    Box,
    ClipOnly,
    Exponential,
    Gaussian,
    IntegerRange,
    L1Ball,
    L2Ball,
    Laplace,
    Mechanism,
    NoPrivacy,
    Piecewise,
    PrivUnitG,
    RandomizedSign,
    Sphere,
    TwoPoint,
)
from sordino.mechanisms.integers import ONE
from sordino.mechanisms.output import BitOutput, IntegerOutput, Output
from sordino.mechanisms.privunit import best_cap

Float64s = NDArray[np.float64]
Vector = NDArray[np.floating[Any]]
Ratio = Callable[[Output], Float64s]  #: outputs of n clients -> `[n, d]`, or `[n, 1]` for mechanisms of whole vectors


def worst_pair(mechanism: Mechanism, values: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Two vectors of the mechanism's domain that are as far apart as it allows."""
    if isinstance(mechanism, NoPrivacy) and not isinstance(mechanism, ClipOnly):
        far = np.ones(values)
        return far.astype(np.float32), (-far).astype(np.float32)
    match domain := mechanism.domain:
        case Box():
            centre, radius = (a.astype(np.float64) for a in domain.columns(slice(0, values)))
            return _spread(centre + radius, values), _spread(centre - radius, values)
        case IntegerRange():
            return _spread(np.float64(domain.clip), values), _spread(np.float64(-domain.clip), values)
        case L1Ball() | L2Ball() | Sphere():
            north = np.eye(1, values)[0] * domain.radius
            return north.astype(np.float32), (-north).astype(np.float32)
    raise InvalidInput(f"there is no worst pair for {mechanism!r}")


def _spread(each: Float64s | np.float64, values: int) -> NDArray[np.float32]:
    return np.broadcast_to(each, (values,)).astype(np.float32)


def value_by_value(mechanism: Mechanism) -> bool:
    """Whether every value is randomised by itself, so that each is a trial of its own."""
    return isinstance(mechanism.domain, Box | IntegerRange)


def ratio(mechanism: Mechanism, first: Vector, second: Vector) -> Ratio:
    """The score of outputs, for these two inputs `[d]`."""
    match mechanism:
        case TwoPoint() | RandomizedSign():
            return _bits(ones(mechanism, first), ones(mechanism, second))
        case BitRandomizer():
            p, q = (np.where(bits, mechanism.ones, mechanism.zeros) / ONE for bits in (first, second))
            return _bits(p, q)
        case Laplace() | Exponential():
            return _distances(mechanism, first, second)
        case Gaussian() | NoPrivacy():
            return _linear(mechanism, first, second)
        case Piecewise():
            return _pieces(mechanism, first, second)
        case PrivUnitG():
            return _caps(mechanism, first, second)
    raise InvalidInput(f"there is no likelihood ratio for {mechanism!r}")


def ones(mechanism: TwoPoint | RandomizedSign, vector: Vector) -> Float64s:
    """The probability of a one for every value: the mean estimate lies so far from that of a zero to that of a one."""
    d = len(vector)
    zero, one = (
        mechanism.estimate(BitOutput.pack(np.full((1, d), bit))).astype(np.float64)[0] for bit in (False, True)
    )
    mean = vector.astype(np.float64) + mechanism.bias(vector[None])[0]
    return np.asarray((mean - zero) / (one - zero))


def _bits(p: Float64s, q: Float64s) -> Ratio:
    with np.errstate(divide="ignore"):
        for_one, for_zero = np.log(p) - np.log(q), np.log1p(-p) - np.log1p(-q)

    def score(output: Output) -> Float64s:
        assert isinstance(output, BitOutput)
        return np.where(output.bits(), for_one, for_zero)

    return score


def _clipped(mechanism: Mechanism, vector: Vector) -> Float64s:
    domain = mechanism.domain
    if isinstance(domain, IntegerRange):
        return np.clip(vector.astype(np.float64), -domain.clip, domain.clip)
    assert isinstance(domain, Box | L1Ball | L2Ball)
    plain = ClipOnly(domain)
    return np.asarray(plain.estimate(plain.randomize(vector[None]).output)[0], np.float64)


def _distances(mechanism: Laplace | Exponential, first: Vector, second: Vector) -> Ratio:
    """Noise whose probability falls exponentially with its size, in units of each value's radius."""
    a, b = _clipped(mechanism, first), _clipped(mechanism, second)
    radius = np.asarray(getattr(mechanism.domain, "radius", 1.0), np.float64)

    def score(output: Output) -> Float64s:
        y = mechanism.estimate(output).astype(np.float64)
        return np.asarray((np.abs(y - b) - np.abs(y - a)) / radius)

    return score


def _linear(mechanism: Mechanism, first: Vector, second: Vector) -> Ratio:
    """Gaussian noise, and none."""
    plain = isinstance(mechanism, NoPrivacy)
    a, b = (v.astype(np.float64) if plain else _clipped(mechanism, v) for v in (first, second))

    def score(output: Output) -> Float64s:
        return np.asarray((mechanism.estimate(output).astype(np.float64) - (a + b) / 2) * (a - b))

    return score


def _pieces(mechanism: Piecewise, first: Vector, second: Vector) -> Ratio:
    """Whether an output is near the one input or near the other."""
    half = mechanism.pieces[0].near // 2
    middles = [mechanism.on_grid(v[None])[0] for v in (first, second)]

    def score(output: Output) -> Float64s:
        assert isinstance(output, IntegerOutput)
        near = [np.abs(output.array + 0.5 - t) < half for t in middles]
        return np.asarray(near[0].astype(np.float64) - near[1])

    return score


def _caps(mechanism: PrivUnitG, first: Vector, second: Vector) -> Ratio:
    """Whether an output lies in the cap around the one direction or around the other."""
    cap = best_cap(float(mechanism.epsilon[0]))
    directions = np.stack([v.astype(np.float64) / np.linalg.norm(v.astype(np.float64)) for v in (first, second)])

    def score(output: Output) -> Float64s:
        along = mechanism.estimate(output).astype(np.float64) @ directions.T * (cap.m / mechanism.domain.radius)
        inside = along >= cap.gamma
        return np.asarray(inside[:, :1].astype(np.float64) - inside[:, 1:])

    return score


__all__ = ["Ratio", "ones", "ratio", "value_by_value", "worst_pair"]

"""Exponentials and thresholds in integer arithmetic: no rounding of a float ever decides a guarantee."""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from sordino.errors import InvalidInput

ONE = 2**32
HALF = 2**31
MIN_EPSILON = 1e-6
MAX_EPSILON = math.nextafter(math.log(ONE - 1), math.inf)  #: 22.18: a 32-bit threshold is at least 1

_BITS = 192


def exp_bounds(x: Fraction, bits: int = _BITS) -> tuple[int, int]:
    """Integers (low, high) with low <= e^x * 2^bits <= high, by a Taylor series and repeated squaring."""
    if x < 0:
        wide = bits + 3 * math.ceil(-x) + 8
        low, high = exp_bounds(-x, wide)
        return (1 << (bits + wide)) // high, -(-(1 << (bits + wide)) // low)
    halvings = max(0, math.ceil(x).bit_length() + 8)
    work = bits + 2 * halvings + math.ceil(x * 3 / 2) + 32
    step = x / (1 << halvings)
    low = high = term_low = term_high = 1 << work
    k = 0
    while term_high > 1:
        k += 1
        term_low = term_low * step.numerator // (step.denominator * k)
        term_high = -(-term_high * step.numerator // (step.denominator * k))
        low, high = low + term_low, high + term_high
    high += 2  # the rest of the series is below its last term, since step < 1/2
    for _ in range(halvings):
        low, high = low * low >> work, -(-high * high >> work)
    return low >> (work - bits), -(-high >> (work - bits))


def exp_fixed(x: Fraction, bits: int = _BITS) -> int:
    """e^x * 2^bits, rounded down; exact to the last bit but one."""
    return 0 if x < -bits else exp_bounds(x, bits)[0]


def check_epsilon(epsilon: float) -> float:
    """The epsilon itself, capped at `MAX_EPSILON`; anything that is not a number from `MIN_EPSILON` up is refused."""
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not epsilon > 0:
        raise InvalidInput(f"epsilon must be a number > 0, got {epsilon!r}")
    if epsilon < MIN_EPSILON:
        raise InvalidInput(
            f"epsilon {epsilon!r} is below {MIN_EPSILON}, the least the integer thresholds resolve: "
            "spread the budget over fewer values or rounds"
        )
    return float(min(epsilon, MAX_EPSILON))


def cap_note(epsilon: float) -> str:
    """What a basis says when an epsilon was capped."""
    return f"; epsilon {epsilon:g} is capped at ln(2^32 - 1) = 22.18" if epsilon > MAX_EPSILON else ""


@lru_cache(maxsize=4096)
def bit_threshold(epsilon: float) -> int:
    """t_min = max(1, ceil(2^32 / (e^eps + 1))): rounded towards privacy, so that (2^32 - t)/t <= e^eps exactly."""
    low, high = exp_bounds(Fraction(check_epsilon(epsilon)))
    one = 1 << _BITS
    thresholds = {-(-(ONE << _BITS) // (e + one)) for e in (low, high)}
    return max(1, max(thresholds))


def log_ratio(numerator: int, denominator: int) -> float:
    """ln(numerator/denominator) of two positive integers, accurate also when they are nearly equal."""
    if numerator < denominator:
        return -log_ratio(denominator, numerator)
    if numerator < 2 * denominator:
        return math.log1p(float(Fraction(numerator - denominator, denominator)))
    return math.log(numerator) - math.log(denominator)


def probability_threshold(p: Fraction, towards: Fraction) -> int:
    """p as a count out of 2^32, rounded towards another probability, and never 0 or 2^32."""
    scaled = p * ONE
    t = math.ceil(scaled) if towards > p else math.floor(scaled)
    return min(max(t, 1), ONE - 1)

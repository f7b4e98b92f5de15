"""Integer exponentials and thresholds against mpmath: what decides a guarantee is exact."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.errors import InvalidInput
from sordino.mechanisms import integers
from sordino.mechanisms.integers import MAX_EPSILON, MIN_EPSILON, ONE, bit_threshold, exp_bounds
from sordino.privacy.accountant import bit_epsilon

SWEEP = [*np.geomspace(1e-6, math.log(ONE - 1), 400).tolist(), math.log(2), math.log(3), 1.0, 2.0, 10.0, 22.0]


def exactly(x: Fraction, digits: int = 120) -> mpmath.mpf:
    with mpmath.workdps(digits):
        return mpmath.exp(mpmath.mpf(x.numerator) / x.denominator)


def at_most_exp(ratio: Fraction, epsilon: float) -> bool:
    """ratio <= e^epsilon, by a Taylor sum with rational bounds: not by floats, nor by the code under test."""
    bits, x = 400, Fraction(epsilon)
    low, term = 0, 1 << bits
    for k in range(1, 260):  # epsilon <= 23: from term 46 on each is below half of the one before it
        low += term
        term = term * x.numerator // (x.denominator * k)
    high = low + 2**10  # what rounding down lost, at most a little over one unit a term, and the rest of the series
    assert ratio * 2**bits <= low or ratio * 2**bits > high, "closer to e^epsilon than these bounds can tell"
    return ratio * 2**bits <= low


@given(st.fractions(min_value=-60, max_value=60, max_denominator=10**9), st.integers(16, 256))
def test_exp_bounds_bracket_the_exponential_and_stay_close(x: Fraction, bits: int) -> None:
    low, high = exp_bounds(x, bits)
    with mpmath.workdps(160):
        true = exactly(x, 160) * mpmath.mpf(2) ** bits
        assert low <= true <= high
    assert high - low <= 4


@given(st.floats(min_value=1e-12, max_value=40))
def test_exp_bounds_bracket_at_doubles(x: float) -> None:
    low, high = exp_bounds(Fraction(x))
    with mpmath.workdps(120):
        assert low <= mpmath.exp(mpmath.mpf(x)) * mpmath.mpf(2) ** 192 <= high


def test_exp_bounds_at_zero_is_one() -> None:
    low, high = exp_bounds(Fraction(0), 64)
    assert low <= 2**64 <= high <= 2**64 + 4


def test_threshold_keeps_the_exact_ratio_below_exp_epsilon_and_is_the_least_that_does() -> None:
    for epsilon in SWEEP:
        t = bit_threshold(epsilon)
        assert 1 <= t <= ONE // 2
        assert at_most_exp(Fraction(ONE - t, t), epsilon), epsilon
        if t > 1:
            assert not at_most_exp(Fraction(ONE - (t - 1), t - 1), epsilon), epsilon


@given(st.floats(min_value=1e-6, max_value=22.18))
def test_threshold_is_tight_for_any_epsilon(epsilon: float) -> None:
    t = bit_threshold(epsilon)
    assert at_most_exp(Fraction(ONE - t, t), epsilon)
    assert t == 1 or not at_most_exp(Fraction(ONE - t + 1, t - 1), epsilon)


@pytest.mark.parametrize("epsilon", [MAX_EPSILON, 22.2, 30.0, 1e3, 1e300, math.inf, 10**400])
def test_epsilon_is_capped_where_the_threshold_reaches_one(epsilon: float) -> None:
    assert bit_threshold(epsilon) == 1
    assert integers.check_epsilon(epsilon) == MAX_EPSILON
    assert bit_epsilon(1) == pytest.approx(math.log(ONE - 1), rel=1e-15)


def test_cap_is_the_log_of_the_largest_ratio_of_a_32_bit_threshold() -> None:
    assert pytest.approx(22.1807, abs=1e-4) == MAX_EPSILON
    assert bit_threshold(math.log(ONE - 1) - 1e-9) == 2


@pytest.mark.parametrize("epsilon", [0, -1.0, math.nan, -math.inf, "1", None, True, 1j, [1.0], 5e-7, 1e-300])
def test_what_is_not_a_usable_epsilon_is_refused(epsilon: object) -> None:
    with pytest.raises(InvalidInput, match="epsilon"):
        integers.check_epsilon(epsilon)  # type: ignore[arg-type]


def test_the_least_epsilon_is_resolved_to_a_thousandth() -> None:
    assert bit_epsilon(bit_threshold(MIN_EPSILON)) == pytest.approx(MIN_EPSILON, rel=1e-3)
    assert bit_epsilon(bit_threshold(MIN_EPSILON)) <= MIN_EPSILON


@given(st.integers(1, 2**40), st.integers(1, 2**40))
def test_log_ratio_is_accurate_also_near_one(a: int, b: int) -> None:
    with mpmath.workdps(60):
        true = mpmath.log(mpmath.mpf(a) / b)
        assert abs(integers.log_ratio(a, b) - true) <= 1e-14 * max(abs(true), mpmath.mpf(10) ** -3) + abs(true) * 1e-13


def test_log_ratio_of_neighbours_keeps_its_digits() -> None:
    assert integers.log_ratio(10**15 + 1, 10**15) == pytest.approx(1e-15, rel=1e-12)
    assert integers.log_ratio(10**15, 10**15 + 1) == pytest.approx(-1e-15, rel=1e-12)


@given(st.fractions(0, 1), st.fractions(0, 1))
def test_probability_thresholds_move_towards_each_other_only(p: Fraction, q: Fraction) -> None:
    t = integers.probability_threshold(p, towards=q)
    assert 1 <= t <= ONE - 1
    if 1 <= p * ONE <= ONE - 1:
        assert abs(Fraction(t, ONE) - p) < Fraction(1, ONE)
        assert Fraction(t, ONE) >= p if q > p else Fraction(t, ONE) <= p

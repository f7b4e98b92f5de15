"""Amplification by shuffling and sampling, against published figures, brute force and the library's own rounding."""

import math

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution as pld
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sordino.errors import InvalidInput
from sordino.privacy import amplification
from sordino.privacy.accountant import equal_bits_epsilon, gaussian_epsilon
from sordino.privacy.amplification import (
    Pair,
    clone_pair,
    count_pair,
    shuffled_bits,
    shuffled_reports,
)


@pytest.mark.parametrize(
    ("n", "local", "lower", "upper"),
    [
        (100, 1.0, 0.4078, 0.4436),
        (200, 4.0, 3.9996, 3.9996),
        (500, 10.0, 10.0, 10.0),
        (10_000, 1.0, 0.0288, 0.0352),
    ],
)
def test_one_bit_among_n_clients(n: int, local: float, lower: float, upper: float) -> None:
    interval = shuffled_bits(local, n, 1e-5)
    assert interval.lower == pytest.approx(lower, abs=6e-5)
    assert interval.upper == pytest.approx(upper, abs=6e-5)


@pytest.mark.parametrize(
    ("count", "lower", "upper"),
    [(100, 4.69, 5.749), (650, 14.45, 18.28), (21_840, 185.0, 252.8), (218_400, 1405.0, 1992.0)],
)
def test_bits_add_up_over_coordinates_behind_the_shuffler(count: int, lower: float, upper: float) -> None:
    """n = 100, epsilon 1: even with an ideal shuffler, 21,840 values over ten rounds are far from epsilon 1."""
    interval = shuffled_bits(1.0, 100, 1e-5, count)
    assert interval.lower == pytest.approx(lower, rel=3e-3)
    assert interval.upper == pytest.approx(upper, rel=1e-3)
    assert interval.lower < interval.upper < count


def test_gaussian_rule_of_thumb_for_many_bits() -> None:
    """mu = (e^eps - 1) / sqrt((n - 1) e^eps) sqrt(k): near the lower end for n = 100, epsilon 1, 218,400 bits."""
    mu = math.expm1(1) / math.sqrt(99 * math.e) * math.sqrt(218_400)
    assert mu == pytest.approx(48.95, abs=0.01)
    assert gaussian_epsilon(mu, 1e-5) == pytest.approx(1406, abs=1)
    assert shuffled_bits(1.0, 100, 1e-5, 218_400).lower == pytest.approx(1406, rel=5e-3)


def library_epsilon(pair: Pair, count: int, *, pessimistic: bool) -> float:
    first, second = dict(enumerate(pair.first)), dict(enumerate(pair.second))
    distribution = pld.from_two_probability_mass_functions(
        second, first, pessimistic, value_discretization_interval=2e-4, symmetric=False
    )
    return float(distribution.self_compose(count).get_epsilon_for_delta(1e-5))


def test_composed_bounds_lie_within_the_library_s_rounding_both_ways() -> None:
    interval = shuffled_bits(1.0, 100, 1e-5, 200)
    clones, counts = clone_pair(100, 1.0, 2 / (math.e + 1)), count_pair(100, 1.0)
    assert library_epsilon(clones, 200, pessimistic=False) <= interval.upper
    assert interval.upper <= library_epsilon(clones, 200, pessimistic=True)
    assert library_epsilon(counts, 200, pessimistic=False) * 0.995 <= interval.lower
    assert interval.lower <= library_epsilon(counts, 200, pessimistic=True)


def test_both_directions_are_needed() -> None:
    """One direction alone would understate the exact count: 0.3154 instead of 0.4078."""
    pair = count_pair(100, 1.0)
    assert pair.delta(0.3155) <= 1e-5 < pair.reversed().delta(0.3155)
    assert pair.reversed().delta(0.4079) <= 1e-5 < pair.reversed().delta(0.4077)


def test_count_pair_is_the_distribution_of_the_count() -> None:
    pair = count_pair(6, 1.5)
    keep = 1 / (1 + math.exp(-1.5))
    others = stats.binom(5, 1 - keep)
    k = np.arange(7)
    np.testing.assert_allclose(np.exp(pair.first), keep * others.pmf(k - 1) + (1 - keep) * others.pmf(k), rtol=1e-12)
    np.testing.assert_allclose(np.exp(pair.second), stats.binom(6, 1 - keep).pmf(k), rtol=1e-12)
    assert pair.lost == 0


@pytest.mark.parametrize("others", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("target", [0.0, 0.2, 0.7])
def test_clone_pair_dominates_every_crowd_of_bits(others: float, target: float) -> None:
    """Five others whose true bits are one with a fixed share: the exact count is never worse than the clone pair."""
    keep = 1 / (1 + math.exp(-1.0))
    ones = round(5 * others)
    crowd = np.convolve(stats.binom(ones, keep).pmf(range(ones + 1)),
                        stats.binom(5 - ones, 1 - keep).pmf(range(6 - ones)))  # fmt: skip
    with_one, with_zero = np.convolve(crowd, [1 - keep, keep]), np.convolve(crowd, [keep, 1 - keep])
    true = np.maximum(with_one - math.exp(target) * with_zero, 0).sum()
    pair = clone_pair(6, 1.0, 2 / (math.e + 1))
    assert true <= pair.delta(target) + 1e-14
    assert pair.delta(0.0) < math.tanh(0.5)


def test_general_reports_get_the_weaker_proven_bound() -> None:
    """The general theorem of 2023 was withdrawn: reports other than bits are clones with probability e^-epsilon."""
    assert shuffled_bits(1.0, 100, 1e-5).upper < shuffled_reports(1.0, 100, 1e-5) < 1.0
    assert shuffled_reports(1.0, 100, 1e-5) == pytest.approx(0.5532, abs=1e-4)


def test_a_large_crowd_is_rounded_towards_less_privacy(monkeypatch: pytest.MonkeyPatch) -> None:
    rounded = clone_pair(10_000, 1.0, 2 / (math.e + 1))
    monkeypatch.setattr(amplification, "_CROWDS", 10**9)
    exact = clone_pair(10_000, 1.0, 2 / (math.e + 1))
    assert rounded.first.size < exact.first.size / 2
    for target in (0.0, 0.01, 0.03):
        assert exact.delta(target) <= rounded.delta(target) <= 1.02 * exact.delta(target)


@pytest.mark.parametrize(
    ("n", "local", "at"),
    [
        (27, 0.000756173333778889, 2.2437188228835528e-13), (14, 0.00021897175144857073, 1.6281696315430026e-12),
        (32, 1.1515119208646925e-08, 3.312011755343637e-11), (38, 2.8547030606487454e-05, 2.448135584450713e-07),
        (100, 1.0, 1e-5),
    ],
)  # fmt: skip
def test_an_attacker_reaches_what_is_said_to_be_reached(n: int, local: float, at: float) -> None:
    """The distribution of the count, where all others hold zero, to 60 digits."""
    with mpmath.workdps(60):
        target, flip = mpmath.mpf(shuffled_bits(local, n, at).lower), 1 / (1 + mpmath.exp(mpmath.mpf(local)))
        others = [mpmath.binomial(n - 1, k) * flip**k * (1 - flip) ** (n - 1 - k) for k in range(n)]
        one = [a * (1 - flip) + b * flip for a, b in zip([0, *others], [*others, 0], strict=True)]
        zero = [a * flip + b * (1 - flip) for a, b in zip([0, *others], [*others, 0], strict=True)]
        ways = ((one, zero), (zero, one))
        reached = (mpmath.fsum(max(p - mpmath.exp(target) * q, 0) for p, q in zip(*way, strict=True)) for way in ways)
        assert max(reached) >= at


def test_shuffling_alone_with_oneself_changes_nothing() -> None:
    assert shuffled_bits(1.0, 1, 1e-5).upper == pytest.approx(1.0, abs=1e-4)
    assert shuffled_bits(0.0, 100, 1e-5).upper == 0.0


def exact_delta(each: float, count: int, target: float) -> mpmath.mpf:
    """Delta of equal bits by the binomial formula, without the terms that hardly count."""
    with mpmath.workdps(50):
        rare = 1 / (1 + mpmath.exp(mpmath.mpf(each)))
        last = min(count, math.floor((count - target / each) / 2))
        first = max(0, last - 200 - math.ceil(5 * math.sqrt(count)))
        mass = mpmath.binomial(count, first) * rare**first * (1 - rare) ** (count - first)
        total = mpmath.mpf(0)
        for i in range(first, last + 1):
            total += mass * max(0, 1 - mpmath.exp(mpmath.mpf(target) - (count - 2 * i) * mpmath.mpf(each)))
            mass *= rare / (1 - rare) * (count - i) / (i + 1)
        return total


def test_a_figure_that_was_too_small() -> None:
    assert shuffled_bits(0.1, 1, 1.1e-11, 100_000).upper == pytest.approx(709.9553, abs=1e-4)


@pytest.mark.process
@pytest.mark.parametrize("at", [1e-2, 1e-5, 1e-8, 1.1e-11, 1e-12, 1e-18])
@pytest.mark.parametrize(
    ("local", "count"), [(1.0, 1), (2.0, 3), (0.5, 100), (0.1, 100_000), (0.01, 10**6), (1.0, 10**6)]
)
def test_alone_behind_a_shuffler_it_is_the_binomial_formula(local: float, count: int, at: float) -> None:
    interval = shuffled_bits(local, 1, at, count)
    assert exact_delta(local, count, interval.upper) <= at
    assert interval.lower == 0 or exact_delta(local, count, interval.lower) >= at
    assert shuffled_reports(local, 1, at, count) == pytest.approx(interval.upper, rel=1e-9)
    by_grid = amplification._upper_epsilon(clone_pair(1, local, 0.5), at, count)
    assert exact_delta(local, count, by_grid) <= at
    assert by_grid <= interval.upper * (1 + 2e-3)
    if count > 1 or at < 1e-4:
        assert interval.lower >= 0.95 * interval.upper


@pytest.mark.process
@given(st.floats(0.01, 4.0), st.integers(1, 10**6), st.floats(-12, -2))
@settings(max_examples=20, deadline=None)
def test_alone_behind_a_shuffler_nothing_is_gained(local: float, count: int, exponent: float) -> None:
    at = 10**exponent
    interval = shuffled_bits(local, 1, at, count)
    assert exact_delta(local, count, interval.upper) <= at
    assert interval.lower == 0 or exact_delta(local, count, interval.lower) >= at


def convolved(pair: Pair, count: int) -> list[tuple[mpmath.mpf, mpmath.mpf]]:
    """All outcomes of `count` draws from a pair, with both their probabilities."""
    one = [(mpmath.mpf(float(a)), mpmath.mpf(float(b))) for a, b in zip(pair.first, pair.second, strict=True)]
    whole = [(mpmath.mpf(0), mpmath.mpf(0))]
    for _ in range(count):
        whole = [(a + c, b + d) for a, b in whole for c, d in one]
    return [(mpmath.exp(a), mpmath.exp(b)) for a, b in whole]


@pytest.mark.parametrize("at", [1e-2, 1e-5, 1e-8])
def test_composed_pairs_against_all_their_outcomes(at: float) -> None:
    counts, clones = count_pair(4, 1.0), clone_pair(3, 1.0, 2 / (math.e + 1))
    for pair, figure in ((clones, amplification._upper_epsilon), (counts, amplification._lower_epsilon)):
        found = figure(pair, at, 4)
        rows = convolved(pair, 4)
        ways = (rows, [(b, a) for a, b in rows])
        true = max(mpmath.fsum(max(0, a - mpmath.exp(found) * b) for a, b in way) for way in ways)
        assert (true <= at) if pair is clones else (found == 0 or true >= at)
        if pair is clones:
            less = found * (1 - 1e-3)
            assert max(mpmath.fsum(max(0, a - mpmath.exp(less) * b) for a, b in way) for way in ways) > at


@pytest.mark.process
@given(st.floats(0.05, 6.0), st.integers(1, 300), st.sampled_from([1e-8, 1e-5, 1e-3]))
@settings(max_examples=30, deadline=None)
def test_shuffling_never_hurts_and_more_clients_hide_more(local: float, n: int, at: float) -> None:
    interval = shuffled_bits(local, n, at)
    assert 0 <= interval.lower <= interval.upper <= local * (1 + 1e-9)
    assert shuffled_bits(local, 2 * n, at).upper <= interval.upper * (1 + 1e-9)


@pytest.mark.parametrize(
    "arguments",
    [(-1.0, 10, 1e-5), (math.nan, 10, 1e-5), (1.0, 0, 1e-5), (1.0, 10, 0.0), (1.0, 10, 1e-19), (1.0, 10, 1.0)],
)
def test_bad_input_is_refused(arguments: tuple[float, int, float]) -> None:
    with pytest.raises(InvalidInput):
        shuffled_bits(*arguments)
    with pytest.raises(InvalidInput):
        shuffled_reports(*arguments)


def test_bits_that_tell_next_to_nothing_get_their_own_epsilon() -> None:
    assert shuffled_bits(1e-16, 10, 1e-18, 2).upper == equal_bits_epsilon(1e-16, 2, 1e-18)

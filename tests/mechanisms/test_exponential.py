"""The exponential mechanism on integers: its exact law from its tables, its conversions, its extremes."""

from __future__ import annotations

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from catalogue import stream
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mechanisms.exact import probability

from sordino.errors import InvalidInput
from sordino.mechanisms import Exponential, IntegerRange
from sordino.mechanisms.exponential import (
    REDRAW_BLOCK,
)
from sordino.privacy import accountant
from sordino.privacy.guarantee import Adjacency, Metric, Pure
from sordino.randomness import Keystream


def law(mechanism: Exponential) -> list[list[Fraction]]:
    """Pr[y|v] for all inputs and outputs: noise is drawn again until y lies in range, so its law given that."""
    bound, noise = mechanism.domain.bound, mechanism._noise[0]
    weight = {k: probability(noise, k) for k in range(-2 * bound, 2 * bound + 1)}
    rows = []
    for v in range(-bound, bound + 1):
        row = [weight[y - v] for y in range(-bound, bound + 1)]
        total = sum(row)
        rows.append([p / total for p in row])
    return rows


def log(x: Fraction) -> mpmath.mpf:
    with mpmath.workdps(50):
        return mpmath.log(mpmath.mpf(x.numerator) / x.denominator)


@pytest.mark.process
@pytest.mark.parametrize("bound", [1, 5, 50, 200])
@pytest.mark.parametrize("total", [1e-3, 1.0, 8.0])
def test_epsilon_is_alpha_m_by_enumeration_of_the_samplers_own_law(bound: int, total: float) -> None:
    alpha = total / bound
    mechanism = Exponential(alpha, IntegerRange(float(bound), 0))
    rows = law(mechanism)
    columns = list(zip(*rows, strict=True))
    if bound > 50:  # the extremes are at the ends and in the middle: look there exactly, elsewhere in doubles
        table = np.array(rows, dtype=np.float64)
        spread = np.log(table.max(axis=0) / table.min(axis=0))
        columns = [columns[i] for i in {0, bound, 2 * bound, int(spread.argmax())}]
    worst = max(log(max(column) / min(column)) for column in columns)
    proven = accountant.epsilon(mechanism.guarantee().loss)
    assert worst <= proven <= alpha * bound * (1 + 1e-15)
    assert worst >= alpha * bound * (1 - 1e-5)


@pytest.mark.parametrize(("bound", "alpha"), [(5, 0.3), (50, 0.1), (50, 1.0)])
def test_the_samplers_law_is_the_exponential_mechanisms(bound: int, alpha: float) -> None:
    rows = law(Exponential(alpha, IntegerRange(float(bound), 0)))
    y = np.arange(-bound, bound + 1)
    for v in (-bound, -bound + 1, 0, bound // 2, bound):
        weights = np.exp(-alpha * np.abs(y - v) / 2)
        exact = np.array(rows[v + bound], dtype=np.float64)
        assert exact == pytest.approx(weights / weights.sum(), rel=1e-6)
        assert sum(rows[v + bound]) == 1


@pytest.mark.parametrize(("alpha", "tight"), [(0.001, 0.0010), (0.01, 0.00988), (0.1, 0.0953), (1.0, 0.714)])
def test_condensed_privacy_is_alpha_and_its_tight_constant_is_smaller(alpha: float, tight: float) -> None:
    """The figures for M = 50: the largest ln ratio of neighbouring inputs."""
    rows = np.array(law(Exponential(alpha, IntegerRange(50.0, 0))), dtype=np.float64)
    assert np.abs(np.diff(np.log(rows), axis=0)).max() == pytest.approx(tight, rel=1.5e-2)


@pytest.mark.parametrize(
    ("alpha", "clip", "precision"),
    [(0.1, 50.0, 0), (1e-10, 1.0, 10), (1e-16, 1.0, 10), (1e-3, 1.0, 6), (1.0, 1.0, 10), (0.5, 1.0, 6), (2.0, 40.0, 0)],
)
def test_a_metric_guarantee_holds_at_every_distance_not_only_across_the_range(
    alpha: float, clip: float, precision: int
) -> None:
    """`Metric` promises e^(alpha d) for inputs d apart. Two inputs in the middle of the range have equal normalisation
    but for what leaves it, so the ratio of neighbouring weights of the table is the ratio of outputs."""
    mechanism = Exponential(alpha, IntegerRange(clip, precision))
    loss = mechanism.guarantee().loss
    if not isinstance(loss, Metric):
        assert isinstance(loss, Pure)
        assert loss.epsilon <= alpha * mechanism.domain.bound * (1 + 1e-12)
        return
    noise, bound = mechanism._noise[0], mechanism.domain.bound
    joints = {j << d.shift for d in noise.digits for j in (1, 2, 3, 5, 17, 100, 400)} | set(range(1, 60))
    for k in sorted(j for j in joints if j <= bound):
        step = abs(log(probability(noise, k) / probability(noise, k - 1)))
        assert step <= loss.alpha, f"one step of noise from {k - 1} to {k}"


@pytest.mark.parametrize("v", [-5, -3, 0, 4, 5])
def test_draws_follow_the_exact_law_redraws_included(v: int) -> None:
    """Every output's count within 6 standard deviations, 11 outputs: false alarm 2e-8."""
    mechanism, n = Exponential(0.3, IntegerRange(5.0, 0)), 100_000
    exact = law(mechanism)[v + 5]
    drawn = mechanism.randomize(np.full((1, n), float(v)), stream()).output.array[0]
    assert np.abs(drawn).max() <= 5
    for y in range(-5, 6):
        p = float(exact[y + 5])
        assert abs(np.count_nonzero(drawn == y) - n * p) <= 6 * math.sqrt(n * p * (1 - p))


def test_published_bias_and_variance_near_the_clip() -> None:
    """alpha = .1, M = 50, v = 40: -12.049 and 338.65; the draws agree within 6 standard errors (false alarm 4e-9)."""
    mechanism, n = Exponential(0.1, IntegerRange(50.0, 0)), 200_000
    v = np.full((1, n), 40.0)
    assert mechanism.bias(v[:, :1])[0, 0] == pytest.approx(-12.049, abs=5e-4)
    assert mechanism.variance(v[:, :1])[0, 0] == pytest.approx(338.65, abs=5e-3)
    drawn = mechanism.estimate(mechanism.randomize(v, stream()).output)[0]
    assert drawn.mean() == pytest.approx(40 - 12.049, abs=6 * math.sqrt(338.65 / n))
    square = (drawn - (40 - 12.049)) ** 2
    assert square.mean() == pytest.approx(338.65, abs=6 * square.std() / math.sqrt(n))


@pytest.mark.parametrize(("bound", "alpha"), [(5, 0.3), (50, 0.1), (100, 0.01), (100, 3.0)])
def test_closed_moments_equal_those_enumerated_from_the_law(bound: int, alpha: float) -> None:
    mechanism = Exponential(alpha, IntegerRange(float(bound), 0))
    rows = law(mechanism)
    y = np.arange(-bound, bound + 1)
    for v in {-bound, 0, bound // 3, bound - 1}:
        p = np.array(rows[v + bound], dtype=np.float64)
        mean = math.fsum(p * y)
        assert mechanism.bias(np.array([[float(v)]]))[0, 0] == pytest.approx(mean - v, abs=1e-6)
        variance = math.fsum(p * (y - mean) ** 2)
        assert mechanism.variance(np.array([[float(v)]]))[0, 0] == pytest.approx(variance, rel=1e-6)


def test_twenty_thousand_million_integers_cost_no_more_than_a_few() -> None:
    """c = 1, rho = 10, alpha M = 1: bias and variance of 100,000 draws within 6 standard errors (false alarm 4e-9)."""
    mechanism, n = Exponential(1e-10, IntegerRange(1.0, 10)), 100_000
    assert mechanism.domain.bound == 10**10
    assert accountant.epsilon(mechanism.guarantee().loss) == pytest.approx(1.0, rel=1e-9)
    value = np.array([[0.5]])
    mean, variance = 0.5 + mechanism.bias(value)[0, 0], mechanism.variance(value)[0, 0]
    drawn = mechanism.estimate(mechanism.randomize(np.full((1, n), 0.5), stream()).output)[0]
    assert np.abs(drawn).max() <= 1
    assert drawn.mean() == pytest.approx(mean, abs=6 * math.sqrt(variance / n))
    square = (drawn - mean) ** 2
    assert square.mean() == pytest.approx(variance, abs=6 * square.std() / math.sqrt(n))


@pytest.mark.parametrize(("clip", "precision"), [(1.0, 10), (1.0, 0), (3.0, 13)])
def test_the_regime_of_many_redraws_is_uniform_and_stays_in_range(clip: float, precision: int) -> None:
    """alpha M = 1e-6: nearly uniform, half of the draws leave the range each time. Moments within 6 standard errors."""
    domain = IntegerRange(clip, precision)
    mechanism, n = Exponential(1e-6 / domain.bound, domain), 50_000
    values = np.full((1, n), clip)
    drawn = mechanism.randomize(values, stream()).output.array[0].astype(np.float64)
    bound = domain.bound
    variance = bound * (bound + 1) / 3
    assert np.abs(drawn).max() <= bound
    assert abs(drawn.mean()) <= 6 * math.sqrt(variance / n)
    assert (drawn**2).mean() == pytest.approx(variance, rel=6 * math.sqrt(0.8 / n) if bound > 1 else 6 / math.sqrt(n))
    assert accountant.epsilon(mechanism.guarantee().loss) <= 1e-6 * (1 + 1e-9)
    assert mechanism.variance(values[:, :1])[0, 0] == pytest.approx(variance * 10.0 ** (-2 * precision), rel=1e-5)


def test_in_the_middle_of_a_wide_range_the_noise_is_the_papers() -> None:
    """Var = 8/alpha^2 in integer steps, no bias: sd sqrt(8)/(alpha 10^rho)."""
    mechanism = Exponential(1e-3, IntegerRange(1.0, 10))
    assert mechanism.bias(np.zeros((1, 1)))[0, 0] == pytest.approx(0, abs=1e-15)
    assert math.sqrt(mechanism.variance(np.zeros((1, 1)))[0, 0]) == pytest.approx(math.sqrt(8) / 1e-3 / 1e10, rel=1e-6)


@given(st.floats(-2, 2), st.integers(0, 8))
@settings(max_examples=40)
def test_values_are_coded_as_the_nearest_integer(x: float, precision: int) -> None:
    """With hardly any noise the output is the code itself."""
    mechanism = Exponential(60.0, IntegerRange(1.0, precision))
    out = mechanism.randomize(np.array([[x]]), stream()).output.array[0, 0]
    assert out == round(max(-1.0, min(1.0, x)) * 10**precision)


@pytest.mark.parametrize(("alpha", "clip", "precision"), [(0.02, 50.0, 0), (1e-9, 1.0, 10)])
def test_an_upload_adds_up(alpha: float, clip: float, precision: int) -> None:
    mechanism = Exponential(alpha, IntegerRange(clip, precision))
    one = accountant.epsilon(mechanism.guarantee(Adjacency.COORDINATE, values=29034).loss)
    assert accountant.epsilon(mechanism.guarantee(values=29034).loss) == pytest.approx(29034 * one)


def test_too_little_budget_for_the_tables_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidInput, match="fewer values"):
        Exponential(1e-9, IntegerRange(50.0, 0))


@pytest.mark.parametrize(
    ("clip", "precision"),
    [
        (0, 3), (0.0, 3), (-1.0, 3), (math.nan, 3), (math.inf, 3), ("1", 3), (None, 3), (True, 3), (10**30, 0),
        pytest.param(10**400, 0, id="an int beyond floats"),
        (1.0, 30), (1.0, -1), (1.0, 1.5), (1.0, True), (1.0, "3"), (1e-5, 2), (1e10, 10), (1e300, 18),
    ],
)  # fmt: skip
def test_absurd_ranges_are_refused(clip: object, precision: object) -> None:
    with pytest.raises(InvalidInput):
        IntegerRange(clip, precision)  # type: ignore[arg-type]


def test_bound_is_c_times_ten_to_the_rho_in_decimal() -> None:
    assert IntegerRange(0.3, 1).bound == 3
    assert IntegerRange(1.0, 10).bound == 10**10
    assert IntegerRange(0.015, 4).bound == 150


def test_redraws_depend_on_neither_neighbours_nor_what_follows_their_block() -> None:
    """Redraws are made for a block of columns together; more than one block, and two clients with many redraws each."""
    d = REDRAW_BLOCK + 13
    mechanism = Exponential(1e-3, IntegerRange(5.0, 0))
    values = np.random.default_rng(1).integers(-5, 6, (2, d)).astype(np.float64)
    together = mechanism.randomize(values, stream(2)).output.array
    for k in range(2):
        alone = mechanism.randomize(values[k], Keystream.simulation(7, [k], 0)).output.array[0]
        assert (alone == together[k]).all()
    first = mechanism.randomize(values[:, :REDRAW_BLOCK], stream(2)).output.array
    assert (first == together[:, :REDRAW_BLOCK]).all()

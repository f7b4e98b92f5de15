"""Laplace noise in its three readings of the paper's undefined sensitivity."""

from __future__ import annotations

import math

import numpy as np
import pytest
from catalogue import stream
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mechanisms.exact import probability

from sordino.errors import InvalidInput
from sordino.mechanisms import Box, L1Ball, Laplace
from sordino.privacy import accountant
from sordino.privacy.guarantee import Adjacency, Pure


@pytest.mark.parametrize("epsilon", [0.001, 0.5, 3.0, 6.0, 20.0])
def test_a_box_costs_epsilon_per_value_and_d_epsilon_per_upload(epsilon: float) -> None:
    mechanism = Laplace(epsilon, Box(0.0, 0.7))
    one = accountant.epsilon(mechanism.guarantee(Adjacency.COORDINATE, values=100).loss)
    assert epsilon * (1 - 1e-5) <= one <= epsilon
    for adjacency in (Adjacency.CLIENT, Adjacency.RECORD_REPLACE, Adjacency.RECORD_ADD_REMOVE):
        assert mechanism.guarantee(adjacency, values=100).loss == Pure(one, 100)


@pytest.mark.parametrize(("epsilon", "values"), [(1.0, 4), (3.0, 100), (20.0, 1000), (0.1, 10_000)])
def test_an_l1_ball_costs_epsilon_for_the_whole_upload(epsilon: float, values: int) -> None:
    proven = accountant.epsilon(Laplace(epsilon, L1Ball(2.0)).guarantee(values=values).loss)
    assert epsilon * 0.999 <= proven <= epsilon


def test_every_reasonable_epsilon_finds_its_tables_over_every_length() -> None:
    """None of these is finer than the tables resolve; a search that gives up early refuses some of them."""
    for values in (1, 2, 4, 8, 13, 100, 1000, 65549):
        for epsilon in (0.5, 1.0, 10.0, 15.0, 18.0, 20.0, 22.0):
            proven = accountant.epsilon(Laplace(epsilon, L1Ball(1.0)).guarantee(values=values).loss)
            assert epsilon * 0.99 <= proven <= epsilon


def test_sensitivity_divided_by_records_is_claimed_only() -> None:
    """2C/m at m = 100 and claimed 0.05: one record may move a weight by 2C, so what is proven is m eps = 5."""
    mechanism = Laplace(0.05, Box(), records=100)
    assert mechanism.claim().epsilon == 0.05
    assert accountant.epsilon(mechanism.guarantee(Adjacency.RECORD_REPLACE).loss) == pytest.approx(5.0, rel=1e-5)
    assert "2C/m" in mechanism.claim().formula


def test_noise_divided_by_many_records_proves_what_the_tables_can_lose_at_all() -> None:
    """m eps = 900; but a table's least weight is 2^-64, and signs and lower digits take a little more."""
    proven = accountant.epsilon(Laplace(3.0, Box(), records=300).guarantee(Adjacency.COORDINATE).loss)
    assert 64 * math.log(2) < proven == pytest.approx(45.8, abs=0.05)


def test_noise_divided_by_records_has_the_claimed_variance() -> None:
    claimed = Laplace(3.0, Box(0.0, 1.0), records=101)
    assert claimed.variance(np.zeros((1, 1)))[0, 0] == pytest.approx(2 * (2 / 101 / 3) ** 2, rel=2e-3)


@pytest.mark.parametrize(("epsilon", "radius"), [(3.0, 1.0), (0.5, 4.0), (10.0, 0.01)])
def test_variance_in_the_middle_is_twice_the_squared_scale(epsilon: float, radius: float) -> None:
    """2 (2C/eps)^2; at eps = 3, C = 1 that is .8889, and the grid adds a little."""
    closed = 2 * (2 * radius / epsilon) ** 2
    assert Laplace(epsilon, Box(1.0, radius)).variance(np.ones((1, 1)))[0, 0] == pytest.approx(closed, rel=2e-3)


@pytest.mark.parametrize("epsilon", [0.3, 1.0, 6.0, 15.0, 22.0])
def test_closed_moments_equal_those_enumerated_from_the_tables(epsilon: float) -> None:
    mechanism = Laplace(epsilon, Box())
    grid = mechanism.grid(1)
    ks = np.arange(-grid.noise.reach, grid.noise.reach)
    p = np.array([float(probability(grid.noise, int(k))) for k in ks])
    for z in (-1.0, -0.25, 0.0, 0.5, 1.0):
        y = np.clip(round(z * grid.steps) + ks, -grid.limit, grid.limit) / grid.steps
        mean = math.fsum(p * y)
        variance = math.fsum(p * (y - mean) ** 2)
        assert mechanism.bias(np.array([[z]]))[0, 0] == pytest.approx(mean - z, abs=1e-7 + 1e-7 * abs(mean))
        assert mechanism.variance(np.array([[z]]))[0, 0] == pytest.approx(variance, rel=1e-6)


def test_published_variance_by_monte_carlo() -> None:
    """.8889 at eps 3, C = 1, within 6 standard errors of a Laplace variance, sqrt(5/n): false alarm 2e-9."""
    mechanism, n = Laplace(3.0, Box()), 300_000
    estimates = mechanism.estimate(mechanism.randomize(np.zeros((1, n)), stream()).output)
    assert estimates.var() == pytest.approx(0.8889, rel=6 * math.sqrt(5 / n) + 1e-3)


@settings(max_examples=30)
@given(st.integers(1, 50), st.floats(-3, 3), st.integers(0, 10**6))
def test_a_vector_in_the_ball_stays_in_the_ball_on_the_grid(d: int, log_scale: float, seed: int) -> None:
    """The expected estimate never has a larger L1 norm than the radius, and is close to the clipped input."""
    vector = np.random.default_rng(seed).laplace(size=(1, d)) * 10**log_scale
    mechanism = Laplace(1.0, L1Ball(1.5))
    mean = vector + mechanism.bias(vector)
    norm = np.abs(vector).sum()
    expected = vector * min(1.0, 1.5 / norm)
    assert np.abs(mean).sum() <= 1.5 * (1 + 1e-9)
    assert np.abs(mean - expected).max() <= 1.5 / 64 / d + 1e-6


@pytest.mark.parametrize("records", [0, -1, 1.5, True, "10", None, 10**10])
def test_records_that_are_no_count_are_refused(records: object) -> None:
    with pytest.raises(InvalidInput, match="records"):
        Laplace(1.0, Box(), records=records)  # type: ignore[arg-type]


def test_records_do_not_go_with_a_ball() -> None:
    with pytest.raises(InvalidInput, match="Box"):
        Laplace(1.0, L1Ball(1.0), records=10)


def test_noise_finer_than_the_grid_is_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidInput, match="ClipOnly"):
        Laplace(100.0, Box(), records=10**6)


def test_epsilon_finer_than_the_tables_over_a_long_vector_is_refused() -> None:
    with pytest.raises(InvalidInput, match="noise tables"):
        Laplace(1e-6, L1Ball(1.0)).guarantee(values=10**6)


def test_per_tensor_ranges_scale_the_noise_of_each_value() -> None:
    mechanism = Laplace(1.0, Box.per_tensor([2, 1], [0.0, 5.0], [1.0, 0.01]))
    variance = mechanism.variance(np.array([[0.0, 0.0, 5.0]]))[0]
    assert variance[1] / variance[2] == pytest.approx(1e4, rel=1e-5)

"""The piecewise mechanism: its density ratio, its moments, its range."""

from __future__ import annotations

import math

import numpy as np
import pytest
from catalogue import stream
from hypothesis import given
from hypothesis import strategies as st

from sordino.mechanisms import Box, Piecewise, TwoPoint
from sordino.privacy import accountant
from sordino.privacy.guarantee import Adjacency


def density(epsilon: float, x: float, y: np.ndarray) -> np.ndarray:
    """Wang et al. 2019, Eq. 3."""
    c = (math.exp(epsilon / 2) + 1) / (math.exp(epsilon / 2) - 1)
    left = (c + 1) / 2 * x - (c - 1) / 2
    near = (math.exp(epsilon) - math.exp(epsilon / 2)) / (2 * math.exp(epsilon / 2) + 2)
    return np.where((y >= left) & (y <= left + c - 1), near, near / math.exp(epsilon))


@pytest.mark.parametrize("epsilon", [0.5, 1.0, 4.0])
@pytest.mark.parametrize("x", [-1.0, -0.3, 0.0, 1.0])
def test_draws_follow_the_published_density(epsilon: float, x: float) -> None:
    """40 bins of 200,000 draws within 6 standard deviations: false alarm 8e-8 a case."""
    mechanism, n = Piecewise(epsilon, Box()), 200_000
    drawn = mechanism.randomize(np.full((1, n), x), stream()).output.array[0].astype(np.float64)
    c = (math.exp(epsilon / 2) + 1) / (math.exp(epsilon / 2) - 1)
    assert np.abs(drawn).max() <= c * (1 + 1e-6)
    edges = np.linspace(-c, c, 41)
    counts = np.histogram(drawn, edges)[0]
    fine = np.linspace(-c, c, 40 * 500 + 1)
    middle = (fine[1:] + fine[:-1]) / 2
    p = density(epsilon, x, middle).reshape(40, 500).sum(axis=1) * (2 * c / 20_000)
    assert (np.abs(counts - n * p) <= 6 * np.sqrt(n * p) + n * 2 * c / 20_000).all()


@given(st.floats(0.05, 20), st.floats(-1, 1))
def test_moments_are_those_of_the_density(epsilon: float, x: float) -> None:
    c = (math.exp(epsilon / 2) + 1) / (math.exp(epsilon / 2) - 1)
    left = (c + 1) / 2 * x - (c - 1) / 2
    right = left + c - 1
    near = (math.exp(epsilon) - math.exp(epsilon / 2)) / (2 * math.exp(epsilon / 2) + 2)
    far = near / math.exp(epsilon)

    def moment(k: int) -> float:
        inside = (right ** (k + 1) - left ** (k + 1)) / (k + 1)
        whole = (c ** (k + 1) - (-c) ** (k + 1)) / (k + 1)
        return near * inside + far * (whole - inside)

    mechanism = Piecewise(epsilon, Box(3.0, 2.0))
    value = np.array([[3.0 + 2.0 * x]])
    assert moment(0) == pytest.approx(1.0, rel=1e-9)
    assert mechanism.bias(value)[0, 0] == pytest.approx(2.0 * (moment(1) - x), abs=1e-5)
    closed = 4.0 * (moment(2) - moment(1) ** 2)
    assert mechanism.variance(value)[0, 0] == pytest.approx(closed, rel=1e-5, abs=1e-5)


def test_less_variance_than_two_points_from_1_29_up_at_the_worst_input() -> None:
    ends = np.array([[1.0]])
    for epsilon, better in ((1.2, False), (1.35, True), (4.0, True)):
        worst_two = TwoPoint(epsilon).variance(np.zeros((1, 1)))[0, 0]
        assert bool(Piecewise(epsilon).variance(ends)[0, 0] < worst_two) is better


def test_epsilon_per_value_and_in_real_arithmetic_only() -> None:
    mechanism = Piecewise([1.0, 3.0])
    assert accountant.epsilon(mechanism.guarantee(values=10, client=1).loss) == pytest.approx(30.0)
    assert accountant.epsilon(mechanism.guarantee(Adjacency.COORDINATE, values=10, client=1).loss) == 3.0
    assert "real arithmetic" in mechanism.guarantee().basis

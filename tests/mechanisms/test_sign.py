"""The randomised sign: pure guarantees better than claimed, and votes with the stated mean."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from catalogue import stream
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from sordino.errors import InvalidInput
from sordino.mechanisms import Box, RandomizedSign
from sordino.mechanisms.integers import bit_threshold, exp_bounds
from sordino.privacy import accountant
from sordino.privacy.guarantee import Adjacency, RandomizedBit


@pytest.mark.parametrize(("claimed", "pure"), [(5.0, 0.8334), (10.0, 1.7266), (15.0, 2.7373)])
def test_the_vote_is_purely_private_and_better_than_claimed(claimed: float, pure: float) -> None:
    mechanism = RandomizedSign.eq7(claimed, 1e-5, Box(0.0, 3.0))
    proven = accountant.epsilon(mechanism.guarantee().loss)
    assert proven == pytest.approx(pure, abs=5e-5)
    assert proven < mechanism.claim().epsilon == claimed
    sigma = 2 / claimed * math.sqrt(2 * math.log(1.25 / 1e-5))
    exact = math.log(ndtr(1 / sigma) / ndtr(-1 / sigma))
    assert exact * (1 - 1e-8) <= proven <= exact * (1 + 1e-12)


def test_an_upload_costs_its_votes_together() -> None:
    """7,850 weights at claimed 5: 6,542 pure."""
    mechanism = RandomizedSign.eq7(5.0, 1e-5)
    assert accountant.epsilon(mechanism.guarantee(values=7850).loss) == pytest.approx(6542, abs=1)
    assert isinstance(mechanism.guarantee(values=7850).loss, RandomizedBit)
    assert accountant.epsilon(mechanism.guarantee(Adjacency.COORDINATE, values=7850).loss) < 0.84


@pytest.mark.parametrize("sigma", [0.1, 0.5, 2.0, 50.0])
def test_mean_vote_is_twice_phi_less_one(sigma: float) -> None:
    p = np.linspace(-1, 1, 501)[None, :]
    mean = RandomizedSign.gaussian(sigma, Box()).mean(p)
    step = 1 / 4096.5 / sigma * math.sqrt(2 / math.pi)  # one bin's worth of the steepest slope
    assert np.abs(mean - (2 * ndtr(p / sigma) - 1)).max() <= 0.51 * step + 1e-6
    assert mean[0, 250] == 0.0
    assert (mean == -mean[:, ::-1]).all()
    assert RandomizedSign.gaussian(sigma, Box()).variance(p) == pytest.approx(1 - mean**2)


def test_values_beyond_the_clip_vote_like_its_ends() -> None:
    mechanism = RandomizedSign.gaussian(1.0, Box(1.0, 2.0))
    assert (mechanism.mean(np.array([[50.0, -50.0]])) == mechanism.mean(np.array([[3.0, -1.0]]))).all()


@pytest.mark.process
@given(st.floats(0.03, 1e6), st.lists(st.floats(-3, 3), min_size=2, max_size=20))
def test_no_pair_of_values_exceeds_the_proven_ratio(sigma: float, values: list[float]) -> None:
    """Probabilities as exact counts out of 2^32: mean * 2^31 is a whole number."""
    mechanism = RandomizedSign.gaussian(sigma, Box())
    t = mechanism.mean(np.array([[*values, 1.0, -1.0]])) * 2**31
    assert (t == np.rint(t)).all()
    ones = [2**31 + int(x) for x in t[0]]
    t_min = int(mechanism.t_min[0])
    assert min(ones) == t_min
    assert max(ones) == 2**32 - t_min
    proven = accountant.epsilon(mechanism.guarantee().loss)
    assert math.log(max(ones) / min(ones)) == pytest.approx(proven, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 1.0, 5.0, 22.0])
def test_response_spends_exactly_the_epsilon_asked(epsilon: float) -> None:
    mechanism = RandomizedSign.response(epsilon)
    t = int(mechanism.t_min[0])
    assert t == bit_threshold(epsilon)
    assert Fraction(2**32 - t, t) <= Fraction(exp_bounds(Fraction(epsilon), 256)[0], 1 << 256)
    keep = (2**32 - t) / 2**32
    mean = mechanism.mean(np.array([[0.5, -1e-3, 1.0, -1.0, 0.0]]))[0]
    assert mean == pytest.approx(np.array([1, -1, 1, -1, 0]) * (2 * keep - 1), abs=1e-15)
    assert keep == pytest.approx(math.exp(epsilon) / (1 + math.exp(epsilon)), abs=2**-31)


def test_response_has_less_noise_than_equation_7_at_the_same_claim() -> None:
    value = np.array([[1.0]])
    assert RandomizedSign.response(5.0).mean(value)[0, 0] > 2 * RandomizedSign.eq7(5.0, 1e-5).mean(value)[0, 0]


def test_votes_follow_their_mean() -> None:
    """Each of four values within 6 standard errors: false alarm below 1e-8."""
    mechanism, n = RandomizedSign.gaussian([0.7, 3.0], Box()), 100_000
    for value in (-0.8, 0.3):
        votes = mechanism.estimate(mechanism.randomize(np.full((2, n), value), stream(2)).output)
        assert set(np.unique(votes)) == {-1.0, 1.0}
        expected = mechanism.mean(np.full((2, 1), value))[:, 0]
        assert expected == pytest.approx(2 * ndtr(value / np.array([0.7, 3.0])) - 1, abs=1e-3)
        assert np.abs(votes.mean(axis=1) - expected).max() <= 6 / math.sqrt(n)


@pytest.mark.parametrize("sigma", [0.02, 1e8])
def test_sigmas_beyond_the_tables_are_refused(sigma: float) -> None:
    with pytest.raises(InvalidInput, match="clipping threshold"):
        RandomizedSign.gaussian(sigma, Box())


def test_one_sigma_for_different_radii_is_refused() -> None:
    with pytest.raises(InvalidInput, match="one radius"):
        RandomizedSign.gaussian(1.0, Box(0.0, [1.0, 2.0]))


@pytest.mark.parametrize("thresholds", [[[1, 2, 3]], [], [[0] * 4096 + [2**31]], [[5] * 4096 + [4]], [[-1] * 4097]])
def test_thresholds_that_are_no_table_are_refused(thresholds: list) -> None:
    with pytest.raises(InvalidInput, match="thresholds"):
        RandomizedSign(thresholds, Box())

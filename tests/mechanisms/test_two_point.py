"""The two-point mechanism: exact probabilities by counting, Eq. 2's moments, packing."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from catalogue import stream
from hypothesis import given
from hypothesis import strategies as st

from sordino.mechanisms import Box, TwoPoint
from sordino.mechanisms.integers import exp_bounds
from sordino.mechanisms.output import BitOutput
from sordino.privacy import accountant
from sordino.privacy.guarantee import Adjacency, RandomizedBit
from sordino.randomness import Words

ONE = 2**32


class Fixed:
    """Randomness that says the same word everywhere, so that a threshold can be found by bisection."""

    clients = 1

    def __init__(self, word: int) -> None:
        self.word = word

    def words(self, rows: np.ndarray, purpose: int, tensor: int, first: int, count: int) -> Words:
        return np.full((len(rows), count), self.word, dtype=np.uint32)


def ones_out_of_2_32(mechanism: TwoPoint, values: np.ndarray) -> list[int]:
    """For every value, how many of the 2^32 words make its bit 1: those below a threshold in signed order."""
    low, high = np.full(values.shape[1], -(2**31) - 1), np.full(values.shape[1], 2**31 - 1)
    for j in range(values.shape[1]):
        value = values[:, j : j + 1]
        below, above = int(low[j]), int(high[j]) + 1  # bit(below) = 1 (or none), bit(above) = 0 (or none)
        while above - below > 1:
            middle = (below + above) // 2
            bit = mechanism.randomize(value, Fixed(middle % ONE)).output.bits()[0, 0]
            below, above = (middle, above) if bit else (below, middle)
        low[j] = below
    return [int(b) + 2**31 + 1 for b in low]


def ratio_at_most_exp(high: int, low: int, epsilon: float) -> bool:
    return Fraction(high, low) <= Fraction(exp_bounds(Fraction(epsilon), 256)[0], 1 << 256)


@pytest.mark.process
@given(
    st.floats(1e-6, 25),
    st.floats(-1024, 1024, width=32),
    st.floats(2**-10, 1024, width=32),
    st.lists(st.floats(-3, 3), min_size=1, max_size=6),
)
def test_no_pair_of_inputs_exceeds_exp_epsilon_by_counting_words(
    epsilon: float, centre: float, radius: float, relative: list[float]
) -> None:
    mechanism = TwoPoint(epsilon, Box(centre, radius))
    values = np.array([[centre + radius * z for z in [*relative, -4.0, 4.0]]], dtype=np.float64)
    counts = ones_out_of_2_32(mechanism, values)
    t_min = int(mechanism.t_min[0])
    assert t_min <= min(counts)
    assert max(counts) <= ONE - t_min
    assert ratio_at_most_exp(max(counts), min(counts), epsilon)
    assert ratio_at_most_exp(ONE - min(counts), ONE - max(counts), epsilon)
    # tight: the ends use the whole range, but for what float32 cannot express
    assert min(counts) <= t_min + 2**8
    for count, z in zip(counts, [*relative, -4.0, 4.0], strict=True):
        expected = 2**31 + max(-1.0, min(1.0, z)) * (2**31 - t_min)
        assert abs(count - expected) <= 2**31 * (abs(centre) / radius + 2) * 2**-22 + 2**9


@pytest.mark.parametrize("epsilon", [1.0, 4.0, 10.0])
def test_equation_2_at_hand_computable_points(epsilon: float) -> None:
    mechanism = TwoPoint(epsilon, Box(0.0, 1.0))
    counts = ones_out_of_2_32(mechanism, np.array([[-1.0, -0.5, 0.0, 0.5, 1.0]]))
    e = math.exp(epsilon)
    for z, count in zip((-1.0, -0.5, 0.0, 0.5, 1.0), counts, strict=True):
        assert count / ONE == pytest.approx((z * (e - 1) + (e + 1)) / (2 * (e + 1)), abs=2**-23)
    assert counts[2] == 2**31
    assert math.log(counts[4] / counts[0]) == pytest.approx(epsilon, rel=1e-3 if epsilon > 5 else 1e-6)


@pytest.mark.parametrize("epsilon", [1e-6, 0.5, 1.0, 4.0, 10.0, 22.0])
def test_proven_epsilon_is_exactly_the_log_of_the_threshold_ratio(epsilon: float) -> None:
    mechanism = TwoPoint(epsilon)
    t = int(mechanism.t_min[0])
    assert mechanism.proven_epsilon() == pytest.approx(math.log((ONE - t) / t), rel=1e-9)
    assert mechanism.proven_epsilon() <= epsilon
    assert t == 1 or math.log((ONE - t + 1) / (t - 1)) > epsilon  # the next threshold would be too much
    assert mechanism.guarantee(values=21840).loss == RandomizedBit(t, 21840)
    assert mechanism.guarantee(Adjacency.COORDINATE, values=21840).loss == RandomizedBit(t, 1)
    assert accountant.epsilon(mechanism.guarantee(values=10).loss) == pytest.approx(10 * mechanism.proven_epsilon())


def test_epsilon_above_the_cap_is_capped() -> None:
    assert TwoPoint(50.0).proven_epsilon() == pytest.approx(math.log(ONE - 1))
    assert TwoPoint(50.0).t_min.tolist() == [1]


@pytest.mark.parametrize(
    ("epsilon", "clients", "w", "radius", "expected"),
    [(1.0, 100, 0.03, 0.075, 2.544e-4), (4.0, 200, 0.01, 0.015, None), (10.0, 500, 0.02, 0.075, None)],
)
def test_variance_is_r2k2_less_the_squared_offset(
    epsilon: float, clients: int, w: float, radius: float, expected: float | None
) -> None:
    k = (math.exp(epsilon) + 1) / (math.exp(epsilon) - 1)
    closed = (radius**2 * k**2 - w**2) / clients
    mechanism = TwoPoint(epsilon, Box(0.0, radius))
    assert mechanism.variance(np.full((1, 1), w))[0, 0] / clients == pytest.approx(closed, rel=1e-5)
    if expected:
        assert closed == pytest.approx(expected, rel=1e-3)


def test_published_monte_carlo_figure_of_an_average_of_100_clients() -> None:
    """Variance of the mean of 100 clients, eps 1, w = .03, r = .075: 2.544e-4 within 6 standard errors (2e-9)."""
    mechanism, trials = TwoPoint(1.0, Box(0.0, 0.075)), 20_000
    means = mechanism.estimate(mechanism.randomize(np.full((100, trials), 0.03), stream(100)).output).mean(axis=0)
    assert means.var() == pytest.approx(2.544e-4, rel=6 * math.sqrt(2 / trials))
    assert means.mean() == pytest.approx(0.03, abs=6 * math.sqrt(2.544e-4 / trials))


@given(st.floats(0.01, 20), st.floats(-1, 1))
def test_unbiased_inside_the_box_but_for_the_grid_of_float32(epsilon: float, z: float) -> None:
    mechanism = TwoPoint(epsilon, Box(2.0, 0.5))
    value = np.array([[2.0 + 0.5 * z]])
    assert abs(mechanism.bias(value)[0, 0]) <= 1e-6 + 2 / float(2**31 - mechanism.t_min[0])


def test_bias_beyond_the_box_is_the_clipping() -> None:
    assert TwoPoint(1.0, Box(0.0, 1.0)).bias(np.array([[3.0, -2.0]])) == pytest.approx(
        np.array([[-2.0, 1.0]]), abs=1e-6
    )


def test_estimates_are_the_two_points_of_the_paper() -> None:
    k = (math.e + 1) / (math.e - 1)
    estimate = TwoPoint(1.0, Box(0.5, 2.0)).estimate(BitOutput(np.array([[0b01]], np.uint8), 2))
    assert estimate[0] == pytest.approx([0.5 + 2 * k, 0.5 - 2 * k], rel=1e-6)


def test_every_tensor_has_its_own_range() -> None:
    box = Box.per_tensor([3, 2], [0.0, 10.0], [1.0, 0.1])
    mechanism = TwoPoint(22.0, box)
    values = np.array([[1.0, -1.0, 1.0, 10.1, 9.9]])
    assert mechanism.estimate(mechanism.randomize(values, stream()).output)[0] == pytest.approx(values[0], rel=1e-6)
    assert mechanism.randomize(values + 50, stream()).local.clipped_fraction.tolist() == [1.0]
    centre = np.array([[0.0, 0.0, 0.0, 10.0, 10.0]])
    assert mechanism.variance(centre)[0] == pytest.approx([1, 1, 1, 0.01, 0.01], rel=1e-5)


def test_every_client_has_its_own_epsilon() -> None:
    """Shares of ones at w = +1 within 6 standard deviations of each client's own probability: false alarm 1e-8."""
    epsilons, n = [0.1, 1.0, 4.0], 100_000
    mechanism = TwoPoint(epsilons)
    share = mechanism.randomize(np.ones((3, n)), stream(3)).output.bits().mean(axis=1)
    for k, epsilon in enumerate(epsilons):
        p = math.exp(epsilon) / (1 + math.exp(epsilon))
        assert share[k] == pytest.approx(p, abs=6 * math.sqrt(p * (1 - p) / n))
        assert accountant.epsilon(mechanism.guarantee(client=k).loss) == pytest.approx(epsilon, rel=1e-6)


@pytest.mark.parametrize("d", [1, 7, 8, 9, 16, 17])
def test_bits_are_packed_least_significant_first_with_zero_padding(d: int) -> None:
    output = TwoPoint(1.0).randomize(np.zeros((2, d)), stream(2)).output
    words = stream(2).words(np.arange(2), 1, 0, 0, d).view(np.int32)
    for k in range(2):
        packed = sum(1 << j for j in range(d) if words[k, j] < 0)
        assert output.packed[k].tobytes() == packed.to_bytes(-(-d // 8), "little")
        assert output.bits()[k].tolist() == [int(words[k, j] < 0) for j in range(d)]


def test_clipped_share_and_noise_scale_are_diagnosed() -> None:
    local = TwoPoint(1.0, Box(0.0, 2.0)).randomize(np.array([[0.0, 3.0, -2.5, 2.0]]), stream()).local
    assert local.clipped_fraction.tolist() == [0.5]
    assert local.noise_scale == pytest.approx([2 * (math.e + 1) / (math.e - 1)], rel=1e-6)


def test_the_claim_is_the_clients_own() -> None:
    claim = TwoPoint([1.0, 4.0]).claim(client=1)
    assert claim is not None
    assert claim.epsilon == 4.0
    assert "LDP-FL" in claim.formula

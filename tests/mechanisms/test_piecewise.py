"""The piecewise mechanism on whole numbers: its weights by enumeration, its moments, and the published law."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from catalogue import stream
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.mechanisms import Box, Piecewise, TwoPoint
from sordino.mechanisms.integers import MAX_EPSILON, exp_bounds
from sordino.mechanisms.output import IntegerOutput
from sordino.mechanisms.piecewise import OUTPUTS, Pieces, _draw, pieces
from sordino.privacy import accountant
from sordino.privacy.guarantee import Adjacency

EPSILONS = [1e-6, 1e-3, 0.05, 0.5, 1.0, 4.0, 10.0, 16.0, 20.0, 22.0, 40.0]


def weights(piece: Pieces, t: int) -> list[int]:
    """How many of the 2^64 pairs of words lead to each of the 2^16 outputs, in exact whole numbers."""
    found = [(2**32 - piece.threshold) * 2**16] * OUTPUTS
    left = OUTPUTS // 2 + t - piece.near // 2
    for j, count in enumerate(piece.counts().tolist()):
        found[left + j] += piece.threshold * count
    return found


@pytest.mark.parametrize("epsilon", EPSILONS)
def test_the_weights_of_all_outputs_sum_to_2_to_the_64_and_stay_within_e_to_the_epsilon(epsilon: float) -> None:
    """Enumerated: every output, for inputs at both ends, at zero and beside it; all others are shifts of these."""
    piece = pieces(min(epsilon, MAX_EPSILON))
    laws = [weights(piece, t) for t in (-piece.m, -1, 0, 1, piece.m)]
    assert all(sum(law) == 2**64 and min(law) >= 1 and len(law) == OUTPUTS for law in laws)
    most = max(Fraction(max(at), min(at)) for at in zip(*laws, strict=True))
    assert most <= Fraction(piece.peak, piece.base)  # what the guarantee states
    asked = Fraction(min(epsilon, MAX_EPSILON))
    assert Fraction(piece.peak, piece.base) <= Fraction(exp_bounds(asked)[0], 1 << 192)
    assert math.log(most) >= float(asked) * (1 - 3e-4)  # and nothing is given away


@settings(max_examples=50)
@given(st.floats(1e-6, 22.0))
def test_every_epsilon_has_weights_within_it(epsilon: float) -> None:
    piece = pieces(epsilon)
    counts = piece.counts()
    assert piece.near % 2 == 0 and 2 <= piece.near <= 2**15 and 1 <= piece.threshold < 2**32
    assert counts.sum() == 2**32 and counts.max() - counts.min() <= 1 and counts.max() <= -(-(2**32) // piece.near)
    assert (counts == counts[::-1]).all()  # so that the mean is exactly in the middle
    assert Fraction(piece.peak, piece.base) <= Fraction(exp_bounds(Fraction(epsilon))[0], 1 << 192)


@pytest.mark.parametrize("epsilon", [0.5, 4.0, 16.0])
def test_draws_have_the_weights_that_are_stated(epsilon: float) -> None:
    """Words where an output of the near piece begins and ends: as many lead to it as `counts` says."""
    piece = pieces(epsilon)
    ends = np.cumsum(piece.counts())
    for word, output in ((ends[:-1] - 1, np.arange(piece.near - 1)), (ends[:-1], np.arange(1, piece.near))):
        words = np.stack([np.zeros_like(word), word], axis=1).reshape(1, -1).astype(np.uint32)
        found = _draw(np.zeros((1, word.size), np.float32), words, piece)[0]
        assert (found == output - piece.near // 2).all()
    edges = np.array([piece.threshold, 0, piece.threshold, 2**32 - 1, piece.threshold - 1, 0], np.uint32)[None]
    found = _draw(np.zeros((1, 3), np.float32), edges, piece)[0]
    assert found.tolist() == [-(2**15), 2**15 - 1, -piece.near // 2]


@pytest.mark.parametrize(("first", "second"), [(0.2, -0.2), (1.0, -1.0), (0.0, 1e-3), (0.0, 2.0**-149)])
def test_one_input_can_say_all_that_another_can(first: float, second: float) -> None:
    """4 million draws at epsilon 1 show every output of both inputs, 39 times or more on average.

    One is missing by chance with probability 2 * 65536 * e^-39 = 2e-12. Of 32-bit floats 0.2 % would differ.
    """
    mechanism, n = Piecewise(1.0), 2**22
    said = [np.unique(mechanism.randomize(np.full((1, n), x), stream(seed=k)).output.array) for k, x in
            enumerate((first, second))]  # fmt: skip
    assert all(np.array_equal(outputs, np.arange(-(2**15), 2**15)) for outputs in said)


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
    drawn = mechanism.estimate(mechanism.randomize(np.full((1, n), x), stream()).output)[0].astype(np.float64)
    c = (math.exp(epsilon / 2) + 1) / (math.exp(epsilon / 2) - 1)
    assert np.abs(drawn).max() <= c * (1 + 3e-4)
    edges = np.linspace(-c, c, 41)
    counts = np.histogram(drawn, edges)[0]
    fine = np.linspace(-c, c, 40 * 500 + 1)
    middle = (fine[1:] + fine[:-1]) / 2
    p = density(epsilon, x, middle).reshape(40, 500).sum(axis=1) * (2 * c / 20_000)
    assert (np.abs(counts - n * p) <= 6 * np.sqrt(n * p) + n * 2 * c / 20_000).all()


@settings(max_examples=40)
@given(st.floats(1e-3, 22), st.floats(-1, 1))
def test_mean_and_variance_are_those_of_the_weights(epsilon: float, x: float) -> None:
    mechanism = Piecewise(epsilon, Box(3.0, 2.0))
    value = np.array([[3.0 + 2.0 * x]])
    t = int(mechanism.on_grid(value)[0, 0])
    assert abs(t - x * mechanism.pieces[0].m) <= 0.51
    law = np.array(weights(mechanism.pieces[0], t), np.float64) / 2.0**64
    every = np.arange(-(2**15), 2**15)[None]
    estimates = mechanism.estimate(IntegerOutput(every, *mechanism.limits(1, 1)))[0].astype(np.float64)
    mean = float(law @ estimates)
    spread = float(law @ (estimates - mean) ** 2)
    assert mean - value[0, 0] == pytest.approx(mechanism.bias(value)[0, 0], abs=1e-6 * math.sqrt(spread) + 1e-6)
    assert abs(mechanism.bias(value)[0, 0]) <= 2 * (2.0**-15 + 1e-6)
    assert mechanism.variance(value)[0, 0] == pytest.approx(spread, rel=1e-5)


@pytest.mark.parametrize(("epsilon", "off"), [(1e-4, 1e-4), (0.1, 2e-5), (1.0, 2e-5), (4.0, 3e-4), (10.0, 4e-3)])
def test_the_variance_is_close_to_the_papers(epsilon: float, off: float) -> None:
    z = np.array([[0.0, 0.5, 1.0]])
    less = math.expm1(epsilon / 2)
    assert Piecewise(epsilon).variance(z) == pytest.approx(z**2 / less + (less + 4) / (3 * less**2), rel=off)


def test_less_variance_than_two_points_from_1_29_up_at_the_worst_input() -> None:
    ends = np.array([[1.0]])
    for epsilon, better in ((1.2, False), (1.35, True), (4.0, True)):
        worst_two = TwoPoint(epsilon).variance(np.zeros((1, 1)))[0, 0]
        assert bool(Piecewise(epsilon).variance(ends)[0, 0] < worst_two) is better


def test_a_value_takes_two_bytes() -> None:
    mechanism = Piecewise([1.0, 3.0])
    sent = mechanism.encode(mechanism.randomize(np.zeros((2, 650)), stream(2)).output)
    assert [len(report) for report in sent] == [1300, 1300]


def test_epsilon_is_per_value_and_counted() -> None:
    mechanism = Piecewise([1.0, 3.0])
    assert accountant.epsilon(mechanism.guarantee(values=10, client=1).loss) == pytest.approx(30.0)
    one = mechanism.guarantee(Adjacency.COORDINATE, values=10, client=1)
    assert accountant.epsilon(one.loss) == 3.0
    assert str(pieces(3.0).peak) in one.basis and "real arithmetic" not in one.basis

"""Laws are exact: they have the probabilities of tables, and scores made with them are standard normal numbers."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from tests.mechanisms.exact import probability

from sordino.mechanisms import (
    BitRandomizer,
    BitString,
    Box,
    Exponential,
    FiniteSet,
    Gaussian,
    IntegerRange,
    L1Ball,
    Laplace,
    Piecewise,
    PrivUnitG,
    RandomizedLabel,
    RandomizedSign,
    TwoPoint,
)
from sordino.mechanisms.cases import DEEP
from sordino.mechanisms.laws import Atoms, EvenWords, TableLaw, TwoSided
from sordino.randomness import Keystream

VALUES = 14
MECHANISMS = {
    "two-point": TwoPoint(1.0, Box(0.25, 2.0)),
    "sign": RandomizedSign.gaussian(2.0, Box()),
    "bits": BitRandomizer.theorem2(1.0, BitString(VALUES), a=2.0),
    "label": RandomizedLabel(1.0, FiniteSet(5)),
    "laplace": Laplace(1.0, Box(0.5, 1.0)),
    "laplace, ball": Laplace(1.0, L1Ball(1.0)),
    "gaussian, table": Gaussian(0.7, Box()),
    "gaussian, levels": Gaussian(7.5, Box()),
    "exponential": Exponential(0.5, IntegerRange(2.0, 0)),
    "piecewise": Piecewise(2.0, Box(0.25, 2.0)),
    "privunit": PrivUnitG(4.0),
}


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_scores_of_the_real_mechanism_are_standard_normal(name):
    """20,000 draws of each of 14 values, at seed 3; each p-value is below 1e-5 with that probability."""
    mechanism = MECHANISMS[name]
    x = mechanism.domain.probe(VALUES)
    rows = np.arange(20_000)
    output = mechanism.randomize(np.broadcast_to(x, (rows.size, VALUES)), Keystream.simulation(3, rows, 1)).output
    outputs = output.numbers()
    exact = mechanism.law(x)
    z = exact.scores(outputs, np.random.default_rng(1))
    assert exact.possible(outputs).all()
    for column in z.T:
        assert stats.kstest(column, "norm").pvalue > 1e-5


@pytest.mark.parametrize(
    "name", [name for name in MECHANISMS if name not in ("laplace, ball", "gaussian, levels", "privunit")]
)
def test_the_probabilities_of_all_outputs_add_up_to_one(name):
    mechanism = MECHANISMS[name]
    exact = mechanism.law(mechanism.domain.probe(VALUES))
    if isinstance(exact, Atoms):
        every = np.arange(len(exact.probabilities))
    else:
        every = np.arange(-exact.limit, exact.limit + 1)
    below, mass = exact.interval(np.broadcast_to(every[:, None], (every.size, VALUES)))
    assert mass.sum(axis=0) == pytest.approx(np.ones(VALUES), abs=1e-12)
    assert below[1:] == pytest.approx(np.cumsum(mass, axis=0)[:-1], abs=1e-9)


def test_a_tables_law_has_the_exact_weights_of_the_noise():
    mechanism = Laplace(1.0, L1Ball(1.0))
    grid = mechanism.grid(4)
    exact = mechanism.law(np.zeros(4, np.float32))
    assert isinstance(exact, TableLaw)
    for k in (-9000, -33, -1, 0, 1, 32, 10_000):
        assert exact.interval(np.full((1, 4), k))[1][0, 0] == pytest.approx(
            float(probability(grid.noise, k)), rel=1e-12
        )


@given(centre=st.integers(-6, 6), limit=st.integers(6, 12), rate=st.fractions(Fraction(1, 50), Fraction(3)).map(float))
@settings(max_examples=40, deadline=None)
def test_the_two_sided_law_is_the_exponential_mechanism(centre, limit, rate):
    every = np.arange(-limit, limit + 1)
    weights = np.exp(-rate * np.abs(every - centre))
    _, mass = TwoSided(np.array([centre]), limit, rate).interval(every[:, None])
    assert mass[:, 0] == pytest.approx(weights / weights.sum(), rel=1e-9)


def test_outputs_that_exclude_an_input_are_impossible():
    never = Atoms.bits(np.array([0.5, 0.0]))
    assert not never.possible(np.zeros((1, 2), np.uint8)).any()
    words = EvenWords(np.zeros(2, np.int64), 255)
    assert words.possible(np.array([[0, 255]])).all()
    assert not words.possible(np.array([[256, 1.5]])).any()
    weights = np.full(21, 1 / 21)
    table = TableLaw(np.zeros(1, np.int64), limit=8, first=-10, weights=weights, span=6)  # from 3 it reaches down to -7
    assert table.possible(np.array([[7], [8]])).ravel().tolist() == [True, False]


def test_the_auditors_inputs_leave_the_domain():
    assert np.abs(Laplace(1.0, Box()).domain.probe(DEEP[1])).max() > 100
    assert np.linalg.norm(Gaussian(1.0).domain.probe(DEEP[1])) > 100

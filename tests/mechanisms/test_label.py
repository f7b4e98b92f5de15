"""k-ary randomised response: the exact ratio over all labels, and unbiased frequencies."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from catalogue import stream
from hypothesis import given
from hypothesis import strategies as st

from sordino.errors import InvalidInput
from sordino.mechanisms import FiniteSet, RandomizedLabel
from sordino.mechanisms.integers import exp_bounds
from sordino.privacy import accountant
from sordino.privacy.guarantee import Adjacency
from sordino.randomness import Words

ONE = 2**32


class Words2:
    """Randomness with a given first word (keep or not) and second word (which other) for every value."""

    clients = 1

    def __init__(self, first: list[int], second: list[int]) -> None:
        self.pairs = np.stack([np.array(first, np.uint32), np.array(second, np.uint32)], axis=1).reshape(1, -1)

    def words(self, rows: np.ndarray, purpose: int, tensor: int, first: int, count: int) -> Words:
        return self.pairs[:, first : first + count]


def law(mechanism: RandomizedLabel) -> tuple[Fraction, list[Fraction]]:
    """Pr[kept] and Pr[each shift 1 .. k-1], counted: where the choice of the other label jumps, by bisection."""
    k = mechanism.domain.size

    def said(first: int, second: int) -> int:
        return int(mechanism.randomize(np.zeros((1, 1), int), Words2([first], [second])).output.array[0, 0])

    keep = _last(lambda u: said(u, 0) == 0) + 1
    ends = [_last(lambda u, j=j: said(ONE - 1, u) <= j) for j in range(1, k)]
    counts = np.diff([-1, *ends]).tolist()
    assert sum(counts) == ONE
    return Fraction(keep, ONE), [Fraction(ONE - keep, ONE) * Fraction(c, ONE) for c in counts]


def _last(holds: object) -> int:
    """The last word for which a condition, true from 0 up to somewhere, still holds."""
    low, high = 0, ONE
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if holds(middle) else (low, middle)  # type: ignore[operator]
    return low


@pytest.mark.parametrize("size", [2, 3, 10, 100])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 5.0, 15.0])
def test_the_exact_ratio_over_all_labels_is_at_most_exp_epsilon_and_tight(size: int, epsilon: float) -> None:
    mechanism = RandomizedLabel(epsilon, FiniteSet(size))
    kept, others = law(mechanism)
    assert kept + sum(others) == 1
    ratio = max(kept, *others) / min(kept, *others)
    assert ratio <= Fraction(exp_bounds(Fraction(epsilon), 256)[0], 1 << 256)
    proven = accountant.epsilon(mechanism.guarantee().loss)
    with mpmath.workdps(40):
        true = mpmath.log(mpmath.mpf(ratio.numerator) / ratio.denominator)
        assert abs(true - proven) <= 1e-9
    assert epsilon * (1 - 1e-3) <= proven <= epsilon


@given(st.floats(0.05, 20), st.integers(2, 2000))
def test_proven_never_exceeds_what_was_asked(epsilon: float, size: int) -> None:
    assert accountant.epsilon(RandomizedLabel(epsilon, FiniteSet(size)).guarantee().loss) <= epsilon


def test_every_label_is_kept_or_replaced_by_any_other_with_equal_chance() -> None:
    """10 labels, 100,000 draws each, every count within 6 standard deviations: false alarm 2e-7."""
    mechanism, n = RandomizedLabel(1.5, FiniteSet(10)), 100_000
    p = math.exp(1.5) / (math.exp(1.5) + 9)
    for label in (0, 4, 9):
        drawn = mechanism.randomize(np.full((1, n), label), stream()).output.array[0]
        counts = np.bincount(drawn, minlength=10)
        for y in range(10):
            chance = p if y == label else (1 - p) / 9
            assert abs(counts[y] - n * chance) <= 6 * math.sqrt(n * chance * (1 - chance))


def test_frequencies_are_estimated_without_bias() -> None:
    """Frequencies (.5, .3, .2) of 60,000 labels within 6 standard errors: false alarm 1e-8."""
    mechanism, n = RandomizedLabel(1.0, FiniteSet(3)), 60_000
    labels = np.repeat([0, 1, 2], [n // 2, 3 * n // 10, n // 5])[None, :]
    estimate = mechanism.estimate(mechanism.randomize(labels, stream()).output)
    assert estimate.shape == (1, n, 3)
    error = np.sqrt(mechanism.variance(labels).sum(axis=1)) / n
    assert (np.abs(estimate.mean(axis=1) - [0.5, 0.3, 0.2]) <= 6 * error).all()
    assert estimate.sum(axis=2) == pytest.approx(np.ones((1, n)))


@pytest.mark.parametrize(("size", "epsilon"), [(3, 1.0), (10, 1.0), (1000, 0.01), (1000, 1.0)])
def test_the_bias_is_the_one_the_words_really_give(size: int, epsilon: float) -> None:
    """E[estimate] - truth of every entry, from the counted law; shifts move round the circle of labels."""
    mechanism = RandomizedLabel(epsilon, FiniteSet(size))
    p = Fraction(int(mechanism._keep[0]), ONE)
    q = (1 - p) / (size - 1)
    # shift j + 1 takes the words from ceil(j 2^32 / (k - 1)) to before the next
    ends = [-(-j * ONE // (size - 1)) for j in range(size)]
    chances = [p] + [(1 - p) * Fraction(b - a, ONE) for a, b in itertools.pairwise(ends)]
    expected = [float((c - q) / (p - q)) - (i == 0) for i, c in enumerate(chances)]
    bias = mechanism.bias(np.zeros((1, 1), int))[0, 0]
    assert np.abs(bias - expected).max() <= max((size - 1) / ONE, 1e-15)


def test_a_client_of_many_labels_pays_for_each() -> None:
    mechanism = RandomizedLabel([1.0, 2.0], FiniteSet(5))
    one = accountant.epsilon(mechanism.guarantee(client=1).loss)
    assert one == pytest.approx(2.0, rel=1e-6)
    assert accountant.epsilon(mechanism.guarantee(Adjacency.CLIENT, values=30, client=1).loss) == pytest.approx(
        30 * one
    )
    assert accountant.epsilon(mechanism.guarantee(Adjacency.RECORD_REPLACE, values=30, client=1).loss) == one
    with pytest.raises(InvalidInput, match="replacement"):
        mechanism.guarantee(Adjacency.RECORD_ADD_REMOVE)


@pytest.mark.parametrize("size", [0, 1, -3, 2.0, True, "10", None, 2**20 + 1])
def test_sets_that_are_none_are_refused(size: object) -> None:
    with pytest.raises(InvalidInput, match="finite set"):
        FiniteSet(size)  # type: ignore[arg-type]


def test_an_epsilon_that_leaves_no_signal_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no signal"):
        RandomizedLabel(1e-6, FiniteSet(2**20))


@pytest.mark.parametrize(
    "bad", [[[-1]], [[10]], [[0.0]], [[True]], [["a"]], [], [[]], [[[1]]], 3, [[1], [1, 2]], [[None]]]
)
def test_labels_that_are_none_are_refused(bad: object) -> None:
    with pytest.raises(InvalidInput):
        RandomizedLabel(1.0, FiniteSet(10)).randomize(bad, stream())

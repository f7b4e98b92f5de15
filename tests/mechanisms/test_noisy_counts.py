"""Noisy counts: their guarantee against the noise's exact law, their moments, and what is refused."""

from __future__ import annotations

import math

import numpy as np
import pytest

from sordino.errors import InvalidInput
from sordino.mechanisms.noisy_counts import BITS, MOST_RECORDS, RECORDS, NoisyCounts
from sordino.privacy import accountant
from sordino.privacy.guarantee import Adjacency, GaussianLoss
from sordino.randomness import Keystream

SIGMA = 2**BITS
TWO = NoisyCounts(2, 0, 40_000)


def hockey_stick(shift: int, epsilon: float) -> float:
    """delta(epsilon) between discrete Gaussian noise and the same noise `shift` steps on, by adding up its law."""
    k = np.arange(-8 * SIGMA, 8 * SIGMA + shift + 1, dtype=np.float64)
    first, second = np.exp(-(k**2) / (2 * SIGMA**2)), np.exp(-((k - shift) ** 2) / (2 * SIGMA**2))
    whole = np.exp(-(np.arange(-12 * SIGMA, 12 * SIGMA + 1, dtype=np.float64) ** 2) / (2 * SIGMA**2)).sum()
    return float(np.maximum(second - math.exp(epsilon) * first, 0).sum() / whole)


@pytest.mark.parametrize("epsilon", [0.1, 0.5])
def test_the_guarantee_is_the_enumerated_law_of_the_noise(epsilon: float) -> None:
    """One record more moves one count by its weight. The bound is above the law, and not by a part in a thousand."""
    loss = TWO.guarantee(Adjacency.RECORD_ADD_REMOVE).loss
    found, exact = accountant.delta(loss, epsilon), hockey_stick(TWO.weight, epsilon)
    assert exact <= found <= exact * 1.001


def test_an_exchange_changes_two_counts_and_each_amount_one_more() -> None:
    lengths = {}
    for amounts in (0, 1):
        counts = NoisyCounts(6, amounts, 1000)
        for adjacency in RECORDS:
            loss = counts.guarantee(adjacency).loss
            assert isinstance(loss, GaussianLoss)
            lengths[amounts, adjacency] = loss.mu * SIGMA / 1000
    added, exchanged = RECORDS
    squares = {key: length**2 for key, length in lengths.items()}
    assert squares == pytest.approx(
        {(0, added): 1.0, (0, exchanged): 2.0, (1, added): 2.0, (1, exchanged): 3.0}, rel=1e-9
    )


def test_nothing_is_said_of_a_whole_client() -> None:
    with pytest.raises(InvalidInput):
        TWO.guarantee(Adjacency.CLIENT)


@pytest.mark.parametrize(
    ("epsilon", "delta", "times", "amounts"), [(1.0, 1e-6, 4, 0), (0.1, 1e-5, 50, 1), (8, 1e-9, 1, 0)]
)
def test_a_target_is_kept_by_all_releases_together_and_used_up(
    epsilon: float, delta: float, times: int, amounts: int
) -> None:
    found = NoisyCounts.within(2, amounts, epsilon=epsilon, delta=delta, times=times)
    assert 0.995 * epsilon < found.epsilon(Adjacency.RECORD_ADD_REMOVE, delta, times) <= epsilon


def released(counts: NoisyCounts, sums: list[int], draws: int) -> np.ndarray:
    exact = np.array(sums, np.int64)
    return np.array([counts.randomize(exact, Keystream.simulation(3, [0], k)) for k in range(draws)])


def z_of_moments(found: np.ndarray, counts: NoisyCounts, sums: list[int]) -> float:
    """The largest z score of mean and variance, over all counts: above 5 by chance in one of 200,000 seeds."""
    noise, n = (found - np.array(sums)) / counts.noise.sigma, len(found)
    mean, square = noise.mean(axis=0) * math.sqrt(n), ((noise**2).mean(axis=0) - 1) * math.sqrt(n / 2)
    return float(np.abs([mean, square]).max())


def test_released_counts_are_unbiased_and_of_the_stated_variance() -> None:
    sums = [70 * TWO.weight, 0]
    found = released(TWO, sums, 3000)
    assert z_of_moments(found, TWO, sums) < 5
    assert z_of_moments(np.array(sums) + (found - np.array(sums)) // 2, TWO, sums) > 5, "half of the noise shows"
    bare = found.copy()
    bare[:, 1] = sums[1]
    assert z_of_moments(bare, TWO, sums) > 5, "a count without noise shows"


def test_one_bytes_string_is_one_report_and_others_are_refused() -> None:
    (found,) = released(TWO, [5 * TWO.weight, TWO.weight], 1)
    assert TWO.decode(TWO.encode(found)).tolist() == found.tolist()
    assert len(TWO.encode(found)) == 16
    for wrong in (b"", bytes(15), bytes(24), np.array([TWO.largest + 1, 0], "<i8").tobytes()):
        with pytest.raises(InvalidInput):
            TWO.decode(wrong)


def test_a_sum_beyond_the_most_records_is_cut() -> None:
    (found,) = released(TWO, [2 * MOST_RECORDS * TWO.weight, 0], 1)
    assert found[0] <= TWO.largest
    TWO.decode(TWO.encode(found))


@pytest.mark.parametrize(("cells", "amounts", "weight"), [(0, 0, 1), (2, -1, 1), (2, 0, 0), (2, 0, 17 * SIGMA)])
def test_counts_that_no_table_covers_are_refused(cells: int, amounts: int, weight: int) -> None:
    with pytest.raises(InvalidInput):
        NoisyCounts(cells, amounts, weight)

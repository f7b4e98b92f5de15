"""What is heard of private training is what it does, and listening changes nothing."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from sordino.audits.training import holds, keeps, neighbours, wiretap
from sordino.learning import draws, private_sgd
from sordino.learning.cohort import ClientData
from sordino.learning.optimizers import SGD
from sordino.learning.private_sgd import PrivateTraining
from sordino.privacy.guarantee import PoissonGaussian
from sordino.randomness import Keystream
from tests.cohorts import train_cohort

VALUES = 4 * 3 + 3
OWN = PrivateTraining(SGD(lr=0.1), clip=1.0, noise_multiplier=1.0, sampling_rate=0.5, expected_batch=2.0, steps=3)


def silos(count=2, records=6, seed=0):
    rng = np.random.default_rng(seed)
    x, y = rng.normal(size=(count, records, 4)).astype(np.float32), rng.integers(0, 3, (count, records))
    return [ClientData(torch.from_numpy(a), torch.from_numpy(b)) for a, b in zip(x, y, strict=True)]


def train(data, seed=1, round=1, own=OWN):
    torch.manual_seed(0)
    stream = Keystream.simulation(seed, np.arange(len(data)), round)
    return train_cohort(nn.Linear(4, 3), torch.zeros(VALUES), data, own, stream)


def test_listening_hears_every_step_and_changes_nothing():
    before = draws.poisson_samples, private_sgd.noisy_sums
    plain = train(silos()).parameters
    with wiretap() as heard:
        assert torch.equal(train(silos()).parameters, plain)
    assert (draws.poisson_samples, private_sgd.noisy_sums) == before
    keys = {(0, silo, step) for silo in range(2) for step in range(3)}
    assert set(heard.samples) == set(heard.sums) == set(heard.noise) == keys
    assert all(there.shape == (6,) for there in heard.samples.values())
    stream = Keystream.simulation(1, np.arange(2), 1)
    drawn = private_sgd.integer_noise(OWN, np.arange(2), stream, 2, VALUES)
    assert np.array_equal(heard.noise[0, 1, 2], drawn[1])


def test_the_dither_of_coarsening_is_not_heard_as_noise():
    coarse = replace(OWN, resolution=5, coarsening=3)
    with wiretap() as heard:
        train(silos(), own=coarse)
    drawn = private_sgd.integer_noise(coarse, np.arange(2), Keystream.simulation(1, np.arange(2), 1), 2, VALUES)
    assert np.array_equal(heard.noise[0, 1, 2], drawn[1])


def test_an_error_ends_the_listening():
    before = private_sgd.noisy_sums
    with pytest.raises(RuntimeError), wiretap():
        raise RuntimeError
    assert private_sgd.noisy_sums is before


def test_noise_rate_and_steps_are_held_against_the_guarantee():
    guarantee = OWN.guarantee(VALUES)
    assert keeps(OWN, VALUES, guarantee).p == 1
    for weaker in (
        replace(OWN, noise_multiplier=0.9),
        replace(OWN, sampling_rate=0.75),
        replace(OWN, steps=4),
    ):
        assert keeps(weaker, VALUES, guarantee).p == 0
    loss = guarantee.loss
    assert isinstance(loss, PoissonGaussian)
    grid = OWN.grid(VALUES)
    stated = replace(loss, sigma=loss.sigma * 1.001)
    assert holds(grid.noise.slack().sigma / grid.sensitivity, 0.5, 3, stated).p == 0


def test_a_record_moves_a_sum_by_the_clip_at_most_and_the_same_way_beside_others():
    heard = lambda data, seed, round: train(data, seed, round) and None  # noqa: E731
    assert neighbours(heard, silos(4, 5), OWN, VALUES).p == 1

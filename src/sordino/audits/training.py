"""Private training as a subject: what real DP-SGD samples, sums and adds, heard while it trains.

A wiretap listens to the functions that training calls, in every step of every silo, and changes nothing. Of a step it
hears which records were sampled, the exact sum of their whole-number gradients, and the sum with noise as it leaves.
So the noise, the sample and the bound of one record are each checked where they are used.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache, partial
from operator import itemgetter
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.audits.inspection import Subject
from sordino.audits.statistics import Check, Sample
from sordino.learning import draws, private_sgd
from sordino.learning.cohort import ClientData, CohortTrainer
from sordino.learning.optimizers import SGD
from sordino.learning.private_sgd import PrivateTraining
from sordino.mechanisms.laws import Atoms, Normal
from sordino.mechanisms.noise import DiscreteGaussian
from sordino.privacy.guarantee import Guarantee, PoissonGaussian
from sordino.randomness import Keystream, Purpose, Randomness, Rows, Words

SILOS, RECORDS, STEPS, ROUNDS = 30, 40, 4, 30
FEATURES, CLASSES = 24, 10
SHARES, SHARED_ROWS = 4, 2_000  #: silos whose noises add up, and sums
HUGE = 1e6  #: times as large: a record that moves a sum as far as it can
FEW, TWINS = 5, 8  #: records and silos, and rounds, that are computed with and without a record

Int64s = NDArray[np.int64]
Key = tuple[int, int, int]  #: round, silo, step
Tamper = Callable[[Randomness, tuple[int, int]], Randomness]  #: plants words in a stream: of a purpose and a tensor
Train = Callable[[Sequence[ClientData], int, int], None]  #: the silos' records, seed, round: one round of training


@dataclass
class Heard:
    """What private training did, by round, silo and step."""

    samples: dict[Key, NDArray[np.bool_]] = field(default_factory=dict)  #: `[records]` who was in a step's batch
    sums: dict[Key, Int64s] = field(default_factory=dict)  #: `[d]` before noise
    noise: dict[Key, Int64s] = field(default_factory=dict)  #: `[d]` what was added
    round: int = 0  #: that is being heard


@dataclass(frozen=True, eq=False)
class Planted:
    """Randomness in which one stream repeats a few words, from another one of them on in every row."""

    inner: Randomness
    stream: tuple[int, int]  #: purpose and tensor
    repeated: Words

    @property
    def clients(self) -> int:
        return self.inner.clients

    def words(self, rows: Rows, purpose: int, tensor: int, first: int, count: int) -> Words:
        if (purpose, tensor) != self.stream:
            return self.inner.words(rows, purpose, tensor, first, count)
        return np.stack([cycled(self.repeated, row + first, count) for row in rows])


def cycled(values: NDArray[Any], first: int, count: int) -> NDArray[Any]:
    """So many values from place `first` on, of these over and over again."""
    return values[(first + np.arange(count)) % len(values)]


@contextmanager
def wiretap(planted: Callable[[Randomness], Randomness] = lambda randomness: randomness) -> Iterator[Heard]:
    """Listen while the block runs: `with wiretap() as heard`; samples are drawn from `planted` randomness."""
    heard, sample, add_noise = Heard(), draws.poisson_samples, private_sgd.noisy_sums

    def poisson_samples(randomness: Randomness, row: int, step: int, records: int, rate: float) -> Rows:
        chosen = sample(planted(randomness), row, step, records, rate)
        there = np.zeros(records, np.bool_)
        there[chosen] = True
        heard.samples[heard.round, row, step] = there
        return chosen

    def noisy_sums(training: PrivateTraining, sums: Tensor, rows: Rows, randomness: Randomness, t: int) -> Tensor:
        noisy = add_noise(training, sums, rows, randomness, t)
        coarse = private_sgd.coarsened(sums, training.coarsening, rows, randomness, t)
        noise = (noisy - coarse).cpu().numpy()
        for row, total, added in zip(rows.tolist(), sums.cpu().numpy(), noise, strict=True):
            heard.sums[heard.round, row, t], heard.noise[heard.round, row, t] = total, added
        return noisy

    with patch.object(draws, "poisson_samples", poisson_samples), patch.object(private_sgd, "noisy_sums", noisy_sums):
        yield heard


# --- laws -------------------------------------------------------------------------------------------------------------


def noise_law(noise: DiscreteGaussian, values: int, shares: int = 1) -> Normal:
    """The law of the sum of so many silos' noises."""
    return Normal(np.zeros(values, np.int64), shares * noise.reach, noise.slack(shares).sigma)


def sample_law(rate: float, records: int) -> Atoms:
    """Every record by itself, with the rate in whole numbers out of 2^32."""
    return Atoms.bits(np.full(records, exact_threshold(rate) * 2.0**-32))


# --- checks without chance --------------------------------------------------------------------------------------------


def keeps(training: PrivateTraining, values: int, guarantee: Guarantee, shares: int = 1) -> Check:
    """Whether noise, clip, rate and steps are those of the guarantee."""
    assert isinstance(guarantee.loss, PoissonGaussian)
    grid = training.grid(values)
    sigma = grid.noise.slack(shares).sigma / grid.sensitivity
    return holds(sigma, training.sampling_rate, training.steps, guarantee.loss)


def holds(sigma: float, rate: float, steps: int, loss: PoissonGaussian) -> Check:
    """Whether noise over sensitivity, rate and steps are those of what was stated."""
    wrong = [
        f"{what} {found:.6g}, stated {stated:.6g}"
        for what, found, stated, bad in (
            ("noise over sensitivity", sigma, loss.sigma, sigma < loss.sigma * (1 - 1e-9)),
            ("sampling rate", rate, loss.q, Fraction(exact_threshold(rate), 2**32) > Fraction(loss.q)),
            ("steps", steps, loss.steps, steps > loss.steps),
        )
        if bad
    ]
    sees = "noise, sampling rate or steps that are not those of the guarantee, by any amount"
    return Check("guarantee", 0.0 if wrong else 1.0, sees, "; ".join(wrong))


def exact_threshold(rate: float) -> int:
    """How many of the 2^32 words sample a record at this rate, in exact arithmetic."""
    return math.floor(Fraction(rate) * 2**32)


def words_beside(threshold: int) -> Words:
    """The words right below a threshold and at it, the least and the largest."""
    return np.array([max(0, threshold - 1), min(threshold, 2**32 - 1), 0, 2**32 - 1], np.uint32)


def samples_exactly(sample: Callable[[Tamper], Iterable[tuple[int, NDArray[np.bool_]]]], rate: float) -> Check:
    """Whether who is sampled has words below the threshold of this rate, and nobody else has.

    `sample` plants words in the randomness of a draw, and gives every row's place with who was in it.
    """
    threshold = exact_threshold(rate)
    words = words_beside(threshold)
    found = list(sample(lambda inner, stream: Planted(inner, stream, words)))
    there = words.astype(np.int64) < threshold
    wrong = sum(not np.array_equal(row, cycled(there, first, row.size)) for first, row in found)
    where = f"{wrong} of {len(found)} samples" if wrong or not found else ""
    sees = f"records sampled by another threshold than {threshold:,}, by one of 2^32 words"
    return Check("sampling threshold", 0.0 if where else 1.0, sees, where)


def _batches(train: Train, silos: Sequence[ClientData], tamper: Tamper) -> Iterator[tuple[int, NDArray[np.bool_]]]:
    with wiretap(lambda inner: tamper(inner, (Purpose.ORDER, draws.Stream.SAMPLE))) as heard:
        train(silos, 1, 1)
    return ((row, there) for (_, row, _), there in heard.samples.items())


def neighbours(train: Train, silos: Sequence[ClientData], training: PrivateTraining, values: int) -> Check:
    """Whether the last record of every silo moves the first step's sum by at most the clip, whatever the others are.

    The same round with and without it, beside a silo's own records and beside the next silo's. The way that it moves
    the sum must be the same whole numbers both times. It is made far larger than the others.
    """
    clip = training.grid(values).clip
    own = [_moved(train, others, silos) for others in (silos, [*silos[1:], silos[0]])]
    far = max(int(np.square(way.astype(object)).sum()) for way in own[0])
    changed = sum(not np.array_equal(*pair) for pair in zip(*own, strict=True))
    where = [f"squared length {far:,} of at most {clip**2:,}"] if far > clip**2 else []
    where += [f"{changed} of {len(own[0])} contributions change with the other records"] if changed else []
    sees = "one record that moves a sum further than its bound, or differently beside others, by a single grid step"
    return Check("neighbours", 0.0 if where else 1.0, sees, "; ".join(where))


def _moved(train: Train, others: Sequence[ClientData], silos: Sequence[ClientData]) -> list[Int64s]:
    """How each silo's last record moves sums over the others' records."""
    pairs = list(zip(others, silos, strict=True))
    there = [ClientData(torch.cat([a.x[:-1], b.x[-1:] * HUGE]), torch.cat([a.y[:-1], b.y[-1:]])) for a, b in pairs]
    gone = [ClientData(own.x[:-1], own.y[:-1]) for own in others]
    more, fewer = (_listen(train, data, TWINS, 1).sums for data in (there, gone))
    return [more[key] - fewer[key] for key in sorted(more) if key[2] == 0]


# --- subjects ---------------------------------------------------------------------------------------------------------


def subjects(
    training: PrivateTraining,
    values: int,
    guarantee: Guarantee,
    silos: Sequence[ClientData],
    rounds: int,
    train: tuple[Train, Train],
) -> list[Subject]:
    """The noise and the samples of some rounds of DP-SGD; of `train`, the second computes one record at a time."""
    heard = lru_cache(maxsize=1)(partial(_listen, train[0], silos, rounds))
    rows = len(silos) * rounds * training.steps
    fewest = min(map(len, silos))
    few = [ClientData(own.x[:FEW], own.y[:FEW]) for own in silos[:FEW]]
    exact = partial(keeps, training, values, guarantee), partial(neighbours, train[1], few, training, values)
    strides = training.steps, training.steps * len(silos)  # the next silo, the next round

    def noise(seed: int) -> Sample:
        found = np.stack([added for _, added in sorted(heard(seed).noise.items(), key=itemgetter(0))])
        return Sample(found, noise_law(training.grid(values).noise, values), strides=strides)

    def samples(seed: int) -> Sample:
        ordered = sorted(heard(seed).samples.items(), key=itemgetter(0))
        found = np.stack([there[:fewest] for _, there in ordered]).astype(np.uint8)
        return Sample(found, sample_law(training.sampling_rate, fewest), strides=strides)

    found = [Subject("DP-SGD, noise", (rows, values), noise, exact)]
    if training.sampling_rate < 1:
        assert isinstance(guarantee.loss, PoissonGaussian)
        whole = (partial(samples_exactly, partial(_batches, train[1], few), guarantee.loss.q),)
        found.append(Subject("DP-SGD, samples", (rows, fewest), samples, whole))
    return found


def _listen(train: Train, silos: Sequence[ClientData], rounds: int, seed: int) -> Heard:
    with wiretap() as heard:
        for heard.round in range(1, rounds + 1):
            train(silos, seed, heard.round)
    return heard


def shared(training: PrivateTraining, values: int, shares: int, rows: int, stated: Guarantee | None = None) -> Subject:
    """The noise of so many silos under a secure sum, and what was stated of it."""

    def draw(seed: int) -> Sample:
        clients = np.arange(rows * shares)
        stream = Keystream.simulation(seed, clients, 1)
        nothing = torch.zeros(clients.size, values, dtype=torch.int64)
        own = private_sgd.noisy_sums(training, nothing, clients, stream, 0).numpy()
        total = own.reshape(rows, shares, values).sum(axis=1)
        return Sample(total, noise_law(training.grid(values).noise, values, shares))

    exact = () if stated is None else (partial(keeps, training, values, stated, shares),)
    return Subject(f"DP-SGD, sums of {shares} silos' noise", (rows, values), draw, exact)


# --- a training of its own --------------------------------------------------------------------------------------------


def dp_sgd(rounds: int = ROUNDS, sums: int = SHARED_ROWS) -> list[Subject]:
    """DP-SGD of a linear model in some silos, and noise in shares."""
    training = PrivateTraining(
        SGD(lr=0.1), clip=1.0, noise_multiplier=1.0, sampling_rate=0.2, expected_batch=8.0, steps=STEPS
    )
    model = nn.Linear(FEATURES, CLASSES)
    values = FEATURES * CLASSES + CLASSES
    train = partial(_train, model, training, values)
    found = subjects(training, values, training.guarantee(values), _silos(), rounds, (train, train))
    return [*found, shared(training, values, SHARES, sums)]


def _silos() -> list[ClientData]:
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.normal(size=(SILOS, RECORDS, FEATURES)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, CLASSES, (SILOS, RECORDS)))
    return [ClientData(*pair) for pair in zip(x, y, strict=True)]


def _train(
    model: nn.Module, training: PrivateTraining, values: int, silos: Sequence[ClientData], seed: int, round: int
) -> None:
    stream = Keystream.simulation(seed, np.arange(len(silos)), round)
    CohortTrainer(model).train(torch.zeros(values), silos, training, stream)

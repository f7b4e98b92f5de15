"""Noisy counts: how many records are of each kind, with discrete Gaussian noise from the exact tables.

A record is in exactly one cell, to which it adds `weight` grid steps. It may add amounts besides, whole numbers of
steps from 0 to `weight`. The noise of every sum has 2^18 steps, so that the weight alone decides how much is revealed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.mechanisms.noise import FARTHEST, DiscreteGaussian, discrete_gaussian
from sordino.privacy import accountant
from sordino.privacy.guarantee import SERVER, Adjacency, GaussianLoss, Guarantee
from sordino.randomness import Purpose, Randomness

Counts = NDArray[np.int64]
RECORDS = Adjacency.RECORD_ADD_REMOVE, Adjacency.RECORD_REPLACE  #: what noisy counts protect

BITS = 18  #: the noise of one sum has 2^BITS steps
MOST_RECORDS = 1_000_000  #: of one client; a sum beyond is cut to that many


@dataclass(frozen=True)
class NoisyCounts:
    """Sums over one client's records: `cells` of which a record is in one, then `amounts` of 0 to `weight` steps."""

    cells: int
    amounts: int
    weight: int

    def __post_init__(self) -> None:
        farthest = math.floor(FARTHEST * 2**BITS)
        if self.cells < 1 or self.amounts < 0 or not 1 <= self.weight <= farthest:
            raise InvalidInput(
                f"counts have 1 cell or more and a weight from 1 to {farthest} steps; got {self.cells} cells, "
                f"{self.amounts} amounts and the weight {self.weight}"
            )

    @classmethod
    def within(cls, cells: int, amounts: int, *, epsilon: float, delta: float, times: int) -> NoisyCounts:
        """The counts with the least noise that stay within (epsilon, delta) when they are released `times` times.

        That is for adding or removing one record, as all other figures of a target are.
        """
        mu = accountant.mu_for(epsilon, delta) / math.sqrt(times * (1 + amounts))
        weight = min(math.floor(mu * 2**BITS), math.floor(FARTHEST * 2**BITS))
        while weight >= 1:
            found = cls(cells, amounts, weight)
            if found.epsilon(Adjacency.RECORD_ADD_REMOVE, delta, times) <= epsilon:
                return found
            weight = min(weight - 1, math.floor(weight * (1 - 1e-4)))  # what the tables lack of a Gaussian is paid for
        raise InvalidInput(
            f"epsilon {epsilon:g} at delta {delta:g} over {times} releases is finer than the noise tables resolve: "
            "raise the target's epsilon or delta, or evaluate less often"
        )

    @property
    def values(self) -> int:
        """How many numbers are released."""
        return self.cells + self.amounts

    @cached_property
    def noise(self) -> DiscreteGaussian:
        """The noise of every number."""
        return discrete_gaussian(BITS)

    @property
    def deviation(self) -> float:
        """The standard deviation of the noise in one count, in records."""
        return self.noise.sigma / self.weight

    @property
    def largest(self) -> int:
        """What a released number is at most, up to its sign."""
        return MOST_RECORDS * self.weight + self.noise.reach

    def guarantee(self, adjacency: Adjacency) -> Guarantee:
        """What one release of these counts tells of one record, against the server.

        A record that is added is in one cell. One that is exchanged, or the label of which changes, leaves one cell
        for another. Amounts stay within `weight` steps, so that they differ by so much at most.
        """
        if adjacency not in RECORDS:
            raise InvalidInput(f"noisy counts protect a record, not a {adjacency}: nothing is proven of a whole client")
        changed = self.amounts + (1 if adjacency is Adjacency.RECORD_ADD_REMOVE else 2)
        slack = self.noise.slack()
        mu = self.weight * math.sqrt(changed) / slack.sigma * (1 + 2.0**-50)  # rounded up
        loss = GaussianLoss(mu, eta=changed * slack.eta, tau=changed * slack.tau)
        basis = (
            f"noisy counts of records: {changed} of {self.values} change by {self.weight:,} steps at most; discrete "
            f"Gaussian noise of 2^{BITS} steps, table enumerated"
        )
        return Guarantee(SERVER, adjacency, loss, basis)

    def epsilon(self, adjacency: Adjacency, delta: float, times: int = 1) -> float:
        """The epsilon of so many releases together."""
        loss = self.guarantee(adjacency).loss
        return accountant.compose([loss] * times, adjacency=adjacency).epsilon(delta)

    def randomize(self, sums: Counts, randomness: Randomness) -> Counts:
        """`[d]` exact sums of one client, in steps, with noise; each is cut to what `MOST_RECORDS` records may add."""
        each, exact = self.noise.words_per_value, np.clip(sums, 0, MOST_RECORDS * self.weight)
        words = randomness.words(np.array([0]), Purpose.EVALUATION, 0, 0, self.values * each)
        return np.asarray(exact + self.noise.draw(words)[0], np.int64)

    def encode(self, released: Counts) -> bytes:
        """The bytes that are sent: eight for each number, the least significant first."""
        return released.astype("<i8").tobytes()

    def decode(self, body: bytes) -> Counts:
        """The numbers that `encode` wrote; anything else is refused."""
        if len(body) != 8 * self.values:
            raise InvalidInput(f"noisy counts have {8 * self.values} bytes, got {len(body)}")
        found = np.frombuffer(body, "<i8").astype(np.int64)
        if (found > self.largest).any() or (found < -self.noise.reach).any():
            raise InvalidInput(f"noisy counts lie from {-self.noise.reach} to {self.largest}, got {found.tolist()}")
        return found


__all__ = ["BITS", "MOST_RECORDS", "RECORDS", "NoisyCounts"]

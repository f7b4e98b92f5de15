"""Mechanisms as subjects: draws are checked against the mechanism's exact law, and the law against its guarantee.

Inputs lie at both ends of the domain, at its centre, in between, and far outside, so that missing clipping shows. Every
draw is encoded as it would be sent and decoded as the server does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from sordino.audits.inspection import Enumerated, Subject
from sordino.audits.statistics import Check, Sample
from sordino.errors import InvalidInput
from sordino.mechanisms.arrays import Numbers
from sordino.mechanisms.cases import DELTA, Specimen
from sordino.mechanisms.domain import Box
from sordino.mechanisms.gaussian import Gaussian
from sordino.mechanisms.interface import Mechanism, Randomized
from sordino.mechanisms.laws import Atoms, Law, Normal, TwoSided, Whole
from sordino.mechanisms.output import Output
from sordino.privacy import accountant
from sordino.privacy.guarantee import Guarantee
from sordino.randomness import Keystream, Randomness, Rows, Words

LARGEST_EPSILON = 600.0  #: e^600 is a float; no table's weights are so far apart

Streams = Callable[[int, NDArray[np.int64], int], Randomness]  #: seed, clients, round -> their randomness


class Randomizer(Protocol):
    """As much of a mechanism as draws: it may be broken."""

    def randomize(self, values: ArrayLike, randomness: Randomness) -> Randomized: ...
    def encode(self, output: Output) -> list[bytes]: ...
    def decode(self, reports: Sequence[bytes], values: int) -> Output: ...


def simulation(seed: int, clients: NDArray[np.int64], round: int) -> Randomness:
    """The randomness of simulated clients."""
    return Keystream.simulation(seed, clients, round)


class OneKeyEach:
    """A fresh key from the operating system for every client, as real ones draw it."""

    def __init__(self, clients: int) -> None:
        self._keys = [Keystream.fresh() for _ in range(clients)]

    @property
    def clients(self) -> int:
        return len(self._keys)

    def words(self, rows: Rows, purpose: int, tensor: int, first: int, count: int) -> Words:
        alone = np.zeros(1, np.intp)
        found: Words = np.concatenate([self._keys[row].words(alone, purpose, tensor, first, count) for row in rows])
        return found


def fresh(seed: int, clients: NDArray[np.int64], round: int) -> Randomness:
    """The randomness of real clients: no seed chooses it."""
    return OneKeyEach(len(clients))


def fresh_keys(streams: Streams = fresh) -> list[Subject]:
    """Two releases of every real client, each under a key of its own."""
    gaussian = Gaussian.analytic(1.0, DELTA, Box())
    return [subject(Specimen("fresh keys, gaussian", gaussian, (600, 257)), streams=streams)]


# --- guarantees -------------------------------------------------------------------------------------------------------


def keeps(mechanism: Mechanism, guarantee: Guarantee, ends: tuple[Numbers, Numbers], delta: float) -> Check:
    """Whether the law keeps the guarantee between two inputs that differ in one value: by enumeration, no chance.

    The draws are checked against the law, and the law against the guarantee.
    """
    epsilon = accountant.epsilon(guarantee.loss, delta, adjacency=guarantee.adjacency)
    first, second = exact_law(mechanism, ends[0]), exact_law(mechanism, ends[1])
    found = max(_excess(first, second, epsilon), _excess(second, first, epsilon))
    sees = f"more than delta {delta:.2g} beyond the proven epsilon {epsilon:.4g}, between the two ends of one value"
    broken = found > delta * (1 + 1e-6) + 1e-12
    return Check("guarantee", 0.0 if broken else 1.0, sees, f"delta {found:.3g}" if broken else "")


def _excess(first: Law, second: Law, epsilon: float) -> float:
    """sum over outputs of max(0, P[y | first] - e^epsilon P[y | second]) in the value in which they differ."""
    match first, second:
        case Atoms(), Atoms():
            p, q = first.probabilities, second.probabilities
            return float(np.maximum(p - math.exp(min(epsilon, LARGEST_EPSILON)) * q, 0).sum(axis=0).max())
        case Normal(), Normal():
            mu = float(np.abs(first.centre - second.centre).max()) / first.sigma
            tail = special.log_ndtr(-mu / 2 - epsilon / mu) + epsilon
            return float(special.ndtr(mu / 2 - epsilon / mu) - np.exp(tail))
        case TwoSided(), TwoSided():  # the largest ratio is at one end, and all outputs beyond both centres have it
            apart = first.rate * float(np.abs(first.centre - second.centre).max())
            loss = apart + float(np.abs(np.log(first.total()) - np.log(second.total())).max())
            return max(0.0, -math.expm1(epsilon * (1 + 1e-9) - loss)) / 2
        case Whole(), Whole():
            return _enumerated(first, second, math.exp(min(epsilon, LARGEST_EPSILON)) * (1 + 1e-9))
    raise InvalidInput("these two laws cannot be compared")


def _enumerated(first: Whole, second: Whole, factor: float) -> float:
    every = np.arange(-first.limit, first.limit + 1)[:, None]
    column = int(np.argmax(first.centre != second.centre))
    masses = [replace(one, centre=one.centre[column : column + 1]).interval(every)[1] for one in (first, second)]
    return float(np.maximum(masses[0] - factor * masses[1], 0).sum())


# --- subjects ---------------------------------------------------------------------------------------------------------


def subject(specimen: Specimen, drawn: Randomizer | None = None, streams: Streams = simulation) -> Subject:
    """Draws of a specimen, or of `drawn` in its place, under the specimen's law: the same, unless it is broken."""
    honest, shape, enumerated = specimen.mechanism, specimen.shape, tuple[Enumerated, ...]()
    if specimen.guarantee is not None:
        ends = honest.domain.neighbours(shape[1])
        enumerated = (partial(keeps, honest, specimen.guarantee, ends, specimen.delta),)
    return Subject(specimen.name, shape, partial(_draw, drawn or honest, honest, shape, streams), enumerated)


def _draw(mechanism: Randomizer, honest: Mechanism, shape: tuple[int, int], streams: Streams, seed: int) -> Sample:
    """Half of the rows in one round, half in the next, of the same clients."""
    n, d = shape
    x = honest.domain.probe(d)
    outputs, lengths = [], set()
    for round, rows in enumerate((n - n // 2, n // 2)):
        values = np.broadcast_to(x, (rows, d))
        sent = mechanism.encode(mechanism.randomize(values, streams(seed, np.arange(rows), round)).output)
        lengths |= {len(report) for report in sent}
        outputs.append(mechanism.decode(sent, d).numbers() if len(lengths) == 1 else np.zeros((rows, d)))
    return Sample(np.concatenate(outputs), exact_law(honest, x), frozenset(lengths), (n - n // 2,))


def subjects(mechanism: type[Mechanism], epsilon: float) -> list[Subject]:
    """All specimens of a mechanism at this strength."""
    return [subject(one) for one in mechanism.specimens(float(epsilon))]


def exact_law(mechanism: Mechanism, values: Numbers) -> Law:
    """The mechanism's own law; refused where it knows none."""
    law = mechanism.law(values)
    if law is None:
        raise InvalidInput(f"the exact law of {mechanism!r} is not known: give the mechanism a method `law`")
    return law

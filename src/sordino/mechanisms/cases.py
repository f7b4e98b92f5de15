"""What audits need of a mechanism: worst pairs of inputs to tell apart, and specimens to check against their exact law.

Each mechanism's file builds its own with the functions here; `sordino.audits` carries them out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sordino.mechanisms.arrays import Float64s, Numbers
from sordino.mechanisms.output import Output
from sordino.privacy import accountant
from sordino.privacy.guarantee import Adjacency, Adversary, Claim, Guarantee
from sordino.randomness import Keystream

if TYPE_CHECKING:
    from sordino.mechanisms.interface import Mechanism

Scores = Float64s
Points = tuple[tuple[float, float], ...]  #: (epsilon, delta) pairs that a proof gives
Sampler = Callable[[bool, int, int], Scores]
"""(which of the two worlds, trials, seed) -> the score of each trial; higher speaks for the first world."""

DELTA = 1e-5
DEEP = 6_000, 257  #: draws and values that show one coordinate at 0.9 of its noise
WIDE = 128, 65_601  #: beyond every block in which values are drawn together: shows a bare coordinate wherever it is
ENDS = "the two ends of the range"


@dataclass(frozen=True)
class Promise:
    """What is claimed and what is proven about a pair of worlds, and how an attack tells them apart."""

    mechanism: str
    unit: str
    adjacency: Adjacency
    adversary: Adversary
    claim: Claim | None
    proven: float
    delta: float
    basis: str
    attack: str
    curve: Points = ()  #: what else the proof says, at other deltas


@dataclass(frozen=True, kw_only=True)
class Case(Promise):
    """One pair of worlds to draw from and to tell apart, with what is claimed and what is proven about it."""

    sampler: Sampler
    most_trials: int = 10**9

    @classmethod
    def of(cls, promise: Promise, sampler: Sampler, most_trials: int = 10**9) -> Case:
        """The case of a promise that this sampler draws for."""
        return cls(**vars(promise), sampler=sampler, most_trials=most_trials)


@dataclass(frozen=True, eq=False)
class Specimen:
    """A mechanism to draw from: its draws are checked against its law, and its law against the guarantee."""

    name: str
    mechanism: Mechanism
    shape: tuple[int, int] = DEEP  #: draws and values of each
    guarantee: Guarantee | None = None  #: of two inputs that differ in one value; None: the law alone is checked
    delta: float = 0.0


# --- samplers ---------------------------------------------------------------------------------------------------------


def columns(
    mechanism: Mechanism, first: float, second: float, score: Callable[[Output], Scores] | None = None
) -> Sampler:
    """Each column one trial: the values of an upload are randomised independently. The score is the estimate itself."""

    def sample(world: bool, trials: int, seed: int) -> Scores:
        values = np.full((1, trials), first if world else second)
        output = mechanism.randomize(values, Keystream.simulation(seed, [0], int(world))).output
        return score(output) if score else np.asarray(mechanism.estimate(output)[0], dtype=np.float64)

    return sample


def rows(mechanism: Mechanism, first: Numbers, second: Numbers, weights: Numbers) -> Sampler:
    """Each row one trial of a vector mechanism; the score is a weighted sum of its estimates."""

    def sample(world: bool, trials: int, seed: int) -> Scores:
        values = np.tile(first if world else second, (trials, 1))
        randomness = Keystream.simulation(seed, np.arange(trials), int(world))
        return np.asarray(
            mechanism.estimate(mechanism.randomize(values, randomness).output) @ weights, dtype=np.float64
        )

    return sample


# --- cases and specimens ----------------------------------------------------------------------------------------------


def promised(
    name: str, unit: str, guarantee: Guarantee, attack: str, claim: Claim | None = None, delta: float = 0.0
) -> Promise:
    """What a guarantee proves at this delta, and what is claimed beside it."""
    proven = accountant.epsilon(guarantee.loss, delta)
    adjacency, adversary = guarantee.adjacency, guarantee.adversary
    return Promise(name, unit, adjacency, adversary, claim, proven, delta, guarantee.basis, attack)


def one_value(mechanism: Mechanism, *, delta: float = 0.0, name: str | None = None) -> Case:
    """One value of the box [-1, 1], at one end or the other."""
    guarantee = mechanism.guarantee(Adjacency.COORDINATE)
    told = promised(name or mechanism.name, "one value", guarantee, ENDS, mechanism.claim(), delta)
    return Case.of(told, columns(mechanism, 1.0, -1.0))


def upload(mechanism: Mechanism, values: int) -> Case:
    """Every value of an upload, at one end or the other."""
    ends, unit, attack = np.ones(values), f"upload of {values} values", "all values at one end or the other"
    guarantee, claim = mechanism.guarantee(values=values), mechanism.claim(values=values)
    return Case.of(
        promised(mechanism.name, unit, guarantee, attack, claim), rows(mechanism, ends, -ends, ends), 100_000
    )


def deep_and_wide(
    mechanism: Mechanism, guarantee: Guarantee | None = None, *, delta: float = 0.0, name: str | None = None
) -> Iterator[Specimen]:
    """Many draws of some values, and few draws of many values; the guarantee of one value unless another is given."""
    own = name or mechanism.name
    proven = guarantee or mechanism.guarantee(Adjacency.COORDINATE)
    yield Specimen(f"{own}, {DEEP[1]} values", mechanism, DEEP, proven, delta)
    yield Specimen(f"{own}, {WIDE[1]:,} values", mechanism, WIDE)


def specimen(name: str, mechanism: Mechanism, delta: float = 0.0) -> Specimen:
    """Many draws of some values, with the guarantee of one of them (of all, where the vector is clipped as a whole)."""
    unit = Adjacency.COORDINATE if mechanism.domain.by_value else Adjacency.CLIENT
    return Specimen(name, mechanism, DEEP, mechanism.guarantee(unit, values=DEEP[1]), delta)

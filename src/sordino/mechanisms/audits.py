"""The worst pair of inputs of every mechanism, for `sordino.privacy.audit`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.mechanisms import (
    BitRandomizer,
    BitString,
    Box,
    Exponential,
    FiniteSet,
    Gaussian,
    IntegerRange,
    L1Ball,
    L2Ball,
    Laplace,
    Mechanism,
    Piecewise,
    PrivUnitG,
    RandomizedLabel,
    RandomizedSign,
    TwoPoint,
)
from sordino.privacy import accountant, amplification
from sordino.privacy.audit import Case, Sampler, Scores
from sordino.privacy.guarantee import SERVER, Adjacency, Claim, Guarantee, shuffled
from sordino.randomness import Keystream

DELTA = 1e-5

# Trials of a single value are the columns of one upload: its values are randomised independently.


def _columns(mechanism: Mechanism, first: Any, second: Any, score: Callable[[Any], Scores] | None = None) -> Sampler:
    """Each column one trial of a scalar mechanism; by default the score is the estimate itself."""

    def sample(world: bool, trials: int, seed: int) -> Scores:
        values = np.full((1, trials), first if world else second)
        output = mechanism.randomize(values, Keystream.simulation(seed, [0], int(world))).output
        estimates = score(output) if score else np.asarray(mechanism.estimate(output)[0], dtype=np.float64)
        return np.asarray(estimates)

    return sample


def _rows(mechanism: Mechanism, first: Any, second: Any, weights: Any) -> Sampler:
    """Each row one trial of a vector mechanism; the score is a weighted sum of its estimates."""

    def sample(world: bool, trials: int, seed: int) -> Scores:
        values = np.tile(first if world else second, (trials, 1))
        randomness = Keystream.simulation(seed, np.arange(trials), int(world))
        return np.asarray(
            mechanism.estimate(mechanism.randomize(values, randomness).output) @ weights, dtype=np.float64
        )

    return sample


def _case(
    mechanism: Mechanism,
    unit: str,
    sampler: Sampler,
    guarantee: Guarantee,
    *,
    attack: str,
    claim: Claim | None = None,
    delta: float = 0.0,
    name: str | None = None,
    most_trials: int = 10**9,
) -> Case:
    return Case(
        mechanism=name or mechanism.name,
        unit=unit,
        adjacency=guarantee.adjacency,
        adversary=guarantee.adversary,
        claim=claim,
        proven=accountant.epsilon(guarantee.loss, delta),
        delta=delta,
        basis=guarantee.basis,
        attack=attack,
        sampler=sampler,
        most_trials=most_trials,
    )


ENDS = "the two ends of the range"


def _scalar(mechanism: Mechanism, reach: float = 1.0, *, delta: float = 0.0, name: str | None = None) -> Case:
    """One value of a box, at one end or the other."""
    guarantee = mechanism.guarantee(Adjacency.COORDINATE)
    return _case(
        mechanism, "one value", _columns(mechanism, reach, -reach), guarantee,
        attack=ENDS, claim=mechanism.claim(), delta=delta, name=name,
    )  # fmt: skip


def _upload(mechanism: Mechanism, values: int, *, name: str | None = None) -> Case:
    """Every value of an upload, at one end or the other."""
    ends = np.ones(values)
    return _case(
        mechanism, f"upload of {values} values", _rows(mechanism, ends, -ends, ends),
        mechanism.guarantee(values=values), attack="all values at one end or the other",
        claim=mechanism.claim(values=values), name=name, most_trials=100_000,
    )  # fmt: skip


def _two_point(epsilon: float) -> Iterator[Case]:
    mechanism = TwoPoint(epsilon, Box())
    yield _scalar(mechanism)
    yield _upload(mechanism, 100)
    yield _shuffled_upload(mechanism, clients=100, values=500)


def _shuffled_upload(mechanism: TwoPoint, *, clients: int, values: int) -> Case:
    """LDP-FL's own setting: the server sees per weight how many of n reports were +; the others are in mid-range."""

    def sample(world: bool, trials: int, seed: int) -> Scores:
        scores = np.empty(trials)
        others = np.zeros((clients, values))
        others[0] = 1.0 if world else -1.0
        for trial in range(trials):
            randomness = Keystream.simulation(seed, np.arange(clients), 2 * trial + world)
            scores[trial] = mechanism.estimate(mechanism.randomize(others, randomness).output).sum()
        return scores

    upper = amplification.shuffled_bits(mechanism.proven_epsilon(), clients, DELTA, values).upper
    return Case(
        mechanism=mechanism.name,
        unit=f"shuffled upload of {values} values",
        adjacency=Adjacency.CLIENT,
        adversary=shuffled(clients),
        claim=mechanism.shuffled_claim(clients),
        proven=upper,
        delta=DELTA,
        basis="trusted shuffler; dominating pair of Feldman, McMillan, Talwar 2023, composed numerically",
        attack="sum of the counts; one client at one end or the other",
        sampler=sample,
        most_trials=1_500,
    )


def _sign(epsilon: float) -> Iterator[Case]:
    yield _scalar(RandomizedSign.eq7(5 * epsilon, DELTA, Box()), name="sign (Eq. 7)")
    yield _scalar(RandomizedSign.response(epsilon, Box()), name="sign (response)")


def _laplace(epsilon: float) -> Iterator[Case]:
    yield _scalar(Laplace(epsilon, Box()))
    ball = Laplace(epsilon, L1Ball(1.0))
    corner = np.array([1.0, 0.0, 0.0, 0.0])
    yield _case(
        ball, "upload of 4 values", _rows(ball, corner, -corner, corner), ball.guarantee(values=4),
        attack="two corners of the L1 ball", claim=ball.claim(), name="laplace (L1 ball)", most_trials=200_000,
    )  # fmt: skip
    mean = Laplace(epsilon, Box(), records=100)
    yield _case(
        mean, "one value, 100 records", _columns(mean, 1.0, -1.0), mean.guarantee(Adjacency.RECORD_REPLACE),
        attack="the two ends: a learner that is a median of 100 records moves so far by one", claim=mean.claim(),
        name="laplace (2C/m)",
    )  # fmt: skip


def _gaussian(epsilon: float) -> Iterator[Case]:
    paper = Gaussian.eq4(epsilon, 1 / 500, sampling=0.8, rounds=10, domain=Box(0, 200.0))
    yield _case(
        paper, "one value, one round", _columns(paper, 200.0, -200.0), paper.guarantee(Adjacency.COORDINATE),
        attack=ENDS, claim=paper.claim(), delta=1 / 500, name="gaussian (Eq. 4)",
    )  # fmt: skip
    yield _scalar(Gaussian.analytic(epsilon, DELTA, Box()), delta=DELTA, name="gaussian (analytic)")
    ball = Gaussian.analytic(epsilon, DELTA, L2Ball(1.0), values=16)
    side = np.full(16, 0.25)
    yield _case(
        ball, "upload of 16 values", _rows(ball, side, -side, side), ball.guarantee(values=16),
        attack="opposite points of the ball", delta=DELTA, name="gaussian (L2 ball)", most_trials=100_000,
    )  # fmt: skip


def _exponential(epsilon: float) -> Iterator[Case]:
    domain = IntegerRange(1.0, 6)
    mechanism = Exponential(epsilon / domain.bound, domain)
    claim = Claim(2 * epsilon, 0.0, "alpha * 2c * 10^rho, as LDP-FL (section 5.2) reads LDP-Fed's alpha")
    yield _case(
        mechanism, "one value in 2,000,001", _columns(mechanism, 1.0, -1.0), mechanism.guarantee(Adjacency.COORDINATE),
        attack=ENDS, claim=claim,
    )  # fmt: skip


def _bits(epsilon: float) -> Iterator[Case]:
    paper = BitRandomizer.theorem2(epsilon / 2, BitString(10_240))
    for parity, position in (("even", 0), ("odd", 1)):
        yield _paper_bits(paper, np.array([position]), f"one bit, {parity}", Adjacency.COORDINATE)
    yield _paper_bits(paper, np.arange(10), "one feature of 10 bits", Adjacency.RECORD_REPLACE)
    yield _paper_bits(paper, np.arange(100), "100 of a record's 10,240 bits", Adjacency.RECORD_REPLACE)
    one_hot = BitString(16, one_hot=True)
    for mechanism in (
        BitRandomizer.rappor(epsilon, one_hot),
        BitRandomizer.optimised(epsilon, one_hot),
    ):
        yield _one_hot(mechanism)


def _paper_bits(paper: BitRandomizer, positions: NDArray[np.intp], unit: str, adjacency: Adjacency) -> Case:
    """Records that differ in these positions only, scored by the exact log-likelihood ratio of their bits.

    The other positions are equal in both worlds and independent: they tell nothing, and are left out of the draw.
    """
    p, q = paper.ones[positions], paper.zeros[positions]
    part = BitRandomizer(p, q, BitString(len(positions)), name=paper.variant)
    gain = np.log(p / q) - np.log((2**32 - p) / (2**32 - q))

    def sample(world: bool, trials: int, seed: int) -> Scores:
        bits = np.full((trials, len(positions)), world, dtype=np.uint8)
        output = part.randomize(bits, Keystream.simulation(seed, np.arange(trials), int(world))).output
        return np.asarray(output.bits() @ gain, dtype=np.float64)  # type: ignore[union-attr]

    guarantee = Guarantee(SERVER, adjacency, part.guarantee(Adjacency.RECORD_REPLACE).loss, "enumerated, bit by bit")
    return _case(
        part, unit, sample, guarantee,
        attack="exact log-likelihood ratio", claim=paper.claim(), name="bits (Theorem 2)", most_trials=200_000,
    )  # fmt: skip


def _one_hot(mechanism: BitRandomizer) -> Case:
    d = mechanism.domain.length
    first, second = np.eye(d, dtype=np.uint8)[0], np.eye(d, dtype=np.uint8)[1]
    weights = np.zeros(d)
    weights[0], weights[1] = 1.0, -1.0
    return _case(
        mechanism, f"one-hot code of {d} bits", _rows(mechanism, first, second, weights), mechanism.guarantee(),
        attack="two codes", name=f"bits ({mechanism.variant})", most_trials=200_000,
    )  # fmt: skip


def _label(epsilon: float) -> Iterator[Case]:
    mechanism = RandomizedLabel(epsilon, FiniteSet(10))
    score = lambda output: (output.array[0] == 3) * 1.0 - (output.array[0] == 7)  # noqa: E731
    yield _case(
        mechanism, "one label of 10", _columns(mechanism, 3, 7, score), mechanism.guarantee(), attack="two labels"
    )


def _piecewise(epsilon: float) -> Iterator[Case]:
    yield _scalar(Piecewise(epsilon, Box()))


def _privunit(epsilon: float) -> Iterator[Case]:
    mechanism = PrivUnitG(epsilon)
    north = np.eye(8)[0]
    yield _case(
        mechanism, "upload of 8 values", _rows(mechanism, north, -north, north), mechanism.guarantee(values=8),
        attack="opposite directions", claim=mechanism.claim(values=8), most_trials=40_000,
    )  # fmt: skip


CATALOGUE: dict[str, Callable[[float], Iterator[Case]]] = {
    "two-point": _two_point,
    "laplace": _laplace,
    "gaussian": _gaussian,
    "sign": _sign,
    "exponential": _exponential,
    "bits": _bits,
    "label": _label,
    "piecewise": _piecewise,
    "privunit": _privunit,
}


def cases(name: str, epsilon: float = 1.0) -> list[Case]:
    """All cases of one mechanism; `epsilon` sets its strength (the papers' own settings scale with it)."""
    if name not in CATALOGUE:
        raise InvalidInput(f"no mechanism {name!r} to audit; there are {', '.join(CATALOGUE)}")
    if isinstance(epsilon, bool) or not isinstance(epsilon, (int, float)) or not 0.01 <= epsilon <= 20:
        raise InvalidInput(f"an audit's epsilon lies between 0.01 and 20, got {epsilon!r}")
    return list(CATALOGUE[name](float(epsilon)))

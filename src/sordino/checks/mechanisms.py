"""Mechanisms as subjects: inputs that an auditor chose, the exact law of what must come out, and the guarantee's own.

Inputs lie at both ends of the domain, at its centre, in between, and far outside: whoever forgets to clip is seen.
Every draw is encoded as it would be sent and decoded as the server does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from sordino.checks.laws import Atoms, Caps, Float64s, Law, Normal, Pieces, Table, TwoSided, Whole
from sordino.checks.statistics import Draws, Look
from sordino.checks.subjects import Enumerated, Subject
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
    Sphere,
    TwoPoint,
    piecewise,
    privunit,
)
from sordino.mechanisms.additive import AdditiveNoise, Grid
from sordino.mechanisms.integers import HALF, ONE
from sordino.mechanisms.interface import Randomized
from sordino.mechanisms.noise import GeometricNoise
from sordino.mechanisms.output import BitOutput, IntegerOutput, Output
from sordino.privacy import accountant
from sordino.privacy.guarantee import Adjacency, Guarantee
from sordino.randomness import Keystream, Randomness, Rows, Words

DEEP = 6_000, 257  #: draws and values that show one coordinate at 0.9 of its noise
WIDE = 128, 65_601  #: beyond every block in which values are drawn together: shows a bare coordinate wherever it is
DELTA = 1e-5
FAR = 1000.0  #: times the radius: an input that must be clipped
LARGEST = 2**23  #: entries of a table
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
    return [subject("fresh keys, gaussian", Gaussian.analytic(1.0, DELTA, Box()), (600, 257), streams=streams)]


# --- inputs -----------------------------------------------------------------------------------------------------------


def inputs(mechanism: Mechanism, values: int) -> NDArray[Any]:
    """`[d]`: what the auditor lets be randomised."""
    places = np.arange(values)
    match domain := mechanism.domain:
        case Box():
            centre, radius = (
                np.broadcast_to(a, (values,)).astype(np.float64) for a in domain.columns(slice(0, values))
            )
            cycle = np.array([1.0, -1.0, 0.0, 0.5, FAR, -0.25, -FAR])
            return np.asarray(centre + radius * cycle[places % cycle.size], np.float32)
        case IntegerRange():
            cycle = np.array([1.0, -1.0, 0.0, 0.5, FAR, -0.25, -FAR])
            return np.asarray(domain.clip * cycle[places % cycle.size], np.float64)
        case L1Ball() | L2Ball() | Sphere():
            return np.asarray(domain.radius * FAR * np.array([1.0, 0.0, -1.0, 0.0])[places % 4], np.float32)
        case FiniteSet():
            return np.asarray(places % domain.size)
        case BitString() if domain.one_hot:
            return np.asarray(places == values // 3, np.uint8)
        case BitString():
            return np.asarray(places % 3 == 0, np.uint8)
    raise InvalidInput(f"there are no inputs to check {mechanism!r} with")


# --- laws -------------------------------------------------------------------------------------------------------------


def law(mechanism: Mechanism, x: NDArray[Any]) -> Law:
    """The exact law of the output for the input `x [d]`."""
    match mechanism:
        case TwoPoint() | RandomizedSign():
            return Atoms.bits(_ones(mechanism, x))
        case BitRandomizer():
            return Atoms.bits(np.where(x, mechanism.ones, mechanism.zeros) / ONE)
        case RandomizedLabel():
            return Atoms(_labels(mechanism, x))
        case Laplace() | Gaussian():
            return _additive(mechanism, x)
        case Exponential():
            bound = mechanism.domain.bound
            v = np.rint(np.clip(x * 10.0**mechanism.domain.precision, -bound, bound)).astype(np.int64)
            return TwoSided(v, bound, float(mechanism._noise[0].rate))
        case Piecewise():
            piece, t = mechanism.pieces[0], mechanism.on_grid(x[None])[0].astype(np.int64)
            return Pieces(t, piecewise.OUTPUTS // 2, piece.threshold / ONE, piece.counts())
        case PrivUnitG():
            cap, axis = privunit.best_cap(float(mechanism.epsilon[0])), x / np.linalg.norm(x.astype(np.float64))
            limit = int(mechanism.limits(x.size, 1)[1][0])
            return Caps(np.zeros(x.size, np.int64), limit, float(privunit.STEPS), axis, cap.p, cap.gamma)
    raise InvalidInput(f"the law of {mechanism!r} is not known here")


def _ones(mechanism: TwoPoint | RandomizedSign, x: NDArray[Any]) -> Float64s:
    """The probability of a one, from the very thresholds that words are compared with."""
    if isinstance(mechanism, RandomizedSign):
        return np.asarray((1 + mechanism.mean(x[None])[0]) / 2)
    centre, radius = (a.astype(np.float64) for a in mechanism.domain.columns(slice(0, x.size)))
    scale = 2 * HALF / float(HALF - int(mechanism.t_min[0]))
    return np.asarray(0.5 + (mechanism._mean(x[None])[1][0] - centre) / radius / scale)


def _labels(mechanism: RandomizedLabel, x: NDArray[Any]) -> Float64s:
    """`[size, d]`: the label itself, or another, which a second word chooses among the rest."""
    size = mechanism.domain.size
    keep = int(mechanism._keep[0]) / ONE
    edges = -(-np.arange(size) * ONE // (size - 1))
    share = np.concatenate([[0.0], np.diff(edges) / ONE])
    steps = (np.arange(size)[:, None] - x[None, :]) % size
    return np.where(steps == 0, keep, (1 - keep) * share[steps])


def _additive(mechanism: AdditiveNoise, x: NDArray[Any]) -> Law:
    grid = mechanism.grid(x.size)
    domain = mechanism.domain
    if isinstance(domain, Box):
        centre, radius = (a.astype(np.float64) for a in domain.columns(slice(0, x.size)))
        z = np.clip((x - centre) / radius, -1, 1)
    else:
        length = np.abs(x).sum() if isinstance(domain, L1Ball) else np.linalg.norm(x)
        z = x / max(float(length), domain.radius)
    v = np.rint(z * grid.steps) if isinstance(domain, Box) else np.trunc(z * grid.steps * (1 - 2.0**-40))
    return noise_law(grid, v.astype(np.int64))


def noise_law(grid: Grid, v: NDArray[np.int64]) -> Law:
    """Of noise on a grid, added to the whole numbers v."""
    noise = grid.noise
    if isinstance(noise, GeometricNoise):
        first, weights = _geometric(noise)
        return Table(v, grid.limit, first, weights, 2 * grid.steps)
    if noise.levels == 1:
        weights = np.array(noise.table.weights, np.float64) * 2.0**-64
        return Table(v, grid.limit, -noise.offset, weights, 2 * grid.steps)
    return Normal(v, grid.limit, noise.proven_sigma)


@lru_cache(maxsize=32)
def _geometric(noise: GeometricNoise) -> tuple[int, Float64s]:
    """The probabilities of all values, from the least up."""
    magnitude = np.ones(1)
    for digit in noise.digits:
        magnitude = np.outer(magnitude, np.array(digit.table.weights, np.float64) * 2.0**-64).ravel()
    if magnitude.size > LARGEST:
        raise InvalidInput(f"a table of {magnitude.size:,} values is too large to check: take fewer values")
    negative = noise.negative / ONE
    return -magnitude.size, np.concatenate([magnitude[::-1] * negative, magnitude * (1 - negative)])


# --- guarantees -------------------------------------------------------------------------------------------------------


def keeps(mechanism: Mechanism, guarantee: Guarantee, ends: tuple[NDArray[Any], NDArray[Any]], delta: float) -> Look:
    """Whether the law keeps the guarantee between two inputs that differ in one value: by enumeration, no chance.

    The draws are checked against the law, and the law against the guarantee.
    """
    epsilon = accountant.epsilon(guarantee.loss, delta, adjacency=guarantee.adjacency)
    first, second = law(mechanism, ends[0]), law(mechanism, ends[1])
    found = max(_excess(first, second, epsilon), _excess(second, first, epsilon))
    sees = f"more than delta {delta:.2g} beyond the proven epsilon {epsilon:.4g}, between the two ends of one value"
    broken = found > delta * (1 + 1e-6) + 1e-12
    return Look("guarantee", 0.0 if broken else 1.0, sees, f"delta {found:.3g}" if broken else "")


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


def ends(mechanism: Mechanism, values: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Two inputs that differ in the first value only, as far as the domain allows."""
    x = inputs(mechanism, values)
    if isinstance(mechanism.domain, L1Ball | L2Ball):
        x = np.zeros_like(x)
    first, second = x.copy(), x.copy()
    match domain := mechanism.domain:
        case Box() | IntegerRange():
            pass  # inputs begin with the two ends of the range
        case L1Ball() | L2Ball():
            first[0], second[0] = domain.radius, -domain.radius
            return first, second
        case FiniteSet():
            first[0], second[0] = 3 % domain.size, 7 % domain.size
            return first, second
        case BitString() if domain.one_hot:
            return np.eye(1, values, 0, dtype=np.uint8)[0], np.eye(1, values, 1, dtype=np.uint8)[0]
        case BitString():
            first[0], second[0] = 1, 0
            return first, second
    centre = float(np.broadcast_to(domain.centre, (values,))[0]) if isinstance(domain, Box) else 0.0
    second[0] = 2 * centre - first[0]
    return first, second


# --- subjects ---------------------------------------------------------------------------------------------------------


def subject(
    name: str,
    mechanism: Randomizer,
    shape: tuple[int, int] = DEEP,
    *,
    vouched: Mechanism | None = None,
    guarantee: Guarantee | None = None,
    delta: float = 0.0,
    streams: Streams = simulation,
) -> Subject:
    """A mechanism's draws under the law of the one that is `vouched` for: the same, unless it was broken."""
    honest = mechanism if vouched is None else vouched
    assert isinstance(honest, Mechanism)
    values = shape[1]
    enumerated: tuple[Enumerated, ...] = ()
    if guarantee is not None:
        enumerated = (partial(keeps, honest, guarantee, ends(honest, values), delta),)
    return Subject(name, shape, partial(_draw, mechanism, honest, shape, streams), enumerated)


def _draw(mechanism: Randomizer, honest: Mechanism, shape: tuple[int, int], streams: Streams, seed: int) -> Draws:
    """Half of the rows in one round, half in the next, of the same clients."""
    n, d = shape
    x = inputs(honest, d)
    outputs, lengths = [], set()
    for round, rows in enumerate((n - n // 2, n // 2)):
        values = np.broadcast_to(x, (rows, d))
        sent = mechanism.encode(mechanism.randomize(values, streams(seed, np.arange(rows), round)).output)
        lengths |= {len(report) for report in sent}
        outputs.append(numbers(mechanism.decode(sent, d)) if len(lengths) == 1 else np.zeros((rows, d)))
    return Draws(np.concatenate(outputs), law(honest, x), frozenset(lengths), (n - n // 2,))


def numbers(output: Output) -> NDArray[Any]:
    """Outputs as an array `[n, d]`."""
    if isinstance(output, BitOutput):
        return output.bits()
    return output.array.astype(np.int64) if isinstance(output, IntegerOutput) else output.array


def _one(mechanism: Mechanism) -> Guarantee:
    return mechanism.guarantee(Adjacency.COORDINATE)


def _both(name: str, mechanism: Mechanism, guarantee: Guarantee, delta: float = 0.0) -> list[Subject]:
    return [
        subject(f"{name}, {DEEP[1]} values", mechanism, DEEP, guarantee=guarantee, delta=delta),
        subject(f"{name}, {WIDE[1]:,} values", mechanism, WIDE),
    ]


def _two_point(epsilon: float) -> list[Subject]:
    mechanism = TwoPoint(epsilon, Box())
    return _both("two-point", mechanism, _one(mechanism))


def _sign(epsilon: float) -> list[Subject]:
    paper, response = RandomizedSign.eq7(5 * epsilon, DELTA, Box()), RandomizedSign.response(epsilon, Box())
    return [*_both("sign (Eq. 7)", paper, _one(paper)), subject("sign (response)", response, guarantee=_one(response))]


def _laplace(epsilon: float) -> list[Subject]:
    box, ball = Laplace(epsilon, Box()), Laplace(epsilon, L1Ball(1.0))
    mean = Laplace(epsilon, Box(), records=100)
    return [
        *_both("laplace", box, _one(box)),
        subject("laplace (L1 ball)", ball, guarantee=ball.guarantee(values=DEEP[1])),
        subject("laplace (2C/m)", mean, guarantee=_one(mean)),
    ]


def _gaussian(epsilon: float) -> list[Subject]:
    paper = Gaussian.eq4(epsilon, 1 / 500, sampling=0.8, rounds=10, domain=Box(0, 200.0))
    box = Gaussian.analytic(epsilon, DELTA, Box())
    ball = Gaussian.analytic(epsilon, DELTA, L2Ball(1.0), values=DEEP[1])
    return [
        *_both("gaussian (analytic)", box, _one(box), DELTA),
        subject("gaussian (Eq. 4)", paper, guarantee=_one(paper), delta=1 / 500),
        subject("gaussian (L2 ball)", ball, guarantee=ball.guarantee(values=DEEP[1]), delta=DELTA),
    ]


def _exponential(epsilon: float) -> list[Subject]:
    domain = IntegerRange(1.0, 6)
    mechanism = Exponential(epsilon / domain.bound, domain)
    return _both("exponential", mechanism, _one(mechanism))


def _bits(epsilon: float) -> list[Subject]:
    found = []
    for shape in (DEEP, WIDE):
        paper = BitRandomizer.theorem2(epsilon / 2, BitString(shape[1]))
        guarantee = _one(paper) if shape is DEEP else None
        found.append(subject(f"bits (Theorem 2), {shape[1]:,} bits", paper, shape, guarantee=guarantee))
    one_hot = BitString(16, one_hot=True)
    codes = BitRandomizer.rappor(epsilon, one_hot), BitRandomizer.optimised(epsilon, one_hot)
    return [*found, *(subject(f"bits ({code.variant})", code, (20_000, 16)) for code in codes)]


def _label(epsilon: float) -> list[Subject]:
    mechanism = RandomizedLabel(epsilon, FiniteSet(10))
    return _both("label", mechanism, mechanism.guarantee())


def _piecewise(epsilon: float) -> list[Subject]:
    mechanism = Piecewise(epsilon, Box())
    return _both("piecewise", mechanism, _one(mechanism))


def _privunit(epsilon: float) -> list[Subject]:
    """Nothing is proven of it: there is a law to check, and no guarantee."""
    mechanism = PrivUnitG(epsilon)
    return [subject(f"privunit, {shape[1]:,} values", mechanism, shape) for shape in (DEEP, WIDE)]


CATALOGUE: dict[str, Callable[[float], list[Subject]]] = {
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


def subjects(name: str, epsilon: float = 1.0) -> list[Subject]:
    """The subjects of one mechanism of the audit's catalogue."""
    return CATALOGUE[name](float(epsilon)) if name in CATALOGUE else []


__all__ = ["CATALOGUE", "DEEP", "WIDE", "ends", "inputs", "keeps", "law", "noise_law", "numbers", "subject", "subjects"]

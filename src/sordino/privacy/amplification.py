"""What a trusted shuffler adds to local guarantees: for statements, never for enforcement.

Shuffling is computed numerically from a dominating pair of distributions, in both directions, and composed over
coordinates by privacy loss distributions; see Feldman, McMillan & Talwar, "Hiding among the clones" (2021, FMT'21) and
"Stronger privacy amplification by shuffling" (2023, FMT'23). The general theorem of FMT'23 was withdrawn by its errata
and holds for a class of randomisers only. Randomised bits are in that class, by a direct argument given at
`shuffled_bits`; all other reports get the pair of FMT'21.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from sordino.errors import InvalidInput
from sordino.parts.lazy import lazy_module
from sordino.privacy.accountant import equal_bits_epsilon
from sordino.privacy.numerical import Floats, Sum, dots, means

if TYPE_CHECKING:
    from scipy import special
else:
    special = lazy_module("scipy.special")

SMALLEST_DELTA = 1e-18  #: below this, what is left out of the binomial distributions is not negligible

_CELLS = 400_000  #: cells of a composed distribution
_CROWDS = 400  #: numbers of clones told apart
_NEGLIGIBLE = -80.0  #: logarithm of a probability that is counted as lost rather than kept as an outcome
_HOPELESS_EPSILON = 700.0  #: beyond this, e^-epsilon is too small a number to compute with
_NO_HELP = 1e-12  #: up to this, losses are too close to 0 for a grid of them; no randomised bit has less than 9e-10
_ROUNDING = 2.0**-52


@dataclass(frozen=True)
class Interval:
    """Epsilon behind a shuffler: an attacker surely reaches `lower`; `upper` is proven. Both at the same delta."""

    lower: float
    upper: float


@dataclass(frozen=True)
class Pair:
    """Two worlds over the same outcomes, as log probabilities, and the mass left out of either.

    `rounding` bounds the errors of the log probabilities; their differences are known to about 1e-14.
    """

    first: Floats
    second: Floats
    lost: float = 0.0
    rounding: float = 0.0

    def reversed(self) -> Pair:
        """The same two worlds, told apart the other way round."""
        return Pair(self.second, self.first, self.lost, self.rounding)

    @property
    def losses(self) -> Floats:
        """Log ratio of the first world over the second, per outcome."""
        return self.first - self.second

    @property
    def masses(self) -> Floats:
        """Probability of each outcome in the first world."""
        return np.exp(self.first)

    def delta(self, epsilon: float) -> float:
        """Hockey-stick divergence of the first world from the second, with lost mass counted against privacy."""
        above = self.losses - epsilon
        gaining = above > 0
        return float(np.sum(self.masses[gaining] * -np.expm1(-above[gaining]))) * math.exp(self.rounding) + self.lost


# --- shuffling ------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def shuffled_bits(epsilon: float, n: int, delta: float, count: int = 1) -> Interval:
    """Epsilon of `count` randomised bits per client, each mixed among those of n clients by a trusted shuffler.

    Upper end: every other client's bit is uniform with probability 2 / (e^epsilon + 1), whatever its value, because
    both of its outcomes have at least probability 1 / (e^epsilon + 1). The uniform ones hide the client's own bit: that
    is the pair of FMT'23, and for bits it needs no more proof than this. Lower end: the exact distribution of the count
    when all others hold the same extreme value, which an attacker who knows that can reach.

    Each coordinate is shuffled on its own, so one client's bits add up over coordinates and rounds: `count` is the
    number of uploaded values times the rounds taken part in.
    """
    _check(epsilon, n, delta, count)
    if epsilon == 0:
        return Interval(0.0, 0.0)
    local = equal_bits_epsilon(epsilon, count, delta)
    if not _NO_HELP < epsilon <= _HOPELESS_EPSILON:
        return Interval(0.0, local)
    upper = min(local, _upper_epsilon(clone_pair(n, epsilon, 2 * float(special.expit(-epsilon))), delta, count))
    return Interval(min(upper, _lower_epsilon(count_pair(n, epsilon), delta, count)), upper)


def shuffled_reports(epsilon: float, n: int, delta: float, count: int = 1) -> float:
    """Proven epsilon of `count` reports per client, each epsilon-LDP and mixed among those of n clients.

    Holds for every pure randomiser: a report of another client is a clone of either of the two compared inputs with
    probability e^-epsilon (FMT'21, Theorem 3.1). Randomised bits have the better `shuffled_bits`.
    """
    _check(epsilon, n, delta, count)
    if epsilon == 0:
        return 0.0
    local = equal_bits_epsilon(epsilon, count, delta)
    if not _NO_HELP < epsilon <= _HOPELESS_EPSILON:
        return local
    return min(local, _upper_epsilon(clone_pair(n, epsilon, math.exp(-epsilon)), delta, count))


def clone_pair(n: int, epsilon: float, clone: float) -> Pair:
    """The pair (A + D, C - A + 1 - D) and (A + 1 - D, C - A + D).

    C ~ Bin(n - 1, clone) others are clones, A ~ Bin(C, 1/2) of them look like the first input, and the client's own
    report does with probability e^eps / (e^eps + 1), which is D. An outcome tells C; fewer clones hide less, so large
    crowds are rounded down to a few hundred values of C.
    """
    clones = _binomial(n - 1, clone)
    step = math.ceil(clones.log_masses.size / _CROWDS)
    first, second, lost, rounding = [], [], clones.lost, 0.0
    for start in range(0, clones.log_masses.size, step):
        weight = float(special.logsumexp(clones.log_masses[start : start + step]))
        halves = _binomial(clones.first + start, 0.5)
        lost += math.exp(weight) * halves.lost
        rounding = max(rounding, halves.rounding)
        one, other = _own_report(halves, epsilon)
        first.append(one + weight)
        second.append(other + weight)
    return Pair(np.concatenate(first), np.concatenate(second), lost, clones.rounding + rounding)


def count_pair(n: int, epsilon: float) -> Pair:
    """Number of ones among n randomised bits, when the client holds one or zero and all others hold zero.

    Outcomes that are kept have their exact probabilities: where the window is cut, that end goes too.
    """
    others = _binomial(n - 1, float(special.expit(-epsilon)))
    first, second = _own_report(others, epsilon)
    exact = slice(int(others.cut_below), first.size - int(others.cut_above))
    dropped = np.ones(first.size, dtype=bool)
    dropped[exact] = False
    lost = others.lost + float(np.sum(np.exp(np.maximum(first, second)[dropped])))
    return Pair(first[exact], second[exact], lost, others.rounding)


def _own_report(count: _Window, epsilon: float) -> tuple[Floats, Floats]:
    """Add the client's own one or zero, which is true with probability e^eps / (e^eps + 1), to a count a.

    Of the probabilities that a is k - 1 and k, the ratio is known exactly: k (1 - p) to (trials + 1 - k) p.
    """
    true, false = float(special.log_expit(epsilon)), float(special.log_expit(-epsilon))
    end = np.array([-np.inf])
    with_one, with_zero = np.concatenate([end, count.log_masses]), np.concatenate([count.log_masses, end])
    k = count.first + np.arange(with_one.size, dtype=np.float64)
    odds = np.zeros((2, k.size))  # of k - 1 and k; at the ends, one of them is not among the values kept
    odds[0, 1:], odds[1, :-1] = k[1:] * (1 - count.probability), (count.trials + 1 - k[:-1]) * count.probability
    with np.errstate(divide="ignore"):
        less, same = np.log(odds)
    losses = np.logaddexp(less + true, same + false) - np.logaddexp(less + false, same + true)
    first = np.logaddexp(with_one + true, with_zero + false)
    return first, first - losses


@dataclass(frozen=True)
class _Window:
    """Consecutive values of a binomial with their log probabilities, and a bound on the mass of all other values."""

    trials: int
    probability: float
    first: int
    log_masses: Floats
    lost: float
    cut_below: bool
    cut_above: bool

    @property
    def rounding(self) -> float:
        """A bound on the errors of the log probabilities."""
        return 8 * _ROUNDING * (float(special.gammaln(self.trials + 2)) + 100)


def _binomial(trials: int, probability: float) -> _Window:
    """All values whose probability is at least e^-80; by Bernstein they lie within 14 deviations and 60."""
    reach = 14 * math.sqrt(trials * probability * (1 - probability)) + 60
    low = max(0, math.floor(trials * probability - reach))
    high = min(trials, math.ceil(trials * probability + reach))
    k = np.arange(low, high + 1, dtype=np.float64)
    ways = special.gammaln(trials + 1) - special.gammaln(k + 1) - special.gammaln(trials - k + 1)
    log_masses = ways + special.xlogy(k, probability) + special.xlog1py(trials - k, -probability)
    kept = np.flatnonzero(log_masses > _NEGLIGIBLE)
    start, stop = int(kept[0]), int(kept[-1]) + 1
    below, above = low + start > 0, low + stop <= trials
    lost = (k.size - kept.size + 2) * math.exp(_NEGLIGIBLE) if below or above else 0.0
    return _Window(trials, probability, low + start, log_masses[start:stop], lost, below, above)


def _check(epsilon: float, n: int, delta: float, count: int) -> None:
    if not (math.isfinite(epsilon) and epsilon >= 0):
        raise InvalidInput(f"epsilon must be a finite number >= 0, got {epsilon!r}")
    if n < 1 or count < 1:
        raise InvalidInput(f"the number of clients and of reports must be at least 1, got n={n!r}, count={count!r}")
    if not SMALLEST_DELTA <= delta < 1:
        raise InvalidInput(
            f"delta must lie in [{SMALLEST_DELTA:g}, 1): below that the numerical bound is not valid, got {delta!r}"
        )


# --- composition of a pair ------------------------------------------------------------------------------------------


def _upper_epsilon(pair: Pair, delta: float, count: int) -> float:
    if count == 1:
        found = max(_one_way(way, delta) for way in (pair, pair.reversed()))
        return found + 1e-13 * (1 + found)
    return max(_summed(pair, count).epsilon(delta), _summed(pair.reversed(), count).epsilon(delta))


def _summed(pair: Pair, count: int) -> Sum:
    interval = _interval(pair, count)
    return Sum([(dots(pair.losses, pair.masses, interval, lost=pair.lost, rounding=pair.rounding), count)])


def _lower_epsilon(pair: Pair, delta: float, count: int) -> float:
    """Epsilon that the composed pair certainly exceeds at this delta, whichever way round is worse.

    Each log ratio is moved at random to a neighbouring grid point with its mean kept, so the total moves by at most
    `drift` except with probability `slip` (Hoeffding; the argument of Gopi, Lee & Wutschitz 2021).
    """
    if count == 1:
        return max(_reached(way, delta) for way in (pair, pair.reversed()))
    interval = _interval(pair, count)
    slip = delta / 1000
    drift = interval * math.sqrt(count * math.log(1 / slip) / 2)
    grids = [means(way.losses, way.masses, interval, rounding=way.rounding) for way in (pair, pair.reversed())]
    reached = max(Sum([(grid, count)]).reached(delta + slip) for grid in grids)
    return max(0.0, reached - drift)


def _reached(pair: Pair, delta: float) -> float:
    """Epsilon at which delta is not met yet: what was left out counts for nothing, and rounding against the attack."""
    exceeded = (delta + pair.lost * (1 + 1e-9)) * math.exp(2 * pair.rounding)
    return max(0.0, _one_way(pair, exceeded) - 1e-13 - 1e-12 * float(np.max(pair.losses)))


def _one_way(pair: Pair, delta: float) -> float:
    """Smallest epsilon >= 0 with pair.delta(epsilon) <= delta, exactly up to rounding."""
    if pair.delta(0.0) <= delta:
        return 0.0
    low, high = 0.0, float(np.max(pair.losses)) * (1 + 1e-12)
    if pair.delta(high) > delta:
        return math.inf
    while high - low > 1e-13 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if pair.delta(middle) <= delta else (middle, high)
    return high


def _interval(pair: Pair, count: int) -> float:
    """Coarse enough for the width of the composed distribution, fine enough for one step's log ratios."""
    spread = math.sqrt(float(np.sum(pair.masses * pair.losses**2)))
    return max((20 * spread * math.sqrt(count) + 4 * float(np.max(pair.losses))) / _CELLS, spread / 5000)

"""Audits with one training run (Steinke, Nasr, Jagielski, "Privacy auditing with one (1) training run", NeurIPS 2023).

Each of m canaries is put in or left out by a fair coin of its own. From what it sees of the one run, the adversary says
of some of them "in", of others "out", and nothing of the rest. If the run is (epsilon, delta)-private in every single
canary, then, whatever the adversary does,

    P[at least v of r guesses are right] <= f(v) + 2 m delta max_i (f(v - i) - f(v)) / i,
    f(v) = P[Binomial(r, e^epsilon / (1 + e^epsilon)) >= v],

the max over i = 1 .. m (their Theorem 5.2). An epsilon under which what happened is less likely than 5 % is too small:
the largest such epsilon is the bound.

How many guesses to make is fixed before the coins are looked at: here for three shares of the canaries, at a third of
the 5 % each, and the best of the three bounds counts.

The same guesses are put to a second test: whether they are at all likely under everything that is proven, which is a
whole curve of (epsilon, delta) pairs (`likelihood_under`). For Gaussian noise this tells far more than one point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit
from scipy.stats import binom

from sordino.audits.lower_bound import AuditRow, EpsilonBound
from sordino.errors import InvalidInput
from sordino.mechanisms.cases import Points, Promise

Scores = NDArray[np.float64]
Coins = NDArray[np.bool_]

TAIL = 0.05  #: how often a bound may lie above the truth
SHARES = (0.01, 0.05, 0.2)  #: of the canaries: how many of the highest are guessed in, and of the lowest out
UNBELIEVABLE = 0.01  #: what happens less often than this under a proof speaks against the proof
LEAST, MOST = 20, 200_000  #: numbers of canaries that make sense
_BEYOND = 300.0  #: an epsilon that no number of guesses can speak against


@dataclass(frozen=True)
class Guesses:
    """How many guesses were made about how many canaries, and how many of them were right."""

    canaries: int
    made: int
    right: int

    def __post_init__(self) -> None:
        if not 0 <= self.right <= self.made <= self.canaries:
            raise InvalidInput(
                f"of {self.canaries} canaries {self.made} were guessed, {self.right} of them right: each number must "
                "be at most the one before it"
            )

    @classmethod
    def of(cls, scores: Scores, present: Coins, share: float) -> Guesses:
        """The share with the highest scores is said to be in, that with the lowest to be out."""
        each = max(1, int(share * len(scores)))
        order = np.argsort(scores, kind="stable")
        right = int(np.count_nonzero(present[order[-each:]])) + int(np.count_nonzero(~present[order[:each]]))
        return cls(len(scores), 2 * each, right)

    def probability(self, epsilon: float, delta: float) -> float:
        """The most that so many right guesses, or more, can have under (epsilon, delta)."""
        p = float(expit(epsilon))
        enough = float(binom.sf(self.right - 1, self.made, p))
        if delta == 0 or self.right == 0:
            return enough
        just_below = np.cumsum(binom.pmf(np.arange(self.right - 1, -1, -1), self.made, p))
        steepest = float(np.max(just_below / np.arange(1, self.right + 1)))
        return min(1.0, enough + 2 * self.canaries * delta * steepest)

    def epsilon_bound(self, delta: float, tail: float = TAIL) -> float:
        """The largest epsilon that is refuted: what happened has a probability below `tail` under it; 0 if none is.

        Whatever is (epsilon, delta)-private is so for every larger epsilon. So any epsilon that is refuted is a bound,
        and it does not matter which border between refuted and not the search ends at.
        """
        if self.probability(0.0, delta) >= tail:
            return 0.0
        low, high = 0.0, 1.0
        while self.probability(high, delta) < tail:
            low, high = high, 2 * high
        while high - low > 1e-9 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if self.probability(middle, delta) < tail else (low, middle)
        return low


# --- everything that is proven ----------------------------------------------------------------------------------------


def likelihood_under(proven: Points, guesses: Guesses) -> float:
    """The most that so many right guesses, or more, can have under all these (epsilon, delta) pairs together.

    Let g(x) be the most that an event can have in one world if it has x in the other. Of r guesses among m canaries let
    p_i be the probability that i are right, R_i the sum over l >= i of l p_l / m and H_i that of (r - l) p_l / m. Flip
    the coin of canary j: what was a right guess about j is a wrong one, and one fewer is right. So P[j is guessed right
    and at least i are] is at most g(P[j is guessed wrong and at least i - 1 are]), and by taking means over j and all
    coins (g is concave)

        R_i <= g(H_{i-1}),   R_i = R_{i+1} + i p_i / m,   H_i = H_{i+1} + (r - i) p_i / m,   R_0 + H_0 = r / m.

    A tail of t = P[at least v right] needs R_v >= t v / m, with H_v = t r / m - R_v. Going down from there, every H_i
    is at least g^-1(R_{i+1}); the least that allows each time leads to the least R_0 + H_0, which grows with t. The
    first t for which it exceeds r / m is impossible. (The inequality is that of Mahloujifar, Melis, Chaudhuri,
    "Auditing f-differential privacy in one run", 2024.)
    """
    epsilons, deltas = np.array([point for point in proven if point[0] < _BEYOND], np.float64).reshape(-1, 2).T
    if not epsilons.size:
        return 1.0
    low, high = -60.0, 0.0  # logarithms of t: possible below, impossible above
    if not _impossible(np.zeros(1), guesses, epsilons, deltas)[0]:
        return 1.0
    for _ in range(3):
        tried = np.linspace(low, high, 40)
        impossible = _impossible(tried, guesses, epsilons, deltas)
        first = int(np.argmax(impossible))
        low, high = float(tried[max(0, first - 1)]), float(tried[first])
    return math.exp(high)


def _impossible(log_tails: Scores, guesses: Guesses, epsilons: Scores, deltas: Scores) -> Coins:
    """Which of these tails are."""
    m, r, v = guesses.canaries, guesses.made, guesses.right
    tails = np.exp(log_tails)
    right, wrong = tails * v / m, tails * (r - v) / m
    shrink, stretch = np.exp(-epsilons), np.exp(epsilons)
    for i in range(v - 1, -1, -1):
        rising = (right[:, None] - deltas) * shrink
        falling = 1 - deltas - (1 - right[:, None]) * stretch
        needed = np.maximum(wrong, np.maximum(rising, falling).max(axis=1))
        right = right + i / (r - i) * (needed - wrong)
        wrong = needed
        right = np.minimum(right, 2.0)  # beyond 1 it is impossible already, and must not overflow
    return np.asarray(right + wrong > r / m * (1 + 1e-9))


# --- a run's canaries -------------------------------------------------------------------------------------------------


def check_canaries(count: int) -> None:
    """Refuse numbers of canaries that show nothing, or take too long."""
    if isinstance(count, bool) or not isinstance(count, int) or not LEAST <= count <= MOST:
        raise InvalidInput(f"an audit takes from {LEAST} to {MOST:,} canaries, got {count!r}")


def coins(count: int, seed: int) -> Coins:
    """A fair coin for every canary: whether it is put in."""
    check_canaries(count)
    return np.random.default_rng([seed, count]).random(count) < 0.5


def judge(game: Promise, scores: Scores, present: Coins, *, seed: int, shares: Sequence[float] = SHARES) -> AuditRow:
    """The row of an audit in which canaries got these scores: a high score says that a canary is in."""
    check_canaries(len(scores))
    guesses = [Guesses.of(scores, present, share) for share in shares]
    tail = TAIL / len(shares)
    bound = max(one.epsilon_bound(game.delta, tail) for one in guesses)
    perfect = [Guesses(one.canaries, one.made, one.made) for one in guesses]
    points = ((game.proven, game.delta), *game.curve)
    chance = min(1.0, len(shares) * min(likelihood_under(points, one) for one in guesses))
    note = ""
    if chance < UNBELIEVABLE:
        note = f"so many right guesses have a probability of at most {chance:.2g} under what is proven"
    cap = max(one.epsilon_bound(game.delta, tail) for one in perfect)
    return AuditRow.of(game, EpsilonBound(bound, 1 - TAIL, len(scores), cap), seed, note)

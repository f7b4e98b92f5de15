"""Neighbourhoods of a sparse secure sum: how many clients each one draws, and how likely it is that too few will do.

Bell et al., "Secure single-server aggregation with (poly)logarithmic overhead", CCS 2020: every client u draws k of the
n - 1 others itself, N(u), and shares its secrets among them, so that t of k shares are needed. Nobody else has a say in
N(u), so no server can choose or grind it. With c helpers C, fixed before the draw, a server that lies learns

    one sum in a round, over more than half of the honest clients, unless one of two things happens in some attempt:

    both secrets   an honest u has 2t - k helpers or more in N(u): half of its honest neighbours could be told that u
                   stayed, the others that it left
    small sum      there is a set S of m <= (n - c) / 2 honest clients, and every u of S has t neighbours in S and C

For a given S the draws are independent, whatever the server does in between, and hypergeometric. A client joins at
most a attempts, but a server need not invite all of S to the same ones: it may begin up to a m of them, each with
another member, and go on where it likes the draw. With H(K) = P(t or more of k drawn from n - 1 are among K), the union
over all u, all S and all attempts gives

    breach <= a ((n - c) P(2t - k or more of k are among c)  +  sum over m of m binom(n - c, m) H(c + m - 1)^m)

docs/large-sums.md has the argument. A sum over s clients who stay, whoever they are as long as the draws did
not decide it, is lost with probability n P(k - t + 1 or more of k are among the n - s others) at most.

Logarithms come from one table of log j!; every result is rounded up by more than its entries can be off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

MOST_ATTEMPTS = 50  #: sums of one round that a client joins
BREACH = 2.0**-40  #: the most likely that a round may reveal more than its sum
LOSS = 2.0**-30  #: the most likely that a sum is lost although enough clients stay

_TERMS = 64  # of a tail that are added up one by one; the rest is less than a geometric series
_UNIT = 2.0**-53

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Neighbourhood:
    """k and t: how many neighbours each client draws, and how many of them must stay with it."""

    size: int
    quorum: int


@lru_cache(maxsize=256)
def neighbourhood(clients: int, stay: int, colluders: int) -> Neighbourhood | None:
    """The smallest that keeps `BREACH` and `LOSS` where so many clients stay; None where none does."""
    if 2 * stay <= clients + colluders:
        return None
    low, high = 1, clients - 2
    while low < high:  # more neighbours are better, up to rounding: what is returned is checked
        middle = (low + high) // 2
        if _works(clients, stay, colluders, middle) is None:
            low = middle + 1
        else:
            high = middle
    return _works(clients, stay, colluders, low)


def _works(clients: int, stay: int, colluders: int, size: int) -> Neighbourhood | None:
    """With the largest quorum that loses few sums: a larger one is always safer."""
    quorum = next((t for t in range(size, size // 2, -1) if loss(clients, stay, size, t) <= LOSS), None)
    if quorum is None or breach(clients, colluders, size, quorum) > BREACH:
        return None
    return Neighbourhood(size, quorum)


def honest(clients: int, colluders: int) -> int:
    """How many honest clients are in a sum, at least: more than half of them."""
    return (clients - colluders) // 2 + 1


def most_colluders(clients: int, size: int, quorum: int) -> int:
    """How many helpers a neighbourhood withstands; -1 where not even none."""
    low, high = -1, clients
    while high - low > 1:
        middle = (low + high) // 2
        if breach(clients, middle, size, quorum) <= BREACH:
            low = middle
        else:
            high = middle
    return low


def breach(clients: int, colluders: int, size: int, quorum: int) -> float:
    """A bound on the probability that, in a round, a lying server learns more than one sum over `honest` clients."""
    around, others = clients - colluders, clients - 1
    table = _LogFactorials(clients)
    both = around * math.exp(_above(table, others, np.array([colluders]), size, 2 * quorum - size)[0])
    members = np.arange(1, honest(clients, colluders))
    inside = _above(table, others, np.minimum(colluders + members - 1, others), size, quorum)
    sets = table.choose(np.full_like(members, around), members) + table.slack
    small = (members * np.exp(np.minimum(sets + members * inside, 1.0))).sum()
    return float(min(1.0, MOST_ATTEMPTS * (both + small) * (1 + 1e-6)))


def loss(clients: int, stay: int, size: int, quorum: int) -> float:
    """A bound on the probability that a sum is lost although so many clients stay."""
    table = _LogFactorials(clients)
    away = _above(table, clients - 1, np.array([clients - stay]), size, size - quorum + 1)[0]
    return float(min(1.0, clients * math.exp(away) * (1 + 1e-6)))


class _LogFactorials:
    """log j! for j up to n. A sum of n logarithms is off by no more than n roundings of the largest."""

    def __init__(self, most: int) -> None:
        self._table = _log_factorials(most)
        self.slack = 10 * (most + 8) * _UNIT * float(self._table[-1]) + 1e-12  #: of nine entries and more

    def choose(self, n: NDArray[np.int64], k: NDArray[np.int64]) -> Floats:
        """log binom(n, k) for 0 <= k <= n, up to a third of the slack."""
        found: Floats = self._table[n] - self._table[k] - self._table[n - k]
        return found


@lru_cache(maxsize=8)
def _log_factorials(most: int) -> Floats:
    return np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, most + 1)))])


def _above(table: _LogFactorials, others: int, marked: NDArray[np.int64], drawn: int, least: int) -> Floats:
    """Bounds on log P(X >= least), with X of `drawn` out of `others` among each number of `marked`: hypergeometric."""
    sure = least <= np.maximum(0, drawn - (others - marked))  # fewer cannot be drawn
    last = min(drawn, max(1, least) + _TERMS)
    among, got = np.broadcast_arrays(marked[:, None], np.arange(max(1, least), last + 1)[None, :])
    possible = (got <= among) & (drawn - got <= others - among)
    among, got = np.where(possible, among, drawn), np.where(possible, got, drawn)  # any that has a logarithm
    logs = table.choose(among, got) + table.choose(np.where(possible, others - among, 0), drawn - got)
    logs = np.where(possible, logs, -np.inf) - table.choose(np.array([others]), np.array([drawn]))
    found = np.logaddexp.reduce(logs, axis=1)
    if last < drawn:  # P(X = j + 1) / P(X = j) falls with j: what is left out is below a geometric series
        end = possible[:, -1] & possible[:, -2]
        ratio = np.exp(np.subtract(logs[:, -1], logs[:, -2], where=end, out=np.full(end.size, -np.inf)) + table.slack)
        falling = ratio < 1
        rest = np.log(ratio, where=end & falling, out=np.full(end.size, -np.inf)) - np.log1p(
            -np.where(falling, ratio, 0)
        )
        found = np.logaddexp(found, np.where(falling, logs[:, -1] + rest, 0.0))
    bound: Floats = np.where(sure, 0.0, np.minimum(found + table.slack, 0.0))
    return bound

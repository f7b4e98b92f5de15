"""Audits: what an adversary can tell apart by experiment, as a lower bound on epsilon with stated confidence.

A case is a worst pair of inputs and the likelihood-ratio score of an output. Half of the trials choose a threshold on
the score, the other half measure it: with the true-positive rate at least TPR and the false-positive rate at most FPR,
each by a Clopper-Pearson bound at 97.5 %, epsilon is at least ln((TPR - delta)/FPR) with 95 % confidence. n trials can
show at most about ln(n/3.7), the cap: a small bound is no evidence of privacy, a large one is proof of its absence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from sordino.errors import InvalidInput
from sordino.privacy.guarantee import Adjacency, Adversary, Claim
from sordino.privacy.statement import Audited

Scores = NDArray[np.float64]
Sampler = Callable[[bool, int, int], Scores]
"""(which of the two worlds, trials, seed) -> the score of each trial; higher speaks for the first world."""

TAIL = 0.025  #: one-sided error of each of the two Clopper-Pearson bounds
CERTAIN = 1e-6  #: the same for calling a proven bound violated: a bug is not announced by chance


@dataclass(frozen=True)
class Case:
    """One pair of worlds to tell apart, with what is claimed and what is proven about it."""

    mechanism: str
    unit: str
    adjacency: Adjacency
    adversary: Adversary
    claim: Claim | None
    proven: float
    delta: float
    basis: str
    attack: str
    sampler: Sampler
    most_trials: int = 10**9
    effort: int = 1  #: how many times the usual trials this case needs to show anything


@dataclass(frozen=True)
class Row:
    """The outcome of one audit."""

    mechanism: str
    unit: str
    adjacency: str
    adversary: str
    claimed: float | None
    claimed_delta: float | None
    proven: float
    delta: float
    basis: str
    audited: float
    confidence: float
    trials: int
    cap: float
    attack: str
    seed: int
    verdict: str

    def to_json(self) -> dict[str, Any]:
        """The row as plain JSON values."""
        return asdict(self)

    def evidence(self) -> Audited:
        """The lower bound in the form a statement shows."""
        return Audited(self.audited, self.confidence, self.trials, self.attack, self.delta)


VIOLATED = "PROVEN BOUND VIOLATED"
REFUTED = "claim refuted by experiment"
UNSUPPORTED = "claim not supported"
CONSISTENT = "consistent"


def verdict(claimed: float | None, proven: float, audited: float, certain: float) -> str:
    """In this order: an all but certain bound above the proof is a bug; a bound above the claim refutes it."""
    if certain > proven:
        return VIOLATED
    if claimed is not None and audited > claimed:
        return REFUTED
    if claimed is not None and proven > claimed * (1 + 1e-6):
        return UNSUPPORTED
    return CONSISTENT


def run(case: Case, *, trials: int = 400_000, seed: int = 1) -> Row:
    """Audit one case with `trials` draws from each of the two worlds (fewer where the case is costly)."""
    if isinstance(trials, bool) or not isinstance(trials, int) or not 100 <= trials <= 10**8:
        raise InvalidInput(f"an audit takes from 100 to 1e8 trials, got {trials!r}")
    n = min(trials * case.effort, case.most_trials)
    first, second = case.sampler(True, n, seed), case.sampler(False, n, seed)
    half = n // 2
    chosen, firm = (_choose(first[:half], second[:half], case.delta, tail) for tail in (TAIL / 1000, CERTAIN))
    bound = _bound(first[half:], second[half:], *chosen, case.delta)
    certain = _bound(first[half:], second[half:], *firm, case.delta, CERTAIN)
    claimed = case.claim
    comparable = claimed.epsilon if claimed and claimed.delta <= case.delta else None
    return Row(
        mechanism=case.mechanism,
        unit=case.unit,
        adjacency=str(case.adjacency),
        adversary=str(case.adversary),
        claimed=claimed.epsilon if claimed else None,
        claimed_delta=claimed.delta if claimed else None,
        proven=case.proven,
        delta=case.delta,
        basis=case.basis,
        audited=bound,
        confidence=1 - 2 * TAIL,
        trials=2 * n,
        cap=_cap(n - half, case.delta),
        attack=case.attack,
        seed=seed,
        verdict=verdict(comparable, case.proven, bound, certain),
    )


def lower_bound(hits: int, positives: int, alarms: int, negatives: int, delta: float, tail: float = TAIL) -> float:
    """ln((TPR - delta)/FPR) with Clopper-Pearson bounds on both rates, or 0 where they show nothing."""
    low = float(beta.ppf(tail, hits, positives - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, alarms + 1, negatives - alarms)) if alarms < negatives else 1.0
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def _cap(trials: int, delta: float) -> float:
    return lower_bound(trials, trials, 0, trials, delta)


def _bound(first: Scores, second: Scores, threshold: float, upwards: bool, delta: float, tail: float = TAIL) -> float:
    """The bound at one threshold: the first world told by high scores, or the second by low ones."""
    if upwards:
        hits, alarms = int(np.count_nonzero(first >= threshold)), int(np.count_nonzero(second >= threshold))
        return lower_bound(hits, first.size, alarms, second.size, delta, tail)
    hits, alarms = int(np.count_nonzero(second <= threshold)), int(np.count_nonzero(first <= threshold))
    return lower_bound(hits, second.size, alarms, first.size, delta, tail)


def _choose(first: Scores, second: Scores, delta: float, tail: float) -> tuple[float, bool]:
    """The threshold and direction with the best bound on this half of the trials.

    Many thresholds compete, so each is judged at a much stricter level: else the luckiest would win, not the best.
    """
    scores = np.unique(np.concatenate([first, second]))
    if scores.size > 400:
        ranks = np.concatenate([np.linspace(0, 1, 200), np.geomspace(1e-5, 0.1, 100), 1 - np.geomspace(1e-5, 0.1, 100)])
        scores = np.unique(np.quantile(np.concatenate([first, second]), ranks))
    options = [(float(s), up) for s in scores for up in (True, False)]
    return max(options, key=lambda option: _bound(first, second, option[0], option[1], delta, tail))

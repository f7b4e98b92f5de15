"""Audits: what an adversary can tell apart by experiment, as a lower bound on epsilon with stated confidence.

A case is a worst pair of inputs and the likelihood-ratio score of an output. Half of the trials choose a threshold on
the score, the other half measure it: with the true-positive rate at least TPR and the false-positive rate at most FPR,
each by a Clopper-Pearson bound at 97.5 %, epsilon is at least ln((TPR - delta)/FPR) with 95 % confidence. n trials can
show at most about ln(n/3.7), the cap: a small bound is no evidence of privacy, a large one is proof of its absence.

A proven guarantee is more than one figure: it has an epsilon for every delta. Where a case knows some more points of
that curve, an experiment that contradicts any of them has found a bug. Half the noise under a Gaussian is told by a
few thousand trials that way, while the bound at a delta of 1e-5 is still far below the proven epsilon.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import beta

from sordino.errors import InvalidInput
from sordino.mechanisms.cases import Case, Points, Promise, Scores
from sordino.privacy.statement import AuditBound

TAIL = 0.025  #: one-sided error of each of the two Clopper-Pearson bounds
CERTAIN = 1e-6  #: the same for calling a proven bound violated: a bug is not announced by chance


@dataclass(frozen=True)
class AuditRow:
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
    note: str = ""  #: what contradicts the proof, where something does

    @classmethod
    def of(cls, promise: Promise, note: str, **found: Any) -> AuditRow:
        """The row of a promise: what was found, and `note`, what contradicts the proof."""
        claim = promise.claim
        comparable = claim.epsilon if claim and claim.delta <= promise.delta else None
        return cls(
            mechanism=promise.mechanism,
            unit=promise.unit,
            adjacency=str(promise.adjacency),
            adversary=str(promise.adversary),
            claimed=claim.epsilon if claim else None,
            claimed_delta=claim.delta if claim else None,
            proven=promise.proven,
            delta=promise.delta,
            basis=promise.basis,
            attack=promise.attack,
            verdict=verdict(comparable, promise.proven, found["audited"], bool(note)),
            note=note,
            **found,
        )

    def to_json(self) -> dict[str, object]:
        """The row as plain JSON values; JSON has no infinity, and an unproven epsilon is never left blank."""
        return {name: "infinite" if value == math.inf else value for name, value in asdict(self).items()}

    def checked(self, failures: Sequence[str]) -> AuditRow:
        """The row after the checks of its mechanism: consistent where none failed; a failure is a violation."""
        if failures:
            return replace(self, verdict=VIOLATED, note="; ".join(filter(None, [self.note, *failures])))
        return replace(self, verdict=CONSISTENT) if self.verdict == UNTESTED else self

    def evidence(self) -> AuditBound:
        """The lower bound in the form a statement shows: what lies above the proof by chance is not claimed."""
        attack = f"{self.attack}; at most {self.cap:.3g} could be shown; seed {self.seed}"
        return AuditBound(min(self.audited, self.proven), self.confidence, self.trials, attack, self.delta)


VIOLATED = "PROVEN BOUND VIOLATED"
REFUTED = "claim refuted by experiment"
UNSUPPORTED = "claim not supported"
CONSISTENT = "consistent"
UNTESTED = "support not tested"  #: no contradiction, and no checks of the support yet (`AuditRow.checked`)


def verdict(claimed: float | None, proven: float, audited: float, contradicted: bool) -> str:
    """In this order: an all but certain contradiction of the proof is a bug; a bound above the claim refutes it.

    A single impossible output would refute a proof, and two worlds' rates do not show it: nothing is consistent before
    the support was tested.
    """
    if contradicted:
        return VIOLATED
    if claimed is not None and audited > claimed:
        return REFUTED
    if claimed is not None and proven > claimed * (1 + 1e-6):
        return UNSUPPORTED
    return UNTESTED


def run(case: Case, *, trials: int = 400_000, seed: int = 1) -> AuditRow:
    """Audit one case with `trials` draws from each of the two worlds (fewer where the case is costly)."""
    if isinstance(trials, bool) or not isinstance(trials, int) or not 100 <= trials <= 10**8:
        raise InvalidInput(f"an audit takes from 100 to 1e8 trials, got {trials!r}")
    n = min(trials, case.most_trials)
    first, second = case.sampler(True, n, seed), case.sampler(False, n, seed)
    half = n // 2
    choosing, measuring = _Worlds.of(first[:half], second[:half]), _Worlds.of(first[half:], second[half:])
    ((chosen, _),) = choosing.best([case.delta], TAIL / 1000)
    bound = measuring.bound(chosen, case.delta, TAIL)
    note = _contradiction(((case.proven, case.delta), *case.curve), choosing, measuring)
    return AuditRow.of(
        case, note, audited=bound, confidence=1 - 2 * TAIL, trials=2 * n, cap=_cap(n - half, case.delta), seed=seed
    )


def _contradiction(proven: Points, choosing: _Worlds, measuring: _Worlds) -> str:
    """How the trials contradict a proof that gives all these points; empty where they do not.

    The first half chooses the point and the threshold, so that there is one test, whose error is 2 `CERTAIN`.
    """
    finite = [(epsilon, delta) for epsilon, delta in proven if math.isfinite(epsilon)]
    if not finite:
        return ""
    best = zip(choosing.best([delta for _, delta in finite], CERTAIN), finite, strict=True)
    (threshold, _), (epsilon, delta) = max(best, key=lambda one: one[0][1] - one[1][0])
    found = measuring.bound(threshold, delta, CERTAIN)
    if found <= epsilon:
        return ""
    return (
        f"at delta {delta:.3g} epsilon is at least {found:.4g} by experiment and at most {epsilon:.4g} by the proof; "
        f"an honest mechanism is wronged so once in {1 / (2 * CERTAIN):,.0f} audits"
    )


def lower_bound(hits: int, positives: int, alarms: int, negatives: int, delta: float, tail: float = TAIL) -> float:
    """ln((TPR - delta)/FPR) with Clopper-Pearson bounds on both rates, or 0 where they show nothing."""
    low = float(beta.ppf(tail, hits, positives - hits + 1)) if hits else 0.0
    high = float(beta.ppf(1 - tail, alarms + 1, negatives - alarms)) if alarms < negatives else 1.0
    return max(0.0, math.log((low - delta) / high)) if low > delta else 0.0


def _cap(trials: int, delta: float) -> float:
    return lower_bound(trials, trials, 0, trials, delta)


Threshold = tuple[float, bool]  #: a score; whether the first world is told by scores from there up, or the second down


@dataclass(frozen=True)
class _Worlds:
    """Sorted scores of the two worlds."""

    first: Scores
    second: Scores

    @classmethod
    def of(cls, first: Scores, second: Scores) -> _Worlds:
        return cls(np.sort(first), np.sort(second))

    def bound(self, threshold: Threshold, delta: float, tail: float) -> float:
        """The bound at one threshold."""
        score, upwards = threshold
        hits, alarms = (int(count) for count in self._counts(np.array([score]), upwards)[:, 0])
        positives, negatives = (self.first, self.second) if upwards else (self.second, self.first)
        return lower_bound(hits, positives.size, alarms, negatives.size, delta, tail)

    def best(self, deltas: Sequence[float], tail: float) -> list[tuple[Threshold, float]]:
        """For each delta the threshold with the best bound on these trials, and that bound.

        Many thresholds compete, so each is to be judged at a much stricter level: else the luckiest would win.
        """
        scores = self._thresholds()
        low, high = np.stack([self._rates(scores, upwards, tail) for upwards in (True, False)], axis=2)
        found = []
        for delta in deltas:
            bounds = np.log(np.maximum((low - delta) / high, 1.0))
            which, direction = divmod(int(np.argmax(bounds)), 2)
            found.append(((float(scores[which]), direction == 0), float(bounds[which, direction])))
        return found

    def _thresholds(self) -> Scores:
        every = np.concatenate([self.first, self.second])
        scores = np.unique(every)
        if scores.size <= 400:
            return scores
        ranks = np.concatenate([np.linspace(0, 1, 200), np.geomspace(1e-5, 0.1, 100), 1 - np.geomspace(1e-5, 0.1, 100)])
        return np.unique(np.quantile(every, ranks))

    def _counts(self, scores: Scores, upwards: bool) -> NDArray[np.int64]:
        """Hits and alarms at each threshold: how many of the world that is told, and of the other."""
        if upwards:
            found = [own.size - np.searchsorted(own, scores, "left") for own in (self.first, self.second)]
        else:
            found = [np.searchsorted(own, scores, "right") for own in (self.second, self.first)]
        return np.array(found, np.int64)

    def _rates(self, scores: Scores, upwards: bool, tail: float) -> Scores:
        """At each threshold the least rate of hits and the largest of alarms, as in `lower_bound`."""
        hits, alarms = self._counts(scores, upwards)
        positives, negatives = (self.first, self.second) if upwards else (self.second, self.first)
        low = np.where(hits > 0, beta.ppf(tail, np.maximum(hits, 1), positives.size - hits + 1), 0.0)
        room = np.maximum(negatives.size - alarms, 1)
        high = np.where(alarms < negatives.size, beta.ppf(1 - tail, alarms + 1, room), 1.0)
        return np.stack([low, high])

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

import numpy as np
from numpy.typing import ArrayLike
from scipy.stats import beta

from sordino.errors import InvalidInput
from sordino.mechanisms.cases import Case, Points, Promise, Scores
from sordino.privacy.statement import AuditBound

TAIL = 0.025  #: one-sided error of each of the two Clopper-Pearson bounds
CERTAIN = 1e-6  #: the same for calling a proven bound violated: a bug is not announced by chance


@dataclass(frozen=True)
class EpsilonBound:
    """A lower bound on epsilon that an experiment shows."""

    audited: float
    confidence: float
    trials: int
    cap: float  #: the largest bound that so many trials could have shown


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
    def of(cls, promise: Promise, found: EpsilonBound, seed: int, note: str) -> AuditRow:
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
            verdict=verdict(comparable, promise.proven, found.audited, bool(note)),
            note=note,
            seed=seed,
            **asdict(found),
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
    return AuditRow.of(case, EpsilonBound(bound, 1 - 2 * TAIL, 2 * n, _cap(n - half, case.delta)), seed, note)


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


def lower_bound(
    hits: ArrayLike, positives: int, alarms: ArrayLike, negatives: int, delta: float, tail: float = TAIL
) -> Scores:
    """ln((TPR - delta)/FPR) with Clopper-Pearson bounds on both rates, or 0 where they show nothing."""
    told, missed = np.asarray(hits), negatives - np.asarray(alarms)
    low = np.where(told > 0, beta.ppf(tail, np.maximum(told, 1), positives - told + 1), 0.0)
    high = np.where(missed > 0, beta.ppf(1 - tail, negatives - missed + 1, np.maximum(missed, 1)), 1.0)
    return np.asarray(np.log(np.maximum((low - delta) / high, 1.0)))


def _cap(trials: int, delta: float) -> float:
    return float(lower_bound(trials, trials, 0, trials, delta))


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
        return float(self._bounds(np.array([score]), upwards, delta, tail)[0])

    def best(self, deltas: Sequence[float], tail: float) -> list[tuple[Threshold, float]]:
        """For each delta the threshold with the best bound on these trials, and that bound.

        Many thresholds compete, so each is to be judged at a much stricter level: else the luckiest would win.
        """
        scores = self._thresholds()
        found = []
        for delta in deltas:
            bounds = np.stack([self._bounds(scores, upwards, delta, tail) for upwards in (True, False)], axis=1)
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

    def _bounds(self, scores: Scores, upwards: bool, delta: float, tail: float) -> Scores:
        """The bound at each threshold: hits are of the world that is told, alarms of the other."""
        if upwards:
            worlds = self.first, self.second
            hits, alarms = (own.size - np.searchsorted(own, scores, "left") for own in worlds)
        else:
            worlds = self.second, self.first
            hits, alarms = (np.searchsorted(own, scores, "right") for own in worlds)
        return lower_bound(hits, worlds[0].size, alarms, worlds[1].size, delta, tail)

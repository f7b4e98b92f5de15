"""Which of the compared settings is best: those that cannot be told from the best share the crown, if protected."""

from __future__ import annotations

import math
import statistics

from scipy.special import stdtrit

from sordino.privacy.statement import NO_MEANINGFUL_PROTECTION
from sordino.report.compare import Comparison, Repetitions


def crowned(comparison: Comparison) -> tuple[Repetitions, ...]:
    """The protected settings with the highest accuracy, and those within its 95 % interval; none where none is.

    A setting whose own epsilon is infinite, or so large that it means nothing, protects nobody: it wears no crown.
    """
    rivals = [group for group in comparison.groups if group.accuracy is not None and is_protected(group)]
    best = max(rivals, key=_mean, default=None)
    if best is None:
        return ()
    least = min(_mean(best), _lower_end(best))
    return tuple(group for group in rivals if _mean(group) >= least)


def is_protected(group: Repetitions) -> bool:
    """Whether something meaningful is proven of the change and the onlooker that the runs were planned for."""
    return group.lead is not None and group.lead.proven[1] <= NO_MEANINGFUL_PROTECTION


def _mean(group: Repetitions) -> float:
    return -math.inf if group.accuracy is None else group.accuracy.mean


def _lower_end(group: Repetitions) -> float:
    """Of the 95 % interval: over test sets of this size and, where there are several runs, over seeds."""
    intervals = [run.result.accuracy_interval for run in group.runs]
    ends = [statistics.fmean(found[0] for found in intervals if found)] if any(intervals) else []
    spread = group.accuracy
    if spread is not None and spread.deviation is not None:
        ends.append(spread.mean - float(stdtrit(spread.n - 1, 0.975)) * spread.deviation / math.sqrt(spread.n))
    return min(ends, default=_mean(group))


__all__ = ["crowned", "is_protected"]

"""Which of the compared settings is best: those that cannot be told from the best share the crown, if protected."""

from __future__ import annotations

import math
import statistics

from scipy.special import stdtrit

from sordino.privacy.statement import NO_MEANINGFUL_PROTECTION
from sordino.report.compare import Comparison, Repetitions, Spread
from sordino.report.metric_words import ACCURACY
from sordino.report.records import to_line


def crowned(comparison: Comparison) -> tuple[Repetitions, ...]:
    """The protected settings that are best by the metric, and those within its 95 % interval, the best first.

    A setting whose own epsilon is infinite, or so large that it means nothing, protects nobody: it wears no crown.
    Settings on different data are no rivals.
    """
    if not have_same_data(comparison):
        return ()
    sign = -1 if comparison.smaller_is_better else 1
    rivals = [(sign * group.score.mean, group) for group in comparison.groups if group.score and is_protected(group)]
    rivals.sort(key=lambda rival: -rival[0])
    if not rivals:
        return ()
    highest, best = rivals[0]
    least = min([highest, *(sign * end for end in _ends(best, best.score))])
    return tuple(group for mean, group in rivals if mean >= least)


def have_same_data(comparison: Comparison) -> bool:
    """Whether all settings are about one source of data."""
    return len({to_line(group.settings.get("data.source")) for group in comparison.groups}) <= 1


def is_protected(group: Repetitions) -> bool:
    """Whether something meaningful is proven of whole records or clients, in the view that leads."""
    lead = group.lead
    return lead is not None and not lead.is_partial and lead.proven[1] <= NO_MEANINGFUL_PROTECTION


def _ends(group: Repetitions, spread: Spread | None) -> list[float]:
    """Of the 95 % intervals: over test sets of this size and, where there are several runs, over seeds."""
    of_runs = [r.result.accuracy_interval if group.metric == ACCURACY else r.result.interval for r in group.runs]
    known = [interval for interval in of_runs if interval is not None]
    ends = [statistics.fmean(interval[end] for interval in known) for end in (0, 1)] if known else []
    if spread is not None and spread.deviation is not None:
        reach = float(stdtrit(spread.n - 1, 0.975)) * spread.deviation / math.sqrt(spread.n)
        ends += [spread.mean - reach, spread.mean + reach]
    return ends


__all__ = ["crowned", "have_same_data", "is_protected"]

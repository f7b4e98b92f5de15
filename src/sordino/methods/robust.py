"""Rules that put reports together so that a few hostile ones move the result little, wherever they point.

    trimmed mean   of each value the mean without the t largest and the t smallest, t = ceil(share K)
                   (Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust distributed learning", ICML 2018)
    median         of each value the median (the same paper)
    norm filter    the mean of the reports that are at most `factor` times the median distance away from the median
    agreement      the mean without the share of the reports that point least where the others do: those with the
                   smallest sum of cosines with all others

The first three go by single values or by length. Reports that are nearly all noise hide a hostile one from them: a
coherent lie that is as long as honest noise is small in every value, and yet it is all signal. Its direction shows it.

They look at single reports `[K, d]` of one round and need all of them at once, unlike a sum: K d float32 numbers, which
`check_room` bounds. Values are sorted before they are added, so the result is the same in every order of arrival. What
they read was released before, so they cost no privacy. docs/malicious.md says what they are worth.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.mechanisms.output import Output
from sordino.methods.upload import Float64s, Int64s, Sum, Tally, Upload

Rows = NDArray[np.float32]  #: [K, d] estimates, one report a row
Rule = Callable[[Rows], Float64s]  #: [K, d] -> [d]

ROOM = 2**30  #: bytes that the reports of one round may take; twice that while they are put together
TILE = 2**21  #: numbers sorted at a time


def trimmed_mean(rows: Rows, share: float) -> Float64s:
    """The mean of each value without `share` of the reports at each end, rounded up; one or two are always left."""
    reports = len(rows)
    trim = min(math.ceil(share * reports - 1e-9), (reports - 1) // 2)
    return _sorted_mean(rows, trim)


def median(rows: Rows) -> Float64s:
    """The median of each value: the middle report, or the mean of the two in the middle."""
    return _sorted_mean(rows, (len(rows) - 1) // 2)


def norm_filter(rows: Rows, factor: float) -> Float64s:
    """The mean of the reports at most `factor` times the median distance away from the median of all."""
    middle, squares = median(rows), np.zeros(len(rows))
    for columns in _tiles(rows):
        squares += ((rows[:, columns].astype(np.float64) - middle[columns]) ** 2).sum(axis=1)
    distances = np.sqrt(squares)
    return _sorted_mean(rows[distances <= factor * np.median(distances)], 0)


def agreement(rows: Rows, share: float) -> Float64s:
    """The mean without the `share` of the reports, rounded up, that point least where the others do."""
    lengths, totals = np.zeros(len(rows)), np.zeros(len(rows))
    for columns in _tiles(rows):
        lengths += (rows[:, columns].astype(np.float64) ** 2).sum(axis=1)
    units = np.divide(1.0, np.sqrt(lengths), out=np.zeros(len(rows)), where=lengths > 0)
    for columns in _tiles(rows):
        directions = rows[:, columns] * units[:, None]
        totals += directions @ np.sort(directions, axis=0).sum(axis=0)
    fewer = min(math.ceil(share * len(rows) - 1e-9), (len(rows) - 1) // 2)
    order = np.argsort(totals, kind="stable")
    return _sorted_mean(rows[order[fewer:]], 0)


def _sorted_mean(rows: Rows, trim: int) -> Float64s:
    """The mean of each value without the `trim` smallest and largest."""
    found = np.empty(rows.shape[1])
    for columns in _tiles(rows):
        ordered = np.sort(rows[:, columns], axis=0)[trim : len(rows) - trim]
        found[columns] = ordered.astype(np.float64).sum(axis=0) / len(ordered)
    return found


def _tiles(rows: Rows) -> Iterator[slice]:
    step = max(1, TILE // len(rows))
    return (slice(first, first + step) for first in range(0, rows.shape[1], step))


def rule_of(aggregation: Any) -> Rule | None:
    """The rule of a recipe's `method.aggregation`; None for those that add reports up."""
    match aggregation.kind:
        case "trimmed-mean":
            return partial(trimmed_mean, share=aggregation.share)
        case "median":
            return median
        case "agreement":
            return partial(agreement, share=aggregation.share)
        case "norm-filter":
            return partial(norm_filter, factor=aggregation.factor)
    return None


def check_room(reports: int, values: int) -> None:
    """Refuse rounds with more reports than the memory for them holds."""
    needed = 4 * reports * values
    if needed > ROOM:
        raise InvalidInput(
            f"{reports:,} reports of {values:,} values take {needed / 2**30:.1f} GB; a robust aggregation keeps all of "
            f"a round, up to {ROOM / 2**30:g} GB: ask fewer clients in a round (method.selection), or take "
            "method.aggregation.kind = mean"
        )


class RobustTally(Tally):
    """The reports of a round as estimates, put together by a rule; every client counts alike."""

    def __init__(self, upload: Upload, rule: Rule) -> None:
        super().__init__(upload, np.ones(len(upload.strengths)))
        self._rule = rule
        self._rows: list[Rows] = []

    def _include(self, c: int, output: Output, samples: Int64s | None) -> None:
        fixed = self._shortened(c, self._fixed(c, output))
        estimates = self._scales[c].offset + np.ldexp(fixed.astype(np.float64), -self._shift)
        self._rows.append(estimates.astype(np.float32))

    def add_sum(self, found: Sum) -> None:
        """Refused: a sum has no single reports."""
        raise InvalidInput("a robust aggregation looks at single reports, and a sum has none: take mean")

    def mean(self) -> Float64s:
        """What the rule makes of the reports."""
        if not self._rows:
            raise InvalidInput("there is no report to put together")
        self._rows = [np.concatenate(self._rows)]
        return self._rule(self._rows[0])

    def noise(self) -> float | None:
        """Not known: it lies between that of the mean and that of the median."""
        return None


__all__ = ["ROOM", "RobustTally", "Rule", "check_room", "median", "norm_filter", "rule_of", "trimmed_mean"]

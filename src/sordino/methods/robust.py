"""Rules that put reports together so that a few hostile ones move the result little, wherever they point.

    trimmed mean   of each value the mean without the t largest and the t smallest, t = ceil(share K)
                   (Yin, Chen, Ramchandran, Bartlett, "Byzantine-robust distributed learning", ICML 2018)
    median         of each value the median (the same paper)
    norm filter    the mean of the reports that are at most `factor` times the median distance away from the median
    agreement      the trimmed mean without the share of the reports that point least where the others do, and did in
                   earlier rounds: those with the smallest sum of cosines with the reports of all others

The first three go by single values or by length. Reports that are nearly all noise hide a hostile one from them: a
coherent lie that is as long as honest noise is small in every value, and yet it is all signal. Its direction shows it.

They look at single reports `[K, d]` of one round and need all of them at once, unlike a sum: K d float32 numbers, which
`check_room` bounds. Values are sorted before they are added, so the result is the same in every order of arrival. What
they read was released before, so they cost no privacy. docs/malicious.md says what they are worth.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from annotated_types import Gt, Lt
from numpy.typing import NDArray
from pydantic import Field

from sordino.errors import InvalidInput
from sordino.mechanisms.output import Output
from sordino.methods.aggregation import AggregationSpec, label, noise_of
from sordino.methods.interface import PAST, State
from sordino.methods.upload import Float64s, Int64s, ReportSum, Tally, Upload
from sordino.parts.tables import Found, Says, reads, tag

if TYPE_CHECKING:
    from sordino.recipe import Recipe

Rows = NDArray[np.float32]  #: [K, d] estimates, one report a row
Rule = Callable[[Rows], Float64s]  #: [K, d] -> [d]

ROOM = 2**30  #: bytes that the reports of one round may take; twice that while they are put together
TILE = 2**21  #: numbers sorted at a time
FADING = np.float32(0.8)  #: what a direction of the round before counts, chosen on examples that clients set aside


def trimmed_mean(rows: Rows, share: float) -> Float64s:
    """The mean of each value without `share` of the reports at each end, rounded up; one or two are always left."""
    return _sorted_mean(rows, _left_out(len(rows), share))


def _left_out(reports: int, share: float) -> int:
    """How many reports a share is, rounded up: at least one of three or more, and never all."""
    return min(max(1, math.ceil(share * reports - 1e-9)), (reports - 1) // 2)


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


def directions(rows: Rows) -> Rows:
    """The same reports with length 1; those of length 0 stay as they are."""
    lengths = np.sqrt(np.einsum("kd,kd->k", rows, rows, dtype=np.float64))
    units = np.divide(1.0, lengths, out=np.zeros(len(rows)), where=lengths > 0)
    return np.asarray(rows * units[:, None], np.float32)


def agreement(rows: Rows, share: float, own: Rows | None = None, everybody: Float64s | None = None) -> Float64s:
    """The trimmed mean without the `share` of the reports, rounded up, that point least where others do and did before.

    Of the rest as many are trimmed at each end of every value: a lie that is let through is often large in few values.
    `own [K, d]` are the senders' directions of earlier rounds, faded and added up; `everybody [d]` those of all.
    """
    pointing, scores = directions(rows), np.zeros(len(rows))
    for columns in _tiles(rows):
        here = pointing[:, columns].astype(np.float64)
        others = np.sort(here, axis=0).sum(axis=0) - here
        if own is not None and everybody is not None:
            others += everybody[columns] - own[:, columns]
        scores += np.einsum("kd,kd->k", here, others)
    fewer = _left_out(len(rows), share)
    rest = rows[_by_score(scores, rows)[fewer:]]
    return _sorted_mean(rest, min(fewer, (len(rest) - 1) // 2))


def _by_score(scores: Float64s, rows: Rows) -> NDArray[np.intp]:
    """Lowest scores first; equal ones by what the reports hold, so that the order of arrival does not count."""
    contents = sorted(range(len(rows)), key=lambda k: rows[k].tobytes())
    return np.array(sorted(contents, key=lambda k: scores[k]), np.intp)


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
        self._clients: list[int] = []

    def _include(self, c: int, clients: Sequence[int], output: Output, samples: Int64s | None) -> None:
        fixed = self._shortened(c, self._fixed(c, output))
        estimates = self._linear[c].offset + np.ldexp(fixed.astype(np.float64), -self._shift)
        self._rows.append(estimates.astype(np.float32))
        self._clients += clients

    def add_sum(self, found: ReportSum) -> None:
        """Refused: a sum has no single reports."""
        raise InvalidInput("a robust aggregation looks at single reports, and a sum has none: take mean")

    def mean(self) -> Float64s:
        """What the rule makes of the reports."""
        return self._rule(self.rows)

    @property
    def rows(self) -> Rows:
        """`[K, d]` estimates of all reports so far."""
        if not self._rows:
            raise InvalidInput("there is no report to put together")
        self._rows = [np.concatenate(self._rows)]
        return self._rows[0]

    def noise(self) -> float | None:
        """Not known: it lies between that of the mean and that of the median."""
        return None


class AgreementTally(RobustTally):
    """Reports by their agreement with those of the others, in this round and in earlier ones.

    `past [N, d]` has each client's directions of earlier rounds, added up and faded. A report is compared with what the
    others sent, never with its sender's own past, so that a lie that was let through once does not help the next one.
    """

    def __init__(self, upload: Upload, share: float) -> None:
        super().__init__(upload, partial(agreement, share=share))
        self._share = share

    def agreed(self, past: Rows) -> tuple[Float64s, Rows]:
        """The mean of the reports that agree, and the past after this round."""
        rows, clients = self.rows, np.asarray(self._clients)
        mean = agreement(rows, self._share, past[clients], past.astype(np.float64).sum(axis=0))
        after = FADING * past
        after[clients] += directions(rows)
        return mean, after


def aggregate(tally: Tally, state: State) -> tuple[Float64s, State]:
    """What a round's reports come to, and the state with their directions where the aggregation remembers these."""
    if not isinstance(tally, AgreementTally):
        return tally.mean(), state
    mean, past = tally.agreed(state.arrays[PAST])
    return mean, replace(state, arrays={**state.arrays, PAST: past})


# --- their tables -----------------------------------------------------------------------------------------------------


class RobustSpec(AggregationSpec):
    """A rule that makes one vector of the single reports of a round."""

    uses: ClassVar[frozenset[str]] = frozenset({"reports"})

    @abstractmethod
    def rule(self, rows: Rows) -> Float64s:
        """What the rule makes of reports `[K, d]`: one vector `[d]`."""

    def vector(self, rows: Rows) -> Float64s:
        """What `rule` returns, if it is one vector `[d]`."""
        found = np.asarray(self.rule(rows))
        if found.shape != rows.shape[1:] or found.dtype.kind not in "fiu":
            raise InvalidInput(
                f"{type(self).__name__}.rule must return one vector of {rows.shape[1]} numbers for reports of shape "
                f"{rows.shape}, got shape {found.shape} of type {found.dtype}"
            )
        return found

    def tally(self, upload: Upload) -> Tally:
        return RobustTally(upload, self.vector)

    def check_room(self, asked: int, clients: int, values: int) -> None:
        check_room(asked, values)

    @reads("method")
    def sees_more_than_bits(self, recipe: Recipe) -> Found:
        """The server gets more than a bit of each value."""
        method, kind = recipe.method, getattr(self, "kind", "")
        if method.channel.unseen:
            return
        if noise_of(recipe) in ("points", "votes"):
            yield ".kind", f"got {kind} with {label(recipe)}; a report is single bits, which bound it: take mean"
        elif "directions" in self.uses and getattr(method, "upload", "update") != "update":
            yield ".kind", f"got {kind} with upload = weights; directions are of updates: take upload = update"
        elif "directions" in self.uses and getattr(method, "norm", None) is None:
            why = f"{kind} goes by directions, and nothing else bounds a length"
            yield "method.norm", f"is missing; {why}: set it"


LeftOut = Annotated[float, Gt(0), Lt(0.5), Says("a share above 0 and below 0.5")]


class TrimmedMean(RobustSpec):
    """The mean of each value without the largest and the smallest reports: few hostile reports move it little."""

    kind: str = tag("trimmed-mean", "robust: of each value, the mean without the largest and the smallest")
    share: LeftOut = Field(
        default=0.2, description="share of the reports left out at each end, rounded up; at least one report is left"
    )

    def rule(self, rows: Rows) -> Float64s:
        return trimmed_mean(rows, self.share)


class Median(RobustSpec):
    """The median of each value."""

    kind: str = tag("median", "robust: the median of each value")

    def rule(self, rows: Rows) -> Float64s:
        return median(rows)


class NormFilter(RobustSpec):
    """The mean of the reports that are not much farther from the median than most."""

    kind: str = tag("norm-filter", "robust: the mean without reports that are far from the median")
    factor: Annotated[float, Gt(1), Says("a number > 1")] = Field(
        default=1.5, description="how far a report may be from the median of all, in units of the median distance"
    )

    def rule(self, rows: Rows) -> Float64s:
        return norm_filter(rows, self.factor)


class Agreement(RobustSpec):
    """The trimmed mean without the reports that point least where others do: for reports that are nearly all noise."""

    uses: ClassVar[frozenset[str]] = frozenset({"reports", "directions"})
    remembers: ClassVar[bool] = True
    kind: str = tag("agreement", "robust: the trimmed mean without reports that point least where others do")
    share: LeftOut = Field(
        default=0.2, description="share of the reports left out, and trimmed at each end of the rest, rounded up"
    )

    def rule(self, rows: Rows) -> Float64s:
        return agreement(rows, self.share)

    def tally(self, upload: Upload) -> Tally:
        return AgreementTally(upload, self.share)

    def check_room(self, asked: int, clients: int, values: int) -> None:
        check_room(clients, values)


__all__ = [
    "ROOM", "Agreement", "AgreementTally", "Median", "NormFilter", "RobustSpec", "RobustTally", "Rule", "TrimmedMean",
    "aggregate", "agreement", "check_room", "median", "norm_filter", "trimmed_mean",
]  # fmt: skip

"""The figures of a private evaluation: in words, and as a section of a run's page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from sordino.report import plots, scales
from sordino.report.markup import Markup, element, join
from sordino.report.plots import Series
from sordino.report.records import PrivateFigure, PrivateScores, RoundRecord
from sordino.report.style import charts, table
from sordino.report.words import capital, count, counted, decimal, deltas, percent, upper

WHERE = "on records that clients set aside"
DROWNED = "drowned by the noise"
NOBODY = "unknown, as no client answered,"
_SHARES = ("accuracy", "recall", "f1", "label-accuracy")


def leading(scores: PrivateScores) -> str:
    """The first figure with its interval, such as `accuracy 90.3 % (83.0 % to 98.4 %)`."""
    first = scores.figures[0]
    return f"{first.name} {value_of(first, scores)}{_between(first)}"


def value_of(figure: PrivateFigure, scores: PrivateScores) -> str:
    """A figure without its interval."""
    if figure.value is None:
        return DROWNED if scores.reported else NOBODY
    return _shown(figure.name)(figure.value)


def _between(figure: PrivateFigure) -> str:
    if figure.value is None or figure.interval is None:
        return ""
    shown = _shown(figure.name)
    return f" ({shown(figure.interval[0])} to {shown(figure.interval[1])})"


def _is_share(name: str) -> bool:
    return name.partition(" of ")[0] in _SHARES


def _shown(name: str) -> Callable[[float], str]:
    return percent if _is_share(name) else decimal


def sentences(scores: PrivateScores, times: int) -> list[str]:
    """What stands beside the figures of the last of so many evaluations."""
    found = [
        f"Counted by {count(scores.reported)} of {counted(scores.asked, 'client')} on records of their own that they "
        "never train on, and released as counts with noise. The 95 % interval holds the noise, and the chance of which "
        "records these are.",
        f"{_cost(scores)} {counted(times, 'evaluation')} of this run "
        f"{'is' if times == 1 else 'are'} in the privacy statement, beside the training.",
    ]
    if scores.records is not None and scores.noise is not None:
        found.append(
            f"About {count(max(0, round(scores.records)))} records, give or take {count(round(2 * scores.noise))}."
        )
    if scores.reported and any(figure.value is None for figure in scores.figures):
        found.append(
            "Where a figure is drowned, the noise may be as large as the number of records: take more clients, a "
            "larger share, fewer evaluations or figures, or a larger evaluation.private.target.epsilon."
        )
    if scores.declined:
        found.append(f"{counted(scores.declined, 'client')} declined for want of budget, and may still train.")
    return found


def _cost(scores: PrivateScores) -> str:
    epsilon = scores.epsilon or 0.0
    if math.isinf(epsilon):
        return "One evaluation costs epsilon infinite: nothing is proven of it."
    return (
        f"One evaluation costs epsilon {upper(epsilon)} at {deltas([scores.delta or 0.0])}, proven against the server "
        "for one record added or removed."
    )


def private_part(scores: PrivateScores | None, rounds: Sequence[RoundRecord]) -> Markup | None:
    """The last figures, and the first of them by round; None where nobody evaluated."""
    if scores is None:
        return None
    rows: list[list[object]] = [
        [figure.name, value_of(figure, scores).rstrip(","), _between(figure).strip(" ()") or "unknown"]
        for figure in scores.figures
    ]
    times = sum(record.private is not None for record in rounds)
    said = [element("p", sentence, class_="quiet") for sentence in sentences(scores, times)]
    return join([table(["figure", "value", "95 % interval"], rows, numbers=frozenset({1, 2})),
                 charts(_by_round(rounds)), *said])  # fmt: skip


def _by_round(rounds: Sequence[RoundRecord]) -> Markup | None:
    firsts = [(record.round, record.private.figures[0]) for record in rounds if record.private is not None]
    drawn = [(k, own) for k, own in firsts if own.value is not None and own.interval is not None]
    if len(drawn) < 2:
        return None
    points = tuple((float(k), float(own.value or 0.0)) for k, own in drawn)
    spread = tuple((own.interval[1] - own.interval[0]) / 2 for _, own in drawn if own.interval is not None)
    name = drawn[0][1].name
    values = [value for _, own in drawn for value in (own.value, *(own.interval or ())) if value is not None]
    axis = scales.shares(name, values) if _is_share(name) else scales.linear(name, values)
    x = scales.rounds("round", [k for k, _ in points])
    return plots.line_chart(
        f"{capital(name)} {WHERE}", [Series(name, points, spread)], x, axis, "With its 95 % interval."
    )


__all__ = ["DROWNED", "WHERE", "leading", "private_part", "sentences", "value_of"]

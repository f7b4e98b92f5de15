"""Lines, bars and curves as inline SVG: figures of a page that need no script, no library and nothing from elsewhere.

No meaning hangs on colour alone: lines have dashes, and points and bars have tooltips.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.report import scales
from sordino.report.drawing import HEIGHT, Area, area_for, axes, figure, legend
from sordino.report.markup import Markup, element, join, number
from sordino.report.records import ClientBudget
from sordino.report.scales import Axis
from sordino.report.words import counted, decimal, percent

_COLOURS = 7  #: of series, in the style sheet
_DASHES = (None, "7 4", "2 3", "9 3 2 3")
_MOST_DOTS, _MOST_TARGETS, _MOST_POINTS = 60, 150, 1000
_MOST_BARS = 60  #: clients with a bar of their own in the plot of budgets


@dataclass(frozen=True)
class Series:
    """A line: its points in order, and how far each spreads to both sides where that is known."""

    name: str
    points: tuple[tuple[float, float], ...]
    spread: tuple[float, ...] = ()
    unit: str = ""  #: "%" for shares

    def text(self, value: float) -> str:
        """A value of this series for people."""
        return percent(value) if self.unit == "%" else decimal(value)


@dataclass(frozen=True)
class Reference:
    """A level to compare with: a horizontal line with a few words."""

    value: float
    text: str


# --- lines -----------------------------------------------------------------------------------------------------------


def line_chart(
    title: str,
    series: Sequence[Series],
    x: Axis,
    y: Axis,
    *,
    note: str = "",
    references: Sequence[Reference] = (),
    marks: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Lines over a common axis, a band where a series knows its spread, marks below for what happened when."""
    area = area_for(x, y)
    drawn = [
        *(_reference(area, reference, series) for reference in references),
        *(_band(area, index, one) for index, one in enumerate(series) if one.spread),
        *(_line(area, index, one) for index, one in enumerate(series)),
        *(_mark(area, place, text) for place, text in marks),
        _last_value(area, series) if len(series) <= 2 and series[0].points else None,
    ]
    return figure(title, note, _describe(x, series), [*axes(area), *drawn], HEIGHT, _line_legend(series))


def error_chart(title: str, series: Sequence[Series], x: Axis, y: Axis, *, note: str = "") -> Markup:
    """Points with bars of one standard deviation to both sides, joined by lines."""
    area = area_for(x, y)
    drawn = [
        *(_line(area, index, one) for index, one in enumerate(series)),
        *(_error_bars(area, index, one) for index, one in enumerate(series) if one.spread),
    ]
    return figure(title, note, _describe(x, series), [*axes(area), *drawn], HEIGHT, _line_legend(series))


def _line(area: Area, index: int, series: Series) -> Markup:
    points = thinned(series.points)
    line = element("polyline", points=" ".join(_places(area, points)), class_="line", stroke_dasharray=_dash(index))
    shown = points if len(points) <= _MOST_TARGETS else points[:: -(-len(points) // _MOST_TARGETS)]
    dots = "dot" if len(series.points) <= _MOST_DOTS else "target"
    targets = [_dot(area, series, x, y, dots) for x, y in shown]
    return element("g", line, join(targets), class_=_colour(index))


def _places(area: Area, points: Sequence[tuple[float, float]]) -> list[str]:
    return [f"{number(area.across(x))},{number(area.up(y))}" for x, y in points]


def _dot(area: Area, series: Series, x: float, y: float, kind: str) -> Markup:
    said = f"{series.name}, {area.x.label} {decimal(x)}: {series.text(y)}"
    radius = 2.6 if kind == "dot" else 6.0
    return element("circle", element("title", said), cx=area.across(x), cy=area.up(y), r=radius, class_=kind)


def _band(area: Area, index: int, series: Series) -> Markup:
    low, high = area.y.ends
    edges = [
        (x, min(y + s, high), max(y - s, low)) for (x, y), s in zip(series.points, series.spread, strict=True)
    ]  # fmt: skip
    upper = _places(area, [(x, top) for x, top, _ in edges])
    lower = _places(area, [(x, bottom) for x, _, bottom in reversed(edges)])
    return element("polygon", points=" ".join([*upper, *lower]), class_=f"band {_colour(index)}")


def _error_bars(area: Area, index: int, series: Series) -> Markup:
    bars = []
    for (x, y), spread in zip(series.points, series.spread, strict=True):
        across, top, bottom = area.across(x), area.up(y + spread), area.up(y - spread)
        path = (
            f"M{number(across)} {number(top)}V{number(bottom)}"
            f"M{number(across - 4)} {number(top)}h8M{number(across - 4)} {number(bottom)}h8"
        )
        bars.append(element("path", d=path, class_="line"))
    return element("g", *bars, class_=_colour(index))


def _reference(area: Area, reference: Reference, series: Sequence[Series]) -> Markup:
    """A line across, with its words where the fewest lines pass: at the right or the left, above or below."""
    level = area.up(reference.value)
    line = element("line", x1=area.left, x2=area.right, y1=level, y2=level, class_="reference")
    width = 7.0 * len(reference.text)
    right = _best_foot(area, series, (area.right - width, area.right), (level - 5, level + 15))
    left = _best_foot(area, series, (area.left, area.left + width), (level - 5, level + 15))
    covered, foot = min(right, left, key=lambda found: found[0])
    place, anchor = (area.right - 4, "end") if (covered, foot) == right else (area.left + 4, "start")
    return join([line, element("text", reference.text, x=place, y=foot, text_anchor=anchor, class_="halo")])


def _best_foot(
    area: Area, series: Sequence[Series], between: tuple[float, float], feet: Sequence[float]
) -> tuple[float, float]:
    """Of several heights for a text, the one that the fewest lines cross; and which share of the text they cross."""
    stretch = np.linspace(*between, 9)
    lines = [_levels(area, one, stretch) for one in series if one.points]
    beside = np.concatenate(lines) if lines else np.empty(0)
    inside = [foot for foot in feet if area.top <= foot - 10 and foot + 3 <= area.bottom]
    covered = [(float(np.mean((foot - 14 < beside) & (beside < foot + 5))), foot) for foot in inside]
    return min(covered, key=lambda found: found[0], default=(1.0, feet[0]))


def _mark(area: Area, place: float, text: str) -> Markup:
    across, foot = area.across(place), area.bottom
    path = f"M{number(across)} {number(foot - 7)}l4 7h-8z"
    return element("path", element("title", text), d=path, class_="mark")


def _last_value(area: Area, series: Sequence[Series]) -> Markup | None:
    """The figure that most people look for, beside the end of the first line; none where lines leave no room for it."""
    (x, y), said = series[0].points[-1], series[0].text(series[0].points[-1][1])
    across, level = area.across(x), area.up(y)
    if len(series[0].points) == 1:
        return element("text", said, x=across, y=level - 9, text_anchor="middle", class_="halo last")
    covered, foot = _best_foot(area, series, (across - 8.5 * len(said), across - 6), (level - 9, level + 19))
    if covered > 0.25:
        return None
    dot = element("circle", cx=across, cy=level, r=4.0, class_=f"dot {_colour(0)}")
    return join([dot, element("text", said, x=across - 3, y=foot, text_anchor="end", class_="halo last")])


def _levels(area: Area, series: Series, stretch: NDArray[np.float64]) -> NDArray[np.float64]:
    """How high a line runs along a stretch of the drawing."""
    across, up = zip(*((area.across(x), area.up(y)) for x, y in series.points), strict=True)
    return np.asarray(np.interp(stretch, across, up), dtype=np.float64)


def thinned(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """At most about a thousand points: of each stretch the first, the lowest, the highest and the last."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    kept: list[tuple[float, float]] = []
    for part in np.array_split(np.arange(len(points)), _MOST_POINTS // 4):
        stretch = [points[k] for k in part]
        chosen = {part[0], part[-1]} | {
            part[min(range(len(stretch)), key=lambda k: stretch[k][1])],
            part[max(range(len(stretch)), key=lambda k: stretch[k][1])],
        }
        kept += [points[k] for k in sorted(chosen)]
    return kept


def _line_legend(series: Sequence[Series]) -> Markup | None:
    if len(series) < 2:
        return None
    swatches = [
        element(
            "svg",
            element("line", x1=1, x2=25, y1=5, y2=5, class_="line", stroke_dasharray=_dash(index)),
            viewBox="0 0 26 10",
            class_=f"swatch {_colour(index)}",
            aria_hidden="true",
        )
        for index in range(len(series))
    ]
    return legend(list(zip(swatches, (one.name for one in series), strict=True)))


def _describe(x: Axis, series: Sequence[Series]) -> str:
    said = []
    for one in series:
        if one.points:
            (first, begin), (last, end) = one.points[0], one.points[-1]
            start = "" if len(one.points) == 1 else f" {one.text(begin)} at {x.label} {decimal(first)},"
            said.append(f"{one.name}:{start} {one.text(end)} at {x.label} {decimal(last)}.")
    return " ".join(said) or "No values."


# --- budgets ---------------------------------------------------------------------------------------------------------


def budget_chart(title: str, budgets: Sequence[ClientBudget], *, note: str = "") -> Markup:
    """What each client spent against its limit: bars for few clients, sorted curves for many."""
    known = [(budget, budget.spent) for budget in budgets if budget.spent is not None and np.isfinite(budget.spent)]
    draw = _budget_bars if len(known) <= _MOST_BARS else _budget_curves
    return draw(title, known, note)


def _budget_bars(title: str, known: Sequence[tuple[ClientBudget, float]], note: str) -> Markup:
    places = Axis("client", (-0.5, max(len(known), 1) - 0.5), _client_ticks([b.client for b, _ in known]))
    area = area_for(places, scales.linear("budget", _budget_values(known)))
    step = (area.right - area.left) / max(len(known), 1)
    width = min(0.72 * step, 40.0)
    bars = []
    for place, (budget, spent) in enumerate(known):
        middle, level = area.across(place), area.up(spent)
        said = element("title", _budget_words(budget, spent))
        bars.append(
            element(
                "rect", said, x=middle - width / 2, y=level, width=width, height=area.bottom - level, class_="bar s0"
            )
        )
        if (limit := _finite(budget.limit)) is not None:
            across = number(middle - width / 2 - 1.5), number(middle + width / 2 + 1.5)
            at = area.up(limit)
            bars.append(element("line", said, x1=across[0], x2=across[1], y1=at, y2=at, class_="limit"))
    return figure(title, note, _budget_summary(known), [*axes(area), *bars], HEIGHT, _budget_legend(known))


def _budget_curves(title: str, known: Sequence[tuple[ClientBudget, float]], note: str) -> Markup:
    """All clients from the one that spent most to the one that spent least; where limits differ, in shares of them."""
    limits = {budget.limit for budget, _ in known}
    if len(limits) > 1 and None not in limits:
        used = sorted((spent / budget.limit for budget, spent in known if budget.limit), reverse=True)
        y = scales.shares("share of its limit that a client spent", [0.0, 1.0, *used])
        limit: float | None = 1.0
    else:
        used = sorted((spent for _, spent in known), reverse=True)
        y, limit = scales.linear("budget", _budget_values(known)), next(iter(limits))
    area = area_for(scales.rounds("clients, ordered by what they spent", range(1, len(used) + 1)), y)
    outline = thinned([(float(rank), value) for rank, value in enumerate(used, 1)])
    foot = number(area.bottom)
    closed = [f"{number(area.left)},{foot}", *_places(area, outline), f"{number(area.right)},{foot}"]
    drawn = [element("polygon", points=" ".join(closed), class_="bar s0")]
    if (known_limit := _finite(limit)) is not None:
        level = area.up(known_limit)
        drawn.append(element("line", x1=area.left, x2=area.right, y1=level, y2=level, class_="limit"))
    return figure(title, note, _budget_summary(known), [*axes(area), *drawn], HEIGHT, _budget_legend(known))


def _budget_values(known: Sequence[tuple[ClientBudget, float]]) -> list[float]:
    limits = [limit for budget, _ in known if (limit := _finite(budget.limit)) is not None]
    return [0.0, *limits, *(spent for _, spent in known)]


def _budget_words(budget: ClientBudget, spent: float) -> str:
    against = "" if budget.limit is None else f" of {decimal(budget.limit)}"
    declined = "" if budget.declined == 0 else f", declined {counted(budget.declined, 'time')}"
    return f"client {budget.client}: spent {decimal(spent)}{against}, {counted(budget.reports, 'report')}{declined}"


def _budget_summary(known: Sequence[tuple[ClientBudget, float]]) -> str:
    if not known:
        return "No client spent anything."
    spent = [value for _, value in known]
    return (
        f"{counted(len(known), 'client')} spent {decimal(min(spent))} to {decimal(max(spent))}, "
        f"median {decimal(statistics.median(spent))}."
    )


def _budget_legend(known: Sequence[tuple[ClientBudget, float]]) -> Markup:
    spent = element("span", class_="swatch bar s0")
    limit = element("span", class_="swatch limit")
    limited = any(budget.limit is not None for budget, _ in known)
    return legend([(spent, "spent"), *([(limit, "limit")] if limited else [])])


def _client_ticks(clients: Sequence[int]) -> tuple[tuple[float, str], ...]:
    every = next(step for step in (1, 2, 5, 10, 20) if len(clients) <= 12 * step)
    return tuple((float(place), str(client)) for place, client in enumerate(clients) if place % every == 0)


def _finite(value: float | None) -> float | None:
    return value if value is not None and np.isfinite(value) else None


# --- styles -----------------------------------------------------------------------------------------------------------


def _colour(index: int) -> str:
    return f"s{index % _COLOURS}"


def _dash(index: int) -> str | None:
    return _DASHES[index % len(_DASHES)]

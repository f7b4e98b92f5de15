"""Lines, bars and curves as inline SVG: figures of a page that need no script, no library and nothing from elsewhere.

No meaning hangs on colour alone: lines have dashes, and points and bars have tooltips.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.report import scales, words
from sordino.report.drawing import HEIGHT, Area, area_for, axes, figure, legend
from sordino.report.markup import Markup, element, join, number
from sordino.report.records import ClientBudget
from sordino.report.scales import PlotAxis
from sordino.report.words import counted, listed, span

COLOURS = 7  #: of series, in the style sheet
DASHES = (None, "7 4", "2 3", "9 3 2 3")
_MOST_DOTS, _MOST_TARGETS, _MOST_POINTS = 60, 150, 1000
_MOST_ERROR_BARS = 12  #: of one line; a line with more points has a band
_MOST_NAMES = 3  #: of lines that lie on each other
_MOST_BARS = 60  #: clients with a bar of their own in the plot of budgets


@dataclass(frozen=True)
class Series:
    """A line: its points in order, and how far each spreads to both sides where that is known."""

    name: str
    points: tuple[tuple[float, float], ...]
    spread: tuple[float, ...] = ()


@dataclass(frozen=True)
class Reference:
    """A level to compare with: a horizontal line with a few words."""

    value: float
    text: str


@dataclass(frozen=True)
class Mark:
    """A place below which something happened: a triangle with a tooltip."""

    place: float
    text: str


# --- lines -----------------------------------------------------------------------------------------------------------


def line_chart(
    title: str,
    series: Sequence[Series],
    x: PlotAxis,
    y: PlotAxis,
    note: str = "",
    annotations: Sequence[Reference | Mark] = (),
) -> Markup:
    """Lines over a common axis, with their spread where it is known, and what is to be pointed out.

    Lines that lie on each other are drawn as one, which names them all.
    """
    series, area = _distinct(series), area_for(x, y)
    drawn = [
        *(_reference(area, each, series) for each in annotations if isinstance(each, Reference)),
        *(_spread(area, index, one) for index, one in enumerate(series) if one.spread),
        *(_line(area, index, one) for index, one in enumerate(series)),
        *(_mark(area, each) for each in annotations if isinstance(each, Mark)),
        _last_value(area, series) if len(series) <= 2 and series[0].points else None,
    ]
    return figure(title, note, _describe(x, y, series), [*axes(area), *drawn], HEIGHT, _line_legend(series))


def _distinct(series: Sequence[Series]) -> list[Series]:
    found: dict[tuple[tuple[tuple[float, float], ...], tuple[float, ...]], list[str]] = {}
    for one in series:
        found.setdefault((one.points, one.spread), []).append(one.name)
    return [Series(_joined(names), *key) for key, names in found.items()]


def _joined(names: Sequence[str]) -> str:
    if len(names) == 1:
        return names[0]
    shown = listed(names if len(names) <= _MOST_NAMES else [names[0], f"{len(names) - 1} others"])
    return f"{shown} (the same line)"


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
    said = f"{series.name}, {area.x.label} {area.x.text(x)}: {area.y.text(y)}"
    radius = 2.6 if kind == "dot" else 6.0
    return element("circle", element("title", said), cx=area.across(x), cy=area.up(y), r=radius, class_=kind)


def _spread(area: Area, index: int, series: Series) -> Markup:
    """Bars to both sides of a few points, a band around the line through many."""
    low, high = area.y.ends
    edges = [(x, min(y + s, high), max(y - s, low)) for (x, y), s in zip(series.points, series.spread, strict=True)]
    if len(edges) > _MOST_ERROR_BARS:
        upper = _places(area, [(x, top) for x, top, _ in edges])
        lower = _places(area, [(x, bottom) for x, _, bottom in reversed(edges)])
        return element("polygon", points=" ".join([*upper, *lower]), class_=f"band {_colour(index)}")
    bars = []
    for x, top, bottom in edges:
        left, above, below = number(area.across(x) - 4), number(area.up(top)), number(area.up(bottom))
        path = f"M{left} {above}h8M{left} {below}h8M{number(area.across(x))} {above}V{below}"
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


def _mark(area: Area, mark: Mark) -> Markup:
    path = f"M{number(area.across(mark.place))} {number(area.bottom - 7)}l4 7h-8z"
    return element("path", element("title", mark.text), d=path, class_="mark")


def _last_value(area: Area, series: Sequence[Series]) -> Markup | None:
    """The figure that most people look for, beside the end of the first line; none where lines leave no room for it."""
    (x, y), said = series[0].points[-1], area.y.text(series[0].points[-1][1])
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


def _describe(x: PlotAxis, y: PlotAxis, series: Sequence[Series]) -> str:
    said = []
    for one in series:
        if one.points:
            (first, begin), (last, end) = one.points[0], one.points[-1]
            start = "" if len(one.points) == 1 else f" {y.text(begin)} at {x.label} {x.text(first)},"
            said.append(f"{one.name}:{start} {y.text(end)} at {x.label} {x.text(last)}.")
    return " ".join(said) or "No values."


# --- budgets ---------------------------------------------------------------------------------------------------------


def budget_chart(title: str, budgets: Sequence[ClientBudget], *, note: str = "") -> Markup:
    """What each client spent against its limit: bars for few clients, sorted curves for many."""
    known = [(budget, budget.spent) for budget in budgets if budget.spent is not None and np.isfinite(budget.spent)]
    draw = _budget_bars if len(known) <= _MOST_BARS else _budget_curve
    return draw(title, known, note)


def _budget_bars(title: str, known: Sequence[tuple[ClientBudget, float]], note: str) -> Markup:
    places = PlotAxis("client", (-0.5, max(len(known), 1) - 0.5), _client_ticks([b.client for b, _ in known]))
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


def _budget_curve(title: str, known: Sequence[tuple[ClientBudget, float]], note: str) -> Markup:
    """All clients from the one that spent most to the one that spent least; where limits differ, in shares of them."""
    limits = {budget.limit for budget, _ in known}
    limit: float | None = 1.0
    if len(limits) > 1 and None not in limits:
        used = sorted((spent / budget.limit for budget, spent in known if budget.limit), reverse=True)
        y = scales.shares("share of its limit that a client spent", [0.0, 1.0, *used])
    else:
        used = sorted((spent for _, spent in known), reverse=True)
        limit = next(iter(limits))
        y = scales.linear("budget", _budget_values(known))
    x = scales.rounds("clients, ordered by what they spent", range(1, len(used) + 1))
    curve = Series("spent", tuple((float(rank), value) for rank, value in enumerate(used, 1)))
    level = [Reference(known_limit, "limit")] if (known_limit := _finite(limit)) is not None else []
    return line_chart(title, [curve], x, y, f"{note} {_budget_summary(known)}".lstrip(), level)


def _budget_values(known: Sequence[tuple[ClientBudget, float]]) -> list[float]:
    limits = [limit for budget, _ in known if (limit := _finite(budget.limit)) is not None]
    return [0.0, *limits, *(spent for _, spent in known)]


def _budget_words(budget: ClientBudget, spent: float) -> str:
    against = "" if budget.limit is None else f" of {words.figure(budget.limit)}"
    declined = "" if budget.declined == 0 else f", declined {counted(budget.declined, 'time')}"
    who = budget.name or f"client {budget.client}"
    return f"{who}: spent {words.upper(spent)}{against}, {counted(budget.reports, 'report')}{declined}"


def _budget_summary(known: Sequence[tuple[ClientBudget, float]]) -> str:
    if not known:
        return "No client spent anything."
    spent = [value for _, value in known]
    median = words.upper(statistics.median(spent))
    return f"{counted(len(known), 'client')} spent {span(spent, shown=words.upper)}, median {median}."


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
    return f"s{index % COLOURS}"


def _dash(index: int) -> str | None:
    return DASHES[index % len(DASHES)]

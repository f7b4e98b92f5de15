"""The frame of every plot: the rectangle inside the axes, ticks and grids, and the figure around the drawing.

All plots are drawn 440 units wide, so that their text stays readable on a phone. Colours are classes (`s0`, `s1`, ...
for series, `k0`, ... for categories) that the page's style sheet fills in for light and dark.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from sordino.report.markup import Markup, element, join, number
from sordino.report.scales import PlotAxis

WIDTH, HEIGHT = 440.0, 270.0
CHARACTER = 8.2  #: room for one character; phones show texts larger


@dataclass(frozen=True)
class Area:
    """The rectangle inside the axes, in the drawing's units."""

    left: float
    top: float
    right: float
    bottom: float
    x: PlotAxis
    y: PlotAxis

    def across(self, value: float) -> float:
        return self.left + (self.right - self.left) * self.x.at(value)

    def up(self, value: float) -> float:
        return self.bottom - (self.bottom - self.top) * self.y.at(value)


def area_for(x: PlotAxis, y: PlotAxis) -> Area:
    """The usual rectangle, with room at the left for the longest tick text."""
    widest = max((len(text) for _, text in y.ticks), default=1)
    return Area(10.0 + CHARACTER * widest, 32.0, WIDTH - 16.0, HEIGHT - 46.0, x, y)


def axes(area: Area) -> list[Markup]:
    """Horizontal grid lines with their texts, the foot with its own, and the names of both axes."""
    lines = [
        element("line", x1=area.left, x2=area.right, y1=area.up(value), y2=area.up(value), class_="grid")
        for value, _ in area.y.ticks
    ]
    down = [
        element("text", text, x=area.left - 7, y=area.up(value) + 4, text_anchor="end") for value, text in area.y.ticks
    ]
    foot = element("line", x1=area.left, x2=area.right, y1=area.bottom, y2=area.bottom, class_="foot")
    return [*lines, foot, *down, *_feet(area), element("text", area.y.label, x=0, y=13, class_="axis")]


def vertical_grid(area: Area) -> list[Markup]:
    """Vertical grid lines with their texts below, for bars that lie."""
    lines = [
        element("line", x1=area.across(value), x2=area.across(value), y1=area.top, y2=area.bottom, class_="grid")
        for value, _ in area.x.ticks
    ]
    return [*lines, *_feet(area)]


def _feet(area: Area) -> list[Markup]:
    """Texts below the axis; those that would leave the drawing are drawn inwards."""
    texts = []
    for value, text in _apart(area):
        beyond = _right_end(area, value, text) == WIDTH
        texts.append(
            element(
                "text",
                text,
                x=WIDTH if beyond else area.across(value),
                y=area.bottom + 18,
                text_anchor="end" if beyond else "middle",
            )
        )
    return [*texts, element("text", area.x.label, x=area.right, y=area.bottom + 39, text_anchor="end", class_="axis")]


def _right_end(area: Area, value: float, text: str) -> float:
    return min(WIDTH, area.across(value) + CHARACTER * len(text) / 2)


def _apart(area: Area) -> Sequence[tuple[float, str]]:
    """The ticks below, or every second, third, ... of them: so many that no two texts touch."""
    ticks = area.x.ticks
    for stride in range(1, len(ticks)):
        kept = ticks[::stride]
        ends = [(_right_end(area, value, text), CHARACTER * len(text)) for value, text in kept]
        if all(before + CHARACTER <= end - width for (before, _), (end, width) in pairwise(ends)):
            return kept
    return ticks[:1]


def figure(
    title: str, note: str, described: str, drawn: Sequence[Markup | None], height: float, below: Markup | None
) -> Markup:
    """A captioned figure: a drawing that also says in words what it shows, and a legend below it."""
    mark = (
        f"chart-{re.sub('[^a-z0-9]+', '-', title.lower()).strip('-')}-{zlib.crc32(title.encode('utf-8', 'replace')):x}"
    )
    svg = element(
        "svg",
        element("title", title, id=f"{mark}-t"),
        element("desc", described, id=f"{mark}-d"),
        join(drawn, "\n"),
        viewBox=f"0 0 {number(WIDTH)} {number(height)}",
        role="img",
        aria_labelledby=f"{mark}-t {mark}-d",
        xmlns="http://www.w3.org/2000/svg",
    )
    caption = element("figcaption", element("h3", title), element("p", note) if note else None)
    return element("figure", caption, svg, below, class_="chart")


def legend(entries: Sequence[tuple[Markup, str]]) -> Markup:
    """Swatches with what they stand for."""
    return element("ul", *(element("li", swatch, element("span", name)) for swatch, name in entries), class_="legend")

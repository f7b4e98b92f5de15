"""One figure of a comparison as a file: its metric over rounds, or against the proven epsilon.

SVG is drawn here and needs nothing. PDF and PNG are drawn by matplotlib, as is what a notebook shows.
"""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.errors import InvalidInput
from sordino.report import scales
from sordino.report.compare import Comparison, Repetitions, Spread, is_number
from sordino.report.drawing import HEIGHT, WIDTH
from sordino.report.markup import Markup, element
from sordino.report.metric_words import ACCURACY, figure_axis
from sordino.report.plots import COLOURS, DASHES, Series, line_chart
from sordino.report.statement import terms
from sordino.report.style import light_colours
from sordino.report.words import capital
from sordino.storage.files import make_folder, write_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SUFFIXES = (".svg", ".pdf", ".png")
_TITLE, _LINE = 26.0, 20.0  #: heights: of the title, and of a line of the legend
_MOST_BARS = 12  #: error bars of one line; a line with more points has a band


@dataclass(frozen=True)
class ComparisonFigure:
    """Lines of a metric with their spread, and the name of the axis below them; accuracies are shares."""

    title: str
    label: str
    lines: tuple[Series, ...]
    note: str = ""  #: what the places mean
    logarithmic: bool = False
    metric: str = ACCURACY

    def to_svg(self) -> str:
        """A drawing that needs no style sheet and no other file."""
        places = [x for line in self.lines for x, _ in line.points]
        axis = scales.logarithmic if self.logarithmic else scales.rounds if self.label == "round" else scales.linear
        chart = line_chart(self.title, self.lines, axis(self.label, places), figure_axis(self.metric, self._reach()))
        inner = re.search(r"<svg.*?</svg>", chart, re.DOTALL)
        assert inner is not None
        drawing = inner[0].replace("<svg ", f'<svg y="{_TITLE}" width="{WIDTH}" height="{HEIGHT}" ', 1)
        below = _TITLE + HEIGHT + _LINE * len(self.lines)
        height = below + _LINE + 8
        return element(
            "svg",
            element("style", Markup(_sheet())),
            element("rect", width=WIDTH, height=height, fill="#ffffff"),
            element("text", self.title, x=0, y=17, class_="title"),
            Markup(drawing),
            *(self._entry(index, line) for index, line in enumerate(self.lines)),
            element("text", self.note, x=0, y=below + 14),
            xmlns="http://www.w3.org/2000/svg",
            viewBox=f"-8 -4 {WIDTH + 16:g} {height + 8:g}",
            width=WIDTH + 16,
            height=height + 8,
        )

    def _repr_svg_(self) -> str:
        """What a notebook shows of it."""
        return self.to_svg()

    def _entry(self, index: int, line: Series) -> Markup:
        y = _TITLE + HEIGHT + _LINE * index + 10
        dash = DASHES[index % len(DASHES)]
        stroke = element("line", x1=0, x2=26, y1=y, y2=y, class_="line", stroke_dasharray=dash)
        words = element("text", line.name, x=34, y=y + 4)
        return element("g", stroke, words, class_=f"s{index % COLOURS}")

    def _reach(self) -> list[float]:
        """Everything that the axis must hold."""
        spreads = [(y, s) for line in self.lines for (_, y), s in zip(line.points, _spread(line), strict=True)]
        ends = [end for y, s in spreads for end in (y - s, y + s)]
        return [min(1.0, max(0.0, end)) for end in ends] if self.metric == ACCURACY else ends

    def draw(self, axes: Axes) -> Axes:
        """Draw the lines on axes of matplotlib, accuracies in per cent."""
        factor, unit = (100, " (%)") if self.metric == ACCURACY else (1, "")
        for index, line in enumerate(self.lines):
            x, y = zip(*line.points, strict=True)
            height, spread = [factor * value for value in y], [factor * value for value in _spread(line)]
            dash = DASHES[index % len(DASHES)]
            style = "-" if dash is None else (0, tuple(float(part) / 2 for part in dash.split()))
            bars = spread if any(spread) and len(x) <= _MOST_BARS else None
            drawn = axes.errorbar(x, height, bars, label=line.name, linestyle=style, marker="o", ms=3, capsize=3)[0]
            if any(spread) and bars is None:
                low, high = ([a + sign * b for a, b in zip(height, spread, strict=True)] for sign in (-1, 1))
                axes.fill_between(x, low, high, alpha=0.16, color=drawn.get_color())
        if self.logarithmic:
            axes.set_xscale("log")
        axes.set(title=self.title, xlabel=f"{self.label}\n{self.note}".rstrip(), ylabel=f"{self.metric}{unit}")
        axes.legend()
        return axes


def _spread(line: Series) -> tuple[float, ...]:
    return line.spread or (0.0,) * len(line.points)


def _sheet() -> str:
    """The colours of the pages' light style, written out: programs for print know no variables."""
    known = light_colours()
    ink, muted, rule = known["ink"], known["muted"], known["line"]
    rules = [
        f"text {{ font: 13px sans-serif; fill: {muted}; }} .title {{ font-weight: bold; fill: {ink}; }}",
        f".grid {{ stroke: {rule}; }} .foot {{ stroke: {muted}; }} .last {{ fill: {ink}; font-weight: bold; }}",
        ".line { fill: none; stroke-width: 2.2; } .target { fill: none; } .band { fill-opacity: .16; stroke: none; }",
        ".halo { paint-order: stroke; stroke: #ffffff; stroke-width: 4px; }",
    ]
    rules += [
        f".s{k} .line {{ stroke: {c}; }} .s{k} .dot, .s{k}.dot, .s{k}.band {{ fill: {c}; }}"
        for k, c in enumerate(known[f"s{index}"] for index in range(COLOURS))
    ]
    return "\n".join(rules)


# --- what is drawn ----------------------------------------------------------------------------------------------------


def over_rounds(comparison: Comparison) -> ComparisonFigure:
    """The metric over rounds: the mean over seeds, with one standard deviation to both sides."""
    lines = [
        _line(comparison.label(group), [(float(number), spread) for number, spread in group.by_round()])
        for group in comparison.groups
    ]
    return _figure(comparison, "over rounds", "round", lines)


def over_epsilon(comparison: Comparison) -> ComparisonFigure:
    """The metric against the proven epsilon that leads the statements; where clients differ, against the largest.

    Epsilons about different changes or onlookers stand on no common axis. What has no finite one is left out.
    """
    known = [(group, group.lead) for group in comparison.groups if group.lead and math.isfinite(group.lead.proven[1])]
    meanings = dict.fromkeys(terms(view) for _, view in known)
    if len(meanings) > 1:
        raise InvalidInput(
            f"these runs' epsilons mean different things ({'; '.join(meanings)}) and stand on no common axis: compare "
            "runs of one kind, or draw the metric over rounds"
        )
    numeric = {key for key in comparison.keys if all(is_number(group.settings.get(key)) for group, _ in known)}
    lines: dict[str, list[tuple[float, Spread]]] = {}
    for group, view in known:
        if group.score is not None:
            name = _name(comparison, group, numeric)
            lines.setdefault(name, []).append((view.proven[1], group.score))
    found = [_line(name, sorted(points, key=lambda point: point[0])) for name, points in lines.items()]
    places = [x for line in found for x, _ in line.points]
    wide = bool(places) and min(places) > 0 and max(places) > 3 * min(places)
    label = f"proven epsilon{' (log scale)' if wide else ''}"
    return _figure(comparison, "against what is proven", label, found, next(iter(meanings), ""), logarithmic=wide)


def _name(comparison: Comparison, group: Repetitions, numeric: set[str]) -> str:
    """A line's name: what differs beyond numbers, along which it goes."""
    if comparison.named:
        return group.name
    others = [key for key in comparison.keys if key not in numeric]
    return comparison.words(group, others) or comparison.metric


def _line(name: str, found: list[tuple[float, Spread]]) -> Series:
    points = tuple((place, spread.mean) for place, spread in found)
    spreads = tuple(spread.deviation or 0.0 for _, spread in found)
    return Series(name, points, spreads if any(spreads) else ())


def _figure(
    comparison: Comparison, what: str, label: str, lines: list[Series], note: str = "", *, logarithmic: bool = False
) -> ComparisonFigure:
    drawn, title = tuple(line for line in lines if line.points), f"{capital(comparison.metric)} {what}"
    if not drawn:
        raise InvalidInput(f"no run has what '{title}' shows: run recipes that evaluate, with a finite epsilon for it")
    return ComparisonFigure(title, label, drawn, note, logarithmic, comparison.metric)


OVER: dict[str, Callable[[Comparison], ComparisonFigure]] = {"rounds": over_rounds, "epsilon": over_epsilon}


def check_figure(path: Path, over: str) -> None:
    """Refuse a file of a form that no figure has, or an unknown axis, or what needs matplotlib where it is not."""
    if over not in OVER:
        raise InvalidInput(f"--over is one of {', '.join(OVER)}, got {over!r}")
    if path.suffix not in SUFFIXES:
        raise InvalidInput(f"{path} is no figure that can be written: end its name in {', '.join(SUFFIXES)}")
    if path.suffix != ".svg":
        try:
            import matplotlib  # noqa: F401
        except ModuleNotFoundError:
            raise InvalidInput(
                f"{path.suffix} is drawn by matplotlib: pip install 'sordino[notebook]', or write an .svg file"
            ) from None


def write_figure(comparison: Comparison, path: Path, over: str = "rounds") -> None:
    """Write one of the figures in the form that the file's name asks for."""
    check_figure(path, over)
    drawn = OVER[over](comparison)
    content = drawn.to_svg().encode() if path.suffix == ".svg" else _printed(drawn, path.suffix[1:])
    make_folder(path.parent)
    write_whole(path, content)


def _printed(drawn: ComparisonFigure, form: str) -> bytes:
    from matplotlib.figure import Figure

    figure, written = Figure(figsize=(5.6, 3.8), layout="constrained"), io.BytesIO()
    drawn.draw(figure.subplots())
    figure.savefig(written, format=form, dpi=200)
    return written.getvalue()


__all__ = ["OVER", "ComparisonFigure", "check_figure", "over_epsilon", "over_rounds", "write_figure"]

"""Small plots as SVG files: the paper's stated values and ours, over what was varied or over rounds."""

from __future__ import annotations

import html
import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from papers.pages import Row

WIDTH, HEIGHT = 560, 358
LEFT, RIGHT, TOP, BOTTOM = 56, 20, 40, 82
OURS, PAPER, GRID, TEXT = "#0b5c94", "#c2570c", "#d8d8d4", "#33332f"
WIDE = 16.0  #: places so many times apart are drawn on a logarithmic scale
#: Colour and dashes of each line over rounds: no meaning hangs on colour alone.
LINES = (("#0b5c94", "none"), ("#c2570c", "7 3"), ("#2b7a3d", "2 3"), ("#7a3d8f", "9 3 2 3"), ("#33332f", "5 5"))


@dataclass(frozen=True)
class _Frame:
    """Where values lie on the drawing."""

    first: float
    last: float
    low: float
    high: float
    logarithmic: bool = False

    @classmethod
    def around(cls, places: Sequence[float], accuracies: Sequence[float], logarithmic: bool = False) -> _Frame:
        """From the first place to the last, and over whole tens of percent."""
        low, high = 10 * (min(accuracies) // 10), 10 * (max(accuracies) // 10 + 1)
        return cls(min(places), max(places), max(0.0, low), min(100.0, high), logarithmic)

    def across(self, x: float) -> float:
        place, first, last = (math.log(v) if self.logarithmic else v for v in (x, self.first, self.last))
        share = 0.5 if first == last else (place - first) / (last - first)
        return LEFT + 12 + share * (WIDTH - LEFT - RIGHT - 24)

    def up(self, y: float) -> float:
        return HEIGHT - BOTTOM - (y - self.low) / (self.high - self.low) * (HEIGHT - TOP - BOTTOM)

    def drawn(self, title: str, labels: Iterable[tuple[float, str]], axis: str) -> Iterator[str]:
        """The title, a grid, and what stands below: values, and what they are of."""
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" '
            f'font-size="12" role="img"><title>{html.escape(title)}</title>'
        )
        yield f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#ffffff"/>'
        yield f'<text x="{LEFT}" y="22" font-size="14" font-weight="bold" fill="{TEXT}">{html.escape(title)}</text>'
        step = next(step for step in (5, 10, 20, 50, 100, 200, 500, 1000) if (self.high - self.low) / step < 10)
        for level in range(int(self.low), int(self.high) + 1, step):
            y = self.up(level)
            yield f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>'
            yield f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end" fill="{TEXT}">{level}</text>'
        for x, label in labels:
            yield (
                f'<text x="{self.across(x):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle" fill="{TEXT}">'
                f"{html.escape(label)}</text>"
            )
        yield (
            f'<text x="{WIDTH - RIGHT}" y="{HEIGHT - BOTTOM + 38}" text-anchor="end" fill="{TEXT}">'
            f"{html.escape(axis)}</text>"
        )


def _square(x: float, y: float, colour: str) -> str:
    return (
        f'<rect x="{x - 4:.1f}" y="{y - 4:.1f}" width="8" height="8" fill="none" stroke="{colour}" stroke-width="2"/>'
    )


# --- over what was varied ---------------------------------------------------------------------------------------------


def plot(title: str, rows: Sequence[Row]) -> str:
    """Accuracy over `x` where the experiments have one, else one place for each of them."""
    points = [(row.experiment.x, row) for row in rows]
    numeric = all(x is not None for x, _ in points)
    places = [float(x) if numeric and x is not None else float(k) for k, (x, _) in enumerate(points)]
    order = sorted(range(len(places)), key=lambda k: places[k])
    shown = [v for row in rows for v in (*_reach(row), row.experiment.stated) if v is not None]
    frame = _Frame.around(places, shown, numeric and min(places) > 0 and max(places) >= WIDE * min(places))
    labels = [f"{places[k]:g}" if numeric else rows[k].experiment.id.rpartition("-")[2] for k in order]
    parts = list(frame.drawn(title, zip((places[k] for k in order), labels, strict=True), rows[0].experiment.axis))
    across, up = frame.across, frame.up
    ours = [(across(places[k]), o, rows[k]) for k in order if (o := rows[k].ours) is not None]
    stated = [_square(across(places[k]), up(f), PAPER) for k in order if (f := rows[k].experiment.stated) is not None]
    parts += stated
    if numeric and len(ours) > 1:
        line = " ".join(f"{x:.1f},{up(o):.1f}" for x, o, _ in ours)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{OURS}" stroke-width="2"/>')
    for x, o, row in ours:
        if row.spread:
            low, high = _reach(row)
            parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{up(high):.1f}" y2="{up(low):.1f}" stroke="{OURS}"/>')
        parts.append(f'<circle cx="{x:.1f}" cy="{up(o):.1f}" r="4" fill="{OURS}"/>')
    foot = HEIGHT - 16
    parts += [
        f'<circle cx="{LEFT + 6}" cy="{foot - 4}" r="4" fill="{OURS}"/>',
        f'<text x="{LEFT + 16}" y="{foot}" fill="{TEXT}">ours (accuracy, %)</text>',
    ]
    if stated:
        parts.append(_square(LEFT + 156, foot - 4, PAPER))
        parts.append(f'<text x="{LEFT + 168}" y="{foot}" fill="{TEXT}">stated in the paper</text>')
    return "\n".join([*parts, "</svg>"]) + "\n"


def _reach(row: Row) -> tuple[float, ...]:
    """One standard deviation to both sides, within what an accuracy can be; nothing where nothing was run."""
    if row.ours is None:
        return ()
    spread = row.spread or 0.0
    return max(0.0, row.ours - spread), min(100.0, row.ours + spread)


# --- over rounds ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Line:
    """An experiment over rounds: the mean of its seeds, how far they spread, and what the paper states of it."""

    name: str
    points: tuple[tuple[int, float, float], ...]  #: round, mean, standard deviation
    stated: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, rows: Sequence[Row]) -> _Line:
        """All rows of one experiment, which share their records."""
        experiment, curves = rows[0].experiment, [dict(record.curve) for record in rows[0].records if record.curve]
        points = []
        for round in sorted(set.intersection(*(set(curve) for curve in curves))):
            values = [100 * curve[round] for curve in curves]
            points.append((round, statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0))
        figures = ((row.rounds, row.experiment.stated) for row in rows)
        stated = tuple((round, figure) for round, figure in figures if round is not None and figure is not None)
        return cls(experiment.line or experiment.what, tuple(points), stated)

    def drawn(self, frame: _Frame, colour: str, dashes: str) -> Iterator[str]:
        """A band of one standard deviation to both sides, and the line."""
        if any(spread for _, _, spread in self.points):
            upper = [(round, min(mean + spread, frame.high)) for round, mean, spread in self.points]
            lower = [(round, max(mean - spread, frame.low)) for round, mean, spread in reversed(self.points)]
            band = " ".join(f"{frame.across(x):.1f},{frame.up(y):.1f}" for x, y in (*upper, *lower))
            yield f'<polygon points="{band}" fill="{colour}" fill-opacity="0.15"/>'
        line = " ".join(f"{frame.across(x):.1f},{frame.up(y):.1f}" for x, y, _ in self.points)
        yield f'<polyline points="{line}" fill="none" {_stroke(colour, dashes)}/>'


def _stroke(colour: str, dashes: str) -> str:
    return f'stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"'


def over_rounds(title: str, rows: Sequence[Row]) -> str:
    """Accuracy over rounds, a line for each experiment, and squares where the paper states a value."""
    by_experiment: dict[str, list[Row]] = {}
    for row in rows:
        by_experiment.setdefault(row.experiment.id, []).append(row)
    lines = [_Line.of(own) for own in by_experiment.values()]
    last = int(max(round for line in lines for round, *_ in (*line.points, *line.stated)))
    shown = [v for line in lines for v in (*(mean for _, mean, _ in line.points), *(f for _, f in line.stated))]
    frame = _Frame.around((0, last), shown)
    step = max(1, last // 4)
    parts = list(
        frame.drawn(
            f"{title} (accuracy in %)",
            [(x, f"{x}") for x in range(0, last + 1, step)],
            rows[0].experiment.axis or "round",
        )
    )
    styles = [LINES[k % len(LINES)] for k in range(len(lines))]
    for line, style in zip(lines, styles, strict=True):
        parts += line.drawn(frame, *style)
    parts += _stated(frame, lines, [colour for colour, _ in styles])
    legend = _legend if any(line.stated for line in lines) else _names
    return "\n".join([*parts, *legend([line.name for line in lines], styles), "</svg>"]) + "\n"


def _stated(frame: _Frame, lines: Sequence[_Line], colours: Sequence[str]) -> Iterator[str]:
    """Equal values stand side by side."""
    taken: dict[tuple[int, float], int] = {}
    for line, colour in zip(lines, colours, strict=True):
        for place in line.stated:
            beside = taken[place] = taken.get(place, -1) + 1
            yield _square(frame.across(place[0]) + 11 * beside, frame.up(place[1]), colour)


def _legend(names: Sequence[str], styles: Sequence[tuple[str, str]]) -> Iterator[str]:
    """The lines' names, and what a square is."""
    yield from _names(names, styles)
    x, foot = LEFT + sum(map(_room, names)), HEIGHT - 16
    yield _square(x + 4, foot - 4, TEXT)
    yield f'<text x="{x + 14}" y="{foot}" fill="{TEXT}">stated in the paper</text>'


def _names(names: Sequence[str], styles: Sequence[tuple[str, str]]) -> Iterator[str]:
    """In one row below, each entry as wide as its words need."""
    x, foot = float(LEFT), HEIGHT - 16
    for name, (colour, dashes) in zip(names, styles, strict=True):
        yield f'<line x1="{x}" x2="{x + 24}" y1="{foot - 4}" y2="{foot - 4}" {_stroke(colour, dashes)}/>'
        yield f'<text x="{x + 30}" y="{foot}" fill="{TEXT}">{html.escape(name)}</text>'
        x += _room(name)


def _room(name: str) -> float:
    return 46 + 6.5 * len(name)


# --- pairs of values, one below the other -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Pair:
    """What a paper states, and what came out here."""

    name: str
    theirs: float
    ours: float  #: may be infinite
    spread: float = 0.0


STEP, NAMES, END = 26, 350, 72  #: height of a pair, room for names to the left, room for values to the right


def pairs(title: str, found: Sequence[Pair], marks: tuple[str, str], *, powers: bool = False) -> str:
    """A line for each pair, over percent or over powers of ten; `marks` says what the square and the dot are."""
    width, height = 860, 74 + STEP * len(found) + 40
    top, bottom, right = 58, 58 + STEP * len(found), width - END
    finite = [v for pair in found for v in (pair.theirs, pair.ours) if v < math.inf]
    low, high = (math.floor(math.log10(min(finite))), math.ceil(math.log10(max(finite)))) if powers else (0, 100)

    def across(value: float) -> float:
        place = (math.log10(value) if powers else value) if value < math.inf else high
        return NAMES + (place - low) / (high - low) * (right - NAMES)

    def text(x: float, y: float, words: str, more: str = "") -> str:
        return f'<text x="{x:.1f}" y="{y:.1f}" fill="{TEXT}"{more}>{html.escape(words)}</text>'

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="13" role="img"><title>{html.escape(title)}</title>',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        text(14, 24, title, ' font-size="15" font-weight="bold"'),
    ]
    for tick in range(low, high + 1, 1 if powers else 20):
        x = across(10.0**tick if powers else tick)
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{top - 14}" y2="{bottom - 6}" stroke="{GRID}"/>')
        label = f"{10.0**tick:,.10g}" if tick < 4 else f"1e{tick}"
        parts.append(text(x, bottom + 12, label if powers else str(tick), ' text-anchor="middle" font-size="12"'))
    for k, pair in enumerate(found):
        y, first, last = top + STEP * k, across(pair.theirs), across(pair.ours)
        parts.append(text(NAMES - 12, y + 4, pair.name, ' text-anchor="end"'))
        parts.append(
            f'<line x1="{first:.1f}" x2="{last:.1f}" y1="{y}" y2="{y}" stroke="{OURS}" stroke-opacity="0.35"/>'
        )
        if pair.spread:
            low_end, high_end = across(max(0.0, pair.ours - pair.spread)), across(min(100.0, pair.ours + pair.spread))
            ends = f'x1="{low_end:.1f}" x2="{high_end:.1f}"'
            parts.append(f'<line {ends} y1="{y}" y2="{y}" stroke="{OURS}" stroke-width="3"/>')
        parts.append(_square(first, y, PAPER))
        if pair.ours < math.inf:
            parts.append(f'<circle cx="{last:.1f}" cy="{y}" r="5" fill="{OURS}"/>')
        else:
            parts.append(text(right + 8, y + 4, "infinite"))
            parts.append(f'<path d="M{right} {y - 6}l9 6l-9 6z" fill="{OURS}" transform="translate(-4 0)"/>')
    foot = height - 14
    parts += [
        _square(NAMES + 4, foot - 4, PAPER),
        text(NAMES + 16, foot, marks[0]),
        f'<circle cx="{NAMES + 176}" cy="{foot - 4}" r="5" fill="{OURS}"/>',
        text(NAMES + 188, foot, marks[1]),
    ]
    return "\n".join([*parts, "</svg>"]) + "\n"


__all__ = ["Pair", "over_rounds", "pairs", "plot"]

"""Tables of counts as inline SVG: which labels clients hold, and which answers a model gives.

No meaning hangs on colour alone: segments and cells have tooltips, and a matrix has its figures written in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.report import scales
from sordino.report.drawing import WIDTH, Area, figure, legend, vertical_grid
from sordino.report.markup import Markup, element, number
from sordino.report.scales import PlotAxis
from sordino.report.words import count, counted, decimal, percent

_MOST_COLOURS = 10  #: of categories, in the style sheet
_LARGEST_CELL = 44.0  #: of a matrix with figures in it
_MOST_STACKS, _MOST_ROWS, _BINS = 50, 200, 100  #: clients drawn as bars, as rows of a heat map, and rows beyond that


# --- labels ----------------------------------------------------------------------------------------------------------


def label_chart(
    title: str,
    counts: Sequence[Sequence[int]],
    classes: Sequence[str],
    *,
    clients: Sequence[str] = (),
    note: str = "",
) -> Markup:
    """Which labels each client holds: stacked bars for few clients and classes, a heat map for more.

    `clients` are the names beside the bars; numbers if left out.
    """
    table = _as_table(counts, classes)
    if len(table) <= _MOST_STACKS and len(classes) <= _MOST_COLOURS:
        return _label_stacks(title, table, classes, clients, note)
    return _label_map(title, table, classes, note)


def _label_stacks(
    title: str, table: NDArray[np.int64], classes: Sequence[str], clients: Sequence[str], note: str
) -> Markup:
    rows = len(table)
    beside = [_short(name) for name in clients] or [str(client) for client in range(rows)]
    left = max(44.0, 14.0 + max(map(len, beside), default=0) * 7.4)
    height = 18.0 if rows <= 20 else 12.0 if rows <= 35 else 9.5
    x = scales.linear("examples", [0.0, float(table.sum(axis=1).max(initial=1))])
    area = Area(left, 8.0, WIDTH - 12.0, 8.0 + rows * height, x, PlotAxis("client", (float(rows), 0.0), ()))
    names = [
        element("text", beside[client], x=area.left - 7, y=area.top + (client + 0.5) * height + 4, text_anchor="end")
        for client in range(0, rows, 1 if rows <= 25 else 5)
    ]
    drawn = [*vertical_grid(area), *names, element("text", "client", x=0, y=area.bottom + 39, class_="axis")]
    ends = np.pad(np.cumsum(table, axis=1), ((0, 0), (1, 0)))
    for client, label in np.argwhere(table).tolist():
        left, right = area.across(ends[client, label]), area.across(ends[client, label + 1])
        who = clients[client] if clients else f"client {client}"
        said = f"{who}: {counted(int(table[client, label]), 'example')} of {classes[label]}"
        place = left, area.top + client * height + 1
        drawn.append(_rectangle(place, (right - left, height - 2), f"segment k{label}", said))
    shown = legend([(element("span", class_=f"swatch bar k{k}"), name) for k, name in enumerate(classes)])
    return figure(title, note, _label_summary(table), drawn, area.bottom + 44.0, shown)


def _label_map(title: str, table: NDArray[np.int64], classes: Sequence[str], note: str) -> Markup:
    """Rows are clients with like labels beside each other; more than 200 are put together in bins."""
    ordered = table[_by_commonest_label(table)]
    bins = len(ordered) if len(ordered) <= _MOST_ROWS else _BINS
    groups = np.array_split(np.arange(len(ordered)), bins)
    levels = np.stack([_mean_shares(ordered[group]) for group in groups])
    grid = _CellGrid.of(classes, 14.0, 12.0, bins, min(12.0, 380.0 / bins))
    drawn = [*grid.frame()]
    for row, label in np.argwhere(levels).tolist():
        share, many = float(levels[row, label]), len(groups[row])
        who, mean = ("a client", "") if many == 1 else (f"{many} clients", " on average")
        drawn.append(grid.cell(row, label, share, "s0", f"{who}: {percent(share)} {classes[label]}{mean}"))
    each = "a client" if bins == len(ordered) else f"about {round(len(ordered) / bins)} clients"
    words = f"0 to 100 % of a client's examples; a row is {each}, ordered by their commonest label"
    shades = legend([(element("span", class_="swatch shades s0"), words)])
    return figure(title, note, _label_summary(table), drawn, grid.bottom + 4.0, shades)


def _by_commonest_label(table: NDArray[np.int64]) -> NDArray[np.intp]:
    """Clients grouped by the label they have most of, within a group the purest first; empty ones last."""
    sizes = table.sum(axis=1)
    purity = table.max(axis=1, initial=0) / np.maximum(sizes, 1)
    return np.lexsort((-purity, table.argmax(axis=1), sizes == 0))


def _mean_shares(rows: NDArray[np.int64]) -> NDArray[np.float64]:
    """Mean over clients of the share that each label has in a client's examples; clients with none do not count."""
    sizes = rows.sum(axis=1)
    held = rows[sizes > 0] / sizes[sizes > 0, None]
    return np.asarray(held.mean(axis=0) if len(held) else np.zeros(rows.shape[1]), dtype=np.float64)


def label_summary(counts: Sequence[Sequence[int]], classes: Sequence[str]) -> str:
    """How many examples of how many labels clients hold, in one sentence."""
    return _label_summary(_as_table(counts, classes))


def _as_table(counts: Sequence[Sequence[int]], classes: Sequence[str]) -> NDArray[np.int64]:
    return np.asarray(counts, dtype=np.int64).reshape(len(counts), len(classes))


def _label_summary(table: NDArray[np.int64]) -> str:
    sizes = table.sum(axis=1)
    if sizes.min() == sizes.max():
        held = f"each holds {counted(int(sizes[0]), 'example')}"
    else:
        held = f"they hold {count(sizes.min())} to {count(sizes.max())} examples, median {decimal(np.median(sizes))}"
    labels = np.count_nonzero(table, axis=1)
    of = f"{labels.min()}" if labels.min() == labels.max() else f"{labels.min()} to {labels.max()}"
    return f"{counted(len(table), 'client')}: {held}, of {of} of {counted(table.shape[1], 'label')}."


# --- confusion -------------------------------------------------------------------------------------------------------


def confusion_chart(title: str, matrix: Sequence[Sequence[int]], classes: Sequence[str], *, note: str = "") -> Markup:
    """True classes down, predicted ones across: right answers in one colour, wrong ones in another, shaded by row."""
    table = np.asarray(matrix, dtype=np.int64).reshape(len(classes), len(classes))
    left = 22.0 + min(10, max(len(_short(name)) for name in classes)) * 7.4
    grid = _CellGrid.of(classes, left, 24.0, len(classes))
    drawn: list[Markup | None] = [
        *grid.frame(),
        element("text", "answered", x=left, y=12, class_="axis"),
        element("text", "true", x=0, y=grid.top - 6, class_="axis"),
        *grid.row_names(),
    ]
    totals = np.maximum(table.sum(axis=1), 1)
    for true, answered in np.argwhere(table).tolist():
        many, share = int(table[true, answered]), float(table[true, answered] / totals[true])
        said = f"{classes[true]}, answered {classes[answered]}: {count(many)} ({percent(share)} of {classes[true]})"
        level, colour = (share, "s0") if true == answered else (share**0.5, "s1")
        drawn += [grid.cell(true, answered, level, colour, said), grid.figure(true, answered, level, many)]
    right = int(np.trace(table))
    summary = (
        f"{count(right)} of {counted(int(table.sum()), 'answer')} are right ({percent(right / max(table.sum(), 1))})."
    )
    colours = legend([(element("span", class_=f"swatch bar s{k}"), name) for k, name in enumerate(("right", "wrong"))])
    return figure(title, note, summary, drawn, grid.bottom + 6.0, colours)


# --- cells -----------------------------------------------------------------------------------------------------------


def _rectangle(place: tuple[float, float], extent: tuple[float, float], look: str, said: str, **more: object) -> Markup:
    (x, y), (width, height) = place, extent
    return element("rect", element("title", said), x=x, y=y, width=width, height=height, class_=look, **more)


@dataclass(frozen=True)
class _CellGrid:
    """Cells in rows and columns, with the names of classes above the columns: in one line, or slanted."""

    classes: Sequence[str]
    left: float
    top: float
    rows: int
    width: float
    height: float
    is_slanted: bool

    @classmethod
    def of(cls, classes: Sequence[str], left: float, top: float, rows: int, height: float | None = None) -> _CellGrid:
        """As wide as the drawing; without a height, cells are square, and no larger than their figures need."""
        most = WIDTH if height else _LARGEST_CELL
        longest, room = max(len(_short(name)) for name in classes), min(most, (WIDTH - left) / len(classes))
        is_slanted = longest > 2 and longest * 7.6 > room
        margin = 6.0 + 3.0 * len(_short(classes[-1])) if is_slanted else 6.0
        width = min(most, (WIDTH - margin - left) / len(classes))
        above = 10.0 + 5.4 * longest if is_slanted else 14.0
        return cls(classes, left, top + above, rows, width, height or width, is_slanted)

    @property
    def bottom(self) -> float:
        return self.top + self.rows * self.height

    def frame(self) -> list[Markup]:
        """The ground of all cells, and the names of the columns."""
        anchor, y = "start" if self.is_slanted else "middle", self.top - 5
        width, height = self.width * len(self.classes), self.bottom - self.top
        drawn = [element("rect", x=self.left, y=self.top, width=width, height=height, class_="ground")]
        for k in range(0, len(self.classes), _every(self.width)):
            x = self.left + (k + 0.5) * self.width
            turn = f"rotate(-45 {number(x)} {number(y)})" if self.is_slanted else None
            drawn.append(element("text", _short(self.classes[k]), x=x, y=y, transform=turn, text_anchor=anchor))
        return drawn

    def row_names(self) -> list[Markup]:
        """The names of the classes beside the rows."""
        places = ((k, self.top + (k + 0.5) * self.height + 4) for k in range(0, self.rows, _every(self.height)))
        return [element("text", _short(self.classes[k]), x=self.left - 7, y=y, text_anchor="end") for k, y in places]

    def cell(self, row: int, column: int, level: float, colour: str, said: str) -> Markup:
        """One cell, shaded by a level from 0 to 1."""
        place = self.left + column * self.width, self.top + row * self.height
        fine = "fine " if min(self.width, self.height) < 8 else ""
        shade = round(max(level, 0.04), 2)
        return _rectangle(place, (self.width, self.height), f"cell {fine}{colour}", said, fill_opacity=shade)

    def figure(self, row: int, column: int, level: float, many: int) -> Markup | None:
        """A count in its cell, where it fits."""
        text = count(many)
        font = min(13.0, 1.5 * self.width / max(len(text), 2))
        if font < 7.5:
            return None
        x, y = self.left + (column + 0.5) * self.width, self.top + (row + 0.5) * self.height + 0.36 * font
        look, style = "figure on-dark" if level > 0.6 else "figure", f"font-size:{number(font)}px"
        return element("text", text, x=x, y=y, text_anchor="middle", class_=look, style=style)


def _every(room: float) -> int:
    """Of names with so much room each, the first of how many is shown."""
    return max(1, -(-14 // max(1, int(room))))


def _short(name: str) -> str:
    return name if len(name) <= 10 else f"{name[:9]}…"

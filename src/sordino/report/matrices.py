"""Tables of counts as inline SVG: which labels clients hold, and which answers a model gives.

No meaning hangs on colour alone: segments and cells have tooltips, and a matrix has its figures written in it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sordino.report import scales
from sordino.report.drawing import WIDTH, Area, figure, legend, vertical_grid
from sordino.report.markup import Markup, element, number
from sordino.report.scales import Axis
from sordino.report.words import count, counted, decimal, percent

_MOST_COLOURS = 10  #: of categories, in the style sheet
_MOST_STACKS, _MOST_ROWS, _BINS = 50, 200, 100  #: clients drawn as bars, as rows of a heat map, and rows beyond that


# --- labels ----------------------------------------------------------------------------------------------------------


def label_chart(title: str, counts: Sequence[Sequence[int]], classes: Sequence[str], *, note: str = "") -> Markup:
    """Which labels each client holds: stacked bars for few clients and classes, a heat map for more."""
    table = _as_table(counts, classes)
    if len(table) <= _MOST_STACKS and len(classes) <= _MOST_COLOURS:
        return _label_stacks(title, table, classes, note)
    return _label_map(title, table, classes, note)


def _label_stacks(title: str, table: NDArray[np.int64], classes: Sequence[str], note: str) -> Markup:
    sizes = table.sum(axis=1)
    rows = len(table)
    height = 18.0 if rows <= 20 else 12.0 if rows <= 35 else 9.5
    x = scales.linear("examples", [0.0, float(sizes.max(initial=1))])
    area = Area(44.0, 8.0, WIDTH - 12.0, 8.0 + rows * height, x, Axis("client", (float(rows), 0.0), ()))
    drawn = [*vertical_grid(area), *_stack_names(rows, area, height)]
    for client, row in enumerate(table):
        ends = np.concatenate([[0], np.cumsum(row)])
        for label in np.flatnonzero(row).tolist():
            left, right = area.across(ends[label]), area.across(ends[label + 1])
            said = f"client {client}: {counted(int(row[label]), 'example')} of {classes[label]}"
            drawn.append(
                element(
                    "rect",
                    element("title", said),
                    x=left,
                    y=area.top + client * height + 1,
                    width=right - left,
                    height=height - 2,
                    class_=f"segment k{label}",
                )
            )
    names = legend([(element("span", class_=f"swatch bar k{k}"), name) for k, name in enumerate(classes)])
    return figure(title, note, _label_summary(table), drawn, area.bottom + 44.0, names)


def _stack_names(rows: int, area: Area, height: float) -> list[Markup]:
    every = 1 if rows <= 25 else 5
    names = [
        element("text", client, x=area.left - 7, y=area.top + (client + 0.5) * height + 4, text_anchor="end")
        for client in range(0, rows, every)
    ]
    return [*names, element("text", "client", x=0, y=area.bottom + 18, class_="axis")]


def _label_map(title: str, table: NDArray[np.int64], classes: Sequence[str], note: str) -> Markup:
    """Rows are clients with like labels beside each other; more than 200 are put together in bins."""
    ordered = table[_by_commonest_label(table)]
    bins = len(ordered) if len(ordered) <= _MOST_ROWS else _BINS
    groups = np.array_split(np.arange(len(ordered)), bins)
    levels = np.stack([_mean_shares(ordered[group]) for group in groups])
    top = 12.0 + _name_room(classes, WIDTH / len(classes))
    margin = _slant_margin(classes, WIDTH / len(classes))
    height = min(12.0, 380.0 / bins)
    left, right, bottom = 14.0, WIDTH - margin, top + bins * height
    width = (right - left) / len(classes)
    drawn = [
        element("rect", x=left, y=top, width=right - left, height=bottom - top, class_="ground"),
        *_column_names(classes, left, width, top),
    ]
    for row, group in enumerate(groups):
        for label in np.flatnonzero(levels[row]).tolist():
            share = float(levels[row, label])
            who = "a client" if len(group) == 1 else f"{len(group)} clients"
            said = f"{who}: {percent(share)} {classes[label]}" + ("" if len(group) == 1 else " on average")
            place = left + label * width, top + row * height
            drawn.append(_cell(place, (width, height), share, "s0", said))
    each = "a client" if bins == len(ordered) else f"about {round(len(ordered) / bins)} clients"
    words = f"0 to 100 % of a client's examples; a row is {each}, ordered by their commonest label"
    shades = legend([(element("span", class_="swatch shades s0"), words)])
    return figure(title, note, _label_summary(table), drawn, bottom + 4.0, shades)


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
    right = WIDTH - _slant_margin(classes, (WIDTH - left) / len(classes))
    side = (right - left) / len(classes)
    top = 24.0 + _name_room(classes, side)
    drawn: list[Markup | None] = [
        element("rect", x=left, y=top, width=right - left, height=side * len(classes), class_="ground"),
        element("text", "answered", x=left, y=12, class_="axis"),
        element("text", "true", x=0, y=top - 6, class_="axis"),
        *_column_names(classes, left, side, top),
        *_row_names(classes, left, side, top),
    ]
    totals = np.maximum(table.sum(axis=1), 1)
    for true, answered in np.argwhere(table).tolist():
        many, share = int(table[true, answered]), float(table[true, answered] / totals[true])
        said = f"{classes[true]}, answered {classes[answered]}: {count(many)} ({percent(share)} of {classes[true]})"
        place = left + answered * side, top + true * side
        colour = "s0" if true == answered else "s1"
        drawn.append(_cell(place, (side, side), share if true == answered else share**0.5, colour, said))
        drawn.append(_cell_figure(place, side, many, share if true == answered else share**0.5))
    right = int(np.trace(table))
    summary = (
        f"{count(right)} of {counted(int(table.sum()), 'answer')} are right ({percent(right / max(table.sum(), 1))})."
    )
    return figure(title, note, summary, drawn, top + side * len(classes) + 6.0, _confusion_legend())


def _cell(
    place: tuple[float, float], extent: tuple[float, float], level: float, colour: str, said: str
) -> Markup:  # fmt: skip
    return element(
        "rect",
        element("title", said),
        x=place[0],
        y=place[1],
        width=extent[0],
        height=extent[1],
        class_=f"cell {colour}" if min(extent) >= 8 else f"cell fine {colour}",
        fill_opacity=round(max(level, 0.04), 2),
    )


def _cell_figure(place: tuple[float, float], side: float, many: int, level: float) -> Markup | None:
    """A count in its cell, where it fits."""
    text = count(many)
    font = min(13.0, 1.5 * side / max(len(text), 2))
    if font < 7.5:
        return None
    return element(
        "text",
        text,
        x=place[0] + side / 2,
        y=place[1] + side / 2 + 0.36 * font,
        text_anchor="middle",
        class_="figure on-dark" if level > 0.6 else "figure",
        style=f"font-size:{number(font)}px",
    )


def _column_names(classes: Sequence[str], left: float, width: float, top: float) -> list[Markup]:
    every = max(1, -(-14 // max(1, int(width))))
    slanted = _name_room(classes, width) > 16
    names = []
    for k in range(0, len(classes), every):
        across = left + (k + 0.5) * width
        turn = f"rotate(-45 {number(across)} {number(top - 5)})" if slanted else None
        names.append(
            element(
                "text",
                _short(classes[k]),
                x=across,
                y=top - 5,
                transform=turn,
                text_anchor="start" if slanted else "middle",
            )
        )
    return names


def _row_names(classes: Sequence[str], left: float, side: float, top: float) -> list[Markup]:
    every = max(1, -(-14 // max(1, int(side))))
    return [
        element("text", _short(classes[k]), x=left - 7, y=top + (k + 0.5) * side + 4, text_anchor="end")
        for k in range(0, len(classes), every)
    ]


def _name_room(classes: Sequence[str], width: float) -> float:
    """Height for the names of columns: one line, or as much as slanted ones need."""
    longest = max(len(_short(name)) for name in classes)
    return 14.0 if longest * 7.6 <= width or longest <= 2 else 10.0 + 5.4 * longest


def _slant_margin(classes: Sequence[str], width: float) -> float:
    """Room at the right for the end of the last slanted name."""
    return 6.0 if _name_room(classes, width) <= 16 else 6.0 + 3.0 * len(_short(classes[-1]))


def _short(name: str) -> str:
    return name if len(name) <= 10 else f"{name[:9]}…"


def _confusion_legend() -> Markup:
    return legend(
        [(element("span", class_="swatch bar s0"), "right"), (element("span", class_="swatch bar s1"), "wrong")]
    )

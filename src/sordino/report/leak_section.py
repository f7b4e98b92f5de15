"""The part of a run's page that shows what attacks on its reports found: pictures, curves and sentences."""

from __future__ import annotations

from collections.abc import Sequence

from sordino.errors import InvalidInput
from sordino.privacy.leaks import Leak
from sordino.report import plots
from sordino.report.attack_file import AttackFile, figure_of
from sordino.report.folder import RunFolder
from sordino.report.leak_words import (
    CAVEAT,
    ORDER,
    at_most,
    by_method,
    found_words,
    headline,
    left_out_words,
    ordered,
    sentences,
    share_words,
    title,
    variant_words,
)
from sordino.report.markup import Markup, element, join
from sordino.report.plots import Series
from sordino.report.scales import PlotAxis, logarithmic
from sordino.report.style import bullets, charts, folded, section, table
from sordino.report.words import capital, count, decimal, listed

TITLE = "What the server could see"
_MOST_PICTURES, _ABREAST = 16, 8  #: shown of each attack, and beside each other on a phone
LIKENESS = "Likeness (SSIM): 1 means the same picture."
_LEAST = 1e-3  #: where the axes of curves begin


def leak_section(folder: RunFolder) -> Markup | None:
    """What `attacks.json` of the folder says; none without it, and a notice where it is damaged."""
    try:
        found = AttackFile.read(folder.path)
    except InvalidInput as error:
        return section(TITLE, element("p", str(error), class_="notice"))
    if found is None:
        return None
    leaks = ordered(found.leaks)
    return section(
        TITLE,
        element("p", element("b", lead)) if (lead := headline(leaks)) else None,
        element("p", _introduction(leaks)) if leaks else None,
        bullets(sentences(leaks)) if leaks else None,
        *_strips(leaks),
        charts(*_curves(leaks)),
        element("p", CAVEAT, class_="quiet") if leaks else None,
        folded("All attacks in figures", _figures(leaks)) if leaks else None,
        *(element("p", left_out_words(one), class_="quiet") for one in found.left_out),
    )


def _introduction(leaks: Sequence[Leak]) -> str:
    reports = ["the reports of this simulation", "the same reports without protection"]
    if any(leak.variant == "proven" for leak in leaks):
        reports.append("those of a proven recipe with the same epsilon, where every client adds its noise by itself")
    return f"Somebody who sees what the server sees attacks {listed(reports)}."


# --- pictures ---------------------------------------------------------------------------------------------------------


def _strips(leaks: Sequence[Leak]) -> list[Markup]:
    """Originals above what each attack made of them, from no protection to what is proven; once for each choice."""
    groups: dict[tuple[str, ...], list[Leak]] = {}
    for leak in leaks:
        if leak.originals and len(leak.pictures) == len(leak.originals):
            groups.setdefault(leak.originals, []).append(leak)
    return [_strip(originals, sorted(own, key=_protection)) for originals, own in groups.items()]


def _protection(leak: Leak) -> int:
    return ORDER.index(leak.variant)


def _strip(originals: Sequence[str], leaks: Sequence[Leak]) -> Markup:
    shown = min(len(originals), _MOST_PICTURES)
    rows = [("original", originals), *((_label(leak), leak.pictures) for leak in leaks)]
    bands = [
        element(
            "div",
            *(part for label, pictures in rows for part in _pictures(label, pictures, band)),
            class_="strip",
            style=f"--pictures: {min(shown, _ABREAST)}",
        )
        for band in (range(shown)[k : k + _ABREAST] for k in range(0, shown, _ABREAST))
    ]
    notes = [f"The first {count(shown)} of {count(len(originals))}."] if shown < len(originals) else []
    notes += [LIKENESS] if any(figure_of(leak, "ssim") is not None for leak in leaks) else []
    caption = element("figcaption", element("h3", title(leaks[0])), element("p", " ".join(notes)) if notes else None)
    return element("figure", caption, element("div", *bands, class_="strips"), class_="chart")


def _label(leak: Leak) -> str:
    ssim = figure_of(leak, "ssim")
    like = "" if ssim is None else f", likeness {ssim:.2f}"
    return f"{variant_words(leak)}{like}"


def _pictures(label: str, pictures: Sequence[str], band: Sequence[int]) -> list[Markup]:
    """A label, and the pictures of one row of a band."""
    name = label.partition(",")[0]
    return [
        element("span", capital(label)),
        *(Markup(f'<img alt="record {k + 1}, {name}" src="data:image/png;base64,{pictures[k]}">') for k in band),
    ]


# --- curves -----------------------------------------------------------------------------------------------------------


def _curves(leaks: Sequence[Leak]) -> list[Markup]:
    """A chart for each attack that has a threshold: right answers over false alarms, beside what is proven possible."""
    found = [[leak for leak in own if leak.curve] for own in by_method(leaks)]
    return [_curve(own) for own in found if own]


def _curve(leaks: Sequence[Leak]) -> Markup:
    series = [Series(variant_words(leak), _inside(leak.curve)) for leak in leaks]
    series += [
        Series(f"most that is proven possible, {variant_words(leak)}", _inside(leak.limit))
        for leak in leaks
        if leak.limit
    ]
    series.append(Series("guessing", ((_LEAST, _LEAST), (1.0, 1.0))))
    x, y = _axis("false alarms (log scale)"), _axis("found (log scale)")
    note = "A line above guessing shows a leak. No attack gets beyond what is proven possible."
    return plots.line_chart(title(leaks[0]), series, x, y, note)


def _axis(label: str) -> PlotAxis:
    axis = logarithmic(label, (_LEAST, 1.0))
    ticks = tuple((place, share_words(place).replace(".0 %", " %")) for place, _ in axis.ticks)
    return PlotAxis(label, axis.ends, ticks, axis.transform, share_words)


def _inside(points: Sequence[tuple[float, float]]) -> tuple[tuple[float, float], ...]:
    """The points in order, moved into the drawing; of those at its left end only the highest."""
    moved = sorted((max(_LEAST, x), max(_LEAST, y)) for x, y in points)
    left = [y for x, y in moved if x == _LEAST]
    return (*([(_LEAST, max(left))] if left else []), *((x, y) for x, y in moved if x > _LEAST))


# --- figures ----------------------------------------------------------------------------------------------------------


def _figures(leaks: Sequence[Leak]) -> Markup:
    head = ["attack", "reports", "right (95 % interval)", "guessing", "proven: at most", "other figures"]
    rows: list[list[object]] = [
        [
            f"{leak.attack}, {leak.how}", variant_words(leak), found_words(leak), share_words(leak.chance),
            at_most(leak.bound), _other(leak),
        ]
        for leak in leaks
    ]  # fmt: skip
    return table(head, rows, numbers=frozenset({3, 4}))


def _other(leak: Leak) -> Markup:
    named = [(name.replace("_", " "), figure_of(leak, name)) for name in leak.figures]
    return join((f"{name} {decimal(value)}" for name, value in named if value is not None), ", ")


__all__ = ["TITLE", "leak_section"]

"""The frame of all pages, with their style sheet, and what they are made of: sections, tiles and tables."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib.resources import files

import sordino
from sordino.report.markup import Markup, element, escaped, join

_STYLE = (files("sordino.report") / "style.css").read_text(encoding="utf-8")


def light_colours() -> dict[str, str]:
    """The colours of the light style, by the names that the style sheet gives them."""
    return dict(re.findall(r"--([\w-]+): (#\w+);", _STYLE.partition("@media")[0]))


def document(title: str, *body: object) -> str:
    """A whole page that loads nothing from elsewhere."""
    foot = element("footer", f"Made by Sordino {sordino.__version__}. This page holds all it shows and loads nothing.")
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
        f"<body>\n<main>\n{join(body, chr(10))}\n{foot}\n</main>\n</body>\n</html>\n"
    )


def section(title: str, *content: object) -> Markup | None:
    """A headed part of a page; none where it has no content."""
    kept = [part for part in content if part]
    return element("section", element("h2", title), *kept) if kept else None


def charts(*figures: Markup | None) -> Markup | None:
    """Figures beside each other, without those that are none."""
    kept = [one for one in figures if one is not None]
    return element("div", *kept, class_="charts") if kept else None


def folded(title: str, *content: object) -> Markup:
    """What only some readers want: a line that opens."""
    return element("details", element("summary", title), element("div", *content))


def bullets(items: Iterable[object]) -> Markup:
    """A plain list."""
    return element("ul", *(element("li", item) for item in items), class_="plain")


def tiles(entries: list[tuple[str, str]]) -> Markup:
    """Figures with what they are."""
    return element(
        "dl", *(element("div", element("dt", what), element("dd", value)) for what, value in entries), class_="tiles"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[object]], *, numbers: frozenset[int] = frozenset()) -> Markup:
    """A table without the columns that nobody fills; columns of numbers are set to the right."""
    used = [k for k in range(len(head)) if any(row[k] for row in rows)]

    def line(tag: str, cells: Sequence[object]) -> Markup:
        return element("tr", *(element(tag, cells[k], class_="number" if k in numbers else None) for k in used))

    header, lines = line("th", head), [line("td", row) for row in rows]
    return element("div", element("table", element("thead", header), element("tbody", *lines)), class_="scroll")

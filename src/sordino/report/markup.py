"""HTML and SVG as text that is escaped unless it says that it is markup already."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


class Markup(str):
    """Text that is HTML already; everything else is escaped when it becomes part of some."""

    __slots__ = ()


def escaped(content: object) -> Markup:
    """`content` as markup; characters that no page may hold are shown as the replacement character."""
    if isinstance(content, Markup):
        return content
    return Markup(html.escape(_UNPRINTABLE.sub("\ufffd", str(content))))


def join(parts: Iterable[object], between: str = "") -> Markup:
    """The parts one after the other; those that are none are left out."""
    return Markup(between.join(escaped(part) for part in parts if part is not None))


def element(tag: str, *content: object, **attributes: object) -> Markup:
    """`<tag attributes>content</tag>`; `class_` gives class, `stroke_width` stroke-width, and none leaves one out."""
    given = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for name, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{tag}{given}>{join(content)}</{tag}>")


def _attribute(value: object) -> str:
    return number(value) if isinstance(value, float) else escaped(value)


def number(value: float) -> str:
    """A coordinate: two decimals are a hundredth of a pixel."""
    return f"{value:.2f}".rstrip("0").rstrip(".")

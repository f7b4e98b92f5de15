"""Reading pages back: is every tag closed, what do the drawings hold, and is nothing loaded from elsewhere?"""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

_VOID = {"meta", "br", "hr", "img", "link", "input"}
_SVG = "{http://www.w3.org/2000/svg}"


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in _VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, f"</{tag}> closes {self.open[-3:]}"
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style", "title", "desc"):
            self.words.append(data)


class Page:
    """A page whose tags are all closed in order, whose ids are unique and which loads nothing; else the test fails."""

    def __init__(self, text: str) -> None:
        self.text = text
        parser = _Tags()
        parser.feed(text)
        parser.close()
        assert parser.open == []
        self.tags = parser.seen
        ids = [attributes["id"] for _, attributes in self.tags if "id" in attributes]
        assert len(ids) == len(set(ids))
        self._loads_nothing()
        self.words = re.sub(r"\s+", " ", " ".join(parser.words))

    def _loads_nothing(self) -> None:
        for tag, attributes in self.tags:
            assert tag not in ("script", "link", "iframe", "object", "embed"), tag
            assert not {"href", "srcset", "data"} & set(attributes)
            inside = tag == "img" and (attributes.get("src") or "").startswith("data:image/png;base64,")
            assert inside or "src" not in attributes
            assert not any(name.startswith("on") for name in attributes)
        assert "url(" not in self.text and "@import" not in self.text

    def headings(self) -> list[str]:
        return [re.sub("<.*?>", "", found) for found in re.findall(r"<h[123]>(.*?)</h[123]>", self.text)]

    def charts(self) -> dict[str, Drawing]:
        found = re.findall(r"<svg viewBox=[^>]*role=\"img\".*?</svg>", self.text, re.DOTALL)
        drawings = [Drawing(svg) for svg in found]
        return {drawing.title: drawing for drawing in drawings}


class Drawing:
    """One SVG, parsed as strictly as XML is."""

    def __init__(self, svg: str) -> None:
        self.root = ElementTree.fromstring(svg)
        assert self.root.get("role") == "img"
        title, desc = self.root[0], self.root[1]
        assert (title.tag, desc.tag) == (f"{_SVG}title", f"{_SVG}desc")
        assert self.root.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
        self.title, self.described = title.text or "", desc.text or ""
        assert not re.search(r"\b(nan|inf)\b", svg.split("</desc>")[1].lower()), "a coordinate is no number"

    def every(self, tag: str, kind: str = "") -> list[ElementTree.Element]:
        return [e for e in self.root.iter(f"{_SVG}{tag}") if kind in (e.get("class") or "").split() or not kind]

    def texts(self) -> list[str]:
        return [e.text or "" for e in self.every("text")]

    def tooltips(self) -> list[str]:
        return [e.text or "" for e in self.root.iter(f"{_SVG}title")][1:]

    def lines(self) -> list[list[tuple[float, float]]]:
        """The points of every polyline."""
        return [
            [(float(x), float(y)) for x, y in (pair.split(",") for pair in (e.get("points") or "").split())]
            for e in self.every("polyline")
        ]


def chart(figure: str) -> Drawing:
    """The drawing of a figure."""
    found = re.search(r"<svg viewBox=[^>]*role=\"img\".*?</svg>", figure, re.DOTALL)
    assert found
    return Drawing(found[0])


def outside_details(text: str) -> str:
    """The page without what is folded away; details may hold others."""
    kept, depth = [], 0
    for part in re.split(r"(<details>|</details>)", text):
        if part in ("<details>", "</details>"):
            depth += 1 if part == "<details>" else -1
        elif depth == 0:
            kept.append(part)
    assert depth == 0
    return "".join(kept)

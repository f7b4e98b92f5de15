"""What the API reference makes of the source: `#:` comments are docstrings, and checks of recipes are left out."""

from __future__ import annotations

import re
from pathlib import Path

import griffe

_BEHIND = re.compile(r"#: ?(.*)$")
_ABOVE = re.compile(r"\s*#: ?(.*)$")


class Comments(griffe.Extension):
    """Reads the comment behind an attribute, or the lines above it. Functions marked with `reads` check recipes."""

    def on_function_instance(self, *, func: griffe.Function, **_: object) -> None:
        if any(one.callable_path.endswith("reads") for one in func.decorators):
            func.docstring = None

    def on_attribute_instance(self, *, attr: griffe.Attribute, **_: object) -> None:
        if attr.docstring or attr.lineno is None or attr.endlineno is None or not isinstance(attr.filepath, Path):
            return
        lines = attr.lines_collection[attr.filepath]
        if found := _BEHIND.search(lines[attr.endlineno - 1]):
            text = found[1]
        else:
            above: list[str] = []
            for line in reversed(lines[: attr.lineno - 1]):
                if not (found := _ABOVE.match(line)):
                    break
                above.insert(0, found[1])
            text = " ".join(above)
        if text:
            attr.docstring = griffe.Docstring(text[0].upper() + text[1:], lineno=attr.lineno, parent=attr)

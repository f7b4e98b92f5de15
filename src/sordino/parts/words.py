"""What is wrong with a recipe and where, in words that tables, slots and checks share."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from sordino.parts.toml import key

Location = tuple[str | int, ...]


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong, and where; a superfluous key leaves the rest of its table as it was meant."""

    path: Location
    text: str
    superfluous: bool = False

    def __str__(self) -> str:
        return f"{dotted(self.path)}: {self.text}" if self.path else self.text


def dotted(path: Location) -> str:
    """`split.sizes[3]`, with keys quoted where TOML asks for it."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{key(part)}"
    return text.removeprefix(".")


def nearest(given: object, names: Iterable[str]) -> str:
    """`did you mean 'x'? ` where a name is close to the one given, else nothing."""
    near = difflib.get_close_matches(str(given).lower(), list(names), n=1)
    return f"did you mean {near[0]!r}? " if near else ""

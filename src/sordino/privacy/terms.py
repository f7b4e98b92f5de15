"""Adjacencies and adversaries as people write them in commands and files: `record-replace`, `shuffled(100)`."""

from __future__ import annotations

import re
from typing import Literal, cast

from sordino.errors import InvalidInput
from sordino.privacy.guarantee import MODEL_READER, SERVER, Adjacency, Adversary


def plain(term: Adjacency | Adversary) -> str:
    """The spelling without spaces and brackets: `record-add-remove`, `model-reader`; numbers keep their brackets."""
    if isinstance(term, Adjacency):
        return _hyphenated(term.value)
    return str(term).replace(" ", "-")


def adjacency_named(text: str) -> Adjacency:
    """The adjacency of that name, in its plain spelling or in full; anything else is refused."""
    named = {plain(kind): kind for kind in Adjacency}
    chosen = named.get(_hyphenated(text.lower()))
    if chosen is None:
        raise InvalidInput(f"unknown adjacency {text!r}; allowed: {', '.join(named)}")
    return chosen


def adversary_named(text: str) -> Adversary:
    """server, model-reader, shuffled(N) or summed(N); anything else is refused."""
    name = text.strip().lower()
    if name == "server":
        return SERVER
    if name in ("model reader", "model-reader"):
        return MODEL_READER
    if match := re.fullmatch(r"(shuffled|summed)\((\d+)\)", name):
        return Adversary(cast(Literal["shuffled", "summed"], match[1]), int(match[2]))
    raise InvalidInput(f"unknown adversary {text!r}; allowed: server, model-reader, shuffled(N), summed(N)")


def _hyphenated(text: str) -> str:
    return re.sub(r"[^a-z]+", "-", text).strip("-")

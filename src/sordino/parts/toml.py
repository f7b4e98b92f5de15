"""Values as TOML writes them: for recipes on disk, and for what an error message says was given."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Path = tuple[str, ...]

_BARE = re.compile(r"[A-Za-z0-9_-]+")
_MOST_SHOWN = 80


def key(name: str) -> str:
    """A key as it is, or quoted where TOML asks for it."""
    return name if _BARE.fullmatch(name) else _text(name)


def inline(value: object) -> str:
    """A value on one line; floats are the shortest that read back exactly."""
    match value:
        case bool():
            return "true" if value else "false"
        case str():
            return _text(value)
        case Mapping():
            inner = ", ".join(f"{key(str(name))} = {inline(each)}" for name, each in value.items())
            return f"{{ {inner} }}" if inner else "{}"
        case Sequence():
            return f"[{', '.join(map(inline, value))}]"
    return repr(value)


def shown(value: object) -> str:
    """A value for an error message: cut short where it is long."""
    text = inline(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN]}..."


def document(data: Mapping[str, Any], is_table: Callable[[Path], bool], path: Path = ()) -> str:
    """A whole document: plain keys first, then the tables below them; a mapping that is no table stays on its line."""
    lines = [f"{key(name)} = {inline(value)}" for name, value in data.items() if not is_table((*path, name))]
    if path and (lines or not data):
        lines.insert(0, f"[{'.'.join(map(key, path))}]")
    blocks = ["\n".join(lines) + "\n"] if lines else []
    tables = ((name, value) for name, value in data.items() if is_table((*path, name)))
    blocks += [document(value, is_table, (*path, name)) for name, value in tables]
    return "\n".join(blocks)


def _text(value: str) -> str:
    """JSON's escapes are TOML's, but for the delete character, which TOML wants escaped as well."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


_TOKEN = re.compile(
    r"""(?P<skip>[ \t]++|\#[^\n]*+|"{3}(?:[^"\\]|\\.|"(?!""))*+(?:"{3,5}+)?|'{3}(?:[^']|'(?!''))*+(?:'{3,5}+)?)
      |(?P<word>[A-Za-z0-9_-]++|"(?:[^"\\\n]|\\[^\n])*+"?|'[^'\n]*+'?)
      |(?P<dot>\.)
      |(?P<other>.)""",
    re.DOTALL | re.VERBOSE,
)


def deepest_key(text: str) -> int:
    """How many parts the longest dotted key of a TOML text has, without parsing it; numbers count as keys.

    It takes a time proportional to the text, and `tomllib` the square of what is found here.
    """
    deepest = parts = 0
    after_dot = False
    for token in _TOKEN.finditer(text):
        match token.lastgroup:
            case "word":
                parts = parts + 1 if after_dot else 1
                deepest, after_dot = max(deepest, parts), False
            case "dot":
                after_dot = parts > 0
            case "other":
                parts, after_dot = 0, False
    return deepest

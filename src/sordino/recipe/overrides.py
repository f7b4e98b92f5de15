"""Changes to a recipe by dotted keys, `training.epochs=5`: on the table as it was given, before it is validated."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from sordino.parts.slot import Slot
from sordino.parts.tables import TAGS, tag_of
from sordino.parts.toml import inline, shown
from sordino.parts.words import Problem, dotted
from sordino.recipe.problems import unknown_key
from sordino.recipe.tree import Node, default_of, tags_of

Keys = tuple[str, ...]


class _Unset:
    """An empty value: the key is taken away, and its default holds."""


UNSET = _Unset()


@dataclass
class Overridden:
    """The changed table, with what could not be changed."""

    data: dict[str, Any]
    problems: list[Problem] = field(default_factory=list)


def parsed(settings: Sequence[str]) -> tuple[dict[Keys, Any], list[Problem]]:
    """`key=value` texts as keys and values: values as TOML writes them, bare words as text, nothing to take it away."""
    changes: dict[Keys, Any] = {}
    problems = []
    for setting in settings:
        name, equals, value = setting.partition("=")
        keys = _keys(name.strip())
        if not equals or not keys:
            problems.append(Problem((), f"{setting!r} is not key=value, such as training.epochs=5"))
            continue
        try:
            last = _value(value.strip())
            changes.pop(keys, None)  # a key that comes again counts where it comes last, after what lies between
            changes[keys] = last
        except tomllib.TOMLDecodeError:
            problems.append(Problem(keys, f"{value.strip()!r} cannot be read as a TOML value"))
    return changes, problems


def addressed(changes: Mapping[str, Any]) -> tuple[dict[Keys, Any], list[Problem]]:
    """Changes by dotted keys as changes by their parts."""
    found = {text: _keys(text) for text in changes}
    wrong = [Problem((), f"{text!r} is no key, such as training.epochs") for text, keys in found.items() if not keys]
    return {keys: changes[text] for text, keys in found.items() if keys}, wrong


def _keys(text: str) -> Keys | None:
    """The parts of a dotted key, which may be quoted as in TOML; None for what is no key."""
    try:
        found: Any = tomllib.loads(f"{text} = 0") if "\n" not in text else None
    except tomllib.TOMLDecodeError:
        return None
    keys = []
    while isinstance(found, dict):
        ((name, found),) = found.items()
        keys.append(name)
    return tuple(keys)


def _value(text: str) -> Any:
    if not text:
        return UNSET
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except tomllib.TOMLDecodeError:
        if text[0] in "[{\"'":
            raise
        return text


def overridden(data: Mapping[str, Any], changes: Mapping[Keys, Any], root: type[BaseModel]) -> Overridden:
    """The table with the changes made.

    Where a change gives a table another form (`kind` or `name`), keys that only the old form had go with it if they
    hold its defaults; keys that hold something else are a problem, since they were meant.
    """
    result = Overridden(deepcopy(dict(data)))
    for keys, value in changes.items():
        _set(result, keys, value, root)
    _drop_stale(result, data, changes, root)
    return result


def _set(result: Overridden, keys: Keys, value: Any, root: type[BaseModel]) -> None:
    nodes = [(Node(root), None)]
    said: Any = result.data
    for depth, name in enumerate(keys):
        if problem := _unknown(*nodes[-1], said, keys[: depth + 1], root):
            result.problems.append(problem)
            return
        nodes.append(_step(*nodes[-1], name, said))
        said = said.get(name) if isinstance(said, Mapping) else None
    if value is UNSET:
        _take_away(result.data, keys)
        return
    table = result.data
    for name, (_, default) in zip(keys[:-1], nodes[1:], strict=False):
        table = _opened(table, name, default)
    _forget_other_form(table, nodes[-2][0], keys[-1])
    table[keys[-1]] = deepcopy(value)


def _take_away(table: Any, keys: Keys) -> None:
    for name in keys[:-1]:
        table = table.get(name) if isinstance(table, dict) else None
    if isinstance(table, dict):
        table.pop(keys[-1], None)


def _forget_other_form(table: dict[str, Any], node: Node, name: str) -> None:
    """Where its keys alone tell a table's form, as in { linear = [2, 8] }, a key of another form replaces it."""
    if node.models and len(node.forms) > 1 and not tags_of(node.models):
        beside = {key for model in node.models if name in model.model_fields for key in model.model_fields}
        for key in set(table) - beside:
            del table[key]


def _unknown(node: Node, default: Any, said: Any, keys: Keys, root: type[BaseModel]) -> Problem | None:
    """The problem of a key that no form of its table has."""
    models = [form.model for form in _likeliest_first(node, default, said) if form.model]
    if node.is_open or any(keys[-1] in model.model_fields for model in models):
        return None
    if not models:
        return Problem(keys, f"{dotted(keys[:-1])} is no table and has no keys of its own")
    known = list(dict.fromkeys(name for model in models for name in model.model_fields))
    return Problem(keys, unknown_key(keys, known, root))


def _step(node: Node, default: Any, name: str, said: Any) -> tuple[Node, Any]:
    """What is below a key in the form that its table has, or else in any, and what holds there if nothing is said."""
    for form in _likeliest_first(node, default, said):
        model = form.model
        if model and name in model.model_fields:
            info = model.model_fields[name]
            own = getattr(default, name, None)
            return Node.of_field(info), default_of(info) if own is None else own
    inside = next((form.inside(name) for form in node.forms if not form.model), None)
    return inside or Node(Any), None


def _likeliest_first(node: Node, default: Any, said: Any) -> tuple[Node, ...]:
    """The forms of a table, beginning with the one that it names, or has by default: forms may share a key's name."""
    named = said if isinstance(said, Mapping) else given(default) if isinstance(default, BaseModel) else {}
    own = node.chosen(named)
    return node.forms if own is node else (own, *(form for form in node.forms if form != own))


def _opened(table: dict[str, Any], name: str, default: Any) -> dict[str, Any]:
    """The table below a key; one that is not there yet begins with what holds by default."""
    if not isinstance(table.get(name), dict):
        table[name] = given(default) if isinstance(default, BaseModel) and name not in table else {}
    inner: dict[str, Any] = table[name]
    return inner


def given(part: BaseModel) -> dict[str, Any]:
    """What was said and not left to defaults, with the form of every table."""
    said = {name: getattr(part, name) for name in type(part).model_fields if name in part.model_fields_set}
    if tag := tag_of(type(part)):
        said = {tag[0]: getattr(part, tag[0]), **said}
    return {name: _said(value) for name, value in said.items() if value is not None}


def _said(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return given(value)
    return list(value) if isinstance(value, tuple) else value


def _drop_stale(
    result: Overridden, before: Mapping[str, Any], changes: Mapping[Keys, Any], root: type[BaseModel]
) -> None:
    for keys in (keys for keys in changes if keys[-1] in TAGS):
        node = Node(root)
        old: Any = before
        new: Any = result.data
        for name in keys[:-1]:
            node, _ = _step(node, None, name, new)
            old = old.get(name) if isinstance(old, Mapping) else None
            new = new.get(name) if isinstance(new, dict) else None
        if node.slot and isinstance(old, Mapping) and isinstance(new, dict):
            _drop_keys_of_old_form(result, keys, node.slot, old, new, changes)


def _drop_keys_of_old_form(
    result: Overridden,
    keys: Keys,
    slot: Slot,
    old: Mapping[str, Any],
    new: dict[str, Any],
    changes: Mapping[Keys, Any],
) -> None:
    tag_key = keys[-1]
    was, becomes = slot.find(old.get(tag_key)), slot.find(new.get(tag_key))
    if was is None or becomes is None or was is becomes:
        return
    for name in [name for name in old if name in new and name not in becomes.model_fields]:
        place = (*keys[:-1], name)
        if place in changes or name not in was.model_fields:
            continue  # meant, or wrong before: validation says what it is
        value = new.pop(name)
        if value != _plain(default_of(was.model_fields[name])):
            result.problems.append(
                Problem(
                    place,
                    f"got {shown(value)}, which belongs to {old[tag_key]}, not to {new[tag_key]}: take it away with "
                    f"{inline(f'{dotted(place)}=')}, or give what the new {tag_key} has instead",
                )
            )


def _plain(default: Any) -> Any:
    return default.model_dump(mode="json", exclude_none=True) if isinstance(default, BaseModel) else default

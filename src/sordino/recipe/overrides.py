"""Changes to a recipe by dotted keys, `training.epochs=5`: on the table as it was given, before it is validated."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy

from pydantic import BaseModel

from sordino.errors import InvalidInput
from sordino.parts.tables import TAGS, tag_of
from sordino.parts.toml import inline, shown
from sordino.parts.words import Problem, dotted, nearest
from sordino.recipe.problems import unknown_key
from sordino.recipe.tree import Node, default_of, tags_of

Keys = tuple[str, ...]
Data = dict[str, object]
Changes = Mapping[Keys, object]

UNSET = object()  #: an empty value: the key is taken away, and its default holds


def parsed(settings: Sequence[str]) -> tuple[dict[Keys, object], list[Problem]]:
    """`key=value` texts as keys and values: values as TOML writes them, bare words as text, nothing to take it away."""
    changes: dict[Keys, object] = {}
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


def addressed(changes: Mapping[str, object]) -> tuple[dict[Keys, object], list[Problem]]:
    """Changes by dotted keys as changes by their parts."""
    found = {text: _keys(text) for text in changes}
    wrong = [Problem((), f"{text!r} is no key, such as training.epochs") for text, keys in found.items() if not keys]
    return {keys: changes[text] for text, keys in found.items() if keys}, wrong


def _keys(text: str) -> Keys | None:
    """The parts of a dotted key, which may be quoted as in TOML; None for what is no key."""
    try:
        found: object = tomllib.loads(f"{text} = 0") if "\n" not in text else None
    except tomllib.TOMLDecodeError:
        return None
    keys: list[str] = []
    while isinstance(found, dict):
        ((name, found),) = found.items()
        keys.append(name)
    return tuple(keys)


def _value(text: str) -> object:
    if not text:
        return UNSET
    try:
        return tomllib.loads(f"value = {text}")["value"] if "\n" not in text else text
    except tomllib.TOMLDecodeError:
        if text[0] in "[{\"'":
            raise
        return text


def overridden(data: Mapping[str, object], changes: Changes, root: type[BaseModel]) -> tuple[Data, list[Problem]]:
    """The table with the changes made, and what could not be changed.

    Where a change gives a table another form (`kind` or `name`), keys that only the old form had go with it if they
    hold its defaults; keys that hold something else are a problem, since they were meant.
    """
    result = deepcopy(dict(data))
    problems = [problem for keys, value in changes.items() if (problem := _set(result, keys, value, root))]
    for keys in changes:
        if keys[-1] in TAGS:
            problems += _drop_keys_of_old_form(result, data, keys, changes, root)
    return result, problems


def _set(data: Data, keys: Keys, value: object, root: type[BaseModel]) -> Problem | None:
    places = _places(data, keys, root)
    if isinstance(places, Problem):
        return places
    if value is UNSET:
        holder = _at(data, keys[:-1])
        if isinstance(holder, dict):
            holder.pop(keys[-1], None)
        return None
    table = data
    for name, (_, default) in zip(keys[:-1], places[1:], strict=False):
        table = _opened(table, name, default)
    _forget_other_form(table, places[-2][0], keys[-1])
    table[keys[-1]] = deepcopy(value)
    return None


def _places(data: Data, keys: Keys, root: type[BaseModel]) -> list[tuple[Node, object]] | Problem:
    """The nodes from the root down to a key, each with what holds there if nothing is said; or what is wrong."""
    places: list[tuple[Node, object]] = [(Node(root), None)]
    for depth, name in enumerate(keys):
        node, default = places[-1]
        forms = _likeliest_first(node, default, _at(data, keys[:depth]))
        below = _below(forms, default, name)
        if below is None:
            return _unknown(forms, keys[: depth + 1], root)
        places.append(below)
    return places


def _at(table: object, keys: Keys) -> object:
    for name in keys:
        table = table.get(name) if isinstance(table, Mapping) else None
    return table


def _forget_other_form(table: Data, node: Node, name: str) -> None:
    """Where its keys alone tell a table's form, as in { linear = [2, 8] }, a key of another form replaces it."""
    if node.models and len(node.forms) > 1 and not tags_of(node.models):
        beside = {key for model in node.models if name in model.model_fields for key in model.model_fields}
        for key in set(table) - beside:
            del table[key]


def _unknown(forms: Sequence[Node], keys: Keys, root: type[BaseModel]) -> Problem:
    """The problem of a key that no form of its table has."""
    known = list(dict.fromkeys(name for form in forms if form.model for name in form.model.model_fields))
    own = list(forms[0].model.model_fields) if forms[0].model else []
    if nearest(keys[-1], own):  # of the form that the table has
        return Problem(keys, unknown_key(keys, own, root))
    if not known:
        return Problem(keys, f"{dotted(keys[:-1])} is no table and has no keys of its own")
    return Problem(keys, unknown_key(keys, known, root))


def _below(forms: Sequence[Node], default: object, name: str) -> tuple[Node, object] | None:
    """What is below a key, and what holds there if nothing is said; None where no form has the key."""
    for form in forms:
        if form.model and name in form.model.model_fields:
            field = form.model.model_fields[name]
            own = getattr(default, name, None)
            return Node.of_field(field), default_of(field) if own is None else own
    values = next((form.inside(name) for form in forms if form.is_open), None)
    return None if values is None else (values, None)


def _likeliest_first(node: Node, default: object, said: object) -> tuple[Node, ...]:
    """The forms of a table, beginning with the one that it names, or has by default: forms may share a key's name."""
    named = said if isinstance(said, Mapping) else given(default) if isinstance(default, BaseModel) else {}
    own = node.chosen(named)
    return node.forms if own is node else (own, *(form for form in node.forms if form != own))


def _opened(table: Data, name: str, default: object) -> Data:
    """The table below a key; one that is not there yet begins with what holds by default."""
    inner = table.get(name)
    if not isinstance(inner, dict):
        inner = given(default) if isinstance(default, BaseModel) and name not in table else {}
        table[name] = inner
    return inner


def given(part: BaseModel) -> Data:
    """What was said and not left to defaults, with the form of every table."""
    said = {name: getattr(part, name) for name in type(part).model_fields if name in part.model_fields_set}
    if tag := tag_of(type(part)):
        said = {tag[0]: getattr(part, tag[0]), **said}
    return {name: _said(value) for name, value in said.items() if value is not None}


def _said(value: object) -> object:
    if isinstance(value, BaseModel):
        return given(value)
    if isinstance(value, dict):
        return {name: _said(inner) for name, inner in value.items()}
    return list(value) if isinstance(value, tuple) else value


def _drop_keys_of_old_form(
    data: Data, before: Mapping[str, object], keys: Keys, changes: Changes, root: type[BaseModel]
) -> Iterator[Problem]:
    *above, tag = keys
    places, old, new = _places(data, tuple(above), root), _at(before, tuple(above)), _at(data, tuple(above))
    slot = None if isinstance(places, Problem) else places[-1][0].slot
    if slot is None or not isinstance(new, dict):
        return
    if not isinstance(old, Mapping):  # it began with what holds by default, which nobody has said
        try:
            becomes = slot.find(new.get(tag))
        except InvalidInput:
            return  # validation says what it is
        for name in [name for name in new if (*above, name) not in changes]:
            if becomes is not None and name not in becomes.model_fields:
                del new[name]
        return
    was, becomes = slot.find(old.get(tag)), slot.find(new.get(tag))
    if was is None or becomes is None or was is becomes:
        return
    for name in [name for name in old if name in new and name not in becomes.model_fields]:
        place = (*above, name)
        if place in changes or name not in was.model_fields:
            continue  # meant, or wrong before: validation says what it is
        value, default = new.pop(name), default_of(was.model_fields[name])
        if value != (default.model_dump(mode="json", exclude_none=True) if isinstance(default, BaseModel) else default):
            yield Problem(
                place,
                f"got {shown(value)}, which belongs to {old[tag]}, not to {new[tag]}: take it away with "
                f"{inline(f'{dotted(place)}=')}, or give what the new {tag} has instead",
            )

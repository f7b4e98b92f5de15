"""The grammar as a tree: which keys there are, what each of them allows, and where an error's location lies in it."""

from __future__ import annotations

import inspect
import types
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, Lt, MinLen
from pydantic import BaseModel, Tag
from pydantic.fields import FieldInfo

from sordino.errors import InvalidInput
from sordino.parts.slot import Slot
from sordino.parts.tables import Says, tag_of
from sordino.parts.toml import inline
from sordino.parts.words import Location, dotted
from sordino.report.words import listed


@dataclass(frozen=True)
class Node:
    """The type of a value with what is attached to it, freed of Optional and Annotated."""

    annotation: object
    metadata: tuple[object, ...] = ()

    @classmethod
    def of(cls, annotation: object, metadata: tuple[object, ...] = ()) -> Node:
        if get_origin(annotation) is Annotated:
            inner, *more = get_args(annotation)
            return cls.of(inner, (*_flat(more), *metadata))
        if _is_union(annotation) and type(None) in get_args(annotation):
            rest = tuple(arg for arg in get_args(annotation) if arg is not type(None))
            return cls.of(rest[0] if len(rest) == 1 else Union[rest], metadata)  # noqa: UP007
        return cls(annotation, metadata)

    @classmethod
    def of_field(cls, field: FieldInfo) -> Node:
        return cls.of(field.annotation, tuple(field.metadata))

    @property
    def slot(self) -> Slot | None:
        """The slot that takes a part here, if one does."""
        return next((each for each in self.metadata if isinstance(each, Slot)), None)

    @property
    def forms(self) -> tuple[Node, ...]:
        """The tables of a slot, or the members of a union; a node that is neither is its own only form."""
        if self.slot:
            return tuple(map(Node, self.slot.tables().values()))
        return tuple(map(Node.of, get_args(self.annotation))) if _is_union(self.annotation) else (self,)

    @property
    def model(self) -> type[BaseModel] | None:
        found = self.annotation
        return found if inspect.isclass(found) and issubclass(found, BaseModel) else None

    @property
    def models(self) -> tuple[type[BaseModel], ...]:
        """Those of its forms that are tables with keys of their own."""
        return tuple(form.model for form in self.forms if form.model)

    @property
    def is_open(self) -> bool:
        """Whether one of its forms is a table of any keys."""
        return any(get_origin(form.annotation) is dict for form in self.forms)

    def inside(self, part: str | int) -> Node | None:
        """The node of one element of a list, one value of an open table, or one key of a table."""
        if self.model:
            field = self.model.model_fields.get(str(part))
            return Node.of_field(field) if field else None
        if get_origin(self.annotation) is dict:
            return Node.of(get_args(self.annotation)[1])
        if get_origin(self.annotation) is tuple:
            return Node.of(get_args(self.annotation)[0])
        return None

    def form(self, tag: str | int) -> Node | None:
        """The form that an error's location names."""
        return next((f for f in self.forms if any(isinstance(m, Tag) and m.tag == tag for m in f.metadata)), None)

    def chosen(self, given: object) -> Node:
        """The form of the part that a table names; the node itself where it is no slot, or nothing known is named."""
        if self.slot is None:
            return self
        name = given.get(self.slot.key, self.slot.unsaid) if isinstance(given, Mapping) else None
        try:
            found = self.slot.find(name)
        except InvalidInput:  # code that cannot be imported
            found = None
        return Node(found) if found else self


def _flat(metadata: list[object]) -> Iterator[object]:
    for each in metadata:
        if isinstance(each, FieldInfo):
            yield from each.metadata
        else:
            yield each


def _is_union(annotation: object) -> bool:
    return get_origin(annotation) in (Union, types.UnionType)


def tags_of(models: tuple[type[BaseModel], ...]) -> dict[str, type[BaseModel]]:
    """The forms of a table by their names."""
    return {tag[1]: model for model in models if (tag := tag_of(model))}


@dataclass(frozen=True)
class Spot:
    """Where an error is: the path a user would write, what belongs there, and the table it is in.

    `siblings` are all forms of that table; `owner` is the one that was chosen.
    """

    path: Location
    node: Node | None
    owner: type[BaseModel] | None = None
    siblings: tuple[type[BaseModel], ...] = ()


def locate(root: type[BaseModel], location: Location, given: object) -> Spot:
    """The spot of a location as pydantic gives it, in what was given.

    The forms of unions are named between the keys; which part is in a slot is read off what was given.
    """
    spot = Spot((), Node(root))
    for part in location:
        table = spot.node
        if table is None:
            return spot
        node, path = table.chosen(given), (*spot.path, part)
        if node.slot is None and len(node.forms) > 1:
            spot = replace(spot, node=node.form(part) or node)
            continue
        if node.model:
            spot = Spot(path, node.inside(part), node.model, table.models)
        else:
            spot = replace(spot, path=path, node=node.inside(part))
        given = given.get(part) if isinstance(given, Mapping) else None
    return spot


# --- in words ---------------------------------------------------------------------------------------------------------


def allowed(node: Node) -> str:
    """What may stand here, in words."""
    for each in node.metadata:
        if isinstance(each, Says):
            return each.phrase
    if node.slot or len(node.forms) > 1:
        return _either(node)
    annotation, origin = node.annotation, get_origin(node.annotation)
    if origin is Literal:
        return listed([inline(value) if not isinstance(value, str) else value for value in get_args(annotation)], "or")
    if origin is tuple:
        return f"a list of {_plural(allowed(Node.of(get_args(annotation)[0])))}"
    if origin is dict:
        value = get_args(annotation)[1]
        return "a table" if value is Any else f"a table of {_plural(allowed(Node.of(value)))}"
    if node.model:
        return "a table"
    if annotation in (int, float):
        return _number(annotation, node.metadata)
    if annotation is str:
        return "text, not empty" if any(isinstance(m, MinLen) for m in node.metadata) else "text"
    return "true or false" if annotation is bool else "a value"


def literals(node: Node) -> list[str]:
    """The names that may stand here, where only certain names may."""
    return (
        [v for v in get_args(node.annotation) if isinstance(v, str)] if get_origin(node.annotation) is Literal else []
    )


def _either(node: Node) -> str:
    if tags := tags_of(node.models):
        return f"a table with one of these forms: {', '.join(tags)}"
    return listed([allowed(form) for form in node.forms], "or")


def _number(kind: type, metadata: tuple[object, ...]) -> str:
    signs = {Ge: (">=", "ge"), Gt: (">", "gt"), Le: ("<=", "le"), Lt: ("<", "lt")}
    bounds = [(*signs[type(m)], m) for m in metadata if type(m) in signs]
    limits = " and ".join(f"{sign} {_figure(getattr(bound, name))}" for sign, name, bound in bounds)
    return f"{'a whole number' if kind is int else 'a number'} {limits}".rstrip()


def _figure(bound: float) -> str:
    return str(bound) if isinstance(bound, int) else f"{bound:g}"


def _plural(phrase: str) -> str:
    for one, many in (("a whole number", "whole numbers"), ("a number", "numbers"), ("text", "texts")):
        if phrase.startswith(one):
            return many + phrase.removeprefix(one)
    return phrase


# --- every key --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Key:
    """One key of the grammar: where it stands, in which forms of its table, what it allows and what it is for."""

    key: str
    forms: tuple[str, ...]
    allowed: str
    default: str
    description: str


def keys(root: type[BaseModel]) -> list[Key]:
    """Every key a document can have, in the order of the grammar; keys alike in several forms are one."""
    found: dict[tuple[str, str, str, str], list[str]] = {}
    for each in _keys_below((), (root,), None):
        found.setdefault((each.key, each.allowed, each.default, each.description), []).extend(each.forms)
    return [Key(k, tuple(dict.fromkeys(forms)), a, d, text) for (k, a, d, text), forms in found.items()]


def _keys_below(path: Location, models: tuple[type[BaseModel], ...], default: object) -> Iterator[Key]:
    tags = tags_of(models)
    first = tag_of(models[0])
    if first:
        tag_key = first[0]
        chosen = getattr(default, tag_key, None)
        texts = [f"{tag} ({model.model_fields[tag_key].description})" for tag, model in tags.items()]
        default = inline(chosen) if chosen else "required"
        yield Key(dotted((*path, tag_key)), (), listed(list(tags), "or"), default, "; ".join(texts))
    for model in models:
        tag = tag_of(model)
        for name, field in model.model_fields.items():
            if tag is None or name != tag[0]:
                yield from _keys_of(path, name, field, (tag[1],) if tag and len(models) > 1 else ())


def _keys_of(path: Location, name: str, field: FieldInfo, forms: tuple[str, ...]) -> Iterator[Key]:
    node = Node.of_field(field)
    here = (*path, name)
    if node.models and len(node.models) == len(node.forms):
        optional = " (the whole table may be left out)" if field.default is None else ""
        for each in _keys_below(here, node.models, default_of(field)):
            first = each.description + optional if optional and each.default == "required" else each.description
            yield replace(each, forms=each.forms or forms, description=first)
        return
    yield Key(dotted(here), forms, allowed(node), _default(field), field.description or "")
    if node.is_open and (values := node.inside(name)) is not None and values.slot:
        yield from _keys_below((*here, "NAME"), values.models, None)


def default_of(field: FieldInfo) -> object:
    """What holds where nothing is said; None where something must be."""
    return None if field.is_required() else field.get_default(call_default_factory=True, validated_data={})


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = default_of(field)
    return "" if default is None else inline(default)

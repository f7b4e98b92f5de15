"""What is wrong with a recipe, in plain words: all of it at once, each with its place and the remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from functools import cache

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from sordino.errors import InvalidInput
from sordino.parts.tables import tag_of
from sordino.parts.toml import shown
from sordino.parts.words import Location, Problem, dotted, nearest
from sordino.recipe import tree
from sordino.recipe.tree import Spot, allowed, locate, tags_of
from sordino.report.words import listed


class RecipeInvalid(InvalidInput):
    """A recipe that cannot be meant: `problems` has one line for each thing that is wrong."""

    def __init__(self, problems: Iterable[str], recipe: str = "the recipe") -> None:
        self.problems = tuple(problems)
        self.recipe = recipe
        count = f"{len(self.problems)} problems" if len(self.problems) != 1 else "1 problem"
        super().__init__("\n".join([f"{recipe} has {count}:", *(f"  {problem}" for problem in self.problems)]))

    def __reduce__(self) -> tuple[type[RecipeInvalid], tuple[tuple[str, ...], str]]:
        return type(self), (self.problems, self.recipe)


def translated(error: ValidationError, root: type[BaseModel], given: object) -> list[Problem]:
    """Pydantic's errors about what was given as problems in the recipe's own words, one for each place."""
    found: dict[Location, Problem] = {}
    for each in error.errors(include_url=False):
        if each["type"] != "default_factory_not_called":  # the field before it is what is wrong
            problem = _problem(each, locate(root, each["loc"], given), root)
            found.setdefault(problem.path, problem)
    return list(found.values())


def _problem(error: ErrorDetails, spot: Spot, root: type[BaseModel]) -> Problem:
    given = error["input"]
    match error["type"]:
        case "missing":
            return Problem(spot.path, f"missing; {_purpose(spot)}")
        case "extra_forbidden":
            return Problem(spot.path, _superfluous_key(str(spot.path[-1]), spot, root), superfluous=True)
        case "refusal":
            return Problem(spot.path, error["msg"])
    node = spot.node
    assert node is not None
    names = [value for form in node.forms for value in tree.literals(form)]
    hint = nearest(given, names) if isinstance(given, str) else _nearest_key(given, node)
    return Problem(spot.path, f"got {shown(given)}; {hint}allowed: {allowed(node)}")


def _purpose(spot: Spot) -> str:
    field = spot.owner.model_fields[str(spot.path[-1])] if spot.owner else None
    purpose = f"{field.description} " if field and field.description else ""
    return f"{purpose}(allowed: {allowed(spot.node)})" if spot.node else purpose.strip()


def _nearest_key(given: object, node: tree.Node) -> str:
    """For a table whose keys tell its form, the key that was meant."""
    known = [name for model in node.models for name in model.model_fields]
    return nearest(next(iter(given), ""), known) if isinstance(given, dict) and known else ""


def _superfluous_key(name: str, spot: Spot, root: type[BaseModel]) -> str:
    """A key that the table does not have may be of another of its forms; else it is unknown."""
    assert spot.owner is not None
    tag = tag_of(spot.owner)
    others = [form for form, model in tags_of(spot.siblings).items() if name in model.model_fields]
    if tag and others:
        return f"belongs to {listed(others, 'or')}, not to {tag[1]}: leave it out, or change {tag[0]}"
    return unknown_key(spot.path, list(spot.owner.model_fields), root)


def unknown_key(path: Location, known: Sequence[str], root: type[BaseModel]) -> str:
    """What to do about a key that the table never has: it may be misspelt or misplaced, or an option of a model."""
    name = str(path[-1])
    option = f"an option of the model is set as {dotted((*path[:-1], 'options', name))}; " if "options" in known else ""
    hint = nearest(name, known) or _elsewhere(name, root) + option
    return f"unknown key; {hint}keys here: {', '.join(known)}"


def _elsewhere(name: str, root: type[BaseModel]) -> str:
    near = difflib.get_close_matches(name, list(_places(root)), n=1, cutoff=0.8)
    return f"did you mean {_places(root)[near[0]]!r}? " if near else ""


@cache
def _places(root: type[BaseModel]) -> dict[str, str]:
    """Where each key of the grammar stands, by its last part; the least nested place where there are several."""
    places: dict[str, str] = {}
    for each in sorted(tree.keys(root), key=lambda each: each.key.count(".")):
        places.setdefault(each.key.rpartition(".")[2], each.key)
    return places

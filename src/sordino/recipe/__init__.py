"""Recipes: a federation as data. TOML on disk, a validated object in memory.

    recipe = Recipe.load("two-point-digits", ["training.epochs=5", "clients.epsilon.uniform=[2, 8]"])
    recipe.number_of_clients, recipe.epsilons(), recipe.to_toml()

All that is wrong with a recipe is said at once (`RecipeInvalid.problems`), before any work begins.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Container, Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from sordino.errors import InvalidInput
from sordino.parts import registry, toml
from sordino.parts.registry import EVERYTHING, AddressLog, CodeNotAllowed, own_code
from sordino.parts.shipped_recipes import shipped
from sordino.parts.strengths import EPSILONS, LIMITS, resolved
from sordino.parts.tables import TomlTable
from sordino.parts.words import Location, Problem, dotted, nearest
from sordino.privacy.guarantee import Budget
from sordino.privacy.terms import adjacency_named, adversary_named
from sordino.recipe import tree
from sordino.recipe.checks import conflicts
from sordino.recipe.grammar import BudgetRule, Clients, Data, Evaluation, Model, Rounds, Sections, origin_of
from sordino.recipe.overrides import Changes, addressed, given, overridden, parsed
from sordino.recipe.problems import RecipeInvalid, translated
from sordino.recipe.tree import Key

SCHEMA = "https://json-schema.org/draft/2020-12/schema"


class Recipe(Sections):
    """A whole federation: data, split, model, clients and budgets, method, rounds and seed."""

    def __init__(self, /, **tables: Any) -> None:
        try:
            super().__init__(**tables)
        except ValidationError as error:
            raise RecipeInvalid(map(str, _all_problems(tables, translated(error, Sections, tables)))) from None
        if found := conflicts(self):
            raise RecipeInvalid(map(str, found))

    # --- reading ------------------------------------------------------------------------------------------------------

    @classmethod
    def load(cls, name_or_path: str | Path, overrides: Sequence[str] = ()) -> Recipe:
        """A shipped recipe by name, or one of your own by its file, changed by `key=value` settings.

        Relative paths in a file are relative to the file; in settings, to the current folder.
        """
        label, text, folder = _found(name_or_path)
        data = _read(text, label)
        if folder is not None:
            data = _anchored(data, folder)
            registry.search_beside(folder)
        return cls._changed(data, parsed(overrides), label)

    @classmethod
    def from_toml(cls, text: str, code: Container[str] = ()) -> Recipe:
        """The recipe that a TOML text describes.

        The text may come from somebody else: of code that is not Sordino's it may name only the addresses in `code`,
        else `CodeNotAllowed` is raised and nothing is imported. For text of one's own, give `EVERYTHING`.
        """
        with own_code(code):
            return cls.from_dict(_read(text, "the recipe"))

    @classmethod
    def from_dict(cls, data: Mapping[str, object]) -> Recipe:
        """The recipe that a table describes, with the keys of the TOML file."""
        if not isinstance(data, Mapping) or not all(isinstance(key, str) for key in data):
            raise InvalidInput(f"a recipe is a table of named keys, got {toml.shown(data)}")
        return cls(**data)

    def override(self, settings: Sequence[str]) -> Recipe:
        """The same recipe with `key=value` settings, such as `training.epochs=5`; an empty value takes a key away."""
        return self._changed(given(self), parsed(settings), f"the recipe {self.name!r}")

    def with_(self, changes: Mapping[str, object]) -> Recipe:
        """The same recipe with other values at dotted keys: `recipe.with_({"training.epochs": 5})`."""
        return self._changed(given(self), addressed(changes), f"the recipe {self.name!r}")

    @classmethod
    def _changed(cls, data: Mapping[str, object], given: tuple[Changes, list[Problem]], label: str) -> Recipe:
        changes, problems = given
        tables, more = overridden(data, changes, Sections)
        lines = [str(problem) for problem in (*problems, *more)]
        try:
            recipe = cls.from_dict(tables)
        except RecipeInvalid as error:
            raise RecipeInvalid((*lines, *error.problems), label) from None
        if lines:
            raise RecipeInvalid(lines, label)
        return recipe

    # --- writing ------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """The complete table, with every default that is in force; what does not apply is left out."""
        data = self.model_dump(mode="json", exclude_none=True)
        if self.method.draws_batches:
            data["training"] = {"optimizer": data["training"]["optimizer"]}
        if not self.method.takes_training:
            del data["training"]
        return data

    def to_toml(self) -> str:
        """The complete recipe as TOML; `from_toml` gives the same recipe back."""
        return toml.document(self.to_dict(), self._is_table)

    def _is_table(self, path: tuple[str, ...]) -> bool:
        found: object = self
        for name in path:
            if isinstance(found, TomlTable):
                found = getattr(found, name, None)
            else:
                found = found.get(name) if isinstance(found, Mapping) else None
        if isinstance(found, Mapping):
            return bool(found) and all(isinstance(inner, TomlTable) for inner in found.values())
        return isinstance(found, TomlTable) and not found.inline

    def settings(self) -> dict[str, object]:
        """Every setting in force by its dotted key, as `override` takes them."""

        def below(data: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, object]]:
            for name, value in data.items():
                here = (*path, name)
                yield from below(value, here) if self._is_table(here) else [(dotted(here), value)]

        return dict(below(self.to_dict()))

    @property
    def own_code(self) -> tuple[str, ...]:
        """The addresses of code other than Sordino's that this recipe names: owners list those that they accept."""
        asked = AddressLog()
        with own_code(asked):
            type(self).from_dict(self.to_dict())
        return tuple(asked.addresses)

    @property
    def computes_by_own_code(self) -> bool:
        """True if other code than Sordino's computes what a record adds: a network, loss, column or extractor."""
        extractor = getattr(self.method, "extractor", None)
        return self._learns_by_own_code or (extractor is not None and extractor.is_own)

    @property
    def _learns_by_own_code(self) -> bool:
        return self.model.is_own or self.model.own_loss or self.data.own_columns

    @property
    def is_foreign(self) -> bool:
        """True if nobody declared that own code treats each record by itself; an extractor's `elsewhere` does."""
        return self._learns_by_own_code and not self.model.per_record

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the canonical form: equal recipes have equal ones, however they were written down."""
        data = self.to_dict()
        if "columns" in data["data"]:  # their order is that of a record's values
            data["data"]["columns"] = list(data["data"]["columns"].items())
        canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(canonical.encode()).hexdigest()

    # --- the grammar --------------------------------------------------------------------------------------------------

    @classmethod
    def json_schema(cls) -> dict[str, object]:
        """The JSON Schema of all that a recipe can say, for editors."""
        return {"$schema": SCHEMA, **cls.model_json_schema()}

    @classmethod
    def all_keys(cls) -> list[Key]:
        """Every key of the grammar, with what it allows, its default and what it is for."""
        return tree.keys(Sections)

    # --- what each client has -----------------------------------------------------------------------------------------

    def epsilons(self) -> list[float] | None:
        """The mechanism's strength of each client, in order; None where the mechanism takes none."""
        strength = self.clients.epsilon
        return None if strength is None else resolved(strength, self.number_of_clients, self.seed, EPSILONS)

    def budgets(self) -> list[Budget] | None:
        """What each client's ledger enforces, in order; None where nothing is enforced."""
        rule = self.clients.budget
        if rule is None:
            return None
        adjacency, adversary = adjacency_named(rule.adjacency), adversary_named(rule.adversary)
        limits = resolved(rule.limit, self.number_of_clients, self.seed, LIMITS)
        return [Budget(limit, rule.delta, rule.basis, adjacency, adversary) for limit in limits]

    @property
    def described(self) -> str:
        """The summary; where it is that of a shipped recipe whose settings were changed, that they were."""
        if not self.summary or self.name not in shipped():
            return self.summary
        original = Recipe.load(self.name)
        mine, theirs = self.settings(), original.settings()
        changed = [key for key in {**theirs, **mine} if key != "seed" and mine.get(key) != theirs.get(key)]
        if not changed or self.summary != original.summary:
            return self.summary
        tables: dict[str, list[str]] = {}
        for key in changed:
            tables.setdefault(key.partition(".")[0], []).append(key)
        named = (table if len(keys) > 1 else keys[0] for table, keys in tables.items())
        return f"{self.summary} (as shipped; changed here: {', '.join(named)})"


# --- files ------------------------------------------------------------------------------------------------------------


def _found(name_or_path: str | Path) -> tuple[str, str, Path | None]:
    """What to call it, its text, and the folder that its paths are relative to."""
    name = str(name_or_path)
    if isinstance(name_or_path, str) and name in shipped():
        return f"the recipe {name!r}", shipped()[name].read_text(encoding="utf-8"), None
    path = Path(name_or_path).expanduser()
    if path.is_file():
        return name, _text_of(path), path.resolve().parent
    if path.suffix == ".toml" or path.name != name:
        raise InvalidInput(f"{name}: there is no such file")
    own = f"{name}.toml"
    meant = f"did you mean {own!r}? " if Path(own).is_file() else nearest(name, shipped())
    raise InvalidInput(
        f"there is no recipe {name!r}; {meant}`sordino recipes` lists what is shipped; one of your own is given by its "
        "path, such as ./mine.toml"
    )


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidInput(f"{path}: cannot be read as text in UTF-8 ({error})") from None


def _read(text: str, label: str) -> dict[str, object]:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeInvalid([f"not TOML: {error}"], label) from None


def _anchored(data: Mapping[str, object], folder: Path) -> dict[str, object]:
    """The table with its relative paths made absolute, so that the recipe means the same wherever it is run."""
    result = deepcopy(dict(data))
    own, split = result.get("data"), result.get("split")
    if isinstance(own, dict) and origin_of(str(own.get("source"))) in ("npz", "table", "images"):
        for name in ("source", "test"):
            if isinstance(own.get(name), str):
                own[name] = str(folder / Path(own[name]).expanduser())
    if isinstance(own, dict) and isinstance(own.get("columns"), dict):
        for rule in own["columns"].values():
            if isinstance(rule, dict) and isinstance(rule.get("vocabulary"), str):
                rule["vocabulary"] = str(folder / Path(rule["vocabulary"]).expanduser())
    if isinstance(split, dict) and isinstance(split.get("files"), list):
        split["files"] = [str(folder / Path(f).expanduser()) if isinstance(f, str) else f for f in split["files"]]
    return result


def columns_in(path: Path) -> dict[str, object]:
    """What a file, such as a recipe, learns from: its `data.columns`, with absolute paths, or its `data.features`."""
    data = _anchored(_read(_text_of(path), str(path)), path.resolve().parent).get("data")
    found = {key: data[key] for key in ("columns", "features") if data.get(key)} if isinstance(data, dict) else {}
    if not found:
        raise InvalidInput(f"{path} has neither data.columns nor data.features: name the file that declares them")
    return found


# --- validation -------------------------------------------------------------------------------------------------------

_STAND_INS: dict[str, object] = {
    "name": "recipe",
    "data": {"source": "digits"},
    "split": {"kind": "iid", "clients": 1},
    "model": {"name": "logistic"},
    "method": {"name": "fedavg"},
}


def _all_problems(tables: Mapping[str, object], found: list[Problem]) -> list[Problem]:
    """The problems of single keys, and of the rest of the recipe among itself: a table with a wrong key is left out."""
    data, unusable = deepcopy(dict(tables)), list[Location]()
    for problem in found:
        if problem.superfluous:
            _remove(data, problem.path)
        else:
            name = str(problem.path[0])
            unusable.append((name,))
            data.pop(name, None)
            if name in _STAND_INS:
                data[name] = _STAND_INS[name]
    try:
        return [*found, *conflicts(Sections.model_validate(data), unusable)]
    except ValidationError:  # of a table that was cut short
        return found


def _remove(table: object, path: Location) -> None:
    *above, name = path
    for part in above:
        table = table.get(part) if isinstance(table, dict) else None
    if isinstance(table, dict):
        table.pop(name, None)


__all__ = [
    "EVERYTHING", "BudgetRule", "Clients", "CodeNotAllowed", "Data", "Evaluation", "Key", "Model", "Recipe",
    "RecipeInvalid", "Rounds", "columns_in", "shipped",
]  # fmt: skip

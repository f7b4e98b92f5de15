"""The recipes that come with Sordino, and what a list says of each: read as they stand, without loading any part."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable

_MECHANISMS = {"fedavg": "none", "local-only": "none", "ldp-fl": "two-point"}  #: of methods, where a recipe names none


@dataclass(frozen=True)
class ShippedRecipe:
    """One recipe's line in a list; `mechanism` is None where its method takes none, `paper` where it is of none."""

    name: str
    summary: str
    data: str
    clients: int
    model: str
    method: str
    mechanism: str | None
    paper: str | None


def shipped() -> dict[str, Traversable]:
    """The recipes that come with Sordino, by name."""
    folder = files("sordino") / "recipes"
    found = {file.name.removesuffix(".toml"): file for file in folder.iterdir() if file.name.endswith(".toml")}
    return dict(sorted(found.items()))


def shipped_list() -> list[ShippedRecipe]:
    """A line for each recipe that comes with Sordino."""
    return [_read(file.read_text(encoding="utf-8")) for file in shipped().values()]


def _read(text: str) -> ShippedRecipe:
    told = tomllib.loads(text)
    split, method = told["split"], told["method"]
    mechanism = method["mechanism"]["name"] if "mechanism" in method else _MECHANISMS.get(method["name"])
    clients = split["clients"] if "clients" in split else len(split["sizes"])
    return ShippedRecipe(
        told["name"], told["summary"], told["data"]["source"], clients, told["model"]["name"], method["name"],
        mechanism, told.get("paper"),
    )  # fmt: skip


__all__ = ["ShippedRecipe", "shipped", "shipped_list"]

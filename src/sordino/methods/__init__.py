"""Methods: one paper's algorithm or one baseline a file, found by the name that recipes use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from sordino.errors import InvalidInput

if TYPE_CHECKING:
    from sordino.methods.setting import Built, Setting
    from sordino.recipe import Recipe

#: The name in a recipe, and the file that holds the method.
METHODS = {
    "fedavg": "fedavg",
    "central-dp": "central_dp",
    "silo-dp": "silo_dp",
    "ldp-fed": "ldp_fed",
    "local-only": "local_only",
    "hybrid-one": "hybrid_one",
    "ldp-fl": "ldp_fl",
    "personalized": "personalized",
    "webfed": "webfed",
    "ldpfl": "ldpfl",
}


def build(setting: Setting) -> Built:
    """The method that the recipe names."""
    built: Built = _module(setting.recipe.method.name).build(setting)
    return built


def record_shape(recipe: Recipe, shape: tuple[int, ...], classes: int) -> tuple[int, ...]:
    """The shape in which the model sees a record; methods that make something else of records say so themselves."""
    own = getattr(_module(recipe.method.name), "record_shape", None)
    return shape if own is None else tuple(own(recipe, shape, classes))


def _module(name: str) -> Any:
    if name not in METHODS:
        raise InvalidInput(f"unknown method {name!r}; allowed: {', '.join(METHODS)}")
    return import_module(f"sordino.methods.{METHODS[name]}")

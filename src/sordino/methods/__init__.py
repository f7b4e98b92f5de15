"""Methods: one paper's algorithm or one baseline a file, found by the name that recipes use."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from sordino.errors import InvalidInput

if TYPE_CHECKING:
    from sordino.methods.setting import Built, Setting

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
}


def build(setting: Setting) -> Built:
    """The method that the recipe names."""
    name = setting.recipe.method.name
    if name not in METHODS:
        raise InvalidInput(f"unknown method {name!r}; allowed: {', '.join(METHODS)}")
    built: Built = import_module(f"sordino.methods.{METHODS[name]}").build(setting)
    return built

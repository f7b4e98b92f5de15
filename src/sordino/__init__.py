"""Sordino: federated learning under local differential privacy, with an honest account of what is protected.

import sordino
outcome = sordino.run(sordino.Recipe.load("quickstart"), folder="runs/quickstart")
print(outcome.accuracy, outcome.statement.lead.proven)
found = sordino.audit("runs/quickstart")
leaks = sordino.attack("runs/quickstart").leaks
model = sordino.load_model("runs/quickstart")
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sordino.audits.run_attack import attack
    from sordino.audits.run_audit import audit
    from sordino.client import Client
    from sordino.errors import SordinoError
    from sordino.mechanisms import Mechanism
    from sordino.methods.interface import Method
    from sordino.recipe import Recipe
    from sordino.runs.loaded_run import load_run
    from sordino.runs.model_file import load_model
    from sordino.runs.observer import Observer
    from sordino.runs.outcome import Outcome
    from sordino.runs.simulation import run

__version__ = "0.1.0"

__all__ = [
    "Client", "Mechanism", "Method", "Observer", "Outcome", "Recipe", "SordinoError", "attack", "audit", "load_model",
    "load_run", "run",
]  # fmt: skip

_HOMES = {
    "Client": "client",
    "Mechanism": "mechanisms",
    "Method": "methods.interface",
    "Observer": "runs.observer",
    "Outcome": "runs.outcome",
    "Recipe": "recipe",
    "SordinoError": "errors",
    "attack": "audits.run_attack",
    "audit": "audits.run_audit",
    "load_model": "runs.model_file",
    "load_run": "runs.loaded_run",
    "run": "runs.simulation",
}


def __getattr__(name: str) -> object:
    """Public names are loaded when first used, so that `import sordino` and the command line start at once."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sordino' has no attribute {name!r}")
    from sordino.parts.lazy import loading

    with loading():
        return getattr(import_module(f"sordino.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__

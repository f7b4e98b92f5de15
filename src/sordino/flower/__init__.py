"""Sordino on Flower: a federation between organisations.

The coordinator runs in a `ServerApp`. Nodes run whatever app the server sends them, so the `ClientApp` is a relay and
nothing more: it hands bytes to the owner's `sordino client` over a local socket. An existing, honest Flower app gets a
mechanism and a ledger in one line: `ClientApp(mods=[sordino.flower.local_privacy(...)])`.

    from sordino.flower import RunConfig, write_app
    write_app("app", Recipe.load("two-point-digits"), RunConfig("digits", Path("/srv/runs")))      then: flwr run app
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING

from sordino.errors import SordinoError

#: Flower and Ray read these when they are imported, which nothing here does any sooner; the user's own word counts.
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
}
for _name, _value in QUIET.items():
    os.environ.setdefault(_name, _value)

if TYPE_CHECKING:
    from sordino.flower.app import RunConfig, write_app
    from sordino.flower.mod import decoded, local_privacy
    from sordino.flower.simulation import simulate

_HOMES = {
    "RunConfig": "app", "decoded": "mod", "local_privacy": "mod", "simulate": "simulation", "write_app": "app",
}  # fmt: skip
__all__ = ["FlowerMissing", "RunConfig", "decoded", "local_privacy", "simulate", "write_app"]


class FlowerMissing(SordinoError, ImportError):
    """Flower (or, for its simulation, Ray) is not installed."""


def require(module: str = "flwr") -> None:
    """Say how to install what is not there."""
    try:
        import_module(module)
    except ModuleNotFoundError as error:
        if error.name != module:
            raise
        if module == "flwr":
            raise FlowerMissing("Flower is not installed: pip install 'sordino[flower]'") from None
        raise FlowerMissing(
            "Flower's simulation needs Ray, which is not installed: pip install 'sordino[flower]' 'flwr[simulation]'"
        ) from None


def __getattr__(name: str) -> object:
    """Loaded when first used: writing an app needs no Flower, a relay no PyTorch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sordino.flower' has no attribute {name!r}")
    if _HOMES[name] != "app":
        require()
    found: object = getattr(import_module(f"sordino.flower.{_HOMES[name]}"), name)
    return found

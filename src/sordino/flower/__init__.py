"""Sordino on Flower: a federation between organisations.

Whoever may start apps runs code in Flower's server and nodes, so both halves of the app are relays and nothing more:
they hand bytes over local sockets to `sordino coordinator`, the operator's own process, and to each owner's `sordino
client`. `sordino deploy` sets all of it up. An existing, honest Flower app gets a mechanism and a ledger in one line:
`ClientApp(mods=[sordino.flower.local_privacy(...)])`. Nothing is proven of its replies: the app can keep them back.
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
    from sordino.flower.app import write_app
    from sordino.flower.mod import local_privacy
    from sordino.flower.record_mod import private_training, record_privacy
    from sordino.flower.strategies import decoded, stated

_HOMES = {
    "decoded": "strategies", "local_privacy": "mod", "private_training": "record_mod",
    "record_privacy": "record_mod", "stated": "strategies", "write_app": "app",
}  # fmt: skip
__all__ = [
    "FlowerMissing", "decoded", "local_privacy", "private_training", "record_privacy", "stated", "write_app",
]  # fmt: skip


class FlowerMissing(SordinoError, ImportError):
    """Flower is not installed."""


def require() -> None:
    """Say how to install Flower where it is not there."""
    try:
        import_module("flwr")
    except ModuleNotFoundError as error:
        if error.name != "flwr":
            raise
        raise FlowerMissing("Flower is not installed: pip install 'sordino[flower]'") from None


def __getattr__(name: str) -> object:
    """Loaded when first used: writing an app needs no Flower, a relay no PyTorch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sordino.flower' has no attribute {name!r}")
    if _HOMES[name] != "app":
        require()
    found: object = getattr(import_module(f"sordino.flower.{_HOMES[name]}"), name)
    return found

"""The client: the owner's own process, which holds data, budget and ledger, and decides what leaves.

Whatever carries bytes (a socket, Flower, a page) hands messages in and takes answers out; nothing it says reaches round
the owner's settings, the agreed recipe or the ledger.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sordino.client.client import Client
    from sordino.client.invitation import Invitation
    from sordino.client.offer import Offer
    from sordino.client.refusal import Reason, Refused

_HOMES = {
    "Client": "client",
    "Invitation": "invitation",
    "Offer": "offer",
    "Reason": "refusal",
    "Refused": "refusal",
}
__all__ = ["Client", "Invitation", "Offer", "Reason", "Refused"]


def __getattr__(name: str) -> object:
    """Import a public name when it is first used: programs that only carry bytes need not load PyTorch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sordino.client' has no attribute {name!r}")
    return getattr(import_module(f"sordino.client.{_HOMES[name]}"), name)

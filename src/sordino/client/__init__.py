"""The client: the owner's own process, which holds data, budget and ledger, and decides what leaves.

Whatever carries bytes (a socket, Flower, a page) hands messages in and takes answers out; nothing it says reaches round
the owner's settings, the agreed recipe or the ledger.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sordino.client.client import Client, Offer, Reply
    from sordino.client.invitation import Invitation
    from sordino.client.refusal import Reason, Refused

_HOMES = {
    "Client": "client",
    "Invitation": "invitation",
    "Offer": "client",
    "Reason": "refusal",
    "Refused": "refusal",
    "Reply": "client",
}
__all__ = ["Client", "Invitation", "Offer", "Reason", "Refused", "Reply"]


def __getattr__(name: str) -> Any:
    """Loaded when first used: what only carries bytes need not load PyTorch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'sordino.client' has no attribute {name!r}")
    return getattr(import_module(f"sordino.client.{_HOMES[name]}"), name)

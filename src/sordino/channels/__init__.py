"""Channels: how reports travel from clients to the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sordino.errors import InvalidInput

if TYPE_CHECKING:
    from sordino.methods.interface import Method
    from sordino.recipe import Recipe


def build(recipe: Recipe, method: Method) -> Any:
    """The channel that the recipe names, for a simulation."""
    given: Any = recipe.method.channel
    match given.kind:
        case "direct":
            from sordino.channels.direct import Direct

            return Direct()
        case "relay":
            from sordino.channels.relay import Relay

            return Relay.simulated(given.k, [method.class_of(k) for k in range(method.clients)], recipe.seed)
    raise InvalidInput(f"unknown channel {given.kind!r}")


__all__ = ["build"]

"""Channels: how reports travel from clients to the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sordino.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sordino.channels.interface import Channel
    from sordino.channels.secagg import Identity
    from sordino.channels.summed import Members
    from sordino.methods.interface import Method
    from sordino.recipe import Recipe


def build(recipe: Recipe, method: Method) -> Channel:
    """The channel that the recipe names.

    A shuffler service is stood in for by this process, as a simulation wants it; `sordino.shuffler.channel` has the
    channel that goes through a real one.
    """
    given: Any = recipe.method.channel
    match given.kind:
        case "direct":
            from sordino.channels.direct import Direct

            return Direct()
        case "relay":
            from sordino.channels.relay import Relay

            return Relay.simulated(given.k, [method.class_of(k) for k in range(method.clients)], recipe.seed)
        case "shuffled":
            from sordino.channels.shuffle import Shuffled

            return Shuffled.of(recipe, method)
        case "shuffler":
            from sordino.channels.shuffle import Shuffled

            return Shuffled.in_place_of_service(method)
        case "summed":
            from sordino.channels.summed import Rule, Summed

            rule = Rule(given.threshold, given.digits)
            rule.check(method, recipe.method.selection)
            return Summed(method, rule)
    raise InvalidInput(f"unknown channel {given.kind!r}")


def members(recipe: Recipe, method: Method, identities: Mapping[int, Identity] | None = None) -> Members | None:
    """The clients' side of the channel, where it has one beyond sending a report; `identities` sign keys for sums."""
    given: Any = recipe.method.channel
    if given.kind != "summed":
        return None
    from sordino.channels.summed import Members, Rule

    rule = Rule(given.threshold, given.digits)
    return Members(method, rule, rule.honest_clients(method, recipe.method.selection), identities)


__all__ = ["build", "members"]

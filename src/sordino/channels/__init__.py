"""Channels: how reports travel from clients to the coordinator."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sordino.channels.interface import Channel
    from sordino.channels.secagg import Identity
    from sordino.channels.secure_sum import Members
    from sordino.channels.spec import ReleasesOf
    from sordino.methods.interface import Method
    from sordino.privacy.guarantee import Release
    from sordino.recipe import Recipe
    from sordino.wire.messages import Plan


def build(recipe: Recipe, method: Method) -> Channel:
    """The channel that the recipe names."""
    channel: Channel = recipe.method.channel.build(recipe, method)
    return channel


def members(recipe: Recipe, method: Method, identities: Mapping[int, Identity] | None = None) -> Members | None:
    """The clients' side of the channel, where it has one beyond sending a report; `identities` sign keys for sums."""
    found: Members | None = recipe.method.channel.members(recipe, method, identities)
    return found


def releases(recipe: Recipe, method: Method) -> ReleasesOf:
    """What a report on a plan tells of its client behind the channel that the recipe names."""
    found: ReleasesOf = recipe.method.channel.releases(recipe, method)
    if recipe.evaluation.private is None and recipe.data.origin == "known":
        return found
    from sordino.methods.private_evaluation import with_sides
    from sordino.methods.upload import PerClass

    def of_training_records(plan: Plan) -> Sequence[Sequence[Release]]:
        classes = found(plan)
        return PerClass(len(classes), lambda k: tuple(map(with_sides, classes[k])))

    return of_training_records


__all__ = ["build", "members", "releases"]

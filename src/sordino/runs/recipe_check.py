"""What a run of a recipe would refuse before its first round, found without training."""

from __future__ import annotations

from sordino.errors import InvalidInput, SordinoError
from sordino.learning.datasets import KNOWN, Listing
from sordino.learning.splits import SizesSplit
from sordino.mechanisms.spec import per_layer
from sordino.methods.blueprint import Blueprint, blueprint_of
from sordino.parts.shipped import SOURCES
from sordino.recipe import Recipe


def problems(recipe: Recipe) -> list[str]:
    """All that a run would refuse, in the run's own words; nothing where it would start.

    Of a data set known by name, the shape and the number of examples are enough: each client is taken to hold an even
    share, or what `split.sizes` says. One's own data is read, as a run reads it.
    """
    from sordino import channels
    from sordino.learning import losses, models
    from sordino.learning.stacked_model import LOOP, StackedModel, probes
    from sordino.runs.federation import wire

    listing = _listing(recipe)
    try:
        if listing is None:
            found = wire(recipe)
            method, model, seen, task = found.method, found.model, found.record_shape, found.dataset.task
        else:
            try:
                blueprint, seen = blueprint_of(recipe, listing.shape, len(listing.classes), _sizes(recipe, listing))
            except InvalidInput as error:
                return [f"model: {error}"]
            if wrong := _range_problems(recipe, blueprint):
                return wrong
            method, model, task = recipe.method.build(blueprint), blueprint.model, blueprint.task
            channels.releases(recipe, method)
        recipe.method.channel.simulated_sides(recipe, method)
        if recipe.model.is_own:
            loss = losses.loss_of(recipe.model.name, recipe.model.loss, task)
            StackedModel(model, loss, LOOP, models.CPU).try_out(probes(seen))
    except SordinoError as error:
        return [str(error)]
    return []


def _listing(recipe: Recipe) -> Listing | None:
    """The data set known by name that the recipe uses, as it is or brought between 0 and 1; None for others."""
    source, arguments = recipe.data.source, recipe.data.arguments or {}
    return KNOWN.get(str(arguments.get("name")) if source in SOURCES else source)


def _sizes(recipe: Recipe, listing: Listing) -> tuple[int, ...]:
    """The records of each client, where nothing is known of their labels."""
    if isinstance(recipe.split, SizesSplit):
        return recipe.split.sizes
    clients, examples = recipe.number_of_clients, recipe.data.examples or listing.sizes[0]
    return tuple(examples // clients + (client < examples % clients) for client in range(clients))


def _range_problems(recipe: Recipe, blueprint: Blueprint) -> list[str]:
    """What is wrong with the layers that the range names: all of it, where a run would stop at the first."""
    found, within = [], getattr(recipe.method, "range", None)
    for name in ("radius", "centre"):
        try:
            per_layer(name, getattr(within, name, None) or 0.0, blueprint.layout.layers)
        except InvalidInput as error:
            found.append(str(error))
    return found


__all__ = ["problems"]

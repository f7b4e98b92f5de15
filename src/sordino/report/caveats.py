"""Caveats of a privacy statement: what a reader must know before its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino.report.words import counted, listed

if TYPE_CHECKING:
    from sordino.recipe import Recipe
    from sordino.recipe.grammar import Model, Rounds


def caveats(recipe: Recipe, finished: int, *, simulated: bool = False) -> tuple[str, ...]:
    """What a statement must say of foreign code, weights from elsewhere, rounds that were not fixed, and scores."""
    found = (*own_code_caveats(recipe), *_earlier_weights(recipe.model), *_early_stopping(recipe.rounds, finished))
    return (*found, *_recorded_scores(recipe)) if simulated else found


def own_code_caveats(recipe: Recipe) -> tuple[str, ...]:
    """That figures rest on the word of code that is no part of Sordino, where a recipe names some."""
    if not (own := [address for address in recipe.own_code if address != recipe.data.source]):
        return ()
    return (
        f"This federation uses {listed(own)}, which is no part of Sordino: what that code says of its own protection "
        "is its author's word, and nobody here has checked it. An audit can refute it.",
    )


def _earlier_weights(model: Model) -> tuple[str, ...]:
    """That nothing is said of how the first weights came about, where they were not drawn."""
    if model.starts_fresh:
        return ()
    origin = "its class brings" if model.start_file is None else f"{model.start_file} holds"
    return (
        f"Training started from the weights that {origin}. What they tell of records that they were trained on before "
        "is in none of these figures: if those were these records, the earlier run's figures add to these.",
    )


def _early_stopping(rounds: Rounds, finished: int) -> tuple[str, ...]:
    if not rounds.stopping_rules:
        return ()
    if rounds.stop_on == "validation":
        return (
            "When to stop was decided by examples that clients set aside, which is a release of its own, without "
            "noise: nothing is proven of it, nor of the run as a whole.",
        )
    if finished >= rounds.count:
        return ()
    fixed = f"The figures are those of {counted(finished, 'round')} fixed in advance"
    every = f"proven, whatever ends the run, is what all {rounds.count} rounds come to, which the pre-flight has"
    return (f"When to stop was decided by what the model scored. {fixed}; {every}.",)


def _recorded_scores(recipe: Recipe) -> tuple[str, ...]:
    """That scores which decide nothing are the simulation's own, where some examples are set aside."""
    if not recipe.data.validation or (recipe.rounds.stopping_rules and recipe.rounds.stop_on == "validation"):
        return ()
    return (
        "Scores on examples that clients set aside are diagnostics of this simulation: no client sends them, they "
        "decide nothing in the run, and they are in none of these figures. Whoever publishes them, or chooses settings "
        "by them, releases them.",
    )


__all__ = ["caveats"]

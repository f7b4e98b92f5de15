"""Caveats of a privacy statement: what a reader must know before its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino.report.words import counted, listed

if TYPE_CHECKING:
    from sordino.recipe import Recipe
    from sordino.recipe.grammar import Model, Rounds


def caveats(recipe: Recipe, finished: int) -> tuple[str, ...]:
    """What a statement must say of foreign code, of weights from elsewhere, and of rounds that were not fixed."""
    return (*own_code_caveats(recipe), *_earlier_weights(recipe.model), *_early_stopping(recipe.rounds, finished))


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
    fixed = f"The figures are those of {counted(finished, 'round')} fixed in advance"
    if not rounds.stopping_rules:
        return ()
    if rounds.stop_on == "validation":
        return (
            "When to stop was decided by examples that clients set aside, which is a release of its own, without noise "
            f"and in none of these figures: of what it tells, nothing is proven. {fixed}.",
        )
    if finished >= rounds.count:
        return ()
    every = f"proven, whatever ends the run, is what all {rounds.count} rounds come to, which the pre-flight has"
    return (f"When to stop was decided by what the model scored. {fixed}; {every}.",)


__all__ = ["caveats"]

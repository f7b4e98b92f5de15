"""Caveats of a privacy statement: what a reader must know before its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino.report.words import counted, listed

if TYPE_CHECKING:
    from sordino.recipe import Recipe
    from sordino.recipe.grammar import Rounds


def caveats(recipe: Recipe, finished: int) -> tuple[str, ...]:
    """What a statement must say of code that is not Sordino's, and of rounds whose number was not fixed in advance."""
    return (*own_code_caveats(recipe), *_early_stopping(recipe.rounds, finished))


def own_code_caveats(recipe: Recipe) -> tuple[str, ...]:
    """That figures rest on the word of code that is no part of Sordino, where a recipe names some."""
    if not (own := [address for address in recipe.own_code if address != recipe.data.source]):
        return ()
    return (
        f"This federation uses {listed(own)}, which is no part of Sordino: what that code says of its own protection "
        "is its author's word, and nobody here has checked it. An audit can refute it.",
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

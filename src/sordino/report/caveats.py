"""Caveats of a privacy statement: what a reader must know before its figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sordino.report.words import counted

if TYPE_CHECKING:
    from sordino.recipe.grammar import Rounds


def early_stopping(rounds: Rounds, finished: int) -> tuple[str, ...]:
    """What a statement must say of so many rounds if their number was not fixed in advance; nothing if it was."""
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


__all__ = ["early_stopping"]

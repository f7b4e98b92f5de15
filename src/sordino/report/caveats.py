"""Caveats of a privacy statement: what a reader must know before its figures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sordino.report.words import counted, listed

if TYPE_CHECKING:
    from sordino.recipe import Recipe
    from sordino.recipe.grammar import Model, Rounds


def caveats(recipe: Recipe, finished: int, *, simulated: bool = False) -> tuple[str, ...]:
    """What a statement must say of foreign code, weights from elsewhere, rounds that were not fixed, and scores."""
    found = (
        *own_code_caveats(recipe), *_earlier_weights(recipe.model), *_early_stopping(recipe.rounds, finished),
        *_private_evaluation(recipe),
    )  # fmt: skip
    return (*found, *_recorded_scores(recipe)) if simulated else found


def own_code_caveats(recipe: Recipe) -> tuple[str, ...]:
    """That figures rest on the word of code that is no part of Sordino, where a recipe names some."""
    silent = {recipe.data.source, *(() if recipe.attacks is None else recipe.attacks.what)}  # which protect nothing
    if not (own := [address for address in recipe.own_code if address not in silent]):
        return ()
    return (
        f"This federation uses {listed(own)}, which is no part of Sordino: what that code says of its own protection "
        "is its author's word, and nobody here has checked it. An audit can refute it. A simulation's finite figures "
        "assume that this code never ends a client's process. A real client states no finite figure.",
    )


_NAMED = 20  #: nodes that a caveat names
_BY_MOD = "What left by the privacy mod of a Flower app"  #: how the caveat begins, in earlier statements too
MOD_TRUST = (
    f"{_BY_MOD} was randomised only if the app is honest: whoever sends the app is trusted to send it with this mod, "
    "and nobody here has checked that."
)


def is_by_mod(caveats: Sequence[str]) -> bool:
    """True if a statement with these caveats is about what left by privacy mods."""
    return any(each.startswith(_BY_MOD) for each in caveats)


def mod_caveats(untold: int = 0, partly: Sequence[str] = ()) -> tuple[str, ...]:
    """Whom figures of an app's privacy mods trust, how many nodes state none, and which left some out (`partly`)."""
    found = [MOD_TRUST]
    if untold:
        found.append(f"{counted(untold, 'node')} answered without saying what that protects: no figure is about them.")
    if partly:
        more = [f"{len(partly) - _NAMED} more"] if len(partly) > _NAMED else []
        found.append(
            f"Not every answer of {listed([*partly[:_NAMED], *more])} said what it protects: nothing finite is proven "
            "of all answers together."
        )
    return tuple(found)


def disjoint_caveats(dataset: str, others: Sequence[str]) -> tuple[str, ...]:
    """Which names of data an account leaves out on its owner's word."""
    if not others:
        return ()
    return (
        f"The owner declared that no row of {dataset} is also under {listed(others)}: for a row that is, what left "
        "under each name adds up. Equal rows count as one person's: a client that compares rows leaves one out that is "
        "also under another name, so that a person's row under one can remove another person's equal row.",
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


def _private_evaluation(recipe: Recipe) -> tuple[str, ...]:
    """That the figures cover two sides of the records, where some are set aside."""
    if (given := recipe.evaluation.private) is None:
        return ()
    return (
        f"Clients set {given.share:.0%} of their records aside, each by a public hash of itself, and never trained on "
        "them. They released noisy counts of the model's answers to these (private evaluation). The figures cover "
        "both.",
    )


def _recorded_scores(recipe: Recipe) -> tuple[str, ...]:
    """That scores which decide nothing are the simulation's own, where some examples are set aside."""
    if not recipe.data.validation or (recipe.rounds.stopping_rules and recipe.rounds.stop_on == "validation"):
        return ()
    return (
        "Scores on examples that clients set aside are diagnostics of this simulation: no client sends them, they "
        "decide nothing in the run, and they are in none of these figures. Whoever publishes them, or chooses settings "
        "by them, releases them.",
    )


__all__ = ["caveats", "is_by_mod", "mod_caveats", "own_code_caveats"]

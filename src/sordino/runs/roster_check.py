"""What the members of a roster mean for the rounds to come: whether enough of them are left for rounds to count."""

from __future__ import annotations

from collections.abc import Iterator

from sordino.channels.spec import first_tally
from sordino.fleets.roster import Roster
from sordino.methods.interface import Method
from sordino.recipe import Recipe
from sordino.report.words import listed
from sordino.runs.federation import wire


def roster_warnings(recipe: Recipe, roster: Roster) -> tuple[str, ...]:
    """Sentences for whoever changes a roster, before the next round: rounds that will not count, and why.

    Every round at which a place changes hands is looked at.
    """
    method, coming = wire(recipe).method, roster.begun + 1
    changes = {coming, *(own.first for own in roster.tenures)}
    changes |= {own.last + 1 for own in roster.tenures if own.last is not None}
    found: dict[str, int] = {}  # what is wrong -> the first round of which that is so
    for round in sorted(change for change in changes if change >= coming):
        for problem in _problems(recipe, method, roster.vacant(round)):
            found.setdefault(problem, round)
    said = [f"From round {max(1, round)} on, {problem}" for problem, round in found.items()]
    return (*said, *_unprepared(method, roster))


def _problems(recipe: Recipe, method: Method, vacant: frozenset[int]) -> Iterator[str]:
    there, quorum, channel = method.clients - len(vacant), recipe.rounds.quorum, recipe.method.channel
    if there < quorum:
        yield f"{there} of {method.clients} places are held and rounds.quorum is {quorum}: no round counts. Add members"
    asked = recipe.method.selection.asked(method.clients)
    for places in first_tally(method).classes(range(method.clients)).values():
        held, most = len(set(places) - vacant), min(len(places), asked)
        if channel.sums and held < (least := channel.least(most)):
            yield (
                f"{held} of {len(places)} places of a secure sum are held, and {least} must stay to its end: its "
                "rounds are lost. Add members, or begin a new federation with fewer places"
            )
        if channel.posts and held < (crowd := channel.at_least):
            yield (
                f"{held} members send through the shuffler, which passes on {crowd} reports or none: its rounds are "
                "lost. Add members, or begin a new federation with a smaller method.channel.at_least"
            )


def _unprepared(method: Method, roster: Roster) -> Iterator[str]:
    """Members that cannot report, since the method has them prepare something before the first round."""
    if roster.begun < 0 or method.preparation("") is None:
        return
    there = {own.name for own in roster.tenures if own.first == 0}
    if new := [own.name for own in roster.tenures if own.name not in there and own.last is None]:
        yield (
            f"{listed(new)} came after the preparation, which this method needs before the first round: their clients "
            "decline every round. Begin a new federation with them"
        )


__all__ = ["roster_warnings"]

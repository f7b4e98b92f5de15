"""Scores on examples that clients set aside: a release without noise, where they decide when a run stops."""

from __future__ import annotations

from collections.abc import Mapping

from sordino.privacy.guarantee import SERVER, Adjacency, Guarantee, Infinite, Release
from sordino.privacy.history import RoundReleases

_RULES = ("rounds.target_accuracy", "rounds.patience", "rounds.stop.kind")
_WHY = "validation scores, which have no noise, decide when the run stops"
_SCORES = Release(
    "validation-scores",
    "validation",
    "validation scores",
    (Guarantee(SERVER, Adjacency.CLIENT, Infinite(_WHY), "none"),),
)


def score_releases(settings: Mapping[str, object], clients: int) -> tuple[RoundReleases, ...]:
    """What clients release besides their rounds, by a recipe's settings; nothing where no score of theirs is used.

    The scores of all clients go into every decision to go on or to stop, from the first round on.
    """
    if settings.get("rounds.stop_on") != "validation" or not any(map(settings.get, _RULES)):
        return ()
    return (RoundReleases(0, ((_SCORES,),), (range(clients),)),)


__all__ = ["score_releases"]

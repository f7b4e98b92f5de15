"""Which experiments `sordino reproduce --quick` runs where none are named: what the papers state, in minutes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from papers.experiments import Experiment, gains

SECONDS = 1.5  #: that a scaled-down run takes on two cores, measured over all of them; the first guess at the time left


def first_look(offered: Mapping[str, Sequence[Experiment]]) -> dict[str, tuple[Experiment, ...]]:
    """Of each paper the experiments with a stated accuracy, and the first pair of every difference; all if none has."""
    found = {}
    for paper, own in offered.items():
        pairs = {name for gain in gains(paper) for name in gain.pairs[0]}
        stated = tuple(e for e in own if e.id in pairs or (e.stated is not None and not e.instead[0]))
        found[paper] = stated or tuple(own)
    return found


__all__ = ["SECONDS", "first_look"]

"""A recipe of one's own beside a paper's experiments: on their data, split and seeds, and as it is otherwise."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from papers.experiments import Experiment
from sordino.parts import registry
from sordino.parts.toml import inline
from sordino.recipe import Recipe

OWN = "own"  #: how a row is marked that is no paper's; names of its experiments begin so


def beside(path: Path, experiments: Sequence[Experiment]) -> tuple[Experiment, ...]:
    """An experiment of this recipe for every data set and split that these experiments have.

    A scaled-down one has their scaled-down data and rounds.
    """
    own = Recipe.load(path)
    code = [registry.digest(address) for address in own.own_code]
    found: dict[tuple[str, ...], Experiment] = {}
    for experiment in experiments:
        shared = _shared(experiment, quick=False)
        if shared not in found:
            text = " ".join([*code, *shared])
            found[shared] = Experiment(
                f"{OWN}-{own.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}",
                f"{OWN}: {own.name}, on the data of {experiment.id}",
                str(path),
                shared,
                _shared(experiment, quick=True),
                seeds=max(e.seeds for e in experiments if _shared(e, quick=False) == shared),
            )
    return tuple(found.values())


def _shared(experiment: Experiment, *, quick: bool) -> tuple[str, ...]:
    """What the two have in common, as settings."""
    recipe = experiment.settings(quick=quick, seed=1)
    packed = recipe.to_dict()
    tables = tuple(f"{name}={inline(packed[name])}" for name in ("data", "split"))
    return (*tables, f"rounds.count={recipe.rounds.count}") if quick else tables


def is_own(experiment: Experiment) -> bool:
    """Whether it is no paper's."""
    return experiment.id.startswith(f"{OWN}-")


__all__ = ["OWN", "beside", "is_own"]

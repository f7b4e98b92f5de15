"""The size of a run: which data set, how many of its examples, clients and rounds; and of a quick run what differs."""

from __future__ import annotations

import json
from collections.abc import Sequence

from papers.experiments import Experiment
from papers.records import Record
from sordino.learning.datasets import Listing, known
from sordino.recipe import Recipe
from sordino.report.words import counted

#: Settings that words stand for, or that change no figure.
SAID = frozenset(
    {"rounds.count", "split.clients", "split.sizes", "data.train_limit", "data.test_limit", "evaluation.every"}
)


def data_set(recipe: Recipe) -> Listing:
    """The known data set that a recipe's records are of, scaled by a data source of its own or not."""
    return known(str((recipe.data.arguments or {}).get("name", recipe.data.source)))


def training_examples(recipe: Recipe) -> int:
    """How many training examples all clients have together."""
    every = data_set(recipe).sizes[0]
    limited = min(every, recipe.data.train_limit or every)
    return int(sum(recipe.split.sizes)) if recipe.split.kind == "sizes" else limited


def examined_examples(recipe: Recipe) -> int:
    """How many examples a run is scored on."""
    every = data_set(recipe).sizes[1]
    return min(every, recipe.data.test_limit or every)


def what_ran(experiment: Experiment, records: Sequence[Record]) -> str:
    """The scale of recorded quick runs beside that of the experiment, and every other setting that differs."""
    quick, full = (experiment.settings(quick=scaled, seed=1) for scaled in (True, False))
    if not records:
        return f"{data_set(full).name}: not run"
    seeds = f"seed {records[0].seed}" if len(records) == 1 else counted(len(records), "seed")
    sizes = (
        _of(records[0].rounds, full.rounds.count, "round"),
        _of(quick.number_of_clients, full.number_of_clients, "client"),
        f"{seeds} of {experiment.seeds}",
        f"trained on {_of(training_examples(quick), training_examples(full))}",
        f"tested on {_of(examined_examples(quick), examined_examples(full))}",
    )
    return f"{data_set(full).name}: {', '.join((*sizes, *_other_changes(quick, full)))}"


def _of(part: int, whole: int, what: str = "example") -> str:
    return counted(part, what) if part == whole else f"{part:,} of {counted(whole, what)}"


def _other_changes(quick: Recipe, full: Recipe) -> list[str]:
    before = full.settings()
    return [
        f"{key} = {json.dumps(value)}"
        for key, value in quick.settings().items()
        if key not in SAID and before.get(key) != value
    ]


__all__ = ["data_set", "examined_examples", "training_examples", "what_ran"]

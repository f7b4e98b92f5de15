"""Run a paper's experiments, most valuable first; what was recorded before is not run again."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sordino.observer import Observer
from sordino.recipe import Recipe
from sordino.reproduce.experiments import Experiment
from sordino.reproduce.records import Record, Records, essence, stated, today
from sordino.runs import Outcome, run

Told = Callable[[Experiment, int, str], None]  #: experiment, seed, what happens


def reproduce(
    experiments: Sequence[Experiment],
    records: Records,
    *,
    quick: bool,
    seeds: int | None,
    folder: Path,
    workers: int | None = None,
    device: str = "cpu",
    told: Told = lambda *_: None,
    observer: Observer | None = None,
) -> None:
    """Run what is not recorded; an interrupted run goes on from its checkpoint."""
    for turn in range(1, max((seeds or e.seeds) for e in experiments) + 1):
        for experiment in experiments:
            wanted = 1 if quick else (seeds or experiment.seeds)
            if turn > wanted:
                continue
            recipe = experiment.settings(quick=quick, seed=turn)
            if records.has(experiment.id, turn, quick, essence(recipe)):
                told(experiment, turn, "recorded before")
                continue
            told(experiment, turn, "running")
            name = f"{experiment.id}{'-quick' if quick else ''}-{turn}"
            outcome = _run(recipe, folder / name, workers, device, observer)
            records.add(record(experiment, turn, quick, recipe, outcome, device))
            told(experiment, turn, "done")


def _run(recipe: Recipe, folder: Path, workers: int | None, device: str, observer: Observer | None) -> Outcome:
    begun = (folder / "recipe.toml").exists()
    return run(recipe, folder=folder, resume=begun, workers=workers, device=device, observer=observer)


def record(experiment: Experiment, seed: int, quick: bool, recipe: Recipe, outcome: Outcome, device: str) -> Record:
    """What is kept of a run."""
    result = outcome.result
    curve = tuple((r.round, r.accuracy) for r in outcome.rounds if r.accuracy is not None)
    reports = sum(r.reported for r in outcome.rounds)
    return Record(
        experiment.id,
        seed,
        quick,
        essence(recipe),
        accuracy=result.accuracy,
        best=max((accuracy for _, accuracy in curve), default=result.accuracy),
        rounds=result.rounds,
        seconds_per_round=round(result.seconds / max(1, result.rounds), 3),
        bytes_per_client=round(result.bytes_up / max(1, reports), 1),
        curve=curve,
        privacy=stated(outcome.statement),
        device=_device(device),
        versions=f"sordino {_version('sordino')}, torch {_version('torch')}",
        date=today(),
    )


def _device(name: str) -> str:
    if not name.startswith("cuda"):
        return "cpu"
    import torch

    found: Any = torch.cuda.get_device_name(name)
    return str(found)


def _version(package: str) -> str:
    if package == "sordino":
        from sordino import __version__

        return __version__
    return importlib.metadata.version(package)


__all__ = ["record", "reproduce"]

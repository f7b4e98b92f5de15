"""Run papers' experiments, most valuable first; what was recorded before is not run again.

An experiment whose data are not on this machine is skipped, and the others go on.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from papers.experiments import Experiment
from papers.records import Epsilons, Record, Records, essence, today, worst
from sordino import __version__
from sordino.errors import InvalidInput
from sordino.learning.datasets import DataUnavailable
from sordino.recipe import EVERYTHING, Recipe
from sordino.runs.observer import Observer
from sordino.runs.outcome import Outcome
from sordino.runs.simulation import run

What = Literal["running", "done", "recorded before", "skipped"]


@dataclass(frozen=True)
class SeedRun:
    """One run that is asked for: an experiment with one seed."""

    experiment: Experiment
    seed: int
    quick: bool

    @property
    def name(self) -> str:
        """Of its folder."""
        return f"{self.experiment.recorded_as}{'-quick' if self.quick else ''}-{self.seed}"

    def settings(self) -> Recipe:
        """Its recipe."""
        return self.experiment.settings(quick=self.quick, seed=self.seed)


@dataclass(frozen=True)
class RunProgress:
    """What happens to a seed_run, or has happened; `why` it was skipped is one line."""

    seed_run: SeedRun
    what: What
    why: str = ""


@dataclass
class MissingData:
    """Data that were looked for and are not here: they are not looked for, nor fetched, a second time."""

    found: dict[str, str] = field(default_factory=dict)

    def why(self, recipe: Recipe) -> str | None:
        """What is missing of a recipe's data, and where to put it; None where nothing is known to be."""
        return self.found.get(_data(recipe))

    def note(self, recipe: Recipe, error: DataUnavailable) -> str:
        """Remember that a recipe's data are missing."""
        return self.found.setdefault(_data(recipe), _in_one_line(str(error)))


def _in_one_line(text: str) -> str:
    """Sentences side by side, and the items of a list, which are indented, with commas between them."""
    first, *rest = text.splitlines()
    for line in rest:
        between = " " if first.endswith((".", ":", ")")) else ", " if line.startswith(" ") else ". "
        first += between + " ".join(line.split())
    return first


def _data(recipe: Recipe) -> str:
    return f"{recipe.data.source} {sorted((recipe.data.arguments or {}).items())}"


def seed_runs(experiments: Sequence[Experiment], *, quick: bool, seeds: int | None) -> tuple[SeedRun, ...]:
    """All runs that are asked for, the first seed of each before the second of any; quick ones have one seed."""
    if seeds is not None and seeds < 1:
        raise InvalidInput(f"--seeds is how many seeds each experiment has, 1 or more, got {seeds}")
    asked = [(experiment, seeds or (1 if quick else experiment.seeds)) for experiment in experiments]
    most = max((count for _, count in asked), default=0)
    return tuple(
        SeedRun(experiment, seed, quick) for seed in range(1, most + 1) for experiment, count in asked if seed <= count
    )


@dataclass(frozen=True)
class Runner:
    """Runs one paper's experiments into a folder; `tell` hears what happens to each, `observer` of its rounds."""

    records: Records
    folder: Path
    missing: MissingData
    workers: int | None = None
    device: str = "cpu"
    tell: Callable[[RunProgress], None] = lambda _: None
    observer: Observer | None = None

    def reproduce(self, seed_run: SeedRun) -> RunProgress:
        """Run an experiment unless it is recorded, and say how it ended; an interrupted run is resumed."""
        recipe, end = seed_run.settings(), RunProgress(seed_run, "done")
        before = self.records.of(seed_run.experiment.recorded_as, quick=seed_run.quick, settings=recipe)
        if any(record.seed == seed_run.seed for record in before):
            end = RunProgress(seed_run, "recorded before")
        elif (why := self.missing.why(recipe)) is not None:
            end = RunProgress(seed_run, "skipped", why)
        else:
            self.tell(RunProgress(seed_run, "running"))
            try:
                outcome = self._run(recipe, self.folder / seed_run.name)
            except DataUnavailable as error:
                end = RunProgress(seed_run, "skipped", self.missing.note(recipe, error))
            else:
                self.records.add(record(seed_run, recipe, outcome, self.device))
        self.tell(end)
        return end

    def _run(self, recipe: Recipe, folder: Path) -> Outcome:
        """In the folder, or beside it where one of other settings lies there."""
        if _is_of_another(folder, recipe):
            folder = folder.with_name(f"{folder.name}-{essence(recipe)[:8]}")
        return run(
            recipe, folder=folder, resume=(folder / "recipe.toml").exists(), workers=self.workers, device=self.device,
            observer=self.observer,
        )  # fmt: skip


def _is_of_another(folder: Path, recipe: Recipe) -> bool:
    """Whether a run of other settings lies there, as it does after an experiment has changed."""
    begun = folder / "recipe.toml"
    if not begun.exists():
        return False
    try:
        return Recipe.from_toml(begun.read_text(encoding="utf-8"), EVERYTHING).fingerprint != recipe.fingerprint
    except InvalidInput:  # written when recipes had other keys
        return True


def record(seed_run: SeedRun, recipe: Recipe, outcome: Outcome, device: str) -> Record:
    """What is kept of a run."""
    result = outcome.result
    curve = [(r.round, r.accuracy) for r in outcome.rounds if r.accuracy is not None]
    reports = sum(r.reported for r in outcome.rounds)
    return Record(
        seed_run.experiment.recorded_as,
        seed_run.seed,
        seed_run.quick,
        essence(recipe),
        accuracy=result.accuracy,
        best=max((accuracy for _, accuracy in curve), default=result.accuracy),
        rounds=result.rounds,
        seconds_per_round=round(result.seconds / max(1, result.rounds), 3),
        bytes_per_client=round(result.bytes_up / max(1, reports), 1),
        curve=tuple((number, round(accuracy, 6)) for number, accuracy in curve),
        privacy=worst(map(Epsilons.of, outcome.statement.rows)),
        device=_device(device),
        versions=f"sordino {__version__}, torch {importlib.metadata.version('torch')}",
        date=today(),
    )


def _device(name: str) -> str:
    if not name.startswith("cuda"):
        return "cpu"
    import torch

    return str(torch.cuda.get_device_name(name))


__all__ = ["MissingData", "RunProgress", "Runner", "SeedRun", "record", "seed_runs"]

"""What a run keeps so that it can go on exactly. Files are for simulations; `runs.journal` is for real clients.

A simulation writes a line a round, and now and then its state, one file that is replaced whole. Whatever a crash leaves
behind, the last state is readable; later lines are cut off and computed again, to the same bits.
"""

from __future__ import annotations

import hashlib
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sordino.errors import InvalidInput, SordinoError
from sordino.fleets.tasks import WorkerLost
from sordino.learning import memory
from sordino.learning.examples import Dataset
from sordino.parts import registry
from sordino.privacy.history import RoundReleases
from sordino.recipe import EVERYTHING, Recipe
from sordino.report.folder import BEGINNINGS, DATA_CHECK, RunFolder, alone
from sordino.report.records import RoundRecord
from sordino.runs.checkpoint import Belongings, Checkpoint, DamagedRun, Memory
from sordino.runs.coordinator import Attendance, RoundOutcome
from sordino.runs.federation import Federation
from sordino.runs.outcome import Outcome, write_outcome
from sordino.storage.files import append_line, keep_lines, make_folder, whole_lines, write_whole
from sordino.wire.messages import Plan

CHECKPOINT_SECONDS = 2.0  #: rounds shorter than this share a checkpoint: a crash costs that much work, no more
REAL = "real clients"  #: the device in environment.json that tells a run with these from a simulation


@dataclass(frozen=True)
class Past:
    """What a store knows of the rounds that are over."""

    checkpoint: Checkpoint | None = None  #: None before the first round is over
    spent: Sequence[RoundReleases] = ()
    records: Sequence[RoundRecord] = ()
    memory: Memory = field(default_factory=dict)  #: of the last checkpoint, be it one before the first round
    stopped: str | None = None  #: why the run is over; None where that is not written down
    receipts: Mapping[int, bytes] = field(default_factory=dict)  #: the last one of each client
    attendances: Mapping[int, Attendance] = field(default_factory=dict)  #: round -> who answered what
    about: Mapping[str, str] = field(default_factory=dict)  #: what was written down when the run began


class Store:
    """What a run keeps. This one keeps nothing, for a run without a folder."""

    def __init__(self, folder: RunFolder | None = None) -> None:
        self._folder = folder

    def load(self) -> Past:
        """What the run goes on from; later traces of a round that was broken off are removed."""
        return Past()

    def start(self, checkpoint: Checkpoint) -> None:
        """Note that a coordinator takes over, from this checkpoint."""

    def plan(self, plan: Plan) -> tuple[Plan, int]:
        """Keep a plan before anyone sees it; the plan to send now, and how often it went out, with this time.

        The plan is the one that was kept for its round before a restart, if any.
        """
        return plan, 1

    def end(
        self, outcome: RoundOutcome, spent: RoundReleases, record: RoundRecord | None, checkpoint: Checkpoint
    ) -> None:
        """Make a round part of the run: what became of it, and what the run goes on from. A preparation has no record.

        `spent` is what left clients in it.
        """

    def flush(self) -> None:
        """Write what waits to be written."""

    def finish(self, outcome: Outcome, federation: Federation) -> Outcome:
        """Write the outcome of a run of this federation, where there is a folder."""
        return outcome if self._folder is None else write_outcome(self._folder, outcome, federation)

    def belongings(self) -> Belongings:
        """What simulated clients prepared, and where they keep it."""
        return Belongings()


class FileStore(Store):
    """The folder `checkpoint` of a simulation: a line of releases for each round, and the last state."""

    def __init__(self, folder: RunFolder) -> None:
        super().__init__(folder)
        self._run, self._place = folder, folder.checkpoint
        self._state, self._releases = self._place / "state.safetensors", self._place / "releases.jsonl"
        self._last: Checkpoint | None = None  # what is to be written
        self._written = 0.0  # when a checkpoint was written last

    def load(self) -> Past:
        """What was kept up to the last checkpoint; later lines are cut off."""
        saved = Checkpoint.read(self._state) if self._state.exists() else None
        last, memory = (0, {}) if saved is None else (saved.state.round, saved.memory)
        spent = self.read_releases(last or -1)  # preparing is accounted for again; what was made lies in its own files
        self._run.truncate_rounds(last)
        records = self._run.rounds()
        if len(records) != last:
            raise DamagedRun(self._run.path / "metrics.jsonl", f"it holds {len(records)} of {last} rounds")
        return Past(saved if last else None, spent, records, memory)

    def start(self, checkpoint: Checkpoint) -> None:
        """Keep the first checkpoint, in case that no round comes to its end."""
        self._last = checkpoint

    def read_releases(self, last: int) -> list[RoundReleases]:
        """The releases up to round `last`, those before the first one included; later ones are cut off."""
        found = [RoundReleases.from_line(line) for line in whole_lines(self._releases)]
        kept = [spent for spent in found if spent.round <= last]
        if [spent.round for spent in kept if spent.round] != list(range(1, last + 1)):
            raise DamagedRun(self._releases, f"it lacks some of the rounds 1 to {last}")
        if len(kept) < len(found):
            keep_lines(self._releases, len(kept))
        return kept

    def end(
        self, outcome: RoundOutcome, spent: RoundReleases, record: RoundRecord | None, checkpoint: Checkpoint
    ) -> None:
        """Write the lines of a round, and its checkpoint if the last one is old."""
        make_folder(self._place)
        append_line(self._releases, spent.to_line().encode())
        if record is not None:
            self._run.append_round(record)
        self._last = checkpoint
        if record is not None and time.monotonic() - self._written >= CHECKPOINT_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Replace the checkpoint by the last one, durably and at once."""
        if self._last is not None:
            make_folder(self._place)
            write_whole(self._state, self._last.encode())
            self._last, self._written = None, time.monotonic()

    def belongings(self) -> Belongings:
        """What simulated clients prepared, in files of their own."""
        return Belongings(self._place / "clients")


# --- folders ----------------------------------------------------------------------------------------------------------


@contextmanager
def run_folder(
    recipe: Recipe, path: str | Path, *, resume: bool, device: str, dataset: Dataset | None = None
) -> Iterator[RunFolder]:
    """A run's folder, made or found again, for this process alone; `device` is `REAL` where clients are.

    `dataset` is the owner's own data, in files or in memory, where it is no known data set.

    A run that is refused before its first round leaves the folder free: see `free_if_refused`.
    """
    if resume:
        _check_resumed(recipe, RunFolder.open(path), device == REAL)
        check_data(RunFolder.open(path), dataset)
    check = None if resume or dataset is None else memory.check_of(dataset)
    del dataset  # this function waits until the run is over, which keeps its records elsewhere
    with alone(path):
        if resume:
            yield RunFolder.open(path)
        else:
            yield RunFolder.create(path, recipe.to_toml(), device=device, code=_digests(recipe), check=check)


def check_data(folder: RunFolder, dataset: Dataset | None) -> None:
    """Refuse other data than a run began with."""
    if dataset is None:
        return
    path = folder.path / DATA_CHECK
    if not path.is_file():
        raise InvalidInput(f"{path} is missing, so that nobody can tell which data the run began with: put it back")
    if not memory.fits_check(dataset, path.read_bytes()):
        raise InvalidInput(
            f"{folder.path} began with other data, and a run goes on as it began: put the old data back, or start anew "
            "in another folder"
        )


def _digests(recipe: Recipe) -> dict[str, str]:
    """What tells whether code or weights that the recipe names have changed."""
    files = (recipe.model.start_file, getattr(getattr(recipe.method, "extractor", None), "weights", None))
    weights = {str(file): hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files if file is not None}
    return {**{address: registry.digest(address) for address in recipe.own_code}, **weights}


def _check_resumed(recipe: Recipe, found: RunFolder, real: bool) -> None:
    if Recipe.from_toml(found.recipe, EVERYTHING).fingerprint != recipe.fingerprint:
        raise InvalidInput(f"{found.path} was run with another recipe: resume takes the recipe that lies there")
    had = found.environment.get("code")
    had = had if isinstance(had, dict) else {}
    if changed := [name for name, now in _digests(recipe).items() if had.get(name, now) != now]:
        raise InvalidInput(
            f"{', '.join(changed)} has changed since {found.path} began, and a run goes on as it began: put the old "
            "file back, or start anew in another folder"
        )
    if (found.environment.get("device") == REAL) == real:
        return
    if real:
        raise InvalidInput(f"{found.path} holds a simulation: go on with it without clients (sordino run --resume)")
    raise InvalidInput(
        f"{found.path} is a run with real clients, which is not simulated: go on with sordino.runs.serving.serve"
    )


@contextmanager
def free_if_refused(folder: RunFolder | None, *, resume: bool) -> Iterator[None]:
    """A run that is refused before its first round leaves its folder free; one that lost its workers can go on."""
    try:
        yield
    except WorkerLost:
        raise
    except SordinoError:
        if folder is not None and not resume:
            shutil.rmtree(folder.checkpoint, ignore_errors=True)
            for name in ("recipe.toml", *BEGINNINGS):
                (folder.path / name).unlink(missing_ok=True)
        raise


__all__ = ["REAL", "FileStore", "Past", "Store", "free_if_refused", "run_folder"]

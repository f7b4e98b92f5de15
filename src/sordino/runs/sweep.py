"""Many runs of one recipe: every combination of settings, every seed; interrupted sweeps go on where they stopped."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.errors import InvalidInput
from sordino.recipe import EVERYTHING, Recipe
from sordino.report.folder import RunFolder
from sordino.runs.execution import one_thread
from sordino.runs.observer import Observer

if TYPE_CHECKING:
    from sordino.fleets.ray_workers import RayPool
    from sordino.report.records import RoundRecord
    from sordino.runs.coordinator import Attendance
    from sordino.runs.outcome import Outcome

LONGEST_NAME = 80
FEWEST_RUNS, MOST_RUNS = 2, 16  #: runs that share a pool at the same time; each takes memory here
CLIENTS_PER_WORKER = 4  #: and so many clients of all of them together there should be


@dataclass(frozen=True)
class Axis:
    """One key of the recipe and the values it takes."""

    key: str
    values: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Axis:
        """`key=a,b,c`; commas within brackets, braces or quotes do not separate."""
        key, sign, rest = text.partition("=")
        values = tuple(value.strip() for value in _split(rest))
        if not sign or not key.strip() or not all(values):
            raise InvalidInput(f"--over takes key=value,value,..., for example clients.epsilon=1,2,4; got {text!r}")
        if len(set(values)) < len(values):
            raise InvalidInput(f"--over {text} names a value twice: each is run once")
        return cls(key.strip(), values)


def _split(text: str) -> Iterator[str]:
    depth, quoted, start = 0, "", 0
    for place, letter in enumerate(text):
        if quoted:
            quoted = "" if letter == quoted else quoted
        elif letter in "\"'":
            quoted = letter
        elif letter in "[{":
            depth += 1
        elif letter in "]}":
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[start:place]
            start = place + 1
    yield text[start:]


@dataclass(frozen=True)
class Point:
    """One run of a sweep."""

    folder: Path
    recipe: Recipe

    @property
    def finished(self) -> bool:
        """Whether it has a result already; a folder of another recipe is never taken for it."""
        if not (self.folder / "recipe.toml").exists():
            return False
        found = RunFolder.open(self.folder)
        if Recipe.from_toml(found.recipe, EVERYTHING).fingerprint != self.recipe.fingerprint:
            raise InvalidInput(
                f"{self.folder} holds a run of another recipe: choose another --out, or move that folder away"
            )
        return found.final_result() is not None

    @property
    def begun(self) -> bool:
        """Whether it was started before."""
        return (self.folder / "recipe.toml").exists()


def points(base: Recipe, axes: Sequence[Axis], seeds: int, out: Path) -> list[Point]:
    """All runs of a sweep; every recipe is checked before the first of them starts."""
    if seeds < 1:
        raise InvalidInput(f"--seeds must be at least 1, got {seeds}")
    if twice := {axis.key for axis in axes if [a.key for a in axes].count(axis.key) > 1}:
        raise InvalidInput(f"--over names {', '.join(sorted(twice))} twice: put all values behind one")
    if any(axis.key == "seed" for axis in axes):
        raise InvalidInput("--over seed=... is not a setting to compare: say how many seeds with --seeds")
    found = []
    for values in product(*(axis.values for axis in axes)):
        chosen = [f"{axis.key}={value}" for axis, value in zip(axes, values, strict=True)]
        for seed in range(base.seed, base.seed + seeds):
            recipe = base.override([*chosen, f"seed={seed}"])
            found.append(Point(out / _name(chosen, seed), recipe))
    return found


def _name(chosen: Sequence[str], seed: int) -> str:
    """A folder's name that says what was chosen, short enough for every file system."""
    words = [re.sub(r"[^A-Za-z0-9._=-]+", "-", choice).strip("-") for choice in chosen]
    name = "_".join([*words, f"seed={seed}"])
    if words == chosen and len(name) <= LONGEST_NAME:
        return name
    # What the name leaves out may be all that tells two runs apart: 1e+5 and 1e-5.
    digest = hashlib.sha256("\n".join(chosen).encode()).hexdigest()[:12]
    return f"{name[: LONGEST_NAME - 30].rstrip('_')}~{digest}_seed={seed}"


@dataclass(frozen=True)
class _Stop(Observer):
    """Ends a run after its round, as Ctrl-C does, once it is to stop."""

    event: threading.Event

    def round(self, record: RoundRecord, attendance: Attendance) -> None:
        if self.event.is_set():
            raise KeyboardInterrupt


def at_the_same_time(
    todo: Sequence[Point], do: Callable[[Point, Observer], Outcome], pool: RayPool
) -> Generator[tuple[Point, Outcome]]:
    """Do runs that share a pool, each as it ends; several at a time, so that all workers have clients to compute.

    `do` carries one out, and tells the observer. Where one fails, or the caller leaves, all stop after their round.
    """
    fill = -(-CLIENTS_PER_WORKER * pool.workers // min(point.recipe.number_of_clients for point in todo)) if todo else 1
    stop = threading.Event()
    with one_thread(), ThreadPoolExecutor(max(FEWEST_RUNS, min(fill, MOST_RUNS))) as threads:
        points = {threads.submit(do, point, _Stop(stop)): point for point in todo}
        try:
            for done in as_completed(points):
                yield points[done], done.result()
        except BaseException:
            stop.set()
            threads.shutdown(cancel_futures=True)
            raise


__all__ = ["Axis", "Point", "at_the_same_time", "points"]

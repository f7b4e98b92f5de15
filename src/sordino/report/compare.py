"""Several runs side by side: repetitions with other seeds put together, the settings that differ found out.

`compare(folders)` gives a `Comparison`, which becomes one page and one table of comma-separated values.
"""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from sordino.errors import InvalidInput
from sordino.privacy.statement import Row, View, leading, views
from sordino.report.folder import RunFolder
from sordino.report.records import INFINITE, Result, RoundRecord, to_line
from sordino.report.statement import adversary, proof

_LABELS = frozenset({"seed", "name", "summary", "paper"})  #: settings that do not change what is computed
UNSET = "not set"  #: how a setting is shown where a recipe does not have it


@dataclass(frozen=True)
class ComparedRun:
    """One finished run, as far as a comparison needs it."""

    folder: Path
    result: Result
    rounds: tuple[RoundRecord, ...]
    rows: tuple[Row, ...]

    @property
    def settings(self) -> dict[str, str]:
        """What makes this run the same experiment as another, as JSON texts: everything but seed and names."""
        return {key: to_line(value) for key, value in self.result.settings.items() if key not in _LABELS}

    @property
    def seconds_a_round(self) -> float | None:
        """Mean time of a round."""
        return statistics.fmean(record.seconds for record in self.rounds) if self.rounds else None

    @property
    def sent_up(self) -> float | None:
        """Bytes that a client sends in a round in which it reports."""
        reports = sum(record.reported for record in self.rounds)
        return sum(record.bytes_up for record in self.rounds) / reports if reports else None

    @property
    def sent_down(self) -> float | None:
        """Bytes that a client is sent in a round in which it is asked."""
        asked = sum(record.asked for record in self.rounds)
        return sum(record.bytes_down for record in self.rounds) / asked if asked else None


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation (with n - 1; none for a single value) of n values."""

    mean: float
    deviation: float | None
    n: int

    @classmethod
    def of(cls, values: Iterable[float | None]) -> Spread | None:
        """Of the values that are there; none where none is."""
        kept = [value for value in values if value is not None]
        if not kept:
            return None
        return cls(statistics.fmean(kept), statistics.stdev(kept) if len(kept) > 1 else None, len(kept))


@dataclass(frozen=True)
class Repetitions:
    """Runs that differ in their seed only."""

    runs: tuple[ComparedRun, ...]

    @property
    def name(self) -> str:
        return self.runs[0].result.name

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.result.seed for run in self.runs)

    @property
    def settings(self) -> dict[str, Any]:
        """The settings they share."""
        return {key: value for key, value in self.runs[0].result.settings.items() if key not in _LABELS}

    def spread(self, of: Callable[[ComparedRun], float | None]) -> Spread | None:
        """Mean and deviation of a figure over the runs."""
        return Spread.of(of(run) for run in self.runs)

    @property
    def accuracy(self) -> Spread | None:
        """Final accuracy over the runs."""
        return self.spread(lambda run: run.result.accuracy)

    @cached_property
    def views(self) -> tuple[View, ...]:
        """What the statements of all runs say, by onlooker and change."""
        return views(row for run in self.runs for row in run.rows)

    @property
    def lead(self) -> View | None:
        """The view that a whole run is judged by; none where no run has a statement."""
        return leading(self.views) if self.views else None

    def by_round(self) -> list[tuple[int, Spread]]:
        """Accuracy over the runs in every round in which all of them were evaluated."""
        measured = [{r.round: r.accuracy for r in run.rounds if r.accuracy is not None} for run in self.runs]
        common = sorted(set(measured[0]).intersection(*measured[1:]))
        found = ((number, Spread.of(own[number] for own in measured)) for number in common)
        return [(number, spread) for number, spread in found if spread is not None]


@dataclass(frozen=True)
class Comparison:
    """Groups of runs in the order of the settings in which they differ, and what a reader should know about them."""

    groups: tuple[Repetitions, ...]
    keys: tuple[str, ...]  #: settings that tell the groups apart
    notes: tuple[str, ...] = ()

    def label(self, group: Repetitions) -> str:
        """The group in terms of what differs; its name where nothing does, or so much that a name says more."""
        return group.name if self.named else self.words(group, self.keys) or group.name

    @property
    def named(self) -> bool:
        """Whether the groups go by their names: many settings differ, and no two have the same name."""
        return len(self.keys) > 2 and len({group.name for group in self.groups}) == len(self.groups)

    def words(self, group: Repetitions, keys: Sequence[str]) -> str:
        """Some settings of a group, in words."""
        return ", ".join(f"{self.short(key)} = {said(group.settings.get(key, UNSET))}" for key in keys)

    def short(self, key: str) -> str:
        """`mechanism` for `method.mechanism.name`, where that is not ambiguous."""
        shortened = [_short(other) for other in self.keys]
        return _short(key) if shortened.count(_short(key)) <= 1 else key

    @property
    def runs(self) -> int:
        """How many runs are compared."""
        return sum(len(group.runs) for group in self.groups)

    @property
    def views(self) -> tuple[tuple[str, str], ...]:
        """All pairs of onlooker and change of which some group's statement speaks."""
        return tuple(dict.fromkeys(view.key for group in self.groups for view in group.views))

    def to_csv(self) -> str:
        """One line per group with all figures unrounded; columns of epsilons name adjacency and adversary."""
        lines = [_csv_line(self, group) for group in self.groups]
        written = io.StringIO()
        writer = csv.DictWriter(written, list(lines[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(lines)
        return written.getvalue()


def compare(folders: Sequence[RunFolder | Path | str]) -> Comparison:
    """Compare finished runs; those that are not over, or repeat a seed of the same setting, are left out and named."""
    notes: list[str] = []
    groups: dict[tuple[tuple[str, str], ...], dict[int, ComparedRun]] = {}
    for given in folders:
        folder = given if isinstance(given, RunFolder) else RunFolder.open(given)
        result = folder.result()
        if result is None:
            notes.append(f"{folder.path} is left out: that run is not over.")
            continue
        run = ComparedRun(folder.path, result, folder.rounds(), _stated_rows(folder))
        seeds = groups.setdefault(tuple(sorted(run.settings.items())), {})
        if result.seed in seeds:
            notes.append(
                f"{folder.path} is left out: {seeds[result.seed].folder} has the same settings and the same seed, and "
                "a repetition says nothing about the spread."
            )
        seeds.setdefault(result.seed, run)
    if not groups:
        raise InvalidInput(f"there is no finished run to compare among the {len(folders)} folders given")
    found = [Repetitions(tuple(seeds.values())) for seeds in groups.values()]
    keys = telling_keys([group.settings for group in found])
    found.sort(key=lambda group: [_order(group.settings.get(key, UNSET)) for key in keys])
    return Comparison(tuple(found), keys, tuple(notes))


def _stated_rows(folder: RunFolder) -> tuple[Row, ...]:
    statement = folder.statement()
    return () if statement is None else statement.rows


def telling_keys(settings: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The settings that tell these apart.

    A setting that only some have, and those all alike, merely follows from another one (a mechanism has its own
    options): it is named only where the others do not tell all apart.
    """
    keys = list(dict.fromkeys(key for own in settings for key in own))
    varying = [key for key in keys if len({to_line(own.get(key, UNSET)) for own in settings}) > 1]
    leading = [key for key in varying if _varies_where_set(key, settings)]
    return tuple(leading if _all_distinct(leading, settings) else varying)


def _varies_where_set(key: str, settings: Sequence[Mapping[str, Any]]) -> bool:
    return len({to_line(own[key]) for own in settings if key in own}) > 1


def _all_distinct(keys: Sequence[str], settings: Sequence[Mapping[str, Any]]) -> bool:
    return len({tuple(to_line(own.get(key, UNSET)) for key in keys) for own in settings}) == len(settings)


def _order(value: Any) -> tuple[int, float, str]:
    """Numbers by size, then everything else by its text."""
    return (0, float(value), "") if is_number(value) else (1, 0.0, to_line(value))


def is_number(value: Any) -> bool:
    """Whether a setting is a number (and not true or false)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(key: str) -> str:
    """A recipe's key without the part that goes without saying."""
    parts = key.split(".")
    if len(parts) > 1 and parts[-1] in ("name", "kind"):
        parts.pop()
    return ".".join(parts[1:] if len(parts) > 1 and parts[0] in ("method", "training") else parts)


def said(value: Any) -> str:
    """A setting's value for people: as in JSON, but 2 rather than 2.0."""
    return value if isinstance(value, str) else to_line(value).removesuffix(".0")


# --- comma-separated values ------------------------------------------------------------------------------------------


def _csv_line(comparison: Comparison, group: Repetitions) -> dict[str, str]:
    line = {key: said(group.settings.get(key, UNSET)) for key in comparison.keys}
    line |= {"name": group.name, "runs": str(len(group.runs)), "seeds": " ".join(map(str, group.seeds))}
    line |= _csv_spread("accuracy", group.accuracy)
    line |= _csv_spread("loss", group.spread(lambda run: run.result.loss))
    line |= _csv_spread("rounds", group.spread(lambda run: float(run.result.rounds)))
    line |= _csv_spread("seconds per round", group.spread(lambda run: run.seconds_a_round))
    line |= _csv_spread("bytes up per client and round", group.spread(lambda run: run.sent_up))
    line |= _csv_spread("bytes down per client and round", group.spread(lambda run: run.sent_down))
    own = {view.key: view for view in group.views}
    for pair in comparison.views:
        line |= _csv_view(pair, own.get(pair))
    return line


def _csv_spread(name: str, spread: Spread | None) -> dict[str, str]:
    return {
        f"{name} mean": _csv_number(None if spread is None else spread.mean),
        f"{name} sd": _csv_number(None if spread is None else spread.deviation),
        f"{name} n": "0" if spread is None else str(spread.n),
    }


def _csv_view(pair: tuple[str, str], view: View | None) -> dict[str, str]:
    """Smallest and largest epsilon over clients and seeds, each beside its delta, and what proves it."""
    words = f"[adjacency {pair[1]}, against {pair[0]}]"
    claimed = None if view is None else view.claimed
    return {
        f"proven epsilon, smallest {words}": _csv_number(None if view is None else view.proven[0]),
        f"proven epsilon, largest {words}": _csv_number(None if view is None else view.proven[1]),
        f"proven delta {words}": "" if view is None else " ".join(map(repr, view.deltas)),
        f"proof {words}": "" if view is None else proof(view),
        f"adversary {words}": "" if view is None else adversary(view),
        f"claimed epsilon, smallest {words}": _csv_number(None if claimed is None else claimed[0]),
        f"claimed epsilon, largest {words}": _csv_number(None if claimed is None else claimed[1]),
        f"claimed delta {words}": "" if view is None else " ".join(map(repr, view.claimed_deltas)),
        f"verdict {words}": "" if view is None else "; ".join(view.verdicts),
    }


def _csv_number(value: float | None) -> str:
    if value is None:
        return ""
    return repr(value) if math.isfinite(value) else INFINITE

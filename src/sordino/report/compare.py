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
from itertools import chain
from pathlib import Path
from typing import TypeGuard

from sordino.errors import InvalidInput
from sordino.privacy.statement import Row, Statement, View, views
from sordino.report.folder import RunFolder
from sordino.report.metric_words import ACCURACY
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
    statement: Statement | None

    @property
    def rows(self) -> tuple[Row, ...]:
        """What its statement says; nothing where there is none."""
        return () if self.statement is None else self.statement.rows

    @property
    def settings(self) -> dict[str, object]:
        """What makes this run the same experiment as another: everything but seed and names."""
        return {key: value for key, value in _flat(self.result.settings).items() if key not in _LABELS}


def _flat(settings: Mapping[str, object]) -> dict[str, object]:
    """Settings with tables taken apart: `method.target.epsilon` rather than a table `method.target`."""
    found: dict[str, object] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            found |= {f"{key}.{inner}": entry for inner, entry in _flat(value).items()}
        else:
            found[key] = value
    return found


def _ratio(run: ComparedRun, total: str, by: str) -> float | None:
    """The sum of a figure over rounds, divided by that of another."""
    whole = sum(getattr(record, by) for record in run.rounds)
    return sum(getattr(record, total) for record in run.rounds) / whole if whole else None


#: the figures of a run that are compared, by the name of their columns
FIGURES: dict[str, Callable[[ComparedRun], float | None]] = {
    "accuracy": lambda run: run.result.accuracy,
    "loss": lambda run: run.result.loss,
    "rounds": lambda run: float(run.result.rounds),
    "seconds per round": lambda run: statistics.fmean(r.seconds for r in run.rounds) if run.rounds else None,
    "bytes up per client and round": lambda run: _ratio(run, "bytes_up", "reported"),
    "bytes down per client and round": lambda run: _ratio(run, "bytes_down", "asked"),
}


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
    metric: str = ACCURACY  #: what runs are compared by

    @property
    def name(self) -> str:
        return self.runs[0].result.name

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(run.result.seed for run in self.runs)

    @property
    def settings(self) -> dict[str, object]:
        """The settings they share."""
        return self.runs[0].settings

    def spread(self, figure: str) -> Spread | None:
        """Mean and deviation over the runs of one of the `FIGURES`, or of the metric."""
        if figure in FIGURES:
            return Spread.of(FIGURES[figure](run) for run in self.runs)
        return Spread.of(run.result.figure for run in self.runs)

    @property
    def accuracy(self) -> Spread | None:
        """Final accuracy over the runs."""
        return self.spread(ACCURACY)

    @property
    def score(self) -> Spread | None:
        """The metric over the runs, after their last round."""
        return self.spread(self.metric)

    @cached_property
    def views(self) -> tuple[View, ...]:
        """What the statements of all runs say, by onlooker and change."""
        return views(row for run in self.runs for row in run.rows)

    @cached_property
    def lead(self) -> View | None:
        """What leads the statements of the runs, and the worst where they differ; none where no run has a statement."""
        leads = [run.statement.lead for run in self.runs if run.statement is not None and run.rows]
        worst = max(leads, key=lambda view: view.proven[1], default=None)
        return worst and View(tuple(row for view in leads if view.key == worst.key for row in view.rows))

    def by_round(self) -> list[tuple[int, Spread]]:
        """The metric over the runs in every round in which all of them were evaluated."""
        name = ACCURACY if self.metric == ACCURACY else "score"
        figures = [{r.round: getattr(r, name) for r in run.rounds} for run in self.runs]
        measured = [{number: value for number, value in own.items() if value is not None} for own in figures]
        common = sorted(set(measured[0]).intersection(*measured[1:]))
        found = ((number, Spread.of(own[number] for own in measured)) for number in common)
        return [(number, spread) for number, spread in found if spread is not None]


@dataclass(frozen=True)
class Comparison:
    """Groups of runs in the order of the settings in which they differ, and what a reader should know about them."""

    groups: tuple[Repetitions, ...]
    keys: tuple[str, ...]  #: settings that tell the groups apart
    notes: tuple[str, ...] = ()
    metric: str = ACCURACY  #: what the groups are compared by
    smaller_is_better: bool = False  #: by that metric

    def best(self) -> tuple[Spread, Repetitions] | None:
        """The group with the best mean; None where no run was evaluated."""
        measured = [(group.score, group) for group in self.groups if group.score is not None]
        sign = -1 if self.smaller_is_better else 1
        return max(measured, key=lambda pair: sign * pair[0].mean, default=None)

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

    def to_csv(self) -> str:
        """One line per group with all figures unrounded; columns of epsilons name adjacency and adversary."""
        lines = [_csv_line(self, group) for group in self.groups]
        written, columns = io.StringIO(), list(dict.fromkeys(column for line in lines for column in line))
        writer = csv.DictWriter(written, columns, restval="", lineterminator="\n")
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
        run = ComparedRun(folder.path, result, folder.rounds(), folder.statement())
        seeds = groups.setdefault(tuple(sorted((key, to_line(value)) for key, value in run.settings.items())), {})
        if result.seed in seeds:
            notes.append(
                f"{folder.path} is left out: {seeds[result.seed].folder} has the same settings and the same seed, and "
                "a repetition says nothing about the spread."
            )
        seeds.setdefault(result.seed, run)
    if not groups:
        raise InvalidInput(f"there is no finished run to compare among the {len(folders)} folders given")
    metric, smaller = _metric([run.result for seeds in groups.values() for run in seeds.values()], notes)
    found = [Repetitions(tuple(seeds.values()), metric) for seeds in groups.values()]
    keys = telling_keys([group.settings for group in found])
    found.sort(key=lambda group: [_order(group.settings.get(key, UNSET)) for key in keys])
    return Comparison(tuple(found), keys, tuple(notes), metric, smaller)


def _metric(results: Sequence[Result], notes: list[str]) -> tuple[str, bool]:
    """What all runs can be compared by, and whether smaller is better: their metric, or else accuracy."""
    metrics = {result.metric: result.smaller_is_better for result in results}
    if len(metrics) == 1:
        return next(iter(metrics.items()))
    if any(result.accuracy is None for result in results):
        raise InvalidInput(
            f"these runs are judged by different metrics ({', '.join(metrics)}), and not all have an accuracy: compare "
            "runs with the same evaluation.metric"
        )
    notes.append(f"The runs are judged by different metrics ({', '.join(metrics)}): accuracy is compared.")
    return ACCURACY, False


def telling_keys(settings: Sequence[Mapping[str, object]]) -> tuple[str, ...]:
    """The settings that tell these apart.

    A setting that only some have, and those all alike, merely follows from another one (a mechanism has its own
    options): it is named only where the others do not tell all apart.
    """

    def values(key: str, owners: Iterable[Mapping[str, object]]) -> list[str]:
        return [to_line(own.get(key, UNSET)) for own in owners]

    varying = [key for key in dict.fromkeys(chain(*settings)) if len(set(values(key, settings))) > 1]
    leading = [key for key in varying if len(set(values(key, (own for own in settings if key in own)))) > 1]
    told_apart = set(zip(*(values(key, settings) for key in leading), strict=True))
    return tuple(leading if len(told_apart) == len(settings) else varying)


def _order(value: object) -> tuple[int, float, str]:
    """Numbers by size, then everything else by its text."""
    return (0, float(value), "") if is_number(value) else (1, 0.0, to_line(value))


def is_number(value: object) -> TypeGuard[float]:
    """Whether a setting is a number (and not true or false)."""
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _short(key: str) -> str:
    """A recipe's key without the part that goes without saying."""
    parts = key.split(".")
    if len(parts) > 1 and parts[-1] in ("name", "kind"):
        parts.pop()
    return ".".join(parts[1:] if len(parts) > 1 and parts[0] in ("method", "training") else parts)


def said(value: object) -> str:
    """A setting's value for people: as in JSON, but 2 rather than 2.0."""
    return value if isinstance(value, str) else to_line(value).removesuffix(".0")


# --- comma-separated values ------------------------------------------------------------------------------------------


def _csv_line(comparison: Comparison, group: Repetitions) -> dict[str, str]:
    line = {key: said(group.settings.get(key, UNSET)) for key in comparison.keys}
    line |= {"name": group.name, "runs": str(len(group.runs)), "seeds": " ".join(map(str, group.seeds))}
    for name in dict.fromkeys((*FIGURES, comparison.metric)):
        spread = group.spread(name)
        mean, deviation, n = (None, None, 0) if spread is None else (spread.mean, spread.deviation, spread.n)
        line |= {f"{name} mean": _csv_number(mean), f"{name} sd": _csv_number(deviation), f"{name} n": str(n)}
    for view in group.views:
        line |= _csv_view(view)
    return line


def _csv_view(view: View) -> dict[str, str]:
    """Smallest and largest epsilon over clients and seeds, each beside its delta, and what proves it."""
    kind, adjacency = view.key
    figures = {
        "proven epsilon, smallest": _csv_number(view.proven[0]),
        "proven epsilon, largest": _csv_number(view.proven[1]),
        "proven delta": " ".join(map(repr, view.deltas)),
        "proof": proof(view),
        "adversary": adversary(view),
        "claimed epsilon, smallest": _csv_number(view.claimed[0] if view.claimed else None),
        "claimed epsilon, largest": _csv_number(view.claimed[1] if view.claimed else None),
        "claimed delta": " ".join(map(repr, view.claimed_deltas)),
        "verdict": "; ".join(view.verdicts),
    }
    return {f"{name} [adjacency {adjacency}, against {kind}]": value for name, value in figures.items()}


def _csv_number(value: float | None) -> str:
    if value is None:
        return ""
    return repr(value) if math.isfinite(value) else INFINITE

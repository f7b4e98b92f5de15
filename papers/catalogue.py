"""What `sordino reproduce --list` shows: every experiment with its rows, the time it took and the data it needs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from papers.experiments import PAPERS, Experiment, gains
from papers.pages import theirs
from papers.records import Record, Records
from papers.scale import data_set
from sordino.learning.datasets import known, locate
from sordino.report.words import counted, duration, size

#: What the pages of the repository are made from.
RECORDED = Path(__file__).resolve().parent.parent / "docs" / "papers" / "records"


@dataclass(frozen=True)
class Entry:
    """One experiment of the list, or a difference of several."""

    paper: str
    experiment: str
    what: str
    figures: tuple[str, ...]  #: of every row, what the paper states
    priority: int
    seeds: int
    seconds: float | None  #: of all seeds, by the recorded runs; None where none is recorded
    device: str  #: that these ran on
    data: str
    taken_from: tuple[str, ...] = ()  #: the experiments of a difference, or the one whose run it is

    def to_json(self) -> dict[str, object]:
        """All of it, as JSON has it."""
        return asdict(self)


def entries(paper: str, chosen: Sequence[Experiment], folder: Path = RECORDED) -> Iterator[Entry]:
    """The chosen experiments of a paper, and the stated differences that all of theirs are among."""
    runs: dict[str, list[Record]] = {}
    for record in Records(folder / f"{paper}.jsonl").all():
        if not record.quick:
            runs.setdefault(record.experiment, []).append(record)
    for experiment in chosen:
        own = [] if experiment.same_run else runs.get(experiment.id, [])
        seconds = fmean(r.seconds_per_round * r.rounds for r in own) * experiment.seeds if own else None
        yield Entry(
            paper, experiment.id, experiment.what, tuple(theirs(stage) for stage in experiment.stages()),
            experiment.priority, experiment.seeds, seconds, own[-1].device if own else "",
            data_set(experiment.settings(quick=False, seed=1)).name,
            (experiment.same_run,) if experiment.same_run else (),
        )  # fmt: skip
    by_id = {experiment.id: experiment for experiment in chosen}
    for gain in gains(paper):
        if gain.experiments <= set(by_id):
            first = by_id[gain.pairs[0][0]]
            yield Entry(
                paper, gain.id, gain.what, (theirs(gain),), first.priority, first.seeds, None, "",
                data_set(first.settings(quick=False, seed=1)).name, tuple(sorted(gain.experiments)),
            )  # fmt: skip


def to_text(listed: Mapping[str, Sequence[Entry]]) -> Iterator[str]:
    """Lines for a person: a heading and a table for each paper, then where the data are."""
    every = [entry for own in listed.values() for entry in own]
    columns = [max(map(len, column)) for column in zip(*map(_cells, every), strict=True)]
    for paper, own in listed.items():
        rows = counted(sum(len(entry.figures) for entry in own), "row")
        took = sum(entry.seconds or 0.0 for entry in own)
        yield f"{PAPERS[paper]}: {rows}" + (f", about {duration(took)} of runs" if took else "")
        for entry in own:
            cells = (cell.ljust(width) for cell, width in zip(_cells(entry), columns, strict=True))
            yield f"  {'  '.join(cells)}  {entry.what}"
        yield ""
    for name in dict.fromkeys(entry.data for entry in every):
        yield f"{name}: {_where(name)}"


def _cells(entry: Entry) -> tuple[str, ...]:
    rows = f"{counted(len(entry.figures), 'row')}: {'; '.join(entry.figures)}"
    return entry.experiment, f"priority {entry.priority}", counted(entry.seeds, "seed"), rows, _time(entry), entry.data


def _time(entry: Entry) -> str:
    if entry.taken_from:
        return "same run" if len(entry.taken_from) == 1 else "difference"
    return "not run yet" if entry.seconds is None else f"{duration(entry.seconds)} on {entry.device}"


def _where(name: str) -> str:
    listing = known(name)
    if all(path is not None for path in locate(listing)):
        return "here"
    if listing.download_size:
        return f"not here: `sordino data fetch {name}` downloads {size(listing.download_size)}"
    return "not here: `sordino data list` names its files"


__all__ = ["RECORDED", "Entry", "entries", "to_text"]

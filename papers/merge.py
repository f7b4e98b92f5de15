"""Records that were made elsewhere, taken into those that are here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from papers.experiments import Experiment
from papers.records import Record, Records, essence
from sordino.errors import InvalidInput


@dataclass(frozen=True)
class Merged:
    """What became of the records of one file."""

    taken: int
    known: int  #: exactly these runs are recorded here: what is here stays
    others: int  #: scaled down where full runs are merged, or the other way round
    refused: Mapping[str, Sequence[str]]  #: why, and which


def find_records(place: Path, paper: str) -> Records | None:
    """A paper's records: the file itself, or below a folder that `--out` or `--docs` named; None if there are none."""
    name = f"{paper}.jsonl"
    tried = [place] if not place.is_dir() else [place / "records" / name, place / "papers" / "records" / name]
    return next((Records(path) for path in tried if path.is_file()), None)


def merge(source: Records, into: Records, asked: Sequence[Experiment], *, quick: bool) -> Merged:
    """Take over the records of these experiments, each once; what was recorded with other settings is refused."""
    if not source.path.read_bytes().endswith(b"\n"):
        raise InvalidInput(f"{source.path}: the last line is not whole. Copy the file again")
    asked_for = {experiment.recorded_as: essence(experiment.settings(quick=quick, seed=1)) for experiment in asked}
    every = list(source.lines())
    own = [record for record in every if record.quick == quick]
    refusals = [(record, _unfit(record, asked_for.get(record.experiment))) for record in own]
    fit = {_key(record): record for record, why in refusals if not why}
    here = {_key(record) for record in into.all()}
    new = [record for key, record in fit.items() if key not in here]
    for record in new:
        into.add(record)
    refused: dict[str, list[str]] = {}
    for record, why in refusals:
        if why:
            refused.setdefault(why, []).append(f"{record.experiment} (seed {record.seed})")
    return Merged(len(new), len(fit) - len(new), len(every) - len(own), refused)


def _key(record: Record) -> tuple[str, int, bool, str]:
    return record.experiment, record.seed, record.quick, record.fingerprint


def _unfit(record: Record, fingerprint: str | None) -> str:
    """Why a record is not taken; empty if it is."""
    if fingerprint is None:
        return "no experiments that are asked for"
    if record.fingerprint != fingerprint:
        return "recorded with other settings than the experiments have here, so run them again"
    return ""


__all__ = ["Merged", "find_records", "merge"]

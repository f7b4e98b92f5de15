"""What came out of each experiment and seed, one JSON line each: the tables of the docs are made from these alone."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from sordino.errors import InvalidInput
from sordino.privacy.statement import NOT_SUPPORTED, Row
from sordino.recipe import Recipe
from sordino.storage.files import append_line, whole_lines


@dataclass(frozen=True)
class Epsilons:
    """What a record has of a row of the run's statement: never an epsilon without its adjacency and adversary."""

    adjacency: str
    adversary: str
    delta: float
    proven: float | str  #: "infinite" where nothing is proven
    claimed: float | None
    verdict: str

    @classmethod
    def of(cls, row: Row) -> Epsilons:
        """The row's epsilons to six digits."""
        proven: float | str = "infinite" if math.isinf(row.proven) else float(f"{row.proven:.6g}")
        claimed = None if row.claimed is None else float(f"{row.claimed.epsilon:.6g}")
        return cls(str(row.adjacency), str(row.adversary), row.delta, proven, claimed, row.verdict)


@dataclass(frozen=True)
class Record:
    """One run of one experiment."""

    experiment: str
    seed: int
    quick: bool
    fingerprint: str  #: of what the recipe asked for (`essence`): another recipe makes old records stale
    accuracy: float | None
    best: float | None  #: over the rounds, for papers that plot curves
    rounds: int
    seconds_per_round: float
    bytes_per_client: float  #: sent by a client in a round
    curve: tuple[tuple[int, float], ...]  #: accuracy by round, to six digits
    privacy: tuple[Epsilons, ...]
    device: str
    versions: str
    date: str

    def to_line(self) -> str:
        """One line of JSON."""
        return json.dumps(asdict(self), allow_nan=False, separators=(",", ":"))

    @classmethod
    def from_line(cls, line: str | bytes) -> Record:
        """The record that `to_line` wrote."""
        try:
            return _RECORD.validate_json(line)
        except ValidationError as error:
            raise InvalidInput(f"this is no record, or a damaged one ({error}): remove it and run again") from None


_RECORD = TypeAdapter(Record)


def essence(recipe: Recipe) -> str:
    """A fingerprint of what a recipe asks for beyond defaults: titles and new defaults change nothing."""
    asked = recipe.model_dump(mode="json", exclude_defaults=True, exclude={"name", "summary", "paper", "seed"})
    return hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()[:32]


def only_claimed(record: Record) -> Record:
    """The record of a run whose proven epsilons turned out to hold for real numbers only: they are claims."""
    found = (
        row
        if isinstance(row.proven, str)
        else replace(row, proven="infinite", claimed=row.proven, verdict=NOT_SUPPORTED)
        for row in record.privacy
    )
    return replace(record, privacy=tuple(found))


def worst(rows: Iterable[Epsilons]) -> tuple[Epsilons, ...]:
    """Of rows about the same change and the same onlooker, the one with the largest epsilon: proven, then claimed."""
    found: dict[tuple[str, str], Epsilons] = {}
    for row in rows:
        key = row.adjacency, row.adversary
        if key not in found or _size(row) > _size(found[key]):
            found[key] = row
    return tuple(found.values())


def _size(row: Epsilons) -> tuple[float, float]:
    return math.inf if isinstance(row.proven, str) else row.proven, row.claimed or 0.0


class Records:
    """A file of records."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> Iterator[Record]:
        """Every line as it was written, the oldest first."""
        for number, line in enumerate(whole_lines(self.path), start=1):
            try:
                yield Record.from_line(line)
            except InvalidInput as error:
                raise InvalidInput(f"{self.path}, line {number}: {error}") from None

    def all(self) -> list[Record]:
        """Every record, the latest of equal ones."""
        return list({(record.experiment, record.seed, record.quick): record for record in self.lines()}.values())

    def at_once(self) -> Records:
        """The same records as they are now, read once for many questions."""
        return _Snapshot(self.path, self.all())

    def of(self, experiment: str, *, quick: bool, settings: Recipe | None = None) -> list[Record]:
        """An experiment's records, by seed; only those that were made with `settings`, where they are given."""
        own = [record for record in self.all() if (record.experiment, record.quick) == (experiment, quick)]
        if settings is not None:
            own = [record for record in own if record.fingerprint == essence(settings)]
        return sorted(own, key=lambda record: record.seed)

    def add(self, record: Record) -> None:
        """Write a record down."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        append_line(self.path, record.to_line().encode())


class _Snapshot(Records):
    """Records that were read before."""

    def __init__(self, path: Path, found: list[Record]) -> None:
        super().__init__(path)
        self._found = found

    def all(self) -> list[Record]:
        return self._found


def today() -> str:
    """The date, for a record."""
    return datetime.now(UTC).date().isoformat()


__all__ = ["Epsilons", "Record", "Records", "essence", "only_claimed", "today", "worst"]

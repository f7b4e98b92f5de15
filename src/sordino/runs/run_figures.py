"""The figures of a run that is over, for notebooks: curves, a table of its rounds, and what was spent by when."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cached_property
from math import isfinite, nan
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.privacy.history import RoundReleases
from sordino.privacy.spending import RoundSpending, spending
from sordino.privacy.statement import Statement, View
from sordino.report.records import PrivateScores, Result, RoundRecord, plain
from sordino.report.statement import adversary, to_json
from sordino.runs.validation_scores import score_releases

if TYPE_CHECKING:
    import pandas as pd

PROVEN, CLAIMED = "epsilon_proven", "epsilon_claimed"  #: columns of what is spent after a round


@dataclass(frozen=True, eq=False)
class RunFigures:
    """The result of a run, its rounds and its statement; `sordino.load_run` reads them from a folder."""

    result: Result
    rounds: tuple[RoundRecord, ...]
    statement: Statement
    folder: Path | None = field(default=None, kw_only=True)
    releases: tuple[RoundReleases, ...] = field(default=(), kw_only=True, repr=False)

    @property
    def accuracy(self) -> float | None:
        """On the test set, after the last round; None where no classes are learnt."""
        return self.result.accuracy

    @property
    def score(self) -> float | None:
        """By the run's own metric (`result.metric`), on the test set, after the last round."""
        return self.result.figure

    @property
    def lead(self) -> View | None:
        """The view that leads the statement: what may change, and who is looking; None where nothing was released."""
        return self.statement.lead if self.statement.rows else None

    def spending(self, every: int = 1) -> tuple[RoundSpending, ...]:
        """Proven and claimed epsilon after each round, of the client that lost most, in the view that leads.

        Epsilons are composed when they are asked for, which may take a tenth of a second a round; `every` leaves out
        rounds.
        """
        if self.lead is None:
            return ()
        clients, delta = self.result.clients, self.statement.delta
        made = [*score_releases(self.result.settings, clients), *self.releases]
        return spending(made, self.lead, clients, delta=delta, every=every)

    def curve(self, figure: str, against: str = "round") -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Two arrays to plot, `plt.plot(*outcome.curve("accuracy"))`: a figure of the rounds that have it.

        Figures are the columns of `to_frame`: `accuracy`, `loss`, `epsilon_proven`, `simulation.train_loss`, ...
        """
        known = self._figures
        if wrong := [name for name in (against, figure) if name not in known]:
            raise InvalidInput(f"no figure of this run is called {wrong[0]!r}; there are: {', '.join(known)}")
        pairs = [(x, y) for x, y in zip(known[against], known[figure], strict=True) if x is not None and y is not None]
        try:
            xs, ys = np.array(pairs, dtype=np.float64).reshape(-1, 2).T
        except ValueError:
            raise InvalidInput(f"{against} and {figure} are not both numbers: choose other figures") from None
        return xs, ys

    def to_frame(self, every: int = 1) -> pd.DataFrame:
        """One row per round as a pandas table: all its figures, and the epsilons spent after it.

        `adjacency`, `adversary` and `delta` say what the epsilons mean. `every` leaves out those of some rounds.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError:
            raise InvalidInput("a table of the rounds needs pandas: pip install 'sordino[notebook]'") from None
        columns = self._figures if every == 1 else self._columns(every)
        with_gaps = {name: [nan if value is None else value for value in own] for name, own in columns.items()}
        return pd.DataFrame(with_gaps).set_index("round")

    @cached_property
    def _figures(self) -> dict[str, Sequence[Any]]:
        return self._columns(1)

    def _columns(self, every: int) -> dict[str, Sequence[Any]]:
        """Every figure by its name, one value a round; None where a round has none."""
        rows = [flat(record) for record in self.rounds]
        names = dict.fromkeys(name for row in rows for name in row)
        found: dict[str, Sequence[Any]] = {name: [row.get(name) for row in rows] for name in names}
        spent = {one.round: one for one in self.spending(every)}
        for name, attribute in ((PROVEN, "proven"), (CLAIMED, "claimed")):
            found[name] = [getattr(spent.get(record.round), attribute, None) for record in self.rounds]
        if (lead := self.lead) is not None:
            said = {"adjacency": str(lead.adjacency), "adversary": adversary(lead), "delta": self.statement.delta}
            found |= {name: [value] * len(rows) for name, value in said.items()}
        return found

    def to_json(self) -> dict[str, object]:
        """The final figures, the statement and the paths written, ready for `json.dumps`."""
        return figures(self.result, self.statement, self.folder)


def flat(record: RoundRecord) -> dict[str, Any]:
    """A round's figures by name; those of tables inside it as `simulation.train_loss` or `private.accuracy`."""
    found: dict[str, Any] = {}
    for part in fields(record):
        value = getattr(record, part.name)
        if isinstance(value, PrivateScores):
            found |= {f"{part.name}.{own.name}": own.value for own in value.figures}
            found |= {f"{part.name}.{own.name}": getattr(value, own.name) for own in fields(value)[1:]}
        elif is_dataclass(value):
            found |= {f"{part.name}.{own.name}": getattr(value, own.name) for own in fields(value)}
        elif isinstance(value, Mapping):
            found |= {f"{part.name}.{name}": own for name, own in value.items()}
        elif not (value is None and part.name in ("simulation", "private")):
            found[part.name] = value
    return found


def numbers(record: RoundRecord) -> dict[str, float]:
    """A round's figures that are finite numbers, as trackers of experiments take them."""
    known = {name: value for name, value in flat(record).items() if isinstance(value, int | float) and name != "round"}
    return {name: float(value) for name, value in known.items() if isfinite(value)}


def figures(result: Result, statement: Statement | None, folder: Path | None) -> dict[str, object]:
    """The final figures of a run, its statement and the paths written, ready for `json.dumps`."""
    files = () if folder is None else sorted(p for p in folder.iterdir() if p.is_file() and p.name[0] != ".")
    names = (
        "name", "seed", "accuracy", "loss", "metric", "figure", "rounds", "clients", "parameters", "seconds", "stopped",
    )  # fmt: skip
    return {
        **{name: getattr(result, name) for name in names},
        **({} if result.private is None else {"private": plain(result.private)}),
        "statement": None if statement is None else to_json(statement),
        "folder": None if folder is None else str(folder),
        "files": [str(path) for path in files],
    }


__all__ = ["CLAIMED", "PROVEN", "RunFigures", "figures", "flat", "numbers"]

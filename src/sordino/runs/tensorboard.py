"""A run in TensorBoard: `sordino.run(recipe, observer=TensorBoard("logs"))`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.errors import InvalidInput
from sordino.privacy.spending import RoundSpending
from sordino.privacy.statement import Statement
from sordino.report.statement import terms, to_text
from sordino.runs.observer import Observer
from sordino.runs.outcome import Outcome, statement_of
from sordino.runs.run_figures import numbers

if TYPE_CHECKING:
    from sordino.privacy.history import RoundReleases
    from sordino.report.records import RoundRecord
    from sordino.runs.coordinator import Attendance
    from sordino.runs.federation import Federation


def summary_writer(folder: Path, first: int) -> Any:
    """PyTorch's writer; what an earlier run wrote there of round `first` and later is hidden."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=first)


class TensorBoard(Observer):
    """Writes the figures of each round while the run goes on, with the epsilon spent so far; at its end the statement.

    Epsilons are composed anew after each round, or every `every` rounds where that takes too long.
    `write(folder, first)` makes the writer: anything with `add_scalar`, `add_text`, `flush` and `close`.
    """

    def __init__(self, folder: str | Path, *, every: int = 1, write: Callable[[Path, int], Any] | None = None) -> None:
        if every < 1:
            raise InvalidInput(f"every is a whole number of rounds from 1 on, got {every}")
        self._folder, self._every, self._write = Path(folder), every, write or summary_writer
        self._writer: Any = None
        self._federation: Federation | None = None
        if write is None:
            try:
                import tensorboard  # noqa: F401 (refused before the run, not after its first round)
            except ModuleNotFoundError:
                raise InvalidInput("TensorBoard is not installed: pip install 'sordino[notebook]'") from None

    def started(self, federation: Federation, preflight: Sequence[str], first: int) -> None:
        self._federation, self._writer = federation, self._write(self._folder, first)
        self._writer.add_text("recipe", f"```toml\n{federation.recipe.to_toml()}\n```", first)

    def released(self, releases: Sequence[RoundReleases]) -> None:
        last = releases[-1].round
        if self._federation is not None and last % self._every == 0:
            self._spent(last, statement_of(self._federation, releases, last, simulated=False))

    def round(self, record: RoundRecord, attendance: Attendance) -> None:
        for name, value in numbers(record).items():
            self._writer.add_scalar(name.replace(".", "/"), value, record.round)
        self._writer.flush()

    def finished(self, outcome: Outcome) -> None:
        if self._writer is None:  # no round was left
            return
        if outcome.result.rounds % self._every:  # not written yet
            self._spent(outcome.result.rounds, outcome.statement)
        meaning = "" if outcome.lead is None else f"epsilon: {terms(outcome.lead)}\n\n"
        self._writer.add_text("statement", f"{meaning}```\n{to_text(outcome.statement)}\n```", outcome.result.rounds)
        self._writer.close()

    def _spent(self, round: int, statement: Statement) -> None:
        if not statement.rows:
            return
        spent = RoundSpending.of(round, statement.lead)
        for name, epsilon in (("proven", spent.proven), ("claimed", spent.claimed)):
            if epsilon is not None and isfinite(epsilon):
                self._writer.add_scalar(f"epsilon/{name}", epsilon, round)


__all__ = ["TensorBoard", "summary_writer"]

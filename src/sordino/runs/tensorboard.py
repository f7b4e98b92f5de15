"""A run in TensorBoard: `sordino.run(recipe, observer=TensorBoard("logs"))`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sordino.errors import InvalidInput
from sordino.report.statement import terms, to_text
from sordino.runs.observer import Observer
from sordino.runs.run_figures import numbers

if TYPE_CHECKING:
    from sordino.report.records import RoundRecord
    from sordino.runs.coordinator import Attendance
    from sordino.runs.federation import Federation
    from sordino.runs.outcome import Outcome


def summary_writer(folder: Path, first: int) -> Any:
    """PyTorch's writer; what an earlier run wrote there of round `first` and later is hidden."""
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(str(folder), purge_step=first)


class TensorBoard(Observer):
    """Writes the figures of each round while the run goes on; at its end the epsilons spent, and the statement.

    `write(folder, first)` makes the writer: anything with `add_scalar`, `add_text`, `flush` and `close`.
    """

    def __init__(self, folder: str | Path, write: Callable[[Path, int], Any] | None = None) -> None:
        self._folder, self._write = Path(folder), write or summary_writer
        self._writer: Any = None
        if write is None:
            try:
                import tensorboard  # noqa: F401 (refused before the run, not after its first round)
            except ModuleNotFoundError:
                raise InvalidInput("TensorBoard is not installed: pip install 'sordino[notebook]'") from None

    def started(self, federation: Federation, preflight: Sequence[str], first: int) -> None:
        self._writer = self._write(self._folder, first)
        self._writer.add_text("recipe", f"```toml\n{federation.recipe.to_toml()}\n```", first)

    def round(self, record: RoundRecord, attendance: Attendance) -> None:
        for name, value in numbers(record).items():
            self._writer.add_scalar(name.replace(".", "/"), value, record.round)
        self._writer.flush()

    def finished(self, outcome: Outcome) -> None:
        if self._writer is None:  # no round was left
            return
        for spent in outcome.spending():
            for name, epsilon in (("proven", spent.proven), ("claimed", spent.claimed)):
                if epsilon is not None and isfinite(epsilon):
                    self._writer.add_scalar(f"epsilon/{name}", epsilon, spent.round)
        meaning = "" if outcome.lead is None else f"epsilon: {terms(outcome.lead)}\n\n"
        self._writer.add_text("statement", f"{meaning}```\n{to_text(outcome.statement)}\n```", outcome.result.rounds)
        self._writer.close()


__all__ = ["TensorBoard", "summary_writer"]

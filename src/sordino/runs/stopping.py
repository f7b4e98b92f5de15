"""Why a run stops: its rounds are done, the model is good enough, or too few clients are left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

from sordino.errors import SordinoError
from sordino.learning.metrics import MetricSpec
from sordino.privacy.history import RoundReleases
from sordino.recipe import Recipe
from sordino.report.records import RoundRecord
from sordino.runs.checkpoint import Memory
from sordino.runs.coordinator import Attendance

LOST_ROUNDS = 3  #: rounds in a row without a quorum after which a run gives up


class TooFewClients(SordinoError):
    """Too few clients take part for now; nothing is lost, and the run goes on with `resume` when they are back."""


@dataclass
class Progress:
    """What a run remembers besides its state, so that it goes on and stops as if it had never been interrupted."""

    lost: int = 0  #: rounds in a row that did not count
    why_lost: str = ""
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0

    @classmethod
    def read(cls, memory: Memory) -> Progress:
        """What a checkpoint remembers; those of earlier versions held more."""
        return cls(**{own.name: memory["memory"][own.name] for own in fields(cls)})

    def note_traffic(self, attendance: Attendance, seconds: float) -> None:
        """Add what a round, or the preparation, took."""
        self.seconds += seconds
        self.bytes_up += attendance.bytes_up
        self.bytes_down += attendance.bytes_down

    def note_round(self, attendance: Attendance, why_lost: str, quorum: int) -> None:
        """Count a round that was lost though enough clients were willing; one that counted ends the row."""
        if not why_lost:
            self.lost = 0
        elif attendance.asked - len(attendance.declined) >= quorum:
            self.lost += 1
            self.why_lost = why_lost


class Stopping:
    """The rules by which a recipe's run stops, and the clients that declined last.

    Where newcomers are admitted, a client that declined and never released anything is not given up: its place may go
    to somebody else, and one visitor who declines in many places ends nothing.
    """

    def __init__(
        self, recipe: Recipe, clients: int, metric: MetricSpec | None = None, *, admits_newcomers: bool = False
    ) -> None:
        self._recipe, self._clients, self._metric = recipe, clients, metric
        self._admits_newcomers = admits_newcomers
        self._unwilling: set[int] = set()  # clients whose last answer was to decline
        self._released: set[int] = set()  # clients that may have released something
        self._names: dict[int, str] = {}  # who held which number last

    def note_answers(self, spent: RoundReleases) -> None:
        """Remember who declined in a round, and who no longer does."""
        declined = spent.declined.keys()
        changed = {client for client, name in spent.names.items() if self._names.get(client, name) != name}
        self._unwilling -= changed  # a new member has a budget of its own
        self._released -= changed
        self._names.update(spent.names)
        self._unwilling.update(declined & self._released if self._admits_newcomers else declined)
        self._unwilling.difference_update(*spent.reporters)
        self._released.update(*spent.clients)

    def reason(self, progress: Progress, round: int, records: Sequence[RoundRecord]) -> str | None:
        """Why there is no further round after this one; None where there is one."""
        rounds, on_test = self._recipe.rounds, self._recipe.rounds.stop_on == "test"
        figure = "accuracy" if self._metric is None else "score"
        figures = [getattr(record, figure if on_test else f"validation_{figure}") for record in records]
        turned = self._metric is not None and self._metric.smaller_is_better
        scores = [-score if turned else score for score in figures if score is not None]
        where = "the test set, which this recipe declares public" if on_test else "validation examples"
        for rule in rounds.stopping_rules:
            if why := (rule.turned() if turned else rule).reason(scores):
                return f"{why} on {where}, in round {round}"
        if progress.lost >= LOST_ROUNDS:
            return f"{progress.lost} rounds in a row did not count, the last of them because {progress.why_lost}"
        if round >= rounds.count:
            done = f"all {rounds.count} rounds are done" if rounds.count > 1 else "its one round is done"
            return f"{done}, and the last did not count because {progress.why_lost}" if progress.lost else done
        left = self._clients - len(self._unwilling)
        if left >= rounds.quorum:
            return None
        return (
            f"after round {round}, {left} of {self._clients} clients have budget left, fewer than the quorum of "
            f"{rounds.quorum}. Raise clients.budget (real clients: each owner its own limit, in client.toml), ask for "
            "a smaller epsilon, or run fewer rounds"
        )


__all__ = ["LOST_ROUNDS", "Progress", "Stopping", "TooFewClients"]

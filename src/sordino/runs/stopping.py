"""Why a run stops: its rounds are done, the model is good enough, or too few clients are left."""

from __future__ import annotations

from dataclasses import dataclass

from sordino.errors import SordinoError
from sordino.privacy.history import RoundReleases
from sordino.recipe import Recipe
from sordino.runs.coordinator import Attendance

LOST_ROUNDS = 3  #: rounds in a row without a quorum after which a run gives up


class TooFewClients(SordinoError):
    """Too few clients take part for now; nothing is lost, and the run goes on with `resume` when they are back."""


@dataclass
class Progress:
    """What a run remembers besides its state, so that it goes on and stops as if it had never been interrupted."""

    best: float = -1.0  #: the best accuracy of those that decide when to stop
    since_best: int = 0  #: evaluations since
    lost: int = 0  #: rounds in a row that did not count
    why_lost: str = ""
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0

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

    def note_accuracy(self, accuracy: float) -> None:
        """Compare an accuracy that decides when to stop with the best one before."""
        if accuracy > self.best:
            self.best, self.since_best = accuracy, 0
        else:
            self.since_best += 1


class Stopping:
    """The rules by which a recipe's run stops, and the clients that declined last.

    Where newcomers are admitted, a client that declined and never released anything is not given up: its place may go
    to somebody else, and one visitor who declines in many places ends nothing.
    """

    def __init__(self, recipe: Recipe, clients: int, *, admits_newcomers: bool = False) -> None:
        self._recipe, self._clients, self._admits_newcomers = recipe, clients, admits_newcomers
        self._unwilling: set[int] = set()  # clients whose last answer was to decline
        self._released: set[int] = set()  # clients that may have released something

    def note_answers(self, spent: RoundReleases) -> None:
        """Remember who declined in a round, and who no longer does."""
        declined = spent.declined.keys()
        self._unwilling.update(declined & self._released if self._admits_newcomers else declined)
        self._unwilling.difference_update(*spent.clients)
        self._released.update(*spent.clients)

    def reason(self, progress: Progress, round: int) -> str | None:
        """Why there is no further round after this one; None where there is one."""
        rounds = self._recipe.rounds
        where = "the test set, which this recipe declares public" if rounds.stop_on == "test" else "validation examples"
        if rounds.target_accuracy and progress.best >= rounds.target_accuracy:
            return f"reached an accuracy of {progress.best:.2%} on {where} in round {round}"
        if rounds.patience and progress.since_best >= rounds.patience:
            return f"no improvement on {where} in {progress.since_best} evaluations"
        if progress.lost >= LOST_ROUNDS:
            return f"{progress.lost} rounds in a row did not count, the last of them because {progress.why_lost}"
        if round >= rounds.count:
            return f"all {rounds.count} rounds are done" if rounds.count > 1 else "its one round is done"
        left = self._clients - len(self._unwilling)
        if left >= rounds.quorum:
            return None
        return (
            f"after round {round}, {left} of {self._clients} clients have budget left, fewer than the quorum of "
            f"{rounds.quorum}. Raise clients.budget (real clients: each owner its own limit, in client.toml), ask for "
            "a smaller epsilon, or run fewer rounds"
        )


__all__ = ["LOST_ROUNDS", "Progress", "Stopping", "TooFewClients"]

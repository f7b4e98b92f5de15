"""Who is told what happens during a run: a progress display, a notebook, a tracker of experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sordino.errors import InvalidInput

if TYPE_CHECKING:
    from sordino.fleets.interface import Reply
    from sordino.privacy.history import RoundReleases
    from sordino.report.records import RoundRecord
    from sordino.runs.coordinator import Attendance
    from sordino.runs.federation import Federation
    from sordino.runs.outcome import Outcome
    from sordino.runs.store import Past


class Observer:
    """Told what happens during a run; does nothing by itself. Replace the methods that you need.

    Calls come from the thread that runs. An error of an observer ends the run, which can be resumed.
    """

    def restored(self, past: Past) -> None:
        """First of all, where a run goes on: the rounds that are over, with who answered what."""

    def started(self, federation: Federation, preflight: Sequence[str], first: int) -> None:
        """Before round `first`, with what to expect; not called where a resumed run has no round left."""

    def absent(self, reasons: Mapping[int, str]) -> None:
        """After `started`, where clients of a network did not take their invitations: who, and why."""

    def preparing(self, clients: int) -> None:
        """Before the preparation, which may take long, where so many clients have something to prepare."""

    def prepared(self, attendance: Attendance) -> None:
        """After the preparation, with who answered what."""

    def asking(self, step: str, clients: Sequence[int]) -> None:
        """Real clients only: before a step of a round, or of the preparation, goes out to these clients."""

    def replied(self, reply: Reply) -> None:
        """Real clients only: as soon as something comes back; nobody has checked it yet."""

    def released(self, releases: Sequence[RoundReleases]) -> None:
        """After each round, before `round`: all that has left clients so far, rounds before a restart included."""

    def round(self, record: RoundRecord, attendance: Attendance) -> None:
        """After each round, with who answered what, the reasons of those who did not, and receipts."""

    def finished(self, outcome: Outcome) -> None:
        """After the last round, when everything is written."""


@dataclass(frozen=True)
class Audience(Observer):
    """Several observers, told in their order."""

    members: tuple[Observer, ...]

    def restored(self, past: Past) -> None:
        for one in self.members:
            one.restored(past)

    def started(self, federation: Federation, preflight: Sequence[str], first: int) -> None:
        for one in self.members:
            one.started(federation, preflight, first)

    def absent(self, reasons: Mapping[int, str]) -> None:
        for one in self.members:
            one.absent(reasons)

    def preparing(self, clients: int) -> None:
        for one in self.members:
            one.preparing(clients)

    def prepared(self, attendance: Attendance) -> None:
        for one in self.members:
            one.prepared(attendance)

    def asking(self, step: str, clients: Sequence[int]) -> None:
        for one in self.members:
            one.asking(step, clients)

    def replied(self, reply: Reply) -> None:
        for one in self.members:
            one.replied(reply)

    def released(self, releases: Sequence[RoundReleases]) -> None:
        for one in self.members:
            one.released(releases)

    def round(self, record: RoundRecord, attendance: Attendance) -> None:
        for one in self.members:
            one.round(record, attendance)

    def finished(self, outcome: Outcome) -> None:
        for one in self.members:
            one.finished(outcome)


def together(observers: Observer | Sequence[Observer] | None) -> Observer:
    """One observer that stands for none, one or several."""
    if isinstance(observers, Observer):
        return observers
    found = tuple(observers) if isinstance(observers, Sequence) else () if observers is None else (observers,)
    if wrong := [one for one in found if not isinstance(one, Observer)]:
        raise InvalidInput(
            f"observer: got {wrong[0]!r}; allowed: an instance of a class of yours that extends sordino.Observer, or a "
            "list of such"
        )
    return Audience(found)


__all__ = ["Audience", "Observer", "together"]

"""Who is told what happens during a run: a progress display, a notebook, a log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sordino.report.records import RoundRecord
    from sordino.runs.coordinator import Attendance
    from sordino.runs.federation import Federation


class Observer:
    """Told what happens during a run; does nothing by itself."""

    def started(self, federation: Federation, preflight: Sequence[str], first: int) -> None:
        """Before round `first`, with what to expect."""

    def absent(self, reasons: Mapping[int, str]) -> None:
        """After `started`, where clients of a network did not take their invitations: who, and why."""

    def preparing(self, clients: int) -> None:
        """Before the preparation, which may take long, where so many clients have something to prepare."""

    def prepared(self, attendance: Attendance) -> None:
        """After the preparation, with who answered what."""

    def round(self, record: RoundRecord, attendance: Attendance) -> None:
        """After each round, with who answered what, the reasons of those who did not, and receipts."""


__all__ = ["Observer"]

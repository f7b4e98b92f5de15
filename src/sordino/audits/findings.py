"""What is asked of an audit, and what it finds."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

from sordino.audits import lower_bound as audit
from sordino.audits.finished_run import View
from sordino.audits.inspection import Inspected, Subject, failures, inspect_one, level
from sordino.audits.lower_bound import AuditRow
from sordino.mechanisms.cases import Case
from sordino.privacy.history import Group

if TYPE_CHECKING:
    from sordino.fleets.ray_workers import RayPool

T = TypeVar("T")


class Track(Protocol):
    """Items and what they are -> the same, one by one, with progress."""

    def __call__(self, items: Sequence[T], what: str, /) -> Iterator[T]: ...


def quietly(items: Sequence[T], what: str, /) -> Iterator[T]:
    """No progress is shown."""
    return iter(items)


@dataclass(frozen=True)
class AuditOptions:
    """Whom to audit and how thoroughly; the same seed gives the same figures."""

    client: int | None = None  #: None: whoever lost most
    round: int | None = None  #: None: the first in which the client released anything
    trials: int = 100_000
    canaries: int = 1000
    seed: int = 1
    track: Track = quietly
    pool: RayPool | None = None  #: of a cluster, which trains with canaries; None: this machine does


@dataclass(frozen=True)
class Finding:
    """One row, and the row of the statement that it is evidence for; None where it is evidence for none."""

    row: AuditRow
    view: View | None


@dataclass(frozen=True)
class Findings:
    """All that an audit found out about a group of clients, and what it left out, in words."""

    group: Group
    findings: tuple[Finding, ...] = ()
    left_out: tuple[str, ...] = ()
    inspected: tuple[Inspected, ...] = ()  #: the checks of what the run draws

    @property
    def rows(self) -> tuple[AuditRow, ...]:
        """All rows."""
        return tuple(finding.row for finding in self.findings)


def checked(found: Findings, subjects: Sequence[Subject], asked: AuditOptions) -> Findings:
    """The same after the checks of these subjects: rows are consistent where all of them passed."""
    each = level(len(subjects))
    inspected = tuple(inspect_one(one, asked.seed, each) for one in asked.track(subjects, "Checking"))
    if not inspected:
        return found
    wrong = failures(inspected)
    findings = tuple(replace(finding, row=finding.row.checked(wrong)) for finding in found.findings)
    return replace(found, findings=findings, inspected=inspected)


def answers(cases: Iterable[tuple[Case, View | None]], asked: AuditOptions) -> tuple[Finding, ...]:
    """Carry out one audit after the other; each case comes with the row of the statement that it is about, if any."""
    todo = asked.track(list(cases), "Auditing")
    return tuple(Finding(audit.run(case, trials=asked.trials, seed=asked.seed), view) for case, view in todo)

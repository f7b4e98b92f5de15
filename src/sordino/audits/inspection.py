"""What is checked, and an inspection: all checks of some subjects, at one level for all of them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass

from sordino.audits.statistics import CHECKS, FAMILY, SUBJECTS, Check, Sample, look

Enumerated = Callable[[], Check]  #: a check without chance: of tables and thresholds, not of draws
SINGLE = ("frequencies by coordinate", "noise by coordinate")  #: checks of one coordinate at a time


@dataclass(frozen=True, eq=False)
class Subject:
    """Something to check: `draw(seed)` runs the real code; `enumerated` are checks of its exact tables."""

    name: str
    shape: tuple[int, int]  #: draws and values of each
    draw: Callable[[int], Sample]
    enumerated: tuple[Enumerated, ...] = ()


@dataclass(frozen=True)
class Inspected:
    """What the checks of one subject found."""

    subject: str
    draws: int
    values: int
    looks: tuple[Check, ...]
    level: float  #: a check with a smaller p-value has failed

    @property
    def failed(self) -> tuple[Check, ...]:
        """Checks that an unbroken program would not fail, the least likely first."""
        return tuple(sorted((one for one in self.looks if one.p < self.level), key=lambda one: one.p))

    @property
    def failures(self) -> tuple[str, ...]:
        """In words: which checks failed, where, and how unlikely that is."""
        found = ((one, f", {one.where}" if one.where else "") for one in self.failed)
        return tuple(f"{self.subject}: {one.check}{where} (p = {one.p:.1g})" for one, where in found)

    @property
    def sees(self) -> str:
        """The smallest fault of a single coordinate that shows."""
        names = [one for one in self.looks if one.check in SINGLE]
        return names[0].sees if names else self.looks[-1].sees

    @property
    def passed(self) -> bool:
        """Whether all did, those of the support among them."""
        return not self.failed and any(one.check == "support" for one in self.looks)

    def to_json(self) -> dict[str, object]:
        """Ready for `json.dumps`."""
        return {**asdict(self), "passed": self.passed, "failed": [one.check for one in self.failed]}


def failures(inspected: Iterable[Inspected]) -> list[str]:
    """All that failed, in words."""
    return [words for one in inspected for words in one.failures]


def level(subjects: int) -> float:
    """The level of each check, so that all checks of so many subjects fail by chance with probability `FAMILY`."""
    return FAMILY / (max(subjects, SUBJECTS) * CHECKS)


def inspect_one(subject: Subject, seed: int, each: float) -> Inspected:
    """All checks of one subject, each at the level `each`."""
    exact = tuple(check() for check in subject.enumerated)
    return Inspected(subject.name, *subject.shape, (*exact, *look(subject.draw(seed), seed, each)), each)

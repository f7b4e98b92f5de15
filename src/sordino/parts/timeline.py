"""Where the time of a run goes, phase by phase: `with Timeline() as timeline:` around whatever is to be timed.

A phase that begins inside another one stops the other's clock, so that all phases of a process add up to its time. What
workers compute runs beside it and is counted apart. Without a timeline around it, a phase costs next to nothing.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass, field
from pathlib import Path

START, OTHER = "start of Python", "other"  #: what comes before the timeline, and what is in no phase

TICK = 0.001  #: what is shorter did not happen before the timeline, but while it was made


@dataclass
class Span:
    """One phase of one round, or outside of all rounds: when it first began, and how long it took in all."""

    phase: str
    round: int | None
    begin: float  #: seconds after the start of the timeline
    seconds: float = 0.0  #: without what was spent in phases inside it
    times: int = 0
    beside: bool = False  #: whether worker processes spent it, added up over all of them


@dataclass
class _OpenPhase:
    """A phase that is going on; `inside` is the time that phases inside it have taken."""

    timeline: Timeline
    round: int | None
    begin: float
    inside: float = 0.0


_NOW: ContextVar[_OpenPhase | None] = ContextVar("phase", default=None)


@dataclass
class Timeline:
    """The time since `since`, by phases and rounds: all that happens in its `with` block, on this thread."""

    since: float = field(default_factory=lambda: time.monotonic())
    _spans: dict[tuple[str, int | None, bool], Span] = field(default_factory=dict)
    _open: ExitStack = field(default_factory=ExitStack)

    @property
    def spans(self) -> tuple[Span, ...]:
        """All phases so far, in the order in which they first began."""
        return tuple(sorted(self._spans.values(), key=lambda span: span.begin))

    @property
    def seconds(self) -> float:
        """The time of this process, whatever it did."""
        return sum(span.seconds for span in self._spans.values() if not span.beside)

    def to_json(self) -> dict[str, object]:
        """Everything, for `timing.json`."""
        return {"seconds": self.seconds, "phases": [asdict(span) for span in self.spans]}

    def take(self) -> tuple[Span, ...]:
        """All phases since this was last asked, for another process to count."""
        spans, self._spans = self.spans, {}
        return spans

    def count(
        self, name: str, round: int | None, begin: float, seconds: float, times: int = 1, *, beside: bool = False
    ) -> None:
        """Add so many seconds to a phase."""
        span = self._spans.setdefault(
            (name, round, beside), Span(name, round, max(0.0, begin - self.since), beside=beside)
        )
        span.seconds += seconds
        span.times += times

    def __enter__(self) -> Timeline:
        before = time.monotonic() - self.since
        if before > TICK:
            self.count(START, None, self.since, before)
        self._open.enter_context(_phase(self, OTHER, None))
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()


@contextmanager
def phase(name: str, round: int | None = None) -> Iterator[None]:
    """`with phase("train"):` counts what follows, where a timeline is kept; `round` is that of the phase around it."""
    outer = _NOW.get()
    if outer is None:
        yield
        return
    with _phase(outer.timeline, name, outer.round if round is None else round):
        yield


@contextmanager
def _phase(timeline: Timeline, name: str, round: int | None) -> Iterator[None]:
    outer, clock = _NOW.get(), _OpenPhase(timeline, round, time.monotonic())
    before = _NOW.set(clock)
    try:
        yield
    finally:
        _NOW.reset(before)
        took = time.monotonic() - clock.begin
        timeline.count(name, round, clock.begin, took - clock.inside)
        if outer is not None and outer.timeline is timeline:
            outer.inside += took


def count_beside(spans: Iterable[Span]) -> None:
    """Count what another process spent, in the round that is going on; nothing without a timeline."""
    now = _NOW.get()
    if now is not None:
        for span in spans:
            now.timeline.count(span.phase, now.round, now.begin, span.seconds, span.times, beside=True)


def process_start() -> float:
    """When this process began, on the clock of `time.monotonic`; now, where the system does not tell."""
    now = time.monotonic()
    try:
        ticks = int(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19])
        return now - max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK"))
    except (OSError, AttributeError, ValueError, IndexError):
        return now


__all__ = ["Span", "Timeline", "count_beside", "phase", "process_start"]

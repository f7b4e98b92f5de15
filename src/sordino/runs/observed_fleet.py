"""A fleet of real clients of which observers hear while a round is open: who is asked, and what comes back."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import closing

from sordino.fleets.interface import Fleet, OuterFleet, Reply
from sordino.runs.observer import Observer


class ObservedFleet(OuterFleet):
    """Another fleet; an observer is told of each step and of each reply before the coordinator is."""

    def __init__(self, fleet: Fleet, observer: Observer) -> None:
        super().__init__(fleet)
        self._observer = observer

    def exchange(self, step: str, messages: Mapping[int, bytes], deadline: float | None) -> Generator[Reply]:
        """The other fleet's replies, as they come."""
        self._observer.asking(step, tuple(messages))
        with closing(self._fleet.exchange(step, messages, deadline)) as replies:
            for reply in replies:
                self._observer.replied(reply)
                yield reply


__all__ = ["ObservedFleet"]

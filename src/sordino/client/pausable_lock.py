"""Whose turn it is: one request at a time, save that a computation lets others go ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType


class PausableLock:
    """A lock that its holder may take again, and may give up for a while however often it was taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: int | None = None
        self._times = 0

    def __enter__(self) -> None:
        if self._holder != threading.get_ident():
            self._lock.acquire()
            self._holder = threading.get_ident()
        self._times += 1

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._times -= 1
        if not self._times:
            self._holder = None
            self._lock.release()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Let others have it meanwhile."""
        times, self._times, self._holder = self._times, 0, None
        self._lock.release()
        try:
            yield
        finally:
            self._lock.acquire()
            self._times, self._holder = times, threading.get_ident()

    def wait(self, patience: float) -> None:
        """Until nobody has it, or so many seconds have passed."""
        if self._lock.acquire(timeout=patience):
            self._lock.release()


__all__ = ["PausableLock"]

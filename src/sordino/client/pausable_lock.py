"""One request at a time, save that a computation lets others go ahead."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class PausableLock:
    """A lock that its holder may take again, and may give up for a while however often it was taken."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._times = 0

    def __enter__(self) -> None:
        self._lock.acquire()
        self._times += 1

    def __exit__(self, *_: object) -> None:
        self._times -= 1
        self._lock.release()

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Let others take the lock meanwhile."""
        times, self._times = self._times, 0
        for _ in range(times):
            self._lock.release()
        try:
            yield
        finally:
            for _ in range(times):
                self._lock.acquire()
            self._times = times

    def wait(self, patience: float) -> None:
        """Wait until nobody holds the lock, or so many seconds have passed."""
        if self._lock.acquire(timeout=patience):
            self._lock.release()


__all__ = ["PausableLock"]

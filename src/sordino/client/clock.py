"""A hard clock: a computation in a thread of its own, which is ended when its time is up.

Python lets one thread raise an exception in another. It arrives at the next instruction of Python code, so a
computation ends after the tensor operation that it is in; the sizes of these are bounded by the owner's limits. Code
that never comes back to Python (a model of the owner's own that sleeps in C) cannot be ended this way: it is left
behind, nothing of what it makes is used, and nothing more is computed under its name until it has ended.

Where a record is what a release protects, no clock runs: how long a computation takes depends on the records, and one
of them must not decide whether it is ended.
"""

from __future__ import annotations

import ctypes
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import TypeVar

from sordino.client.pausable_lock import PausableLock
from sordino.errors import Ended, SordinoError

T = TypeVar("T")

_NOTICE = 0.02  #: seconds between two looks whether a computation has ended
_PATIENCE = 2.0  #: seconds after which one that does not end is left behind


class Overran(SordinoError):
    """A computation took longer than it may."""


class Clock(PausableLock):
    """One request at a time. A computation lets others go ahead, and is ended when its time is up."""

    def __init__(self) -> None:
        super().__init__()
        self._left_behind: dict[str, threading.Thread] = {}
        self._busy: set[str] = set()  # names under which something is computed

    def compute(self, what: str, names: set[str], seconds: float, compute: Callable[[], T]) -> T:
        """Run `compute` while others may take the lock; those who `wait_for` one of the names wait."""
        self._busy |= names
        try:
            with self, self.pause():
                return self.run(what, seconds, compute)
        finally:
            self._busy -= names

    def wait_for(self, name: str) -> None:
        """Wait until nobody computes under this name."""
        while name in self._busy:
            with self, self.pause():
                time.sleep(_NOTICE)

    def run(self, name: str, seconds: float, compute: Callable[[], T]) -> T:
        """Run `compute` and return its result, or raise its error; `Overran` after `seconds`, which may be inf.

        Code that asks for the end of the process (SystemExit) fails like any other: the client goes on.
        """
        before = self._left_behind.get(name)
        if before is not None and before.is_alive():
            raise Overran(f"an earlier computation for {name} overran, and has not ended yet")
        outcome: Future[T] = Future()

        def work() -> None:
            with suppress(Ended):
                try:
                    outcome.set_result(compute())
                except (Exception, Ended) as error:
                    outcome.set_exception(error)
                except BaseException as error:
                    outcome.set_exception(RuntimeError(f"the computation for {name} raised {error!r}"))

        thread = threading.Thread(target=work, name=f"computing for {name}", daemon=True)
        thread.start()
        thread.join(None if math.isinf(seconds) else seconds)
        if thread.is_alive():
            self._end(name, thread)
            raise Overran(f"the computation for {name} took longer than {seconds:g} seconds")
        return outcome.result()

    def _end(self, name: str, thread: threading.Thread) -> None:
        until = time.monotonic() + _PATIENCE
        while thread.is_alive() and time.monotonic() < until:
            assert thread.ident is not None
            ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Ended))
            thread.join(_NOTICE)
        if thread.is_alive():
            self._left_behind[name] = thread


__all__ = ["Clock", "Overran"]

"""Child processes that begin as copies of this one, with everything loaded: they are there at once.

A copy has the thread alone that made it, so that locks and pools of other threads would never be let go of: where there
are any, a program is started instead.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from contextvars import Context
from pathlib import Path
from typing import NoReturn

TASKS = Path("/proc/self/task")  #: the threads of this process, those of libraries included (Linux only)
GLANCE = 0.002  #: seconds between two looks at a process that is to end


def may_fork() -> bool:
    """Whether this process has one thread, and the system tells so."""
    try:
        return sys.platform == "linux" and sum(1 for _ in TASKS.iterdir()) == 1
    except OSError:
        return False


class Fork:
    """A copy of this process that runs a function and ends; what `subprocess.Popen` says of a process, it says too.

    Of this process's open files the copy has `kept` alone. It is in a process group of its own, reads nothing, and no
    signal is handled as it is here.
    """

    def __init__(self, run: Callable[[], None], kept: Iterable[int]) -> None:
        self.returncode: int | None = None
        _flush()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())  # until the copy handles them anew
        try:
            self.pid = os.fork()
            if self.pid == 0:
                _live(run, kept, before)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        with suppress(OSError):  # it has done so itself, or has ended
            os.setpgid(self.pid, self.pid)

    def poll(self) -> int | None:
        """The exit code, or minus the number of the signal that ended it; None while it runs."""
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # a program that ignores its children's ends is not told how they ended
                pid, status = self.pid, 0
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The same once it has ended; `subprocess.TimeoutExpired` where that takes longer."""
        until = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if until is not None and time.monotonic() >= until:
                raise subprocess.TimeoutExpired("a copy of this process", timeout or 0.0)
            time.sleep(GLANCE)
        return code

    def kill(self) -> None:
        """End it."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


def _flush() -> None:
    """Write what the copy would write a second time."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()


def _live(run: Callable[[], None], kept: Iterable[int], mask: Iterable[int]) -> NoReturn:
    """The copy's life. It never goes back to where it was made: what is to be tidied up there is not its own."""
    code = 1
    try:
        os.setpgid(0, 0)
        signal.set_wakeup_fd(-1)
        for own in signal.valid_signals():
            if callable(signal.getsignal(own)):
                signal.signal(own, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _let_go_of_all_but(kept)
        Context().run(run)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(code)


def _let_go_of_all_but(kept: Iterable[int]) -> None:
    """Put nothing in the place of each other file: no new file gets a number that a log or a buffer still writes to."""
    nothing, wanted = os.open(os.devnull, os.O_RDWR), {1, 2, *kept}
    for descriptor in {0, *(int(name) for name in os.listdir("/proc/self/fd"))}:  # noqa: PTH208  a Path for each is no use
        if descriptor not in wanted and descriptor != nothing:
            os.dup2(nothing, descriptor, inheritable=descriptor == 0)


__all__ = ["Fork", "may_fork"]

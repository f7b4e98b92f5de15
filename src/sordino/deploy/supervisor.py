"""Keeps the processes of machines running: starts them in order, and again when they end, until all is over.

What a process says goes into a log; what people need is printed. A process that keeps failing is tried less and less
often. `logs/services.json` says how each of them is, for `sordino deploy check`.
"""

from __future__ import annotations

import ctypes
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from sordino.deploy.deployment import FLOWER, SERVER, Deployment
from sordino.deploy.registration import Registration
from sordino.deploy.services import ServiceSpec, environment, logs_of, prepare, services
from sordino.errors import InvalidInput
from sordino.storage.files import NotWritten, exclusive_lock, write_whole

LOOK = 0.2  #: seconds between two looks at the processes
SOONEST, SELDOM = 1.0, 20.0  #: seconds until a process that ended is started again: at first, and at most
STEADY = 60.0  #: seconds after which a process counts as well
REMINDER = 60.0  #: seconds until a taken port is complained of again
FAREWELL = 5.0  #: seconds in which a coordinator ends after its relay
ENDING = 10.0  #: seconds in which a process may end by itself when it is asked to
LOG_BYTES = 2**22  #: of a log; then it begins anew, and the one before is kept
STATUS, OWN = "services.json", ("coordinator", "client")  #: and the names of processes that are not Flower's
_PR_SET_PDEATHSIG = 1
#: what Flower says to a node with the key of one that is online, as a killed one seems to be for a while
STILL_THERE = ("Failed to activate", "already online", "NodeActivation", "activate the SuperNode")

FINISHED = "the coordinator has finished"  #: what a relay says then

_COLOURS = re.compile(r"\x1b\[[0-9;]*m")

Say = Callable[[str], None]


@dataclass
class _Process:
    """A service, and how its process is."""

    service: ServiceSpec
    place: Path
    machine: str
    process: subprocess.Popen[str] | None = None
    reader: threading.Thread | None = None
    since: float = 0.0
    restarts: int = 0
    pause: float = 0.0
    due: float = 0.0
    over: bool = False
    waiting: str = ""  #: for what it waits, in words
    why: str = ""  #: it ended last, in words
    news: str = ""  #: to be printed when it is started again
    complained: float = 0.0  #: when `why` was printed last
    said: list[str] = field(default_factory=list)  #: its last lines

    @property
    def state(self) -> str:
        """One word."""
        return "over" if self.over else "running" if self.process is not None else "waiting"


class Supervisor:
    """Keeps the processes of one or several machines of a set-up running, on this one."""

    def __init__(
        self, deployment: Deployment, folder: Path, *, side: str = "", door: bool = True, stay: bool = False, say: Say
    ) -> None:
        """`side` is the only one that is started; both if empty. Without `door`, another proxy is the door.

        With `stay` it waits for a signal even if all coordinators are done.
        """
        self._say, self._stopping, self._stay = say, False, stay
        self._machines = {name: deployment.place(folder, name).absolute() for name in deployment.machines}
        self._processes: list[_Process] = []
        self._registration: Registration | None = None
        for machine, place in self._machines.items():
            found = [each for each in services(deployment, place, machine) if side in ("", each.side)]
            found = [each for each in found if door or each.name != "door"]
            if not found:
                raise InvalidInput(f"{machine} has no side {side!r}")
            self._processes += [_Process(each, place, machine) for each in found]
            if machine == SERVER and side in ("", FLOWER):
                self._registration = Registration(deployment, place)
        self._deployment, self._side = deployment, side
        self._together = len(self._machines) > 1

    def run(self) -> None:
        """Until all coordinators are done, or a signal; without a coordinator, until a signal."""
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, self._stop)
        with ExitStack() as held:
            for machine, place in self._machines.items():
                for side in dict.fromkeys(p.service.side for p in self._processes if p.machine == machine):
                    prepare(self._deployment, place, machine, side)
                    held.enter_context(exclusive_lock(logs_of(place, side) / ".lock", f"{machine} ({side})"))
            try:
                while not self._stopping and not self._is_over():
                    self._look()
                    time.sleep(LOOK)
            finally:
                self._end()

    def _stop(self, *_: object) -> None:
        self._stopping = True

    def _is_over(self) -> bool:
        ending = [each for each in self._processes if each.service.ends]
        return bool(ending) and all(each.over for each in ending) and not self._stay

    # --- starting, and starting again

    def _look(self) -> None:
        if self._registration is not None and _is_open(self._deployment.inner_port):
            self._registration.look(self._say)
        for each in self._processes:
            if each.process is not None and each.process.poll() is not None:
                self._ended(each)
            if each.process is None and not each.over and time.monotonic() >= each.due and self._may_start(each):
                self._start(each)

    def _may_start(self, each: _Process) -> bool:
        if each.service.name.startswith("relay") and self._registration is not None and not self._registration.done:
            return False
        if self._over(each):
            return False
        missing = [thing for thing in each.service.waits_for if not _is_there(thing)]
        own = each.service.owner
        if not _is_made(own):
            remedy = f"sordino deploy join {each.place}"
            self._waits(each, f"{own} is not there yet: {remedy}")
            return False
        return not missing

    def _over(self, each: _Process) -> bool:
        """Whether a relay's coordinator is done."""
        name = each.service.name.removeprefix("relay ")
        return any(other.over and other.service.name == f"coordinator {name}" for other in self._processes)

    def _waits(self, each: _Process, why: str) -> None:
        if each.waiting != why:
            each.waiting = why
            self._print(each, f"waits: {why}")

    def _start(self, each: _Process) -> None:
        service = each.service
        command, place = service.command, each.place
        try:
            started = self._opened(command, service, place)
        except OSError as error:
            self._waits(each, f"{command[0]} cannot be started ({error.strerror or error}): may this account run it?")
            each.due = time.monotonic() + SELDOM
            return
        each.process, each.since, each.waiting = started, time.monotonic(), ""
        if each.news:
            self._print(each, each.news)
            each.news = ""
        each.reader = threading.Thread(target=self._read, args=(each, started), daemon=True)
        each.reader.start()
        self._note()

    def _opened(self, command: tuple[str, ...], service: ServiceSpec, place: Path) -> subprocess.Popen[str]:
        return subprocess.Popen(
            command, cwd=service.folder, env=environment(place), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, errors="replace", preexec_fn=die_with_parent,
        )  # fmt: skip

    def _read(self, each: _Process, process: subprocess.Popen[str]) -> None:
        """Write down what a process says, and print it where it is for people."""
        path = logs_of(each.place, each.service.side) / f"{each.service.name.replace(' ', '-')}.log"
        assert process.stdout is not None
        for line in process.stdout:
            text = _COLOURS.sub("", line.rstrip("\n"))
            each.said = [*each.said, text][-20:]
            with suppress(OSError):
                if path.exists() and path.stat().st_size > LOG_BYTES:
                    path.replace(path.with_suffix(".old.log"))
                with path.open("a", encoding="utf-8") as log:
                    log.write(f"{datetime.now(UTC).isoformat(timespec='seconds')}  {text}\n")
            if each.service.shown and text.strip():
                self._print(each, text)

    def _ended(self, each: _Process) -> None:
        assert each.process is not None
        code = each.process.returncode
        if each.reader is not None:
            each.reader.join(1.0)
        each.process = None
        if each.service.ends and code == 0:
            each.over = True
            self._note()
            return
        if self._stopping or self._over(each):
            return
        well = time.monotonic() - each.since > STEADY
        each.why = "" if well else each.why
        each.pause = SOONEST if well else min(SELDOM, max(SOONEST, 2 * each.pause))
        each.due, each.restarts = time.monotonic() + each.pause, each.restarts + 1
        taken = self._taken(each) if code > 0 else ""
        why = taken or _why(each, code)
        again = bool(taken) and time.monotonic() - each.complained >= REMINDER
        if why != each.why or again:  # else said once, however often it is tried
            each.complained = time.monotonic()
            self._tell(each, why if taken or why == FINISHED else f"{why}; it is started again")
        each.why = why
        self._note()

    def _tell(self, each: _Process, news: str) -> None:
        """Print it now; of a relay, only if its coordinator does not end right after it."""
        if each.service.name.startswith("relay") and news != FINISHED:
            each.due, each.news = time.monotonic() + max(FAREWELL, each.pause), news
        else:
            self._print(each, news)

    def _taken(self, each: _Process) -> str:
        """What to do about the port of a process that has ended, where somebody else listens there."""
        port = each.service.port
        if not port or _is_kept_out(each) or not _is_open(port):
            return ""
        option = "--port" if each.machine == SERVER else "--node-port"
        return f"127.0.0.1:{port} is taken: stop what listens there, or make the set-up with another {option}"

    def _print(self, each: _Process, text: str) -> None:
        where = f"{each.machine}: " if self._together else ""
        name = "" if each.service.shown and each.service.side != "client" else f"{each.service.name}: "
        self._say(f"{where}{name}{text}")

    def _note(self) -> None:
        """Write down how processes are, a file for each side of each machine."""
        places: dict[Path, dict[str, object]] = {}
        for each in self._processes:
            told = {
                "state": each.state,
                "process": each.process.pid if each.process is not None else None,
                "restarts": each.restarts,
                "said": each.said[-1:] if each.restarts else [],
            }
            places.setdefault(logs_of(each.place, each.service.side), {})[each.service.name] = told
        for place, found in places.items():
            with suppress(NotWritten):
                write_whole(place / STATUS, (json.dumps(found, indent=1) + "\n").encode())

    # --- ending

    def _end(self) -> None:
        """Ask every process to end, the last started first, and end those that do not."""
        self._stopping = True
        left = [each for each in reversed(self._processes) if each.process is not None]
        for each in left:
            assert each.process is not None
            with suppress(ProcessLookupError):
                each.process.send_signal(signal.SIGTERM)
        until = time.monotonic() + ENDING
        for each in left:
            assert each.process is not None
            with suppress(subprocess.TimeoutExpired):
                each.process.wait(max(0.1, until - time.monotonic()))
        for each in left:
            assert each.process is not None
            if each.process.poll() is None:
                each.process.kill()
                each.process.wait()
            each.process = None
        self._note()


def _is_kept_out(each: _Process) -> bool:
    """Whether Flower refuses a node, since one with its key seems to be online."""
    return each.service.name == "node" and any(mark in line for line in each.said for mark in STILL_THERE)


def _why(each: _Process, code: int) -> str:
    """Why a process ended, in the words that help most."""
    if _is_kept_out(each):
        return "Flower keeps the place of a node that was killed for about a minute, and does not let it in before"
    if each.service.name.startswith("relay"):
        if any(FINISHED in line for line in each.said):
            return FINISHED  # in a process of another supervisor
        return "Flower's app ended before the federation was over"
    last = next((line for line in reversed(each.said) if line.strip()), "")
    how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
    return f"it {how}" + (f" ({last.strip()[:200]})" if last else "")


def _is_there(thing: Path | int) -> bool:
    return thing.is_socket() if isinstance(thing, Path) else _is_open(thing)


def _is_made(folder: Path) -> bool:
    """Whether something is in a folder: a container's is there before. Another account's is not looked into."""
    with suppress(PermissionError):
        return folder.is_dir() and any(folder.iterdir())
    return True


def _is_open(port: int) -> bool:
    with socket.socket() as probe:
        probe.settimeout(1.0)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def die_with_parent() -> None:
    """Let the system end a process when this one is killed: nothing is left that nobody looks after."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def statuses(place: Path, sides: Sequence[str]) -> dict[str, dict[str, object]]:
    """How the processes of a machine are, as its supervisor wrote it down last; nothing of one that is not running."""
    found: dict[str, dict[str, object]] = {}
    for side in sides:
        with suppress(OSError, ValueError):
            told = json.loads((logs_of(place, side) / STATUS).read_text(encoding="utf-8"))
            entries = told.items() if isinstance(told, dict) else ()
            own = {name: each for name, each in entries if (side == FLOWER) != name.startswith(OWN)}
            found |= {name: each for name, each in own.items() if isinstance(each, dict)}
    return found


__all__ = ["Supervisor", "die_with_parent", "statuses"]

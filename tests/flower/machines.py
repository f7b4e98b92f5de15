"""A set-up's machines as folders on this one: `sordino deploy up` for each, all of them ended at the end."""

import ctypes
import json
import os
import pwd
import shlex
import signal
import socket
import subprocess
import sys
import time
import uuid
import warnings
from contextlib import chdir, suppress
from pathlib import Path
from typing import Any

import pytest

from sordino.deploy.access import LocalAccount
from sordino.deploy.checks import CheckResult, check
from sordino.deploy.deployment import SERVER, Deployment
from sordino.deploy.services import SIDES
from sordino.deploy.supervisor import statuses

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from sordino.cli import app

MARK = "SORDINO_TEST_MACHINES"  #: an environment variable by which processes of processes are found
_PR_SET_PDEATHSIG = 1


class Machines:
    """The machines of a set-up, each kept running by its own `sordino deploy up`."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._mark = folder, uuid.uuid4().hex
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        self.python, self.more = sys.executable, dict[str, str]()  #: that machines run, and what they find beside it

    @property
    def deployment(self) -> Deployment:
        return Deployment.read(self.folder)

    @property
    def run(self) -> Path:
        """The folder of the only federation's run."""
        (setup,) = self.deployment.federations
        return setup.coordinator_in(self.folder / SERVER) / "run"

    def sordino(self, *arguments: object, folder: Path | None = None) -> str:
        """A command of Sordino's, which must succeed, in this process: it would take seconds to load in another."""
        with chdir(folder or self.folder.parent):
            done = CliRunner().invoke(app, [str(each) for each in arguments])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout

    def up(self, *machines: str, words: str = "") -> None:
        """Start machines, and let them run."""
        for machine in machines:
            with (self.folder / f"{machine}.log").open("ab") as log:
                self._running[machine] = subprocess.Popen(
                    [self.python, "-m", "sordino", "deploy", "up", str(self.folder / machine), *shlex.split(words)],
                    env=self.environment() | self.more, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                    preexec_fn=_die_with_parent,
                )  # fmt: skip

    def wait(self, machine: str, seconds: float) -> int:
        """Wait for the end of a machine; its exit code."""
        try:
            return self._running[machine].wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.logs()) from None

    def down(self, machine: str) -> None:
        """As Ctrl-C does."""
        process = self._running.pop(machine)
        process.terminate()
        process.wait(30)

    def process(self, machine: str, service: str) -> int:
        """The number of a service's process, once it runs."""
        found: list[Any] = []

        def runs() -> bool:
            own = statuses(self.folder / machine, SIDES).get(service, {}).get("process")
            found.append(own)
            return isinstance(own, int) and Path(f"/proc/{own}").exists()

        self.until(runs, 60.0)
        return int(found[-1])

    def kill(self, machine: str, service: str) -> None:
        """As a power cut would."""
        os.kill(self.process(machine, service), signal.SIGKILL)

    def said(self, machine: str) -> str:
        """What a machine has printed so far."""
        path = self.folder / f"{machine}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, true: Any, seconds: float = 240.0) -> None:
        end = time.monotonic() + seconds
        while not true():
            assert time.monotonic() < end, self.logs()
            time.sleep(0.1)

    def until_said(self, machine: str, words: str, seconds: float = 240.0) -> None:
        self.until(lambda: words in self.said(machine), seconds)

    def until_round(self, number: int, seconds: float = 240.0) -> None:
        """Wait until so many rounds are over."""
        self.until(lambda: len(self.rounds()) >= number, seconds)

    def rounds(self) -> list[dict[str, Any]]:
        """What the server recorded of each round."""
        path = self.run / "metrics.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def findings(self, timeout: float = 5.0) -> list[CheckResult]:
        return check(self.deployment, self.folder, timeout)

    def logs(self) -> str:
        """The ends of all logs, for a message of failure."""
        found = sorted([*self.folder.glob("*.log"), *self.folder.rglob("logs/*.log")])
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in found)

    def environment(self) -> dict[str, str]:
        """Commands are those beside this Python; one thread each, since many processes share few cores."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLWR_", "PYTEST_", "COV_"))}
        return {**kept, "PATH": path, "OMP_NUM_THREADS": "1", MARK: self._mark}

    def done(self, folder: Path, text: str, timeout: float = 240.0) -> str:
        """What a shell prints in a folder, for commands that must succeed."""
        done = subprocess.run(
            ["bash", "-ec", text], cwd=folder, env=self.environment(), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=timeout, preexec_fn=_die_with_parent, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done.stdout

    def end(self) -> None:
        """End everything that was started here, and whatever that started."""
        end = time.monotonic() + 10
        while (left := self.left()) and time.monotonic() < end:  # a process may start another while it is looked for
            for number in left:
                with suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            for process in self._running.values():
                process.poll()
            time.sleep(0.05)
        for process in self._running.values():
            process.kill()
            process.wait()

    def left(self) -> list[int]:
        """Processes that bear this one's mark."""
        mark, found = f"{MARK}={self._mark}".encode(), []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with suppress(OSError):
                if mark in path.read_bytes().split(b"\0"):
                    found.append(int(path.parent.name))
        return found


def _die_with_parent() -> None:
    """Let the system end this process when the tests' own is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def free_ports(count: int) -> int:
    """The first of so many ports in a row where nobody listens."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first: int = probe.getsockname()[1]
        if first + count < 65536 and all(_free(first + number) for number in range(count)):
            return first
    raise AssertionError("no free ports")


def _free(port: int) -> bool:
    with socket.socket() as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


def need(found: str | None, what: str) -> str:
    """What was found; without it a test fails where it was promised (`make test` as root in CI), else it skips."""
    if found is None:
        (pytest.fail if os.environ.get("SORDINO_NEEDS_ACCOUNTS") else pytest.skip)(what)
    return found


def python_for_others() -> str | None:
    """A Python that other accounts can start, with the same libraries; None where there is none."""
    import flwr

    nobody = LocalAccount("nobody", pwd.getpwnam("nobody").pw_uid, frozenset())
    for path in (Path(sys.executable).resolve(), Path(f"/usr/bin/python3.{sys.version_info.minor}")):
        if path.exists() and nobody.obstacle(path, 1) is None and nobody.obstacle(Path(flwr.__file__), 4) is None:
            return str(path)
    return None

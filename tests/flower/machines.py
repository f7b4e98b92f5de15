"""A set-up's machines as folders on this one: its own commands, each in a process, all of them ended at the end."""

import ctypes
import json
import os
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

from sordino.deploy import commands
from sordino.deploy.checks import CheckResult, check
from sordino.deploy.deployment import SERVER, Deployment

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from typer.testing import CliRunner

    from sordino.cli import app

MARK = "SORDINO_TEST_MACHINES"  #: an environment variable by which processes of processes are found
_PR_SET_PDEATHSIG = 1


class Machines:
    """Runs the commands that `sordino deploy` wrote, as they are, by a shell in the machine's folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._mark = folder, uuid.uuid4().hex
        self._running: dict[tuple[str, str], subprocess.Popen[bytes]] = {}

    @property
    def deployment(self) -> Deployment:
        return Deployment.read(self.folder)

    def sordino(self, *arguments: object, folder: Path | None = None) -> str:
        """A command of Sordino's, which must succeed, in this process: it would take seconds to load in another."""
        with chdir(folder or self.folder.parent):
            done = CliRunner().invoke(app, [str(each) for each in arguments])
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout

    def do_here(self, machine: str, which: str) -> str:
        """Give the machine's command that contains these words, one of Sordino's own."""
        name, *words = shlex.split(self.command(machine, which))
        assert name == "sordino"
        return self.sordino(*words, folder=self.folder / machine)

    def do(self, machine: str, which: str, timeout: float = 240.0) -> str:
        """Give the machine's command that contains these words, and wait for its end."""
        return self._done(self.folder / machine, f". ./env.sh; {self.command(machine, which)}", timeout)

    def start(self, machine: str, which: str) -> None:
        """Give the machine's command that contains these words, and let it run."""
        text = f". ./env.sh; exec {self.command(machine, which)}"
        with (self.folder / machine / f"{which.split()[-1]}.log").open("ab") as log:
            self._running[machine, which] = subprocess.Popen(
                ["bash", "-ec", text], cwd=self.folder / machine, env=self._environment(), stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, preexec_fn=_die_with_parent,
            )  # fmt: skip

    def kill(self, machine: str, which: str) -> None:
        """As a power cut would."""
        process = self._running.pop((machine, which))
        process.kill()
        process.wait()

    def command(self, machine: str, which: str) -> str:
        """The one command of a machine that contains these words; a question is answered with yes."""
        (found,) = [s.command for s in commands.steps(self.deployment, machine) if which in s.command]
        return found.replace("client join", "client join --yes")

    def findings(self, timeout: float = 5.0) -> list[CheckResult]:
        return check(self.deployment, self.folder, timeout)

    def wait_until_fine(self, seconds: float = 240.0) -> None:
        """Wait for the check to have no complaints."""
        end = time.monotonic() + seconds
        while wrong := [finding.to_text() for finding in self.findings() if finding.wrong]:
            assert time.monotonic() < end, "\n".join([*wrong, self.logs()])
            time.sleep(0.5)

    def wait_for_port(self, seconds: float = 120.0) -> None:
        end = time.monotonic() + seconds
        while any(f.what == "port" and f.wrong for f in self.findings()):
            assert time.monotonic() < end, self.logs()
            time.sleep(0.2)

    def logs(self) -> str:
        """The ends of all logs, for a message of failure."""
        found = sorted(self.folder.glob("*/*.log"))
        return "\n".join(f"--- {path}\n{path.read_text(errors='replace')[-3000:]}" for path in found)

    def _done(self, folder: Path, text: str, timeout: float = 240.0) -> str:
        done = subprocess.run(
            ["bash", "-ec", text], cwd=folder, env=self._environment(), stdin=subprocess.DEVNULL, capture_output=True,
            text=True, timeout=timeout, preexec_fn=_die_with_parent, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{text}\n{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done.stdout

    def _environment(self) -> dict[str, str]:
        """Commands are those beside this Python; one thread each, since many processes share few cores."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLWR_", "PYTEST_", "COV_"))}
        return {**kept, "PATH": path, "OMP_NUM_THREADS": "1", MARK: self._mark}

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


def rounds(machines: Machines) -> list[dict[str, Any]]:
    """What the server recorded of each round."""
    path = machines.folder / SERVER / "runs" / machines.deployment.federation / "metrics.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]

"""Gateways over a real SuperLink: participants of two web servers, one message a round from each, one model.

Some minutes, so `nightly`: a SuperLink, two nodes, two `sordino serve --gateway`, four `sordino join`.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest

from sordino.client.client import Client
from sordino.flower.coordinator import RUN, SOCKET, CoordinatorSettings, make_coordinator
from sordino.recipe import Recipe
from sordino.wire.signing import SigningKey
from tests.flower.machines import free_ports

pytest.importorskip("flwr")

NAME = "gates"
CHANGES = ["split.clients=4", "rounds.count=3", "rounds.deadline=240"]
ROWS = ["0-279", "280-559", "560-839", "840-1119"]


class Desk:
    """Processes in one folder, all of them ended at the end."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._running: list[subprocess.Popen[bytes]] = []
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("FLWR_", "PYTEST_"))}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {
            **kept, "PATH": path, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", "COLUMNS": "200", "NO_COLOR": "1",
            "FLWR_HOME": str(folder / "home"), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_UPDATE_CHECK": "0",
        }  # fmt: skip

    def start(self, name: str, *command: object) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("wb") as log:
            process = subprocess.Popen(
                [str(word) for word in command], cwd=self.folder, env=self._environment, stdin=subprocess.DEVNULL,
                stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        self._running.append(process)
        return process

    def until(self, name: str, pattern: str, seconds: float = 240.0) -> str:
        """Wait for words in a process's log; the first group of them."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, (self.folder / f"{name}.log").read_text(errors="replace"))):
            assert time.monotonic() < end, self.logs()
            time.sleep(0.2)
        return found[1] if found.groups() else found[0]

    def logs(self) -> str:
        return "\n".join(f"--- {p.name}\n{p.read_text(errors='replace')[-2000:]}" for p in self.folder.glob("*.log"))

    def end(self) -> None:
        for process in self._running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 15)
        for process in self._running:
            with suppress(subprocess.TimeoutExpired):
                process.wait(15)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, 9)
            process.wait()


@pytest.fixture
def desk():
    folder = Path(tempfile.mkdtemp(prefix="sgw-"))
    found = Desk(folder)
    try:
        yield found
    finally:
        found.end()
        shutil.rmtree(folder)


@pytest.mark.nightly
@pytest.mark.timeout(900)
def test_four_participants_behind_two_gateways_learn_over_flower_and_each_ledger_has_its_rounds(desk):
    from sordino.flower.app import write_app

    recipe, folder = Recipe.load("webfed-digits", CHANGES), desk.folder
    signing, own = SigningKey.new(), folder / "own"
    make_coordinator(own, recipe, CoordinatorSettings(NAME, ("gateway-0", "gateway-2"), gateways=2), signing)
    write_app(folder / "app", NAME, own / SOCKET)
    key = signing.author.first.hex()
    port = free_ports(3)
    (folder / "home").mkdir()
    (folder / "home/config.toml").write_text(
        f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    )
    desk.start("link", "flower-superlink", "--insecure", "--port", port, "--database", "link.sqlite")
    changes = [word for change in CHANGES for word in ("--set", change)]
    for number, places in enumerate(("0-1", "2-3")):
        desk.start(
            f"gate{number}", "sordino", "serve", "webfed-digits", *changes, "--port", 0, "--folder", f"gate{number}",
            "--gateway", folder / f"{number}.sock", "--federation", NAME, "--slots", places, "--coordinator", key,
        )  # fmt: skip
    urls = [desk.until(f"gate{number}", r"Serving at (http://\S+)") for number in range(2)]
    for number in range(2):
        desk.start(
            f"node{number}", "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{port}",
            "--port", port + 1 + number, "--node-config", f'sordino-socket="{folder / f"{number}.sock"}"',
        )  # fmt: skip
    joined = [
        desk.start(f"join{k}", "sordino", "join", urls[k // 2], "--data", "digits", "--rows", rows, "--budget", 4,
                   "--folder", f"client{k}", "--yes")
        for k, rows in enumerate(ROWS)
    ]  # fmt: skip
    desk.start("coordinator", "sordino", "coordinator", "serve", own)
    desk.start("flwr", "flwr", "run", "app", "--stream")  # now gateways have an invitation to hand on
    for k in range(4):
        desk.until(f"join{k}", rf"Joined {NAME}")
    desk.until("coordinator", rf"{NAME} is over", 600)
    held = [json.loads(line) for line in (own / RUN / "metrics.jsonl").read_text().splitlines()]
    reported = [each["reported"] for each in held]
    assert len(reported) == 3 and reported[-1] == 4, "who joins a moment later takes part from then on"
    assert (own / RUN / "model.safetensors").is_file()
    for process in joined:
        assert process.wait(120) == 0, desk.logs()
    releases: list[int] = []
    for k in range(4):
        with Client.open(folder / f"client{k}") as client:
            releases.append(client.standing.releases)
            assert client.standing.spent <= 4, "the recipe plans its noise for epsilon 4 in all rounds"
    assert sum(releases) == sum(reported) and min(releases) >= 1

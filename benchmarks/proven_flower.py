"""A proven recipe between real silos over Flower, one of them killed in every second round.

    python -m benchmarks.proven_flower                    proven-mnist, ten silos, a SuperLink and ten SuperNodes
    python -m benchmarks.proven_flower --print --set rounds.count=5 --set data.train_limit=5000    a smaller one

Every silo is a process of its own (`sordino client serve`) with its own records, ledger and budgets: its owner lists
the others' keys and allows the recipe's epsilon against the sum. Reports travel in secure sums through Flower's own
processes on this machine. At some moment of every second round one silo gets SIGKILL; it is started again when that
round is over. Beside the run stands the simulation of the same recipe, in which nobody is killed.

A SuperNode starts a process for each message, so that a round takes a minute or two on two cores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.soak import Launcher, Nursery
from sordino.client.client import Client
from sordino.client.settings import Settings
from sordino.flower.app import write_app
from sordino.flower.coordinator import RUN, SOCKET, CoordinatorSettings, make_coordinator
from sordino.privacy.guarantee import Adjacency
from sordino.privacy.history import ranges
from sordino.privacy.statement import Statement
from sordino.recipe import Recipe
from sordino.report.folder import RunFolder
from sordino.report.records import RoundRecord
from sordino.runs.federation import wire
from sordino.wire.signing import SigningKey

RESULTS = Path(__file__).parent / "results/proven-flower.json"
NAME = "proven"  #: of the federation
ADD_REMOVE = "record-add-remove"
ALONE = 20.0  #: how much more than the sum the server alone may learn of a silo
PATIENCE = 25.0  #: seconds until a dead silo is not waited for any more; one that is back is found within 20
LATEST = 10.0  #: seconds after the begin of a round in which a silo is killed
LONGEST = 4 * 3600.0  #: seconds in which a run must be over


def recipe_for(given: Recipe, silos: int) -> Recipe:
    """The recipe for so many silos, with what real ones must know: a public size, and that ledgers count epsilon."""
    recipe = given.with_({"split.clients": silos})
    method: Any = recipe.method
    strengths = recipe.epsilons()
    assert strengths is not None
    budget = {"limit": ALONE * max(strengths), "delta": method.delta, "adjacency": ADD_REMOVE}
    announced = round(sum(wire(recipe).parts.sizes) / silos)
    return recipe.with_({"method.announced_size": announced, "clients.budget": budget, "name": NAME})


# --- silos ------------------------------------------------------------------------------------------------------------


@dataclass
class Silos:
    """The owners' processes, one for each part of a recipe's data."""

    place: Path
    recipe: Recipe
    launcher: Launcher
    running: dict[int, int] = field(default_factory=dict)
    kills: list[tuple[int, int]] = field(default_factory=list)  #: round, silo

    @property
    def names(self) -> tuple[str, ...]:
        """The silos' names, in the order of their numbers."""
        return tuple(f"silo-{number}" for number in range(self.recipe.number_of_clients))

    @property
    def coordinator(self) -> Path:
        """The coordinator's folder."""
        return self.place / "coordinator"

    def socket(self, number: int) -> Path:
        """Where a silo's process listens."""
        return self.place / f"{number}.sock"

    def set_up(self) -> None:
        """Folders with the records that a simulation would give them; owners have told each other their keys."""
        key = SigningKey.new()
        make_coordinator(self.coordinator, self.recipe, CoordinatorSettings(NAME, self.names, patience=PATIENCE), key)
        coordinator = key.author.first.hex()
        federation = wire(self.recipe)
        method: Any = self.recipe.method
        strengths = self.recipe.epsilons()
        assert strengths is not None
        terms = {"delta": method.delta, "adjacency": ADD_REMOVE}
        honest = method.shares(federation.clients)
        keys: dict[str, str] = {}
        for number, rows in enumerate(federation.parts):
            given: dict[str, Any] = {
                "data": {"source": self.recipe.data.source, "rows": ranges(rows)},
                "budget": {"limit": ALONE * strengths[number], **terms},
                "summed_budget": {"limit": strengths[number], "honest": honest, **terms},
                "consents": {"federations": [NAME]},
                "coordinators": {NAME: coordinator},
            }
            with Client.create(self.place / self.names[number], Settings.of(given)) as client:
                keys[str(number)] = client.identity.public
        for number in range(federation.clients):
            path = self.place / self.names[number] / "client.toml"
            own = Settings.read(path).model_copy(update={"peers": {NAME: keys}})
            path.write_text(own.to_toml())

    def serve(self, number: int) -> None:
        """Start a silo's process."""
        folder = self.place / self.names[number]
        arguments = ["client", "serve", str(folder), "--socket", str(self.socket(number))]
        self.running[number] = self.launcher.start(arguments, folder.with_suffix(".log"))

    def serve_all(self) -> None:
        """Start all of them, and wait until they listen."""
        for number in range(len(self.names)):
            self.serve(number)
        until(lambda: all(self.socket(number).exists() for number in range(len(self.names))), 300)

    def kill(self, number: int) -> None:
        """As a power cut would."""
        process = self.running.pop(number)
        os.kill(process, signal.SIGKILL)
        until(lambda: self.launcher.gone(process), 10)

    def end(self) -> None:
        """Leave no process behind."""
        for number in list(self.running):
            self.kill(number)

    @property
    def rounds(self) -> tuple[RoundRecord, ...]:
        """What the server recorded of the rounds that are over."""
        path = self.coordinator / RUN
        return RunFolder.open(path).rounds() if (path / "metrics.jsonl").exists() else ()

    def spent(self) -> list[tuple[float, float]]:
        """What each ledger has counted, against the server and against the sum."""
        found = []
        for name in self.names:
            with Client.open(self.place / name) as client:
                against_sum = client.standing.summed
                assert against_sum is not None
                found.append((client.standing.spent, against_sum.spent))
        return found


class Killer(threading.Thread):
    """Kills a silo in every second round, at most `latest` seconds after its begin; it is back when that is over.

    The victims take turns.
    """

    def __init__(self, silos: Silos, latest: float, victims: Sequence[int]) -> None:
        super().__init__(daemon=True)
        self._silos, self._latest, self._victims = silos, latest, victims
        self._over, self._moments = threading.Event(), random.Random(0)

    def run(self) -> None:
        """Until the run is over: rounds 2, 4 and so on lose one silo each."""
        silos, last = self._silos, self._silos.recipe.rounds.count
        for round in range(2, last + 1, 2):
            if not self._wait_for(round - 1):
                return
            self._over.wait(self._moments.uniform(0, self._latest))
            if self._over.is_set() or len(silos.rounds) >= round:
                continue  # that round was over sooner
            number = self._victims[round // 2 % len(self._victims)]
            silos.kill(number)
            silos.kills.append((round, number))
            self._wait_for(round)
            silos.serve(number)

    def _wait_for(self, rounds: int) -> bool:
        while len(self._silos.rounds) < rounds:
            if self._over.wait(0.02):
                return False
        return True

    def stop(self) -> None:
        """Kill nobody any more."""
        self._over.set()
        self.join()


def until(true: Callable[[], bool], seconds: float) -> None:
    """Wait until something is true."""
    end = time.monotonic() + seconds
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"it did not happen in {seconds:g} s")
        time.sleep(0.01)


# --- Flower -----------------------------------------------------------------------------------------------------------


class SuperLink:
    """Flower's own processes on this machine: a SuperLink and a SuperNode for every silo."""

    def __init__(self, silos: Silos) -> None:
        self._silos, self._place = silos, silos.place
        self._running: list[subprocess.Popen[bytes]] = []
        self._port = free_ports(1 + len(silos.names))
        kept = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
        self._environment = {
            **kept, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "OMP_NUM_THREADS": "1",
            "FLWR_HOME": str(self._place / "home"), "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1",
            "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        }  # fmt: skip

    def run(self) -> None:
        """Start everything, run the recipe's app to its end, and end everything."""
        write_app(self._place / "app", NAME, self._silos.coordinator / SOCKET)
        (self._place / "home").mkdir()
        (self._place / "home/config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{self._port}"\ninsecure = true\n'
        )
        try:
            self._start("link", "flower-superlink", "--insecure", "--port", self._port, "--database", "link.sqlite")
            until(lambda: _listening(self._port), 120)
            for number in range(len(self._silos.names)):
                self._start(
                    f"node-{number}", "flower-supernode", "--insecure", "--superlink", f"127.0.0.1:{self._port}",
                    "--port", self._port + 1 + number,
                    "--node-config", f'sordino-socket="{self._silos.socket(number)}"',
                )  # fmt: skip
            self._start("coordinator", "sordino", "coordinator", "serve", self._silos.coordinator)
            self._start("run", "flwr", "run", "app", "--stream")
            until(lambda: (self._silos.coordinator / RUN / "report.html").exists(), LONGEST)
        finally:
            self._end()

    def _start(self, name: str, *command: object) -> None:
        with (self._place / f"{name}.log").open("wb") as log:
            self._running.append(
                subprocess.Popen(
                    [str(word) for word in command], cwd=self._place, env=self._environment, stdin=subprocess.DEVNULL,
                    stdout=log, stderr=log, start_new_session=True,
                )
            )  # fmt: skip

    def _end(self) -> None:
        for sent in (signal.SIGTERM, signal.SIGKILL):
            for process in self._running:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, sent)
            for process in self._running:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(15)


def free_ports(count: int) -> int:
    """The first of so many ports in a row where nobody listens."""
    for _ in range(100):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            first: int = probe.getsockname()[1]
        if first + count < 65536 and not any(_listening(first + number) for number in range(count)):
            return first
    raise OSError("there are no free ports")


def _listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


# --- figures ----------------------------------------------------------------------------------------------------------


def proven(statement: Statement) -> dict[str, float]:
    """The proven epsilons of a statement for add/remove of a record, by who is looking: of those who told most."""
    found: dict[str, float] = {}
    for row in statement.rows:
        if row.adjacency is Adjacency.RECORD_ADD_REMOVE:
            found[str(row.adversary)] = max(row.proven, found.get(str(row.adversary), 0.0))
    return found


def figures(silos: Silos, simulated: float | None, seconds: float) -> dict[str, Any]:
    """What the run came to, for a page to quote."""
    rounds, folder, spent = silos.rounds, RunFolder.open(silos.coordinator / RUN), silos.spent()
    result, statement = folder.final_result(), folder.statement()
    assert result is not None and statement is not None
    return {
        "silos": len(silos.names),
        "rounds": len(rounds),
        "kills": silos.kills,
        "reports": [each.reported for each in rounds],
        "lost_rounds": [each.round for each in rounds if not each.counted],
        "accuracy": result.accuracy,
        "accuracy_simulated": simulated,
        "proven": proven(statement),
        "spent_against_the_sum": max(own for _, own in spent),
        "spent_against_the_server": max(own for own, _ in spent),
        "bytes_up_of_a_silo_and_round": round(sum(each.bytes_up for each in rounds) / len(rounds) / len(silos.names)),
        "seconds_a_round": round(sum(each.seconds for each in rounds) / len(rounds), 1),
        "seconds": round(seconds, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="proven-mnist", help="a recipe of private-head")
    parser.add_argument("--silos", type=int, default=10)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="change the recipe")
    parser.add_argument("--print", action="store_true", help="print the figures and write nothing")
    given = parser.parse_args()
    from sordino.runs.simulation import run

    recipe = recipe_for(Recipe.load(given.recipe, given.set), given.silos)
    simulated = run(recipe).accuracy
    place = Path(tempfile.mkdtemp(prefix="sdo-"))
    nursery = Nursery()
    silos = Silos(place, recipe, nursery)
    killer, begun = Killer(silos, LATEST, range(given.silos)), time.monotonic()
    try:
        silos.set_up()
        silos.serve_all()
        killer.start()
        SuperLink(silos).run()
        killer.stop()
        silos.end()
        found = {"recipe": given.recipe, **figures(silos, simulated, time.monotonic() - begun)}
    finally:
        killer.stop()
        silos.end()
        nursery.close()
    shutil.rmtree(place)
    print(json.dumps(found, indent=1))
    if not given.print:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()

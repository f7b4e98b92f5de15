"""A federation of processes, killed at random: does everything add up afterwards?

    python -m benchmarks.soak --minutes 5
    python -m benchmarks.soak --minutes 5 --commands

One coordinator and three clients, each a process of its own, run 20 rounds on a few digits, again and again; every
other time reports go through a shuffler, one more process. At random moments one or several of them get SIGKILL and are
started anew. Of every federation that is over, the journal, the
ledgers, the metrics and the model are compared (`problems`): every round counted once, one release a round in every
ledger, nothing spent twice, and a model that is to the last bit what the recorded reports add up to. The last line is
the verdict, and the exit code says it too.

Processes are forked off one that has loaded everything already (`Nursery`), so that many kills fit into a minute; with
--commands each is a command line of its own (`sordino run`, `sordino client serve`), which takes seconds to start.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from sordino.client.client import Client
from sordino.client.settings import Settings
from sordino.privacy.history import ranges
from sordino.privacy.ledger import Ledger, Released
from sordino.recipe import Recipe
from sordino.report.folder import RunFolder
from sordino.runs.federation import Federation, wire
from sordino.shuffler import keys
from sordino.shuffler.store import EnvelopeStore
from sordino.wire.messages import Plan
from sordino.wire.signing import SigningKey, key_file

CLIENTS = 3
ROUNDS = 20
LIMIT = 1e6  #: of a client's budget: what is spent is looked at, not refused
TABLES: dict[str, Any] = {
    "name": "soak",
    "seed": 7,
    "data": {"source": "digits", "train_limit": 60, "test_limit": 30},
    "split": {"kind": "iid", "clients": CLIENTS},
    "model": {"name": "logistic"},
    "training": {"epochs": 20, "batch_size": 5, "optimizer": {"name": "sgd", "lr": 0.1}},
    "method": {"name": "fedavg", "mechanism": {"name": "two-point"}, "range": {"kind": "fixed", "radius": 0.1}},
    "clients": {"epsilon": 1.0},
    "rounds": {"count": ROUNDS},
}
#: the same bits through a shuffler; few envelopes, since it is not sealing that is put to the test
SHUFFLED: dict[str, Any] = TABLES | {
    "method": {
        "name": "ldp-fl", "range": {"kind": "fixed", "radius": 0.1},
        "channel": {"kind": "shuffler", "at_least": CLIENTS, "group": 65},
    },
}  # fmt: skip


# --- processes --------------------------------------------------------------------------------------------------------


class Launcher(Protocol):
    """Starts a command line of `sordino` as a process."""

    pause: float  #: seconds between two kills, at most: so that processes come beyond their start

    def start(self, arguments: Sequence[str], log: Path) -> int:
        """The number of the new process; what it says goes to the log."""
        ...

    def gone(self, process: int) -> bool:
        """Whether a process has ended."""
        ...

    def close(self) -> None:
        """Let go of everything but the processes."""
        ...


class Commands:
    """Every process an interpreter of its own."""

    pause = 10.0

    def __init__(self) -> None:
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    def start(self, arguments: Sequence[str], log: Path) -> int:
        with log.open("ab") as said:
            process = subprocess.Popen(
                [sys.executable, "-m", "sordino", *arguments], stdin=subprocess.DEVNULL, stdout=said, stderr=said,
                env=os.environ | {"OMP_NUM_THREADS": "1"}, start_new_session=True,
            )  # fmt: skip
        self._running[process.pid] = process
        return process.pid

    def gone(self, process: int) -> bool:
        return self._running[process].poll() is not None

    def close(self) -> None:
        for process in self._running.values():
            process.wait()


class Nursery:
    """Processes forked off one that has loaded what the command line needs."""

    pause = 2.0

    def __init__(self) -> None:
        self._parent = subprocess.Popen(
            [sys.executable, "-c", "from benchmarks.soak import _nurse; _nurse()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )  # fmt: skip

    def start(self, arguments: Sequence[str], log: Path) -> int:
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.write(json.dumps([list(arguments), str(log)]) + "\n")
        self._parent.stdin.flush()
        return int(self._parent.stdout.readline())

    def gone(self, process: int) -> bool:
        try:
            os.kill(process, 0)
        except ProcessLookupError:
            return True
        return False

    def close(self) -> None:
        assert self._parent.stdin is not None and self._parent.stdout is not None
        self._parent.stdin.close()
        self._parent.wait()
        self._parent.stdout.close()


def _nurse() -> None:
    """The parent's life: a line of arguments in, the number of a child out."""
    import sordino.cli
    import sordino.client.socket_service
    import sordino.fleets.sockets
    import sordino.runs.serving
    import sordino.shuffler.channel
    import sordino.shuffler.service
    from sordino.learning import datasets

    datasets.load("digits")
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system forgets children that have ended
    for line in sys.stdin:
        arguments, log = json.loads(line)
        child = os.fork()
        if child == 0:
            _be_born(log)
            code = 1
            try:
                sordino.cli.app(arguments)
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        print(child, flush=True)


def _be_born(log: str) -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    for stream, target in ((0, os.open(os.devnull, os.O_RDONLY)), (1, said), (2, said)):
        os.dup2(target, stream)


# --- one federation ---------------------------------------------------------------------------------------------------


class Stuck(Exception):
    """Something did not happen in time."""


@dataclass
class Troupe:
    """A federation's processes in a folder: `coordinator`, and clients by their number."""

    place: Path
    launcher: Launcher
    recipe: Recipe
    name: str = "soak"
    port: int = 0  #: of the shuffler
    running: dict[str, int] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)

    @property
    def run(self) -> Path:
        return self.place / "run"

    @property
    def people(self) -> list[str]:
        return [f"client{number}" for number in range(self.recipe.number_of_clients)]

    @property
    def shuffled(self) -> bool:
        """Whether reports go through a shuffler, which is one more process."""
        channel: Any = self.recipe.method.channel
        return bool(channel.kind == "shuffler")

    @property
    def everybody(self) -> list[str]:
        return [*self.people, *(["shuffler"] if self.shuffled else []), "coordinator"]

    @property
    def key(self) -> SigningKey:
        """The coordinator's, made when it is first looked at."""
        return SigningKey.at(key_file(self.run))

    def set_up(self) -> Federation:
        """Make the recipe's file and the clients' folders, with the records that a simulation would give them."""
        tables: dict[str, dict[str, Any]] = {name: {} for name in self.people}
        if self.shuffled:
            tables = self._set_up_shuffler()
        parts = wire(self.recipe)
        (self.place / "recipe.toml").write_text(self.recipe.to_toml())
        for name, own in zip(self.people, parts.parts, strict=True):
            data = {"source": "digits", "rows": ranges(own)}
            given = {
                "data": data, "budget": {"limit": LIMIT}, "consents": {"federations": [self.name]},
                "coordinators": {self.name: self.key.author.first.hex()}, **tables[name],
            }  # fmt: skip
            Client.create(self.place / name, Settings.of(given)).close()
        return parts

    def _set_up_shuffler(self) -> dict[str, dict[str, Any]]:
        """Keys, tokens and an address; what each client must know of it."""
        public = keys.make(self.place / "keys")
        with closing(socket.create_server(("127.0.0.1", 0))) as free:
            self.port = free.getsockname()[1]
        url = f"http://127.0.0.1:{self.port}"
        self.recipe = self.recipe.with_(
            {"method.channel.url": url, "method.channel.key": public.public_bytes_raw().hex()}
        )
        with EnvelopeStore(self.place / "shuffler") as store:
            tokens = store.register(self.people)
        for name, token in tokens.items():
            (self.place / f"{name}.token").write_text(token)
        return {
            name: {"shuffler": {self.name: {"url": url, "token": str(self.place / f"{name}.token")}}} for name in tokens
        }

    def start_all(self) -> None:
        """Start everybody; the coordinator comes last, when the shuffler has made its token."""
        for who in self.everybody:
            if who == "coordinator" and self.shuffled:
                self.until((self.place / "shuffler/server.token").exists, 60)
            self.start(who)

    def start(self, who: str) -> None:
        """Start a process; the coordinator goes on if there is a run to go on with."""
        log = self.place / f"{who}.log"
        if who == "shuffler":
            arguments = ["shuffler", "serve", "--folder", str(self.place / who), "--port", str(self.port)]
            arguments += ["--server-key", str(self.place / "keys" / keys.PUBLIC), "--at-least", str(CLIENTS)]
        elif who != "coordinator":
            arguments = ["client", "serve", str(self.place / who), "--socket", str(self.place / f"{who}.sock")]
        elif (self.run / "recipe.toml").exists():
            arguments = ["run", "--resume", str(self.run), *self._sockets()]
        else:
            arguments = ["run", str(self.place / "recipe.toml"), "--out", str(self.run), *self._sockets()]
            arguments += ["--federation", self.name]
        self.running[who] = self.launcher.start(arguments, log)

    def _sockets(self) -> list[str]:
        sockets = [part for who in self.people for part in ("--client", str(self.place / f"{who}.sock"))]
        if self.shuffled:
            sockets += ["--shuffler-token", str(self.place / "shuffler/server.token")]
            sockets += ["--shuffler-key", str(self.place / "keys" / keys.PRIVATE)]
        return [*sockets, "--patience", "120"]

    def kill(self, *who: str) -> None:
        """SIGKILL to all of them, and wait until they are gone."""
        for each in who:
            if not self.gone(each):
                os.kill(self.running[each], signal.SIGKILL)
                self.kills[each] += 1
        self.until(lambda: all(self.gone(each) for each in who), 10)
        for each in who:
            self.running.pop(each, None)

    def gone(self, who: str) -> bool:
        """Whether a process is not there."""
        return who not in self.running or self.launcher.gone(self.running[who])

    def end(self) -> None:
        """Leave no process behind."""
        self.kill(*self.running)

    @property
    def over(self) -> bool:
        """Whether the run has come to its page."""
        return (self.run / "report.html").exists()

    def until(self, true: Callable[[], bool], seconds: float) -> None:
        """Wait until something is true."""
        patience = time.monotonic() + seconds
        while not true():
            if time.monotonic() > patience:
                raise Stuck(f"nothing happened in {seconds:g} s:\n{self.last_words()}")
            time.sleep(0.002)

    def last_words(self) -> str:
        """The ends of all logs."""
        logs = sorted(self.place.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text()[-2000:]}" for log in logs)

    def rounds(self) -> int:
        """How many rounds are over."""
        metrics = self.run / "metrics.jsonl"
        return metrics.read_bytes().count(b"\n") if metrics.exists() else 0


@contextmanager
def troupe(recipe: Recipe, launcher: Launcher) -> Iterator[Troupe]:
    """A federation in a folder of a short name (sockets have paths of about a hundred letters), removed at the end."""
    found = Troupe(Path(tempfile.mkdtemp(prefix="sdo-")), launcher, recipe)
    try:
        yield found
    finally:
        found.end()
        shutil.rmtree(found.place)


# --- does it add up? --------------------------------------------------------------------------------------------------


def problems(given: Troupe, parts: Federation) -> list[str]:
    """Everything that does not add up in a federation that is over; nothing, if all is well."""
    rounds = given.recipe.rounds.count
    with closing(sqlite3.connect(given.run / "checkpoint/state.sqlite")) as journal:
        plans = dict(journal.execute("SELECT round, sha256 FROM plans ORDER BY round"))
        held = journal.execute("SELECT round, why_lost, reported, record FROM rounds ORDER BY round").fetchall()
    found = [] if [row[0] for row in held] == list(range(1, rounds + 1)) else [f"the journal has the rounds {held}"]
    found += [f"round {number} was lost: {why}" for number, why, _, _ in held if why]
    lines = (given.run / "metrics.jsonl").read_text().splitlines()
    if lines != [record for *_, record in held]:
        found.append("metrics.jsonl does not say what the journal says")
    reports: dict[int, dict[int, bytes]] = {}
    for number, name in enumerate(given.people):
        own, wrong = _ledger(given.place / name, plans, rounds)
        reports[number] = own
        found += [f"{name}: {sentence}" for sentence in wrong]
    return found or _model_problems(given, parts, reports, plans)


def _ledger(folder: Path, plans: dict[int, str], rounds: int) -> tuple[dict[int, bytes], list[str]]:
    """The reports in a client's ledger by round, and what is wrong with it."""
    wrong, found = [], {}
    with Client.open(folder) as client:
        if client.stopped:
            wrong.append("the ledger is older than a receipt")
        spent = client.standing.spent
    with Ledger.open(folder / "ledger.sqlite") as ledger:
        released = [entry.event for entry in ledger.entries() if isinstance(entry.event, Released)]
        numbers = Counter(event.key.round for event in released)
        if numbers != Counter(range(1, rounds + 1)):
            wrong.append(f"releases by round: {dict(numbers)}")
        for event in released:
            found[event.key.round] = ledger.replay(event.key) or b""
            if str(event.key.plan_hash) != plans.get(event.key.round):
                wrong.append(f"round {event.key.round} answers another plan than the one that was sent")
    once = _cost(folder, released)
    if not np.isclose(spent, rounds * once, rtol=1e-9):
        wrong.append(f"{spent} is spent, and {rounds} rounds cost {rounds * once}")
    return found, wrong


def _cost(folder: Path, released: Sequence[Released]) -> float:
    """What one round costs, by a ledger that holds nothing else."""
    with tempfile.TemporaryDirectory() as elsewhere, Client.open(folder) as client:
        budget, name = client.settings.ledger_budget(), client.settings.data.name
        with Ledger.create(Path(elsewhere) / "one.sqlite") as ledger:
            ledger.set_budget(name, budget)
            ledger.record(released[0].key, released[0].releases, b"")
            return ledger.standing(name).spent


def _model_problems(
    given: Troupe, parts: Federation, reports: dict[int, dict[int, bytes]], plans: dict[int, str]
) -> list[str]:
    """Whether the model is what the recorded reports add up to, plan by plan and to the last bit."""
    import hashlib

    method = parts.method
    state = method.init()
    clients = list(reports)
    for number in range(1, given.recipe.rounds.count + 1):
        plan: Plan = method.plan(state, given.name)
        if hashlib.sha256(plan.encode()).hexdigest() != plans[number]:
            return [f"the plan of round {number} is not that of the reports before it"]
        tally = method.tally(plan)
        refused = tally.add(clients, [reports[client][number] for client in clients])
        if refused:
            return [f"round {number}: recorded reports are refused: {refused}"]
        state = method.update(state, plan, tally)
    tensors, _ = RunFolder.open(given.run).model()
    expected = parts.layout
    named = {name: tensor.numpy() for name, tensor in expected.unflatten(_tensor(state.parameters)).items()}
    same = all(np.array_equal(named[name], tensors[name]) for name in named)
    return [] if same else ["the model is not what the recorded reports add up to"]


def _tensor(values: np.ndarray[Any, Any]) -> Any:
    import torch

    return torch.from_numpy(values)


# --- the soak ---------------------------------------------------------------------------------------------------------


def one(
    tables: dict[str, Any], launcher: Launcher, dice: random.Random, seconds: float
) -> tuple[Counter[str], list[str]]:
    """One federation with random kills, the first `seconds` of it at most: how many kills, and what does not add up."""
    with troupe(Recipe.from_dict(tables), launcher) as given:
        parts, everybody = given.set_up(), given.everybody
        given.start_all()
        last = time.monotonic() + seconds
        while not given.over:
            _wait(given, dice.uniform(0.02, launcher.pause))
            if time.monotonic() < last and not given.over:
                given.kill(*[who for who in everybody if dice.random() < 0.35] or [dice.choice(everybody)])
            for who in dice.sample(everybody, len(everybody)):
                if given.gone(who) and not given.over:
                    time.sleep(dice.uniform(0.0, 0.1))
                    given.start(who)
            if time.monotonic() > last + 300:
                return given.kills, [f"it did not come to its end:\n{given.last_words()}"]
        given.until(lambda: given.gone("coordinator"), 60)
        kills = given.kills.copy()
        given.end()
        return kills, problems(given, parts)


def _wait(given: Troupe, seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not given.over:
        time.sleep(0.005)


def main() -> None:
    """Soak for some minutes and print a verdict."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--minutes", type=float, default=3.0)
    parser.add_argument(
        "--seed", type=int, default=1, help="of the moments and victims; what follows is up to the system"
    )
    parser.add_argument("--commands", action="store_true", help="start every process as a command line of its own")
    options = parser.parse_args()
    dice = random.Random(options.seed)
    launcher: Launcher = Commands() if options.commands else Nursery()
    end, total, federations, wrong = time.monotonic() + 60 * options.minutes, Counter[str](), 0, list[str]()
    try:
        while time.monotonic() < end and not wrong:
            tables = SHUFFLED if federations % 2 else TABLES
            kills, wrong = one(tables, launcher, dice, max(1.0, end - time.monotonic()))
            total, federations = total + kills, federations + 1
            said = ", ".join(f"{who} {times}" for who, times in sorted(kills.items()))
            how = "through a shuffler" if tables is SHUFFLED else "directly"
            print(f"federation {federations}, {how}: killed {said}; {wrong or 'everything adds up'}", flush=True)
    finally:
        launcher.close()
    rounds = federations * ROUNDS
    print(f"{federations} federations, {rounds} rounds, {total.total()} kills: {'WRONG' if wrong else 'survived'}")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()

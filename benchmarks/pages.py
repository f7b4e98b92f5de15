"""How many pages one server holds: `python -m benchmarks.pages --pages 1000` on loopback.

A real server (`sordino serve`) in a process of its own, and lightweight WebSocket clients that train nothing: each
takes the plan and sends a report of about 100 kB, in every round. What is checked: that no report is lost. What is
measured: the time of a round, and the server's memory.

What pages say about a recipe before anybody trains is measured here too, and kept in src/sordino/web/measured.json:

    python -m benchmarks.pages --choices webfed-digits                 what stronger choices cost
    python -m benchmarks.pages --expected webfed-digits --seeds 5      the accuracy that the recipe reaches
"""

from __future__ import annotations

import argparse
import asyncio
import hmac
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

HIDDEN = 333  #: 75 * 333 + 10 = 24,985 parameters: reports of 99,940 bytes
MEASURED = Path(__file__).parents[1] / "src" / "sordino" / "web" / "measured.json"
AT_ONCE = 50  #: connections that are being opened at the same time


def recipe(pages: int, rounds: int, hidden: int) -> str:
    return f"""name = "load"
summary = "a load test"
seed = 1
[data]
source = "digits"
[split]
kind = "iid"
clients = {pages}
at_least = 0
[model]
name = "mlp"
options = {{ hidden = [{hidden}] }}
[method]
name = "fedavg"
norm = 100.0
[rounds]
count = {rounds}
quorum = {pages}
[evaluation]
every = {rounds}
"""


class Server:
    """`sordino serve` as a process."""

    def __init__(self, folder: Path, text: str) -> None:
        path = folder / "load.toml"
        path.write_text(text)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
        command = ["-m", "sordino", "serve", path, "--folder", folder / "served", "--port", "0", "--gather", "0"]
        command += ["--pace", "0"]
        command += ["--per-address", 1_000_000]  # everybody is on this machine
        self._process = subprocess.Popen(
            [sys.executable, *map(str, command)], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if found := re.search(r"localhost:(\d+)", line):
                self.port = int(found[1])
                return
        raise SystemExit("the server did not start")

    def memory(self, what: str) -> float:
        """Megabytes: VmRSS now, VmHWM at most so far."""
        status = Path(f"/proc/{self._process.pid}/status").read_text()
        found = re.search(rf"{what}:\s+(\d+) kB", status)
        return int(found[1]) / 1024 if found else float("nan")

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=120) as answer:
            return json.loads(answer.read())

    def stop(self) -> None:
        self._process.send_signal(signal.SIGTERM)
        self._process.wait(60)


class Page:
    """A participant that sends zeros."""

    def __init__(self, number: int, task: dict[str, Any], digest: str, port: int) -> None:
        self._secret, self._task, self._digest = number.to_bytes(8, "big"), task, digest
        self._address = f"ws://127.0.0.1:{port}/api/federations/load/ws"
        self.sent, self.received = 0, 0

    def _hello(self) -> str:
        name = self._task["federation"].encode()
        tags = [
            hmac.digest(self._secret, b"sordino web " + w + b" 1\0" + name, "sha256").hex() for w in (b"id", b"proof")
        ]
        told = {"type": "hello", "protocol": 2, "kind": "page", "token": "", "task": self._digest, "last": None}
        return json.dumps({**told, "id": tags[0][:32], "proof": tags[1]})

    async def take_part(self, gate: asyncio.Semaphore, body: bytes) -> None:
        await gate.acquire()
        async with connect(
            self._address, compression=None, max_size=None, open_timeout=120, ping_interval=None
        ) as socket:
            await socket.send(self._hello())
            await socket.recv()
            gate.release()
            try:
                async for message in socket:
                    if isinstance(message, str):
                        told = json.loads(message)
                        self.received += told["type"] == "received"
                        if told["type"] in ("ended", "refused"):
                            return
                    else:
                        await socket.send(_answer(message, body))
                        self.sent += 1
            except ConnectionClosed:
                return


def _answer(request: bytes, body: bytes) -> bytes:
    """The response to a plan, without reading it: its envelope says which round it is, and its digest."""
    from sordino.wire.messages import Answer, Kind
    from sordino.wire.requests import Request, Response
    from sordino.wire.signing import Envelope

    envelope = Envelope.decode(Request.decode(request).payload)
    answer = Answer(Kind.REPORT, envelope.round, envelope.plan, body).encode()
    return Response(True, answer).encode()


async def everybody(pages: list[Page], body: bytes, limit: float) -> float:
    """All pages to the end; how long it took until all were connected is not told apart from the rest here."""
    gate, began = asyncio.Semaphore(AT_ONCE), time.monotonic()
    async with asyncio.timeout(limit):
        await asyncio.gather(*(page.take_part(gate, body) for page in pages))
    return time.monotonic() - began


def load(count: int, rounds: int, hidden: int, limit: float) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="sordino-load-") as name:
        server = Server(Path(name), recipe(count, rounds, hidden))
        try:
            before = server.memory("VmRSS")
            told = server.get("/api/federations/load")
            task, digest = told["task"], told["task_digest"]
            body = bytes(4 * task["upload"]["values"])
            pages = [Page(number, task, digest, server.port) for number in range(count)]
            whole = asyncio.run(everybody(pages, body, limit))
            history = server.get("/api/federations/load")["history"]
            peak, after = server.memory("VmHWM"), server.memory("VmRSS")
        finally:
            server.stop()
    reported = [entry["reported"] for entry in history]
    return {
        "pages": count,
        "rounds": rounds,
        "report_bytes": len(body),
        "lost": count * rounds - sum(reported),
        "acknowledged": sum(page.received for page in pages),
        "seconds_in_all": round(whole, 1),
        "seconds_a_round": round(statistics.median(entry["seconds"] for entry in history[1:] or history), 2),
        "reports_a_second": round(count / statistics.median(entry["seconds"] for entry in history[1:] or history)),
        "memory_before_mb": round(before),
        "memory_peak_mb": round(peak),
        "memory_after_mb": round(after),
    }


# --- what stronger choices cost ---------------------------------------------------------------------------------------


def choices(name: str, seeds: int) -> dict[str, Any]:
    """Mean accuracy by share of the recipe's epsilon, all participants or one alone choosing it; over some seeds."""
    from benchmarks.attacks import Party
    from sordino.recipe import Recipe
    from sordino.runs.federation import wire
    from sordino.runs.simulation import run
    from sordino.web.page_task import SHARES, compile_task
    from sordino.wire.signing import SigningKey

    recipe = Recipe.load(name)
    told = compile_task(wire(recipe), name, SigningKey.new().author).content["choices"]
    found = {}
    for share, choice in zip(SHARES, told, strict=True):
        changed = recipe.to_dict()
        changed["method"] = {**changed["method"], "noise_multiplier": choice["noise"]}
        changed["method"].pop("target", None)
        accuracies, alone = [], []
        for seed in range(1, seeds + 1):
            outcome = run(Recipe.from_dict({**changed, "seed": seed}), workers=1)
            accuracies.append(outcome.accuracy or 0.0)
            alone.append(Party(wire(recipe.with_({"seed": seed}))).accuracy_with(choice["noise"]))
        found[f"{share:g}"] = {
            "noise": choice["noise"],
            "accuracy": round(statistics.mean(accuracies), 3),
            "alone": round(statistics.mean(alone), 3),
        }
        print(f"epsilon times {share:g}, noise {choice['noise']:g}: {accuracies}; alone {alone}", file=sys.stderr)
    return {name: {"choices": found}}


def expected(name: str, seeds: int) -> dict[str, Any]:
    """The accuracy of a recipe as it is shipped, over some seeds."""
    from sordino.recipe import Recipe
    from sordino.runs.simulation import run

    recipe = Recipe.load(name)
    found = [run(recipe.with_({"seed": seed}), workers=1).accuracy or 0.0 for seed in range(1, seeds + 1)]
    print(f"{name}: {found}", file=sys.stderr)
    figures = {"accuracy": statistics.mean(found), "low": min(found), "high": max(found)}
    rounded = {key: round(value, 3) for key, value in figures.items()}
    return {name: {"expected": {**rounded, "seeds": seeds, "participants": recipe.number_of_clients}}}


def keep(found: dict[str, Any]) -> None:
    """Write figures of a recipe beside those that are known."""
    known = json.loads(MEASURED.read_text())
    for name, figures in found.items():
        known[name] = {**known.get(name, {}), **figures}
    MEASURED.write_text(json.dumps(known, indent=1) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--pages", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=HIDDEN, help="width of the model, which decides a report's size")
    parser.add_argument("--limit", type=float, default=480.0, help="seconds, after which it gives up")
    parser.add_argument("--choices", metavar="RECIPE", help="measure a recipe's stronger choices instead")
    parser.add_argument("--expected", metavar="RECIPE", help="measure the accuracy that a recipe reaches instead")
    parser.add_argument("--seeds", type=int, default=20)
    given = parser.parse_args()
    if given.choices or given.expected:
        found = choices(given.choices, given.seeds) if given.choices else expected(given.expected, given.seeds)
        keep(found)
    else:
        found = load(given.pages, given.rounds, given.hidden, given.limit)
    print(json.dumps(found, indent=1))
    if found.get("lost"):
        raise SystemExit(f"{found['lost']} reports were lost")


if __name__ == "__main__":
    main()

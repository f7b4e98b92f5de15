"""What the shuffler costs: reports per second and bytes per client, with the service in a process of its own.

    python -m benchmarks.shuffler [--clients N] [--values D] [--sealed K] [--workers W] [--full] [--quick] [--write]

A report is one value of one client. The service takes in, mixes and hands out the envelopes of all clients over HTTP on
loopback. It cannot tell an envelope from random bytes, so only K clients' are really sealed and opened, and the others'
are random; with `--full` all of them are real, which takes minutes. Sealing and opening are in seconds of a core (of
each of them, where several processes open; their start is part of it); what the service does is by the clock. Beside it
stands what secure sums of the same bits cost, in one process.
Results go to `benchmarks/results/shuffler.json` and the comparison into `docs/shuffler.md` (with `--quick`: nowhere;
`--write` only writes the comparison from the results that are there).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import cryptography
import numpy as np
from rich.console import Console

from benchmarks import secagg
from benchmarks.simulation import Rows, insert, show
from sordino.channels.secagg import Session
from sordino.channels.secure_sum import Summed
from sordino.shuffler import Terms, keys, open_batch, seal
from sordino.shuffler.envelopes import Body, _bodies, batch_head, envelope_bytes
from sordino.shuffler.remote import Remote
from sordino.shuffler.store import EnvelopeStore
from sordino.wire.messages import Plan

ROOT = Path(__file__).resolve().parent.parent
RESULTS = Path(__file__).parent / "results" / "shuffler.json"
PAGE = ROOT / "docs" / "shuffler.md"


@dataclass(frozen=True)
class Step:
    """One party's part in a round, and what was measured of it."""

    name: str
    clients: int  #: whose reports were measured
    reports: int
    seconds: float
    bytes: int

    @property
    def rate(self) -> float:
        return self.reports / self.seconds


def timed(call: Callable[[], Any], clock: Callable[[], float] = time.perf_counter) -> tuple[Any, float]:
    began = clock()
    found = call()
    return found, clock() - began


def of_children() -> float:
    """Seconds of all cores together that processes took which this one has started and seen end."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Service:
    """`sordino shuffler serve` on a free port."""

    def __init__(self, folder: Path, public: Path, at_least: int) -> None:
        command = [sys.executable, "-m", "sordino", "shuffler", "serve", "--folder", str(folder), "--port", "0"]
        command += ["--server-key", str(public), "--at-least", str(at_least)]
        environment = os.environ | {"PYTHONUNBUFFERED": "1"}
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().split()[-1]
        self.token = (folder / "server.token").read_text().strip()

    def __enter__(self) -> Service:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def memory(self) -> int:
        """The most that the process took, in bytes; 0 where the system does not tell."""
        try:
            lines = Path(f"/proc/{self._process.pid}/status").read_text().splitlines()
        except OSError:
            return 0
        return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


def opaque_bodies(terms: Terms) -> list[bytes]:
    """Envelopes of random bytes."""
    size = envelope_bytes(terms)
    envelopes = np.frombuffer(os.urandom(terms.positions * size), np.uint8).reshape(-1, size)
    return _bodies(0, terms.digest, np.arange(terms.positions, dtype=np.uint32), envelopes)


def taken_in(service: Service, tokens: list[str], bodies: list[list[bytes]]) -> None:
    for token, own in zip(tokens, bodies, strict=True):
        remote = Remote(service.url, token)
        for body in own:
            remote.send(1, body)


def fetched(remote: Remote) -> bytes:
    """The batch, as soon as it has left."""
    while (batch := remote.batch(1, 0)) is None:
        time.sleep(0.02)
    return batch


def measure(clients: int, values: int, sealed: int, workers: int) -> tuple[list[Step], int]:
    """The steps of one round, and the most memory that the service took."""
    terms = Terms.of(Plan("benchmark", 1), values, [clients], 3600.0)
    rng = np.random.default_rng(1)
    bits = rng.integers(0, 2, (sealed, values), dtype=np.uint8)
    with tempfile.TemporaryDirectory() as made:
        folder, server = Path(made) / "shuffler", Path(made) / "server"
        public = keys.make(server)
        with EnvelopeStore(folder) as store:
            tokens = list(store.register([f"client {k}" for k in range(clients)]).values())
        reports = [np.packbits(row, bitorder="little").tobytes() for row in bits]
        real, seal_seconds = timed(lambda: [seal(report, terms, 0, public) for report in reports], time.process_time)
        bodies = real + [opaque_bodies(terms) for _ in range(clients - sealed)]
        sent = sum(map(len, bodies[0]))
        with Service(folder, server / keys.PUBLIC, clients) as service:
            remote = Remote(service.url, service.token, timeout=600)
            remote.open_round(terms)
            _, in_seconds = timed(lambda: taken_in(service, tokens, bodies))
            batch, out_seconds = timed(lambda: fetched(remote))
            remote.taken(1, 0)
            memory = service.memory()
        ours = batch
        if sealed < clients:  # what the server would open, of those whose envelopes are real
            each = [np.concatenate([Body.decode(body).envelopes for body in own]) for own in real]
            ours = batch_head(terms, 0, sealed) + np.stack(each, axis=1).tobytes()
        key = keys.private_key(server / keys.PRIVATE)
        alone, open_seconds = timed(lambda: open_batch(ours, terms, key, 1), time.process_time)
        shared, all_seconds = timed(lambda: open_batch(ours, terms, key, workers), of_children)
    assert alone.counts().tolist() == shared.counts().tolist() == bits.sum(axis=0).tolist()
    total, real_total = clients * values, sealed * values
    steps = [
        Step("a client seals", sealed, real_total, seal_seconds, sent),
        Step("the shuffler takes in, durably", clients, total, in_seconds, sent),
        Step("the shuffler mixes and hands out", clients, total, out_seconds, len(batch) // clients),
        Step("the server opens and counts, 1 process", sealed, real_total, open_seconds, 0),
        Step(f"the server opens and counts, {workers} processes", sealed, real_total, all_seconds / workers, 0),
    ]
    return steps, memory


def summed(clients: int, values: int) -> dict[str, float]:
    """What secure sums of as many bits of as many clients cost: seconds of one core, and bytes of one client."""
    session = Session("benchmark", 1, 0, "", values, 0, 1, clients, Summed.Spec().least(clients), "0" * 16)
    cost = secagg.measure(session, 0)
    return {
        "client_seconds": sum(cost.client_seconds.values()),
        "server_seconds": sum(cost.server_seconds.values()),
        "client_bytes": sum(cost.bytes_up.values()),
    }


def table(steps: list[Step], clients: int, values: int) -> Rows:
    heads = [
        "step",
        "reports/s",
        "seconds a client",
        f"seconds a round of {clients:,}",
        "bytes a client",
        "measured with",
    ]
    rows: Rows = [heads]
    for step in steps:
        each = values / step.rate
        # clients seal at the same time, each on a machine of its own; all else is done by one party for all
        whole = each if step.name == "a client seals" else clients * each
        size = f"{step.bytes:,}" if step.bytes else ""
        rows.append([step.name, f"{step.rate:,.0f}", f"{each:.3g}", f"{whole:.3g}", size, f"{step.clients} clients"])
    return rows


def beside(found: dict[str, Any]) -> Rows:
    """The shuffler beside secure sums."""
    steps, sums = {step["name"]: Step(**step) for step in found["steps"]}, found["summed"]
    clients, values = found["clients"], found["values"]
    seals, opens = steps["a client seals"], steps["the server opens and counts, 1 process"]
    return [
        [f"{clients:,} clients, {values:,} bits each", "shuffler", "secure sums"],
        ["bytes that a client sends", f"{seals.bytes:,}", f"{sums['client_bytes']:,.0f}"],
        ["seconds of a client's core", f"{values / seals.rate:.3g}", f"{sums['client_seconds']:.3g}"],
        ["seconds of the server's core", f"{clients * values / opens.rate:.3g}", f"{sums['server_seconds']:.3g}"],
        ["memory of the service, MiB", f"{found['memory'] / 2**20:,.0f}", "no service"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--values", type=int, default=21_840)
    parser.add_argument("--sealed", type=int, default=8, help="clients whose envelopes are real (default: 8)")
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1, help="processes that open (default: cores)")
    parser.add_argument("--full", action="store_true", help="all clients' envelopes are real")
    parser.add_argument("--quick", action="store_true", help="10 clients with 1,000 values, nothing is written")
    parser.add_argument("--write", action="store_true", help="measure nothing, write the page's table")
    options = parser.parse_args()
    if options.write:
        insert(PAGE, {"beside": beside(json.loads(RESULTS.read_text(encoding="utf-8")))})
        return
    clients, values = (10, 1_000) if options.quick else (options.clients, options.values)
    sealed = clients if options.full else min(options.sealed, clients)
    steps, memory = measure(clients, values, sealed, options.workers)
    machine = f"{platform.machine()}, Python {platform.python_version()}, cryptography {cryptography.__version__}"
    found = {
        "machine": machine, "cores": os.cpu_count(), "clients": clients, "values": values, "memory": memory,
        "steps": [asdict(step) for step in steps], "summed": summed(clients, values),
    }  # fmt: skip
    console = Console()
    show(console, "cost", table(steps, clients, values))
    show(console, "beside", beside(found))
    if options.quick:
        return
    RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    insert(PAGE, {"beside": beside(found)})


if __name__ == "__main__":
    main()

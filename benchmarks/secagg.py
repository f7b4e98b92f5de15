"""What a secure sum costs: processor time and bytes of every step, for one client and for the server, all on one core.

    python -m benchmarks.secagg [--graph complete|sparse] [--quick] [--passes N] [--json FILE]

Every client's steps are run, one client after the other; a client's figures are means over all of them. On the complete
graph the server's last step is measured with everybody there and with as many dropouts as the threshold allows, which
is its worst case; of several passes each step's shortest time counts. On the sparse graph a tenth drops out, as many as
the threshold allows, and a twentieth may collude.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import cryptography
import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.memory import own_peak
from sordino.channels.neighbours import neighbourhood
from sordino.channels.secagg import STEPS, Session, SumClient, SumServer

CLIENTS, VALUES = 100, 10**6  #: of sums on the complete graph
SPARSE_CLIENTS, SPARSE_VALUES = (1000, 5000), 10**5
KINDS = {"bits": (0, 1), "ten decimals": (-(10**10) * 2**14, 10**10 * 2**14)}  #: name -> range of one client's values


@dataclass
class Cost:
    client_seconds: dict[str, float] = field(default_factory=dict)
    server_seconds: dict[str, float] = field(default_factory=dict)
    bytes_up: dict[str, float] = field(default_factory=dict)
    bytes_down: dict[str, float] = field(default_factory=dict)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    began = time.process_time()
    found = call()
    return found, time.process_time() - began


def measure(session: Session, dropouts: int) -> Cost:
    """One round; the last `dropouts` clients send their shares and are not heard of again."""
    rng = np.random.default_rng(1)
    cost = Cost()
    server = SumServer(session, range(session.clients))
    invited = frozenset(range(session.clients))
    own, making = timed(lambda: {c: SumClient(session, c, invited=invited) for c in invited})
    total = np.zeros(session.values, np.int64)
    for step in STEPS:
        requests, cost.server_seconds[step] = timed(lambda step=step: server.requests(step))
        spent, up = making if step == "keys" else 0.0, 0
        staying = [c for c in requests if STEPS.index(step) < 2 or c < session.clients - dropouts]
        for c in staying:
            vector = None
            if step == "masked":
                vector = rng.integers(session.low, session.high, session.values, endpoint=True)
                total += vector
            answer, seconds = timed(lambda c=c, v=vector, step=step, r=requests: own[c].answer(step, r[c], v))
            spent, up = spent + seconds, up + len(answer)
            _, seconds = timed(lambda c=c, a=answer, step=step: server.receive(step, c, a))
            cost.server_seconds[step] += seconds
        cost.client_seconds[step] = spent / len(staying)
        cost.bytes_up[step] = up / len(staying)
        cost.bytes_down[step] = sum(map(len, requests.values())) / len(requests)
    found, seconds = timed(server.total)
    cost.server_seconds["unmask"] += seconds
    assert np.array_equal(found, total), "the sum is wrong"
    return cost


def best(costs: Sequence[Cost]) -> Cost:
    """Each step's shortest time of several passes; bytes are the same in all of them."""

    def shortest(seconds: Sequence[dict[str, float]]) -> dict[str, float]:
        return {step: min(each[step] for each in seconds) for step in STEPS}

    clients, servers = ([getattr(cost, name) for cost in costs] for name in ("client_seconds", "server_seconds"))
    return replace(costs[0], client_seconds=shortest(clients), server_seconds=shortest(servers))


def shown(console: Console, title: str, cost: Cost) -> None:
    table = Table("step", "client, ms", "server, ms", "client sends", "client gets", title=title, title_justify="left")
    for step in (*STEPS, "all"):
        columns = (cost.client_seconds, cost.server_seconds, cost.bytes_up, cost.bytes_down)
        client, server, up, down = (c[step] if step in c else sum(c.values()) for c in columns)
        table.add_row(step, f"{1e3 * client:,.1f}", f"{1e3 * server:,.0f}", f"{up:,.0f}", f"{down:,.0f}")
    console.print(table)


def sparse_session(clients: int, values: int) -> Session:
    """A sum of bits for which a tenth may drop out and a twentieth may collude."""
    stay = clients - clients // 10
    drawn = neighbourhood(clients, stay, clients // 20)
    assert drawn is not None
    return Session("benchmark", 1, 0, "", values, 0, 1, clients, stay, "", drawn.size, drawn.quorum)


def on_complete_graph(console: Console, values: int, passes: int) -> dict[str, Any]:
    threshold = 2 * CLIENTS // 3 + 1
    results: dict[str, Any] = {}
    for kind, (low, high) in KINDS.items():
        session = Session("benchmark", 1, 0, "", values, low, high, CLIENTS, threshold)
        for dropouts in (0, CLIENTS - threshold):
            cost = best([measure(session, dropouts) for _ in range(passes)])
            name = f"{kind}, {session.bits} bits, {dropouts} dropouts"
            shown(console, f"{CLIENTS} clients, {values:,} values: {name}", cost)
            results[name] = {**vars(cost), "word_bits": session.bits}
    return {
        "clients": CLIENTS, "threshold": threshold, "values": values, "passes": passes, "results": results,
        "peak_bytes": own_peak(),
    }  # fmt: skip


def on_sparse_graph(console: Console, values: int) -> dict[str, Any]:
    sums = []
    for clients in SPARSE_CLIENTS:
        session = sparse_session(clients, values)
        cost = measure(session, clients // 10)
        shown(console, f"{clients:,} clients with {session.neighbours} neighbours, {values:,} values: bits", cost)
        sums.append({"session": json.loads(session.encode()), "word_bits": session.bits, **vars(cost)})
    return {"sums": sums, "peak_bytes": own_peak()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", choices=("complete", "sparse"), help="measure this one only")
    parser.add_argument("--quick", action="store_true", help="a hundredth of the values")
    parser.add_argument("--passes", type=int, default=3, help="of sums on the complete graph (default: 3)")
    parser.add_argument(
        "--json", type=Path, help="also write the figures to this file, those of one graph beside the other's"
    )
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    console = Console(width=None if sys.stdout.isatty() else 100)
    less = 100 if options.quick else 1
    figures: dict[str, Any] = {}
    if options.graph != "sparse":
        figures["complete"] = on_complete_graph(console, VALUES // less, options.passes)
    if options.graph != "complete":
        figures["sparse"] = on_sparse_graph(console, SPARSE_VALUES // less)
    if options.json:
        before = json.loads(options.json.read_text()) if options.json.exists() else {}
        machine = (
            f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}, "
            f"cryptography {cryptography.__version__}"
        )
        after = {**before, **figures, "machine": machine}
        options.json.write_text(json.dumps(after, indent=2) + "\n")


if __name__ == "__main__":
    main()

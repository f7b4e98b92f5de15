"""One federated job by local workers and by a Ray cluster of two nodes, in one run on one machine.

    python -m benchmarks.ray_cluster [--quick] [--passes N]

Needs `pip install 'sordino[ray]'`. The cluster has two nodes of one core each, beside a head that computes nothing; the
local workers are two. Passes are interleaved, the best round of each counts, and what matters are ratios. Results go to
`benchmarks/results/ray-cluster.json` and into the tables of `docs/performance.md` (with `--quick`: nowhere).
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.rivals.job import PARAMETERS, Job
from benchmarks.rivals.this_engine import recipe, write_records
from benchmarks.simulation import PAGE, Goal, Rows, insert, show
from sordino import Recipe, run
from sordino.fleets import ray_workers
from sordino.fleets.ray_workers import RayPool
from sordino.fleets.simulated import TASK_CLIENTS
from sordino.fleets.tasks import Work
from sordino.fleets.workers import Hands, Workers
from sordino.methods.interface import Bench
from sordino.runs.federation import wire
from sordino.wire.messages import Plan

RESULTS = Path(__file__).parent / "results" / "ray-cluster.json"
LOCAL, CLUSTER = "two local workers", "Ray, two nodes of one core"
JOBS = (
    Job(records=60, rounds=6),
    Job(records=600, rounds=2),
    Job(model="logistic", clients=10_000, records=2, rounds=3),
)
EMPTY_JOBS = 2_000  #: to count how many jobs a second are handed out and back
WANTED = 0.95  #: of the speed of local workers, at least, on the cluster
FULL_TASK, MACHINES, CORES, CROWD = TASK_CLIENTS, 10, 16, 1_000_000  #: what the calculation is about


# --- measuring --------------------------------------------------------------------------------------------------------


@contextmanager
def cluster() -> Iterator[str]:
    """The address of a head without cores and two nodes of one core."""
    ray_workers._ray()
    from ray.cluster_utils import Cluster

    limits = {"object_store_memory": 2**29, "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **limits})
    try:
        for _ in range(2):
            found.add_node(num_cpus=1, **limits)
        yield found.address
    finally:
        found.shutdown()


@dataclass
class Traffic:
    """What went to workers and came back, without the plan, which each node is sent once a round."""

    tasks: int = 0
    sent: int = 0
    received: int = 0


@contextmanager
def counted() -> Iterator[Traffic]:
    """Count the jobs that this process hands out while the block runs."""
    found, dumps, loads = Traffic(), ray_workers._dumps, ray_workers._loads

    def send(what: object) -> bytes:
        content = dumps(what)
        found.tasks, found.sent = found.tasks + 1, found.sent + len(content)
        return content

    def receive(content: bytes) -> object:
        found.received += len(content)
        return loads(content)

    ray_workers._dumps, ray_workers._loads = send, receive
    try:
        yield found
    finally:
        ray_workers._dumps, ray_workers._loads = dumps, loads


@dataclass
class Figure:
    """The best of several passes of one job in one place."""

    job: Job
    where: str
    round_seconds: float = math.inf
    driver_seconds: float = math.inf  #: of this process's processor, a round
    tasks: float = 0.0  #: a round, and so below
    sent: float = 0.0
    received: float = 0.0

    def measure(self, given: Recipe, pool: RayPool | None) -> None:
        with counted() as traffic:
            began = time.process_time()
            outcome = run(given, workers=2) if pool is None else run(given, ray=pool)
            driver = (time.process_time() - began) / self.job.rounds
        self.round_seconds = min(self.round_seconds, *(record.seconds for record in outcome.rounds))
        self.driver_seconds = min(self.driver_seconds, driver)
        each = asdict(traffic)
        self.tasks, self.sent, self.received = (each[name] / self.job.rounds for name in ("tasks", "sent", "received"))


@dataclass(frozen=True)
class Nothing:
    """A job without work."""

    def do(self, work: Work, plan: Plan) -> bool:
        return True


def empty_jobs(hands: Hands) -> float:
    """Jobs without work that are done in a second."""
    from benchmarks.ray_cluster import Nothing  # by a name that workers can import, which __main__ is not

    plan = Plan("nothing", 0)
    for _ in hands.run(plan, [Nothing()] * 20):  # until all workers are there
        pass
    began = time.perf_counter()
    for _ in hands.run(plan, [Nothing()] * EMPTY_JOBS):
        pass
    return EMPTY_JOBS / (time.perf_counter() - began)


def measure(passes: int, jobs: tuple[Job, ...], console: Console) -> dict[str, Any]:
    figures = [Figure(job, where) for job in jobs for where in (LOCAL, CLUSTER)]
    with tempfile.TemporaryDirectory() as folder, cluster() as address, RayPool(address) as pool:
        recipes = {}
        for number, job in enumerate(jobs):
            data = Path(folder) / f"{number}.npz"
            write_records(job, data)
            recipes[job] = recipe(job, data)
        for number in range(passes):
            for figure in figures:
                console.print(f"[dim]pass {number + 1}: {figure.job.model}, {figure.where}", highlight=False)
                figure.measure(recipes[figure.job], pool if figure.where == CLUSTER else None)
        work = wire(recipes[jobs[0]]).work(Bench())
        rates = {}
        for where, hands in ((LOCAL, Workers(work, 2)), (CLUSTER, pool.hands(work))):
            try:
                rates[where] = max(empty_jobs(hands) for _ in range(3))
            finally:
                hands.close()
    machine = {"processor": platform.machine(), "python": platform.python_version(), "ray": version("ray")}
    return {"machine": machine, "jobs per second": rates, "figures": [asdict(figure) for figure in figures]}


# --- tables -----------------------------------------------------------------------------------------------------------


def pairs(found: dict[str, Any]) -> Iterator[tuple[Job, dict[str, Any], dict[str, Any]]]:
    """Each job with its figures on local workers and on the cluster."""
    figures = found["figures"]
    for local, far in zip(figures[::2], figures[1::2], strict=True):
        yield Job(**local["job"]), local, far


def tables(found: dict[str, Any]) -> dict[str, Rows]:
    """What the page shows: the measured rounds, and what follows for many machines."""
    heads = ["network", "clients", "records each", "local workers, s a round", "Ray, s a round", "Ray / local"]
    rows: Rows = [[*heads, "tasks a round", "bytes to and from a task"]]
    for job, local, far in pairs(found):
        times = local["round_seconds"], far["round_seconds"]
        traffic = (far["sent"] / far["tasks"], far["received"] / far["tasks"])
        rows.append(
            [
                job.model, f"{job.clients:,}", str(job.records), *(f"{seconds:.3f}" for seconds in times),
                f"{times[1] / times[0]:.3f}", f"{far['tasks']:.0f}", " and ".join(f"{size:,.0f}" for size in traffic),
            ]
        )  # fmt: skip
    return {"ray": rows, "million": million(found)}


def million(found: dict[str, Any]) -> Rows:
    """What a million clients take on ten machines, by what was measured of the largest crowd."""
    job, _, far = list(pairs(found))[-1]
    times, tasks = CROWD / job.clients, CROWD / FULL_TASK
    plan, rate = 4 * PARAMETERS[job.model], found["jobs per second"][CLUSTER]
    compute = 2 * far["round_seconds"] * times / (MACHINES * CORES)
    driver = far["driver_seconds"] * times
    return [
        ["of a round", "figure", "from"],
        ["tasks", f"{tasks:,.0f}", f"{FULL_TASK} clients each"],
        ["handing them out", f"{tasks / rate:.0f} s", f"{rate:,.0f} jobs a second without work"],
        ["training", f"{compute:.0f} s", f"core seconds a client, on {MACHINES * CORES} cores"],
        ["the driver's own process", f"{driver:.0f} s", "its processor seconds a client"],
        ["reports", f"{far['received'] * times / 1e9:.1f} GB", "bytes from a task"],
        ["the plan", f"{MACHINES * plan / 1e6:.1f} MB", f"once for each of {MACHINES} machines"],
    ]  # fmt: skip


def goals(found: dict[str, Any]) -> list[Goal]:
    """A round on the cluster is to take little longer than with local workers."""
    return [
        Goal(
            f"local workers / Ray, seconds of a round, {job.model}, {job.records} records a client",
            local["round_seconds"] / far["round_seconds"],
            WANTED,
        )
        for job, local, far in pairs(found)
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short jobs, one pass, nothing is written")
    parser.add_argument("--passes", type=int, help="how often each job runs (default: 3, or 1 with --quick)")
    options, console = parser.parse_args(), Console()
    jobs = tuple(replace(job, records=min(job.records, 60), clients=min(job.clients, 1000)) for job in JOBS[::2])
    found = measure(options.passes or (1 if options.quick else 3), jobs if options.quick else JOBS, console)
    console.print(found["jobs per second"])
    for name, rows in tables(found).items():
        show(console, name, rows)
    for goal in goals(found):
        console.print(f"{goal.name}: {goal.measured:.3f} of {goal.wanted}, {goal.verdict}", highlight=False)
    if not options.quick:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        insert(PAGE, tables(found))


if __name__ == "__main__":
    main()

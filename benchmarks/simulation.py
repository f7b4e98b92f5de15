"""One federated job done by this engine and by others, in one run on one machine.

    python -m benchmarks.simulation [--quick] [--passes N] [--processes P] [--only PART ...]

The job: FedAvg of the 21,840-parameter CNN over 100 clients with random MNIST-shaped records, batch 10, one local epoch
of SGD a round. The part `peers` has the shape of pfl-research's benchmark on CIFAR-10: 50 clients a round with 50
records each. Each candidate is a program of its own under `benchmarks/rivals`, with as many one-thread processes as
there are cores; Flower and pfl get environments of their own under `build/rivals`, made at first use. Machines are
noisy: the passes of all candidates are interleaved, the best of each counts, and what matters are the ratios. Results
go to `benchmarks/results/simulation.json` and into the tables of `docs/performance.md` (with `--quick`: nowhere).
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.rivals.job import PARAMETERS, Job

ROOT = Path(__file__).resolve().parent.parent
ENVIRONMENTS = ROOT / "build" / "rivals"
RESULTS = Path(__file__).parent / "results" / "simulation.json"
SHOWN = ("speed", "networks", "peers", "scale", "gpu")  #: tables that the page has; the others are printed
GPU_RESULTS = RESULTS.with_name("simulation-gpu.json")
STEPS_RESULTS = RESULTS.with_name("steps-gpu.json")
PAGE = ROOT / "docs" / "performance.md"
TORCH = "torch==2.13.0"  # exactly: anything else pulls gigabytes of GPU libraries
PATIENCE = 1800.0  #: seconds after which a candidate is given up


# --- candidates -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A program that does the job, and the packages it needs beside PyTorch (none: it runs in this environment)."""

    name: str
    module: str
    packages: tuple[str, ...] = ()
    constrained: bool = False


ENGINE = Candidate("this engine", "this_engine")
LOOP = Candidate("plain loop over clients", "plain_loop")
LIMIT = Candidate("large-batch limit", "large_batch")
FLOWER = Candidate("Flower", "flower_app", ("flwr[simulation]==1.41.0",), constrained=True)
PFL = Candidate("pfl", "pfl_job", ("pfl==0.6.0",))
CANDIDATES = (ENGINE, LOOP, FLOWER, PFL, LIMIT)


class NotMeasured(Exception):
    """Why a candidate has no figure."""


def python_of(candidate: Candidate) -> Path:
    """The interpreter that runs a candidate; its environment is made if there is none yet."""
    if not candidate.packages:
        return Path(sys.executable)
    home = ENVIRONMENTS / candidate.module
    python, ready = home / "bin" / "python", home / ".ready"
    wanted = " ".join((TORCH, *candidate.packages))
    if not ready.exists() or ready.read_text() != wanted:
        limits = ["-c", str(ROOT / "constraints.txt")] if candidate.constrained else []
        install = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        for command in ([sys.executable, "-m", "venv", str(home)], [*install, *limits, TORCH, *candidate.packages]):
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                raise NotMeasured(f"could not be installed: {_last_line(done.stderr)}")
        ready.write_text(wanted)
    return python


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"


# --- one run ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Run:
    """One program's run: how long in all, how long each round, and the most memory that its processes took together."""

    seconds: float
    rounds: tuple[float, ...]
    memory: int
    data_bytes: int = 0


def run(candidate: Candidate, job: Job) -> Run:
    """Run a candidate's program and read its one line."""
    command = [str(python_of(candidate)), "-m", f"benchmarks.rivals.{candidate.module}", *job.arguments()]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    began = time.perf_counter()
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    )  # fmt: skip
    with Memory(process.pid) as memory:
        try:
            out, errors = process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # with its workers, all of which are of its session
            process.communicate()
            raise NotMeasured(f"not done after {PATIENCE:.0f} seconds") from None
    seconds = time.perf_counter() - began
    lines = [line for line in out.splitlines() if line.startswith('{"rounds"')]
    if process.returncode or not lines:
        raise NotMeasured(f"ended with exit code {process.returncode}: {_last_line(errors)}")
    said = json.loads(lines[-1])
    return Run(seconds, tuple(said["rounds"]), memory.most, said.get("data_bytes", 0))


class Memory:
    """The most memory that a process and its descendants took together; pages they share count once (Linux only)."""

    def __init__(self, pid: int, every: float = 0.4) -> None:
        self._pid, self._every = pid, every
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.most = 0

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._over.wait(self._every):
            self.most = max(self.most, sum(map(_proportional, _family(self._pid))))


def _family(pid: int) -> Iterator[int]:
    yield pid
    for listed in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = listed.read_text().split()
        except OSError:
            continue
        for child in children:
            yield from _family(int(child))


def _proportional(pid: int) -> int:
    try:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass  # it has ended meanwhile
    return 0


# --- what is measured -------------------------------------------------------------------------------------------------


@dataclass
class Figure:
    """The best of several runs of one candidate on one job, or why there is none."""

    candidate: str
    job: Job
    seconds: float = math.inf  #: the whole program
    round_seconds: float = math.inf  #: its best round
    memory: int = 0
    data_bytes: int = 0
    why: str = ""

    @property
    def rate(self) -> float:
        """Samples per second of local training."""
        return self.job.clients * self.job.records / self.round_seconds

    def add(self, found: Run) -> None:
        self.seconds = min(self.seconds, found.seconds)
        self.round_seconds = min(self.round_seconds, *found.rounds)
        self.memory, self.data_bytes = max(self.memory, found.memory), found.data_bytes

    def to_json(self) -> dict[str, object]:
        if self.why:
            return {"candidate": self.candidate, "job": asdict(self.job), "not measured": self.why}
        figures = {name: value for name, value in asdict(self).items() if name != "why"}
        return figures | {"samples per second": self.rate}

    @classmethod
    def from_json(cls, kept: dict[str, Any]) -> Figure:
        """The figure that `to_json` wrote."""
        why = {"why": kept["not measured"]} if "not measured" in kept else {}
        given = {name: value for name, value in kept.items() if name not in ("samples per second", "not measured")}
        return cls(**(given | why | {"job": Job(**kept["job"])}))


@dataclass
class Section:
    """Candidates on one job."""

    title: str
    job: Job
    candidates: Sequence[Candidate]
    figures: dict[str, Figure] = field(default_factory=dict)

    def measure(self, passes: int, console: Console) -> None:
        self.figures = {c.name: Figure(c.name, self.job) for c in self.candidates}
        for number in range(passes):
            for candidate in self.candidates:
                figure = self.figures[candidate.name]
                if figure.why:
                    continue
                console.print(f"[dim]{self.title}, pass {number + 1}: {candidate.name}", highlight=False)
                try:
                    figure.add(run(candidate, self.job))
                except NotMeasured as error:
                    figure.why = str(error)

    def recall(self, kept: Sequence[dict[str, Any]]) -> None:
        """Take the figures of an earlier call instead of measuring."""
        own = [Figure.from_json(figure) for figure in kept if figure["job"] == asdict(self.job)]
        self.figures = {figure.candidate: figure for figure in own}
        if missing := [c.name for c in self.candidates if c.name not in self.figures]:
            raise SystemExit(f"{self.title}: {', '.join(missing)} was not measured yet: leave out --only once")

    def rate(self, candidate: Candidate) -> float:
        figure = self.figures.get(candidate.name)
        return figure.rate if figure and not figure.why else math.nan

    def seconds(self, candidate: Candidate) -> float:
        figure = self.figures.get(candidate.name)
        return figure.seconds if figure and not figure.why else math.nan


@dataclass(frozen=True)
class Plan:
    """All that one call measures."""

    short: Section
    steady: tuple[Section, ...]
    others: tuple[Section, ...]
    peers: Section
    scale: tuple[Section, ...]
    crowds: tuple[Section, ...]

    @classmethod
    def of(cls, processes: int, quick: bool) -> Plan:
        base = Job(processes=processes)
        logistic = replace(base, model="logistic", records=2)
        kernels = (ENGINE, LOOP, LIMIT)
        records = (60,) if quick else (60, 600)
        clients = (100, 1_000) if quick else (100, 1_000, 10_000)
        networks = ("lenet", "ldp-fed", "logistic", "mlp", "vgg-small")
        large = {"vgg-small": {"clients": 20, "rounds": 3}}
        cifar = replace(base, model="cnn-wide", clients=50, records=50, rounds=4)
        return cls(
            Section("one round of 60 records with start-up", replace(base, rounds=1), (ENGINE, LOOP, FLOWER, PFL)),
            tuple(
                Section(f"{n} records a client", replace(base, records=n, rounds=6 if n == 60 else 3), CANDIDATES)
                for n in records
            ),
            tuple(
                Section(name, replace(base, model=name, **({"rounds": 6} | large.get(name, {}))), kernels)
                for name in networks
            ),
            Section("50 clients of CIFAR-10's shape", cifar, CANDIDATES),
            tuple(
                Section(f"{n:,} clients", replace(base, clients=n, records=10, rounds=4), (ENGINE,)) for n in clients
            ),
            tuple(
                Section(f"{n:,} of logistic regression", replace(logistic, clients=n, rounds=rounds), (ENGINE,))
                for n, rounds in (((1_000, 3), (10_000, 3)) if quick else ((1_000, 3), (100_000, 3), (1_000_000, 1)))
            ),
        )

    def parts(self) -> dict[str, tuple[Section, ...]]:
        """Sections by the name that the command line knows them by."""
        return {
            "start": (self.short,), "speed": self.steady, "networks": self.others, "peers": (self.peers,),
            "scale": self.scale, "crowds": self.crowds,
        }  # fmt: skip

    def sections(self) -> Iterable[Section]:
        return (section for part in self.parts().values() for section in part)


# --- what came of it --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Goal:
    """A ratio and the least that it should be."""

    name: str
    measured: float
    wanted: float

    @property
    def verdict(self) -> str:
        if math.isnan(self.measured):
            return "not measured"
        return "met" if self.measured >= self.wanted else "missed"


def goals(plan: Plan) -> list[Goal]:
    short, found = plan.short, list[Goal]()
    for section in (*plan.steady, *plan.others, plan.peers):
        engine, job = section.rate(ENGINE), f"{section.job.model}, {section.job.records} records a client"
        found += [
            Goal(f"engine / large-batch limit of all cores, {job}", engine / section.rate(LIMIT), 0.8),
            Goal(f"engine / plain loop, {job}", engine / section.rate(LOOP), 1.5),
        ]
        if PFL in section.candidates:
            found.append(Goal(f"engine / pfl, {job}", engine / section.rate(PFL), 1.0))
    found.append(Goal("Flower / engine, seconds of one round with start-up", _ratio(short, FLOWER), 10.0))
    found.append(Goal("pfl / engine, seconds of one round with start-up", _ratio(short, PFL), 1.0))
    return found + _growth(plan.scale) + _growth(plan.crowds[:2])


def _ratio(section: Section, slower: Candidate) -> float:
    return section.seconds(slower) / section.seconds(ENGINE)


def _growth(scale: Sequence[Section]) -> list[Goal]:
    """Ten or a hundred times the clients: no more seconds a client, and no more memory beside the records."""
    first, last = (section.figures[ENGINE.name] for section in (scale[0], scale[-1]))
    if first.why or last.why or not last.memory:
        return []
    each = [figure.round_seconds / figure.job.clients for figure in (first, last)]
    beside = [figure.memory - figure.data_bytes for figure in (first, last)]
    times = f"{first.job.model}, {last.job.clients // first.job.clients} times the clients"
    return [
        Goal(f"{times}: seconds a client and round, before / after", each[0] / each[1], 0.8),
        Goal(f"{times}: peak memory beside the records, before / after", beside[0] / beside[1], 0.8),
    ]


Rows = list[list[str]]


def tables(plan: Plan) -> dict[str, Rows]:
    """Every table, its first row being the heading."""
    return {
        "speed": _speed(plan),
        "networks": _networks(plan),
        "peers": _peers(plan.peers),
        "scale": _scale(plan),
        "gpu": gpu_table(json.loads(GPU_RESULTS.read_text(encoding="utf-8"))),
        "steps": steps_table(json.loads(STEPS_RESULTS.read_text(encoding="utf-8"))),
        "goals": [
            ["goal", "measured", "wanted", ""],
            *([g.name, f"{g.measured:.2f}", f">= {g.wanted:g}", g.verdict] for g in goals(plan)),
        ],
    }


def _speed(plan: Plan) -> Rows:
    heads = [f"samples/s, {s.job.records} records a client" for s in plan.steady]
    rows: Rows = [["candidate", *heads, "x plain loop", "x limit", "one round of 60 with start-up", "peak memory"]]
    last = plan.steady[-1]
    for candidate in CANDIDATES:
        figures = [section.figures[candidate.name] for section in plan.steady]
        if figures[-1].why:
            rows.append([candidate.name, f"not measured: {figures[-1].why}", *[""] * (len(heads) + 3)])
            continue
        seconds = plan.short.seconds(candidate)
        rows.append(
            [
                candidate.name,
                *(f"not measured: {figure.why}" if figure.why else f"{figure.rate:,.0f}" for figure in figures),
                f"{last.rate(candidate) / last.rate(LOOP):.2f}",
                f"{last.rate(candidate) / last.rate(LIMIT):.2f}",
                "" if math.isnan(seconds) else f"{seconds:.1f} s",
                f"{figures[-1].memory / 2**20:,.0f} MiB",
            ]
        )
    return rows


def _networks(plan: Plan) -> Rows:
    rows: Rows = [["network", "parameters", "samples/s", "x plain loop", "x limit"]]
    for section in (plan.steady[0], *plan.others):
        engine, loop, limit = (section.rate(candidate) for candidate in (ENGINE, LOOP, LIMIT))
        name, why = section.job.model, section.figures[ENGINE.name].why
        if why:
            rows.append([name, f"{PARAMETERS[name]:,}", f"not measured: {why}", "", ""])
            continue
        ratios = (f"{engine / rate:.2f}" for rate in (loop, limit))
        rows.append([name, f"{PARAMETERS[name]:,}", f"{engine:,.0f}", *ratios])
    return rows


def _peers(section: Section) -> Rows:
    rows: Rows = [["candidate", "samples/s", "seconds a round", "x plain loop", "x limit"]]
    for candidate in section.candidates:
        figure, rate = section.figures[candidate.name], section.rate(candidate)
        if figure.why:
            rows.append([candidate.name, f"not measured: {figure.why}", "", "", ""])
            continue
        ratios = (f"{rate / section.rate(other):.2f}" for other in (LOOP, LIMIT))
        rows.append([candidate.name, f"{rate:,.0f}", f"{figure.round_seconds:.2f}", *ratios])
    return rows


def _scale(plan: Plan) -> Rows:
    heads = ["network", "clients", "records each", "seconds a round", "peak memory", "of which records"]
    rows: Rows = [heads]
    for section in (plan.scale[0], plan.scale[-1], *plan.crowds):
        figure, job = section.figures[ENGINE.name], section.job
        what = [job.model, f"{job.clients:,}", str(job.records)]
        if figure.why:
            rows.append([*what, f"not measured: {figure.why}", "", ""])
            continue
        memory = (f"{size / 2**20:,.0f} MiB" for size in (figure.memory, figure.data_bytes))
        rows.append([*what, f"{figure.round_seconds:.2f}", *memory])
    return rows


def gpu_table(kept: dict[str, Any]) -> Rows:
    """What `benchmarks.simulation_gpu` measured of large clients, and of the widest cohort."""
    rows: Rows = [["network", "clients", "records a client", "at a time", "samples/s, recorded before", "from nothing"]]
    for job in kept["jobs"]:
        if job["records"] == 600 or job.get("width") == 512:
            rates = (f"{job[what]:,.0f}" for what in ("recorded before", "from nothing"))
            width = str(job.get("width", 128))
            rows.append([job["network"], f"{job['clients']:,}", str(job["records"]), width, *rates])
    return rows


def steps_table(kept: dict[str, Any]) -> Rows:
    """What `benchmarks.steps_gpu` measured."""
    heads = list(kept["jobs"][0])
    return [heads, *([f"{job[head]:g}" if head != "network" else job[head] for head in heads] for job in kept["jobs"])]


def show(console: Console, name: str, rows: Rows) -> None:
    table = Table(title=name)
    for number, head in enumerate(rows[0]):
        table.add_column(head, justify="left" if number == 0 else "right")
    for row in rows[1:]:
        table.add_row(*row)
    console.print(table)


def insert(page: Path, found: dict[str, Rows]) -> None:
    """Put the tables between their marks in the page; what else stands there stays."""
    text = page.read_text(encoding="utf-8")
    for name, rows in found.items():
        opening, closing = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, mark, rest = text.partition(opening)
        if not mark or closing not in rest:
            raise SystemExit(f"{page.name} has no place for the table '{name}': {opening.strip()} ... {closing}")
        lines = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
        table = "\n".join("| " + " | ".join(cell or " " for cell in row) + " |" for row in lines)
        text = f"{before}{opening}{table}\n{closing}{rest.partition(closing)[2]}"
    page.write_text(text, encoding="utf-8")


def machine(processes: int) -> dict[str, object]:
    import torch

    return {
        "processor": platform.machine(),
        "cores": os.cpu_count(),
        "processes": processes,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "flower": FLOWER.packages[0],
        "pfl": PFL.packages[0],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short jobs, one pass, nothing is written")
    parser.add_argument("--passes", type=int, help="how often each candidate runs (default: 3, or 1 with --quick)")
    parser.add_argument("--processes", type=int, default=len(os.sched_getaffinity(0)), help="of each candidate")
    parser.add_argument(
        "--only", action="append", choices=["start", "speed", "networks", "peers", "scale", "crowds", "gpu"],
        help="measure this part again and keep the recorded figures of the others; may be repeated (gpu: measure "
        "nothing, show what benchmarks.simulation_gpu and benchmarks.steps_gpu have recorded)",
    )  # fmt: skip
    options = parser.parse_args()
    console, plan = Console(), Plan.of(options.processes, options.quick)
    kept_before = json.loads(RESULTS.read_text(encoding="utf-8"))["figures"] if options.only else []
    for part, sections in plan.parts().items():
        for section in sections:
            if options.only and part not in options.only:
                section.recall(kept_before)
            else:
                section.measure(options.passes or (1 if options.quick else 3), console)
    found = tables(plan)
    for name, rows in found.items():
        show(console, name, rows)
    if options.only == ["gpu"]:
        insert(PAGE, {"gpu": found["gpu"]})
    elif not options.quick:
        figures = [figure.to_json() for section in plan.sections() for figure in section.figures.values()]
        judged = [asdict(goal) for goal in goals(plan) if not math.isnan(goal.measured)]
        kept = {"machine": machine(options.processes), "figures": figures, "goals": judged}
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        insert(PAGE, {name: found[name] for name in SHOWN})


if __name__ == "__main__":
    main()

"""How fast the server takes in reports, beside reading the same bytes from disk and counting bits with numpy.

    python -m benchmarks.ingest [--quick] [--passes N]

Reports of 1,000,000 one-bit values (125,000 bytes, as answers to one plan: 24 bytes more) lie in one file. Three
programs read it, each in a process of its own, whose peak memory is taken: one reads, one also counts the ones of each
value with numpy, and one does what the coordinator does: take each answer apart, wait for a batch, check it against the
mechanism's output set and add it to the `Tally`. Passes are interleaved and the best of each counts. Results go to
`benchmarks/results/ingest.json` and into `docs/performance.md` (with `--quick`: nowhere).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from rich.console import Console

from benchmarks.memory import own_peak
from benchmarks.simulation import PAGE, Rows, insert, show
from sordino.mechanisms import Box, TwoPoint
from sordino.methods.upload import ROWS, Upload
from sordino.runs.coordinator import BATCH_BYTES
from sordino.wire.messages import ANSWER_BYTES, Answer, Kind

RESULTS = Path(__file__).parent / "results" / "ingest.json"
VALUES = 10**6
BODY = VALUES // 8
MESSAGE = ANSWER_BYTES + BODY
DIGEST = bytes(16)


def _messages(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while message := file.read(MESSAGE):
            yield message


# --- three programs ---------------------------------------------------------------------------------------------------


def read(path: Path, reports: int) -> int:
    """The bytes, and nothing else."""
    return sum(len(message) for message in _messages(path))


def numpy_counts(path: Path, reports: int) -> int:
    """What one writes first: unpack every report's bits and add them to the counts. It checks nothing."""
    counts = np.zeros(VALUES, np.int32)
    for message in _messages(path):
        counts += np.unpackbits(np.frombuffer(message, np.uint8, BODY, ANSWER_BYTES), bitorder="little")
    return int(counts.sum())


def tally(path: Path, reports: int) -> int:
    """The coordinator's way, in its batches."""
    upload = Upload(lambda _: TwoPoint(1.0, Box(0.0, 1.0)), None, VALUES, clients=reports, what="model update")
    found, waiting = upload.tally(), {}
    for client, message in enumerate(_messages(path)):
        answer = Answer.decode(message)
        if answer.round != 1 or answer.digest != DIGEST:
            raise SystemExit("this is an answer to another plan")
        waiting[client] = answer.body
        if len(waiting) >= ROWS or len(waiting) * BODY >= BATCH_BYTES:
            assert not found.add(list(waiting), list(waiting.values()))
            waiting = {}
    assert not waiting or not found.add(list(waiting), list(waiting.values()))
    point = upload.mechanisms[0]
    k = float(point.estimate(point.decode([b"\x01"], 1))[0, 0])
    return round(float((found.mean() / k + 1).sum() / 2) * reports)  # the ones, to compare with


PROGRAMS: dict[str, Callable[[Path, int], int]] = {"read": read, "numpy": numpy_counts, "tally": tally}
TITLES = {"read": "reading", "numpy": "reading and counting with numpy", "tally": "this engine's tally"}


# --- measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """One program on so many reports: the best time, and the most memory of its process."""

    program: str
    reports: int
    seconds: float
    memory: int  #: bytes


def write_reports(path: Path, reports: int) -> None:
    """Random bits: as hard to add as any."""
    rng = np.random.default_rng(0)
    head = Answer(Kind.REPORT, 1, DIGEST).encode()
    with path.open("wb") as file:
        for _ in range(reports):
            file.write(head + rng.bytes(BODY))


def measure(sizes: tuple[int, ...], passes: int, console: Console) -> list[Figure]:
    """All programs on all sizes, pass by pass."""
    found: dict[tuple[str, int], list[tuple[float, int]]] = {}
    with tempfile.TemporaryDirectory(prefix="sordino-ingest-") as folder:
        for reports in sizes:
            path = Path(folder) / f"{reports}.bin"
            write_reports(path, reports)
            for _ in range(passes):
                sums = {}
                for program in PROGRAMS:
                    seconds, memory, sums[program] = _run(program, path, reports)
                    found.setdefault((program, reports), []).append((seconds, memory))
                    console.print(f"{program:6} {reports:6,} reports: {seconds:.2f} s, {memory / 2**20:.0f} MiB")
                if sums["tally"] != sums["numpy"]:
                    raise SystemExit(f"the tally has {sums['tally']} ones and numpy {sums['numpy']}")
            path.unlink()
    return [
        Figure(program, reports, min(s for s, _ in runs), max(m for _, m in runs))
        for (program, reports), runs in found.items()
    ]


def _run(program: str, path: Path, reports: int) -> tuple[float, int, int]:
    command = [sys.executable, "-m", "benchmarks.ingest", "--program", program, "--file", str(path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        [*command, "--reports", str(reports)], cwd=root, env=environment, capture_output=True, text=True, check=True
    )
    said = json.loads(done.stdout)
    return said["seconds"], said["memory"], said["result"]


def run_program(program: str, path: Path, reports: int) -> None:
    """In a process of its own: the time without the imports, and the peak memory with them."""
    began = time.perf_counter()
    result = PROGRAMS[program](path, reports)
    seconds = time.perf_counter() - began
    print(json.dumps({"seconds": seconds, "memory": own_peak(), "result": result}))


# --- the page ---------------------------------------------------------------------------------------------------------


def rows(figures: list[Figure]) -> Rows:
    """The table of the most reports that were measured; its first row is the heading."""
    most = max(f.reports for f in figures)
    by = {(f.program, f.reports): f for f in figures if f.reports == most}
    table: Rows = [["", "reports", "seconds", "x counting with numpy", "peak memory"]]
    for program, reports in by:
        figure = by[program, reports]
        ratio = by["numpy", reports].seconds / figure.seconds
        memory = f"{figure.memory / 2**20:,.0f} MiB"
        table.append([TITLES[program], f"{reports:,}", f"{figure.seconds:.2f}", f"{ratio:.2f}", memory])
    return table


def goals(figures: list[Figure]) -> Rows:
    """What is wanted: no slower than counting with numpy, and memory that the number of reports does not change."""
    by = {(f.program, f.reports): f for f in figures}
    sizes = sorted({f.reports for f in figures})
    table: Rows = [["goal", "measured", "wanted", ""]]
    for reports in sizes:
        ratio = by["numpy", reports].seconds / by["tally", reports].seconds
        name = f"reading and counting with numpy / this engine, seconds, {reports:,} reports"
        table.append([name, f"{ratio:.2f}", ">= 1", "met" if ratio >= 1 else "missed"])
    few, many = (by["tally", reports].memory for reports in (sizes[0], sizes[-1]))
    name = f"peak memory, {sizes[0]:,} reports / {sizes[-1]:,} reports"
    table.append([name, f"{few / many:.2f}", ">= 0.95", "met" if few / many >= 0.95 else "missed"])
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="100 and 500 reports, one pass, nothing is written")
    parser.add_argument("--passes", type=int, help="how often each program runs (default: 3, or 1 with --quick)")
    parser.add_argument("--program", choices=list(PROGRAMS), help=argparse.SUPPRESS)
    parser.add_argument("--file", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--reports", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.program:
        run_program(options.program, options.file, options.reports)
        return
    console = Console()
    sizes = (100, 500) if options.quick else (1_000, 10_000)
    figures = measure(sizes, options.passes or (1 if options.quick else 3), console)
    found = {"ingest": rows(figures), "ingest goals": goals(figures)}
    for name, table in found.items():
        show(console, name, table)
    if not options.quick:
        machine = {"processor": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
        kept = {"machine": machine | {"numpy": np.__version__}, "figures": [asdict(f) for f in figures]}
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
        insert(PAGE, {"ingest": found["ingest"]})


if __name__ == "__main__":
    main()

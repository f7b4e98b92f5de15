"""Values per second of every mechanism on one core, beside the keystream, memcpy and what others do, in one run.

    python -m benchmarks.mechanisms [--quick | --memory] [--json FILE]

Machines are noisy: what counts are the ratios, all taken in the same run. Each figure is the best of several passes,
and the passes of all candidates are interleaved. The memory figure is a child process's peak.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.update(FLWR_TELEMETRY_ENABLED="0", FLWR_DISABLE_UPDATE_CHECK="1")

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.special import ndtr

from benchmarks.memory import own_peak
from sordino import mechanisms as m
from sordino.randomness import Keystream

KEYSTREAM, COPY, NUMPY_LAPLACE, NUMPY_NORMAL = "keystream", "memcpy", "numpy laplace sampler", "numpy normal sampler"
EXTRA_BYTES = 1.5e9
ROOT = Path(__file__).resolve().parent.parent


@dataclass
class Candidate:
    name: str
    values: int
    call: Callable[[], object]
    seconds: float = float("inf")

    @property
    def rate(self) -> float:
        return self.values / self.seconds / 1e6


def candidates(size: int) -> list[Candidate]:
    x = np.random.default_rng(1).uniform(-1, 1, (1, size)).astype(np.float32)
    bits = x.reshape(-1, 1024) > 0
    labels = (np.abs(x) * 9.99).astype(np.int64)
    one, many = Keystream.simulation(1, [0], 0), Keystream.simulation(1, np.arange(len(bits)), 0)
    rng = np.random.Generator(np.random.PCG64(1))
    target = np.empty_like(x)
    ours: dict[str, m.Mechanism] = {
        "two-point": m.TwoPoint(1.0),
        "sign": m.RandomizedSign.eq7(5.0, 1e-5),
        "laplace": m.Laplace(1.0),
        "laplace (L1 ball)": m.Laplace(1.0, m.L1Ball(1.0)),
        "gaussian": m.Gaussian(1.0),
        "gaussian (L2 ball)": m.Gaussian.analytic(1.0, 1e-5, m.L2Ball(1.0)),
        "exponential": m.Exponential(1 / 29_034 / 80, m.IntegerRange(1.0, 10)),
        "piecewise": m.Piecewise(1.0),
        "privunit": m.PrivUnitG(1.0),
    }
    found = [
        Candidate(KEYSTREAM, size, lambda: [one.words(np.array([0]), 1, 0, i, 2**15) for i in range(0, size, 2**15)]),
        Candidate(COPY, size, lambda: np.copyto(target, x)),
        *(Candidate(name, size, lambda v=v: v.randomize(x, one)) for name, v in ours.items()),
        Candidate("bits", size, lambda: m.BitRandomizer.theorem2(0.5, m.BitString(1024)).randomize(bits, many)),
        Candidate("label", size, lambda: m.RandomizedLabel(1.0, m.FiniteSet(10)).randomize(labels, one)),
        Candidate("plain numpy two-point", size, lambda: numpy_two_point(x, rng)),
        Candidate("the same, packed to bits", size, lambda: np.packbits(numpy_bits(x, rng), axis=1)),
        Candidate("plain numpy sign", size, lambda: numpy_sign(x, rng)),
        Candidate("plain numpy laplace", size, lambda: np.clip(x, -1, 1) + rng.laplace(0, 2.0, x.shape)),
        Candidate("plain numpy gaussian", size, lambda: np.clip(x, -1, 1) + rng.normal(0, 1.0, x.shape)),
        Candidate(NUMPY_LAPLACE, size, lambda: rng.laplace(size=size)),
        Candidate(NUMPY_NORMAL, size, lambda: rng.standard_normal(size)),
    ]
    return found + rivals(x)


def numpy_two_point(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Algorithm 2 of LDP-FL written down with 32-bit floats: weights in, perturbed weights out."""
    k = np.float32((np.e + 1) / (np.e - 1))
    return np.where(numpy_bits(x, rng), k, -k)


def numpy_bits(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    e = np.float32(np.e)
    p = (np.clip(x, -1, 1) * (e - 1) + (e + 1)) / (2 * (e + 1))
    return rng.random(x.shape, dtype=np.float32) < p


def numpy_sign(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return np.packbits(rng.random(x.shape, dtype=np.float32) < ndtr(np.clip(x, -1, 1) / 1.94), axis=1)


def rivals(x: np.ndarray) -> list[Candidate]:
    """Other libraries on a vector they can finish; each only where it is installed (`make bench` installs them)."""
    found = []
    few = x[0, :20_000].astype(np.float64)
    try:
        import opendp.prelude as dp

        dp.enable_features("contrib")
        laplace = dp.m.make_laplace(
            dp.vector_domain(dp.atom_domain(T=float, nan=False)), dp.l1_distance(T=float), scale=2.0
        )
        given = few.tolist()
        found.append(Candidate("OpenDP vector Laplace", few.size, lambda: laplace(given)))
    except ImportError:
        pass
    try:
        from diffprivlib.mechanisms import Laplace

        scalar = Laplace(epsilon=1.0, sensitivity=2.0)
        found.append(Candidate("diffprivlib Laplace", few.size, lambda: [scalar.randomise(float(v)) for v in few]))
    except ImportError:
        pass
    with suppress(ImportError):
        found.append(flower(x))
    return found


def flower(x: np.ndarray) -> Candidate:
    """Flower's LocalDpMod on a real message: clipping to an L2 norm and Gaussian noise."""
    import logging

    from flwr.app import ArrayRecord, Context, Message, RecordDict
    from flwr.clientapp.mod import LocalDpMod
    from flwr.supercore.task_identity import TaskIdentity

    TaskIdentity.run_id, TaskIdentity.node_id, TaskIdentity.task_id = 1, 1, 1

    logging.getLogger("flwr").setLevel(logging.ERROR)
    mod = LocalDpMod(clipping_norm=1.0, sensitivity=2.0, epsilon=1.0, delta=1e-5)
    sent = Message(RecordDict({"arrays": ArrayRecord([np.zeros_like(x[0])])}), dst_node_id=1, message_type="train")
    context = Context(run_id=0, node_id=1, node_config={}, state=RecordDict(), run_config={})

    def answer(message: Message, _: Context) -> Message:
        return Message(RecordDict({"arrays": ArrayRecord([x[0].copy()])}), reply_to=message)

    return Candidate("Flower LocalDpMod", x.size, lambda: mod(sent, context, answer))


def measure(found: list[Candidate], passes: int, console: Console) -> None:
    for candidate in found:
        candidate.call()
    for _ in range(passes):
        for candidate in found:
            start = time.perf_counter()
            candidate.call()
            candidate.seconds = min(candidate.seconds, time.perf_counter() - start)
    by_name = {c.name: c for c in found}
    table = Table("candidate", "M values/s", "of keystream", "of memcpy", title="One core", title_justify="left")
    for c in found:
        cells = (f"{c.rate:,.2f}", f"{c.rate / by_name[KEYSTREAM].rate:.3f}", f"{c.rate / by_name[COPY].rate:.4f}")
        table.add_row(c.name, *cells)
    console.print(table)


def goals(found: list[Candidate]) -> list[tuple[str, float, float]]:
    """(what, ratio measured, ratio wanted)."""
    rate = {c.name: c.rate for c in found}
    return [
        ("two-point / plain numpy", rate["two-point"] / rate["plain numpy two-point"], 2.0),
        ("two-point / keystream", rate["two-point"] / rate[KEYSTREAM], 0.1),
        ("sign / plain numpy", rate["sign"] / rate["plain numpy sign"], 2.0),
        ("sign / keystream", rate["sign"] / rate[KEYSTREAM], 0.1),
        ("laplace / numpy's sampler", rate["laplace"] / rate[NUMPY_LAPLACE], 1.0),
        ("gaussian / numpy's sampler", rate["gaussian"] / rate[NUMPY_NORMAL], 1.0),
        ("exponential / numpy's laplace sampler", rate["exponential"] / rate[NUMPY_LAPLACE], 0.3),
        ("exponential / numpy's normal sampler", rate["exponential"] / rate[NUMPY_NORMAL], 0.3),
    ]


def verdict(what: str, ratio: float, wanted: float) -> tuple[str, str, str, str]:
    """A row of the table of goals; the ratio with as many digits as it takes not to be rounded across its goal."""
    met = ratio >= wanted
    texts = (f"{ratio:.{digits}f}" for digits in range(2, 20))
    shown = next((text for text in texts if (float(text) >= wanted) == met), repr(ratio))
    return what, shown, f">= {wanted}", "met" if met else "missed"


PEAK = """
import numpy as np
from benchmarks.memory import own_peak
from sordino import mechanisms as m
from sordino.randomness import Keystream
x = np.full((1, {values}), 0.5, np.float32)
kept = {mechanism}.randomize(x, Keystream.fresh()).output
print(own_peak())
"""


def memory(values: int, console: Console) -> dict[str, float]:
    """Peak memory of a process that randomises one long vector, input and output included."""
    table = Table("mechanism", "peak, GB", "goal", title=f"Memory for {values:,} values", title_justify="left")
    peaks = {}
    for mechanism in ("m.TwoPoint(1.0)", "m.Laplace(1.0)", "m.Laplace(1.0, m.L1Ball(1.0))", "m.Gaussian(1.0)"):
        code = PEAK.format(values=values, mechanism=mechanism)
        done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)
        peaks[mechanism] = float(done.stdout)
        met = "met" if peaks[mechanism] <= EXTRA_BYTES else "missed"
        table.add_row(mechanism, f"{peaks[mechanism] / 1e9:.2f}", f"<= {EXTRA_BYTES / 1e9} {met}")
    console.print(table)
    return peaks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_mutually_exclusive_group()
    parts.add_argument("--quick", action="store_true", help="a quarter of the values, fewer passes, no memory test")
    parts.add_argument("--memory", action="store_true", help="the memory test alone; other figures in FILE stay")
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    options = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    console = Console(width=None if sys.stdout.isatty() else 100)
    if options.memory:
        peaks = memory(10**8, console)
        if options.json:
            kept = json.loads(options.json.read_text())
            options.json.write_text(json.dumps(kept | {"peak_bytes": peaks}, indent=2) + "\n")
        return
    found = candidates(2**20 if options.quick else 2**22)
    measure(found, 3 if options.quick else 7, console)
    table = Table("goal", "measured", "wanted", "", title="Ratios", title_justify="left")
    for goal in goals(found):
        table.add_row(*verdict(*goal))
    console.print(table)
    peaks = {} if options.quick else memory(10**8, console)
    if options.json:
        figures = {
            "machine": f"{platform.machine()}, Python {platform.python_version()}, numpy {np.__version__}",
            "millions_per_second": {c.name: c.rate for c in found},
            "ratios": {what: {"measured": ratio, "wanted": wanted} for what, ratio, wanted in goals(found)},
            "peak_bytes": peaks,
            "own_peak_bytes": own_peak(),
        }
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()

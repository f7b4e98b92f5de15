"""How fast a page trains: against PyTorch on one thread and TensorFlow.js in the same browser; and how soon it reports.

    python -m benchmarks.page_speed [--seconds 5] [--browser /usr/bin/chromium]      # writes the record and the tables
    python -m benchmarks.page_speed --print                                          # writes nothing

Needs Node.js, `npm --prefix web ci`, a built page (`make page`) and Chromium. Every network is trained by plain SGD in
batches of 32 on made-up records, and in pages also by DP-SGD on whole numbers with as many in a batch on average. The
page computes in its training worker, as in a federation. Of many passes the best counts, on every side.

A private head does what a member of a shipped recipe does, on made-up records: features and second moments of all
records, then whitening once and a gradient over all records a round. PyTorch's side is this package's own, on one
thread; both sums must be the same to the last bit, or this benchmark fails.

The time to the first report is that of `webfed-digits` on this machine: from opening the address to the report's bytes
leaving the page, with the button pressed as soon as it is there.
"""

from __future__ import annotations

import argparse
import base64
import copy
import hashlib
import itertools
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from benchmarks.simulation import insert
from sordino.learning import models, unit_vectors
from sordino.learning.datasets import Normalisation
from sordino.learning.own_data import from_arrays
from sordino.learning.unit_vectors import Whitening
from sordino.methods import extractors
from sordino.methods.private_head import PrivateHead
from sordino.recipe import Recipe
from sordino.runs.federation import wire
from sordino.web.page_task import compile_task, layers_of
from sordino.wire.signing import SigningKey

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "benchmarks" / "results" / "page-speed.json"
PAGE = ROOT / "docs" / "performance.md"
BATCH = 32
CLASSES = 10
NETWORKS: tuple[tuple[str, str, tuple[int, ...], dict[str, Any]], ...] = (
    ("logistic, 8x8", "logistic", (1, 8, 8), {}),
    ("mlp 784-200-200-10", "mlp", (1, 28, 28), {}),
    ("cnn-mnist (21,840)", "cnn-mnist", (1, 28, 28), {}),
    ("lenet (61,706)", "lenet", (1, 28, 28), {}),
)

#: shipped recipes of private heads that pages run, the shape of their records, and how many a member has here
HEADS: tuple[tuple[str, tuple[int, ...], int], ...] = (
    ("proven-digits-pages", (1, 8, 8), 300),
    ("proven-mnist-pages", (1, 28, 28), 60),
)
PARTS = ("features", "moments", "whitening", "gradient")
WANTED = 0.3  #: of PyTorch's speed, in pages


def task_of(name: str, shape: tuple[int, ...], options: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """The task of a shipped recipe with another network in it."""
    model = models.build(name, input_shape=shape, classes=CLASSES, **options)
    layout = models.parameter_layout(model)
    firsts = np.concatenate([[0], np.cumsum(layout.sizes)[:-1]]).astype(int).tolist()
    rows = zip(layout.names, layout.shapes, firsts, layout.sizes, strict=True)
    task = copy.deepcopy(base)
    task["input"] |= {"shape": list(shape)}
    task["model"] = {
        "name": name, "layers": layers_of(name, model), "size": layout.size,
        "parameters": [{"name": n, "shape": list(s), "first": f, "size": z} for n, s, f, z in rows],
    }  # fmt: skip
    task["training"] |= {"batch": BATCH, "epochs": 1, "steps": None}
    task["training"]["optimiser"] |= {"lr": 0.01}
    task["upload"] |= {"values": layout.size, "layers": [{"name": "all", "first": 0, "size": layout.size}]}
    task["plan"] |= {"arrays": {"parameters": [layout.size]}}
    return task


def native(name: str, shape: tuple[int, ...], options: dict[str, Any], seconds: float) -> float:
    """Samples per second of PyTorch on one thread."""
    torch.set_num_threads(1)
    model = models.build(name, input_shape=shape, classes=CLASSES, **options)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.01)
    x, y = torch.randn(BATCH, *shape), torch.arange(BATCH) % CLASSES

    def step() -> None:
        optimiser.zero_grad()
        models.cross_entropy(model(x), y).backward()
        optimiser.step()

    for _ in range(5):
        step()
    best, begun = 0.0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        started = time.perf_counter()
        step()
        best = max(best, BATCH / (time.perf_counter() - started))
    return best


@contextmanager
def served(folder: Path) -> Iterator[list[str]]:
    """The links of three pages to `webfed-digits`, each of them enough for a round."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    alone = ["--set", 'method.aggregation={ kind = "mean" }', "--set", "rounds.quorum=1"]  # a rule needs more reports
    command = [sys.executable, "-m", "sordino", "serve", "webfed-digits", "--invite", *alone, "--port", str(port)]
    command += ["--gather", "0", "--pace", "0", "--folder", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            links = (found[0] for line in process.stdout if (found := re.search(r"http\S+token=\S+", line)))
            yield list(itertools.islice(links, 3))
        finally:
            process.terminate()
            process.wait()


@dataclass(frozen=True)
class Head:
    """A private head with made-up records of one member, and a plan."""

    name: str
    method: PrivateHead
    task: dict[str, Any]
    x: torch.Tensor
    y: torch.Tensor
    parameters: np.ndarray
    whitening: Whitening

    @classmethod
    def of(cls, name: str, shape: tuple[int, ...], count: int) -> Head:
        rng = np.random.default_rng(1)
        x, y = rng.random((count, *shape), np.float32), np.arange(count) % CLASSES
        names = [str(label) for label in range(CLASSES)]
        own = from_arrays((x, y), test=(x[:1], y[:1]), classes=names, normalisation=Normalisation())
        federation = wire(Recipe.load(name, ['data.source="memory"']), own)
        method = federation.method
        assert isinstance(method, PrivateHead)
        task = compile_task(federation, name, SigningKey.new().author).content
        parameters = rng.standard_normal(method.head.size).astype(np.float32)
        whitening = Whitening.none(method.form, count)
        records, labels = torch.from_numpy(x), torch.from_numpy(y)
        first = cls(name, method, task, records, labels, parameters, whitening)
        moments = first.calls()["moments"]().double().numpy()
        own_unit = method.budgeting.limit**-2
        found = Whitening.of(moments * own_unit, method.form, method.budgeting.limit, method.spec.moments.floor)
        return cls(name, method, task, records, labels, parameters, found)

    def calls(self) -> dict[str, Callable[[], Any]]:
        """What PyTorch does for each part."""
        method, limits = self.method, self.method.limits(0)
        units = extractors.whole_features(method.extractor, self.x, method.form, limits.unit)
        left, centre = torch.from_numpy(self.whitening.left), torch.from_numpy(self.whitening.centre)

        def whitened() -> Any:
            return unit_vectors.whitened(units, method.form, left, centre, method.spec.bias, limits.row)

        records = whitened()

        def gradient() -> torch.Tensor:
            weights = method.head.weights(torch.from_numpy(self.parameters))
            return method.head.sums(weights, records, self.y, method.spec.clip, limits.residual).sums

        return {
            "features": lambda: extractors.whole_features(method.extractor, self.x, method.form, limits.unit),
            "moments": lambda: unit_vectors.second_moments(units, method.form, limits.unit),
            "whitening": whitened,
            "gradient": gradient,
        }

    def job(self) -> dict[str, Any]:
        """The same for a page."""
        arrays = {
            "x": self.x.numpy(), "y": self.y.numpy().astype(np.int32), "parameters": self.parameters,
            "left": self.whitening.left, "centre": self.whitening.centre,
        }  # fmt: skip
        return {"task": self.task} | {name: base64.b64encode(own.tobytes()).decode() for name, own in arrays.items()}

    def native(self, seconds: float) -> dict[str, float]:
        """Seconds of each part in PyTorch on one thread, the best of as many passes as fit."""
        torch.set_num_threads(1)
        calls, best = self.calls(), dict.fromkeys(PARTS, float("inf"))
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            for name, call in calls.items():
                for _ in range(10 if name == "gradient" else 1):
                    start = time.perf_counter()
                    call()
                    best[name] = min(best[name], time.perf_counter() - start)
        return best

    def digests(self) -> list[str]:
        """SHA-256 of both sums, as pages have them."""
        calls = self.calls()
        return [
            hashlib.sha256(calls[name]().double().numpy().tobytes()).hexdigest() for name in ("moments", "gradient")
        ]

    def row(self, natives: list[dict[str, float]], line: dict[str, Any]) -> dict[str, Any]:
        """What was measured; refuses sums that are not Python's."""
        if line["sha256"] != self.digests():
            raise SystemExit(f"the page's sums of {self.name} are not Python's: run `npm --prefix web run test`")
        form, rounds = self.method.form, self.method.question.gradients
        seconds = {"page": line["seconds"], "pytorch": {part: min(own[part] for own in natives) for part in PARTS}}
        return {"records": len(self.x), "features": form.size, "gradients": rounds, "seconds": seconds}


def in_browser(executable: str, seconds: float, heads: list[Head]) -> list[dict[str, Any]]:
    """What `web/bench/run.mjs` measured."""
    recipe = Recipe.load("fedavg-digits")
    base = compile_task(wire(recipe), recipe.name, SigningKey.new().author).content
    tasks = [{"name": title, "task": task_of(name, shape, options, base)} for title, name, shape, options in NETWORKS]
    jobs = [{"name": head.name, "job": head.job()} for head in heads]
    with tempfile.TemporaryDirectory() as folder, served(Path(folder) / "served") as links:
        wanted = {"tasks": tasks, "heads": jobs, "seconds": seconds, "links": links}
        given = Path(folder) / "wanted.json"
        given.write_text(json.dumps(wanted | {"executable": executable}))
        done = subprocess.run(
            ["node", "bench/run.mjs", str(given)], cwd=ROOT / "web", stdout=subprocess.PIPE, text=True, check=True
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


def measured(executable: str, seconds: float) -> dict[str, Any]:
    heads = [Head.of(*own) for own in HEADS]
    networks = {title: [native(name, shape, own, seconds / 2)] for title, name, shape, own in NETWORKS}
    natives = [[head.native(seconds / 2)] for head in heads]
    found = in_browser(executable, seconds, heads)
    for head, own in zip(heads, natives, strict=True):
        own.append(head.native(seconds / 2))  # before and after, as machines are noisy
    for title, name, shape, options in NETWORKS:
        networks[title].append(native(name, shape, options, seconds / 2))
    rows: dict[str, dict[str, Any]] = {title: {"pytorch": max(rates)} for title, rates in networks.items()}
    for line in found:
        if line["kind"] in ("page", "private", "tensorflow"):
            rows[line["name"]][line["kind"]] = line["samplesPerSecond"]
            rows[line["name"]][f"{line['kind']} device"] = f"{line['device']}, {line['threads']} threads"
    lines = {line["name"]: line for line in found if line["kind"] == "head"}
    return {
        "private heads": {
            head.name: head.row(own, lines[head.name]) for head, own in zip(heads, natives, strict=True)
        },
        "samples per second": rows,
        "first report": [line for line in found if line["kind"] == "first report"],
    }  # fmt: skip


def training(seconds: dict[str, float], gradients: int) -> float:
    """Seconds of a whole run after its features: second moments, whitening, and all gradients."""
    return seconds["moments"] + seconds["whitening"] + gradients * seconds["gradient"]


def ratios(row: dict[str, Any]) -> dict[str, float]:
    """How fast a page is, PyTorch being 1: making features, training in all rounds, and both."""
    page, native = row["seconds"]["page"], row["seconds"]["pytorch"]
    train, own = training(native, row["gradients"]), training(page, row["gradients"])
    return {
        "features": native["features"] / page["features"],
        "training": train / own,
        "both": (native["features"] + train) / (page["features"] + own),
    }


def tables(found: dict[str, Any]) -> dict[str, list[list[str]]]:
    """The tables of docs/performance.md."""
    heads = [["recipe", "features of a record", "what", "page, records/s", "PyTorch, records/s", "page / PyTorch"]]
    for name, row in found["private heads"].items():
        page, native = row["seconds"]["page"], row["seconds"]["pytorch"]
        of = ratios(row)
        sides = [(own["features"], training(own, row["gradients"])) for own in (page, native)]
        names = "features, once", f"training, {row['gradients'] + 1} rounds", "both"
        for what, ratio, times in zip(
            names, of.values(), zip(*[(a, b, a + b) for a, b in sides], strict=True), strict=True
        ):
            heads.append(
                [
                    f"`{name}`",
                    f"{row['features']:,}",
                    what,
                    *(f"{row['records'] / t:,.0f}" for t in times),
                    f"{ratio:.2f}",
                ]
            )
    networks = [
        ["network, batches of 32", "page", "page, privately", "PyTorch, one thread", "page / PyTorch", "TensorFlow.js"]
    ]
    for name, row in found["samples per second"].items():
        rates = (f"{row[kind]:,.0f}" for kind in ("page", "private", "pytorch"))
        networks.append([name, *rates, f"{row['page'] / row['pytorch']:.2f}", f"{row['tensorflow']:,.0f}"])
    return {"private heads in pages": heads, "networks in pages": networks}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--browser", default=shutil.which("chromium") or "chromium", help="Chromium's executable")
    parser.add_argument("--print", action="store_true", help="print the tables, and write nothing")
    given = parser.parse_args()
    found = measured(given.browser, given.seconds)
    if not given.print:
        RESULTS.write_text(json.dumps(found, indent=1) + "\n")
        insert(PAGE, tables(found))
    for rows in tables(found).values():
        print("\n".join(" | ".join(row) for row in rows), end="\n\n")
    times = ", ".join(f"{run['report']:.1f}" for run in found["first report"])
    print(f"From opening the page to its first report: {times} s")
    missed = [name for name, row in found["private heads"].items() if min(ratios(row).values()) < WANTED]
    if missed:
        raise SystemExit(f"below {WANTED} of PyTorch: {', '.join(missed)}")


if __name__ == "__main__":
    main()

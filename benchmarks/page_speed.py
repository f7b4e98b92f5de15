"""How fast a page trains: against PyTorch on one thread and TensorFlow.js in the same browser; and how soon it reports.

    python -m benchmarks.page_speed [--seconds 5] [--browser /usr/bin/chromium] [--json]

Needs Node.js, `npm --prefix web ci`, a built page (`make page`) and Chromium. Every network is trained by plain SGD in
batches of 32 on made-up records, and in pages also by DP-SGD on whole numbers with as many in a batch on average. The
page computes in its training worker, as in a federation. The time to the first
report is that of `webfed-digits` on this machine: from opening the address to the report's bytes leaving the page, with
the button pressed as soon as it is there.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from sordino.learning import models
from sordino.recipe import Recipe
from sordino.runs.federation import wire
from sordino.web.page_task import compile_task, layers_of
from sordino.wire.signing import SigningKey

ROOT = Path(__file__).parent.parent
BATCH = 32
CLASSES = 10
NETWORKS: tuple[tuple[str, str, tuple[int, ...], dict[str, Any]], ...] = (
    ("logistic, 8x8", "logistic", (1, 8, 8), {}),
    ("mlp 784-200-200-10", "mlp", (1, 28, 28), {}),
    ("cnn-mnist (21,840)", "cnn-mnist", (1, 28, 28), {}),
    ("lenet (61,706)", "lenet", (1, 28, 28), {}),
)


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
    seen, begun = 0, time.perf_counter()
    while time.perf_counter() - begun < seconds:
        step()
        seen += BATCH
    return seen / (time.perf_counter() - begun)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """`webfed-digits` for one page, on a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "sordino",
        "serve",
        "webfed-digits",
        "--port",
        str(port),
        "--gather",
        "0",
        "--pace",
        "0",
    ]
    command += ["--pace", "0"]
    alone = ["--set", 'method.aggregation={ kind = "mean" }', "--set", "rounds.quorum=1"]  # a rule needs more reports
    with subprocess.Popen([*command, *alone, "--folder", str(folder)], stdout=subprocess.DEVNULL) as process:
        try:
            address = f"http://127.0.0.1:{port}"
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"{address}/api/server", timeout=1).close()
                    break
                except OSError:
                    time.sleep(0.1)
            yield address
        finally:
            process.terminate()
            process.wait()


def in_browser(executable: str, seconds: float) -> list[dict[str, Any]]:
    """What `web/bench/run.mjs` measured."""
    recipe = Recipe.load("fedavg-digits")
    base = compile_task(wire(recipe), recipe.name, SigningKey.new().author).content
    tasks = [{"name": title, "task": task_of(name, shape, options, base)} for title, name, shape, options in NETWORKS]
    with tempfile.TemporaryDirectory() as folder, served(Path(folder) / "served") as server:
        wanted = {"tasks": tasks, "seconds": seconds, "server": server, "federation": "webfed-digits"}
        given = Path(folder) / "wanted.json"
        given.write_text(json.dumps(wanted | {"executable": executable}))
        done = subprocess.run(
            ["node", "bench/run.mjs", str(given)], cwd=ROOT / "web", stdout=subprocess.PIPE, text=True, check=True
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


def measured(executable: str, seconds: float) -> dict[str, Any]:
    found = in_browser(executable, seconds)
    rows = {title: {"pytorch": native(name, shape, options, seconds)} for title, name, shape, options in NETWORKS}
    for line in found:
        if line["kind"] != "first report":
            rows[line["name"]][line["kind"]] = line["samplesPerSecond"]
            rows[line["name"]][f"{line['kind']} device"] = f"{line['device']}, {line['threads']} threads"
    return {"samples per second": rows, "first report": [line for line in found if line["kind"] == "first report"]}


def table(found: dict[str, Any]) -> str:
    lines = [
        "| network, batches of 32 | page | page, privately | PyTorch, one thread | TensorFlow.js |",
        "|---|---|---|---|---|",
    ]
    for name, row in found["samples per second"].items():
        page, private, rival = (
            f"{row[kind]:,.0f} ({row[f'{kind} device']})" for kind in ("page", "private", "tensorflow")
        )
        lines.append(f"| {name} | {page} | {private} | {row['pytorch']:,.0f} | {rival} |")
    times = ", ".join(f"{run['report']:.1f}" for run in found["first report"])
    return "\n".join([*lines, "", f"From opening the page to its first report: {times} s"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=5.0, help="of each measurement")
    parser.add_argument("--browser", default=shutil.which("chromium") or "chromium", help="Chromium's executable")
    parser.add_argument("--json", action="store_true", help="the figures as JSON")
    given = parser.parse_args()
    found = measured(given.browser, given.seconds)
    print(json.dumps(found, indent=1) if given.json else table(found))


if __name__ == "__main__":
    main()

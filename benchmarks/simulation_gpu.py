"""Samples per second of local training on one GPU: 100 clients, batch 10, one epoch of SGD, MNIST-shaped records.

    python -m benchmarks.simulation_gpu [--json benchmarks/results/simulation-gpu.json]

It needs PyTorch, numpy and this package's own dependencies alone. Records lie on the GPU; every figure is the best of
several calls and includes the drawing of orders, all checks and the copy of results. "recorded before" is a
`CohortTrainer` that has trained these shapes before; "from nothing" is one call of a new one, which makes its own
recordings. `python -m benchmarks.simulation` shows the kept figures in `docs/performance.md`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from benchmarks.rivals.job import SMALL
from benchmarks.rivals.networks import tensors
from sordino.learning import models
from sordino.learning.cohort import ClientData, CohortTrainer, LocalTraining
from sordino.learning.optimizers import SGD
from sordino.learning.stacked_model import LOOP, Execution
from sordino.randomness import Keystream

NETWORKS = ("cnn-mnist", "lenet", "ldp-fed", "logistic")
CLIENTS, GOAL = 100, 500_000
TRAINING = LocalTraining(SGD(0.05), epochs=1, batch_size=10)
OPTIONS = {"ldp-fed": {"norm": "group"}}


def network(name: str) -> nn.Module:
    return models.build(name, input_shape=SMALL, classes=10, **OPTIONS.get(name, {}))


def clients(sizes: list[int], device: str = "cuda") -> list[ClientData]:
    found = (tensors(client, records) for client, records in enumerate(sizes))
    return [ClientData(x.to(device), y.to(device)) for x, y in found]


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def stream(count: int) -> Keystream:
    return Keystream.simulation(1, np.arange(count), 0)


def best(call: Callable[[], object], passes: int = 7) -> float:
    """The least seconds of several calls, after one that does not count."""
    found = []
    for _ in range(passes + 1):
        torch.cuda.synchronize()
        began = time.perf_counter()
        call()
        torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return min(found[1:])


def rates(name: str, sizes: list[int], execution: Execution | None = None) -> dict[str, float]:
    model, cohort, draw = network(name), clients(sizes), stream(len(sizes))
    start, trainer = flat(model).cuda(), CohortTrainer(model, execution=execution, device="cuda")
    calls = {
        "recorded before": lambda: trainer.train(start, cohort, TRAINING, draw),
        "from nothing": lambda: CohortTrainer(model, execution=execution, device="cuda").train(
            start, cohort, TRAINING, draw
        ),
    }
    return {what: sum(sizes) / best(call) for what, call in calls.items()}


def distances(name: str, count: int, one: dict[str, Any], other: dict[str, Any]) -> NDArray[np.float32]:
    """Relative distances of clients' parameters, computed in two ways, in ascending order."""
    model, cohort = network(name), clients([60] * count, "cpu")
    start, draw = flat(model), stream(count)
    here, there = (
        CohortTrainer(model, **way).train(start, cohort, TRAINING, draw).parameters.cpu() for way in (one, other)
    )
    return np.sort(((there - here).norm(dim=1) / here.norm(dim=1)).numpy())


def on_the_processor() -> None:
    """How far two ways to compute are apart where no GPU is involved."""
    for name in ("cnn-mnist", "lenet"):
        found = distances(name, 400, {"execution": LOOP}, {"execution": Execution(16)})
        largest = ", ".join(f"{value:.0e}" for value in found[-3:])
        print(f"{name}, 400 clients, a loop and 16 at a time: median {np.median(found):.0e}, largest {largest}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--on-the-processor", action="store_true", help="how far a loop and stacked clients are apart")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.on_the_processor:
        on_the_processor()
        return
    if not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU here")
    jobs = []
    for name in NETWORKS:
        for records in (60, 600):
            found = {"network": name, "records": records, "clients": CLIENTS} | rates(name, [records] * CLIENTS)
            jobs.append(found)
            print(json.dumps(found), flush=True)
    unequal = np.random.default_rng(1).integers(30, 600, CLIENTS).tolist()
    jobs.append({"network": "cnn-mnist", "records": "30 to 600", "clients": CLIENTS} | rates("cnn-mnist", unequal))
    for width in (128, 256, 512):
        found = {"network": "cnn-mnist", "records": 60, "clients": 1000, "width": width}
        jobs.append(found | rates("cnn-mnist", [60] * 1000, Execution(width)))
    apart = {name: float(distances(name, 20, {}, {"device": "cuda"})[-1]) for name in NETWORKS}
    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "jobs": jobs, "apart": apart}
    print(json.dumps(result), flush=True)
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    goal = [job["recorded before"] for job in jobs[:2]]
    print(f"goal of {GOAL:,} samples/s: {'met' if min(goal) >= GOAL else 'missed'} with {goal}")


if __name__ == "__main__":
    main()

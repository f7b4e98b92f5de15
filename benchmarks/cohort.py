"""Samples per second of local training on one thread: this engine, a plain loop over clients, the large-batch limit.

    python -m benchmarks.cohort [--passes N] [--seconds S] [--json FILE]

The job: 100 clients with 60 MNIST-shaped records each, batch 10, one epoch of SGD, the 21,840-parameter CNN of the
PyTorch MNIST example. The limit is the same number of records in batches of 200 through one copy of the network, with
the optimiser's steps. Machines are noisy: what counts are the ratios, all taken in the same run; each figure is the
best of several passes, and the passes of all candidates are interleaved.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from sordino.learning.cohort import ClientData, CohortTrainer, LocalTraining
from sordino.learning.optimizers import SGD
from sordino.learning.stacked_model import Execution, choose_width
from sordino.randomness import Keystream

CLIENTS, RECORDS, BATCH, LR = 100, 60, 10, 0.05
LIMIT, LOOP, ENGINE = "large-batch limit", "plain loop over clients", "this engine"
LARGE = 200


class Cnn(nn.Module):
    """The two-layer CNN of the PyTorch MNIST example, without dropout: 21,840 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(functional.max_pool2d(self.conv1(x), 2))
        x = functional.relu(functional.max_pool2d(self.conv2(x), 2))
        return self.fc2(functional.relu(self.fc1(x.view(-1, 320))))


@dataclass
class Candidate:
    name: str
    call: Callable[[], object]
    seconds: float = float("inf")

    @property
    def rate(self) -> float:
        return CLIENTS * RECORDS / self.seconds


def candidates(seconds: float) -> tuple[list[Candidate], Execution]:
    torch.manual_seed(1)
    model = Cnn()
    rng = np.random.default_rng(1)
    x = rng.normal(size=(CLIENTS, RECORDS, 1, 28, 28)).astype(np.float32)
    clients = [
        ClientData(torch.from_numpy(x[k]), torch.from_numpy(rng.integers(0, 10, RECORDS))) for k in range(CLIENTS)
    ]
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    training = LocalTraining(SGD(LR), epochs=1, batch_size=BATCH)
    chosen = choose_width(model, (BATCH, 1, 28, 28), seconds)

    def engine(execution: Execution) -> Callable[[], object]:
        stream = Keystream.simulation(1, np.arange(CLIENTS), 0)
        return lambda: CohortTrainer(model, execution=execution).train(start, clients, training, stream)

    return [
        Candidate(LIMIT, lambda: large_batches(model, clients)),
        Candidate(LOOP, lambda: plain_loop(model, clients)),
        Candidate(ENGINE, engine(chosen)),
        *(Candidate(f"width {width}, unfolded", engine(Execution(width))) for width in (4, 8, 16, 32)),
        *(
            Candidate(f"width {width}, PyTorch's kernels", engine(Execution(width, unfolded=False)))
            for width in (8, 32)
        ),
    ], chosen


def plain_loop(model: nn.Module, clients: list[ClientData]) -> None:
    """What one writes first: for each client a fresh start, torch.optim and shuffled batches."""
    start = {name: value.clone() for name, value in model.state_dict().items()}
    own = Cnn()
    for client in clients:
        own.load_state_dict(start)
        optimizer = torch.optim.SGD(own.parameters(), lr=LR)
        for batch in torch.randperm(len(client)).split(BATCH):
            optimizer.zero_grad()
            functional.cross_entropy(own(client.x[batch]), client.y[batch]).backward()
            optimizer.step()


def large_batches(model: nn.Module, clients: list[ClientData]) -> None:
    """The same records in few large steps of one network."""
    own = Cnn()
    own.load_state_dict(model.state_dict())
    optimizer = torch.optim.SGD(own.parameters(), lr=LR)
    x, y = torch.cat([c.x for c in clients]), torch.cat([c.y for c in clients])
    for batch in torch.randperm(len(x)).split(LARGE):
        optimizer.zero_grad()
        functional.cross_entropy(own(x[batch]), y[batch]).backward()
        optimizer.step()


def measure(found: list[Candidate], passes: int) -> None:
    for _ in range(passes):
        for candidate in found:
            began = time.perf_counter()
            candidate.call()
            candidate.seconds = min(candidate.seconds, time.perf_counter() - began)


def table(found: list[Candidate], chosen: Execution) -> Table:
    shown = Table(title=f"21,840-parameter CNN, {CLIENTS} clients x {RECORDS} records, batch {BATCH}, one thread")
    shown.add_column("candidate")
    for column in ("samples/s", "x plain loop", "x limit"):
        shown.add_column(column, justify="right")
    rates = {candidate.name: candidate.rate for candidate in found}
    for name, rate in rates.items():
        label = f"{name} (chose {chosen.width}, unfolded={chosen.unfolded})" if name == ENGINE else name
        shown.add_row(label, f"{rate:,.0f}", f"{rate / rates[LOOP]:.2f}", f"{rate / rates[LIMIT]:.2f}")
    return shown


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--passes", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="for the choice of width")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    found, chosen = candidates(options.seconds)
    measure(found, options.passes)
    Console().print(table(found, chosen))
    if options.json:
        options.json.write_text(json.dumps({candidate.name: candidate.rate for candidate in found}, indent=2) + "\n")


if __name__ == "__main__":
    main()

"""How long a GPU is busy with one step of the papers' networks: clients, batches and optimisers as in the recipes.

    python -m benchmarks.steps_gpu [--only vgg-small] [--json benchmarks/results/steps-gpu.json]

It needs PyTorch, numpy and this package's own dependencies alone. Records are random and lie on the GPU. "a step" is
the time of a whole call of `CohortTrainer.train` that has trained these shapes before, by its steps; "busy" is the sum
of what PyTorch's profiler saw the GPU do, by the same. Where the first is longer, the processor is what is waited for.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

from sordino.learning import models
from sordino.learning.augmentation import Affine
from sordino.learning.cohort import ClientData, CohortTrainer, LocalTraining
from sordino.learning.optimizers import SGD, Adam, RMSprop
from sordino.methods.randomised_records import Unpacked
from sordino.randomness import Keystream


@dataclass(frozen=True)
class Job:
    """So many clients with so many records of a shape each, and how they train."""

    clients: int
    records: int
    shape: tuple[int, ...]
    training: LocalTraining
    bits: int = 0  #: where records are packed bits

    def data(self) -> list[ClientData]:
        rng = np.random.default_rng(1)
        return [self._own(rng) for _ in range(self.clients)]

    def _own(self, rng: np.random.Generator) -> ClientData:
        if self.bits:
            x = torch.from_numpy(rng.integers(0, 256, (self.records, self.bits // 8), np.uint8))
        else:
            x = torch.from_numpy(rng.random((self.records, *self.shape), np.float32))
        return ClientData(x.cuda(), torch.from_numpy(rng.integers(0, 10, self.records)).cuda())

    def model(self, name: str) -> nn.Module:
        shape = (self.bits,) if self.bits else self.shape
        network = models.build(name.partition(" ")[0], input_shape=shape, classes=10)
        return Unpacked(network, self.bits) if self.bits else network


def local(**changed: float) -> LocalTraining:
    return LocalTraining(SGD(0.015, **changed), epochs=1, batch_size=10)


JOBS = {
    "cnn-mnist": Job(100, 600, (1, 28, 28), local()),
    "cnn-wide": Job(100, 300, (1, 28, 28), local(momentum=0.9)),
    "vgg-small": Job(128, 100, (3, 32, 32), local()),
    "ldpfl-mnist": Job(
        2, 27_000, (1, 28, 28),
        LocalTraining(RMSprop(0.001, rho=0.9), steps=150, batch_size=64,
                      augmentation=Affine(10.0, 0.1, 0.1)),
    ),
    "ldpfl-cifar": Job(
        2, 22_500, (3, 32, 32),
        LocalTraining(RMSprop(0.001, rho=0.9), steps=100, batch_size=64,
                      augmentation=Affine(15.0, 0.1, 0.0, True)),
    ),
    "ldpfl-dense on 10,240 bits": Job(
        2, 27_000, (), LocalTraining(Adam(0.001), steps=400, batch_size=32), bits=10_240
    ),
    "ldpfl-dense on 20,480 bits": Job(
        2, 22_500, (), LocalTraining(SGD(0.001), steps=400, batch_size=32), bits=20_480
    ),
}  # fmt: skip


def seconds(call: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    call()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def measure(name: str) -> dict[str, float | str]:
    job = JOBS[name]
    model, clients = job.model(name), job.data()
    trainer, stream = CohortTrainer(model, device="cuda"), Keystream.simulation(1, np.arange(job.clients), 0)
    start = torch.cat([p.detach().flatten() for p in model.parameters()])
    steps = job.training.total_steps(job.records)

    def train() -> object:
        return trainer.train(start, clients, job.training, stream)

    first = seconds(train)
    again = min(seconds(train) for _ in range(3))
    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        seconds(train)
    busy = sum(event.self_device_time_total for event in seen.key_averages()) / 1000
    return {
        "network": name, "clients": job.clients, "first call, s": round(first, 1),
        "a step, ms": round(1000 * again / steps, 3), "busy, ms": round(busy / steps, 3),
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(JOBS))
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not torch.cuda.is_available():
        parser.error("PyTorch finds no GPU here")
    torch.set_num_threads(1)
    found = []
    for name in options.only or JOBS:
        found.append(measure(name))
        print(json.dumps(found[-1]), flush=True)
    result = {"gpu": torch.cuda.get_device_name(), "torch": torch.__version__, "jobs": found}
    if options.json:
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

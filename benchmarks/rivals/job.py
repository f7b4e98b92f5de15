"""The job that all candidates do: FedAvg over clients with random images, one local epoch of SGD a round.

It needs PyTorch and numpy alone, so that each candidate can run in an environment of its own. A candidate prints how
long each of its rounds took; what its start and its end cost is the difference to the time that the whole program ran.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Shape = tuple[int, int, int]
SMALL, COLOURED, CLASSES = (1, 28, 28), (3, 32, 32), 10  # the images of MNIST, and of CIFAR-10
MEAN, STD = 33.3, 78.6  # of MNIST's pixels


@dataclass(frozen=True)
class Job:
    """What is to be done, and with how many processes of one thread each."""

    model: str = "cnn-mnist"
    clients: int = 100
    records: int = 60
    rounds: int = 3
    processes: int = 2
    batch: int = 10
    lr: float = 0.05

    @classmethod
    def from_command_line(cls) -> Job:
        parser = argparse.ArgumentParser()
        for field in fields(cls):
            parser.add_argument(f"--{field.name}", type=type(field.default), default=field.default)
        return cls(**vars(parser.parse_args()))

    @property
    def shape(self) -> Shape:
        """Of one record."""
        return shape_for(self.model)

    def arguments(self) -> list[str]:
        """What makes `from_command_line` this job."""
        return [part for field in fields(self) for part in (f"--{field.name}", str(getattr(self, field.name)))]

    def shares(self) -> list[range]:
        """Which clients each process computes."""
        ends = [round(self.clients * k / self.processes) for k in range(self.processes + 1)]
        return [range(first, last) for first, last in pairwise(ends)]


def pixels(client: int, records: int, shape: Shape = SMALL) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A client's records and labels."""
    rng = np.random.default_rng(client)
    return rng.integers(0, 256, (records, *shape), np.uint8), rng.integers(0, CLASSES, records)


def tensors(client: int, records: int, shape: Shape = SMALL) -> tuple[Tensor, Tensor]:
    """The same, ready for a network."""
    x, y = pixels(client, records, shape)
    return (torch.from_numpy(x).float() - MEAN) / STD, torch.from_numpy(y)


def network(name: str) -> nn.Module:
    """The networks in plain PyTorch, with the parameters that the engine's of the same names have."""
    torch.manual_seed(1)
    match name:
        case "cnn-mnist":
            return nn.Sequential(
                nn.Conv2d(1, 10, 5), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(10, 20, 5), nn.MaxPool2d(2), nn.ReLU(),
                nn.Flatten(), nn.Linear(320, 50), nn.ReLU(), nn.Linear(50, 10),
            )  # fmt: skip
        case "lenet":
            return nn.Sequential(
                nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(6, 16, 5), nn.ReLU(),
                nn.MaxPool2d(2), nn.Flatten(), nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(),
                nn.Linear(84, 10),
            )  # fmt: skip
        case "ldp-fed":
            return nn.Sequential(
                nn.Conv2d(1, 16, 5, padding=2), nn.GroupNorm(8, 16), nn.ReLU(), nn.MaxPool2d(2),
                nn.Conv2d(16, 32, 5, padding=2), nn.GroupNorm(8, 32), nn.ReLU(), nn.MaxPool2d(2),
                nn.Flatten(), nn.Linear(1568, 10),
            )  # fmt: skip
        case "logistic":
            return nn.Sequential(nn.Flatten(), nn.Linear(784, 10))
        case "mlp":
            return nn.Sequential(
                nn.Flatten(), nn.Linear(784, 200), nn.ReLU(), nn.Linear(200, 200), nn.ReLU(), nn.Linear(200, 10)
            )
        case "cnn-wide":
            return nn.Sequential(
                nn.Conv2d(3, 32, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2),
                nn.Flatten(), nn.Linear(1600, 128), nn.ReLU(), nn.Linear(128, 10),
            )  # fmt: skip
        case "vgg-small":
            return nn.Sequential(
                *_pair(3, 32), *_pair(32, 64), *_pair(64, 128),
                nn.Flatten(), nn.Linear(2048, 128), nn.ReLU(), nn.Linear(128, 10),
            )  # fmt: skip
    raise SystemExit(f"unknown network {name}: {', '.join(PARAMETERS)}")


def _pair(before: int, after: int) -> list[nn.Module]:
    """Two convolutions of 3x3 with group norm, and a pool."""
    norms = [nn.GroupNorm(8, after) for _ in range(2)]
    first, second = nn.Conv2d(before, after, 3, padding=1), nn.Conv2d(after, after, 3, padding=1)
    return [first, norms[0], nn.ReLU(), second, norms[1], nn.ReLU(), nn.MaxPool2d(2)]


PARAMETERS = {
    "cnn-mnist": 21_840, "lenet": 61_706, "ldp-fed": 29_034, "logistic": 7_850, "mlp": 199_210, "cnn-wide": 259_914,
    "vgg-small": 551_466,
}  # fmt: skip


def shape_for(name: str) -> Shape:
    """The records that a network takes here."""
    return COLOURED if name in ("cnn-wide", "vgg-small") else SMALL


def flat(model: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def load(model: nn.Module, vector: Tensor) -> None:
    """Copy a vector's values into a model."""
    parameters = list(model.parameters())
    with torch.no_grad():
        for parameter, piece in zip(parameters, vector.split([p.numel() for p in parameters]), strict=True):
            parameter.copy_(piece.view_as(parameter))


def say(rounds: list[float], **more: Any) -> None:
    """The line that the benchmark reads."""
    print(json.dumps({"rounds": rounds, **more}), flush=True)


# --- rounds over processes --------------------------------------------------------------------------------------------

Local = Callable[[Job, nn.Module, Tensor, list[tuple[Tensor, Tensor]]], Tensor]


def federate(job: Job, local: Local) -> Iterator[float]:
    """Seconds of each round of FedAvg; `local` turns a model and clients' records into the sum of their new vectors."""
    vector = flat(network(job.model)).numpy()
    context = multiprocessing.get_context("fork")
    pipes = []
    for share in job.shares():
        ours, theirs = context.Pipe()
        context.Process(target=_work, args=(job, share, local, theirs), daemon=True).start()
        theirs.close()  # so that the end of a process ends the wait for it
        pipes.append(ours)
    for pipe in pipes:
        pipe.recv()
    for _ in range(job.rounds):
        began = time.perf_counter()
        for pipe in pipes:
            pipe.send(vector)
        vector = sum(pipe.recv() for pipe in pipes) / job.clients
        yield time.perf_counter() - began


def _work(job: Job, share: range, local: Local, pipe: Any) -> None:
    torch.set_num_threads(1)
    model = network(job.model)
    clients = [tensors(client, job.records, job.shape) for client in share]
    pipe.send("ready")
    for _ in range(job.rounds):
        pipe.send(local(job, model, torch.from_numpy(pipe.recv()), clients).numpy())

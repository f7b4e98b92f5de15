"""The job that all candidates do: FedAvg over clients with random MNIST-shaped records, one local epoch of SGD a round.

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

SHAPE, CLASSES = (1, 28, 28), 10
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

    def arguments(self) -> list[str]:
        """What makes `from_command_line` this job."""
        return [part for field in fields(self) for part in (f"--{field.name}", str(getattr(self, field.name)))]

    def shares(self) -> list[range]:
        """Which clients each process computes."""
        ends = [round(self.clients * k / self.processes) for k in range(self.processes + 1)]
        return [range(first, last) for first, last in pairwise(ends)]


def pixels(client: int, records: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """A client's records and labels."""
    rng = np.random.default_rng(client)
    return rng.integers(0, 256, (records, *SHAPE), np.uint8), rng.integers(0, CLASSES, records)


def tensors(client: int, records: int) -> tuple[Tensor, Tensor]:
    """The same, ready for a network."""
    x, y = pixels(client, records)
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
    raise SystemExit(f"unknown network {name}: cnn-mnist, lenet, ldp-fed or logistic")


PARAMETERS = {"cnn-mnist": 21_840, "lenet": 61_706, "ldp-fed": 29_034, "logistic": 7_850}


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
    clients = [tensors(client, job.records) for client in share]
    pipe.send("ready")
    for _ in range(job.rounds):
        pipe.send(local(job, model, torch.from_numpy(pipe.recv()), clients).numpy())

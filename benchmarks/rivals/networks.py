"""The job's networks and records in plain PyTorch, and its rounds over processes."""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.rivals.job import MEAN, PARAMETERS, SMALL, STD, Job, Shape, pixels


def tensors(client: int, records: int, shape: Shape = SMALL) -> tuple[Tensor, Tensor]:
    """A client's records and labels, ready for a network."""
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


def flat(model: nn.Module) -> Tensor:
    """All parameters as one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def load(model: nn.Module, vector: Tensor) -> None:
    """Copy a vector's values into a model."""
    parameters = list(model.parameters())
    with torch.no_grad():
        for parameter, piece in zip(parameters, vector.split([p.numel() for p in parameters]), strict=True):
            parameter.copy_(piece.view_as(parameter))


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

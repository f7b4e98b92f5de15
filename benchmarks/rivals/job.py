"""The job that all candidates do: FedAvg over clients with random images, one local epoch of SGD a round.

It needs numpy alone (and `networks` PyTorch), so that each candidate can run in an environment of its own and loads
what it uses. A candidate prints how long each of its rounds took; what its start and its end cost is the difference to
the time that the whole program ran.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, fields
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


PARAMETERS = {
    "cnn-mnist": 21_840, "lenet": 61_706, "ldp-fed": 29_034, "logistic": 7_850, "mlp": 199_210, "cnn-wide": 259_914,
    "vgg-small": 551_466,
}  # fmt: skip


def shape_for(name: str) -> Shape:
    """The records that a network takes here."""
    return COLOURED if name in ("cnn-wide", "vgg-small") else SMALL


def say(rounds: list[float], **more: Any) -> None:
    """The line that the benchmark reads."""
    print(json.dumps({"rounds": rounds, **more}), flush=True)

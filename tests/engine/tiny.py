"""Recipes of a few clients with a few digits each, and what is left of a run in its folder: for tests that run them."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.numpy import load_file
from torch import Tensor, nn

from sordino.recipe import Recipe

TINY: dict[str, Any] = {
    "name": "tiny",
    "seed": 7,
    "data": {"source": "digits", "train_limit": 40, "test_limit": 30},
    "split": {"kind": "iid", "clients": 4},
    "model": {"name": "logistic"},
    "training": {"epochs": 1, "batch_size": 5, "optimizer": {"name": "sgd", "lr": 0.1}},
    "method": {"name": "fedavg", "mechanism": {"name": "none"}},
    "rounds": {"count": 3},
}
VALUES = 650  #: of logistic regression on digits: 64 x 10 weights and 10 shifts

TWO_POINT: dict[str, Any] = {
    "method.mechanism": {"name": "two-point"},
    "method.range": {"kind": "fixed", "radius": 0.1},
    "clients.epsilon": 1.0,
}

BATCH_NORM: dict[str, Any] = {"model": {"name": "tests.engine.tiny:Normed", "buffers": "local"}}


class Normed(nn.Module):
    """Batch norm after dense layers, under names whose order is not the alphabet's."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(64, 6), nn.BatchNorm1d(6)
        self.beyond, self.after, self.last = nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Linear(6, classes)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.second(self.first(x.flatten(1))))
        scores: Tensor = self.last(torch.relu(self.after(self.beyond(hidden))))
        return scores


def recipe(changes: dict[str, Any] | None = None, **more: Any) -> Recipe:
    """The tiny recipe with other settings, by dotted key."""
    return Recipe.from_dict(TINY).with_({**(changes or {}), **more})


def left(folder: Path) -> dict[str, Any]:
    """All that a run came to and that must not depend on how often it was interrupted: everything but times."""
    rounds = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((folder / "result.json").read_text())
    kept = load_file(folder / "checkpoint/state.safetensors")
    return {
        "checkpoint": {name: array.tobytes() for name, array in kept.items()},
        "model": (folder / "model.safetensors").read_bytes(),
        "statement": (folder / "statement.json").read_bytes(),
        "rounds": [{**line, "seconds": None} for line in rounds],
        "result": {**result, "seconds": None},
    }

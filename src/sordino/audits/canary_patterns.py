"""Made-up records whose gradients have directions of their own, and the clipped gradients of records."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.learning.cohort import ClientData
from sordino.learning.linear_head import split_clip
from sordino.learning.private_sgd import PrivateTraining, head_of, integer_rows
from sordino.learning.stacked_model import Batch, Execution, StackedModel
from sordino.methods.silo_dp import SiloDp
from sordino.runs.federation import Federation

ORTHOGONAL = 1024  #: records of up to so many values get patterns that are orthogonal, larger ones random signs
AT_ONCE = 2**23  #: values of gradients computed at a time
DOUBLINGS = 10
SAMPLE = 200  #: records looked at to find how long they usually are


class Gradients:
    """The clipped gradients of a model's records, in units of the clipping bound."""

    def __init__(self, model: nn.Module, training: PrivateTraining) -> None:
        size = sum(p.numel() for p in model.parameters() if p.requires_grad)
        width = max(2, min(256, AT_ONCE // size))
        self._stacked = StackedModel(model, training.loss, Execution(width), torch.device("cpu"))
        self._clip, self._width = training.clip, width
        self.size = self._stacked.size
        self._steps = training.grid(self.size).clip
        self._head = head_of(self._stacked, training)

    def each(self, parameters: Tensor, records: ClientData) -> Tensor:
        """`[n, d]`."""
        return torch.cat([rows.float() for rows in self._clipped(parameters, records)])

    def sum(self, parameters: Tensor, records: ClientData) -> Tensor:
        """`[d]`, over all records."""
        total = torch.zeros(self.size, dtype=torch.float64)
        for rows in self._clipped(parameters, records):
            total += rows.sum(dim=0)
        return total.float()

    def _clipped(self, parameters: Tensor, records: ClientData) -> Iterator[Tensor]:
        """What the program adds up, a few records at a time."""
        if self._head is None or records.y.dtype != torch.int64:
            for rows, _ in self._raw(parameters, records):
                yield integer_rows(rows, self._clip, self._steps)[0] / self._steps
            return
        weights = self._head.weights(parameters)
        for start in range(0, len(records), self._width):
            part = slice(start, start + self._width)
            rounded = self._head.rounded(records.x[part], self._steps)
            limit = split_clip(self._steps)[1]
            yield self._head.parts(weights, rounded, records.y[part], self._clip, limit) / self._steps

    def norms(self, parameters: Tensor, records: ClientData) -> Tensor:
        """`[n]`, before clipping."""
        return torch.cat([torch.linalg.vector_norm(rows, dim=1) for rows, _ in self._raw(parameters, records)])

    def losses(self, parameters: Tensor, records: ClientData) -> NDArray[np.float64]:
        """`[n]`."""
        found = torch.cat([losses.clone() for _, losses in self._raw(parameters, records)])
        return np.asarray(found.double().numpy())

    def _raw(self, parameters: Tensor, records: ClientData) -> Iterator[tuple[Tensor, Tensor]]:
        self._stacked.try_out(records.x[:2])
        for start in range(0, len(records), self._width):
            rows = slice(start, start + self._width)
            x, y = records.x[rows, None], records.y[rows, None]
            yield self._stacked.gradients(parameters.expand(len(x), -1), {}, Batch(x, y))


def made_up(federation: Federation, count: int, seed: int) -> ClientData:
    """Records as long as real ones, or longer where their gradients would not reach the clipping bound."""
    method = federation.method
    assert isinstance(method, SiloDp)
    dataset = federation.dataset
    rng = np.random.default_rng([seed, count, 1])
    outputs, task = len(dataset.classes), dataset.task
    unit, numbers = patterns(math.prod(federation.record_shape), task.kinds(outputs), count, rng)
    labels = torch.from_numpy(task.numbered(numbers, outputs))
    real = dataset.normalisation.apply(dataset.train.x[:SAMPLE]).reshape(min(SAMPLE, len(dataset.train)), -1)
    length = float(np.median(np.linalg.norm(real, axis=1))) or 1.0
    gradients, start = Gradients(federation.model, method.training), torch.from_numpy(method.init().parameters)
    for _ in range(DOUBLINGS):
        x = torch.from_numpy(unit * np.float32(length)).reshape(count, *federation.record_shape)
        records = ClientData(x, labels)
        some = ClientData(records.x[:SAMPLE], records.y[:SAMPLE])
        if float(gradients.norms(start, some).median()) >= 2 * method.training.clip:
            break
        length *= 2
    return records


def patterns(
    values: int, classes: int, count: int, rng: np.random.Generator
) -> tuple[NDArray[np.float32], NDArray[np.int64]]:
    """`[count, values]` of length 1 with their labels; a pattern that comes again does so under another label."""
    found = np.empty((count, values), np.float32)
    if values > ORTHOGONAL:
        found[:] = rng.choice(np.array([-1, 1], np.float32), (count, values)) / np.float32(math.sqrt(values))
        return found, rng.integers(0, classes, count)
    for start in range(0, count, values * classes):
        basis = np.linalg.qr(rng.normal(size=(values, values)))[0].astype(np.float32)
        own = np.arange(start, min(count, start + values * classes))
        found[own] = basis[(own - start) % values]
    numbers = np.arange(count)
    return found, (numbers % values + numbers // values) % classes

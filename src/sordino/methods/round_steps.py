"""The steps of a round that methods share: train, send, average. Each method's file calls them in its paper's order.

A vector `[values]` is the model's parameters, followed by the running statistics that are released.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sordino.methods.interface import PARAMETERS, Bench, ClientState, Cohort, Floats, LocalView, Method, Reported, State
from sordino.methods.upload import Draw, Float64s, Tally, Upload
from sordino.parts.timeline import phase
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from torch import Tensor

    from sordino.learning.cohort import ClientData, CohortResult, LocalTraining
    from sordino.learning.private_sgd import PrivateTraining
    from sordino.methods.blueprint import Statistics


# --- vectors ----------------------------------------------------------------------------------------------------------


def vector_of(state: State, statistics: Statistics) -> Floats:
    """The vector of a state."""
    return _joined(state.parameters, state.arrays, statistics)


def _joined(parameters: Floats, arrays: Mapping[str, Floats], statistics: Statistics) -> Floats:
    return np.concatenate([parameters.reshape(-1), *(arrays[name].reshape(-1) for name in statistics.released)])


# --- training ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Trained:
    """K clients after local training."""

    start: Floats  #: `[values]`, or `[K, values]` where every client has its own
    vectors: Floats  #: `[K, values]`
    states: tuple[ClientState, ...]  #: with the statistics that each client keeps
    loss: Float64s
    failed: NDArray[np.bool_]
    clipped: Float64s  #: `[K]` share of per-record gradients that private training shortened

    @cached_property
    def update(self) -> Floats:
        """`[K, values]`: how far training moved each client."""
        return self.vectors - self.start

    def local(self, clipped: Float64s, handed_in: Floats) -> LocalView:
        """What owners see, `handed_in [K, d]` being what the mechanism gets."""
        squares = [row @ row for row in (own.astype(np.float64) for own in self.update)]
        largest = np.maximum(handed_in.max(axis=1), -handed_in.min(axis=1)).astype(np.float64)
        return LocalView(self.loss, self.failed, clipped, np.sqrt(squares), largest)


def train(method: Method, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Trained:
    """Local training from the plan's model, the learning rate's decay going on after the steps of earlier rounds."""
    start = _joined(plan.arrays[PARAMETERS], plan.arrays, method.statistics)
    return train_from(start, method, cohort, draw, bench, steps_before(method.training, plan.round, cohort.data))


def steps_before(training: LocalTraining | PrivateTraining, round: int, data: Sequence[ClientData | None]) -> list[int]:
    """How many steps each client has taken before this round."""
    if not training.optimizer.decay:
        return [0] * len(data)
    return [0 if own is None else (round - 1) * training.total_steps(len(own)) for own in data]


def train_from(
    start: Floats, method: Method, cohort: Cohort, draw: Draw, bench: Bench, first_steps: Sequence[int]
) -> Trained:
    """Local training from `start`, the learning rate decaying from `first_steps [K]` on.

    A client without records, or one whose training stops being finite, stays where it started.
    """
    import torch

    vectors = np.empty((len(cohort.clients), start.shape[-1]), start.dtype)
    absent = [own is None for own in cohort.data]
    vectors[absent] = start if start.ndim == 1 else start[absent]
    loss, failed = np.full(len(vectors), np.nan), np.zeros(len(vectors), np.bool_)
    clipped = np.zeros(len(vectors))
    states, d = list(cohort.states), vectors.shape[1] - method.statistics.size
    for first_step in dict.fromkeys(first_steps):  # clients that go on from the same step are trained together
        rows = [k for k, own in enumerate(cohort.data) if own is not None and first_steps[k] == first_step]
        if not rows:
            continue
        own_start = start if start.ndim == 1 else start[rows]
        with phase("train"):
            trained = bench.trainer(method.model).train(
                torch.from_numpy(own_start[..., :d]),
                [own for k in rows if (own := cohort.data[k]) is not None],
                method.training,
                draw([cohort.clients[k] for k in rows]),
                buffers=_buffers(method.statistics, own_start[..., d:], [cohort.states[k] for k in rows]),
                first_step=first_step,
            )
            vectors[rows] = _vectors(trained, method.statistics)
        loss[rows], failed[rows], clipped[rows] = trained.local.loss, trained.local.failed, trained.local.clipped
        for row, kept in zip(rows, _kept(trained, method.statistics), strict=True):
            states[row] = kept
    return Trained(start, vectors, tuple(states), loss, failed, clipped)


def _buffers(statistics: Statistics, released: Floats, states: Sequence[ClientState]) -> dict[str, Tensor] | None:
    """Running statistics to start from: the server's where they are released, else the client's own."""
    import torch

    if not statistics.start:
        return None
    stacked, first = {}, 0
    for name in statistics.released:
        value = statistics.start[name]
        columns = np.broadcast_to(released[..., first : first + value.numel()], (len(states), value.numel()))
        stacked[name] = torch.from_numpy(columns.copy()).reshape(len(states), *value.shape)
        first += value.numel()
    for name, value in statistics.start.items():
        if name not in stacked:
            stacked[name] = torch.stack([torch.from_numpy(np.asarray(s[name])) if name in s else value for s in states])
    return stacked


def _vectors(trained: CohortResult, statistics: Statistics) -> Floats:
    """`[K, values]`: the parameters after training, and statistics that are released."""
    import torch

    parts = [trained.parameters.cpu()]
    parts += [trained.buffers[name].cpu().reshape(len(parts[0]), -1) for name in statistics.released]
    return (torch.cat(parts, dim=1) if len(parts) > 1 else parts[0]).numpy()


def _kept(trained: CohortResult, statistics: Statistics) -> list[ClientState]:
    """The statistics that stay with each client."""
    own = {n: v.cpu().numpy() for n, v in trained.buffers.items() if n not in statistics.released}
    return [{name: value[k].copy() for name, value in own.items()} for k in range(len(trained.parameters))]


# --- sending ----------------------------------------------------------------------------------------------------------


def send(upload: Upload, cohort: Cohort, values: Floats, draw: Draw, trained: Trained) -> Reported:
    """Clip, randomise and encode `values [K, d]`, which training made."""
    sent = upload.send(cohort.clients, values, draw, cohort.sizes)
    clipped = np.maximum(sent.clipped, trained.clipped)  # one of them is none: silos that train privately send as it is
    return Reported(sent.bodies, trained.states, trained.local(clipped, values))


# --- averaging --------------------------------------------------------------------------------------------------------


def average(state: State, tally: Tally, statistics: Statistics) -> State:
    """The state one round later: the weighted mean of the models that were sent."""
    return moved(state, tally.mean() - vector_of(state, statistics), statistics)


def moved(state: State, step: Float64s, statistics: Statistics, columns: slice = slice(None)) -> State:
    """The state one round later, its vector moved by `step` in these columns."""
    after = vector_of(state, statistics)
    with np.errstate(over="ignore"):  # the coordinator does not count a round that leads out of all bounds
        after[columns] += step
    first, arrays = state.parameters.size, dict(state.arrays)
    for name in statistics.released:
        size = arrays[name].size
        own = after[first : first + size].reshape(arrays[name].shape)
        # noise can make a variance negative, and nothing computes then
        arrays[name] = np.maximum(own, 0) if name.endswith("running_var") else own
        first += size
    return state.after(after[: state.parameters.size], arrays)


__all__ = ["Trained", "average", "moved", "send", "steps_before", "train", "train_from", "vector_of"]

"""What clients with chosen records would send in a run, before and after its mechanism.

All rounds are played with the model that the run began with. A server may send the same model again, and what is proven
holds for every model that is sent.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from sordino.audits.finished_run import FinishedRun
from sordino.learning.cohort import ClientData
from sordino.learning.private_sgd import PrivateTraining
from sordino.methods.interface import PARAMETERS, Bench, Cohort, Method
from sordino.methods.upload import Draw, Sent, Upload
from sordino.privacy.leaks import Variant
from sordino.randomness import Keystream
from sordino.wire.messages import Plan

Float64s = NDArray[np.float64]

NO_NOISE = 1e-9  #: the noise multiplier of private training where noise is left out
MIXED = ("summed", "shuffled", "shuffler")  #: channels under which reports are not seen one by one


def rounds_of(run: FinishedRun, client: int, most: int) -> list[int]:
    """The rounds that a client reported in, at most so many of them, evenly spread."""
    own = [spent.round for spent in run.spent if spent.round and any(client in who for who in spent.reporters)]
    places = np.unique(np.linspace(0, len(own) - 1, min(most, len(own))).astype(int))
    return [own[place] for place in places.tolist()]


def is_mixed(run: FinishedRun) -> bool:
    """Whether the server sees only what all reports of a round add up to."""
    channel = getattr(run.recipe.method, "channel", None)
    whole = getattr(channel, "granularity", "parameter") == "model"  # reports stay whole, without a name
    return getattr(channel, "kind", "direct") in MIXED and not whole


@dataclass(frozen=True, eq=False)
class ClientReports:
    """Reports of clients of one class, all sent as `client` would send them, each with randomness of its own."""

    run: FinishedRun
    client: int
    seed: int

    def updates(self, data: Sequence[ClientData], rounds: Sequence[int], variant: Variant) -> Tensor:
        """`[K, d]`: how each client with these records moves the model, the mean of what the server sees in the rounds.

        Where a round's reports are parts of the model, each part has the mean of its own rounds.
        """
        size = self.run.federation.layout.size
        total, seen = np.zeros((len(data), size)), np.zeros(size)
        for round in rounds:
            found, columns = self._round(data, round, variant)
            kept = min(columns.stop, size) - columns.start
            total[:, columns.start : columns.start + kept] += found[:, :kept]
            seen[columns.start : columns.start + kept] += 1
        return torch.from_numpy((total / np.maximum(seen, 1)).astype(np.float32))

    @property
    def _method(self) -> Method:
        return self.run.federation.method

    def _round(self, data: Sequence[ClientData], round: int, variant: Variant) -> tuple[Float64s, slice]:
        method: Any = self._method
        plan = method.plan(replace(method.init(), round=round - 1), self.run.recipe.name)
        vectors, bodies = self._sent(without_noise(method) if variant == "bare" else method, plan, data)
        upload = method.upload(plan)
        if variant == "bare" and vectors is not None:
            found = vectors.astype(np.float64)
        else:
            mechanism, skipped = upload.mechanisms[method.class_of(self.client)], 4 if upload.samples else 0
            there = [k for k, body in enumerate(bodies) if body]  # who sits out sends nothing, and moves nothing
            found = np.zeros((len(bodies), upload.values))
            if there:
                output = mechanism.decode([bodies[k][skipped:] for k in there], upload.values)
                found[there] = mechanism.estimate(output)
        columns = method.turn(plan).columns if hasattr(method, "turn") else slice(0, upload.values)
        if not method.spec.sends_updates and vectors is not None:
            start = plan.arrays[PARAMETERS].astype(np.float64)
            found[:, : start.size] -= start
        return found, columns

    def _sent(
        self, method: Method, plan: Plan, data: Sequence[ClientData]
    ) -> tuple[NDArray[np.float32] | None, list[bytes]]:
        """What the clients hand to the mechanism, where they hand it a vector, and what they send."""
        vectors, honest = [], Upload.send

        def send(upload: Upload, clients: Sequence[int], rows: ArrayLike, draw: Draw, sizes: Sequence[int]) -> Sent:
            vectors.append(np.array(rows, np.float32))
            return honest(upload, clients, rows, draw, sizes)

        cohort = Cohort(
            (self.client,) * len(data), tuple(data), ({},) * len(data), tuple(len(own) for own in data)
        )  # fmt: skip
        draw = lambda own: Keystream.simulation(self.seed, np.arange(len(own)), plan.round)  # noqa: E731
        with patch.object(Upload, "send", send):
            bodies = method.report(plan, cohort, draw, Bench()).bodies
        return (np.concatenate(vectors) if vectors else None), bodies


def without_noise(method: Method) -> Method:
    """The same method without the noise of private training."""
    if not isinstance(method.training, PrivateTraining):
        return method
    quiet = copy.copy(method)
    quiet.training = replace(method.training, noise_multiplier=NO_NOISE, coarsening=0)
    return quiet


__all__ = ["ClientReports", "is_mixed", "rounds_of", "without_noise"]

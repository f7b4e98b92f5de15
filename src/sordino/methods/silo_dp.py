"""Record-level differential privacy in silos: every silo trains with DP-SGD and sends the result as it is.

    each round t:   each silo k:   w_k <- S steps of DP-SGD from w_t: Poisson batches of rate q, per-record gradients
                                          clipped to C and rounded to a grid, whole noise of sigma * C on their sum
                                   send w_k - w_t
                    server:        w_{t+1} <- w_t + server_lr * mean(w_k - w_t)

What a silo sends is computed from noisy sums only, so everything it ever sends is (epsilon, delta)-differentially
private in each of its own records, whatever the server and the other silos do ("inter-silo record-level DP", Lowy and
Razaviyayn 2023). It hides a record, not the silo: against that there is no bound, and the statement says so.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.learning import linear_head, models
from sordino.learning.private_sgd import PrivateTraining, noise_alone, remembers
from sordino.mechanisms import Mechanism, NoPrivacy
from sordino.methods.fedavg import DATASET, FedAvg
from sordino.methods.interface import Bench, Cohort, LocalView, Reported
from sordino.methods.round_steps import PARAMETERS, send, start_of, steps_before, train
from sordino.methods.setting import Built, Setting
from sordino.methods.upload import Draw, Upload, samples_release
from sordino.privacy.guarantee import Adjacency, Guarantee, Infinite, Release
from sordino.wire.messages import Plan

WHAT = "model update (DP-SGD)"
REMEMBERS = (
    "the model's gradient of a public record changes after another record, or cannot be computed: a model of your own "
    "must keep nothing from one record to the next"
)
RECORDS = Adjacency.RECORD_ADD_REMOVE, Adjacency.RECORD_REPLACE  #: the accountant counts an exchange as two changes


class SiloDp(FedAvg):
    """Federated averaging of silos that train privately; the guarantee is the training's."""

    training: PrivateTraining

    def __init__(
        self, setting: Setting, training: PrivateTraining, upload: Upload, *, sends: Literal["update", "weights"]
    ) -> None:
        super().__init__(setting, training, upload, sends=sends)
        own = models.is_own(setting.recipe.model.name)
        start = torch.from_numpy(setting.initial)
        self._remembers = own and remembers(setting.model, training.loss, start, setting.input_shape)

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        name = f"{plan.federation}/{plan.round}"
        both = [self.training.guarantee(self._upload.values, adjacency) for adjacency in RECORDS]
        release = self._release(name, both)
        return ((release, samples_release(name, DATASET)) if self._upload.samples else (release,),)

    def _release(self, name: str, guarantees: Sequence[Guarantee]) -> Release:
        """An upload of private training; nothing is proven of a model that is no function of one record."""
        if self._remembers:
            guarantees = [replace(guarantee, loss=Infinite(REMEMBERS), basis="none") for guarantee in guarantees]
        return Release(f"{name}/{WHAT}", DATASET, WHAT, tuple(guarantees))

    def computes_records_apart(self, bench: Bench) -> bool:
        """Whether what a record adds to a sum depends on that record alone when it is computed like this.

        A linear model's always does; other networks' where one record is computed at a time on a processor.
        """
        alone = bench.execution.width == 1 and bench.device.type == "cpu"
        return alone or linear_head.of(self.model, self.training.loss) is not None

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        w = start_of(plan.arrays, self.statistics)
        trained = train(self, w, cohort, draw, bench, steps_before(self.training, plan.round, cohort.data))
        idle = [k for k, data in enumerate(cohort.data) if data is None]
        if idle:  # noise, as where every batch is empty: that nothing could be trained on is not sent in the open
            trained.vectors[idle] = self._noise_alone(plan, [cohort.clients[k] for k in idle], draw)
        return send(self.upload(plan), cohort, trained.update, draw, trained)

    def _noise_alone(self, plan: Plan, clients: Sequence[int], draw: Draw) -> NDArray[np.float32]:
        """`[K, values]`: what training makes of no records."""
        layout = models.parameter_layout(self.model)
        sizes = dict(zip(layout.names, layout.sizes, strict=True))
        start, before = plan.arrays[PARAMETERS], (plan.round - 1) * self.training.steps
        return noise_alone(self.training, start, sizes, draw(clients), len(clients), before).numpy()

    def rehearse(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> LocalView:
        """One round with next to no noise, to see how large a silo's update is: in a simulation only."""
        quiet = copy.copy(self)
        quiet.training = replace(self.training, noise_multiplier=1e-9, coarsening=0)
        return SiloDp.report(quiet, plan, cohort, draw, bench).local


def private_training(setting: Setting, shares: int = 1) -> PrivateTraining:
    """The recipe's DP-SGD; the noise follows from its target where it names one, and is that of `shares` silos."""
    given: Any = setting.recipe.method
    announced = given.announced_size or sum(setting.sizes) / setting.clients
    training = PrivateTraining(
        setting.optimizer,
        clip=given.clip,
        noise_multiplier=given.noise_multiplier or 1.0,
        sampling_rate=given.sampling_rate,
        expected_batch=given.sampling_rate * announced,
        steps=given.steps,
        loss=models.loss_for(setting.recipe.model.name),
        resolution=given.resolution,
        coarsening=given.coarsening,
        shares=shares,
    )
    if given.target is not None:
        target, rounds = given.target, setting.recipe.rounds.count
        training = training.with_noise_for(target.epsilon, target.delta, rounds, setting.values)
    training.grid(setting.values)  # refuses what the grid has no room for, before any work
    return training


def plain(_: float | None) -> Mechanism:
    """What a silo sends is private already: it travels as it is."""
    return NoPrivacy()


def build(setting: Setting) -> Built:
    """Private silos as a recipe asks for them."""
    if 0 in setting.sizes:
        raise InvalidInput(
            f"silo {setting.sizes.index(0)} holds no records, so there is nothing to protect: set split.at_least=1"
        )
    given: Any = setting.recipe.method
    samples = given.aggregation.samples
    upload = Upload(
        plain, None, setting.values, clients=setting.clients, what=WHAT, samples=samples, clamp=given.clamp,
        norm=given.norm,
    )  # fmt: skip
    method = SiloDp(setting, private_training(setting), upload, sends="update")
    return Built(method, upload, 1, sum(setting.sizes) * given.sampling_rate * given.steps)


__all__ = ["RECORDS", "REMEMBERS", "WHAT", "SiloDp", "build", "private_training"]

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
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import NDArray
from pydantic import Field

from sordino.errors import InvalidInput
from sordino.mechanisms import NoPrivacy
from sordino.methods.aggregation import AnyAggregation, Mean
from sordino.methods.blueprint import Blueprint, unproven_code
from sordino.methods.fedavg import unseen_norm
from sordino.methods.interface import DATASET, PARAMETERS, Bench, Cohort, LocalView, Method, Reported, State
from sordino.methods.robust import aggregate
from sordino.methods.round_steps import moved, send, train
from sordino.methods.selection import AnySelection, SelectAll
from sordino.methods.spec import (
    AnyChannel,
    Clamp,
    ClipNorm,
    MethodSpec,
    Norm,
    ServerLr,
    Target,
    direct,
)
from sordino.methods.upload import Draw, Same, Tally, Upload, samples_release
from sordino.parts.lazy import lazy_module
from sordino.parts.tables import Count, Found, Natural, Positive, Says, reads, tag
from sordino.parts.toml import shown
from sordino.privacy.guarantee import Adjacency, Guarantee, Infinite, Release
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from sordino.learning import linear_head, losses, models, private_sgd
    from sordino.learning.private_sgd import PrivateTraining
    from sordino.recipe import Recipe
else:
    linear_head = lazy_module("sordino.learning.linear_head")
    losses = lazy_module("sordino.learning.losses")
    models = lazy_module("sordino.learning.models")
    private_sgd = lazy_module("sordino.learning.private_sgd")

WHAT = "model update (DP-SGD)"
REMEMBERS = (
    "the model's gradient of a public record changes after another record, or cannot be computed: a model of your own "
    "must keep nothing from one record to the next"
)
RECORDS = Adjacency.RECORD_ADD_REMOVE, Adjacency.RECORD_REPLACE  #: the accountant counts an exchange as two changes


class NoiseSpec(MethodSpec):
    """A method whose strength is the noise of its sums, and not `clients.epsilon`."""

    @reads("clients.epsilon", "method.name", "method.mechanism")
    def takes_no_epsilon(self, recipe: Recipe) -> Found:
        """Refuse clients.epsilon: the strength is the method's own."""
        if recipe.clients.epsilon is not None:
            own = "its strength is method.target or method.noise_multiplier"
            yield "clients.epsilon", f"{self.name} takes none, {own}: leave it out"

    @reads("method")
    def noise_is_given_in_one_way(self, recipe: Recipe) -> Found:
        """Refuse anything but exactly one of noise_multiplier and target."""
        given = [name for name in ("noise_multiplier", "target") if getattr(self, name) is not None]
        if len(given) != 1:
            found = "neither" if not given else "both"
            yield (
                ".target",
                f"{found} given of target = {{ epsilon = ..., delta = ... }} and noise_multiplier; allowed: exactly "
                "one",
            )


class SiloDp(Method):
    """Federated averaging of silos that train privately; the guarantee is the training's."""

    noisy: ClassVar[bool] = True

    class Spec(NoiseSpec):
        """Silos that train by DP-SGD: each record is protected, for the whole run, from whoever sees the updates."""

        draws_batches: ClassVar[bool] = True
        sends_updates: ClassVar[bool] = True
        in_pages: ClassVar[bool] = True
        name: str = tag("silo-dp", "record-level DP-SGD in every silo")
        server_lr: ServerLr = 1.0
        clip: ClipNorm = Field(default=1.0, description="L2 norm to which every record's gradient is clipped")
        sampling_rate: Annotated[float, Ge(2.0**-32), Le(1), Says("a probability from 2^-32 to 1")] = Field(
            default=0.1, description="probability with which a record is in a step's batch"
        )
        steps: Count = Field(default=20, description="noisy steps per round")
        noise_multiplier: Positive | None = Field(
            default=None, description="noise of a step's sum, in units of clip; or give target"
        )
        target: Target | None = Field(
            default=None,
            description="what the whole run is proven to protect, from which the noise multiplier is computed",
        )
        announced_size: Natural = Field(
            default=0,
            description="the public size of a silo that sums are divided by (0: the known data set's training examples "
            "divided by the clients)",
        )
        resolution: Annotated[int, Ge(4), Le(24), Says("a whole number from 4 to 24")] = Field(
            default=20,
            description="the noise of a silo has 2^resolution steps of the grid that gradients are rounded to",
        )
        coarsening: Annotated[int, Ge(0), Le(24), Says("a whole number from 0 to 24")] = Field(
            default=0, description="bits dropped from an exact sum, at random, before its noise: smaller numbers travel"
        )
        clamp: Clamp = None
        norm: Norm = None
        selection: AnySelection = SelectAll()
        channel: AnyChannel = Field(default_factory=direct)
        aggregation: AnyAggregation = Mean()

        def page_obstacles(self) -> Found:
            if self.coarsening:
                yield f"method.coarsening = {self.coarsening}", "pages send what they trained, and coarsen no sums"
            if not self.announced_size:
                yield "method.announced_size = 0", "a page would tell its own number of records: state a public one"

        @reads("method.name", "training.epochs", "training.steps", "training.batch_size")
        def silos_draw_their_own_batches(self, recipe: Recipe) -> Found:
            """Nothing is said about batches that are never drawn."""
            for name in sorted(recipe.training.model_fields_set - {"optimizer"}):
                yield (
                    f"training.{name}",
                    f"got {shown(getattr(recipe.training, name))}; silo-dp draws its own batches "
                    "(method.sampling_rate, method.steps) and takes the optimizer alone: leave it out",
                )

        @reads("method")
        def a_norm_has_reports_to_scale(self, recipe: Recipe) -> Found:
            """Refuse a norm where the server sees no single reports."""
            yield from unseen_norm(self)

        @reads("method", "data.source")
        def silos_know_their_size(self, recipe: Recipe) -> Found:
            """Refuse own data without an announced size: sums are divided by a public number."""
            if self.announced_size == 0 and recipe.data.origin not in ("known", None):
                yield (
                    ".announced_size",
                    "missing; the number of your own examples is private: announce a public size of a silo, such as "
                    "1000",
                )

        def build(self, blueprint: Blueprint) -> SiloDp:
            upload = Upload(
                Same(NoPrivacy()), None, blueprint.values, clients=blueprint.clients, what=WHAT,
                samples=self.aggregation.samples, clamp=self.clamp, norm=self.norm,
            )  # fmt: skip
            return SiloDp(blueprint, upload, private_training(blueprint))

    training: PrivateTraining

    def __init__(self, blueprint: Blueprint, upload: Upload, training: PrivateTraining) -> None:
        super().__init__(blueprint, upload, training)
        import torch

        given, shape, task = blueprint.recipe.model, blueprint.input_shape, blueprint.task
        private_sgd.check_model(blueprint.model, training.loss, shape)
        if given.own_loss:
            losses.check_apart(training.loss, task, blueprint.classes)
        start, labels = torch.from_numpy(blueprint.initial), task.numbered(np.array([0, 1]), blueprint.classes)
        own, labelled = given.is_own or given.own_loss, torch.from_numpy(labels)
        remembers = own and private_sgd.remembers(blueprint.model, training.loss, start, shape, labelled)
        self.unproven = REMEMBERS if remembers else unproven_code(blueprint.recipe)

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        name = f"{plan.federation}/{plan.round}"
        both = [self.training.guarantee(self.first_upload.values, adjacency) for adjacency in RECORDS]
        release = self._release(name, both)
        return ((release, samples_release(name, DATASET)) if self.first_upload.samples else (release,),)

    def _release(self, name: str, guarantees: Sequence[Guarantee]) -> Release:
        """An upload of private training; nothing is proven of a model that is no function of one record."""
        if self.unproven is not None:
            guarantees = [replace(guarantee, loss=Infinite(self.unproven), basis="none") for guarantee in guarantees]
        return Release(f"{name}/{WHAT}", DATASET, WHAT, tuple(guarantees))

    def computes_records_apart(self, bench: Bench) -> bool:
        """Whether what a record adds to a sum depends on that record alone when it is computed like this.

        A linear model's always does; other networks' where one record is computed at a time on a processor.
        """
        return bench.alone or linear_head.of(self.model, self.training.loss) is not None

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        trained = train(self, plan, cohort, draw, bench)
        idle = [k for k, data in enumerate(cohort.data) if data is None]
        if idle:  # noise, as where every batch is empty: that nothing could be trained on is not sent in the open
            trained.vectors[idle] = self._noise_alone(plan, [cohort.clients[k] for k in idle], draw)
        return send(self.upload(plan), cohort, trained.update, draw, trained)

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        mean, state = aggregate(tally, state)
        return moved(state, self.spec.server_lr * self.spec.aggregation.move(mean, mean), self.statistics)

    def _noise_alone(self, plan: Plan, clients: Sequence[int], draw: Draw) -> NDArray[np.float32]:
        """`[K, values]`: what training makes of no records."""
        layout = models.parameter_layout(self.model)
        sizes = dict(zip(layout.names, layout.sizes, strict=True))
        start, before = plan.arrays[PARAMETERS], (plan.round - 1) * self.training.steps
        return private_sgd.noise_alone(self.training, start, sizes, draw(clients), len(clients), before).numpy()

    def rehearse(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> LocalView:
        """One round with next to no noise, to see how large a silo's update is: in a simulation only."""
        quiet = copy.copy(self)
        quiet.training = replace(self.training, noise_multiplier=1e-9, coarsening=0)
        return SiloDp.report(quiet, plan, cohort, draw, bench).local


def private_training(blueprint: Blueprint, shares: int = 1) -> PrivateTraining:
    """The recipe's DP-SGD; the noise follows from its target where it names one, and is that of `shares` silos."""
    if 0 in blueprint.sizes:
        silo = blueprint.sizes.index(0)
        raise InvalidInput(f"silo {silo} holds no records, so there is nothing to protect: set split.at_least=1")
    given = blueprint.recipe.method
    announced = given.announced_size or sum(blueprint.sizes) / blueprint.clients
    training = private_sgd.PrivateTraining(
        blueprint.recipe.training.optimizer.build(),
        clip=given.clip,
        noise_multiplier=given.noise_multiplier or 1.0,
        sampling_rate=given.sampling_rate,
        expected_batch=given.sampling_rate * announced,
        steps=given.steps,
        loss=blueprint.loss,
        resolution=given.resolution,
        coarsening=given.coarsening,
        shares=shares,
    )
    if given.target is not None:
        target, rounds = given.target, blueprint.recipe.rounds.count
        training = training.with_noise_for(target.epsilon, target.delta, rounds, blueprint.values)
    training.grid(blueprint.values)  # refuses what the grid has no room for, before any work
    return training


__all__ = ["RECORDS", "REMEMBERS", "WHAT", "NoiseSpec", "SiloDp", "private_training"]

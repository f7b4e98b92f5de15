"""Personalised LDP-FL (Wu, Xu, Zhu, "Local Differential Privacy-Based Federated Learning under Personalized Settings",
Applied Sciences 13, 2023): every client its own epsilon, and a server that listens more to those with more of it.

    W^(0) = 0;  every client i announces eps_i, and with it sigma_i
    each round r = 1 .. R:
        each client i:   D'_i <- each record of D_i with probability q (IID data only)
                         G_i <- logistic regression by SGD on D'_i, from W^(r-1)                              (Eq. 3)
                         G^_i <- G_i clipped to [-c, c], value by value
                         IID:       G~_i <- G^_i + N(0, sigma_i^2),  sigma_i of Eq. 4
                         non-IID:   G~_i <- +1 with probability Phi(G^_i / sigma_i), else -1,  sigma_i of Eq. 7
        server:          W^(r) <- f(G~_1 .. G~_N),  of signs  sign(f(G~_1 .. G~_N))                   (Eqs. 8, 10)

    f, with rho_i = 1 / sigma_i:
        A, arithmetic average             the mean
        B, weighted average               alpha_i = rho_i / sum rho                                   (Eqs. 11 - 13)
        C, probability-based selection    P_i = rho_i / sum rho; one omega from U(0, 1) for all; the mean of those with
                                          P_i > omega                                                 (Eqs. 14 - 16)
        for Gaussian noise, ours          weights 1 / sigma_i^2, with which the mean has least variance

Selection comes "after collecting the perturbed local parameter" of each client (section 4.2): everybody uploads in
every round and spends for it, and only then some of the uploads are left out. With probability 1 - max P_i no client
has P_i > omega, of which the paper says nothing: omega is drawn again, or W stays as it is (`fallback`).

For votes weights proportional to 1/sigma are no compromise: for small p a vote's mean is p/sigma times a constant and
its variance 1, so that 1/sigma is the best linear weight; and the best weight of a vote by randomised response is its
log odds, eps. Both are eps times a constant.

In all six settings |D_i| is R times what the paper calls "batch" (10 x 50 = 500, 20 x 50 = 1,000, 50 x 1,000 = 50,000,
...): a client takes up one portion of its records in each round (`portion`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sordino.errors import InvalidInput
from sordino.learning import draws
from sordino.mechanisms import NoPrivacy
from sordino.mechanisms.spec import FixedUnsaid, MechanismSpec, noise
from sordino.methods.aggregation import (
    AGGREGATION,
    AggregationSpec,
    InverseVariance,
    Mean,
    SelectionByBudget,
    offering,
    rhos,
)
from sordino.methods.blueprint import Blueprint
from sordino.methods.interface import DATASET, PARAMETERS, Bench, ClientState, Cohort, Method, Reported, State
from sordino.methods.round_steps import send, train_from
from sordino.methods.selection import SelectAll
from sordino.methods.spec import MeanSpec
from sordino.methods.upload import Draw, PerClass, Tally, Upload
from sordino.parts.slot import Slot
from sordino.parts.tables import Found, Natural, Probability, reads, tag
from sordino.privacy.guarantee import SERVER, Adjacency, Claim, Guarantee, Pure, Release
from sordino.randomness import Keystream, Purpose, Randomness
from sordino.report.words import listed
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from sordino.learning.cohort import ClientData
    from sordino.recipe import Recipe

Float64s = NDArray[np.float64]
Bools = NDArray[np.bool_]

ORDER = "order"  #: what a client keeps: in which order it takes up its records, drawn in its first round
PORTIONS = 16  #: the number of that draw among those of local training
OMEGA = 1  #: the number of the server's draw among those for selection
ANNOUNCED = "announced epsilon"


# --- how reports count (section 4) ------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Selection:
    """Which classes of clients count in a round: all clients of a class have the same P_i and share their fate."""

    probabilities: Float64s  #: P_i of a client of every class
    fallback: str  #: "redraw" or "keep"

    @classmethod
    def of(cls, upload: Upload, fallback: str) -> Selection:
        """P_i = rho_i / sum rho over all clients (Eq. 14)."""
        rho = rhos(upload)
        return cls(rho / rho[upload.class_of].sum(), fallback)

    def chosen(self, omega: float) -> Bools:
        """The classes with P_i > omega; none of them, perhaps, where the model is kept then.

        Drawing again until somebody is chosen is drawing omega below the largest P_i.
        """
        return self.probabilities > (omega * self.probabilities.max() if self.fallback == "redraw" else omega)

    def in_round(self, seed: int, round: int) -> Bools:
        """The classes that count in a round: the server's draw, from its own stream of the seed."""
        words = Keystream.simulation(seed, [0], round).words(np.zeros(1, np.intp), Purpose.SELECT, OMEGA, 0, 2)
        return self.chosen(int(np.ascontiguousarray(words).view("<u8")[0, 0] >> np.uint64(11)) * 2.0**-53)


def announcement(name: str) -> Release:
    """That a client tells its epsilon: free as long as it does not depend on the data, which nobody can check."""
    basis = "the client chooses epsilon without looking at its records: an assumption, which nothing here enforces"
    nothing = Guarantee(SERVER, Adjacency.CLIENT, Pure(0.0), basis)
    free = Claim(0.0, 0.0, "epsilon is announced at no cost (personalised LDP-FL, section 4)", covers="schedule")
    return Release(f"{name}/{ANNOUNCED}", DATASET, ANNOUNCED, (nothing,), free)


# --- the method -------------------------------------------------------------------------------------------------------


class Personalized(Method):
    """Weights or signs of everybody in every round, put together by what each of them may tell."""

    class Spec(MeanSpec):
        """Personalised LDP-FL: each client has its epsilon; noisy weights or random signs are weighed by it."""

        in_pages: ClassVar[bool] = True
        name: str = tag("personalized", "clients with epsilons of their own, weighed or selected by them")
        sends: Literal["weights", "signs"] = Field(
            default="weights",
            description="weights (the paper's IID data), or their signs, of which the model is the majority",
        )
        start: Literal["zeros", "random"] = Field(
            default="zeros", description="where the model's parameters start: from zeros, or where model.start says"
        )
        portion: Natural = Field(
            default=0,
            description="records that a client takes up in a round, one portion after another (0: all of them)",
        )
        sampling: Probability = Field(default=1.0, description="probability q with which each of them is trained on")
        schedule: Literal["continues", "restarts"] = Field(
            default="continues",
            description="whether the learning rate's decay goes on from round to round or begins anew",
        )
        range: FixedUnsaid | None = Field(
            default=None, description="where weights are clipped to: radius is the paper's c"
        )
        mechanism: Annotated[MechanismSpec, Slot("mechanism", noise("gaussian", "votes"))] = Field(
            default=NoPrivacy.Spec(), description="gaussian for weights, sign for signs; or an ablation"
        )
        aggregation: Annotated[
            AggregationSpec, Slot("aggregation", offering("variances", "deviations", "reports")), AGGREGATION
        ] = Mean()
        selection: ClassVar[SelectAll] = SelectAll()

        @property
        def record_sampling(self) -> float | None:
            return self.sampling

        @property
        def page_records(self) -> Mapping[str, object]:
            return {"portion": self.portion, "sampling": self.sampling, "schedule": self.schedule}

        def page_obstacles(self) -> Found:
            if self.sends == "signs" and self.mechanism.noise != "votes":
                yield f'method.mechanism.name = "{self.mechanism.name}"', "pages send signs through the mechanism sign"

        @reads("method", "rounds.count")
        def reports_fit_each_other(self, recipe: Recipe) -> Found:
            """Signs are sent through votes, weights through noise that is added to them."""
            mechanism, signs = self.mechanism, self.sends == "signs"
            fits = mechanism.noise == "votes" or not mechanism.clips if signs else mechanism.noise != "votes"
            if not fits:
                fitting = ("sign", "none") if signs else ("gaussian", "clip-only", "none")
                found = f"got {self.sends} with the mechanism {mechanism.label}"
                yield ".sends", f"{found}; allowed: {listed(fitting, 'or')}"
            if isinstance(self.aggregation, InverseVariance) and mechanism.noise == "votes":
                yield (
                    "method.aggregation.kind",
                    "got inverse-variance with votes, which all have the same: take inverse-deviation, which is best "
                    "for votes",
                )

        @reads("method.name", ".start", "model")
        def the_start_is_given_in_one_way(self, recipe: Recipe) -> Found:
            """Refuse to put zeros in the place of weights that a model comes with."""
            if self.start == "zeros" and (recipe.model.is_own or recipe.model.start is not None):
                yield ".start", "got zeros, but your own class or model.start says where it starts; allowed: random"

        def build(self, blueprint: Blueprint) -> Personalized:
            if blueprint.statistics.released:
                raise InvalidInput(
                    'personalised LDP-FL has no place for batch-norm statistics: set model.buffers = "local", or take '
                    "a model without them, such as logistic-ovr"
                )
            what = "signs of model weights" if self.sends == "signs" else "model weights"
            upload = blueprint.upload(what, self.range)
            return Personalized(blueprint, upload)

    def __init__(self, blueprint: Blueprint, upload: Upload) -> None:
        given = blueprint.recipe.method
        super().__init__(blueprint, upload)
        sizes = [min(given.portion or size, size) for size in blueprint.sizes]
        steps = sum(self.training.total_steps(round_up(given.sampling * size)) for size in sizes if size)
        self.batch, _ = self.training.effort(sizes)
        self.records_per_round = float(steps * self.batch)
        if given.start == "zeros":
            self._initial = np.zeros_like(self._initial)
        self._votes = given.sends == "signs"
        self._votes_plainly = self._votes and not given.mechanism.clips

    # --- server

    @cached_property
    def _by_budget(self) -> Selection | None:
        """Which classes count in a round, where some do not."""
        by_budget = isinstance(self.spec.aggregation, SelectionByBudget)
        return Selection.of(self.first_upload, self.spec.aggregation.fallback) if by_budget else None

    def tally(self, plan: Plan) -> Tally:
        if self._by_budget is None:
            return super().tally(plan)
        chosen = self._by_budget.in_round(self._seed, plan.round)
        weights = [float(yes) for yes in chosen] if chosen.any() else None  # such a round is not lost
        return self.first_upload.tally(weights)

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        if self._by_budget is not None and not self._by_budget.in_round(self._seed, plan.round).any():
            return state.unchanged()
        mean = tally.mean()
        return state.after(np.sign(mean) if self._votes else mean)

    # --- client

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        found = super().releases(plan)
        if plan.round > 1 or self.first_upload.strengths[0] is None:
            return found
        announced = announcement(f"{plan.federation}/{plan.round}")
        return PerClass(len(found), lambda c: (*found[c], announced))

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        randomness = draw(cohort.clients)
        orders = [
            self._order(kept, size, randomness, k)
            for k, (kept, size) in enumerate(zip(cohort.states, cohort.sizes, strict=True))
        ]
        sampled = tuple(  # D'_i
            self._records(data, order, plan.round, randomness, k)
            for k, (data, order) in enumerate(zip(cohort.data, orders, strict=True))
        )
        w, first_steps = plan.arrays[PARAMETERS], self._first_steps(plan.round, cohort.sizes)
        trained = train_from(w, self, replace(cohort, data=sampled), draw, bench, first_steps)  # G_i (Eq. 3)
        g = np.sign(trained.vectors) if self._votes_plainly else trained.vectors
        reported = send(self.upload(plan), cohort, g, draw, trained)  # clipped, then noise (Eq. 4) or a sign (Eq. 7)
        if not self.spec.portion:
            return reported
        states = (
            {**kept, ORDER: order} if order.size else kept for kept, order in zip(reported.states, orders, strict=True)
        )
        return replace(reported, states=tuple(states))

    def _order(self, kept: ClientState, records: int, randomness: Randomness, row: int) -> NDArray[np.int32]:
        """In which order a client takes up its records: drawn once, and kept."""
        if not self.spec.portion or not records:
            return np.arange(records, dtype=np.int32)
        if ORDER in kept:
            return np.asarray(kept[ORDER], np.int32)
        words = randomness.words(np.array([row]), Purpose.ORDER, PORTIONS, 0, 2 * records)
        return np.argsort(np.ascontiguousarray(words).view("<u8")[0], kind="stable").astype(np.int32)

    def _records(
        self, data: ClientData | None, order: NDArray[np.int32], round: int, randomness: Randomness, row: int
    ) -> ClientData | None:
        """D'_i: this round's portion, each record with probability q; after the last portion the first one again."""
        from sordino.learning.cohort import ClientData

        if data is None:
            return None
        portion = min(self.spec.portion or len(data), len(data))
        mine = order[((round - 1) * portion + np.arange(portion)) % len(data)]
        if self.spec.sampling < 1:
            mine = mine[draws.poisson_samples(randomness, row, 0, portion, self.spec.sampling)]
        return ClientData(data.x[mine], data.y[mine]) if mine.size else None

    def _first_steps(self, round: int, sizes: Sequence[int]) -> list[int]:
        """Where the learning rate's decay begins: anew, or after as many steps as earlier rounds had on average."""
        if self.spec.schedule == "restarts" or not self.training.optimizer.decay:
            return [0] * len(sizes)
        expected = [round_up(self.spec.sampling * (self.spec.portion or size)) for size in sizes]
        return [(round - 1) * self.training.total_steps(records) for records in expected]


def round_up(value: float) -> int:
    """The value rounded up to a whole number, at least 1."""
    return max(1, int(np.ceil(value)))


__all__ = ["ANNOUNCED", "ORDER", "Personalized", "Selection", "announcement"]

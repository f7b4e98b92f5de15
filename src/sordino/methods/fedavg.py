"""Federated averaging (McMahan et al., "Communication-efficient learning of deep networks", AISTATS 2017), with any
mechanism on what clients send.

    each round t:   S_t <- the clients asked
        each client k in S_t:   w_k <- local training from w_t on its own records
                                x_k <- w_k - w_t  (upload "update")   or   w_k  (upload "weights")
                                send mechanism(clip(x_k))
        server:   x <- weighted mean of the estimates;   w_{t+1} <- w_t + server_lr * (x  or  x - w_t)

A client without records, or whose training stops being finite, reports "no change" through the same mechanism: nobody
can tell it from the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import numpy as np
from pydantic import Field

from sordino.mechanisms import NoPrivacy
from sordino.mechanisms.spec import AnyMechanism, Fixed
from sordino.methods.aggregation import AggregationSpec, AnyAggregation, Mean
from sordino.methods.blueprint import Blueprint, Built, plainly_built
from sordino.methods.interface import Bench, Cohort, Method, ModelView, Reported, State
from sordino.methods.robust import AgreementTally
from sordino.methods.round_steps import PARAMETERS, moved, send, train, vector_of
from sordino.methods.scopes import ScopeAll, ScopeSpec
from sordino.methods.selection import AnySelection, SelectAll, SelectionSpec
from sordino.methods.spec import AGGREGATION, CHANNEL, SELECTION, AnyChannel, MethodSpec, Norm, ServerLr, direct
from sordino.methods.upload import Draw, Tally, Upload
from sordino.parts.slot import Slot
from sordino.parts.tables import Found, reads, tag
from sordino.parts.toml import shown
from sordino.privacy.guarantee import Release
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from sordino.learning.cohort import LocalTraining
    from sordino.learning.private_sgd import PrivateTraining

DATASET = "records"  #: what a simulated client calls its data in the ledger
PAST = "past_directions"  #: what the server remembers of each client's reports, where agreement counts


def unseen_norm(method: Any) -> Found:
    """A norm has single reports to scale."""
    if method.norm is not None and method.channel.unseen:
        why = f"got {method.norm:g}, but {method.channel.unseen}, and can shorten none"
        yield ".norm", f"{why}: leave it out, or take method.channel.kind = direct with silo-dp or fedavg"


class FedAvg(Method):
    """One round of local training by everyone who is asked, one weighted mean."""

    class Spec(MethodSpec):
        """Federated averaging, with a mechanism on what leaves each client."""

        name: str = tag("fedavg", "federated averaging")
        upload: Literal["update", "weights"] = Field(
            default="update", description="what leaves a client: the change of the weights, or the weights"
        )
        server_lr: ServerLr = 1.0
        selection: AnySelection = Field(default=SelectAll(), description=SELECTION)
        scope: Annotated[ScopeSpec, Slot("scope", lambda spec: spec is ScopeAll)] = Field(
            default=ScopeAll(), description="which tensors take part in a round"
        )
        range: Fixed | None = Field(
            default=None, description="where values are clipped to; left out only without a mechanism"
        )
        mechanism: AnyMechanism = Field(
            default=NoPrivacy.Spec(), description="the randomiser; none unless one is named"
        )
        norm: Norm = None
        channel: AnyChannel = Field(default_factory=direct, description=CHANNEL)
        aggregation: AnyAggregation = Field(default=Mean(), description=AGGREGATION)

        @property
        def sends_updates(self) -> bool:
            return self.upload == "update"

        @reads("method")
        def a_norm_has_updates_to_scale(self, recipe: Any) -> Found:
            """A norm is of updates around zero that single reports tell."""
            yield from unseen_norm(self)
            if self.norm is None:
                return
            if self.upload != "update":
                yield (
                    ".norm",
                    f"got {self.norm:g} with upload = {self.upload}; shorter weights are another model: take upload = "
                    "update, or method.aggregation.kind = trimmed-mean",
                )
            if self.mechanism.noise in ("points", "votes"):
                yield (
                    ".norm",
                    f"got {self.norm:g} with the mechanism {self.mechanism.label}, whose two points bound a report: "
                    "leave it out",
                )
            elif self.range is not None and self.range.centre != 0:
                yield ".norm", f"got {self.norm:g} with range.centre = {shown(self.range.centre)}; allowed: 0"

        def build(self, blueprint: Blueprint) -> Built:
            return self.built(blueprint, FedAvg)

        def built(self, blueprint: Blueprint, kind: type[FedAvg]) -> Built:
            """Federated averaging, or a `kind` of it."""
            what = "model update" if self.upload == "update" else "model weights"
            upload = blueprint.upload(what, self.range, norm=self.norm)
            method = kind(blueprint, blueprint.local_training, upload, sends=self.upload)
            return plainly_built(blueprint, method, upload)

    def __init__(
        self,
        blueprint: Blueprint,
        training: LocalTraining | PrivateTraining,
        upload: Upload,
        *,
        sends: Literal["update", "weights"],
    ) -> None:
        given = blueprint.recipe.method
        self.spec = given  #: the method's table
        self.clients = blueprint.clients
        self.model, self.training, self.statistics = blueprint.model, training, blueprint.statistics
        self._initial = blueprint.initial
        self._upload, self._sends, self._server_lr = upload, sends, given.server_lr
        self._selection: SelectionSpec = given.selection
        self._aggregation: AggregationSpec = given.aggregation
        self._seed = blueprint.recipe.seed
        given.aggregation.check_room(given.selection.asked(blueprint.clients), blueprint.clients, blueprint.values)

    def upload(self, plan: Plan) -> Upload:
        """How values leave a client in this plan's round."""
        return self._upload

    # --- server

    def init(self) -> State:
        start = self.statistics
        arrays = {name: start.start[name].numpy().astype(np.float32) for name in start.released}
        if self._aggregation.remembers:
            arrays[PAST] = np.zeros((self.clients, self._upload.values), np.float32)
        return State(0, self._initial.astype(np.float32), arrays)

    def select(self, state: State) -> Sequence[int]:
        return self._selection.chosen(self.clients, self._seed, state.round + 1)

    def plan(self, state: State, federation: str) -> Plan:
        norm = self._upload.norm
        announced = {} if norm is None else {"norm": repr(norm)}  # a text: numbers are written differently elsewhere
        statistics = {name: state.arrays[name] for name in self.statistics.released}
        return Plan(federation, state.round + 1, announced, {PARAMETERS: state.parameters, **statistics})

    def tally(self, plan: Plan) -> Tally:
        return self._aggregation.tally(self.upload(plan))

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        if isinstance(tally, AgreementTally):
            x, past = tally.agreed(state.arrays[PAST])
            state = State(state.round, state.parameters, {**state.arrays, PAST: past})
        else:
            x = tally.mean()
        w = vector_of(state, self.statistics)
        step = self._aggregation.move(x, x if self._sends == "update" else x - w)
        return moved(state, self._server_lr * step, self.statistics)

    def view(self, state: State) -> ModelView:
        return ModelView(state.parameters, {name: state.arrays[name] for name in self.statistics.released} or None)

    # --- client

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        return self.upload(plan).releases(f"{plan.federation}/{plan.round}", DATASET)

    def class_of(self, client: int) -> int:
        return int(self._upload.class_of[client])

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        trained = train(self, plan, cohort, draw, bench)
        x = trained.update if self._sends == "update" else trained.vectors
        return send(self.upload(plan), cohort, x, draw, trained)


__all__ = ["DATASET", "FedAvg", "unseen_norm"]

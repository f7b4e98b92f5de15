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
from typing import Any, Literal

import numpy as np

from sordino.learning.cohort import LocalTraining
from sordino.learning.private_sgd import PrivateTraining
from sordino.methods.aggregation import AggregationSpec
from sordino.methods.interface import Bench, Cohort, Method, Reported, State, View
from sordino.methods.robust import AgreementTally
from sordino.methods.round_steps import PARAMETERS, moved, send, start_of, steps_before, train, vector_of
from sordino.methods.selection import SelectionSpec
from sordino.methods.setting import Built, Setting, plainly_built
from sordino.methods.upload import Draw, Tally, Upload
from sordino.privacy.guarantee import Release
from sordino.wire.messages import Plan

DATASET = "records"  #: what a simulated client calls its data in the ledger
PAST = "past_directions"  #: what the server remembers of each client's reports, where agreement counts


class FedAvg(Method):
    """One round of local training by everyone who is asked, one weighted mean."""

    def __init__(
        self,
        setting: Setting,
        training: LocalTraining | PrivateTraining,
        upload: Upload,
        *,
        sends: Literal["update", "weights"],
    ) -> None:
        given: Any = setting.recipe.method
        self.spec = given  #: the method's table
        self.clients = setting.clients
        self.model, self.training, self.statistics = setting.model, training, setting.statistics
        self._initial = setting.initial
        self._upload, self._sends, self._server_lr = upload, sends, given.server_lr
        self._selection: SelectionSpec = given.selection
        self._aggregation: AggregationSpec = given.aggregation
        self._seed = setting.recipe.seed
        given.aggregation.check_room(given.selection.asked(setting.clients), setting.clients, setting.values)

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
        w = vector_of(state.parameters, state.arrays, self.statistics)
        step = self._aggregation.move(x, x if self._sends == "update" else x - w)
        return moved(state, self._server_lr * step, self.statistics)

    def view(self, state: State) -> View:
        return View(state.parameters, {name: state.arrays[name] for name in self.statistics.released} or None)

    # --- client

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        return self.upload(plan).releases(f"{plan.federation}/{plan.round}", DATASET)

    def class_of(self, client: int) -> int:
        return int(self._upload.class_of[client])

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        w = start_of(plan.arrays, self.statistics)
        trained = train(self, w, cohort, draw, bench, steps_before(self.training, plan.round, cohort.data))
        x = trained.update if self._sends == "update" else trained.vectors
        return send(self.upload(plan), cohort, x, draw, trained)


def build(setting: Setting, kind: type[FedAvg] = FedAvg) -> Built:
    """Federated averaging, or a `kind` of it, as a recipe asks for it."""
    given: Any = setting.recipe.method
    what = "model update" if given.upload == "update" else "model weights"
    upload = Upload(
        given.mechanism.builder(given.range, setting.sent_layout.layers, setting.values),
        setting.recipe.epsilons(),
        setting.values,
        clients=setting.clients,
        what=f"{what} and batch-norm statistics" if setting.statistics.size else what,
        samples=given.aggregation.samples,
        norm=given.norm,
    )
    upload.check(setting.checked)
    training = setting.local_training
    method = kind(setting, training, upload, sends=given.upload)
    return plainly_built(setting, method, upload, training)


__all__ = ["DATASET", "FedAvg", "build"]

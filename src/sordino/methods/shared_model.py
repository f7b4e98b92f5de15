"""What methods have in common whose clients train one model of the server's: its first state, its plans, its view.

How clients report and how the server updates the model is written in each method's file, in the order of its paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from sordino.methods.interface import Method, ModelView, State
from sordino.methods.robust import PAST
from sordino.methods.round_steps import PARAMETERS
from sordino.methods.upload import Tally, Upload
from sordino.privacy.guarantee import Release
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from sordino.learning.cohort import LocalTraining
    from sordino.learning.private_sgd import PrivateTraining
    from sordino.methods.blueprint import Blueprint

DATASET = "records"  #: what a simulated client calls its data in the ledger


class SharedModel(Method):
    """A model, how clients train it, and how values leave them; `training` is the recipe's plain one unless given."""

    def __init__(
        self, blueprint: Blueprint, upload: Upload, training: LocalTraining | PrivateTraining | None = None
    ) -> None:
        self.spec = blueprint.recipe.method  #: the method's table
        self.clients, self.first_upload = blueprint.clients, upload
        self.model, self.statistics = blueprint.model, blueprint.statistics
        self.training = training or blueprint.local_training
        self.batch, self.records_per_round = self.training.effort(blueprint.sizes)
        self._initial, self._seed = blueprint.initial, blueprint.recipe.seed
        asked = self.spec.selection.asked(self.clients)
        self.spec.aggregation.check_room(asked, self.clients, blueprint.values)

    def init(self) -> State:
        start = self.statistics
        arrays = {name: start.start[name].numpy().astype(np.float32) for name in start.released}
        if self.spec.aggregation.remembers:
            arrays[PAST] = np.zeros((self.clients, self.first_upload.values), np.float32)
        return State(0, self._initial.astype(np.float32), arrays)

    def select(self, state: State) -> Sequence[int]:
        chosen: Sequence[int] = self.spec.selection.chosen(self.clients, self._seed, state.round + 1)
        return chosen

    def plan(self, state: State, federation: str) -> Plan:
        norm = self.first_upload.norm
        announced = {} if norm is None else {"norm": repr(norm)}  # a text: numbers are written differently elsewhere
        statistics = {name: state.arrays[name] for name in self.statistics.released}
        return Plan(federation, state.round + 1, announced, {PARAMETERS: state.parameters, **statistics})

    def upload(self, plan: Plan) -> Upload:
        """How values leave a client in this plan's round."""
        return self.first_upload

    def tally(self, plan: Plan) -> Tally:
        empty: Tally = self.spec.aggregation.tally(self.upload(plan))
        return empty

    def view(self, state: State) -> ModelView:
        return ModelView(state.parameters, {name: state.arrays[name] for name in self.statistics.released} or None)

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        return self.upload(plan).releases(f"{plan.federation}/{plan.round}", DATASET)

    def class_of(self, client: int) -> int:
        return int(self.first_upload.class_of[client])


__all__ = ["DATASET", "SharedModel"]

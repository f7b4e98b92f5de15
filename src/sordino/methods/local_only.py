"""Local learning: every client trains alone, from the common start, for as long as a federation would; nothing is sent.

    each round t:   each client k:   w_k <- local training from its own w_k on its own records

It is what a client gets without the others ("Local Learning" in LDP-Fed, Truex et al. 2020, section 4), and the least
that federated learning must beat. Its accuracy is the mean of the clients' own models' accuracies on the test set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from sordino.mechanisms import NoPrivacy
from sordino.mechanisms.spec import MechanismSpec
from sordino.methods.aggregation import Mean
from sordino.methods.blueprint import Blueprint
from sordino.methods.interface import (
    PARAMETERS,
    Bench,
    ClientState,
    Cohort,
    Method,
    ModelView,
    ReportContent,
    Reported,
    State,
)
from sordino.methods.round_steps import steps_before, train_from
from sordino.methods.selection import SelectAll
from sordino.methods.spec import MeanSpec
from sordino.methods.upload import Draw, Same, Tally, Upload
from sordino.parts.tables import Found, reads, tag
from sordino.privacy.guarantee import Release
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from sordino.recipe import Recipe


class Presence(Tally):
    """Counts the clients that have done their round; whoever sends anything is refused."""

    def add(self, clients: Sequence[int], bodies: Sequence[bytes]) -> dict[int, str]:
        loud = [client for client, body in zip(clients, bodies, strict=True) if body]
        refused = dict.fromkeys(loud, "clients that learn alone send nothing")
        self.reports += len(clients) - len(refused)
        return refused

    @property
    def weight(self) -> float:
        """Number of clients that finished their round."""
        return float(self.reports)

    def noise(self) -> float:
        """Zero: nothing is sent."""
        return 0.0


class LocalOnly(Method):
    """Clients that keep their models to themselves."""

    report_content: ClassVar[ReportContent] = "nothing"

    class Spec(MeanSpec):
        """Every client learns alone for as many rounds, and sends nothing: what federated learning must beat."""

        name: str = tag("local-only", "every client learns alone; nothing is sent")
        selection: ClassVar[SelectAll] = SelectAll()
        mechanism: ClassVar[MechanismSpec] = NoPrivacy.Spec()
        aggregation: ClassVar[Mean] = Mean()

        @reads("clients.epsilon", "method.name")
        def takes_no_epsilon(self, recipe: Recipe) -> Found:
            """Refuse an epsilon: nothing is sent that could be randomised."""
            yield from self.mechanism.epsilon_where_it_is_used(recipe)

        def build(self, blueprint: Blueprint) -> LocalOnly:
            upload = Upload(Same(NoPrivacy()), None, blueprint.values, clients=blueprint.clients, what="nothing")
            return LocalOnly(alone(blueprint), upload)

    def plan(self, state: State, federation: str) -> Plan:
        """A number, and nothing to start from: the common start follows from the recipe's seed."""
        return Plan(federation, state.round + 1)

    def tally(self, plan: Plan) -> Tally:
        return Presence(self.first_upload, np.ones(1))

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        return state.unchanged()

    def views(self, state: State, kept: Mapping[int, ClientState]) -> Sequence[ModelView]:
        """Every client's own model, with its own running statistics."""
        own = [self.own_view(one) for one in kept.values() if PARAMETERS in one]
        return own or super().views(state, kept)

    def own_view(self, kept: ClientState) -> ModelView:
        """The model that a client keeps."""
        statistics = {n: np.asarray(kept[n], np.float32) for n in self.statistics.start if n in kept}
        return ModelView(np.asarray(kept[PARAMETERS], np.float32), statistics or None)

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        return ((),)

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        own = [np.asarray(kept.get(PARAMETERS, self._initial), np.float32) for kept in cohort.states]
        first_steps = steps_before(self.training, plan.round, cohort.data)
        trained = train_from(np.stack(own), self, cohort, draw, bench, first_steps)  # w_k
        states = (
            kept if data is None else {**kept, PARAMETERS: w.copy()}
            for data, kept, w in zip(cohort.data, trained.states, trained.vectors, strict=True)
        )
        nothing = [b""] * len(cohort.clients)
        return Reported(nothing, tuple(states), trained.local(np.zeros(len(nothing)), trained.update))


def alone(blueprint: Blueprint) -> Blueprint:
    """The blueprint of clients that keep their running statistics too."""
    return replace(blueprint, statistics=replace(blueprint.statistics, released=()))


__all__ = ["LocalOnly", "alone"]

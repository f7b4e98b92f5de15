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

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from sordino.mechanisms import NoPrivacy
from sordino.mechanisms.spec import AnyMechanism, Fixed
from sordino.methods.aggregation import AnyAggregation, Mean
from sordino.methods.blueprint import Blueprint
from sordino.methods.interface import Bench, Cohort, Method, Reported, State
from sordino.methods.robust import aggregate
from sordino.methods.round_steps import moved, send, train, vector_of
from sordino.methods.scopes import ScopeAll, ScopeSpec
from sordino.methods.selection import AnySelection, SelectAll
from sordino.methods.spec import AnyChannel, MethodSpec, Norm, ServerLr, direct
from sordino.methods.upload import Draw, Tally, Upload
from sordino.parts.slot import Slot
from sordino.parts.tables import Found, reads, tag
from sordino.parts.toml import shown
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from sordino.recipe import Recipe


def unseen_norm(method: MethodSpec) -> Found:
    """Refuse a norm where the server sees no single reports that it could scale."""
    if method.norm is not None and method.channel.unseen:
        why = f"got {method.norm:g}, but {method.channel.unseen}, and can shorten none"
        yield ".norm", f"{why}: leave it out, or take method.channel.kind = direct with silo-dp or fedavg"


class FedAvg(Method):
    """One round of local training by everyone who is asked, one weighted mean."""

    class Spec(MethodSpec):
        """Federated averaging, with a mechanism on what leaves each client."""

        in_pages: ClassVar[bool] = True
        name: str = tag("fedavg", "federated averaging")
        upload: Literal["update", "weights"] = Field(
            default="update", description="what leaves a client: the change of the weights, or the weights"
        )
        server_lr: ServerLr = 1.0
        selection: AnySelection = SelectAll()
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
        channel: AnyChannel = Field(default_factory=direct)
        aggregation: AnyAggregation = Mean()

        @property
        def sends_updates(self) -> bool:
            return self.upload == "update"

        @reads("method")
        def a_norm_has_updates_to_scale(self, recipe: Recipe) -> Found:
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

        def build(self, blueprint: Blueprint) -> FedAvg:
            return FedAvg(blueprint, self.first_upload(blueprint))

        def first_upload(self, blueprint: Blueprint) -> Upload:
            """How values leave a client."""
            return blueprint.upload(f"model {self.upload}", self.range, norm=self.norm)

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        trained = train(self, plan, cohort, draw, bench)
        x = trained.update if self.spec.upload == "update" else trained.vectors
        return send(self.upload(plan), cohort, x, draw, trained)

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        x, state = aggregate(tally, state)
        step = x if self.spec.upload == "update" else x - vector_of(state, self.statistics)
        return moved(state, self.spec.server_lr * self.spec.aggregation.move(x, step), self.statistics)


__all__ = ["FedAvg", "unseen_norm"]

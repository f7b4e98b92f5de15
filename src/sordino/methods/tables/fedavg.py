"""The table of federated averaging."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from sordino.mechanisms import NoPrivacy
from sordino.mechanisms.spec import AnyMechanism, Fixed
from sordino.methods.aggregation import AnyAggregation, Mean
from sordino.methods.selection import AnySelection, SelectAll
from sordino.methods.tables.scopes import ScopeAll
from sordino.methods.tables.spec import (
    AGGREGATION,
    CHANNEL,
    SELECTION,
    AnyChannel,
    MethodSpec,
    Norm,
    ServerLr,
    direct,
)
from sordino.parts.slot import Slot
from sordino.parts.tables import Found, Spec, reads, tag
from sordino.parts.toml import shown


def unseen_norm(method: Any) -> Found:
    """A norm has single reports to scale."""
    if method.norm is not None and method.channel.unseen:
        why = f"got {method.norm:g}, but {method.channel.unseen}, and can shorten none"
        yield ".norm", f"{why}: leave it out, or take method.channel.kind = direct with silo-dp or fedavg"


class FedAvg(MethodSpec):
    """Federated averaging, with a mechanism on what leaves each client."""

    code: ClassVar[str] = "sordino.methods.fedavg"
    name: str = tag("fedavg", "federated averaging")
    upload: Literal["update", "weights"] = Field(
        default="update", description="what leaves a client: the change of the weights, or the weights"
    )
    server_lr: ServerLr = 1.0
    selection: AnySelection = Field(default=SelectAll(), description=SELECTION)
    scope: Annotated[Spec, Slot("scope", lambda spec: spec is ScopeAll)] = Field(
        default=ScopeAll(), description="which tensors take part in a round"
    )
    range: Fixed | None = Field(
        default=None, description="where values are clipped to; left out only without a mechanism"
    )
    mechanism: AnyMechanism = Field(default=NoPrivacy.Spec(), description="the randomiser; none unless one is named")
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
                f"got {self.norm:g} with the mechanism {self.mechanism.label}, whose two points bound a report: leave "
                "it out",
            )
        elif self.range is not None and self.range.centre != 0:
            yield ".norm", f"got {self.norm:g} with range.centre = {shown(self.range.centre)}; allowed: 0"


__all__ = ["FedAvg", "unseen_norm"]

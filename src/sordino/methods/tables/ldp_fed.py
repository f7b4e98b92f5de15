"""The table of LDP-Fed."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from sordino.mechanisms import Exponential
from sordino.mechanisms.spec import FixedUnsaid, MechanismSpec, noise
from sordino.methods.aggregation import Mean, PartAggregation
from sordino.methods.selection import AnySelection, SelectAll
from sordino.methods.tables.scopes import ScopeProportional, ScopeSpec
from sordino.methods.tables.spec import AGGREGATION, CHANNEL, SELECTION, AnyChannel, MethodSpec, ServerLr, direct
from sordino.parts.slot import Slot
from sordino.parts.tables import Found, reads, tag
from sordino.parts.toml import shown


class LdpFed(MethodSpec):
    """LDP-Fed: the scheduled layer's updates through the exponential mechanism; clients.epsilon is alpha in total."""

    code: ClassVar[str] = "sordino.methods.ldp_fed"
    name: str = tag("ldp-fed", "LDP-Fed; clients.epsilon is alpha, for all rounds")
    server_lr: ServerLr = 1.0
    selection: AnySelection = Field(default=SelectAll(), description=SELECTION)
    scope: Annotated[ScopeSpec, Slot("scope")] = Field(
        default=ScopeProportional(), description="which layers are sent in a round, and which part of alpha it spends"
    )
    range: FixedUnsaid | None = Field(default=None, description="where values are clipped to: radius is the paper's c")
    mechanism: Annotated[MechanismSpec, Slot("mechanism", noise("coded"))] = Field(
        default=Exponential.Spec(), description="exponential (precision is the paper's rho), or an ablation of it"
    )
    sampling: Literal["ignored", "claimed"] = Field(
        default="ignored",
        description="ignored: the rounds' alpha_i add up to alpha; claimed: they are 1/q larger where a fraction q of "
        "the clients is selected, for which there is no proof",
    )
    channel: AnyChannel = Field(default_factory=direct, description=CHANNEL)
    aggregation: PartAggregation = Field(default=Mean(), description=AGGREGATION)

    @property
    def sends_updates(self) -> bool:
        return True

    @reads("method", "rounds.count")
    def all_layers_are_coded_alike(self, recipe: Any) -> Found:
        """One range codes all layers."""
        if self.range is not None and isinstance(self.range.radius, dict) and not self.mechanism.one_radius:
            found = f"got {shown(self.range.radius)}; ldp-fed codes all layers alike"
            yield "method.range.radius", f"{found}: give one number"


__all__ = ["LdpFed"]

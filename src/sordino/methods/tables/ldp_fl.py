"""The table of LDP-FL, and of the range that follows its noisy means."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from sordino.mechanisms import TwoPoint
from sordino.mechanisms.spec import Centre, MechanismSpec, Radius, RangeSpec, noise
from sordino.methods.aggregation import Mean, PartAggregation
from sordino.methods.selection import AnySelection, SelectAll
from sordino.methods.tables.spec import AGGREGATION, CHANNEL, SELECTION, BitChannel, MethodSpec, ServerLr, direct
from sordino.parts.slot import Slot
from sordino.parts.tables import Found, Positive, Probability, reads, tag


class AdaptiveRange(RangeSpec):
    """A range by layer that the server takes from its own noisy mean after each round (LDP-FL): nothing new is lost."""

    adapts: ClassVar[bool] = True
    kind: str = tag("adaptive", "by layer, from the last noisy mean")
    radius: Radius | None = Field(
        default=None,
        description="in the first round: one number, or a table by layer; spans the initial weights if left out",
    )
    centre: Centre = Field(default=0.0, description="in the first round, with radius: one number, or a table by layer")
    slack: Positive = Field(default=1.0, description="every radius taken from a mean is multiplied by it")
    quantile: Probability = Field(
        default=1.0, description="share of a layer's values that its range spans (1: from the smallest to the largest)"
    )

    @reads("method.name", ".", "method.mechanism")
    def can_be_had(self, recipe: Any) -> Found:
        """The first round's range is given whole or not at all, and the mechanism has a range by layer."""
        mechanism = recipe.method.mechanism
        if self.radius is None and self.centre != 0:
            yield ".centre", "got one without a radius, and both are of the first round: give both or none"
        if mechanism.around_zero:
            yield ".kind", f"got adaptive with {mechanism.form}; allowed: fixed"


class LdpFl(MethodSpec):
    """LDP-FL: weights as single bits, ranges by layer, single parameters shuffled."""

    code: ClassVar[str] = "sordino.methods.ldp_fl"
    name: str = tag("ldp-fl", "weights as bits, ranges by layer, shuffled")
    server_lr: ServerLr = 1.0
    selection: AnySelection = Field(default=SelectAll(), description=SELECTION)
    range: Annotated[RangeSpec, Slot("range")] | None = Field(
        default=None, description="where weights are clipped to; left out only without a mechanism"
    )
    mechanism: Annotated[MechanismSpec, Slot("mechanism", noise("points"))] = Field(
        default=TwoPoint.Spec(), description="the paper's randomiser, or for comparison one of those without noise"
    )
    channel: BitChannel = Field(default_factory=direct, description=CHANNEL)
    aggregation: PartAggregation = Field(default=Mean(), description=AGGREGATION)


__all__ = ["AdaptiveRange", "LdpFl"]

"""The table of WebFed."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from pydantic import Field

from sordino.mechanisms import Laplace
from sordino.mechanisms.spec import FixedUnsaid, MechanismSpec, noise
from sordino.methods.aggregation import AggregationSpec, Mean, offering
from sordino.methods.selection import AnySelection, SelectAll
from sordino.methods.tables.spec import AGGREGATION, SELECTION, MethodSpec, direct
from sordino.parts.slot import Slot
from sordino.parts.tables import tag


class WebFed(MethodSpec):
    """WebFed: clients are web pages, which add Laplace noise to their weights."""

    code: ClassVar[str] = "sordino.methods.webfed"
    name: str = tag("webfed", "weights with Laplace noise, as web pages send them")
    selection: AnySelection = Field(default=SelectAll(), description=SELECTION)
    range: FixedUnsaid | None = Field(
        default=None, description="where weights are clipped to; left out only without a mechanism"
    )
    mechanism: Annotated[MechanismSpec, Slot("mechanism", noise("laplace"))] = Field(
        default=Laplace.Spec(), description="laplace in one of its three readings, or one without noise"
    )
    aggregation: Annotated[AggregationSpec, Slot("aggregation", offering("samples", "noisy samples", "reports"))] = (
        Field(default=Mean(), description=AGGREGATION)
    )
    server_lr: ClassVar[float] = 1.0

    @property
    def channel(self) -> Any:
        return direct()


__all__ = ["WebFed"]

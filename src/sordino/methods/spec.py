"""What the tables of all methods share: each stands in its method's file, beside the code."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from annotated_types import Ge, Gt, Le
from pydantic import Field

from sordino.methods.aggregation import offering
from sordino.parts import registry
from sordino.parts.slot import Slot
from sordino.parts.tables import Inside, Positive, RecipeTable, Says, Spec

if TYPE_CHECKING:
    from sordino.methods.blueprint import Blueprint, Built


class MethodSpec(Spec):
    """The algorithm of a recipe. Beside its keys it has `selection`, `channel`, `aggregation` and `server_lr`.

    Those of them that a method does not leave to the recipe are fixed by its table.
    """

    draws_batches: ClassVar[bool] = False  #: whether it draws batches of its own and takes the optimizer alone
    simulation_only: ClassVar[str] = ""  #: why real clients cannot take part; empty where they can

    @abstractmethod
    def build(self, blueprint: Blueprint) -> Built:
        """The method, ready to run."""

    def record_shape(self, recipe: Any, shape: tuple[int, ...], classes: int) -> tuple[int, ...]:
        """The shape in which the model sees a record."""
        return shape

    @property
    def record_sampling(self) -> float | None:
        """The probability with which a record is trained on in a round; None where all are."""
        return None

    @property
    def sends_updates(self) -> bool:
        """Whether reports are changes of the model, and not the model."""
        return False


direct: Callable[[], Any] = partial(registry.make, "channel", "direct")

#: channels of methods that send updates or weights as numbers
AnyChannel = Annotated[Spec, Slot("channel", offering("sums", "lots"))]
BitChannel = Annotated[Spec, Slot("channel", offering("sums", "bits"))]
DirectAlone = Annotated[Spec, Slot("channel", offering())]

CHANNEL, SELECTION, AGGREGATION = "how reports travel", "who is asked in a round", "how reports are put together"

ServerLr = Annotated[Positive, Field(description="the step along the aggregated update")]
ClipNorm = Annotated[float, Ge(1e-30), Le(1e30), Says("a number from 1e-30 to 1e30")]
Clamp = Annotated[
    Annotated[float, Gt(0), Le(2**14)] | None,
    Field(
        description="the server reads values beyond +-clamp as +-clamp, so that one client can move the model no "
        "further; left out, it refuses values beyond 2^14"
    ),
]
Norm = Annotated[
    Annotated[float, Gt(0), Le(2**24)] | None,
    Field(
        description="L2 norm to which the server scales longer reports down, so that no client moves the model "
        "further; every plan announces it; for updates in single reports only"
    ),
]


class Target(RecipeTable):
    """What a run shall be proven to protect, in all its rounds together."""

    inline: ClassVar[bool] = True

    epsilon: Positive = Field(
        description="in all rounds together: silo-dp, for one record more or less, against the server; hybrid-one, the "
        "same against the secure sum; central-dp, for one client exchanged, against readers of the model"
    )
    delta: Inside = Field(description="at this delta")


__all__ = [
    "AGGREGATION", "CHANNEL", "SELECTION", "AnyChannel", "BitChannel", "Clamp", "ClipNorm", "DirectAlone", "MethodSpec",
    "Norm", "ServerLr", "Target", "direct",
]  # fmt: skip

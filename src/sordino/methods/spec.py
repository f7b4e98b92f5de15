"""What the tables of all methods share: each stands in its method's file, beside the code."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar

from annotated_types import Ge, Gt, Le
from pydantic import Field

from sordino.learning.tasks import ALL_TASKS
from sordino.methods.aggregation import offering
from sordino.parts import registry
from sordino.parts.slot import Slot
from sordino.parts.tables import Found, Inside, Positive, Says, Spec, TomlTable

if TYPE_CHECKING:
    from sordino.methods.blueprint import Blueprint
    from sordino.methods.interface import Method
    from sordino.recipe import Recipe


class MethodSpec(Spec):
    """The algorithm of a recipe. Beside its keys it has `selection`, `channel`, `aggregation` and `server_lr`.

    Those of them that a method does not leave to the recipe are fixed by its table.
    """

    draws_batches: ClassVar[bool] = False  #: whether it draws batches of its own and takes the optimizer alone
    takes_training: ClassVar[bool] = True  #: whether the recipe says how clients train
    simulation_only: ClassVar[str] = ""  #: why real clients cannot take part; empty where they can
    in_pages: ClassVar[bool] = False  #: whether web pages can take part
    tasks: ClassVar[frozenset[str]] = ALL_TASKS  #: what it can learn
    takes_loss: ClassVar[bool] = True  #: whether it trains by any loss that the recipe names

    @abstractmethod
    def build(self, blueprint: Blueprint) -> Method:
        """Build the method, ready to run."""

    def record_shape(self, recipe: Recipe, shape: tuple[int, ...], classes: int) -> tuple[int, ...]:
        """The shape in which the model sees a record."""
        return shape

    @property
    def record_sampling(self) -> float | None:
        """The probability with which a record is trained on in a round; None where all are."""
        return None

    def page_obstacles(self) -> Found:
        """Keys of this table that keep web pages from taking part, and why."""
        return iter(())

    @property
    def page_records(self) -> Mapping[str, object] | None:
        """Which of its records a web page trains on in a round; None where it is all of them."""
        return None

    @property
    def sends_updates(self) -> bool:
        """Whether reports are changes of the model, and not the model."""
        return False


class MeanSpec(MethodSpec):
    """A method whose reports travel directly, and whose new model is their mean."""

    server_lr: ClassVar[float] = 1.0

    @property
    def channel(self) -> Spec:
        """The direct channel."""
        return direct()


direct: Callable[[], Spec] = partial(registry.make, "channel", "direct")

CHANNEL = Field(description="how reports travel")
#: channels of methods that send updates or weights as numbers
AnyChannel = Annotated[Spec, Slot("channel", offering("sums", "lots")), CHANNEL]
BitChannel = Annotated[Spec, Slot("channel", offering("sums", "bits")), CHANNEL]
DirectAlone = Annotated[Spec, Slot("channel", offering()), CHANNEL]

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


class Target(TomlTable):
    """What a run shall be proven to protect, in all its rounds together."""

    inline: ClassVar[bool] = True

    epsilon: Positive = Field(
        description="in all rounds together: silo-dp, for one record more or less, against the server; hybrid-one, the "
        "same against the secure sum; central-dp, for one client exchanged, against readers of the model"
    )
    delta: Inside = Field(description="at this delta")


__all__ = [
    "AnyChannel", "BitChannel", "Clamp", "ClipNorm", "DirectAlone", "MeanSpec", "MethodSpec", "Norm", "ServerLr",
    "Target", "direct",
]  # fmt: skip

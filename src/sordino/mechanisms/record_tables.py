"""The tables of what randomises whole records, once (LDPFL): their bits one by one, or features and label together."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from annotated_types import Gt, Le
from pydantic import Field

from sordino.mechanisms.bits import BitRandomizer
from sordino.mechanisms.domain import BitString
from sordino.mechanisms.spec import RandomizerSpec
from sordino.parts.tables import Found, reads, tag

Alpha = Annotated[float, Gt(1), Le(1000), Field(description="the paper's privacy budget coefficient")]


class RecordMechanismSpec(RandomizerSpec):
    """What all randomisers of records share."""

    joint: ClassVar[bool] = False  #: whether features and label are randomised as one vector

    def randomizer(self, epsilon: float | None, domain: BitString) -> BitRandomizer | None:
        """What randomises a record's bits; None for nothing."""
        raise NotImplementedError(f"{self.label} randomises no single bits")


class PlainRecords(RecordMechanismSpec):
    """The records as they are: no noise, no protection."""

    noise: ClassVar[str] = ""
    name: str = tag("none", "values leave as they are: no protection")
    takes_epsilon: ClassVar[bool] = False

    def randomizer(self, epsilon: float | None, domain: BitString) -> None:
        return None


class Theorem2(RecordMechanismSpec):
    """The randomiser of LDPFL: bits at even positions are mostly kept, those at odd ones scrambled."""

    name: str = tag("theorem-2", "LDPFL's: epsilon is claimed per record; proven is tens of thousands")
    alpha: Alpha = 10.0

    def randomizer(self, epsilon: float | None, domain: BitString) -> BitRandomizer:
        return BitRandomizer.theorem2(self.needed(epsilon), domain, a=self.alpha)


class Theorem1(RecordMechanismSpec):
    """The first randomiser of LDPFL: nearly the claimed epsilon, and nearly no signal."""

    name: str = tag("theorem-1", "LDPFL's first: nearly no signal is left")
    alpha: Alpha = 10.0

    def randomizer(self, epsilon: float | None, domain: BitString) -> BitRandomizer:
        return BitRandomizer.theorem1(self.needed(epsilon), domain, a=self.alpha)


class Rappor(RecordMechanismSpec):
    """Randomised response on every bit (RAPPOR, Eq. 11 of LDPFL)."""

    name: str = tag("rappor", "randomised response on each bit, epsilon per record")

    def randomizer(self, epsilon: float | None, domain: BitString) -> BitRandomizer:
        return BitRandomizer.rappor(self.needed(epsilon), domain)


class Optimised(RecordMechanismSpec):
    """Optimised unary encoding, on strings that may differ in any bits."""

    name: str = tag("optimised", "ones kept with 1/2, at epsilon per record")

    def randomizer(self, epsilon: float | None, domain: BitString) -> BitRandomizer:
        return BitRandomizer.optimised(self.needed(epsilon), domain)


class RecordPrivUnit(RecordMechanismSpec):
    """PrivUnitG of a record's features and label together: epsilon is per record; claimed, for simulations."""

    joint: ClassVar[bool] = True
    name: str = tag(
        "record-privunit", "features and label as one direction: epsilon per record, claimed: for simulations"
    )

    @reads("method.name", ".", "model.name", "training.augmentation")
    def learnt_by_one_dense_layer(self, recipe: Any) -> Found:
        """The directions of records are what a single dense layer learns from."""
        if recipe.model.name != "logistic":
            yield "model.name", f"got {recipe.model.name}; {self.label} is learnt by one dense layer: take logistic"

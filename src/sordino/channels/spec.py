"""The tables of channels: what all of them share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from sordino.parts.tables import Found, Spec, reads

if TYPE_CHECKING:
    from sordino.channels.secagg import Identity
    from sordino.channels.summed import Members
    from sordino.methods.interface import Method
    from sordino.recipe import Recipe


class ChannelSpec(Spec):
    """How reports travel from clients to the server."""

    uses: ClassVar[frozenset[str]] = frozenset()  #: what a method must offer: bits, sums, lots
    unseen: ClassVar[str] = ""  #: why the server sees no single report; empty where it does
    simulated: ClassVar[bool] = False  #: whether it stands for somebody trusted, whom only a simulation can play

    @abstractmethod
    def build(self, recipe: Recipe, method: Method) -> Any:
        """The coordinator's side; what can never be collected is refused."""

    def members(self, recipe: Recipe, method: Method, identities: Mapping[int, Identity] | None) -> Members | None:
        """The clients' side, where it has one beyond sending a report."""
        return None

    def handed_on(self, asked: int) -> int:
        """How many reports the server gets, at most, where so many clients are asked."""
        return asked


class MixedSpec(ChannelSpec):
    """Reports of bits that somebody mixes before the server gets them."""

    uses: ClassVar[frozenset[str]] = frozenset({"bits"})
    unseen: ClassVar[str] = "behind a shuffler the server sees no whole report"

    @reads("method", "split")
    def only_bits_are_shuffled(self, recipe: Any) -> Found:
        """What is mixed are bits without a number beside them, of as many clients as are asked."""
        method, kind, at_least = recipe.method, getattr(self, "kind", ""), getattr(self, "at_least", 0)
        asked = method.selection.asked(recipe.number_of_clients)
        if method.mechanism.noise != "points":
            found = f"got {kind} with the mechanism {method.mechanism.label}"
            yield ".kind", f"{found}; allowed only with two-point, whose reports are bits: take direct"
        if method.aggregation.samples:
            found = f"got {method.aggregation.kind}; a shuffled report has no number beside it"
            yield "method.aggregation.kind", f"{found}: take mean"
        if at_least > asked:
            yield ".at_least", f"got {at_least}; allowed: at most {asked}, the clients asked"


__all__ = ["ChannelSpec", "MixedSpec"]

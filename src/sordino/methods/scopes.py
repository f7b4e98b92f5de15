"""Which tensors take part in a round. All of them, here; LDP-Fed has scopes by layer."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from sordino.parts.tables import Spec, tag

if TYPE_CHECKING:
    from sordino.learning.models import LayerSlice


@dataclass(frozen=True)
class Turn:
    """One round: the values that are sent, by a name and their columns, and the part of alpha that it may spend."""

    what: str
    start: int
    stop: int
    share: Fraction  #: alpha_i / alpha

    @property
    def size(self) -> int:
        """|theta_i|, the number of values sent."""
        return self.stop - self.start

    @property
    def columns(self) -> slice:
        """The columns of theta_i in theta."""
        return slice(self.start, self.stop)

    @classmethod
    def of(cls, layer: LayerSlice, share: Fraction) -> Turn:
        """The round in which a layer is sent."""
        return cls(layer.name, layer.start, layer.stop, share)


Schedule = tuple[Turn, ...]


class ScopeSpec(Spec):
    """Which layers are sent in each round, and which part of the budget it spends."""

    @abstractmethod
    def schedule(self, layers: Sequence[LayerSlice], rounds: int) -> Schedule:
        """What is sent in each of so many rounds."""


class ScopeAll(ScopeSpec):
    """All tensors of the model in every round (CLDP-Basic)."""

    kind: str = tag("all", "all tensors of the model")

    def schedule(self, layers: Sequence[LayerSlice], rounds: int) -> Schedule:
        return (Turn("all layers", layers[0].start, layers[-1].stop, Fraction(1, rounds)),) * rounds


__all__ = ["Schedule", "ScopeAll", "ScopeSpec", "Turn"]

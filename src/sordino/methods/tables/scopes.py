"""Which tensors take part in a round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field

from sordino.parts.tables import Count, Found, Spec, reads, tag

if TYPE_CHECKING:
    from sordino.methods.ldp_fed import Schedule


class ScopeSpec(Spec):
    """Which layers are sent in each round, and which part of the budget it spends."""

    def schedule(self, layers: Any, rounds: int) -> Schedule:
        """What is sent in each of so many rounds."""
        raise NotImplementedError


class ScopeAll(ScopeSpec):
    """All tensors of the model."""

    kind: str = tag("all", "all tensors of the model")

    def schedule(self, layers: Any, rounds: int) -> Schedule:
        from sordino.methods.ldp_fed import basic

        return basic(layers, rounds)


class ScopeLayers(ScopeSpec):
    """One layer a round, from the output layer backwards, each for as many rounds (CLDP-Single-Layer)."""

    kind: str = tag("layers", "one layer a round, from the last backwards, each for as many rounds")

    def schedule(self, layers: Any, rounds: int) -> Schedule:
        from sordino.methods.ldp_fed import single_layer

        return single_layer(layers, rounds)


class ScopeProportional(ScopeSpec):
    """One layer a round, from the output layer backwards, rounds and budget by size (alpha-CLDP-Fed)."""

    kind: str = tag(
        "proportional", "one layer a round, from the last backwards, rounds and budget in proportion to its size"
    )
    cycles: Count = Field(default=1, description="how often all layers are gone through; rounds.count is a multiple")

    def schedule(self, layers: Any, rounds: int) -> Schedule:
        from sordino.methods.ldp_fed import proportional

        return proportional(layers, rounds, self.cycles)

    @reads("method", "rounds.count")
    def cycles_are_equally_long(self, recipe: Any) -> Found:
        """The rounds make whole cycles."""
        count = recipe.rounds.count
        if count % self.cycles:
            yield (
                ".cycles",
                f"got {self.cycles}; allowed: a divisor of rounds.count = {count}, so that all cycles are alike",
            )


__all__ = ["ScopeAll", "ScopeLayers", "ScopeProportional", "ScopeSpec"]

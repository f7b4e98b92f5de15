"""The table of Hybrid-One."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from sordino.methods.aggregation import Mean, MeanAlone
from sordino.methods.tables.silo_dp import SiloDp
from sordino.methods.tables.spec import AGGREGATION
from sordino.parts.tables import Count, Found, Says, reads, tag


class HybridOne(SiloDp):
    """Hybrid-One: silos that train by DP-SGD under a secure sum, each adding the part of the noise that it needs."""

    code: ClassVar[str] = "sordino.methods.hybrid_one"
    name: str = tag("hybrid-one", "record-level DP-SGD in every silo, the noise shared under a secure sum")
    steps: Annotated[Literal[1], Says("1: what is summed is one noisy gradient")] = Field(
        default=1, description="noisy gradients per round: their sum is all that leaves, and the server takes the step"
    )
    colluding: Count = Field(
        default=1,
        description="how many silos of a sum may side with the server: the others, of the fewest that a sum has in it, "
        "add all of the noise",
    )
    aggregation: MeanAlone = Field(default=Mean(), description=AGGREGATION)

    @reads("method", "split")
    def honest_silos_are_in_every_secure_sum(self, recipe: Any) -> Found:
        """Nobody sees less than a sum, and every sum has honest silos in it."""
        channel, asked = self.channel, self.selection.asked(recipe.number_of_clients)
        if not hasattr(channel, "least"):
            yield (
                "method.channel.kind",
                f"got {channel.kind}; each silo of hybrid-one adds a part of the noise only, which hides little unless "
                "sums alone are seen: take summed, or the method silo-dp",
            )
        elif not self.selection.steady:
            yield (
                "method.selection.kind",
                f"got {self.selection.kind}; how many silos share the noise must be known: take all, count or fraction",
            )
        elif self.colluding > (most := 2 * channel.least(asked) - asked - 1):
            yield (
                ".colluding",
                f"got {self.colluding}; allowed: at most {most} where {channel.least(asked)} of {asked} silos are in "
                "every sum: raise method.channel.threshold, or ask more silos",
            )


__all__ = ["HybridOne"]

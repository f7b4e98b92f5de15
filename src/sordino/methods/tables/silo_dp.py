"""The table of private silos."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le
from pydantic import Field

from sordino.methods.aggregation import AnyAggregation, Mean
from sordino.methods.selection import AnySelection, SelectAll
from sordino.methods.tables.fedavg import unseen_norm
from sordino.methods.tables.spec import (
    AGGREGATION,
    CHANNEL,
    SELECTION,
    AnyChannel,
    Clamp,
    ClipNorm,
    MethodSpec,
    Norm,
    ServerLr,
    Target,
    direct,
)
from sordino.parts.tables import Count, Found, Natural, Positive, Says, reads, tag
from sordino.parts.toml import shown


class NoiseSpec(MethodSpec):
    """A method whose strength is the noise of its sums, and not `clients.epsilon`."""

    @reads("clients.epsilon", "method.name", "method.mechanism")
    def takes_no_epsilon(self, recipe: Any) -> Found:
        """The strength is the method's own."""
        if recipe.clients.epsilon is not None:
            own = "its strength is method.target or method.noise_multiplier"
            yield "clients.epsilon", f"{self.name} takes none, {own}: leave it out"

    @reads("method")
    def noise_is_given_in_one_way(self, recipe: Any) -> Found:
        """The noise is given, or what it is for."""
        given = [name for name in ("noise_multiplier", "target") if getattr(self, name) is not None]
        if len(given) != 1:
            found = "neither" if not given else "both"
            yield (
                ".target",
                f"{found} given of target = {{ epsilon = ..., delta = ... }} and noise_multiplier; allowed: exactly "
                "one",
            )


class SiloDp(NoiseSpec):
    """Silos that train by DP-SGD: each record is protected, for the whole run, from whoever sees the updates."""

    draws_batches: ClassVar[bool] = True
    code: ClassVar[str] = "sordino.methods.silo_dp"
    name: str = tag("silo-dp", "record-level DP-SGD in every silo")
    server_lr: ServerLr = 1.0
    clip: ClipNorm = Field(default=1.0, description="L2 norm to which every record's gradient is clipped")
    sampling_rate: Annotated[float, Ge(2.0**-32), Le(1), Says("a probability from 2^-32 to 1")] = Field(
        default=0.1, description="probability with which a record is in a step's batch"
    )
    steps: Count = Field(default=20, description="noisy steps per round")
    noise_multiplier: Positive | None = Field(
        default=None, description="noise of a step's sum, in units of clip; or give target"
    )
    target: Target | None = Field(
        default=None, description="what the whole run is proven to protect, from which the noise multiplier is computed"
    )
    announced_size: Natural = Field(
        default=0,
        description="the public size of a silo that sums are divided by (0: the known data set's training examples "
        "divided by the clients)",
    )
    resolution: Annotated[int, Ge(4), Le(24), Says("a whole number from 4 to 24")] = Field(
        default=20, description="the noise of a silo has 2^resolution steps of the grid that gradients are rounded to"
    )
    coarsening: Annotated[int, Ge(0), Le(24), Says("a whole number from 0 to 24")] = Field(
        default=0, description="bits dropped from an exact sum, at random, before its noise: smaller numbers travel"
    )
    clamp: Clamp = None
    norm: Norm = None
    selection: AnySelection = Field(default=SelectAll(), description=SELECTION)
    channel: AnyChannel = Field(default_factory=direct, description=CHANNEL)
    aggregation: AnyAggregation = Field(default=Mean(), description=AGGREGATION)

    @property
    def sends_updates(self) -> bool:
        return True

    @reads("method.name", "training.epochs", "training.steps", "training.batch_size")
    def silos_draw_their_own_batches(self, recipe: Any) -> Found:
        """Nothing is said about batches that are never drawn."""
        for name in sorted(recipe.training.model_fields_set - {"optimizer"}):
            yield (
                f"training.{name}",
                f"got {shown(getattr(recipe.training, name))}; silo-dp draws its own batches (method.sampling_rate, "
                "method.steps) and takes the optimizer alone: leave it out",
            )

    @reads("method")
    def a_norm_has_reports_to_scale(self, recipe: Any) -> Found:
        """A norm has single reports to scale."""
        yield from unseen_norm(self)

    @reads("method", "data.source")
    def silos_know_their_size(self, recipe: Any) -> Found:
        """Sums are divided by a public number."""
        if self.announced_size == 0 and recipe.data.origin not in ("known", None):
            yield (
                ".announced_size",
                "missing; the number of your own examples is private: announce a public size of a silo, such as 1000",
            )


__all__ = ["NoiseSpec", "SiloDp"]

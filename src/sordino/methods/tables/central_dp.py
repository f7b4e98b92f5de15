"""The table of client-level differential privacy by a trusted server."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Discriminator, Field, Tag

from sordino.methods.aggregation import Mean, MeanAlone
from sordino.methods.selection import SelectionSpec, SelectProbability
from sordino.methods.tables.silo_dp import NoiseSpec
from sordino.methods.tables.spec import AGGREGATION, CHANNEL, ClipNorm, DirectAlone, ServerLr, Target, direct
from sordino.parts.slot import Slot
from sordino.parts.tables import Positive, Says, tag


def _clip_form(value: Any) -> str:
    return "median" if isinstance(value, str) else "number"


class CentralDp(NoiseSpec):
    """Client-level differential privacy by a trusted server, which clips updates and adds the noise (Geyer et al.)."""

    simulation_only: ClassVar[str] = (
        "the server's noise of central-dp follows from the recipe's seed, which invitations make public: its clients "
        "could take the noise off. It is a baseline for simulations"
    )
    code: ClassVar[str] = "sordino.methods.central_dp"
    name: str = tag("central-dp", "a trusted server adds the noise")
    server_lr: ServerLr = 1.0
    clip: Annotated[
        Annotated[ClipNorm, Tag("number")] | Annotated[Literal["median"], Tag("median")],
        Discriminator(_clip_form),
        Says('a number from 1e-30 to 1e30, or "median"'),
    ] = Field(description="L2 norm to which updates are clipped, or the median of a round's norms: nothing proves that")
    noise_multiplier: Positive | None = Field(
        default=None, description="noise of a round's sum, in units of clip; or give target"
    )
    target: Target | None = Field(
        default=None, description="what the whole run is to protect, from which the noise multiplier is computed"
    )
    selection: Annotated[SelectionSpec, Slot("selection", lambda spec: spec is SelectProbability)] = Field(
        default=SelectProbability(p=1.0), description="each client's probability of being in a round's sum"
    )
    channel: DirectAlone = Field(default_factory=direct, description=CHANNEL)
    aggregation: MeanAlone = Field(default=Mean(), description=AGGREGATION)

    @property
    def sends_updates(self) -> bool:
        return True


__all__ = ["CentralDp"]

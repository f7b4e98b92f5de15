"""The table of personalised LDP-FL."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field

from sordino.mechanisms import NoPrivacy
from sordino.mechanisms.spec import FixedUnsaid, MechanismSpec, noise
from sordino.methods.aggregation import AggregationSpec, InverseVariance, Mean, offering
from sordino.methods.selection import SelectAll
from sordino.methods.tables.spec import AGGREGATION, MethodSpec, direct
from sordino.parts.slot import Slot
from sordino.parts.tables import Found, Natural, Probability, reads, tag
from sordino.report.words import listed


class Personalized(MethodSpec):
    """Personalised LDP-FL: each client its own epsilon; noisy weights or random signs, weighed or selected by it."""

    code: ClassVar[str] = "sordino.methods.personalized"
    name: str = tag("personalized", "clients with epsilons of their own, weighed or selected by them")
    sends: Literal["weights", "signs"] = Field(
        default="weights",
        description="weights (the paper's IID data), or their signs, of which the model is the majority",
    )
    start: Literal["zeros", "random"] = Field(default="zeros", description="where the model's parameters start")
    portion: Natural = Field(
        default=0, description="records that a client takes up in a round, one portion after another (0: all of them)"
    )
    sampling: Probability = Field(default=1.0, description="probability q with which each of them is trained on")
    schedule: Literal["continues", "restarts"] = Field(
        default="continues", description="whether the learning rate's decay goes on from round to round or begins anew"
    )
    range: FixedUnsaid | None = Field(default=None, description="where weights are clipped to: radius is the paper's c")
    mechanism: Annotated[MechanismSpec, Slot("mechanism", noise("gaussian", "votes"))] = Field(
        default=NoPrivacy.Spec(), description="gaussian for weights, sign for signs; or an ablation"
    )
    aggregation: Annotated[AggregationSpec, Slot("aggregation", offering("variances", "deviations", "reports"))] = (
        Field(default=Mean(), description=AGGREGATION)
    )
    server_lr: ClassVar[float] = 1.0
    selection: ClassVar[SelectAll] = SelectAll()

    @property
    def channel(self) -> Any:
        return direct()

    @property
    def record_sampling(self) -> float | None:
        return self.sampling

    @reads("method", "rounds.count")
    def reports_fit_each_other(self, recipe: Any) -> Found:
        """Signs are sent through votes, weights through noise that is added to them."""
        mechanism, signs = self.mechanism, self.sends == "signs"
        fits = mechanism.noise == "votes" or not mechanism.clips if signs else mechanism.noise != "votes"
        if not fits:
            fitting = ("sign", "none") if signs else ("gaussian", "clip-only", "none")
            found = f"got {self.sends} with the mechanism {mechanism.label}"
            yield ".sends", f"{found}; allowed: {listed(fitting, 'or')}"
        if isinstance(self.aggregation, InverseVariance) and mechanism.noise == "votes":
            yield (
                "method.aggregation.kind",
                "got inverse-variance with votes, which all have the same: take inverse-deviation, which is best for "
                "votes",
            )


__all__ = ["Personalized"]

"""How reports are put together: the weight of each, which is public, so that weighing is post-processing.

Rules that look at single reports are in `robust`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Le
from pydantic import Field

from sordino.errors import InvalidInput
from sordino.mechanisms.gaussian import Gaussian
from sordino.methods.upload import Float64s, Tally, Upload
from sordino.parts.slot import Slot
from sordino.parts.tables import Found, Positive, Spec, reads, tag

if TYPE_CHECKING:
    from sordino.recipe import Recipe


class AggregationSpec(Spec):
    """How the server makes one vector of a round's reports."""

    #: what a method must offer: samples, strengths, variances, deviations, votes, reports (single ones), directions
    uses: ClassVar[frozenset[str]] = frozenset()
    samples: ClassVar[bool] = False  #: whether reports name how many records stand behind them
    in_pages: ClassVar[bool] = True  #: whether web pages may send what it needs
    remembers: ClassVar[bool] = False  #: whether the server keeps the directions of each client's earlier reports

    def weights(self, upload: Upload) -> Sequence[float]:
        """The weight of every class of clients."""
        return [1.0] * len(upload.strengths)

    def class_weights(self, upload: Upload) -> Sequence[float]:
        """The weight of every class of clients: what `weights` returns, if it is one number for each."""
        found, classes = self.weights(upload), len(upload.strengths)
        if np.shape(found) != (classes,) or not np.isfinite(np.asarray(found, np.float64)).all():
            raise InvalidInput(
                f"{type(self).__name__}.weights must return one number for each of the {classes} classes of clients "
                f"(len(upload.strengths)), got {found!r}"
            )
        return found

    def tally(self, upload: Upload) -> Tally:
        """An empty sum for one round's reports."""
        return upload.tally(self.class_weights(upload))

    def move(self, mean: Float64s, step: Float64s) -> Float64s:
        """How far the model moves, from the mean of the reports and the step that it stands for."""
        return step

    def check_room(self, asked: int, clients: int, values: int) -> None:
        """Refuse rounds that take more memory than there is."""

    @reads("method")
    def sees_what_it_needs(self, recipe: Recipe) -> Found:
        """A rule that goes by single reports, or adds them up in its own way, gets them one by one."""
        channel, own_sum = recipe.method.channel, type(self).tally is not AggregationSpec.tally
        if channel.unseen and (own_sum or "reports" in self.uses):
            kind = getattr(self, "kind", "")
            yield ".kind", f"got {kind}, but {channel.unseen}: take mean, or method.channel.kind = direct"


def label(recipe: Recipe) -> str:
    """Whose reports are put together: the mechanism's, or the method's where it has none."""
    mechanism = getattr(recipe.method, "mechanism", None)
    return f"the mechanism {mechanism.label}" if mechanism is not None else str(recipe.method.name)


def noise_of(recipe: Recipe) -> str:
    """How reports are randomised; empty where no mechanism does."""
    mechanism = getattr(recipe.method, "mechanism", None)
    return "" if mechanism is None else str(mechanism.noise)


class Mean(AggregationSpec):
    """Every report counts alike."""

    kind: str = tag("mean", "every report counts alike")


class BySamples(AggregationSpec):
    """Reports weighed by clients' numbers of examples, which thereby leave the clients."""

    uses: ClassVar[frozenset[str]] = frozenset({"samples"})
    samples: ClassVar[bool] = True
    in_pages: ClassVar[bool] = False
    kind: str = tag("samples", "weighed by sample counts, which thereby are released")


class NoisySamples(AggregationSpec):
    """Reports weighed by numbers of samples that clients announce once, with Laplace noise of their own."""

    uses: ClassVar[frozenset[str]] = frozenset({"noisy samples"})
    samples: ClassVar[bool] = True
    kind: str = tag("noisy-samples", "weighed by sample counts that are announced once, with noise")
    epsilon: Annotated[float, Gt(0), Le(20)] = Field(
        description="of that announcement, for a whole client; beside clients.epsilon"
    )
    limit: Annotated[int, Ge(2), Le(2**24)] = Field(description="the largest number that counts: public")

    @reads("method")
    def counts_are_announced_by_all_at_once(self, recipe: Recipe) -> Found:
        """Refuse a selection: counts are announced in the first round, by all."""
        kind = recipe.method.selection.kind
        if kind != "all":
            yield (
                ".kind",
                f"got {self.kind} with selection = {kind}; counts are announced in the first round, by all: take "
                "selection = all, or mean",
            )


class ByBudget(AggregationSpec):
    """Reports weighed in proportion to clients' epsilons."""

    uses: ClassVar[frozenset[str]] = frozenset({"strengths"})
    kind: str = tag("budget", "weighed in proportion to clients.epsilon")

    def weights(self, upload: Upload) -> Sequence[float]:
        return [1.0 if epsilon is None else epsilon for epsilon in upload.strengths]

    @reads("method.name", "method.mechanism", ".", "clients.epsilon")
    def epsilons_to_weigh_by(self, recipe: Recipe) -> Found:
        """Refuse recipes without epsilons to weigh by."""
        if recipe.clients.epsilon is None:
            found = f"got {self.kind} without clients.epsilon, by which it weighs ({label(recipe)})"
            yield ".kind", f"{found}: take mean or samples"


class _ByNoise(AggregationSpec):
    """Reports weighed, or chosen, by how little noise they carry."""

    @reads("method.name", "method.mechanism", ".")
    def noise_to_go_by(self, recipe: Recipe) -> Found:
        """Refuse reports without noise."""
        if not noise_of(recipe):
            found = f"got {getattr(self, 'kind', '')} with {label(recipe)}, whose reports carry no noise to go by"
            yield ".kind", f"{found}: take mean"


class InverseVariance(_ByNoise):
    """Reports weighed by the inverse of their noise's variance."""

    uses: ClassVar[frozenset[str]] = frozenset({"variances"})
    kind: str = tag("inverse-variance", "weighed by the inverse of the noise")

    def weights(self, upload: Upload) -> Sequence[float]:
        variances = upload.variances()
        return [float(v) for v in variances.min() / variances]


class SignAggregation(AggregationSpec):
    """The majority of votes for each value, times a step."""

    uses: ClassVar[frozenset[str]] = frozenset({"votes"})
    kind: str = tag("sign", "the majority of votes for each value")
    step: Positive = Field(description="how far each value moves along the majority")

    def move(self, mean: Float64s, step: Float64s) -> Float64s:
        return self.step * np.sign(mean)

    @reads("method.name", "method.mechanism", ".", "clients.epsilon")
    def votes_to_count(self, recipe: Recipe) -> Found:
        """Refuse reports that are no votes."""
        if noise_of(recipe) != "votes":
            found = f"got {self.kind} with {label(recipe)}"
            yield ".kind", f"{found}; allowed only with the mechanism sign, whose reports are votes"


class InverseDeviation(_ByNoise):
    """Reports weighed by the inverse of their noise's standard deviation (personalised LDP-FL, Eq. 11)."""

    uses: ClassVar[frozenset[str]] = frozenset({"deviations"})
    kind: str = tag("inverse-deviation", "weighed by the inverse of the noise's standard deviation")

    def weights(self, upload: Upload) -> Sequence[float]:
        return [float(rho) for rho in rhos(upload)]


class SelectionByBudget(_ByNoise):
    """All report, and the reports of some count: the more likely, the less noise they carry (section 4.2)."""

    uses: ClassVar[frozenset[str]] = frozenset({"deviations"})
    kind: str = tag("selection", "all report, and those count whose share of 1/deviation is above a random draw")
    fallback: Literal["redraw", "keep"] = Field(
        default="redraw",
        description="where the draw is above everybody's share: draw again, or keep the model as it is",
    )


def rhos(upload: Upload) -> Float64s:
    """rho = 1/sigma of every class of clients; for votes up to a common factor, by eps itself."""
    return np.array(
        [
            1 / float(mechanism.sigma[0]) if isinstance(mechanism, Gaussian) else (1.0 if epsilon is None else epsilon)
            for mechanism, epsilon in zip(upload.mechanisms, upload.strengths, strict=True)
        ]
    )


def offering(*offered: str) -> Callable[[Any], bool]:
    """Fits tables that use nothing but what is offered."""
    return lambda spec: spec.uses <= frozenset(offered)


AGGREGATION = Field(description="how reports are put together")
AnyAggregation = Annotated[
    AggregationSpec,
    Slot("aggregation", offering("samples", "strengths", "variances", "votes", "reports", "directions")),
    AGGREGATION,
]
PartAggregation = Annotated[  # whole models point the same way, and layers come in turn: no agreement to speak of
    AggregationSpec, Slot("aggregation", offering("samples", "strengths", "variances", "votes", "reports")), AGGREGATION
]
MeanAlone = Annotated[AggregationSpec, Slot("aggregation", lambda spec: spec is Mean), AGGREGATION]

__all__ = [
    "AGGREGATION", "AggregationSpec", "AnyAggregation", "ByBudget", "BySamples", "InverseDeviation", "InverseVariance",
    "Mean", "MeanAlone", "NoisySamples", "PartAggregation", "SelectionByBudget", "SignAggregation", "label", "noise_of",
    "offering", "rhos",
]  # fmt: skip

"""Stopping rules: whether a run ends before its last round, by the scores of its model so far."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from sordino.parts.slot import Slot
from sordino.parts.tables import Count, Probability, Spec, tag


class StoppingSpec(Spec):
    """When a run ends early. A rule keeps nothing: a run that is resumed gives it the same scores again."""

    @abstractmethod
    def reason(self, scores: Sequence[float]) -> str | None:
        """Why the run ends now, by the scores of all evaluations so far, in their order; None: it goes on.

        Scores are accuracies, or those of the recipe's metric: the larger, the better. Those of a metric that is better
        when smaller come with their sign turned.
        """

    def turned(self) -> StoppingSpec:
        """The rule for scores with their sign turned: another one where it holds a score."""
        return self


class TargetAccuracy(StoppingSpec):
    """Stop once an accuracy is reached."""

    kind: str = tag("target", "once an accuracy is reached")
    accuracy: Probability = Field(description="the accuracy to reach")

    def reason(self, scores: Sequence[float]) -> str | None:
        best = max(scores, default=-math.inf)
        return f"reached {best:.2%}" if best >= self.accuracy else None


class TargetScore(StoppingSpec):
    """Stop once the recipe's metric reaches a value."""

    kind: str = tag("score", "once the recipe's metric is as good as a value")
    value: float = Field(description="the value to reach: at least, or at most where smaller is better")

    def reason(self, scores: Sequence[float]) -> str | None:
        return "its metric reached the target" if max(scores, default=-math.inf) >= self.value else None

    def turned(self) -> TargetScore:
        return self.model_copy(update={"value": -self.value})


class Patience(StoppingSpec):
    """Stop when the model has not improved for a while."""

    kind: str = tag("patience", "after so many evaluations without improvement")
    evaluations: Count = Field(description="how many")

    def reason(self, scores: Sequence[float]) -> str | None:
        since = len(scores) - 1 - scores.index(max(scores)) if scores else 0
        return f"no improvement in {since} evaluations" if since >= self.evaluations else None


AnyStoppingRule = Annotated[StoppingSpec, Slot("stopping rule")]

__all__ = ["AnyStoppingRule", "Patience", "StoppingSpec", "TargetAccuracy", "TargetScore"]

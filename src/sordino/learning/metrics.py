"""What a round is scored by, beside accuracy and loss: one number that also decides when a run stops."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Annotated

import numpy as np

from sordino.parts.slot import Slot
from sordino.parts.tables import Spec, tag

if TYPE_CHECKING:
    from sordino.learning.evaluation import Scores


class MetricSpec(Spec):
    """A figure of a model on examples: the larger, the better."""

    @abstractmethod
    def value(self, scores: Scores) -> float:
        """The figure; `scores.confusion[i, j]` counts the examples of class i that the model takes for class j."""


class Accuracy(MetricSpec):
    """The share of right answers."""

    kind: str = tag("accuracy", "the share of right answers")

    def value(self, scores: Scores) -> float:
        return scores.accuracy


class BalancedAccuracy(MetricSpec):
    """The mean over classes of the share of right answers, so that rare classes count as much as frequent ones."""

    kind: str = tag("balanced-accuracy", "the share of right answers in each class, the mean over classes")

    def value(self, scores: Scores) -> float:
        there = scores.confusion.sum(axis=1)
        return float(np.mean(np.diag(scores.confusion)[there > 0] / there[there > 0])) if there.any() else 0.0


AnyMetric = Annotated[MetricSpec, Slot("metric")]

__all__ = ["Accuracy", "AnyMetric", "BalancedAccuracy", "MetricSpec"]

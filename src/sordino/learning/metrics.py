"""What a round is scored by, beside accuracy and loss: one number that also decides when a run stops."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from sordino.parts.slot import Slot
from sordino.parts.tables import Spec, tag

if TYPE_CHECKING:
    from sordino.learning.evaluation import Scores


class MetricSpec(Spec):
    """A figure of a model on examples: the larger, the better."""

    needs_chances: ClassVar[bool] = False  #: whether it is computed from `scores.chances`, which are kept only then

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


class F1(MetricSpec):
    """The harmonic mean of precision and recall: of the second of two classes, or the mean over more classes."""

    kind: str = tag("f1", "harmonic mean of precision and recall, of the second of two classes, else their mean")

    def value(self, scores: Scores) -> float:
        hits, told, there = np.diag(scores.confusion), scores.confusion.sum(axis=0), scores.confusion.sum(axis=1)
        return _over_classes(2 * hits / np.maximum(1, told + there), there)


class RocAuc(MetricSpec):
    """How often an example of a class is given a higher chance of it than one of another class; ties count half."""

    kind: str = tag("roc-auc", "area under the ROC curve, of the second of two classes, else the mean over classes")
    needs_chances: ClassVar[bool] = True

    def value(self, scores: Scores) -> float:
        return _by_chances(_auc, scores)


class AveragePrecision(MetricSpec):
    """Precision, averaged over the examples of a class in the order of its chances."""

    kind: str = tag("average-precision", "area under precision and recall, of the second of two classes, else the mean")
    needs_chances: ClassVar[bool] = True

    def value(self, scores: Scores) -> float:
        return _by_chances(_average_precision, scores)


class Calibration(MetricSpec):
    """1 less the expected calibration error: how well the chance of an answer says how often it is right."""

    kind: str = tag("calibration", "1 less the expected calibration error in fifteen bins of the answer's chance")
    needs_chances: ClassVar[bool] = True

    def value(self, scores: Scores) -> float:
        if not len(scores.labels):
            return 0.0
        chance, right = scores.chances.max(axis=1), scores.chances.argmax(axis=1) == scores.labels
        place = np.minimum((chance * CALIBRATION_BINS).astype(np.int64), CALIBRATION_BINS - 1)
        excess = np.bincount(place, weights=chance - right, minlength=CALIBRATION_BINS)
        return 1 - float(np.abs(excess).sum()) / len(right)


CALIBRATION_BINS = 15


def _over_classes(figures: NDArray[np.float64], there: NDArray[np.int64]) -> float:
    """Of two classes the second one's figure; of more, the mean over those that have examples."""
    if len(figures) == 2:
        return float(figures[1]) if there[1] else 0.0
    return float(figures[there > 0].mean()) if there.any() else 0.0


def _by_chances(figure: Callable[[NDArray[np.float32], NDArray[np.bool_]], float], scores: Scores) -> float:
    """A figure of one class's chances and which examples are its own, over the classes."""
    found = [figure(chance, scores.labels == k) for k, chance in enumerate(scores.chances.T)]
    return _over_classes(np.array(found), scores.confusion.sum(axis=1))


def _ranked(chance: NDArray[np.float32], own: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """How many examples of the class, and of others, have at least each of the chances that occur, from the highest."""
    _, group = np.unique(-chance, return_inverse=True)
    return np.cumsum(np.bincount(group, weights=own)), np.cumsum(np.bincount(group, weights=~own))


def _auc(chance: NDArray[np.float32], own: NDArray[np.bool_]) -> float:
    if own.all() or not own.any():
        return 0.5
    hits, misses = (np.concatenate([[0], found]) for found in _ranked(chance, own))
    return float(np.trapezoid(hits, misses) / (hits[-1] * misses[-1]))


def _average_precision(chance: NDArray[np.float32], own: NDArray[np.bool_]) -> float:
    if not own.any():
        return 0.0
    hits, misses = _ranked(chance, own)
    return float((np.diff(hits, prepend=0) * hits / (hits + misses)).sum() / hits[-1])


AnyMetric = Annotated[MetricSpec, Slot("metric")]

__all__ = [
    "F1", "Accuracy", "AnyMetric", "AveragePrecision", "BalancedAccuracy", "Calibration", "MetricSpec", "RocAuc",
]  # fmt: skip

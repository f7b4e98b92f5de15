"""What a round is scored by, beside accuracy and loss: one number that also decides when a run stops."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray

from sordino.learning.tasks import CLASSES_ALONE, CLASSIFICATION, MULTI_LABEL, REGRESSION
from sordino.parts.slot import Slot
from sordino.parts.tables import Spec, tag

if TYPE_CHECKING:
    from sordino.learning.evaluation import Scores

CLASSES_AND_LABELS = frozenset({CLASSIFICATION, MULTI_LABEL})
NUMBERS = frozenset({REGRESSION})
CALIBRATION_BINS = 15
RESAMPLES = 200  #: of the test set, for a confidence interval
SMALLEST_CHANCE = float(np.finfo(np.float32).eps)


class MetricSpec(Spec):
    """A figure of a model on examples."""

    tasks: ClassVar[frozenset[str]] = CLASSES_ALONE  #: the tasks that it fits
    smaller_is_better: ClassVar[bool] = False
    needs_chances: ClassVar[bool] = False  #: whether it is computed from `scores.chances`, which are kept only then

    @abstractmethod
    def value(self, scores: Scores) -> float:
        """The figure.

        Of classes, `scores.confusion[i, j]` counts the examples of class i that the model takes for class j. Of labels,
        `scores.labels` and `scores.chances` are `[n, labels]`; of numbers, `scores.labels` and `scores.answers` `[n]`.
        """

    def baseline(self, scores: Scores) -> float:
        """The figure of always giving the same answer: the commonest class, the labels' shares, or their mean."""
        return self.value(scores.of_constant())

    def interval(self, scores: Scores) -> tuple[float, float] | None:
        """The figure's 95 % confidence interval: what other test sets of this size might show, by resampling this one.

        The draws are the same every time. None where a figure is no finite number.
        """
        rng = np.random.default_rng(0)
        found = [self.value(scores.resampled(rng)) for _ in range(RESAMPLES)] if scores.examples > 1 else []
        if not found or not np.isfinite(found).all():
            return None
        low, high = np.quantile(found, (0.025, 0.975)).tolist()
        return low, high


class Accuracy(MetricSpec):
    """The share of right answers."""

    kind: str = tag("accuracy", "the share of right answers")

    def value(self, scores: Scores) -> float:
        return scores.accuracy

    def interval(self, scores: Scores) -> tuple[float, float] | None:
        """None: a result has Wilson's (`Result.accuracy_interval`)."""
        return None


class BalancedAccuracy(MetricSpec):
    """The mean over classes of the share of right answers, so that rare classes count as much as frequent ones."""

    kind: str = tag("balanced-accuracy", "the share of right answers in each class, the mean over classes")

    def value(self, scores: Scores) -> float:
        there = scores.confusion.sum(axis=1)
        return float(np.mean(np.diag(scores.confusion)[there > 0] / there[there > 0])) if there.any() else 0.0


class F1(MetricSpec):
    """The harmonic mean of precision and recall: of the second of two classes, or the mean over classes or labels."""

    kind: str = tag("f1", "harmonic mean of precision and recall, of the second of two classes, else their mean")
    tasks: ClassVar[frozenset[str]] = CLASSES_AND_LABELS

    def value(self, scores: Scores) -> float:
        if scores.labels.ndim == 2:
            told, truth = scores.chances > 0.5, scores.labels == 1
            hits, told, there = (told & truth).sum(axis=0), told.sum(axis=0), truth.sum(axis=0)
            return _mean_of_present(2 * hits / np.maximum(1, told + there), there)
        hits, told, there = np.diag(scores.confusion), scores.confusion.sum(axis=0), scores.confusion.sum(axis=1)
        return _over_classes(2 * hits / np.maximum(1, told + there), there)


class RocAuc(MetricSpec):
    """How often an example of a class is given a higher chance of it than one of another class; ties count half."""

    kind: str = tag("roc-auc", "area under the ROC curve, of the second of two classes, else the mean")
    tasks: ClassVar[frozenset[str]] = CLASSES_AND_LABELS
    needs_chances: ClassVar[bool] = True

    def value(self, scores: Scores) -> float:
        return _by_chances(_auc, scores)


class AveragePrecision(MetricSpec):
    """Precision, averaged over the examples of a class in the order of its chances."""

    kind: str = tag("average-precision", "area under precision and recall, of the second of two classes, else the mean")
    tasks: ClassVar[frozenset[str]] = CLASSES_AND_LABELS
    needs_chances: ClassVar[bool] = True

    def value(self, scores: Scores) -> float:
        return _by_chances(_average_precision, scores)


class LogLoss(MetricSpec):
    """The mean of -log of the chance that the model gave to what is true."""

    kind: str = tag("log-loss", "mean of -log of the chance of what is true, over labels too; the smaller, the better")
    tasks: ClassVar[frozenset[str]] = CLASSES_AND_LABELS
    smaller_is_better: ClassVar[bool] = True
    needs_chances: ClassVar[bool] = True

    def value(self, scores: Scores) -> float:
        if not len(scores.labels):
            return 0.0
        chances = np.clip(scores.chances.astype(np.float64), SMALLEST_CHANCE, 1 - SMALLEST_CHANCE)
        if scores.labels.ndim == 2:
            return float(-np.log(np.where(scores.labels == 1, chances, 1 - chances)).mean())
        return float(-np.log(chances[np.arange(len(chances)), scores.labels.astype(np.int64)]).mean())


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


class MeanAbsoluteError(MetricSpec):
    """The mean of how far answers are off, in the owner's unit."""

    kind: str = tag("mae", "how far answers are off, in the owner's unit, the mean; the smaller, the better")
    tasks: ClassVar[frozenset[str]] = NUMBERS
    smaller_is_better: ClassVar[bool] = True

    def value(self, scores: Scores) -> float:
        return float(np.abs(_errors(scores)).mean()) if len(scores.answers) else 0.0


class RootMeanSquaredError(MetricSpec):
    """The root of the mean squared error, in the owner's unit: large errors count for more."""

    kind: str = tag("rmse", "root of the mean squared error, in the owner's unit; the smaller, the better")
    tasks: ClassVar[frozenset[str]] = NUMBERS
    smaller_is_better: ClassVar[bool] = True

    def value(self, scores: Scores) -> float:
        return math.sqrt(float((_errors(scores) ** 2).mean())) if len(scores.answers) else 0.0


class R2(MetricSpec):
    """The share of the labels' variance that answers explain: 1 is perfect, and 0 is what their mean has."""

    kind: str = tag("r2", "share of the labels' variance that answers explain; 0 is always giving their mean")
    tasks: ClassVar[frozenset[str]] = NUMBERS

    def value(self, scores: Scores) -> float:
        if not len(scores.answers):
            return 0.0
        labels = scores.labels.astype(np.float64)
        spread = float(((labels - labels.mean()) ** 2).sum())
        missed = float((_errors(scores) ** 2).sum())
        return round(1 - missed / spread, 12) if spread else float(not missed)


def _errors(scores: Scores) -> NDArray[np.float64]:
    return scores.answers.astype(np.float64) - scores.labels.astype(np.float64)


def _over_classes(figures: NDArray[np.float64], there: NDArray[np.int64]) -> float:
    """Of two classes the second one's figure; of more, the mean over those that have examples."""
    if len(figures) == 2:
        return float(figures[1]) if there[1] else 0.0
    return _mean_of_present(figures, there)


def _mean_of_present(figures: NDArray[np.float64], there: NDArray[np.int64]) -> float:
    return float(figures[there > 0].mean()) if there.any() else 0.0


def _by_chances(figure: Callable[[NDArray[np.float32], NDArray[np.bool_]], float], scores: Scores) -> float:
    """A figure of one class's chances and which examples are its own, over the classes or labels."""
    if scores.labels.ndim == 2:
        own = scores.labels == 1
        found = [figure(chance, here) for chance, here in zip(scores.chances.T, own.T, strict=True)]
        return _mean_of_present(np.array(found), own.sum(axis=0))
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
    "F1", "R2", "Accuracy", "AnyMetric", "AveragePrecision", "BalancedAccuracy", "Calibration", "LogLoss",
    "MeanAbsoluteError", "MetricSpec", "RocAuc", "RootMeanSquaredError",
]  # fmt: skip

"""What a model learns: one class of several, any of several labels, or a number in a public range.

The network gives one score per class, per label, or for the number. Labels in `Examples` are in the owner's unit; the
network learns a number scaled to its range, so that -1 is the lowest and 1 the highest.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Final, Literal

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["classification", "multi-label", "regression"]
CLASSIFICATION: Final = "classification"
MULTI_LABEL: Final = "multi-label"
REGRESSION: Final = "regression"
CLASSES_ALONE = frozenset({CLASSIFICATION})
ALL_TASKS = frozenset({CLASSIFICATION, MULTI_LABEL, REGRESSION})
MOST_CLASSES = 2**13  #: of a linear head: sums of its exponentials, of 40 bits each, are at most 2^53, so exact
Answers = NDArray[np.int64] | NDArray[np.float32]  #: [n], or [n, labels]


@dataclass(frozen=True)
class LearningTask(ABC):
    """How labels look, what a loss is given, and what is used where a recipe says nothing."""

    kind: ClassVar[Kind]
    metric: ClassVar[str]  #: the metric that runs are judged by where the recipe names none
    loss: ClassVar[str]  #: the loss that networks learn by where the recipe names none
    fewest: ClassVar[int] = 1  #: names that it takes at least

    def check_names(self, names: Sequence[str]) -> None:
        """Refuse too few names, and one that comes twice."""
        few = isinstance(names, str) or len(names) < self.fewest
        if few or not all(isinstance(name, str) and name.strip() for name in names):
            least = {1: "one name", 2: "two names"}[self.fewest]
            raise InvalidInput(f"{self._what} must be at least {least}, got {names!r}")
        if len(set(names)) != len(names):
            raise InvalidInput(f"{self._what} must differ from each other, got {list(names)}")

    @abstractmethod
    def check(self, y: Answers, names: Sequence[str]) -> None:
        """Refuse labels that are none of this task; the first such row is named."""

    @abstractmethod
    def pair(self, scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """What a loss compares: scores and labels in the form in which PyTorch's losses take them."""

    @abstractmethod
    def counts(self, y: Answers, names: Sequence[str]) -> NDArray[np.int64]:
        """`[n, names]`: which of the names each label stands for."""

    @abstractmethod
    def numbered(self, numbers: NDArray[np.int64], outputs: int) -> Answers:
        """Made-up labels for whole numbers below `kinds(outputs)`, different ones for different numbers."""

    def kinds(self, outputs: int) -> int:
        """How many different labels can be made up."""
        return max(2, outputs)

    @property
    def _what(self) -> str:
        return "labels" if self.kind == MULTI_LABEL else "classes"


@dataclass(frozen=True)
class Classification(LearningTask):
    """One class of several: y int64 `[n]`, positions in the class list."""

    kind: ClassVar[Kind] = CLASSIFICATION
    metric: ClassVar[str] = "accuracy"
    loss: ClassVar[str] = "cross-entropy"
    fewest: ClassVar[int] = 2

    def __str__(self) -> str:
        return "one of several classes"

    def check(self, y: Answers, names: Sequence[str]) -> None:
        _check_form(y, np.int64, (), "one whole number per example, a position in the class list")
        wrong = (y < 0) | (y >= len(names))
        if wrong.any():
            row = int(wrong.argmax())
            raise InvalidInput(
                f"row {row} has label {y[row]}, but {len(names)} classes are listed, so labels run from 0 to "
                f"{len(names) - 1}: correct the label or the class list"
            )

    def pair(self, scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return scores, y

    def counts(self, y: Answers, names: Sequence[str]) -> NDArray[np.int64]:
        return np.eye(len(names), dtype=np.int64)[y.astype(np.int64)]

    def numbered(self, numbers: NDArray[np.int64], outputs: int) -> Answers:
        return numbers


@dataclass(frozen=True)
class MultiLabel(LearningTask):
    """Any of several labels: y int64 `[n, labels]`, 1 where a label is set and 0 where it is not."""

    kind: ClassVar[Kind] = MULTI_LABEL
    metric: ClassVar[str] = "average-precision"
    loss: ClassVar[str] = "binary-cross-entropy"

    def __str__(self) -> str:
        return "any of several labels"

    def check(self, y: Answers, names: Sequence[str]) -> None:
        _check_form(y, np.int64, (len(names),), f"0 or 1 for each of {len(names)} labels")
        wrong = ((y != 0) & (y != 1)).any(axis=1)
        if wrong.any():
            row = int(wrong.argmax())
            raise InvalidInput(f"row {row} has the labels {y[row].tolist()}; allowed are 0 and 1: correct them")

    def pair(self, scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return scores, y.to(scores.dtype)

    def counts(self, y: Answers, names: Sequence[str]) -> NDArray[np.int64]:
        return y.astype(np.int64)

    def numbered(self, numbers: NDArray[np.int64], outputs: int) -> Answers:
        return np.asarray(numbers[:, None] == np.arange(outputs), np.int64)


@dataclass(frozen=True)
class Regression(LearningTask):
    """A number of a public range, declared and never computed from data: y float32 `[n]` in the owner's unit."""

    low: float
    high: float
    kind: ClassVar[Kind] = REGRESSION
    metric: ClassVar[str] = "mae"
    loss: ClassVar[str] = "mse"

    def __post_init__(self) -> None:
        ends = np.array([self.low, self.high], np.float32)
        if not np.isfinite(ends).all() or not ends[0] < ends[1]:
            raise InvalidInput(
                f"a target's range is [low, high] with low below high, got [{self.low:g}, {self.high:g}]"
            )

    def __str__(self) -> str:
        return f"a number from {self.low:g} to {self.high:g}"

    @property
    def middle(self) -> float:
        """The value at which a score is 0."""
        return (self.low + self.high) / 2

    @property
    def half(self) -> float:
        """How far the ends lie from the middle."""
        return (self.high - self.low) / 2

    def check_names(self, names: Sequence[str]) -> None:
        super().check_names(names)
        if len(names) != 1:
            raise InvalidInput(f"a regression has one target, got the names {list(names)}")

    def check(self, y: Answers, names: Sequence[str]) -> None:
        _check_form(y, np.float32, (), "one number per example")
        wrong = ~self.contains(y)
        if wrong.any():
            row = int(wrong.argmax())
            raise InvalidInput(f"row {row} has the target {y[row]:g}, {self.beyond}")

    def contains(self, y: Answers) -> NDArray[np.bool_]:
        """Which values lie within the range."""
        return np.asarray((y >= np.float32(self.low)) & (y <= np.float32(self.high)))

    @property
    def beyond(self) -> str:
        """What to do about a value outside."""
        return (
            f"outside the public range [{self.low:g}, {self.high:g}]: widen data.target, or clip the value yourself "
            "if an answer at the end of the range will do"
        )

    def pair(self, scores: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return scores.squeeze(-1), (y - self.middle) / self.half

    def value(self, scores: Tensor) -> Tensor:
        """Answers `[n]` in the owner's unit, never outside the range, for scores `[n, 1]`."""
        return (scores.squeeze(-1) * self.half + self.middle).clamp(self.low, self.high)

    def counts(self, y: Answers, names: Sequence[str]) -> NDArray[np.int64]:
        return np.ones((len(y), 1), np.int64)

    def numbered(self, numbers: NDArray[np.int64], outputs: int) -> Answers:
        return np.where(numbers % 2, self.high, self.low).astype(np.float32)


def _check_form(y: Answers, dtype: type[np.generic], shape: tuple[int, ...], what: str) -> None:
    if y.dtype != dtype or y.shape[1:] != shape:
        raise InvalidInput(f"y must hold {what}; got {y.dtype} of shape {list(y.shape)}")


CLASSES = Classification()
LABELS = MultiLabel()


def task_named(kind: str, target: Sequence[float] | None) -> LearningTask:
    """The task of this kind; a regression with its range."""
    if kind == REGRESSION and target is not None:
        low, high = target
        return Regression(low, high)
    return LABELS if kind == MULTI_LABEL else CLASSES


__all__ = [
    "ALL_TASKS",
    "CLASSES",
    "CLASSES_ALONE",
    "CLASSIFICATION",
    "LABELS",
    "MOST_CLASSES",
    "MULTI_LABEL",
    "REGRESSION",
    "Answers",
    "Classification",
    "Kind",
    "LearningTask",
    "MultiLabel",
    "Regression",
    "task_named",
]  # fmt: skip

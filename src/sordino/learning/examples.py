"""Records and their labels, and what is public about them: class lists and normalisation constants.

These are inputs, published ones or the caller's; nothing here computes them from examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.learning.tasks import CLASSES, MULTI_LABEL, Answers, LearningTask, Regression

if TYPE_CHECKING:
    from sordino.learning.columns import ColumnRules

Inputs = NDArray[np.uint8] | NDArray[np.float32]
Labels = NDArray[np.int64]
Columns = Mapping[str | int, NDArray[np.str_]]
NO_RULES: ColumnRules = MappingProxyType({})
_LABEL_FORMS = (("int64", 1), ("int64", 2), ("float32", 1))  #: dtype and number of axes


@dataclass(frozen=True, eq=False)
class Examples:
    """n examples: `x` uint8 or float32, images `[n, channels, height, width]` or features `[n, d]`.

    `y` are positions of classes, int64 `[n]`; or labels that are set or not, int64 `[n, labels]`; or numbers, float32
    `[n]`.
    """

    x: Inputs
    y: Answers

    def __post_init__(self) -> None:
        if self.x.dtype not in (np.uint8, np.float32) or self.x.ndim not in (2, 4) or 0 in self.x.shape[1:]:
            raise InvalidInput(
                "x must be uint8 or float32, images [n, channels, height, width] or features [n, d]; "
                f"got {self.x.dtype} of shape {list(self.x.shape)}"
            )
        if (self.y.dtype.name, self.y.ndim) not in _LABEL_FORMS or len(self.y) != len(self.x):
            raise InvalidInput(
                f"y must be int64 (float32 for numbers) with one label for each of {len(self.x):,} examples; got "
                f"{self.y.dtype} of shape {list(self.y.shape)}"
            )
        rows = tuple(range(1, self.x.ndim))
        if self.x.dtype == np.float32 and not (finite := np.isfinite(self.x).all(axis=rows)).all():
            raise InvalidInput(f"row {finite.argmin()} of x holds NaN or infinity: fill in or leave out such rows")

    def __len__(self) -> int:
        return len(self.y)

    def take(self, indices: NDArray[np.int64]) -> Examples:
        """The examples at these positions, copied."""
        return Examples(self.x[indices], self.y[indices])


@dataclass(frozen=True)
class Normalisation:
    """(x - mean)/std with public constants, one for all or one per channel or feature; as it is if none given."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "mean", tuple(float(m) for m in self.mean))
        object.__setattr__(self, "std", tuple(float(s) for s in self.std))
        if not self.mean or len(self.mean) != len(self.std):
            raise InvalidInput(f"give as many means as standard deviations, got {len(self.mean)} and {len(self.std)}")
        if not all(np.isfinite(self.mean)) or not all(0 < s < float("inf") for s in self.std):
            raise InvalidInput(f"means must be finite and standard deviations positive, got {self.mean} and {self.std}")

    @classmethod
    def of_pixels(cls, mean: Sequence[float], std: Sequence[float]) -> Normalisation:
        """For uint8 pixels, from constants that are stated for pixels between 0 and 1, as papers do."""
        return cls(tuple(255 * m for m in mean), tuple(255 * s for s in std))

    def check(self, shape: Sequence[int]) -> None:
        """Refuse examples of a shape whose channels or features these constants do not fit."""
        if len(self.mean) not in (1, shape[0]):
            what = f"{shape[0]} {'channels' if len(shape) == 3 else 'features'}"
            raise InvalidInput(f"normalisation has {len(self.mean)} constants for {what}: give 1 or {shape[0]}")

    def apply(self, x: Inputs) -> NDArray[np.float32]:
        """A normalised float32 copy of `[n, channels, height, width]` or `[n, d]`."""
        self.check(x.shape[1:])
        each = (1, -1) + (1,) * (x.ndim - 2)
        out = x.astype(np.float32)
        out -= np.array(self.mean, np.float32).reshape(each)
        out /= np.array(self.std, np.float32).reshape(each)
        return out


@dataclass(frozen=True, eq=False)
class Dataset:
    """Training and test examples with what is public about them.

    `classes` names what the network's scores stand for: the classes, of which labels are positions; the labels of a
    multi-label `task`; or the one target of a regression.

    `held_out` are the rows of the source, in rising order, that were held out as test examples: the training examples
    are the other rows, in order. It is empty where test examples come from elsewhere.

    `columns` are values beside the records, such as the hospital each is from: no model sees them, and a split may deal
    by them. Each has one value for every row of the source, those held out included.
    """

    name: str
    train: Examples
    test: Examples
    classes: tuple[str, ...]
    normalisation: Normalisation
    source: str
    licence: str
    held_out: Labels = field(default_factory=lambda: np.zeros(0, np.int64))
    columns: Columns = field(default_factory=lambda: MappingProxyType({}))
    feature_names: tuple[str, ...] = ()  #: of a table, in order; empty where its features have none
    rules: ColumnRules = field(default_factory=lambda: NO_RULES)  #: of declared columns: what their cells became
    task: LearningTask = CLASSES

    def __post_init__(self) -> None:
        self.task.check_names(self.classes)
        for part, examples in (("train", self.train), ("test", self.test)):
            with naming(f"{self.name}, {part}"):
                self.task.check(examples.y, self.classes)
                self.normalisation.check(examples.x.shape[1:])
        mine, other = self.train.x, self.test.x
        if (mine.shape[1:], mine.dtype) != (other.shape[1:], other.dtype):
            raise InvalidInput(
                f"{self.name}: training examples are {mine.dtype} of shape {list(mine.shape[1:])}, test examples "
                f"{other.dtype} of shape {list(other.shape[1:])}: make them alike"
            )

    @property
    def described(self) -> dict[str, tuple[str, ...] | tuple[float, ...]]:
        """What is learnt, as the keys of a recipe's data table say it."""
        if isinstance(self.task, Regression):
            return {"target": (self.task.low, self.task.high)}
        return {"labels" if self.task.kind == MULTI_LABEL else "classes": self.classes}

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one example: (channels, height, width) or (features,)."""
        return self.train.x.shape[1:]


@contextmanager
def naming(where: object) -> Iterator[None]:
    """Errors raised inside name this place first."""
    try:
        yield
    except InvalidInput as error:
        raise InvalidInput(f"{where}: {error}") from None

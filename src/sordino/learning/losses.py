"""What a network learns by: losses as parts of a recipe, shipped ones and anybody's own.

A loss is the mean over records of a figure of each. That mean is of weighted figures where there are weights: it is not
divided by the weights of the batch, as PyTorch does, since a record's share would then depend on the others.
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from pydantic import Field

from sordino.errors import InvalidInput
from sordino.learning.tasks import ALL_TASKS, CLASSES_ALONE, CLASSIFICATION, MULTI_LABEL, REGRESSION, LearningTask
from sordino.parts import registry
from sordino.parts.lazy import lazy_module
from sordino.parts.shipped import SHIPPED
from sordino.parts.slot import Slot
from sordino.parts.tables import Options, Positive, Positives, Spec, tag

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.nn import functional

    from sordino.learning import models
    from sordino.learning.models import Loss
else:
    torch, functional = lazy_module("torch"), lazy_module("torch.nn.functional")
    models = lazy_module("sordino.learning.models")

RECORDS = 3  #: public records on which a loss of somebody's own is tried


class LossSpec(Spec):
    """A loss: a function of scores and labels, in the forms of `LearningTask.pair`, to the mean over records."""

    tasks: ClassVar[frozenset[str]] = ALL_TASKS  #: the tasks that it fits

    @abstractmethod
    def build(self) -> Loss:
        """The function; it must be possible to send it to other processes."""

    def misfit(self, names: Sequence[str]) -> str | None:
        """What is wrong for a network with one score for each of these names; None if nothing is."""
        return None


def _wrong_number(weights: Sequence[float] | None, names: Sequence[str], what: str) -> str | None:
    if weights is None or len(weights) == len(names):
        return None
    return f"{len(weights)} given for {len(names)} {what}: give one for each, in the order of the list"


class CrossEntropy(LossSpec):
    """Softmax cross-entropy."""

    kind: str = tag("cross-entropy", "softmax cross-entropy, of classes")
    tasks: ClassVar[frozenset[str]] = CLASSES_ALONE
    weights: Positives | None = Field(
        default=None, description="how much a record of each class counts: public constants; all 1 if left out"
    )

    def build(self) -> Loss:
        return models.cross_entropy if self.weights is None else WeightedCrossEntropy(self.weights)

    def misfit(self, names: Sequence[str]) -> str | None:
        return _wrong_number(self.weights, names, "classes")


class BinaryCrossEntropy(LossSpec):
    """The log loss of each label by itself, the mean over labels."""

    kind: str = tag("binary-cross-entropy", "the log loss of each label by itself")
    tasks: ClassVar[frozenset[str]] = frozenset({MULTI_LABEL})
    weights: Positives | None = Field(
        default=None, description="how much a record with each label counts, against one without: public; 1 if left out"
    )

    def build(self) -> Loss:
        return LabelEntropy(self.weights)

    def misfit(self, names: Sequence[str]) -> str | None:
        return _wrong_number(self.weights, names, "labels")


class SquaredError(LossSpec):
    """The squared difference, of targets scaled to [-1, 1]."""

    kind: str = tag("mse", "the squared difference, of targets scaled to [-1, 1]")
    tasks: ClassVar[frozenset[str]] = frozenset({REGRESSION})

    def build(self) -> Loss:
        return functional.mse_loss


class AbsoluteError(LossSpec):
    """The absolute difference, of targets scaled to [-1, 1]."""

    kind: str = tag("mae", "the absolute difference, of targets scaled to [-1, 1]")
    tasks: ClassVar[frozenset[str]] = frozenset({REGRESSION})

    def build(self) -> Loss:
        return functional.l1_loss


class Huber(LossSpec):
    """Squared where the difference is small, absolute beyond."""

    kind: str = tag("huber", "squared for small differences, absolute for large ones, of targets scaled to [-1, 1]")
    tasks: ClassVar[frozenset[str]] = frozenset({REGRESSION})
    delta: Positive = Field(default=0.5, description="the difference above which it is absolute, in scaled units")

    def build(self) -> Loss:
        return partial(functional.huber_loss, delta=self.delta)


class OwnLoss(LossSpec):
    """A function `(scores, labels) -> mean`, or a class that is made with `options` and called like it."""

    kind: str = Field(description="its address, package.module:function or package.module:Class")
    options: Options = Field(default_factory=dict, description="what the class is made with, or the function gets too")

    def build(self) -> Loss:
        made = registry.load(registry.own_address("loss", self.kind) or self.kind)
        if not isinstance(made, type):
            return partial(made, **self.options) if self.options else made
        try:
            loss: Loss = made(**self.options)
            return loss
        except Exception as error:
            raise InvalidInput(f"{self.kind} could not be made with options {dict(self.options)!r}: {error}") from error


class _LossSlot(Slot):
    """Takes a plain function or class of somebody's own beside the tables of losses."""

    def find(self, name: object) -> type[Spec] | None:
        shipped = not isinstance(name, str) or name in SHIPPED["loss"]
        own = None if shipped else registry.own_address("loss", str(name))
        if own is None:
            return super().find(name)
        registry.check_allowed(own)
        made = registry.load(own)
        if isinstance(made, type) and issubclass(made, Spec):
            return super().find(name)
        if not callable(made):
            raise InvalidInput(f"it is no function (scores, labels) and no class, but {made!r}")
        return OwnLoss


AnyLoss = Annotated[LossSpec, _LossSlot("loss")]


# --- the functions ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def _constants(values: tuple[float, ...], device: torch.device) -> Tensor:
    return torch.tensor(values, device=device)


@dataclass(frozen=True)
class WeightedCrossEntropy:
    """The mean over records of their class's weight times their cross-entropy."""

    weights: tuple[float, ...]

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        log_chances = torch.log_softmax(scores, -1) * _constants(self.weights, scores.device)
        return -log_chances.gather(-1, labels.unsqueeze(-1)).mean()


@dataclass(frozen=True)
class LabelEntropy:
    """The mean over records and labels of the log loss; where a label is set it counts as much as its weight says."""

    weights: tuple[float, ...] | None = None

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        weights = None if self.weights is None else _constants(self.weights, scores.device)
        return functional.binary_cross_entropy_with_logits(scores, labels, pos_weight=weights)


@dataclass(frozen=True)
class TaskLoss:
    """A loss on scores and labels as they are: `task` brings both into the form that `loss` takes."""

    task: LearningTask
    loss: Loss

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        return self.loss(*self.task.pair(scores, labels))


@dataclass(frozen=True)
class OneByOne:
    """A loss that PyTorch cannot compute for many clients at once: it is computed for one after the other."""

    loss: Loss
    one_by_one: ClassVar[bool] = True

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        return self.loss(scores, labels)


def loss_of(model: str, given: LossSpec | None, task: LearningTask) -> Loss:
    """The loss `(scores [B, outputs], labels [B, ...]) -> mean` that a model learns a task by."""
    if task.kind == CLASSIFICATION:
        return models.loss_for(model) if given is None else given.build()
    spec: LossSpec = registry.make("loss", task.loss) if given is None else given
    return TaskLoss(task, spec.build())


# --- losses of somebody's own -----------------------------------------------------------------------------------------


def checked_own(loss: Loss, task: LearningTask, outputs: int) -> Loss:
    """The loss in a form that any cohort can be trained by, once it was tried on public scores and labels.

    Refused are one that gives no finite number with a gradient, and one that gives another the next time: clients that
    are computed side by side would learn from each other.
    """
    try:
        found, again = (_gradients(loss, task, outputs, slice(None)) for _ in range(2))
    except Exception as error:
        raise InvalidInput(
            f"model.loss failed on {RECORDS} records with {outputs} scores each ({error}): it takes scores and labels, "
            "and returns their mean loss as one number, by PyTorch's functions"
        ) from error
    if not bool(torch.isfinite(found).all()):
        raise InvalidInput("model.loss has a gradient that is not finite for ordinary scores: check its formula")
    if not torch.equal(found, again):
        raise InvalidInput(
            "model.loss gives another gradient when it is called again: let it depend on scores and labels alone, and "
            "neither draw random numbers nor keep anything from call to call"
        )
    return loss if _vectorises(loss, task, outputs) else OneByOne(loss)


def _vectorises(loss: Loss, task: LearningTask, outputs: int) -> bool:
    scores, labels = _probes(task, outputs)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("error", "There is a performance drop")  # PyTorch would loop by itself
            torch.func.vmap(loss)(torch.stack([scores, scores]), torch.stack([labels, labels]))
    except Exception:  # one client's own did work
        return False
    return True


def check_apart(loss: Loss, task: LearningTask, outputs: int) -> None:
    """Refuse a loss in which a record's gradient depends on the others of its batch: clipping would bound another one.

    It is told by public scores: the gradient of a mean is that of each record alone, divided by their number.
    """
    together = _gradients(loss, task, outputs, slice(None)) * RECORDS
    alone = torch.cat([_gradients(loss, task, outputs, slice(row, row + 1)) for row in range(RECORDS)])
    if not torch.allclose(together, alone, rtol=1e-3, atol=1e-6):
        raise InvalidInput(
            "model.loss mixes the records of a batch: the gradient of several is not the mean of theirs. Private "
            "training takes one record at a time, so return the mean over records of a figure of each, or take a "
            "method that needs no gradients of single records, such as fedavg"
        )


def _probes(task: LearningTask, outputs: int) -> tuple[Tensor, Tensor]:
    """Public scores and labels of a few records."""
    scores = (torch.arange(RECORDS * outputs, dtype=torch.float32).reshape(RECORDS, outputs) * 0.7).sin()
    return scores, torch.from_numpy(task.numbered(np.arange(RECORDS) % task.kinds(outputs), outputs))


def _gradients(loss: Loss, task: LearningTask, outputs: int, rows: slice) -> Tensor:
    scores, labels = (values[rows] for values in _probes(task, outputs))
    (gradient,) = torch.autograd.grad(loss(scores.requires_grad_(), labels), scores)
    return gradient


__all__ = [
    "AbsoluteError", "AnyLoss", "BinaryCrossEntropy", "CrossEntropy", "Huber", "LabelEntropy", "LossSpec", "OneByOne",
    "OwnLoss",
    "SquaredError", "TaskLoss", "WeightedCrossEntropy", "check_apart", "checked_own", "loss_of",
]  # fmt: skip

"""How good a model is on examples: what metrics are computed from, in pieces that add up."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.errors import InvalidInput
from sordino.learning.examples import Examples, Normalisation
from sordino.learning.models import Loss, call, has_batch_norm, parameter_layout, statistics_keepers
from sordino.learning.tasks import CLASSES, CLASSIFICATION, Answers, LearningTask, Regression

PIECE = 1000  #: examples scored at a time, always: whoever computes a piece gets the same figures


@dataclass(frozen=True, eq=False)
class Scores:
    """What is known of some examples: of classes, `confusion[i, j]` counts those of class i taken for class j.

    Of classes there are `labels` and `chances` only where a metric needs them; of other tasks there is no confusion.
    """

    confusion: NDArray[np.int64]
    loss_sum: float
    labels: Answers = field(default_factory=lambda: np.zeros(0, np.int64))  #: [n], or [n, labels]
    chances: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))  #: [n, names]
    answers: NDArray[np.float32] = field(default_factory=lambda: np.zeros(0, np.float32))  #: [n], of a regression

    @property
    def examples(self) -> int:
        """How many examples were scored."""
        return max(int(self.confusion.sum()), len(self.labels))

    @property
    def accuracy(self) -> float:
        """The share of right answers; 0 where there are no classes."""
        return float(np.trace(self.confusion)) / max(1, self.examples)

    @property
    def loss(self) -> float:
        """The mean loss; infinite where the model puts out no finite number."""
        return self.loss_sum / max(1, self.examples)

    @classmethod
    def none(cls, classes: int, task: LearningTask = CLASSES) -> Scores:
        """The scores of no examples of a task with so many names."""
        nobody = task.numbered(np.zeros(0, np.int64), classes)
        if isinstance(task, Regression):
            return cls(np.zeros((0, 0), np.int64), 0.0, nobody)
        width = classes if task.kind == CLASSIFICATION else 0
        return cls(np.zeros((width, width), np.int64), 0.0, nobody, np.zeros((0, classes), np.float32))

    @classmethod
    def together(cls, pieces: Sequence[Scores]) -> Scores:
        """The scores of all pieces, added in their order."""
        return cls(
            np.sum([piece.confusion for piece in pieces], axis=0),
            sum(piece.loss_sum for piece in pieces),
            np.concatenate([piece.labels for piece in pieces]),
            np.concatenate([piece.chances for piece in pieces]),
            np.concatenate([piece.answers for piece in pieces]),
        )

    def of_constant(self) -> Scores:
        """The scores of a model that gives the same answer to all these examples.

        It is the commonest class, with the classes' shares as chances; the labels' shares; or the labels' mean.
        """
        n = len(self.labels)
        if len(self.answers):
            return replace(self, answers=np.full(n, self.labels.astype(np.float64).mean(), np.float32))
        if not self.confusion.size:
            return replace(self, chances=np.tile(self.labels.mean(axis=0, dtype=np.float32), (n, 1)))
        there = self.confusion.sum(axis=1)
        confusion = np.zeros_like(self.confusion)
        confusion[:, there.argmax()] = there
        shares = (there / max(1, there.sum())).astype(np.float32)
        return replace(self, confusion=confusion, chances=np.tile(shares, (n, 1)))

    def resampled(self, rng: np.random.Generator) -> Scores:
        """The scores of as many examples drawn from these, with replacement."""
        if not len(self.labels):
            shares = self.confusion.reshape(-1) / max(1, self.examples)
            return replace(self, confusion=rng.multinomial(self.examples, shares).reshape(self.confusion.shape))
        rows = rng.integers(0, len(self.labels), len(self.labels))
        labels = self.labels[rows]
        if len(self.answers):
            return replace(self, labels=labels, answers=self.answers[rows])
        found = replace(self, labels=labels, chances=self.chances[rows])
        if not self.confusion.size:
            return found
        return replace(found, confusion=_confusion(labels, found.chances.argmax(axis=1), len(self.confusion)))


def _confusion(labels: Answers, found: NDArray[np.int64], classes: int) -> NDArray[np.int64]:
    counts = np.bincount(labels.astype(np.int64) * classes + found, minlength=classes**2)
    return counts.reshape(classes, classes)


@dataclass(frozen=True, eq=False)
class Exam:
    """Examples to score a model on, with what is public about them."""

    examples: Examples
    normalisation: Normalisation
    classes: int  #: how many scores a model gives
    owners: NDArray[np.int64] | None = None  #: which client each example belongs to, where somebody asks
    keeps_chances: bool = False  #: whether scores have the chance of every class for each example
    task: LearningTask = CLASSES

    @property
    def none(self) -> Scores:
        """The scores of none of the examples."""
        return Scores.none(self.classes, self.task)

    def pieces(self) -> list[slice]:
        """The slices of examples that are scored one after another."""
        return in_pieces(len(self.examples))

    def share(self, client: int) -> NDArray[np.int64]:
        """The positions of one client's own examples."""
        if self.owners is None:
            raise InvalidInput("nobody has said whose the examples of this exam are: give it `owners`")
        return np.flatnonzero(self.owners == client)


def in_pieces(examples: int) -> list[slice]:
    """Slices of `PIECE` examples at most that cover so many examples."""
    return [slice(first, min(first + PIECE, examples)) for first in range(0, examples, PIECE)]


@dataclass(frozen=True, eq=False)
class ExamPiece:
    """Some examples of an exam; `inputs` are these as somebody sees them, where the model does not see them as is."""

    exam: Exam
    where: slice | NDArray[np.int64]
    inputs: NDArray[np.float32] | NDArray[np.uint8] | NDArray[np.int16] | None = None


def score(
    model: nn.Module,
    parameters: NDArray[np.float32],
    buffers: Mapping[str, NDArray[np.float32]] | None,
    loss: Loss,
    piece: ExamPiece,
    device: torch.device | str = "cpu",
) -> Scores:
    """Scores of one piece of an exam.

    A model with batch norm whose statistics the server does not have is scored with those of the piece's own inputs.
    """
    module, tensors = _loaded(model, parameters, buffers, device)
    exam, inputs = piece.exam, piece.inputs
    if inputs is None:
        inputs = exam.normalisation.apply(exam.examples.x[piece.where])
    x = torch.from_numpy(inputs).to(device)
    y = torch.from_numpy(np.array(exam.examples.y[piece.where])).to(device)  # a copy: records may be mapped read-only
    with torch.no_grad():
        scores = call(module, tensors, (x,))
        total = float(loss(scores, y)) * len(y)
    labels, task = y.cpu().numpy(), exam.task
    none = replace(exam.none, loss_sum=total if np.isfinite(total) else float("inf"))
    if isinstance(task, Regression):
        # what is no number counts as the worst answer that there could be
        answers = torch.nan_to_num(task.value(scores.float()), nan=float("inf")).cpu().numpy()
        return replace(none, labels=labels, answers=answers)
    if task.kind != CLASSIFICATION:
        return replace(none, labels=labels, chances=np.nan_to_num(scores.float().sigmoid().cpu().numpy()))
    none = replace(none, confusion=_confusion(labels, scores.argmax(dim=1).cpu().numpy(), exam.classes))
    if not exam.keeps_chances:
        return none
    return replace(none, labels=labels, chances=np.nan_to_num(torch.softmax(scores.float(), dim=1).cpu().numpy()))


def answers_alone(
    model: nn.Module, parameters: NDArray[np.float32], buffers: Mapping[str, NDArray[np.float32]] | None
) -> Callable[[Tensor], Tensor]:
    """A function from one input `[1, ...]` to the model's scores `[1, names]` of it, on the processor.

    Each call has fresh copies of all tensors, so that no other record can change its scores, not in the last bit.
    """
    if has_batch_norm(model) and buffers is None:
        raise InvalidInput("a model with batch norm, and without its statistics, scores no record by itself")
    if any(tensor.device.type != "cpu" for tensor in (*model.parameters(), *model.buffers())):
        model = copy.deepcopy(model)  # the one on a GPU is in use there
    module, tensors = _loaded(model, parameters, buffers, "cpu")

    def answer(one: Tensor) -> Tensor:
        with torch.no_grad():
            return call(module, {name: tensor.clone() for name, tensor in tensors.items()}, (one.clone(),))

    return answer


def _loaded(
    model: nn.Module,
    parameters: NDArray[np.float32],
    buffers: Mapping[str, NDArray[np.float32]] | None,
    device: torch.device | str,
) -> tuple[nn.Module, dict[str, Tensor]]:
    """The model as it is scored, and all its tensors by name."""
    layout = parameter_layout(model)
    module = model.to(device).eval()
    if has_batch_norm(model) and buffers is None:
        for part in statistics_keepers(model).values():
            part.train()
    named: dict[str, Tensor] = dict(layout.unflatten(torch.from_numpy(parameters).to(device)))
    own = {name: value.clone() for name, value in module.named_buffers()}
    for name, value in (buffers or {}).items():
        own[name] = torch.from_numpy(np.asarray(value)).to(device).reshape(own[name].shape)
    return module, {**named, **own}


__all__ = ["PIECE", "Exam", "ExamPiece", "Scores", "answers_alone", "in_pieces", "score"]

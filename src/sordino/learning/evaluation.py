"""How good a model is on examples: accuracy, mean loss and confusion matrix, in pieces that add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sordino.errors import InvalidInput
from sordino.learning.examples import Examples, Normalisation
from sordino.learning.models import Loss, call, has_batch_norm, parameter_layout, statistics_keepers

PIECE = 1000  #: examples scored at a time, always: whoever computes a piece gets the same figures


@dataclass(frozen=True, eq=False)
class Scores:
    """Sums over some examples: `confusion[i, j]` counts those of class i taken for class j."""

    confusion: NDArray[np.int64]
    loss_sum: float
    labels: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  #: [n], with chances only
    chances: NDArray[np.float32] = field(default_factory=lambda: np.zeros((0, 0), np.float32))  #: [n, classes]

    @property
    def examples(self) -> int:
        """How many examples were scored."""
        return int(self.confusion.sum())

    @property
    def accuracy(self) -> float:
        """The share of right answers."""
        return float(np.trace(self.confusion)) / max(1, self.examples)

    @property
    def loss(self) -> float:
        """The mean loss; infinite where the model puts out no finite number."""
        return self.loss_sum / max(1, self.examples)

    @classmethod
    def none(cls, classes: int) -> Scores:
        """The scores of no examples."""
        return cls(np.zeros((classes, classes), np.int64), 0.0, chances=np.zeros((0, classes), np.float32))

    @classmethod
    def together(cls, pieces: Sequence[Scores]) -> Scores:
        """The scores of all pieces, added in their order."""
        return cls(
            np.sum([piece.confusion for piece in pieces], axis=0),
            sum(piece.loss_sum for piece in pieces),
            np.concatenate([piece.labels for piece in pieces]),
            np.concatenate([piece.chances for piece in pieces]),
        )


@dataclass(frozen=True, eq=False)
class Exam:
    """Examples to score a model on, with what is public about them."""

    examples: Examples
    normalisation: Normalisation
    classes: int
    owners: NDArray[np.int64] | None = None  #: which client each example belongs to, where somebody asks
    keeps_chances: bool = False  #: whether scores have the chance of every class for each example

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
    layout = parameter_layout(model)
    module = model.to(device).eval()
    if has_batch_norm(model) and buffers is None:
        for part in statistics_keepers(model).values():
            part.train()
    named: dict[str, Tensor] = dict(layout.unflatten(torch.from_numpy(parameters).to(device)))
    own = {name: value.clone() for name, value in module.named_buffers()}
    for name, value in (buffers or {}).items():
        own[name] = torch.from_numpy(np.asarray(value)).to(device).reshape(own[name].shape)
    exam, inputs = piece.exam, piece.inputs
    if inputs is None:
        inputs = exam.normalisation.apply(exam.examples.x[piece.where])
    x = torch.from_numpy(inputs).to(device)
    y = torch.from_numpy(np.ascontiguousarray(exam.examples.y[piece.where])).to(device)
    with torch.no_grad():
        scores = call(module, {**named, **own}, (x,))
        found = scores.argmax(dim=1).cpu().numpy()
        total = float(loss(scores, y)) * len(found)
    labels = y.cpu().numpy()
    counts = np.bincount(labels * exam.classes + found, minlength=exam.classes**2)
    confusion, summed = counts.reshape(exam.classes, exam.classes), total if np.isfinite(total) else float("inf")
    if not exam.keeps_chances:
        return replace(Scores.none(exam.classes), confusion=confusion, loss_sum=summed)
    return Scores(confusion, summed, labels, np.nan_to_num(torch.softmax(scores.float(), dim=1).cpu().numpy()))


__all__ = ["PIECE", "Exam", "ExamPiece", "Scores", "in_pieces", "score"]

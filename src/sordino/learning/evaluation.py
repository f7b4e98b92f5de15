"""How good a model is on examples: accuracy, mean loss and confusion matrix, in pieces that add up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call

from sordino.learning.datasets import Examples, Normalisation
from sordino.learning.models import Loss, has_batch_norm, parameter_layout

PIECE = 1000  #: examples scored at a time, always: whoever computes a piece gets the same figures


@dataclass(frozen=True, eq=False)
class Scores:
    """Sums over some examples: `confusion[i, j]` counts those of class i taken for class j."""

    confusion: NDArray[np.int64]
    loss_sum: float

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
    def together(cls, pieces: Sequence[Scores]) -> Scores:
        """The scores of all pieces, added in their order."""
        return cls(np.sum([piece.confusion for piece in pieces], axis=0), sum(piece.loss_sum for piece in pieces))


@dataclass(frozen=True, eq=False)
class Exam:
    """Examples to score a model on, with what is public about them."""

    examples: Examples
    normalisation: Normalisation
    classes: int

    def pieces(self) -> list[slice]:
        """The pieces in which it is scored."""
        return [slice(first, min(first + PIECE, len(self.examples))) for first in range(0, len(self.examples), PIECE)]


def score(
    model: nn.Module,
    parameters: NDArray[np.float32],
    buffers: Mapping[str, NDArray[np.float32]] | None,
    loss: Loss,
    exam: Exam,
    piece: slice,
    device: torch.device | str = "cpu",
) -> Scores:
    """Scores of one piece.

    A model with batch norm whose statistics the server does not have is scored with those of the piece's own inputs.
    """
    layout = parameter_layout(model)
    module = model.to(device).train(has_batch_norm(model) and buffers is None)
    named: dict[str, Tensor] = dict(layout.unflatten(torch.from_numpy(parameters).to(device)))
    own = {name: value.clone() for name, value in module.named_buffers()}
    for name, value in (buffers or {}).items():
        own[name] = torch.from_numpy(np.asarray(value)).to(device).reshape(own[name].shape)
    x = torch.from_numpy(exam.normalisation.apply(exam.examples.x[piece])).to(device)
    y = torch.from_numpy(np.ascontiguousarray(exam.examples.y[piece])).to(device)
    with torch.no_grad():
        scores = functional_call(module, {**named, **own}, (x,))
        found = scores.argmax(dim=1).cpu().numpy()
        total = float(loss(scores, y)) * len(found)
    counts = np.bincount(y.cpu().numpy() * exam.classes + found, minlength=exam.classes**2)
    return Scores(counts.reshape(exam.classes, exam.classes), total if np.isfinite(total) else float("inf"))


__all__ = ["PIECE", "Exam", "Scores", "score"]

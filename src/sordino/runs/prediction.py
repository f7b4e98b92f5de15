"""What a trained model says about new records: the likeliest class, the labels that are set, or a number."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.learning.evaluation import in_pieces
from sordino.learning.examples import Inputs
from sordino.learning.trained_model import TrainedModel


@dataclass(frozen=True, eq=False)
class Predictions:
    """One class and its probability per record, in the order of the records."""

    classes: tuple[str, ...]
    positions: NDArray[np.int64]  #: [n] in `classes`
    probabilities: NDArray[np.float32]  #: [n]

    def __len__(self) -> int:
        return len(self.positions)

    def to_csv(self) -> str:
        """A table with the columns class and probability."""
        named = (self.classes[position] for position in self.positions.tolist())
        probabilities = (f"{p:.6f}" for p in self.probabilities.tolist())
        return _table(("class", "probability"), zip(named, probabilities, strict=True))


@dataclass(frozen=True, eq=False)
class LabelPredictions:
    """The labels of each record, in the order of the records: those that are likelier set than not."""

    labels: tuple[str, ...]
    probabilities: NDArray[np.float32]  #: [n, labels]

    def __len__(self) -> int:
        return len(self.probabilities)

    @property
    def sets(self) -> list[tuple[str, ...]]:
        """The labels that are set, of each record."""
        return [tuple(np.array(self.labels)[row > 0.5].tolist()) for row in self.probabilities]

    def to_csv(self) -> str:
        """A table with the column labels, their names apart by semicolons, and a column of probabilities for each."""
        rows = (
            (";".join(own), *(f"{p:.6f}" for p in row)) for own, row in zip(self.sets, self.probabilities, strict=True)
        )
        return _table(("labels", *self.labels), rows)


@dataclass(frozen=True, eq=False)
class ValuePredictions:
    """A number of each record in the owner's unit, in the order of the records."""

    name: str
    values: NDArray[np.float32]  #: [n]

    def __len__(self) -> int:
        return len(self.values)

    def to_csv(self) -> str:
        """A table with one column, named after the target."""
        return _table((self.name,), ((f"{value:.6g}",) for value in self.values.tolist()))


AnyPredictions = Predictions | LabelPredictions | ValuePredictions


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    text = io.StringIO()
    written = csv.writer(text, lineterminator="\n")
    written.writerow(head)
    written.writerows(rows)
    return text.getvalue()


def predict_file(model: TrainedModel, data: str | Path) -> AnyPredictions:
    """What the model says about the records of a .csv or .npz file (`TrainedModel.inputs`)."""
    check_takes_records(model)
    return predict(model, model.inputs(data).numpy())


def predict(model: TrainedModel, x: Inputs) -> AnyPredictions:
    """What the model says about raw records `[n, *input_shape]`."""
    # Where statistics are those of a batch, it is all the records: so it was when the run was scored.
    together = model.about.local_statistics
    if together and len(x) < 2:
        raise InvalidInput(
            "the clients kept their batch-norm statistics, so this model compares records with each other: give two or "
            "more, or train with model.buffers = release or group norm"
        )
    pieces = [slice(0, len(x))] if together else in_pieces(len(x))
    with torch.no_grad():
        found = torch.cat([model.answers(torch.from_numpy(x[piece])) for piece in pieces])
    if not bool(found.isfinite().all()):
        row = int((~found.reshape(len(found), -1).isfinite().all(dim=1)).nonzero()[0])
        raise InvalidInput(
            f"the model gives no finite answer for record {row + 1}: check its values; if they are as in the "
            "training data, the run diverged (see its report): run it again with a smaller learning rate"
        )
    if model.target is not None:
        return ValuePredictions(model.classes[0], found.numpy())
    if model.labels is not None:
        return LabelPredictions(model.labels, found.numpy())
    probabilities, positions = found.max(dim=1)
    return Predictions(model.classes, positions.numpy(), probabilities.numpy())


def check_takes_records(model: TrainedModel) -> None:
    """Refuse a model of features that only clients can make."""
    if model.about.takes != "records":
        raise InvalidInput(
            f"the model of {model.about.recipe} takes randomised features, and what makes them of records stays with "
            "each client (method ldpfl): ask a client, or train with another method, such as private-head"
        )


__all__ = ["LabelPredictions", "Predictions", "ValuePredictions", "check_takes_records", "predict", "predict_file"]

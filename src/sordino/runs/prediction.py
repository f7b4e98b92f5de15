"""What a trained model says about new records: the likeliest class of each, and its probability."""

from __future__ import annotations

import csv
import io
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

    def to_csv(self) -> str:
        """A table with the columns class and probability."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(("class", "probability"))
        named = (self.classes[position] for position in self.positions.tolist())
        rows.writerows(zip(named, (f"{p:.6f}" for p in self.probabilities.tolist()), strict=True))
        return text.getvalue()


def predict_file(model: TrainedModel, data: str | Path) -> Predictions:
    """What the model says about the records of a .csv or .npz file (`TrainedModel.inputs`)."""
    check_takes_records(model)
    return predict(model, model.inputs(data).numpy())


def predict(model: TrainedModel, x: Inputs) -> Predictions:
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
        found = torch.cat([model.probabilities(torch.from_numpy(x[piece])) for piece in pieces])
    if not bool(found.isfinite().all()):
        row = int((~found.isfinite().all(dim=1)).nonzero()[0])
        raise InvalidInput(
            f"the model gives no finite probabilities for record {row + 1}: check its values; if they are as in the "
            "training data, the run diverged (see its report): run it again with a smaller learning rate"
        )
    probabilities, positions = found.max(dim=1)
    return Predictions(model.classes, positions.numpy(), probabilities.numpy())


def check_takes_records(model: TrainedModel) -> None:
    """Refuse a model of features that only clients can make."""
    if model.about.takes != "records":
        raise InvalidInput(
            f"the model of {model.about.recipe} takes randomised features, and what makes them of records stays with "
            "each client (method ldpfl): ask a client, or train with another method, such as private-head"
        )


__all__ = ["Predictions", "check_takes_records", "predict", "predict_file"]

"""Models as Opacus makes them, and data as flwr-datasets deals it, under names that recipes can give."""

import datasets
from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner
from opacus import GradSampleModule
from opacus.layers import DPLSTM
from opacus.validators import ModuleValidator
from torch import Tensor, nn

from sordino.learning import datasets as known
from sordino.learning.examples import Dataset, Examples
from sordino.learning.partitions import from_partitions


def fixed(classes: int) -> nn.Module:
    """A network with batch norm, which Opacus replaces by group norm."""
    return ModuleValidator.fix(
        nn.Sequential(nn.Conv2d(1, 32, 3, 2), nn.BatchNorm2d(32), nn.ReLU(), nn.Flatten(), nn.Linear(32 * 9, classes))
    )


def wrapped(classes: int) -> nn.Module:
    """The same in Opacus's wrapper, which keeps what single records do to the layers."""
    return GradSampleModule(fixed(classes))


class Rows(nn.Module):
    """Opacus's LSTM over the rows of a picture."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.lstm, self.head = DPLSTM(8, 8, batch_first=True), nn.Linear(8, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.lstm(x.flatten(1, 2))[0][:, -1])
        return scores


def _table(examples: Examples) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"image": examples.x.tolist(), "label": examples.y.tolist()})


def dealt(alpha: float = 0.0, clients: int = 5) -> Dataset:
    """Digits as flwr-datasets deals them: evenly, or with unlike labels."""
    digits = known.load("digits")
    partitioner = (
        DirichletPartitioner(clients, "label", alpha, min_partition_size=1, seed=1)
        if alpha
        else IidPartitioner(clients)
    )
    partitioner.dataset = _table(digits.train)
    parts = [partitioner.load_partition(client) for client in range(clients)]
    return from_partitions(
        parts, _table(digits.test), x="image", y="label", classes=digits.classes, normalisation=digits.normalisation
    )

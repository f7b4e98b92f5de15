"""Small federations put together by hand, for tests that look inside."""

import itertools
from types import SimpleNamespace

import numpy as np
import torch

from sordino.fleets.simulated import SimulatedFleet
from sordino.fleets.tasks import Population, Work
from sordino.fleets.workers import local
from sordino.learning import models
from sordino.learning.cohort import LocalTraining
from sordino.learning.evaluation import Exam
from sordino.learning.examples import Examples, Normalisation
from sordino.learning.models import cross_entropy
from sordino.learning.optimizers import SGD
from sordino.mechanisms import NoPrivacy
from sordino.methods.aggregation import Mean
from sordino.methods.blueprint import Blueprint, Statistics
from sordino.methods.fedavg import FedAvg
from sordino.methods.interface import Bench
from sordino.methods.selection import SelectAll
from sordino.methods.upload import Upload

FEATURES, CLASSES = 5, 3
VALUES = FEATURES * CLASSES + CLASSES


def examples(count: int, seed: int = 0, features: int = FEATURES) -> Examples:
    rng = np.random.default_rng(seed)
    y = rng.integers(0, CLASSES, count)
    x = rng.normal(0, 1, (count, features)) + 2 * np.eye(CLASSES, features)[y]
    return Examples(x.astype(np.float32), y.astype(np.int64))


def work(
    clients: int = 6,
    each: int = 8,
    *,
    build=lambda _: NoPrivacy(),
    epsilons=None,
    sends: str = "update",
    selection=None,
    aggregation=None,
    training: LocalTraining | None = None,
    sizes: list[int] | None = None,
    data: Examples | None = None,
    seed: int = 1,
    features: int = FEATURES,
) -> Work:
    held = sizes or [each] * clients
    data = data or examples(sum(held), features=features)
    edges = np.cumsum([0, *held])
    parts = tuple(np.arange(a, b) for a, b in itertools.pairwise(edges))
    model = models.build("logistic", input_shape=(features,), classes=CLASSES)
    layout = models.parameter_layout(model)
    upload = Upload(
        build, epsilons, layout.size, clients=len(held), what="model update",
        samples=(aggregation or Mean()).samples,
    )  # fmt: skip
    asked = SimpleNamespace(
        selection=selection or SelectAll(),
        aggregation=aggregation or Mean(),
        server_lr=1.0,
        upload=sends,
    )
    recipe = SimpleNamespace(seed=seed, method=asked, model=SimpleNamespace(starts_fresh=True))
    blueprint = Blueprint(recipe, model, layout, Statistics(), tuple(held), (features,), CLASSES)  # type: ignore[arg-type]
    plainly = training or LocalTraining(SGD(0.1), epochs=2, batch_size=4)
    method = FedAvg(blueprint, upload, plainly)
    exam = Exam(examples(300, 9, features), Normalisation(), CLASSES)
    bench = Bench(device=torch.device("cpu"))
    return Work(method, model, cross_entropy, Population(data, parts, Normalisation()), {"test": exam}, seed, bench)


def fleet(given: Work, ledger=None, workers: int = 1) -> SimulatedFleet:
    return SimulatedFleet(given, ledger, hands=local(workers, [given.bench.device]))

"""From a recipe to its parts: data, clients, model, method, budgets. Nothing is trained here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import nn

from sordino.errors import InvalidInput
from sordino.learning import datasets, models, optimizers, partition
from sordino.learning.cohort import LocalTraining
from sordino.learning.datasets import Dataset, Examples, Normalisation
from sordino.learning.evaluation import Exam
from sordino.learning.models import Layer, Layout
from sordino.learning.optimizers import Optimizer
from sordino.learning.private_sgd import PrivateTraining
from sordino.mechanisms import Mechanism, NoPrivacy
from sordino.methods.fedavg import FedAvg, Statistics
from sordino.methods.interface import Method
from sordino.methods.parts import MechanismBuilder
from sordino.methods.silo_dp import SiloDp
from sordino.methods.upload import Upload
from sordino.privacy.guarantee import Budget
from sordino.privacy.ledger import Consents, MemoryLedger
from sordino.privacy.planning import noise_multiplier_for

if TYPE_CHECKING:
    from sordino import recipe as recipes
    from sordino.recipe import Recipe

Parts = tuple[NDArray[np.int64], ...]


@dataclass(frozen=True, eq=False)
class Federation:
    """A recipe's parts, ready to run."""

    recipe: Recipe
    dataset: Dataset
    parts: Parts  #: the training examples of each client
    exams: Mapping[str, Exam]  #: "test", and "validation" where some examples are set aside
    model: nn.Module
    layout: Layout
    method: Method
    upload: Upload
    batch: int  #: records in a batch, for choosing how to compute
    budgets: Sequence[Budget] | None

    @property
    def clients(self) -> int:
        """N."""
        return len(self.parts)

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """How many examples of each class each client holds."""
        return partition.label_counts(self.dataset.train.y, self.parts, len(self.dataset.classes))

    def ledger(self) -> MemoryLedger | None:
        """The clients' accounts, opened; None where the recipe sets no budget."""
        if self.budgets is None:
            return None
        rule = self.recipe.clients.budget
        claimed = rule is not None and rule.basis == "claimed"
        return MemoryLedger(self.budgets, Consents(frozenset(self.recipe.clients.allow_unproven), claimed))

    @property
    def delta(self) -> float:
        """The delta at which the statement gives its figures."""
        if self.budgets and self.budgets[0].delta > 0:
            return self.budgets[0].delta
        target = getattr(self.recipe.method, "target", None)
        return float(target.delta) if target is not None else 1e-5


def wire(recipe: Recipe) -> Federation:
    """All parts of a recipe; whatever does not fit together is refused here, before any training."""
    dataset = read_data(recipe)
    parts, exams = _set_aside(recipe, dataset, split(recipe, dataset))
    model = models.build(
        recipe.model.name, input_shape=dataset.shape, classes=len(dataset.classes), **recipe.model.options
    )
    layout = models.parameter_layout(model)
    statistics = _statistics(model, recipe.model.buffers)
    method, upload, batch = _method(recipe, model, layout, statistics, parts)
    return Federation(recipe, dataset, parts, exams, model, layout, method, upload, batch, recipe.budgets())


# --- data -------------------------------------------------------------------------------------------------------------


def read_data(recipe: Recipe) -> Dataset:
    """The recipe's data set, cut to its limits."""
    data = recipe.data
    dataset = _own_data(data, recipe.seed) if not _is_known(data.source) else datasets.load(data.source)
    train, test = _cut(dataset.train, data.train_limit), _cut(dataset.test, data.test_limit)
    if not len(test):
        raise InvalidInput(f"{data.source} has no test examples: nothing could be reported about the model")
    return replace(dataset, train=train, test=test)


def _is_known(source: str) -> bool:
    return source in datasets.KNOWN


def _own_data(data: recipes.Data, seed: int) -> Dataset:
    source = data.source
    if ":" in source and not Path(source).exists():
        return datasets.from_function(source, data.arguments)
    normalisation = Normalisation(tuple(data.mean or (0.0,)), tuple(data.std or (1.0,)))
    classes = tuple(data.classes or ())
    path = Path(source)
    if path.suffix == ".npz":
        return datasets.from_npz(path, classes=classes, normalisation=normalisation)
    if data.test is None:
        raise InvalidInput(f"data.test is missing: name the test {'folder' if path.is_dir() else 'table'}, or a share")
    if path.suffix == ".csv":
        assert data.label is not None
        return datasets.from_csv(
            path, test=data.test, label=data.label, classes=classes, normalisation=normalisation,
            features=data.features, seed=seed,
        )  # fmt: skip
    return datasets.from_images(
        path, test=data.test, classes=classes, normalisation=normalisation, channels=data.channels or 3, seed=seed
    )


def _cut(examples: Examples, limit: int) -> Examples:
    return examples if not limit or limit >= len(examples) else Examples(examples.x[:limit], examples.y[:limit])


def split(recipe: Recipe, dataset: Dataset) -> list[NDArray[np.int64]]:
    """Whose example is whose."""
    given: Any = recipe.split
    n, seed = len(dataset.train), recipe.seed
    match given.kind:
        case "iid":
            return partition.iid(n, given.clients, seed, at_least=given.at_least)
        case "sizes":
            return partition.by_sizes(n, given.sizes, seed, at_least=given.at_least)
        case "dirichlet":
            return partition.dirichlet(dataset.train.y, given.clients, given.beta, seed, at_least=given.at_least)
        case "shards":
            return partition.shards(dataset.train.y, given.clients, given.labels_per_client, seed)
        case "files":
            return partition.from_files(given.files, n, at_least=given.at_least)
    raise InvalidInput(f"unknown split {given.kind!r}")


def _set_aside(recipe: Recipe, dataset: Dataset, parts: Sequence[NDArray[np.int64]]) -> tuple[Parts, dict[str, Exam]]:
    """Training examples of each client, and the exams: the test set, and what clients set aside for tuning."""
    classes = len(dataset.classes)
    exams = {"test": Exam(dataset.test, dataset.normalisation, classes)}
    if not recipe.data.validation:
        return tuple(parts), exams
    pairs = [
        partition.validation_split(part, recipe.data.validation, recipe.seed, client=k) if len(part) else (part, part)
        for k, part in enumerate(parts)
    ]
    aside = np.sort(np.concatenate([held for _, held in pairs]))
    if not aside.size:
        raise InvalidInput(
            f"data.validation = {recipe.data.validation} sets aside no example of any client: raise it, or take larger "
            "clients"
        )
    exams["validation"] = Exam(dataset.train.take(aside), dataset.normalisation, classes)
    return tuple(kept for kept, _ in pairs), exams


# --- model and training -----------------------------------------------------------------------------------------------


def _statistics(model: nn.Module, policy: Any) -> Statistics:
    released = models.released_buffers(model, policy)
    tracked = set(models.running_statistics(model))
    start = {name: value.detach().clone() for name, value in model.named_buffers() if name in tracked}
    return Statistics("release" if policy == "release" else "local", start, released)


def optimizer(given: Any) -> Optimizer:
    """The recipe's optimiser."""
    common = {"lr": given.lr, "weight_decay": given.weight_decay, "decay": given.decay}
    match given.name:
        case "sgd":
            return optimizers.SGD(**common, momentum=given.momentum, nesterov=given.nesterov)
        case "adam":
            return optimizers.Adam(**common, betas=(given.beta1, given.beta2), epsilon=given.epsilon)
        case "rmsprop":
            return optimizers.RMSprop(**common, rho=given.rho, epsilon=given.epsilon, momentum=given.momentum)
    raise InvalidInput(f"unknown optimiser {given.name!r}")


def local_training(recipe: Recipe) -> LocalTraining:
    """The recipe's plain local training."""
    given = recipe.training
    return LocalTraining(
        optimizer(given.optimizer),
        epochs=given.epochs,
        steps=given.steps,
        batch_size=given.batch_size or None,
        shuffle=given.shuffle,
        drop_last=given.drop_last,
        loss=models.loss_for(recipe.model.name),
    )


def private_training(recipe: Recipe, parts: Parts) -> PrivateTraining:
    """The recipe's DP-SGD in silos; the noise follows from its target where it names one."""
    given: Any = recipe.method
    sigma = given.noise_multiplier
    if given.target is not None:
        sigma = noise_multiplier_for(
            given.target.epsilon, given.target.delta,
            sampling_rate=given.sampling_rate, steps=given.steps, rounds=recipe.rounds.count,
        )  # fmt: skip
    announced = given.announced_size or sum(map(len, parts)) / len(parts)
    return PrivateTraining(
        optimizer(recipe.training.optimizer),
        clip=given.clip,
        noise_multiplier=sigma,
        sampling_rate=given.sampling_rate,
        expected_batch=given.sampling_rate * announced,
        steps=given.steps,
        loss=models.loss_for(recipe.model.name),
    )


# --- methods ----------------------------------------------------------------------------------------------------------


def _method(
    recipe: Recipe, model: nn.Module, layout: Layout, statistics: Statistics, parts: Parts
) -> tuple[Method, Upload, int]:
    given: Any = recipe.method
    initial = layout.flatten(models.initial_parameters(model, recipe.seed)).numpy()
    common: dict[str, Any] = {
        "selection": given.selection,
        "aggregation": given.aggregation,
        "seed": recipe.seed,
        "server_lr": given.server_lr,
        "statistics": statistics,
    }
    samples = given.aggregation.kind == "samples"
    values = layout.size + statistics.size
    match given.name:
        case "fedavg":
            what = "model update" if given.upload == "update" else "model weights"
            build = MechanismBuilder(given.mechanism, given.range, _with_statistics(layout, statistics), values)
            upload = Upload(
                build, recipe.epsilons(), values, clients=len(parts), samples=samples,
                what=f"{what} and batch-norm statistics" if statistics.size else what,
            )  # fmt: skip
            upload.mechanisms  # noqa: B018 (refuses now what the range or the strengths do not allow)
            training = local_training(recipe)
            batch = training.batch_size or max(1, max(map(len, parts)))
            return FedAvg(model, initial, training, upload, sends=given.upload, **common), upload, batch
        case "silo-dp":
            if empty := [k for k, part in enumerate(parts) if not len(part)]:
                raise InvalidInput(
                    f"silo {empty[0]} holds no records, so there is nothing to protect: set split.at_least=1"
                )
            upload = Upload(_plain, None, values, clients=len(parts), what="", samples=samples)
            silo = private_training(recipe, parts)
            return SiloDp(model, initial, silo, upload, sends="update", **common), upload, 1
    raise InvalidInput(f"unknown method {given.name!r}")


def _plain(_: float | None) -> Mechanism:
    """What a silo sends is private already: it travels as it is."""
    return NoPrivacy()


def _with_statistics(layout: Layout, statistics: Statistics) -> Layout:
    """The layout of what is sent: the layers, and released statistics as one layer more, called `statistics`."""
    if not statistics.size:
        return layout
    more = Layer("statistics", layout.size, layout.size + statistics.size)
    return replace(layout, layers=(*layout.layers, more))


def effort(federation: Federation) -> float:
    """About how much computing the whole run is, in records times parameters."""
    recipe = federation.recipe
    held = sum(map(len, federation.parts))
    given: Any = recipe.method
    training = recipe.training
    if given.name == "silo-dp":
        records = held * given.sampling_rate * given.steps
    elif training.steps is not None:
        records = training.steps * (training.batch_size or held / federation.clients) * federation.clients
    else:
        records = held * (training.epochs or 1)
    return float(records * recipe.rounds.count * federation.layout.size)


__all__ = ["Federation", "effort", "read_data", "split", "wire"]

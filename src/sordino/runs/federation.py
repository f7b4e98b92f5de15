"""From a recipe to its parts: data, clients, model, method, budgets. Nothing is trained here."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sordino import channels
from sordino.channels.spec import ReleasesOf
from sordino.errors import InvalidInput
from sordino.fleets.tasks import Population, Work
from sordino.learning import losses, partition
from sordino.learning.evaluation import Exam
from sordino.learning.examples import Dataset
from sordino.learning.held_out import held_out
from sordino.learning.metrics import MetricSpec
from sordino.learning.models import Loss, ParameterLayout
from sordino.learning.partition import Partition
from sordino.learning.tasks import CLASSIFICATION, LearningTask
from sordino.methods.blueprint import blueprint_of, model_as_built
from sordino.methods.interface import PARAMETERS, Bench, Method
from sordino.methods.private_evaluation import PrivateEvaluation, private_evaluation
from sordino.methods.upload import Upload
from sordino.parts import registry
from sordino.parts.timeline import phase
from sordino.privacy.guarantee import Budget
from sordino.privacy.ledger import Consents, MemoryLedger
from sordino.recipe.sources import read_data
from sordino.recipe.task_checks import check_task

if TYPE_CHECKING:
    from sordino.recipe import Recipe

_Positions = Sequence[NDArray[np.int64]]  # of each client's records


@dataclass(frozen=True, eq=False)
class Federation:
    """A recipe's parts, ready to run."""

    recipe: Recipe
    dataset: Dataset
    parts: Partition  #: the training examples of each client
    exams: Mapping[str, Exam]  #: "test", and "validation" where some examples are set aside
    model: nn.Module
    layout: ParameterLayout
    method: Method
    budgets: Sequence[Budget] | None
    record_shape: tuple[int, ...]  #: of a record as the model sees it
    releases: ReleasesOf  #: what a report on a plan tells of its client, behind the recipe's channel
    evaluation: PrivateEvaluation | None = None  #: on records that clients set aside
    held_out: Sequence[NDArray[np.int64]] = ()  #: the positions of these records, of each client

    @property
    def upload(self) -> Upload:
        """How values leave a client in the first round."""
        return self.method.first_upload

    @property
    def effort(self) -> float:
        """About how much computing the whole run is, in records times parameters."""
        return self.method.records_per_round * self.recipe.rounds.count * self.layout.size

    @property
    def clients(self) -> int:
        """Number of clients."""
        return len(self.parts)

    @property
    def classes(self) -> list[int]:
        """The class of each client: clients of one class make the same releases."""
        return [self.method.class_of(client) for client in range(self.clients)]

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """How many examples of each class, or with each label, each client holds; of numbers, how many in all."""
        train, names, task = self.dataset.train, self.dataset.classes, self.dataset.task
        if task.kind == CLASSIFICATION:
            return partition.label_counts(train.y.astype(np.int64), self.parts, len(names))
        return np.stack([task.counts(train.y[part], names).sum(axis=0) for part in self.parts])

    @property
    def metric(self) -> MetricSpec | None:
        """What the run is judged by; None where that is the accuracy alone."""
        return _metric(self.recipe, self.dataset.task)

    @property
    def population(self) -> Population:
        """The clients and their records."""
        return Population(self.dataset.train, self.parts, self.dataset.normalisation)

    @property
    def graded(self) -> tuple[nn.Module, Loss]:
        """The model that is scored, and its loss."""
        given = self.recipe.model
        return self.method.graded or self.model, losses.loss_of(given.name, given.loss, self.dataset.task)

    def work(self, bench: Bench) -> Work:
        """What simulated clients compute, and on which records."""
        return Work(
            self.method, *self.graded, self.population, self.exams, self.recipe.seed, bench, self.evaluation,
            self.held_out,
        )  # fmt: skip

    def holding(self, work: Work) -> Federation:
        """The same over the examples of `work`, so that those it was wired with can be let go."""
        dataset = replace(self.dataset, train=work.population.examples, test=work.exams["test"].examples)
        return replace(self, dataset=dataset, exams=work.exams)

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
        own = self.recipe.method
        target = own if hasattr(own, "delta") else getattr(own, "target", None)
        return float(target.delta) if target is not None else 1e-5


def wire(recipe: Recipe, dataset: Dataset | None = None) -> Federation:
    """All parts of a recipe; whatever does not fit together is refused here, before any training.

    `dataset` is the data where it is in memory (`sordino.recipe.sources.pinned`).
    """
    with phase("data"):
        dataset = read_data(recipe, dataset)
    check_task(recipe, dataset.task, dataset.classes)
    dealt = partition.check_dealt(
        recipe.split.parts(dataset, recipe.seed), len(dataset.train), recipe.number_of_clients
    )
    trained, held_out = _sides(recipe, dataset, dealt)
    parts, exams = _set_aside(recipe, dataset, trained)
    sizes = tuple(parts.sizes)
    if not any(sizes):
        raise InvalidInput(
            "no client holds a record: there is nothing to learn from. Give some of them split.sizes > 0, or hold out "
            "fewer with data.test"
        )
    blueprint, seen = blueprint_of(recipe, dataset.shape, len(dataset.classes), sizes, task=dataset.task)
    if recipe.model.is_own and seen == tuple(dataset.shape):
        _try_largest(blueprint.model, dataset)
    method = recipe.method.build(blueprint)
    return Federation(
        recipe, dataset, parts, exams, blueprint.model, blueprint.layout, method, recipe.budgets(), seen,
        channels.releases(recipe, method),
        private_evaluation(recipe, method, blueprint.model, dataset.task, dataset.classes, dataset.shape), held_out,
    )  # fmt: skip


def _sides(recipe: Recipe, dataset: Dataset, dealt: Sequence[NDArray[np.int64]]) -> tuple[_Positions, _Positions]:
    """The records that each client trains on, and those that it sets aside for private evaluation."""
    given = recipe.evaluation.private
    if given is None:
        return dealt, ()
    aside = held_out(dataset.train.x, given.share, recipe.seed)
    if empty := [k for k, part in enumerate(dealt) if len(part) and aside[part].all()]:
        raise InvalidInput(
            f"evaluation.private.share = {given.share:g} sets aside all {len(dealt[empty[0]])} records of client "
            f"{empty[0]}: lower it, or take larger clients. A coordinator of real clients, who have their own records, "
            "gives more rows in data.source: made-up ones do"
        )
    return Partition(part[~aside[part]] for part in dealt), Partition(part[aside[part]] for part in dealt)


def _try_largest(model: nn.Module, dataset: Dataset) -> None:
    """Refuse an own model that fails on the largest values there are: an embedding may have too few rows for them."""
    largest = dataset.normalisation.apply(dataset.train.x.max(axis=0, keepdims=True))
    tried = copy.deepcopy(model).eval()
    try:
        with torch.no_grad():
            tried(torch.from_numpy(largest))
    except Exception as error:
        raise InvalidInput(
            f"the model fails on a record with the largest value of each place ({error}). An embedding needs a row for "
            "each number that records hold: of a column of tokens, two more than the vocabulary has words"
        ) from error


def check_start_travels(federation: Federation) -> None:
    """Refuse, for real clients, a file to start from that holds something else than they build and no plan carries."""
    recipe, method, dataset = federation.recipe, federation.method, federation.dataset
    if recipe.model.start_file is None:
        return
    plan = method.plan(method.init(), recipe.name)
    travels = {*plan.arrays, *(federation.layout.names if PARAMETERS in plan.arrays else ())}
    built = model_as_built(recipe, dataset.shape, len(dataset.classes))[0].state_dict()
    lost = [
        name
        for name, value in federation.model.state_dict().items()
        if name not in travels and not torch.equal(value, built[name])
    ]
    if lost:
        raise InvalidInput(
            f"model.start = {recipe.model.start_file!r} holds numbers that no plan carries to clients, who would "
            f"compute with others ({', '.join(lost)}): let a class of your own load them when it is built, or "
            "simulate this recipe with sordino run"
        )


def _metric(recipe: Recipe, task: LearningTask) -> MetricSpec | None:
    if recipe.evaluation.metric is not None or task.kind == CLASSIFICATION:
        return recipe.evaluation.metric
    found: MetricSpec = registry.make("metric", task.metric)
    return found


def _set_aside(
    recipe: Recipe, dataset: Dataset, parts: Sequence[NDArray[np.int64]]
) -> tuple[Partition, dict[str, Exam]]:
    """Training examples of each client, and the exams: the test set, and what clients set aside for tuning.

    Where clients see examples in their own ways, each is examined on its own: what it set aside, and an equal share of
    the test set, dealt in turn.
    """
    classes = len(dataset.classes)
    dealt = np.arange(len(dataset.test)) % len(parts)
    metric = _metric(recipe, dataset.task)
    chances = metric is not None and metric.needs_chances
    exams = {"test": Exam(dataset.test, dataset.normalisation, classes, dealt, chances, dataset.task)}
    if not recipe.data.validation:
        return Partition(parts), exams
    pairs = [
        partition.validation_split(part, recipe.data.validation, recipe.seed, client=k) if len(part) else (part, part)
        for k, part in enumerate(parts)
    ]
    aside = np.concatenate([held for _, held in pairs])
    order = np.argsort(aside, kind="stable")
    owners = np.repeat(np.arange(len(pairs)), [len(held) for _, held in pairs])[order]
    if not aside.size:
        raise InvalidInput(
            f"data.validation = {recipe.data.validation} sets aside no example of any client: raise it, or take larger "
            "clients"
        )
    taken = dataset.train.take(aside[order])
    exams["validation"] = Exam(taken, dataset.normalisation, classes, owners, chances, dataset.task)
    return Partition(kept for kept, _ in pairs), exams


__all__ = ["Federation", "check_start_travels", "wire"]

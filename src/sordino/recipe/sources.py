"""The data that a recipe names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.errors import InvalidInput
from sordino.learning import datasets, memory, own_data, tables
from sordino.learning.examples import Dataset, Examples, Normalisation
from sordino.learning.tasks import CLASSES
from sordino.parts.toml import key

if TYPE_CHECKING:
    from sordino import recipe as recipes
    from sordino.recipe import Recipe


def read_data(recipe: Recipe, dataset: Dataset | None = None) -> Dataset:
    """The recipe's data set, cut to its limits; `dataset` where it is in memory (`pinned`)."""
    data = recipe.data
    if dataset is None:
        dataset = source_of(data, recipe.seed, recipe.split.source_column)
    train, test = _cut(dataset.train, data.train_limit), _cut(dataset.test, data.test_limit)
    if not len(test) and recipe.evaluation.private is None:
        if data.origin == "npz":
            remedy = "put some into it as x_test and y_test, beside x_train and y_train"
        elif isinstance(data.test, float):
            remedy = f"data.test = {data.test:g} holds out none of {len(dataset.train)}: give a larger fraction"
        else:
            remedy = "it must return some"
        raise InvalidInput(
            f"{data.source} has no test examples, and without them nothing could be reported about the model: {remedy}"
        )
    return replace(dataset, train=train, test=test)


def pinned(recipe: Recipe, handed: object = None) -> tuple[Recipe, Dataset | None]:
    """The recipe with digests of its vocabulary files, and the data set that was handed in.

    So a run that goes on later is about the same words. A recipe says nothing of private data: which it was is in a
    file of the run's folder.
    """
    data, changes = recipe.data, dict[str, object]()
    if data.columns and any(rule.pinned() != rule for rule in data.columns.values()):
        changes = {f"data.columns.{key(name)}": rule.pinned() for name, rule in data.columns.items()}
    if changes:
        recipe = recipe.with_(changes)
    if handed is None:
        return recipe, None
    if data.origin != "memory":
        raise InvalidInput(
            f'data was handed in, and data.source = "{data.source}" names other data: set data.source = "memory", or '
            "hand nothing in"
        )
    about = memory.About(
        data.names, data.task, data.label, data.features, data.columns or {}, data.test, _constants(data),
        recipe.split.source_column, recipe.seed,
    )  # fmt: skip
    return recipe, memory.from_memory(handed, about)


def _constants(data: recipes.Data) -> Normalisation | None:
    if data.mean is None and data.std is None:
        return None
    return Normalisation(data.mean or (0.0,), data.std or (1.0,))


def source_of(
    data: recipes.Data, seed: int, column: str | int | None = None, apart: tables.ClientReading | None = None
) -> Dataset:
    """All examples of a source, a known data set or one's own; `column` is no feature and lies beside the records.

    `apart` says how a client reads its own files.
    """
    if data.origin == "known":
        return datasets.load(data.source)
    if data.origin == "memory":
        raise InvalidInput(
            'data.source = "memory" is data that a program hands in: sordino.run(recipe, data=...) in Python, with '
            "folder=... and resume=True to go on with a run"
        )
    if data.origin == "function":
        return own_data.from_function(data.source, data.arguments)
    normalisation = _constants(data) or Normalisation()
    path, names, task = Path(data.source), data.names, data.task or CLASSES
    if data.origin == "npz":
        return own_data.from_npz(
            path, classes=names, normalisation=normalisation, column=column, task=task, apart=apart
        )
    if data.origin == "table":
        return own_data.from_csv(
            path, test=data.test, label=data.label, classes=names, normalisation=normalisation,
            features=data.features, rules=data.columns or {}, column=column, seed=seed, task=task,
            apart=apart,
        )  # fmt: skip
    return own_data.from_images(
        path, test=data.test, classes=names, normalisation=normalisation, channels=data.channels or 3, seed=seed,
        apart=apart,
    )  # fmt: skip


def _cut(examples: Examples, limit: int) -> Examples:
    return examples if not limit or limit >= len(examples) else Examples(examples.x[:limit], examples.y[:limit])

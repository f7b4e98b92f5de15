"""The data that a recipe names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from sordino.errors import InvalidInput
from sordino.learning import datasets, own_data
from sordino.learning.examples import Dataset, Examples, Normalisation
from sordino.learning.tasks import CLASSES

if TYPE_CHECKING:
    from sordino import recipe as recipes
    from sordino.recipe import Recipe


def read_data(recipe: Recipe) -> Dataset:
    """The recipe's data set, cut to its limits."""
    data = recipe.data
    dataset = source_of(data, recipe.seed, recipe.split.source_column)
    train, test = _cut(dataset.train, data.train_limit), _cut(dataset.test, data.test_limit)
    if not len(test):
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


def source_of(data: recipes.Data, seed: int, column: str | int | None = None) -> Dataset:
    """All examples of a source, a known data set or one's own; `column` is no feature and lies beside the records."""
    if data.origin == "known":
        return datasets.load(data.source)
    if data.origin == "function":
        return own_data.from_function(data.source, data.arguments)
    normalisation = Normalisation(data.mean or (0.0,), data.std or (1.0,))
    path, names, task = Path(data.source), data.names, data.task or CLASSES
    if data.origin == "npz":
        return own_data.from_npz(path, classes=names, normalisation=normalisation, column=column, task=task)
    if data.origin == "table":
        return own_data.from_csv(
            path, test=data.test, label=data.label, classes=names, normalisation=normalisation,
            features=data.features, column=column, seed=seed, task=task,
        )  # fmt: skip
    return own_data.from_images(
        path, test=data.test, classes=names, normalisation=normalisation, channels=data.channels or 3, seed=seed
    )


def _cut(examples: Examples, limit: int) -> Examples:
    return examples if not limit or limit >= len(examples) else Examples(examples.x[:limit], examples.y[:limit])

"""Data in memory, as `sordino.run` takes it: data frames, Hugging Face data sets, torch data sets, arrays.

None of these libraries is needed: what is handed in is known by its form.
"""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.learning import own_data
from sordino.learning.columns import ColumnRules
from sordino.learning.examples import NO_RULES, Dataset, Normalisation
from sordino.learning.tables import Frame
from sordino.learning.tasks import MULTI_LABEL, LearningTask

FORMS = (
    "a pandas data frame, a Hugging Face datasets.Dataset, a torch Dataset of pairs (x, y), a pair of arrays (x, y), "
    'or a sordino Dataset; with a test part of its own, a mapping {"train": ..., "test": ...} of two of these'
)


@dataclass(frozen=True)
class About:
    """What a recipe says of data in memory; None and empty where it says nothing."""

    names: Sequence[str] = ()  #: of classes or labels, or of the one target
    task: LearningTask | None = None
    label: str | int | None = None
    features: Sequence[str] | Sequence[int] | None = None
    rules: ColumnRules = field(default_factory=lambda: NO_RULES)
    test: str | float | None = None
    normalisation: Normalisation | None = None
    column: str | int | None = None  #: beside the records, for a split
    seed: int = 0


_KEYS = {"rules": "columns", "names": "classes"}  #: as recipes call them


def from_memory(data: object, about: About) -> Dataset:
    """The data set that was handed in; what is missing of its description is named."""
    if isinstance(data, Dataset):
        if said := [name for name in ("names", "label", "features", "rules", "test") if getattr(about, name)]:
            raise InvalidInput(f"data.{_KEYS.get(said[0], said[0])}: a sordino Dataset has its own: leave it out")
        return own_data.with_checked_columns("memory", data)
    train, test = data, about.test
    if isinstance(data, Mapping):
        if set(data) != {"train", "test"}:
            raise InvalidInput(f"data: got a mapping with {list(data)}; allowed: train and test")
        train, test = data["train"], data["test"]
    elif isinstance(test, str):
        raise InvalidInput(f"data.test = {test!r}: of data in memory the test part is handed in as well, or a fraction")
    if test is None:
        raise InvalidInput('data.test is missing: hold out a fraction, or hand in {"train": ..., "test": ...}')
    if _is_table(train):
        return _from_frames(train, test, about)
    return _from_pairs(train, test, about)


def _is_table(data: object) -> bool:
    return hasattr(data, "__len__") and (hasattr(data, "column_names") or hasattr(data, "iloc"))


def frame_of(data: object, name: str = "memory") -> Frame:
    """A data frame or a Hugging Face data set as a table; class numbers of the latter become their names."""
    if not _is_table(data):
        raise InvalidInput(f"got {type(data).__name__}; allowed: a pandas data frame or a datasets.Dataset")
    table: Any = data
    if hasattr(table, "iloc"):
        names = [str(column) for column in table.columns]
        if len(set(names)) != len(names):
            raise InvalidInput(f"{name}: two columns have the same name: {names}")
        return Frame(name, {column: table.iloc[:, at].tolist() for at, column in enumerate(names)})
    plain = table.with_format(None) if hasattr(table, "with_format") else table  # no tensors
    features = getattr(table, "features", None) or {}
    return Frame(name, {each: _cells(plain[each], features.get(each)) for each in plain.column_names})


def _cells(values: Any, feature: Any) -> list[object]:
    named = getattr(feature, "int2str", None)
    return [value if named is None or value is None else named(value) for value in values]


def _from_frames(train: object, test: object, about: About) -> Dataset:
    names, task = _answers(about)
    if not isinstance(about.label, str) and task.kind != MULTI_LABEL:
        raise InvalidInput(f"data.label: got {about.label!r}; allowed: the name of the label's column, as text")
    normalisation = _normalisation(about)
    second = test if isinstance(test, float) else frame_of(test, "memory, test")
    return own_data.from_csv(
        frame_of(train), test=second, label=about.label, classes=names, normalisation=normalisation,
        features=about.features, rules=about.rules, column=about.column, seed=about.seed, task=task,
    )  # fmt: skip


def _from_pairs(train: object, test: object, about: About) -> Dataset:
    if wrong := [name for name in ("label", "features", "rules") if getattr(about, name)]:
        raise InvalidInput(f"data.{_KEYS.get(wrong[0], wrong[0])} is for tables, and pairs (x, y) have no columns")
    names, task = _answers(about)
    return own_data.from_arrays(
        arrays_of(train), test=test if isinstance(test, float) else arrays_of(test), classes=names,
        normalisation=_normalisation(about), seed=about.seed, task=task,
    )  # fmt: skip


def _answers(about: About) -> tuple[Sequence[str], LearningTask]:
    """What is learnt, and its names."""
    if about.task is None or not about.names:
        raise InvalidInput(
            "data.classes is missing: the names of all classes, a public list; or data.labels, or data.target for a "
            "number"
        )
    return about.names, about.task


def _normalisation(about: About) -> Normalisation:
    if about.normalisation is None and not about.rules:
        raise InvalidInput(
            "data.mean and data.std are missing: public constants, never computed from the examples; mean = [0] and "
            "std = [1] leave values as they are"
        )
    return about.normalisation or Normalisation()


def arrays_of(data: Any) -> tuple[NDArray[np.generic], NDArray[np.generic]]:
    """x and y of a pair of arrays, or of a torch data set of pairs."""
    if isinstance(data, tuple) and len(data) == 2:
        return np.asarray(data[0]), np.asarray(data[1])
    if not (hasattr(data, "__getitem__") and hasattr(data, "__len__")) or isinstance(data, str | bytes):
        raise InvalidInput(f"got {type(data).__name__}; allowed: {FORMS}")
    pairs = [data[row] for row in range(len(data))]
    try:
        x, y = np.stack([array_of(x) for x, _ in pairs]), np.stack([np.asarray(y) for _, y in pairs])
        if {x.dtype.kind, y.dtype.kind} - set("biuf"):
            raise TypeError(f"x is {x.dtype} and y is {y.dtype}")
    except (TypeError, ValueError) as error:
        raise InvalidInput(
            f"its items are not pairs (x, y) of numbers, all of one shape ({error}): transform images to tensors, or "
            "hand in arrays"
        ) from None
    return x, y


_KEY_BYTES = 32


def array_of(value: Any) -> NDArray[Any]:
    """A record as an array; a picture with its channels first."""
    array = np.asarray(value)
    picture = hasattr(value, "getbands") and array.ndim == 3
    return np.moveaxis(array, -1, 0) if picture else array


def check_of(dataset: Dataset) -> bytes:
    """What tells this data set from others later, under a fresh key: no two of them are alike.

    Whoever has it can try out guesses of a record, since the key is part of it: it is for the data's owner alone.
    """
    key = os.urandom(_KEY_BYTES)
    return key + _digest(dataset, key)


def fits_check(dataset: Dataset, check: bytes) -> bool:
    """Whether a check is of this very data set."""
    key, digest = check[:_KEY_BYTES], check[_KEY_BYTES:]
    return hmac.compare_digest(_digest(dataset, key), digest)


def _digest(dataset: Dataset, key: bytes) -> bytes:
    """HMAC-SHA-256 of all examples, labels and columns of a data set, with its classes and constants."""
    found = hmac.new(key, digestmod=hashlib.sha256)
    said = (dataset.classes, dataset.task, dataset.normalisation, dataset.feature_names, list(dataset.columns))
    found.update(repr(said).encode())
    values = [dataset.train.x, dataset.train.y, dataset.test.x, dataset.test.y, dataset.held_out]
    for part in (*values, *dataset.columns.values()):
        found.update(f"{part.dtype.str} {part.shape} ".encode())
        found.update(np.ascontiguousarray(part).tobytes())
    return found.digest()

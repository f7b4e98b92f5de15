"""Data that others have dealt already: one part for each client, as flwr-datasets and many papers' code hand them out.

The parts become one data set with a column `client` beside its records, by which `split.kind = "column"` deals them
again. None of the libraries is needed: what is handed in is known by its form.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.learning.examples import Dataset, Examples, Normalisation, naming
from sordino.learning.memory import array_of, arrays_of

CLIENT = "client"  #: the column that says whose record each is


def from_partitions(
    partitions: Sequence[Any] | Mapping[str, Any],
    test: Any,
    *,
    classes: Sequence[str],
    normalisation: Normalisation,
    x: str | Sequence[str] = "x",
    y: str = "y",
    name: str = "partitions",
) -> Dataset:
    """A data set of clients' parts, in their order; a mapping names the clients, a sequence numbers them.

    A part, and `test`, is a Hugging Face data set (`x` names its column of arrays or pictures, or several columns of
    numbers; `y` that of class numbers), a pair of arrays (x, y), or anything with a length that gives pairs (x, y).
    """
    named = dict(partitions) if isinstance(partitions, Mapping) else dict(enumerate(partitions))
    if not named:
        raise InvalidInput("there is no part: hand in one for each client")
    found = {}
    for client, part in named.items():
        with naming(f"{name}, client {client}"):
            found[client] = _pair(part, x, y)
    with naming(f"{name}, test"):
        exam = _pair(test, x, y)
    shapes = {inputs.shape[1:] for inputs, _ in found.values()}
    if len(shapes) > 1:
        raise InvalidInput(
            f"{name}: records of different shapes ({', '.join(map(str, sorted(shapes)))}): make them alike"
        )
    train = Examples(*(np.concatenate([pair[k] for pair in found.values()]) for k in (0, 1)))
    owners = np.concatenate([np.full(len(labels), str(client)) for client, (_, labels) in found.items()])
    return Dataset(
        name, train, Examples(*exam), tuple(classes), normalisation, name, "as its source says",
        columns={CLIENT: owners},
    )  # fmt: skip


def _pair(part: Any, x: str | Sequence[str], y: str) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Records `[n, ...]` and class numbers `[n]` of one part."""
    if hasattr(part, "column_names"):
        missing = [each for each in ([x] if isinstance(x, str) else [*x]) + [y] if each not in part.column_names]
        if missing:
            raise InvalidInput(f"there is no column {missing[0]!r}; there are {', '.join(part.column_names)}")
        inputs = [part[x]] if isinstance(x, str) else [part[column] for column in x]
        records = _records(inputs[0]) if isinstance(x, str) else np.stack([_records(own) for own in inputs], axis=1)
        labels = part[y]
    else:
        given, labels = arrays_of(part)
        records = _records(given)
    numbers = np.asarray(labels)
    if numbers.dtype.kind not in "iu" or len(numbers) != len(records):
        raise InvalidInput("labels are class numbers, whole numbers from 0 on, one for each record")
    return records, numbers.astype(np.int64)


def _records(values: Any) -> NDArray[Any]:
    """Records as one array: of bytes where they are bytes, else of float32; pictures with their channels first."""
    try:
        found = np.stack([array_of(value) for value in values])
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"its records are not arrays of numbers of one shape ({error})") from None
    if found.ndim == 3:
        found = found[:, None]
    return found if found.dtype == np.uint8 else found.astype(np.float32)


__all__ = ["CLIENT", "from_partitions"]

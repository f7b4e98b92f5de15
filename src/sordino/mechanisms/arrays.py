"""Names for arrays of values, how values from outside are checked, and how cohorts are cut into tiles."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino.errors import InvalidInput
from sordino.randomness import Rows

Floats = NDArray[np.floating]
Float32s = NDArray[np.float32]
Float64s = NDArray[np.float64]
Int64s = NDArray[np.int64]
Numbers = NDArray[Any]  #: of any type: bits, whole numbers or floats
Vector = Floats  #: the values of one client, `[d]`

TILE = 2**16  #: random words used at a time: the buffers of one tile stay in the processor's cache


def as_array(name: str, given: ArrayLike) -> Numbers:
    """numpy's view of a value or of nested lists; ragged ones are refused."""
    try:
        return np.asarray(given)
    except (ValueError, TypeError) as error:
        raise InvalidInput(f"{name} must form a rectangular array of numbers: {error}") from None


def check_finite(values: Floats) -> None:
    """Refuse NaN and infinities."""
    if not (np.isfinite(values.min()) and np.isfinite(values.max())):
        raise InvalidInput("values hold NaN or infinity: a client whose training failed reports zeros instead")


def as_matrix(values: ArrayLike) -> Floats:
    """`[K, d]` floats from an array, a tensor or nested lists; refused unless real, finite and not empty."""
    array = as_shaped(values)
    check_finite(array)
    return array


def as_shaped(values: ArrayLike) -> Floats:
    """As `as_matrix`, for callers that find NaN and infinity themselves (`Box.normalise` does)."""
    if hasattr(values, "detach"):  # a torch tensor, without importing torch
        try:
            values = values.detach().cpu().numpy()
        except TypeError as error:  # numpy has no bfloat16
            raise InvalidInput(f"this tensor has no counterpart in numpy ({error}): convert it with .float()") from None
    array = as_array("values", values)
    if array.dtype.kind != "f":
        raise InvalidInput(
            f"values must be floating-point numbers, got {array.dtype}: convert them, e.g. with .astype('float32')"
        )
    if array.dtype.itemsize > 8:
        with np.errstate(over="ignore"):
            array = array.astype(np.float64)
    if array.ndim == 1:
        array = array[None, :]
    if array.ndim != 2 or array.size == 0:
        raise InvalidInput(f"values must be one vector [d] or a cohort [K, d], not empty; got shape {array.shape}")
    return array


def per_client(name: str, given: ArrayLike, *, low: float, high: float) -> Float64s:
    """A scalar or one number per client, checked against (low, high)."""
    array = np.atleast_1d(as_array(name, given))
    if array.dtype.kind not in "fiu" or array.ndim != 1 or array.size == 0:
        raise InvalidInput(f"{name} must be a number or one number per client, got {given!r}")
    array = array.astype(np.float64)
    if not ((array > low) & (array < high)).all():
        raise InvalidInput(f"{name} must lie in ({low:g}, {high:g}) for every client, got {given!r}")
    array.setflags(write=False)
    return array


def row_parameters(parameters: Numbers, rows: int) -> Numbers:
    """One parameter per row, repeated when there is one for all."""
    return np.broadcast_to(parameters, (rows,)) if parameters.size == 1 else parameters


def tile_shape(clients: int, values: int, words_per_value: int = 1) -> tuple[int, int]:
    """Rows and columns of the largest tile that needs at most `TILE` random words."""
    width = 1 << (TILE // words_per_value).bit_length() - 1
    return min(clients, max(1, width // values)), min(values, width)


def tiles(parameters: Numbers, values: int, words_per_value: int = 1) -> Iterator[tuple[Rows, slice]]:
    """Rows of equal parameter and ranges of columns that together need at most `TILE` random words."""
    height, width = tile_shape(parameters.size, values, words_per_value)
    for parameter in np.unique(parameters):
        same = np.flatnonzero(parameters == parameter)
        for start in range(0, same.size, height):
            for first in range(0, values, width):
                yield same[start : start + height], slice(first, min(first + width, values))


def tile_of(values: Floats, rows: Rows, cols: slice) -> Floats:
    """A tile of the values; a view where the rows are consecutive."""
    if rows[-1] - rows[0] + 1 == rows.size:
        return values[rows[0] : rows[-1] + 1, cols]
    return values[rows, cols]


def store_tile(out: Numbers, rows: Rows, cols: slice, tile: Numbers) -> None:
    """Write a tile; by slices where the rows are consecutive, which is several times faster."""
    if rows[-1] - rows[0] + 1 == rows.size:
        out[rows[0] : rows[-1] + 1, cols] = tile
    else:
        out[rows, cols] = tile

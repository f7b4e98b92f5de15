"""The numbers in arrays of any type, each read by itself: one value may decide of which type all others are stored.

None beside numbers, or one whole number beyond 64 bits, makes an array one of Python objects, which its file holds as a
pickle. That is read with stand-ins for everything that it names: nothing is imported, and no code of it runs.

Of float16 numbers no reading can hold this: beside a text numpy writes 1.1 for what is 1.099609375 beside wider
numbers, where both are numbers of their own. A client's owner saves float32 (`own_data.from_npz`).
"""

from __future__ import annotations

import math
import pickle
import re
from collections.abc import Callable
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.learning.columns import float32_of

Values = NDArray[np.generic] | list[Any]  #: the records of an array; a list where they are objects


def stored(arrays: NpzFile, name: str) -> Values:
    """An array of an .npz file; of Python objects as a list of records."""
    assert arrays.zip is not None
    with arrays.zip.open(f"{name}.npy") as member:
        if npy.read_magic(member) == (1, 0):
            shape, _, dtype = npy.read_array_header_1_0(member)
            if dtype.hasobject:
                return _objects(member, len(shape))
    return arrays[name]


def numbers(values: Values, shape: tuple[int, ...], take: Callable[[NDArray[np.generic]], NDArray[Any]]) -> Any:
    """Values as floats, NaN for what is no number; uint8 as they are: the same numbers.

    Objects are of the `shape` that records have, once `take` has put one into the form that is learned from.
    """
    if not isinstance(values, list):
        return values if values.dtype == np.uint8 else _floats(values)
    found = np.full((len(values), *shape), math.nan)
    for row, value in enumerate(values):
        try:
            record = take(np.array([_tree(value)], np.float64))[0]
        except Exception:  # lists of different lengths, or that hold themselves
            continue
        if record.shape == shape:
            found[row] = record
    return found


def _floats(values: NDArray[Any]) -> NDArray[np.floating[Any]]:
    if values.dtype.kind == "f":
        if values.dtype.itemsize <= 8:
            return values
        values = values.astype("U")  # as beside a text: rounding the number itself differs where two are as near
    kind = values.dtype.kind
    with np.errstate(over="ignore", invalid="ignore"):
        if kind in "biu":
            return values.astype(np.float64)
        if kind == "c":
            return _floats(np.where(values.imag == 0, values.real, math.nan))
        if kind == "m":  # whole numbers beside one duration
            return np.where(np.isnat(values), math.nan, values.astype(np.int64).astype(np.float64))
    flat = values.ravel().tolist() if kind in "US" else [None] * values.size
    return np.array([_number(value) for value in flat], np.float64).reshape(values.shape)


def _number(value: object) -> float:
    """A value as a number; NaN if it is none."""
    if isinstance(value, bytes):
        value = value.decode("utf-8", errors="replace")
    if isinstance(value, str):
        found = float32_of([value])
        if found is not None:
            return float(found[0])
        try:  # what numpy writes where numbers of these types lie beside a text
            value = {"True": True, "False": False}[value] if value in ("True", "False") else complex(value)
        except ValueError:
            return math.nan
    if isinstance(value, complex):
        value = value.real if value.imag == 0 else math.nan
    try:
        return float(value) if isinstance(value, int | float) else math.nan
    except OverflowError:
        return math.nan


def _tree(value: object) -> Any:
    """A record as a number, or as lists of such."""
    if isinstance(value, _Array):
        value = value.content()
    return list(map(_tree, value)) if isinstance(value, list | tuple) else _number(value)


# --- what stands for the names in a file


class _Foreign:
    """Stands for any class or function that a file names, and for what that would return: no number."""

    def __init__(self, *_: object, **__: object) -> None: ...

    def __call__(self, *_: object, **__: object) -> _Foreign:
        return _Foreign()

    def _ignore(self, *_: object) -> None: ...

    __setitem__ = append = extend = add = _ignore

    def __setstate__(self, state: Any) -> None: ...


class _Type(_Foreign):
    """Stands for `numpy.dtype`."""

    def __init__(self, code: object = "", *_: object) -> None:
        self.code, self.order = code, ""

    def __setstate__(self, state: Any) -> None:
        self.order = state[1]

    def of(self, content: object, shape: object) -> Any:
        """Plain values from their bytes as (lists of) numbers; None for all others."""
        if not re.fullmatch(r"[biufcUS]\d{1,9}", str(self.code)) or self.order not in ("<", ">", "|"):
            return None
        try:
            found: NDArray[Any] = np.frombuffer(content, np.dtype(f"{self.order}{self.code}"))  # type: ignore[call-overload]
            return _floats(found).reshape(shape).tolist()  # type: ignore[call-overload]
        except (TypeError, ValueError):
            return None


class _Array(_Foreign):
    """Stands for an array, as its pickle describes it."""

    _state: tuple[Any, ...] = ()

    def __setstate__(self, state: Any) -> None:
        self._state = state

    def content(self) -> Any:
        """Its values in nested lists; None where it has none that are plain."""
        _, shape, dtype, by_columns, content = self._state
        if not isinstance(content, list):
            if not by_columns:
                return dtype.of(content, shape)
            turned = dtype.of(content, shape[::-1])
            return None if turned is None else np.array(turned).T.tolist()
        for length in reversed(shape[1:]):
            content = [content[at : at + length] for at in range(0, len(content), length)]
        return content if shape else content[0]


def _scalar(dtype: object, content: object = b"", *_: object) -> object:
    return dtype.of(content, ()) if isinstance(dtype, _Type) else None


def _complex(real: object = 0.0, imag: object = 0.0) -> object:
    return complex(real, imag) if isinstance(real, float) and isinstance(imag, float) else None


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if module in ("numpy._core.multiarray", "numpy.core.multiarray"):
            return {"_reconstruct": lambda *_: _Array(), "scalar": _scalar}.get(name, _Foreign)
        return {("numpy", "dtype"): _Type, ("builtins", "complex"): _complex}.get((module, name), _Foreign)


def _objects(file: IO[bytes], dimensions: int) -> list[Any]:
    found = _Unpickler(file).load()
    content = found.content() if isinstance(found, _Array) else None
    if not isinstance(content, list) or not dimensions:
        raise InvalidInput("x and y must be arrays with one entry for each record")
    return content


__all__ = ["Values", "numbers", "stored"]

"""A user's own data: arrays, tables and folders of images, each wrong cell named, or whatever a function returns."""

from __future__ import annotations

import csv
import hashlib
import importlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from sordino.errors import InvalidInput
from sordino.learning.examples import (
    Columns,
    Dataset,
    Examples,
    Inputs,
    Labels,
    Normalisation,
    naming,
)
from sordino.learning.tasks import CLASSES, Answers, LearningTask, MultiLabel, Regression
from sordino.parts import registry
from sordino.parts.tables import TomlTable

if TYPE_CHECKING:
    from _csv import Reader as _Lines

CSV_CHUNK_ROWS = 10_000
OWN_LICENCE = "the owner's"
MISSING = ("", "NA", "NaN", "nan")  #: how tables write that a cell has no value
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def from_npz(
    path: str | Path,
    *,
    classes: Sequence[str],
    normalisation: Normalisation,
    column: str | int | None = None,
    task: LearningTask = CLASSES,
) -> Dataset:
    """An `.npz` file with x and y; or with x_train and y_train, and x_test and y_test where there is a test part.

    x: uint8 or floating point, images `[n, channels, height, width]` or `[n, height, width]`, or features `[n, d]`.
    y: whole numbers, positions in `classes`; of a multi-label task 0 or 1 `[n, labels]`, of a regression any numbers.
    `column` names another array to keep beside the records, with one value for each of the training examples: text or
    whole numbers.
    """
    file = Path(path)
    parts = []
    arrays, columns = _read_npz(file, column)
    for part, (x, y) in arrays.items():
        with naming(f"{file}, x{part} and y{part}"):
            examples = Examples(_inputs(x), _label_numbers(y, task))
            task.check(examples.y, classes)
            parts.append(examples)
    train, test = parts if len(parts) == 2 else (parts[0], _none_of(parts[0]))
    return _own(file, (train, test, _NO_ROWS), classes, normalisation, columns, task)


_NO_ROWS: Labels = np.zeros(0, np.int64)
_NO_COLUMNS: Columns = MappingProxyType({})


def _none_of(examples: Examples) -> Examples:
    """The test part of records that are never tested on."""
    return examples.take(np.arange(0))


Parts = tuple[Examples, Examples, Labels]  #: training and test examples, and the rows held out of one place for these


def _own(
    path: Path,
    parts: Parts,
    classes: Sequence[str],
    normalisation: Normalisation,
    columns: Columns = _NO_COLUMNS,
    task: LearningTask = CLASSES,
) -> Dataset:
    train, test, held_out = parts
    columns = _checked_columns(path, columns, len(train) + held_out.size)
    return Dataset(
        path.stem, train, test, tuple(classes), normalisation, str(path), OWN_LICENCE, held_out, columns, task=task
    )


def _checked_columns(source: object, columns: Columns, rows: int) -> Columns:
    """Columns as text: one value for each row of the source, none of them missing."""
    checked = {}
    for name, given in columns.items():
        where, values = f"{source}, column {name!r}", np.asarray(given)
        if values.dtype.kind not in "Uiu":
            raise InvalidInput(
                f"{where}: must be text or whole numbers, got {values.dtype}: convert it by astype(str) or astype(int)"
            )
        if values.shape != (rows,):
            raise InvalidInput(
                f"{where}: must have one value for each of {rows:,} rows, those held out for the test included and "
                f"those of a test part of its own not; got the shape {list(values.shape)}"
            )
        checked[name] = np.char.strip(values.astype(np.str_))
        if (missing := np.isin(checked[name], MISSING)).any():
            raise InvalidInput(f"{where}: row {missing.argmax()} (from 0) has no value: {_FILL_IN}")
    return checked


_FILL_IN = "write there whose row it is, or leave the row out"


#: what an .npz file may hold: its parts, as the names of their x and y end
_NPZ_PARTS = (("",), ("_train",), ("_train", "_test"))
_NPZ_NAMES = frozenset(f"{axis}{part}" for part in ("", "_train", "_test") for axis in "xy")


def _read_npz(
    path: Path, column: str | int | None
) -> tuple[dict[str, tuple[NDArray[np.generic], NDArray[np.generic]]], Columns]:
    """x and y of each part, and the column."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as values:
            parts = {part: (values[f"x{part}"], values[f"y{part}"]) for part in _npz_parts(path, values.files)}
            if column is None:
                return parts, _NO_COLUMNS
            others = [name for name in values.files if name not in _NPZ_NAMES]
            if column not in others:
                raise InvalidInput(
                    f"{path}: there is no column {column!r}; the arrays beside x and y are {others}: add it to np.savez"
                )
            return parts, {column: values[str(column)]}
    except FileNotFoundError:
        raise InvalidInput(f"{path}: there is no such file") from None
    except InvalidInput:
        raise
    except Exception as error:  # numpy and zipfile raise a dozen kinds for a file that is not what it should be
        raise InvalidInput(f"{path}: cannot be read as an .npz file of plain numbers ({error}): use np.savez") from None


def _npz_parts(path: Path, names: Sequence[str]) -> tuple[str, ...]:
    """The parts that arrays of these names make up; arrays of other names may lie beside them."""
    for parts in _NPZ_PARTS:
        if _NPZ_NAMES & set(names) == {f"{axis}{part}" for part in parts for axis in "xy"}:
            return parts
    raise InvalidInput(
        f"{path} holds {', '.join(names) or 'nothing'}; an .npz file holds x and y, or x_train and y_train, with "
        "x_test and y_test beside them where there is a test part: add what is missing, or rename it"
    )


def _inputs(x: NDArray[np.generic]) -> Inputs:
    if x.dtype.kind == "f":
        with np.errstate(over="ignore"):
            x = x.astype(np.float32)
    elif x.dtype != np.uint8:
        raise InvalidInput(f"x must be uint8 pixels or floating point, got {x.dtype}: convert it with astype")
    if x.ndim == 3:
        x = x[:, None]
    if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        raise InvalidInput(f"images of shape {list(x.shape)} look like channels last: use x.transpose(0, 3, 1, 2)")
    return np.ascontiguousarray(x)


def _label_numbers(y: NDArray[np.generic], task: LearningTask) -> Answers:
    flat = y.reshape(-1) if y.ndim == 2 and y.shape[1] == 1 and not isinstance(task, MultiLabel) else y
    if isinstance(task, Regression):
        if y.dtype.kind not in "iuf":
            raise InvalidInput(f"y must be numbers; got {y.dtype}: convert it first")
        with np.errstate(over="ignore"):
            return flat.astype(np.float32)
    if y.dtype.kind not in ("iub" if isinstance(task, MultiLabel) else "iu"):
        what = "0 or 1 for each label" if isinstance(task, MultiLabel) else "positions in the class list"
        raise InvalidInput(f"y must be whole numbers, {what}; got {y.dtype}: convert it first")
    return flat.astype(np.int64)


def from_csv(
    train: str | Path,
    *,
    test: str | Path | float | None,
    label: str | int | None = None,
    classes: Sequence[str],
    normalisation: Normalisation,
    features: Sequence[str] | Sequence[int] | None = None,
    column: str | int | None = None,
    delimiter: str = ",",
    seed: int = 0,
    task: LearningTask = CLASSES,
) -> Dataset:
    """A table of numbers with a label column, whose cells are names in `classes`, or numbers of a regression.

    A multi-label `task` has no label column, but one column of 0 and 1 for each label, named as in `classes`.

    `test` is a second table, or the fraction of rows to hold out, by a hash of each; None for no test part. Columns go
    by name; where `label` is a number (from 0; -1 is the last) the tables have no header line and columns go by number.
    `features` are the columns to learn from, in order; all others than the label and `column` if left out. `column` is
    kept as text beside the records, for splits; a second table may lack it if it has a header.
    """
    roles = _roles(label, classes, task, features, column)
    columns = {} if column is None else {column: _read_column(Path(train), column, roles, delimiter)}

    def read(path: Path) -> Examples:
        return _read_table(path, roles, classes, delimiter, task)

    parts = _train_and_test(read, Path(train), test, seed)
    dataset = _own(Path(train), parts, classes, normalisation, columns, task)
    return replace(dataset, feature_names=_feature_names(Path(train), roles, delimiter))


def _feature_names(path: Path, roles: _Roles, delimiter: str) -> tuple[str, ...]:
    """The names of the columns to learn from; none where the table has no header."""
    with _reading_table(path, delimiter) as lines:
        table = _CsvTable.begin(path, next(lines, []), roles)
    return tuple(table.names[column] for column in table.features) if table.names else ()


def _train_and_test(read: Callable[[Path], Examples], train: Path, test: str | Path | float | None, seed: int) -> Parts:
    """Two places, or one of which a fraction or nothing is held out; and the rows that are held out of the first."""
    if test is None:
        examples = read(train)
        return examples, _none_of(examples), _NO_ROWS
    if isinstance(test, str | Path):
        return read(train), read(Path(test)), _NO_ROWS
    if not 0 < test < 1:
        raise InvalidInput(f"test must be a file or folder, or a fraction between 0 and 1; got {test!r}")
    examples = read(train)
    aside = _aside(examples, test, seed)
    held_out = np.flatnonzero(aside)
    return examples.take(np.flatnonzero(~aside)), examples.take(held_out), held_out


def _aside(examples: Examples, fraction: float, seed: int) -> NDArray[np.bool_]:
    """Which examples are held out: each by a hash of its own label and values, whatever lies beside it.

    So one example more or less moves no other across, as figures for one record need it; equal examples lie together.
    """
    limit, begin = math.floor(Fraction(fraction) * 2**64), hashlib.sha256(b"sordino hold-out v1")
    begin.update(seed.to_bytes(8, "little"))
    found = np.zeros(len(examples), np.bool_)
    labels = examples.y.astype(examples.y.dtype.newbyteorder("<"))
    for row, (x, y) in enumerate(zip(examples.x, labels, strict=True)):
        own = begin.copy()
        own.update(y.tobytes())
        own.update(x.astype(x.dtype.newbyteorder("<")).tobytes())
        found[row] = int.from_bytes(own.digest()[:8], "little") < limit
    return found


@dataclass(frozen=True)
class _Roles:
    """The columns of a table by their roles, as the caller names them; `column` lies beside the records."""

    label: str | int
    features: Sequence[str] | Sequence[int] | None
    column: str | int | None
    other_labels: tuple[str, ...] = ()  #: further columns of a multi-label task


def _roles(
    label: str | int | None,
    names: Sequence[str],
    task: LearningTask,
    features: Sequence[str] | Sequence[int] | None,
    column: str | int | None,
) -> _Roles:
    task.check_names(names)
    if isinstance(task, MultiLabel):
        return _Roles(names[0], features, column, tuple(names[1:]))
    if label is None:
        raise InvalidInput("the label's column is missing: give its name, or its number where there is no header")
    return _Roles(label, features, column)


def _read_table(path: Path, roles: _Roles, classes: Sequence[str], delimiter: str, task: LearningTask) -> Examples:
    """The rows of one table; the first cell that is not what it should be is named by line and column."""

    def read(table: _CsvTable, chunk: list[Numbered]) -> tuple[NDArray[np.float32], Answers]:
        return table.inputs(chunk), table.answers(chunk, classes, task)

    table, chunks = _read_chunks(path, roles, delimiter, read)
    if not chunks:  # below a header: a client without records takes part like any other
        return Examples(np.zeros((0, len(table.features)), np.float32), table.answers([], classes, task))
    return Examples(np.concatenate([x for x, _ in chunks]), np.concatenate([y for _, y in chunks]))


def _read_column(path: Path, column: str | int, roles: _Roles, delimiter: str) -> NDArray[np.str_]:
    """The cells of one column; the first that is missing is named by its line."""
    _, chunks = _read_chunks(path, roles, delimiter, lambda table, chunk: table.texts(chunk, column))
    return np.concatenate([np.zeros(0, np.str_), *chunks])


_Read = TypeVar("_Read")


def _read_chunks(
    path: Path, roles: _Roles, delimiter: str, read: Callable[[_CsvTable, list[Numbered]], _Read]
) -> tuple[_CsvTable, list[_Read]]:
    """A table, and what `read` makes of its rows, some thousand at a time."""
    with _reading_table(path, delimiter) as lines:
        first = next(lines, [])
        table = _CsvTable.begin(path, first, roles)
        return table, [read(table, chunk) for chunk in _chunks(lines, [] if table.names else [first])]


def read_inputs(path: str | Path, shape: Sequence[int], columns: Sequence[str] = ()) -> Inputs:
    """Records `[n, *shape]` without labels, for a trained model: a .csv table, or the `x` of an .npz file.

    Columns of a table go by the names in `columns`, and others are left out; without names a table has no header line
    and one column for each value of a record.
    """
    file = Path(path)
    if not file.is_file():
        raise InvalidInput(f"{file}: there is no such file")
    if file.suffix.lower() == ".csv":
        return _csv_inputs(file, shape, columns)
    if file.suffix.lower() == ".npz":
        return _npz_inputs(file, shape)
    raise InvalidInput(f"{file}: records are read from a .csv table or an .npz file with x: convert it to one of these")


def _csv_inputs(path: Path, shape: Sequence[int], columns: Sequence[str]) -> NDArray[np.float32]:
    width = math.prod(shape)
    with _reading_table(path, ",") as lines:
        first = next(lines, [])
        table = _CsvTable.unlabelled(path, first, columns, width)
        chunks = [table.inputs(chunk) for chunk in _chunks(lines, [] if columns else [first])]
    if not chunks:
        raise InvalidInput(f"{path}: there are no rows: add a row for each record")
    return np.concatenate(chunks).reshape(-1, *shape)


def _npz_inputs(path: Path, shape: Sequence[int]) -> Inputs:
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as values:
            if "x" not in values.files:
                raise InvalidInput(f"{path} holds {', '.join(values.files) or 'nothing'}: name the records x")
            x = values["x"]
    except InvalidInput:
        raise
    except Exception as error:  # numpy and zipfile raise a dozen kinds for a file that is not what it should be
        raise InvalidInput(f"{path}: cannot be read as an .npz file of plain numbers ({error}): use np.savez") from None
    with naming(f"{path}, x"):
        found = _inputs(x)
        if found.shape[1:] != tuple(shape) or not len(found):
            wanted = ", ".join(map(str, shape))
            raise InvalidInput(f"the model takes records of shape [n, {wanted}], got {list(x.shape)}: reshape them")
        return Examples(found, np.zeros(len(found), np.int64)).x  # which refuses what is not finite


@contextmanager
def _reading_table(path: Path, delimiter: str) -> Iterator[_Lines]:
    """The lines of a table; what is no table is refused."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            yield csv.reader(file, delimiter=delimiter, strict=True)
    except FileNotFoundError:
        raise InvalidInput(f"{path}: there is no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(f"{path}: cannot be read as a table in UTF-8 separated by {delimiter!r} ({error})") from None


def _chunks(lines: _Lines, first: list[list[str]]) -> Iterator[list[Numbered]]:
    """Rows with their lines' numbers, some thousands at a time; empty lines are left out."""
    numbered = ((lines.line_num, row) for row in chain(first, lines) if row)
    return iter(lambda: list(islice(numbered, CSV_CHUNK_ROWS)), [])


Numbered = tuple[int, list[str]]


@dataclass(frozen=True)
class _CsvTable:
    """Where the label and the features stand in a table of `width` columns; `names` is empty without a header."""

    path: Path
    names: tuple[str, ...]
    width: int
    label: int
    features: tuple[int, ...]
    other_labels: tuple[int, ...] = ()

    @classmethod
    def begin(cls, path: Path, first: list[str], roles: _Roles) -> _CsvTable:
        """A table with this first line: its header where the label goes by name, else its first row."""
        if not first:
            raise InvalidInput(f"{path}: the first line is empty; a table begins with its header or its first row")
        names = tuple(cell.strip() for cell in first) if isinstance(roles.label, str) else ()
        if len(set(names)) != len(names):
            raise InvalidInput(f"{path}: two columns of the header have the same name: {list(names)}")
        width = len(first)
        label = _column(path, names, width, roles.label)
        column = _column_beside(path, names, width, roles.column)
        others = tuple(_column(path, names, width, other) for other in roles.other_labels)
        if column in (label, *others):
            own = names[column] if names else roles.label
            raise InvalidInput(f"{path}: column {roles.column!r} is the label {own!r}: name another one")
        taken = (label, column, *others)
        chosen = [c for c in range(width) if c not in taken] if roles.features is None else roles.features
        features = tuple(_column(path, names, width, feature) for feature in chosen)
        if not features or {label, *others} & set(features):
            which = ", ".join(map(repr, (roles.label, *roles.other_labels)))
            raise InvalidInput(f"{path}: features must be one or more columns other than the label {which}")
        if column in features:
            raise InvalidInput(f"{path}: column {roles.column!r} says who holds a row: take it out of the features")
        return cls(path, names, width, label, features, others)

    def texts(self, chunk: list[Numbered], column: str | int) -> NDArray[np.str_]:
        """The cells of a column."""
        at = _column(self.path, self.names, self.width, column)
        self._check_width(chunk)
        texts = [row[at].strip() for _, row in chunk]
        for (line, _), text in zip(chunk, texts, strict=True):
            if text in MISSING:
                raise InvalidInput(f"{self._cell(line, at)}: {text!r} is a missing value: {_FILL_IN}")
        return np.array(texts, np.str_)

    @classmethod
    def unlabelled(cls, path: Path, first: list[str], columns: Sequence[str], width: int) -> _CsvTable:
        """A table without labels: its header has these columns among others; or there is none, and `width` columns."""
        names = tuple(cell.strip() for cell in first) if columns else ()
        if missing := [name for name in columns if name not in names]:
            raise InvalidInput(
                f"{path}: the first line lacks {', '.join(missing)}. The model was trained on the columns "
                f"{', '.join(columns)}: name them in the first line, in any order"
            )
        if double := [name for name in columns if names.count(name) > 1]:
            raise InvalidInput(f"{path}: two columns are called {double[0]}: rename or remove one of them")
        if not columns and len(first) != width:
            raise InvalidInput(
                f"{path}: the first line has {len(first)} cells, and the model takes {width} numbers a record. Its "
                "columns have no names: give numbers in the order of the training data, without header and label"
            )
        features = tuple(map(names.index, columns)) or tuple(range(width))
        return cls(path, names, len(first), -1, features)

    def inputs(self, chunk: list[Numbered]) -> NDArray[np.float32]:
        """The features of some rows `[n, features]`."""
        self._check_width(chunk)
        return self._floats(chunk)

    def answers(self, chunk: list[Numbered], classes: Sequence[str], task: LearningTask) -> Answers:
        """The labels of rows, whose width was checked."""
        if isinstance(task, Regression):
            return self._targets(chunk, task)
        return self._bits(chunk) if isinstance(task, MultiLabel) else self._positions(chunk, classes)

    def _targets(self, chunk: list[Numbered], task: Regression) -> NDArray[np.float32]:
        cells = [(line, row[self.label]) for line, row in chunk]
        numbers = np.array([float(cell) if _is_float32(cell) else math.nan for _, cell in cells], np.float32)
        if not (inside := task.contains(numbers)).all():
            line, cell = cells[int(inside.argmin())]
            why = task.beyond if _is_float32(cell) else "which is no number: correct it"
            raise InvalidInput(f"{self._cell(line, self.label)}: the target is {cell!r}, {why}")
        return numbers

    def _bits(self, chunk: list[Numbered]) -> Labels:
        columns = (self.label, *self.other_labels)
        for line, column, cell in ((line, column, row[column]) for line, row in chunk for column in columns):
            if cell.strip() not in ("0", "1"):
                raise InvalidInput(
                    f"{self._cell(line, column)}: a label is 1 where it is set and 0 where it is not, got {cell!r}: "
                    "correct the cell"
                )
        bits = [[row[column].strip() == "1" for column in columns] for _, row in chunk]
        return np.array(bits, np.int64).reshape(len(chunk), len(columns))

    def _positions(self, chunk: list[Numbered], classes: Sequence[str]) -> Labels:
        position = {name: number for number, name in enumerate(classes)}
        y = [position.get(row[self.label].strip(), -1) for _, row in chunk]
        if -1 in y:
            line, row = chunk[y.index(-1)]
            raise InvalidInput(
                f"{self._cell(line, self.label)}: label {row[self.label]!r} is not in the class list "
                f"{list(classes)}: correct the cell or the list"
            )
        return np.array(y, np.int64)

    def _check_width(self, chunk: list[Numbered]) -> None:
        for line, row in chunk:
            if len(row) != self.width:
                raise InvalidInput(f"{self.path}, line {line}: {len(row)} cells, the first line has {self.width}")

    def _floats(self, chunk: list[Numbered]) -> NDArray[np.float32]:
        cells = [[row[c] for c in self.features] for _, row in chunk]
        try:
            with np.errstate(over="ignore"):
                x = np.array(cells, np.float64).astype(np.float32)
        except ValueError:
            x = np.full((1, 1), np.nan, np.float32)
        if not np.isfinite(x).all():
            raise self._first_wrong(chunk)
        return x

    def _first_wrong(self, chunk: list[Numbered]) -> InvalidInput:
        line, column, cell = next(
            (line, c, row[c]) for line, row in chunk for c in self.features if not _is_float32(row[c])
        )
        return InvalidInput(
            f"{self._cell(line, column)}: {cell!r} is not a finite number of float32's range: write text as numbers "
            "(one column per category), fill in missing values, or leave the column or row out"
        )

    def _cell(self, line: int, column: int) -> str:
        return f"{self.path}, line {line}, column {self.names[column] if self.names else column!r}"


def _column(path: Path, names: tuple[str, ...], width: int, wanted: str | int) -> int:
    if isinstance(wanted, str):
        if wanted not in names:
            allowed = f"the columns are {list(names)}" if names else "without a header, columns go by number"
            raise InvalidInput(f"{path}: there is no column {wanted!r}; {allowed}")
        return names.index(wanted)
    if not -width <= wanted < width:
        raise InvalidInput(f"{path}: there is no column {wanted}; there are {width}, numbered from 0")
    return wanted % width


def _column_beside(path: Path, names: tuple[str, ...], width: int, wanted: str | int | None) -> int | None:
    """Where the column beside the records stands; None where there is none, or the header lacks it."""
    if wanted is None or (names and isinstance(wanted, str) and wanted not in names):
        return None
    return _column(path, names, width, wanted)


def _is_float32(cell: str) -> bool:
    try:
        with np.errstate(over="ignore"):
            return bool(np.isfinite(np.float32(float(cell))))
    except ValueError:
        return False


def from_images(
    train: str | Path,
    *,
    test: str | Path | float | None,
    classes: Sequence[str],
    normalisation: Normalisation,
    channels: Literal[1, 3] = 3,
    seed: int = 0,
) -> Dataset:
    """A folder with one folder of images per class, named as in `classes`.

    Images are `.npy` files (uint8, `[height, width]` or `[height, width, channels]`), or picture files where Pillow is
    installed, which are turned into grey (channels=1) or colour (3). `test` is a second such folder, or the fraction of
    images to hold out, by a hash of each; None for no test part.
    """

    def read(folder: Path) -> Examples:
        return read_images(folder, classes=classes, channels=channels)

    return _own(Path(train), _train_and_test(read, Path(train), test, seed), classes, normalisation)


def read_images(folder: Path, *, classes: Sequence[str], channels: Literal[1, 3]) -> Examples:
    """The images of one folder by class, in the order of classes and file names."""
    CLASSES.check_names(classes)
    if channels not in (1, 3):
        raise InvalidInput(f"channels must be 1 (grey) or 3 (colour), got {channels!r}")
    files = _image_files(folder, classes)
    first = _read_image(files[0][0], channels)
    x = np.empty((len(files), *first.shape), np.uint8)
    for row, (path, _) in enumerate(files):
        image = _read_image(path, channels)
        if image.shape != first.shape:
            raise InvalidInput(
                f"{path}: {image.shape[1]}x{image.shape[2]} pixels (height x width), but {files[0][0]} has "
                f"{first.shape[1]}x{first.shape[2]}: bring all images to one size"
            )
        x[row] = image
    return Examples(x, np.array([number for _, number in files], np.int64))


def _image_files(folder: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    """Every image with the position of its class; names that start with a dot are left out."""
    if not folder.is_dir():
        raise InvalidInput(f"{folder}: there is no such folder")
    visible = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
    if wrong := [path for path in visible if not path.is_dir() or path.name not in classes]:
        raise InvalidInput(f"{wrong[0]}: not a folder of one of the classes {list(classes)}: move it away")
    files = [
        (path, classes.index(kind.name))
        for kind in sorted(visible, key=lambda path: classes.index(path.name))
        for path in sorted(kind.iterdir())
        if not path.name.startswith(".")
    ]
    if not files:
        raise InvalidInput(f"{folder}: no images; put them into one folder per class: {list(classes)}")
    return files


def _read_image(path: Path, channels: int) -> NDArray[np.uint8]:
    """One image as `[channels, height, width]`."""
    if path.suffix.lower() == ".npy":
        image = _read_image_array(path)
    elif path.suffix.lower() in IMAGE_SUFFIXES:
        image = _read_picture(path, "L" if channels == 1 else "RGB")
    else:
        raise InvalidInput(f"{path}: not an image; allowed are .npy, {', '.join(IMAGE_SUFFIXES)}: move it away")
    image = image[:, :, None] if image.ndim == 2 else image
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != channels or 0 in image.shape:
        raise InvalidInput(
            f"{path}: {image.dtype} of shape {list(image.shape)}; allowed is uint8 [height, width, {channels}]"
            + (" or [height, width]" if channels == 1 else "")
        )
    return image.transpose(2, 0, 1).astype(np.uint8, copy=False)


def _read_image_array(path: Path) -> NDArray[np.generic]:
    try:
        with path.open("rb") as file:
            return np.asarray(np.load(file, allow_pickle=False))
    except (OSError, ValueError, EOFError) as error:
        raise InvalidInput(f"{path}: cannot be read as a .npy array of plain numbers ({error})") from None


def _read_picture(path: Path, mode: str) -> NDArray[np.generic]:
    try:
        pillow = importlib.import_module("PIL.Image")
    except ImportError:
        raise InvalidInput(
            f"{path}: picture files need Pillow, which is not installed: `pip install pillow`, or save the images as "
            "uint8 .npy files"
        ) from None
    try:
        with pillow.open(path) as picture:
            return np.asarray(picture.convert(mode))
    except Exception as error:  # Pillow's plugins raise many kinds for a picture they cannot decode
        raise InvalidInput(f"{path}: cannot be read as a picture ({error}): replace or remove it") from None


class DataSource(TomlTable):
    """A data source of one's own: a class whose keys are the `data.arguments` of a recipe."""

    @abstractmethod
    def load(self) -> Dataset:
        """Its examples, with class list and normalisation constants."""


def from_function(where: str, arguments: Mapping[str, object] | None = None) -> Dataset:
    """The examples of a `DataSource`, or what a function returns, by `package.module:name` or an installed name."""
    address = registry.own_address("data source", where)
    if address is None:
        raise InvalidInput(f"a data source of your own is given as package.module:Class, got {where!r}")
    registry.check_allowed(address)
    made = registry.load(address)
    if not callable(made):
        raise InvalidInput(f"{where} is no data source and no function, but {made!r}")
    try:
        dataset = made(**(arguments or {}))
    except ValidationError as error:
        wrong = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors())
        raise InvalidInput(f"{where}: data.arguments do not fit: {wrong}") from None
    if isinstance(dataset, DataSource):
        dataset = dataset.load()
    if not isinstance(dataset, Dataset):
        raise InvalidInput(f"{where}: must return a sordino.learning.examples.Dataset, got {type(dataset).__name__}")
    rows = len(dataset.train) + dataset.held_out.size
    return replace(dataset, columns=_checked_columns(where, dataset.columns, rows))

"""A user's own data: arrays, tables and folders of images, each wrong cell named, or whatever a function returns."""

from __future__ import annotations

import hashlib
import importlib
import math
from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Literal, TypeVar

import numpy as np
from numpy.lib.npyio import NpzFile
from numpy.typing import NDArray
from pydantic import ValidationError

from sordino.errors import InvalidInput
from sordino.learning import array_values, tables
from sordino.learning.columns import MISSING, ColumnRules, float32_of
from sordino.learning.examples import (
    NO_RULES,
    Columns,
    Dataset,
    Examples,
    Inputs,
    Labels,
    Normalisation,
    naming,
)
from sordino.learning.tables import ClientReading, Features, Frame, Header, LeftOut, Lines, Numbered, Place, read_apart
from sordino.learning.tasks import CLASSES, Answers, LearningTask, MultiLabel, Regression
from sordino.parts import registry
from sordino.parts.tables import TomlTable

OWN_LICENCE = "the owner's"
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp")


def from_npz(
    path: str | Path,
    *,
    classes: Sequence[str],
    normalisation: Normalisation,
    column: str | int | None = None,
    task: LearningTask = CLASSES,
    apart: ClientReading | None = None,
) -> Dataset:
    """An `.npz` file with x and y; or with x_train and y_train, and x_test and y_test where there is a test part.

    x: uint8 or floating point, images `[n, channels, height, width]` or `[n, height, width]`, or features `[n, d]`.
    y: whole numbers, positions in `classes`; of a multi-label task 0 or 1 `[n, labels]`, of a regression any numbers.
    `column` names another array to keep beside the records, with one value for each of the training examples: text or
    whole numbers. `apart`: as in `from_csv`; after joining, a test part is not looked at. Its owner must not hold
    float16: the numbers are others beside a text (`array_values`).
    """
    file = Path(path)
    parts = []
    if apart is not None and apart.shape is not None:
        train = _apart(*_each_by_itself(file, apart, classes, task), classes, task, apart)
        return _own(file, (train, _none_of(train), _NO_ROWS), classes, normalisation, task=task)
    arrays, columns = _read_npz(file, column)
    if apart is not None and (why := _float16_warning(file, chain.from_iterable(arrays.values()))):
        raise InvalidInput(why)
    for part, (x, y) in arrays.items():
        with naming(f"{file}, x{part} and y{part}"):
            parts.append(_checked(_inputs(x), _label_numbers(y, task), classes, task))
    train, test = parts if len(parts) == 2 else (parts[0], _none_of(parts[0]))
    return _own(file, (train, test, _NO_ROWS), classes, normalisation, columns, task)


def from_arrays(
    train: tuple[NDArray[np.generic], NDArray[np.generic]],
    *,
    test: tuple[NDArray[np.generic], NDArray[np.generic]] | float,
    classes: Sequence[str],
    normalisation: Normalisation,
    seed: int = 0,
    task: LearningTask = CLASSES,
) -> Dataset:
    """Arrays x and y in memory, as in an `.npz` file; `test` is a second pair, or the fraction to hold out."""

    def read(arrays: tuple[NDArray[np.generic], NDArray[np.generic]]) -> Examples:
        return _checked(_inputs(arrays[0]), _label_numbers(arrays[1], task), classes, task)

    with naming("data in memory"):
        parts = _hold_out(read(train), test, seed) if isinstance(test, float) else (read(train), read(test), _NO_ROWS)
    return _own(Frame("memory", {}), parts, classes, normalisation, task=task)


def _checked(x: Inputs, y: Answers, classes: Sequence[str], task: LearningTask) -> Examples:
    examples = Examples(x, y)
    task.check(y, classes)
    return examples


def _apart(x: Inputs, y: Answers, classes: Sequence[str], task: LearningTask, apart: ClientReading) -> Examples:
    """The examples that are of the agreed shape and what they should be, and which rows they are."""
    if x.shape[1:] != apart.shape:
        raise InvalidInput(f"x is {list(x.shape)}, y {list(y.shape)}; records of shape {apart.shape} were agreed")
    pairs = min(len(x), len(y))
    apart.left_out.extend(f"row {row} is in one of x and y only" for row in range(pairs, max(len(x), len(y))))

    def check(rows: Sequence[int]) -> Labels:
        found = np.array(rows, np.int64)
        with naming(f"counted from row {min(rows, default=0)} on"):
            _checked(x[found], y[found], classes, task)
        return found

    kept = np.concatenate([_NO_ROWS, *read_apart(range(pairs), check, apart.refused)])
    apart.rows = kept
    return Examples(x[kept], y[kept])


_NO_ROWS: Labels = np.zeros(0, np.int64)
_NO_COLUMNS: Columns = MappingProxyType({})


def _none_of(examples: Examples) -> Examples:
    """The test part of records that are never tested on."""
    return examples.take(np.arange(0))


Parts = tuple[Examples, Examples, Labels]  #: training and test examples, and the rows held out of one place for these


def _own(
    path: Place,
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
    with _arrays_of(path) as values:
        parts = {part: (values[f"x{part}"], values[f"y{part}"]) for part in _npz_parts(path, list(values))}
        if column is None:
            return parts, _NO_COLUMNS
        others = [name for name in values if name not in _NPZ_NAMES]
        if column not in others:
            raise InvalidInput(
                f"{path}: there is no column {column!r}; the arrays beside x and y are {others}: add it to np.savez"
            )
        return parts, {column: values[str(column)]}


@contextmanager
def _arrays_of(path: Path) -> Iterator[NpzFile]:
    """The arrays of an .npz file, each read when it is asked for; what is no such file is refused."""
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as values:
            yield values
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


def _each_by_itself(
    path: Path, apart: ClientReading, classes: Sequence[str], task: LearningTask
) -> tuple[Inputs, Answers]:
    """The first part's x and y, where no value changes what is made of another; x of the agreed shape, if objects."""
    with _arrays_of(path) as values:
        part = _npz_parts(path, list(values))[0]
        x, y = (array_values.stored(values, f"{axis}{part}") for axis in "xy")
    apart.warning = _float16_warning(path, (x, y))

    def labels(found: NDArray[np.generic]) -> Answers:
        return _label_numbers(found, task, gaps=True)

    bits = (len(classes),) if isinstance(task, MultiLabel) else ()
    return _inputs(array_values.numbers(x, apart.shape or (), _inputs)), labels(array_values.numbers(y, bits, labels))


def _float16_warning(path: Path, arrays: Iterable[array_values.Values]) -> str:
    """Why these arrays of a client have no figure for one record; empty if none of them is float16."""
    if not any(isinstance(values, np.ndarray) and values.dtype == np.float16 for values in arrays):
        return ""
    return (
        f"{path} holds float16 numbers, which numpy writes as others once a text lies beside them, so that one record "
        "could change all others: nothing is proven of one record. Save x and y with astype(np.float32)"
    )


def _label_numbers(y: NDArray[np.generic], task: LearningTask, *, gaps: bool = False) -> Answers:
    """Labels as they are compared; with `gaps`, -1 for those that are no whole numbers, such as NaN among others."""
    flat = y.reshape(-1) if y.ndim == 2 and y.shape[1] == 1 and not isinstance(task, MultiLabel) else y
    if isinstance(task, Regression):
        if y.dtype.kind not in "iuf":
            raise InvalidInput(f"y must be numbers; got {y.dtype}: convert it first")
        with np.errstate(over="ignore"):
            return flat.astype(np.float32)
    if gaps and y.dtype.kind == "f":
        whole = np.isfinite(flat) & (flat == np.floor(flat)) & (np.abs(flat) < 2**31)
        return np.where(whole, flat, -1).astype(np.int64)
    if y.dtype.kind not in ("iub" if isinstance(task, MultiLabel) else "iu"):
        what = "0 or 1 for each label" if isinstance(task, MultiLabel) else "positions in the class list"
        raise InvalidInput(f"y must be whole numbers, {what}; got {y.dtype}: convert it first")
    return flat.astype(np.int64)


def from_csv(
    train: str | Place,
    *,
    test: str | Place | float | None,
    label: str | int | None = None,
    classes: Sequence[str],
    normalisation: Normalisation,
    features: Sequence[str] | Sequence[int] | None = None,
    rules: ColumnRules = NO_RULES,
    column: str | int | None = None,
    delimiter: str = ",",
    seed: int = 0,
    task: LearningTask = CLASSES,
    apart: ClientReading | None = None,
) -> Dataset:
    """A table with a label column, whose cells are names in `classes`, or numbers of a regression.

    A multi-label `task` has no label column, but one column of 0 and 1 for each label, named as in `classes`.

    `test` is a second table, or the fraction of rows to hold out, by a hash of each; None for no test part. Columns go
    by name; where `label` is a number (from 0; -1 is the last) the tables have no header line and columns go by number.
    `features` are the columns to learn from, in order; all others than the label and `column` if left out, each a
    number. `rules` are such columns by name with what their cells become (`sordino.learning.columns`), in place of
    `features`; scales that they declare replace `normalisation`. `column` is kept as text beside the records, for
    splits; a second table may lack it if it has a header. Either table may be a `Frame` in memory.

    The first row that is not what it should be is refused, and the whole table with it; `apart` says how a client reads
    (not where there is a `column`).
    """
    place = train if isinstance(train, Frame) else Path(train)
    found = {name: rule.resolved() for name, rule in rules.items()}
    roles = _roles(label, classes, task, _Roles("", features, column, found))
    columns = {} if column is None else {column: _read_column(place, column, roles, delimiter)}

    def read(path: Place) -> Examples:
        return _read_table(path, roles, classes, delimiter, task, apart)

    if rules:
        normalisation = _scales(roles.rules)
    dataset = _own(place, _train_and_test(read, place, test, seed, apart), classes, normalisation, columns, task)
    names = _feature_names(place, roles, delimiter, apart)
    return replace(dataset, feature_names=names, rules=roles.rules)


def _scales(rules: ColumnRules) -> Normalisation:
    """The public constants of declared columns, one for each value."""
    scales = [rule.scale() for rule in rules.values()]
    return Normalisation(*(tuple(chain.from_iterable(scale[end] for scale in scales)) for end in (0, 1)))


def _feature_names(path: Place, roles: _Roles, delimiter: str, apart: ClientReading | None) -> tuple[str, ...]:
    """The names of the columns to learn from; none where the table has no header."""
    with tables.reading(path, delimiter, by_line=apart is not None) as lines:
        return _LabelledTable.begin(path, lines, roles, apart)[0].features.names


_Place = TypeVar("_Place", Path, Place)


def _train_and_test(
    read: Callable[[_Place], Examples],
    train: _Place,
    test: str | _Place | float | None,
    seed: int,
    apart: ClientReading | None,
) -> Parts:
    """Two places, or one of which a fraction or nothing is held out; and the rows that are held out of the first."""
    if test is None:
        examples = read(train)
        return examples, _none_of(examples), _NO_ROWS
    if not isinstance(test, float | int):
        return read(train), read(Path(test) if isinstance(test, str) else test), _NO_ROWS
    return _hold_out(read(train), test, seed, even=_left_out(apart) is None)


def _left_out(apart: ClientReading | None) -> LeftOut | None:
    """Where records go that are refused; None where one that is refused refuses them all."""
    return None if apart is None else apart.refused


def _hold_out(examples: Examples, test: float, seed: int, *, even: bool = True) -> Parts:
    """A fraction of examples as the test part, by a hash of each; the others; and the rows that are held out.

    `even`: refuse examples of which far more or fewer are held out.
    """
    if not 0 < test < 1:
        raise InvalidInput(f"test must be a file or folder, or a fraction between 0 and 1; got {test!r}")
    aside = _aside(examples, test, seed)
    held_out = np.flatnonzero(aside)
    spread = 5 * math.sqrt(test * (1 - test) / max(1, len(examples)))
    if even and len(examples) and abs(len(held_out) / len(examples) - test) > max(0.05, spread):
        raise InvalidInput(
            f"test = {test:g} holds out {len(held_out):,} of {len(examples):,} examples: each is held out by a hash of "
            "itself, so that equal ones go together, and most of these are equal. Give test examples of their own, in "
            "a file"
        )
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
    rules: ColumnRules
    other_labels: tuple[str, ...] = ()  #: further columns of a multi-label task

    @property
    def labels(self) -> tuple[str | int, ...]:
        """All columns of labels."""
        return (self.label, *self.other_labels)

    @property
    def named(self) -> bool:
        """Whether the table has a header: where columns go by name."""
        return isinstance(self.label, str)


def _roles(label: str | int | None, names: Sequence[str], task: LearningTask, roles: _Roles) -> _Roles:
    """The roles with the label's column, or one for each label."""
    task.check_names(names)
    if isinstance(task, MultiLabel):
        return replace(roles, label=names[0], other_labels=tuple(names[1:]))
    if label is None:
        raise InvalidInput("the label's column is missing: give its name, or its number where there is no header")
    return replace(roles, label=label)


def _read_table(
    path: Place,
    roles: _Roles,
    classes: Sequence[str],
    delimiter: str,
    task: LearningTask,
    apart: ClientReading | None = None,
) -> Examples:
    """The rows of one table; the first cell that is not what it should be is named by line and column."""

    def read(table: _LabelledTable, chunk: Sequence[Numbered]) -> tuple[NDArray[np.float32], Answers, list[int]]:
        lines = [line for line, _ in chunk]
        return table.features.values(chunk), table.answers(chunk, classes, task), lines

    table, chunks = _read_chunks(path, roles, delimiter, read, apart)
    if apart is not None:  # rows go by lines, so that none that is left out moves another
        first = 2 if roles.named else 1
        apart.rows = np.array([line - first for _, _, lines in chunks for line in lines], np.int64)
    if not chunks:  # below a header: a client without records takes part like any other
        return Examples(np.zeros((0, table.features.width), np.float32), table.answers([], classes, task))
    return Examples(np.concatenate([x for x, _, _ in chunks]), np.concatenate([y for _, y, _ in chunks]))


def _read_column(path: Place, column: str | int, roles: _Roles, delimiter: str) -> NDArray[np.str_]:
    """The cells of one column; the first that is missing is named by its line."""
    _, chunks = _read_chunks(path, roles, delimiter, lambda table, chunk: table.texts(chunk, column))
    return np.concatenate([np.zeros(0, np.str_), *chunks])


_Read = TypeVar("_Read")


def _read_chunks(
    path: Place,
    roles: _Roles,
    delimiter: str,
    read: Callable[[_LabelledTable, Sequence[Numbered]], _Read],
    apart: ClientReading | None = None,
) -> tuple[_LabelledTable, list[_Read]]:
    """A table, and what `read` makes of its rows, some thousand at a time."""
    with tables.reading(path, delimiter, by_line=apart is not None) as lines:
        table, first = _LabelledTable.begin(path, lines, roles, apart)
        found = (read_apart(chunk, partial(read, table), _left_out(apart)) for chunk in tables.chunks(lines, first))
        return table, list(chain.from_iterable(found))


def read_inputs(
    path: str | Path, shape: Sequence[int], columns: Sequence[str] = (), rules: ColumnRules = NO_RULES
) -> Inputs:
    """Records `[n, *shape]` without labels, for a trained model: a .csv table, or the `x` of an .npz file.

    Columns of a table go by the names in `columns`, or by those of the declared `rules`, and others are left out;
    without names a table has no header line and one column for each value of a record.
    """
    file = Path(path)
    if not file.is_file():
        raise InvalidInput(f"{file}: there is no such file")
    if file.suffix.lower() == ".csv":
        return tables.read_unlabelled(file, math.prod(shape), columns, rules).reshape(-1, *shape)
    if file.suffix.lower() == ".npz":
        return _npz_inputs(file, shape)
    raise InvalidInput(f"{file}: records are read from a .csv table or an .npz file with x: convert it to one of these")


def _npz_inputs(path: Path, shape: Sequence[int]) -> Inputs:
    with _arrays_of(path) as values:
        if "x" not in values:
            raise InvalidInput(f"{path} holds {', '.join(values) or 'nothing'}: name the records x")
        x = values["x"]
    with naming(f"{path}, x"):
        found = _inputs(x)
        if found.shape[1:] != tuple(shape) or not len(found):
            wanted = ", ".join(map(str, shape))
            raise InvalidInput(f"the model takes records of shape [n, {wanted}], got {list(x.shape)}: reshape them")
        return Examples(found, np.zeros(len(found), np.int64)).x  # which refuses what is not finite


@dataclass(frozen=True)
class _LabelledTable:
    """Where the label and the features stand in a table."""

    header: Header
    label: int
    features: Features
    other_labels: tuple[int, ...] = ()

    @classmethod
    def begin(
        cls, place: Place, lines: Lines, roles: _Roles, apart: ClientReading | None
    ) -> tuple[_LabelledTable, list[list[str]]]:
        """A table whose lines begin with its header, where the label goes by name, or with rows; these come with it."""
        if not roles.named and apart is not None and apart.shape is not None:
            first, header = [], Header(place, (), math.prod(apart.shape) + 1)
        else:
            first = [next(lines, [])]
            header = Header.of(place, first[0], named=roles.named)
        if len(set(header.names)) != len(header.names):
            raise InvalidInput(f"{place}: two columns of the header have the same name: {list(header.names)}")
        label, *others = (header.position(name) for name in roles.labels)
        column = header.position_beside(roles.column)
        if column in (label, *others):
            own = header.names[column] if header.names else roles.label
            raise InvalidInput(f"{place}: column {roles.column!r} is the label {own!r}: name another one")
        left = [at for at in range(header.width) if at not in (label, column, *others)]
        chosen = tuple(roles.rules) or (left if roles.features is None else roles.features)
        features = tuple(header.position(feature) for feature in chosen)
        if not features or {label, *others} & set(features):
            which = ", ".join(map(repr, roles.labels))
            raise InvalidInput(f"{place}: features must be one or more columns other than the label {which}")
        if apart is not None and not header.names and header.width != len(set(features)) + 1:
            raise InvalidInput(
                f"{place}: a client's table without a header has no columns beside the label and the features, got "
                f"{header.width}: leave the others out, or write the columns' names in a first line"
            )
        if column in features:
            raise InvalidInput(f"{place}: column {roles.column!r} says who holds a row: take it out of the features")
        return cls(header, label, Features(header, features, roles.rules), tuple(others)), [] if header.names else first

    def texts(self, chunk: Sequence[Numbered], column: str | int) -> NDArray[np.str_]:
        """The cells of a column."""
        at = self.header.position(column)
        self.header.check_width(chunk)
        texts = [row[at].strip() for _, row in chunk]
        for (line, _), text in zip(chunk, texts, strict=True):
            if text in MISSING:
                raise InvalidInput(f"{self.header.cell(line, at)}: {text!r} is a missing value: {_FILL_IN}")
        return np.array(texts, np.str_)

    def answers(self, chunk: Sequence[Numbered], classes: Sequence[str], task: LearningTask) -> Answers:
        """The labels of rows, whose width was checked."""
        if isinstance(task, Regression):
            return self._targets(chunk, task)
        return self._bits(chunk) if isinstance(task, MultiLabel) else self._positions(chunk, classes)

    def _targets(self, chunk: Sequence[Numbered], task: Regression) -> NDArray[np.float32]:
        cells = [(line, row[self.label]) for line, row in chunk]
        found = [float32_of([cell]) for _, cell in cells]
        numbers = np.array([math.nan if number is None else number[0] for number in found], np.float32)
        if not (inside := task.contains(numbers)).all():
            line, cell = cells[int(inside.argmin())]
            why = "which is no number: correct it" if float32_of([cell]) is None else task.beyond
            raise InvalidInput(f"{self.header.cell(line, self.label)}: the target is {cell!r}, {why}")
        return numbers

    def _bits(self, chunk: Sequence[Numbered]) -> Labels:
        columns = (self.label, *self.other_labels)
        for line, column, cell in ((line, column, row[column]) for line, row in chunk for column in columns):
            if cell.strip() not in ("0", "1"):
                raise InvalidInput(
                    f"{self.header.cell(line, column)}: a label is 1 where it is set and 0 where it is not, got "
                    f"{cell!r}: correct the cell"
                )
        bits = [[row[column].strip() == "1" for column in columns] for _, row in chunk]
        return np.array(bits, np.int64).reshape(len(chunk), len(columns))

    def _positions(self, chunk: Sequence[Numbered], classes: Sequence[str]) -> Labels:
        position = {name: number for number, name in enumerate(classes)}
        y = [position.get(row[self.label].strip(), -1) for _, row in chunk]
        if -1 in y:
            line, row = chunk[y.index(-1)]
            raise InvalidInput(
                f"{self.header.cell(line, self.label)}: label {row[self.label]!r} is not in the class list "
                f"{list(classes)}: correct the cell or the list"
            )
        return np.array(y, np.int64)


def from_images(
    train: str | Path,
    *,
    test: str | Path | float | None,
    classes: Sequence[str],
    normalisation: Normalisation,
    channels: Literal[1, 3] = 3,
    seed: int = 0,
    apart: ClientReading | None = None,
) -> Dataset:
    """A folder with one folder of images per class, named as in `classes`.

    Images are `.npy` files (uint8, `[height, width]` or `[height, width, channels]`), or picture files where Pillow is
    installed, which are turned into grey (channels=1) or colour (3). `test` is a second such folder, or the fraction of
    images to hold out, by a hash of each; None for no test part. `apart`: as in `from_csv`.
    """

    def read(folder: Path) -> Examples:
        return read_images(folder, classes=classes, channels=channels, apart=apart)

    return _own(Path(train), _train_and_test(read, Path(train), test, seed, apart), classes, normalisation)


def read_images(
    folder: Path, *, classes: Sequence[str], channels: Literal[1, 3], apart: ClientReading | None = None
) -> Examples:
    """The images of one folder by class, in the order of classes and file names."""
    CLASSES.check_names(classes)
    if channels not in (1, 3):
        raise InvalidInput(f"channels must be 1 (grey) or 3 (colour), got {channels!r}")
    files = _image_files(folder, classes, _left_out(apart))
    if apart is not None and apart.shape is not None:
        return _agreed_images(files, channels, apart.shape, apart)
    if not files:
        raise InvalidInput(f"{folder}: no images; put them into one folder per class: {list(classes)}")
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


_ImageFile = tuple[Path, int]  #: with the position of its class


def _agreed_images(
    files: Sequence[_ImageFile], channels: int, shape: tuple[int, ...], apart: ClientReading
) -> Examples:
    """The images that can be read and have the agreed shape."""

    def read(rows: Sequence[int]) -> tuple[int, NDArray[np.uint8]]:
        path, image = files[rows[0]][0], _read_image(files[rows[0]][0], channels)
        if image.shape != shape:
            raise InvalidInput(f"{path}: {list(image.shape)}, and {list(shape)} was agreed")
        return rows[0], image

    found = [one for row in range(len(files)) for one in read_apart([row], read, apart.refused)]
    apart.rows = np.array([row for row, _ in found], np.int64)
    x = np.array([image for _, image in found], np.uint8).reshape(-1, *shape)
    return Examples(x, np.array([files[row][1] for row, _ in found], np.int64))


def _image_files(folder: Path, classes: Sequence[str], left_out: tables.LeftOut | None) -> list[_ImageFile]:
    """Every image with the position of its class; names that start with a dot are left out."""
    if not folder.is_dir():
        raise InvalidInput(f"{folder}: there is no such folder")
    visible = sorted(path for path in folder.iterdir() if not path.name.startswith("."))

    def known(paths: Sequence[Path]) -> Sequence[Path]:
        if wrong := [path for path in paths if not path.is_dir() or path.name not in classes]:
            raise InvalidInput(f"{wrong[0]}: not a folder of one of the classes {list(classes)}: move it away")
        return paths

    kinds = chain.from_iterable(read_apart(visible, known, left_out))
    return [
        (path, classes.index(kind.name))
        for kind in sorted(kinds, key=lambda path: classes.index(path.name))
        for path in sorted(kind.iterdir())
        if not path.name.startswith(".")
    ]


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
    except Exception as error:  # a header may name any size or type
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
    return with_checked_columns(where, dataset)


def with_checked_columns(where: str, dataset: Dataset) -> Dataset:
    """The same data set, its columns beside the records as text; those that do not fit the records are refused."""
    rows = len(dataset.train) + dataset.held_out.size
    return replace(dataset, columns=_checked_columns(where, dataset.columns, rows))

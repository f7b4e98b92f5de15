"""Tables of cells, in a .csv file or in memory: their lines, where their columns stand, and what cells become."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, islice
from pathlib import Path
from typing import Protocol, TextIO, TypeVar

import numpy as np
from numpy.typing import NDArray

from sordino.errors import STOPPING, InvalidInput
from sordino.learning.columns import MISSING, ColumnRules, ColumnSpec, WrongCell, float32_of
from sordino.parts.shipped import SHIPPED

CHUNK_ROWS = 10_000

Numbered = tuple[int, list[str]]  #: a row's cells after its line's number
LeftOut = list[str]  #: why each record was left out that is refused

_Row = TypeVar("_Row")
_Read = TypeVar("_Read")


def read_apart(
    rows: Sequence[_Row], read: Callable[[Sequence[_Row]], _Read], left_out: LeftOut | None = None
) -> Iterator[_Read]:
    """What `read` makes of rows, which it takes together or in parts; a row that it refuses is left out, if asked to.

    So no row decides about another one, whatever error it causes.
    """
    try:
        found = read(rows)
    except STOPPING:
        raise
    except BaseException as error:
        if left_out is None:
            raise
        if len(rows) > 1:
            for part in (rows[: len(rows) // 2], rows[len(rows) // 2 :]):
                yield from read_apart(part, read, left_out)
        else:
            left_out.append(str(error))
    else:
        yield found


@dataclass
class ClientReading:
    """How a client reads its records: each by itself, and a line of a table is one.

    Until it has joined, the first record that is refused refuses them all. Then the form of records is agreed: with a
    `shape`, records of another one and those that are refused are left out, and none changes what becomes of another.
    """

    shape: tuple[int, ...] | None = None
    left_out: LeftOut = field(default_factory=list)
    rows: NDArray[np.int64] | None = None  #: where the records that were read stand in the source, from 0 on
    warning: str = ""  #: to the owner, of the records as a whole

    @property
    def refused(self) -> LeftOut | None:
        """Where records go that are refused; None where that refuses them all."""
        return None if self.shape is None else self.left_out


class Lines(Protocol):
    """The lines of a table, each a list of cells; `line_num` is the number of the one before."""

    line_num: int

    def __iter__(self) -> Iterator[list[str]]: ...

    def __next__(self) -> list[str]: ...


class Frame:
    """A table in memory, column by column: read as the .csv file that it could be written to.

    None and NaN are empty cells; floating-point numbers without a fraction are written without one (3.0 as 3).
    """

    def __init__(self, name: str, columns: Mapping[str, Sequence[object]]) -> None:
        self.stem, self._columns = name, columns

    def __str__(self) -> str:
        return self.stem

    def lines(self) -> Lines:
        """Its header and its rows."""
        return _FrameLines(self._columns)


class _FrameLines:
    def __init__(self, columns: Mapping[str, Sequence[object]]) -> None:
        self.line_num = 0
        rows = zip(*columns.values(), strict=True)
        self._rows = chain([[str(name) for name in columns]], ([_text(value) for value in row] for row in rows))

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        row = next(self._rows)
        self.line_num += 1
        return row


def _text(value: object) -> str:
    """A value as a table writes it."""
    if isinstance(value, float | np.floating):
        number = float(value)
        return "" if number != number else str(int(number)) if number.is_integer() else repr(number)
    text = "" if value is None else str(value)
    return "" if text in ("<NA>", "NaT") else text


Place = Path | Frame


class Unread(list[str]):
    """A line of a file that is no row of its table."""

    def __init__(self, line: str, why: str) -> None:
        super().__init__([line])
        self.why = why


class _LinesApart:
    """The rows of a file, each in one line: a line that is no row takes no other with it."""

    def __init__(self, file: TextIO, delimiter: str) -> None:
        self.line_num = 0
        self._file, self._delimiter = file, delimiter

    def __iter__(self) -> Iterator[list[str]]:
        return self

    def __next__(self) -> list[str]:
        line = self._file.readline()
        if not line:
            raise StopIteration
        self.line_num += 1
        if not _is_text(line):
            return Unread(line, "not in UTF-8: save the table in UTF-8")
        try:
            return next(csv.reader([line], delimiter=self._delimiter, strict=True))
        except csv.Error as error:
            return Unread(
                line,
                f"no whole row ({error}): close its quotation marks. A client reads one row a line: where cells hold "
                "line ends, write spaces in their place",
            )


def _is_text(text: str) -> bool:
    """Whether text came from bytes in UTF-8."""
    return text.isascii() or not any("\ud800" <= letter <= "\udfff" for letter in text)


@contextmanager
def reading(place: Place, delimiter: str = ",", *, by_line: bool = False) -> Iterator[Lines]:
    """The lines of a table; what is no table is refused.

    `by_line`: each line of a file is a row, one that cannot be read is `Unread`, and the others are read.
    """
    if isinstance(place, Frame):
        yield place.lines()
        return
    try:
        with place.open(newline="", encoding="utf-8-sig", errors="surrogateescape" if by_line else "strict") as file:
            yield _LinesApart(file, delimiter) if by_line else csv.reader(file, delimiter=delimiter, strict=True)
    except FileNotFoundError:
        raise InvalidInput(f"{place}: there is no such file") from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InvalidInput(
            f"{place}: cannot be read as a table in UTF-8 separated by {delimiter!r} ({error})"
        ) from None


def chunks(lines: Lines, first: list[list[str]]) -> Iterator[list[Numbered]]:
    """Rows with their lines' numbers, some thousands at a time; empty lines are left out."""
    numbered = ((lines.line_num, row) for row in chain(first, lines) if row)
    return iter(lambda: list(islice(numbered, CHUNK_ROWS)), [])


@dataclass(frozen=True)
class Header:
    """The columns of a table; `names` is empty where it has no header line."""

    place: Place
    names: tuple[str, ...]
    width: int

    @classmethod
    def of(cls, place: Place, first: list[str], *, named: bool) -> Header:
        """The columns of a table with this first line: its header, or else its first row."""
        if not first:
            raise InvalidInput(f"{place}: the first line is empty; a table begins with its header or its first row")
        if isinstance(first, Unread):
            raise InvalidInput(f"{place}, line 1: {first.why}")
        return cls(place, tuple(cell.strip() for cell in first) if named else (), len(first))

    def position(self, wanted: str | int) -> int:
        """Where a column stands."""
        if isinstance(wanted, str):
            if wanted not in self.names:
                allowed = (
                    f"the columns are {list(self.names)}" if self.names else "without a header, columns go by number"
                )
                raise InvalidInput(f"{self.place}: there is no column {wanted!r}; {allowed}{_separated(self.names)}")
            return self.names.index(wanted)
        if not -self.width <= wanted < self.width:
            raise InvalidInput(f"{self.place}: there is no column {wanted}; there are {self.width}, numbered from 0")
        return wanted % self.width

    def position_beside(self, wanted: str | int | None) -> int | None:
        """Where the column beside the records stands; None where there is none, or the header lacks it."""
        if wanted is None or (self.names and isinstance(wanted, str) and wanted not in self.names):
            return None
        return self.position(wanted)

    def cell(self, line: int, column: int) -> str:
        """A cell's place in words."""
        return f"{self.place}, line {line}, column {self.names[column] if self.names else column!r}"

    def check_width(self, chunk: Sequence[Numbered]) -> None:
        """Refuse rows with more or fewer cells than columns, and lines that are no rows."""
        for line, row in chunk:
            if isinstance(row, Unread):
                raise InvalidInput(f"{self.place}, line {line}: {row.why}")
            if len(row) != self.width:
                raise InvalidInput(f"{self.place}, line {line}: {len(row)} cells, and there are {self.width} columns")


@dataclass(frozen=True)
class Features:
    """The columns that a model learns from: numbers as they stand, or what declared rules make of cells."""

    header: Header
    positions: tuple[int, ...]
    rules: ColumnRules

    @property
    def width(self) -> int:
        """Values of a record."""
        return sum(len(rule.parts()) for rule in self.rules.values()) if self.rules else len(self.positions)

    @property
    def names(self) -> tuple[str, ...]:
        """A name for each value; none where the table has no header and nothing is declared."""
        return names_of(self.rules) or tuple(self.header.names[at] for at in self.positions if self.header.names)

    def values(self, chunk: Sequence[Numbered]) -> NDArray[np.float32]:
        """The values `[n, width]` of some rows."""
        self.header.check_width(chunk)
        if not self.rules:
            return self._floats(chunk)
        found = []
        for (name, rule), at in zip(self.rules.items(), self.positions, strict=True):
            try:
                values = _encoded(rule, [row[at].strip() for _, row in chunk])
            except WrongCell as error:
                raise InvalidInput(f"{self.header.cell(chunk[error.row][0], at)}: {error}") from None
            except Exception as error:  # of somebody's own rule
                raise InvalidInput(f"{self.header.place}: the rule data.columns.{name} failed ({error})") from error
            if (values.dtype, values.shape) != (np.dtype(np.float32), (len(chunk), len(rule.parts()))):
                raise InvalidInput(
                    f"data.columns.{name}: its rule must give float32 [{len(chunk)}, {len(rule.parts())}], got "
                    f"{values.dtype} of shape {list(values.shape)}"
                )
            if not (finite := np.isfinite(values).all(axis=1)).all():
                line, row = chunk[int(finite.argmin())]
                raise InvalidInput(f"{self.header.cell(line, at)}: {row[at]!r} has no finite value by its rule")
            found.append(values)
        return np.concatenate(found, axis=1)

    def _floats(self, chunk: Sequence[Numbered]) -> NDArray[np.float32]:
        x = float32_of([[row[at] for at in self.positions] for _, row in chunk])
        if x is None:
            raise self._first_wrong(chunk)
        return x

    def _first_wrong(self, chunk: Sequence[Numbered]) -> InvalidInput:
        line, column, cell = next(
            (line, c, row[c]) for line, row in chunk for c in self.positions if float32_of([row[c]]) is None
        )
        what = "a missing value" if cell.strip() in MISSING else "not a finite number of float32's range"
        return InvalidInput(
            f"{self.header.cell(line, column)}: {cell!r} is {what}: correct it, leave the column or row out, or "
            "declare what text, categories and gaps become (data.columns)"
        )


def _separated(names: Sequence[str]) -> str:
    """A hint where a header looks as if other signs than commas stood between its columns."""
    signs = {";": "semicolons", "\t": "tabs", "|": "bars"}
    found = [word for sign, word in signs.items() if len(names) == 1 and sign in names[0]]
    return f". Its columns look separated by {found[0]}: save it with commas" if found else ""


def _encoded(rule: ColumnSpec, cells: list[str]) -> NDArray[np.float32]:
    """What a rule makes of cells; one of somebody's own sees one at a time, so that no record changes another's."""
    if rule.kind in SHIPPED["column"]:
        return rule.encode(cells)
    found = []
    for row, cell in enumerate(cells):
        try:
            found.append(rule.encode([cell]))
        except WrongCell as error:
            raise WrongCell(row, str(error)) from None
    return np.concatenate(found)


def names_of(rules: ColumnRules) -> tuple[str, ...]:
    """A name for each value that declared columns become: age, smoker=yes, note=fever."""
    return tuple(f"{name}={part}" if part else name for name, rule in rules.items() for part in rule.parts())


def unlabelled(place: Place, first: list[str], columns: Sequence[str], width: int, rules: ColumnRules) -> Features:
    """The features of a table without labels: its header has these columns among others, or there is no header."""
    header = Header(place, tuple(cell.strip() for cell in first) if columns else (), len(first))
    if missing := [name for name in columns if name not in header.names]:
        raise InvalidInput(
            f"{place}: the first line lacks {', '.join(missing)}. The model was trained on the columns "
            f"{', '.join(columns)}: name them in the first line, in any order{_separated(header.names)}"
        )
    if double := [name for name in columns if header.names.count(name) > 1]:
        raise InvalidInput(f"{place}: two columns are called {double[0]}: rename or remove one of them")
    if not columns and len(first) != width:
        raise InvalidInput(
            f"{place}: the first line has {len(first)} cells, and the model takes {width} numbers a record. Its "
            "columns have no names: give numbers in the order of the training data, without header and label"
        )
    return Features(header, tuple(map(header.names.index, columns)) or tuple(range(width)), rules)


def read_unlabelled(place: Place, width: int, columns: Sequence[str], rules: ColumnRules) -> NDArray[np.float32]:
    """Records `[n, width]` of a table without labels, for a model of these columns or declared rules."""
    wanted = tuple(rules) or columns
    with reading(place) as lines:
        first = next(lines, [])
        features = unlabelled(place, first, wanted, width, rules)
        found = [features.values(chunk) for chunk in chunks(lines, [] if wanted else [first])]
    if not found:
        raise InvalidInput(f"{place}: there are no rows: add a row for each record")
    return np.concatenate(found)

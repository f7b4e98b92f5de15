"""Which rows were ever read under each name of the owner's data: keyed fingerprints, which never leave the folder.

A fingerprint is 8 bytes of BLAKE2b, keyed with 32 random bytes of this folder, over a row's features (little-endian
float32) and its label (float64), as the client reads them, before any federation normalises them. The file has 8 bytes
for each row of each name. The ledger says how often it was written: one that is older, as from a backup, or lost, has
forgotten rows, so that no name's rows count as known since then. Two different rows share a fingerprint with a chance
of 2^-64. A row that was encoded anew, with another scale, order of columns or digit, is another row.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.learning.examples import Examples
from sordino.privacy.ledger import Ledger
from sordino.storage.sqlite import Database

Fingerprints = NDArray[np.uint64]

_IDENTITY = 0x536F726F, 1  #: "Soro", and the version
_SCHEMA = (
    "CREATE TABLE own (key BLOB NOT NULL, written INTEGER NOT NULL) STRICT",
    "CREATE TABLE names (name TEXT PRIMARY KEY, since INTEGER, rows BLOB NOT NULL) STRICT",
)
_BLOCK = 4096  #: rows that are encoded at a time
_NONE = np.zeros(0, np.uint64)


class KnownRows:
    """The fingerprints of a client's folder, in one SQLite file for its owner only."""

    def __init__(self, path: Path, ledger: Ledger) -> None:
        self._path, self._ledger = path, ledger

    def take(
        self, name: str, examples: Examples, since: Callable[[], int], others: Sequence[str] = ()
    ) -> NDArray[np.bool_]:
        """Keep the rows of a name that were never under any of the others, and tell which these are.

        Rows that the name had before stay. `since` is the last entry before any of its rows was known. One transaction
        compares and writes: of two processes with one row under two disjoint names, one gets it.
        """
        with self._open() as file:
            rows = fingerprints(examples, _key(file))
            with file.transaction():
                known = np.concatenate([_NONE, *(_rows(file, other) for other in others)])
                apart = np.isin(rows, known, invert=True)
                before, entry = _rows(file, name), _since(file, name)
                after = np.union1d(before, rows[apart])
                if entry is None or len(after) > len(before):
                    row = name, since() if entry is None else entry, after.astype("<u8").tobytes()
                    file.execute("INSERT OR REPLACE INTO names VALUES (?, ?, ?)", row)
                    (count,) = file.one("SELECT written FROM own")
                    self._ledger.keep_rows(count + 1)  # first: after a power cut, unknown
                    file.execute("UPDATE own SET written = ?", [count + 1])
            return apart

    def common(self, name: str, examples: Sequence[Examples], others: Sequence[str]) -> dict[str, int]:
        """How many rows of the name, these or earlier ones, were ever under each of the others; none is left out."""
        with self._open() as file:
            key = _key(file)
            own = np.unique(np.concatenate([_rows(file, name), *(fingerprints(each, key) for each in examples)]))
            counts = {other: len(np.intersect1d(own, _rows(file, other), assume_unique=True)) for other in others}
            return {other: count for other, count in counts.items() if count}

    def since(self, name: str) -> int | None:
        """The last entry of the ledger before the rows of a name were known; None if they are not."""
        with self._open() as file:
            return _since(file, name)

    @contextmanager
    def _open(self) -> Iterator[Database]:
        try:  # readable by its owner only, from its first byte on
            os.close(os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600))
        except OSError as error:
            raise _refusal(self._path, error) from None
        with closing(Database(self._path, _refusal)) as file:
            file.make_durable()
            file.prepare("file of fingerprints", _SCHEMA, _IDENTITY)
            with file.transaction():
                if file.one("SELECT key FROM own") is None:
                    file.execute("INSERT INTO own VALUES (?, 0)", [secrets.token_bytes(32)])
                if file.one("SELECT written FROM own")[0] < (written := self._ledger.rows_kept):
                    file.execute("UPDATE names SET since = NULL")
                    file.execute("UPDATE own SET written = ?", [written])
            yield file


def fingerprints(examples: Examples, key: bytes) -> Fingerprints:
    """The fingerprint of every row."""
    found = bytearray()
    n = len(examples)
    for start in range(0, n, _BLOCK):
        x, y = (part[start : start + _BLOCK] for part in (examples.x, examples.y))
        count = len(x)
        # adding 0 makes one zero of the two
        features = (x.reshape(count, -1).astype("<f4") + np.float32(0)).view(np.uint8).reshape(count, -1)
        labels = (y.reshape(count, -1).astype("<f8") + 0.0).view(np.uint8).reshape(count, -1)
        lines = np.concatenate([features, labels], axis=1)
        width, data = lines.shape[1], memoryview(lines.tobytes())
        for at in range(0, count * width, width):
            found += hashlib.blake2b(data[at : at + width], digest_size=8, key=key).digest()
    return _decoded(bytes(found))


def _decoded(rows: bytes) -> Fingerprints:
    return np.frombuffer(rows, "<u8").astype(np.uint64)


def _rows(file: Database, name: str) -> Fingerprints:
    known = file.one("SELECT rows FROM names WHERE name = ?", [name])
    return _NONE if known is None else _decoded(known[0])


def _since(file: Database, name: str) -> int | None:
    known = file.one("SELECT since FROM names WHERE name = ?", [name])
    return None if known is None or known[0] is None else int(known[0])


def _key(file: Database) -> bytes:
    return bytes(file.one("SELECT key FROM own")[0])


def _refusal(path: Path, error: Exception) -> Exception:
    return InvalidInput(
        f"{path}, which says what rows were under each name of your data, cannot be used ({error}): restore it from a "
        "backup, or move it away; what left so far then counts for all names"
    )


__all__ = ["KnownRows", "fingerprints"]

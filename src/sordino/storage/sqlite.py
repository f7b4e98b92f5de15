"""One SQLite file: its commits survive a power cut, and its errors are raised as what they mean to its owner."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from sordino.errors import InvalidInput

CAN_SHRINK = 2  #: SQLite's number for `auto_vacuum=INCREMENTAL`: free pages can be cut off the file


class Database:
    """An open SQLite file, for all threads of one process; close it.

    `refusal` turns an error of SQLite into the exception that is raised in its place. With `create`, a missing file is
    made. `timeout` is how many seconds to wait for other processes.
    """

    def __init__(
        self, path: Path, refusal: Callable[[Path, Exception], Exception], *, create: bool = True, timeout: float = 30.0
    ) -> None:
        self.path, self._refusal, self.lock = path, refusal, threading.RLock()
        place = f"{path.absolute().as_uri()}?mode={'rwc' if create else 'rw'}"
        with self.translated():
            self.connection = sqlite3.connect(
                place, uri=True, isolation_level=None, timeout=timeout, check_same_thread=False
            )

    @contextmanager
    def translated(self) -> Iterator[None]:
        """Raise the owner's exception in the place of SQLite's."""
        try:
            yield
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter where a message quotes damaged text
            raise self._refusal(self.path, error) from error

    def make_durable(self, journal: str = "TRUNCATE", *more: str) -> None:
        """Let commits survive a power cut, and set `more` pragmas.

        `synchronous=FULL` syncs the journal and the file, but does not sync the deletion of a journal in mode DELETE:
        the journal could come back after a power cut and undo a commit. TRUNCATE syncs it, and keeps all data in one
        file.
        """
        for pragma in ("trusted_schema=OFF", f"journal_mode={journal}", "synchronous=FULL", "fullfsync=ON", *more):
            self.all(f"PRAGMA {pragma}")

    @property
    def identity(self) -> tuple[int, int]:
        """Which program's file it is, and in which version; (0, 0) where nobody has said so."""
        (application,), (version,) = self.one("PRAGMA application_id"), self.one("PRAGMA user_version")
        return application, version

    def prepare(self, what: str, schema: Iterable[str], identity: tuple[int, int]) -> None:
        """Make the tables of a new file; a file of another program or version is refused."""
        if self.identity == (0, 0):
            with self.transaction():
                if not self.all("SELECT 1 FROM sqlite_schema"):
                    for statement in schema:
                        self.execute(statement)
                    self.identify(identity)
        if self.identity != identity:
            raise InvalidInput(
                f"{self.path} is no {what} of version {identity[1]} (it says {self.identity[1]}): it belongs to "
                "another program or to another version of Sordino"
            )

    def identify(self, identity: tuple[int, int]) -> None:
        """Write down which program's file it is, and in which version."""
        self.execute(f"PRAGMA application_id = {identity[0]}")
        self.execute(f"PRAGMA user_version = {identity[1]}")

    def execute(self, statement: str, values: Iterable[object] = ()) -> None:
        """Change something."""
        with self.lock, self.translated():
            self.connection.execute(statement, tuple(values))

    def execute_each(self, statement: str, rows: Iterable[Sequence[object]]) -> None:
        """Change something for every row of values."""
        with self.lock, self.translated():
            self.connection.executemany(statement, rows)

    def rows(self, query: str, values: Iterable[object] = ()) -> Iterator[Any]:
        """The rows that a query finds, one by one; hold the lock, or be in a transaction, until the last."""
        with self.translated():
            yield from self.connection.execute(query, tuple(values))

    def all(self, query: str, values: Iterable[object] = ()) -> list[Any]:
        """All rows that a query finds."""
        with self.lock:
            return list(self.rows(query, values))

    def one(self, query: str, values: Iterable[object] = ()) -> Any:
        """The first row that a query finds; None where there is none."""
        with self.lock, self.translated():
            return self.connection.execute(query, tuple(values)).fetchone()

    @contextmanager
    def transaction(self, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
        """All of what happens inside, durable on return, or nothing."""
        with self.lock:
            self.execute(begin)
            try:
                yield
                self.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self.connection.execute("ROLLBACK")
                raise

    def shrink(self) -> None:
        """Give free pages back to the disk, in one transaction.

        They are cut off where the file was made with `auto_vacuum=CAN_SHRINK`; another file is written anew, once,
        which needs room for a second one.
        """
        with self.lock, self.translated():
            if not self.one("PRAGMA freelist_count")[0]:
                return
            if self.one("PRAGMA auto_vacuum")[0] == CAN_SHRINK:
                self.connection.executescript("PRAGMA incremental_vacuum")  # `execute` would stop after one page
            else:
                self.execute(f"PRAGMA auto_vacuum = {CAN_SHRINK}")
                self.execute("VACUUM")

    def close(self) -> None:
        """Let go of the file."""
        with self.lock:
            self.connection.close()


__all__ = ["CAN_SHRINK", "Database"]

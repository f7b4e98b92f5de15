"""What a coordinator over a network writes down: the plan before it is sent, and the round when it is over.

    checkpoint/state.sqlite              which plans went out, and each round that is over with who answered what
    checkpoint/plan-000007.bin           the bytes of the plan that is out
    checkpoint/state-000006.safetensors  the arrays after the last round that is over

Real clients cannot be asked again for a fresh answer, so a round has one moment in which it becomes part of the run:
the transaction that adds its row to `rounds`. The files it names are whole and on disk before; whatever a crash leaves
behind beyond it is as if it had never been. A plan has such a moment too, before anyone sees it: after a restart the
same bytes go out, and clients give the same bytes back.

A simulation needs neither, and keeps no journal (`sordino.checkpoint`): a round that was lost is computed again, to the
same bits. Both keep arrays in the same files.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sordino.checkpoint import Saved, packed, unpacked
from sordino.coordinator import Attendance
from sordino.durable import NotWritten, make_folder, write_whole
from sordino.errors import InvalidInput, SordinoError
from sordino.messages import Plan
from sordino.privacy.history import Spent, members, ranges

VERSION = 1
NAME = "state.sqlite"
_APPLICATION_ID = 0x53445243  # "SDRC"
_SCHEMA = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE starts (number INTEGER PRIMARY KEY, time TEXT NOT NULL, process INTEGER NOT NULL) STRICT;
CREATE TABLE plans (
    round INTEGER PRIMARY KEY,
    sha256 TEXT NOT NULL,           -- of the plan's bytes
    sent INTEGER NOT NULL,          -- how often they went out: once, and once more for every restart in that round
    first_sent TEXT NOT NULL,
    last_sent TEXT NOT NULL
) STRICT;
CREATE TABLE rounds (
    round INTEGER PRIMARY KEY REFERENCES plans (round),  -- 0 is the preparation
    ended TEXT NOT NULL,
    why_lost TEXT NOT NULL,         -- empty where the round counted
    asked TEXT NOT NULL,            -- clients, as in 0-4, 7
    reported TEXT NOT NULL,         -- behind a relay or a shuffler: numbers that tell a class and nobody's name
    declined TEXT NOT NULL,
    refused TEXT NOT NULL,          -- JSON: client -> what was wrong with its report
    strays TEXT NOT NULL,           -- JSON: late, duplicate, wrong round, another plan, not asked -> how many
    spent TEXT NOT NULL,            -- JSON: what was released, and by whom
    record TEXT,                    -- its line of metrics.jsonl; none for the preparation
    state_file TEXT NOT NULL,
    state_sha256 TEXT NOT NULL
) STRICT;
CREATE TABLE receipts (client INTEGER PRIMARY KEY, receipt BLOB NOT NULL) STRICT;
"""


@dataclass(frozen=True)
class Ended:
    """A round that is over, ready to be written down; the preparation is round 0 and has no record."""

    round: int
    attendance: Attendance
    why_lost: str
    spent: Spent
    record: str | None
    saved: Saved
    receipts: Mapping[int, bytes]


@dataclass(frozen=True)
class Answers:
    """Who answered what in a round that is over."""

    round: int
    reported: tuple[int, ...]
    declined: tuple[int, ...]
    refused: Mapping[int, str]  #: client -> what was wrong with its report
    strays: Mapping[str, int]


class Journal:
    """The journal of one run; close it, or use `journal`."""

    def __init__(self, folder: Path) -> None:
        """Open the one in a folder, or begin it."""
        self._folder, self._path = folder, folder / NAME
        make_folder(folder)
        with _translated(self._path):
            self._db = sqlite3.connect(self._path, isolation_level=None)
            try:
                for pragma in ("trusted_schema=OFF", "journal_mode=TRUNCATE", "synchronous=FULL", "fullfsync=ON"):
                    self._db.execute(f"PRAGMA {pragma}").fetchall()
                self._begin()
            except BaseException:
                self._db.close()
                raise

    def _begin(self) -> None:
        (found,) = self._db.execute("PRAGMA application_id").fetchone()
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        (tables,) = self._db.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if not tables and not found:
            with self._transaction():
                for statement in _SCHEMA.split(";\n"):
                    self._db.execute(statement)
                self._db.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
                self._db.execute(f"PRAGMA user_version = {VERSION}")
        elif found != _APPLICATION_ID or version != VERSION:
            raise InvalidInput(
                f"{self._path} is no journal of version {VERSION} (it says {version}): it belongs to another program "
                "or to another version of Sordino"
            )

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        with _translated(self._path):
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
                self._db.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._db.execute("ROLLBACK")
                raise

    def _rows(self, query: str, *values: Any) -> list[tuple[Any, ...]]:
        with _translated(self._path):
            return self._db.execute(query, values).fetchall()

    # --- what the run is

    def about(self) -> dict[str, str]:
        """What was written down when the run began; empty if nothing was."""
        return dict(self._rows("SELECT key, value FROM about"))

    def begin(self, about: Mapping[str, str]) -> None:
        """Write down what the run is, once."""
        with self._transaction():
            self._db.executemany("INSERT INTO about VALUES (?, ?)", about.items())

    def start(self) -> None:
        """Write down that a coordinator takes over."""
        with self._transaction():
            self._db.execute("INSERT INTO starts (time, process) VALUES (?, ?)", (_now(), os.getpid()))

    # --- plans

    def planned(self, round: int) -> Plan | None:
        """The plan of a round that may have been sent: the bytes that were, or none."""
        found = self._rows("SELECT sha256 FROM plans WHERE round = ?", round)
        if not found:
            return None
        path = self._plan_file(round)
        try:
            content = path.read_bytes()
        except OSError as error:
            raise _damaged(path, str(error.strerror or error)) from None
        if hashlib.sha256(content).hexdigest() != found[0][0]:
            raise _damaged(path, "its bytes are not those of the plan that was sent")
        return Plan.decode(content)

    def plan(self, plan: Plan) -> None:
        """Write a plan down, durably, before anyone sees it."""
        content, now = plan.encode(), _now()
        write_whole(self._plan_file(plan.round), content)
        with self._transaction():
            row = (plan.round, hashlib.sha256(content).hexdigest(), now, now)
            self._db.execute("INSERT INTO plans VALUES (?, ?, 0, ?, ?)", row)

    def send(self, round: int) -> int:
        """Count that a plan goes out now; how often it has, with this time."""
        with self._transaction():
            self._db.execute("UPDATE plans SET sent = sent + 1, last_sent = ? WHERE round = ?", (_now(), round))
        return int(self._rows("SELECT sent FROM plans WHERE round = ?", round)[0][0])

    def sent(self, round: int) -> int:
        """How often a plan went out so far."""
        return sum(int(sent) for (sent,) in self._rows("SELECT sent FROM plans WHERE round = ?", round))

    # --- rounds

    def end(self, ended: Ended) -> None:
        """Make a round part of the run, once: its state first, then everything else at once."""
        attendance, content = ended.attendance, packed(ended.saved)
        path = self._folder / f"state-{ended.round:06d}.safetensors"
        write_whole(path, content)
        row = (
            ended.round, _now(), ended.why_lost, ranges(attendance.chosen), ranges(attendance.reported),
            ranges(attendance.declined), _json(attendance.refused), _json(attendance.strays), ended.spent.to_line(),
            ended.record, path.name, hashlib.sha256(content).hexdigest(),
        )  # fmt: skip
        with self._transaction():
            self._db.execute(f"INSERT INTO rounds VALUES ({', '.join('?' * len(row))})", row)
            self._db.executemany("INSERT OR REPLACE INTO receipts VALUES (?, ?)", ended.receipts.items())
        self._forget({path.name})

    def _forget(self, kept: set[str]) -> None:
        """Remove the files of rounds that are over; one that stays behind does no harm."""
        for path in [*self._folder.glob("state-*.safetensors"), *self._folder.glob("plan-*.bin")]:
            if path.name not in kept:
                with suppress(OSError):
                    path.unlink()

    def last(self) -> int | None:
        """The last round that is over; None before the first."""
        found = self._rows("SELECT max(round) FROM rounds")[0][0]
        return None if found is None else int(found)

    def saved(self) -> Saved | None:
        """The state after the last round that is over; None before the first."""
        found = self._rows("SELECT round, state_file, state_sha256 FROM rounds ORDER BY round DESC LIMIT 1")
        if not found:
            return None
        round, name, digest = found[0]
        path = self._folder / name
        try:
            right = hashlib.sha256(path.read_bytes()).hexdigest() == digest
        except OSError as error:
            raise _damaged(path, str(error.strerror or error)) from None
        saved = unpacked(path)
        if not right or saved.state.round != round:
            raise _damaged(path, f"it is not the state after round {round}")
        return saved

    def spent(self) -> list[Spent]:
        """What was released in each round that is over."""
        found = [Spent.from_line(line) for (line,) in self._rows("SELECT spent FROM rounds ORDER BY round")]
        numbers = [spent.round for spent in found]
        if numbers and numbers != list(range(numbers[0], numbers[-1] + 1)):
            raise _damaged(self._path, "it lacks some rounds")
        return found

    def records(self) -> list[str]:
        """The lines of metrics.jsonl, of all rounds that are over."""
        query = "SELECT record FROM rounds WHERE record IS NOT NULL ORDER BY round"
        return [str(record) for (record,) in self._rows(query)]

    def answers(self, after: int = -1) -> list[Answers]:
        """Who answered what in the rounds after this one."""
        query = "SELECT round, reported, declined, refused, strays FROM rounds WHERE round > ? ORDER BY round"
        return [
            Answers(
                int(round),
                tuple(members(reported)),
                tuple(members(declined)),
                {int(client): str(reason) for client, reason in json.loads(refused).items()},
                {str(kind): int(count) for kind, count in json.loads(strays).items()},
            )
            for round, reported, declined, refused, strays in self._rows(query, after)
        ]

    def receipts(self) -> dict[int, bytes]:
        """The last receipt of each client."""
        return {int(client): bytes(receipt) for client, receipt in self._rows("SELECT client, receipt FROM receipts")}

    def _plan_file(self, round: int) -> Path:
        return self._folder / f"plan-{round:06d}.bin"


@contextmanager
def journal(folder: Path) -> Iterator[Journal]:
    """The journal in a folder, for as long as it is needed."""
    with closing(Journal(folder)) as found:
        yield found


def exists(folder: Path) -> bool:
    """Whether there is a journal in a folder."""
    return (folder / NAME).is_file()


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Errors of SQLite as what they mean for whoever runs the coordinator."""
    try:
        yield
    except sqlite3.Error as error:
        raise _refusal(path, error) from None


def _refusal(path: Path, error: sqlite3.Error) -> SordinoError:
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return NotWritten(
            f"{path} could not be written ({error}). Nothing that was on disk is lost: every round that it names is "
            "whole. Make room and go on with --resume"
        )
    return _damaged(path, str(error))


def _damaged(path: Path, why: str) -> InvalidInput:
    return InvalidInput(
        f"{path} is damaged or missing ({why}): the run cannot go on from it. Restore the folder from a backup, or "
        "start the run anew in another folder and under another name"
    )


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _json(value: Mapping[Any, Any] | Sequence[Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


__all__ = ["NAME", "Answers", "Ended", "Journal", "exists", "journal"]

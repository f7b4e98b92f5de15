"""The store of a run with real clients: the plan before it is sent, and the round when it is over.

    checkpoint/state.sqlite              which plans went out, and each round that is over with who answered what
    checkpoint/plan-000007.bin           the bytes of the plan that is out
    checkpoint/state-000006.safetensors  the arrays after the last round that is over

Real clients cannot be asked again for a fresh answer, so a round has one moment in which it becomes part of the run:
the transaction that adds its row to `rounds`. The files it names are whole and on disk before; whatever a crash leaves
behind beyond it is as if it had never been. A plan has such a moment too, before anyone sees it: after a restart the
same bytes go out, and clients give the same bytes back.

A simulation needs neither (`runs.store.FileStore`): a round that was lost is computed again, to the same bits. Both
keep arrays in the same files.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from contextlib import closing, suppress
from datetime import UTC, datetime
from pathlib import Path

from sordino.errors import SordinoError
from sordino.privacy.history import RoundReleases, members, ranges
from sordino.report.folder import RunFolder
from sordino.report.records import RoundRecord, from_json, to_line
from sordino.runs.checkpoint import Checkpoint, DamagedRun
from sordino.runs.coordinator import Attendance, RoundOutcome
from sordino.runs.store import Past, Store
from sordino.storage.files import NotWritten, make_folder, whole_lines, write_whole
from sordino.storage.sqlite import Database
from sordino.wire.messages import Plan

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


class JournalStore(Store):
    """The folder `checkpoint` of a run with real clients; close it."""

    def __init__(self, folder: RunFolder) -> None:
        """Open the journal of a run, or begin it."""
        super().__init__(folder)
        self._run, self._place, self._path = folder, folder.checkpoint, folder.checkpoint / NAME
        make_folder(self._place)
        self._db = Database(self._path, _refusal)
        try:
            self._db.make_durable()
            self._db.prepare("journal", _SCHEMA.split(";\n"), (_APPLICATION_ID, VERSION))
        except BaseException:
            self._db.close()
            raise

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    # --- what the run is

    def begin(self, about: Mapping[str, str]) -> None:
        """Write down what the run is, once."""
        with self._db.transaction():
            self._db.execute_each("INSERT INTO about VALUES (?, ?)", about.items())

    def start(self, checkpoint: Checkpoint) -> None:
        """Write down that a coordinator takes over."""
        with self._db.transaction():
            self._db.execute("INSERT INTO starts (time, process) VALUES (?, ?)", (_now(), os.getpid()))

    # --- plans

    def plan(self, plan: Plan) -> tuple[Plan, int]:
        """Write a plan down, durably, before anyone sees it; one that may have been sent before a restart stays."""
        path, content, now = self._place / f"plan-{plan.round:06d}.bin", plan.encode(), _now()
        found = self._db.all("SELECT sha256 FROM plans WHERE round = ?", [plan.round])
        if found:
            plan = Plan.decode(_read(path, found[0][0], "its bytes are not those of the plan that was sent"))
        else:
            write_whole(path, content)
        again = "ON CONFLICT (round) DO UPDATE SET sent = sent + 1, last_sent = excluded.last_sent"
        row = (plan.round, hashlib.sha256(content).hexdigest(), now, now)
        with self._db.transaction():
            self._db.execute(f"INSERT INTO plans VALUES (?, ?, 1, ?, ?) {again}", row)
        return plan, int(self._db.one("SELECT sent FROM plans WHERE round = ?", [plan.round])[0])

    # --- rounds

    def end(
        self, outcome: RoundOutcome, spent: RoundReleases, record: RoundRecord | None, checkpoint: Checkpoint
    ) -> None:
        """Make a round part of the run, once: its state first, then everything else at once; metrics.jsonl follows."""
        attendance, round, content = outcome.attendance, outcome.plan.round, checkpoint.encode()
        path = self._place / f"state-{round:06d}.safetensors"
        write_whole(path, content)
        row = (
            round, _now(), outcome.why_lost, ranges(attendance.chosen), ranges(attendance.reported),
            ranges(attendance.declined), _json(attendance.refused), _json(attendance.strays), spent.to_line(),
            None if record is None else to_line(record), path.name, hashlib.sha256(content).hexdigest(),
        )  # fmt: skip
        gone = [(client,) for client in self._changed_hands(spent)]
        with self._db.transaction():
            self._db.execute_each("DELETE FROM receipts WHERE client = ?", gone)
            self._db.execute(f"INSERT INTO rounds VALUES ({', '.join('?' * len(row))})", row)
            self._db.execute_each("INSERT OR REPLACE INTO receipts VALUES (?, ?)", attendance.receipts.items())
        self._forget({path.name})
        if record is not None:
            self._run.append_round(record)

    def _changed_hands(self, spent: RoundReleases) -> list[int]:
        """Numbers that another member held in the round before: its receipt is of no use to who holds them now."""
        found = self._db.all("SELECT spent FROM rounds ORDER BY round DESC LIMIT 1")
        before = RoundReleases.from_line(found[0][0]).names if found and spent.names else {}
        return [client for client, name in before.items() if spent.names.get(client) != name]

    def _forget(self, kept: set[str]) -> None:
        """Remove the files of rounds that are over; one that stays behind does no harm."""
        for path in [*self._place.glob("state-*.safetensors"), *self._place.glob("plan-*.bin")]:
            if path.name not in kept:
                with suppress(OSError):
                    path.unlink()

    # --- what it knows

    def load(self) -> Past:
        """All rounds that are over; metrics.jsonl is made to say what the journal says."""
        past = self.past()
        metrics = self._run.path / "metrics.jsonl"
        if not past.about and (
            whole_lines(metrics) or any(self._place.glob("state-*")) or any(self._place.glob("plan-*"))
        ):
            raise DamagedRun(self._path, "it knows nothing of the rounds that lie beside it")  # clients would pay twice
        lines = [to_line(record).encode() for record in past.records]
        if whole_lines(metrics) != lines:
            write_whole(metrics, b"".join(line + b"\n" for line in lines))
        return past

    def past(self) -> Past:
        """All rounds that are over."""
        query = "SELECT round, asked, reported, declined, refused, strays, spent, record FROM rounds ORDER BY round"
        rows = self._db.all(query)
        numbers = [int(row[0]) for row in rows]
        if numbers and (numbers[0] > 1 or numbers != list(range(numbers[0], numbers[-1] + 1))):
            raise DamagedRun(self._path, "it lacks some rounds")
        checkpoint, result = self._checkpoint(), self._run.result()
        return Past(
            checkpoint,
            [RoundReleases.from_line(row[6]) for row in rows],
            [from_json(RoundRecord, json.loads(row[7])) for row in rows if row[7] is not None],
            {} if checkpoint is None else checkpoint.memory,
            None if result is None else result.stopped,
            {int(client): bytes(receipt) for client, receipt in self._db.all("SELECT client, receipt FROM receipts")},
            {int(row[0]): _attendance(*row[1:6]) for row in rows},
            dict(self._db.all("SELECT key, value FROM about")),
        )

    def _checkpoint(self) -> Checkpoint | None:
        """The state after the last round that is over; None before the first."""
        found = self._db.all("SELECT round, state_file, state_sha256 FROM rounds ORDER BY round DESC LIMIT 1")
        if not found:
            return None
        round, name, digest = found[0]
        path, why = self._place / name, f"it is not the state after round {round}"
        _read(path, digest, why)
        checkpoint = Checkpoint.read(path)
        if checkpoint.state.round != round:
            raise DamagedRun(path, why)
        return checkpoint


def read_past(folder: RunFolder) -> Past:
    """What the journal in a run's folder knows; nothing where the run was killed before it had any."""
    if not (folder.checkpoint / NAME).is_file():
        return Past()
    with closing(JournalStore(folder)) as store:
        return store.past()


def _attendance(asked: str, reported: str, declined: str, refused: str, strays: str) -> Attendance:
    """Who answered what, as it was written down; reasons and receipts are kept elsewhere."""
    return Attendance(
        tuple(members(asked)),
        reported=list(members(reported)),
        declined=list(members(declined)),
        refused={int(client): str(reason) for client, reason in json.loads(refused).items()},
        strays=Counter(json.loads(strays)),
    )


def _read(path: Path, digest: str, otherwise: str) -> bytes:
    """The bytes of a file, which have this SHA-256; `otherwise` says what is wrong where they have not."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise DamagedRun(path, str(error.strerror or error)) from None
    if hashlib.sha256(content).hexdigest() != digest:
        raise DamagedRun(path, otherwise)
    return content


def _refusal(path: Path, error: Exception) -> SordinoError:
    """An error of SQLite as what it means to whoever runs the coordinator."""
    name = getattr(error, "sqlite_errorname", "")
    if name.startswith(("SQLITE_FULL", "SQLITE_IOERR", "SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM")):
        return NotWritten(
            f"{path} could not be written ({error}). Nothing that was on disk is lost: every round that it names is "
            "whole. Make room and go on with --resume"
        )
    return DamagedRun(path, str(error))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _json(value: Mapping[int, str] | Mapping[str, int]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


__all__ = ["NAME", "JournalStore", "read_past"]

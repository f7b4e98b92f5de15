"""What the shuffler holds, in one SQLite file: an envelope that was accepted survives a crash, and who sent it is
forgotten in the very transaction in which its batch is mixed.

A client's report enters a batch whole or not at all: every position has then the same number of envelopes, and what is
missing says nothing of anybody. A batch is mixed once. Its bytes stay the same, however often they are fetched, until
the server says that it has them; then they are gone.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput, SordinoError
from sordino.shuffler.envelopes import Body, Bytes, batch_head, envelope_bytes, mix
from sordino.shuffler.terms import LONGEST_NAME, MOST_CLIENTS, Terms
from sordino.storage.files import make_folder, write_whole
from sordino.storage.sqlite import Database

FILE = "shuffler.sqlite"
SERVER_TOKEN = "server.token"
CLIENT_TOKEN = "shuffler.token"  #: what owners' commands call the file with their token
LONGEST_LATENCY = 86_400.0
PIECE_BYTES = 2**25  #: of a batch, mixed at a time
MOST_POSITIONS = 4096  #: of a batch, mixed at a time
FORMAT = 2
_FILE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")

_CUT_LOG = "PRAGMA wal_checkpoint(TRUNCATE)"  #: what the log still holds of who sent what goes too

_SCHEMA = """
CREATE TABLE clients (number INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, token BLOB NOT NULL UNIQUE);
CREATE TABLE server (one INTEGER PRIMARY KEY CHECK (one = 1), token BLOB NOT NULL);
CREATE TABLE latencies (client INTEGER PRIMARY KEY, seconds REAL NOT NULL);
CREATE TABLE rounds (
    round INTEGER PRIMARY KEY, terms TEXT NOT NULL, closes REAL NOT NULL, at_least INTEGER NOT NULL,
    piece INTEGER NOT NULL, latency REAL NOT NULL
);
CREATE TABLE batches (
    round INTEGER, class INTEGER, state TEXT NOT NULL, clients INTEGER NOT NULL DEFAULT 0, PRIMARY KEY (round, class)
);
CREATE TABLE progress (
    round INTEGER, client INTEGER, class INTEGER NOT NULL, have BLOB NOT NULL, missing INTEGER NOT NULL,
    PRIMARY KEY (round, client)
);
CREATE TABLE held (
    round INTEGER, class INTEGER, piece INTEGER, client INTEGER, positions BLOB NOT NULL, envelopes BLOB NOT NULL
);
CREATE INDEX held_by_piece ON held (round, class, piece);
CREATE TABLE pieces (round INTEGER, class INTEGER, piece INTEGER, data BLOB NOT NULL,
    PRIMARY KEY (round, class, piece));
"""


class NoSuchRound(SordinoError):
    """A round or class that the server has not opened."""


class NotYet(SordinoError):
    """A batch that has not left: envelopes are still being waited for."""


class Over(SordinoError):
    """Too late: the batch has left, was dropped or was taken."""


class Contradiction(SordinoError):
    """What is asked for contradicts what the shuffler holds, or what it has room for."""


@dataclass(frozen=True)
class HeldRound:
    """A round as it was announced; everybody is told the same."""

    terms: Terms
    closes: float  #: when, by the shuffler's clock
    at_least: int  #: clients of a batch, at least: as announced, or more
    piece: int  #: positions that are mixed at a time
    latency: float  #: T: the proposals' median when the round was opened


# --- the folder -------------------------------------------------------------------------------------------------------


class Unavailable(SordinoError):
    """The file cannot be read or written now: nothing was accepted."""


def _refusal(path: Path, error: Exception) -> SordinoError:
    return Unavailable("the shuffler cannot write now: nothing was accepted. Send it again")


def token_files(folder: Path, names: Sequence[str]) -> dict[str, Path]:
    """Where the tokens of clients lie in a shuffler's folder, until each owner has its own."""
    if wrong := [name for name in names if not _FILE_NAME.fullmatch(name)]:
        raise InvalidInput(
            f"a client's token lies in a folder of its name, so a name has letters, digits, dots, - and _ and begins "
            f"with a letter or digit, got {wrong[0]!r}"
        )
    return {name: folder / "tokens" / name / CLIENT_TOKEN for name in names}


def write_tokens(files: Mapping[str, Path], tokens: Mapping[str, str]) -> None:
    """Write each token into its file, readable by its owner only."""
    for name, token in tokens.items():
        make_folder(files[name].parent, 0o700)
        write_whole(files[name], token.encode() + b"\n", 0o600)


def _hash(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class EnvelopeStore(AbstractContextManager["EnvelopeStore"]):
    """The shuffler's folder. `at_least` clients must have sent whole reports of a class, or nothing of it leaves."""

    MOST_ROUNDS = 4  #: that are open, or with batches that were not taken yet
    MOST_BYTES = 16 * 2**30  #: envelopes of one round, if every registered client sends all of them

    def __init__(self, folder: Path, at_least: int = 2, *, clock: Callable[[], float] = time.time) -> None:
        if type(at_least) is not int or not 2 <= at_least <= MOST_CLIENTS:
            raise InvalidInput(
                f"at least 2 and at most {MOST_CLIENTS:,} clients must be mixed, got {at_least!r}: one alone is hidden "
                "by nobody"
            )
        self._at_least, self._clock = at_least, clock
        make_folder(folder)
        try:
            self._db = Database(folder / FILE, _refusal)
            self._prepare(folder)
        except Unavailable as error:
            raise InvalidInput(
                f"{folder / FILE} is not a shuffler's file, or cannot be written ({error.__cause__})"
            ) from None

    def _prepare(self, folder: Path) -> None:
        self._db.make_durable("WAL", "secure_delete=ON")
        self._db.prepare("shuffler's file", _SCHEMA.split(";")[:-1], (0, FORMAT))
        if self._db.one("SELECT 1 FROM server") is None:
            token = secrets.token_urlsafe(32)
            write_whole(folder / SERVER_TOKEN, token.encode() + b"\n", 0o600)
            with self._db.transaction():
                self._db.execute("INSERT INTO server VALUES (1, ?)", (_hash(token),))

    def close(self) -> None:
        """Let go of the file."""
        self._db.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- who may speak

    def register(
        self, names: Sequence[str], hand_out: Callable[[dict[str, str]], None] = lambda tokens: None
    ) -> dict[str, str]:
        """Tokens for new clients, by name: they are shown here and kept as hashes only.

        `hand_out` gets them before anybody is registered; if it fails, nobody is.
        """
        for name in names:
            if not 1 <= len(name) <= LONGEST_NAME or not name.isprintable():
                raise InvalidInput(f"a client's name has 1 to {LONGEST_NAME} printable letters, got {name!r}")
        tokens = {name: secrets.token_urlsafe(32) for name in names}
        with self._db.transaction():
            known = {name for (name,) in self._db.rows("SELECT name FROM clients")}
            if known & set(names) or len(tokens) < len(names):
                raise InvalidInput("a client of that name is registered already: nobody was registered")
            hand_out(tokens)
            rows = ((name, _hash(token)) for name, token in tokens.items())
            self._db.execute_each("INSERT INTO clients (name, token) VALUES (?, ?)", rows)
        return tokens

    def client_of(self, token: str) -> int | None:
        """Whose token this is; none where it is nobody's."""
        row = self._db.one("SELECT number FROM clients WHERE token = ?", (_hash(token),))
        return None if row is None else int(row[0])

    def is_server(self, token: str) -> bool:
        """Whether this is the server's token."""
        return self._db.one("SELECT 1 FROM server WHERE token = ?", (_hash(token),)) is not None

    def registered(self) -> int:
        """How many clients there are."""
        return int(self._db.one("SELECT count(*) FROM clients")[0])

    # --- T

    def propose(self, client: int, seconds: float) -> None:
        """A client's proposal for T; its last one counts."""
        if not 0 <= seconds <= LONGEST_LATENCY:
            raise InvalidInput(f"T is proposed in seconds, from 0 to {LONGEST_LATENCY:g}, got {seconds!r}")
        with self._db.transaction():
            self._db.execute("INSERT OR REPLACE INTO latencies VALUES (?, ?)", (client, float(seconds)))

    def latency(self) -> float:
        """T: the median of the proposals, so that no single client decides it; 0 where nobody proposed anything."""
        found = [seconds for (seconds,) in self._db.all("SELECT seconds FROM latencies")]
        return float(median(found)) if found else 0.0

    # --- rounds

    def announce(self, terms: Terms) -> None:
        """Open a round; the same terms again change nothing."""
        with self._db.transaction():
            known = self._db.one("SELECT terms FROM rounds WHERE round = ?", (terms.round,))
            if known is not None:
                if known[0] != terms.to_json():
                    raise Contradiction(f"round {terms.round} is open or over, on other terms: a round is held once")
                return
            self._check_room(terms)
            each = envelope_bytes(terms) * max(1, self.registered())
            piece = max(1, min(MOST_POSITIONS, PIECE_BYTES // each))
            closes = self._clock() + terms.seconds
            row = (terms.round, terms.to_json(), closes, self._at_least, piece, self.latency())
            self._db.execute("INSERT INTO rounds VALUES (?, ?, ?, ?, ?, ?)", row)
            batches = [(terms.round, group, "open" if asked else "short") for group, asked in enumerate(terms.asked)]
            self._db.execute_each("INSERT INTO batches (round, class, state) VALUES (?, ?, ?)", batches)

    def _check_room(self, terms: Terms) -> None:
        last = self._db.one("SELECT round, terms FROM rounds ORDER BY round DESC LIMIT 1")
        if last is not None:
            if terms.round <= last[0]:
                raise Contradiction(f"round {last[0]} was held already, and rounds go upwards: got {terms.round}")
            if (name := Terms.from_json(last[1]).federation) != terms.federation:
                raise Contradiction(f"this shuffler serves the federation {name!r}: start another for another one")
        waiting = self._db.one("SELECT count(DISTINCT round) FROM batches WHERE state IN ('open', 'ready')")[0]
        if waiting >= self.MOST_ROUNDS:
            raise Contradiction(f"{waiting} rounds are open or were not taken yet: take their batches first")
        needed = self.registered() * terms.positions * envelope_bytes(terms)
        if needed > self.MOST_BYTES:
            raise Contradiction(
                f"{self.registered()} clients would send {needed:,} bytes in this round, and there is room for "
                f"{self.MOST_BYTES:,}"
            )

    def round(self, number: int) -> HeldRound:
        """A round that was announced."""
        row = self._db.one("SELECT terms, closes, at_least, piece, latency FROM rounds WHERE round = ?", (number,))
        if row is None:
            raise NoSuchRound(f"there is no round {number}")
        terms, closes, at_least, piece, latency = row
        return HeldRound(Terms.from_json(terms), closes, max(self._at_least, at_least), piece, latency)

    def _state(self, round: int, group: int) -> tuple[str, int]:
        """State and clients of a batch: open, ready, short (dropped) or taken."""
        row = self._db.one("SELECT state, clients FROM batches WHERE round = ? AND class = ?", (round, group))
        if row is None:
            raise NoSuchRound(f"there is no class {group} in a round {round}")
        return row[0], row[1]

    # --- envelopes in

    def accept(self, round: int, client: int, body: Body) -> int:
        """Hold what is new of these envelopes, durably; how many that were. The first one for a position counts."""
        held = self.round(round)
        body.check(held.terms)
        with self._db.transaction():
            if self._state(round, body.group)[0] != "open" or self._clock() >= held.closes:
                raise Over(f"round {round} is over: what comes late is not forwarded")
            have, known = self._have(round, client, body.group, held.terms.positions)
            new = ~have[body.positions]
            have[body.positions[new]] = True
            if new.any():
                self._hold(round, client, body, new, held.piece)
            missing = int(held.terms.positions - have.sum())
            row = (round, client, body.group, np.packbits(have).tobytes(), missing)
            if new.any() or not known:
                self._db.execute("INSERT OR REPLACE INTO progress VALUES (?, ?, ?, ?, ?)", row)
        return int(new.sum())

    def _have(self, round: int, client: int, group: int, positions: int) -> tuple[NDArray[np.bool_], bool]:
        """Which positions a client has filled, and whether it was heard in this round before."""
        row = self._db.one("SELECT class, have FROM progress WHERE round = ? AND client = ?", (round, client))
        if row is None:
            return np.zeros(positions, np.bool_), False
        if row[0] != group:
            raise Contradiction(f"this client sent envelopes of class {row[0]} in round {round}: a client is in one")
        bits = np.unpackbits(np.frombuffer(row[1], np.uint8), count=positions)
        return bits.astype(np.bool_), True

    def _hold(self, round: int, client: int, body: Body, new: NDArray[np.bool_], size: int) -> None:
        positions, envelopes = body.positions[new], body.envelopes[new]
        piece_of = positions // size
        for piece in np.unique(piece_of):
            own = piece_of == piece
            where = positions[own].astype("<u4").tobytes()
            row = (round, body.group, int(piece), client, where, envelopes[own].tobytes())
            self._db.execute("INSERT INTO held VALUES (?, ?, ?, ?, ?, ?)", row)

    # --- batches out

    def settle(self) -> list[tuple[int, int]]:
        """Close what is due: batches that are complete, and those whose time is up. Which ones, as (round, class)."""
        rows = self._db.all(
            "SELECT round, class, closes, terms FROM batches JOIN rounds USING (round) WHERE state = 'open'"
        )
        due = [
            (round, group)
            for round, group, closes, terms in rows
            if self._clock() >= closes or self._complete(round, group) >= max(1, Terms.from_json(terms).asked[group])
        ]
        settled = [(round, group) for round, group in due if self._settle(round, group)]
        if settled:
            self._db.all(_CUT_LOG)
        return settled

    def _complete(self, round: int, group: int) -> int:
        query = "SELECT count(*) FROM progress WHERE round = ? AND class = ? AND missing = 0"
        return int(self._db.one(query, (round, group))[0])

    def _settle(self, round: int, group: int) -> bool:
        """Mix and forget, or only forget; False where the batch is short but may still fill up."""
        held = self.round(round)
        with self._db.transaction():
            clients = self._complete(round, group)
            if clients >= held.at_least:
                self._mix(held, group)
                self._forget(round, group, "ready", clients)
            elif self._clock() < held.closes:
                return False
            else:
                self._forget(round, group, "short", 0)
        return True

    def _forget(self, round: int, group: int, state: str, clients: int) -> None:
        """Close a batch, and with it what was held and who sent it."""
        where = (round, group)
        self._db.execute("DELETE FROM held WHERE round = ? AND class = ?", where)
        self._db.execute("DELETE FROM progress WHERE round = ? AND class = ?", where)
        self._db.execute(
            "UPDATE batches SET state = ?, clients = ? WHERE round = ? AND class = ?", (state, clients, *where)
        )

    def _mix(self, held: HeldRound, group: int) -> None:
        terms, size = held.terms, held.piece
        query = "SELECT client FROM progress WHERE round = ? AND class = ? AND missing = 0"
        clients = {c: k for k, (c,) in enumerate(self._db.rows(query, (terms.round, group)))}
        for piece, first in enumerate(range(0, terms.positions, size)):
            count = min(size, terms.positions - first)
            together: Bytes = np.zeros((count, len(clients), envelope_bytes(terms)), np.uint8)
            held_here = "SELECT client, positions, envelopes FROM held WHERE round = ? AND class = ? AND piece = ?"
            for client, positions, envelopes in self._db.rows(held_here, (terms.round, group, piece)):
                if client in clients:
                    where = np.frombuffer(positions, "<u4") - np.uint32(first)
                    together[where, clients[client]] = np.frombuffer(envelopes, np.uint8).reshape(len(where), -1)
            row = (terms.round, group, piece, mix(together).tobytes())
            self._db.execute("INSERT INTO pieces VALUES (?, ?, ?, ?)", row)

    def batch(self, round: int, group: int) -> tuple[int, Iterator[bytes]]:
        """The length of a batch that has left, and its bytes in pieces."""
        state, clients = self._state(round, group)
        held = self.round(round)
        if state == "open":
            raise NotYet(f"round {round} is still open")
        if state == "short":
            raise Over(
                f"fewer than {held.at_least} clients of class {group} sent whole reports in time, or the server "
                "waited no longer: dropped"
            )
        if state == "taken":
            raise Over(f"the batch of class {group} in round {round} was taken: it exists no more")
        head = batch_head(held.terms, group, clients)
        length = len(head) + held.terms.positions * clients * envelope_bytes(held.terms)
        return length, self._pieces(head, round, group)

    def _pieces(self, head: bytes, round: int, group: int) -> Iterator[bytes]:
        yield head
        piece = 0
        query = "SELECT data FROM pieces WHERE round = ? AND class = ? AND piece = ?"
        while (row := self._db.one(query, (round, group, piece))) is not None:
            yield row[0]
            piece += 1

    def withdraw(self, round: int, group: int) -> None:
        """The server waits for a class no longer: what is held of it is deleted unopened, and nothing leaves.

        One that is closed already stays as it is.
        """
        with self._db.transaction():
            if self._state(round, group)[0] == "open":
                self._forget(round, group, "short", 0)
        self._db.all(_CUT_LOG)

    def taken(self, round: int, group: int) -> None:
        """The server has the batch: it is removed. Saying so again changes nothing."""
        if self._state(round, group)[0] == "open":
            raise NotYet(f"round {round} is still open: there is no batch to take")
        with self._db.transaction():
            self._db.execute("DELETE FROM pieces WHERE round = ? AND class = ?", (round, group))
            self._db.execute(
                "UPDATE batches SET state = 'taken' WHERE round = ? AND class = ? AND state = 'ready'", (round, group)
            )


__all__ = [
    "CLIENT_TOKEN",
    "FILE",
    "SERVER_TOKEN",
    "Contradiction",
    "EnvelopeStore",
    "NoSuchRound",
    "NotYet",
    "Over",
    "Unavailable",
    "token_files",
    "write_tokens",
]

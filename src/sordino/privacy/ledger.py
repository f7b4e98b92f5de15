"""The client's durable record of releases, which refuses the one that would exceed the owner's budget.

All names of data in one ledger share one account: a release under any of them is charged to each, and must fit the
budget of each, unless the owner declared that two of them have no row in common (`DisjointChanged`).

`Ledger` is an SQLite file for a real client: what leaves is on disk, with its bytes, before it may leave.
`MemoryLedger` holds the same account for K simulated clients. Both ask `admit` whether a release may leave; there is
no other rule.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import secrets
import sqlite3
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from numbers import Integral
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from sordino.errors import (
    BudgetExceeded,
    ConsentMissing,
    InvalidInput,
    LedgerDamaged,
    LedgerUnavailable,
    ReportCompacted,
    SordinoError,
)
from sordino.privacy.accountant import Account
from sordino.privacy.guarantee import Budget, Derived, Destination, Infinite, Release, from_json, pack, to_json, unpack
from sordino.report.words import figure
from sordino.storage.sqlite import CAN_SHRINK, Database

_ANYWHERE = Destination()

# ---------------------------------------------------------------------------------------------------------------------
# The rules: may this be released?


@dataclass(frozen=True)
class Consents:
    """What the owner has agreed to: kinds of release (`what`) that may leave without a proof, and claimed budgets."""

    unproven: frozenset[str] = frozenset()
    claimed: bool = False


@dataclass(frozen=True)
class Standing:
    """Where one data set stands: its budget, what is spent of it, and how many releases no proof covers.

    `summed` is the account of a second budget, against whoever sees only sums with so many honest clients in them. It
    is charged with all that goes to federations with secure sums where the keys of all others are pinned; the first is
    charged with everything.
    """

    account: Account | None = None
    consents: Consents = Consents()
    releases: int = 0
    unprotected: int = 0
    summed: Account | None = None

    @classmethod
    def opening(cls, budget: Budget, consents: Consents = Consents()) -> Standing:  # noqa: B008 (a frozen value)
        """A budget of which nothing is spent."""
        return cls(Account.opening(budget), consents)

    @property
    def budget(self) -> Budget | None:
        """What may be spent; nothing may leave where there is none."""
        return None if self.account is None else self.account.budget

    @property
    def accounts(self) -> tuple[Account, ...]:
        """The account of every budget there is, that of the first one first."""
        return tuple(account for account in (self.account, self.summed) if account is not None)

    @property
    def spent(self) -> float:
        """Epsilon spent, in the terms of the budget; unprotected releases are counted beside it, never in it."""
        return 0.0 if self.account is None else self.account.spent

    @property
    def left(self) -> float:
        """Epsilon left, in the terms of the budget; nothing where there is no budget."""
        return 0.0 if self.account is None else self.account.remaining


def terms(budget: Budget) -> str:
    """The words without which a budget's epsilon means nothing: basis, adversary, adjacency and delta."""
    return f"{budget.basis}, against {budget.adversary}, adjacency {budget.adjacency}, delta {figure(budget.delta)}"


def own_budget(after: int) -> str:
    """What a declaration says of two names whose releases up to the entry `after` stay charged to both."""
    if not after:
        return "each has its own budget"
    return f"each has its own budget from entry {after + 1} on, and what left before stays charged to both"


def cost(budget: Budget, release: Release, destination: Destination = _ANYWHERE) -> float:
    """The epsilon of this release by itself in the terms of `budget`; infinite where nothing proves one."""
    return Account.opening(budget).after(release, destination).spent


def _is_unproven(budget: Budget, release: Release, destination: Destination) -> bool:
    """True if nothing proves a cost, so that consent decides; a figure that turned out to be false is charged."""
    charged = budget.adversary.kind == "summed" and release.has_lost_figure
    return not charged and math.isinf(cost(budget, release, destination))


def admit(standing: Standing, release: Release, destination: Destination) -> Standing:
    """The standing after `release`, if it may leave; else `BudgetExceeded` or `ConsentMissing` with the remedy.

    This is the one place that decides. What is computed only from earlier releases costs nothing. A release without a
    proof in the budget's terms needs consent and is counted beside the proven sum; all others must fit the budget. What
    goes to a federation with pinned keys must fit the second budget too, where there is one.
    """
    if standing.account is None:
        raise BudgetExceeded(
            "there is no budget, so nothing may leave. Set one", "sordino ledger budget PATH DATASET --epsilon E"
        )
    if isinstance(release.composition, Derived):
        return replace(standing, releases=standing.releases + 1)
    _require_consent_to_claims(standing.account.budget, standing.consents)
    account = _charge(standing.account, standing.consents, release, destination)
    summed = standing.summed
    if summed is not None and destination.pinned:
        summed = _charge(summed, standing.consents, release, destination) or summed
    return replace(
        standing,
        account=account or standing.account,
        summed=summed,
        releases=standing.releases + 1,
        unprotected=standing.unprotected + (account is None),
    )


def admit_all(standings: Mapping[str, Standing], release: Release, destination: Destination) -> dict[str, Standing]:
    """`admit` by every account that a release is charged to (`Ledger.charged`), that of its own name first."""
    own = next(iter(standings))
    after: dict[str, Standing] = {}
    for name, standing in standings.items():
        with _about(name, own):
            after[name] = admit(standing, release, destination)
    return after


def _charge(account: Account, consents: Consents, release: Release, destination: Destination) -> Account | None:
    """The account with this release in it; None where nothing proves a cost and the owner consents to that."""
    asked = cost(account.budget, release, destination)
    if _is_unproven(account.budget, release, destination):
        _require_consent_to_unproven(account.budget, consents, release, destination)
        return None
    after = account.after(release, destination)
    if not after.permits:
        raise _exceeded(account, release, asked, after.spent)
    return after


def _require_consent_to_claims(budget: Budget, consents: Consents) -> None:
    if budget.basis == "claimed" and not consents.claimed:
        raise ConsentMissing(
            "the budget counts claimed epsilons, which nothing proves, and the owner has not agreed to that. "
            "Use a proven budget, or agree",
            "sordino ledger consent PATH DATASET --claimed",
        )


def _require_consent_to_unproven(
    budget: Budget, consents: Consents, release: Release, destination: Destination
) -> None:
    if release.what in consents.unproven:
        return
    needs_delta = budget.delta == 0 and math.isfinite(cost(replace(budget, delta=1e-5), release, destination))
    why = dict.fromkeys(g.loss.why for g in release.guarantees if isinstance(g.loss, Infinite))
    hint = " A budget with delta > 0 would cover it." if needs_delta else ""
    because = f", because {'; '.join(why)}" if why else ""
    raise ConsentMissing(
        f"{release.what!r} has no finite epsilon in the budget's terms "
        f"({terms(budget)}){because}.{hint} Nothing was recorded and nothing may leave. Leave it out, or let "
        "it go unprotected",
        f"sordino ledger consent PATH DATASET --unproven {release.what!r}",
        release.what,
    )


def _exceeded(account: Account, release: Release, asked: float, together: float) -> BudgetExceeded:
    budget = account.budget
    return BudgetExceeded(
        f"{release.what!r} asks for epsilon {asked:.6g}; {account.spent:.6g} of "
        f"{budget.limit:.6g} is spent and {account.remaining:.6g} is left; with it {together:.6g} would be spent "
        f"({terms(budget)}). Nothing was recorded and nothing may leave. Ask the federation for a smaller epsilon or "
        "fewer rounds, or raise the budget",
        "sordino ledger budget PATH DATASET --epsilon E",
    )


def _require_identity(release: Release, is_recorded: Callable[[str], bool]) -> None:
    """A fresh draw is a new release with an id of its own, and a derived one names releases that are recorded."""
    if is_recorded(release.id):
        raise InvalidInput(f"release id {release.id!r} is recorded already; a fresh draw is a new release: rename it")
    sources = release.composition.releases if isinstance(release.composition, Derived) else ()
    if missing := [name for name in sources if not is_recorded(name)]:
        raise InvalidInput(
            f"{release.what!r} (release {release.id!r}) says it is derived from {', '.join(map(repr, missing))}, "
            "which this ledger has not recorded; record those first, or give the release a guarantee of its own"
        )


# ---------------------------------------------------------------------------------------------------------------------
# Entries, and the chain over them


def _require_name(field_name: str, value: object) -> None:
    if not isinstance(value, str) or not value or value != value.strip() or not value.isprintable():
        raise InvalidInput(f"{field_name} must be a printable, non-empty text without outer spaces, got {value!r}")


def _canonical_hash(value: bytes | str) -> str:
    digest = value.hex() if isinstance(value, bytes) else value
    try:
        if not isinstance(digest, str) or not digest:
            raise ValueError
        return bytes.fromhex(digest).hex()
    except ValueError:
        raise InvalidInput(f"plan_hash must be bytes or their hexadecimal digits, got {value!r}") from None


@dataclass(frozen=True)
class ReportKey:
    """What one report answers: a plan of a round of a federation, about one data set. One key, one byte string.

    `plan_hash` is bytes or hexadecimal digits; it is kept as lower-case digits.
    """

    dataset: str
    federation: str
    round: int
    plan_hash: bytes | str

    def __post_init__(self) -> None:
        _require_name("dataset", self.dataset)
        _require_name("federation", self.federation)
        if not isinstance(self.round, int) or isinstance(self.round, bool) or not 0 <= self.round < 2**63:
            raise InvalidInput(f"round must be a whole number from 0 to 2^63 - 1, got {self.round!r}")
        object.__setattr__(self, "plan_hash", _canonical_hash(self.plan_hash))

    def __str__(self) -> str:
        return f"round {self.round} of {self.federation!r}, plan {str(self.plan_hash)[:12]}, data set {self.dataset!r}"


@dataclass(frozen=True)
class Opened:
    """The first entry: a random identity, so that two ledgers never share a head."""

    ledger: str


@dataclass(frozen=True)
class BudgetSet:
    """The owner set or changed a budget; raising one stays visible for ever."""

    dataset: str
    budget: Budget


@dataclass(frozen=True)
class SummedBudgetSet:
    """The owner set, changed or, with None, gave up the second budget, against whoever sees only sums."""

    dataset: str
    budget: Budget | None


@dataclass(frozen=True)
class ConsentChanged:
    """The owner agreed, or no longer agrees, to unproven releases of a kind (`what`) or, with None, to claims."""

    dataset: str
    what: str | None
    granted: bool


@dataclass(frozen=True)
class DisjointChanged:
    """The owner declared that two names have no row in common, or, with None for `after`, withdrew that.

    Releases up to the entry `after` stay charged to both: they left before the rows of both were known.
    """

    dataset: str
    other: str
    after: int | None

    def __post_init__(self) -> None:
        _require_name("dataset", self.dataset)
        _require_name("the other data set", self.other)
        if self.dataset == self.other:
            raise InvalidInput(f"the data set {self.dataset!r} has every row in common with itself: name another")


@dataclass(frozen=True)
class RowsKept:
    """The file that says which rows were under each name is written for this time: one with fewer lacks rows."""

    times: int


@dataclass(frozen=True)
class Released:
    """One report: what it stands for, which of its releases no proof covers (by id), and the hash of its bytes.

    `pinned` says that it went to a federation with secure sums in which the keys of all others were pinned, in such a
    sum or, as an evaluation does, beside it. With a random `salt`, nobody who knows the hash of the entry can try
    reports until one fits.
    """

    key: ReportKey
    releases: tuple[Release, ...]
    unprotected: tuple[str, ...]
    report_sha256: str
    pinned: bool = False
    salt: str = ""  #: none in entries of earlier versions

    @property
    def destination(self) -> Destination:
        """Where it went."""
        return Destination(self.key.federation, self.pinned)


@dataclass(frozen=True)
class Compacted:
    """The bytes of earlier reports were dropped; their hashes stay, and so does everything that they cost.

    `entries` are the numbers of those entries, as rising ranges (first, last); `size` is how many bytes they had.
    """

    entries: tuple[tuple[int, int], ...]
    size: int

    def __post_init__(self) -> None:
        ends = [0, *(end for entry_range in self.entries for end in entry_range)]
        rising = all(a < b for a, b in zip(ends[::2], ends[1::2], strict=False))
        if not self.entries or not rising or any(first > last for first, last in self.entries) or self.size < 1:
            raise InvalidInput(f"a compaction names rising ranges of entries and how many bytes they had, got {self}")

    @classmethod
    def of(cls, sizes: Mapping[int, int]) -> Compacted:
        """The compaction of these entries: number -> bytes of its report."""
        ranges: list[tuple[int, int]] = []
        for number in sorted(sizes):
            if ranges and ranges[-1][1] == number - 1:
                ranges[-1] = ranges[-1][0], number
            else:
                ranges.append((number, number))
        return cls(tuple(ranges), sum(sizes.values()))

    @property
    def numbers(self) -> set[int]:
        """The entries, one by one."""
        return {number for first, last in self.entries for number in range(first, last + 1)}


Event = Opened | BudgetSet | SummedBudgetSet | ConsentChanged | DisjointChanged | RowsKept | Released | Compacted


@dataclass(frozen=True)
class Entry:
    """One line of the ledger; `hash` covers the line and, through the line before, everything above it.

    `size` is how many bytes of a report are kept with it: 0 where it has none, or only the hash is left.
    """

    sequence: int
    time: str
    event: Event
    hash: str
    size: int = 0


_COLUMNS = "sequence, time, kind, dataset, federation, round, plan_hash, body, hash, report"
_Row = tuple[int, str, str, str | None, str | None, int | None, str | None, str, str, bytes | None]
_GENESIS = "0" * 64


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _columns_of(event: Event) -> tuple[str, str | None, str | None, int | None, str | None, str]:
    """kind, dataset, federation, round, plan_hash and body of an event."""
    match event:
        case Opened(ledger):
            return "opened", None, None, None, None, _json({"ledger": ledger})
        case BudgetSet(dataset, budget):
            return "budget", dataset, None, None, None, to_json(budget)
        case SummedBudgetSet(dataset, summed):
            return "summed budget", dataset, None, None, None, "null" if summed is None else to_json(summed)
        case ConsentChanged(dataset, what, granted):
            return "consent", dataset, None, None, None, _json({"what": what, "granted": granted})
        case DisjointChanged(dataset, other, after):
            return "disjoint", dataset, None, None, None, _json({"other": other, "after": after})
        case RowsKept(times):
            return "rows", None, None, None, None, _json({"times": times})
        case Compacted(entries, size):
            return "compacted", None, None, None, None, _json({"entries": entries, "size": size})
        case Released(key, releases, unprotected, report_sha256, pinned, salt):
            body = {
                "releases": [pack(release) for release in releases],
                "unprotected": unprotected,
                "report_sha256": report_sha256,
                **({"pinned": True} if pinned else {}),
                **({"salt": salt} if salt else {}),
            }
            return "release", key.dataset, key.federation, key.round, str(key.plan_hash), _json(body)


def _event_of(row: _Row) -> Event:
    _, _, kind, dataset, federation, round_, plan_hash, body, _, _ = row
    if kind == "budget":
        return BudgetSet(str(dataset), from_json(Budget, body))
    if kind == "summed budget":
        return SummedBudgetSet(str(dataset), None if body == "null" else from_json(Budget, body))
    content: dict[str, Any] = json.loads(body)
    if kind == "opened":
        return Opened(content["ledger"])
    if kind == "consent":
        return ConsentChanged(str(dataset), content["what"], content["granted"])
    if kind == "disjoint":
        after = content["after"]
        return DisjointChanged(str(dataset), content["other"], None if after is None else int(after))
    if kind == "rows":
        return RowsKept(int(content["times"]))
    if kind == "compacted":
        return Compacted(tuple((int(first), int(last)) for first, last in content["entries"]), int(content["size"]))
    if kind == "release" and federation is not None and round_ is not None and plan_hash is not None:
        releases = tuple(unpack(Release, packed) for packed in content["releases"])
        key = ReportKey(str(dataset), federation, round_, plan_hash)
        pinned = bool(content.get("pinned", False))  # older ledgers do not say
        salt = content.get("salt", "")
        return Released(key, releases, tuple(content["unprotected"]), content["report_sha256"], pinned, salt)
    raise InvalidInput(f"unknown kind of entry {kind!r}")


def _chained(previous: str, sequence: int, time: str, columns: tuple[object, ...]) -> str:
    """The hash of an entry: over the hash before it and every column; the body holds the hash of the report."""
    return _sha256(_json(["sordino ledger entry 1", previous, sequence, time, *columns]).encode())


def _read(row: _Row, previous: str, sequence: int) -> Entry:
    """The entry in `row`, which must continue the chain; else the sentence that says where it breaks."""
    if row[0] != sequence:
        raise LedgerDamaged(f"entry {sequence} is missing: entry {row[0]} stands in its place")
    if row[8] != _chained(previous, sequence, row[1], row[2:8]):
        raise LedgerDamaged(f"entry {sequence} was edited: its hash does not fit its content and the entry before it")
    try:
        event = _event_of(row)
    except (SordinoError, ValueError, KeyError, TypeError) as error:
        raise LedgerDamaged(f"entry {sequence} cannot be read (written by a newer Sordino?): {error}") from None
    if isinstance(event, Compacted) and event.entries[-1][1] >= sequence:
        raise LedgerDamaged(f"entry {sequence} says that the bytes of later entries were dropped")
    expected = event.report_sha256 if isinstance(event, Released) else None
    if row[9] is not None and _sha256(row[9]) != expected:
        raise LedgerDamaged(f"the report of entry {sequence} was edited: its bytes do not fit their recorded hash")
    return Entry(sequence, row[1], event, row[8], len(row[9] or b""))


def _acknowledged(entries: Iterable[Entry]) -> Iterator[tuple[Entry, str]]:
    """Reports with a round that is over at the server, each with the time since when that is known here.

    A plan of a later round of the same federation tells: a coordinator makes it only after the round before is on its
    disk, and never asks for that one again. A receipt would not tell: it may come back while the round still runs.
    """
    waiting: dict[tuple[str, str], dict[int, list[Entry]]] = {}  # data set and federation -> round -> its reports
    for entry in entries:
        if isinstance(entry.event, Released):
            key = entry.event.key
            own = waiting.setdefault((key.dataset, key.federation), {})
            for round in [earlier for earlier in own if earlier < key.round]:
                yield from ((over, entry.time) for over in own.pop(round))
            own.setdefault(key.round, []).append(entry)


@dataclass
class _Book:
    """What the entries say, folded in order; every figure of a ledger comes from here."""

    sequence: int = 0
    head: str = _GENESIS
    standings: dict[str, Standing] = field(default_factory=dict)
    reports: dict[ReportKey, Entry] = field(default_factory=dict)
    release_ids: set[str] = field(default_factory=set)
    sizes: dict[int, int] = field(default_factory=dict)  #: entry -> bytes of its report, where they are kept
    compacted: set[int] = field(default_factory=set)  #: entries with a report of which only the hash is kept
    #: two names without a row in common -> the last entry that is charged to both all the same
    disjoint: dict[frozenset[str], int] = field(default_factory=dict)
    rows_kept: int = 0  #: how often the file of rows under each name was written

    def standing(self, dataset: str) -> Standing:
        return self.standings.get(dataset, Standing())

    def counts(self, dataset: str, other: str, sequence: int) -> bool:
        """True if the account of `dataset` is charged with what the entry `sequence` released under `other`."""
        return dataset == other or sequence <= self.disjoint.get(frozenset((dataset, other)), sequence)

    def charged(self, dataset: str) -> dict[str, Standing]:
        """The standings that the next release of a data set is charged to: its own, then all others with a budget."""
        budgeted = (name for name, standing in self.standings.items() if standing.budget and name != dataset)
        others = (name for name in budgeted if self.counts(name, dataset, self.sequence + 1))
        return {dataset: self.standing(dataset), **{name: self.standings[name] for name in others}}

    def reported(self, dataset: str) -> Iterator[Released]:
        """All reports that are charged to a data set, under whatever name."""
        for entry in self.reports.values():
            if isinstance(entry.event, Released) and self.counts(dataset, entry.event.key.dataset, entry.sequence):
                yield entry.event

    def history(self, dataset: str) -> Iterator[tuple[Release, Destination, bool]]:
        """All releases charged to a data set, where each went and whether it was unprotected."""
        for event in self.reported(dataset):
            yield from ((each, event.destination, each.id in event.unprotected) for each in event.releases)

    def fold(self, entry: Entry) -> None:
        self.sequence, self.head = entry.sequence, entry.hash
        match entry.event:
            case BudgetSet(dataset, budget):
                self.standings[dataset] = self.recounted(
                    dataset, replace(self.standing(dataset), account=Account.opening(budget))
                )
            case SummedBudgetSet(dataset, summed):
                second = None if summed is None else Account.opening(summed)
                self.standings[dataset] = self.recounted(dataset, replace(self.standing(dataset), summed=second))
            case ConsentChanged(dataset, what, granted):
                self.standings[dataset] = _with_consent(self.standing(dataset), what, granted)
            case DisjointChanged(dataset, other, after):
                pair = frozenset((dataset, other))
                self.disjoint.pop(pair, None)
                self.disjoint |= {} if after is None else {pair: after}
                for name in pair & self.standings.keys():
                    self.standings[name] = self.recounted(name, self.standings[name])
            case RowsKept(times):
                self.rows_kept = times
            case Compacted() as compaction:
                self.compacted |= compaction.numbers
                for number in compaction.numbers:
                    self.sizes.pop(number, None)
            case Released(key, releases, unprotected) as event:
                self.reports[key] = entry
                if entry.size:
                    self.sizes[entry.sequence] = entry.size
                self.release_ids |= {release.id for release in releases}
                charged = {name for name in self.standings if self.counts(name, key.dataset, entry.sequence)}
                for name in {key.dataset, *charged}:
                    for release in releases:
                        standing, lost = self.standing(name), release.id in unprotected
                        agreed = _is_agreed(standing, name, release, lost)
                        if name != key.dataset:
                            lost = agreed and _lacks_proof(standing.account, release, event.destination)
                        self.standings[name] = _absorb(standing, release, event.destination, lost, agreed)

    def recounted(self, dataset: str, standing: Standing) -> Standing:
        """The standing with all that is charged to the data set counted anew, in the terms of its budgets."""
        account, summed = (each and Account.opening(each.budget) for each in (standing.account, standing.summed))
        after = Standing(account, standing.consents, summed=summed)
        for release, destination, unprotected in self.history(dataset):
            agreed = _is_agreed(after, dataset, release, unprotected)
            after = _absorb(after, release, destination, agreed and _lacks_proof(account, release, destination), agreed)
        return after


def _is_agreed(standing: Standing, dataset: str, release: Release, unprotected: bool) -> bool:
    """True if the release may stand beside the sum where nothing proves a cost: consent was asked for under its name.

    What was proven under another name alone, and is not agreed to under this one, is charged: with infinity.
    """
    return unprotected or release.dataset == dataset or release.what in standing.consents.unproven


def _lacks_proof(account: Account | None, release: Release, destination: Destination) -> bool:
    return account is not None and _is_unproven(account.budget, release, destination)


def _absorb(
    standing: Standing, release: Release, destination: Destination, unprotected: bool, agreed: bool
) -> Standing:
    """Count what has left already: no rule can call it back."""
    summed = standing.summed
    if summed is not None and destination.pinned and not (agreed and _lacks_proof(summed, release, destination)):
        summed = summed.after(release, destination)
    standing = replace(standing, releases=standing.releases + 1, summed=summed)
    if unprotected:
        return replace(standing, unprotected=standing.unprotected + 1)
    account = None if standing.account is None else standing.account.after(release, destination)
    return replace(standing, account=account)


def _with_consent(standing: Standing, what: str | None, granted: bool) -> Standing:
    consents = standing.consents
    if what is None:
        return replace(standing, consents=replace(consents, claimed=granted))
    unproven = consents.unproven | {what} if granted else consents.unproven - {what}
    return replace(standing, consents=replace(consents, unproven=unproven))


# ---------------------------------------------------------------------------------------------------------------------
# The file

_APPLICATION_ID = 0x536F7264  # "Sord"
_FORMAT = 1  #: of a ledger that was never compacted; any Sordino reads it
_COMPACTED_FORMAT = 2  #: from the first compaction on
_NAMES_FORMAT = 3  #: from the first rows on that are kept under a name, or the first declaration about names
_LONGEST_REPORT = 512 * 2**20  # SQLite's own limit for a row is 10^9 bytes
_SCHEMA = {
    "entries": """CREATE TABLE entries (
    sequence INTEGER PRIMARY KEY,
    time TEXT NOT NULL,
    kind TEXT NOT NULL,
    dataset TEXT,
    federation TEXT,
    round INTEGER,
    plan_hash TEXT,
    body TEXT NOT NULL,
    hash TEXT NOT NULL,
    report BLOB
) STRICT""",
    "one_report_per_key": """CREATE UNIQUE INDEX one_report_per_key
ON entries (dataset, federation, round, plan_hash) WHERE kind = 'release'""",
    "entries_follow_each_other": """CREATE TRIGGER entries_follow_each_other BEFORE INSERT ON entries
WHEN NEW.sequence IS NOT (SELECT coalesce(max(sequence), 0) + 1 FROM entries)
BEGIN SELECT RAISE(ABORT, 'a ledger is append-only: entries follow each other'); END""",
    "entries_stay_as_they_are": """CREATE TRIGGER entries_stay_as_they_are BEFORE UPDATE ON entries
BEGIN SELECT RAISE(ABORT, 'a ledger is append-only: entries stay as they are'); END""",
    "entries_stay": """CREATE TRIGGER entries_stay BEFORE DELETE ON entries
BEGIN SELECT RAISE(ABORT, 'a ledger is append-only: entries stay'); END""",
}
_INSERT = f"INSERT INTO entries ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"

_LOOK = (
    "Nothing is released until its owner has looked: keep this file, restore the newest backup, and compare its head "
    "with your last receipt (sordino ledger verify PATH --head HASH)"
)

_REMEDIES = {
    "SQLITE_FULL": "the disk is full: free some space",
    "SQLITE_READONLY": "the file or its directory is read-only: make both writable for this user",
    "SQLITE_BUSY": "another process holds it: try again, or allow more time with busy_timeout",
    "SQLITE_LOCKED": "another connection holds it: try again",
    "SQLITE_CANTOPEN": "the file or its journal cannot be opened: check the path and its permissions",
    "SQLITE_PERM": "permission was denied: check the permissions of the file and its directory",
    "SQLITE_NOMEM": "memory is short",
    "SQLITE_IOERR": "reading or writing failed: check the disk and its quota",
}


def _refusal(path: Path, error: Exception) -> SordinoError:
    """An error of SQLite as what it means to the owner of the file."""
    name = getattr(error, "sqlite_errorname", "")
    if isinstance(error, sqlite3.ProgrammingError):
        return LedgerUnavailable(f"the ledger {path} is closed; open it again ({error})")
    if name.startswith("SQLITE_NOTADB"):
        return LedgerDamaged(f"{path} is not a ledger: it is no SQLite file ({error}). Check the path. {_LOOK}")
    for prefix, remedy in _REMEDIES.items():
        if name.startswith(prefix):
            return LedgerUnavailable(f"the ledger {path} is unavailable, so nothing may leave; {remedy} ({error})")
    return LedgerDamaged(f"the ledger {path} is damaged: {error}. {_LOOK}")


def _sync_directory(directory: Path) -> None:
    """Make a new name in it durable, or fail: a ledger that could vanish would forget what left."""
    if os.name == "nt":  # directories cannot be synced there, and need not be
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _require_ours(database: Database) -> None:
    """Look before anything is changed: the file may belong to another program."""
    if database.path.stat().st_size == 0:
        raise LedgerDamaged(f"the ledger {database.path} is damaged: it is empty. {_LOOK}")
    if database.identity[0] != _APPLICATION_ID:
        raise LedgerDamaged(f"{database.path} is not a ledger: it is an SQLite file of another program. Check the path")


Draw = Callable[[], tuple[Release | Sequence[Release], bytes]]


@dataclass(frozen=True)
class Holdings:
    """What a ledger keeps of its reports: how many with their bytes, how many bytes, how many as hashes alone."""

    reports: int
    size: int
    hashes: int


@dataclass(frozen=True)
class Freed:
    """What a compaction dropped, or would drop: so many reports with so many bytes.

    `not_shrunk` says why the file is as long as before, where that is so; its free pages are used again.
    """

    reports: int
    size: int
    not_shrunk: str = ""


class Ledger:
    """A ledger in an SQLite file; use it as a context manager, from any thread, in as many processes as you like.

    After `record` or `release_once` returns, the spend and the bytes are on disk and the bytes may leave. Asking again
    for the same key gives the same bytes, or `ReportCompacted` once they were dropped: nothing is ever drawn twice.
    After `fork`, open it anew.
    """

    def __init__(self, database: Database) -> None:
        """Use `Ledger.open` or `Ledger.create`."""
        self.path = database.path
        self._db = database
        self._book = _Book()
        self._written: list[Entry] = []
        self._drawing = False
        self._process = os.getpid()
        self._file = self._identity()

    @classmethod
    def create(cls, path: str | Path, *, busy_timeout: float = 30.0) -> Ledger:
        """Make a new ledger, readable by its owner only; it appears whole or not at all, and never over another."""
        path = Path(path)
        journal = path.with_name(path.name + "-journal")
        if path.exists() or (journal.exists() and journal.stat().st_size):
            raise InvalidInput(f"{path} (or its journal) exists already: open it, or choose another path")
        try:
            cls._create(path)
        except FileExistsError:
            raise InvalidInput(f"{path} exists already: open it, or choose another path") from None
        except OSError as error:
            raise LedgerUnavailable(f"cannot create a ledger at {path}: {error}; choose another directory") from error
        return cls.open(path, busy_timeout=busy_timeout)

    @staticmethod
    def _create(path: Path) -> None:
        descriptor, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".draft", dir=path.parent)
        os.close(descriptor)
        draft = Path(name)
        try:
            own = Database(draft, lambda _, error: _refusal(path, error), create=False, timeout=1.0)
            with closing(own) as database:
                database.make_durable("TRUNCATE", f"auto_vacuum={CAN_SHRINK}")
                with database.transaction():
                    for statement in _SCHEMA.values():
                        database.execute(statement)
                    database.identify((_APPLICATION_ID, _FORMAT))
                    _insert(database, _Book(), Opened(secrets.token_hex(16)), None)
            os.link(draft, path)  # unlike a rename, never replaces a ledger that another process made meanwhile
            _sync_directory(path.parent)
        finally:
            draft.unlink()
            draft.with_name(draft.name + "-journal").unlink(missing_ok=True)

    @classmethod
    def open(cls, path: str | Path, *, busy_timeout: float = 30.0) -> Ledger:
        """Open a ledger and check all of it; a damaged one is refused as it is, and never repaired.

        A transaction that a crash cut short is undone first, as SQLite does: its bytes never left. The check reads the
        whole file. `busy_timeout` is how many seconds to wait for other processes.
        """
        path = Path(path)
        if (path / "ledger.sqlite").is_file():
            raise LedgerUnavailable(f"{path} is a client's folder, and its ledger lies in it: {path / 'ledger.sqlite'}")
        if not path.is_file():
            raise LedgerUnavailable(
                f"there is no ledger at {path}; make one with its first budget: "
                "sordino ledger budget PATH DATASET --epsilon E"
            )
        database = Database(path, _refusal, create=False, timeout=busy_timeout)
        try:
            _require_ours(database)
            database.make_durable("TRUNCATE", "secure_delete=FAST")  # else to free pages takes a journal of their size
            ledger = cls(database)
            with ledger._transaction("BEGIN"):
                return ledger
        except BaseException:
            database.close()
            raise

    def close(self) -> None:
        """Let go of the file; what was recorded is on disk already."""
        self._db.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- what the owner decides

    def set_budget(self, dataset: str, budget: Budget) -> Entry:
        """Set or change the budget of a data set, named by its owner; the change stays visible for ever.

        Everything released so far is counted anew in the terms of `budget`. If that cannot be done for a release that
        was covered until now, the change is refused: it would forget a spend.
        """
        _require_name("dataset", dataset)
        if not isinstance(budget, Budget):
            raise InvalidInput(f"a budget must be a Budget, got {budget!r}")
        with self._transaction("BEGIN IMMEDIATE"), _about(dataset):
            self._require_countable(dataset, budget)
            return self._append(BudgetSet(dataset, budget))

    def set_summed_budget(self, dataset: str, budget: Budget | None) -> Entry:
        """Set or change the second budget of a data set, against `summed(h)`; None gives it up.

        It is charged with all that goes to federations with secure sums where the keys of all others are pinned, what
        has left so far included, and refuses what would exceed it, whatever the first budget says.
        """
        _require_name("dataset", dataset)
        if budget is not None and (budget.adversary.kind != "summed" or budget.basis != "proven"):
            raise InvalidInput(f"the second budget counts proven epsilons against summed(N), got {terms(budget)}")
        with self._transaction("BEGIN IMMEDIATE"), _about(dataset):
            if budget is not None:
                self._require_countable(dataset, budget, pinned=True)
            return self._append(SummedBudgetSet(dataset, budget))

    def _require_countable(self, dataset: str, budget: Budget, *, pinned: bool = False) -> None:
        consents = self._book.standing(dataset).consents
        _require_consent_to_claims(budget, consents)
        for release, destination, unprotected in self._book.history(dataset):
            counts = destination.pinned if pinned else not unprotected
            if counts and math.isinf(cost(budget, release, destination)):
                _require_consent_to_unproven(budget, consents, release, destination)

    def set_consent(self, dataset: str, what: str | None, *, granted: bool) -> Entry:
        """Agree, or agree no longer, that releases of this kind may leave without a proof, flagged as unprotected.

        With None for `what` it is about budgets that count claimed epsilons, which nothing proves. What has left stays
        recorded.
        """
        _require_name("dataset", dataset)
        if what is not None:
            _require_name("what", what)
        with self._transaction("BEGIN IMMEDIATE"):
            return self._append(ConsentChanged(dataset, what, granted))

    def set_disjoint(self, dataset: str, other: str, *, declared: bool, after: int | None = None) -> Entry:
        """Declare that two names have no row in common, so that each has its own account; or withdraw that.

        It speaks of what leaves from now on: everything so far stays charged to both. Whoever compared all rows that
        ever were under the two names gives the last entry, `after`, which left before these were known.
        """
        with self._transaction("BEGIN IMMEDIATE"):
            last = self._book.sequence if after is None else after
            event = DisjointChanged(dataset, other, last if declared else None)
            self._raise_format(_NAMES_FORMAT)
            return self._append(event)

    def keep_rows(self, times: int) -> Entry:
        """Write down, before it happens, that the file of rows under each name is written for this time."""
        with self._transaction("BEGIN IMMEDIATE"):
            self._raise_format(_NAMES_FORMAT)
            return self._append(RowsKept(times))

    @property
    def rows_kept(self) -> int:
        """How often the file of rows under each name was written, as far as this ledger knows."""
        with self._transaction("BEGIN"):
            return self._book.rows_kept

    # -- what leaves

    def record(
        self, key: ReportKey, releases: Release | Sequence[Release], report: bytes, *, pinned: bool = False
    ) -> Entry:
        """Write down a report and the releases it stands for, all or nothing; when this returns, it may leave.

        `pinned` says that it goes to a federation with secure sums in which the keys of all others are pinned.
        Recording the same again gives the first entry. Other bytes under a key that has some are refused.
        """
        with self._transaction("BEGIN IMMEDIATE"):
            known = self._book.reports.get(key)
            if known is None:
                return self._append_report(key, releases, report, pinned)
            assert isinstance(known.event, Released)
            if known.event.releases == _as_tuple(releases) and known.event.report_sha256 == _sha256(report):
                return known
            raise InvalidInput(f"{key} has a report already; send that one (replay), a second draw must not leave")

    def replay(self, key: ReportKey) -> bytes | None:
        """The bytes recorded under this key, to be sent again; None if nothing was.

        `ReportCompacted` where they were dropped: the key has its report, and gets no other.
        """
        with self._transaction("BEGIN"):
            return self._stored(key)

    def release_once(self, key: ReportKey, draw: Draw) -> bytes:
        """The bytes for this key: those recorded, or else those of `draw`, recorded before they are returned.

        `draw` returns the releases and the encoded report. It runs while other processes wait, so that there is one
        draw per key: train before, only randomise and encode inside. It must not use this ledger.
        """
        stored = self.replay(key)
        if stored is not None:
            return stored
        with self._transaction("BEGIN IMMEDIATE"):
            stored = self._stored(key)
            if stored is not None:
                return stored
            releases, report = draw()
            self._append_report(key, releases, report)
            return report

    def _stored(self, key: ReportKey) -> bytes | None:
        entry = self._book.reports.get(key)
        if entry is None:
            return None
        assert isinstance(entry.event, Released)
        if entry.sequence in self._book.compacted:
            raise ReportCompacted(
                f"{key} was answered before (entry {entry.sequence}), and only the hash of that report is kept: it "
                "cannot be sent again, and nothing is drawn in its place"
            )
        for (report,) in self._db.rows("SELECT report FROM entries WHERE sequence = ?", [entry.sequence]):
            if isinstance(report, bytes) and _sha256(report) == entry.event.report_sha256:
                return report
        raise self._damaged(f"the report of entry {entry.sequence} was edited or removed")

    def _append_report(
        self, key: ReportKey, releases: Release | Sequence[Release], report: bytes, pinned: bool = False
    ) -> Entry:
        releases = _as_tuple(releases)
        self._require_report(key, releases, report)
        standings, unprotected, new_ids = self._book.charged(key.dataset), [], set[str]()
        destination = Destination(key.federation, pinned)
        for release in releases:
            _require_identity(release, lambda name: name in self._book.release_ids or name in new_ids)
            after = admit_all(standings, release, destination)
            if after[key.dataset].unprotected > standings[key.dataset].unprotected:
                unprotected.append(release.id)
            standings = after
            new_ids.add(release.id)
        salt = secrets.token_hex(16)
        return self._append(Released(key, releases, tuple(unprotected), _sha256(report), pinned, salt), report)

    def _require_report(self, key: ReportKey, releases: tuple[Release, ...], report: bytes) -> None:
        if not isinstance(report, bytes):
            raise InvalidInput(f"a report must be bytes, got {type(report).__name__}")
        if len(report) > _LONGEST_REPORT:
            raise InvalidInput(f"a report may have {_LONGEST_REPORT} bytes, got {len(report)}; send it in parts")
        if not releases:
            raise InvalidInput("a report stands for at least one release; none was given")
        for release in releases:
            _require_name("release id", release.id)
            _require_name("what", release.what)
            if release.dataset != key.dataset:
                raise InvalidInput(
                    f"release {release.id!r} is about {release.dataset!r}, its key about {key.dataset!r}"
                )

    # -- what is kept

    def holdings(self) -> Holdings:
        """How many reports are here with their bytes, and how many as hashes alone."""
        with self._transaction("BEGIN"):
            book = self._book
            return Holdings(len(book.reports) - len(book.compacted), sum(book.sizes.values()), len(book.compacted))

    def compactable(self, age: timedelta, *, unacknowledged: bool = False) -> Freed:
        """What `compact` would drop now."""
        with self._transaction("BEGIN"):
            due = self._due(age, unacknowledged)
            return Freed(len(due), sum(due.values()))

    def compact(self, age: timedelta, *, unacknowledged: bool = False) -> Freed:
        """Drop the bytes of reports that nobody asks for again, and let the file shrink; every hash and cost stays.

        A report is dropped where its round is over at the server, known here for at least `age`: a later round of the
        same federation was answered. With `unacknowledged`, every report of that age is dropped. Who asks for one
        again gets `ReportCompacted`. Reports without bytes stay as they are.

        One transaction drops the bytes and adds the entry (`Compacted`) that says so. The file shrinks afterwards; if
        that fails, the ledger is whole all the same.
        """
        with self._transaction("BEGIN IMMEDIATE"):
            due = self._due(age, unacknowledged)
            if due:
                self._drop(Compacted.of(due))
        freed = Freed(len(due), sum(due.values()))
        try:
            self._db.shrink()
        except LedgerUnavailable as error:
            return replace(freed, not_shrunk=str(error))
        return freed

    def _due(self, age: timedelta, unacknowledged: bool) -> dict[int, int]:
        """The entries with bytes that may be dropped, each with how many."""
        if age < timedelta(0):
            raise InvalidInput(f"reports are kept for 0 days or more, got {age.total_seconds() / 86_400:g}")
        entries = self._book.reports.values()
        since = ((entry, entry.time) for entry in entries) if unacknowledged else _acknowledged(entries)
        latest = datetime.now(UTC) - age
        return {
            entry.sequence: self._book.sizes[entry.sequence]
            for entry, time in since
            if entry.sequence in self._book.sizes and (not age or datetime.fromisoformat(time) <= latest)
        }

    def _drop(self, compaction: Compacted) -> None:
        """Drop bytes and say so. The trigger that forbids changes is away within this transaction and nowhere else."""
        trigger = "entries_stay_as_they_are"
        self._db.execute(f"DROP TRIGGER {trigger}")
        self._db.execute_each(_DROP_REPORTS, compaction.entries)
        self._db.execute(_SCHEMA[trigger])
        self._raise_format(_COMPACTED_FORMAT)
        self._append(compaction)

    def _raise_format(self, least: int) -> None:
        """Keep a Sordino that does not know a kind of entry from reading on as if it were not there."""
        self._db.identify((_APPLICATION_ID, max(least, self._db.identity[1])))

    # -- what anyone may ask

    def standing(self, dataset: str) -> Standing:
        """Where a data set stands; an unknown one has no budget."""
        with self._transaction("BEGIN"):
            return self._book.standing(dataset)

    def charged(self, dataset: str) -> dict[str, Standing]:
        """Where all stand that the next release of a data set is charged to, the data set itself first: `admit_all`."""
        with self._transaction("BEGIN"):
            return self._book.charged(dataset)

    def charged_reports(self, dataset: str) -> list[Released]:
        """All reports that are charged to a data set, under whatever name they left."""
        with self._transaction("BEGIN"):
            return list(self._book.reported(dataset))

    def disjoint_from(self, dataset: str) -> dict[str, int]:
        """The names that have no row in common with a data set: each with the last entry charged to both all the same.

        They are in the order of the alphabet; their owner declared it.
        """
        with self._transaction("BEGIN"):
            pairs = self._book.disjoint.items()
            return dict(sorted((name, after) for pair, after in pairs if dataset in pair for name in pair - {dataset}))

    def require_known(self, names: Sequence[str], given_as: str) -> None:
        """Refuse to declare names disjoint that have no budget, consent or release here: one may be misspelt."""
        known = self.standings()
        if unknown := [name for name in names if name not in known]:
            raise InvalidInput(
                f"{given_as}: this ledger does not know {', '.join(map(repr, unknown))}; the names in it: "
                f"{', '.join(map(repr, known)) or 'none'}. Nothing was declared: correct the name, or make it first "
                "with a budget of its own (sordino ledger budget)"
            )

    def standings(self) -> dict[str, Standing]:
        """Where every data set stands."""
        with self._transaction("BEGIN"):
            return dict(sorted(self._book.standings.items()))

    def entries(self) -> list[Entry]:
        """All entries, oldest first, read from the file and checked."""
        with self._transaction("BEGIN"):
            return list(self._walk(_Book()))

    def head(self) -> str:
        """The hash of the last entry, for a receipt kept elsewhere: it stands for the whole ledger up to here."""
        with self._transaction("BEGIN"):
            return self._book.head

    def position(self, head: str) -> int:
        """How many entries this ledger had when this was its head; 0 where it never was: it is another ledger."""
        with self._transaction("BEGIN"):
            known = "SELECT count(*) FROM entries WHERE sequence <= (SELECT sequence FROM entries WHERE hash = ?)"
            (found,) = self._db.rows(known, [head.strip().lower()])
            return int(found[0])

    def verify(self, expected_head: str | None = None) -> Entry:
        """Read and check the whole file, and give its last entry; `LedgerDamaged` says what is wrong.

        The chain notices what was torn, edited, inserted or removed in the middle. It cannot notice that the last
        entries were cut off, that an older copy was restored, or that someone recomputed all hashes: `expected_head`,
        from a receipt, can.
        """
        with self._transaction("BEGIN"):
            self._inspect()
            *_, last = self._walk(_Book())
        if expected_head is not None and not self.position(expected_head):
            raise self._damaged(
                f"the head {expected_head.strip()} of your receipt is not in it: an older copy was restored, its last "
                "entries were cut off, its hashes were recomputed, or it is another ledger"
            )
        return last

    # -- the file underneath

    @contextmanager
    def _transaction(self, begin: Literal["BEGIN", "BEGIN IMMEDIATE"]) -> Iterator[None]:
        """Everything inside sees, and adds to, one state of the file; an error leaves the file as it was."""
        if os.getpid() != self._process:
            raise LedgerUnavailable(f"the ledger {self.path} was opened before a fork; open it anew in this process")
        with self._db.lock:
            if self._drawing:
                raise InvalidInput("a draw must not use the ledger it is recorded in: look up what it needs before")
            try:
                with self._db.transaction(begin):
                    self._drawing = True
                    self._catch_up()
                    yield
                for entry in self._written:
                    self._fold(entry)
            finally:
                self._written.clear()
                self._drawing = False

    def _fold(self, entry: Entry) -> None:
        """Add to the book; if that is interrupted (Ctrl-C), no half-written book remains and all is read again."""
        book, self._book = self._book, _Book()
        book.fold(entry)
        self._book = book

    def _catch_up(self) -> None:
        """Read what other processes wrote since; what this one has seen must still be there."""
        if self._identity() != self._file:
            raise self._damaged("it was replaced by another file while it was in use")
        if not self._book.sequence:
            self._inspect()
        elif not any(digest == self._book.head for (digest,) in self._db.rows(_HASH_AT, [self._book.sequence])):
            raise self._damaged(f"entry {self._book.sequence}, which was there before, is gone: it is an older copy")
        for entry in list(self._walk(self._book)):  # all are sound, or none is counted
            self._fold(entry)
        if not self._book.sequence:
            raise self._damaged("it has no entries")

    def _walk(self, book: _Book) -> Iterator[Entry]:
        """The entries after those in `book`, each checked against the one before it."""
        previous, sequence, lacking = book.head, book.sequence, set[int]()
        query = f"SELECT {_COLUMNS} FROM entries WHERE sequence > ? ORDER BY sequence"
        for row in self._db.rows(query, [sequence]):
            sequence += 1
            try:
                entry = _read(row, previous, sequence)
            except LedgerDamaged as error:
                raise self._damaged(str(error)) from None
            if isinstance(entry.event, Released) and row[9] is None:
                lacking.add(sequence)
            elif isinstance(entry.event, Compacted):
                if still_there := {n for n in entry.event.numbers if n > book.sequence} - lacking:
                    raise self._damaged(f"the bytes of entry {min(still_there)} were dropped before, and are back")
                lacking -= entry.event.numbers
            previous = entry.hash
            yield entry
        if lacking:
            raise self._damaged(f"the report of entry {min(lacking)} was removed, and no compaction says so")

    def _inspect(self) -> None:
        """What must hold before any entry is read: this format, sound pages, our schema."""
        if (version := self._db.identity[1]) not in range(_FORMAT, _NAMES_FORMAT + 1):
            raise LedgerUnavailable(
                f"{self.path} has format {version}, this Sordino reads formats {_FORMAT} to {_NAMES_FORMAT}: use "
                "the Sordino that wrote it"
            )
        if (found := self._db.one("PRAGMA integrity_check")[0]) != "ok":
            raise self._damaged(str(found))
        query = "SELECT name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
        schema = dict(self._db.rows(query))
        if schema != _SCHEMA:
            changed = sorted(name for name in schema.keys() | _SCHEMA if schema.get(name) != _SCHEMA.get(name))
            raise self._damaged(f"its tables or triggers were altered ({', '.join(changed)})")

    def _append(self, event: Event, report: bytes | None = None) -> Entry:
        entry = _insert(self._db, self._book, event, report)
        self._written.append(entry)
        return entry

    def _identity(self) -> tuple[int, int] | None:
        try:
            status = self.path.stat()
        except OSError:
            return None
        return status.st_dev, status.st_ino

    def _damaged(self, sentence: str) -> LedgerDamaged:
        return LedgerDamaged(f"the ledger {self.path} is damaged: {sentence}. {_LOOK}")


_HASH_AT = "SELECT hash FROM entries WHERE sequence = ?"
_DROP_REPORTS = "UPDATE entries SET report = NULL WHERE sequence BETWEEN ? AND ?"


def _insert(database: Database, book: _Book, event: Event, report: bytes | None) -> Entry:
    sequence, time = book.sequence + 1, datetime.now(UTC).isoformat(timespec="seconds")
    columns = _columns_of(event)
    entry = Entry(sequence, time, event, _chained(book.head, sequence, time, columns), len(report or b""))
    database.execute(_INSERT, (sequence, time, *columns, entry.hash, report))
    return entry


def _as_tuple(releases: Release | Sequence[Release]) -> tuple[Release, ...]:
    given = (releases,) if isinstance(releases, Release) else tuple(releases)
    for release in given:
        if not isinstance(release, Release):
            raise InvalidInput(f"only a Release may be recorded, got {release!r}")
    return given


@contextmanager
def _about(dataset: str, own: str | None = None) -> Iterator[None]:
    """Name the data set in a refusal, and why it is asked where what leaves is called otherwise (`own`)."""
    try:
        yield
    except (BudgetExceeded, ConsentMissing) as error:
        why = f", which has one account with {own!r} (unless you declare them disjoint: docs/ledger.md)"
        about = f"data set {dataset!r}{why if own not in (None, dataset) else ''}"
        raise type(error)(f"{about}: {error.why}", error.command, error.what, dataset) from None


# ---------------------------------------------------------------------------------------------------------------------
# Simulations


class MemoryLedger:
    """The accounts of K simulated clients, one budget each, under the same rules; nothing is kept after the run.

    Clients are numbered 0 .. K-1. Equal questions are answered once: clients who stand alike and release alike share
    the arithmetic, so a round of a large cohort costs little more than a loop over it.
    """

    def __init__(self, budgets: Sequence[Budget], consents: Consents = Consents()) -> None:  # noqa: B008
        """Open K accounts; `consents` hold for all of them, as the recipe says."""
        opened = {budget: Standing.opening(budget, consents) for budget in set(budgets)}
        self._standings = [opened[budget] for budget in budgets]
        self._holders: dict[str, array[int]] = {}  # release id -> the clients who made that release

    def __len__(self) -> int:
        return len(self._standings)

    def standing(self, client: int) -> Standing:
        """Where one client stands."""
        return self._standings[self._require_client(client)]

    def record(self, releases: Mapping[int, Release | Sequence[Release]]) -> dict[int, SordinoError]:
        """Record what each client releases, all of it or nothing; those who must decline come back with the reason."""
        asked = [(self._require_client(client), _as_tuple(own)) for client, own in releases.items()]
        refused = self._refused_identities([(client, release) for client, own in asked for release in own])
        admitted = _Admissions()
        declined: dict[int, SordinoError] = {}
        for client, own in asked:
            answer: Standing | SordinoError = refused.get(client) or self._standings[client]
            for release in own:
                answer = admitted(answer, release) if isinstance(answer, Standing) else answer
            if isinstance(answer, Standing):
                self._standings[client] = answer
                for release in own:
                    self._holders.setdefault(release.id, array("I")).append(client)
            else:
                declined[client] = answer
        return declined

    def _require_client(self, client: int) -> int:
        if not isinstance(client, Integral) or not 0 <= client < len(self._standings):
            raise InvalidInput(f"client must be a number from 0 to {len(self._standings) - 1}, got {client!r}")
        return int(client)

    def _refused_identities(self, asked: list[tuple[int, Release]]) -> dict[int, SordinoError]:
        """Who names a release that they have made already, or derives from one that they have not."""
        holders: dict[str, frozenset[int]] = {}

        def holds(client: int, name: str) -> bool:
            if name not in holders:
                holders[name] = frozenset(self._holders.get(name, ()))
            return client in holders[name]

        refused: dict[int, SordinoError] = {}
        for client, release in asked:
            if release.id not in self._holders and not isinstance(release.composition, Derived):
                continue
            try:
                _require_identity(release, partial(holds, client))
            except InvalidInput as error:
                refused[client] = error
        return refused


class _Admissions:
    """`admit` for many clients: equal questions are answered once."""

    def __init__(self) -> None:
        self._numbers: dict[object, int] = {}
        self._seen: dict[int, tuple[int, object]] = {}  # identity -> number, and the object so that it stays alive
        self._answers: dict[object, Standing | SordinoError] = {}

    def __call__(self, standing: Standing, release: Release) -> Standing | SordinoError:
        parts = (standing, release.guarantees, release.claimed, release.composition)
        question = (release.what, *map(self._number, parts))
        if question not in self._answers:
            try:
                self._answers[question] = admit(standing, release, _ANYWHERE)  # all of a simulation is one federation
            except SordinoError as error:
                self._answers[question] = error
        return self._answers[question]

    def _number(self, part: object) -> int:
        """A number that equal parts share; hashing is slow, so a part seen before is recognised by its identity."""
        seen = self._seen.get(id(part))
        if seen is None:
            seen = self._seen[id(part)] = self._numbers.setdefault(part, len(self._numbers)), part
        return seen[0]

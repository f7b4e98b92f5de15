"""Who holds which place of a federation, from which round to which: a file that commands change while it runs.

A recipe fixes how many places there are, and all members have agreed to it. A place can be vacant, and its holder can
change between two rounds: `retire`, `replace` and `add`. A coordinator looks at the file before every round. The file
says which round it has begun: holders of that round and of those before it are not changed any more.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import chain, count, pairwise
from pathlib import Path
from typing import Any

from sordino.client.settings import NAME
from sordino.errors import InvalidInput, SordinoError
from sordino.storage.files import InUse, exclusive_lock, make_folder, write_whole

VERSION = 2
BUSY = 10.0  #: seconds until another process must be done with the file
LONGEST = 100  #: letters of a name


class Unknown(SordinoError):
    """A client that has no place in this federation, or none in this round."""


@dataclass(frozen=True)
class Tenure:
    """One member's time in one place. A name is one member's, whatever places it holds over time."""

    place: int
    name: str
    identity: str = ""  #: a random number of its client's own; empty until that came for the first time
    first: int = 0  #: round; 0 is the preparation
    last: int | None = None  #: round; None where no end is set

    def holds(self, round: int) -> bool:
        """Whether the place is this member's in a round."""
        return self.first <= round and (self.last is None or round <= self.last)


@dataclass(frozen=True)
class Seating:
    """All tenures of a federation, and the round that it has begun (-1: none)."""

    places: int
    is_open: bool  #: whether a place that nobody ever held goes to whoever comes first, under the client's own name
    begun: int = -1
    tenures: tuple[Tenure, ...] = ()

    def at(self, place: int, round: int) -> Tenure | None:
        """Who holds a place in a round."""
        return next((own for own in self.tenures if own.place == place and own.holds(round)), None)

    def vacant(self, round: int) -> frozenset[int]:
        """Places that nobody holds in a round; those that are open to whoever comes are not among them."""
        ever = {own.place for own in self.tenures}
        unheld = {place for place in range(self.places) if self.at(place, round) is None}
        return frozenset(unheld & ever if self.is_open else unheld)

    # --- changes: each gives a new seating and the tenure that came of it

    def retire(self, name: str, from_round: int | None = None) -> tuple[Seating, Tenure]:
        """End a member's tenure: from that round on, the next if left out, its place is vacant."""
        own, start = self._member(name), self._coming(from_round)
        if own.last is not None:
            raise InvalidInput(f"{name} is a member until round {own.last} and not beyond: there is nothing to retire")
        over = replace(own, last=start - 1)
        others = tuple(each for each in self.tenures if each is not own)
        return replace(self, tenures=others if over.first > start - 1 else _ordered((*others, over))), over

    def replace(self, name: str, new: str, from_round: int | None = None) -> tuple[Seating, Tenure]:
        """Give a member's place to a new member, from that round on; also one that its member has left."""
        self._check_new(new)
        own, start = self._member(name), self._coming(from_round)
        seating = self if own.last is not None else self.retire(name, start)[0]
        if own.last is not None:
            start = max(start, own.last + 1) if from_round is None else start
        return seating._seated(own.place, new, start)

    def add(self, name: str, from_round: int | None = None) -> tuple[Seating, Tenure]:
        """Give a vacant place to a new member, from that round on; a former member gets its own place back."""
        start = self._coming(from_round)
        former = [own for own in self.tenures if own.name == name]
        if former and former[-1].last is None:
            raise InvalidInput(f"{name} is a member already: give the new one a name of its own")
        if former:  # what a client agreed to names its place
            return self._seated(former[-1].place, name, start, former[-1].identity)
        self._check_new(name)
        free = [place for place in range(self.places) if not self._taken(place, start)]
        if not free:
            raise InvalidInput(
                f"all {self.places} places are taken from round {start} on, and the recipe that everybody agreed to "
                f"has no more: retire or replace one of {', '.join(self._current())}, or begin a new federation with "
                "spare places (spare)"
            )
        return self._seated(free[0], name, start)

    def begin(self, round: int) -> Seating:
        """Note that a round begins: its holders are not changed any more."""
        return self if round <= self.begun else replace(self, begun=round)

    def claim(self, identity: str, name: str, node: str, round: int) -> tuple[Seating, int]:
        """The place of the client that came under this identity and name; `Unknown` where it has none in this round."""
        known = [own for own in self.tenures if own.identity == identity]
        called = known[-1].name if known else name
        if not self.is_open and node and node != called:  # whoever's it is: a node speaks for its own member alone
            raise Unknown(f"its node is registered as {node}, and its client is {called}")
        if known:
            return self, _holding(known, round).place
        awaited = [own for own in self.tenures if own.name == name and not own.identity]
        if awaited:
            held = _holding(awaited, round)
            bound = tuple(replace(own, identity=identity) if own in awaited else own for own in self.tenures)
            return replace(self, tenures=bound), held.place
        if self.is_open:
            return self._first_come(identity, name, round)
        if any(own.name == name for own in self.tenures):
            raise Unknown(f"there is no place for {name}: another client came first as {name}")
        raise Unknown(f"{name} is none of the clients that this federation names ({', '.join(self._current())})")

    def _first_come(self, identity: str, name: str, round: int) -> tuple[Seating, int]:
        ever = {own.place for own in self.tenures}
        free = [place for place in range(self.places) if place not in ever]
        if not free:
            raise Unknown(f"there is no place for {name}: all {self.places} places are taken")
        own = Tenure(free[0], _unused(name, {each.name for each in self.tenures}), identity, max(0, round))
        return replace(self, tenures=_ordered((*self.tenures, own))), own.place

    def _seated(self, place: int, name: str, start: int, identity: str = "") -> tuple[Seating, Tenure]:
        if others := self._taken(place, start):
            raise InvalidInput(
                f"the place that {name} would get, number {place}, is that of {others[0].name} from round "
                f"{max(start, others[0].first)} on: retire or replace {others[0].name}"
            )
        own = Tenure(place, name, identity, start)
        return replace(self, tenures=_ordered((*self.tenures, own))), own

    def _taken(self, place: int, start: int) -> list[Tenure]:
        """Tenures of a place that reach into this round or a later one."""
        return [own for own in self.tenures if own.place == place and (own.last is None or own.last >= start)]

    def _coming(self, from_round: int | None) -> int:
        """The round from which a change holds: one that has not begun."""
        if from_round is None:
            return self.begun + 1
        if from_round <= self.begun:
            raise InvalidInput(
                f"round {from_round} has begun, and what it asked of whom is not changed any more: name round "
                f"{self.begun + 1} or a later one, or none at all"
            )
        return from_round

    def _member(self, name: str) -> Tenure:
        found = [own for own in self.tenures if own.name == name]
        if not found:
            raise InvalidInput(f"{name} is no member of this federation: the members are {', '.join(self._current())}")
        return found[-1]

    def _current(self) -> list[str]:
        return [own.name for own in self.tenures if own.last is None] or ["nobody"]

    def _check_new(self, name: str) -> None:
        _check_name(name)
        if any(own.name == name for own in self.tenures):
            raise InvalidInput(f"{name} is or was a member of this federation: give the new one a name of its own")

    # --- the file

    def encode(self) -> bytes:
        """The file's bytes."""
        found = {"version": VERSION, "places": self.places, "open": self.is_open, "begun": self.begun}
        lines = ",\n".join(f"  {json.dumps(asdict(own))}" for own in self.tenures)
        return f'{json.dumps(found)[:-1]}, "tenures": [\n{lines}\n]}}\n'.encode()

    @classmethod
    def decode(cls, raw: bytes) -> Seating:
        """What `encode` wrote; anything else raises one of Python's own errors for wrong values."""
        found = json.loads(raw)
        if found["version"] != VERSION:
            raise ValueError(f"version {found['version']}, and this is {VERSION}")
        own = cls(int(found["places"]), bool(found["open"]), int(found["begun"]), tuple(map(_tenure, found["tenures"])))
        own._check()
        return own

    def _check(self) -> None:
        """Refuse what no command leaves behind: places that are none, names that are none, two holders of one place."""
        identities: dict[str, str] = {}
        for own in self.tenures:
            if not 0 <= own.place < self.places or not NAME.fullmatch(own.name):
                raise ValueError(f"{own.name[:LONGEST]!r} in place {own.place} of {self.places}")
            if own.identity and identities.setdefault(own.identity, own.name) != own.name:
                raise ValueError(f"{identities[own.identity]} and {own.name} are one client")
            if own.last is not None and own.last < own.first:
                raise ValueError(f"{own.name} would leave before it comes")
        for place in range(self.places):
            held = [own for own in self.tenures if own.place == place]
            for before, after in pairwise(held):
                if before.last is None or before.last >= after.first:
                    raise ValueError(f"{before.name} and {after.name} would hold place {place} at once")


def _tenure(packed: Mapping[str, Any]) -> Tenure:
    last = packed["last"]
    return Tenure(
        int(packed["place"]), str(packed["name"]), str(packed["identity"]), int(packed["first"]),
        None if last is None else int(last),
    )  # fmt: skip


def _ordered(tenures: Sequence[Tenure]) -> tuple[Tenure, ...]:
    return tuple(sorted(tenures, key=lambda own: (own.place, own.first)))


def _holding(own: Sequence[Tenure], round: int) -> Tenure:
    """The one of a member's tenures in which this round is; `Unknown` says when it is a member instead."""
    for each in own:
        if each.holds(round):
            return each
    coming = next((each for each in own if each.first > round), None)
    if coming is not None:
        raise Unknown(f"{coming.name} takes part from round {coming.first} on, and this is round {round}")
    raise Unknown(f"{own[-1].name} took part until round {own[-1].last}, and its place is no longer its own")


def _unused(name: str, used: Collection[str]) -> str:
    """A name of one's own for a client that calls itself as another does."""
    others = (f"{name[: LONGEST - 8]}-{number}" for number in count(2))
    return next(each for each in chain([name], others) if each not in used)


def _check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise InvalidInput(
            f"names of members have letters, digits, dots, - and _, at most {LONGEST}, got {name[: LONGEST + 20]!r}"
        )


class Roster:
    """The seating of a federation, in a file that other processes may change; without a file, in memory.

    With `names`, the first places are those of these members, in their order, and the `spare` ones after them are
    vacant. Without, a place goes to whoever comes first. The file, once it is there, decides; those of earlier versions
    are read too. A client is known by its identity: the first that comes under a member's name keeps it.
    """

    def __init__(self, places: int, path: Path | None = None, names: Sequence[str] = (), *, spare: int = 0) -> None:
        if names and len(names) + spare != places:
            beside = f" and {spare} spare places" if spare else ""
            raise InvalidInput(
                f"{len(names)} names of clients{beside} were given and the recipe has {places} clients: name each of "
                "them, or leave places vacant (spare)"
            )
        for name in names:
            _check_name(name)
        if len(set(names)) != len(names):
            raise InvalidInput(f"each member has a name of its own, got {', '.join(names)}")
        self._path, self._stamp = path, (0, 0, 0)
        self._seating = Seating(places, not names, tenures=tuple(map(Tenure, range(len(names)), names)))
        self.look()
        if self._seating.places != places:
            raise InvalidInput(
                f"{path} is of a federation with {self._seating.places} places, and the recipe has {places} clients: "
                "run under another federation's name"
            )

    @classmethod
    def open(cls, path: Path) -> Roster:
        """The roster in a file that is there."""
        places = _read(path, None).places  # one of an earlier version does not say how many there are
        return cls(places, path)

    # --- who is who

    @property
    def tenures(self) -> tuple[Tenure, ...]:
        """All members' times in all places, in the order of places and rounds."""
        return self._seating.tenures

    @property
    def begun(self) -> int:
        """The round that has begun last; -1 where none has."""
        return self._seating.begun

    def holder(self, number: int, round: int | None = None) -> Tenure | None:
        """Who holds a place in a round, the next if left out; None where nobody does, or nobody came yet."""
        return self._seating.at(number, self.begun + 1 if round is None else round)

    def names(self, round: int) -> dict[int, str]:
        """The members' names in a round, by number."""
        return {own.place: own.name for own in self.tenures if own.holds(round)}

    def vacant(self, round: int) -> frozenset[int]:
        """Places that nobody holds in a round; those that are open to whoever comes are not among them."""
        return self._seating.vacant(round)

    def name_of(self, number: int, round: int | None = None) -> str:
        """A member's name, in a round or in the next; `client 3` where nobody has the number."""
        own = self.holder(number, round)
        return f"client {number}" if own is None else own.name

    def member(self, identity: str) -> str:
        """The name of the member whose client this is; `somebody` where it is nobody's."""
        return next((own.name for own in self.tenures if own.identity == identity), "somebody")

    def has(self, identity: str, number: int, round: int | None = None) -> bool:
        """Whether this client holds this place in a round; without one, whether it ever did or will."""
        return any(
            own.identity == identity and own.place == number and (round is None or own.holds(round))
            for own in self.tenures
        )

    def number_of(self, identity: str, name: str, *, node: str = "", round: int | None = None) -> int:
        """The number of a client, now or from now on; `Unknown` where there is no place for it.

        `node` is the name under which the server's operator registered the node's key: one that is registered under a
        member's name speaks for that member and for no other. `round` is the next if left out.
        """
        now = self.begun + 1 if round is None else round
        before, (seating, number) = self._seating, self._seating.claim(identity, name, node, now)
        if seating is not before:  # it is new: what other processes wrote meanwhile counts first
            with self._changing():
                self._seating, number = self._seating.claim(identity, name, node, now)
        return number

    # --- changes

    def retire(self, name: str, from_round: int | None = None) -> Tenure:
        """Leave a member's place vacant from a round on, the next if left out; its tenure, with its last round."""
        return self._change(lambda seating: seating.retire(name, from_round))

    def replace(self, name: str, new_name: str, from_round: int | None = None) -> Tenure:
        """Give a member's place to a new one from a round on, the next if left out; the new one's tenure."""
        return self._change(lambda seating: seating.replace(name, new_name, from_round))

    def add(self, name: str, from_round: int | None = None) -> Tenure:
        """Give the first vacant place to a new member from a round on, the next if left out; its tenure.

        A former member gets the place back that it had, if that is vacant.
        """
        return self._change(lambda seating: seating.add(name, from_round))

    def begin(self, round: int) -> None:
        """Look at the file, and note in it that a round begins."""
        self.look()
        if round > self.begun:
            with self._changing():
                self._seating = self._seating.begin(round)

    def look(self) -> bool:
        """Read what other processes have changed; whether anything has."""
        if self._path is None or not self._path.exists():
            return False
        found = self._path.stat()
        stamp = found.st_mtime_ns, found.st_ino, found.st_size
        if stamp == self._stamp:
            return False
        before, self._seating, self._stamp = self._seating, _read(self._path, self._seating), stamp
        return before != self._seating

    def _change(self, of: Callable[[Seating], tuple[Seating, Tenure]]) -> Tenure:
        with self._changing():
            self._seating, tenure = of(self._seating)
        return tenure

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Read the file, change it inside, and write it whole, while no other process does."""
        if self._path is None:
            yield
            return
        make_folder(self._path.parent)
        with _turn(self._path):
            self._stamp = (0, 0, 0)
            self.look()
            before = self._seating
            try:
                yield
                write_whole(self._path, self._seating.encode())
            except BaseException:
                self._seating = before
                raise
            found = self._path.stat()
            self._stamp = found.st_mtime_ns, found.st_ino, found.st_size


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Wait for other processes to be done with the file: each takes a moment."""
    until = time.monotonic() + BUSY
    with ExitStack() as held:
        while True:
            try:
                held.enter_context(exclusive_lock(path.with_name(f".{path.name}.lock"), f"a change of {path}"))
                break
            except InUse:
                if time.monotonic() > until:
                    raise
                time.sleep(0.01)
        yield


def _read(path: Path, expected: Seating | None) -> Seating:
    """The seating in a file; one of an earlier version says neither how many places there are nor who is expected."""
    try:
        raw = path.read_bytes()
        found = json.loads(raw)
        if not isinstance(found, dict):
            raise ValueError("a table was expected")
        if "version" in found or expected is None:
            return Seating.decode(raw)
        return _from_version_1(found, expected)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(
            f"{path} is damaged or of another version ({error}): restore it from a backup, or run under another "
            "federation's name"
        ) from None


def _from_version_1(found: Mapping[str, Mapping[str, object]], expected: Seating) -> Seating:
    """Clients that came, by number: `{"0": {"id": ..., "name": ...}}`; names that were expected stay."""
    tenures = {own.place: own for own in expected.tenures}
    for number, own in sorted(found.items(), key=lambda item: int(item[0])):
        place, used = int(number), {each.name for each in tenures.values()}
        name = tenures[place].name if place in tenures else _unused(str(own["name"]), used)
        tenures[place] = Tenure(place, name, str(own["id"]))
    seating = replace(expected, tenures=_ordered(tuple(tenures.values())))
    seating._check()
    return seating


__all__ = ["Roster", "Seating", "Tenure", "Unknown"]

"""What clients released in each round of a run: written down a line a round, and summed up in a statement.

Clients of one class release the same, so a round is a few releases and the numbers of the clients that made them, four
bytes each. Where members have names, a round says who held which number: a number may change hands between two rounds,
and what one member released counts for that member alone.
"""

from __future__ import annotations

import json
from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput, UnsupportedLoss
from sordino.privacy.guarantee import Derived, Release, pack, unpack
from sordino.privacy.statement import ClientSet, Counted, Statement

_LARGEST = 2**32 - 1  #: number of a client
_LONGEST_MEMBER = 100  #: letters of a member's name
_LONGEST_NAME = 30  #: letters of a group's name that list its clients; longer lists are cut short


@dataclass(frozen=True)
class RoundReleases:
    """The releases of one round: for every class what it released and who did; and who declined, with the reason."""

    round: int
    releases: tuple[tuple[Release, ...], ...]
    clients: tuple[Sequence[int], ...]
    declined: Mapping[int, str] = field(default_factory=dict)
    names: Mapping[int, str] = field(default_factory=dict)  #: number -> the member that held it, where they have names
    extra: int = 0  #: how many of the last entries are no answers to the round's plan, such as a private evaluation

    def __post_init__(self) -> None:
        if len(self.releases) != len(self.clients):
            raise InvalidInput(
                f"round {self.round} has the releases of {len(self.releases)} classes and the clients of "
                f"{len(self.clients)}: give both for every class"
            )
        try:
            compact = tuple(array("I", sorted(own)) for own in self.clients)
        except (TypeError, OverflowError) as error:
            raise InvalidInput(f"clients have whole numbers from 0 to 2^32 - 1: {error}") from None
        object.__setattr__(self, "clients", compact)
        self._check_names()

    def _check_names(self) -> None:
        """A name is one member's, and one line that a log and a page can show."""
        for name in self.names.values():
            if not (isinstance(name, str) and 0 < len(name) <= _LONGEST_MEMBER and name.isprintable()):
                raise InvalidInput(f"a member's name has 1 to {_LONGEST_MEMBER} printable letters, got {name!r:.150}")
        if len(set(self.names.values())) != len(self.names):
            raise InvalidInput(f"in round {self.round} a member would hold two numbers: give each a name of its own")

    def beside(self, releases: tuple[Release, ...], clients: Sequence[int]) -> RoundReleases:
        """The same round, in which these clients released something besides, which is no answer to its plan."""
        return replace(
            self, releases=(*self.releases, releases), clients=(*self.clients, clients), extra=self.extra + 1
        )

    @property
    def reporters(self) -> tuple[Sequence[int], ...]:
        """The clients of each class that answered the round's plan."""
        return self.clients[: len(self.clients) - self.extra]

    def to_line(self) -> str:
        """One line of JSON."""
        reasons: dict[str, list[int]] = {}
        for client, reason in self.declined.items():
            reasons.setdefault(reason, []).append(client)
        packed = {
            "round": self.round,
            "releases": [[pack(release) for release in own] for own in self.releases],
            "clients": [ranges(own) for own in self.clients],
            "declined": {reason: ranges(own) for reason, own in reasons.items()},
            **({"names": {str(client): name for client, name in self.names.items()}} if self.names else {}),
            **({"extra": self.extra} if self.extra else {}),
        }
        return json.dumps(packed, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_line(cls, line: str | bytes) -> RoundReleases:
        """The round that `to_line` wrote."""
        try:
            packed = json.loads(line)
            releases = tuple(tuple(unpack(Release, r) for r in own) for own in packed["releases"])
            clients = tuple(members(own) for own in packed["clients"])
            declined = {client: reason for reason, own in packed["declined"].items() for client in members(own)}
            names = {int(client): name for client, name in packed.get("names", {}).items()}
            return cls(int(packed["round"]), releases, clients, declined, names, int(packed.get("extra", 0)))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(f"a line of the releases' history is damaged ({error}): start the run anew") from None


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers from 0 on as people write them: 0-4, 7."""
    ordered = np.unique(np.array(numbers if isinstance(numbers, array) else list(numbers), np.int64))
    if ordered.size and ordered[0] < 0:
        raise InvalidInput(f"ranges are of whole numbers from 0 on, got {ordered[0]}")
    breaks = np.flatnonzero(np.diff(ordered) != 1)
    firsts = ordered[np.append(0, breaks + 1)] if ordered.size else ordered
    lasts = ordered[np.append(breaks, -1)] if ordered.size else ordered
    ends = zip(firsts.tolist(), lasts.tolist(), strict=True)
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in ends)


def members(text: str) -> list[int]:
    """The numbers that `ranges` wrote."""
    found: list[int] = []
    for run in text.split(", ") if text else []:
        first, dash, last = run.partition("-")
        numbers = range(int(first), int(last if dash else first) + 1)
        if not numbers or numbers[-1] > _LARGEST or (found and numbers[0] <= found[-1]):
            raise ValueError(f"{run!r} in a list of rising numbers up to 2^32 - 1")
        found += numbers
    return found


# --- who released what, over all rounds -------------------------------------------------------------------------------


class Holders:
    """The clients of a run whose rounds name members: each member once, with the numbers and rounds that it held.

    What a number released in a round that names nobody for it counts for everybody who ever held that number: so no
    member's loss is ever counted too low. A number that nobody held and that released nothing is nobody.
    """

    def __init__(self, rounds: Sequence[RoundReleases], clients: int) -> None:
        named = [spent for spent in rounds if spent.names]
        self._rounds = [spent.round for spent in named]
        held: dict[str, dict[int, int]] = {}  # name -> round -> number
        for spent in named:
            for number, name in spent.names.items():
                held.setdefault(name, {})[spent.round] = number
        bare = {int(number) for _, who in _uploads(rounds) for number in who} - {n for s in named for n in s.names}
        if beyond := [n for n in (*bare, *(n for own in held.values() for n in own.values())) if n >= clients]:
            raise InvalidInput(f"client {beyond[0]} released something, but there are {clients} clients, from 0 on")
        order = sorted(held, key=lambda name: (max(held[name].values()), min(held[name])))
        self._held = {name: held[name] for name in order}
        self.numbers = (*(own[max(own)] for own in self._held.values()), *sorted(bare))  #: the last that each held
        self.labels = (*map(self._label, order), *(f"client {number}" for number in sorted(bare)))
        self._index = {name: index for index, name in enumerate(order)}
        self._of: dict[int, list[int]] = {number: [len(order) + k] for k, number in enumerate(sorted(bare))}
        for name, own in self._held.items():
            for number in set(own.values()):
                self._of.setdefault(number, []).append(self._index[name])

    def of(self, spent: RoundReleases, number: int) -> Sequence[int]:
        """For whom it counts what a number did in a round, as indices of `numbers` and `labels`."""
        name = spent.names.get(number)
        return self._of.get(number, ()) if name is None else (self._index[name],)

    def uploads(self, rounds: Sequence[RoundReleases]) -> Iterator[tuple[tuple[Release, ...], Sequence[int]]]:
        """What was released, and the indices of those who did."""
        for spent in rounds:
            for own, who in zip(spent.releases, spent.clients, strict=True):
                once, again = set[int](), list[int]()
                for one in (one for number in who for one in self.of(spent, number)):
                    (again.append if one in once else once.add)(one)
                if once:
                    yield own, sorted(once)
                yield from ((own, (one,)) for one in again)  # an upload counts a client once, and this is another

    def _label(self, name: str) -> str:
        """The member, and where that is not the whole run its rounds: west (from round 9, in the place of east)."""
        own = sorted(self._held[name])
        first, last = own[0], own[-1]
        if own != [round for round in self._rounds if first <= round <= last]:
            return f"{name} (in rounds {ranges(own)})"
        before = [self._before(self._held[name][first], first)] if first > self._rounds[0] else []
        said = [f"from round {first}"] * bool(before) + [f"in the place of {who}" for who in before if who]
        said += [f"until round {last}"] * (last < self._rounds[-1])
        return f"{name} ({', '.join(said)})" if said else name

    def _before(self, number: int, first: int) -> str:
        """Who held a number last before a round; nobody where it was vacant all the time."""
        held = ((round, name) for name, own in self._held.items() for round, n in own.items() if n == number)
        return max(((round, name) for round, name in held if round < first), default=(0, ""))[1]


@dataclass(frozen=True)
class Group:
    """Clients that released the same things, equally often."""

    clients: tuple[int, ...]
    releases: Counted
    names: tuple[str, ...] = ()  #: of the members, with their rounds, where they have names

    @property
    def name(self) -> str:
        """The clients in words; long lists are cut short, to `1,234 clients (0, 3-7, ...)`."""
        if self.names:
            return ", ".join(self.names)
        listed = ranges(self.clients)
        if len(listed) <= _LONGEST_NAME:
            return f"client {listed}" if len(self.clients) == 1 else f"clients {listed}"
        few = listed[: _LONGEST_NAME - 10].rpartition(", ")[0]
        return f"{len(self.clients):,} clients ({few}, ...)"

    @property
    def who(self) -> ClientSet:
        """The clients as a statement names them where there are others."""
        if self.names:
            return ClientSet(self.names, len(self.names))
        return ClientSet((self.name,), len(self.clients), ranges(self.clients))


def groups(rounds: Sequence[RoundReleases], clients: int) -> list[Group]:
    """Clients by what they released over all rounds: those with most releases first, those with none last.

    What is derived costs nothing and is left out, once it is clear that its client released what it was derived from.
    """
    if not clients:
        return []
    if any(spent.names for spent in rounds):
        holders = Holders(rounds, clients)
        found = _alike(list(holders.uploads(rounds)), len(holders.labels))
        named = [
            Group(
                tuple(holders.numbers[k] for k in own.clients),
                own.releases,
                tuple(holders.labels[k] for k in own.clients),
            )
            for own in found
        ]
    else:
        named = _alike(list(_uploads(rounds)), clients)
    return sorted(named, key=lambda group: (-sum(times for _, times in group.releases), group.clients))


def _alike(made_by: Sequence[tuple[tuple[Release, ...], Sequence[int]]], clients: int) -> list[Group]:
    """So many clients, by what they released."""
    _check_derived(made_by, clients)
    kinds = _Kinds()
    uploads = [(kinds.numbers(own), _indices(who, clients)) for own, who in made_by]
    marks = np.zeros((clients, 2), np.uint64)
    for numbers, who in uploads:
        marks[who] += kinds.mark(numbers)
    _, representatives, which = np.unique(marks, axis=0, return_index=True, return_inverse=True)
    made = _releases_of(representatives, uploads, clients)
    order = np.argsort(which.reshape(-1), kind="stable")
    split = np.split(order, np.cumsum(np.bincount(which.reshape(-1)))[:-1])
    return [
        Group(tuple(who.tolist()), tuple((kinds.samples[kind], times) for kind, times in sorted(own.items())))
        for who, own in zip(split, made, strict=True)
    ]


class _Kinds:
    """Releases that say the same, numbered; each has a mark, so that clients with equal sums released the same.

    Marks have 128 bits: that two different histories have equal sums by chance is not to be feared.
    """

    def __init__(self) -> None:
        self.samples: list[Release] = []
        self._numbers: dict[object, int] = {}

    def numbers(self, releases: Iterable[Release]) -> tuple[int, ...]:
        """The number of each release that costs something."""
        return tuple(self._number(r) for r in releases if not isinstance(r.composition, Derived))

    def _number(self, release: Release) -> int:
        said = (release.what, release.guarantees, release.claimed, release.composition)
        number = self._numbers.setdefault(said, len(self.samples))
        if number == len(self.samples):
            self.samples.append(release)
        return number

    @staticmethod
    def mark(numbers: Iterable[int]) -> NDArray[np.uint64]:
        """The sum of the marks of these releases."""
        digests = b"".join(blake2b(str(number).encode(), digest_size=16).digest() for number in numbers)
        marks: NDArray[np.uint64] = np.frombuffer(digests, np.uint64).reshape(-1, 2)
        return np.asarray(marks.sum(axis=0, dtype=np.uint64))


def _uploads(rounds: Iterable[RoundReleases]) -> Iterator[tuple[tuple[Release, ...], Sequence[int]]]:
    for spent in rounds:
        for own, who in zip(spent.releases, spent.clients, strict=True):
            if len(who):
                yield own, who


def _indices(who: Sequence[int], clients: int) -> NDArray[np.uint32]:
    found = np.frombuffer(who, np.uint32) if isinstance(who, array) else np.array(who, np.uint32)
    if int(found.max()) >= clients:
        raise InvalidInput(f"client {found.max()} released something, but there are {clients} clients, from 0 on")
    return found


def _releases_of(
    representatives: NDArray[np.intp], uploads: Iterable[tuple[tuple[int, ...], NDArray[np.uint32]]], clients: int
) -> list[Counter[int]]:
    """How often each of these clients made each kind of release."""
    place = np.full(clients, -1, np.int64)
    place[representatives] = np.arange(representatives.size)
    made: list[Counter[int]] = [Counter() for _ in representatives]
    for numbers, who in uploads:
        places = place[who]
        for one in places[places >= 0].tolist():
            made[one].update(numbers)
    return made


def _check_derived(uploads: Sequence[tuple[tuple[Release, ...], Sequence[int]]], clients: int) -> None:
    """Refuse a release that was derived from what its client never released."""
    named = {
        name
        for own, _ in uploads
        for release in own
        if isinstance(release.composition, Derived)
        for name in release.composition.releases
    }
    holders = {name: np.zeros(clients, bool) for name in named}
    for own, who in uploads:
        for release in own if holders else ():
            needed = release.composition.releases if isinstance(release.composition, Derived) else ()
            for name in needed:
                if not holders[name][_indices(who, clients)].all():
                    raise UnsupportedLoss(
                        f"release {release.id!r} is derived from {name}, which some of its clients never released; "
                        "record what it was computed from first"
                    )
            if release.id in holders:
                holders[release.id][_indices(who, clients)] = True


def statement(rounds: Sequence[RoundReleases], clients: int, *, delta: float, title: str) -> Statement:
    """The privacy statement of a run: every group of equal clients with figures of its own, and who sent nothing."""
    found = groups(rounds, clients)
    if len(found) == 1 and not found[0].names:
        return Statement.of_groups([(ClientSet(), found[0].releases)], delta=delta, title=title)
    return Statement.of_groups([(group.who, group.releases) for group in found], delta=delta, title=title)

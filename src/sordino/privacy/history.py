"""What clients released in each round of a run: written down a line a round, and summed up in a statement.

Clients of one class release the same, so a round is a few releases and the clients that made them; a hundred thousand
clients take no more memory than their numbers.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.privacy.guarantee import Release, from_json, to_json
from sordino.privacy.statement import Statement

MOST_GROUPS = 24  #: groups of clients a statement tells apart; beyond, the extremes and the middle stand for all


@dataclass(frozen=True)
class Spent:
    """The releases of one round: for every class what it released and who did; and who declined, with the reason."""

    round: int
    releases: tuple[tuple[Release, ...], ...]
    clients: tuple[tuple[int, ...], ...]
    declined: Mapping[int, str] = field(default_factory=dict)

    def to_line(self) -> str:
        """One line of JSON."""
        reasons: dict[str, list[int]] = {}
        for client, reason in self.declined.items():
            reasons.setdefault(reason, []).append(client)
        packed = {
            "round": self.round,
            "releases": [[json.loads(to_json(release)) for release in own] for own in self.releases],
            "clients": [ranges(own) for own in self.clients],
            "declined": {reason: ranges(own) for reason, own in reasons.items()},
        }
        return json.dumps(packed, separators=(",", ":"), allow_nan=False)

    @classmethod
    def from_line(cls, line: str | bytes) -> Spent:
        """The round that `to_line` wrote."""
        try:
            packed = json.loads(line)
            releases = tuple(tuple(from_json(json.dumps(r)) for r in own) for own in packed["releases"])
            clients = tuple(tuple(members(own)) for own in packed["clients"])
            declined = {client: reason for reason, own in packed["declined"].items() for client in members(own)}
            return cls(int(packed["round"]), releases, clients, declined)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(f"a line of the releases' history is damaged ({error}): start the run anew") from None


def ranges(numbers: Iterable[int]) -> str:
    """Whole numbers as people write them: 0-4, 7."""
    ordered = sorted(set(numbers))
    if not ordered:
        return ""
    breaks = [k + 1 for k, (a, b) in enumerate(pairwise(ordered)) if b != a + 1]
    runs = [ordered[a:b] for a, b in pairwise([0, *breaks, len(ordered)])]
    return ", ".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def members(text: str) -> list[int]:
    """The numbers that `ranges` wrote."""
    found: list[int] = []
    for run in text.split(", ") if text else []:
        first, _, last = run.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


@dataclass(frozen=True)
class Group:
    """Clients that released the same things, equally often."""

    clients: tuple[int, ...]
    releases: tuple[Release, ...]

    @property
    def name(self) -> str:
        """The clients in words."""
        listed = ranges(self.clients)
        if len(listed) > 60:
            listed = f"{listed[:50].rpartition(',')[0]} and others, {len(self.clients):,} in all"
        return f"client {listed}" if len(self.clients) == 1 else f"clients {listed}"


def groups(rounds: Sequence[Spent], clients: int) -> list[Group]:
    """Clients by what they released over all rounds, those with most releases first."""
    kinds: dict[tuple[object, ...], int] = {}
    samples: list[Release] = []
    counts: list[NDArray[np.int64]] = []
    for spent in rounds:
        for own, who in zip(spent.releases, spent.clients, strict=True):
            for release in own if who else ():
                key = (release.what, release.guarantees, release.claimed, release.composition)
                if key not in kinds:
                    kinds[key] = len(kinds)
                    samples.append(release)
                    counts.append(np.zeros(clients, np.int64))
                counts[kinds[key]][list(who)] += 1
    if not kinds:
        return []
    patterns, which = np.unique(np.stack(counts, axis=1), axis=0, return_inverse=True)
    found = []
    for number in np.argsort(-patterns.sum(axis=1), kind="stable"):
        who = tuple(np.flatnonzero(which.reshape(-1) == number).tolist())
        releases = tuple(
            replace(sample, id=f"{sample.id}#{turn}")
            for sample, times in zip(samples, patterns[number].tolist(), strict=True)
            for turn in range(times)
        )
        if releases:
            found.append(Group(who, releases))
    return found


def statement(rounds: Sequence[Spent], clients: int, *, delta: float, title: str) -> Statement:
    """The privacy statement of a run.

    Where more than 24 groups of clients would have a row each, those who lost most, least and the median speak for all,
    and are named so.
    """
    found = groups(rounds, clients)
    if len(found) == 1 and len(found[0].clients) == clients:
        return Statement.of(found[0].releases, delta=delta, title=title)
    if len(found) <= MOST_GROUPS:
        return Statement.of({group.name: group.releases for group in found}, delta=delta, title=title)
    ordered = sorted(found, key=_loss_of)
    chosen = {"least": ordered[0], "median": ordered[len(ordered) // 2], "most": ordered[-1]}
    named = {f"{group.name} (lost {word} of all)": group.releases for word, group in chosen.items()}
    return Statement.of(named, delta=delta, title=title)


def _loss_of(group: Group) -> float:
    """A rough order of what was lost, for choosing who is shown; the statement computes the figures."""
    from sordino.privacy.accountant import epsilon

    return sum(min(epsilon(g.loss, 1e-6) for g in release.guarantees) for release in group.releases)


__all__ = ["Group", "Spent", "groups", "members", "ranges", "statement"]

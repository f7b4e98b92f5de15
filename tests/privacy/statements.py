"""Statements of several clients, and of runs that were audited, for tests."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace

from sordino.privacy.guarantee import Adjacency, Adversary, Release
from sordino.privacy.statement import AuditBound, ClientSet, Statement


def statement_of(
    releases: Iterable[Release] | Mapping[str, Iterable[Release]],
    *,
    audits: Mapping[tuple[Adversary, Adjacency], AuditBound] | None = None,
    delta: float = 1e-5,
    title: str = "Privacy statement",
) -> Statement:
    """What one client released, or several by name: those who released the same share their rows, as in a run."""
    if isinstance(releases, Mapping):
        made = Statement.of_groups(_alike(releases), delta=delta, title=title)
    else:
        made = Statement.of(releases, delta=delta, title=title)
    found = audits or {}
    rows = (replace(row, audited=found.get((row.adversary, row.adjacency))) for row in made.rows)
    return replace(made, rows=tuple(rows))


def _alike(clients: Mapping[str, Iterable[Release]]) -> list[tuple[ClientSet, tuple[tuple[Release, int], ...]]]:
    samples: dict[object, Release] = {}
    names: dict[frozenset[tuple[Release, int]], list[str]] = {}
    made: dict[frozenset[tuple[Release, int]], tuple[tuple[Release, int], ...]] = {}
    for name, releases in clients.items():
        counts = Counter(samples.setdefault((r.what, r.guarantees, r.claimed), r) for r in releases)
        key = frozenset(counts.items())
        names.setdefault(key, []).append(name)
        made.setdefault(key, tuple(counts.items()))
    return [(ClientSet(tuple(own), len(own)), made[key]) for key, own in names.items()]

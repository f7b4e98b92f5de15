"""A privacy statement read back from `statement.json`: its rows, and what they come to for each onlooker and change.

Figures keep the words that belong to them: a claimed epsilon and a proven one are different fields all the way to the
page, and each has its delta, adjacency and adversary beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sordino.errors import InvalidInput
from sordino.privacy.statement import NO_MEANINGFUL_PROTECTION, figure

CHANGES = {
    "client": "everything one client sends",
    "record (replace)": "one record exchanged for another",
    "record (add/remove)": "one record added or removed",
    "label": "the label of one record",
    "coordinate": "one value of one upload",
}  #: what each adjacency protects, in words

HANDFUL = 4  #: groups of clients whose proofs are told one by one; of more, those of the least and of the most


@dataclass(frozen=True)
class Figure:
    """An epsilon with its delta."""

    epsilon: float
    delta: float


@dataclass(frozen=True)
class StatedRow:
    """One row of a statement: all figures for one adversary, one adjacency and some clients."""

    adversary: str
    adjacency: str
    proven: Figure
    pure: float
    basis: tuple[str, ...]
    verdict: str
    unproven: tuple[str, ...] = ()
    claimed: Figure | None = None
    formula: str = ""
    claimed_for: str = ""  #: the adjacency that the claim speaks of
    covered: tuple[str, ...] = ()  #: what the claim speaks of, where that is not all that was released
    unclaimed: tuple[str, ...] = ()  #: and what no claim speaks of
    audited: Figure | None = None
    clients: tuple[str, ...] = ()  #: names to be shown; one may stand for many
    count: int = 0

    @classmethod
    def of(cls, packed: Mapping[str, Any]) -> StatedRow:
        """The row that `Statement.to_json` wrote."""
        claimed, audited = packed.get("claimed"), packed.get("audited")
        return cls(
            adversary=packed["adversary"],
            adjacency=packed["adjacency"],
            proven=_figure(packed["proven"]),
            pure=_epsilon(packed["proven_pure"]["epsilon"]),
            basis=tuple(packed["basis"]),
            verdict=packed["verdict"],
            unproven=tuple(packed["proven"].get("unproven", ())),
            claimed=None if claimed is None else _figure(claimed),
            formula="" if claimed is None else claimed["formula"],
            claimed_for="" if claimed is None else claimed.get("adjacency", packed["adjacency"]),
            covered=() if claimed is None else tuple(claimed.get("covered", ())),
            unclaimed=() if claimed is None else tuple(claimed.get("unclaimed", ())),
            audited=None if audited is None else _figure(audited),
            clients=tuple(packed.get("clients", ())),
            count=packed.get("count", len(packed.get("clients", ()))),
        )

    @property
    def kind(self) -> str:
        """The adversary without the number of parties, which may change from round to round."""
        return self.adversary.split("(")[0]

    @property
    def proof(self) -> str:
        """What proves its figure; nothing where nothing does."""
        return "" if math.isinf(self.proven.epsilon) else "; ".join(self.basis)

    @property
    def whose(self) -> str:
        """The clients in a few words; nothing where they are not told apart."""
        names = self.clients
        return ", ".join(names) if len(names) <= 4 else f"{names[0]} and {len(names) - 1:,} more"


@dataclass(frozen=True)
class View:
    """Everything a statement says about one onlooker and one change, over all clients (whose figures may differ)."""

    rows: tuple[StatedRow, ...]

    @property
    def key(self) -> tuple[str, str]:
        """The kind of adversary and the adjacency."""
        return self.rows[0].kind, self.rows[0].adjacency

    @property
    def adversary(self) -> str:
        """Who is looking; `shuffled(19) to shuffled(20)` where the number of parties differs."""
        found = sorted({row.adversary for row in self.rows}, key=lambda name: (len(name), name))
        return found[0] if len(found) == 1 else f"{found[0]} to {found[-1]}"

    @property
    def adjacency(self) -> str:
        """What may change, by its name."""
        return self.rows[0].adjacency

    @property
    def change(self) -> str:
        """What may change, in words."""
        return CHANGES.get(self.adjacency, self.adjacency)

    @property
    def proven(self) -> tuple[float, float]:
        """The smallest and the largest proven epsilon of any client."""
        return _ends(row.proven.epsilon for row in self.rows)

    @property
    def claimed(self) -> tuple[float, float] | None:
        """The smallest and the largest claimed epsilon; none where nothing is claimed."""
        claims = [row.claimed.epsilon for row in self.rows if row.claimed is not None]
        return _ends(claims) if claims else None

    @property
    def deltas(self) -> tuple[float, ...]:
        """The deltas at which the proven epsilons hold."""
        return tuple(sorted({row.proven.delta for row in self.rows}))

    @property
    def claimed_deltas(self) -> tuple[float, ...]:
        """The deltas of the claims."""
        return tuple(sorted({row.claimed.delta for row in self.rows if row.claimed is not None}))

    @property
    def audited(self) -> Figure | None:
        """The largest lower bound that an experiment found."""
        found = [row.audited for row in self.rows if row.audited is not None]
        return max(found, key=lambda bound: bound.epsilon) if found else None

    @property
    def proof(self) -> str:
        """What proves it: each group's own theorems and enumerations; nothing where nothing is proven."""
        return self._each(lambda row: row.proof)

    @property
    def reasons(self) -> str:
        """Why nothing is proven, for each group of which that is so."""
        return self._each(lambda row: "; ".join(row.unproven))

    def _each(self, of: Callable[[StatedRow], str]) -> str:
        """What is to be said of each group: once where it is the same for all, else with whose it is.

        Of many groups, it is said of those who lost least and most.
        """
        alike: dict[str, list[StatedRow]] = {}
        for row in self.rows:
            alike.setdefault(of(row), []).append(row)
        said = {words: rows for words, rows in alike.items() if words}
        if len(alike) == 1 or not all(row.whose for row in self.rows):
            return "; ".join(said)
        if len(said) <= HANDFUL:
            return "; ".join(f"{_names(rows)}: {words}" for words, rows in said.items())
        told = [row for rows in said.values() for row in rows]
        least, most = (choose(told, key=lambda row: row.proven.epsilon) for choose in (min, max))
        return f"least, {least.whose}: {of(least)}; most, {most.whose}: {of(most)}"

    @property
    def claimed_for(self) -> tuple[str, ...]:
        """The adjacencies that the claims speak of, where these are not the view's own."""
        found = dict.fromkeys(row.claimed_for for row in self.rows if row.claimed_for)
        return tuple(name for name in found if name != self.adjacency)

    @property
    def formulas(self) -> str:
        """Where the claim of each group comes from."""
        return self._each(lambda row: row.formula)

    @property
    def covered(self) -> tuple[str, ...]:
        """What claims speak of, where that is not all that was released."""
        return tuple(dict.fromkeys(what for row in self.rows for what in row.covered))

    @property
    def unclaimed(self) -> tuple[str, ...]:
        """And what no claim speaks of."""
        return tuple(dict.fromkeys(what for row in self.rows for what in row.unclaimed))

    @property
    def verdicts(self) -> tuple[str, ...]:
        """What proof and experiment say about the claims."""
        return tuple(dict.fromkeys(row.verdict for row in self.rows))

    @property
    def terms(self) -> str:
        """The words without which its proven figures mean nothing."""
        return f"adjacency {self.adjacency}, against {self.adversary}, {deltas(self.deltas)}"

    @property
    def meaningless(self) -> bool:
        """Whether some client's proven epsilon protects it from nothing worth speaking of."""
        return self.proven[1] > NO_MEANINGFUL_PROTECTION


@dataclass(frozen=True)
class Stated:
    """A whole statement."""

    title: str
    rows: tuple[StatedRow, ...]
    sentences: tuple[str, ...]
    caveats: tuple[str, ...] = ()

    @classmethod
    def of(cls, packed: Mapping[str, Any]) -> Stated:
        """The statement that `Statement.to_json` wrote."""
        try:
            rows = tuple(StatedRow.of(row) for row in packed["rows"])
            return cls(str(packed["title"]), rows, tuple(packed["sentences"]), tuple(packed.get("caveats", ())))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InvalidInput(f"statement.json is damaged or of another version: {error!r}") from None

    @property
    def views(self) -> tuple[View, ...]:
        """The rows by onlooker and change, in the order of the statement."""
        return views(self.rows)


def views(rows: Iterable[StatedRow]) -> tuple[View, ...]:
    """Rows put together by onlooker and change, in the order in which these first occur."""
    grouped: dict[tuple[str, str], list[StatedRow]] = {}
    for row in rows:
        grouped.setdefault((row.kind, row.adjacency), []).append(row)
    return tuple(View(tuple(own)) for own in grouped.values())


def readable(epsilon: float) -> str:
    """Three significant digits as in the statement, but 2,590 rather than 2.59e3."""
    if not 999.5 <= epsilon < 9.995e6:
        return figure(epsilon)
    return f"{float(f'{epsilon:.3g}'):,.0f}"


def span(ends: tuple[float, float]) -> str:
    """`3`, or `2 to 8` where clients differ."""
    low, high = map(readable, ends)
    return low if low == high else f"{low} to {high}"


def deltas(values: Sequence[float]) -> str:
    """`delta 1e-5`, or several."""
    return f"delta {' or '.join(figure(value) for value in values)}"


def _names(rows: Sequence[StatedRow]) -> str:
    """These clients in a few words."""
    names = list(dict.fromkeys(row.whose for row in rows))
    return ", ".join(names) if len(names) <= HANDFUL else f"{names[0]} and {len(names) - 1:,} more"


def _figure(packed: Mapping[str, Any]) -> Figure:
    return Figure(_epsilon(packed["epsilon"]), float(packed["delta"]))


def _epsilon(packed: float | str) -> float:
    return math.inf if packed in ("infinity", "infinite") else float(packed)


def _ends(values: Iterable[float]) -> tuple[float, float]:
    kept = list(values)
    return min(kept), max(kept)


__all__ = ["CHANGES", "Figure", "Stated", "StatedRow", "View", "deltas", "readable", "span", "views"]

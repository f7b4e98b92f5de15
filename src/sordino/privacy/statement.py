"""The privacy statement of a run: claimed, proven and audited epsilon side by side, with the trust each one needs.

A statement is for people. Every epsilon in it stands beside what may change (adjacency), who is looking (adversary),
its delta and its basis; plain sentences say what that amounts to. It speaks of a schedule that is over or was fixed in
advance; a client's enforcement is `sordino.privacy.accountant.Account`.

A guarantee of `RandomizedBit` against `shuffled(n)` says that each of these bits is mixed among those of n clients: the
statement computes the amplification from it, and gives what an attacker surely reaches beside what is proven.
"""

from __future__ import annotations

import html
import json
import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sordino.errors import InvalidInput, SordinoError, UnsupportedLoss
from sordino.privacy.accountant import Composed, bit_epsilon, compose, epsilon, implies
from sordino.privacy.amplification import SMALLEST_DELTA, Interval, shuffled_bits
from sordino.privacy.guarantee import (
    SERVER,
    Adjacency,
    Adversary,
    Claim,
    Derived,
    Guarantee,
    Infinite,
    PoissonGaussian,
    RandomizedBit,
    Release,
)

NO_MEANINGFUL_PROTECTION = 20.0  #: epsilon above which e^epsilon is half a billion: the words say so

_ADJACENCIES = (
    Adjacency.CLIENT,
    Adjacency.RECORD_REPLACE,
    Adjacency.RECORD_ADD_REMOVE,
    Adjacency.LABEL,
    Adjacency.COORDINATE,
)
_ADVERSARIES = ("server", "shuffled", "summed", "model reader")
_CHANGES = {
    Adjacency.CLIENT: "everything one client sends",
    Adjacency.RECORD_REPLACE: "one record exchanged for another",
    Adjacency.RECORD_ADD_REMOVE: "one record added or removed",
    Adjacency.LABEL: "the label of one record",
    Adjacency.COORDINATE: "one value of one upload",
}


class ProofContradicted(SordinoError):
    """An experiment found more leakage than a proof allows: a bug in the mechanism, the proof or the audit."""


@dataclass(frozen=True)
class Audited:
    """An experiment's lower bound on epsilon at `delta`, right with this confidence."""

    epsilon: float
    confidence: float
    trials: int
    attack: str
    delta: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.epsilon) and self.epsilon >= 0):
            raise InvalidInput(f"an audited epsilon must be a finite number >= 0, got {self.epsilon!r}")
        if not 0 < self.confidence < 1:
            raise InvalidInput(f"a confidence must lie strictly between 0 and 1, got {self.confidence!r}")
        if self.trials < 1:
            raise InvalidInput(f"an audit needs at least one trial, got {self.trials!r}")
        if not 0 <= self.delta < 1:
            raise InvalidInput(f"an audit's delta must lie in [0, 1), got {self.delta!r}")


@dataclass(frozen=True)
class Row:
    """All figures for one adversary and one adjacency, and the clients they hold for (none: not told apart)."""

    adversary: Adversary
    adjacency: Adjacency
    delta: float
    proven: float  #: epsilon at `delta`
    pure: float  #: epsilon at delta 0
    basis: tuple[str, ...]
    unproven: tuple[str, ...] = ()  #: why nothing is proven, where nothing is
    claimed: Claim | None = None
    proven_as_claimed: float = math.inf  #: epsilon proven at the claim's own delta
    audited: Audited | None = None
    clients: tuple[str, ...] = ()
    reached: float | None = None  #: epsilon that an attacker behind a shuffler surely reaches at `delta`

    @property
    def verdict(self) -> str:
        """What proof and experiment say about the claim."""
        if self.claimed is None:
            return "no claim"
        if self._refuted:
            return "claim refuted by experiment"
        if self.proven_as_claimed > self.claimed.epsilon * (1 + 1e-9):
            return "claim not supported"
        return "claim proven"

    @property
    def _refuted(self) -> bool:
        if self.claimed is None or self.audited is None:
            return False
        return self.audited.delta >= self.claimed.delta and self.audited.epsilon > self.claimed.epsilon

    @property
    def sentences(self) -> tuple[str, ...]:
        """The row in plain words."""
        said = [self._proven_sentence()]
        if self.claimed is not None:
            said.append(self._claim_sentence(self.claimed))
        if self.audited is not None:
            said.append(self._audit_sentence(self.audited))
        return tuple(said)

    def _proven_sentence(self) -> str:
        subject = f"{_capital(_CHANGES[self.adjacency])}, seen by {_who(self.adversary)}{_whose(self.clients)}"
        if math.isinf(self.proven):
            return f"{subject}: nothing is proven (epsilon is infinite), because {'; '.join(self._reasons())}."
        words = (
            f"{subject}: proven epsilon {figure(self.proven)} at delta {figure(self.delta)}, by {'; '.join(self.basis)}"
        )
        if self.reached is not None:
            words += f", where an attacker surely reaches {figure(self.reached)}"
        if self.proven > NO_MEANINGFUL_PROTECTION:
            words += ": no meaningful protection"
        return f"{words}."

    def _reasons(self) -> tuple[str, ...]:
        return self.unproven or (f"no bound holds at delta {figure(self.delta)}",)

    def _claim_sentence(self, claim: Claim) -> str:
        words = f"Claimed: epsilon {figure(claim.epsilon)} at delta {figure(claim.delta)} ({claim.formula})"
        proven = f"proven at that delta is {figure(self.proven_as_claimed)}"
        return f"{words}; {self.verdict}; {proven}, for this change and this onlooker."

    def _audit_sentence(self, audited: Audited) -> str:
        return (
            f"Audited: epsilon is at least {figure(audited.epsilon)} at delta {figure(audited.delta)}, with "
            f"{100 * audited.confidence:.4g} % confidence, from {audited.trials} trials ({audited.attack}). "
            "A small lower bound is no evidence of privacy."
        )


@dataclass(frozen=True)
class Statement:
    """Rows of figures and the sentences around them; made with `Statement.of`."""

    rows: tuple[Row, ...]
    delta: float
    title: str = "Privacy statement"

    @classmethod
    def of(
        cls,
        releases: Iterable[Release] | Mapping[str, Iterable[Release]],
        *,
        delta: float = 1e-5,
        audits: Mapping[tuple[Adversary, Adjacency], Audited] | None = None,
        title: str = "Privacy statement",
    ) -> Statement:
        """State what these releases protect: all of one client, or a mapping from each client to its own.

        With a mapping the statement is a vector: clients with equal figures share a row, and no figure is averaged.
        """
        groups = _alike(releases) if isinstance(releases, Mapping) else [((), tuple(releases))]
        rows = [row for clients, own in groups for row in _rows(clients, own, delta, audits or {})]
        return cls(tuple(sorted(rows, key=_reading_order)), delta, title)

    @property
    def trust(self) -> tuple[str, ...]:
        """Who is trusted with what, one sentence per adversary."""
        return tuple(dict.fromkeys(_trust(row.adversary) for row in self.rows))

    @property
    def sentences(self) -> tuple[str, ...]:
        """Everything the statement says in words."""
        said = [*self.trust, *(sentence for row in self.rows for sentence in row.sentences)]
        if len({row.clients for row in self.rows}) > 1:
            said.append(
                "Clients have guarantees of their own: neither the mean nor the largest stands for all of them."
            )
        return tuple(said)

    def to_text(self, width: int = 110) -> str:
        """A plain table with its notes and sentences, for a terminal."""
        lines = [self.title, "=" * len(self.title), "", *_table(self._cells()), "", "Basis of each proof"]
        lines += [wrapped for note in self._notes() for wrapped in textwrap.wrap(note, width, subsequent_indent="    ")]
        lines += ["", "In words"]
        for sentence in self.sentences:
            lines += textwrap.wrap(sentence, width, initial_indent="- ", subsequent_indent="  ")
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Any]:
        """All figures unrounded, ready for `json.dumps`; infinity is the text "infinity"."""
        packed: dict[str, Any] = {
            "title": self.title,
            "delta": self.delta,
            "rows": [_packed(row) for row in self.rows],
            "sentences": list(self.sentences),
        }
        json.dumps(packed, allow_nan=False)
        return packed

    def to_page(self) -> str:
        """A whole page to open or print: the fragment of `to_html` with its style, and nothing from elsewhere."""
        return (
            f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            f'<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{html.escape(self.title)}</title>\n<style>{_STYLE}</style>\n</head>\n"
            f"<body>\n{self.to_html()}</body>\n</html>\n"
        )

    def to_html(self) -> str:
        """A fragment with no scripts, styles or links of its own; every text is escaped."""
        head, *body = self._cells()
        rows = "\n".join(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in cells)}</tr>" for cells in body)
        return (
            f'<section class="privacy-statement">\n<h2>{html.escape(self.title)}</h2>\n<table>\n'
            f"<thead><tr>{''.join(f'<th>{html.escape(c)}</th>' for c in head)}</tr></thead>\n"
            f"<tbody>\n{rows}\n</tbody>\n</table>\n<h3>Basis of each proof</h3>\n{_html_list(self._notes())}\n"
            f"<h3>In words</h3>\n{_html_list(self.sentences)}\n</section>\n"
        )

    def _cells(self) -> list[tuple[str, ...]]:
        """The table with its header; a column that nobody fills is left out."""
        head = ("clients", "what may change", "who is looking", "claimed", f"proven (delta {figure(self.delta)})",
                "proven (pure)", "audited", "verdict")  # fmt: skip
        rows = [head, *(self._row_cells(number, row) for number, row in enumerate(self.rows, 1))]
        used = [any(row[column] for row in rows[1:]) for column in range(len(head))]
        return [tuple(cell for cell, keep in zip(row, used, strict=True) if keep) for row in rows]

    @staticmethod
    def _row_cells(number: int, row: Row) -> tuple[str, ...]:
        return (
            _named(row.clients),
            str(row.adjacency),
            str(row.adversary),
            "" if row.claimed is None else figure(row.claimed.epsilon),
            f"{figure(row.proven)} [{number}]",
            figure(row.pure),
            "" if row.audited is None else f">= {figure(row.audited.epsilon)}",
            row.verdict,
        )

    def _notes(self) -> tuple[str, ...]:
        return tuple(f"[{number}] {'; '.join(row.basis) or 'none'}" for number, row in enumerate(self.rows, 1))


_STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 66rem; margin: 2rem auto; padding: 0 1rem; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { text-align: left; padding: .45rem .7rem; border-bottom: 1px solid #8886; }
th { font-weight: 600; border-bottom-width: 2px; }
td:last-child { font-weight: 600; }
ul { padding-left: 1.2rem; }
li { margin: .35rem 0; }
h2 { margin-bottom: .8rem; } h3 { margin: 1.6rem 0 .4rem; }
"""


def figure(value: float) -> str:
    """Three significant digits: 0.444, 12.3, 1.42e3, 2.18e5; infinity in words."""
    if math.isinf(value):
        return "infinite"
    if value == 0:
        return "0"
    if 1e-3 <= value < 999.5:
        return f"{value:.3g}"
    digits, exponent = f"{value:.2e}".split("e")
    return f"{digits.rstrip('0').rstrip('.')}e{int(exponent)}"


# --- rows -----------------------------------------------------------------------------------------------------------


def _alike(clients: Mapping[str, Iterable[Release]]) -> list[tuple[tuple[str, ...], tuple[Release, ...]]]:
    """Clients whose releases say the same, so that each set of figures is computed once."""
    groups: dict[object, tuple[list[str], tuple[Release, ...]]] = {}
    for name, releases in clients.items():
        own = tuple(releases)
        key = tuple((r.what, r.guarantees, r.claimed, isinstance(r.composition, Derived)) for r in own)
        groups.setdefault(key, ([], own))[0].append(name)
    return [(tuple(names), own) for names, own in groups.values()]


def _rows(
    clients: tuple[str, ...],
    releases: Sequence[Release],
    delta: float,
    audits: Mapping[tuple[Adversary, Adjacency], Audited],
) -> list[Row]:
    spending = _spending(releases)
    views = {(g.adversary, g.adjacency): None for release in spending for g in release.guarantees}
    if stray := set(audits) - set(views):
        pairs = ", ".join(f"({adversary}, {adjacency})" for adversary, adjacency in stray)
        raise InvalidInput(f"an audit was given for {pairs}, of which no release says anything")
    return [_row(clients, spending, *view, delta, audits.get(view)) for view in views]


def _spending(releases: Sequence[Release]) -> list[Release]:
    """The releases that cost something; what is derived must name releases of this statement."""
    known = {release.id for release in releases}
    for release in releases:
        if isinstance(release.composition, Derived) and (missing := set(release.composition.releases) - known):
            raise UnsupportedLoss(
                f"release {release.id!r} is derived from {', '.join(sorted(missing))}, which this statement does not "
                "contain; add what it was computed from"
            )
    return [release for release in releases if not isinstance(release.composition, Derived)]


def _row(
    clients: tuple[str, ...],
    releases: Sequence[Release],
    adversary: Adversary,
    adjacency: Adjacency,
    delta: float,
    audited: Audited | None,
) -> Row:
    chosen = [_best(release, adversary, adjacency, delta) for release in releases]
    proof = _Proof.of(chosen, adjacency)
    claim = _claim(releases, adversary, adjacency)
    row = Row(
        adversary,
        adjacency,
        delta,
        proven=proof.epsilon(delta),
        pure=proof.epsilon(0.0),
        basis=tuple(dict.fromkeys(g.basis for g in chosen)),
        unproven=tuple(dict.fromkeys(why for part in proof.parts for why in part.unproven)),
        claimed=claim,
        proven_as_claimed=math.inf if claim is None else proof.epsilon(claim.delta),
        audited=audited,
        clients=clients,
        reached=proof.reached(delta),
    )
    if audited is not None and audited.epsilon > (bound := proof.epsilon(audited.delta)):
        raise ProofContradicted(
            f"{adjacency} against {adversary}: audited epsilon >= {audited.epsilon:.6g} ({audited.attack}, confidence "
            f"{audited.confidence}) is above the proven {bound:.6g} at delta {audited.delta:g}. The mechanism, the "
            "proof or the audit is wrong: do not publish this statement"
        )
    return row


@dataclass(frozen=True)
class _Proof:
    """Parts of which the worst counts, and how many equal bits were shuffled among how many clients, if they were."""

    parts: tuple[Composed, ...]
    shuffled: tuple[float, int, int] | None = None  #: (epsilon of a bit, clients, bits)

    @classmethod
    def of(cls, chosen: Sequence[Guarantee], adjacency: Adjacency) -> _Proof:
        """Everything adds up, save that one value of one upload occurs in a single release."""
        groups = [[g] for g in chosen] if adjacency is Adjacency.COORDINATE else [list(chosen)]
        parts = tuple(compose([g.loss for g in group], adjacency=_sampling_adjacency(group)) for group in groups)
        return cls(parts, _shuffled_bits(chosen, max(groups, key=_bit_count)) if chosen else None)

    def epsilon(self, delta: float) -> float:
        plain = max((part.epsilon(delta) for part in self.parts), default=0.0)
        interval = self._behind_shuffler(delta)
        return plain if interval is None else min(plain, interval.upper)

    def reached(self, delta: float) -> float | None:
        interval = self._behind_shuffler(delta)
        return None if interval is None else interval.lower

    def _behind_shuffler(self, delta: float) -> Interval | None:
        if self.shuffled is None or delta < SMALLEST_DELTA:
            return None
        each, clients, bits = self.shuffled
        return shuffled_bits(each, clients, delta, bits)


def _shuffled_bits(chosen: Sequence[Guarantee], largest: Sequence[Guarantee]) -> tuple[float, int, int] | None:
    """Amplification applies where every release is of equal bits that pass through one and the same shuffler."""
    adversaries = {g.adversary for g in chosen}
    thresholds = {g.loss.t_min if isinstance(g.loss, RandomizedBit) else None for g in chosen}
    (adversary, *others), (t_min, *mixed) = adversaries, thresholds
    if others or mixed or t_min is None or adversary.kind != "shuffled" or adversary.parties is None:
        return None
    return bit_epsilon(t_min), adversary.parties, _bit_count(largest)


def _bit_count(group: Sequence[Guarantee]) -> int:
    return sum(g.loss.count for g in group if isinstance(g.loss, RandomizedBit))


def _sampling_adjacency(group: Sequence[Guarantee]) -> Adjacency:
    sampled = {g.adjacency for g in group if isinstance(g.loss, PoissonGaussian)}
    return Adjacency.RECORD_ADD_REMOVE if sampled == {Adjacency.RECORD_ADD_REMOVE} else Adjacency.CLIENT


def _best(release: Release, adversary: Adversary, adjacency: Adjacency, delta: float) -> Guarantee:
    """The strongest of a release's guarantees for this adversary and adjacency; of equals, the most specific."""
    usable = [
        g for g in release.guarantees if _seen_through(g.adversary, adversary) and implies(g.adjacency, adjacency)
    ]
    if not usable:
        why = f"{release.what} has no guarantee for {_CHANGES[adjacency]} against {_who(adversary)}"
        return Guarantee(adversary, adjacency, Infinite(why), "none")

    def strength(g: Guarantee) -> tuple[float, bool, bool]:
        return epsilon(g.loss, delta, adjacency=g.adjacency), g.adversary != adversary, g.adjacency != adjacency

    return min(usable, key=strength)


def _seen_through(given: Adversary, wanted: Adversary) -> bool:
    """What holds against the server holds against all who see less; a model reader sees least."""
    return given in (SERVER, wanted) or wanted.kind == "model reader"


def _claim(releases: Sequence[Release], adversary: Adversary, adjacency: Adjacency) -> Claim | None:
    """The claims about this adversary and adjacency, put together as their papers do.

    They add up, but one for a whole schedule is made once, and for one value of one upload the largest counts.
    """
    claims = [release.claimed for release in releases]
    fitting = [
        claim
        for claim in claims
        if claim is not None and claim.adversary.kind == adversary.kind and implies(claim.adjacency, adjacency)
    ]
    if not fitting or len(fitting) < len(claims):
        return None
    once = dict.fromkeys(claim for claim in fitting if claim.covers == "schedule")
    made = [claim for claim in fitting if claim.covers == "release"] + list(once)
    formula = "; ".join(dict.fromkeys(claim.formula for claim in made))
    if adjacency is Adjacency.COORDINATE:
        return Claim(max(c.epsilon for c in made), max(c.delta for c in made), formula)
    return Claim(math.fsum(c.epsilon for c in made), min(math.fsum(c.delta for c in made), 1 - 1e-16), formula)


def _reading_order(row: Row) -> tuple[int, int, int]:
    return _ADVERSARIES.index(row.adversary.kind), row.adversary.parties or 0, _ADJACENCIES.index(row.adjacency)


# --- words ----------------------------------------------------------------------------------------------------------


def _who(adversary: Adversary) -> str:
    match adversary.kind:
        case "server":
            return "the server"
        case "shuffled":
            return f"a server behind a shuffler of {adversary.parties} clients"
        case "summed":
            return f"a server behind a secure sum with {adversary.parties} honest clients"
        case _:
            return "a reader of the model"


def _trust(adversary: Adversary) -> str:
    match adversary.kind:
        case "server":
            return "Against the server: nobody is trusted but the client itself; the server is not trusted."
        case "shuffled":
            return (
                "Behind the shuffler: the server is not trusted; the shuffler is, and that "
                f"{adversary.parties} clients send honest reports through it."
            )
        case "summed":
            return (
                "Behind the secure sum: the server is not trusted; the secure sum is, with at least "
                f"{adversary.parties} honest clients in it."
            )
        case _:
            return "Against readers of the model: the server is trusted; whoever sees the trained model is not."


def _named(clients: tuple[str, ...]) -> str:
    return ", ".join(clients) if len(clients) <= 4 else f"{clients[0]} and {len(clients) - 1} more"


def _whose(clients: tuple[str, ...]) -> str:
    return f" ({_named(clients)})" if clients else ""


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


# --- renderings -----------------------------------------------------------------------------------------------------


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def _html_list(items: Iterable[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{html.escape(item)}</li>" for item in items) + "\n</ul>"


def _packed(row: Row) -> dict[str, Any]:
    claimed, audited = row.claimed, row.audited
    return {
        "clients": list(row.clients),
        "adversary": str(row.adversary),
        "adjacency": str(row.adjacency),
        "basis": list(row.basis),
        "claimed": None
        if claimed is None
        else {"epsilon": claimed.epsilon, "delta": claimed.delta, "formula": claimed.formula},
        "proven": {"epsilon": _number(row.proven), "delta": row.delta, "unproven": list(row.unproven)},
        "proven_pure": {"epsilon": _number(row.pure), "delta": 0.0},
        "reached": row.reached,
        "audited": None
        if audited is None
        else {
            "epsilon": audited.epsilon,
            "delta": audited.delta,
            "confidence": audited.confidence,
            "trials": audited.trials,
            "attack": audited.attack,
        },
        "verdict": row.verdict,
    }


def _number(value: float) -> float | str:
    return "infinity" if math.isinf(value) else value


__all__ = ["NO_MEANINGFUL_PROTECTION", "Audited", "ProofContradicted", "Row", "Statement", "figure"]

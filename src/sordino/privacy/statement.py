"""The privacy statement of a run: claimed, proven and audited epsilon side by side, with the trust each one needs.

A statement is for people. Every epsilon in it stands beside what may change (adjacency), who is looking (adversary),
its delta and its basis; plain sentences say what that amounts to. It speaks of a schedule that is over or was fixed in
advance; a client's enforcement is `sordino.privacy.accountant.Account`.

Where clients have guarantees of their own the figures are a vector: every group of equal clients has its rows, all of
them are in `to_json`, and people read spans with the names of those who have the least and the most.

A guarantee of `RandomizedBit` against `shuffled(n)` says that each of these bits is mixed among those of n clients: the
statement computes the amplification from it, and gives what an attacker surely reaches beside what is proven. Against
`summed(h)` it says that each bit is counted among those of at least h honest clients, which reveals as much.
"""

from __future__ import annotations

import html
import json
import math
import textwrap
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sordino.errors import InvalidInput, SordinoError, UnsupportedLoss
from sordino.privacy.accountant import Composed, bit_epsilon, compose, implies
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

Counted = Sequence[tuple[Release, int]]  #: releases, each with how often it was made

_HANDFUL = 4  #: groups of clients that a table lists one by one; more are shown as a span with its ends

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

    @property
    def sentence(self) -> str:
        """The bound in plain words."""
        return (
            f"Audited: epsilon is at least {figure(self.epsilon)} at delta {figure(self.delta)}, with "
            f"{100 * self.confidence:.4g} % confidence, from {self.trials} trials ({self.attack}). "
            "A small lower bound is no evidence of privacy."
        )


@dataclass(frozen=True)
class Clients:
    """Whom figures hold for; without names, for a client like all others."""

    names: tuple[str, ...] = ()  #: to be shown; a name may stand for many clients
    count: int = 0
    members: str = ""  #: all of them, where the names do not say it


@dataclass(frozen=True)
class Row:
    """All figures for one adversary and one adjacency, and the clients they hold for."""

    adversary: Adversary
    adjacency: Adjacency
    delta: float
    proven: float  #: epsilon at `delta`
    pure: float  #: epsilon at delta 0
    basis: tuple[str, ...]
    unproven: tuple[str, ...] = ()  #: why nothing is proven, where nothing is
    claimed: Claim | None = None
    proven_as_claimed: float = math.inf  #: epsilon proven at the claim's own delta, of what is claimed
    covered: tuple[str, ...] = ()  #: what the claim speaks of, where that is not all that was released
    unclaimed: tuple[str, ...] = ()  #: and what no claim speaks of
    audited: Audited | None = None
    who: Clients = Clients()
    reached: float | None = None  #: epsilon that an attacker behind a shuffler surely reaches at `delta`

    @property
    def clients(self) -> tuple[str, ...]:
        """The clients' names; none where they are not told apart."""
        return self.who.names

    @property
    def verdict(self) -> str:
        """What proof and experiment say about the claim.

        One that leaves out a part of what was released is never proven here, even where it holds of its own part.
        """
        if self.claimed is None:
            return "no claim"
        if self._refuted:
            return "claim refuted by experiment"
        if self.proven_as_claimed > self.claimed.epsilon * (1 + 1e-9):
            return "claim not supported"
        return "partly claimed" if self.unclaimed else "claim proven"

    @property
    def _refuted(self) -> bool:
        """An experiment attacks all that was released: it says nothing about a claim of a part."""
        if self.claimed is None or self.audited is None or self.unclaimed:
            return False
        return self.audited.delta >= self.claimed.delta and self.audited.epsilon > self.claimed.epsilon

    @property
    def sentences(self) -> tuple[str, ...]:
        """The row in plain words."""
        said = [self._proven_sentence()]
        if self.claimed is not None:
            said.append(self._claim_sentence(self.claimed))
        if self.audited is not None:
            said.append(self.audited.sentence)
        return tuple(said)

    def _proven_sentence(self) -> str:
        whose = f" ({_named(self.who)})" if self.clients else ""
        subject = f"{_capital(_CHANGES[self.adjacency])}, seen by {_onlooker(self.adversary)}{whose}"
        if math.isinf(self.proven):
            return f"{subject}: nothing is proven (epsilon is infinite), because {'; '.join(self.reasons)}."
        words = (
            f"{subject}: proven epsilon {figure(self.proven)} at delta {figure(self.delta)}, by {'; '.join(self.basis)}"
        )
        if self.reached is not None:
            words += f", where an attacker surely reaches {figure(self.reached)}"
        if self.proven > NO_MEANINGFUL_PROTECTION:
            words += ": no meaningful protection"
        return f"{words}."

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the proven epsilon is infinite, where it is."""
        return self.unproven or (f"no bound holds at delta {figure(self.delta)}",)

    def _claim_sentence(self, claim: Claim) -> str:
        words = f"epsilon {figure(claim.epsilon)} at delta {figure(claim.delta)} ({claim.formula})"
        proven = f"proven {_of_part(self.unclaimed)}at that delta is {figure(self.proven_as_claimed)}"
        return f"{_claimed_of((self,))}{words}; {self.verdict}; {proven}, for this change and this onlooker."


@dataclass(frozen=True)
class Line:
    """One line of the table: what is shown in its columns, and the basis of its proof."""

    cells: tuple[str, ...]  #: clients, change, onlooker, claimed, proven, pure, audited, verdict
    basis: str = ""


@dataclass(frozen=True)
class View:
    """All figures for one kind of onlooker and one change: a single row, or one for each group of clients."""

    rows: tuple[Row, ...]

    @property
    def adjacency(self) -> Adjacency:
        """What may change."""
        return self.rows[0].adjacency

    @property
    def onlooker(self) -> str:
        """Who is looking, in words."""
        return _onlooker(*self._adversaries)

    @property
    def trust(self) -> str:
        """Who is trusted with what."""
        return _trust(*self._adversaries)

    @property
    def least(self) -> tuple[Row, ...]:
        """Those who lost least."""
        return _tied(self.rows, min)

    @property
    def most(self) -> tuple[Row, ...]:
        """Those who lost most."""
        return _tied(self.rows, max)

    @property
    def unproven(self) -> tuple[Row, ...]:
        """Those for whom nothing is proven."""
        return tuple(row for row in self.rows if math.isinf(row.proven))

    @property
    def bare(self) -> bool:
        """Whether nothing is proven for anybody, nothing is claimed and nothing was found."""
        return len(self.unproven) == len(self.rows) and not any(row.claimed or row.audited for row in self.rows)

    @property
    def sentences(self) -> tuple[str, ...]:
        """The view in plain words: figures that differ are given with their ends, and whose these are."""
        if len(self.rows) == 1:
            return self.rows[0].sentences
        said = [] if len(self.unproven) == len(self.rows) else [self._proven_sentence()]
        if self.unproven:
            said.append(self.unproven_sentence(_CHANGES[self.adjacency]))
        if any(row.claimed for row in self.rows):
            said.append(self._claim_sentence())
        audits = dict.fromkeys(row.audited for row in self.rows)
        return tuple(said) + tuple(audited.sentence for audited in audits if audited is not None)

    @property
    def lines(self) -> tuple[Line, ...]:
        """The view's lines in the table; beyond a handful of groups a span, and whose its ends are."""
        if len(self.rows) <= _HANDFUL:
            return tuple(Line(_cells(row), _basis(row)) for row in self.rows)
        ends = {"least": self.least, "most": self.most}
        alike = self.least == self.most  # nobody lost less than anybody else, whatever was claimed
        if alike or len({row.basis for row in self.rows}) == 1:
            basis = _few(map(_basis, self.rows))
        else:
            basis = "; ".join(f"{end}, {_whose(rows)}: {_basis(rows[0])}" for end, rows in ends.items())
        span = Line((_people(self.rows), str(self.adjacency), self._adversary, *self._spans()), basis)
        if alike or not any(" .. " in cell for cell in span.cells):
            return (span,)
        return (span, *(_end_line(end, rows, span) for end, rows in ends.items()))

    @property
    def _adversaries(self) -> tuple[Adversary, Adversary]:
        """Those with the fewest and the most parties."""
        parties = [row.adversary.parties or 0 for row in self.rows]
        return self.rows[parties.index(min(parties))].adversary, self.rows[parties.index(max(parties))].adversary

    @property
    def _adversary(self) -> str:
        fewest, most = self._adversaries
        return str(most) if fewest == most else f"{most.kind}({fewest.parties} .. {most.parties})"

    def _spans(self) -> tuple[str, ...]:
        """Claimed, proven, pure, audited and verdict of everybody."""
        claimed = [row.claimed.epsilon for row in self.rows if row.claimed is not None]
        in_part = " (in part)" if any(row.unclaimed for row in self.rows) else ""
        audited = [row.audited.epsilon for row in self.rows if row.audited is not None]
        some = 0 < len(audited) < len(self.rows)
        whose = f" ({_whose([row for row in self.rows if row.audited])})" if some else ""
        verdicts = self._verdicts()
        return (
            f"{_span(claimed)}{in_part}",
            _span([row.proven for row in self.rows]),
            _span([row.pure for row in self.rows]),
            f">= {_span(audited)}{whose}" if audited else "",
            ", ".join(verdicts if len(verdicts) == 1 else (f"{verdict} ({n:,})" for verdict, n in verdicts.items())),
        )

    def _verdicts(self) -> dict[str, int]:
        """Verdicts with the number of clients each is about."""
        found: Counter[str] = Counter()
        for row in self.rows:
            found[row.verdict] += row.who.count
        return dict(found)

    def _proven_sentence(self) -> str:
        rows = [row for row in self.rows if math.isfinite(row.proven)]
        least, most = _tied(rows, min), _tied(rows, max)
        at, whom = f"at delta {figure(self.rows[0].delta)}", _share(rows, self.rows)
        if least[0].proven == most[0].proven:
            bases = _few(basis for row in rows for basis in row.basis)
            words = f"proven epsilon {figure(least[0].proven)} {at} for each of {whom}, by {bases}"
        else:
            words = f"what is proven differs between {whom}, {at} from {_end(least)} to {_end(most)}"
        return f"{_capital(_CHANGES[self.adjacency])}, seen by {self.onlooker}: {words}{_worth(rows)}."

    def unproven_sentence(self, changes: str) -> str:
        """That nothing is proven about these changes, for whom and why."""
        rows = self.unproven
        whom = ""
        if len(rows) < len(self.rows):
            whom = f" for {_share(rows, self.rows)} ({_few(_named(row.who) for row in rows)})"
        elif rows[0].clients:
            whom = " for any client" if len(rows) > 1 else f" for {_named(rows[0].who)}"
        reasons = _few(why for row in rows for why in row.reasons)
        subject = f"{_capital(changes)}, seen by {self.onlooker}"
        return f"{subject}: nothing is proven (epsilon is infinite){whom}, because {reasons}."

    def _claim_sentence(self) -> str:
        rows = [row for row in self.rows if row.claimed is not None]
        formulas = _few(row.claimed.formula for row in rows if row.claimed is not None)
        delta = _span([row.claimed.delta for row in rows if row.claimed is not None], " to ")
        verdicts = self._verdicts()
        judged = ", ".join(
            f"{verdict} for {'every client' if len(verdicts) == 1 else f'{n:,} of {_people(self.rows)}'}"
            for verdict, n in verdicts.items()
        )
        proven = _spread(rows, lambda row: row.proven_as_claimed)
        of_part = _of_part(*(row.unclaimed for row in rows))
        return (
            f"{_claimed_of(rows)}epsilon {_spread(rows, _claimed)} at delta {delta} ({formulas}); {judged}; proven "
            f"{of_part}at the claim's delta is {proven}, for this change and this onlooker."
        )


@dataclass(frozen=True)
class Statement:
    """Rows of figures and the sentences around them; made with `Statement.of`."""

    rows: tuple[Row, ...]
    delta: float
    title: str = "Privacy statement"
    silent: Clients | None = None  #: those who released nothing, where there are such
    caveats: tuple[str, ...] = ()  #: what the figures leave out: the first that is said
    simulated: bool = False  #: whether the run's noise follows from a seed

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
        groups = _alike(releases) if isinstance(releases, Mapping) else [(Clients(), _counted(releases))]
        return cls.of_groups(groups, delta=delta, audits=audits, title=title)

    @classmethod
    def of_groups(
        cls,
        groups: Iterable[tuple[Clients, Counted]],
        *,
        delta: float = 1e-5,
        audits: Mapping[tuple[Adversary, Adjacency], Audited] | None = None,
        title: str = "Privacy statement",
    ) -> Statement:
        """State what groups of clients released, each thing with how often; nothing derived is among it."""
        known = list(groups)
        if len(known) > 1 and not all(who.names for who, _ in known):
            raise InvalidInput("several groups of clients need names that tell them apart: give each of them one")
        rows = _rows([(who, own) for who, own in known if own], delta, audits or {})
        silent = [who for who, own in known if not own]
        return cls(tuple(sorted(rows, key=_reading_order)), delta, title, _together(silent) if silent else None)

    @property
    def views(self) -> tuple[View, ...]:
        """The rows by kind of onlooker and by change."""
        kinds: dict[tuple[object, ...], list[Row]] = {}
        for row in self.rows:
            kinds.setdefault((row.adversary.kind, row.adjacency), []).append(row)
        views: dict[tuple[object, ...], list[Row]] = {}
        for (kind, adjacency), rows in kinds.items():
            told_apart = len({row.who for row in rows}) == len(rows)
            for row in rows:
                views.setdefault((kind if told_apart else row.adversary, adjacency), []).append(row)
        return tuple(View(tuple(rows)) for rows in views.values())

    @property
    def trust(self) -> tuple[str, ...]:
        """Who is trusted with what, one sentence per kind of adversary."""
        return tuple(dict.fromkeys(view.trust for view in self.views))

    @property
    def sentences(self) -> tuple[str, ...]:
        """Everything the statement says in words: one sentence for each onlooker and change, not for each client."""
        if not self.rows:
            return ("Nothing was released: no report left any client, so nothing was lost.",)
        said = [*self.caveats, *self.trust, *self._view_sentences()]
        adjacencies = dict.fromkeys(row.adjacency for row in self.rows)
        if Adjacency.CLIENT not in adjacencies:
            covered, all_sent = _listed([_CHANGES[a] for a in adjacencies]), _CHANGES[Adjacency.CLIENT]
            said.append(f"The figures cover {covered} only: of {all_sent}, taken together, nothing is proven.")
        if len({row.who for row in self.rows}) > 1:
            said.append(
                "Clients have guarantees of their own: neither the mean nor the largest stands for all of them; the "
                "statement's JSON form has everyone's figures."
            )
        if self.silent is not None:
            said.append(f"Clients who sent nothing lost nothing: {_named(self.silent)}.")
        if self.simulated:
            said.append(
                "This was a simulation. What is proven is proven for real clients, who draw fresh noise; this run's "
                "seed is public, and so is its noise."
            )
        return tuple(said)

    def _view_sentences(self) -> Iterable[str]:
        """Changes of which the same is to be said, that nothing is proven, share a sentence."""
        views = self.views
        alike: dict[object, list[View]] = {}
        for number, view in enumerate(views):
            reasons = tuple((row.adversary, row.who, row.reasons) for row in view.rows)
            alike.setdefault(reasons if view.bare else number, []).append(view)
        for first, *others in alike.values():
            if others:
                yield first.unproven_sentence(_listed([_CHANGES[view.adjacency] for view in (first, *others)]))
            else:
                yield from first.sentences

    def to_text(self, width: int = 110) -> str:
        """A plain table with its notes and sentences, for a terminal."""
        lines = [self.title, "=" * len(self.title), ""]
        if self.rows:
            lines += [*_table(self._cells()), "", "Basis of each proof"]
            for note in self._notes():
                lines += textwrap.wrap(note, width, subsequent_indent="    ")
            lines += ["", "In words"]
        for sentence in self.sentences:
            lines += textwrap.wrap(sentence, width, initial_indent="- ", subsequent_indent="  ")
        return "\n".join(lines) + "\n"

    def to_json(self) -> dict[str, Any]:
        """All figures of all clients, unrounded, ready for `json.dumps`; infinity is the text "infinity"."""
        packed: dict[str, Any] = {
            "title": self.title,
            "delta": self.delta,
            "rows": [_packed(row) for row in self.rows],
            "silent": None if self.silent is None else _packed_clients(self.silent),
            "caveats": list(self.caveats),
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
        figures = f"{self._html_table()}\n<h3>In words</h3>\n" if self.rows else ""
        return (
            f'<section class="privacy-statement">\n<h2>{html.escape(self.title)}</h2>\n'
            f"{figures}{_html_list(self.sentences)}\n</section>\n"
        )

    def _html_table(self) -> str:
        head, *body = self._cells()
        rows = "\n".join(f"<tr>{''.join(f'<td>{html.escape(c)}</td>' for c in cells)}</tr>" for cells in body)
        return (
            f"<table>\n<thead><tr>{''.join(f'<th>{html.escape(c)}</th>' for c in head)}</tr></thead>\n"
            f"<tbody>\n{rows}\n</tbody>\n</table>\n<h3>Basis of each proof</h3>\n{_html_list(self._notes())}"
        )

    def _cells(self) -> list[tuple[str, ...]]:
        """The table with its header; a column that nobody fills is left out."""
        mark = ", with a caveat" if self.caveats else ""
        head = ("clients", "what may change", "who is looking", "claimed",
                f"proven (delta {figure(self.delta)}){mark}", "proven (pure)", "audited", "verdict")  # fmt: skip
        numbers = {basis: number for number, basis in enumerate(self._bases(), 1)}
        rows: list[tuple[str, ...]] = [head]
        for view in self.views:
            for line in view.lines:
                note = f" [{numbers[line.basis]}]" if line.basis else ""
                rows.append((*line.cells[:4], line.cells[4] + note, *line.cells[5:]))
        used = [any(row[column] for row in rows[1:]) for column in range(len(head))]
        return [tuple(cell for cell, keep in zip(row, used, strict=True) if keep) for row in rows]

    def _bases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(line.basis for view in self.views for line in view.lines if line.basis))

    def _notes(self) -> tuple[str, ...]:
        return tuple(f"[{number}] {basis}" for number, basis in enumerate(self._bases(), 1))


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


def _alike(clients: Mapping[str, Iterable[Release]]) -> list[tuple[Clients, Counted]]:
    """Clients whose releases say the same, so that each set of figures is computed once."""
    groups: dict[object, tuple[list[str], Counted]] = {}
    for name, releases in clients.items():
        own = _counted(releases)
        key = frozenset((_said(release), times) for release, times in own)
        groups.setdefault(key, ([], own))[0].append(name)
    return [(Clients(tuple(names), len(names)), own) for names, own in groups.values()]


def _together(clients: Sequence[Clients]) -> Clients:
    names = tuple(name for who in clients for name in who.names)
    return Clients(names, sum(who.count for who in clients), ", ".join(who.members for who in clients if who.members))


def _counted(releases: Iterable[Release]) -> Counted:
    """The releases that cost something, with how often each was made; what is derived must name others of these."""
    made = tuple(releases)
    known = {release.id for release in made}
    counted: dict[object, tuple[Release, int]] = {}
    for release in made:
        if not isinstance(release.composition, Derived):
            first, times = counted.get(_said(release), (release, 0))
            counted[_said(release)] = first, times + 1
        elif missing := set(release.composition.releases) - known:
            raise UnsupportedLoss(
                f"release {release.id!r} is derived from {', '.join(sorted(missing))}, which this statement does not "
                "contain; add what it was computed from"
            )
    return tuple(counted.values())


def _said(release: Release) -> object:
    """What a statement has to know of a release."""
    return release.what, release.guarantees, release.claimed


def _rows(
    groups: Sequence[tuple[Clients, Counted]],
    delta: float,
    audits: Mapping[tuple[Adversary, Adjacency], Audited],
) -> list[Row]:
    """Every group has a row for all that any group says of the server and of model readers.

    Behind a shuffler or a secure sum are only those who say so: the others' reports do not pass through it.
    """
    own = [_views(releases) for _, releases in groups]
    views = dict.fromkeys(view for found in own for view in found)
    if stray := set(audits) - set(views):
        pairs = ", ".join(f"({adversary}, {adjacency})" for adversary, adjacency in stray)
        raise InvalidInput(f"an audit was given for {pairs}, of which no release says anything")
    common = [view for view in views if view[0].parties is None]
    reckoner = _Reckoner(delta)
    return [
        _row(reckoner, who, releases, *view, audits.get(view))
        for (who, releases), found in zip(groups, own, strict=True)
        for view in dict.fromkeys([*found, *common])
    ]


def _views(releases: Counted) -> list[tuple[Adversary, Adjacency]]:
    """What these releases say something about; a claim that none of it is about gets a place of its own."""
    views = dict.fromkeys((g.adversary, g.adjacency) for release, _ in releases for g in release.guarantees)
    claims = dict.fromkeys(release.claimed for release, _ in releases)
    for claim in claims:
        if claim is not None and not any(_speaks_of(claim, *view) for view in views):
            views[claim.adversary, claim.adjacency] = None
    return list(views)


def _row(
    reckoner: _Reckoner,
    who: Clients,
    releases: Counted,
    adversary: Adversary,
    adjacency: Adjacency,
    audited: Audited | None,
) -> Row:
    chosen = [(reckoner.best(release, adversary, adjacency), times) for release, times in releases]
    proof = _Proof.of(reckoner, chosen, adjacency)
    claim, claimed = _claim(releases, adversary, adjacency)
    whole = claim is None or all(claimed)
    covered = [best for best, fits in zip(chosen, claimed, strict=True) if fits]
    of_part = proof if whole else _Proof.of(reckoner, covered, adjacency)
    row = Row(
        adversary,
        adjacency,
        reckoner.delta,
        proven=proof.epsilon(reckoner.delta),
        pure=proof.epsilon(0.0),
        basis=_bases(chosen, adjacency),
        unproven=tuple(dict.fromkeys(why for part in proof.parts for why in part.unproven)),
        claimed=claim,
        proven_as_claimed=math.inf if claim is None else of_part.epsilon(claim.delta),
        covered=() if whole else _named_parts(releases, claimed),
        unclaimed=() if whole else _named_parts(releases, [not fits for fits in claimed]),
        audited=audited,
        who=who,
        reached=proof.reached(reckoner.delta) if adversary.kind == "shuffled" else None,
    )
    if audited is not None and audited.epsilon > (bound := proof.epsilon(audited.delta)):
        raise ProofContradicted(
            f"{adjacency} against {adversary}: audited epsilon >= {audited.epsilon:.6g} ({audited.attack}, confidence "
            f"{audited.confidence}) is above the proven {bound:.6g} at delta {audited.delta:g}. The mechanism, the "
            "proof or the audit is wrong: do not publish this statement"
        )
    return row


def _bases(chosen: Sequence[tuple[Guarantee, int]], adjacency: Adjacency) -> tuple[str, ...]:
    """Why it holds, and for how many releases; one value of one upload is in a single one."""
    counts: Counter[str] = Counter()
    for guarantee, times in chosen:
        counts[guarantee.basis] += times
    if adjacency is Adjacency.COORDINATE:
        return tuple(counts)
    return tuple(basis if times == 1 or basis == "none" else f"{times:,} x {basis}" for basis, times in counts.items())


class _Reckoner:
    """Computes each figure once, however many clients and rounds share it."""

    def __init__(self, delta: float) -> None:
        self.delta = delta
        self._epsilons: dict[tuple[Composed, float], float] = {}
        self._chosen: dict[tuple[object, ...], Guarantee] = {}

    def epsilon(self, composed: Composed, delta: float) -> float:
        """Of composed losses at delta."""
        if (composed, delta) not in self._epsilons:
            self._epsilons[composed, delta] = composed.epsilon(delta)
        return self._epsilons[composed, delta]

    def best(self, release: Release, adversary: Adversary, adjacency: Adjacency) -> Guarantee:
        """The strongest of a release's guarantees for this adversary and adjacency; of equals, the most specific."""
        key = (release.what, release.guarantees, adversary, adjacency)
        if key not in self._chosen:
            self._chosen[key] = self._best(release, adversary, adjacency)
        return self._chosen[key]

    def _best(self, release: Release, adversary: Adversary, adjacency: Adjacency) -> Guarantee:
        usable = [
            g for g in release.guarantees if _seen_through(g.adversary, adversary) and implies(g.adjacency, adjacency)
        ]
        if not usable:
            why = f"{release.what} has no guarantee for {_CHANGES[adjacency]} against {_onlooker(adversary)}"
            return Guarantee(adversary, adjacency, Infinite(why), "none")
        if len(usable) == 1:
            return usable[0]

        def strength(g: Guarantee) -> tuple[float, bool, bool]:
            alone = self.epsilon(_composed([(g, 1)]), self.delta)
            return alone, g.adversary != adversary, g.adjacency != adjacency

        return min(usable, key=strength)


@dataclass(frozen=True)
class _Proof:
    """Parts of which the worst counts, and how many equal bits were shuffled among how many clients, if they were."""

    reckoner: _Reckoner
    parts: tuple[Composed, ...]
    shuffled: tuple[float, int, int] | None = None  #: (epsilon of a bit, clients, bits)

    @classmethod
    def of(cls, reckoner: _Reckoner, chosen: Sequence[tuple[Guarantee, int]], adjacency: Adjacency) -> _Proof:
        """Everything adds up, save that one value of one upload occurs in a single release."""
        groups = [[(g, 1)] for g, _ in chosen] if adjacency is Adjacency.COORDINATE else [list(chosen)]
        parts = dict.fromkeys(_composed(group) for group in groups)
        return cls(reckoner, tuple(parts), _shuffled_bits(chosen, max(groups, key=_bit_count)))

    def epsilon(self, delta: float) -> float:
        plain = max(self.reckoner.epsilon(part, delta) for part in self.parts)
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


def _composed(group: Sequence[tuple[Guarantee, int]]) -> Composed:
    """All of a group's losses; sampled ones are about records added or removed only if all of them are."""
    sampled = {g.adjacency for g, _ in group if isinstance(g.loss, PoissonGaussian)}
    adjacency = Adjacency.RECORD_ADD_REMOVE if sampled == {Adjacency.RECORD_ADD_REMOVE} else Adjacency.CLIENT
    return compose((g.loss for g, times in group for _ in range(times)), adjacency=adjacency)


def _shuffled_bits(
    chosen: Sequence[tuple[Guarantee, int]], largest: Sequence[tuple[Guarantee, int]]
) -> tuple[float, int, int] | None:
    """Amplification applies where every release is of equal bits that pass through one and the same shuffler or sum.

    Of single bits that are mixed, nothing but the number of ones is seen, and that is what a sum of them is.
    """
    adversaries = {g.adversary for g, _ in chosen}
    thresholds = {g.loss.t_min if isinstance(g.loss, RandomizedBit) else None for g, _ in chosen}
    (adversary, *others), (t_min, *mixed) = adversaries, thresholds
    if others or mixed or t_min is None or adversary.parties is None:
        return None
    return bit_epsilon(t_min), adversary.parties, _bit_count(largest)


def _bit_count(group: Sequence[tuple[Guarantee, int]]) -> int:
    return sum(g.loss.count * times for g, times in group if isinstance(g.loss, RandomizedBit))


def _seen_through(given: Adversary, wanted: Adversary) -> bool:
    """What holds against the server holds against all who see less; a model reader sees least."""
    return given in (SERVER, wanted) or wanted.kind == "model reader"


def _claim(releases: Counted, adversary: Adversary, adjacency: Adjacency) -> tuple[Claim | None, list[bool]]:
    """The claims about this adversary and adjacency, put together as their papers do, and which releases have one.

    They add up, but one for a whole schedule is made once, and for one value of one upload the largest counts.
    """
    claimed = [r.claimed is not None and _speaks_of(r.claimed, adversary, adjacency) for r, _ in releases]
    fitting = [(r.claimed, n) for (r, n), fits in zip(releases, claimed, strict=True) if r.claimed is not None and fits]
    if not fitting:
        return None, claimed
    claim = _joined(fitting, adversary, adjacency)
    if not all(claimed) and claim.epsilon == claim.delta == 0:
        return None, claimed  # that a part costs nothing says nothing of the rest, and "claimed 0" would mislead
    return claim, claimed


def _joined(fitting: Sequence[tuple[Claim, int]], adversary: Adversary, adjacency: Adjacency) -> Claim:
    once = dict.fromkeys(claim for claim, _ in fitting if claim.covers == "schedule")
    made = [claim for claim, times in fitting if claim.covers == "release" for _ in range(times)] + list(once)
    formula = "; ".join(dict.fromkeys(claim.formula for claim in made))
    about = made[0].adjacency if len({claim.adjacency for claim in made}) == 1 else adjacency
    if adjacency is Adjacency.COORDINATE:
        return Claim(max(c.epsilon for c in made), max(c.delta for c in made), formula, about, adversary)
    total, delta = math.fsum(c.epsilon for c in made), math.fsum(c.delta for c in made)
    return Claim(total, min(delta, 1 - 1e-16), formula, about, adversary)


def _named_parts(releases: Counted, chosen: Sequence[bool]) -> tuple[str, ...]:
    """These of the releases by name; where others of that name are not among them, with how many are."""
    every: Counter[str] = Counter()
    own: Counter[str] = Counter()
    for (release, times), is_chosen in zip(releases, chosen, strict=True):
        every[release.what] += times
        own[release.what] += times * is_chosen
    return tuple(what if n == every[what] else f"{what} ({n:,} of {every[what]:,})" for what, n in own.items() if n)


def _speaks_of(claim: Claim, adversary: Adversary, adjacency: Adjacency) -> bool:
    """Whether a claim is one about this change, seen by this kind of onlooker.

    Changing a record or its label may change all that a client sends, so a claim about the client is about them too.
    One value of one upload is another thing: a figure for whole uploads would look proven beside it, and mean nothing.
    """
    if claim.adversary.kind != adversary.kind or adjacency is Adjacency.COORDINATE is not claim.adjacency:
        return False
    return implies(claim.adjacency, adjacency)


def _reading_order(row: Row) -> tuple[int, int, int]:
    return _ADVERSARIES.index(row.adversary.kind), row.adversary.parties or 0, _ADJACENCIES.index(row.adjacency)


# --- words ----------------------------------------------------------------------------------------------------------


def _onlooker(fewest: Adversary, most: Adversary | None = None) -> str:
    match fewest.kind:
        case "server":
            return "the server"
        case "shuffled":
            return f"a server behind a shuffler of {_parties(fewest, most)} clients"
        case "summed":
            return f"a server behind a secure sum with {_parties(fewest, most)} honest clients"
        case _:
            return "a reader of the model"


def _trust(fewest: Adversary, most: Adversary) -> str:
    match fewest.kind:
        case "server":
            return "Against the server: nobody is trusted but the client itself; the server is not trusted."
        case "shuffled":
            return (
                "Behind the shuffler: the server is not trusted; the shuffler is, and that "
                f"{_parties(fewest, most)} clients send honest reports through it."
            )
        case "summed":
            return (
                "Behind the secure sum: against a server that keeps to the protocol, which sees sums of reports and no "
                "single one (with keys of its own in the place of the clients' it would see every report); where "
                "owners list each other's keys, against any server; "
                f"at least {_parties(fewest, most)} honest clients are in a sum."
            )
        case _:
            return "Against readers of the model: the server is trusted; whoever sees the trained model is not."


def _parties(fewest: Adversary, most: Adversary | None) -> str:
    same = most is None or most == fewest
    return str(fewest.parties) if same or most is None else f"{fewest.parties} to {most.parties}"


def _named(who: Clients) -> str:
    names = who.names
    return ", ".join(names) if len(names) <= _HANDFUL else f"{names[0]} and {len(names) - 1:,} more"


def _few(words: Iterable[str]) -> str:
    """The first of several texts, each once, and how many more there are."""
    first, *others = dict.fromkeys(words)
    shown = others if len(others) < _HANDFUL else others[: _HANDFUL - 2]
    more = len(others) - len(shown)
    return "; ".join([first, *shown, *([f"and {more:,} more"] if more else [])])


def _people(rows: Sequence[Row]) -> str:
    count = sum(row.who.count for row in rows)
    return f"{count:,} client{'s' if count != 1 else ''}"


def _share(rows: Sequence[Row], of: Sequence[Row]) -> str:
    part = "" if len(rows) == len(of) else f"{sum(row.who.count for row in rows):,} of "
    return f"{part}{_people(of)}"


def _tied(rows: Sequence[Row], end: Callable[[Iterable[tuple[float, float]]], tuple[float, float]]) -> tuple[Row, ...]:
    """The rows at one end of a span."""
    losses = [(row.proven, row.pure) for row in rows]
    extreme = end(losses)
    return tuple(row for row, loss in zip(rows, losses, strict=True) if loss == extreme)


def _whose(rows: Sequence[Row]) -> str:
    """The first of these clients, and how many more there are."""
    first, *others = rows
    more = sum(row.who.count for row in others)
    return f"{_named(first.who)} and {more:,} more" if more else _named(first.who)


def _end(rows: Sequence[Row]) -> str:
    """One end of a span: the figure, whose it is and why it holds."""
    row = rows[0]
    reached = "" if row.reached is None else f", where an attacker surely reaches {figure(row.reached)}"
    return f"epsilon {figure(row.proven)} ({_whose(rows)}, by {'; '.join(row.basis)}{reached})"


def _worth(rows: Sequence[Row]) -> str:
    beyond = [row for row in rows if row.proven > NO_MEANINGFUL_PROTECTION]
    if not beyond:
        return ""
    whom = "any of them" if len(beyond) == len(rows) else _share(beyond, rows)
    return f": no meaningful protection for {whom}"


def _spread(rows: Sequence[Row], of: Callable[[Row], float]) -> str:
    """From the least to the most, and whose these are."""
    values = [of(row) for row in rows]
    low, high = min(values), max(values)
    if low == high:
        return figure(low)
    ends = ([row for row, value in zip(rows, values, strict=True) if value == end] for end in (low, high))
    return " to ".join(f"{figure(of(own[0]))} ({_whose(own)})" for own in ends)


def _claimed_of(rows: Sequence[Row]) -> str:
    """How a sentence about claims begins: where they leave something out, with what that is."""
    if not any(row.unclaimed for row in rows):
        return "Claimed: "
    covered, rest = _few(w for row in rows for w in row.covered), _few(w for row in rows for w in row.unclaimed)
    return f"Claimed in part (of {covered}; no claim speaks of {rest}): "


def _of_part(*unclaimed: Sequence[str]) -> str:
    return "of the claimed part " if any(unclaimed) else ""


def _claimed(row: Row) -> float:
    return math.inf if row.claimed is None else row.claimed.epsilon


def _listed(words: Sequence[str]) -> str:
    *most, last = words
    return f"{', '.join(most)}, and {last}" if most else last


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


# --- renderings -----------------------------------------------------------------------------------------------------


def _cells(row: Row) -> tuple[str, ...]:
    return (
        _named(row.who),
        str(row.adjacency),
        str(row.adversary),
        "" if row.claimed is None else f"{figure(row.claimed.epsilon)}{' (in part)' if row.unclaimed else ''}",
        figure(row.proven),
        figure(row.pure),
        "" if row.audited is None else f">= {figure(row.audited.epsilon)}",
        row.verdict,
    )


def _end_line(end: str, rows: Sequence[Row], span: Line) -> Line:
    """Those at one end of a span, under it; what the span says of all is not said again."""
    own = zip(_cells(rows[0])[3:], span.cells[3:], strict=True)
    return Line((f"  {end}: {_whose(rows)}", "", "", *("" if cell == said else cell for cell, said in own)))


def _basis(row: Row) -> str:
    return "; ".join(row.basis) or "none"


def _span(values: Sequence[float], to: str = " .. ") -> str:
    if not values:
        return ""
    low, high = figure(min(values)), figure(max(values))
    return low if low == high else f"{low}{to}{high}"


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def _html_list(items: Iterable[str]) -> str:
    return "<ul>\n" + "\n".join(f"<li>{html.escape(item)}</li>" for item in items) + "\n</ul>"


def _packed(row: Row) -> dict[str, Any]:
    claimed, audited = row.claimed, row.audited
    return {
        **_packed_clients(row.who),
        "adversary": str(row.adversary),
        "adjacency": str(row.adjacency),
        "basis": list(row.basis),
        "claimed": None
        if claimed is None
        else {
            "epsilon": claimed.epsilon,
            "delta": claimed.delta,
            "formula": claimed.formula,
            "adjacency": str(claimed.adjacency),
            "covered": list(row.covered),
            "unclaimed": list(row.unclaimed),
        },
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


def _packed_clients(who: Clients) -> dict[str, Any]:
    return {"clients": list(who.names), "count": who.count, "members": who.members}


def _number(value: float) -> float | str:
    return "infinity" if math.isinf(value) else value


__all__ = [
    "NO_MEANINGFUL_PROTECTION", "Audited", "Clients", "Counted", "Line", "ProofContradicted", "Row", "Statement",
    "View", "figure",
]  # fmt: skip

"""The privacy statement in words: the run's own figure first, then a plain table and sentences for all others.

Everything here reads a `Statement`, fresh or from `Statement.from_json`. A statement about many clients gives spans,
with the names of those who have the least and the most; `to_json` has everyone's figures.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Iterable, Sequence

from sordino.privacy.guarantee import Adjacency, Adversary
from sordino.privacy.statement import (
    NO_CLAIM,
    NO_MEANINGFUL_PROTECTION,
    AuditBound,
    ClientSet,
    Row,
    Statement,
    View,
    tied,
)
from sordino.report.caveats import is_by_mod
from sordino.report.words import capital, count, counted, deltas, few, figure, listed, lower, span, upper

ALWAYS = 0.9995  #: a share of right guesses above which no figure says more than `practically every time`
HANDFUL = 4  #: groups of clients that are told one by one; more are shown as a span with its ends

CHANGES = {
    Adjacency.CLIENT: "everything one client sends",
    Adjacency.RECORD_REPLACE: "one record exchanged for another",
    Adjacency.RECORD_ADD_REMOVE: "one record added or removed",
    Adjacency.LABEL: "the label of one record",
    Adjacency.COORDINATE: "one value of one upload",
}
QUESTIONS = {
    Adjacency.CLIENT: "which of two data sets a client holds",
    Adjacency.RECORD_REPLACE: "which of two records a client holds",
    Adjacency.RECORD_ADD_REMOVE: "whether a client holds a certain record",
    Adjacency.LABEL: "which of two labels a record has",
    Adjacency.COORDINATE: "which of two values was in an upload",
}  #: what an attacker would find out
SIMULATED = (
    "This was a simulation. What is proven is proven for real clients, who draw fresh noise; this run's seed is "
    "public, and so is its noise."
)
APP_TRUST = "whoever sends the app, to send it with its privacy mod; beside that nobody but the client itself"
_MEANINGS = {
    "proven": "a bound by theorem or enumeration, for the program as it runs, rounding and samplers included",
    "claimed": "what the formula of a paper gives",
    "audited": "what an attack on this run reached at least",
}
_NOISE = {
    "RandomizedBit": "one randomised bit per weight",
    "PoissonGaussian": "training with Gaussian noise on random batches (DP-SGD)",
    "Gaussian": "Gaussian noise",
    "Pure": "noise that bounds the odds of every outcome",
    "Metric": "noise that hides small distances best",
}  #: what was done to a release, by the type of its loss


# --- a view in a few words ------------------------------------------------------------------------------------------


def change(view: View) -> str:
    """What may change, in words."""
    return CHANGES[view.adjacency]


def adversary(view: View) -> str:
    """Who is looking, by name; `shuffled(19 .. 20)` where the number of parties differs."""
    fewest, most = view.adversaries
    return str(most) if fewest == most else f"{most.kind}({fewest.parties} .. {most.parties})"


def terms(view: View) -> str:
    """The words without which the proven figures of a view mean nothing."""
    return f"{change(view)}, seen by {onlooker(view)}, {deltas(view.deltas, upper)}"


def trust(view: View) -> str:
    """Who is trusted with what."""
    parties = _parties(*view.adversaries)
    match view.adversaries[0].kind:
        case "server":
            return "Against the server: nobody is trusted but the client itself; the server is not trusted."
        case "shuffled":
            return (
                "Behind the shuffler: the server is not trusted; the shuffler is, and that "
                f"{parties} clients send honest reports through it."
            )
        case "summed":
            return (
                "Behind the secure sum: against a server that keeps to the protocol, which sees sums of reports and no "
                "single one (with keys of its own in the place of the clients' it would see every report); where "
                "owners list each other's keys, against any server; "
                f"at least {parties} honest clients are in a sum."
            )
        case _:
            return "Against readers of the model: the server is trusted; whoever sees the trained model is not."


def noise(view: View) -> str:
    """What was done to the releases: `10 rounds of one randomised bit per weight`; nothing where that is not known."""
    found: dict[str, list[int]] = {}
    for row in view.rows:
        for kind, times in row.losses:
            found.setdefault(kind, []).append(times)
    rounds = {
        kind: "" if max(times) == 1 else f"{span(times, shown=count)} rounds of " for kind, times in found.items()
    }
    return "; ".join(f"{often}{_NOISE[kind]}" for kind, often in rounds.items() if kind in _NOISE)


def meanings(statement: Statement) -> str:
    """What proven, claimed and audited mean, as far as the statement has such figures."""
    used = {
        "proven": True,
        "claimed": any(row.claimed for row in statement.rows),
        "audited": any(row.audited for row in statement.rows),
    }
    return " ".join(f"{capital(word)}: {meaning}." for word, meaning in _MEANINGS.items() if used[word])


def limits(statement: Statement) -> str:
    """What the figures do not cover; nothing where some of them are about whole clients."""
    adjacencies = dict.fromkeys(row.adjacency for row in statement.rows)
    if Adjacency.CLIENT in adjacencies:
        return ""
    covered, all_sent = listed([CHANGES[a] for a in adjacencies]), CHANGES[Adjacency.CLIENT]
    return f"The figures cover {covered} only: of {all_sent}, taken together, nothing is proven."


def proof(view: View) -> str:
    """What proves it: each group's own theorems and enumerations; nothing where nothing is proven."""
    return each(view, lambda row: "" if math.isinf(row.proven) else "; ".join(row.basis))


def reasons(view: View) -> str:
    """Why nothing is proven, for each group of which that is so."""
    return each(view, lambda row: "; ".join(row.unproven))


def formulas(view: View) -> str:
    """Where the claim of each group comes from."""
    return each(view, lambda row: "" if row.claimed is None else row.claimed.formula)


def claim_terms(view: View) -> str:
    """A claim's delta, and what it is about where that is not what the view is about, or not all of it."""
    about = dict.fromkeys(row.claimed.adjacency for row in view.rows if row.claimed is not None)
    covered, rest = _parts(view.rows)
    part = f"of {', '.join(covered)} only: no claim speaks of {', '.join(rest)}"
    found = [deltas(view.claimed_deltas), *(f"for adjacency {name}" for name in about if name != view.adjacency)]
    return ", ".join([*found, part] if rest else found)


def each(view: View, of: Callable[[Row], str]) -> str:
    """What is to be said of each group: once where it is the same for all, else with whose it is; of many, a few."""
    alike: dict[str, list[Row]] = {}
    for row in view.rows:
        alike.setdefault(of(row), []).append(row)
    said = {words: rows for words, rows in alike.items() if words}
    if len(alike) == 1 or not all(row.clients for row in view.rows):
        return "; ".join(said)
    return few(f"{_names([named(row.who) for row in rows])}: {words}" for words, rows in said.items())


def named(who: ClientSet) -> str:
    """The clients in a few words; nothing where they are not told apart."""
    return _names(who.names)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names) if len(names) <= HANDFUL else f"{names[0]} and {len(names) - 1:,} more"


# --- the run's own figure -------------------------------------------------------------------------------------------


def onlooker(view: View) -> str:
    """Who is looking, in words."""
    return _onlooker(*view.adversaries)


def guesses(view: View) -> str:
    """How often an attacker is right by what is proven, rounded up: `at most 73 times in 100`; or `no bound`."""
    share = view.best_guess
    if view.unproven:
        return "no bound"
    if share > ALWAYS:
        return "practically every time"
    digits = 0 if share <= 0.99 else 1
    return f"at most {math.ceil(100 * share * 10**digits - 1e-9) / 10**digits:g} times in 100"


def attacker_gain(view: View) -> str:
    """A proven figure as what an attacker gains over tossing a coin."""
    asked = f"an attacker who sees what {onlooker(view)} sees and must tell {QUESTIONS[view.adjacency]}"
    if view.unproven:
        return f"No bound: nothing proven limits how often {asked} is right."
    if view.best_guess > ALWAYS:
        return f"{capital(asked)} may be right {guesses(view)}, instead of every second time."
    return f"{capital(asked)} is right {guesses(view)}, instead of 50."


def lead_figure(view: View) -> str:
    """The figure with which a page and a statement begin: `epsilon 4.39, proven at delta 1e-5`."""
    if len(view.unproven) == len(view.rows):
        return "epsilon infinite: nothing is proven"
    return f"epsilon {span(view.proven, shown=upper)}, proven at {deltas(view.deltas, upper)}"


def lead_facts(statement: Statement) -> dict[str, str]:
    """The run's own figure in plain words: what it protects, from whom, how, and what that is worth.

    Pages, the statement's text and the terminal all show these, and nothing else before the other figures.
    """
    view, by_mod = statement.lead, is_by_mod(statement.caveats)
    facts = {
        "protects" if proof(view) else "about": change(view),
        "from": onlooker(view),
        "trusted": APP_TRUST if by_mod else trust(view).partition(": ")[2].rstrip("."),
        "by": noise(view) if proof(view) else "",
        "not proven": reasons(view),
        "worth": f"{attacker_gain(view)}{_no_protection(view)}",
        "clients": "they differ, and no figure stands for all of them" if view.proven[0] != view.proven[1] else "",
        "claims": "" if by_mod else _claims(statement),
    }
    return {name: said for name, said in facts.items() if said}


def _claims(statement: Statement) -> str:
    """The verdicts on a paper's claims, each with what is claimed: the leading figure, or which other."""
    lead, found = statement.lead, dict[str, dict[str, None]]()
    for view in statement.views:
        about = f"a figure for {change(view)}"
        if view.adjacency == lead.adjacency:
            about = f"a figure for the same, seen by {onlooker(view)}"
        if view == lead:
            same = view.claimed is not None and span(view.claimed) == span(view.proven, shown=upper)
            about = "this figure" if same else "another figure for the same"
        for verdict in view.verdicts:
            found.setdefault(verdict, {})[about] = None
    found.pop(NO_CLAIM, None)
    return "; ".join(f"a paper claims {listed(list(about))}: {verdict}" for verdict, about in found.items())


def _no_protection(view: View) -> str:
    return " That is no meaningful protection." if NO_MEANINGFUL_PROTECTION < view.proven[1] < math.inf else ""


def verdicts(statement: Statement) -> tuple[str, ...]:
    """What proof and experiment say of the claims that the statement has, each verdict once."""
    return tuple(dict.fromkeys(row.verdict for row in statement.rows if row.verdict != NO_CLAIM))


# --- sentences ------------------------------------------------------------------------------------------------------


def sentences(statement: Statement) -> tuple[str, ...]:
    """Everything a statement says in words: one sentence for each onlooker and change, not for each client."""
    if not statement.rows:
        return ("Nothing was released: no report left any client, so nothing was lost.",)
    left_out = limits(statement)
    said = [*statement.caveats, *_figure_sentences(statement), *([left_out] if left_out else [])]
    return (*said, SIMULATED) if statement.simulated else tuple(said)


def _figure_sentences(statement: Statement) -> Iterable[str]:
    """What is said of all figures: whom they trust, and each of them."""
    by_mod = is_by_mod(statement.caveats)
    yield from [f"Trusted is {APP_TRUST}."] if by_mod else dict.fromkeys(map(trust, statement.views))
    yield from _view_sentences(statement.views)
    if len({row.who for row in statement.rows}) > 1:
        yield (
            "Clients have guarantees of their own: neither the mean nor the largest stands for all of them; the "
            "statement's JSON form has everyone's figures."
        )
    if statement.silent is not None:
        yield f"Clients who sent nothing lost nothing: {named(statement.silent)}."


def _view_sentences(views: Sequence[View]) -> Iterable[str]:
    """Changes of which the same is to be said, that nothing is proven, share a sentence."""
    alike: dict[object, list[View]] = {}
    for number, view in enumerate(views):
        why = tuple((row.adversary, row.who, _why(row)) for row in view.rows)
        alike.setdefault(why if _bare(view) else number, []).append(view)
    told: set[tuple[str, ...]] = set()
    for first, *others in alike.values():
        if others:
            yield _unproven_sentence(first, listed([change(view) for view in (first, *others)]))
        else:
            yield from view_sentences(first, told)


def _bare(view: View) -> bool:
    """Whether nothing is proven for anybody, nothing is claimed and nothing was found."""
    return len(view.unproven) == len(view.rows) and not any(row.claimed or row.audited for row in view.rows)


def view_sentences(view: View, told: set[tuple[str, ...]] | None = None) -> tuple[str, ...]:
    """A view in plain words: figures that differ are given with their ends, and whose these are.

    `told` collects the reasons that were given: they are given once.
    """
    said = [] if len(view.unproven) == len(view.rows) else [_proven_sentence(view)]
    if view.unproven:
        said.append(_unproven_sentence(view, change(view), told))
    if view.claimed is not None:
        said.append(_claim_sentence(view))
    audits = dict.fromkeys(row.audited for row in view.rows)
    return tuple(said) + tuple(_audit_sentence(audited) for audited in audits if audited is not None)


def _proven_sentence(view: View) -> str:
    rows = [row for row in view.rows if math.isfinite(row.proven)]
    least, most = tied(rows, min), tied(rows, max)
    at, whom = f"at delta {upper(rows[0].delta)}", _share(rows, view.rows)
    if len(view.rows) == 1:
        words = f"proven epsilon {upper(rows[0].proven)} {at}{_reached(rows[0])}"
    elif least[0].proven == most[0].proven:
        words = f"proven epsilon {upper(least[0].proven)} {at} for each of {whom}"
    else:
        words = f"what is proven differs between {whom}, {at} from {_end(least)} to {_end(most)}"
    return f"{_subject(view, change(view))}: {words}{_worth(rows)}."


def _subject(view: View, changes: str) -> str:
    whose = f" ({named(view.rows[0].who)})" if len(view.rows) == 1 and view.rows[0].clients else ""
    return f"{capital(changes)}, seen by {_onlooker(*view.adversaries)}{whose}"


def _unproven_sentence(view: View, changes: str, told: set[tuple[str, ...]] | None = None) -> str:
    """That nothing is proven about these changes, for whom and why; for the same reason if that was told."""
    rows = view.unproven
    whom = ""
    if len(rows) < len(view.rows):
        whom = f" for {_share(rows, view.rows)} ({few(named(row.who) for row in rows)})"
    elif len(rows) > 1:
        whom = " for any client"
    why = tuple(reason for row in rows for reason in _why(row))
    because = "for the same reason" if told and why in told else f"because {few(why)}"
    if told is not None:
        told.add(why)
    return f"{_subject(view, changes)}: nothing is proven (epsilon is infinite){whom}, {because}."


def _why(row: Row) -> tuple[str, ...]:
    """Why the proven epsilon is infinite, where it is."""
    return row.unproven or (f"no bound holds at delta {upper(row.delta)}",)


def _claim_sentence(view: View) -> str:
    claims = [(row, row.claimed) for row in view.rows if row.claimed is not None]
    rows = [row for row, _ in claims]
    single = len(view.rows) == 1
    judged = view.rows[0].verdict if single else ", ".join(
        f"{verdict} for {'every client' if len(view.verdicts) == 1 else f'{n:,} of {_people(view.rows)}'}"
        for verdict, n in view.verdicts.items()
    )  # fmt: skip
    covered, rest = _parts(rows)
    begin = f"Claimed in part (of {few(covered)}; no claim speaks of {few(rest)})" if rest else "Claimed"
    exact = [(row, row.proven_as_claimed) for row in rows if row.proven_as_claimed is not None]
    of_part = "of the claimed part " if rest else ""
    at = "at that delta" if single else "at the claim's delta"
    proven = f"; proven {of_part}{at} is {_spread(exact, upper)}, for this change and this onlooker" if exact else ""
    epsilon = _spread([(row, claim.epsilon) for row, claim in claims])
    delta = span((claim.delta for _, claim in claims), shown=figure)
    return f"{begin}: epsilon {epsilon} at delta {delta} ({few(c.formula for _, c in claims)}); {judged}{proven}."


def _audit_sentence(audited: AuditBound) -> str:
    return (
        f"Audited: epsilon is at least {lower(audited.epsilon)} at delta {lower(audited.delta)}, with "
        f"{100 * audited.confidence:.4g} % confidence, from {audited.trials} trials ({audited.attack}). "
        "A small lower bound is no evidence of privacy."
    )


def _onlooker(fewest: Adversary, most: Adversary) -> str:
    match fewest.kind:
        case "server":
            return "the server"
        case "shuffled":
            return f"a server behind a shuffler of {_parties(fewest, most)} clients"
        case "summed":
            return f"a server behind a secure sum with {_parties(fewest, most)} honest clients"
        case _:
            return "a reader of the model"


def _parties(fewest: Adversary, most: Adversary) -> str:
    return str(fewest.parties) if fewest == most else f"{fewest.parties} to {most.parties}"


def _people(rows: Sequence[Row]) -> str:
    return counted(sum(row.who.count for row in rows), "client")


def _share(rows: Sequence[Row], of: Sequence[Row]) -> str:
    part = "" if len(rows) == len(of) else f"{sum(row.who.count for row in rows):,} of "
    return f"{part}{_people(of)}"


def _whose(rows: Sequence[Row]) -> str:
    """The first of these clients, and how many more there are."""
    first, *others = rows
    more = sum(row.who.count for row in others)
    return f"{named(first.who)} and {more:,} more" if more else named(first.who)


def _reached(row: Row) -> str:
    return "" if row.reached is None else f", where an attacker surely reaches {lower(row.reached)}"


def _end(rows: Sequence[Row]) -> str:
    """One end of a span: the figure, and whose it is."""
    return f"epsilon {upper(rows[0].proven)} ({_whose(rows)}{_reached(rows[0])})"


def _worth(rows: Sequence[Row]) -> str:
    beyond = [row for row in rows if row.proven > NO_MEANINGFUL_PROTECTION]
    if not beyond:
        return ""
    whom = "any of them" if len(beyond) == len(rows) else _share(beyond, rows)
    return ": no meaningful protection" + (f" for {whom}" if rows[0].clients and len(rows) > 1 else "")


def _spread(values: Sequence[tuple[Row, float]], shown: Callable[[float], str] = figure) -> str:
    """From the least to the most, and whose these are."""
    low, high = (end(value for _, value in values) for end in (min, max))
    if low == high:
        return shown(low)
    ends = ((end, [row for row, value in values if value == end]) for end in (low, high))
    return " to ".join(f"{shown(end)} ({_whose(own)})" for end, own in ends)


def _parts(rows: Sequence[Row]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What the claims are about, and what no claim is about, where they leave something out."""
    covered = dict.fromkeys(what for row in rows for what in row.covered)
    return tuple(covered), tuple(dict.fromkeys(what for row in rows for what in row.unclaimed))


# --- the table ------------------------------------------------------------------------------------------------------


def to_text(statement: Statement, width: int = 110) -> str:
    """The whole statement as text: its own figure in words, a table of all figures, what proves each, and sentences."""
    lines = [lead_text(statement, width)]
    if statement.rows:
        cells, notes = _table(statement)
        lines += ["All figures", *_aligned(cells), "", *textwrap.wrap(meanings(statement), width), ""]
        lines += ["Basis of each proof"]
        for note in notes:
            lines += textwrap.wrap(note, width, subsequent_indent="    ")
        lines += ["", "In words"]
        for sentence in _figure_sentences(statement):
            lines += textwrap.wrap(sentence, width, initial_indent="- ", subsequent_indent="  ")
        lines += [""]
    return "\n".join(lines)


def lead_text(statement: Statement, width: int = 110) -> str:
    """The statement's own figure as text, with what it leaves out: all that a terminal shows of it."""
    lines = [statement.title, "=" * len(statement.title), ""]
    if not statement.rows:
        return "\n".join([*lines, *textwrap.wrap(sentences(statement)[0], width), ""])
    for caveat in statement.caveats:
        lines += [*textwrap.wrap(caveat, width), ""]
    lines += [capital(lead_figure(statement.lead)), ""]
    facts = lead_facts(statement)
    margin = 2 + max(map(len, facts))
    for name, said in facts.items():
        lines += textwrap.wrap(f"{name:<{margin}}{said}", width, subsequent_indent=" " * margin)
    for said in filter(None, (limits(statement), SIMULATED if statement.simulated else "")):
        lines += ["", *textwrap.wrap(said, width)]
    return "\n".join([*lines, ""])


def to_json(statement: Statement) -> dict[str, object]:
    """The figures and the sentences, as a run's statement.json has them."""
    return {**statement.to_json(), "sentences": list(sentences(statement))}


def _table(statement: Statement) -> tuple[list[tuple[str, ...]], list[str]]:
    """The table with its header, without columns that nobody fills, and the notes under it."""
    mark = ", with a caveat" if statement.caveats else ""
    head = ("clients", "what may change", "who is looking", "claimed",
            f"proven (delta {upper(statement.delta)}){mark}", "at delta 0", "audited", "verdict")  # fmt: skip
    lines = [line for view in statement.views for line in _lines(view)]
    numbers = {basis: f"[{number}]" for number, basis in enumerate(dict.fromkeys(basis for _, basis in lines), 1)}
    rows = [head, *((*cells[:4], f"{cells[4]} {numbers[basis]}", *cells[5:]) for cells, basis in lines)]
    used = [k for k in range(len(head)) if any(row[k] for row in rows[1:])]
    return [tuple(row[k] for k in used) for row in rows], [f"{number} {basis}" for basis, number in numbers.items()]


def _lines(view: View) -> Iterable[tuple[tuple[str, ...], str]]:
    """A view's lines in the table, each with the basis of its proof; beyond a handful of groups, one line of spans."""
    alone = [View((row,)) for row in view.rows]
    for part in [view] if len(alone) > HANDFUL else alone:
        whom = _people(part.rows) if part is view else named(part.rows[0].who)
        basis = few("; ".join(row.basis) or "none" for row in part.rows)
        yield (whom, str(part.adjacency), adversary(part), *_spans(part)), basis


def _spans(view: View) -> tuple[str, ...]:
    """Claimed, proven at both deltas, audited and verdict of everybody."""
    rows, verdicts = view.rows, view.verdicts
    audited = [row for row in rows if row.audited is not None]
    whose = f" ({_whose(audited)})" if 0 < len(audited) < len(rows) else ""
    found = _dots((row.audited.epsilon for row in audited if row.audited is not None), lower)
    judged = ", ".join(verdict if len(verdicts) == 1 else f"{verdict} ({n:,})" for verdict, n in verdicts.items())
    return (
        f"{_dots(view.claimed or ())}{' (in part)' if any(row.unclaimed for row in rows) else ''}",
        _dots(view.proven, upper),
        "" if all(math.isinf(row.pure) for row in rows) else _dots((row.pure for row in rows), upper),
        f">= {found}{whose}" if audited else "",
        "" if judged == NO_CLAIM else judged,  # where nothing is claimed there is nothing to judge
    )


def _dots(values: Iterable[float], shown: Callable[[float], str] = figure) -> str:
    return span(values, " .. ", shown)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(cell) for cell in column) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]

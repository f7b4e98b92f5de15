"""The privacy statement as markup: the run's own figure leads, and all other figures are folded away."""

from __future__ import annotations

import math

from sordino.privacy.statement import NO_CLAIM, NO_MEANINGFUL_PROTECTION, PROVEN, Row, Statement, View
from sordino.report import statement as words
from sordino.report.epsilons import HEAD, epsilon_lines, proofs
from sordino.report.markup import Markup, element, join
from sordino.report.records import Result
from sordino.report.style import bullets, folded, table
from sordino.report.words import capital, count, deltas, figure, lower, span, upper

_ELSEWHERE = ("worth", "not proven")  #: facts that stand beside the leading epsilon, or are folded away
_MOST_ROWS = 100  #: of a statement on the page; statement.json has them all


def leading_epsilon(statement: Statement | None) -> Markup | None:
    """The one epsilon that is shown large, with its terms and what it is worth; none where there is no statement."""
    if statement is None:
        return None
    if not statement.rows:
        return element("div", element("b", "Nothing was released", class_="words"), class_="headline lead-epsilon")
    view = statement.lead
    unproven = len(view.unproven) == len(view.rows)
    value = "no bound" if unproven else span(view.proven, shown=upper)
    is_long = len(value) > 8
    at = "epsilon: nothing is proven" if unproven else f"epsilon, proven at {deltas(view.deltas, upper)}"
    said = f"{at}, for {words.change(view)}, seen by {words.onlooker(view)}."
    is_weak = unproven or view.proven[1] > NO_MEANINGFUL_PROTECTION
    return element(
        "div",
        element("b", value, class_="words" if is_long else None),
        element("span", f"{said} {words.attacker_gain(view)}"),
        class_=f"headline lead-epsilon{' weak' if is_weak else ''}",
    )


def privacy_section(statement: Statement | None, result: Result | None = None) -> Markup:
    """What left the clients, in words; every epsilon but the leading one is in the folded table."""
    if statement is None:
        said = "This run's folder holds no privacy statement, so nothing can be said about what it protects."
        inner: list[Markup | None] = [element("h2", "Privacy statement"), element("p", said)]
    elif not statement.rows:
        inner = [element("h2", statement.title), *(element("p", said) for said in words.sentences(statement))]
    else:
        views, lead = statement.views, statement.lead
        differs = len({row.who for row in statement.rows}) > 1
        found = proofs([lead, *(view for view in views if view != lead)])
        inner = [
            element("h2", statement.title),
            *(element("p", caveat, class_="notice") for caveat in statement.caveats),
            join(_badges(statement, lead)),
            _facts({name: said for name, said in words.lead_facts(statement).items() if name not in _ELSEWHERE}),
            element("p", limits, class_="quiet") if (limits := words.limits(statement)) else None,
            element("p", words.SIMULATED, class_="quiet") if statement.simulated else None,
            folded("Why nothing is proven", element("p", capital(why))) if (why := words.reasons(lead)) else None,
            _other_epsilons(statement, result),
            _groups(statement) if differs else None,
            folded("What proves it", bullets(found)) if found and not differs else None,
            folded("The statement in words", bullets(words.sentences(statement))),
        ]
    return element("section", *inner, class_="card privacy")


def _facts(facts: dict[str, str]) -> Markup:
    entries = (element("div", element("dt", name), element("dd", capital(said))) for name, said in facts.items())
    return element("dl", *entries, class_="facts")


def _badges(statement: Statement, view: View) -> list[Markup]:
    said = list(words.verdicts(statement))
    if view.unproven:
        said.insert(0, "nothing is proven")
    elif view.proven[1] > NO_MEANINGFUL_PROTECTION:
        said.insert(0, "no meaningful protection")
    return [element("span", words, class_=f"badge {'good' if words == PROVEN else 'warn'}") for words in said]


def _other_epsilons(statement: Statement, result: Result | None) -> Markup:
    lines = epsilon_lines(statement, result)
    title = f"All {len(lines)} epsilons of this run, and how they relate" if len(lines) > 1 else "The epsilon, in full"
    return folded(
        title, table(HEAD, [line.cells for line in lines]), element("p", words.meanings(statement), class_="quiet")
    )


def _groups(statement: Statement) -> Markup:
    """Every group of clients with its own figures and proofs, where they differ."""
    shown = statement.rows[:_MOST_ROWS]
    head = ["clients", "what may change", "who is looking", "claimed", "proven", "at delta 0", "audited", "verdict",
            "proof"]  # fmt: skip
    found = dict.fromkeys(proof for row in shown if (proof := words.proof(View((row,)))))
    notes = {proof: f"[{number}]" for number, proof in enumerate(found, 1)}
    rows = [[*_row(row), notes.get(words.proof(View((row,))), "")] for row in shown]
    rest = len(statement.rows) - len(shown)
    more = element("p", f"{count(rest)} more rows are in statement.json.", class_="quiet") if rest else None
    listing = bullets([f"{note} {proof}" for proof, note in notes.items()]) if notes else None
    return folded("Groups of clients, their figures and what proves these", table(head, rows), more, listing)


def _row(row: Row) -> list[object]:
    claimed = "" if row.claimed is None else _at(figure(row.claimed.epsilon), figure(row.claimed.delta))
    claimed += f", in part: not of {', '.join(row.unclaimed)}" if row.unclaimed else ""
    return [
        words.named(row.who),
        str(row.adjacency),
        str(row.adversary),
        claimed,
        _at(upper(row.proven), upper(row.delta)),
        "" if math.isinf(row.pure) else upper(row.pure),
        "" if row.audited is None else _at(f"≥ {lower(row.audited.epsilon)}", lower(row.audited.delta)),
        "" if row.verdict == NO_CLAIM else row.verdict,
    ]


def _at(value: str, delta: str) -> str:
    return f"{value} (delta {delta})"

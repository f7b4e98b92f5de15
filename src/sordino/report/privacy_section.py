"""The privacy statement as markup: the figure that leads, then everything else, folded away."""

from __future__ import annotations

import math

from sordino.privacy.statement import NO_CLAIM, NO_MEANINGFUL_PROTECTION, PROVEN, Row, Statement, View, leading
from sordino.report import statement as words
from sordino.report.markup import Markup, element, join
from sordino.report.style import bullets, folded, table
from sordino.report.words import capital, count, counted, deltas, figure, span

_MOST_ROWS = 100  #: of a statement on the page; statement.json has them all


def privacy_section(statement: Statement | None) -> Markup:
    """What left the clients: proven, claimed and audited, each in its own place and never one for another."""
    if statement is None:
        said = "This run's folder holds no privacy statement, so nothing can be said about what it protects."
        inner: list[Markup | None] = [element("h2", "Privacy statement"), element("p", said)]
    elif not statement.rows:
        inner = [element("h2", statement.title), *(element("p", said) for said in words.sentences(statement))]
    else:
        views = statement.views
        lead = leading(views)
        others = [_view(view) for view in views if view is not lead]
        inner = [
            element("h2", statement.title),
            *(element("p", caveat, class_="notice") for caveat in statement.caveats),
            element("div", _view(lead, words.trust(lead)), class_="views"),
            element("p", words.meanings(statement), class_="quiet"),
            element("p", limits, class_="quiet") if (limits := words.limits(statement)) else None,
            element("p", words.SIMULATED, class_="quiet") if statement.simulated else None,
            folded("Other changes and other onlookers", element("div", *others, class_="views")) if others else None,
            _table(statement),
            folded("The statement in words", bullets(words.sentences(statement))),
        ]
    return element("section", *inner, class_="card privacy")


def _view(view: View, *beside: str) -> Markup:
    low, high = view.proven
    noise, proof, formulas, reasons = words.noise(view), words.proof(view), words.formulas(view), words.reasons(view)
    found = {"Proof": proof, "Claim": formulas}
    details = [element("p", f"{name}: {said}", class_="basis") for name, said in found.items() if said]
    return element(
        "article",
        element("h3", capital(words.change(view))),
        element("p", f"adjacency {view.adjacency}, against {words.adversary(view)}", class_="quiet"),
        element("dl", *_figures(view), class_="figures"),
        join(_badges(view)),
        element("p", f"{capital(noise)}.", class_="basis") if noise and proof else None,
        *(element("p", said, class_="basis") for said in beside),
        element("p", f"Not proven because: {reasons}", class_="basis") if reasons else None,
        _vector_words(view) if low != high else None,
        folded("Details", *details) if details else None,
        class_="view",
    )


def _figures(view: View) -> list[Markup]:
    figures = [_figure("proven", span(view.proven), deltas(view.deltas))]
    if view.claimed is not None:
        figures.append(_figure("claimed", span(view.claimed), words.claim_terms(view)))
    if view.audited is not None:
        bound = view.audited
        figures.append(_figure("audited", f"≥ {figure(bound.epsilon)}", deltas((bound.delta,))))
    return figures


def _figure(kind: str, value: str, beside: str) -> Markup:
    small = element("small", f"at {beside}")
    return element("div", element("dt", f"{kind} epsilon"), element("dd", value, small), class_=kind)


def _badges(view: View) -> list[Markup]:
    said = [verdict for verdict in view.verdicts if verdict != NO_CLAIM]
    if view.unproven:
        said.insert(0, "nothing is proven")
    elif view.proven[1] > NO_MEANINGFUL_PROTECTION:
        said.insert(0, "no meaningful protection")
    return [element("span", words, class_=f"badge {'good' if words == PROVEN else 'warn'}") for words in said]


def _vector_words(view: View) -> Markup:
    groups = counted(len(view.rows), "group")
    return element(
        "p", f"Clients differ: {groups} with figures of their own, none of which stands for all.", class_="basis"
    )


def _table(statement: Statement) -> Markup:
    shown = statement.rows[:_MOST_ROWS]
    head = ["clients", "what may change", "who is looking", "claimed", "proven", "at delta 0", "audited",
            "verdict", "proof"]  # fmt: skip
    proofs = dict.fromkeys(proof for row in shown if (proof := words.proof(View((row,)))))
    notes = {proof: f"[{number}]" for number, proof in enumerate(proofs, 1)}
    rows = [[*_row(row), notes.get(words.proof(View((row,))), "")] for row in shown]
    rest = len(statement.rows) - len(shown)
    more = element("p", f"{count(rest)} more rows are in statement.json.", class_="quiet") if rest else None
    listing = bullets([f"{note} {proof}" for proof, note in notes.items()]) if notes else None
    return folded("All figures of the statement", table(head, rows), more, listing)


def _row(row: Row) -> list[object]:
    claimed = "" if row.claimed is None else _at(figure(row.claimed.epsilon), row.claimed.delta)
    claimed += f", in part: not of {', '.join(row.unclaimed)}" if row.unclaimed else ""
    return [
        words.named(row.who),
        str(row.adjacency),
        str(row.adversary),
        claimed,
        _at(figure(row.proven), row.delta),
        "" if math.isinf(row.pure) else figure(row.pure),
        "" if row.audited is None else _at(f"≥ {figure(row.audited.epsilon)}", row.audited.delta),
        "" if row.verdict == NO_CLAIM else row.verdict,
    ]


def _at(value: str, delta: float) -> str:
    return f"{value} (delta {figure(delta)})"

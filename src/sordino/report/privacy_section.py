"""The privacy statement in its place of honour on a run's page: a card for each onlooker and change, then all of it."""

from __future__ import annotations

from sordino.privacy.statement import figure
from sordino.report.markup import Markup, element, join
from sordino.report.stated import Stated, StatedRow, View, deltas, span
from sordino.report.style import bullets, folded, table
from sordino.report.words import count, counted

_MOST_ROWS = 100  #: of a statement on the page; statement.json has them all
_OPEN_SENTENCES = 12  #: more of them are folded away


def privacy_section(stated: Stated | None) -> Markup:
    """What left the clients: proven, claimed and audited, each in its own place and never one for another."""
    if stated is None:
        inner: list[Markup | None] = [
            element("h2", "Privacy statement"),
            element(
                "p", "This run's folder holds no privacy statement, so nothing can be said about what it protects."
            ),
        ]
    elif not stated.rows:
        inner = [element("h2", stated.title), *(element("p", sentence) for sentence in stated.sentences)]
    else:
        inner = [
            element("h2", stated.title),
            element("p", "What left the clients, what is proven about it, and what was only claimed.", class_="quiet"),
            *(element("p", caveat, class_="notice") for caveat in stated.caveats),
            element("div", *(_view(view) for view in stated.views), class_="views"),
            _statement_table(stated),
            _statement_words(stated),
        ]
    return element("section", *inner, class_="card privacy")


def _view(view: View) -> Markup:
    low, high = view.proven
    title = view.change[:1].upper() + view.change[1:]
    return element(
        "article",
        element("h3", title),
        element("p", f"adjacency {view.adjacency}, against {view.adversary}", class_="quiet"),
        element("dl", *_view_figures(view), class_="figures"),
        join(_badges(view)),
        element("p", f"Not proven because: {view.reasons}", class_="basis") if view.reasons else None,
        element("p", f"Proof: {view.proof}", class_="basis") if view.proof else None,
        element("p", f"Claim: {view.formulas}", class_="basis") if view.formulas else None,
        _vector_words(view) if low != high else None,
        class_="view",
    )


def _view_figures(view: View) -> list[Markup]:
    figures = [_figure("proven", "proven epsilon", span(view.proven), deltas(view.deltas))]
    if view.claimed is not None:
        figures.append(_figure("claimed", "claimed epsilon", span(view.claimed), _claim_terms(view)))
    if view.audited is not None:
        bound = view.audited
        figures.append(_figure("audited", "audited epsilon", f"≥ {figure(bound.epsilon)}", deltas((bound.delta,))))
    return figures


def _claim_terms(view: View) -> str:
    """A claim's delta, and what it is about where that is not what the card is about, or not all of it."""
    part = f"of {', '.join(view.covered)} only: no claim speaks of {', '.join(view.unclaimed)}"
    terms = [deltas(view.claimed_deltas), *(f"for adjacency {name}" for name in view.claimed_for)]
    return ", ".join([*terms, part] if view.unclaimed else terms)


def _figure(kind: str, what: str, value: str, beside: str) -> Markup:
    return element("div", element("dt", what), element("dd", value, element("small", f"at {beside}")), class_=kind)


def _badges(view: View) -> list[Markup]:
    badges = []
    if view.proven[1] == float("inf"):
        badges.append(element("span", "nothing is proven", class_="badge warn"))
    elif view.meaningless:
        badges.append(element("span", "no meaningful protection", class_="badge warn"))
    judged = [verdict for verdict in view.verdicts if verdict != "no claim"]
    kinds = {"claim proven": "good"}
    return [*badges, *(element("span", verdict, class_=f"badge {kinds.get(verdict, 'warn')}") for verdict in judged)]


def _vector_words(view: View) -> Markup:
    groups = counted(len(view.rows), "group")
    return element(
        "p", f"Clients differ: {groups} with figures of their own, none of which stands for all.", class_="basis"
    )


def _statement_table(stated: Stated) -> Markup:
    shown = stated.rows[:_MOST_ROWS]
    head = ["clients", "what may change", "who is looking", "claimed", "proven", "proven (pure)", "audited", "verdict",
            "proof"]  # fmt: skip
    notes = {proof: f"[{number}]" for number, proof in enumerate(dict.fromkeys(r.proof for r in shown if r.proof), 1)}
    rows = [[*_statement_row(row), notes.get(row.proof, "")] for row in shown]
    used = [k for k in range(len(head)) if any(row[k] for row in rows)]
    drawn = table([head[k] for k in used], [[row[k] for k in used] for row in rows])
    rest = len(stated.rows) - len(shown)
    more = element("p", f"{count(rest)} more rows are in statement.json.", class_="quiet") if rest else None
    proofs = bullets([f"{note} {proof}" for proof, note in notes.items()]) if notes else None
    return folded("All figures of the statement", drawn, more, proofs)


def _statement_row(row: StatedRow) -> list[object]:
    claimed = "" if row.claimed is None else _at(figure(row.claimed.epsilon), row.claimed.delta)
    claimed += f", in part: not of {', '.join(row.unclaimed)}" if row.unclaimed else ""
    audited = "" if row.audited is None else _at(f"≥ {figure(row.audited.epsilon)}", row.audited.delta)
    proven = _at(figure(row.proven.epsilon), row.proven.delta)
    return [
        row.whose, row.adjacency, row.adversary, claimed, proven, figure(row.pure), audited, row.verdict
    ]  # fmt: skip


def _at(value: str, delta: float) -> str:
    return f"{value} (delta {figure(delta)})"


def _statement_words(stated: Stated) -> Markup:
    if len(stated.sentences) <= _OPEN_SENTENCES:
        return join([element("h3", "In words"), bullets(stated.sentences)])
    return folded("The statement in words", bullets(stated.sentences))


__all__ = ["privacy_section"]

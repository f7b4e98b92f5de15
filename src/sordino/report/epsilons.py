"""All epsilons of a run in one table: the run's own first, then every other with how it relates to that one."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sordino.privacy.guarantee import Adjacency
from sordino.privacy.statement import Statement, View
from sordino.report import statement as words
from sordino.report.words import capital, deltas, figure, listed, lower, span, upper

if TYPE_CHECKING:
    from sordino.report.records import Result

LEADS = "the run's own figure"
HEAD = ("epsilon", "what it is", "what may change", "who is looking", "an attacker is right", "beside the first")

_CHANGES = {
    Adjacency.CLIENT: "everything a client sends may change, not one record alone",
    Adjacency.RECORD_REPLACE: "to exchange a record is to remove one and add another",
    Adjacency.RECORD_ADD_REMOVE: "a record comes or goes, and no other takes its place",
    Adjacency.LABEL: "the label of a record may change, and nothing else of it",
    Adjacency.COORDINATE: "a single value of a single upload, of which there are many",
}
_ONLOOKERS = {
    "server": "it holds without trusting anybody but the client itself",
    "shuffled": "it holds where the shuffler is trusted",
    "summed": "it holds where the server sees sums alone",
    "model reader": "it holds for those who see the trained model alone",
}


@dataclass(frozen=True)
class EpsilonLine:
    """One epsilon of a run, with its terms."""

    epsilon: str
    kind: str  #: proven, claimed, audited, limit, spent or target
    what: str  #: that in words, with the delta
    change: str
    onlooker: str
    guesses: str  #: how often an attacker is right; of proven figures alone
    relation: str  #: to the figure that leads

    @property
    def cells(self) -> list[object]:
        """One cell for each column of `HEAD`."""
        return [self.epsilon, self.what, self.change, self.onlooker, self.guesses, self.relation]


def epsilon_lines(statement: Statement, result: Result | None = None) -> list[EpsilonLine]:
    """Every epsilon of a run, the leading one first; with its result, also what its ledgers and its recipe say."""
    lead = statement.lead
    ordered = [lead, *(view for view in statement.views if view != lead)]
    found = [line for view in ordered for line in _of_view(view, lead)]
    return found if result is None else [*found, *_of_ledgers(result, statement), *_of_target(result.settings)]


def relation(view: View, lead: View) -> str:
    """How the figure of a view relates to the leading one: in what they differ."""
    if view == lead:
        return LEADS
    said = [_CHANGES[view.adjacency]] if view.adjacency != lead.adjacency else []
    if view.key[0] != lead.key[0] or not said:
        said.append(_ONLOOKERS[view.adversaries[0].kind])
    return "; ".join(said)


def _of_view(view: View, lead: View) -> Iterator[EpsilonLine]:
    terms = words.change(view), words.onlooker(view)
    beside = relation(view, lead)
    at = f"proven, {deltas(view.deltas, upper)}"
    yield EpsilonLine(span(view.proven, shown=upper), "proven", at, *terms, words.guesses(view), beside)
    pure = [row.pure for row in view.rows]
    if max(pure) < math.inf and span(pure, shown=upper) != span(view.proven, shown=upper):
        yield EpsilonLine(
            span(pure, shown=upper), "proven", "proven, delta 0", *terms, "", "the same without any delta"
        )
    if view.claimed is not None:
        judged = listed(list(view.verdicts))
        claimed = f"claimed, {words.claim_terms(view)}"
        yield EpsilonLine(span(view.claimed), "claimed", claimed, *terms, "", f"what a paper's formula gives: {judged}")
    if (bound := view.audited) is not None:
        audited = f"audited, {deltas((bound.delta,), lower)}"
        reached = "what an attack on this run reached: a lower bound"
        yield EpsilonLine(f"≥ {lower(bound.epsilon)}", "audited", audited, *terms, "", reached)


def _of_ledgers(result: Result, statement: Statement) -> Iterator[EpsilonLine]:
    """What ledgers allow and count, about the change and the onlooker that the run was planned for."""
    if result.budget_terms is None:
        return
    about, terms = result.budget_terms, ("", "")
    own = [view for view in statement.views if statement.planned is not None and statement.planned.fits(view)]
    if own:
        (basis, *_, delta), terms = about.split(", "), (words.change(own[0]), words.onlooker(own[0]))
        about = f"{basis}, {delta}"
    limits = [budget.limit for budget in result.budgets if budget.limit is not None]
    if limits:
        yield EpsilonLine(span(limits), "limit", about, *terms, "", "what each client's ledger allows")
    if spent := [budget.spent for budget in result.budgets if budget.spent is not None]:
        counted = (
            "what the ledgers counted: their sums hold even if the server chooses each round after seeing the last, "
            "so they may count more than is proven of rounds fixed in advance"
        )
        yield EpsilonLine(span(spent, shown=upper), "spent", about, *terms, "", counted)


def _of_target(settings: Mapping[str, object]) -> Iterator[EpsilonLine]:
    """What the recipe asked for, where it names a target."""
    target = settings.get("method.target")
    if isinstance(target, Mapping) and isinstance(epsilon := target.get("epsilon"), (int, float)):
        at = f"target, {deltas([float(target.get('delta', 0.0))])}"
        asked = "what the recipe asks for at most: the noise follows from it"
        yield EpsilonLine(figure(float(epsilon)), "target", at, "", "", "", asked)


def proofs(views: Sequence[View]) -> list[str]:
    """What proves each figure, once where it proves several."""
    found: dict[str, list[str]] = {}
    for view in views:
        if proof := words.proof(view):
            found.setdefault(proof, []).append(f"{words.change(view)}, seen by {words.onlooker(view)}")
    return [f"{capital(listed(about))}: {proof}" for proof, about in found.items()]


__all__ = ["HEAD", "LEADS", "EpsilonLine", "epsilon_lines", "proofs", "relation"]

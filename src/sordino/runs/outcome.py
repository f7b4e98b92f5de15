"""The outcome of a run: its result, its privacy statement and its model, and the files that hold them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from sordino.parts.timeline import phase
from sordino.privacy import history
from sordino.privacy.history import Holders, RoundReleases
from sordino.privacy.statement import PlannedFor, Statement
from sordino.report.caveats import caveats
from sordino.report.folder import RunFolder
from sordino.report.records import ClientBudget
from sordino.runs.federation import Federation
from sordino.runs.model_file import write_model
from sordino.runs.run_figures import RunFigures
from sordino.runs.validation_scores import score_releases


@dataclass(frozen=True, eq=False)
class Outcome(RunFigures):
    """The result of a run, its rounds, its statement and its model."""

    parameters: NDArray[np.float32]
    tensors: Mapping[str, NDArray[np.float32]]


def write_outcome(folder: RunFolder, outcome: Outcome, federation: Federation) -> Outcome:
    """Write the outcome of a run of this federation; the page comes last."""
    from sordino.report.page import report_page

    write_model(folder, federation, outcome.tensors)
    folder.write_statement(outcome.statement)
    folder.write_result(outcome.result)
    with phase("page"):
        folder.write_report(report_page(folder))
    return replace(outcome, folder=folder.path)


def statement_of(federation: Federation, spent: Sequence[RoundReleases], rounds: int, *, simulated: bool) -> Statement:
    """The privacy statement of a run of so many rounds, without any audit; `simulated` where noise follows a seed."""
    title = f"Privacy statement of {federation.recipe.name}"
    scores = score_releases(federation.recipe.settings(), federation.clients)
    with phase("composition of privacy"):
        found = history.statement([*scores, *spent], federation.clients, delta=federation.delta, title=title)
    budget = next(iter(federation.budgets or ()), None)
    planned = None if budget is None else PlannedFor(budget.adjacency, budget.adversary.kind)
    said = caveats(federation.recipe, rounds, simulated=simulated)
    return replace(found, caveats=said, simulated=simulated, planned=planned)


def client_budgets(
    federation: Federation, spent: Sequence[RoundReleases], spending: Sequence[float] | None
) -> tuple[ClientBudget, ...]:
    """Each client's share in the releases; `spending` is what their ledgers have counted, None where nobody knows."""
    clients, epsilons = federation.clients, federation.recipe.epsilons()
    if any(one.names for one in spent):
        return _member_budgets(spent, clients, epsilons)
    limits = None if spending is None else federation.budgets  # real owners set their own, and tell nobody
    reports, declined = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
    for one in spent:
        for who in one.reporters if one.round else ():  # before the first round nothing is reported
            reports[list(who)] += 1
        declined[list(one.declined)] += 1
    return tuple(
        ClientBudget(
            k,
            epsilon=None if epsilons is None else epsilons[k],
            limit=None if limits is None else limits[k].limit,
            spent=spending[k] if spending else None,
            reports=int(reports[k]),
            declined=int(declined[k]),
        )
        for k in range(clients)
    )


def _member_budgets(
    spent: Sequence[RoundReleases], clients: int, epsilons: Sequence[float] | None
) -> tuple[ClientBudget, ...]:
    """Each member's share in the releases; one for each holder of a number that changed hands."""
    holders, reports, declined = Holders(spent, clients), Counter[int](), Counter[int]()
    for one in spent:
        for who in one.reporters if one.round else ():
            for number in who:
                reports.update(holders.of(one, number))
        for number in one.declined:
            declined.update(holders.of(one, number))
    return tuple(
        ClientBudget(
            number,
            epsilon=None if epsilons is None else epsilons[number],
            reports=reports[k],
            declined=declined[k],
            name=label,
        )
        for k, (number, label) in enumerate(zip(holders.numbers, holders.labels, strict=True))
    )


__all__ = ["Outcome", "client_budgets", "statement_of", "write_outcome"]

"""`sordino ledger`: the owner looks into the ledger, sets budgets and consents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, cast

import typer

from sordino.cli.options import ADJACENCY, AsJson, Unproven
from sordino.cli.printing import json_figure, left, print_json, print_table
from sordino.errors import InvalidInput, SordinoError
from sordino.privacy.guarantee import Budget, Claim, Derived, Guarantee, Release
from sordino.privacy.terms import adjacency_named, adversary_named
from sordino.report.words import figure, lower, upper

if TYPE_CHECKING:
    from sordino.privacy.accountant import Account
    from sordino.privacy.ledger import Entry, Ledger, Standing

app = typer.Typer(
    no_args_is_help=True,
    help="The owner's ledger: what has left, what it cost, and what may still leave.",
)

LedgerPath = Annotated[Path, typer.Argument(metavar="PATH", help="The ledger, an SQLite file.")]
Dataset = Annotated[str, typer.Argument(help="The data set, by the name its owner gave it.")]


@app.command()
def show(path: LedgerPath, as_json: AsJson = False) -> None:
    """Show every data set with its budget, what is spent and left, and every entry.

    An epsilon is shown with its basis, adjacency and adversary, or not at all. UNPROTECTED means: left without a proof,
    with the owner's consent.
    """
    from sordino.privacy.ledger import Ledger

    with Ledger.open(path) as ledger:
        standings, entries = ledger.standings(), ledger.entries()
    if as_json:
        sets = [_standing_as_json(name, standing) for name, standing in standings.items()]
        lines = [_entry_as_json(entry, standings) for entry in entries]
        print_json({"path": str(path), "head": entries[-1].hash, "datasets": sets, "entries": lines})
        return
    _print_standings(standings)
    names = ("data set", "federation", "round", "what", "proven epsilon, alone", "claimed epsilon")
    rows = (
        (str(entry.sequence), entry.time.replace("T", " "), *cells)
        for entry in entries
        for cells in _entry_rows(entry, standings)
    )
    columns = [*left("#", "time"), *left(*names, min_width=12)]
    print_table("Entries", columns, rows, spare=("time", "federation"))
    typer.echo(f"{len(entries)} entries, all checked. Head, for a receipt kept elsewhere: {entries[-1].hash}")


@app.command()
def verify(
    path: LedgerPath,
    head: Annotated[str | None, typer.Option(metavar="HASH", help="A head from an earlier receipt.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check the whole file. Exit code 1 and a sentence if it is damaged.

    Without --head nobody can tell that the last entries were cut off or that an older copy was put back.
    """
    from sordino.privacy.ledger import Ledger

    receipt = None if head is None else _head(head)
    try:
        with Ledger.open(path) as ledger:
            last = ledger.verify(expected_head=receipt)
    except SordinoError as error:
        if not as_json:
            raise
        print_json({"path": str(path), "sound": False, "reason": str(error)})
        raise typer.Exit(1) from None
    if as_json:
        print_json({"path": str(path), "sound": True, "entries": last.sequence, "head": last.hash})
        return
    typer.echo(f"{path}: {last.sequence} entries, the chain is whole. Head: {last.hash}")
    if head is None:
        typer.echo("A chain alone cannot notice cut-off last entries or an older copy: keep the head for --head.")
    else:
        typer.echo("It contains the head of your receipt: nothing recorded up to then is missing.")


def _head(given: str) -> str:
    """A head as it was printed; what cannot be one says nothing about the ledger."""
    found = given.strip().lower()
    if len(found) != 64 or set(found) - set("0123456789abcdef"):
        raise InvalidInput(
            f"--head {given[:80]!r} is no head of a ledger: it has 64 hexadecimal digits. Copy it from your receipt as "
            "`sordino ledger show` or `sordino ledger verify` printed it; the ledger was not looked at"
        )
    return found


@app.command()
def budget(
    path: LedgerPath,
    dataset: Dataset,
    epsilon: Annotated[float, typer.Option(help="The limit, above 0.")],
    delta: Annotated[float | None, typer.Option(help="The delta at which epsilon is counted; 0 at first.")] = None,
    basis: Annotated[str | None, typer.Option(help="proven or claimed; proven at first.")] = None,
    adjacency: Annotated[str | None, typer.Option(help=f"{ADJACENCY}.")] = None,
    adversary: Annotated[
        str | None, typer.Option(help="From whom: server, model-reader, shuffled(N) or summed(N).")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before loosening a budget.")] = False,
    as_json: AsJson = False,
) -> None:
    """Set the budget of a data set; makes the ledger if there is none.

    Options left out keep their present value. A raised limit, and any other change that may let more leave, is asked
    about first, and stays visible in the ledger for ever.
    """
    _change_budget(None, epsilon, delta, basis, adjacency, adversary)  # refuse bad options before a file is made
    with _open_or_create(path) as ledger:
        before = ledger.standing(dataset).budget
        after = _change_budget(before, epsilon, delta, basis, adjacency, adversary)
        if before is not None and _loosens(before, after) and not yes:
            question = f"Change {dataset!r} from {_in_words(before)} to {_in_words(after)}? More may leave then"
            typer.confirm(question, abort=True, err=True)
        ledger.set_budget(dataset, after)
        _print_standing(dataset, ledger.standing(dataset), as_json)


@app.command()
def consent(
    path: LedgerPath,
    dataset: Dataset,
    unproven: Unproven = None,
    claimed: Annotated[bool, typer.Option("--claimed", help="A budget may count claimed epsilons.")] = False,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Withdraw these consents instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Agree to what nothing proves, for one data set; makes the ledger if there is none.

    Without this, a release without a proof and a budget of claimed epsilons are refused.
    """
    if not unproven and not claimed:
        raise InvalidInput("say what you agree to: --unproven WHAT (as often as needed), --claimed, or both")
    with _open_or_create(path) as ledger:
        for what in unproven or []:
            ledger.set_consent(dataset, what, granted=not withdraw)
        if claimed:
            ledger.set_consent(dataset, None, granted=not withdraw)
        _print_standing(dataset, ledger.standing(dataset), as_json)


def _open_or_create(path: Path) -> Ledger:
    from sordino.privacy.ledger import Ledger

    if path.exists():
        return Ledger.open(path)
    ledger = Ledger.create(path)
    typer.echo(f"Made a new ledger: {path}", err=True)
    return ledger


def _change_budget(
    before: Budget | None,
    epsilon: float,
    delta: float | None,
    basis: str | None,
    adjacency: str | None,
    adversary: str | None,
) -> Budget:
    """The budget that the options describe, with what they leave out taken from the one before."""
    base = before or Budget(limit=1.0)
    return Budget(
        limit=epsilon,
        delta=base.delta if delta is None else delta,
        basis=base.basis if basis is None else cast(Literal["proven", "claimed"], basis),
        adjacency=base.adjacency if adjacency is None else adjacency_named(adjacency),
        adversary=base.adversary if adversary is None else adversary_named(adversary),
    )


def _loosens(before: Budget, after: Budget) -> bool:
    """Whether more may leave than before, or may for all that anyone can tell: other terms cannot be compared."""
    same_terms = (before.basis, before.adjacency, before.adversary) == (after.basis, after.adjacency, after.adversary)
    return not same_terms or after.limit > before.limit or after.delta > before.delta


def _in_words(budget: Budget) -> str:
    from sordino.privacy.ledger import terms

    return f"epsilon {budget.limit:.4g} ({terms(budget)})"


def _print_standing(dataset: str, standing: Standing, as_json: bool) -> None:
    if as_json:
        print_json(_standing_as_json(dataset, standing))
    else:
        _print_standings({dataset: standing})


def _print_standings(standings: dict[str, Standing]) -> None:
    columns = left("data set", "budget", "spent", "left", "releases", "consents")
    print_table("Data sets", columns, (row for each in standings.items() for row in _standing_rows(*each)))


def _standing_rows(name: str, standing: Standing) -> Iterator[tuple[str, ...]]:
    """A row for the budget, and one for that of secure sums where there is one."""
    unprotected = f", {standing.unprotected} UNPROTECTED" if standing.unprotected else ""
    consents = [f"unproven {what!r}" for what in sorted(standing.consents.unproven)]
    consents += ["claimed budgets"] * standing.consents.claimed
    last = (f"{standing.releases}{unprotected}", ", ".join(consents) or "none")
    if standing.budget is None:
        yield name, "none: nothing may leave", "", "", *last
    for account in standing.accounts:
        yield name, _in_words(account.budget), upper(account.spent), lower(account.remaining), *last
        last = ("of these, in secure sums", "")


def _entry_rows(entry: Entry, standings: dict[str, Standing]) -> Iterator[tuple[str, ...]]:
    """What follows number and time: one row for an owner's decision, one per release for a report."""
    from sordino.privacy.ledger import BudgetSet, ConsentChanged, Opened, Released, SummedBudgetSet

    match entry.event:
        case Opened(ledger):
            yield "", "", "", f"ledger {ledger} opened", "", ""
        case BudgetSet(dataset, budget):
            yield dataset, "", "", f"budget set to {_in_words(budget)}", "", ""
        case SummedBudgetSet(dataset, second):
            set_to = "given up" if second is None else f"set to {_in_words(second)}"
            yield dataset, "", "", f"budget for secure sums {set_to}", "", ""
        case ConsentChanged(dataset, what, granted):
            verb = "given" if granted else "withdrawn"
            thing = "claimed budgets" if what is None else f"unproven {what!r}"
            yield dataset, "", "", f"consent {verb}: {thing}", "", ""
        case Released(key, releases, unprotected):
            for release in releases:
                flag = " UNPROTECTED" if release.id in unprotected else ""
                proven, claimed = _proven_in_words(release, _delta(standings[key.dataset])), ""
                if (claim := release.claimed) is not None:
                    claimed = f"{figure(claim.epsilon)} at delta {figure(claim.delta)} by {claim.formula}"
                yield key.dataset, key.federation, str(key.round), release.what + flag, proven, claimed


def _delta(standing: Standing) -> float:
    """The delta at which the epsilons of single releases are shown: the budget's."""
    return 0.0 if standing.budget is None else standing.budget.delta


def _proven_in_words(release: Release, delta: float) -> str:
    """The epsilon of one release by itself, a line for each of its guarantees."""
    if isinstance(release.composition, Derived):
        return f"nothing new: derived from {', '.join(release.composition.releases)}"
    at = f" at delta {upper(delta)}" if delta else ""
    return "\n".join(
        f"{upper(_epsilon(each, delta))}{at}, {each.adjacency}, against {each.adversary} ({each.basis})"
        for each in release.guarantees
    )


def _proven_as_json(release: Release, delta: float) -> list[dict[str, object]]:

    if isinstance(release.composition, Derived):
        return [{"epsilon": 0.0, "derived_from": list(release.composition.releases)}]
    return [
        {"epsilon": json_figure(_epsilon(each, delta)), "delta": delta, **terms_as_json(each), "basis": each.basis}
        for each in release.guarantees
    ]


@cache
def _epsilon(guarantee: Guarantee, delta: float) -> float:
    from sordino.privacy.accountant import epsilon

    return epsilon(guarantee.loss, delta, adjacency=guarantee.adjacency)


def terms_as_json(terms: Budget | Claim | Guarantee) -> dict[str, object]:
    """Without these an epsilon means nothing."""
    return {"adjacency": str(terms.adjacency), "adversary": str(terms.adversary)}


def budget_as_json(budget: Budget) -> dict[str, object]:
    """A budget for programs."""
    return {"limit": budget.limit, "delta": budget.delta, "basis": budget.basis, **terms_as_json(budget)}


def _account_as_json(account: Account | None) -> dict[str, object]:
    if account is None:
        return {"budget": None, "spent": 0.0, "left": 0.0}
    spent = json_figure(account.spent)
    return {"budget": budget_as_json(account.budget), "spent": spent, "left": account.remaining}


def _standing_as_json(dataset: str, standing: Standing) -> dict[str, object]:
    return {
        "dataset": dataset,
        **_account_as_json(standing.account),
        "releases": standing.releases,
        "unprotected": standing.unprotected,
        "summed": None if standing.summed is None else _account_as_json(standing.summed),
        "consents": {"unproven": sorted(standing.consents.unproven), "claimed": standing.consents.claimed},
    }


def _claim_as_json(claim: Claim) -> dict[str, object]:
    figures = {"epsilon": claim.epsilon, "delta": claim.delta, "formula": claim.formula}
    return {**figures, **terms_as_json(claim), "covers": claim.covers}


def _entry_as_json(entry: Entry, standings: dict[str, Standing]) -> dict[str, object]:
    from sordino.privacy.ledger import BudgetSet, ConsentChanged, Opened, Released, SummedBudgetSet

    line: dict[str, object] = {"entry": entry.sequence, "time": entry.time, "hash": entry.hash}
    match entry.event:
        case Opened(ledger):
            return {**line, "kind": "opened", "ledger": ledger}
        case BudgetSet(dataset, budget):
            return {**line, "kind": "budget", "dataset": dataset, "budget": budget_as_json(budget)}
        case SummedBudgetSet(dataset, second):
            told = None if second is None else budget_as_json(second)
            return {**line, "kind": "summed budget", "dataset": dataset, "budget": told}
        case ConsentChanged(dataset, what, granted):
            kind = "claimed" if what is None else "unproven"
            return {**line, "kind": "consent", "dataset": dataset, "to": kind, "what": what, "granted": granted}
        case Released(key, releases, unprotected, report_sha256, pinned):
            return {
                **line,
                "kind": "release",
                "pinned": pinned,
                **asdict(key),
                "report_sha256": report_sha256,
                "releases": [
                    {
                        "id": release.id,
                        "what": release.what,
                        "proven": _proven_as_json(release, _delta(standings[key.dataset])),
                        "claimed": release.claimed and _claim_as_json(release.claimed),
                        "unprotected": release.id in unprotected,
                    }
                    for release in releases
                ],
            }

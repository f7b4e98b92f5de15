"""`sordino ledger`: the owner looks into the ledger, sets budgets and consents."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from sordino.cli.printing import AsJson, json_figure, plain_errors, print_json, print_tables
from sordino.errors import InvalidInput, SordinoError
from sordino.report.words import decimal

if TYPE_CHECKING:
    from rich.table import Table

    from sordino.privacy.accountant import Account
    from sordino.privacy.guarantee import Budget, Claim, Guarantee, Release
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

    with plain_errors(), Ledger.open(path) as ledger:
        standings, entries = ledger.standings(), ledger.entries()
    if as_json:
        print_json(
            {
                "path": str(path),
                "head": entries[-1].hash,
                "datasets": [_standing_as_json(name, standing) for name, standing in standings.items()],
                "entries": [_entry_as_json(entry, standings) for entry in entries],
            }
        )
        return
    print_tables(_standings_table(standings), _entries_table(entries, standings), spare=("time", "federation"))
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

    with plain_errors():
        receipt = None if head is None else _head(head)
    try:
        with Ledger.open(path) as ledger:
            last = ledger.verify(expected_head=receipt)
    except SordinoError as error:
        if as_json:
            print_json({"path": str(path), "sound": False, "reason": str(error)})
        else:
            typer.echo(str(error), err=True)
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
    adjacency: Annotated[
        str | None,
        typer.Option(help="What is hidden: client, record-replace, record-add-remove, label or coordinate."),
    ] = None,
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
    with plain_errors():
        _changed(None, epsilon, delta, basis, adjacency, adversary)  # refuse bad options before a file is made
    with plain_errors(), _opened_or_created(path) as ledger:
        before = ledger.standing(dataset).budget
        after = _changed(before, epsilon, delta, basis, adjacency, adversary)
        if before is not None and _loosens(before, after) and not yes:
            question = f"Change {dataset!r} from {_in_words(before)} to {_in_words(after)}? More may leave then"
            typer.confirm(question, abort=True, err=True)
        ledger.set_budget(dataset, after)
        _print_standing(dataset, ledger.standing(dataset), as_json)


@app.command()
def consent(
    path: LedgerPath,
    dataset: Dataset,
    unproven: Annotated[
        list[str] | None, typer.Option(metavar="WHAT", help="A kind of release that may leave without a proof.")
    ] = None,
    claimed: Annotated[bool, typer.Option("--claimed", help="A budget may count claimed epsilons.")] = False,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Withdraw these consents instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Agree to what nothing proves, for one data set; makes the ledger if there is none.

    Without this, a release without a proof and a budget of claimed epsilons are refused.
    """
    with plain_errors():
        if not unproven and not claimed:
            raise InvalidInput("say what you agree to: --unproven WHAT (as often as needed), --claimed, or both")
        with _opened_or_created(path) as ledger:
            for what in unproven or []:
                ledger.set_consent(dataset, what, granted=not withdraw)
            if claimed:
                ledger.set_consent(dataset, None, granted=not withdraw)
            _print_standing(dataset, ledger.standing(dataset), as_json)


def _opened_or_created(path: Path) -> Ledger:
    from sordino.privacy.ledger import Ledger

    if path.exists():
        return Ledger.open(path)
    ledger = Ledger.create(path)
    typer.echo(f"Made a new ledger: {path}", err=True)
    return ledger


def _changed(
    before: Budget | None,
    epsilon: float,
    delta: float | None,
    basis: str | None,
    adjacency: str | None,
    adversary: str | None,
) -> Budget:
    """The budget that the options describe, with what they leave out taken from the one before."""
    from sordino.privacy.guarantee import Budget
    from sordino.privacy.terms import adjacency_named, adversary_named

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
        print_tables(_standings_table({dataset: standing}))


def _standings_table(standings: dict[str, Standing]) -> Table:
    from rich.table import Table
    from rich.text import Text

    columns = ("data set", "budget", "spent", "left", "releases", "consents")
    table = Table(*columns, title="Data sets", title_justify="left")
    for name, standing in standings.items():
        unprotected = f", {standing.unprotected} UNPROTECTED" if standing.unprotected else ""
        consents = [f"unproven {what!r}" for what in sorted(standing.consents.unproven)]
        cells = (
            name,
            _in_words(standing.budget) if standing.budget else "none: nothing may leave",
            decimal(standing.spent) if standing.budget else "",
            decimal(standing.left) if standing.budget else "",
            f"{standing.releases}{unprotected}",
            ", ".join(consents + ["claimed budgets"] * standing.consents.claimed) or "none",
        )
        table.add_row(*map(Text, cells))
        if (second := standing.summed) is not None:
            left = decimal(second.remaining)
            cells = (name, _in_words(second.budget), decimal(second.spent), left, "of these, in secure sums", "")
            table.add_row(*map(Text, cells))
    return table


def _entries_table(entries: list[Entry], standings: dict[str, Standing]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table("#", "time", title="Entries", title_justify="left")
    for column in ("data set", "federation", "round", "what", "proven epsilon, alone", "claimed epsilon"):
        table.add_column(column, min_width=12, overflow="fold")
    for entry in entries:
        for cells in _entry_rows(entry, standings):
            table.add_row(*map(Text, (str(entry.sequence), entry.time.replace("T", " "), *cells)))
    return table


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
                proven = "\n".join(map(_proven_in_words, _proven(release, standings[key.dataset])))
                claimed = "" if release.claimed is None else _claimed_in_words(release)
                yield key.dataset, key.federation, str(key.round), release.what + flag, proven, claimed


def _proven(release: Release, standing: Standing) -> list[dict[str, Any]]:
    """The epsilon of one release by itself for each of its guarantees, at the budget's delta."""
    from sordino.privacy.guarantee import Derived

    if isinstance(release.composition, Derived):
        return [{"epsilon": 0.0, "derived_from": list(release.composition.releases)}]
    delta = 0.0 if standing.budget is None else standing.budget.delta
    return [
        {
            "epsilon": json_figure(_epsilon(guarantee, delta)),
            "delta": delta,
            "adjacency": str(guarantee.adjacency),
            "adversary": str(guarantee.adversary),
            "basis": guarantee.basis,
        }
        for guarantee in release.guarantees
    ]


@cache
def _epsilon(guarantee: Guarantee, delta: float) -> float:
    from sordino.privacy.accountant import epsilon

    return epsilon(guarantee.loss, delta, adjacency=guarantee.adjacency)


def _proven_in_words(proven: dict[str, Any]) -> str:
    if "derived_from" in proven:
        return f"nothing new: derived from {', '.join(proven['derived_from'])}"
    epsilon = proven["epsilon"] if isinstance(proven["epsilon"], str) else decimal(proven["epsilon"])
    at = f" at delta {proven['delta']:g}" if proven["delta"] else ""
    return f"{epsilon}{at}, {proven['adjacency']}, against {proven['adversary']} ({proven['basis']})"


def _claimed_in_words(release: Release) -> str:
    claim = release.claimed
    assert claim is not None
    return f"{decimal(claim.epsilon)} at delta {claim.delta:g} by {claim.formula}"


def _standing_as_json(dataset: str, standing: Standing) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "budget": None if standing.budget is None else _budget_as_json(standing.budget),
        "spent": json_figure(standing.spent),
        "left": standing.left,
        "releases": standing.releases,
        "unprotected": standing.unprotected,
        "summed": None if standing.summed is None else _account_as_json(standing.summed),
        "consents": {"unproven": sorted(standing.consents.unproven), "claimed": standing.consents.claimed},
    }


def _account_as_json(account: Account) -> dict[str, Any]:
    return {
        "budget": _budget_as_json(account.budget),
        "spent": json_figure(account.spent),
        "left": account.remaining,
    }


def _claim_as_json(claim: Claim) -> dict[str, Any]:
    terms = {"adjacency": str(claim.adjacency), "adversary": str(claim.adversary), "covers": claim.covers}
    return {"epsilon": claim.epsilon, "delta": claim.delta, "formula": claim.formula, **terms}


def _budget_as_json(budget: Budget) -> dict[str, Any]:
    return {
        "limit": budget.limit,
        "delta": budget.delta,
        "basis": budget.basis,
        "adjacency": str(budget.adjacency),
        "adversary": str(budget.adversary),
    }


def _entry_as_json(entry: Entry, standings: dict[str, Standing]) -> dict[str, Any]:
    from sordino.privacy.ledger import BudgetSet, ConsentChanged, Opened, Released, SummedBudgetSet

    line: dict[str, Any] = {"entry": entry.sequence, "time": entry.time, "hash": entry.hash}
    match entry.event:
        case Opened(ledger):
            return {**line, "kind": "opened", "ledger": ledger}
        case BudgetSet(dataset, budget):
            return {**line, "kind": "budget", "dataset": dataset, "budget": _budget_as_json(budget)}
        case SummedBudgetSet(dataset, second):
            told = None if second is None else _budget_as_json(second)
            return {**line, "kind": "summed budget", "dataset": dataset, "budget": told}
        case ConsentChanged(dataset, what, granted):
            kind = "claimed" if what is None else "unproven"
            return {**line, "kind": "consent", "dataset": dataset, "to": kind, "what": what, "granted": granted}
        case Released(key, releases, unprotected, report_sha256, pinned):
            return {
                **line,
                "kind": "release",
                "pinned": pinned,
                "dataset": key.dataset,
                "federation": key.federation,
                "round": key.round,
                "plan_hash": key.plan_hash,
                "report_sha256": report_sha256,
                "releases": [
                    {
                        "id": release.id,
                        "what": release.what,
                        "proven": _proven(release, standings[key.dataset]),
                        "claimed": release.claimed and _claim_as_json(release.claimed),
                        "unprotected": release.id in unprotected,
                    }
                    for release in releases
                ],
            }

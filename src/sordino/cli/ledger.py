"""`sordino ledger`: the owner looks into the ledger, sets budgets and consents."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import timedelta
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
    from sordino.privacy.ledger import Entry, Holdings, Ledger, Standing
    from sordino.privacy.statement import Statement

app = typer.Typer(
    no_args_is_help=True,
    help="The owner's ledger: what has left, what it cost, and what may still leave.",
)

LedgerPath = Annotated[Path, typer.Argument(metavar="PATH", help="The ledger, an SQLite file, or a client's folder.")]
LedgerPaths = Annotated[Path, typer.Argument(metavar="PATH", help="The ledger, or a folder with one for each node.")]
Dataset = Annotated[str, typer.Argument(help="The data set, by the name its owner gave it.")]


@app.command()
def show(path: LedgerPath, as_json: AsJson = False) -> None:
    """Show every data set with its budget, what is spent and left, every entry, and the verdict in words.

    An epsilon is shown with its basis, adjacency and adversary, or not at all. UNPROTECTED means: left without a proof,
    with the owner's consent.
    """
    from sordino.privacy.ledger import Ledger
    from sordino.report.statement import lead_text, to_json

    path = _ledger_in(path)
    if others := sorted(path.glob("*.db")):
        raise InvalidInput(f"{path} is a folder with {len(others)} ledgers: name one of them, such as {others[0]}")
    with Ledger.open(path) as ledger:
        standings, entries, holdings = ledger.standings(), ledger.entries(), ledger.holdings()
        statements = {name: _statement(ledger, name, standing) for name, standing in standings.items()}
        disjoint = {name: ledger.disjoint_from(name) for name in standings}
    if as_json:
        sets = [
            _standing_as_json(name, standing)
            | {"disjoint_from": list(disjoint[name]), "statement": to_json(statements[name])}
            for name, standing in standings.items()
        ]
        lines = [_entry_as_json(entry, standings) for entry in entries]
        told = {"path": str(path), "head": entries[-1].hash, "reports": asdict(holdings)}
        print_json({**told, "datasets": sets, "entries": lines})
        return
    _print_standings(standings)
    _print_sharing(disjoint)
    names = ("data set", "federation", "round", "what", "proven epsilon, alone", "claimed epsilon")
    rows = (
        (str(entry.sequence), entry.time.replace("T", " "), *cells)
        for entry in entries
        for cells in _entry_rows(entry, standings)
    )
    columns = [*left("#", "time"), *left(*names, min_width=12)]
    print_table("Entries", columns, rows, spare=("time", "federation"))
    typer.echo(f"{len(entries)} entries, all checked. Head, for a receipt kept elsewhere: {entries[-1].hash}")
    _print_holdings(holdings)
    typer.echo("")
    for statement in statements.values():
        typer.echo(lead_text(statement))


def _ledger_in(path: Path) -> Path:
    """The ledger of a client's folder; any other path as it is."""
    own = path / "ledger.sqlite"
    return own if own.is_file() else path


def _print_sharing(disjoint: dict[str, dict[str, int]]) -> None:
    """Which names of data have one account, and which do not on their owner's word."""
    from sordino.privacy.ledger import own_budget

    for name, others in disjoint.items():
        if shared := [other for other in disjoint if other != name and other not in others]:
            typer.echo(f"{name} has one account with {', '.join(shared)}: what leaves under one is charged to all.")
        for other, after in others.items():
            typer.echo(f"{name} is declared disjoint from {other}, with no row under both names: {own_budget(after)}.")


def _statement(ledger: Ledger, dataset: str, standing: Standing) -> Statement:
    """What everything that is charged to a data set protects, in the terms of its budget."""
    from sordino.flower.ledger_place import FEDERATION
    from sordino.privacy.statement import ClientSet, PlannedFor, Statement
    from sordino.report.caveats import disjoint_caveats, mod_caveats

    reports = ledger.charged_reports(dataset)
    left_it = [each for report in reports for each in report.releases]
    own = Counter(replace(each, id=each.what) for each in left_it if not isinstance(each.composition, Derived))
    delta = _delta(standing) or 1e-5
    made = Statement.of_groups([(ClientSet(), tuple(own.items()))], delta=delta, title=f"What has left of {dataset}")
    mods = mod_caveats() if any(report.key.federation.startswith(FEDERATION) for report in reports) else ()
    made = replace(made, caveats=(*mods, *disjoint_caveats(dataset, list(ledger.disjoint_from(dataset)))))
    budget = standing.budget
    return made if budget is None else replace(made, planned=PlannedFor(budget.adjacency, budget.adversary.kind))


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

    receipt, path = None if head is None else _head(head), _ledger_in(path)
    try:
        with Ledger.open(path) as ledger:
            last, holdings = ledger.verify(expected_head=receipt), ledger.holdings()
    except SordinoError as error:
        if not as_json:
            raise
        print_json({"path": str(path), "sound": False, "reason": str(error)})
        raise typer.Exit(1) from None
    if as_json:
        told = {"path": str(path), "sound": True, "entries": last.sequence, "head": last.hash}
        print_json({**told, "reports": asdict(holdings)})
        return
    typer.echo(f"{path}: {last.sequence} entries, the chain is whole. Head: {last.hash}")
    _print_holdings(holdings)
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


def _print_holdings(holdings: Holdings) -> None:
    if holdings.hashes:
        total = holdings.reports + holdings.hashes
        typer.echo(
            f"Of {holdings.hashes} of {total} reports only the hash is kept; the others have {holdings.size:,} bytes."
        )


@app.command()
def compact(
    path: LedgerPath,
    older_than: Annotated[
        float | None,
        typer.Option(metavar="DAYS", min=0, max=36_500, help="In a client's folder, keep.reports_days if left out."),
    ] = None,
    unacknowledged: Annotated[
        bool, typer.Option("--unacknowledged", help="Also reports of rounds that may not be over at the server.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be dropped.")] = False,
    as_json: AsJson = False,
) -> None:
    """Drop the bytes of old reports, and let the file shrink. Every entry, hash and cost stays.

    A report is dropped when its round has been over at the server for DAYS: a later round of the same federation was
    answered. A server that asks for it again is declined; nothing is drawn or spent.
    """
    from sordino.privacy.ledger import Ledger

    path = _ledger_in(path)
    age = timedelta(days=_days_to_keep(path) if older_than is None else older_than)
    with Ledger.open(path) as ledger:
        before = path.stat().st_size
        freed = (ledger.compactable if dry_run else ledger.compact)(age, unacknowledged=unacknowledged)
        left, head = ledger.holdings(), ledger.head()
    after = path.stat().st_size
    if as_json:
        told = {"path": str(path), "dry_run": dry_run, "file_before": before, "file_after": after, "head": head}
        print_json({**told, "dropped": asdict(freed), "reports": asdict(left)})
        return
    verb = "Would drop" if dry_run else "Dropped"
    typer.echo(f"{verb} the bytes of {freed.reports} reports ({freed.size:,} bytes); their hashes stay.")
    if not dry_run:
        typer.echo(f"{path} has {after:,} bytes now, {before:,} before. Head: {head}")
    if freed.not_shrunk:
        typer.echo(f"The file has not shrunk, and its free pages are used again: {freed.not_shrunk}", err=True)


def _days_to_keep(path: Path) -> float:
    """What the client.toml beside a ledger says; a ledger without one has no default."""
    from sordino.client.settings import Settings

    beside = path.parent / "client.toml"
    if not beside.is_file():
        raise InvalidInput(
            f"{path} is not in a client's folder, so nothing says how long its reports are to be kept. Say it: "
            "--older-than DAYS"
        )
    return Settings.read(beside).keep.reports_days


@app.command()
def budget(
    path: LedgerPaths,
    dataset: Dataset,
    epsilon: Annotated[float, typer.Option(help="The limit, above 0.")],
    delta: Annotated[float | None, typer.Option(help="The delta at which epsilon is counted; 0 at first.")] = None,
    basis: Annotated[str | None, typer.Option(help="proven or claimed; proven at first.")] = None,
    adjacency: Annotated[str | None, typer.Option(help=f"{ADJACENCY}.")] = None,
    adversary: Annotated[
        str | None, typer.Option(help="From whom: server, model-reader, shuffled(N) or summed(N).")
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option(
            min=1, max=10_000, help="Make PATH a folder with a ledger for each of so many nodes: 0.db, 1.db ..."
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before loosening a budget.")] = False,
    as_json: AsJson = False,
) -> None:
    """Set the budget of a data set; makes the ledger if there is none. In a folder, of every ledger in it.

    Options left out keep their present value. A raised limit, and any other change that may let more leave, is asked
    about first, and stays visible in the ledger for ever. A client's budget is set in its client.toml.
    """
    _change_budget(None, epsilon, delta, basis, adjacency, adversary)  # refuse bad options before a file is made
    places = _ledgers_at(path, nodes)
    _refuse_clients(places, dataset, "budget")
    for place in places:
        with _open_or_create(place) as ledger:
            before = ledger.standing(dataset).budget
            after = _change_budget(before, epsilon, delta, basis, adjacency, adversary)
            if before is not None and _loosens(before, after) and not yes:
                question = f"Change {dataset!r} from {_in_words(before)} to {_in_words(after)}? More may leave then"
                typer.confirm(question, abort=True, err=True)
            ledger.set_budget(dataset, after)
            _print_standing(dataset, ledger.standing(dataset), as_json)


@app.command()
def consent(
    path: LedgerPaths,
    dataset: Dataset,
    unproven: Unproven = None,
    claimed: Annotated[bool, typer.Option("--claimed", help="A budget may count claimed epsilons.")] = False,
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Withdraw these consents instead.")] = False,
    as_json: AsJson = False,
) -> None:
    """Agree to what nothing proves, for one data set; makes the ledger if there is none. In a folder, all of them.

    Without this, a release without a proof and a budget of claimed epsilons are refused. A client's consents are set in
    its client.toml.
    """
    if not unproven and not claimed:
        raise InvalidInput("say what you agree to: --unproven WHAT (as often as needed), --claimed, or both")
    places = _ledgers_at(path)
    keys = ["consents.unproven"] * bool(unproven) + ["consents.claimed"] * claimed
    _refuse_clients(places, dataset, " and ".join(keys))
    for place in places:
        with _open_or_create(place) as ledger:
            for what in unproven or []:
                ledger.set_consent(dataset, what, granted=not withdraw)
            if claimed:
                ledger.set_consent(dataset, None, granted=not withdraw)
            _print_standing(dataset, ledger.standing(dataset), as_json)


@app.command()
def disjoint(
    path: LedgerPaths,
    dataset: Dataset,
    other: Annotated[str, typer.Argument(help="Another name, under which is no row of the first.")],
    withdraw: Annotated[bool, typer.Option("--withdraw", help="Withdraw that instead.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: AsJson = False,
) -> None:
    """Declare that two names of data have no row in common, so that each has a budget of its own from now on.

    What has left so far stays charged to both. Nothing here can compare the rows: the figures rest on your word. A
    `sordino client` compares them, and is told in client.toml instead: data.disjoint_from.
    """
    from sordino.privacy.ledger import Ledger

    places = _ledgers_at(path)
    for place in places:
        if (settings := _client_toml(place)) is not None:
            raise InvalidInput(f"{place} is a client's: set data.disjoint_from in {settings}")
        with Ledger.open(place) as ledger:
            if not withdraw:
                ledger.require_known((dataset, other), str(place))
            elif other not in (declared := ledger.disjoint_from(dataset)):
                raise InvalidInput(
                    f"{place}: {dataset!r} was not declared disjoint from {other!r}, so there is nothing to withdraw; "
                    f"declared are: {', '.join(map(repr, declared)) or 'none'}"
                )
    question = f"Is no row of {dataset!r} also under {other!r}? For a row that is, both budgets can be spent"
    if not (withdraw or yes):
        typer.confirm(question, abort=True, err=True)
    for place in places:
        with Ledger.open(place) as ledger:
            ledger.set_disjoint(dataset, other, declared=not withdraw)
            _print_standing(dataset, ledger.standing(dataset), as_json)


def _client_toml(place: Path) -> Path | None:
    """The settings of the client that a ledger, or this folder, belongs to; None if it is no client's."""
    beside = (place if place.is_dir() else place.parent) / "client.toml"
    return beside if beside.is_file() else None


def _refuse_clients(places: list[Path], dataset: str, keys: str) -> None:
    """Refuse to set what a client takes from its client.toml: its next start would put that back."""
    from sordino.client.settings import Settings

    for place in places:
        settings = _client_toml(place)
        if settings is not None and Settings.read(settings).data.name == dataset:
            raise InvalidInput(
                f"{place} is a client's, and {settings} governs {dataset!r}, its data.name: set {keys} there, and "
                "start the client again"
            )


def _ledgers_at(path: Path, nodes: int | None = None) -> list[Path]:
    """The ledger at a path, or those of a folder, one for each node of a Flower app; `nodes` makes the folder."""
    if nodes is not None:
        if path.is_file():
            raise InvalidInput(f"{path} is a ledger, and --nodes makes a folder with one for each node: name another")
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        return sorted({*path.glob("*.db"), *(path / f"{number}.db" for number in range(nodes))})
    return sorted(path.glob("*.db")) or [path]


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
    from sordino.privacy.ledger import (
        BudgetSet,
        Compacted,
        ConsentChanged,
        DisjointChanged,
        Opened,
        Released,
        RowsKept,
        SummedBudgetSet,
    )

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
        case DisjointChanged(dataset, other, after):
            said = "no longer declared disjoint from" if after is None else f"from entry {after + 1} on disjoint from"
            yield dataset, "", "", f"{said} {other}", "", ""
        case RowsKept(times):
            yield "", "", "", f"which rows are under each name, written for time {times}", "", ""
        case Compacted() as dropped:
            yield "", "", "", f"bytes of {len(dropped.numbers)} reports dropped ({dropped.size:,} bytes)", "", ""
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
    from sordino.privacy.ledger import (
        BudgetSet,
        Compacted,
        ConsentChanged,
        DisjointChanged,
        Opened,
        Released,
        RowsKept,
        SummedBudgetSet,
    )

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
        case DisjointChanged(dataset, other, after):
            return {**line, "kind": "disjoint", "dataset": dataset, "other": other, "after": after}
        case RowsKept(times):
            return {**line, "kind": "rows", "times": times}
        case Compacted(ranges, size):
            return {**line, "kind": "compaction", "of": ranges, "size": size}
        case Released(key, releases, unprotected, report_sha256, pinned):
            return {
                **line,
                "kind": "release",
                "pinned": pinned,
                **asdict(key),
                "report_sha256": report_sha256,
                "report_bytes": entry.size,
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

"""The command line: `sordino audit | data | ledger`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, cast

import typer

from sordino.errors import InvalidInput, SordinoError

if TYPE_CHECKING:
    from rich.table import Table

    from sordino.learning.datasets import Listing
    from sordino.privacy.audit import Case, Row
    from sordino.privacy.guarantee import Adjacency, Adversary, Budget, Claim, Guarantee, Release
    from sordino.privacy.ledger import Entry, Ledger, Standing

T = TypeVar("T")

app = typer.Typer(
    no_args_is_help=True,
    help="Federated learning under local differential privacy: what is claimed, what is proven, what is measured.",
)
ledger_app = typer.Typer(
    no_args_is_help=True,
    help="The owner's ledger: what has left, what it cost, and what may still leave.",
)
app.add_typer(ledger_app, name="ledger")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
LedgerPath = Annotated[Path, typer.Argument(metavar="PATH", help="The ledger, an SQLite file.")]
Dataset = Annotated[str, typer.Argument(help="The data set, by the name its owner gave it.")]


@contextmanager
def _plain_errors() -> Iterator[None]:
    """A refusal is a plain sentence and exit code 1, not a traceback."""
    try:
        yield
    except SordinoError as error:
        typer.echo(f"Refused: {error}", err=True)
        raise typer.Exit(1) from None


def _print_json(value: object) -> None:
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def _print_tables(*tables: Table) -> None:
    """Tables as wide as the terminal; where the output is a file or a pipe, wide enough to fold nothing."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    for table in tables:
        console.print(table)


def _figure(epsilon: float) -> str:
    return f"{epsilon:.4g}" if epsilon != float("inf") else "infinite"


def _json_figure(epsilon: float) -> float | str:
    """JSON has no infinity; an unproven epsilon is never left blank."""
    return epsilon if epsilon != float("inf") else "infinite"


def _print_version(wanted: bool) -> None:
    from sordino import __version__

    if wanted:
        typer.echo(f"sordino {__version__}")
        raise typer.Exit


@app.callback()
def _sordino(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


# --- sordino audit --------------------------------------------------------------------------------------------------


@app.command()
def audit(
    mechanism: Annotated[
        str | None,
        typer.Argument(
            help="two-point, laplace, gaussian, sign, exponential, bits, label, piecewise or privunit; all if left out."
        ),
    ] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="The mechanisms' strength, 0.01 to 20; may be repeated. Default 1.")
    ] = None,
    trials: Annotated[
        int, typer.Option(help="Draws from each of the two worlds; fewer where they are costly.")
    ] = 400_000,
    seed: Annotated[int, typer.Option(help="The same seed gives the same table.")] = 1,
    everything: Annotated[bool, typer.Option("--all", help="Audit every mechanism (the default).")] = False,
    broken: Annotated[
        bool, typer.Option("--broken", help="Audit deliberately broken copies instead: each must be caught.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure what an adversary can really tell apart, beside what is claimed and what is proven.

    Each row is a lower bound on epsilon with 95 % confidence, from the worst pair of inputs. The exit code is 1 if a
    bound lies above the proven epsilon (or, with --broken, if a broken copy goes unnoticed).
    """
    from sordino.mechanisms import audits
    from sordino.privacy import audit as auditing

    with _plain_errors():
        if mechanism is not None and (everything or broken):
            raise InvalidInput(f"give a mechanism or --all or --broken, not {mechanism!r} and one of these")
        if everything and broken:
            raise InvalidInput("give --all or --broken, not both: broken copies have a table of their own")
        strengths = epsilon or [1.0]
        names = [mechanism] if mechanism else list(audits.CATALOGUE)
        cases = [case for e in strengths for case in (audits.broken_cases(e) if broken else _all_cases(names, e))]
        rows = [auditing.run(case, trials=trials, seed=seed) for case in _with_progress(cases, "Auditing")]
    if as_json:
        _print_json([row.to_json() for row in rows])
    else:
        _print_tables(_audit_table(rows, "Broken on purpose" if broken else "Audit"))
        typer.echo(_audit_summary(rows, broken))
    violated = [row.verdict == auditing.VIOLATED for row in rows]
    if (broken and not all(violated)) or (not broken and any(violated)):
        raise typer.Exit(1)


def _all_cases(names: list[str], epsilon: float) -> list[Case]:
    from sordino.mechanisms import audits

    return [case for name in names for case in audits.cases(name, epsilon)]


def _with_progress(items: list[T], what: str) -> Iterator[T]:
    """The items one by one, with a progress bar on a terminal's error stream and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import track

    return iter(
        track(items, what, console=Console(stderr=True), transient=True, disable=not Console(stderr=True).is_terminal)
    )


def _audit_table(rows: list[Row], title: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{title}: epsilon claimed, proven and measured", title_justify="left", header_style="bold")
    for column in ("mechanism", "unit", "adjacency, adversary"):
        table.add_column(column, overflow="fold")
    for column in ("claimed", "proven", "audited >=", "cap", "trials"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("verdict")
    colours = {"consistent": "green", "claim not supported": "yellow"}
    for row in rows:
        at = f"\n(delta {row.delta:.2g})" if row.delta else ""
        cells = [row.mechanism, row.unit, f"{row.adjacency}, {row.adversary}"]
        cells += ["none" if row.claimed is None else _figure(row.claimed), _figure(row.proven) + at]
        cells += [f"{row.audited:.3f}", f"{row.cap:.1f}", f"{row.trials:,}"]
        table.add_row(*map(Text, cells), Text(row.verdict, style=colours.get(row.verdict, "bold red")))
    return table


def _audit_summary(rows: list[Row], broken: bool) -> str:
    from sordino.privacy import audit as auditing

    violated = sum(row.verdict == auditing.VIOLATED for row in rows)
    if broken:
        return (
            f"{violated} of {len(rows)} broken copies were caught: their audited bound lies above what they vouch for."
        )
    refuted = sum(row.verdict == auditing.REFUTED for row in rows)
    proven = "every audited bound is below the proven one" if not violated else f"{violated} PROVEN BOUNDS ARE VIOLATED"
    return (
        f"{len(rows)} audits at {rows[0].confidence:.0%} confidence each, seed {rows[0].seed}: {proven}; "
        f"{refuted} published claims are refuted by experiment.\n"
        "The audited figure is a lower bound and can reach the cap at most: a small one is no evidence of privacy."
    )


# --- sordino ledger -------------------------------------------------------------------------------------------------


@ledger_app.command()
def show(path: LedgerPath, as_json: AsJson = False) -> None:
    """Show every data set with its budget, what is spent and left, and every entry.

    An epsilon is shown with its basis, adjacency and adversary, or not at all. UNPROTECTED means: left without a proof,
    with the owner's consent.
    """
    from sordino.privacy.ledger import Ledger

    with _plain_errors(), Ledger.open(path) as ledger:
        standings, entries = ledger.standings(), ledger.entries()
    if as_json:
        _print_json(
            {
                "path": str(path),
                "head": entries[-1].hash,
                "datasets": [_standing_as_json(name, standing) for name, standing in standings.items()],
                "entries": [_entry_as_json(entry, standings) for entry in entries],
            }
        )
        return
    _print_tables(_standings_table(standings), _entries_table(entries, standings))
    typer.echo(f"{len(entries)} entries, all checked. Head, for a receipt kept elsewhere: {entries[-1].hash}")


@ledger_app.command()
def verify(
    path: LedgerPath,
    head: Annotated[str | None, typer.Option(metavar="HASH", help="A head from an earlier receipt.")] = None,
    as_json: AsJson = False,
) -> None:
    """Check the whole file. Exit code 1 and a sentence if it is damaged.

    Without --head nobody can tell that the last entries were cut off or that an older copy was put back.
    """
    from sordino.privacy.ledger import Ledger

    try:
        with Ledger.open(path) as ledger:
            verified = ledger.verify(expected_head=head)
    except SordinoError as error:
        if as_json:
            _print_json({"path": str(path), "sound": False, "reason": str(error)})
        else:
            typer.echo(str(error), err=True)
        raise typer.Exit(1) from None
    if as_json:
        _print_json({"path": str(path), "sound": True, "entries": verified.entries, "head": verified.head})
        return
    typer.echo(f"{path}: {verified.entries} entries, the chain is whole. Head: {verified.head}")
    if head is None:
        typer.echo("A chain alone cannot notice cut-off last entries or an older copy: keep the head for --head.")
    else:
        typer.echo("It contains the head of your receipt: nothing recorded up to then is missing.")


@ledger_app.command()
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
    with _plain_errors():
        _changed(None, epsilon, delta, basis, adjacency, adversary)  # refuse bad options before a file is made
    with _plain_errors(), _opened_or_created(path) as ledger:
        before = ledger.standing(dataset).budget
        after = _changed(before, epsilon, delta, basis, adjacency, adversary)
        if before is not None and _loosens(before, after) and not yes:
            question = f"Change {dataset!r} from {_in_words(before)} to {_in_words(after)}? More may leave then"
            typer.confirm(question, abort=True, err=True)
        ledger.set_budget(dataset, after)
        _print_standing(dataset, ledger.standing(dataset), as_json)


@ledger_app.command()
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
    with _plain_errors():
        if not unproven and not claimed:
            raise InvalidInput("say what you agree to: --unproven WHAT (as often as needed), --claimed, or both")
        with _opened_or_created(path) as ledger:
            for what in unproven or []:
                (ledger.withdraw_unproven if withdraw else ledger.allow_unproven)(dataset, what)
            if claimed:
                (ledger.withdraw_claimed if withdraw else ledger.allow_claimed)(dataset)
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

    base = before or Budget(limit=1.0)
    return Budget(
        limit=epsilon,
        delta=base.delta if delta is None else delta,
        basis=base.basis if basis is None else cast(Literal["proven", "claimed"], basis),
        adjacency=base.adjacency if adjacency is None else _adjacency(adjacency),
        adversary=base.adversary if adversary is None else _adversary(adversary),
    )


def _adjacency(text: str) -> Adjacency:
    from sordino.privacy.guarantee import Adjacency

    plain = {re.sub(r"[^a-z]+", "-", kind.value).strip("-"): kind for kind in Adjacency}
    chosen = plain.get(re.sub(r"[^a-z]+", "-", text.lower()).strip("-"))
    if chosen is None:
        raise InvalidInput(f"unknown adjacency {text!r}; allowed: {', '.join(plain)}")
    return chosen


def _adversary(text: str) -> Adversary:
    from sordino.privacy.guarantee import MODEL_READER, SERVER, Adversary

    plain = text.strip().lower()
    if plain == "server":
        return SERVER
    if plain in ("model reader", "model-reader"):
        return MODEL_READER
    if match := re.fullmatch(r"(shuffled|summed)\((\d+)\)", plain):
        return Adversary(cast(Literal["shuffled", "summed"], match[1]), int(match[2]))
    raise InvalidInput(f"unknown adversary {text!r}; allowed: server, model-reader, shuffled(N), summed(N)")


def _loosens(before: Budget, after: Budget) -> bool:
    """Whether more may leave than before, or may for all that anyone can tell: other terms cannot be compared."""
    same_terms = (before.basis, before.adjacency, before.adversary) == (after.basis, after.adjacency, after.adversary)
    return not same_terms or after.limit > before.limit or after.delta > before.delta


def _in_words(budget: Budget) -> str:
    from sordino.privacy.ledger import terms

    return f"epsilon {budget.limit:.4g} ({terms(budget)})"


def _print_standing(dataset: str, standing: Standing, as_json: bool) -> None:
    if as_json:
        _print_json(_standing_as_json(dataset, standing))
    else:
        _print_tables(_standings_table({dataset: standing}))


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
            _figure(standing.spent) if standing.budget else "",
            _figure(standing.left) if standing.budget else "",
            f"{standing.releases}{unprotected}",
            ", ".join(consents + ["claimed budgets"] * standing.consents.claimed) or "none",
        )
        table.add_row(*map(Text, cells))
    return table


def _entries_table(entries: list[Entry], standings: dict[str, Standing]) -> Table:
    from rich.table import Table
    from rich.text import Text

    columns = ("#", "time", "data set", "federation", "round", "what", "proven epsilon, alone", "claimed epsilon")
    table = Table(*columns, title="Entries", title_justify="left")
    for entry in entries:
        for cells in _entry_rows(entry, standings):
            table.add_row(*map(Text, (str(entry.sequence), entry.time, *cells)))
    return table


def _entry_rows(entry: Entry, standings: dict[str, Standing]) -> Iterator[tuple[str, ...]]:
    """What follows number and time: one row for an owner's decision, one per release for a report."""
    from sordino.privacy.ledger import BudgetSet, ConsentChanged, Opened, Released

    match entry.event:
        case Opened(ledger):
            yield "", "", "", f"ledger {ledger} opened", "", ""
        case BudgetSet(dataset, budget):
            yield dataset, "", "", f"budget set to {_in_words(budget)}", "", ""
        case ConsentChanged(dataset, what, granted):
            verb = "given" if granted else "withdrawn"
            thing = "claimed budgets" if what is None else f"unproven {what!r}"
            yield dataset, "", "", f"consent {verb}: {thing}", "", ""
        case Released(key, releases, unprotected, _):
            for release in releases:
                flag = " UNPROTECTED" if release.id in unprotected else ""
                proven = "\n".join(_proven_in_words(figure) for figure in _proven(release, standings[key.dataset]))
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
            "epsilon": _json_figure(_epsilon(guarantee, delta)),
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


def _proven_in_words(figure: dict[str, Any]) -> str:
    if "derived_from" in figure:
        return f"nothing new: derived from {', '.join(figure['derived_from'])}"
    epsilon = figure["epsilon"] if isinstance(figure["epsilon"], str) else _figure(figure["epsilon"])
    at = f" at delta {figure['delta']:g}" if figure["delta"] else ""
    return f"{epsilon}{at}, {figure['adjacency']}, against {figure['adversary']} ({figure['basis']})"


def _claimed_in_words(release: Release) -> str:
    claim = release.claimed
    assert claim is not None
    return f"{_figure(claim.epsilon)} at delta {claim.delta:g} by {claim.formula}"


def _standing_as_json(dataset: str, standing: Standing) -> dict[str, Any]:
    return {
        "dataset": dataset,
        "budget": None if standing.budget is None else _budget_as_json(standing.budget),
        "spent": _json_figure(standing.spent),
        "left": standing.left,
        "releases": standing.releases,
        "unprotected": standing.unprotected,
        "consents": {"unproven": sorted(standing.consents.unproven), "claimed": standing.consents.claimed},
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
    from sordino.privacy.ledger import BudgetSet, ConsentChanged, Opened, Released

    line: dict[str, Any] = {"entry": entry.sequence, "time": entry.time, "hash": entry.hash}
    match entry.event:
        case Opened(ledger):
            return {**line, "kind": "opened", "ledger": ledger}
        case BudgetSet(dataset, budget):
            return {**line, "kind": "budget", "dataset": dataset, "budget": _budget_as_json(budget)}
        case ConsentChanged(dataset, what, granted):
            kind = "claimed" if what is None else "unproven"
            return {**line, "kind": "consent", "dataset": dataset, "to": kind, "what": what, "granted": granted}
        case Released(key, releases, unprotected, report_sha256):
            return {
                **line,
                "kind": "release",
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


# --- sordino data ---------------------------------------------------------------------------------------------------

data_app = typer.Typer(
    no_args_is_help=True,
    help="Data sets known by name: where they are, fetching them, and whether their files are intact.",
)
app.add_typer(data_app, name="data")


@data_app.command("list")
def data_list(as_json: AsJson = False) -> None:
    """Show every known data set, its size, where its files were found, and its licence."""
    from sordino.learning import datasets

    with _plain_errors():
        rows = [_listing_as_json(listing) for listing in datasets.KNOWN.values()]
        folders = [str(folder) for folder in datasets.search_folders()]
    if as_json:
        _print_json(rows)
        return
    _print_tables(_listings_table(rows))
    for row in rows:
        if row["note"]:
            typer.echo(f"{row['name']}: {row['note']}.")
    typer.echo(f"Looked in {' and '.join(folders)}. Name a folder of your own by {datasets.FOLDER_VARIABLE}.")


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(help="The data set; `sordino data list` shows them all.")],
    to: Annotated[Path | None, typer.Option(metavar="FOLDER", help="Put it here, not in the user's cache.")] = None,
    mirror: Annotated[
        str | None, typer.Option(metavar="URL", help="Fetch the files from below this address, by their bare names.")
    ] = None,
) -> None:
    """Download what is missing of a data set from its public home, and compare checksums."""
    from sordino.learning import datasets

    with _plain_errors():
        listing = datasets.known(name)
        folders = datasets.search_folders() if to is None else (to,)
        paths = datasets.fetch(listing, folders=folders, mirror=mirror)
    if not paths:
        typer.echo(f"{listing.title}: nothing to fetch, {listing.note}")
    for path in paths:
        typer.echo(f"intact  {path}")


@data_app.command("check")
def data_check(
    name: Annotated[str | None, typer.Argument(help="One data set; all if left out.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare the checksums of the files that are here; sets of which nothing is here are left out unless named.

    The exit code is 1 if a file is damaged, or if files of the data set named are not here.
    """
    from sordino.learning import datasets

    with _plain_errors():
        listings = list(datasets.KNOWN.values()) if name is None else [datasets.known(name)]
        states = [
            (listing, state) for listing in _with_progress(listings, "Checking") for state in datasets.check(listing)
        ]
    if name is None:
        here = {listing.name for listing, state in states if state.path}
        states = [(listing, state) for listing, state in states if listing.name in here]
    rows = [
        {
            "dataset": listing.name,
            "file": state.file.path,
            "state": state.state,
            "path": str(state.path) if state.path else None,
            "fault": state.fault or None,
        }
        for listing, state in states
    ]
    if as_json:
        _print_json(rows)
    else:
        _print_tables(_files_table(rows))
    wrong = {"damaged"} if name is None else {"damaged", "not here"}
    if any(row["state"] in wrong for row in rows):
        raise typer.Exit(1)


def _listing_as_json(listing: Listing) -> dict[str, Any]:
    from sordino.learning import datasets

    paths = datasets.locate(listing)
    return {
        "name": listing.name,
        "title": listing.title,
        "train": listing.sizes[0],
        "test": listing.sizes[1],
        "shape": list(listing.shape),
        "classes": len(listing.classes),
        "download_bytes": listing.download_size,
        "files": len(paths),
        "files_found": sum(path is not None for path in paths),
        "found": _place_of(listing, paths),
        "licence": listing.licence,
        "source": listing.source,
        "note": listing.note or None,
    }


def _place_of(listing: Listing, paths: tuple[Path | None, ...]) -> str | None:
    """The folder of a set all of whose files are here; sets without files come with scikit-learn."""
    if not paths:
        return "built in"
    here = [path for path in paths if path is not None]
    return ", ".join(sorted({str(path.parent) for path in here})) if len(here) == len(paths) else None


def _listings_table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Data sets", title_justify="left")
    table.add_column("name", no_wrap=True)
    table.add_column("what")
    for column in ("train", "test", "classes", "download"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("where", overflow="fold")
    table.add_column("licence", overflow="fold")
    for row in rows:
        partly = f"not here ({row['files_found']} of {row['files']} files)" if row["files_found"] else "not here"
        size = f"{row['download_bytes'] / 1e6:,.0f} MB" if row["download_bytes"] else ""
        counts = (f"{row['train']:,}", f"{row['test']:,}", str(row["classes"]), size)
        table.add_row(*map(Text, (row["name"], row["title"], *counts, row["found"] or partly, row["licence"])))
    return table


def _files_table(rows: list[dict[str, Any]]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Files", title_justify="left")
    for column in ("data set", "file", "state", "where, and what is wrong"):
        table.add_column(column, overflow="fold")
    colours = {"intact": "green", "damaged": "bold red"}
    for row in rows:
        place = "; ".join(part for part in (row["path"], row["fault"]) if part)
        state = Text(row["state"], style=colours.get(row["state"], ""))
        table.add_row(Text(row["dataset"]), Text(row["file"]), state, Text(place))
    return table

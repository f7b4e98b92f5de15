"""`sordino audit`: what an adversary can really tell apart, beside what is claimed and what is proven."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.printing import AsJson, figure, plain_errors, print_json, print_tables, with_progress
from sordino.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table

    from sordino.audits.whole import Audit
    from sordino.privacy.audit import Case, Row


def audit(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[MECHANISM|RUN]",
            help="two-point, laplace, gaussian, sign, exponential, bits, label, piecewise or privunit (all if left "
            "out); or a run's folder, such as runs/quickstart.",
        ),
    ] = None,
    epsilon: Annotated[
        list[float] | None, typer.Option(help="The mechanisms' strength, 0.01 to 20; may be repeated. Default 1.")
    ] = None,
    trials: Annotated[
        int | None,
        typer.Option(
            help="Draws from each of the two worlds; fewer where they are costly. Default 400,000, of a run 100,000."
        ),
    ] = None,
    canaries: Annotated[
        int | None, typer.Option(help="Of a run of DP-SGD: made-up records, each in or out by a coin. Default 1,000.")
    ] = None,
    client: Annotated[
        int | None, typer.Option(help="Of a run: whom to audit. Default: whoever lost most by what is proven.")
    ] = None,
    round: Annotated[
        int | None, typer.Option(help="Of a run: which round's upload. Default: the client's first.")
    ] = None,
    seed: Annotated[int, typer.Option(help="The same seed gives the same table.")] = 1,
    everything: Annotated[bool, typer.Option("--all", help="Audit every mechanism (the default).")] = False,
    broken: Annotated[
        bool, typer.Option("--broken", help="Audit deliberately broken copies instead: each must be caught.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure what an adversary can really tell apart, beside what is claimed and what is proven.

    Each row is a lower bound on epsilon with 95 % confidence. The exit code is 1 if an experiment contradicts a proof
    (or, with --broken, if a broken copy goes unnoticed). The audit of a run goes into its statement and its report; it
    is an experiment on copies, and the run's own ledgers are left alone.
    """
    with plain_errors():
        if what is not None and (everything or broken):
            raise InvalidInput(f"give a mechanism or --all or --broken, not {what!r} and one of these")
        if everything and broken:
            raise InvalidInput("give --all or --broken, not both: broken copies have a table of their own")
        if what is not None and _is_run(what):
            if epsilon:
                raise InvalidInput("a run has its own epsilons: leave --epsilon out")
            _audit_run(Path(what), trials, canaries, client, round, seed, as_json)
            return
        if (canaries, client, round) != (None, None, None):
            raise InvalidInput("--canaries, --client and --round are for the audit of a run: name its folder")
        _audit_mechanisms(what, epsilon or [1.0], 400_000 if trials is None else trials, seed, broken, as_json)


# --- mechanisms -------------------------------------------------------------------------------------------------------


def _audit_mechanisms(
    name: str | None, strengths: Sequence[float], trials: int, seed: int, broken: bool, as_json: bool
) -> None:
    from sordino.mechanisms import audits
    from sordino.privacy import audit as auditing

    names = [name] if name else list(audits.CATALOGUE)
    cases = [case for e in strengths for case in (audits.broken_cases(e) if broken else _all_cases(names, e))]
    rows = [auditing.run(case, trials=trials, seed=seed) for case in with_progress(cases, "Auditing")]
    if as_json:
        print_json([row.to_json() for row in rows])
    else:
        print_tables(_audit_table(rows, "Broken on purpose" if broken else "Audit"), spare=SPARE)
        typer.echo(_audit_summary(rows, broken))
    violated = [row.verdict == auditing.VIOLATED for row in rows]
    if (broken and not all(violated)) or (not broken and any(violated)):
        raise typer.Exit(1)


def _all_cases(names: list[str], epsilon: float) -> list[Case]:
    from sordino.mechanisms import audits

    return [case for name in names for case in audits.cases(name, epsilon)]


def _audit_summary(rows: list[Row], broken: bool) -> str:
    from sordino.privacy import audit as auditing

    violated = sum(row.verdict == auditing.VIOLATED for row in rows)
    if broken:
        return (
            f"{violated} of {len(rows)} broken copies were caught: their audited bound lies above what they vouch for."
        )
    refuted = sum(row.verdict == auditing.REFUTED for row in rows)
    too_high = "1 PROVEN BOUND IS" if violated == 1 else f"{violated} PROVEN BOUNDS ARE"
    proven = f"{too_high} VIOLATED" if violated else "every audited bound is below the proven one"
    claims = "1 published claim is" if refuted == 1 else f"{refuted} published claims are"
    return f"{_how_many(rows)}: {proven}; {claims} refuted by experiment.\n{SMALL}"


# --- runs -------------------------------------------------------------------------------------------------------------


def _is_run(what: str) -> bool:
    """Whether a run's folder is meant: one that is there, or a path where a mechanism's name would do."""
    from sordino.mechanisms import audits

    if (Path(what) / "recipe.toml").is_file():
        return True
    if what in audits.CATALOGUE:
        return False
    if (Path("runs") / what / "recipe.toml").is_file():
        raise InvalidInput(f"no mechanism and no folder {what!r} here; there is a run runs/{what}: give that")
    return Path(what).exists() or "/" in what


def _audit_run(
    folder: Path,
    trials: int | None,
    canaries: int | None,
    client: int | None,
    round: int | None,
    seed: int,
    as_json: bool,
) -> None:
    from sordino.audits.asked import Asked
    from sordino.audits.whole import audit as audit_run

    usual = Asked()
    asked = Asked(
        client,
        round,
        usual.trials if trials is None else trials,
        usual.canaries if canaries is None else canaries,
        seed,
        lambda items, name: with_progress(list(items), name),
    )
    found = audit_run(folder, asked)
    if not found.violated and found.rows:
        found.write()
    if as_json:
        print_json(found.to_json())
    else:
        _print_run(found)
    if found.violated:
        raise typer.Exit(1)


def _print_run(found: Audit) -> None:
    rows = list(found.rows)
    folder = found.run.folder.path
    if rows:
        print_tables(_audit_table(rows, f"Audit of {folder}, {found.whom}"), spare=SPARE)
        typer.echo(
            f"{_how_many(rows)}. Claimed is for the whole run; proven and audited are for what each attack sees, which "
            "is a part of what the run released: more rounds only tell more."
        )
        typer.echo(SMALL)
    for number, row in enumerate(rows, 1):
        typer.echo(f"Row {number}: {row.attack}.")
    for words in found.found.left_out:
        typer.echo(f"Not audited: {words}.")
    for row in rows:
        if row.note:
            typer.echo(f"PROVEN BOUND VIOLATED ({row.unit}, {row.adjacency}, {row.adversary}): {row.note}.")
    if found.violated:
        typer.echo("The mechanism, the proof or the audit is wrong. The run's statement was left as it was.")
    elif rows:
        typer.echo(f"Written: {folder / 'statement.json'}, {folder / 'report.html'} and {folder / 'audit.json'}")


# --- tables -----------------------------------------------------------------------------------------------------------

SPARE = ("trials", "cap")
SMALL = "The audited figure is a lower bound and can reach the cap at most: a small one is no evidence of privacy."


def _how_many(rows: list[Row]) -> str:
    sure, seed = f"{rows[0].confidence:.0%} confidence", rows[0].seed
    return f"1 audit at {sure}, seed {seed}" if len(rows) == 1 else f"{len(rows)} audits at {sure} each, seed {seed}"


def _audit_table(rows: list[Row], title: str) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=f"{title}: epsilon claimed, proven and measured", title_justify="left", header_style="bold")
    for column in ("mechanism, unit", "adjacency, adversary"):
        table.add_column(column, overflow="fold")
    for column in ("claimed", "proven", "audited >=", "cap", "trials"):
        table.add_column(column, justify="right")
    table.add_column("verdict")
    colours = {"consistent": "green", "claim not supported": "yellow"}
    for row in rows:
        at = f"\n(delta {row.delta:.2g})" if row.delta else ""
        cells = [f"{row.mechanism}, {row.unit}", f"{row.adjacency}, {row.adversary}"]
        cells += ["none" if row.claimed is None else figure(row.claimed), figure(row.proven) + at]
        cells += [f"{row.audited:.3f}", f"{row.cap:.1f}", f"{row.trials:,}"]
        table.add_row(*map(Text, cells), Text(row.verdict, style=colours.get(row.verdict, "bold red")))
    return table

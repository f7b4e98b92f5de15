"""`sordino audit`: what an adversary can really tell apart, beside what is claimed and what is proven."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.printing import AsJson, figure, plain_errors, print_json, print_tables, with_progress
from sordino.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table

    from sordino.privacy.audit import Case, Row


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

    with plain_errors():
        if mechanism is not None and (everything or broken):
            raise InvalidInput(f"give a mechanism or --all or --broken, not {mechanism!r} and one of these")
        if everything and broken:
            raise InvalidInput("give --all or --broken, not both: broken copies have a table of their own")
        strengths = epsilon or [1.0]
        names = [mechanism] if mechanism else list(audits.CATALOGUE)
        cases = [case for e in strengths for case in (audits.broken_cases(e) if broken else _all_cases(names, e))]
        rows = [auditing.run(case, trials=trials, seed=seed) for case in with_progress(cases, "Auditing")]
    if as_json:
        print_json([row.to_json() for row in rows])
    else:
        print_tables(_audit_table(rows, "Broken on purpose" if broken else "Audit"))
        typer.echo(_audit_summary(rows, broken))
    violated = [row.verdict == auditing.VIOLATED for row in rows]
    if (broken and not all(violated)) or (not broken and any(violated)):
        raise typer.Exit(1)


def _all_cases(names: list[str], epsilon: float) -> list[Case]:
    from sordino.mechanisms import audits

    return [case for name in names for case in audits.cases(name, epsilon)]


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
        cells += ["none" if row.claimed is None else figure(row.claimed), figure(row.proven) + at]
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

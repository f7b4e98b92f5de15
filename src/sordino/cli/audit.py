"""`sordino audit`: what an adversary can really tell apart, beside what is claimed and what is proven."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.printing import AsJson, plain_errors, print_json, print_tables, with_progress
from sordino.errors import InvalidInput
from sordino.report.words import decimal

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from sordino.audits.inspection import Inspected, Subject
    from sordino.audits.lower_bound import AuditRow
    from sordino.audits.run_audit import Audit
    from sordino.mechanisms import Mechanism
    from sordino.mechanisms.cases import Case

VIOLATED = "PROVEN BOUND VIOLATED"


def audit(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[MECHANISM|RUN]",
            help="two-point, laplace, gaussian, sign, exponential, bits, label, piecewise, privunit, dp-sgd, keys, "
            "secure-sum or shuffler (all if left out); your own as package.module:Class; or a run's folder, such as "
            "runs/quickstart.",
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
    everything: Annotated[
        bool, typer.Option("--all", help="Audit every mechanism, channel and source of keys (the default).")
    ] = False,
    broken: Annotated[
        bool, typer.Option("--broken", help="Check programs that were broken on purpose instead: all must be caught.")
    ] = False,
    checks: Annotated[
        bool, typer.Option("--checks", help="Show every check, and the smallest fault that it would see.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Measure what an adversary can really tell apart, and check every coordinate of what is drawn.

    The first table attacks: each row is a lower bound on epsilon with 95 % confidence, beside what is claimed and
    proven. The second table checks: do draws of the real code have the distribution that the proof is about, in every
    coordinate, client, round and step? An unbroken program fails once in a million audits. A row of the first table is
    only consistent if its checks passed.

    The exit code is 1 if an experiment or a check contradicts a proof (or, with --broken, if a fault goes unnoticed).
    The audit of a run goes into its statement and its report; it is an experiment on copies, and the run's own ledgers
    are left alone.
    """
    with plain_errors():
        if what is not None and (everything or broken):
            raise InvalidInput(f"give a mechanism or --all or --broken, not {what!r} and one of these")
        if everything and broken:
            raise InvalidInput("give --all or --broken, not both: broken copies have a table of their own")
        if what is not None and _is_run(what):
            if epsilon:
                raise InvalidInput("a run has its own epsilons: leave --epsilon out")
            _audit_run(Path(what), trials, canaries, client, round, seed, checks, as_json)
            return
        if (canaries, client, round) != (None, None, None):
            raise InvalidInput("--canaries, --client and --round are for the audit of a run: name its folder")
        if broken:
            if epsilon or trials:
                raise InvalidInput(
                    "planted faults have their own strengths and draws: leave --epsilon and --trials out"
                )
            _audit_faults(seed, as_json)
            return
        _audit_programs(what, epsilon or [1.0], 400_000 if trials is None else trials, seed, checks, as_json)


# --- mechanisms and programs ------------------------------------------------------------------------------------------


def _audit_programs(
    name: str | None, strengths: Sequence[float], trials: int, seed: int, every: bool, as_json: bool
) -> None:
    """Attacks on mechanisms and checks of everything, or of what is named."""
    from sordino.audits.catalogue import PROGRAMS, cases
    from sordino.audits.mechanisms import subjects

    found = [_AuditJob(cases(one, e), subjects(one, e)) for e in strengths for one in _mechanisms(name)]
    once = [_AuditJob([], draws()) for program, draws in PROGRAMS.items() if name in (None, program)]
    _carry_out([*found, *once], trials, seed)
    rows, inspected = [row for one in found for row in one.rows], [i for one in [*found, *once] for i in one.inspected]
    if as_json:
        print_json({"rows": [row.to_json() for row in rows], "checks": [one.to_json() for one in inspected]})
    else:
        if rows:
            print_tables(_audit_table(rows, "Audit"), spare=SPARE)
        _print_checks(inspected, every=every)
        typer.echo(_audit_summary(rows, inspected))
    if any(row.verdict == VIOLATED for row in rows) or not all(one.passed for one in inspected):
        raise typer.Exit(1)


def _mechanisms(name: str | None) -> Sequence[type[Mechanism]]:
    """The mechanism of this name, anybody's own, or all; none where a program is named."""
    from sordino.audits.catalogue import AUDITED, NAMES, PROGRAMS
    from sordino.mechanisms import mechanism_named

    if name is None or name in PROGRAMS:
        return () if name else AUDITED
    if ":" not in name and name not in NAMES:
        raise InvalidInput(f"no mechanism {name!r} to audit; there are {', '.join(NAMES)}; or give a run's folder")
    own = mechanism_named(name)
    if not any(own.audit_cases(1.0)) and not any(own.specimens(1.0)):
        raise InvalidInput(f"{name} says nothing to audit: give it audit_cases, or specimens and their law")
    return (own,)


@dataclass
class _AuditJob:
    """A mechanism, or a program without an epsilon: its cases, its subjects, and what came of them."""

    cases: list[Case]
    subjects: list[Subject]
    rows: list[AuditRow] = field(default_factory=list)
    inspected: list[Inspected] = field(default_factory=list)


def _carry_out(audited: Sequence[_AuditJob], trials: int, seed: int) -> None:
    from sordino.audits import lower_bound as auditing
    from sordino.audits.inspection import failures, inspect_one, level
    from sordino.mechanisms.cases import Case

    each = level(sum(len(one.subjects) for one in audited))
    work: list[tuple[_AuditJob, Case | Subject]] = []
    for one in audited:
        work += [(one, case) for case in one.cases]
        work += [(one, subject) for subject in one.subjects]
    for one, task in with_progress(work, "Auditing"):
        if isinstance(task, Case):
            one.rows.append(auditing.run(task, trials=trials, seed=seed))
        else:
            one.inspected.append(inspect_one(task, seed, each))
    for one in audited:
        if one.inspected:
            one.rows = [row.checked(failures(one.inspected)) for row in one.rows]


def _audit_summary(rows: list[AuditRow], inspected: list[Inspected]) -> str:
    from sordino.audits import lower_bound as auditing

    said = []
    if rows:
        violated = sum(row.verdict == VIOLATED for row in rows)
        refuted = sum(row.verdict == auditing.REFUTED for row in rows)
        too_high = "1 PROVEN BOUND IS" if violated == 1 else f"{violated} PROVEN BOUNDS ARE"
        proven = f"{too_high} VIOLATED" if violated else "every audited bound is below the proven one"
        claims = "1 published claim is" if refuted == 1 else f"{refuted} published claims are"
        said += [f"{_how_many(rows)}: {proven}; {claims} refuted by experiment.", SMALL]
    if inspected:
        said.append(_checks_summary(inspected))
    return "\n".join(said)


# --- broken on purpose ------------------------------------------------------------------------------------------------


def _audit_faults(seed: int, as_json: bool) -> None:
    """Every planted fault, once."""
    from rich.table import Table
    from rich.text import Text

    from sordino.audits.faults import FAULTS, attempt

    found = [attempt(fault, seed) for fault in with_progress(list(FAULTS), "Breaking")]
    caught = sum(one.caught for one in found)
    if as_json:
        print_json([one.to_json() for one in found])
    else:
        table = Table(title="Broken on purpose: what the checks catch", title_justify="left", header_style="bold")
        for column in ("fault", "in", "caught by", "where"):
            table.add_column(column, overflow="fold")
        table.add_column("p", justify="right")
        table.add_column("verdict")
        for one in found:
            first = one.looks[0] if one.looks else None
            cells = [one.fault, one.breaks, first.check if first else "nothing", first.where if first else ""]
            verdict = Text("caught", style="green") if one.caught else Text("MISSED", style="bold red")
            table.add_row(*map(Text, [*cells, _chance(first.p) if first else ""]), verdict)
        print_tables(table, spare=("where", "p"))
        typer.echo(f"{caught} of {len(found)} planted faults were caught, seed {seed}.")
    if caught < len(found):
        raise typer.Exit(1)


# --- runs -------------------------------------------------------------------------------------------------------------


def _is_run(what: str) -> bool:
    """Whether a run's folder is meant: one that is there, or a path where a mechanism's name would do."""
    from sordino.audits.catalogue import NAMES

    if (Path(what) / "recipe.toml").is_file():
        return True
    if what in NAMES or ":" in what:
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
    every: bool,
    as_json: bool,
) -> None:
    from sordino.audits.findings import AuditOptions
    from sordino.audits.run_audit import audit as audit_run

    usual = AuditOptions()
    asked = AuditOptions(
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
        _print_run(found, every)
    if found.violated:
        raise typer.Exit(1)


def _print_run(found: Audit, every: bool) -> None:
    rows = list(found.rows)
    folder = found.run.folder.path
    if rows:
        print_tables(_audit_table(rows, f"Audit of {folder}, {found.whom}"), spare=SPARE)
        typer.echo(
            f"{_how_many(rows)}. Claimed is for the whole run; proven and audited are for what each attack sees, which "
            "is a part of what the run released: more rounds only tell more."
        )
        typer.echo(SMALL)
    if found.found.inspected:
        _print_checks(found.found.inspected, every=every)
        typer.echo(_checks_summary(found.found.inspected))
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


def _how_many(rows: list[AuditRow]) -> str:
    sure, seed = f"{rows[0].confidence:.0%} confidence", rows[0].seed
    return f"1 audit at {sure}, seed {seed}" if len(rows) == 1 else f"{len(rows)} audits at {sure} each, seed {seed}"


def _audit_table(rows: list[AuditRow], title: str) -> Table:
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
        cells += ["none" if row.claimed is None else decimal(row.claimed), decimal(row.proven) + at]
        cells += [f"{row.audited:.3f}", f"{row.cap:.1f}", f"{row.trials:,}"]
        table.add_row(*map(Text, cells), Text(row.verdict, style=colours.get(row.verdict, "bold red")))
    return table


def _print_checks(inspected: Sequence[Inspected], *, every: bool) -> None:
    """One line for each subject, or for each of its checks."""
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Checks of what is drawn", title_justify="left", header_style="bold")
    table.add_column("what", overflow="fold")
    table.add_column("draws x values", justify="right")
    table.add_column("check" if every else "checks", justify="left" if every else "right", overflow="fold")
    table.add_column("smallest fault it sees", overflow="fold", min_width=30)
    table.add_column("p" if every else "least p", justify="right")
    table.add_column("verdict")
    for one in inspected:
        shape = f"{one.draws:,} x {one.values:,}"
        if every:
            for look in one.looks:
                passed = look.p >= one.level
                table.add_row(
                    *map(Text, [one.subject, shape, look.check, look.sees, _chance(look.p)]), _mark(passed, "")
                )
        else:
            first = one.failed[0] if one.failed else None
            cells = [one.subject, shape, str(len(one.looks)), one.sees, _chance(min(look.p for look in one.looks))]
            table.add_row(*map(Text, cells), _mark(one.passed, f": {first.check}" if first else ""))
    print_tables(table, spare=("draws x values", "p", "least p"))


def _mark(passed: bool, why: str) -> Text:
    from rich.text import Text

    return Text("passed", style="green") if passed else Text(f"FAILED{why}", style="bold red")


def _chance(p: float) -> str:
    """A p-value for a table's cell; 1 is as good as certain, and 0 as good as impossible."""
    return "0" if p == 0 else f"{p:.2g}"


def _checks_summary(inspected: Sequence[Inspected]) -> str:
    from sordino.audits.inspection import failures
    from sordino.audits.statistics import FAMILY

    count = sum(len(one.looks) for one in inspected)
    wrong = failures(inspected)
    if wrong:
        return "\n".join([f"{len(wrong)} of {count} checks FAILED:", *wrong])
    return (
        f"All {count} checks passed. Together they fail once in {1 / FAMILY:,.0f} audits of an unbroken program. "
        f"Of {count} p-values one near {1 / count:.2g} is normal; only a far smaller one is a failure."
    )

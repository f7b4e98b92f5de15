"""`sordino audit`: what an adversary can really tell apart, beside what is claimed and what is proven."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.options import AsJson, Ray
from sordino.cli.printing import Cell, left, print_json, print_table, right, with_progress
from sordino.errors import InvalidInput
from sordino.report.words import figure, lower, upper

if TYPE_CHECKING:
    from sordino.audits.findings import AuditOptions
    from sordino.audits.inspection import Inspected, Subject
    from sordino.audits.lower_bound import AuditRow
    from sordino.audits.run_audit import Audit
    from sordino.mechanisms import Mechanism
    from sordino.mechanisms.cases import Case

    _Job = tuple[list[Case], list[Subject]]  #: attacks on a mechanism, or none on a program, and what is checked of it


def audit(
    what: Annotated[
        str | None,
        typer.Argument(
            metavar="[MECHANISM|RUN]",
            help="two-point, laplace, gaussian, sign, exponential, bits, label, piecewise, privunit, account, dp-sgd, "
            "keys, one-record, private-evaluation, secure-sum or shuffler (all if left out); your own as "
            "package.module:Class; or a run's folder, such as runs/quickstart.",
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
    ray: Ray = None,
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
    if what is not None and (everything or broken):
        raise InvalidInput(f"give a mechanism or --all or --broken, not {what!r} and one of these")
    if everything and broken:
        raise InvalidInput("give --all or --broken, not both: broken copies have a table of their own")
    if what is not None and _is_run(what):
        if epsilon:
            raise InvalidInput("a run has its own epsilons: leave --epsilon out")
        from sordino.audits.findings import AuditOptions

        options = AuditOptions(client, round, seed=seed, track=with_progress)
        options = options if trials is None else replace(options, trials=trials)
        options = options if canaries is None else replace(options, canaries=canaries)
        if ray is None:
            _audit_run(Path(what), options, checks, as_json)
            return
        from sordino.fleets.ray_workers import RayPool

        with RayPool(ray) as pool:
            _audit_run(Path(what), replace(options, pool=pool), checks, as_json)
        return
    if (canaries, client, round, ray) != (None, None, None, None):
        raise InvalidInput("--canaries, --client, --round and --ray are for the audit of a run: name its folder")
    if broken:
        if epsilon or trials:
            raise InvalidInput("planted faults have their own strengths and draws: leave --epsilon and --trials out")
        _audit_faults(seed, as_json)
        return
    _audit_programs(what, epsilon or [1.0], 400_000 if trials is None else trials, seed, checks, as_json)


# --- mechanisms and programs ------------------------------------------------------------------------------------------


def _audit_programs(
    name: str | None, strengths: Sequence[float], trials: int, seed: int, every: bool, as_json: bool
) -> None:
    """Attacks on mechanisms and checks of everything, or of what is named."""
    from sordino.audits.catalogue import PROGRAMS, cases
    from sordino.audits.lower_bound import VIOLATED
    from sordino.audits.mechanisms import subjects

    jobs: list[_Job] = [(cases(one, e), subjects(one, e)) for e in strengths for one in _mechanisms(name)]
    jobs += [([], draws()) for program, draws in PROGRAMS.items() if name in (None, program)]
    rows, inspected = _carry_out(jobs, trials, seed)
    if as_json:
        print_json({"rows": [row.to_json() for row in rows], "checks": [one.to_json() for one in inspected]})
    else:
        if rows:
            _print_rows(rows, "Audit")
            typer.echo(_audit_summary(rows))
            typer.echo(SMALL)
        if inspected:
            _print_checks(inspected, every=every)
    if any(row.verdict == VIOLATED for row in rows) or not all(one.passed for one in inspected):
        raise typer.Exit(1)


def _mechanisms(name: str | None) -> Sequence[type[Mechanism]]:
    """The mechanism of this name, anybody's own, or all; none where a program is named."""
    from sordino.audits.catalogue import PROGRAMS, audited
    from sordino.mechanisms import mechanism_named

    if name is None:
        return tuple(audited().values())
    if name in PROGRAMS:
        return ()
    if ":" not in name and name not in audited():
        known = ", ".join([*audited(), *PROGRAMS])
        raise InvalidInput(f"no mechanism {name!r} to audit; there are {known}; or give a run's folder")
    own = mechanism_named(name)
    if not any(own.audit_cases(1.0)) and not any(own.specimens(1.0)):
        raise InvalidInput(f"{name} says nothing to audit: give it audit_cases, or specimens and their law")
    return (own,)


def _carry_out(jobs: Sequence[_Job], trials: int, seed: int) -> tuple[list[AuditRow], list[Inspected]]:
    """Attack and check; a row of an attack counts the checks of the same mechanism that failed."""
    from sordino.audits.inspection import failures, inspect_one, level
    from sordino.audits.lower_bound import run

    each = level(sum(len(subjects) for _, subjects in jobs))
    rows: list[AuditRow] = []
    inspected: list[Inspected] = []
    for cases, subjects in with_progress(jobs, "Auditing"):
        tried = [run(case, trials=trials, seed=seed) for case in cases]
        own = [inspect_one(subject, seed, each) for subject in subjects]
        rows += [row.checked(failures(own)) for row in tried] if own else tried
        inspected += own
    return rows, inspected


def _audit_summary(rows: list[AuditRow]) -> str:
    from sordino.audits.lower_bound import REFUTED, VIOLATED

    violated = sum(row.verdict == VIOLATED for row in rows)
    refuted = sum(row.verdict == REFUTED for row in rows)
    too_high = "1 PROVEN BOUND IS" if violated == 1 else f"{violated} PROVEN BOUNDS ARE"
    proven = f"{too_high} VIOLATED" if violated else "every audited bound is below the proven one"
    claims = "1 published claim is" if refuted == 1 else f"{refuted} published claims are"
    return f"{_how_many(rows)}: {proven}; {claims} refuted by experiment."


# --- broken on purpose ------------------------------------------------------------------------------------------------


def _audit_faults(seed: int, as_json: bool) -> None:
    """Every planted fault, once."""
    from sordino.audits.faults import FAULTS, attempt

    found = [attempt(fault, seed) for fault in with_progress(FAULTS, "Breaking")]
    caught = sum(one.caught for one in found)
    if as_json:
        print_json([one.to_json() for one in found])
    else:
        columns = [*left("fault", "in", "caught by", "where"), *right("p"), *left("verdict")]
        rows: list[list[Cell]] = []
        for one in found:
            first = one.looks[0] if one.looks else None
            cells = [first.check, first.where, _chance(first.p)] if first else ["nothing", "", ""]
            rows.append([one.fault, one.breaks, *cells, ("caught", "green") if one.caught else ("MISSED", "bold red")])
        print_table("Broken on purpose: what the checks catch", columns, rows, spare=("where", "p"))
        typer.echo(f"{caught} of {len(found)} planted faults were caught, seed {seed}.")
    if caught < len(found):
        raise typer.Exit(1)


# --- runs -------------------------------------------------------------------------------------------------------------


def _is_run(what: str) -> bool:
    """Whether a run's folder is meant: one that is there, or a path where a mechanism's name would do."""
    from sordino.audits.catalogue import PROGRAMS, audited

    if (Path(what) / "recipe.toml").is_file():
        return True
    if what in audited() or what in PROGRAMS or ":" in what:
        return False
    if (Path("runs") / what / "recipe.toml").is_file():
        raise InvalidInput(f"no mechanism and no folder {what!r} here; there is a run runs/{what}: give that")
    return Path(what).exists() or "/" in what


def _audit_run(folder: Path, options: AuditOptions, every: bool, as_json: bool) -> None:
    from sordino.audits.run_audit import audit as audit_run

    found = audit_run(folder, options)
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
        _print_rows(rows, f"Audit of {folder}, {found.whom}")
        typer.echo(
            f"{_how_many(rows)}. Claimed is for the whole run; proven and audited are for what each attack sees, which "
            "is a part of what the run released: more rounds only tell more."
        )
        typer.echo(SMALL)
    if found.found.inspected:
        _print_checks(found.found.inspected, every=every)
    for number, row in enumerate(rows, 1):
        typer.echo(f"row {number}: {row.attack}.")
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

SMALL = "The audited figure is a lower bound and can reach the cap at most: a small one is no evidence of privacy."


def _how_many(rows: list[AuditRow]) -> str:
    sure, seed = f"{rows[0].confidence:.0%} confidence", rows[0].seed
    return f"1 audit at {sure}, seed {seed}" if len(rows) == 1 else f"{len(rows)} audits at {sure} each, seed {seed}"


def _print_rows(rows: list[AuditRow], title: str) -> None:
    figures = right("claimed", "proven", "audited >=", "cap", "trials")
    columns = [*left("mechanism, unit", "adjacency, adversary"), *figures, *left("verdict")]
    title = f"{title}: epsilon claimed, proven and measured"
    print_table(title, columns, map(_row, rows), spare=("trials", "cap"))


def _row(row: AuditRow) -> list[Cell]:
    at = f"\n(delta {upper(row.delta)})" if row.delta else ""
    claimed = "none" if row.claimed is None else figure(row.claimed)
    figures = (claimed, upper(row.proven) + at, lower(row.audited), f"{row.cap:.1f}", f"{row.trials:,}")
    colour = {"consistent": "green", "claim not supported": "yellow"}.get(row.verdict, "bold red")
    return [f"{row.mechanism}, {row.unit}", f"{row.adjacency}, {row.adversary}", *figures, (row.verdict, colour)]


def _print_checks(inspected: Sequence[Inspected], *, every: bool) -> None:
    """One line for each subject, or for each of its checks; then all of them in a sentence."""
    columns = [*left("what"), *right("draws x values"), *(left("check") if every else right("checks"))]
    columns += left("smallest fault it sees", min_width=30)
    columns += [*right("p" if every else "least p"), *left("verdict")]
    rows = (row for one in inspected for row in (_look_rows(one) if every else [_inspected_row(one)]))
    print_table("Checks of what is drawn", columns, rows, spare=("draws x values", "p", "least p"))
    typer.echo(_checks_summary(inspected))


def _look_rows(one: Inspected) -> Iterator[list[Cell]]:
    for look in one.looks:
        yield [one.subject, _shape(one), look.check, look.sees, _chance(look.p), _mark(look.p >= one.level)]


def _inspected_row(one: Inspected) -> list[Cell]:
    why = f": {one.failed[0].check}" if one.failed else ""
    least = _chance(min(look.p for look in one.looks))
    return [one.subject, _shape(one), str(len(one.looks)), one.sees, least, _mark(one.passed, why)]


def _shape(one: Inspected) -> str:
    return f"{one.draws:,} x {one.values:,}"


def _mark(passed: bool, why: str = "") -> Cell:
    return ("passed", "green") if passed else (f"FAILED{why}", "bold red")


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

"""`sordino reproduce`: the papers' experiments, run again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.printing import AsJson, plain_errors, print_json
from sordino.cli.run import Device, WorkerCount
from sordino.errors import InvalidInput

if TYPE_CHECKING:
    from sordino.reproduce.experiments import Experiment
    from sordino.reproduce.pages import Row


def reproduce(
    paper: Annotated[
        str | None, typer.Argument(help="ldp-fl, ldp-fed, ldpfl, personalized or webfed; see --all for all of them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All five papers.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Scaled-down versions, for a first look.")] = False,
    seeds: Annotated[int | None, typer.Option(help="Seeds for each; as the experiment asks if left out.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Only the experiment of this name, or those that begin with it.")
    ] = None,
    priority: Annotated[int, typer.Option(help="Leave out what is less important: 1 is headline figures only.")] = 9,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where runs and records go.")] = Path("reproduction"),
    docs: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the tables and plots into the pages of this folder.")
    ] = None,
    list_them: Annotated[bool, typer.Option("--list", help="List the experiments and run nothing.")] = False,
    workers: WorkerCount = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Run a paper's experiments again, the most valuable first, and set them beside its figures.

    What is recorded already is not run again, so the same command goes on after an interruption.
    """
    from sordino.reproduce.experiments import PAPERS, chosen, experiments
    from sordino.reproduce.pages import rows, write_overview, write_paper
    from sordino.reproduce.records import Records

    def records_of(name: str) -> Records:
        return Records((docs / "papers" / "records" if docs is not None else out / "records") / f"{name}.jsonl")

    with plain_errors():
        papers = _papers(paper, everything, list(PAPERS))
        for name in papers:
            todo = [e for e in chosen(experiments(name), only or []) if e.priority <= priority]
            if list_them:
                _list(name, todo)
            else:
                _run(todo, records_of(name), quick, seeds, out / name, workers, device)
        if list_them:
            return
        if docs is not None and not quick:
            for name in papers:
                write_paper(name, records_of(name), docs)
            write_overview(records_of, docs)
        found = {name: rows(name, records_of(name)) for name in papers}
        quick_rows = {name: _quick_rows(name, records_of(name)) for name in papers} if quick else found
    if as_json:
        print_json({name: [_as_json(row) for row in own] for name, own in quick_rows.items()})
    else:
        _print(quick_rows)


def _papers(paper: str | None, everything: bool, known: list[str]) -> list[str]:
    if everything:
        return known
    if paper is None:
        raise InvalidInput(f"name a paper ({', '.join(known)}), or --all")
    return [paper]


def _quick_rows(name: str, records: Any) -> list[Row]:
    from sordino.reproduce.experiments import experiments
    from sordino.reproduce.pages import Row

    return [Row(e, tuple(records.of(e.id, quick=True))) for e in experiments(name)]


def _run(
    todo: list[Experiment], records: Any, quick: bool, seeds: int | None, out: Path, workers: int | None, device: str
) -> None:
    from rich.console import Console

    from sordino.reproduce.carry_out import reproduce as carry_out

    console = Console(stderr=True)

    def told(experiment: Experiment, seed: int, what: str) -> None:
        console.print(f"{experiment.id}, seed {seed}: {what}", highlight=False, markup=False)

    if not todo:
        return
    try:
        carry_out(todo, records, quick=quick, seeds=seeds, folder=out, workers=workers, device=device, told=told)
    except KeyboardInterrupt:
        typer.echo("\nStopped. The same command goes on from here.", err=True)
        raise typer.Exit(130) from None


def _list(name: str, todo: list[Experiment]) -> None:
    for experiment in todo:
        figure = "not stated" if experiment.figure is None else f"{experiment.figure:.2f}"
        typer.echo(f"{name}  {experiment.id:32} {figure:>10}  {experiment.what}")


def _as_json(row: Row) -> dict[str, Any]:
    return {
        "experiment": row.experiment.id,
        "what": row.experiment.what,
        "paper": row.experiment.figure,
        "ours": row.ours,
        "spread": row.spread,
        "seeds": len(row.records),
        "verdict": row.verdict,
    }


def _print(found: dict[str, list[Row]]) -> None:
    from rich.table import Table

    from sordino.cli.printing import print_tables
    from sordino.reproduce.experiments import PAPERS
    from sordino.reproduce.pages import privacy_cells

    for name, rows in found.items():
        table = Table(title=PAPERS[name], title_justify="left")
        for column in ("experiment", "paper", "ours", "claimed epsilon", "proven epsilon", "verdict"):
            table.add_column(column, overflow="fold")
        for row in rows:
            figure = "not stated" if row.experiment.figure is None else f"{row.experiment.figure:.2f}"
            ours = "not run" if row.ours is None else f"{row.ours:.2f}"
            table.add_row(row.experiment.what, figure, ours, *privacy_cells(row), row.verdict)
        print_tables(table)


__all__ = ["reproduce"]

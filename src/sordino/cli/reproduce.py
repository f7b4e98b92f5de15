"""`sordino reproduce`: the papers' experiments, run again."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.printing import AsJson, plain_errors, print_json
from sordino.cli.run import Device, WorkerCount, check_place
from sordino.errors import InvalidInput
from sordino.observer import Observer

if TYPE_CHECKING:
    from sordino.report.records import Round
    from sordino.reproduce.carry_out import Tidings, Turn
    from sordino.reproduce.experiments import Experiment
    from sordino.reproduce.pages import Row
    from sordino.reproduce.records import Records
    from sordino.wiring import Federation

SCALED_DOWN = "scaled down, not to be compared with the paper"


def reproduce(
    paper: Annotated[
        str | None, typer.Argument(help="ldp-fl, ldp-fed, ldpfl, personalized or webfed; see --all for all of them.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="All five papers.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Scaled-down versions, for a first look.")] = False,
    seeds: Annotated[
        int | None, typer.Option(min=1, help="Seeds for each; as the experiment asks if left out.")
    ] = None,
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

    What is recorded already is not run again, so the same command goes on after an interruption. Experiments whose data
    are not here are skipped, and it is said which files to put where.
    """
    from sordino.reproduce.experiments import PAPERS, chosen, experiments
    from sordino.reproduce.pages import rows, write_overview, write_paper
    from sordino.reproduce.records import Records

    def records_of(name: str) -> Records:
        return Records((docs / "papers" / "records" if docs is not None else out / "records") / f"{name}.jsonl")

    with plain_errors():
        check_place(workers, device)
        if quick and docs is not None:
            raise InvalidInput("pages are made from full runs alone: leave out --quick, or --docs")
        papers = _papers(paper, everything, list(PAPERS))
        todo = {n: [e for e in chosen(experiments(n), only or []) if e.priority <= priority] for n in papers}
        if list_them:
            _list(todo)
            return
        ended = _run(todo, {name: records_of(name) for name in papers}, quick, seeds, out, workers, device)
        if docs is not None:
            for name in papers:
                write_paper(name, records_of(name), docs)
            write_overview(records_of, docs)
        if quick:
            found = {name: _quick_rows(todo[name], records_of(name)) for name in papers}
        else:
            found = {name: rows(name, records_of(name)) for name in papers}
    if as_json:
        print_json({name: [_as_json(row, quick) for row in own] for name, own in found.items()})
    elif quick:
        _print_quick(found)
    else:
        _print(found)
    _say_what_happened(ended)


def _papers(paper: str | None, everything: bool, known: list[str]) -> list[str]:
    if everything:
        return known
    if paper is None:
        raise InvalidInput(f"name a paper ({', '.join(known)}), or --all")
    return [paper]


def _list(todo: Mapping[str, Sequence[Experiment]]) -> None:
    for name, own in todo.items():
        for experiment in own:
            figure = "not stated" if experiment.figure is None else f"{experiment.figure:.2f}"
            typer.echo(f"{name}  {experiment.id:32} {figure:>10}  {experiment.what}")


# --- running ----------------------------------------------------------------------------------------------------------


def _run(
    todo: Mapping[str, Sequence[Experiment]],
    records: Mapping[str, Records],
    quick: bool,
    seeds: int | None,
    out: Path,
    workers: int | None,
    device: str,
) -> dict[str, tuple[Tidings, ...]]:
    from sordino.reproduce.carry_out import Absent, turns
    from sordino.reproduce.carry_out import reproduce as carry_out

    asked = {name: turns(own, quick=quick, seeds=seeds) for name, own in todo.items()}
    absent = Absent()
    try:
        with Display(sum(map(len, asked.values()))) as display:
            return {
                name: carry_out(
                    own, records[name], out / name, absent=absent, workers=workers, device=device,
                    told=display.told, observer=display,
                )
                for name, own in asked.items()
            }  # fmt: skip
    except KeyboardInterrupt:
        typer.echo("\nStopped. The same command goes on from here.", err=True)
        raise typer.Exit(130) from None


class Display(Observer):
    """What a person sees meanwhile: on a terminal a bar over all of them, elsewhere a line for each and a minute."""

    PLAIN_SECONDS = 60.0

    def __init__(self, total: int) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        self._console = Console(stderr=True)
        columns = (
            TextColumn("experiments"),
            MofNCompleteColumn(),
            BarColumn(bar_width=20),
            TimeElapsedColumn(),
            TextColumn("{task.fields[now]}"),
        )
        self._progress = Progress(
            *columns, console=self._console, transient=True, disable=not self._console.is_terminal
        )
        self._task = self._progress.add_task("", total=total, now="")
        self._running = ""
        self._rounds = 0
        self._said = 0.0
        self._reasons: set[str] = set()

    def __enter__(self) -> Display:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def told(self, tidings: Tidings) -> None:
        """Show what happens to one of them; a reason to skip is given once."""
        name = _named(tidings.turn)
        if tidings.what == "running":
            self._running = name
            self._said = time.monotonic()
            self._progress.update(self._task, now=name)
        else:
            self._progress.advance(self._task)
        if tidings.what == "skipped":
            again = tidings.why in self._reasons
            self._reasons.add(tidings.why)
            self._line(f"{name}: skipped, " + ("for the same data" if again else tidings.why), always=not again)
        else:
            self._line(f"{name}: {tidings.what}", always=False)

    def started(self, federation: Federation, preflight: Sequence[str], first: int) -> None:
        """Remember how far the run is to go."""
        self._rounds = federation.recipe.rounds.count

    def round(self, record: Round) -> None:
        """Show how far the run is."""
        accuracy = "" if record.accuracy is None else f", accuracy {record.accuracy:.2%}"
        now = f"{self._running}: round {record.round} of {self._rounds}{accuracy}"
        self._progress.update(self._task, now=now)
        if time.monotonic() - self._said >= self.PLAIN_SECONDS:
            self._said = time.monotonic()
            self._line(now, always=False)

    def _line(self, text: str, *, always: bool) -> None:
        """On a terminal the bar says the rest."""
        if always or not self._console.is_terminal:
            self._console.print(text, highlight=False, markup=False, soft_wrap=True)


def _named(turn: Turn) -> str:
    return f"{turn.experiment.id}, seed {turn.seed}"


def _say_what_happened(ended: Mapping[str, Sequence[Tidings]]) -> None:
    """How many runs of each paper were made, recorded before or skipped, and what the skipped ones want."""
    for name, own in ended.items():
        counts = {what: sum(t.what == what for t in own) for what in ("done", "recorded before", "skipped")}
        typer.echo(
            f"{name}: {counts['done']} run now, {counts['recorded before']} recorded before, "
            f"{counts['skipped']} skipped",
            err=True,
        )
    skipped = [(name, tidings) for name, own in ended.items() for tidings in own if tidings.what == "skipped"]
    for why in dict.fromkeys(tidings.why for _, tidings in skipped):
        papers = Counter(name for name, tidings in skipped if tidings.why == why)
        typer.echo(f"Skipped ({', '.join(f'{count} of {name}' for name, count in papers.items())}): {why}", err=True)
    if skipped and len(skipped) == sum(map(len, ended.values())):
        raise typer.Exit(1)  # nothing of what was asked for could be had


# --- what came of it --------------------------------------------------------------------------------------------------


def _quick_rows(todo: Sequence[Experiment], records: Records) -> list[Row]:
    from sordino.reproduce.pages import Row
    from sordino.reproduce.records import essence

    found = []
    for experiment in todo:
        asked = essence(experiment.settings(quick=True, seed=1))
        own = (record for record in records.of(experiment.id, quick=True) if record.fingerprint == asked)
        found.append(Row(experiment, tuple(own)))
    return found


def _as_json(row: Row, quick: bool) -> dict[str, Any]:
    return {
        "experiment": row.experiment.id,
        "what": row.experiment.what,
        "paper": row.experiment.figure,
        "ours": row.ours,
        "spread": row.spread,
        "seeds": len(row.records),
        "verdict": SCALED_DOWN if quick and row.records else row.verdict,
    }


def _print(found: Mapping[str, Sequence[Row]]) -> None:
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
            table.add_row(row.experiment.what, figure, _ours(row), *privacy_cells(row), row.verdict)
        print_tables(table)


def _print_quick(found: Mapping[str, Sequence[Row]]) -> None:
    """Without the papers' figures: a few rounds of a few clients are no match for them."""
    from rich.table import Table

    from sordino.cli.printing import print_tables
    from sordino.reproduce.experiments import PAPERS
    from sordino.reproduce.pages import privacy_cells

    for name, rows in found.items():
        table = Table(title=f"{PAPERS[name]}: {SCALED_DOWN}", title_justify="left")
        for column in ("experiment", "accuracy", "claimed epsilon", "proven epsilon"):
            table.add_column(column, overflow="fold")
        for row in rows:
            table.add_row(row.experiment.what, _ours(row), *privacy_cells(row))
        print_tables(table)


def _ours(row: Row) -> str:
    return "not run" if row.ours is None else f"{row.ours:.2f}"


__all__ = ["reproduce"]

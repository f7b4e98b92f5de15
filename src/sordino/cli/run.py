"""`sordino run | sweep | compare`: recipes carried out, and what came of them."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.folders import check_folder
from sordino.cli.printing import AsJson, plain_errors, print_json
from sordino.errors import InvalidInput
from sordino.runs.observer import Observer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

    from sordino.recipe import Recipe
    from sordino.report.compare import Comparison, Repetitions
    from sordino.report.records import RoundRecord
    from sordino.runs.coordinator import Attendance
    from sordino.runs.federation import Federation
    from sordino.runs.outcome import Outcome
    from sordino.runs.sweep import Point

RUNS, SWEEPS = Path("runs"), Path("sweeps")  #: where runs and sweeps go unless --out says otherwise
REAL = "Real clients"  #: where the options for them are listed
SHUFFLER_FILES = (
    "give the server's files for it, --shuffler-token (its server.token) and --shuffler-key (the private key of "
    "`sordino shuffler keys`)"
)
PATIENCE = 60.0  #: seconds for which a real client that cannot be reached is tried again

RecipeName = Annotated[
    str | None, typer.Argument(metavar="RECIPE", help="A shipped recipe by name (`sordino recipes`), or a TOML file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a setting, e.g. training.epochs=5; as often as needed."),
]
WorkerCount = Annotated[
    int | None,
    typer.Option(
        "--workers",
        help="Processes; one per core if left out, or one on a GPU, which several may share. Results do not depend "
        "on it (on a GPU: but for rounding).",
    ),
]
Device = Annotated[str, typer.Option("--device", help="cpu, or cuda for a GPU.")]
SameDevice = Annotated[
    str | None, typer.Option("--device", help="cpu (the default), or cuda for a GPU; a resumed run keeps its own.")
]


def run(
    recipe: RecipeName = None,
    overrides: Overrides = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same result.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to write; runs/<name> (or -2, -3, ...) if left out.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with an interrupted run, from its folder.")
    ] = None,
    workers: WorkerCount = None,
    device: SameDevice = None,
    clients: Annotated[
        list[Path] | None,
        typer.Option(
            "--client",
            metavar="SOCKET",
            help="A real client's socket (`sordino client serve`), once for each client, in order of their numbers: "
            "nothing is simulated.",
            rich_help_panel=REAL,
        ),
    ] = None,
    federation: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The name that clients agree to; the recipe's if left out.", rich_help_panel=REAL
        ),
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option(
            help="Seconds for which a client that cannot be reached is tried again; 60 if left out.",
            rich_help_panel=REAL,
        ),
    ] = None,
    shuffler_token: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The server's token, where a shuffler is used.", rich_help_panel=REAL),
    ] = None,
    shuffler_key: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The server's private key, for the same.", rich_help_panel=REAL),
    ] = None,
    shuffler_trusted: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The shuffler's certificate, if not a public one.", rich_help_panel=REAL),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Run a recipe: train, report, and say what was protected.

    Ctrl-C stops after writing a checkpoint; --resume goes on from it to the very same result. With --client the clients
    are processes of their owners': every round is durable, and --resume goes on after a crash as well.
    """
    with plain_errors():
        check_place(workers, device)
        if resume is None:
            check_folder(RUNS if out is None else out)
        chosen, folder = _chosen(recipe, overrides, seed, out, resume)
        if resume is not None and _is_over(folder, as_json):
            return
        files = {"token": shuffler_token, "key": shuffler_key, "trusted": shuffler_trusted}
        given = {name: path for name, path in files.items() if path is not None}
        network = _network(clients, federation, patience, given, folder if resume is not None else None)
        with _tidied(folder, made_here=out is None and resume is None), _stoppable(folder):
            if network is None:
                place = device or (None if resume is None else _device_of(folder)) or "cpu"
                outcome = _carried_out(chosen, folder, resume is not None, workers, place)
            elif workers is not None or device is not None:
                raise InvalidInput("--workers and --device are for simulations: real clients compute where they are")
            else:
                outcome = _served(chosen, folder, resume is not None, network)
    if as_json:
        print_json(outcome.to_json())
    else:
        _print_outcome(outcome)


def check_place(workers: int | None, device: str | None) -> None:
    """Refuse what can be refused at once: loading PyTorch takes seconds."""
    from sordino.parts.hardware import check_device, check_workers

    check_workers(workers)
    if device is not None:
        check_device(device)


def _carried_out(recipe: Recipe, folder: Path, resume: bool, workers: int | None, device: str) -> Outcome:
    from sordino.runs.simulation import run as carry_out

    with Display(recipe) as display:
        return carry_out(recipe, folder=folder, resume=resume, workers=workers, device=device, observer=display)


@dataclass(frozen=True)
class _RealClients:
    """Real clients by their sockets, and the server's files for the shuffler, where reports go through one."""

    sockets: tuple[Path, ...]
    federation: str | None
    patience: float
    shuffler: dict[str, Path]

    def notes(self) -> dict[str, Any]:
        """What a resumed run needs to find them again."""
        return {
            "sockets": [str(path.absolute()) for path in self.sockets],
            "patience": self.patience,
            "shuffler": {name: str(path.absolute()) for name, path in self.shuffler.items()},
        }


def _network(
    sockets: list[Path] | None,
    federation: str | None,
    patience: float | None,
    shuffler: dict[str, Path],
    resumed: Path | None,
) -> _RealClients | None:
    """The clients given, else those that the resumed run had; None for a simulation."""
    had: dict[str, Any] = {}
    if resumed is not None:
        from sordino.runs.serving import read_notes

        had = read_notes(resumed) or {}
    found = sockets or [Path(path) for path in had.get("sockets", ())]
    if not found:
        if had:
            raise InvalidInput(
                f"{resumed} is a run with real clients, and does not say where they are: name their sockets again with "
                "--client, or go on with it where it was begun"
            )
        if federation is not None or patience is not None or shuffler:
            raise InvalidInput(
                "--federation, --patience and the shuffler's files go with --client: name the clients' sockets"
            )
        return None
    if len(set(found)) < len(found):
        raise InvalidInput("a socket was named twice with --client: each is one client")
    waits = patience if patience is not None else float(had.get("patience", PATIENCE))
    if not waits > 0:
        raise InvalidInput(f"--patience is a number of seconds > 0, got {waits:g}")
    files = {name: Path(path) for name, path in had.get("shuffler", {}).items()} | shuffler
    return _RealClients(tuple(found), federation, waits, files)


def _served(recipe: Recipe, folder: Path, resume: bool, network: _RealClients) -> Outcome:
    from sordino.fleets.sockets import SocketFleet
    from sordino.runs.serving import CoordinatorSetup, serve, shuffler_channel

    count, named = recipe.number_of_clients, len(network.sockets)
    if named != count:
        raise InvalidInput(
            f"the recipe has {count} clients and {named} sockets were named: give --client once for each, or change "
            f"the recipe, for instance with --set split.clients={named}"
        )
    kind = recipe.method.channel.kind
    if network.shuffler and kind != "shuffler":
        raise InvalidInput(f"this recipe's reports go through no shuffler (method.channel.kind = {kind!r})")
    fleet = SocketFleet(dict(enumerate(network.sockets)), patience=network.patience)
    channel = shuffler_channel(recipe, network.shuffler, remedy=SHUFFLER_FILES)
    setup = CoordinatorSetup(network.federation, channel, notes=network.notes())
    with Display(recipe) as display:
        return serve(recipe, fleet, folder, setup, resume=resume, observer=display)


@contextmanager
def _stoppable(folder: Path) -> Iterator[None]:
    """Ctrl-C says how to go on, and so does the polite end that schedulers ask for (SIGTERM)."""
    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        begun = (folder / "recipe.toml").exists()
        how = f"Go on with: sordino run --resume {quote(str(folder))}" if begun else "Nothing was begun."
        typer.echo(f"\nStopped. {how}", err=True)
        raise typer.Exit(130) from None
    finally:
        signal.signal(signal.SIGTERM, before)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


@contextmanager
def _tidied(folder: Path, *, made_here: bool) -> Iterator[None]:
    """A run that never began leaves no empty folder behind."""
    try:
        yield
    finally:
        if made_here:
            with suppress(OSError):
                folder.rmdir()  # refused by the system where it holds anything


def _chosen(
    name: str | None, overrides: list[str] | None, seed: int | None, out: Path | None, resume: Path | None
) -> tuple[Recipe, Path]:
    from sordino.recipe import EVERYTHING, Recipe
    from sordino.report.folder import RunFolder, alone, unused_folder

    if resume is not None:
        if name is not None or overrides or seed is not None or out is not None:
            raise InvalidInput(
                "--resume takes everything from the run's folder: give no recipe, --set, --seed or --out"
            )
        return Recipe.from_toml(RunFolder.open(resume).recipe, EVERYTHING), resume
    if name is None:
        raise InvalidInput("name a recipe: a shipped one (see `sordino recipes`), or a TOML file")
    changes = [*(overrides or []), *([] if seed is None else [f"seed={seed}"])]
    recipe = Recipe.load(name, changes)
    if out is None:
        return recipe, unused_folder(RUNS, recipe.name)
    if out.is_dir():
        with alone(out):
            RunFolder(out).check_free()
    return recipe, out


def _is_over(folder: Path, as_json: bool) -> bool:
    """Whether there is nothing left to do for a run, which is then said."""
    from sordino.report.folder import RunFolder
    from sordino.runs.outcome import figures

    run_folder = RunFolder.open(folder)
    result = run_folder.final_result()
    if result is None:
        return False
    typer.echo(f"{folder} is over already: {result.stopped}", err=True)
    if as_json:
        print_json(figures(result, run_folder.statement(), folder))
    return True


def _device_of(folder: Path) -> str | None:
    from sordino.report.folder import RunFolder

    found = RunFolder.open(folder).environment.get("device")
    return found if isinstance(found, str) else None


class Display(Observer):
    """What a person sees during a run: a live line on a terminal, a plain line now and then elsewhere."""

    PLAIN_SECONDS = 10.0

    def __init__(self, recipe: Recipe) -> None:
        from rich.console import Console

        self._console: Console = Console(stderr=True)
        self._recipe = recipe
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        self._said = 0.0
        self._terms = ""  # of the budget, until they are said

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress is not None:
            self._progress.stop()

    def started(self, federation: Federation, preflight: Sequence[str], first: int) -> None:
        """Say what to expect, and begin to show progress."""
        from sordino.privacy.ledger import terms

        self._terms = terms(federation.budgets[0]) if federation.budgets else ""
        d, n = federation.layout.size, federation.clients
        self._console.print(f"[bold]{self._recipe.name}[/bold]: {n:,} clients, {d:,} parameters", highlight=False)
        for sentence in preflight:
            self._console.print(f"  {sentence}", highlight=False, markup=False, soft_wrap=not self._console.is_terminal)
        if first > 1:
            self._console.print(f"  Going on from round {first}.", highlight=False)
        if self._console.is_terminal:
            self._begin(first)

    def _begin(self, first: int) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (
            TextColumn("round"),
            MofNCompleteColumn(),
            BarColumn(),
            TextColumn("{task.fields[figures]}"),
            TextColumn("time left"),
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=self._console, transient=True)
        self._task = self._progress.add_task("", total=self._recipe.rounds.count, completed=first - 1, figures="")
        self._progress.start()

    def absent(self, reasons: Mapping[int, str]) -> None:
        """Say who does not take part, for now."""
        for client, reason in list(reasons.items())[:10]:
            self._console.print(f"  Client {client} does not take part yet: {reason}", highlight=False, markup=False)

    def preparing(self, clients: int) -> None:
        """Say what takes so long before the first round."""
        self._console.print(f"  {clients:,} clients prepare ...", highlight=False)

    def round(self, record: RoundRecord, attendance: Attendance) -> None:
        """Show one round."""
        figures = _figures(record)
        if record.spent_max is not None:
            self._say_terms()
            figures += f"{', ' if figures else ''}spent {record.spent_max:.3g}"
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=record.round, figures=figures)
        elif time.monotonic() - self._said >= self.PLAIN_SECONDS and figures:
            self._said = time.monotonic()
            self._console.print(
                f"round {record.round} of {self._recipe.rounds.count}: {figures}", highlight=False, markup=False
            )

    def _say_terms(self) -> None:
        """Say, before the first of them, what the figures of what is spent mean."""
        if self._terms:
            sentence = f"  Spent: the epsilon of the client that has spent most ({self._terms})."
            self._console.print(sentence, highlight=False, markup=False)
            self._terms = ""


def _figures(record: RoundRecord) -> str:
    said = []
    if record.accuracy is not None:
        said.append(f"accuracy {record.accuracy:.2%}")
    if record.loss is not None:
        said.append(f"loss {record.loss:.3f}")
    if record.declined:
        said.append(f"{record.declined} declined")
    return ", ".join(said)


def _print_outcome(outcome: Outcome) -> None:
    from rich.console import Console
    from rich.table import Table

    from sordino.report.statement import to_text

    result = outcome.result
    table = Table(title=result.name, title_justify="left", show_header=False)
    table.add_column(style="bold")
    table.add_column()
    accuracy = "not measured" if result.accuracy is None else f"{result.accuracy:.2%} on the test set"
    table.add_row("accuracy", accuracy)
    table.add_row("loss", "not finite" if result.loss is None else f"{result.loss:.4f}")
    table.add_row("rounds", f"{result.rounds} ({result.stopped})")
    table.add_row("clients", f"{result.clients:,}")
    table.add_row("time", f"{result.seconds:.1f} s")
    rounds = max(1, result.rounds)
    table.add_row(
        "sent by a client", f"{result.bytes_up / rounds / max(1, result.clients):,.0f} bytes a round on average"
    )
    console = Console()
    console.print(table)
    typer.echo()
    typer.echo(to_text(outcome.statement))
    if outcome.folder is not None:
        typer.echo(f"Everything is in {outcome.folder}; open {outcome.folder / 'report.html'} in a browser.")


# --- sordino sweep ----------------------------------------------------------------------------------------------------


def sweep(
    recipe: Annotated[str, typer.Argument(metavar="RECIPE", help="A shipped recipe by name, or a TOML file.")],
    over: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=A,B,C", help="A setting and its values; several give every combination."),
    ] = None,
    seeds: Annotated[int, typer.Option(help="Seeds for every combination, from the recipe's seed on.")] = 1,
    overrides: Overrides = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where all runs go; sweeps/<name> if left out.")
    ] = None,
    workers: WorkerCount = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Run a recipe for every combination of settings and every seed, then compare.

    The same command goes on where an interrupted sweep stopped: finished runs are kept, a half-finished one is resumed.
    """
    with plain_errors():
        check_place(workers, device)
        check_folder(SWEEPS if out is None else out)
        from sordino.recipe import Recipe
        from sordino.runs.sweep import Axis, points

        base = Recipe.load(recipe, overrides or [])
        folder = out if out is not None else SWEEPS / base.name
        todo = points(base, [Axis.parse(text) for text in over or []], seeds, folder)
        done = [point for point in todo if point.finished]
        try:
            _carry_out(todo, len(done), workers, device)
        except KeyboardInterrupt:
            typer.echo("\nStopped. The same command goes on from here.", err=True)
            raise typer.Exit(130) from None
        _compare([point.folder for point in todo], folder, as_json)


def _carry_out(todo: Sequence[Point], done: int, workers: int | None, device: str) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    from sordino.runs.simulation import run as carry_out

    console = Console(stderr=True)
    columns = (
        TextColumn("runs"),
        MofNCompleteColumn(),
        BarColumn(),
        TextColumn("{task.fields[now]}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("", total=len(todo), completed=done, now="")

        class Watcher(Observer):
            name = ""

            def round(self, record: RoundRecord, attendance: Attendance) -> None:
                progress.update(task, now=f"{self.name}: round {record.round}, {_figures(record)}")

        watcher = Watcher()
        for point in todo:
            if point.finished:
                continue
            watcher.name = point.folder.name
            outcome = carry_out(
                point.recipe, folder=point.folder, resume=point.begun, workers=workers, device=device, observer=watcher
            )
            progress.advance(task)
            if not console.is_terminal:
                accuracy = "" if outcome.accuracy is None else f": {outcome.accuracy:.2%}"
                console.print(f"{point.folder}{accuracy}", highlight=False, markup=False)


# --- sordino compare --------------------------------------------------------------------------------------------------


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or folders that hold some.")],
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where comparison.html and comparison.csv are written.")
    ] = Path(),
    as_json: AsJson = False,
) -> None:
    """Compare runs: one page and one table, with the spread over seeds."""
    with plain_errors():
        check_folder(out)
        _compare([found for run in runs for found in _runs_in(run)], out, as_json)


def _runs_in(folder: Path) -> list[Path]:
    if (folder / "recipe.toml").exists():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/recipe.toml")) if folder.is_dir() else []
    if not found:
        raise InvalidInput(f"{folder} is not a run's folder and holds none: give folders that 'sordino run' made")
    return found


def _compare(folders: Sequence[Path], out: Path, as_json: bool) -> None:
    from sordino.report.compare import compare as put_together
    from sordino.report.comparison_page import write_comparison

    comparison = put_together(list(folders))
    page, table = write_comparison(comparison, out)
    if as_json:
        print_json(_comparison_as_json(comparison, page, table))
        return
    _print_comparison(comparison)
    typer.echo(f"Written: {page} and {table}")


def _comparison_as_json(comparison: Comparison, page: Path, table: Path) -> dict[str, Any]:
    import csv
    import io

    rows = list(csv.DictReader(io.StringIO(comparison.to_csv())))
    return {
        "groups": rows,
        "keys": list(comparison.keys),
        "notes": list(comparison.notes),
        "files": [str(page), str(table)],
    }


def _proven(group: Repetitions) -> str:
    """What is proven in the view that leads a group's statements, never without its terms."""
    from sordino.report.statement import terms
    from sordino.report.words import span

    return f"{span(group.lead.proven)} ({terms(group.lead)})" if group.lead else "no statement"


def _print_comparison(comparison: Comparison) -> None:
    from rich.table import Table

    from sordino.cli.printing import print_tables

    table = Table(title="Comparison", title_justify="left")
    table.add_column("setting", overflow="fold")
    for column in ("accuracy", "runs", "rounds"):
        table.add_column(column, justify="right")
    table.add_column("proven epsilon", overflow="fold")
    for group in comparison.groups:
        spread = group.accuracy
        accuracy = (
            "none"
            if spread is None
            else f"{spread.mean:.2%}" + (f" ± {spread.deviation:.2%}" if spread.deviation is not None else "")
        )
        rounds = [run.result.rounds for run in group.runs]
        spread_of_rounds = dict.fromkeys((min(rounds), max(rounds)))
        told = "-".join(map(str, spread_of_rounds))
        table.add_row(comparison.label(group), accuracy, str(len(group.runs)), told, _proven(group))
    print_tables(table)
    for note in comparison.notes:
        typer.echo(note)


__all__ = ["compare", "run", "sweep"]

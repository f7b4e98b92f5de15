"""`sordino run | sweep | compare`: recipes carried out, and what came of them."""

from __future__ import annotations

import csv
import io
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.live import live_place, watched
from sordino.cli.options import (
    RECIPE,
    AsJson,
    Device,
    Overrides,
    Ray,
    RecipeName,
    WorkerCount,
    check_folder,
    check_place,
)
from sordino.cli.printing import Cell, left, print_json, print_table, progress_of, right, stoppable
from sordino.errors import InvalidInput
from sordino.parts.hardware import compute_in_one_thread
from sordino.parts.lazy import loading
from sordino.parts.timeline import Span, Timeline, phase, process_start
from sordino.report.metric_words import ACCURACY, beside
from sordino.report.words import decimal
from sordino.runs.observer import Observer

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

    from sordino.fleets.ray_workers import RayPool
    from sordino.recipe import Recipe
    from sordino.report.compare import Comparison, Repetitions
    from sordino.report.records import Result, RoundRecord
    from sordino.runs.coordinator import Attendance
    from sordino.runs.federation import Federation
    from sordino.runs.outcome import Outcome
    from sordino.runs.sweep import Point

RUNS, SWEEPS = Path("runs"), Path("sweeps")  #: where runs and sweeps go unless --out says otherwise
_real = partial(typer.Option, rich_help_panel="Real clients")
_file = partial(_real, metavar="FILE")
SHUFFLER_FILES = (
    "give the server's files for it, --shuffler-token (its server.token) and --shuffler-key (the private key of "
    "`sordino shuffler keys`)"
)
PATIENCE = 60.0  #: seconds for which a real client that cannot be reached is tried again


def run(
    recipe: Annotated[str | None, RECIPE] = None,
    overrides: Overrides = None,
    seed: Annotated[int | None, typer.Option(help="The same seed gives the same result.")] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Where to write; runs/<name> (or -2, -3, ...) if left out.")
    ] = None,
    resume: Annotated[
        Path | None, typer.Option(metavar="RUN", help="Go on with an interrupted run, from its folder.")
    ] = None,
    workers: WorkerCount = None,
    device: Annotated[
        str | None,
        typer.Option(help="cpu (the default), cuda for a GPU, or cuda:0,1 for several; a resumed run keeps its own."),
    ] = None,
    ray: Ray = None,
    clients: Annotated[
        list[Path] | None,
        _real(
            "--client",
            metavar="SOCKET",
            help="A real client's socket (`sordino client serve`), once for each client, in order of their numbers: "
            "nothing is simulated.",
        ),
    ] = None,
    federation: Annotated[
        str | None, _real(metavar="NAME", help="The name that clients agree to; the recipe's if left out.")
    ] = None,
    patience: Annotated[
        float | None, _real(help="Seconds for which a client that cannot be reached is tried again; 60 if left out.")
    ] = None,
    shuffler_token: Annotated[Path | None, _file(help="The server's token, where a shuffler is used.")] = None,
    shuffler_key: Annotated[Path | None, _file(help="The server's private key, for the same.")] = None,
    shuffler_trusted: Annotated[Path | None, _file(help="The shuffler's certificate, if not a public one.")] = None,
    live: Annotated[
        str | None,
        _real(metavar="[HOST:]PORT", help="Show members and rounds at /live there while it runs; read-only."),
    ] = None,
    live_tokens: Annotated[
        Path | None,
        _file(help="Who may watch: operator, members, readers, each by a token. It is made if it is not there."),
    ] = None,
    tensorboard: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Write the rounds for TensorBoard too, while they go by.")
    ] = None,
    timing: Annotated[
        bool, typer.Option("--timing", help="Say where the time went, here and in timing.json of the run's folder.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a recipe: train, report, and say what was protected.

    Ctrl-C stops after writing a checkpoint; --resume goes on from it to the very same result. With --client the clients
    are processes of their owners': every round is durable, and --resume goes on after a crash as well.
    """
    with Timeline(process_start()) as timeline:
        check_place(workers, device)
        compute_in_one_thread()
        if resume is None:
            check_folder(RUNS if out is None else out)
        trackers = _trackers(tensorboard)
        with phase("recipe"), loading():
            chosen, folder = _choose(recipe, overrides, seed, out, resume)
        if resume is not None and _is_over(folder, as_json):
            return
        files = {"token": shuffler_token, "key": shuffler_key, "trusted": shuffler_trusted}
        given = {name: path for name, path in files.items() if path is not None}
        network = _network(clients, federation, patience, given, folder if resume is not None else None)
        place = live_place(live, live_tokens, real=network is not None)
        if network is not None and any(option is not None for option in (workers, device, ray)):
            raise InvalidInput("--workers, --device and --ray are for simulations: real clients compute where they are")
        made_here = out is None and resume is None
        with _remove_if_empty(folder, made_here), stoppable(lambda: _how_to_go_on(folder)), Display(chosen) as display:
            if network is not None:
                with watched(place, live_tokens, chosen, network.names(), network.federation) as watching:
                    outcome = _serve(chosen, folder, resume is not None, network, [display, *trackers, *watching])
            else:
                with phase("imports"), loading():
                    from sordino.runs.simulation import run as carry_out

                where = device or (None if resume is None else _device_of(folder)) or "cpu"
                outcome = carry_out(
                    chosen, folder=folder, resume=resume is not None, workers=workers, device=where, ray=ray,
                    observer=[display, *trackers],
                )  # fmt: skip
    if timing:
        _write_timing(timeline, folder)
    if not as_json:
        _print_outcome(outcome)
    attacks = _attack(chosen, folder, as_json, workers, ray)
    if as_json:
        print_json({**outcome.to_json(), **attacks})
    if timing and not as_json:
        _print_timing(timeline)


def _attack(
    recipe: Recipe, folder: Path, as_json: bool, workers: int | None = None, ray: str | None = None
) -> dict[str, object]:
    """Attack a run that is over, where its recipe says so; what is found is shown, or handed back for JSON."""
    if recipe.attacks is None:
        return {}
    from sordino.cli.attack import carry_out, print_attacks

    choice, device = recipe.attacks, _device_of(folder) or "cpu"
    with stoppable(lambda: f"The run is over. Attack it with: sordino attack {quote(str(folder))}"):
        found = carry_out(
            folder, choice.what, thorough=choice.thorough, device=device, seed=recipe.seed, workers=workers, ray=ray
        )
    if as_json:
        return {"attacks": found.to_json()}
    typer.echo()
    print_attacks(found)
    return {}


def _write_timing(timeline: Timeline, folder: Path) -> None:
    from sordino.report.folder import RunFolder

    RunFolder.open(folder).write_timing(timeline.to_json())


def _trackers(tensorboard: Path | None) -> list[Observer]:
    if tensorboard is None:
        return []
    from sordino.runs.tensorboard import TensorBoard

    check_folder(tensorboard, "--tensorboard")
    return [TensorBoard(tensorboard)]


@dataclass(frozen=True)
class _ClientSockets:
    """Real clients by their sockets, and the server's files for the shuffler, where reports go through one."""

    sockets: tuple[Path, ...]
    federation: str | None
    patience: float
    shuffler: dict[str, Path]

    def names(self) -> list[str]:
        """What members are called: the names of their sockets, where these differ."""
        names = [path.stem for path in self.sockets]
        return names if len(set(names)) == len(names) else [f"client {number}" for number in range(len(names))]

    def notes(self) -> dict[str, object]:
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
) -> _ClientSockets | None:
    """The clients given, else those that the resumed run had; None for a simulation."""
    had = {} if resumed is None else _notes(resumed)
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
    return _ClientSockets(tuple(found), federation, waits, files)


def _notes(folder: Path) -> dict[str, Any]:
    from sordino.runs.serving import read_notes

    return read_notes(folder) or {}


def _serve(
    recipe: Recipe, folder: Path, resume: bool, network: _ClientSockets, observers: Sequence[Observer]
) -> Outcome:
    from sordino.fleets.sockets import SocketFleet
    from sordino.runs.serving import CoordinatorSetup, serve, shuffler_channel

    count, named = recipe.number_of_clients, len(network.sockets)
    if named != count:
        raise InvalidInput(
            f"the recipe has {count} clients and {named} sockets were named: give --client once for each, or change "
            f"the recipe, for instance with --set split.clients={named}"
        )
    channel = shuffler_channel(recipe, network.shuffler, remedy=SHUFFLER_FILES)
    if network.shuffler and channel is None:
        kind = recipe.method.channel.kind
        raise InvalidInput(f"this recipe's reports go through no shuffler (method.channel.kind = {kind!r})")
    quorum = recipe.rounds.quorum
    fleet = SocketFleet(dict(enumerate(network.sockets)), patience=network.patience, quorum=quorum)
    setup = CoordinatorSetup(network.federation, channel, notes=network.notes())
    return serve(recipe, fleet, folder, setup, resume=resume, observer=observers)


def _how_to_go_on(folder: Path) -> str:
    begun = (folder / "recipe.toml").exists()
    return f"Go on with: sordino run --resume {quote(str(folder))}" if begun else "Nothing was begun."


@contextmanager
def _remove_if_empty(folder: Path, made_here: bool) -> Iterator[None]:
    """A run that never began leaves no empty folder behind."""
    try:
        yield
    finally:
        if made_here:
            with suppress(OSError):
                folder.rmdir()  # refused by the system where it holds anything


def _choose(
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
    from sordino.runs.run_figures import figures

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
        self._recipe = recipe
        self._progress = progress_of("round", time_left=True)
        self._task = self._progress.add_task("", total=recipe.rounds.count, now="")
        self._printed = 0.0  # when the last plain line was
        self._limit: float | None = None  # of every client's budget

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def _say(self, sentence: str) -> None:
        console = self._progress.console
        console.print(sentence, highlight=False, markup=False, soft_wrap=not console.is_terminal)

    def started(self, federation: Federation, preflight: Sequence[str], first: int) -> None:
        """Say what to expect, and begin to show progress."""
        limits = {budget.limit for budget in federation.budgets or ()}
        self._limit = limits.pop() if len(limits) == 1 else None
        self._say(f"{self._recipe.name}: {federation.clients:,} clients, {federation.layout.size:,} parameters")
        for sentence in preflight:
            self._say(f"  {sentence}")
        if first > 1:
            self._say(f"  Going on from round {first}.")
        self._progress.update(self._task, completed=first - 1)
        self._progress.start()

    def absent(self, reasons: Mapping[int, str]) -> None:
        """Say who does not take part, for now."""
        for client, reason in list(reasons.items())[:10]:
            self._say(f"  Client {client} does not take part yet: {reason}")

    def preparing(self, clients: int) -> None:
        """Say what takes so long before the first round."""
        self._say(f"  {clients:,} clients prepare ...")

    def round(self, record: RoundRecord, attendance: Attendance) -> None:
        """Show one round, and which share of its budget the client has spent that spent most."""
        figures = _figures(record)
        if record.spent_max is not None and self._limit is not None:
            figures += f"{', ' if figures else ''}{record.spent_max / self._limit:.0%} of the budget spent"
        self._progress.update(self._task, completed=record.round, now=figures)
        if self._progress.disable and figures and time.monotonic() - self._printed >= self.PLAIN_SECONDS:
            self._printed = time.monotonic()
            self._say(f"round {record.round} of {self._recipe.rounds.count}: {figures}")
        for why in attendance.lost:
            self._say(f"round {record.round}: {why}")


def _figures(record: RoundRecord) -> str:
    accuracy = None if record.accuracy is None else f"accuracy {record.accuracy:.2%}"
    score = None if record.score is None else f"{record.metric} {decimal(record.score)}"
    loss = None if record.loss is None else f"loss {record.loss:.3f}"
    declined = f"{record.declined} declined" if record.declined else None
    private = _private(record)
    return ", ".join(filter(None, (accuracy, score, loss, private, declined)))


def _private(found: RoundRecord | Result) -> str | None:
    """The leading figure on records that clients set aside; None where there is none."""
    from sordino.report.private_figures import WHERE, leading  # not before it is needed: it loads much

    return None if found.private is None else f"{leading(found.private)} {WHERE}"


def _accuracy(result: Result) -> str:
    """The accuracy, how sure it is, and what knowing nothing would have."""
    if result.accuracy is None:
        return "not measured"
    told = f"{result.accuracy:.2%} on the test set"
    if (interval := result.accuracy_interval) is not None:
        told += f" (95 % confidence: {interval[0]:.1%} to {interval[1]:.1%})"
    return told if result.commonest is None else f"{told}\nalways the commonest answer: {result.commonest:.2%}"


def _quality(result: Result) -> dict[str, str]:
    """The run's own metric with its baseline, and the accuracy where classes are learnt."""
    score = "not measured" if result.score is None else f"{decimal(result.score)} {beside(result)}"
    unnamed = result.metric == ACCURACY or (result.score is None and result.private is not None)
    own = {} if unnamed else {result.metric: score.replace("; always", "\nalways")}
    unmeasured = result.accuracy is None and (own or result.private is not None)
    return own if unmeasured else {**own, ACCURACY: _accuracy(result)}


def _epsilon(outcome: Outcome) -> dict[str, str]:
    """The run's own epsilon, with its terms, beside the accuracy."""
    from sordino.report.statement import change, lead_figure, onlooker

    if not outcome.statement.rows:
        return {"epsilon": "nothing was released"}
    view = outcome.statement.lead
    figure = lead_figure(view).removeprefix("epsilon ")
    return {"epsilon": f"{figure}\n{change(view)}, seen by {onlooker(view)}"}


def _print_outcome(outcome: Outcome) -> None:
    from sordino.report.statement import lead_text

    result = outcome.result
    sent = result.bytes_up / max(1, result.rounds) / max(1, result.clients)
    found = _private(result)
    private = (
        {} if found is None else {"own records": f"{found}, 95 % confidence".replace(" on records", "\non records")}
    )
    figures = {
        **_quality(result),
        **private,
        **_epsilon(outcome),
        **({"loss": "not finite" if result.loss is None else f"{result.loss:.4f}"} if result.test_examples else {}),
        "rounds": f"{result.rounds} ({result.stopped})",
        "clients": f"{result.clients:,}",
        "time": f"{result.seconds:.1f} s",
        "sent by a client": f"{sent:,.0f} bytes a round on average",
    }
    print_table(result.name, left("", ""), (((name, "bold"), figure) for name, figure in figures.items()))
    typer.echo()
    typer.echo(lead_text(outcome.statement))
    if outcome.folder is not None:
        typer.echo("Other figures, and all proofs, are in statement.txt.")
        typer.echo(f"Everything is in {outcome.folder}; open {outcome.folder / 'report.html'} in a browser.")


def _print_timing(timeline: Timeline) -> None:
    """Each phase once: what it took in all, in the first round, and in the median of the others."""
    groups: dict[str, list[Span]] = {}
    for span in timeline.spans:
        groups.setdefault(f"{span.phase} (in workers)" if span.beside else span.phase, []).append(span)
    rows: list[list[Cell]] = []
    for name, spans in groups.items():
        took = sum(span.seconds for span in spans)
        share = "" if spans[0].beside else f"{took / timeline.seconds:.0%}"
        rounds = [span.seconds for span in spans if span.round]
        rows.append([name, f"{took:.2f}", share, _middle(rounds[:1]), _middle(rounds[1:])])
    rows.append([("all", "bold"), f"{timeline.seconds:.2f}", "", "", ""])
    columns = [*left("phase"), *right("seconds", "share", "first round", "a later round")]
    typer.echo()
    print_table("Where the time went", columns, rows)


def _middle(seconds: Sequence[float]) -> str:
    return f"{statistics.median(seconds):.3f}" if seconds else ""


# --- sordino sweep ----------------------------------------------------------------------------------------------------


def sweep(
    recipe: RecipeName,
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
    ray: Ray = None,
    as_json: AsJson = False,
) -> None:
    r"""Run a recipe for every combination of settings and every seed, then compare.

    The same command goes on where an interrupted sweep stopped: finished runs are kept, a half-finished one is resumed.
    On a Ray cluster several runs are computed at the same time. A recipe's \[attacks] are made on each run at the end.
    """
    check_place(workers, device)
    compute_in_one_thread()
    check_folder(SWEEPS if out is None else out)
    from sordino.recipe import Recipe
    from sordino.runs.sweep import Axis, points

    base = Recipe.load(recipe, overrides or [])
    folder = out if out is not None else SWEEPS / base.name
    todo = points(base, [Axis.parse(text) for text in over or []], seeds, folder)
    with stoppable(lambda: "The same command goes on from here."):
        _carry_out(todo, workers, device, ray)
    _compare([point.folder for point in todo], folder, as_json)
    for point in todo:
        if point.recipe.attacks is not None and not _is_attacked(point.folder, point.recipe.attacks.what):
            _attack(point.recipe, point.folder, as_json, workers, ray)


def _is_attacked(folder: Path, what: Sequence[str]) -> bool:
    """Whether an earlier sweep has tried all these attacks on a run."""
    from sordino.audits.attack_interface import find_attack
    from sordino.report.attack_file import AttackFile

    found = AttackFile.read(folder)
    return found is not None and {find_attack(name).name for name in what} <= found.tried


def _carry_out(todo: Sequence[Point], workers: int | None, device: str, ray: str | None) -> None:
    from sordino.runs.simulation import run as carry_out

    left = [point for point in todo if not point.finished]
    with progress_of("runs") as progress:
        task = progress.add_task("", total=len(todo), completed=len(todo) - len(left), now="")

        def do(point: Point, *others: Observer, pool: RayPool | None = None) -> Outcome:
            return carry_out(
                point.recipe, folder=point.folder, resume=point.begun, workers=workers, device=device, ray=pool,
                observer=[_Watcher(progress, task, point.folder.name), *others],
            )  # fmt: skip

        with _outcomes(left, do, workers, device, ray) as outcomes:
            for point, outcome in outcomes:
                progress.advance(task)
                if progress.disable:
                    score = "" if outcome.score is None else f": {_shown(outcome.result.metric, outcome.score)}"
                    progress.console.print(f"{point.folder}{score}", highlight=False, markup=False)


@contextmanager
def _outcomes(
    left: Sequence[Point], do: Callable[..., Outcome], workers: int | None, device: str, ray: str | None
) -> Iterator[Iterator[tuple[Point, Outcome]]]:
    """What comes of runs: one after the other, or several at a time on a cluster."""
    if ray is None:
        yield ((point, do(point)) for point in left)
        return
    from sordino.fleets.ray_workers import RayPool
    from sordino.runs.sweep import at_the_same_time

    with RayPool(ray, device=device, workers=workers) as pool:
        outcomes = at_the_same_time(left, partial(do, pool=pool), pool)
        with closing(outcomes):  # all runs have stopped before the pool is closed
            yield outcomes


def _shown(metric: str, value: float) -> str:
    return f"{value:.2%}" if metric == ACCURACY else decimal(value)


@dataclass(frozen=True)
class _Watcher(Observer):
    """Shows the rounds of one run of a sweep."""

    progress: Progress
    task: TaskID
    name: str

    def round(self, record: RoundRecord, attendance: Attendance) -> None:
        """Show one round."""
        self.progress.update(self.task, now=f"{self.name}: round {record.round}, {_figures(record)}")


# --- sordino compare --------------------------------------------------------------------------------------------------


def compare(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders of runs, or folders that hold some.")],
    out: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where comparison.html and comparison.csv are written.")
    ] = Path(),
    tables: Annotated[
        list[Path] | None,
        typer.Option("--table", metavar="FILE", help="Write the main table too: FILE.tex, FILE.md or FILE.csv."),
    ] = None,
    figures: Annotated[
        list[Path] | None,
        typer.Option("--figure", metavar="FILE", help="Draw accuracy too: FILE.svg, FILE.pdf or FILE.png."),
    ] = None,
    over: Annotated[str, typer.Option(help="What --figure has below: rounds, or epsilon (proven).")] = "rounds",
    as_json: AsJson = False,
) -> None:
    """Compare runs: one page and one table, with the spread over seeds."""
    check_folder(out)
    from sordino.report.comparison_figure import check_figure, write_figure
    from sordino.report.comparison_table import check_table, write_table

    for path in tables or []:
        check_table(path)
    for path in figures or []:
        check_figure(path, over)
    comparison = _compare([found for run in runs for found in _runs_in(run)], out, as_json)
    for path in tables or []:
        write_table(comparison, path)
    for path in figures or []:
        write_figure(comparison, path, over)
    if written := [*(tables or []), *(figures or [])]:
        typer.echo(f"Written: {', '.join(map(str, written))}", err=True)


def _runs_in(folder: Path) -> list[Path]:
    if (folder / "recipe.toml").exists():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/recipe.toml")) if folder.is_dir() else []
    if not found:
        raise InvalidInput(f"{folder} is not a run's folder and holds none: give folders that 'sordino run' made")
    return found


def _compare(folders: Sequence[Path], out: Path, as_json: bool) -> Comparison:
    from sordino.report.compare import compare as put_together
    from sordino.report.comparison_page import write_comparison

    comparison = put_together(list(folders))
    page, table = write_comparison(comparison, out)
    if as_json:
        rows = list(csv.DictReader(io.StringIO(comparison.to_csv())))
        files = [str(page), str(table)]
        told = {"metric": comparison.metric, "keys": list(comparison.keys), "notes": list(comparison.notes)}
        print_json({"groups": rows, **told, "files": files})
        return comparison
    columns = [*left("setting"), *right(comparison.metric, "runs", "rounds"), *left("epsilon")]
    print_table("Comparison", columns, (_comparison_row(comparison, group) for group in comparison.groups))
    for note in comparison.notes:
        typer.echo(note)
    typer.echo(f"Written: {page} and {table}")
    return comparison


def _comparison_row(comparison: Comparison, group: Repetitions) -> list[str]:
    spread, score = group.score, "none"
    if spread is not None:
        deviation = "" if spread.deviation is None else f" ± {_shown(group.metric, spread.deviation)}"
        score = _shown(group.metric, spread.mean) + deviation
    rounds = [run.result.rounds for run in group.runs]
    fewest_and_most = "-".join(map(str, dict.fromkeys((min(rounds), max(rounds)))))
    return [comparison.label(group), score, str(len(group.runs)), fewest_and_most, _proven(group)]


def _proven(group: Repetitions) -> str:
    """What is proven in the view that leads a group's statements, never without its terms."""
    from sordino.report.statement import terms
    from sordino.report.words import span, upper

    return f"{span(group.lead.proven, shown=upper)} ({terms(group.lead)})" if group.lead else "no statement"


__all__ = ["compare", "run", "sweep"]

"""How every command speaks: plain refusals, JSON, tables and progress."""

from __future__ import annotations

import inspect
import json
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NoReturn, TypeVar

import typer
from typer.core import TyperGroup

from sordino.errors import SordinoError

if TYPE_CHECKING:
    import click
    from rich.console import Console
    from rich.progress import Progress
    from rich.table import Column, Table

T = TypeVar("T")
Need = tuple[int, int, int]  #: the least that a column can be read at, what its cells can use, and its heading as well
Cell = str | tuple[str, str]  #: text, or text and its style
WIDE = 10_000  #: more than any table

#: what an installation without extras lacks: the package as it is imported, its name, and the extra that brings it
EXTRAS = {
    "torch": ("PyTorch", "learn"),
    "safetensors": ("safetensors", "learn"),
    "onnx": ("onnx", "export"),
    "onnxruntime": ("ONNX Runtime", "export"),
    "onnxscript": ("onnxscript", "export"),
    "fastapi": ("FastAPI", "service"),
    "uvicorn": ("uvicorn", "service"),
    "websockets": ("websockets", "service"),
}


@contextmanager
def plain_errors() -> Iterator[None]:
    """A refusal is a plain sentence and exit code 1, not a traceback; so is a package that an extra would bring."""
    try:
        yield
    except SordinoError as error:
        _refuse(str(error))
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        name, extra = EXTRAS[package]
        _refuse(f"this needs {name}: pip install 'sordino[{extra}]'")


def _refuse(why: str) -> NoReturn:
    typer.echo(f"Refused: {why}", err=True)
    raise typer.Exit(1) from None


class Commands(TyperGroup):
    """All commands: whatever one of them refuses is said plainly, here and nowhere else."""

    def invoke(self, ctx: click.Context) -> object:
        """Run the command that was named."""
        with plain_errors():
            return super().invoke(ctx)


@contextmanager
def stoppable(how_to_go_on: Callable[[], str]) -> Iterator[None]:
    """Ctrl-C, and the polite end that schedulers ask for (SIGTERM), end a command with how to go on."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        with suppress(ValueError):  # signals reach the main thread alone
            signal.signal(signal.SIGTERM, signal.default_int_handler)
        yield
    except KeyboardInterrupt:
        typer.echo(f"\nStopped. {how_to_go_on()}", err=True)
        raise typer.Exit(130) from None
    finally:
        with suppress(ValueError):
            signal.signal(signal.SIGTERM, before)


def let_help_flow(commands: typer.Typer) -> None:
    """Paragraphs of docstrings as one line each: the terminal breaks them where it ends, and the source need not."""
    for command in commands.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            let_help_flow(group.typer_instance)


def print_json(value: object) -> None:
    """Indented JSON on the standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def json_figure(epsilon: float) -> float | str:
    """JSON has no infinity; an unproven epsilon is never left blank."""
    return epsilon if epsilon != float("inf") else "infinite"


# --- tables -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Col:
    """A column of a table; it is as wide as its longest word at least, or as `min_width`."""

    name: str
    justify: Literal["left", "right"] = "left"
    no_wrap: bool = False
    min_width: int | None = None


def left(*names: str, min_width: int | None = None) -> list[Col]:
    """Columns of words."""
    return [Col(name, min_width=min_width) for name in names]


def right(*names: str) -> list[Col]:
    """Columns of figures."""
    return [Col(name, "right") for name in names]


def print_table(title: str, columns: Sequence[Col], rows: Iterable[Sequence[Cell]], spare: Sequence[str] = ()) -> None:
    """A table as wide as the terminal; where the output is a file or a pipe, wide enough to fold nothing.

    Columns keep what they need to be read. Where that takes more room than there is, those named as `spare` are left
    out, the first of them first, and the table says so. A table of columns without names has no headings.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", show_header=any(column.name for column in columns))
    for one in columns:
        table.add_column(one.name, justify=one.justify, no_wrap=one.no_wrap, min_width=one.min_width, overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) if isinstance(cell, str) else Text(*cell) for cell in row))
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    _fit(table, console, spare)
    console.print(table)


def _fit(table: Table, console: Console, spare: Sequence[str]) -> None:
    needs = [(column, _need(column, console)) for column in table.columns]
    widths = _widths([need for _, need in needs], console.width)
    for name in spare:
        if widths is not None:
            break
        needs = [(column, need) for column, need in needs if column.header != name]
        widths = _widths([need for _, need in needs], console.width)
    kept = [column for column, _ in needs]
    headings = {column.header for column in kept}
    if left_out := [str(column.header) for column in table.columns if column.header not in headings]:
        table.caption = f"A wider terminal, and --json, show also: {'; '.join(left_out)}."
        table.caption_justify = "left"
    table.columns = kept
    for column, width in zip(kept, widths or (), strict=widths is not None):
        column.width = width


def _widths(needs: Sequence[Need], width: int) -> list[int] | None:
    """Of each column: its least, and a share of what is left. None where there is too little for the least of all.

    The share goes to whatever would be folded most, and to cells before headings.
    """
    widths = [least for least, *_ in needs]
    room = width - 3 * len(widths) - 1 - sum(widths)  # a line and two spaces for each, and the last line
    if room < 0:
        return None
    for wanted in ([cells for _, cells, _ in needs], [every for *_, every in needs]):
        while room and any(width < want for width, want in zip(widths, wanted, strict=True)):
            widths[max(range(len(widths)), key=lambda i: wanted[i] / max(1, widths[i]))] += 1
            room -= 1
    return widths


def _need(column: Column, console: Console) -> Need:
    """What a column needs; the least is its longest word, unless it has a `min_width`."""
    from rich.measure import Measurement

    wide = console.options.update(width=WIDE)
    heading = Measurement.get(console, wide, column.header)
    found = [Measurement.get(console, wide, cell) for cell in column.cells]
    cells = max((each.maximum for each in found), default=0)
    if column.no_wrap:
        least = max(cells, heading.maximum)
    elif column.min_width is not None:
        least = max(min(column.min_width, cells), heading.minimum)
    else:
        least = max(each.minimum for each in (heading, *found))
    return least, max(least, cells), max(least, cells, heading.maximum)


# --- progress ---------------------------------------------------------------------------------------------------------


def with_progress(items: Iterable[T], what: str) -> Iterator[T]:
    """The items one by one, with a progress bar on a terminal's error stream and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True)
    return iter(track(list(items), what, console=console, transient=True, disable=not console.is_terminal))


def progress_of(what: str, *, time_left: bool = False) -> Progress:
    """A bar on a terminal's error stream: how many of `what` are done, `now` in words, and the time."""
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    console = Console(stderr=True)
    clock = (TextColumn("time left"), TimeRemainingColumn()) if time_left else (TimeElapsedColumn(),)
    columns = (TextColumn(what), MofNCompleteColumn(), BarColumn(), TextColumn("{task.fields[now]}"), *clock)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)

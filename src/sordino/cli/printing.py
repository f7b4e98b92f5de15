"""How every command speaks: plain refusals, JSON, tables and progress."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, NoReturn, TypeVar

import typer

from sordino.errors import InvalidInput, SordinoError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Column, Table

T = TypeVar("T")
Need = tuple[int, int, int]  #: the least that a column can be read at, what its cells can use, and its heading as well
WIDE = 10_000  #: more than any table

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]

#: what an installation without extras lacks: the package as it is imported, its name, and the extra that brings it
EXTRAS = {
    "torch": ("PyTorch", "learn"),
    "safetensors": ("safetensors", "learn"),
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


def let_help_flow(commands: typer.Typer) -> None:
    """Paragraphs of docstrings as one line each: the terminal breaks them where it ends, and the source need not."""
    for command in commands.registered_commands:
        paragraphs = (inspect.getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in paragraphs)
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            let_help_flow(group.typer_instance)


def _refuse(why: str) -> NoReturn:
    typer.echo(f"Refused: {why}", err=True)
    raise typer.Exit(1) from None


@contextmanager
def needing(extra: str, what: str) -> Iterator[None]:
    """Imports of an optional part: what is missing is said with the command that installs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").split(".")[0] == "sordino":
            raise
        raise InvalidInput(f"{what} needs {error.name}: install it with pip install 'sordino[{extra}]'") from None


def print_json(value: object) -> None:
    """Indented JSON on the standard output."""
    typer.echo(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False))


def print_tables(*tables: Table, spare: Sequence[str] = ()) -> None:
    """Tables as wide as the terminal; where the output is a file or a pipe, wide enough to fold nothing.

    Columns keep what they need to be read. Where that takes more room than there is, those named as `spare` are left
    out, the first of them first, and the table says so.
    """
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    for table in tables:
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


def json_figure(epsilon: float) -> float | str:
    """JSON has no infinity; an unproven epsilon is never left blank."""
    return epsilon if epsilon != float("inf") else "infinite"


def with_progress(items: list[T], what: str) -> Iterator[T]:
    """The items one by one, with a progress bar on a terminal's error stream and nothing elsewhere."""
    from rich.console import Console
    from rich.progress import track

    return iter(
        track(items, what, console=Console(stderr=True), transient=True, disable=not Console(stderr=True).is_terminal)
    )

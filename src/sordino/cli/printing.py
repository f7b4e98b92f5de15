"""How every command speaks: plain refusals, JSON, tables, progress, and an epsilon's figure."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from sordino.errors import InvalidInput, SordinoError

if TYPE_CHECKING:
    from rich.table import Table

T = TypeVar("T")

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]


@contextmanager
def plain_errors() -> Iterator[None]:
    """A refusal is a plain sentence and exit code 1, not a traceback."""
    try:
        yield
    except SordinoError as error:
        typer.echo(f"Refused: {error}", err=True)
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


def print_tables(*tables: Table) -> None:
    """Tables as wide as the terminal; where the output is a file or a pipe, wide enough to fold nothing."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console = Console(width=200)
    for table in tables:
        console.print(table)


def figure(epsilon: float) -> str:
    """An epsilon for a table's cell."""
    return f"{epsilon:.4g}" if epsilon != float("inf") else "infinite"


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

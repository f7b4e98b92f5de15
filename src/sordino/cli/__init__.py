"""The command line: each command in a file of its own, put together here.

app()              # all commands
app_for("plan")()  # the same, with one command alone: the others are not loaded
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.printing import Commands, let_help_flow

if TYPE_CHECKING:
    app: typer.Typer

#: the modules of commands, in the order in which `--help` lists them
_COMMANDS = {
    "run": "run", "sweep": "run", "compare": "run", "predict": "model", "export": "model", "plan": "plan",
    "reproduce": "reproduce", "audit": "audit", "attack": "attack", "serve": "serve", "join": "join", "keys": "keys",
}  # fmt: skip
_GROUPS = ("client", "coordinator", "ledger", "data", "deploy", "recipes", "shuffler")  #: modules with several commands


def app_for(word: str | None) -> typer.Typer:
    """The command line for these arguments' first word: that command alone, or all where it names none."""
    return _app([word]) if word in _COMMANDS or word in _GROUPS else _app((*_COMMANDS, *_GROUPS))


def _app(names: Iterable[str | None]) -> typer.Typer:
    made = typer.Typer(
        cls=Commands,
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,
        help="Federated learning under local differential privacy: what is claimed, what is proven, what is measured.",
    )
    for name in names:
        module: Any = import_module(f"{__name__}.{_COMMANDS.get(str(name), name)}")
        if name in _GROUPS:
            made.add_typer(module.app, name=str(name))
        else:
            made.command(**getattr(module, "UNREAD", {}))(getattr(module, str(name)))
    made.callback()(_sordino)
    let_help_flow(made)
    return made


def _print_version(wanted: bool) -> None:
    from sordino import __version__

    if wanted:
        typer.echo(f"sordino {__version__}")
        raise typer.Exit


def _sordino(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass


def __getattr__(name: str) -> object:
    """`app` has all commands, and is made when first used."""
    if name != "app":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    made = globals()["app"] = app_for(None)
    return made


__all__ = ["app", "app_for"]

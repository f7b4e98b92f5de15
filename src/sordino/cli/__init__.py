"""The command line: each command in a file of its own, put together here."""

from __future__ import annotations

from typing import Annotated

import typer

from sordino.cli import (
    audit,
    client,
    coordinator,
    data,
    deploy,
    join,
    keys,
    ledger,
    model,
    plan,
    recipes,
    reproduce,
    run,
    serve,
    shuffler,
)
from sordino.cli.printing import Commands, let_help_flow

app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,
    help="Federated learning under local differential privacy: what is claimed, what is proven, what is measured.",
)
app.command()(run.run)
app.command()(run.sweep)
app.command()(run.compare)
app.command()(model.predict)
app.command()(model.export)
app.command()(plan.plan)
app.command(context_settings=reproduce.UNREAD, add_help_option=False)(reproduce.reproduce)
app.command()(audit.audit)
app.command()(serve.serve)
app.command()(join.join)
app.command()(keys.keys)
app.add_typer(client.app, name="client")
app.add_typer(coordinator.app, name="coordinator")
app.add_typer(ledger.app, name="ledger")
app.add_typer(data.app, name="data")
app.add_typer(deploy.app, name="deploy")
app.add_typer(recipes.app, name="recipes")
app.add_typer(shuffler.app, name="shuffler")


let_help_flow(app)


def _print_version(wanted: bool) -> None:
    from sordino import __version__

    if wanted:
        typer.echo(f"sordino {__version__}")
        raise typer.Exit


@app.callback()
def _sordino(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and stop.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    pass

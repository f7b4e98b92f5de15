"""`sordino deploy`: from a recipe to a federation between machines, over Flower, and a check of it."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from sordino.cli.options import AsJson, Overrides, check_folder
from sordino.cli.printing import print_json
from sordino.errors import InvalidInput

app = typer.Typer(
    no_args_is_help=True,
    help="A federation between machines, over Flower: keys, certificates, commands, and a check of a running set-up.",
)

Folder = Annotated[
    Path, typer.Argument(metavar="FOLDER", help="The set-up's folder, or the one of a single machine out of it.")
]
Days = Annotated[int, typer.Option(help="How long the server's certificate is valid.")]


@app.command()
def init(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A new folder.")],
    recipe: Annotated[str, typer.Option(metavar="NAME|FILE", help="A shipped recipe by name, or a TOML file.")],
    host: Annotated[str, typer.Option(help="The server's name or address, as the clients' machines reach it.")],
    nodes: Annotated[
        int | None, typer.Option(min=1, help="How many clients; as many as the recipe has if left out.")
    ] = None,
    member: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A client's name, once for each of them; client-1, client-2, ... otherwise."),
    ] = None,
    federation: Annotated[
        str, typer.Option(help="The name that clients agree to; the recipe's if left out. A new run needs a new one.")
    ] = "",
    port: Annotated[int, typer.Option(help="The server's port.")] = 8000,
    node_port: Annotated[
        int, typer.Option(help="The first node's port on its own machine; the second node's is the next.")
    ] = 9094,
    days: Days = 90,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Make certificates, node keys, the Flower app, invitations and commands: one folder for each machine.

    The keys and certificates are for tests and first steps: one person makes all of them.
    """
    check_folder(folder, "FOLDER")
    from sordino.deploy.setup import SetupOptions, make
    from sordino.recipe import Recipe

    place = SetupOptions(host, port, days, node_port)
    count = [f"split.clients={nodes}"] if nodes is not None else []
    chosen = Recipe.load(recipe, [*count, *(overrides or [])])
    found, ends = make(folder, chosen, place, federation=federation, members=member or ())
    if as_json:
        machines = {machine: str(folder / machine) for machine in found.machines}
        about = {"folder": str(folder), "federation": found.federation, "ends": ends.isoformat()}
        print_json({**about, "machines": machines})
        return
    typer.echo(
        f"Made a set-up of {found.federation} in {folder}: the server at {found.address}, {len(found.members)} clients."
    )
    typer.echo(f"TEST certificates and node keys; the server's certificate ends on {ends:%Y-%m-%d}.")
    for words in dict.fromkeys(found.asks):  # said once to all who are asked the same
        who = (member for member, asked in zip(found.members, found.asks, strict=True) if asked == words)
        typer.echo(f"{', '.join(who)}: {words}")
    typer.echo(f"Read {folder / 'README.txt'}; the commands again: sordino deploy commands {folder}")


@app.command()
def commands(
    folder: Folder,
    machine: Annotated[str | None, typer.Option(help="Of one machine only: server, or a client's name.")] = None,
    as_json: AsJson = False,
) -> None:
    """Print what is to be done, machine by machine."""
    from sordino.deploy import commands
    from sordino.deploy.deployment import Deployment

    found = Deployment.read(folder)
    if machine is not None and machine not in found.machines:
        raise InvalidInput(f"there is no machine {machine!r} in {folder}; there are {', '.join(found.machines)}")
    chosen = found.machines if machine is None else (machine,)
    if as_json:
        print_json({each: [vars(step) for step in commands.steps(found, each)] for each in chosen})
        return
    for each in chosen:
        typer.echo(f"--- in {found.place(folder, each)}")
        typer.echo(commands.page(found, each))


@app.command()
def renew(folder: Folder, days: Days = 90) -> None:
    """Make a new certificate for the server, by the same authority: where the set-up was made."""
    from sordino.deploy import setup

    ends = setup.renew(folder, days)
    typer.echo(f"The server's new certificate ends on {ends:%Y-%m-%d}. Copy server.crt and server.key to its machine,")
    typer.echo("and start the server anew. Clients need nothing.")


@app.command()
def check(
    folder: Folder,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for a machine.")] = 5.0,
    as_json: AsJson = False,
) -> None:
    """Look at a running set-up from here and say what is wrong, with the remedy. Exit code 1 if anything is.

    On a machine of the set-up, give its own folder; where all of it runs on one machine, the whole set-up's.
    """
    from sordino.deploy import checks
    from sordino.deploy.deployment import Deployment

    found = checks.check(Deployment.read(folder), folder, timeout)
    if as_json:
        print_json([asdict(finding) for finding in found])
    else:
        for finding in found:
            typer.echo(finding.to_text())
    if any(finding.wrong for finding in found):
        raise typer.Exit(1)

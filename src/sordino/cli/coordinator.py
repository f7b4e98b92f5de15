"""`sordino coordinator`: the operator's own process, which holds the key that signs plans, the run and the members."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino.cli.options import Overrides, check_folder

app = typer.Typer(
    no_args_is_help=True,
    help="The coordinator of a federation over Flower: a process of its own, which no app that Flower runs can reach "
    "into. `sordino deploy` makes and starts it with everything around it.",
)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The coordinator's folder.")]


@app.command()
def init(
    folder: Folder,
    recipe: Annotated[str, typer.Option(metavar="NAME|FILE", help="A shipped recipe by name, or a TOML file.")],
    federation: Annotated[str, typer.Option(help="The name that clients agree to; the recipe's if left out.")] = "",
    member: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A client's name, once for each, in the order of their numbers."),
    ] = None,
    group: Annotated[
        str, typer.Option(metavar="NAME", help="A group whose accounts may open the socket: that of Flower's server.")
    ] = "",
    gateways: Annotated[int, typer.Option(min=0, help="Nodes that are gateways for many web pages.")] = 0,
    overrides: Overrides = None,
) -> None:
    """Make a coordinator's folder with a new key, and the app for `flwr run` in it.

    Certificates and node keys are not made here: `sordino deploy init` makes a whole set-up.
    """
    check_folder(folder, "FOLDER")
    from sordino.flower.app import write_app
    from sordino.flower.coordinator import SOCKET, CoordinatorSettings, make_coordinator
    from sordino.recipe import Recipe
    from sordino.wire.signing import SigningKey

    chosen, key = Recipe.load(recipe, overrides or []), SigningKey.new()
    settings = CoordinatorSettings(federation or chosen.name, tuple(member or ()), gateways=gateways, group=group)
    make_coordinator(folder, chosen, settings, key)
    write_app(folder / "app", settings.federation, folder / SOCKET)
    typer.echo(f"Made the coordinator of {settings.federation} in {folder}. Its public key: {key.author.first.hex()}")
    typer.echo(f"Start it: sordino coordinator serve {folder}; then: flwr run {folder / 'app'}")


@app.command()
def serve(
    folder: Folder,
    socket: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Where to listen; coordinator.sock in the folder if left out.")
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A group whose accounts may open the socket; else as coordinator.toml says."),
    ] = None,
    live: Annotated[
        str | None,
        typer.Option(metavar="[HOST:]PORT", help="Show the run at /live there, on this machine or by token."),
    ] = None,
    live_tokens: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Who may watch: tokens by role; made if it is not there.")
    ] = None,
) -> None:
    """Run the federation over the relay that Flower runs, until it is over; after a stop it goes on."""
    import signal

    from sordino.cli.live import live_place, watched
    from sordino.flower.coordinator import CoordinatorSettings, read_recipe, said_aloud, serve_coordinator

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)
    settings, recipe = CoordinatorSettings.read(folder), read_recipe(folder)
    names = settings.members or tuple(f"client {number}" for number in range(recipe.number_of_clients))
    place = live_place(live, live_tokens, real=True)
    with said_aloud(), watched(place, live_tokens, recipe, names, settings.federation) as observers:
        serve_coordinator(folder, socket, group, observers)

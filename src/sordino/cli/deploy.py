"""`sordino deploy`: from a recipe to a federation between machines, over Flower, and a check of it."""

from __future__ import annotations

import dataclasses
import shlex
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.options import AsJson, Overrides, Yes, check_folder
from sordino.cli.printing import print_json
from sordino.errors import InvalidInput

if TYPE_CHECKING:
    from sordino.deploy.deployment import Deployment, FederationSetup
    from sordino.deploy.members import MemberChange

app = typer.Typer(
    no_args_is_help=True,
    help="A federation between machines, over Flower: make a set-up, join it, keep it running, check it.",
)

Folder = Annotated[  # an account may enter it, and not list it
    Path,
    typer.Argument(metavar="FOLDER", help="The set-up's folder, or the one of a single machine.", readable=False),
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
    spare: Annotated[
        int, typer.Option(min=0, help="Places for members to come (sordino deploy add), beside those of --nodes.")
    ] = 0,
    federation: Annotated[
        str, typer.Option(help="The name that clients agree to; the recipe's if left out. A new run needs a new one.")
    ] = "",
    port: Annotated[int, typer.Option(help="The server's port, as members reach it.")] = 8000,
    inner_port: Annotated[
        int, typer.Option(help="The port of Flower's server, on its own machine only; the next one if 0.")
    ] = 0,
    node_port: Annotated[
        int, typer.Option(help="The first node's port on its own machine; the second node's is the next.")
    ] = 9094,
    days: Days = 90,
    overrides: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Make certificates, node keys, the coordinator, invitations and commands: one folder for each machine.

    The keys and certificates are for tests and first steps: one person makes all of them.
    """
    check_folder(folder, "FOLDER")
    from sordino.deploy.setup import SetupOptions, make
    from sordino.recipe import Recipe

    place = SetupOptions(host, port, days, node_port, inner_port)
    nodes = len(member) if nodes is None and member else nodes
    count = [f"split.clients={nodes + spare}"] if nodes is not None else []
    chosen = Recipe.load(recipe, [*count, *(overrides or [])])
    found, ends = make(folder, chosen, place, federation=federation, members=member or (), spare=spare)
    (setup,) = found.federations
    if as_json:
        machines = {machine: str(folder / machine) for machine in found.machines}
        about = {"folder": str(folder), "federation": setup.name, "ends": ends.isoformat()}
        print_json({**about, "machines": machines})
        return
    typer.echo(
        f"Made a set-up of {setup.name} in {folder}: the server at {found.address}, {len(found.members)} clients."
    )
    typer.echo(f"TEST certificates and node keys; the server's certificate ends on {ends:%Y-%m-%d}.")
    _echo_asks(setup)
    typer.echo(f"Read {folder / 'README.txt'}; the commands again: sordino deploy commands {folder}")


def _echo_asks(setup: FederationSetup) -> None:
    """Say what members are asked for, once to all who are asked the same."""
    for words in dict.fromkeys(setup.asks):
        who = (member for member, asked in zip(setup.members, setup.asks, strict=True) if asked == words)
        typer.echo(f"{', '.join(who)}: {words}")


Member = Annotated[str, typer.Argument(metavar="NAME", help="A member.")]
Federation = Annotated[str, typer.Option(help="In this federation only; in all that the member is in if left out.")]
FromRound = Annotated[int | None, typer.Option(min=1, help="From this round on; from the next if left out.")]


@app.command()
def retire(folder: Folder, member: Member, federation: Federation = "", from_round: FromRound = None) -> None:
    """Let a member leave: its place is vacant, is not asked and not waited for. In the folder with the server."""
    from sordino.deploy import members

    for change in members.retire(folder, member, federation, from_round):
        last = change.tenure.last or 0
        typer.echo(f"{change.federation}: {member} takes {f'part until round {last}' if last > 0 else 'no part'}.")
        _echo_warnings(change)


@app.command()
def replace(
    folder: Folder,
    member: Member,
    new: Annotated[str, typer.Argument(metavar="NEW", help="The name of the new member.")],
    federation: Federation = "",
    from_round: FromRound = None,
) -> None:
    """Give a member's place to a new one, with a node key and an invitation. In the folder with the server."""
    from sordino.deploy import members

    _echo_newcomer(*members.replace_member(folder, member, new, federation, from_round))


@app.command()
def add(folder: Folder, member: Member, federation: Federation = "", from_round: FromRound = None) -> None:
    """Give a vacant place to a new member, with a node key and an invitation. In the folder with the server."""
    from sordino.deploy import members

    _echo_newcomer(*members.add(folder, member, federation, from_round))


def _echo_newcomer(place: Path, changes: list[MemberChange]) -> None:
    for change in changes:
        own = change.tenure
        typer.echo(f"{change.federation}: {own.name} has place {own.place}, from round {max(1, own.first)} on.")
        _echo_warnings(change)
    typer.echo(f"Copy {place} to its machine, and there: sordino deploy join FOLDER; sordino deploy up FOLDER")


def _echo_warnings(change: MemberChange) -> None:
    for warning in change.warnings:
        typer.echo(f"WARNING: {warning}", err=True)


@app.command("add-federation")
def add_federation(
    folder: Folder,
    recipe: Annotated[str, typer.Option(metavar="NAME|FILE", help="A shipped recipe by name, or a TOML file.")],
    federation: Annotated[str, typer.Option(help="The name that clients agree to; the recipe's if left out.")] = "",
    member: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Who is invited; all members of the set-up if left out.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Add another federation for the same server, members and nodes, where the set-up was made."""
    from sordino.deploy import setup
    from sordino.recipe import Recipe

    members = member or setup.whole(folder).members
    chosen = Recipe.load(recipe, [f"split.clients={len(members)}", *(overrides or [])])
    made = setup.add_federation(folder, chosen, federation, members).federations[-1]
    typer.echo(
        f"Added {made.name} to {folder}. Start the server's machine again: sordino deploy up. Each member joins:"
    )
    typer.echo(f"sordino deploy join FOLDER {made.name}")
    _echo_asks(made)


@app.command(context_settings={"allow_extra_args": True, "ignore_unknown_options": True})
def join(
    context: typer.Context,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of a client's machine.")],
    federation: Annotated[
        str, typer.Argument(metavar="[FEDERATION]", help="Which federation, where there are several.")
    ] = "",
    yes: Yes = False,
) -> None:
    """Make the owner's client if there is none, show what the federation would learn, ask, and agree to it.

    Records and budget are those that the set-up suggests. All options of `sordino client init` may be given to choose
    others, such as --data wards.csv --label outcome --classes no,yes --budget 2. A client that is made here is removed
    again where nothing is agreed to.
    """
    from sordino.deploy.deployment import CLIENT, Deployment

    deployment = Deployment.read(folder)
    given = context.args
    if federation.startswith("-"):  # an option of `client init` that was taken for the name
        federation, given = "", [federation, *given]
    if not deployment.machine or not deployment.federations_of(deployment.machine):
        raise InvalidInput(
            f"{folder} is not the folder of a client's machine: give {' or '.join(_member_folders(deployment, folder))}"
        )
    own = {each.name: each for each in deployment.federations_of(deployment.machine)}
    name = federation or (next(iter(own)) if len(own) == 1 else "")
    if name not in own:
        raise InvalidInput(f"which federation? {deployment.machine} is invited to {', '.join(own)}: name one of them")
    setup, place = own[name], folder / CLIENT
    number, invitation = setup.members.index(deployment.machine), folder / setup.invitation
    if (place / "client.toml").is_file():
        if given:
            raise InvalidInput(f"{place} is there already: change its client.toml, and join again without options")
        raise_it = f"raise budget.limit in {place / 'client.toml'}, which is for all federations together"
        _agree(place, invitation, yes, f"{setup.asks[number]} Then {raise_it}, and join again")
    else:
        with _removed_if_refused(place):
            _make_client(place, _chosen(shlex.split(setup.options[number]), given))
            _agree(place, invitation, yes, f"{setup.asks[number]} Join again with another --budget")
    typer.echo(f"Joined {name}. Next: sordino deploy up {folder}")


def _member_folders(deployment: Deployment, folder: Path) -> list[str]:
    """The members' folders beside the server's, or in a whole set-up's; their names where they are elsewhere."""
    beside = folder.absolute().parent if deployment.machine else folder
    places = [beside / member for member in deployment.members]
    return [str(place) for place in places if place.is_dir()] or [f"the folder of {m}" for m in deployment.members]


def _chosen(suggested: list[str], given: list[str]) -> list[str]:
    """Options of `sordino client init`, the owner's last: those count. Rows are suggested for suggested data only."""
    rows = "--rows"
    if rows in suggested and any(word.partition("=")[0] == "--data" for word in given):
        at = suggested.index(rows)
        suggested = [*suggested[:at], *suggested[at + 2 :]]
    return [*suggested, *given]


def _make_client(place: Path, options: list[str]) -> None:
    """Give the command `sordino client init`."""
    from sordino.cli import client

    arguments = ["init", str(place), *options]
    typer.main.get_command(client.app).main(arguments, prog_name="sordino client", standalone_mode=False)


def _agree(place: Path, invitation: Path, yes: bool, remedy: str) -> None:
    """Agree to an invitation as `sordino client join` does; `remedy` is for a budget that allows no round."""
    from sordino.cli import client
    from sordino.client.refusal import Reason, Refused

    try:
        client.agree(place, invitation, yes=yes)
    except Refused as error:
        if error.reason is not Reason.BUDGET:
            raise
        raise InvalidInput(f"{error}. {remedy}") from None


@contextmanager
def _removed_if_refused(place: Path) -> Iterator[None]:
    """Remove the client that is made inside where it ends in an error or a no, so that other options can be given."""
    from sordino.client.client import Client

    was_there = place.is_dir()  # as a container's folder is
    try:
        yield
    except BaseException:
        if (place / "client.toml").is_file():
            with Client.open(place) as made:
                used = bool(made.federations() or made.standing.releases)
            if not used:  # nothing has left, nothing is agreed to
                for each in place.iterdir():
                    shutil.rmtree(each) if each.is_dir() else each.unlink()
                if not was_there:
                    place.rmdir()
                typer.echo(f"Removed {place} again: nothing was agreed to.", err=True)
        raise


@app.command()
def up(
    folder: Folder,
    account: Annotated[
        str | None,
        typer.Option(
            help="The account under which Flower runs here, from now on (with --only: this time). Yours if never said."
        ),
    ] = None,
    only: Annotated[
        str | None, typer.Option(metavar="SIDE", help="Start one side alone: flower, or coordinator or client.")
    ] = None,
    no_door: Annotated[
        bool, typer.Option("--no-door", help="At the server: another proxy stands before Flower's server.")
    ] = False,
    stay: Annotated[
        bool, typer.Option("--stay", help="At the server: stay when the federation is over, as containers should.")
    ] = False,
) -> None:
    """Start everything of a machine and keep it running, until Ctrl-C or until the federation is over.

    Give a machine's own folder; where all of them are tried on one machine, the whole set-up's.
    """
    from sordino.deploy import accounts
    from sordino.deploy.deployment import FILE, Deployment
    from sordino.deploy.services import SIDES
    from sordino.deploy.supervisor import Supervisor
    from sordino.storage.files import write_whole

    found = Deployment.read(folder)
    if only is not None and only not in SIDES:
        raise InvalidInput(f"--only takes one of {', '.join(SIDES)}, got {only!r}")
    if account is not None:
        if account:
            accounts.account_number(account)  # refused where there is none
        found = dataclasses.replace(found, account=account)
        if only is None:  # a side alone may not write here, as in a container
            write_whole(folder / FILE, found.to_toml().encode())
    if only is None and accounts.needs_root(found):
        accounts.run_under_accounts(found, folder.absolute(), door=not no_door, say=typer.echo)
        return
    accounts.check_account(found, folder, only or "")
    Supervisor(found, folder, side=only or "", door=not no_door, stay=stay, say=typer.echo).run()


@app.command()
def systemd(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="The folder of this machine.")],
    account: Annotated[
        str, typer.Option(help="The account under which Flower runs here, from now on; as before, or flower.")
    ] = "",
) -> None:
    """Write a unit of systemd for each side of this machine, for where its folder lies now."""
    from sordino.deploy.deployment import FILE, Deployment
    from sordino.deploy.units import UNITS, units
    from sordino.storage.files import make_folder, write_whole

    found = Deployment.read(folder)
    chosen = dataclasses.replace(found, account=account or found.account or "flower")
    made, place = units(chosen, folder), folder / UNITS
    make_folder(place)
    for unit in made:
        write_whole(place / unit.name, unit.text.encode())
    if chosen != found:
        write_whole(folder / FILE, chosen.to_toml().encode())
    names = " ".join(unit.name for unit in made)
    typer.echo(f"Made units for the two sides of {found.machine}; Flower runs as {chosen.account}. Start them:")
    typer.echo(f"sudo cp {shlex.quote(str(place.absolute()))}/*.service /etc/systemd/system/")
    typer.echo("sudo systemctl daemon-reload")
    typer.echo(f"sudo systemctl enable --now {names}")


@app.command()
def live(folder: Folder) -> None:
    """Print where the server's federations can be watched, a link for each role. On the server's machine."""
    from sordino.cli.live import echo_links
    from sordino.deploy.deployment import LIVE_TOKENS, SERVER, Deployment
    from sordino.web.access import read_tokens

    deployment = Deployment.read(folder)
    for each in deployment.federations:
        path = each.coordinator_in(deployment.place(folder, SERVER)) / LIVE_TOKENS
        if not path.is_file():
            raise InvalidInput(f"{path} is not there yet: sordino deploy up makes it, on the server's machine")
        typer.echo(f"{each.name}, while it runs:", err=True)
        echo_links(f"http://localhost:{deployment.live_port(each)}", read_tokens(path))


@app.command(hidden=True)
def door(folder: Folder) -> None:
    """Let nodes through to Flower's server, and nobody else; `sordino deploy up` starts it."""
    from sordino.deploy.deployment import Deployment
    from sordino.deploy.door_server import serve_door

    serve_door(Deployment.read(folder), folder)


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
        print_json([dataclasses.asdict(finding) for finding in found])
    else:
        for finding in found:
            typer.echo(finding.to_text())
    if any(finding.wrong for finding in found):
        raise typer.Exit(1)

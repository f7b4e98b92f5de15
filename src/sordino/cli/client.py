"""`sordino client`: the owner's own process, which holds data, budget and ledger."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.folders import check_folder
from sordino.cli.printing import AsJson, json_figure, plain_errors, print_json
from sordino.report.words import decimal

if TYPE_CHECKING:
    from sordino.client.client import Client, Offer

app = typer.Typer(
    no_args_is_help=True,
    help="The owner's client: records, budget and ledger in one folder; nothing leaves but what they allow.",
)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The client's folder.")]


@app.command()
def init(
    folder: Folder,
    data: Annotated[str, typer.Option(help="A data set by name, an .npz or .csv file, or a folder of images.")],
    budget: Annotated[float, typer.Option(help="The largest epsilon that may ever be spent, above 0.")],
    name: Annotated[str, typer.Option(help="The client's name; the folder's if left out.")] = "",
    rows: Annotated[str | None, typer.Option(help='Rows of the source, such as "0-598"; all if left out.')] = None,
    label: Annotated[str | None, typer.Option(help="The label's column of a .csv file.")] = None,
    classes: Annotated[str | None, typer.Option(help="The names of all classes of own data, with commas.")] = None,
    delta: Annotated[float, typer.Option(help="The delta at which epsilon is counted.")] = 0.0,
    adjacency: Annotated[
        str, typer.Option(help="What is hidden: client, record-replace, record-add-remove, label or coordinate.")
    ] = "client",
    basis: Annotated[str, typer.Option(help="Which epsilon is counted: proven or claimed.")] = "proven",
    federation: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[=KEY]",
            help="A federation that may be joined: without a question where this is its very name and the "
            "coordinator's key is given with it, after one where it is a name or a pattern (ward*); several may be "
            "given. Any, each after a question, if left out.",
        ),
    ] = None,
    unproven: Annotated[
        list[str] | None,
        typer.Option(
            metavar="WHAT",
            help="A kind of release that may leave without a proof, such as labels; several may be given.",
        ),
    ] = None,
    claimed: Annotated[bool, typer.Option("--claimed", help="Claimed epsilons may be counted.")] = False,
) -> None:
    """Make a client's folder. Everything in it can be read; client.toml can be edited."""
    with plain_errors():
        check_folder(folder, "FOLDER")
        from sordino.client.client import Client
        from sordino.client.own_records import OwnRecords
        from sordino.client.settings import Settings

        own: dict[str, Any] = {"source": _absolute(data), "rows": rows, "label": label}
        if classes is not None:
            own["classes"] = [each.strip() for each in classes.split(",")]
        named = dict(each.partition("=")[::2] for each in federation or ["*"])
        settings = Settings.of(
            {
                "data": {key: value for key, value in own.items() if value is not None},
                "budget": {"limit": budget, "delta": delta, "adjacency": adjacency, "basis": basis},
                "consents": {
                    "federations": list(named),
                    "unproven": unproven or [],
                    "claimed": claimed,
                },
                "coordinators": {name: key for name, key in named.items() if key},
            },
            "the options",
        )
        count = len(OwnRecords.read(settings.data, folder))  # refused before anything is made
        with Client.create(folder, settings, name) as client:
            typer.echo(f"Made the client {client.identity.name} in {folder}, with {count:,} records.")
            typer.echo(f"Its settings are in {folder / 'client.toml'}; nothing has left.")


@app.command()
def shuffler(
    folder: Folder,
    federation: Annotated[str, typer.Argument(metavar="FEDERATION", help="Whose sealed reports may go there.")],
    url: Annotated[str, typer.Argument(metavar="URL", help="The shuffler's address, as the recipe names it.")],
    token: Annotated[Path, typer.Option(metavar="FILE", help="The token that `sordino shuffler register` printed.")],
    trusted: Annotated[
        Path | None, typer.Option(metavar="PEM", help="A certificate to trust; the system's if left out.")
    ] = None,
    latency: Annotated[float | None, typer.Option(min=0, help="The T that you propose, in seconds.")] = None,
) -> None:
    """Allow a federation to have its reports sent to a shuffler: sealed to the server, and mixed there."""
    with plain_errors():
        from sordino.client.settings import allow_shuffler

        path = allow_shuffler(
            folder, federation, url, _read(token).decode(errors="replace").strip(),
            trusted=None if trusted is None else str(trusted.resolve()), latency=latency,
        )  # fmt: skip
    typer.echo(f"Sealed reports of {federation} may go to {url}. The token is in {path}; client.toml has the rest.")


def _absolute(data: str) -> str:
    """A path from where the command was given; a name stays one."""
    from sordino.recipe.grammar import origin_of

    path, origin = Path(data).expanduser(), origin_of(data)
    own = origin in ("npz", "table", "images") or (origin is None and path.exists())
    return str(path.resolve()) if own else data


@app.command()
def show(folder: Folder, as_json: AsJson = False) -> None:
    """Show who the client is, its budget and what is spent of it, its federations and consents."""
    with plain_errors():
        from sordino.client.client import Client

        with Client.open(folder) as client:
            found = _described(client)
    if as_json:
        print_json(found)
        return
    budget, consents = found["budget"], found["consents"]
    typer.echo(f"Client      {found['name']} ({found['id']})")
    typer.echo(f"Key         {found['key']} (signs in secure sums: for the other owners' client.toml)")
    typer.echo(f"Data        {found['data']}")
    typer.echo(f"Budget      epsilon {budget['limit']:g} ({budget['terms']})")
    spent, left = (decimal(float(str(budget[key]).replace("infinite", "inf"))) for key in ("spent", "left"))
    typer.echo(f"Spent       {spent} in {budget['releases']} releases, {left} left")
    if (second := found["summed_budget"]) is not None:
        typer.echo(f"Sums        epsilon {second['limit']:g} ({second['terms']}), where the others' keys are listed")
        spent, left = (decimal(float(str(second[key]).replace("infinite", "inf"))) for key in ("spent", "left"))
        typer.echo(f"Spent       {spent} in secure sums, {left} left")
    if budget["unprotected"]:
        typer.echo(f"UNPROTECTED {budget['unprotected']} of these left without a proof, as allowed")
    allowed = [f"without a proof: {what}" for what in consents["unproven"]]
    allowed += ["claimed epsilons"] * consents["claimed"] + [f"code: {name}" for name in consents["code"]]
    typer.echo(f"Consents    federations: {', '.join(consents['federations'])}; {'; '.join(allowed) or 'no others'}")
    for name, url in found["shufflers"].items():
        typer.echo(f"Shuffler    sealed reports of {name} may go to {url}")
    for name, last in found["federations"].items():
        typer.echo(f"Federation  {name}: {f'answered up to round {last}' if last else 'agreed, nothing answered'}")
    if not found["federations"]:
        typer.echo("Federation  none")
    if found["older_ledger"]:
        typer.echo("STOPPED     the ledger is older than a receipt: restore the newest copy, or accept it when joining")
    typer.echo(f"Head        {found['head']}")


def _described(client: Client) -> dict[str, Any]:
    from sordino.privacy.ledger import terms

    standing, consents = client.standing, client.settings.consents
    assert standing.budget is not None
    return {
        "name": client.identity.name,
        "id": client.identity.id,
        "key": client.identity.public,
        "data": client.settings.data.source + (f", rows {r}" if (r := client.settings.data.rows) else ""),
        "budget": {
            "limit": standing.budget.limit,
            "terms": terms(standing.budget),
            "spent": json_figure(standing.spent),
            "left": standing.left,
            "releases": standing.releases,
            "unprotected": standing.unprotected,
        },
        "summed_budget": None
        if (second := standing.summed) is None
        else {
            "limit": second.budget.limit,
            "terms": terms(second.budget),
            "spent": json_figure(second.spent),
            "left": second.remaining,
        },
        "consents": {key: list(value) if isinstance(value, tuple) else value for key, value in consents},
        "shufflers": {name: own.url for name, own in client.settings.shuffler.items()},
        "federations": client.federations(),
        "older_ledger": client.stopped,
        "head": client.ledger.head(),
    }


@app.command()
def join(
    folder: Folder,
    invitation: Annotated[Path, typer.Argument(metavar="INVITATION", help="The file that the server's side sent.")],
    yes: Annotated[bool, typer.Option("--yes", help="Agree without being asked.")] = False,
    accept_older_ledger: Annotated[
        bool,
        typer.Option(
            "--accept-older-ledger",
            help="Go on with a ledger from a backup: every round that it lacks is counted as if it had been answered.",
        ),
    ] = False,
) -> None:
    """Show what a federation would learn, ask, and agree to it."""
    with plain_errors():
        from sordino.client.client import Client

        message = _read(invitation)
        with Client.open(folder) as client:
            offer = _offered(client, message, accept_older_ledger)
            typer.echo(offer.to_text())
            name = offer.invitation.federation
            if offer.agreed:
                typer.echo(f"You agreed to {name} before; nothing has changed.")
            elif not yes:
                typer.confirm(f"Join {name}?", abort=True, err=True)
            client.join(message)
            typer.echo(f"Joined {name}. Serve it: sordino client serve {folder} --socket PATH")


def _offered(client: Client, message: bytes, accept_older_ledger: bool) -> Offer:
    """The offer, after what an older ledger lacks was counted, where the owner accepts that."""
    from sordino.client.refusal import Refused
    from sordino.privacy.ledger import terms

    try:
        return client.offer(message)
    except Refused:
        if not (accept_older_ledger and client.stopped):
            raise
    spent = client.accept_older_ledger()
    typer.echo(
        f"Counted everything that may have left: epsilon {spent:.6g} is spent now "
        f"({terms(client.settings.ledger_budget())})."
    )
    return client.offer(message)


def _read(path: Path) -> bytes:
    from sordino.client.invitation import LONGEST
    from sordino.errors import InvalidInput

    try:
        with path.open("rb") as file:
            return file.read(LONGEST + 1)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror or error})") from None


@app.command()
def serve(
    folder: Folder,
    socket: Annotated[Path, typer.Option(metavar="PATH", help="Where to listen: a Unix socket, for its owner only.")],
    largest: Annotated[int, typer.Option(min=1024, help="Bytes of the largest message that is accepted.")] = 2**28,
    group: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="A group whose accounts may open the socket too: that of the relay's node."),
    ] = None,
) -> None:
    """Answer what a relay on this machine hands in at a socket, until Ctrl-C."""
    import signal

    with plain_errors():
        from sordino.client.client import Client
        from sordino.client.socket_service import Service

        with Client.open(folder) as client:
            service = Service(client, socket, largest=largest, group=group)
            for each in (signal.SIGTERM, signal.SIGINT):
                signal.signal(each, lambda *_: service.stop())
            typer.echo(f"{client.identity.name} listens at {socket}. Stop with Ctrl-C; log: {folder / 'log.txt'}")
            service.serve()
            typer.echo("Stopped.")

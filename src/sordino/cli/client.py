"""`sordino client`: the owner's own process, which holds data, budget and ledger."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli import options
from sordino.cli.printing import json_figure, print_json
from sordino.client.refusal import Refused
from sordino.errors import InvalidInput
from sordino.report.words import lower, upper

if TYPE_CHECKING:
    from sordino.client import Client, Offer
    from sordino.privacy.accountant import Account

app = typer.Typer(
    no_args_is_help=True,
    help="The owner's client: records, budget and ledger in one folder; nothing leaves but what they allow.",
)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="The client's folder.")]


@app.command()
def init(
    folder: Folder,
    data: Annotated[str, typer.Option(help=options.DATA)],
    budget: Annotated[float, typer.Option(help=options.BUDGET)],
    name: Annotated[str, typer.Option(help="The client's name; the folder's if left out.")] = "",
    rows: options.Rows = None,
    label: options.Label = None,
    classes: options.Classes = None,
    columns: options.Columns = None,
    labels: options.Labels = None,
    target: options.Target = None,
    delta: Annotated[float, typer.Option(help="The delta at which epsilon is counted.")] = 0.0,
    adjacency: Annotated[str, typer.Option(help=f"{options.ADJACENCY}.")] = "client",
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
    unproven: options.Unproven = None,
    claimed: Annotated[bool, typer.Option("--claimed", help="Claimed epsilons may be counted.")] = False,
) -> None:
    """Make a client's folder. Everything in it can be read; client.toml can be edited."""
    options.check_folder(folder, "FOLDER")
    from sordino.client.client import Client
    from sordino.client.own_records import OwnRecords
    from sordino.client.settings import Settings

    named = dict(each.partition("=")[::2] for each in federation or ["*"])
    settings = Settings.of(
        {
            "data": data_table(data, rows, label, classes, columns, labels, target),
            "budget": {"limit": budget, "delta": delta, "adjacency": adjacency, "basis": basis},
            "consents": {"federations": list(named), "unproven": unproven or [], "claimed": claimed},
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
    token: Annotated[Path, typer.Option(metavar="FILE", help="The token that `sordino shuffler register` made.")],
    trusted: options.Trusted = None,
    latency: Annotated[float | None, typer.Option(min=0, help="The T that you propose, in seconds.")] = None,
) -> None:
    """Allow a federation to have its reports sent to a shuffler: sealed to the server, and mixed there."""
    from sordino.client.settings import allow_shuffler

    path = allow_shuffler(
        folder, federation, url, _read(token).decode(errors="replace").strip(),
        trusted=None if trusted is None else str(trusted.resolve()), latency=latency,
    )  # fmt: skip
    typer.echo(f"Sealed reports of {federation} may go to {url}. The token is in {path}; client.toml has the rest.")


def data_table(
    source: str | None,
    rows: str | None,
    label: str | None,
    classes: str | None,
    columns: Path | None = None,
    labels: str | None = None,
    target: tuple[float, float] | None = None,
) -> dict[str, object]:
    """What options say of the records, as client.toml has it: a path from where the command is given, or a name."""
    from sordino.recipe import columns_in
    from sordino.recipe.grammar import origin_of

    if source is not None:
        path, origin = Path(source).expanduser(), origin_of(source)
        own = origin in ("npz", "table", "images") or (origin is None and path.exists())
        source = str(path.resolve()) if own else source
    names = {
        key: [each.strip() for each in text.split(",")]
        for key, text in (("classes", classes), ("labels", labels))
        if text is not None
    }
    found = {
        "source": source,
        "rows": rows,
        "label": label,
        **names,
        "target": None if target is None else list(target),
        **({} if columns is None else columns_in(columns)),
    }
    return {key: value for key, value in found.items() if value is not None}


@app.command()
def show(folder: Folder, as_json: options.AsJson = False) -> None:
    """Show who the client is, its budget and what is spent of it, its federations and consents."""
    from sordino.client.client import Client

    with Client.open(folder) as client:
        if as_json:
            print_json(_as_json(client))
            return
        for name, words in _lines(client):
            typer.echo(f"{name:<12}{words}")


def _lines(client: Client) -> Iterator[tuple[str, str]]:
    """A name and what is to be said of it, line by line."""
    from sordino.client.client import unproven_words
    from sordino.privacy.ledger import own_budget, terms

    standing, settings = client.standing, client.settings
    yield "Client", f"{client.identity.name} ({client.identity.id})"
    yield "Key", f"{client.identity.public} (signs in secure sums: for the other owners' client.toml)"
    yield "Data", _data(client)
    for name in _sharing(client):
        yield "One budget", f"with the data {name}: what leaves under one name is charged to both, and must fit both"
        for account in client.ledger.standing(name).accounts:
            yield (
                "",
                f"{name}: epsilon {account.budget.limit:g} ({terms(account.budget)}), {lower(account.remaining)} left",
            )
    for name, after in client.ledger.disjoint_from(settings.data.name).items():
        yield "Disjoint", f"no row is also under {name}, as you declared: {own_budget(after)}"
    unprotected = f" ({standing.unprotected} of them UNPROTECTED)" if standing.unprotected else ""
    kinds = (
        ("Budget", f"{standing.releases} releases{unprotected}"),
        ("Sums", "secure sums, where the others' keys are listed"),
    )
    for (name, what), account in zip(kinds, standing.accounts, strict=False):
        yield name, f"epsilon {account.budget.limit:g} ({terms(account.budget)})"
        yield "Spent", f"{upper(account.spent)} in {what}, {lower(account.remaining)} left"
    consents = settings.consents
    allowed = [f"without a proof: {what}" for what in consents.unproven]
    allowed += ["claimed epsilons"] * consents.claimed + [f"code: {name}" for name in consents.code]
    allowed += [f"network: {file}" for file in consents.weights]
    yield "Consents", f"federations: {', '.join(consents.federations)}; {'; '.join(allowed) or 'no others'}"
    for name, own in settings.shuffler.items():
        yield "Shuffler", f"sealed reports of {name} may go to {own.url}"
    for name, last in client.federations().items():
        yield "Federation", f"{name}: {f'answered up to round {last}' if last else 'agreed, nothing answered'}"
    if not client.federations():
        yield "Federation", "none"
    for name, count in client.unproven_before().items():
        yield "UNPROVEN", f"{name}: {unproven_words(count)}"
    if client.stopped:
        yield "STOPPED", "the ledger is older than a receipt: restore the newest copy, or accept it when joining"
    yield "Head", client.ledger.head()


def _data(client: Client) -> str:
    data = client.settings.data
    return data.source + (f", rows {data.rows}" if data.rows else "")


def _sharing(client: Client) -> list[str]:
    """The other names of data that have one account with the client's own."""
    return [name for name in client.ledger.charged(client.settings.data.name) if name != client.settings.data.name]


def _as_json(client: Client) -> dict[str, object]:
    standing = client.standing
    assert standing.account is not None
    counts = {"releases": standing.releases, "unprotected": standing.unprotected}
    return {
        "name": client.identity.name,
        "id": client.identity.id,
        "key": client.identity.public,
        "data": _data(client),
        "one_budget_with": _sharing(client),
        "disjoint_from": list(client.settings.data.disjoint_from),
        "budget": {**_account_as_json(standing.account), **counts},
        "summed_budget": None if standing.summed is None else _account_as_json(standing.summed),
        "consents": client.settings.consents.model_dump(mode="json"),
        "shufflers": {name: own.url for name, own in client.settings.shuffler.items()},
        "federations": client.federations(),
        "unproven_before": client.unproven_before(),
        "older_ledger": client.stopped,
        "head": client.ledger.head(),
    }


def _account_as_json(account: Account) -> dict[str, object]:
    from sordino.privacy.ledger import terms

    spent, limit = json_figure(account.spent), account.budget.limit
    return {"limit": limit, "terms": terms(account.budget), "spent": spent, "left": account.remaining}


@app.command()
def join(
    folder: Folder,
    invitation: Annotated[Path, typer.Argument(metavar="INVITATION", help="The file that the server's side sent.")],
    yes: options.Yes = False,
    accept_older_ledger: Annotated[
        bool,
        typer.Option(
            "--accept-older-ledger",
            help="Go on with a ledger from a backup: every round that it lacks is counted as if it had been answered.",
        ),
    ] = False,
) -> None:
    """Show what a federation would learn, ask, and agree to it."""
    name = agree(folder, invitation, yes=yes, accept_older_ledger=accept_older_ledger)
    typer.echo(f"Joined {name}. Serve it: sordino client serve {folder}")


def agree(folder: Path, invitation: Path, *, yes: bool, accept_older_ledger: bool = False) -> str:
    """Show an offer, ask and join; the federation's name. `typer.Abort` where the owner says no."""
    from sordino.client.client import Client
    from sordino.client.own_records import OwnRecords

    message = _read(invitation)
    with Client.open(folder) as client:
        offer = _read_offer(client, message, accept_older_ledger)
        typer.echo(offer.to_text())
        name = offer.invitation.federation
        if offer.agreed:
            typer.echo(f"You agreed to {name} before; nothing has changed.")
        else:
            own = OwnRecords.read(client.settings.data, folder)  # what is refused now is left out later, without a word
            own.check(offer.invitation, own.task)
            client.require_disjoint_rows()
        if not offer.agreed and not yes:
            typer.confirm(f"Join {name}?", abort=True, err=True)
        client.join(message)
    return name


def _read_offer(client: Client, message: bytes, accept_older_ledger: bool) -> Offer:
    """The offer, after what an older ledger lacks was counted, where the owner accepts that."""
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

    try:
        with path.open("rb") as file:
            return file.read(LONGEST + 1)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read ({error.strerror or error})") from None


@app.command()
def serve(
    folder: Folder,
    socket: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="Where to listen: a Unix socket; as client.toml says if left out."),
    ] = None,
    largest: Annotated[int, typer.Option(min=1024, help="Bytes of the largest message that is accepted.")] = 2**28,
    group: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="A group whose accounts may open the socket too, that of Flower's node; as client.toml says if left "
            "out.",
        ),
    ] = None,
) -> None:
    """Answer what a relay on this machine hands in at a socket, until Ctrl-C."""
    import os
    import signal

    from sordino.client.client import Client
    from sordino.client.socket_service import Service

    with Client.open(folder) as client:
        own = client.settings.socket
        socket = socket or Path(os.path.normpath(folder / own.path))
        service = Service(client, socket, largest=largest, group=own.group if group is None else group)
        for each in (signal.SIGTERM, signal.SIGINT):
            signal.signal(each, lambda *_: service.stop())
        typer.echo(f"{client.identity.name} listens at {socket}. Stop with Ctrl-C; log: {folder / 'log.txt'}")
        service.serve()
        typer.echo("Stopped.")

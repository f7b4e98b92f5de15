"""`sordino shuffler`: the service between clients and server, its keys and its clients."""

from __future__ import annotations

import signal
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from sordino.cli.options import AsJson, Host, Port, TlsCert, TlsKey
from sordino.cli.printing import print_json
from sordino.wire.tls_address import TlsAddress

app = typer.Typer(
    no_args_is_help=True,
    help="The shuffler: clients seal reports to the server, somebody else mixes them.",
)

Folder = Annotated[Path, typer.Option("--folder", help="The shuffler's own folder; made if there is none.")]


@app.command()
def keys(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Where the server keeps its keys.")],
    as_json: AsJson = False,
) -> None:
    """Make the server's key pair. This is done at the server: the private key never leaves it.

    The shuffler and the clients get server.pub. Whoever compares its fingerprint knows that they seal to the server.
    """
    from sordino.shuffler import keys

    public = keys.make(folder)
    found = {"private": str(folder / keys.PRIVATE), "public": str(folder / keys.PUBLIC)}
    found |= {"fingerprint": keys.fingerprint(public), "key": public.public_bytes_raw().hex()}
    if as_json:
        print_json(found)
        return
    typer.echo(f"Private key, for the server alone: {found['private']}")
    typer.echo(f"Public key, for the shuffler and all clients: {found['public']}")
    typer.echo(f"Fingerprint: {found['fingerprint']}")
    typer.echo(f'In the recipe: method.channel.key = "{found["key"]}"')


@app.command()
def register(
    folder: Folder,
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Clients by the names you know them by.")],
    as_json: AsJson = False,
) -> None:
    """Register clients and write a token for each, into tokens/NAME/shuffler.token of the folder.

    Give each owner its file. A token lets its client send one report a round; the shuffler itself knows its hash. The
    server never learns names or tokens.
    """
    from sordino.shuffler.store import EnvelopeStore, token_files, write_tokens

    files = token_files(folder, names)
    with EnvelopeStore(folder) as store:
        store.register(names, partial(write_tokens, files))
    if as_json:
        print_json({name: str(path) for name, path in files.items()})
        return
    for name, path in files.items():
        typer.echo(f"{name}: {path}")


@app.command()
def serve(
    folder: Folder,
    server_key: Annotated[Path, typer.Option(metavar="PUB", help="The server's public key, which clients are shown.")],
    at_least: Annotated[int, typer.Option(help="Whole reports of clients of equal epsilon that a batch must hold.")],
    host: Host = "127.0.0.1",
    port: Port = 8470,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
) -> None:
    """Run the shuffler until it is stopped. What it accepted survives a crash.

    The server's token lies in the folder, as server.token.
    """
    from sordino.shuffler import keys
    from sordino.shuffler.service import serve

    address = TlsAddress(host, port, tls_cert, tls_key)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # both ways to stop it let go of the folder
    with suppress(KeyboardInterrupt):
        serve(folder, keys.public_key(server_key), at_least, address, say=typer.echo)

"""`sordino keys`: the key that signs a coordinator's plans."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sordino.cli.options import AsJson
from sordino.cli.printing import print_json


def keys(
    place: Annotated[
        Path,
        typer.Argument(metavar="PLACE", help="A run's folder (the key lies beside it), or the key's own file, *.key."),
    ],
    rotate: Annotated[
        bool, typer.Option("--rotate", help="Make a new key, signed by the old one; it counts from the next start on.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Print the public key that signs a coordinator's plans; the key is made where there is none.

    Invitations pin it, and clients answer to nothing else. Owners compare it before they agree; gateways start with it.
    """
    from sordino.wire.signing import SigningKey, key_file

    path = place if place.suffix == ".key" else key_file(place)
    made = not path.exists()
    found = SigningKey.at(path)
    if rotate:
        found = found.rotated()
        found.write(path)
    author = found.author
    told = {
        "file": str(path),
        "made": made,
        "key": author.first.hex(),
        "signs": author.key.hex(),
        "rotations": len(author.rotations),
    }
    if as_json:
        print_json(told)
        return
    if made:
        typer.echo("There was no key yet: a new one was made.")
    typer.echo(f"Private key, for the coordinator alone: {path}")
    typer.echo(f"Public key, in invitations: {told['key']}")
    if author.rotations:
        typer.echo(f"Since {told['rotations']} rotations it is {told['signs']} that signs")


__all__ = ["keys"]

"""The options `--live` and `--live-tokens`: a run with real clients shown at /live while it goes on."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from sordino.errors import InvalidInput
from sordino.wire.tls_address import TlsAddress

if TYPE_CHECKING:
    from sordino.recipe import Recipe
    from sordino.runs.observer import Observer
    from sordino.web.access import TokenRights

LINKS = 12  #: that are printed


def live_place(given: str | None, tokens: Path | None, *, real: bool) -> TlsAddress | None:
    """Where `--live` listens; None where it was not given."""
    if given is None:
        if tokens is not None:
            raise InvalidInput("--live-tokens says who may watch at --live: give both, or neither")
        return None
    if not real:
        raise InvalidInput(
            "--live shows real clients: name their sockets (--client). Of a simulation, --tensorboard shows the rounds"
        )
    host, _, port = given.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 2**16):
        raise InvalidInput(f"--live {given}: allowed is PORT or HOST:PORT, such as 8001 or [::1]:8001")
    return TlsAddress(host.strip("[]") or "127.0.0.1", int(port))


@contextmanager
def watched(
    place: TlsAddress | None, tokens: Path | None, recipe: Recipe, names: Sequence[str], federation: str | None
) -> Iterator[list[Observer]]:
    """The observers that show a run at /live while the block lasts: one, or none where nobody asked for it."""
    if place is None:
        yield []
        return
    from sordino.web.live_server import serve_live
    from sordino.web.watched_run import WatchedRun

    found = make_or_read(tokens, names)
    names_by_number = dict(enumerate(names))
    run = WatchedRun(recipe, lambda number: names_by_number.get(number, f"place {number}"), federation=federation)
    with serve_live(run, place.host, place.port, tokens) as address:
        announce(address, tokens, found)
        if tokens is not None and place.needs_tls:
            typer.echo(
                "NOTICE: tokens travel to other machines in the clear here. Listen at 127.0.0.1, and have a proxy with "
                "HTTPS or a tunnel (ssh -L) pass requests on.",
                err=True,
            )
        yield [run]


def make_or_read(tokens: Path | None, names: Sequence[str] = ()) -> tuple[TokenRights, ...]:
    """The tokens of a file, which is made for members of these names if it is not there; none without a file."""
    from sordino.web.access import make_tokens, read_tokens

    if tokens is None:
        return ()
    if not tokens.exists():
        make_tokens(tokens, names)
    return read_tokens(tokens)


def announce(address: str, tokens: Path | None, found: Sequence[TokenRights]) -> None:
    """Say where to watch, with the links of these tokens; those of many members stay in the file."""
    if tokens is None:
        typer.echo(f"Watch at {address}/live (on this machine)", err=True)
        return
    if not sys.stderr.isatty():  # as in a log: what opens the view does not belong there
        typer.echo(f"Watch at {address}/live with a token of {tokens}", err=True)
        return
    typer.echo(f"Watch at {address}/live with a token of {tokens}; hand each link to whom it is for:", err=True)
    echo_links(address, found)


def echo_links(address: str, found: Sequence[TokenRights]) -> None:
    """Print the links of these tokens; those of many members stay in the file."""
    for one in found[:LINKS]:
        typer.echo(f"  {f'{one.role} {one.member}'.strip()}: {address}/live#token={one.token}", err=True)

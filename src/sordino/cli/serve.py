"""`sordino serve`: federations that people join with a web page, or with `sordino join`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated
from urllib.parse import urlsplit

import typer

from sordino.cli.live import announce, make_or_read
from sordino.cli.options import Host, Overrides, Port, TlsCert, TlsKey, check_folder
from sordino.errors import InvalidInput
from sordino.wire.tls_address import TlsAddress, is_loopback

if TYPE_CHECKING:
    from sordino.recipe import Recipe
    from sordino.web.app import Site
    from sordino.web.hosted_federation import GatewayShare, HostedFederation

DEFAULT = "proven-digits-pages"  #: what is served where nothing is named


def serve(
    recipes: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[RECIPE]...",
            help=f"Shipped recipes by name (`sordino recipes`), or TOML files; {DEFAULT} with --link if left out.",
            show_default=False,
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    tls_cert: TlsCert = None,
    tls_key: TlsKey = None,
    invite: Annotated[
        bool, typer.Option("--invite", help="By invitation only: a link for each place is printed.")
    ] = False,
    link: Annotated[
        bool, typer.Option("--link", help="By invitation, with one link that admits everybody who has it.")
    ] = False,
    folder: Annotated[
        Path, typer.Option(metavar="FOLDER", help="What survives a restart; one folder in it for each federation.")
    ] = Path("served"),
    overrides: Overrides = None,
    address: Annotated[
        str, typer.Option(metavar="URL", help="The address that participants open, if it is another than this one's.")
    ] = "",
    operator: Annotated[str, typer.Option(help="Who runs this server, as participants read it.")] = "",
    origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Another origin whose page may connect, such as https://page.example."),
    ] = None,
    gather: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for more participants before the first round.")
    ] = 20.0,
    pace: Annotated[
        float, typer.Option(min=0, help="Seconds that a round takes at least, so that one can watch.")
    ] = 2.0,
    patience: Annotated[
        float, typer.Option(min=0, help="Seconds that a round waits for the rest once most have answered, at least.")
    ] = 2.0,
    connections: Annotated[int, typer.Option(min=1, help="Connections at the same time, at most.")] = 10_000,
    per_address: Annotated[
        int, typer.Option(min=1, help="Places that one network address may take, where nobody is invited.")
    ] = 40,
    absence: Annotated[
        float | None,
        typer.Option(
            min=0, help="Seconds after which the place of somebody who is away may go to another; 600 if left out."
        ),
    ] = None,
    live_for_all: Annotated[
        bool, typer.Option("--live-for-all", help="Show each participant at /live to others than this machine, too.")
    ] = False,
    live_tokens: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="The operator's rights at /live need a token of this file, even on this machine. It is made if it is "
            "not there.",
        ),
    ] = None,
    gateway: Annotated[
        Path | None,
        typer.Option(
            metavar="SOCKET",
            help="Be a gateway: the coordinator is elsewhere (behind Flower), and its relay speaks to this socket.",
        ),
    ] = None,
    federation: Annotated[str, typer.Option(help="With --gateway: the name that the federation's plans carry.")] = "",
    coordinator: Annotated[
        str,
        typer.Option(
            metavar="KEY", help="With --gateway: the key that signs plans, as `sordino keys` prints it there."
        ),
    ] = "",
    slots: Annotated[
        str, typer.Option(metavar="FIRST-LAST", help="With --gateway: the places that this one gives out, as in 0-99.")
    ] = "",
) -> None:
    """Serve federations to web pages and native clients; Ctrl-C stops, and the same command goes on.

    Open the address that is printed in a browser to take part, and /live there to watch.
    """
    check_folder(folder, "--folder")
    from sordino.web.access import Gate, Role, TokenFile
    from sordino.web.app import Site
    from sordino.web.gateway import GatewayFederation
    from sordino.web.hosted_federation import HostedFederation, HostingRules
    from sordino.web.limits import Limits
    from sordino.web.server import serve as serve_site

    if not recipes:
        recipes, link = [DEFAULT], not invite
    if invite and link:
        raise InvalidInput("--invite has a link for each place, and --link one for all: leave one out")
    if invite and absence is not None:
        raise InvalidInput(
            "--absence is of no use with --invite: nobody else could use the link, so places are kept. Leave one out"
        )
    origins = frozenset(_origin(given, "--origin") for given in origin or ())
    address = _origin(address, "--address") if address else ""
    place = TlsAddress(host, port, tls_cert, tls_key)
    limits = Limits(connections=connections, places=per_address)
    limits = limits if absence is None else replace(limits, absence=absence)
    rules = HostingRules(operator, invite, link, limits, patience, gather, pace, typer.echo)
    make: Callable[[Recipe, Path], HostedFederation] = partial(HostedFederation, rules=rules)
    if gateway is not None:
        make = partial(GatewayFederation, share=_share(federation, coordinator, slots), rules=rules)
    elif federation or coordinator or slots:
        raise InvalidInput(
            "--federation, --coordinator and --slots are a gateway's: give --gateway SOCKET, or leave them out"
        )
    operators = [one for one in make_or_read(live_tokens) if one.role is Role.OPERATOR]
    if live_tokens is not None and not operators:
        raise InvalidInput(f"{live_tokens} has no operator's token, so that nobody could operate this server: add one")
    gate = Gate() if live_tokens is None else Gate(TokenFile(live_tokens))
    hosted = {name: make(recipe, folder / name) for name, recipe in _load_recipes(recipes, overrides or []).items()}
    site = Site(hosted, limits, origins, address=address, live_for_all=live_for_all, gate=gate)

    def ready(listening: int) -> None:
        _announce(site, place, listening)
        if live_tokens is not None:
            announce(site.address or place.url(listening), live_tokens, operators)

    with _answer_relay(gateway, hosted):
        serve_site(site, place, ready)
    typer.echo("Stopped. The same command goes on where it was.")


def _origin(given: str, option: str) -> str:
    """An origin as browsers send it: scheme, host and port."""
    try:
        found = urlsplit(given)
        whole = found.scheme in ("https", "http") and bool(found.hostname) and not found.query and not found.fragment
        if whole and found.path in ("", "/") and not found.username:
            return f"{found.scheme}://{found.netloc}".lower()
    except ValueError:
        pass
    raise InvalidInput(
        f"{option} {given}: an origin begins with https:// and has no path, such as https://page.example"
    )


def _load_recipes(names: list[str], overrides: list[str]) -> dict[str, Recipe]:
    from sordino.recipe import Recipe

    found: dict[str, Recipe] = {}
    for name in names:
        recipe = Recipe.load(name, overrides)
        if recipe.name in found:
            raise InvalidInput(f"{recipe.name} is given twice: rename one of them (name = ... in its TOML file)")
        found[recipe.name] = recipe
    return found


def _share(federation: str, coordinator: str, slots: str) -> GatewayShare:
    """The share of a federation that a gateway gives out; its options are given all together."""
    from sordino.web.hosted_federation import GatewayShare
    from sordino.wire.signing import Author

    first, dash, last = slots.partition("-")
    places = dash and first.isdigit() and last.isdigit() and int(first) <= int(last)
    if not (federation and coordinator and places):
        raise InvalidInput(
            "a gateway needs --federation NAME, the name in the coordinator's invitations, --coordinator KEY, the key "
            "that signs its plans (sordino keys prints it there), and --slots FIRST-LAST, such as 0-99"
        )
    return GatewayShare(federation, range(int(first), int(last) + 1), Author.of(coordinator))


@contextmanager
def _answer_relay(gateway: Path | None, hosted: Mapping[str, HostedFederation]) -> Iterator[None]:
    """Answer the relay at a socket, where this is a gateway."""
    if gateway is None:
        yield
        return
    from sordino.web.gateway import GatewayFederation, GatewayService

    (found, *others) = hosted.values()
    if others or not isinstance(found, GatewayFederation):
        raise InvalidInput("a gateway is of one federation: give one recipe")
    service = GatewayService(found, gateway, f"gateway-{found.slots.start}")
    service.start()
    try:
        yield
    finally:
        found.fleet.stop()
        service.stop()


def _announce(site: Site, place: TlsAddress, port: int) -> None:
    from sordino.report.expectations import norm_sentence
    from sordino.runs.preflight import of_federation

    address = place.url(port)
    shown = site.address or address
    typer.echo(f"Serving at {address}  (watch: {address}/live; stop: Ctrl-C)")
    for name, hosted in site.federations.items():
        typer.echo(
            f"  {name}: {hosted.state}, round {hosted.last_round} of {hosted.recipe.rounds.count}; {hosted.folder}"
        )
        ahead = of_federation(hosted.parts)
        if ahead is not None and ahead.facts.norm is not None:
            typer.echo(f"    {norm_sentence(ahead.facts.norm, ahead.honest_norm)}")
        if hosted.invitations is not None:
            for client in hosted.slots:
                taken = " (taken)" if client in hosted.places.members else ""
                typer.echo(f"    place {client}: {hosted.link_to(shown, hosted.invitations.token(client))}{taken}")
        if hosted.link is not None:
            invitation = hosted.link_to(shown, hosted.link.token)
            typer.echo(f"    everybody with this link can join: {invitation}")
            if not is_loopback(urlsplit(shown).hostname or ""):
                _show_code(invitation)
    if not (site.page / "index.html").is_file():
        typer.echo(
            "NOTICE: the web page is not built, so only native clients can join (sordino join). In a checkout: make "
            "page (it needs Node.js 20.19 or newer); then start the server again."
        )
    if place.needs_tls:
        typer.echo(
            "NOTICE: pages of other machines need HTTPS (browsers keep encryption and threads from pages without). "
            "Give --tls-cert and --tls-key, or put a proxy with HTTPS in front: docs/serve.md. Native clients can join."
        )


def _show_code(text: str) -> None:
    """A QR code on a terminal, for the phones of others."""
    import segno

    if sys.stdout.isatty():
        segno.make(text, error="l", micro=False).terminal(sys.stdout, compact=True)

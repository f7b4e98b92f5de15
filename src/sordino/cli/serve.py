"""`sordino serve`: federations that people join with a web page, or with `sordino join`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any
from urllib.parse import urlsplit

import typer

from sordino.cli.folders import check_folder
from sordino.cli.printing import needing, plain_errors

if TYPE_CHECKING:
    from sordino.recipe import Recipe
    from sordino.web.app import Site
    from sordino.web.hosted_federation import HostedFederation
    from sordino.wire.tls_address import TlsAddress


def serve(
    recipes: Annotated[
        list[str],
        typer.Argument(metavar="RECIPE...", help="Shipped recipes by name (`sordino recipes`), or TOML files."),
    ],
    host: Annotated[str, typer.Option(help="Where to listen; 0.0.0.0 for all addresses.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port; 0 for any that is free.")] = 8000,
    tls_cert: Annotated[Path | None, typer.Option(metavar="PEM", help="A certificate, for HTTPS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="PEM", help="The certificate's key.")] = None,
    invite: Annotated[
        bool, typer.Option("--invite", help="By invitation only: a link for each place is printed.")
    ] = False,
    folder: Annotated[
        Path, typer.Option(metavar="FOLDER", help="What survives a restart; one folder in it for each federation.")
    ] = Path("served"),
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the recipes, e.g. rounds.quorum=3."),
    ] = None,
    operator: Annotated[str, typer.Option(help="Who runs this server, as participants read it.")] = "",
    origin: Annotated[
        list[str] | None,
        typer.Option(metavar="ORIGIN", help="Another origin whose page may connect, such as https://page.example."),
    ] = None,
    gather: Annotated[
        float, typer.Option(min=0, help="Seconds to wait for more participants before the first round.")
    ] = 10.0,
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
    with plain_errors():
        check_folder(folder, "--folder")
        with needing("learn,service", "the server for web pages"):
            from sordino.web.app import Site
            from sordino.web.limits import Limits
            from sordino.web.server import serve as serve_hall
            from sordino.wire.tls_address import TlsAddress

        _check_idle(invite=invite, absence=absence, gateway=gateway, of_gateway=(federation, coordinator, slots))
        origins = frozenset(map(_origin, origin or ()))
        place = TlsAddress(host, port, tls_cert, tls_key)
        limits = Limits(connections=connections, places=per_address)
        limits = limits if absence is None else replace(limits, absence=absence)
        loaded = _loaded(recipes, overrides or [])
        options = {"operator": operator, "by_invitation": invite, "limits": limits, "say": typer.echo}
        options |= {"patience": patience}
        if gateway is not None:
            options |= {"federation": federation, "coordinator": coordinator}
            hosted = {name: _behind(recipe, folder, slots, options) for name, recipe in loaded.items()}
        else:
            hosted = {name: _own(recipe, folder, gather, options) for name, recipe in loaded.items()}
        site = Site(hosted, limits, origins, live_for_all=live_for_all)
        with _relayed(gateway, hosted):
            serve_hall(site, place, lambda listening: _announce(site, place, listening))
        typer.echo("Stopped. The same command goes on where it was.")


def _check_idle(*, invite: bool, absence: float | None, gateway: Path | None, of_gateway: tuple[str, str, str]) -> None:
    """Refuse options that would do nothing."""
    from sordino.errors import InvalidInput

    if invite and absence is not None:
        raise InvalidInput(
            "--absence is of no use with --invite: nobody else could use the link, so places are kept. Leave one out"
        )
    if gateway is None and any(of_gateway):
        raise InvalidInput(
            "--federation, --coordinator and --slots are a gateway's: give --gateway SOCKET, or leave them out"
        )


def _origin(given: str) -> str:
    """An origin as browsers send it: scheme, host and port."""
    from sordino.errors import InvalidInput

    try:
        found = urlsplit(given)
        whole = found.scheme in ("https", "http") and bool(found.hostname) and not found.query and not found.fragment
        if whole and found.path in ("", "/") and not found.username:
            return f"{found.scheme}://{found.netloc}".lower()
    except ValueError:
        pass
    raise InvalidInput(
        f"--origin {given}: an origin begins with https:// and has no path, such as https://page.example"
    )


def _loaded(names: list[str], overrides: list[str]) -> dict[str, Recipe]:
    from sordino.errors import InvalidInput
    from sordino.recipe import Recipe

    found: dict[str, Recipe] = {}
    for name in names:
        recipe = Recipe.load(name, overrides)
        if recipe.name in found:
            raise InvalidInput(f"{recipe.name} is given twice: rename one of them (name = ... in its TOML file)")
        found[recipe.name] = recipe
    return found


def _own(recipe: Recipe, folder: Path, gather: float, options: dict[str, Any]) -> HostedFederation:
    """A federation in its folder; a recipe that pages cannot carry out is refused here."""
    from sordino.web.hosted_federation import HostedFederation

    return HostedFederation(recipe, folder / recipe.name, gather=gather, **options)


def _behind(recipe: Recipe, folder: Path, slots: str, options: dict[str, Any]) -> HostedFederation:
    """The share of a federation that is coordinated elsewhere."""
    from sordino.errors import InvalidInput
    from sordino.web.gateway import GatewayFederation

    first, dash, last = slots.partition("-")
    named = options["federation"] and options["coordinator"]
    if not named or not dash or not (first.isdigit() and last.isdigit() and int(first) <= int(last)):
        raise InvalidInput(
            "a gateway needs --federation NAME, the name in the coordinator's invitations, --coordinator KEY, the key "
            "that signs its plans (sordino keys prints it there), and --slots FIRST-LAST, such as 0-99"
        )
    share = range(int(first), int(last) + 1)
    return GatewayFederation(recipe, folder / recipe.name, slots=share, **options)


@contextmanager
def _relayed(gateway: Path | None, hosted: Mapping[str, HostedFederation]) -> Iterator[None]:
    """Answer the relay at a socket, where this is a gateway."""
    if gateway is None:
        yield
        return
    from sordino.errors import InvalidInput
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
    typer.echo(f"Serving at {address}  (watch: {address}/live; stop: Ctrl-C)")
    for name, hosted in site.federations.items():
        typer.echo(
            f"  {name}: {hosted.state}, round {hosted.last_round} of {hosted.recipe.rounds.count}; {hosted.folder}"
        )
        ahead = of_federation(hosted.parts)
        if ahead is not None and ahead.norm is not None:
            typer.echo(f"    {norm_sentence(ahead.norm)}")
        if hosted.invitations is not None:
            for client in hosted.slots:
                token = hosted.invitations.token(client)
                taken = " (taken)" if client in hosted.places.members else ""
                key = hosted.author.first.hex()
                typer.echo(f"    place {client}: {address}/#federation={name}&token={token}&key={key}{taken}")
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

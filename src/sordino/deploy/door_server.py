"""The door's server (`door.py`): each request is read whole, bounded and timed, and written anew for Flower."""

from __future__ import annotations

import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from importlib.metadata import version
from pathlib import Path

import httpx
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from sordino.deploy.deployment import FLOWER, Deployment
from sordino.deploy.door import LARGEST, PATH, TITLE, WAITING, listens_on
from sordino.web.limits import Limits, network
from sordino.web.premises import Premises
from sordino.web.server import GuardedServer, config_for, listen
from sordino.wire.tls_address import TlsAddress, trusting

HELD = 2**29  #: bytes of all requests that have not arrived whole, or are not answered yet
HELD_EACH = 2**27  #: of them, from one address
#: a request arrives within two minutes; where all places are taken, the address that has most of them loses one
LIMITS = Limits(request=120.0, body=LARGEST, connections=2000, watching=0)
#: headers that are about one connection, or that the door writes itself
_OWN = {
    b"connection", b"content-length", b"expect", b"host", b"keep-alive", b"proxy-connection", b"te", b"trailer",
    b"transfer-encoding", b"upgrade",
}  # fmt: skip


def door_app(address: str, trusted: ssl.SSLContext) -> Starlette:
    """The door as an ASGI app, before the server at an address."""

    @asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        async with httpx.AsyncClient(verify=trusted, timeout=WAITING, trust_env=False) as app.state.client:
            yield

    held: Counter[str] = Counter()  # bytes of requests, by address

    async def hand_on(request: Request) -> Response:
        raw = request.scope.get("raw_path", b"").partition(b"?")[0].decode("ascii", "replace")
        if not re.fullmatch(PATH, raw) or request.scope["path"] != raw or request.url.query:
            return PlainTextResponse("there is nothing here", 404)
        address_of, body = network(request.client.host if request.client is not None else ""), bytearray()
        try:
            async for piece in request.stream():
                body += piece
                held[address_of] += len(piece)
                if len(body) > LARGEST:
                    return PlainTextResponse(f"a request has at most {LARGEST:,} bytes", 413)
                if held[address_of] > HELD_EACH or held.total() > HELD:
                    return PlainTextResponse("too much is on its way: try again later", 503, {"Retry-After": "5"})
            return await _answered(request, raw, bytes(body))
        finally:
            held[address_of] -= len(body)
            if held[address_of] <= 0:
                del held[address_of]

    async def _answered(request: Request, raw: str, body: bytes) -> Response:
        headers = [(name, value) for name, value in request.headers.raw if name not in _OWN]
        try:
            found = await request.app.state.client.post(f"https://{address}{raw}", content=body, headers=headers)
        except httpx.HTTPError:
            return PlainTextResponse("Flower's server does not answer", 502)
        dropped = {*_OWN, b"content-encoding"}  # what was compressed is unpacked by now
        kept = {name: value for name, value in found.headers.items() if name.encode() not in dropped}
        return Response(found.content, found.status_code, kept)

    async def about(_: Request) -> Response:
        return JSONResponse({"info": {"title": TITLE, "version": version("flwr")}})

    routes = [Route("/openapi.json", about), Route("/{path:path}", hand_on, methods=["POST"])]
    return Starlette(routes=routes, lifespan=life)


class DoorPremises(Premises):
    """The door's limits, and who stands in it."""

    limits = LIMITS

    def __init__(self) -> None:
        self.open_doors()


def door_server(app: Starlette, place: TlsAddress) -> GuardedServer:
    """The door's server. Its parser leaves a target as it was sent, and every connection is counted and timed."""
    premises = DoorPremises()
    config = config_for(premises, app, place)
    config.ws = "none"
    return GuardedServer(config, premises, lambda: None)


def serve_door(deployment: Deployment, place: Path) -> None:
    """Keep the door until a signal."""
    flower = place / FLOWER
    app = door_app(deployment.inner_address, trusting(flower / "ca.crt"))
    where = TlsAddress(listens_on(deployment.host), deployment.port, flower / "server.crt", flower / "server.key")
    with closing(listen(where, "port to the set-up (sordino deploy init --port)")) as listening:
        door_server(app, where).run(sockets=[listening])


__all__ = ["door_app", "door_server", "serve_door"]

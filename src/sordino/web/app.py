"""The parameter server as an ASGI app: the page, the federations, their participants, and what may be seen of them."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated
from urllib.parse import quote

import numpy as np
from fastapi import FastAPI, HTTPException, Request, WebSocket
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.websockets import WebSocketDisconnect

import sordino
from sordino.errors import InvalidInput
from sordino.storage.files import NotWritten
from sordino.web.access import Gate, Role, is_own
from sordino.web.connection import SUBPROTOCOL, Connection, Credit, deny, refuse
from sordino.web.event_stream import BEAT, stream
from sordino.web.headers import REPORT_POLICY
from sordino.web.hosted_federation import HostedFederation
from sordino.web.limits import Attempts, Limits, network
from sordino.web.page_task import PROTOCOL
from sordino.web.places import TurnedAway
from sordino.web.premises import PAGE, InPieces, Premises, add_page, detail_answer, file_answer, make_app

MOST_ROUNDS = 1000  #: that pages take part in


@dataclass
class Site(Premises):
    """What a server hosts, and its rules."""

    federations: dict[str, HostedFederation]
    limits: Limits = field(default_factory=Limits)
    origins: frozenset[str] = frozenset()  #: others than the server's own whose pages may connect
    page: Path = PAGE
    address: str = ""  #: that participants open, if not the one that the operator does
    live_for_all: bool = False  #: whether the operator's view is for everybody, not on this machine only
    gate: Gate = field(default_factory=Gate)  #: who the operator is
    connections: dict[Connection, None] = field(default_factory=dict)
    attempts: Attempts = field(init=False)
    renewing: asyncio.Lock = field(default_factory=asyncio.Lock)  #: for a new beginning, or a new link

    def __post_init__(self) -> None:
        self.open_doors()
        self.attempts = Attempts(self.limits.refused, self.limits.within)

    def find(self, name: str) -> HostedFederation:
        """The federation of that name."""
        if name not in self.federations:
            raise HTTPException(404, f"no federation {name[:100]!r} is here; there are {', '.join(self.federations)}")
        return self.federations[name]

    def is_operator(self, request: Request) -> bool:
        """Whether the operator asks."""
        rights = self.gate.rights(request)
        return rights is not None and rights.role is Role.OPERATOR

    @property
    def largest_message(self) -> int:
        """Bytes that any participant may send in one message."""
        return max(self.limits.text, *(hosted.largest_message for hosted in self.federations.values()))


def create_app(site: Site) -> FastAPI:
    """The app of a site; its federations start and stop with it."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        for hosted in site.federations.values():
            hosted.start()
        announcing = asyncio.create_task(_announce_changes(site))
        try:
            yield
        finally:
            site.stopping = True
            announcing.cancel()
            with suppress(asyncio.CancelledError):
                await announcing
            for hosted in site.federations.values():
                await asyncio.to_thread(hosted.stop)

    app = make_app(site, lifespan=life)
    _add_federations(app, site)
    _add_places(app, site)
    _add_start(app, site)
    _add_link(app, site)
    _add_again(app, site)
    _add_downloads(app, site)
    _add_participants(app, site)
    add_page(app, site)
    return app


# --- what may be read -------------------------------------------------------------------------------------------------


def _add_federations(app: FastAPI, site: Site) -> None:
    @app.get("/api/server")
    async def server(request: Request) -> Response:
        content = {
            "protocol": PROTOCOL,
            "version": sordino.__version__,
            "invited": any(hosted.by_invitation for hosted in site.federations.values()),
            "federations": list(site.federations),
            "https": request.url.scheme == "https",
        }
        return JSONResponse(content)

    @app.get("/api/federations")
    async def federations() -> Response:
        return JSONResponse([hosted.summary() for hosted in site.federations.values()])

    @app.get("/api/federations/{name}")
    async def federation(name: str, request: Request) -> Response:
        hosted = site.find(name)
        own = site.is_operator(request)
        short = {
            **hosted.summary(),
            "live": hosted.live() if own or site.live_for_all else None,
            "may_free": own,
            "link": _link(site, hosted, request) if own else None,
        }
        long = {
            "history": site.encode((hosted.federation, "history"), hosted.last_round, hosted.history),
            "statement": site.encode((hosted.federation, "statement"), hosted.statement_changes, hosted.statement),
            "task": hosted.task.body.decode(),
        }
        return detail_answer(short, long)

    @app.get("/api/federations/{name}/task")
    async def task(name: str) -> Response:
        hosted = site.find(name)
        return InPieces(hosted.task.body, media_type="application/json", headers={"ETag": f'"{hosted.task.digest}"'})

    @app.get("/api/federations/{name}/sample")
    def sample(name: str, client: int = 0) -> Response:  # in a thread: megabytes, while participants wait for the loop
        hosted = site.find(name)
        if not hosted.has_sample:
            raise HTTPException(404, f"{name} has no sample records: its data are not public. Bring your own")
        if (same := site.answers.get((hosted.federation, "sample", client))) is not None:
            return same
        examples = hosted.sample(client)
        dtype = "u8" if examples.x.dtype == np.uint8 else "f4"
        content = {
            "client": client,
            "count": len(examples),
            "shape": list(examples.x.shape[1:]),
            "classes": list(hosted.parts.dataset.classes),
            "dtype": dtype,
            "x": base64.b64encode(examples.x.astype("u1" if dtype == "u8" else "<f4").tobytes()).decode(),
            "y": base64.b64encode(examples.y.astype("u1").tobytes()).decode(),
            "public": True,
            "about": f"public records of {hosted.recipe.data.source}: a part for everybody who only wants to try",
        }
        answer = InPieces(json.dumps(content), media_type="application/json")
        return site.answers.setdefault((hosted.federation, "sample", client), answer)

    @app.get("/api/federations/{name}/events")
    async def events(name: str, request: Request, after: int | None = None) -> Response:
        site.find(name)
        live = site.live_for_all or site.is_operator(request)
        return stream(site, request, name, lambda: site.federations[name], after=after, live=live)


def _link(site: Site, hosted: HostedFederation, request: Request) -> str | None:
    """The link that the operator may hand on; None where each place has one of its own."""
    address = site.address or f"{request.url.scheme}://{request.url.netloc}"
    if hosted.link is not None:
        return hosted.link_to(address, hosted.link.token)
    return None if hosted.by_invitation else f"{address}/#/{quote(hosted.name)}"


# --- what the operator may change -------------------------------------------------------------------------------------

FREED = "the operator of this server has freed your place: ask them, or join again later"


def _add_places(app: FastAPI, site: Site) -> None:
    @app.delete("/api/federations/{name}/places/{client}")
    async def free(name: str, client: int, request: Request) -> Response:
        site.gate.require_operator(request)
        hosted = site.find(name)
        member = hosted.free_place(client)
        if member is None:
            raise HTTPException(404, f"nobody holds place {client} of {name}")
        for connection in list(site.connections):
            if connection.hosted is hosted and connection.member == member:
                hosted.fleet.go(client, connection)
                hosted.fleet.forget(client)
                connection.turn_away(TurnedAway("freed", FREED))
        try:
            await asyncio.to_thread(hosted.places.settle)
        except NotWritten as error:
            raise HTTPException(503, f"the place is free, but that cannot be written down yet: {error}") from None
        return Response(status_code=204)


def _add_start(app: FastAPI, site: Site) -> None:
    @app.post("/api/federations/{name}/start")
    async def start(name: str, request: Request) -> Response:
        site.gate.require_operator(request)
        try:
            site.find(name).begin()
        except InvalidInput as error:
            raise HTTPException(409, str(error)) from None
        return Response(status_code=204)


def _add_again(app: FastAPI, site: Site) -> None:
    @app.post("/api/federations/{name}/again")
    async def again(name: str, request: Request) -> Response:
        site.gate.require_operator(request)
        wanted = _renewal_request(await request.body())
        async with site.renewing:
            before = site.find(name)
            try:
                renew = partial(before.renew, wanted.rounds, from_model=wanted.from_model)
                hosted = await asyncio.to_thread(renew)
            except InvalidInput as error:
                raise HTTPException(409, str(error)) from None
            except NotWritten as error:
                raise HTTPException(503, str(error)) from None
            site.federations[name] = hosted
            site.encoded.clear()
            for connection in list(site.connections):
                if connection.hosted is before:
                    connection.end(before.why)
            if not site.stopping:
                hosted.start()
        return JSONResponse({"federation": hosted.federation})


class _RenewalRequest(BaseModel):
    """How a federation is to begin anew."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rounds: Annotated[int, Field(ge=1, le=MOST_ROUNDS)] | None = None
    from_model: bool = False


def _renewal_request(body: bytes) -> _RenewalRequest:
    try:
        return _RenewalRequest.model_validate_json(body or b"{}")
    except ValidationError as error:
        names = ", ".join(".".join(map(str, each["loc"])) or "the body" for each in error.errors())
        raise HTTPException(
            400, f'{names}: allowed is {{"rounds": 1 to {MOST_ROUNDS} or null, "from_model": true or false}}'
        ) from None


def _add_link(app: FastAPI, site: Site) -> None:
    @app.delete("/api/federations/{name}/link")
    async def revoke(name: str, request: Request) -> Response:
        site.gate.require_operator(request)
        async with site.renewing:  # a federation that begins anew reads the key that is written here
            hosted = site.find(name)
            if hosted.link is None:
                raise HTTPException(404, f"{name} has no link for everybody: serve it with --link")
            try:
                await asyncio.to_thread(hosted.link.revoke)
            except NotWritten as error:
                raise HTTPException(503, f"the link is still the same: {error}") from None
        return Response(status_code=204)


def _add_downloads(app: FastAPI, site: Site) -> None:
    @app.get("/api/federations/{name}/statement.json")
    async def statement(name: str) -> Response:
        return JSONResponse(site.find(name).statement())

    @app.get("/api/federations/{name}/model.bin")
    def parameters(name: str) -> Response:  # in a thread, as the sample
        hosted = site.find(name)
        round, found = hosted.model()
        headers = {"X-Sordino-Round": str(round)}
        answer = InPieces(found.tobytes(), media_type="application/octet-stream", headers=headers)
        return site.answers.setdefault((hosted.federation, "model", round), answer)

    @app.get("/api/federations/{name}/model.safetensors")
    def model(name: str) -> Response:
        return _download(site, name, "model.safetensors", {"Content-Disposition": "attachment"})

    @app.get("/api/federations/{name}/report.html")
    def report(name: str) -> Response:
        headers = {"Content-Disposition": "inline", "Content-Security-Policy": REPORT_POLICY}
        return _download(site, name, "report.html", headers)


def _download(site: Site, name: str, file: str, headers: dict[str, str]) -> Response:
    path = site.find(name).run_folder / file
    if not path.is_file():
        raise HTTPException(404, f"{name} is not over yet: {file} is written when it is")
    called = f"; filename*=utf-8''{quote(f'{name}-{file}', safe='')}"
    return file_answer(site, path, {**headers, "Content-Disposition": headers["Content-Disposition"] + called})


# --- participants -----------------------------------------------------------------------------------------------------


def _add_participants(app: FastAPI, site: Site) -> None:
    credit = Credit(site.limits.in_flight, site.limits.sending)

    @app.websocket("/api/federations/{name}/ws")
    async def participate(socket: WebSocket, name: str) -> None:
        if not _welcome_origin(socket, site):
            await deny(socket, 403, _STRANGER)
            return
        if name not in site.federations:
            await deny(socket, 404, f"no federation {name[:100]!r} is here")
            return
        await socket.accept(SUBPROTOCOL if SUBPROTOCOL in socket.scope.get("subprotocols", ()) else None)
        await _participate(socket, site, site.federations[name], credit)


_STRANGER = (
    "a page of another origin may not connect: open the page of this server, or let its operator allow yours (--origin)"
)


def _welcome_origin(socket: WebSocket, site: Site) -> bool:
    """Browsers say where a page comes from, native clients say nothing."""
    origin = socket.headers.get("origin")
    return origin is None or origin in site.origins or is_own(origin, socket.headers)


async def _participate(socket: WebSocket, site: Site, hosted: HostedFederation, credit: Credit) -> None:
    address = network(socket.client.host if socket.client is not None else "")
    wait = site.attempts.wait(address)
    connection = Connection(socket, hosted, site.limits, credit, address, wait)
    site.connections[connection] = None
    try:
        await connection.run()
    except TurnedAway as turned:
        uncounted = ("full", "address", "finished", "terms", "busy")
        if not wait and not connection.recognised and turned.code not in uncounted:
            site.attempts.note(address)
        await refuse(socket, turned)
    except WebSocketDisconnect:
        pass
    finally:
        site.connections.pop(connection, None)


async def _announce_changes(site: Site) -> None:
    """Tell participants what has changed; the more of them there are, the less often."""
    told: dict[str, tuple[str, str]] = {}
    while True:
        await asyncio.sleep(max(BEAT, len(site.connections) / 1000))
        for hosted in list(site.federations.values()):
            hosted.refresh()
            mine = [c for c in site.connections if c.member is not None and c.hosted is hosted]
            while hosted.rejected:
                client, round, reason = hosted.rejected.popleft()
                for connection in mine:
                    if connection.member is not None and connection.member.client == client:
                        connection.say({"type": "rejected", "round": round, "reason": reason})
            news = json.dumps(hosted.status, sort_keys=True)
            if told.get(hosted.name) != (hosted.federation, news):
                told[hosted.name] = (hosted.federation, news)
                for connection in mine:
                    connection.say({"type": "status", **hosted.status})
            if hosted.state in ("finished", "failed"):
                for connection in mine:
                    connection.end(hosted.why)


__all__ = ["PAGE", "Site", "create_app"]

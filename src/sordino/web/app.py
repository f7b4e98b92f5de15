"""The parameter server as an ASGI app: the page, the federations, their participants, and what may be seen of them."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from mimetypes import guess_type
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote, urlsplit
from weakref import WeakValueDictionary

import numpy as np
from fastapi import FastAPI, HTTPException, Request, WebSocket
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException as AnyHttpError
from starlette.types import Receive, Scope, Send
from starlette.websockets import WebSocketDisconnect

import sordino
from sordino.errors import InvalidInput
from sordino.storage.files import NotWritten
from sordino.web.connection import SUBPROTOCOL, Connection, Credit, deny, refuse
from sordino.web.doorway import Doorway, room_for
from sordino.web.headers import REPORT_POLICY, SecurityHeaders
from sordino.web.hosted_federation import HostedFederation
from sordino.web.limits import Attempts, Limits, Watchers, network
from sordino.web.page_task import PROTOCOL
from sordino.web.places import TurnedAway
from sordino.web.request_rate import RateLimit

PAGE = Path(__file__).with_name("page")  #: what `make page` builds
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")
BEAT = 1.0  #: seconds between looks at what has changed
STILL = 5.0  #: seconds after which an event stream says that it is alive
MOST_ROUNDS = 1000  #: that pages take part in
PIECE = 2**16  #: bytes of a large answer that are sent at once
WATCH_AGAIN = 60.0  #: seconds after which one who may not watch now may ask again
LOCAL = ("127.0.0.1", "localhost", "::1")  #: this machine
#: what proxies add: visitors may write anything into it, and some proxies call this machine's name for them
PASSED_ON = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")

NOT_BUILT = (
    "This server runs, but its web page was not built. In the folder of the source: make page (or npm ci and npm run "
    "build in web/), then start the server again.\nNative clients can join already: sordino join URL --data ... "
    "--budget ...\n"
)


@dataclass
class Site:
    """What a server hosts, and its rules."""

    federations: dict[str, HostedFederation]
    limits: Limits = field(default_factory=Limits)
    origins: frozenset[str] = frozenset()  #: others than the server's own whose pages may connect
    page: Path = PAGE
    address: str = ""  #: that participants open, if not the one that the operator does
    live_for_all: bool = False  #: whether the operator's view is for everybody, not on this machine only
    connections: dict[Connection, None] = field(default_factory=dict)
    stopping: bool = False
    encoded: dict[tuple[str, str], tuple[object, str]] = field(default_factory=dict)  #: version and JSON of views
    answers: WeakValueDictionary[Hashable, Response] = field(default_factory=WeakValueDictionary)  #: on their way
    attempts: Attempts = field(init=False)
    watchers: Watchers = field(init=False)
    doorway: Doorway = field(init=False)
    renewing: asyncio.Lock = field(default_factory=asyncio.Lock)  #: for a new beginning, or a new link

    def __post_init__(self) -> None:
        self.doorway = Doorway(self.limits, room_for(self.limits))
        self.watchers = Watchers(self.limits, self.doorway.room)
        self.attempts = Attempts(self.limits.refused, self.limits.within)

    def find(self, name: str) -> HostedFederation:
        """The federation of that name."""
        if name not in self.federations:
            raise HTTPException(404, f"no federation {name[:100]!r} is here; there are {', '.join(self.federations)}")
        return self.federations[name]

    def encode(self, hosted: HostedFederation, view: str, version: object) -> str:
        """JSON of a view of a federation, made once for each version: whoever asks again and again costs little."""
        key = hosted.federation, view
        if self.encoded.get(key, (None, ""))[0] != version:
            self.encoded[key] = version, json.dumps(getattr(hosted, view)(), allow_nan=False)
        return self.encoded[key][1]

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

    app = FastAPI(title="Sordino", docs_url=None, redoc_url=None, openapi_url=None, lifespan=life)
    app.router.route_class = _Route
    app.add_middleware(RateLimit, limits=site.limits)
    app.add_middleware(SecurityHeaders)
    for kind in (AnyHttpError, RequestValidationError, InvalidInput):
        app.add_exception_handler(kind, _refused)
    _add_federations(app, site)
    _add_places(app, site)
    _add_start(app, site)
    _add_link(app, site)
    _add_again(app, site)
    _add_downloads(app, site)
    _add_participants(app, site)
    _add_page(app, site)
    return app


class _Route(APIRoute):
    """Answers HEAD as it would answer GET; uvicorn leaves the body out."""

    def __init__(self, path: str, endpoint: Callable[..., object], **options: Any) -> None:
        if options.get("methods") == ["GET"]:
            options["methods"] = ["GET", "HEAD"]
        super().__init__(path, endpoint, **options)


async def _refused(_: Request, error: Exception) -> Response:
    match error:
        case AnyHttpError():
            said = "there is nothing here" if error.detail == "Not Found" else error.detail
            return JSONResponse({"error": said}, error.status_code, headers=error.headers)
        case RequestValidationError():
            names = ", ".join(str(each["loc"][-1]) for each in error.errors())
            return JSONResponse({"error": f"{names}: not what this address takes, such as sample?client=0"}, 400)
    return JSONResponse({"error": str(error)}, 400)


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
        live = hosted.live() if _for_operator(site, request) else None
        own = _at_this_machine(request)
        short = {
            **hosted.summary(),
            "live": live,
            "may_free": own,
            "link": _link(site, hosted, request) if own else None,
        }
        long = {
            "history": site.encode(hosted, "history", hosted.last_round),
            "statement": site.encode(hosted, "statement", hosted.state == "finished"),
            "task": hosted.task.body.decode(),
        }
        parts = (f', "{key}": {value}' for key, value in long.items())
        return _InPieces(json.dumps(short, allow_nan=False)[:-1] + "".join(parts) + "}", media_type="application/json")

    @app.get("/api/federations/{name}/task")
    async def task(name: str) -> Response:
        hosted = site.find(name)
        return _InPieces(hosted.task.body, media_type="application/json", headers={"ETag": f'"{hosted.task.digest}"'})

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
        answer = _InPieces(json.dumps(content), media_type="application/json")
        return site.answers.setdefault((hosted.federation, "sample", client), answer)

    @app.get("/api/federations/{name}/events")
    async def events(name: str, request: Request, after: int | None = None) -> Response:
        hosted = site.find(name)
        address = network(request.client.host if request.client is not None else "")
        _require_room(site.watchers, address, name)
        if request.method == "HEAD":  # nobody would read the events
            return StreamingResponse(iter(()), media_type="text/event-stream")
        known = hosted.last_round if after is None else after
        return _Watched(_events(site, name, _for_operator(site, request), known), site.watchers, address)


def _require_room(watchers: Watchers, address: str, name: str) -> None:
    """Refuse one event stream too many: one visitor must not hold all that there are."""
    instead = f"read /api/federations/{name} from time to time instead"
    later = {"Retry-After": f"{WATCH_AGAIN:g}"}
    if watchers.has_all(address):
        raise HTTPException(
            429,
            f"{watchers.each} event streams are open from your network address, and one address may open no more: "
            f"close some, {instead}, or ask the operator to allow more (--per-address)",
            later,
        )
    if watchers.full:
        raise HTTPException(503, f"too many watch this server already: try again later, or {instead}", later)


def _for_operator(site: Site, request: Request) -> bool:
    """Whether somebody at this machine asks, who may see each participant: who was here when, and who was late.

    What a proxy on this machine passes on says so, or comes to another host; so does what a page from elsewhere asks
    for whose name was made to point here.
    """
    return site.live_for_all or _at_this_machine(request)


def _link(site: Site, hosted: HostedFederation, request: Request) -> str | None:
    """The link that the operator may hand on; None where each place has one of its own."""
    address = site.address or f"{request.url.scheme}://{request.url.netloc}"
    if hosted.link is not None:
        return hosted.link_to(address, hosted.link.token)
    return None if hosted.by_invitation else f"{address}/#/{quote(hosted.name)}"


def _at_this_machine(request: Request) -> bool:
    address = request.client.host if request.client is not None else ""
    passed_on = any(name in request.headers for name in PASSED_ON)
    return address in LOCAL and request.url.hostname in LOCAL and not passed_on


class _InPieces(Response):
    """A large answer. What slow readers have not taken yet is there once, for all who are sent the same."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = list(self.raw_headers)
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        for first in range(0, len(self.body), PIECE):
            piece = bytes(self.body[first : first + PIECE])
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})


class _Watched(StreamingResponse):
    """The events of one who watches, counted from the moment they are promised until they end."""

    def __init__(self, events: AsyncIterator[str], watchers: Watchers, address: str) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._watchers, self._address = watchers, address
        watchers.come(address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._watchers.go(self._address)


async def _events(site: Site, name: str, operator: bool, rounds: int) -> AsyncIterator[str]:
    """Server-sent events: what has changed, once a second at most; of single participants only to the operator.

    They begin with the rounds after those that are known already, the first `rounds`. Where the federation begins anew,
    its summary comes first.
    """
    number, seen, still = 0, -1, 0.0
    hosted = site.federations[name]
    while not site.stopping:
        news: list[tuple[str, str]] = []
        if (now := site.federations[name]) is not hosted:
            hosted, rounds, seen = now, 0, -1
            news.append(("summary", site.encode(hosted, "summary", hosted.changes)))
        if hosted.changes != seen:
            over = hosted.state in ("finished", "failed")
            fresh = hosted.history(rounds)
            rounds = max([rounds, *(entry["round"] for entry in fresh)])
            seen = hosted.changes
            summary, live = (site.encode(hosted, view, seen) for view in ("summary", "live"))
            news += [("round", json.dumps(entry, allow_nan=False)) for entry in fresh]
            news += [("summary", summary), *([("live", live)] if operator else [])]
            news += [("ended", summary)] if over else []
            still = 0.0
        elif still >= STILL:
            yield "event: still\ndata: {}\n\n"  # a comment would be seen by proxies, and not by the page
            still = 0.0
        for kind, content in news:
            number += 1
            yield f"id: {number}\nevent: {kind}\ndata: {content}\n\n"
        await asyncio.sleep(BEAT)
        still += BEAT


# --- what the operator may change -------------------------------------------------------------------------------------

FREED = "the operator of this server has freed your place: ask them, or join again later"


def _add_places(app: FastAPI, site: Site) -> None:
    @app.delete("/api/federations/{name}/places/{client}")
    async def free(name: str, client: int, request: Request) -> Response:
        _require_operator(request)
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
        _require_operator(request)
        try:
            site.find(name).begin()
        except InvalidInput as error:
            raise HTTPException(409, str(error)) from None
        return Response(status_code=204)


def _add_again(app: FastAPI, site: Site) -> None:
    @app.post("/api/federations/{name}/again")
    async def again(name: str, request: Request) -> Response:
        _require_operator(request)
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
        _require_operator(request)
        async with site.renewing:  # a federation that begins anew reads the key that is written here
            hosted = site.find(name)
            if hosted.link is None:
                raise HTTPException(404, f"{name} has no link for everybody: serve it with --link")
            try:
                await asyncio.to_thread(hosted.link.revoke)
            except NotWritten as error:
                raise HTTPException(503, f"the link is still the same: {error}") from None
        return Response(status_code=204)


def _require_operator(request: Request) -> None:
    """Refuse whoever is not at this machine, and pages of others in the operator's browser."""
    if not _at_this_machine(request) or not _of_own_page(request.headers):
        raise HTTPException(403, "only the operator may do this: open /live on the server's own machine, as localhost")


def _of_own_page(headers: Headers) -> bool:
    """Whether a request comes from this server's own page, or from no page: any page in a browser can reach it."""
    origin = headers.get("origin")
    own = origin is None or _is_own(origin, headers)
    return own and headers.get("sec-fetch-site", "same-origin") in ("same-origin", "none")


def _is_own(origin: str, headers: Headers) -> bool:
    try:
        place = urlsplit(origin)
        return place.scheme in ("http", "https") and bool(place.netloc) and place.netloc == headers.get("host")
    except ValueError:
        return False


def _add_downloads(app: FastAPI, site: Site) -> None:
    @app.get("/api/federations/{name}/statement.json")
    async def statement(name: str) -> Response:
        return JSONResponse(site.find(name).statement())

    @app.get("/api/federations/{name}/model.bin")
    def parameters(name: str) -> Response:  # in a thread, as the sample
        hosted = site.find(name)
        round, found = hosted.model()
        headers = {"X-Sordino-Round": str(round)}
        answer = _InPieces(found.tobytes(), media_type="application/octet-stream", headers=headers)
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
    return _file(site, path, {**headers, "Content-Disposition": headers["Content-Disposition"] + called})


def _file(site: Site, path: Path, headers: dict[str, str]) -> Response:
    """A file in memory, once for all who are sent it: an open file for each of them would use up the descriptors."""
    state = path.stat()
    key = (path, state.st_mtime_ns, state.st_size, *headers.items())
    if (same := site.answers.get(key)) is not None:
        return same
    kind = guess_type(path.name)[0] or "application/octet-stream"
    return site.answers.setdefault(key, _InPieces(path.read_bytes(), media_type=kind, headers=headers))


# --- the page ---------------------------------------------------------------------------------------------------------


def _add_page(app: FastAPI, site: Site) -> None:
    @app.get("/")
    @app.get("/live")
    def page(request: Request) -> Response:  # in a thread: a file is read
        path = site.page / ("live.html" if request.url.path == "/live" else "index.html")
        return _file(site, path, {}) if path.is_file() else PlainTextResponse(NOT_BUILT, 503)

    @app.get("/assets/{name:path}")
    def asset(name: str) -> Response:
        found = _within(site.page / "assets", name)
        return _file(site, found, {"Cache-Control": "public, max-age=31536000, immutable"})

    @app.get("/{name}")
    def other(name: str) -> Response:
        return _file(site, _within(site.page, name), {"Cache-Control": "no-cache"})


def _within(folder: Path, name: str) -> Path:
    """A file of a folder, by plain names only."""
    parts = name.split("/")
    path = folder.joinpath(*parts)
    if not all(_FILE.fullmatch(part) for part in parts) or not path.is_file():
        raise HTTPException(404, "there is nothing here")
    return path


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
    return origin is None or origin in site.origins or _is_own(origin, socket.headers)


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

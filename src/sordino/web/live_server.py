"""/live of a run with real clients: a small read-only server in a thread of the coordinator's own process.

run = WatchedRun(recipe, name_of)
with serve_live(run, port=8001, tokens="live.json") as address:
    serve(recipe, fleet, folder, setup, observer=[run])
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from fastapi import FastAPI, HTTPException, Request
from fastapi.responses import JSONResponse, RedirectResponse, Response
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Receive, Scope, Send

from sordino.errors import InvalidInput
from sordino.web.access import Gate, TokenFile
from sordino.web.event_stream import stream
from sordino.web.limits import Limits
from sordino.web.premises import PAGE, Premises, add_page, detail_answer, make_app
from sordino.web.server import serve_in_thread
from sordino.web.watched_run import RunView, WatchedRun
from sordino.wire.tls_address import TlsAddress, is_loopback

READ = ("GET", "HEAD")


@dataclass
class LiveSite(Premises):
    """One run that is watched, and who may."""

    run: WatchedRun
    gate: Gate
    limits: Limits = field(default_factory=lambda: Limits(connections=100, watching=200, places=10))
    page: Path = PAGE

    def __post_init__(self) -> None:
        self.open_doors()

    def shown_to(self, request: Request, name: str | None = None) -> RunView:
        """The run as whoever asks may see it; refused where they may not, or mean another one."""
        rights = self.gate.admit(request)
        if name is not None and name != self.run.name:
            raise HTTPException(404, f"no federation {name[:100]!r} is here; there is {self.run.name}")
        return self.run.seen_by(rights)


class ReadOnly:
    """Refuses every request that is not one to read."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in READ:
            answer = JSONResponse({"error": "this view is read-only"}, 405, {"Allow": ", ".join(READ)})
            await answer(scope, receive, send)
        else:
            await self._app(scope, receive, send)


def live_app(site: LiveSite) -> FastAPI:
    """The app: the routes of `sordino serve` that only read, of this one run."""
    app = make_app(site, middleware=[Middleware(ReadOnly)])

    @app.get("/api/federations")
    async def federations(request: Request) -> Response:
        return JSONResponse([site.shown_to(request).summary()])

    @app.get("/api/federations/{name}")
    async def federation(name: str, request: Request) -> Response:
        shown = site.shown_to(request, name)
        who, version = (shown.federation, shown.audience), shown.statement_changes
        long = {
            "history": site.encode((*who, "history"), shown.changes, shown.history),
            "statement": site.encode((*who, "statement"), version, shown.statement),
        }
        return detail_answer({**shown.summary(), "live": shown.live(), "task": None, "may_free": False}, long)

    @app.get("/api/federations/{name}/statement.json")
    async def statement(name: str, request: Request) -> Response:
        return JSONResponse(site.shown_to(request, name).statement())

    @app.get("/api/federations/{name}/events")
    async def events(name: str, request: Request, after: int | None = None) -> Response:
        return stream(site, request, name, lambda: site.shown_to(request, name), after=after, live=True)

    @app.get("/")
    async def home() -> Response:
        return RedirectResponse("/live")

    add_page(app, site)
    return app


@contextmanager
def serve_live(
    run: WatchedRun,
    host: str = "127.0.0.1",
    port: int = 0,
    tokens: str | Path | None = None,
    *,
    certificate: Path | None = None,
    key: Path | None = None,
) -> Iterator[str]:
    """Show a run at /live while the block lasts; the address comes back. Port 0 takes a free one.

    Without `tokens` whoever is at this machine sees everything, and nobody else anything. With a file of them
    (`sordino.web.access.make_tokens`) everybody needs one, and sees what its role may. `certificate` and `key` (PEM)
    make it HTTPS. Nothing can be changed from there, and neither errors of the view nor slow watchers reach the run. An
    error that leaves the block is shown as the run's end.
    """
    place = TlsAddress(host, port, certificate, key)
    if tokens is None and not is_loopback(host):
        raise InvalidInput(
            f"the live view at {host} would be open to nobody: give tokens for it (--live-tokens FILE), or listen at "
            "127.0.0.1"
        )
    site = LiveSite(run, Gate(None if tokens is None else TokenFile(tokens)))
    ending = threading.Event()
    with serve_in_thread(site, live_app(site), place, option="--live") as listening:
        accounting = threading.Thread(target=run.keep_statement, args=(ending,), name="statement so far", daemon=True)
        accounting.start()
        try:
            yield place.url(listening)
        except BaseException as error:
            run.failed(error)
            raise
        finally:
            ending.set()


__all__ = ["serve_live"]

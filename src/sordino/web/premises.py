"""What every server of pages has: the built page, limits for visitors, security headers, and one way to answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Hashable
from mimetypes import guess_type
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from fastapi import FastAPI, HTTPException, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException as AnyHttpError
from starlette.types import Receive, Scope, Send

from sordino.errors import InvalidInput
from sordino.web.access import Gate
from sordino.web.doorway import Doorway, room_for
from sordino.web.headers import SecurityHeaders
from sordino.web.limits import Limits, Watchers
from sordino.web.request_rate import RateLimit
from sordino.wire.codec import JsonObject

PAGE = Path(__file__).with_name("page")  #: what `make page` builds
PIECE = 2**16  #: bytes of a large answer that are sent at once
_FILE = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,120}")

NOT_BUILT = (
    "This server runs, but its web page was not built. In the folder of the source: make page (or npm ci and npm run "
    "build in web/), then start the server again.\nNative clients can join already: sordino join URL --data ... "
    "--budget ...\n"
)


class Premises:
    """A server's limits and page, who is inside, and answers on their way; call `open_doors` once these are set."""

    limits: Limits
    page: Path
    gate: Gate  #: who may see more than everybody, or anything
    doorway: Doorway
    watchers: Watchers
    stopping: bool
    encoded: dict[tuple[Hashable, ...], tuple[object, str]]  #: version and JSON of views
    answers: WeakValueDictionary[Hashable, Response]  #: on their way

    def open_doors(self) -> None:
        """Make room for visitors."""
        self.doorway = Doorway(self.limits, room_for(self.limits))
        self.watchers = Watchers(self.limits, self.doorway.room)
        self.stopping, self.encoded, self.answers = False, {}, WeakValueDictionary()

    @property
    def largest_message(self) -> int:
        """Bytes that any participant may send in one message."""
        return self.limits.text

    def encode(self, key: tuple[Hashable, ...], version: object, view: Callable[[], object]) -> str:
        """JSON of a view, made once for each version: whoever asks again and again costs little."""
        if self.encoded.get(key, (None, ""))[0] != version:
            self.encoded[key] = version, json.dumps(view(), allow_nan=False)
        return self.encoded[key][1]


def make_app(premises: Premises, **options: Any) -> FastAPI:
    """An app without routes, that limits how much an address may ask, and answers refusals as JSON."""
    app = FastAPI(title="Sordino", docs_url=None, redoc_url=None, openapi_url=None, **options)
    app.router.route_class = ReadRoute
    app.add_middleware(RateLimit, limits=premises.limits)
    app.add_middleware(SecurityHeaders)
    for kind in (AnyHttpError, RequestValidationError, InvalidInput):
        app.add_exception_handler(kind, _refused)
    return app


class ReadRoute(APIRoute):
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


# --- answers ----------------------------------------------------------------------------------------------------------


class InPieces(Response):
    """A large answer. What slow readers have not taken yet is there once, for all who are sent the same."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = list(self.raw_headers)
        await send({"type": "http.response.start", "status": self.status_code, "headers": headers})
        for first in range(0, len(self.body), PIECE):
            piece = bytes(self.body[first : first + PIECE])
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body"})


def detail_answer(short: JsonObject, long: dict[str, str]) -> Response:
    """A federation in full: what is made for whoever asks, and by name what is JSON already."""
    parts = (f', "{key}": {value}' for key, value in long.items())
    return InPieces(json.dumps(short, allow_nan=False)[:-1] + "".join(parts) + "}", media_type="application/json")


def file_answer(premises: Premises, path: Path, headers: dict[str, str]) -> Response:
    """A file in memory, once for all who are sent it: an open file for each of them would use up the descriptors."""
    state = path.stat()
    key = (path, state.st_mtime_ns, state.st_size, *headers.items())
    if (same := premises.answers.get(key)) is not None:
        return same
    kind = guess_type(path.name)[0] or "application/octet-stream"
    return premises.answers.setdefault(key, InPieces(path.read_bytes(), media_type=kind, headers=headers))


# --- the page ---------------------------------------------------------------------------------------------------------


def add_page(app: FastAPI, premises: Premises) -> None:
    """Routes of the built page."""

    @app.get("/")
    @app.get("/live")
    def page(request: Request) -> Response:  # in a thread: a file is read
        path = premises.page / ("live.html" if request.url.path == "/live" else "index.html")
        return file_answer(premises, path, {}) if path.is_file() else PlainTextResponse(NOT_BUILT, 503)

    @app.get("/assets/{name:path}")
    def asset(name: str) -> Response:
        found = _within(premises.page / "assets", name)
        return file_answer(premises, found, {"Cache-Control": "public, max-age=31536000, immutable"})

    @app.get("/{name}")
    def other(name: str) -> Response:
        return file_answer(premises, _within(premises.page, name), {"Cache-Control": "no-cache"})


def _within(folder: Path, name: str) -> Path:
    """A file of a folder, by plain names only."""
    parts = name.split("/")
    path = folder.joinpath(*parts)
    if not all(_FILE.fullmatch(part) for part in parts) or not path.is_file():
        raise HTTPException(404, "there is nothing here")
    return path


__all__ = ["PAGE", "InPieces", "Premises", "add_page", "detail_answer", "file_answer", "make_app"]

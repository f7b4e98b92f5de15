"""The shuffler over HTTP: it learns who sends and not what, and tells the server what was sent and not by whom.

    PUT    /v1/rounds/R                the server opens a round on its terms
    GET    /v1/rounds/R                anybody with a token: the terms, the server's key, how many are mixed, T
    POST   /v1/rounds/R/envelopes      a client's envelopes: durable when the answer comes
    GET    /v1/rounds/R/batches/C      the server: the batch of a class; 425 until it leaves, 410 when there is none
    DELETE /v1/rounds/R/batches/C      the server has it
    POST   /v1/rounds/R/batches/C/withdraw    the server waits for it no longer: it is deleted unopened
    PUT    /v1/latency                 a client proposes T

Nothing of a connection is logged or kept. A request is read only after its token was checked, and only up to a limit.
"""

from __future__ import annotations

import asyncio
import socket
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated

import uvicorn
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from fastapi import Depends, FastAPI, HTTPException, Request, Response
from fastapi import Path as InPath
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import JSONResponse, StreamingResponse
from pydantic.dataclasses import dataclass as pydantic_dataclass
from starlette.requests import ClientDisconnect

from sordino.errors import InvalidInput, SordinoError
from sordino.shuffler.envelopes import Body
from sordino.shuffler.store import Contradiction, EnvelopeStore, NoSuchRound, NotYet, Over, Unavailable
from sordino.shuffler.terms import STRICT, Terms, read_json
from sordino.storage.files import exclusive_lock, make_folder
from sordino.wire.tls_address import TlsAddress

MOST_TERMS_BYTES = 2**14
MOST_BODY_BYTES = 2**22
PATIENCE = 60.0  #: seconds that the body of a request may take
TICK = 0.2  #: seconds between two looks for batches that are due

Round = Annotated[int, InPath(ge=1, le=2**32 - 1)]
Class = Annotated[int, InPath(ge=0, le=255)]

_STATUS: dict[type[Exception], int] = {
    InvalidInput: 400, NoSuchRound: 404, Contradiction: 409, Over: 410, NotYet: 425, Unavailable: 503,
}  # fmt: skip


@dataclass
class RateLimiter:
    """Requests that each client may still make: `burst` at once, `requests` a second in the long run."""

    requests: float = 20.0
    burst: float = 200.0
    clock: Callable[[], float] = time.monotonic
    _left: dict[int, tuple[float, float]] = field(default_factory=dict)

    def spend(self, client: int) -> bool:
        """Whether a client may make one more request now."""
        now = self.clock()
        left, since = self._left.get(client, (self.burst, now))
        left = min(self.burst, left + (now - since) * self.requests)
        self._left[client] = (max(0.0, left - 1), now)
        return left >= 1


@pydantic_dataclass(frozen=True, config=STRICT)
class _Proposal:
    seconds: float


# --- what is asked ----------------------------------------------------------------------------------------------------


def build_app(store: EnvelopeStore, server_key: X25519PublicKey) -> FastAPI:
    """The service on a store."""

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        settling = asyncio.create_task(_settle_for_ever(store))
        yield
        settling.cancel()

    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None, lifespan=lifespan)
    for kind in (SordinoError, ClientDisconnect):
        app.add_exception_handler(kind, _refusal)
    doors, key = _Doors(store, RateLimiter()), server_key.public_bytes_raw().hex()
    of_server, of_client = [Depends(doors.server)], Depends(doors.client)
    terms_body, envelopes_body = Depends(_body(MOST_TERMS_BYTES)), Depends(_body(MOST_BODY_BYTES))

    @app.get("/v1/rounds/{round}", dependencies=[Depends(doors.anybody)])
    def announced(round: Round) -> dict[str, object]:
        held = store.round(round)
        return {"terms": asdict(held.terms), "key": key, "at_least": held.at_least, "latency": held.latency}

    @app.put("/v1/rounds/{round}", dependencies=of_server)
    def open_round(round: Round, body: bytes = terms_body) -> dict[str, object]:
        terms = Terms.from_json(body)
        if terms.round != round:
            raise InvalidInput(f"the terms are of round {terms.round}, and the address is of round {round}")
        store.announce(terms)
        return {"round": round}

    @app.post("/v1/rounds/{round}/envelopes")
    def take_in(round: Round, client: int = of_client, body: bytes = envelopes_body) -> dict[str, object]:
        return {"accepted": store.accept(round, client, Body.decode(body))}

    @app.get("/v1/rounds/{round}/batches/{group}", dependencies=of_server)
    def hand_out(round: Round, group: Class) -> Response:
        length, pieces = store.batch(round, group)
        headers = {"content-length": str(length)}
        return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)

    @app.delete("/v1/rounds/{round}/batches/{group}", dependencies=of_server)
    def taken(round: Round, group: Class) -> dict[str, object]:
        store.taken(round, group)
        return {"taken": True}

    @app.post("/v1/rounds/{round}/batches/{group}/withdraw", dependencies=of_server)
    def withdraw(round: Round, group: Class) -> dict[str, object]:
        store.withdraw(round, group)
        return {"withdrawn": True}

    @app.put("/v1/latency")
    def propose(client: int = of_client, body: bytes = terms_body) -> dict[str, object]:
        store.propose(client, read_json(_Proposal, body, "a proposal for T in JSON").seconds)
        return {"proposed": True}

    return app


async def _settle_for_ever(store: EnvelopeStore) -> None:
    while True:
        try:
            await run_in_threadpool(store.settle)
        except Unavailable as error:  # say so, and try again: nothing was lost
            print(f"batches could not be closed: {error.__cause__}", file=sys.stderr)
        await asyncio.sleep(TICK)


async def _refusal(_: Request, error: Exception) -> Response:
    if isinstance(error, ClientDisconnect):
        return Response(status_code=400)
    status = next((code for kind, code in _STATUS.items() if isinstance(error, kind)), 400)
    return JSONResponse({"detail": str(error)}, status)


@dataclass(frozen=True)
class _Doors:
    """Who may come in: checked before the body of a request is read."""

    store: EnvelopeStore
    limiter: RateLimiter

    async def server(self, request: Request) -> None:
        if not await run_in_threadpool(self.store.is_server, _token(request)):
            raise HTTPException(401, "this needs the server's token")

    async def client(self, request: Request) -> int:
        found = await run_in_threadpool(self.store.client_of, _token(request))
        if found is None:
            raise HTTPException(401, "this needs the token of a registered client")
        if not self.limiter.spend(found):
            raise HTTPException(429, "too many requests: send fewer and larger bodies, or wait")
        return found

    async def anybody(self, request: Request) -> None:
        if not await run_in_threadpool(self.store.is_server, _token(request)):
            await self.client(request)


def _body(most: int) -> Callable[[Request], Awaitable[bytes]]:
    """Reads the body of a request, as far as it keeps within `most` bytes and comes in time."""

    async def read(request: Request) -> bytes:
        body = bytearray()
        try:
            async with asyncio.timeout(PATIENCE):
                async for chunk in request.stream():
                    body += chunk
                    if len(body) > most:
                        raise HTTPException(413, f"a body of at most {most:,} bytes is read here")
        except TimeoutError:
            raise HTTPException(408, f"the body did not come within {PATIENCE:g} seconds") from None
        return bytes(body)

    return read


def _token(request: Request) -> str:
    kind, _, token = request.headers.get("authorization", "").partition(" ")
    return token if kind.lower() == "bearer" else ""


# --- the process ------------------------------------------------------------------------------------------------------


def serve(
    folder: Path, server_key: X25519PublicKey, at_least: int, address: TlsAddress, say: Callable[[str], None] = print
) -> None:
    """Run the service until it is stopped, over TLS unless this machine alone is served.

    One process at a time holds a folder.
    """
    if address.needs_tls:
        raise InvalidInput(
            f"listening on {address.host} needs --tls-cert and --tls-key: whoever reads the wire can tell the server "
            "which envelopes are whose"
        )
    make_folder(folder)
    with exclusive_lock(folder / "lock", f"the shuffler in {folder}"), EnvelopeStore(folder, at_least) as store:
        config = uvicorn.Config(
            build_app(store, server_key),
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http="h11",
            ws="none",
            lifespan="on",
            limit_concurrency=256,
            timeout_keep_alive=10,
            timeout_graceful_shutdown=10,
            ssl_certfile=address.certificate,
            ssl_keyfile=address.key,
        )
        with _listening(address) as listener:
            say(f"The shuffler listens on {address.scheme}://{address.host}:{listener.getsockname()[1]}")
            uvicorn.Server(config).run(sockets=[listener])


def _listening(address: TlsAddress) -> socket.socket:
    family = socket.AF_INET6 if ":" in address.host else socket.AF_INET
    try:
        return socket.create_server((address.host, address.port), family=family, backlog=256)
    except OSError as error:
        raise InvalidInput(f"cannot listen on {address.host}:{address.port} ({error.strerror})") from None


__all__ = ["RateLimiter", "build_app", "serve"]

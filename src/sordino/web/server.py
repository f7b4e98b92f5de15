"""Runs the app: listening, TLS, and an orderly end."""

from __future__ import annotations

import functools
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress

import uvicorn
from fastapi import FastAPI
from starlette.applications import Starlette

from sordino.errors import SordinoError
from sordino.web.app import Site, create_app
from sordino.web.doorway import GuardedHttp, GuardedWebSocket, Handshake
from sordino.web.premises import Premises
from sordino.wire.tls_address import TlsAddress

UNSENT = 60_000  #: milliseconds that sent bytes may wait for a peer that does not take them
UNSENT_BYTES = 2**17  #: that the system keeps for a peer: what waits beyond them is seen here
AT_ONCE = 16  #: connections that are accepted before the first of them is looked at
QUEUE = 4096  #: connections that wait to be accepted


class NotListening(SordinoError):
    """The server cannot listen where it was asked to."""


class GuardedServer(uvicorn.Server):
    """Accepts few at a time and has TLS begin in the doorway; tells event streams to end before it waits for them."""

    def __init__(self, config: uvicorn.Config, premises: Premises, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self._premises, self._ready = premises, ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        config = self.config
        if config.ssl is not None:
            guard = functools.partial(Handshake, doorway=self._premises.doorway, context=config.ssl)
            config.http_protocol_class, config.ssl = guard, None  # type: ignore[assignment]
        await super().startup(sockets)
        if self.started:
            for listening in sockets or ():
                listening.listen(QUEUE)
            self._ready()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._premises.stopping = True
        await super().shutdown(sockets)


def listen(place: TlsAddress, option: str = "--port or --host") -> socket.socket:
    """A listening socket; a peer that takes nothing for long is dropped by the system itself.

    `option` is what the command calls its address.
    """
    family = socket.AF_INET6 if ":" in place.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if hasattr(socket, "TCP_USER_TIMEOUT"):
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNSENT)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT_BYTES)
        listening.bind((place.host, place.port))
    except OSError as error:
        listening.close()
        raise NotListening(
            f"cannot listen at {place.host}:{place.port} ({error.strerror or error}): give another {option}"
        ) from None
    return listening


def config_for(site: Premises, app: Starlette, place: TlsAddress) -> uvicorn.Config:
    """The uvicorn settings of a site's app."""
    return uvicorn.Config(
        app,
        http=functools.partial(GuardedHttp, doorway=site.doorway),  # type: ignore[arg-type]
        loop="asyncio",  # uvloop loses TLS handshakes that begin with a paused transport (`Handshake`)
        ws=GuardedWebSocket,
        ws_max_size=site.largest_message + 2**16,
        ws_per_message_deflate=False,  # reports are random bits: nothing to gain, and memory to lose
        ws_ping_interval=site.limits.idle / 3,
        ws_ping_timeout=site.limits.idle,
        ssl_certfile=place.certificate,
        ssl_keyfile=place.key,
        log_level="error",  # what visitors send that cannot be read is a warning of uvicorn's, a line each
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=5,
        backlog=AT_ONCE,
    )


def serve(site: Site, place: TlsAddress, ready: Callable[[int], None]) -> None:
    """Serve until SIGINT or SIGTERM; `ready` is told the port when it can be reached."""
    with closing(listen(place)) as listening:
        port = listening.getsockname()[1]
        server = GuardedServer(config_for(site, create_app(site), place), site, lambda: ready(port))
        with suppress(KeyboardInterrupt), _ending_in_order():
            server.run(sockets=[listening])
        if not server.started:
            raise NotListening("the server could not start: what it said above is the reason")


@contextmanager
def serve_in_thread(
    premises: Premises, app: FastAPI, place: TlsAddress, *, option: str = "--port or --host"
) -> Iterator[int]:
    """Serve beside whatever else this process does, for as long as it is needed; the port comes back."""
    with closing(listen(place, option)) as listening:
        started = threading.Event()
        server = GuardedServer(config_for(premises, app, place), premises, started.set)
        thread = threading.Thread(target=server.run, args=([listening],), name="server of pages", daemon=True)
        thread.start()
        while thread.is_alive() and not started.wait(0.05):
            pass
        try:
            if not server.started:
                raise NotListening("the server could not start: what it said above is the reason")
            yield listening.getsockname()[1]
        finally:
            server.should_exit = True
            thread.join(60)


@contextmanager
def _ending_in_order() -> Iterator[None]:
    """Ignore the SIGTERM that uvicorn raises again once it has stopped."""
    before = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


__all__ = ["GuardedServer", "NotListening", "config_for", "listen", "serve", "serve_in_thread"]

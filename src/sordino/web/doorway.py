"""The doorway: every connection is counted here before anything is read of it, and has to be quick about its request.

uvicorn has no deadline for requests, and its WebSockets write without asking whether the peer takes anything; both are
added here, to the classes of the version that pyproject.toml names. Four rules (docs/serve.md has them in a table):

* A request has arrived within `Limits.request` seconds, headers and body together.
* A peer sends `Limits.frames` small WebSocket frames a second, pings and pongs among them; a stranger hardly any.
* A peer takes `Limits.slowest` bytes a second of what is sent to it, looked at every `Limits.sending` seconds.
* There is room for so many connections. Strangers (all without a proven identity) share one part of it: where it is
  full, the oldest stranger of the address that has most is cut off. The other part is for participants.
"""

from __future__ import annotations

import asyncio
import ssl
import sys
from collections.abc import Hashable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, cast

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol
from uvicorn.protocols.utils import get_remote_addr
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.frames import Frame
from websockets.protocol import State

from sordino.web.limits import Bucket, Limits, network

SPARE = 96  #: descriptors for files, and for connections that are accepted or closed in the same moment
FEWEST = 16  #: connections for which there is room in any case
LAST_WORDS = 5.0  #: seconds that a connection which has ended has for what was sent last
PIECE = 2**11  #: bytes that are read before it is looked at what they cost
SMALL = 2**10  #: bytes of a frame from which on it costs its sender more than this server
_TIMED_OUT = b"HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
_ARRIVED = (h11.DONE, h11.MUST_CLOSE, h11.CLOSED, h11.ERROR, h11.SWITCHED_PROTOCOL)


def room_for(limits: Limits) -> int:
    """Connections that fit into the limits and into the descriptors that the system lets this process have."""
    wanted = limits.connections + limits.watching
    return max(FEWEST, min(wanted, _descriptors(wanted + SPARE) - SPARE))


def _descriptors(wanted: int) -> int:
    """How many files this process may open; its own limit is raised as far as is wanted and allowed."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return wanted
    if soft < wanted:
        raised = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, raised), hard))
    return min(wanted, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


@dataclass(eq=False)
class Visit:
    """One connection, from its first byte to its last."""

    doorway: Doorway
    transport: asyncio.Transport
    address: str  #: as `network` counts it
    identity: Hashable = None  #: proven, of a participant; None of a stranger


class Doorway:
    """All open connections: strangers by address, oldest first, and participants by identity."""

    def __init__(self, limits: Limits, room: int) -> None:
        self.limits, self.room = limits, room
        self.most = min(limits.connections, room - max(1, room // 8))  #: participants
        self._reserve = min(room // 2, self.most)  # of the room, for participants alone
        self._strangers: dict[str, dict[Visit, None]] = {}
        self._participants: dict[Hashable, Visit] = {}
        self.strangers = 0  #: connections that have proven no identity

    @property
    def participants(self) -> int:
        """How many connections have proven an identity."""
        return len(self._participants)

    def enter(self, transport: asyncio.Transport, address: str) -> Visit:
        """Count a new connection; where strangers have no room left, one of them is cut off for it."""
        visit = Visit(self, transport, network(address))
        while self.strangers >= self.room - max(self._reserve, len(self._participants)):
            self._cut_one_off()
        self._add(visit)
        return visit

    def identify(self, visit: Visit, identity: Hashable) -> bool:
        """Whether there is room for a participant. It is a stranger no more; each identity has one connection."""
        if visit not in self._strangers.get(visit.address, ()):
            return True  # it is being cut off
        before = self._participants.pop(identity, None)
        if before is None and len(self._participants) >= self.most:
            return False
        self._drop(visit)
        self._participants[identity], visit.identity = visit, identity
        if before is not None:
            before.identity = None
            self._add(before)
        return True

    def leave(self, visit: Visit) -> None:
        """Forget a connection; one that is forgotten already is no matter."""
        if visit.identity is not None:
            del self._participants[visit.identity]
            visit.identity = None
        else:
            self._drop(visit)

    def _cut_one_off(self) -> None:
        most = max(self._strangers.values(), key=len)
        oldest = next(iter(most))
        self._drop(oldest)
        oldest.transport.abort()

    def _add(self, visit: Visit) -> None:
        self._strangers.setdefault(visit.address, {})[visit] = None
        self.strangers += 1

    def _drop(self, visit: Visit) -> None:
        own = self._strangers.get(visit.address, {})
        if visit in own:
            del own[visit]
            self.strangers -= 1
            if not own:
                del self._strangers[visit.address]


class _Outlet:
    """Cuts a connection off when its peer takes too little of what was written."""

    def __init__(self, transport: asyncio.Transport, limits: Limits) -> None:
        self._transport, self._seconds = transport, limits.sending
        self._enough = limits.slowest * limits.sending
        self._unsent = 0
        self._clock: asyncio.TimerHandle | None = None

    def fill(self) -> None:
        """More waits than the system takes: look whether the peer takes it."""
        self._unsent = self._transport.get_write_buffer_size()
        self._clock = asyncio.get_running_loop().call_later(self._seconds, self._look)

    def _look(self) -> None:
        if self._unsent - self._transport.get_write_buffer_size() < self._enough:
            self._clock = None
            self._transport.abort()
        else:
            self.fill()

    def drain(self) -> None:
        """Little waits, or the connection is over."""
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None


class GuardedHttp(H11Protocol):
    """HTTP with a clock for each request, and one for each answer."""

    visit: Visit

    def __init__(self, *, doorway: Doorway, **options: Any) -> None:
        super().__init__(**options)
        self._doorway = doorway
        self._clock: asyncio.TimerHandle | None = None
        self._body = 0  # bytes of a body that is not whole

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Count the connection, and wait for its first request."""
        if not hasattr(self, "visit"):
            self.visit = self._doorway.enter(transport, _address(transport))
        super().connection_made(transport)
        self._outlet = _Outlet(transport, self._doorway.limits)
        self._expect()

    def data_received(self, data: bytes) -> None:
        """Go on with a request, or begin one."""
        self._expect()
        for first in range(0, len(data), PIECE):
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                return
            self._read(data[first : first + PIECE])
        if self.conn.their_state in _ARRIVED:
            self._stop_clock()

    def _read(self, piece: bytes) -> None:
        """Read on; a body may consist of thousands of empty chunks, and nothing here takes a long one."""
        super().data_received(piece)
        self._body = self._body + len(piece) if self.conn.their_state is h11.SEND_BODY else 0
        if self._body > self._doorway.limits.body:
            self.visit.transport.abort()

    def on_response_complete(self) -> None:
        """Wait for the next request; how long for its first byte is uvicorn's own clock."""
        super().on_response_complete()
        if self.conn.their_state is h11.IDLE:
            self._stop_clock()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        """Hand the connection on, with its visit in the state that the app sees; uvicorn reads ASCII headers alone."""
        self._stop_clock()
        if not all(value.isascii() for _, value in self.headers):
            self.send_400_response("The headers of an upgrade are ASCII.")
            return
        self.app_state = {**self.app_state, "visit": self.visit}
        super().handle_websocket_upgrade(event)

    def send_400_response(self, msg: str) -> None:
        """Say that a request cannot be read, unless an answer has begun: then there is nothing to say it with."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # what the app says from now on is said to nobody
            self.cycle.message_event.set()
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.close()

    def pause_writing(self) -> None:
        """Watch a peer that takes less than is sent."""
        super().pause_writing()
        self._outlet.fill()

    def resume_writing(self) -> None:
        """It has taken what there was."""
        super().resume_writing()
        self._outlet.drain()

    def shutdown(self) -> None:
        """End when the server does; a connection that has broken off is only closed."""
        if self.conn.our_state is h11.ERROR:
            self.transport.close()
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Free its room."""
        self._stop_clock()
        self._outlet.drain()
        self._doorway.leave(self.visit)
        super().connection_lost(exc)

    def _expect(self) -> None:
        if self._clock is None:
            self._clock = self.loop.call_later(self._doorway.limits.request, self._time_out)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
            self._clock = None

    def _time_out(self) -> None:
        self._clock = None
        if not self.transport.is_closing():
            if self.conn.our_state is h11.IDLE:
                self.transport.write(_TIMED_OUT)
            self.transport.close()
            self.loop.call_later(LAST_WORDS, self.transport.abort)


class GuardedWebSocket(WebSocketsSansIOProtocol):
    """A WebSocket that counts frames, waits before it writes more, and notices when nobody is there any longer."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._visit: Visit = self.app_state["visit"]
        limits = self._visit.doorway.limits
        self._outlet = _Outlet(self._visit.transport, limits)
        self._frames = Bucket(limits.frames, limits.frames_burst)
        self._first_frames = Bucket(limits.first_frames / limits.hello, limits.first_frames)  # of a stranger
        self._pong = b""  # the last one that waits
        self._heard = self.loop.time()

    def pause_writing(self) -> None:
        """Let whoever sends wait: uvicorn's own never does."""
        self.writable.clear()
        self._outlet.fill()

    def resume_writing(self) -> None:
        """Go on sending."""
        self._outlet.drain()
        if self._pong:
            self.transport.write(self._pong)
            self._pong = b""
        self.writable.set()

    def shutdown(self) -> None:
        """End when the server does; a connection that is ending already has had its last words."""
        if self.handshake_complete and self.conn.state is not State.OPEN:
            self.stop_keepalive()
            self.transport.close()
        else:
            super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Free its room, and let nobody wait for it any longer."""
        self._outlet.drain()
        self._visit.doorway.leave(self._visit)
        super().connection_lost(exc)
        self.writable.set()

    def data_received(self, data: bytes) -> None:
        """Note that somebody is there, and read on in pieces: a read may hold tens of thousands of empty frames."""
        self._heard = self.loop.time()
        for first in range(0, len(data), PIECE):
            if self.conn.parser_exc is None and not self.transport.is_closing():
                super().data_received(data[first : first + PIECE])

    def handle_events(self) -> None:
        """Count the frames that came; whoever sends too many is cut off before any of these is looked at."""
        bucket = self._first_frames if self._visit.identity is None else self._frames
        frames = (event for event in self.conn.events if isinstance(event, Frame))
        if all(len(frame.data) >= SMALL or bucket.take() for frame in frames):
            super().handle_events()
        else:
            self._visit.transport.abort()

    def handle_ping(self) -> None:
        """Answer a ping; while nothing is taken, the last one only, or they would pile up."""
        if self.writable.is_set():
            super().handle_ping()
        else:
            self._pong = b"".join(self.conn.data_to_send())

    def keepalive_timeout(self) -> None:
        """End the connection if nothing was heard for so long, while this side listened and nothing was on its way."""
        assert self.ping_timeout is not None
        silence = self.loop.time() - self._heard
        if self.read_paused or not self.writable.is_set() or silence < self.ping_timeout:
            wait = max(self.ping_timeout - silence, self.ping_timeout / 4)
            self.pong_timer = self.loop.call_later(wait, self.keepalive_timeout)
            return
        super().keepalive_timeout()
        self.transport.abort()  # who answers no ping takes no last words either

    def send_receive_event_to_app(self) -> None:
        """Hand a message to the app; a text that is none ends the connection, without a word in the log."""
        if self.curr_msg_data_type == "text":
            try:
                self.bytes.decode()
            except UnicodeDecodeError:
                self.conn.fail(1007)
                self.handle_parser_exception()
                return
        super().send_receive_event_to_app()

    async def send(self, message: Any) -> None:
        """Send what the app says; a denial completes the handshake, which uvicorn does not note.

        What is sent in bytes is a request: its response is not charged to the frames.
        """
        await super().send(message)
        if message.get("bytes") is not None:
            self._frames.note(-1)
        if self.initial_response is not None and self.close_sent:
            self.handshake_complete = True

    async def run_asgi(self) -> None:
        """Run the app; what nobody takes after its end is dropped."""
        await super().run_asgi()
        if self.transport.get_write_buffer_size():
            self.loop.call_later(LAST_WORDS, self.transport.abort)


class _Secured:
    """TLS over a plain transport, as uvicorn needs it; what is not here is the TLS transport's own.

    asyncio's own forgets its state when it is closed twice, which uvicorn does. And it hands on all that is written to
    the plain transport at once, so that nobody hears that the peer takes nothing: what waits is the plain one's.
    """

    def __init__(self, plain: asyncio.Transport, tls: asyncio.Transport) -> None:
        self._plain, self._tls = plain, tls
        tls.set_write_buffer_limits(high=sys.maxsize)  # the plain transport's limits count
        plain.set_protocol(_Pressure(cast(asyncio.BufferedProtocol, plain.get_protocol()), tls))

    def __getattr__(self, name: str) -> object:
        return getattr(self._tls, name)

    def get_write_buffer_size(self) -> int:
        """Bytes that the system has not taken yet."""
        return self._plain.get_write_buffer_size()

    def is_closing(self) -> bool:
        """Whether it was closed, by either side."""
        return self._plain.is_closing() or self._tls.is_closing()

    def close(self) -> None:
        """Send what waits, and close; once."""
        if not self._tls.is_closing():
            self._tls.close()

    def abort(self) -> None:
        """Close at once."""
        self._plain.abort()


class _Pressure(asyncio.BufferedProtocol):
    """Between the plain transport and TLS: when the peer takes nothing, whoever writes to TLS hears it too."""

    def __init__(self, inner: asyncio.BufferedProtocol, tls: asyncio.Transport) -> None:
        self._inner, self._tls = inner, tls
        for name in ("get_buffer", "buffer_updated", "eof_received", "connection_lost"):
            setattr(self, name, getattr(inner, name))

    def pause_writing(self) -> None:
        """Tell both that much waits to be sent."""
        self._inner.pause_writing()
        self._tls.get_protocol().pause_writing()

    def resume_writing(self) -> None:
        """Little waits; TLS comes last, since it may write what was encrypted meanwhile, and so much waits again."""
        self._tls.get_protocol().resume_writing()
        self._inner.resume_writing()


class Handshake(asyncio.Protocol):
    """TLS: a connection is counted before its handshake, which has to be as quick as a request."""

    def __init__(self, *, doorway: Doorway, context: ssl.SSLContext, **options: Any) -> None:
        self._doorway, self._context, self._options = doorway, context, options
        self._early = bytearray()  # what came with the last of the handshake

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Count the connection, and begin."""
        plain = cast(asyncio.Transport, transport)
        plain.pause_reading()  # the first bytes are for TLS
        self._visit = self._doorway.enter(plain, _address(plain))
        self._task = asyncio.get_running_loop().create_task(self._secure(plain))

    def data_received(self, data: bytes) -> None:
        """Keep what comes before it is handed on."""
        self._early += data

    def connection_lost(self, exc: Exception | None) -> None:
        """Free its room."""
        self._doorway.leave(self._visit)

    async def _secure(self, plain: asyncio.Transport) -> None:
        seconds = self._doorway.limits.request
        try:
            secured = await asyncio.get_running_loop().start_tls(
                plain, self, self._context, server_side=True, ssl_handshake_timeout=seconds,
                ssl_shutdown_timeout=LAST_WORDS,
            )  # fmt: skip
        except (OSError, EOFError):  # no TLS, or too slow: ssl.SSLError and TimeoutError are among them
            secured = None
        if secured is None or secured.is_closing():
            self._doorway.leave(self._visit)
            plain.abort()
            return
        http = GuardedHttp(doorway=self._doorway, **self._options)
        http.visit = self._visit
        http.connection_made(cast(asyncio.Transport, _Secured(plain, secured)))
        secured.set_protocol(http)
        if self._early:
            http.data_received(bytes(self._early))


def _address(transport: asyncio.Transport) -> str:
    found = get_remote_addr(transport)
    return "" if found is None else found[0]


__all__ = ["Doorway", "GuardedHttp", "GuardedWebSocket", "Handshake", "Visit", "room_for"]

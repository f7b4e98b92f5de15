"""What goes through the client's socket: frames of a length and a body, a request answered by a response.

    frame      length u32 | body
    request    "SQ" | version u8 | what u8 | blob: step | payload
    response   "SA" | version u8 | fine u8 | blobs: reason, receipt | payload

A step is one of a channel's, such as `report`; the payload is a plan, an answer, an invitation or a receipt.
"""

from __future__ import annotations

import socket
import time
from dataclasses import dataclass
from enum import IntEnum

from sordino.errors import InvalidInput, SordinoError
from sordino.wire.codec import LENGTH_BYTES, Layout, join, read_numbers, text

LARGEST = 2**28  #: bytes of a frame, unless said otherwise
_PIECE = 2**16


class Closed(SordinoError):
    """The other end closed the connection between two frames."""


class What(IntEnum):
    """What a request asks for."""

    HELLO = 1  #: who is there
    JOIN = 2  #: the payload is an invitation
    STEP = 3  #: the payload is a step's message: a plan, most often
    RECEIPT = 4  #: the step is a federation's name, the payload what the server received


_REQUEST = Layout(b"SQ", "a request", kinds=What, blobs=1)
_RESPONSE = Layout(b"SA", "a response", kinds=(False, True), blobs=2)


@dataclass(frozen=True)
class Request:
    """What a relay hands in."""

    what: What
    step: str = ""
    payload: bytes = b""

    def encode(self) -> bytes:
        """The body of a frame."""
        return _REQUEST.pack(kind=self.what, blobs=[self.step.encode()], rest=self.payload)

    @classmethod
    def decode(cls, body: bytes) -> Request:
        """The request that `encode` wrote; anything else is refused."""
        what, _, (step,), payload = _REQUEST.unpack(body)
        return cls(What(what), text(step, "a request"), bytes(payload))


@dataclass(frozen=True)
class Response:
    """What a relay takes out; without `fine`, the reason says why not."""

    fine: bool
    payload: bytes = b""
    reason: str = ""
    receipt: bytes = b""

    def encode(self) -> bytes:
        """The body of a frame."""
        return _RESPONSE.pack(kind=self.fine, blobs=(self.reason.encode(), self.receipt), rest=self.payload)

    @classmethod
    def decode(cls, body: bytes) -> Response:
        """The response that `encode` wrote; anything else is refused."""
        fine, _, (reason, receipt), payload = _RESPONSE.unpack(body)
        return cls(bool(fine), bytes(payload), text(reason, "a response"), receipt)


def send(connection: socket.socket, body: bytes) -> None:
    """Send one frame; the connection's timeout is for all of it."""
    connection.sendall(join(body))


def receive(connection: socket.socket, largest: int = LARGEST) -> bytes:
    """Receive one frame; memory grows with what has arrived, not with what was announced.

    The connection's timeout is for the whole frame: a peer that sends it byte by byte has no longer than any other.
    """
    timeout = connection.gettimeout()
    until = None if timeout is None else time.monotonic() + timeout
    try:
        (length,) = read_numbers(_exactly(connection, LENGTH_BYTES, until), "a frame")
        if length > largest:
            raise InvalidInput(f"a frame of {length:,} bytes was announced; {largest:,} are the most")
        return _exactly(connection, length, until)
    finally:
        connection.settimeout(timeout)


def _exactly(connection: socket.socket, count: int, until: float | None) -> bytes:
    found = bytearray()
    while len(found) < count:
        if until is not None:
            if (left := until - time.monotonic()) <= 0:
                raise TimeoutError("a frame did not arrive whole in its time")
            connection.settimeout(left)
        piece = connection.recv(min(_PIECE, count - len(found)))
        if not piece:
            raise Closed("the connection was closed" + (" in the middle of a frame" if found else ""))
        found += piece
    return bytes(found)


__all__ = ["LARGEST", "Closed", "Request", "Response", "What", "receive", "send"]

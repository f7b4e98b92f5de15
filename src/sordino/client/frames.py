"""What goes through the client's socket: frames of a length and a body, a request answered by a response.

    frame      length u32 | body                                          little-endian, as everything here
    request    "SQ" | version u8 | what u8 | length of the step u8 | step | payload
    response   "SA" | version u8 | fine u8 | length of the reason u16 | of the receipt u16 | reason | receipt | payload

A step is one of a channel's, such as `report`; the payload is a plan, an answer, an invitation or a receipt.
"""

from __future__ import annotations

import socket
import struct
import time
from dataclasses import dataclass
from enum import IntEnum

from sordino.errors import InvalidInput, SordinoError

VERSION = 1
LARGEST = 2**28  #: bytes of a frame, unless said otherwise
_LENGTH = struct.Struct("<I")
_REQUEST = struct.Struct("<2sBBB")
_RESPONSE = struct.Struct("<2sBBHH")
_PIECE = 2**16


class Closed(SordinoError):
    """The other end closed the connection between two frames."""


class What(IntEnum):
    """What a request asks for."""

    HELLO = 1  #: who is there
    JOIN = 2  #: the payload is an invitation
    STEP = 3  #: the payload is a step's message: a plan, most often
    RECEIPT = 4  #: the step is a federation's name, the payload what the server received


@dataclass(frozen=True)
class Request:
    """What a relay hands in."""

    what: What
    step: str = ""
    payload: bytes = b""

    def encode(self) -> bytes:
        """The body of a frame."""
        step = self.step.encode()
        return _REQUEST.pack(b"SQ", VERSION, self.what, len(step)) + step + self.payload

    @classmethod
    def decode(cls, body: bytes) -> Request:
        """The request that `encode` wrote; anything else is refused."""
        if len(body) < _REQUEST.size:
            raise InvalidInput("a request was cut off")
        magic, version, what, length = _REQUEST.unpack_from(body)
        _check_head(magic, b"SQ", version)
        start = _REQUEST.size + length
        if what not in set(What) or start > len(body):
            raise InvalidInput("a request of an unknown kind, or cut off")
        return cls(What(what), _text(body[_REQUEST.size : start]), bytes(body[start:]))


@dataclass(frozen=True)
class Response:
    """What a relay takes out; without `fine`, the reason says why not."""

    fine: bool
    payload: bytes = b""
    reason: str = ""
    receipt: bytes = b""

    def encode(self) -> bytes:
        """The body of a frame."""
        reason = self.reason.encode()
        head = _RESPONSE.pack(b"SA", VERSION, self.fine, len(reason), len(self.receipt))
        return b"".join((head, reason, self.receipt, self.payload))

    @classmethod
    def decode(cls, body: bytes) -> Response:
        """The response that `encode` wrote; anything else is refused."""
        if len(body) < _RESPONSE.size:
            raise InvalidInput("a response was cut off")
        magic, version, fine, reason, receipt = _RESPONSE.unpack_from(body)
        _check_head(magic, b"SA", version)
        middle, start = _RESPONSE.size + reason, _RESPONSE.size + reason + receipt
        if fine > 1 or start > len(body):
            raise InvalidInput("a response is damaged or was cut off")
        return cls(bool(fine), bytes(body[start:]), _text(body[_RESPONSE.size : middle]), bytes(body[middle:start]))


def _text(raw: bytes) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidInput("a text in a frame is not UTF-8") from None


def _check_head(magic: bytes, expected: bytes, version: int) -> None:
    if magic != expected:
        raise InvalidInput("these are not the words of a client's socket")
    if version != VERSION:
        raise InvalidInput(f"the other end speaks version {version} of the socket's words, here it is {VERSION}")


def send(connection: socket.socket, body: bytes) -> None:
    """Send one frame; the connection's timeout is for all of it."""
    connection.sendall(_LENGTH.pack(len(body)) + body)


def receive(connection: socket.socket, largest: int = LARGEST) -> bytes:
    """Receive one frame; memory grows with what has arrived, not with what was announced.

    The connection's timeout is for the whole frame: a peer that sends it byte by byte has no longer than any other.
    """
    timeout = connection.gettimeout()
    until = None if timeout is None else time.monotonic() + timeout
    try:
        (length,) = _LENGTH.unpack(_exactly(connection, _LENGTH.size, until))
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

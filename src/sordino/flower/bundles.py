"""What a Flower message carries: frames of the client's socket, one after the other, as one flat array of bytes.

    bundle     blobs                            each a request, or on the way back a response

The array holds what is the same for many clients, so that it is stored and sent to a SuperLink once; a few frames of a
client's own may come before it (its receipt, its invitation). A reply has the responses in the order of the requests,
and fewer of them where the client's process could not be reached or broke off.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sordino.errors import InvalidInput
from sordino.wire.codec import Buffer, split
from sordino.wire.requests import Response

if TYPE_CHECKING:
    from flwr.app import ArrayRecord, Message, RecordDict

MOST = 16  #: frames of a bundle

ARRAYS, ARRAY = "sordino", "frames"  #: where the array lies in a message
OWN, BEFORE = "sordino-own", "before"  #: where a client's own frames lie


def unpack(bundle: bytes) -> list[bytes]:
    """The frames of a bundle; anything else is refused."""
    found: list[bytes] = []
    rest: Buffer = bundle
    while len(rest):
        if len(found) == MOST:
            raise InvalidInput(f"a bundle has at most {MOST} frames: this one has more")
        (body,), rest = split(rest, 1, "a bundle of frames")
        found.append(body)
    return found


def responses(bundle: bytes) -> list[Response]:
    """The responses in a reply."""
    return [Response.decode(body) for body in unpack(bundle)]


def array(data: bytes, name: str = ARRAY) -> ArrayRecord:
    """Bytes as one flat array, which several messages can share."""
    from flwr.app import Array, ArrayRecord

    return ArrayRecord({name: Array(np.frombuffer(data, np.uint8))})


def array_in(content: RecordDict, record: str = ARRAYS, name: str = ARRAY) -> bytes:
    """The bytes that `array` wrote; whatever else the other end sent is refused."""
    try:
        found = content[record][name].numpy()  # type: ignore[union-attr]
    except Exception as error:  # Flower's own reading of it may fail in many ways
        raise InvalidInput(f"a message holds no flat array of bytes ({type(error).__name__})") from None
    if not isinstance(found, np.ndarray) or found.dtype != np.uint8 or found.ndim != 1:  # an archive is no array at all
        raise InvalidInput(f"a message holds a {type(found).__name__} where one flat array of bytes should be")
    return found.tobytes()


def content(shared: ArrayRecord, before: bytes = b"") -> RecordDict:
    """The content of a message: the array, and the frames that one client alone is sent first."""
    from flwr.app import ConfigRecord, RecordDict

    found = RecordDict({ARRAYS: shared})
    if before:
        found[OWN] = ConfigRecord({BEFORE: before})
    return found


def bundle_in(message: Message) -> bytes:
    """The frames of a message, a client's own first; what is no flat array of bytes is refused."""
    if not message.has_content():
        raise InvalidInput("a message without content")
    own = message.content.config_records[OWN].get(BEFORE) if OWN in message.content.config_records else b""
    if not isinstance(own, bytes):
        raise InvalidInput(f"a message holds a {type(own).__name__} where a client's own frames should be")
    return own + array_in(message.content)


__all__ = ["MOST", "array", "array_in", "bundle_in", "content", "responses", "unpack"]

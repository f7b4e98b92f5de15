"""The relay: Flower's `ClientApp`, which hands bytes to the owner's client and takes bytes back. Nothing else.

It sees no records, draws nothing and decides nothing. Where the client listens is the owner's own setting of the node
(`flower-supernode --node-config 'sordino-socket="/run/clinic.sock"'`); nothing that a server sends names a path.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from sordino.errors import InvalidInput
from sordino.flower import bundles, require
from sordino.wire import requests
from sordino.wire.codec import join

require()

from flwr.app import Context, Message  # noqa: E402 (after what says that it is missing)
from flwr.clientapp import ClientApp  # noqa: E402

SOCKET = "sordino-socket"  #: the setting of the node that names the client's socket
CONNECTING = 10.0  #: seconds until the client's process must have accepted a connection

app = ClientApp()


@app.query()
def relay(message: Message, context: Context) -> Message:
    """Hand the requests of a message to the owner's client; the reply has as many responses as it gave."""
    bodies = bundles.unpack(bundles.bundle_in(message))
    answers = relayed(_socket(context), bodies, message.metadata.ttl)
    return Message(bundles.content(bundles.array(join(*answers))), reply_to=message)


def relayed(path: Path, bodies: Sequence[bytes], seconds: float) -> list[bytes]:
    """The responses to these requests, in order; they end where the client cannot be reached, breaks off or is late."""
    found: list[bytes] = []
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
        try:
            connection.settimeout(CONNECTING)
            connection.connect(str(path))
            until = time.monotonic() + seconds
            for body in bodies:
                connection.settimeout(max(0.01, until - time.monotonic()))
                requests.send(connection, body)
                found.append(requests.receive(connection))
        except (OSError, requests.Closed) as error:
            print(f"the client at {path} cannot be reached ({error}): start it with sordino client serve")
    return found


def _socket(context: Context) -> Path:
    path = context.node_config.get(SOCKET)
    if not isinstance(path, str) or not path:
        raise InvalidInput(
            f"this node does not say where its owner's client listens: start it with flower-supernode --node-config "
            f"'{SOCKET}=\"/path/of/the.sock\"'"
        )
    return Path(path)


__all__ = ["SOCKET", "app", "relayed"]

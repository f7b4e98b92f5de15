"""A grid without a network: nodes of this process, each with its own client behind its own socket."""

import io
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import Context, Error, Message, RecordDict
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from sordino.client.client import Client
from sordino.client.socket_service import Service
from sordino.flower.client_app import app as relay
from sordino.wire.requests import Request, Response

ONE_AT_A_TIME = threading.Lock()  #: clients of one process share PyTorch's generator, and training notices


class Served:
    """A client's service in a thread, as `sordino client serve` runs it in a process."""

    def __init__(self, client: Client, path: Path) -> None:
        self.client, self.path = client, path
        self._service = Service(client, path)
        self._service._listening.settimeout(0.05)
        plain = self._service.respond

        def respond(request: Request) -> Response:
            with ONE_AT_A_TIME:
                return plain(request)

        self._service.respond = respond
        self._thread = threading.Thread(target=self._service.serve, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._service.stop()
        self._thread.join()
        self.client.close()


class LocalGrid(Grid):
    """Hands each message to the relay in a thread; nodes can vanish, come back and keep silent."""

    def __init__(
        self, settings: Mapping[int, Mapping[str, str | int]], app: Callable[[Message, Context], Message] = relay
    ) -> None:
        TaskIdentity.run_id, TaskIdentity.task_id, TaskIdentity.node_id = 1, 1, 1  # as in a ServerApp's process
        self._app = app
        self.nodes = {node: dict(own) for node, own in settings.items()}  #: the settings of each
        self.since = dict.fromkeys(self.nodes, "1")
        self.names: dict[int, str] = {}  #: under which nodes were registered
        self.silent: set[int] = set()  #: nodes that take messages and whose replies are held back
        self.held: list[tuple[str, Message]] = []
        self.pushed: list[Message] = []
        self._replies: dict[str, Message] = {}

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any: ...

    def create_message(self, *given: Any, **more: Any) -> Message:
        raise AssertionError("nothing of ours asks a grid for this")

    def send_and_receive(self, *given: Any, **more: Any) -> Iterable[Message]:
        raise AssertionError("nothing of ours asks a grid for this")

    def get_node_ids(self) -> Iterable[int]:
        return list(self.nodes)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [
            NodeInfo(node_id=node, last_activated_at=self.since[node], name=self.names.get(node)) for node in self.nodes
        ]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        return [self._pushed(message) for message in messages]

    def _pushed(self, message: Message) -> str:
        name = uuid.uuid4().hex
        message.metadata.__dict__["_message_id"] = name
        self.pushed.append(message)
        threading.Thread(target=self._handle, args=(message, name), daemon=True).start()
        return name

    def _handle(self, message: Message, name: str) -> None:
        node = message.metadata.dst_node_id
        if node not in self.nodes:
            return
        try:
            reply = self._app(message, Context(1, node, self.nodes[node], RecordDict(), {}))
        except Exception as error:
            reply = Message(Error(code=4, reason=str(error)), reply_to=message)
        if node in self.silent:
            self.held.append((name, reply))
        else:
            self._replies[name] = reply

    def let_go(self) -> None:
        """Hand out what was held back."""
        self.silent.clear()
        self._replies.update(self.held)
        self.held.clear()

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        return [self._replies.pop(name) for name in list(message_ids) if name in self._replies]


def archive() -> bytes:
    """What numpy reads as a collection of arrays, and not as one."""
    file = io.BytesIO()
    np.savez(file, frames=np.zeros(4, np.uint8))
    return file.getvalue()


def until(what: Any, seconds: float = 60.0) -> None:
    """Wait for something to become true."""
    end = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < end, "it did not become true in time"
        time.sleep(0.01)

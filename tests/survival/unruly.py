"""Real clients in threads, each at its own socket; some of them behave otherwise in some rounds."""

import shutil
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from sordino.client.client import Client
from sordino.client.socket_service import Service
from sordino.privacy.history import ranges
from sordino.recipe import Recipe
from sordino.runs.federation import wire
from sordino.wire import requests
from sordino.wire.requests import Request, Response, What
from sordino.wire.signing import Envelope
from tests.client import people
from tests.client.people import NAME

Behaviour = Callable[[socket.socket, Request, Response], None]  #: sends the response, or something else


def honest(connection: socket.socket, request: Request, response: Response) -> None:
    requests.send(connection, response.encode())


class Unruly(Service):
    """A real client whose answers to plans go through somebody's hands; each round may have its own behaviour."""

    def __init__(self, client: Client, path: Path, behaviours: dict[int, Behaviour]) -> None:
        super().__init__(client, path)
        self._behaviours = behaviours
        self.asked: list[int] = []  # rounds, as often as they were asked for

    def _attend(self, connection: socket.socket) -> None:
        try:
            with connection, suppress(OSError, requests.Closed):
                request = Request.decode(requests.receive(connection))
                behave = honest
                if request.what is What.STEP:
                    round = Envelope.decode(request.payload).round
                    self.asked.append(round)
                    behave = self._behaviours.get(round, honest)
                with self._turn:
                    response = self.respond(request)
                behave(connection, request, response)
        finally:
            self._connections.remove(connection)


@contextmanager
def clients(
    recipe: Recipe, behaviours: dict[int, dict[int, Behaviour]], allowed: str = NAME
) -> Iterator[tuple[Path, list[Unruly]]]:
    """All clients of a recipe, each at its socket, joining federations of the name that is allowed."""
    place = Path(tempfile.mkdtemp(prefix="sdo-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, place)
        services = []
        for number, part in enumerate(wire(recipe).parts):
            client = people.client(place / str(number), people.settings(ranges(part), federations=[allowed]))
            stack.enter_context(client)
            service = Unruly(client, place / f"{number}.sock", behaviours.get(number, {}))
            thread = threading.Thread(target=service.serve)
            thread.start()
            stack.callback(thread.join)
            services.append(service)
        for service in services:
            stack.callback(service.stop)  # all of them, before the first is waited for
        yield place, services

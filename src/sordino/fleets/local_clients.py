"""Real clients on the same machine: each a process of its owner's, behind a socket of its own.

For tests and small federations on one host. The coordinator asks as it asks any fleet; a client that has died is asked
again until it is back or its time is up, and gives the very answer that it had recorded.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections.abc import Generator, Mapping
from contextlib import closing, suppress
from pathlib import Path

from sordino.client import frames
from sordino.client.frames import Request, Response, What
from sordino.errors import InvalidInput, SordinoError
from sordino.messages import Plan

AGAIN = 0.1  #: seconds until a client that cannot be reached is tried again
LONGEST_WAIT = 3600.0  #: seconds for an answer where no deadline is set


class NoAnswer(SordinoError):
    """A client could not be reached, or did not answer in time."""


class SocketFleet:
    """Clients by their sockets. A client that cannot be reached is tried again for `patience` seconds."""

    def __init__(
        self, sockets: Mapping[int, str | Path], *, receipts: Mapping[int, bytes] | None = None, patience: float = 20.0
    ) -> None:
        self._sockets = {client: Path(path) for client, path in sockets.items()}
        self._patience = patience
        #: the last receipt of each client: what the server keeps, and hands back when it invites again
        self.receipts: dict[int, bytes] = dict(receipts or {})
        self.reasons: dict[int, str] = {}  #: why clients refused, in the last exchange

    def invite(self, invitations: Mapping[int, bytes]) -> dict[int, str]:
        """Hand every client its invitation; those that do not take part come back with the reason."""
        refused = {}
        for client, message in invitations.items():
            try:
                response = self._ask(client, Request(What.JOIN, "", message), time.monotonic() + self._patience)
            except NoAnswer as error:
                refused[client] = str(error)
                continue
            if not response.fine:
                refused[client] = response.reason
        return refused

    def exchange(
        self, step: str, messages: Mapping[int, bytes], deadline: float | None
    ) -> Generator[tuple[int, bytes]]:
        """The clients' answers as they come; whoever cannot be reached in time does not answer."""
        self.reasons = {}
        arrived: queue.SimpleQueue[tuple[int, Response | None]] = queue.SimpleQueue()
        over = threading.Event()
        for client, message in messages.items():
            work = (client, Request(What.STEP, step, message), deadline, arrived, over)
            threading.Thread(target=self._fetch, args=work, daemon=True).start()
        try:
            for _ in messages:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    client, response = arrived.get(timeout=left)
                except queue.Empty:
                    return
                if response is None:
                    continue
                if response.reason:
                    self.reasons[client] = response.reason
                if response.receipt:
                    self.receipts[client] = response.receipt
                if response.payload:
                    yield client, response.payload
        finally:
            over.set()

    def _return_receipt(self, client: int, asked: Request, receipt: bytes) -> None:
        """Tell a client that its answer was seen; one that has gone by now hears it at the next join."""
        if not receipt or asked.step not in ("prepare", "report"):
            return
        with suppress(NoAnswer):
            federation = Plan.decode(asked.payload).federation
            self._ask(client, Request(What.RECEIPT, federation, receipt), time.monotonic() + 1.0)

    def _fetch(
        self,
        client: int,
        request: Request,
        deadline: float | None,
        arrived: queue.SimpleQueue[tuple[int, Response | None]],
        over: threading.Event,
    ) -> None:
        """One client's answer, or that there is none."""
        lost = time.monotonic() + self._patience
        until = time.monotonic() + LONGEST_WAIT if deadline is None else deadline
        while not over.is_set():
            try:
                response = self._once(client, request, until)
                arrived.put((client, response))
                self._return_receipt(client, request, response.receipt)
                return
            except (OSError, frames.Closed):
                if time.monotonic() > min(lost, until):
                    break
                time.sleep(AGAIN)
            except InvalidInput as error:
                self.reasons[client] = str(error)
                break
        arrived.put((client, None))

    def _ask(self, client: int, request: Request, until: float) -> Response:
        """A response, tried again while the client cannot be reached."""
        while True:
            try:
                return self._once(client, request, max(until, time.monotonic() + 1.0))
            except (OSError, frames.Closed) as error:
                if time.monotonic() > until:
                    raise NoAnswer(
                        f"client {client} cannot be reached at {self._sockets[client]} ({error}): start it with "
                        "sordino client serve"
                    ) from None
                time.sleep(AGAIN)
            except InvalidInput as error:
                raise NoAnswer(f"client {client} sent what cannot be read: {error}") from None

    def _once(self, client: int, request: Request, until: float) -> Response:
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as connection:
            connection.settimeout(max(0.01, until - time.monotonic()))
            connection.connect(str(self._sockets[client]))
            frames.send(connection, request.encode())
            return Response.decode(frames.receive(connection))


__all__ = ["NoAnswer", "SocketFleet"]

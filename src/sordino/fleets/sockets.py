"""Real clients on the same machine: each a process of its owner's, behind a socket of its own.

For tests and small federations on one host. The coordinator asks as it asks any fleet; a client that has died is asked
again until it is back or its time is up, and gives the very answer that it had recorded. What comes too late, or twice,
is handed on like everything else: to tell what is to count is the coordinator's part.
"""

from __future__ import annotations

import queue
import socket
import threading
import time
from collections import deque
from collections.abc import Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from pathlib import Path

from sordino.errors import InvalidInput, SordinoError
from sordino.fleets.interface import WHOLE_STEPS, Fleet, Reply
from sordino.wire import requests
from sordino.wire.requests import Request, Response, What
from sordino.wire.signing import Envelope

AGAIN = 0.1  #: seconds until a client that cannot be reached is tried again
LONGEST_WAIT = 3600.0  #: seconds for an answer where no deadline is set
AT_WORK = 1.0  #: seconds after which a connection that breaks off was one to a client at work, and not a closed door
LATE = 60.0  #: seconds after a deadline in which an answer is still taken in, to be seen as late
LINGER = 0.2  #: seconds for which a connection is listened to after its answer
UNSOLICITED = 4  #: frames after an answer that are read, at most
OPEN = 3  #: connections to one client at the same time; older ones are given up


class NoAnswer(SordinoError):
    """A client could not be reached, or did not answer in time."""


class SocketFleet(Fleet):
    """Clients by their sockets. One that cannot be reached is waited for `patience` seconds, once, until it is back.

    It is tried again as long as an exchange lasts, and asked at once when it is back. While fewer than `quorum` of
    those asked are there, all are waited for.
    """

    def __init__(self, sockets: Mapping[int, str | Path], *, patience: float = 20.0, quorum: int = 1) -> None:
        self._sockets = {client: Path(path) for client, path in sockets.items()}
        self._patience, self._quorum = patience, quorum
        self._away: set[int] = set()  # clients that were given up and are not back
        self._arrived: queue.SimpleQueue[_Arrival] = queue.SimpleQueue()  # of all exchanges: late answers wait here
        self._open: dict[int, deque[socket.socket]] = {}
        self._turn = threading.Lock()

    def invite(self, invitations: Mapping[int, bytes]) -> dict[int, str]:
        """Hand every client its invitation, all at once; those that do not take part come back with the reason."""
        until = time.monotonic() + self._patience

        def refusal(client: int) -> str | None:
            try:
                response = self._ask(client, Request(What.JOIN, "", invitations[client]), until)
            except NoAnswer as error:
                return str(error)
            return None if response.fine else response.reason

        clients = sorted(invitations)
        with ThreadPoolExecutor(max(1, len(clients))) as pool:
            refusals = zip(clients, pool.map(refusal, clients), strict=True)
            return {client: why for client, why in refusals if why is not None}

    def exchange(self, step: str, messages: Mapping[int, bytes], deadline: float | None) -> Generator[Reply]:
        """The clients' replies as they come; whoever cannot be reached in time does not answer.

        Answers to earlier rounds that have come since are handed on as well.
        """
        asking = _SocketExchange(step, deadline)
        for client, message in messages.items():
            threading.Thread(target=self._fetch, args=(asking, client, message), daemon=True).start()
        waiting = set(messages) - self._away
        if len(waiting) < self._quorum:
            waiting = set(messages)
        try:
            while waiting:
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                try:
                    came = self._arrived.get(timeout=left)
                except queue.Empty:
                    break
                if came.asking is asking:
                    (waiting.add if came.news is _News.BACK else waiting.discard)(came.client)
                if came.reply is None:
                    continue
                if came.asking is asking:
                    yield came.reply
                elif came.asking.step in WHOLE_STEPS:
                    yield replace(came.reply, reason="")  # of an earlier round
        finally:
            reached = asking.end()
        yield from (Reply(client, reached=False) for client in messages if client not in reached)

    def _fetch(self, asking: _SocketExchange, client: int, message: bytes) -> None:
        """One client's answer, or that there is none; and what else it says unasked."""
        request = Request(What.STEP, asking.step, message)
        until = time.monotonic() + LONGEST_WAIT if asking.deadline is None else asking.deadline
        lost = time.monotonic()  # since when it cannot be reached
        is_given_up = client in self._away
        why = ""
        while not asking.over.is_set():
            began = time.monotonic()
            try:
                with self._connected(client, until + LATE) as connection:
                    if not asking.reach(client):
                        break
                    self._away.discard(client)
                    if is_given_up:
                        is_given_up, lost = False, time.monotonic()
                        self._arrived.put(_Arrival(asking, client, _News.BACK))
                    requests.send(connection, request.encode())
                    response = Response.decode(requests.receive(connection))
                    self._arrived.put(_Arrival(asking, client, _News.ANSWER, Reply.of(client, response)))
                    self._return_receipt(client, request, response.receipt)
                    self._listen_on(asking, client, connection)
                    return
            except (OSError, requests.Closed):
                now = time.monotonic()
                lost = now if now - began > AT_WORK else lost
                if now > until:
                    break
                if now > lost + self._patience and not asking.over.is_set():
                    self._away.add(client)
                    is_given_up = True
                    self._arrived.put(_Arrival(asking, client, _News.GONE))
                    lost = now
                time.sleep(AGAIN)
            except InvalidInput as error:
                why = str(error)
                break
        self._arrived.put(_Arrival(asking, client, _News.GONE, Reply(client, reason=why) if why else None))

    def _listen_on(self, asking: _SocketExchange, client: int, connection: socket.socket) -> None:
        """What a client sends after its answer, which an honest one never does."""
        connection.settimeout(LINGER)
        with suppress(OSError, requests.Closed, InvalidInput):
            for _ in range(UNSOLICITED):
                more = Reply.of(client, Response.decode(requests.receive(connection)))
                self._arrived.put(_Arrival(asking, client, _News.ANSWER, more))

    def _return_receipt(self, client: int, asked: Request, receipt: bytes) -> None:
        """Tell a client that its answer was seen; one that has gone by now hears it at the next join."""
        if not receipt or asked.step not in WHOLE_STEPS:
            return
        with suppress(NoAnswer):
            federation = Envelope.decode(asked.payload).federation
            self._ask(client, Request(What.RECEIPT, federation, receipt), time.monotonic() + 1.0)

    def _ask(self, client: int, request: Request, until: float) -> Response:
        """A response, tried again while the client cannot be reached."""
        while True:
            try:
                with self._connected(client, max(until, time.monotonic() + 1.0)) as connection:
                    requests.send(connection, request.encode())
                    return Response.decode(requests.receive(connection))
            except (OSError, requests.Closed) as error:
                if time.monotonic() > until:
                    raise NoAnswer(
                        f"client {client} cannot be reached at {self._sockets[client]} ({error}): start it with "
                        "sordino client serve"
                    ) from None
                time.sleep(AGAIN)
            except InvalidInput as error:
                raise NoAnswer(f"client {client} sent what cannot be read: {error}") from None

    @contextmanager
    def _connected(self, client: int, until: float) -> Iterator[socket.socket]:
        """A connection; where a client is slow to let go of earlier ones, the oldest is given up."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(max(0.01, until - time.monotonic()))
            connection.connect(str(self._sockets[client]))
            with self._turn:
                mine = self._open.setdefault(client, deque())
                mine.append(connection)
                given_up = mine.popleft() if len(mine) > OPEN else None
            if given_up is not None:
                with suppress(OSError):
                    given_up.shutdown(socket.SHUT_RDWR)
            try:
                yield connection
            finally:
                with self._turn, suppress(ValueError):
                    mine.remove(connection)


@dataclass(frozen=True, eq=False)
class _SocketExchange:
    """One exchange, and whom its messages may have reached."""

    step: str
    deadline: float | None
    over: threading.Event = field(default_factory=threading.Event)
    reached: set[int] = field(default_factory=set)
    turn: threading.Lock = field(default_factory=threading.Lock)

    def reach(self, client: int) -> bool:
        """Note that a client is sent its message now; False where the exchange is over, and nothing may be sent."""
        with self.turn:
            if not self.over.is_set():
                self.reached.add(client)
            return client in self.reached

    def end(self) -> set[int]:
        """End the exchange; whom it reached."""
        with self.turn:
            self.over.set()
            return self.reached


class _News(Enum):
    """What became of a client in an exchange."""

    ANSWER = auto()
    GONE = auto()  #: it is not waited for any more
    BACK = auto()  #: it was reached after all, and is waited for again


@dataclass(frozen=True)
class _Arrival:
    """News of a client, with its reply if there is one."""

    asking: _SocketExchange
    client: int
    news: _News
    reply: Reply | None = None


__all__ = ["NoAnswer", "SocketFleet"]

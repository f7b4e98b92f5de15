"""The client's socket: a relay on the same machine hands messages in and takes answers out, one at a time."""

from __future__ import annotations

import json
import os
import shutil
import socket
import stat
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

from sordino.client.client import Client
from sordino.client.invitation import Invitation
from sordino.client.pausable_lock import PausableLock
from sordino.client.refusal import Reason, Refused
from sordino.errors import InvalidInput, SordinoError
from sordino.storage.files import make_folder, write_whole
from sordino.wire import requests
from sordino.wire.requests import Request, Response, What

PATIENCE = 60.0  #: seconds that a connection may take over one frame
IDLE = 3600.0  #: and between two of them
GRACE = 5.0  #: seconds in which a request may still come to its end when the service stops
WAITING = 20  #: invitations that wait for the owner; more are not kept
CONNECTIONS = 16  #: open at the same time; for one more, the one that has waited longest is closed
_LONGEST_PATH = 100  #: bytes; the system allows a few more


class Connections:
    """Who is connected, and since when each of them lets the service wait.

    Where there is no room, whoever has waited longest without a request, or with a part of one, makes place: a crowd of
    silent connections shuts nobody out. Those that are being answered stay.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        self._since: dict[socket.socket, float | None] = {}  # None of those that are being answered

    def admit(self, connection: socket.socket) -> bool:
        """Take in a new one; False where all others are being answered."""
        with self._lock:
            if len(self._since) >= self._most:
                waiting = [(since, number) for number, since in enumerate(self._since.values()) if since is not None]
                if not waiting:
                    return False
                longest = list(self._since)[min(waiting)[1]]
                del self._since[longest]
                with suppress(OSError):
                    longest.shutdown(socket.SHUT_RDWR)  # whoever attends it sees its end
            self._since[connection] = time.monotonic()
            return True

    def note(self, connection: socket.socket, *, answering: bool) -> None:
        """From now on it is answered, or the service waits for it; `requests.Closed` where it had to make place."""
        with self._lock:
            if connection not in self._since:
                raise requests.Closed("closed to make place for another connection")
            self._since[connection] = None if answering else time.monotonic()

    def remove(self, connection: socket.socket) -> None:
        """It is gone."""
        with self._lock:
            self._since.pop(connection, None)


class Listener(ABC):
    """Answers requests at a Unix socket that its owner alone may open, and the accounts of a group if one is given."""

    def __init__(
        self,
        path: str | Path,
        *,
        largest: int = requests.LARGEST,
        group: str | None = None,
        turn: PausableLock | None = None,
    ) -> None:
        self._path, self._largest = Path(path), largest
        self._turn = turn or PausableLock()  # one request at a time
        self._connections = Connections(CONNECTIONS)
        self._listening = listen_at(self._path, group)
        self._stopped = False

    def serve(self) -> None:
        """Serve until `stop`."""
        try:
            while not self._stopped:
                try:
                    connection, _ = self._listening.accept()
                except TimeoutError:
                    continue
                if not self._connections.admit(connection):
                    connection.close()
                    continue
                threading.Thread(target=self._attend, args=(connection,), daemon=True).start()
        finally:
            self._listening.close()
            with suppress(OSError):
                self._path.unlink()
            self._turn.wait(GRACE)  # for what was begun; what comes now is not

    def stop(self) -> None:
        """Let `serve` return."""
        self._stopped = True

    def _attend(self, connection: socket.socket) -> None:
        """All requests of one connection; a frame that cannot be read ends it."""
        try:
            with closing(connection), suppress(requests.Closed, OSError):
                while True:
                    connection.settimeout(IDLE)
                    self._connections.note(connection, answering=False)
                    if not connection.recv(1, socket.MSG_PEEK):
                        return
                    connection.settimeout(PATIENCE)
                    self._connections.note(connection, answering=False)
                    try:
                        request = Request.decode(requests.receive(connection, self._largest))
                    except InvalidInput as error:
                        requests.send(connection, Response(False, reason=str(error)).encode())
                        return
                    self._connections.note(connection, answering=True)
                    with self._turn:
                        if self._stopped:
                            return
                        response = self.respond(request)
                    requests.send(connection, response.encode())
        finally:
            self._connections.remove(connection)

    @abstractmethod
    def respond(self, request: Request) -> Response:
        """The response to a request. `requests.Closed` ends the connection without one.

        One is asked for at a time, save while the turn is given up, as a client does when it computes.
        """


class Service(Listener):
    """Serves a client."""

    def __init__(
        self, client: Client, path: str | Path, *, largest: int = requests.LARGEST, group: str | None = None
    ) -> None:
        super().__init__(path, largest=largest, group=group, turn=client.turn)
        self._client = client

    def respond(self, request: Request) -> Response:
        """The response to a request; a refusal says why in words that tell nothing of other federations."""
        client = self._client
        try:
            return respond(client, request, self._join)
        except Refused as error:
            return Response(False, reason=error.reason.value)
        except Exception as error:  # a request must not end the service
            client.log(f"failed in a request ({request.what.name}): {type(error).__name__}: {error}")
            return Response(False, reason=Reason.UNAVAILABLE.value)

    def _join(self, message: bytes) -> None:
        """Agree again, or to what the owner named in client.toml; everything else waits for the owner's own word."""
        invitation = self._client.invitation(message)
        federation = invitation.federation
        if not self._client.knows(federation) and not self._client.settings.names(federation):
            self._leave_for_owner(invitation)  # unread: what its recipe asks to be built is for the owner to see first
            raise Refused(Reason.NOT_AGREED, federation)
        self._client.join(message)

    def _leave_for_owner(self, invitation: Invitation) -> None:
        """Keep it in the folder; one with other terms, number or key is kept beside what waits there already."""
        client, name = self._client, invitation.federation
        place = client.folder / "invitations"
        make_folder(place, 0o700)
        others = 0
        while (waiting := _waiting(path := place / _file(name, others))) is not None:
            if invitation.renews(waiting):
                break
            if waiting.renews(invitation):  # from before a rotation that is known here
                return
            others += 1
        if not path.exists() and len(list(place.iterdir())) >= WAITING:
            client.log(f"an invitation to {name} was not kept: {WAITING} wait in {place}. Remove those you do not want")
            return
        write_whole(path, invitation.encode())
        beside = "" if not others else (
            f". It differs from {others} that came before: compare the keys and the terms, and ask the coordinator "
            "in person which is right"
        )  # fmt: skip
        client.log(f"an invitation to {name} waits for you: sordino client join {client.folder} {path}{beside}")


def _file(federation: str, others: int) -> str:
    return f"{federation}.{others + 1}.invitation" if others else f"{federation}.invitation"


def _waiting(path: Path) -> Invitation | None:
    """The invitation that waits in a file; None where there is none, or one that nobody can join any more."""
    with suppress(OSError, InvalidInput):
        return Invitation.decode(path.read_bytes())
    return None


def listen_at(path: Path, group: str | None = None) -> socket.socket:
    """A listening socket, for this account and a group's; one that a dead process left behind is replaced."""
    listening = _listen(path)
    if not group:
        return listening
    try:  # for a relay's account, which has no business in the folder beside the socket
        shutil.chown(path, group=int(group) if group.isdecimal() else group)
        path.chmod(0o660)
    except (LookupError, OSError) as error:
        listening.close()
        path.unlink(missing_ok=True)
        raise SocketUnavailable(
            f"the socket cannot be opened to the group {group!r} ({error}): give a group that your account is in (as "
            f"root: usermod -aG {group} YOUR-ACCOUNT, then log in again)"
        ) from None
    return listening


def _listen(path: Path) -> socket.socket:
    """A listening socket with permissions 0600."""
    if len(os.fsencode(path)) > _LONGEST_PATH:
        raise InvalidInput(f"the path of a socket has at most {_LONGEST_PATH} bytes: {path} is longer, take /tmp or so")
    _clear(path)
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listening.bind(str(path))
        listening.listen(CONNECTIONS)
        listening.settimeout(0.5)
    except OSError as error:
        listening.close()
        raise SocketUnavailable(
            f"no socket can be made at {path} ({error.strerror or error}): give another path"
        ) from None
    finally:
        os.umask(before)
    return listening


def _clear(path: Path) -> None:
    try:
        kind = path.lstat().st_mode
    except OSError:
        return
    if not stat.S_ISSOCK(kind):
        raise InvalidInput(f"{path} is a file, and no socket: give another path")
    with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as probe:
        if probe.connect_ex(str(path)) == 0:
            raise SocketUnavailable(f"another process listens at {path}: stop it, or give another path")
    path.unlink(missing_ok=True)


class SocketUnavailable(SordinoError):
    """No socket could be made."""


def respond(client: Client, request: Request, join: Callable[[bytes], object]) -> Response:
    """What a client does with a request; `join` decides on invitations. `Refused` is for the caller to put in words."""
    match request.what:
        case What.HELLO:
            return Response(True, json.dumps({"name": client.identity.name, "id": client.identity.id}).encode())
        case What.JOIN:
            join(request.payload)
            return Response(True)
        case What.RECEIPT:
            client.receive_receipt(request.step, request.payload)
            return Response(True)
        case What.STEP:
            return client.reply(request.step, request.payload)


__all__ = ["Listener", "Service", "SocketUnavailable", "listen_at", "respond"]

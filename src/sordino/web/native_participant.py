"""A native participant: the owner's client (`sordino.client`) over a server's WebSocket, beside web pages.

It is the same client with the same budget and ledger; here is only what carries its bytes. Connections that break are
made again, with the same identity; what was answered before is answered with the same bytes.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import random
import ssl
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qs, quote, urlsplit
from urllib.request import urlopen

from websockets.exceptions import (
    ConnectionClosed,
    ConnectionClosedError,
    ConnectionClosedOK,
    InvalidStatus,
    WebSocketException,
)
from websockets.sync.client import ClientConnection, connect
from websockets.typing import Subprotocol

from sordino.client.client import Client
from sordino.client.offer import Offer
from sordino.client.refusal import Reason, Refused
from sordino.client.socket_service import respond
from sordino.errors import InvalidInput, SordinoError
from sordino.privacy.ledger import terms
from sordino.report.words import figure, upper
from sordino.web.page_task import PROTOCOL
from sordino.wire.codec import JsonObject
from sordino.wire.requests import Request, Response, What

LONGEST_WAIT = 30.0  #: seconds between two attempts to connect, at most
LAST_WORDS = 5.0  #: seconds in which a server may take note that its participant leaves
LARGEST = 2**28  #: bytes of a message
PING = 5.0  #: seconds between two pings; a server that does not answer for 20 is taken for lost
WAITING = 2**12  #: messages that may wait while an owner reads or a model trains; with more, no ping is answered
FINAL = ("protocol", "token", "proof", "terms", "finished", "replaced", "freed")  #: trying again is no use
PLACELESS = ("full", "address")  #: refusals that nobody gets who has a place


class NotJoined(SordinoError):
    """The federation cannot be joined, or the server cannot be reached."""


class NotAgreed(NotJoined):
    """The owner said no."""


@dataclass(frozen=True)
class Link:
    """Where a federation is: the server's address, its name there, and the token and key of the invitation, if any."""

    server: str
    name: str = ""
    token: str = ""
    key: str = ""  #: the coordinator's, in hexadecimal

    @classmethod
    def parse(cls, text: str, name: str = "", token: str = "") -> Link:
        """Parse an address such as https://host, or an invitation's link; `name` and `token` override what it says."""
        place = urlsplit(text if "://" in text else f"http://{text}")
        if place.scheme not in ("http", "https") or not place.netloc:
            raise InvalidInput(
                f"{text!r} is no address of a server: it looks like https://host or http://localhost:8000"
            )
        told = parse_qs(place.fragment) or parse_qs(place.query)
        path = place.path.rstrip("/")
        found = [told.get(key, [""])[0] for key in ("federation", "token", "key")]
        return cls(f"{place.scheme}://{place.netloc}{path}", name or found[0], token or found[1], found[2])

    @property
    def socket(self) -> str:
        """The address of the WebSocket."""
        return f"ws{self.server[4:]}/api/federations/{quote(self.name)}/ws"


def fetch(server: str, path: str, trust: ssl.SSLContext) -> object:
    """What a server answers, as JSON."""
    address = f"{server}{path}"
    try:
        context = trust if address.startswith("https") else None
        with urlopen(address, timeout=30, context=context) as answer:
            return json.loads(answer.read(2**26))
    except HTTPError as error:
        raise NotJoined(f"{address}: {_reason(error.read(2**16), error.code)}") from None
    except (URLError, OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        raise NotJoined(
            f"{address} cannot be reached ({reason}): is the server running, is the address right?"
        ) from None


def locate(link: Link, trust: ssl.SSLContext) -> tuple[Link, JsonObject]:
    """The link with the federation's name, and its task; a server with one federation needs no name."""
    if not link.name:
        told = fetch(link.server, "/api/server", trust)
        names = told.get("federations") if isinstance(told, dict) else None
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise _stranger(link)
        if not names:
            raise NotJoined(f"{link.server} has no federation")
        if len(names) > 1:
            known = readable(" | ".join(names))
            raise NotJoined(f"{link.server} has several federations: name one, --federation {known}")
        link = replace(link, name=names[0])
    task = fetch(link.server, f"/api/federations/{quote(link.name)}/task", trust)
    if not isinstance(task, dict) or not isinstance(task.get("federation"), str):
        raise _stranger(link)
    if "budget" not in task or not isinstance(task["budget"], dict | None):
        raise _stranger(link)
    return link, task


def readable(text: object) -> str:
    """What a server says, for a terminal: on one line, and without letters that would steer it."""
    return "".join(letter if letter.isprintable() else " " for letter in str(text)[:500])


def _stranger(link: Link) -> NotJoined:
    return NotJoined(
        f"{link.server} does not answer as a server of federations does: is the address right, and is its version "
        "of Sordino the same as yours?"
    )


@dataclass
class ParticipationResult:
    """The result of taking part."""

    federation: str
    client: int | None = None
    answered: int = 0  #: rounds with a report, while this process ran
    declined: int = 0
    ended: str = ""  #: why it is over


@dataclass
class Participant:
    """One client in one federation. `agree` is asked before anything is agreed to; `say` tells the owner the rest."""

    client: Client
    link: Link
    federation: str  #: the name that plans carry
    agree: Callable[[Offer], bool]
    say: Callable[[str], None] = lambda _: None
    trust: ssl.SSLContext | None = None
    patience: float = 300.0  #: seconds for which a server that cannot be reached is tried again
    result: ParticipationResult = field(init=False)
    _welcomed: bool = field(init=False, default=False)  # on the connection of now

    def __post_init__(self) -> None:
        self.result = ParticipationResult(self.federation)

    def take_part(self) -> ParticipationResult:
        """Take part until the federation is over; `NotJoined` if it cannot be joined."""
        self._persevere(self._attend)
        return self.result

    def leave(self) -> ParticipationResult:
        """Give the place back; `NotJoined` where there is none, or the server cannot be told. The ledger stays."""
        self._persevere(self._give_back)
        return self.result

    def _persevere(self, talk: Callable[[ClientConnection], None]) -> None:
        """Talk to the server to the end, over as many connections as it takes."""
        wait, lost = 1.0, time.monotonic()
        while True:
            try:
                self._connect(talk)
                return
            except _Disconnected as error:
                if error.welcomed:
                    wait, lost = 1.0, time.monotonic()
                if time.monotonic() - lost > self.patience:
                    raise NotJoined(
                        f"{self.link.server} was not reached for {self.patience:g} seconds ({error}). What was "
                        "recorded stays: the same command goes on"
                    ) from None
                self.say(f"No connection ({error}); trying again.")
                time.sleep(min(LONGEST_WAIT, wait, max(0.1, self.patience)) * random.uniform(0.5, 1.0))
                wait *= 2

    def _connect(self, talk: Callable[[ClientConnection], None]) -> None:
        """Hold one connection to its end."""
        secure = self.link.socket.startswith("wss")
        try:
            connection = connect(
                self.link.socket, subprotocols=[Subprotocol(f"sordino.{PROTOCOL}")], ssl=self.trust if secure else None,
                max_size=LARGEST, max_queue=WAITING, compression=None, open_timeout=20, ping_interval=PING,
            )  # fmt: skip
        except InvalidStatus as error:
            raise _refused_status(error) from None
        except (OSError, WebSocketException) as error:
            raise _Disconnected(str(error) or type(error).__name__, False) from None
        self._welcomed = False
        try:
            with connection:
                connection.send(json.dumps(self._hello()))
                talk(connection)
        except (ConnectionClosed, OSError) as error:
            raise _Disconnected(str(error), self._welcomed) from None

    def _attend(self, connection: ClientConnection) -> None:
        """Answer what is asked until the federation is over."""
        for message in connection:
            self._on_message(connection, message)
            if self.result.ended:
                return
        raise _Disconnected("the server closed the connection", self._welcomed)

    def _give_back(self, connection: ClientConnection) -> None:
        """Wait to be recognised, then leave; requests are not answered meanwhile."""
        while not self._welcomed:
            message = connection.recv(timeout=LAST_WORDS)
            if isinstance(message, bytes):
                continue
            try:
                self._read(message)
            except _Disconnected as error:
                if error.code in PLACELESS:
                    raise NotJoined(f"you have no place in {self.link.name}, so there is nothing to leave") from None
                raise
        if not _leave(connection):
            raise _Disconnected("the server did not say that it has heard", False)
        self.result.ended = "you left"

    def _hello(self) -> JsonObject:
        key, name = self.client.identity.key, self.federation.encode()
        tags = (hmac.digest(key, b"sordino web " + what + b" 1\0" + name, hashlib.sha256) for what in (b"id", b"proof"))
        identity, proof = (tag.hex() for tag in tags)
        return {
            "type": "hello", "protocol": PROTOCOL, "id": identity[:32], "proof": proof, "kind": "native",
            "token": self.link.token, "task": "", "last": None,
        }  # fmt: skip

    def _on_message(self, connection: ClientConnection, message: str | bytes) -> None:
        """Act on one message."""
        if isinstance(message, str):
            self._read(message)
            return
        request = Request.decode(message)
        try:
            response = self._respond(request)
        except NotAgreed:
            _leave(connection)
            raise
        connection.send(response.encode())

    def _read(self, message: str) -> None:
        try:
            self._on_control(json.loads(message))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise _Disconnected(f"the server sent what cannot be read ({type(error).__name__})", False) from None

    def _on_control(self, message: JsonObject) -> None:
        match message.get("type"):
            case "welcome":
                if message["federation"] != self.federation:
                    raise NotJoined(f"{self.link.name} began anew under another name: join it again")
                self.result.client = int(message["client"])
                self._welcomed = True
            case "refused" if message.get("code") == "finished" and self.result.client is not None:
                self.result.ended = readable(message.get("reason"))  # it was over before this connection came back
            case "refused" if message.get("code") in FINAL:
                raise NotJoined(f"{self.link.name}: {readable(message.get('reason'))}")
            case "refused":
                raise _Disconnected(readable(message.get("reason")), False, str(message.get("code")))
            case "ended":
                self.result.ended = readable(message.get("why") or "the federation is over")

    def _respond(self, request: Request) -> Response:
        """The response to a request; a refusal says why in words that tell nothing of other federations."""
        if request.what is What.HELLO:  # who the owner is elsewhere is none of a server's business
            return Response(False, reason=Reason.UNREADABLE.value)
        try:
            response = respond(self.client, request, self._join)
        except Refused as error:
            self.say(f"Refused: {error}")
            return Response(False, reason=error.reason.value)
        if request.what is What.STEP:
            self._note(response.reason)
        return response

    def _join(self, invitation: bytes) -> None:
        """Show the owner what joining means, and ask, unless these very terms were agreed to before."""
        offer = self.client.offer(invitation)
        if offer.invitation.federation != self.federation:
            raise Refused(Reason.OTHER_TERMS, f"the invitation is to {offer.invitation.federation}")
        if self.link.key not in ("", offer.invitation.coordinator):
            raise Refused(
                Reason.NOT_SIGNED,
                f"your link names the coordinator's key {readable(self.link.key)}, and the server "
                f"{offer.invitation.coordinator}: it is not the server that invited you",
            )
        if not offer.agreed and not self.agree(offer):
            raise NotAgreed(f"{self.federation} was not joined; nothing has left")
        self.client.join(invitation)
        self.say(f"Joined {self.federation} as participant {offer.invitation.client}.")
        if left_out := self.client.records(offer.invitation.shape).left_out:
            self.say(f"{len(left_out):,} of your records are left out, as if they were not there: {left_out[0]}")

    def _note(self, reason: str) -> None:
        if reason:
            self.result.declined += 1
            self.say(f"Declined: {reason}")
        else:
            self.result.answered += 1
            standing = self.client.standing
            assert standing.budget is not None
            spent, limit = upper(standing.spent), figure(standing.budget.limit)
            spent = f"epsilon {spent} of {limit} is spent ({terms(standing.budget)})"
            self.say(f"Reported ({self.result.answered}); {spent}.")


class _Disconnected(Exception):
    """A connection that failed or broke."""

    def __init__(self, why: str, welcomed: bool, code: str = "") -> None:
        super().__init__(why)
        self.welcomed, self.code = welcomed, code


def _leave(connection: ClientConnection) -> bool:
    """Give the place back; whether the server has closed the connection, which it does when the place is free."""
    until = time.monotonic() + LAST_WORDS
    with suppress(ConnectionClosedError, TimeoutError):
        try:
            connection.send(json.dumps({"type": "leave"}))
            while (left := until - time.monotonic()) > 0:
                connection.recv(timeout=left)
        except ConnectionClosedOK:
            return True
    return False


def _refused_status(error: InvalidStatus) -> Exception:
    """403 and 404 are final, everything else may pass."""
    status = error.response.status_code
    said = _reason(error.response.body or b"", status)
    return NotJoined(said) if status in (403, 404) else _Disconnected(said, False)


def _reason(body: bytes | bytearray, status: int) -> str:
    """Why a server refuses, as it says or by its status."""
    with suppress(ValueError, KeyError, TypeError):
        return readable(json.loads(body)["error"])
    return f"the server answered with status {status}"


__all__ = ["Link", "NotJoined", "Participant", "ParticipationResult", "fetch", "locate", "readable"]

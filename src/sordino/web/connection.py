"""One participant's WebSocket: hello, plans out, answers in. docs/web-protocol.md says what is what.

All of it runs in the server's event loop. What is to be sent waits in a queue of its own, so that nobody who reads
slowly holds up others; who reads too slowly (`doorway`), sends too much or sends what cannot be read is disconnected.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Coroutine, Hashable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal

from pydantic import BaseModel, StringConstraints, ValidationError
from starlette.responses import JSONResponse
from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from sordino.errors import InvalidInput
from sordino.storage.files import NotWritten
from sordino.web.doorway import Visit
from sordino.web.hosted_federation import HostedFederation
from sordino.web.limits import Bucket, Limits
from sordino.web.page_task import PROTOCOL
from sordino.web.places import Member, ParticipantKind, TurnedAway
from sordino.wire.messages import Kind
from sordino.wire.requests import Request, Response, What

SUBPROTOCOL = f"sordino.{PROTOCOL}"
CLOSING = {
    "protocol": 4400, "format": 4400, "token": 4401, "proof": 4403, "replaced": 4408, "terms": 4409, "full": 4410,
    "freed": 4414, "address": 4412, "finished": 4411, "size": 4413, "busy": 4429, "rate": 4429, "slow": 4429,
}  # fmt: skip
LAST_WORDS = 0.5  #: seconds in which a participant that is turned away may still hear why
UNINVITED = 0.2  #: seconds between looks at whether a gateway has an invitation to hand on
PULSES = 200  #: signs of life that all pages together may ask for in a second
AGAIN = 0.02  #: seconds between looks at whether the coordinator has caught up


class _Left(Exception):
    """The participant said that it leaves."""


#: what ends a connection in the ordinary way
_ENDINGS = (TurnedAway, _Left, WebSocketDisconnect, TimeoutError, RuntimeError)


class _Pool:
    """Bytes that may be on their way at the same time; a single larger message may always go alone."""

    def __init__(self, most: int) -> None:
        self._most, self._used = most, 0
        self._freed = asyncio.Event()

    def take(self, size: int) -> bool:
        """Take so many, if they are there."""
        if self._used and self._used + size > self._most:
            return False
        self._used += size
        return True

    async def wait_for(self, size: int) -> None:
        """Take so many as soon as they are there."""
        while not self.take(size):
            await self._freed.wait()

    def give_back(self, size: int) -> None:
        """They have gone."""
        self._used -= size
        self._freed.set()
        self._freed = asyncio.Event()


class Credit:
    """Bytes of plans on their way: half for those who take them in time, half for those who did not the last time.

    So those who take long, or nothing, hold up each other alone.
    """

    def __init__(self, most: int, seconds: float) -> None:
        self._quick, self._slow, self._seconds = _Pool(most // 2), _Pool(most // 2), seconds
        self._late: set[Hashable] = set()  # who took longer than that over the last plan

    async def lend(self, who: Hashable, size: int, send: Callable[[], Coroutine[None, None, None]]) -> None:
        """Send so many bytes as soon as they may go; `TurnedAway` where they take long, and too many others' do."""
        pool = self._slow if who in self._late else self._quick
        await pool.wait_for(size)
        sending = asyncio.create_task(send())
        try:
            await asyncio.wait((sending,), timeout=self._seconds)
            if sending.done():
                self._late.discard(who)
            else:
                self._late.add(who)
                if pool is self._quick:
                    if not self._slow.take(size):
                        raise TurnedAway("slow", "a plan was not taken in time")
                    pool.give_back(size)
                    pool = self._slow
            await sending
        finally:
            sending.cancel()
            pool.give_back(size)


_Text = Annotated[str, StringConstraints(max_length=200, pattern=r"^[^\x00]*$")]


class Hello(BaseModel):
    """The first message of a participant."""

    type: Literal["hello"]
    protocol: Literal[2]
    id: Annotated[str, StringConstraints(pattern="^[0-9a-f]{32}$")]
    proof: Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]
    kind: ParticipantKind
    token: _Text = ""
    task: _Text = ""

    @classmethod
    def read(cls, text: object, longest: int) -> Hello:
        """The hello in a message; anything else is refused."""
        if not isinstance(text, str) or len(text) > longest:
            raise TurnedAway("protocol", f"the first message is a hello: JSON of at most {longest:,} bytes")
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            if any(each["loc"] == ("protocol",) for each in error.errors()):
                raise TurnedAway(
                    "protocol", f"this server speaks version {PROTOCOL} of the protocol: reload the page, or update"
                ) from None
            raise TurnedAway(
                "protocol",
                "the first message is a hello with an id of 32 hex digits and a proof of 64, of a page or native, and "
                "texts of at most 200 letters",
            ) from None


@dataclass(frozen=True)
class _SentRequest:
    """A request that was sent, or will be; of a step, the digest of its plan."""

    what: What
    plan: bytes = b""


_Message = tuple[_SentRequest, bytes]  # a request and its frame


class Connection:
    """A participant's line to the fleet, from its hello to its end."""

    def __init__(
        self,
        socket: WebSocket,
        hosted: HostedFederation,
        limits: Limits,
        credit: Credit,
        network: str,
        wait: float = 0.0,
    ) -> None:
        self._socket, self.hosted, self._limits, self._credit = socket, hosted, limits, credit
        self._network = network
        self._wait = wait  # seconds until strangers from there may try again
        self.recognised = False  #: whether its hello has proven a known identity or a valid invitation
        self._loop = asyncio.get_running_loop()
        self._visit: Visit | None = socket.scope.get("state", {}).get("visit")
        self._outbox: asyncio.Queue[_Message | str | None] = asyncio.Queue()
        self._plan: _Message | None = None  # the newest that waits: a round that is over needs no answer
        self._unanswered: deque[_SentRequest] = deque()  # requests without a response so far
        self._bucket = Bucket(limits.rate, limits.burst)
        self._ending: TurnedAway | None = None
        self._attending: asyncio.Task[None] | None = None
        self.member: Member | None = None
        self._returning = False  # whether it had its slot before

    @property
    def _own(self) -> Member:
        """Who this is, after its hello."""
        assert self.member is not None
        return self.member

    # --- what others call

    def post(self, frame: bytes, plan: bytes) -> None:
        """Send a step's plan, which has this digest; from any thread."""
        with suppress(RuntimeError):  # the loop has ended, and so has the server
            self._loop.call_soon_threadsafe(self._ask, _SentRequest(What.STEP, plan), frame)

    def reconnect(self, why: str) -> None:
        """Ask the participant to come again at once; from any thread."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self.turn_away, TurnedAway("busy", why, retry=AGAIN))

    def say(self, message: Mapping[str, object]) -> None:
        """Send a control message; from the loop."""
        self._put(_json(message))

    def turn_away(self, turned: TurnedAway) -> None:
        """End the connection with a reason; from the loop."""
        self._end(turned, _refusal(turned))

    def end(self, why: str) -> None:
        """The federation is over; from the loop."""
        self._end(TurnedAway("ended", why), {"type": "ended", "why": why})

    def _end(self, turned: TurnedAway, message: Mapping[str, object]) -> None:
        if self._ending is None:
            self._ending = turned
            self.say(message)
            self._put(None)

    def _put(self, item: _Message | str | None) -> None:
        if self._outbox.qsize() >= self._limits.waiting and item is not None:
            self._ending = self._ending or TurnedAway("slow", "messages were not taken in time")
            item = None
        self._outbox.put_nowait(item)

    def _ask(self, asked: _SentRequest, frame: bytes) -> None:
        if asked.what is What.STEP:
            waiting, self._plan = self._plan, (asked, frame)
            if waiting is not None:
                return  # this one goes in its place
        self._put((asked, frame))

    # --- its life

    async def run(self) -> None:
        """From hello to the end. `TurnedAway` before that is for the caller, who counts attempts."""
        await self._hello()
        self._require_room()
        attending = self._attending = asyncio.create_task(self._attend())
        sending = asyncio.create_task(self._send_all())
        try:
            await asyncio.wait((attending, sending), return_when=asyncio.FIRST_COMPLETED)
            ended = attending.exception() if attending.done() else None
            if isinstance(ended, TurnedAway):
                self.turn_away(ended)
            elif isinstance(ended, _Left):
                await self._settle()  # who sees the connection close has left for good
                self._put(None)
            if isinstance(ended, TurnedAway | _Left):
                await asyncio.wait((sending,), timeout=2.0)
        finally:
            self.hosted.places.go(self._own)
            self.hosted.fleet.go(self._own.client, self)
            self.hosted.note_presence(self._own.client)
            for task in (attending, sending):
                task.cancel()
            ends = await asyncio.gather(attending, sending, return_exceptions=True)
            await self._settle()
        for error in ends:
            if isinstance(error, Exception) and not isinstance(error, _ENDINGS):
                raise error

    async def _settle(self) -> None:
        """Write down who has agreed or left, if anybody has."""
        if self.hosted.places.unsettled:
            with suppress(NotWritten):  # it is written down with the next change
                await asyncio.to_thread(self.hosted.places.settle)

    def _require_room(self) -> None:
        """Be a stranger to the doorway no more, or go where as many participants are here as there is room for."""
        if self._visit is not None and not self._visit.doorway.identify(self._visit, self._who):
            self.hosted.places.go(self._own)
            raise TurnedAway("busy", "as many are connected as this server has room for: try again later", retry=30.0)

    @property
    def _who(self) -> Hashable:
        return self.hosted.federation, self._own.client

    async def _hello(self) -> None:
        """Read the first message and find its slot."""
        try:
            message = await asyncio.wait_for(self._socket.receive(), self._limits.hello)
        except TimeoutError:
            raise TurnedAway("slow", f"no hello came within {self._limits.hello:g} seconds") from None
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect
        hello = self._read_hello(message.get("text"))
        if self.hosted.state == "finished":
            raise TurnedAway("finished", f"{self.hosted.name} is over: its model and its report can be downloaded")
        if self.hosted.state == "failed":
            raise TurnedAway("busy", f"{self.hosted.name} was stopped by an error: its operator must look", retry=60.0)
        if hello.kind == "page" and hello.task != self.hosted.task.digest:
            raise TurnedAway(
                "terms", "what this federation asks for is not what was agreed to: read it again and agree anew"
            )
        places = self.hosted.places
        self.member, self._returning = places.admit(hello.id, hello.proof, hello.kind, hello.token, self._network)
        places.come(self.member)
        try:
            await asyncio.to_thread(places.settle)
        except NotWritten:
            places.go(self.member)
            raise TurnedAway(
                "busy", "the server cannot write down who takes part: its operator must look", retry=60.0
            ) from None

    def _read_hello(self, text: object) -> Hello:
        """The hello. After too many refused attempts from its address, a stranger's is not looked at."""
        try:
            hello = Hello.read(text, self._limits.text)
            self.recognised = self.hosted.places.recognises(hello.id, hello.proof, hello.token)
        except TurnedAway:
            if not self._wait:
                raise
        if self._wait and not self.recognised:
            raise TurnedAway(
                "busy", "too many attempts from your network address were refused: try later", retry=self._wait
            )
        return hello

    async def _attend(self) -> None:
        member, hosted = self._own, self.hosted
        limits = {
            "message": hosted.largest_message,
            "idle": self._limits.idle,
            "pulse": self._pulse,
            "absence": hosted.absence,
        }
        self.say(
            {
                "type": "welcome",
                "protocol": PROTOCOL,
                "federation": hosted.federation,
                "client": member.client,
                "known": self._returning,
                "rotations": [rotation.hex() for rotation in hosted.author.rotations],
                "receipt": hosted.receipts.of(member).hex(),
                "limits": limits,
                "status": hosted.status,
            }
        )
        inviting = asyncio.create_task(self._invite(member)) if member.kind == "native" else None
        try:
            if inviting is None:
                self._come()
            while True:
                await self._take(await self._socket.receive())
                while hosted.fleet.full:
                    await asyncio.sleep(AGAIN)
        finally:
            if inviting is not None:
                inviting.cancel()

    async def _invite(self, member: Member) -> None:
        """Hand a native client its invitation; behind a gateway, as soon as the coordinator has signed one."""
        while (invitation := self.hosted.invitation(member)) is None:
            await asyncio.sleep(UNINVITED)
        self._ask(_SentRequest(What.JOIN), Request(What.JOIN, "", invitation).encode())

    @property
    def _pulse(self) -> float:
        """Seconds between two signs of life: more with many participants, and where a plan may take longer."""
        here = 0 if self._visit is None else self._visit.doorway.participants
        plan = 4 * self.hosted.parts.layout.size
        return max(self._limits.pulse, here / PULSES, plan / self._limits.slowest)

    def _require_place(self) -> None:
        """Refuse who has left over another connection meanwhile: the place may be somebody else's by now."""
        if not self.hosted.places.holds(self._own):
            raise TurnedAway("replaced", "you left this federation in another window")

    def _come(self) -> None:
        self._require_place()
        member = self._own
        before = self.hosted.fleet.come(member.client, self)
        self.hosted.note_presence(member.client, member.kind)
        if isinstance(before, Connection) and before is not self:
            before.turn_away(
                TurnedAway("replaced", "you opened this federation in another window, which goes on instead")
            )

    # --- what comes

    async def _take(self, message: Message) -> None:
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code") or 1005)
        self._require_place()
        text, body = message.get("text"), message.get("bytes")
        if text is not None:
            if not self._bucket.take():  # responses are as many as the server's own requests
                raise TurnedAway("rate", "too many messages in too short a time", retry=10.0)
            self._control(_object(text, self._limits.text))
        elif body is not None:
            self._respond(body)
            await self._settle()

    def _control(self, message: Mapping[str, object]) -> None:
        member, fleet = self._own, self.hosted.fleet
        match message.get("type"):
            case "ping":
                self.say({"type": "pong"})
            case "pause":
                fleet.pause(member.client)
                self.hosted.note_presence(member.client, member.kind)
            case "resume":
                fleet.resume(member.client)
                self.hosted.note_presence(member.client, member.kind)
            case "leave":
                self.hosted.places.leave(member)
                fleet.go(member.client, self)
                fleet.forget(member.client)
                raise _Left
            case other:
                raise TurnedAway("format", f"unknown message {str(other)[:40]!r}")

    def _respond(self, body: bytes) -> None:
        """A response: it belongs to the oldest request without one."""
        hosted, member = self.hosted, self._own
        if len(body) > hosted.largest_message:
            reason = f"a message of {len(body):,} bytes came, and {hosted.largest_message:,} are the most"
            hosted.refuse(member.client, hosted.last_round + 1, reason)
            raise TurnedAway("size", reason)
        if not self._unanswered:
            raise TurnedAway("format", "a response came to no request")
        try:
            response = Response.decode(body)
            if len(response.receipt) > self._limits.receipt:
                raise InvalidInput(f"a receipt has at most {self._limits.receipt} bytes")
            asked = self._unanswered.popleft()
            match asked.what:
                case What.JOIN:
                    self._joined(response)
                case What.STEP:
                    self._answered(asked.plan, response)
        except InvalidInput as error:
            hosted.refuse(member.client, hosted.last_round + 1, str(error))
            raise TurnedAway("format", str(error)) from None

    def _answered(self, plan: bytes, response: Response) -> None:
        member, hosted = self._own, self.hosted
        if response.receipt:  # first: an answer may end the round, and receipts are written down then
            hosted.receipts.take(member, response.receipt)
        if not response.payload:
            hosted.fleet.refuse(member.client, plan, response.reason)
            return
        taken = hosted.fleet.deliver(member.client, response)
        if not taken.new:
            hosted.late(member.client)
        elif taken.answer.kind is Kind.REPORT:
            hosted.answered(member.client, taken.answer.round)
        digest = taken.answer.digest.hex()
        self.say({"type": "received", "round": taken.answer.round, "digest": digest})
        if response.receipt and taken.new:
            seen = Request(What.RECEIPT, hosted.federation, response.receipt)
            self._ask(_SentRequest(What.RECEIPT), seen.encode())

    def _joined(self, response: Response) -> None:
        member, places = self._own, self.hosted.places
        if not response.fine:
            if not places.agreed(member):  # else what keeps it from agreeing again may pass, and its place is its own
                places.leave(member)
            raise TurnedAway("terms", f"the participant did not agree: {response.reason[:200]}")
        places.agree(member)
        self._come()

    # --- what goes

    async def _send_all(self) -> None:
        """Send what waits, in order, until the connection ends."""
        while (item := await self._outbox.get()) is not None:
            if isinstance(item, str):
                await self._socket.send_text(item)
            else:
                await self._credit.lend(self._who, len(item[1]), partial(self._send_request, item))
        await self._close()

    async def _send_request(self, message: _Message) -> None:
        if message[0].what is What.STEP and self._plan is not None:
            message, self._plan = self._plan, None
        asked, frame = message
        self._unanswered.append(asked)
        await self._socket.send_bytes(frame)
        # The next message waits until this one is on its way: only then may others use its room.
        await self._socket.send_text(_json({"type": "status", **self.hosted.status}))

    async def _close(self) -> None:
        turned = self._ending
        if turned is not None and self._attending is not None and self._attending.done():
            await self._hear_out()
        if self._socket.client_state is WebSocketState.CONNECTED:
            await self._socket.close(CLOSING.get(turned.code, 1000) if turned is not None else 1000)

    async def _hear_out(self) -> None:
        """Read on for a moment: who is cut off while more is on its way does not hear why."""
        with suppress(TimeoutError, WebSocketDisconnect, RuntimeError):
            async with asyncio.timeout(LAST_WORDS):
                while (await self._socket.receive())["type"] != "websocket.disconnect":
                    pass


def _json(message: Mapping[str, object]) -> str:
    return json.dumps(message, separators=(",", ":"), allow_nan=False)


def _refusal(turned: TurnedAway) -> dict[str, object]:
    retry = {} if turned.retry is None else {"retry": turned.retry}
    return {"type": "refused", "code": turned.code, "reason": str(turned), **retry}


async def refuse(socket: WebSocket, turned: TurnedAway) -> None:
    """Tell somebody who has no slot why, and close."""
    with suppress(WebSocketDisconnect, RuntimeError):
        await socket.send_text(_json(_refusal(turned)))
        await socket.close(CLOSING.get(turned.code, 4400))


async def deny(socket: WebSocket, status: int, why: str) -> None:
    """Answer with a plain HTTP response in the place of a connection."""
    response = JSONResponse({"error": why}, status)
    del response.headers["content-length"]  # the server counts the body itself
    del response.headers["content-type"]  # and calls it text
    await socket.send_denial_response(response)


def _object(text: str, longest: int) -> dict[str, object]:
    """A control message; anything else is refused."""
    if len(text) > longest:
        raise TurnedAway("size", f"a text message has at most {longest:,} bytes")
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise TurnedAway("format", "a text message is not JSON") from None
    if not isinstance(found, dict):
        raise TurnedAway("format", "a text message is not a JSON object")
    return found


__all__ = ["CLOSING", "SUBPROTOCOL", "Connection", "Credit", "deny", "refuse"]

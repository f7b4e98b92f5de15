"""The web fleet: participants behind WebSockets, pages and native clients alike.

The coordinator's thread calls `exchange`; the server's event loop hands in who came, who went and what was answered.
Nothing here knows sockets: a participant is something that takes frames (`Line`). Whoever comes back in the middle of a
round is sent the same plan again; whoever is away is waited for a little while, and whoever is here and silent for a
longer one. Then the round goes on without, if it has as many reports as it needs: else it waits for somebody to come.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sordino.client.frames import Request, Response, What
from sordino.errors import InvalidInput, SordinoError
from sordino.messages import Answer, Kind
from sordino.signing import Envelope

PATIENCE = 10.0  #: seconds in which somebody who was there may come back before a round goes on without
SILENCE = 120.0  #: seconds in which somebody who is here may answer before a round goes on without
ROOM = 2**26  #: bytes of answers that may wait for the coordinator before participants have to wait with theirs


class Stopped(SordinoError):
    """The server is stopping: the round that was open is asked for again when it starts."""


class Line(Protocol):
    """What takes frames to one participant; it never blocks."""

    def post(self, frame: bytes, plan: bytes) -> None:
        """Send a binary frame, later and in order; `plan` is the digest of the plan in it."""
        ...

    def reconnect(self, why: str) -> None:
        """Ask the participant to come again at once."""
        ...


@dataclass(frozen=True)
class Taken:
    """What became of a response: the answer in it, and whether it was new to an open round."""

    answer: Answer
    new: bool


@dataclass
class _Open:
    """An exchange under way."""

    messages: Mapping[int, bytes]
    frames: Mapping[int, bytes]
    digests: Mapping[int, bytes]
    handed: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)  #: answered, or refused without an answer
    reported: set[int] = field(default_factory=set)  #: those of them who sent a report
    left: set[int] = field(default_factory=set)  #: places left by somebody whose report may be on its way
    arrived: deque[tuple[int, bytes]] = field(default_factory=deque)
    size: int = 0
    began: float = field(default_factory=time.monotonic)


class WebFleet:
    """Participants by their numbers; `exchange` is the coordinator's side, everything else the server's."""

    def __init__(self, clients: int, quorum: int = 1, *, patience: float = PATIENCE, silence: float = SILENCE) -> None:
        self.clients, self.quorum = clients, quorum
        self.enough = quorum  #: reports with which a round may end by itself, if anybody has answered
        self._patience, self._silence = patience, silence
        self._lines: dict[int, Line] = {}
        self._left: dict[int, float] = {}  # client -> when it went
        self._paused: set[int] = set()
        self._declined: set[int] = set()  # whose last answer was to decline, since they came
        self._unable: set[int] = set()  # who last gave no answer at all, since they came
        self._silent: set[int] = set()  # who let a round pass in silence: not waited for until something is answered
        self._changed = threading.Condition()
        self._open: _Open | None = None
        self._stopped = False
        self.reasons: dict[int, str] = {}  #: why clients declined or refused, in the last exchange
        self.unreached: set[int] = set()  #: clients to whom nothing of the last exchange was sent
        self._strays: Counter[str] = Counter()  # answers that came when no round was open
        self.last_message: bytes = b""  #: what was sent last, to somebody at least, in its envelope
        self._last_digest = b""

    # --- the coordinator's side

    def exchange(
        self, step: str, messages: Mapping[int, bytes], deadline: float | None
    ) -> Generator[tuple[int, bytes]]:
        """The answers as they come, until all who are here have answered, or the deadline passed."""
        opened = self._begin(step, messages)
        try:
            while (found := self._next(opened, deadline)) is not None:
                yield from found
            with self._changed:
                self._silent |= (opened.handed & self._lines.keys()) - opened.done - self._paused
        finally:
            with self._changed:
                self._open = None
                self.unreached = set(messages) - opened.handed

    def _begin(self, step: str, messages: Mapping[int, bytes]) -> _Open:
        first = next(iter(messages.values()), b"")
        distinct = set(messages.values())
        framed = {message: Request(What.STEP, step, message).encode() for message in distinct}
        named = {message: Envelope.decode(message).plan for message in distinct}
        opened = _Open(
            messages,
            {client: framed[message] for client, message in messages.items()},
            {client: named[message] for client, message in messages.items()},
        )
        with self._changed:
            self.reasons, self.last_message, self._last_digest, self._open = {}, first, named.get(first, b""), opened
            for client in messages:
                self._hand(opened, client)
        return opened

    def _hand(self, opened: _Open, client: int) -> None:
        """Send a client its message, if it is here and has not answered it."""
        line = self._lines.get(client)
        if line is not None and client in opened.messages and client not in opened.done:
            opened.handed.add(client)
            line.post(opened.frames[client], opened.digests[client])

    def _next(self, opened: _Open, deadline: float | None) -> list[tuple[int, bytes]] | None:
        """All answers that have arrived; None when there is nothing more to wait for."""
        with self._changed:
            while not opened.arrived:
                if self._stopped:
                    raise Stopped("the server stops: the open round is asked for again when it is back")
                wait = self._wait(opened, deadline)
                if wait is not None and wait <= 0:
                    return None
                self._changed.wait(wait)
            found = list(opened.arrived)
            opened.arrived.clear()
            opened.size = 0
            return found

    def _wait(self, opened: _Open, deadline: float | None) -> float | None:
        """Seconds until the exchange may be over by itself; None where only something new can end it."""
        now = time.monotonic()
        ends = [] if deadline is None else [deadline - now]
        missing = [client for client in opened.messages if client not in opened.done]
        if not missing:
            return 0.0
        if self._may_end(opened, missing):
            waits = [self._left[client] + self._patience for client in missing if client in self._left]
            if any(client in self._lines and client not in self._paused | self._silent for client in missing):
                waits.append(opened.began + self._silence)
            ends.append(max([0.0, *(until - now for until in waits)]))
        return min(ends) if ends else None

    def _may_end(self, opened: _Open, missing: list[int]) -> bool:
        """Whether a round need not wait for somebody to come: it counts, or it cannot any more, or the next one can."""
        if not opened.done:
            return False
        if len(opened.reported) >= self.enough or len(opened.reported) + len(missing) < self.enough:
            return True
        # Who declined and came back, perhaps with a larger budget, has answered in this round.
        return len(opened.done & self._counted_on) >= self.enough

    def await_quorum(self, gather: float = 0.0) -> None:
        """Wait until as many participants are here as a round needs, and `gather` seconds for more, if any lack."""
        until = None
        with self._changed:
            while True:
                if self._stopped:
                    raise Stopped("the server stops while it waits for participants")
                now = time.monotonic()
                if self.present < self.quorum and not self._nobody_willing:
                    until = None
                elif until is None:
                    until = now + gather
                if until is not None and (now >= until or self.present >= self.clients):
                    return
                self._changed.wait(1.0 if until is None else max(0.01, until - now))

    def take_strays(self) -> Counter[str]:
        """What was wrong with answers that came when no round was open; here they are forgotten."""
        with self._changed:
            taken, self._strays = self._strays, Counter()
            return taken

    def reconnect(self, why: str) -> None:
        """Ask everybody to come again: what they are told when they come has changed."""
        with self._changed:
            lines = list(self._lines.values())
        for line in lines:
            line.reconnect(why)

    def stop(self) -> None:
        """Let the coordinator's thread end, whatever it waits for."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    # --- the server's side

    @property
    def present(self) -> int:
        """How many participants are here, have not paused, and neither declined nor gave no answer the last time."""
        return len(self._counted_on)

    @property
    def _counted_on(self) -> set[int]:
        return self._lines.keys() - self._paused - self._declined - self._unable

    @property
    def _nobody_willing(self) -> bool:
        """Whether all places are taken by participants that decline: then there is nobody to wait for."""
        return len(self._declined & self._lines.keys()) >= self.clients

    @property
    def strays(self) -> Counter[str]:
        """What was wrong with answers that came when no round was open, since the coordinator took them."""
        with self._changed:
            return self._strays.copy()

    @property
    def connected(self) -> frozenset[int]:
        """Who is here, pausing or not."""
        return frozenset(self._lines)

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """Those who are here and have not answered the open round."""
        opened = self._open
        return () if opened is None else tuple(sorted(opened.handed - opened.done))

    @property
    def full(self) -> bool:
        """Whether so much waits for the coordinator that participants should wait with more."""
        opened = self._open
        return opened is not None and opened.size >= ROOM

    def come(self, client: int, line: Line) -> Line | None:
        """A participant is here, and gets the open round's message; the line that it had before, if any."""
        with self._changed:
            before = self._lines.get(client)
            self._lines[client] = line
            self._left.pop(client, None)
            self._paused.discard(client)
            self._declined.discard(client)  # its owner may have raised the budget
            if self._open is not None:
                self._open.done -= self._unable & {client}  # what kept it from answering may have passed
                self._hand(self._open, client)
            self._unable.discard(client)
            self._changed.notify_all()
            return before

    def go(self, client: int, line: Line) -> None:
        """A participant's line was cut; one that has a new one already stays."""
        with self._changed:
            if self._lines.get(client) is line:
                del self._lines[client]
                self._left[client] = time.monotonic()
                self._paused.discard(client)
                self._changed.notify_all()

    def pause(self, client: int) -> None:
        """A participant is not waited for until it resumes."""
        with self._changed:
            self._paused.add(client)
            self._changed.notify_all()

    def resume(self, client: int) -> None:
        """A participant goes on."""
        with self._changed:
            self._paused.discard(client)
            self._changed.notify_all()

    def forget(self, client: int) -> None:
        """A participant left for good: nobody waits for it."""
        with self._changed:
            self._left.pop(client, None)
            self._silent.discard(client)
            if self._open is not None and client in self._open.handed - self._open.done:
                self._open.left.add(client)
            self._changed.notify_all()

    def deliver(self, client: int, response: Response) -> Taken:
        """Take a participant's answer to a step; `InvalidInput` where it is none."""
        answer = Answer.decode(response.payload)
        with self._changed:
            opened = self._open
            self._silent.discard(client)
            if opened is None or client not in opened.messages:
                self._strays["duplicate" if answer.digest == self._last_digest else "late"] += 1
                return Taken(answer, False)
            new = answer.digest == opened.digests[client] and client not in opened.done
            if new:
                opened.done.add(client)
                self._unable.discard(client)
                if answer.kind is Kind.DECLINED:
                    self._declined.add(client)
                else:
                    self._declined.discard(client)
                    opened.reported.add(client)
                if response.reason:
                    self.reasons[client] = response.reason[:300]
            if answer.kind is not Kind.DECLINED or client not in opened.left:  # for itself alone
                opened.arrived.append((client, response.payload))
                opened.size += len(response.payload)
            self._changed.notify_all()
            return Taken(answer, new)

    def refuse(self, client: int, plan: bytes, reason: str) -> None:
        """A participant gives no answer at all to a plan: it is not waited for, nor counted on for the next."""
        if not reason:
            raise InvalidInput("a response has neither an answer nor a reason")
        with self._changed:
            opened = self._open
            self._silent.discard(client)
            if opened is None or client in opened.done or opened.digests.get(client) != plan:
                return
            self.reasons[client] = reason[:300]
            opened.done.add(client)
            self._unable.add(client)
            self._changed.notify_all()


__all__ = ["Line", "Stopped", "Taken", "WebFleet"]

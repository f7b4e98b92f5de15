"""The web fleet: participants behind WebSockets, pages and native clients alike.

The coordinator's thread calls `exchange`; the server's event loop hands in who came, who went and what was answered.
Nothing here knows sockets: a participant is something that takes frames (`Line`). Whoever comes back in the middle of a
round is sent the same plan again. A round has one end: once most have answered it goes on for as long again, or for
`patience` seconds if that is more, whoever comes and goes. It ends only with as many reports as it needs: else it waits
for somebody to come. Who let a round pass is not waited for until it has answered some in time (`Punctuality`).
"""

from __future__ import annotations

import math
import threading
import time
from collections import Counter, deque
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from sordino.errors import InvalidInput, SordinoError
from sordino.fleets.interface import Fleet, Reply
from sordino.fleets.punctuality import Punctuality
from sordino.wire.messages import Answer, Kind
from sordino.wire.requests import Request, Response, What
from sordino.wire.signing import Envelope

PATIENCE = 2.0  #: seconds for which a round waits for the rest once most have answered; also for one who went away
SILENCE = 120.0  #: seconds after which a round ends that most have not answered
DEPARTURES = 2  #: times that a client may leave in a round until it is not waited for in it
FEW = 5  #: so many may be missing when half have answered; more, when two thirds have: a busy server takes its time
CHANCES = 3  #: rounds in a row without a report that counts after which coming back does not make a client counted on
PAST_ROUNDS = 16  #: rounds that are over of which late answers are recognised
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
class Delivery:
    """What became of a response: the answer in it, and whether it was new to an open round."""

    answer: Answer
    new: bool


@dataclass
class _WebExchange:
    """An exchange under way."""

    messages: Mapping[int, bytes]
    frames: Mapping[int, bytes]
    digests: Mapping[int, bytes]
    handed: set[int] = field(default_factory=set)
    done: set[int] = field(default_factory=set)  #: answered, or refused without an answer
    reported: set[int] = field(default_factory=set)  #: those of them who sent a report
    left: set[int] = field(default_factory=set)  #: places left by somebody whose report may be on its way
    arrived: list[Reply] = field(default_factory=list)
    declines: dict[int, Reply] = field(default_factory=dict)  #: told at the end: who leaves takes its own along
    size: int = 0
    began: float = field(default_factory=time.monotonic)
    departures: Counter[int] = field(default_factory=Counter)  #: times that a client left without an answer
    awaited: frozenset[int] | None = None  #: whom the round waits for since most have answered; None before that
    end: float = math.inf  #: when it ends, whoever is missing; set once
    closed: bool = False

    @property
    def missing(self) -> list[int]:
        """Clients without an answer."""
        return [client for client in self.messages if client not in self.done]


@dataclass(frozen=True)
class _ClosedExchange:
    """A round that is over: who may still answer it in time, and until when."""

    digests: Mapping[int, bytes]
    limit: float
    missing: set[int]


class WebFleet(Fleet):
    """Participants by their numbers; `exchange` is the coordinator's side, everything else the server's."""

    def __init__(
        self,
        clients: int,
        quorum: int = 1,
        *,
        patience: float = PATIENCE,
        silence: float = SILENCE,
        admits_newcomers: bool = False,
    ) -> None:
        self.clients, self.quorum, self.admits_newcomers = clients, quorum, admits_newcomers
        self.enough = quorum  #: reports with which a round may end by itself, if anybody has answered
        self._patience, self._silence = patience, silence
        self._lines: dict[int, Line] = {}
        self._left: dict[int, float] = {}  # client -> when it went
        self._paused: set[int] = set()
        self._declined: set[int] = set()  # whose last answer was to decline, since they came
        self._unable: set[int] = set()  # who last gave no answer at all, since they came
        self._refused: set[int] = set()  # whose last report the coordinator refused
        self._without_report: Counter[int] = Counter()  # rounds in a row that a place declined, or was refused
        self._punctuality = Punctuality()
        self._past: deque[_ClosedExchange] = deque(maxlen=PAST_ROUNDS)
        self._changed = threading.Condition()
        self._open: _WebExchange | None = None
        self._stopped = False
        self._start: float | None = None  # when the countdown to the first round ends
        self._begun = False  # whether the operator has ended it
        self._strays: Counter[tuple[int, str]] = Counter()  # answers that came when no round was open
        self.last_message: bytes = b""  #: what was sent last, to somebody at least, in its envelope
        self._last_digest = b""

    # --- the coordinator's side

    def exchange(self, step: str, messages: Mapping[int, bytes], deadline: float | None) -> Generator[Reply]:
        """The replies as they come, until all who are here have answered, or the deadline passed.

        What came when no round was open comes first, as strays.
        """
        opened = self._begin(step, messages)
        try:
            with self._changed:
                strays, self._strays = self._strays, Counter()
            yield from (Reply(client, stray=kind) for client, kind in strays.elements())
            while (found := self._next(opened, deadline)) is not None:
                yield from found
        finally:
            with self._changed:
                self._open = None
        yield from (Reply(client, reached=False) for client in messages if client not in opened.handed)

    def _begin(self, step: str, messages: Mapping[int, bytes]) -> _WebExchange:
        first = next(iter(messages.values()), b"")
        framed = {message: Request(What.STEP, step, message).encode() for message in set(messages.values())}
        named = {message: Envelope.decode(message).plan for message in framed}
        opened = _WebExchange(
            messages,
            {client: framed[message] for client, message in messages.items()},
            {client: named[message] for client, message in messages.items()},
        )
        with self._changed:
            self.last_message, self._last_digest, self._open = first, named.get(first, b""), opened
            for client in messages:
                self._hand(opened, client)
        return opened

    def _hand(self, opened: _WebExchange, client: int) -> None:
        """Send a client its message, if it is here and has not answered it."""
        line = self._lines.get(client)
        if line is not None and client in opened.messages and client not in opened.done:
            opened.handed.add(client)
            line.post(opened.frames[client], opened.digests[client])

    def _next(self, opened: _WebExchange, deadline: float | None) -> list[Reply] | None:
        """All replies that have arrived; None when there is nothing more to wait for."""
        with self._changed:
            while not opened.closed:
                if self._stopped:
                    raise Stopped("the server stops: the open round is asked for again when it is back")
                wait = self._wait(opened, deadline)
                if wait is not None and wait <= 0:
                    self._close(opened, deadline)  # even while answers arrive: strays must not keep a round open
                elif opened.arrived:
                    break
                else:
                    self._changed.wait(wait)
            found, opened.arrived, opened.size = opened.arrived, [], 0
            return found if found or not opened.closed else None

    def _wait(self, opened: _WebExchange, deadline: float | None) -> float | None:
        """Seconds until the exchange is over by itself; None where only something new can end it."""
        now, missing = time.monotonic(), opened.missing
        if not missing:
            return 0.0
        if not self._may_end(opened, missing):
            return None if deadline is None else deadline - now
        waiting = self._waiting(opened, now)
        if not waiting:
            return 0.0
        most = len(waiting) <= max(min(len(opened.done), FEW), len(opened.done) // 2)
        if opened.awaited is None and (most or (deadline is None and now >= opened.began + self._silence)):
            opened.awaited = frozenset(waiting)
            opened.end = now + max(self._patience, now - opened.began) if most else now
        end = opened.end if opened.awaited is not None else opened.began + self._silence
        return min(max(waiting.values()), end if deadline is None else deadline) - now

    def _waiting(self, opened: _WebExchange, now: float) -> dict[int, float]:
        """Whom a round waits for, and until when each of them at most: who is away, for a little while only."""
        found: dict[int, float] = {}
        for client in opened.missing:
            if not self._is_awaited(opened, client):
                continue
            if client in self._lines:
                found[client] = math.inf
            elif (back := max(self._left[client], opened.began) + self._patience) > now:
                found[client] = back
        return found

    def _is_awaited(self, opened: _WebExchange, client: int) -> bool:
        """Whether a round waits for a client without an answer that is here, or has not been away for long."""
        if opened.departures[client] >= DEPARTURES or not self._punctuality.awaits(client):
            return False
        if opened.awaited is not None and client not in opened.awaited:
            return False  # it came when the end was settled
        return client not in self._paused if client in self._lines else client in self._left

    def _close(self, opened: _WebExchange, deadline: float | None) -> None:
        """End an exchange, and note who was waited for in vain."""
        now = time.monotonic()
        vain = set(self._waiting(opened, now)) if opened.awaited is None else set(opened.awaited)
        vain |= {client for client, times in opened.departures.items() if times >= DEPARTURES}
        vain = {client for client in vain - opened.done if self._punctuality.awaits(client)}
        for client in vain:
            self._punctuality.note_miss(client)
        end = opened.end if opened.awaited is not None else now + max(self._patience, now - opened.began)
        limit = end if deadline is None else deadline
        self._past.append(_ClosedExchange(opened.digests, limit, set(opened.missing) - vain))
        opened.arrived.extend(opened.declines.values())
        opened.closed, self._open = True, None

    def _may_end(self, opened: _WebExchange, missing: list[int]) -> bool:
        """Whether a round need not wait for somebody to come: it counts, or it cannot any more, or the next one can."""
        if not opened.done:
            return False
        reports = len(opened.reported - self._refused)  # nobody relies on whose last report was refused
        if reports >= self.enough or reports + len(missing) < self.enough:
            return True
        # Who declined and came back, perhaps with a larger budget, has answered in this round.
        return len(opened.done & self._counted_on) >= self.enough

    def await_quorum(self, gather: float = 0.0) -> None:
        """Wait until as many participants are here as a round needs, and `gather` seconds for more, if any lack.

        These seconds are a countdown (`starts_in`). It is called off when too few are left, and begins anew.
        """
        with self._changed:
            try:
                while not self._may_begin(gather):
                    wait = 1.0 if self._start is None else self._start - time.monotonic()
                    self._changed.wait(max(0.01, wait))
            finally:
                self._start, self._begun = None, False

    def _may_begin(self, gather: float) -> bool:
        """Whether a round may begin; sets the countdown, or calls it off."""
        if self._stopped:
            raise Stopped("the server stops while it waits for participants")
        if self.present < self.quorum and not self._nobody_willing:
            self._start, self._begun = None, False
            return False
        now = time.monotonic()
        if self._start is None:
            self._start = now + gather
        return self._begun or now >= self._start or self.present >= self.clients

    @property
    def starts_in(self) -> float | None:
        """Seconds until the first round begins; None where no countdown runs."""
        start = self._start
        return None if start is None else max(0.0, start - time.monotonic())

    def begin(self) -> bool:
        """End the countdown now; False where none runs, as too few are here or a round is open."""
        with self._changed:
            self._begun = self._start is not None
            self._changed.notify_all()
            return self._begun

    def rest(self, seconds: float) -> None:
        """Let a time pass, unless the server stops."""
        with self._changed:
            if self._changed.wait_for(lambda: self._stopped, max(0.0, seconds)):
                raise Stopped("the server stops between two rounds")

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
        return self._lines.keys() - self._paused - self._declined - self._refused - self._unable

    @property
    def _nobody_willing(self) -> bool:
        """Whether all places are taken by participants that decline, for good: then there is nobody to wait for."""
        return not self.admits_newcomers and len(self._declined & self._lines.keys()) >= self.clients

    @property
    def strays(self) -> Counter[str]:
        """What was wrong with answers that came since the last round, while none is open."""
        with self._changed:
            return Counter(kind for _, kind in self._strays.elements())

    @property
    def connected(self) -> frozenset[int]:
        """Who is here, pausing or not."""
        return frozenset(self._lines)

    @property
    def waiting_for(self) -> tuple[int, ...]:
        """Those who have the open round's plan, have not answered it, and are waited for."""
        with self._changed:
            opened = self._open
            if opened is None:
                return ()
            return tuple(sorted(c for c in opened.handed - opened.done if self._is_awaited(opened, c)))

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
            if self._without_report[client] < CHANCES:
                self._declined.discard(client)  # its owner may have raised the budget
                self._refused.discard(client)
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
                if self._open is not None and client in self._open.handed - self._open.done:
                    self._open.departures[client] += 1
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
            if self._open is not None:
                self._open.declines.pop(client, None)
                if client in self._open.handed - self._open.done:
                    self._open.left.add(client)
            self._changed.notify_all()

    def renew(self, client: int) -> None:
        """A place was given to somebody who has nothing to do with its last holder: what that one did is past."""
        with self._changed:
            del self._without_report[client]
            self._declined.discard(client)
            self._refused.discard(client)

    def note_outcome(self, counted: Iterable[int], refused: Iterable[int]) -> None:
        """The coordinator has counted the reports of some clients in the last round, and refused those of others."""
        with self._changed:
            for client in refused:
                self._without_report[client] += 1
                self._refused.add(client)
            for client in counted:
                del self._without_report[client]
                self._refused.discard(client)

    def deliver(self, client: int, response: Response) -> Delivery:
        """Take a participant's answer to a step; `InvalidInput` where it is none."""
        reply = Reply(client, response.payload, response.reason[:300])
        answer = reply.answer
        with self._changed:
            opened = self._open
            self._note_late(client, answer.digest)
            if opened is None or client not in opened.messages:
                self._strays[client, "duplicate" if answer.digest == self._last_digest else "late"] += 1
                return Delivery(answer, False)
            new = answer.digest == opened.digests[client] and client not in opened.done
            if new:
                opened.done.add(client)
                self._punctuality.note_answer(client)
                self._unable.discard(client)
                if answer.kind is Kind.DECLINED:
                    self._declined.add(client)
                    self._without_report[client] += 1
                else:
                    self._declined.discard(client)
                    opened.reported.add(client)
            if answer.kind is not Kind.DECLINED or answer.digest != opened.digests[client]:
                opened.arrived.append(reply)
                opened.size += len(response.payload)
            elif not new:
                opened.arrived.append(Reply(client, stray="duplicate"))
            elif client not in opened.left:  # for itself alone
                opened.declines[client] = reply
            self._changed.notify_all()
            return Delivery(answer, new)

    def _note_late(self, client: int, digest: bytes) -> None:
        """Count an answer to a round that the others ended sooner, if it came within the time of that round.

        A client that is a little slower than the others, and is not waited for, could never answer in time otherwise.
        """
        for past in self._past:
            if client in past.missing and past.digests[client] == digest and time.monotonic() <= past.limit:
                past.missing.discard(client)
                self._punctuality.note_answer(client)

    def refuse(self, client: int, plan: bytes, reason: str) -> None:
        """A participant gives no answer at all to a plan: it is not waited for, nor counted on for the next."""
        if not reason:
            raise InvalidInput("a response has neither an answer nor a reason")
        with self._changed:
            opened = self._open
            if opened is None or client in opened.done or opened.digests.get(client) != plan:
                return
            opened.arrived.append(Reply(client, reason=reason[:300]))
            opened.done.add(client)
            self._unable.add(client)
            self._changed.notify_all()


__all__ = ["Delivery", "Line", "Stopped", "WebFleet"]

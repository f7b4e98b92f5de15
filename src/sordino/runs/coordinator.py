"""The server's round loop: it knows methods, channels and fleets by their interfaces only.

Deadlines, quorum, late, duplicate and wrong-round answers, and the check of every report are here, once, for every
fleet. A round is a value: state in, state and record out; nothing is kept in between, so whoever writes the state down
after a round can go on from it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sordino.channels.interface import Channel
from sordino.errors import InvalidInput, SordinoError
from sordino.fleets.interface import Fleet, Reply, Tallied
from sordino.methods.interface import Method, State
from sordino.methods.private_evaluation import EVALUATE, PrivateEvaluation
from sordino.methods.upload import ROWS, Lost, ReportSum, Tally
from sordino.parts.timeline import phase
from sordino.wire.messages import Answer, Kind, Plan

BATCH_BYTES = 2**25  #: reports waiting to be added, at most
PREPARE = "prepare"  #: the step before the first round
LONGEST_REASON = 500  #: letters of a client's reason that are kept


class NobodyLeft(SordinoError):
    """Every client of the federation was asked and declined: no budget is left, and the run ends."""

    def __init__(self, message: str, attendance: Attendance) -> None:
        super().__init__(message)
        self.attendance = attendance  #: of what they declined, a round or the preparation


_WHY_DECLINED = (
    "their budgets allow no more. Raise clients.budget (real clients: each owner its own limit, in client.toml), ask "
    "for a smaller epsilon, or run fewer rounds; what has no proof leaves only if clients.allow_unproven names it"
)


@dataclass(frozen=True)
class Rules:
    """When a round counts: at least `quorum` reports within `deadline` seconds (None: wait for all).

    A channel of several steps may wait so long in each of them: what comes too late for one of them is not waited for,
    and the others can still finish.
    """

    quorum: int = 1
    deadline: float | None = None


@dataclass
class Attendance:
    """Who answered what in one round, and why not."""

    chosen: tuple[int, ...] = ()  #: those whom the round is about
    vacant: frozenset[int] = frozenset()  #: those of them that are places which nobody holds
    names: Mapping[int, str] = field(default_factory=dict)  #: of the clients, as far as they are known
    clients: tuple[int, ...] = ()  #: clients that were sent what a report answers; only they can report
    reported: list[int] = field(default_factory=list)
    declined: list[int] = field(default_factory=list)
    withdrawn: list[int] = field(default_factory=list)  #: declined in a later step: something may have left by then
    refused: dict[int, str] = field(default_factory=dict)  #: client -> what was wrong with its answer
    reasons: dict[int, str] = field(default_factory=dict)  #: client -> why it declined or gave no answer, in its words
    receipts: dict[int, bytes] = field(default_factory=dict)  #: client -> the receipt that it gave last
    lost: list[str] = field(default_factory=list)  #: why there is no sum of some class of clients
    strays: Counter[str] = field(default_factory=Counter)  #: late, duplicate, not asked, another plan, unreadable
    steps: int = 0  #: exchanges with clients
    bytes_up: int = 0
    bytes_down: int = 0

    def note(self, reply: Reply) -> None:
        """Note what came with a reply, be its answer good or not."""
        self.bytes_up += len(reply.message or b"")
        if reply.receipt:
            self.receipts[reply.client] = reply.receipt
        if reply.reason:
            self.reasons[reply.client] = printable(reply.reason)
        if reply.stray:
            self.strays[reply.stray] += 1

    def called(self, client: int) -> str:
        """A client's name; its number where it has none."""
        return self.names.get(client, f"client {client}")

    @property
    def asked(self) -> int:
        """How many the round is about."""
        return len(self.chosen)

    @property
    def others(self) -> dict[str, int]:
        """The strays that are not late."""
        return {kind: number for kind, number in sorted(self.strays.items()) if kind != "late"}


@dataclass(frozen=True)
class RoundOutcome:
    """What became of one round; the preparation is round 0."""

    plan: Plan
    attendance: Attendance
    why_lost: str = ""  #: empty where the round counted, so that the state changed
    noise: float | None = None  #: predicted L2 norm of the noise in the mean

    @property
    def counted(self) -> bool:
        """Whether the state changed."""
        return not self.why_lost


@dataclass(frozen=True, eq=False)
class EvaluationOutcome:
    """What became of one private evaluation: the sum of all noisy counts, and who answered."""

    plan: Plan
    attendance: Attendance
    total: NDArray[np.int64]


class Coordinator:
    """Runs rounds of one federation."""

    def __init__(self, method: Method, fleet: Fleet, channel: Channel, federation: str, rules: Rules = Rules()) -> None:  # noqa: B008 (a frozen value)
        self._method, self._fleet, self._channel = method, fleet, channel
        self._federation, self._rules = federation, rules

    def prepare(self, plan: Plan | None = None) -> Attendance:
        """What comes once, before the first round, where the method asks for it; it takes as long as it takes.

        The plan, if given, is one that was sent before a restart: it goes out again as it was.
        """
        plan = plan or self._method.preparation(self._federation)
        if plan is None:
            raise InvalidInput(f"{type(self._method).__name__} has nothing to prepare: begin with the first round")
        messages = dict.fromkeys(range(self._method.clients), plan.encode())
        attendance = self._begin(plan, tuple(messages))
        attendance.reported = [client for client, _ in self._exchange(plan, attendance, PREPARE, messages)]
        attendance.names = self._fleet.names(plan.round)
        if len(attendance.declined) == len(messages):
            raise NobodyLeft(f"all {len(messages)} clients declined to prepare: {_WHY_DECLINED}", attendance)
        return attendance

    def round(self, state: State, plan: Plan | None = None) -> tuple[State, RoundOutcome]:
        """One round. A round without a quorum leaves the model as it is; one that all clients decline ends the run.

        Pass `plan` if it was stored before sending; otherwise it is computed from `state`.
        """
        clients = list(self._method.select(state))
        plan = plan or self._method.plan(state, self._federation)
        if plan.round != state.round + 1:
            raise InvalidInput(f"a plan of round {plan.round} cannot follow the state after round {state.round}")
        tally = self._method.tally(plan)
        attendance = self._begin(plan, tuple(clients))
        self._collect(plan, clients, tally, attendance)
        attendance.names = self._fleet.names(plan.round)  # some may have come in this round
        if clients and len(attendance.declined) == self._method.clients:
            raise NobodyLeft(f"all {len(clients)} clients declined in round {plan.round}: {_WHY_DECLINED}", attendance)
        why_lost = self._why_lost(attendance, tally)
        with phase("aggregate"):
            after = state.unchanged() if why_lost else self._method.update(state, plan, tally)
        if not isinstance(after, type(state)):
            raise InvalidInput(f"{type(self._method).__name__}.update must return a State, got {type(after).__name__}")
        if not after.finite:
            after, why_lost = state.unchanged(), "the model would not be finite any more: lower method.server_lr"
        noise = None if why_lost else tally.noise()
        return after, RoundOutcome(plan, attendance, why_lost, noise)

    def _begin(self, plan: Plan, chosen: tuple[int, ...]) -> Attendance:
        """Nobody has answered yet, and nobody can who has no place in this round."""
        self._fleet.begin_round(plan.round)
        return Attendance(chosen, frozenset(self._fleet.vacant(plan.round)) & frozenset(chosen))

    def evaluate(self, evaluation: PrivateEvaluation, state: State) -> EvaluationOutcome:
        """Ask all clients how good the model is on the records that they set aside; no answer changes the state.

        Reports go straight to the server, whatever the channel of training is: each has its own noise.
        """
        plan = evaluation.plan(state, self._federation)
        messages = dict.fromkeys(range(self._method.clients), plan.encode())
        attendance, total = self._begin(plan, tuple(messages)), np.zeros(evaluation.counts.values, np.int64)
        for client, body in self._exchange(plan, attendance, EVALUATE, messages):
            try:
                total += evaluation.decode(body)
            except InvalidInput as error:
                attendance.refused[client] = str(error)
            else:
                attendance.reported.append(client)
        return EvaluationOutcome(plan, attendance, total)

    def _why_lost(self, attendance: Attendance, tally: Tally) -> str:
        """Why this round does not count; empty where it does."""
        if len(attendance.reported) >= self._rules.quorum and tally.weight > 0:
            return ""
        came = f"{len(attendance.reported)} reports came and the quorum is {self._rules.quorum}"
        if attendance.lost:
            return f"{came}; {attendance.lost[0]}"
        if attendance.refused:
            return f"{came}; one was refused: {next(iter(attendance.refused.values()))}"
        if len(attendance.reported) >= self._rules.quorum:
            return "the clients that reported hold no records, and reports are weighed by records"
        if attendance.vacant:
            return f"{came}; {len(attendance.vacant)} of {attendance.asked} places are vacant: give them to new members"
        return f"{came}: lower rounds.quorum, or raise rounds.deadline"

    def _exchange(
        self, plan: Plan, attendance: Attendance, step: str, messages: Mapping[int, bytes], tally: Tally | None = None
    ) -> Iterator[tuple[int, bytes]]:
        """One step with some clients: the bodies of their good answers to a plan.

        With a tally, reports may arrive added up: they are added to it, and no bodies of theirs come.
        """
        seconds = None if step == PREPARE else self._rules.deadline
        deadline = None if seconds is None else time.monotonic() + seconds
        before = frozenset(attendance.clients)
        if step in (PREPARE, EVALUATE) or self._channel.leaving in (None, step):
            attendance.clients = tuple(dict.fromkeys((*attendance.clients, *messages)))
        attendance.steps += 1
        attendance.bytes_down += sum(map(len, messages.values()))
        ask = partial(self._fleet.exchange, step) if tally is None else self._fleet.exchange_sums
        with closing(ask(messages, deadline)) as replies:
            unreached = yield from _hear(replies, plan, frozenset(messages), attendance, deadline, tally)
        attendance.clients = tuple(c for c in attendance.clients if c in before or c not in unreached)

    def _collect(self, plan: Plan, clients: list[int], tally: Tally, attendance: Attendance) -> None:
        waiting: dict[int, bytes] = {}
        size = 0
        summed = tally if self._channel.adds_up and tally.in_parts else None
        exchange = partial(self._exchange, plan, attendance, tally=summed)
        for arrived in self._channel.collect(exchange, plan.encode(), clients):
            if isinstance(arrived, ReportSum | Lost):
                _add_sum(tally, arrived, attendance)
                continue
            client, body = arrived
            waiting[client] = body
            size += len(body)
            if len(waiting) >= ROWS or size >= BATCH_BYTES:
                _add(tally, waiting, attendance)
                waiting, size = {}, 0
        _add(tally, waiting, attendance)


def _add(tally: Tally, reports: Mapping[int, bytes], attendance: Attendance) -> None:
    if not reports:
        return
    with phase("aggregate"):
        refused = tally.add(list(reports), list(reports.values()))
    attendance.refused.update(refused)
    attendance.reported += [client for client in reports if client not in refused]


def _add_tallied(tally: Tally, found: Tallied, attendance: Attendance, late: bool) -> None:
    attendance.bytes_up += found.size
    if late:
        attendance.strays["late"] += len(found.clients)
        return
    with phase("aggregate"):
        tally.add_partial(found.sum)
    attendance.refused.update(found.refused)
    attendance.reported += [client for client in found.clients if client not in found.refused]


def _add_sum(tally: Tally, found: ReportSum | Lost, attendance: Attendance) -> None:
    attendance.refused.update(found.refused)
    if isinstance(found, Lost):
        attendance.lost.append(found.why)
        return
    try:
        tally.add_sum(found)
    except InvalidInput as error:
        attendance.lost.append(str(error))
    else:
        attendance.reported += found.clients


def _hear(
    replies: Iterator[Reply | Tallied],
    plan: Plan,
    asked: frozenset[int],
    attendance: Attendance,
    deadline: float | None,
    tally: Tally | None,
) -> Generator[tuple[int, bytes], None, set[int]]:
    """The bodies of good answers, each client's first; all others are counted by what is wrong with them.

    It returns the clients that were sent nothing. Whoever answered was reached, whatever a gateway says.
    """
    declined = attendance.declined if attendance.steps == 1 else attendance.withdrawn
    heard, unreached, late = set[int](), set[int](), False
    for reply in replies:
        if isinstance(reply, Tallied):
            assert tally is not None and not heard.intersection(reply.clients) and asked.issuperset(reply.clients)
            heard.update(reply.clients)
            late = deadline is not None and time.monotonic() > deadline
            _add_tallied(tally, reply, attendance, late)
            continue
        client = reply.client
        if not reply.reached:
            unreached.add(client)
            continue
        attendance.note(reply)
        if reply.message is None or late:
            continue
        late = deadline is not None and time.monotonic() > deadline
        try:
            problem = "late" if late else "not asked" if client not in asked else _mismatch(reply.answer, plan)
        except InvalidInput as error:
            attendance.refused[client] = str(error)
            continue
        if problem or client in heard:
            attendance.strays[problem or "duplicate"] += 1
            continue
        heard.add(client)
        attendance.refused.pop(client, None)
        if reply.answer.kind is Kind.DECLINED:
            declined.append(client)
        else:
            yield client, reply.answer.body
        if len(heard) == len(asked):
            break
    return unreached - heard - attendance.refused.keys()


def _mismatch(answer: Answer, plan: Plan) -> str:
    """What is wrong with an answer that is not to this plan; empty where it is."""
    if answer.round != plan.round:
        return "late" if answer.round < plan.round else "wrong round"
    return "" if answer.digest == plan.digest else "another plan"


def printable(reason: str) -> str:
    """A client's own words in one line that can be printed, cut short."""
    return "".join(letter if letter.isprintable() else " " for letter in reason[:LONGEST_REASON])


__all__ = ["Attendance", "Coordinator", "EvaluationOutcome", "NobodyLeft", "RoundOutcome", "Rules", "printable"]

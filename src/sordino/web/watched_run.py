"""A run with real clients as it may be shown while it goes on: members, rounds, reasons, what is proven so far.

`WatchedRun` is an observer; `sordino.web.live_server.serve_live` shows it at /live. It knows what the coordinator knows
and no more: what a member has spent follows from what was released, never from a ledger.
"""

from __future__ import annotations

import functools
import math
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, TypeVar

from sordino.errors import InvalidInput
from sordino.fleets.interface import Reply
from sordino.privacy.history import RoundReleases, members
from sordino.privacy.statement import ClientSet, Row, Statement
from sordino.recipe import Recipe
from sordino.report.private_figures import value_of
from sordino.report.records import RoundRecord, plain
from sordino.report.statement import to_json
from sordino.report.words import counted
from sordino.runs.coordinator import Attendance, printable
from sordino.runs.federation import Federation
from sordino.runs.observer import Observer
from sordino.runs.outcome import Outcome, statement_of
from sordino.runs.store import Past
from sordino.web.access import OPERATOR, Rights, Role
from sordino.wire.codec import JsonObject

KEPT_REASONS = 20  #: the last reasons of a member that are shown
SHOWN = 500  #: members that are shown one by one
SHARE = 20  #: of the time at most one part in so many goes into composing epsilons
ROUND_FIELDS = (
    "round", "accuracy", "loss", "metric", "score", "asked", "reported", "declined", "refused", "late", "counted",
    "seconds",
)  # fmt: skip

_Told = TypeVar("_Told", bound=Callable[..., None])


def _never_ends_the_run(method: _Told) -> _Told:
    """An error of the view is printed and shown to the operator; the run goes on without it."""

    @functools.wraps(method)
    def told(self: WatchedRun, *arguments: Any) -> None:
        try:
            with self._lock:
                method(self, *arguments)
                self._changes += 1
        except Exception as error:
            traceback.print_exc()
            self._problem = f"{type(error).__name__}: {error}"

    return told  # type: ignore[return-value]


@dataclass
class MemberActivity:
    """What is known of one member: counts are of rounds."""

    number: int
    name: str
    present: bool | None = None  #: whether it was there when it was asked last; None where nobody knows yet
    why: str = ""  #: why it is absent
    asked: int = 0
    reports: int = 0
    last_round: int = 0
    declined: int = 0
    refused: int = 0
    missing: int = 0  #: no answer came in time
    late: int = 0  #: answers that came when their round was over, since the coordinator was started
    reasons: deque[JsonObject] = field(default_factory=lambda: deque(maxlen=KEPT_REASONS))

    def note_reason(self, round: int, what: str, reason: str) -> None:
        """Keep why a round has no report; the same reason in rounds in a row is one entry."""
        told, last = {"what": what, "reason": printable(reason)}, self.reasons[-1] if self.reasons else {}
        if last and told.items() <= last.items() and last["last"] in (round - 1, round):
            last["last"] = round
        else:
            self.reasons.append({"first": round, "last": round, **told})


@dataclass(frozen=True)
class OpenStep:
    """What went out last, and who has not answered."""

    step: str
    round: int
    since: float  #: seconds since 1970
    waiting: frozenset[int]


class WatchedRun(Observer):
    """An observer that keeps what may be shown of a run; give it to `serve` beside others, and to `serve_live`.

    `name_of` tells a member's name by its number. No error of this observer ends a run.
    """

    def __init__(
        self, recipe: Recipe, name_of: Callable[[int], str] | None = None, *, federation: str | None = None
    ) -> None:
        self._recipe, self._name_of = recipe, name_of or (lambda number: f"client {number}")
        self.name, self.federation = recipe.name, federation or recipe.name
        self._lock = threading.RLock()
        self._members: dict[int, MemberActivity] = {}
        self._records: list[RoundRecord] = []
        self._releases: Sequence[RoundReleases] = ()
        self._federation: Federation | None = None
        self._statement: Statement | None = None
        self._stated = -1  # rounds that the statement is about
        self._open: OpenStep | None = None
        self._strays: Counter[str] = Counter()
        self._state, self._why, self._problem = "waiting", "the members are being invited", ""
        self._began = time.time()
        self._changes = self._statement_changes = 0
        self._due = threading.Event()  # for the statement
        for number in range(recipe.number_of_clients):
            self._member(number)

    def _member(self, number: int) -> MemberActivity:
        if number not in self._members:
            self._members[number] = MemberActivity(number, printable(self._name_of(number)))
        return self._members[number]

    # --- what the run tells: in the run's thread

    @_never_ends_the_run
    def restored(self, past: Past) -> None:
        """Show the rounds from before a restart."""
        self._records, self._releases = list(past.records), tuple(past.spent)
        reasons = {spent.round: spent.declined for spent in past.spent}
        for round, attendance in past.attendances.items():
            self._note(round, attendance, reasons.get(round, {}))
        self._due.set()

    @_never_ends_the_run
    def started(self, federation: Federation, preflight: Sequence[str], first: int) -> None:
        """Show that the rounds begin; all members have been invited."""
        self._federation, self._state, self._why = federation, "training", ""
        for one in self._members.values():
            one.present, one.why = True, ""
        self._due.set()

    @_never_ends_the_run
    def absent(self, reasons: Mapping[int, str]) -> None:
        """Show who did not take the invitation."""
        for client, reason in reasons.items():
            self._miss(client, reason)

    @_never_ends_the_run
    def asking(self, step: str, clients: Sequence[int]) -> None:
        """Show whom the run waits for."""
        round = 0 if step == "prepare" else self._last_round + 1
        self._open = OpenStep(step, round, time.time(), frozenset(clients))

    @_never_ends_the_run
    def replied(self, reply: Reply) -> None:
        """Show that a member is there, or that it is not."""
        if (step := self._open) is None:
            return
        if reply.stray == "late" or (reply.message is not None and _round_of(reply) < step.round):
            self._member(reply.client).late += 1
            return
        self._open = replace(step, waiting=step.waiting - {reply.client})
        if reply.message is None:
            self._miss(reply.client, reply.reason or ("no answer came" if reply.reached else "it cannot be reached"))
        else:
            one = self._member(reply.client)
            one.present, one.why = True, ""

    @_never_ends_the_run
    def prepared(self, attendance: Attendance) -> None:
        """Show who prepared."""
        self._note(0, attendance, attendance.reasons)

    @_never_ends_the_run
    def released(self, releases: Sequence[RoundReleases]) -> None:
        """Have the statement made anew."""
        self._releases = tuple(releases)
        self._due.set()

    @_never_ends_the_run
    def round(self, record: RoundRecord, attendance: Attendance) -> None:
        """Show a round that is over."""
        self._open = None
        self._records.append(record)
        self._note(record.round, attendance, attendance.reasons)

    @_never_ends_the_run
    def finished(self, outcome: Outcome) -> None:
        """Show the end, with the statement of all that was released."""
        self._open = None
        self._records = list(outcome.rounds)
        self._end("finished", outcome.result.stopped)
        self._state_figures(outcome.statement, len(outcome.releases))

    @_never_ends_the_run
    def failed(self, error: BaseException) -> None:
        """Show that the run broke off; it can be resumed."""
        if self._state != "finished":
            interrupted = isinstance(error, KeyboardInterrupt)
            self._end("failed", "the operator has stopped it" if interrupted else f"{type(error).__name__}: {error}")

    def _end(self, state: str, why: str) -> None:
        self._open, self._state, self._why = None, state, printable(why)

    def _miss(self, client: int, why: str) -> None:
        one = self._member(client)
        one.present, one.why = False, printable(why)

    def _note(self, round: int, attendance: Attendance, reasons: Mapping[int, str]) -> None:
        """Add up who answered what. Behind a shuffler nobody knows who reported: a report has another's number."""
        self._strays = self._strays + attendance.strays
        for client, name in attendance.names.items():
            if self._member(client).name != printable(name):  # the place has changed hands
                self._members[client] = MemberActivity(client, printable(name), present=True)
        for client in attendance.vacant:
            self._members.pop(client, None)
        for client in set(attendance.chosen) - attendance.vacant:
            self._member(client).asked += 1
        for client in attendance.declined:
            one = self._member(client)
            one.declined += 1
            one.note_reason(round, "declined", reasons.get(client) or "no reason was given")
        if self._recipe.method.channel.posts:
            return
        for client in attendance.reported:
            one = self._member(client)
            one.reports, one.last_round = one.reports + bool(round), max(one.last_round, round)
        for client, why in attendance.refused.items():
            one = self._member(client)
            one.refused += 1
            one.note_reason(round, "refused", why)
        heard = {*attendance.reported, *attendance.declined, *attendance.refused, *attendance.vacant}
        for client in set(attendance.chosen) - heard:
            one = self._member(client)
            one.missing += 1
            one.note_reason(round, "missing", reasons.get(client, ""))

    # --- the statement so far: in a thread of its own

    def keep_statement(self, ending: threading.Event) -> None:
        """Make the statement anew after each round, until the end; less often where that takes long."""
        while not ending.is_set():
            if not self._due.wait(0.5):
                continue
            self._due.clear()
            began = time.monotonic()
            try:
                self._make_statement()
            except Exception as error:  # the view goes on without a statement, and says so
                traceback.print_exc()
                self._problem = f"{type(error).__name__}: {error}"
            ending.wait(SHARE * (time.monotonic() - began))

    def _make_statement(self) -> None:
        with self._lock:
            federation, releases, over = self._federation, self._releases, self._state == "finished"
        if federation is None or over:
            return
        rounds = max((spent.round for spent in releases), default=0)
        found = statement_of(federation, releases, rounds, simulated=False)
        with self._lock:
            self._state_figures(found, len(releases))

    def _state_figures(self, statement: Statement, rounds: int) -> None:
        if rounds >= self._stated:
            self._statement, self._stated = statement, rounds
            self._statement_changes += 1
            self._changes += 1

    # --- what is shown

    def seen_by(self, rights: Rights) -> RunView:
        """The run as somebody with these rights sees it."""
        return RunView(self, rights)

    @property
    def _last_round(self) -> int:
        return self._records[-1].round if self._records else 0


def _round_of(reply: Reply) -> int:
    """The round that an answer is about; one that cannot be read is about none that is over."""
    try:
        return reply.answer.round
    except InvalidInput:
        return 2**62


class RunView:
    """A watched run as it is shown to somebody: the operator, a member or a reader."""

    def __init__(self, run: WatchedRun, rights: Rights = OPERATOR) -> None:
        self._run, self._rights = run, rights
        self.federation = run.federation

    @property
    def audience(self) -> Hashable:
        """Whoever has the same rights is shown the same."""
        return self._rights

    @property
    def changes(self) -> int:
        """Grows whenever something that is shown has changed."""
        return self._run._changes

    @property
    def statement_changes(self) -> int:
        """Grows whenever the statement has changed."""
        return self._run._statement_changes

    @property
    def state(self) -> str:
        """Where it stands: waiting, training, finished or failed."""
        return self._run._state

    @property
    def last_round(self) -> int:
        """The last finished round."""
        return self._run._last_round

    def summary(self) -> JsonObject:
        """The run in short."""
        run, recipe = self._run, self._run._recipe
        with run._lock:
            graded = next((record for record in reversed(run._records) if record.evaluated), None)
            found = {
                "name": run.name,
                "federation": run.federation,
                "watched": True,
                "role": str(self._rights.role),
                "title": recipe.title or recipe.name,
                "summary": recipe.described,
                "method": recipe.method.name,
                "clients": len(run._members),
                "free": 0,
                "absence": None,
                "budget": None,
                "operator": "",
                "by_invitation": True,
                "sample": False,
                "state": run._state,
                "why": self._why(),
                "round": run._last_round,
                "rounds": recipe.rounds.count,
                "quorum": recipe.rounds.quorum,
                "deadline": recipe.rounds.deadline or None,
                "participants": sum(one.present is not False for one in run._members.values()),
                "accuracy": None if graded is None else graded.accuracy,
                "loss": None if graded is None else graded.loss,
                "metric": "" if graded is None else graded.metric,
                "score": None if graded is None else graded.score,
                "private": _private(run._records),
            }
        return _plain(found)

    def _why(self) -> str:
        """Why it is in this state. What a run says at its end may quote members: that is the operator's alone."""
        run, rounds = self._run, self._run._recipe.rounds.count
        if run._state == "training":
            step, now = run._open, min(run._last_round + 1, rounds)
            if step is not None and step.step == "prepare":
                return f"before the first round, {counted(len(step.waiting), 'member')} still prepare"
            waiting = f", {counted(len(step.waiting), 'answer')} still to come" if step is not None else ""
            return f"round {now} of {rounds}{waiting}"
        if run._state == "waiting" or self._rights.role is Role.OPERATOR:
            return run._why
        return f"{run._last_round} of {rounds} rounds are done"

    def history(self, after: int = 0) -> list[JsonObject]:
        """The finished rounds after a given one."""
        with self._run._lock:
            records = [record for record in self._run._records if record.round > after]
        return [_plain({name: getattr(record, name) for name in ROUND_FIELDS}) for record in records]

    def live(self) -> JsonObject:
        """Members, and what the run waits for, as far as they are shown."""
        run, role = self._run, self._rights.role
        with run._lock:
            found: dict[str, object] = {"role": str(role), "waiting": self._waiting(), "members": None}
            if role is Role.READER:
                return _plain(found)
            spent = self._spent()
            shown = [own for _, own in sorted(run._members.items())][:SHOWN]
            found["members"] = [{**self._activity(one), "spent": spent.get(one.name)} for one in shown]
            if role is Role.OPERATOR:
                found |= {
                    "strays": dict(run._strays),
                    "uptime": time.time() - run._began,
                    "bytes_up": sum(record.bytes_up for record in run._records),
                    "bytes_down": sum(record.bytes_down for record in run._records),
                    "problem": run._problem,
                }
            return _plain(found)

    def _activity(self, one: MemberActivity) -> dict[str, object]:
        """All of a member's activity to the operator and to itself; to other members what it reported."""
        own = self._rights.role is Role.MEMBER and one.name == self._rights.member
        if own or self._rights.role is Role.OPERATOR:
            return {**asdict(one), "own": own}
        return {"number": one.number, "name": one.name, "reports": one.reports, "last_round": one.last_round}

    def _waiting(self) -> JsonObject | None:
        """What the run waits for now; from whom, to the operator."""
        run, step = self._run, self._run._open
        if step is None:
            return None
        told: JsonObject = {"step": step.step, "round": step.round, "since": step.since, "answers": len(step.waiting)}
        if self._rights.role is Role.OPERATOR:
            told["members"] = [run._member(client).name for client in sorted(step.waiting)[:SHOWN]]
        return told

    def _spent(self) -> dict[str, object]:
        """What each member has spent, by name, by the statement so far, in the terms of its leading figure."""
        statement = self._run._statement
        if statement is None or not statement.rows:
            return {}
        found: dict[str, object] = {}
        for row in statement.lead.rows:
            found |= dict.fromkeys(self._names(row.who), _figures(row))
        nothing = {**_figures(statement.lead.rows[0]), "epsilon": 0.0, "claimed": None}
        silent = [] if statement.silent is None else self._names(statement.silent)
        return found | dict.fromkeys(silent, nothing)

    def _names(self, who: ClientSet) -> list[str]:
        """The members that a row of a statement is about; it names those that have names, and numbers the others."""
        known = self._run._members
        if who.members:
            return [known[number].name for number in members(who.members) if number in known]
        if who.names:
            return [label.partition(" (")[0] for label in who.names]
        return [one.name for one in known.values()]

    def statement(self) -> JsonObject | None:
        """What is proven of all that was released so far; to readers without saying who is who."""
        with self._run._lock:
            found, state = self._run._statement, self._run._state
        if found is None:
            return None
        if self._rights.role is Role.READER:
            found = _without_names(found)
        return {"scope": "run", "over": state == "finished", **to_json(found)}


def _private(records: Sequence[RoundRecord]) -> JsonObject | None:
    """The last figure on records that members set aside, in words, and of which round it is."""
    last = next((record for record in reversed(records) if record.private is not None), None)
    if last is None or last.private is None:
        return None
    first = last.private.figures[0]
    return {"name": first.name, "value": value_of(first, last.private), "round": last.round}


def _figures(row: Row) -> dict[str, object]:
    epsilon = row.proven if math.isfinite(row.proven) else "infinite"
    claimed = None if row.claimed is None else row.claimed.epsilon
    about = {"adjacency": str(row.adjacency), "adversary": str(row.adversary)}
    return {"epsilon": epsilon, "delta": row.delta, "claimed": claimed, **about}


def _without_names(statement: Statement) -> Statement:
    """The same figures for groups of members, without who they are."""
    groups = dict.fromkeys(row.who for row in statement.rows if row.who.names)
    names = {
        who: ClientSet((f"group {number} ({counted(who.count, 'member')})",), who.count)
        for number, who in enumerate(groups, 1)
    }
    rows = tuple(replace(row, who=names.get(row.who, row.who)) for row in statement.rows)
    silent = statement.silent
    hidden = None if silent is None else ClientSet((counted(silent.count, "member"),), silent.count)
    return replace(statement, rows=rows, silent=hidden)


def _plain(found: Mapping[str, object]) -> JsonObject:
    packed = plain(found)
    assert isinstance(packed, dict)
    return packed


__all__ = ["RunView", "WatchedRun"]

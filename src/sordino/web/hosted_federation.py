"""One federation that a server hosts: its task, its participants, its run in a thread, and what is shown of it.

The run is `sordino.runs.serving.serve` over a web fleet: the loop, methods and folder of every other run. It waits
while fewer participants are here than a round needs, and goes on after a restart where it was.
"""

from __future__ import annotations

import json
import math
import secrets
import threading
import time
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Literal
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from sordino.client.invitation import CommonTerms, Invitation
from sordino.errors import InvalidInput, SordinoError
from sordino.fleets.web import PATIENCE, Stopped, WebFleet
from sordino.learning import datasets
from sordino.learning.examples import Examples
from sordino.methods.interface import State as ModelState
from sordino.recipe import EVERYTHING, Recipe
from sordino.report.folder import RunFolder
from sordino.report.records import RoundRecord
from sordino.report.statement import to_json, to_text
from sordino.runs.coordinator import Attendance
from sordino.runs.federation import Federation, check_start_travels, wire
from sordino.runs.journal import read_past
from sordino.runs.observer import Observer
from sordino.runs.serving import CoordinatorSetup, has_run, serve
from sordino.runs.stopping import TooFewClients
from sordino.storage.files import NotWritten, exclusive_lock, make_folder, write_whole
from sordino.web.limits import Limits
from sordino.web.page_task import PageTask, check, compile_task
from sordino.web.places import Invitations, Member, ParticipantKind, Places, Receipts, SharedLink
from sordino.web.renewal import MODEL, NAME, Renewal, finish
from sordino.web.report_bounds import check_bounds, notice
from sordino.wire.codec import JsonObject
from sordino.wire.messages import ANSWER_BYTES, Plan
from sordino.wire.signing import Author, Envelope, SigningKey, key_file

State = Literal["waiting", "training", "finished", "failed"]
KEPT_REFUSALS = 100  #: the last refused reports that are shown
SHOWN = 500  #: participants in the operator's view, those who are here first
AGAIN = 5.0  #: seconds until a run that too few answered goes on


@dataclass
class ParticipantActivity:
    """What the operator sees of one participant."""

    client: int
    kind: ParticipantKind = "page"
    connected: bool = False
    since: float = 0.0  #: when it came or went, in seconds since 1970
    last_round: int = 0
    reports: int = 0
    declined: int = 0
    refused: int = 0
    late: int = 0


@dataclass(frozen=True)
class HostingRules:
    """How a server hosts a federation."""

    operator: str = ""
    by_invitation: bool = False  #: whether each place has a token of its own
    shared_link: bool = False  #: whether one token admits everybody who has it
    limits: Limits = field(default_factory=Limits)
    patience: float = PATIENCE  #: seconds for which a round waits for the rest once most have answered
    gather: float = 0.0  #: seconds to wait for more participants before the first round
    pace: float = 0.0  #: seconds that a round takes at least, so that people can watch
    say: Callable[[str], None] = lambda _: None  #: hears what the operator should know

    @property
    def invites(self) -> bool:
        """Whether nobody joins without a token."""
        return self.by_invitation or self.shared_link


@dataclass(frozen=True)
class GatewayShare:
    """The part of a federation that a gateway hosts; its coordinator is elsewhere."""

    federation: str  #: the name that plans carry
    slots: range  #: places that the gateway gives out
    author: Author  #: who signs plans


class HostedFederation(Observer):
    """A federation on a server. `folder` holds everything that must survive a restart."""

    def __init__(
        self,
        recipe: Recipe,
        folder: Path,
        rules: HostingRules | None = None,
        share: GatewayShare | None = None,
        lock: ExitStack | None = None,
    ) -> None:
        """Host `recipe`. `lock` is the folder's, where somebody holds it already and hands it on."""
        rules = rules or HostingRules()
        self._given, self._rules = recipe, rules
        self.folder, self.limits = folder, rules.limits
        self.name = recipe.name  #: by which addresses call this federation
        self.run_folder = folder / "run"  #: where the run's own files lie
        self.has_sample = recipe.data.source in datasets.KNOWN  #: whether everybody may have some of its data
        self.operator, self._say, self._gather, self._pace = rules.operator, rules.say, rules.gather, rules.pace
        self.parts: Federation = self._fit(recipe)  # before anything is made
        if not rules.invites and (found := notice(self.parts)):
            self._say(found)
        make_folder(folder)
        self._alone = lock or ExitStack()  # one server at a time: two would give out the same places
        if lock is None:
            self._alone.enter_context(exclusive_lock(folder / ".serving", f"the federation in {folder}"))
        finish(folder)
        if (renewal := Renewal.of(folder)) is not None:
            recipe = renewal.apply(recipe, renewal.model(folder))
            self.parts = self._fit(recipe)
        self.recipe = recipe  #: with what changed when the federation began anew
        self._key: SigningKey | None = None  # where the coordinator is elsewhere
        if share is None:
            self._key = SigningKey.at(key_file(self.run_folder))
            share = GatewayShare(_named(folder, recipe), range(self.parts.clients), self._key.author)
        self.federation, self.slots = share.federation, share.slots
        self.author = share.author  #: who signs plans
        self.terms = CommonTerms.of(recipe, self.federation, self.parts.dataset, self.author)
        self.task: PageTask = compile_task(self.parts, self.federation, self.author)
        self.fleet = WebFleet(
            len(self.slots), recipe.rounds.quorum, patience=rules.patience, admits_newcomers=not rules.by_invitation
        )
        #: bytes of the largest binary message that a participant sends
        self.largest_message = self.task.largest_report + ANSWER_BYTES + self.limits.spare
        # Tokens are made for the recipe's name: a federation that begins anew has the same.
        self.invitations = Invitations.kept(folder, self.name) if rules.by_invitation else None
        self.link = SharedLink(folder, self.name) if rules.shared_link else None
        #: seconds after which the place of somebody who is away may go to another; None where it never does
        self.absence = None if rules.by_invitation else self.limits.absence
        self.places = Places(
            folder / "participants.jsonl", self.slots, self.invitations, link=self.link, limits=self.limits,
            freed=self.freed, passed=self.fleet.renew,
        )  # fmt: skip
        self._free, self._starts_in = self.places.free, self.starts_in  # as they were shown last
        self.receipts = Receipts(folder / "receipts.json", lambda id: self.places.find(id) is not None)
        self._activities = {m.client: ParticipantActivity(m.client, m.kind) for m in self.places.members.values()}
        self._history: list[RoundRecord] = []
        self._refusals: deque[JsonObject] = deque(maxlen=KEPT_REFUSALS)
        self._strays: Counter[str] = Counter()
        self._last_state: ModelState | None = None  # as a restart found it
        self._state: State = "waiting"
        self._why = ""
        self._began = time.time()
        self._round_began = time.monotonic()  # the round that is open, or was last
        self._thread: threading.Thread | None = None
        self.changes = 0  #: grows whenever something that is shown has changed
        self.rejected: deque[tuple[int, int, str]] = deque(maxlen=1000)  #: client, round, reason: for participants
        self._restore()

    def _fit(self, recipe: Recipe) -> Federation:
        """A recipe set up; refused where pages cannot carry it out, or one visitor could destroy its model."""
        check(recipe)
        parts = wire(recipe)
        if not self._rules.invites:
            check_bounds(parts)
        return parts

    # --- the run

    def start(self) -> None:
        """Begin, or go on, in a thread of its own; nothing happens where the federation is over."""
        if self._state != "finished":
            self._thread = threading.Thread(target=self._carry_out, name=f"run of {self.name}", daemon=True)
            self._thread.start()

    def stop(self) -> None:
        """End the thread; the open round is asked for again at the next start."""
        self._finish_writing()
        self._alone.close()

    def _finish_writing(self) -> None:
        """Write down what is left, and nothing after that."""
        self.fleet.stop()
        if self._thread is not None:
            self._thread.join(timeout=30)
        try:
            self.places.close()
            self.receipts.close()
        except NotWritten as error:  # who came or went since is asked again, or asked for, after the next start
            self._say(str(error))

    def renew(self, rounds: int | None, *, from_model: bool) -> HostedFederation:
        """The federation that begins anew in this one's place, under the same address and another name.

        `InvalidInput` where it cannot: nothing has changed then. This one writes no more, and its folder is kept.
        """
        if self._state not in ("finished", "failed"):
            raise InvalidInput(f"{self.name} is not over: it can begin anew when it is")
        renewal = Renewal(_new_name(self.name), self.federation, rounds, from_model)
        model = self.run_folder / MODEL
        if not model.is_file():
            model = renewal.model(self.folder)  # an attempt to begin anew may have broken off
        if from_model and not model.is_file():
            raise InvalidInput(f"{self.name} has no model to go on from: begin anew without it")
        check_start_travels(self._fit(renewal.apply(self._given, model)))
        self._finish_writing()
        renewal.carry_out(self.folder)
        self._say(f"{self.name} begins anew; the one before is in {renewal.model(self.folder).parent.parent}")
        return HostedFederation(self._given, self.folder, self._rules, lock=self._alone)

    def _carry_out(self) -> None:
        try:
            while True:
                try:
                    resume = has_run(self.run_folder)
                    setup = CoordinatorSetup(self.federation)
                    outcome = serve(self.recipe, self.fleet, self.run_folder, setup, resume=resume, observer=self)
                    self._end("finished", outcome.result.stopped)
                    return
                except TooFewClients as error:
                    self._why = str(error)
                    self._change("waiting")
                    time.sleep(AGAIN)
        except Stopped:
            return
        except SordinoError as error:
            self._end("failed", str(error))
        except Exception as error:  # the server goes on, and its operator must see what broke
            traceback.print_exc()
            self._end("failed", f"{type(error).__name__}: {error}")

    def _end(self, state: State, why: str) -> None:
        self._why = why
        self._change(state)
        self._say(f"{self.name} {'is over' if state == 'finished' else 'FAILED'}: {why}")

    def _change(self, state: State | None = None) -> None:
        self._state = state or self._state
        self.changes += 1

    # --- the run's own observer: it is called in the run's thread

    def started(self, federation: Federation, preflight: Sequence[str], first: int) -> None:
        """Wait for participants before the first round."""
        if first <= self.recipe.rounds.count:
            self._await(self._gather if first == 1 else 0.0)

    def prepared(self, attendance: Attendance) -> None:
        """Show who prepared."""
        self._note_answers(0, attendance)

    def round(self, record: RoundRecord, attendance: Attendance) -> None:
        """Show a round that is over, and wait where too few are left for the next."""
        self.receipts.settle()
        self._history.append(record)
        self._note_answers(record.round, attendance)
        self.fleet.note_outcome(attendance.reported, attendance.refused)
        self._change()
        self._say(f"{self.name}: {_said(record, self.recipe.rounds.count)}")
        if record.round < self.recipe.rounds.count:
            self.fleet.rest(self._round_began + self._pace - time.monotonic())
            self._await()

    def _await(self, gather: float = 0.0) -> None:
        if gather or self.fleet.present < self.fleet.quorum:
            self._change("waiting")
            self.fleet.await_quorum(gather)
        self._round_began = time.monotonic()
        self._change("training")

    def begin(self) -> None:
        """Begin the first round now; `InvalidInput` where that is not possible."""
        if not self.fleet.begin():
            raise InvalidInput(f"the first round of {self.name} cannot begin: {self.why}")

    def _note_answers(self, round: int, attendance: Attendance) -> None:
        """Show who answered what in a round."""
        self._strays = self._strays + attendance.strays  # another one: the server's loop reads it
        for client in attendance.reported:
            self._activity(client).reports += 1
            self._activity(client).last_round = round
        for client in attendance.declined:
            self._activity(client).declined += 1
        for client, reason in attendance.refused.items():
            self.refuse(client, round, reason)

    def refuse(self, client: int, round: int, reason: str) -> None:
        """Show that a participant's message was refused."""
        self._activity(client).refused += 1
        self._refusals.append({"client": client, "round": round, "reason": reason})
        self.rejected.append((client, round, reason))
        self._change()

    def _restore(self) -> None:
        """Restore what is known from before a restart."""
        if not has_run(self.run_folder):
            return
        found = RunFolder.open(self.run_folder)
        if Recipe.from_toml(found.recipe, EVERYTHING).fingerprint != self.recipe.fingerprint:
            raise InvalidInput(
                f"{self.folder} holds a federation with another recipe of this name: give another --folder, or leave "
                "the changes out"
            )
        past = read_past(found)
        self._history = list(past.records)
        self._last_state = None if past.checkpoint is None else past.checkpoint.state
        for round, attendance in past.attendances.items():
            self._note_answers(round, attendance)
        self.rejected.clear()
        result = found.final_result()
        if result is not None:
            self._end("finished", result.stopped)

    # --- participants

    def _activity(self, client: int) -> ParticipantActivity:
        if client not in self._activities:
            self._activities[client] = ParticipantActivity(client)
        return self._activities[client]

    def note_presence(self, client: int, kind: ParticipantKind | None = None) -> None:
        """Note that a participant of a kind came, or (without one) that a connection has ended."""
        own = self._activity(client)
        own.kind, own.connected, own.since = kind or own.kind, client in self.fleet.connected, time.time()
        self._change_places()

    def freed(self, client: int) -> None:
        """Note that a place was taken from its holder: nobody waits for it."""
        self.fleet.forget(client)
        self._change_places()

    def free_place(self, client: int) -> Member | None:
        """Take a place from its holder, whatever it does; who that was, if anybody."""
        member = self.places.members.get(client)
        if member is not None:
            self.places.leave(member)
            self.freed(client)
        return member

    def refresh(self) -> None:
        """Note what changes with time alone: places become free, and a countdown runs."""
        if self._free != self.places.free or self.starts_in != self._starts_in:
            self._change_places()

    def _change_places(self) -> None:
        """Somebody came or went, or a place has become free: in the server's own thread, which knows the places."""
        self._free, self._starts_in = self.places.free, self.starts_in
        self._change()

    def answered(self, client: int, round: int) -> None:
        """Note that a report has arrived."""
        self._activity(client).last_round = round
        self._change()

    def late(self, client: int) -> None:
        """Note an answer that came when nobody waited for it."""
        self._activity(client).late += 1
        self._change()

    def invitation(self, member: Member) -> bytes | None:
        """What a native client agrees to; None where the coordinator has not signed it yet."""
        own = self._invitation_of(member.client)
        return None if own is None else replace(own, receipt=self.receipts.of(member).hex()).encode()

    def _invitation_of(self, client: int) -> Invitation | None:
        return None if self._key is None else self.terms.invitation(client, self._key)

    @property
    def by_invitation(self) -> bool:
        """Whether nobody joins without a token."""
        return self.invitations is not None or self.link is not None

    def link_to(self, address: str, token: str) -> str:
        """The link with a token; what follows # is not sent to any server by itself."""
        return f"{address}/#federation={quote(self.name)}&token={token}&key={self.author.first.hex()}"

    # --- what is shown

    audience = None  #: all who are shown the same view: what is not for everybody is left out as a whole

    @property
    def state(self) -> State:
        """Where the federation stands; an open round that lacks participants waits for them."""
        waits = self._state == "training" and self.last_round < self.recipe.rounds.count and self._lacking
        return "waiting" if waits else self._state

    @property
    def why(self) -> str:
        """Why it is in this state, in a sentence."""
        if self._state == "waiting":
            return self._lacking or self._counting or self._why or "the first round is about to begin"
        if self._state == "training":
            lacking = f", {self._lacking}" if self._lacking else ""
            return f"round {self.last_round + 1} of {self.recipe.rounds.count}{lacking}"
        return self._why

    @property
    def _lacking(self) -> str:
        """Whom a round waits for, in words; empty where enough are here."""
        here, needed, all_here = self.fleet.present, self.fleet.quorum, len(self.fleet.connected)
        if here >= needed:
            return ""
        idle = all_here - here
        others = f"; {idle} more pause, have spent their budget or cannot answer" if idle > 0 else ""
        more = f"{needed - here} more participant{'' if needed - here == 1 else 's'}"
        return f"waiting for {more}: {here} of at least {needed} are here{others}"

    @property
    def _counting(self) -> str:
        """How long the countdown still runs, in words; empty where none does."""
        if self.starts_in is None:
            return ""
        free = len(self.slots) - self.fleet.present
        return (
            f"{self.fleet.present} are here: the first round begins in {self.starts_in:g} seconds, or as soon as "
            f"{free} more come"
        )

    @property
    def starts_in(self) -> float | None:
        """Whole seconds until the first round begins; None where no countdown runs."""
        left = self.fleet.starts_in
        return None if left is None else float(math.ceil(left))

    @property
    def last_round(self) -> int:
        """The last finished round."""
        return self._history[-1].round if self._history else 0

    @property
    def _last_graded(self) -> RoundRecord | None:
        """The last round that was evaluated."""
        return next((record for record in reversed(self._history) if record.accuracy is not None), None)

    def summary(self) -> JsonObject:
        """The federation in short."""
        graded, content = self._last_graded, self.task.content
        return {
            "name": self.name,
            "federation": self.federation,
            "title": content["title"],
            "summary": content["summary"],
            "operator": self.operator,
            "method": self.recipe.method.name,
            "clients": self.parts.clients,
            "free": self.places.free,
            "absence": self.absence,
            "state": self.state,
            "why": self.why,
            "round": self.last_round,
            "rounds": self.recipe.rounds.count,
            "quorum": self.recipe.rounds.quorum,
            "deadline": self.recipe.rounds.deadline or None,
            "participants": self.fleet.present,
            "starts_in": self.starts_in,
            "accuracy": None if graded is None else graded.accuracy,
            "loss": None if graded is None else graded.loss,
            "budget": content["budget"],
            "model": {"name": self.recipe.model.name, "size": content["model"]["size"]},
            "task_digest": self.task.digest,
            "by_invitation": self.by_invitation,
            "shared_link": self.link is not None,
            "sample": self.has_sample,
        }

    def history(self, after: int = 0) -> list[JsonObject]:
        """The finished rounds after a given one."""
        names = ("round", "accuracy", "loss", "asked", "reported", "declined", "refused", "late", "counted", "seconds")
        records = (record for record in self._history if record.round > after)
        return [{name: getattr(record, name) for name in names} for record in records]

    def live(self) -> JsonObject:
        """The operator's view."""
        people = sorted(self._activities.values(), key=lambda own: (not own.connected, own.client))
        members = self.places.members
        return {
            "participants": [{**asdict(each), "holds_place": each.client in members} for each in people[:SHOWN]],
            "joined": len(people),
            "refused": list(self._refusals),
            "strays": dict(self._strays + self.fleet.strays),
            "waiting_for": list(self.fleet.waiting_for),
            "uptime": time.time() - self._began,
            "bytes_up": sum(record.bytes_up for record in self._history),
            "bytes_down": sum(record.bytes_down for record in self._history),
        }

    @property
    def statement_changes(self) -> int:
        """Grows when the statement changes: once, when the federation is over."""
        return int(self._state == "finished")

    def statement(self) -> JsonObject:
        """About the whole schedule, until the federation is over; then about what was really released."""
        path = self.run_folder / "statement.json"
        if self._state == "finished" and path.is_file():
            told = json.loads(path.read_text())
            return {"scope": "run", **told, "text": (self.run_folder / "statement.txt").read_text()}
        return {"scope": "schedule", **self._scheduled}

    @cached_property
    def _scheduled(self) -> JsonObject:
        return {**to_json(self.task.schedule), "text": to_text(self.task.schedule)}

    def model(self) -> tuple[int, NDArray[np.float32]]:
        """The last finished round, and the parameters after it, with what else scoring takes in the order of names."""
        state = self._last_state or self.parts.method.init()
        others = sorted(self.parts.method.view(state).buffers or {})
        path = self.run_folder / MODEL
        if self._state == "finished" and path.is_file():
            from safetensors.numpy import load_file

            tensors = load_file(path)
            return self.last_round, _flat([tensors[name] for name in (*self.parts.layout.names, *others)])
        if self.fleet.last_message:
            plan = Plan.decode(Envelope.decode(self.fleet.last_message).message)
            parameters = plan.arrays.get("parameters", state.parameters)
            state = ModelState(plan.round - 1, parameters, {**state.arrays, **plan.arrays})
        view = self.parts.method.view(state)
        return state.round, _flat([view.parameters, *((view.buffers or {})[name] for name in others)])

    def sample(self, client: int) -> Examples:
        """The records of a public data set that the recipe allots to a slot."""
        if not 0 <= client < self.parts.clients:
            raise InvalidInput(f"slots are numbered from 0 to {self.parts.clients - 1}, got {client}")
        return self.parts.dataset.train.take(self.parts.parts[client])

    @property
    def status(self) -> JsonObject:
        """What participants are told when something changes."""
        return {
            "state": self.state,
            "round": self.last_round,
            "rounds": self.recipe.rounds.count,
            "participants": self.fleet.present,
            "needed": self.fleet.quorum,
            "places": len(self.slots),
            "starts_in": self.starts_in,
            "accuracy": None if self._last_graded is None else self._last_graded.accuracy,
            "deadline": self.recipe.rounds.deadline or None,
        }


def _flat(arrays: Sequence[NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.concatenate([array.reshape(-1) for array in arrays]).astype("<f4")


def _said(record: RoundRecord, rounds: int) -> str:
    """A round in one line, for the operator."""
    counts = {"declined": record.declined, "refused": record.refused, "late": record.late}
    others = "".join(f", {count} {what}" for what, count in counts.items() if count)
    graded = "" if record.accuracy is None else f"; accuracy {record.accuracy:.1%}"
    lost = "" if record.counted else "; it does not count"
    return f"round {record.round} of {rounds}: {record.reported} reported{others}{graded}{lost}"


def _named(folder: Path, recipe: Recipe) -> str:
    """The name that plans carry: the recipe's name, and a random suffix.

    Participants answer each round of a name once, so that a federation that begins anew needs another one.
    """
    path = folder / NAME
    if not path.exists():
        write_whole(path, _new_name(recipe.name).encode())
    return path.read_text().strip()


def _new_name(name: str) -> str:
    return f"{name}-{secrets.token_hex(4)}"


__all__ = ["GatewayShare", "HostedFederation", "HostingRules"]

"""A recipe carried out with real clients, over whatever network a fleet stands for: `serve(recipe, fleet, folder)`.

It is the same coordinator and the same folder as a simulation's. What only a simulation can see (losses, clipping,
what ledgers hold, whose labels are whose) is not there. Every round is durable when it is over, and a plan before it is
sent: whatever is killed when, the run goes on with the same plan, clients give the answers that they recorded, and a
round counts once.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from sordino import channels, preflight
from sordino.checkpoint import Saved
from sordino.client.invitation import CommonTerms, check_real
from sordino.coordinator import Attendance, Channel, Coordinator, Fleet, NobodyLeft, Rules
from sordino.coordinator import Round as Held
from sordino.course import LOST_ROUNDS, REAL, Course, Memory, Outcome, client_budgets, written
from sordino.durable import whole_lines, write_whole
from sordino.errors import InvalidInput, SordinoError
from sordino.fleets.signed import SignedFleet
from sordino.journal import Ended, Journal, exists, journal
from sordino.learning import models
from sordino.learning.evaluation import Scores, score
from sordino.messages import Plan
from sordino.methods.interface import State
from sordino.observer import Observer
from sordino.pace import one_thread
from sordino.privacy.history import Spent
from sordino.recipe import EVERYTHING, Recipe
from sordino.report.folder import RunFolder, alone
from sordino.report.records import Round, from_json, to_line
from sordino.signing import SigningKey, key_file
from sordino.wiring import Federation, wire

LONGEST_REASON = 500  #: letters of a client's reason that are kept
_DECLINED_AGAIN = "its plan went out again after a restart, and all clients declined: what came before does not count"


@runtime_checkable
class Inviting(Protocol):
    """A fleet that hands clients their invitations."""

    def invite(self, invitations: Mapping[int, bytes]) -> Mapping[int, str]:
        """Hand every client its invitation; those that do not take part come back with the reason."""
        ...


class TooFewClients(SordinoError):
    """Too few clients take part for now; nothing is lost, and the run goes on with `resume` when they are back."""


def serve(
    recipe: Recipe,
    fleet: Fleet,
    folder: str | Path,
    *,
    federation: str | None = None,
    resume: bool = False,
    channel: Channel | None = None,
    observer: Observer | None = None,
    notes: Mapping[str, Any] | None = None,
    key: Path | None = None,
) -> Outcome:
    """Carry a recipe out with a fleet's clients and leave a run's folder: recipe, metrics, statement, model, page.

    `fleet` needs `exchange` and nothing else. What it may have besides, by these names, is made use of:

        invite(invitations)   is called once, before the first round and after every restart, with the invitation of
                              each client and the receipt that it last gave; it says who does not take part, and why
        reasons               client -> why it declined, in the last exchange
        receipts              client -> its last receipt; kept with each round, and put back here after a restart
        unreached             clients to whom nothing of the last exchange was sent: they released nothing
        groups                ranges of clients whose invitations are handed on together, each signed for all of them
        take_strays()         what is wrong with answers that the fleet itself has turned away since it was last asked
                              -> how many; they are added to those of the round that has just ended

    `federation` is the name that plans and invitations carry (the recipe's if left out); a client agrees to a name
    once, so that another run needs another one. `channel` is how reports travel, if not as `sordino.channels.build` has
    it. `key` is the file with the key that signs everything that clients are sent, made where there is none. If left
    out it lies beside the folder; clients answer to this key alone, as long as the federation lasts. `notes` (JSON) are
    kept for the caller, who gets them back from `remembered`. A run that was stopped or killed goes on with `resume`,
    from the folder and with the recipe that lies in it; `begun` says whether there is one.

    `TooFewClients` is raised where too few have agreed at the start, or too few answer in a few rounds running: the
    run is not over, and goes on with `resume`.
    """
    check_real(recipe)
    if channel is None and recipe.method.channel.kind == "shuffler":
        raise InvalidInput(
            "reports of this recipe go through a shuffler, which the server cannot be itself: give the channel that "
            "goes through it (sordino.shuffler.channel.channel_of)"
        )
    with one_thread():
        parts = wire(recipe)
        way: Channel = channels.build(recipe, parts.method) if channel is None else channel
        if resume:
            _check_resumed(recipe, folder)
        with alone(folder):
            target = RunFolder.open(folder) if resume else RunFolder.create(folder, recipe.to_toml(), device=REAL)
            with journal(target.checkpoint) as book:
                with _empty_if_refused(target, resume):
                    name = _named(book, recipe, federation, notes or {})
                    expected = _expected(parts, name)
                    signing = SigningKey.at(key or key_file(Path(folder)))
                    over = target.result() is not None
                    absent = {} if over else _invited(parts, fleet, name, book, signing)
                served = _Served(parts, fleet, way, name, target, book, observer or Observer(), signing)
                return served.go(expected, absent)


def begun(folder: str | Path) -> bool:
    """Whether a folder holds a run, so that it is to be resumed; one that was killed before it began does not."""
    return (Path(folder) / "recipe.toml").is_file()


def remembered(folder: str | Path) -> dict[str, Any] | None:
    """The notes of the run in a folder, and under "federation" its name; None where it is a simulation's.

    There is no name and no note in one that was killed before it could write them down.
    """
    if RunFolder.open(folder).environment.get("device") != REAL:
        return None
    with _journal_of(folder) as book:
        about = {} if book is None else book.about()
    return {**json.loads(about.get("notes", "{}")), "federation": about.get("federation")}


def recorded(folder: str | Path) -> list[Round]:
    """The rounds that are over, as the journal has them; metrics.jsonl can lack the last one after a crash."""
    with _journal_of(folder) as book:
        return [] if book is None else [_round_of(line) for line in book.records()]


def reached(folder: str | Path) -> State | None:
    """The state after the last round that is over; None before the first."""
    with _journal_of(folder) as book:
        saved = None if book is None else book.saved()
    return None if saved is None else saved.state


@contextmanager
def _journal_of(folder: str | Path) -> Iterator[Journal | None]:
    """The journal of the run in a folder; None in one that was killed before it had any."""
    found = RunFolder.open(folder)
    if exists(found.checkpoint):
        with journal(found.checkpoint) as book:
            yield book
    else:
        yield None


def _round_of(line: str) -> Round:
    return from_json(Round, json.loads(line))


# --- before the first round -------------------------------------------------------------------------------------------


def _check_resumed(recipe: Recipe, folder: str | Path) -> None:
    found = RunFolder.open(folder)
    if Recipe.from_toml(found.recipe, EVERYTHING).fingerprint != recipe.fingerprint:
        raise InvalidInput(f"{folder} was run with another recipe: resume takes the recipe that lies there")
    if found.environment.get("device") != REAL:
        raise InvalidInput(f"{folder} holds a simulation: go on with it without clients (sordino run --resume)")


@contextmanager
def _empty_if_refused(folder: RunFolder, resume: bool) -> Iterator[None]:
    """A run that is refused before its first round leaves its folder free for the next attempt."""
    try:
        yield
    except SordinoError:
        if not resume:
            shutil.rmtree(folder.checkpoint)
            for name in ("recipe.toml", "environment.json"):
                (folder.path / name).unlink(missing_ok=True)
        raise


def _named(book: Journal, recipe: Recipe, wanted: str | None, notes: Mapping[str, Any]) -> str:
    """The federation's name: what it began with, which nobody changes later."""
    about = book.about()
    if not about:
        about = {"federation": wanted or recipe.name, "recipe": recipe.fingerprint, "notes": json.dumps(dict(notes))}
        book.begin(about)
    had = about["federation"]
    if wanted is not None and had != wanted:
        raise InvalidInput(
            f"this is a run of the federation {had!r} and was asked to go on as {wanted!r}: leave the name out"
        )
    return had


def _expected(parts: Federation, name: str) -> tuple[str, ...]:
    """What to expect; nobody rehearses, so that the size of an update is not known."""
    preparation = parts.method.preparation(name)
    if preparation is not None:
        return preflight.of_preparation(parts, preparation)
    if not any(parts.method.releases(parts.method.plan(parts.method.init(), name))):
        return ("Clients send nothing.",)
    own = ("Budgets are those of the recipe: each owner's own limit (client.toml) decides, and may be smaller.",)
    return (*preflight.of_federation(parts).sentences, *(own if parts.budgets else ()))


def _invited(parts: Federation, fleet: Fleet, name: str, book: Journal, key: SigningKey) -> dict[int, str]:
    """Hand out invitations, where the fleet can: who does not take part, and why. Too few at the start are refused."""
    if not isinstance(fleet, Inviting):
        return {}
    found = invitations(parts, name, key, book.receipts(), getattr(fleet, "groups", ()))
    absent = {c: _plain(why) for c, why in fleet.invite(found).items()}
    quorum = parts.recipe.rounds.quorum
    if book.last() is None and parts.clients - len(absent) < quorum:
        reasons = "; ".join(f"client {client}: {reason}" for client, reason in sorted(absent.items())[:5])
        raise TooFewClients(
            f"{parts.clients - len(absent)} of {parts.clients} clients take part in {name}, and the quorum is {quorum} "
            f"({reasons}). An owner who has not agreed yet finds the invitation in the client's folder: sordino client "
            "join FOLDER FOLDER/invitations/NAME.invitation. Who agreed to other terms under this name needs another "
            "(--federation NAME); a limit or a consent that is in the way is its owner's to change, in client.toml. "
            "Then start again"
        )
    return absent


def _plain(reason: object) -> str:
    """A client's own words, for the journal and for terminals: one line, cut short, of what can be printed."""
    return "".join(letter if letter.isprintable() else " " for letter in str(reason)[:LONGEST_REASON])


def invitations(
    parts: Federation,
    name: str,
    key: SigningKey,
    receipts: Mapping[int, bytes] | None = None,
    groups: Sequence[range] = (),
) -> dict[int, bytes]:
    """The invitation of each client to a federation of this name, with the receipt that it gave last, if any.

    Each is signed for its client alone, or for all clients of its group.
    """
    terms = CommonTerms.of(parts.recipe, name, parts.dataset, key.author)
    group_of = {client: group for group in groups for client in group}
    found = {}
    for client in range(parts.clients):
        own = terms.invitation(client, key, group_of.get(client))
        found[client] = replace(own, receipt=(receipts or {}).get(client, b"").hex()).encode()
    return found


# --- rounds -----------------------------------------------------------------------------------------------------------


class _Served:
    def __init__(
        self,
        parts: Federation,
        fleet: Fleet,
        channel: Channel,
        name: str,
        folder: RunFolder,
        book: Journal,
        observer: Observer,
        key: SigningKey,
    ) -> None:
        self._key = key
        self._parts, self._recipe, self._method = parts, parts.recipe, parts.method
        self._fleet, self._channel, self._name = fleet, channel, name
        self._folder, self._book, self._observer = folder, book, observer
        self._course = Course(parts, self._scored)
        self._spent: list[Spent] = []
        members = channels.members(self._recipe, self._method)
        self._releases = self._method.releases if members is None else members.releases

    def go(self, expected: Sequence[str], absent: Mapping[int, str]) -> Outcome:
        """All rounds, from the start or from the last one that is over; nobody is asked where the run is over."""
        state = self._restored()
        over = self._folder.result()
        stopped = self._course.why_over(state) if over is None else over.stopped
        if stopped is None:
            self._observer.started(self._parts, expected, state.round + 1)
            if absent:
                self._observer.absent(absent)
            state, stopped = self._rounds(state)
        return self._finish(state, stopped, expected)

    def _rounds(self, state: State) -> tuple[State, str]:
        """All rounds that are left, and why there are no more."""
        self._book.start()
        self._course.lap()
        rules = Rules(self._recipe.rounds.quorum, self._recipe.rounds.deadline or None)
        terms = CommonTerms.of(self._recipe, self._name, self._parts.dataset, self._key.author)
        signed = SignedFleet(self._fleet, self._key, terms.digest)
        coordinator = Coordinator(self._method, signed, self._channel, self._name, rules)
        stopped = None
        try:
            self._prepare(coordinator, state)
            while stopped is None:
                state = self._round(coordinator, state)
                stopped = self._why_over(state)
        except NobodyLeft as end:
            stopped = f"{end}. {self._first_reason()}"
        return state, stopped

    def _restored(self) -> State:
        """The state after the last round that is over; metrics.jsonl is made to say what the journal says."""
        saved = self._book.saved()
        self._spent = self._book.spent()
        for spent in self._spent:
            self._course.answered(spent)
        records = self._book.records()
        self._course.records = [_round_of(line) for line in records]
        lines = [line.encode() for line in records]
        metrics = self._folder.path / "metrics.jsonl"
        if whole_lines(metrics) != lines:
            write_whole(metrics, b"".join(line + b"\n" for line in lines))
        receipts = getattr(self._fleet, "receipts", None)
        if isinstance(receipts, MutableMapping):
            receipts.update(self._book.receipts())
        start = self._method.init()
        if saved is None:
            return start
        self._check_fit(saved.state, start)
        self._course.memory = replace(Memory(**saved.memory["memory"]), lost=0)  # a restart is another try
        return saved.state

    def _check_fit(self, state: State, start: State) -> None:
        """The model may be the user's own code, which can have changed since."""
        shapes = [{n: a.shape for n, a in (("", s.parameters), *s.arrays.items())} for s in (state, start)]
        if shapes[0] != shapes[1]:
            raise InvalidInput(
                f"the run has {state.parameters.size:,} parameters and the model {start.parameters.size:,}: the model "
                "has changed since. Put the old one back, or start the run anew in another folder"
            )

    def _planned(self, made: Plan) -> Plan:
        """The plan that was written down for this plan's round, or this one, which is now."""
        before = self._book.planned(made.round)
        if before is None:
            self._book.plan(made)
        return before or made

    def _prepare(self, coordinator: Coordinator, state: State) -> None:
        """What comes before the first round, unless it is over."""
        made = self._method.preparation(self._name)
        if made is None or self._book.last() is not None:
            return
        self._observer.preparing(self._parts.clients)
        plan = self._planned(made)
        sent = self._book.send(0)
        try:
            attendance = coordinator.prepare(plan)
        except NobodyLeft as end:
            if sent > 1:
                self._end(state, end.attendance, plan, _DECLINED_AGAIN, None)
            raise
        if len(attendance.reported) < self._recipe.rounds.quorum:
            raise TooFewClients(
                f"{len(attendance.reported)} of {attendance.asked} clients are prepared, and the quorum is "
                f"{self._recipe.rounds.quorum}. Nothing is lost: go on with --resume when more of them are back"
            )
        memory = self._course.memory
        memory.seconds += self._course.lap()
        memory.bytes_up += attendance.bytes_up
        memory.bytes_down += attendance.bytes_down
        self._end(state, attendance, plan, "", None)

    def _round(self, coordinator: Coordinator, state: State) -> State:
        plan = self._planned(self._method.plan(state, self._name))
        sent = self._book.send(plan.round)
        try:
            after, held = coordinator.round(state, plan)
        except NobodyLeft as end:
            if sent == 1:
                raise
            # They may have reported before: the round is lost, and whether nobody is left the next one shows.
            after, held = state.unchanged(), Held(plan.round, end.attendance, _DECLINED_AGAIN, 0.0, None, plan)
        held.attendance.strays.update(getattr(self._fleet, "take_strays", dict)())
        self._course.held(held)
        record = self._course.add(self._record(held, sent - 1), self._course.grade(after))
        self._end(after, held.attendance, plan, held.why_lost, record)
        self._observer.round(record)
        return after

    def _end(self, state: State, attendance: Attendance, plan: Plan, why_lost: str, record: Round | None) -> None:
        """Make a round part of the run, then tell metrics.jsonl, which follows the journal."""
        spent = self._spent_on(plan, attendance)
        self._course.answered(spent)
        saved = Saved(state, {}, {"memory": asdict(self._course.memory)})
        line = None if record is None else to_line(record)
        receipts = dict(getattr(self._fleet, "receipts", {}))
        self._book.end(Ended(plan.round, attendance, why_lost, spent, line, saved, receipts))
        self._spent.append(spent)
        if record is not None:
            self._folder.append_round(record)

    def _spent_on(self, plan: Plan, attendance: Attendance) -> Spent:
        """What left in a round: of everybody who was asked and did not decline at once.

        An answer that was late, refused or lost on its way left its client all the same, and a server cannot show that
        it never saw it. Nor does it know what came before a restart: a client that declines then may have reported.
        """
        releases = tuple(tuple(own) for own in self._releases(plan))
        once = self._book.sent(plan.round) == 1
        spared = {*attendance.declined, *self._unreached(plan, attendance)} if once else set()
        by_class: list[list[int]] = [[] for _ in releases]
        for client in attendance.clients if once else attendance.chosen:
            if client not in spared and releases:
                by_class[self._method.class_of(client)].append(client)
        reasons = getattr(self._fleet, "reasons", {})
        said = {client: _plain(reasons.get(client, "no reason was given")) for client in sorted(attendance.declined)}
        return Spent(plan.round, releases, tuple(by_class), said)

    def _unreached(self, plan: Plan, attendance: Attendance) -> set[int]:
        """To whom nothing was sent. Of an earlier step than the last, the fleet does not say; and whoever answered was
        reached, whatever a gateway says.
        """
        if plan.round and len(getattr(self._channel, "steps", ())) != 1:
            return set()
        return set(getattr(self._fleet, "unreached", ())) - {*attendance.reported, *attendance.refused}

    def _record(self, held: Held, restarts: int) -> Round:
        attendance = held.attendance
        return Round(
            held.number,
            asked=attendance.asked,
            reported=len(attendance.reported),
            declined=len(attendance.declined),
            refused=len(attendance.refused),
            late=attendance.strays["late"],
            strays=attendance.others,
            restarts=restarts,
            counted=held.counted,
            bytes_up=attendance.bytes_up,
            bytes_down=attendance.bytes_down,
        )

    def _scored(self, state: State, exam: str) -> Scores:
        """The common model on an exam; of models that only clients can see through, nothing."""
        exam_ = self._parts.exams[exam]
        loss = models.loss_for(self._recipe.model.name)
        model = self._parts.built.graded or self._parts.model
        found = [Scores.none(len(self._parts.dataset.classes))]
        for view in self._method.views(state, {}):
            buffers = view.buffers or None
            found += [score(model, view.parameters, buffers, loss, exam_, piece) for piece in exam_.pieces()]
        return Scores.together(found)

    # --- the end

    def _why_over(self, state: State) -> str | None:
        if self._course.memory.lost >= LOST_ROUNDS:
            raise TooFewClients(
                f"{self._course.memory.lost} rounds in a row did not count, the last of them because "
                f"{self._course.memory.why_lost}. Nothing that was recorded is lost: go on with --resume when enough "
                "clients are back"
            )
        return self._course.why_over(state)

    def _first_reason(self) -> str:
        reasons = [_plain(reason) for reason in dict(getattr(self._fleet, "reasons", {})).values() if reason]
        return f"The first of them says: {reasons[0]}" if reasons else "They gave no reason"

    def _finish(self, state: State, stopped: str, expected: Sequence[str]) -> Outcome:
        budgets = client_budgets(self._parts, self._spent, None)
        outcome = self._course.finish(state, stopped, expected, self._spent, budgets, None)
        return written(self._folder, outcome, self._recipe.model.name)


__all__ = ["Inviting", "Outcome", "TooFewClients", "begun", "invitations", "reached", "recorded", "remembered", "serve"]

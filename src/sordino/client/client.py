"""The client itself: what it agrees to, what it answers, what it refuses. Bytes in, bytes out; no network here.

    client = Client.open("clinic")
    client.join(invitation)             the owner has seen `client.offer(invitation)` and agreed
    client.answer("report", plan)       the report, recorded in the ledger with its releases before it is returned

One plan has one answer: asked again it gets the same bytes, and never a second draw. The bytes of a round that is over
are dropped after a while; asked for them then, the client declines. Each draw has a fresh key from the operating
system, which no message selects.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Self, TypeVar

import numpy as np

from sordino.channels.secure_sum import Members, plan_in
from sordino.client.clock import Clock, Overran
from sordino.client.folder import Agreements, Preparations
from sordino.client.identity import ClientIdentity
from sordino.client.invitation import Invitation, NotSigned
from sordino.client.membership import Membership, ids, reads_by_own_code
from sordino.client.offer import Offer
from sordino.client.older_ledger import OlderLedger
from sordino.client.own_records import OwnRecords
from sordino.client.refusal import Reason, Refused, refusing
from sordino.client.rows import KnownRows
from sordino.client.settings import NAME, Settings
from sordino.client.shuffler_sender import PATIENCE, STEP, ShufflerSender
from sordino.client.sum_progress import SumProgress
from sordino.errors import (
    BudgetExceeded,
    ConsentMissing,
    InvalidInput,
    LedgerUnavailable,
    NotAllowed,
    ReportCompacted,
    SordinoError,
)
from sordino.learning.stacked_model import LOOP, Execution
from sordino.methods.interface import ClientState
from sordino.methods.private_evaluation import EVALUATE
from sordino.methods.upload import Draw
from sordino.privacy.guarantee import Derived, Destination, Release
from sordino.privacy.history import RoundReleases
from sordino.privacy.ledger import Ledger, Released, ReportKey, Standing, admit_all, terms
from sordino.randomness import KEY_BYTES, Keystream
from sordino.recipe import CodeNotAllowed, Recipe
from sordino.report.caveats import own_code_caveats
from sordino.report.words import counted
from sordino.shuffler.remote import Rejected, ShufflerUnreachable
from sordino.storage.files import NotWritten, append_line, exclusive_lock, make_folder, write_whole
from sordino.wire.messages import Plan, answer_to
from sordino.wire.receipt import Seal
from sordino.wire.requests import Response
from sordino.wire.signing import Envelope

SUMMING = ("keys", "shares", "masked", "confirm", "unmask")
STEPS = ("prepare", "report", STEP, EVALUATE, *SUMMING)  #: all that a client answers
_SESSION = slice(4, 20)  #: where a message of a secure sum names its session

LOG_BYTES = 2**22  #: of the owner's log; then it begins anew, and the one before is kept
_TOLD = 3  #: how many of the records that are left out it names
LINE = 2000  #: letters of a line in it
DUE_SHARE = 0.25  #: of the bytes of all reports: so much must be due before a ledger in use is compacted
_ARE = "is, or was", "are, or were"
_RESTORED = ", before a restored ledger"  #: how the ledger calls a federation in which something may have left
T = TypeVar("T")

Randomness = Callable[[int], Draw]  #: round -> clients -> their randomness


def fresh(round: int) -> Draw:
    """A real client's randomness: a new key for every draw. Records are randomised in pieces, which share no key."""
    return lambda clients: Keystream(os.urandom(KEY_BYTES), [0] * len(clients), 0) if round == 0 else Keystream.fresh()


class Client:
    """The owner's client, in its folder; close it, or use it as a context manager."""

    def __init__(self, folder: Path, randomness: Randomness | None = None, execution: Execution = LOOP) -> None:
        """Use `Client.open` or `Client.create`."""
        self.folder = folder
        self.settings = Settings.read(folder / "client.toml")
        self.identity = ClientIdentity.read(folder / "identity.json")
        self._seal = Seal(self.identity.key)
        self._randomness = randomness or fresh
        self._execution = execution
        self._agreements = Agreements(folder / "federations")
        self._preparations = Preparations(folder / "prepared")
        self._memberships: dict[str, Membership] = {}
        self._records: dict[tuple[int, ...], OwnRecords] = {}  # by the shape that was agreed
        self._sums: dict[str, tuple[bytes, Plan]] = {}  # federation -> its last sum in this process, and its plan
        self._senders: dict[str, ShufflerSender] = {}
        self.turn = Clock()  #: one question is answered at a time; while one computes, others are
        self._open = ExitStack()
        self._locked = False
        self.ledger = self._open.enter_context(Ledger.open(folder / "ledger.sqlite"))
        self._known_rows = KnownRows(folder / "rows.sqlite", self.ledger)
        self._older_ledger = OlderLedger(folder, self.ledger, self._seal, self._agreements)
        self._answered_rounds: dict[str, dict[int, str]] = {}  # federation -> round -> the plan that was answered
        self._release_ids: set[str] = set()  # ids of all releases
        self._finite = Counter[str]()  # federation -> releases with a figure
        self._data_names: dict[str, set[str]] = {}  # federation -> the names of the data that it was answered with
        for entry in self.ledger.entries():
            if isinstance(entry.event, Released):
                self._note(entry.event.key, entry.event.releases)

    @classmethod
    def create(cls, folder: str | Path, settings: Settings, name: str = "") -> Client:
        """Make a client's folder, readable by its owner only; it must not exist, or be empty."""
        path = Path(folder)
        identity = ClientIdentity.new(name or path.resolve().name)
        make_folder(path, 0o700)
        try:
            if any(path.iterdir()):
                raise InvalidInput(f"{path} is not empty: give a new folder, or look at this one: sordino client show")
            path.chmod(0o700)
        except OSError as error:
            raise NotWritten(f"{path} cannot be used ({error.strerror or error}): give another folder") from None
        write_whole(path / "identity.json", identity.encode(), 0o600)
        Ledger.create(path / "ledger.sqlite").close()
        write_whole(path / "client.toml", settings.to_toml().encode())
        client = cls.open(path)
        client.log(f"made the client {identity.name} ({identity.id})")
        return client

    @classmethod
    def open(cls, folder: str | Path, *, randomness: Randomness | None = None, execution: Execution = LOOP) -> Client:
        """Open a client's folder.

        Other randomness than the operating system's is for tests, and for them alone; a simulation's execution makes
        training agree with it to the last bit.
        """
        client = cls(Path(folder), randomness, execution)
        try:
            client.require_disjoint_rows(first=True)
            client._apply_settings()
            client._older_ledger.look(client.log)
            client._compact(least=0.0)
            for federation, count in client.unproven_before().items():
                client.log(f"WARNING: {federation}: {unproven_words(count)}")
        except BaseException:
            client.close()
            raise
        return client

    def close(self) -> None:
        """Let go of the ledger and the folder."""
        self._open.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- what the owner sees

    def unproven_before(self) -> dict[str, int]:
        """Number of releases by federation that own code had a part in, and that have a finite figure in the ledger."""
        agreed = (name for name in self._agreements.names() if self._finite[name])
        return {name: self._finite[name] for name in agreed if self._ran_own_code(name)}

    def _ran_own_code(self, federation: str) -> bool:
        """True if an agreed recipe, or client.toml as it is today, names own code."""
        try:
            if (agreed := self._agreements.find(federation)) is not None:
                Recipe.from_toml(agreed.recipe, ())
        except CodeNotAllowed:
            return True
        except InvalidInput:  # damaged, or of an earlier version: that stops its own federation alone
            pass
        return reads_by_own_code(self.settings.data)

    def log(self, sentence: str) -> None:
        """Add a line to the owner's log, which cannot fill a disk; where it cannot be written, that stops nothing."""
        path = self.folder / "log.txt"
        with suppress(NotWritten, OSError):
            if path.exists() and path.stat().st_size > LOG_BYTES:
                path.replace(self.folder / "log.old.txt")
            line = f"{datetime.now(UTC).isoformat(timespec='seconds')}  {' '.join(sentence.split())[:LINE]}"
            append_line(path, line.encode(errors="replace"))

    @property
    def standing(self) -> Standing:
        """Where the budget stands."""
        return self.ledger.standing(self.settings.data.name)

    def federations(self) -> dict[str, int]:
        """The federations agreed to, each with the last round that was answered; 0 for none."""
        return {name: max(self._answered_rounds.get(name, {}), default=0) for name in self._agreements.names()}

    def knows(self, federation: str) -> bool:
        """Whether the owner has agreed to something under this name, and to who signs plans in it."""
        agreed = self._agreements.find(federation)
        return agreed is not None and bool(agreed.coordinator)

    def records(self, shape: tuple[int, ...]) -> OwnRecords:
        """The owner's records of a shape, read when they are first needed; those that are refused count as absent.

        A server must not hear of them: the log says which they are.
        """
        if shape not in self._records:
            records = OwnRecords.read_apart(self.settings.data, self.folder, shape)
            self._charge_rows_of_both()  # first: once rows are known, nothing says what left before
            records = self._take_rows(records)  # before anything leaves
            if records.warning:
                self.log(f"WARNING: {records.warning}, and start the client anew")
            if records.left_out:
                self.log(
                    f"WARNING: {len(records.left_out):,} of your records are left out of every report, as if they were "
                    f"not there, because they are not what they should be: {'; '.join(records.left_out[:_TOLD])}. "
                    "Correct them or remove them, and start the client anew"
                )
            self._records[shape] = records
        return self._records[shape]

    def _take_rows(self, records: OwnRecords) -> OwnRecords:
        """Without rows that were ever under a name that these data are disjoint from: they are charged to that name.

        The others are known under this name from now on.
        """
        name, others = self.settings.data.name, self.settings.data.disjoint_from
        own = self._known_rows.take(name, records.examples, lambda: self._last_release(name), others)
        if own.all():
            return records
        why = f"a row is also under {', '.join(others)} (data.disjoint_from)"
        return replace(
            records,
            examples=records.examples.take(np.flatnonzero(own)),
            left_out=(*[why] * int((~own).sum()), *records.left_out),
        )

    def _releases(self) -> Iterator[tuple[int, ReportKey]]:
        for entry in self.ledger.entries():
            if isinstance(entry.event, Released):
                yield entry.sequence, entry.event.key

    def _last_release(self, name: str) -> int:
        """The last entry of the ledger that released something under a name; 0 for none."""
        return max((at for at, key in self._releases() if key.dataset == name), default=0)

    def _last_of_both(self, *names: str) -> int:
        """The last entry that two names without a common row are both charged with.

        It left before the rows of both were known, or in a federation that one of them and another name answered, where
        what is kept from its rounds may be made of the rows of both; or nobody knows from which of them it was, as with
        a lost ledger.
        """
        releases = ((at, key.federation) for at, key in self._releases())
        both = (at for at, where in releases if where.endswith(_RESTORED) or self._mixes(where, names))
        return max([self._last_unknown(*names), *both])

    def _last_unknown(self, *names: str) -> int:
        """The last entry that left before the rows of all these names were known; of all, where they share a row."""
        shared = self._known_rows.common(names[0], [], names[1:])
        known = [None if shared else self._known_rows.since(name) for name in names]
        return max(self._last_release(name) if at is None else at for name, at in zip(names, known, strict=True))

    def _charge_rows_of_both(self) -> None:
        """Charge to both names what left while a row was, or may have been, under both.

        That is where the file of rows has such a row, was lost, or became older than the ledger knows it.
        """
        name = self.settings.data.name
        for other, after in self.ledger.disjoint_from(name).items():
            if (last := self._last_unknown(name, other)) > after:
                self._require_lock()
                self.ledger.set_disjoint(name, other, declared=True, after=last)
                self.log(
                    f"WARNING: rows.sqlite was lost, is older than the ledger, or has a row under both {name} and "
                    f"{other}: all that left up to entry {last} is charged to both"
                )

    def _mixes(self, federation: str, names: Sequence[str]) -> bool:
        answered = self._names_in(federation)
        return len(answered) > 1 and not answered.isdisjoint(names)

    def _names_in(self, federation: str) -> set[str]:
        """The names of the data that a federation was joined or answered with."""
        return {self._agreements.data(federation), *self._data_names.get(federation, ())} - {""}

    def require_disjoint_rows(self, *, first: bool = False) -> None:
        """Refuse rows that are under a name, too, that client.toml declares disjoint; `first`, as it begins to do so.

        This is for the owner, who declares it or joins by hand. Later a server would see that the client is silent:
        such rows are left out then.
        """
        name, others = self.settings.data.name, self.settings.data.disjoint_from
        if first:
            declared = self.ledger.disjoint_from(name)
            others = tuple(other for other in others if other not in declared)
        if not others:
            return
        self.ledger.require_known(others, "data.disjoint_from in client.toml")
        agreed = [self._agreements.find(each) for each in self._agreements.names()]
        shapes = {each.shape for each in agreed if each is not None}
        rows = [OwnRecords.read_apart(self.settings.data, self.folder, shape) for shape in shapes]
        rows.append(OwnRecords.read(self.settings.data, self.folder))  # whatever federations are about
        if common := self._known_rows.common(name, [each.examples for each in rows], others):
            shared = (f"{counted(n, 'row')} of {name} {_ARE[n > 1]}, also under {o}" for o, n in common.items())
            used = self._known_rows.common(name, [], others)
            removing = ". To remove these rows does not help: they were used under both names" if used else ""
            raise InvalidInput(
                f"client.toml says that the data {name} are disjoint from {', '.join(others)}, and "
                f"{' and '.join(shared)}: nothing is joined or answered. Use one name for all of these rows, or take "
                "the other name out of data.disjoint_from (the two then have one budget)"
                + (removing or ", or remove these rows")
            )
        for records in rows:
            self._take_rows(records)

    def _require_names_as_declared(self) -> None:
        """Refuse to answer once another process has declared other names disjoint than this one knows.

        With the lock held, none can any more.
        """
        if set(self.ledger.disjoint_from(self.settings.data.name)) != set(self.settings.data.disjoint_from):
            raise Refused(
                Reason.UNAVAILABLE,
                "another process of this client, with another client.toml, has declared which names of data are "
                "disjoint since this one began: start this one anew, and keep one alone",
            )

    def _require_own_federation(self, federation: str) -> None:
        """Refuse to go on with these data where a federation began with others: what is kept of it is made of those."""
        disjoint = set(self.settings.data.disjoint_from)
        for name in sorted(self._names_in(federation) - {self.settings.data.name}):
            if disjoint - set(self.ledger.disjoint_from(name)):  # its own name, or that of data with rows of both
                raise Refused(
                    Reason.NOT_AGREED,
                    f"you joined {federation} with the data {name}, and data.disjoint_from says that no row of these "
                    f"is in {', '.join(sorted(disjoint))}: go back to that data.name, or join another federation with "
                    "these data",
                )

    def _apply_settings(self) -> None:
        """Let the ledger write down what client.toml says of budget and consents, where that has changed."""
        name, standing = self.settings.data.name, self.standing
        declared, others = set(self.ledger.disjoint_from(name)), set(self.settings.data.disjoint_from)
        if others != declared:
            self._require_lock()  # no other process answers with the names as they were
        for other in sorted(others - declared):
            self.ledger.set_disjoint(name, other, declared=True, after=self._last_of_both(name, other))
            self.log(f"declared that {name} and {other} have no row in common: each has its own budget")
        for other in sorted(declared - others):
            self.ledger.set_disjoint(name, other, declared=False)
            self.log(f"{name} and {other} are no longer declared disjoint: they have one budget")
        self._charge_rows_of_both()
        wanted, had = self.settings.ledger_consents(), standing.consents
        for what in sorted(wanted.unproven - had.unproven):
            self.ledger.set_consent(name, what, granted=True)
            self.log(f"consent given: {what!r} may leave without a proof")
        if wanted.claimed and not had.claimed:
            self.ledger.set_consent(name, None, granted=True)
            self.log("consent given: claimed epsilons may be counted")
        if standing.budget != self.settings.ledger_budget():
            self.ledger.set_budget(name, self.settings.ledger_budget())
            self.log(f"budget set: epsilon {self.settings.budget.limit:g} ({terms(self.settings.ledger_budget())})")
        second, had_second = self.settings.ledger_summed_budget(), standing.summed and standing.summed.budget
        if second != had_second:
            self.ledger.set_summed_budget(name, second)
            said = "given up" if second is None else f"set: epsilon {second.limit:g} ({terms(second)})"
            self.log(f"budget for secure sums {said}")
        for what in sorted(had.unproven - wanted.unproven):
            self.ledger.set_consent(name, what, granted=False)
            self.log(f"consent withdrawn: {what!r} may no longer leave without a proof")
        if had.claimed and not wanted.claimed:
            self.ledger.set_consent(name, None, granted=False)
            self.log("consent withdrawn: claimed epsilons are no longer counted")

    # --- joining

    def offer(self, message: bytes) -> Offer:
        """What an invitation would mean; `Refused` says why it cannot be accepted. Nothing is agreed to."""
        with self.turn, self._logging_refusal("an invitation"):
            return self._offer(message)

    def join(self, message: bytes) -> Offer:
        """Agree to an invitation, for the owner who has read its offer; `Refused` where there is nothing to agree to.

        To agree again to the same terms changes nothing: it is how a server hands in its receipt after a pause.
        """
        with self.turn:
            offer = self.offer(message)
            federation, rotations = offer.invitation.federation, offer.invitation.rotations
            if not offer.agreed:
                text = self._run_clocked(federation, "the statement", offer.to_text)
                self._agreements.add(offer.invitation, text, self.settings.data.name)
                self.log(f"joined {federation} as client {offer.invitation.client}")
                membership = self._member(federation)
                if membership.posts:  # where the shuffler is not there yet, the first round proposes a T
                    with suppress(Rejected, ShufflerUnreachable, Overran):
                        propose = self._sender(membership).propose
                        self._run_clocked(federation, "the proposal", propose, seconds=PATIENCE)
            elif len(rotations) > len(self._agreements.author(federation, offer.invitation).rotations):
                self._agreements.keep_rotations(federation, rotations)
                self.log(f"{federation}: the coordinator's key was rotated, by the key before it")
            return offer

    def invitation(self, message: bytes) -> Invitation:
        """The invitation in a message, if its coordinator signed it; where the owner wrote one down, that one."""
        with self.turn, self._logging_refusal("an invitation"):
            return self._invitation(message)

    def _invitation(self, message: bytes) -> Invitation:
        try:
            invitation = Invitation.decode(message)
        except NotSigned as error:
            raise Refused(Reason.NOT_SIGNED, str(error)) from None
        except InvalidInput as error:
            raise Refused(Reason.UNREADABLE, str(error)) from None
        pinned = self.settings.coordinators.get(invitation.federation, invitation.coordinator)
        if pinned != invitation.coordinator:
            raise Refused(
                Reason.NOT_SIGNED,
                f"an invitation to {invitation.federation} names the coordinator's key {invitation.coordinator}, and "
                f"coordinators.{invitation.federation} in client.toml is {pinned}: it is not from your coordinator",
            )
        self.turn.wait_for(invitation.federation)
        if invitation.receipt:  # first: what more than one server shows of a lost ledger is counted once
            self._older_ledger.compare(invitation.federation, _unhexed(invitation.receipt))
        return invitation

    def _offer(self, message: bytes) -> Offer:
        invitation = self._invitation(message)
        self._older_ledger.require_none()
        known = self._agreements.find(invitation.federation)
        if known is not None and not known.coordinator:  # from before plans were signed: to be agreed to anew
            known = None if replace(known, coordinator=invitation.coordinator) == invitation.terms else known
        if known is not None and known != invitation.terms:
            raise Refused(
                Reason.OTHER_TERMS,
                f"you agreed to other terms under the name {invitation.federation}: a changed federation needs a new "
                f"name, and your agreement to it ({_difference(known, invitation.terms)})",
            )
        if not self.settings.allows(invitation.federation):
            raise Refused(
                Reason.NOT_AGREED,
                f"{invitation.federation} is none of the federations that consents.federations in client.toml allows "
                f"({', '.join(self.settings.consents.federations) or 'none'}): if you agree, add its name there, "
                "restart the client if it runs, and join again",
            )
        if known is not None:
            self._require_same_author(known, invitation)
        membership = self._membership(invitation)
        if membership.posts:
            membership.sender(self.settings, self.folder)  # refused where the owner has not allowed that shuffler
        return self._weigh(membership, known is not None)

    def _require_same_author(self, known: Invitation, invitation: Invitation) -> None:
        """Refuse rotations that do not go on from those that this client knows."""
        before, now = self._agreements.author(known.federation, known), invitation.author
        if not (now.follows(before) or before.follows(now)):
            raise Refused(
                Reason.NOT_SIGNED,
                f"an invitation to {known.federation} hands over to another key than the one that this client knows: "
                "only the key that signs now can name the next. Somebody else may hold an earlier one",
            )

    def _weigh(self, membership: Membership, agreed: bool) -> Offer:
        """The offer; refused where not even its beginning fits the owner's budget and consents."""
        releases = self._compute(membership, "the schedule", lambda: list(membership.everything()))
        schedule = [(round, self._as_recorded(membership, round, own)) for round, own in releases]
        standings = self.ledger.charged(self.settings.data.name)
        ahead = self._compute(membership, "the offer", lambda: _foresee(standings, schedule, membership.destination))
        if ahead.refusal is not None and not ahead.fits and not agreed:
            reason = Reason.CONSENT if isinstance(ahead.refusal, ConsentMissing) else Reason.BUDGET
            all_lacking = list(dict.fromkeys([ahead.refusal, *ahead.lacking]))
            raise Refused(reason, f"{ahead.refusal.why}: {self._remedy(all_lacking)}")
        spent = tuple(RoundReleases(round, (own,), ((0,),)) for round, own in releases)
        delta, rounds = self.settings.budget.delta or 1e-5, membership.recipe.rounds.count
        budgets = len(self.standing.accounts) if membership.pinned else 1
        pinned = membership.pinned if membership.members is not None else None
        caveats = own_code_caveats(membership.recipe)
        given = membership.recipe.evaluation.private
        aside = (0.0, 0) if given is None else (given.share, given.times(rounds))
        records = self.records(membership.invitation.shape)
        unreadable = records.left_out[0] if records.left_out and not len(records) else ""
        return Offer(
            membership.invitation, spent, delta, ahead.fits, rounds, ahead.unprotected, agreed, pinned, budgets,
            caveats, *aside, unreadable, self._remedy(ahead.lacking), isinstance(ahead.refusal, ConsentMissing),
        )  # fmt: skip

    # --- answering

    def answer(self, step: str, message: bytes) -> bytes:
        """The answer to a step's message: a report, or that this client declines; empty where there is none to give."""
        return self.reply(step, message).payload

    def reply(self, step: str, message: bytes) -> Response:
        """The answer, with the reason where the client refuses; every refusal is in the owner's log."""
        plan: Plan | None = None
        with self.turn:
            try:
                self._require_lock()
                self._require_names_as_declared()
                envelope = self._require_signed(step, message)  # before anything in it is looked at
                self.turn.wait_for(envelope.federation)
                self._older_ledger.require_none()
                self._require_own_federation(envelope.federation)
                goes_on = step in SUMMING[1:]
                plan = _require_about(
                    envelope, self._plan_of_sum(envelope) if goes_on else _read(step, envelope.message)
                )
                membership = self._member(plan.federation)
                self._older_ledger.require_none()
                if goes_on:
                    body = self._sum(membership, plan, step, envelope.message)
                elif step in SUMMING:
                    body = self._join_sum(membership, plan, step, envelope.message)
                elif step == STEP:
                    body = self._post(membership, plan)
                elif step == EVALUATE:
                    body = self._evaluate(membership, plan)
                else:
                    body = self._report(membership, plan, step)
                receipt = self._seal.receipt(plan.federation, self.ledger.head())
                return Response(True, answer_to(plan, body), receipt=receipt)
            except Exception as error:  # whatever it is, the client goes on serving and its owner can read of it
                refused = self._refused(f"the step {step[:20]!r}" if plan is None else _about(plan), error)
                return Response(False, b"" if plan is None else self._declined(plan, step), refused.reason.value)

    def _require_signed(self, step: str, message: bytes) -> Envelope:
        """The envelope of a message that the coordinator signed for this client and this step."""
        with refusing(Reason.NOT_SIGNED):
            envelope = Envelope.decode(message)
        agreed = self._agreed(envelope.federation)
        if not agreed.coordinator:
            raise Refused(
                Reason.NOT_SIGNED,
                f"you agreed to {agreed.federation} before plans were signed, so that nobody can tell who sent this: "
                "ask the coordinator for a new invitation, and join again: sordino client join",
            )
        key = self._agreements.author(agreed.federation, agreed).key
        if not envelope.is_signed(step, key) or not envelope.is_for(agreed.client):
            raise Refused(
                Reason.NOT_SIGNED,
                f"a message of {agreed.federation} came for the step {step[:20]!r} which its coordinator did not sign, "
                "or not for this client: nothing in it was looked at",
            )
        if envelope.terms != agreed.digest:
            raise Refused(
                Reason.OTHER_TERMS,
                f"a message of {agreed.federation} came which its coordinator signed for other terms than you agreed "
                "to under this name (another recipe, perhaps a rehearsal's): nothing in it was looked at",
            )
        return envelope

    def _declined(self, plan: Plan, step: str) -> bytes:
        """The answer "declined", which says that nothing has left; empty where a report may have left."""
        key = self._evaluation_key(plan) if step == EVALUATE else self._key(plan)
        try:
            return answer_to(plan, None) if self.ledger.replay(key) is None else b""
        except SordinoError:  # a ledger that cannot be read says nothing of what left
            return b""

    @contextmanager
    def _logging_refusal(self, what: str) -> Iterator[None]:
        """Raise errors inside as refusals, and write them to the owner's log."""
        try:
            yield
        except SordinoError as error:
            raise self._refused(what, error) from None

    def _refused(self, what: str, error: Exception) -> Refused:
        """The refusal for an error; it is in the owner's log."""
        match error:
            case Refused():
                refused = error
            case BudgetExceeded():
                refused = Refused(Reason.BUDGET, f"{error.why}: {self._remedy([error])}")
            case ConsentMissing():
                refused = Refused(Reason.CONSENT, f"{error.why}: {self._remedy([error])}")
            case ReportCompacted():
                refused = Refused(Reason.COMPACTED, f"{error} (keep.reports_days in client.toml says for how long)")
            case Overran():
                refused = Refused(Reason.LIMIT_SECONDS, f"{error}, the limits.seconds of client.toml")
            case SordinoError():
                refused = Refused(Reason.UNAVAILABLE, str(error))
            case _:
                refused = Refused(Reason.UNAVAILABLE, f"{type(error).__name__}: {error}")
        self.log(f"refused {what}: {refused}")
        return refused

    def _remedy(self, errors: Sequence[NotAllowed]) -> str:
        """Where the owner allows what was refused: in client.toml, which governs one name, or else in the ledger."""
        own, found, kinds = self.settings.data.name, dict[str, None](), list[str]()
        for error in errors:
            if error.dataset not in ("", own):
                path = self.folder / "ledger.sqlite"
                found[error.command.replace("PATH DATASET", f"{path} {error.dataset}")] = None
            elif isinstance(error, BudgetExceeded):
                second = " or summed_budget.limit" if self.settings.summed_budget else ""
                found[f"budget.limit{second} in client.toml"] = None
            elif error.what is None:
                found["consents.claimed = true in client.toml"] = None
            else:
                kinds.append(json.dumps(error.what, ensure_ascii=False))
        listed = [f"add {', '.join(kinds)} to consents.unproven in client.toml"] * bool(kinds)
        return "; ".join([*found, *listed])

    def _member(self, federation: str) -> Membership:
        """This client's part in a federation that its owner agreed to."""
        self.turn.wait_for(federation)  # it may be in the making
        if federation not in self._memberships:
            self._memberships[federation] = self._membership(self._agreed(federation))
        return self._memberships[federation]

    def _agreed(self, federation: str) -> Invitation:
        """The terms of a federation that the owner agreed to."""
        agreed = self._agreements.find(federation) if NAME.fullmatch(federation) else None
        if agreed is None:
            raise Refused(
                Reason.NOT_AGREED,
                f"a plan of {federation[:100]!r} came, which you have not agreed to: sordino client join",
            )
        return agreed

    def _membership(self, terms: Invitation) -> Membership:
        records, signing = self.records(terms.shape), self.identity.signing
        return self._run_clocked(
            terms.federation, "the terms", lambda: Membership(terms, self.settings, records, self._execution, signing)
        )

    def _report(self, membership: Membership, plan: Plan, step: str) -> bytes:
        """The body of the answer to a plan: what the ledger has, else a new draw, recorded before it is returned."""
        key = self._key(plan)
        membership.check_step(step, plan)  # a report that went into a sum does not leave by itself afterwards
        stored = self._stored(membership, key)
        if stored is not None:
            return stored
        told = membership.check(step, plan)
        self._require_order(membership, plan, key)
        if plan.round == 0:
            self.turn.wait_for(membership.preparation_name)  # what two federations share is made once
        releases = self._as_recorded(membership, plan.round, told)
        self._require_affordable([(membership.destination, releases)])
        if plan.round == 0:
            return self._prepare(membership, plan, key, releases)
        state = self._state(membership)
        prepared = self._records_of(membership)
        body, kept = self._draw(membership, plan, releases, state, prepared)
        states = self._agreements.states(membership.federation)
        if kept or not releases:
            states.save(key.round, str(key.plan_hash), kept)
        if not releases and body:
            raise Refused(Reason.UNAVAILABLE, f"{_about(plan)}: a report that stands for no release must be empty")
        if releases:
            self.ledger.record(key, releases, body, pinned=membership.pinned)
        if kept or not releases:  # only now: until the ledger has this round, the one before is what it goes on from
            states.forget_before(key.round)
        self._note(key, releases)
        self.log(f"answered {_about(plan)}: {', '.join(r.what for r in releases) or 'nothing'}; {self._left()}")
        return body

    def _draw(
        self,
        membership: Membership,
        plan: Plan,
        releases: Sequence[Release],
        state: ClientState,
        prepared: ClientState | None,
    ) -> tuple[bytes, ClientState]:
        """A report. If training fails, the report of "no change": a failure would tell of the records. Where nothing is
        released, the client keeps what it had, and answers as ever.

        That hides a failure where the client is protected. Where single records are, one at which code raises anything
        adds 0 to the sum, so that none of them brings this about.
        """
        draw = self._randomness(plan.round)

        def report() -> tuple[bytes, ClientState]:
            return membership.report(plan, state, prepared, draw)

        try:
            return self._compute(membership, "the report", report, about=releases)
        except Exception as error:
            silent = (b"", state)
            if releases:
                given = self._compute(membership, "no change", lambda: membership.silent_report(plan, state, draw))
                if given is None:
                    raise
                silent = given
            self.log(f"training failed in {_about(plan)}, reported no change: {type(error).__name__}: {error}")
            return silent

    # --- private evaluation

    def _evaluate(self, membership: Membership, plan: Plan) -> bytes:
        """The body of the answer to an evaluation: what the ledger has, else a new draw, recorded before it leaves."""
        key = self._evaluation_key(plan)
        if (stored := self.ledger.replay(key)) is not None:
            return stored
        releases = membership.check_evaluation(plan)
        self._require_rising(self._answered_rounds.get(key.federation, {}), plan, key, "an evaluation after ")
        self._require_affordable([(Destination(key.federation, membership.pinned), releases)])
        draw = self._randomness(plan.round)
        try:
            body = self._compute(membership, "the evaluation", lambda: membership.evaluate(plan, draw), about=releases)
        except Exception as error:  # of no single record: those that cannot be scored are left out one by one
            body = self._compute(membership, "no evaluation", lambda: membership.silent_evaluation(plan, draw))
            self.log(f"evaluation failed after {_about(plan)}, reported noise alone: {type(error).__name__}: {error}")
        # It goes straight to the server. Who sees sums may see it too, so that the second budget pays for it as well.
        self.ledger.record(key, releases, body, pinned=membership.pinned)
        self._note(key, releases)
        self.log(f"evaluated after {_about(plan)}: {', '.join(r.what for r in releases)}; {self._left()}")
        return body

    def _evaluation_key(self, plan: Plan) -> ReportKey:
        """A report on an evaluation has a place of its own in the ledger, beside that of its round."""
        return replace(self._key(plan), federation=_evaluations_of(plan.federation))

    def _compute(
        self, membership: Membership, what: str, compute: Callable[[], T], *shared: str, about: Sequence[Release] = ()
    ) -> T:
        """Compute for a member under the clock. A ledger that proved older meanwhile stops it.

        What is computed for releases `about` single records takes as long as it takes: the time follows from the
        records, of which one more would overrun. The work was estimated from public numbers before joining.
        """
        seconds = math.inf if any(release.protects_records for release in about) else membership.seconds
        try:
            return self._run_clocked(membership.federation, what, compute, *shared, seconds=seconds)
        finally:
            self._older_ledger.require_none()

    def _run_clocked(
        self, federation: str, what: str, compute: Callable[[], T], *shared: str, seconds: float | None = None
    ) -> T:
        """Compute for at most `seconds` (`limits.seconds`, if not given), while other federations are answered.

        The federation itself waits, and whoever waits for what is shared.
        """
        seconds = self.settings.limits.seconds if seconds is None else seconds
        return self.turn.compute(f"{what} of {federation}", {federation, *shared}, seconds, compute)

    def _key(self, plan: Plan) -> ReportKey:
        digest = hashlib.sha256(plan.encode()).digest()
        return ReportKey(self.settings.data.name, plan.federation, plan.round, digest)

    def _stored(self, membership: Membership, key: ReportKey) -> bytes | None:
        """The answer given before; empty bytes if that round released nothing; None if there was none."""
        stored = self.ledger.replay(key)
        if stored is None and self._answered_in(membership).get(key.round) == key.plan_hash:
            return b""
        return stored

    def _answered_in(self, membership: Membership) -> dict[int, str]:
        """The answered rounds and their plans. Rounds that release nothing are known by the state they left."""
        answered = self._answered_rounds.get(membership.federation, {})
        if not membership.silent:
            return answered
        return {**self._agreements.states(membership.federation).rounds(), **answered}

    def _require_order(self, membership: Membership, plan: Plan, key: ReportKey) -> None:
        """One plan a round, and rounds in rising order: an earlier model again, or the same round with other ranges,
        would be more looks at the same records than were agreed to."""
        self._require_rising(self._answered_in(membership), plan, key)

    def _require_rising(self, answered: Mapping[int, str], plan: Plan, key: ReportKey, what: str = "") -> None:
        if key.round in answered:
            raise Refused(
                Reason.OUT_OF_ORDER,
                f"{what}{_about(plan)} was answered before: a plan that differs in anything gets no answer, nor does a "
                "second sum of the same reports",
            )
        last = max(answered, default=-1)
        if key.round < last:
            raise Refused(Reason.OUT_OF_ORDER, f"{what}{_about(plan)} came after round {last} was answered")

    def _require_affordable(self, leaving: Sequence[tuple[Destination, Sequence[Release]]]) -> None:
        """Refuse what the ledger would refuse, before records are touched. The ledger checks again when it records."""
        standings = self.ledger.charged(self.settings.data.name)
        for destination, releases in leaving:
            for release in releases:
                standings = admit_all(standings, release, destination)

    def _note(self, key: ReportKey, releases: Sequence[Release]) -> None:
        self._answered_rounds.setdefault(key.federation, {})[key.round] = str(key.plan_hash)
        self._data_names.setdefault(key.federation, set()).add(key.dataset)
        self._release_ids.update(ids(releases))
        self._finite[key.federation.partition(", ")[0]] += sum(release.is_finite for release in releases)

    def _left(self) -> str:
        standing = self.standing
        spent = [
            f"epsilon {account.spent:.6g} of {account.budget.limit:.6g} is spent ({terms(account.budget)})"
            for account in standing.accounts
        ]
        unprotected = [f"{counted(standing.unprotected, 'release')} left UNPROTECTED"] * bool(standing.unprotected)
        return "; ".join([*spent, *unprotected])

    # --- what was made before the first round

    def _as_recorded(self, membership: Membership, round: int, releases: tuple[Release, ...]) -> tuple[Release, ...]:
        """The releases as the ledger records them: a preparation that was released before is derived, and free."""
        if round != 0 or not membership.prepares:
            return releases
        earlier = self._preparations.releases_of(membership.preparation_name)
        if (
            not earlier
            or not set(earlier) <= self._release_ids
            or self._preparations.load(membership.preparation_name) is None
        ):
            return releases
        return tuple(replace(r, guarantees=(), claimed=None, composition=Derived(earlier)) for r in releases)

    def _prepare(self, membership: Membership, plan: Plan, key: ReportKey, releases: tuple[Release, ...]) -> bytes:
        """Prepare the records as the method asks, unless that was done before, and record the release.

        What was made first stays, whatever becomes of the records: by another rule, what the ledger is charged would
        depend on them. Where nothing is released, one that fails is that of no records: a refusal would tell of them.
        """
        name = membership.preparation_name
        if self._preparations.load(name) is None:
            draw = self._randomness(0)
            made: ClientState = {}
            try:
                made = self._compute(
                    membership, "the preparation", lambda: membership.prepare(plan, draw), name, about=releases
                )
            except Exception as error:
                if releases:
                    raise
                self.log(f"prepared nothing for {membership.federation}: {type(error).__name__}: {error}")
            self._preparations.save(name, made)
        if not any(isinstance(release.composition, Derived) for release in releases):
            self._preparations.note_releases(name, ids(releases))
        self._agreements.note_prepared(membership.federation, name)
        if releases:
            self.ledger.record(key, releases, b"", pinned=membership.pinned)
        else:
            self._agreements.states(membership.federation).save(0, str(key.plan_hash), {})
        self._note(key, releases)
        self.log(f"prepared for {membership.federation}: {', '.join(r.what for r in releases)}; {self._left()}")
        return b""

    def _records_of(self, membership: Membership) -> ClientState | None:
        """The prepared records that rounds are computed from; None if the method prepares nothing.

        Records that have changed since change nothing: to refuse would tell of them.
        """
        if not membership.prepares:
            return None
        name = self._agreements.prepared(membership.federation) or membership.preparation_name
        made = self._preparations.load(name)
        if made is None or 0 not in self._answered_in(membership):
            raise Refused(
                Reason.OUT_OF_ORDER,
                f"{membership.federation}: a round was asked for before the preparation, or what was made then is no "
                "longer there",
            )
        return made

    def _state(self, membership: Membership) -> ClientState:
        """What was kept with the last answer."""
        answered = self._answered_in(membership)
        if not answered:
            return {}
        last = max(answered)
        return self._agreements.states(membership.federation).load(last, answered[last]) or {}

    # --- through a shuffler

    def _post(self, membership: Membership, plan: Plan) -> bytes:
        """Send the report on a plan to the shuffler; the coordinator hears that it was sent, and nothing of it."""
        membership.check(STEP, plan)
        key = self._key(plan)
        if self._agreements.posted(membership.federation) == str(key.plan_hash):
            return b""
        self._stored(membership, key)  # refused where only its hash is kept, before the shuffler is asked
        sender = self._sender(membership)
        name, patience = membership.federation, membership.seconds + 2 * PATIENCE
        announcement = self._run_clocked(  # before anything is drawn
            name, "the shuffler's terms", lambda: sender.announced(plan, membership.values), seconds=patience
        )
        self._older_ledger.require_none()
        body, seconds = self._report(membership, plan, STEP), patience + announcement.latency
        self._run_clocked(name, "the post", lambda: sender.send(announcement, body, membership.group), seconds=seconds)
        self._agreements.note_posted(membership.federation, str(key.plan_hash))
        self.log(f"the shuffler has the report on {_about(plan)}")
        return b""

    def _sender(self, membership: Membership) -> ShufflerSender:
        name = membership.federation
        if name not in self._senders:
            self._senders[name] = membership.sender(self.settings, self.folder)
        return self._senders[name]

    # --- secure sums

    def _join_sum(self, membership: Membership, plan: Plan, step: str, message: bytes) -> bytes:
        """The keys for a sum. Everything is checked here; the report is drawn once all keys are there."""
        releases = membership.check(step, plan)
        kept, members = self._agreements.sums(membership.federation), membership.members
        assert members is not None
        progress = kept.load()
        if progress is not None and (again := progress.again(step, message)) is not None:
            return again
        self._require_sum(membership, plan, progress, releases)
        self._sums.pop(membership.federation, None)  # whatever comes of this: what is on disk counts from here on
        if progress is not None:
            members.remember(membership.federation, membership.client, progress.part.encode())
        body = self._compute(membership, "the keys", lambda: _begin_sum(members, membership.client, step, message))
        kept.begin(plan)
        kept.save(plan, body[_SESSION], step, message, members.kept(membership.client), body)
        self._sums[membership.federation] = body[_SESSION], plan
        return body

    def _require_sum(
        self, membership: Membership, plan: Plan, progress: SumProgress | None, releases: tuple[Release, ...]
    ) -> None:
        """A new report must be in order and within the budget; one that is in the ledger may be added once more, by a
        server that lost its sum, if this client knows how far that came.
        """
        key = self._key(plan)
        known = progress if progress is not None and progress.plan == str(key.plan_hash) else None
        if self.ledger.replay(key) is None:
            if known is not None and known.step in SUMMING[2:]:
                raise Refused(
                    Reason.OLDER_LEDGER,
                    f"a report on {_about(plan)} went into a sum, and the ledger does not have it: it was restored "
                    "from a backup. Another one beside it would show what has changed",
                )
            self._require_order(membership, plan, key)
            self._require_affordable([(membership.destination, releases)])
        elif known is None:
            raise Refused(
                Reason.OUT_OF_ORDER,
                f"the report on {_about(plan)} was drawn before, and nothing here says how far its sum came: a second "
                "one could show more than one sum may",
            )

    def _plan_of_sum(self, envelope: Envelope) -> Plan:
        """The plan of the sum that a message is about: one of this process, or one from before a restart."""
        federation, session = envelope.federation, bytes(envelope.message[_SESSION])
        name, plan = self._sums.get(federation, (b"", None))
        if plan is not None and name == session:
            return plan
        kept = self._agreements.sums(federation)
        progress = kept.load()
        if progress is None or progress.session != session.hex():
            raise Refused(Reason.OUT_OF_ORDER, "a step of a secure sum came in which this client takes no part")
        membership, plan, part = self._member(federation), kept.plan(progress), progress.part.encode()
        members = membership.members
        if members is None:
            raise Refused(Reason.NOT_IN_RECIPE, f"{federation}: its reports do not travel in secure sums")
        self._compute(membership, "the sum", lambda: members.take_up(plan, membership.client, part))
        self._sums[federation] = session, plan
        self.log(f"goes on with the secure sum of {_about(plan)} after the step {progress.step!r}")
        return plan

    def _sum(self, membership: Membership, plan: Plan, step: str, message: bytes) -> bytes:
        """The answer to a step of a sum: durable before it leaves, and the same when it is asked for again."""
        members, kept = membership.members, self._agreements.sums(membership.federation)
        assert members is not None
        progress = kept.load()
        if progress is not None and (again := progress.again(step, message)) is not None:
            return again
        body = self._report(membership, plan, SUMMING[0]) if step == "masked" else None
        session, answer = bytes(message[_SESSION]), b""
        try:
            answer = self._compute(
                membership, "the sum", lambda: members.answer(step, membership.client, message, body)
            )
        finally:  # a refusal ends the sum for this client, and that is written down too
            kept.save(plan, session, step, message, members.kept(membership.client), answer)
        return answer

    # --- receipts, and a ledger that is older than one

    def receive_receipt(self, federation: str, receipt: bytes) -> None:
        """Keep what the server returned, if it is the newest: the head that it saw.

        One that this ledger lacks stops everything.
        """
        with self._logging_refusal(f"a receipt of {federation[:100]!r}"), self.turn:
            self._member(federation)
            self._older_ledger.receive(federation, receipt)
            self._compact(least=DUE_SHARE)

    def _compact(self, least: float) -> None:
        """Drop the bytes of reports that were kept for as long as the owner wants, if they are this share of all.

        A ledger that is older than a receipt stays as it is. Where there is no room to compact, that stops nothing.
        """
        if self.stopped:
            return
        with suppress(LedgerUnavailable):
            age = self.settings.keep.reports
            due = self.ledger.compactable(age).size
            if due and due >= least * self.ledger.holdings().size:
                freed = self.ledger.compact(age)
                rest = f". The file has not shrunk: {freed.not_shrunk}" if freed.not_shrunk else ""
                self.log(
                    f"dropped the bytes of {freed.reports} reports ({freed.size:,} bytes), and kept their hashes{rest}"
                )

    @property
    def stopped(self) -> bool:
        """Whether the ledger is older than a receipt, so that nothing is answered."""
        return self._older_ledger.stopped

    def accept_older_ledger(self) -> float:
        """Go on with an older ledger: count every round that it lacks as answered once. Returns what is spent then.

        Nobody can know what left after the backup. At most every round of every agreed federation was answered once;
        the ledger writes all of them down. After an earlier acceptance that the ledger has lost too, every round may
        have been answered once more. Where the budget does not allow for that, it refuses, and nothing changes.
        """
        if not self.stopped:
            raise InvalidInput("this client's ledger is not older than its receipts: there is nothing to accept")
        if self.settings.data.disjoint_from:
            raise InvalidInput(
                "what this ledger lacks may have been about any rows, so that it is charged to all names of data: take "
                "them out of data.disjoint_from in client.toml first"
            )
        missing = self._older_ledger.missing_heads() or [self.ledger.head()]
        loss = hashlib.sha256(" ".join(missing).encode()).hexdigest()
        lost = {federation: self._perhaps_lost(federation, loss) for federation in self._agreements.names()}
        places = {federation: self._place_of_lost(federation, loss) for federation in lost}
        pinned = {federation: self._member(federation).pinned for federation in lost}
        with self._logging_refusal("to go on with an older ledger"):
            self._require_affordable(
                [(Destination(places[name].federation, pinned[name]), own) for name, own in lost.items()]
            )
        heads = self._older_ledger.heads_of_loss(missing)
        for federation, releases in lost.items():
            if releases:
                self.ledger.record(places[federation], releases, b"", pinned=pinned[federation])
                self._note(places[federation], releases)
        # All is counted: now it is accepted, with the receipts that lie here, whose rounds are among those counted.
        self._older_ledger.accept(heads)
        self.log(f"accepted an older ledger: rounds that it lacks count as answered; {self._left()}")
        return self.standing.spent

    def _place_of_lost(self, federation: str, loss: str) -> ReportKey:
        return ReportKey(self.settings.data.name, f"{federation}{_RESTORED}", 0, loss)

    def _perhaps_lost(self, federation: str, loss: str) -> tuple[Release, ...]:
        """All releases of a federation that the ledger may lack, under names of their own; none where it counts them.

        What was counted before a crash is not counted again. What left after an acceptance that is lost went on from
        another copy, and may have been any round.
        """
        if self.ledger.replay(self._place_of_lost(federation, loss)) is not None:
            return ()
        schedules = {
            federation: list(self._member(federation).schedule()),
            _evaluations_of(federation): list(self._member(federation).evaluations()),
        }
        unanswered, all_rounds = list[tuple[Release, ...]](), list[tuple[Release, ...]]()
        for name, schedule in schedules.items():
            answered = self._answered_rounds.get(name, {})
            unanswered += [own for round, own in schedule if round not in answered]
            all_rounds += [own for _, own in schedule]
        lives = [unanswered, *[all_rounds] * len(self._older_ledger.lost_acceptances())]
        return tuple(
            replace(release, id=f"{release.id}, before restoring {loss[:12]} ({number})")
            for number, life in enumerate(lives, 1)
            for own in life
            for release in own
            if not isinstance(release.composition, Derived)
        )

    def _require_lock(self) -> None:
        """Lock the folder: two processes could give two answers to one plan."""
        if not self._locked:
            self._open.enter_context(exclusive_lock(self.folder / ".lock", f"the client in {self.folder}"))
            self._locked = True


@dataclass(frozen=True)
class _Foresight:
    """What becomes of a schedule."""

    fits: int  #: rounds that budget and consents allow
    unprotected: tuple[str, ...]  #: kinds of release in them that have no proof
    refusal: NotAllowed | None  #: of the first round that does not fit
    lacking: tuple[ConsentMissing, ...]  #: one for each kind of release that lacks a consent, in all rounds


def _foresee(
    standings: Mapping[str, Standing], schedule: Sequence[tuple[int, tuple[Release, ...]]], destination: Destination
) -> _Foresight:
    fits, kinds, own = 0, dict[str, None](), next(iter(standings))
    refusal: NotAllowed | None = None
    lacking: dict[tuple[str, str | None], ConsentMissing] = {}
    for round, releases in schedule:
        for release in releases:
            try:
                standings, before = _admitted(standings, release, destination, lacking), standings
            except BudgetExceeded as error:
                refusal = refusal or error
            else:
                if refusal is None and not lacking and standings[own].unprotected > before[own].unprotected:
                    kinds[release.what] = None
            refusal = refusal or next(iter(lacking.values()), None)
        fits += round > 0 and refusal is None
    return _Foresight(fits, tuple(kinds), refusal, tuple(lacking.values()))


def _admitted(
    standings: Mapping[str, Standing],
    release: Release,
    destination: Destination,
    lacking: dict[tuple[str, str | None], ConsentMissing],
) -> Mapping[str, Standing]:
    """The standings after a release, as if the owner had given every consent; those not given are noted."""
    while True:
        try:
            return admit_all(standings, release, destination)
        except ConsentMissing as error:
            lacking[error.dataset, error.what] = error
            asked = standings[error.dataset]
            given = replace(asked.consents, claimed=True)
            if error.what is not None:
                given = replace(asked.consents, unproven=asked.consents.unproven | {error.what})
            standings = {**standings, error.dataset: replace(asked, consents=given)}


def unproven_words(count: int) -> str:
    """What an owner should do about releases that an earlier version took for proven."""
    return (
        f"{counted(count, 'release')} of an earlier version had own code in them, of which nothing is proven: count "
        "them as unprotected, whatever epsilon the ledger has for them"
    )


def _evaluations_of(federation: str) -> str:
    """What the ledger calls the evaluations of a federation; no federation has such a name."""
    return f"{federation}, evaluation"


def _read(step: str, message: bytes) -> Plan:
    """The plan in a message. Other than canonical bytes are refused, so that a plan has one name."""
    try:
        plan = plan_in(message) if step in SUMMING else Plan.decode(message)
        known = plan.encode() == message or step in SUMMING
    except (SordinoError, ValueError, TypeError, ArithmeticError, RecursionError, MemoryError) as error:
        raise Refused(Reason.UNREADABLE, f"a plan cannot be read: {type(error).__name__}: {error}") from None
    if step not in STEPS:
        raise Refused(Reason.UNREADABLE, f"unknown step {step[:20]!r}; allowed: {', '.join(STEPS)}")
    if not known or not 0 <= plan.round < 2**32 or not plan.federation.isprintable():
        raise Refused(Reason.UNREADABLE, "a plan is not in its canonical form")
    return plan


def _begin_sum(members: Members, client: int, step: str, message: bytes) -> bytes:
    """A client's keys for a new sum."""
    members.begin(message)
    return members.answer(step, client, message)


def _require_about(envelope: Envelope, plan: Plan) -> Plan:
    """The plan, if its envelope is about it."""
    if not envelope.is_about(plan):
        raise Refused(Reason.NOT_SIGNED, f"{_about(plan)} came in an envelope of another plan")
    return plan


def _about(plan: Plan) -> str:
    return f"round {plan.round} of {plan.federation[:100]!r}"


def _unhexed(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise Refused(Reason.UNREADABLE, "the receipt in an invitation is not hexadecimal") from None


def _difference(agreed: Invitation, offered: Invitation) -> str:
    """What has changed, in a few words."""
    names = [name for name, value in vars(agreed).items() if getattr(offered, name) != value]
    if names != ["recipe"]:
        return f"other: {', '.join(names)}"
    lines = zip(agreed.recipe.splitlines(), offered.recipe.splitlines(), strict=False)
    first = next(((a, b) for a, b in lines if a != b), ("", "more lines"))
    return f"in the recipe, {first[0][:80]!r} became {first[1][:80]!r}"


__all__ = ["Client", "fresh", "unproven_words"]

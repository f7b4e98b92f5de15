"""A recipe carried out with real clients, over whatever network a fleet stands for: `serve(recipe, fleet, folder)`.

It is the same loop and the same folder as a simulation's. What only a simulation can see (losses, clipping, ledgers,
labels) is not there. Every round is durable when it is over, and a plan before it is sent: whatever is killed when, the
run goes on with the same plan, clients give the answers that they recorded, and a round counts once.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from sordino import channels
from sordino.channels.interface import Channel
from sordino.client.invitation import CommonTerms, check_real
from sordino.errors import InvalidInput
from sordino.fleets.interface import Fleet
from sordino.fleets.signatures import SignedFleet
from sordino.learning.evaluation import ExamPiece, Scores, score
from sordino.methods.interface import Seen, State
from sordino.privacy.history import RoundReleases
from sordino.recipe import Recipe
from sordino.recipe.sources import pinned
from sordino.report.folder import RunFolder
from sordino.runs import preflight
from sordino.runs.coordinator import Attendance, printable
from sordino.runs.execution import one_thread
from sordino.runs.federation import Federation, check_start_travels, wire
from sordino.runs.journal import JournalStore, read_past
from sordino.runs.loop import ClientSide, Run
from sordino.runs.observer import Observer
from sordino.runs.outcome import Outcome
from sordino.runs.stopping import TooFewClients
from sordino.runs.store import REAL, Past, free_if_refused, run_folder
from sordino.wire.codec import VERSION
from sordino.wire.messages import Plan
from sordino.wire.signing import SigningKey, key_file


@dataclass(frozen=True)
class CoordinatorSetup:
    """What a coordinator of real clients may be told beside its recipe."""

    federation: str | None = None  #: the name that plans carry, the recipe's if None; a client agrees to a name once
    channel: Channel | None = None  #: how reports travel, if not as `sordino.channels.build` has it
    key: Path | None = None  #: file of the key that signs what clients are sent; made if absent, None: beside the run
    notes: Mapping[str, object] = field(default_factory=dict)  #: JSON that the caller gets back from `read_notes`


def serve(
    recipe: Recipe,
    fleet: Fleet,
    folder: str | Path,
    setup: CoordinatorSetup = CoordinatorSetup(),  # noqa: B008 (a frozen value)
    *,
    resume: bool = False,
    observer: Observer | Sequence[Observer] | None = None,
) -> Outcome:
    """Carry a recipe out with a fleet's clients and leave a run's folder: recipe, metrics, statement, model, page.

    Clients answer to the setup's key alone, as long as the federation lasts. A run that was stopped or killed goes on
    with `resume`, from the folder and with the recipe that lies in it; `has_run` says whether there is one.

    `TooFewClients` is raised where too few have agreed at the start, or too few answer in a few rounds running: the
    run is not over, and goes on with `resume`.
    """
    check_real(recipe)
    if setup.channel is None and recipe.method.channel.posts:
        raise InvalidInput(
            "reports of this recipe go through a shuffler, which the server cannot be itself: give the channel that "
            "goes through it (sordino.shuffler.channel.ServiceChannel)"
        )
    with one_thread():
        recipe, _ = pinned(recipe)
        parts = wire(recipe)
        check_start_travels(parts)
        channel = setup.channel or channels.build(recipe, parts.method)
        with run_folder(recipe, folder, resume=resume, device=REAL) as target, closing(JournalStore(target)) as store:
            with free_if_refused(target, resume=resume):
                past = store.load()
                name = _name(store, past, recipe, setup)
                expected = preflight.expected(parts, name)
                signing = SigningKey.at(setup.key or key_file(Path(folder)))
                absent = {} if past.stopped is not None else _invite(parts, fleet, name, past, signing)
            own = Run(parts, RealClients(parts, fleet, signing, name), channel, store, observer, name=name)
            own.restore(past)
            return own.go(expected, absent)


def shuffler_channel(recipe: Recipe, files: Mapping[str, Path], *, remedy: str) -> Channel | None:
    """The way through the shuffler that a recipe names, by the server's files `token`, `key` and `trusted` for it.

    None where reports go through none: other channels need nothing from outside. `remedy` says how to give the files.
    """
    given = recipe.method.channel
    token, key = files.get("token"), files.get("key")
    if not given.posts:
        return None
    if token is None or key is None:
        raise InvalidInput(f"reports of this recipe go through a shuffler: {remedy}")
    from sordino.shuffler.channel import Access, ServiceChannel

    return ServiceChannel(wire(recipe).method, given, Access.read(given.url, token, key, files.get("trusted")))


def has_run(folder: str | Path) -> bool:
    """Whether a folder holds a run, so that it is to be resumed; one that was killed before it began does not."""
    return (Path(folder) / "recipe.toml").is_file()


def read_notes(folder: str | Path) -> dict[str, Any] | None:
    """The notes of the run in a folder, and under "federation" its name; None where it is a simulation's.

    There is no name and no note in one that was killed before it could write them down.
    """
    found = RunFolder.open(folder)
    if found.environment.get("device") != REAL:
        return None
    about = read_past(found).about
    return {**json.loads(about.get("notes", "{}")), "federation": about.get("federation")}


# --- before the first round -------------------------------------------------------------------------------------------


def _name(store: JournalStore, past: Past, recipe: Recipe, setup: CoordinatorSetup) -> str:
    """The federation's name: what it began with, which nobody changes later."""
    about, wanted = past.about, setup.federation
    if not about:
        about = {
            "federation": wanted or recipe.name, "recipe": recipe.fingerprint, "notes": json.dumps(dict(setup.notes)),
            "wire": str(VERSION),
        }  # fmt: skip
        store.begin(about)
    if past.stopped is None and (began := about.get("wire", "1")) != str(VERSION):
        raise InvalidInput(
            f"this run began in version {began} of the wire format, and here it is {VERSION}: finish it with the "
            "version of Sordino that began it, or start anew in another folder and under another name"
        )
    had = about["federation"]
    if wanted is not None and had != wanted:
        raise InvalidInput(
            f"this is a run of the federation {had!r} and was asked to go on as {wanted!r}: leave the name out"
        )
    return had


def _invite(parts: Federation, fleet: Fleet, name: str, past: Past, key: SigningKey) -> dict[int, str]:
    """Hand out invitations: who does not take part, and why. Too few at the start are refused."""
    coming = 1 if past.checkpoint is None else past.checkpoint.state.round + 1
    found = invitations(parts, name, key, _receipts(past, fleet, coming), fleet.groups)
    absent = {client: printable(why) for client, why in fleet.invite(found).items()}
    quorum = parts.recipe.rounds.quorum
    if past.checkpoint is None and parts.clients - len(absent) < quorum:
        names = fleet.names(coming)
        called = {client: names.get(client, f"client {client}") for client in absent}
        reasons = "; ".join(f"{called[client]}: {reason}" for client, reason in sorted(absent.items())[:5])
        raise TooFewClients(
            f"{parts.clients - len(absent)} of {parts.clients} clients take part in {name}, and the quorum is {quorum} "
            f"({reasons}). An owner who has not agreed yet finds the invitation in the client's folder: sordino client "
            "join FOLDER FOLDER/invitations/NAME.invitation. Who agreed to other terms under this name needs another "
            "(--federation NAME); a limit or a consent that is in the way is its owner's to change, in client.toml. "
            "Then start again"
        )
    return absent


def _receipts(past: Past, fleet: Fleet, coming: int) -> dict[int, bytes]:
    """The receipts that members gave: none goes to whoever came in the place of its giver, who could not read it."""
    before: dict[int, str] = {}
    for spent in past.spent:
        before.update(spent.names)
    names = [fleet.names(coming), fleet.names(coming + 1)]  # where a round was interrupted, the next is there already
    changed = {client for own in names for client in before if own.get(client) != before[client]}
    return {client: receipt for client, receipt in past.receipts.items() if client not in changed}


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


class RealClients(ClientSide):
    """Clients of their owners', of whom nothing is known but their answers."""

    may_return = True

    def __init__(self, parts: Federation, fleet: Fleet, key: SigningKey, name: str) -> None:
        self._parts, self._method = parts, parts.method
        terms = CommonTerms.of(parts.recipe, name, parts.dataset, key.author)
        self.fleet = SignedFleet(fleet, key, terms.digest)
        self._releases = parts.releases
        self._seen: dict[tuple[str, int], Seen] = {}
        self._prepares = parts.method.preparation(name) is not None
        self._prepared: set[tuple[int, str | None]] = set()  # numbers and names of those who may have prepared

    def restore(self, past: Past) -> None:
        """Remember who may have prepared."""
        for spent in past.spent:
            self._note_prepared(spent)

    def _note_prepared(self, spent: RoundReleases) -> None:
        if spent.round == 0:
            self._prepared |= {(client, spent.names.get(client)) for who in spent.clients for client in who}

    def _can_report(self, client: int, round: int, name: str | None) -> bool:
        """Whether a client could release anything in a round: without the preparation it refuses every round."""
        return round == 0 or not self._prepares or bool({(client, name), (client, None)} & self._prepared)

    def spent(self, plan: Plan, attendance: Attendance, sent: int) -> RoundReleases:
        """What left in a round: of everybody who was asked and did not decline at once.

        An answer that was late, refused or lost on its way left its client all the same, and a server cannot show that
        it never saw it. Nor does it know what came before a restart: a client that declines then may have reported.
        """
        releases = tuple(tuple(own) for own in self._releases(plan))
        names = self.fleet.names(plan.round)
        spared = {*attendance.declined, *attendance.vacant} if sent == 1 else attendance.vacant
        by_class: list[list[int]] = [[] for _ in releases]
        for client in attendance.clients if sent == 1 else attendance.chosen:
            if client not in spared and releases and self._can_report(client, plan.round, names.get(client)):
                by_class[self._method.class_of(client)].append(client)
        reasons = attendance.reasons
        declined = {client: reasons.get(client, "no reason was given") for client in sorted(attendance.declined)}
        spent = RoundReleases(plan.round, releases, tuple(by_class), declined, names)
        self._note_prepared(spent)
        return spent

    def score(self, state: State, exam: str) -> Scores:
        """The common model on an exam; of models that only clients can see through, nothing."""
        examples, (model, loss) = self._parts.exams[exam], self._parts.graded
        found = [examples.none]
        for view in self._parts.method.views(state, {}):
            buffers = view.buffers or None
            for piece in examples.pieces():
                shown = ExamPiece(examples, piece, self._shown(exam, piece))
                found.append(score(model, view.parameters, buffers, loss, shown))
        return Scores.together(found)

    def _shown(self, exam: str, piece: slice) -> Seen | None:
        """Examples as everybody sees them, made once; None where they are scored as they are."""
        method, examples = self._parts.method, self._parts.exams[exam]
        if not method.shows:
            return None
        if (exam, piece.start) not in self._seen:
            x = torch.from_numpy(examples.normalisation.apply(examples.examples.x[piece]))
            self._seen[exam, piece.start] = method.shown(x)
        return self._seen[exam, piece.start]


__all__ = ["CoordinatorSetup", "RealClients", "has_run", "invitations", "read_notes", "serve", "shuffler_channel"]

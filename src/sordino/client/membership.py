"""One client's part in one federation: the method that the agreed recipe describes, and what of it a plan may ask."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sordino import channels
from sordino.channels.secagg import Ed25519Identity
from sordino.channels.secure_sum import Members
from sordino.channels.spec import ReleasesOf
from sordino.client.invitation import Invitation, check_real, check_text
from sordino.client.own_records import OwnRecords
from sordino.client.refusal import Reason, Refused
from sordino.client.settings import Settings
from sordino.client.shuffler_sender import STEP, ShufflerSender
from sordino.client.work_limits import Guard, public_size
from sordino.errors import InvalidInput, SordinoError
from sordino.learning.cohort import ClientData
from sordino.learning.stacked_model import LOOP, Execution
from sordino.methods.blueprint import blueprint_of
from sordino.methods.interface import Bench, ClientState, Cohort, Method, State
from sordino.methods.silo_dp import SiloDp
from sordino.methods.upload import Draw
from sordino.privacy.guarantee import Infinite, Release
from sordino.privacy.history import ranges
from sordino.recipe import CodeNotAllowed, Recipe
from sordino.shuffler.remote import Announcement
from sordino.wire.messages import Plan

#: what of a method has no part in what clients make before the first round
_AFTER_PREPARING = {"channel", "selection", "aggregation", "server_lr", "learning", "range", "upload"}


class Membership:
    """The client's side of an agreed federation; it holds no ledger and decides nothing."""

    def __init__(
        self,
        invitation: Invitation,
        settings: Settings,
        records: OwnRecords,
        execution: Execution = LOOP,
        signing: Ed25519PrivateKey | None = None,
    ) -> None:
        self.invitation, self._records = invitation, records
        self._dataset = settings.data.name
        self.recipe = _read(invitation, settings)
        records.check(invitation)
        guard = Guard(invitation.federation, settings.limits)
        guard.check(self.recipe, invitation)
        try:
            sizes = (public_size(self.recipe),) * self.recipe.number_of_clients
            blueprint, _ = blueprint_of(self.recipe, invitation.shape, len(invitation.classes), sizes, self.client)
            guard.built(blueprint.model)
            built = self.recipe.method.build(blueprint)
        except Refused:
            raise
        except SordinoError as error:
            raise Refused(Reason.NOT_IN_RECIPE, f"{invitation.federation}: {error}") from None
        self.method: Method = built.method
        self._upload = built.upload
        self._start: State = self.method.init()
        self._bench = Bench(execution)
        sums = self.recipe.method.channel.kind == "summed"
        self.seconds = settings.limits.seconds  #: that a round may take to compute
        self.pinned = sums and invitation.federation in settings.peers  #: whether the keys of all others are listed
        self._identities = {self.client: self._identity(signing, settings)} if signing is not None and sums else None
        last = self.expected(self.recipe.rounds.count)
        assert last is not None
        guard.accounting(self.recipe.rounds.count * len(self.releases(last)))

    def _identity(self, signing: Ed25519PrivateKey, settings: Settings) -> Ed25519Identity:
        """Who signs for whom in secure sums: the keys that the owner lists, and no others, or all if there is no list.

        A list that lacks somebody is refused: no sum would come to its end.
        """
        listed = settings.peers.get(self.federation)
        if listed is None:
            return Ed25519Identity(signing, None)
        known = {int(number): bytes.fromhex(key) for number, key in listed.items()}
        own = signing.public_key().public_bytes_raw()
        if others := [number for number, key in known.items() if key == own and number != self.client]:
            raise Refused(
                Reason.CONSENT,
                f"client.toml lists, under peers.{self.federation}, your own key as that of client {others[0]}: your "
                "own number needs none, and the others are others. Ask that owner for theirs",
            )
        known[self.client] = own
        if missing := sorted(set(range(self.recipe.number_of_clients)) - set(known)):
            raise Refused(
                Reason.CONSENT,
                f"client.toml lists, under peers.{self.federation}, whose keys you trust in secure sums, and lacks "
                f"those of client {ranges(missing)}: add them, or remove the list and trust the server with the keys",
            )
        return Ed25519Identity(signing, {n: Ed25519PublicKey.from_public_bytes(key) for n, key in known.items()})

    @property
    def federation(self) -> str:
        """Its name."""
        return self.invitation.federation

    @property
    def client(self) -> int:
        """This client's number in it."""
        return self.invitation.client

    # --- what may be asked

    def expected(self, round: int) -> Plan | None:
        """A plan such as the recipe has it in this round, but for the numbers in its arrays; None where it has none."""
        if round == 0:
            return self.method.preparation(self.federation)
        if not 1 <= round <= self.recipe.rounds.count:
            return None
        return self.method.plan(replace(self._start, round=round - 1), self.federation)

    @property
    def prepares(self) -> bool:
        """Whether there is something to do before the first round."""
        return self.expected(0) is not None

    @property
    def rounds(self) -> range:
        """All rounds of the recipe's schedule, that of the preparation included where there is one."""
        return range(0 if self.prepares else 1, self.recipe.rounds.count + 1)

    @property
    def first_step(self) -> str:
        """The step in which a round's plan comes."""
        if self.posts:
            return STEP
        return self.members.steps[0] if self.members is not None else "report"

    def check(self, step: str, plan: Plan) -> tuple[Release, ...]:
        """Refuse what the agreed recipe does not ask for in this round and step; what a report on the plan tells."""
        expected = self.expected(plan.round)
        if expected is None:
            raise self._not_in_recipe(f"round {plan.round} is none of the recipe's {self.recipe.rounds.count} rounds")
        self.check_step(step, plan)
        if _canonical(plan.settings) != _canonical(expected.settings):
            raise self._not_in_recipe(
                f"the plan of round {plan.round} has the settings {_canonical(plan.settings)[:200]}, and the recipe "
                f"{_canonical(expected.settings)[:200]}"
            )
        shapes, wanted = ({n: a.shape for n, a in p.arrays.items()} for p in (plan, expected))
        if shapes != wanted:
            raise self._not_in_recipe(
                f"the plan of round {plan.round} has the tensors {_listed(shapes)}, and the recipe {_listed(wanted)}"
            )
        if not all(np.isfinite(array).all() for array in plan.arrays.values()):
            raise self._not_in_recipe(f"the plan of round {plan.round} holds numbers that are not finite")
        try:
            return self.releases(plan)
        except SordinoError as error:
            raise self._not_in_recipe(f"the plan of round {plan.round}: {error}") from None

    def check_step(self, step: str, plan: Plan) -> None:
        """Refuse a step that is not the one in which this plan's report travels."""
        if step != ("prepare" if plan.round == 0 else self.first_step):
            raise self._not_in_recipe(
                f"round {plan.round} was asked for in the step {step!r}, which is not how its reports travel"
            )

    def _not_in_recipe(self, sentence: str) -> Refused:
        return Refused(Reason.NOT_IN_RECIPE, f"{self.federation}: {sentence}")

    # --- what it tells

    def releases(self, plan: Plan) -> tuple[Release, ...]:
        """What a report on this plan tells of this client, under the owner's name for the data."""
        own = self._releases(plan)[self.method.class_of(self.client)]
        if isinstance(self.method, SiloDp) and not self.method.computes_records_apart(self._bench):
            own = tuple(_unproven(release) for release in own)
        return tuple(replace(release, dataset=self._dataset) for release in own)

    def schedule(self) -> Iterator[tuple[int, tuple[Release, ...]]]:
        """Everything that the recipe asks of this client, round by round."""
        for round in self.rounds:
            plan = self.expected(round)
            assert plan is not None
            yield round, self.releases(plan)

    @cached_property
    def silent(self) -> bool:
        """Whether nothing ever leaves a client of this federation."""
        return not any(releases for _, releases in self.schedule())

    @cached_property
    def _releases(self) -> ReleasesOf:
        return channels.releases(self.recipe, self.method)

    @cached_property
    def members(self) -> Members | None:
        """The client's side of secure sums, where reports travel in these."""
        return channels.members(self.recipe, self.method, self._identities)

    # --- what goes through a shuffler

    @property
    def posts(self) -> bool:
        """Whether reports go to a shuffler service."""
        return bool(self.recipe.method.channel.kind == "shuffler")

    def posting(self, settings: Settings, folder: Path) -> ShufflerSender:
        """The way to the shuffler, if it is the one that the owner allowed."""
        channel: Any = self.recipe.method.channel
        own = settings.shuffler.get(self.federation)
        if own is None or own.url.rstrip("/") != channel.url.rstrip("/"):
            raise Refused(
                Reason.CONSENT,
                f"{self.federation} has reports sent to a shuffler at {channel.url}, and you have not allowed that: "
                f"sordino client shuffler {folder} {self.federation} {channel.url} --token FILE",
            )
        try:
            return ShufflerSender(channel, own, folder, settings.limits)
        except (InvalidInput, ValueError) as error:
            raise Refused(Reason.UNAVAILABLE, f"the shuffler of {self.federation}: {error}") from None

    def post(self, posting: ShufflerSender, told: Announcement, body: bytes) -> None:
        """Send a report to the shuffler, under this client's class of equal epsilon."""
        posting.send(told, body, self.method.class_of(self.client))

    @property
    def values(self) -> int:
        """How many values a report has."""
        return self._upload.values

    # --- what it does

    @cached_property
    def preparing(self) -> str:
        """Names what this client would make before the first round: equal where it would make the same."""
        method = self.recipe.to_dict()["method"]
        strengths = self.recipe.epsilons()
        given = {
            "method": {key: value for key, value in method.items() if key not in _AFTER_PREPARING},
            "epsilon": None if strengths is None else strengths[self.client],
            "seed": self.recipe.seed,
            "form": [self.invitation.shape, self.invitation.classes, self.invitation.mean, self.invitation.std],
            "records": self._records.digest,
        }
        return hashlib.sha256(_canonical(given).encode()).hexdigest()[:32]

    def prepare(self, plan: Plan, draw: Draw) -> ClientState:
        """What this client makes of its records before the first round."""
        (made,) = self.method.prepare(plan, self._cohort({}, None, self._data), draw, self._bench)
        return made

    def report(
        self, plan: Plan, state: ClientState, prepared: ClientState | None, draw: Draw
    ) -> tuple[bytes, ClientState]:
        """Train, randomise, encode: the body of an answer, and what the client keeps."""
        data = None if prepared is not None else self._data
        reported = self.method.report(plan, self._cohort(state, prepared, data), draw, self._bench)
        return reported.bodies[0], reported.states[0]

    def silent_report(self, plan: Plan, state: ClientState, draw: Draw) -> bytes | None:
        """The report of "no change", for a client whose training broke; None where silence is all that hides that.

        It is randomised like every other, by the mechanism or by the noise of private training.
        """
        mechanism = self._upload.mechanisms[int(self._upload.class_of[self.client])]
        if not isinstance(self.method, SiloDp) and not mechanism.randomizes:
            return None
        return self.method.report(plan, self._cohort(state, None, None), draw, self._bench).bodies[0]

    @cached_property
    def _data(self) -> ClientData | None:
        return self._records.normalised(self.invitation)

    def _cohort(self, state: ClientState, prepared: ClientState | None, data: ClientData | None) -> Cohort:
        """A cohort of one."""
        made = () if prepared is None else (prepared,)
        return Cohort((self.client,), (data,), (state,), (len(self._records),), made)


# --- reading a recipe that came from elsewhere ------------------------------------------------------------------------


def _read(invitation: Invitation, settings: Settings) -> Recipe:
    """The recipe, if this client may and can follow it."""
    federation = invitation.federation
    try:
        check_text(invitation.recipe)
        recipe = Recipe.from_toml(invitation.recipe, settings.consents.code)
    except CodeNotAllowed as error:
        raise Refused(
            Reason.CONSENT,
            f"{federation} asks to run {error.address} on your machine, which is no part of Sordino: list it under "
            "consents.code in client.toml if you know it",
        ) from None
    except (InvalidInput, ValueError, RecursionError) as error:
        raise Refused(Reason.NOT_IN_RECIPE, f"the recipe of {federation} is not one: {error}") from None
    if not invitation.client < recipe.number_of_clients:
        raise Refused(
            Reason.NOT_IN_RECIPE,
            f"{federation} gives this client the number {invitation.client}, of {recipe.number_of_clients} from 0 on",
        )
    rule = recipe.clients.budget
    if rule is not None and rule.basis == "claimed" and not settings.consents.claimed:
        raise Refused(
            Reason.CONSENT,
            f"{federation} counts claimed epsilons, which nothing proves, and you have not agreed to that: set "
            'consents.claimed = true and budget.basis = "claimed" in client.toml if you do',
        )
    try:
        check_real(recipe)
    except InvalidInput as error:
        raise Refused(Reason.NOT_IN_RECIPE, f"{federation}: {error}") from None
    if getattr(recipe.method, "announced_size", 1) == 0:
        raise Refused(
            Reason.NOT_IN_RECIPE,
            f"{federation} does not say by which public size sums are divided, so that your own would be told: its "
            "recipe needs method.announced_size",
        )
    return recipe


def _unproven(release: Release) -> Release:
    """The same of records that are computed together."""
    why = (
        "records' gradients are computed several at a time, where one may change the last bits of another: the proof "
        "needs them one at a time on a processor (execution=LOOP), or a linear model"
    )
    lost = tuple(replace(g, loss=Infinite(why), basis="none") for g in release.guarantees)
    return replace(release, guarantees=lost)


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=list)


def _listed(shapes: dict[str, tuple[int, ...]]) -> str:
    few = [f"{name[:40]} {list(shape)}" for name, shape in list(shapes.items())[:8]]
    return ", ".join(few + ["..."] * (len(shapes) > 8)) or "none"


def ids(releases: Sequence[Release]) -> tuple[str, ...]:
    """The names of releases."""
    return tuple(release.id for release in releases)


__all__ = ["Membership", "ids"]

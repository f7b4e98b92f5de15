"""One client's part in one federation: the method that the agreed recipe describes, and what of it a plan may ask."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sordino import channels
from sordino.channels.secagg import Ed25519Identity
from sordino.channels.secure_sum import Members
from sordino.channels.spec import ReleasesOf
from sordino.client.invitation import Invitation, check_real, check_text
from sordino.client.own_records import OwnRecords
from sordino.client.refusal import Reason, Refused, refusing
from sordino.client.settings import OwnData, Settings
from sordino.client.shuffler_sender import STEP, ShufflerSender
from sordino.client.work_limits import Guard, public_size
from sordino.errors import InvalidInput
from sordino.learning.cohort import ClientData
from sordino.learning.stacked_model import LOOP, Execution
from sordino.learning.tasks import CLASSES
from sordino.methods.blueprint import blueprint_of
from sordino.methods.interface import Bench, ClientState, Cohort, Method, State
from sordino.methods.private_evaluation import private_evaluation, with_sides
from sordino.methods.upload import Draw
from sordino.privacy.guarantee import Adjacency, Destination, Release
from sordino.privacy.history import ranges
from sordino.recipe import CodeNotAllowed, Recipe
from sordino.recipe.grammar import origin_of
from sordino.wire.messages import Plan

OWN_READER = (
    "own code reads the records in the client's own process (data.source, data.columns), and one record at which it "
    "ended that process, hung or took all memory would silence the client, which the server sees: export the records "
    "to an .npz or .csv file, and take shipped kinds of columns"
)
OWN_PARTS = (
    "own code runs in this client's process, where one record could make it end that process or send something else "
    "than is stated: take a method and parts that Sordino ships"
)
WINDOW = (
    "data.rows or data.train_limit takes records by their place in the file, so that one that is removed brings "
    "another one in: put the records into a file of their own, or take a budget in record-replace"
)
FLOAT16 = "the .npz file holds float16, where one text changes all other numbers: save it with astype(np.float32)"
TOGETHER = (
    "records' gradients or features are computed several at a time, where one may change the last bits of another: "
    "the proof needs them one at a time on a processor (execution=LOOP), or a linear model on exact features"
)
_REMOVED = {Adjacency.RECORD_ADD_REMOVE}
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
        self.invitation, self._all_records = invitation, records
        self.federation, self.client = invitation.federation, invitation.client  #: its name, this client's number in it
        self._dataset = settings.data.name
        self._columns = settings.data.model_dump(mode="json", include={"label", "features", "columns", "channels"})
        origin = origin_of(settings.data.source)
        self._reads_by_own_code = reads_by_own_code(settings.data)
        self._origin = None if settings.data.disjoint_from else origin  # rows of known data may be left out, too
        self._by_place = origin != "known" and bool(settings.data.rows or settings.data.train_limit)
        self.recipe = _read(invitation, settings)
        task = self.recipe.data.task or CLASSES
        records.check(invitation, task)
        records.check_columns(self.federation, self.recipe.data.columns or {})
        self._runs_own_code = bool(self.recipe.own_code)  # imported and checked here, whatever part it has
        guard = Guard(invitation.federation, settings.limits)
        guard.check(self.recipe, invitation)
        sizes = (public_size(self.recipe),) * self.recipe.number_of_clients
        with refusing(Reason.NOT_IN_RECIPE, self.federation):
            outputs = len(invitation.classes)
            blueprint, _ = blueprint_of(self.recipe, invitation.shape, outputs, sizes, self.client, task)
            guard.built(blueprint.model)
            self.method: Method = self.recipe.method.build(blueprint)
            self.evaluation = private_evaluation(
                self.recipe, self.method, blueprint.model, task, invitation.classes, invitation.shape
            )
        guard.check_sums(self.method, self.client)
        self.values = self.method.first_upload.values  #: of a report
        self.group = self.method.class_of(self.client)  #: this client's class of equal epsilon
        self._start: State = self.method.init()
        self._bench = Bench(execution)
        sums = self.recipe.method.channel.sums
        self.posts = self.recipe.method.channel.posts  #: whether reports go to a shuffler service
        self.seconds = (
            settings.limits.seconds
        )  #: that a round may take to compute, where it does not protect single records
        self.pinned = sums and self.federation in settings.peers  #: whether the keys of all others are listed
        self.destination = Destination(self.federation, self.pinned)  #: of its releases, as the ledger counts them
        self._identities = {self.client: self._identity(signing, settings)} if signing is not None and sums else None
        count = self.recipe.rounds.count * len(self.releases(self._plan(self.recipe.rounds.count)))
        count += 0 if self.evaluation is None else self.evaluation.spec.times(self.recipe.rounds.count)
        guard.require(Reason.LIMIT_ACCOUNTING, count, settings.limits.accounting, "releases to account for")

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

    # --- what may be asked

    def expected(self, round: int) -> Plan | None:
        """The plan of a round as the recipe has it, but for the numbers in its arrays; None if it has no such round."""
        if round == 0:
            return self.method.preparation(self.federation)
        return self._plan(round) if 1 <= round <= self.recipe.rounds.count else None

    def _plan(self, round: int) -> Plan:
        return self.method.plan(replace(self._start, round=round - 1), self.federation)

    @property
    def prepares(self) -> bool:
        """Whether there is something to do before the first round."""
        return self.expected(0) is not None

    @property
    def first_step(self) -> str:
        """The step in which a round's plan comes."""
        if self.posts:
            return STEP
        return self.members.steps[0] if self.members is not None else "report"

    def check(self, step: str, plan: Plan) -> tuple[Release, ...]:
        """Refuse a plan that the agreed recipe does not ask for in this step. Returns the releases of a report."""
        expected, name = self.expected(plan.round), f"the plan of round {plan.round}"
        if expected is None:
            raise self._not_in_recipe(f"round {plan.round} is none of the recipe's {self.recipe.rounds.count} rounds")
        self.check_step(step, plan)
        self._check_content(plan, expected)
        with refusing(Reason.NOT_IN_RECIPE, f"{self.federation}: {name}"):
            return self.releases(plan)

    def check_evaluation(self, plan: Plan) -> tuple[Release, ...]:
        """Refuse an evaluation that the agreed recipe does not ask for. Returns the releases of a report on it."""
        evaluation, round = self.evaluation, plan.round
        if evaluation is None or not evaluation.due(round):
            raise self._not_in_recipe(f"the recipe asks for no evaluation after round {round}")
        self._check_content(plan, evaluation.plan(replace(self._start, round=round), self.federation))
        return self._own(evaluation.releases(self.federation, round))

    def _check_content(self, plan: Plan, expected: Plan) -> None:
        """Refuse a plan with other settings or tensors than the recipe has, or with numbers that are not finite."""
        name = f"the plan of round {plan.round}"
        given, wanted = _canonical(plan.settings), _canonical(expected.settings)
        if given != wanted:
            raise self._not_in_recipe(f"{name} has the settings {given[:200]}, and the recipe {wanted[:200]}")
        given, wanted = (_canonical({n: a.shape for n, a in p.arrays.items()}) for p in (plan, expected))
        if given != wanted:
            raise self._not_in_recipe(f"{name} has the tensors {given[:200]}, and the recipe {wanted[:200]}")
        if not all(np.isfinite(array).all() for array in plan.arrays.values()):
            raise self._not_in_recipe(f"{name} holds numbers that are not finite")

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
        own = self._releases(plan)[self.group]
        if not self.method.computes_records_apart(self._bench):
            own = tuple(release.without_proof(TOGETHER) for release in own)
        return self._own(own)

    def _own(self, releases: Sequence[Release]) -> tuple[Release, ...]:
        """Releases of these records, under the owner's name for them: of files, of which some may be left out."""
        own = tuple(replace(release, dataset=self._dataset) for release in releases)
        for applies, why in ((self._reads_by_own_code, OWN_READER), (self._runs_own_code, OWN_PARTS)):
            if applies:
                return tuple(release.without_proof(why) for release in own)
        if self._all_records.warning:
            return tuple(release.unproven_of_records(FLOAT16) for release in own)
        own = own if self._origin == "known" else tuple(map(with_sides, own))
        return tuple(release.without_proof(WINDOW, _REMOVED) for release in own) if self._by_place else own

    def schedule(self) -> Iterator[tuple[int, tuple[Release, ...]]]:
        """What training asks of this client, round by round."""
        for round in range(self.recipe.rounds.count + 1):
            if (plan := self.expected(round)) is not None:
                yield round, self.releases(plan)

    def evaluations(self) -> Iterator[tuple[int, tuple[Release, ...]]]:
        """Every evaluation that the recipe asks of this client, with the round that it follows."""
        if (evaluation := self.evaluation) is not None:
            for round in filter(evaluation.due, range(1, self.recipe.rounds.count + 1)):
                yield round, self._own(evaluation.releases(self.federation, round))

    def everything(self) -> Iterator[tuple[int, tuple[Release, ...]]]:
        """All that the recipe asks of this client, round by round, an evaluation with the round that it follows."""
        evaluations = dict(self.evaluations())
        for round, own in self.schedule():
            yield round, (*own, *evaluations.get(round, ()))

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

    def sender(self, settings: Settings, folder: Path) -> ShufflerSender:
        """The way to the shuffler, if it is the one that the owner allowed."""
        channel = self.recipe.method.channel
        own = settings.shuffler.get(self.federation)
        if own is None or own.url.rstrip("/") != channel.url.rstrip("/"):
            raise Refused(
                Reason.CONSENT,
                f"{self.federation} has reports sent to a shuffler at {channel.url}, and you have not allowed that: "
                f"sordino client shuffler {folder} {self.federation} {channel.url} --token FILE",
            )
        with refusing(Reason.UNAVAILABLE, f"the shuffler of {self.federation}"):
            return ShufflerSender(channel, own, folder, settings.limits)

    # --- what it does

    @cached_property
    def preparation_name(self) -> str:
        """A name for what this client prepares before the first round; equal preparations have equal names.

        No record has a part in it: by what a preparation costs, which is nothing the second time, a server that
        watches the budget would learn whether records have changed. The owner's name for the data has, since each name
        pays for its own rows. What a federation prepares from which nothing leaves is its own: neither charge nor clock
        protect it, as they do what others sum.
        """
        method = self.recipe.to_dict()["method"]
        strengths = self.recipe.epsilons()
        given = {
            "method": {key: value for key, value in method.items() if key not in _AFTER_PREPARING},
            "epsilon": None if strengths is None else strengths[self.client],
            "seed": self.recipe.seed,
            "form": [self.invitation.shape, self.invitation.classes, self.invitation.mean, self.invitation.std],
            "columns": self._columns,
            "dataset": self._dataset,
            "alone": self.federation if self.silent else None,
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

    def silent_report(self, plan: Plan, state: ClientState, draw: Draw) -> tuple[bytes, ClientState] | None:
        """The report of "no change", for a client whose training failed; None if nothing would randomise it.

        It is randomised like every other, by the mechanism or by the noise of private training, and leaves a state as
        every other does. It is that of a client without records, so that it takes no record's time.
        """
        mechanism = self.method.first_upload.mechanisms[int(self.method.first_upload.class_of[self.client])]
        if not self.method.noisy and not mechanism.randomizes:
            return None
        reported = self.method.report(plan, Cohort((self.client,), (None,), (state,), (0,)), draw, self._bench)
        return reported.bodies[0], reported.states[0]

    def evaluate(self, plan: Plan, draw: Draw) -> bytes:
        """The body of an answer to an evaluation: noisy counts of the records that are set aside."""
        assert self.evaluation is not None
        own = None if self._held_out is None else self._held_out.normalised(self.invitation)
        return self.evaluation.report(plan, own, draw, self.client)

    def silent_evaluation(self, plan: Plan, draw: Draw) -> bytes:
        """The noisy counts of no records, for a client that failed before it scored a record, or overran."""
        assert self.evaluation is not None
        return self.evaluation.report(plan, None, draw, self.client)

    @cached_property
    def _sides(self) -> tuple[OwnRecords, OwnRecords | None]:
        """The records to train on, and those that are set aside. No clock must end this: it takes each record."""
        given = self.recipe.evaluation.private
        return (self._all_records, None) if given is None else self._all_records.sides(given.share, self.recipe.seed)

    @property
    def _records(self) -> OwnRecords:
        return self._sides[0]

    @property
    def _held_out(self) -> OwnRecords | None:
        return self._sides[1]

    @cached_property
    def _data(self) -> ClientData | None:
        return self._records.normalised(self.invitation)

    def _cohort(self, state: ClientState, prepared: ClientState | None, data: ClientData | None) -> Cohort:
        """A cohort of one."""
        made = () if prepared is None else (prepared,)
        return Cohort((self.client,), (data,), (state,), (len(self._records),), made)


def reads_by_own_code(data: OwnData) -> bool:
    """True if other code than Sordino's reads an owner's records."""
    return origin_of(data.source) == "function" or data.own_columns


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
            "consents.code in client.toml if you know it, and start the client anew",
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
            'consents.claimed = true and budget.basis = "claimed" in client.toml if you do, and start the client anew',
        )
    if recipe.computes_by_own_code and recipe.model.per_record and not settings.consents.per_record:
        raise Refused(
            Reason.CONSENT,
            f"{federation} says that code of its own treats each of your records by itself; nothing is proven of it, "
            "and noise for single records hides nothing if it does not: set consents.per_record = true in client.toml "
            "if you know that it does, and start the client anew",
        )
    weights = weights_of(recipe)
    if weights is not None and weights not in settings.consents.weights:
        raise Refused(
            Reason.CONSENT,
            f"{federation} makes features with the network in {weights}: only you can say that it was not trained on "
            "your records. List the file under consents.weights in client.toml if it was not, and start the client "
            "anew",
        )
    with refusing(Reason.NOT_IN_RECIPE, federation):
        check_real(recipe)
    return recipe


def weights_of(recipe: Recipe) -> str | None:
    """The file of the frozen network that a recipe makes features with; None where there is none."""
    weights: str | None = getattr(getattr(recipe.method, "extractor", None), "weights", None)
    return weights


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=list)


def ids(releases: Sequence[Release]) -> tuple[str, ...]:
    """The names of releases."""
    return tuple(release.id for release in releases)


__all__ = ["Membership", "ids", "reads_by_own_code", "weights_of"]

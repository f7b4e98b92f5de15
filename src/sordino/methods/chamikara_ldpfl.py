"""LDPFL (Arachchige, Liu, Camtepe, Nepal, Grobler, Bertok, Khalil, "Local Differential Privacy for Federated Learning",
ESORICS 2022, also as Chamikara et al.): records are randomised once, and a network is federated over what came of it.

    Part I, each client i, once:       CNN_i <- trained on its records until it converges; CM_i <- its convolutions
        each record q:                 d_q <- CM_i(record),  r features
                                       FLT_q <- the bits of all d_q's features, l = m + n + 1 each          (Eq. 10)
                                       RND_q <- each bit of FLT_q randomised:                   (Eq. 13, Theorem 2)
                                           1 stays 1 with  alpha/(1+alpha)  at even places, 1/(1+alpha^3) at odd ones
                                           0 stays 0 with  alpha e^e0/(1 + alpha e^e0),   e0 = epsilon/(r l/2)
    Part II, each round:               server sends M;  each client asked trains DNN_i from M on {RND_q} and the labels
                                       for el epochs and sends it;  M <- mean of what came                   (Eq. 1)

What clients send is computed from RND and labels alone, so it is derived from them: however many rounds there are, they
cost nothing new. That is the paper's good idea, and it is kept. What one record loses is another matter:

* the proof of Theorem 2 lets powers of alpha cancel that add up: (r l/2)(eps_even + eps_odd) is proven, not epsilon;
* labels are used as they are: nothing bounds what they tell;
* CM_i was trained on all of a client's records, so another record changes the features of all of them: the figure is
  to be multiplied by their number, unless the extractor is public. That number is private, so a public bound on it
  (`extractor.most_records`) takes its place: clients with more records use the first so many. Without one nothing is
  proven.

`extractor = { kind = "oriented" }` with `mechanism = { name = "record-privunit" }` mends all three, at its price; its
epsilon is claimed, as it is proven for real numbers only.

Test examples are seen through a client's own extractor, as the paper has it: every client has an equal share of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le
from pydantic import Field

from sordino.learning.tasks import CLASSES_ALONE
from sordino.mechanisms import NoPrivacy
from sordino.mechanisms.record_tables import RecordMechanismSpec, Theorem2
from sordino.methods.aggregation import AGGREGATION, AggregationSpec, Mean, offering
from sordino.methods.blueprint import UNCONTAINED, Blueprint
from sordino.methods.extractor_tables import ExtractorSpec
from sordino.methods.interface import (
    DATASET,
    PARAMETERS,
    Bench,
    ClientState,
    Cohort,
    LocalView,
    Method,
    ModelView,
    Positions,
    ReportContent,
    Reported,
    Seen,
    State,
)
from sordino.methods.local_only import LocalOnly, alone
from sordino.methods.round_steps import average, send, train
from sordino.methods.selection import AnySelection, SelectAll
from sordino.methods.spec import Clamp, DirectAlone, MethodSpec, direct
from sordino.methods.upload import Draw, PerClass, Same, Tally, Upload, samples_release
from sordino.parts.lazy import lazy_module
from sordino.parts.slot import Slot
from sordino.parts.tables import Found, TomlTable, reads, tag
from sordino.privacy.guarantee import Release
from sordino.randomness import Randomness
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from torch import Tensor

    from sordino.learning.cohort import ClientData
    from sordino.methods import extractors, randomised_records
    from sordino.methods.extractors import Extractor
    from sordino.methods.randomised_records import RandomisedRecords
    from sordino.recipe import Recipe
else:
    extractors = lazy_module("sordino.methods.extractors")
    randomised_records = lazy_module("sordino.methods.randomised_records")

WHAT = "network trained on randomised records"


class Encoding(TomlTable):
    """The fixed-point code of a feature (Eq. 10 of LDPFL), whole + fraction + 1 bits."""

    whole: Annotated[int, Ge(0), Le(20)] = Field(default=4, description="bits before the point")
    fraction: Annotated[int, Ge(0), Le(20)] = Field(default=5, description="bits after it")
    order: Literal["msb", "lsb"] = Field(
        default="msb", description="which bit comes first: theorem-2 keeps even positions and scrambles odd ones"
    )
    reading: Literal["text", "equation"] = Field(
        default="text", description="sign and magnitude as the paper's words say, or its equation as printed, unsigned"
    )


class Ldpfl(Method):
    """Federated averaging over records that each client randomised once."""

    report_content: ClassVar[ReportContent] = "randomised records"

    class Spec(MethodSpec):
        """LDPFL: each client randomises its records' features once; a network is federated over what came of them."""

        name: str = tag("ldpfl", "a network federated over records randomised once")
        server_lr: ClassVar[float] = 1.0
        tasks: ClassVar[frozenset[str]] = CLASSES_ALONE
        takes_loss: ClassVar[bool] = False
        selection: AnySelection = SelectAll()
        extractor: Annotated[ExtractorSpec, Slot("extractor")] = Field(description="what makes features of records")
        encoding: Encoding = Field(default=Encoding(), description="how features become bits")
        mechanism: Annotated[RecordMechanismSpec, Slot("record mechanism")] = Field(
            default=Theorem2(), description="the randomiser of a record"
        )
        learning: Literal["together", "alone"] = Field(
            default="together", description="the network is federated, or every client trains its own"
        )
        examined: Literal["randomised", "plain"] = Field(
            default="randomised", description="whether test examples pass through the randomiser as records do"
        )
        clamp: Clamp = None
        channel: DirectAlone = Field(default_factory=direct)
        aggregation: Annotated[AggregationSpec, Slot("aggregation", offering("samples", "reports")), AGGREGATION] = (
            Mean()
        )

        def record_shape(self, recipe: Recipe, shape: tuple[int, ...], classes: int) -> tuple[int, ...]:
            """A record as the dense network sees it: its bits, or its features."""
            extractor = self.extractor.build(shape, classes, recipe.seed)
            return self._records(recipe, extractor, classes).shape

        def _records(self, recipe: Recipe, extractor: Extractor, classes: int) -> RandomisedRecords:
            """How records are randomised; a client has no epsilon where the mechanism takes none."""
            epsilons = recipe.epsilons()
            own = [None] * recipe.number_of_clients if epsilons is None else list(epsilons)
            return randomised_records.build(self, extractor.features, classes, own)

        @reads("method.name", "data.columns")
        def columns_are_known(self, recipe: Recipe) -> Found:
            """Refuse own kinds of columns: each record is randomised by itself, and these may know others."""
            if recipe.data.own_columns:
                yield (
                    "data.columns",
                    "has a kind of your own, and ldpfl proves what it proves for one record at a time: take shipped "
                    "kinds, or prepare the column in the file",
                )

        @reads("method.name", "method.mechanism", "model.name", "training.augmentation")
        def randomised_records_are_no_images(self, recipe: Recipe) -> Found:
            """The federated training sees features that were randomised, and no images."""
            if recipe.training.augmentation is not None:
                yield (
                    "training.augmentation",
                    "got some, but this training sees randomised features only: give it to method.extractor.training",
                )

        def build(self, blueprint: Blueprint) -> Method:
            extractor = self.extractor.build(blueprint.input_shape, blueprint.classes, blueprint.recipe.seed)
            records = self._records(blueprint.recipe, extractor, blueprint.classes)
            records.check(blueprint.checked)
            upload = Upload(
                Same(NoPrivacy()), None, blueprint.values, clients=blueprint.clients, what=WHAT,
                samples=self.aggregation.samples, clamp=self.clamp,
            )  # fmt: skip
            together = Ldpfl(blueprint, upload, extractor, records)
            return together if self.learning == "together" else LdpflAlone(alone(blueprint), together)

    def __init__(self, blueprint: Blueprint, upload: Upload, extractor: Extractor, records: RandomisedRecords) -> None:
        learner, loss = records.learner(blueprint.model)
        super().__init__(blueprint, upload, replace(blueprint.local_training, loss=loss))
        self.model, self.graded = learner, records.graded(blueprint.model)
        self.extractor, self.records = extractor, records
        bound = getattr(blueprint.recipe.method.extractor, "most_records", None)
        self._most: int | None = None if extractor.public else bound
        first = {strength: client for client, strength in reversed(list(enumerate(records.strengths)))}
        self._kinds = sorted(first.values())  # of every strength, its first client
        number = {records.strengths[client]: k for k, client in enumerate(self._kinds)}
        self._class_of = [number[strength] for strength in records.strengths]

    # --- Part I: once

    def preparation(self, federation: str) -> Plan:
        """An empty plan: clients know from the recipe what to do."""
        return Plan(federation, 0)

    def prepare(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Sequence[ClientState]:
        """Train an extractor, take the features of all records, randomise them: drawn here, and never again."""
        made: list[ClientState] = [{} for _ in cohort.clients]
        there = [(k, self._at_most(data)) for k, data in enumerate(cohort.data) if data is not None]
        if not there:
            return made
        clients = [cohort.clients[k] for k, _ in there]
        fitted = self.extractor.fit(clients, [data for _, data in there], draw, bench)
        for (k, data), client, kept in zip(there, clients, fitted, strict=True):
            piece = extractors.ALONE if bench.alone and not self.extractor.exact else extractors.PIECE
            features = extractors.features_of(self.extractor, data.x, kept, piece=piece)
            own = self.records.randomise(features, data.y.cpu().numpy(), client, draw([client]))
            made[k] = {**kept, **own}
        return made

    def _at_most(self, data: ClientData) -> ClientData:
        """As many records as the public bound on their number allows, the first ones; all where there is none."""
        return data if self._most is None else type(data)(data.x[: self._most], data.y[: self._most])

    def computes_records_apart(self, bench: Bench) -> bool:
        """Whether features of a record depend on that record alone, or the figure counts all records anyway."""
        return bench.alone or self.extractor.exact or not self.extractor.public

    # --- Part II: every round

    def class_of(self, client: int) -> int:
        return self._class_of[client]

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        """Before the first round all that is ever told of records; afterwards only what is computed from that."""
        once = PerClass(len(self._kinds), lambda c: self._released_once(plan.federation, self._kinds[c]))
        if plan.round == 0:
            return once
        name = f"{plan.federation}/{plan.round}"
        counts = (samples_release(name, DATASET),) if self.first_upload.samples else ()
        return PerClass(len(once), lambda c: (randomised_records.derived(name, DATASET, WHAT, once[c]), *counts))

    def _released_once(self, federation: str, client: int) -> tuple[Release, ...]:
        group = 1 if self.extractor.public else self._most
        found = self.records.releases(f"{federation}/0", DATASET, client, group)
        return tuple(own.unproven_of_records(UNCONTAINED) for own in found) if self.spec.extractor.is_own else found

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        trained = train(self, plan, self.trained_on(cohort, bench), draw, bench)  # DNN_i, on {RND_q} and labels
        return send(self.upload(plan), cohort, trained.vectors, draw, trained)

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        return average(state, tally, self.statistics)  # (Eq. 1)

    def trained_on(self, cohort: Cohort, bench: Bench) -> Cohort:
        """The same clients with their randomised records for data: training sees no others."""
        data = [
            self.records.data(kept, bench.device) if randomised_records.RECORDS in kept else None
            for kept in cohort.prepared
        ]
        return replace(cohort, data=tuple(data))

    def rehearse(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> LocalView:
        """Nothing: a rehearsal would take as long as the preparation."""
        zeros = np.zeros(len(cohort.clients))
        return LocalView(np.full(len(zeros), np.nan), zeros > 0, zeros, zeros.copy(), zeros.copy())

    # --- evaluation

    def views(self, state: State, kept: Mapping[int, ClientState]) -> Sequence[ModelView]:
        """The common network as each client sees it, through its own extractor."""
        return [
            replace(self.view(state), client=client)
            for client, own in kept.items()
            if randomised_records.RECORDS in own
        ]

    def seen(self, x: Tensor, positions: Positions, client: int, prepared: ClientState, randomness: Randomness) -> Seen:
        return self.records.examined(extractors.features_of(self.extractor, x, prepared), positions, client, randomness)


class LdpflAlone(LocalOnly):
    """The same without the federation: every client trains its own network on its own randomised records."""

    def __init__(self, blueprint: Blueprint, together: Ldpfl) -> None:
        super().__init__(blueprint, together.first_upload, together.training)
        self.model, self.graded, self._together = together.model, together.graded, together

    def preparation(self, federation: str) -> Plan:
        return self._together.preparation(federation)

    def prepare(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Sequence[ClientState]:
        return self._together.prepare(plan, cohort, draw, bench)

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        return super().report(plan, self._together.trained_on(cohort, bench), draw, bench)

    def rehearse(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> LocalView:
        return self._together.rehearse(plan, cohort, draw, bench)

    def views(self, state: State, kept: Mapping[int, ClientState]) -> Sequence[ModelView]:
        """Every client's own network, seen through its own extractor."""
        ready = {client: own for client, own in kept.items() if randomised_records.RECORDS in own and PARAMETERS in own}
        return [replace(self.own_view(own), client=client) for client, own in ready.items()]

    def seen(self, x: Tensor, positions: Positions, client: int, prepared: ClientState, randomness: Randomness) -> Seen:
        return self._together.seen(x, positions, client, prepared, randomness)


__all__ = ["WHAT", "Encoding", "Ldpfl", "LdpflAlone"]

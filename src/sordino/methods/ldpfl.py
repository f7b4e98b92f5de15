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
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sordino.learning.cohort import ClientData, LocalTraining
from sordino.methods import randomised_records
from sordino.methods.extractors import Extractor, features_of
from sordino.methods.fedavg import DATASET, FedAvg
from sordino.methods.interface import (
    Bench,
    ClientState,
    Cohort,
    LocalView,
    Positions,
    Reported,
    State,
    View,
)
from sordino.methods.local_only import LocalOnly, alone
from sordino.methods.randomised_records import RECORDS, RandomisedRecords, derived
from sordino.methods.round_steps import PARAMETERS, moved, send, start_of, steps_before, train, vector_of
from sordino.methods.setting import Built, Setting, plainly_built
from sordino.methods.silo_dp import plain
from sordino.methods.upload import Draw, PerClass, Tally, Upload, samples_release
from sordino.privacy.guarantee import Release
from sordino.randomness import Randomness
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from sordino.recipe import Recipe

WHAT = "network trained on randomised records"


class Ldpfl(FedAvg):
    """Federated averaging over records that each client randomised once."""

    def __init__(
        self,
        setting: Setting,
        training: LocalTraining,
        upload: Upload,
        extractor: Extractor,
        records: RandomisedRecords,
    ) -> None:
        learner, loss = records.learner(setting.model)
        super().__init__(setting, replace(training, loss=loss), upload, sends="weights")
        self.model = learner
        self._extractor, self._records = extractor, records
        given: Any = setting.recipe.method
        self._most: int | None = None if extractor.public else given.extractor.most_records
        first: dict[float | None, int] = {}  # of every strength, its first client
        for client, strength in enumerate(records.strengths):
            first.setdefault(strength, client)
        number = {strength: k for k, strength in enumerate(first)}
        self._class_of = [number[strength] for strength in records.strengths]
        self._kinds = list(first.values())

    @property
    def records(self) -> RandomisedRecords:
        """How records are randomised."""
        return self._records

    # --- Part I: once

    def preparation(self, federation: str) -> Plan:
        """Clients know from the recipe what to do."""
        return Plan(federation, 0)

    def prepare(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Sequence[ClientState]:
        """Train an extractor, take the features of all records, randomise them: drawn here, and never again."""
        made: list[ClientState] = [{} for _ in cohort.clients]
        there = [(k, self._at_most(data)) for k, data in enumerate(cohort.data) if data is not None]
        if not there:
            return made
        clients = [cohort.clients[k] for k, _ in there]
        fitted = self._extractor.fit(clients, [data for _, data in there], draw, bench)
        for (k, data), client, kept in zip(there, clients, fitted, strict=True):
            features = features_of(self._extractor, data.x, kept)
            own = self._records.randomise(features, data.y.cpu().numpy(), client, draw([client]))
            made[k] = {**kept, **own}
        return made

    def _at_most(self, data: ClientData) -> ClientData:
        """As many records as the public bound on their number allows, the first ones; all where there is none."""
        return data if self._most is None else ClientData(data.x[: self._most], data.y[: self._most])

    # --- Part II: every round

    def class_of(self, client: int) -> int:
        return self._class_of[client]

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        """Before the first round all that is ever told of records; afterwards only what is computed from that."""
        once = PerClass(len(self._kinds), lambda c: self._released_once(plan.federation, self._kinds[c]))
        if plan.round == 0:
            return once
        name = f"{plan.federation}/{plan.round}"
        counts = (samples_release(name, DATASET),) if self._upload.samples else ()
        return PerClass(len(once), lambda c: (derived(name, DATASET, WHAT, once[c]), *counts))

    def _released_once(self, federation: str, client: int) -> tuple[Release, ...]:
        group = 1 if self._extractor.public else self._most
        return self._records.releases(f"{federation}/0", DATASET, client, group)

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        m, randomised = start_of(plan.arrays, self.statistics), self.trained_on(cohort, bench)  # {RND_q} and labels
        first_steps = steps_before(self.training, plan.round, randomised.data)
        trained = train(self, m, randomised, draw, bench, first_steps)  # DNN_i
        return send(self.upload(plan), cohort, trained.vectors, draw, trained)

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        m = tally.mean()  # (Eq. 1)
        return moved(state, m - vector_of(state.parameters, state.arrays, self.statistics), self.statistics)

    def trained_on(self, cohort: Cohort, bench: Bench) -> Cohort:
        """The same clients with their randomised records for data: training sees no others."""
        data = [self._records.data(kept, bench.device) if RECORDS in kept else None for kept in cohort.prepared]
        return replace(cohort, data=tuple(data))

    def rehearse(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> LocalView:
        """Nothing: a rehearsal would take as long as the preparation."""
        zeros = np.zeros(len(cohort.clients))
        return LocalView(np.full(len(zeros), np.nan), zeros > 0, zeros, zeros.copy(), zeros.copy())

    # --- evaluation

    def views(self, state: State, kept: Mapping[int, ClientState]) -> Sequence[View]:
        """The common network as each client sees it, through its own extractor."""
        return [replace(self.view(state), client=client) for client, own in kept.items() if RECORDS in own]

    def seen(
        self, x: Tensor, positions: Positions, client: int, prepared: ClientState, randomness: Randomness
    ) -> NDArray[Any]:
        return self._records.examined(features_of(self._extractor, x, prepared), positions, client, randomness)


class LdpflAlone(LocalOnly):
    """The same without the federation: every client trains its own network on its own randomised records."""

    def __init__(self, setting: Setting, together: Ldpfl) -> None:
        super().__init__(setting, together.training, together.upload(Plan("", 1)), sends="weights")
        self.model, self._together = together.model, together

    def preparation(self, federation: str) -> Plan:
        return self._together.preparation(federation)

    def prepare(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Sequence[ClientState]:
        return self._together.prepare(plan, cohort, draw, bench)

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        return super().report(plan, self._together.trained_on(cohort, bench), draw, bench)

    def rehearse(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> LocalView:
        return self._together.rehearse(plan, cohort, draw, bench)

    def views(self, state: State, kept: Mapping[int, ClientState]) -> Sequence[View]:
        """Every client's own network, seen through its own extractor."""
        ready = {client: own for client, own in kept.items() if RECORDS in own and PARAMETERS in own}
        return [replace(self.own_view(own), client=client) for client, own in ready.items()]

    def seen(
        self, x: Tensor, positions: Positions, client: int, prepared: ClientState, randomness: Randomness
    ) -> NDArray[Any]:
        return self._together.seen(x, positions, client, prepared, randomness)


def record_shape(recipe: Recipe, shape: tuple[int, ...], classes: int) -> tuple[int, ...]:
    """A record as the dense network sees it: its bits, or its features."""
    given: Any = recipe.method
    extractor = given.extractor.build(shape, classes, recipe.seed)
    return randomised_records.build(given, extractor.features, classes, strengths(recipe)).shape


def strengths(recipe: Recipe) -> list[float | None]:
    """Each client's epsilon; None where the mechanism takes none."""
    found = recipe.epsilons()
    return [None] * recipe.number_of_clients if found is None else list(found)


def build(setting: Setting) -> Built:
    """LDPFL as a recipe asks for it."""
    given: Any = setting.recipe.method
    extractor = given.extractor.build(setting.input_shape, setting.classes, setting.recipe.seed)
    records = randomised_records.build(given, extractor.features, setting.classes, strengths(setting.recipe))
    records.check(setting.checked)
    samples = given.aggregation.samples
    upload = Upload(plain, None, setting.values, clients=setting.clients, what=WHAT, samples=samples, clamp=given.clamp)
    together = Ldpfl(setting, setting.local_training, upload, extractor, records)
    method = together if given.learning == "together" else LdpflAlone(alone(setting), together)
    built = plainly_built(setting, method, upload, setting.local_training)
    return replace(built, graded=records.graded(setting.model))


__all__ = ["WHAT", "Ldpfl", "LdpflAlone", "build", "record_shape", "strengths"]

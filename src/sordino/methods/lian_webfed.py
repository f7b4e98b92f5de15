"""WebFed (Lian, Yang, Zeng, Su, "WebFed: Cross-platform Federated Learning Framework Based on Web Browser with Local
Differential Privacy", ICC 2022): clients are web pages that add Laplace noise to their weights.

    WebFedAVG (Algorithm 1)
        each round t = 1 .. T:
            the server selects m clients at random
            each client i:   w_i(t) <- w(t-1) - eta * gradient of L_i at w(t-1),  L_i the mean loss over D_i   (Eq. 3)
                             w~_i(t) <- w_i(t) + Lap(Delta s / eps)                                            (line 11)
            the server:      w(t) <- sum of |D_i| w~_i(t) / sum of |D_i|                                       (line 16)

One step on all records is FedSGD: `training.steps = 1`, `batch_size = 0`. With local epochs it is FedAvg; the paper's
section 3.1 names both.

Delta s is never defined and nothing is clipped, so that as printed nothing is proven. Three readings, as parameters of
the mechanism `laplace` (sordino.mechanisms.laplace says more):

    norm = "box"                 weights clipped to [-C, C] one by one, Delta s = 2C: eps per weight, d * eps per upload
    norm = "l1"                  the vector clipped to L1 norm C, Delta s = 2C: eps per upload
    norm = "box", records = m    Delta s = 2C/m, after Wei et al. 2020, whom the paper cites: the only one that leaves a
                                 model. It takes a trained weight for a mean over m records, which it is not, so that
                                 its eps is claimed only

Weighing by |D_i| sends |D_i|. By default all clients count alike and nothing is sent; `samples` sends the number as it
is; `noisy-samples` sends it once, with Laplace noise of its own, and the same number again in every later report.

What travels (pages in browsers speak the same): a plan has no settings and one array, `parameters [d]`; the body of a
report is the mechanism's output for d values (docs/bits.md), and before it, where samples weigh, the number of samples
as an unsigned 32-bit number, little-endian.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field

from sordino.mechanisms import Box, Laplace
from sordino.mechanisms.spec import FixedUnsaid, MechanismSpec, noise
from sordino.methods.aggregation import AGGREGATION, AggregationSpec, Mean, NoisySamples, offering
from sordino.methods.blueprint import Blueprint
from sordino.methods.interface import DATASET, Bench, ClientState, Cohort, Method, Reported, State
from sordino.methods.round_steps import average, send, train
from sordino.methods.selection import AnySelection, SelectAll
from sordino.methods.spec import MeanSpec
from sordino.methods.upload import MAX_SAMPLES, Draw, PerClass, Tally, Upload
from sordino.parts.slot import Slot
from sordino.parts.tables import tag
from sordino.privacy.guarantee import Adjacency, Release
from sordino.wire.messages import Plan

COUNTED = "noisy sample count"
KEPT = "count"  #: what a client keeps: the number of samples that it has announced
COUNT_STREAM = 1  #: the tensor number of the count's noise; that of the weights is 0


# --- how many samples, with noise (line 16) ---------------------------------------------------------------------------


class Counts:
    """Announced numbers of samples: each between 1 and a public limit, with Laplace noise, drawn once."""

    def __init__(self, epsilon: float, limit: int) -> None:
        self.limit = limit
        self.mechanism = Laplace(epsilon, Box(limit / 2, limit / 2))

    def announce(self, cohort: Cohort, draw: Draw) -> list[int]:
        """The noisy counts that clients announce, once."""
        sizes = np.array(cohort.sizes, np.float32)[:, None]
        output = self.mechanism.randomize(sizes, draw(cohort.clients), tensor=COUNT_STREAM).output
        estimates = np.rint(self.mechanism.estimate(output)[:, 0])
        return [int(count) for count in np.clip(estimates, 1, self.limit)]

    def again(self, kept: ClientState) -> int:
        """What a client has announced; one that did not is no longer free to, and counts for half the limit."""
        return int(kept[KEPT]) if KEPT in kept else max(1, self.limit // 2)

    def release(self, name: str) -> Release:
        """The announcement: for a whole client, and so for each of its records."""
        guarantee = self.mechanism.guarantee(Adjacency.CLIENT, values=1)
        return Release(f"{name}/{COUNTED}", DATASET, COUNTED, (guarantee,))


# --- the method -------------------------------------------------------------------------------------------------------


class WebFed(Method):
    """Federated averaging of noisy weights; where noisy sample counts weigh, they are announced in the first round."""

    class Spec(MeanSpec):
        """WebFed: clients are web pages, which add Laplace noise to their weights."""

        in_pages: ClassVar[bool] = True
        name: str = tag("webfed", "weights with Laplace noise, as web pages send them")
        selection: AnySelection = SelectAll()
        range: FixedUnsaid | None = Field(
            default=None, description="where weights are clipped to; left out only without a mechanism"
        )
        mechanism: Annotated[MechanismSpec, Slot("mechanism", noise("laplace"))] = Field(
            default=Laplace.Spec(), description="laplace in one of its three readings, or one without noise"
        )
        aggregation: Annotated[
            AggregationSpec, Slot("aggregation", offering("samples", "noisy samples", "reports")), AGGREGATION
        ] = Mean()

        def build(self, blueprint: Blueprint) -> WebFed:
            noisy = isinstance(self.aggregation, NoisySamples)
            most = self.aggregation.limit if noisy else MAX_SAMPLES
            upload = blueprint.upload("model weights", self.range, most_samples=most)
            counts = Counts(self.aggregation.epsilon, self.aggregation.limit) if noisy else None
            return WebFed(blueprint, upload, counts)

    def __init__(self, blueprint: Blueprint, upload: Upload, counts: Counts | None) -> None:
        super().__init__(blueprint, upload)
        self._counts = counts

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        found = super().releases(plan)
        if self._counts is None:
            return found
        announced = (self._counts.release(f"{plan.federation}/{plan.round}"),) if plan.round == 1 else ()
        return PerClass(len(found), lambda c: (found[c][0], *announced))

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        trained = train(self, plan, cohort, draw, bench)  # (Eq. 3)
        if self._counts is None:
            return send(self.upload(plan), cohort, trained.vectors, draw, trained)  # with Laplace noise (line 11)
        first = plan.round == 1
        announced = self._counts.announce(cohort, draw) if first else [self._counts.again(k) for k in cohort.states]
        counted = replace(cohort, sizes=tuple(announced))
        reported = send(self.upload(plan), counted, trained.vectors, draw, trained)
        states = (
            {**kept, KEPT: np.array(count)} if first or KEPT in before else kept
            for before, kept, count in zip(cohort.states, reported.states, announced, strict=True)
        )
        return replace(reported, states=tuple(states))

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        return average(state, tally, self.statistics)  # weighed by |D_i|, by noisy counts or alike (line 16)


__all__ = ["COUNTED", "Counts", "WebFed"]

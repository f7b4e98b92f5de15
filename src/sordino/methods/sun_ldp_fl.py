"""LDP-FL (Sun, Qian, Chen, "LDP-FL: Practical Private Aggregation in Federated Learning with Local Differential
Privacy", IJCAI 2021): weights, not updates, each as one of two points within a range by layer.

    CloudUpdate (Algorithm 1)
        W_0 at random;  (C_0, R_0) for the layers of W_0
        each round l = 1, 2, ...:
            select k_l <= n clients at random, send them W, C, R
            w <- 1/k_l * sum of the w*_id received, for every position id
            update C and R of every layer from W_l

    LocalUpdate
        W^s <- E epochs of SGD from W
        DataPerturbation (Algorithm 2), for every w of a layer with range (c, r):                               (Eq. 2)
            w* = c + r K  with probability 1/2 + (w - c)/(2 r K),  else c - r K;      K = (e^eps + 1)/(e^eps - 1)
        ParameterShuffling (Algorithm 3): (id, w*) travels alone, after a delay of U(0, T), under no name

How C and R follow from W_l is not said: here c = (max + min)/2 and r = (max - min)/2 of a layer's noisy means. They are
computed from what was released, so they cost nothing. What Corollary 1 allows, clients that choose ranges of their own,
is not offered: c +- r K tells any two ranges apart with certainty.

The paper claims d*T*eps without a shuffler, d*eps for the whole training where whole models are shuffled, and eps where
single parameters are (section 4). A shuffler hides whose bit is whose, not how many ones there are: each of the d*T
counts is one more view of the same client, and the statement adds them up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sordino.errors import InvalidInput
from sordino.mechanisms import TwoPoint
from sordino.mechanisms.spec import Centre, MechanismSpec, Radius, RangeSpec, noise, per_layer
from sordino.methods.aggregation import Mean, PartAggregation
from sordino.methods.blueprint import Blueprint
from sordino.methods.interface import Bench, Cohort, Method, Reported, State
from sordino.methods.round_steps import moved, send, train, vector_of
from sordino.methods.selection import AnySelection, SelectAll
from sordino.methods.spec import BitChannel, MethodSpec, ServerLr, direct
from sordino.methods.upload import Draw, Tally, Upload
from sordino.parts.slot import Slot
from sordino.parts.tables import Found, Positive, Probability, reads, tag
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from sordino.learning.models import LayerSlice
    from sordino.recipe import Recipe

Floats = NDArray[np.float32]

RANGE = "range"  #: the array of plan and state with centres and radii `[2, layers]`
WHAT = "model weights"
SMALLEST_RADIUS = 1e-3  #: a layer whose weights are all alike still needs an interval


class AdaptiveRange(RangeSpec):
    """A range by layer that the server takes from its own noisy mean after each round (LDP-FL): nothing new is lost."""

    adapts: ClassVar[bool] = True
    kind: str = tag("adaptive", "by layer, from the last noisy mean")
    radius: Radius | None = Field(
        default=None,
        description="in the first round: one number, or a table by layer; spans the initial weights if left out",
    )
    centre: Centre = Field(default=0.0, description="in the first round, with radius: one number, or a table by layer")
    slack: Positive = Field(default=1.0, description="every radius taken from a mean is multiplied by it")
    quantile: Probability = Field(
        default=1.0, description="share of a layer's values that its range spans (1: from the smallest to the largest)"
    )

    def of(self, values: Floats, layers: Sequence[LayerSlice]) -> Floats:
        """Centres and radii `[2, layers]` of values `[d]` (Algorithm 1, lines 12 and 13)."""
        tail = (1 - self.quantile) / 2
        with np.errstate(invalid="ignore", over="ignore"):  # of a model that diverged: its round does not count
            ends = [np.quantile(values[layer.start : layer.stop], (tail, 1 - tail)) for layer in layers]
            low, high = np.array(ends, np.float64).T
            radius = np.maximum(self.slack * (high - low) / 2, SMALLEST_RADIUS)
            return np.stack([(high + low) / 2, radius]).astype(np.float32)

    def first(self, blueprint: Blueprint) -> Floats:
        """(C_0, R_0): as the recipe states them, else those of the initial weights, which are public (line 3)."""
        layers, start = blueprint.sent_layout.layers, blueprint.statistics
        if self.radius is not None:
            rows = [per_layer(*each, layers) for each in (("centre", self.centre), ("radius", self.radius))]
            return np.array(rows, np.float32)
        values = [blueprint.initial, *(start.start[name].numpy().reshape(-1) for name in start.released)]
        return self.of(np.concatenate(values), layers)

    @reads("method.name", ".", "method.mechanism")
    def can_be_had(self, recipe: Recipe) -> Found:
        """The first round's range is given whole or not at all, and the mechanism has a range by layer."""
        mechanism = recipe.method.mechanism
        if self.radius is None and self.centre != 0:
            yield ".centre", "got one without a radius, and both are of the first round: give both or none"
        if mechanism.around_zero:
            yield ".kind", f"got adaptive with {mechanism.form}; allowed: fixed"


class LdpFl(Method):
    """Federated averaging of weights that arrive as bits, with ranges that may follow the noisy means."""

    class Spec(MethodSpec):
        """LDP-FL: weights as single bits, ranges by layer, single parameters shuffled."""

        in_pages: ClassVar[bool] = True
        name: str = tag("ldp-fl", "weights as bits, ranges by layer, shuffled")
        server_lr: ServerLr = 1.0
        selection: AnySelection = SelectAll()
        range: Annotated[RangeSpec, Slot("range")] | None = Field(
            default=None, description="where weights are clipped to; left out only without a mechanism"
        )
        mechanism: Annotated[MechanismSpec, Slot("mechanism", noise("points"))] = Field(
            default=TwoPoint.Spec(), description="the paper's randomiser, or for comparison one of those without noise"
        )
        channel: BitChannel = Field(default_factory=direct)
        aggregation: PartAggregation = Mean()

        def build(self, blueprint: Blueprint) -> LdpFl:
            ranges = self.range.first(blueprint) if isinstance(self.range, AdaptiveRange) else None
            upload = blueprint.upload(WHAT, self.range) if ranges is None else within(blueprint, ranges)
            return LdpFl(blueprint, upload, ranges)

    def __init__(self, blueprint: Blueprint, first: Upload, ranges: Floats | None) -> None:
        super().__init__(blueprint, first)
        self._blueprint, self._first_range = blueprint, ranges
        self._last: dict[bytes, Upload] = {}  # by its range: server and clients compute the same from the plan

    def upload(self, plan: Plan) -> Upload:
        if self._first_range is None:
            return self.first_upload
        key = np.asarray(plan.arrays[RANGE], "<f4").tobytes()
        if key not in self._last:
            self._last = {key: within(self._blueprint, plan.arrays[RANGE])}
        return self._last[key]

    # --- CloudUpdate

    def init(self) -> State:
        state = super().init()  # W_0
        return state if self._first_range is None else _with_range(state, self._first_range)  # C_0, R_0 (line 3)

    def plan(self, state: State, federation: str) -> Plan:
        plan = super().plan(state, federation)
        return plan if self._first_range is None else replace(plan, arrays={**plan.arrays, RANGE: state.arrays[RANGE]})

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        w = tally.mean()  # of the w*_id received (lines 10 and 11)
        step = self.spec.aggregation.move(w, w - vector_of(state, self.statistics))
        after = moved(state, self.spec.server_lr * step, self.statistics)
        if self._first_range is None:
            return after
        ranges = self.spec.range.of(vector_of(after, self.statistics), self._blueprint.sent_layout.layers)
        return _with_range(after, ranges)

    # --- LocalUpdate

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        trained = train(self, plan, cohort, draw, bench)  # W^s
        return send(self.upload(plan), cohort, trained.vectors, draw, trained)  # w* (Eq. 2)


def _with_range(state: State, ranges: Floats) -> State:
    return replace(state, arrays={**state.arrays, RANGE: ranges})


def within(blueprint: Blueprint, ranges: Floats) -> Upload:
    """The upload of a round with these centres and radii."""
    layers = blueprint.sent_layout.layers
    if ranges.shape != (2, len(layers)):
        raise InvalidInput(f"a plan's ranges are [2, {len(layers)}], centres and radii of all layers: ask for it again")
    centre, radius = ({layer.name: float(x) for layer, x in zip(layers, row, strict=True)} for row in ranges)
    return blueprint.upload(WHAT, blueprint.recipe.method.range.model_copy(update={"centre": centre, "radius": radius}))


__all__ = ["RANGE", "AdaptiveRange", "LdpFl"]

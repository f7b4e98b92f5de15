"""LDP-Fed (Truex, Liu, Chow, Gursoy, Wei, "LDP-Fed: Federated Learning with Local Differential Privacy", EdgeSys 2020).

    alpha: each participant's total for the whole training;  E rounds;  theta = theta_1 .. theta_l, layer by layer

    each round i:   theta_i <- what is sent in this round,  alpha_i <- its part of alpha       (sections 3 and 4: below)
        each participant:   train from the aggregator's theta on its own records; of the update keep theta_i's part
                            clip every value to [-c, c], code it as a whole number in [-c 10^rho, c 10^rho]
                            send Ordinal-CLDP of each with alpha_p = alpha_i / |theta_i|       (exponential mechanism)
        k-client selection:   k of the N uploads
        aggregator:   theta <- theta + mean of the k decoded uploads

    CLDP-Basic          theta_i = theta in every round, alpha_i = alpha / E
    CLDP-Single-Layer   E / l rounds for each layer, the output layer first, then backwards; alpha_i = alpha / E
    alpha-CLDP-Fed      E_j = E |theta_j| / |theta| rounds for layer j, at least one, in the same order; they share
                        alpha |theta_j| / |theta|.   With c' cycles all of this c' times, with E/c' and alpha/c'

Rounds must be whole numbers and add up to E, which rounding each E_j up to at least 1 does not achieve: in every cycle
each layer first gets one round, and the others are dealt in proportion to size, by largest remainders.

In its "sampling amplification" the paper takes alpha = sum of q alpha_i with q = k/N, so that each alpha_i may be 1/q
larger (`sampling = "claimed"`). No proof supports that: q eps is below even the bound ln(1 + q (e^eps - 1)) for secret
samples, and here the selection is no secret from whoever makes it. What is proven counts every upload in full.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from sordino.errors import InvalidInput
from sordino.mechanisms import Exponential, Mechanism
from sordino.mechanisms.spec import FixedUnsaid, MechanismSpec, noise
from sordino.methods.aggregation import Mean, PartAggregation
from sordino.methods.blueprint import Blueprint
from sordino.methods.interface import Bench, Cohort, Method, Reported, State
from sordino.methods.round_steps import moved, send, train
from sordino.methods.scopes import Schedule, ScopeSpec, Turn
from sordino.methods.selection import AnySelection, SelectAll
from sordino.methods.spec import AnyChannel, MethodSpec, ServerLr, direct
from sordino.methods.upload import Draw, Tally, Upload
from sordino.parts.slot import Slot
from sordino.parts.tables import Count, Found, reads, tag
from sordino.parts.toml import shown
from sordino.privacy.guarantee import Claim, Release
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from sordino.learning.models import LayerSlice
    from sordino.recipe import Recipe

# --- who sends what when: budgets and schedules -----------------------------------------------------------------------


def dealt(rounds: int, sizes: Sequence[int]) -> list[int]:
    """How many rounds each layer gets: one, and its part of the rest by largest remainders, the first if equal."""
    rest = rounds - len(sizes)
    if rest < 0:
        raise InvalidInput(
            f"{rounds} rounds (of one cycle) are too few for {len(sizes)} layers, of which each needs one: "
            "raise rounds.count, or take fewer cycles"
        )
    quotas = [Fraction(rest * size, sum(sizes)) for size in sizes]
    counts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(sizes)), key=lambda j: counts[j] - quotas[j])
    for j in by_remainder[: rest - sum(counts)]:
        counts[j] += 1
    return [1 + count for count in counts]


class ScopeLayers(ScopeSpec):
    """One layer a round, from the output layer backwards, each for as many rounds (CLDP-Single-Layer)."""

    kind: str = tag("layers", "one layer a round, from the last backwards, each for as many rounds")

    def schedule(self, layers: Sequence[LayerSlice], rounds: int) -> Schedule:
        counts = zip(layers[::-1], dealt(rounds, [1] * len(layers)), strict=True)
        return tuple(Turn.of(layer, Fraction(1, rounds)) for layer, n in counts for _ in range(n))


class ScopeProportional(ScopeSpec):
    """One layer a round, from the output layer backwards, rounds and budget by size (alpha-CLDP-Fed)."""

    kind: str = tag(
        "proportional", "one layer a round, from the last backwards, rounds and budget in proportion to its size"
    )
    cycles: Count = Field(default=1, description="how often all layers are gone through; rounds.count is a multiple")

    def schedule(self, layers: Sequence[LayerSlice], rounds: int) -> Schedule:
        sizes = [layer.size for layer in layers[::-1]]
        cycle = tuple(
            Turn.of(layer, Fraction(layer.size, sum(sizes) * self.cycles * n))
            for layer, n in zip(layers[::-1], dealt(rounds // self.cycles, sizes), strict=True)
            for _ in range(n)
        )
        return cycle * self.cycles

    @reads("method", "rounds.count")
    def cycles_are_equally_long(self, recipe: Recipe) -> Found:
        """Refuse cycles that do not divide the rounds."""
        count = recipe.rounds.count
        if count % self.cycles:
            yield ".cycles", f"got {self.cycles}; allowed: a divisor of rounds.count = {count}"


# --- how one round's values leave a participant -----------------------------------------------------------------------


def ordinal_cldp(alpha: float | None, *, builder: Callable[[float | None], Mechanism], part: Fraction) -> Mechanism:
    """Ordinal-CLDP with alpha_p = alpha * part."""
    return builder(None if alpha is None else float(Fraction(alpha) * part))


class RoundUpload(Upload):
    """The upload of one round; what the paper claims is for all rounds together, so each release repeats the total."""

    formula: str | None = None

    def _class_releases(self, c: int, name: str, dataset: str) -> tuple[Release, ...]:
        upload, *others = super()._class_releases(c, name, dataset)
        alpha = self.strengths[c]
        if alpha is None or self.formula is None:
            return (upload, *others)
        return (replace(upload, claimed=Claim(alpha, 0.0, self.formula, covers="schedule")), *others)


def formula(q: Fraction) -> str:
    """What the paper claims, in its words."""
    if q == 1:
        return "alpha in condensed LDP, alpha = sum of alpha_i over all rounds (LDP-Fed, section 3)"
    return f"alpha in condensed LDP, alpha = sum of q alpha_i over all rounds, q = {q} (LDP-Fed, section 3)"


def upload_of(turn: Turn, blueprint: Blueprint, q: Fraction) -> RoundUpload:
    """The upload of a round: alpha_p = alpha_i / |theta_i|, and alpha_i 1/q larger where q of the clients are heard."""
    given = blueprint.recipe.method
    builder = given.mechanism.builder(given.range, blueprint.sent_layout.layers, turn.size)
    upload = RoundUpload(
        partial(ordinal_cldp, builder=builder, part=turn.share / q / turn.size),
        blueprint.recipe.epsilons(),
        turn.size,
        clients=blueprint.clients,
        what=f"model update of {turn.what}",
        samples=given.aggregation.samples,
    )
    if given.mechanism.noise == "coded":
        upload.formula = formula(q)
    upload.check(blueprint.checked)
    return upload


# --- the method -------------------------------------------------------------------------------------------------------


class LdpFed(Method):
    """Federated averaging of the scheduled layer's randomised updates."""

    class Spec(MethodSpec):
        """LDP-Fed: the scheduled layer's updates through the exponential mechanism; clients.epsilon is alpha."""

        sends_updates: ClassVar[bool] = True
        name: str = tag("ldp-fed", "LDP-Fed; clients.epsilon is alpha, for all rounds")
        server_lr: ServerLr = 1.0
        selection: AnySelection = SelectAll()
        scope: Annotated[ScopeSpec, Slot("scope")] = Field(
            default=ScopeProportional(),
            description="which layers are sent in a round, and which part of alpha it spends",
        )
        range: FixedUnsaid | None = Field(
            default=None, description="where values are clipped to: radius is the paper's c"
        )
        mechanism: Annotated[MechanismSpec, Slot("mechanism", noise("coded"))] = Field(
            default=Exponential.Spec(), description="exponential (precision is the paper's rho), or an ablation of it"
        )
        sampling: Literal["ignored", "claimed"] = Field(
            default="ignored",
            description="ignored: the rounds' alpha_i add up to alpha; claimed: they are 1/q larger where a fraction "
            "q of "
            "the clients is selected, for which there is no proof",
        )
        channel: AnyChannel = Field(default_factory=direct)
        aggregation: PartAggregation = Mean()

        @reads("method", "rounds.count")
        def all_layers_are_coded_alike(self, recipe: Recipe) -> Found:
            """Refuse a radius by layer where all layers are coded alike."""
            if self.range is not None and isinstance(self.range.radius, dict) and not self.mechanism.one_radius:
                found = f"got {shown(self.range.radius)}; ldp-fed codes all layers alike"
                yield "method.range.radius", f"{found}: give one number"

        def build(self, blueprint: Blueprint) -> LdpFed:
            schedule = self.scope.schedule(blueprint.sent_layout.layers, blueprint.recipe.rounds.count)
            q = sampled(blueprint)
            return LdpFed(
                blueprint, schedule, {turn: upload_of(turn, blueprint, q) for turn in dict.fromkeys(schedule)}
            )

    def __init__(self, blueprint: Blueprint, schedule: Schedule, uploads: Mapping[Turn, Upload]) -> None:
        super().__init__(blueprint, uploads[schedule[0]])
        self._schedule, self._uploads = schedule, uploads

    def plan(self, state: State, federation: str) -> Plan:
        turn = self._schedule[state.round]
        settings = {
            "what": turn.what,
            "columns": [turn.start, turn.stop],
            "share": [turn.share.numerator, turn.share.denominator],
        }
        return replace(super().plan(state, federation), settings=settings)

    def upload(self, plan: Plan) -> Upload:
        return self._uploads[self.turn(plan)]

    def columns(self, plan: Plan) -> slice:
        return self.turn(plan).columns

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        trained = train(self, plan, cohort, draw, bench)
        theta_i = trained.update[:, self.columns(plan)]
        return send(self.upload(plan), cohort, theta_i, draw, trained)  # clipped, coded, Ordinal-CLDP

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        mean = tally.mean()  # of the k decoded uploads
        step = self.spec.server_lr * self.spec.aggregation.move(mean, mean)
        return moved(state, step, self.statistics, self.columns(plan))

    def turn(self, plan: Plan) -> Turn:
        """What a plan asks for: it must be what the recipe foresees for its round, whoever sent it."""
        asked = plan.settings
        try:
            start, stop = map(int, asked["columns"])
            turn = Turn(str(asked["what"]), start, stop, Fraction(*map(int, asked["share"])))
        except (KeyError, TypeError, ValueError, ZeroDivisionError):
            raise InvalidInput("the plan does not say which layer it asks for: it is not one of LDP-Fed") from None
        if not 1 <= plan.round <= len(self._schedule) or turn != self._schedule[plan.round - 1]:
            raise InvalidInput(
                f"the plan of round {plan.round} asks for {turn.what} with {turn.share} of alpha, which is not what "
                "the recipe's schedule has there: refuse it"
            )
        return turn


def sampled(blueprint: Blueprint) -> Fraction:
    """q = k/N, the part of the participants whose updates the aggregator gets; 1 where the recipe leaves it alone."""
    given = blueprint.recipe.method
    if given.sampling == "ignored":
        return Fraction(1)
    if not given.selection.steady:
        return Fraction(repr(given.selection.expected(1)))
    return Fraction(given.channel.handed_on(given.selection.asked(blueprint.clients)), blueprint.clients)


__all__ = ["LdpFed", "ScopeLayers", "ScopeProportional", "dealt"]

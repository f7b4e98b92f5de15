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

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from sordino.errors import InvalidInput
from sordino.learning.cohort import LocalTraining
from sordino.learning.models import Layer
from sordino.mechanisms import Mechanism
from sordino.methods.fedavg import FedAvg
from sordino.methods.interface import Bench, Cohort, Reported, State
from sordino.methods.round_steps import moved, send, start_of, steps_before, train
from sordino.methods.setting import Built, Setting, plainly_built
from sordino.methods.upload import Draw, Tally, Upload
from sordino.privacy.guarantee import Claim, Release
from sordino.wire.messages import Plan

# --- who sends what when: budgets and schedules -----------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """One round: the values that are sent, by a name and their columns, and the part of alpha that it may spend."""

    what: str
    start: int
    stop: int
    share: Fraction  #: alpha_i / alpha

    @property
    def size(self) -> int:
        """|theta_i|."""
        return self.stop - self.start

    @property
    def columns(self) -> slice:
        """Where theta_i lies in theta."""
        return slice(self.start, self.stop)

    @classmethod
    def of(cls, layer: Layer, share: Fraction) -> Turn:
        """The round in which a layer is sent."""
        return cls(layer.name, layer.start, layer.stop, share)


Schedule = tuple[Turn, ...]


def basic(layers: Sequence[Layer], rounds: int) -> Schedule:
    """CLDP-Basic: everything in every round."""
    return (Turn("all layers", layers[0].start, layers[-1].stop, Fraction(1, rounds)),) * rounds


def single_layer(layers: Sequence[Layer], rounds: int) -> Schedule:
    """CLDP-Single-Layer: as many rounds and as much of alpha for every layer."""
    backwards = layers[::-1]
    counts = dealt(rounds, [1] * len(layers))
    return tuple(
        Turn.of(layer, Fraction(1, rounds)) for layer, n in zip(backwards, counts, strict=True) for _ in range(n)
    )


def proportional(layers: Sequence[Layer], rounds: int, cycles: int) -> Schedule:
    """alpha-CLDP-Fed: rounds and alpha in proportion to each layer's size, in so many cycles."""
    if rounds % cycles:
        raise InvalidInput(
            f"{rounds} rounds do not make {cycles} equal cycles: choose rounds.count as a multiple of the cycles"
        )
    backwards = layers[::-1]
    sizes = [layer.size for layer in backwards]
    cycle = tuple(
        Turn.of(layer, Fraction(layer.size, sum(sizes) * cycles * n))
        for layer, n in zip(backwards, dealt(rounds // cycles, sizes), strict=True)
        for _ in range(n)
    )
    return cycle * cycles


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


# --- how one round's values leave a participant -----------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LdpModule:
    """A participant's alpha -> Ordinal-CLDP with alpha_p = alpha_i / |theta_i|, where alpha_i = alpha * share."""

    builder: Callable[[float | None], Mechanism]
    values: int  #: |theta_i|
    share: Fraction

    def __call__(self, alpha: float | None) -> Mechanism:
        return self.builder(None if alpha is None else float(Fraction(alpha) * self.share / self.values))


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


class Uploads:
    """The upload of every round: those of equal layers and shares are one object, built once."""

    def __init__(self, setting: Setting, q: Fraction) -> None:
        given: Any = setting.recipe.method
        self._mechanism, self._range, self._layout = given.mechanism, given.range, setting.sent_layout
        self._alphas, self._clients, self._q = setting.recipe.epsilons(), setting.clients, q
        self._checked = setting.checked
        self._samples = given.aggregation.samples
        self._built: dict[tuple[str, Fraction], RoundUpload] = {}

    def __call__(self, turn: Turn) -> RoundUpload:
        if (turn.what, turn.share) not in self._built:
            self._built[turn.what, turn.share] = self._build(turn)
        return self._built[turn.what, turn.share]

    def _build(self, turn: Turn) -> RoundUpload:
        builder = self._mechanism.builder(self._range, self._layout.layers, turn.size)
        upload = RoundUpload(
            LdpModule(builder, turn.size, turn.share / self._q),
            self._alphas,
            turn.size,
            clients=self._clients,
            what=f"model update of {turn.what}",
            samples=self._samples,
        )
        if self._mechanism.noise == "coded":
            upload.formula = formula(self._q)
        upload.check(self._checked)
        return upload


# --- the method -------------------------------------------------------------------------------------------------------


class LdpFed(FedAvg):
    """Federated averaging of the scheduled layer's randomised updates."""

    def __init__(self, setting: Setting, training: LocalTraining, schedule: Schedule, uploads: Uploads) -> None:
        super().__init__(setting, training, uploads(schedule[0]), sends="update")
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
        return self._uploads(self.turn(plan))

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        theta = start_of(plan.arrays, self.statistics)
        trained = train(self, theta, cohort, draw, bench, steps_before(self.training, plan.round, cohort.data))
        theta_i = trained.update[:, self.turn(plan).columns]
        return send(self.upload(plan), cohort, theta_i, draw, trained)  # clipped, coded, Ordinal-CLDP

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        mean = tally.mean()  # of the k decoded uploads
        step = self._server_lr * self._aggregation.move(mean, mean)
        return moved(state, step, self.statistics, self.turn(plan).columns)

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


def sampled(setting: Setting) -> Fraction:
    """q = k/N, the part of the participants whose updates the aggregator gets; 1 where the recipe leaves it alone."""
    given: Any = setting.recipe.method
    if given.sampling == "ignored":
        return Fraction(1)
    if not given.selection.steady:
        return Fraction(repr(given.selection.expected(1)))
    return Fraction(given.channel.handed_on(given.selection.asked(setting.clients)), setting.clients)


def build(setting: Setting) -> Built:
    """LDP-Fed as a recipe asks for it."""
    given: Any = setting.recipe.method
    schedule = given.scope.schedule(setting.sent_layout.layers, setting.recipe.rounds.count)
    uploads, training = Uploads(setting, sampled(setting)), setting.local_training
    for turn in dict.fromkeys(schedule):
        uploads(turn)  # refuses now what some round's alpha does not allow
    method = LdpFed(setting, training, schedule, uploads)
    return plainly_built(setting, method, uploads(schedule[0]), training)


__all__ = [
    "LdpFed", "Schedule", "Turn", "Uploads", "basic", "build", "dealt", "proportional", "single_layer",
]  # fmt: skip

"""Before the first round: how loud the noise will be beside an update, what budgets allow, and what a report weighs.

The noise comes from the mechanisms' exact variances at the centre of their domains. The mean over n clients of
estimates with variances v_k (each summed over the d values) has noise of L2 norm sqrt(mean_k v_k / n).

What that does to a model is a rule of thumb. Over T rounds updates add up as T at best and noise as sqrt(T); and noise
spreads evenly over all d directions while updates keep to few. So what is judged is noise / update / sqrt(d T): below
0.01 training barely notices it, from 0.3 on nothing is learnt. The rule was set on logistic regression and small
networks on handwritten digits (docs/planning.md has the measurement); it is no promise.

This module has the figures; `sordino.report.expectations` puts them into words.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.mechanisms import Box, IntegerRange, L1Ball, L2Ball, Mechanism, NoPrivacy, Sphere
from sordino.privacy.accountant import Account, compose
from sordino.privacy.guarantee import Budget, Claim, Guarantee, Infinite, Release, check_count
from sordino.privacy.ledger import cost
from sordino.privacy.planning import rounds_allowed
from sordino.randomness import Keystream
from sordino.report import expectations

if TYPE_CHECKING:
    from sordino.learning.private_sgd import PrivateTraining
    from sordino.methods.interface import LocalView, Method
    from sordino.recipe import Recipe
    from sordino.runs.federation import Federation
    from sordino.wire.messages import Plan

MOST_KINDS = 4  #: of reports that are told apart; of more, only the extremes are

Float64s = NDArray[np.float64]
Releases = tuple[Release, ...]  #: of one report
Schedule = tuple[Releases, ...]  #: of every round


# --- what clients send ----------------------------------------------------------------------------------------------


class Sender(Protocol):
    """How one client's d values leave it: what that adds in noise, takes away, releases and weighs."""

    @property
    def unknown(self) -> str:
        """Why the noise is not known in advance, where it is not."""

    def noise(self, values: int) -> float | None:
        """The variance of an upload's estimate, summed over its values; None where it is not known."""

    def kept(self, values: int, norm: float) -> float:
        """The L2 norm, in the estimate, of an update of this norm: after clipping, rescaling or voting."""

    def releases(self, values: int) -> tuple[Release, ...]:
        """What one report releases."""

    def report_bytes(self, values: int) -> int:
        """How many bytes a report has, without its envelope."""

    def range_fit(self, values: int, norm: float | None, largest: float | None) -> RangeFit | None:
        """How the range fits updates of this norm, or values of this size; None where nothing can be said."""


@dataclass(frozen=True)
class RangeFit:
    """How large the range of a mechanism is, and how large what it has to hold."""

    shape: Literal["box", "L1 ball", "L2 ball", "sphere"]
    least: float  #: how far a box reaches from its centre, or a radius
    most: float  #: the same of the value with the widest range
    size: float | None  #: the largest value, or the norm of an update; that of a sphere need not be known


@dataclass(frozen=True)
class NormFit:
    """The L2 norm that longer reports are shortened to, and that of an honest report."""

    norm: float
    honest: float | None  #: none where it is not known


@dataclass(frozen=True)
class BatchNorm:
    """What becomes of the statistics of batch norm."""

    noise: float | None  #: in each of them, where they are released
    examples: int  #: so many at a time score the common model, where the statistics stay with the clients


@dataclass(frozen=True)
class MechanismSender:
    """A client that sends its values through a mechanism (with parameters for any number of clients)."""

    mechanism: Mechanism
    what: str = "model update"
    unknown = ""

    def __post_init__(self) -> None:
        if self.mechanism.clients is not None:
            raise InvalidInput(
                f"{self.mechanism!r} holds parameters for several clients: give each kind of client a mechanism of its "
                "own, with one set of parameters"
            )

    def noise(self, values: int) -> float | None:
        columns, repeats = self.mechanism.domain.centre_of(values)
        return float(self.mechanism.variance(columns).sum()) * repeats

    def kept(self, values: int, norm: float) -> float:
        """For an update whose values are all of one size."""
        columns, repeats = self.mechanism.domain.centre_of(values)
        moved = columns + norm / math.sqrt(values)
        shift = self._mean(moved) - self._mean(columns)
        return float(np.linalg.norm(shift)) * math.sqrt(repeats)

    def _mean(self, at: Float64s) -> Float64s:
        return np.asarray(self.mechanism.bias(at)[0] + at)

    def releases(self, values: int) -> tuple[Release, ...]:
        guarantee = self.mechanism.guarantee(values=values)
        return (Release("planned", "planned", self.what, (guarantee,), self.mechanism.claim(values=values)),)

    def report_bytes(self, values: int) -> int:
        """That of a report about zeros: all of a mechanism's reports are equally long."""
        randomness = Keystream.simulation(0, [0], 0)
        output = self.mechanism.randomize(np.zeros(values, np.float32), randomness).output
        return len(self.mechanism.encode(output)[0])

    def range_fit(self, values: int, norm: float | None, largest: float | None) -> RangeFit | None:
        match self.mechanism.domain:
            case _ if not self.mechanism.bounded:
                return None
            case Box(radius=radius):
                return None if largest is None else RangeFit("box", float(radius.min()), float(radius.max()), largest)
            case IntegerRange(clip=clip):
                return None if largest is None else RangeFit("box", clip, clip, largest)
            case L1Ball(radius=radius):  # the norm of an update whose values are all of one size
                return None if norm is None else RangeFit("L1 ball", radius, radius, norm * math.sqrt(values))
            case L2Ball(radius=radius):
                return None if norm is None else RangeFit("L2 ball", radius, radius, norm)
            case Sphere(radius=radius):
                return RangeFit("sphere", radius, radius, norm)
            case _:
                return None


@dataclass(frozen=True)
class PrivateSilo:
    """A client that trains by DP-SGD and sends the result: the noise is in each step's sum of gradients.

    `gains` say by how much each step's noisy gradient moves the result in the end: the learning rate, or more with
    momentum. Empty where that is not known in advance, as with Adam and RMSprop.
    """

    guarantee: Callable[[int], Guarantee]  #: of an upload of so many values
    noise_multiplier: float
    clip: float
    expected_batch: float
    gains: tuple[float, ...]
    what: str = "model update (DP-SGD)"
    unknown = "how this optimiser scales it depends on the gradients"

    @classmethod
    def of(cls, training: PrivateTraining) -> PrivateSilo:
        """The silo that trains like this."""
        given: Any = training.optimizer
        plain = type(given).__name__ == "SGD" and not given.decay
        gains = _gains(given.lr, given.momentum, given.nesterov, training.steps) if plain else ()
        return cls(training.guarantee, training.noise_multiplier, training.clip, training.expected_batch, gains)

    def noise(self, values: int) -> float | None:
        if not self.gains:
            return None
        each = self.noise_multiplier * self.clip / self.expected_batch
        return values * each * each * math.fsum(gain * gain for gain in self.gains)

    def kept(self, values: int, norm: float) -> float:
        return norm

    def releases(self, values: int) -> tuple[Release, ...]:
        return (Release("planned", "planned", self.what, (self.guarantee(values),)),)

    def report_bytes(self, values: int) -> int:
        return 4 * values

    def range_fit(self, values: int, norm: float | None, largest: float | None) -> RangeFit | None:
        return None


def _gains(lr: float, momentum: float, nesterov: bool, steps: int) -> tuple[float, ...]:
    """With k steps to go, its own included, a gradient moves the result by lr (1 + m + ... + m^(k-1)).

    Nesterov's momentum looks one step ahead: one power more.
    """
    powers = range(1 + nesterov, steps + 1 + nesterov)
    return tuple(lr * math.fsum(momentum**i for i in range(k)) for k in powers)


@dataclass(frozen=True)
class MedianClippingSender:
    """A client whose update a trusted server clips to the median of all norms, with noise in proportion to that.

    `loudness` is the L2 norm of the noise in the average of a round for updates of the size that was measured; None
    where none was.
    """

    sender: Sender
    loudness: float | None
    asked: float
    unknown = "it is in proportion to the median of the updates' norms"

    def noise(self, values: int) -> float | None:
        """Each report's share of it: of as many shares as clients are asked, the mean is as loud as it will be."""
        return None if self.loudness is None else self.loudness**2 * self.asked

    def kept(self, values: int, norm: float) -> float:
        return norm

    def releases(self, values: int) -> tuple[Release, ...]:
        return self.sender.releases(values)

    def report_bytes(self, values: int) -> int:
        return self.sender.report_bytes(values)

    def range_fit(self, values: int, norm: float | None, largest: float | None) -> RangeFit | None:
        return None


@dataclass(frozen=True)
class ClientGroup:
    """Clients alike: the same sender, the same budget, the same weight in the average."""

    clients: tuple[int, ...]
    sender: Sender
    budget: Budget | None = None
    weight: float = 1.0
    round_releases: Releases | None = None  #: of one round, where there are more than the sender's own
    schedule: Schedule | None = None  #: of every round, where rounds differ

    def __post_init__(self) -> None:
        if not self.clients:
            raise InvalidInput("a group needs at least one client")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise InvalidInput(f"a client's weight must be a finite number > 0, got {self.weight!r}")

    def releases(self, values: int) -> Releases:
        """What a client of this group releases in the first round, or in each."""
        if self.schedule is not None:
            return self.schedule[0]
        return self.sender.releases(values) if self.round_releases is None else self.round_releases

    def all_releases(self, values: int, rounds: int) -> Schedule:
        """What a client of this group releases that reports in every round."""
        return (self.releases(values),) * rounds if self.schedule is None else self.schedule


def groups_of(
    senders: Sequence[Sender],
    class_of: Sequence[int],
    *,
    budgets: Sequence[Budget] | None = None,
    weights: Sequence[float] | None = None,
    releases: Sequence[Releases] | None = None,
    schedules: Sequence[Schedule] | None = None,
) -> tuple[ClientGroup, ...]:
    """Groups of clients from one sender (and weight, and releases) per class, and one class and budget per client.

    `releases` are those of any round, `schedules` those of every round, where rounds differ.
    """
    if budgets is not None and len(budgets) != len(class_of):
        raise InvalidInput(f"there are {len(class_of)} clients and {len(budgets)} budgets: give one each")
    members: dict[tuple[int, Budget | None], list[int]] = {}
    for client, kind in enumerate(class_of):
        members.setdefault((int(kind), None if budgets is None else budgets[client]), []).append(client)
    return tuple(
        ClientGroup(
            tuple(clients),
            senders[kind],
            budget,
            1.0 if weights is None else weights[kind],
            None if releases is None else tuple(releases[kind]),
            None if schedules is None else schedules[kind],
        )
        for (kind, budget), clients in members.items()
    )


# --- what comes of it -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Outlook:
    """How far the budget of some clients goes."""

    clients: tuple[int, ...]
    budget: Budget
    reports: int  #: how many the budget admits
    expected: float  #: how many will be asked for, on average

    @property
    def lasts(self) -> bool:
        """Whether it covers what will be asked for."""
        return self.reports >= self.expected


@dataclass(frozen=True)
class ReportLoss:
    """What the reports of some clients lose: proven at delta and, where there is a paper, claimed."""

    clients: tuple[int, ...]
    what: str
    guarantee: Guarantee
    delta: float
    proven: float  #: epsilon of one report, the first where they differ
    total: float  #: epsilon of a report in every round, the schedule being fixed in advance
    claimed: Claim | None
    differs: bool = False  #: whether reports of other rounds lose something else


@dataclass(frozen=True)
class Facts:
    """What is to be known of a federation beside its figures."""

    masked: bool = False  #: whether reports are masked for a secure sum
    batch_norm: BatchNorm | None = None  #: none where the model has no batch norm, or nothing is to be known of it
    stops_by_set_aside: bool = False  #: whether private examples that clients set aside decide when to stop
    left_out: int = 0  #: rows that the recipe deals and that nobody gets
    prepared: bool = False  #: whether clients release everything before the first round
    unproven: tuple[tuple[str, str], ...] = ()  #: what is released then without a proof, and why


@dataclass(frozen=True)
class Preflight:
    """Figures about a federation before it starts; made by `preflight`."""

    clients: int
    asked: float  #: in each round, on average
    values: int
    rounds: int
    noise: float | None  #: L2 norm of the noise in the average of a round; None where it is not known
    update_norm: float | None  #: of a client's update, before clipping; None where it was not measured
    update: float | None  #: L2 norm of what reports keep of it: after clipping, rescaling or voting
    report_values: tuple[int, int]  #: the fewest and the most that a report is about
    report_bytes: tuple[int, int]  #: the least and the most that a report has
    kinds: int  #: of reports, by what they lose
    losses: tuple[ReportLoss, ...]  #: of every kind of report; beyond four kinds, of the least noisy and the noisiest
    outlooks: tuple[Outlook, ...]
    ranges: tuple[RangeFit, ...]  #: how ranges fit values
    uneven: bool = False  #: whether rounds differ in what they cost
    unknown: str = ""  #: why the noise is not known, where it is not
    norm: NormFit | None = None  #: how the norm that reports are shortened to fits honest ones
    facts: Facts = Facts()

    @property
    def ratio(self) -> float | None:
        """Noise of the average beside an update, in one round."""
        if self.noise is None or self.update is None:
            return None
        return self.noise / self.update if self.update > 0 else math.inf

    @property
    def level(self) -> float | None:
        """noise / update / sqrt(d T): what the words go by."""
        return None if self.ratio is None else self.ratio / math.sqrt(self.values * self.rounds)

    def to_json(self) -> dict[str, Any]:
        """All figures, unrounded, ready for `json.dumps`; infinity is the text "infinity"."""
        return {
            **{name: getattr(self, name) for name in ("clients", "asked", "values", "rounds")},
            **{name: getattr(self, name) for name in ("noise", "update_norm", "update")},
            "ratio": None if self.ratio is None else _number(self.ratio),
            "level": None if self.level is None else _number(self.level),
            "report_values": list(self.report_values),
            "report_bytes": list(self.report_bytes),
            "losses": [_loss_json(loss) for loss in self.losses],
            "budgets": [_outlook_json(outlook) for outlook in self.outlooks],
        }


def preflight(
    groups: Sequence[ClientGroup],
    *,
    values: int,
    rounds: int,
    asked: float | None = None,
    update_norm: float | None = None,
    largest_value: float | None = None,
    delta: float = 1e-5,
    allow_unproven: Iterable[str] = (),
    sizes: Sequence[tuple[int, int]] | None = None,
    norm: float | None = None,
    facts: Facts | None = None,
) -> Preflight:
    """Look ahead: noise beside the size of an update, budgets, what a report loses and weighs.

    `asked` clients (all, if not given) are asked in each round, each equally often. `update_norm` is the L2 norm of a
    client's update as measured on a few simulated clients; `largest_value` the largest distance of its values from the
    centre of their range. `allow_unproven` names releases that leave without counting, by the owner's consent. `sizes`
    are the values and bytes of every kind of report, where they are not the senders' own. `norm` is the one that the
    server scales longer reports down to.
    """
    check_count("values", values)
    check_count("rounds", rounds)
    if not groups:
        raise InvalidInput("there are no clients: give at least one group")
    clients = sum(len(group.clients) for group in groups)
    each_round = float(clients) if asked is None else float(asked)
    if not 0 < each_round <= clients:
        raise InvalidInput(f"asked must be a number of clients, above 0 and at most {clients}, got {asked!r}")
    for name, size in (("update_norm", update_norm), ("largest_value", largest_value)):
        if size is not None and not (math.isfinite(size) and size > 0):
            raise InvalidInput(f"{name} must be a finite number > 0 (leave it out if it is not known), got {size!r}")
    if any(group.schedule is not None and len(group.schedule) != rounds for group in groups):
        raise InvalidInput(f"a schedule says what is released in each of the {rounds} rounds: give as many entries")
    allowed = frozenset(allow_unproven)
    weighed = sizes or [(values, group.sender.report_bytes(values)) for group in groups]
    return Preflight(
        clients,
        each_round,
        values,
        rounds,
        noise=_noise(groups, values, each_round),
        update_norm=update_norm,
        update=None if update_norm is None else _kept(groups, values, update_norm),
        report_values=(min(v for v, _ in weighed), max(v for v, _ in weighed)),
        report_bytes=(min(b for _, b in weighed), max(b for _, b in weighed)),
        kinds=len(_kinds(groups, values)),
        losses=_losses(groups, values, rounds, delta),
        outlooks=tuple(
            _outlook(group, group.budget, values, rounds * each_round / clients, allowed)
            for group in groups
            if group.budget is not None
        ),
        ranges=_ranges(groups, values, update_norm, largest_value),
        uneven=any(group.schedule is not None for group in groups),
        unknown=next((group.sender.unknown for group in groups if group.sender.noise(values) is None), ""),
        norm=None if norm is None else NormFit(norm, _honest(groups, values, update_norm)),
        facts=facts or Facts(),
    )


def expected(federation: Federation, name: str, local: LocalView | None = None) -> tuple[str, ...]:
    """What to expect of a run under this name, in words. `local` is what clients saw that rehearsed a round."""
    method = federation.method
    if (preparation := method.preparation(name)) is not None:
        return expectations.sentences(of_preparation(federation, preparation))
    failed = () if local is None else expectations.rehearsal(int(local.failed.sum()), len(local.failed))
    if not any(method.releases(method.plan(method.init(), name))):
        return (*failed, *expectations.sentences(None))
    if local is not None:
        norm, largest = float(np.mean(local.update)), float(np.max(local.largest))
        found = of_federation(federation, update_norm=norm or None, largest_value=largest or None)
        return (*failed, *expectations.sentences(found))
    own = (expectations.OWN_LIMITS,) if federation.budgets else ()
    return (*expectations.sentences(of_federation(federation)), *own)


def of_federation(
    federation: Federation, *, update_norm: float | None = None, largest_value: float | None = None
) -> Preflight:
    """Look ahead for a wired recipe; the sizes of updates are the caller's to measure."""
    recipe, method, upload = federation.recipe, federation.method, federation.upload
    plans, schedules = _rounds(federation)
    uneven = any(own is not schedule[0] for schedule in schedules for own in schedule)
    groups = groups_of(
        _senders(federation, plans[0], update_norm),
        [method.class_of(client) for client in range(federation.clients)],
        budgets=federation.budgets,
        weights=recipe.method.aggregation.weights(upload),
        releases=[schedule[0] for schedule in schedules],
        schedules=schedules if uneven else None,
    )
    asked = asked_per_round(recipe)
    return preflight(
        groups,
        values=upload.values,
        rounds=recipe.rounds.count,
        asked=asked,
        update_norm=update_norm,
        largest_value=largest_value,
        delta=federation.delta,
        allow_unproven=recipe.clients.allow_unproven,
        sizes=[size for plan in _unlike(plans, schedules) for size in _sizes(federation, plan)],
        norm=upload.norm,
        facts=Facts(
            masked=_summed(recipe),
            batch_norm=_batch_norm(federation, _noise(groups, upload.values, asked)),
            stops_by_set_aside=recipe.rounds.may_stop_early and recipe.rounds.stop_on != "test",
            left_out=_left_out(federation),
        ),
    )


def _left_out(federation: Federation) -> int:
    """How many of the rows that a split's files name are test examples, which no client gets."""
    from sordino.learning.partition import rows_in

    split: Any = federation.recipe.split
    if split.kind != "files" or not (held_out := federation.dataset.held_out).size:
        return 0
    return sum(int(np.isin(part, held_out).sum()) for part in rows_in(split.files))


def _batch_norm(federation: Federation, noise: float | None) -> BatchNorm | None:
    """A server without its statistics takes those of the examples that it scores; noise can ruin those it has."""
    from sordino.learning.evaluation import PIECE
    from sordino.learning.models import has_batch_norm

    view = federation.method.views(federation.method.init(), {})[0]
    if not has_batch_norm(federation.model) or (view.buffers is not None and not noise):
        return None
    released = noise if view.buffers is not None else None
    return BatchNorm(None if released is None else released / math.sqrt(federation.upload.values), PIECE)


def _rounds(federation: Federation) -> tuple[list[Plan], list[Schedule]]:
    """The plans of all rounds, and what every class of clients releases in each; what is equal is one object."""
    method, recipe = federation.method, federation.recipe
    state, plans, by_round = method.init(), [], []
    known: dict[Releases, Releases] = {}
    for _ in range(recipe.rounds.count):
        plans.append(method.plan(state, recipe.name))
        own = (tuple(replace(release, id="planned") for release in each) for each in federation.releases(plans[-1]))
        by_round.append([known.setdefault(releases, releases) for releases in own])
        state = state.unchanged()
    return plans, list(zip(*by_round, strict=True))


def _unlike(plans: Sequence[Plan], schedules: Sequence[Schedule]) -> list[Plan]:
    """One of each kind of round."""
    kinds = {tuple(map(id, own)): plan for plan, own in zip(plans, zip(*schedules, strict=True), strict=True)}
    return list(kinds.values())


def _senders(federation: Federation, plan: Plan, update_norm: float | None) -> list[Sender]:
    """How each class of clients sends in the first round."""
    from sordino.methods.central_dp import CentralDp
    from sordino.methods.silo_dp import SiloDp

    method, upload, given = federation.method, federation.upload, federation.recipe.method
    if isinstance(method, SiloDp):
        return [PrivateSilo.of(method.training)]
    senders: list[Sender] = [
        MechanismSender(mechanism, upload.what or "model update") for mechanism in upload.mechanisms
    ]
    if isinstance(method, CentralDp) and getattr(given, "clip", None) == "median":
        loudness = None if update_norm is None else _median_noise(method, plan, update_norm)
        return [MedianClippingSender(sender, loudness, asked_per_round(federation.recipe)) for sender in senders]
    return senders


def _median_noise(method: Method, plan: Plan, norm: float) -> float | None:
    """The noise of a round in which every update has this norm, so that it is their median."""
    tally = method.tally(plan)
    mechanism, values = tally.upload.mechanisms[0], tally.upload.values
    update = np.full(values, norm / math.sqrt(values), np.float32)
    tally.add([0], mechanism.encode(mechanism.randomize(update, Keystream.simulation(0, [0], 0)).output))
    return tally.noise()


def _summed(recipe: Recipe) -> bool:
    return getattr(recipe.method.channel, "kind", "direct") == "summed"


def _sizes(federation: Federation, plan: Plan) -> list[tuple[int, int]]:
    """Values and bytes of every kind of report on a plan."""
    tally = federation.method.tally(plan)
    values = tally.upload.values
    if not _summed(federation.recipe):
        return [(values, MechanismSender(mechanism).report_bytes(values)) for mechanism in tally.upload.mechanisms]
    given: Any = federation.recipe.method
    asked = given.selection.asked(federation.clients)
    sums = [
        given.channel.session(plan, tally, group, min(len(members), asked))
        for group, members in tally.classes(range(federation.clients)).items()
    ]
    return [(values, session.values * session.bits // 8) for session in sums]


def of_preparation(federation: Federation, plan: Plan) -> Preflight | None:
    """Look ahead where clients prepare: what they release then, once, is all that they ever release.

    None where they release nothing.
    """
    method, recipe = federation.method, federation.recipe
    planned = [tuple(own) for own in method.releases(plan)]
    if not any(planned):
        return None
    groups = groups_of(
        [MechanismSender(NoPrivacy())] * len(planned),
        [method.class_of(client) for client in range(federation.clients)],
        budgets=federation.budgets,
        releases=planned,
    )
    unproven = dict.fromkeys(
        (release.what, loss.why)
        for own in planned
        for release in own
        if isinstance(loss := release.guarantees[0].loss, Infinite)
    )
    return preflight(
        groups,
        values=federation.upload.values,
        rounds=1,
        delta=federation.delta,
        allow_unproven=recipe.clients.allow_unproven,
        facts=Facts(prepared=True, unproven=tuple(unproven)),
    )


def asked_per_round(recipe: Recipe) -> float:
    """How many clients a recipe's method asks in a round, on average."""
    return float(recipe.method.selection.expected(recipe.number_of_clients))


def _shares(groups: Sequence[ClientGroup]) -> list[float]:
    """Each group's share of the clients."""
    total = sum(len(group.clients) for group in groups)
    return [len(group.clients) / total for group in groups]


def _noise(groups: Sequence[ClientGroup], values: int, asked: float) -> float | None:
    """sqrt(mean_k w_k^2 v_k / n) / mean_k w_k: for equal weights, sqrt(mean_k v_k / n)."""
    variances = [group.sender.noise(values) for group in groups]
    known = [v for v in variances if v is not None]
    if len(known) < len(variances):
        return None
    shares = _shares(groups)
    square = math.fsum(s * g.weight**2 * v for s, g, v in zip(shares, groups, known, strict=True))
    return math.sqrt(square / asked) / math.fsum(s * g.weight for s, g in zip(shares, groups, strict=True))


def _kept(groups: Sequence[ClientGroup], values: int, norm: float) -> float:
    """The weighted mean of what each group's reports keep of an update."""
    weights = [s * g.weight for s, g in zip(_shares(groups), groups, strict=True)]
    kept = [group.sender.kept(values, norm) for group in groups]
    return math.fsum(w * k for w, k in zip(weights, kept, strict=True)) / math.fsum(weights)


def _kinds(groups: Sequence[ClientGroup], values: int) -> dict[object, tuple[ClientGroup, list[int]]]:
    """Reports that lose the same, and whose they are: groups may differ in their budgets and weights alone."""
    kinds: dict[object, tuple[ClientGroup, list[int]]] = {}
    for group in groups:
        kinds.setdefault((group.releases(values)[0], group.schedule), (group, []))[1].extend(group.clients)
    return kinds


def _losses(groups: Sequence[ClientGroup], values: int, rounds: int, delta: float) -> tuple[ReportLoss, ...]:
    """What each kind of report loses; of many kinds, only the extremes."""
    told = list(_kinds(groups, values).values())
    if len(told) > MOST_KINDS:
        told.sort(key=lambda kind: kind[0].sender.noise(values) or 0.0)
        told = [told[0], told[-1]]
    return tuple(_loss(tuple(sorted(clients)), group, values, rounds, delta) for group, clients in told)


def _loss(clients: tuple[int, ...], group: ClientGroup, values: int, rounds: int, delta: float) -> ReportLoss:
    """What a report loses, and what one in every round does: the first of each round's releases is the report."""
    reports = [releases[0] for releases in group.all_releases(values, rounds)]
    first, guarantee = reports[0], reports[0].guarantees[0]
    one, all_ = (
        compose((report.guarantees[0].loss for report in own), adjacency=guarantee.adjacency).epsilon(delta)
        for own in (reports[:1], reports)
    )
    differs = any(report != first for report in reports)
    return ReportLoss(clients, first.what, guarantee, delta, one, all_, first.claimed, differs)


def _outlook(group: ClientGroup, budget: Budget, values: int, expected: float, allowed: frozenset[str]) -> Outlook:
    def counted(releases: Releases) -> Releases:
        return tuple(r for r in releases if r.what not in allowed or math.isfinite(cost(budget, r)))

    if group.schedule is not None:
        own = {releases: counted(releases) for releases in set(group.schedule)}
        reports = _admitted(budget, [own[releases] for releases in group.schedule], expected)
    else:
        each = counted(group.releases(values))
        reports = rounds_allowed(budget, each) if each else math.ceil(expected)
    return Outlook(group.clients, budget, reports, expected)


def _admitted(budget: Budget, schedule: Sequence[Releases], expected: float) -> int:
    """How many rounds the budget admits from the first on; of clients who are not asked in all, at least how many.

    Which rounds these are is not known: so the dearest are counted first.
    """
    if expected < len(schedule):
        dear = {releases: math.fsum(cost(budget, release) for release in releases) for releases in set(schedule)}
        schedule = sorted(schedule, key=dear.__getitem__, reverse=True)
    accounts, account = [], Account.opening(budget)
    for releases in schedule:
        for release in releases:
            account = account.after(release)
        accounts.append(account)
    return bisect_left(accounts, True, key=lambda after: not after.permits)  # what is spent only grows


def _ranges(
    groups: Sequence[ClientGroup], values: int, norm: float | None, largest: float | None
) -> tuple[RangeFit, ...]:
    found = (group.sender.range_fit(values, norm, largest) for group in groups)
    return tuple(dict.fromkeys(fit for fit in found if fit is not None))


def _honest(groups: Sequence[ClientGroup], values: int, update: float | None) -> float | None:
    """The L2 norm of an honest report: the noise and what is kept of the update stand at right angles."""
    noises = [group.sender.noise(values) for group in groups]
    known = [variance for variance in noises if variance is not None]
    if len(known) < len(noises) or (update is None and not any(known)):
        return None
    kept = [0.0 if update is None else group.sender.kept(values, update) for group in groups]
    return max(math.sqrt(variance + own * own) for variance, own in zip(known, kept, strict=True))


def _number(value: float) -> float | str:
    return "infinity" if math.isinf(value) else value


def _loss_json(loss: ReportLoss) -> dict[str, Any]:
    g, claim = loss.guarantee, loss.claimed
    terms_ = {"adjacency": str(g.adjacency), "adversary": str(g.adversary), "basis": g.basis}
    return {
        "clients": list(loss.clients),
        "what": loss.what,
        "proven": {"epsilon": _number(loss.proven), "delta": loss.delta, **terms_},
        "proven_in_all_rounds": {"epsilon": _number(loss.total), "delta": loss.delta, **terms_},
        "claimed": claim and {"epsilon": claim.epsilon, "delta": claim.delta, "formula": claim.formula},
    }


def _outlook_json(outlook: Outlook) -> dict[str, Any]:
    budget = {**asdict(outlook.budget), "adjacency": str(outlook.budget.adjacency)}
    budget["adversary"] = str(outlook.budget.adversary)
    return {
        "clients": list(outlook.clients),
        "budget": budget,
        "reports": outlook.reports,
        "expected": outlook.expected,
        "lasts": outlook.lasts,
    }


__all__ = [
    "BatchNorm",
    "ClientGroup",
    "Facts",
    "MechanismSender",
    "MedianClippingSender",
    "NormFit",
    "Outlook",
    "Preflight",
    "PrivateSilo",
    "RangeFit",
    "ReportLoss",
    "Sender",
    "asked_per_round",
    "groups_of",
    "of_federation",
    "of_preparation",
    "preflight",
]  # fmt: skip

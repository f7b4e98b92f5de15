"""Before the first round: how loud the noise will be beside an update, what budgets allow, and what a report weighs.

The mean over n clients of estimates with variances v_k (each summed over the d values) has noise of L2 norm
sqrt(mean_k v_k / n).

What that does to a model is a rule of thumb. Over T rounds updates add up as T at best and noise as sqrt(T): so what is
judged is noise / update / sqrt(T), by borders that were learnt from the recorded runs of the papers (docs/planning.md);
they are no promise.

This module has the figures; `sordino.report.expectations` puts them into words.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from sordino.errors import BudgetExceeded, ConsentMissing, InvalidInput
from sordino.mechanisms import NoPrivacy
from sordino.privacy.accountant import Account, compose
from sordino.privacy.guarantee import Budget, Claim, Destination, Guarantee, Infinite, Release
from sordino.privacy.ledger import admit, cost
from sordino.privacy.planning import rounds_allowed
from sordino.randomness import Keystream
from sordino.report import expectations, head_words
from sordino.runs.senders import MechanismSender, MedianClippingSender, PrivateSilo, RangeFit, Sender

if TYPE_CHECKING:
    from sordino.methods.interface import LocalView, Method
    from sordino.recipe import Recipe
    from sordino.runs.federation import Federation
    from sordino.runs.head_plan import HeadPlan
    from sordino.wire.messages import Plan

MOST_KINDS = 4  #: of reports that are told apart; of more, only the extremes are

Releases = tuple[Release, ...]  #: of one report
Schedule = tuple[Releases, ...]  #: of every round; one entry where all rounds release the same


@dataclass(frozen=True)
class ClientGroup:
    """Clients alike: the same sender, the same budget, the same weight in the average."""

    clients: tuple[int, ...]
    sender: Sender
    budget: Budget | None = None
    weight: float = 1.0
    schedule: Schedule = ()  #: what a client releases, where that is not what its sender says

    def __post_init__(self) -> None:
        if not self.clients:
            raise InvalidInput("a group needs at least one client")
        if not (math.isfinite(self.weight) and self.weight > 0):
            raise InvalidInput(f"a client's weight must be a finite number > 0, got {self.weight!r}")

    @property
    def uneven(self) -> bool:
        """Whether rounds differ in what they release."""
        return len(self.schedule) > 1

    def releases(self, values: int) -> Releases:
        """What a client of this group releases in the first round, or in each."""
        return self.schedule[0] if self.schedule else self.sender.releases(values)


def groups_of(
    senders: Sequence[Sender],
    class_of: Sequence[int],
    *,
    budgets: Sequence[Budget] | None = None,
    weights: Sequence[float] | None = None,
    schedules: Sequence[Schedule] | None = None,
) -> tuple[ClientGroup, ...]:
    """Groups of clients from one sender (and weight, and schedule) per class, and one class and budget per client."""
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
            () if schedules is None else schedules[kind],
        )
        for (kind, budget), clients in members.items()
    )


# --- what comes of it -------------------------------------------------------------------------------------------------


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
class BatchNorm:
    """What becomes of the statistics of batch norm."""

    noise: float | None  #: in each of them, where they are released
    examples: int  #: so many at a time score the common model, where the statistics stay with the clients


@dataclass(frozen=True)
class Facts:
    """What is to be known of a federation beside its clients."""

    delta: float = 1e-5  #: at which losses are given
    allow_unproven: tuple[str, ...] = ()  #: releases that leave without counting, by the owner's consent
    sizes: tuple[tuple[int, int], ...] = ()  #: values and bytes of every kind of report, if not the senders' own
    norm: float | None = None  #: to which the server scales longer reports down
    masked: bool = False  #: whether reports are masked for a secure sum
    batch_norm: BatchNorm | None = None  #: none where the model has no batch norm, or nothing is to be known of it
    stops_by_set_aside: bool = False  #: whether private examples that clients set aside decide when to stop
    left_out: int = 0  #: rows that the recipe deals and that nobody gets
    prepared: bool = False  #: whether clients release everything before the first round
    unproven: tuple[tuple[str, str], ...] = ()  #: what is released then without a proof, and why


@dataclass(frozen=True)
class Preflight:
    """Figures about a federation before it starts; each is computed when it is asked for, once."""

    groups: Sequence[ClientGroup]
    values: int  #: in a report of the first round
    rounds: int
    per_round: float | None = None  #: clients asked in each round, on average, each equally often; all if left out
    update_norm: float | None = None  #: L2 norm of a client's update, before clipping; None where it was not measured
    largest_value: float | None = None  #: largest distance of its values from the centre of their range
    facts: Facts = Facts()

    def __post_init__(self) -> None:
        if not self.groups:
            raise InvalidInput("there are no clients: give at least one group")
        if not 0 < self.asked <= self.clients:
            raise InvalidInput(
                f"asked must be a number of clients, above 0 and at most {self.clients}, got {self.per_round!r}"
            )
        if any(group.uneven and len(group.schedule) != self.rounds for group in self.groups):
            raise InvalidInput(f"a schedule says what is released in each of the {self.rounds} rounds: give as many")

    @property
    def clients(self) -> int:
        """Number of clients."""
        return sum(len(group.clients) for group in self.groups)

    @property
    def asked(self) -> float:
        """Clients asked in each round, on average."""
        return float(self.clients) if self.per_round is None else float(self.per_round)

    # --- noise beside updates

    @cached_property
    def _weights(self) -> list[float]:
        """Each group's share of the clients, times their weight in the average."""
        return [len(group.clients) / self.clients * group.weight for group in self.groups]

    @cached_property
    def _variances(self) -> list[float] | None:
        """The noise in a report of each group; None where one of them is not known."""
        known = [v for group in self.groups if (v := group.sender.noise(self.values)) is not None]
        return known if len(known) == len(self.groups) else None

    @property
    def noise(self) -> float | None:
        """L2 norm of the noise in the average of a round; None where it is not known.

        sqrt(mean_k w_k^2 v_k / n) / mean_k w_k: for equal weights, sqrt(mean_k v_k / n).
        """
        if self._variances is None:
            return None
        terms = zip(self._weights, self.groups, self._variances, strict=True)
        square = math.fsum(w * group.weight * variance for w, group, variance in terms)
        return math.sqrt(square / self.asked) / math.fsum(self._weights)

    @property
    def unknown(self) -> str:
        """Why the noise is not known, where it is not."""
        return next((g.sender.unknown for g in self.groups if g.sender.noise(self.values) is None), "")

    @cached_property
    def _kept(self) -> list[float] | None:
        """What a report of each group keeps of an update; None where its size is not known."""
        if self.update_norm is None:
            return None
        return [group.sender.kept(self.values, self.update_norm) for group in self.groups]

    @property
    def update(self) -> float | None:
        """L2 norm of what reports keep of an update: after clipping, rescaling or voting."""
        if self._kept is None:
            return None
        kept = math.fsum(w * own for w, own in zip(self._weights, self._kept, strict=True))
        return kept / math.fsum(self._weights)

    @property
    def ratio(self) -> float | None:
        """Noise of the average beside an update, in one round."""
        if self.noise is None or self.update is None:
            return None
        return self.noise / self.update if self.update > 0 else math.inf

    @property
    def level(self) -> float | None:
        """noise / update / sqrt(T), the noise of all rounds beside what their updates add up to; None if not known."""
        if self.ratio is None or math.isinf(self.ratio):
            return None
        return self.ratio / math.sqrt(self.rounds)

    @property
    def ranges(self) -> tuple[RangeFit, ...]:
        """How ranges fit values."""
        sizes = self.values, self.update_norm, self.largest_value
        return tuple(dict.fromkeys(fit for g in self.groups if (fit := g.sender.range_fit(*sizes)) is not None))

    @property
    def honest_norm(self) -> float | None:
        """The L2 norm of an honest report, if known: the noise and what is kept of the update stand at right angles."""
        if self._variances is None or (self._kept is None and not any(self._variances)):
            return None
        kept = self._kept or [0.0] * len(self.groups)
        return max(math.sqrt(variance + own * own) for variance, own in zip(self._variances, kept, strict=True))

    # --- reports

    @cached_property
    def _sizes(self) -> Sequence[tuple[int, int]]:
        return self.facts.sizes or [(self.values, group.sender.report_bytes(self.values)) for group in self.groups]

    @property
    def report_values(self) -> tuple[int, int]:
        """The fewest and the most values that a report is about."""
        return min(values for values, _ in self._sizes), max(values for values, _ in self._sizes)

    @property
    def report_bytes(self) -> tuple[int, int]:
        """The least and the most bytes that a report has."""
        return min(size for _, size in self._sizes), max(size for _, size in self._sizes)

    @property
    def uneven(self) -> bool:
        """Whether rounds differ in what they cost."""
        return any(group.uneven for group in self.groups)

    @cached_property
    def _kinds(self) -> list[tuple[ClientGroup, list[int]]]:
        """Reports that lose the same, and whose they are: groups may differ in their budgets and weights alone."""
        found: dict[object, tuple[ClientGroup, list[int]]] = {}
        for group in self.groups:
            key = group.releases(self.values)[0], group.schedule if group.uneven else ()
            found.setdefault(key, (group, []))[1].extend(group.clients)
        return list(found.values())

    @property
    def kinds(self) -> int:
        """Number of kinds of reports, by what they lose."""
        return len(self._kinds)

    @cached_property
    def losses(self) -> tuple[ReportLoss, ...]:
        """What every kind of report loses; beyond four kinds, the least noisy and the noisiest."""
        told = self._kinds
        if len(told) > MOST_KINDS:
            ordered = sorted(told, key=lambda kind: kind[0].sender.noise(self.values) or 0.0)
            told = [ordered[0], ordered[-1]]
        return tuple(self._loss(group, tuple(sorted(clients))) for group, clients in told)

    def _loss(self, group: ClientGroup, clients: tuple[int, ...]) -> ReportLoss:
        """What a report loses, and what one in every round does: the first of each round's releases is the report."""
        schedule = group.schedule if group.uneven else (group.releases(self.values),) * self.rounds
        reports, delta = [releases[0] for releases in schedule], self.facts.delta
        first, guarantee = reports[0], reports[0].guarantees[0]
        one, all_ = (
            compose((report.guarantees[0].loss for report in own), adjacency=guarantee.adjacency).epsilon(delta)
            for own in (reports[:1], reports)
        )
        differs = any(report != first for report in reports)
        return ReportLoss(clients, first.what, guarantee, delta, one, all_, first.claimed, differs)

    # --- budgets

    @cached_property
    def outlooks(self) -> tuple[Outlook, ...]:
        """How far each group's budget goes, where it has one."""
        return tuple(self._outlook(group, group.budget) for group in self.groups if group.budget is not None)

    def _outlook(self, group: ClientGroup, budget: Budget) -> Outlook:
        expected = self.rounds * self.asked / self.clients

        def counted(releases: Releases) -> Releases:
            allowed = self.facts.allow_unproven
            return tuple(r for r in releases if r.what not in allowed or math.isfinite(cost(budget, r)))

        if group.uneven:
            own = {releases: counted(releases) for releases in set(group.schedule)}
            reports = _admitted(budget, [own[releases] for releases in group.schedule], expected)
        else:
            each = counted(group.releases(self.values))
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


# --- wired recipes ----------------------------------------------------------------------------------------------------


def expected(federation: Federation, name: str, local: LocalView | None = None) -> tuple[str, ...]:
    """What to expect of a run under this name, in words. `local` is what clients saw that rehearsed a round."""
    ahead = of_evaluation(federation, simulated=local is not None)
    evaluation = () if ahead is None else expectations.evaluation(ahead)
    return (*_of_training(federation, name, local), *evaluation)


@dataclass(frozen=True)
class EvaluationOutlook:
    """What a private evaluation will cost, and how sure it can be."""

    times: int
    epsilon: float  #: of all of them together, for one record added or removed
    delta: float
    one: float  #: epsilon of one of them
    noise: float  #: standard deviation of the noise in the count of all clients' records
    records: int | None  #: that are set aside; None where nobody knows
    rounds: int
    fits: int | None  #: rounds that the smallest budget covers with their evaluations; None without a budget
    declined: bool  #: whether a budget is in terms that say nothing of an evaluation, so that clients decline it


def of_evaluation(federation: Federation, *, simulated: bool) -> EvaluationOutlook | None:
    """Look ahead to the private evaluation of a wired recipe; None where it has none."""
    evaluation, rounds = federation.evaluation, federation.recipe.rounds.count
    if evaluation is None:
        return None
    target, cells = evaluation.spec.target, evaluation.tallying.cells
    return EvaluationOutlook(
        evaluation.spec.times(rounds),
        math.inf if evaluation.unproven else target.epsilon,
        target.delta,
        evaluation.epsilon,
        math.sqrt(federation.clients * cells) * evaluation.counts.deviation,
        sum(map(len, federation.held_out)) if simulated else None,
        rounds,
        *_covered_rounds(federation),
    )


def _covered_rounds(federation: Federation) -> tuple[int | None, bool]:
    """How many rounds the smallest budget covers, evaluations included, and whether it can count these at all."""
    evaluation = federation.evaluation
    if evaluation is None or not federation.budgets:
        return None, False
    client = min(range(federation.clients), key=lambda k: federation.budgets[k].limit if federation.budgets else 0)
    ledger = federation.ledger()
    assert ledger is not None
    standing, own = ledger.standing(client), federation.method.class_of(client)
    (evaluated,) = evaluation.releases("planned", 1)
    declined = standing.budget is not None and math.isinf(cost(standing.budget, evaluated))
    declined = declined and evaluated.what not in standing.consents.unproven
    for round, releases in enumerate(_rounds(federation)[1][own], 1):
        asked = (*releases, evaluated) if evaluation.due(round) and not declined else releases
        try:
            for release in asked:
                standing = admit(standing, release, Destination())
        except (BudgetExceeded, ConsentMissing):
            return round - 1, declined
    return federation.recipe.rounds.count, declined


def _of_training(federation: Federation, name: str, local: LocalView | None) -> tuple[str, ...]:
    if (preparation := federation.method.preparation(name)) is not None:
        return expectations.sentences(of_preparation(federation, preparation))
    own = (expectations.OWN_LIMITS,) if federation.budgets and local is None else ()
    if (head := _head_plan(federation)) is not None:
        return (*head_words.sentences(head), *expectations.budgets(of_federation(federation)), *own)
    if local is None:
        found = of_federation(federation)
        return (*expectations.sentences(found), *(own if found is not None else ()))
    failed = expectations.rehearsal(int(local.failed.sum()), len(local.failed))
    first = (*_slowness(federation), *_oversights(federation), *failed)
    return (*first, *expectations.sentences(of_rehearsal(federation, local)))


def _slowness(federation: Federation) -> tuple[str, ...]:
    """That simulated clients are computed one after another, where the model or the loss leaves no choice."""
    from sordino.learning.stacked_model import is_computed_side_by_side

    shape = (max(2, federation.method.batch), *federation.record_shape)
    given = federation.recipe.model
    alone = given.own_loss and getattr(federation.method.training.loss, "one_by_one", False)
    alone = alone or (given.is_own and not is_computed_side_by_side(federation.model, shape))
    return (expectations.ONE_BY_ONE,) if alone else ()


def _oversights(federation: Federation) -> tuple[str, ...]:
    """What a simulation sees and real clients would not tell: a wrong announced size, weights that clipping undoes."""
    own, sizes = federation.recipe.method, federation.parts.sizes
    announced, held = getattr(own, "announced_size", 0), float(np.mean(sizes))
    found = []
    if announced and held and not 1 / 3 <= announced / held <= 3:
        found.append(expectations.announced(announced, held))
    weights = getattr(federation.recipe.model.loss, "weights", None)
    if weights and max(weights) > 1 and own.draws_batches:
        found.append(expectations.CLIPPED_WEIGHTS)
    return tuple(found)


def _head_plan(federation: Federation) -> HeadPlan | None:
    """The plan of a linear head on public features, where the recipe trains one."""
    from sordino.methods.private_head import PrivateHead
    from sordino.runs.head_plan import HeadPlan  # not before it is needed: it brings PyTorch along

    return HeadPlan.of_method(federation.method) if isinstance(federation.method, PrivateHead) else None


def of_rehearsal(federation: Federation, local: LocalView) -> Preflight | None:
    """Look ahead with the sizes that clients saw who rehearsed a round. None where nothing is sent."""
    norm, largest = float(np.mean(local.update)), float(np.max(local.largest))
    return of_federation(federation, update_norm=norm or None, largest_value=largest or None)


def of_federation(
    federation: Federation, *, update_norm: float | None = None, largest_value: float | None = None
) -> Preflight | None:
    """Look ahead for a wired recipe; the sizes of updates are the caller's to measure. None where nothing is sent."""
    recipe, upload = federation.recipe, federation.upload
    plans, schedules = _rounds(federation)
    if not any(releases for schedule in schedules for releases in schedule):
        return None
    kinds = {tuple(map(id, own)): plan for plan, own in zip(plans, zip(*schedules, strict=True), strict=True)}
    uneven = len(kinds) > 1
    senders, weights = _senders(federation, plans[0], update_norm), recipe.method.aggregation.class_weights(upload)
    # clients who release differently may send alike
    sent_as = {kind: int(upload.class_of[client]) for client, kind in enumerate(federation.classes)}
    ahead = Preflight(
        groups_of(
            [senders[sent_as[kind]] for kind in range(len(schedules))],
            federation.classes,
            budgets=federation.budgets,
            weights=[weights[sent_as[kind]] for kind in range(len(schedules))],
            schedules=[schedule if uneven else schedule[:1] for schedule in schedules],
        ),
        upload.values,
        recipe.rounds.count,
        asked_per_round(recipe),
        update_norm,
        largest_value,
        Facts(
            federation.delta,
            recipe.clients.allow_unproven,
            tuple(size for plan in kinds.values() for size in _sizes(federation, plan)),
            upload.norm,
            masked=recipe.method.channel.kind == "summed",
            stops_by_set_aside=bool(recipe.rounds.stopping_rules) and recipe.rounds.stop_on != "test",
            left_out=_left_out(federation),
        ),
    )
    return replace(ahead, facts=replace(ahead.facts, batch_norm=_batch_norm(federation, ahead.noise)))


def of_preparation(federation: Federation, plan: Plan) -> Preflight | None:
    """Look ahead where clients prepare: what they release then, once, is all that they ever release.

    None where they release nothing.
    """
    planned = [tuple(own) for own in federation.method.releases(plan)]
    if not any(planned):
        return None
    groups = groups_of(
        [MechanismSender(NoPrivacy())] * len(planned),
        federation.classes,
        budgets=federation.budgets,
        schedules=[(releases,) for releases in planned],
    )
    unproven = dict.fromkeys(
        (release.what, loss.why)
        for own in planned
        for release in own
        if isinstance(loss := release.guarantees[0].loss, Infinite)
    )
    allowed = federation.recipe.clients.allow_unproven
    facts = Facts(federation.delta, allowed, prepared=True, unproven=tuple(unproven))
    return Preflight(groups, federation.upload.values, 1, facts=facts)


def asked_per_round(recipe: Recipe) -> float:
    """How many clients a recipe's method asks in a round, on average."""
    return float(recipe.method.selection.expected(recipe.number_of_clients))


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


def _senders(federation: Federation, plan: Plan, update_norm: float | None) -> list[Sender]:
    """How each class of clients sends in the first round."""
    from sordino.methods.central_dp import CentralDp
    from sordino.methods.silo_dp import SiloDp

    method, upload, given = federation.method, federation.upload, federation.recipe.method
    if isinstance(method, SiloDp):
        return [PrivateSilo.of(method.training, method.unproven)]
    senders: list[Sender] = [MechanismSender(own, upload.what or "model update") for own in upload.mechanisms]
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


def _sizes(federation: Federation, plan: Plan) -> list[tuple[int, int]]:
    """Values and bytes of every kind of report on a plan."""
    from sordino.channels.secure_sum import Summed

    tally, given = federation.method.tally(plan), federation.recipe.method
    values = tally.upload.values
    if not isinstance(given.channel, Summed.Spec):
        return [(values, MechanismSender(mechanism).report_bytes(values)) for mechanism in tally.upload.mechanisms]
    asked = given.selection.asked(federation.clients)
    sums = [
        given.channel.session(plan, tally, group, min(len(members), asked))
        for group, members in tally.classes(range(federation.clients)).items()
    ]
    return [(values, session.vector_bytes) for session in sums]


def _left_out(federation: Federation) -> int:
    """How many of the rows that a split's files name are test examples, which no client gets."""
    from sordino.learning.partition import rows_in
    from sordino.learning.splits import FilesSplit

    split, held_out = federation.recipe.split, federation.dataset.held_out
    if not isinstance(split, FilesSplit) or not held_out.size:
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


__all__ = [
    "BatchNorm", "ClientGroup", "Facts", "Outlook", "Preflight", "ReportLoss", "asked_per_round",
    "expected", "groups_of", "of_federation", "of_preparation", "of_rehearsal",
]  # fmt: skip

"""Before the first round: how loud the noise will be beside an update, what budgets allow, and what a report weighs.

The noise comes from the mechanisms' exact variances at the centre of their domains. The mean over n clients of
estimates with variances v_k (each summed over the d values) has noise of L2 norm sqrt(mean_k v_k / n).

What that does to a model is a rule of thumb. Over T rounds updates add up as T at best and noise as sqrt(T); and noise
spreads evenly over all d directions while updates keep to few. So what is judged is noise / update / sqrt(d T): below
0.01 training barely notices it, from 0.3 on nothing is learnt. The rule was set on logistic regression and small
networks on handwritten digits (docs/planning.md has the measurement); it is no promise.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.mechanisms import Box, IntegerRange, L1Ball, L2Ball, Mechanism, NoPrivacy, Sphere
from sordino.privacy.accountant import Account, compose
from sordino.privacy.guarantee import Budget, Claim, Guarantee, Infinite, Release, check_count
from sordino.privacy.ledger import cost, terms
from sordino.privacy.planning import rounds_allowed
from sordino.privacy.statement import NO_MEANINGFUL_PROTECTION, figure
from sordino.randomness import Keystream

if TYPE_CHECKING:
    from sordino.learning.private_sgd import PrivateTraining
    from sordino.messages import Plan
    from sordino.methods.interface import LocalView, Method
    from sordino.recipe import Recipe
    from sordino.runs.federation import Federation

#: (noise / update / sqrt(d T) from which on, what to expect)
LEVELS = (
    (0.0, "training should barely notice it"),
    (0.01, "expect slower training and a somewhat lower accuracy"),
    (0.03, "expect a clearly lower accuracy"),
    (0.1, "averaging over rounds helps only partly, expect a far lower accuracy"),
    (0.3, "expect chance"),
)
WIDE = 3.0  #: a range this many times as wide as it need be is pointed out
MOST_SENTENCES = 4  #: groups of clients told apart in words; beyond, they are summed up

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

    def range_words(self, values: int, norm: float | None, largest: float | None) -> str | None:
        """How the range fits updates of this norm, or values of this size; None where nothing can be said."""


@dataclass(frozen=True)
class Randomised:
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

    def range_words(self, values: int, norm: float | None, largest: float | None) -> str | None:
        match self.mechanism.domain:
            case _ if not self.mechanism.bounded:
                return None
            case Box(radius=radius):
                return None if largest is None else _box_words(float(radius.min()), float(radius.max()), largest)
            case IntegerRange(clip=clip):
                return None if largest is None else _box_words(clip, clip, largest)
            case L1Ball(radius=radius):
                return None if norm is None else _ball_words(radius, norm * math.sqrt(values), "L1 norm about")
            case L2Ball(radius=radius):
                return None if norm is None else _ball_words(radius, norm, "L2 norm")
            case Sphere(radius=radius):
                size = "" if norm is None else f" (here {_short(norm)})"
                return f"every update is rescaled to the norm {_short(radius)}: its own size{size} is lost"
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

    def range_words(self, values: int, norm: float | None, largest: float | None) -> str | None:
        return None


def _gains(lr: float, momentum: float, nesterov: bool, steps: int) -> tuple[float, ...]:
    """With k steps to go, its own included, a gradient moves the result by lr (1 + m + ... + m^(k-1)).

    Nesterov's momentum looks one step ahead: one power more.
    """
    powers = range(1 + nesterov, steps + 1 + nesterov)
    return tuple(lr * math.fsum(momentum**i for i in range(k)) for k in powers)


@dataclass(frozen=True)
class MedianClipped:
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

    def range_words(self, values: int, norm: float | None, largest: float | None) -> str | None:
        return None


@dataclass(frozen=True)
class Group:
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
) -> tuple[Group, ...]:
    """Groups of clients from one sender (and weight, and releases) per class, and one class and budget per client.

    `releases` are those of any round, `schedules` those of every round, where rounds differ.
    """
    if budgets is not None and len(budgets) != len(class_of):
        raise InvalidInput(f"there are {len(class_of)} clients and {len(budgets)} budgets: give one each")
    members: dict[tuple[int, Budget | None], list[int]] = {}
    for client, kind in enumerate(class_of):
        members.setdefault((int(kind), None if budgets is None else budgets[client]), []).append(client)
    return tuple(
        Group(
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
class Preflight:
    """Figures and sentences about a federation before it starts; made by `preflight`."""

    clients: int
    asked: float  #: in each round, on average
    values: int
    rounds: int
    noise: float | None  #: L2 norm of the noise in the average of a round; None where it is not known
    update_norm: float | None  #: of a client's update, before clipping; None where it was not measured
    update: float | None  #: L2 norm of what reports keep of it: after clipping, rescaling or voting
    report_values: tuple[int, int]  #: the fewest and the most that a report is about
    report_bytes: tuple[int, int]  #: the least and the most that a report has
    report: str  #: what leaves a client, in words
    kinds: int  #: of reports, by what they lose
    losses: tuple[ReportLoss, ...]  #: of every kind of report; beyond four kinds, of the least noisy and the noisiest
    outlooks: tuple[Outlook, ...]
    ranges: tuple[str, ...]  #: how ranges fit values, in words
    uneven: bool = False  #: whether rounds differ in what they cost
    unknown: str = ""  #: why the noise is not known, where it is not
    batch_norm: str = ""  #: what becomes of its statistics, where the model has any and something is to be known
    stopping: str = ""  #: what stopping early tells, where it may tell something
    left_out: str = ""  #: rows that the recipe deals and that nobody gets
    norm: str = ""  #: how the norm that reports are scaled down to fits honest ones, in words

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

    @property
    def verdict(self) -> str | None:
        """What to expect of training, in words."""
        if self.level is None:
            return None
        return next(words for least, words in reversed(LEVELS) if self.level >= least)

    @cached_property
    def sentences(self) -> tuple[str, ...]:
        """Everything in plain words, the most important first."""
        said = [
            *self._noise_words(),
            *self._budget_words(),
            *self._loss_words(),
            *self.ranges,
            *([self.norm] if self.norm else []),
            self._bytes_words(),
            *(words for words in (self.batch_norm, self.stopping, self.left_out) if words),
        ]
        return tuple(f"{_capital(words)}." for words in said)

    def to_json(self) -> dict[str, Any]:
        """All figures, unrounded, ready for `json.dumps`; infinity is the text "infinity"."""
        return {
            **{name: getattr(self, name) for name in ("clients", "asked", "values", "rounds")},
            **{name: getattr(self, name) for name in ("noise", "update_norm", "update")},
            "ratio": None if self.ratio is None else _number(self.ratio),
            "level": None if self.level is None else _number(self.level),
            "verdict": self.verdict,
            "report_values": list(self.report_values),
            "report_bytes": list(self.report_bytes),
            "losses": [_loss_json(loss) for loss in self.losses],
            "budgets": [_outlook_json(outlook) for outlook in self.outlooks],
            "sentences": list(self.sentences),
        }

    def _noise_words(self) -> Iterable[str]:
        first = " in round 1" if self.report_values[0] < self.report_values[1] else ""
        who = f"{_count(self.asked, 'client')} a round, {_count(self.values, 'value')}{first}"
        if self.noise is None:
            why = f": {self.unknown}" if self.unknown else ""
            yield f"{who}: how much noise there will be in an update is not known in advance{why}"
            return
        if self.noise == 0:
            yield f"{who}: no noise is added"
            return
        if self.ratio is None or self.level is None:
            yield f"{who}: the noise of the average has an L2 norm of {_short(self.noise)}"
            return
        yield (
            f"{who}: the noise of the average (L2 norm {_short(self.noise)}) is {_times(self.ratio)} the size of an "
            f"update ({self._update_words()}): {self.verdict}"
        )
        if 1 < self.ratio < math.inf and self.level >= LEVELS[1][0]:
            wanted = math.ceil(self.asked * self.ratio**2)
            yield f"noise falls with the root of the number of clients: it takes {wanted:,} a round to make it as small"

    def _update_words(self) -> str:
        kept, before = self.update or 0.0, self.update_norm or 0.0
        return (
            _short(kept)
            if math.isclose(kept, before, rel_tol=0.02)
            else f"{_short(before)}, in the reports {_short(kept)}"
        )

    def _budget_words(self) -> Iterable[str]:
        by_reports: dict[tuple[int, str, float], list[Outlook]] = {}
        for outlook in self.outlooks:
            reports = self.rounds if outlook.lasts else outlook.reports
            by_reports.setdefault((reports, terms(outlook.budget), outlook.expected), []).append(outlook)
        if len(by_reports) > MOST_SENTENCES:
            yield self._budget_summary()
            return
        for _, alike in sorted(by_reports.items()):
            yield self._budget_sentence(alike)

    def _budget_sentence(self, alike: Sequence[Outlook]) -> str:
        clients = tuple(sorted(client for outlook in alike for client in outlook.clients))
        first, one = alike[0], len(clients) == 1
        limits = sorted({outlook.budget.limit for outlook in alike})
        limit = f"{limits[0]:g}" if len(limits) == 1 else f"{limits[0]:g} to {limits[-1]:g}"
        budget = f"the budget of {_who(clients, self.clients)} (epsilon {limit}, {terms(first.budget)})"
        reports, they = min(outlook.reports for outlook in alike), "it" if one else "they"
        if first.lasts:
            return f"{budget} lasts for all {_count(self.rounds, 'round')}"
        if reports == 0:
            return f"{budget} does not cover a single report: {they} will decline from round 1"
        if first.expected >= self.rounds and self.uneven:
            covers = f"covers {_count(reports, 'round')} of {self.rounds}"
            return f"{budget} {covers}; {they} will decline round {reports + 1} and later ones that cost as much"
        if first.expected >= self.rounds:
            spent = f"is spent after round {reports} of {self.rounds}"
            return f"{budget} {spent}; {they} will decline from round {reports + 1}"
        least = "at least " if self.uneven else ""
        return (
            f"{budget} admits {least}{_count(reports, 'report')}, and {they} will be asked for about "
            f"{first.expected:.3g} in {_count(self.rounds, 'round')}: {they} will decline the rest"
        )

    def _budget_summary(self) -> str:
        total = sum(len(outlook.clients) for outlook in self.outlooks)
        lasting = sum(len(outlook.clients) for outlook in self.outlooks if outlook.lasts)
        short = [outlook for outlook in self.outlooks if not outlook.lasts]
        if not short:
            return f"all {total} budgets last for all {_count(self.rounds, 'round')}"
        reports = [outlook.reports for outlook in short]
        return (
            f"the budgets of {lasting} of {total} clients last for all {_count(self.rounds, 'round')}; the others run "
            f"out after {min(reports)} to {max(reports)} reports each, and these clients then decline"
        )

    def _loss_words(self) -> Iterable[str]:
        yield from map(self._loss_sentence, self.losses)
        if self.kinds > len(self.losses):
            yield f"these are the extremes of {self.kinds} kinds of clients; all others lie in between"

    def _loss_sentence(self, loss: ReportLoss) -> str:
        g, claim = loss.guarantee, loss.claimed
        one = f"{'in round 1, ' if loss.differs else ''}one {loss.what}"
        who = f"{one} of {_who(loss.clients, self.clients)} ({g.adjacency}, against {g.adversary})"
        claimed = "" if claim is None else f"{_claimed(claim, g)}; "
        if math.isinf(loss.proven):
            return f"{who}: {claimed}nothing is proven ({getattr(g.loss, 'why', f'at delta {figure(loss.delta)}')})"
        every = f"over {_count(self.rounds, 'round')}{', which differ,' if loss.differs else ''}"
        rounds = f", {every} {figure(loss.total)}" if self.rounds > 1 else ""
        verdict = ": no meaningful protection" if loss.total > NO_MEANINGFUL_PROTECTION else ""
        proven = f"proven epsilon {figure(loss.proven)}{rounds} at delta {figure(loss.delta)}, by {g.basis}"
        return f"{who}: {claimed}{proven}{verdict}"

    def _bytes_words(self) -> str:
        (least, most), (fewest, values) = self.report_bytes, self.report_values
        size = f"{most:,} bytes" if least == most else f"{least:,} to {most:,} bytes"
        about = _count(values, "value") if fewest == values else f"{fewest:,} to {values:,} values"
        return f"{self.report} has {size} for {about}"


def preflight(
    groups: Sequence[Group],
    *,
    values: int,
    rounds: int,
    asked: float | None = None,
    update_norm: float | None = None,
    largest_value: float | None = None,
    delta: float = 1e-5,
    allow_unproven: Iterable[str] = (),
    sizes: Sequence[tuple[int, int]] | None = None,
    report: str = "a report",
    batch_norm: str = "",
    stopping: str = "",
    left_out: str = "",
    norm: float | None = None,
) -> Preflight:
    """Look ahead: noise beside the size of an update, budgets, what a report loses and weighs.

    `asked` clients (all, if not given) are asked in each round, each equally often. `update_norm` is the L2 norm of a
    client's update as measured on a few simulated clients; `largest_value` the largest distance of its values from the
    centre of their range. `allow_unproven` names releases that leave without counting, by the owner's consent. `sizes`
    are the values and bytes of every kind of report, where they are not the senders' own; `report` is its name.
    `batch_norm` is a sentence about what becomes of its statistics, `stopping` one about what stopping early tells,
    `left_out` one about rows that nobody gets. `norm` is the one that the server scales longer reports down to.
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
        report=report,
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
        batch_norm=batch_norm,
        stopping=stopping,
        left_out=left_out,
        norm="" if norm is None else _norm_words(groups, values, norm, update_norm),
    )


def expected(federation: Federation, name: str, local: LocalView | None = None) -> tuple[str, ...]:
    """What to expect of a run under this name. `local` is what clients saw that rehearsed a round of a simulation."""
    method = federation.method
    if (preparation := method.preparation(name)) is not None:
        return of_preparation(federation, preparation)
    failed = () if local is None else _failures(local)
    if not any(method.releases(method.plan(method.init(), name))):
        return (*failed, "Clients send nothing.")
    if local is not None:
        norm, largest = float(np.mean(local.update)), float(np.max(local.largest))
        found = of_federation(federation, update_norm=norm or None, largest_value=largest or None)
        return (*failed, *found.sentences)
    own = ("Budgets are those of the recipe: each owner's own limit (client.toml) decides, and may be smaller.",)
    return (*of_federation(federation).sentences, *(own if federation.budgets else ()))


def _failures(local: LocalView) -> tuple[str, ...]:
    failed = int(local.failed.sum())
    if not failed:
        return ()
    return (
        f"The training of {failed} of {len(local.failed)} clients that rehearsed a round stopped being finite, so that "
        "they would report no change: lower training.optimizer.lr, or look at their data.",
    )


def of_federation(
    federation: Federation, *, update_norm: float | None = None, largest_value: float | None = None
) -> Preflight:
    """Look ahead for a wired recipe; the sizes of updates are the caller's to measure."""
    recipe, method, upload = federation.recipe, federation.method, federation.upload
    plans, schedules = _rounds(method, recipe)
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
        report=MASKED if _summed(recipe) else "a report",
        batch_norm=_batch_norm(federation, _noise(groups, upload.values, asked)),
        stopping=_stopping(recipe),
        left_out=_left_out(federation),
        norm=upload.norm,
    )


def _left_out(federation: Federation) -> str:
    """How many of the rows that a split's files name are test examples, which no client gets."""
    from sordino.learning.partition import rows_in

    split: Any = federation.recipe.split
    if split.kind != "files" or not (held_out := federation.dataset.held_out).size:
        return ""
    rows = sum(int(np.isin(part, held_out).sum()) for part in rows_in(split.files))
    return f"{_count(rows, 'row')} of split.files, held out as test examples, go to no client" if rows else ""


def _stopping(recipe: Recipe) -> str:
    """What looking at private examples to decide when to stop tells: nothing that any figure has in it."""
    if not recipe.rounds.may_stop_early or recipe.rounds.stop_on == "test":
        return ""
    return (
        "when to stop is decided by examples that clients set aside: a release of its own, without noise, of which "
        'nothing is proven (rounds.stop_on = "test" looks at none of them)'
    )


def _batch_norm(federation: Federation, noise: float | None) -> str:
    """A server without its statistics takes those of the examples that it scores; noise can ruin those it has."""
    from sordino.learning.evaluation import PIECE
    from sordino.learning.models import has_batch_norm

    view = federation.method.views(federation.method.init(), {})[0]
    if not has_batch_norm(federation.model):
        return ""
    if view.buffers is not None:
        if not noise:
            return ""
        each = _short(noise / math.sqrt(federation.upload.values))
        return (
            f"the statistics of batch norm are released with the noise of all values, {each} on average: where that is "
            "more than a variance, the variance can fall to 0 and break the model; model.buffers=local keeps them with "
            "the clients"
        )
    return (
        "the statistics of batch norm stay with the clients: the common model is scored with those of the test "
        f"examples, {PIECE:,} at a time, which a model in use does not have"
    )


def _rounds(method: Method, recipe: Recipe) -> tuple[list[Plan], list[Schedule]]:
    """The plans of all rounds, and what every class of clients releases in each; what is equal is one object."""
    state, plans, by_round = method.init(), [], []
    known: dict[Releases, Releases] = {}
    for _ in range(recipe.rounds.count):
        plans.append(method.plan(state, recipe.name))
        own = (tuple(replace(release, id="planned") for release in each) for each in method.releases(plans[-1]))
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
    senders: list[Sender] = [Randomised(mechanism, upload.what or "model update") for mechanism in upload.mechanisms]
    if isinstance(method, CentralDp) and getattr(given, "clip", None) == "median":
        loudness = None if update_norm is None else _median_noise(method, plan, update_norm)
        return [MedianClipped(sender, loudness, asked_per_round(federation.recipe)) for sender in senders]
    return senders


def _median_noise(method: Method, plan: Plan, norm: float) -> float | None:
    """The noise of a round in which every update has this norm, so that it is their median."""
    tally = method.tally(plan)
    mechanism, values = tally.upload.mechanisms[0], tally.upload.values
    update = np.full(values, norm / math.sqrt(values), np.float32)
    tally.add([0], mechanism.encode(mechanism.randomize(update, Keystream.simulation(0, [0], 0)).output))
    return tally.noise()


MASKED = "a report, masked for the secure sum (keys and shares come beside it),"


def _summed(recipe: Recipe) -> bool:
    return getattr(recipe.method.channel, "kind", "direct") == "summed"


def _sizes(federation: Federation, plan: Plan) -> list[tuple[int, int]]:
    """Values and bytes of every kind of report on a plan."""
    from sordino.channels.summed import Rule

    tally = federation.method.tally(plan)
    values = tally.upload.values
    if not _summed(federation.recipe):
        return [(values, Randomised(mechanism).report_bytes(values)) for mechanism in tally.upload.mechanisms]
    given: Any = federation.recipe.method
    rule, asked = Rule(given.channel.threshold, given.channel.digits), given.selection.asked(federation.clients)
    sums = [
        rule.session(plan, tally, group, min(len(members), asked))
        for group, members in tally.classes(range(federation.clients)).items()
    ]
    return [(values, session.values * session.bits // 8) for session in sums]


def of_preparation(federation: Federation, plan: Plan) -> tuple[str, ...]:
    """Look ahead where clients prepare: what they release then, once, is all that they ever release."""
    method, recipe = federation.method, federation.recipe
    planned = [tuple(own) for own in method.releases(plan)]
    if not any(planned):
        return ("Clients send nothing.",)
    groups = groups_of(
        [Randomised(NoPrivacy())] * len(planned),
        [method.class_of(client) for client in range(federation.clients)],
        budgets=federation.budgets,
        releases=planned,
    )
    allowed = frozenset(recipe.clients.allow_unproven)
    ahead = preflight(groups, values=federation.upload.values, rounds=1, delta=federation.delta, allow_unproven=allowed)
    reasons = dict.fromkeys(
        f"{release.what}: nothing is proven ({loss.why})"
        for own in planned
        for release in own
        if isinstance(loss := release.guarantees[0].loss, Infinite)
    )
    said = [
        "clients prepare before the first round, and what they release then is all: later reports are derived from it",
        *ahead._loss_words(),
        *reasons,
        *(_covered(outlook, federation.clients) for outlook in ahead.outlooks),
        ahead._bytes_words(),
    ]
    return tuple(f"{_capital(words)}." for words in said)


def _covered(outlook: Outlook, clients: int) -> str:
    whose, given = _who(outlook.clients, clients), outlook.budget
    budget = f"the budget of {whose} (epsilon {given.limit:g}, {terms(given)})"
    return f"{budget} covers it" if outlook.lasts else f"{budget} does not cover it: they will decline"


def asked_per_round(recipe: Recipe) -> float:
    """How many clients a recipe's method asks in a round, on average."""
    return float(recipe.method.selection.expected(recipe.number_of_clients))


def _shares(groups: Sequence[Group]) -> list[float]:
    """Each group's share of the clients."""
    total = sum(len(group.clients) for group in groups)
    return [len(group.clients) / total for group in groups]


def _noise(groups: Sequence[Group], values: int, asked: float) -> float | None:
    """sqrt(mean_k w_k^2 v_k / n) / mean_k w_k: for equal weights, sqrt(mean_k v_k / n)."""
    variances = [group.sender.noise(values) for group in groups]
    known = [v for v in variances if v is not None]
    if len(known) < len(variances):
        return None
    shares = _shares(groups)
    square = math.fsum(s * g.weight**2 * v for s, g, v in zip(shares, groups, known, strict=True))
    return math.sqrt(square / asked) / math.fsum(s * g.weight for s, g in zip(shares, groups, strict=True))


def _kept(groups: Sequence[Group], values: int, norm: float) -> float:
    """The weighted mean of what each group's reports keep of an update."""
    weights = [s * g.weight for s, g in zip(_shares(groups), groups, strict=True)]
    kept = [group.sender.kept(values, norm) for group in groups]
    return math.fsum(w * k for w, k in zip(weights, kept, strict=True)) / math.fsum(weights)


def _kinds(groups: Sequence[Group], values: int) -> dict[object, tuple[Group, list[int]]]:
    """Reports that lose the same, and whose they are: groups may differ in their budgets and weights alone."""
    kinds: dict[object, tuple[Group, list[int]]] = {}
    for group in groups:
        kinds.setdefault((group.releases(values)[0], group.schedule), (group, []))[1].extend(group.clients)
    return kinds


def _losses(groups: Sequence[Group], values: int, rounds: int, delta: float) -> tuple[ReportLoss, ...]:
    """What each kind of report loses; of many kinds, only the extremes."""
    told = list(_kinds(groups, values).values())
    if len(told) > MOST_SENTENCES:
        told.sort(key=lambda kind: kind[0].sender.noise(values) or 0.0)
        told = [told[0], told[-1]]
    return tuple(_loss(tuple(sorted(clients)), group, values, rounds, delta) for group, clients in told)


def _loss(clients: tuple[int, ...], group: Group, values: int, rounds: int, delta: float) -> ReportLoss:
    """What a report loses, and what one in every round does: the first of each round's releases is the report."""
    reports = [releases[0] for releases in group.all_releases(values, rounds)]
    first, guarantee = reports[0], reports[0].guarantees[0]
    one, all_ = (
        compose((report.guarantees[0].loss for report in own), adjacency=guarantee.adjacency).epsilon(delta)
        for own in (reports[:1], reports)
    )
    differs = any(report != first for report in reports)
    return ReportLoss(clients, first.what, guarantee, delta, one, all_, first.claimed, differs)


def _outlook(group: Group, budget: Budget, values: int, expected: float, allowed: frozenset[str]) -> Outlook:
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


def _ranges(groups: Sequence[Group], values: int, norm: float | None, largest: float | None) -> tuple[str, ...]:
    words = (group.sender.range_words(values, norm, largest) for group in groups)
    return tuple(dict.fromkeys(said for said in words if said is not None))


# --- words ----------------------------------------------------------------------------------------------------------


def _box_words(least: float, most: float, largest: float) -> str:
    reach = _short(least) if least == most else f"{_short(least)} to {_short(most)}"
    if largest > least:
        where = f"values lie up to {_short(largest)} from the centre of their range, which reaches {reach}"
        return f"{where}: they will be clipped"
    if least > WIDE * largest:
        return (
            f"the range reaches {reach} from its centre, {_times(least / largest)} the largest value "
            f"({_short(largest)}): a narrower one would mean as much less noise"
        )
    return f"the range reaches {reach} from its centre and values {_short(largest)}: it fits"


def _ball_words(radius: float, norm: float, which: str) -> str:
    """The L1 norm is that of an update whose values are all of one size."""
    if norm > radius:
        return f"updates ({which} {_short(norm)}) will be shortened to the radius {_short(radius)}"
    if radius > WIDE * norm:
        return (
            f"the radius {_short(radius)} is {_times(radius / norm)} the size of an update ({which} {_short(norm)}): a "
            "smaller one would mean as much less noise"
        )
    return f"the radius {_short(radius)} holds updates ({which} {_short(norm)})"


def _norm_words(groups: Sequence[Group], values: int, norm: float, update: float | None) -> str:
    """How the announced norm fits honest reports: the noise and what is kept of the update stand at right angles."""
    noises = [group.sender.noise(values) for group in groups]
    known = [variance for variance in noises if variance is not None]
    if len(known) < len(noises) or (update is None and not any(known)):
        return f"reports are shortened to method.norm = {_short(norm)}; how long honest ones are is not known"
    kept = [0.0 if update is None else group.sender.kept(values, update) for group in groups]
    length = max(math.sqrt(variance + own * own) for variance, own in zip(known, kept, strict=True))
    honest = f"an honest report has an L2 norm of about {_short(length)}"
    if length > 1.2 * norm:
        return f"{honest}, and method.norm = {_short(norm)} shortens it: training slows down as much"
    if norm > 1.5 * length:
        return (
            f"{honest}, and method.norm = {_short(norm)} lets a hostile one be {_times(norm / length)} as long: choose "
            "it at about the length of honest ones"
        )
    return f"{honest}, and longer ones are shortened to method.norm = {_short(norm)}: it fits"


def _who(clients: tuple[int, ...], total: int) -> str:
    """all 20 clients; client 3; clients 0-4, 7."""
    if len(clients) == total:
        return "the only client" if total == 1 else f"all {total} clients"
    runs: list[list[int]] = []
    for client in sorted(clients):
        if runs and runs[-1][-1] == client - 1:
            runs[-1].append(client)
        else:
            runs.append([client])
    parts = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs]
    if len(parts) > 6:
        return f"{len(clients)} clients ({', '.join(parts[:3])}, ...)"
    return f"client{'s' if len(clients) > 1 else ''} {', '.join(parts)}"


def _claimed(claim: Claim, beside: Guarantee) -> str:
    """A claim with what it is about, where that is not what it stands beside."""
    own, other = ((g.adjacency, g.adversary.kind) for g in (claim, beside))
    terms_ = "" if own == other else f" ({claim.adjacency}, against {claim.adversary})"
    return f"claimed epsilon {figure(claim.epsilon)}{terms_}, by {claim.formula}"


def _count(number: float, what: str) -> str:
    shown = f"{number:,.0f}" if float(number).is_integer() else f"{number:,.3g}"
    return f"{shown} {what}{'' if number == 1 else 's'}"


def _short(number: float) -> str:
    return f"{number:.3g}"


def _times(ratio: float) -> str:
    if math.isinf(ratio):
        return "infinitely many times"
    return f"{ratio:,.0f} times" if ratio >= 10 else f"{ratio:.2g} times"


def _capital(words: str) -> str:
    return words[:1].upper() + words[1:]


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
    "LEVELS", "Group", "MedianClipped", "Outlook", "Preflight", "PrivateSilo", "Randomised", "ReportLoss", "Sender",
    "asked_per_round", "groups_of", "of_federation", "of_preparation", "preflight",
]  # fmt: skip

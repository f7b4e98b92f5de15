"""Which records were trained on: the likelihood-ratio attack with shadow models (Carlini et al., "Membership inference
attacks from first principles", IEEE S&P 2022, the online attack).

One client is attacked. Some of its records are targets: in each of many worlds every target is in the client's data by
a fair coin of its own, all other records are there. In every world the client answers the same plans, those that the
run's server sent, with the run's own training and mechanism. So all worlds of a round are one cohort, trained side by
side, in as many processes as there are. Most worlds are shadows: the attacker knows their coins, and learns from them,
for each record, how what it sees is distributed with the record and without it. Of other worlds it takes thresholds.
The rest are the trials.

Two adversaries: the server, which sees all reports of the client, and a reader of the one model that the server makes
of a round's reports, the reports of all others being as they were. Both score a record in a model by the logit of the
confidence in its label, and by how fast the record's loss falls along the change of the model; log-likelihood ratios of
Gaussians add up over rounds.

Nothing is chosen on the trials. Thresholds, and which of the scores counts, come from worlds that are neither shadows
nor trials. So the share of false alarms among the trials is not exactly the nominal one: it is measured, and guessing
gets as much. The bound is taken at the upper end of its interval (wrong with a chance of about 1e-6), which is as much
wider as worlds differ: records of one world share its noise. The intervals of shares do not allow for that. Whether a
proof is violated is decided by another test, which does: "in" is guessed of the highest scores, of as many as are fixed
in advance, and `likelihood_under` (audits/canary_game.py) bounds the probability of so many right guesses under all
that is proven. The bound holds for plans that are fixed in advance as it does for the run's: a guarantee against the
server holds whatever it sends. A guarantee for whole clients covers each of their records.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import betaincinv
from torch import Tensor

from sordino.audits.attack_interface import RunAttack
from sordino.audits.attack_options import AttackOptions
from sordino.audits.canary_game import Guesses, likelihood_under
from sordino.audits.finished_run import FinishedRun
from sordino.audits.server_view import (
    HeardRound,
    Member,
    Reporters,
    TrainingRows,
    check_simulated,
    hands_for,
    hear,
    reports_models,
    shows_reports,
    work_for,
)
from sordino.audits.silos import proven_curve
from sordino.errors import InvalidInput
from sordino.fleets.workers import Hands
from sordino.learning.cohort import ClientData
from sordino.learning.models import call, has_batch_norm
from sordino.learning.stacked_model import Batch, Execution, StackedModel
from sordino.methods.interface import PARAMETERS
from sordino.privacy.guarantee import SERVER, Adjacency
from sordino.privacy.leaks import CERTAIN, Leak, Share, Variant, membership_bound
from sordino.wire.messages import Plan

Scores = NDArray[np.float64]
Coins = NDArray[np.bool_]
Floats = NDArray[np.float32]
Points = tuple[tuple[float, float], ...]

NOMINAL = {"1": 0.01, "0.1": 0.001}  #: shares of false alarms, in per cent and as numbers
FEWEST = 8  #: targets without which there is nothing to learn
WIDE = 64  #: shadows on each side from which every record has variances of its own
EVEN = 200  #: targets from which each shadow has half of them: worlds of equal size are computed faster
AT_ONCE = 2**23  #: values of gradients computed at a time
CURVE = np.concatenate([[0.0], np.logspace(-4, 0, 49)])  #: false alarms at which curves are drawn


@dataclass(frozen=True)
class ShadowEffort:
    """How hard to try. Work is counted in records trained on, times parameters."""

    shadows: int
    held_out: int  #: records times worlds that thresholds are taken from, at least
    trials: int  #: records times worlds in which they are told, at least
    records: int  #: targets, at most
    rounds: int  #: whose reports are attacked, at most
    repeated: float  #: work to compute the run's rounds again, at most
    work: float  #: in all worlds together, at most


QUICK = ShadowEffort(shadows=64, held_out=16_000, trials=16_000, records=600, rounds=20, repeated=6e9, work=6e9)
THOROUGH = ShadowEffort(
    shadows=256, held_out=40_000, trials=60_000, records=4_000, rounds=100, repeated=1e15, work=1e15
)
FEWEST_WORLDS, MOST_WORLDS = 16, 1_024  #: of trials, and of those that thresholds are taken from


def tell_members(run: FinishedRun, asked: AttackOptions) -> tuple[Leak, ...]:
    """Say of records of one client whether it trained on them; nothing where reports are no trained models.

    The share is that of members told, at a threshold for 1 % of false alarms; guessing gets the share of false alarms
    that there were.
    """
    return tell(run, asked, THOROUGH if asked.thorough else QUICK)


class MembershipInference(RunAttack):
    """Tell who was trained on."""

    name = "membership"
    needs = "reports of trained models, by clients with enough records"

    def carry_out(self, run: FinishedRun, asked: AttackOptions) -> tuple[Leak, ...]:
        """See `tell_members`."""
        return tell_members(run, asked)

    def deed(self, leak: Leak) -> str:
        """Members are told."""
        return "cases where the client trained on the record, the attack finds, at about 1 % of false alarms,"


def tell(run: FinishedRun, asked: AttackOptions, effort: ShadowEffort) -> tuple[Leak, ...]:
    """The same with another effort."""
    check_simulated(run)
    if not reports_models(run):
        return ()
    federation = run.federation
    each = max(1.0, federation.effort / run.recipe.rounds.count)
    heard = hear(run, asked, max(1, min(effort.rounds, int(effort.repeated / each))))
    client = _client(run, heard, asked.client)
    game = Game.of(run, client, heard, asked.seed, effort)
    if game is None:
        return ()
    variants = Reporters.variants(run)
    with closing(hands_for(asked, game.effort * len(variants), len(game.members))(work_for(run, asked))) as hands:
        return tuple(leak for variant in variants for leak in _attacks(run, game, variant, asked, hands))


def _client(run: FinishedRun, heard: Sequence[HeardRound], wanted: int | None) -> int:
    """The client named, or the one with most records of those that lost most."""
    there = {client for one in heard for client in one.bodies}
    if wanted is not None:
        if wanted not in there:
            raise InvalidInput(f"client {wanted} reported in none of the {len(heard)} rounds that are attacked")
        return wanted
    lost_most = [client for client in run.group_of(None).clients if client in there]
    return max(lost_most or there, key=lambda client: (len(run.federation.parts[client]), -client))


# --- worlds -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Game:
    """Who is attacked, on which plans, and who is in, in which world."""

    client: int
    rounds: tuple[HeardRound, ...]
    targets: ClientData  #: [m]
    coins: Coins  #: [worlds, m]
    members: tuple[Member, ...]  #: the client's records in each world
    effort: float  #: records that are trained on in all worlds and rounds together, times parameters
    shadows: int  #: worlds that the attacker learns from
    held_out: int  #: the next ones, of which it takes thresholds; the rest are trials

    @classmethod
    def of(
        cls, run: FinishedRun, client: int, heard: Sequence[HeardRound], seed: int, effort: ShadowEffort
    ) -> Game | None:
        """Worlds of the run; None where the client has too few records."""
        own = run.federation.population.data(client, torch.device("cpu"))
        if own is None or len(own) < FEWEST:
            return None
        positions = run.federation.population.parts[client]
        rng = np.random.default_rng([seed, client, len(own)])
        order = rng.permutation(len(own))
        chosen, rest = np.sort(order[: effort.records]), np.sort(order[effort.records :])
        shadows = effort.shadows
        held_out, trials = (
            max(FEWEST_WORLDS, min(MOST_WORLDS, -(-wanted // len(chosen))))
            for wanted in (effort.held_out, effort.trials)
        )
        worlds = shadows + held_out + trials
        coins = rng.random((worlds, len(chosen))) < 0.5
        if len(chosen) >= EVEN:
            halves = np.arange(len(chosen)) < len(chosen) // 2
            coins[:shadows] = rng.permuted(np.tile(halves, (shadows, 1)), axis=1)
        members = []
        for row in coins:
            there = np.sort(np.concatenate([rest, chosen[row]]))
            members.append((client, TrainingRows(positions[there]) if len(there) else None))
        own_rounds = [one for one in heard if one.bodies.get(client)]
        training = run.federation.method.training
        each = worlds * training.effort([max(1, len(own) - len(chosen) // 2)])[1] * run.federation.layout.size
        count = max(1, min(len(own_rounds), effort.rounds, int(effort.work / max(each, 1.0))))
        spread = np.unique(np.linspace(len(own_rounds) - 1, 0, count).round().astype(int))
        rounds = tuple(own_rounds[k] for k in spread)
        return cls(client, rounds, _take(own, chosen), coins, tuple(members), each * len(rounds), shadows, held_out)


def _take(data: ClientData, rows: NDArray[np.int64]) -> ClientData:
    where = torch.from_numpy(rows)
    return ClientData(data.x[where], data.y[where])


def _attacks(run: FinishedRun, game: Game, variant: Variant, asked: AttackOptions, hands: Hands) -> list[Leak]:
    """One leak for every adversary of this variant."""
    began = time.monotonic()
    reporters, gauge = Reporters(run, variant, hands=hands), Gauge(run, asked.device)
    by_report: list[dict[str, Scores]] = []
    for number, one in enumerate(asked.track(game.rounds, "Training shadow models")):
        answers = reporters.answers(one.plan, game.members, asked.seed, first=number * len(game.members))
        if shows_reports(run):
            by_report.append(gauge.scores(one.plan, answers.changes, game.targets))
        if one is game.rounds[-1]:
            others = np.zeros(1, np.float32)
            if variant == "bare":
                parts = run.federation.population.parts
                rest = [(c, TrainingRows(parts[c]) if len(parts[c]) else None) for c in one.bodies if c != game.client]
                others = reporters.answers(one.plan, rest, run.recipe.seed).total if rest else others
            models = reporters.models_after(one, game.client, answers, others)
            by_model = [gauge.scores(one.plan, models - one.plan.arrays[PARAMETERS].reshape(-1), game.targets)]
    found = []
    views = {"likelihood ratio, all reports": by_report, "likelihood ratio, one model": by_model}
    for how, seen in views.items():
        if seen:
            told = Told.of(seen, game.coins, game.shadows, game.held_out)
            figures = {
                "client": game.client, "shadows": game.shadows, "worlds": len(told.coins),
                "records": len(game.targets), "rounds": len(seen), "seconds": time.monotonic() - began,
            }  # fmt: skip
            found.append(_leak(run, game.client, variant, how, told, figures, asked.seed))
    return found


# --- scores -----------------------------------------------------------------------------------------------------------


class Gauge:
    """What models say about records."""

    def __init__(self, run: FinishedRun, device: str) -> None:
        federation = run.federation
        self._layout, self._device = federation.layout, torch.device(device)
        self._statistics = federation.method.statistics
        self._module = copy.deepcopy(federation.model).to(self._device)
        self._mixes = has_batch_norm(federation.model)
        self._module.train(self._mixes and not self._statistics.released)
        size = self._layout.size
        self._width = max(2, min(256, AT_ONCE // size))
        loss = federation.method.training.loss
        execution = Execution(self._width)
        self._stacked = None if self._mixes else StackedModel(federation.model, loss, execution, self._device)

    def scores(self, plan: Plan, changes: Floats, records: ClientData) -> dict[str, Scores]:
        """`[K, n]` each: of records in the models that these changes `[K, d]` of a plan's model lead to."""
        moved = torch.from_numpy(changes).to(self._device)
        start = torch.from_numpy(plan.arrays[PARAMETERS].reshape(-1)).to(self._device)
        x, y = records.x.to(self._device), records.y.to(self._device)
        found = {"confidence": self._confidences(plan, start, moved, x, y)}
        if self._stacked is not None:
            found["slope"] = self._slopes(start, moved, x, y)
        return {name: np.nan_to_num(value.double().cpu().numpy()) for name, value in found.items()}

    @torch.no_grad()
    def _confidences(self, plan: Plan, start: Tensor, moved: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """log(p / (1 - p)) of the confidence p in each record's own label."""
        own = torch.nn.functional.one_hot(y.long(), self._classes(start, x)).bool()
        buffers = {n: torch.from_numpy(plan.arrays[n]).to(self._device) for n in self._statistics.released}
        found = torch.empty(len(moved), len(x), device=self._device)
        for k, change in enumerate(moved):
            scores = call(self._module, {**self._layout.unflatten(start + change), **buffers}, (x,)).float()
            found[k] = scores[own] - scores.masked_fill(own, -math.inf).logsumexp(dim=1)
        return found

    def _classes(self, start: Tensor, x: Tensor) -> int:
        few = x[:2]
        return int(call(self._module, self._layout.unflatten(start), (few,)).shape[1])

    def _slopes(self, start: Tensor, moved: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """How fast each record's loss falls along each change, at its beginning."""
        assert self._stacked is not None
        self._stacked.try_out(x[:2])
        found = torch.empty(len(moved), len(x), device=self._device)
        for first in range(0, len(x), self._width):
            rows = slice(first, first + self._width)
            batch = Batch(x[rows, None], y[rows, None])
            count = len(batch.x)
            gradients, _ = self._stacked.gradients(
                start.expand(count, -1).contiguous(), self._stacked.initial_buffers(count), batch
            )
            found[:, rows] = -(moved @ gradients.T)
        return found


@dataclass(frozen=True, eq=False)
class Gaussians:
    """Means and variances `[m]` of a score with each record and without it."""

    inside: Scores
    outside: Scores
    inner: Scores  #: variance with the record
    outer: Scores
    spread: Scores  #: variance of both together, around their means

    @classmethod
    def fit(cls, scores: Scores, coins: Coins) -> Gaussians:
        """To the shadows' scores `[S, m]`."""
        least = 1e-12 + 1e-6 * scores.var()
        sides = []
        for there in (coins, ~coins):
            count = np.maximum(there.sum(axis=0), 1)
            mean = (scores * there).sum(axis=0) / count
            sides.append((count, mean, ((scores - mean) ** 2 * there).sum(axis=0)))
        (n1, mean1, off1), (n0, mean0, off0) = sides
        return cls(
            mean1, mean0, off1 / np.maximum(n1 - 1, 1) + least, off0 / np.maximum(n0 - 1, 1) + least,
            (off1 + off0) / np.maximum(n1 + n0 - 2, 1) + least,
        )  # fmt: skip

    def ratios(self, scores: Scores) -> Scores:
        """Log-likelihood ratios with each side's own variance."""
        inside = (scores - self.inside) ** 2 / self.inner + np.log(self.inner)
        outside = (scores - self.outside) ** 2 / self.outer + np.log(self.outer)
        return np.asarray((outside - inside) / 2)

    def shrunken_ratios(self, scores: Scores, shadows: int) -> Scores:
        """The same with one variance, and distances of the means drawn towards those of all records.

        With few shadows, or much noise, a record's own distance is mostly chance.
        """
        deviation = np.sqrt(self.spread)
        distance = (self.inside - self.outside) / deviation
        typical = distance.mean()
        trust = max(0.0, 1 - (4 / shadows) / max(float(distance.var()), 1e-12))
        distance = typical + trust * (distance - typical)
        return np.asarray(distance * (scores - (self.inside + self.outside) / 2) / deviation)


@dataclass(frozen=True, eq=False)
class Told:
    """The best attack's scores of the trials, and its thresholds."""

    scores: Scores  #: [trials, m]
    coins: Coins  #: [trials, m]
    thresholds: Mapping[str, float]  #: by nominal share of false alarms
    named: float  #: share of the cases held out that are beyond the threshold of the larger one

    @classmethod
    def of(cls, rounds: Sequence[Mapping[str, Scores]], coins: Coins, shadows: int, held_out: int) -> Told:
        """Log-likelihood ratios summed over rounds, of the kind that tells most members of the worlds held out."""
        known, rest = coins[shadows : shadows + held_out], coins[shadows + held_out :]
        best = max(_candidates(rounds, coins, shadows), key=lambda found: _told_of(found[:held_out], known))
        silent = best[:held_out][~known]
        thresholds = {name: float(np.quantile(silent, 1 - rate)) for name, rate in NOMINAL.items()}
        return cls(best[held_out:], rest, thresholds, float((best[:held_out] > thresholds["1"]).mean()))

    def at(self, name: str) -> tuple[Share, Share]:
        """Members told, and false alarms, beyond a threshold."""
        beyond = self.scores > self.thresholds[name]
        return _share(beyond[self.coins]), _share(beyond[~self.coins])

    def most_alarms(self, name: str) -> float:
        """The upper end of false alarms beyond a threshold, wrong with a chance of about 1e-6.

        Records of one world share its noise: they count as so few as vary as much as worlds do.
        """
        silent = ~self.coins
        records, alarms = silent.sum(axis=1), ((self.scores > self.thresholds[name]) & silent).sum(axis=1)
        count, rate = int(records.sum()), float(alarms.sum() / max(records.sum(), 1))
        spread = float(np.square(alarms - rate * records).sum()) * len(records) / max(len(records) - 1, 1)
        inflated = max(1.0, spread / max(count * rate * (1 - rate), 1e-12)) if 0 < rate < 1 else 1.0
        hits, misses = rate * count / inflated, (1 - rate) * count / inflated
        return float(betaincinv(hits + 1, misses, 1 - CERTAIN)) if misses else 1.0

    @property
    def guesses(self) -> Guesses:
        """How many of the highest scores are members', of as many as the worlds held out suggest: no coin has a say."""
        made = max(1, round(self.named * self.scores.size))
        highest = np.argsort(self.scores, axis=None, kind="stable")[-made:]
        return Guesses(self.scores.size, made, int(np.count_nonzero(self.coins.reshape(-1)[highest])))

    @property
    def auc(self) -> float:
        """The chance that a member scores higher than another record."""
        inside, outside = self.scores[self.coins], np.sort(self.scores[~self.coins])
        below = np.searchsorted(outside, inside, "left") + np.searchsorted(outside, inside, "right")
        return float(below.mean() / 2 / len(outside))

    @property
    def accuracy(self) -> float:
        """The mean of the shares of members and of others told right, where both are equally likely."""
        beyond = self.scores > 0
        return float((beyond[self.coins].mean() + (~beyond)[~self.coins].mean()) / 2)

    def curve(self) -> Points:
        """(false alarms, members told) at every threshold, thinned out."""
        outside, inside = (np.sort(self.scores[side]) for side in (~self.coins, self.coins))
        cuts = np.quantile(outside, 1 - CURVE)
        alarms, told = (1 - np.searchsorted(side, cuts, "right") / len(side) for side in (outside, inside))
        points = sorted({(float(a), float(b)) for a, b in zip(alarms, told, strict=True)})
        return ((0.0, points[0][1] if points[0][0] == 0 else 0.0), *(p for p in points if p[0] > 0), (1.0, 1.0))


def _candidates(rounds: Sequence[Mapping[str, Scores]], coins: Coins, shadows: int) -> Iterable[Scores]:
    """Log-likelihood ratios `[K - shadows, m]` summed over rounds, of each score and of all, in one form or two.

    Each comes also less its median in every world: what moves all records of a world alike tells none of them.
    """
    sums: dict[tuple[str, bool], Scores] = {}
    for one, (own, wide) in product(rounds, product(rounds[0], (False, True))):
        if wide and shadows < 2 * WIDE:
            continue
        fitted, rest = Gaussians.fit(one[own][:shadows], coins[:shadows]), one[own][shadows:]
        ratios = fitted.ratios(rest) if wide else fitted.shrunken_ratios(rest, shadows)
        sums[own, wide] = sums.get((own, wide), 0.0) + ratios
    found = list(sums.values())
    if len(rounds[0]) > 1:
        kinds = {wide for _, wide in sums}
        found += [np.sum([sums[own, wide] for own in rounds[0]], axis=0) for wide in sorted(kinds)]
    for ratios in found:
        yield ratios
        yield ratios - np.median(ratios, axis=1, keepdims=True)


def _told_of(scores: Scores, coins: Coins) -> float:
    """Members told at the larger nominal share of false alarms."""
    return float((scores[coins] > np.quantile(scores[~coins], 1 - NOMINAL["1"])).mean())


def _share(told: Coins) -> Share:
    return Share(int(np.count_nonzero(told)), told.size)


# --- beside the proof -------------------------------------------------------------------------------------------------


def _leak(
    run: FinishedRun, client: int, variant: Variant, how: str, told: Told, figures: dict[str, float], seed: int
) -> Leak:
    figures = {"auc": told.auc, "balanced_accuracy": told.accuracy, **figures}
    for name in NOMINAL:
        members, alarms = told.at(name)
        low, high = members.interval()
        figures |= {f"tpr_at_{name}": members.rate, f"tpr_at_{name}_low": low, f"tpr_at_{name}_high": high}
        figures |= {f"false_alarms_at_{name}": alarms.rate}
    members, alarms = told.at("1")
    proven = _proven(run, client) if variant == "run" else ()
    return Leak(
        "membership", variant, how, members, alarms.rate,
        likelihood=likelihood_under(proven, told.guesses) if proven else None,
        bound=_most(proven, told.most_alarms("1")) if proven else None,
        figures=figures, curve=told.curve(),
        limit=tuple((float(x), _most(proven, float(x))) for x in CURVE) if proven else (),
        seed=seed,
    )  # fmt: skip


def _proven(run: FinishedRun, client: int) -> Points:
    """(epsilon, delta) pairs that hold for one record of this client more or less, whatever the server sees."""
    group = run.group_of(client)
    rows = run.stated(group).values()
    covers = (Adjacency.RECORD_ADD_REMOVE, Adjacency.CLIENT)
    own = [row for row in rows if row.adversary == SERVER and row.adjacency in covers]
    pairs = [pair for row in own for pair in ((row.proven, row.delta), (row.pure, 0.0))]
    pairs += [pair for row in own for pair in proven_curve(group, (SERVER, row.adjacency), 2 * row.proven)]
    return tuple(pair for pair in pairs if math.isfinite(pair[0]))


def _most(proven: Points, false_alarms: float) -> float:
    return min(membership_bound(epsilon, delta, false_alarms) for epsilon, delta in proven)


__all__ = ["QUICK", "THOROUGH", "MembershipInference", "ShadowEffort", "tell", "tell_members"]

"""Audits of private-head: canaries in the whole run, one record in one sum, and what is drawn and summed.

What a record adds to a sum is whole, a function of that record and the plan, and known to whoever knows the record
(`PrivateHead.parts`). So the adversary that silos are protected from takes what all known records add off a sum, and
what is left is noise of a known law, with what the unknown records add or without: the likeliest answer follows from
how far it goes along that. Canaries are examples of the test set under labels drawn at random: they have features in
directions of their own, and gradients as long as any record's.

Where a whole client is protected, one client's records are exchanged for another's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from sordino.audits import training
from sordino.audits.canaries import Attacker, Ear, Flock, play
from sordino.audits.canary_game import Scores, check_canaries, coins
from sordino.audits.findings import AuditOptions, Findings, answers, checked
from sordino.audits.finished_run import FinishedRun, View, channel_subjects, round_randomness, rows_for
from sordino.audits.inspection import Subject
from sordino.audits.silos import judged, views_of
from sordino.audits.statistics import Check, Sample
from sordino.audits.uploads import curve
from sordino.errors import InvalidInput
from sordino.learning import models
from sordino.learning.cohort import ClientData
from sordino.learning.stacked_model import LOOP
from sordino.mechanisms.cases import Case, Sampler
from sordino.mechanisms.cases import Scores as Seen
from sordino.methods.interface import Bench, Cohort, State
from sordino.methods.private_head import NoisySum, PrivateHead
from sordino.privacy.accountant import compose, epsilon
from sordino.privacy.guarantee import Adjacency, Guarantee, PoissonGaussian, Release
from sordino.randomness import Keystream
from sordino.wire.messages import Plan

NAME = "linear head"
VALUES, MOST, FEWEST = 2**26, 2_000, 200  #: values of noise drawn in each world; rounds drawn there
AT_ONCE = 2**21  #: values of reports held at a time
AT_A_TIME = 2**24  #: values of what single records add, computed at a time
FEWEST_SUMS = 12  #: sums of many silos' noise that are drawn
HOLDING = 16  #: one report in so many is of somebody with records; the others are noise alone
FEW = 5  #: records beside which a record is put in and left out
HUGE = 1e6  #: times as large: a record that moves a sum as far as it can

Int64s = NDArray[np.int64]


def audit(run: FinishedRun, asked: AuditOptions) -> Findings:
    """Plant canaries in the silos that lost most, or in the one named, and attack as everybody who sees sums."""
    group = run.group_of(asked.client)
    silos = group.clients if asked.client is None else (asked.client,)
    run.releases(silos[0])  # refuses silos that took no part
    method = method_of(run)
    if method.spec.protects == "client":
        views = [view for view in run.stated(group) if view[1] is Adjacency.CLIENT]
        findings = answers([(exchanged(run, silos[0], view), view) for view in views], asked)
    else:
        check_canaries(asked.canaries)
        members = np.array(silos)[np.arange(asked.canaries) % len(silos)]
        flock = Flock(canaries(run, asked.canaries, asked.seed), members, coins(asked.canaries, asked.seed))
        views = views_of(run, group)
        known = KnownSums(run)
        adversaries = {view[0].parties: HeadAttacker(known, flock, view[0].parties) for view in views}
        played = play(run, flock, adversaries, partial(losses, method, flock.records), asked)
        cases = [(one_record(run, silos[0], flock.records, view), None) for view in views]
        findings = (*judged(run, group, flock, played, NAME, asked), *answers(cases, asked))
    found = Findings(group, findings)
    return checked(found, [*subjects(run, silos[0]), *channel_subjects(run)], asked)


def method_of(run: FinishedRun) -> PrivateHead:
    """The run's method."""
    method = run.federation.method
    assert isinstance(method, PrivateHead)
    return method


def canaries(run: FinishedRun, count: int, seed: int) -> ClientData:
    """Examples of the test set, one after the other, under labels drawn at random; noise in place of what they lack."""
    dataset = run.federation.dataset
    rng = np.random.default_rng([seed, count, 2])
    rows = np.arange(count) % len(dataset.test)
    x = dataset.normalisation.apply(dataset.test.x[rows])
    again = np.arange(count) >= len(dataset.test)
    x[again] += rng.normal(size=x[again].shape).astype(x.dtype) * x.std()
    return ClientData(torch.from_numpy(x), torch.from_numpy(rng.integers(0, len(dataset.classes), count)), object())


def losses(method: PrivateHead, records: ClientData, state: State) -> Scores:
    """The losses of records under a state's model."""
    view, model = method.view(state), method.graded
    assert model is not None
    layout = models.parameter_layout(model)
    named = {**layout.unflatten(torch.from_numpy(view.parameters)), **_tensors(view.buffers or {})}
    with torch.no_grad():
        scores = functional_call(model, named, (torch.from_numpy(method.shown(records.x)),))
        found: Tensor = functional.cross_entropy(scores.double(), records.y, reduction="none")
    return np.asarray(found.numpy())


def _tensors(arrays: Mapping[str, NDArray[np.float32]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(array) for name, array in arrays.items()}


# --- who sees sums ----------------------------------------------------------------------------------------------------


class KnownSums:
    """What all known records add to the sums of a round, for everybody who attacks it; features are made once."""

    def __init__(self, run: FinishedRun) -> None:
        self.method, self.bench = method_of(run), Bench()
        self._population = run.federation.population
        self._round, self._sums = 0, dict[int, Int64s]()

    def of(self, plan: Plan, silo: int) -> Int64s:
        """The exact sum over a silo's own records."""
        if plan.round != self._round:
            self._round, self._sums = plan.round, {}
        if silo not in self._sums:
            real, nothing = self._population.data(silo, torch.device("cpu")), np.zeros(0, np.int64)
            group = self.method.class_of(silo)
            self._sums[silo] = nothing if real is None else self.method.exact(plan, group, real, self.bench)
        return self._sums[silo]


class HeadAttacker(Attacker):
    """Knows the plan, all records but the canaries' coins, and so what is noise and what is not."""

    def __init__(self, known: KnownSums, flock: Flock, honest: int | None) -> None:
        super().__init__(flock, max(part.values for part in known.method.stages), honest)
        self._known = known

    def _take(self, ear: Ear, plan: Plan, bodies: Mapping[int, bytes]) -> None:
        method = self._known.method
        part = method.stage(plan)
        shares, seen = torch.zeros(len(ear.canaries), part.values), np.zeros(part.values, np.int64)
        for silo, body in bodies.items():
            (sent,) = part.mechanism.decode([body], part.values).numbers()
            seen += sent
            if (known := self._known.of(plan, silo)).size:
                seen -= known
            own, planted = self._canaries(ear, silo)
            for first in range(0, len(own), step := max(1, AT_A_TIME // part.values)):
                rows = slice(first, first + step)
                assert planted is not None
                some = ClientData(planted.x[rows], planted.y[rows], (id(ear), silo, first))
                shares[own[rows]] = method.parts(plan, method.class_of(silo), some, self._known.bench).float()
        left = torch.from_numpy(part.mechanism.wrapped(seen)).float()
        unit = part.noise.sigma * math.sqrt(len(bodies))
        ear.hear(shares / unit, left / unit, 1.0)


# --- one record in one sum --------------------------------------------------------------------------------------------


def one_record(run: FinishedRun, silo: int, made_up: ClientData, view: View) -> Case:
    """The first sum of gradients, with one of these records beside a single real one, or without it."""
    method, real = method_of(run), _real(run, silo)
    plan = _gradient_plan(run)
    without = ClientData(real.x[:1], real.y[:1])
    beside = ClientData(torch.cat([without.x, made_up.x[:1]]), torch.cat([without.y, made_up.y[:1]]))
    attack = "a made-up record beside a single real one, or not; how far the sum goes along what it adds"
    return _case(run, silo, view, plan, (without, beside), attack, method.stage(plan))


def exchanged(run: FinishedRun, silo: int, view: View) -> Case:
    """The first sum of gradients, with a client's own records or with others of one other class alone."""
    real = _real(run, silo)
    classes = len(run.federation.dataset.classes)
    others = ClientData(real.x, (torch.full_like(real.y, int(real.y[0])) + 1) % classes)
    own = ClientData(real.x, torch.full_like(real.y, int(real.y[0])))
    attack = "a client's records under one label or under another; how far the sum goes along the difference"
    plan = _gradient_plan(run)
    return _case(run, silo, view, plan, (own, others), attack, method_of(run).stage(plan))


def _real(run: FinishedRun, silo: int) -> ClientData:
    own = run.federation.population.data(silo, torch.device("cpu"))
    if own is None:
        raise InvalidInput(f"client {silo} holds no records, so there is nothing to audit: name another --client")
    return own


def _gradient_plan(run: FinishedRun) -> Plan:
    """The plan of the first round that sums gradients, with nothing learnt yet."""
    method = method_of(run)
    return method.plan(replace(method.init(), round=int(method.budgeting.moments is not None)), run.recipe.name)


def _case(
    run: FinishedRun,
    silo: int,
    view: View,
    plan: Plan,
    worlds: tuple[ClientData, ClientData],
    attack: str,
    part: NoisySum,
) -> Case:
    method, (adversary, adjacency) = method_of(run), view
    guarantee, shares = _stated(method, plan, silo, view), adversary.parties or 1
    proven = epsilon(guarantee.loss, run.federation.delta, adjacency=adjacency)
    return Case(
        mechanism=NAME,
        unit="one sum" if shares > 1 else "upload of one round",
        adjacency=adjacency,
        adversary=adversary,
        claim=None,
        proven=proven,
        delta=run.federation.delta,
        basis=guarantee.basis,
        attack=attack,
        sampler=_sums(method, silo, shares, plan, worlds),
        most_trials=min(MOST, max(FEWEST, VALUES // (shares * part.values))),
        curve=curve(compose([guarantee.loss], adjacency=adjacency), proven) if math.isfinite(proven) else (),
    )


def _stated(method: PrivateHead, plan: Plan, silo: int, view: View) -> Guarantee:
    (release,) = method.releases(plan)[method.class_of(silo)]
    return next(g for g in release.guarantees if (g.adversary, g.adjacency) == view)


def _sums(method: PrivateHead, silo: int, shares: int, plan: Plan, worlds: tuple[ClientData, ClientData]) -> Sampler:
    """Each trial a report of the silo, to which as many others as share the noise add theirs, without records."""
    part, group, bench = method.stage(plan), method.class_of(silo), Bench()
    known = [replace(data, key=number) for number, data in enumerate(worlds)]  # their features are made once
    first, second = (method.exact(plan, group, data, bench) for data in known)
    direction = (second - first).astype(np.float64) / part.noise.sigma

    def sample(world: bool, trials: int, seed: int) -> Seen:
        found, each = [], max(1, AT_ONCE // (shares * part.values))
        for begin in range(0, trials, each):
            n = min(each, trials - begin)
            data = ((known[world],) + (None,) * (shares - 1)) * n
            cohort = Cohort((silo,) * len(data), data, ({},) * len(data), (0,) * len(data))
            numbers = np.arange(begin * shares, (begin + n) * shares)
            draw = lambda own, numbers=numbers: Keystream.simulation(seed, numbers[: len(own)], int(world))  # noqa: E731
            bodies = method.report(plan, cohort, draw, bench).bodies
            sent = part.mechanism.decode(bodies, part.values).numbers().astype(np.int64)
            seen = part.mechanism.wrapped(sent.reshape(n, shares, -1).sum(axis=1) - first)
            found.append(seen @ direction)
        return np.concatenate(found)

    return sample


# --- what is drawn and summed -----------------------------------------------------------------------------------------


def subjects(run: FinishedRun, silo: int) -> list[Subject]:
    """The noise of both sums, of one silo's reports and of as many as share it, with checks of what records add."""
    method, found = method_of(run), []
    for round in (1, 2) if method.budgeting.moments is not None else (1,):
        plan = method.plan(replace(method.init(), round=round - 1), run.recipe.name)
        (release,) = method.releases(plan)[method.class_of(silo)]
        if any(isinstance(g.loss, PoissonGaussian) for g in release.guarantees):
            found += _noises(run, silo, plan, release)
    return found


def _noises(run: FinishedRun, silo: int, plan: Plan, release: Release) -> list[Subject]:
    method = method_of(run)
    part, group = method.stage(plan), method.class_of(silo)
    data = _real(run, silo)
    few, bench = ClientData(data.x[:FEW], data.y[:FEW], key=0), Bench()
    rows = {n: max(FEWEST_SUMS, rows_for(part.values) // n) for n in (1, method.budgeting.shares)}

    def draw(shares: int, seed: int) -> Sample:
        """Reports less what is in them, `shares` of them together."""
        totals, lengths, exact = [], set[int](), method.exact(plan, group, few, bench)
        count, most = rows[shares] * shares, max(1, AT_ONCE // (shares * part.values)) * shares
        for begin in range(0, count, most):
            numbers = range(begin, min(begin + most, count))
            data = tuple(None if number % HOLDING else few for number in numbers)
            cohort = Cohort((silo,) * len(data), data, ({},) * len(data), (FEW,) * len(data))
            bodies = method.report(plan, cohort, partial(_stream, seed, plan.round, numbers), bench).bodies
            sent = part.mechanism.decode(bodies, part.values).numbers().astype(np.int64)
            sent[[own is not None for own in data]] -= exact
            totals.append(part.mechanism.wrapped(sent).reshape(-1, shares, part.values).sum(axis=1))
            lengths.update(map(len, bodies))
        law = training.noise_law(part.noise, part.values, shares)
        return Sample(np.concatenate(totals), law, frozenset(lengths))

    found = []
    for shares in sorted({1, method.budgeting.shares}):
        stated = [
            partial(_holds, part, method.scales[group], g.loss, shares)
            for g in release.guarantees
            if (g.adversary.parties or 1) == shares and isinstance(g.loss, PoissonGaussian)
        ]
        exact = (*stated, partial(neighbours, method, plan, group, few))
        together = f", sums of {shares} silos" if shares > 1 else ""
        found.append(
            Subject(f"{part.what}, noise{together}", (rows[shares], part.values), partial(draw, shares), exact)
        )
    return found


def _stream(seed: int, round: int, numbers: Sequence[int], clients: Sequence[int]) -> Keystream:
    """Every row has a stream of its own, whoever it stands for."""
    return round_randomness(seed, round, numbers)


def _holds(part: NoisySum, scale: float, loss: PoissonGaussian, shares: int) -> Check:
    """Whether the noise and what a record may add are those of what was stated."""
    sensitivity = part.sensitivity * scale
    return training.holds(part.slack(shares).sigma / sensitivity, 1.0, 1, loss)


def neighbours(method: PrivateHead, plan: Plan, group: int, data: ClientData) -> Check:
    """Whether the first record, made far larger, moves a sum by at most its bound, whatever the others are.

    Without it, the others lie elsewhere in memory. Where whole clients are protected: whether the sum of all is within
    that bound.
    """
    part, bench = method.stage(plan), Bench(LOOP)  # as real clients compute
    most = part.sensitivity * method.scales[group] * (1 + 2.0**-50)
    far = ClientData(torch.cat([data.x[:1] * HUGE, data.x[1:]]), data.y)
    everyone = method.exact(plan, group, far, bench)
    moved: Sequence[Int64s] = [everyone]
    if method.spec.protects == "record":
        alone = method.exact(plan, group, ClientData(far.x[:1], far.y[:1]), bench)
        moved = [alone]
        if len(data) > 1:
            others = ClientData(far.x[1:].clone(), far.y[1:])
            moved = [everyone - method.exact(plan, group, others, bench), alone]
    longest = max(math.sqrt(int(np.square(way.astype(object)).sum())) for way in moved)
    where = [f"length {longest:,.1f} of at most {most:,.1f}"] if longest > most else []
    where += ["what a record adds changes with the others"] if len({way.tobytes() for way in moved}) > 1 else []
    sees = "one record that moves a sum further than its bound, or differently beside others, by a single grid step"
    return Check("neighbours", 0.0 if where else 1.0, sees, "; ".join(where))

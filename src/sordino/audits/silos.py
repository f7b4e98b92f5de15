"""Audits of DP-SGD in silos: canaries in the whole run, one record in one round, and what training draws.

The distinguishing test draws a silo's upload of one round with one record more, and without it. The silo holds a single
real record, and in one of the two worlds a made-up one beside it: privacy is promised for every data set, and so small
a one is drawn from ten thousand times in seconds. The whole round is the run's own method: sampling, gradients,
clipping, noise, steps, encoding. It shows mistakes in the noise that a single run cannot show.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from sordino.audits import training
from sordino.audits.canaries import Flock, Played, play_silos
from sordino.audits.canary_game import judge
from sordino.audits.canary_patterns import Gradients
from sordino.audits.findings import AuditOptions, Finding, Findings, answers, checked
from sordino.audits.finished_run import (
    FEWEST_ROWS,
    FinishedRun,
    View,
    channel_subjects,
    promise,
    round_randomness,
    rows_for,
)
from sordino.audits.inspection import Subject
from sordino.audits.uploads import curve
from sordino.fleets.tasks import Population
from sordino.learning.cohort import ClientData
from sordino.learning.stacked_model import Execution
from sordino.mechanisms.cases import Case, Points, Promise, Sampler, Scores
from sordino.methods.hybrid_one import HybridOne
from sordino.methods.interface import Bench, Cohort
from sordino.methods.silo_dp import SiloDp
from sordino.privacy.accountant import compose, epsilon
from sordino.privacy.guarantee import MODEL_READER, SERVER, Adjacency, PoissonGaussian, Release
from sordino.privacy.history import Group, ranges
from sordino.randomness import Keystream

VALUES = 2**25  #: values of noise drawn in each of the two worlds, at most
MOST = 10_000  #: rounds drawn in each world
AT_ONCE = 2**21  #: values of uploads held at a time
WIDTH = 64  #: rounds computed together

SILOS, RECORDS_EACH, TRAINED_ROWS = 20, 32, 2_000  #: silos whose draws are checked, their records, rounds times steps
RECORD = Adjacency.RECORD_ADD_REMOVE


def audit(run: FinishedRun, asked: AuditOptions) -> Findings:
    """Plant canaries in the silos that lost most, or in the one named, and attack as every adversary of DP-SGD."""
    group = run.group_of(asked.client)
    silos = group.clients if asked.client is None else (asked.client,)
    _, releases = run.releases(silos[0])  # refuses silos that took no part
    flock = Flock.of(run, silos, asked.canaries, asked.seed)
    played = play_silos(run, flock, [adversary.parties for adversary, _ in views_of(run, group)], asked)
    one = answers([(one_round(run, silos[0], flock.records), None)], asked)
    found = Findings(group, (*judged(run, group, flock, played, "DP-SGD", asked), *one))
    return checked(found, [*_subjects(run, releases), *channel_subjects(run)], asked)


def views_of(run: FinishedRun, group: Group) -> list[View]:
    """Those who see uploads or sums, and whom a record is protected from."""
    return [view for view in run.stated(group) if view[1] is RECORD and view[0].kind in ("server", "summed")]


def judged(
    run: FinishedRun, group: Group, flock: Flock, played: Played, name: str, asked: AuditOptions
) -> list[Finding]:
    """What a game with canaries shows of everybody who plays it, and of who reads the final model."""
    views = views_of(run, group)
    games = [_game(run, group, view, flock, name) for view in views]
    findings = [
        Finding(judge(game, played.by_uploads[view[0].parties], flock.present, seed=asked.seed), view)
        for game, view in zip(games, views, strict=True)
    ]
    strongest = min(games, key=lambda game: game.proven)
    final = judge(_of_final_model(strongest, flock), played.by_final_model, flock.present, seed=asked.seed)
    return [*findings, Finding(final, None)]


def _game(run: FinishedRun, group: Group, view: View, flock: Flock, name: str) -> Promise:
    row = run.stated(group)[view]
    seen = "all uploads" if view[0] == SERVER else f"all sums, of which {view[0].parties} silos' parts are unknown"
    attack = f"{_planted(flock)}; seen: {seen}, with all models and all other records known"
    rounds = f"{run.rounds} round{'s' if run.rounds > 1 else ''}"
    unit = f"the whole run, {rounds}, {len(flock):,} canaries"
    return promise(row, name, unit, attack, proven_curve(group, view, row.proven))


def _of_final_model(game: Promise, flock: Flock) -> Promise:
    """What holds against those who see uploads or sums holds against whoever sees the final model only."""
    attack = f"{_planted(flock)}; seen: the final model, by each canary's loss"
    return replace(game, adversary=MODEL_READER, claim=None, attack=attack)


def _planted(flock: Flock) -> str:
    silos = np.unique(flock.silos).tolist()
    where = f"silo {silos[0]}" if len(silos) == 1 else f"silos {ranges(silos)}"
    return f"{len(flock):,} made-up records, each in {where} or not by a fair coin"


def proven_curve(group: Group, view: View, proven: float) -> Points:
    """More points of the proven curve, where all releases are DP-SGD."""
    losses = []
    for release, times in group.releases:
        own = [g.loss for g in release.guarantees if (g.adversary, g.adjacency) == view]
        losses += own[:1] * times
    dp_sgd = losses and all(isinstance(loss, PoissonGaussian) for loss in losses)
    return curve(compose(losses, adjacency=RECORD), proven) if dp_sgd and math.isfinite(proven) else ()


# --- one record in one round ------------------------------------------------------------------------------------------


def one_round(run: FinishedRun, silo: int, made_up: ClientData) -> Case:
    """One round of a silo, with the first of these records or without it."""
    method = run.federation.method
    assert isinstance(method, SiloDp)
    _, (release, *_) = run.releases(silo)
    guarantee = next(g for g in release.guarantees if (g.adversary, g.adjacency) == (SERVER, RECORD))
    delta = run.federation.delta
    proven = epsilon(guarantee.loss, delta, adjacency=RECORD)
    drawn = run.federation.upload.values * method.training.steps
    return Case(
        mechanism="DP-SGD",
        unit="upload of one round",
        adjacency=RECORD,
        adversary=SERVER,
        claim=None,
        proven=proven,
        delta=delta,
        basis=guarantee.basis,
        attack="a made-up record beside a single real one, or not; how far the upload goes along its gradient",
        sampler=_rounds(run, silo, made_up),
        most_trials=min(MOST, max(1000, VALUES // drawn)),
        curve=curve(compose([guarantee.loss], adjacency=RECORD), proven) if math.isfinite(proven) else (),
    )


def _rounds(run: FinishedRun, silo: int, made_up: ClientData) -> Sampler:
    """Each trial an upload of the first round."""
    federation, method = run.federation, run.federation.method
    assert isinstance(method, SiloDp)
    population = federation.population
    own = population.data(silo, torch.device("cpu"))
    assert own is not None
    without = ClientData(own.x[:1], own.y[:1])
    beside = ClientData(torch.cat([own.x[:1], made_up.x[:1]]), torch.cat([own.y[:1], made_up.y[:1]]))
    plan = method.plan(method.init(), run.recipe.name)
    start = torch.from_numpy(plan.arrays["parameters"])
    direction = Gradients(federation.model, method.training).each(start, ClientData(made_up.x[:1], made_up.y[:1]))
    upload = method.upload(plan)
    mechanism, skipped = upload.mechanisms[0], 4 if upload.samples else 0

    def sample(world: bool, trials: int, seed: int) -> Scores:
        data, found, bench = beside if world else without, [], Bench(Execution(WIDTH))
        each = max(WIDTH, AT_ONCE // upload.values)
        for first in range(0, trials, each):
            n = min(each, trials - first)
            cohort = Cohort((silo,) * n, (data,) * n, ({},) * n, (len(data),) * n)
            numbers = np.arange(first, first + n)
            draw = lambda own, numbers=numbers: Keystream.simulation(seed, numbers[: len(own)], int(world))  # noqa: E731
            bodies = method.report(plan, cohort, draw, bench).bodies
            seen = mechanism.estimate(mechanism.decode([body[skipped:] for body in bodies], upload.values))
            along = np.asarray(seen, np.float64) @ direction[0].double().numpy()
            found.append(along if isinstance(method, HybridOne) else -along)
        return np.concatenate(found)

    return sample


# --- what training draws ----------------------------------------------------------------------------------------------


def _subjects(run: FinishedRun, releases: Sequence[Release]) -> list[Subject]:
    """The noise, samples and sums of the run's own rounds, in silos that hold a few records."""
    method = run.federation.method
    assert isinstance(method, SiloDp)
    own, d = method.training, run.federation.upload.values
    stated = {(g.adversary.kind, g.adjacency): g for release in releases for g in release.guarantees}
    alone = stated["server", Adjacency.RECORD_ADD_REMOVE]
    if not isinstance(alone.loss, PoissonGaussian):
        return []
    silos = _some_records(run)
    rows = min(rows_for(d), TRAINED_ROWS)
    rounds = -(-rows // (len(silos) * own.steps))
    train, apart = (partial(_round, run, bench) for bench in (Bench(), Bench(Execution(1))))
    found = training.subjects(own, d, alone, silos, rounds, (train, apart))
    if own.shares > 1 and (together := stated.get(("summed", Adjacency.RECORD_ADD_REMOVE))) is not None:
        found.append(training.shared(own, d, own.shares, max(FEWEST_ROWS, rows // own.shares), together))
    return found


def _some_records(run: FinishedRun) -> list[ClientData]:
    """Silos of the auditor's own, with equally many of the run's records each."""
    dataset, count = run.federation.dataset, min(run.clients, SILOS)
    parts = np.arange(count * RECORDS_EACH).reshape(count, -1) % len(dataset.train)
    population = Population(dataset.train, list(parts), dataset.normalisation)
    found = (population.data(silo, torch.device("cpu")) for silo in range(count))
    return [data for data in found if data is not None]


def _round(run: FinishedRun, bench: Bench, silos: Sequence[ClientData], seed: int, round: int) -> None:
    """The run's own round, all of these silos together."""
    method = run.federation.method
    assert isinstance(method, SiloDp)
    plan = method.plan(replace(method.init(), round=round - 1), run.recipe.name)
    n = len(silos)
    cohort = Cohort(tuple(range(n)), tuple(silos), ({},) * n, tuple(map(len, silos)))
    method.report(plan, cohort, partial(round_randomness, seed, round), bench)

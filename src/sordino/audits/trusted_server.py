"""A distinguishing test of central differential privacy: the model that a trusted server hands out after one round.

The server's own sum, clipping, noise and division, with one client's update at the clipping bound in one direction or
in the opposite one, if its own coin lets it take part. The others send no change: theirs would be known, and
subtracted.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sordino.audits import training
from sordino.audits.findings import AuditOptions, Findings, answers, checked
from sordino.audits.finished_run import FinishedRun, promise, round_randomness, rows_for
from sordino.audits.inspection import Subject
from sordino.audits.statistics import Sample
from sordino.audits.uploads import curve
from sordino.mechanisms.cases import Case, Sampler, Scores
from sordino.methods.central_dp import COIN, CentralDp
from sordino.methods.interface import Bench, Cohort
from sordino.privacy.accountant import compose
from sordino.privacy.guarantee import MODEL_READER, Adjacency, Infinite, PoissonGaussian, Release
from sordino.randomness import Keystream, Purpose

VALUES = 2**25  #: values of models drawn from each of the two worlds, at most
AT_ONCE = 2**20  #: values of updates held at a time
MOST = 10_000  #: models drawn from each world: each is a sum of its own
COINS = 400  #: rounds in which coins are tossed
VIEW = MODEL_READER, Adjacency.CLIENT


def audit(run: FinishedRun, asked: AuditOptions) -> Findings:
    """One client's share in one round's model."""
    method = run.recipe.method
    group = run.group_of(asked.client)
    client = group.clients[0] if asked.client is None else asked.client
    round, releases = run.releases(client, asked.round)
    left_out = [f"{g.adjacency} against {g.adversary}: {g.loss.why}"
                for g in releases[0].guarantees if isinstance(g.loss, Infinite)]  # fmt: skip
    if method.clip == "median":
        why = "the noise follows the median of all clients' norms: set method.clip to a number for a model to audit"
        return Findings(group, (), (*left_out, why))
    row = run.row(client, VIEW, releases)
    loss = next(g.loss for g in releases[0].guarantees if g.adversary == MODEL_READER)
    d = run.federation.upload.values
    unit = f"model after round {round}, {d:,} values"
    attack = f"client {client}, round {round}: its update at the clipping bound, one way or the opposite one"
    points = curve(compose([loss], adjacency=Adjacency.CLIENT), row.proven)
    promised = promise(row, "central Gaussian", unit, attack, points)
    case = Case.of(promised, _models(run, client, round, float(method.clip)), min(MOST, max(1000, VALUES // d)))
    found = Findings(group, answers([(case, VIEW)], asked), tuple(left_out))
    return checked(found, _subjects(run, releases), asked)


def _models(run: FinishedRun, client: int, round: int, clip: float) -> Sampler:
    """Each trial a model; the score is how far it went in the update's direction."""
    method = run.federation.method
    assert isinstance(method, CentralDp)
    plan = method.plan(replace(method.init(), round=round - 1), run.recipe.name)
    upload, d = run.federation.upload, run.federation.upload.values

    def sample(world: bool, trials: int, seed: int) -> Scores:
        update = np.eye(1, d, dtype=np.float32) * np.float32(clip if world else -clip)
        (body,) = upload.send([client], update, lambda own: Keystream.simulation(seed, list(own), 0), [1]).bodies
        scores = np.empty(trials)
        for trial, present in enumerate(coins(trials, seed, world)):
            # The server draws its noise by the number of the round: every trial has one of its own, below 2^32.
            tally = method.tally(replace(plan, round=1 + 2 * (seed % 2000 * 10**6 + trial) + world))
            tally.add([client], [body if present else b""])
            scores[trial] = tally.mean()[0]
        return scores

    def coins(trials: int, seed: int, world: bool) -> Iterator[bool]:
        """Whether the client takes part: it sends something, be it that nothing changed, or nothing."""
        each, bench = max(1, AT_ONCE // d), Bench()
        for start in range(0, trials, each):
            n = min(each, trials - start)
            idle = Cohort((client,) * n, (None,) * n, ({},) * n, (0,) * n)
            numbers = np.arange(start, start + n)
            draw = lambda own, numbers=numbers: Keystream.simulation(seed, numbers[: len(own)], int(world))  # noqa: E731
            yield from (bool(report) for report in method.report(plan, idle, draw, bench).bodies)

    return sample


def _subjects(run: FinishedRun, releases: Sequence[Release]) -> list[Subject]:
    """The noise of a trusted server's rounds, and the coins of its clients."""
    method = run.federation.method
    assert isinstance(method, CentralDp)
    own, d = method._noise, run.federation.upload.values
    losses = [g.loss for release in releases for g in release.guarantees if isinstance(g.loss, PoissonGaussian)]
    if own.clip is None:
        return []
    grid, clip, rows = own.grid(d), own.clip, rows_for(d)
    plan = method.plan(method.init(), run.recipe.name)

    def noise(seed: int) -> Sample:
        """Rounds in which nobody takes part: the mean is the noise, and a whole number of steps again."""
        first = seed % 1000 * 10**6
        means = [method.tally(replace(plan, round=1 + first + row)).mean() for row in range(rows)]
        steps = np.rint(np.stack(means) * (own.expected * grid.clip / clip)).astype(np.int64)
        return Sample(steps, training.noise_law(grid.noise, d))

    def coins(seed: int) -> Sample:
        n, bench = run.clients, Bench()
        idle = Cohort(tuple(range(n)), (None,) * n, ({},) * n, (0,) * n)
        rounds = (
            method.report(plan, idle, partial(round_randomness, seed, round), bench) for round in range(1, COINS + 1)
        )
        there = np.array([[bool(body) for body in found.bodies] for found in rounds], np.uint8)
        return Sample(there, training.sample_law(own.rate, n))

    def planted(tamper: training.Tamper) -> Iterator[tuple[int, NDArray[np.bool_]]]:
        idle = Cohort(tuple(range(run.clients)), (None,) * run.clients, ({},) * run.clients, (0,) * run.clients)
        stream = (Purpose.SELECT, COIN)
        found = method.report(plan, idle, lambda own: tamper(round_randomness(1, 1, own), stream), Bench())
        return ((row, np.array([bool(body)])) for row, body in enumerate(found.bodies))

    exact = tuple(
        partial(training.holds, grid.noise.slack().sigma / grid.sensitivity, own.rate, 1, loss) for loss in losses
    )
    found = [Subject("central DP, noise", (rows, d), noise, exact)]
    if own.rate < 1:
        whole = tuple(partial(training.samples_exactly, planted, loss.q) for loss in losses)
        found.append(Subject("central DP, coins", (COINS, run.clients), coins, whole))
    return found

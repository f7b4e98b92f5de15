"""A distinguishing test of central differential privacy: the model that a trusted server hands out after one round.

The server's own sum, clipping, noise and division, with one client's update at the clipping bound in one direction or
in the opposite one, if its own coin lets it take part. The others send no change: theirs would be known, and
subtracted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from sordino.audits import run_draws
from sordino.audits.findings import AuditOptions, Findings, answers, checked
from sordino.audits.finished_run import FinishedRun, figures, once, promise
from sordino.audits.uploads import curve
from sordino.mechanisms.cases import Case, Sampler, Scores
from sordino.methods.central_dp import CentralDp
from sordino.methods.interface import Bench, Cohort
from sordino.privacy.accountant import compose
from sordino.privacy.guarantee import MODEL_READER, Adjacency, Infinite
from sordino.randomness import Keystream

VALUES = 2**25  #: values of models drawn from each of the two worlds, at most
AT_ONCE = 2**20  #: values of updates held at a time
MOST = 10_000  #: models drawn from each world: each is a sum of its own
VIEW = MODEL_READER, Adjacency.CLIENT


def audit(run: FinishedRun, asked: AuditOptions) -> Findings:
    """One client's share in one round's model."""
    method: Any = run.recipe.method
    group = run.group_of(asked.client)
    client = group.clients[0] if asked.client is None else asked.client
    round, releases = run.releases(client, asked.round)
    left_out = [f"{g.adjacency} against {g.adversary}: {g.loss.why}"
                for g in releases[0].guarantees if isinstance(g.loss, Infinite)]  # fmt: skip
    if method.clip == "median":
        why = "the noise follows the median of all clients' norms: set method.clip to a number for a model to audit"
        return Findings(group, (), (*left_out, why))
    stated = run.stated(group)[VIEW]
    delta = run.federation.delta
    row = replace(figures(once(releases), delta)[VIEW], claimed=stated.claimed)
    loss = next(g.loss for g in releases[0].guarantees if g.adversary == MODEL_READER)
    d = run.federation.upload.values
    unit = f"model after round {round}, {d:,} values"
    attack = f"client {client}, round {round}: its update at the clipping bound, one way or the opposite one"
    points = curve(compose([loss], adjacency=Adjacency.CLIENT), row.proven)
    promised = promise(row, "central Gaussian", unit, attack, points)
    case = Case.of(promised, _models(run, client, round, float(method.clip)), min(MOST, max(1000, VALUES // d)))
    found = Findings(group, answers([(case, VIEW)], asked), tuple(left_out))
    return checked(found, run_draws.trusted_server(run, releases), asked)


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

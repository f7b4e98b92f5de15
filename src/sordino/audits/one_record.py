"""A distinguishing test of one round of DP-SGD: a silo's upload with one record more, and without it.

The silo holds a single real record, and in one of the two worlds a made-up one beside it: privacy is promised for every
data set, and so small a one is drawn from ten thousand times in seconds. The whole round is the run's own method:
sampling, gradients, clipping, noise, steps, encoding. It shows mistakes in the noise that a single run cannot show.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from sordino.audits.canary_patterns import Gradients
from sordino.audits.finished_run import FinishedRun
from sordino.audits.uploads import curve
from sordino.learning.cohort import ClientData
from sordino.learning.stacked_model import Execution
from sordino.mechanisms.cases import Case, Sampler, Scores
from sordino.methods.hybrid_one import HybridOne
from sordino.methods.interface import Bench, Cohort
from sordino.methods.silo_dp import SiloDp
from sordino.privacy.accountant import compose, epsilon
from sordino.privacy.guarantee import SERVER, Adjacency
from sordino.randomness import Keystream

VALUES = 2**25  #: values of noise drawn in each of the two worlds, at most
MOST = 10_000  #: rounds drawn in each world
AT_ONCE = 2**21  #: values of uploads held at a time
WIDTH = 64  #: rounds computed together
ADJACENCY = Adjacency.RECORD_ADD_REMOVE


def one_round(run: FinishedRun, silo: int, made_up: ClientData) -> Case:
    """One round of a silo, with the first of these records or without it."""
    method = run.federation.method
    assert isinstance(method, SiloDp)
    _, (release, *_) = run.releases(silo)
    guarantee = next(g for g in release.guarantees if (g.adversary, g.adjacency) == (SERVER, ADJACENCY))
    delta = run.federation.delta
    proven = epsilon(guarantee.loss, delta, adjacency=ADJACENCY)
    drawn = run.federation.upload.values * method.training.steps
    return Case(
        mechanism="DP-SGD",
        unit="upload of one round",
        adjacency=ADJACENCY,
        adversary=SERVER,
        claim=None,
        proven=proven,
        delta=delta,
        basis=guarantee.basis,
        attack="a made-up record beside a single real one, or not; how far the upload goes along its gradient",
        sampler=_rounds(run, silo, made_up),
        most_trials=min(MOST, max(1000, VALUES // drawn)),
        curve=curve(compose([guarantee.loss], adjacency=ADJACENCY), proven) if math.isfinite(proven) else (),
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

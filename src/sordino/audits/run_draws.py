"""What a run draws, as subjects of `sordino.audits`: every coordinate, client and round of it, through its own code.

The draws are addressed as in the run: one row for every client and round. The law is that of the run's mechanism, and
the law in turn is held against the guarantees in the run's own history.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.audits import channels, training
from sordino.audits.finished_run import FinishedRun
from sordino.audits.inspection import Enumerated, Subject
from sordino.audits.mechanisms import exact_law, keeps
from sordino.audits.statistics import Sample
from sordino.errors import InvalidInput
from sordino.fleets.simulated import Population
from sordino.learning.cohort import ClientData
from sordino.learning.stacked_model import Execution
from sordino.mechanisms import BitString, Mechanism, PrivUnitG, Sphere
from sordino.mechanisms.output import BitOutput
from sordino.methods.central_dp import CentralDp
from sordino.methods.chamikara_ldpfl import Ldpfl
from sordino.methods.interface import Bench, Cohort
from sordino.methods.randomised_records import RECORDS, JointRecords, RandomisedRecords
from sordino.methods.silo_dp import SiloDp
from sordino.methods.upload import Upload
from sordino.privacy.guarantee import SERVER, Adjacency, Guarantee, Infinite, PoissonGaussian, Release
from sordino.randomness import Keystream

VALUES = 2**21  #: values drawn, at most
ROWS = 6_000  #: clients times rounds, at most
FEWEST = 100
SILOS, RECORDS_EACH, TRAINED_ROWS = 20, 32, 2_000  #: of private training: silos, their records, rounds times steps
COINS = 400  #: rounds in which coins are tossed
JOINT_ROWS = 2_000  #: records whose features and label are randomised together


def rows_for(values: int) -> int:
    """How many draws of so many values are made."""
    return max(FEWEST, min(ROWS, VALUES // values))


def channel(run: FinishedRun) -> list[Subject]:
    """The channel that the run's reports took."""
    match getattr(getattr(run.recipe.method, "channel", None), "kind", "direct"):
        case "summed":
            return channels.secure_sum()
        case "shuffled" | "shuffler":
            return channels.shuffler()
    return []


# --- uploads ----------------------------------------------------------------------------------------------------------


def upload(run: FinishedRun, client: int, round: int, releases: Sequence[Release]) -> list[Subject]:
    """The upload of one client and of all who are as strong; none where no law of its mechanism is known."""
    method = run.federation.method
    own = method.upload(method.plan(replace(method.init(), round=round - 1), run.recipe.name))
    group = int(own.class_of[client])
    mechanism, d = own.mechanisms[group], own.values
    try:
        exact_law(mechanism, mechanism.domain.probe(d))
    except InvalidInput:
        return []
    alike = np.flatnonzero(own.class_of == group)
    shape = rows_for(d), d
    enumerated = _keeps(mechanism, d, [g for release in releases for g in release.guarantees], run.federation.delta)
    name = f"{mechanism.name}: uploads of clients as strong as client {client}"
    return [Subject(name, shape, partial(_uploads, own, alike, mechanism, shape), enumerated)]


def _keeps(mechanism: Mechanism, values: int, stated: Sequence[Guarantee], delta: float) -> tuple[Enumerated, ...]:
    """The law against what the run stated of one value, or of a whole vector where values are no unit of their own."""
    pair = mechanism.domain.neighbours(values)
    for adjacency in (Adjacency.COORDINATE, Adjacency.CLIENT):
        for guarantee in stated:
            if (guarantee.adversary, guarantee.adjacency) == (SERVER, adjacency) and not is_infinite(guarantee):
                return (partial(keeps, mechanism, guarantee, pair, delta),)
    return ()


def is_infinite(guarantee: Guarantee) -> bool:
    """Whether nothing is proven."""
    return isinstance(guarantee.loss, Infinite)


def _uploads(own: Upload, clients: NDArray[np.intp], mechanism: Mechanism, shape: tuple[int, int], seed: int) -> Sample:
    """One round after the other, of all clients of a class, until there are rows enough; half of them in each half."""
    n, d = shape
    x = mechanism.domain.probe(d)
    found: list[NDArray[Any]] = []
    lengths: set[int] = set()
    left, round, skipped = n, 0, 4 if own.samples else 0
    while left:
        round += 1
        who = clients[:left].tolist()
        left -= len(who)
        draw = partial(_randomness, seed, round)
        bodies = own.send(who, np.broadcast_to(x, (len(who), d)), draw, [1] * len(who)).bodies
        lengths |= {len(body) for body in bodies}
        found.append(mechanism.decode([body[skipped:] for body in bodies], d).numbers())
    return Sample(np.concatenate(found), exact_law(mechanism, x), frozenset(lengths), (len(clients),))


def _randomness(seed: int, round: int, clients: Sequence[int]) -> Keystream:
    """As a simulated fleet addresses it."""
    return Keystream.simulation(seed, list(clients), round)


# --- randomised records -----------------------------------------------------------------------------------------------


def records(run: FinishedRun, client: int) -> list[Subject]:
    """Randomised records of one client, all with the same features and label."""
    own = run.federation.method
    assert isinstance(own, Ldpfl)
    kept = own.records
    if isinstance(kept, JointRecords):
        return [_joint(kept, client)]
    method: Any = run.recipe.method
    bits = kept.shape[0]
    mechanism = method.mechanism.randomizer(kept.strengths[client], BitString(bits))
    if mechanism is None:
        return []
    shape = rows_for(bits), bits
    features = np.zeros((shape[0], bits // (method.encoding.whole + method.encoding.fraction + 1)), np.float32)

    def draw(seed: int) -> Sample:
        packed = _randomised(kept, features, client, seed)
        return Sample(BitOutput(packed, bits).bits(), mechanism.law(np.zeros(bits, np.uint8)))

    return [Subject(f"{mechanism.name}: randomised records of client {client}", shape, draw)]


def _joint(kept: JointRecords, client: int) -> Subject:
    features = (np.arange(kept.shape[0]) % 2).astype(np.float32)[None]
    direction = kept.directions(features, np.zeros(1, np.int64))[0]
    epsilon = kept.strengths[client]
    assert epsilon is not None
    mechanism = PrivUnitG(epsilon, Sphere(float(np.linalg.norm(direction))))
    shape = min(rows_for(direction.size), JOINT_ROWS), direction.size

    def draw(seed: int) -> Sample:
        made = _randomised(kept, np.repeat(features, shape[0], axis=0), client, seed)
        return Sample(np.rint(made / mechanism.step()).astype(np.int64), mechanism.law(direction))

    return Subject(f"record-privunit: randomised records of client {client}", shape, draw)


def _randomised(kept: RandomisedRecords, features: NDArray[np.float32], client: int, seed: int) -> NDArray[Any]:
    randomness = Keystream.simulation(seed, [client], 0)
    return np.asarray(kept.randomise(features, np.zeros(len(features), np.int64), client, randomness)[RECORDS])


# --- private training -------------------------------------------------------------------------------------------------


def private_training(run: FinishedRun, releases: Sequence[Release]) -> list[Subject]:
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
    found = training.subjects("DP-SGD", own, d, alone, silos, rounds, train, apart)
    if own.shares > 1 and (together := stated.get(("summed", Adjacency.RECORD_ADD_REMOVE))) is not None:
        found.append(training.shared(own, d, own.shares, max(FEWEST, rows // own.shares), together))
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
    method.report(plan, cohort, partial(_randomness, seed, round), bench)


# --- a trusted server -------------------------------------------------------------------------------------------------


def trusted_server(run: FinishedRun, releases: Sequence[Release]) -> list[Subject]:
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
        rounds = (method.report(plan, idle, partial(_randomness, seed, round), bench) for round in range(1, COINS + 1))
        there = np.array([[bool(body) for body in found.bodies] for found in rounds], np.uint8)
        return Sample(there, training.sample_law(own.rate, n))

    exact = tuple(partial(training.holds, grid, own.rate, 1, loss) for loss in losses)
    found = [Subject("central DP, noise", (rows, d), noise, exact)]
    if own.rate < 1:
        found.append(Subject("central DP, coins", (COINS, run.clients), coins))
    return found

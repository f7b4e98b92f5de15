"""Distinguishing tests of one upload: what a client sends with one vector, against what it sends with another.

All draws go through the run's own `Upload`: randomised, encoded, and decoded as the server does. What is audited is one
round's upload. Whoever sees the run sees that and more, so a lower bound for the upload is one for the run.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from sordino.audits.findings import AuditOptions, Findings, answers, checked
from sordino.audits.finished_run import (
    FinishedRun,
    View,
    channel_subjects,
    figures,
    once,
    promise,
    round_randomness,
    rows_for,
)
from sordino.audits.inspection import Enumerated, Subject
from sordino.audits.mechanisms import exact_law, keeps
from sordino.audits.server_view import handed_in
from sordino.audits.statistics import Sample
from sordino.mechanisms import Mechanism
from sordino.mechanisms.cases import Case, Points, Sampler, Scores
from sordino.mechanisms.output import BitOutput, Output
from sordino.methods.interface import Bench, Cohort, State
from sordino.methods.upload import Draw, Upload
from sordino.privacy.accountant import Composed, compose
from sordino.privacy.guarantee import SERVER, Adjacency, GaussianLoss, Guarantee, Infinite, RandomizedBit, Release
from sordino.randomness import Keystream

Vector = NDArray[np.float32]

AT_ONCE = 2**21  #: values randomised at a time
VALUES = 2**26  #: values drawn from each of the two worlds, at most: a few seconds
FEWEST = 1000  #: trials that are drawn however many values each of them has
POINTS = 8  #: of a proven curve


# --- drawing ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class AuditedClient:
    """One client of the run, sending one vector again and again, each time with fresh randomness."""

    upload: Upload
    client: int
    stream: int  #: tells the draws of this case from those of others

    @property
    def mechanism(self) -> Mechanism:
        """The client's own."""
        return self.upload.mechanisms[int(self.upload.class_of[self.client])]

    def outputs(self, vectors: Vector, trials: int, seed: int, world: bool) -> Iterator[Output]:
        """What the server decodes, for `trials` uploads of `vectors [k, d]`: k rows for each trial."""
        k, d = vectors.shape
        each = max(1, AT_ONCE // (k * d))
        for start in range(0, trials, each):
            n = min(each, trials - start)
            draw = _fresh(seed, start * k, 2 * self.stream + world)
            sent = self.upload.send([self.client] * (n * k), np.tile(vectors, (n, 1)), draw, [1] * (n * k))
            skipped = 4 if self.upload.samples else 0  # the sample count, which travels in the clear before the values
            yield self.mechanism.decode([body[skipped:] for body in sent.bodies], d)


def _fresh(seed: int, start: int, stream: int) -> Draw:
    """Randomness for one row after another, whoever they are said to be: every trial has a stream of its own."""
    return lambda clients: Keystream.simulation(seed, np.arange(start, start + len(clients)), stream)


def whole(sender: AuditedClient, first: Vector, second: Vector) -> Sampler:
    """Each trial a whole upload."""
    score = sender.mechanism.likelihood_ratio(first, second)

    def sample(world: bool, trials: int, seed: int) -> Scores:
        found = sender.outputs((first if world else second)[None], trials, seed, world)
        return np.concatenate([score(output).sum(axis=1) for output in found])

    return sample


def single_values(sender: AuditedClient, first: Vector, second: Vector) -> Sampler:
    """Each value of an upload a trial of its own: they are randomised independently, and alike."""
    score = sender.mechanism.likelihood_ratio(first, second)

    def sample(world: bool, trials: int, seed: int) -> Scores:
        uploads = -(-trials // len(first))
        found = sender.outputs((first if world else second)[None], uploads, seed, world)
        return np.concatenate([score(output).reshape(-1) for output in found])[:trials]

    return sample


@dataclass(frozen=True, eq=False)
class Crowd:
    """The client's bits among those of others: all that is seen of each value is how many ones there are.

    The others hold the same vector as the client does in the second world: of all that they could hold, and the
    adversary knows it, this hides the client least.
    """

    sender: AuditedClient
    size: int
    first: Vector
    second: Vector

    def counts(self, trials: int, seed: int, world: bool) -> Iterator[NDArray[np.int64]]:
        """`[n, d]` numbers of ones."""
        for bits in self.reports(trials, seed, world):
            yield bits.sum(axis=1, dtype=np.int64)

    def reports(self, trials: int, seed: int, world: bool) -> Iterator[NDArray[np.uint8]]:
        """`[n, size, d]` bits."""
        own = self.first if world else self.second
        for output in self.sender.outputs(np.stack([own, *[self.second] * (self.size - 1)]), trials, seed, world):
            assert isinstance(output, BitOutput)
            yield output.bits().reshape(-1, self.size, output.values)

    def table(self) -> Scores:
        """The log-likelihood ratio of every number of ones; all values have the same."""
        laws = (exact_law(self.sender.mechanism, vector) for vector in (self.first, self.second))
        p, q = (law.interval(np.ones((1, len(self.first))))[1][0, 0] for law in laws)
        k = np.arange(self.size + 1)
        others = binom.logpmf(k, self.size - 1, q), binom.logpmf(k - 1, self.size - 1, q)
        worlds = [np.logaddexp(np.log1p(-own) + others[0], np.log(own) + others[1]) for own in (p, q)]
        return np.asarray(worlds[0] - worlds[1])

    def uploads(self, world: bool, trials: int, seed: int) -> Scores:
        """Each trial all counts of a round."""
        table = self.table()
        return np.concatenate([table[counts].sum(axis=1) for counts in self.counts(trials, seed, world)])

    def single_values(self, world: bool, trials: int, seed: int) -> Scores:
        """Each count a trial of its own."""
        table = self.table()
        found = self.counts(-(-trials // len(self.first)), seed, world)
        return np.concatenate([table[counts].reshape(-1) for counts in found])[:trials]

    def models(self, world: bool, trials: int, seed: int) -> Scores:
        """Each trial all reports of a round, whole but without names: the one with most ones speaks."""
        found = self.reports(trials, seed, world)
        return np.concatenate([bits.sum(axis=2, dtype=np.int64).max(axis=1) for bits in found]).astype(np.float64)


# --- what a client would send of its own data -------------------------------------------------------------------------


def own_vectors(run: FinishedRun, state: State, clients: Sequence[int], seed: int) -> Vector:
    """What these clients would hand to the mechanism in the round after `state`: trained on their own records."""
    federation, method = run.federation, run.federation.method
    plan = method.plan(state, run.recipe.name)
    population = federation.population
    bench = Bench()
    cohort = Cohort(
        tuple(clients),
        tuple(population.data(client, bench.device) for client in clients),
        ({},) * len(clients),
        tuple(population.size(client) for client in clients),
    )
    return handed_in(method, plan, cohort, lambda own: Keystream.simulation(seed, list(own), plan.round), bench)[0]


# --- cases ------------------------------------------------------------------------------------------------------------


def audit(run: FinishedRun, asked: AuditOptions) -> Findings:
    """All that can be told about one client's upload in one round of a run."""
    group = run.group_of(asked.client)
    client = group.clients[0] if asked.client is None else asked.client
    round, releases = run.releases(client, asked.round)
    questions, left_out = _Questions(run, client, round, releases, asked.seed).all()
    found = Findings(group, answers(questions, asked), left_out)
    return checked(found, [*_subjects(run, client, round, releases[:1]), *channel_subjects(run)], asked)


class _Questions:
    """What to ask of one upload: for every onlooker and change that its guarantees speak of."""

    def __init__(self, run: FinishedRun, client: int, round: int, releases: Sequence[Release], seed: int) -> None:
        method = run.federation.method
        self._run, self._client, self._round, self._seed = run, client, round, seed
        self._state = replace(method.init(), round=round - 1)
        self._upload = method.upload(method.plan(self._state, run.recipe.name))
        self._sender = AuditedClient(self._upload, client, 0)
        self._release, *others = releases  # what the mechanism made comes first
        self._ends = self._sender.mechanism.worst_pair(self._upload.values)
        self._questions: list[tuple[Case, View | None]] = []
        self._left_out = [_left_out(release) for release in others]

    def all(self) -> tuple[list[tuple[Case, View | None]], tuple[str, ...]]:
        for view in figures(once([self._release]), self._run.federation.delta):
            adversary, adjacency = view
            if adversary == SERVER:
                self._direct(view)
            elif self._is_bits and adversary.parties is not None:
                self._crowd(view, adversary.parties)
            else:
                self._left_out.append(f"{adjacency} against {adversary}: what is proven is the upload's own guarantee")
        self._neighbour()
        return self._questions, tuple(self._left_out)

    @property
    def _is_bits(self) -> bool:
        bits = isinstance(self._release.guarantees[0].loss, RandomizedBit) and not self._upload.samples
        return bits and self._sender.mechanism.law(self._ends[0]) is not None

    def _direct(self, view: View) -> None:
        if view[1] is not Adjacency.COORDINATE:
            self._ask(view, self._unit, self._apart, whole(self._numbered(), *self._ends), self._upload.values)
        elif self._sender.mechanism.domain.by_value:
            self._ask(view, "one value", ENDS, single_values(self._numbered(), *self._ends), 1)

    def _crowd(self, view: View, parties: int) -> None:
        adversary, adjacency = view
        mixed = any(g.adversary == adversary and isinstance(g.loss, RandomizedBit) for g in self._release.guarantees)
        crowd = Crowd(self._numbered(), parties, *self._ends)
        among = f"among {parties} clients, the others at one end"
        if not mixed:
            attack = f"{self._apart}; {among}, whole models mixed"
            self._ask(view, self._unit, attack, crowd.models, self._upload.values * parties)
        elif adjacency is Adjacency.COORDINATE:
            self._ask(view, "one value", f"{ENDS}; the number of ones {among}", crowd.single_values, parties)
        else:
            attack = f"{self._apart}; the numbers of ones {among}"
            self._ask(view, self._unit, attack, crowd.uploads, self._upload.values * parties)

    def _neighbour(self) -> None:
        """The client's own data against another's: no worst case, but what really was there to be told."""
        sizes = [len(part) for part in self._run.federation.parts]
        others = [k for k in range(len(sizes)) if sizes[k] and k != self._client]
        if not others or not sizes[self._client]:
            return
        other = min(others, key=lambda k: (k < self._client, k))
        pair = own_vectors(self._run, self._state, [self._client, other], self._seed)
        attack = f"its own records against those of client {other}, both trained on from the initial model"
        sampler, view = whole(self._numbered(), *pair), (SERVER, Adjacency.CLIENT)
        self._ask(view, self._unit, attack, sampler, self._upload.values, beside=True)

    @property
    def _unit(self) -> str:
        return f"upload of round {self._round}, {self._upload.values:,} values"

    @property
    def _apart(self) -> str:
        by_value = self._sender.mechanism.domain.by_value
        return "every value at one end of its range or at the other" if by_value else "two opposite ends of the domain"

    def _numbered(self) -> AuditedClient:
        return replace(self._sender, stream=len(self._questions))

    def _ask(self, view: View, unit: str, attack: str, sampler: Sampler, values: int, *, beside: bool = False) -> None:
        """Add a case. `values` are drawn for each trial; `beside` the worst case it is no evidence."""
        row = self._run.row(self._client, view, [self._release])
        where = f"client {self._client}, round {self._round}: {attack}"
        curve = _curve(self._release.guarantees, view, row.proven)
        promised = promise(row, self._sender.mechanism.name, unit, where, curve)
        case = Case.of(promised, sampler, max(FEWEST, VALUES // values))
        self._questions.append((case, None if beside else view))


ENDS = "the two ends of its range"


def _curve(guarantees: Sequence[Guarantee], view: View, proven: float) -> Points:
    """More points of the proven curve of Gaussian noise; a pure guarantee has one point only."""
    losses = [g.loss for g in guarantees if (g.adversary, g.adjacency) == view and isinstance(g.loss, GaussianLoss)]
    return curve(compose(losses[:1], adjacency=view[1]), proven) if losses and math.isfinite(proven) else ()


def curve(composed: Composed, epsilon: float) -> Points:
    """(epsilon, delta) pairs from 0 up to an epsilon that is known."""
    return tuple((epsilon * k / POINTS, composed.delta(epsilon * k / POINTS)) for k in range(POINTS))


def _left_out(release: Release) -> str:
    why = next((g.loss.why for g in release.guarantees if isinstance(g.loss, Infinite)), None)
    return f"{release.what}: {why or 'a release of its own, beside the upload'}"


# --- what the run draws -----------------------------------------------------------------------------------------------


def _subjects(run: FinishedRun, client: int, round: int, releases: Sequence[Release]) -> list[Subject]:
    """The upload of one client and of all who are as strong; none where no law of its mechanism is known."""
    method = run.federation.method
    own = method.upload(method.plan(replace(method.init(), round=round - 1), run.recipe.name))
    group = int(own.class_of[client])
    mechanism, d = own.mechanisms[group], own.values
    if mechanism.law(mechanism.domain.probe(d)) is None:
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
            if (guarantee.adversary, guarantee.adjacency) == (SERVER, adjacency) and not isinstance(
                guarantee.loss, Infinite
            ):
                return (partial(keeps, mechanism, guarantee, pair, delta),)
    return ()


def _uploads(own: Upload, clients: NDArray[np.intp], mechanism: Mechanism, shape: tuple[int, int], seed: int) -> Sample:
    """One round after the other, of all clients of a class, until there are rows enough; half of them in each half."""
    n, d = shape
    x = mechanism.domain.probe(d)
    found, lengths = [], set[int]()
    left, round, skipped = n, 0, 4 if own.samples else 0
    while left:
        round += 1
        who = clients[:left].tolist()
        left -= len(who)
        draw = partial(round_randomness, seed, round)
        bodies = own.send(who, np.broadcast_to(x, (len(who), d)), draw, [1] * len(who)).bodies
        lengths |= {len(body) for body in bodies}
        found.append(mechanism.decode([body[skipped:] for body in bodies], d).numbers())
    return Sample(np.concatenate(found), exact_law(mechanism, x), frozenset(lengths), (len(clients),))

"""One-run audits of DP-SGD in silos: the run's recipe once more, with canaries among some silos' records.

A canary is a record that an adversary made up: a pattern that is orthogonal to those of the others, of the length of
real records, with a label. Its clipped gradient points in a direction nearly of its own. Each is put in or left out by
a fair coin (add/remove adjacency); the statistics are those of `sordino.audits.canary_game`.

The server is the adversary that silos are protected from: it has sent out the models w and sees every upload, and it
knows all records but the coins. So it knows for every canary the clipped gradient g(w), and the sum of the gradients of
the others. Of an upload of S steps with sampling rate q and noise multiplier sigma it takes

    y = -upload * expected batch / (learning rate * clip)
      ~ q S sum of g(w) over real records  +  q S sum_i coin_i g_i(w)  +  sqrt(S) sigma N(0, 1)

for a linear model of the coins, over all rounds, and gives each coin the mean that a Gaussian prior of the coins' own
mean and variance leads to: that is the score. Where S > 1 the gradients are taken on the straight way from the model
that was sent to the one that came back. A reader of the final model, the second adversary, has only the canaries'
losses.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.audits.canary_game import Coins, Scores, check_canaries, coins
from sordino.audits.canary_patterns import Gradients, made_up
from sordino.audits.findings import AuditOptions
from sordino.audits.finished_run import FinishedRun
from sordino.channels.direct import Direct
from sordino.channels.interface import Channel, Exchange
from sordino.errors import InvalidInput
from sordino.fleets.simulated import SimulatedFleet
from sordino.fleets.tasks import Population, Work
from sordino.fleets.workers import local
from sordino.learning.cohort import ClientData
from sordino.learning.optimizers import SGD
from sordino.learning.private_sgd import PrivateTraining
from sordino.methods.hybrid_one import HybridOne
from sordino.methods.interface import Bench, State
from sordino.methods.silo_dp import SiloDp
from sordino.runs.coordinator import Coordinator, NobodyLeft, Rules
from sordino.runs.execution import workers_for
from sordino.wire.messages import Plan

Float32s = NDArray[np.float32]

POINTS_ON_THE_WAY = 3  #: models at which gradients are taken, where a round has more steps than that
MOST_VALUES = 2**28  #: gradients of a silo's canaries that are held at a time: 1 GiB


# --- who is in --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Flock:
    """All canaries: as records, with the silo that each may be in, and whether it is."""

    records: ClientData
    silos: NDArray[np.int64]
    present: Coins

    @classmethod
    def of(cls, run: FinishedRun, silos: Sequence[int], count: int, seed: int) -> Flock:
        """As many for each of these silos, or one more."""
        check_canaries(count)
        run.require_smooth_records(
            "Audit what adds the noise, which sees no tokens: sordino audit dp-sgd. Or attack the run with real "
            "records: sordino attack RUN --what membership"
        )
        return cls(
            made_up(run.federation, count, seed), np.array(silos)[np.arange(count) % len(silos)], coins(count, seed)
        )

    def __len__(self) -> int:
        return len(self.silos)

    def of_silo(self, silo: int) -> NDArray[np.int64]:
        """The numbers of a silo's canaries."""
        return np.flatnonzero(self.silos == silo)

    def planted(self) -> dict[int, ClientData]:
        """The canaries that are in, by silo."""
        found = {}
        for silo in np.unique(self.silos).tolist():
            own = self.of_silo(silo)
            if (there := own[self.present[own]]).size:
                found[silo] = ClientData(self.records.x[there], self.records.y[there])
        return found


@dataclass(frozen=True, eq=False)
class PlantedPopulation(Population):
    """The run's clients, some with canaries behind their own records."""

    planted: Mapping[int, ClientData] = field(default_factory=dict)

    def size(self, client: int) -> int:
        more = self.planted.get(client)
        return super().size(client) + (0 if more is None else len(more))

    def data(self, client: int, device: torch.device) -> ClientData | None:
        own, more = super().data(client, device), self.planted.get(client)
        if own is None or more is None:
            return own or more
        return ClientData(torch.cat([own.x, more.x.to(device)]), torch.cat([own.y, more.y.to(device)]), own.key)


# --- what is seen -----------------------------------------------------------------------------------------------------


class ListeningChannel(Channel):
    """The direct channel, with somebody listening."""

    def __init__(self) -> None:
        self.uploads: dict[int, bytes] = {}  #: of the last round

    def collect(self, exchange: Exchange, plan: bytes, clients: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """The reports, which are kept."""
        self.uploads = {}
        for client, body in Direct().collect(exchange, plan, clients):
            self.uploads[client] = body
            yield client, body


class Ear:
    """What is known of the coins of some canaries: their means under a linear model, from all that was heard."""

    def __init__(self, canaries: NDArray[np.int64]) -> None:
        self.canaries = canaries
        self._precision = 4.0 * np.eye(len(canaries))  # a fair coin has the mean 1/2 and the variance 1/4
        self._evidence = np.full(len(canaries), 2.0)

    def hear(self, shares: Tensor, seen: Tensor, variance: float) -> None:
        """`seen [d]` is the sum of the rows of `shares [m, d]` of the canaries that are in, with so much noise."""
        self._precision += (shares @ shares.T).double().numpy() / variance
        self._evidence += (shares @ seen).double().numpy() / variance

    def scores(self) -> Scores:
        """The coins' means."""
        return np.asarray(np.linalg.solve(self._precision, self._evidence))


class Attacker(ABC):
    """Whoever has sent the models and sees uploads, or sums of `honest` of them."""

    def __init__(self, flock: Flock, size: int, honest: int | None) -> None:
        self._flock, self._size, self._honest = flock, size, honest
        self._silos = np.unique(flock.silos).tolist()
        own = [flock.of_silo(silo) for silo in self._silos] if honest is None else [np.arange(len(flock))]
        if max(map(len, own)) * size > MOST_VALUES:
            raise InvalidInput(
                f"what {max(map(len, own)):,} canaries add to {size:,} values does not fit into memory: take "
                f"{MOST_VALUES // size:,} --canaries or fewer for each silo"
            )
        self._ears = [Ear(canaries) for canaries in own]

    def hear(self, plan: Plan, bodies: Mapping[int, bytes]) -> None:
        """One round's uploads."""
        if self._honest is None:
            for ear, silo in zip(self._ears, self._silos, strict=True):
                if silo in bodies:
                    self._take(ear, plan, {silo: bodies[silo]})
            return
        # As many honest silos as the guarantee counts on, those with canaries first; the rest give theirs away.
        order = sorted(bodies, key=lambda silo: (silo not in self._silos, silo))
        visible = {silo: bodies[silo] for silo in order[: self._honest]}
        if visible.keys() & set(self._silos):
            self._take(self._ears[0], plan, visible)

    @abstractmethod
    def _take(self, ear: Ear, plan: Plan, bodies: Mapping[int, bytes]) -> None:
        """The sum of these silos' uploads, in which some of the ear's canaries may be."""

    def _canaries(self, ear: Ear, silo: int) -> tuple[Tensor, ClientData | None]:
        """Which of the ear's canaries may be in a silo, and their records."""
        own = torch.from_numpy(np.flatnonzero(self._flock.silos[ear.canaries] == silo))
        numbers = torch.from_numpy(ear.canaries)[own]
        return own, ClientData(self._flock.records.x[numbers], self._flock.records.y[numbers]) if len(own) else None

    def scores(self) -> Scores:
        """The scores of all canaries."""
        found = np.empty(len(self._flock))
        for ear in self._ears:
            found[ear.canaries] = ear.scores()
        return found


class SiloAttacker(Attacker):
    """Who attacks DP-SGD."""

    def __init__(self, run: FinishedRun, flock: Flock, gradients: Gradients, honest: int | None) -> None:
        super().__init__(flock, gradients.size, honest)
        method = run.federation.method
        assert isinstance(method, SiloDp)
        self._method, self._gradients = method, gradients
        self._training: PrivateTraining = method.training
        self._sums_are_sent = isinstance(method, HybridOne)
        dataset = run.federation.dataset
        self._population = Population(dataset.train, run.federation.parts, dataset.normalisation)

    def _take(self, ear: Ear, plan: Plan, bodies: Mapping[int, bytes]) -> None:
        start, training = torch.from_numpy(plan.arrays["parameters"]), self._training
        expected = training.sampling_rate * training.steps
        shares, seen = torch.zeros(len(ear.canaries), self._size), torch.zeros(self._size)
        for silo, body in bodies.items():
            way = torch.from_numpy(_decoded(self._method, plan, body))
            seen += self._sums(way, plan.round)
            own, canaries = self._canaries(ear, silo)
            real = self._population.data(silo, torch.device("cpu"))
            points = min(training.steps, POINTS_ON_THE_WAY)
            for k in range(points):
                model = start + way * (k / points)
                if real is not None:
                    seen -= expected / points * self._gradients.sum(model, real)
                if canaries is not None:
                    shares[own] += expected / points * self._gradients.each(model, canaries)
        variance = len(bodies) * training.steps * training.noise_multiplier**2 / training.shares
        ear.hear(shares, seen, variance)

    def _sums(self, upload: Tensor, round: int) -> Tensor:
        """The noisy sums of clipped gradients behind an upload, in units of the clipping bound.

        For other optimisers than plain descent the noise tells the scale: it is all but all there is in an upload.
        """
        training, optimizer = self._training, self._training.optimizer
        if self._sums_are_sent:
            return upload * (training.expected_batch / training.clip)
        if isinstance(optimizer, SGD) and not optimizer.momentum:
            first = (round - 1) * training.steps
            rates = [optimizer.lr / (1 + optimizer.decay * (first + t)) for t in range(training.steps)]
            return -upload * (training.expected_batch * training.steps / (training.clip * math.fsum(rates)))
        size = float(upload.square().mean().sqrt()) or 1.0
        return -upload * (math.sqrt(training.steps) * training.noise_multiplier / size)


# --- the run, once more -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Played:
    """The scores that each adversary gives the canaries; the number of honest silos in a sum names it, or None."""

    by_uploads: Mapping[int | None, Scores]
    by_final_model: Scores


def play_silos(run: FinishedRun, flock: Flock, honest: Sequence[int | None], asked: AuditOptions) -> Played:
    """A game against DP-SGD, which whoever sees uploads, or sums of so many, plays."""
    federation, method = run.federation, run.federation.method
    assert isinstance(method, SiloDp)
    gradients = Gradients(federation.model, method.training)
    adversaries = {h: SiloAttacker(run, flock, gradients, h) for h in honest}

    def losses(state: State) -> Scores:
        return gradients.losses(torch.from_numpy(state.parameters), flock.records)

    return play(run, flock, adversaries, losses, asked)


def play(
    run: FinishedRun,
    flock: Flock,
    adversaries: Mapping[int | None, Attacker],
    losses: Callable[[State], Scores],
    asked: AuditOptions,
) -> Played:
    """The run's recipe, trained once with the canaries that are in; with ledgers of its own, in memory.

    `losses` are those of all canaries under a state's model.
    """
    federation, method = run.federation, run.federation.method
    work = Work(
        method, federation.model, federation.graded[1], _population(run, flock), {}, asked.seed, Bench(),
    )  # fmt: skip
    devices = [work.bench.device]
    here = local(workers_for(None, devices, federation.effort, federation.clients), devices)
    fleet = SimulatedFleet(work, federation.ledger(), hands=here if asked.pool is None else asked.pool.hands)
    channel, state = ListeningChannel(), method.init()
    start = state
    coordinator = Coordinator(method, fleet, channel, run.recipe.name, Rules(run.recipe.rounds.quorum))
    try:
        for _ in asked.track(range(run.rounds), "Training with canaries"):
            try:
                state, held = coordinator.round(state)
            except NobodyLeft:
                break
            for adversary in adversaries.values():
                adversary.hear(held.plan, channel.uploads)
    finally:
        fleet.close()
    by_uploads = {h: adversary.scores() for h, adversary in adversaries.items()}
    return Played(by_uploads, losses(start) - losses(state))


def _population(run: FinishedRun, flock: Flock) -> PlantedPopulation:
    dataset = run.federation.dataset
    return PlantedPopulation(dataset.train, run.federation.parts, dataset.normalisation, flock.planted())


def _decoded(method: SiloDp, plan: Plan, body: bytes) -> Float32s:
    upload = method.upload(plan)
    mechanism, skipped = upload.mechanisms[0], 4 if upload.samples else 0
    return np.asarray(mechanism.estimate(mechanism.decode([body[skipped:]], upload.values))[0], np.float32)

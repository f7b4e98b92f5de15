"""Client-level differential privacy by a trusted server (Geyer, Klein, Nabi, "Differentially private federated
learning: a client level perspective", 2017): the baseline that local methods are compared with.

    each round t:   Z_t <- clients, each with probability q  (the paper: m_t = q K of them, drawn without replacement)
        each client k in Z_t:   dw_k <- local training from w_t, less w_t;   sends dw_k and its norm z_k
        server:   S <- a constant, or median{z_k}
                  w_{t+1} <- w_t + 1/m * (sum_k dw_k / max(1, z_k/S) + N(0, sigma^2 S^2 I)),      m = q K

The server sees every update: against it nothing is proven. Against whoever sees the models, what is proven is a sum
over a secret Poisson sample with Gaussian noise of sigma S, for a constant S, and divided by the public q K instead of
the number of those who came; updates are rounded to whole grid steps when they are clipped, and the noise is whole.
With the median nothing is proven: S follows from the private norms, and the noise shows its size; the paper's figure
is given as its claim.

A client tosses its own coin, which only the server gets to know: all are asked, and those who sit out send an empty
report. That way everyone's account counts every round, as amplification by sampling needs: a client that counted only
the rounds it was drawn in would have given the sample away.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Discriminator, Field, Tag

from sordino.learning import draws
from sordino.learning.draws import Stream
from sordino.mechanisms import NoPrivacy
from sordino.mechanisms.arrays import Float64s, as_matrix
from sordino.mechanisms.noise import FARTHEST, Slack
from sordino.methods.aggregation import Mean, MeanAlone
from sordino.methods.blueprint import Blueprint
from sordino.methods.interface import DATASET, Bench, Cohort, LocalView, Method, ReportContent, Reported, State
from sordino.methods.round_steps import moved, send, train
from sordino.methods.selection import SelectionSpec, SelectProbability
from sordino.methods.silo_dp import NoiseSpec
from sordino.methods.spec import ClipNorm, DirectAlone, ServerLr, Target, direct
from sordino.methods.upload import Draw, Int64s, Same, Tally, Upload
from sordino.parts.lazy import lazy_module
from sordino.parts.slot import Slot
from sordino.parts.tables import Positive, Says, tag
from sordino.privacy.accountant import compose
from sordino.privacy.guarantee import (
    MODEL_READER,
    SERVER,
    Adjacency,
    Budget,
    Claim,
    Guarantee,
    Infinite,
    Loss,
    PoissonGaussian,
    Release,
)
from sordino.privacy.planning import private_training
from sordino.randomness import Keystream, Purpose, threshold
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from sordino.learning import private_sgd
    from sordino.learning.private_sgd import SumGrid
else:
    private_sgd = lazy_module("sordino.learning.private_sgd")

WHAT = "model update, to a trusted server"
SERVER_STREAM = 2**32 - 1  #: the number under which the server draws its noise, where clients have theirs
COIN = 1  #: the tensor number of a client's coin; the server's own selection has 0

BASIS = (
    "discrete Gaussian noise of {noise:g} grid steps on a sum of updates of L2 norm at most {clip} steps, over a "
    "secret Poisson sample of rate {q:g}, by a trusted server"
)
TRUSTED = "updates reach the server as they are: it is trusted to clip them, to add the noise and to forget them"
FAINT = (
    "the noise is below an eighth of what one client can add: exchanging a client moves a sum further than whole noise "
    "reaches. Raise method.noise_multiplier"
)
MEDIAN = "updates are clipped to the median of their own norms, which is private and which the noise gives away"


@dataclass(frozen=True)
class Noise:
    """What the server does: clip to `clip` (None: the median), add noise of `sigma` clips, divide by `expected`."""

    clip: float | None
    sigma: float
    rate: float
    expected: float  #: m = q K
    seed: int

    def grid(self, values: int) -> SumGrid:
        """The grid of the clipped updates and the noise."""
        return private_sgd.grid_for(self.sigma, values)

    def draw(self, round: int, values: int) -> Int64s:
        """The noise of one round in grid steps, from the server's own stream."""
        stream = Keystream.simulation(self.seed, [SERVER_STREAM], round)
        noise, server = self.grid(values).noise, np.zeros(1, np.intp)
        return np.asarray(noise.draw(draws.draw(stream, server, Stream.NOISE, 0, noise.words_per_value * values))[0])


class ClippedTally(Tally):
    """The sum of clipped updates; its mean is noisy. With the median as bound it must hold all updates of a round."""

    def __init__(self, upload: Upload, noise: Noise, round: int) -> None:
        super().__init__(upload, np.ones(1))
        self._noise, self._round, self._grid = noise, round, noise.grid(upload.values)
        self._held: list[Int64s] = []

    def add(self, clients: Sequence[int], bodies: Sequence[bytes]) -> dict[int, str]:
        there = [(client, body) for client, body in zip(clients, bodies, strict=True) if body]
        self.reports += len(clients) - len(there)
        return super().add([client for client, _ in there], [body for _, body in there]) if there else {}

    def _accumulate(self, fixed: Int64s, samples: Int64s | None) -> None:
        if self._noise.clip is None:
            self._held.append(fixed)
        else:
            super()._accumulate(self._clipped(fixed, self._noise.clip), None)

    def _clipped(self, fixed: Int64s, bound: float) -> Int64s:
        """Rows `[K, d]` in grid steps, the bound being `grid.clip` of them and no row longer; each row by itself."""
        import torch

        limit = math.ldexp(bound or 1.0, self._shift)
        rows = (
            private_sgd.integer_rows(torch.from_numpy(row[None].astype(np.float64)), limit, self._grid.clip)
            for row in fixed
        )
        return np.concatenate([row.numpy().astype(np.int64) for row, _ in rows])

    @cached_property
    def bound(self) -> float:
        """S of this round; with the median, everything held is clipped and added now."""
        if self._noise.clip is not None:
            return self._noise.clip
        norms = [np.linalg.norm(row.astype(np.float64)) for rows in self._held for row in rows]
        median = math.ldexp(float(np.median(norms)), -self._shift) if norms else 0.0
        for rows in self._held:
            super()._accumulate(self._clipped(rows, median), None)
        self._held = []
        return median

    @property
    def weight(self) -> float:
        """m: the public number that the sum is divided by, whoever came."""
        return self._noise.expected

    def mean(self) -> Float64s:
        """(sum of clipped updates + noise) / m."""
        unit = self.bound / self._grid.clip
        total = (self._high << 27) + self._low + self._noise.draw(self._round, self.upload.values)
        return np.asarray(total * (unit / self._noise.expected))

    def noise(self) -> float:
        """The L2 norm to expect of the noise in the mean."""
        return self._noise.sigma * self.bound * math.sqrt(self.upload.values) / self._noise.expected


class Unprotected(NoPrivacy):
    """Values as they are, for a server that will add noise: each report stands for its share of that noise."""

    def __init__(self, share: float) -> None:
        self._share = share

    def variance(self, values: ArrayLike) -> Float64s:
        """Of m shares the mean has the variance (sigma S / m)^2; 0 where S is not known beforehand."""
        return np.full(as_matrix(values).shape, self._share)


def _clip_form(value: object) -> str:
    return "median" if isinstance(value, str) else "number"


class CentralDp(Method):
    """Federated averaging by a server that clips and adds noise."""

    report_content: ClassVar[ReportContent] = "model for a trusted server"

    class Spec(NoiseSpec):
        """Client-level differential privacy by a trusted server, which clips updates and adds noise (Geyer et al.)."""

        simulation_only: ClassVar[str] = (
            "the server's noise of central-dp follows from the recipe's seed, which invitations make public: its "
            "clients could take the noise off. It is a baseline for simulations"
        )
        sends_updates: ClassVar[bool] = True
        name: str = tag("central-dp", "a trusted server adds the noise")
        server_lr: ServerLr = 1.0
        clip: Annotated[
            Annotated[ClipNorm, Tag("number")] | Annotated[Literal["median"], Tag("median")],
            Discriminator(_clip_form),
            Says('a number from 1e-30 to 1e30, or "median"'),
        ] = Field(
            description="L2 norm to which updates are clipped, or the median of a round's norms: nothing proves that"
        )
        noise_multiplier: Positive | None = Field(
            default=None, description="noise of a round's sum, in units of clip; or give target"
        )
        target: Target | None = Field(
            default=None, description="what the whole run is to protect, from which the noise multiplier is computed"
        )
        selection: Annotated[SelectionSpec, Slot("selection", lambda spec: spec is SelectProbability)] = Field(
            default=SelectProbability(p=1.0), description="each client's probability of being in a round's sum"
        )
        channel: DirectAlone = Field(default_factory=direct)
        aggregation: MeanAlone = Mean()

        def build(self, blueprint: Blueprint) -> CentralDp:
            noise = noise_of(blueprint)
            share = (noise.sigma * (noise.clip or 0.0)) ** 2 / noise.expected
            upload = Upload(Same(Unprotected(share)), None, blueprint.values, clients=blueprint.clients, what=WHAT)
            return CentralDp(blueprint, upload, noise)

    def __init__(self, blueprint: Blueprint, upload: Upload, noise: Noise) -> None:
        super().__init__(blueprint, upload)
        self.records_per_round *= noise.rate
        self._noise = noise
        self._claim = claim(blueprint, noise) if noise.clip is None else None

    def select(self, state: State) -> Sequence[int]:
        return range(self.clients)  # each tosses its own coin

    def tally(self, plan: Plan) -> Tally:
        return ClippedTally(self.first_upload, self._noise, plan.round)

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        proven = Guarantee(SERVER, Adjacency.CLIENT, Infinite(TRUSTED), "none")
        seen = Guarantee(MODEL_READER, Adjacency.CLIENT, *self._loss())
        return [[Release(f"{plan.federation}/{plan.round}/{WHAT}", DATASET, WHAT, (proven, seen), self._claim)]]

    def _loss(self) -> tuple[Loss, str]:
        if self._noise.clip is None:
            return Infinite(MEDIAN), "none"
        values = self.first_upload.values
        grid = self._noise.grid(values)
        if private_sgd.too_faint(grid, Adjacency.CLIENT):
            return Infinite(FAINT), "none"
        slack = grid.noise.slack()
        basis = BASIS.format(noise=grid.noise.sigma, clip=grid.clip, q=self._noise.rate)
        loss = PoissonGaussian(
            self._noise.rate, slack.sigma / grid.sensitivity, 1, eta=values * slack.eta, tau=values * slack.tau
        )
        return loss, basis

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        coins = self._coins(draw, cohort.clients).tolist()  # Z_t
        data = tuple(own if coin else None for own, coin in zip(cohort.data, coins, strict=True))
        trained = train(self, plan, replace(cohort, data=data), draw, bench)
        reported = send(self.upload(plan), cohort, trained.update, draw, trained)  # dw_k
        bodies = [body if coin else b"" for body, coin in zip(reported.bodies, coins, strict=True)]
        return replace(reported, bodies=bodies)

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        return moved(state, self.spec.server_lr * tally.mean(), self.statistics)

    def rehearse(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> LocalView:
        trained = train(self, plan, cohort, draw, bench)
        return send(self.upload(plan), cohort, trained.update, draw, trained).local

    def _coins(self, draw: Draw, clients: Sequence[int]) -> NDArray[np.bool_]:
        """Who takes part: a coin of each client's own, never above the rate."""
        words = draw(clients).words(np.arange(len(clients)), Purpose.SELECT, COIN, 0, 1)[:, 0]
        return words.astype(np.uint64) < np.uint64(threshold(self._noise.rate))


def claim(blueprint: Blueprint, noise: Noise) -> Claim:
    """What the paper's accountant says of the whole run: a client more or less, the median taken for a constant."""
    delta = _delta(blueprint)
    loss = PoissonGaussian(noise.rate, noise.sigma, blueprint.recipe.rounds.count)
    epsilon = compose([loss], adjacency=Adjacency.RECORD_ADD_REMOVE).epsilon(delta)
    formula = "sampled Gaussian noise on updates clipped to their median, for one client more or less (Geyer et al.)"
    return Claim(epsilon, delta, formula, adversary=MODEL_READER, covers="schedule")


def _delta(blueprint: Blueprint) -> float:
    given = blueprint.recipe.method
    budget = blueprint.recipe.clients.budget
    if given.target is not None:
        return float(given.target.delta)
    return float(budget.delta) if budget is not None and budget.delta > 0 else 1e-5


def noise_of(blueprint: Blueprint) -> Noise:
    """The recipe's noise; the multiplier follows from its target where it names one, for a client exchanged."""
    given = blueprint.recipe.method
    sigma, rate, values = given.noise_multiplier, given.selection.p, blueprint.values
    if given.target is not None:

        def least(slack: Slack) -> float:
            # counted as an exchanged client is: two updates' worth
            budget = Budget(given.target.epsilon, given.target.delta, adjacency=Adjacency.RECORD_REPLACE)
            rounds, eta, tau = blueprint.recipe.rounds.count, values * slack.eta, values * slack.tau
            found = private_training(budget, rounds, sampling_rate=rate, steps=1, eta=eta, tau=tau)
            return max(found.parameter, 2 / FARTHEST)  # with less nothing could be stated

        sigma = private_sgd.least_noise(
            least, lambda multiplier: private_sgd.grid_for(multiplier, values).noise, private_sgd.RESOLUTION
        )
    clip = None if given.clip == "median" else float(given.clip)
    return Noise(clip, float(sigma), rate, rate * blueprint.clients, blueprint.recipe.seed)


__all__ = ["WHAT", "CentralDp", "ClippedTally", "Noise", "claim", "noise_of"]

"""A linear head on public features, proven: whole noise on sums over all records, in secure sums or every silo alone.

    features, once:  each client:   u <- the normal form of each record's public features, |u| <= limit, whole
    round 1:         each client k: send  sum of (A, m) of its records + N_Z(0, 4^b1)     modulo 2^m1
                     server:        n <- trace(A) / limit^2;   L <- (A/n - m m^T/n^2 + floor)^-1/2;   c <- L m/n
    rounds 2 ..:     each client k: x <- L u - c to length 1, and 0.1 for the bias
                                    send  sum of the clipped gradients of its records at W + N_Z(0, 4^b)  modulo 2^m
                     server:        V <- momentum V + sum / n;   W <- W - server_lr (1 - momentum) V

Every record takes part in every round, so nothing about sampling need stay secret. What a record adds to a sum is a
whole vector, a function of that record and the plan alone: of norm sqrt(2) limit^2 at most in round 1 and
features * residuals <= clip in the others (`sordino.learning.unit_vectors`, `sordino.learning.linear_head`). The noise
is discrete Gaussian. So round 1 is a Gaussian release of mu_1 = sqrt(2) limit^2 / sigma, every other one of
mu = clip / sigma, up to the slack of whole noise; all together have mu^2 = mu_1^2 + T mu^2, and eta and tau add up.
All else the server computes from the noisy sums: n, the whitening, the steps.

With `extractor.base`, W x is added to the scores of the extractor's own network: an adapter of its last layer. At W = 0
the model is that network. Scores belong to their record as features do, so the bounds and the noise are the same.

With `channel.kind = "direct"` every silo adds all of the noise (sigma = 2^b). Under a secure sum the noises of h honest
silos add up, sigma = sqrt(h) 2^b, where h are the fewest that a sum has in it less those who may side with the server;
what holds against whoever sees a silo's own report is stated beside it. The sum is known modulo 2^m alone: in Z it
would tell how often each silo wrapped around, which its own noise alone hides.

Clients may have budgets of their own (`clients.epsilon`): all add the same noise, and who may spend less has its
records cut shorter, by the ratio s of its mu to the largest. Where the server sees single reports, it weighs them by
s, which is by their variance.

With `protects = "client"`, what is bounded is a client's mean gradient, and its mean second moments, and one client
exchanged for another moves a sum by twice the clip.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Gt, Le, Lt
from numpy.typing import NDArray
from pydantic import Field

from sordino.errors import InvalidInput
from sordino.learning.tasks import CLASSES_ALONE, MOST_CLASSES
from sordino.mechanisms import NoisySums
from sordino.methods.aggregation import Mean, MeanAlone
from sordino.methods.blueprint import Blueprint, unproven_code
from sordino.methods.extractor_tables import ExtractorSpec, ScatteringExtractorSpec
from sordino.methods.hybrid_one import in_ring
from sordino.methods.interface import (
    DATASET,
    PARAMETERS,
    Bench,
    Cohort,
    Floats,
    LocalView,
    Method,
    ModelView,
    ReportContent,
    Reported,
    Seen,
    State,
)
from sordino.methods.selection import SelectAll
from sordino.methods.spec import AnyChannel, ClipNorm, MethodSpec
from sordino.methods.upload import Draw, Same, Tally, Upload
from sordino.parts import registry
from sordino.parts.lazy import lazy_module
from sordino.parts.slot import Slot
from sordino.parts.tables import Found, Inside, Natural, Positive, Says, TomlTable, reads, tag
from sordino.parts.timeline import phase
from sordino.parts.toml import shown
from sordino.privacy.guarantee import (
    SERVER,
    Adjacency,
    Adversary,
    Budget,
    Guarantee,
    Infinite,
    PoissonGaussian,
    Release,
    summed,
)
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from sordino.learning import device_noise, draws, linear_head, private_sgd, unit_vectors
    from sordino.learning.cohort import ClientData
    from sordino.learning.device_noise import DeviceNoise
    from sordino.learning.linear_head import HeadSums, Rounded, WholeWeights
    from sordino.learning.unit_vectors import Form, Whitening
    from sordino.mechanisms import noise as noises
    from sordino.mechanisms.noise import DiscreteGaussian, Slack
    from sordino.methods import extractors
    from sordino.methods.extractors import Extractor, RecordHead
    from sordino.privacy import accountant, planning
    from sordino.recipe import Recipe
else:
    accountant = lazy_module("sordino.privacy.accountant")
    extractors = lazy_module("sordino.methods.extractors")
    noises = lazy_module("sordino.mechanisms.noise")
    planning = lazy_module("sordino.privacy.planning")
    torch = lazy_module("torch")
    device_noise = lazy_module("sordino.learning.device_noise")
    draws = lazy_module("sordino.learning.draws")
    linear_head = lazy_module("sordino.learning.linear_head")
    private_sgd = lazy_module("sordino.learning.private_sgd")
    unit_vectors = lazy_module("sordino.learning.unit_vectors")

MOMENTS = "second moments of features"
GRADIENT = "gradient of a linear head"
LEFT, CENTRE, VELOCITY, COUNT = "left", "centre", "velocity", "count"
LONGEST_UNIT = 1448  #: the longest whole unit vector: its square is below 2^21
LONGEST_ROW = 256  #: the longest whitened record
FEWEST_STEPS = 8  #: of a record, at least
MOST_BITS = 30  #: of whole noise
NOISE_PIECE = 2**14  #: values drawn at a time
WEIGHT_NOISE = 2.0  #: standard deviation of the noise in a weight after the last round
LONGEST_STEP = 640.0  #: along the mean gradient, in units of 1 / clip
LEAST_SHARE, USUAL_SHARE, MOST_SHARE = 0.01, 0.05, 0.1  #: of the budget, for second moments
FEWEST_CLIP = 1024  #: grid steps of a record that cost little
RESIDUALS = 24  #: grid steps of a residual that leave rounding harmless

RECORDS = Adjacency.RECORD_ADD_REMOVE, Adjacency.RECORD_REPLACE
REMEMBERS = (
    "the extractor makes other features of a record after or beside another, so that what a record adds to a sum has "
    "no bound: take one that keeps nothing between records, mixes none, as batch norm by batches does, and draws "
    "nothing at random"
)
OWN = (
    " A network of your own is its extractor (method.extractor.kind = network), and with method.extractor.base = true "
    "the head adds to that network's scores. Adapters inside a network train under silo-dp and hybrid-one"
)
NOT_PUBLIC = (
    "the extractor may have been trained on these very records: declare that it was not (method.extractor.elsewhere), "
    "or take one that nobody trained, such as scattering"
)


class Moments(TomlTable):
    """The one release of second moments, from which records are whitened."""

    inline: ClassVar[bool] = True

    share: Annotated[float, Ge(0), Lt(1), Says("a share from 0 to below 1")] | None = Field(
        default=None,
        description="its part of the budget, as mu^2; left out, 0.01 to 0.1 by a public rule (docs/planning.md); 0: "
        "none is made, and records are not whitened",
    )
    floor: Positive = Field(default=0.003, description="what is added to the eigenvalues of the moments")

    @property
    def wanted(self) -> bool:
        """Whether they are released at all."""
        return self.share != 0


@dataclass(frozen=True)
class NoisySum:
    """A sum of whole vectors over records, with whole noise: `values` numbers modulo 2^bits."""

    what: str
    values: int
    sensitivity: float  #: L2 norm of what one record (or one client's all) adds, at most, in steps
    noise: DiscreteGaussian  #: of one silo
    bits: int
    unit: float  #: what one step stands for
    spare: int = 0  #: honest silos' noises that are not counted on (`DiscreteGaussian.slack`)

    def slack(self, shares: int) -> Slack:
        """Of the noises of so many honest silos together."""
        return self.noise.slack(shares, min(self.spare, shares - 1))

    @cached_property
    def mechanism(self) -> NoisySums:
        """How such a sum leaves a client."""
        return NoisySums(self.unit, self.bits, self.noise.sigma)

    def guarantee(
        self, adversary: Adversary, adjacency: Adjacency, scale: float = 1.0, whose: str = "a record's vector"
    ) -> Guarantee:
        """What one such sum reveals; `scale` is how much shorter vectors are than they may be."""
        shares = adversary.parties or 1
        slack, sensitivity = self.slack(shares), self.sensitivity * scale * (1 + 2.0**-50)  # rounded up
        grid = private_sgd.SumGrid(math.ceil(sensitivity), 0, sensitivity, self.noise)
        if faint := private_sgd.too_faint(grid, adjacency, shares - min(self.spare, shares - 1)):
            return Guarantee(adversary, adjacency, Infinite(faint), "none")
        eta, tau = self.values * slack.eta, self.values * slack.tau
        loss = PoissonGaussian(1.0, slack.sigma / sensitivity, 1, eta, tau)
        honest = f" from each of {shares} honest silos" if shares > 1 else ""
        honest += f", {self.spare} of them not counted on" if self.spare and shares > 1 else ""
        basis = (
            f"a sum over all records, {whose} at most {math.ceil(sensitivity):,} steps long, plus discrete Gaussian "
            f"noise of 2^{self.noise.bits} steps{honest}"
        )
        return in_ring(Guarantee(adversary, adjacency, loss, basis), self.bits)


@dataclass(frozen=True)
class VectorLimits:
    """The L2 norms that no whole vector of one record exceeds, in steps."""

    unit: int  #: in normal form
    row: int  #: whitened
    residual: int  #: of residuals; a gradient is row times residual long


@dataclass(frozen=True)
class Budgeting:
    """Noise and grids of a run: of its one release of second moments, and of its gradients.

    They are for the largest of all clients' budgets; the vectors of others are shorter.
    """

    moments: NoisySum | None
    gradient: NoisySum
    limit: int  #: of whole unit vectors
    row: int  #: of whole whitened records
    residual: int  #: of whole residuals
    shares: int  #: honest silos whose noises add up; 1 where every silo is alone
    share: float  #: of the budget that second moments take, as mu^2


class PrivateHead(Method):
    """Noisy sums of second moments, then of gradients, of a linear head on public features."""

    keeps: ClassVar[bool] = True
    report_content: ClassVar[ReportContent] = "sums over records"
    noisy: ClassVar[bool] = True
    shows: ClassVar[bool] = True
    model: torch.nn.Module

    class Spec(MethodSpec):
        """A linear head on public features by noisy full-batch gradients: proven for each record, in sums or alone."""

        name: str = tag("private-head", "a linear head on public features, by noisy gradients over all records")
        takes_training: ClassVar[bool] = False
        tasks: ClassVar[frozenset[str]] = CLASSES_ALONE
        takes_loss: ClassVar[bool] = False
        in_pages: ClassVar[bool] = True
        selection: ClassVar[SelectAll] = SelectAll()
        extractor: Annotated[ExtractorSpec, Slot("extractor")] = Field(description="what makes features of records")
        roots: Annotated[int, Ge(0), Le(4), Says("a whole number from 0 to 4")] = Field(
            default=1, description="how often the square root of a record's features is taken"
        )
        groups: Natural = Field(
            default=1, description="groups of maps in which a record's features are normalised; 0: not at all"
        )
        protects: Literal["record", "client"] = Field(
            default="record", description="what may differ: one record more or less, or one client exchanged"
        )
        delta: Inside = Field(default=1e-5, description="clients.epsilon is proven at this delta, for the whole run")
        moments: Moments = Field(default=Moments(), description="the release from which records are whitened")
        clip: ClipNorm = Field(default=0.03, description="L2 norm to which every record's gradient is clipped")
        bias: Annotated[float, Gt(0), Le(1)] = Field(default=0.1, description="the input that the bias sees")
        momentum: Annotated[float, Ge(0), Lt(1), Says("a number from 0 to below 1")] = Field(
            default=0.5, description="of the server's steps"
        )
        server_lr: Positive | None = Field(
            default=None,
            description="the step along the mean gradient, in the long run; left out, as long as the noise allows",
        )
        announced_size: Natural = Field(
            default=0,
            description="a public size of a silo, for the modulus of sums (0: the known data set's training examples "
            "divided by the clients)",
        )
        resolution: Annotated[int, Ge(4), Le(24), Says("a whole number from 4 to 24")] | None = Field(
            default=None,
            description="the noise of a silo has 2^resolution steps of the grid; left out, as few as rounding allows",
        )
        bits: Annotated[int, Ge(8), Le(48), Says("a whole number from 8 to 48")] | None = Field(
            default=None,
            description="gradients are sent modulo 2^bits; left out, no sum of up to twice the announced records wraps "
            "around",
        )
        colluding: Natural | None = Field(
            default=None,
            description="how many silos of a secure sum may side with the server; left out, a tenth of them",
        )
        channel: AnyChannel = Field(default_factory=lambda: registry.make("channel", "summed", threshold=0.89))
        aggregation: MeanAlone = Mean()

        def page_obstacles(self) -> Found:
            extractor = self.extractor
            if not isinstance(extractor, ScatteringExtractorSpec):
                yield f"method.extractor.kind = {shown(extractor.kind)}", "pages compute scattering"
            elif extractor.opponent:
                yield "method.extractor.opponent = true", "pages scatter channels as they are"
            if self.protects == "client":
                yield 'method.protects = "client"', "pages protect records"
            if not self.announced_size:
                yield "method.announced_size = 0", "a page would tell its own number of records: state a public one"

        def record_shape(self, recipe: Recipe, shape: tuple[int, ...], classes: int) -> tuple[int, ...]:
            return (self.extractor.build(shape, classes, recipe.seed).features,)

        @reads("clients.epsilon", "method.name")
        def clients_have_an_epsilon(self, recipe: Recipe) -> Found:
            """Refuse a run without a budget to plan for."""
            if recipe.clients.epsilon is None:
                yield "clients.epsilon", "missing; it is what the whole run is proven to protect: give it, such as 1.0"

        @reads("training", "method.name")
        def takes_no_training(self, recipe: Recipe) -> Found:
            """Refuse keys of local training: a round is one gradient over all records."""
            for name in sorted(recipe.training.model_fields_set):
                yield f"training.{name}", "private-head takes one gradient over all records a round: leave it out"

        @reads("method")
        def the_extractor_is_the_same_for_all(self, recipe: Recipe) -> Found:
            """Refuse extractors that every client trains for itself: gradients of their features do not add up."""
            if self.extractor.kind == "trained":
                yield (
                    ".extractor.kind",
                    "got trained, which is another one for every client, and made of its records: take scattering, "
                    "oriented, network or another that is the same for all",
                )

        @reads("method", "model")
        def the_model_is_a_linear_head(self, recipe: Recipe) -> Found:
            """Refuse other models."""
            if recipe.model.name != "logistic" or recipe.model.options:
                got = shown(recipe.model.name)
                yield (
                    "model.name",
                    f"got {got}; private-head trains a linear head: take logistic, without options.{OWN}",
                )
            elif not recipe.model.starts_fresh:
                yield "model.start", f"a private head starts from 0: leave it out.{OWN}"

        @reads("data.classes", "method.name")
        def the_classes_are_few(self, recipe: Recipe) -> Found:
            """Refuse so many classes that sums of exponentials would be rounded."""
            if recipe.data.classes is not None and (many := too_many_classes(len(recipe.data.classes))):
                yield "data.classes", many

        @reads("method", "rounds", "split")
        def every_sum_has_honest_silos(self, recipe: Recipe) -> Found:
            """Under a secure sum, enough silos must stay honest; with second moments, a gradient must follow."""
            if self.moments.wanted and recipe.rounds.count < 2:
                yield (
                    "rounds.count",
                    "got 1, which is the release of second moments: take 2 or more, or set method.moments.share = 0",
                )
            asked = recipe.number_of_clients
            if self.lacks_honest_silos(asked):
                least, colluding = self.channel.least(asked), self.colluders(asked)
                yield (
                    ".colluding",
                    f"{colluding} of {asked} silos may side with the server where {least} are in every sum, and one "
                    f"must be able to drop out: that leaves too few honest ones. {self.honest_remedy(asked)}",
                )

        @reads("method", "data.source")
        def silos_know_their_size(self, recipe: Recipe) -> Found:
            """Refuse own data without an announced size: the modulus of sums is public."""
            if self.announced_size == 0 and recipe.data.origin not in ("known", None):
                why = "missing; the number of your own examples is private: announce a public size of a silo"
                yield ".announced_size", f"{why}, such as 1000"

        def colluders(self, clients: int) -> int:
            """How many silos of a sum may side with the server."""
            return math.ceil(clients / 10) if self.colluding is None else self.colluding

        def lacks_honest_silos(self, clients: int) -> bool:
            """Whether a secure sum of so many silos would have too few honest ones in it."""
            if not hasattr(self.channel, "least"):
                return False
            return not _honest_enough(clients, self.channel.least(clients), self.colluders(clients))

        def honest_remedy(self, clients: int) -> str:
            """Settings under which so many silos make a secure sum, or what to do where there are none."""
            works = (
                f"Set method.channel.threshold = {(least - 0.5) / clients:.3g} and "
                f"method.colluding = {colluding}, take "
                for colluding in range(self.colluders(clients), -1, -1)
                for least in range(clients - 1, clients // 2, -1)
                if _honest_enough(clients, least, colluding)
            )
            return next(works, "Take ") + 'more clients, or method.channel = { kind = "direct" }'

        def shares(self, clients: int) -> int:
            """How many honest silos' noises are in every sum; 1 where reports are seen one by one."""
            least = getattr(self.channel, "least", None)
            return 1 if least is None else int(least(clients)) - self.colluders(clients)

        def build(self, blueprint: Blueprint) -> PrivateHead:
            extractor = self.extractor.build(blueprint.input_shape, blueprint.classes, blueprint.recipe.seed)
            return PrivateHead(blueprint, extractor, self)

    def __init__(self, blueprint: Blueprint, extractor: Extractor, spec: PrivateHead.Spec) -> None:
        if many := too_many_classes(blueprint.classes):
            raise InvalidInput(many)
        self.form = unit_vectors.Form(*extractor.shape, spec.groups, spec.roots, extractor.scores)
        self.extractor, self.classes = extractor, blueprint.classes
        self.unproven = _obstacle(extractor, blueprint.input_shape) or unproven_code(blueprint.recipe)
        epsilons = blueprint.recipe.epsilons()
        assert epsilons is not None
        self.strengths = sorted(set(epsilons))
        self._class_of = [self.strengths.index(epsilon) for epsilon in epsilons]
        self._announced = spec.announced_size or sum(blueprint.sizes) / blueprint.clients
        gradients = blueprint.recipe.rounds.count - spec.moments.wanted
        ledger = blueprint.recipe.clients.budget is not None
        asked = HeadQuestion(
            self.form, self.classes, self.strengths, spec, gradients, blueprint.clients, self._announced, ledger
        )
        self.question = asked
        self.budgeting, self.scales = planned(asked)
        shared = self.budgeting.shares > 1
        self._uploads = {
            part.what: Upload(
                Same(part.mechanism), None if shared else epsilons, part.values, clients=blueprint.clients,
                what=part.what,
            )
            for part in (self.budgeting.moments, self.budgeting.gradient)
            if part is not None
        }  # fmt: skip
        super().__init__(blueprint, next(iter(self._uploads.values())))
        self.head = linear_head.LinearHead(self.form.size, self.classes, bias=True)
        self.server_lr: float = spec.server_lr or step_for(self.budgeting.gradient, asked)
        self.graded = unit_vectors.WhitenedHead(self.form, self.classes, spec.bias)

    # --- server

    def _stage(self, round: int) -> NoisySum:
        """What is summed in a round: the second moments first, where there are any."""
        moments = self.budgeting.moments
        return moments if moments is not None and round <= 1 else self.budgeting.gradient

    def init(self) -> State:
        none = unit_vectors.Whitening.none(self.form, self._announced if self.spec.protects == "record" else 1.0)
        zeros = np.zeros(self.head.size, np.float32)
        return State(0, zeros, {VELOCITY: zeros, **_arrays(none)})

    def plan(self, state: State, federation: str) -> Plan:
        round = state.round + 1
        if self._stage(round) is self.budgeting.moments:
            return Plan(federation, round)
        arrays = {PARAMETERS: state.parameters, LEFT: state.arrays[LEFT], CENTRE: state.arrays[CENTRE]}
        return Plan(federation, round, {}, arrays)

    def upload(self, plan: Plan) -> Upload:
        return self._uploads[self._stage(plan.round).what]

    def tally(self, plan: Plan) -> Tally:
        upload = self.upload(plan)
        return Tally(upload, np.ones(1) if self.budgeting.shares > 1 else np.array(self.scales))

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        mean = tally.mean()  # of silos; so is the number of records
        if self._stage(plan.round) is self.budgeting.moments:
            found = unit_vectors.Whitening.of(mean, self.form, self.budgeting.limit, self.spec.moments.floor)
            if self.spec.protects == "client":
                found = replace(found, count=1.0)
            return state.after(state.parameters, {**state.arrays, **_arrays(found)})
        spec = self.spec
        step = self.server_lr * (1 - spec.momentum)
        with np.errstate(over="ignore"):
            velocity = spec.momentum * state.arrays[VELOCITY] + mean / float(state.arrays[COUNT][0])
            return state.after(state.parameters - step * velocity, {**state.arrays, VELOCITY: velocity})

    def view(self, state: State) -> ModelView:
        scale = np.float32(2.0**-unit_vectors.MATRIX_BITS)
        return ModelView(state.parameters, {name: state.arrays[name] * scale for name in (LEFT, CENTRE)})

    @property
    def whole(self) -> RecordHead:
        """All of the model as one module, which takes normalised records; its parameters are those of `graded`."""
        return extractors.RecordHead(self.extractor, self.form, self.budgeting.limit, self.classes, self.spec.bias)

    def shown(self, x: Tensor) -> Seen:
        """Examples as the head sees them: whole unit vectors; of one example, computed alone."""
        found: NDArray[np.int16] = self._units(x, self.budgeting.limit, len(x) == 1).cpu().numpy()
        return found

    def limits(self, group: int) -> VectorLimits:
        """How long the whole vectors of clients of a class are at most."""
        found, scale = self.budgeting, self.scales[group]
        return VectorLimits(
            math.isqrt(math.floor(found.limit**2 * scale)), found.row, math.floor(found.residual * scale)
        )

    @property
    def stages(self) -> tuple[NoisySum, ...]:
        """The sums of a run: second moments in the first round, where there are any, and gradients in all others."""
        moments = self.budgeting.moments
        return (self.budgeting.gradient,) if moments is None else (moments, self.budgeting.gradient)

    # --- client

    def class_of(self, client: int) -> int:
        return self._class_of[client]

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        part, name = self._stage(plan.round), f"{plan.federation}/{plan.round}"
        return [
            (Release(f"{name}/{part.what}", DATASET, part.what, tuple(self._guarantees(part, scale))),)
            for scale in self.scales
        ]

    def _guarantees(self, part: NoisySum, scale: float) -> list[Guarantee]:
        """Against the sum, where reports travel in one, and against who sees a report; records' both changes."""
        shares = self.budgeting.shares
        adversaries = (summed(shares), SERVER) if shares > 1 else (SERVER,)
        of_clients = self.spec.protects == "client"
        adjacencies = (Adjacency.CLIENT,) if of_clients else RECORDS
        whose = "a client's vector" if of_clients else "a record's vector"
        found = [part.guarantee(by, adjacency, scale, whose) for adjacency in adjacencies for by in adversaries]
        if self.unproven is not None:
            return [replace(own, loss=Infinite(self.unproven), basis="none") for own in found]
        return found

    def computes_records_apart(self, bench: Bench) -> bool:
        """Whether a record's features depend on that record alone when they are computed like this."""
        return self.extractor.exact or bench.alone

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        part = self._stage(plan.round)
        sums = torch.zeros(len(cohort.clients), part.values, dtype=torch.int64, device=bench.device)
        loss, clipped = np.full(len(sums), np.nan), np.zeros(len(sums))
        with phase("train"):
            for places, found in self._summed_all(plan, cohort, bench):
                sums[places] = found.sums
                loss[places], clipped[places] = found.loss, found.clipped
        norms, largest = _extents(sums) * part.unit
        sums += _noise(part, cohort.clients, draw, bench)
        view = LocalView(loss, np.zeros(len(sums), np.bool_), clipped, norms, largest)
        return Reported(part.mechanism.encode(part.mechanism.output(sums.cpu().numpy())), cohort.states, view)

    def _summed_all(self, plan: Plan, cohort: Cohort, bench: Bench) -> Iterator[tuple[list[int], LocalSums]]:
        """What clients with records sum up, by their places in the cohort: one by one, on a GPU many side by side."""
        there = [
            (k, self._class_of[client], data)
            for k, (client, data) in enumerate(zip(cohort.clients, cohort.data, strict=True))
            if data is not None
        ]
        if not (self.extractor.exact and _waits_for_orders(bench.device)):
            yield from (([k], self._summed(plan, group, data, bench)) for k, group, data in there)
            return
        for group in {own for _, own, _ in there}:
            places = [k for k, own, _ in there if own == group]
            alike = [data for _, own, data in there if own == group]
            self._keep_all_units(alike, self.limits(group).unit, bench)
            if self._stage(plan.round) is self.budgeting.moments:
                yield from (
                    ([k], self._summed(plan, group, data, bench)) for k, data in zip(places, alike, strict=True)
                )
            else:
                yield places, self._gradients(plan, group, alike, bench)

    def _keep_all_units(self, data: Sequence[ClientData], limit: int, bench: Bench) -> None:
        """Compute the unit vectors of clients who have none yet, together."""
        new = [own for own in data if own.key is not None and not bench.keeps(own.key)]
        if new:
            found = self._units(torch.cat([own.x for own in new]), limit)
            for own, units in zip(new, torch.split(found, [len(own) for own in new]), strict=True):
                bench.keep(own.key, (id(self.extractor), limit), units.clone)

    def _gradients(self, plan: Plan, group: int, data: Sequence[ClientData], bench: Bench) -> LocalSums:
        """The exact sums of several clients' gradients, computed side by side."""
        limits = self.limits(group)
        found = self.head.sums_apart(
            self._kept_weights(plan, bench), [self._kept_records(plan, own, limits.unit, bench) for own in data],
            [own.y for own in data], self.spec.clip, limits.residual,
        )  # fmt: skip
        return self._local(found, data, self.budgeting.gradient, self.scales[group])

    def _summed(self, plan: Plan, group: int, data: ClientData, bench: Bench) -> LocalSums:
        """The exact sum over a client's records, as one row."""
        limits, moments, scale = self.limits(group), self.budgeting.moments, self.scales[group]
        if moments is not None and self._stage(plan.round) is moments:
            own = unit_vectors.second_moments(self._kept_units(data, limits.unit, bench), self.form, limits.unit)
            sums = self._of_clients(own[None], [data], moments, scale)
            return LocalSums(sums, np.array([math.nan]), np.zeros(1))
        records, weights = self._kept_records(plan, data, limits.unit, bench), self._kept_weights(plan, bench)
        found = self.head.sums(weights, records, data.y, self.spec.clip, limits.residual)
        return self._local(found, [data], self.budgeting.gradient, scale)

    def _local(self, found: HeadSums, data: Sequence[ClientData], part: NoisySum, scale: float) -> LocalSums:
        local = torch.stack([found.loss.double(), found.clipped.double()]).reshape(2, -1).cpu().numpy()
        loss, clipped = local / np.array([max(1, len(own)) for own in data])
        sums = found.sums.reshape(len(data), -1)
        return LocalSums(self._of_clients(sums, data, part, scale), loss, clipped)

    def parts(self, plan: Plan, group: int, data: ClientData, bench: Bench) -> Tensor:
        """What each record of a client of this group adds to a sum, `[n, values]`: for who looks at single records."""
        limits = self.limits(group)
        if self._stage(plan.round) is self.budgeting.moments:
            units = self._kept_units(data, limits.unit, bench)
            rows = (units[i : i + 1] for i in range(len(units)))
            return torch.stack([unit_vectors.second_moments(row, self.form, limits.unit) for row in rows]).double()
        records = self._kept_records(plan, data, limits.unit, bench)
        return self.head.parts(self._kept_weights(plan, bench), records, data.y, self.spec.clip, limits.residual)

    def exact(self, plan: Plan, group: int, data: ClientData, bench: Bench) -> NDArray[np.int64]:
        """The sum over the records of a client of this group, before noise."""
        found: NDArray[np.int64] = self._summed(plan, group, data, bench).sums[0].cpu().numpy()
        return found

    def stage(self, plan: Plan) -> NoisySum:
        """What is summed in a plan's round."""
        return self._stage(plan.round)

    def _of_clients(self, sums: Tensor, data: Sequence[ClientData], part: NoisySum, scale: float) -> Tensor:
        """`[K, values]` sums over records; where clients are protected, their means, as long as one record may be."""
        if self.spec.protects == "record":
            return sums
        counts = torch.tensor([len(own) for own in data], dtype=torch.float64, device=sums.device)
        rows, _ = linear_head.rounded_within(sums.double() / counts[:, None], math.floor(part.sensitivity * scale))
        return rows.long()

    def _units(self, x: Tensor, limit: int, alone: bool = False) -> Tensor:
        """int16 `[n, width]`: the whole unit vectors of records; `alone`, one at a time where bits depend on it."""
        usual = extractors.PIECE if x.device.type == "cpu" else extractors.GPU_PIECE
        piece = extractors.ALONE if alone and not self.extractor.exact else usual
        return extractors.whole_features(self.extractor, x, self.form, limit, piece)

    def _kept_weights(self, plan: Plan, bench: Bench) -> WholeWeights:
        """The plan's parameters as whole numbers, the same for all clients of a round."""
        own = plan.arrays[PARAMETERS]
        return bench.keep(
            (PARAMETERS,), own.tobytes(), lambda: self.head.weights(torch.from_numpy(own).to(bench.device))
        )

    def _kept_units(self, data: ClientData, limit: int, bench: Bench) -> Tensor:
        """The whole unit vectors of a client's records."""
        return bench.keep(data.key, (id(self.extractor), limit), lambda: self._units(data.x, limit, bench.alone))

    def _kept_records(self, plan: Plan, data: ClientData, limit: int, bench: Bench) -> Rounded:
        """A client's whitened records; they take the place of its unit vectors, which are not needed any more."""
        left, centre = plan.arrays[LEFT], plan.arrays[CENTRE]

        def whiten() -> Rounded:
            units = self._kept_units(data, limit, bench)
            by, centred = (torch.from_numpy(own).to(bench.device) for own in (left, centre))
            return unit_vectors.whitened(units, self.form, by, centred, self.spec.bias, self.budgeting.row)

        return bench.keep(data.key, (id(self.extractor), limit, left.tobytes(), centre.tobytes()), whiten)

    def rehearse(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> LocalView:
        """Nothing: what second moments are like says nothing about the training."""
        zeros = np.zeros(len(cohort.clients))
        return LocalView(np.full(len(zeros), np.nan), zeros > 0, zeros, zeros.copy(), zeros.copy())


def too_many_classes(classes: int) -> str | None:
    """Why a record's probabilities of so many classes are not exact; None where they are."""
    if classes <= MOST_CLASSES:
        return None
    return (
        f"got {classes:,} classes; private-head computes exactly with at most {MOST_CLASSES:,}: merge classes, or take "
        "method.name = silo-dp, which has no such limit"
    )


def _honest_enough(clients: int, least: int, colluding: int) -> bool:
    """Whether sums of at least so many silos have two honest ones in them, in any two of them one, and lose one."""
    return least < clients and least - colluding >= 2 and colluding <= 2 * least - clients - 1


def _obstacle(extractor: Extractor, shape: tuple[int, ...]) -> str | None:
    """Why nothing is proven of records that this extractor sees; None where there is no reason."""
    if not extractor.public:
        return NOT_PUBLIC
    return None if extractor.exact or not extractors.remembers(extractor, shape) else REMEMBERS


def _noise(part: NoisySum, clients: Sequence[int], draw: Draw, bench: Bench) -> Tensor:
    """`[K, values]`: each client's own whole noise."""
    source, each = draw(clients), part.noise.words_per_value
    if bench.device.type != "cpu":
        count, rows = each * part.values, (np.array([k]) for k in range(len(clients)))
        drawn = [draws.draw_from(source, row, draws.Stream.NOISE, 0, count) for row in rows]
        return _device_noise(part, bench).draw(np.concatenate(drawn))
    noise = np.empty((len(clients), part.values), np.int64)
    for k in range(len(clients)):
        for first in range(0, part.values, NOISE_PIECE):  # a piece stays in the processor's cache
            count = each * min(NOISE_PIECE, part.values - first)
            words = draws.draw_from(source, np.array([k]), draws.Stream.NOISE, first * each, count)
            noise[k, first : first + NOISE_PIECE] = part.noise.draw(words[0])
    return torch.from_numpy(noise)


def _device_noise(part: NoisySum, bench: Bench) -> DeviceNoise:
    """The tables of a noise on a GPU, kept from round to round."""
    return bench.keep(("noise", part.what), part.noise, lambda: device_noise.DeviceNoise(part.noise, bench.device))


def _waits_for_orders(device: torch.device) -> bool:
    """Whether a device is fast only at much work at a time."""
    return device.type != "cpu"


def _extents(sums: Tensor) -> NDArray[np.float64]:
    """`[2, K]`: the L2 norm of each row, and its largest value; row by row on a processor, where all bits count."""
    if sums.device.type == "cpu":
        return np.array([_extent(row) for row in sums.numpy()]).reshape(-1, 2).T
    found: NDArray[np.float64] = torch.stack([sums.double().norm(dim=1), sums.abs().amax(1).double()]).cpu().numpy()
    return found


def _extent(sums: NDArray[np.int64]) -> tuple[float, float]:
    numbers = sums.astype(np.float64)
    return math.sqrt(np.square(numbers).sum()), float(max(numbers.max(), -numbers.min()))


def _arrays(found: Whitening) -> dict[str, Floats]:
    """A whitening as a state keeps it."""
    return {LEFT: found.left, CENTRE: found.centre, COUNT: np.array([found.count], np.float32)}


# --- from a budget to noise and grids ---------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class LocalSums:
    """What K clients sum up before noise, and what stays with them."""

    sums: Tensor  #: int64 `[K, values]`
    loss: NDArray[np.float64]  #: `[K]`, the mean over a client's records
    clipped: NDArray[np.float64]  #: `[K]`, the share of its records


@dataclass(frozen=True)
class HeadQuestion:
    """What noise and grids are sought for."""

    form: Form
    classes: int
    strengths: Sequence[float]  #: the clients' epsilons, ascending
    spec: PrivateHead.Spec
    gradients: int  #: rounds that sum gradients
    clients: int
    records: float  #: of a silo, a public number
    ledger: bool = False  #: whether clients keep ledgers with this limit, which count a little more than statements

    @property
    def shares(self) -> int:
        """Honest silos whose noises add up."""
        return self.spec.shares(self.clients)

    @property
    def adjacency(self) -> Adjacency:
        """What the clients' epsilons are about."""
        return Adjacency.CLIENT if self.spec.protects == "client" else Adjacency.RECORD_ADD_REMOVE

    @property
    def adversary(self) -> Adversary:
        """Whom they are about."""
        return summed(self.shares) if self.shares > 1 else SERVER

    @property
    def values(self) -> int:
        """Of a gradient."""
        return (self.form.size + 1) * self.classes

    @property
    def counted(self) -> float:
        """What one silo adds to the n that sums are divided by: its records, or itself."""
        return self.records if self.spec.protects == "record" else 1.0

    def mean_noise(self, part: NoisySum) -> float:
        """The standard deviation of the noise in one value of a mean, all silos' noises included."""
        return part.noise.sigma * part.unit / (math.sqrt(self.clients) * self.counted)


def planned(asked: HeadQuestion) -> tuple[Budgeting, list[float]]:
    """The noises and grids of a run, for the largest of the clients' epsilons, and by how much others are shorter."""
    sigmas = [_total_sigma(asked, epsilon) for epsilon in asked.strengths]
    scales = [sigmas[-1] / sigma for sigma in sigmas]
    for _ in range(64):
        found = _grids(asked, sigmas[-1], scales[0])
        if all(spent(asked, found, s) <= e for s, e in zip(scales, asked.strengths, strict=True)):
            return found, scales
        sigmas[-1] *= 1.001  # what whole numbers lack of a Gaussian
    raise InvalidInput(
        f"whole noise cannot keep epsilon {asked.strengths[0]:g} at delta {asked.spec.delta:g} over "
        f"{asked.gradients} rounds: raise clients.epsilon or method.resolution, or take fewer rounds"
    )


def _total_sigma(asked: HeadQuestion, epsilon: float) -> float:
    """The noise of one Gaussian release that spends all of this epsilon, in units of what a record adds."""
    if not asked.ledger:
        exchanged = 1 if asked.adjacency is Adjacency.RECORD_ADD_REMOVE else 2
        return exchanged / accountant.mu_for(epsilon, asked.spec.delta)
    budget = Budget(epsilon, asked.spec.delta, adjacency=asked.adjacency)

    def released(sigma: float) -> Guarantee:
        return Guarantee(SERVER, asked.adjacency, PoissonGaussian(1.0, sigma, 1), "all rounds as one")

    return planning.least(budget, 1, released, between=(2.0**-6, 2.0**19)).parameter


def step_for(gradient: NoisySum, asked: HeadQuestion) -> float:
    """The step along the mean gradient: as long as leaves every weight of the end noise of deviation `WEIGHT_NOISE`.

    The rule was found on validation examples of MNIST, Fashion-MNIST and CIFAR-10, where it is within a factor of 1.5
    of the best step for every epsilon and number of silos; steps beyond `LONGEST_STEP` / clip gain nothing.
    """
    noise = asked.mean_noise(gradient)
    return min(WEIGHT_NOISE / (math.sqrt(asked.gradients) * noise), LONGEST_STEP / asked.spec.clip)


def share_for(asked: HeadQuestion, sigma: float) -> float:
    """The part of the budget that second moments take, where the recipe does not say it: from public numbers alone.

    Their noise is a symmetric matrix with a spectral norm of about 2 s sqrt(maps), s the deviation in an entry of A/n.
    The least share from `LEAST_SHARE` to `MOST_SHARE` that keeps it to half of the floor, where it hardly changes what
    records are whitened by. Where none does, `USUAL_SHARE`: more would take more from the gradients than it gives.
    `sigma` is the noise of all rounds together, in units of what a record adds; n is what silos announce.
    """
    spread = math.sqrt(2) * sigma * math.sqrt(asked.clients / asked.shares) / (asked.clients * asked.counted)
    needed = (2 * spread * math.sqrt(asked.form.maps) / (asked.spec.moments.floor / 2)) ** 2
    return max(needed, LEAST_SHARE) if needed <= MOST_SHARE else USUAL_SHARE


def spent(asked: HeadQuestion, found: Budgeting, scale: float) -> float:
    """The epsilon that all rounds of a client together spend: as the statement says, or as its ledger counts."""
    if not asked.ledger:
        parts = [] if found.moments is None else [found.moments]
        losses = [own.guarantee(asked.adversary, asked.adjacency, scale).loss for own in [*parts, found.gradient]]
        return accountant.compose([*losses[:-1], *losses[-1:] * asked.gradients], adjacency=asked.adjacency).epsilon(
            asked.spec.delta
        )
    account = accountant.Account.opening(Budget(asked.strengths[-1], asked.spec.delta, adjacency=asked.adjacency))
    for part, times in ((found.moments, 1), (found.gradient, asked.gradients)):
        if part is not None:
            own = replace(part.guarantee(asked.adversary, asked.adjacency, scale), adversary=SERVER, modulus=None)
            account = account.after(Release("planned", "planned", part.what, (own,)), times=times)
    return account.spent


def _grids(asked: HeadQuestion, sigma: float, shortest: float) -> Budgeting:
    """The grids whose noise is `sigma` times what a record adds in all rounds together, or a little more."""
    spec, shares, share = asked.spec, asked.shares, asked.spec.moments.share
    if share is None:
        share = share_for(asked, sigma)
    moments, limit = None, LONGEST_UNIT
    if share:
        moments, limit = _moments(asked, sigma / math.sqrt(share))
        if math.floor(limit**2 * shortest) < asked.form.cells:
            raise InvalidInput(
                f"so much noise leaves a record's unit vector of {asked.form.cells:,} cells {limit} steps, too few for "
                "its second moments: set method.moments.share higher, or 0"
            )
    each = sigma * math.sqrt(asked.gradients / (1 - share))
    bits, spare = _resolution(asked, each, shortest)
    clip = _steps(bits, shares, each, spare)
    if clip < FEWEST_STEPS:
        raise InvalidInput(
            f"noise of 2^{bits} steps leaves a record {clip} of them, and {FEWEST_STEPS} are the least: raise "
            "method.resolution, or leave it out"
        )
    longest = min(LONGEST_ROW, clip // min(RESIDUALS, linear_head.split_clip(clip)[1]))
    row = max(range((3 * longest + 3) // 4, longest + 1), key=lambda own: own * (clip // own))  # the least is lost
    residual = clip // row
    if math.floor(residual * shortest) < 1:
        raise InvalidInput(
            f"clients of epsilon {asked.strengths[0]:g} beside others of {asked.strengths[-1]:g} are left no step of "
            "the grid: raise method.resolution, or leave it out"
        )
    unit = spec.clip / (linear_head.aim(row, asked.form.size + 1) * linear_head.aim(residual, asked.classes))
    noise = noises.discrete_gaussian(bits)
    modulus = spec.bits or _modulus(asked, row * residual, noise)
    gradient = NoisySum(GRADIENT, asked.values, row * residual, noise, modulus, unit, spare)
    return Budgeting(moments, gradient, limit, row, residual, shares, share)


def _resolution(asked: HeadQuestion, sigma: float, shortest: float) -> tuple[int, int]:
    """The bits of a silo's noise, as few as leave rounding harmless, and the spare silos.

    One is spare where what the tables lack would be too much beside delta.
    """
    given = asked.spec.resolution

    def lack(choice: tuple[int, int]) -> float:
        bits, spare = choice
        return asked.gradients * asked.values * noises.discrete_gaussian(bits).slack(asked.shares, spare).tau

    def leaves(choice: tuple[int, int], steps: int) -> bool:
        bits, spare = choice
        return _steps(bits, asked.shares, sigma, spare) * shortest >= steps

    choices = [
        (bits, spare)
        for spare in range(min(2, asked.shares))
        for bits in ([given] if given else range(4, MOST_BITS + 1))
    ]
    enough = [choice for choice in choices if given or leaves(choice, FEWEST_CLIP)]
    fine = (choice for choice in enough if given or leaves(choice, LONGEST_ROW * RESIDUALS))
    found = next((choice for choice in fine if lack(choice) <= asked.spec.delta / 4), None)
    return min(enough, key=lack, default=(MOST_BITS, 0)) if found is None else found


def _steps(bits: int, shares: int, sigma: float, spare: int = 0) -> int:
    """How many steps a record may have where noise of 2^bits steps from each of `shares` silos is sigma times that."""
    return math.floor(noises.summed_sigma(bits, shares - spare) / sigma)


def _moments(asked: HeadQuestion, sigma: float) -> tuple[NoisySum, int]:
    """The sum of second moments with noise sigma times what a record adds, and the length of whole unit vectors."""
    bits, limit, spare = 4, 0, 0
    while limit < LONGEST_UNIT // math.sqrt(2) and bits < MOST_BITS:
        bits += 1
        limit = math.isqrt(math.floor(_steps(bits, asked.shares, sigma) / math.sqrt(2)))
    if asked.shares > 1 and asked.form.moments * noises.discrete_gaussian(bits).slack(asked.shares).tau > (
        asked.spec.delta / 4
    ):
        spare, limit = 1, math.isqrt(math.floor(_steps(bits, asked.shares, sigma, 1) / math.sqrt(2)))
    if limit < FEWEST_STEPS:
        raise InvalidInput("there is no room for second moments under so much noise: set method.moments.share higher")
    limit = min(limit, LONGEST_UNIT)
    noise = noises.discrete_gaussian(bits)
    unit = 1 / linear_head.aim(limit, asked.form.size) ** 2
    modulus = _modulus(asked, limit * limit, noise)
    sensitivity = unit_vectors.moments_sensitivity(limit)
    return NoisySum(MOMENTS, asked.form.moments, sensitivity, noise, modulus, unit, spare), limit


def _modulus(asked: HeadQuestion, largest: int, noise: DiscreteGaussian) -> int:
    """m: so that no sum of twice the records announced, all alike, and hardly ever its noise, wraps around 2^m."""
    records = 2 * asked.records if asked.spec.protects == "record" else 1.0
    most = asked.clients * records * largest + 12 * math.sqrt(asked.clients) * noise.sigma
    return min(NoisySums.most_bits, math.ceil(math.log2(most)) + 1)


__all__ = [
    "GRADIENT", "MOMENTS", "Budgeting", "HeadQuestion", "Moments", "NoisySum", "PrivateHead", "VectorLimits", "planned",
    "share_for", "spent", "step_for",
]  # fmt: skip

"""Noise, grids and bytes of a linear head on public features, from a budget: for a recipe, or for plain numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

from sordino.channels.secagg import Session
from sordino.errors import InvalidInput
from sordino.learning.unit_vectors import Form
from sordino.methods.private_head import Budgeting, HeadQuestion, NoisySum, PrivateHead, planned, spent, step_for
from sordino.parts import registry
from sordino.privacy.accountant import compose
from sordino.privacy.guarantee import SERVER, Adjacency, Adversary
from sordino.privacy.terms import adjacency_named
from sordino.runs.plan_options import PlanOptions, needed
from sordino.runs.senders import MechanismSender

if TYPE_CHECKING:
    from sordino.parts.tables import Spec
    from sordino.recipe import Recipe

DELTA = 1e-5  #: where none is given
CLASSES = 10


@dataclass(frozen=True)
class SumPlan:
    """One kind of noisy sums of a run, as silos send them."""

    what: str
    times: int  #: rounds in which it is sent
    values: int
    steps: int  #: L2 norm of what a record, or a client, adds at most, in steps of the grid
    noise_bits: int  #: a silo's noise has 2^noise_bits steps
    multiplier: float  #: the noise of all honest silos, in units of `steps`
    modulus_bits: int
    report_bytes: int  #: that a silo sends each time
    epsilon: float  #: proven of one such sum, at the plan's delta
    mean_noise: float  #: standard deviation in one value of the mean over records, or clients

    @property
    def mean_norm(self) -> float:
        """L2 norm of the noise in the mean."""
        return self.mean_noise * math.sqrt(self.values)


@dataclass(frozen=True)
class HeadPlan:
    """What a budget allows a linear head, for the largest of the clients' epsilons."""

    question: HeadQuestion
    budgeting: Budgeting
    scales: Sequence[float]  #: of the vectors of clients by their epsilons, ascending
    unproven: str = ""  #: why nothing is proven, where nothing is

    @classmethod
    def of(cls, question: HeadQuestion) -> HeadPlan:
        """The plan for a question."""
        return cls(question, *planned(question))

    @classmethod
    def of_method(cls, method: PrivateHead) -> HeadPlan:
        """The plan that a method follows."""
        return cls(method.question, method.budgeting, method.scales, method.unproven or "")

    @property
    def _parts(self) -> list[tuple[NoisySum, int]]:
        found = self.budgeting
        first = [] if found.moments is None else [(found.moments, 1)]
        return [*first, (found.gradient, self.question.gradients)]

    def epsilon(self, adversary: Adversary, adjacency: Adjacency) -> float:
        """Proven for all rounds together, at the plan's delta; infinite where nothing is."""
        return self._proven(self._parts, adversary, adjacency)

    def _proven(self, parts: Sequence[tuple[NoisySum, int]], adversary: Adversary, adjacency: Adjacency) -> float:
        if self.unproven:
            return math.inf
        losses = [loss for part, times in parts for loss in [part.guarantee(adversary, adjacency).loss] * times]
        return compose(losses, adjacency=adjacency).epsilon(self.question.spec.delta)

    @property
    def proven(self) -> float:
        """The epsilon that leads: of what is protected, against who sees what the server sees."""
        return self.epsilon(self.question.adversary, self.question.adjacency)

    @property
    def alone(self) -> float:
        """The same against whoever sees a silo's own reports."""
        return self.epsilon(SERVER, self.question.adjacency)

    @property
    def ledger(self) -> float:
        """What a client's ledger counts for all rounds, in the terms of `proven`: it holds for adaptive servers."""
        return math.inf if self.unproven else spent(replace(self.question, ledger=True), self.budgeting, 1.0)

    @cached_property
    def sums(self) -> tuple[SumPlan, ...]:
        """The sums, in the order in which they are sent."""
        return tuple(self._sum(part, times) for part, times in self._parts)

    def _sum(self, part: NoisySum, times: int) -> SumPlan:
        asked = self.question
        return SumPlan(
            part.what, times, part.values, math.ceil(part.sensitivity), part.noise.bits,
            part.slack(asked.shares).sigma / part.sensitivity, part.bits, self._bytes(part),
            self._proven([(part, 1)], asked.adversary, asked.adjacency), asked.mean_noise(part),
        )  # fmt: skip

    def _bytes(self, part: NoisySum) -> int:
        asked = self.question
        if asked.shares == 1:
            return MechanismSender(part.mechanism).report_bytes(part.values)
        least = asked.spec.channel.least(asked.clients)
        session = Session("planned", 1, 0, "", part.values, 0, 0, asked.clients, least, modulus=part.bits)
        return session.vector_bytes

    @property
    def step(self) -> float:
        """Along the mean gradient."""
        return self.question.spec.server_lr or step_for(self.budgeting.gradient, self.question)

    @property
    def whitening_noise(self) -> float | None:
        """About the spectral norm of the noise in the second moments of a record; None where there are none."""
        found = self.budgeting.moments
        return None if found is None else 2 * self.question.mean_noise(found) * math.sqrt(self.question.form.maps)


# --- questions --------------------------------------------------------------------------------------------------------


def is_head(recipe: Recipe) -> bool:
    """Whether a recipe trains a linear head on public features."""
    return isinstance(recipe.method, PrivateHead.Spec)


def of_recipe(recipe: Recipe, options: PlanOptions) -> HeadPlan:
    """The plan of a recipe; options take the place of its own epsilon, delta, rounds and clients."""
    from sordino.runs.federation import wire

    _refuse(options, ("values", "maps", "classes"), "a recipe has its own")
    given = {
        "clients.epsilon": options.epsilon, "method.delta": options.delta, "rounds.count": options.rounds,
        "split.clients": options.clients, "method.announced_size": options.records,
        "method.channel": {"kind": "direct"} if options.honest == 1 else None,  # so few may be too few for a sum
    }  # fmt: skip
    changed = recipe.with_({key: value for key, value in given.items() if value is not None})
    given_method = changed.method
    assert isinstance(given_method, PrivateHead.Spec)
    own = given_method.model_copy(update=_trust(given_method, changed.number_of_clients, options))
    method = wire(changed.model_copy(update={"method": own})).method
    assert isinstance(method, PrivateHead)
    return HeadPlan.of_method(method)


def of_numbers(options: PlanOptions) -> HeadPlan:
    """The plan for plain numbers."""
    values = needed(options.values, "--values is missing: (features + 1) times the classes")
    maps = needed(options.maps, "--maps is missing: maps of cells that features form; without cells, all features")
    rounds = needed(options.rounds, "--rounds is missing: the first sums second moments, all others gradients")
    clients = needed(options.clients, "--clients is missing: how many silos are there?")
    records = needed(options.records, "--records is missing: the public size of a silo")
    epsilon = needed(options.epsilon, "--epsilon is missing: how much may be spent in all?")
    classes = options.classes or CLASSES
    size = values // classes - 1
    if values % classes or size < 1 or size % maps:
        raise InvalidInput(
            f"{values:,} values of {classes} classes and {maps} maps are no linear head: it has (maps x cells + 1) x "
            "classes values, such as (81 x 49 + 1) x 10 = 39,700"
        )
    spec = PrivateHead.Spec(
        extractor=registry.make("extractor", "plain"), delta=options.delta or DELTA, channel=_secure_sum(clients)
    )
    spec = spec.model_copy(update=_trust(spec, clients, options))
    if rounds < 2:
        raise InvalidInput(f"--rounds must be 2 or more, got {rounds}: the first sums second moments")
    if spec.lacks_honest_silos(clients):
        raise InvalidInput(
            f"{clients} silos are too few for a secure sum with honest ones in it: give --honest 1, where every silo "
            "adds all of the noise, or more clients"
        )
    form = Form(maps, size // maps)
    return HeadPlan.of(HeadQuestion(form, classes, [epsilon], spec, rounds - 1, clients, records))


def _trust(spec: PrivateHead.Spec, clients: int, options: PlanOptions) -> dict[str, object]:
    """What the options change of who is protected from whom."""
    _refuse(options, ("norm", "radius", "steps", "rate", "update_norm"), "private-head takes none")
    changes: dict[str, object] = {}
    if options.adjacency is not None:
        hidden = adjacency_named(options.adjacency)
        if hidden not in (Adjacency.RECORD_ADD_REMOVE, Adjacency.CLIENT):
            raise InvalidInput("private-head is planned for record-add-remove or client; a statement has the others")
        changes["protects"] = "client" if hidden is Adjacency.CLIENT else "record"
    if options.honest == 1:
        changes["channel"] = registry.make("channel", "direct")
    elif options.honest is not None:
        channel = spec.channel if hasattr(spec.channel, "least") else _secure_sum(clients)
        least = channel.least(clients)
        if options.honest > least:
            raise InvalidInput(f"--honest {options.honest} is more than the {least} of {clients} silos that must stay")
        changes |= {"channel": channel, "colluding": least - options.honest}
    return changes


def _secure_sum(clients: int) -> Spec:
    """A secure sum in which a tenth of the silos may be absent."""
    least = clients - math.ceil(clients / 10)
    made: Spec = registry.make("channel", "summed", threshold=max(0.5, (least - 0.5) / clients))
    return made


def _refuse(options: PlanOptions, names: Sequence[str], why: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            raise InvalidInput(f"--{name.replace('_', '-')} does not belong here ({why}): leave it out")


__all__ = ["HeadPlan", "SumPlan", "is_head", "of_numbers", "of_recipe"]

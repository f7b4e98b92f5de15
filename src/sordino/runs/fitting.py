"""Fit mechanisms to a budget, before anything is trained: `sordino plan` for plain numbers or for a recipe.

Each mechanism says which of its parameters is sought, and where (`Mechanism.tunings`); `sordino.privacy.planning` finds
it, and `sordino.runs.preflight` predicts the noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from sordino.errors import InvalidInput
from sordino.mechanisms import Mechanism, mechanism_named
from sordino.mechanisms.integers import MIN_EPSILON
from sordino.mechanisms.tuning import Tuning
from sordino.parts.lazy import loading
from sordino.privacy import planning
from sordino.privacy.guarantee import SERVER, Adjacency, Budget, Guarantee, PoissonGaussian, Release
from sordino.privacy.planning import Allowance
from sordino.runs.plan_options import PlanOptions, needed
from sordino.runs.preflight import ClientGroup, Preflight, asked_per_round
from sordino.runs.senders import MechanismSender, PrivateSilo, Sender

if TYPE_CHECKING:
    from sordino.recipe import Recipe
    from sordino.runs.federation import Federation

DP_SGD = "dp-sgd"


@dataclass(frozen=True)
class Question:
    """So many values a round within this budget, and who averages them."""

    budget: Budget
    values: int | None  #: None where it makes no difference and was not said
    rounds: int
    clients: int | None = None
    asked: float | None = None
    update_norm: float | None = None

    @property
    def size(self) -> int:
        """How many values to reckon with."""
        return self.values or 1

    def release(self, sender: Sender) -> Release:
        """What one round releases, with the guarantee for the budget's own adjacency in front."""
        (release,) = sender.releases(self.size)
        if isinstance(sender, MechanismSender):
            own = sender.mechanism.guarantee(self.budget.adjacency, values=self.size)
            release = replace(release, guarantees=(own,))
        return release


@dataclass(frozen=True)
class Family:
    """A mechanism, or private training, with the name of its parameter: how it sends, and how it is planned."""

    name: str
    parameter: str
    sender: Callable[[float], Sender]
    plan: Callable[[Question], Allowance]
    needs_delta: bool = False

    @classmethod
    def of(cls, tuning: Tuning) -> Family:
        """A mechanism as it says that it can be fitted."""

        def sender(parameter: float) -> Sender:
            return MechanismSender(tuning.build(parameter))

        def plan(question: Question) -> Allowance:
            find = planning.largest if tuning.sought == "largest" else planning.least
            between = tuning.between
            return find(question.budget, question.rounds, lambda p: question.release(sender(p)), between=between)

        return cls(tuning.name, tuning.parameter, sender, plan, tuning.needs_delta)


@dataclass(frozen=True)
class Fit:
    """What the budget allows one mechanism, and what that looks like in the average of the clients."""

    family: Family
    question: Question
    allowance: Allowance
    ahead: Preflight

    @property
    def averaged(self) -> bool:
        """Whether it was said how many clients average their reports."""
        return self.question.clients is not None


Cases = list[tuple[Family, Question]]


def fit(family: Family, question: Question) -> Fit:
    """The parameter that the budget allows, and the noise to expect with it."""
    allowance = family.plan(question)
    group = ClientGroup(tuple(range(question.clients or 1)), family.sender(allowance.parameter))
    ahead = Preflight([group], question.size, question.rounds, question.asked, question.update_norm)
    return Fit(family, question, allowance, ahead)


# --- mechanisms -------------------------------------------------------------------------------------------------------


def plain_cases(names: Sequence[str], options: PlanOptions, every: Sequence[str]) -> Cases:
    """The mechanisms named; else `every` one that can keep this budget."""
    cases: Cases = []
    for name in names or every:
        budget = options.budget(of_records=name == DP_SGD)
        if name != DP_SGD:
            needed(options.values, "--values is missing: how many values has an upload?")
        question = Question(
            budget, options.values, options.rounds or 1, options.clients, options.clients, options.update_norm
        )
        found = families(name, question.size, options)
        cases += [(family, question) for family in found if names or budget.delta or not family.needs_delta]
    return cases


def families(name: str, values: int, options: PlanOptions, unproven: str | None = None) -> list[Family]:
    """The ways to plan one mechanism, one for each norm it may clip by; or private training, which may be unproven."""
    if name == DP_SGD:
        steps = needed(options.steps, "--steps is missing: how many steps does a silo make in a round?")
        rate = needed(options.rate, "--rate is missing: which share of a silo's records is in a batch?")
        return [_silo(steps, rate, unproven)]
    tunings = mechanism_named(name).tunings(options.ranges(values))
    if not tunings:
        raise InvalidInput(f"the mechanism {name} says no parameter that could be planned: give it `tunings`")
    norms = list(dict.fromkeys(tuning.norm for tuning in tunings))
    if options.norm is not None and len(norms) > 1:
        if options.norm not in norms:
            raise InvalidInput(f"this mechanism does not clip by {options.norm}; allowed: {', '.join(norms)}")
        tunings = [tuning for tuning in tunings if tuning.norm == options.norm]
    return [Family.of(tuning) for tuning in tunings]


def _silo(steps: int, rate: float, unproven: str | None = None) -> Family:
    """Silos by DP-SGD, as long as it is not known how a gradient's noise enters an update.

    Where code is the reason that nothing is proven, no noise helps: what is planned is the noise that would do without.
    """

    def sender(multiplier: float) -> Sender:
        guarantee = Guarantee(
            SERVER, Adjacency.RECORD_ADD_REMOVE, PoissonGaussian(rate, multiplier, steps), "DP-SGD, of Gaussian noise"
        )
        return PrivateSilo(lambda _: guarantee, multiplier, 1.0, 1.0, (), unproven)

    def plan(question: Question) -> Allowance:
        allowance = planning.private_training(question.budget, question.rounds, sampling_rate=rate, steps=steps)
        if unproven is None:
            return allowance
        return replace(allowance, release=allowance.release.unproven_of_records(unproven), spent=math.inf)

    return Family(DP_SGD, "noise multiplier", sender, plan)


# --- recipes ----------------------------------------------------------------------------------------------------------


def recipe_cases(recipe: Recipe, names: Sequence[str], options: PlanOptions) -> Cases:
    """The recipe's own mechanism, or those named, on the recipe's own values, rounds and clients."""
    with loading():
        from sordino.methods.blueprint import unproven_code
        from sordino.runs.federation import wire  # not before it is needed: it brings PyTorch along

    federation = wire(recipe)
    values, silo = federation.upload.values, recipe.method.name == "silo-dp"
    options = _with_range(options, federation)
    unproven = federation.method.unproven or unproven_code(recipe)
    found = [own for name in names for own in families(name, values, options, unproven)] or [_own_family(federation)]
    rounds = options.rounds or recipe.rounds.count
    asked = float(options.clients or asked_per_round(recipe))
    clients = max(math.ceil(asked), options.clients or federation.clients)
    return [
        (family, Question(budget, values, rounds, clients, asked, options.update_norm))
        for budget in _recipe_budgets(recipe, options, of_records=silo)
        for family in found
    ]


def _with_range(options: PlanOptions, federation: Federation) -> PlanOptions:
    """The recipe's range goes for mechanisms that clip as its own does: value by value, or whole vectors."""
    radius = getattr(getattr(federation.recipe.method, "range", None), "radius", None)
    if not isinstance(radius, (int, float)):
        return options
    by_value = federation.upload.mechanisms[0].domain.by_value
    return replace(options, box=float(radius)) if by_value else replace(options, ball=float(radius))


def _recipe_budgets(recipe: Recipe, options: PlanOptions, *, of_records: bool) -> list[Budget]:
    """The budget given, else the recipe's own, smallest first, else the target of its DP-SGD."""
    if options.epsilon is not None:
        delta = _recipe_delta(recipe) if options.delta is None else options.delta
        return [replace(options, delta=delta).budget(of_records=of_records)]
    if options.delta is not None or options.adjacency is not None:
        raise InvalidInput("--delta and --adjacency belong to a budget of your own: give --epsilon with them")
    if own := recipe.budgets():
        return sorted(set(own), key=lambda budget: budget.limit)
    if target := getattr(recipe.method, "target", None):
        return [Budget(target.epsilon, target.delta, adjacency=Adjacency.RECORD_ADD_REMOVE)]
    raise InvalidInput(f"the recipe {recipe.name!r} sets no budget: give --epsilon, for the whole training")


def _recipe_delta(recipe: Recipe) -> float:
    """The smallest delta of the recipe's budgets, else that of its target, else 0."""
    if own := recipe.budgets():
        return min(budget.delta for budget in own)
    target = getattr(recipe.method, "target", None)
    return 0.0 if target is None else target.delta


def _own_family(federation: Federation) -> Family:
    """The recipe's own mechanism: its epsilon is sought, or its sigma where that is what the recipe gives."""
    from sordino.methods.silo_dp import SiloDp

    if isinstance(federation.method, SiloDp):  # of which it is known how they train
        training = federation.method.training
        unproven = federation.method.unproven
        silo = _silo(training.steps, training.sampling_rate, unproven)
        return replace(silo, sender=lambda m: PrivateSilo.of(replace(training, noise_multiplier=m), unproven))
    spec, build = federation.recipe.method.mechanism, federation.upload.build
    if spec.takes_epsilon:
        return Family.of(Tuning(spec.name, "clients.epsilon", build, _epsilons(build)))
    if getattr(spec, "sigma", None) is None:
        raise InvalidInput(
            f"the mechanism {spec.name!r} of this recipe adds no noise that could be planned: name another, such as "
            "--mechanism two-point, or set method.mechanism.name"
        )
    within, upload = federation.recipe.method.range, federation.upload

    def with_sigma(sigma: float) -> Mechanism:
        own = spec.model_copy(update={"sigma": sigma})
        mechanism: Mechanism = own.builder(within, federation.layout.layers, upload.values)(None)
        return mechanism

    between = upload.mechanisms[0].sigma_range(float(within.radius))
    return Family.of(Tuning(spec.name, "method.mechanism.sigma", with_sigma, between, "least"))


def _epsilons(build: Callable[[float], Mechanism]) -> tuple[float, float]:
    """Where to look for an epsilon: up to the largest power of two that the mechanism takes."""
    high = 64.0
    while True:
        try:
            return build(high).least_strength, high
        except InvalidInput:
            high /= 2
            if high < MIN_EPSILON:
                raise

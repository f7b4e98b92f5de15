"""`sordino plan`: from a budget to the parameters of each round, or from these to the number of rounds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from sordino.cli.printing import AsJson, figure, json_figure, plain_errors, print_json, print_tables, with_progress
from sordino.errors import InvalidInput

if TYPE_CHECKING:
    from rich.table import Table

    from sordino.mechanisms import Mechanism
    from sordino.privacy.guarantee import Budget, Release
    from sordino.privacy.planning import Allowance
    from sordino.recipe import Recipe
    from sordino.runs.federation import Federation
    from sordino.runs.preflight import Preflight, Sender

NAMES = ("two-point", "sign", "laplace", "piecewise", "exponential", "gaussian", "dp-sgd")


@dataclass(frozen=True)
class Question:
    """What is to be planned: so many values a round within this budget, and who averages them."""

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


@dataclass(frozen=True)
class Family:
    """A mechanism whose parameter is sought: its name, the parameter's, and how both are used."""

    name: str
    parameter: str
    sender: Callable[[float], Sender]
    plan: Callable[[Question], Allowance]


@dataclass(frozen=True)
class Answer:
    """What the budget allows one mechanism, and what that looks like in the average of the clients."""

    family: Family
    question: Question
    allowance: Allowance
    ahead: Preflight

    @property
    def averaged(self) -> bool:
        """Whether it was said how many clients average their reports."""
        return self.question.clients is not None


@dataclass(frozen=True)
class Options:
    """The options as they were given."""

    epsilon: float | None
    delta: float | None
    adjacency: str | None
    rounds: int | None
    values: int | None
    norm: str | None
    radius: float | None
    precision: int
    steps: int | None
    rate: float | None
    clients: int | None
    update_norm: float | None
    box: float | None = None  #: a recipe's range for single values
    ball: float | None = None  #: a recipe's range for whole vectors


Cases = list[tuple[Family, Question]]


def plan(
    mechanism: Annotated[
        list[str] | None, typer.Option(help=f"{', '.join(NAMES)}; may be repeated. All that fit if left out.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The budget's limit, for the whole training.")] = None,
    delta: Annotated[float | None, typer.Option(help="The budget's delta; 0 if left out.")] = None,
    adjacency: Annotated[
        str | None,
        typer.Option(
            help="What the budget hides: client, record-replace, record-add-remove or coordinate. Default: client; "
            "for dp-sgd record-add-remove."
        ),
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="How many rounds the budget must last.")] = None,
    parameter: Annotated[
        float | None, typer.Option(help="The other way round: how many rounds does the budget allow with this one?")
    ] = None,
    values: Annotated[int | None, typer.Option(help="How many values an upload has: the model's parameters.")] = None,
    norm: Annotated[
        str | None, typer.Option(help="How values are clipped: box or l1 for laplace, box or l2 for gaussian.")
    ] = None,
    radius: Annotated[
        float | None,
        typer.Option(
            help="The range: a value's largest distance from the centre, or a vector's largest norm. Default: three "
            "times the root mean square of an update's values, or its norm; 1 without an update norm."
        ),
    ] = None,
    precision: Annotated[int, typer.Option(help="Decimals that the exponential mechanism keeps.")] = 10,
    steps: Annotated[int | None, typer.Option(help="dp-sgd: steps in each round.")] = None,
    rate: Annotated[float | None, typer.Option(help="dp-sgd: the share of a silo's records in a batch.")] = None,
    clients: Annotated[
        int | None, typer.Option(help="How many reports are averaged in a round: predicts the noise.")
    ] = None,
    update_norm: Annotated[
        float | None, typer.Option(help="The L2 norm of a client's update: compares the noise with it.")
    ] = None,
    recipe: Annotated[
        str | None,
        typer.Option(metavar="NAME|FILE", help="Plan for a recipe's own model, mechanism, clients and rounds."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change a setting of the recipe.")
    ] = None,
    as_json: AsJson = False,
    misplaced: Annotated[list[str] | None, typer.Argument(hidden=True)] = None,
) -> None:
    """Turn a total budget into the parameters of each round, before anything is trained.

    The budget is counted as a client's ledger counts it, so that exactly so many rounds are admitted. Beside it stands
    what a privacy statement proves of the same rounds, which may be less, and the noise to expect.

    sordino plan --mechanism two-point --values 650 --rounds 10 --epsilon 50 --clients 20 --update-norm 0.4

    sordino plan --mechanism dp-sgd --steps 20 --rate 0.1 --rounds 10 --epsilon 5 --delta 1e-5

    sordino plan --mechanism laplace --norm l1 --values 650 --epsilon 50 --parameter 4

    sordino plan --recipe two-point-digits --epsilon 50 --delta 1e-5
    """
    with plain_errors():
        if misplaced:
            raise InvalidInput(f"got {misplaced[0]!r} without an option: a recipe is named by --recipe {misplaced[0]}")
        options = Options(
            epsilon, delta, adjacency, rounds, values, norm, radius, precision, steps, rate, clients, update_norm
        )
        names = _checked(mechanism or [], options)
        if recipe is None and settings:
            raise InvalidInput("--set changes a recipe: name it with --recipe")
        cases = _recipe_cases(recipe, settings or [], names, options) if recipe else _plain_cases(names, options)
        if parameter is not None:
            lines = [_rounds_with(family, question, parameter, options) for family, question in _only_one(cases)]
            if as_json:
                print_json(lines)
            else:
                typer.echo("\n".join(map(_rounds_in_words, lines)))
            return
        if rounds is None and recipe is None:
            raise InvalidInput(
                "--rounds is missing: how many must the budget last? (Or ask the other way: --parameter)"
            )
        answers = [_answer(*case) for case in with_progress(cases, "Planning")]
    if as_json:
        print_json([_as_json(answer) for answer in answers])
        return
    print_tables(*_tables(answers), spare=("bytes a report", "noise of the average (L2)", "epsilon, one round"))
    typer.echo("\n".join(_notes(answers)))


def _checked(names: list[str], options: Options) -> list[str]:
    from sordino.privacy.guarantee import check_count

    for name in names:
        if name not in NAMES:
            raise InvalidInput(f"unknown mechanism {name!r}; allowed: {', '.join(NAMES)}")
    if options.norm not in (None, "box", "l1", "l2"):
        raise InvalidInput(f"--norm is box, l1 or l2, got {options.norm!r}")
    for option in ("rounds", "values", "steps", "clients"):
        if (count := getattr(options, option)) is not None:
            check_count(f"--{option}", count)
    for option in ("update_norm", "radius"):
        size = getattr(options, option)
        if size is not None and not (math.isfinite(size) and size > 0):
            raise InvalidInput(f"--{option.replace('_', '-')} must be a finite number > 0, got {size!r}")
    return names


def _needed(value: Any, option: str, question: str) -> Any:
    if value is None:
        raise InvalidInput(f"{option} is missing: {question}")
    return value


def _budget(options: Options, *, of_records: bool) -> Budget:
    from sordino.privacy.guarantee import Adjacency, Budget
    from sordino.privacy.terms import adjacency_named

    limit = _needed(options.epsilon, "--epsilon", "how much may be spent in all?")
    hidden = Adjacency.RECORD_ADD_REMOVE if of_records else Adjacency.CLIENT
    if options.adjacency is not None:
        hidden = adjacency_named(options.adjacency)
    if hidden is Adjacency.LABEL:
        raise InvalidInput("an update is not a label: plan for client, record-replace, record-add-remove or coordinate")
    return Budget(limit, options.delta or 0.0, adjacency=hidden)


# --- mechanisms -------------------------------------------------------------------------------------------------------


def _plain_cases(names: list[str], options: Options) -> Cases:
    """The mechanisms named; else all that send a vector, save those that prove nothing under this budget."""
    cases: Cases = []
    for name in names or NAMES[:-1]:
        budget = _budget(options, of_records=name == "dp-sgd")
        if name == "gaussian" and not names and budget.delta == 0:
            continue
        if name != "dp-sgd":
            _needed(options.values, "--values", "how many values has an upload?")
        question = Question(
            budget, options.values, options.rounds or 1, options.clients, options.clients, options.update_norm
        )
        cases += [(family, question) for family in _families(name, question.size, options)]
    return cases


def _families(name: str, values: int, options: Options) -> list[Family]:
    """The ways to plan one mechanism: one for each norm it may clip by."""
    from sordino import mechanisms as m
    from sordino.mechanisms.integers import MAX_EPSILON, MIN_EPSILON

    each, whole = _radii(options, values)
    box, bits = m.Box(0.0, each), (MIN_EPSILON, MAX_EPSILON)
    match name:
        case "two-point":
            return [_family(name, "epsilon per value", lambda e: m.TwoPoint(e, box), bits)]
        case "sign":
            return [_family(name, "epsilon per value", lambda e: m.RandomizedSign.response(e, box), bits)]
        case "piecewise":
            return [_family(name, "epsilon per value", lambda e: m.Piecewise(e, box), bits)]
        case "exponential":
            codes = m.IntegerRange(each, options.precision)
            alphas = (1.001 * MIN_EPSILON / codes.bound, 63.9)
            return [_family(name, "alpha per value", lambda a: m.Exponential(a, codes), alphas)]
        case "laplace":
            l1 = m.L1Ball(whole)
            return _by_norm(
                options.norm,
                box=_family("laplace (box)", "epsilon per value", lambda e: m.Laplace(e, box), bits),
                l1=_family("laplace (l1)", "epsilon per upload", lambda e: m.Laplace(e, l1), bits),
            )
        case "gaussian":
            l2 = m.L2Ball(whole)
            return _by_norm(
                options.norm,
                box=_family("gaussian (box)", "sigma", lambda s: m.Gaussian(s, box), _sigmas(each), "least"),
                l2=_family("gaussian (l2)", "sigma", lambda s: m.Gaussian(s, l2), _sigmas(whole), "least"),
            )
    steps = _needed(options.steps, "--steps", "how many steps does a silo make in a round?")
    rate = _needed(options.rate, "--rate", "which share of a silo's records is in a batch?")
    return [_silo_family(steps, rate)]


def _radii(options: Options, values: int) -> tuple[float, float]:
    """How far a value may lie from the centre, and how long a vector may be: as given, or what fits an update."""
    norm = options.update_norm
    each, whole = (1.0, 1.0) if norm is None else (3 * norm / math.sqrt(values), norm)
    return options.radius or options.box or each, options.radius or options.ball or whole


def _sigmas(radius: float) -> tuple[float, float]:
    from sordino.mechanisms.noise import FINE_SIGMA

    return radius / 511, 0.999 * radius * FINE_SIGMA


def _by_norm(norm: str | None, **choices: Family) -> list[Family]:
    if norm is None:
        return list(choices.values())
    if norm not in choices:
        raise InvalidInput(f"this mechanism does not clip by {norm}; allowed: {', '.join(choices)}")
    return [choices[norm]]


def _family(
    name: str,
    parameter: str,
    build: Callable[[float], Mechanism],
    between: tuple[float, float],
    sought: Literal["largest", "least"] = "largest",
) -> Family:
    from sordino.privacy import planning
    from sordino.runs.preflight import Randomised

    def plan(question: Question) -> Allowance:
        find = planning.largest if sought == "largest" else planning.least
        return find(
            question.budget, question.rounds, lambda p: _release(Randomised(build(p)), question), between=between
        )

    return Family(name, parameter, lambda p: Randomised(build(p)), plan)


def _release(sender: Sender, question: Question) -> Release:
    """What one round releases, with the guarantee for the budget's own adjacency in front."""
    from sordino.runs.preflight import Randomised

    (release,) = sender.releases(question.size)
    if isinstance(sender, Randomised):
        own = sender.mechanism.guarantee(question.budget.adjacency, values=question.size)
        release = replace(release, guarantees=(own,))
    return release


def _silo_family(steps: int, rate: float) -> Family:
    """Silos by DP-SGD, as long as it is not known how a gradient's noise enters an update."""
    from sordino.privacy import planning
    from sordino.privacy.guarantee import SERVER, Adjacency, Guarantee, PoissonGaussian
    from sordino.runs.preflight import PrivateSilo

    def sender(multiplier: float) -> Sender:
        guarantee = Guarantee(
            SERVER, Adjacency.RECORD_ADD_REMOVE, PoissonGaussian(rate, multiplier, steps), "DP-SGD, of Gaussian noise"
        )
        return PrivateSilo(lambda _: guarantee, multiplier, 1.0, 1.0, ())

    def plan(question: Question) -> Allowance:
        return planning.private_training(question.budget, question.rounds, sampling_rate=rate, steps=steps)

    return Family("dp-sgd", "noise multiplier", sender, plan)


# --- recipes ----------------------------------------------------------------------------------------------------------


def _recipe_cases(name: str, settings: list[str], names: list[str], options: Options) -> Cases:
    """The recipe's own mechanism, or those named, on the recipe's own values, rounds and clients."""
    from sordino.recipe import Recipe
    from sordino.runs.federation import wire
    from sordino.runs.preflight import asked_per_round

    recipe = Recipe.load(name, settings)
    federation = wire(recipe)
    values, silo = federation.upload.values, recipe.method.name == "silo-dp"
    options = _with_range(options, recipe)
    families = [family for n in names for family in _families(n, values, options)] or [_own_family(federation)]
    rounds = options.rounds or recipe.rounds.count
    asked = float(options.clients or asked_per_round(recipe))
    clients = max(math.ceil(asked), options.clients or federation.clients)
    return [
        (family, Question(budget, values, rounds, clients, asked, options.update_norm))
        for budget in _recipe_budgets(recipe, options, of_records=silo)
        for family in families
    ]


def _with_range(options: Options, recipe: Recipe) -> Options:
    """The recipe's range goes for mechanisms that clip as its own does: value by value, or whole vectors."""
    method: Any = recipe.method
    radius = getattr(getattr(method, "range", None), "radius", None)
    if not isinstance(radius, (int, float)):
        return options
    whole = method.mechanism.name == "privunit" or getattr(method.mechanism, "norm", "box") != "box"
    return replace(options, ball=float(radius)) if whole else replace(options, box=float(radius))


def _recipe_budgets(recipe: Recipe, options: Options, *, of_records: bool) -> list[Budget]:
    """The budget given, else the recipe's own, smallest first, else the target of its DP-SGD."""
    from sordino.privacy.guarantee import Adjacency, Budget

    if options.epsilon is not None:
        return [_budget(options, of_records=of_records)]
    if options.delta is not None or options.adjacency is not None:
        raise InvalidInput("--delta and --adjacency belong to a budget of your own: give --epsilon with them")
    if own := recipe.budgets():
        return sorted(set(own), key=lambda budget: budget.limit)
    if target := getattr(recipe.method, "target", None):
        return [Budget(target.epsilon, target.delta, adjacency=Adjacency.RECORD_ADD_REMOVE)]
    raise InvalidInput(f"the recipe {recipe.name!r} sets no budget: give --epsilon, for the whole training")


def _own_family(federation: Federation) -> Family:
    """The recipe's own mechanism: its epsilon is sought, or its sigma where that is what the recipe gives."""
    method: Any = federation.recipe.method
    if method.name == "silo-dp":
        return _own_silo(federation)
    spec = method.mechanism
    if spec.takes_epsilon:
        build = federation.upload.build
        return _family(spec.name, "clients.epsilon", build, _epsilons(federation, build))
    if getattr(spec, "sigma", None) is None:
        raise InvalidInput(
            f"the mechanism {spec.name!r} of this recipe adds no noise that could be planned: name another, such as "
            "--mechanism two-point, or set method.mechanism.name"
        )
    return _own_sigma(federation, spec)


def _epsilons(federation: Federation, build: Callable[[float], Mechanism]) -> tuple[float, float]:
    """Where to look for an epsilon: up to the largest power of two that the mechanism takes."""
    from sordino.mechanisms import IntegerRange
    from sordino.mechanisms.integers import MIN_EPSILON

    high = 64.0
    while True:
        try:
            domain = build(high).domain
            break
        except InvalidInput:
            high /= 2
            if high < MIN_EPSILON:
                raise
    return (1.001 * MIN_EPSILON / domain.bound if isinstance(domain, IntegerRange) else MIN_EPSILON), high


def _own_sigma(federation: Federation, spec: Any) -> Family:
    builder: Any = federation.upload.build

    def build(sigma: float) -> Mechanism:
        mechanism: Mechanism = replace(builder, spec=spec.model_copy(update={"sigma": sigma}))(None)
        return mechanism

    radius = float(builder.range.radius)
    between = (radius / 39.9, 9.9e6 * radius) if spec.name == "sign" else _sigmas(radius)
    return _family(spec.name, "method.mechanism.sigma", build, between, "least")


def _own_silo(federation: Federation) -> Family:
    """The recipe's silos, of which it is known how they train."""
    from sordino.methods.silo_dp import SiloDp
    from sordino.runs.preflight import PrivateSilo

    assert isinstance(federation.method, SiloDp)
    training = federation.method.training

    def sender(multiplier: float) -> Sender:
        return PrivateSilo.of(replace(training, noise_multiplier=multiplier))

    return replace(_silo_family(training.steps, training.sampling_rate), sender=sender)


# --- answers ----------------------------------------------------------------------------------------------------------


def _answer(family: Family, question: Question) -> Answer:
    from sordino.runs.preflight import Group, preflight

    allowance = family.plan(question)
    group = Group(tuple(range(question.clients or 1)), family.sender(allowance.parameter))
    ahead = preflight(
        [group], values=question.size, rounds=question.rounds, asked=question.asked, update_norm=question.update_norm
    )
    return Answer(family, question, allowance, ahead)


def _only_one(cases: Cases) -> Cases:
    if len({family.name for family, _ in cases}) > 1:
        raise InvalidInput("--parameter belongs to one mechanism: name it with --mechanism (and --norm)")
    return cases


def _rounds_with(family: Family, question: Question, parameter: float, options: Options) -> dict[str, Any]:
    from sordino.privacy.planning import rounds_allowed, stated_epsilon

    if options.rounds is not None:
        raise InvalidInput("give --rounds or --parameter, not both: one is sought from the other")
    release = _release(family.sender(parameter), question)
    budget = question.budget
    return {
        "mechanism": family.name,
        "parameter": {"name": family.parameter, "value": parameter},
        "values": question.values,
        "budget": _budget_as_json(budget),
        "round": {
            **_terms_as_json(release, budget),
            "epsilon": json_figure(stated_epsilon(budget, release)),
        },
        "rounds": rounds_allowed(budget, release),
    }


def _rounds_in_words(line: dict[str, Any]) -> str:
    budget, each, parameter = line["budget"], line["round"], line["parameter"]
    epsilon = each["epsilon"] if isinstance(each["epsilon"], str) else figure(each["epsilon"])
    return (
        f"{line['mechanism']} with {parameter['name']} {parameter['value']:g}: a budget of epsilon {budget['limit']:g} "
        f"({_in_words(budget)}) allows {line['rounds']:,} rounds. One round alone: epsilon {epsilon} "
        f"({each['adjacency']}, against {each['adversary']}, by {each['basis']})."
    )


def _in_words(budget: dict[str, Any]) -> str:
    return (
        f"{budget['basis']}, against {budget['adversary']}, adjacency {budget['adjacency']}, delta {budget['delta']:g}"
    )


def _budget_as_json(budget: Budget) -> dict[str, Any]:
    return {
        "limit": budget.limit,
        "delta": budget.delta,
        "basis": budget.basis,
        "adjacency": str(budget.adjacency),
        "adversary": str(budget.adversary),
    }


def _terms_as_json(release: Release, budget: Budget) -> dict[str, Any]:
    guarantee = release.guarantees[0]
    return {
        "delta": budget.delta,
        "adjacency": str(guarantee.adjacency),
        "adversary": str(guarantee.adversary),
        "basis": guarantee.basis,
    }


def _as_json(answer: Answer) -> dict[str, Any]:
    allowance, ahead = answer.allowance, answer.ahead
    terms = _terms_as_json(allowance.release, allowance.budget)
    noise = {"clients": ahead.asked, "noise": ahead.noise, "update": ahead.update, "ratio": ahead.ratio}
    return {
        "mechanism": answer.family.name,
        "parameter": {"name": answer.family.parameter, "value": allowance.parameter},
        "values": answer.question.values,
        "rounds": allowance.rounds,
        "budget": _budget_as_json(allowance.budget),
        "round": {**terms, "epsilon": json_figure(allowance.each)},
        "all_rounds": {**terms, "ledger": json_figure(allowance.spent), "statement": json_figure(allowance.total)},
        "report_bytes": None if answer.question.values is None else ahead.report_bytes[0],
        "average": {**noise, "expect": ahead.verdict} if answer.averaged else None,
    }


def _tables(answers: list[Answer]) -> Iterator[Table]:
    """One table for each budget: a title says what its epsilons are about."""
    from sordino.privacy.ledger import terms

    for question in dict.fromkeys(answer.question for answer in answers):
        budget = question.budget
        values = f" of {question.values:,} values" if question.values else ""
        title = f"{question.rounds} rounds{values} within epsilon {budget.limit:g} ({terms(budget)})"
        yield _table(title, [answer for answer in answers if answer.question == question])


def _table(title: str, answers: list[Answer]) -> Table:
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, title_justify="left", header_style="bold")
    table.add_column("mechanism", no_wrap=True)
    table.add_column("in each round", min_width=17)
    for column in ("epsilon, one round", "all rounds, ledger", "all rounds, statement"):
        table.add_column(column, justify="right")
    averaged = answers[0].averaged
    if averaged:
        table.add_column("noise of the average (L2)", justify="right")
        table.add_column("beside an update", justify="right", min_width=10)
    sized = answers[0].question.values is not None
    if sized:
        table.add_column("bytes a report", justify="right")
    for answer in answers:
        allowance, ahead = answer.allowance, answer.ahead
        cells = [answer.family.name, f"{answer.family.parameter} {allowance.parameter:g}"]
        cells += [figure(allowance.each), figure(allowance.spent), figure(allowance.total)]
        if averaged:
            cells += ["unknown" if ahead.noise is None else figure(ahead.noise), _beside(ahead)]
        cells += [f"{ahead.report_bytes[0]:,}"] if sized else []
        table.add_row(*map(Text, cells))
    return table


def _beside(ahead: Preflight) -> str:
    return "unknown" if ahead.ratio is None else f"{ahead.ratio:.3g} times"


def _notes(answers: list[Answer]) -> Iterator[str]:
    """The basis of each proof, what noise to expect, and what the two counts of all rounds are."""
    from sordino.privacy.statement import NO_MEANINGFUL_PROTECTION

    for answer in answers:
        yield f"{answer.family.name}: proven by {answer.allowance.guarantee.basis}."
        if answer.averaged and answer.ahead.verdict is not None:
            yield f"    The noise is {_beside(answer.ahead)} an update: {answer.ahead.verdict}."
    if any(answer.allowance.total > NO_MEANINGFUL_PROTECTION for answer in answers):
        yield f"Above epsilon {NO_MEANINGFUL_PROTECTION:g} there is no meaningful protection."
    yield "The ledger's count holds even if each round is chosen after seeing the last; a statement may prove less."

"""`sordino plan`: from a budget to the parameters of each round, or from these to the number of rounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.ledger import budget_as_json, terms_as_json
from sordino.cli.options import AsJson, Overrides
from sordino.cli.printing import Col, json_figure, print_json, print_table, right, with_progress
from sordino.errors import InvalidInput
from sordino.parts.lazy import loading
from sordino.privacy.guarantee import Budget, Guarantee, Infinite, Release
from sordino.report.words import decimal, deltas, figure, upper

if TYPE_CHECKING:
    from sordino.recipe import Recipe
    from sordino.runs.fitting import Family, Fit, Question
    from sordino.runs.head_plan import HeadPlan
    from sordino.runs.plan_options import PlanOptions
    from sordino.runs.preflight import Preflight

MECHANISMS = ("two-point", "sign", "laplace", "piecewise", "exponential", "gaussian")
HEAD = "private-head"
NAMES = (*MECHANISMS, "dp-sgd", HEAD)


def plan(
    recipe: Annotated[
        str | None,
        typer.Argument(metavar="[NAME|FILE]", help="Plan for a recipe's own model, mechanism, clients and rounds."),
    ] = None,
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(NAMES)} or your own as package.module:Class; may be repeated. All that fit if left out."
        ),
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="The budget's limit, for the whole training.")] = None,
    delta: Annotated[float | None, typer.Option(help="The budget's delta; the recipe's if left out, else 0.")] = None,
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
    maps: Annotated[int | None, typer.Option(help="private-head: maps of cells that a record's features form.")] = None,
    classes: Annotated[int | None, typer.Option(help="private-head: classes; 10 if left out.")] = None,
    records: Annotated[int | None, typer.Option(help="private-head: the public size of a silo.")] = None,
    honest: Annotated[
        int | None,
        typer.Option(
            help="private-head: honest silos in every secure sum; 1: every silo adds all of the noise. Default: a "
            "tenth may be absent, and a tenth may side with the server."
        ),
    ] = None,
    settings: Overrides = None,
    as_json: AsJson = False,
) -> None:
    """Turn a total budget into the parameters of each round, before anything is trained.

    The budget is counted as a client's ledger counts it, so that exactly so many rounds are admitted. Beside it stands
    what a privacy statement proves of the same rounds, which may be less, and the noise to expect.

    sordino plan --mechanism two-point --values 650 --rounds 10 --epsilon 50 --clients 20 --update-norm 0.4

    sordino plan --mechanism dp-sgd --steps 20 --rate 0.1 --rounds 10 --epsilon 5 --delta 1e-5

    sordino plan --mechanism laplace --norm l1 --values 650 --epsilon 50 --parameter 4

    sordino plan two-point-digits --epsilon 50 --delta 1e-5

    sordino plan proven-mnist --epsilon 0.5 --clients 50

    sordino plan --mechanism private-head --values 39700 --maps 81 --records 600 --clients 100 --rounds 51 --epsilon 1
    """
    with loading():
        from sordino.parts import registry
        from sordino.runs.fitting import fit, plain_cases, recipe_cases
        from sordino.runs.plan_options import PlanOptions

    names = mechanism or []
    for name in names:
        if name not in NAMES and registry.address_of("mechanism", name) is None:
            raise InvalidInput(f"unknown mechanism {name!r}; allowed: {', '.join(NAMES)}")
    options = PlanOptions(
        epsilon, delta, adjacency, rounds, values, norm, radius, precision, steps, rate, clients, update_norm,
        maps, classes, records, honest,
    )  # fmt: skip
    if recipe is None and settings:
        raise InvalidInput("--set changes a recipe: name one, such as sordino plan two-point-digits")
    found_recipe = None
    if recipe is not None:
        with loading():
            from sordino.recipe import Recipe

            found_recipe = Recipe.load(recipe, settings or [])
    if HEAD in names or (found_recipe is not None and found_recipe.method.name == HEAD):
        if parameter is not None or names not in ([], [HEAD]):
            raise InvalidInput("private-head is planned by itself, from --epsilon: leave --parameter and others out")
        _plan_head(found_recipe, options, as_json)
        return
    if any(given is not None for given in (maps, classes, records, honest)):
        raise InvalidInput("--maps, --classes, --records and --honest belong to private-head: leave them out")
    if found_recipe is not None:
        cases = recipe_cases(found_recipe, names, options)
    else:
        cases = plain_cases(names, options, MECHANISMS)
    if parameter is not None:
        if rounds is not None:
            raise InvalidInput("give --rounds or --parameter, not both: one is sought from the other")
        if len({family.name for family, _ in cases}) > 1:
            raise InvalidInput("--parameter belongs to one mechanism: name it with --mechanism (and --norm)")
        found = [_rounds_with(*case, parameter) for case in cases]
        if as_json:
            print_json([figures for figures, _ in found])
        else:
            typer.echo("\n".join(words for _, words in found))
        return
    if rounds is None and recipe is None:
        raise InvalidInput("--rounds is missing: how many must the budget last? (Or ask the other way: --parameter)")
    answers = [fit(*case) for case in with_progress(cases, "Planning")]
    if as_json:
        print_json([_as_json(answer) for answer in answers])
        return
    for question in dict.fromkeys(answer.question for answer in answers):
        _print_answers(question, [answer for answer in answers if answer.question == question])
    typer.echo("\n".join((*_notes(answers), *_evaluation(found_recipe))))


def _evaluation(recipe: Recipe | None) -> tuple[str, ...]:
    """What a recipe's private evaluation adds: it is in none of the figures of training."""
    if recipe is None or (given := recipe.evaluation.private) is None:
        return ()
    from sordino.runs.federation import wire

    evaluation = wire(recipe).evaluation
    assert evaluation is not None
    times, target = given.times(recipe.rounds.count), given.target
    what = f"Private evaluation ({times:,} in {recipe.rounds.count:,} rounds)"
    if evaluation.unproven is not None:
        return (f"{what} adds epsilon infinite: nothing is proven of it ({evaluation.unproven}).",)
    return (
        f"{what} adds epsilon {upper(target.epsilon)} at delta {figure(target.delta)}, for one record added or "
        "removed, and is in none of these figures: leave room for it.",
    )


# --- a linear head on public features ---------------------------------------------------------------------------------


def _plan_head(recipe: Recipe | None, options: PlanOptions, as_json: bool) -> None:
    with loading():
        from sordino.report import head_words
        from sordino.runs import head_plan

    if recipe is not None and not head_plan.is_head(recipe):
        raise InvalidInput(f"the recipe {recipe.name!r} is none of private-head: leave --mechanism private-head out")
    found = head_plan.of_numbers(options) if recipe is None else head_plan.of_recipe(recipe, options)
    if as_json:
        print_json(_head_as_json(found))
        return
    asked = found.question
    rounds = sum(own.times for own in found.sums)
    title = (
        f"{rounds} rounds of {asked.clients} silos with {decimal(asked.records)} records each, within epsilon "
        f"{figure(asked.strengths[-1])} ({asked.adjacency}, against {asked.adversary}, {deltas([asked.spec.delta])})"
    )
    whose = "record" if asked.spec.protects == "record" else "client"
    columns = [Col("sum", min_width=12), *right("times", "values", f"a {whose}, steps", "a silo's noise, steps")]
    columns += right(f"noise beside a {whose}", "epsilon, one", "modulus", "bytes a report")
    rows = [
        [
            own.what, f"{own.times}", f"{own.values:,}", f"{own.steps:,}", f"2^{own.noise_bits}",
            f"{own.multiplier:.4g} times", upper(own.epsilon), f"2^{own.modulus_bits}", f"{own.report_bytes:,}",
        ]
        for own in found.sums
    ]  # fmt: skip
    print_table(title, columns, rows, ("epsilon, one", "values"))
    typer.echo("\n".join((*head_words.details(found), *_evaluation(recipe))))


def _head_as_json(found: HeadPlan) -> dict[str, object]:
    asked, budgeting = found.question, found.budgeting
    return {
        "mechanism": HEAD,
        "epsilon": list(asked.strengths),
        "delta": asked.spec.delta,
        "adjacency": str(asked.adjacency),
        "adversary": str(asked.adversary),
        "rounds": sum(own.times for own in found.sums),
        "clients": asked.clients,
        "records": asked.records,
        "honest": budgeting.shares,
        "proven": json_figure(found.proven),
        "proven_alone": json_figure(found.alone),
        "ledger": json_figure(found.ledger),
        "sums": [
            {
                "what": own.what, "times": own.times, "values": own.values, "steps": own.steps,
                "noise_bits": own.noise_bits, "noise_multiplier": own.multiplier, "modulus_bits": own.modulus_bits,
                "report_bytes": own.report_bytes, "epsilon": json_figure(own.epsilon),
                "mean_noise": own.mean_noise, "mean_noise_norm": own.mean_norm,
            }
            for own in found.sums
        ],
        "grid": {"unit": budgeting.limit, "row": budgeting.row, "residual": budgeting.residual,
                 "clip": budgeting.row * budgeting.residual},
        "moments_share": budgeting.share,
        "whitening_noise": found.whitening_noise,
        "step": found.step,
    }  # fmt: skip


# --- answers ----------------------------------------------------------------------------------------------------------


def _rounds_with(family: Family, question: Question, parameter: float) -> tuple[dict[str, object], str]:
    """How many rounds a budget allows with a given parameter, for programs and in words."""
    from sordino.privacy.ledger import terms
    from sordino.privacy.planning import rounds_allowed, stated_epsilon

    budget, release = question.budget, question.release(family.sender(parameter))
    rounds, epsilon, guarantee = rounds_allowed(budget, release), stated_epsilon(budget, release), release.guarantees[0]
    found: dict[str, object] = {
        "mechanism": family.name,
        "parameter": {"name": family.parameter, "value": parameter},
        "values": question.values,
        "budget": budget_as_json(budget),
        "round": {**_terms_as_json(release, budget), "epsilon": json_figure(epsilon)},
        "rounds": rounds,
    }
    return found, (
        f"{family.name} with {family.parameter} {parameter:g}: a budget of epsilon {figure(budget.limit)} "
        f"({terms(budget)}) allows {rounds:,} rounds. One round alone: epsilon {upper(epsilon)} "
        f"({guarantee.adjacency}, against {guarantee.adversary}), {_basis(guarantee)}."
    )


def _basis(guarantee: Guarantee) -> str:
    if isinstance(guarantee.loss, Infinite):
        return f"nothing is proven, whatever the noise ({guarantee.loss.why})"
    return f"proven by {guarantee.basis}"


def _terms_as_json(release: Release, budget: Budget) -> dict[str, object]:
    guarantee = release.guarantees[0]
    return {"delta": budget.delta, **terms_as_json(guarantee), "basis": guarantee.basis}


def _as_json(answer: Fit) -> dict[str, object]:
    from sordino.report.expectations import verdict

    allowance, ahead = answer.allowance, answer.ahead
    terms = _terms_as_json(allowance.release, allowance.budget)
    noise = {
        "clients": ahead.asked,
        "noise": ahead.noise,
        "update": ahead.update,
        "ratio": ahead.ratio,
        "level": ahead.level,
    }
    return {
        "mechanism": answer.family.name,
        "parameter": {"name": answer.family.parameter, "value": allowance.parameter},
        "values": answer.question.values,
        "rounds": allowance.rounds,
        "budget": budget_as_json(allowance.budget),
        "round": {**terms, "epsilon": json_figure(allowance.each)},
        "all_rounds": {**terms, "ledger": json_figure(allowance.spent), "statement": json_figure(allowance.total)},
        "report_bytes": None if answer.question.values is None else ahead.report_bytes[0],
        "average": {**noise, "expect": verdict(ahead)} if answer.averaged else None,
    }


def _print_answers(question: Question, answers: list[Fit]) -> None:
    """A table for one budget: the title says what its epsilons are about."""
    from sordino.privacy.ledger import terms

    values = f" of {question.values:,} values" if question.values else ""
    title = (
        f"{question.rounds} rounds{values} within epsilon {figure(question.budget.limit)} ({terms(question.budget)})"
    )
    columns = [Col("mechanism", no_wrap=True), Col("in each round", min_width=17)]
    columns += right("epsilon, one round", "all rounds, ledger", "all rounds, statement")
    if answers[0].averaged:
        columns += [*right("noise of the average (L2)"), Col("beside the updates", "right", min_width=10)]
    if question.values is not None:
        columns += right("bytes a report")
    spare = ("bytes a report", "noise of the average (L2)", "epsilon, one round")
    print_table(title, columns, map(_row, answers), spare)


def _row(answer: Fit) -> list[str]:
    allowance, ahead = answer.allowance, answer.ahead
    cells = [answer.family.name, f"{answer.family.parameter} {allowance.parameter:g}"]
    cells += [upper(allowance.each), upper(allowance.spent), upper(allowance.total)]
    if answer.averaged:
        cells += ["unknown" if ahead.noise is None else decimal(ahead.noise), _beside(ahead)]
    return cells if answer.question.values is None else [*cells, f"{ahead.report_bytes[0]:,}"]


def _beside(ahead: Preflight) -> str:
    """The noise of all rounds beside all updates, as the words of a pre-flight go by it."""
    from sordino.report.expectations import printed

    return "unknown" if ahead.level is None else f"{printed(ahead.level):g} times"


def _notes(answers: list[Fit]) -> Iterator[str]:
    """The basis of each proof, what noise to expect, and what the two counts of all rounds are."""
    from sordino.privacy.statement import NO_MEANINGFUL_PROTECTION
    from sordino.report.expectations import verdict

    for answer in answers:
        yield f"{answer.family.name}: {_basis(answer.allowance.guarantee)}."
        if answer.averaged and (expected := verdict(answer.ahead)) is not None:
            yield f"    The noise of all rounds is {_beside(answer.ahead)} the updates: {expected}."
    if any(answer.allowance.total > NO_MEANINGFUL_PROTECTION for answer in answers):
        yield f"Above epsilon {NO_MEANINGFUL_PROTECTION:g} there is no meaningful protection."
    yield "The ledger's count holds even if each round is chosen after seeing the last; a statement may prove less."

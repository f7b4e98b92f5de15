"""`sordino plan`: from a budget to the parameters of each round, or from these to the number of rounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from sordino.cli.ledger import budget_as_json, terms_as_json
from sordino.cli.options import AsJson, Overrides
from sordino.cli.printing import Col, json_figure, print_json, print_table, right, with_progress
from sordino.errors import InvalidInput
from sordino.privacy.guarantee import Budget, Release
from sordino.report.words import decimal

if TYPE_CHECKING:
    from sordino.runs.fitting import Family, Fit, Question
    from sordino.runs.preflight import Preflight

NAMES = ("two-point", "sign", "laplace", "piecewise", "exponential", "gaussian", "dp-sgd")


def plan(
    mechanism: Annotated[
        list[str] | None,
        typer.Option(
            help=f"{', '.join(NAMES)} or your own as package.module:Class; may be repeated. All that fit if left out."
        ),
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
    settings: Overrides = None,
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
    if misplaced:
        raise InvalidInput(f"got {misplaced[0]!r} without an option: a recipe is named by --recipe {misplaced[0]}")
    from sordino.parts import registry
    from sordino.runs.fitting import PlanOptions, fit, plain_cases, recipe_cases

    names = mechanism or []
    for name in names:
        if name not in NAMES and registry.address_of("mechanism", name) is None:
            raise InvalidInput(f"unknown mechanism {name!r}; allowed: {', '.join(NAMES)}")
    options = PlanOptions(
        epsilon, delta, adjacency, rounds, values, norm, radius, precision, steps, rate, clients, update_norm
    )
    if recipe is None and settings:
        raise InvalidInput("--set changes a recipe: name it with --recipe")
    if recipe:
        from sordino.recipe import Recipe

        cases = recipe_cases(Recipe.load(recipe, settings or []), names, options)
    else:
        cases = plain_cases(names, options, NAMES[:-1])
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
    typer.echo("\n".join(_notes(answers)))


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
        f"{family.name} with {family.parameter} {parameter:g}: a budget of epsilon {budget.limit:g} ({terms(budget)}) "
        f"allows {rounds:,} rounds. One round alone: epsilon {decimal(epsilon)} ({guarantee.adjacency}, against "
        f"{guarantee.adversary}, by {guarantee.basis})."
    )


def _terms_as_json(release: Release, budget: Budget) -> dict[str, object]:
    guarantee = release.guarantees[0]
    return {"delta": budget.delta, **terms_as_json(guarantee), "basis": guarantee.basis}


def _as_json(answer: Fit) -> dict[str, object]:
    from sordino.report.expectations import verdict

    allowance, ahead = answer.allowance, answer.ahead
    terms = _terms_as_json(allowance.release, allowance.budget)
    noise = {"clients": ahead.asked, "noise": ahead.noise, "update": ahead.update, "ratio": ahead.ratio}
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
    title = f"{question.rounds} rounds{values} within epsilon {question.budget.limit:g} ({terms(question.budget)})"
    columns = [Col("mechanism", no_wrap=True), Col("in each round", min_width=17)]
    columns += right("epsilon, one round", "all rounds, ledger", "all rounds, statement")
    if answers[0].averaged:
        columns += [*right("noise of the average (L2)"), Col("beside an update", "right", min_width=10)]
    if question.values is not None:
        columns += right("bytes a report")
    spare = ("bytes a report", "noise of the average (L2)", "epsilon, one round")
    print_table(title, columns, map(_row, answers), spare)


def _row(answer: Fit) -> list[str]:
    allowance, ahead = answer.allowance, answer.ahead
    cells = [answer.family.name, f"{answer.family.parameter} {allowance.parameter:g}"]
    cells += [decimal(allowance.each), decimal(allowance.spent), decimal(allowance.total)]
    if answer.averaged:
        cells += ["unknown" if ahead.noise is None else decimal(ahead.noise), _beside(ahead)]
    return cells if answer.question.values is None else [*cells, f"{ahead.report_bytes[0]:,}"]


def _beside(ahead: Preflight) -> str:
    return "unknown" if ahead.ratio is None else f"{ahead.ratio:.3g} times"


def _notes(answers: list[Fit]) -> Iterator[str]:
    """The basis of each proof, what noise to expect, and what the two counts of all rounds are."""
    from sordino.privacy.statement import NO_MEANINGFUL_PROTECTION
    from sordino.report.expectations import verdict

    for answer in answers:
        yield f"{answer.family.name}: proven by {answer.allowance.guarantee.basis}."
        if answer.averaged and (expected := verdict(answer.ahead)) is not None:
            yield f"    The noise is {_beside(answer.ahead)} an update: {expected}."
    if any(answer.allowance.total > NO_MEANINGFUL_PROTECTION for answer in answers):
        yield f"Above epsilon {NO_MEANINGFUL_PROTECTION:g} there is no meaningful protection."
    yield "The ledger's count holds even if each round is chosen after seeing the last; a statement may prove less."

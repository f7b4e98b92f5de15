"""`sordino plan`: from a budget to the parameters of each round, or from these to the number of rounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sordino.cli.printing import AsJson, json_figure, plain_errors, print_json, print_tables, with_progress
from sordino.errors import InvalidInput
from sordino.report.words import decimal

if TYPE_CHECKING:
    from rich.table import Table

    from sordino.privacy.guarantee import Budget, Release
    from sordino.runs.fitting import Cases, Family, Fit, Question
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
        from sordino.runs.fitting import PlanOptions, fit, plain_cases, recipe_cases

        names = mechanism or []
        for name in names:
            if name not in NAMES and ":" not in name:
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
            lines = [_rounds_with(family, question, parameter, rounds) for family, question in _only_one(cases)]
            if as_json:
                print_json(lines)
            else:
                typer.echo("\n".join(map(_rounds_in_words, lines)))
            return
        if rounds is None and recipe is None:
            raise InvalidInput(
                "--rounds is missing: how many must the budget last? (Or ask the other way: --parameter)"
            )
        answers = [fit(*case) for case in with_progress(cases, "Planning")]
    if as_json:
        print_json([_as_json(answer) for answer in answers])
        return
    print_tables(*_tables(answers), spare=("bytes a report", "noise of the average (L2)", "epsilon, one round"))
    typer.echo("\n".join(_notes(answers)))


# --- answers ----------------------------------------------------------------------------------------------------------


def _only_one(cases: Cases) -> Cases:
    if len({family.name for family, _ in cases}) > 1:
        raise InvalidInput("--parameter belongs to one mechanism: name it with --mechanism (and --norm)")
    return cases


def _rounds_with(family: Family, question: Question, parameter: float, rounds: int | None) -> dict[str, Any]:
    from sordino.privacy.planning import rounds_allowed, stated_epsilon

    if rounds is not None:
        raise InvalidInput("give --rounds or --parameter, not both: one is sought from the other")
    release = question.release(family.sender(parameter))
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
    epsilon = each["epsilon"] if isinstance(each["epsilon"], str) else decimal(each["epsilon"])
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


def _as_json(answer: Fit) -> dict[str, Any]:
    from sordino.report.expectations import verdict

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
        "average": {**noise, "expect": verdict(ahead)} if answer.averaged else None,
    }


def _tables(answers: list[Fit]) -> Iterator[Table]:
    """One table for each budget: a title says what its epsilons are about."""
    from sordino.privacy.ledger import terms

    for question in dict.fromkeys(answer.question for answer in answers):
        budget = question.budget
        values = f" of {question.values:,} values" if question.values else ""
        title = f"{question.rounds} rounds{values} within epsilon {budget.limit:g} ({terms(budget)})"
        yield _table(title, [answer for answer in answers if answer.question == question])


def _table(title: str, answers: list[Fit]) -> Table:
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
        cells += [decimal(allowance.each), decimal(allowance.spent), decimal(allowance.total)]
        if averaged:
            cells += ["unknown" if ahead.noise is None else decimal(ahead.noise), _beside(ahead)]
        cells += [f"{ahead.report_bytes[0]:,}"] if sized else []
        table.add_row(*map(Text, cells))
    return table


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

"""The page of one run, `report.html`: made from the run's folder alone, and holding everything it shows."""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from sordino.errors import SordinoError
from sordino.parts.registry import own_code
from sordino.privacy.statement import Statement
from sordino.recipe import Recipe
from sordino.report import matrices, plots, scales
from sordino.report.folder import RunFolder
from sordino.report.leak_section import leak_section
from sordino.report.markup import Markup, element, join
from sordino.report.metric_words import ACCURACY, beside, figure_axis, figure_words
from sordino.report.plots import Mark, Reference, Series
from sordino.report.privacy_section import leading_epsilon, privacy_section
from sordino.report.private_figures import WHERE, leading, private_part, value_of
from sordino.report.records import ClientBudget, Result, RoundRecord, Simulation, to_line
from sordino.report.style import bullets, charts, document, folded, section, table, tiles
from sordino.report.words import count, counted, duration, listed, percent, size


@dataclass(frozen=True)
class _RunContents:
    """Everything the folder tells, read once."""

    recipe: Mapping[str, object]
    rounds: tuple[RoundRecord, ...]
    result: Result  #: of a run that is not over, what it had
    statement: Statement | None
    is_over: bool

    @classmethod
    def of(cls, folder: RunFolder) -> _RunContents:
        recipe, rounds, result = _parsed(folder.recipe), folder.rounds(), folder.result()
        so_far = Result(
            str(recipe.get("name", folder.path.name)),
            seed=0,
            stopped="",
            rounds=len(rounds),
            accuracy=next((record.accuracy for record in reversed(rounds) if record.accuracy is not None), None),
            metric=next((record.metric for record in rounds if record.metric), ACCURACY),
            score=next((record.score for record in reversed(rounds) if record.score is not None), None),
            private=next((record.private for record in reversed(rounds) if record.private is not None), None),
            clients=max((record.asked for record in rounds), default=0),
            seconds=sum(record.seconds for record in rounds),
        )
        return cls(recipe, rounds, result or so_far, folder.statement(), result is not None)

    def words(self, key: str) -> str:
        value = self.recipe.get(key, "")
        return value if isinstance(value, str) else ""

    @property
    def summary(self) -> str:
        """In the recipe's words, and whether they still fit."""
        try:
            with own_code(()):  # the folder may be somebody else's
                return Recipe.from_dict(self.recipe).described
        except SordinoError:  # of another version, or with data or code that are not here
            return self.words("summary")


def report_page(folder: RunFolder) -> str:
    """The page of this run as it stands: of one that is over, or of one that was interrupted."""
    run = _RunContents.of(folder)
    checked = run.result.preflight
    return document(
        f"{run.result.name} · Sordino",
        _header(run),
        _hero(run),
        _notices(run),
        privacy_section(run.statement, run.result),
        leak_section(folder),
        section(
            "How it went",
            charts(_score(run), _accuracy(run), _loss(run.rounds), _participation(run.rounds)),
            _participation_words(run.rounds),
        ),
        section("On records that clients set aside", private_part(run.result.private, run.rounds)),
        section("The clients", _members(run.result), charts(_labels(run.result)), _ledgers(run)),
        section("Right and wrong answers", charts(*_confusion(run.result))),
        section("What a simulation can see", charts(_signal(run.rounds), _clipped(run.rounds)), _failures(run.rounds)),
        section("Checked before the start", folded("What was to be expected", bullets(checked)) if checked else None),
        section("What it cost", _costs(run)),
        section("Do it again", _reproduce(run, folder), _details(run, folder)),
    )


def _parsed(recipe: str) -> dict[str, object]:
    """The recipe as data; one that cannot be read is still shown as text."""
    try:
        return tomllib.loads(recipe)
    except tomllib.TOMLDecodeError:
        return {}


# --- headline --------------------------------------------------------------------------------------------------------


def _header(run: _RunContents) -> Markup:
    paper = run.words("paper")
    return element(
        "header",
        element("p", "Federated run", class_="kicker"),
        element("h1", run.result.name),
        element("p", run.summary, class_="summary") if run.summary else None,
        element("p", f"Setting of: {paper}", class_="quiet") if paper else None,
    )


def _hero(run: _RunContents) -> Markup:
    result, stopped = run.result, "This run is not over, or was interrupted: the page shows what it had."
    entries = [("rounds", count(result.rounds)), ("clients", count(result.clients)), ("time", duration(result.seconds))]
    if run.is_over:
        stopped = f"Why it stopped: {result.stopped.rstrip('.')}."
        entries += [("parameters", count(result.parameters)), ("seed", str(result.seed))]
    headlines = element("div", _headline(run), leading_epsilon(run.statement), class_="headlines")
    return element("div", headlines, tiles(entries), element("p", stopped, class_="stopped"), class_="card hero")


def _headline(run: _RunContents) -> Markup:
    if run.result.metric != ACCURACY and run.result.figure is not None:
        big = element("b", figure_words(run.result.metric, run.result.figure))
        said = f"{run.result.metric} {beside(run.result)}"
    elif run.result.accuracy is None and (private := run.result.private) is not None:
        big, said = (
            element("b", value_of(private.figures[0], private)),
            f"{leading(private)} {WHERE}, at 95 % confidence",
        )
    elif run.result.accuracy is None:
        big, said = element("b", "Accuracy not measured", class_="words"), "No round of this run was evaluated."
    else:
        big, said = element("b", f"{100 * run.result.accuracy:.1f}", element("small", "%")), "accuracy on the test set"
        if (interval := run.result.accuracy_interval) is not None:
            said += f" (95 % confidence: {100 * interval[0]:.1f} to {100 * interval[1]:.1f} %)"
        if run.result.commonest is not None:
            said += f"; always giving the commonest answer would have {percent(run.result.commonest)}"
        if run.result.private is not None:
            said += f"; {leading(run.result.private)} {WHERE}"
    return element("div", big, element("span", said), class_="headline")


def _notices(run: _RunContents) -> Markup | None:
    """What a reader must not overlook."""
    said = []
    if run.rounds and not any(record.counted for record in run.rounds):
        said.append("No round met its quorum: the model never moved, and its accuracy is that of its first parameters.")
    elif missed := [record.round for record in run.rounds if not record.counted]:
        said.append(f"{counted(len(missed), 'round')} missed the quorum and did not move the model.")
    if (run.result.budget_terms or "").startswith("claimed"):
        said.append(
            "Budgets in this run limit claimed figures: no proof stands behind them. What is proven is in the privacy "
            "statement."
        )
    return join(element("p", sentence, class_="notice") for sentence in said)


# --- how it went -----------------------------------------------------------------------------------------------------


_Measure = Callable[[RoundRecord], float | None]


def _by_round(
    title: str,
    rounds: Sequence[RoundRecord],
    lines: Mapping[str, _Measure],
    axis: Callable[[Sequence[float]], scales.PlotAxis],
    note: str = "",
    annotations: Sequence[Reference | Mark] = (),
) -> Markup | None:
    """A line for each measure, over the rounds in which there is a value; none where nothing was measured."""
    values = {
        name: tuple((float(r.round), v) for r in rounds if (v := of(r)) is not None) for name, of in lines.items()
    }
    series = [Series(name, points) for name, points in values.items() if points]
    if not series:
        return None
    levels = [each.value for each in annotations if isinstance(each, Reference)]
    y = axis([*levels, *(value for one in series for _, value in one.points)])
    x = scales.rounds("round", [float(record.round) for record in rounds])
    return plots.line_chart(title, series, x, y, note, annotations)


def _from_zero(label: str) -> Callable[[Sequence[float]], scales.PlotAxis]:
    return lambda values: scales.linear(label, [0.0, *values])


def _seen(record: RoundRecord) -> Simulation:
    return record.simulation or Simulation()


def _score(run: _RunContents) -> Markup | None:
    """By the run's own metric, where that is another one than accuracy."""
    metric, constant = run.result.metric, run.result.baseline
    if metric == ACCURACY:
        return None
    lines: dict[str, _Measure] = {"test set": lambda r: r.score, "validation set": lambda r: r.validation_score}
    level = [Reference(constant, "a constant answer")] if constant is not None else []
    return _by_round(f"{metric} by round", run.rounds, lines, partial(figure_axis, metric), annotations=level)


def _accuracy(run: _RunContents) -> Markup | None:
    lines: dict[str, _Measure] = {"test set": lambda r: r.accuracy, "validation set": lambda r: r.validation_accuracy}
    level = [Reference(run.result.commonest, "the commonest answer")] if run.result.commonest is not None else []
    return _by_round("Accuracy by round", run.rounds, lines, partial(scales.shares, "accuracy"), annotations=level)


def _loss(rounds: Sequence[RoundRecord]) -> Markup | None:
    lines: dict[str, _Measure] = {
        "test set": lambda r: r.loss,
        "training, on clients (simulation only)": lambda r: _seen(r).train_loss,
    }
    measured = [name for name, of in lines.items() if any(of(record) is not None for record in rounds)]
    note = f"Measured on: {measured[0]}." if len(measured) == 1 else ""
    return _by_round("Loss by round", rounds, lines, partial(scales.spread_out, "loss"), note)


_TAKING_PART: Mapping[str, Callable[[RoundRecord], int]] = {
    "reported": lambda r: r.reported,
    "asked": lambda r: r.asked,
    "declined by their own ledger": lambda r: r.declined,
    "late": lambda r: r.late,
    "refused by the coordinator": lambda r: r.refused,
    "stray answers (sent twice, to another round or plan, or unasked)": lambda r: sum(r.strays.values()),
}


def _everyone_reported(rounds: Sequence[RoundRecord]) -> bool:
    return all(
        r.reported == r.asked == rounds[0].asked and r.counted and not (r.late or r.refused or r.strays) for r in rounds
    )


def _participation(rounds: Sequence[RoundRecord]) -> Markup | None:
    if _everyone_reported(rounds):
        return None
    present = {name: of for name, of in _TAKING_PART.items() if name == "reported" or any(map(of, rounds))}
    marks = [Mark(float(r.round), f"round {r.round} missed its quorum") for r in rounds if not r.counted][:200]
    note = "A triangle marks a round that missed its quorum." if marks else ""
    return _by_round("Who took part", rounds, present, _from_zero("clients"), note, marks)


def _participation_words(rounds: Sequence[RoundRecord]) -> Markup | None:
    said = []
    if rounds and _everyone_reported(rounds):
        said.append(f"All {counted(rounds[0].asked, 'client')} that were asked reported in every round.")
    if restarts := sum(record.restarts for record in rounds):
        said.append(
            f"The coordinator was started anew {counted(restarts, 'time')} within a round: no round counts twice."
        )
    return element("p", " ".join(said), class_="quiet") if said else None


def _spending(run: _RunContents) -> Markup | None:
    terms, limits = run.result.budget_terms, {_bounded(budget.limit) for budget in run.result.budgets}
    if terms is None or not any(record.spent_max for record in run.rounds):
        return None
    lines: dict[str, _Measure] = {
        "the client that spent most": lambda r: _bounded(r.spent_max),
        "the median client": lambda r: _bounded(r.spent_median),
    }
    level = [Reference(limit, "every client's limit") for limit in limits if limit is not None and len(limits) == 1]
    note = f"Epsilon as the ledgers count it: {terms}."
    return _by_round("Budget spent by round", run.rounds, lines, _from_zero("budget spent"), note, level)


def _bounded(epsilon: float | None) -> float | None:
    return epsilon if epsilon is not None and epsilon < float("inf") else None


# --- clients ---------------------------------------------------------------------------------------------------------


def _members(result: Result) -> Markup | None:
    """The members by name, each with what it was part of; none where clients have numbers alone."""
    known = [budget for budget in result.budgets if budget.name]
    if not known:
        return None
    rows: list[list[object]] = [[own.name, str(own.client), count(own.reports), count(own.declined)] for own in known]
    head = ["member", "number", "rounds in which a report may have left it", "declined"]
    return table(head, rows, numbers=frozenset({1, 2, 3}))


def _ledgers(run: _RunContents) -> Markup | None:
    """Budgets as ledgers count them: other epsilons than the run's own, and so folded away."""
    drawn = charts(_spending(run), _budgets(run.result))
    return folded("Budgets, as the clients' ledgers count them", drawn) if drawn else None


def _budgets(result: Result) -> Markup | None:
    if result.budget_terms is None or all(budget.spent is None for budget in result.budgets):
        return None
    note = f"Epsilon as each client's ledger counts it: {result.budget_terms}. {_budget_words(result.budgets)}"
    return plots.budget_chart("Budget by client", result.budgets, note=note)


def _budget_words(budgets: Sequence[ClientBudget]) -> str:
    declined = sum(budget.declined > 0 for budget in budgets)
    unbounded = sum(budget.spent == float("inf") for budget in budgets)
    if all(budget.limit is None for budget in budgets):
        said = "No limit was set, so nothing was ever declined"
    elif declined == 0:
        said = "No client ever had to decline"
    else:
        said = f"{count(declined)} of {counted(len(budgets), 'client')} declined at least once rather than exceed it"
    if unbounded:
        said += f"; {counted(unbounded, 'client')} spent an infinite epsilon, which no bar can show"
    return f"{said}."


def _labels(result: Result) -> Markup | None:
    if not result.label_counts or len(result.classes) < 2:
        return None
    note = f"{matrices.label_summary(result.label_counts, result.classes)} Only a simulation knows this."
    clients = _client_names(result)
    return matrices.label_chart("Labels by client", result.label_counts, result.classes, clients=clients, note=note)


def _client_names(result: Result) -> tuple[str, ...]:
    """The clients' names where the recipe lists them; none where it only counts them."""
    listed = result.settings.get("split.clients")
    return tuple(map(str, listed)) if isinstance(listed, list) and len(listed) == result.clients else ()


def _confusion(result: Result) -> list[Markup | None]:
    if not result.confusion:
        return []
    note = "Shaded by the share of each true class; errors are shaded more strongly, so that they can be seen."
    drawn = matrices.confusion_chart("Confusion matrix", result.confusion, result.classes, note=note)
    return [drawn, _by_class(result.confusion, result.classes)]


def _by_class(confusion: Sequence[Sequence[int]], classes: Sequence[str]) -> Markup | None:
    """The weakest classes in figures: what the matrix shows at a glance."""
    rows = []
    for k, row in enumerate(confusion):
        many, wrong = max(((many, j) for j, many in enumerate(row) if j != k), default=(0, 0))
        taken = f"{classes[wrong]} ({count(many)})" if many else "none"
        rows.append((row[k] / sum(row) if sum(row) else 1.0, classes[k], sum(row), taken))
    weakest = sorted(rows)[:10]
    cells: list[list[object]] = [[name, count(total), percent(right), taken] for right, name, total, taken in weakest]
    title = "By class, weakest first" if len(rows) <= 10 else "The ten weakest classes"
    drawn = table(["class", "examples", "right", "most often taken for"], cells, numbers=frozenset({1, 2}))
    return element("figure", element("figcaption", element("h3", title)), drawn, class_="chart")


# --- what only a simulation sees -------------------------------------------------------------------------------------


def _signal(rounds: Sequence[RoundRecord]) -> Markup | None:
    lines: dict[str, _Measure] = {"update": lambda r: _seen(r).update_norm, "noise": lambda r: _seen(r).noise_norm}
    if not any(map(lines["noise"], rounds)) or all(_seen(record).update_norm is None for record in rounds):
        return None
    note = (
        "Mean length of a client's update (of DP-SGD, with the noise in it), and the length to expect of the noise in "
        "the average of the reports."
    )
    return _by_round("Signal and noise", rounds, lines, partial(scales.spread_out, "length"), note)


def _clipped(rounds: Sequence[RoundRecord]) -> Markup | None:
    if not any(_seen(record).clipped for record in rounds):
        return None
    note = "Share of values that were cut to the range before they were randomised; of DP-SGD, share of gradients."
    axis = lambda values: scales.shares("clipped", [0.0, *values])  # noqa: E731
    return _by_round("Clipped values", rounds, {"clipped": lambda r: _seen(r).clipped}, axis, note)


def _failures(rounds: Sequence[RoundRecord]) -> Markup | None:
    failed = sum(record.simulation.failed for record in rounds if record.simulation)
    if not failed:
        return None
    said = f"Training failed {counted(failed, 'time')} on a client, which then sent its mechanism's report of zero."
    return element("p", said)


# --- cost, recipe, environment ---------------------------------------------------------------------------------------


def _costs(run: _RunContents) -> Markup | None:
    if not run.rounds:
        return None
    up, down = sum(r.bytes_up for r in run.rounds), sum(r.bytes_down for r in run.rounds)
    reported, asked = sum(r.reported for r in run.rounds), sum(r.asked for r in run.rounds)
    each = [record.seconds for record in run.rounds]
    entries = [("whole run", duration(run.result.seconds)), ("median round", duration(statistics.median(each)))]
    if reported:
        entries.append(("a client sends, per round", size(up / reported)))
    if asked:
        entries.append(("a client is sent, per round", size(down / asked)))
    entries += [("all clients sent", size(up)), ("all clients were sent", size(down))]
    return element("div", tiles(entries), class_="card")


def _reproduce(run: _RunContents, folder: RunFolder) -> Markup:
    said = [element("p", "In the folder of this run:"), element("pre", element("code", "sordino run recipe.toml"))]
    seed = run.result.seed
    if run.is_over and seed != run.recipe.get("seed", seed):
        said.append(element("p", f"with seed = {seed} in it: this run was given another seed than its recipe names."))
    if fingerprint := run.result.recipe_fingerprint:
        said.append(element("p", "The recipe's fingerprint is ", element("code", fingerprint), "."))
    if command := folder.environment.get("command"):
        said.append(element("p", "This run was started with ", element("code", command), "."))
    return join(said)


def _details(run: _RunContents, folder: RunFolder) -> Markup:
    parts = [folded("Recipe", element("pre", element("code", folder.recipe)))]
    if run.result.settings:
        rows: list[list[object]] = [[element("code", key), _said(value)] for key, value in run.result.settings.items()]
        parts.append(folded("All settings, with those left to their defaults", table(["key", "value"], rows)))
    rows = [[key, _said(value)] for key, value in folder.environment.items()]
    parts.append(folded("Environment", table(["", ""], rows)))
    return join(parts)


def _said(value: object) -> str:
    if isinstance(value, Mapping):
        return listed([f"{key} {entry}" for key, entry in value.items()]) if value else "none"
    return value if isinstance(value, str) else to_line(value)

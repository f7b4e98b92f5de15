"""The page of one run, `report.html`: made from the run's folder alone, and holding everything it shows."""

from __future__ import annotations

import statistics
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from sordino.errors import SordinoError
from sordino.parts.registry import own_code
from sordino.privacy.statement import Statement
from sordino.recipe import Recipe
from sordino.report import matrices, plots, scales
from sordino.report.folder import RunFolder
from sordino.report.markup import Markup, element, join
from sordino.report.plots import Reference, Series
from sordino.report.privacy_section import privacy_section
from sordino.report.records import ClientBudget, Result, RoundRecord, Simulation, to_line
from sordino.report.style import bullets, document, folded, section, table, tiles
from sordino.report.words import count, counted, duration, listed, percent, size


@dataclass(frozen=True)
class _RunContents:
    """Everything the folder tells, read once."""

    name: str
    recipe: dict[str, Any]
    rounds: tuple[RoundRecord, ...]
    result: Result | None
    statement: Statement | None

    @classmethod
    def of(cls, folder: RunFolder) -> _RunContents:
        recipe, result, statement = _parsed(folder.recipe), folder.result(), folder.statement()
        name = result.name if result is not None else str(recipe.get("name", folder.path.name))
        return cls(name, recipe, folder.rounds(), result, statement)

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

    @property
    def accuracy(self) -> float | None:
        if self.result is not None:
            return self.result.accuracy
        return next((record.accuracy for record in reversed(self.rounds) if record.accuracy is not None), None)

    @property
    def clients(self) -> int:
        return self.result.clients if self.result is not None else max((r.asked for r in self.rounds), default=0)

    @property
    def seconds(self) -> float:
        return self.result.seconds if self.result is not None else sum(record.seconds for record in self.rounds)

    @property
    def terms(self) -> str | None:
        return None if self.result is None else self.result.budget_terms

    @property
    def commonest(self) -> float | None:
        """Accuracy of always giving the commonest answer: the level above which a model knows something."""
        confusion = None if self.result is None else self.result.confusion
        totals = [sum(row) for row in confusion or ()]
        return max(totals) / sum(totals) if sum(totals) else None


def report_page(folder: RunFolder) -> str:
    """The page of this run as it stands: of one that is over, or of one that was interrupted."""
    run = _RunContents.of(folder)
    return document(
        f"{run.name} · Sordino",
        _header(run),
        _hero(run),
        _notices(run),
        privacy_section(run.statement),
        section("How it went", _charts(_quality_charts(run)), _participation_words(run.rounds)),
        section("The clients", _charts(_client_charts(run))),
        section("Right and wrong answers", _charts(_confusion(run))),
        section("What a simulation can see", _charts(_simulation_charts(run.rounds)), _failures(run.rounds)),
        section(
            "Checked before the start", bullets(run.result.preflight) if run.result and run.result.preflight else None
        ),
        section("What it cost", _costs(run)),
        section("Do it again", _reproduce(run, folder), _details(run, folder)),
    )


def _parsed(recipe: str) -> dict[str, Any]:
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
        element("h1", run.name),
        element("p", run.summary, class_="summary") if run.summary else None,
        element("p", f"Setting of: {paper}", class_="quiet") if paper else None,
    )


def _hero(run: _RunContents) -> Markup:
    result = run.result
    entries = [("rounds", count(result.rounds if result else len(run.rounds))), ("clients", count(run.clients))]
    entries.append(("time", duration(run.seconds)))
    if result is not None:
        entries += [("parameters", count(result.parameters)), ("seed", str(result.seed))]
    stopped = _why_stopped(result)
    return element(
        "div", _headline(run), tiles(entries), element("p", stopped, class_="stopped"), class_="card hero"
    )  # fmt: skip


def _why_stopped(result: Result | None) -> str:
    if result is None:
        return "This run is not over, or was interrupted: the page shows what it had."
    return f"Why it stopped: {result.stopped.rstrip('.')}."


def _headline(run: _RunContents) -> Markup:
    if run.accuracy is None:
        big = element("b", "Accuracy not measured", class_="words")
        return element("div", big, element("span", "No round of this run was evaluated."), class_="headline")
    said = "accuracy on the test set"
    if run.commonest is not None:
        said += f"; always giving the commonest answer would have {percent(run.commonest)}"
    big = element("b", f"{100 * run.accuracy:.1f}", element("small", "%"))
    return element("div", big, element("span", said), class_="headline")


def _notices(run: _RunContents) -> Markup | None:
    """What a reader must not overlook."""
    said = []
    if run.rounds and not any(record.counted for record in run.rounds):
        said.append("No round met its quorum: the model never moved, and its accuracy is that of its first parameters.")
    elif missed := [record.round for record in run.rounds if not record.counted]:
        said.append(f"{counted(len(missed), 'round')} missed the quorum and did not move the model.")
    if run.terms is not None and run.terms.startswith("claimed"):
        said.append(
            "Budgets in this run limit claimed figures: no proof stands behind them. What is proven is in the privacy "
            "statement."
        )
    return join(element("p", sentence, class_="notice") for sentence in said) if said else None


# --- how it went -----------------------------------------------------------------------------------------------------


def _charts(figures: Sequence[Markup | None]) -> Markup | None:
    kept = [one for one in figures if one is not None]
    return element("div", *kept, class_="charts") if kept else None


def _series(
    name: str, rounds: Sequence[RoundRecord], of: Callable[[RoundRecord], float | None], unit: str = ""
) -> list[Series]:
    """One line, or none where nothing was measured."""
    points = tuple((float(record.round), value) for record in rounds if (value := of(record)) is not None)
    return [Series(name, points, unit=unit)] if points else []


def _seen(record: RoundRecord) -> Simulation:
    return record.simulation or Simulation()


def _values(series: Sequence[Series]) -> list[float]:
    return [value for one in series for _, value in one.points]


def _over_rounds(rounds: Sequence[RoundRecord]) -> scales.Axis:
    return scales.rounds("round", [float(record.round) for record in rounds])


def _quality_charts(run: _RunContents) -> list[Markup | None]:
    if not run.rounds:
        return []
    return [_accuracy(run), _loss(run.rounds), _participation(run.rounds), _spending(run)]


def _accuracy(run: _RunContents) -> Markup | None:
    series = [
        *_series("test set", run.rounds, lambda r: r.accuracy, "%"),
        *_series("validation set", run.rounds, lambda r: r.validation_accuracy, "%"),
    ]
    if not series:
        return None
    level = [Reference(run.commonest, "the commonest answer")] if run.commonest is not None else []
    y = scales.shares("accuracy", [*_values(series), *(one.value for one in level)])
    return plots.line_chart("Accuracy by round", series, _over_rounds(run.rounds), y, references=level)


def _loss(rounds: Sequence[RoundRecord]) -> Markup | None:
    series = [
        *_series("test set", rounds, lambda r: r.loss),
        *_series("training, on clients (simulation only)", rounds, lambda r: _seen(r).train_loss),
    ]
    if not series:
        return None
    note = f"Measured on: {series[0].name}." if len(series) == 1 else ""
    y = scales.spread_out("loss", _values(series))
    return plots.line_chart("Loss by round", series, _over_rounds(rounds), y, note=note)


_TAKING_PART: tuple[tuple[str, Callable[[RoundRecord], int]], ...] = (
    ("reported", lambda r: r.reported),
    ("asked", lambda r: r.asked),
    ("declined by their own ledger", lambda r: r.declined),
    ("late", lambda r: r.late),
    ("refused by the coordinator", lambda r: r.refused),
    ("stray answers (sent twice, to another round or plan, or unasked)", lambda r: sum(r.strays.values())),
)


def _everyone_reported(rounds: Sequence[RoundRecord]) -> bool:
    return all(
        r.reported == r.asked == rounds[0].asked and r.counted and not (r.late or r.refused or r.strays) for r in rounds
    )


def _participation(rounds: Sequence[RoundRecord]) -> Markup | None:
    if _everyone_reported(rounds):
        return None
    present = [(name, of) for name, of in _TAKING_PART if name == "reported" or any(of(r) for r in rounds)]
    series = [one for name, of in present for one in _series(name, rounds, of)]
    marks = [(float(r.round), f"round {r.round} missed its quorum") for r in rounds if not r.counted][:200]
    note = "A triangle marks a round that missed its quorum." if marks else ""
    y = scales.linear("clients", [0.0, *_values(series)])
    return plots.line_chart("Who took part", series, _over_rounds(rounds), y, note=note, marks=marks)


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
    series = [
        *_series("the client that spent most", run.rounds, lambda r: _bounded(r.spent_max)),
        *_series("the median client", run.rounds, lambda r: _bounded(r.spent_median)),
    ]
    if not series or run.terms is None or not any(_values(series)):
        return None
    limits = {budget.limit for budget in run.result.budgets} if run.result else set()
    limit = next(iter(limits)) if len(limits) == 1 else None
    level = [Reference(limit, "every client's limit")] if limit is not None and limit < float("inf") else []
    y = scales.linear("budget spent", [0.0, *_values(series), *(one.value for one in level)])
    note = f"Epsilon as the ledgers count it: {run.terms}."
    return plots.line_chart("Budget spent by round", series, _over_rounds(run.rounds), y, note=note, references=level)


def _bounded(epsilon: float | None) -> float | None:
    return epsilon if epsilon is not None and epsilon < float("inf") else None


# --- clients ---------------------------------------------------------------------------------------------------------


def _client_charts(run: _RunContents) -> list[Markup | None]:
    result = run.result
    if result is None:
        return []
    return [_budgets(result), _labels(result)]


def _budgets(result: Result) -> Markup | None:
    if result.budget_terms is None or all(budget.spent is None for budget in result.budgets):
        return None
    note = f"Epsilon as each client's ledger counts it: {result.budget_terms}. {_budget_words(result.budgets)}"
    return plots.budget_chart("Budget by client", result.budgets, note=note)


def _budget_words(budgets: Sequence[ClientBudget]) -> str:
    limited = [budget for budget in budgets if budget.limit is not None]
    declined = sum(budget.declined > 0 for budget in budgets)
    unbounded = sum(budget.spent == float("inf") for budget in budgets)
    said = []
    if not limited:
        said.append("No limit was set, so nothing was ever declined")
    elif declined == 0:
        said.append("No client ever had to decline")
    else:
        said.append(
            f"{count(declined)} of {counted(len(budgets), 'client')} declined at least once rather than exceed it"
        )
    if unbounded:
        said.append(f"{counted(unbounded, 'client')} spent an infinite epsilon, which no bar can show")
    return f"{'; '.join(said)}."


def _labels(result: Result) -> Markup | None:
    if not result.label_counts or not result.classes:
        return None
    note = f"{matrices.label_summary(result.label_counts, result.classes)} Only a simulation knows this."
    return matrices.label_chart("Labels by client", result.label_counts, result.classes, note=note)


def _confusion(run: _RunContents) -> list[Markup | None]:
    result = run.result
    if result is None or not result.confusion:
        return []
    note = "Shaded by the share of each true class; errors are shaded more strongly, so that they can be seen."
    return [
        matrices.confusion_chart("Confusion matrix", result.confusion, result.classes, note=note),
        _by_class(result),
    ]


def _by_class(result: Result) -> Markup | None:
    """The weakest classes in figures: what the matrix shows at a glance."""
    rows = []
    for k, row in enumerate(result.confusion or ()):
        wrong = sorted(((many, j) for j, many in enumerate(row) if j != k and many), reverse=True)[:1]
        taken = f"{result.classes[wrong[0][1]]} ({count(wrong[0][0])})" if wrong else "none"
        rows.append((row[k] / sum(row) if sum(row) else 1.0, result.classes[k], sum(row), taken))
    weakest = sorted(rows)[:10]
    cells: list[list[object]] = [[name, count(total), percent(right), taken] for right, name, total, taken in weakest]
    title = "By class, weakest first" if len(rows) <= 10 else "The ten weakest classes"
    drawn = table(["class", "examples", "right", "most often taken for"], cells, numbers=frozenset({1, 2}))
    return element("figure", element("figcaption", element("h3", title)), drawn, class_="chart")


# --- what only a simulation sees -------------------------------------------------------------------------------------


def _simulation_charts(rounds: Sequence[RoundRecord]) -> list[Markup | None]:
    return [_signal(rounds), _clipped(rounds)] if rounds else []


def _signal(rounds: Sequence[RoundRecord]) -> Markup | None:
    update = _series("update", rounds, lambda r: _seen(r).update_norm)
    noise = _series("noise", rounds, lambda r: _seen(r).noise_norm)
    if not update or not noise or not any(_values(noise)):
        return None
    note = "Mean length of a client's update, and the length to expect of the noise in the average of the reports."
    y = scales.spread_out("length", _values([*update, *noise]))
    return plots.line_chart("Signal and noise", [*update, *noise], _over_rounds(rounds), y, note=note)


def _clipped(rounds: Sequence[RoundRecord]) -> Markup | None:
    series = _series("clipped", rounds, lambda r: _seen(r).clipped, "%")
    if not series or not any(_values(series)):
        return None
    note = "Share of values that were cut to the range before they were randomised."
    y = scales.shares("values clipped", [0.0, *_values(series)])
    return plots.line_chart("Clipped values", series, _over_rounds(rounds), y, note=note)


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
    entries = [("whole run", duration(run.seconds)), ("median round", duration(statistics.median(each)))]
    if reported:
        entries.append(("a client sends, per round", size(up / reported)))
    if asked:
        entries.append(("a client is sent, per round", size(down / asked)))
    entries += [("all clients sent", size(up)), ("all clients were sent", size(down))]
    return element("div", tiles(entries), class_="card")


def _reproduce(run: _RunContents, folder: RunFolder) -> Markup:
    command = folder.environment.get("command")
    said = [element("pre", element("code", "sordino run recipe.toml"))]
    seed = None if run.result is None else run.result.seed
    if seed is not None and seed != run.recipe.get("seed", seed):
        said.append(element("p", f"with seed = {seed} in it: this run was given another seed than its recipe names."))
    if run.result and run.result.recipe_fingerprint:
        said.append(element("p", "The recipe's fingerprint is ", element("code", run.result.recipe_fingerprint), "."))
    if command:
        said.append(element("p", "This run was started with ", element("code", command), "."))
    return join([element("p", "In the folder of this run:"), *said])


def _details(run: _RunContents, folder: RunFolder) -> Markup:
    parts = [folded("Recipe", element("pre", element("code", folder.recipe)))]
    if run.result and run.result.settings:
        rows: list[list[object]] = [[element("code", key), _said(value)] for key, value in run.result.settings.items()]
        parts.append(folded("All settings, with those left to their defaults", table(["key", "value"], rows)))
    rows = [[key, _said(value)] for key, value in folder.environment.items()]
    parts.append(folded("Environment", table(["", ""], rows)))
    return join(parts)


def _said(value: Any) -> str:
    if isinstance(value, dict):
        return listed([f"{key} {entry}" for key, entry in value.items()]) if value else "none"
    return value if isinstance(value, str) else to_line(value)

"""The figures of the page on epsilon are those of the code, of the records and of the pages that have them made."""

import json
import math
import re
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
from benchmarks.proven import HEADLINES

from sordino.privacy.guessing import best_guess

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PROVEN = json.loads((ROOT / "benchmarks" / "results" / "proven.json").read_text())
FIRST = "headlines: MNIST, epsilon 1, 100 clients"
TENTH = "headlines: CIFAR-10, epsilon 10, 500 clients, alone"
RUNS = {  # the page's rows, and the recorded experiments that they are about
    "ldp-fl": ("headline-mnist", "client", "shuffled(100)"),
    "ldp-fed": ("table-1-cycles-5", "client", "server"),
    "ldpfl": ("mnist", "record (replace)", "server"),
    "personalized": ("digits-1-5-10-average", "client", "server"),
    "webfed": ("epsilon-3", "client", "server"),
}


def rows(page: str) -> list[list[str]]:
    """The cells of all rows of all tables."""
    lines = (DOCS / page).read_text().splitlines()
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]


def under(heading: str) -> list[list[str]]:
    """The rows of the table with this first heading."""
    found = rows("why-epsilon.md")
    first = next(i for i, cells in enumerate(found) if cells[0] == heading)
    width = len(found[first])
    others = [i for i, cells in enumerate(found) if i > first and len(cells) != width]
    return found[first + 1 : min(others, default=len(found))]


def number(cell: str) -> float:
    if cell == "infinite":
        return math.inf
    found = re.match(r"[\d,.]+", cell)
    assert found
    return float(found[0].replace(",", "")) * (1e6 if cell.endswith("million") else 1)


def rounded_as(cell: str, figure: float) -> float:
    """The figure, rounded to as many digits as the cell has."""
    digits = len(re.sub(r"\D", "", cell).strip("0"))
    return figure if math.isinf(figure) else float(f"{figure:.{digits}g}")


@pytest.mark.parametrize(("epsilon", "guesses"), under("epsilon"), ids=lambda cell: cell)
def test_right_guesses_are_those_of_the_formula_rounded_up(epsilon, guesses):
    digits = len(guesses.partition(".")[2])
    assert number(guesses) == math.ceil(100 * best_guess(number(epsilon)) * 10**digits - 1e-9) / 10**digits


def test_every_paper_has_a_row():
    assert {paper(cells) for cells in under("paper")} == RUNS.keys()


@pytest.mark.parametrize("cells", under("paper"), ids=lambda cells: cells[0])
def test_claimed_and_proven_epsilons_are_those_of_the_records(cells):
    found = statement_rows(paper(cells), *RUNS[paper(cells)])
    assert {row["claimed"] for row in found} == {number(cells[1])}
    proven = max(math.inf if row["proven"] == "infinite" else row["proven"] for row in found)
    assert number(cells[2]) == rounded_as(cells[2], proven)


def test_the_setting_that_protects_a_client_does_not_learn():
    (strictest,) = {row["proven"] for row in statement_rows("personalized", "fashion-same-0.05", "client", "server")}
    assert {"0.05", f"{math.ceil(10 * strictest) / 10:g}"} <= figures()
    assert max(run["accuracy"] for run in runs("personalized", "fashion-same-0.05")) < 0.15


def test_as_many_figures_come_out_as_the_reproduction_counts():
    (total,) = [row for row in rows("reproduction.md") if row[0] == "all five"]
    stated, reproduced, undecided, higher, lower = (re.findall(r"\d+", cell)[0] for cell in total[1:-1])
    assert {stated, reproduced, higher} <= figures()
    prose = (DOCS / "reproduction.md").read_text().partition("<!--")[0]
    assert {stated, reproduced, undecided, higher, lower} <= set(re.findall(r"\d+", prose))


@pytest.mark.parametrize("cells", under("setting, epsilon proven"), ids=lambda cells: cells[0])
def test_proven_accuracies_are_those_of_the_recorded_headlines(cells):
    (headline,) = [one for one in HEADLINES if one.name == cells[0]]
    assert number(cells[1]) == headline.figure
    for channel, cell in zip(("summed", "alone"), cells[2:], strict=True):
        found = PROVEN.get(f"headlines: {cells[0]}, {channel}")
        assert cell == ("" if found is None else f"{100 * fmean(run['accuracy'] for run in found):.2f}")


def test_a_record_replaced_counts_what_the_headlines_say():
    (replaced,) = {f"{run['proven']['record (replace), summed(80)']:.2f}" for run in PROVEN[f"{FIRST}, summed"]}
    (of_ten,) = {f"{run['proven']['record (replace), server']:.1f}" for run in PROVEN[TENTH]}
    assert {replaced, of_ten} <= figures()


def test_what_is_surely_lost_is_the_figure_of_the_papers_page():
    surely_lost = next(row[-1] for row in rows("papers/ldp-fl.md") if "1,992" in row[-1])
    assert set(re.findall(r"[\d,]+\d", surely_lost)) <= figures()


def figures() -> set[str]:
    """All numbers of the page, as it writes them."""
    return set(re.findall(r"\d[\d,.]*\d|\d", (DOCS / "why-epsilon.md").read_text()))


def paper(cells: list[str]) -> str:
    """The name of the page that the first cell links."""
    found = re.search(r"papers/([\w-]+)\.md", cells[0])
    assert found
    return found[1]


def runs(paper: str, experiment: str) -> list[dict[str, Any]]:
    """The full runs of an experiment."""
    lines = (DOCS / "papers" / "records" / f"{paper}.jsonl").read_text().splitlines()
    found = [run for run in map(json.loads, lines) if run["experiment"] == experiment and not run["quick"]]
    assert found
    return found


def statement_rows(paper: str, experiment: str, adjacency: str, adversary: str) -> list[dict[str, Any]]:
    """What the statements of an experiment's runs have in these terms."""
    found = [row for run in runs(paper, experiment) for row in run["privacy"]]
    return [row for row in found if (row["adjacency"], row["adversary"]) == (adjacency, adversary)]

"""The README, which is the site's front page: its figures are those of the records, and it is short."""

import re
from pathlib import Path

import pytest
from benchmarks.proven import readme_table

from tests.test_why_page import RUNS, number, rounded_as, statement_rows

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "README.md").read_text(encoding="utf-8")
MOST_WORDS = 750


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def papers() -> list[tuple[str, str, str]]:
    """Each paper of the table with its claimed and its proven epsilon."""
    found = [(re.search(r"docs/papers/([\w-]+)\.md", cells[0]), cells) for cells in rows(PAGE)]
    return [(link[1], cells[2], cells[3]) for link, cells in found if link]


def test_the_proven_table_is_that_of_the_records():
    table = PAGE.partition("<!-- headlines -->\n")[2].partition("<!-- end of headlines -->")[0]
    head, _, *shown = rows(table)
    wanted = [[cell.strip() for cell in row] for row in readme_table()]
    assert [head, *shown] == wanted, "run: python -m benchmarks.proven --tables"
    assert len(shown) > 5


def test_all_five_papers_are_there():
    assert [paper for paper, _, _ in papers()] and {paper for paper, _, _ in papers()} == RUNS.keys()


@pytest.mark.parametrize(("paper", "claimed", "proven"), papers())
def test_epsilons_of_the_papers_are_those_of_the_records(paper, claimed, proven):
    found = statement_rows(paper, *RUNS[paper])
    assert {row["claimed"] for row in found} == {number(claimed)}
    worst = max(float("inf") if row["proven"] == "infinite" else row["proven"] for row in found)
    assert number(proven) == rounded_as(proven, worst)


def test_what_holds_without_the_shuffler_stands_beside_what_holds_behind_it():
    (direct,) = {row["proven"] for row in statement_rows("ldp-fl", "headline-mnist", "client", "server")}
    stated = re.findall(r"[\d,]+\d", PAGE.partition("trusted shuffler, ")[2])[0]
    assert number(stated) == rounded_as(stated, direct)


def test_it_is_short():
    assert len(PAGE.split()) <= MOST_WORDS


def test_pictures_are_small():
    sizes = {path.name: path.stat().st_size for path in (ROOT / "docs" / "images").iterdir()}
    assert {"front-page.webp", "front-report.webp"} <= sizes.keys()
    assert sum(sizes.values()) < 1_500_000

"""The example of the page runs, and its figures come out of the code."""

import json
import re
from pathlib import Path

import pytest
from benchmarks import shuffler

from sordino.privacy.accountant import equal_bits_epsilon
from sordino.privacy.amplification import shuffled_bits, shuffled_reports
from sordino.recipe import Recipe

PAGE = (Path(__file__).parents[2] / "docs" / "shuffler.md").read_text()


def test_the_example_of_the_page_runs():
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "docs/shuffler.md", "exec"), {})


def test_the_recipe_of_the_page_is_one():
    (text,) = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    recipe = Recipe.from_toml(text)
    assert (recipe.method.channel.kind, recipe.method.channel.at_least) == ("shuffler", 3)


def test_the_costs_of_the_page_are_those_recorded():
    for name, rows in shuffler.tables(json.loads(shuffler.RESULTS.read_text())).items():
        lines = ["| " + " | ".join(cell or " " for cell in row) + " |" for row in rows]
        place = PAGE.partition(f"<!-- {name} -->\n")[2].partition(f"<!-- end of {name} -->")[0].splitlines()
        assert [lines[0], *lines[1:]] == [place[0], *place[2:]], "run: python -m benchmarks.shuffler --write"


def test_what_groups_give_away():
    found = [int(text.replace(",", "")) for text in re.findall(r"^\| \d[^|]*\| [\d,]+ \| ([\d,]+)", PAGE, re.MULTILINE)]
    values, clients, delta = 21_840, 100, 1e-5
    amplified = [shuffled_reports(float(g), clients, delta, values // g) for g in (2, 4, 8)]
    local = equal_bits_epsilon(1.0, values, delta)
    assert amplified[2] > local, "with eight values in an envelope the shuffler adds nothing"
    assert found == [pytest.approx(x, abs=0.5) for x in
                     (shuffled_bits(1.0, clients, delta, values).upper, *amplified[:2], local)]  # fmt: skip

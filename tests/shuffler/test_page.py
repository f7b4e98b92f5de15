"""The example of the page runs, and its figures come out of the code."""

import re
from pathlib import Path

import pytest

from sordino.privacy.accountant import equal_bits_epsilon
from sordino.privacy.amplification import shuffled_bits, shuffled_reports

PAGE = (Path(__file__).parents[2] / "docs" / "shuffler.md").read_text()


def test_the_example_of_the_page_runs():
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(compile(example, "docs/shuffler.md", "exec"), {})


def test_what_groups_give_away():
    found = [int(text.replace(",", "")) for text in re.findall(r"^\| \d[^|]*\| [\d,]+ \| ([\d,]+)", PAGE, re.MULTILINE)]
    values, clients, delta = 21_840, 100, 1e-5
    amplified = [shuffled_reports(float(g), clients, delta, values // g) for g in (2, 4, 8)]
    local = equal_bits_epsilon(1.0, values, delta)
    assert amplified[2] > local, "with eight values in an envelope the shuffler adds nothing"
    assert found == [pytest.approx(x, abs=0.5) for x in
                     (shuffled_bits(1.0, clients, delta, values).upper, *amplified[:2], local)]  # fmt: skip

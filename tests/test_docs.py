"""The examples in the documentation run, and the figures in it that no command prints come out of the code."""

import re
from pathlib import Path

import numpy as np
import pytest

from sordino.mechanisms import (
    BitRandomizer,
    BitString,
    Box,
    Gaussian,
    L2Ball,
    Laplace,
    Piecewise,
    PrivUnitG,
    RandomizedSign,
    TwoPoint,
)
from sordino.privacy import accountant, amplification
from tests.test_why_page import number, rounded_as

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "docs/tour.md",
    "docs/models.md",
    "docs/mechanisms.md",
    "docs/accounting.md",
    "docs/audit.md",
    "docs/planning.md",
    "docs/reports.md",
    "docs/notebooks.md",
    "docs/observers.md",
    "docs/own-parts.md",
    "docs/use-the-model.md",
    "docs/data-in-memory.md",
    "docs/tasks.md",
]


@pytest.mark.parametrize("page", PAGES)
def test_every_python_example_of_a_page_runs(page, capsys):
    examples = re.findall(r"```python\n(.*?)```", (ROOT / page).read_text(), re.DOTALL)
    assert examples
    for example in examples:
        exec(compile(example, page, "exec"), {})


def test_the_errors_of_whole_vectors_that_the_guide_compares():
    for epsilon, private, gaussian in ((1.0, 4115, 36_186), (4.0, 283, 3_039), (8.0, 86, 937)):
        assert PrivUnitG(epsilon).mean_square_error(650) == pytest.approx(private, rel=5e-3)
        sigma = float(Gaussian.analytic(epsilon, 1e-5, L2Ball(1.0), values=650).sigma[0])
        assert 650 * sigma**2 == pytest.approx(gaussian, rel=1e-3)


def test_piecewise_has_the_smaller_worst_variance_from_epsilon_1_29_on():
    worst = {e: (TwoPoint(e).variance([0.0]), Piecewise(e).variance([1.0])) for e in (1.28, 1.29)}
    assert np.all(worst[1.28][0] < worst[1.28][1])
    assert np.all(worst[1.29][0] > worst[1.29][1])


def test_one_shuffled_report_of_any_kind_is_amplified_less_than_a_bit():
    assert amplification.shuffled_reports(1.0, 100, 1e-5) == pytest.approx(0.553, abs=5e-4)
    assert amplification.shuffled_bits(1.0, 100, 1e-5).upper == pytest.approx(0.444, abs=5e-4)


def test_all_votes_of_a_client_lose_what_the_page_on_personal_budgets_says():
    votes = {claimed: RandomizedSign.eq7(claimed, 1e-5).guarantee(values=7850).loss for claimed in (5.0, 15.0)}
    page = (ROOT / "docs" / "papers" / "personalized.md").read_text()
    (stated,) = re.findall(r"([\d,]+) to ([\d,]+) in all \(delta 0\)", page)
    for figure, loss in zip(stated, votes.values(), strict=True):
        assert 0 <= int(figure.replace(",", "")) - 10 * accountant.epsilon(loss) < 200


@pytest.mark.parametrize(
    ("setting", "noise", "radius", "values"),
    [
        ("digits", {"delta": 1 / 500, "sampling": 0.8, "rounds": 10}, 200.0, 650),
        ("Fashion-MNIST", {"delta": 1 / 1000, "sampling": 0.9, "rounds": 20}, 2.0, 7850),
        ("Covertype", {"delta": 2e-5, "sampling": 0.8, "rounds": 50}, 2.0, 385),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_all_weights_of_a_client_lose_what_the_page_on_personal_budgets_says(setting, noise, radius, values):
    page = (ROOT / "docs" / "papers" / "personalized.md").read_text()
    ((claimed, proven),) = re.findall(rf"^\| {setting}, c = [^|]*\| ([^|]*)\| ([^|]*)\|", page, re.MULTILINE)
    for epsilon, stated in zip(claimed.split(","), proven.split(";"), strict=True):
        mechanism = Gaussian.eq4(float(epsilon), domain=Box(0.0, radius), **noise)
        losses = [mechanism.guarantee(values=values).loss] * noise["rounds"]
        found = accountant.compose(losses).epsilon(noise["delta"])
        assert number(stated.strip()) == pytest.approx(rounded_as(stated, found))


@pytest.mark.parametrize(("a", "row"), [(10.0, "proven, alpha = 10, as in the paper"), (4.0, "proven, alpha = 4")])
def test_theorem_2_of_ldpfl_loses_what_its_page_says(a, row):
    page = (ROOT / "docs" / "papers" / "ldpfl.md").read_text()
    (cells,) = [line.strip("| ").split(" | ")[1:] for line in page.splitlines() if line.startswith(f"| {row} |")]
    for bits, cell in zip((10_240, 11_520, 20_480), cells, strict=True):
        loss = BitRandomizer.theorem2(0.5, BitString(bits), a=a).guarantee().loss
        assert number(cell) == pytest.approx(accountant.epsilon(loss), abs=0.5)


@pytest.mark.parametrize(
    ("row", "mechanism"),
    [
        ("2C, each weight clipped to [-C, C]", Laplace(3.0, Box(0.0, 1.0))),
        ("2C/m, m = 300 records", Laplace(3.0, Box(0.0, 9.0), records=300)),
    ],
    ids=["2C", "2C/m"],
)
def test_readings_of_webfed_lose_what_its_page_says(row, mechanism):
    page = (ROOT / "docs" / "papers" / "webfed.md").read_text()
    (cells,) = [line.strip("| ").split(" | ")[1:4] for line in page.splitlines() if line.startswith(f"| {row} |")]
    upload = accountant.epsilon(mechanism.guarantee(values=61_706).loss)
    for cell, found in zip(cells, (upload / 61_706, upload, 200 * upload), strict=True):
        assert number(cell) == pytest.approx(rounded_as(cell, found))

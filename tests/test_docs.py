"""The examples in the documentation run, and the figures in it that no command prints come out of the code."""

import re
from pathlib import Path

import numpy as np
import pytest

from sordino.mechanisms import Gaussian, L2Ball, Piecewise, PrivUnitG, TwoPoint
from sordino.privacy import amplification

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

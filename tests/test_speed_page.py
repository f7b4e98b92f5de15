"""The page on speed has the figures of the last run, and says of every goal whether it was met."""

import json
from pathlib import Path

import pytest
from benchmarks.mechanisms import verdict

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize(
    ("ratio", "wanted", "shown", "said"),
    [
        (0.29996, 0.3, "0.29996", "missed"),
        (0.296, 0.3, "0.296", "missed"),
        (0.3, 0.3, "0.30", "met"),
        (4.387, 2.0, "4.39", "met"),
    ],
    ids=["by a hair", "by little", "just", "by far"],
)
def test_rounding_never_hides_a_missed_goal(ratio, wanted, shown, said):
    assert verdict("a / b", ratio, wanted) == ("a / b", shown, f">= {wanted}", said)


def test_the_page_has_the_ratios_of_the_last_run():
    ratios = json.loads((ROOT / "benchmarks" / "results" / "mechanisms.json").read_text())["ratios"]
    page = (ROOT / "docs" / "speed.md").read_text()
    for what, ratio in ratios.items():
        assert "| " + " | ".join(verdict(what, ratio["measured"], ratio["wanted"])) + " |" in page

"""The page on speed has the figures of the last run, and says of every goal whether it was met."""

import json
import subprocess
import sys
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


def test_the_page_has_the_memory_that_was_recorded():
    peaks = json.loads((ROOT / "benchmarks" / "results" / "mechanisms.json").read_text())["peak_bytes"]
    page = (ROOT / "docs" / "speed.md").read_text()
    assert len(peaks) == 4
    for mechanism, peak in peaks.items():
        assert f"| `{mechanism.replace('m.', '')}` | {peak / 1e9:.2f} |" in page


@pytest.mark.process
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="only /proc tells a process's own peak")
def test_a_measured_process_does_not_report_its_parents_memory():
    large = b"x" * 300_000_000
    code = "from benchmarks.memory import own_peak; print(own_peak())"
    told = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True).stdout
    assert 1_000_000 < int(told) < len(large) / 2

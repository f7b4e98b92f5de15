"""A mechanism that recipes can name is also tested, audited, planned, measured and described."""

import re
from pathlib import Path

import pytest
from catalogue import ENTRIES

from sordino.cli import plan
from sordino.mechanisms import PARTS, Mechanism, mechanism_named
from sordino.mechanisms.tuning import Ranges
from sordino.parts.shipped import SHIPPED

ROOT = Path(__file__).parent.parent.parent
NAMES = [name for part in PARTS for name in SHIPPED[part]]
NOISY = [name for name in NAMES if mechanism_named(name).randomizes]


@pytest.fixture(params=NAMES)
def mechanism(request) -> type[Mechanism]:
    return mechanism_named(request.param)


def test_it_is_in_the_catalogue_of_tests(mechanism):
    made = {type(entry.mechanism()) for entry in ENTRIES}
    assert mechanism in made, "add an Entry to tests/mechanisms/catalogue.py"


def test_the_page_of_mechanisms_describes_it(mechanism):
    page = (ROOT / "docs" / "mechanisms.md").read_text()
    assert re.search(rf"^\| .*`{mechanism.__name__}\b", page, re.MULTILINE), "add a row to docs/mechanisms.md"


@pytest.mark.parametrize("name", NOISY)
def test_it_has_audit_cases_and_specimens(name):
    mechanism = mechanism_named(name)
    assert next(mechanism.audit_cases(1.0), None) and next(mechanism.specimens(1.0), None)


@pytest.mark.parametrize("name", NOISY)
def test_its_speed_is_measured(name):
    measured = (ROOT / "benchmarks" / "mechanisms.py").read_text()
    assert f"m.{mechanism_named(name).__name__}" in measured, "add it to benchmarks/mechanisms.py"


def test_plan_lists_all_that_can_be_tuned():
    tuned = {name for name in SHIPPED["mechanism"] if mechanism_named(name).tunings(Ranges(1.0, 1.0))}
    assert tuned == set(plan.NAMES) - {"dp-sgd", "private-head"}


@pytest.mark.parametrize("name", NOISY)
def test_the_help_of_audit_names_it(name):
    assert f"{name}," in (ROOT / "src" / "sordino" / "cli" / "audit.py").read_text()

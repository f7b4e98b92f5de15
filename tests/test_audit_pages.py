"""The figures of docs/audit.md and docs/checks.md are those of the records."""

import json
import re
from functools import cache

import pytest
from benchmarks import audits, faults
from benchmarks.simulation import insert

from sordino.audits import lower_bound
from sordino.audits.faults import FAULTS
from sordino.mechanisms import BitRandomizer, Exponential, Gaussian, Laplace, Mechanism, RandomizedSign, TwoPoint
from sordino.report.words import lower, upper

CHECKS = audits.PAGE.with_name("checks.md")
SHOWN = [  # what the page says of the papers: the attack, and its figures
    (BitRandomizer, "one feature of 10 bits", "audited", "9.49"),
    (TwoPoint, "shuffled upload of 500 values", "audited", "3.17"),
    (TwoPoint, "shuffled upload of 500 values", "proven", "15.5"),
    (Gaussian, "one value, one round", "proven", "73.5"),
    (RandomizedSign, "one value", "proven", "0.834"),
]


@cache
def attacks(mechanism: type[Mechanism]) -> list[lower_bound.AuditRow]:
    """The attacks of `sordino audit --all` on what papers claim."""
    return [lower_bound.run(case) for case in mechanism.audit_cases(1.0) if case.claim is not None]


@pytest.mark.parametrize(("mechanism", "unit", "column", "figure"), SHOWN)
def test_attacks_on_the_papers_formulas_show_what_the_page_says(mechanism, unit, column, figure):
    assert figure in audits.PAGE.read_text()
    found = next(row for row in attacks(mechanism) if row.unit == unit)
    assert (lower(found.audited) if column == "audited" else upper(found.proven)) == figure


def test_a_formula_of_each_paper_but_ldp_fed_is_refuted():
    papers = (BitRandomizer, TwoPoint, Gaussian, Laplace)
    assert all(lower_bound.REFUTED in {row.verdict for row in attacks(mechanism)} for mechanism in papers)
    assert lower_bound.REFUTED not in {row.verdict for row in attacks(Exponential)}


def test_the_table_of_audited_runs_is_that_of_the_records(tmp_path):
    text = audits.PAGE.read_text()
    copy = tmp_path / audits.PAGE.name
    copy.write_text(re.sub(r"(<!-- audits of runs -->\n).*?(<!-- end)", r"\1\2", text, flags=re.DOTALL))
    insert(copy, {audits.TABLE: audits.table(json.loads(audits.RESULTS.read_text()))})
    assert copy.read_text() == text, "run: python -m benchmarks.audits"


def test_the_page_names_every_delta_of_its_rows():
    page = " ".join(audits.PAGE.read_text().partition("Delta is ")[2].split())
    rows = [row for row in json.loads(audits.RESULTS.read_text()) if row["adjacency"] != "coordinate"]
    unusual = {f"{row['delta']:g} for `{row['recipe']}`" for row in rows if row["delta"] != 1e-5}
    assert unusual and all(named in page for named in unusual)


def test_every_planted_fault_is_recorded_as_caught_with_every_seed():
    recorded = json.loads(faults.RESULTS.read_text())
    assert [row["fault"] for row in recorded] == [fault.name for fault in FAULTS]
    assert all(row["caught"] == row["seeds"] == 100 for row in recorded)
    assert re.search(rf"\b{len(FAULTS)}\b", CHECKS.read_text())

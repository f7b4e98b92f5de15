"""The figures of docs/audit.md and docs/checks.md are those of the records."""

import json
import re

from benchmarks import audits, faults
from benchmarks.simulation import insert

from sordino.audits.faults import FAULTS

CHECKS = audits.PAGE.with_name("checks.md")


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

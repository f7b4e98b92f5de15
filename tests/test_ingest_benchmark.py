"""The benchmark of reports at the server: its programs agree, and the page shows what was recorded."""

import json
import re
from pathlib import Path

from benchmarks import ingest
from benchmarks.ingest import Figure


def test_the_tally_counts_what_numpy_counts(tmp_path, monkeypatch):
    monkeypatch.setattr(ingest, "VALUES", 8000)
    monkeypatch.setattr(ingest, "BODY", 1000)
    monkeypatch.setattr(ingest, "MESSAGE", 1000 + ingest.ANSWER_BYTES)
    monkeypatch.setattr(ingest, "ROWS", 3)
    path = tmp_path / "reports.bin"
    ingest.write_reports(path, 7)
    assert ingest.read(path, 7) == path.stat().st_size == 7 * 1024
    assert ingest.tally(path, 7) == ingest.numpy_counts(path, 7)


def test_goals_are_judged():
    def figures(tally: float, memory: int) -> list[Figure]:
        return [
            Figure(program, reports, tally if program == "tally" else 1.0, memory if reports == 20 else 100)
            for reports in (10, 20)
            for program in ("numpy", "tally")
        ]

    assert [row[-1] for row in ingest.goals(figures(0.5, 102))[1:]] == ["met", "met", "met"]
    assert [row[-1] for row in ingest.goals(figures(1.5, 200))[1:]] == ["missed", "missed", "missed"]


def test_the_page_shows_what_was_recorded(tmp_path):
    kept = [Figure(**row) for row in json.loads(ingest.RESULTS.read_text())["figures"]]
    found = {"ingest": ingest.rows(kept)}
    text, copy = ingest.PAGE.read_text(), tmp_path / "page.md"
    copy.write_text(re.sub(r"(<!-- ingest -->\n).*?(<!-- end)", r"\1\2", text, flags=re.DOTALL))
    ingest.insert(copy, found)
    assert copy.read_text() == text
    assert Path(ingest.PAGE).name == "performance.md"


def test_the_goals_are_met():
    kept = [Figure(**row) for row in json.loads(ingest.RESULTS.read_text())["figures"]]
    assert {row[-1] for row in ingest.goals(kept)[1:]} == {"met"}

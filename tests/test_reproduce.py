"""Experiments are run once, recorded, and turned into pages that say what was not run."""

import json
from importlib import import_module
from types import ModuleType
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from sordino.cli import app
from sordino.errors import InvalidInput
from sordino.reproduce import experiments as listing
from sordino.reproduce.experiments import PAPERS, Experiment, chosen, experiments
from sordino.reproduce.pages import Row, rows, table
from sordino.reproduce.plots import plot
from sordino.reproduce.records import Record, Records, Stated

TINY = ("data.train_limit=200", "data.test_limit=50", "split.clients=4", "rounds.count=2")


def record(experiment: str, seed: int, accuracy: float, **changes) -> Record:
    stated = (Stated("client", "server", 1e-5, 20_400.0, 650.0, "claim not supported"),)
    given = {
        "experiment": experiment, "seed": seed, "quick": False, "fingerprint": "f", "accuracy": accuracy, "best": 0.9,
        "rounds": 10, "seconds_per_round": 1.5, "bytes_per_client": 106.0, "curve": ((1, 0.5), (2, accuracy)),
        "privacy": stated, "device": "cpu", "versions": "v", "date": "2026-01-01",
    }  # fmt: skip
    return Record(**(given | changes))


@pytest.fixture
def paper(monkeypatch):
    module = ModuleType("sordino.reproduce.papers.ldp_fl")
    module.EXPERIMENTS = [
        Experiment("later", "a detail", "two-point-digits", TINY, priority=2),
        Experiment("headline", "the | headline", "two-point-digits", TINY, ("rounds.count=1",), 90.0, "Table 1", 2, 1),
    ]
    monkeypatch.setattr(listing, "import_module", lambda name: module)


def test_the_most_valuable_comes_first(paper):
    assert [e.id for e in experiments("ldp-fl")] == ["headline", "later"]


def test_names_choose_and_unknown_ones_are_refused(paper):
    assert [e.id for e in chosen(experiments("ldp-fl"), ["later"])] == ["later"]
    with pytest.raises(InvalidInput, match=r"there are: headline, later"):
        chosen(experiments("ldp-fl"), ["typo"])
    with pytest.raises(InvalidInput, match="unknown paper"):
        experiments("ldp-flu")


def test_records_survive_and_the_latest_counts(tmp_path):
    records = Records(tmp_path / "records" / "p.jsonl")
    records.add(record("a", 1, 0.5))
    records.add(record("a", 2, 0.7))
    records.add(record("a", 1, 0.6))
    assert [r.accuracy for r in records.of("a", quick=False)] == [0.6, 0.7]
    assert records.has("a", 1, False, "f") and not records.has("a", 1, False, "another recipe")
    assert not records.of("a", quick=True)


def test_a_table_gives_mean_spread_difference_and_both_epsilons():
    row = Row(
        Experiment("a", "one | two", "r", figure=64.0, where="Table 1"), (record("a", 1, 0.6), record("a", 2, 0.7))
    )
    assert row.ours == pytest.approx(65.0) and row.spread == pytest.approx(7.0711, abs=1e-4)
    (line,) = table([row]).splitlines()[2:]
    assert "one \\| two" in line and "65.00 ± 7.07" in line and "+1.00" in line
    assert "650 (client, server)" in line and "2.04e+04 at delta 1e-05 (client, server)" in line
    assert row.verdict == "reproduced"


def test_what_was_not_run_or_not_stated_says_so():
    assert Row(Experiment("a", "a", "r", figure=5.0), ()).verdict == "not run"
    assert Row(Experiment("a", "a", "r"), (record("a", 1, 0.6),)).verdict == "not stated"
    assert "not run" in table([Row(Experiment("a", "a", "r", figure=5.0), ())])
    assert Row(Experiment("a", "a", "r", figure=90.0), (record("a", 1, 0.6),)).verdict == "lower here"


def test_a_plot_is_sound_svg_and_escapes():
    found = [
        Row(Experiment(f"e-{k}", "t", "r", figure=50.0 + k, x=float(k)), (record("a", 1, 0.5), record("a", 2, 0.6)))
        for k in range(3)
    ]
    root = ElementTree.fromstring(plot("a < b & c", found))
    circles = root.findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 3 + 1  # ours, and the legend's


def test_the_command_runs_records_resumes_and_writes_pages(paper, tmp_path):
    runner = CliRunner()
    docs = tmp_path / "docs"
    (docs / "papers").mkdir(parents=True)
    (docs / "papers" / "ldp-fl.md").write_text(
        "# Prose\n\nbefore\n\n<!-- figures: made by `sordino reproduce` -->\nold\n<!-- end of figures -->\n\nafter\n"
    )
    command = ["reproduce", "ldp-fl", "--out", str(tmp_path / "out"), "--docs", str(docs), "--workers", "1", "--json"]
    first = runner.invoke(app, command)
    assert first.exit_code == 0, first.output
    found = json.loads(first.stdout)["ldp-fl"]
    assert [(row["experiment"], row["seeds"]) for row in found] == [("headline", 2), ("later", 1)]
    again = runner.invoke(app, command)
    assert again.exit_code == 0 and again.stderr.count("recorded before") == 3
    page = (docs / "papers" / "ldp-fl.md").read_text()
    assert page.startswith("# Prose\n\nbefore") and page.endswith("after\n") and "old" not in page and "Table 1" in page
    assert "not run" in (docs / "reproduction.md").read_text()


def test_quick_runs_are_recorded_apart(paper, tmp_path):
    command = ["reproduce", "ldp-fl", "--quick", "--only", "headline", "--out", str(tmp_path), "--workers", "1"]
    assert CliRunner().invoke(app, command).exit_code == 0
    records = Records(tmp_path / "records" / "ldp-fl.jsonl")
    assert len(records.of("headline", quick=True)) == 1 and not records.of("headline", quick=False)
    assert rows("ldp-fl", records)[0].verdict == "not run"


@pytest.mark.parametrize("name", PAPERS)
def test_every_experiment_of_a_paper_has_a_sound_recipe(name):
    try:
        import_module(f"sordino.reproduce.papers.{name.replace('-', '_')}")
    except ModuleNotFoundError:
        pytest.skip("not described yet")
    for experiment in experiments(name):
        for quick in (False, True):
            recipe = experiment.settings(quick=quick, seed=1)
            assert recipe.seed == 1

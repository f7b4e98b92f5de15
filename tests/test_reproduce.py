"""Experiments are run once, recorded, and turned into pages that say what was not run."""

import gc
import json
import re
import signal
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from papers import experiments as listing
from papers.command import Display
from papers.experiments import PAPERS, Experiment, Gain, chosen, experiments
from papers.pages import Row, gain_rows, paper_section, privacy_cells, rows, shown, table, write_overview, write_paper
from papers.plots import Pair, pairs, plot
from papers.records import Epsilons, Record, Records, essence
from papers.runner import RunProgress, SeedRun, seed_runs
from sordino.cli import app
from sordino.errors import InvalidInput
from sordino.learning import datasets
from sordino.learning.examples import Examples
from sordino.learning.layers import ClientKernels
from sordino.recipe import Recipe
from sordino.runs.coordinator import Attendance
from sordino.runs.federation import Federation
from sordino.runs.simulation import run

TINY = ("data.train_limit=200", "data.test_limit=50", "split.clients=4", "rounds.count=2")


def record(experiment: str, seed: int, accuracy: float, **changes) -> Record:
    stated = (Epsilons("client", "server", 1e-5, 20_400.0, 650.0, "claim not supported"),)
    given = {
        "experiment": experiment, "seed": seed, "quick": False, "fingerprint": "f", "accuracy": accuracy, "best": 0.9,
        "rounds": 10, "seconds_per_round": 1.5, "bytes_per_client": 106.0, "curve": ((1, 0.5), (2, accuracy)),
        "privacy": stated, "device": "cpu", "versions": "v", "date": "2026-01-01",
    }  # fmt: skip
    return Record(**(given | changes))


@pytest.fixture
def paper(monkeypatch):
    module = ModuleType("papers.sun_ldp_fl")
    module.EXPERIMENTS = [
        Experiment("later", "a detail", "two-point-digits", TINY, priority=2, note="said once"),
        Experiment("headline", "the | headline", "two-point-digits", TINY, ("rounds.count=1",), 90.0, "Table 1", 2, 1),
    ]
    monkeypatch.setattr(listing, "import_module", lambda name: module)


def test_the_most_valuable_comes_first(paper):
    assert [e.id for e in experiments("ldp-fl")] == ["headline", "later"]


def test_names_choose_and_unknown_ones_are_refused(paper):
    assert names_of(chosen(["ldp-fl"], ["later"])) == ["later"]
    assert names_of(chosen(["ldp-fl"], [])) == ["headline", "later"]
    with pytest.raises(InvalidInput, match=r"ldp-fl.*'typo'.*headline, later$"):
        chosen(["ldp-fl"], ["later", "typo"])  # one that is known does not hide one that is not
    with pytest.raises(InvalidInput, match="unknown paper"):
        experiments("ldp-flu")


def names_of(found):
    return [experiment.id for own in found.values() for experiment in own]


def test_a_name_that_is_an_experiments_own_does_not_bring_those_that_begin_with_it(monkeypatch):
    found = [Experiment(name, "", "r") for name in ("mnist", "mnist-clear", "table-1", "table-2")]
    monkeypatch.setattr(listing, "import_module", lambda name: SimpleNamespace(EXPERIMENTS=found))
    assert names_of(chosen(["ldp-fl"], ["mnist"])) == ["mnist"]
    assert names_of(chosen(["ldp-fl"], ["table"])) == ["table-1", "table-2"]


def test_over_several_papers_a_name_is_looked_for_in_all_of_them():
    found = chosen(list(PAPERS), ["single-layer", "digits-none"])
    assert {paper: len(own) for paper, own in found.items() if own} == {"ldp-fed": 1, "personalized": 1}


@pytest.mark.parametrize("name", PAPERS)
def test_every_command_of_the_overview_names_experiments(name, tmp_path):
    records = Records(tmp_path / "none.jsonl")
    for row in (*rows(name, records), *gain_rows(name, records)):
        assert chosen([name], [row.experiment.id])[name]


def test_what_leaves_nothing_to_run_or_is_said_twice_is_refused(paper, tmp_path):
    def refused(*given):
        done = CliRunner().invoke(app, ["reproduce", *given, "--out", str(tmp_path / "out")])
        assert done.exit_code == 1 and not (tmp_path / "out").exists()
        return done.stderr

    assert "--priority 1 leaves nothing" in refused("ldp-fl", "--only", "later", "--priority", "1")
    assert "name one paper" in refused("ldp-fl", "--all")
    assert "name one paper" in refused()


def test_an_installed_package_says_that_experiments_need_a_clone(monkeypatch, tmp_path):
    monkeypatch.setattr("sordino.cli.reproduce.CLONE", tmp_path)
    for given in (["ldp-fl", "--quick"], ["--help"]):
        done = CliRunner().invoke(app, ["reproduce", *given])
        assert done.exit_code == 1 and not done.stdout and "clone the repository" in done.stderr


def test_records_survive_and_the_latest_counts(tmp_path):
    records = Records(tmp_path / "records" / "p.jsonl")
    records.add(record("a", 1, 0.5))
    records.add(record("a", 2, 0.7))
    records.add(record("a", 1, 0.6))
    assert [r.accuracy for r in records.of("a", quick=False)] == [0.6, 0.7]
    settings = Recipe.load("quickstart")
    records.add(record("b", 1, 0.5, fingerprint=essence(settings)))
    assert [len(records.of(name, quick=False, settings=settings)) for name in ("a", "b")] == [0, 1]
    assert not records.of("a", quick=True)


def test_a_table_gives_mean_spread_and_both_epsilons():
    row = Row(
        Experiment("a", "one | two", "r", figure=64.0, where="Table 1"), (record("a", 1, 0.6), record("a", 2, 0.7))
    )
    assert row.ours == pytest.approx(65.0) and row.spread == pytest.approx(7.0711, abs=1e-4)
    (line,) = table([row]).splitlines()[2:]
    assert "one \\| two" in line and "65.00 ± 7.07" in line
    assert "650 (client, server)" in line and "2.04e+04 at delta 1e-05 (client, server)" in line
    assert row.verdict == "undecided"


def test_of_several_seeds_the_largest_epsilon_is_shown():
    def of(seed, proven, claimed):
        stated = (
            Epsilons("client", "server", 1e-5, proven, claimed, ""),
            Epsilons("coordinate", "server", 1e-5, 9.0, None, ""),
        )
        return record("a", seed, 0.6, privacy=stated)

    def cells(*seeds):
        return privacy_cells(Row(Experiment("a", "a", "r"), seeds))

    assert cells(of(1, 2.0, 1.0), of(2, 3.0, 1.0), of(3, 2.5, 1.0))[1] == "3 at delta 1e-05 (client, server)"
    assert cells(of(1, "infinite", 1.0), of(2, 3.0, 1.0))[1] == "infinite (client, server)"
    assert cells(of(1, "infinite", 1.0), of(2, "infinite", 4.0))[0] == "4 (client, server)"


def test_a_record_added_is_never_shown_without_a_record_exchanged():
    stated = (
        Epsilons("record (replace)", "server", 1e-5, 0.856, None, ""),
        Epsilons("record (add/remove)", "server", 1e-5, 0.425, None, ""),
        Epsilons("record (replace)", "summed(3)", 1e-5, 0.1, None, ""),
    )
    claimed, proven = privacy_cells(Row(Experiment("a", "a", "r"), (record("a", 1, 0.6, privacy=stated),)))
    assert claimed == "none"
    assert proven == (
        "0.425 at delta 1e-05 (record (add/remove), server); 0.856 at delta 1e-05 (record (replace), server); "
        "0.1 at delta 1e-05 (record (replace), summed(3))"
    )


def test_what_a_paper_says_otherwise_than_by_a_number_is_shown_so():
    (line,) = table(
        [Row(Experiment("a", "a", "r", figure=10.0, said="below 10"), (record("a", 1, 0.6),))]
    ).splitlines()[2:]
    assert "| below 10 | 60.00 |" in line


def test_a_stated_loss_shows_the_epsilons_of_the_run_with_noise(monkeypatch, tmp_path):
    noisy = Experiment("noisy", "with", "two-point-digits", TINY)
    plain = replace(noisy, id="plain", overrides=(*TINY, "rounds.count=3"))
    loss = Gain("loss", "lost", (("plain", "noisy"),), 1.0, private="noisy")
    monkeypatch.setattr(
        listing, "import_module", lambda name: SimpleNamespace(EXPERIMENTS=[noisy, plain], GAINS=(loss,))
    )
    records = Records(tmp_path / "ldp-fl.jsonl")
    for experiment, accuracy, privacy in ((noisy, 0.5, None), (plain, 0.6, ())):
        fingerprint = essence(experiment.settings(quick=False, seed=1))
        changes = {} if privacy is None else {"privacy": privacy}
        records.add(record(experiment.id, 1, accuracy, fingerprint=fingerprint, **changes))
    (row,) = gain_rows("ldp-fl", records)
    assert row.ours == pytest.approx(10.0) and privacy_cells(row)[0] == "650 (client, server)"


def test_two_figures_of_one_run_share_its_records(monkeypatch, tmp_path):
    first = Experiment("first", "a figure", "two-point-digits", TINY, ("rounds.count=1",), figure=90.0)
    second = replace(first, id="second", what="the same in a table", figure=80.0, same_run="first")
    monkeypatch.setattr(listing, "import_module", lambda name: SimpleNamespace(EXPERIMENTS=[first, second]))
    out = str(tmp_path / "out")
    asked = CliRunner().invoke(app, ["reproduce", "ldp-fl", "--out", out, "--only", "second", "--workers", "1"])
    assert asked.exit_code == 0 and "ldp-fl: 1 run now" in asked.stderr, asked.output
    both = CliRunner().invoke(app, ["reproduce", "ldp-fl", "--out", out, "--json"])
    assert "ldp-fl: 0 run now, 2 recorded before" in both.stderr
    assert [row["seeds"] for row in json.loads(both.stdout)["ldp-fl"]] == [1, 1]
    there = CliRunner().invoke(
        app, ["reproduce", "ldp-fl", "--out", f"{out}-2", "--merge", out, "--only", "second", "--json"]
    )
    assert "1 record taken" in there.stderr, there.output


def test_what_was_not_run_or_not_stated_says_so():
    assert Row(Experiment("a", "a", "r", figure=5.0), ()).verdict == "not run"
    assert Row(Experiment("a", "a", "r"), (record("a", 1, 0.6),)).verdict == "not stated"
    assert "not run" in table([Row(Experiment("a", "a", "r", figure=5.0), ())])
    assert Row(Experiment("a", "a", "r", figure=90.0), (record("a", 1, 0.6),)).verdict == "lower here"


def test_a_plot_is_sound_svg_and_escapes():
    found = [
        Row(
            Experiment(f"e-{k}", "t", "r", figure=50.0 + k, x=float(k), axis="d < e"),
            (record("a", 1, 0.5), record("a", 2, 0.6)),
        )
        for k in range(3)
    ]
    root = ElementTree.fromstring(plot("a < b & c", found))
    circles = root.findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) == 3 + 1  # ours, and the legend's
    assert "d < e" in [text.text for text in root.findall("{http://www.w3.org/2000/svg}text")]


PLOT = "![over x](figures/ldp-fl-over-x.svg)"


def varied(monkeypatch, tmp_path, ran, *first, prose=PLOT):
    """The plot of an experiment at x = 1, 2 and 3, of which some were run, after others; None where none is drawn."""
    found = [
        *first,
        *(
            Experiment(f"e-{k}", f"noise {k}", "two-point-digits", TINY, group="over x", x=float(k), where="Figure 1")
            for k in (1, 2, 3)
        ),
    ]
    monkeypatch.setattr(listing, "import_module", lambda name: SimpleNamespace(EXPERIMENTS=found))
    records = Records(tmp_path / "ldp-fl.jsonl")
    for experiment in found[:ran]:
        records.add(record(experiment.id, 1, 0.5, fingerprint=essence(experiment.settings(quick=False, seed=1))))
    (tmp_path / "papers").mkdir(exist_ok=True)
    (tmp_path / "papers" / "ldp-fl.md").write_text(prose)
    write_paper("ldp-fl", records, tmp_path)
    drawn = tmp_path / "papers" / "figures" / "ldp-fl-over-x.svg"
    if not drawn.exists():
        return None
    return [text.text for text in ElementTree.parse(drawn).iter("{http://www.w3.org/2000/svg}text")]


def test_a_page_has_the_rows_that_its_module_names_in_that_order(monkeypatch, tmp_path):
    found = [Experiment(f"e-{k}", f"row {k}", "two-point-digits", TINY, figure=50.0 + k) for k in range(3)]
    loss = Gain("loss", "lost", (("e-0", "e-1"),), 1.0)
    module = SimpleNamespace(EXPERIMENTS=found, GAINS=(loss,), ON_PAGE=("loss", "e-2", "e-0"))
    monkeypatch.setattr(listing, "import_module", lambda name: module)
    records = Records(tmp_path / "none.jsonl")
    assert [row.experiment.id for row in shown("ldp-fl", records)] == ["loss", "e-2", "e-0"]
    del module.ON_PAGE
    assert [row.experiment.id for row in shown("ldp-fl", records)] == ["e-0", "e-1", "e-2", "loss"]


def test_a_single_point_makes_no_figure(monkeypatch, tmp_path):
    assert varied(monkeypatch, tmp_path, 1) is None
    said = varied(monkeypatch, tmp_path, 2)
    assert "1" in said and "2" in said and "3" not in said  # no place is kept for what was not run


def test_a_plot_is_drawn_only_where_the_page_shows_it(monkeypatch, tmp_path):
    assert varied(monkeypatch, tmp_path, 3, prose="no plot") is None


def test_an_experiment_is_a_point_of_all_plots_that_it_names(monkeypatch, tmp_path):
    headline = Experiment("h", "headline", "two-point-digits", TINY, figure=77.0, also=(("over x", 9.0),))
    said = varied(monkeypatch, tmp_path, 2, headline)  # itself and e-1
    assert "1" in said and "9" in said and "stated in the paper" in said


def test_the_overview_says_which_figures_were_in_view_and_what_claims_are(monkeypatch, tmp_path):
    found = [Experiment(f"e-{k}", f"row {k}", "two-point-digits", TINY, figure=50.0, fitted=k < 2) for k in range(3)]
    records = Records(tmp_path / "ldp-fl.jsonl")
    for experiment in found:
        records.add(record(experiment.id, 1, 0.5, fingerprint=essence(experiment.settings(quick=False, seed=1))))
    module = SimpleNamespace(EXPERIMENTS=found, CLAIMS="Claimed is something else.")
    monkeypatch.setattr(listing, "import_module", lambda name: module)
    overview = write_overview(lambda _: records, tmp_path).read_text()
    assert overview.count("| 3 | 3 (2 fitted, 3 on one seed) | 0 | 0 | 0 | 0 |") == len(PAPERS)
    assert overview.count("reproduced, fitted, one seed |") == 2 * len(PAPERS)
    assert "Claimed is something else." in overview
    assert "Claimed is something else." in write_paper("ldp-fl", records, tmp_path).read_text()


def test_the_overview_has_the_headlines_that_modules_name_and_draws_them(monkeypatch, tmp_path):
    found = [Experiment(f"e-{k}", f"row {k}", "two-point-digits", TINY, figure=60.0) for k in range(2)]
    records = Records(tmp_path / "ldp-fl.jsonl")
    for experiment in found:
        records.add(record(experiment.id, 1, 0.5, fingerprint=essence(experiment.settings(quick=False, seed=1))))
    module = SimpleNamespace(EXPERIMENTS=found, IN_OVERVIEW={"e-1": "the second"})
    monkeypatch.setattr(listing, "import_module", lambda name: module)
    overview = write_overview(lambda _: records, tmp_path).read_text()
    assert overview.count("`--only e-1`") == len(PAPERS) and "`--only e-0`" not in overview
    for name in ("accuracies", "epsilons"):
        drawn = ElementTree.parse(tmp_path / "papers" / "figures" / f"{name}.svg")
        texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
        assert sum(text.endswith(", the second") for text in texts) == len(PAPERS)


def test_an_infinite_value_is_drawn_at_the_end_with_its_name():
    def marks(ours):
        root = ElementTree.fromstring(
            pairs("t", [Pair("a < b", 1.0, ours), Pair("c", 1.0, 1000.0)], ("x", "y"), powers=True)
        )
        circles = [float(mark.attrib["cx"]) for mark in root.iter("{http://www.w3.org/2000/svg}circle")]
        return circles[:-1], [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]

    circles, texts = marks(10.0)
    assert circles == sorted(circles) and len(circles) == 2 and "infinite" not in texts and "a < b" in texts
    circles, texts = marks(float("inf"))
    assert len(circles) == 1 and "infinite" in texts


def test_what_differs_too_much_from_seed_to_seed_is_neither_reproduced_nor_missed():
    experiment = Experiment("e", "row", "two-point-digits", figure=50.0)

    def verdict(*accuracies: float) -> str:
        return Row(experiment, tuple(record("e", seed, given) for seed, given in enumerate(accuracies, 1))).verdict

    assert verdict(0.4, 0.5, 0.6) == "undecided"  # 50 with a standard error of 5.8
    assert verdict(0.42, 0.44, 0.55) == "undecided"  # 47 with one of 4
    assert verdict(0.49, 0.5, 0.51) == verdict(0.515) == "reproduced"
    assert verdict(0.2, 0.3, 0.4) == verdict(0.47) == "lower here"


def test_another_reading_stands_beside_a_figure_and_is_none_of_its_own(monkeypatch, tmp_path):
    first = Experiment("e", "row", "two-point-digits", TINY, figure=60.0)
    other = replace(first, id="e-other", what="row, otherwise", overrides=(*TINY, "seed=3"), instead=("e", "otherwise"))
    records = Records(tmp_path / "ldp-fl.jsonl")
    records.add(record("e", 1, 0.5, fingerprint=essence(first.settings(quick=False, seed=1))))
    monkeypatch.setattr(listing, "import_module", lambda name: SimpleNamespace(EXPERIMENTS=[first, other]))
    assert "| lower here, one seed |" in write_overview(lambda _: records, tmp_path).read_text()
    records.add(record("e-other", 1, 0.59, fingerprint=essence(other.settings(quick=False, seed=1))))
    overview = write_overview(lambda _: records, tmp_path).read_text()
    assert "| 1 | 0 | 0 | 0 | 1 (1 on one seed) | 0 |" in overview and "row, otherwise" not in overview
    assert "| lower here, one seed; otherwise: 59.00 |" in overview
    assert "| lower here, one seed; otherwise: 59.00 |" in write_paper("ldp-fl", records, tmp_path).read_text()


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
    told = [(row["experiment"], row["seeds"], row["where"], row["note"]) for row in found]
    assert told == [("headline", 2, "Table 1", ""), ("later", 1, "", "said once")]
    again = runner.invoke(app, command)
    assert again.exit_code == 0 and again.stderr.count("seed 1: recorded before") == 2
    assert "ldp-fl: 0 run now, 3 recorded before, 0 skipped" in again.stderr
    page = (docs / "papers" / "ldp-fl.md").read_text()
    assert page.startswith("# Prose\n\nbefore") and page.endswith("after\n") and "old" not in page and "Table 1" in page
    assert "not run" in (docs / "reproduction.md").read_text()


def quick_run(folder, *more):
    command = ["reproduce", "ldp-fl", "--quick", "--only", "headline", "--out", str(folder), "--workers", "1", *more]
    return CliRunner().invoke(app, command)


def test_quick_runs_are_recorded_apart(paper, tmp_path):
    assert quick_run(tmp_path).exit_code == 0
    records = Records(tmp_path / "records" / "ldp-fl.jsonl")
    assert len(records.of("headline", quick=True)) == 1 and not records.of("headline", quick=False)
    assert rows("ldp-fl", records)[0].verdict == "not run"


def test_a_quick_run_is_never_set_beside_the_papers_figure(paper, tmp_path):
    shown = quick_run(tmp_path).stdout
    assert "scaled down" in shown and "90.00" not in shown
    (row,) = json.loads(quick_run(tmp_path, "--json").stdout)["ldp-fl"]
    assert row["ours"] is not None and row["verdict"].startswith("scaled down")


def test_quick_runs_never_get_into_the_pages(paper, tmp_path):
    refused = quick_run(tmp_path / "out", "--docs", str(tmp_path / "docs"))
    assert refused.exit_code == 1 and "leave out --quick" in refused.stderr
    assert not (tmp_path / "docs").exists()
    records = Records(tmp_path / "ldp-fl.jsonl")
    for experiment in experiments("ldp-fl"):  # even where such records lie among those of full runs
        for quick in (False, True):
            asked = essence(experiment.settings(quick=quick, seed=1))
            records.add(record(experiment.id, 1, 0.4321, quick=True, fingerprint=asked))
    page = write_paper("ldp-fl", records, tmp_path / "docs")
    overview = write_overview(lambda _: records, tmp_path / "docs")
    assert "not run" in page.read_text() and "not run" in overview.read_text()
    assert "43.21" not in page.read_text() + overview.read_text()


def test_seeds_take_turns_and_quick_runs_have_one():
    once, thrice = Experiment("once", "", "r"), Experiment("thrice", "", "r", seeds=3)
    found = [(seed_run.experiment.id, seed_run.seed) for seed_run in seed_runs([thrice, once], quick=False, seeds=None)]
    assert found == [("thrice", 1), ("once", 1), ("thrice", 2), ("thrice", 3)]
    assert [seed_run.seed for seed_run in seed_runs([thrice, once], quick=True, seeds=None)] == [1, 1]
    assert [seed_run.seed for seed_run in seed_runs([once], quick=True, seeds=2)] == [1, 2]
    assert seed_runs([], quick=True, seeds=None) == ()


def test_no_seeds_are_refused_and_not_taken_for_all_of_them(paper, tmp_path):
    with pytest.raises(InvalidInput, match="got 0"):
        seed_runs([Experiment("once", "", "r")], quick=False, seeds=0)
    assert quick_run(tmp_path, "--seeds", "0").exit_code == 2
    assert not any(tmp_path.iterdir())


def test_without_a_terminal_a_line_now_and_then_says_how_far_it_is(paper, tmp_path, monkeypatch):
    assert "round" not in quick_run(tmp_path / "short").stderr  # a run of less than a minute
    monkeypatch.setattr("papers.command.Display.PLAIN_SECONDS", 0.0)
    assert re.search(r"headline, seed 1: round 1 of \d+, accuracy \d", quick_run(tmp_path / "long").stderr)


def test_a_run_of_other_settings_does_not_stand_in_the_way(paper, tmp_path, monkeypatch):
    """As after an update that changed an experiment: the folder of the old run is left as it is."""
    assert quick_run(tmp_path).exit_code == 0
    changed = [replace(e, quick=("rounds.count=3",)) for e in experiments("ldp-fl")]
    monkeypatch.setattr(listing, "import_module", lambda name: SimpleNamespace(EXPERIMENTS=changed))
    assert quick_run(tmp_path).exit_code == 0
    folders = sorted((tmp_path / "ldp-fl").iterdir())
    assert [Recipe.from_toml((f / "recipe.toml").read_text()).rounds.count for f in folders] == [1, 3]
    assert "headline, seed 1: recorded before" in quick_run(tmp_path).stderr


def test_a_full_run_of_some_shows_these_alone(paper, tmp_path):
    done = CliRunner().invoke(app, ["reproduce", "ldp-fl", "--only", "later", "--out", str(tmp_path), "--json"])
    assert [row["experiment"] for row in json.loads(done.stdout)["ldp-fl"]] == ["later"]
    assert f"Records are in {tmp_path / 'records'}." in done.stderr


def test_how_long_the_other_rounds_take_is_said(monkeypatch, capsys):
    monkeypatch.setattr("papers.command.Display.PLAIN_SECONDS", 0.0)
    display = Display(1)
    display.told(RunProgress(SeedRun(Experiment("a", "", "r"), 1, False), "running"))
    display.started(SimpleNamespace(recipe=SimpleNamespace(rounds=SimpleNamespace(count=10))), (), 7)  # resumed
    for number, seconds in ((7, 50.0), (8, 70.0)):
        display.round(SimpleNamespace(round=number, accuracy=None, seconds=seconds), Attendance())
    assert "a, seed 1: round 8 of 10, about 2 min 0 s left" in capsys.readouterr().err


def test_ctrl_c_says_how_far_it_is_and_the_same_command_goes_on(paper, tmp_path, monkeypatch):
    command = ["reproduce", "ldp-fl", "--out", str(tmp_path), "--workers", "1"]
    with monkeypatch.context() as held:
        held.setattr(Display, "round", lambda self, *_: self.over and signal.raise_signal(signal.SIGINT))
        stopped = CliRunner().invoke(app, command)
    assert stopped.exit_code == 130 and "1 of 3 runs" in stopped.stderr
    again = CliRunner().invoke(app, command)
    assert again.exit_code == 0 and "ldp-fl: 2 run now, 1 recorded before, 0 skipped" in again.stderr


def test_a_run_leaves_no_data_and_no_models_behind(paper):
    """Without the collector of cycles, which comes late to objects that are few and huge."""
    (recipe, *_) = [seed_run.settings() for seed_run in seed_runs(experiments("ldp-fl"), quick=True, seeds=None)]
    large = (Examples, ClientKernels, Federation)

    def alive():
        return {id(each) for each in gc.get_objects() if type(each) in large}

    gc.collect()
    gc.disable()
    try:
        before = alive()
        run(recipe, workers=1)
        assert not alive() - before
    finally:
        gc.enable()


# --- records of other machines ----------------------------------------------------------------------------------------


def of_headline(seed, **changes):
    asked = essence(experiments("ldp-fl")[0].settings(quick=changes.get("quick", False), seed=1))
    return record("headline", seed, **{"accuracy": 0.5, "fingerprint": asked, **changes})


def merged(tmp_path, *more):
    command = ["reproduce", "ldp-fl", "--out", str(tmp_path / "here"), *more]
    return CliRunner().invoke(app, command)


def filled(folder, *found):
    records = Records(folder / "records" / "ldp-fl.jsonl")
    for each in found:
        records.add(each)
    return records


def test_records_of_another_machine_are_taken_once(paper, tmp_path):
    here = filled(tmp_path / "here", of_headline(1))
    there = filled(tmp_path / "there", of_headline(1, accuracy=0.9), of_headline(2), of_headline(2))
    done = merged(tmp_path, "--merge", str(tmp_path / "there"), "--json")
    assert done.exit_code == 0, done.output
    assert f"ldp-fl: 1 record taken from {there.path}, 1 recorded before, 0 refused\n" in done.stderr
    assert [(r.seed, r.accuracy) for r in here.lines()] == [(1, 0.5), (2, 0.5)]  # what was here stays
    assert json.loads(done.stdout)["ldp-fl"][0]["seeds"] == 2
    assert "0 records taken" in merged(tmp_path, "--merge", str(there.path)).stderr
    assert not (tmp_path / "here" / "ldp-fl").exists()  # nothing was run


def test_records_of_other_settings_or_other_papers_are_refused_and_the_rest_is_taken(paper, tmp_path):
    filled(tmp_path / "a", of_headline(1), of_headline(1, fingerprint="old"), record("elsewhere", 1, 0.5))
    done = merged(tmp_path, "--merge", str(tmp_path / "a"))
    assert done.exit_code == 0 and "1 record taken" in done.stderr and "2 refused" in done.stderr
    assert (
        "Refused (recorded with other settings than the experiments have here, so run them again): headline (seed 1)\n"
        in done.stderr
    )
    assert "Refused (no experiments that are asked for): elsewhere (seed 1)\n" in done.stderr
    filled(tmp_path / "b", of_headline(2, fingerprint="old"))
    assert merged(tmp_path, "--merge", str(tmp_path / "b")).exit_code == 1  # nothing fits
    assert [r.seed for r in Records(tmp_path / "here" / "records" / "ldp-fl.jsonl").lines()] == [1]


def test_scaled_down_records_are_merged_apart(paper, tmp_path):
    filled(tmp_path / "a", of_headline(1), of_headline(2, quick=True))
    assert "1 record taken" in (done := merged(tmp_path, "--merge", str(tmp_path / "a"))).stderr
    assert "0 refused, 1 of scaled-down runs left out" in done.stderr
    assert "1 of full runs left out" in merged(tmp_path, "--merge", str(tmp_path / "a"), "--quick").stderr
    assert [r.quick for r in Records(tmp_path / "here" / "records" / "ldp-fl.jsonl").lines()] == [False, True]


def test_merging_into_the_docs_makes_their_pages_anew(paper, tmp_path):
    filled(tmp_path / "a", of_headline(1, accuracy=0.8765))
    docs = tmp_path / "docs"
    done = merged(tmp_path, "--merge", str(tmp_path / "a"), "--docs", str(docs))
    assert done.exit_code == 0 and f"The pages of {docs} are up to date." in done.stderr
    assert "87.65" in (docs / "papers" / "ldp-fl.md").read_text() and "87.65" in (docs / "reproduction.md").read_text()
    assert "1 recorded before" in merged(tmp_path, "--merge", str(docs), "--docs", str(docs)).stderr


def test_what_holds_no_records_is_refused_by_name_and_nothing_is_taken(paper, tmp_path):
    good = filled(tmp_path / "a", of_headline(1))
    torn = tmp_path / "torn.jsonl"
    torn.write_bytes(good.path.read_bytes()[:-5])
    wrong = tmp_path / "wrong.jsonl"
    wrong.write_bytes(good.path.read_bytes() + b"{}\n")
    for place, why in (
        (tmp_path / "nowhere", "no records of ldp-fl are at"),
        (torn, "the last line is not whole"),
        (wrong, "line 2: this is no record"),
    ):
        done = merged(tmp_path, "--merge", str(place))
        assert done.exit_code == 1 and why in done.stderr and str(place) in done.stderr
    assert "leave out --seeds" in merged(tmp_path, "--merge", str(good.path), "--seeds", "2").stderr
    assert not (tmp_path / "here").exists()


# --- data that are not here -------------------------------------------------------------------------------------------


@pytest.fixture
def paper_without_data(monkeypatch, tmp_path):
    """Two experiments with data that have no public home, so that nothing is downloaded, and one with digits."""
    monkeypatch.delenv("SORDINO_DATA", raising=False)
    monkeypatch.setattr(datasets, "cache_folder", lambda: tmp_path / "cache")
    houses = (*TINY, "data.source=svhn-subset")
    found = [
        Experiment("houses", "house numbers", "two-point-digits", houses),
        Experiment("more-houses", "house numbers again", "two-point-digits", houses),
        Experiment("digits", "digits", "two-point-digits", TINY),
    ]
    monkeypatch.setattr(listing, "import_module", lambda name: SimpleNamespace(EXPERIMENTS=found))


def without_data(folder, *more):
    return CliRunner().invoke(app, ["reproduce", "ldp-fl", "--quick", "--out", str(folder), "--workers", "1", *more])


def test_experiments_without_their_data_are_skipped_and_the_others_run(paper_without_data, tmp_path):
    done = without_data(tmp_path)
    assert done.exit_code == 0, done.output
    said = done.stderr.splitlines()
    (first,) = [line for line in said if line.startswith("houses, seed 1: skipped")]
    assert "svhn/svhn_cropped_subset.npz" in first and str(tmp_path / "cache") in first and "SORDINO_DATA" in first
    assert "more-houses, seed 1: skipped, for the same data (2 of 3)" in said
    assert any(re.fullmatch(r"digits, seed 1: done in .*s, accuracy .*% \(3 of 3\)", line) for line in said)
    assert "ldp-fl: 1 run now, 0 recorded before, 2 skipped" in said
    (sum_up,) = [line for line in said if line.startswith("Skipped (2 of ldp-fl): ")]
    assert sum_up.count("svhn_cropped_subset.npz") == 1
    assert "ldp-fl: 0 run now, 1 recorded before, 2 skipped" in without_data(tmp_path).stderr


def test_missing_data_are_looked_for_once(paper_without_data, tmp_path, monkeypatch):
    tried = []

    def load(name):
        tried.append(name)
        raise datasets.DataUnavailable("no such data.\nPut these files below here:\n  a\n  b\nThey are inside c")

    monkeypatch.setattr(datasets, "load", load)
    done = without_data(tmp_path, "--only", "houses", "--only", "more-houses")
    assert tried == ["svhn-subset"]
    assert "skipped, no such data. Put these files below here: a, b. They are inside c (1 of 2)\n" in done.stderr
    assert done.exit_code == 1  # nothing of what was asked for could be had


def test_a_terminal_shows_how_many_experiments_are_done(paper_without_data, tmp_path):
    done = CliRunner().invoke(
        app, ["reproduce", "ldp-fl", "--quick", "--out", str(tmp_path), "--workers", "1"], env={"FORCE_COLOR": "1"}
    )
    assert done.exit_code == 0, done.output
    assert "experiments" in done.stderr and "3/3" in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", done.stderr)
    assert "digits, seed 1: done" not in done.stderr  # the bar says so


# --- the papers' own --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PAPERS)
def test_every_experiment_of_a_paper_has_a_sound_recipe(name):
    assert experiments(name)
    for experiment in experiments(name):
        for quick in (False, True):
            recipe = experiment.settings(quick=quick, seed=1)
            assert recipe.seed == 1


@pytest.mark.parametrize("name", PAPERS)
def test_two_figures_of_one_run_have_the_same_settings(name):
    by_id = {experiment.id: experiment for experiment in experiments(name)}
    for experiment in by_id.values():
        for quick in (False, True):
            own, other = (e.settings(quick=quick, seed=1) for e in (experiment, by_id[experiment.recorded_as]))
            assert essence(own) == essence(other), experiment.id


@pytest.mark.parametrize("name", PAPERS)
def test_every_plot_says_what_its_axis_is(name):
    for experiment in experiments(name):
        assert experiment.axis or not experiment.group, experiment.id
        assert "epsilon" not in experiment.group or re.search("claimed|proven", experiment.axis), experiment.id
        own = {other.group for other in experiments(name)}
        assert own.issuperset(group for group, _ in experiment.also), experiment.id


DOCS = Path(__file__).parent.parent / "docs"


def page_of(name):
    return (DOCS / "papers" / f"{name}.md").read_text()


def records_of(name):
    return Records(DOCS / "papers" / "records" / f"{name}.jsonl")


def test_every_figure_of_the_pages_is_shown_by_one():
    pages = [*DOCS.glob("*.md"), *(DOCS / "papers").glob("*.md")]
    linked = {found for page in pages for found in re.findall(r"\((?:papers/)?figures/(.+?)\)", page.read_text())}
    assert linked == {path.name for path in (DOCS / "papers" / "figures").iterdir()}


@pytest.mark.parametrize("name", PAPERS)
def test_the_table_of_a_page_is_what_the_records_say(name):
    assert paper_section(name, records_of(name)) in page_of(name)


@pytest.mark.parametrize("name", PAPERS)
def test_the_percentages_in_the_prose_of_a_page_are_recorded_or_stated(name):
    prose = re.sub(r"<!-- (figures|pages).*?<!-- end of \1 -->", "", page_of(name), flags=re.DOTALL)
    found = [*rows(name, records_of(name)), *gain_rows(name, records_of(name))]
    runs = [*json.loads((DOCS.parent / "benchmarks" / "results" / "proven.json").read_text()).values()]
    means = [*(row.ours for row in found if row.ours is not None), *(100 * accuracy_of(own) for own in runs)]
    figures = {row.experiment.figure for row in found} - {None}
    known = {f"{value:.{places}f}" for value in (*means, *figures) for places in (1, 2)}
    assert set(re.findall(r"(\d+\.\d+) %", prose)) <= known


def accuracy_of(own):
    return sum(one["accuracy"] for one in own) / len(own)


@pytest.mark.parametrize("name", PAPERS)
def test_a_quick_run_goes_through_few_records(name):
    """All of them together are to take minutes on two cores."""
    for experiment in experiments(name):
        quick = experiment.settings(quick=True, seed=1)
        sizes = quick.split.sizes if quick.split.kind == "sizes" else [quick.data.train_limit or 1_500]
        assert sum(sizes) * quick.rounds.count * (quick.training.epochs or 1) <= 50_000, experiment.id
        assert quick.data.source == "digits" or 0 < quick.data.test_limit <= 2_000, experiment.id


@pytest.mark.parametrize("name", ["privunit-mnist", "privunit-cifar-10"])
def test_what_was_recorded_as_proven_and_is_not_is_shown_as_claimed(name, tmp_path):
    experiment = next(one for one in experiments("ldp-fl") if one.id == name)
    former = experiment.former_settings()
    assert former is not None and essence(former) != essence(experiment.settings(quick=False, seed=1))
    was = Epsilons("client", "server", 1e-5, 500.0, None, "no claim")
    records = Records(tmp_path / "records.jsonl")
    records.add(replace(record(name, 1, 0.25, fingerprint=essence(former)), privacy=(was,)))
    (row,) = [row for row in rows("ldp-fl", records) if row.experiment.id == name]
    assert row.accuracies == (25.0,)
    assert [(own.proven, own.claimed) for own in row.records[0].privacy] == [("infinite", 500.0)]

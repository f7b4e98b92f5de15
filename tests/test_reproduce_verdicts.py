"""Verdicts to the letter: derived figures are not counted, differences and single seeds are judged as what they are."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from papers import catalogue
from papers import experiments as listing
from papers.command import Display
from papers.experiments import PAPERS, Experiment, Gain, experiments, gains
from papers.first_look import first_look
from papers.pages import Row, gain_rows, overview_section, rows, tally, theirs, verdict_words
from papers.plots import plot
from papers.records import Record, Records, essence
from papers.runner import RunProgress, SeedRun
from papers.scale import what_ran
from papers.verdicts import CLOSE, judge_accuracy, judge_difference, sampling_error, tolerance
from sordino.cli import app

TINY = ("data.train_limit=200", "data.test_limit=100", "split.clients=4", "rounds.count=2")
DOCS = Path(__file__).parent.parent / "docs"

FIRST = Experiment(
    "first", "with noise, 4 clients", "two-point-digits", TINY, ("rounds.count=1",), figure=50.0, seeds=3
)
PLAIN = replace(FIRST, id="plain", what="without", overrides=(*TINY, "seed=3"), figure=51.0, derived="50 plus 1")
LOSS = Gain("loss", "points lost", (("plain", "first"),), 1.0, "section 1")


def record(experiment: Experiment, seed: int, accuracy: float, *, quick: bool = False) -> Record:
    asked = essence(experiment.settings(quick=quick, seed=1))
    rounds = experiment.settings(quick=quick, seed=1).rounds.count
    return Record(
        experiment.id, seed, quick, asked, accuracy, accuracy, rounds, 3.0, 8.0, ((1, accuracy),), (), "cpu", "v", "d"
    )


@pytest.fixture
def paper(monkeypatch, tmp_path):
    module = SimpleNamespace(EXPERIMENTS=[FIRST, PLAIN], GAINS=(LOSS,))
    monkeypatch.setattr(listing, "import_module", lambda name: module)
    return Records(tmp_path / "records" / "ldp-fl.jsonl")


def fill(records: Records, experiment: Experiment, *accuracies: float) -> None:
    for seed, accuracy in enumerate(accuracies, 1):
        records.add(record(experiment, seed, accuracy))


# --- figures that a paper does not state ------------------------------------------------------------------------------


def test_a_derived_figure_is_marked_and_not_counted(paper):
    fill(paper, FIRST, 0.5, 0.5)
    fill(paper, PLAIN, 0.51, 0.51)
    found = rows("ldp-fl", paper)
    assert [theirs(row.experiment) for row in found] == ["50.00", "51.00 (derived)"]
    assert tally(found)[:2] == ["1", "1"]
    assert verdict_words(found[1]).startswith("derived, not counted")
    assert "stated in the paper" not in plot("t", [found[1], found[1]])


def test_what_papers_state_is_counted_and_what_follows_from_it_is_not():
    """By the papers' texts: LDP-FL states losses beside accuracies, and Wu et al. say "no gain" without a number."""
    derived = {
        name: sorted(each.id for each in (*experiments(name), *gains(name)) if each.derived)
        for name in PAPERS
    }  # fmt: skip
    assert derived == {
        "ldp-fl": [
            "cifar-10-batch-norm-noise-free",
            *(f"headline-{data}-noise-free" for data in ("cifar-10", "fashion-mnist", "mnist")),
        ],
        "ldp-fed": [],
        "ldpfl": [],
        "personalized": ["covertype-votes-gain-selected", "covertype-votes-gain-weighted"],
        "webfed": [],
    }


def test_figures_that_a_paper_gives_as_about_so_much_are_shown_so():
    shown = {theirs(stage) for name in ("ldpfl", "webfed") for e in experiments(name) for stage in e.stages()}
    assert {"about 81", "about 90", "about 72", "up to 98", "85.28 to 86.93"} <= shown


# --- differences ------------------------------------------------------------------------------------------------------


def test_the_tolerance_of_a_difference_is_two_standard_errors_of_seeds_and_test_examples():
    assert sampling_error(50.0, 50.0, 10_000) == pytest.approx(100 * (0.5 / 10_000) ** 0.5)
    assert sampling_error(100.0, 100.0, 50) == 0
    assert tolerance(3.0, 4.0) == 10.0


@given(st.floats(-30, 30), st.floats(-30, 30), st.floats(0.01, 20))
def test_a_difference_is_reproduced_only_where_it_is_near_and_told_from_zero(ours, figure, error):
    verdict = judge_difference(ours, figure, error)
    if verdict == "reproduced":
        assert abs(ours - figure) <= min(error, CLOSE)
        assert figure == 0 or (ours * figure > 0 and abs(ours) > error)
    assert (verdict in ("higher here", "lower here")) == (abs(ours - figure) > error)


def test_the_opposite_of_a_difference_of_one_point_does_not_confirm_it():
    assert judge_accuracy(-0.9, 1.0, 0.1) == "reproduced"  # as an accuracy, within two points
    assert judge_difference(-0.9, 1.0, 0.3) == "lower here"
    assert judge_difference(0.9, 1.0, 0.3) == "reproduced"
    assert judge_difference(0.9, 1.0, 1.5) == "undecided"  # could as well be nothing
    assert judge_difference(1.0, 1.0, None) == "undecided"  # one seed


def test_a_difference_is_judged_by_its_seeds_and_the_smaller_test_set(paper, monkeypatch):
    fill(paper, FIRST, 0.90, 0.90, 0.90)
    fill(paper, PLAIN, 0.92, 0.91, 0.93)
    (row,) = gain_rows("ldp-fl", paper)
    error = 2 * (1 / 3 + (90 * 10 + 92 * 8) / 100) ** 0.5  # 100 test examples
    assert row.tolerance == pytest.approx(error) and row.verdict == "undecided"
    assert f"tolerance {error:.2f}" in verdict_words(row)
    fewer = SimpleNamespace(EXPERIMENTS=[FIRST, PLAIN], GAINS=(replace(LOSS, tested=50),))
    monkeypatch.setattr(listing, "import_module", lambda name: fewer)
    (row,) = gain_rows("ldp-fl", paper)
    assert row.tolerance == pytest.approx(2 * (1 / 3 + (90 * 10 + 92 * 8) / 50) ** 0.5)


def test_a_difference_of_an_earlier_round_is_read_from_the_curves(paper, monkeypatch):
    found = [replace(each, earlier=((1, 40.0),)) for each in (FIRST, PLAIN)]
    module = SimpleNamespace(EXPERIMENTS=found, GAINS=(LOSS, replace(LOSS, id="early", at=1)))
    monkeypatch.setattr(listing, "import_module", lambda name: module)
    for experiment, early, late in ((FIRST, 0.4, 0.5), (PLAIN, 0.7, 0.6)):
        paper.add(replace(record(experiment, 1, late), curve=((1, early), (2, late))))
    last, early = gain_rows("ldp-fl", paper)
    assert (last.ours, last.rounds) == (pytest.approx(10.0), 2)
    assert (early.ours, early.rounds) == (pytest.approx(30.0), 1)


def test_a_difference_that_was_not_run_has_no_verdict(paper):
    fill(paper, FIRST, 0.9)
    (row,) = gain_rows("ldp-fl", paper)
    assert (row.verdict, row.tolerance) == ("not run", None)


# --- few seeds --------------------------------------------------------------------------------------------------------


def test_a_verdict_on_few_seeds_says_so():
    def words(experiment: Experiment, *accuracies: float) -> str:
        return verdict_words(Row(experiment, tuple(record(FIRST, s, a) for s, a in enumerate(accuracies, 1))))

    assert words(FIRST, 0.5) == "reproduced, 1 of 3 seeds"
    assert words(FIRST, 0.5, 0.5) == "reproduced, 2 of 3 seeds"
    assert words(FIRST, 0.5, 0.5, 0.5) == "reproduced"
    assert words(replace(FIRST, seeds=1), 0.5) == "reproduced, one seed"


def test_fewer_seeds_than_the_page_are_shown_beside_the_pages_spread(paper, tmp_path, monkeypatch):
    monkeypatch.setattr(catalogue, "RECORDED", tmp_path / "page")
    fill(Records(tmp_path / "page" / "ldp-fl.jsonl"), FIRST, 0.48, 0.5, 0.52)
    fill(paper, FIRST, 0.5)
    command = ["reproduce", "ldp-fl", "--only", "first", "--seeds", "1", "--out", str(tmp_path)]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    (row,) = json.loads(done.stdout)["ldp-fl"]
    assert (row["seeds"], row["seeds_wanted"], row["spread"]) == (1, 3, None)
    assert row["page"] == {"ours": pytest.approx(50.0), "spread": pytest.approx(2.0), "seeds": 3}
    shown = " ".join(CliRunner().invoke(app, command, env={"COLUMNS": "300"}).stdout.split())
    assert "1 of 3 seeds; the page has 50.00 ± 2.00 on 3 seeds" in shown


def test_a_difference_is_shown_where_all_that_it_is_taken_from_was_asked_for(paper, tmp_path):
    for experiment in (FIRST, PLAIN):
        fill(paper, experiment, 0.5, 0.5, 0.5)
    shown = {}
    for name in ("loss", "first"):
        command = ["reproduce", "ldp-fl", "--only", name, "--out", str(tmp_path), "--json"]
        shown[name] = [row["experiment"] for row in json.loads(CliRunner().invoke(app, command).stdout)["ldp-fl"]]
    assert shown == {"loss": ["first", "plain", "loss"], "first": ["first"]}


# --- the list ---------------------------------------------------------------------------------------------------------


def test_the_list_has_every_experiment_and_difference_of_every_paper_with_rows_time_and_data():
    done = CliRunner().invoke(app, ["reproduce", "--list", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    for name in PAPERS:
        listed = {entry["experiment"]: entry for entry in found[name]}
        assert set(listed) == {each.id for each in (*experiments(name), *gains(name))}
        assert all(entry["figures"] and entry["data"] for entry in listed.values())
    webfed = {entry["experiment"]: entry for entry in found["webfed"]}
    assert webfed["no-noise"]["figures"] == ["about 92", "about 80"] and webfed["no-noise"]["data"] == "mnist"
    text = CliRunner().invoke(app, ["reproduce", "personalized", "--only", "digits", "--list"]).stdout
    assert "  digits-none " in text and "  digits-gain-weighted " in text and "digits: here" in text


def test_the_time_of_the_list_is_that_of_all_seeds(paper, tmp_path):
    fill(paper, FIRST, 0.5, 0.5)  # 2 rounds of 3 seconds each
    first, plain, loss = catalogue.entries("ldp-fl", [FIRST, PLAIN], tmp_path / "records")
    assert (first.seconds, plain.seconds) == (18.0, None)
    assert loss.taken_from == ("first", "plain")


# --- a first look -----------------------------------------------------------------------------------------------------


def test_a_first_look_is_what_papers_state_and_small_enough():
    """Sixty runs of some one and a half seconds on two cores."""
    look = first_look({name: experiments(name) for name in PAPERS})
    assert set(look) == set(PAPERS) and sum(map(len, look.values())) <= 70
    for name, own in look.items():
        chosen = {experiment.id for experiment in own}
        assert chosen >= {e.id for e in experiments(name) if e.stated is not None and not e.instead[0]}
        assert all(set(gain.pairs[0]) <= chosen for gain in gains(name))


def test_quick_rows_say_what_ran(paper, tmp_path):
    command = ["reproduce", "ldp-fl", "--quick", "--out", str(tmp_path), "--workers", "1"]
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    assert done.stderr.startswith("2 runs, about ")
    first, _ = json.loads(done.stdout)["ldp-fl"]
    assert first["ran"] == (
        "digits: 1 of 2 rounds, 4 clients, seed 1 of 3, trained on 200 examples, tested on 100 examples"
    )  # fmt: skip
    assert (first["rounds"], first["seeds"]) == (1, 1)
    shown = CliRunner().invoke(app, command, env={"COLUMNS": "400"}).stdout
    assert "1 of 2 rounds" in shown and FIRST.what not in shown


def test_what_a_quick_run_changes_besides_its_size_is_named():
    smaller = replace(FIRST, quick=("rounds.count=1", "split.clients=2", "training.epochs=7", "data.test_limit=10"))
    ran = what_ran(smaller, [record(smaller, 2, 0.5, quick=True)])
    assert "2 of 4 clients" in ran and "seed 2 of 3" in ran and "tested on 10 of 100 examples" in ran
    assert ran.endswith("training.epochs = 7")


def test_the_time_left_is_guessed_at_first_and_then_measured(monkeypatch, capsys):
    clock = iter((0.0, 0.0, 4.0))
    monkeypatch.setattr("papers.command.time", SimpleNamespace(monotonic=lambda: next(clock)))
    display = Display(4, guess=2.0)
    assert display.seconds_left() == 8.0
    run = SeedRun(FIRST, 1, True)
    display.told(RunProgress(run, "recorded before"))
    assert display.seconds_left() == 6.0
    for what in ("running", "done"):
        display.told(RunProgress(run, what))
    assert display.seconds_left() == 8.0
    assert "(2 of 4, about 8.0 s left)" in capsys.readouterr().err
    assert Display(4).seconds_left() is None


# --- the pages of the repository --------------------------------------------------------------------------------------


def test_the_overview_is_what_the_records_say():
    section = overview_section(lambda name: Records(DOCS / "papers" / "records" / f"{name}.jsonl"))
    assert section in (DOCS / "reproduction.md").read_text()

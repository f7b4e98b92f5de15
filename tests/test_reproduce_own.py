"""A recipe of one's own beside a paper's rows, and beside the papers' runs in a comparison."""

import json
from pathlib import Path
from types import ModuleType

import pytest
from typer.testing import CliRunner

import sordino
from papers import experiments as listing
from papers.experiments import Experiment
from papers.own_recipes import beside
from sordino.cli import app
from sordino.parts import registry

OWN = Path(__file__).parent.parent / "examples" / "own_method" / "recipe.toml"
TINY = ("data.train_limit=200", "data.test_limit=50", "split.clients=4", "rounds.count=2")
PAPER = [
    Experiment("first", "epsilon 4", "two-point-digits", TINY, ("rounds.count=1",), 90.0, seeds=2),
    Experiment("second", "epsilon 8", "two-point-digits", (*TINY, "clients.epsilon=8"), ("rounds.count=1",), 95.0),
    Experiment("more", "more clients", "two-point-digits", (*TINY, "split.clients=5"), ("rounds.count=1",), 91.0),
]


@pytest.fixture
def own(monkeypatch):
    """A paper of three experiments, and the recipe."""
    module = ModuleType("papers.sun_ldp_fl")
    module.EXPERIMENTS = PAPER
    monkeypatch.setattr(listing, "import_module", lambda name: module)
    return OWN


def reproduce(*given):
    return CliRunner().invoke(app, ["reproduce", "ldp-fl", "--workers", "1", *map(str, given)])


def test_there_is_one_for_each_data_set_and_split_with_the_seeds_of_the_paper(own):
    found = beside(own, PAPER)
    assert [one.seeds for one in found] == [2, 1]
    assert [one.settings(quick=False, seed=1).number_of_clients for one in found] == [4, 5]
    theirs, ours = PAPER[0].settings(quick=False, seed=2), found[0].settings(quick=False, seed=2)
    assert (ours.data, ours.split, ours.seed) == (theirs.data, theirs.split, 2)
    assert ours.method.name == "fedadam:FedAdam" and ours.rounds.count == 3
    assert found[0].settings(quick=True, seed=1).rounds.count == 1


def test_its_row_stands_beside_the_papers_and_is_marked(own, tmp_path):
    done = reproduce("--only", "first", "--with", own, "--out", tmp_path / "out", "--seeds", "1", "--json")
    assert done.exit_code == 0, done.output
    theirs, ours = json.loads(done.stdout)["ldp-fl"]
    assert theirs["experiment"] == "first" and theirs["verdict"] != "own"
    assert ours["verdict"] == "own" and ours["paper"] is None and ours["seeds"] == 1 and ours["ours"] > 0


def test_after_its_code_has_changed_it_is_run_anew(own, tmp_path, monkeypatch):
    command = ("--only", "first", "--quick", "--with", own, "--out", tmp_path / "out")
    assert "2 run now" in reproduce(*command).stderr
    assert "0 run now, 2 recorded before" in reproduce(*command).stderr
    monkeypatch.setattr(registry, "digest", lambda address: "that of a changed file")
    assert "1 run now, 1 recorded before" in reproduce(*command).stderr


def test_it_gets_into_no_pages_and_no_records_of_others(own, tmp_path):
    for option in ("--docs", "--merge"):
        done = reproduce("--with", own, option, tmp_path, "--out", tmp_path / "out")
        assert done.exit_code == 1 and "leave out" in done.stderr


def test_its_run_is_compared_with_a_papers(own, tmp_path):
    for name, recipe in {"mine": own, "theirs": "ldp-fl-digits"}.items():
        settings = ["rounds.count=1", "data.train_limit=200", "data.test_limit=50"]
        sordino.run(sordino.Recipe.load(recipe, settings), folder=tmp_path / name, workers=1)
    command = ["compare", tmp_path / "mine", tmp_path / "theirs", "--out", tmp_path, "--table", tmp_path / "t.md"]
    done = CliRunner().invoke(app, [*map(str, command), "--json"])
    assert done.exit_code == 0, done.output
    assert {group["name"] for group in json.loads(done.stdout)["groups"]} == {"own-method", "ldp-fl-digits"}
    assert "| own-method |" in (tmp_path / "t.md").read_text()

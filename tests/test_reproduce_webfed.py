"""WebFed's experiments: six stated figures from three runs, every reading of Delta s, and a plot over rounds."""

import json
from dataclasses import replace
from types import ModuleType
from xml.etree import ElementTree

import pytest
from benchmarks import webfed_browser
from typer.testing import CliRunner

from papers import experiments as listing
from papers.experiments import Experiment, experiments
from papers.pages import Row, rows, table, write_paper
from papers.plots import over_rounds
from papers.records import Epsilons, Record, Records
from sordino.cli import app
from sordino.learning.datasets import KNOWN
from sordino.recipe import Recipe

SVG = "{http://www.w3.org/2000/svg}"
TINY = ("data.train_limit=200", "data.test_limit=50", "split.clients=4", "rounds.count=3")


def record(seed: int, curve: dict[int, float], experiment: str = "e") -> Record:
    stated = (Epsilons("client", "server", 1e-5, 1e10, 600.0, "claim not supported"),)
    rounds, accuracy = list(curve.items())[-1] if curve else (0, 0.1)
    return Record(
        experiment, seed, False, "f", accuracy, accuracy, rounds, 0.1, 8.0, tuple(curve.items()), stated, "cpu", "v",
        "2026-01-01",
    )  # fmt: skip


def both(*curves: dict[int, float], name: str = "e", figures: tuple[float, float] = (72.0, 87.0)) -> list[Row]:
    """The rows of an experiment with a figure stated after round 50 and one of the end."""
    experiment = Experiment(
        name, f"MNIST, {name}", "webfed-mnist", figure=figures[1], earlier=((50, figures[0]),), curves="c", line=name
    )
    records = tuple(record(seed, curve, name) for seed, curve in enumerate(curves, 1))
    return [Row(stage, records) for stage in experiment.stages()]


# --- two figures of one run -------------------------------------------------------------------------------------------


def test_an_earlier_figure_is_read_from_the_curve_of_the_same_run() -> None:
    end, earlier = both({50: 0.70, 200: 0.86}, {50: 0.74, 200: 0.90})
    assert (end.ours, end.experiment.figure, end.rounds) == (pytest.approx(88.0), 87.0, 200)
    assert (earlier.ours, earlier.experiment.figure, earlier.rounds) == (pytest.approx(72.0), 72.0, 50)
    assert earlier.spread == pytest.approx(2.8284, abs=1e-4)
    assert earlier.experiment.what == "MNIST, e, after round 50"
    assert earlier.experiment.id == end.experiment.id


def test_a_round_that_was_not_evaluated_has_no_figure() -> None:
    _, earlier = both({49: 0.70, 200: 0.86})
    assert earlier.ours is None and earlier.verdict == "not run"


def test_the_epsilons_of_an_earlier_round_are_said_to_be_of_the_whole_run() -> None:
    end, earlier = both({50: 0.70, 200: 0.86})
    assert "| 600 (client, server) | 1e+10 at delta 1e-05 (client, server) |" in table([end])
    (line,) = table([earlier]).splitlines()[2:]
    assert "600 (client, server, all 200 rounds)" in line
    assert "1e+10 at delta 1e-05 (client, server, all 200 rounds)" in line


@pytest.fixture
def paper(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("papers.lian_webfed")
    module.EXPERIMENTS = [  # type: ignore[attr-defined]
        Experiment(
            "one", "digits", "two-point-digits", TINY, figure=90.0, earlier=((1, 50.0), (2, 60.0)),
            curves="over rounds", group="over x", x=1.0, note="said once",
        ),
        Experiment("two", "digits again", "two-point-digits", (*TINY, "seed=2"), group="over x", x=2.0),
    ]  # fmt: skip
    monkeypatch.setattr(listing, "import_module", lambda name: module)


def test_one_run_serves_all_its_rows(paper: None, tmp_path) -> None:
    command = ["reproduce", "webfed", "--out", str(tmp_path / "out"), "--docs", str(tmp_path), "--workers", "1"]
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "webfed.md").write_text("(figures/webfed-over-rounds.svg) (figures/webfed-over-x.svg)")
    done = CliRunner().invoke(app, [*command, "--json"])
    assert done.exit_code == 0, done.output
    assert done.stderr.count("running") == 2
    kept, _ = Records(tmp_path / "papers" / "records" / "webfed.jsonl").all()
    found = json.loads(done.stdout)["webfed"]
    assert [row["paper"] for row in found] == [90.0, 50.0, 60.0, None]
    assert [row["ours"] for row in found[:3]] == [pytest.approx(100 * dict(kept.curve)[round]) for round in (3, 1, 2)]
    page = (tmp_path / "papers" / "webfed.md").read_text()
    assert page.count("said once") == 1
    assert (tmp_path / "papers" / "figures" / "webfed-over-rounds.svg").exists()
    varied = ElementTree.fromstring((tmp_path / "papers" / "figures" / "webfed-over-x.svg").read_text())
    assert len(varied.findall(f"{SVG}circle")) == 2 + 1  # the ends of the runs alone, and the legend's
    assert "digits, after round 2 | 60.00" in (tmp_path / "reproduction.md").read_text()


def test_a_page_without_records_says_so_and_has_no_plot(paper: None, tmp_path) -> None:
    page = write_paper("webfed", Records(tmp_path / "none.jsonl"), tmp_path)
    assert page.read_text().count("| not run |") == 2 * 3 and not (tmp_path / "papers" / "figures").exists()


# --- a plot over rounds -----------------------------------------------------------------------------------------------


def drawn(*lines: list[Row]) -> ElementTree.Element:
    return ElementTree.fromstring(over_rounds("a < b", [row for line in lines for row in line]))


def places(line: ElementTree.Element) -> list[tuple[float, float]]:
    return [tuple(map(float, pair.split(","))) for pair in line.attrib["points"].split()]  # type: ignore[misc]


def squares(root: ElementTree.Element) -> list[tuple[float, float]]:
    """Their centres; the last one is the legend's, the first rectangle the background."""
    return [(float(r.attrib["x"]) + 4, float(r.attrib["y"]) + 4) for r in root.findall(f"{SVG}rect")[1:-1]]


def test_a_line_over_rounds_is_the_mean_with_a_band_around_it() -> None:
    root = drawn(both({50: 0.70, 200: 0.80}, {50: 0.74, 200: 0.80}))
    (line,), (band,) = root.findall(f"{SVG}polyline"), root.findall(f"{SVG}polygon")
    # Percent from 70 to 90 over 236 units; rounds from 0 to 200 over 460.
    assert places(line) == [(68 + 460 / 4, pytest.approx(276 - 236 / 10, abs=0.06)), (528, 276 - 236 / 2)]
    spread = 2.8284 * 236 / 20
    (upper, *_, lower) = places(band)
    middle = 276 - 236 / 10
    assert upper[1] == pytest.approx(middle - spread, abs=0.06)
    assert lower[1] == pytest.approx(276, abs=0.06)  # cut off at the frame: 72 - 2.83 is below 70


def test_stated_values_are_squares_and_equal_ones_stand_side_by_side() -> None:
    curve = {50: 0.70, 200: 0.80}
    root = drawn(both(curve, name="6", figures=(80.0, 88.0)), both(curve, name="none", figures=(80.0, 84.0)))
    found = squares(root)
    assert sorted(x for x, _ in found) == pytest.approx([183, 194, 528, 528])
    assert sorted(y for _, y in found) == pytest.approx(
        sorted(276 - 236 * (figure - 70) / 20 for figure in (80, 80, 88, 84)), abs=0.06
    )
    assert [text.text for text in root.findall(f"{SVG}text")][-3:-1] == ["6", "none"]


def test_lines_differ_by_more_than_colour() -> None:
    curve = {50: 0.70, 200: 0.80}
    root = drawn(*(both(curve, name=name) for name in "abc"))
    dashes = [line.attrib["stroke-dasharray"] for line in root.findall(f"{SVG}polyline")]
    assert len(set(dashes)) == 3
    assert not root.findall(f"{SVG}polygon")  # one seed has no spread


def test_a_plot_without_stated_values_does_not_explain_squares() -> None:
    (row, _) = both({50: 0.70, 200: 0.80})
    told = drawn([Row(replace(row.experiment, figure=None), row.records)])
    assert "stated in the paper" in [text.text for text in drawn([row]).findall(f"{SVG}text")]
    assert "stated in the paper" not in [text.text for text in told.findall(f"{SVG}text")]


def test_seeds_are_compared_where_all_were_evaluated() -> None:
    (line,) = drawn(both({50: 0.70, 200: 0.80}, {200: 0.80}, {})).findall(f"{SVG}polyline")
    assert [x for x, _ in places(line)] == [528]


# --- the paper's experiments ------------------------------------------------------------------------------------------

ALL = {experiment.id: experiment for experiment in experiments("webfed")}


def settings(name: str) -> Recipe:
    return ALL[name].settings(quick=False, seed=1)


def test_the_six_stated_figures_come_from_three_runs_of_three_seeds(tmp_path) -> None:
    stated = {e.id: (*(figure for _, figure in e.earlier), e.figure) for e in ALL.values() if e.figure is not None}
    assert stated == {"no-noise": (80.0, 92.0), "epsilon-6": (80.0, 90.0), "epsilon-3": (72.0, 87.0)}
    for name in stated:
        assert (ALL[name].seeds, ALL[name].priority, settings(name).rounds.count) == (3, 1, 200)
        assert [round % settings(name).evaluation.every for round, _ in ALL[name].earlier] == [0]
    found = rows("webfed", Records(tmp_path / "none.jsonl"))
    assert len([row for row in found if row.experiment.figure is not None]) == 6


def test_stated_runs_differ_in_their_noise_alone() -> None:
    three, six, none = (settings(name) for name in ("epsilon-3", "epsilon-6", "no-noise"))
    assert three.with_({"clients.epsilon": 6.0}).fingerprint == six.fingerprint
    changes = {"clients.epsilon": None, "method.range": None, "method.mechanism": {"name": "none"}}
    assert three.with_(changes).fingerprint == none.fingerprint


def webfed_recipes() -> list[Recipe]:
    found = [settings(name) for name in ALL]
    return [recipe for recipe in found if recipe.method.name == "webfed"]


def test_every_reading_of_the_paper_is_tried() -> None:
    recipes = webfed_recipes()
    noisy = [r.method.mechanism for r in recipes if r.method.mechanism.name == "laplace"]
    assert {(m.norm, m.records > 1) for m in noisy} == {("box", False), ("box", True), ("l1", False)}
    assert {r.method.aggregation.kind for r in recipes} == {"mean", "samples", "noisy-samples"}
    assert {(r.training.steps, r.training.batch_size) for r in recipes} == {(1, 0), (None, 30), (10, 30)}
    assert {r.method.selection.asked(5) for r in recipes} == {3, 5}


def smallest(recipe: Recipe) -> int:
    split = recipe.split
    if split.kind == "sizes":
        return min(split.sizes)
    return (recipe.data.train_limit or KNOWN["mnist"].sizes[0]) // split.number


def test_m_is_the_number_of_records_of_the_smallest_client() -> None:
    divided = [r for r in webfed_recipes() if getattr(r.method.mechanism, "records", 1) > 1]
    assert len(divided) == 8
    for recipe in divided:
        assert recipe.method.mechanism.records == smallest(recipe)


def test_ways_to_weigh_are_compared_at_the_noise_of_the_stated_runs() -> None:
    """Noise depends on C/m alone."""
    plain = settings("epsilon-3").method
    for name in ("equal", "samples", "noisy-samples"):
        found = settings(f"weights-{name}").method
        assert found.range.radius / found.mechanism.records == pytest.approx(
            plain.range.radius / plain.mechanism.records, rel=1e-3
        )


def test_a_quick_look_takes_two_rounds() -> None:
    for experiment in ALL.values():
        quick = experiment.settings(quick=True, seed=1)
        assert quick.rounds.count == 2 and quick.data.test_limit == 200


# --- in web pages -----------------------------------------------------------------------------------------------------


def test_the_table_of_web_pages_is_what_their_records_say() -> None:
    page = webfed_browser.PAGE.read_text()
    for cells in webfed_browser.tables(webfed_browser.read_records())["pages"]:
        assert f"| {' | '.join(cells)} |" in page

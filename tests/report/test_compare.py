"""Comparisons: runs that differ in their seed only are one group, with hand-computed means and deviations."""

import csv
import io
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sordino.errors import InvalidInput
from sordino.privacy.guarantee import SERVER, Adjacency, Claim, Guarantee, Infinite, Pure, Release
from sordino.privacy.statement import PlannedFor, Statement
from sordino.report.compare import Comparison, Spread, compare, telling_keys
from sordino.report.comparison_page import comparison_page, write_comparison
from sordino.report.crown import crowned
from sordino.report.folder import RunFolder
from tests.report.pages import Page, outside_details
from tests.report.runs import a_result, a_round, leave

DEFAULTS = {"clients.epsilon": 4.0, "method.mechanism.name": "two-point", "training.optimizer.lr": 0.1}


def promise(epsilon: float = 2.0, claim: float | None = 1.0, delta: float = 0.0) -> Statement:
    claimed = None if claim is None else Claim(claim, 0.0, "Eq. 1")
    loss = Pure(epsilon) if math.isfinite(epsilon) else Infinite("nothing hides it")
    guarantee = Guarantee(SERVER, Adjacency.CLIENT, loss, "a sum")
    return Statement.of([Release("r", "d", "w", (guarantee,), claimed)], delta=delta)


def a_run(
    base: Path,
    name: str,
    *accuracies: float | None,
    seed: int = 1,
    settings: Mapping[str, Any] | None = None,
    statement: Statement | None = None,
) -> RunFolder:
    rounds = [replace(a_round(k, accuracy), seconds=0.5) for k, accuracy in enumerate(accuracies, 1)]
    own = {**DEFAULTS, **(settings or {}), "seed": seed, "name": name}
    kept = {key: value for key, value in own.items() if value is not ...}
    result = a_result(rounds, seed=seed, name=name, settings=kept)
    return leave(base / name, rounds, result, statement or promise())


def a_regression(
    base: Path, name: str, error: float, *, interval: tuple[float, float] | None = None, epsilon: float = 2.0
) -> RunFolder:
    """A run that is judged by its mean absolute error."""
    rounds = [replace(a_round(k, None), seconds=0.5, score=error * (3 - k)) for k in (1, 2)]
    settings = {**DEFAULTS, "seed": 1, "name": name, "method.clip": error}
    judged = {"metric": "mae", "score": error, "interval": interval, "smaller_is_better": True}
    result = a_result(rounds, name=name, settings=settings, confusion=None, **judged)
    return leave(base / name, rounds, result, promise(epsilon))


def table(comparison: Comparison) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(comparison.to_csv())))


# --- arithmetic ------------------------------------------------------------------------------------------------------


def test_spread_is_the_mean_and_the_deviation_with_n_minus_one():
    assert Spread.of([0.25, 0.5, 0.75]) == Spread(0.5, 0.25, 3)
    assert Spread.of([0.5, 0.75]) == Spread(0.625, math.sqrt(0.03125), 2)
    assert Spread.of([0.5, None]) == Spread(0.5, None, 1)
    assert Spread.of([None]) is None


def test_runs_that_differ_in_seed_and_name_only_are_one_group(tmp_path):
    found = compare([a_run(tmp_path, f"run{k}", 0.25 * k, seed=k) for k in (1, 2, 3)])
    (group,) = found.groups
    assert group.seeds == (1, 2, 3)
    assert group.accuracy == Spread(0.5, 0.25, 3)
    assert found.keys == ()
    assert found.label(group) == "run1"


def test_the_settings_that_differ_become_the_labels_in_the_order_of_their_numbers(tmp_path):
    runs = [
        a_run(tmp_path, f"run{k}-{seed}", 0.5, seed=seed, settings={"clients.epsilon": epsilon})
        for k, epsilon in enumerate([10.0, 2.0, 0.5])
        for seed in (1, 2)
    ]
    found = compare(runs)
    assert found.keys == ("clients.epsilon",)
    labels = [found.label(group) for group in found.groups]
    assert labels == ["clients.epsilon = 0.5", "clients.epsilon = 2", "clients.epsilon = 10"]
    assert [len(group.runs) for group in found.groups] == [2, 2, 2]


def test_options_that_follow_from_another_setting_do_not_clutter_the_labels(tmp_path):
    laplace = {"method.mechanism.name": "laplace", "method.mechanism.norm": "box"}
    found = compare([a_run(tmp_path, "a", 0.5), a_run(tmp_path, "b", 0.5, settings=laplace)])
    assert found.keys == ("method.mechanism.name",)
    assert [found.label(group) for group in found.groups] == ["mechanism = laplace", "mechanism = two-point"]


def test_a_setting_that_only_some_have_tells_apart_where_nothing_else_does():
    assert telling_keys([{"a": 1}, {"a": 1, "b": 2}]) == ("b",)
    assert telling_keys([{"a": 1, "c": 1}, {"a": 2, "b": 2, "c": 1}]) == ("a",)
    assert telling_keys([{"a": 1}, {"a": 1}]) == ()
    assert telling_keys([{"a": [1, 2]}, {"a": [1, 3]}]) == ("a",)


def test_a_repetition_of_a_seed_is_left_out_and_named(tmp_path):
    runs = [a_run(tmp_path, "first", 0.5, seed=1), a_run(tmp_path, "again", 0.75, seed=1)]
    found = compare(runs)
    assert found.runs == 1
    assert found.groups[0].accuracy == Spread(0.5, None, 1)
    assert "again is left out" in found.notes[0]
    assert "same seed" in found.notes[0]


def test_a_run_that_is_not_over_is_left_out_and_named(tmp_path):
    over = a_run(tmp_path, "over", 0.5)
    running = leave(tmp_path / "running", [a_round(1)], None, None)
    found = compare([running.path, str(over.path)])
    assert found.runs == 1
    assert found.notes == (f"{running.path} is left out: that run is not over.",)
    with pytest.raises(InvalidInput, match="no finished run"):
        compare([running])


def test_accuracy_by_round_is_over_the_rounds_that_all_runs_have(tmp_path):
    runs = [
        a_run(tmp_path, "a", 0.25, None, 0.5, 0.75, seed=1),
        a_run(tmp_path, "b", 0.75, 0.5, 0.5, seed=2),
    ]
    (group,) = compare(runs).groups
    assert group.by_round() == [(1, Spread(0.5, math.sqrt(0.125), 2)), (3, Spread(0.5, 0.0, 2))]


# --- comma-separated values ------------------------------------------------------------------------------------------


def test_the_table_has_exact_values(tmp_path):
    runs = [
        a_run(tmp_path, "a", 0.25, 0.5, seed=1),
        a_run(tmp_path, "b", 0.25, 0.75, seed=2),
        a_run(tmp_path, "c", 0.1, seed=1, settings={"clients.epsilon": 0.1}, statement=promise(math.inf, None)),
    ]
    view = "[adjacency client, against server]"
    low, high = table(compare(runs))
    assert (low["clients.epsilon"], high["clients.epsilon"]) == ("0.1", "4")
    assert (high["runs"], high["seeds"], high["name"]) == ("2", "1 2", "a")
    assert (high["accuracy mean"], high["accuracy sd"], high["accuracy n"]) == ("0.625", "0.1767766952966369", "2")
    assert (low["accuracy mean"], low["accuracy sd"], low["accuracy n"]) == ("0.1", "", "1")
    assert (high["rounds mean"], high["rounds sd"]) == ("2.0", "0.0")
    assert high["seconds per round mean"] == "0.5"
    assert high["bytes up per client and round mean"] == "82.0"
    assert high["bytes down per client and round mean"] == "2600.0"
    assert high[f"proven epsilon, smallest {view}"] == high[f"proven epsilon, largest {view}"] == "2.0"
    assert high[f"proven delta {view}"] == "0.0"
    assert high[f"proof {view}"] == "a sum"
    assert high[f"claimed epsilon, largest {view}"] == "1.0"
    assert high[f"verdict {view}"] == "claim not supported"
    assert low[f"proven epsilon, largest {view}"] == "infinite"
    assert low[f"claimed epsilon, largest {view}"] == ""


def test_no_column_of_an_epsilon_lacks_adjacency_and_adversary(tmp_path):
    head = next(csv.reader(io.StringIO(compare([a_run(tmp_path, "a", 0.5)]).to_csv())))
    figures = [name for name in head if "proven epsilon" in name or "claimed epsilon" in name]
    assert len(figures) == 4
    assert all("adjacency client, against server" in name for name in figures)


def test_clients_and_seeds_with_different_figures_give_a_range(tmp_path):
    runs = [a_run(tmp_path, f"r{k}", 0.5, seed=k, statement=promise(float(k))) for k in (1, 2, 3)]
    (line,) = table(compare(runs))
    view = "[adjacency client, against server]"
    assert (line[f"proven epsilon, smallest {view}"], line[f"proven epsilon, largest {view}"]) == ("1.0", "3.0")
    assert line[f"verdict {view}"] == "claim proven; claim not supported"


def test_commas_quotes_and_line_ends_survive(tmp_path):
    odd = 'a, "b"\nc'
    runs = [a_run(tmp_path, "a", 0.5), a_run(tmp_path, "b", 0.5, settings={"data.source": odd})]
    assert {line["data.source"] for line in table(compare(runs))} == {odd, "not set"}


# --- the crown -------------------------------------------------------------------------------------------------------


def best(*runs: RunFolder) -> set[str]:
    return {group.name for group in crowned(compare(runs))}


def rival(base: Path, name: str, accuracy: float, statement: Statement | None = None, seed: int = 1) -> RunFolder:
    """A run of 300 test examples: at 90 %, the 95 % interval reaches 86.1 to 92.9 %."""
    settings = {"method.name": name.partition("-")[0]}
    return a_run(base, name, accuracy, seed=seed, settings=settings, statement=statement)


def test_those_within_the_95_percent_interval_of_the_best_share_the_crown(tmp_path):
    runs = [rival(tmp_path, "a", 0.9), rival(tmp_path, "b", 0.87), rival(tmp_path, "c", 0.85)]
    assert best(*runs) == {"a", "b"}
    low = runs[0].result().accuracy_interval[0]
    assert 0.86 < low < 0.87


def test_equal_runs_share_the_crown_whatever_the_interval(tmp_path):
    rounds = [a_round(1, 0.5)]
    bare = [
        leave(tmp_path / name, rounds, a_result(rounds, name=name, confusion=None, settings={"k": name}), promise())
        for name in "ab"
    ]
    assert best(*bare) == {"a", "b"}


def test_of_a_metric_that_should_be_small_the_smallest_is_best(tmp_path):
    runs = [
        a_regression(tmp_path, "far", 9.0, interval=(8.5, 9.5)),
        a_regression(tmp_path, "near", 3.0, interval=(2.5, 3.5)),
        a_regression(tmp_path, "tied", 3.4, interval=(3.0, 3.8)),
        a_regression(tmp_path, "bare", 1.0, epsilon=math.inf),
    ]
    comparison = compare(runs)
    assert [group.name for group in crowned(comparison)] == ["near", "tied"]
    page = comparison_page(comparison)
    assert "lower, but unprotected" in page


@pytest.mark.parametrize("unprotected", [math.inf, 20.5])
def test_an_unprotected_run_never_wears_the_crown(tmp_path, unprotected):
    runs = [rival(tmp_path, "a", 0.7), rival(tmp_path, "b", 0.95, promise(unprotected))]
    assert best(*runs) == {"a"}
    page = Page(comparison_page(compare(runs)))
    assert page.text.count('<span class="badge good">best</span>') == 1
    assert "higher, but unprotected" in page.words
    assert best(runs[1]) == set()


@pytest.mark.parametrize("partial", [Adjacency.COORDINATE, Adjacency.LABEL])
def test_a_part_of_a_record_wears_no_crown(tmp_path, partial):
    row = replace(promise(1.0).rows[0], adjacency=partial)  # as an older file may have it, without any whole view
    whole = replace(row, adjacency=Adjacency.CLIENT, proven=459.0)
    for number, rows in enumerate(((row,), (row, whole))):
        statement = Statement(rows, 0.0, planned=PlannedFor(partial, "server"))
        assert best(rival(tmp_path, f"run{number}", 0.9, statement)) == set()


def test_settings_on_different_data_have_no_best(tmp_path):
    runs = [a_run(tmp_path, name, 0.5, settings={"data.source": name}) for name in ("digits", "mnist")]
    assert best(*runs) == set() and "badge good" not in comparison_page(compare(runs))


def test_where_nobody_is_protected_no_setting_is_best(tmp_path):
    runs = [rival(tmp_path, name, 0.5 + k / 10, promise(math.inf)) for k, name in enumerate("ab")]
    page = Page(comparison_page(compare(runs)))
    assert best(*runs) == set() and "badge good" not in page.text
    assert "No setting is best" in page.words


def test_the_spread_over_seeds_widens_the_interval(tmp_path):
    spread = [rival(tmp_path, f"a-{seed}", accuracy, seed=seed) for seed, accuracy in ((1, 0.8), (2, 0.98))]
    other = rival(tmp_path, "b", 0.5)  # 0.89 -+ 12.7 * 0.09 holds everything
    assert {name[0] for name in best(*spread, other)} == {"a", "b"}
    assert best(spread[1], other) == {"a-2"}


def test_a_comparison_shows_the_change_that_runs_were_planned_for(tmp_path):
    rows = [Guarantee(SERVER, adjacency, Pure(epsilon), "x") for adjacency, epsilon in (
        (Adjacency.CLIENT, 7.25), (Adjacency.RECORD_REPLACE, 3.5))]  # fmt: skip
    statement = Statement.of([Release("r", "d", "w", tuple(rows))], delta=0.0)
    planned = replace(statement, planned=PlannedFor(Adjacency.RECORD_REPLACE, "server"))
    one, other = (rival(tmp_path, name, 0.5, own) for name, own in (("a", planned), ("b", statement)))
    assert compare([one]).groups[0].lead.adjacency is Adjacency.RECORD_REPLACE
    assert compare([other]).groups[0].lead.adjacency is Adjacency.CLIENT
    shown = outside_details(comparison_page(compare([one])))
    assert "3.5" in shown and "7.25" not in shown


def test_epsilon_has_a_log_axis_and_tables_are_taken_apart(tmp_path):
    runs = [
        a_run(tmp_path, f"r{k}", 0.5 + k / 20, settings={"method.target": {"epsilon": k, "delta": 1e-5}},
              statement=promise(k)) for k in (1, 2, 4)
    ]  # fmt: skip
    found = compare(runs)
    assert found.keys == ("method.target.epsilon",)
    page = Page(comparison_page(found))
    for title in ("Accuracy against method.target.epsilon", "Accuracy against epsilon"):
        (line,) = page.charts()[title].lines()
        assert line[1][0] - line[0][0] == pytest.approx(line[2][0] - line[1][0], abs=0.1)


# --- the page --------------------------------------------------------------------------------------------------------


def sweep(base: Path, *mechanisms: str) -> Comparison:
    return compare(
        [
            a_run(
                base, f"{mechanism}-{epsilon}-{seed}", 0.25 - epsilon / 100 - len(mechanism) / 1000,
                0.5 + 0.125 * seed * (epsilon == 8.0) + 0.002 * (mechanism == "laplace"), seed=seed,
                settings={"clients.epsilon": epsilon, "method.mechanism.name": mechanism},
                statement=promise(epsilon, epsilon / 2),
            )
            for mechanism in mechanisms for epsilon in (1.0, 2.0, 8.0) for seed in (1, 2)
        ]
    )  # fmt: skip


def test_a_numeric_setting_gets_a_chart_with_error_bars(tmp_path):
    page = Page(comparison_page(sweep(tmp_path, "two-point")))
    assert list(page.charts()) == [
        "Accuracy by round", "Accuracy against clients.epsilon", "Accuracy against epsilon"
    ]  # fmt: skip
    drawn = page.charts()["Accuracy against clients.epsilon"]
    assert len(drawn.lines()) == 1
    assert drawn.tooltips() == [
        "accuracy, clients.epsilon (log scale) 1: 50.0 %", "accuracy, clients.epsilon (log scale) 2: 50.0 %",
        "accuracy, clients.epsilon (log scale) 8: 68.8 %",
    ]  # fmt: skip
    assert len(drawn.every("path", "line")) == 3
    assert "68.8 ± 8.8 %" in page.words


def test_two_settings_that_differ_give_a_line_for_each_choice(tmp_path):
    page = Page(comparison_page(sweep(tmp_path, "two-point", "laplace")))
    drawn = page.charts()["Accuracy against clients.epsilon"]
    assert len(drawn.lines()) == 2
    assert "mechanism = laplace, clients.epsilon (log scale) 8: 69.0 %" in drawn.tooltips()
    by_round = page.charts()["Accuracy by round"]
    assert len(by_round.lines()) == 6
    assert len(by_round.every("path", "line")) == sum(map(len, by_round.lines())), "an error bar at every point"


def test_settings_that_only_vary_together_get_no_chart_of_their_own(tmp_path):
    runs = [
        a_run(tmp_path, f"r{k}", 0.5, settings={"clients.epsilon": k, "split.clients": 10 * k}, statement=promise(k))
        for k in (1, 2)
    ]
    assert list(Page(comparison_page(compare(runs))).charts()) == [
        "Accuracy by round",
        "Accuracy against epsilon",
    ]


def test_where_more_than_two_settings_differ_a_name_that_tells_apart_is_the_label(tmp_path):
    other = {"clients.epsilon": 1.0, "method.mechanism.name": "none", "training.optimizer.lr": 0.5}
    found = compare([a_run(tmp_path, "plain", 0.5), a_run(tmp_path, "silo", 0.5, settings=other)])
    assert {found.label(group) for group in found.groups} == {"plain", "silo"}
    page = Page(comparison_page(found))
    assert "Every setting that differs" in page.words
    assert re.search(r"<code>training\.optimizer\.lr</code></td><td>0\.5</td><td>0\.1</td>", page.text)


def test_the_page_keeps_claims_apart_from_proofs_with_all_their_terms(tmp_path):
    page = Page(comparison_page(sweep(tmp_path, "two-point")))
    assert "epsilon, proven (everything one client sends, seen by the server, delta 0)" in page.words
    assert "<i>4 (delta 0)</i>" in page.text
    assert "<i>" not in outside_details(page.text)
    assert "claim not supported" in page.words
    assert "a sum" in page.words


def test_terms_stand_beside_each_figure_where_they_differ(tmp_path):
    runs = [
        a_run(tmp_path, "a", 0.5, statement=promise(1.0, delta=0.0)),
        a_run(tmp_path, "b", 0.5, settings={"clients.epsilon": 1}, statement=promise(1.0, delta=1e-5)),
    ]
    words = Page(comparison_page(compare(runs))).words
    assert "(everything one client sends, seen by the server, delta 0)" in words
    assert "(everything one client sends, seen by the server, delta 1e-5)" in words


def test_a_single_run_and_runs_without_accuracy_or_statement_can_be_shown(tmp_path):
    Page(comparison_page(compare([a_run(tmp_path, "one", 0.5)])))
    rounds = [a_round(1, None)]
    bare = leave(tmp_path / "bare", rounds, a_result(rounds, accuracy=None, confusion=None, settings={}), None)
    page = Page(comparison_page(compare([bare])))
    assert "No run was evaluated." in page.words
    assert "None of these runs has a privacy statement." in page.words
    assert table(compare([bare]))[0]["accuracy n"] == "0"


def test_runs_that_differ_in_very_much_have_one_column_for_it(tmp_path):
    many = {f"key{k}": k for k in range(9)}
    runs = [
        a_run(tmp_path, "a", 0.5, settings=many),
        a_run(tmp_path, "b", 0.5, settings={k: v + 1 for k, v in many.items()}),
    ]
    page = Page(comparison_page(compare(runs)))
    assert "<th>setting</th>" in page.text
    assert "and 3 more settings" in page.words
    assert all(f"<code>key{k}</code>" in page.text for k in range(9))


def test_more_settings_than_lines_fit_are_cut_in_plots_only(tmp_path):
    runs = [a_run(tmp_path, f"r{k}", 0.5, 0.5 + k / 100, settings={"clients.epsilon": k}) for k in range(15)]
    found = compare(runs)
    page = Page(comparison_page(found))
    assert len(page.charts()["Accuracy by round"].lines()) == 12
    assert "the first 12 of 15 settings" in page.words
    assert len(table(found)) == 15


def test_hostile_settings_are_shown_and_never_run(tmp_path):
    hostile = "<script>alert(1)</script>"
    runs = [a_run(tmp_path, "a", 0.5), a_run(tmp_path, "b", 0.5, settings={hostile: hostile, "data.source": hostile})]
    page = Page(comparison_page(compare(runs)))
    assert "<script" not in page.text
    assert hostile in page.words


def test_both_files_are_written_whole(tmp_path):
    found = compare([a_run(tmp_path, "a", 0.5)])
    page, figures = write_comparison(found, tmp_path / "deep" / "out")
    assert (page.name, figures.name) == ("comparison.html", "comparison.csv")
    assert page.read_text() == comparison_page(found)
    assert figures.read_text() == found.to_csv()

"""Plots: values lie where they belong, ticks are round, many clients stay readable, every drawing is well-formed."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.report import matrices, plots, scales, words
from sordino.report.plots import Mark, Reference, Series
from sordino.report.records import ClientBudget
from tests.report.pages import chart
from tests.report.runs import CLASSES, confusion, label_counts


def texts(scale: scales.PlotAxis) -> list[str]:
    return [text for _, text in scale.ticks]


# --- scales ----------------------------------------------------------------------------------------------------------


def test_linear_ticks_are_round_and_hold_all_values():
    scale = scales.linear("x", [0.13, 0.87])
    assert texts(scale) == ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
    assert scale.ends == (0.0, 1.0)
    assert scale.at(0.25) == pytest.approx(0.25)
    assert texts(scales.linear("x", [0, 43_000])) == ["0", "10,000", "20,000", "30,000", "40,000", "50,000"]
    assert texts(scales.linear("x", [-3, 3]))[0] == "-4"


def test_shares_are_in_per_cent_and_never_leave_0_to_100():
    assert texts(scales.shares("x", [0.0, 1.0])) == ["0 %", "20 %", "40 %", "60 %", "80 %", "100 %"]
    assert texts(scales.shares("x", [0.912, 0.934])) == ["85 %", "90 %", "95 %", "100 %"]
    assert scales.shares("x", [0.999, 1.0]).ends[1] == 1.0
    assert scales.shares("x", [0.0]).ends[0] == 0.0


def test_rounds_are_whole_and_fill_the_axis():
    assert texts(scales.rounds("r", [1.0, 30.0])) == ["1", "5", "10", "15", "20", "25", "30"]
    assert scales.rounds("r", [1.0, 30.0]).ends == (1.0, 30.0)
    assert texts(scales.rounds("r", [1.0, 2.0, 3.0])) == ["1", "2", "3"]
    one = scales.rounds("r", [1.0])
    assert one.at(1.0) == 0.5
    assert texts(one) == ["1"]


def test_a_log_scale_puts_a_factor_at_a_distance():
    scale = scales.logarithmic("x", [1.0, 10_000.0])
    assert scale.at(100.0) == pytest.approx(0.5)
    assert texts(scale) == ["1", "10", "100", "1,000", "10,000"]
    assert texts(scales.logarithmic("x", [3.0, 30.0])) == ["2", "5", "10", "20", "50"]
    assert scales.logarithmic("x", [5.0]).at(5.0) == pytest.approx(0.5, abs=0.2)


def test_values_far_apart_get_a_log_scale_unless_one_is_zero():
    assert "log" in scales.spread_out("x", [1.0, 31.0]).label
    assert "log" not in scales.spread_out("x", [1.0, 29.0]).label
    assert "log" not in scales.spread_out("x", [0.0, 1e6]).label


@given(st.lists(st.floats(-1e12, 1e12).filter(lambda v: v == 0 or abs(v) > 1e-12), min_size=1, max_size=5))
@settings(deadline=None, derandomize=True)
def test_every_value_lies_on_its_scale_and_ticks_are_few(values):
    scale = scales.linear("x", values)
    assert all(-1e-6 <= scale.at(value) <= 1 + 1e-6 for value in values)
    assert 2 <= len(scale.ticks) <= 12
    assert len(set(texts(scale))) == len(scale.ticks)


@given(st.lists(st.floats(1e-30, 1e30), min_size=1, max_size=5))
@settings(deadline=None, derandomize=True)
def test_every_positive_value_lies_on_its_log_scale(values):
    scale = scales.logarithmic("x", values)
    assert all(-1e-6 <= scale.at(value) <= 1 + 1e-6 for value in values)
    assert 1 <= len(scale.ticks) <= 8


# --- words -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (words.duration(0.0123), "12 ms"), (words.duration(1.26), "1.3 s"), (words.duration(42.4), "42 s"),
        (words.duration(59.99), "1 min 0 s"), (words.duration(125), "2 min 5 s"), (words.duration(7380), "2 h 3 min"),
        (words.duration(200_000), "2 d 7 h"), (words.size(999), "999 B"), (words.size(999.6), "1 kB"),
        (words.size(2_730), "2.73 kB"), (words.size(999_500), "1 MB"), (words.size(5e15), "5e+03 TB"),
        (words.percent(0.8768), "87.7 %"), (words.percent(None), "not measured"), (words.count(21_840), "21,840"),
        (words.counted(1, "client"), "1 client"), (words.decimal(0.12346), "0.1235"), (words.decimal(1e-7), "1e-7"),
        (words.decimal(12_345.6), "12,346"), (words.listed(["a", "b", "c"]), "a, b and c"), (words.listed(["a"]), "a"),
    ],
    ids=range(21),
)  # fmt: skip
def test_figures_for_people(said, expected):
    assert said == expected


# --- lines -----------------------------------------------------------------------------------------------------------


def line(points, **more):
    series = Series("accuracy", tuple(points), **more)
    x, y = scales.rounds("round", [p for p, _ in points]), scales.shares("accuracy", [0.0, 1.0])
    return series, x, y


@pytest.mark.parametrize(
    ("places", "shown"),
    [
        ([20_000.0, 120_000.0], ["20,000", "60,000", "100,000"]),
        ([1.0, 30.0], ["0", "10", "20", "30"]),
    ],
    ids=["long", "short"],
)
def test_texts_below_the_axis_never_touch(places, shown):
    series = Series("accuracy", tuple((place, 0.5) for place in places))
    drawn = chart(plots.line_chart("T", [series], scales.linear("x", places), scales.shares("y", [0.0, 1.0])))
    feet = [text for text in drawn.every("text") if text.get("text-anchor") == "middle"]
    assert [text.text for text in feet] == shown


def test_points_lie_where_their_values_say():
    series, x, y = line([(1.0, 0.0), (2.0, 0.5), (3.0, 1.0)])
    drawn = chart(plots.line_chart("T", [series], x, y))
    ((left, bottom), (middle, half), (right, top)) = drawn.lines()[0]
    assert middle == pytest.approx((left + right) / 2, abs=0.02)
    assert half == pytest.approx((top + bottom) / 2, abs=0.02)
    assert top < bottom
    assert drawn.tooltips() == [
        "accuracy, round 1: 0.0 %", "accuracy, round 2: 50.0 %", "accuracy, round 3: 100.0 %"
    ]  # fmt: skip
    assert drawn.described == "accuracy: 0.0 % at round 1, 100.0 % at round 3."


def test_the_last_value_is_written_where_lines_leave_room():
    flat, x, y = line([(1.0, 0.5), (2.0, 0.5)])
    assert "50.0 %" in chart(plots.line_chart("T", [flat], x, y)).texts()
    steep, x, y = line([(1.0, 0.0), (2.0, 0.5), (3.0, 1.0)])
    assert "100.0 %" not in chart(plots.line_chart("T", [steep], x, y)).texts()


def test_a_single_round_is_a_point_in_the_middle_with_its_figure():
    series, x, y = line([(1.0, 0.37)])
    drawn = chart(plots.line_chart("T", [series], x, y))
    (((across, _),),) = drawn.lines()
    assert "37.0 %" in drawn.texts()
    assert 150 < across < 350
    assert drawn.described == "accuracy: 37.0 % at round 1."


def test_a_band_around_many_points_spans_one_deviation_to_both_sides():
    series, x, y = line([(float(k), 0.5) for k in range(1, 14)], spread=(0.25,) + (0.0,) * 12)
    drawn = chart(plots.line_chart("T", [series], x, y))
    (band,) = drawn.every("polygon", "band")
    corners = [tuple(map(float, pair.split(","))) for pair in band.get("points").split()]
    (level,) = {y for _, y in drawn.lines()[0]}
    heights = [corners[0][1] - level, corners[-1][1] - level]
    assert heights[0] == pytest.approx(-heights[1], abs=0.02)
    full = 32 - 224  # from 0 to 100 %
    assert heights[0] == pytest.approx(0.25 * full, abs=0.02)


def test_error_bars_of_few_points_span_one_deviation_to_both_sides():
    series, x, y = line([(1.0, 0.5), (2.0, 0.5)], spread=(0.25, 0.125))
    drawn = chart(plots.line_chart("T", [series], x, y))
    ends = [e.get("d").rpartition(" ")[2].split("V") for e in drawn.every("path", "line")]
    assert [float(bottom) - float(top) for top, bottom in ends] == pytest.approx([96.0, 48.0], abs=0.02)


def test_several_lines_differ_in_dashes_and_are_named_below():
    series = [Series(f"line {k}", ((1.0, k / 10), (2.0, k / 10))) for k in range(4)]
    figure = plots.line_chart("T", series, scales.rounds("round", [1, 2]), scales.linear("y", [0, 1]))
    dashes = [e.get("stroke-dasharray") for e in chart(figure).every("polyline")]
    assert len(set(dashes)) == 4
    assert all(f"line {k}" in figure.split("</svg>", 1)[1] for k in range(4))


def test_lines_that_lie_on_each_other_are_one_line_that_names_them_all():
    same, other = ((0.0, 1.0), (1.0, 2.0)), ((0.0, 1.0), (1.0, 1.5))
    series = [Series("a", same), Series("b", other), Series("c", same)]
    found = plots.line_chart("T", series, scales.linear("x", [0, 1]), scales.linear("y", [0, 2]))
    drawn = chart(found)
    assert len(drawn.lines()) == 2 and "a and c (the same line), x 0: 1" in drawn.tooltips()
    assert found.count("<li>") == 2
    many = [Series(str(k), same) for k in range(9)]
    assert "0 and 8 others (the same line)" in plots.line_chart(
        "T", many, scales.linear("x", [0, 1]), scales.linear("y", [0])
    )


def test_references_and_marks_are_drawn_with_their_words():
    series, x, y = line([(1.0, 0.2), (2.0, 0.6)])
    figure = plots.line_chart(
        "T", [series], x, y, annotations=[Reference(0.1, "chance"), Mark(2.0, "round 2 missed its quorum")]
    )
    drawn = chart(figure)
    assert "chance" in drawn.texts()
    assert "round 2 missed its quorum" in drawn.tooltips()


def test_the_words_of_a_reference_stand_where_no_line_runs():
    rising, x, y = line([(1.0, 0.0), (2.0, 0.95)])
    drawn = chart(plots.line_chart("T", [rising], x, y, annotations=[Reference(1.0, "every client's limit")]))
    (words,) = [e for e in drawn.every("text") if e.text == "every client's limit"]
    assert words.get("text-anchor") == "start"
    drawn = chart(plots.line_chart("T", [rising], x, y, annotations=[Reference(0.1, "chance")]))
    (words,) = [e for e in drawn.every("text") if e.text == "chance"]
    assert words.get("text-anchor") == "end"


@given(st.integers(1, 5000))
@settings(deadline=None, derandomize=True, max_examples=20)
def test_long_lines_are_thinned_without_losing_ends_or_extremes(length):
    generator = np.random.default_rng(length)
    points = [(float(k), float(v)) for k, v in enumerate(generator.normal(size=length))]
    kept = plots.thinned(points)
    assert len(kept) <= 1000
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    assert max(y for _, y in kept) == max(y for _, y in points)
    assert min(y for _, y in kept) == min(y for _, y in points)
    assert kept == sorted(kept)


# --- budgets ---------------------------------------------------------------------------------------------------------


def budgets(clients: int, limit: float | None = 10.0) -> list[ClientBudget]:
    return [ClientBudget(k, 4.0, limit, 10.0 * k / clients, k, k % 2) for k in range(clients)]


def test_few_clients_have_a_bar_each_as_high_as_what_they_spent():
    drawn = chart(plots.budget_chart("T", budgets(4)))
    heights = [float(bar.get("height")) for bar in drawn.every("rect", "bar")]
    assert heights == pytest.approx([0.0, 48.0, 96.0, 144.0], abs=0.02)  # of 192 for the limit
    assert len(drawn.every("line", "limit")) == 4
    assert "client 3: spent 7.5 of 10, 3 reports, declined 1 time" in drawn.tooltips()


def test_many_clients_are_one_falling_curve_under_their_limit():
    drawn = chart(plots.budget_chart("T", budgets(61)))
    assert drawn.every("rect", "bar") == []
    (curve,) = drawn.lines()
    assert [up for _, up in curve] == sorted(up for _, up in curve)
    assert len(drawn.every("line", "reference")) == 1


def test_many_clients_with_limits_of_their_own_are_drawn_in_shares_of_them():
    own = [ClientBudget(k, 4.0, 2.0 + k, (2.0 + k) / 2, 1, 0) for k in range(100)]
    drawn = chart(plots.budget_chart("T", own))
    (curve,) = drawn.lines()
    assert {up for _, up in curve} == {128.0}  # half-way between 32 (100 %) and 224 (0 %)


@pytest.mark.parametrize("clients", [0, 1, 60, 61, 10_000])
@pytest.mark.parametrize("limit", [None, 3.0, math.inf], ids=["none", "three", "infinite"])
def test_budgets_of_any_number_of_clients_and_any_limit_can_be_drawn(clients, limit):
    figure = plots.budget_chart("T", budgets(clients, limit))
    chart(figure)
    assert len(figure) < 60_000


def test_infinite_and_unknown_spending_has_no_bar():
    given = [ClientBudget(0, 1.0, 5.0, math.inf), ClientBudget(1, 1.0, 5.0, None), ClientBudget(2, 1.0, 5.0, 1.0)]
    assert len(chart(plots.budget_chart("T", given)).every("rect", "bar")) == 1


# --- labels and answers ----------------------------------------------------------------------------------------------


def test_a_clients_labels_are_stacked_in_proportion():
    drawn = chart(matrices.label_chart("T", [[1, 3, 0], [4, 0, 4]], ["a", "b", "c"]))
    widths = [float(e.get("width")) for e in drawn.every("rect", "segment")]
    assert len(widths) == 4  # labels that a client does not hold are not drawn
    assert widths == pytest.approx([widths[0] * k for k in (1, 3, 4, 4)], rel=1e-3)
    assert "client 1: 4 examples of c" in drawn.tooltips()
    assert drawn.described == "2 clients: they hold 4 to 8 examples, median 6, of 2 of 3 labels."


def test_clients_with_names_are_listed_by_name():
    names = ["Bern", "Saint-Gall on the hill"]
    drawn = chart(matrices.label_chart("T", [[1, 3], [4, 0]], ["a", "b"], clients=names))
    assert {"Bern", "Saint-Gal…"} <= set(drawn.texts())
    assert "Saint-Gall on the hill: 4 examples of a" in drawn.tooltips()


@pytest.mark.parametrize(("clients", "classes", "kind"), [(50, 10, "segment"), (51, 10, "cell"), (10, 11, "cell")])
def test_many_clients_or_classes_become_a_heat_map(clients, classes, kind):
    counts = label_counts(clients, classes=classes)
    assert chart(matrices.label_chart("T", counts, [str(k) for k in range(classes)])).every("rect", kind)


def test_a_heat_map_puts_clients_with_like_labels_together_and_averages_shares_in_a_bin():
    counts = [[8, 0] if k % 2 else [1, 3] for k in range(400)]  # half pure in a; half a quarter a
    drawn = chart(matrices.label_chart("T", counts, ["a", "b"]))
    shades = [float(e.get("fill-opacity")) for e in drawn.every("rect", "cell")]
    assert shades == [1.0] * 50 + [0.25, 0.75] * 50
    assert "4 clients: 25.0 % a on average" in drawn.tooltips()


def test_clients_without_examples_come_last_and_are_blank():
    drawn = chart(matrices.label_chart("T", [[0, 0]] + [[0, 5]] * 60, ["a", "b"]))
    assert len(drawn.every("rect", "cell")) == 60


def test_the_map_of_10_000_clients_stays_small():
    figure = matrices.label_chart("T", label_counts(10_000, 0.1), CLASSES)
    assert len(figure) < 250_000


def test_the_confusion_matrix_writes_its_figures_and_tells_right_from_wrong():
    drawn = chart(matrices.confusion_chart("T", [[8, 2], [0, 5]], ["cat", "dog"]))
    right, wrong = drawn.every("rect", "s0"), drawn.every("rect", "s1")
    assert [e.get("fill-opacity") for e in right] == ["0.8", "1"]
    assert len(wrong) == 1
    assert {"8", "2", "5"} <= set(drawn.texts())
    assert "cat, answered dog: 2 (20.0 % of cat)" in drawn.tooltips()
    assert drawn.described == "13 of 15 answers are right (86.7 %)."


@pytest.mark.parametrize("classes", [1, 2, 10, 30, 100])
def test_confusion_matrices_of_any_size_stay_well_formed(classes):
    table = np.diag(np.full(classes, 7)) if classes == 1 else confusion(0.8, 30, classes)
    drawn = chart(matrices.confusion_chart("T", table, [f"class number {k}" for k in range(classes)]))
    assert len(drawn.every("rect", "s0")) == classes


def test_small_confusion_matrices_have_small_cells():
    two, ten = (
        chart(matrices.confusion_chart("T", np.eye(n, dtype=int), CLASSES[:n])).every("rect", "cell")[0]
        for n in (2, 10)
    )
    assert float(two.get("width")) <= 44 and float(ten.get("width")) <= 44
    assert float(two.get("width")) == float(two.get("height"))


def test_an_empty_confusion_matrix_can_be_drawn():
    assert chart(matrices.confusion_chart("T", [[0, 0], [0, 0]], ["a", "b"])).every("rect", "cell") == []


HOSTILE = ['<script>alert("x")</script>', "a & b", "\x00\x1b", "'\"><svg onload=x>", "\ud800"]


def test_hostile_names_are_shown_and_never_run():
    figures = [
        matrices.label_chart("<b>T</b>", [[1] * 5] * 3, HOSTILE),
        matrices.confusion_chart("<i>T", np.eye(5, dtype=int), HOSTILE),
        plots.line_chart(
            HOSTILE[0], [Series(name, ((1.0, 1.0), (2.0, 2.0))) for name in HOSTILE],
            scales.rounds(HOSTILE[3], [1, 2]), scales.linear(HOSTILE[1], [0, 1]), note=HOSTILE[0],
        ),
    ]  # fmt: skip
    for figure in figures:
        chart(figure)
        assert "<script" not in figure
        assert "<svg onload" not in figure
        figure.encode()

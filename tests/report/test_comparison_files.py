"""Tables and figures of a comparison, as files for papers."""

import csv
import io
import math
import sys
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.errors import InvalidInput
from sordino.report.compare import compare
from sordino.report.comparison_figure import check_figure, over_epsilon, over_rounds, write_figure
from sordino.report.comparison_table import latex_text, table_head, table_rows, to_latex, to_markdown, write_table
from tests.report.test_compare import a_regression, a_run, promise

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def runs(tmp_path):
    """Two settings with two seeds each, and one without any protection."""
    half = {"clients.epsilon": 2.0}
    return [
        a_run(tmp_path, "a", 0.5, 0.75, statement=promise(8.0)),
        a_run(tmp_path, "b", 0.5, 0.85, seed=2, statement=promise(8.0)),
        a_run(tmp_path, "c", 0.25, 0.5, settings=half, statement=promise(2.0)),
        a_run(tmp_path, "d", 0.25, 0.6, seed=2, settings=half, statement=promise(2.0)),
        a_run(tmp_path, "e", 0.9, 0.95, settings={"clients.epsilon": 0.0}, statement=promise(math.inf, claim=None)),
    ]


def test_a_row_has_accuracy_epsilons_and_what_they_mean(runs):
    unprotected, half, whole = table_rows(compare(runs))
    assert whole == ["clients.epsilon = 4", "80.00 ± 7.07", "2", "2", "8", "1", "0", "client", "server"]
    assert half[1:] == ["55.00 ± 7.07", "2", "2", "2", "1", "0", "client", "server"]
    assert unprotected[1:6] == ["95.00", "1", "2", "infinite", "none"]


def test_the_markdown_table_has_as_many_cells_in_every_line(runs):
    lines = to_markdown(compare(runs)).splitlines()
    assert len(lines) == 2 + 3
    assert {line.count("|") for line in lines} == {10}


def test_the_latex_table_has_as_many_cells_as_columns(runs):
    text = to_latex(compare(runs))
    assert r"\begin{tabular}{lrrrrrrll}" in text
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(rows) == 1 + 3 and {line.count(" & ") for line in rows} == {8}
    assert r"80.00 $\pm$ 7.07" in text and r"$\infty$" in text


@given(st.text(st.sampled_from("ab_%&#${}~^\\<>±1")))
def test_no_character_of_a_name_is_a_command_of_latex(text):
    marks = [r"\textbackslash{}", r"\textasciitilde{}", r"\textasciicircum{}", r"$\pm$", "$<$", "$>$"]
    left = latex_text(text)
    for mark in [*marks, *(f"\\{c}" for c in "&%$#_{}")]:
        left = left.replace(mark, "")
    assert not set(left) & set("&%$#_{}~^\\<>±")


def test_the_name_of_a_file_says_its_form(runs, tmp_path):
    for name, start in (("t.md", "| setting"), ("t.tex", "% "), ("t.csv", "clients.epsilon,")):
        write_table(compare(runs), tmp_path / "tables" / name)
        assert (tmp_path / "tables" / name).read_text().startswith(start)
    assert len(list(csv.reader(io.StringIO((tmp_path / "tables/t.csv").read_text())))) == 4
    with pytest.raises(InvalidInput, match=r"\.tex"):
        write_table(compare(runs), tmp_path / "t.docx")


def test_accuracy_over_rounds_is_the_mean_with_its_deviation(runs):
    _, half, whole = over_rounds(compare(runs)).lines
    assert whole.points == ((1.0, 0.5), (2.0, pytest.approx(0.8))) and half.points[0] == (1.0, 0.25)
    assert whole.spread == (0.0, pytest.approx(math.sqrt(0.005)))


def test_accuracy_against_epsilon_is_one_line_with_its_meaning_and_leaves_out_the_unprotected(runs):
    figure = over_epsilon(compare(runs))
    (line,) = figure.lines
    assert line.points == ((2.0, pytest.approx(0.55)), (8.0, pytest.approx(0.8)))
    assert figure.logarithmic and "client" in figure.note and "server" in figure.note


def test_epsilons_of_different_meaning_get_no_common_axis(tmp_path):
    runs = [
        a_run(tmp_path, "a", 0.5, statement=promise(8.0)),
        a_run(tmp_path, "b", 0.5, settings={"clients.epsilon": 2.0}, statement=promise(8.0, delta=1e-5)),
    ]
    with pytest.raises(InvalidInput, match="different"):
        over_epsilon(compare(runs))


def test_a_figure_of_nothing_is_refused(tmp_path):
    runs = [a_run(tmp_path, "a", 0.5, statement=promise(math.inf))]
    with pytest.raises(InvalidInput):
        over_epsilon(compare(runs))


@pytest.mark.parametrize("over", ["rounds", "epsilon"])
def test_the_svg_stands_alone_and_names_every_line(runs, tmp_path, over):
    write_figure(compare(runs), tmp_path / "f.svg", over)
    root = ElementTree.parse(tmp_path / "f.svg").getroot()
    text = " ".join(root.itertext())
    assert root.tag == f"{SVG}svg" and "var(--" not in text
    names = [line.name for line in (over_rounds if over == "rounds" else over_epsilon)(compare(runs)).lines]
    assert all(name in text for name in names)
    assert len(root.findall(f".//{SVG}polyline")) == len(names)


def test_the_name_of_a_figure_and_its_axis_are_checked(tmp_path, monkeypatch):
    with pytest.raises(InvalidInput, match=r"\.pdf"):
        check_figure(tmp_path / "f.jpg", "rounds")
    with pytest.raises(InvalidInput, match="epsilon"):
        check_figure(tmp_path / "f.svg", "loss")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InvalidInput, match=r"sordino\[notebook\]"):
        check_figure(tmp_path / "f.pdf", "rounds")


@pytest.mark.parametrize(("suffix", "magic"), [(".pdf", b"%PDF"), (".png", b"\x89PNG")])
def test_matplotlib_draws_for_print(runs, tmp_path, suffix, magic):
    pytest.importorskip("matplotlib")
    write_figure(compare(runs), tmp_path / f"f{suffix}", "epsilon")
    assert (tmp_path / f"f{suffix}").read_bytes().startswith(magic)


def test_another_metric_is_in_tables_and_figures_in_its_own_unit(tmp_path):
    comparison = compare([a_regression(tmp_path, name, error) for name, error in (("a", 31.5), ("b", 40.25))])
    assert table_head(comparison)[1] == "mae"
    assert [row[1] for row in table_rows(comparison)] == ["31.5", "40.25"]
    drawn = over_rounds(comparison)
    assert (drawn.metric, drawn.lines[0].points) == ("mae", ((1.0, 63.0), (2.0, 31.5)))
    ElementTree.fromstring(drawn.to_svg())

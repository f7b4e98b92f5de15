"""The figures of docs/proven.md are those of the records."""

import json
import re

import pytest
from benchmarks import audits, proven
from benchmarks.simulation import insert

from sordino.report.words import lower, upper

PAGE = proven.PAGE.read_text()
SENTENCES = {  # figures of the page's text, and the recorded rows that they are about
    "98.49 ± 0.02": ("splits: at random, summed", "splits: Dirichlet 0.1, summed", "splits: two classes each, summed"),
    "98.40 ± 0.01": ("grid: noise of 2^10, modulo 2^16",),
    "94.74": ("clients: 10000 clients, epsilon 1, summed",),
    "96.72": ("clients: 10000 clients, epsilon 4, summed",),
    "75.21": ("clients: 1000 clients, epsilon 1, summed",),
    "17.59": ("clients: 100 clients, epsilon 1, summed",),
    "75.88": ("clients: 10000 clients, epsilon 8, alone",),
}


def test_the_tables_are_those_of_the_records(tmp_path):
    copy = tmp_path / "proven.md"
    copy.write_text(re.sub(r"(<!-- \w+ -->\n).*?(<!-- end)", r"\1\2", PAGE, flags=re.DOTALL))
    insert(copy, proven.tables())
    assert copy.read_text() == PAGE, "run: python -m benchmarks.proven --tables"


def test_every_headline_keeps_to_its_epsilon():
    for each in proven.HEADLINES:
        for mode, adversary in (("summed", "summed"), ("alone", "server")):
            rows = proven.recorded().get(f"headlines: {each.name}, {mode}", [])
            figures = [
                figure
                for row in rows
                for terms, figure in row["proven"].items()
                if terms.startswith(f"record (add/remove), {adversary}")
            ]
            assert len(figures) == len(rows)
            assert all(figure <= each.epsilon for figure in figures)


@pytest.mark.parametrize("figure", SENTENCES)
def test_the_figures_between_the_tables_are_those_of_the_records(figure):
    assert figure in PAGE
    assert {proven.figure_of(key) for key in SENTENCES[figure]} == {figure}


EXCHANGED = {  # what the page has for a record exchanged: the row, and who looks
    "1.07": ("headlines: MNIST, epsilon 0.5, 2 clients, alone", "server"),
    "2.15": ("headlines: MNIST, epsilon 1, 100 clients, summed", "summed"),
    "9.07": ("headlines: Fashion-MNIST, epsilon 4, 200 clients, alone", "server"),
    "24.4": ("headlines: CIFAR-10, epsilon 10, 500 clients, alone", "server"),
    "31.1": ("headlines: MNIST, epsilon 1, 100 clients, summed", "server"),
    "inf": ("headlines: CIFAR-10, epsilon 10, 500 clients, summed", "server"),
}


PAPERS = {  # what the papers' pages say of proven runs
    "ldp-fl": ("headlines: MNIST, epsilon 1, 100 clients, summed", "headlines: MNIST, epsilon 1, 100 clients, alone"),
    "ldp-fed": (
        "headlines: Fashion-MNIST, epsilon 1, 50 clients, summed",
        "headlines: Fashion-MNIST, epsilon 1, 50 clients, alone",
    ),
    "ldpfl": ("headlines: MNIST, epsilon 0.5, 2 clients, alone",),
    "personalized": ("budgets: digits, own budgets, alone",),
    "webfed": ("headlines: MNIST, epsilon 3, 5 clients, alone",),
}


@pytest.mark.parametrize("paper", PAPERS)
def test_the_papers_pages_have_the_recorded_figures_of_proven_runs(paper):
    page = " ".join((proven.PAGE.parent / "papers" / f"{paper}.md").read_text().split())
    for row in PAPERS[paper]:
        assert f"{float(proven.figure_of(row).split()[0]):.1f} %" in page


@pytest.mark.parametrize("figure", EXCHANGED)
def test_a_record_exchanged_loses_as_much_as_the_page_says(figure):
    row, adversary = EXCHANGED[figure]
    assert figure in PAGE
    assert proven.epsilon_of(row, adversary, "record (replace)") == figure


def test_attacks_on_proven_runs_found_what_the_page_says():
    recorded = [row for row in json.loads(audits.RESULTS.read_text()) if row["recipe"].startswith("proven-")]
    whole = [row for row in recorded if row["unit"].startswith("the whole run") and row["adversary"] != "model reader"]
    found = [(row["command"].replace("'", ""), upper(row["proven"]), lower(row["audited"])) for row in whole]
    table = re.findall(r"^\| (.*) \| .* \| ([\d.]+) \| ([\d.]+) \|$", PAGE.partition("## Attacked")[2], re.MULTILINE)
    command, shown = "", []
    for run, epsilon, audited in table:
        command = command if run == "the same" else run.strip("`")
        shown.append((command, epsilon, audited))
    assert sorted(shown) == sorted(found) and len(shown) == 3


def test_the_federation_of_processes_did_what_the_page_says():
    found = json.loads(proven.RESULTS.with_name("proven-flower.json").read_text())
    stated = [f"{100 * found[name]:.2f} %" for name in ("accuracy", "accuracy_simulated")]
    assert all(figure in PAGE for figure in [*stated, f"{found['seconds_a_round']:.0f} s"])
    assert found["lost_rounds"] == [] and len(found["kills"]) == found["rounds"] // 2 == 10


def test_the_pictures_are_drawn_from_the_records(tmp_path):
    proven.write_figures(tmp_path)
    drawn = sorted(tmp_path.iterdir())
    assert len(drawn) == 4
    for picture in drawn:
        assert picture.read_bytes() == (proven.PAGE.parent / "images" / picture.name).read_bytes()

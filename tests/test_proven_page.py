"""The figures of docs/proven.md are those of the records."""

import json
import re

import pytest
from benchmarks import proven
from benchmarks.simulation import insert

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


def test_a_record_exchanged_loses_as_much_as_the_page_says():
    exchanged = proven.epsilon_of("splits: at random, summed", "summed", "record (replace)")
    assert exchanged in PAGE and exchanged == "2.15"


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

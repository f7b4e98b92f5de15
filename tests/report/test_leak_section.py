"""What attacks found, on the page of a run: pictures, curves, figures, and how far they can be relied on."""

import json
import math
import re
from dataclasses import replace

import pytest

from sordino.errors import InvalidInput
from sordino.privacy.leaks import Leak, Share
from sordino.report.attack_file import FILE, AttackFile
from sordino.report.leak_section import TITLE
from sordino.report.leak_words import CAVEAT, at_most, headline, sentences, share_words
from sordino.report.page import report_page
from tests.report.leaks import LEAKS, MEMBERS, ORIGINALS, PICTURES, reconstruction
from tests.report.pages import Page
from tests.report.runs import ordinary


@pytest.fixture
def folder(tmp_path):
    return ordinary(tmp_path / "run", rounds=2)


def page_with(folder, leaks, left_out=()) -> Page:
    AttackFile(tuple(leaks), tuple(left_out)).write(folder.path)
    return Page(report_page(folder))


def images(page: Page) -> list[dict[str, str | None]]:
    return [attributes for tag, attributes in page.tags if tag == "img"]


def test_a_run_that_was_not_attacked_has_no_such_section(folder):
    assert TITLE not in Page(report_page(folder)).headings()


def test_originals_stand_above_what_each_variant_gave_away(folder):
    page = page_with(folder, LEAKS)
    shown = images(page)
    rows = (ORIGINALS, PICTURES[0].pictures, PICTURES[1].pictures)
    sources = [one["src"].removeprefix("data:image/png;base64,") for one in shown if one["src"]]
    assert sources == [row[k] for band in (range(8), range(8, 12)) for row in rows for k in band]
    labels = re.findall(r"<span>(Original|Without protection|This run)", page.text)
    assert labels == ["Original", "Without protection", "This run"] * 2
    assert {one["alt"].partition(", ")[2] for one in shown} == {"original", "without protection", "this run"}


def test_a_proven_variant_has_a_row_of_its_own(folder):
    page = page_with(folder, [*PICTURES, reconstruction("proven", 0)])
    assert len(images(page)) == 4 * 12
    assert "2.8 %" in sentences([reconstruction("proven", 0)])[0]


def test_the_strongest_attack_on_this_run_leads_beside_the_proven_recipe(folder):
    strong = replace(PICTURES[1], how="likeliest candidate", share=Share(30, 32))
    page = page_with(folder, [*PICTURES, strong, reconstruction("proven", 0, figures={"epsilon": 0.5})])
    lead = (
        "The strongest attack identifies 30 of 32 records in this run and 0 of 32 with a proven recipe at epsilon 0.5."
    )
    assert headline([*PICTURES, strong, reconstruction("proven", 0, figures={"epsilon": 0.5})]) == lead
    assert lead in page.words
    assert headline(MEMBERS) is None


def test_at_most_sixteen_pictures_are_shown_and_that_is_said(folder):
    leak = replace(PICTURES[0], originals=ORIGINALS * 2, pictures=ORIGINALS * 2)
    page = page_with(folder, [leak])
    assert len(images(page)) == 2 * 16
    assert "The first 16 of 24." in page.words


def test_sentences_have_the_figures_of_every_attack(folder):
    page, said = page_with(folder, LEAKS), sentences(LEAKS)
    assert len(said) == 2
    for figure in ("32 pictures", "1,000", "31 without", "2 in", "0.1 %"):
        assert figure in said[0]
    for figure in ("500 cases", "1.0 %", "210 without", "9 in", "7.4 %"):
        assert figure in said[1]
    assert all(one.replace("'", "&#x27;") in page.text for one in said)
    assert CAVEAT in page.words


def test_every_method_of_an_attack_has_a_sentence_of_its_own():
    weak = replace(PICTURES[0], how="closed form", share=Share(3, 32))
    first, second = sentences([*PICTURES, weak])
    assert first == sentences(PICTURES)[0]
    assert "closed form" in second and "3 without" in second
    assert "31 of 32" in sentences([PICTURES[0], replace(PICTURES[1], share=Share(1, 8))])[0]


def test_a_variant_with_other_candidates_has_its_own_words():
    proven = reconstruction("proven", 0, deed="pictures, each among 50 candidates, the attack identifies", chance=0.02)
    (said,) = sentences([*PICTURES, proven])
    assert "each among 1,000 candidates, the attack identifies 31 without protection and 2 in this run. Guess" in said
    assert "Of 32 pictures, each among 50 candidates, the attack identifies 0 with a proven recipe. Guessing" in said


def test_a_bound_that_rounds_to_everything_is_said_to_exclude_next_to_nothing():
    (said,) = sentences([replace(PICTURES[1], bound=0.99991)])
    assert said.endswith("The proof for this run excludes next to nothing.")
    assert sentences([PICTURES[1]])[0].endswith("The proof for this run excludes nothing.")


@pytest.mark.parametrize("attack", ["labels", "linking"])
def test_attacks_without_pictures_and_curves_have_sentences_alone(folder, attack):
    leak = Leak(attack, "run", "last layer", Share(170, 200), chance=0.6)  # type: ignore[arg-type]
    page = page_with(folder, [leak])
    assert sentences([leak])[0].replace("'", "&#x27;") in page.text
    assert all(figure in sentences([leak])[0] for figure in ("170", "200", "60.0 %"))
    assert not images(page) and len(page.charts()) == 8


def test_curves_are_drawn_in_logarithms_from_a_thousandth_beside_the_bound(folder):
    drawing = page_with(folder, LEAKS).charts()["Membership (likelihood ratio)"]
    bare, run, limit, guessing = drawing.lines()
    assert len(bare) == len(run) < 80  # what lies left of a thousandth is drawn at it
    assert guessing[0][0] == bare[0][0] == min(x for x, _ in limit)
    (left, foot), (right, top) = guessing
    assert (run[0][1] - foot) / (top - foot) == pytest.approx(0.05, abs=0.02)  # (1e-3)^0.95, of three decades
    at = min(limit, key=lambda point: abs(point[0] - (left + (right - left) / 3)))
    assert 10 ** (-3 + 3 * (at[1] - foot) / (top - foot)) == pytest.approx(0.01 * math.exp(2.0), rel=0.08)
    assert "0.1 %" in drawing.texts() and "100 %" in drawing.texts()


def test_what_did_not_fit_is_said(folder):
    page = page_with(folder, [], ["linking: there is one report of each client"])
    assert TITLE in page.headings()
    assert "No linking attack: there is one report of each client." in page.words
    assert CAVEAT not in page.words


def damaged(name, value):
    leak = LEAKS[0].to_json() | {name: value}
    return json.dumps({"leaks": [leak], "left_out": []})


@pytest.mark.parametrize(
    "text",
    [
        "{", "[]", "{}", '{"leaks": [1], "left_out": []}', damaged("attack", "a guess"), damaged("chance", "often"),
        damaged("bound", 2.0), damaged("share", {"hits": 3, "trials": 2}), damaged("share", {"hits": 0.5, "trials": 2}),
        damaged("pictures", ['"><script>']), damaged("curve", [[0.1]]), damaged("curve", [[0.1, float("nan")]]),
        damaged("surplus", 1), damaged("figures", 3), "[" * 100_000, '{"leaks": [], "left_out": "none"}',
    ],
)  # fmt: skip
def test_a_damaged_file_is_said_and_the_page_is_still_made(folder, text):
    (folder.path / FILE).write_text(text)
    with pytest.raises(InvalidInput, match=re.escape(str(folder.path / FILE))):
        AttackFile.read(folder.path)
    page = Page(report_page(folder))
    assert TITLE in page.headings()
    assert FILE in page.words
    assert "How it went" in page.headings()


def test_the_file_gives_back_what_was_written(folder):
    AttackFile(LEAKS, ("labels: none",)).write(folder.path)
    assert AttackFile.read(folder.path) == AttackFile(LEAKS, ("labels: none",))


def test_of_a_file_other_attacks_can_be_kept():
    both = AttackFile(LEAKS, ("labels: none", "linking: none"))
    assert both.without({"membership", "linking"}) == AttackFile(PICTURES, ("labels: none",))
    assert both.without({"reconstruction"}).leaks == MEMBERS


@pytest.mark.parametrize(
    ("bound", "shown"),
    [(None, "no proof"), (1.0, "100.0 %"), (0.12301, "12.4 %"), (0.123, "12.3 %"), (0.0015, "0.150 %")],
)
def test_a_bound_is_rounded_up(bound, shown):
    assert at_most(bound) == shown


def test_small_shares_keep_two_digits():
    assert [share_words(share) for share in (0.0, 1 / 60_000, 0.001, 0.5, 1.0)] == [
        "0.0 %", "0.0017 %", "0.1 %", "50.0 %", "100.0 %",
    ]  # fmt: skip


def test_what_guessing_gets_is_said_of_each_variant_where_it_differs():
    bare, run = (replace(leak, chance=chance) for leak, chance in zip(MEMBERS[:2], (0.014, 0.021), strict=True))
    (sentence,) = sentences([bare, run])
    assert "1.4 %" in sentence and "2.1 %" in sentence

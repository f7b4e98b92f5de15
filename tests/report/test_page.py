"""The page of a run: it shows what the folder says, for every kind of run, and never a claim as a proof."""

import math
import re
from dataclasses import replace

import numpy as np
import pytest

from sordino.privacy.guarantee import SERVER, Adjacency, Claim, Guarantee, Pure, Release, shuffled
from sordino.privacy.statement import AuditBound, ClientSet, Row, Statement
from sordino.report.folder import RunFolder
from sordino.report.page import report_page
from sordino.report.privacy_section import privacy_section
from sordino.report.records import ClientBudget, RoundRecord, Simulation, to_line
from sordino.report.statement import sentences
from tests.privacy.statements import statement_of
from tests.report.pages import Page, outside_details
from tests.report.runs import TERMS, a_result, a_round, label_counts, leave, ordinary, stated, unprotected


def page_of(folder: RunFolder) -> Page:
    return Page(report_page(folder))


def test_an_ordinary_run_has_everything_in_its_place(tmp_path):
    page = page_of(ordinary(tmp_path / "run"))
    assert page.headings() == [
        "two-point-digits", "Privacy statement of a run", "How it went", "Accuracy by round", "Loss by round",
        "The clients", "Labels by client", "Budget spent by round", "Budget by client", "Right and wrong answers",
        "Confusion matrix", "By class, weakest first", "What a simulation can see", "Signal and noise",
        "Clipped values", "Checked before the start", "What it cost", "Do it again",
    ]  # fmt: skip
    assert set(page.charts()) == {
        "Accuracy by round", "Loss by round", "Budget spent by round", "Budget by client", "Labels by client",
        "Confusion matrix", "Signal and noise", "Clipped values",
    }  # fmt: skip
    assert "Why it stopped: all 30 rounds are done." in page.words
    assert "All 20 clients that were asked reported in every round." in page.words
    assert "Two-point randomised updates of a logistic model" in page.words
    assert "sordino run recipe.toml" in page.words


def test_the_headline_is_the_final_accuracy_beside_the_commonest_answer(tmp_path):
    rounds = [a_round(1, 0.25), a_round(2, 0.876)]
    result = a_result(rounds, confusion=((30, 10), (5, 5)), classes=("a", "b"), label_counts=None)
    page = page_of(leave(tmp_path / "run", rounds, result, stated()))
    assert re.search(r"<b>87\.6<small>%</small></b>", page.text)
    assert "always giving the commonest answer would have 80.0 %" in page.words


def test_a_fingerprint_may_be_broken_so_that_the_page_fits_a_phone(tmp_path):
    page = page_of(ordinary(tmp_path / "run", rounds=2, recipe_fingerprint="f" * 64))
    assert f"<p>The recipe's fingerprint is <code>{'f' * 64}</code>.</p>" in page.text.replace("&#x27;", "'")
    assert "p code { overflow-wrap: anywhere; }" in page.text


def test_the_report_is_written_and_replaced(tmp_path):
    folder = ordinary(tmp_path / "run", rounds=2)
    folder.write_report("old")
    folder.write_report(report_page(folder))
    assert (folder.path / "report.html").read_text() == report_page(folder)


# --- privacy ---------------------------------------------------------------------------------------------------------


def figures(page: Page | str, kind: str) -> list[str]:
    """The epsilons of one kind in the table that has them all."""
    text = page if isinstance(page, str) else page.text
    return re.findall(rf"<tr><td>([^<]*)</td><td>{kind}, delta[^<]*</td>", text)


def test_claimed_and_proven_are_told_apart_with_their_terms(tmp_path):
    page = page_of(ordinary(tmp_path / "run"))
    assert figures(page, "proven") == ["2,000", "2,600", "2,600", "4"]
    assert figures(page, "claimed") == ["4"]
    assert page.words.count("no meaningful protection") >= 2
    assert "claim not supported" in page.words
    assert "sum over the upload's bits" in page.words
    assert "Eq. 2 <per weight>" in page.words


def test_the_runs_own_figure_is_put_into_words_and_thresholds_are_folded_away():
    section = privacy_section(stated(rounds=10))
    shown = outside_details(section)
    assert "the shuffler is, and that 20 clients" in shown
    assert "<dd>10 rounds of one randomised bit per weight</dd>" in shown
    assert "10 x a trusted shuffler" in section and "a trusted shuffler" not in shown


def test_proven_and_claimed_are_explained_where_they_occur():
    assert "Proven: a bound by theorem or enumeration" in privacy_section(stated())
    assert "Claimed: what the formula of a paper gives" in privacy_section(stated())
    assert "Claimed:" not in privacy_section(unprotected())
    assert "no claim" not in privacy_section(unprotected())


def test_figures_for_records_say_in_the_open_that_clients_are_not_covered():
    guarantee = Guarantee(SERVER, Adjacency.RECORD_REPLACE, Pure(1.0), "sum")
    section = privacy_section(statement_of([Release("r", "d", "w", (guarantee,))], delta=0.0))
    assert "of everything one client sends, taken together, nothing is proven" in outside_details(section)


def test_the_statements_own_sentences_and_figures_are_all_there(tmp_path):
    statement = stated([4.0, 2.0])
    page = page_of(leave(tmp_path / "run", [a_round(1)], a_result([a_round(1)]), statement))
    for sentence in sentences(statement):
        assert sentence in page.words
    assert {"268 to 2,000", "1,120 to 2,600"} <= set(figures(page, "proven"))
    assert "They differ, and no figure stands for all of them" in page.words


def test_audits_are_shown_as_lower_bounds_and_refute_claims(tmp_path):
    one = Release("r", "d", "w", (Guarantee(SERVER, Adjacency.CLIENT, Pure(3.0), "sum"),), Claim(0.5, 0.0, "eps"))
    audits = {(SERVER, Adjacency.CLIENT): AuditBound(2.3, 0.95, 1000, "likelihood ratio")}
    statement = statement_of([one], delta=0.0, audits=audits)
    page = page_of(leave(tmp_path / "run", [a_round(1)], a_result([a_round(1)]), statement))
    assert figures(page, "audited") == ["≥ 2.3"]
    assert '<span class="badge warn">claim refuted by experiment</span>' in page.text


def badges(page: Page, kind: str) -> list[str]:
    return re.findall(rf'<span class="badge {kind}">(.*?)</span>', page.text)


def test_only_a_proven_claim_is_marked_as_good(tmp_path):
    unsupported = page_of(ordinary(tmp_path / "run"))
    assert badges(unsupported, "good") == []
    assert set(badges(unsupported, "warn")) == {"no meaningful protection", "claim not supported"}
    one = Release("r", "d", "w", (Guarantee(SERVER, Adjacency.CLIENT, Pure(1.0), "sum"),), Claim(1.0, 0.0, "eps"))
    proven = page_of(leave(tmp_path / "b", [a_round(1)], a_result([a_round(1)]), statement_of([one], delta=0.0)))
    assert badges(proven, "good") == ["claim proven"]
    assert badges(proven, "warn") == []


def test_a_claim_about_another_change_says_so():
    claim = Claim(1.0, 0.0, "eps per weight", Adjacency.COORDINATE)
    row = Row(SERVER, Adjacency.CLIENT, 0.0, 2.0, 2.0, ("sum",), claimed=claim)
    assert "claimed, delta 0, for adjacency coordinate" in privacy_section(Statement((row,), 0.0))


def test_onlookers_that_differ_in_their_number_only_share_a_line():
    rows = tuple(
        Row(shuffled(n), Adjacency.CLIENT, 0.0, e, e, (f"mixed among {n}",), who=ClientSet((f"c{n}",), 1))
        for n, e in ((9, 3.0), (10, 2.0), (100, 1.0))
    )
    section = privacy_section(Statement(rows, 0.0))
    assert figures(section, "proven") == ["1 to 3"]
    assert "a shuffler of 9 to 100 clients" in section
    assert "<li>[1] mixed among 9</li><li>[2] mixed among 10</li><li>[3] mixed among 100</li>" in section


def groups(*own: tuple[str, float, str]) -> Statement:
    """Clients with an epsilon and a basis of their own; the basis of infinity is why nothing is proven."""

    def row(name: str, epsilon: float, said: str) -> Row:
        basis, unproven = (("none",), (said,)) if math.isinf(epsilon) else ((said,), ())
        return Row(SERVER, Adjacency.CLIENT, 0.0, epsilon, epsilon, basis, unproven, who=ClientSet((name,), 1))

    return Statement(tuple(row(*each) for each in own), 0.0)


def test_each_group_of_clients_has_its_own_proof_and_no_other_groups():
    section = privacy_section(groups(("anna", 1.0, "lemma 1"), ("ben", 2.0, "lemma 2"), ("cleo", 3.0, "lemma 1")))
    rows = re.findall(r"<tr><td>(\w+)</td>.*?<td>(\[\d\])</td></tr>", section)
    assert rows == [("anna", "[1]"), ("ben", "[2]"), ("cleo", "[1]")]
    assert "<li>[1] lemma 1</li><li>[2] lemma 2</li>" in section


def test_a_proof_that_all_groups_share_is_told_once_and_for_nobody_in_particular():
    section = privacy_section(groups(("anna", 1.0, "lemma 1"), ("ben", 2.0, "lemma 1")))
    assert section.count("lemma 1") == 1


def test_those_without_a_proof_are_told_apart_from_those_who_have_one():
    section = privacy_section(groups(("anna", 1.0, "lemma 1"), ("ben", math.inf, "labels leave as they are")))
    assert "<p>Ben: labels leave as they are</p>" in section
    assert "<li>[1] lemma 1</li></ul>" in section  # the only proof there is


def test_of_many_groups_the_table_has_all_proofs():
    section = privacy_section(groups(*((f"c{k}", float(k), f"lemma {k}") for k in range(1, 7))))
    assert all(section.count(f"lemma {k}") == 1 for k in range(1, 7))


def test_a_claim_of_a_part_says_of_which_and_is_not_marked_as_good(tmp_path):
    guarantee = Guarantee(SERVER, Adjacency.CLIENT, Pure(1.0), "sum")
    releases = [
        Release("r", "d", "weights", (guarantee,), Claim(1.0, 0.0, "eps")),
        Release("s", "d", "count", (guarantee,)),
    ]
    statement = statement_of(releases, delta=0.0)
    page = page_of(leave(tmp_path / "run", [a_round(1)], a_result([a_round(1)]), statement))
    assert figures(page, "claimed") == ["1"] and figures(page, "proven") == ["2"]
    assert "claimed, delta 0, of weights only: no claim speaks of count" in page.words
    assert badges(page, "good") == [] and badges(page, "warn") == ["partly claimed"]


def test_a_run_without_protection_says_that_nothing_is_proven_and_why(tmp_path):
    page = page_of(leave(tmp_path / "run", [a_round(1)], a_result([a_round(1)]), unprotected()))
    assert figures(page, "proven") == ["infinite"]
    assert "nothing is proven" in page.words
    assert "<p>Updates leave as they are</p>" in page.text
    assert "What proves it" not in page.words


def test_budgets_on_claims_are_announced_as_such(tmp_path):
    terms = "claimed, against server, adjacency client, delta 0"
    page = page_of(ordinary(tmp_path / "run", budget_terms=terms))
    assert "Budgets in this run limit claimed figures: no proof stands behind them." in page.words
    assert page.words.count(f"counts it: {terms}.") + page.words.count(f"count it: {terms}.") == 2
    assert "no proof stands behind them" not in page_of(ordinary(tmp_path / "proven")).words


def test_what_was_spent_is_not_shown_without_its_terms(tmp_path):
    page = page_of(ordinary(tmp_path / "run", budget_terms=None))
    assert "Budget by client" not in page.headings()
    assert "Budget spent by round" not in page.headings()


def test_a_statement_of_very_many_rows_is_cut_and_says_where_the_rest_is(tmp_path):
    releases = {
        f"client {k}": [Release("r", "d", "w", (Guarantee(SERVER, Adjacency.CLIENT, Pure(1 + k / 100), "sum"),))]
        for k in range(300)
    }
    statement = statement_of(releases, delta=0.0)
    page = page_of(leave(tmp_path / "run", [a_round(1)], a_result([a_round(1)]), statement))
    assert figures(page, "proven") == ["1 to 3.99"]
    assert "200 more rows are in statement.json." in page.words


# --- unusual runs ----------------------------------------------------------------------------------------------------


def test_one_round(tmp_path):
    page = page_of(ordinary(tmp_path / "run", rounds=1))
    assert len(page.charts()["Accuracy by round"].lines()[0]) == 1


@pytest.mark.process
def test_ten_thousand_clients_and_a_thousand_rounds(tmp_path):
    clients = 10_000
    generator = np.random.default_rng(1)
    rounds = [replace(a_round(k, 0.5, clients), reported=9_000 + k % 7, declined=k % 5) for k in range(1, 1001)]
    own = tuple(
        ClientBudget(k, 1.0, 5.0 + k % 3, float(generator.uniform(0, 5)), 10, k % 2) for k in range(clients)
    )  # fmt: skip
    result = a_result(rounds, clients=clients, label_counts=label_counts(clients), budgets=own)
    folder = RunFolder.create(tmp_path / "run", "")
    (folder.path / "metrics.jsonl").write_text("".join(f"{line}\n" for line in map(to_line, rounds)))
    folder.write_result(result)
    page = page_of(folder)
    assert "10,000" in page.words
    assert "5,000 of 10,000 clients declined at least once" in page.words
    assert len(page.text) < 1_000_000
    assert "Who took part" in page.charts()


def test_everyone_declined(tmp_path):
    rounds = [
        RoundRecord(k, accuracy=0.1, asked=20, declined=20, counted=False, seconds=0.1, spent_max=0.0, spent_median=0.0)
        for k in (1, 2, 3)
    ]
    result = a_result(rounds, budgets=tuple(ClientBudget(k, 4.0, 0.5, 0.0, 0, 3) for k in range(20)))
    page = page_of(leave(tmp_path / "run", rounds, result, statement_of([])))
    assert "No round met its quorum: the model never moved" in page.words
    assert "no report left any client" in page.words
    assert "20 of 20 clients declined at least once" in page.words
    tips = page.charts()["Who took part"].tooltips()
    assert "asked and declined by their own ledger (the same line), round 1: 20" in tips
    assert "round 3 missed its quorum" in tips
    assert "a client sends, per round" not in page.words  # nobody did


def test_nothing_was_measured(tmp_path):
    rounds = [replace(a_round(k, None), simulation=None, spent_max=None, spent_median=None) for k in (1, 2)]
    result = a_result(rounds, accuracy=None, loss=math.nan, confusion=None, label_counts=None, budgets=(), preflight=())
    page = page_of(leave(tmp_path / "run", rounds, result, stated()))
    assert "Accuracy not measured" in page.words
    assert page.charts() == {}
    assert "nan" not in page.words.lower().split()
    assert "None" not in page.words


def test_no_budget(tmp_path):
    own = tuple(ClientBudget(k, 4.0, None, None, 3, 0) for k in range(20))
    rounds = [replace(a_round(k), spent_max=None, spent_median=None) for k in (1, 2, 3)]
    page = page_of(leave(tmp_path / "run", rounds, a_result(rounds, budgets=own, budget_terms=None), stated()))
    assert "Budget by client" not in page.charts()
    assert "Labels by client" in page.charts()


def test_spending_without_limits_is_shown_as_unlimited(tmp_path):
    own = tuple(ClientBudget(k, 4.0, None, 3.0, 3, 0) for k in range(20))
    page = page_of(ordinary(tmp_path / "run", budgets=own, budget_terms=TERMS))
    assert "No limit was set, so nothing was ever declined." in page.words
    assert page.charts()["Budget by client"].every("line", "limit") == []


def test_an_interrupted_run_shows_what_it_had(tmp_path):
    page = page_of(leave(tmp_path / "run", [a_round(1, 0.2), a_round(2, 0.3), a_round(3, None)], None, None))
    assert "This run is not over, or was interrupted" in page.words
    assert re.search(r"<b>30\.0<small>%</small></b>", page.text)
    assert "holds no privacy statement, so nothing can be said about what it protects" in page.words


def test_a_run_before_its_first_round(tmp_path):
    page = page_of(RunFolder.create(tmp_path / "run", 'name = "early"'))
    assert "early" in page.headings()
    assert page.charts() == {}


def test_validation_lost_rounds_and_failures_are_told(tmp_path):
    rounds = [
        replace(a_round(k), validation_accuracy=0.4, counted=k != 2, simulation=Simulation(failed=2)) for k in (1, 2, 3)
    ]
    page = page_of(leave(tmp_path / "run", rounds, a_result(rounds), stated()))
    assert "validation set, round 1: 40.0 %" in page.charts()["Accuracy by round"].tooltips()
    assert "1 round missed the quorum and did not move the model." in page.words
    assert "Training failed 6 times on a client" in page.words


def test_a_seed_other_than_the_recipes_is_told(tmp_path):
    assert "with seed = 7 in it" in page_of(ordinary(tmp_path / "other", rounds=2, seed=7)).words
    assert "with seed" not in page_of(ordinary(tmp_path / "same", rounds=2, seed=1)).words


def test_a_recipe_that_cannot_be_read_is_still_shown(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "name = <not toml>")
    assert "name = <not toml>" in page_of(folder).words


def test_costs_are_per_client_and_round(tmp_path):
    rounds = [replace(a_round(k), bytes_up=2000, reported=4, asked=5, bytes_down=10_000) for k in (1, 2)]
    page = page_of(leave(tmp_path / "run", rounds, a_result(rounds), None))
    assert re.search(r"a client sends, per round</dt><dd>500 B", page.text)
    assert re.search(r"a client is sent, per round</dt><dd>2 kB", page.text)
    assert re.search(r"all clients sent</dt><dd>4 kB", page.text)


def test_members_are_listed_by_name_with_their_rounds(tmp_path):
    west = "west (from round 2, in the place of east)"
    members = [ClientBudget(0, name="north", reports=2), ClientBudget(1, name=west, reports=1, declined=1)]
    rounds = [a_round(1), a_round(2)]
    named = page_of(leave(tmp_path / "named", rounds, a_result(rounds, budgets=members), stated()))
    assert f"north 0 2 0 {west} 1 1 1" in " ".join(named.words.split())
    plain = page_of(leave(tmp_path / "plain", rounds, a_result(rounds, budgets=[ClientBudget(0)]), stated()))
    assert "may have left it" not in plain.words


HOSTILE = '<script>alert("x")</script>'


def test_hostile_texts_anywhere_in_the_folder_are_shown_and_never_run(tmp_path):
    rounds = [a_round(1), a_round(2)]
    result = a_result(
        rounds,
        name=HOSTILE,
        stopped=HOSTILE,
        classes=[HOSTILE] * 10,
        budget_terms=HOSTILE,
        preflight=[HOSTILE],
        recipe_fingerprint=HOSTILE,
        settings={HOSTILE: HOSTILE},
        budgets=[ClientBudget(0, 1.0, 9.0, 2.0, 2, name=HOSTILE)],
    )
    guarantee = Guarantee(SERVER, Adjacency.CLIENT, Pure(1.0), HOSTILE)
    release = Release("r", "d", HOSTILE, (guarantee,), Claim(1.0, 0.0, HOSTILE))
    statement = statement_of({HOSTILE: [release]}, title=HOSTILE)
    recipe = f"summary = '{HOSTILE}'\npaper = '{HOSTILE}'\n# {HOSTILE}"
    folder = RunFolder.create(tmp_path / "run", recipe, device=HOSTILE)
    for record in rounds:
        folder.append_round(record)
    folder.write_statement(statement)
    folder.write_result(result)
    page = page_of(folder)  # fails if any script element is found
    assert page.words.count(HOSTILE) > 12
    assert "<script" not in page.text

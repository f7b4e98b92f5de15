"""One epsilon leads every page, statement and terminal summary; all others are folded away, written in the same way."""

import math
import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.errors import InvalidInput
from sordino.privacy import history
from sordino.privacy.guarantee import SERVER, Adjacency, Adversary, Claim, Guarantee, Pure, Release, shuffled, summed
from sordino.privacy.guessing import best_guess
from sordino.privacy.history import RoundReleases
from sordino.privacy.spending import spending
from sordino.privacy.statement import (
    NOT_SUPPORTED,
    PROVEN,
    AuditBound,
    ClientSet,
    PlannedFor,
    Row,
    Statement,
    View,
    leading,
)
from sordino.report.compare import compare
from sordino.report.comparison_page import comparison_page
from sordino.report.comparison_table import to_markdown
from sordino.report.epsilons import HEAD, LEADS, epsilon_lines
from sordino.report.page import report_page
from sordino.report.statement import CHANGES, attacker_gain, guesses, lead_facts, lead_text, to_text
from sordino.report.words import figure, lower, upper
from tests.report.pages import Page, outside_details
from tests.report.runs import a_result, a_round, leave, ordinary, stated, unprotected

EPSILONS = st.floats(0, 60)
RECORDS = PlannedFor(Adjacency.RECORD_REPLACE, "server")


def standing_alone(number, text):
    """Whether a text has this number, and not as a part of another."""
    return re.search(rf"(?<![\d.,]){re.escape(number)}(?![\d.,])", text)


def row(adjacency=Adjacency.CLIENT, proven=1.0, adversary=SERVER, **more):
    return Row(adversary, adjacency, 1e-5, proven, math.inf, ("a theorem",), **more)


# --- what an attacker gains ------------------------------------------------------------------------------------------


@given(EPSILONS)
def test_under_a_pure_epsilon_the_share_of_right_guesses_is_randomised_response(epsilon):
    assert best_guess(epsilon) == pytest.approx(math.exp(epsilon) / (1 + math.exp(epsilon)))


@given(EPSILONS, st.floats(0, 1))
def test_with_a_delta_it_is_what_the_best_test_on_the_trade_off_curve_reaches(epsilon, delta):
    def errors(alpha):  # the trade-off function of (epsilon, delta)-DP, Wasserman and Zhou, Kairouz et al.
        return max(0.0, 1 - delta - math.exp(epsilon) * alpha, math.exp(-epsilon) * (1 - delta - alpha))

    corner = (1 - delta) / (1 + math.exp(epsilon))
    reached = max(1 - (alpha + errors(alpha)) / 2 for alpha in [corner, *(k / 500 for k in range(501))])
    assert best_guess(epsilon, delta) == pytest.approx(reached, abs=1e-12)


def test_no_epsilon_means_a_coin_and_no_bound_means_certainty():
    assert best_guess(0.0) == 0.5 and best_guess(math.inf) == 1.0 and best_guess(0.0, 1.0) == 1.0
    for wrong in ((-1.0, 0.0), (1.0, 1.5), (math.nan, 0.0)):
        with pytest.raises(InvalidInput):
            best_guess(*wrong)


@given(EPSILONS)
def test_the_number_shown_is_never_below_the_bound(epsilon):
    view = View((row(proven=epsilon),))
    shown = guesses(view)
    if found := re.search(r"at most ([\d.]+) times in 100", shown):
        assert 100 * view.best_guess <= float(found[1]) + 1e-6 <= 100 * view.best_guess + 1.001
    else:
        assert view.best_guess > 0.999


def test_only_what_is_proven_is_said_as_a_gain():
    assert guesses(View((row(proven=math.inf),))) == "no bound"
    assert attacker_gain(View((row(proven=math.inf),))).startswith("No bound")
    assert "times in 100" not in attacker_gain(unprotected().lead)


def test_the_gain_is_that_of_the_client_who_has_lost_most():
    assert View((row(proven=1.0), row(proven=2.0))).best_guess == best_guess(2.0, 1e-5)
    assert replace(row(proven=2.0), pure=2.0).best_guess == best_guess(2.0)


# --- which figure leads ----------------------------------------------------------------------------------------------


def test_the_figure_that_was_planned_for_leads_even_where_another_is_smaller():
    found = [View((row(adjacency, proven),)) for adjacency, proven in (
        (Adjacency.CLIENT, 90.0), (Adjacency.RECORD_REPLACE, 9.0), (Adjacency.RECORD_ADD_REMOVE, 4.0))]  # fmt: skip
    assert leading(found) is found[0]
    assert leading(found, RECORDS) is found[1]
    assert leading(found, PlannedFor(Adjacency.RECORD_ADD_REMOVE, "server")) is found[2]
    assert leading(found, PlannedFor(Adjacency.RECORD_REPLACE, "summed")) is found[0]


def test_a_plan_of_which_nothing_is_proven_leads_all_the_same():
    found = [View((row(Adjacency.RECORD_REPLACE, math.inf),)), View((row(Adjacency.RECORD_ADD_REMOVE, 1.0),))]
    assert leading(found, RECORDS) is found[0] and leading(found) is found[1]


@pytest.mark.parametrize("partial", [Adjacency.COORDINATE, Adjacency.LABEL])
@pytest.mark.parametrize("whole", [459.0, math.inf])
def test_a_part_of_a_record_never_leads_even_if_it_was_planned_for(partial, whole):
    found = [View((row(partial, 1.0),)), View((row(Adjacency.CLIENT, whole),))]
    assert leading(found, PlannedFor(partial, "server")) is found[1] and leading(found) is found[1]
    statement = Statement((row(partial, 1.0), row(proven=whole)), 1e-5, planned=PlannedFor(partial, "server"))
    lead, *others = epsilon_lines(statement)
    assert lead.epsilon == figure(whole) and [(line.epsilon, bool(line.relation)) for line in others] == [("1", True)]


@pytest.mark.parametrize("partial", [Adjacency.COORDINATE, Adjacency.LABEL])
def test_where_only_parts_of_a_record_are_protected_an_infinite_figure_leads(partial):
    release = Release("r", "d", "upload", (Guarantee(SERVER, partial, Pure(1.0), "a theorem"),))
    lead = replace(Statement.of([release]), planned=PlannedFor(partial, "server")).lead
    assert lead.adjacency is Adjacency.CLIENT and lead.unproven and lead.rows[0].unproven


def summed_row(client, parties, proven):
    return row(proven=proven, adversary=summed(parties), who=ClientSet((client,), 1))


SUMMED = PlannedFor(Adjacency.CLIENT, "summed")
ALL_IN_5 = (summed_row("a", 5, 8.0), summed_row("b", 5, 7.0), summed_row("b", 10, 0.5))
NOBODY_IN_BOTH = (summed_row("a", 5, 8.0), summed_row("b", 5, 7.0), summed_row("b", 10, 0.5), summed_row("c", 10, 9.0))
ALL_IN_BOTH = (*ALL_IN_5, summed_row("a", 10, 0.75))


@pytest.mark.parametrize("rows, largest", [(ALL_IN_5, 8.0), (NOBODY_IN_BOTH, 9.0), (ALL_IN_BOTH, 0.75)])
@pytest.mark.parametrize("planned", [SUMMED, None])
def test_only_a_view_that_leaves_out_no_client_leads_or_wears_the_crown(tmp_path, rows, largest, planned):
    statement = Statement(rows, 1e-5, planned=planned)
    assert statement.lead.proven[1] == largest
    assert {own.who for own in statement.lead.rows} == {own.who for own in rows}
    runs = [leave(tmp_path / str(seed), [a_round(1)], a_result([a_round(1)], seed=seed), statement) for seed in (1, 2)]
    assert compare(runs).groups[0].lead.proven[1] == largest


def test_a_sum_that_a_client_is_not_in_does_not_lead_and_the_worst_of_all_clients_does():
    alone = [replace(row(adjacency, proven), who=ClientSet((name,), 1)) for adjacency, proven, name in (
        (Adjacency.CLIENT, 90.0, "a"), (Adjacency.CLIENT, 91.0, "b"), (Adjacency.RECORD_REPLACE, 2.0, "a"),
        (Adjacency.RECORD_REPLACE, 3.0, "b"))]  # fmt: skip
    statement = Statement((*alone, summed_row("a", 5, 0.5)), 1e-5, planned=SUMMED)
    assert statement.lead.proven == (90.0, 91.0)


def test_clients_with_nothing_in_common_have_an_infinite_figure_that_leads():
    groups = [
        (
            ClientSet((name,), 1),
            [(Release(name, "d", "upload", (Guarantee(seen_by, Adjacency.CLIENT, Pure(1.0), "t"),)), 1)],
        )
        for name, seen_by in (("a", summed(5)), ("b", shuffled(5)))
    ]
    lead = replace(Statement.of_groups(groups), planned=SUMMED).lead
    assert len(lead.rows) == len(lead.unproven) == 2


def test_what_is_spent_after_the_last_round_is_the_figure_that_leads():
    def release(*guarantees):
        own = (Guarantee(summed(n), Adjacency.CLIENT, Pure(epsilon), "t", 20) for n, epsilon in guarantees)
        return (Release("r", "d", "upload", tuple(own)),)

    for first in (((5, 8.0),), ((5, 8.0), (10, 0.75))):
        rounds = [RoundReleases(1, (release(*first), release((5, 8.0), (10, 0.5))), ([0], [1]))]
        stated = replace(history.statement(rounds, 2, delta=1e-5, title="t"), planned=SUMMED)
        (spent,) = spending(rounds, stated.lead, 2, delta=1e-5)
        assert spent.proven == stated.lead.proven[1] == pytest.approx(8.0 if len(first) == 1 else 0.75, rel=1e-3)


def test_what_was_planned_comes_back_from_json():
    planned = Statement((row(Adjacency.RECORD_REPLACE), row()), 1e-5, planned=RECORDS)
    again = Statement.from_json(planned.to_json())
    assert again.planned == RECORDS and again.lead.adjacency is Adjacency.RECORD_REPLACE
    old = planned.to_json()
    del old["planned"]
    assert Statement.from_json(old).planned is None


def test_the_statement_begins_with_its_own_figure_and_gives_each_proof_once():
    statement = replace(stated(rounds=10), planned=PlannedFor(Adjacency.CLIENT, "server"))
    text = to_text(statement)
    assert text.index(upper(statement.lead.proven[0])) < text.index("All figures")
    for basis in {basis for own in statement.rows for basis in own.basis}:
        assert text.count(basis) == 1
    assert text.startswith(lead_text(statement))
    assert set(lead_facts(statement)) >= {"protects", "from", "trusted", "by", "worth", "claims"}
    assert set(lead_facts(unprotected())) == {"about", "from", "trusted", "not proven", "worth"}


def test_every_epsilon_is_in_one_table_and_says_how_it_relates():
    result = a_result([a_round(1)], settings={"method.target": {"epsilon": 3.0, "delta": 1e-5}})
    lines = epsilon_lines(stated(), result)
    assert lines[0].relation == LEADS and [line.relation for line in lines].count(LEADS) == 1
    assert all(line.relation and len(line.cells) == len(HEAD) for line in lines)
    assert {line.kind for line in lines} == {"proven", "claimed", "limit", "spent", "target"}
    assert all(not line.guesses for line in lines if line.kind != "proven")


def test_a_claim_is_named_by_what_it_is_about_and_a_claim_of_the_lead_is_not_called_another():
    def claims(proven, claimed, adjacency=Adjacency.CLIENT):
        claim = Claim(claimed, 0.0, "Eq. 1", adjacency)
        guarantees = tuple(Guarantee(SERVER, own, Pure(epsilon), "t") for own, epsilon in proven.items())
        statement = Statement.of([Release("r", "d", "upload", guarantees, claim)], delta=0.0)
        return lead_facts(statement)["claims"]

    whole = {Adjacency.CLIENT: 2.0}
    both = {Adjacency.CLIENT: 459.0, Adjacency.COORDINATE: 1.0}
    assert "other" not in claims(whole, 2.0) and "this figure" in claims(whole, 2.0) and PROVEN in claims(whole, 2.0)
    assert "another figure" in claims(whole, 1.0) and NOT_SUPPORTED in claims(whole, 1.0)
    about = claims(both, 1.0, Adjacency.COORDINATE)
    assert CHANGES[Adjacency.COORDINATE] in about and "this figure" not in about and PROVEN in about


# --- pages -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", [stated(), stated((2.0, 4.0, 8.0)), unprotected(), stated(rounds=7)])
def test_one_epsilon_leads_a_page_and_all_others_are_folded_away(tmp_path, statement):
    rounds = [a_round(1), a_round(2)]
    preflight = ("One update: proven epsilon 0.94, over 20 rounds 4.38 at delta 1e-5.",)
    folder = leave(tmp_path / "run", rounds, a_result(rounds, preflight=preflight), statement)
    page = Page(report_page(folder))
    shown = outside_details(page.text)
    assert page.text.count("lead-epsilon") - page.text.count(".lead-epsilon") == 1
    (lead,) = re.findall(r'<div class="headline lead-epsilon(?: weak)?">(.*?)</div>', shown)
    rest = shown.replace(lead, "")
    numbers = {line.epsilon for line in epsilon_lines(statement, a_result(rounds)) if len(line.epsilon) > 2}
    assert numbers and not [number for number in numbers if standing_alone(number, rest)]
    assert "epsilon 0.94" not in shown and "epsilon 0.94" in page.text


def test_the_epsilon_stands_beside_the_accuracy(tmp_path):
    page = report_page(ordinary(tmp_path / "run"))
    (heads,) = re.findall(r'<div class="headlines">(.*?)</dl>', page, re.DOTALL)
    assert "accuracy on the test set" in heads and "lead-epsilon" in heads and "An attacker who sees" in heads


@given(st.floats(1e-12, 1e12))
def test_an_epsilon_is_written_with_three_digits_in_one_way(epsilon):
    shown = figure(epsilon)
    assert float(shown.replace(",", "")) == pytest.approx(epsilon, rel=6e-3)
    assert ("e" in shown) == (not 9.995e-4 <= epsilon < (1e7 if epsilon.is_integer() else 9.995e6))


def number(shown):
    return float(shown.replace(",", ""))


@given(st.floats(1e-12, 1e12))
def test_what_is_proven_is_rounded_up_and_what_is_audited_down(epsilon):
    assert epsilon * (1 - 2e-9) <= number(upper(epsilon)) <= epsilon * 1.0101
    assert epsilon * 0.9899 <= number(lower(epsilon)) <= epsilon * (1 + 2e-9)
    assert number(figure(epsilon)) in (number(upper(epsilon)), number(lower(epsilon)))


def test_rounding_knows_its_direction_and_forgives_a_billionth():
    assert [upper(value) for value in (1.0049, 20.04, 1.0000000001, 999.2, 1.001e-5, 9.991)] == [
        "1.01", "20.1", "1", "1,000", "1.01e-5", "10"]  # fmt: skip
    assert [lower(value) for value in (1.0099, 20.09, 0.9999999999, 9.999, 47_199.0)] == [
        "1", "20", "1", "9.99", "47,199"]  # fmt: skip


def test_every_place_rounds_a_proven_epsilon_up_and_an_audited_one_down(tmp_path):
    bound = AuditBound(2.6789, 0.95, 1000, "an attack", 1.009e-6)
    stated = Statement((replace(row(proven=20.0401, audited=bound), delta=1.001e-5),), 1.001e-5)
    rounds = [a_round(1)]
    folder = leave(tmp_path / "run", rounds, a_result(rounds, budgets=()), stated)
    compared = compare([folder])
    texts = [report_page(folder), to_text(stated), lead_text(stated), comparison_page(compared), to_markdown(compared)]
    for text in texts:
        assert "20.1" in text and "1.01e-5" in text
        assert not any(standing_alone(wrong, text) for wrong in ("20.0", "2.68", "1e-5"))
    assert all("2.67" in text for text in (texts[0], texts[1], texts[3]))


def test_a_limit_is_written_in_full():
    assert [figure(limit) for limit in (2345.0, 5.0, 1e6, 0.0)] == ["2,345", "5", "1,000,000", "0"]


@pytest.mark.parametrize("proven", [47_123.4, 4.3801, 1.81e7, 0.94012])
def test_the_same_number_is_written_the_same_way_on_page_statement_and_comparison(tmp_path, proven):
    statement = Statement((row(proven=proven),), 1e-5)
    rounds = [a_round(1)]
    folder = leave(tmp_path / "run", rounds, a_result(rounds, budgets=()), statement)
    compared = compare([folder])
    for text in (report_page(folder), to_text(statement), lead_text(statement), comparison_page(compared)):
        rest = text.replace(upper(proven), "")
        assert upper(proven) in text
        assert not any(standing_alone(f"{proven:{how}}", rest) for how in (".2e", ".4g", ".3f", ",.1f"))


def test_a_shuffler_of_unlike_sizes_is_named_with_both(tmp_path):
    rows = tuple(row(adversary=Adversary("shuffled", n), who=ClientSet((f"client {n}",), 1)) for n in (9, 100))
    assert "9 to 100 clients" in lead_facts(Statement(rows, 1e-5))["from"]

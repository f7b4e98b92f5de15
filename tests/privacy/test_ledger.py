"""The ledger's rules, its chain, and what it refuses."""

import itertools
import json
import math
import os
import random
import shutil
import sqlite3
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.privacy.ledgers import edit, edit_behind_the_triggers, key, pure

from sordino.errors import (
    BudgetExceeded,
    ConsentMissing,
    InvalidInput,
    LedgerDamaged,
    LedgerUnavailable,
    SordinoError,
)
from sordino.privacy import guarantee
from sordino.privacy.guarantee import (
    MODEL_READER,
    SERVER,
    Adjacency,
    Budget,
    Claim,
    Derived,
    Destination,
    GaussianLoss,
    Guarantee,
    Infinite,
    PoissonGaussian,
    Pure,
    Release,
    shuffled,
    summed,
)
from sordino.privacy.ledger import (
    BudgetSet,
    ConsentChanged,
    Consents,
    DisjointChanged,
    Ledger,
    MemoryLedger,
    Opened,
    Released,
    ReportKey,
    Standing,
    _Book,
    admit,
)

RECORD = Adjacency.RECORD_ADD_REMOVE


def unproven(name: str, what: str = "labels", claimed: Claim | None = None) -> Release:
    guarantee = Guarantee(SERVER, Adjacency.CLIENT, Infinite("sent as they are"), "none")
    return Release(name, "wards", what, (guarantee,), claimed)


def derived(name: str, *sources: str) -> Release:
    return Release(name, "wards", "model", (), composition=Derived(sources))


# --- the budget


def test_ten_releases_of_a_tenth_fit_a_budget_of_one_and_the_eleventh_is_refused(ledger: Ledger) -> None:
    for i in range(10):
        ledger.record(key(i), pure(f"r{i}", 0.1), b"report")
    before = ledger.entries()
    with pytest.raises(BudgetExceeded) as refusal:
        ledger.record(key(10), pure("r10", 0.1), b"report")
    assert ledger.entries() == before
    assert ledger.replay(key(10)) is None
    for words in ("'wards'", "'update' asks for epsilon 0.1", "1 of 1 is spent", "0 is left", "sordino ledger budget"):
        assert words in str(refusal.value)
    for words in ("proven", "against server", "adjacency client"):
        assert words in str(refusal.value)


def test_a_refused_release_leaves_room_for_a_smaller_one(ledger: Ledger) -> None:
    ledger.record(key(0), pure("a", 0.8), b"1")
    with pytest.raises(BudgetExceeded):
        ledger.record(key(1), pure("b", 0.3), b"2")
    ledger.record(key(1), pure("c", 0.2), b"3")
    assert ledger.standing("wards").left == 0


def test_budgets_hold_across_federations_and_restarts(path: Path, ledger: Ledger) -> None:
    ledger.record(key(0, federation="north"), pure("a", 0.7), b"1")
    ledger.close()
    with Ledger.open(path) as again, pytest.raises(BudgetExceeded):
        again.record(key(0, federation="south"), pure("b", 0.7), b"2")


def test_without_a_budget_nothing_leaves(ledger: Ledger) -> None:
    with pytest.raises(BudgetExceeded, match=r"'beds'.*no budget"):
        ledger.record(key(0, dataset="beds"), pure("a", 0.1, "beds"), b"1")


def test_gaussian_releases_are_counted_by_the_filter_and_not_by_adding_epsilons(path: Path) -> None:
    with Ledger.create(path) as ledger:
        ledger.set_budget("wards", Budget(limit=1.0, delta=1e-5))
        guarantee = Guarantee(SERVER, Adjacency.CLIENT, GaussianLoss(0.05), "by hand")
        for i in range(20):
            ledger.record(key(i), Release(f"r{i}", "wards", "update", (guarantee,)), b"")
        # mu = 0.05 sqrt(20) = 0.2236 in all; epsilons of 20 separate releases would add up to more than 3
        assert 0.75 < ledger.standing("wards").spent < 1.0


def test_raising_a_budget_lets_more_leave_and_stays_visible(path: Path, ledger: Ledger) -> None:
    ledger.record(key(0), pure("a", 1.0), b"1")
    ledger.set_budget("wards", Budget(limit=2.0))
    ledger.record(key(1), pure("b", 1.0), b"2")
    ledger.set_budget("wards", Budget(limit=0.5))
    assert ledger.standing("wards").spent == 2.0
    assert ledger.standing("wards").left == 0.0
    with pytest.raises(BudgetExceeded):
        ledger.record(key(2), pure("c", 0.1), b"3")
    limits = [entry.event.budget.limit for entry in ledger.entries() if isinstance(entry.event, BudgetSet)]
    assert limits == [1.0, 2.0, 0.5]


def test_a_change_of_terms_counts_earlier_releases_anew(ledger: Ledger) -> None:
    both = (
        Guarantee(SERVER, Adjacency.CLIENT, Pure(0.5), "by hand"),
        Guarantee(SERVER, Adjacency.LABEL, Pure(0.25), "by hand"),
    )
    ledger.record(key(0), Release("a", "wards", "update", both), b"1")
    assert ledger.standing("wards").spent == 0.5
    ledger.set_budget("wards", Budget(limit=1.0, adjacency=Adjacency.LABEL))
    assert ledger.standing("wards").spent == 0.25


def test_a_change_of_terms_may_not_forget_a_spend(ledger: Ledger) -> None:
    ledger.set_budget("wards", Budget(limit=1.0, adjacency=Adjacency.LABEL))
    guarantee = Guarantee(SERVER, Adjacency.LABEL, Pure(0.5), "by hand")
    ledger.record(key(0), Release("a", "wards", "update", (guarantee,)), b"1")
    with pytest.raises(ConsentMissing, match=r"'update'.*finite"):
        ledger.set_budget("wards", Budget(limit=9.0, adjacency=Adjacency.CLIENT))
    ledger.set_consent("wards", "update", granted=True)
    ledger.set_budget("wards", Budget(limit=9.0, adjacency=Adjacency.CLIENT))
    assert (ledger.standing("wards").spent, ledger.standing("wards").unprotected) == (0.0, 1)
    ledger.set_budget("wards", Budget(limit=1.0, adjacency=Adjacency.LABEL))
    assert (ledger.standing("wards").spent, ledger.standing("wards").unprotected) == (0.5, 0)


# --- consent


def test_an_unproven_release_needs_consent_and_stays_out_of_the_proven_sum(ledger: Ledger) -> None:
    with pytest.raises(ConsentMissing, match="--unproven 'labels'"):
        ledger.record(key(0), unproven("a"), b"1")
    assert ledger.replay(key(0)) is None
    ledger.set_consent("wards", "labels", granted=True)
    entry = ledger.record(key(0), unproven("a"), b"1")
    assert isinstance(entry.event, Released)
    assert entry.event.unprotected == ("a",)
    standing = ledger.standing("wards")
    assert (standing.spent, standing.releases, standing.unprotected) == (0.0, 1, 1)
    with pytest.raises(ConsentMissing):
        ledger.record(key(1), unproven("b", what="sample counts"), b"2")


def test_consent_holds_for_one_data_set_and_can_be_withdrawn(ledger: Ledger) -> None:
    ledger.set_budget("beds", Budget(limit=1.0))
    ledger.set_consent("beds", "labels", granted=True)
    with pytest.raises(ConsentMissing):
        ledger.record(key(0), unproven("a"), b"1")
    ledger.set_consent("wards", "labels", granted=True)
    ledger.record(key(0), unproven("a"), b"1")
    ledger.set_consent("wards", "labels", granted=False)
    with pytest.raises(ConsentMissing):
        ledger.record(key(1), unproven("b"), b"2")
    assert ledger.standing("wards").unprotected == 1


def test_a_guarantee_that_trusts_others_is_no_proof_against_the_server(ledger: Ledger) -> None:
    guarantee = Guarantee(summed(10), Adjacency.CLIENT, Pure(0.1), "secure sum", 20)
    with pytest.raises(ConsentMissing):
        ledger.record(key(0), Release("a", "wards", "update", (guarantee,)), b"1")


def test_a_gaussian_release_under_a_budget_without_delta_names_the_remedy(ledger: Ledger) -> None:
    guarantee = Guarantee(SERVER, Adjacency.CLIENT, GaussianLoss(0.1), "by hand")
    with pytest.raises(ConsentMissing, match="delta > 0"):
        ledger.record(key(0), Release("a", "wards", "update", (guarantee,)), b"1")


def test_consent_to_unproven_releases_does_not_let_a_proven_one_exceed_the_budget(ledger: Ledger) -> None:
    ledger.set_consent("wards", "update", granted=True)
    with pytest.raises(BudgetExceeded):
        ledger.record(key(0), pure("a", 1.5), b"1")


def test_claimed_budgets_need_consent_and_count_claims(path: Path) -> None:
    claim = Claim(0.4, 0.0, "eps = 0.4")
    with Ledger.create(path) as ledger:
        with pytest.raises(ConsentMissing, match="--claimed"):
            ledger.set_budget("wards", Budget(limit=1.0, basis="claimed"))
        ledger.set_consent("wards", None, granted=True)
        ledger.set_budget("wards", Budget(limit=1.0, basis="claimed"))
        ledger.record(key(0), unproven("a", claimed=claim), b"1")
        ledger.record(key(1), unproven("b", claimed=claim), b"2")
        assert ledger.standing("wards").spent == 0.8
        with pytest.raises(BudgetExceeded, match="claimed, against server"):
            ledger.record(key(2), unproven("c", claimed=claim), b"3")
        with pytest.raises(ConsentMissing):
            ledger.record(key(2), unproven("no claim"), b"3")
        ledger.set_consent("wards", None, granted=False)
        with pytest.raises(ConsentMissing, match="claimed epsilons"):
            ledger.record(key(2), unproven("d", claimed=Claim(0.1, 0.0, "eps = 0.1")), b"3")


def test_a_claimed_budget_is_not_bypassed_by_renaming_the_federation(path: Path) -> None:
    claim = Claim(0.5, 0.0, "eps = 0.5 for all rounds", covers="schedule")
    with Ledger.create(path) as ledger:
        ledger.set_consent("wards", None, granted=True)
        ledger.set_budget("wards", Budget(limit=1.0, basis="claimed"))
        for federation in ("a", "b"):
            for round in range(10):
                where = ReportKey("wards", federation, round, "ab")
                ledger.record(where, unproven(f"{federation}{round}", claimed=claim), b"1")
        assert ledger.standing("wards").spent == 1.0
        with pytest.raises(BudgetExceeded):
            ledger.record(ReportKey("wards", "c", 0, "ab"), unproven("c0", claimed=claim), b"1")
    with Ledger.open(path) as again:  # the same from the file
        assert again.standing("wards").spent == 1.0


def test_a_claim_about_a_shuffler_pays_nothing_from_a_budget_against_the_server(path: Path) -> None:
    claim = Claim(0.5, 0.0, "eps", adversary=shuffled(100))
    with Ledger.create(path) as ledger:
        ledger.set_consent("wards", None, granted=True)
        ledger.set_budget("wards", Budget(limit=1.0, basis="claimed"))
        with pytest.raises(ConsentMissing):
            ledger.record(key(0), unproven("a", claimed=claim), b"1")


def test_decisions_of_the_owner_are_entries_of_the_chain(ledger: Ledger) -> None:
    ledger.set_consent("wards", "labels", granted=True)
    ledger.set_consent("wards", None, granted=False)
    events = [entry.event for entry in ledger.entries()]
    assert isinstance(events[0], Opened)
    assert events[1:] == [
        BudgetSet("wards", Budget(limit=1.0)),
        ConsentChanged("wards", "labels", True),
        ConsentChanged("wards", None, False),
    ]


# --- several names


def test_two_names_in_one_ledger_share_one_budget(path: Path, ledger: Ledger) -> None:
    ledger.set_budget("beds", Budget(limit=1.0))
    ledger.record(key(0), pure("a", 0.7), b"1")
    with pytest.raises(BudgetExceeded):
        ledger.record(key(1, dataset="beds"), pure("b", 0.7, "beds"), b"2")
    ledger.record(key(1, dataset="beds"), pure("c", 0.3, "beds"), b"3")
    for each in (ledger, Ledger.open(path)):
        with each:
            assert [each.standing(name).spent for name in ("beds", "wards")] == [1.0, 1.0]
            assert {len(each.charged_reports(name)) for name in ("beds", "wards")} == {2}


def test_a_name_of_its_own_opens_at_what_left_under_the_others(ledger: Ledger) -> None:
    ledger.record(key(0), pure("a", 0.75), b"1")
    ledger.set_budget("renamed", Budget(limit=2.0))
    assert ledger.standing("renamed").spent == 0.75
    with pytest.raises(BudgetExceeded, match="data set 'wards', which has one account with 'renamed'"):
        ledger.record(key(1, dataset="renamed"), pure("b", 0.5, "renamed"), b"2")  # fits its own budget alone
    ledger.set_budget("wards", Budget(limit=2.0))
    ledger.record(key(1, dataset="renamed"), pure("b", 0.5, "renamed"), b"2")
    assert ledger.standing("wards").spent == ledger.standing("renamed").spent == 1.25


def test_each_name_must_agree_to_what_is_unproven_in_its_own_terms(ledger: Ledger) -> None:
    ledger.set_budget("beds", Budget(limit=1.0, adjacency=Adjacency.LABEL))
    labels = (Guarantee(SERVER, Adjacency.LABEL, Pure(0.5), "by hand"),)
    with pytest.raises(ConsentMissing, match="data set 'wards'"):
        ledger.record(key(0, dataset="beds"), Release("a", "beds", "labels", labels), b"1")
    ledger.set_consent("wards", "labels", granted=True)
    ledger.record(key(0, dataset="beds"), Release("a", "beds", "labels", labels), b"1")
    beds, wards = ledger.standing("beds"), ledger.standing("wards")
    assert (beds.spent, beds.unprotected, wards.spent, wards.unprotected) == (0.5, 0, 0.0, 1)


def test_second_budgets_of_all_names_are_charged(two_budgets: Ledger) -> None:
    two_budgets.set_budget("beds", Budget(limit=10.0))
    release = replace(in_a_sum("a", 2.5, 0.5), dataset="beds")
    two_budgets.record(key(0, dataset="beds"), release, b"1", pinned=True)
    assert spent(two_budgets) == (2.5, 0.5)
    more = replace(in_a_sum("b", 1, 0.75), dataset="beds")
    with pytest.raises(BudgetExceeded, match=r"data set 'wards'.*summed"):
        two_budgets.record(key(1, dataset="beds"), more, b"2", pinned=True)
    two_budgets.record(key(1, dataset="beds"), more, b"2")
    assert spent(two_budgets) == (3.5, 0.5)


def test_a_ledger_with_two_names_from_before_opens_at_the_full_charge(
    path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:  # as it was: an account for each name alone
        before.setattr(_Book, "counts", lambda self, dataset, other, sequence: dataset == other)
        for name in ("wards", "beds"):
            ledger.set_budget(name, Budget(limit=1.0))
            ledger.record(key(0, dataset=name), pure(name, 0.75, name), b"1")
        assert ledger.standing("wards").spent == 0.75
    with Ledger.open(path) as again:
        assert again.verify().sequence == 6
        for name in ("wards", "beds"):
            assert (again.standing(name).spent, again.standing(name).left) == (1.5, 0.0)
            assert again.replay(key(0, dataset=name)) == b"1"
            with pytest.raises(BudgetExceeded):
                again.record(key(1, dataset=name), pure("more", 0.1, name), b"2")


def test_what_an_old_ledger_cannot_count_for_a_name_stops_that_name(
    path: Path, ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as before:
        before.setattr(_Book, "counts", lambda self, dataset, other, sequence: dataset == other)
        ledger.set_budget("beds", Budget(limit=1.0, adjacency=Adjacency.LABEL))
        labels = (Guarantee(SERVER, Adjacency.LABEL, Pure(0.5), "by hand"),)
        ledger.record(key(0, dataset="beds"), Release("a", "beds", "labels", labels), b"1")
    with Ledger.open(path) as again:
        assert again.standing("wards").spent == math.inf
        with pytest.raises(BudgetExceeded):
            again.record(key(1), pure("b", 0.1), b"2")
        again.set_consent("wards", "labels", granted=True)
        again.set_budget("wards", Budget(limit=1.0))
        assert (again.standing("wards").spent, again.standing("wards").unprotected) == (0.0, 1)


def test_names_declared_disjoint_have_accounts_of_their_own_from_then_on(path: Path, ledger: Ledger) -> None:
    ledger.set_budget("beds", Budget(limit=1.0))
    first = ledger.record(key(0), pure("a", 0.25), b"1").sequence
    ledger.set_disjoint("beds", "wards", declared=True)
    ledger.record(key(1), pure("b", 0.75), b"2")
    ledger.record(key(1, dataset="beds"), pure("c", 0.5, "beds"), b"3")
    assert (ledger.standing("wards").spent, ledger.standing("beds").spent) == (1.0, 0.75)
    assert ledger.disjoint_from("wards") == {"beds": first} and ledger.disjoint_from("beds") == {"wards": first}
    ledger.compact(timedelta(0), unacknowledged=True)
    with Ledger.open(path) as again:
        assert again.standings() == ledger.standings()
        again.set_disjoint("wards", "beds", declared=False)
        assert (again.standing("wards").spent, again.standing("beds").spent) == (1.5, 1.5)
        assert again.disjoint_from("beds") == {}
    assert isinstance(ledger.entries()[-1].event, DisjointChanged)


def test_a_declaration_is_left_to_a_sordino_that_knows_it(path: Path, ledger: Ledger) -> None:
    ledger.set_disjoint("a", "b", declared=True)
    ledger.record(key(0), pure("a", 0.25), b"1")
    ledger.compact(timedelta(0), unacknowledged=True)
    with closing(sqlite3.connect(path)) as file:
        assert file.execute("PRAGMA user_version").fetchone() == (3,)
    with pytest.raises(InvalidInput):
        ledger.set_disjoint("a", "a", declared=True)


_NAMES = st.sampled_from(["beds", "rooms", "wards"])


@pytest.mark.process
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("budget"), _NAMES, st.sampled_from([1.0, 2.0, 5.0])),
            st.tuples(st.just("release"), _NAMES, st.sampled_from([0.25, 0.5, 1.0])),
            st.tuples(st.just("disjoint"), _NAMES, _NAMES, st.one_of(st.none(), st.integers(0, 20))),
            st.tuples(st.just("withdrawn"), _NAMES, _NAMES),
        ),
        max_size=25,
    )
)
def test_no_name_is_charged_less_than_all_that_left_under_names_not_declared_disjoint(
    steps: list[tuple[Any, ...]],
) -> None:
    limits, left, disjoint = dict[str, float](), list[tuple[int, str, float]](), dict[frozenset[str], int]()

    def charge(name: str, least: bool = False) -> float:
        """The sum of what counts for a name; the least that any rule may count."""
        return sum(
            epsilon
            for sequence, other, epsilon in left
            if (pair := frozenset((name, other))) not in disjoint or (not least and sequence <= disjoint[pair])
        )

    with tempfile.TemporaryDirectory() as folder, Ledger.create(Path(folder) / "ledger") as ledger:
        for i, (kind, name, *more) in enumerate(steps):
            last = ledger.verify().sequence
            if kind == "budget":
                ledger.set_budget(name, Budget(limit=more[0]))
                limits[name] = more[0]
            elif kind == "release":
                charged = [each for each in limits if frozenset((each, name)) not in disjoint]
                charged += [each for each in limits if last < disjoint.get(frozenset((each, name)), -1)]
                if name in limits and all(charge(each) + more[0] <= limits[each] for each in charged):
                    ledger.record(key(i, dataset=name), pure(str(i), more[0], name), b"")
                    left.append((last + 1, name, more[0]))
                else:
                    with pytest.raises(BudgetExceeded):
                        ledger.record(key(i, dataset=name), pure(str(i), more[0], name), b"")
                    assert ledger.verify().sequence == last
            elif name != more[0]:
                after = more[1] if kind == "disjoint" else None
                ledger.set_disjoint(name, more[0], declared=kind == "disjoint", after=after)
                disjoint.pop(frozenset((name, more[0])), None)
                if kind == "disjoint":
                    disjoint[frozenset((name, more[0]))] = last if after is None else after
            for each in limits:
                assert charge(each, least=True) <= ledger.standing(each).spent == charge(each)
        with Ledger.open(ledger.path) as again:
            assert again.standings() == ledger.standings()


# --- two budgets


def in_a_sum(name: str, server: float, sum: float, honest: int = 7) -> Release:
    """Its noise hides less from a server that sees it alone than from one that sees a sum."""
    return Release(
        name,
        "wards",
        "update",
        (
            Guarantee(SERVER, Adjacency.CLIENT, Pure(server), "alone"),
            Guarantee(summed(honest), Adjacency.CLIENT, Pure(sum), "in the sum", 20),
        ),
    )


@pytest.fixture
def two_budgets(path: Path) -> Iterator[Ledger]:
    with Ledger.create(path) as ledger:
        ledger.set_budget("wards", Budget(limit=10.0))
        ledger.set_summed_budget("wards", Budget(limit=1.0, adversary=summed(7)))
        yield ledger


def spent(ledger: Ledger) -> tuple[float, float]:
    standing = ledger.standing("wards")
    assert standing.summed is not None
    return standing.spent, standing.summed.spent


def test_each_release_in_a_sum_is_charged_to_both_budgets_and_refused_by_either(two_budgets: Ledger) -> None:
    two_budgets.record(key(0), in_a_sum("a", 2.95, 0.5), b"1", pinned=True)
    assert spent(two_budgets) == (2.95, 0.5)
    with pytest.raises(BudgetExceeded, match=r"against summed\(7\)"):
        two_budgets.record(key(1), in_a_sum("b", 2.95, 0.6), b"2", pinned=True)
    with pytest.raises(BudgetExceeded, match="against server"):
        two_budgets.record(key(1), in_a_sum("b", 7.1, 0.1), b"2", pinned=True)
    assert spent(two_budgets) == (2.95, 0.5)
    two_budgets.record(key(1), in_a_sum("b", 7.05, 0.5), b"2", pinned=True)
    with Ledger.open(two_budgets.path) as again:  # the same from the file
        assert spent(again) == spent(two_budgets) == (10.0, 1.0)


def test_one_budget_alone_refuses_what_costs_more_against_the_server(path: Path) -> None:
    with Ledger.create(path) as ledger:
        ledger.set_budget("wards", Budget(limit=1.0))
        with pytest.raises(BudgetExceeded):
            ledger.record(key(0), in_a_sum("a", 2.95, 1.0), b"1", pinned=True)


def test_without_pinned_keys_the_first_budget_alone_decides(two_budgets: Ledger) -> None:
    two_budgets.record(key(0), in_a_sum("a", 2.95, 5.0), b"1")
    assert spent(two_budgets) == (2.95, 0.0)


@pytest.mark.parametrize("honest", [1, 6, 7, 8, 50])
def test_a_guarantee_that_needs_more_honest_clients_than_the_owner_counts_on_does_not_pay(
    two_budgets: Ledger, honest: int
) -> None:
    release = in_a_sum("a", 0.9, 0.25, honest)
    two_budgets.record(key(0), release, b"1", pinned=True)
    assert spent(two_budgets) == (0.9, 0.25 if honest <= 7 else 0.9)  # what holds against the server always does


def test_a_second_budget_counts_what_left_before_it_and_stays_when_the_first_one_changes(ledger: Ledger) -> None:
    ledger.set_budget("wards", Budget(limit=20.0))
    ledger.record(key(0), in_a_sum("a", 3.0, 0.25), b"1", pinned=True)
    ledger.record(key(1), in_a_sum("b", 3.0, 0.25), b"2")
    ledger.set_summed_budget("wards", Budget(limit=1.0, adversary=summed(9)))
    assert spent(ledger) == (6.0, 0.25)
    ledger.set_budget("wards", Budget(limit=30.0))
    assert spent(ledger) == (6.0, 0.25)
    ledger.set_summed_budget("wards", None)
    assert ledger.standing("wards").summed is None
    with Ledger.open(ledger.path) as again:
        assert again.standing("wards").summed is None and again.standing("wards").spent == 6.0


def test_entries_that_are_not_about_sums_are_written_as_they_were_before(ledger: Ledger) -> None:
    ledger.record(key(0), pure("a", 0.5), b"1")
    ledger.set_budget("wards", Budget(limit=2.0))
    ledger.close()
    with closing(sqlite3.connect(ledger.path)) as file:
        found = [(kind, set(json.loads(body))) for kind, body in file.execute("SELECT kind, body FROM entries")]
    budget = {"type", "limit", "delta", "basis", "adjacency", "adversary"}
    assert found == [
        ("opened", {"ledger"}),
        ("budget", budget),
        ("release", {"releases", "unprotected", "report_sha256", "salt"}),
        ("budget", budget),
    ]


def shared_noise(modulus: int | None) -> Release:
    """A silo's noise of 10 times what a record adds, and that of seven silos in their sum."""
    alone, together = (PoissonGaussian(1.0, 10.0 * math.sqrt(silos), 1) for silos in (1, 7))
    return Release(
        "a", "wards", "gradient",
        (Guarantee(SERVER, RECORD, alone, "one silo's"), Guarantee(summed(7), RECORD, together, "seven's", modulus)),
    )  # fmt: skip


def test_a_line_of_noise_that_was_shared_in_a_sum_without_a_modulus_counts_as_one_silos_noise(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As versions wrote it that took reports modulo 2^m and their sum in Z; the chain still fits every byte."""
    second = Budget(limit=9.0, delta=1e-5, adjacency=RECORD, adversary=summed(7))
    with Ledger.create(path) as ledger, monkeypatch.context() as before:
        before.setattr(guarantee, "_without_false_sums", lambda given: given)
        ledger.set_budget("wards", replace(second, adversary=SERVER))
        ledger.set_summed_budget("wards", second)
        ledger.record(key(0), shared_noise(None), b"1", pinned=True)
        low = spent(ledger)[1]
    assert b"modulus" not in path.read_bytes()
    with Ledger.open(path) as again:
        again.verify()
        server, sums = spent(again)
        assert sums == server > 2 * low, "at its full charge"
        assert again.standing("wards").unprotected == 0
        again.record(key(1), replace(shared_noise(20), id="b"), b"2", pinned=True)
        assert server < spent(again)[1] < spent(again)[0]


def test_a_false_figure_in_a_sum_is_charged_where_the_report_alone_has_none_whatever_its_owner_consented_to(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The consent was to a report that the server sees, not to the sum: the second budget never opens as empty."""
    second = Budget(limit=9.0, delta=1e-5, adjacency=RECORD, adversary=summed(7))
    alone = Guarantee(SERVER, RECORD, Infinite("too faint"), "none")

    def faint(name: str, modulus: int | None) -> Release:
        return replace(shared_noise(modulus), id=name, guarantees=(alone, shared_noise(modulus).guarantees[1]))

    with Ledger.create(path) as ledger, monkeypatch.context() as before:
        before.setattr(guarantee, "_without_false_sums", lambda given: given)
        ledger.set_budget("wards", replace(second, adversary=SERVER))
        ledger.set_summed_budget("wards", second)
        ledger.set_consent("wards", "gradient", granted=True)
        ledger.record(key(0), faint("a", None), b"1", pinned=True)
        assert 0 < spent(ledger)[1] < 9
    with Ledger.open(path) as again:
        assert spent(again) == (0, math.inf)
        with pytest.raises(BudgetExceeded):
            again.record(key(1), faint("b", 20), b"2", pinned=True)
        again.set_summed_budget("wards", replace(second, limit=20.0))
        assert spent(again)[1] == math.inf, "recounted, too"
        again.set_summed_budget("wards", None)
        again.record(key(1), faint("b", 20), b"2", pinned=True)  # what the owner consented to goes on without it


def test_whoever_knows_heads_cannot_try_reports_until_one_fits(tmp_path: Path) -> None:
    """Two ledgers with one identity, and the same report in the same second: their heads differ all the same."""
    with Ledger.create(tmp_path / "one") as ledger:
        ledger.set_budget("wards", Budget(limit=2.0))
    shutil.copy(tmp_path / "one", tmp_path / "other")
    heads, salts = set(), set()
    for name in ("one", "other"):
        with Ledger.open(tmp_path / name) as ledger:
            ledger.record(key(0), pure("a", 0.5), b"1")
            event = ledger.verify().event
            assert isinstance(event, Released)
            heads.add(ledger.head())
            salts.add(event.salt)
    assert len(heads) == len(salts) == 2 and all(len(salt) == 32 for salt in salts)


def test_a_second_budget_is_one_against_sums_and_counts_what_is_proven(ledger: Ledger) -> None:
    for budget in (Budget(1.0), Budget(1.0, adversary=MODEL_READER), Budget(1.0, basis="claimed", adversary=summed(3))):
        with pytest.raises(InvalidInput, match=r"summed\(N\)"):
            ledger.set_summed_budget("wards", budget)


def test_what_has_no_figure_in_the_second_budget_needs_consent(two_budgets: Ledger) -> None:
    two_budgets.set_budget("wards", Budget(limit=10.0, delta=1e-5))
    release = Release("a", "wards", "update", (Guarantee(SERVER, Adjacency.CLIENT, GaussianLoss(0.1), "by hand"),))
    with pytest.raises(ConsentMissing, match=r"against summed\(7\)"):
        two_budgets.record(key(0), release, b"1", pinned=True)
    two_budgets.set_consent("wards", "update", granted=True)
    two_budgets.record(key(0), release, b"1", pinned=True)
    assert spent(two_budgets)[0] > 0 and spent(two_budgets)[1] == 0
    assert two_budgets.standing("wards").unprotected == 0  # the first budget's figure covers it


# --- derived releases and identities


def test_what_is_computed_from_earlier_releases_costs_nothing(ledger: Ledger) -> None:
    ledger.record(key(0), pure("features", 1.0), b"1")
    for i in range(1, 4):
        ledger.record(key(i), derived(f"model {i}", "features"), b"2")
    assert (ledger.standing("wards").spent, ledger.standing("wards").releases) == (1.0, 4)


def test_derived_from_what_was_never_recorded_is_refused(ledger: Ledger) -> None:
    with pytest.raises(InvalidInput, match=r"'features'.*not recorded"):
        ledger.record(key(0), derived("model", "features"), b"1")
    assert ledger.replay(key(0)) is None


def test_a_release_id_is_used_once(ledger: Ledger) -> None:
    ledger.record(key(0), pure("a", 0.1), b"1")
    with pytest.raises(InvalidInput, match="fresh draw"):
        ledger.record(key(1), pure("a", 0.1), b"2")


def test_a_report_of_several_releases_is_recorded_whole_or_not_at_all(ledger: Ledger) -> None:
    with pytest.raises(BudgetExceeded):
        ledger.record(key(0), [pure("a", 0.6), pure("b", 0.6)], b"1")
    with pytest.raises(ConsentMissing):
        ledger.record(key(0), [pure("a", 0.6), unproven("b")], b"1")
    assert ledger.standing("wards").releases == 0
    ledger.record(key(0), [pure("a", 0.6), derived("b", "a"), pure("c", 0.4, what="count")], b"1")
    assert (ledger.standing("wards").spent, ledger.standing("wards").releases) == (1.0, 3)


# --- one key, one byte string


def test_asking_again_gives_the_same_bytes_and_draws_nothing(path: Path, ledger: Ledger) -> None:
    first = ledger.release_once(key(0), lambda: (pure("a", 0.5), os.urandom(8)))

    def never() -> tuple[Release, bytes]:
        raise AssertionError("drawn twice")

    assert ledger.release_once(key(0), never) == first == ledger.replay(key(0))
    ledger.close()
    with Ledger.open(path) as again:
        assert again.release_once(key(0), never) == first
        assert again.standing("wards").spent == 0.5


def test_a_different_plan_for_the_same_round_is_a_new_spend(ledger: Ledger) -> None:
    ledger.release_once(key(0, plan="aa"), lambda: (pure("a", 0.5), b"1"))
    assert ledger.release_once(key(0, plan="bb"), lambda: (pure("b", 0.5), b"2")) == b"2"
    with pytest.raises(BudgetExceeded):
        ledger.release_once(key(0, plan="cc"), lambda: (pure("c", 0.5), b"3"))
    assert ledger.replay(key(0, plan="cc")) is None


def test_recording_the_same_again_gives_the_first_entry_and_other_bytes_are_refused(ledger: Ledger) -> None:
    entry = ledger.record(key(0), pure("a", 0.5), b"1")
    assert ledger.record(key(0), pure("a", 0.5), b"1") == entry
    for other in ((pure("a", 0.5), b"2"), (pure("b", 0.5), b"1")):
        with pytest.raises(InvalidInput, match="replay"):
            ledger.record(key(0), *other)
    assert ledger.standing("wards").spent == 0.5


def test_a_draw_that_fails_or_uses_the_ledger_records_nothing(ledger: Ledger) -> None:
    with pytest.raises(ZeroDivisionError):
        ledger.release_once(key(0), lambda: (pure("a", 1 / 0), b""))
    with pytest.raises(InvalidInput, match="draw must not"):
        ledger.release_once(key(0), lambda: (pure("a", ledger.standing("wards").left), b""))
    assert ledger.release_once(key(0), lambda: (pure("a", 1.0), b"ok")) == b"ok"


def test_looking_up_drawing_and_recording_are_one_transaction(ledger: Ledger) -> None:
    """Between the look-up and the record nobody else may draw for the same key."""
    steps: list[str] = []

    def draw() -> tuple[Release, bytes]:
        steps.append("draw")
        return pure("a", 0.5), b"1"

    ledger._db.connection.set_trace_callback(lambda statement: steps.append(statement.split(" (")[0]))
    ledger.release_once(key(0), draw)
    ledger._db.connection.set_trace_callback(None)
    marks = [s for s in steps if s in ("BEGIN", "BEGIN IMMEDIATE", "draw", "INSERT INTO entries", "COMMIT")]
    marks = [mark for mark, _ in itertools.groupby(marks)]  # SQLite names an INSERT again for its trigger
    assert marks == ["BEGIN", "COMMIT", "BEGIN IMMEDIATE", "draw", "INSERT INTO entries", "COMMIT"]


def test_threads_share_a_ledger(ledger: Ledger) -> None:
    answers: list[bytes] = []

    def ask() -> None:
        answers.extend(ledger.release_once(key(i), lambda i=i: (pure(f"r{i}", 0.2), os.urandom(8))) for i in range(5))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 20
    assert len(set(answers)) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"dataset": ""},
        {"dataset": " wards"},
        {"federation": "\x1b[2J"},
        {"federation": None},
        {"round": -1},
        {"round": True},
        {"round": 2**63},
        {"round": 1.0},
        {"plan_hash": ""},
        {"plan_hash": b""},
        {"plan_hash": "not hexadecimal"},
        {"plan_hash": 7},
    ],
)
def test_a_key_of_the_wrong_kind_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidInput):
        ReportKey(**{"dataset": "wards", "federation": "north", "round": 1, "plan_hash": "ab", **wrong})  # type: ignore[arg-type]


def test_plan_hashes_are_the_same_as_bytes_and_as_digits_of_either_case() -> None:
    assert key(1, plan="AB01") == key(1, plan="ab01") == ReportKey("wards", "north", 1, b"\xab\x01")


@pytest.mark.parametrize(
    ("releases", "report"),
    [
        (pure("a", 0.1), "text"),
        (pure("a", 0.1), None),
        ([], b"1"),
        (["a"], b"1"),
        (pure("a", 0.1, dataset="beds"), b"1"),
        (pure("a\n", 0.1), b"1"),
        (pure("a", 0.1, what="\x1b[31mred"), b"1"),
        ([pure("a", 0.1), pure("a", 0.1)], b"1"),
    ],
)
def test_a_report_of_the_wrong_kind_is_refused(ledger: Ledger, releases: object, report: object) -> None:
    with pytest.raises(InvalidInput):
        ledger.record(key(0), releases, report)  # type: ignore[arg-type]
    assert ledger.replay(key(0)) is None


def test_an_empty_report_is_a_report(ledger: Ledger) -> None:
    ledger.record(key(0), pure("a", 0.1), b"")
    assert ledger.replay(key(0)) == b""


@pytest.mark.process
@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.integers(0, 7),
            st.sampled_from(["0.1", "0.25", "0.3", "0.000001", "1.5"]),
            st.sampled_from(["pure", "pure", "unproven", "derived"]),
        ),
        max_size=25,
    ),
    st.booleans(),
)
def test_any_sequence_stays_within_the_limit_replays_alike_and_agrees_with_the_simulated_ledger(
    steps: list[tuple[int, str, str]], consent: bool
) -> None:
    """A model with exact decimals says what must be accepted; the file and the simulation must both agree with it."""
    spent, sent = Fraction(0), dict[int, bytes]()
    simulated = MemoryLedger([Budget(limit=1.0)], Consents(frozenset({"labels"} if consent else ())))
    with tempfile.TemporaryDirectory() as folder, Ledger.create(Path(folder) / "ledger") as ledger:
        ledger.set_budget("wards", Budget(limit=1.0))
        if consent:
            ledger.set_consent("wards", "labels", granted=True)
        for i, (round, epsilon, kind) in enumerate(steps):
            release = {"pure": pure(f"r{i}", float(epsilon)), "unproven": unproven(f"r{i}")}.get(kind)
            release = release or derived(f"r{i}", "r0")
            known_source = bool(sent) and any(b == b"0" for b in sent.values())
            may = {"pure": spent + Fraction(epsilon) <= 1, "unproven": consent, "derived": known_source}[kind]
            if round in sent:
                assert ledger.release_once(key(round), lambda: (pure("x", 0.0), b"other")) == sent[round]
                continue
            assert (simulated.record({0: release}) == {}) is may
            if may:
                sent[round] = ledger.release_once(key(round), lambda r=release, i=i: (r, str(i).encode()))
                spent += Fraction(epsilon) if kind == "pure" else 0
            else:
                with pytest.raises((BudgetExceeded, ConsentMissing, InvalidInput)):
                    ledger.record(key(round), release, b"refused")
        assert ledger.standing("wards").spent == float(spent) <= 1.0
        assert ledger.standing("wards") == simulated.standing(0)
        assert {round: ledger.replay(key(round)) for round in sent} == sent


# --- the chain


@pytest.fixture
def filled(path: Path, ledger: Ledger) -> Path:
    """Seven entries: opened, budget, five reports of which the third is long."""
    for i in range(5):
        ledger.record(key(i), pure(f"r{i}", 0.1), bytes([i]) * (9000 if i == 2 else 50))
    ledger.close()
    return path


def test_a_sound_ledger_verifies_and_its_head_is_its_last_hash(filled: Path) -> None:
    with Ledger.open(filled) as ledger:
        assert ledger.verify().sequence == 7
        assert ledger.verify().hash == ledger.head() == ledger.entries()[-1].hash
        assert ledger.verify(expected_head=ledger.head().upper() + "\n").sequence == 7


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET body = replace(body, '0.1', '0.01') WHERE sequence = 4",
        "UPDATE entries SET report = x'00' WHERE sequence = 4",
        "UPDATE entries SET report = NULL WHERE sequence = 4",
        "UPDATE entries SET report = x'00' WHERE sequence = 2",
        "UPDATE entries SET time = '1999-01-01T00:00:00+00:00' WHERE sequence = 4",
        "UPDATE entries SET round = 77 WHERE sequence = 4",
        "UPDATE entries SET dataset = 'beds' WHERE sequence = 4",
        "UPDATE entries SET federation = 'south' WHERE sequence = 4",
        "UPDATE entries SET kind = 'budget' WHERE sequence = 4",
        "UPDATE entries SET hash = (SELECT hash FROM entries WHERE sequence = 5) WHERE sequence = 4",
        "UPDATE entries SET body = replace(body, '1.0', '9.0') WHERE sequence = 2",
        "DELETE FROM entries WHERE sequence = 4",
        "DELETE FROM entries WHERE sequence = 1",
        "DELETE FROM entries",
        "UPDATE entries SET sequence = sequence + 1 WHERE sequence = 7",
        "INSERT INTO entries SELECT 8, time, kind, dataset, federation, 99, plan_hash, body, hash, report "
        "FROM entries WHERE sequence = 7",
    ],
)
def test_edits_behind_the_triggers_are_noticed(filled: Path, statement: str) -> None:
    edit_behind_the_triggers(filled, statement)
    with pytest.raises(LedgerDamaged, match=r"edited|missing|removed|no entries"):
        Ledger.open(filled)


def test_the_file_forbids_edits_by_itself(filled: Path) -> None:
    for statement in (
        "UPDATE entries SET time = 'x'",
        "DELETE FROM entries WHERE sequence = 7",
        "INSERT OR REPLACE INTO entries SELECT * FROM entries WHERE sequence = 4",
        "INSERT INTO entries SELECT 99, time, kind, dataset, federation, 99, plan_hash, body, hash, report "
        "FROM entries WHERE sequence = 7",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="append-only"):
            edit(filled, statement)
    with Ledger.open(filled) as ledger:
        assert ledger.verify().sequence == 7


@pytest.mark.parametrize(
    "statement",
    [
        "DROP TRIGGER entries_stay",
        "DROP INDEX one_report_per_key",
        "CREATE TRIGGER swallow BEFORE INSERT ON entries BEGIN SELECT RAISE(IGNORE); END",
        "CREATE TABLE entries2 (x)",
    ],
)
def test_an_altered_schema_is_noticed(filled: Path, statement: str) -> None:
    edit(filled, statement)
    with pytest.raises(LedgerDamaged, match="triggers were altered"):
        Ledger.open(filled)


def test_cut_off_last_entries_are_noticed_by_a_receipt_and_not_by_the_chain(filled: Path) -> None:
    with Ledger.open(filled) as ledger:
        receipt = ledger.head()
    edit_behind_the_triggers(filled, "DELETE FROM entries WHERE sequence >= 6")
    with Ledger.open(filled) as ledger:
        assert ledger.verify().sequence == 5  # this is the limit of a chain
        assert not ledger.position(receipt)
        with pytest.raises(LedgerDamaged, match="your receipt"):
            ledger.verify(expected_head=receipt)


def test_a_restored_older_copy_is_noticed_by_a_receipt_and_a_grown_ledger_is_not(filled: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copy(filled, older)
    with Ledger.open(filled) as ledger:
        early = ledger.head()
        ledger.record(key(9), pure("r9", 0.1), b"9")
        late = ledger.head()
        assert ledger.position(early)
        assert ledger.verify(expected_head=early).hash == late
    with Ledger.open(older) as ledger:
        assert ledger.verify(expected_head=early).sequence == 7
        with pytest.raises(LedgerDamaged):
            ledger.verify(expected_head=late)


def test_a_running_ledger_notices_that_an_older_copy_was_put_in_its_place(filled: Path, tmp_path: Path) -> None:
    older = tmp_path / "older"
    shutil.copy(filled, older)
    with Ledger.open(filled) as ledger:
        ledger.record(key(9), pure("r9", 0.1), b"9")
        shutil.copyfile(older, filled)  # the same file, with other content
        with pytest.raises(LedgerDamaged, match="is gone"):
            ledger.record(key(10), pure("r10", 0.1), b"10")
    with Ledger.open(filled) as ledger:
        older.replace(filled)  # another file
        with pytest.raises(LedgerDamaged, match="replaced"):
            ledger.record(key(10), pure("r10", 0.1), b"10")


def test_two_new_ledgers_never_share_a_head(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "a") as a, Ledger.create(tmp_path / "b") as b:
        assert a.head() != b.head()


def read_all(path: Path) -> list[object]:
    with Ledger.open(path) as ledger:
        ledger.verify()
        return [*ledger.entries(), *(ledger.replay(key(i)) for i in range(5))]


def test_no_flipped_byte_changes_what_a_ledger_says(filled: Path, tmp_path: Path) -> None:
    """A flipped byte is either noticed or lies where nothing is kept (free space, SQLite's counters)."""
    sound, original = read_all(filled), filled.read_bytes()
    rng = random.Random(20240)
    noticed = 0
    offsets = [*range(100), *rng.sample(range(100, len(original)), 250)]
    for i, offset in enumerate(offsets):
        copy = tmp_path / f"flipped{i}"
        copy.write_bytes(original[:offset] + bytes([original[offset] ^ rng.randint(1, 255)]) + original[offset + 1 :])
        try:
            assert read_all(copy) == sound
        except SordinoError:
            noticed += 1
    assert noticed > 120


def test_a_torn_file_is_noticed_wherever_it_was_cut(filled: Path, tmp_path: Path) -> None:
    original = filled.read_bytes()
    for i, length in enumerate([*range(0, len(original), 1777), len(original) - 1]):
        torn = tmp_path / f"torn{i}"
        torn.write_bytes(original[:length])
        with pytest.raises(LedgerDamaged):
            read_all(torn)
        assert torn.read_bytes() == original[:length], "a damaged file must stay as it is"


# --- files that are no ledgers, or cannot be used


def test_files_that_are_no_ledgers_are_named_as_what_they_are(tmp_path: Path) -> None:
    text, other, empty = tmp_path / "text", tmp_path / "other", tmp_path / "empty"
    text.write_text("dear diary, " * 100)
    edit(other, "PRAGMA journal_mode = WAL", "CREATE TABLE entries (sequence)")
    empty.touch()
    with pytest.raises(LedgerDamaged, match="no SQLite file"):
        Ledger.open(text)
    with pytest.raises(LedgerDamaged, match="another program"):
        Ledger.open(other)
    with pytest.raises(LedgerDamaged, match="is empty"):
        Ledger.open(empty)
    with closing(sqlite3.connect(other)) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",), "another program's file was changed"
    for nowhere in (tmp_path, tmp_path / "absent", tmp_path / "absent" / "too"):
        with pytest.raises(LedgerUnavailable, match="no ledger"):
            Ledger.open(nowhere)


def test_a_newer_format_is_left_to_a_newer_sordino(filled: Path) -> None:
    edit(filled, "PRAGMA user_version = 4")
    with pytest.raises(LedgerUnavailable, match="format 4"):
        Ledger.open(filled)


def test_create_never_touches_what_is_there(filled: Path, tmp_path: Path) -> None:
    before = filled.read_bytes()
    with pytest.raises(InvalidInput, match="exists already"):
        Ledger.create(filled)
    assert filled.read_bytes() == before
    (tmp_path / "new-journal").write_bytes(b"of another ledger")
    with pytest.raises(InvalidInput, match="journal"):
        Ledger.create(tmp_path / "new")
    with pytest.raises(LedgerUnavailable, match="choose another directory"):
        Ledger.create(tmp_path / "absent" / "ledger")


def test_a_new_ledger_is_its_owners_alone_and_leaves_no_drafts(path: Path) -> None:
    Ledger.create(path).close()
    assert path.stat().st_mode & 0o077 == 0
    assert [p.name for p in path.parent.iterdir()] == [path.name]


def test_a_closed_ledger_says_so(ledger: Ledger) -> None:
    ledger.close()
    with pytest.raises(LedgerUnavailable, match="is closed"):
        ledger.standing("wards")


def test_every_commit_is_synced(ledger: Ledger) -> None:
    """In mode DELETE, a journal whose deletion was not synced could come back and undo a spend."""
    assert ledger._db.connection.execute("PRAGMA synchronous").fetchone() == (2,)
    assert ledger._db.connection.execute("PRAGMA journal_mode").fetchone() == ("truncate",)


def test_paths_with_odd_characters_are_paths(tmp_path: Path) -> None:
    path = tmp_path / "a ledger?mode=memory#%41.sqlite"
    with Ledger.create(path) as ledger:
        ledger.set_budget("wärds", Budget(limit=1.0))
    with Ledger.open(path) as ledger:
        assert ledger.standing("wärds").left == 1.0
    assert path.stat().st_size > 0


def test_budgets_and_names_of_the_wrong_kind_are_refused(ledger: Ledger) -> None:
    for call in (
        lambda: ledger.set_budget("", Budget(limit=1.0)),
        lambda: ledger.set_budget("wards", 1.0),  # type: ignore[arg-type]
        lambda: ledger.set_consent("wards", "", granted=True),
        lambda: ledger.set_consent("\n", None, granted=True),
    ):
        with pytest.raises(InvalidInput):
            call()
    assert len(ledger.entries()) == 2


def test_entries_hold_everything_about_a_release(path: Path, ledger: Ledger) -> None:
    release = Release(
        "a",
        "wards",
        "update",
        (
            Guarantee(SERVER, Adjacency.CLIENT, Pure(0.1), "Theorem 1"),
            Guarantee(MODEL_READER, Adjacency.LABEL, GaussianLoss(0.3, 1e-9, 1e-12), "Theorem 2"),
        ),
        Claim(0.5, 1e-5, "eps = 0.5"),
    )
    entry = ledger.record(key(3), release, b"bytes")
    ledger.close()
    with Ledger.open(path) as again:
        assert again.entries()[-1] == entry
    assert isinstance(entry.event, Released)
    assert entry.event.releases == (release,)
    with closing(sqlite3.connect(path)) as connection:
        (body,) = connection.execute("SELECT body FROM entries WHERE sequence = 3").fetchone()
    assert json.loads(body)["releases"][0]["claimed"]["formula"] == "eps = 0.5"


# --- simulations


def test_the_rules_are_one_function() -> None:
    standing = Standing.opening(Budget(limit=0.5))
    assert admit(standing, pure("a", 0.5), Destination("f")).left == 0
    with pytest.raises(BudgetExceeded):
        admit(standing, pure("a", 0.6), Destination("f"))
    with pytest.raises(BudgetExceeded, match="no budget"):
        admit(Standing(), pure("a", 0.1), Destination("f"))


def test_in_a_cohort_those_who_must_decline_come_back_and_the_others_spend() -> None:
    budgets = [Budget(limit=0.1 * (1 + client % 5)) for client in range(50)]
    ledger = MemoryLedger(budgets)
    for round in range(5):
        declined = ledger.record({client: pure(f"{round}-{client}", 0.1) for client in range(50)})
        assert set(declined) == {client for client in range(50) if client % 5 < round}
        assert all(isinstance(reason, BudgetExceeded) for reason in declined.values())
    for client in range(50):
        assert ledger.standing(client).spent == pytest.approx(0.1 * (1 + client % 5))
        assert ledger.standing(client).releases == 1 + client % 5


def test_personal_epsilons_and_kinds_are_not_confused_by_the_cache() -> None:
    ledger = MemoryLedger([Budget(limit=1.0)] * 6, Consents(frozenset({"labels"})))
    declined = ledger.record(
        {
            0: pure("a", 0.5),
            1: pure("a", 0.75),
            2: pure("a", 1.5),
            3: unproven("a"),
            4: unproven("a", what="counts"),
            5: pure("a", 0.5),
        }
    )
    assert {client: type(reason) for client, reason in declined.items()} == {2: BudgetExceeded, 4: ConsentMissing}
    assert [ledger.standing(client).spent for client in range(6)] == [0.5, 0.75, 0, 0, 0, 0.5]
    assert [ledger.standing(client).unprotected for client in range(6)] == [0, 0, 0, 1, 0, 0]


def test_in_a_cohort_only_those_who_made_a_release_derive_from_it() -> None:
    ledger = MemoryLedger([Budget(limit=1.0), Budget(limit=0.1)])
    assert set(ledger.record(dict.fromkeys(range(2), pure("features", 1.0)))) == {1}
    declined = ledger.record(dict.fromkeys(range(2), derived("model", "features")))
    assert {client: type(reason) for client, reason in declined.items()} == {1: InvalidInput}
    assert set(ledger.record(dict.fromkeys(range(2), pure("features", 0.1)))) == {0}, "an id is used once"


def test_claimed_accounting_in_a_simulation_needs_consent_too() -> None:
    release, budgets = unproven("a", claimed=Claim(0.5, 0.0, "eps")), [Budget(limit=1.0, basis="claimed")]
    assert isinstance(MemoryLedger(budgets).record({0: release})[0], ConsentMissing)
    assert MemoryLedger(budgets, Consents(claimed=True)).record({0: release}) == {}


def test_unknown_clients_are_refused() -> None:
    ledger = MemoryLedger([Budget(limit=1.0)])
    for client in (-1, 1, 0.0, "0"):
        with pytest.raises(InvalidInput):
            ledger.record({client: pure("a", 0.1)})  # type: ignore[dict-item]


@pytest.mark.process
def test_a_round_of_a_hundred_thousand_clients_takes_about_a_second() -> None:
    ledger = MemoryLedger([Budget(limit=1.0)] * 100_000)
    guarantees = pure("any", 0.1).guarantees
    for round in range(2):
        releases = {c: Release(f"{round}-{c}", "d", "update", guarantees) for c in range(100_000)}
        start = time.process_time()
        assert ledger.record(releases) == {}
        assert time.process_time() - start < 3.0  # 0.4 s on an idle core
    assert ledger.standing(99_999).spent == 0.2


def test_what_is_derived_still_needs_a_budget_to_leave_under(tmp_path: Path) -> None:
    with Ledger.create(tmp_path / "ledger.sqlite") as ledger:
        derived = Release("m", "wards", "model", (), composition=Derived(("nothing",)))
        with pytest.raises(SordinoError):
            ledger.record(ReportKey("wards", "north", 1, b"\x01"), derived, b"report")
        assert ledger.standing("wards").releases == 0

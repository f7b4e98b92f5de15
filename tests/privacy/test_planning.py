"""What is planned is admitted by the ledger for every round, and little more than that would be refused."""

import math
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino import mechanisms
from sordino.errors import BudgetExceeded, InvalidInput
from sordino.privacy import planning
from sordino.privacy.accountant import Account, bit_epsilon, gaussian_epsilon
from sordino.privacy.guarantee import (
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
    RandomizedBit,
    Release,
)
from sordino.privacy.ledger import Standing, admit

BOX = mechanisms.Box(0.0, 0.1)
RANGE = mechanisms.IntegerRange(1.0, 10)
#: how each mechanism is planned: the sense of its parameter, where to look, and 10 rounds of 650 values with it
FAMILIES = {
    "two-point": (planning.largest, (1e-6, 22.18), lambda e: mechanisms.TwoPoint(e, BOX)),
    "sign": (planning.largest, (1e-6, 22.18), lambda e: mechanisms.RandomizedSign.response(e, BOX)),
    "laplace-box": (planning.largest, (1e-5, 22.18), lambda e: mechanisms.Laplace(e, BOX)),
    "laplace-l1": (planning.largest, (1e-6, 22.18), lambda e: mechanisms.Laplace(e, mechanisms.L1Ball(1.0))),
    "piecewise": (planning.largest, (1e-6, 22.18), lambda e: mechanisms.Piecewise(e, BOX)),
    "exponential": (planning.largest, (1.1e-6 / RANGE.bound, 1.0), lambda a: mechanisms.Exponential(a, RANGE)),
    "gaussian-box": (planning.least, (0.1 / 500, 0.1 * 2**16), lambda s: mechanisms.Gaussian(s, BOX)),
    "gaussian-l2": (planning.least, (1 / 500, 2.0**16), lambda s: mechanisms.Gaussian(s, mechanisms.L2Ball(1.0))),
}
PROVEN = Adjacency.CLIENT


def noise_multiplier_for(epsilon, delta, *, rounds, adjacency=Adjacency.RECORD_ADD_REMOVE, **training):
    return planning.private_training(Budget(epsilon, delta, adjacency=adjacency), rounds, **training).parameter


def released(loss, adjacency=PROVEN, claim=None, id="one"):
    return Release(id, "data", "update", (Guarantee(SERVER, adjacency, loss, "a test"),), claim)


def admitted(budget, guarantee, most):
    """How many such releases the ledger itself lets out, one by one, up to `most`."""
    standing = Standing.opening(budget)
    for number in range(most):
        try:
            standing = admit(standing, Release(f"r{number}", "data", "update", (guarantee,)), Destination("f"))
        except BudgetExceeded:
            return number
    return most


@pytest.mark.parametrize("name", list(FAMILIES))
@pytest.mark.parametrize("limit", [2.0, 50.0])
def test_a_planned_mechanism_is_admitted_in_all_rounds_and_one_percent_more_is_refused(name, limit):
    find, between, build = FAMILIES[name]
    budget = Budget(limit, 1e-5)

    def round_of(parameter):
        return build(parameter).guarantee(values=650)

    planned = find(budget, 10, round_of, between=between)
    assert admitted(budget, round_of(planned.parameter), 12) == 10
    weaker = planned.parameter * (1.01 if find is planning.largest else 1 / 1.01)
    assert admitted(budget, round_of(weaker), 10) < 10
    assert planned.spent <= limit
    assert planned.each <= planned.total <= planned.spent


def test_what_is_never_proven_is_refused_with_the_reason():
    with pytest.raises(InvalidInput, match=r"floats"):
        planning.largest(
            Budget(5.0, 1e-5), 2, lambda e: mechanisms.PrivUnitG(e).guarantee(values=9), between=(0.1, 9.0)
        )


def test_pure_epsilons_are_shared_out_by_plain_division():
    for find_total, rounds, expected in ((50.0, 10, 5.0), (1.0, 10, 0.1), (3.0, 7, 0.42857)):
        planned = planning.largest(Budget(find_total), rounds, lambda e: released(Pure(e)), between=(1e-6, 1e3))
        assert planned.parameter == expected
        assert planned.spent == pytest.approx(find_total, rel=1e-4)


def test_a_bit_is_planned_with_its_exact_threshold():
    planned = planning.largest(
        Budget(50.0), 10, lambda e: mechanisms.TwoPoint(e).guarantee(values=650), between=(1e-6, 22.18)
    )
    assert planned.parameter == 0.0076923  # 50 / 6,500 = 0.00769230..., rounded down
    loss = planned.guarantee.loss
    assert isinstance(loss, RandomizedBit)
    assert loss.t_min == math.ceil(2**32 / (math.exp(planned.parameter) + 1))
    assert planned.spent == pytest.approx(6500 * bit_epsilon(loss.t_min), rel=1e-12)


def test_a_gaussian_is_planned_at_two_fifths_of_delta():
    planned = planning.least(Budget(3.0, 1e-5), 16, lambda s: released(GaussianLoss(1 / s)), between=(1e-3, 1e3))
    assert gaussian_epsilon(4 / planned.parameter, 0.4e-5) == pytest.approx(3.0, rel=1e-4)
    assert planned.total == pytest.approx(gaussian_epsilon(4 / planned.parameter, 1e-5))
    assert planned.total < 0.97 * planned.spent


@pytest.mark.parametrize("adjacency", [Adjacency.RECORD_ADD_REMOVE, Adjacency.RECORD_REPLACE], ids=["add", "replace"])
def test_dp_sgd_is_admitted_in_all_rounds_and_one_percent_less_noise_is_refused(adjacency):
    budget = Budget(5.0, 1e-5, adjacency=adjacency)
    planned = planning.private_training(budget, 10, sampling_rate=0.1, steps=20)
    assert planned.guarantee.loss == PoissonGaussian(0.1, planned.parameter, 20)
    assert admitted(budget, planned.guarantee, 12) == 10
    weaker = replace(planned.guarantee, loss=PoissonGaussian(0.1, planned.parameter / 1.01, 20))
    assert admitted(budget, weaker, 10) == 9
    assert planned.total < planned.spent <= 5.0


def test_noise_multipliers_of_known_schedules():
    """The first is what 1.6707 stands for in the guide; a full batch is a plain Gaussian of 200 steps."""
    asked = {"steps": 20, "rounds": 10}
    assert noise_multiplier_for(5.0, 1e-5, sampling_rate=0.1, **asked) == 1.6707
    full = noise_multiplier_for(5.0, 1e-5, sampling_rate=1.0, **asked)
    assert gaussian_epsilon(math.sqrt(200) / full, 0.4e-5) == pytest.approx(5.0, rel=1e-4)
    exchanged = noise_multiplier_for(5.0, 1e-5, sampling_rate=1.0, adjacency=Adjacency.RECORD_REPLACE, **asked)
    assert exchanged == pytest.approx(2 * full, rel=1e-4)


def test_only_the_total_number_of_steps_matters_to_the_noise_multiplier():
    found = {
        noise_multiplier_for(2.0, 1e-5, sampling_rate=0.05, steps=steps, rounds=400 // steps) for steps in (1, 20, 400)
    }
    assert len(found) == 1


def test_a_noise_multiplier_is_found_at_once():
    noise_multiplier_for(5.0, 1e-5, sampling_rate=0.1, steps=20, rounds=10)  # loads the accountant
    start = time.process_time()
    noise_multiplier_for(3.0, 1e-6, sampling_rate=0.02, steps=50, rounds=40)
    assert time.process_time() - start < 2.0


@settings(max_examples=40, deadline=None)
@given(
    limit=st.floats(0.1, 200.0),
    each=st.floats(0.01, 3.0),
    values=st.integers(1, 300),
    delta=st.sampled_from([0.0, 1e-9, 1e-5]),
)
def test_as_many_rounds_are_allowed_as_the_ledger_admits(limit, each, values, delta):
    budget = Budget(limit, delta)
    guarantee = mechanisms.TwoPoint(each).guarantee(values=values)
    allowed = planning.rounds_allowed(budget, guarantee, most=40)
    assert allowed == admitted(budget, guarantee, 40)


def test_ten_tenths_fit_one_and_eleven_do_not():
    assert planning.rounds_allowed(Budget(1.0), released(Pure(0.1))) == 10
    assert planning.rounds_allowed(Budget(1.0), released(Pure(1e-6))) == 10**6
    assert planning.rounds_allowed(Budget(1.0), released(Pure(1.0000001))) == 0


def test_counting_stops_where_nothing_is_spent():
    nothing = released(RandomizedBit(2**31, 650))
    assert planning.rounds_allowed(Budget(1.0), nothing, most=12345) == 12345
    assert planning.rounds_allowed(Budget(1.0), nothing) == planning.MOST_ROUNDS


def test_a_round_may_hold_several_releases():
    two = [released(Pure(0.2), id="a"), released(Pure(0.3), id="b")]
    assert planning.rounds_allowed(Budget(2.0), two) == 4
    derived = Release("c", "data", "again", (), composition=Derived(("a", "b")))
    assert planning.rounds_allowed(Budget(2.0), [*two, derived]) == 4


def test_what_nothing_proves_is_never_admitted():
    assert planning.rounds_allowed(Budget(1e6, 1e-5), released(Infinite("in the clear"))) == 0
    assert planning.rounds_allowed(Budget(1e6), released(GaussianLoss(0.1))) == 0
    coordinate = released(Pure(0.1), Adjacency.COORDINATE)
    assert planning.rounds_allowed(Budget(1e6), coordinate) == 0


def test_a_claim_for_the_whole_schedule_is_counted_once():
    budget = Budget(1.0, basis="claimed")
    every = Claim(0.4, 0.0, "a formula")
    assert planning.rounds_allowed(budget, released(Pure(9.0), claim=every)) == 2
    once = Claim(0.4, 0.0, "a formula", covers="schedule")
    assert planning.rounds_allowed(budget, released(Pure(9.0), claim=once), most=777) == 777
    mixed = [released(Pure(9.0), claim=once, id="a"), released(Pure(9.0), claim=Claim(0.2, 0.0, "b"), id="b")]
    assert planning.rounds_allowed(budget, mixed) == 3


@settings(max_examples=30, deadline=None)
@given(rounds=st.integers(1, 30), mu=st.floats(0.01, 2.0), tau=st.floats(0.0, 1e-7))
def test_the_account_after_equal_rounds_is_the_one_that_counted_them_singly(rounds, mu, tau):
    budget = Budget(5.0, 1e-5)
    release = released(GaussianLoss(mu, 1e-9, tau))
    counted = Account.opening(budget)
    for _ in range(rounds):
        counted = counted.after(release)
    assert planning.account_after(budget, release, rounds) == counted


def test_a_statement_does_not_add_up_values_of_different_uploads():
    one = mechanisms.TwoPoint(0.5).guarantee(Adjacency.COORDINATE, values=650)
    each = planning.stated_epsilon(Budget(5.0, adjacency=Adjacency.COORDINATE), one)
    assert planning.stated_epsilon(Budget(5.0, adjacency=Adjacency.COORDINATE), one, 10) == each
    assert each == pytest.approx(0.5, rel=1e-6)
    assert planning.stated_epsilon(Budget(5.0), one, 10) == math.inf


def test_the_weakest_setting_is_enough_where_a_budget_allows_more():
    planned = planning.largest(Budget(1e6), 1, lambda e: released(Pure(e)), between=(1e-6, 22.18))
    assert planned.parameter == 22.18


def test_a_mechanism_that_cannot_be_that_fine_is_planned_where_it_can():
    def coarse(parameter):
        if parameter < 0.3:
            raise InvalidInput("too fine")
        return released(Pure(parameter))

    assert planning.largest(Budget(5.0), 10, coarse, between=(1e-6, 20.0)).parameter == 0.5
    with pytest.raises(InvalidInput, match=r"too fine.*fewer rounds"):
        planning.largest(Budget(2.0), 10, coarse, between=(1e-6, 20.0))


@pytest.mark.parametrize(
    ("plan", "remedy"),
    [
        (lambda: planning.largest(Budget(1e-4), 10, lambda e: released(Pure(e)), between=(1e-3, 1.0)), "fewer rounds"),
        (
            lambda: planning.least(Budget(5.0), 10, lambda s: released(GaussianLoss(1 / s)), between=(0.1, 1e3)),
            "a delta",
        ),
        (
            lambda: planning.largest(
                Budget(5.0, 1e-5), 1, lambda e: released(Pure(e), Adjacency.COORDINATE), between=(0.1, 1e3)
            ),
            "an adjacency and an adversary",
        ),
        (lambda: planning.largest(Budget(5.0), 0, lambda e: released(Pure(e)), between=(0.1, 1.0)), ">= 1"),
        (lambda: planning.largest(Budget(5.0), 1, lambda e: released(Pure(e)), between=(0.0, 1.0)), "between"),
        (lambda: noise_multiplier_for(5.0, 0.0, sampling_rate=0.1, steps=1, rounds=1), "1e-5"),
        (lambda: noise_multiplier_for(5.0, 1e-5, sampling_rate=1.5, steps=1, rounds=1), "probability"),
        (lambda: noise_multiplier_for(5.0, 1e-5, sampling_rate=0.1, steps=0, rounds=1), "steps"),
        (
            lambda: planning.private_training(Budget(5.0, 1e-5), 1, sampling_rate=0.1, steps=1),
            r"record \(add/remove\)",
        ),
        (lambda: noise_multiplier_for(1e-3, 1e-5, sampling_rate=0.1, steps=10, rounds=10), "raise the budget"),
    ],
    ids=["too-little", "delta-0", "adjacency", "rounds", "range", "sgd-delta", "rate", "steps", "sgd-client", "tiny"],
)
def test_what_cannot_be_planned_is_refused_with_a_remedy(plan, remedy):
    with pytest.raises(InvalidInput, match=remedy):
        plan()


@pytest.mark.parametrize("low", [5.0, 0.1, 3.3, 1 / 3])
def test_a_range_that_begins_at_the_border_is_found(low):
    planned = planning.largest(Budget(low), 1, lambda e: released(Pure(e)), between=(low, 100.0))
    assert planned.parameter == low

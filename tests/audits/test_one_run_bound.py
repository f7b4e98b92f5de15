"""The statistics of one-run audits: hand-computable cases, coverage by simulation, and the test of a whole curve."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.audits import lower_bound as audit
from sordino.audits.canary_game import SHARES, TAIL, Guesses, coins, judge, likelihood_under
from sordino.errors import InvalidInput
from sordino.mechanisms.cases import Promise
from sordino.privacy.accountant import gaussian_delta, gaussian_epsilon
from sordino.privacy.guarantee import SERVER, Adjacency, Claim


def logit(p: float) -> float:
    return math.log(p / (1 - p))


def game(proven: float, delta: float = 0.0, curve=(), claim: Claim | None = None) -> Promise:
    return Promise(
        "x", "a run", Adjacency.RECORD_ADD_REMOVE, SERVER, claim, proven, delta, "a proof", "canaries", curve
    )


def gaussian_curve(mu: float, delta: float) -> tuple[tuple[float, float], ...]:
    known = gaussian_epsilon(mu, delta)
    return tuple((known * k / 8, gaussian_delta(mu, known * k / 8)) for k in range(8))


# --- the theorem ------------------------------------------------------------------------------------------------------


def test_without_delta_it_is_a_binomial_tail():
    assert Guesses(2, 2, 2).probability(math.log(3), 0.0) == pytest.approx(0.75**2)
    assert Guesses(5, 2, 1).probability(0.0, 0.0) == pytest.approx(0.75)
    assert Guesses(5, 2, 0).probability(0.0, 0.0) == 1.0


def test_delta_adds_the_steepest_step_down_from_the_tail():
    # r = 2, epsilon = 0: f(2) = 1/4, f(1) = 3/4, f(0) = 1; the steps are (3/4 - 1/4)/1 = 1/2 and (1 - 1/4)/2 = 3/8
    assert Guesses(2, 2, 2).probability(0.0, 0.01) == pytest.approx(0.25 + 2 * 2 * 0.01 * 0.5)
    # v = 1: f(1) = 3/4, f(0) = 1
    assert Guesses(10, 2, 1).probability(0.0, 0.001) == pytest.approx(0.75 + 2 * 10 * 0.001 * 0.25)
    assert Guesses(10, 2, 1).probability(0.0, 0.1) == 1.0


@pytest.mark.parametrize("guesses", [5, 20, 200])
def test_all_guesses_right_give_the_closed_form(guesses):
    assert Guesses(200, guesses, guesses).epsilon_bound(0.0) == pytest.approx(logit(0.05 ** (1 / guesses)), rel=1e-6)


def test_what_chance_explains_bounds_nothing():
    assert Guesses(100, 4, 4).epsilon_bound(0.0) == 0.0  # (1/2)^4 = 6 %
    assert Guesses(100, 100, 50).epsilon_bound(0.0) == 0.0
    assert Guesses(10_000, 100, 90).epsilon_bound(0.5) == 0.0


@given(
    st.integers(1, 200).flatmap(lambda r: st.tuples(st.just(r), st.integers(0, r - 1))),
    st.integers(0, 200),
    st.sampled_from([0.0, 1e-6, 1e-4]),
)
@settings(max_examples=60, deadline=None)
def test_more_right_guesses_show_more_and_more_delta_or_canaries_less(made_right, more, delta):
    made, right = made_right
    bound = Guesses(made + more, made, right).epsilon_bound(delta)
    assert Guesses(made + more, made, right + 1).epsilon_bound(delta) >= bound - 1e-6
    assert Guesses(made + more, made, right).epsilon_bound(10 * delta) <= bound + 1e-6
    assert Guesses(made + more + 50, made, right).epsilon_bound(delta) <= bound + 1e-6


def randomised_response(epsilon: float, canaries: int, seed: int):
    """Coins, and scores that are the coins, each told truly with e^eps/(1 + e^eps)."""
    rng = np.random.default_rng(seed)
    present = coins(canaries, seed)
    true = rng.random(canaries) < 1 / (1 + math.exp(-epsilon))
    return present, np.where(true, present, ~present).astype(float)


def best_bound(scores, present, delta=0.0):
    guesses = [Guesses.of(scores, present, share) for share in SHARES]
    return max(one.epsilon_bound(delta, TAIL / len(SHARES)) for one in guesses)


@pytest.mark.parametrize(("epsilon", "least"), [(0.5, 0.25), (1.0, 0.7), (2.0, 1.6), (4.0, 3.0)])
def test_the_bound_is_below_the_truth_19_times_of_20_and_not_useless(epsilon, least):
    bounds = []
    for seed in range(60):
        present, scores = randomised_response(epsilon, 1000, seed)
        bounds.append(best_bound(scores, present))
    assert np.median(bounds) >= least
    assert sum(bound > epsilon for bound in bounds) <= 9  # Binomial(60, <= 5 %): more than 9 has probability 8e-4


def test_scores_that_say_nothing_show_nothing():
    rng = np.random.default_rng(1)
    bounds = [best_bound(rng.normal(size=500), coins(500, seed)) for seed in range(60)]
    assert sum(bound > 0 for bound in bounds) <= 9  # 5 % of 60 is 3; more than 9 has probability 1e-3


def test_guesses_are_the_ends_of_the_ranking():
    present = np.array([False, True, False, True, True])
    assert Guesses.of(np.array([0.0, 1.0, 2.0, 3.0, 4.0]), present, 0.2) == Guesses(5, 2, 2)
    assert Guesses.of(np.array([4.0, 3.0, 2.0, 1.0, 0.0]), present, 0.4) == Guesses(5, 4, 1)


def test_coins_are_fair_and_follow_the_seed():
    assert np.array_equal(coins(1000, 3), coins(1000, 3))
    assert not np.array_equal(coins(1000, 3), coins(1000, 4))
    assert abs(coins(100_000, 1).mean() - 0.5) < 0.008  # five deviations


@pytest.mark.parametrize("count", [0, 19, 200_001, True, 100.0, "many"])
def test_absurd_numbers_of_canaries_are_refused(count):
    with pytest.raises(InvalidInput, match="canaries"):
        coins(count, 1)


def test_impossible_counts_are_refused():
    with pytest.raises(InvalidInput, match="right"):
        Guesses(10, 5, 6)


# --- a whole curve ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 0.0), (3.0, 0.0), (0.0, 0.1), (0.5, 0.2)])
def test_one_guess_about_one_canary_is_right_as_often_as_the_pair_allows(epsilon, delta):
    # P[right] <= e^eps P[wrong] + delta
    allowed = (math.exp(epsilon) + delta) / (1 + math.exp(epsilon))
    assert likelihood_under(((epsilon, delta),), Guesses(1, 1, 1)) == pytest.approx(allowed, rel=3e-3)


@pytest.mark.parametrize(("made", "right"), [(10, 9), (100, 90), (100, 85)])
def test_for_a_pure_guarantee_it_is_the_binomial_tail_or_a_little_more(made, right):
    tail = Guesses(made, made, right).probability(1.0, 0.0)
    assert tail <= likelihood_under(((1.0, 0.0),), Guesses(made, made, right)) <= 1.3 * tail


def test_more_points_of_a_curve_can_only_speak_against_more():
    points = gaussian_curve(1.0, 1e-5)
    found = Guesses(1000, 400, 385)
    assert likelihood_under(points, found) <= likelihood_under(points[-1:], found)
    assert likelihood_under((), found) == likelihood_under(((math.inf, 0.0),), found) == 1.0


def gaussian_scores(mu: float, canaries: int, seed: int):
    present = coins(canaries, seed)
    return mu * present + np.random.default_rng(seed).normal(size=canaries), present


@pytest.mark.parametrize("mu", [0.5, 1.0])
def test_gaussian_noise_is_believed_and_half_of_it_is_not(mu):
    proven = gaussian_epsilon(mu, 1e-5)
    one = game(proven, 1e-5, gaussian_curve(mu, 1e-5))
    for seed in range(2):
        honest = judge(one, *gaussian_scores(mu, 5000, seed), seed=seed)
        assert honest.verdict == audit.UNTESTED
        assert 0.4 * proven < honest.audited < proven
        halved = judge(one, *gaussian_scores(2 * mu, 5000, seed), seed=seed)
        assert halved.verdict == audit.VIOLATED
        assert "probability of at most" in halved.note


def test_honest_guesses_are_called_unbelievable_as_seldom_as_is_said():
    # Randomised response reaches its guarantee: of 150 games at 1 % more than 8 fail with a probability of 3e-5.
    failed = 0
    for seed in range(150):
        present, scores = randomised_response(1.0, 100, seed)
        failed += likelihood_under(((1.0, 0.0),), Guesses.of(scores, present, 0.5)) < 0.01
    assert failed <= 8


# --- rows -------------------------------------------------------------------------------------------------------------


def test_a_row_says_what_was_played_for_and_can_be_evidence():
    present, scores = randomised_response(3.0, 1000, 1)
    row = judge(game(3.0, claim=Claim(1.0, 0.0, "eps")), scores, present, seed=1)
    assert row.verdict == audit.REFUTED
    assert (row.trials, row.confidence, row.adjacency) == (1000, 0.95, "record (add/remove)")
    assert 1.0 < row.audited < row.cap
    # 400 guesses all right, at a third of 5 %
    assert row.cap == pytest.approx(logit((0.05 / 3) ** (1 / 400)), rel=1e-6)
    assert row.evidence().epsilon == row.audited


def test_evidence_never_lies_above_the_proof():
    present, scores = randomised_response(3.0, 1000, 1)
    row = judge(game(1.5), scores, present, seed=1)
    assert row.audited > 1.5
    assert row.evidence().epsilon == 1.5


def test_an_infinite_epsilon_is_a_word_in_json():
    present, scores = randomised_response(3.0, 100, 1)
    assert judge(game(math.inf), scores, present, seed=1).to_json()["proven"] == "infinite"

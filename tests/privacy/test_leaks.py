"""Shares with intervals, and the bounds that proofs give: against randomised response, which meets them exactly."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom

from sordino.errors import InvalidInput
from sordino.privacy.leaks import Leak, Share, identification_bound, membership_bound, tail_bound


@given(st.integers(0, 60), st.integers(1, 60))
def test_the_interval_is_wrong_with_the_stated_chance_at_its_ends(hits, more):
    trials = max(hits, 1) + more
    low, high = Share(hits, trials).interval(0.01)
    assert 0 <= low <= hits / trials <= high <= 1
    assert low == 0 or binom.sf(hits - 1, trials, low) == pytest.approx(0.01, rel=1e-6)
    assert high == 1 or binom.cdf(hits, trials, high) == pytest.approx(0.01, rel=1e-6)


@given(st.floats(0.01, 8), st.integers(2, 2000))
def test_k_ary_randomised_response_reaches_the_bound_on_identification(epsilon, candidates):
    kept = math.exp(epsilon) / (math.exp(epsilon) + candidates - 1)
    assert identification_bound(epsilon, 0.0, candidates) == pytest.approx(kept)


@given(st.floats(0.01, 8))
def test_randomised_response_reaches_the_bound_on_membership(epsilon):
    lie = 1 / (1 + math.exp(epsilon))
    assert membership_bound(epsilon, 0.0, lie) == pytest.approx(1 - lie)


@given(st.floats(0, 800), st.floats(0, 1), st.floats(0, 1))
def test_bounds_are_chances_and_grow_with_epsilon_and_delta(epsilon, delta, share):
    for bound in (lambda e, d: identification_bound(e, d, 10), lambda e, d: membership_bound(e, d, share)):
        assert 0 <= bound(epsilon, delta) <= bound(epsilon + 1, delta) + 1e-12 <= bound(math.inf, delta) + 1e-12
        assert bound(epsilon, 0.0) <= bound(epsilon, delta) + 1e-12


def test_without_noise_or_with_delta_one_nothing_is_bounded():
    assert identification_bound(0.0, 0.0, 4) == 0.25
    assert identification_bound(math.inf, 0.0, 4) == identification_bound(0.0, 1.0, 4) == 1.0
    assert membership_bound(0.0, 0.0, 0.1) == pytest.approx(0.1)


def test_an_attack_beyond_its_bound_is_a_violation_only_when_chance_is_ruled_out():
    def leak(hits, bound):
        return Leak("reconstruction", "run", "closed form", Share(hits, 100), 0.001, bound)

    assert leak(50, 0.1).is_violation
    assert not leak(20, 0.1).is_violation  # a chance of 2 in 1,000: perhaps
    assert not leak(100, None).is_violation


def test_a_leak_comes_back_from_json_as_it_was():
    curve = tuple(map(tuple, np.linspace(0, 1, 6).reshape(3, 2).tolist()))
    one = Leak(
        "membership", "bare", "likelihood ratio", Share(3, 9), 0.1, 0.4, {"auc": 0.8}, curve, curve, ("a",), ("b",)
    )
    assert Leak.from_json(json.loads(json.dumps(one.to_json()))) == one


@pytest.mark.parametrize("given", [(2, 1), (-1, 4)])
def test_impossible_shares_are_refused(given):
    with pytest.raises(InvalidInput):
        Share(*given)
    with pytest.raises(InvalidInput):
        identification_bound(1.0, 0.0, 1)


@pytest.mark.parametrize(("groups", "together"), [(4, 8), (32, 1), (1, 32)])
def test_trials_that_win_or_lose_together_are_no_more_likely_than_said(groups, together):
    """Whole groups of trials are won at once, each with the chance that is proven."""
    for won in range(1, groups + 1):
        share = Share(won * together, groups * together)
        assert tail_bound(share, 0.01, together) >= (1 - 1e-9) * binom.sf(won - 1, groups, 0.01)


def test_one_report_that_gives_all_its_records_away_is_no_violation_by_itself():
    share, bound = Share(8, 32), 0.007  # one of four clients: by chance in 3 % of all attacks
    alone = Leak("reconstruction", "run", "closed form", share, 0.001, bound)
    assert alone.is_violation
    assert not replace(alone, likelihood=tail_bound(share, bound, 8)).is_violation
    assert replace(alone, likelihood=tail_bound(Share(32, 32), bound, 8)).is_violation

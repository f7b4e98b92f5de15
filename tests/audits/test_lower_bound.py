import math
from functools import cache

import numpy as np
import pytest

from sordino.audits import catalogue
from sordino.audits import lower_bound as audit
from sordino.errors import InvalidInput
from sordino.mechanisms import BitRandomizer, BitString, Box, Laplace, TwoPoint, mechanism_named
from sordino.mechanisms.cases import Case, columns
from sordino.privacy.guarantee import SERVER, Adjacency
from sordino.privacy.statement import AuditBound


def cases(name, epsilon=1.0):
    return catalogue.cases(mechanism_named(name), epsilon)


@cache
def rows(name):
    return [audit.run(case, trials=40_000, seed=5) for case in cases(name)]


def case_with(sampler, proven=1.0, delta=0.0, claim=None):
    unit = Adjacency.COORDINATE
    return Case("x", "one value", unit, SERVER, claim, proven, delta, "enumerated", "ends", sampler=sampler)


def randomised_response(epsilon):
    """Scores of a fair comparison: 1 with probability e^eps/(1 + e^eps) in the first world, else in the second."""

    def sample(world, trials, seed):
        p = 1 / (1 + math.exp(-epsilon if world else epsilon))
        return (np.random.default_rng(2 * seed + world).random(trials) < p).astype(float)

    return sample


@pytest.mark.process
@pytest.mark.parametrize("name", list(catalogue.audited()))
def test_every_shipped_mechanism_stays_below_its_proven_epsilon(name):
    # Each bound errs above the truth with probability at most 5 %, and the truth lies below the proof.
    for case in cases(name, 1.0):
        row = audit.run(case, trials=20_000, seed=3)
        assert row.audited <= row.proven, row
        assert row.verdict != audit.VIOLATED


@pytest.mark.parametrize(("epsilon", "least"), [(0.5, 0.45), (1.0, 0.95), (4.0, 3.7)])
def test_the_bound_is_close_to_the_truth_where_the_truth_is_known(epsilon, least):
    bounds = [audit.run(case_with(randomised_response(epsilon)), trials=100_000, seed=s).audited for s in range(20)]
    assert np.median(bounds) >= least
    assert sum(b > epsilon for b in bounds) <= 4  # 5 % each: more than 4 of 20 has probability below 3e-3


def test_the_bound_covers_the_truth_as_often_as_it_says():
    # 400 small audits of a mechanism that reaches epsilon = 1: errors are Binomial(400, <= 5 %), and 45 is +5 sigma.
    above = sum(audit.run(case_with(randomised_response(1.0)), trials=2_000, seed=s).audited > 1 for s in range(400))
    assert above <= 45


def test_nothing_is_consistent_before_its_support_was_checked():
    row = audit.run(case_with(randomised_response(1.0)), trials=2_000)
    assert row.verdict == audit.UNTESTED
    assert row.checked([]).verdict == audit.CONSISTENT
    failed = row.checked(["gaussian: support, 1 output"])
    assert (failed.verdict, failed.note) == (audit.VIOLATED, "gaussian: support, 1 output")


def test_the_claim_of_theorem_2_is_refuted_by_experiment():
    paper = [row for row in rows("bits") if row.mechanism == "bits (Theorem 2)"]
    assert len(paper) == 4
    for row in paper:
        assert row.claimed == 0.5
        assert row.audited > 1.5
        assert row.verdict == audit.REFUTED


def test_the_audited_figures_of_theorem_2_are_those_of_a_single_bit():
    even, odd, feature, many = (row for row in rows("bits") if row.mechanism == "bits (Theorem 2)")
    assert 2.2 < even.audited < 2.3027
    assert 3.6 < odd.audited < 4.5108
    assert feature.audited > 7
    assert many.audited > 0.99 * many.cap


def test_shuffling_single_parameters_does_not_keep_epsilon_at_one():
    row = next(row for row in rows("two-point") if row.adversary == "shuffled(100)")
    assert row.claimed == 1.0
    assert 1.0 < row.audited < row.proven
    assert row.verdict == audit.REFUTED


def test_no_bound_exceeds_its_cap_and_the_cap_grows_with_trials():
    caps = [audit.run(case_with(lambda w, n, s: np.full(n, float(w))), trials=n).cap for n in (1000, 10_000, 100_000)]
    assert caps == sorted(caps)
    assert caps[2] == pytest.approx(math.log(50_000 / 3.7), abs=0.02)


def test_delta_lowers_the_bound():
    pure = audit.run(case_with(randomised_response(1.0)), trials=50_000)
    relaxed = audit.run(case_with(randomised_response(1.0), delta=0.2), trials=50_000)
    assert relaxed.audited < pure.audited - 0.2


@pytest.mark.parametrize(
    ("claimed", "proven", "audited", "expected"),
    [
        (1.0, 1.0, 0.9, audit.UNTESTED),
        (None, 1.0, 0.9, audit.UNTESTED),
        (5.0, 1.0, 0.9, audit.UNTESTED),
        (0.5, 2.0, 0.4, audit.UNSUPPORTED),
        (0.5, 2.0, 0.6, audit.REFUTED),
        (0.5, 2.0, 2.1, audit.VIOLATED),
        (None, 2.0, 2.1, audit.VIOLATED),
    ],
)
def test_verdicts(claimed, proven, audited, expected):
    assert audit.verdict(claimed, proven, audited, contradicted=audited > proven) == expected


def test_the_same_seed_gives_the_same_row_and_another_seed_another():
    case = cases("label")[0]
    assert audit.run(case, trials=2000, seed=9) == audit.run(case, trials=2000, seed=9)
    assert audit.run(case, trials=2000, seed=9).audited != audit.run(case, trials=2000, seed=10).audited


def test_a_row_becomes_evidence_in_a_statement():
    evidence = rows("two-point")[0].evidence()
    assert isinstance(evidence, AuditBound)
    assert evidence.trials == 80_000


def test_halving_the_noise_of_any_scalar_mechanism_is_noticed():
    honest, weak = Laplace(2.0, Box()), Laplace(4.0, Box())
    proven = honest.guarantee(Adjacency.COORDINATE).loss.epsilon
    row = audit.run(case_with(columns(weak, 1.0, -1.0), proven=proven), trials=100_000)
    assert row.verdict == audit.VIOLATED


@pytest.mark.parametrize("trials", [0, 99, 10**9, True, 1e5, "many"])
def test_absurd_numbers_of_trials_are_refused(trials):
    with pytest.raises(InvalidInput, match="trials"):
        audit.run(cases("label")[0], trials=trials)


@pytest.mark.parametrize("epsilon", [0, -1, math.nan, math.inf, 21, "1", True])
def test_absurd_strengths_are_refused(epsilon):
    with pytest.raises(InvalidInput, match="epsilon"):
        cases("two-point", epsilon)


def test_an_unknown_mechanism_is_refused_with_the_known_ones():
    with pytest.raises(InvalidInput, match="two-point"):
        cases("laplacian")


def test_the_part_of_a_record_that_is_audited_has_the_records_own_probabilities():
    whole = BitRandomizer.theorem2(0.5, BitString(10_240))
    assert whole.bit_losses()[0] == pytest.approx(2.302674, abs=1e-6)
    assert whole.bit_losses()[1] == pytest.approx(4.510771, abs=1e-6)
    row = rows("bits")[0]
    assert row.proven == pytest.approx(whole.bit_losses()[0], rel=1e-12)


def test_two_point_rows_state_what_the_paper_claims_for_each_channel():
    scalar, upload, shuffled_upload = rows("two-point")
    assert (scalar.claimed, upload.claimed, shuffled_upload.claimed) == (1.0, 100.0, 1.0)
    assert scalar.proven == pytest.approx(TwoPoint(1.0).proven_epsilon())

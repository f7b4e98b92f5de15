"""Scores and draws of single uploads: the likelihood ratios are the mechanisms' own, and reach what is proven."""

import math

import numpy as np
import pytest

from sordino.audits import lower_bound as audit
from sordino.audits.uploads import AuditedClient, Crowd, curve, single_values, whole
from sordino.errors import InvalidInput
from sordino.mechanisms import (
    Box,
    ClipOnly,
    Exponential,
    FiniteSet,
    Gaussian,
    IntegerRange,
    L1Ball,
    L2Ball,
    Laplace,
    NoPrivacy,
    Piecewise,
    PrivUnitG,
    RandomizedLabel,
    RandomizedSign,
    Sphere,
    TwoPoint,
)
from sordino.mechanisms.cases import Case
from sordino.mechanisms.output import BitOutput, IntegerOutput
from sordino.methods.upload import Upload
from sordino.privacy import accountant
from sordino.privacy.amplification import count_pair
from sordino.privacy.guarantee import SERVER, Adjacency, GaussianLoss
from sordino.randomness import Keystream

VALUES = 4
WIDE = 400  #: values of uploads of which each value is a trial


def mechanisms(values):
    by_layer = Box.per_tensor([values - 1, 1], [0.0, 5.0], [1.0, 0.1])
    return {
        "two-point": TwoPoint(0.5, Box(1.0, 2.0)),
        "two-point, by layer": TwoPoint(0.5, by_layer),
        "sign": RandomizedSign.gaussian(4.0, Box(0.0, 2.0)),
        "sign, response": RandomizedSign.response(0.5, Box()),
        "laplace": Laplace(0.5, Box(-1.0, 3.0)),
        "laplace, by layer": Laplace(0.5, by_layer),
        "laplace, l1": Laplace(2.0, L1Ball(3.0)),
        "gaussian": Gaussian.analytic(2.0, 1e-5, Box(0.0, 2.0), values=4),
        "gaussian, l2": Gaussian.analytic(2.0, 1e-5, L2Ball(3.0), values=4),
        "exponential": Exponential(0.5 / 10_000, IntegerRange(1.0, 4)),
        "piecewise": Piecewise(0.5, Box(1.0, 2.0)),
        "privunit": PrivUnitG(2.0, Sphere(3.0)),
    }


MECHANISMS = mechanisms(VALUES)


def sender(mechanism, *, values=VALUES, samples=False, stream=0):
    upload = Upload(lambda _: mechanism, None, values, clients=3, what="update", samples=samples)
    return AuditedClient(upload, 1, stream)


def case(mechanism, sampler, adjacency=Adjacency.CLIENT, values=VALUES):
    guarantee = mechanism.guarantee(adjacency, values=values)
    delta = 1e-5 if isinstance(guarantee.loss, GaussianLoss) else 0.0
    proven = accountant.epsilon(guarantee.loss, delta)
    if isinstance(mechanism, PrivUnitG):  # what is claimed of real numbers is looked at as if it were proven
        proven = mechanism.claim().epsilon
    points = curve(accountant.compose([guarantee.loss]), proven) if delta else ()
    return Case("x", "upload", adjacency, SERVER, None, proven, delta, "proof", "ends", points, sampler=sampler)


@pytest.mark.parametrize("name", list(MECHANISMS))
def test_the_worst_pair_reaches_most_of_what_is_proven_and_never_more(name):
    mechanism = MECHANISMS[name]
    row = audit.run(case(mechanism, whole(sender(mechanism), *mechanism.worst_pair(VALUES))), trials=8_000, seed=2)
    assert row.verdict == audit.UNTESTED
    # Gaussian and bounded exponential noise reach their epsilon only where next to no outputs are.
    least = 0.4 if row.delta or name == "exponential" else 0.6
    assert least * row.proven < row.audited <= row.proven


@pytest.mark.parametrize("name", [name for name, m in MECHANISMS.items() if m.domain.by_value])
def test_one_value_reaches_most_of_what_is_proven_of_it(name):
    mechanism = mechanisms(WIDE)[name]
    sampler = single_values(sender(mechanism, values=WIDE), *mechanism.worst_pair(WIDE))
    row = audit.run(case(mechanism, sampler, Adjacency.COORDINATE), trials=60_000, seed=2)
    assert row.verdict == audit.UNTESTED
    assert 0.4 * row.proven < row.audited <= row.proven


@pytest.mark.parametrize(
    ("honest", "broken"),
    [
        (TwoPoint(1.0, Box()), TwoPoint(2.0, Box())),
        (Laplace(1.0, Box()), Laplace(2.0, Box())),
        (Laplace(2.0, L1Ball(1.0)), Laplace(4.0, L1Ball(1.0))),
        (Gaussian(4.0, L2Ball(1.0)), Gaussian(2.0, L2Ball(1.0))),
        (Gaussian(8.0, Box()), Gaussian(4.0, Box())),
        (PrivUnitG(2.0), PrivUnitG(4.0)),
        (Exponential(0.5, IntegerRange(1.0, 0)), Exponential(1.0, IntegerRange(1.0, 0))),  # on -1, 0, 1
        (Piecewise(1.0, Box()), Piecewise(2.0, Box())),
    ],
    ids=["two-point", "laplace", "laplace-l1", "gaussian-l2", "gaussian", "privunit", "exponential", "piecewise"],
)
def test_half_of_the_noise_is_caught(honest, broken):
    sampler = whole(sender(broken), *honest.worst_pair(VALUES))
    row = audit.run(case(honest, sampler), trials=10_000, seed=1)
    assert row.verdict == audit.VIOLATED
    assert "by the proof" in row.note


def test_half_of_gaussian_noise_is_below_the_proven_epsilon_and_caught_by_the_curve():
    honest = Gaussian(4.0, L2Ball(1.0))
    found = case(honest, whole(sender(Gaussian(2.0, L2Ball(1.0))), *honest.worst_pair(VALUES)))
    row = audit.run(found, trials=5000, seed=1)
    assert row.audited < row.proven
    assert row.verdict == audit.VIOLATED
    alone = Case(**{**vars(found), "curve": ()})
    assert audit.run(alone, trials=5000, seed=1).verdict == audit.UNTESTED


# --- likelihood ratios ------------------------------------------------------------------------------------------------


def test_bits_have_the_exact_ratio():
    mechanism = TwoPoint(1.0, Box())
    score = mechanism.likelihood_ratio(*mechanism.worst_pair(2))
    epsilon = mechanism.proven_epsilon()
    bits = BitOutput.pack(np.array([[True, False], [True, True]]))
    assert score(bits) == pytest.approx(np.array([[epsilon, -epsilon], [epsilon, epsilon]]), abs=1e-6)


def test_the_probability_of_a_one_is_that_of_the_paper():
    mechanism = TwoPoint(math.log(3), Box(1.0, 2.0))  # from 1/4 at one end to 3/4 at the other
    assert mechanism.one_probability(np.array([-1.0, 1.0, 2.0, 3.0])) == pytest.approx(
        [0.25, 0.5, 0.625, 0.75], abs=1e-6
    )


def test_noise_that_falls_exponentially_tells_by_distances_in_units_of_the_radius():
    mechanism = Laplace(1.0, Box.per_tensor([1, 1], [0.0, 10.0], [1.0, 2.0]))
    score = mechanism.likelihood_ratio(*mechanism.worst_pair(2))
    steps = mechanism.grid(2).steps
    outputs = IntegerOutput(np.array([[0, 0], [steps, -steps], [3 * steps, steps // 2]]), np.zeros(3), np.zeros(3))
    assert score(outputs) == pytest.approx(np.array([[0, 0], [2, -2], [2, 1]]))


def test_values_outside_the_domain_count_as_clipped():
    mechanism = Gaussian(1.0, Box())
    inside = mechanism.likelihood_ratio(*mechanism.worst_pair(1))
    outside = mechanism.likelihood_ratio(np.full(1, 9.0), np.full(1, -9.0))
    output = mechanism.randomize(np.zeros(1), Keystream.simulation(1, [0], 0)).output
    assert inside(output) == pytest.approx(outside(output))


@pytest.mark.parametrize(
    ("mechanism", "first"),
    [
        (NoPrivacy(), [1, 1, 1]),
        (ClipOnly(Box(1.0, 2.0)), [3, 3, 3]),
        (ClipOnly(L2Ball(2.0)), [2, 0, 0]),
        (TwoPoint(1.0, Box([0, 1, 2], [1, 1, 3])), [1, 2, 5]),
        (Exponential(0.1, IntegerRange(2.5, 2)), [2.5] * 3),
        (Laplace(1.0, L1Ball(4.0)), [4, 0, 0]),
    ],
    ids=["none", "clip-box", "clip-ball", "box", "integers", "l1"],
)
def test_worst_pairs_lie_at_the_ends_of_the_domain(mechanism, first):
    assert mechanism.worst_pair(3)[0].tolist() == first


def test_without_noise_the_audit_reaches_its_cap():
    row = audit.run(case(NoPrivacy(), whole(sender(NoPrivacy()), *NoPrivacy().worst_pair(VALUES))), trials=1000)
    assert row.audited == row.cap
    assert math.isinf(row.proven)
    assert row.verdict == audit.UNTESTED


def test_what_has_no_worst_pair_is_refused():
    with pytest.raises(InvalidInput, match="furthest apart"):
        RandomizedLabel(1.0, FiniteSet(3)).worst_pair(1)


def test_a_mechanism_with_a_law_alone_has_the_ratio_of_its_probabilities():
    """Of three labels at e^eps = 2 the true one is kept with probability 1/2, and each other comes with 1/4."""
    mechanism = RandomizedLabel(math.log(2), FiniteSet(3))
    score = mechanism.likelihood_ratio(np.array([0]), np.array([1]))
    outputs = IntegerOutput(np.array([[0], [1], [2]]), np.zeros(3, np.int64), np.full(3, 2))
    assert score(outputs)[:, 0] == pytest.approx([math.log(2), -math.log(2), 0.0], abs=1e-6)


# --- drawing ----------------------------------------------------------------------------------------------------------


def test_every_trial_has_randomness_of_its_own_and_the_same_seed_the_same_draws():
    sampler = whole(sender(MECHANISMS["gaussian"]), *MECHANISMS["gaussian"].worst_pair(VALUES))
    first, again, other = sampler(True, 500, 1), sampler(True, 500, 1), sampler(True, 500, 2)
    assert np.array_equal(first, again)
    assert len(np.unique(first)) > 400
    assert not np.array_equal(first, other)


def test_a_sample_count_before_the_values_is_left_alone():
    mechanism = MECHANISMS["two-point"]
    plain, counted = (
        whole(sender(mechanism, samples=samples), *mechanism.worst_pair(VALUES))(True, 200, 1)
        for samples in (False, True)
    )
    assert np.array_equal(plain, counted)


# --- crowds -----------------------------------------------------------------------------------------------------------


def crowd(size: int, epsilon: float = 1.0, values: int = 3) -> Crowd:
    mechanism = TwoPoint(epsilon, Box())
    return Crowd(sender(mechanism, values=values), size, *mechanism.worst_pair(values))


@pytest.mark.parametrize(("size", "epsilon"), [(2, 1.0), (10, 2.0), (50, 0.5)])
def test_counts_have_the_exact_ratio(size, epsilon):
    mechanism = TwoPoint(epsilon)
    pair = count_pair(size, mechanism.proven_epsilon())
    assert crowd(size, epsilon).table() == pytest.approx(pair.losses, abs=1e-5)


def test_a_crowd_of_one_is_the_client_alone():
    alone, sole = crowd(1).uploads(True, 300, 1), whole(crowd(1).sender, crowd(1).first, crowd(1).second)(True, 300, 1)
    assert alone == pytest.approx(sole, abs=1e-5)


def test_counts_add_up_all_reports_of_a_trial():
    found = np.concatenate(list(crowd(20).counts(400, 1, world=False)))
    assert found.shape == (400, 3)
    # 20 clients at the lower end send a one with 1/(1 + e) = 0.269 each
    assert found.mean() == pytest.approx(20 / (1 + math.e), abs=0.3)


def test_single_counts_stay_below_what_is_proven_and_show_most_of_it():
    one = crowd(10, 2.0)
    pair = count_pair(10, TwoPoint(2.0).proven_epsilon())
    delta = 1e-3
    proven = next(e for e in np.linspace(0, 3, 3001) if max(pair.delta(e), pair.reversed().delta(e)) <= delta)
    found = Case("x", "count", Adjacency.COORDINATE, SERVER, None, proven, delta, "", "", sampler=one.single_values)
    row = audit.run(found, trials=60_000, seed=1)
    assert 0.6 * proven < row.audited <= proven


def test_whole_models_without_names_are_told_by_the_one_that_stands_out():
    found = crowd(5, 1.0, values=200)
    assert found.models(True, 200, 1).mean() > found.models(False, 200, 1).mean() + 50

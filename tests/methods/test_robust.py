"""Reports that are bounded by a norm, and rules that a few hostile reports move little."""

import itertools

import numpy as np
import pytest
from benchmarks.influence_bounds import on_mean
from pydantic import ValidationError

from sordino.errors import InvalidInput
from sordino.mechanisms import Box, Laplace, NoPrivacy
from sordino.methods import robust
from sordino.methods.blueprint import blueprint_of
from sordino.methods.fedavg import FedAvg
from sordino.methods.interface import PAST
from sordino.methods.robust import AgreementTally, RobustTally, agreement, check_room, median, norm_filter, trimmed_mean
from sordino.methods.upload import ReportSum, Upload
from sordino.randomness import Keystream
from sordino.recipe import Recipe
from sordino.report.expectations import sentences
from sordino.runs.federation import wire
from sordino.runs.observer import Observer
from sordino.runs.preflight import of_federation
from sordino.runs.simulation import run
from tests.engine.tiny import TWO_POINT, recipe

DP_SGD = {"training": {"optimizer": {"name": "sgd", "lr": 0.1}}}
SILOS = {**DP_SGD, "method": {"name": "silo-dp", "noise_multiplier": 1.0}}
RULES = ("trimmed-mean", "median", "norm-filter", "agreement")


def plain(**options):
    return Upload(lambda _: NoPrivacy(), None, 2, clients=9, what="update", **options)


def bodies(*rows):
    return [np.array(row, "<f4").tobytes() for row in rows]


def rows(*given):
    return np.array(given, np.float32)


# --- a norm -----------------------------------------------------------------------------------------------------------


def test_a_norm_scales_longer_reports_to_it_and_leaves_shorter_ones_bit_for_bit():
    short = (0.1, -0.7)
    for report, expected in [((3.0, 4.0), (0.6, 0.8)), ((-16_000.0, 0.0), (-1.0, 0.0))]:
        tally = plain(norm=1.0).tally()
        assert tally.add([0], bodies(report)) == {}
        assert tally.mean() == pytest.approx(expected, abs=1e-9)
    bounded, free = plain(norm=1.0).tally(), plain().tally()
    for tally in (bounded, free):
        tally.add([0, 1], bodies(short, (0.0, 1.0)))
    assert (bounded.mean() == free.mean()).all()


def test_a_norm_bounds_the_estimates_of_noisy_whole_numbers():
    part = Upload(
        lambda e: Laplace(e, Box(0.0, 1.0)), [1.0, 2.0], 50, clients=2, what="update", norm=0.5
    )  # fmt: skip
    sent = part.send([0, 1], np.zeros((2, 50)), lambda c: Keystream.simulation(1, list(c), 1), [1, 1]).bodies
    for client in (0, 1):
        tally = part.tally([1.0, 0.25])
        tally.add([client], [sent[client]])
        assert np.linalg.norm(tally.mean()) == pytest.approx(0.5, rel=1e-6)


def test_a_report_that_is_not_finite_is_refused_with_a_norm_too():
    for bad in (np.nan, np.inf):
        assert list(plain(norm=1.0).tally().add([3], bodies((bad, 0.0)))) == [3]


def test_with_a_norm_two_worst_reports_are_two_norms_apart():
    part = plain(norm=0.25)
    found = on_mean(part.tally(), [4], 0)
    means = []
    for end in found.reach.ends:
        tally = part.tally()
        tally.add([0, 1, 2, 3], [*bodies((0.0, 0.0), (0.1, 0.0), (0.0, 0.1)), end])
        means.append(tally.mean())
    assert found.length == pytest.approx(2 * 0.25 / 4)
    assert np.linalg.norm(means[1] - means[0]) == pytest.approx(found.length)


@pytest.mark.parametrize("norm", [0.0, -1.0, np.inf, np.nan])
def test_a_norm_that_is_none_is_refused(norm):
    with pytest.raises(ValidationError, match="norm"):
        FedAvg.Spec(norm=norm)


def test_every_plan_announces_the_norm_and_without_one_plans_are_as_before():
    for changes, settings in [({"method.norm": 2.0}, {"norm": "2.0"}), ({}, {})]:
        found = recipe({**SILOS, **changes})
        blueprint, _ = blueprint_of(found, (1, 8, 8), 10, (10,) * found.number_of_clients)
        method = blueprint.recipe.method.build(blueprint)
        assert method.plan(method.init(), "f").settings == settings


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"method.channel": {"kind": "summed"}}, "no single report"),
        ({"method": {"name": "fedavg", "upload": "weights"}}, "update"),
        ({"method": {"name": "fedavg"}, **TWO_POINT}, "two points"),
    ],
    ids=["summed", "weights", "bits"],
)
def test_a_norm_is_refused_where_it_shortens_nothing(changes, reason):
    with pytest.raises(InvalidInput, match=reason) as caught:
        recipe({**(SILOS if "method" not in changes else {}), **changes, "method.norm": 1.0})
    assert "method.norm" in str(caught.value)


@pytest.mark.parametrize(("norm", "words"), [(1.0, "slows down"), (5.5, "it fits"), (16.0, "3 times as long")])
def test_the_preflight_says_how_the_norm_fits_an_honest_report(norm, words):
    """2 * 2.6473 / 56 * sqrt(5 * 650) = 5.39 is the length of the noise alone."""
    said = sentences(of_federation(wire(Recipe.load("webfed-digits", [f"method.norm={norm}"]))))
    (about,) = [sentence for sentence in said if "method.norm" in sentence]
    assert words in about
    assert "5.39" in about


# --- rules, by hand ---------------------------------------------------------------------------------------------------

FIVE = rows((1, 10), (2, 20), (3, 30), (4, 40), (1000, -1000))


def test_rules_by_hand():
    assert trimmed_mean(FIVE, 0.2).tolist() == [3, 20]  # of 2, 3, 4 and of 10, 20, 30
    assert trimmed_mean(FIVE, 0.21).tolist() == [3, 20]  # two at each end: the third alone
    assert median(FIVE).tolist() == [3, 20]
    assert median(FIVE[:4]).tolist() == [2.5, 25]
    # from the median (3, 20) the distances are 10.2, 1, 10, 20.02 and 1428: the median of them is 10.2
    assert norm_filter(FIVE, 1.5).tolist() == [2, 20]
    assert norm_filter(FIVE, 2.0).tolist() == [2.5, 25]


def test_a_trimmed_mean_of_three_or_more_leaves_out_one_at_each_end_however_small_the_share():
    given = rows((0,), (1,), (16_384,))
    assert trimmed_mean(given, 1e-12).tolist() == [1]
    assert trimmed_mean(given[1:], 1e-12).tolist() == [8192.5]  # of two no rule can tell


def test_agreement_is_the_same_in_every_order_of_arrival_where_scores_are_equal():
    given = rows((1, 0), (-2, 0), (0, 3), (0, -4))
    found = {tuple(agreement(given[list(order)], 0.2)) for order in itertools.permutations(range(4))}
    assert len(found) == 1


def test_agreement_leaves_out_what_points_least_where_the_others_do():
    given = rows((1, 0), (0.8, 0.6), (0.6, 0.8), (0, 1), (-3, -4))
    assert agreement(given, 0.2) == pytest.approx([0.7, 0.7])  # of 0.6 and 0.8, without 0 and 1
    assert agreement(given[[0, 1, 2, 4]], 0.2) == pytest.approx([0.8, 0.6])  # the median of three
    assert agreement(rows((0, 0), (0, 0), (1, 1)), 0.2).tolist() == [0.5, 0.5]


def test_agreement_remembers_what_the_others_sent_and_not_what_the_sender_did():
    """Opposite reports of one round: whose the past of the others supports is kept, whatever the liar sent before."""
    part = plain(norm=10.0)

    def round_of(past, *given):
        tally = AgreementTally(part, 0.2)
        tally.add(list(range(len(given))), bodies(*given))
        return tally.agreed(past)

    none = np.zeros((9, 2), np.float32)
    _, past = round_of(none, (4, 0), (0, 3), (1, 1))
    assert past[:4] == pytest.approx(rows((1, 0), (0, 1), (0.5**0.5, 0.5**0.5), (0, 0)))
    _, after = round_of(past, (1, 0), (0, 1), (-1, -1))
    assert after[0] == pytest.approx([1.8, 0])
    opposite = ((1, 0), (-1, 0), (0, 1))  # this round alone cannot tell which of the first two is wrong
    for before in ((0, 0), (-2, 0)):
        past = none.copy()
        past[0], past[1], past[2] = (2, 0), before, (2, 0)
        assert round_of(past, *opposite)[0] == pytest.approx([0.5, 0.5])


def test_what_a_server_remembers_is_in_its_state_and_in_no_plan():
    found = recipe({**SILOS, "method.norm": 2.0, "method.aggregation": {"kind": "agreement"}})
    blueprint, _ = blueprint_of(found, (1, 8, 8), 10, (10,) * found.number_of_clients)
    method = blueprint.recipe.method.build(blueprint)
    state = method.init()
    assert {name: array.shape for name, array in state.arrays.items()} == {PAST: (found.number_of_clients, 650)}
    plan = method.plan(state, "f")
    assert list(plan.arrays) == ["parameters"]
    tally = method.tally(plan)
    tally.add([0, 1, 2], [np.full(650, x, "<f4").tobytes() for x in (0.01, 0.01, -0.01)])
    after = method.update(state, plan, tally)
    assert after.parameters - state.parameters == pytest.approx(np.full(650, 0.01), rel=1e-3)
    assert np.linalg.norm(after.arrays[PAST][:3], axis=1) == pytest.approx([1, 1, 1])
    assert not after.arrays[PAST][3:].any()
    assert method.view(after).buffers is None


@pytest.mark.parametrize("reports", [1, 2, 3, 4])
def test_few_reports_are_never_all_left_out(reports):
    given = rows((1, 2), (1, 2), (1, 2), (1, 2))[:reports]
    for rule in (lambda r: trimmed_mean(r, 0.49), median, lambda r: norm_filter(r, 1.5), lambda r: agreement(r, 0.49)):
        assert rule(given).tolist() == [1, 2]


@pytest.mark.parametrize("tile", [7, robust.TILE])
def test_rules_do_not_depend_on_the_order_of_arrival(tile, monkeypatch):
    monkeypatch.setattr(robust, "TILE", tile)
    given = np.random.default_rng(5).normal(size=(7, 13)).astype(np.float32)
    for rule in (lambda r: trimmed_mean(r, 0.2), median, lambda r: norm_filter(r, 1.1), lambda r: agreement(r, 0.2)):
        first = rule(given)
        for seed in range(5):
            assert (rule(np.random.default_rng(seed).permutation(given)) == first).all()


def test_a_tally_puts_estimates_of_all_classes_together_by_the_rule():
    part = Upload(
        lambda e: Laplace(e, Box(5.0, 1.0)), [50.0, 60.0, 50.0], 4, clients=3, what="weights"
    )  # fmt: skip
    sent = part.send(range(3), np.full((3, 4), 5.5), lambda c: Keystream.simulation(1, list(c), 1), [1] * 3).bodies
    estimates = [part.mechanisms[part.class_of[k]] for k in range(3)]
    decoded = [m.estimate(m.decode([body], 4))[0] for m, body in zip(estimates, sent, strict=True)]
    tally = RobustTally(part, median)
    assert tally.add(range(3), sent) == {}
    assert tally.mean() == pytest.approx(np.median(decoded, axis=0), rel=1e-6)
    assert tally.noise() is None
    assert tally.reports == tally.weight == 3


def test_a_tally_with_a_rule_takes_no_sums_and_needs_a_report():
    tally = RobustTally(plain(), median)
    with pytest.raises(InvalidInput, match="single reports"):
        tally.add_sum(ReportSum(0, (0, 1), np.zeros(2, np.int64), 3))
    with pytest.raises(InvalidInput, match="no report"):
        tally.mean()
    with pytest.raises(InvalidInput, match="robust"):
        on_mean(tally, [4], 0)


class Interrupted(Exception):
    pass


class Stop(Observer):
    def round(self, record, attendance):
        if record.round == 2:
            raise Interrupted


# --- in recipes -------------------------------------------------------------------------------------------------------

BITS = {**TWO_POINT, "method.mechanism": {"name": "two-point"}}


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({**SILOS, "method.channel": {"kind": "summed"}}, "no single report"),
        (BITS, "single bits"),
        (
            {
                "method": {"name": "ldp-fl", "range": {"kind": "fixed", "radius": 0.1}},
                "method.channel": {"kind": "shuffled", "granularity": "model"},
                "clients.epsilon": 1.0,
            },
            "shuffler",
        ),
    ],
    ids=["summed", "bits", "shuffled"],
)
def test_a_rule_is_refused_where_no_single_report_is_seen(kind, changes, reason):
    if kind == "agreement" and "ldp-fl" in str(changes):
        reason = "agreement"  # whole weights have no agreement anyway
    with pytest.raises(InvalidInput, match=reason) as caught:
        recipe({**changes, "method.aggregation": {"kind": kind}})
    assert "method.aggregation" in str(caught.value)


def test_agreement_is_of_updates():
    with pytest.raises(InvalidInput, match="updates"):
        recipe({"method": {"name": "fedavg", "upload": "weights"}, "method.aggregation": {"kind": "agreement"}})


def test_agreement_needs_a_norm_since_it_goes_by_directions():
    with pytest.raises(InvalidInput, match="directions") as caught:
        recipe({**SILOS, "method.aggregation": {"kind": "agreement"}})
    assert "method.norm" in str(caught.value)


def test_reports_that_take_more_room_than_there_is_are_refused_when_wired():
    check_room(2**18, 2**10)
    with pytest.raises(InvalidInput, match=r"1\.0 GB.*method\.selection"):
        check_room(2**18 + 1, 2**10)
    with pytest.raises(InvalidInput, match="robust aggregation"):
        wire(recipe({"split.clients": 1000, "split.at_least": 0, "data.train_limit": 500,
                     "model": {"name": "mlp", "options": {"hidden": [4000]}},
                     "method.aggregation": {"kind": "median"}}))  # fmt: skip


@pytest.mark.parametrize("kind", RULES)
def test_every_rule_learns_and_an_interrupted_run_comes_to_the_same_model(kind, tmp_path):
    found = recipe({"method.aggregation": {"kind": kind}, "method.norm": 50.0, "rounds.count": 4})
    whole = run(found, workers=1, folder=tmp_path / "whole")

    with pytest.raises(Interrupted):
        run(found, workers=1, folder=tmp_path / "part", observer=Stop())
    again = run(found, workers=1, folder=tmp_path / "part", resume=True)
    assert (again.parameters == whole.parameters).all()
    assert whole.accuracy > 0.2


@pytest.mark.parametrize(
    "changes",
    [
        {"method": {"name": "webfed", "range": {"kind": "fixed", "radius": 0.5}}, "clients.epsilon": 50.0},
        {"method": {"name": "personalized", "range": {"kind": "fixed", "radius": 1.0},
                    "mechanism": {"name": "gaussian", "calibration": "sigma", "sigma": 0.1}}},
        {"method": {"name": "ldp-fed", "scope": {"kind": "all"}, "range": {"kind": "fixed", "radius": 1.0},
                    "mechanism": {"name": "exponential", "precision": 3}}, "clients.epsilon": 100.0},
        SILOS,
    ],
    ids=["webfed", "personalized", "ldp-fed", "silo-dp"],
)  # fmt: skip
def test_methods_with_single_reports_take_a_rule(changes):
    found = recipe({**changes, "method.aggregation": {"kind": "median"}})
    blueprint, _ = blueprint_of(found, (1, 8, 8), 10, (10,) * found.number_of_clients)
    method = blueprint.recipe.method.build(blueprint)
    assert isinstance(method.tally(method.plan(method.init(), "f")), RobustTally)

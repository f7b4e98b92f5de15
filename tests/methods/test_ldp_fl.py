"""LDP-FL: ranges by layer, weights as bits, what each channel lets the paper claim and what is proven behind it."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from sordino import channels
from sordino.channels.direct import Direct
from sordino.channels.shuffle import ShuffledChannel
from sordino.errors import InvalidInput
from sordino.fleets.simulated import SimulatedFleet
from sordino.learning import models
from sordino.mechanisms import TwoPoint
from sordino.methods.interface import Bench, State
from sordino.methods.sun_ldp_fl import RANGE, SMALLEST_RADIUS, AdaptiveRange, LdpFl
from sordino.methods.upload import Upload
from sordino.privacy.accountant import bit_epsilon
from sordino.privacy.guarantee import SERVER, Adjacency, Release, shuffled
from sordino.privacy.statement import Row, Statement
from sordino.recipe import Recipe, RecipeInvalid, shipped
from sordino.runs.coordinator import Coordinator
from sordino.runs.federation import Federation, wire
from sordino.runs.outcome import Outcome
from sordino.runs.simulation import run
from tests.engine.tiny import BATCH_NORM, TINY, VALUES

LAYOUT = models.parameter_layout(models.build("mlp", input_shape=(64,), classes=10, hidden=[8]))  # 520 and 90 values
ADAPTIVE: dict[str, Any] = {"method.range": {"kind": "adaptive"}}
PARAMETERS: dict[str, Any] = {"method.channel": {"kind": "shuffled", "granularity": "parameter"}}
MODELS: dict[str, Any] = {"method.channel": {"kind": "shuffled", "granularity": "model"}}
EPSILON = 0.5
TWO_LAYERS: dict[str, Any] = {"model": {"name": "mlp", "options": {"hidden": [8]}}}


def settings(changes: dict[str, Any] | None = None) -> Recipe:
    """LDP-FL on a few digits, with other settings by dotted key."""
    ldp_fl = {
        "method": {"name": "ldp-fl", "range": {"kind": "fixed", "radius": 0.2}},
        "clients": {"epsilon": EPSILON},
    }
    return Recipe.from_dict({**TINY, **ldp_fl}).with_(changes or {})


def ldp_fl(federation: Federation) -> LdpFl:
    assert isinstance(federation.method, LdpFl)
    return federation.method


def rounds(recipe: Recipe, count: int, channel: Any = None) -> list[State]:
    """The states after each of some rounds, the initial one first."""
    federation = wire(recipe)
    fleet = SimulatedFleet(federation.work(Bench()), None)
    with_channel = channel or channels.build(recipe, federation.method)
    coordinator = Coordinator(federation.method, fleet, with_channel, "test")
    states = [federation.method.init()]
    for _ in range(count):
        states.append(coordinator.round(states[-1])[0])
    return states


# --- ranges -----------------------------------------------------------------------------------------------------------


def values(first: Any, second: Any) -> np.ndarray:
    """Values of two layers: each given by a few that stand at their beginning, the rest being the first of them."""
    flat = np.concatenate([np.full(520, first[0]), np.full(90, second[0])]).astype(np.float32)
    flat[: len(first)], flat[520 : 520 + len(second)] = first, second
    return flat


def test_a_layers_range_spans_its_values() -> None:
    found = AdaptiveRange().of(values([1.0, -3.0, 0.5], [0.25, 0.75]), LAYOUT.layers)
    assert found.tolist() == [[-1.0, 0.5], [2.0, 0.25]]


def test_slack_widens_the_radius_and_leaves_the_centre() -> None:
    found = AdaptiveRange(slack=1.5).of(values([1.0, -3.0], [0.25, 0.75]), LAYOUT.layers)
    assert found.tolist() == [[-1.0, 0.5], [3.0, 0.375]]


def test_a_quantile_leaves_out_as_much_at_both_ends() -> None:
    spread = np.concatenate([np.linspace(-2, 2, 520), np.linspace(0, 1, 90)]).astype(np.float32)
    centre, radius = AdaptiveRange(quantile=0.9).of(spread, LAYOUT.layers)
    assert centre.tolist() == pytest.approx([0, 0.5], abs=1e-6)
    assert radius.tolist() == pytest.approx([1.8, 0.45], abs=1e-6)


def test_a_layer_of_equal_weights_still_has_an_interval() -> None:
    centre, radius = AdaptiveRange().of(values([1.0], [0.0, 1.0]), LAYOUT.layers)
    assert (centre[0], radius[0]) == (1, np.float32(SMALLEST_RADIUS))


@given(arrays.arrays(np.float32, 610, elements=st.floats(-100, 100, width=32)))
def test_every_value_of_the_mean_lies_within_its_layers_range(mean: np.ndarray) -> None:
    centre, radius = AdaptiveRange().of(mean, LAYOUT.layers)
    for k, layer in enumerate(LAYOUT.layers):
        own = mean[layer.start : layer.stop].astype(np.float64)
        assert np.abs(own - centre[k]).max() <= radius[k] * (1 + 1e-6) + 1e-5


def test_the_first_range_is_the_stated_one_for_all_layers_or_by_layer() -> None:
    one = wire(settings({**TWO_LAYERS, "method.range": {"kind": "adaptive", "radius": 0.5, "centre": 0.1}}))
    assert one.method.init().arrays[RANGE].tolist() == np.float32([[0.1, 0.1], [0.5, 0.5]]).tolist()
    names = [layer.name for layer in LAYOUT.layers]
    by_layer = {"kind": "adaptive", "radius": dict(zip(names, [0.5, 0.25], strict=True))}
    two = wire(settings({**TWO_LAYERS, "method.range": by_layer}))
    assert two.method.init().arrays[RANGE].tolist() == [[0, 0], [0.5, 0.25]]


def test_without_a_stated_one_it_spans_the_initial_weights_which_are_public() -> None:
    federation = wire(settings({**TWO_LAYERS, "method.range": {"kind": "adaptive", "slack": 2.0}}))
    state = federation.method.init()
    assert (state.arrays[RANGE] == AdaptiveRange(slack=2.0).of(state.parameters, LAYOUT.layers)).all()


def test_layers_that_the_model_lacks_are_refused() -> None:
    with pytest.raises(InvalidInput, match=r"radius.*this model has"):
        wire(settings({**TWO_LAYERS, "method.range": {"kind": "adaptive", "radius": {"wrong": 1.0}}}))


def test_ranges_follow_the_noisy_mean_and_travel_in_the_plan() -> None:
    recipe = settings({**TWO_LAYERS, **ADAPTIVE})
    method = ldp_fl(wire(recipe))
    for before, after in zip((states := rounds(recipe, 3))[:-1], states[1:], strict=True):
        assert (after.arrays[RANGE] == AdaptiveRange().of(after.parameters, LAYOUT.layers)).all()
        assert (after.arrays[RANGE] != before.arrays[RANGE]).any()
        plan = method.plan(after, "test")
        (mechanism,) = method.upload(plan).mechanisms
        sizes = [layer.size for layer in LAYOUT.layers]
        assert isinstance(mechanism, TwoPoint)
        assert (mechanism.domain.centre == np.repeat(after.arrays[RANGE][0], sizes)).all()
        assert (mechanism.domain.radius == np.repeat(after.arrays[RANGE][1], sizes)).all()


def test_every_weight_of_a_round_is_one_of_few_points_within_its_layers_range() -> None:
    """The mean of 4 reports of c +- r K is c + r K (2 k/4 - 1) for k ones."""
    before, after = rounds(settings({**TWO_LAYERS, **ADAPTIVE}), 1)
    k = (math.exp(EPSILON) + 1) / (math.exp(EPSILON) - 1)
    centre, radius = (np.repeat(row, [520, 90]) for row in before.arrays[RANGE].astype(np.float64))
    ones = ((after.parameters - centre) / (radius * k) + 1) * 2
    assert np.abs(ones - np.rint(ones)).max() < 1e-4
    assert set(np.rint(ones).tolist()) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize(
    "ranges",
    [np.ones((2, 3)), np.ones(4), np.zeros((2, 2)), np.full((2, 2), np.nan)],
    ids=["layers", "flat", "0", "nan"],
)
def test_a_plan_with_senseless_ranges_is_refused(ranges: np.ndarray) -> None:
    method = ldp_fl(wire(settings({**TWO_LAYERS, **ADAPTIVE})))
    plan = method.plan(method.init(), "test")
    with pytest.raises(InvalidInput):
        method.releases(replace(plan, arrays={**plan.arrays, RANGE: ranges.astype(np.float32)}))


def test_ranges_cost_nothing_more() -> None:
    fixed, adaptive = (wire(settings(changes)).method for changes in ({}, ADAPTIVE))
    assert fixed.releases(fixed.plan(fixed.init(), "x")) == adaptive.releases(adaptive.plan(adaptive.init(), "x"))


def test_the_range_is_no_part_of_the_model_that_is_handed_out() -> None:
    method = wire(settings(ADAPTIVE)).method
    assert method.view(method.init()).buffers is None
    outcome = run(settings({**ADAPTIVE, "rounds.count": 1}), workers=1)
    assert RANGE not in outcome.tensors


def test_released_statistics_have_a_range_of_their_own() -> None:
    recipe = settings({**BATCH_NORM, "model.buffers": "release", **ADAPTIVE, "training.batch_size": 2})
    names = [layer.name for layer in wire(recipe).upload.build.keywords["vectors"].layers]  # type: ignore[attr-defined]
    before, after = rounds(recipe, 1)
    assert names[-1] == "statistics"
    assert before.arrays[RANGE].shape == after.arrays[RANGE].shape == (2, len(names))
    assert (before.arrays[RANGE][:, -1] != after.arrays[RANGE][:, -1]).any()
    assert set(after.arrays) == {*wire(recipe).method.statistics.released, RANGE}  # type: ignore[attr-defined]


# --- the mean of weights ----------------------------------------------------------------------------------------------


def test_without_noise_it_is_federated_averaging_of_weights() -> None:
    plain = {"method.mechanism": {"name": "none"}, "method.range": None, "clients.epsilon": None}
    averaging = {"method": {"name": "fedavg", "upload": "weights"}, "clients.epsilon": None}
    assert np.array_equal(outcome_of(plain).parameters, outcome_of(averaging).parameters)


def test_a_range_that_follows_clipped_weights_without_noise_holds_their_mean() -> None:
    recipe = settings({**TWO_LAYERS, **ADAPTIVE, "method.mechanism": {"name": "clip-only"}, "clients.epsilon": None})
    before, after = rounds(recipe, 1)
    centre, radius = (np.repeat(row, [520, 90]) for row in before.arrays[RANGE])
    assert (np.abs(after.parameters - centre) <= radius * (1 + 1e-5)).all()
    assert not np.array_equal(after.parameters, before.parameters)


def test_a_fraction_of_the_clients_is_asked() -> None:
    outcome = run(settings({"method.selection": {"kind": "fraction", "p": 0.5}}), workers=1)
    assert [record.asked for record in outcome.rounds] == [2, 2, 2]


@pytest.mark.parametrize("channel", [PARAMETERS, MODELS], ids=["parameter", "model"])
@pytest.mark.parametrize("range_", [{}, ADAPTIVE], ids=["fixed", "adaptive"])
def test_shuffling_changes_nothing_that_is_learnt(channel: dict[str, Any], range_: dict[str, Any]) -> None:
    mixed = settings({**TWO_LAYERS, **range_, **channel, "clients.epsilon": [1.0, 2.0, 1.0, 2.0]})
    for state, direct in zip(rounds(mixed, 2), rounds(mixed, 2, Direct()), strict=True):
        assert np.array_equal(state.parameters, direct.parameters)


def test_the_number_of_workers_changes_nothing() -> None:
    recipe = settings({**TWO_LAYERS, **ADAPTIVE, **PARAMETERS})
    one, two = (run(recipe, workers=count).parameters for count in (1, 2))
    assert np.array_equal(one, two)


def test_an_interrupted_run_goes_on_with_its_ranges(tmp_path: Any) -> None:
    from sordino.runs.observer import Observer

    class Impatient(Observer):
        def round(self, record: Any, attendance: Any) -> None:
            if record.round == 2:
                raise KeyboardInterrupt

    recipe = settings({**TWO_LAYERS, **ADAPTIVE, **PARAMETERS, "rounds.count": 4})
    with pytest.raises(KeyboardInterrupt):
        run(recipe, folder=tmp_path / "run", workers=1, observer=Impatient())
    resumed = run(recipe, folder=tmp_path / "run", workers=1, resume=True)
    assert np.array_equal(resumed.parameters, run(recipe, workers=1).parameters)


# --- what is claimed, and what is proven ------------------------------------------------------------------------------


def row(statement: Statement, adversary: Any, adjacency: Adjacency = Adjacency.CLIENT) -> Row:
    (found,) = [r for r in statement.rows if (r.adversary, r.adjacency) == (adversary, adjacency)]
    return found


def outcome_of(changes: dict[str, Any]) -> Outcome:
    return run(settings(changes), workers=1)


def test_without_a_shuffler_the_claim_is_what_is_proven() -> None:
    """d T eps for d = 650, T = 3, eps = 1/2; a bit's own epsilon is rounded towards privacy, by some 10^-9."""
    found = row(outcome_of({}).statement, SERVER)
    assert found.claimed is not None
    assert found.claimed.epsilon == VALUES * 3 * EPSILON
    assert found.pure == pytest.approx(VALUES * 3 * EPSILON, rel=1e-7)
    assert found.verdict == "claim proven"
    assert row(outcome_of({}).statement, SERVER, Adjacency.COORDINATE).pure == pytest.approx(EPSILON, rel=1e-7)


def test_shuffled_models_are_claimed_to_stop_adding_up_over_rounds_and_do_not() -> None:
    statement = outcome_of(MODELS).statement
    found = row(statement, shuffled(4))
    assert found.claimed is not None
    assert found.claimed.epsilon == VALUES * EPSILON
    assert found.pure == pytest.approx(VALUES * 3 * EPSILON, rel=1e-7)
    assert found.reached is None
    assert found.verdict == "claim not supported"
    assert row(statement, SERVER).claimed is None


def test_shuffled_parameters_are_claimed_to_cost_a_single_epsilon_and_do_not() -> None:
    found = row(outcome_of(PARAMETERS).statement, shuffled(4))
    assert found.claimed is not None
    assert found.claimed.epsilon == EPSILON
    assert found.verdict == "claim not supported"
    assert found.reached is not None
    assert (found.reached, found.proven) == (pytest.approx(113, abs=1), pytest.approx(131, abs=1))


def test_figures_of_the_papers_mnist_setting_behind_a_perfect_shuffler() -> None:
    """n = 100 and eps = 1: one value .4078 to .4436; 650 of them 14.5 to 18.3 (10 rounds of 65 values)."""
    mechanism = TwoPoint(1.0)
    made = []
    for turn in range(10):
        guarantees = tuple(mechanism.guarantee(a, values=65) for a in (Adjacency.CLIENT, Adjacency.COORDINATE))
        plain = Release(f"r{turn}", "records", "model weights", guarantees, mechanism.claim(values=65))
        made.append(ShuffledChannel(granularity="parameter").guarantee(plain, 100, mechanism))
    statement = Statement.of(made, delta=1e-5)
    one, all_ = row(statement, shuffled(100), Adjacency.COORDINATE), row(statement, shuffled(100))
    assert (one.reached, one.proven) == (pytest.approx(0.4078, abs=1e-4), pytest.approx(0.4436, abs=1e-4))
    assert (all_.reached, all_.proven) == (pytest.approx(14.5, abs=0.2), pytest.approx(18.3, abs=0.2))
    assert row(statement, SERVER).pure == pytest.approx(650, rel=1e-7)


def test_a_guarantee_behind_the_shuffler_is_of_the_same_bits() -> None:
    wired = wire(settings(PARAMETERS))
    ((release,),) = wired.releases(wired.method.plan(wired.method.init(), "x"))
    local, mixed = (
        [g for g in release.guarantees if g.adjacency is Adjacency.CLIENT and g.adversary.kind == kind]
        for kind in ("server", "shuffled")
    )
    assert [g.loss for g in local] == [g.loss for g in mixed]
    assert bit_epsilon(mixed[0].loss.t_min) <= EPSILON  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("channel", "selection", "epsilons", "expected"),
    [
        ({}, {"kind": "all"}, [1, 1, 1, 2, 2, 2, 2, 3], (3, 4, 1)),
        ({}, {"kind": "count", "k": 5}, [1] * 8, (5,)),
        ({}, {"kind": "fraction", "p": 0.3}, [1] * 8, (2,)),
        ({}, {"kind": "probability", "p": 0.9}, [1] * 8, (1,)),
        ({}, {"kind": "count", "k": 5}, [1] * 4 + [2] * 4, (1, 1)),
        ({"at_least": 3}, {"kind": "probability", "p": 0.9}, [1] * 6 + [2] * 2, (3, 2)),
    ],
    ids=["all", "count", "fraction", "probability", "classes", "stated"],
)
def test_the_crowd_is_what_is_sure_to_be_mixed_in_every_round(
    channel: Any, selection: Any, epsilons: list[float], expected: tuple[int, ...]
) -> None:
    given_ = settings(
        {
            "split": {"kind": "iid", "clients": 8},
            "clients.epsilon": [float(e) for e in epsilons],
            "method.selection": selection,
            "method.channel": {"kind": "shuffled", "granularity": "parameter", **channel},
        }
    )
    upload = Upload(lambda e: TwoPoint(e or 1.0), epsilons, 5, clients=8, what="model weights")
    assert given_.method.channel.crowds(given_.method.selection, upload) == expected


def test_clients_hide_among_those_of_their_own_epsilon() -> None:
    statement = outcome_of({**PARAMETERS, "clients.epsilon": [0.25, 0.25, 0.25, 0.5]}).statement
    found = {r.adversary: r for r in statement.rows if r.adjacency is Adjacency.CLIENT and r.adversary.kind != "server"}
    assert set(found) == {shuffled(3), shuffled(1)}
    alone, crowd = found[shuffled(1)], found[shuffled(3)]
    assert alone.claimed is not None and crowd.claimed is not None
    assert (alone.claimed.epsilon, crowd.claimed.epsilon) == (0.5, 0.25)
    assert alone.proven > crowd.proven


def test_without_a_shuffler_there_is_no_crowd() -> None:
    wired = wire(settings())
    assert wired.releases == wired.method.releases


def test_a_claimed_budget_covers_what_the_paper_says_it_does() -> None:
    """Behind the shuffler of parameters one epsilon pays for all rounds; without it each round costs d eps."""
    budget = {"clients.budget": {"limit": EPSILON, "basis": "claimed", "adversary": "shuffled(4)"}}
    assert [r.reported for r in outcome_of({**PARAMETERS, **budget}).rounds] == [4, 4, 4]
    direct = {"clients.budget": {"limit": 2 * VALUES * EPSILON, "basis": "claimed"}}
    assert [r.reported for r in outcome_of(direct).rounds] == [4, 4]


def test_a_proven_budget_is_not_taken_in_by_the_shuffler() -> None:
    """A client cannot check the crowd: its ledger counts what the server could learn alone, d eps a round."""
    budget = {"clients.budget": {"limit": 1.001 * VALUES * EPSILON}}
    assert [r.reported for r in outcome_of({**PARAMETERS, **budget}).rounds] == [4]


def test_a_crowd_that_declines_is_withheld_and_its_round_lost() -> None:
    limits = {"clients.budget": {"limit": [1.001 * VALUES * EPSILON] * 2 + [3.001 * VALUES * EPSILON] * 2}}
    outcome = outcome_of({**PARAMETERS, **limits})
    assert [(r.reported, r.counted) for r in outcome.rounds] == [(4, True), (0, False), (0, False)]
    fewer = {"method.channel": {"kind": "shuffled", "granularity": "parameter", "at_least": 2}}
    assert [(r.reported, r.counted) for r in outcome_of({**fewer, **limits}).rounds] == [
        (4, True),
        (2, True),
        (2, True),
    ]


# --- recipes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({**PARAMETERS, "method.mechanism": {"name": "clip-only"}, "clients.epsilon": None}, "only with two-point"),
        ({**PARAMETERS, "method.aggregation": {"kind": "samples"}}, "no number beside it: take mean"),
        ({"method.channel": {**PARAMETERS["method.channel"], "at_least": 5}}, "at_least: got 5; allowed: at most 4"),
        ({"method.range": {"kind": "adaptive", "centre": 1.0}}, "give both or none"),
        ({"method.range": None}, "needs a public range"),
        ({"method.range": {"kind": "adaptive", "quantile": 0.0}}, "quantile"),
        ({"method.mechanism": {"name": "laplace"}}, "allowed: none, clip-only or two-point"),
        (
            {**ADAPTIVE, "method.mechanism": {"name": "clip-only", "norm": "l2"}, "clients.epsilon": None},
            "got adaptive with clip-only",
        ),
        (
            {"method.channel": {**PARAMETERS["method.channel"], "delay": {"latency": [1.0]}}},
            "latency: got 1 numbers for 4 clients",
        ),
    ],
    ids=["noise-free", "samples", "crowd", "centre", "no range", "quantile", "laplace", "ball", "delays"],
)
def test_what_cannot_be_had_is_said_before_anything_runs(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(RecipeInvalid) as caught:
        settings(changes)
    assert problem in str(caught.value)


def test_shipped_recipes_have_the_papers_settings() -> None:
    stated = {
        "ldp-fl-mnist": (100, 1.0, 0.03, 10, "fixed", 0.075),
        "ldp-fl-fashion-mnist": (200, 4.0, 0.03, 15, "fixed", 0.15),
        "ldp-fl-cifar-10": (500, 10.0, 0.015, 15, "adaptive", None),
        "ldp-fl-cifar-10-fixed": (500, 10.0, 0.015, 15, "fixed", 1.0),
    }
    for name, expected in stated.items():
        recipe = Recipe.load(name)
        method: Any = recipe.method
        assert (
            recipe.number_of_clients,
            recipe.clients.epsilon,
            recipe.training.optimizer.lr,
            recipe.rounds.count,
            method.range.kind,
            method.range.radius,
        ) == expected
        assert method.channel.granularity == "parameter"
    assert all(Recipe.load(name).paper for name in shipped() if name.startswith("ldp-fl-"))


def test_digits_are_learnt_through_bits_alone() -> None:
    """Chance is 10 %; measured 80 % or more with seeds 1 to 3."""
    outcome = run(Recipe.load("ldp-fl-digits"), workers=1)
    assert outcome.accuracy is not None and outcome.accuracy > 0.7
    assert {r.asked for r in outcome.rounds} == {50}

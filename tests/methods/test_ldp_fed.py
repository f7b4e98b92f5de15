"""LDP-Fed: schedules that add up exactly, what is claimed beside what is proven, and rounds that move one layer."""

import itertools
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from papers.experiments import experiments
from papers.truex_ldp_fed import equivalent_epsilon
from sordino import channels
from sordino.errors import InvalidInput
from sordino.fleets.simulated import SimulatedFleet
from sordino.learning import models
from sordino.learning.models import LayerSlice
from sordino.mechanisms import Exponential
from sordino.methods.interface import Bench
from sordino.methods.scopes import ScopeAll
from sordino.methods.truex_ldp_fed import ScopeLayers, ScopeProportional, dealt
from sordino.methods.upload import Upload
from sordino.privacy.guarantee import SERVER, Adjacency
from sordino.privacy.statement import Statement
from sordino.recipe import Recipe, RecipeInvalid
from sordino.runs.coordinator import Coordinator
from sordino.runs.federation import wire
from sordino.runs.simulation import run
from sordino.wire.messages import Plan
from tests.engine.tiny import TINY

E = 80
CYCLES = (1, 2, 4, 5, 10, 16)
LAYERS = models.parameter_layout(models.build("ldp-fed", input_shape=(1, 28, 28), classes=10)).layers
BACKWARDS = ["fc", "bn2", "conv2", "bn1", "conv1"]


def settings(changes: dict[str, Any] | None = None) -> Recipe:
    """LDP-Fed on a few digits with two dense layers of 520 and 90 values, or with other settings by dotted key."""
    ldp_fed = {
        "model": {"name": "mlp", "options": {"hidden": [8]}},
        "method": {"name": "ldp-fed", "range": {"kind": "fixed", "radius": 1.0}},
        "clients": {"epsilon": 1.0},
        "rounds": {"count": 4},
    }
    return Recipe.from_dict({**TINY, **ldp_fed}).with_(changes or {})


def plans(recipe: Recipe) -> tuple[Any, list[Plan]]:
    """The method, and its plans of all rounds."""
    method = wire(recipe).method
    state, made = method.init(), []
    for _ in range(recipe.rounds.count):
        made.append(method.plan(state, "test"))
        state = state.unchanged()
    return method, made


def client_row(recipe: Recipe, client: int = 0) -> Any:
    """The statement's figures for a client that takes part in every round."""
    method, made = plans(recipe)
    releases = [release for plan in made for release in method.releases(plan)[method.class_of(client)]]
    rows = Statement.of(releases).rows
    return next(row for row in rows if (row.adversary, row.adjacency) == (SERVER, Adjacency.CLIENT))


# --- schedules --------------------------------------------------------------------------------------------------------


def test_the_network_has_the_papers_five_layers() -> None:
    assert [(layer.name, layer.size) for layer in LAYERS[::-1]] == [
        ("fc", 15_690), ("bn2", 64), ("conv2", 12_832), ("bn1", 32), ("conv1", 416),
    ]  # fmt: skip


@pytest.mark.parametrize("cycles", CYCLES)
def test_rounds_add_up_to_e_and_budgets_to_alpha_in_every_cycle(cycles: int) -> None:
    schedule = ScopeProportional(cycles=cycles).schedule(LAYERS, E)
    assert len(schedule) == E
    assert sum(turn.share for turn in schedule) == 1
    rounds = E // cycles
    for first in range(0, E, rounds):
        cycle = schedule[first : first + rounds]
        assert sum(turn.share for turn in cycle) == Fraction(1, cycles)
        assert [what for what, _ in itertools.groupby(turn.what for turn in cycle)] == BACKWARDS


@pytest.mark.parametrize("cycles", CYCLES)
def test_a_layers_rounds_share_alpha_in_proportion_to_its_size(cycles: int) -> None:
    schedule = ScopeProportional(cycles=cycles).schedule(LAYERS, E)
    for layer in LAYERS:
        own = [turn for turn in schedule if turn.what == layer.name]
        assert sum(turn.share for turn in own) == Fraction(layer.size, 29_034)
        assert {(turn.start, turn.stop) for turn in own} == {(layer.start, layer.stop)}


def test_rounds_of_one_cycle_by_hand() -> None:
    # 75 rounds beyond one each: 40.530, 0.165, 33.148, 0.083 and 1.075 of them; 74 whole ones, the last to fc.
    assert dealt(E, [15_690, 64, 12_832, 32, 416]) == [42, 1, 34, 1, 2]
    assert dealt(16, [15_690, 64, 12_832, 32, 416]) == [7, 1, 6, 1, 1]
    assert dealt(5, [15_690, 64, 12_832, 32, 416]) == [1] * 5


def test_rounding_each_layer_by_itself_would_overrun() -> None:
    sizes = [15_690, 64, 12_832, 32, 416]
    overruns = [c * sum(max(1, round(E / c * size / 29_034)) for size in sizes) for c in CYCLES]
    assert overruns == [81, 86, 92, 95, 110, 128]


def test_equal_remainders_go_to_the_layer_that_comes_first() -> None:
    assert dealt(7, [1, 1, 1]) == [3, 2, 2]
    assert dealt(8, [1, 1, 1]) == [3, 3, 2]


def test_single_layer_gives_every_layer_as_many_rounds_and_every_round_as_much() -> None:
    schedule = ScopeLayers().schedule(LAYERS, E)
    assert [turn.what for turn in schedule] == [name for name in BACKWARDS for _ in range(16)]
    assert {turn.share for turn in schedule} == {Fraction(1, 80)}


def test_basic_sends_everything_in_every_round() -> None:
    schedule = ScopeAll().schedule(LAYERS, E)
    assert len(schedule) == E and len(set(schedule)) == 1
    assert (schedule[0].start, schedule[0].stop, schedule[0].share) == (0, 29_034, Fraction(1, 80))


@given(
    sizes=st.lists(st.integers(1, 10**6), min_size=1, max_size=12),
    beyond=st.integers(0, 60),
    cycles=st.integers(1, 6),
)
def test_every_schedule_spends_alpha_exactly(sizes: list[int], beyond: int, cycles: int) -> None:
    edges = np.cumsum([0, *sizes]).tolist()
    layers = [LayerSlice(f"l{j}", a, b) for j, (a, b) in enumerate(itertools.pairwise(edges))]
    rounds = cycles * (len(sizes) + beyond)
    for scope in (ScopeAll(), ScopeLayers(), ScopeProportional(cycles=cycles)):
        schedule = scope.schedule(layers, rounds)
        assert len(schedule) == rounds
        assert sum(turn.share for turn in schedule) == 1
        assert all(turn.share > 0 for turn in schedule)
        if scope.kind != "all":
            assert min(sum(turn.what == layer.name for turn in schedule) for layer in layers) >= 1


def test_too_few_rounds_for_the_layers_are_refused_with_the_remedy() -> None:
    with pytest.raises(InvalidInput, match=r"4 rounds.*5 layers.*rounds.count"):
        ScopeProportional(cycles=20).schedule(LAYERS, 80)
    with pytest.raises(InvalidInput, match="5 layers"):
        ScopeLayers().schedule(LAYERS, 4)


# --- budgets, claims and proofs ---------------------------------------------------------------------------------------


def test_each_values_alpha_is_its_rounds_part_of_alpha_divided_by_the_values_sent() -> None:
    method, made = plans(settings({"clients.epsilon": 2.0}))
    found = []
    for plan in made:
        upload = method.upload(plan)
        (mechanism,) = upload.mechanisms
        assert isinstance(mechanism, Exponential)
        found.append((upload.what, upload.values, float(mechanism.alpha[0])))
    # two layers, 90 and 520 of 610 values; of two rounds beyond one each, 1.7 and 0.3 for the larger and the smaller
    each = 2.0 / 610
    assert (
        found
        == [("model update of fc2", 90, pytest.approx(each))]
        + [("model update of fc1", 520, pytest.approx(each / 3))] * 3
    )


@pytest.mark.parametrize("scope", [*CYCLES, "layers", "all"], ids=str)
def test_alpha_is_claimed_and_alpha_c_10_rho_is_proven(scope: int | str) -> None:
    chosen = {"kind": "proportional", "cycles": scope} if isinstance(scope, int) else {"kind": scope}
    row = client_row(settings({"rounds.count": E, "method.scope": chosen}))
    assert row.claimed is not None
    assert row.claimed.epsilon == 1.0
    assert row.pure == pytest.approx(1e10, rel=1e-9)
    assert row.verdict == "claim not supported"


def test_the_precision_is_a_hidden_factor_of_what_is_proven() -> None:
    for precision, clip in ((8, 1.0), (8, 0.5), (9, 1.0)):
        row = client_row(settings({"method.mechanism.precision": precision, "method.range.radius": clip}))
        assert row.claimed.epsilon == 1.0
        assert clip * 10.0**precision <= row.pure <= 1.2 * clip * 10.0**precision


def test_participants_set_alphas_of_their_own() -> None:
    recipe = settings({"clients.epsilon": [1.0, 2.0, 2.0, 0.5]})
    for client, alpha in enumerate((1.0, 2.0, 2.0, 0.5)):
        row = client_row(recipe, client)
        assert (row.claimed.epsilon, row.pure) == (alpha, pytest.approx(alpha * 1e10, rel=1e-9))


@pytest.mark.parametrize(
    "sampled",
    [{"method.selection": {"kind": "count", "k": 1}}, {"method.channel": {"kind": "relay", "k": 1}}],
    ids=["server", "relay"],
)
def test_the_papers_sampling_makes_each_round_spend_more_for_the_same_claim(sampled: dict[str, Any]) -> None:
    row = client_row(settings({**sampled, "method.sampling": "claimed"}))  # one of four: q = 1/4
    assert row.claimed.epsilon == 1.0
    assert "q = 1/4" in row.claimed.formula
    assert row.pure == pytest.approx(4e10, rel=1e-9)
    assert client_row(settings(sampled)).pure == pytest.approx(1e10, rel=1e-9)


def test_who_takes_part_in_few_rounds_has_spent_those_and_the_claim_stays() -> None:
    method, made = plans(settings())
    row = next(
        row for row in Statement.of(method.releases(made[0])[0]).rows if row.adjacency is Adjacency.CLIENT
    )  # the round of fc2: 90 of 610 values
    assert (row.claimed.epsilon, row.pure) == (1.0, pytest.approx(90 / 610 * 1e10, rel=1e-9))


def test_without_a_mechanism_nothing_is_claimed_or_proven() -> None:
    row = client_row(settings({"clients.epsilon": None, "method.range": None, "method.mechanism": {"name": "none"}}))
    assert row.claimed is None and row.proven == np.inf


def test_sample_counts_are_releases_of_their_own() -> None:
    method, made = plans(settings({"method.aggregation": {"kind": "samples"}}))
    assert [release.what for release in method.releases(made[0])[0]] == ["model update of fc2", "sample count"]


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_a_round_moves_the_scheduled_layer_alone() -> None:
    federation = wire(settings())
    fleet = SimulatedFleet(federation.work(Bench()), None)
    coordinator = Coordinator(federation.method, fleet, channels.build(federation.recipe, federation.method), "test")
    state, moved = federation.method.init(), []
    for _ in range(4):
        after, held = coordinator.round(state)
        changed = np.flatnonzero(after.parameters != state.parameters)
        moved.append((int(changed.min()), int(changed.max())))
        assert held.noise is not None and held.noise > 0
        state = after
    fleet.close()
    assert [low >= 520 for low, _ in moved] == [True, False, False, False]  # fc2 lies behind the 520 values of fc1
    assert all(high < 520 for _, high in moved[1:])


def test_the_mean_of_updates_is_what_the_model_moves_by() -> None:
    """One client, no noise to speak of: the layer ends where plain federated averaging would put it."""
    one = {"split.clients": 1, "rounds.count": 2, "method.scope": {"kind": "all"}}
    moved = run(settings({**one, "rounds.count": 1}), workers=1).parameters
    plain = {**one, "method": {"name": "fedavg"}, "clients.epsilon": None, "rounds.count": 1}
    assert np.abs(moved - run(settings(plain), workers=1).parameters).max() < 1e-6


def test_small_alphas_drown_training_and_large_ones_do_not() -> None:
    large = {"data.train_limit": 400, "data.test_limit": 0, "training.optimizer.lr": 0.5, "rounds.count": 20}
    good = run(settings({**large, "method.scope.cycles": 5}), workers=1)
    drowned = run(settings({**large, "method.scope.cycles": 5, "clients.epsilon": 1e-7}), workers=1)
    assert good.accuracy > 0.7 > 0.4 > drowned.accuracy


def test_batch_norm_statistics_stay_or_go_through_the_mechanism_as_a_layer_of_their_own() -> None:
    network = {"model": {"name": "ldp-fed", "buffers": "release"}, "rounds.count": 6}
    _, made = plans(settings(network))
    assert [plan.settings["what"] for plan in made] == ["statistics", *BACKWARDS]
    _, made = plans(settings({**network, "model.buffers": "local", "rounds.count": 5}))
    assert [plan.settings["what"] for plan in made] == BACKWARDS


def test_two_workers_give_the_same_bits() -> None:
    recipe = settings({"clients.epsilon": [1.0, 2.0, 2.0, 0.5]})
    assert np.array_equal(run(recipe, workers=1).parameters, run(recipe, workers=2).parameters)


# --- what is refused --------------------------------------------------------------------------------------------------


def test_a_plan_outside_the_schedule_is_refused() -> None:
    method, made = plans(settings())
    first = made[0]
    greedy = Plan("test", 1, {**first.settings, "share": [1, 1]}, first.arrays)
    with pytest.raises(InvalidInput, match="fc2"):
        method.releases(greedy)
    other_round = Plan("test", 2, first.settings, first.arrays)
    with pytest.raises(InvalidInput, match="recipe's schedule"):
        method.upload(other_round)
    for broken in ({}, {**first.settings, "share": [1, 0]}, {**first.settings, "columns": [1]}):
        with pytest.raises(InvalidInput, match="LDP-Fed"):
            method.turn(Plan("test", 1, broken, first.arrays))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"method.scope": {"kind": "proportional", "cycles": 3}}, "method.scope.cycles: got 3; allowed: a divisor"),
        ({"method.range": None}, "method.range: missing; the mechanism exponential needs a public range"),
        ({"clients.epsilon": None}, "clients.epsilon: missing; the mechanism exponential needs it"),
        ({"method.range.radius": {"fc1": 1.0, "fc2": 1.0}}, "method.range.radius"),
        ({"method.aggregation": {"kind": "sign", "step": 0.1}}, "allowed only with the mechanism sign"),
        ({"method.channel": {"kind": "relay", "k": 5}}, "method.channel.k: got 5; allowed: at most 4"),
        ({"method.channel": {"kind": "relay", "k": 2}, "rounds.quorum": 3}, "rounds.quorum: got 3; allowed: at most 2"),
    ],
    ids=["cycles", "range", "alpha", "radius", "sign", "relay", "quorum"],
)
def test_recipes_that_do_not_fit_are_refused(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(RecipeInvalid, match=said.replace("[", r"\[")):
        settings(changes)


def test_more_layers_than_rounds_are_refused_before_training() -> None:
    with pytest.raises(InvalidInput, match="2 layers"):
        wire(settings({"method.scope.cycles": 4}))


def test_uploads_of_equal_layers_and_shares_are_built_once() -> None:
    method, made = plans(settings({"rounds.count": 40, "method.scope.cycles": 10}))
    distinct: set[Upload] = {method.upload(plan) for plan in made}
    assert len(distinct) == 2


# --- the paper's experiments ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 7, 100, 1000])
@pytest.mark.parametrize("alpha", [0.0362, 0.5, 1.0, 4.0])
def test_the_papers_conversion_is_that_of_the_enumerated_posterior(alpha: float, size: int) -> None:
    rows = np.exp(-alpha / 2 * np.abs(np.subtract.outer(np.arange(size), np.arange(size))))
    likelihood = rows / rows.sum(axis=1, keepdims=True)
    confidence = float((likelihood / likelihood.sum(axis=0, keepdims=True)).max())
    assert equivalent_epsilon(alpha, size) == pytest.approx(np.log((size - 1) * confidence / (1 - confidence)))


@pytest.mark.parametrize(
    ("epsilon", "alpha"), [(0.5, 0.0163), (1.0, 0.0362), (2.0, 0.1018), (3.0, 0.2656), (4.0, 0.6653)]
)
def test_the_conversion_gives_the_published_alphas(epsilon: float, alpha: float) -> None:
    assert equivalent_epsilon(alpha - 1e-4, 100) < epsilon < equivalent_epsilon(alpha + 1e-4, 100)


def test_alpha_one_on_the_papers_codes_is_epsilon_23_6() -> None:
    # both ends: 1 - lambda = 0.39347 of likelihood, a posterior of 0.470, ln(2 * 10^10 * 0.470/0.530) = 23.60
    assert equivalent_epsilon(1.0, 2 * 10**10 + 1) == pytest.approx(23.60, abs=5e-3)
    with pytest.raises(InvalidInput, match="give a larger alpha"):
        equivalent_epsilon(1e-7, 2 * 10**10 + 1)


def test_all_experiments_are_recipes_that_fit() -> None:
    found = experiments("ldp-fed")
    assert {e.x: e.figure for e in found if e.id.startswith("table-1")} == {
        1: 86.85, 2: 86.20, 4: 86.89, 5: 86.93, 10: 86.30, 16: 85.28,
    }  # fmt: skip
    for experiment in found:
        for quick in (True, False):
            assert experiment.settings(quick=quick, seed=2).seed == 2

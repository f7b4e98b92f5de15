"""WebFed: one gradient step a round, Laplace noise in three readings, and numbers of samples that cost something."""

import struct
from typing import Any

import numpy as np
import pytest
import torch

from sordino.channels.direct import Direct
from sordino.fleets.simulated import SimulatedFleet
from sordino.mechanisms import Laplace
from sordino.methods.interface import Bench, ClientState, Cohort, State
from sordino.methods.lian_webfed import COUNTED, KEPT, Counts, WebFed
from sordino.methods.upload import Draw
from sordino.privacy.accountant import compose
from sordino.privacy.guarantee import Adjacency, Infinite, Pure, Release
from sordino.randomness import Keystream
from sordino.recipe import Recipe, RecipeInvalid
from sordino.runs.coordinator import Coordinator, RoundOutcome
from sordino.runs.federation import wire
from sordino.runs.simulation import run
from tests.engine.tiny import TINY, VALUES

PLAIN: dict[str, Any] = {"method.mechanism": {"name": "none"}, "method.range": None, "clients.epsilon": None}
NOISY_COUNTS: dict[str, Any] = {"method.aggregation": {"kind": "noisy-samples", "epsilon": 5.0, "limit": 64}}


def settings(changes: dict[str, Any] | None = None) -> Recipe:
    """WebFed on a few digits, with epsilon 3 per weight; or other settings, by dotted key."""
    webfed = {
        "training": {"steps": 1, "batch_size": 0, "optimizer": {"name": "sgd", "lr": 0.5}},
        "clients": {"epsilon": 3.0},
        "method": {"name": "webfed", "range": {"kind": "fixed", "radius": 1.0}},
    }
    return Recipe.from_dict({**TINY, **webfed}).with_(changes or {})


def webfed(recipe: Recipe) -> WebFed:
    method = wire(recipe).method
    assert isinstance(method, WebFed)
    return method


def drawing(recipe: Recipe, round: int = 1) -> Draw:
    return lambda clients: Keystream.simulation(recipe.seed, list(clients), round)


def cohort_of(recipe: Recipe, states: tuple[ClientState, ...] = ()) -> Cohort:
    """All clients of a federation, with their data."""
    federation = wire(recipe)
    population = federation.population
    data = tuple(population.data(k, torch.device("cpu")) for k in range(federation.clients))
    sizes = tuple(len(part) for part in federation.parts)
    return Cohort(tuple(range(len(data))), data, states or ({},) * len(data), sizes)


def rounds(recipe: Recipe, count: int) -> list[tuple[State, RoundOutcome]]:
    """Some rounds, each with the state after it."""
    federation = wire(recipe)
    coordinator = Coordinator(federation.method, SimulatedFleet(federation.work(Bench()), None), Direct(), "test")
    state, held = federation.method.init(), []
    for _ in range(count):
        state, record = coordinator.round(state)
        held.append((state, record))
    return held


def releases(recipe: Recipe, count: int = 1) -> list[Release]:
    method = webfed(recipe)
    state, found = method.init(), []
    for _ in range(count):
        found += method.releases(method.plan(state, "test"))[0]
        state = state.unchanged()
    return found


# --- Algorithm 1 ------------------------------------------------------------------------------------------------------


def test_a_client_takes_one_step_along_the_gradient_of_its_mean_loss() -> None:
    recipe = settings(PLAIN)
    federation, cohort = wire(recipe), cohort_of(recipe)
    method = federation.method
    plan = method.plan(method.init(), "test")
    bodies = method.report(plan, cohort, drawing(recipe), Bench()).bodies
    for data, body in zip(cohort.data, bodies, strict=True):
        assert data is not None
        weights = torch.from_numpy(plan.arrays["parameters"]).clone().requires_grad_()
        scores = data.x.flatten(1) @ weights[:640].reshape(10, 64).T + weights[640:]
        (gradient,) = torch.autograd.grad(torch.nn.functional.cross_entropy(scores, data.y), weights)
        expected = (weights - 0.5 * gradient).detach().numpy()
        assert np.frombuffer(body, "<f4") == pytest.approx(expected, abs=1e-6)


def test_the_server_takes_the_mean_and_asks_m_of_n() -> None:
    recipe = settings({**PLAIN, "method.selection": {"kind": "count", "k": 2}})
    held = rounds(recipe, 3)
    assert [len(record.attendance.reported) for _, record in held] == [2] * 3
    method, cohort = webfed(recipe), cohort_of(recipe)
    before = method.init()
    bodies = method.report(method.plan(before, "test"), cohort, drawing(recipe), Bench()).bodies
    trained = np.array([np.frombuffer(body, "<f4") for body in bodies])
    asked = list(method.select(before))
    assert held[0][0].parameters == pytest.approx(trained[asked].mean(axis=0), abs=1e-6)


def test_local_epochs_make_it_federated_averaging() -> None:
    epochs = {"training": {"epochs": 2, "batch_size": 5, "optimizer": {"name": "sgd", "lr": 0.1}}}
    fedavg = {"method": {"name": "fedavg", "upload": "weights"}}
    (ours, _), (theirs, _) = (
        rounds(Recipe.from_dict({**TINY, **epochs, **method}), 2)[-1]
        for method in ({"method": {"name": "webfed", "mechanism": {"name": "none"}}}, fedavg)
    )
    assert (ours.parameters == theirs.parameters).all()


# --- three readings of Delta s ----------------------------------------------------------------------------------------


def proven(recipe: Recipe, adjacency: Adjacency) -> float:
    (release,) = releases(recipe)
    (guarantee,) = (g for g in release.guarantees if g.adjacency is adjacency)
    return compose([guarantee.loss], adjacency=adjacency).epsilon(0.0)


def test_clipped_one_by_one_epsilon_is_a_weights_and_an_upload_costs_d_times_as_much() -> None:
    assert proven(settings(), Adjacency.COORDINATE) == pytest.approx(3, rel=1e-3)
    assert proven(settings(), Adjacency.CLIENT) == pytest.approx(3 * VALUES, rel=1e-3)


def test_clipped_by_l1_norm_epsilon_is_an_uploads() -> None:
    assert proven(settings({"method.mechanism": {"name": "laplace", "norm": "l1"}}), Adjacency.CLIENT) <= 3


def test_divided_by_m_epsilon_is_claimed_and_m_times_as_much_is_proven() -> None:
    recipe = settings({"method.mechanism": {"name": "laplace", "records": 5}})
    (release,) = releases(recipe)
    assert release.claimed is not None and release.claimed.epsilon == 3
    assert "2C/m" in release.claimed.formula
    assert proven(recipe, Adjacency.COORDINATE) == pytest.approx(15, rel=1e-3)


@pytest.mark.parametrize(("records", "deviation"), [(1, 2 / 3), (5, 0.4 / 3)], ids=["2C", "2C over m"])
def test_the_noise_of_the_mean_is_laplaces(records: int, deviation: float) -> None:
    """Four clients: variance 2 (Delta s / eps)^2 / 4 per weight."""
    ((_, held),) = rounds(settings({"method.mechanism": {"name": "laplace", "records": records}}), 1)
    assert held.noise is not None
    assert held.noise**2 / VALUES == pytest.approx(2 * deviation**2 / 4, rel=5e-3)


def test_noise_reaches_the_model() -> None:
    """The mean of 650 squares of noise, of standard deviation sqrt(5/650) relative to itself at most: 5 of these."""
    (noisy, held), (plain, _) = (rounds(settings(changes), 1)[0] for changes in ({}, PLAIN))
    assert held.noise is not None
    found = float(((noisy.parameters - plain.parameters) ** 2).mean())
    assert found == pytest.approx(held.noise**2 / VALUES, rel=0.44)


# --- numbers of samples -----------------------------------------------------------------------------------------------


def test_by_default_all_count_alike_and_no_number_is_sent() -> None:
    recipe = settings(PLAIN)
    method = webfed(recipe)
    bodies = method.report(method.plan(method.init(), "test"), cohort_of(recipe), drawing(recipe), Bench()).bodies
    assert [len(body) for body in bodies] == [4 * VALUES] * 4
    assert [release.what for release in releases(recipe, 2)] == ["model weights"] * 2


def test_numbers_in_the_clear_have_a_line_that_says_so() -> None:
    found = releases(settings({"method.aggregation": {"kind": "samples"}}), 2)
    assert [release.what for release in found] == ["model weights", "sample count"] * 2
    assert isinstance(found[1].guarantees[0].loss, Infinite)


def test_noisy_numbers_are_announced_once() -> None:
    found = releases(settings(NOISY_COUNTS), 3)
    assert [release.what for release in found] == ["model weights", COUNTED, "model weights", "model weights"]
    (guarantee,) = found[1].guarantees
    assert guarantee.adjacency is Adjacency.CLIENT and isinstance(guarantee.loss, Pure)
    assert guarantee.loss.epsilon == pytest.approx(5, rel=1e-3) and guarantee.loss.epsilon <= 5


def test_the_same_number_goes_with_every_report() -> None:
    recipe = settings({**PLAIN, **NOISY_COUNTS})
    method, cohort = webfed(recipe), cohort_of(recipe)
    state, sent = method.init(), []
    for round in (1, 2, 3):
        reported = method.report(method.plan(state, "test"), cohort, drawing(recipe, round), Bench())
        sent.append([struct.unpack_from("<I", body)[0] for body in reported.bodies])
        cohort, state = cohort_of(recipe, tuple(reported.states)), state.unchanged()
    assert sent[0] == sent[1] == sent[2]
    assert sent[0] != [10] * 4  # which is how many each holds
    assert [set(kept) for kept in cohort.states] == [{KEPT}] * 4


def test_reports_weigh_as_much_as_was_announced() -> None:
    recipe = settings({**PLAIN, **NOISY_COUNTS})
    method, cohort = webfed(recipe), cohort_of(recipe)
    bodies = method.report(method.plan(method.init(), "test"), cohort, drawing(recipe), Bench()).bodies
    counts = np.array([struct.unpack_from("<I", body)[0] for body in bodies])
    trained = np.array([np.frombuffer(body, "<f4", offset=4) for body in bodies])
    ((state, _),) = rounds(recipe, 1)
    assert len(set(counts.tolist())) > 1
    assert state.parameters == pytest.approx(counts @ trained / counts.sum(), abs=1e-6)


def test_a_client_that_announced_nothing_in_the_first_round_tells_nothing_later() -> None:
    recipe = settings({**PLAIN, **NOISY_COUNTS})
    method = webfed(recipe)
    plan = method.plan(method.init().unchanged(), "test")
    reported = method.report(plan, cohort_of(recipe), drawing(recipe, 2), Bench())
    assert [struct.unpack_from("<I", body)[0] for body in reported.bodies] == [32] * 4  # half the limit
    assert not any(reported.states)


def test_announced_numbers_have_the_noise_they_claim_and_stay_within_the_limit() -> None:
    """Laplace of scale limit/eps = 10 about 500: 2,000 draws, whose mean deviation is 10 +- 5 of its own 0.22."""
    counts = Counts(100.0 / 10, 100)
    cohort = Cohort(tuple(range(2000)), (None,) * 2000, ({},) * 2000, (50,) * 2000)
    found = np.array(counts.announce(cohort, lambda clients: Keystream.simulation(1, list(clients), 1)))
    assert np.abs(found - 50).mean() == pytest.approx(10, abs=1.1)
    extreme = Cohort(tuple(range(200)), (None,) * 200, ({},) * 200, (0,) * 100 + (10**6,) * 100)
    ends = counts.announce(extreme, lambda clients: Keystream.simulation(1, list(clients), 1))
    assert min(ends) == 1 and max(ends) == 100


def test_weights_and_numbers_have_noise_of_their_own() -> None:
    """Equal words would make a report's first weight tell the noise of its number."""
    recipe = settings(NOISY_COUNTS)
    words = Keystream.simulation(recipe.seed, [0], 1)
    mechanism = Laplace(5.0, Counts(5.0, 64).mechanism.domain)
    apart = [mechanism.randomize(np.float32([[10]]), words, tensor=tensor).output for tensor in (0, 1)]
    assert len({int(output.array[0, 0]) for output in apart}) == 2  # type: ignore[union-attr]
    announced = Counts(5.0, 64).announce(cohort_of(recipe), drawing(recipe))
    assert announced[0] == int(np.clip(np.rint(mechanism.estimate(apart[1])[0, 0]), 1, 64))


# --- recipes and runs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({**NOISY_COUNTS, "method.selection": {"kind": "count", "k": 2}}, "got noisy-samples with selection = count"),
        ({"method.range": None}, "method.range: missing; the mechanism laplace needs a public range"),
        ({"clients.epsilon": None}, "clients.epsilon: missing"),
        ({"method.mechanism": {"name": "laplace", "norm": "l1", "records": 9}}, "method.mechanism.records: got 9"),
        ({"method.mechanism": {"name": "gaussian"}}, "method.mechanism.name"),
        ({"method.aggregation": {"kind": "noisy-samples", "limit": 10}}, "method.aggregation.epsilon: missing"),
    ],
    ids=["selection", "range", "epsilon", "records", "mechanism", "count"],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeInvalid) as refused:
        settings(changes)
    assert words in str(refused.value)


def test_a_run_is_the_same_for_any_number_of_workers() -> None:
    one, two = (run(settings(NOISY_COUNTS), workers=workers) for workers in (1, 2))
    assert (one.parameters == two.parameters).all()
    (row,) = (row for row in one.statement.rows if row.adjacency is Adjacency.CLIENT)
    assert len(row.basis) == 2  # of the weights, and of the number


def test_a_budget_stops_clients_at_what_is_proven() -> None:
    """Two uploads of 650 weights at 3 each fit a budget of 4,000, the third does not; nor does it with a count."""
    outcome = run(settings({"clients.budget": {"limit": 4000.0}}), workers=1)
    assert [record.reported for record in outcome.rounds] == [4, 4]
    counted = run(settings({**NOISY_COUNTS, "clients.budget": {"limit": 1950.0}}), workers=1)
    assert not counted.rounds  # 1,950 for the weights and 5 for the number


def test_digits_are_learnt_step_by_step() -> None:
    recipe = settings({**PLAIN, "data": {"source": "digits"}, "rounds.count": 60, "training.optimizer.lr": 1.0})
    accuracy = run(recipe, workers=1).accuracy
    assert accuracy is not None and accuracy > 0.85

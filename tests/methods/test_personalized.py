"""Personalised LDP-FL: who counts for how much, what each client takes up and tells, and what is proven of it."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import SGDClassifier  # type: ignore[import-untyped]

from sordino.channels.direct import Direct
from sordino.errors import InvalidInput
from sordino.fleets.simulated import SimulatedFleet
from sordino.learning.cohort import ClientData
from sordino.learning.datasets import KNOWN
from sordino.learning.unit_interval import unit_interval
from sordino.mechanisms import Box, Gaussian, RandomizedSign
from sordino.methods.aggregation import rhos
from sordino.methods.interface import Bench, ClientState, Cohort, State
from sordino.methods.upload import Draw
from sordino.methods.wu_personalized import ANNOUNCED, ORDER, Personalized, Selection
from sordino.privacy.accountant import compose
from sordino.privacy.guarantee import SERVER, Adjacency, Pure, Release
from sordino.privacy.statement import Statement
from sordino.randomness import Keystream
from sordino.recipe import Recipe, RecipeInvalid, shipped
from sordino.runs.coordinator import Coordinator, RoundOutcome
from sordino.runs.federation import wire
from sordino.runs.simulation import run
from tests.engine.tiny import TINY, VALUES

GAUSSIAN: dict[str, Any] = {"name": "gaussian", "calibration": "eq4", "delta": 0.002, "sampling": 0.8, "rounds": 10}
VOTES: dict[str, Any] = {
    "method.sends": "signs",
    "method.mechanism": {"name": "sign", "calibration": "eq7", "delta": 1e-5},
    "clients.epsilon": [5.0, 10.0, 15.0],
    "method.range.radius": 4.0,
}
PLAIN: dict[str, Any] = {"method.mechanism": {"name": "none"}, "method.range": None, "clients.epsilon": None}
PERSONAL = ([1.0, 1.0, 10.0], [1.0, 5.0, 10.0], [1.0, 10.0, 10.0])
BY_BUDGET: dict[str, Any] = {"method.aggregation": {"kind": "selection"}}
KEEPING: dict[str, Any] = {"method.aggregation": {"kind": "selection", "fallback": "keep"}}


def settings(changes: dict[str, Any] | None = None) -> Recipe:
    """Three clients with ten digits each, epsilons 1, 1 and 10 and Gaussian noise; or other settings, by dotted key."""
    personal = {
        "data": {"source": "digits", "train_limit": 30, "test_limit": 30},
        "split": {"kind": "iid", "clients": 3},
        "model": {"name": "logistic-ovr"},
        "training": {"batch_size": 1, "optimizer": {"name": "sgd", "lr": 1.0, "decay": 0.001}},
        "clients": {"epsilon": [1.0, 1.0, 10.0]},
        "method": {
            "name": "personalized", "portion": 5, "sampling": 0.8, "mechanism": GAUSSIAN,
            "range": {"kind": "fixed", "radius": 200.0},
        },
        "rounds": {"count": 10},
    }  # fmt: skip
    return Recipe.from_dict({**TINY, **personal}).with_(changes or {})


def personalised(recipe: Recipe) -> Personalized:
    method = wire(recipe).method
    assert isinstance(method, Personalized)
    return method


def rounds(recipe: Recipe, count: int) -> list[tuple[State, RoundOutcome]]:
    """Some rounds, each with the state after it."""
    federation = wire(recipe)
    coordinator = Coordinator(federation.method, SimulatedFleet(federation.work(Bench()), None), Direct(), "test")
    state, held = federation.method.init(), []
    for _ in range(count):
        state, record = coordinator.round(state)
        held.append((state, record))
    return held


# --- how much each client counts --------------------------------------------------------------------------------------


def test_sigma_is_that_of_equation_4() -> None:
    found = wire(settings({"clients.epsilon": [1.0, 5.0, 10.0]})).upload.mechanisms
    assert [float(m.sigma[0]) for m in found if isinstance(m, Gaussian)] == pytest.approx([41.460, 9.447, 5.358], 1e-4)


def test_the_literal_reading_of_equation_4_has_the_root_over_its_first_factor_only() -> None:
    recipe = settings({"clients.epsilon": [1.0, 5.0, 10.0], "method.mechanism": {**GAUSSIAN, "reading": "literal"}})
    found = wire(recipe).upload.mechanisms
    assert [float(m.sigma[0]) for m in found if isinstance(m, Gaussian)] == pytest.approx([151.9, 7.888, 2.538], 1e-3)


@pytest.mark.parametrize(
    ("epsilons", "nobody"),
    list(zip(PERSONAL, (0.205, 0.411, 0.530), strict=True)),
    ids=["1-1-10", "1-5-10", "1-10-10"],
)
def test_nobody_is_above_the_draw_in_so_many_rounds(epsilons: list[float], nobody: float) -> None:
    selection = Selection.of(wire(settings({"clients.epsilon": epsilons})).upload, "keep")
    assert 1 - selection.probabilities.max() == pytest.approx(nobody, abs=5e-4)


def test_shares_of_all_clients_add_up_to_one() -> None:
    upload = wire(settings({**VOTES, "split.clients": 4, "clients.epsilon": [5.0, 15.0, 5.0, 15.0]})).upload
    assert rhos(upload).tolist() == [5.0, 15.0]  # eps itself stands for 1/sigma of votes
    assert Selection.of(upload, "keep").probabilities.tolist() == [5 / 40, 15 / 40]


def test_those_above_the_draw_are_chosen() -> None:
    selection = Selection(np.array([0.125, 0.25, 0.5]), "keep")
    found = {omega: selection.chosen(omega).tolist() for omega in (0.0, 0.125, 0.3, 0.5, 0.9)}
    assert found == {
        0.0: [True, True, True],
        0.125: [False, True, True],
        0.3: [False, False, True],
        0.5: [False, False, False],
        0.9: [False, False, False],
    }


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=5), st.floats(0, 1, exclude_max=True))
def test_drawing_again_always_chooses_somebody_and_those_with_the_largest_share(rho: list[float], omega: float) -> None:
    shares = np.array(rho) / sum(rho)
    chosen = Selection(shares, "redraw").chosen(omega)
    assert chosen[shares.argmax()]
    assert (np.diff(chosen[np.argsort(shares)].astype(int)) >= 0).all()


def test_how_often_a_class_is_chosen_is_its_share_of_the_largest() -> None:
    """Of 4,000 draws a share of 0.1 / 0.8: within 4.5 standard deviations, which fails once in 10^5 seeds."""
    selection = Selection(np.array([0.1, 0.8]), "redraw")
    drawn = np.array([selection.in_round(3, round) for round in range(1, 4001)])
    assert drawn[:, 1].all()
    assert drawn[:, 0].mean() == pytest.approx(0.125, abs=4.5 * math.sqrt(0.125 * 0.875 / 4000))


@pytest.mark.parametrize(
    ("kind", "variances"),
    [
        ("mean", (385.2, 204.1, 197.4)),
        ("inverse-deviation", (54.4, 29.9, 19.0)),
        ("inverse-variance", (27.8, 21.5, 14.2)),
    ],
)
def test_the_variance_of_the_mean_is_that_of_the_weights(kind: str, variances: tuple[float, ...]) -> None:
    for epsilons, variance in zip(PERSONAL, variances, strict=True):
        recipe = settings({"clients.epsilon": epsilons, "method.aggregation": {"kind": kind}})
        ((_, held),) = rounds(recipe, 1)
        assert held.noise is not None
        assert held.noise**2 / VALUES == pytest.approx(variance, rel=3e-3)


def test_a_round_by_selection_has_the_noise_of_the_chosen_alone() -> None:
    recipe = settings({**BY_BUDGET, "clients.epsilon": [1.0, 5.0, 10.0]})
    method = personalised(recipe)
    assert method._by_budget is not None
    seen = set()
    for number, (_, held) in enumerate(rounds(recipe, 10), 1):
        chosen = method._by_budget.in_round(recipe.seed, number)
        variances = np.array([41.460**2, 9.447**2, 5.358**2])[chosen]
        assert held.noise is not None
        assert held.noise**2 / VALUES == pytest.approx(variances.sum() / chosen.sum() ** 2, rel=1e-3)
        seen.add(int(chosen.sum()))
    assert seen == {1, 2, 3} or seen == {1, 2}


def test_everybody_uploads_and_pays_whether_chosen_or_not() -> None:
    outcome = run(settings(BY_BUDGET), workers=1)
    assert [record.reported for record in outcome.rounds] == [3] * 10
    assert [budget.reports for budget in outcome.result.budgets] == [10] * 3


def test_where_nobody_is_chosen_the_model_is_kept_and_the_run_goes_on() -> None:
    recipe = settings({**KEEPING, "clients.epsilon": [1.0, 10.0, 10.0]})  # nobody in 53 % of the rounds
    method = personalised(recipe)
    assert method._by_budget is not None
    before, kept = method.init().parameters, 0
    for number, (state, held) in enumerate(rounds(recipe, 10), 1):
        nobody = not method._by_budget.in_round(recipe.seed, number).any()
        assert held.counted and len(held.attendance.reported) == 3
        assert (state.parameters == before).all() == nobody
        before, kept = state.parameters, kept + nobody
    assert 0 < kept < 10


# --- signs ------------------------------------------------------------------------------------------------------------


def test_the_model_of_votes_is_a_majority() -> None:
    """Of three votes with weights 5, 10 and 15 two classes can be as heavy as the third: then the sum is zero."""
    for aggregation in ("mean", "inverse-deviation"):
        held = rounds(settings({**VOTES, "method.aggregation": {"kind": aggregation}}), 2)
        for state, _ in held:
            assert set(np.unique(state.parameters)) <= {-1.0, 0.0, 1.0}
        assert (held[-1][0].parameters == 0).any() == (aggregation == "inverse-deviation")


def test_votes_of_one_epsilon_are_counted() -> None:
    """Two of three votes decide."""
    recipe = settings({**VOTES, "clients.epsilon": 5.0})
    federation = wire(recipe)
    method, upload = federation.method, federation.upload
    ups = np.array([[1, -1, 1, -1] * 200, [1, 1, -1, -1] * 200, [1, 1, -1, 1] * 200], np.float32)[:, :VALUES] * 1e3
    certain = RandomizedSign.response(22.0, upload.mechanisms[0].domain)
    upload.mechanisms = (certain,)  # whose votes are right but once in 10^9
    plan = method.plan(method.init(), "test")
    tally = method.tally(plan)
    sent = upload.send([0, 1, 2], ups, drawing(recipe), [1, 1, 1])
    assert not tally.add([0, 1, 2], sent.bodies)
    assert method.update(method.init(), plan, tally).parameters[:4].tolist() == [1, 1, -1, -1]


def test_without_noise_the_signs_of_unclipped_weights_are_sent_and_their_majority_is_the_model() -> None:
    """Section 5.3: line 13 of Algorithm 2 is removed, line 14 becomes sign(G_i), line 7 sign(mean of the signs)."""
    recipe = settings({**PLAIN, "method.sends": "signs", "method.sampling": 1.0})
    ((state, _),) = rounds(recipe, 1)
    assert set(np.unique(state.parameters)) <= {-1.0, 0.0, 1.0}
    weights = recipe.with_({"method.sends": "weights"})
    method = personalised(weights)
    plan = method.plan(method.init(), "test")
    bodies = method.report(plan, cohort_of(weights), drawing(weights), Bench()).bodies
    trained = [np.frombuffer(body, "<f4") for body in bodies]
    assert (state.parameters == np.sign(np.mean(np.sign(trained), axis=0))).all()


# --- what a client takes up -------------------------------------------------------------------------------------------


def cohort_of(recipe: Recipe, states: tuple[ClientState, ...] | None = None) -> Cohort:
    """All clients of a federation, with their data."""
    federation = wire(recipe)
    population = federation.population
    data = tuple(population.data(k, torch.device("cpu")) for k in range(federation.clients))
    sizes = tuple(len(part) for part in federation.parts)
    return Cohort(tuple(range(len(data))), data, states or ({},) * len(data), sizes)


def drawing(recipe: Recipe) -> Draw:
    """The clients' randomness in the first round."""
    return lambda clients: Keystream.simulation(recipe.seed, list(clients), 1)


class Numbered:
    """Records that are their own numbers, and the randomness of one client."""

    def __init__(self, recipe: Recipe, records: int) -> None:
        self.method = personalised(recipe)
        self.data = ClientData(
            torch.arange(records, dtype=torch.float32)[:, None], torch.zeros(records, dtype=torch.int64)
        )
        self.kept: dict[str, Any] = {}

    def taken(self, round: int) -> list[int]:
        randomness = Keystream.simulation(1, [0], round)
        self.kept[ORDER] = self.method._order(self.kept, len(self.data), randomness, 0)
        found = self.method._records(self.data, self.kept[ORDER], round, randomness, 0)
        return [] if found is None else found.x[:, 0].int().tolist()


def test_each_record_is_taken_up_once_in_so_many_rounds() -> None:
    client = Numbered(settings({"method.sampling": 1.0, **PLAIN}), 50)
    found = [client.taken(round) for round in range(1, 11)]
    assert [len(portion) for portion in found] == [5] * 10
    assert sorted(itertools.chain(*found)) == list(range(50))
    assert found[0] != [0, 1, 2, 3, 4]  # in an order of its own
    assert client.taken(11) == found[0]


def test_a_portion_larger_than_all_records_is_all_of_them() -> None:
    client = Numbered(settings({"method.sampling": 1.0, "method.portion": 100, **PLAIN}), 7)
    assert [sorted(client.taken(round)) for round in (1, 2)] == [list(range(7))] * 2


def test_without_portions_all_records_are_taken_up_in_their_own_order() -> None:
    client = Numbered(settings({"method.sampling": 1.0, "method.portion": 0, **PLAIN}), 7)
    assert client.taken(2) == list(range(7))


def test_each_record_is_sampled_with_probability_q() -> None:
    """Of 4,000 records a share of 0.8: within 4.5 standard deviations, which fails once in 10^5 seeds."""
    client = Numbered(settings({"method.portion": 4000}), 4000)
    first, second = client.taken(1), client.taken(2)
    assert len(first) / 4000 == pytest.approx(0.8, abs=4.5 * math.sqrt(0.16 / 4000))
    assert len(set(first)) == len(first) and set(first) != set(second)


def test_a_client_keeps_its_order_and_nothing_else() -> None:
    recipe = settings()
    method, cohort = personalised(recipe), cohort_of(recipe)
    reported = method.report(method.plan(method.init(), "test"), cohort, drawing(recipe), Bench())
    assert [set(kept) for kept in reported.states] == [{ORDER}] * 3
    assert all(sorted(kept[ORDER].tolist()) == list(range(10)) for kept in reported.states)


def test_without_a_record_in_the_sample_a_client_reports_the_model_it_was_sent() -> None:
    recipe = settings({**PLAIN, "method.sampling": 1e-9, "method.start": "random"})
    method, cohort = personalised(recipe), cohort_of(recipe)
    plan = method.plan(method.init(), "test")
    reported = method.report(plan, cohort, drawing(recipe), Bench())
    assert [np.frombuffer(body, "<f4").tolist() for body in reported.bodies] == [plan.arrays["parameters"].tolist()] * 3


# --- training ---------------------------------------------------------------------------------------------------------


def test_the_model_starts_from_zeros_unless_told_otherwise() -> None:
    assert not personalised(settings()).init().parameters.any()
    assert personalised(settings({"method.start": "random"})).init().parameters.all()


def scikit_learn(x: np.ndarray, y: np.ndarray, passes: int) -> np.ndarray:
    """The parameters of an SGDClassifier after so many calls of partial_fit, in the order of ours."""
    classifier = SGDClassifier(loss="log_loss", alpha=1e-4, learning_rate="optimal", shuffle=False)
    for _ in range(passes):
        classifier.partial_fit(x, y, classes=np.arange(10))
    return np.concatenate([classifier.coef_.reshape(-1), classifier.intercept_])


@pytest.mark.parametrize(("schedule", "passes"), [("continues", 2), ("restarts", 1)])
def test_a_round_without_noise_is_scikit_learns_partial_fit(schedule: str, passes: int) -> None:
    recipe = settings(
        {
            **PLAIN, "split.clients": 1, "data.train_limit": 20, "method.portion": 0, "method.sampling": 1.0,
            "method.schedule": schedule, "training.shuffle": False,
            "training.optimizer": {
                "name": "sgd", "lr": 10.0, "decay": 0.001, "weight_decay": 1e-4, "decayed": ["*.weight"],
            },
        }
    )  # fmt: skip
    (data,) = cohort_of(recipe).data
    assert data is not None
    expected = scikit_learn(data.x.flatten(1).double().numpy(), data.y.numpy(), passes)
    found = rounds(recipe, passes)[-1][0].parameters
    assert np.abs(found - expected).max() < 1e-3 * np.abs(expected).max()


def test_the_learning_rate_begins_anew_or_goes_on_after_what_rounds_have_on_average() -> None:
    first = {s: personalised(settings({"method.schedule": s}))._first_steps(4, [3]) for s in ("continues", "restarts")}
    assert first == {"continues": [3 * 4], "restarts": [0]}  # 0.8 x 5 records in each of three rounds


# --- what leaves a client ---------------------------------------------------------------------------------------------


def releases(recipe: Recipe, client: int) -> list[Release]:
    method = personalised(recipe)
    state, found = method.init(), []
    for _ in range(recipe.rounds.count):
        found += method.releases(method.plan(state, "test"))[method.class_of(client)]
        state = state.unchanged()
    return found


def test_the_epsilon_is_announced_once_and_rests_on_an_assumption() -> None:
    found = releases(settings(), 0)
    assert [release.what for release in found] == ["model weights", ANNOUNCED, *["model weights"] * 9]
    (guarantee,) = found[1].guarantees
    assert guarantee.loss == Pure(0.0) and guarantee.adjacency is Adjacency.CLIENT
    assert "without looking at its records: an assumption" in guarantee.basis


def test_where_there_is_no_epsilon_none_is_announced() -> None:
    assert {release.what for release in releases(settings(PLAIN), 0)} == {"model weights"}


def test_what_is_claimed_stands_beside_what_is_proven() -> None:
    rows = Statement.of(releases(settings(), 0), delta=0.002).rows
    row = next(row for row in rows if (row.adversary, row.adjacency) == (SERVER, Adjacency.CLIENT))
    assert row.claimed is not None
    assert (row.claimed.epsilon, row.claimed.delta) == (1.0, 0.002)
    assert row.proven == pytest.approx(3.05e5, rel=5e-3)


PROVEN = {  # (c, delta, q, R, d): {claimed: (a value's, an upload's, all rounds')} for the whole client
    "digits": ((200.0, 1 / 500, 0.8, 10, 650), {1.0: (73.4, 3.10e4, 3.05e5), 10.0: (3000, 1.82e6, 1.81e7)}),
    "fashion-mnist": ((2.0, 1 / 1000, 0.9, 20, 7850), {0.5: (0.0266, 6.80, 58.4), 1.0: (0.065, 17.0, 179.9)}),
    "covertype": ((2.0, 1 / 50000, 0.8, 50, 385), {1.0: (None, None, 28.9), 10.0: (None, None, 920)}),
}


@pytest.mark.parametrize("name", PROVEN)
def test_proven_figures_of_the_iid_settings(name: str) -> None:
    (c, delta, q, count, d), figures = PROVEN[name]
    for claimed, expected in figures.items():
        mechanism = Gaussian.eq4(claimed, delta, sampling=q, rounds=count, domain=Box(0.0, c))
        losses = [mechanism.guarantee(values=n).loss for n in (1, d)]
        found = [compose([losses[0]]), compose([losses[1]]), compose([losses[1]] * count)]
        for one, wanted in zip(found, expected, strict=True):
            if wanted is not None:
                assert one.epsilon(delta) == pytest.approx(wanted, rel=0.02)


def test_votes_are_proven_better_than_claimed_by_value_and_far_worse_by_upload() -> None:
    found = wire(settings(VOTES)).upload
    losses = [[m.guarantee(values=n).loss for n in (1, VALUES)] for m in found.mechanisms]
    one = [compose([value]).epsilon(0.0) for value, _ in losses]
    assert one == pytest.approx([0.8334, 1.7266, 2.7373], abs=2e-3)
    assert [compose([upload]).epsilon(0.0) for _, upload in losses] == pytest.approx([VALUES * e for e in one])


def test_a_ledger_of_claims_stops_nobody_within_the_schedule() -> None:
    budget = {"limit": [1.0, 1.0, 10.0], "delta": 0.002, "basis": "claimed"}
    outcome = run(settings({"clients.budget": budget}), workers=1)
    assert [record.reported for record in outcome.rounds] == [3] * 10
    assert [row.spent for row in outcome.result.budgets] == pytest.approx([1.0, 1.0, 10.0])


# --- recipes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method.sends": "signs"}, "method.sends: got signs with the mechanism gaussian; allowed: sign or none"),
        ({**VOTES, "method.sends": "weights"}, "method.sends: got weights with the mechanism sign; allowed: gaussian"),
        ({**PLAIN, **BY_BUDGET}, "method.aggregation.kind: got selection"),
        (
            {**VOTES, "method.aggregation": {"kind": "inverse-variance"}},
            "take inverse-deviation, which is best for votes",
        ),
        ({"method.sampling": 0.9}, "method.mechanism.sampling: got 0.8, but method.sampling is 0.9"),
        ({"rounds.count": 20}, "method.mechanism.rounds: got 10, but rounds.count is 20"),
        ({"method.range": None}, "method.range: missing; the mechanism gaussian needs a public range"),
        ({"clients.epsilon": None}, "clients.epsilon: missing; the mechanism gaussian needs it"),
        ({"method.mechanism": {"name": "gaussian", "calibration": "eq4"}}, "method.mechanism.delta: missing"),
    ],
    ids=["signs", "weights", "plain", "variance", "sampling", "rounds", "range", "epsilon", "delta"],
)
def test_what_does_not_fit_together_is_refused(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(RecipeInvalid) as refused:
        settings(changes)
    assert words in str(refused.value)


def test_batch_norm_statistics_have_no_place_here() -> None:
    normed = {"model": {"name": "tests.engine.tiny:Normed", "buffers": "release"}, "training.batch_size": 5}
    with pytest.raises(InvalidInput, match="batch-norm statistics"):
        wire(settings({**PLAIN, **normed, "method.start": "random"}))


SHIPPED = {  # N, R, batch, q, c, delta
    "digits": (3, 10, 50, 0.8, 200, 1 / 500),
    "fashion-mnist": (3, 20, 50, 0.9, 2, 1 / 1000),
    "covertype": (10, 50, 1000, 0.8, 2, 1 / 50000),
    "mnist-non-iid": (10, 10, 400, 1, 4, 1e-5),
    "fashion-mnist-non-iid": (10, 10, 200, 1, 4, 1e-5),
    "covertype-non-iid": (10, 20, 2500, 1, 2, 1e-5),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_the_shipped_recipes_have_the_papers_settings(name: str) -> None:
    recipe = Recipe.load(f"personalized-{name}")
    method: Any = recipe.method
    found = recipe.number_of_clients, recipe.rounds.count, method.portion, method.sampling, method.range.radius
    assert (*found, method.mechanism.delta) == pytest.approx(SHIPPED[name])
    assert f"personalized-{name}" in shipped()


@pytest.mark.parametrize(("name", "constants"), [("digits", 1), ("mnist", 1), ("fashion-mnist", 1), ("covertype", 54)])
def test_features_scaled_to_the_unit_interval_have_as_many_constants_as_there_are(name: str, constants: int) -> None:
    scaled = KNOWN[name].unit_interval
    assert scaled is not None and len(scaled.mean) == constants


def test_digits_scaled_to_the_unit_interval_lie_in_it() -> None:
    dataset = unit_interval("digits")
    scaled = dataset.normalisation.apply(dataset.train.x)
    assert (scaled.min(), scaled.max()) == (0, 1)
    with pytest.raises(InvalidInput, match=r"range.*'svhn'"):
        unit_interval("svhn")


# --- whole runs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["mean", "inverse-deviation", "inverse-variance", "selection"])
def test_a_run_is_the_same_for_any_number_of_workers(kind: str) -> None:
    recipe = settings({"method.aggregation": {"kind": kind}, "rounds.count": 2, "method.mechanism.rounds": 2})
    here, spread = (run(recipe, workers=workers) for workers in ((1, 2) if kind == "selection" else (1, 1)))
    assert (here.parameters == spread.parameters).all()
    assert [row.claimed is not None for row in here.statement.rows if row.adjacency is Adjacency.CLIENT] == [True, True]


def test_digits_are_learnt_without_noise_and_with_votes() -> None:
    plain = run(Recipe.load("personalized-digits").with_({**PLAIN, "method.aggregation": {"kind": "mean"}}), workers=1)
    assert plain.accuracy is not None and plain.accuracy > 0.75
    votes = settings({**PLAIN, "data": {"source": "digits"}, "method.sends": "signs", "method.portion": 50})
    found = run(votes.with_({"training.optimizer.lr": 10.0}), workers=1)
    assert found.accuracy is not None and found.accuracy > 0.5

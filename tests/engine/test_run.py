"""`sordino.run`: every mechanism, aggregation, selection, model and source of data, from the recipe to the report."""

import gc
import importlib
import json
import math
import weakref
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

import sordino
from sordino.audits.finished_run import FinishedRun
from sordino.errors import InvalidInput
from sordino.mechanisms import (
    Box,
    Exponential,
    Gaussian,
    IntegerRange,
    L1Ball,
    L2Ball,
    Laplace,
    Mechanism,
    Piecewise,
    PrivUnitG,
    RandomizedSign,
    Sphere,
    TwoPoint,
)
from sordino.privacy.accountant import compose
from sordino.privacy.accountant import epsilon as epsilon_of
from sordino.privacy.guarantee import Adjacency, Infinite
from sordino.recipe import Recipe
from sordino.report import expectations
from sordino.report.compare import compare
from sordino.report.crown import crowned
from sordino.report.statement import sentences, to_json, to_text
from sordino.runs.federation import wire
from sordino.runs.loaded_run import load_run
from sordino.runs.observer import Observer
from sordino.runs.outcome import Outcome
from sordino.runs.preflight import of_federation
from sordino.runs.validation_scores import score_releases
from tests.engine.tiny import BATCH_NORM, TWO_POINT, VALUES, left, recipe

DELTA = 1e-5  #: at which a statement gives its figures where the recipe names none

# --- mechanisms -------------------------------------------------------------------------------------------------------

#: The recipe's table, radius and clients.epsilon; and the same mechanism built by hand (None: nothing is proven).
MECHANISMS: dict[str, tuple[dict[str, Any], float | None, float | None, Mechanism | None]] = {
    "none": ({"name": "none"}, None, None, None),
    "clip-only box": ({"name": "clip-only"}, 0.1, None, None),
    "clip-only l1": ({"name": "clip-only", "norm": "l1"}, 1.0, None, None),
    "clip-only l2": ({"name": "clip-only", "norm": "l2"}, 1.0, None, None),
    "two-point": ({"name": "two-point"}, 0.1, 2.0, TwoPoint(2.0, Box(0.0, 0.1))),
    "laplace box": ({"name": "laplace"}, 0.1, 2.0, Laplace(2.0, Box(0.0, 0.1))),
    "laplace l1": ({"name": "laplace", "norm": "l1"}, 1.0, 2.0, Laplace(2.0, L1Ball(1.0))),
    "gaussian box": (
        {"name": "gaussian", "norm": "box", "delta": 1e-6},
        0.1,
        2.0,
        Gaussian.analytic(2.0, 1e-6, Box(0.0, 0.1), values=VALUES),
    ),
    "gaussian l2": (
        {"name": "gaussian", "norm": "l2", "delta": 1e-6},
        1.0,
        2.0,
        Gaussian.analytic(2.0, 1e-6, L2Ball(1.0), values=VALUES),
    ),
    "gaussian sigma": (
        {"name": "gaussian", "norm": "l2", "calibration": "sigma", "sigma": 1.5},
        1.0,
        None,
        Gaussian(1.5, L2Ball(1.0)),
    ),
    "sign": ({"name": "sign"}, 0.1, 2.0, RandomizedSign.response(2.0, Box(0.0, 0.1))),
    "sign eq7": (
        {"name": "sign", "calibration": "eq7", "delta": 1e-5},
        0.1,
        2.0,
        RandomizedSign.eq7(2.0, 1e-5, Box(0.0, 0.1)),
    ),
    "sign sigma": (
        {"name": "sign", "calibration": "sigma", "sigma": 0.5},
        0.1,
        None,
        RandomizedSign.gaussian(0.5, Box(0.0, 0.1)),
    ),
    "exponential": (
        {"name": "exponential", "precision": 6},
        1.0,
        0.01,
        Exponential(0.01, IntegerRange(1.0, 6)),
    ),
    "piecewise": ({"name": "piecewise"}, 0.1, 2.0, Piecewise(2.0, Box(0.0, 0.1))),
    "privunit": ({"name": "privunit"}, 1.0, 2.0, PrivUnitG(2.0, Sphere(1.0))),
}
ROUNDS = 2


def with_mechanism(name: str, **more: Any) -> Recipe:
    table, radius, epsilon, _ = MECHANISMS[name]
    changes: dict[str, Any] = {"method.mechanism": table, "rounds.count": ROUNDS, **more}
    if radius is not None:
        changes["method.range"] = {"kind": "fixed", "radius": radius}
    if epsilon is not None:
        changes["clients.epsilon"] = epsilon
    return recipe(changes)


def figures(outcome: Outcome, adjacency: str) -> list[dict[str, Any]]:
    """The proven figures of all rows of the statement with this adjacency."""
    return [row["proven"] for row in outcome.statement.to_json()["rows"] if row["adjacency"] == adjacency]


@pytest.mark.parametrize("upload", ["update", "weights"])
@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_runs_and_states_its_own_guarantee_composed_over_the_rounds(name, upload):
    outcome = sordino.run(with_mechanism(name, **{"method.upload": upload}))
    assert [record.reported for record in outcome.rounds] == [4] * ROUNDS
    assert np.isfinite(outcome.parameters).all()
    (client,), (coordinate,) = figures(outcome, "client"), figures(outcome, "coordinate")
    mechanism = MECHANISMS[name][3]
    if mechanism is None or isinstance(mechanism, PrivUnitG):
        assert client["epsilon"] == coordinate["epsilon"] == "infinity" and client["unproven"]
        return
    guarantees = [mechanism.guarantee(Adjacency.CLIENT, values=VALUES)] * ROUNDS
    assert client["epsilon"] == pytest.approx(compose(g.loss for g in guarantees).epsilon(DELTA), rel=1e-6)
    one_value = mechanism.guarantee(Adjacency.COORDINATE, values=VALUES)
    assert coordinate["epsilon"] == pytest.approx(epsilon_of(one_value.loss, DELTA), rel=1e-6)
    assert client["unproven"] == []


def test_what_is_claimed_of_real_numbers_stands_beside_an_infinite_proven_figure():
    rows = sordino.run(with_mechanism("privunit")).statement.to_json()["rows"]
    (row,) = [row for row in rows if row["adjacency"] == "client"]
    assert row["proven"]["epsilon"] == "infinity"
    assert row["claimed"]["epsilon"] == ROUNDS * 2.0 and "real arithmetic" in row["claimed"]["formula"]


def test_figures_that_follow_from_a_closed_form():
    """Pure losses add up; two Gaussian releases of sensitivity 2 and deviation 1.5 have mu = sqrt(2) 2 / 1.5."""
    laplace = sordino.run(with_mechanism("laplace l1"))
    (proven,) = figures(laplace, "client")
    assert 3.99 < proven["epsilon"] <= 2 * 2.0
    gaussian = sordino.run(with_mechanism("gaussian sigma"))
    (proven,) = figures(gaussian, "client")
    mu = math.sqrt(ROUNDS) * 2 / 1.5
    assert delta_of_gaussian(mu, proven["epsilon"]) == pytest.approx(DELTA, rel=1e-3)


def delta_of_gaussian(mu: float, epsilon: float) -> float:
    def phi(x: float) -> float:
        return math.erfc(-x / math.sqrt(2)) / 2

    return phi(mu / 2 - epsilon / mu) - math.exp(epsilon) * phi(-mu / 2 - epsilon / mu)


def test_three_rounds_cost_more_than_two_and_who_is_asked_less_pays_less():
    two, three = (sordino.run(with_mechanism("laplace l1", **{"rounds.count": n})) for n in (2, 3))
    assert figures(three, "client")[0]["epsilon"] == pytest.approx(1.5 * figures(two, "client")[0]["epsilon"], rel=1e-4)
    some = sordino.run(with_mechanism("laplace l1", **{"method.selection": {"kind": "count", "k": 1}}))
    spent = [row["proven"]["epsilon"] for row in some.statement.to_json()["rows"] if row["adjacency"] == "client"]
    assert all(figure <= 4.0 for figure in spent) and min(spent) <= 2.0
    assert sum(budget.reports for budget in some.result.budgets) == 2


# --- aggregation and selection ----------------------------------------------------------------------------------------


def test_weights_by_samples_are_the_mean_of_all_records_under_one_full_step():
    """One full-batch step: averaging by sample counts is the step on all records; a plain mean is not."""
    changes = {
        "split": {"kind": "sizes", "sizes": [5, 10, 25]},
        "training": {"steps": 1, "batch_size": 0, "optimizer": {"name": "sgd", "lr": 0.5}},
        "rounds.count": 1,
    }
    weighed = sordino.run(recipe(changes, **{"method.aggregation": {"kind": "samples"}}))
    mean = sordino.run(recipe(changes))
    together = sordino.run(recipe(changes, split={"kind": "sizes", "sizes": [40]}))
    assert np.allclose(weighed.parameters, together.parameters, atol=1e-6)
    assert not np.allclose(mean.parameters, together.parameters, atol=1e-4)
    whats = json.dumps(weighed.statement.to_json())
    assert "number of samples is sent as it is" in whats


def test_weights_by_budget_and_by_inverse_variance_listen_to_the_strong():
    """Client 0 has epsilon 8, the others 0.01: with weights, the model follows client 0."""
    strengths = {**TWO_POINT, "clients.epsilon": [8.0, 0.01, 0.01, 0.01], "rounds.count": 1}
    noise = {}
    for kind in ("mean", "budget", "inverse-variance"):
        outcome = sordino.run(recipe(strengths, **{"method.aggregation": {"kind": kind}}))
        simulation = outcome.rounds[0].simulation
        assert simulation is not None and simulation.noise_norm is not None
        noise[kind] = simulation.noise_norm
    # K(eps) = (e^eps + 1)/(e^eps - 1): 1.0007 at 8, 200 at 0.01; each value's deviation is r K
    strong, weak = ((math.e**e + 1) / (math.e**e - 1) for e in (8.0, 0.01))
    by_hand = {
        "mean": math.sqrt(strong**2 + 3 * weak**2) / 4,
        "budget": math.sqrt((8 * strong) ** 2 + 3 * (0.01 * weak) ** 2) / 8.03,
        "inverse-variance": 1 / math.sqrt(1 / strong**2 + 3 / weak**2),
    }
    for kind, expected in by_hand.items():
        assert noise[kind] == pytest.approx(0.1 * math.sqrt(VALUES) * expected, rel=1e-3), kind


def test_sign_aggregation_moves_every_value_by_one_step():
    voted = sordino.run(
        with_mechanism("sign", **{"method.aggregation": {"kind": "sign", "step": 0.03}, "rounds.count": 1})
    )
    start = sordino.run(with_mechanism("sign", **{"method.server_lr": 1e-30, "rounds.count": 1}))
    moved = np.abs(voted.parameters.astype(np.float64) - start.parameters)
    assert ((np.abs(moved - 0.03) < 1e-6) | (moved < 1e-6)).all()  # four votes may be even
    assert (moved > 0.02).mean() > 0.5


@pytest.mark.parametrize(
    ("selection", "asked"),
    [
        ({"kind": "all"}, {4}),
        ({"kind": "count", "k": 3}, {3}),
        ({"kind": "fraction", "p": 0.4}, {2}),  # 1.6 is rounded
        ({"kind": "fraction", "p": 0.01}, {1}),
        ({"kind": "probability", "p": 0.5}, {0, 1, 2, 3, 4}),
        ({"kind": "probability", "p": 1.0}, {4}),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_a_selection_asks_so_many(selection, asked):
    outcome = sordino.run(recipe({"method.selection": selection, "rounds.count": 6}))
    assert {record.asked for record in outcome.rounds} <= asked
    assert sum(budget.reports for budget in outcome.result.budgets) == sum(r.reported for r in outcome.rounds)


def test_a_round_that_asks_nobody_is_recorded_as_such_and_releases_nothing(tmp_path):
    """With probability 0.1 and four clients two rounds in three are empty, the first of them too."""
    changes = {"method.selection": {"kind": "probability", "p": 0.1}, "rounds.count": 8}
    outcome = sordino.run(recipe(changes), folder=tmp_path / "run")
    assert outcome.result.stopped == "all 8 rounds are done"
    empty = [record for record in outcome.rounds if record.asked == 0]
    assert empty and outcome.rounds[0] in empty
    assert all(not r.counted and r.simulation.train_loss is None for r in empty)  # type: ignore[union-attr]
    lines = (tmp_path / "run/checkpoint/releases.jsonl").read_text().splitlines()
    released = [sum(map(bool, json.loads(line)["clients"])) for line in lines]
    assert [bool(n) for n in released] == [record.reported > 0 for record in outcome.rounds]


# --- silos ------------------------------------------------------------------------------------------------------------


SILO = {
    "method": {"name": "silo-dp", "clip": 1.0, "sampling_rate": 0.2, "steps": 3, "noise_multiplier": 1.5},
    "training": {"optimizer": {"name": "sgd", "lr": 0.5}},
    "rounds.count": 2,
}


def test_silos_state_what_hides_a_record_and_nothing_about_the_silo():
    from sordino.privacy.guarantee import PoissonGaussian

    outcome = sordino.run(recipe(SILO))
    loss = PoissonGaussian(0.2, 1.5, 3)
    (proven,) = figures(outcome, "record (add/remove)")
    expected = compose([loss, loss], adjacency=Adjacency.RECORD_ADD_REMOVE).epsilon(DELTA)
    assert proven["epsilon"] == pytest.approx(expected, rel=1e-5)  # the grid rounds the noise up by a little
    assert not figures(outcome, "client") or figures(outcome, "client")[0]["epsilon"] == "infinity"
    assert np.isfinite(outcome.parameters).all()
    assert outcome.statement.simulated


def test_sums_may_be_coarsened_in_a_simulation():
    grid = {"method.resolution": 12}
    outcome = sordino.run(recipe(SILO, **grid, **{"method.coarsening": 4}))
    (coarse,) = figures(outcome, "record (add/remove)")
    (fine,) = figures(sordino.run(recipe(SILO, **grid)), "record (add/remove)")
    assert coarse["epsilon"] == pytest.approx(fine["epsilon"], rel=1e-2) and np.isfinite(outcome.parameters).all()


def test_a_silos_target_holds_for_the_whole_run():
    silo = {
        "method": {"name": "silo-dp", "sampling_rate": 0.2, "steps": 2, "target": {"epsilon": 3.0, "delta": 1e-6}},
        "training": {"optimizer": {"name": "sgd", "lr": 0.5}},
        "clients.budget": {"limit": 3.0, "delta": 1e-6, "adjacency": "record-add-remove"},
        "rounds.count": 4,
    }
    outcome = sordino.run(recipe(silo))
    assert outcome.result.rounds == 4 and not any(record.declined for record in outcome.rounds)
    (proven,) = figures(outcome, "record (add/remove)")
    assert 1.0 < proven["epsilon"] <= 3.0
    last = outcome.rounds[-1].spent_max
    assert last is not None and 2.5 < last <= 3.0


# --- batch norm -------------------------------------------------------------------------------------------------------


def test_batch_norm_is_refused_unless_the_recipe_says_what_becomes_of_its_statistics():
    with pytest.raises(InvalidInput, match=r"model\.buffers=local"):
        sordino.run(recipe(BATCH_NORM, **{"model.buffers": "refuse"}))


def test_local_statistics_never_leave_and_released_ones_are_part_of_the_upload_and_of_the_model(tmp_path):
    local = sordino.run(recipe(BATCH_NORM))
    assert not any("running" in name for name in local.tensors)
    assert "statistics" not in json.dumps(local.statement.to_json())
    released = sordino.run(recipe(BATCH_NORM, **{"model.buffers": "release"}), folder=tmp_path / "run")
    statistics = {name: array for name, array in released.tensors.items() if "running" in name}
    assert sorted(statistics) == [f"{a}.running_{b}" for a in ("after", "second") for b in ("mean", "var")]
    assert np.abs(statistics["second.running_mean"]).max() > 0
    more = sum(array.size for array in statistics.values())
    assert released.result.bytes_up - local.result.bytes_up == 3 * 4 * 4 * more  # rounds, clients, bytes
    assert "model update and batch-norm statistics" in (tmp_path / "run/checkpoint/releases.jsonl").read_text()


def test_a_look_ahead_says_whose_statistics_a_model_with_batch_norm_is_scored_with():
    def said(**changes: Any) -> bool:
        found = expectations.sentences(of_federation(wire(recipe(BATCH_NORM, **changes))))
        return any("scored with those of the test examples" in sentence for sentence in found)

    assert said()
    assert not said(**{"model.buffers": "release"})


def test_noise_on_released_variances_leaves_a_model_that_can_be_evaluated():
    """The deviation of four reports' mean is sqrt(2) 2 20 / 8 / 2 = 3.5, of variances that lie around 1."""
    layers = {"first": 0.1, "second": 0.1, "beyond": 0.1, "after": 0.1, "last": 0.1, "statistics": 20.0}
    noisy = {
        "model.buffers": "release",
        "method.mechanism": {"name": "laplace"},
        "method.range": {"kind": "fixed", "radius": layers},
        "clients.epsilon": 8.0,
    }
    outcome = sordino.run(recipe(BATCH_NORM, **noisy))
    variances = np.concatenate([v for n, v in outcome.tensors.items() if n.endswith("running_var")])
    assert (variances >= 0).all() and (variances == 0).any()
    assert outcome.result.loss is not None and math.isfinite(outcome.result.loss)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory) -> Path:
    """Three classes of 12 x 12 pictures, told apart by where they are bright."""
    rng = np.random.default_rng(5)
    y = np.arange(60) % 3
    x = rng.integers(0, 60, (60, 12, 12)).astype(np.uint8)
    for k in range(60):
        x[k, 4 * y[k] : 4 * y[k] + 4] += 150
    path = tmp_path_factory.mktemp("data") / "pictures.npz"
    np.savez(path, x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])
    return path


def picture_recipe(path: Path, **more: Any) -> Recipe:
    return recipe(
        {
            "data": {"source": str(path), "classes": ["a", "b", "c"], "mean": [80.0], "std": [75.0]},
            "split": {"kind": "iid", "clients": 3},
            **more,
        }
    )


@pytest.mark.parametrize("buffers", ["local", "release"])
def test_a_paper_s_network_with_batch_norm_learns_pictures_of_ones_own(pictures, buffers):
    model = {"name": "ldp-fed", "options": {"norm": "batch"}, "buffers": buffers}
    outcome = sordino.run(picture_recipe(pictures, model=model, **{"rounds.count": 4, "training.epochs": 2}))
    assert outcome.accuracy is not None and outcome.accuracy > 0.9


# --- data and models of one's own -------------------------------------------------------------------------------------


def test_a_table_of_ones_own(tmp_path):
    rng = np.random.default_rng(1)
    lines = ["height,weight,kind"]
    for k in range(80):
        kind = k % 2
        lines.append(f"{rng.normal(kind, 0.3):.3f},{rng.normal(-kind, 0.3):.3f},{'cat' if kind else 'dog'}")
    (tmp_path / "animals.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "mine.toml").write_text(
        """
        name = "animals"
        [data]
        source = "animals.csv"
        label = "kind"
        classes = ["dog", "cat"]
        test = 0.25
        mean = [0.5, -0.5]
        std = [0.5, 0.5]
        [split]
        kind = "iid"
        clients = 3
        [model]
        name = "logistic"
        [training.optimizer]
        name = "sgd"
        lr = 1.0
        [method]
        name = "fedavg"
        mechanism = { name = "none" }
        [rounds]
        count = 5
        """
    )
    outcome = sordino.run(Recipe.load(tmp_path / "mine.toml"))
    assert outcome.accuracy is not None and outcome.accuracy > 0.9
    assert outcome.result.classes == ("dog", "cat") and outcome.result.parameters == 6


HOSPITALS = ("Bern", "Basel", "Genf", "Chur", "Zug")
BY_HOSPITAL = """
    name = "hospitals"
    [data]
    source = "wards.csv"
    label = "diagnosis"
    classes = ["malignant", "benign"]
    test = 0.25
    mean = [14, 20, 90, 650]
    std = [4, 4, 25, 350]
    [split]
    kind = "column"
    column = "hospital"
    clients = ["Bern", "Basel", "Genf", "Chur", "Zug"]
    [model]
    name = "logistic"
    [training.optimizer]
    name = "sgd"
    lr = 0.1
    [method]
    name = "fedavg"
    mechanism = { name = "none" }
    [rounds]
    count = 5
    """


@pytest.fixture
def hospitals(tmp_path):
    """Scikit-learn's breast cancer data as the table of five hospitals, with its recipe."""
    from sklearn.datasets import load_breast_cancer

    data = load_breast_cancer()
    lines = ["radius,texture,hospital,perimeter,area,diagnosis"]
    for row, (x, y) in enumerate(zip(data.data[:, :4].tolist(), data.target.tolist(), strict=True)):
        hospital = HOSPITALS[row % 15 % 5 if row % 15 < 10 else 0]  # Bern has 7 of 15
        lines.append(f"{x[0]},{x[1]},{hospital},{x[2]},{x[3]},{data.target_names[y]}")
    (tmp_path / "wards.csv").write_text("\n".join(lines) + "\n")
    (tmp_path / "mine.toml").write_text(BY_HOSPITAL)
    return tmp_path / "mine.toml"


def test_a_table_of_five_hospitals_is_dealt_by_its_column(hospitals):
    outcome = sordino.run(Recipe.load(hospitals), folder=hospitals.parent / "run")
    assert outcome.accuracy is not None and outcome.accuracy > 0.85
    assert (outcome.result.clients, outcome.result.parameters) == (5, 4 * 2 + 2)
    sizes = [sum(counts) for counts in outcome.result.label_counts]
    assert sizes[0] > 2.5 * max(sizes[1:]) and sum(sizes) + sum(map(sum, outcome.result.confusion)) == 569
    page = (hospitals.parent / "run" / "report.html").read_text()
    assert all(f">{name}</text>" in page for name in HOSPITALS)


def test_hospitals_that_are_counted_hold_the_same_and_stay_unnamed(hospitals):
    named, counted = Recipe.load(hospitals), Recipe.load(hospitals, ["split.clients=5"])
    parts, rising = wire(named).parts, wire(counted).parts
    assert [rising[k].tolist() for k in range(5)] == [
        parts[HOSPITALS.index(name)].tolist() for name in sorted(HOSPITALS)
    ]
    run = sordino.run(counted, folder=hospitals.parent / "run")
    assert run.accuracy is not None and "Basel" not in (hospitals.parent / "run" / "report.html").read_text()
    assert Recipe.from_toml(named.to_toml()) == named


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("split.column=hopsital", "wards.csv: there is no column 'hopsital'"),
        ("split.clients=6", "column 'hospital': 5 different values .* for 6 clients"),
        ('split.clients=["Bern","Basel","Genf","Chur"]', "column 'hospital': row 4 .*'Zug'"),
        ('split.clients=["Bern","Basel","Genf","Chur","Zug","Thun"]', "'Thun' with 0 .*at_least=0"),
        ("data.train_limit=3", "cut off by a limit"),
    ],
)
def test_a_column_that_does_not_fit_is_refused_before_training(hospitals, setting, message):
    with pytest.raises(InvalidInput, match=message):
        sordino.run(Recipe.load(hospitals, [setting]))


def test_a_hospital_without_rows_may_take_part(hospitals):
    more = ['split.clients=["Bern","Basel","Genf","Chur","Zug","Thun"]', "split.at_least=0", "rounds.count=1"]
    assert sordino.run(Recipe.load(hospitals, more)).result.label_counts[5] == (0, 0)


def test_a_folder_of_pictures_of_ones_own(tmp_path):
    rng = np.random.default_rng(2)
    for part, count in (("train", 12), ("test", 6)):
        for k, name in enumerate(["dark", "light"]):
            folder = tmp_path / part / name
            folder.mkdir(parents=True)
            for number in range(count):
                np.save(folder / f"{number}.npy", rng.integers(100 * k, 100 * k + 100, (8, 8)).astype(np.uint8))
    own = {
        "data": {
            "source": str(tmp_path / "train"), "test": str(tmp_path / "test"), "classes": ["dark", "light"],
            "channels": 1, "mean": [100.0], "std": [60.0],
        },
        "rounds.count": 4,
    }  # fmt: skip
    outcome = sordino.run(recipe(own))
    assert outcome.accuracy == 1.0
    assert np.sum(outcome.result.label_counts, axis=0).tolist() == [12, 12]


OWN_CODE = """
import numpy as np
import torch
from torch import nn

from sordino.learning.examples import Dataset, Examples, Normalisation


def stripes(count):
    rng = np.random.default_rng(3)
    y = np.arange(count) % 2
    x = rng.normal(0, 0.3, (count, 1, 6, 6)).astype(np.float32)
    x[y == 1, :, ::2] += 1
    half = count // 2
    return Dataset("stripes", Examples(x[:half], y[:half]), Examples(x[half:], y[half:]), ("plain", "striped"),
                   Normalisation(), "made here", "none")


class Narrow(nn.Module):
    def __init__(self, classes, width=4):
        super().__init__()
        self.first = nn.Conv2d(1, width, 3)
        self.last = nn.Linear(16 * width, classes)

    def forward(self, x):
        return self.last(torch.relu(self.first(x)).flatten(1))
"""


def test_own_code_runs_in_any_number_of_processes_to_the_same_bits(tmp_path, monkeypatch):
    """A convolution on clients of several sizes, one of them of a single record and one empty."""
    (tmp_path / "own_code.py").write_text(OWN_CODE)
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    own = {
        "data": {"source": "own_code:stripes", "arguments": {"count": 80}},
        "model": {"name": "own_code:Narrow", "options": {"width": 3}},
        "training.optimizer": {"name": "sgd", "lr": 0.5},
        "split": {"kind": "sizes", "sizes": [7, 1, 20, 0, 12], "at_least": 0},
        "rounds.count": 4,
    }
    one = sordino.run(recipe(own), workers=1)
    assert one.result.parameters == (9 * 3 + 3) + (16 * 3 * 2 + 2)
    assert one.accuracy is not None and one.accuracy > 0.9
    for workers in (2, 3):
        again = sordino.run(recipe(own), workers=workers, folder=tmp_path / str(workers))
        assert np.array_equal(again.parameters, one.parameters)
        assert (again.result.accuracy, again.result.loss) == (one.result.accuracy, one.result.loss)
        assert [r.simulation for r in again.rounds] == [r.simulation for r in one.rounds]
    other = sordino.run(recipe(own, seed=8), workers=1)
    assert not np.array_equal(other.parameters, one.parameters)


def test_a_range_may_differ_from_layer_to_layer():
    radius = {"first": 0.001, "second": 0.002, "beyond": 0.003, "after": 0.004, "last": 0.005}
    changes = {
        "method.mechanism": {"name": "clip-only"},
        "method.range": {"kind": "fixed", "radius": radius},
        "training.optimizer": {"name": "sgd", "lr": 5.0},
        "split.clients": 1,
        "rounds.count": 1,
    }
    start = sordino.run(recipe(BATCH_NORM, **changes, **{"method.server_lr": 1e-30}))
    moved = sordino.run(recipe(BATCH_NORM, **changes))
    for name, limit in radius.items():
        steps = [np.abs(moved.tensors[n] - start.tensors[n]).max() for n in moved.tensors if n.startswith(f"{name}.")]
        assert max(steps) == pytest.approx(limit, rel=1e-3)


# --- the folder -------------------------------------------------------------------------------------------------------


class Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in {"meta", "br", "hr", "img", "input", "link", "line", "circle", "rect", "path", "polyline"}:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def test_a_folder_holds_everything_and_it_agrees(tmp_path):
    given = recipe({**TWO_POINT, "clients.budget": {"limit": 5000.0, "basis": "claimed"}})
    outcome = sordino.run(given, folder=tmp_path / "run")
    folder = tmp_path / "run"
    assert outcome.folder == folder
    assert sorted(path.name for path in folder.iterdir()) == [
        "checkpoint", "environment.json", "metrics.jsonl", "model.safetensors", "recipe.toml", "report.html",
        "result.json", "statement.json", "statement.txt",
    ]  # fmt: skip
    assert Recipe.from_toml((folder / "recipe.toml").read_text()) == given
    tensors = load_file(folder / "model.safetensors")
    assert {name: array.shape for name, array in tensors.items()} == {"fc.weight": (10, 64), "fc.bias": (10,)}
    assert np.array_equal(np.concatenate([tensors["fc.weight"].ravel(), tensors["fc.bias"]]), outcome.parameters)
    found = left(folder)
    assert [line["accuracy"] for line in found["rounds"]] == [record.accuracy for record in outcome.rounds]
    assert found["result"]["accuracy"] == outcome.accuracy == found["rounds"][-1]["accuracy"]
    assert json.loads(found["statement"]) == json.loads(json.dumps(to_json(outcome.statement)))
    assert [b["spent"] for b in found["result"]["budgets"]] == [pytest.approx(3 * VALUES * 1.0)] * 4
    assert (folder / "statement.txt").read_text() == to_text(outcome.statement)
    page = Page()
    page.feed((folder / "report.html").read_text())
    words = " ".join("".join(page.text).split())
    assert page.open == [] and "all 3 rounds are done" in words and f"{outcome.accuracy:.1%}"[:-3] in words


LOADED = {
    "plain": recipe(),
    "batch-norm": recipe({**BATCH_NORM, "model.buffers": "release"}),
    "private-head": Recipe.load("proven-digits").with_({"rounds.count": 5}),
    "private-head of oriented cells": Recipe.load("proven-digits").with_(
        {"rounds.count": 3, "method.extractor": {"kind": "oriented", "cells": 4}, "method.announced_size": 100}
    ),
}


@pytest.mark.parametrize("name", LOADED)
def test_a_model_that_is_loaded_scores_as_the_run_did(name, tmp_path):
    given = LOADED[name]
    outcome = sordino.run(given, folder=tmp_path / "run")
    model = sordino.load_model(tmp_path / "run")
    exam = wire(given).exams["test"]
    with torch.no_grad():
        scores = model(torch.from_numpy(exam.examples.x))
    assert float((scores.argmax(1).numpy() == exam.examples.y).mean()) == outcome.accuracy
    assert not model.training
    assert set(outcome.tensors) <= set(model.network.state_dict())
    assert model.classes == outcome.result.classes


def test_an_observer_is_told_everything_in_order():
    told: list[Any] = []

    class Listening(Observer):
        def started(self, federation, preflight, first):
            told.append((federation.clients, len(preflight) > 0, first))

        def round(self, record, attendance):
            told.append(record)

    outcome = sordino.run(recipe(), observer=Listening())
    assert told == [(4, True, 1), *outcome.rounds]
    assert outcome.folder is None and outcome.to_json()["files"] == []


def test_accuracy_is_counted_right():
    outcome = sordino.run(recipe({"data.test_limit": 297, "data.train_limit": 0, "rounds.count": 5}))
    confusion = np.array(outcome.result.confusion)
    assert confusion.sum() == 297
    assert outcome.accuracy == np.trace(confusion) / 297 and outcome.accuracy > 0.6


def test_evaluation_every_second_round_and_after_the_last():
    outcome = sordino.run(recipe({"evaluation.every": 2, "rounds.count": 5}))
    assert [record.accuracy is not None for record in outcome.rounds] == [False, True, False, True, True]


def test_a_run_stops_at_its_target_or_out_of_patience():
    base = {"data": {"source": "digits", "train_limit": 200, "test_limit": 30, "validation": 0.2}, "rounds.count": 30}
    reached = sordino.run(recipe(base, **{"rounds.target_accuracy": 0.5}))
    accuracies = [record.validation_accuracy for record in reached.rounds]
    assert accuracies[-1] >= 0.5 > max(accuracies[:-1]) and len(accuracies) < 30  # type: ignore[operator]
    assert f"round {len(accuracies)}" in reached.result.stopped
    still = sordino.run(recipe(base, **{"rounds.patience": 3, "training.optimizer": {"name": "sgd", "lr": 1e-12}}))
    assert still.result.rounds == 4 and "3 evaluations" in still.result.stopped


def test_a_number_of_rounds_that_was_not_fixed_in_advance_is_a_caveat_of_the_statement(tmp_path):
    base = {"data": {"source": "digits", "train_limit": 200, "test_limit": 30, "validation": 0.2}, **TWO_POINT}
    (said,) = sordino.run(recipe(base)).statement.caveats
    assert "diagnostics of this simulation" in said

    private = sordino.run(recipe(base, **{"rounds.patience": 30}), folder=tmp_path / "private")
    (said,) = private.statement.caveats
    assert "clients set aside" in said and "nothing is proven" in said
    assert all(len(view.unproven) == len(view.rows) for view in private.statement.views)
    assert [one.proven for one in load_run(tmp_path / "private").spending()] == [math.inf] * 3
    assert not crowned(compare([tmp_path / "private"]))
    assert sentences(private.statement)[0] == said and "with a caveat" in to_text(private.statement)
    assert any("clients set aside" in sentence for sentence in private.result.preflight)
    kept = json.loads((tmp_path / "private/statement.json").read_text())
    assert kept["caveats"] == [said] and said in (tmp_path / "private/report.html").read_text()
    assert FinishedRun.open(tmp_path / "private").statement == private.statement

    public = {"rounds.stop_on": "test", "rounds.target_accuracy": 1e-9}
    stopped = sordino.run(recipe(base, **public)).statement
    said, recorded = stopped.caveats
    assert "1 round fixed in advance" in said and "all 3 rounds" in said and "diagnostics" in recorded
    assert not stopped.lead.unproven
    never = {"rounds.stop_on": "test", "rounds.target_accuracy": 1.0, "data.validation": 0.0}
    assert not sordino.run(recipe(base, **never)).statement.caveats  # all rounds were held, as planned


@pytest.mark.parametrize(
    "rule",
    [{"rounds.patience": 2}, {"rounds.target_accuracy": 0.9}, {"rounds.stop": {"kind": "score", "value": 0.9}}],
    ids=["patience", "target", "stop"],
)
def test_every_rule_that_reads_what_clients_set_aside_is_a_release_of_all_of_them(rule):
    settings = recipe({"data.validation": 0.2, **rule}).settings()
    (made,) = score_releases(settings, 3)
    (scores,), (who,) = made.releases[0], made.clients
    assert list(who) == [0, 1, 2] and isinstance(scores.guarantees[0].loss, Infinite)
    assert not score_releases({**settings, "rounds.stop_on": "test"}, 3)
    assert not score_releases(recipe({"data.validation": 0.2}).settings(), 3)


class _Held(Observer):
    """Notes whether the records that a run was wired with are still in memory when a round is over."""

    def __init__(self) -> None:
        self.wired: Any = None
        self.found: list[bool] = []

    def round(self, *_: Any) -> None:
        gc.collect()
        self.found.append(self.wired() is not None)


def test_a_run_with_workers_holds_its_records_once(tmp_path, monkeypatch):
    """They lie in files that all processes map: a million clients' records need not be there twice."""
    x = np.random.default_rng(1).integers(0, 255, (60, 1, 8, 8), np.uint8)
    np.savez(tmp_path / "own.npz", x_train=x, y_train=np.arange(60) % 10, x_test=x[:10], y_test=np.arange(10))
    classes = [str(k) for k in range(10)]
    given = recipe({"data": {"source": str(tmp_path / "own.npz"), "classes": classes, "mean": [127], "std": [64]}})
    watch = _Held()

    def wired(*given: Any) -> Any:
        federation = wire(*given)
        watch.wired = weakref.ref(federation.dataset.train.x)
        return federation

    monkeypatch.setattr("sordino.runs.simulation.wire", wired)
    sordino.run(given, folder=tmp_path / "run", workers=2, observer=watch)
    assert watch.found == [False] * given.rounds.count

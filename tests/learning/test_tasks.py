"""Numbers and labels from tables of one's own: read, trained by every method that can, scored, saved and used again."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.test_cli_model import command

import sordino
from sordino.client.invitation import CommonTerms
from sordino.client.membership import Membership
from sordino.client.own_records import OwnRecords
from sordino.client.refusal import Refused
from sordino.client.settings import OwnData, Settings
from sordino.errors import InvalidInput
from sordino.learning.examples import Dataset, Examples, Normalisation
from sordino.learning.own_data import from_csv, from_npz
from sordino.learning.tasks import LABELS, Regression
from sordino.recipe import Recipe, RecipeInvalid
from sordino.report.compare import compare
from sordino.report.comparison_page import comparison_page
from sordino.runs.federation import wire
from sordino.runs.onnx_export import LARGEST_DIFFERENCE, difference, exported
from sordino.runs.prediction import predict_file
from sordino.wire.signing import SigningKey

pytestmark = pytest.mark.process
LOW, HIGH = 100.0, 500.0
DEGREES = Regression(LOW, HIGH)
NORMAL = Normalisation()
METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {"method": {"name": "fedavg"}},
    "local-only": {"method": {"name": "local-only"}},
    "silo-dp": {
        "method": {"name": "silo-dp", "clip": 1.0, "noise_multiplier": 1.0, "sampling_rate": 0.5, "announced_size": 20}
    },
    "hybrid-one": {
        "method": {
            "name": "hybrid-one", "clip": 1.0, "noise_multiplier": 1.0, "sampling_rate": 0.5, "announced_size": 20,
            "colluding": 1, "channel": {"kind": "summed"},
        },
        "split.clients": 6,
    },
    "ldp-fl": {"method": {"name": "ldp-fl", "range": {"kind": "fixed", "radius": 0.5}}, "clients.epsilon": 4.0},
    "ldp-fed": {
        "method": {
            "name": "ldp-fed", "range": {"kind": "fixed", "radius": 1.0},
            "mechanism": {"name": "exponential", "precision": 10},
        },
        "clients.epsilon": 4.0,
    },
    "central-dp": {"method": {"name": "central-dp", "clip": 1.0, "noise_multiplier": 1.0}},
    "personalized": {
        "method": {
            "name": "personalized", "sends": "weights", "range": {"kind": "fixed", "radius": 1.0},
            "mechanism": {"name": "gaussian", "delta": 1e-3},
        },
        "clients.epsilon": 4.0,
    },
    "webfed": {
        "method": {
            "name": "webfed", "range": {"kind": "fixed", "radius": 1.0}, "mechanism": {"name": "laplace", "norm": "box"}
        },
        "clients.epsilon": 4.0,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`heat.csv` with a number, and `mail.csv` with two labels, which both follow from four features."""
    folder = tmp_path_factory.mktemp("tables")
    x = np.random.default_rng(3).normal(size=(150, 4)).round(3)
    heat = np.clip(300 + 60 * x[:, 0] - 40 * x[:, 1], LOW, HIGH).round(2)
    mail = np.stack([x[:, 0] > 0.3, x[:, 1] + x[:, 2] > 0], axis=1).astype(int)
    for name, head, answers in (("heat", "heat", heat[:, None]), ("mail", "urgent,bill", mail)):
        lines = [",".join(map(str, [*row, *own])) for row, own in zip(x.tolist(), answers.tolist(), strict=True)]
        (folder / f"{name}.csv").write_text("\n".join([f"a,b,c,d,{head}", *lines]) + "\n")
    return folder


def recipe(folder: Path, task: str, changes: Mapping[str, Any] | None = None) -> Recipe:
    own = {"label": "heat", "target": [LOW, HIGH]} if task == "heat" else {"labels": ["urgent", "bill"]}
    data = {"source": str(folder / f"{task}.csv"), "test": 0.3, "mean": [0.0], "std": [1.0], **own}
    tables = {
        "name": task, "data": data, "split": {"kind": "iid", "clients": 3}, "model": {"name": "logistic"},
        "method": {"name": "fedavg"}, "rounds": {"count": 2},
    }  # fmt: skip
    return Recipe.from_dict(tables).with_(dict(changes or {}))


# --- training, the model's file, comparison ---------------------------------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("task", ["heat", "mail"])
def test_every_method_of_uploads_learns_numbers_and_labels(tables: Path, task: str, method: str) -> None:
    outcome = sordino.run(recipe(tables, task, METHODS[method]), workers=1)
    assert outcome.result.metric == ("mae" if task == "heat" else "average-precision")
    assert outcome.accuracy is None and outcome.score is not None and np.isfinite(outcome.score)
    assert [record.metric for record in outcome.rounds] == [outcome.result.metric] * 2
    assert outcome.rounds[-1].score == outcome.score
    assert (outcome.result.interval is None) == (method == "local-only")  # each client's model, the same examples


@pytest.fixture(scope="module")
def runs(tables: Path) -> Path:
    for task in ("heat", "mail"):
        longer = {
            "rounds.count": 8,
            "training": {"epochs": 2, "batch_size": 5},
            "model": {"name": "mlp", "options": {"hidden": [8]}},
        }
        sordino.run(recipe(tables, task, longer), workers=1, folder=tables / f"run-{task}")
    sordino.run(recipe(tables, "heat", {"rounds.count": 1}), workers=1, folder=tables / "run-short")
    return tables


def test_a_number_is_learnt_and_said_in_its_own_unit(runs: Path) -> None:
    model = sordino.load_model(runs / "run-heat")
    found = predict_file(model, runs / "heat.csv")
    truth = from_csv(
        runs / "heat.csv", test=None, label="heat", classes=["heat"], normalisation=NORMAL, task=DEGREES
    ).train
    assert np.abs(found.values - truth.y).mean() < 15  # type: ignore[union-attr]
    assert found.to_csv().splitlines()[0] == "heat" and len(found) == 150
    with torch.no_grad():
        x = torch.from_numpy(truth.x)
        assert torch.allclose(model.values(x), (model(x)[:, 0] * 200 + 300).clamp(LOW, HIGH))
        assert model.values(1e6 * x).min() >= LOW and model.values(1e6 * x).max() <= HIGH
    with pytest.raises(InvalidInput):
        model.probabilities(x)


def test_labels_are_said_as_a_set_with_a_chance_each(runs: Path) -> None:
    model = sordino.load_model(runs / "run-mail")
    found = predict_file(model, runs / "mail.csv")
    rows = (runs / "mail.csv").read_text().splitlines()[1:]
    truth = [
        tuple(n for n, bit in zip(("urgent", "bill"), row.split(",")[4:], strict=True) if bit == "1") for row in rows
    ]
    assert np.mean([own == said for own, said in zip(truth, found.sets, strict=True)]) > 0.8  # type: ignore[union-attr]
    assert found.to_csv().splitlines()[0] == "labels,urgent,bill"
    with pytest.raises(InvalidInput):
        model.values(torch.zeros(1, 4))


def test_a_number_from_onnx_is_that_of_pytorch(runs: Path) -> None:
    pytest.importorskip("onnxscript")
    pytest.importorskip("onnxruntime")
    model = sordino.load_model(runs / "run-heat")
    assert difference(model, exported(model)) <= LARGEST_DIFFERENCE


def test_runs_are_compared_by_their_metric_in_its_direction(runs: Path) -> None:
    found = compare([runs / "run-heat", runs / "run-short"])
    best = found.best()
    assert (found.metric, found.smaller_is_better) == ("mae", True) and best is not None
    assert best[1].name == "heat" and best[1].runs[0].result.rounds == 8
    assert "mae" in comparison_page(found) and "mae mean" in found.to_csv()
    with pytest.raises(InvalidInput, match=r"evaluation\.metric"):
        compare([runs / "run-heat", runs / "run-mail"])


def test_the_page_leads_with_the_metric_and_says_what_a_constant_answer_has(runs: Path) -> None:
    page = (runs / "run-heat" / "report.html").read_text()
    result = json.loads((runs / "run-heat" / "result.json").read_text())
    assert f"{result['score']:.4g}" in page and f"{result['baseline']:.4g}" in page and "Confusion" not in page


def test_commands_say_the_figure_the_baseline_and_what_is_wrong(runs: Path, tmp_path: Path) -> None:
    (tmp_path / "own.toml").write_text(recipe(runs, "heat").to_toml())
    run = command("run", tmp_path / "own.toml", "--out", tmp_path / "run", "--workers", 1).stdout
    result = json.loads((tmp_path / "run" / "result.json").read_text())
    assert f"{result['score']:.4g}" in run and f"{result['baseline']:.4g}" in run and "accuracy" not in run
    compared = command("compare", tmp_path / "run", runs / "run-heat", "--out", tmp_path, "--json").stdout
    assert {row["mae n"] for row in json.loads(compared)["groups"]} == {"1"}
    assert command("predict", runs / "run-mail", runs / "mail.csv").stdout.startswith("labels,urgent,bill\n")
    wrong = command(
        "recipes", "check", tmp_path / "own.toml", "--set", "evaluation.metric.kind=f1", "--json", exit_code=1
    )
    assert json.loads(wrong.stdout)["problems"][0].startswith("evaluation.metric.kind:")
    mixing = ("--set", 'method={name="silo-dp",clip=1.0,noise_multiplier=1.0,sampling_rate=0.5,announced_size=20}')
    loss = ("--set", "model.loss.kind=tests.learning.test_tasks:spread")
    command("recipes", "check", tmp_path / "own.toml", *loss)
    assert command("recipes", "check", tmp_path / "own.toml", *loss, *mixing, "--json", exit_code=1).stdout


def spread(scores: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """A loss that compares records with each other."""
    return ((scores - scores.mean()) - (targets - targets.mean())).square().mean()


# --- reading ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "old", "new", "where"),
    [
        ("heat", "heat\n", "heat\n1,2,3,4,501\n", "line 2, column 'heat'"),
        ("heat", "heat\n", "heat\n1,2,3,4,warm\n", "line 2, column 'heat'"),
        ("mail", "bill\n", "bill\n1,2,3,4,1,2\n", "line 2, column 'bill'"),
        ("mail", "bill\n", "bills\n", "no column 'bill'"),
    ],
)
def test_a_wrong_cell_is_named(tables: Path, tmp_path: Path, task: str, old: str, new: str, where: str) -> None:
    (tmp_path / f"{task}.csv").write_text((tables / f"{task}.csv").read_text().replace(old, new))
    with pytest.raises(InvalidInput, match=where):
        wire(recipe(tmp_path, task))


def test_arrays_hold_numbers_or_bits(tmp_path: Path) -> None:
    x = np.zeros((3, 2), np.float32)
    np.savez(tmp_path / "n.npz", x=x, y=np.array([100, 200.5, 500]))
    np.savez(tmp_path / "b.npz", x=x, y=np.array([[0, 1], [1, 1], [0, 0]]))
    numbers = from_npz(tmp_path / "n.npz", classes=["t"], normalisation=NORMAL, task=DEGREES)
    assert numbers.train.y.dtype == np.float32 and numbers.train.y.tolist() == [100, 200.5, 500]
    bits = from_npz(tmp_path / "b.npz", classes=["u", "v"], normalisation=NORMAL, task=LABELS)
    assert bits.train.y.tolist() == [[0, 1], [1, 1], [0, 0]]
    for names, y in ((["u"], [[0, 1]]), (["u", "v"], [[0, 2]]), (["u", "v"], [[0.0, 1.0]])):
        np.savez(tmp_path / "w.npz", x=x[:1], y=np.array(y))
        with pytest.raises(InvalidInput):
            from_npz(tmp_path / "w.npz", classes=names, normalisation=NORMAL, task=LABELS)


@pytest.mark.parametrize("ends", [(1.0, 1.0), (2.0, 1.0), (0.0, float("inf")), (0.0, float("nan"))])
def test_a_range_has_two_ends(ends: tuple[float, float]) -> None:
    with pytest.raises(InvalidInput):
        Regression(*ends)


# --- what does not fit ------------------------------------------------------------------------------------------------

HEAD = {"name": "private-head", "extractor": {"kind": "plain"}, "announced_size": 20}
MISFITS: dict[str, tuple[str, dict[str, Any], str]] = {
    "metric of classes": ("heat", {"evaluation.metric": {"kind": "accuracy"}}, "evaluation.metric.kind"),
    "metric of numbers": ("mail", {"evaluation.metric": {"kind": "r2"}}, "evaluation.metric.kind"),
    "loss of classes": ("heat", {"model.loss": {"kind": "cross-entropy"}}, "model.loss.kind"),
    "loss of numbers": ("mail", {"model.loss": {"kind": "mse"}}, "model.loss.kind"),
    "weights": ("mail", {"model.loss": {"kind": "binary-cross-entropy", "weights": [1.0]}}, "model.loss.weights"),
    "label skew": ("heat", {"split": {"kind": "dirichlet", "clients": 3, "beta": 1.0}}, "split.kind"),
    "shards": ("mail", {"split": {"kind": "shards", "clients": 3, "labels_per_client": 1}}, "split.kind"),
    "head": ("heat", {"method": HEAD, "clients.epsilon": 1.0}, "method.name"),
    "one versus rest": ("mail", {"model.name": "logistic-ovr"}, "model.name"),
    "target": ("heat", {"rounds.target_accuracy": 0.9, "rounds.stop_on": "test"}, "rounds.target_accuracy"),
    "both": ("heat", {"data.classes": ["a", "b"]}, "data.target"),
    "range": ("heat", {"data.target": [3, 2]}, "data.target"),
    "label beside labels": ("mail", {"data.label": "a"}, "data.label"),
    "a label as column": ("mail", {"split": {"kind": "column", "column": "bill", "clients": 2}}, "split.column"),
    "names twice": ("mail", {"data.labels": ["a", "a"]}, "data.labels"),
}


@pytest.mark.parametrize("case", MISFITS)
def test_what_cannot_carry_the_task_is_refused_with_its_key(tables: Path, case: str) -> None:
    task, changes, key = MISFITS[case]
    with pytest.raises(RecipeInvalid) as caught:
        recipe(tables, task, changes)
    assert any(problem.startswith(f"{key}:") for problem in caught.value.problems), caught.value.problems


def made() -> Dataset:
    """A data set of numbers, as a function returns it."""
    x = np.random.default_rng(1).normal(size=(40, 2)).astype(np.float32)
    y = (10 * x[:, 0]).clip(-50, 50)
    return Dataset(
        "made", Examples(x[:30], y[:30]), Examples(x[30:], y[30:]), ("warmth",), NORMAL, "here", "none",
        task=Regression(-50, 50),
    )  # fmt: skip


def test_of_a_function_the_task_is_known_when_it_was_called() -> None:
    source = {"source": "tests.learning.test_tasks:made"}
    tables = {
        "name": "made", "data": source, "split": {"kind": "iid", "clients": 2}, "model": {"name": "logistic"},
        "method": {"name": "fedavg"}, "rounds": {"count": 1},
    }  # fmt: skip
    given = Recipe.from_dict(tables)
    assert wire(given).dataset.task == Regression(-50, 50)
    with pytest.raises(InvalidInput, match=r"evaluation\.metric"):
        wire(given.with_({"evaluation.metric": {"kind": "f1"}}))
    terms = CommonTerms.of(given, "made", made(), SigningKey.new().author)
    assert Recipe.from_toml(terms.recipe).data.target == (-50, 50)  # real clients read it there


# --- real clients -----------------------------------------------------------------------------------------------------


def test_a_real_client_agrees_to_the_same_range_only(tables: Path) -> None:
    given = recipe(tables, "heat", METHODS["ldp-fl"])
    key = SigningKey.new()
    invitation = CommonTerms.of(given, "heat", wire(given).dataset, key.author).invitation(0, key)
    table = {"source": str(tables / "heat.csv"), "label": "heat"}
    for target, fits in (([LOW, HIGH], True), ([0.0, HIGH], False)):
        settings = Settings.of({"data": {**table, "target": target}, "budget": {"limit": 1e6}})
        records = OwnRecords.read(OwnData(**{**table, "target": tuple(target)}), tables)
        if fits:
            assert Membership(invitation, settings, records).values == 5
        else:
            with pytest.raises(Refused):
                Membership(invitation, settings, records)

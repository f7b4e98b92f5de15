"""The file of a trained model: everything that using it takes, and who may load what."""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import sordino
from sordino.errors import InvalidInput
from sordino.learning import datasets, models
from sordino.recipe import Recipe
from sordino.report.folder import RunFolder
from sordino.runs.federation import wire
from sordino.runs.prediction import predict
from tests.engine.tiny import BATCH_NORM, TINY


class Furnished(nn.Module):
    """A frozen layer, and buffers of three kinds."""

    counts: Tensor

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.frozen = nn.Linear(64, 6).requires_grad_(False)
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, classes)
        self.register_buffer("counts", torch.arange(3))
        self.register_buffer("small", torch.full((2,), 0.5, dtype=torch.bfloat16))
        self.register_buffer("odd", torch.zeros(1, dtype=torch.complex64))

    def forward(self, input: Tensor) -> Tensor:
        return self.last(self.first(self.frozen(input.flatten(1))).relu())


OWN = "tests.engine.test_model_file:Furnished"


def run(folder: Path, changes: dict[str, Any] | None = None) -> Any:
    return sordino.run(Recipe(**TINY).with_(changes or {}), folder=folder)


def described(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="np") as file:
        found: dict[str, Any] = json.loads(file.metadata()["sordino"])
    return found


def accuracy(model: nn.Module, recipe: Recipe) -> float:
    exam = wire(recipe).exams["test"]
    with torch.no_grad():
        found = model(torch.from_numpy(exam.examples.x)).argmax(1).numpy()
    return float((found == exam.examples.y).mean())


def as_before(folder: Path, outcome: Any) -> None:
    """Write the model as the first version did: what was trained, and its name."""
    about = {"recipe": "tiny", "model": "logistic", "seed": 7}
    RunFolder(folder).write_model(outcome.tensors, {"sordino": json.dumps(about)})


def test_a_file_holds_frozen_parameters_buffers_and_its_description(tmp_path):
    outcome = run(tmp_path / "run", {"model.name": OWN})
    path = tmp_path / "run" / "model.safetensors"
    with safe_open(path, framework="pt") as file:
        found = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    fresh = models.build(OWN, outcome.result.seed, input_shape=(1, 8, 8), classes=10).state_dict()
    assert set(found) == set(fresh) - {"odd"}
    for name in ("frozen.weight", "frozen.bias", "counts"):
        assert torch.equal(found[name], fresh[name])
    assert torch.equal(found["small"], fresh["small"].float())
    assert np.array_equal(found["first.weight"].numpy(), outcome.tensors["first.weight"])
    digits = datasets.load("digits")
    about = described(path)
    assert {name: about[name] for name in ("recipe", "seed", "model", "options", "input_shape", "classes")} == {
        "recipe": "tiny", "seed": 7, "model": OWN, "options": {}, "input_shape": [1, 8, 8],
        "classes": list(digits.classes),
    }  # fmt: skip
    assert (about["mean"], about["std"]) == (list(digits.normalisation.mean), list(digits.normalisation.std))
    assert accuracy(sordino.load_model(tmp_path / "run"), Recipe(**TINY)) == outcome.accuracy


def test_a_file_is_loaded_anywhere_without_recipe_and_data(tmp_path):
    digits, data = datasets.load("digits"), tmp_path / "mine.npz"
    arrays = {"x_train": digits.train.x[:40], "y_train": digits.train.y[:40], "x_test": digits.test.x[:30]}
    np.savez(data, **arrays, y_test=digits.test.y[:30])
    own = {"source": str(data), "classes": list("abcdefghij"), "mean": [8.0], "std": [4.0]}
    outcome = run(tmp_path / "run", {"data": own, "model": {"name": "mlp", "options": {"hidden": [5]}}})
    data.unlink()
    shutil.move(tmp_path / "run" / "model.safetensors", tmp_path / "moved.safetensors")
    model = sordino.load_model(tmp_path / "moved.safetensors")
    with torch.no_grad():
        found = model(torch.from_numpy(digits.test.x[:30])).argmax(1).numpy()
    assert float((found == digits.test.y[:30]).mean()) == outcome.accuracy
    assert (model.classes, model.input_shape, model.training) == (tuple("abcdefghij"), (1, 8, 8), False)
    with pytest.raises(InvalidInput, match=r"\[n, 1, 8, 8\]"):
        model(torch.zeros(1, 64))


def test_a_lone_file_imports_only_code_that_is_allowed(tmp_path):
    run(tmp_path / "run", {"model.name": OWN})
    lone = tmp_path / "lone.safetensors"
    shutil.copy(tmp_path / "run" / "model.safetensors", lone)
    with pytest.raises(InvalidInput, match="allow="):
        sordino.load_model(lone)
    assert sordino.load_model(lone, allow=[OWN]).classes
    assert sordino.load_model(tmp_path / "run" / "model.safetensors").classes


def test_probabilities_add_up_or_stand_alone(tmp_path):
    x = torch.from_numpy(datasets.load("digits").test.x[:5])
    for name in ("logistic", "logistic-ovr"):
        run(tmp_path / name, {"model.name": name})
        model = sordino.load_model(tmp_path / name)
        scores = model(x)
        wanted = scores.sigmoid() if name == "logistic-ovr" else scores.softmax(1)
        assert torch.equal(model.probabilities(x), wanted)


# --- earlier files, and what is no model ------------------------------------------------------------------------------


def test_files_of_earlier_versions_load_from_their_folder(tmp_path):
    outcome = run(tmp_path / "run")
    new = sordino.load_model(tmp_path / "run")
    as_before(tmp_path / "run", outcome)
    old = sordino.load_model(tmp_path / "run")
    assert old.about == new.about
    assert accuracy(old, Recipe(**TINY)) == outcome.accuracy
    lone = tmp_path / "lone.safetensors"
    shutil.copy(tmp_path / "run" / "model.safetensors", lone)
    with pytest.raises(InvalidInput, match="earlier"):
        sordino.load_model(lone)
    (tmp_path / "run" / "recipe.toml").write_text(Recipe(**TINY).with_({"model": {"name": "mlp"}}).to_toml())
    with pytest.raises(InvalidInput, match="another recipe"):
        sordino.load_model(tmp_path / "run")


def test_heads_of_earlier_versions_load_from_their_folder(tmp_path):
    recipe = Recipe.load("proven-digits").with_({"rounds.count": 3})
    outcome = sordino.run(recipe, folder=tmp_path / "run")
    as_before(tmp_path / "run", outcome)
    model = sordino.load_model(tmp_path / "run")
    assert model.about.head is not None
    assert accuracy(model, recipe) == outcome.accuracy


DESCRIBED = '{"recipe": "r", "seed": 1, "model": "logistic", "input_shape": [4], "mean": [0], "std": [1], %s}'


@pytest.mark.parametrize(
    ("text", "key"),
    [
        (None, "not written by"),
        ("{", "damaged.*JSON"),
        ("[]", "damaged"),
        ('{"input_shape": [64], "classes": []}', "damaged.*classes"),
        (DESCRIBED % '"classes": ["a"]', "damaged.*classes"),
        (DESCRIBED % '"classes": ["a"], "task": "regression"', "damaged.*target"),
    ],
)
def test_what_is_no_model_of_sordino_is_refused(text, key, tmp_path):
    path = tmp_path / "other.safetensors"
    save_file({"w": torch.zeros(1)}, path, None if text is None else {"sordino": text})
    with pytest.raises(InvalidInput, match=key):
        sordino.load_model(path)


def test_a_run_that_is_not_there_or_not_over_is_refused(tmp_path):
    with pytest.raises(InvalidInput, match="no such"):
        sordino.load_model(tmp_path / "nothing")
    with pytest.raises(InvalidInput, match=r"recipe\.toml"):
        sordino.load_model(tmp_path)
    (tmp_path / "recipe.toml").write_text("")
    with pytest.raises(InvalidInput, match="no model yet"):
        sordino.load_model(tmp_path)


# --- methods whose models are not for records -------------------------------------------------------------------------


def test_statistics_that_stay_with_clients_are_not_in_the_file(tmp_path):
    outcome = run(tmp_path / "run", BATCH_NORM)
    model = sordino.load_model(tmp_path / "run")
    arrays, _ = RunFolder(tmp_path / "run").model()
    assert described(tmp_path / "run" / "model.safetensors")["local_statistics"] is True
    assert not arrays["second.running_mean"].any() and (arrays["second.running_var"] == 1).all()
    assert accuracy(model, Recipe(**TINY)) == outcome.accuracy
    with pytest.raises(InvalidInput, match="two or more"):
        predict(model, np.zeros((1, 1, 8, 8), np.uint8))


def test_a_run_of_clients_that_learn_alone_has_no_model(tmp_path):
    run(tmp_path / "run", {"method": {"name": "local-only"}})
    with pytest.raises(InvalidInput, match="alone"):
        sordino.load_model(tmp_path / "run")


def test_a_network_of_randomised_features_takes_these_alone(tmp_path):
    recipe = Recipe.load("ldpfl-digits", ["rounds.count=1", "method.extractor.training.epochs=1"])
    sordino.run(recipe, folder=tmp_path / "run")
    model = sordino.load_model(tmp_path / "run")
    assert model.about.takes == "features"
    assert model(torch.zeros(2, *model.input_shape)).shape == (2, 10)


def test_a_head_comes_with_the_network_that_makes_its_features(tmp_path):
    network = models.build("ldp-fed", input_shape=(1, 8, 8), classes=10)
    weights = tmp_path / "public.safetensors"
    save_file({name: value + 0.01 for name, value in network.state_dict().items()}, weights)
    extractor = {"kind": "network", "model": "ldp-fed", "weights": str(weights), "elsewhere": True}
    recipe = Recipe.load("proven-digits").with_({"rounds.count": 3, "method.extractor": extractor})
    outcome = sordino.run(recipe, folder=tmp_path / "run")
    found = accuracy(sordino.load_model(tmp_path / "run"), recipe)
    assert found == outcome.accuracy
    exam = torch.from_numpy(datasets.load("digits").test.x[:9])
    before = sordino.load_model(tmp_path / "run")(exam)
    weights.unlink()
    assert torch.equal(sordino.load_model(tmp_path / "run")(exam), before)

"""Own networks that share layers or weights, and that draw weights by NumPy or Python."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

import sordino
from sordino.errors import InvalidInput
from sordino.learning import models
from sordino.runs.federation import wire
from tests.engine import tiny
from tests.engine.test_preparation import StopsAfter
from tests.methods.own_networks import Lora
from tests.methods.test_frozen_parts import METHODS

HERE = "tests.methods.test_tied_networks"


class SharedLayer(nn.Module):
    """One layer under two names."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.again, self.head = self.first, nn.Linear(64, classes)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.head(self.again(self.first(x.flatten(1)).tanh()).tanh())
        return scores


class SharedWeight(nn.Module):
    """A table and an output layer with one matrix, and a buffer under two names."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.inner, self.table, self.out = nn.Linear(64, 8), nn.Embedding(classes, 8), nn.Linear(8, classes)
        self.out.weight = self.table.weight
        self.register_buffer("one", torch.ones(1))
        self.register_buffer("other", self.one)

    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = self.out(self.inner(x.flatten(1)).tanh() + self.table.weight.mean(0) * self.other)
        return scores


class Drawn(nn.Sequential):
    """Draws by NumPy and by Python."""

    def __init__(self, classes: int) -> None:
        super().__init__(nn.Flatten(), nn.Linear(64, classes))
        weights = np.random.normal(size=(classes, 64)).astype(np.float32)  # noqa: NPY002
        self[1].weight = nn.Parameter(torch.from_numpy(weights))
        nn.init.constant_(self[1].bias, random.random())


@pytest.mark.parametrize("network", [SharedLayer, SharedWeight])
def test_a_call_uses_tensors_under_all_their_names_and_leaves_the_module_alone(network: type[nn.Module]) -> None:
    torch.manual_seed(1)
    module, x = network(10), torch.rand(3, 1, 8, 8)
    other = network(10)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    for _ in range(2):
        found = models.call(module, dict(other.named_parameters()), (x,))
        torch.testing.assert_close(found, other(x))
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())
    assert models.parameter_layout(module).size == models.parameter_layout(other).size


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", ["SharedLayer", "SharedWeight"])
def test_shared_layers_and_weights_are_trained_scored_and_written(network: str, method: str, tmp_path: Path) -> None:
    recipe = tiny.recipe({"model": {"name": f"{HERE}:{network}"}, **METHODS[method], "rounds.count": 2})
    outcome = sordino.run(recipe, folder=tmp_path / "run", workers=1)
    model, exam = sordino.load_model(tmp_path / "run"), wire(recipe).exams["test"].examples
    with torch.no_grad():
        right = (model(torch.from_numpy(exam.x)).argmax(1).numpy() == exam.y).mean()
    assert right == pytest.approx(outcome.rounds[-1].accuracy)


def test_the_seed_decides_what_a_class_draws_by_numpy_and_python() -> None:
    def started(seed: int) -> Any:
        return wire(tiny.recipe({"model": {"name": f"{HERE}:Drawn"}, "seed": seed})).method.init().parameters

    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    one = started(3)
    drawn = np.random.random(), random.random()  # noqa: NPY002
    np.random.seed(5)  # noqa: NPY002
    random.seed(5)
    assert drawn == (np.random.random(), random.random())  # noqa: NPY002 (as if nobody had drawn before)
    assert np.array_equal(one, started(3)) and not np.array_equal(one, started(4))
    assert one[-1] != started(4)[-1]  # the bias, by Python


@pytest.mark.parametrize("key", ["model.start", "method.extractor.weights"])
def test_weights_that_changed_since_a_run_began_are_refused(key: str, tmp_path: Path) -> None:
    file, folder = tmp_path / "start.safetensors", tmp_path / "run"
    save_file(Lora(10).state_dict(), file)
    lora = "tests.methods.own_networks:Lora"
    changes: dict[str, Any] = {"model": {"name": lora, "start": str(file)}}
    if key == "method.extractor.weights":
        table = {"kind": "network", "model": lora, "weights": str(file), "elsewhere": True}
        head = {"name": "private-head", "extractor": table, "channel": {"kind": "direct"}}
        changes = {"model": {"name": "logistic"}, "method": head, "clients.epsilon": 4.0, "training": {}}
    recipe = tiny.recipe({**changes, "rounds.count": 3})
    with pytest.raises(KeyboardInterrupt):
        sordino.run(recipe, folder=folder, workers=1, observer=StopsAfter(1))
    kept = file.read_bytes()
    save_file({name: value + 1 for name, value in Lora(10).state_dict().items()}, file)
    with pytest.raises(InvalidInput, match=r"start\.safetensors has changed"):
        sordino.run(recipe, folder=folder, workers=1, resume=True)
    file.write_bytes(kept)
    assert len(sordino.run(recipe, folder=folder, workers=1, resume=True).rounds) == 3

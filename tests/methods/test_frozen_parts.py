"""Frozen parts of a model: never trained, never sent, and as they were built in the end."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sordino
from sordino.learning import models
from sordino.learning.cohort import ClientData, CohortTrainer, LocalTraining
from sordino.learning.optimizers import SGD
from sordino.learning.stacked_model import LOOP, Execution
from sordino.methods.blueprint import UNCONTAINED
from sordino.privacy.guarantee import Infinite
from sordino.randomness import Keystream
from sordino.runs.federation import Federation, wire
from tests.engine import tiny
from tests.methods.own_networks import FrozenBody

METHODS: dict[str, dict[str, Any]] = {
    "fedavg": {},
    "ldp-fl": {
        "method": {"name": "ldp-fl", "mechanism": {"name": "two-point"}, "range": {"kind": "adaptive", "radius": 0.5}},
        "clients.epsilon": 4.0,
    },
    "silo-dp": {
        "method": {"name": "silo-dp", "noise_multiplier": 0.5, "steps": 5, "sampling_rate": 0.5},
        "training": {"optimizer": {"name": "sgd", "lr": 0.1}},
    },
}
TRAINED = {
    "FrozenBody": ("head.weight", "head.bias"),
    "Lora": tuple(f"{n}.lora_{ab}.weight" for n in "13" for ab in "ab"),
}


def federation(network: str, method: str) -> Federation:
    model = {"name": f"tests.methods.own_networks:{network}", "per_record": True}
    return wire(tiny.recipe({"model": model, **METHODS[method]}))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", TRAINED)
def test_only_what_is_not_frozen_is_trained_and_sent(network: str, method: str, tmp_path: Path) -> None:
    parts = federation(network, method)
    built = {name: value.clone() for name, value in parts.model.state_dict().items()}
    size = sum(built[name].numel() for name in TRAINED[network])
    assert parts.upload.values == size
    assert parts.method.plan(parts.method.init(), "f").arrays["parameters"].size == size

    outcome = sordino.run(parts.recipe, folder=tmp_path / "run")
    assert set(outcome.tensors) == set(TRAINED[network])
    after = sordino.load_model(tmp_path / "run").network.state_dict()
    for name, value in built.items():
        assert torch.equal(after[name], value) == (name not in TRAINED[network]), name


def test_adapters_start_as_they_are_built() -> None:
    """With B = 0 the network begins as its frozen base is."""
    parts = federation("Lora", "fedavg")
    start = parts.layout.unflatten(torch.from_numpy(parts.method.init().parameters))
    assert not start["1.lora_b.weight"].any() and not start["3.lora_b.weight"].any()
    assert start["1.lora_a.weight"].all()


@pytest.mark.parametrize("execution", [LOOP, Execution(4)])
def test_a_frozen_body_computes_as_in_evaluation(execution: Execution) -> None:
    """One step over all records: batch norm with the statistics that it came with, and no dropout."""
    torch.manual_seed(3)
    model = FrozenBody(10)
    layout = models.parameter_layout(model)
    start = layout.flatten(models.own_parameters(model))
    clients = [ClientData(torch.rand(6, 1, 8, 8), torch.arange(6)) for _ in range(2)]
    training = LocalTraining(SGD(0.5), steps=1, batch_size=None)
    found = CohortTrainer(model, execution=execution).train(
        start, clients, training, Keystream.simulation(1, [0, 1], 1)
    )
    assert not found.buffers
    model.body.eval()
    for row, data in zip(found.parameters, clients, strict=True):
        model.zero_grad()
        nn.functional.cross_entropy(model(data.x), data.y).backward()
        gradients = {name: value.grad for name, value in model.named_parameters() if value.grad is not None}
        expected = start - 0.5 * layout.flatten({name: _given(value) for name, value in gradients.items()})
        torch.testing.assert_close(row, expected, rtol=1e-5, atol=1e-6)


def _given(value: Tensor | None) -> Tensor:
    assert value is not None
    return value


def test_frozen_batch_norm_mixes_no_records_so_that_private_training_takes_it() -> None:
    parts = federation("FrozenBody", "silo-dp")
    (releases,) = parts.method.releases(parts.method.plan(parts.method.init(), "f"))
    assert {guarantee.loss for guarantee in releases[0].guarantees} == {Infinite(UNCONTAINED)}


def test_frozen_batch_norm_is_scored_with_its_own_statistics() -> None:
    model = FrozenBody(10)
    assert not models.has_batch_norm(model) and not models.running_statistics(model)
    model.body[1].requires_grad_(True)
    assert models.has_batch_norm(model) and len(models.running_statistics(model)) == 3

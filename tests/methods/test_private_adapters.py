"""A private head that adds to the scores of a frozen network, as an adapter of its last layer does."""

from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

import sordino
from sordino.errors import InvalidInput
from sordino.learning import linear_head
from sordino.learning.cohort import ClientData
from sordino.methods.blueprint import UNCONTAINED
from sordino.methods.interface import PARAMETERS, Bench
from sordino.methods.private_head import PrivateHead
from sordino.privacy.guarantee import Infinite
from sordino.recipe import Recipe, RecipeInvalid
from sordino.runs.federation import Federation, wire
from tests.methods.own_networks import Lora
from tests.methods.test_private_head import ALONE, images, parts_of, plan_of, settings_of, squared, summed_of

ADAPTER = "3.lora_a"  #: the layer that makes the features: A f, of rank 2


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Lora, Path]:
    """A network with adapters that are 0, and its file."""
    torch.manual_seed(4)
    network, file = Lora(10), tmp_path_factory.mktemp("trained") / "net.safetensors"
    with torch.no_grad():
        network[3].base.weight.mul_(30)  # it is sure of what it says
    save_file(network.state_dict(), file)
    return network.eval(), file


def adapted(file: Path, **keys: Any) -> Recipe:
    table = {"kind": "network", "model": "tests.methods.own_networks:Lora", "weights": str(file), "elsewhere": True}
    return settings_of({**ALONE, "method.extractor": {**table, "up_to": ADAPTER, "base": True, **keys}})


def head(recipe: Recipe) -> tuple[Federation, PrivateHead]:
    federation = wire(recipe)
    assert isinstance(federation.method, PrivateHead)
    return federation, federation.method


@cache
def method_for(file: Path) -> PrivateHead:
    return head(adapted(file))[1]


def records(count: int) -> Tensor:
    return torch.rand(count, 1, 8, 8, generator=torch.Generator().manual_seed(count))


def test_training_starts_from_the_network(trained: tuple[Lora, Path]) -> None:
    network, file = trained
    _, method = head(adapted(file))
    assert method.form.maps == 2 and method.head.size == 3 * 10  # B and a bias, on A f
    view, x = method.view(method.init()), records(40)
    assert not view.parameters.any()
    with torch.no_grad():
        own = torch.func.functional_call(
            method.whole, {"fc.weight": torch.zeros(10, 2), "fc.bias": torch.zeros(10)}, (x,)
        )
        torch.testing.assert_close(own.softmax(1), network(x).softmax(1), rtol=0, atol=1e-3)


def test_a_record_adds_the_gradient_of_the_adapter(trained: tuple[Lora, Path]) -> None:
    """(softmax(s + W u) - onehot) u^T, as far as the grid allows."""
    network, file = trained
    method = method_for(file)
    x, y = records(6), torch.arange(6)
    parameters = np.random.default_rng(1).normal(size=method.head.size).astype(np.float32)
    plan = plan_of(method, method.budgeting.gradient, {PARAMETERS: parameters})
    found = method.parts(plan, 0, ClientData(x, y), Bench()) * method.budgeting.gradient.unit
    rows = functional.normalize(torch.from_numpy(method.shown(x))[:, :2].double(), dim=1)
    inputs = torch.cat([rows, torch.full((6, 1), method.spec.bias)], dim=1)
    weights = torch.from_numpy(parameters).double()
    with torch.no_grad():
        scores = network(x).double() + rows @ weights[:20].reshape(10, 2).T + method.spec.bias * weights[20:]
    residual = scores.softmax(1) - functional.one_hot(y, 10)
    length = residual.norm(dim=1) * inputs.norm(dim=1)
    residual = residual * (method.spec.clip / length).clamp(max=1).unsqueeze(1)
    wanted = residual[:, :, None] * inputs[:, None, :]
    wanted = torch.cat([wanted[:, :, :2].flatten(1), wanted[:, :, 2:].flatten(1)], dim=1)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0.02 * method.spec.clip)


@settings(max_examples=25, deadline=None)
@given(scale=st.floats(-5, 38), seed=st.integers(0, 2**31))
def test_one_record_moves_a_sum_by_at_most_its_sensitivity(trained: tuple[Lora, Path], scale: float, seed: int) -> None:
    """Whatever records, weights and so the scores of the network hold: and it adds the same in any company."""
    rng, method = np.random.default_rng(seed), method_for(trained[1])
    data = ClientData(images(rng, 4), torch.from_numpy(rng.integers(0, 10, 4)))
    arrays = {PARAMETERS: (rng.normal(size=method.head.size) * 10.0**scale).astype(np.float32)}
    for part in parts_of(method):
        plan = plan_of(method, part, arrays)
        everyone = summed_of(method, plan, 0, data)
        for i in range(len(data)):
            kept = np.arange(len(data)) != i
            without = summed_of(method, plan, 0, ClientData(data.x[kept], data.y[kept]))
            moved = [a - b for a, b in zip(everyone, without, strict=True)]
            assert squared(moved) <= Fraction(part.sensitivity) ** 2
            assert moved == summed_of(method, plan, 0, ClientData(data.x[i : i + 1], data.y[i : i + 1]))


def test_what_is_proven_is_as_much_as_without_scores(trained: tuple[Lora, Path]) -> None:
    found = []
    for base in (True, False):
        _, method = head(adapted(trained[1], base=base))
        ((release,),) = method.releases(plan_of(method, method.budgeting.gradient))
        found.append([guarantee.loss for guarantee in release.guarantees])
    assert found[0] == found[1] and set(found[0]) == {Infinite(UNCONTAINED)}


def test_scores_are_whole_steps_below_the_largest() -> None:
    given = torch.tensor([[1.0, 3.0, 2.5], [0.0, 1e30, 5.0], [torch.nan, 0.0, 1.0], [torch.inf, 0.0, 1.0]])
    assert linear_head.whole_scores(given).tolist() == [
        [-2048, 0, -512], [-24576, 0, -24576], [0, 0, 0], [0, 0, 0],
    ]  # fmt: skip


def test_clients_computed_side_by_side_have_the_same_sums(trained: tuple[Lora, Path]) -> None:
    federation, method = head(adapted(trained[1]))
    plan = plan_of(method, method.budgeting.gradient)
    data = [own for k in range(3) if (own := federation.population.data(k, torch.device("cpu"))) is not None]
    together = method._gradients(plan, 0, data, Bench())
    for own, sums, loss in zip(data, together.sums, together.loss, strict=True):
        alone = method._summed(plan, 0, own, Bench())
        assert torch.equal(sums, alone.sums[0]) and loss == pytest.approx(alone.loss[0])


def test_the_model_file_holds_network_and_adapter(trained: tuple[Lora, Path], tmp_path: Path) -> None:
    federation, _ = head(adapted(trained[1]))
    outcome = sordino.run(federation.recipe, folder=tmp_path / "run", workers=1)
    model, exam = sordino.load_model(tmp_path / "run"), federation.exams["test"].examples
    with torch.no_grad():
        right = (model(torch.from_numpy(exam.x)).argmax(1).numpy() == exam.y).mean()
    assert right == pytest.approx(outcome.rounds[-1].accuracy)


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"up_to": None}, r"method\.extractor\.up_to; allowed: .*3\.lora_a"),
        ({"up_to": "3.lora"}, r"did you mean '3\.lora_"),
        ({"classes": 7}, r"one score for each of the 10 classes.*\[7\]"),
    ],
    ids=["no layer", "wrong layer", "other classes"],
)
def test_networks_without_such_scores_are_refused(
    trained: tuple[Lora, Path], tmp_path: Path, keys: dict[str, Any], said: str
) -> None:
    file = trained[1]
    if "classes" in keys:
        file = tmp_path / "seven.safetensors"
        save_file(Lora(7).state_dict(), file)
    with pytest.raises(InvalidInput, match=said):
        wire(adapted(file, **keys))


@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"model": {"name": "tests.methods.own_networks:Lora"}}, r"model\.name: .*silo-dp"),
        ({"model.start": "as-built"}, r"model\.start: .*base = true"),
        ({"model.start": "head.safetensors"}, r"model\.start: .*base = true"),
    ],
)
def test_adapters_elsewhere_are_refused_with_where_they_train(changes: dict[str, Any], key: str) -> None:
    with pytest.raises(RecipeInvalid, match=key):
        settings_of(changes)


def test_methods_that_take_features_alone_refuse_scores() -> None:
    table = {"kind": "network", "model": "lenet", "weights": "n.safetensors", "base": True}
    with pytest.raises(RecipeInvalid, match=r"method\.extractor\.base: ldpfl takes features alone"):
        Recipe.load("ldpfl-digits").with_({"method.extractor": table})

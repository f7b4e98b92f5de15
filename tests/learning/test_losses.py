"""Losses: their gradients by hand, the same for many clients at once, and what private training refuses."""

from typing import Any

import numpy as np
import pytest
import torch
from tests.engine.tiny import recipe
from torch import Tensor, nn

import sordino
from sordino.errors import InvalidInput
from sordino.learning import linear_head, models
from sordino.learning.losses import (
    LabelEntropy,
    OneByOne,
    TaskLoss,
    WeightedCrossEntropy,
    check_apart,
    checked_own,
    loss_of,
)
from sordino.learning.stacked_model import LOOP, Batch, Execution, StackedModel
from sordino.learning.tasks import CLASSES, LABELS, LearningTask, Regression
from sordino.methods.blueprint import UNCONTAINED
from sordino.parts import registry
from sordino.privacy.guarantee import Infinite
from sordino.recipe import CodeNotAllowed, Recipe, RecipeInvalid
from sordino.runs.federation import wire

HERE = "tests.learning.test_losses"
RANGE = Regression(10.0, 30.0)
SILO = {
    "method": {"name": "silo-dp", "clip": 1.0, "noise_multiplier": 1.0, "sampling_rate": 0.5},
    "training": {"optimizer": {"name": "sgd", "lr": 0.1}},
}


def squared(scores: Tensor, labels: Tensor, power: int = 2) -> Tensor:
    """A loss of somebody's own."""
    chances = scores.softmax(-1).gather(-1, labels.unsqueeze(-1))
    return ((1 - chances) ** power).mean()


def centred(scores: Tensor, labels: Tensor) -> Tensor:
    """One that mixes records."""
    return squared(scores - scores.mean(0), labels)


def branching(scores: Tensor, labels: Tensor) -> Tensor:
    """One that cannot be computed for many clients at once."""
    found = squared(scores, labels)
    return found if found.item() > 0.5 else 2 * found


class Weighted(nn.Module):
    """PyTorch's weights, which are divided by those of the batch."""

    def __init__(self, weights: list[float]) -> None:
        super().__init__()
        self.inner = nn.CrossEntropyLoss(torch.tensor(weights))

    def forward(self, scores: Tensor, labels: Tensor) -> Tensor:
        found: Tensor = self.inner(scores, labels)
        return found


class Growing:
    """Counts how often it was called."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, scores: Tensor, labels: Tensor) -> Tensor:
        self.calls += 1
        return self.calls * nn.functional.cross_entropy(scores, labels)


def test_a_weight_multiplies_the_gradient_of_its_class() -> None:
    scores, labels = torch.tensor([[0.5, -0.2], [0.1, 0.3]], requires_grad=True), torch.tensor([0, 1])
    (found,) = torch.autograd.grad(WeightedCrossEntropy((1.0, 5.0))(scores, labels), scores)
    residual = scores.detach().softmax(1) - torch.eye(2)
    assert torch.allclose(found, residual * torch.tensor([[1.0], [5.0]]) / 2)


def test_labels_have_a_log_loss_each() -> None:
    scores, labels = torch.tensor([[0.5, -0.2]], requires_grad=True), torch.tensor([[1.0, 0.0]])
    (found,) = torch.autograd.grad(LabelEntropy((3.0, 7.0))(scores, labels), scores)
    chance = scores.detach().sigmoid()[0]
    assert torch.allclose(found[0], torch.stack([3 * (chance[0] - 1), chance[1]]) / 2)


def test_a_number_is_learnt_scaled_to_its_range() -> None:
    scores, labels = torch.tensor([[0.25], [0.0]]), torch.tensor([30.0, 15.0])  # 1 and -0.5 once scaled
    errors = {"mse": (0.75**2 + 0.5**2) / 2, "mae": (0.75 + 0.5) / 2, "huber": (0.5 * 0.5 + 0.5**2 / 2) / 2}
    for kind, mean in errors.items():
        loss = loss_of("logistic", registry.make("loss", kind), RANGE)
        assert float(loss(scores, labels)) == pytest.approx(mean, rel=1e-6)


LOSSES: dict[str, tuple[LearningTask, dict[str, Any]]] = {
    "weighted": (CLASSES, {"kind": "cross-entropy", "weights": (1.0, 2.0, 3.0)}),
    "labels": (LABELS, {"kind": "binary-cross-entropy", "weights": (1.0, 2.0, 3.0)}),
    "mse": (RANGE, {"kind": "mse"}),
    "mae": (RANGE, {"kind": "mae"}),
    "huber": (RANGE, {"kind": "huber"}),
}


@pytest.mark.parametrize("case", LOSSES)
def test_many_clients_at_once_have_the_gradients_of_each(case: str) -> None:
    task, keys = LOSSES[case]
    outputs = 1 if task is RANGE else 3
    loss = loss_of("logistic", registry.make("loss", keys["kind"], **keys), task)
    model = models.build("mlp", input_shape=(4,), classes=outputs, hidden=[5])
    draw = torch.Generator().manual_seed(1)
    y = torch.from_numpy(task.numbered(np.arange(12) % task.kinds(outputs), outputs)).reshape(
        2, 6, *([3] if task is LABELS else [])
    )
    batch = Batch(torch.randn(2, 6, 4, generator=draw), y)
    found = []
    for execution in (LOOP, Execution(2)):
        stacked = StackedModel(model, loss, execution, torch.device("cpu"))
        stacked.try_out(batch.x[0])
        assert stacked.execution == execution
        parameters = torch.randn(2, stacked.size, generator=torch.Generator().manual_seed(2))
        found.append(stacked.gradients(parameters, {}, batch))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-6) and torch.allclose(found[0][1], found[1][1], atol=1e-6)
    check_apart(loss, task, outputs)


def test_losses_of_ones_own_are_found_as_functions_and_classes() -> None:
    by_function = recipe({"model.loss": {"kind": f"{HERE}:squared", "options": {"power": 3}}})
    assert by_function.own_code == (f"{HERE}:squared",)
    with pytest.raises(CodeNotAllowed):
        Recipe.from_toml(by_function.to_toml())
    assert Recipe.from_toml(by_function.to_toml(), [f"{HERE}:squared"]) == by_function
    for kind, options in (("squared", {}), ("Weighted", {"weights": [1.0] * 10}), ("branching", {})):
        outcome = sordino.run(recipe({"model.loss": {"kind": f"{HERE}:{kind}", "options": options}}), workers=1)
        assert outcome.rounds[-1].loss is not None and outcome.rounds[-1].counted
    pytorch = wire(recipe({"model.loss": {"kind": "torch.nn.functional:cross_entropy"}})).graded[1]
    assert pytorch is torch.nn.functional.cross_entropy


@pytest.mark.parametrize("kind", [f"{HERE}:HERE", f"{HERE}:nothing", "crossentropy"])
def test_what_is_no_loss_is_refused(kind: str) -> None:
    with pytest.raises(RecipeInvalid) as caught:
        recipe({"model.loss": {"kind": kind}})
    assert caught.value.problems[0].startswith("model.loss.kind:")


@pytest.mark.parametrize(
    "loss",
    [
        lambda scores, labels: scores,
        lambda scores, labels: 1.0,
        lambda scores: scores.sum(),
        lambda s, y: s.sum() / 0,
        Growing(),
        lambda s, y: (s * torch.rand(s.shape)).mean(),
    ],
    ids=["no mean", "no tensor", "one argument", "not finite", "remembers", "draws"],
)
def test_a_loss_that_cannot_be_learnt_by_is_refused(loss: Any) -> None:
    with pytest.raises(InvalidInput):
        checked_own(loss, CLASSES, 3)


@pytest.mark.parametrize("loss", [centred, Weighted([1.0, 5.0, 2.0]), nn.CrossEntropyLoss(reduction="sum")])
def test_private_training_refuses_a_loss_that_is_no_mean_over_records(loss: Any) -> None:
    checked_own(loss, CLASSES, 3)
    with pytest.raises(InvalidInput):
        check_apart(loss, CLASSES, 3)


def test_silos_train_by_own_losses_of_single_records_and_nothing_is_proven_of_them() -> None:
    own = wire(recipe({**SILO, "model.per_record": True, "model.loss": {"kind": f"{HERE}:squared"}})).method
    ((release,),) = own.releases(own.plan(own.init(), "x"))
    assert {guarantee.loss for guarantee in release.guarantees} == {Infinite(UNCONTAINED)}
    with pytest.raises(InvalidInput):
        wire(recipe({**SILO, "model.loss": {"kind": f"{HERE}:centred"}}))


def test_a_loss_that_branches_is_computed_for_one_client_after_the_other() -> None:
    assert isinstance(checked_own(branching, CLASSES, 3), OneByOne) and checked_own(squared, CLASSES, 3) is squared
    loss = checked_own(branching, CLASSES, 10)
    stacked = StackedModel(
        models.build("logistic", input_shape=(4,), classes=10), loss, Execution(2), torch.device("cpu")
    )
    stacked.try_out(torch.zeros(3, 4))
    assert stacked.execution == LOOP


def test_whole_number_heads_are_for_the_plain_cross_entropy_alone() -> None:
    model = models.build("logistic", input_shape=(4,), classes=3)
    assert linear_head.of(model, loss_of("logistic", None, CLASSES)) is not None
    weighted = registry.make("loss", "cross-entropy", weights=(1.0, 2.0, 3.0))
    for loss in (loss_of("logistic", weighted, CLASSES), TaskLoss(LABELS, LabelEntropy())):
        assert linear_head.of(model, loss) is None
    with pytest.raises(RecipeInvalid) as caught:
        Recipe.load("proven-digits").with_({"model.loss": {"kind": "cross-entropy", "weights": [2.0] * 10}})
    assert caught.value.problems[0].startswith("model.loss:")

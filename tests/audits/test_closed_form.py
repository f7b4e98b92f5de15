"""What a dense layer's update says about its input: exact without noise."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from sordino.audits import closed_form
from sordino.audits.gradient_matching import Pixels
from sordino.audits.update_attack import CLOSED, FEATURES, UpdateAttack
from sordino.learning import models

pytestmark = pytest.mark.unit


def update(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """`[1, d]`: one step of a batch."""
    layout = models.parameter_layout(model)
    slopes = torch.autograd.grad(functional.cross_entropy(model(x), y), list(model.parameters()))
    return -0.1 * layout.flatten(dict(zip(layout.names, slopes, strict=True))).unsqueeze(0)


@given(st.sampled_from(["logistic", "mlp"]), st.integers(0, 2**16), st.integers(0, 9))
def test_one_record_is_exact(name: str, seed: int, label: int) -> None:
    model = models.build(name, seed, input_shape=(1, 4, 4), classes=10)
    x = torch.rand(1, 1, 4, 4, generator=torch.Generator().manual_seed(seed))
    pixels = Pixels((1, 4, 4), torch.zeros(1, 4, 4), torch.ones(1, 4, 4))
    layout = models.parameter_layout(model)
    start = layout.flatten({own: value.detach() for own, value in model.named_parameters()})
    attack, seen = UpdateAttack(model, start, pixels, (0.1,)), update(model, x, torch.tensor([label]))
    assert attack.how == CLOSED
    assert torch.allclose(attack.of_one(seen), x, atol=1e-4)
    assert torch.allclose(attack.of_many(seen, 8)[:, 0], x, atol=1e-3)
    assert closed_form.label_of_one(seen, layout).tolist() == [label]


def test_rows_of_a_batch_give_records_that_only_they_see() -> None:
    inputs, deltas = torch.rand(3, 5), torch.tensor([0.5, -2.0, 1.0])
    weight, bias = (deltas[:, None] * inputs).unsqueeze(0), deltas.unsqueeze(0)
    assert torch.allclose(closed_form.inputs_of_rows(weight, bias, 9)[0], inputs, atol=1e-6)
    assert torch.allclose(closed_form.inputs_of_rows(weight, bias, 2)[0], inputs[[1, 2]], atol=1e-6)


def test_rows_that_say_nothing_are_zero() -> None:
    assert closed_form.inputs_of_rows(torch.zeros(1, 2, 3), torch.zeros(1, 2), 2).eq(0).all()


def test_noise_is_averaged_over_rows() -> None:
    draws = torch.Generator().manual_seed(1)
    x, delta = torch.rand(1, 40, generator=draws), torch.randn(200, generator=draws)
    noisy = delta[:, None] * torch.cat([x, torch.ones(1, 1)], dim=1)
    noisy = (noisy + 0.3 * torch.randn(noisy.shape, generator=draws)).unsqueeze(0)
    together = closed_form.input_of_one(noisy[..., :-1], noisy[..., -1])[0]
    alone = closed_form.inputs_of_rows(noisy[..., :-1], noisy[..., -1], 1)[0, 0]
    assert (together - x[0]).norm() < 0.5 * (alone - x[0]).norm()


def test_the_features_before_the_first_dense_layer_are_found() -> None:
    model = models.build("lenet", 1, input_shape=(1, 28, 28), classes=10)
    dense = closed_form.first_dense(model)
    assert dense is not None and dense.name == "fc1" and not dense.takes_records
    x, layout = torch.rand(1, 1, 28, 28), models.parameter_layout(model)
    found = closed_form.input_of_one(*dense.gradients(update(model, x, torch.tensor([3])), layout))
    assert torch.allclose(found, dense.before(x), atol=1e-4)


def test_a_network_that_begins_with_convolutions_is_searched() -> None:
    model = models.build("cnn-mnist", 1, input_shape=(1, 28, 28), classes=10)
    pixels = Pixels((1, 28, 28), torch.zeros(1, 28, 28), torch.ones(1, 28, 28))
    assert UpdateAttack(model, torch.zeros(21_840), pixels, (0.1,)).how == FEATURES

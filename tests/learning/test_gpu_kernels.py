"""The kernels for GPUs compute what PyTorch's own layers do: on a GPU, or interpreted where there is none."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

import sordino.learning
from sordino.learning import layers, models
from sordino.learning.stacked_model import Batch, Execution, StackedModel

pytest.importorskip("triton", reason="Triton is there for Linux on x86-64")
THERE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    """The module; without a GPU Triton interprets its functions (conftest.py asks for that)."""
    from triton.runtime import interpreter

    patched = interpreter._patch_lang_tensor

    def with_lengths(tensor: Any, *others: Any) -> None:
        # Numpy no longer makes a number of an array of one, as Triton's own rule for `range(n)` wants it to.
        patched(tensor, *others)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang_tensor", with_lengths)
        layers._compiled.cache_clear()
        yield importlib.import_module("sordino.learning.gpu_kernels")


def drawn(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.normal(size=shape).astype(np.float32)).requires_grad_()


def there(layer: type[torch.autograd.Function], *operands: Any) -> Tensor:
    """What a layer makes of tensors that are here, and again here: where it is computed only it can know."""
    found: Tensor = layer.apply(*(one.to(THERE) if isinstance(one, Tensor) else one for one in operands))
    return found.cpu()


def apart(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).detach().norm() / wanted.detach().norm())


Layer = Callable[..., Tensor]


def assert_same_layer(own: Layer, theirs: Layer, inputs: list[Tensor], rng: np.random.Generator) -> None:
    """A layer that is linear in each of its inputs: outputs and gradients, up to rounding of what is summed."""
    weights = torch.from_numpy(rng.normal(size=theirs(*inputs).shape).astype(np.float32))
    found, wanted = (_with_gradients(layer, inputs, weights) for layer in (own, theirs))
    summed = _with_gradients(theirs, [one.detach().abs().requires_grad_() for one in inputs], weights.abs())
    for one, other, most in zip(found, wanted, summed, strict=True):
        assert one.shape == other.shape
        assert ((one - other).abs() <= 3e-6 * most).all()


def _with_gradients(layer: Layer, inputs: list[Tensor], weights: Tensor) -> list[Tensor]:
    y = layer(*inputs)
    return [y.detach(), *torch.autograd.grad((y * weights).sum(), inputs)]


@settings(max_examples=8, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    clients=st.integers(1, 3),
    images=st.integers(1, 3),
    channels=st.sampled_from([1, 3, 10, 16, 17, 40]),
    outputs=st.sampled_from([1, 10, 20, 33]),
    height=st.integers(5, 9),
    width=st.integers(5, 9),
    kernel=st.sampled_from([1, 3, 5]),
    padded=st.booleans(),
    biased=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_a_convolution_is_pytorchs(
    kernels: ModuleType, clients: int, images: int, channels: int, outputs: int, height: int, width: int, kernel: int,
    padded: bool, biased: bool, seed: int,
) -> None:  # fmt: skip
    rng, padding = np.random.default_rng(seed), (kernel // 2, kernel // 2) if padded else (0, 0)
    x, weight = (
        drawn(rng, clients, images, channels, height, width),
        drawn(rng, clients, outputs, channels, kernel, kernel),
    )
    bias = drawn(rng, clients, outputs) if biased else None
    inputs = [x, weight] if bias is None else [x, weight, bias]
    assert_same_layer(gathered(kernels, padding), one_by_one(padding), inputs, rng)


def gathered(kernels: ModuleType, padding: tuple[int, int]) -> Layer:
    def layer(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
        return there(kernels.GatheredConvolutions, x, weight, bias, padding)

    return layer


def one_by_one(padding: tuple[int, int]) -> Layer:
    def layer(*inputs: Tensor) -> Tensor:
        return torch.stack([functional.conv2d(*row, padding=padding) for row in zip(*inputs, strict=True)])

    return layer


def test_the_gradient_of_few_clients_is_summed_in_parts(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a large GPU, where one client's pixels are shared out; a part that is not full counts what it has."""
    rng = np.random.default_rng(1)
    x, weight = drawn(rng, 1, 5, 4, 13, 13), drawn(rng, 1, 6, 4, 3, 3)
    seen = []
    launch = kernels._weights

    class Spy:
        def __getitem__(self, grid: tuple[int, int, int]) -> Any:
            seen.append(grid)
            return launch[grid]

    monkeypatch.setattr(kernels, "_weights", Spy())
    assert_same_layer(gathered(kernels, (1, 1)), one_by_one((1, 1)), [x, weight], rng)
    assert seen and seen[0][2] > 1


@pytest.mark.parametrize("eps", [1e-5, 0.1])
@pytest.mark.parametrize(("channels", "groups", "pixels"), [(32, 8, (5, 6)), (16, 2, (7, 7)), (64, 4, (9, 8))])
def test_group_norm_is_pytorchs(
    kernels: ModuleType, channels: int, groups: int, pixels: tuple[int, int], eps: float
) -> None:
    rng = np.random.default_rng(channels)
    x, weight, bias = drawn(rng, 2, 3, channels, *pixels), drawn(rng, 2, channels), drawn(rng, 2, channels)
    assert kernels.normalises(channels, groups)
    found = there(kernels.GroupNorms, x / 3 + 10, groups, weight, bias, eps)
    rows = zip(x / 3 + 10, weight, bias, strict=True)
    wanted = torch.stack([functional.group_norm(own, groups, w, b, eps) for own, w, b in rows])
    assert apart(found, wanted) < 3e-6
    weights = torch.linspace(-1, 1, wanted.numel()).view_as(wanted)
    gradients = (torch.autograd.grad((y * weights).sum(), [x, weight, bias]) for y in (found, wanted))
    for own, theirs in zip(*gradients, strict=True):
        assert apart(own, theirs) < 1e-4


def test_a_group_of_one_value_is_its_own_mean(kernels: ModuleType) -> None:
    rng = np.random.default_rng(4)
    x, weight, bias = drawn(rng, 2, 3, 8, 1, 1), drawn(rng, 2, 8), drawn(rng, 2, 8)
    found = there(kernels.GroupNorms, x, 8, weight, bias, 1e-5)
    assert torch.equal(found, bias[:, None, :, None, None].expand_as(found))


def test_what_comes_of_the_kernels_may_be_changed_in_place_and_differentiated_once(kernels: ModuleType) -> None:
    rng = np.random.default_rng(5)
    drawings = drawn(rng, 2, 2, 16, 4, 4), drawn(rng, 2, 16, 16, 3, 3), drawn(rng, 2, 16)
    x, weight, norm = (one.detach().to(THERE).requires_grad_() for one in drawings)

    def network(activation: Callable[[Tensor], Tensor]) -> Tensor:
        y = activation(kernels.GatheredConvolutions.apply(x, weight, None, (1, 1)))
        return activation(kernels.GroupNorms.apply(y, 4, norm, norm, 1e-5)).square().sum()

    (wanted,), (found,) = (torch.autograd.grad(network(f), weight) for f in (functional.relu, torch.relu_))
    assert torch.equal(found, wanted)
    (slope,) = torch.autograd.grad(network(functional.relu), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.square().sum().backward()


@pytest.mark.parametrize(
    ("images", "channels", "pixels", "outputs", "fits"),
    [(2000, 128, 32, 128, True), (20_000, 128, 32, 1, False), (20_000, 1, 32, 128, False)],
)
def test_images_that_a_kernel_cannot_count_are_unfolded(
    kernels: ModuleType, images: int, channels: int, pixels: int, outputs: int, fits: bool
) -> None:
    x, weight = torch.Size([images, channels, pixels, pixels]), torch.Size([outputs, channels, 3, 3])
    assert kernels.convolves(x, weight, (1, 1)) == fits


def test_a_machine_that_cannot_compile_unfolds_as_before(kernels: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    class NoCompiler:
        def __getitem__(self, grid: Any) -> Any:
            raise RuntimeError("Failed to find C compiler")

    assert kernels.works(THERE)
    monkeypatch.setattr(kernels, "_product", NoCompiler())
    assert not kernels.works(THERE)
    layers._compiled.cache_clear()
    assert layers.ClientKernels(gpu=THERE)._compiled is None
    layers._compiled.cache_clear()


def odd(name: str) -> nn.Module:
    class Odd(nn.Module):
        """Layers that are left to PyTorch, with weights of no, one or other dimensions or of another precision."""

        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(1, 16, 3)
            self.fc = nn.Linear(16 * 16, 10)
            self.scale, self.column = nn.Parameter(torch.tensor(1.5)), nn.Parameter(torch.ones(10) / 3)
            self.frozen = nn.Conv2d(1, 16, 3).double().requires_grad_(False)

        def forward(self, x: Tensor) -> Tensor:
            y = self.frozen(x.double()).float() if name == "double" else self.conv(x)
            y = self.fc(y.flatten(1)) * self.scale
            return y + functional.linear(y, self.column).unsqueeze(1) if name == "column" else y

    return Odd()


@pytest.mark.parametrize("name", ["scalar", "double", "column"])
def test_what_the_rules_do_not_cover_is_left_to_pytorch(kernels: ModuleType, name: str) -> None:
    compare_kernels(odd(name), (1, 6, 6))


@pytest.mark.parametrize(("channels", "groups"), [(6, 2), (48, 8), (2048, 8), (12, 12)])
def test_what_group_norm_cannot_do_is_left_to_pytorch(kernels: ModuleType, channels: int, groups: int) -> None:
    assert not kernels.normalises(channels, groups)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("vgg-small", (3, 8, 8)),
        ("cnn-wide", (1, 16, 16)),
        ("ldp-fed", (1, 12, 12)),
        ("mlp", (160,)),
    ],
)
def test_networks_have_the_gradients_that_the_processors_kernels_give(
    kernels: ModuleType, name: str, shape: tuple[int, ...]
) -> None:
    options = {"ldp-fed": {"norm": "group"}, "vgg-small": {"channels": [16, 32, 16], "hidden": 16}}.get(name, {})
    compare_kernels(models.build(name, input_shape=shape, classes=10, **options), shape)


def compare_kernels(model: nn.Module, shape: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    gradients = []
    for gpu in (None, THERE):
        stacked = StackedModel(model, functional.cross_entropy, Execution(4), gpu or torch.device("cpu"))
        stacked._kernels = layers.ClientKernels(gpu=gpu)
        assert (stacked._kernels._compiled is None) == (gpu is None)
        stacked.try_out(torch.zeros(4, *shape))
        if not gradients:
            parameters = 0.05 * drawn(rng, 2, stacked.size).detach()  # few, as every kernel is interpreted
            batch = Batch(torch.from_numpy(rng.random((2, 3, *shape), np.float32)), torch.arange(6).view(2, 3))
        here = Batch(batch.x.to(stacked.device), batch.y.to(stacked.device))
        gradients.append([one.cpu() for one in stacked.gradients(parameters.to(stacked.device), {}, here)])
    (wanted, losses), (found, own) = gradients
    assert apart(found, wanted) < 5e-6
    assert torch.allclose(own, losses, rtol=1e-5)


def test_dense_layers_of_few_clients_sum_in_parts_and_of_many_at_once() -> None:
    rng = np.random.default_rng(3)
    for clients, units in [(2, 64), (3, 50), (2, 7), (layers.FEW + 1, 64)]:
        x, weight, bias = drawn(rng, clients, 4, units), drawn(rng, clients, 5, units), drawn(rng, clients, 5)
        for inputs in ([x, weight, bias], [x, weight]):
            assert_same_layer(dense, one_dense_by_one, inputs, rng)


def dense(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    return layers._many_linear(x, weight, bias)


def one_dense_by_one(*inputs: Tensor) -> Tensor:
    return torch.stack([functional.linear(*row) for row in zip(*inputs, strict=True)])


def test_without_triton_convolutions_are_unfolded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sordino.learning.gpu_kernels", raising=False)
    monkeypatch.delattr(sordino.learning, "gpu_kernels", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    layers._compiled.cache_clear()
    assert layers.ClientKernels(gpu=THERE)._compiled is None
    layers._compiled.cache_clear()

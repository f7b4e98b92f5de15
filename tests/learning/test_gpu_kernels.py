"""The kernels for GPUs, interpreted: what they compute is what PyTorch's own layers do. No GPU is needed for that."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

import sordino.learning
from sordino.learning import convolution, models
from sordino.learning.stacked import Batch, Execution, StackedModel

pytest.importorskip("triton", reason="Triton is there for Linux on x86-64")
if torch.cuda.is_available():
    pytest.skip("on a GPU test_replay.py runs the kernels themselves", allow_module_level=True)


@pytest.fixture(scope="module")
def kernels() -> Iterator[ModuleType]:
    """The module with functions that Triton interprets (conftest.py asks for that)."""
    from triton.runtime import interpreter

    patched = interpreter._patch_lang_tensor

    def with_lengths(tensor: Any, *others: Any) -> None:
        # Numpy no longer makes a number of an array of one, as Triton's own rule for `range(n)` wants it to.
        patched(tensor, *others)
        tensor.__index__ = lambda self: int(self.handle.data.item())

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_patch_lang_tensor", with_lengths)
        yield importlib.import_module("sordino.learning.gpu_kernels")


def drawn(rng: np.random.Generator, *shape: int) -> Tensor:
    return torch.from_numpy(rng.normal(size=shape).astype(np.float32)).requires_grad_()


def apart(found: Tensor, wanted: Tensor) -> float:
    return float((found - wanted).detach().norm() / wanted.detach().norm())


def assert_alike(found: Tensor, wanted: Tensor, inputs: list[Tensor], rng: np.random.Generator) -> None:
    """The outputs, and the gradients of a weighted sum of them."""
    assert found.shape == wanted.shape
    assert apart(found, wanted) < 2e-6
    weights = torch.from_numpy(rng.normal(size=wanted.shape).astype(np.float32))
    pairs = zip(*(torch.autograd.grad((y * weights).sum(), inputs) for y in (found, wanted)), strict=True)
    for own, theirs in pairs:
        assert own.shape == theirs.shape
        assert apart(own, theirs) < 5e-6


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
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
    found = kernels.GatheredConvolutions.apply(x, weight, bias, (1, 1), padding)
    rows = zip(x, weight, [None] * clients if bias is None else bias, strict=True)
    wanted = torch.stack([functional.conv2d(*row, padding=padding) for row in rows])
    assert_alike(found, wanted, [x, weight] if bias is None else [x, weight, bias], rng)


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
    found = kernels.GatheredConvolutions.apply(x, weight, None, (1, 1), (1, 1))
    wanted = functional.conv2d(x[0], weight[0], padding=1).unsqueeze(0)
    assert_alike(found, wanted, [x, weight], rng)
    assert seen and seen[0][2] > 1


@pytest.mark.parametrize(
    ("channels", "groups", "pixels"), [(32, 8, (5, 6)), (16, 2, (7, 7)), (64, 4, (9, 8)), (8, 8, (1, 1))]
)
def test_group_norm_is_pytorchs(kernels: ModuleType, channels: int, groups: int, pixels: tuple[int, int]) -> None:
    rng = np.random.default_rng(channels)
    x, weight, bias = drawn(rng, 2, 3, channels, *pixels), drawn(rng, 2, channels), drawn(rng, 2, channels)
    assert kernels.normalises(channels, groups)
    found = kernels.GroupNorms.apply(x + 30, groups, weight, bias, 1e-5)
    rows = zip(x + 30, weight, bias, strict=True)
    wanted = torch.stack([functional.group_norm(own, groups, w, b, 1e-5) for own, w, b in rows])
    if pixels == (1, 1):  # one value a group: it is its own mean
        assert torch.equal(found, bias[:, None, :, None, None].expand_as(found))
    else:
        assert apart(found, wanted) < 1e-5
        assert_alike_gradients(found, wanted, [x, weight, bias])


def assert_alike_gradients(found: Tensor, wanted: Tensor, inputs: list[Tensor]) -> None:
    weights = torch.linspace(-1, 1, wanted.numel()).view_as(wanted)
    for own, theirs in zip(*(torch.autograd.grad((y * weights).sum(), inputs) for y in (found, wanted)), strict=True):
        assert apart(own, theirs) < 1e-4


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
    options = {"norm": "group"} if name == "ldp-fed" else {}
    model = models.build(name, input_shape=shape, classes=10, **options)
    rng = np.random.default_rng(2)
    gradients = []
    for on_gpu in (False, True):
        stacked = StackedModel(model, functional.cross_entropy, Execution(4), torch.device("cpu"))
        stacked._kernels = convolution.ClientKernels(on_gpu=on_gpu)
        assert (stacked._kernels._compiled is not None) == on_gpu
        stacked.try_out(torch.zeros(4, *shape))
        if not gradients:
            parameters = 0.05 * drawn(rng, 3, stacked.size).detach()
            batch = Batch(torch.from_numpy(rng.random((3, 4, *shape), np.float32)), torch.arange(12).view(3, 4) % 10)
        gradients.append(stacked.gradients(parameters, {}, batch))
    (wanted, losses), (found, own) = gradients
    assert apart(found, wanted) < 5e-6
    assert torch.allclose(own, losses, rtol=1e-5)


def test_dense_layers_of_few_clients_sum_in_parts_and_of_many_at_once() -> None:
    rng = np.random.default_rng(3)
    for clients, units in [(2, 64), (3, 50), (2, 7), (convolution.FEW + 1, 64)]:
        x, weight, bias = drawn(rng, clients, 4, units), drawn(rng, clients, 5, units), drawn(rng, clients, 5)
        for given_bias in (bias, None):
            found = convolution._many_linear(x, weight, given_bias)
            wanted = torch.einsum("kbi,koi->kbo", x, weight) + (0 if given_bias is None else bias[:, None])
            assert_alike(found, wanted, [x, weight] if given_bias is None else [x, weight, bias], rng)


def test_without_triton_convolutions_are_unfolded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sordino.learning.gpu_kernels", raising=False)
    monkeypatch.delattr(sordino.learning, "gpu_kernels", raising=False)
    monkeypatch.setitem(sys.modules, "triton", None)
    assert convolution.ClientKernels(on_gpu=True)._compiled is None

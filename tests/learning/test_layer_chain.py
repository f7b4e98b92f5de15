"""Networks computed layer by layer for many clients: the gradients of autograd, the same bits beside any neighbours."""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.utils import vector_to_parameters

from sordino.learning import models
from sordino.learning.convolution import BATCH_LAST, BATCH_SECOND, Convolution
from sordino.learning.layer_chain import LayerChain
from sordino.learning.models import Network
from sordino.learning.stacked_model import LOOP, Batch, Buffers, Execution, StackedModel

SMALL, COLOURED, CLIENTS, RECORDS = (1, 12, 12), (3, 16, 16), 5, 4
NETWORKS: list[tuple[str, tuple[int, ...], dict[str, Any]]] = [
    ("logistic", SMALL, {}),
    ("logistic-ovr", SMALL, {}),
    ("mlp", SMALL, {"hidden": (7, 5)}),
    ("lenet", (1, 13, 15), {}),
    ("cnn-mnist", (1, 16, 16), {"dropout": 0.5}),
    ("cnn-wide", (1, 16, 16), {"channels": (4, 6), "hidden": 8, "padding": 2}),
    ("ldp-fed", SMALL, {}),
    ("ldp-fed", SMALL, {"norm": "group"}),
    ("vgg-small", COLOURED, {"channels": (8, 8, 8), "hidden": 8}),
    ("ldpfl-mnist", (1, 20, 20), {"hidden": 16}),
    ("ldpfl-mnist", (1, 20, 20), {"hidden": 16, "norm": "group"}),
    ("ldpfl-cifar", COLOURED, {}),
    ("ldpfl-cifar", COLOURED, {"activation": "tanh", "norm": "none"}),
    ("ldpfl-dense", (30,), {"hidden": (9,)}),
]
NAMED = pytest.mark.parametrize(("name", "shape", "options"), NETWORKS)


class Clients:
    """Parameters and one batch of each of a few clients of a network."""

    def __init__(self, name: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
        self.model, self.loss = models.build(name, input_shape=shape, classes=10, **options), models.loss_for(name)
        generator = torch.Generator().manual_seed(1)
        self.x = torch.randn(CLIENTS, RECORDS, *shape, generator=generator)
        self.y = torch.randint(0, 10, (CLIENTS, RECORDS), generator=generator)
        own = torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()])
        self.parameters = own + 0.05 * torch.randn(CLIENTS, len(own), generator=generator)

    def masks(self) -> tuple[Tensor, ...]:
        """The dropout masks of all clients."""
        words = np.random.default_rng(2).integers(0, 2**32, (CLIENTS, RECORDS, self.model.mask_words), np.uint32)
        return self.model.masks(words) if self.model.mask_words else ()

    def exact(self) -> Tensor:
        """All clients' gradients by autograd in float64."""
        model, found = copy.deepcopy(self.model).double(), []
        for client in range(CLIENTS):
            vector_to_parameters(self.parameters[client].double(), model.parameters())
            masks = [mask[client].double() for mask in self.masks()]
            loss = self.loss(model(self.x[client].double(), masks), self.y[client])
            found.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
        return torch.stack(found)

    def gradients(self, execution: Execution, rows: list[int]) -> tuple[Tensor, Tensor, Buffers]:
        """Gradients, losses and buffers after a step of some of the clients."""
        stacked = StackedModel(self.model, self.loss, execution, torch.device("cpu"))
        stacked.try_out(self.x[0])
        masks = tuple(mask[rows] for mask in self.masks())
        buffers = stacked.initial_buffers(len(rows))
        return *stacked.gradients(self.parameters[rows], buffers, Batch(self.x[rows], self.y[rows], masks)), buffers


@NAMED
def test_every_shipped_network_is_a_chain(name: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    assert LayerChain.of(Clients(name, shape, options).model) is not None
    assert {entry[0] for entry in NETWORKS} == set(models.names())


@NAMED
def test_a_chain_is_as_near_to_the_exact_gradient_as_autograd(
    name: str, shape: tuple[int, ...], options: dict[str, Any]
) -> None:
    clients = Clients(name, shape, options)
    exact = clients.exact()
    (ours, losses, buffers), (theirs, expected, tracked) = (
        clients.gradients(execution, list(range(CLIENTS))) for execution in (Execution(8), LOOP)
    )
    error, allowed = (float((found - exact).abs().max() / exact.abs().max()) for found in (ours, theirs))
    assert error < 2 * allowed + 1e-6
    assert error < 1e-3
    torch.testing.assert_close(losses, expected)
    for key, value in tracked.items():
        torch.testing.assert_close(buffers[key], value)


@NAMED
def test_bits_do_not_depend_on_neighbours(name: str, shape: tuple[int, ...], options: dict[str, Any]) -> None:
    clients = Clients(name, shape, options)
    together, losses, _ = clients.gradients(Execution(8), [0, 1, 2, 3, 4])
    for rows in ([2], [2, 0], [4, 2, 1]):
        apart, own, _ = clients.gradients(Execution(8), rows)
        assert torch.equal(apart, together[rows])
        assert torch.equal(own, losses[rows])


@pytest.mark.parametrize("stride", [(1, 1), (2, 1), (1, 2), (3, 2)])
@pytest.mark.parametrize("padding", [(0, 0), (2, 1)])
def test_a_convolution_and_its_gradients_are_pytorchs(stride: tuple[int, int], padding: tuple[int, int]) -> None:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(2, 3, 2, 9, 10, generator=generator, dtype=torch.float64).requires_grad_()
    weight = torch.randn(2, 4, 2, 3, 2, generator=generator, dtype=torch.float64).requires_grad_()
    plain = torch.stack(
        [functional.conv2d(*pair, stride=stride, padding=padding) for pair in zip(x, weight, strict=True)]
    )
    slope = torch.randn(plain.shape, generator=generator, dtype=torch.float64)
    of_x, of_weight = torch.autograd.grad(plain, (x, weight), slope)
    ours, turned = Convolution(stride, padding), slope.permute(BATCH_LAST).contiguous()
    with torch.no_grad():
        y, columns = ours.forward(x.permute(BATCH_LAST).contiguous(), weight)
        torch.testing.assert_close(y.permute(BATCH_SECOND), plain)
        torch.testing.assert_close(ours.weight_gradient(turned, columns, weight.shape), of_weight)
        torch.testing.assert_close(ours.input_gradient(turned, columns, weight, 10).permute(BATCH_SECOND), of_x)


def _network(*layers: nn.Module) -> Network:
    return Network(OrderedDict((f"layer{number}", layer) for number, layer in enumerate(layers)))


def _frozen() -> nn.Module:
    network = _network(nn.Flatten(), nn.Linear(4, 4), nn.Linear(4, 2))
    network[1].requires_grad_(False)
    return network


def _shared() -> nn.Module:
    layer = nn.Linear(4, 4)
    return _network(nn.Flatten(), layer, layer)


def _dense(*more: nn.Module) -> Network:
    return _network(nn.Flatten(), nn.Linear(4, 4), *more, nn.Linear(4, 2))


def _hooked() -> nn.Module:
    network = _dense()
    network[1].register_forward_hook(lambda module, given, scores: 3 * scores)
    return network


def _hooked_before() -> nn.Module:
    network = _dense()
    network.register_forward_pre_hook(lambda module, given: (2 * given[0],))
    return network


def _patched() -> nn.Module:
    network = _dense(nn.ReLU())
    network[2].forward = torch.square
    return network


def _with_unused_parameter() -> nn.Module:
    network = _dense()
    network.unused = nn.Parameter(torch.ones(3))
    return network


def _shared_statistics() -> nn.Module:
    norm = nn.BatchNorm1d(4, affine=False)
    return _dense(norm, nn.ReLU(), norm)


def _mean_square(scores: Tensor, labels: Tensor) -> Tensor:
    return (scores - labels.view(-1, *[1] * (scores.ndim - 1))).square().mean()


OWN = {
    "hook": _hooked,
    "hook before": _hooked_before,
    "own forward": _patched,
    "unused parameter": _with_unused_parameter,
    "shared statistics": _shared_statistics,
    "norm without shift": lambda: _dense(nn.BatchNorm1d(4, bias=False)),
    "group norm without shift": lambda: _dense(nn.GroupNorm(1, 4, bias=False)),
    "images as scores": lambda: _network(nn.Conv2d(1, 2, 2), nn.ReLU()),
    "flatten twice": lambda: _dense(nn.Flatten()),
    "activation at the end": lambda: _network(nn.Flatten(), nn.Linear(4, 2), nn.Tanh()),
}  # fmt: skip


@pytest.mark.parametrize("make", OWN.values(), ids=OWN)
def test_a_network_of_ones_own_computes_what_a_real_client_computes(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(4)
    model, x, y = make(), torch.randn(3, 5, 1, 2, 2), torch.randint(0, 2, (3, 5))
    own = torch.cat([parameter.detach().flatten() for parameter in model.parameters()])
    parameters, found = own + 0.05 * torch.randn(3, len(own)), []
    for execution in (Execution(8), LOOP):
        stacked = StackedModel(model, _mean_square, execution, torch.device("cpu"))
        stacked.try_out(x[0])
        buffers = stacked.initial_buffers(3)
        found.append((*stacked.gradients(parameters, buffers, Batch(x, y)), buffers))
    torch.testing.assert_close(*found, rtol=1e-4, atol=1e-6)


def test_labels_may_be_probabilities() -> None:
    x, y = torch.randn(3, 5, 4), torch.rand(3, 5, 2).softmax(2)
    parameters = torch.randn(3, 30)
    one, other = (
        StackedModel(_dense(), functional.cross_entropy, execution, torch.device("cpu"))
        .gradients(parameters, {}, Batch(x, y))
        for execution in (Execution(8), LOOP)
    )  # fmt: skip
    torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    "model",
    [
        nn.Sequential(nn.Flatten(), nn.Linear(4, 2)),
        _network(nn.Flatten(), nn.Linear(4, 4), nn.GELU(), nn.Linear(4, 2)),
        _network(nn.Linear(4, 2)),
        _network(nn.Conv2d(2, 2, 3, groups=2), nn.Flatten(), nn.Linear(4, 2)),
        _network(nn.Conv2d(1, 2, 3, padding="same"), nn.Flatten(), nn.Linear(4, 2)),
        _network(nn.Conv2d(1, 2, 3), nn.MaxPool2d(3), nn.Flatten(), nn.Linear(4, 2)),
        _network(nn.Flatten(), nn.Linear(4, 4), nn.BatchNorm1d(4).eval(), nn.Linear(4, 2)),
        _frozen(),
        _shared(),
    ],
    ids=["own", "layer", "records", "groups", "same", "window", "evaluation", "frozen", "shared"],
)  # fmt: skip
def test_what_a_chain_does_not_cover_is_left_to_pytorch(model: nn.Module) -> None:
    assert LayerChain.of(model) is None

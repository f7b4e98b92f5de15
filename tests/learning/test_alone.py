"""What a record gives has the same bits wherever it lies in memory, and whatever records before it did."""

import copy
import os
import random
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_model, save_model
from tests.methods.own_networks import LEAVING, Leaving
from torch import Tensor, nn

from sordino.learning import models
from sordino.learning.alone import ALIGNMENT, Alone
from sordino.learning.cohort import ClientData
from sordino.learning.optimizers import SGD
from sordino.learning.private_sgd import PrivateTraining, Records, remembers, sampled_sums
from sordino.learning.stacked_model import LOOP, StackedModel
from sordino.learning.unit_vectors import Form
from sordino.methods.extractors import ALONE, NetworkExtractor, features_of, whole_features
from sordino.randomness import Keystream

SHAPE, WIDTH = (1, 5, 5), 25  #: of a record of 100 bytes: the next one lies elsewhere modulo 64 bytes
CLASSES = 10


def shifted(x: Tensor, floats: int) -> Tensor:
    """The same records, beginning so many floats behind an address that is a multiple of 64."""
    space = torch.empty(x.numel() + floats)
    assert space.data_ptr() % ALIGNMENT == 0
    return space[floats:].view(x.shape).copy_(x)


def records(count: int, *shape: int) -> Tensor:
    return torch.rand(count, *(shape or SHAPE), generator=torch.Generator().manual_seed(1))


# --- where a record lies ----------------------------------------------------------------------------------------------


def test_arrays_of_pytorch_begin_at_multiples_of_64_bytes(tmp_path: Any) -> None:
    """Weights, whatever made them, and intermediate results."""
    network = models.build("lenet", input_shape=(1, 28, 28), classes=CLASSES)
    save_model(network, str(tmp_path / "net.safetensors"))
    load_model(network, tmp_path / "net.safetensors")
    results: list[Tensor] = []
    for part in network.modules():
        part.register_forward_hook(lambda _module, _given, found: results.append(found))
    network(torch.rand(1, 1, 28, 28))
    sizes = (*range(1, 200), 10**4 + 1, 10**6 + 3)
    made = [torch.empty(size) for size in sizes] + [torch.rand(size).double() for size in sizes]
    weights = [*network.parameters(), *copy.deepcopy(network).parameters()]
    assert len(results) > 5
    assert {tensor.data_ptr() % ALIGNMENT for tensor in (*made, *weights, *results)} == {0}


@pytest.mark.parametrize("floats", range(16))
def test_each_record_is_computed_in_an_aligned_array_of_its_own(floats: int) -> None:
    x, seen = shifted(records(3), floats), list[tuple[int, bool]]()

    def function(one: Tensor) -> None:
        seen.append((one.data_ptr() % ALIGNMENT, one.is_contiguous()))
        one.zero_()

    with Alone() as compute:
        for k in range(3):
            compute(function, x[k : k + 1])
    assert seen == [(0, True)] * 3
    assert torch.equal(x, records(3))


class Addressed(nn.Module):
    """A record's values, and beside them where it lies modulo 64 bytes: what a library may choose its kernel by."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x.flatten(1), torch.full((len(x), 1), (x.data_ptr() % ALIGNMENT) / ALIGNMENT)], dim=1)


@pytest.mark.parametrize("floats", range(16))
@pytest.mark.parametrize("whole", [True, False])
def test_a_record_that_is_removed_changes_no_features_of_the_others(floats: int, whole: bool) -> None:
    extractor = NetworkExtractor(Addressed(), SHAPE, public=True)
    form = Form(*extractor.shape)

    def made(x: Tensor) -> Tensor:
        own = shifted(x, floats)
        if whole:
            return whole_features(extractor, own, form, 1000, ALONE)
        return torch.from_numpy(features_of(extractor, own, {}, piece=ALONE))

    x = records(6)
    everyone = made(x)
    for gone in range(6):
        kept = torch.arange(6) != gone
        assert torch.equal(made(x[kept]), everyone[kept])


PRODUCTS = """
import sys
import numpy as np, torch
torch.rand(8, 8) @ torch.rand(8, 8)  # a product, before anything of Sordino is imported
from tests.learning import test_alone
print("differ", test_alone.differing(sys.argv[1]))
"""
SIZES = (101, 17, 65)  #: inputs of dense layers, odd as those of tables are


def differing(what: str) -> int:
    """How many records have other bits at some address, of rows with values of many sizes."""
    rng, found = torch.Generator().manual_seed(2), 0
    for size in SIZES:
        x = torch.randn(20, size, generator=rng) * 10 ** (6 * torch.rand(20, 1, generator=rng))
        of_records = {"features": _features, "gradients": _gradients, "plain": _plain}[what](size)
        found += sum(len({of_records(shifted(one[None], floats)) for floats in range(16)}) > 1 for one in x)
    return found


def _plain(size: int) -> Callable[[Tensor], bytes]:
    layer = nn.Linear(size, CLASSES).requires_grad_(False)
    return lambda x: layer(x).numpy().tobytes()


def _features(size: int) -> Callable[[Tensor], bytes]:
    extractor = NetworkExtractor(nn.Linear(size, CLASSES), (size,), public=True)
    return lambda x: features_of(extractor, x, {}, piece=ALONE).tobytes()


def _gradients(size: int) -> Callable[[Tensor], bytes]:
    stacked, training = _training(nn.Sequential(nn.Linear(size, 7), nn.Tanh(), nn.Linear(7, CLASSES)))
    parameters = torch.randn(1, stacked.size, generator=torch.Generator().manual_seed(3)) / 10
    return lambda x: _sum(stacked, training, parameters, x).numpy().tobytes()


def _training(model: nn.Module) -> tuple[StackedModel, PrivateTraining]:
    given = PrivateTraining(SGD(0.1), 1.0, 2.0, 1.0, 8.0, 1, resolution=24)
    return StackedModel(model, given.loss, LOOP, torch.device("cpu")), given


def _sum(stacked: StackedModel, training: PrivateTraining, parameters: Tensor, x: Tensor) -> Tensor:
    data = Records(x, torch.arange(len(x)) % CLASSES, np.zeros(1, np.int64), np.array([len(x)]), np.arange(1))
    sample = np.arange(len(x))
    return sampled_sums(stacked, training, parameters, data, [sample], Keystream.simulation(0, [0], 0), 0).sums


@pytest.mark.process
@pytest.mark.parametrize("what", ["features", "gradients"])
def test_bits_do_not_depend_on_addresses_without_settings_of_the_environment(what: str) -> None:
    """PyTorch multiplied before, so that what `sordino.learning` sets in the environment comes too late."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("MKL_")}
    path = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", PRODUCTS, what]
    done = subprocess.run(command, env={**clean, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["differ", "0"]


@pytest.mark.parametrize("name", ["lenet", "logistic"])
def test_the_first_call_for_a_shape_gives_the_bits_of_later_ones_in_any_thread(name: str) -> None:
    model = models.build(name, input_shape=(1, 23, 23), classes=CLASSES)
    x, found = records(3, 1, 23, 23), list[bytes]()
    stacked, training = _training(model)
    parameters = torch.randn(1, stacked.size, generator=torch.Generator().manual_seed(3)) / 10

    def call() -> None:
        with torch.no_grad(), Alone(model) as compute:
            found.append(compute(model, x[:1]).detach().numpy().tobytes())
        found.append(_sum(stacked, training, parameters, x[:1]).numpy().tobytes())

    for _ in range(2):
        call()
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        _sum(stacked, training, parameters, x)
    assert len(set(found[::2])) == len(set(found[1::2])) == 1


# --- what a record leaves behind --------------------------------------------------------------------------------------


def _flushed() -> bool:
    return bool((torch.tensor([1e-40]) * 0.5 == 0).item())


#: what code may change at a record, and how the next one would notice
CHANGES: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "threads": (lambda: torch.set_num_threads(2), torch.get_num_threads),
    "denormals": (lambda: torch.set_flush_denormal(True), _flushed),
    "type": (lambda: torch.set_default_dtype(torch.float64), lambda: torch.ones(1).dtype),
    "device": (lambda: torch.set_default_device("meta"), lambda: torch.ones(1).device),
    "gradients": (lambda: torch.set_grad_enabled(False), torch.is_grad_enabled),
    "autocast": (lambda: torch.set_autocast_enabled("cpu", True), lambda: torch.is_autocast_enabled("cpu")),
    "precision": (lambda: torch.set_float32_matmul_precision("medium"), torch.get_float32_matmul_precision),
    "kernels": (lambda: torch._C._set_mkldnn_enabled(False), torch._C._get_mkldnn_enabled),
    "PyTorch's generator": (lambda: torch.rand(1), lambda: torch.rand(1).item()),
    "NumPy's generator": (lambda: np.random.rand(), lambda: np.random.rand()),  # noqa: NPY002
    "Python's generator": (random.random, random.random),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_record_that_changes_the_process_changes_it_for_no_other_record_and_not_afterwards(name: str) -> None:
    change, notice = CHANGES[name]
    draws = "generator" in name

    def function(one: Tensor) -> object:
        found = notice()
        if one.any():
            change()
        return found

    before = None if draws else notice()
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[union-attr]  # noqa: NPY002
    with Alone() as compute:
        found = [compute(function, torch.full((1, 3), value)) for value in (0.0, 1.0, 0.0, 0.0)]
    assert len(set(found)) == 1
    assert draws or notice() == before
    if draws:
        assert torch.equal(torch.get_rng_state(), states[0])
        assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
        assert random.getstate() == states[2]


def test_settings_of_the_host_do_not_matter_and_come_back() -> None:
    """Threads, precision and types that a program set before are not those of a record."""
    before = [notice() for name, (_, notice) in CHANGES.items() if "generator" not in name]
    noticed = [notice for name, (_, notice) in CHANGES.items() if "generator" not in name]
    with Alone() as compute:
        plain = compute(lambda: [notice() for notice in noticed])
    with Alone():
        for name in ("threads", "denormals", "type", "gradients", "autocast", "precision", "kernels"):
            CHANGES[name][0]()
        changed = [notice() for notice in noticed]
        other = Alone()
        with other as compute:
            assert compute(lambda: [notice() for notice in noticed]) == plain
    assert changed != plain
    assert [notice() for notice in noticed] == before


def test_the_last_thread_to_leave_gives_the_process_its_settings_back() -> None:
    """Otherwise one that ends would set the threads of another in the middle of its record."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    inside, leave, noticed = threading.Event(), threading.Event(), list[object]()

    def stay() -> None:
        with Alone():
            inside.set()
            leave.wait(30)
            noticed.append(torch.get_default_dtype())

    thread = threading.Thread(target=stay)
    try:
        with Alone():
            thread.start()
            assert inside.wait(30)
        leave.set()
        thread.join(30)
        assert (noticed, torch.get_default_dtype()) == ([torch.float32], torch.float64)
    finally:
        torch.set_default_dtype(before)


def bright(x: Tensor) -> Tensor:
    found = x.clone()
    found[1, 0, 0, 0] = 1000.0
    return found


@pytest.mark.parametrize("kind", LEAVING, ids=lambda kind: kind.__name__)
def test_features_are_those_without_the_record_at_which_a_network_leaves_something(kind: type[Leaving]) -> None:
    torch.manual_seed(4)
    extractor = NetworkExtractor(kind(SHAPE, CLASSES), SHAPE, public=True)
    form, x = Form(*extractor.shape), bright(records(5))
    kept = torch.arange(5) != 1
    everyone = whole_features(extractor, x, form, 1000, ALONE)
    assert torch.equal(whole_features(extractor, x[kept], form, 1000, ALONE), everyone[kept])
    assert torch.equal(whole_features(extractor, x, form, 1000, ALONE), everyone)


@pytest.mark.parametrize("kind", LEAVING, ids=lambda kind: kind.__name__)
def test_gradients_are_those_without_the_record_at_which_a_network_leaves_something(kind: type[Leaving]) -> None:
    torch.manual_seed(4)
    model = kind(SHAPE, CLASSES)
    stacked, training = _training(model)
    parameters = torch.randn(1, stacked.size, generator=torch.Generator().manual_seed(3)) / 10
    labels, x = torch.arange(5) % CLASSES, bright(records(5))
    assert not remembers(model, training.loss, parameters[0], SHAPE)

    def total(chosen: list[int]) -> Tensor:
        data = ClientData(x[chosen], labels[chosen])
        own = Records(data.x, data.y, np.zeros(1, np.int64), np.array([len(chosen)]), np.arange(1))
        sample = [np.arange(len(chosen))]
        return sampled_sums(stacked, training, parameters, own, sample, Keystream.simulation(0, [0], 0), 0).sums

    alone = sum(total([k]) for k in range(5))
    assert torch.equal(total([0, 1, 2, 3, 4]), alone)
    assert torch.equal(total([0, 2, 3, 4]) + total([1]), alone)


def _scripted() -> nn.Module:
    found: nn.Module = torch.jit.script(nn.Sequential(nn.Linear(25, 4), nn.LayerNorm(4)))
    return found


def _attention() -> nn.Module:
    return nn.Sequential(nn.Unflatten(1, (1, 25)), nn.TransformerEncoderLayer(25, 5, 8, batch_first=True)).eval()


def _normed() -> nn.Module:
    return nn.utils.parametrizations.weight_norm(nn.Linear(25, 4))


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.parametrize("make", [_scripted, _attention, _normed])
def test_networks_of_every_making_are_put_back(make: Callable[[], nn.Module]) -> None:
    module, x = make(), records(2, 25)
    with torch.no_grad():
        wanted = [module(x[k : k + 1]) for k in range(2)]
    weight = next(iter(module.parameters()))

    def change(one: Tensor) -> Tensor:
        found: Tensor = module(one)
        with torch.no_grad():
            weight.add_(1)
        return found.detach()

    with Alone(module) as compute:
        found = [compute(change, x[k : k + 1]) for k in (0, 1, 0)]
    assert all(map(torch.allclose, found, (*wanted, wanted[0])))
    assert torch.equal(found[0], found[2])


def test_code_that_fails_leaves_the_settings_as_they_were() -> None:
    def function(one: Tensor) -> None:
        torch.set_default_dtype(torch.float64)
        raise ValueError("here")

    with pytest.raises(ValueError, match="here"), Alone() as compute:
        compute(function, torch.ones(1))
    assert torch.get_default_dtype() == torch.float32

"""Local training of many clients at once: what torch.optim does, each client as if alone, and DP-SGD as stated."""

from __future__ import annotations

import copy
import math
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from pydantic import ValidationError
from tests.cohorts import train_cohort, train_one
from torch import Tensor, nn
from torch.nn import functional

from sordino.audits.training import Planted
from sordino.errors import InvalidInput
from sordino.learning import draws, private_sgd
from sordino.learning.augmentation import Affine
from sordino.learning.cohort import (
    ClientData,
    CohortResult,
    LocalTraining,
)
from sordino.learning.draws import Stream
from sordino.learning.layers import ClientKernels
from sordino.learning.optimizers import SGD, Adam, Optimizer, RMSprop, WeightDecay
from sordino.learning.private_sgd import PrivateTraining, Records, gradient_of, integer_noise, integer_rows, noise_alone
from sordino.learning.stacked_model import LOOP, Batch, Execution, StackedModel, choose_width
from sordino.learning.training_tables import AdamSpec, RmsPropSpec, SgdSpec, Training
from sordino.methods.silo_dp import SiloDp
from sordino.parts.tables import TomlTable
from sordino.privacy.guarantee import SERVER, Adjacency, PoissonGaussian
from sordino.randomness import Keystream, Purpose, Words, threshold

SEED, ROUND = 5, 3
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Cnn(nn.Module):
    """The PyTorch MNIST example: 21,840 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 10, 5), nn.Conv2d(10, 20, 5)
        self.fc1, self.fc2 = nn.Linear(320, 50), nn.Linear(50, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(functional.max_pool2d(self.conv1(x), 2))
        x = functional.relu(functional.max_pool2d(self.conv2(x), 2))
        return self.fc2(functional.relu(self.fc1(x.view(-1, 320))))


class Dropped(nn.Module):
    """A network that takes its dropout masks as an argument."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(4, 8), nn.Linear(8, 3)

    mask_words = 8

    def masks(self, words: Words) -> tuple[Tensor, ...]:
        return (torch.from_numpy((words >= 2**31).astype(np.float32) * 2),)

    def forward(self, x: Tensor, masks: Sequence[Tensor] = ()) -> Tensor:
        hidden = functional.relu(self.first(x))
        return self.second(hidden * masks[0] if masks else hidden)


def made(build: Callable[[], nn.Module]) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        return build()


def cnn() -> nn.Module:
    return made(Cnn)


def mlp() -> nn.Module:
    return made(lambda: nn.Sequential(nn.Flatten(), nn.Linear(20, 16), nn.ReLU(), nn.Linear(16, 10)))


def logistic() -> nn.Module:
    return made(lambda: nn.Sequential(nn.Flatten(), nn.Linear(20, 10)))


def normed(track: bool = True) -> nn.Module:
    return made(
        lambda: nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, track_running_stats=track), nn.ReLU(), nn.Linear(6, 3))
    )


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def data(shape: tuple[int, ...], sizes: Sequence[int], classes: int = 10) -> list[ClientData]:
    """Client k's records depend on k alone, with a label that can be learnt."""
    clients = []
    for k, n in enumerate(sizes):
        rng = np.random.default_rng(1000 + k)
        y = rng.integers(0, classes, n)
        x = rng.normal(size=(n, *shape)) + 0.3 * y.reshape(-1, *[1] * len(shape))
        clients.append(ClientData(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)))
    return clients


def stream(clients: Sequence[int], seed: int = SEED) -> Keystream:
    return Keystream.simulation(seed, list(clients), ROUND)


def train(model: nn.Module, clients: Sequence[ClientData], training: LocalTraining, **options: object) -> CohortResult:
    return train_cohort(model, flat(model), clients, training, stream(range(len(clients))), **options)  # type: ignore[arg-type]


def alone(model: nn.Module, clients: Sequence[ClientData], training: LocalTraining) -> Tensor:
    runs = [train_one(model, flat(model), c, training, stream([k])) for k, c in enumerate(clients)]
    return torch.cat([run.parameters for run in runs])


def oracle(
    model: nn.Module,
    client: ClientData,
    k: int,
    optimizer: Callable[..., torch.optim.Optimizer],
    epochs: int,
    batch: int,
) -> Tensor:
    """PyTorch's own module, optimiser and autograd, on the order in which client k takes its records."""
    own = copy.deepcopy(model).train()
    rule = optimizer(own.parameters())
    for epoch in range(epochs):
        order = torch.from_numpy(draws.orders(stream([k]), np.array([0]), epoch, len(client))[0])
        for chosen in order.split(batch):
            rule.zero_grad()
            functional.cross_entropy(own(client.x[chosen]), client.y[chosen]).backward()
            rule.step()
    return flat(own)


def apart(found: Tensor, wanted: Tensor) -> Tensor:
    """How far each client's parameters are from those that are wanted, as a share of these."""
    return (found - wanted).norm(dim=-1) / wanted.norm(dim=-1)


def relative(found: Tensor, wanted: Tensor) -> float:
    return float(apart(found, wanted).max())


# --- optimisers: torch.optim is the oracle ---------------------------------------------------------------------------

PAIRS: list[tuple[Optimizer, Callable[..., torch.optim.Optimizer]]] = [
    (SGD(0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
    (SGD(0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
    (SGD(0.1, momentum=0.9, nesterov=True), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True)),
    (
        SGD(0.1, momentum=0.5, weight_decay=1e-2),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=1e-2),
    ),
    (Adam(1e-2), lambda p: torch.optim.Adam(p, lr=1e-2)),
    (
        Adam(1e-2, betas=(0.8, 0.99), weight_decay=1e-2),
        lambda p: torch.optim.Adam(p, lr=1e-2, betas=(0.8, 0.99), weight_decay=1e-2),
    ),
    (RMSprop(1e-3), lambda p: torch.optim.RMSprop(p, lr=1e-3)),
    (
        RMSprop(1e-3, rho=0.9, epsilon=1e-7, momentum=0.9, weight_decay=1e-2),
        lambda p: torch.optim.RMSprop(p, lr=1e-3, alpha=0.9, eps=1e-7, momentum=0.9, weight_decay=1e-2),
    ),
]


@pytest.mark.parametrize(
    ("ours", "theirs"), PAIRS, ids=lambda value: repr(value) if isinstance(value, Optimizer) else ""
)
def test_every_optimiser_does_what_torch_optim_does(ours: Optimizer, theirs: Callable) -> None:
    """Three epochs of up to three steps, the last batch smaller: a real client, and a cohort of unequal clients."""
    model, clients = mlp(), data((20,), [25, 25, 12])
    training = LocalTraining(ours, epochs=3, batch_size=10)
    wanted = torch.stack([oracle(model, c, k, theirs, 3, 10) for k, c in enumerate(clients)])
    assert relative(alone(model, clients, training), wanted) < 1e-6
    assert relative(train(model, clients, training).parameters, wanted) < 1e-6


def test_one_step_of_each_optimiser_equals_torch_optim_on_given_gradients() -> None:
    for ours, theirs in PAIRS:
        own = torch.linspace(-1, 1, 7).repeat(2, 1)
        given = nn.Parameter(own[0].clone())
        state, rule = ours.start(own), theirs([given])
        for t in range(4):
            gradient = torch.linspace(2, -1, 7) * (t + 1)
            given.grad = gradient.clone()
            decayed = gradient + own * float(ours.weight_decay)  # type: ignore[arg-type]
            ours.step(own, decayed, state, t, ours.lr)
            rule.step()
            assert relative(own, given.detach().expand(2, 7)) < 1e-6


def test_learning_rate_decays_as_in_keras_and_goes_on_from_an_earlier_round() -> None:
    """One weight, loss = weight, so that the weight falls by the learning rates: 1/(1+t)."""
    model = nn.Linear(1, 1, bias=False)
    model.weight.data.zero_()
    client = ClientData(torch.ones(1, 1), torch.zeros(1))
    training = LocalTraining(SGD(1.0, decay=1.0), steps=3, batch_size=1, loss=lambda scores, _: scores.mean())
    for first, wanted in ((0, 1 + 1 / 2 + 1 / 3), (2, 1 / 3 + 1 / 4 + 1 / 5)):
        run = train_one(model, flat(model), client, training, stream([0]), first_step=first)
        assert run.parameters.item() == pytest.approx(-wanted, rel=1e-6)


def test_weight_decay_of_chosen_tensors_only() -> None:
    model, clients = cnn(), data((1, 28, 28), [10, 10])
    decay = LocalTraining(SGD(0.1, weight_decay=WeightDecay(0.5, ("conv*",))), steps=1)
    plain = LocalTraining(SGD(0.1), steps=1)
    moved = train(model, clients, decay).parameters - train(model, clients, plain).parameters
    convolutions = sum(p.numel() for name, p in model.named_parameters() if name.startswith("conv"))
    assert torch.allclose(moved[:, :convolutions], -0.1 * 0.5 * flat(model)[:convolutions].expand(2, -1), atol=1e-7)
    assert not moved[:, convolutions:].any()
    with pytest.raises(InvalidInput, match="fits no tensor"):
        train(model, clients, LocalTraining(SGD(0.1, weight_decay=WeightDecay(0.5, ("dense*",))), steps=1))


# --- each client as if alone -----------------------------------------------------------------------------------------

MODELS = {"cnn": (cnn, (1, 28, 28)), "mlp": (mlp, (20,)), "logistic": (logistic, (20,))}
UNEQUAL = [23, 20, 4, 23, 31, 20, 1]


@pytest.mark.parametrize("unfolded", [True, False])
@pytest.mark.parametrize("name", MODELS)
def test_results_do_not_depend_on_width_neighbours_or_order_to_the_last_bit(name: str, unfolded: bool) -> None:
    build, shape = MODELS[name]
    model, clients = build(), data(shape, UNEQUAL)
    training = LocalTraining(SGD(0.05, momentum=0.9), epochs=2, batch_size=10)
    wanted = train(model, clients, training, execution=Execution(2, unfolded)).parameters
    for width in (3, 4, 7, 32):
        assert torch.equal(train(model, clients, training, execution=Execution(width, unfolded)).parameters, wanted)
    shuffled = [4, 0, 6, 2]
    some = train_cohort(
        model, flat(model), [clients[k] for k in shuffled], training, stream(shuffled), execution=Execution(3, unfolded)
    )
    assert torch.equal(some.parameters, wanted[shuffled])
    single = train_cohort(model, flat(model), clients[4:5], training, stream([4]), execution=Execution(16, unfolded))
    assert torch.equal(single.parameters[0], wanted[4])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", [SGD(0.05, momentum=0.9, weight_decay=1e-3), SGD(0.1)])
def test_a_cohort_agrees_with_plain_training_of_each_client(name: str, optimizer: Optimizer) -> None:
    build, shape = MODELS[name]
    model, clients = build(), data(shape, UNEQUAL)
    training = LocalTraining(optimizer, epochs=2, batch_size=10)
    wanted = alone(model, clients, training)
    for execution in (Execution(4), Execution(4, unfolded=False), LOOP):
        far = apart(train(model, clients, training, execution=execution).parameters, wanted).sort().values
        assert far[-2] < 1e-6
        assert far[-1] < 1e-2  # rounding decides which of two almost equal pixels pooling takes, on some processor


def test_clients_may_start_from_different_parameters() -> None:
    model, clients = mlp(), data((20,), [12, 12, 12])
    starts = flat(model) + torch.arange(3.0)[:, None] * 0.01
    training = LocalTraining(SGD(0.1), epochs=1)
    together = train_cohort(model, starts, clients, training, stream(range(3)))
    for k, client in enumerate(clients):
        one = train_cohort(model, starts[k], [client], training, stream([k]))
        assert torch.equal(one.parameters[0], together.parameters[k])
    assert torch.equal(starts, flat(model) + torch.arange(3.0)[:, None] * 0.01)


def test_training_leaves_global_generators_and_the_model_alone() -> None:
    model = normed()
    before = copy.deepcopy(model.state_dict())
    state, legacy = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    first = train(model, data((4,), [20, 20], 3), LocalTraining(SGD(0.1), epochs=1))
    torch.rand(3)
    second = train(model, data((4,), [20, 20], 3), LocalTraining(SGD(0.1), epochs=1))
    assert torch.equal(first.parameters, second.parameters)
    torch.set_rng_state(state)
    train(model, data((4,), [20, 20], 3), LocalTraining(SGD(0.1), epochs=1))
    assert torch.equal(torch.get_rng_state(), state)
    assert np.array_equal(np.random.get_state()[1], legacy)  # noqa: NPY002
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


# --- random decisions ------------------------------------------------------------------------------------------------


def test_orders_are_permutations_and_each_is_equally_likely() -> None:
    """Chi-square over the 24 orders of four records in 24,000 draws; false alarm 1e-6 at the fixed seed."""
    found = draws.orders(Keystream.simulation(1, np.arange(24_000), 0), np.arange(24_000), 0, 4)
    assert np.array_equal(np.sort(found, axis=1), np.tile(np.arange(4), (24_000, 1)))
    _, counts = np.unique(found @ np.array([64, 16, 4, 1]), return_counts=True)
    assert len(counts) == 24
    assert float(((counts - 1000) ** 2 / 1000).sum()) < 75.0


def test_epochs_rounds_and_clients_have_different_orders() -> None:
    base = draws.orders(stream([1]), np.array([0]), 0, 50)
    others = [
        draws.orders(stream([1]), np.array([0]), 1, 50),
        draws.orders(stream([2]), np.array([0]), 0, 50),
        draws.orders(Keystream.simulation(SEED, [1], ROUND + 1), np.array([0]), 0, 50),
    ]
    assert not any(np.array_equal(base, other) for other in others)


def test_the_order_is_the_rank_of_the_clients_own_words() -> None:
    words = stream([7]).words(np.array([0]), 2, 0, 0, 10)[0].astype(object)
    keys = [int(words[2 * i]) + (int(words[2 * i + 1]) << 32) for i in range(5)]
    assert draws.orders(stream([7]), np.array([0]), 0, 5)[0].tolist() == sorted(range(5), key=keys.__getitem__)


def test_without_shuffling_records_are_taken_as_they_lie() -> None:
    seen: list[Tensor] = []

    def watch(scores: Tensor, y: Tensor) -> Tensor:
        seen.append(y.clone())
        return functional.cross_entropy(scores, y)

    client = ClientData(torch.zeros(5, 20), torch.arange(5))
    training = LocalTraining(SGD(0.1), epochs=1, batch_size=2, shuffle=False, loss=watch)
    train_one(logistic(), flat(logistic()), client, training, stream([0]))
    assert [y.tolist() for y in seen] == [[0, 1], [2, 3], [4]]


@pytest.mark.parametrize(
    ("training", "records", "sizes"),
    [
        (LocalTraining(SGD(0.1), epochs=2, batch_size=10), 25, [10, 10, 5] * 2),
        (LocalTraining(SGD(0.1), epochs=2, batch_size=10, drop_last=True), 25, [10, 10] * 2),
        (LocalTraining(SGD(0.1), epochs=2, batch_size=10), 7, [7, 7]),
        (LocalTraining(SGD(0.1), epochs=1, batch_size=None), 7, [7]),
        (LocalTraining(SGD(0.1), steps=4, batch_size=10), 25, [10, 10, 5, 10]),
        (LocalTraining(SGD(0.1), steps=1, batch_size=10), 25, [10]),
    ],
)
def test_batches_have_their_exact_sizes(training: LocalTraining, records: int, sizes: list[int]) -> None:
    seen: list[int] = []

    def watch(scores: Tensor, y: Tensor) -> Tensor:
        seen.append(len(y))
        return functional.cross_entropy(scores, y)

    model, (client,) = logistic(), data((20,), [records])
    watched = LocalTraining(**{**training.__dict__, "loss": watch})
    train_one(model, flat(model), client, watched, stream([0]))
    assert seen == sizes


def test_dropout_masks_come_from_the_clients_own_stream() -> None:
    model, clients = made(Dropped), data((4,), [7, 12, 7], 3)
    training = LocalTraining(SGD(0.1), epochs=2, batch_size=5)
    together = train(model, clients, training)
    for width in (2, 3):
        assert torch.equal(train(model, clients, training, execution=Execution(width)).parameters, together.parameters)
    assert relative(together.parameters, alone(model, clients, training)) < 1e-6

    words = draws.draw(stream([1]), np.array([0]), Stream.DROPOUT, 1, 5 * 8)
    own = copy.deepcopy(model)
    order = torch.from_numpy(draws.orders(stream([1]), np.array([0]), 0, 12)[0])
    for t, chosen in enumerate(order.split(5)):
        count = len(chosen) * 8
        words = draws.draw(stream([1]), np.array([0]), Stream.DROPOUT, t, count, 5 * 8).reshape(-1, 8)
        loss = functional.cross_entropy(own(clients[1].x[chosen], own.masks(words)), clients[1].y[chosen])
        for p, g in zip(own.parameters(), torch.autograd.grad(loss, list(own.parameters())), strict=True):
            p.data -= 0.1 * g
    one_epoch = train(model, clients, LocalTraining(SGD(0.1), epochs=1, batch_size=5))
    assert relative(one_epoch.parameters[1], flat(own)) < 1e-6


@pytest.mark.parametrize("kind", ["plain", "private"])
def test_a_fresh_key_gives_no_word_twice(kind: str) -> None:
    """A fresh keystream refuses to be read twice at one place: several epochs, dropout and noise never do."""
    model, (client,) = made(Dropped), data((4,), [12], 3)
    training = LocalTraining(SGD(0.1), epochs=3, batch_size=5) if kind == "plain" else private()
    runs = [train_one(model, flat(model), client, training, Keystream.fresh()).parameters for _ in range(2)]
    assert not torch.equal(runs[0], runs[1])


def test_augmentation_draws_from_the_clients_own_stream() -> None:
    used: list[Tensor] = []

    class Shift(Affine):
        draws = 2

        def __call__(self, x: Tensor, uniforms: Tensor) -> Tensor:
            used.append(uniforms)
            return x + uniforms[:, :1]

    model, clients = mlp(), data((20,), [7, 12, 7])
    training = LocalTraining(SGD(0.1), epochs=2, batch_size=5, augmentation=Shift())
    together = train(model, clients, training).parameters
    assert torch.equal(train(model, clients, training, execution=Execution(2)).parameters, together)
    assert relative(together, alone(model, clients, training)) < 1e-6
    drawn = torch.cat([u.flatten() for u in used])
    assert drawn.min() >= 0
    assert drawn.max() < 1
    assert drawn.unique().numel() > 0.2 * drawn.numel()
    plain = LocalTraining(SGD(0.1), epochs=2, batch_size=5)
    assert not torch.equal(train(model, clients, plain).parameters, together)


# --- running statistics ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("execution", [Execution(2), Execution(8), Execution(3, unfolded=False), LOOP])
def test_batch_norm_statistics_are_kept_per_client(execution: Execution) -> None:
    model, clients = normed(), data((4,), [20, 25, 20], 3)
    training = LocalTraining(SGD(0.1, momentum=0.9), epochs=2, batch_size=10)
    run = train(model, clients, training, execution=execution)
    assert set(run.buffers) == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}
    for k, client in enumerate(clients):
        own = copy.deepcopy(model).train()
        rule = torch.optim.SGD(own.parameters(), lr=0.1, momentum=0.9)
        for epoch in range(2):
            order = torch.from_numpy(draws.orders(stream([k]), np.array([0]), epoch, len(client))[0])
            for chosen in order.split(10):
                rule.zero_grad()
                functional.cross_entropy(own(client.x[chosen]), client.y[chosen]).backward()
                rule.step()
        assert relative(run.parameters[k], flat(own)) < 2e-6
        for name, value in own.named_buffers():
            assert torch.allclose(run.buffers[name][k].float(), value.float(), rtol=1e-5, atol=1e-6)


IMAGES: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm2d(6),
    "group": lambda: nn.GroupNorm(2, 6),
    "instance": lambda: nn.InstanceNorm2d(6, affine=True),
    "layer": lambda: nn.LayerNorm([6, 6, 6]),
}


@pytest.mark.parametrize("norm", IMAGES)
@pytest.mark.parametrize("unfolded", [True, False])
def test_results_with_norms_do_not_depend_on_width(norm: str, unfolded: bool) -> None:
    layers = lambda: nn.Sequential(  # noqa: E731
        nn.Conv2d(1, 6, 3), IMAGES[norm](), nn.ReLU(), nn.Flatten(), nn.Linear(216, 5), nn.Linear(5, 3)
    )
    model, clients = made(layers), data((1, 8, 8), [20, 25, 20, 12], 3)
    training = LocalTraining(Adam(0.01), epochs=2, batch_size=10)
    runs = [train(model, clients, training, execution=Execution(width, unfolded)) for width in (2, 3, 4)]
    for run in runs[1:]:
        assert torch.equal(run.parameters, runs[0].parameters)
        assert all(torch.equal(run.buffers[name], value) for name, value in runs[0].buffers.items())


def test_batch_norm_of_a_vector_does_not_depend_on_width() -> None:
    """Here a bias before the norm has no gradient but rounding, which Adam makes a whole step of: the hardest case."""
    model, clients = normed(), data((4,), [20, 25, 20, 12], 3)
    training = LocalTraining(Adam(0.01), epochs=2, batch_size=10)
    runs = [train(model, clients, training, execution=Execution(width)) for width in (2, 3, 4)]
    for run in runs[1:]:
        assert torch.equal(run.parameters, runs[0].parameters)
        assert all(torch.equal(run.buffers[name], value) for name, value in runs[0].buffers.items())


def test_running_statistics_go_on_from_an_earlier_round() -> None:
    model, clients = normed(), data((4,), [20, 20], 3)
    training = LocalTraining(SGD(0.1), epochs=1, batch_size=10)
    first = train(model, clients, training)
    second = train(model, clients, training, buffers=first.buffers)
    assert second.buffers["1.num_batches_tracked"].tolist() == [4, 4]
    assert first.buffers["1.num_batches_tracked"].tolist() == [2, 2]
    with pytest.raises(InvalidInput, match="earlier call"):
        train(model, clients, training, buffers={"1.running_mean": torch.zeros(2, 6)})


def test_batch_norm_without_tracked_statistics_has_nothing_to_keep() -> None:
    model, clients = normed(track=False), data((4,), [20, 25], 3)
    training = LocalTraining(SGD(0.1), epochs=1, batch_size=10)
    run = train(model, clients, training)
    assert run.buffers == {}
    assert relative(run.parameters, alone(model, clients, training)) < 2e-6


def test_what_batch_norm_cannot_do_is_refused_with_the_remedy() -> None:
    model, training = normed(), LocalTraining(SGD(0.1), epochs=1, batch_size=10)
    with pytest.raises(InvalidInput, match="drop_last"):
        train(model, data((4,), [21, 20], 3), training)
    train(model, data((4,), [21, 20], 3), LocalTraining(SGD(0.1), epochs=1, batch_size=10, drop_last=True))
    cumulative = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 3))
    with pytest.raises(InvalidInput, match=r"momentum=0\.1"):
        train(cumulative, data((4,), [20, 20], 3), training)


def test_what_a_model_draws_comes_from_each_clients_own_stream_and_leaves_the_global_generator_alone() -> None:
    model, state = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), torch.get_rng_state()
    clients, training = data((4,), [9, 9, 9], 3), LocalTraining(SGD(0.1), epochs=2, batch_size=4)
    together = train(model, clients, training).parameters
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(12)
    apart = train_cohort(model, flat(model), clients[2:], training, stream([2])).parameters
    assert torch.equal(apart[0], together[2])
    same = train_cohort(model, flat(model), [clients[0]] * 2, training, stream([0, 1])).parameters
    assert not torch.equal(same[0], same[1])


class Branching(nn.Module):
    """Code that branches on data cannot run for many clients at once."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) if x.sum() > 0 else -self.layer(x)


def test_a_model_that_branches_on_data_is_trained_one_by_one() -> None:
    model, clients, training = Branching(), data((4,), [9, 9], 3), LocalTraining(SGD(0.1), epochs=1)
    assert torch.equal(train(model, clients, training).parameters, alone(model, clients, training))
    assert choose_width(model, (5, 4), 0.05) == LOOP


def test_frozen_parameters_are_no_part_of_the_vector() -> None:
    model = mlp()
    model[1].weight.requires_grad_(False)
    trained = torch.cat([p.detach().flatten() for p in model.parameters() if p.requires_grad])
    training = LocalTraining(SGD(0.1), epochs=1)
    clients = data((20,), [12, 12])
    run = train_cohort(model, trained, clients, training, stream(range(2)))
    own = copy.deepcopy(model)
    rule = torch.optim.SGD([p for p in own.parameters() if p.requires_grad], lr=0.1)
    order = torch.from_numpy(draws.orders(stream([0]), np.array([0]), 0, 12)[0])
    for chosen in order.split(10):
        rule.zero_grad()
        functional.cross_entropy(own(clients[0].x[chosen]), clients[0].y[chosen]).backward()
        rule.step()
    wanted = torch.cat([p.detach().flatten() for p in own.parameters() if p.requires_grad])
    assert relative(run.parameters[0], wanted) < 1e-6


# --- kernels ---------------------------------------------------------------------------------------------------------


def gradients(model: nn.Module, x: Tensor, unfolded: bool) -> tuple[Tensor, Tensor]:
    stacked = StackedModel(model, lambda scores, _: scores.flatten(1).square().mean(), Execution(8, unfolded), CPU)
    stacked.try_out(x[0])
    return stacked.gradients(flat(model).expand(len(x), -1).clone(), {}, Batch(x, torch.zeros(x.shape[:2])))


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel lengths")
@pytest.mark.parametrize(
    "layers",
    [
        lambda: [nn.Conv2d(2, 3, 3)],
        lambda: [nn.Conv2d(2, 3, 3, bias=False), nn.ReLU(), nn.Conv2d(3, 4, 3)],
        lambda: [nn.Conv2d(2, 3, 3, padding=1), nn.MaxPool2d(2), nn.Conv2d(3, 4, 3, padding="same")],
        lambda: [nn.Conv2d(2, 3, (3, 2), stride=(2, 1), padding=(1, 0)), nn.ReLU(), nn.Conv2d(3, 2, 3, stride=2)],
        lambda: [nn.Conv2d(2, 3, 3, padding="valid"), nn.MaxPool2d(2), nn.Flatten(), nn.LazyLinear(2)],
        lambda: [nn.Conv2d(2, 3, 3), nn.MaxPool2d(3, stride=2), nn.Conv2d(3, 3, 2, padding="same")],
        lambda: [nn.Conv2d(2, 4, 3, groups=2), nn.Conv2d(4, 3, 3, dilation=2), nn.MaxPool2d(2, ceil_mode=True)],
        lambda: [nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), nn.MaxPool2d(2), nn.MaxPool2d(2)],
    ],
)
def test_unfolded_convolutions_and_pools_agree_with_pytorchs(layers: Callable[[], list[nn.Module]]) -> None:
    model = made(lambda: nn.Sequential(*layers()))
    x = torch.from_numpy(np.random.default_rng(3).normal(size=(3, 5, 2, 11, 9)).astype(np.float32))
    model(x[0])
    (ours, loss), (theirs, expected) = gradients(model, x, True), gradients(model, x, False)
    assert torch.allclose(loss, expected, rtol=1e-5)
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-6)


def test_pooling_gives_ties_to_the_same_place_as_pytorch() -> None:
    """Values from {0, 1}: almost every window has a tie; gradients are compared exactly."""
    x = torch.from_numpy(np.random.default_rng(4).integers(0, 2, (3, 2, 2, 7, 6)).astype(np.float32))
    own, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    with ClientKernels():
        pooled = torch.func.vmap(lambda v: functional.max_pool2d(v, 2))(own)
    expected = functional.max_pool2d(theirs.flatten(0, 1), 2).unflatten(0, (3, 2))
    weights = torch.arange(float(expected.numel())).view_as(expected)
    (pooled * weights).sum().backward()
    (expected * weights).sum().backward()
    assert torch.equal(pooled, expected)
    assert torch.equal(own.grad, theirs.grad)


def test_the_width_is_chosen_by_measurement_within_its_budget() -> None:
    chosen = choose_width(logistic(), (10, 20), 0.2)
    assert chosen.width >= 8, "hundreds of tiny models are far faster together than one by one"
    with pytest.raises(InvalidInput, match="width"):
        Execution(0)


# --- private training ------------------------------------------------------------------------------------------------


def private(**changes: object) -> PrivateTraining:
    fields: dict[str, object] = {
        "optimizer": SGD(0.1),
        "clip": 0.7,
        "noise_multiplier": 1.3,
        "sampling_rate": 0.25,
        "expected_batch": 5.0,
        "steps": 3,
    }
    return PrivateTraining(**{**fields, **changes})  # type: ignore[arg-type]


def sums(model: nn.Module, clients: Sequence[ClientData], training: PrivateTraining, t: int = 0) -> Tensor:
    """The noiseless sums of step t at the model's own parameters, in units of the parameters."""
    stacked = StackedModel(model, training.loss, Execution(4), CPU)
    sizes = np.array([len(c) for c in clients])
    records = Records(
        torch.cat([c.x for c in clients]), torch.cat([c.y for c in clients]),
        np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes, np.arange(len(clients)),
    )  # fmt: skip
    start = flat(model).expand(len(clients), -1)
    found = private_sgd.integer_sums(stacked, training, start, records, stream(range(len(clients))), t).sums
    return found.double() * (training.clip / training.grid(stacked.size).clip)


def per_record(model: nn.Module, client: ClientData) -> Tensor:
    rows = []
    for x, y in zip(client.x, client.y, strict=True):
        loss = functional.cross_entropy(model(x[None]), y[None])
        rows.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(model.parameters()))]))
    return torch.stack(rows).double()


@pytest.mark.parametrize("name", ["cnn", "logistic"])
def test_sums_are_those_of_clipped_per_record_gradients_over_the_poisson_batch(name: str) -> None:
    build, shape = MODELS[name]
    model, clients, training = build(), data(shape, [15, 9]), private()
    found = sums(model, clients, training, t=2)
    for k, client in enumerate(clients):
        sample = draws.poisson_samples(stream([k]), 0, 2, len(client), 0.25)
        rows = per_record(model, client)[sample]
        wanted = (rows * (0.7 / rows.norm(dim=1, keepdim=True)).clamp(max=1)).sum(0)
        # Features and residuals of a linear model are whole numbers of norms 8,191 and 64, a network's gradients finer.
        assert relative(found[k], wanted) < (0.03 if name == "logistic" else 1e-3)


def test_one_record_moves_the_noiseless_sum_by_at_most_the_clipping_norm() -> None:
    """Records scaled up to gradients of norm 10^6, of which some are not even finite; every record is in the batch."""
    model, (client,) = mlp(), data((20,), [12])
    x = client.x * torch.logspace(-3, 6, 12)[:, None]
    x[5] = math.inf
    x[6] = math.nan
    training = private(sampling_rate=1.0)
    everyone = sums(model, [ClientData(x, client.y)], training)[0]
    assert torch.isfinite(everyone).all()
    moved = []
    for i in range(12):
        kept = [j for j in range(12) if j != i]
        moved.append(float((everyone - sums(model, [ClientData(x[kept], client.y[kept])], training)[0]).norm()))
    assert max(moved) <= 0.7 * (1 + 1e-12)
    assert max(moved) > 0.7 * (1 - 1e-3)
    assert moved[5] == moved[6] == 0


def test_a_broken_record_does_not_show_in_private_training() -> None:
    """If one NaN stopped the client, everyone would see that the record is there."""
    model, (client,) = mlp(), data((20,), [12])
    kept = ClientData(client.x.clone(), client.y)
    kept.x[11] = math.nan
    training = private(sampling_rate=1.0)
    run = train_one(model, flat(model), kept, training, stream([0]))
    assert not run.local.failed[0]
    assert np.isnan(run.local.loss[0])
    assert torch.isfinite(run.parameters).all()
    without = train_one(model, flat(model), ClientData(client.x[:11], client.y[:11]), training, stream([0]))
    assert torch.equal(run.parameters, without.parameters)


class Words100(nn.Module):
    """A text model: words as whole numbers, 100 of them known; others are an IndexError."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.last = nn.Embedding(100, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.words(x.long()).mean(1))


@pytest.mark.parametrize("place", [0, 5, 12])
def test_a_record_that_a_network_cannot_compute_adds_nothing_and_stops_nobody(place: int) -> None:
    model, (client,) = made(Words100), data((4,), [12], 3)
    x = (client.x.abs() * 20).clamp(max=99)
    broken = torch.cat([x[:place], torch.full((1, 4), 100.0), x[place:]])
    y = torch.cat([client.y[:place], torch.tensor([0]), client.y[place:]])
    training = private(sampling_rate=1.0)
    runs = [
        train_cohort(model, flat(model), [own], training, stream([0]), execution=LOOP).parameters
        for own in (ClientData(x, client.y), ClientData(broken, y))
    ]
    assert torch.equal(*runs)
    assert not torch.equal(runs[0][0], flat(model))


@pytest.mark.parametrize("at_a_time", [1, 40, 2**20])
def test_dropout_masks_of_private_training_are_the_same_in_parts(
    at_a_time: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, clients = made(Dropped), data((4,), [30, 9], 3)
    training = private(sampling_rate=0.7)
    wanted = train_cohort(model, flat(model), clients, training, stream(range(2)), execution=LOOP).parameters
    drawn: list[int] = []

    class Counted(Keystream):
        def words(self, rows: NDArray[np.intp], purpose: int, tensor: int, first: int, count: int) -> Words:
            drawn.append(count * (tensor == Stream.DROPOUT))
            return super().words(rows, purpose, tensor, first, count)

    monkeypatch.setattr(private_sgd, "MASK_WORDS", at_a_time)
    own = Counted.simulation(SEED, range(2), ROUND)
    assert torch.equal(train_cohort(model, flat(model), clients, training, own, execution=LOOP).parameters, wanted)
    assert max(drawn) <= max(at_a_time, 4 * 8)


def test_a_stream_that_is_longer_than_one_goes_on_in_another() -> None:
    """How many records there are must not decide whether they can be sampled: 2^34 words end in the second turn."""
    end, row = 2**34, np.array([0])
    before = stream([0]).words(row, Purpose.ORDER, Stream.SAMPLE, end - 8, 8)
    after = stream([0]).words(row, Purpose.LONGER + (Stream.SAMPLE << 10), 1, 0, 12)
    straddling = draws.draw(stream([0]), row, Stream.SAMPLE, 1, 20, end - 8)
    assert np.array_equal(straddling, np.concatenate([before, after], axis=1))
    beyond = draws.draw(stream([0]), row, Stream.SAMPLE, 3, 8, end // 3 + 2)
    assert np.array_equal(beyond, stream([0]).words(row, Purpose.LONGER + (Stream.SAMPLE << 10), 1, 8, 8))


def test_no_two_draws_share_a_stream_however_long_they_are() -> None:
    streams = (0, 1, 2, 2**16 - 1, 2**16, 2**26 - 1)
    used = [draws._address(kind, stream) for kind in Stream for stream in streams]
    assert len(set(used)) == len(used)
    assert all(0 <= purpose < 2**16 and 0 <= tensor < 2**16 for purpose, tensor in used)


@pytest.mark.parametrize("records", [1_000_048, 1_000_049])
def test_the_number_of_records_does_not_end_the_sampling(records: int) -> None:
    assert 800 < len(draws.poisson_samples(stream([0]), 0, 17178, records, 1e-3)) < 1200


def test_whole_rows_are_never_longer_than_the_clip() -> None:
    rows = torch.from_numpy(np.random.default_rng(5).normal(size=(200, 3000)).astype(np.float32))
    whole, shortened = integer_rows(rows, 1.0, 2**20)
    assert shortened.all()
    assert torch.equal(whole, whole.round())
    lengths = [math.isqrt(sum(int(v) ** 2 for v in row)) for row in whole[:20]]
    assert max(lengths) <= 2**20
    assert min(lengths) > 0.999 * 2**20
    same, shortened = integer_rows(rows, 1e3, 2**20)
    assert relative(same * (1e3 / 2**20), rows.double()) < 1e-3
    assert not shortened.any()


def residual(noise_multiplier: float, steps: int = 1) -> tuple[NDArray[np.float64], PrivateTraining]:
    """What one step on the CNN adds to the clipped sums, in units of clip: 21,840 values from each of two clients."""
    model, clients = cnn(), data((1, 28, 28), [10, 10])
    training = private(noise_multiplier=noise_multiplier, steps=steps)
    run = train_cohort(model, flat(model), clients, training, stream(range(2)))
    moved = (flat(model) - run.parameters).double() / 0.1 * training.expected_batch
    return ((moved - sums(model, clients, training)) / training.clip).numpy().ravel(), training


def test_noise_has_the_stated_variance() -> None:
    """43,680 normal values: a variance off by 5 % is 7 standard errors away; the bound is 4 (false alarm 6e-5)."""
    noise, training = residual(1.3)
    error = training.noise_multiplier**2 * math.sqrt(2 / noise.size)
    assert abs(noise.var() - training.noise_multiplier**2) < 4 * error
    assert abs(noise.mean()) < 4 * training.noise_multiplier / math.sqrt(noise.size)
    halved, _ = residual(0.65)
    assert abs(halved.var() - 1.3**2) > 100 * error


def test_noise_is_normal_and_differs_between_steps_and_clients() -> None:
    """Kolmogorov-Smirnov distance of 40,000 values below 2.4 / sqrt(n): false alarm 2e-5."""
    from scipy.stats import kstest

    now, later = (integer_noise(private(), np.arange(2), stream([0, 1]), t, 20_000) / 2.0**20 for t in (0, 1))
    assert kstest(now.ravel(), "norm").statistic < 2.4 / math.sqrt(40_000)
    columns = np.concatenate([now, later])
    assert np.abs(np.corrcoef(columns) - np.eye(4)).max() < 5 / math.sqrt(20_000)


def test_poisson_batches_have_the_stated_rate() -> None:
    """100,000 coins at 0.25: the bound is 5 standard deviations; every coin at rate 1."""
    sample = draws.poisson_samples(stream([0]), 0, 0, 100_000, 0.25)
    assert abs(len(sample) - 25_000) < 5 * math.sqrt(100_000 * 0.25 * 0.75)
    assert len(draws.poisson_samples(stream([0]), 0, 0, 1000, 1.0)) == 1000


RATES = [
    0.0, 1.0, 5e-324, 2.0**-1022, 2.0**-33, math.nextafter(2.0**-32, 0), math.nextafter(1.0, 0), 0.1, 1e-9,
    *(2.0**-k for k in range(1, 54)), *(1 - 2.0**-k for k in range(1, 54)),
    *np.random.default_rng(3).random(440).tolist(), *(10 ** np.random.default_rng(4).uniform(-14, 0, 445)).tolist(),
]  # fmt: skip


def test_the_threshold_of_a_rate_is_its_exact_floor() -> None:
    assert len(RATES) == 1000
    for rate in RATES:
        assert threshold(rate) == math.floor(Fraction(rate) * 2**32)
        assert Fraction(threshold(rate), 2**32) <= Fraction(rate)
    narrow = np.float32(0.1)
    assert threshold(narrow) == math.floor(Fraction(float(narrow)) * 2**32)


@pytest.mark.parametrize("rate", [-1e-9, math.nextafter(1.0, 2), math.nan, math.inf])
def test_what_is_no_rate_has_no_threshold(rate: float) -> None:
    with pytest.raises(InvalidInput):
        threshold(rate)


def test_a_record_is_sampled_if_and_only_if_its_word_is_below_the_threshold() -> None:
    """One word too many would be sampled too often by 2^-32."""
    for rate in RATES:
        limit = math.floor(Fraction(rate) * 2**32)
        near = [limit + step for step in (-2, -1, 0, 1, 2) if 0 <= limit + step < 2**32]
        words = np.array([0, *near, 2**32 - 1], np.uint32)
        known = Planted(stream([0]), (Purpose.ORDER, Stream.SAMPLE), words)
        found = draws.poisson_samples(known, 0, 0, len(words), rate)
        assert found.tolist() == [k for k, word in enumerate(words.tolist()) if word < limit]


def test_an_empty_poisson_batch_still_makes_a_noisy_step() -> None:
    model, clients = logistic(), data((20,), [3, 3])
    training = private(sampling_rate=2.0**-32, steps=1)
    run = train_cohort(model, flat(model), clients, training, stream(range(2)))
    noise = torch.from_numpy(integer_noise(training, np.arange(2), stream(range(2)), 0, 210))
    wanted = flat(model) - 0.1 * (noise * (1.3 * 0.7 / 5.0 / 2**20)).float()
    assert torch.allclose(run.parameters, wanted, atol=1e-6)
    assert torch.allclose(run.parameters, flat(model) - 0.1 * gradient_of(training, noise), rtol=1e-6, atol=1e-7)
    assert not run.local.failed.any()


def test_noise_alone_is_what_empty_batches_make() -> None:
    model, clients = logistic(), data((20,), [3, 3])
    training = private(sampling_rate=2.0**-32, optimizer=SGD(0.1, WeightDecay(0.01, ("*.weight",)), 0.1, 0.9))
    run = train_cohort(model, flat(model), clients, training, stream(range(2)), first_step=6)
    sizes = {name: value.numel() for name, value in model.named_parameters()}
    alone = noise_alone(training, flat(model).numpy(), sizes, stream(range(2)), 2, first_step=6)
    assert torch.equal(alone, run.parameters)
    loud = private(optimizer=SGD(1e38), noise_multiplier=1e3)
    wild = noise_alone(loud, flat(model).numpy(), sizes, stream(range(2)), 2)
    assert torch.equal(wild, flat(model).expand(2, -1))


@pytest.mark.parametrize("name", ["cnn", "mlp"])
def test_private_results_do_not_depend_on_width_or_neighbours(name: str) -> None:
    build, shape = MODELS[name]
    model, clients, training = build(), data(shape, [15, 9, 20]), private(optimizer=SGD(0.1, momentum=0.9))
    wanted = train_cohort(model, flat(model), clients, training, stream(range(3)), execution=Execution(2)).parameters
    for width in (3, 16):
        run = train_cohort(model, flat(model), clients, training, stream(range(3)), execution=Execution(width))
        assert torch.equal(run.parameters, wanted)
    assert torch.equal(train_one(model, flat(model), clients[2], training, stream([2])).parameters[0], wanted[2])
    loop = train_cohort(model, flat(model), clients, training, stream(range(3)), execution=LOOP)
    assert relative(loop.parameters, wanted) < 1e-4  # a gradient that was too long once rounded is shortened


def test_private_training_takes_dropout_masks() -> None:
    model, clients = made(Dropped), data((4,), [15, 9], 3)
    runs = [
        train_cohort(model, flat(model), clients, private(), stream(range(2)), execution=Execution(w)) for w in (2, 5)
    ]
    assert torch.equal(runs[0].parameters, runs[1].parameters)


def test_private_training_has_a_record_level_guarantee() -> None:
    found = private().guarantee(210)
    assert (found.adversary, found.adjacency) == (SERVER, Adjacency.RECORD_ADD_REMOVE)
    assert isinstance(found.loss, PoissonGaussian)
    assert (found.loss.q, found.loss.steps) == (0.25, 3)
    assert 1.3 <= found.loss.sigma < 1.3 * (1 + 1e-5)
    assert 0 < found.loss.eta < 1e-11
    assert 0 < found.loss.tau < 1e-11


def test_private_training_learns_when_noise_is_small() -> None:
    rng = np.random.default_rng(6)
    y = rng.integers(0, 3, 300)
    x = (rng.normal(size=(300, 4)) * 0.3 + np.eye(3, 4)[y]).astype(np.float32)
    model = nn.Linear(4, 3)
    training = private(
        optimizer=SGD(0.5), noise_multiplier=0.5, sampling_rate=0.2, expected_batch=60.0, steps=60, clip=1.0
    )
    run = train_one(model, torch.zeros(15), ClientData(x, y), training, stream([0]))  # type: ignore[arg-type]
    weight, bias = run.parameters[0, :12].view(3, 4), run.parameters[0, 12:]
    assert float(((torch.from_numpy(x) @ weight.T + bias).argmax(1).numpy() == y).mean()) > 0.85


def test_private_training_refuses_batch_norm_and_state_before_any_work() -> None:
    for track in (True, False):
        model = normed(track)
        with pytest.raises(InvalidInput, match="group norm"):
            train_cohort(model, flat(model), data((4,), [9], 3), private(), stream([0]))


@pytest.mark.parametrize(
    "changes",
    [
        {"clip": 0.0},
        {"clip": 1e-31},
        {"clip": 2e30},
        {"noise_multiplier": 0.0},
        {"noise_multiplier": math.nan},
        {"sampling_rate": 1.5},
        {"sampling_rate": 1e-12},
        {"steps": 0},
        {"resolution": 3},
        {"coarsening": 25},
    ],
)
def test_bad_private_training_is_refused_by_its_table(changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(changes))):
        SiloDp.Spec(**changes)


# --- bad input and failures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "make",
    [
        lambda: ClientData(torch.zeros(0, 4), torch.zeros(0, dtype=torch.long)),
        lambda: ClientData(torch.zeros(3, 4), torch.zeros(2, dtype=torch.long)),
    ],
)
def test_bad_records_are_refused(make: Callable[[], object]) -> None:
    with pytest.raises(InvalidInput):
        make()


@pytest.mark.parametrize(
    ("table", "changes"),
    [
        (SgdSpec, {"lr": 0.0}),
        (SgdSpec, {"lr": -1.0}),
        (SgdSpec, {"lr": math.nan}),
        (SgdSpec, {"momentum": 1.0}),
        (SgdSpec, {"weight_decay": -1.0}),
        (SgdSpec, {"decay": -1.0}),
        (SgdSpec, {"decayed": "conv*"}),
        (AdamSpec, {"beta2": 1.0}),
        (RmsPropSpec, {"epsilon": 0.0}),
        (Training, {"epochs": 0}),
        (Training, {"batch_size": -1}),
    ],
)
def test_bad_training_is_refused_by_its_table(table: type[TomlTable], changes: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match=next(iter(changes))):
        table(**({} if table is Training else {"lr": 0.1}) | changes)


def test_misfits_are_refused_before_any_work() -> None:
    model, training, clients = logistic(), LocalTraining(SGD(0.1), epochs=1), data((20,), [9, 9])
    with pytest.raises(InvalidInput, match="for 3 clients"):
        train_cohort(model, flat(model), clients, training, stream(range(3)))
    with pytest.raises(InvalidInput, match=r"float32 \[210\] or \[2, 210\]"):
        train_cohort(model, torch.zeros(3, 210), clients, training, stream(range(2)))
    with pytest.raises(InvalidInput, match="finite"):
        train_cohort(model, torch.full((210,), math.nan), clients, training, stream(range(2)))
    with pytest.raises(InvalidInput, match="one shape"):
        train(model, [clients[0], data((21,), [9])[0]], training)
    with pytest.raises(InvalidInput, match="cannot compute a batch"):
        train(model, data((21,), [9]), training)
    with pytest.raises(InvalidInput, match="no trainable parameters"):
        train_cohort(nn.Flatten(), torch.zeros(0), clients, training, stream(range(2)))
    if not torch.cuda.is_available():
        with pytest.raises(InvalidInput, match="finds none here"):
            train(model, clients, training, device="cuda")
    with pytest.raises(InvalidInput, match="client"):
        train_cohort(model, flat(model), [], training, stream([0]))
    with pytest.raises(InvalidInput, match="float32"):
        train_cohort(model.double(), torch.zeros(210), clients, training, stream(range(2)))


@pytest.mark.parametrize("execution", [Execution(2), LOOP])
def test_a_client_that_diverges_is_marked_and_changes_nothing(execution: Execution) -> None:
    model, clients = normed(), data((4,), [20, 20, 20], 3)
    broken = clients[1].x.clone()
    broken[3, 2] = math.nan
    healthy = train(model, clients, LocalTraining(SGD(0.1), epochs=1), execution=execution)
    clients[1] = ClientData(broken, clients[1].y)
    run = train(model, clients, LocalTraining(SGD(0.1), epochs=1), execution=execution)
    assert run.local.failed.tolist() == [False, True, False]
    assert torch.equal(run.parameters[1], flat(model))
    assert torch.equal(run.parameters[[0, 2]], healthy.parameters[[0, 2]])
    assert not run.buffers["1.running_mean"][1].any()
    assert np.isnan(run.local.loss[1])
    exploding = train(mlp(), data((20,), [40, 40]), LocalTraining(SGD(1e30), epochs=3), execution=execution)
    assert exploding.local.failed.all()
    assert torch.equal(exploding.parameters, flat(mlp()).expand(2, -1))


def test_local_loss_is_the_mean_over_the_records_trained_on() -> None:
    model, (client,) = logistic(), data((20,), [12])
    run = train(model, [client], LocalTraining(SGD(1e-12), epochs=3, batch_size=5))
    assert run.local.loss[0] == pytest.approx(functional.cross_entropy(model(client.x), client.y).item(), rel=1e-5)


def test_training_learns() -> None:
    model, clients = cnn(), data((1, 28, 28), [40, 40], classes=2)
    run = train(model, clients, LocalTraining(SGD(0.05, momentum=0.9), epochs=12, batch_size=10))
    late = train_cohort(model, run.parameters, clients, LocalTraining(SGD(1e-9), epochs=1), stream(range(2)))
    assert late.local.loss.max() < 0.3 < run.local.loss.min()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_a_gpu_agrees_with_the_processor() -> None:
    model, clients = cnn(), data((1, 28, 28), [23, 20, 4])
    training = LocalTraining(SGD(0.05, momentum=0.9), epochs=1, batch_size=10)
    here, there = train(model, clients, training), train(model, clients, training, device="cuda")
    assert there.parameters.device.type == "cuda"
    assert relative(there.parameters.cpu(), here.parameters) < 1e-3


@pytest.mark.parametrize(
    ("optimizer", "batches"),
    [(SGD(0.1), [10, 10, 10, 3] * 2), (SGD(0.1, decay=0.1), [10] + [3, 10] * 3 + [10, 3, 10, 10, 3])],
    ids=["constant rate", "decaying rate"],
)
def test_smaller_last_batches_wait_for_each_other_where_the_number_of_a_step_says_nothing(
    optimizer: Optimizer, batches: list[int]
) -> None:
    """Clients of 13, 23 and 33 records in batches of 10: each epoch has 1, 2 or 3 whole batches and one of 3.

    At a constant rate those of 3 are one computation an epoch. With a decaying one, all take step t = 0 .. 7 at once.
    """
    seen: list[int] = []

    def watch(scores: Tensor, y: Tensor) -> Tensor:
        seen.append(len(y))
        return functional.cross_entropy(scores, y)

    model, clients = logistic(), data((20,), [13, 23, 33])
    training = LocalTraining(optimizer, epochs=2, batch_size=10, loss=watch)
    together = train(model, clients, training).parameters
    assert seen == batches
    assert relative(together, alone(model, clients, training)) < 1e-6


# --- the loss --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings",
    [{}, {"label_smoothing": 0.1}, {"reduction": "sum"}, {"weight": torch.linspace(0.5, 2.0, 10)}, {"ignore_index": 3}],
    ids=["plain", "smoothed", "sum", "weighted", "one class ignored"],
)
def test_cross_entropy_is_pytorchs_with_whatever_settings(settings: dict[str, object]) -> None:
    model, clients = logistic(), data((20,), [12, 12, 7])
    loss = lambda scores, y: functional.cross_entropy(scores, y, **settings)  # noqa: E731
    training = LocalTraining(SGD(0.01), epochs=2, batch_size=5, loss=loss)
    assert relative(train(model, clients, training).parameters, alone(model, clients, training)) < 1e-6


def test_training_loads_no_more_of_pytorch_than_it_needs() -> None:
    """Half a second of every worker's start: cross-entropy under vmap would load a computer algebra system."""
    code = """
import sys, numpy as np, torch
from sordino.learning.cohort import ClientData, CohortTrainer, LocalTraining
from sordino.learning.optimizers import SGD
from sordino.randomness import Keystream
clients = [ClientData(torch.zeros(4, 3), torch.zeros(4, dtype=torch.long))] * 2
stream = Keystream.simulation(1, [0, 1], 0)
CohortTrainer(torch.nn.Linear(3, 2)).train(torch.zeros(8), clients, LocalTraining(SGD(0.1), epochs=1), stream)
print([name for name in ("sympy", "torch._dynamo", "scipy.optimize._minimize") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"

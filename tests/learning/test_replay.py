"""Training again and again, and steps recorded on a GPU: the same results as computing each step anew."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.cohorts import train_cohort
from torch import Tensor, nn
from torch.nn import functional

from sordino.errors import InvalidInput
from sordino.learning import models
from sordino.learning.cohort import ClientData, CohortTrainer, LocalTraining
from sordino.learning.optimizers import SGD, Adam, Optimizer
from sordino.learning.private_sgd import PrivateTraining
from sordino.learning.replay import EXACT, MOST, Replayer, rounded
from sordino.learning.stacked_model import GPU, LOOP, Execution
from sordino.randomness import Keystream

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
SHAPE = (1, 12, 12)
UNEQUAL = [23, 20, 4, 23, 31, 20, 10]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Small(nn.Module):
    """A convolution, a pool and a dense layer, with the norm that is asked for between them."""

    def __init__(self, norm: nn.Module | None = None) -> None:
        super().__init__()
        # A bias before batch norm has no gradient but rounding, of which Adam would make whole steps.
        self.conv, self.norm = nn.Conv2d(1, 6, 3, bias=norm is None), norm or nn.Identity()
        self.fc = nn.Linear(150, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(functional.relu(functional.max_pool2d(self.norm(self.conv(x)), 2)).flatten(1))


class Deeper(nn.Module):
    """Two convolutions, the second with as many channels as a product takes at a time, and the compiled group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3)
        self.norm, self.other, self.fc = nn.GroupNorm(4, 16), nn.GroupNorm(8, 32), nn.Linear(800, 10)

    def forward(self, x: Tensor) -> Tensor:
        y = functional.relu(self.norm(self.first(x)), inplace=True)
        return self.fc(functional.max_pool2d(functional.relu(self.other(self.second(y))), 2).flatten(1))


class Waiting(nn.Module):
    """Its code brings numbers from the processor's memory in every step, which no graph can hold."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(144, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x.flatten(1)) * torch.tensor([1.0, 2.0] * 5, device=x.device)


def made(build: type[nn.Module], *arguments: nn.Module) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(11)
        return build(*arguments)


def flat(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def data(sizes: Sequence[int], seed: int = 1000) -> list[ClientData]:
    clients = []
    for k, n in enumerate(sizes):
        rng = np.random.default_rng(seed + k)
        y = rng.integers(0, 10, n)
        x = rng.normal(size=(n, *SHAPE)) + 0.3 * y.reshape(-1, 1, 1, 1)
        clients.append(ClientData(torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y)))
    return clients


def stream(clients: int, turn: int = 0) -> Keystream:
    return Keystream.simulation(5, np.arange(clients), turn)


def apart(found: Tensor, wanted: Tensor) -> Tensor:
    """How far every client's parameters are apart, by the size of what is wanted."""
    return (found.cpu() - wanted).norm(dim=-1) / wanted.norm(dim=-1)


def relative(found: Tensor, wanted: Tensor) -> float:
    return float(apart(found, wanted).max())


# --- a trainer is train_cohort, prepared once ------------------------------------------------------------------------


def test_a_trainer_gives_what_train_cohort_gives_call_after_call_to_the_last_bit() -> None:
    model = made(Small, nn.BatchNorm2d(6))
    trainer, parameters, buffers = CohortTrainer(model), flat(model), None
    for turn, sizes in enumerate([UNEQUAL, [20, 30, 20], UNEQUAL[::-1]]):
        training = LocalTraining(SGD(0.1, momentum=0.9), epochs=2, batch_size=10)
        clients = data(sizes, seed=turn)
        found = trainer.train(parameters, clients, training, stream(len(sizes), turn), buffers=buffers)
        wanted = train_cohort(model, parameters, clients, training, stream(len(sizes), turn), buffers=buffers)
        assert torch.equal(found.parameters, wanted.parameters)
        assert np.array_equal(found.local.loss, wanted.local.loss)
        assert all(torch.equal(found.buffers[name], value) for name, value in wanted.buffers.items())
        assert set(found.buffers) == {"norm.running_mean", "norm.running_var", "norm.num_batches_tracked"}


def test_a_trainer_takes_another_loss_and_private_training_in_turn() -> None:
    model, clients = made(Small), data([12, 12])
    trainer = CohortTrainer(model)
    doubled = LocalTraining(SGD(0.05), epochs=1, loss=lambda scores, y: 2 * functional.cross_entropy(scores, y))
    plain, twice_the_rate = LocalTraining(SGD(0.05), epochs=1), LocalTraining(SGD(0.1), epochs=1)
    private = PrivateTraining(SGD(0.1), 1.0, 1.0, 0.5, 5.0, 2)
    runs = [trainer.train(flat(model), clients, how, stream(2)) for how in (plain, doubled, private, twice_the_rate)]
    assert relative(runs[1].parameters, runs[3].parameters) < 1e-6
    assert relative(runs[0].parameters, runs[3].parameters) > 1e-3
    assert relative(runs[2].parameters, runs[3].parameters) > 1e-3


def test_a_trainer_checks_every_call() -> None:
    model, training = made(Small), LocalTraining(SGD(0.1), epochs=1)
    trainer = CohortTrainer(model)
    trainer.train(flat(model), data([12, 12]), training, stream(2))
    with pytest.raises(InvalidInput, match="cannot compute a batch"):
        trainer.train(flat(model), [ClientData(torch.zeros(2, 1, 9, 9), torch.tensor([0, 1]))], training, stream(1))
    with pytest.raises(InvalidInput, match="client"):
        trainer.train(flat(model), [], training, stream(1))
    if not torch.cuda.is_available():
        with pytest.raises(InvalidInput, match="finds none here"):
            CohortTrainer(model, device="cuda")


def test_the_way_of_computing_follows_the_device() -> None:
    assert CohortTrainer(made(Small)).execution == Execution(16)
    assert CohortTrainer(made(Small), execution=LOOP).execution == LOOP
    assert GPU.width >= 100


@given(st.integers(1, 100_000))
def test_row_counts_are_rounded_up_to_few_others_and_by_little(rows: int) -> None:
    found = rounded(rows)
    assert rows <= found < max(rows + 4, rows * (1 + 1 / 16))
    assert found % 4 == 0 or found == rows <= EXACT
    assert rounded(found) == found


def test_a_hundred_clients_are_computed_exactly_and_all_counts_take_few_recordings() -> None:
    assert rounded(100) == 100
    assert len({rounded(rows) for rows in range(2, GPU.width + 1)}) <= MOST


# --- on a GPU --------------------------------------------------------------------------------------------------------


def replayer(trainer: CohortTrainer) -> Replayer:
    assert trainer._prepared is not None
    found = trainer._prepared[1]._replayer
    assert found is not None
    return found


@needs_gpu
@pytest.mark.parametrize("optimizer", [SGD(0.05), SGD(0.05, momentum=0.9, decay=0.1), Adam(1e-3)], ids=["a", "b", "c"])
@pytest.mark.parametrize("norm", ["none", "group", "batch"])
def test_a_gpu_agrees_with_the_processor_to_five_digits(norm: str, optimizer: Optimizer) -> None:
    norms = {"none": None, "group": nn.GroupNorm(2, 6), "batch": nn.BatchNorm2d(6)}
    model, clients = made(Small, norms[norm]), data(UNEQUAL)  # type: ignore[arg-type]
    training = LocalTraining(optimizer, epochs=3, batch_size=10, drop_last=True)
    wanted = train_cohort(model, flat(model), clients, training, stream(len(clients)))
    trainer = CohortTrainer(model, device="cuda")
    for _ in range(3):
        found = trainer.train(flat(model), clients, training, stream(len(clients)))
        # Batch norm magnifies rounding, and a maximum that changes its place is a jump.
        assert relative(found.parameters, wanted.parameters) < (1e-3 if norm == "batch" else 1e-5)
        assert np.allclose(found.local.loss, wanted.local.loss, rtol=1e-4)
        for name, value in wanted.buffers.items():
            assert torch.allclose(found.buffers[name].cpu().float(), value.float(), rtol=1e-3, atol=1e-3)
    assert replayer(trainer)._recordings


@needs_gpu
@pytest.mark.parametrize("sizes", [UNEQUAL, [200, 200], [64] * 40], ids=["unequal", "few", "many"])
def test_compiled_convolutions_and_group_norm_agree_with_the_processors(sizes: list[int]) -> None:
    model, clients = made(Deeper), data(sizes)
    training = LocalTraining(SGD(0.01), epochs=2, batch_size=10)
    wanted = train_cohort(model, flat(model), clients, training, stream(len(clients)))
    found = CohortTrainer(model, device="cuda").train(flat(model), clients, training, stream(len(clients)))
    each = apart(found.parameters, wanted.parameters)
    # Of many clients some meet a maximum that changes its place: first weights that differ by one part in ten million
    # bring a processor's own results as far apart as 1e-4 for one client in twenty, and others to 1e-7.
    assert each.quantile(0.8) < 1e-5
    assert each.max() < 1e-3


@needs_gpu
def test_on_a_gpu_the_same_cohort_gives_the_same_bits_again_recorded_or_not() -> None:
    model = models.build("cnn-mnist", input_shape=(1, 28, 28), classes=10, dropout=0.5)
    rng = np.random.default_rng(1)
    clients = [
        ClientData(torch.from_numpy(rng.normal(size=(n, 1, 28, 28)).astype(np.float32)), torch.arange(n) % 10)
        for n in [*range(21, 90), *range(30, 60)]
    ]
    training = LocalTraining(SGD(0.05, momentum=0.9), epochs=2, batch_size=10)
    trainer = CohortTrainer(model, device="cuda")
    runs = [trainer.train(flat(model), clients, training, stream(len(clients))).parameters for _ in range(3)]
    fresh = train_cohort(model, flat(model), clients, training, stream(len(clients)), device="cuda").parameters
    assert all(torch.equal(run, fresh) for run in runs)
    assert 1 < len(replayer(trainer)._recordings) <= MOST


@needs_gpu
def test_what_cannot_be_recorded_is_computed_all_the_same_and_harms_nothing_after_it() -> None:
    waiting, model = made(Waiting), made(Small)
    clients, training = data([40, 40, 35]), LocalTraining(SGD(0.05), epochs=2, batch_size=10)
    trainer = CohortTrainer(waiting, device="cuda")
    found = trainer.train(flat(waiting), clients, training, stream(3))
    assert not replayer(trainer)._recordings
    assert (
        relative(found.parameters, train_cohort(waiting, flat(waiting), clients, training, stream(3)).parameters) < 1e-5
    )
    after = CohortTrainer(model, device="cuda")
    found = after.train(flat(model), clients, training, stream(3))
    assert replayer(after)._recordings
    assert relative(found.parameters, train_cohort(model, flat(model), clients, training, stream(3)).parameters) < 1e-5


@needs_gpu
def test_dropping_a_trainer_while_another_one_records_spoils_neither() -> None:
    model, clients = made(Small), data([40, 40, 35])
    training = LocalTraining(SGD(0.05), epochs=2, batch_size=10)
    before = gc.get_threshold()
    gc.set_threshold(1)
    try:
        for _ in range(4):
            trainer = CohortTrainer(model, device="cuda")
            trainer.train(flat(model), clients, training, stream(3))
            assert replayer(trainer)._possible
            trainer.circle = trainer  # type: ignore[attr-defined]
    finally:
        gc.set_threshold(*before)


@needs_gpu
def test_private_training_on_a_gpu_agrees_with_the_processor() -> None:
    model, clients = made(Small), data([40, 33, 25])
    training = PrivateTraining(SGD(0.1), 1.0, 1.0, 0.3, 10.0, 5)
    wanted = train_cohort(model, flat(model), clients, training, stream(3))
    trainer = CohortTrainer(model, device="cuda", execution=Execution(8))
    for _ in range(2):
        found = trainer.train(flat(model), clients, training, stream(3))
        assert relative(found.parameters, wanted.parameters) < 1e-5
        assert np.allclose(found.local.clipped, wanted.local.clipped)


@needs_gpu
@pytest.mark.parametrize("execution", [LOOP, Execution(8, unfolded=False)], ids=["loop", "own kernels"])
def test_pytorchs_own_convolutions_are_not_rounded_to_tf32(execution: Execution) -> None:
    model, clients = made(Small), data([20, 20])
    training = LocalTraining(SGD(0.05), epochs=2, batch_size=10)
    wanted = train_cohort(model, flat(model), clients, training, stream(2), execution=execution)
    before = torch.backends.cudnn.conv.fp32_precision
    found = train_cohort(model, flat(model), clients, training, stream(2), execution=execution, device="cuda")
    assert relative(found.parameters, wanted.parameters) < 1e-5
    assert torch.backends.cudnn.conv.fp32_precision == before


@needs_gpu
def test_records_may_lie_on_the_gpu_or_not() -> None:
    model, clients = made(Small), data(UNEQUAL)
    resident = [ClientData(c.x.cuda(), c.y.cuda()) for c in clients]
    training = LocalTraining(SGD(0.05), epochs=1, batch_size=10)
    runs = [
        train_cohort(model, flat(model), given, training, stream(len(clients)), device="cuda").parameters
        for given in (clients, resident)
    ]
    assert torch.equal(*runs)
    assert torch.equal(train_cohort(model, flat(model), resident, training, stream(len(clients))).parameters, runs[0])


@needs_gpu
def test_too_many_clients_for_the_memory_are_refused_with_the_remedy() -> None:
    model, clients = made(Small), data([2000] * 8)
    limit = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + 60e6) / limit)
    try:
        with pytest.raises(InvalidInput, match=r"execution=Execution\(4\)"):
            train_cohort(
                model, flat(model).cuda(), clients, LocalTraining(SGD(0.1), epochs=1, batch_size=2000), stream(8),
                device="cuda",
            )  # fmt: skip
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)

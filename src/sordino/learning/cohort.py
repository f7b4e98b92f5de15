"""Local training of K clients at once, each as if it were alone.

Clients are computed along a leading axis, a few at a time. At every step those whose batches have the same shape go
together; nothing is padded, since padded rows change batch norm and padded steps move weights under momentum, Adam and
weight decay. The order of records, dropout and augmentation come from each client's own keystream. On a processor a
client's result is the same to the last bit whichever clients are computed beside it, in whichever order, at every width
from 2 up. It agrees with the loop, the plain training of a real client, to rounding, or to what training itself
makes of rounding: batch norm over three records magnifies a change in the last bit a thousandfold.

On a GPU, clients are computed by the hundred and a step is recorded once and replayed (see replay.py). Results agree
with the processor's to 1e-5 (float32, never TF32 alone) and are the same whenever the same cohort is trained again on
the same machine, but not to the last bit beside other clients; private training adds up gradients in no fixed order.

Losses, failures, step counts and running statistics stay with the client: they are not part of any report.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sordino.errors import InvalidInput
from sordino.learning import draws, private_sgd
from sordino.learning.augmentation import Affine
from sordino.learning.draws import Stream
from sordino.learning.linear_head import Rounded
from sordino.learning.optimizers import Descent, Optimizer
from sordino.learning.private_sgd import PrivateTraining, Records
from sordino.learning.stacked_model import GPU, Batch, Buffers, Execution, Loss, StackedModel, probes
from sordino.randomness import Randomness, Rows, Words


@dataclass(frozen=True)
class LocalTraining:
    """How a client trains: for a number of epochs, or for a number of steps whatever the number of its records.

    A client with fewer records than `batch_size` takes all of them as one batch; `batch_size=None` means that for
    everyone. The last, smaller batch of an epoch is used unless `drop_last`.
    """

    optimizer: Optimizer
    epochs: int | None = None
    steps: int | None = None
    batch_size: int | None = 10
    shuffle: bool = True
    drop_last: bool = False
    loss: Loss = functional.cross_entropy
    augmentation: Affine | None = None

    def batches(self, records: int) -> list[int]:
        """The batch sizes of one epoch over so many records."""
        size = min(self.batch_size or records, records)
        full, rest = divmod(records, size)
        return [size] * full + ([rest] if rest and not self.drop_last else [])

    def total_steps(self, records: int) -> int:
        """How many steps a client with so many records takes."""
        return self.steps if self.steps is not None else (self.epochs or 0) * len(self.batches(records))

    def effort(self, sizes: Sequence[int]) -> tuple[int, float]:
        """Records in a batch, and about how many clients with so many records train on in a round together."""
        batch = self.batch_size or max(1, max(sizes))
        if self.steps is not None:
            return batch, float(self.steps * batch * len(sizes))
        return batch, float(sum(sizes) * (self.epochs or 1))


@dataclass(frozen=True)
class ClientData:
    """One client's records `x [n, ...]` and labels `y [n, ...]`; arrays are taken as tensors without a copy.

    What is computed from records with a `key` may be kept under it: no other records have it.
    """

    x: Tensor
    y: Tensor
    key: object = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", torch.as_tensor(self.x))
        object.__setattr__(self, "y", torch.as_tensor(self.y))
        if self.x.ndim < 1 or self.y.ndim < 1 or len(self.x) != len(self.y):
            raise InvalidInput(f"records {list(self.x.shape)} and labels {list(self.y.shape)} must be equally many")
        if len(self.x) == 0:
            raise InvalidInput("a client without records cannot train: leave it out of the cohort")

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class LocalDiagnostics:
    """What the owner of each client may look at and nobody else: none of it is part of a report."""

    loss: NDArray[np.float64]  #: [K] mean loss over all records the client trained on
    failed: NDArray[np.bool_]  #: [K] loss, parameters or statistics stopped being finite; the client changed nothing
    clipped: NDArray[np.float64]  #: [K] fraction of per-record gradients that were clipped (private training)

    @classmethod
    def empty(cls, clients: int) -> LocalDiagnostics:
        """Zeros, before training."""
        return cls(np.zeros(clients), np.zeros(clients, np.bool_), np.zeros(clients))


@dataclass(frozen=True)
class CohortResult:
    """Parameters `[K, d]` after training, with what stays local."""

    parameters: Tensor
    buffers: Buffers  #: running statistics `[K, ...]`, each client's own
    local: LocalDiagnostics


class CohortTrainer:
    """Trains cohorts of one model: what it prepared in one call, the next one finds ready.

    The model is copied at the first call and must not change after it. On a processor that copy and the trial of each
    batch shape are saved; on a GPU the steps recorded in earlier calls are replayed.
    """

    def __init__(
        self, model: nn.Module, *, execution: Execution | None = None, device: torch.device | str = "cpu"
    ) -> None:
        self._model = model
        self._device = torch.device(device)
        if self._device.type == "cuda" and not torch.cuda.is_available():
            raise InvalidInput("a GPU was asked for, but PyTorch finds none here: use device='cpu'")
        if self._device.type == "cuda" and self._device.index is None:
            self._device = torch.device("cuda", torch.cuda.current_device())
        self.execution = execution or (GPU if self._device.type == "cuda" else Execution())
        self._prepared: tuple[Loss, StackedModel] | None = None
        self._rounded: tuple[weakref.ref[Tensor], int, Rounded] | None = None

    def train(
        self,
        parameters: Tensor,
        clients: Sequence[ClientData],
        training: LocalTraining | PrivateTraining,
        randomness: Randomness,
        *,
        buffers: Mapping[str, Tensor] | None = None,
        first_step: int = 0,
    ) -> CohortResult:
        """Train every client from `parameters` (`[d]` for all, or `[K, d]`); row k of `randomness` is client k's.

        `buffers` are the clients' running statistics from an earlier call; `first_step` is where the learning rate's
        decay goes on. A client whose loss or parameters stop being finite is marked as failed and keeps what it came
        with; in private training only its (noised) parameters decide, and a record without a finite gradient counts as
        zero.
        """
        if not clients:
            raise InvalidInput("a cohort needs at least one client")
        stacked = self._stacked(training.loss)
        _check(stacked, clients, training, randomness)
        result = CohortResult(
            _starting_parameters(stacked, parameters, len(clients)),
            _starting_buffers(stacked, buffers, len(clients)),
            LocalDiagnostics.empty(len(clients)),
        )
        by_size = np.argsort([len(client) for client in clients], kind="stable")
        for first in range(0, len(clients), stacked.execution.width):
            rows = by_size[first : first + stacked.execution.width]
            records = self._records(stacked, rows, clients, training)
            _Chunk(stacked, records, randomness, result).train(training, first_step)
        return result

    def noisy_sums(
        self,
        parameters: Tensor,
        clients: Sequence[ClientData | None],
        training: PrivateTraining,
        randomness: Randomness,
    ) -> tuple[Tensor, LocalDiagnostics]:
        """One step's noisy sums `[K, d]` in whole grid steps, for those who send these and nothing made of them.

        Clients without records (None) have their noise alone.
        """
        local = LocalDiagnostics.empty(len(clients))
        sums = torch.zeros(len(clients), parameters.numel(), dtype=torch.int64, device=self._device)
        there = [k for k, data in enumerate(clients) if data is not None]
        own = [data for data in clients if data is not None]
        if own:
            stacked = self._stacked(training.loss)
            _check(stacked, own, training, _Part(randomness, np.array(there)))
            start = _starting_parameters(stacked, parameters, len(own))
            for first in range(0, len(own), stacked.execution.width):
                rows = np.arange(first, min(first + stacked.execution.width, len(own)))
                records = self._records(stacked, rows, own, training)
                found = private_sgd.integer_sums(
                    stacked, training, start[rows], records, _Part(randomness, np.array(there)), 0
                )
                where = np.array(there)[rows]
                sums[where] = found.sums
                local.loss[where] = found.losses.cpu().numpy() / np.maximum(found.samples, 1)
                local.clipped[where] = found.clipped.cpu().numpy() / np.maximum(found.samples, 1)
        return private_sgd.noisy_sums(training, sums, np.arange(len(clients)), randomness, 0), local

    def _records(
        self,
        stacked: StackedModel,
        rows: Rows,
        clients: Sequence[ClientData],
        training: LocalTraining | PrivateTraining,
    ) -> Records:
        """The records of some clients, one client's after another's.

        A client by itself comes again with the same records: of a linear model, their whole vectors are kept.
        """
        own = [clients[k] for k in rows]
        sizes = np.array([len(client) for client in own])
        x, y = (_joined(parts, stacked.device) for parts in ([c.x for c in own], [c.y for c in own]))
        records = Records(x, y, np.concatenate([[0], np.cumsum(sizes)[:-1]]), sizes, rows)
        if len(clients) > 1 or not isinstance(training, PrivateTraining):
            return records
        head, clip = private_sgd.head_of(stacked, training), training.grid(stacked.size).clip
        if head is None:
            return records
        if self._rounded is None or self._rounded[0]() is not own[0].x or self._rounded[1] != clip:
            self._rounded = weakref.ref(own[0].x), clip, head.rounded(x, clip)
        return replace(records, rounded=self._rounded[2])

    def _stacked(self, loss: Loss) -> StackedModel:
        """Prepared for this loss; another one takes its place."""
        if self._prepared is None or self._prepared[0] is not loss:
            self._prepared = loss, StackedModel(self._model, loss, self.execution, self._device)
        return self._prepared[1]


class _Chunk:
    """A few clients at work together: rows `rows` of the cohort's result and of its randomness."""

    def __init__(
        self,
        stacked: StackedModel,
        records: Records,
        randomness: Randomness,
        result: CohortResult,
    ) -> None:
        self._stacked, self._randomness, self._result = stacked, randomness, result
        self._records, rows, sizes = records, records.rows, records.sizes
        self._where = stacked.upload(rows)
        self._parameters = stacked.at_home(result.parameters[self._where])
        self._buffers = {name: value[self._where] for name, value in result.buffers.items()}
        self._loss = torch.zeros(len(rows), dtype=torch.float64, device=stacked.device)
        self._seen = np.zeros(len(rows), np.int64)
        self._order = np.empty((len(rows), int(sizes.max())), np.int64)

    def train(self, training: LocalTraining | PrivateTraining, first_step: int) -> None:
        descent = Descent(training.optimizer, self._parameters, self._stacked.sizes, first_step)
        if isinstance(training, PrivateTraining):
            self._train_privately(training, descent)
            # The losses are not noised: whether they are finite must not decide what is handed in.
            self._hand_in(_finite(self._parameters))
        else:
            self._train_plainly(training, descent)
            self._hand_in(_finite(self._parameters) & torch.isfinite(self._loss))

    def _train_plainly(self, training: LocalTraining, descent: Descent) -> None:
        sizes = self._records.sizes
        total = np.array([training.total_steps(int(n)) for n in sizes])
        epoch_steps = np.array([len(training.batches(int(n))) for n in sizes])
        full = np.minimum(training.batch_size or sizes, sizes)
        taken = np.zeros_like(total)
        draws_in_steps = self._stacked.mask_words > 0 or self._stacked.draws or training.augmentation is not None
        in_step = training.optimizer.counts_steps or draws_in_steps
        while len(active := np.flatnonzero(taken < total)):
            place = taken[active] % epoch_steps[active]
            self._begin_epochs(active[place == 0], taken // epoch_steps, training.shuffle)
            size = np.minimum(full[active], sizes[active] - place * full[active])
            # Where the number of a step says nothing, last and smaller batches wait until others have come to theirs.
            whole = size == full[active]
            now = np.arange(len(active)) if in_step or not whole.any() else np.flatnonzero(whole)
            for group in draws.alike(size[now], full[active[now]]):
                chosen = now[group]
                members, batch = active[chosen], int(size[chosen[0]])
                columns = (place[chosen] * full[members])[:, None] + np.arange(batch)
                t = int(taken[members[0]])
                self._step(training, descent, t, members, self._order[members[:, None], columns], int(full[members[0]]))
            taken[active[now]] += 1

    def _begin_epochs(self, members: Rows, epoch: NDArray[np.int64], shuffle: bool) -> None:
        """The order in which members of the chunk go through their records in the epoch that they begin."""
        if not len(members):
            return
        records = self._records
        for group in draws.alike(records.sizes[members], epoch[members]):
            who = members[group]
            n = int(records.sizes[who[0]])
            order = np.arange(n)[None]
            if shuffle:
                order = draws.orders(self._randomness, records.rows[who], int(epoch[who[0]]), n)
            self._order[who, :n] = order + records.starts[who, None]

    def _step(
        self, training: LocalTraining, descent: Descent, t: int, members: Rows, chosen: NDArray[np.int64], full: int
    ) -> None:
        batch = self._batch(training, t, self._records.rows[members], chosen, full)
        everyone = len(members) == len(self._loss)
        rows = None if everyone else self._stacked.upload(members)
        parameters = self._parameters if rows is None else self._parameters[rows]
        buffers = self._buffers if rows is None else {name: value[rows] for name, value in self._buffers.items()}
        gradient, loss = self._stacked.gradients(parameters, buffers, batch)
        descent.step(gradient, t, rows)
        self._loss[slice(None) if rows is None else rows] += loss.double() * chosen.shape[1]
        self._seen[members] += chosen.shape[1]
        if rows is not None:
            for name, value in buffers.items():
                self._buffers[name][rows] = value

    def _batch(self, training: LocalTraining, t: int, rows: Rows, chosen: NDArray[np.int64], full: int) -> Batch:
        """The chosen records `[w, B]`, augmented, with their dropout masks."""
        records, shape = self._records, chosen.shape
        index = self._stacked.upload(chosen.reshape(-1))
        x, y = records.x.index_select(0, index), records.y.index_select(0, index)
        if training.augmentation is not None:
            each = training.augmentation.draws
            words = draws.draw(self._randomness, rows, Stream.AUGMENT, t, shape[1] * each, full * each)
            uniforms = self._stacked.upload(draws.uniforms(words).reshape(-1, each))
            x = training.augmentation(x, uniforms)
        masks: tuple[Tensor, ...] = ()
        if each := self._stacked.mask_words:
            words = draws.draw(self._randomness, rows, Stream.DROPOUT, t, shape[1] * each, full * each)
            masks = self._stacked.masks(words.reshape(*shape, each))
        seeds = draws.seeds(self._randomness, rows, t) if self._stacked.draws else ()
        return Batch(x.view(*shape, *x.shape[1:]), y.view(*shape, *y.shape[1:]), masks, seeds)

    def _train_privately(self, training: PrivateTraining, descent: Descent) -> None:
        clipped = torch.zeros_like(self._loss)
        for t in range(training.steps):
            found = private_sgd.integer_sums(
                self._stacked, training, self._parameters, self._records, self._randomness, t
            )
            noisy = private_sgd.noisy_sums(training, found.sums, self._records.rows, self._randomness, t)
            descent.step(private_sgd.gradient_of(training, noisy), t)
            self._loss += found.losses
            self._seen += found.samples
            clipped += found.clipped
        self._result.local.clipped[self._records.rows] = clipped.cpu().numpy() / np.maximum(self._seen, 1)

    def _hand_in(self, finite: Tensor) -> None:
        """Results of the clients that stayed finite; the others keep what they came with and are marked."""
        for value in self._buffers.values():
            finite = finite & _finite(value.reshape(len(finite), -1))
        every = bool(finite.all())  # then nothing is copied to be picked from
        kept = self._where if every else self._where[finite]
        self._result.parameters[kept] = self._parameters if every else self._parameters[finite]
        for name, value in self._buffers.items():
            self._result.buffers[name][kept] = value if every else value[finite]
        local, rows = self._result.local, self._records.rows
        local.loss[rows] = self._loss.cpu().numpy() / np.maximum(self._seen, 1)
        local.failed[rows] = ~finite.cpu().numpy()


@dataclass(frozen=True)
class _Part:
    """The randomness of some of a cohort's clients."""

    whole: Randomness
    rows: Rows

    @property
    def clients(self) -> int:
        return len(self.rows)

    def words(self, rows: Rows, purpose: int, tensor: int, first: int, count: int) -> Words:
        return self.whole.words(self.rows[rows], purpose, tensor, first, count)


def _check(
    stacked: StackedModel,
    clients: Sequence[ClientData],
    training: LocalTraining | PrivateTraining,
    randomness: Randomness,
) -> None:
    """Refuse what cannot be trained, before any work."""
    if randomness.clients != len(clients):
        raise InvalidInput(f"randomness is for {randomness.clients} clients, but the cohort has {len(clients)}")
    kinds = {(tuple(c.x.shape[1:]), c.x.dtype, tuple(c.y.shape[1:]), c.y.dtype) for c in clients}
    if len(kinds) > 1:
        raise InvalidInput(f"all clients of a cohort need records and labels of one shape and dtype, got {kinds}")
    if isinstance(training, PrivateTraining):
        like = clients[0].x
        stacked.try_out(probes(like.shape[1:], like.dtype))  # no record decides about what is refused
        stacked.check_independent_records()
    else:
        sizes = sorted({size for n in {len(c) for c in clients} for size in training.batches(n)})
        for size in {sizes[0], sizes[-1]}:
            donor = next(c for c in clients if len(c) >= size)
            stacked.try_out(donor.x[:size])


def _finite(rows: Tensor) -> Tensor:
    """Which rows of `[w, n]` are finite throughout: those with a finite sum, and those with an overflowing one."""
    sums = torch.isfinite(rows.sum(dim=1))
    return sums if bool(sums.all()) else torch.isfinite(rows).all(dim=1)


def _joined(parts: Sequence[Tensor], device: torch.device) -> Tensor:
    """Records of several clients one after another on the device, without a second copy in the processor's memory."""
    if all(part.device == device for part in parts):
        return torch.cat(list(parts))
    sizes = [len(part) for part in parts]
    joined = torch.empty(sum(sizes), *parts[0].shape[1:], dtype=parts[0].dtype, device=device)
    for piece, part in zip(torch.split(joined, sizes), parts, strict=True):
        piece.copy_(part)
    return joined


def _starting_parameters(stacked: StackedModel, parameters: Tensor, clients: int) -> Tensor:
    given = torch.as_tensor(parameters)
    if given.dtype != torch.float32 or tuple(given.shape) not in ((stacked.size,), (clients, stacked.size)):
        raise InvalidInput(
            f"parameters must be float32 [{stacked.size}] or [{clients}, {stacked.size}], "
            f"got {given.dtype} {list(given.shape)}"
        )
    if not _finite(given.reshape(-1, stacked.size)).all():
        raise InvalidInput("parameters to start from must be finite")
    return given.detach().to(stacked.device).expand(clients, stacked.size).clone()


def _starting_buffers(stacked: StackedModel, given: Mapping[str, Tensor] | None, clients: int) -> Buffers:
    own = stacked.initial_buffers(clients)
    if given is None:
        return own
    if set(given) != set(own) or any(given[name].shape != value.shape for name, value in own.items()):
        wanted = {name: list(value.shape) for name, value in own.items()}
        raise InvalidInput(f"buffers of these {clients} clients must be {wanted}, as an earlier call returned them")
    return {name: value.detach().to(stacked.device).clone() for name, value in given.items()}


__all__ = ["ClientData", "CohortResult", "CohortTrainer", "LocalDiagnostics", "LocalTraining"]

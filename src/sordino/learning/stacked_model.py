"""One model computed for many clients along a leading axis: gradients of stacked parameters, state kept per client.

The flat vector `[d]` holds the trainable parameters in `named_parameters` order; K of them are `[K, d]`. Buffers that
training changes (running statistics of batch norm) are stacked beside them, one row per client. A model with dropout
takes its masks as a second argument and says how to make them (`TakesMasks`).

What PyTorch cannot compute for many clients at once (LSTM and GRU, code that branches on data) is computed in a loop,
one client after the other. So is a model that draws from PyTorch's global generator (`nn.Dropout`): each client's
generator is seeded in every step from its own stream.

Batch norm works in training mode, with or without tracked statistics; `momentum=None` is refused, as its cumulative
average needs a number that differs between clients.
"""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import vmap
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase as TracksStatistics

from sordino.errors import InvalidInput
from sordino.learning.alone import Alone
from sordino.learning.layer_chain import LayerChain, cross_entropy_slope
from sordino.learning.layers import ClientKernels
from sordino.learning.models import Loss, Network, call, cross_entropy, parameter_layout, set_training, torch_seed
from sordino.learning.replay import Output, Replayer
from sordino.privacy.guarantee import check_count
from sordino.randomness import Words

Buffers = dict[str, Tensor]
LEAST_WIDTH = 2  #: a batch of one client takes other kernels, whose last bits differ


@runtime_checkable
class TakesMasks(Protocol):
    """A model with dropout: `forward(x, masks)`, where `masks(words [..., mask_words])` are made from random words."""

    @property
    def mask_words(self) -> int: ...

    def masks(self, words: Words) -> tuple[Tensor, ...]: ...


@dataclass(frozen=True)
class Execution:
    """How a cohort is computed: `width` copies of the model at a time (1: a plain loop), with which convolutions.

    `unfolded=False` are PyTorch's; otherwise they are ours, which on a GPU with Triton need no unfolding.

    On a processor a client's result is the same to the last bit for every width from 2 up, but differs from a loop's by
    rounding: choose once for a run, and keep the choice with it. The promise holds for unfolded convolutions only:
    PyTorch's own pick their algorithm by the number of clients where networks are large. On AMD's processors it needs
    MKL_CBWR=AUTO in the environment, which importing `sordino.learning` sees to unless PyTorch has multiplied before.
    Figures of simulations rest on that, and no proof does: real clients compute each record alone.
    """

    width: int = 16
    unfolded: bool = True

    def __post_init__(self) -> None:
        check_count("width", self.width)


LOOP = Execution(width=1, unfolded=False)
GPU = Execution(width=128)  #: a GPU is idle with fewer; its memory holds as many of the papers' networks


@dataclass(frozen=True)
class Batch:
    """What w clients learn from in one step: records `[w, B, ...]`, labels `[w, B]` and dropout masks `[w, B, ...]`.

    Of a model that draws by itself, `seeds [w]` start each client's generator.
    """

    x: Tensor
    y: Tensor
    masks: tuple[Tensor, ...] = ()
    seeds: tuple[int, ...] = ()

    def rows(self, index: Tensor | slice) -> Batch:
        """The records, labels and masks of some of the clients."""
        return Batch(self.x[index], self.y[index], tuple(mask[index] for mask in self.masks))


class StackedModel:
    """A private copy of a model, in training mode, whose parameters and changing buffers are handed in."""

    def __init__(self, model: nn.Module, loss: Loss, execution: Execution, device: torch.device) -> None:
        self._model = copy.deepcopy(model).to(device)
        set_training(self._model)
        self._loss = loss
        self.execution = execution
        self._kernels = ClientKernels(execution.unfolded, gpu=device if device.type == "cuda" else None)
        self._replayer = Replayer() if device.type == "cuda" else None
        layout = parameter_layout(self._model)
        self.shapes = dict(zip(layout.names, layout.shapes, strict=True))
        self.sizes = dict(zip(layout.names, layout.sizes, strict=True))
        self.size = layout.size
        self.device = device
        self._chain = LayerChain.of(self._model) if device.type == "cpu" and execution.unfolded else None
        self._gradient, self._found = torch.empty(0, self.size), dict[str, Tensor]()  # of the chain's last step
        #: how many random words the dropout masks of one record take
        self.mask_words = self._model.mask_words if isinstance(self._model, TakesMasks) else 0
        self.draws = False  #: whether the model draws from PyTorch's global generator
        self._changing: tuple[str, ...] = ()
        self._tried: set[tuple[torch.Size, torch.dtype]] = set()
        for parameter in self._model.parameters():
            parameter.requires_grad_(False)

    @cached_property
    def alone(self) -> Alone:
        """Computes one record after another."""
        return Alone(self._model)

    @property
    def model(self) -> nn.Module:
        """The private copy; its own parameters are not used."""
        return self._model

    def masks(self, words: Words) -> tuple[Tensor, ...]:
        """The dropout masks of records, from `[..., mask_words]` words."""
        made = self._model.masks(words) if isinstance(self._model, TakesMasks) else ()
        return tuple(self.upload(mask.numpy()) for mask in made)

    def upload(self, values: NDArray[np.generic]) -> Tensor:
        """The values on the device; the processor does not wait until a GPU has taken them."""
        here = torch.from_numpy(values)
        return here if self.device.type == "cpu" else here.pin_memory().to(self.device, non_blocking=True)

    def try_out(self, x: Tensor) -> None:
        """Find what training on batches such as `x` changes and draws, and refuse what cannot work.

        What cannot be computed for many clients at once has `execution = LOOP` from here on.
        """
        if (x.shape, x.dtype) in self._tried:
            return
        for name, part in self._model.named_modules():
            averages = isinstance(part, TracksStatistics) and part.training and part.track_running_stats
            if averages and part.momentum is None:
                raise InvalidInput(f"{name}: a cumulative average (momentum=None) is not supported; set momentum=0.1")
        before = {name: value.clone() for name, value in self._model.named_buffers()}
        drawn = _generators(self.device)
        try:
            with torch.no_grad():
                self._model(x.to(self.device))
        except (RuntimeError, ValueError, TypeError) as error:
            raise InvalidInput(
                f"the model cannot compute a batch of shape {list(x.shape)}: {error}. Check the shape of the records; "
                "batch norm needs more than one record in every batch (see drop_last)"
            ) from error
        self.draws |= not all(map(torch.equal, drawn, _generators(self.device)))
        _set_generators(drawn, self.device)
        self._changing = self._changed_since(before)
        alone = self.draws or getattr(self._loss, "one_by_one", False)
        if self.execution.width > 1 and (alone or not self._vectorises(x)):
            self.execution = LOOP
        self._tried.add((x.shape, x.dtype))

    def _vectorises(self, x: Tensor) -> bool:
        """Whether PyTorch computes the model for several clients at once; networks known by name are made for it."""
        if type(self._model) is Network:
            return True
        records = x.to(self.device).expand(LEAST_WIDTH, *x.shape)
        named = self._named(torch.zeros(LEAST_WIDTH, self.size, device=self.device))
        try:
            with torch.no_grad(), self._on_device(), self._kernels, warnings.catch_warnings():
                warnings.filterwarnings("error", "There is a performance drop")  # PyTorch would loop by itself
                vmap(self._scores)(named, self.initial_buffers(LEAST_WIDTH), records)
        except Exception:  # one client's own records did work
            return False
        return True

    def _changed_since(self, before: Buffers) -> tuple[str, ...]:
        """All buffers of those modules of which one has changed; the copy is put back as it was."""
        now = dict(self._model.named_buffers())
        owners = {name.rpartition(".")[0] for name, value in now.items() if not torch.equal(value, before[name])}
        for name, value in now.items():
            value.copy_(before[name])
        return tuple(name for name in now if name.rpartition(".")[0] in owners)

    def check_independent_records(self) -> None:
        """Refuse a model in which one record's gradient depends on the others: clipping would bound nothing."""
        for name, part in self._model.named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.training:
                raise InvalidInput(
                    f"{name}: batch norm mixes the records of a batch, so that clipping does not bound the influence "
                    "of one of them: use group norm (nn.GroupNorm), layer norm or none"
                )
        if self.draws:
            raise InvalidInput(
                "private training computes the gradient of one record, and the model draws random numbers beside it "
                "(nn.Dropout?): set its dropout to 0, or build it as sordino.learning.models.Network with MaskedDropout"
            )
        if self._changing:
            raise InvalidInput(
                f"private training would write the records' statistics into buffers ({', '.join(self._changing)}) "
                "without noise: use layers without state"
            )

    def initial_buffers(self, clients: int) -> Buffers:
        """The buffers that training changes, as the model has them, one row per client."""
        own = dict(self._model.named_buffers())
        return {name: own[name].expand(clients, *own[name].shape).clone() for name in self._changing}

    def at_home(self, parameters: Tensor) -> Tensor:
        """Parameters `[w, d]` of those who train next, where no step has to copy them first."""
        if self._replayer is None:
            return parameters
        with self._enough_memory(len(parameters)):
            return self._replayer.home(parameters)

    def gradients(self, parameters: Tensor, buffers: Buffers, batch: Batch) -> tuple[Tensor, Tensor]:
        """Gradients `[w, d]` and mean losses `[w]` of w clients; their buffers `[w, ...]` change in place.

        They are valid until the next call.
        """
        if self.device.type == "cpu":
            return self._for_each(parameters, buffers, batch)
        with self._enough_memory(len(parameters)), self._on_device(), _whole_precision():
            return self._for_each(parameters, buffers, batch)

    def _on_device(self) -> AbstractContextManager[object]:
        """Triton starts its kernels on the GPU that is the current one, wherever their arrays are."""
        return torch.cuda.device(self.device) if self.device.type == "cuda" else nullcontext()

    @contextmanager
    def _enough_memory(self, clients: int) -> Iterator[None]:
        try:
            yield
        except torch.OutOfMemoryError as error:
            raise InvalidInput(
                f"{clients} clients at once do not fit into the GPU's memory: "
                f"use execution=Execution({max(LEAST_WIDTH, clients // 2)}) or fewer"
            ) from error

    def _for_each(self, parameters: Tensor, buffers: Buffers, batch: Batch) -> tuple[Tensor, Tensor]:
        if self.execution.width == 1:
            return self._one_by_one(parameters, buffers, batch)
        if len(parameters) >= LEAST_WIDTH:
            return self._many(parameters, buffers, batch)
        twice = torch.zeros(LEAST_WIDTH, dtype=torch.long, device=self.device)
        copies = {name: value[twice] for name, value in buffers.items()}
        gradient, loss = self._many(parameters[twice], copies, batch.rows(twice))
        for name, value in copies.items():
            buffers[name][:1] = value[:1]
        return gradient[:1], loss[:1]

    def _many(self, parameters: Tensor, buffers: Buffers, batch: Batch) -> tuple[Tensor, Tensor]:
        if self._chain is not None:
            if len(self._gradient) != len(parameters):
                self._gradient = torch.empty_like(parameters)
                self._found = self._named(self._gradient)
            tensors, slope = {**self._named(parameters), **buffers}, partial(self._slope, labels=batch.y)
            return self._gradient, self._chain.gradients(tensors, batch.x, batch.masks, slope, self._found)
        if self._replayer is None:
            pieces, loss = self._pieces(parameters, buffers, batch)
            return torch.cat(pieces, dim=1), loss
        own = [buffers[name] for name in self._changing]
        inputs = (parameters, batch.x, batch.y, *own, *batch.masks)
        gradient, loss, *changed = self._replayer.run(self._gradients_of, inputs)
        for before, after in zip(own, changed, strict=True):
            before.copy_(after)
        return gradient, loss

    def _slope(self, scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        """The gradient of each client's loss by its scores `[w, B, ...]`, and the losses `[w]`."""
        classes = labels.dtype == torch.int64 and labels.ndim == 2  # others may be probabilities
        if classes and self._loss in (cross_entropy, functional.cross_entropy):
            return cross_entropy_slope(scores, labels)
        with self._kernels:
            leaf = scores.detach().requires_grad_()  # the chain still needs the scores as they are
            loss = vmap(self._loss)(leaf, labels)
        (gradient,) = torch.autograd.grad(loss.sum(), leaf)
        return gradient, loss.detach()

    def _gradients_of(self, inputs: Sequence[Tensor]) -> tuple[Output, ...]:
        """The same with all tensors in a row, as a recording has them, and with the buffers that it changes."""
        parameters, x, y, *others = inputs
        buffers = dict(zip(self._changing, others, strict=False))
        pieces, loss = self._pieces(parameters, buffers, Batch(x, y, tuple(others[len(buffers) :])))
        return pieces, loss, *buffers.values()

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        """Views of `[..., d]` as the model's tensors."""
        pieces = torch.split(flat, list(self.sizes.values()), dim=-1)
        lead = flat.shape[:-1]
        return {name: piece.view(*lead, *self.shapes[name]) for name, piece in zip(self.shapes, pieces, strict=True)}

    def _scores(self, named: dict[str, Tensor], buffers: Buffers, x: Tensor, *masks: Tensor) -> Tensor:
        return call(self._model, {**named, **buffers}, (x, masks) if masks else (x,))

    def _one_loss(self, named: dict[str, Tensor], buffers: Buffers, x: Tensor, y: Tensor, *masks: Tensor) -> Tensor:
        return self._loss(self._scores(named, buffers, x, *masks), y)

    def _pieces(self, parameters: Tensor, buffers: Buffers, batch: Batch) -> tuple[list[Tensor], Tensor]:
        """The gradients of all tensors, `[w, n]` each: as clients share nothing, the losses' sum has those of each."""
        named = {name: piece.requires_grad_() for name, piece in self._named(parameters.detach()).items()}
        with self._kernels:
            loss = vmap(self._one_loss)(named, buffers, batch.x, batch.y, *batch.masks)
        found = torch.autograd.grad(loss.sum(), list(named.values()), materialize_grads=True)
        return [g.reshape(len(g), self.sizes[name]) for name, g in zip(named, found, strict=True)], loss.detach()

    def _one_by_one(self, parameters: Tensor, buffers: Buffers, batch: Batch) -> tuple[Tensor, Tensor]:
        """Plain autograd, one client after the other: what a real client computes."""
        gradient, losses = torch.empty_like(parameters), parameters.new_empty(len(parameters))
        for row in range(len(parameters)):
            # a leaf for each tensor: gradients of one flat leaf would be joined, and copied once more
            leaves = {name: part.detach().requires_grad_() for name, part in self._named(parameters[row]).items()}
            own = {name: value[row] for name, value in buffers.items()}
            one = batch.rows(slice(row, row + 1))
            with torch_seed(batch.seeds[row], self.device) if batch.seeds else nullcontext():
                loss = self._one_loss(leaves, own, one.x[0], one.y[0], *(mask[0] for mask in one.masks))
            found = torch.autograd.grad(loss, tuple(leaves.values()), materialize_grads=True)
            for place, part in zip(self._named(gradient[row]).values(), found, strict=True):
                place.copy_(part)
            losses[row] = loss.detach()
        return gradient, losses


@contextmanager
def _whole_precision() -> Iterator[None]:
    """PyTorch lets a GPU's convolutions round their factors to 10 bits (TF32); its matrix products it does not."""
    convolutions: Any = torch.backends.cudnn.conv  # type: ignore[attr-defined]
    before = convolutions.fp32_precision
    convolutions.fp32_precision = "ieee"
    try:
        yield
    finally:
        convolutions.fp32_precision = before


def _generators(device: torch.device) -> list[Tensor]:
    """The states of PyTorch's global generators."""
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def _set_generators(states: Sequence[Tensor], device: torch.device) -> None:
    torch.set_rng_state(states[0])
    if device.type == "cuda":
        torch.cuda.set_rng_state(states[1], device)


def probes(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> Tensor:
    """Two public records `[2, ...]` of different values in [0, 1), to try a model with."""
    size = math.prod(shape)
    ramp = torch.arange(size) / size
    return torch.stack([ramp, ramp.flip(0) * 0.75]).view(2, *shape).to(dtype)


def is_computed_side_by_side(model: nn.Module, batch_shape: Sequence[int]) -> bool:
    """Whether many clients are computed at once on batches of this shape `[B, ...]`, or one after the other."""
    stacked = StackedModel(model, lambda scores, _: scores.mean(), Execution(LEAST_WIDTH), torch.device("cpu"))
    stacked.try_out(torch.zeros(*batch_shape))
    return stacked.execution != LOOP


WIDTHS = (4, 8, 16, 32, 64, 128)
GPU_WIDTHS = (32, 64, 128, 256, 512)


def choose_width(
    model: nn.Module,
    batch_shape: Sequence[int],
    budget_seconds: float = 1.0,
    device: torch.device | str = "cpu",
) -> Execution:
    """The fastest way to compute this model on batches of this shape `[B, ...]`, by a short measurement here and now.

    For private training, whose gradients are those of single records, B is 1. Timings vary from run to run, and with
    them the choice: a run that must be repeated exactly keeps the choice it began with.
    """
    x = torch.linspace(-1, 1, math.prod(batch_shape), device=device).view(*batch_shape)
    widths = WIDTHS if x.device.type == "cpu" else GPU_WIDTHS
    share = budget_seconds / (len(widths) + 1)
    rates = {LOOP: _records_per_second(model, x, LOOP, share)}
    for execution in (Execution(width) for width in widths):
        try:
            rates[execution] = _records_per_second(model, x, execution, share)
        except InvalidInput:
            break
        if rates[execution] < 0.6 * max(rates.values()):
            break
    return max(rates, key=lambda execution: rates[execution])


def _records_per_second(model: nn.Module, x: Tensor, execution: Execution, seconds: float) -> float:
    stacked = StackedModel(model, lambda scores, _: scores.square().mean(), execution, x.device)
    stacked.try_out(x)
    if stacked.execution != execution:
        return 0.0
    width = execution.width
    parameters, buffers = torch.zeros(width, stacked.size, device=x.device), stacked.initial_buffers(width)
    seeds = (0,) * width if stacked.draws else ()
    batch = Batch(x.expand(width, *x.shape), x.new_zeros(width, len(x)), seeds=seeds)
    stacked.gradients(parameters, buffers, batch)
    best, until = math.inf, time.perf_counter() + seconds
    while True:
        began = time.perf_counter()
        stacked.gradients(parameters, buffers, batch)[1].sum().item()
        now = time.perf_counter()
        best = min(best, now - began)
        if now > until:
            return width * len(x) / best


__all__ = [
    "GPU", "LOOP", "Batch", "Buffers", "Execution", "Loss", "StackedModel", "TakesMasks", "choose_width",
    "is_computed_side_by_side", "probes",
]  # fmt: skip

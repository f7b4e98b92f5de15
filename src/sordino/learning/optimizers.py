"""The optimisers of the papers on flat parameters `[K, d]`: one row per client, and no row ever sees another.

Each follows the definition of `torch.optim` and agrees with it to rounding. For RMSprop that differs from Keras in its
defaults only (Keras: rho 0.9 and epsilon 1e-7). Weight decay is added to the gradient (L2 regularisation), as in
`torch.optim`. `decay` divides the learning rate by 1 + decay * t at step t = 0, 1, ...: the schedule of older Keras
versions, and with lr = 1 / (alpha t0) and decay = 1 / t0 the "optimal" one of scikit-learn's `SGDClassifier`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import torch
from torch import Tensor
from torch.optim.adam import adam

from sordino.errors import InvalidInput

State = dict[str, Tensor]


@dataclass(frozen=True)
class WeightDecay:
    """L2 regularisation of all tensors, or of those whose names fit one of the patterns (`conv*`, `*.weight`)."""

    rate: float
    tensors: tuple[str, ...] = ("*",)

    def per_value(self, sizes: Mapping[str, int]) -> float | Tensor:
        """The rate of every value of the flat vector: one number where all tensors are decayed alike."""
        chosen = [any(fnmatchcase(name, pattern) for pattern in self.tensors) for name in sizes]
        if not any(chosen):
            raise InvalidInput(f"weight decay fits no tensor: patterns {list(self.tensors)}, tensors {list(sizes)}")
        if all(chosen) or not self.rate:
            return float(self.rate)
        return torch.cat([torch.full((n,), self.rate * c) for n, c in zip(sizes.values(), chosen, strict=True)])


@dataclass(frozen=True)
class Optimizer(ABC):
    """A rule that moves parameters `[K, d]` in place; its state has one row per client as well."""

    lr: float
    weight_decay: float | WeightDecay = 0.0
    decay: float = 0.0  #: the learning rate of step t is lr / (1 + decay * t)

    @property
    def counts_steps(self) -> bool:
        """Whether a step depends on how many came before it, and not on the state alone."""
        return self.decay > 0

    @abstractmethod
    def start(self, parameters: Tensor) -> State:
        """The state before the first step."""

    @abstractmethod
    def step(self, parameters: Tensor, gradient: Tensor, state: State, t: int, lr: float) -> None:
        """Step t = 0, 1, ... of every row with learning rate lr; the gradient may be overwritten."""


@dataclass(frozen=True)
class SGD(Optimizer):
    """`torch.optim.SGD`: momentum (Nesterov's if asked), no dampening."""

    momentum: float = 0.0
    nesterov: bool = False

    def start(self, parameters: Tensor) -> State:
        return {"velocity": torch.zeros_like(parameters)} if self.momentum else {}

    def step(self, parameters: Tensor, gradient: Tensor, state: State, t: int, lr: float) -> None:
        if self.momentum:
            velocity = state["velocity"].mul_(self.momentum).add_(gradient)
            gradient = gradient.add_(velocity, alpha=self.momentum) if self.nesterov else velocity
        parameters.add_(gradient, alpha=-lr)


@dataclass(frozen=True)
class Adam(Optimizer):
    """`torch.optim.Adam`, without AMSGrad."""

    betas: tuple[float, float] = (0.9, 0.999)
    epsilon: float = 1e-8

    @property
    def counts_steps(self) -> bool:
        return True

    def start(self, parameters: Tensor) -> State:
        return {"mean": torch.zeros_like(parameters), "square": torch.zeros_like(parameters)}

    def step(self, parameters: Tensor, gradient: Tensor, state: State, t: int, lr: float) -> None:
        first, second = self.betas
        if parameters.is_cuda:
            _one_pass(self, parameters, gradient, state, t, lr)
            return
        mean = state["mean"].lerp_(gradient, 1 - first)
        square = state["square"].mul_(second).addcmul_(gradient, gradient, value=1 - second)
        root = square.sqrt().div_(math.sqrt(1 - second ** (t + 1))).add_(self.epsilon)
        parameters.addcdiv_(mean, root, value=-lr / (1 - first ** (t + 1)))


def _one_pass(given: Adam, parameters: Tensor, gradient: Tensor, state: State, t: int, lr: float) -> None:
    """Adam's step in one kernel: a GPU reads and writes each array once."""
    done = torch.full((), float(t), device=parameters.device)
    adam(
        [parameters], [gradient], [state["mean"]], [state["square"]], [], [done], fused=True, amsgrad=False,
        beta1=given.betas[0], beta2=given.betas[1], lr=lr, weight_decay=0.0, eps=given.epsilon, maximize=False,
    )  # fmt: skip


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """`torch.optim.RMSprop`, not centred; `rho` is its `alpha`."""

    rho: float = 0.99
    epsilon: float = 1e-8
    momentum: float = 0.0

    def start(self, parameters: Tensor) -> State:
        names = ("square", "velocity") if self.momentum else ("square",)
        return {name: torch.zeros_like(parameters) for name in names}

    def step(self, parameters: Tensor, gradient: Tensor, state: State, t: int, lr: float) -> None:
        square = state["square"].mul_(self.rho).addcmul_(gradient, gradient, value=1 - self.rho)
        root = square.sqrt().add_(self.epsilon)
        if self.momentum:
            parameters.add_(state["velocity"].mul_(self.momentum).addcdiv_(gradient, root), alpha=-lr)
        else:
            parameters.addcdiv_(gradient, root, value=-lr)


class Descent:
    """One optimiser at work on the rows of a cohort: it keeps their state and moves `parameters [w, d]` in place."""

    def __init__(self, optimizer: Optimizer, parameters: Tensor, sizes: Mapping[str, int], first_step: int = 0) -> None:
        self.parameters = parameters
        self._optimizer = optimizer
        self._state = optimizer.start(parameters)
        self._first_step = first_step
        decay = optimizer.weight_decay
        rates = (decay if isinstance(decay, WeightDecay) else WeightDecay(decay)).per_value(sizes)
        self._rates = rates.to(parameters.device) if isinstance(rates, Tensor) else rates

    def step(self, gradient: Tensor, t: int, rows: Tensor | None = None) -> None:
        """Step t of the given rows (of all if none are named)."""
        if rows is None:
            self._move(self.parameters, gradient, self._state, t)
            return
        parameters, state = self.parameters[rows], {name: value[rows] for name, value in self._state.items()}
        self._move(parameters, gradient, state, t)
        self.parameters[rows] = parameters
        for name, value in state.items():
            self._state[name][rows] = value

    def _move(self, parameters: Tensor, gradient: Tensor, state: State, t: int) -> None:
        if isinstance(self._rates, Tensor):
            gradient = torch.addcmul(gradient, parameters, self._rates)
        elif self._rates:
            gradient = gradient.add(parameters, alpha=self._rates)
        lr = self._optimizer.lr / (1 + self._optimizer.decay * (self._first_step + t))
        self._optimizer.step(parameters, gradient, state, t, lr)


__all__ = ["SGD", "Adam", "Descent", "Optimizer", "RMSprop", "State", "WeightDecay"]

"""What a method is: the server's side (init, plan, tally, update) and the client's side (releases, report).

A method is pure: state in, state out, randomness handed in. It never sees channels, fleets or ledgers. What a report
tells of its client (`releases`) follows from the plan alone, so a ledger can refuse before any data is touched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sordino.methods.upload import Draw, Tally
from sordino.privacy.guarantee import Release
from sordino.randomness import Randomness
from sordino.wire.messages import Plan

if TYPE_CHECKING:  # reading a recipe must not load PyTorch
    import torch
    from torch import Tensor, nn

    from sordino.learning.cohort import ClientData, CohortTrainer
    from sordino.learning.stacked_model import Execution

Floats = NDArray[np.float32]
Positions = NDArray[np.int64]
ClientState = Mapping[str, NDArray[Any]]  #: what a client keeps from one round to the next, for itself


@dataclass(frozen=True)
class State:
    """The server's state after `round` rounds: the model's parameters `[d]`, and the method's own arrays."""

    round: int
    parameters: Floats
    arrays: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def finite(self) -> bool:
        """Whether every number of it is one."""
        return all(bool(np.isfinite(array).all()) for array in (self.parameters, *self.arrays.values()))

    def after(self, parameters: NDArray[Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> State:
        """The state one round later."""
        own = self.arrays if arrays is None else {name: np.asarray(a, np.float32) for name, a in arrays.items()}
        return State(self.round + 1, np.asarray(parameters, np.float32), own)

    def unchanged(self) -> State:
        """The state after a round that did not count."""
        return replace(self, round=self.round + 1)


@dataclass(frozen=True)
class ModelView:
    """What is evaluated and handed out: parameters `[d]`, and running statistics by name where the server has them."""

    parameters: Floats
    buffers: Mapping[str, Floats] | None = None
    client: int | None = None  #: through whose eyes examples are seen (`Method.seen`); None: as they are


@dataclass(frozen=True)
class Cohort:
    """K clients at work together: their numbers, their data (None: no records) and what they kept.

    Clients that have prepared are handed what they made of their records then, and no longer the records.
    """

    clients: tuple[int, ...]
    data: tuple[ClientData | None, ...]
    states: tuple[ClientState, ...]
    sizes: tuple[int, ...]
    prepared: tuple[ClientState, ...] = ()


def _execution() -> Execution:
    from sordino.learning.stacked_model import Execution

    return Execution()


def _processor() -> torch.device:
    import torch

    return torch.device("cpu")


@dataclass(frozen=True)
class Bench:
    """Where and how a cohort is computed."""

    execution: Execution = field(default_factory=_execution)
    device: torch.device = field(default_factory=_processor)
    _trainers: dict[int, CohortTrainer] = field(default_factory=dict, compare=False, repr=False)

    def trainer(self, model: nn.Module) -> CohortTrainer:
        """What trains this model here; kept, so that what it prepared for one round serves the next."""
        from sordino.learning.cohort import CohortTrainer

        key = id(model)  # the trainer keeps the model, so that no other can get its place
        if key not in self._trainers:
            self._trainers[key] = CohortTrainer(model, execution=self.execution, device=self.device)
        return self._trainers[key]

    def __reduce__(self) -> tuple[Any, ...]:
        """Another process prepares its own."""
        return Bench, (self.execution, self.device)


@dataclass(frozen=True)
class LocalView:
    """What the owners of K clients see and nobody else; in a simulation the researcher is all of them."""

    loss: NDArray[np.float64]  #: [K] mean training loss; NaN for a client without records
    failed: NDArray[np.bool_]  #: [K] training stopped being finite: the client reported "no change"
    clipped: NDArray[np.float64]  #: [K] share of values outside the mechanism's domain
    update: NDArray[np.float64]  #: [K] L2 norm of the update before the mechanism
    largest: NDArray[np.float64]  #: [K] largest absolute value handed to the mechanism


@dataclass(frozen=True)
class Reported:
    """What K clients send, what they keep, and what their owners see."""

    bodies: list[bytes]
    states: tuple[ClientState, ...]
    local: LocalView


class Method(ABC):
    """One algorithm, on both sides of the network."""

    clients: int

    @abstractmethod
    def init(self) -> State:
        """The state before the first round."""

    @abstractmethod
    def select(self, state: State) -> Sequence[int]:
        """Who is asked in the coming round."""

    @abstractmethod
    def plan(self, state: State, federation: str) -> Plan:
        """What is sent to them: the plan of round `state.round + 1`."""

    @abstractmethod
    def tally(self, plan: Plan) -> Tally:
        """An empty sum for the reports on this plan."""

    @abstractmethod
    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        """The state after this round's reports."""

    @abstractmethod
    def view(self, state: State) -> ModelView:
        """The model to evaluate and to hand out."""

    def views(self, state: State, kept: Mapping[int, ClientState]) -> Sequence[ModelView]:
        """The models that are scored, of which the mean is reported: the common one, unless clients have their own.

        `kept` is what each client has kept so far; only a simulation, in which the researcher is all of them, has it.
        """
        return (self.view(state),)

    # --- once, before the first round; most methods have nothing to prepare

    def preparation(self, federation: str) -> Plan | None:
        """What all clients are asked to do before the first round: the plan of round 0, or None for nothing."""
        return None

    def prepare(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Sequence[ClientState]:
        """What each client makes of its records: it is kept unchanged, and all rounds are computed from it alone."""
        raise NotImplementedError(f"{type(self).__name__} has nothing to prepare")

    def seen(
        self, x: Tensor, positions: Positions, client: int, prepared: ClientState, randomness: Randomness
    ) -> NDArray[Any]:
        """Examples `x [n, ...]`, at these positions of an exam, as the model sees them through a client's preparation.

        The randomness is that client's, of round 0, and has one row.
        """
        raise NotImplementedError(f"{type(self).__name__} scores examples as they are")

    # --- in every round

    @abstractmethod
    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        """What a report on this plan tells of its client: one list for every class of clients."""

    @abstractmethod
    def class_of(self, client: int) -> int:
        """The class of a client: clients of one class make the same releases."""

    @abstractmethod
    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        """Train on the clients' data, randomise, encode."""

    def rehearse(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> LocalView:
        """What the owners would see of such a round, without noise in the training: nothing is sent."""
        return self.report(plan, cohort, draw, bench).local


__all__ = [
    "Bench",
    "ClientState",
    "Cohort",
    "LocalView",
    "Method",
    "ModelView",
    "Reported",
    "State",
]  # fmt: skip

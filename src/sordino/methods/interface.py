"""What a method is: the server's side (init, plan, tally, update) and the client's side (releases, report).

A method is pure: state in, state out, randomness handed in. It never sees channels, fleets or ledgers. What a report
tells of its client (`releases`) follows from the plan alone, so a ledger can refuse before any data is touched.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Literal, TypeVar, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino.methods.upload import Draw, Tally, Upload
from sordino.privacy.guarantee import Release
from sordino.randomness import Randomness
from sordino.wire.messages import Plan

if TYPE_CHECKING:  # reading a recipe must not load PyTorch
    import torch
    from torch import Tensor, nn

    from sordino.learning.cohort import ClientData, CohortTrainer, LocalTraining
    from sordino.learning.private_sgd import PrivateTraining
    from sordino.learning.stacked_model import Execution
    from sordino.methods.blueprint import Blueprint

T = TypeVar("T")
Floats = NDArray[np.float32]
Positions = NDArray[np.int64]
Seen = NDArray[np.float32] | NDArray[np.uint8] | NDArray[np.int16]  #: examples as a model takes them
DATASET = "records"  #: what a simulated client calls its data in the ledger
PARAMETERS = "parameters"  #: the array of a plan with the model's parameters
PAST = "past_directions"  #: the array of a state with each client's directions of earlier rounds `[N, d]`
#: what reports are made of: a trained model or its change, parameter by parameter, through a mechanism; the same as it
#: is, for a server that adds the noise; noisy sums over records; a network trained on randomised records; or nothing
ReportContent = Literal["model", "model for a trusted server", "sums over records", "randomised records", "nothing"]
ClientState = Mapping[str, NDArray[np.generic]]  #: what a client keeps from one round to the next, for itself


@dataclass(frozen=True)
class State:
    """The server's state after `round` rounds: the model's parameters `[d]`, and the method's own arrays."""

    round: int
    parameters: Floats
    arrays: Mapping[str, Floats] = field(default_factory=dict)

    @property
    def finite(self) -> bool:
        """Whether all values are finite."""
        return all(bool(np.isfinite(array).all()) for array in (self.parameters, *self.arrays.values()))

    def after(self, parameters: ArrayLike, arrays: Mapping[str, ArrayLike] | None = None) -> State:
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
    _kept: dict[object, tuple[object, object]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def alone(self) -> bool:
        """True if one record is computed at a time, on a processor, as real clients do."""
        return self.execution.width == 1 and self.device.type == "cpu"

    def trainer(self, model: nn.Module) -> CohortTrainer:
        """What trains this model here; kept, so that what it prepared for one round serves the next."""
        from sordino.learning.cohort import CohortTrainer

        key = id(model)  # the trainer keeps the model, so that no other can get its place
        if key not in self._trainers:
            self._trainers[key] = CohortTrainer(model, execution=self.execution, device=self.device)
        return self._trainers[key]

    def keep(self, key: object, stamp: object, make: Callable[[], T]) -> T:
        """What `make` makes of the records with this key: made once, and kept until it is asked for another stamp.

        Nothing is kept of records without a key.
        """
        if key is None:
            return make()
        before, made = self._kept.get(key, (None, None))
        if made is None or before != stamp:
            made = make()
            self._kept[key] = (stamp, made)
        return cast("T", made)

    def keeps(self, key: object) -> bool:
        """Whether anything is kept of the records with this key."""
        return key in self._kept

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle without trainers: another process makes its own."""
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
    """One algorithm, on both sides of the network: clients train a model that the server keeps.

    How clients report and how the server updates the model (`report`, `update`) is each method's own, in the order of
    its paper. `training` is the recipe's plain one unless given.
    """

    graded: nn.Module | None = None  #: what is scored, where it is not the model that is trained
    keeps: ClassVar[bool] = False  #: whether much is kept of records from round to round (`Bench.keep`)
    noisy: ClassVar[bool] = False  #: whether reports are noisy whatever becomes of the training, without a mechanism
    report_content: ClassVar[ReportContent] = "model"  #: decides which attacks fit (docs/attacks.md)
    unproven: str | None = None  #: why nothing is proven of what this method computes of a record, if so
    shows: ClassVar[bool] = False  #: whether examples are scored as `shown` makes them, the same for all clients

    def __init__(
        self, blueprint: Blueprint, upload: Upload, training: LocalTraining | PrivateTraining | None = None
    ) -> None:
        self.spec = blueprint.recipe.method  #: the method's table
        self.clients = blueprint.clients
        self.first_upload = upload  #: how values leave a client in the first round
        self.model, self.statistics = blueprint.model, blueprint.statistics
        self.training = training or blueprint.local_training
        #: records in a batch, and about how many records all clients together train on in a round
        self.batch, self.records_per_round = self.training.effort(blueprint.sizes)
        self._initial, self._seed = blueprint.initial, blueprint.recipe.seed
        asked = self.spec.selection.asked(self.clients)
        self.spec.aggregation.check_room(asked, self.clients, blueprint.values)

    # --- server

    def init(self) -> State:
        """The state before the first round."""
        start = self.statistics
        arrays = {name: start.start[name].numpy().astype(np.float32) for name in start.released}
        if self.spec.aggregation.remembers:
            arrays[PAST] = np.zeros((self.clients, self.first_upload.values), np.float32)
        return State(0, self._initial.astype(np.float32), arrays)

    def select(self, state: State) -> Sequence[int]:
        """Who is asked in the coming round."""
        chosen: Sequence[int] = self.spec.selection.choose(self.clients, self._seed, state.round + 1)
        return chosen

    def plan(self, state: State, federation: str) -> Plan:
        """What is sent to them: the plan of round `state.round + 1`."""
        norm = self.first_upload.norm
        announced = {} if norm is None else {"norm": repr(norm)}  # a text: numbers are written differently elsewhere
        statistics = {name: state.arrays[name] for name in self.statistics.released}
        return Plan(federation, state.round + 1, announced, {PARAMETERS: state.parameters, **statistics})

    def upload(self, plan: Plan) -> Upload:
        """How values leave a client in this plan's round."""
        return self.first_upload

    def columns(self, plan: Plan) -> slice:
        """Which columns of the model's vector a report on this plan holds: all, unless a method sends parts of it."""
        return slice(0, self._initial.size + self.statistics.size)

    def tally(self, plan: Plan) -> Tally:
        """An empty sum for the reports on this plan."""
        empty: Tally = self.spec.aggregation.tally(self.upload(plan))
        return empty

    @abstractmethod
    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        """The state after this round's reports."""

    def view(self, state: State) -> ModelView:
        """The model to evaluate and to hand out."""
        return ModelView(state.parameters, {name: state.arrays[name] for name in self.statistics.released} or None)

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

    def seen(self, x: Tensor, positions: Positions, client: int, prepared: ClientState, randomness: Randomness) -> Seen:
        """Examples `x [n, ...]`, at these positions of an exam, as the model sees them through a client's preparation.

        The randomness is that client's, of round 0, and has one row.
        """
        raise NotImplementedError(f"{type(self).__name__} scores examples as they are")

    def shown(self, x: Tensor) -> Seen:
        """Examples `x [n, ...]` as the model sees them, whoever looks: as they are, unless a method `shows` others."""
        return np.asarray(x.cpu().numpy(), np.float32)

    # --- in every round

    def computes_records_apart(self, bench: Bench) -> bool:
        """Whether the proof holds where clients compute like this: what a record adds depends on it alone."""
        return True

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        """What a report on this plan tells of its client: one list for every class of clients."""
        return self.upload(plan).releases(f"{plan.federation}/{plan.round}", DATASET)

    def class_of(self, client: int) -> int:
        """The class of a client: clients of one class make the same releases."""
        return int(self.first_upload.class_of[client])

    @abstractmethod
    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        """Train on the clients' data, randomise, encode."""

    def rehearse(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> LocalView:
        """What the owners would see of such a round, without noise in the training: nothing is sent."""
        return self.report(plan, cohort, draw, bench).local


__all__ = [
    "DATASET", "PARAMETERS", "PAST", "Bench", "ClientState", "Cohort", "LocalView", "Method", "ModelView",
    "ReportContent", "Reported", "Seen", "State",
]  # fmt: skip

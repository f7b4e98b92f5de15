"""Federated averaging (McMahan et al., "Communication-efficient learning of deep networks", AISTATS 2017), with any
mechanism on what clients send.

    each round t:   S_t <- the clients asked
        each client k in S_t:   w_k <- local training from w_t on its own records
                                x_k <- w_k - w_t  (upload "update")   or   w_k  (upload "weights")
                                send mechanism(clip(x_k))
        server:   x <- weighted mean of the estimates;   w_{t+1} <- w_t + server_lr * (x  or  x - w_t)

A client without records, or whose training stops being finite, reports "no change" through the same mechanism: nobody
can tell it from the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.learning.cohort import ClientData, CohortResult, LocalTraining
from sordino.learning.draws import alike
from sordino.learning.private_sgd import PrivateTraining
from sordino.methods.aggregation import AggregationSpec
from sordino.methods.interface import Bench, ClientState, Cohort, LocalView, Method, Reported, State, View
from sordino.methods.robust import AgreementTally
from sordino.methods.selection import SelectionSpec
from sordino.methods.setting import Built, Setting, plainly_built
from sordino.methods.upload import Draw, Tally, Upload
from sordino.privacy.guarantee import Release
from sordino.randomness import Randomness
from sordino.wire.messages import Plan

DATASET = "records"  #: what a simulated client calls its data in the ledger
PAST = "past_directions"  #: what the server remembers of each client's reports, where agreement counts


class FedAvg(Method):
    """One round of local training by everyone who is asked, one weighted mean."""

    def __init__(
        self,
        setting: Setting,
        training: LocalTraining | PrivateTraining,
        upload: Upload,
        *,
        sends: Literal["update", "weights"],
    ) -> None:
        given: Any = setting.recipe.method
        self.spec = given  #: the method's table
        self.clients = setting.clients
        self.training = training
        self._model, self._initial, self._statistics = setting.model, setting.initial, setting.statistics
        self._upload, self._sends, self._server_lr = upload, sends, given.server_lr
        self._selection: SelectionSpec = given.selection
        self._aggregation: AggregationSpec = given.aggregation
        self._seed = setting.recipe.seed
        given.aggregation.check_room(given.selection.asked(setting.clients), setting.clients, setting.values)

    # --- what a plan asks for; methods that send other things in other rounds say so here

    def upload(self, plan: Plan) -> Upload:
        """How values leave a client in this plan's round."""
        return self._upload

    def columns(self, plan: Plan) -> slice:
        """Which values of the vector (parameters, then released statistics) are sent in this plan's round."""
        return slice(None)

    # --- server

    def init(self) -> State:
        start = self._statistics
        arrays = {name: start.start[name].numpy().astype(np.float32) for name in start.released}
        if self._aggregation.remembers:
            arrays[PAST] = np.zeros((self.clients, self._upload.values), np.float32)
        return State(0, self._initial.astype(np.float32), arrays)

    def select(self, state: State) -> Sequence[int]:
        return self._selection.chosen(self.clients, self._seed, state.round + 1)

    def plan(self, state: State, federation: str) -> Plan:
        norm = self._upload.norm
        announced = {} if norm is None else {"norm": repr(norm)}  # a text: numbers are written differently elsewhere
        return Plan(federation, state.round + 1, announced, {"parameters": state.parameters, **_sent(state)})

    def tally(self, plan: Plan) -> Tally:
        return self._aggregation.tally(self.upload(plan))

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        after, own = _joined(state.parameters, _sent(state)), {}
        columns = self.columns(plan)
        if isinstance(tally, AgreementTally):
            mean, own[PAST] = tally.agreed(state.arrays[PAST])
        else:
            mean = tally.mean()
        step = self._aggregation.move(mean, mean if self._sends == "update" else mean - after[columns])
        with np.errstate(over="ignore"):  # the coordinator does not count a round that leads out of all bounds
            after[columns] += self._server_lr * step
        d = state.parameters.size
        return state.after(after[:d], {**_split(after[d:], _sent(state)), **own})

    def view(self, state: State) -> View:
        return View(state.parameters, _sent(state) or None)

    # --- client

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        return self.upload(plan).releases(f"{plan.federation}/{plan.round}", DATASET)

    def class_of(self, client: int) -> int:
        return int(self._upload.class_of[client])

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        start = _joined(plan.arrays["parameters"], {n: plan.arrays[n] for n in self._statistics.released})
        vectors = np.tile(start, (len(cohort.clients), 1))
        idle = [k for k, data in enumerate(cohort.data) if data is None]
        if idle:
            vectors[idle] = self._idle(plan, start, [cohort.clients[k] for k in idle], draw)
        loss, failed = np.full(len(vectors), np.nan), np.zeros(len(vectors), np.bool_)
        states = list(cohort.states)
        for rows in self._alike(cohort):
            trained = self._train(plan, cohort, rows, draw, bench)
            vectors[rows] = self._sent(trained)
            loss[rows], failed[rows] = trained.local.loss, trained.local.failed
            for row, kept in zip(rows, self._kept(trained), strict=True):
                states[row] = kept
        if self._sends == "update":
            vectors -= start
        values = vectors[:, self.columns(plan)]
        sent = self.upload(plan).send(cohort.clients, values, draw, cohort.sizes)
        moved = vectors if self._sends == "update" else vectors - start
        norms, largest = np.linalg.norm(moved.astype(np.float64), axis=1), np.abs(values).max(axis=1)
        local = LocalView(loss, failed, sent.clipped, norms, largest.astype(np.float64))
        return Reported(sent.bodies, tuple(states), local)

    def _idle(self, plan: Plan, start: NDArray[np.float32], clients: Sequence[int], draw: Draw) -> NDArray[np.float32]:
        """`[K, values]`: what clients have after a round without any records to train on, or a row for all of them."""
        return start

    def _alike(self, cohort: Cohort) -> list[list[int]]:
        """Clients with records, together where one call can train them: all, unless the learning rate decays."""
        there = np.array([k for k, data in enumerate(cohort.data) if data is not None], np.int64)
        if not there.size:
            return []
        if not self.training.optimizer.decay or isinstance(self.training, PrivateTraining):
            return [there.tolist()]
        steps = np.array([self.training.total_steps(cohort.sizes[k]) for k in there])
        return [there[group].tolist() for group in alike(steps)]

    def _train(self, plan: Plan, cohort: Cohort, rows: Sequence[int], draw: Draw, bench: Bench) -> CohortResult:
        data = [d for k in rows if (d := cohort.data[k]) is not None]
        randomness: Randomness = draw([cohort.clients[k] for k in rows])
        return bench.trainer(self._model).train(
            torch.from_numpy(plan.arrays["parameters"]),
            data,
            self.training,
            randomness,
            buffers=self._buffers(plan, [cohort.states[k] for k in rows]),
            first_step=self._first_step(plan.round, data[0]),
        )

    def _first_step(self, round: int, data: ClientData) -> int:
        """Where the learning rate's decay goes on: after the steps of all earlier rounds."""
        if isinstance(self.training, PrivateTraining):
            return (round - 1) * self.training.steps
        return (round - 1) * self.training.total_steps(len(data)) if self.training.optimizer.decay else 0

    def _buffers(self, plan: Plan, states: Sequence[ClientState]) -> dict[str, Tensor] | None:
        """Running statistics to start from: the server's where they are released, else the client's own."""
        if not self._statistics.start:
            return None
        stacked = {}
        for name, value in self._statistics.start.items():
            if name in self._statistics.released:
                own = torch.from_numpy(plan.arrays[name]).reshape(value.shape)
                stacked[name] = own.expand(len(states), *value.shape).clone()
            else:
                rows = [torch.from_numpy(np.asarray(s[name])) if name in s else value for s in states]
                stacked[name] = torch.stack(rows)
        return stacked

    def _sent(self, trained: CohortResult) -> NDArray[np.float32]:
        """`[K, values]`: the parameters after training, and statistics that are released."""
        parts = [trained.parameters.cpu()]
        parts += [trained.buffers[name].cpu().reshape(len(parts[0]), -1) for name in self._statistics.released]
        return torch.cat(parts, dim=1).numpy()

    def _kept(self, trained: CohortResult) -> list[ClientState]:
        """The statistics that stay with each client."""
        own = {n: v.cpu().numpy() for n, v in trained.buffers.items() if n not in self._statistics.released}
        return [{name: value[k].copy() for name, value in own.items()} for k in range(len(trained.parameters))]


def _sent(state: State) -> dict[str, NDArray[np.float32]]:
    """The arrays that clients get: released statistics, and not what the server remembers of reports."""
    return {name: array for name, array in state.arrays.items() if name != PAST}


def _joined(parameters: NDArray[np.float32], arrays: Mapping[str, NDArray[np.float32]]) -> NDArray[np.float32]:
    return np.concatenate([parameters.reshape(-1), *(array.reshape(-1) for array in arrays.values())])


def _split(flat: NDArray[Any], like: Mapping[str, NDArray[np.float32]]) -> dict[str, NDArray[np.float32]]:
    arrays, first = {}, 0
    for name, array in like.items():
        arrays[name] = flat[first : first + array.size].reshape(array.shape).astype(np.float32)
        if name.endswith("running_var"):
            arrays[name] = np.maximum(arrays[name], 0)  # noise can make a variance negative, and nothing computes then
        first += array.size
    return arrays


def build(setting: Setting, kind: type[FedAvg] = FedAvg) -> Built:
    """Federated averaging, or a `kind` of it, as a recipe asks for it."""
    given: Any = setting.recipe.method
    what = "model update" if given.upload == "update" else "model weights"
    upload = Upload(
        given.mechanism.builder(given.range, setting.sent_layout.layers, setting.values),
        setting.recipe.epsilons(),
        setting.values,
        clients=setting.clients,
        what=f"{what} and batch-norm statistics" if setting.statistics.size else what,
        samples=given.aggregation.samples,
        norm=given.norm,
    )
    upload.check(setting.checked)
    training = setting.local_training
    method = kind(setting, training, upload, sends=given.upload)
    return plainly_built(setting, method, upload, training)


__all__ = ["DATASET", "FedAvg", "build"]

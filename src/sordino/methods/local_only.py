"""Local learning: every client trains alone, from the common start, for as long as a federation would; nothing is sent.

    each round t:   each client k:   w_k <- local training from its own w_k on its own records

It is what a client gets without the others ("Local Learning" in LDP-Fed, Truex et al. 2020, section 4), and the least
that federated learning must beat. Its accuracy is the mean of the clients' own models' accuracies on the test set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.learning.cohort import CohortResult
from sordino.methods.fedavg import FedAvg
from sordino.methods.interface import Bench, ClientState, Cohort, LocalView, Reported, State, View
from sordino.methods.setting import Built, Setting, plainly_built
from sordino.methods.silo_dp import plain
from sordino.methods.upload import Draw, Tally, Upload
from sordino.privacy.guarantee import Release
from sordino.wire.messages import Plan

PARAMETERS = "parameters"  #: under which a client keeps its own model


class Presence(Tally):
    """Counts the clients that have done their round; whoever sends anything is refused."""

    def add(self, clients: Sequence[int], bodies: Sequence[bytes]) -> dict[int, str]:
        loud = [client for client, body in zip(clients, bodies, strict=True) if body]
        refused = dict.fromkeys(loud, "clients that learn alone send nothing")
        self.reports += len(clients) - len(refused)
        return refused

    @property
    def weight(self) -> float:
        """How many have done their round."""
        return float(self.reports)

    def noise(self) -> float:
        """Nothing is sent, so there is none."""
        return 0.0


class LocalOnly(FedAvg):
    """Clients that keep their models to themselves."""

    def plan(self, state: State, federation: str) -> Plan:
        """A number, and nothing to start from: the common start follows from the recipe's seed."""
        return Plan(federation, state.round + 1)

    def tally(self, plan: Plan) -> Tally:
        return Presence(self._upload, np.ones(1))

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        return state.unchanged()

    def views(self, state: State, kept: Mapping[int, ClientState]) -> Sequence[View]:
        """Every client's own model, with its own running statistics."""
        own = [self._own_view(one) for one in kept.values() if PARAMETERS in one]
        return own or super().views(state, kept)

    def _own_view(self, kept: ClientState) -> View:
        statistics = {n: np.asarray(kept[n], np.float32) for n in self._statistics.start if n in kept}
        return View(np.asarray(kept[PARAMETERS], np.float32), statistics or None)

    def releases(self, plan: Plan) -> Sequence[Sequence[Release]]:
        return ((),)

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        clients = len(cohort.clients)
        loss, failed, moved, largest = np.full(clients, np.nan), np.zeros(clients, np.bool_), *np.zeros((2, clients))
        states = list(cohort.states)
        for rows in self._alike(cohort):
            starts = np.stack([self._start(cohort.states[k]) for k in rows])
            trained = self._train_own(plan, cohort, rows, starts, draw, bench)
            after = trained.parameters.cpu().numpy()
            loss[rows], failed[rows] = trained.local.loss, trained.local.failed
            moved[rows] = np.linalg.norm((after - starts).astype(np.float64), axis=1)
            largest[rows] = np.abs(after - starts).max(axis=1)
            for row, kept, model in zip(rows, self._kept(trained), after, strict=True):
                states[row] = {**kept, PARAMETERS: model.copy()}
        return Reported([b""] * clients, tuple(states), LocalView(loss, failed, np.zeros(clients), moved, largest))

    def _start(self, kept: ClientState) -> NDArray[np.float32]:
        return np.asarray(kept.get(PARAMETERS, self._initial), np.float32)

    def _train_own(
        self, plan: Plan, cohort: Cohort, rows: Sequence[int], starts: NDArray[np.float32], draw: Draw, bench: Bench
    ) -> CohortResult:
        data = [d for k in rows if (d := cohort.data[k]) is not None]
        return bench.trainer(self._model).train(
            torch.from_numpy(starts),
            data,
            self.training,
            draw([cohort.clients[k] for k in rows]),
            buffers=self._buffers(plan, [cohort.states[k] for k in rows]),
            first_step=self._first_step(plan.round, data[0]),
        )


def build(setting: Setting) -> Built:
    """Local learning as a recipe asks for it."""
    alone = replace(setting, statistics=replace(setting.statistics, policy="local", released=()))
    training = setting.local_training
    upload = Upload(plain, None, setting.values, clients=setting.clients, what="nothing")
    return plainly_built(setting, LocalOnly(alone, training, upload, sends="update"), upload, training)


__all__ = ["LocalOnly", "build"]

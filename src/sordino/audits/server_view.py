"""What the server saw of a simulated run: its plans and reports once more, and what clients would report on its plans.

Attacks start here. `hear` runs the recipe's rounds again with the run's own seed. `Reporters` answer a plan with any
records, through the run's mechanism or without any.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from unittest.mock import patch

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from sordino.audits.attack_options import AttackOptions
from sordino.audits.canaries import ListeningChannel
from sordino.audits.finished_run import FinishedRun
from sordino.errors import InvalidInput
from sordino.fleets.simulated import SimulatedFleet
from sordino.fleets.workers import local
from sordino.learning.cohort import ClientData
from sordino.learning.private_sgd import PrivateTraining
from sordino.learning.stacked_model import GPU, Execution
from sordino.methods.fedavg import FedAvg
from sordino.methods.hybrid_one import HybridOne
from sordino.methods.interface import PARAMETERS, Bench, Cohort, Method, State
from sordino.methods.lian_webfed import WebFed
from sordino.methods.silo_dp import SiloDp
from sordino.methods.sun_ldp_fl import LdpFl
from sordino.methods.truex_ldp_fed import LdpFed
from sordino.methods.upload import Draw, Sent, Upload
from sordino.methods.wu_personalized import Personalized
from sordino.privacy.leaks import Variant
from sordino.randomness import Keystream
from sordino.runs.coordinator import Coordinator, NobodyLeft, Rules
from sordino.runs.execution import workers_for
from sordino.wire.messages import Plan

Floats = NDArray[np.float32]
Member = tuple[int, ClientData | None]  #: a client's number and the records that it holds; None: no records

UNDERSTOOD = (FedAvg, WebFed, LdpFl, LdpFed, Personalized, SiloDp)  #: methods with reports of trained models
QUIET = 1e-9  #: the noise multiplier of private training without noise


@dataclass(frozen=True, eq=False)
class HeardRound:
    """One round as the server saw it, behind a direct channel."""

    state: State  #: before the round
    plan: Plan
    bodies: Mapping[int, bytes]  #: the reports, by client


def check_simulated(run: FinishedRun) -> None:
    """Refuse a run of real clients: only its owners have the records that an attack is compared with."""
    if not run.simulated:
        raise InvalidInput(
            f"the clients of the run in {run.folder.path} are real, and their records are not here: attack a simulated "
            "run of the same recipe (sordino run)"
        )


def reports_models(run: FinishedRun) -> bool:
    """Whether clients of this run report models that they trained on classes: attacks on reports understand those."""
    method, dataset = run.federation.method, run.federation.dataset
    return isinstance(method, UNDERSTOOD) and dataset.task.kind == "classification" and len(dataset.classes) > 1


def shows_reports(run: FinishedRun) -> bool:
    """Whether the server sees single reports with their senders."""
    return not run.recipe.method.channel.unseen


def hear(run: FinishedRun, asked: AttackOptions, rounds: int) -> list[HeardRound]:
    """The first `rounds` rounds of the run, computed again: the same plans and reports."""
    federation, method = run.federation, run.federation.method
    bench = _bench(asked.device)
    work = federation.work(bench)
    here = local(workers_for(None, [bench.device], federation.effort, federation.clients), [bench.device])
    fleet = SimulatedFleet(work, federation.ledger(), hands=here)
    channel, state = ListeningChannel(), method.init()
    coordinator = Coordinator(method, fleet, channel, run.recipe.name, Rules(run.recipe.rounds.quorum))
    heard = []
    try:
        for _ in asked.track(range(min(rounds, run.rounds)), "Repeating rounds"):
            before = state
            try:
                state, held = coordinator.round(state)
            except NobodyLeft:
                break
            heard.append(HeardRound(before, held.plan, dict(channel.uploads)))
    finally:
        fleet.close()
    return heard


def _bench(device: str) -> Bench:
    return Bench(GPU, torch.device(device)) if device.startswith("cuda") else Bench(Execution(), torch.device(device))


# --- reports on a plan ------------------------------------------------------------------------------------------------


class Reporters:
    """Simulated clients that answer plans of a run: with its mechanism ("run"), or as if there were none ("bare")."""

    def __init__(self, run: FinishedRun, variant: Variant, device: str = "cpu") -> None:
        federation = run.federation
        self._method, self._bare, self._bench = federation.method, variant == "bare", _bench(device)
        self._size = federation.layout.size
        self._quiet = self._method
        if self._bare and isinstance(self._method.training, PrivateTraining):
            self._quiet = copy.copy(self._method)
            self._quiet.training = replace(self._method.training, noise_multiplier=QUIET, coarsening=0)

    @staticmethod
    def variants(run: FinishedRun) -> tuple[Variant, ...]:
        """Those that differ: without noise in the run there is nothing to leave out.

        Shares of noise in a secure sum are not left out: the numbers that are sent are sized for them.
        """
        method = run.federation.method
        private = isinstance(method.training, PrivateTraining)
        if isinstance(method, HybridOne) or not (private or run.recipe.method.mechanism.noise):
            return ("run",)
        return ("run", "bare")

    def answers(self, plan: Plan, members: Sequence[Member], seed: int, first: int = 0) -> PlanAnswers:
        """What these members report on a plan; member k draws from the stream `first + k` of the seed."""
        bodies: list[bytes] = [b""] * len(members)
        vectors: dict[int, Floats] = {}
        for rows in self._together(members):
            cohort = Cohort(
                tuple(members[k][0] for k in rows),
                tuple(members[k][1] for k in rows),
                ({},) * len(rows),
                tuple(0 if (own := members[k][1]) is None else len(own) for k in rows),
            )
            numbers = np.array(rows) + first

            def draw(own: Sequence[int], numbers: NDArray[np.int64] = numbers) -> Keystream:
                return Keystream.simulation(seed, numbers[: len(own)], plan.round)

            handed, sent = handed_in(self._quiet, plan, cohort, draw, self._bench)
            for k, body in zip(rows, sent, strict=True):
                bodies[k] = body
            vectors.update(zip(rows, handed, strict=False))
        clients = [client for client, _ in members]
        if self._bare:
            found = np.stack([vectors[k] for k in range(len(members))])
        else:
            found = self._decoded(plan, clients, bodies)
        return PlanAnswers(self._changes(plan, found), bodies)

    def _together(self, members: Sequence[Member]) -> list[list[int]]:
        """Rows that one call answers: each stream is asked for once, so all must be at the same step of a decay."""
        classes = [self._method.class_of(client) for client, _ in members]
        decays = bool(self._method.training.optimizer.decay)
        groups: dict[tuple[int, int, bool], list[int]] = {}
        for k, (_, data) in enumerate(members):
            size = len(data) if data is not None and decays else 0
            groups.setdefault((classes[k], size, data is None), []).append(k)
        return list(groups.values())

    def heard(self, heard: HeardRound, client: int) -> Floats:
        """What a report that was heard says about the change of the model, `[d]`."""
        found = self._changes(heard.plan, self._decoded(heard.plan, [client], [heard.bodies[client]]))
        return np.asarray(found[0])

    def _decoded(self, plan: Plan, clients: Sequence[int], bodies: Sequence[bytes]) -> Floats:
        upload = self._method.upload(plan)
        skipped = 4 if upload.samples else 0  # the sample count, which travels in the clear before the values
        found = np.empty((len(bodies), upload.values), np.float32)
        for k, (client, body) in enumerate(zip(clients, bodies, strict=True)):
            mechanism = upload.mechanisms[int(upload.class_of[client])]
            found[k] = mechanism.estimate(mechanism.decode([body[skipped:]], upload.values))[0]
        return found

    def _changes(self, plan: Plan, values: Floats) -> Floats:
        """`[K, d]`: how far each report would move the model's parameters by itself."""
        start = plan.arrays[PARAMETERS].reshape(-1)
        if isinstance(self._method, LdpFed):  # a report is about the scheduled layer alone
            whole = np.zeros((len(values), max(self._size, self._method.turn(plan).stop)), np.float32)
            whole[:, self._method.turn(plan).columns] = values
            return whole[:, : self._size]
        own = values[:, : self._size]
        return own if self._method.spec.sends_updates else own - start

    def models_after(self, heard: HeardRound, client: int, answers: PlanAnswers, others: Floats) -> Floats:
        """`[K, d]`: the server's model after a round in which this client gave each of the answers.

        All others reported as they were heard; without mechanism, `others [d]` is the sum of their changes.
        """
        start, asked = heard.plan.arrays[PARAMETERS].reshape(-1), len(heard.bodies)
        if self._bare:
            rate = float(getattr(self._method.spec, "server_lr", 1.0))
            return np.asarray(start + rate * (others + answers.changes) / asked, np.float32)
        found = np.empty_like(answers.changes)
        bodies = dict(heard.bodies)
        for k, body in enumerate(answers.bodies):
            bodies[client] = body
            tally = self._method.tally(heard.plan)
            tally.add(list(bodies), list(bodies.values()))
            found[k] = self._method.update(heard.state, heard.plan, tally).parameters.reshape(-1)
        return found


@dataclass(frozen=True, eq=False)
class PlanAnswers:
    """K reports on one plan."""

    changes: Floats  #: `[K, d]` how far each would move the model's parameters by itself
    bodies: list[bytes]  #: as they were sent

    @cached_property
    def total(self) -> Floats:
        """`[d]`: the sum of the changes."""
        return np.asarray(self.changes.sum(axis=0, dtype=np.float64), np.float32)


def handed_in(method: Method, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> tuple[Floats, list[bytes]]:
    """`[K, values]` that clients hand to their mechanism when they answer a plan, and the reports that it makes.

    There are no vectors where a method sends whole numbers of its own.
    """
    vectors, honest = [], Upload.send

    def send(self: Upload, clients: Sequence[int], rows: ArrayLike, draw: Draw, sizes: Sequence[int]) -> Sent:
        vectors.append(np.array(rows, np.float32))
        return honest(self, clients, rows, draw, sizes)

    with patch.object(Upload, "send", send):
        bodies = method.report(plan, cohort, draw, bench).bodies
    return np.concatenate(vectors) if vectors else np.empty((0, 0), np.float32), bodies


__all__ = [
    "HeardRound",
    "PlanAnswers",
    "Reporters",
    "check_simulated",
    "handed_in",
    "hear",
    "reports_models",
    "shows_reports",
]

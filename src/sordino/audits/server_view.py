"""What the server saw of a simulated run: its plans and reports once more, and what clients would report on its plans.

Attacks start here. `hear` runs the recipe's rounds again with the run's own seed. `Reporters` answer a plan with any
records, through the run's mechanism or without any.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.audits.attack_options import AttackOptions
from sordino.audits.canaries import ListeningChannel
from sordino.audits.finished_run import FinishedRun
from sordino.errors import InvalidInput
from sordino.fleets.simulated import SimulatedFleet
from sordino.fleets.tasks import Population, Work
from sordino.fleets.workers import Hands, InProcess, local
from sordino.learning.cohort import ClientData
from sordino.learning.private_sgd import PrivateTraining
from sordino.learning.stacked_model import GPU, Execution
from sordino.mechanisms import ClipOnly, NoisySums, NoPrivacy
from sordino.methods.interface import PARAMETERS, Bench, Cohort, Method, State
from sordino.methods.upload import Draw, RecordingDraw
from sordino.privacy.leaks import Variant
from sordino.randomness import Keystream
from sordino.runs.coordinator import Coordinator, NobodyLeft, Rules
from sordino.runs.execution import devices_for, workers_for
from sordino.wire.messages import Plan

Floats = NDArray[np.float32]


@dataclass(frozen=True, eq=False)
class TrainingRows:
    """Records by their positions among all training examples, which whoever computes has at hand."""

    rows: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.rows)

    def records(self, population: Population) -> ClientData:
        """The records, normalised."""
        x = population.normalisation.apply(population.examples.x[self.rows])
        return ClientData(torch.from_numpy(x), torch.from_numpy(population.examples.y[self.rows]))


#: a client's number and the records that it holds; None: no records
Member = tuple[int, ClientData | TrainingRows | None]
QUIET = 1e-9  #: the noise multiplier of private training without noise
MIXED = ("summed", "shuffled", "shuffler")  #: channels under which reports are not seen one by one


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


def carries_parameters(run: FinishedRun) -> bool:
    """Whether a report is a vector of the model's parameters, or of some of them, as the method states it."""
    method = run.federation.method
    if method.report_content not in ("model", "model for a trusted server"):
        return False
    plan = method.plan(method.init(), run.recipe.name)
    columns, whole = method.columns(plan), run.federation.layout.size + method.statistics.size
    return bool(method.upload(plan).values == columns.stop - columns.start and columns.stop <= whole)


def reports_models(run: FinishedRun) -> bool:
    """Whether clients of this run report models that they trained on classes: attacks on reports understand those.

    Noise that a trusted server adds is none of a report's.
    """
    dataset, own = run.federation.dataset, run.federation.method.report_content == "model"
    return own and carries_parameters(run) and dataset.task.kind == "classification" and len(dataset.classes) > 1


def shows_reports(run: FinishedRun) -> bool:
    """Whether the server sees single reports with their senders."""
    return not run.recipe.method.channel.unseen


def is_mixed(run: FinishedRun) -> bool:
    """Whether the server sees only what all reports of a round add up to."""
    channel = getattr(run.recipe.method, "channel", None)
    whole = getattr(channel, "granularity", "parameter") == "model"  # reports stay whole, without a name
    return getattr(channel, "kind", "direct") in MIXED and not whole


def rounds_of(run: FinishedRun, client: int, most: int) -> list[int]:
    """The rounds that a client reported in, at most so many of them, evenly spread."""
    own = [spent.round for spent in run.spent if spent.round and any(client in who for who in spent.reporters)]
    places = np.unique(np.linspace(0, len(own) - 1, min(most, len(own))).astype(int))
    return [own[place] for place in places.tolist()]


def hear(run: FinishedRun, asked: AttackOptions, rounds: int) -> list[HeardRound]:
    """The first `rounds` rounds of the run, computed again: the same plans and reports."""
    federation, method = run.federation, run.federation.method
    work, hands = work_for(run, asked), hands_for(asked, federation.effort, federation.clients)
    fleet = SimulatedFleet(work, federation.ledger(), hands=hands)
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
            in_order = dict(sorted(channel.uploads.items()))  # they come as workers are done: others' draws go by place
            heard.append(HeardRound(before, held.plan, in_order))
    finally:
        fleet.close()
    return heard


def work_for(run: FinishedRun, asked: AttackOptions) -> Work:
    """What clients of a run compute when it is attacked."""
    return run.federation.work(_bench(asked.device))


def hands_for(asked: AttackOptions, effort: float, clients: int) -> Callable[[Work], Hands]:
    """Whoever computes so many clients: this process, workers where the effort repays them, or a Ray cluster."""
    if asked.pool is not None:
        return asked.pool.hands
    devices = devices_for(asked.device)
    return local(workers_for(asked.workers, devices, effort, clients), devices)


def _bench(device: str) -> Bench:
    return Bench(GPU, torch.device(device)) if device.startswith("cuda") else Bench(Execution(), torch.device(device))


# --- reports on a plan ------------------------------------------------------------------------------------------------


class Reporters:
    """Simulated clients that answer plans of a run: with its mechanism ("run"), or as if there were none ("bare").

    `hands` compute them, on the work of this run (`hands_for`); this process where none are given.
    """

    def __init__(self, run: FinishedRun, variant: Variant, device: str = "cpu", hands: Hands | None = None) -> None:
        federation = run.federation
        self._method, self._bare = federation.method, variant == "bare"
        self._name, self._reader = run.recipe.name, ReportReader(federation.layout.size)
        self._hands = hands or InProcess(federation.work(_bench(device)))

    @staticmethod
    def variants(run: FinishedRun) -> tuple[Variant, ...]:
        """Those that differ: without noise in the run there is nothing to leave out.

        Shares of noise in a secure sum are not left out: the numbers that are sent are sized for them.
        """
        method = run.federation.method
        mechanism, private = method.first_upload.mechanisms[0], isinstance(method.training, PrivateTraining)
        noisy = private or not isinstance(mechanism, (NoPrivacy, ClipOnly))
        return ("run", "bare") if noisy and not isinstance(mechanism, NoisySums) else ("run",)

    def answers(self, plan: Plan, members: Sequence[Member], seed: int, first: int = 0) -> PlanAnswers:
        """What these members report on a plan; member k draws from the stream `first + k` of the seed."""
        changes = np.empty((len(members), self._reader.size), np.float32)
        bodies: list[bytes] = [b""] * len(members)
        jobs = [
            MemberReports(tuple(rows), tuple(members[k] for k in rows), seed, first, self._reader, self._bare)
            for rows in self._together(members)
        ]
        for numbers, found in self._hands.run(plan, jobs):
            changes[list(numbers)] = found.changes
            for k, body in zip(numbers, found.bodies, strict=True):
                bodies[k] = body
        return PlanAnswers(changes, bodies)

    def updates(self, client: int, data: Sequence[ClientData], rounds: Sequence[int], seed: int) -> Tensor:
        """`[K, d]`: how clients in this one's place, with these records, move the model; the mean over rounds.

        All rounds are played with the model that the run began with. A server may send the same model again, and what
        is proven holds for every model that is sent. Where a round's reports are parts of the model, each part has the
        mean of its own rounds.
        """
        method, members = self._method, [(client, own) for own in data]
        total, seen = np.zeros((len(data), self._reader.size)), np.zeros(self._reader.size)
        for round in rounds:
            plan = method.plan(replace(method.init(), round=round - 1), self._name)
            total += self.answers(plan, members, seed).changes
            seen[method.columns(plan)] += 1
        return torch.from_numpy((total / np.maximum(seen, 1)).astype(np.float32))

    def _together(self, members: Sequence[Member]) -> Iterator[list[int]]:
        """Rows that one job answers, as many whoever does it: those of like size are computed faster together.

        Each stream is asked for once, so all must be at the same step of a decay.
        """
        decays = bool(self._method.training.optimizer.decay)
        sizes = [0 if data is None else len(data) for _, data in members]
        groups: dict[tuple[int, int, bool], list[int]] = {}
        for k in sorted(range(len(members)), key=sizes.__getitem__):
            client, data = members[k]
            groups.setdefault((self._method.class_of(client), decays * sizes[k], data is None), []).append(k)
        each = self._hands.work.bench.execution.width
        for rows in groups.values():
            yield from (rows[start : start + each] for start in range(0, len(rows), each))

    def heard(self, heard: HeardRound, client: int) -> Floats:
        """What a report that was heard says about the change of the model, `[d]`."""
        found = self._reader.read(self._method, heard.plan, [client], [heard.bodies[client]])
        return np.asarray(found[0])

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


@dataclass(frozen=True)
class ReportReader:
    """Reads reports as changes of a model with so many parameters."""

    size: int

    def read(self, method: Method, plan: Plan, clients: Sequence[int], bodies: Sequence[bytes]) -> Floats:
        """`[K, d]`: how far each report would move the model's parameters by itself."""
        upload = method.upload(plan)
        skipped = 4 if upload.samples else 0  # the sample count, which travels in the clear before the values
        found = np.zeros((len(bodies), upload.values), np.float32)
        for k, (client, body) in enumerate(zip(clients, bodies, strict=True)):
            if body:
                mechanism = upload.mechanisms[int(upload.class_of[client])]
                found[k] = mechanism.estimate(mechanism.decode([body[skipped:]], upload.values))[0]
        return self.changes(method, plan, found)

    def changes(self, method: Method, plan: Plan, values: Floats) -> Floats:
        """The same of values `[K, values]` that are sent."""
        columns = method.columns(plan)
        if not method.spec.sends_updates:
            values = values.copy()
            start = plan.arrays[PARAMETERS].reshape(-1)[columns]
            values[:, : start.size] -= start
        if (columns.start, values.shape[1]) == (0, self.size):
            return values
        whole = np.zeros((len(values), max(self.size, columns.stop)), np.float32)
        whole[:, columns] = values
        return whole[:, : self.size]


@dataclass(frozen=True, eq=False)
class MemberReports:
    """Some members' reports on the plan at hand, as a job for whoever has the run's work."""

    numbers: tuple[int, ...]  #: of the members among all
    members: tuple[Member, ...]
    seed: int
    first: int  #: member k draws from the stream `first + k`
    reader: ReportReader
    bare: bool

    def do(self, work: Work, plan: Plan) -> tuple[tuple[int, ...], PlanAnswers]:
        """These members' numbers, and their reports."""
        data = tuple(own.records(work.population) if isinstance(own, TrainingRows) else own for _, own in self.members)
        clients, sizes = tuple(client for client, _ in self.members), (0 if own is None else len(own) for own in data)
        cohort = Cohort(clients, data, ({},) * len(data), tuple(sizes))
        streams = np.array(self.numbers) + self.first

        def draw(own: Sequence[int]) -> Keystream:
            return Keystream.simulation(self.seed, streams[: len(own)], plan.round)

        method = without_noise(work.method) if self.bare else work.method
        vectors, bodies = handed_in(method, plan, cohort, draw, work.bench)
        if self.bare and len(vectors):
            changes = self.reader.changes(method, plan, vectors)
        else:
            changes = self.reader.read(method, plan, clients, bodies)
        changes[[not body for body in bodies]] = 0  # who sits out sends nothing, and moves nothing
        return self.numbers, PlanAnswers(changes, bodies)


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
    recorded = RecordingDraw(draw)
    bodies = method.report(plan, cohort, recorded, bench).bodies
    return np.concatenate(recorded.vectors) if recorded.vectors else np.empty((0, 0), np.float32), bodies


def without_noise(method: Method) -> Method:
    """The same method without the noise of private training."""
    if not isinstance(method.training, PrivateTraining):
        return method
    quiet = copy.copy(method)
    quiet.training = replace(method.training, noise_multiplier=QUIET, coarsening=0)
    return quiet


__all__ = [
    "HeardRound",
    "Member",
    "MemberReports",
    "PlanAnswers",
    "ReportReader",
    "Reporters",
    "TrainingRows",
    "carries_parameters",
    "check_simulated",
    "handed_in",
    "hands_for",
    "hear",
    "is_mixed",
    "reports_models",
    "rounds_of",
    "shows_reports",
    "without_noise",
    "work_for",
]

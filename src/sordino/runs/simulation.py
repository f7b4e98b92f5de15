"""A recipe simulated from its first round to its report: `sordino.run(recipe)`."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from sordino.channels.interface import Channel
from sordino.errors import InvalidInput
from sordino.fleets.simulated import SimulatedFleet
from sordino.fleets.tasks import Work
from sordino.fleets.workers import Hands, local
from sordino.learning.evaluation import Scores
from sordino.learning.models import GENERATORS
from sordino.learning.stacked_model import Execution
from sordino.methods.interface import Bench, LocalView, State
from sordino.methods.silo_dp import SiloDp
from sordino.parts.hardware import check_workers, cores
from sordino.parts.timeline import phase
from sordino.privacy.history import RoundReleases
from sordino.privacy.ledger import MemoryLedger
from sordino.recipe import Recipe
from sordino.recipe.sources import pinned
from sordino.report.records import RoundRecord, Simulation
from sordino.runs import preflight
from sordino.runs.checkpoint import DamagedRun
from sordino.runs.coordinator import Attendance, RoundOutcome
from sordino.runs.execution import (
    devices_for,
    execution_for,
    execution_key,
    gpu_share,
    one_thread,
    workers_for,
)  # fmt: skip
from sordino.runs.federation import Federation, wire
from sordino.runs.loop import ClientSide, Run
from sordino.runs.observer import Observer
from sordino.runs.outcome import Outcome
from sordino.runs.senders import PrivateSilo
from sordino.runs.store import FileStore, Past, Store, free_if_refused, run_folder
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from sordino.fleets.ray_workers import RayPool

TIMED_CLIENTS = 256  #: clients, at most, with which the number of workers of a GPU is measured
REHEARSING = 4  #: clients that rehearse the first round for the pre-flight


def run(
    recipe: Recipe,
    *,
    data: object = None,
    folder: str | Path | None = None,
    resume: bool = False,
    workers: int | None = None,
    device: str = "cpu",
    ray: str | RayPool | None = None,
    observer: Observer | Sequence[Observer] | None = None,
) -> Outcome:
    """Run a recipe; with a folder, everything is written there and an interrupted run goes on with `resume`.

    `data` is data in memory, for a recipe with `data.source = "memory"`: a pandas data frame, a Hugging Face or torch
    data set, a pair of arrays (x, y), or a mapping of two of these to train and test (docs/data-in-memory.md).

    `workers` are processes (default: one per core where that pays; on a GPU as many as a short measurement finds
    fastest); results do not depend on their number, on a GPU but for rounding. `device` is cpu, cuda, or `cuda:0,1` for
    several GPUs. With `ray`, the address of a Ray cluster ("auto": this machine's) or a `RayPool` that several runs
    share, the cluster's machines compute (docs/ray.md). A folder that another process is running is refused
    (`sordino.storage.files.InUse`).
    """
    if isinstance(ray, str):
        with _ray_pool(ray, device, workers) as pool:
            return run(recipe, data=data, folder=folder, resume=resume, device=device, ray=pool, observer=observer)
    check_workers(workers)
    if ray is not None:
        device = ray.device
    devices = devices_for(device) if ray is None else (torch.device(device),)
    if resume and folder is None:
        raise InvalidInput("resume needs the folder of the run that is to go on")
    with one_thread():
        with GENERATORS, phase("model and split"):
            recipe, dataset = pinned(recipe, data)
            federation = wire(recipe, dataset)
        ledger = federation.ledger()
        channel, members = recipe.method.channel.simulated_sides(recipe, federation.method)
        own = None if recipe.data.origin == "known" else federation.dataset
        files = (
            nullcontext() if folder is None else run_folder(recipe, folder, resume=resume, device=device, dataset=own)
        )
        with files as target:  # after all that may be refused
            store = Store() if target is None else FileStore(target)
            past = store.load() if resume else Past()
            with GENERATORS, phase("choice of width"):
                execution = _execution(federation, devices[0], past)
            work = federation.work(Bench(execution, devices[0]))
            with phase("start of workers"):
                fleet = SimulatedFleet(
                    work, ledger, hands=_local(federation, work, workers, devices) if ray is None else ray.hands,
                    members=members, releases=federation.releases, prepared=store.belongings(),
                )  # fmt: skip
            federation = federation.holding(fleet.work)
            del dataset, own, work  # one copy of the records is enough
            try:
                whole = Run(federation, SimulatedClients(federation, fleet, channel, ledger, execution), channel, store,
                          observer)  # fmt: skip
                whole.restore(past)
                with free_if_refused(target, resume=resume), phase("pre-flight"):
                    expected = preflight.expected(federation, recipe.name, rehearse(federation, fleet))
                return whole.go(expected)
            finally:
                fleet.close()


def _ray_pool(address: str, device: str, workers: int | None) -> RayPool:
    from sordino.fleets.ray_workers import RayPool

    return RayPool(address, device=device, workers=workers)


def _local(
    federation: Federation, work: Work, workers: int | None, devices: Sequence[torch.device]
) -> Callable[[Work], Hands]:
    """Workers of this machine."""
    share = partial(_gpu_share, federation, work)
    return local(workers_for(workers, devices, federation.effort, federation.clients, share), devices)


def _gpu_share(federation: Federation, work: Work) -> int:
    """How many workers a GPU is best shared by, for this method; one where clients prepare before they report."""
    method, recipe, device = federation.method, federation.recipe, work.bench.device
    if method.preparation(recipe.name) is not None:
        return 1
    message = method.plan(method.init(), recipe.name).encode()
    some = dict.fromkeys(range(min(federation.clients, TIMED_CLIENTS)), message)

    def seconds(workers: int) -> float:
        fleet = SimulatedFleet(work, None, hands=local(workers, [device]))
        try:
            for _ in range(2):  # the first time is for all that is loaded and recorded once
                began = time.perf_counter()
                list(fleet.exchange("report", some, None))
            return time.perf_counter() - began
        finally:
            fleet.close()

    shape, name = (method.batch, *federation.record_shape), torch.cuda.get_device_name(device)
    return gpu_share(execution_key(federation.model, shape, recipe.method, name), seconds, cores())


def _execution(federation: Federation, device: torch.device, past: Past) -> Execution:
    """The choice that the run began with, else a new one."""
    if "execution" in past.memory:
        return Execution(**past.memory["execution"])
    if federation.method.keeps:  # whole numbers, which no width changes
        return Execution()
    shape = (federation.method.batch, *federation.record_shape)
    return execution_for(federation.model, shape, federation.effort, device)


class SimulatedClients(ClientSide):
    """Clients of this process, of whom everything is known."""

    may_return = False

    def __init__(
        self,
        federation: Federation,
        fleet: SimulatedFleet,
        channel: Channel,
        ledger: MemoryLedger | None,
        execution: Execution,
    ) -> None:
        self.fleet = self._fleet = fleet
        self.states, self.label_counts = fleet.states, federation.label_counts
        self.memory = {"execution": asdict(execution)}
        self._federation, self._channel, self._ledger = federation, channel, ledger

    def restore(self, past: Past) -> None:
        for spent in past.spent:
            self._fleet.replay(spent)
        if past.checkpoint is not None:
            self._check_prepared(past.spent)
            self._fleet.states.update(past.checkpoint.clients)

    def _check_prepared(self, past: Sequence[RoundReleases]) -> None:
        """Rounds are computed from what clients prepared: without it, or without its account, there is no going on."""
        before = next((spent for spent in past if spent.round == 0), None)
        needed = self._federation.method.preparation(self._federation.recipe.name) is not None
        ready = {client for who in before.clients for client in who} if before is not None else set()
        if (needed and before is None) or not ready <= set(self._fleet.prepared):
            raise DamagedRun(Path("checkpoint/clients"), "what clients prepared there is not to be made again")

    def spent(self, plan: Plan, attendance: Attendance, sent: int) -> RoundReleases:
        return self._fleet.spent_in(plan.round)

    def score(self, state: State, exam: str) -> Scores:
        """All models that count, on the same examples: together their accuracy is the mean of theirs."""
        views = self._federation.method.views(state, self._fleet.kept)
        none = self._federation.exams[exam].none
        return Scores.together([none, *(self._fleet.grade(view, exam) for view in views)])

    def describe(self, record: RoundRecord, outcome: RoundOutcome) -> RoundRecord:
        seen, spending, timing = self._fleet.diagnostics, self.spending(), self._channel.timing
        return replace(
            record,
            spent_max=max(spending) if spending else None,
            spent_median=statistics.median(spending) if spending else None,
            simulation=Simulation(
                train_loss=seen.mean(seen.losses),
                failed=len(seen.failed),
                clipped=seen.mean(seen.clipped),
                update_norm=seen.mean(seen.updates),
                noise_norm=self._noise(outcome, record.reported),
                delivery=None if timing is None else timing.finished,
            ),
        )

    def _noise(self, outcome: RoundOutcome, reported: int) -> float | None:
        """The noise in the mean: of the mechanisms, or of training where that is what adds it."""
        method = self._federation.method
        if outcome.noise != 0 or not isinstance(method, SiloDp) or not reported:
            return outcome.noise
        own = PrivateSilo.of(method.training).noise(self._federation.upload.values)
        return None if own is None else math.sqrt(own / reported)

    def spending(self) -> list[float]:
        """What each client has spent; clients who stand alike share the arithmetic."""
        if self._ledger is None:
            return []
        standings = [self._ledger.standing(client) for client in range(self._federation.clients)]
        found = {id(standing): standing for standing in standings}
        spent = {key: standing.spent for key, standing in found.items()}
        return [spent[id(standing)] for standing in standings]


def rehearse(federation: Federation, fleet: SimulatedFleet) -> LocalView | None:
    """What a few clients see when they rehearse the first round; None where clients prepare before it."""
    if federation.method.preparation(federation.recipe.name) is not None:
        return None
    some = [client for client, part in enumerate(federation.parts) if len(part)][:REHEARSING]
    return fleet.rehearse(federation.method.plan(federation.method.init(), federation.recipe.name), some)


__all__ = ["SimulatedClients", "rehearse", "run"]

"""A recipe run from its first round to its report: `sordino.run(recipe)`."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from pathlib import Path

import numpy as np
import torch

from sordino import channels, preflight
from sordino.checkpoint import Belongings, Checkpoint, Saved
from sordino.coordinator import Channel, Coordinator, NobodyLeft, Rules
from sordino.coordinator import Round as Held
from sordino.course import REAL, Course, Memory, Outcome, came_to, client_budgets, figures, written
from sordino.errors import InvalidInput, SordinoError
from sordino.fleets.simulated import Population, SimulatedFleet, Work
from sordino.learning import models
from sordino.learning.evaluation import Scores
from sordino.learning.stacked import Execution
from sordino.methods.interface import Bench, LocalView, State
from sordino.observer import Observer
from sordino.pace import device_for, execution_for, one_thread, workers_for
from sordino.privacy.ledger import MemoryLedger
from sordino.recipe import EVERYTHING, Recipe
from sordino.report.folder import RunFolder, alone
from sordino.report.records import Round, Simulation
from sordino.wiring import Federation, wire

CHECKPOINT_SECONDS = 2.0  #: rounds shorter than this share a checkpoint: a crash costs that much work, no more
REHEARSING = 4  #: clients that rehearse the first round for the pre-flight


def run(
    recipe: Recipe,
    *,
    folder: str | Path | None = None,
    resume: bool = False,
    workers: int | None = None,
    device: str = "cpu",
    observer: Observer | None = None,
) -> Outcome:
    """Run a recipe; with a folder, everything is written there and an interrupted run goes on with `resume`.

    `workers` are processes (default: one per core where that pays, one on a GPU); results do not depend on their
    number, on a GPU but for rounding. A folder that another process is running is refused (`sordino.durable.InUse`).
    """
    place = device_for(device)
    if resume and folder is None:
        raise InvalidInput("resume needs the folder of the run that is to go on")
    with one_thread():
        federation = wire(recipe)
        count = workers_for(workers, place, federation.effort, federation.clients)
        ledger = federation.ledger()
        channel, members = channels.build(recipe, federation.method), channels.members(recipe, federation.method)
        with _alone(folder, resume):  # after all that may be refused: a refusal leaves no folder
            target = _folder(recipe, folder, resume, device)
            checkpoint = None if target is None else Checkpoint(target.checkpoint)
            saved = checkpoint.load() if resume and checkpoint is not None else None
            execution = _execution(federation, place, saved)
            bench = Bench(execution, place)
            prepared = Belongings() if checkpoint is None else checkpoint.belongings()
            fleet = SimulatedFleet(
                _work(federation, bench), ledger, workers=count, report_bytes=4 * federation.upload.values,
                members=members, prepared=prepared,
            )  # fmt: skip
            federation = federation.holding(fleet.examples, fleet.exams)  # one copy of the records is enough
            try:
                own = _Run(federation, fleet, channel, ledger, target, checkpoint, execution, observer or Observer())
                if resume:
                    own.restore(saved)
                    return own.go(own.preflight())
                with _empty_if_refused(target):
                    expected = own.preflight()
                return own.go(expected)
            finally:
                fleet.close()


@contextmanager
def _alone(folder: str | Path | None, resume: bool) -> Iterator[None]:
    """No other process in the folder, if there is one; what is no run is refused before anything is written there."""
    if folder is None:
        yield
        return
    if resume:
        RunFolder.open(folder)
    with alone(folder):
        yield


def _folder(recipe: Recipe, folder: str | Path | None, resume: bool, device: str) -> RunFolder | None:
    if folder is None:
        return None
    if not resume:
        return RunFolder.create(folder, recipe.to_toml(), device=device)
    found = RunFolder.open(folder)
    if found.environment.get("device") == REAL:
        raise InvalidInput(
            f"{folder} is a run with real clients, which is not simulated: go on with sordino.serving.serve"
        )
    before = Recipe.from_toml(found.recipe, EVERYTHING)
    if before.fingerprint != recipe.fingerprint:
        raise InvalidInput(f"{folder} was run with another recipe: resume takes the recipe that lies there")
    return found


@contextmanager
def _empty_if_refused(folder: RunFolder | None) -> Iterator[None]:
    """A run that is refused before its first round leaves its folder free for the next attempt."""
    try:
        yield
    except SordinoError:
        if folder is not None:
            for name in ("recipe.toml", "environment.json"):
                (folder.path / name).unlink(missing_ok=True)
        raise


def _execution(federation: Federation, device: torch.device, saved: Saved | None) -> Execution:
    """The choice that the run began with, else a new one."""
    if saved is not None:
        return Execution(**saved.memory["execution"])
    shape = (federation.built.batch, *federation.record_shape)
    return execution_for(federation.model, shape, federation.effort, device)


def _work(federation: Federation, bench: Bench) -> Work:
    population = Population(federation.dataset.train, federation.parts, federation.dataset.normalisation)
    loss = models.loss_for(federation.recipe.model.name)
    recipe = federation.recipe
    model = federation.built.graded or federation.model
    return Work(federation.method, model, loss, population, federation.exams, recipe.seed, bench)


class _Run:
    def __init__(
        self,
        federation: Federation,
        fleet: SimulatedFleet,
        channel: Channel,
        ledger: MemoryLedger | None,
        folder: RunFolder | None,
        checkpoint: Checkpoint | None,
        execution: Execution,
        observer: Observer,
    ) -> None:
        self._federation, self._fleet, self._channel, self._ledger = federation, fleet, channel, ledger
        self._recipe = federation.recipe
        self._folder, self._checkpoint, self._execution, self._observer = folder, checkpoint, execution, observer
        # Of no method of this object: the two would keep each other, and all data, alive long after the run.
        self._course = Course(federation, partial(_scored, federation, fleet))
        self._kept = 0.0  # when the last checkpoint was written
        self._stored: Saved | None = None  # and which
        self._whole = self._snapshot(federation.method.init())

    def go(self, expected: Sequence[str]) -> Outcome:
        """All rounds, from the start or from a checkpoint; Ctrl-C leaves a checkpoint of the last whole one behind."""
        method, state = self._federation.method, self._whole.state
        self._observer.started(self._federation, expected, state.round + 1)
        rules = Rules(self._recipe.rounds.quorum, self._recipe.rounds.deadline or None)
        coordinator = Coordinator(method, self._fleet, self._channel, self._recipe.name, rules)
        stopped = self._course.why_over(state)
        try:
            self._prepare(coordinator)
            while stopped is None:
                state, held = coordinator.round(state)
                self._note(state, held)
                stopped = self._course.why_over(state)
                if time.monotonic() - self._kept >= CHECKPOINT_SECONDS:
                    self._keep()
        except NobodyLeft as end:
            stopped = self._nobody_left(end)
        except KeyboardInterrupt:
            self._keep()
            raise
        self._keep()
        return self._finish(state, stopped, expected)

    def _prepare(self, coordinator: Coordinator) -> None:
        """What comes before the first round, unless an earlier attempt came as far."""
        needed = self._federation.method.preparation(self._recipe.name) is not None
        if not needed or any(spent.round == 0 for spent in self._fleet.spent):
            return
        self._observer.preparing(self._federation.clients)
        attendance = coordinator.prepare()
        spent = self._fleet.spent_in(0)
        self._course.answered(spent)
        if self._checkpoint is not None:
            self._checkpoint.add(spent)
        memory = self._course.memory
        memory.seconds += self._course.lap()
        memory.bytes_up += attendance.bytes_up
        memory.bytes_down += attendance.bytes_down
        self._whole = self._snapshot(self._whole.state)

    # --- going on

    def restore(self, saved: Saved | None) -> None:
        """Go back to a checkpoint, or to the start where there is none yet; what was written later is cut off."""
        assert self._checkpoint is not None and self._folder is not None
        if saved is None or saved.state.round == 0:
            self._checkpoint.history(-1)  # preparing is accounted for again; what it made lies in files of its own
            self._folder.truncate_rounds(0)
            return
        last = saved.state.round
        for spent in self._checkpoint.history(last):
            self._fleet.replay(spent)
            self._course.answered(spent)
        self._check_prepared()
        self._folder.truncate_rounds(last)
        self._course.records = list(self._folder.rounds())
        if len(self._course.records) != last:
            raise InvalidInput(
                f"{self._folder.path} has a checkpoint of round {last} and records of {len(self._course.records)} "
                "rounds: lines of metrics.jsonl were lost. Start the run anew in another folder"
            )
        self._check_fit(saved.state)
        self._fleet.states.update(saved.clients)
        self._course.memory = Memory(**saved.memory["memory"])
        self._whole = saved

    def _check_prepared(self) -> None:
        """Rounds are computed from what clients prepared: without it, or without its account, there is no going on."""
        before = next((spent for spent in self._fleet.spent if spent.round == 0), None)
        needed = self._federation.method.preparation(self._recipe.name) is not None
        ready = {client for who in before.clients for client in who} if before is not None else set()
        if (needed and before is None) or not ready <= set(self._fleet.prepared):
            raise InvalidInput(
                "files of the run's checkpoint are missing that hold what clients prepared before the first round, and "
                "it is not to be made again. Start the run anew in another folder"
            )

    def _check_fit(self, state: State) -> None:
        """The model may be the user's own code, which can have changed since."""
        now = self._whole.state
        shapes = [{n: a.shape for n, a in (("", s.parameters), *s.arrays.items())} for s in (state, now)]
        if shapes[0] != shapes[1]:
            raise InvalidInput(
                f"the checkpoint holds {state.parameters.size:,} parameters and the model {now.parameters.size:,}: the "
                "model has changed since. Put the old one back, or start the run anew in another folder"
            )

    def _snapshot(self, state: State) -> Saved:
        """All that the run must go on from after a whole round: a round that breaks off later leaves it untouched."""
        memory = {"execution": asdict(self._execution), "memory": asdict(self._course.memory)}
        return Saved(state, dict(self._fleet.states), memory)

    def _keep(self) -> None:
        """Write a checkpoint of the last whole round, unless there is one."""
        if self._checkpoint is not None and self._stored is not self._whole:
            self._checkpoint.save(self._whole)
            self._stored, self._kept = self._whole, time.monotonic()

    # --- one round

    def _note(self, state: State, held: Held) -> None:
        self._course.held(held)
        graded = self._course.grade(state)
        record = self._course.add(self._record(held), graded)
        spent = self._fleet.spent_in(held.number)
        self._course.answered(spent)
        if self._checkpoint is not None:
            self._checkpoint.add(spent)
        if self._folder is not None:
            self._folder.append_round(record)
        self._whole = self._snapshot(state)
        self._observer.round(record)

    def _record(self, held: Held) -> Round:
        attendance, seen = held.attendance, self._fleet.seen
        spent = self._spent()
        return Round(
            held.number,
            asked=attendance.asked,
            reported=len(attendance.reported),
            declined=len(attendance.declined),
            refused=len(attendance.refused),
            late=attendance.strays["late"],
            strays=attendance.others,
            counted=held.counted,
            bytes_up=attendance.bytes_up,
            bytes_down=attendance.bytes_down,
            spent_max=max(spent) if spent else None,
            spent_median=statistics.median(spent) if spent else None,
            simulation=Simulation(
                train_loss=seen.mean(seen.losses),
                failed=len(seen.failed),
                clipped=seen.mean(seen.clipped),
                update_norm=seen.mean(seen.updates),
                noise_norm=held.noise,
                delivery=getattr(getattr(self._channel, "timing", None), "finished", None),
            ),
        )

    def _spent(self) -> list[float]:
        """What each client has spent; clients who stand alike share the arithmetic."""
        if self._ledger is None:
            return []
        standings = [self._ledger.standing(client) for client in range(self._federation.clients)]
        found = {id(standing): standing for standing in standings}
        spent = {key: standing.spent for key, standing in found.items()}
        return [spent[id(standing)] for standing in standings]

    # --- the end

    def _nobody_left(self, end: NobodyLeft) -> str:
        """Why the run is over; the last round, in which nothing was released, is not part of its history."""
        reason = next(iter(self._fleet.spent.pop().declined.values()))
        return f"{end}. The first of them says: {reason.partition('. ')[0]}"

    def _finish(self, state: State, stopped: str, expected: Sequence[str]) -> Outcome:
        federation, spent = self._federation, self._fleet.spent
        budgets = client_budgets(federation, spent, self._spent())
        counts = federation.label_counts.tolist()
        outcome = self._course.finish(state, stopped, expected, spent, budgets, counts)
        return outcome if self._folder is None else written(self._folder, outcome, self._recipe.model.name)

    # --- before the first round

    def preflight(self) -> tuple[str, ...]:
        """What to expect; a few clients rehearse the first round, so that the size of an update is known."""
        federation = self._federation
        if (preparation := federation.method.preparation(self._recipe.name)) is not None:
            return preflight.of_preparation(federation, preparation)
        some = [client for client, part in enumerate(federation.parts) if len(part)][:REHEARSING]
        plan = federation.method.plan(federation.method.init(), self._recipe.name)
        local = self._fleet.rehearse(plan, some)
        if not any(federation.method.releases(plan)):
            return (*_failures(local, len(some)), "Clients send nothing.")
        norm, largest = float(np.mean(local.update)), float(np.max(local.largest))
        expected = preflight.of_federation(federation, update_norm=norm or None, largest_value=largest or None)
        return (*_failures(local, len(some)), *expected.sentences)


def _scored(federation: Federation, fleet: SimulatedFleet, state: State, exam: str) -> Scores:
    """All models that count, on the same examples: together their accuracy is the mean of theirs."""
    views = federation.method.views(state, fleet.kept)
    none = Scores.none(len(federation.dataset.classes))
    return Scores.together([none, *(fleet.grade(view, exam) for view in views)])


def _failures(local: LocalView, rehearsed: int) -> tuple[str, ...]:
    failed = int(local.failed.sum())
    if not failed:
        return ()
    return (
        f"The training of {failed} of {rehearsed} clients that rehearsed a round stopped being finite, so that they "
        "would report no change: lower training.optimizer.lr, or look at their data.",
    )


__all__ = ["Outcome", "came_to", "figures", "run"]

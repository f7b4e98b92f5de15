"""The one loop of a run: preparation, rounds, the reason to stop, and the outcome.

It knows methods, channels, fleets and stores by their interfaces. What only a simulation sees of its clients (losses,
ledgers, records), or only real clients need (plans that are stored before they are sent), is in its `ClientSide` and
its `Store`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.channels.interface import Channel
from sordino.errors import InvalidInput
from sordino.fleets.interface import Fleet
from sordino.learning.evaluation import Scores
from sordino.methods.interface import ClientState, ModelView, State
from sordino.parts.timeline import phase
from sordino.privacy.guarantee import Release
from sordino.privacy.history import RoundReleases
from sordino.privacy.ledger import terms
from sordino.report.records import PrivateFigure, PrivateScores, Result, RoundRecord
from sordino.runs.checkpoint import Checkpoint, Memory
from sordino.runs.coordinator import Attendance, Coordinator, EvaluationOutcome, NobodyLeft, RoundOutcome, Rules
from sordino.runs.federation import Federation
from sordino.runs.observed_fleet import ObservedFleet
from sordino.runs.observer import Observer, together
from sordino.runs.outcome import Outcome, client_budgets, statement_of
from sordino.runs.stopping import LOST_ROUNDS, Progress, Stopping, TooFewClients
from sordino.runs.store import Past, Store
from sordino.wire.messages import Plan

_DECLINED_AGAIN = "its plan went out again after a restart, and all clients declined: what came before does not count"


class ClientSide(ABC):
    """What a run sees of its clients: everything in a simulation, very little over a network."""

    fleet: Fleet
    may_return: bool  #: whether missing clients may come back: a run that lacks them pauses and does not end
    states: Mapping[int, ClientState] = MappingProxyType({})  #: what clients keep between rounds, if the run stores it
    memory: Memory = MappingProxyType({})  #: what else is stored with a checkpoint
    label_counts: NDArray[np.int64] | None = None  #: [clients, classes] of examples; None where nobody knows

    def restore(self, past: Past) -> None:  # noqa: B027 (real clients are their owners' to restore)
        """Put the clients back to where they were after the last stored round, as far as they are here."""

    @abstractmethod
    def spent(self, plan: Plan, attendance: Attendance, sent: int) -> RoundReleases:
        """What left clients in a round; `sent` is how often its plan went out."""

    @abstractmethod
    def score(self, state: State, exam: str) -> Scores:
        """The scores on an exam of all models that count."""

    def describe(self, record: RoundRecord, outcome: RoundOutcome) -> RoundRecord:
        """The record of a round, with what only this side can see."""
        return record

    def spending(self) -> Sequence[float] | None:
        """What each client's ledger has counted; None where nobody knows."""
        return None


class Run:
    """One run, from the start or from what its store knows. `name` is the federation's, which plans carry."""

    def __init__(
        self,
        federation: Federation,
        side: ClientSide,
        channel: Channel,
        store: Store,
        observer: Observer | Sequence[Observer] | None = None,
        *,
        name: str | None = None,
    ) -> None:
        self._federation, self._side, self._channel, self._store = federation, side, channel, store
        self._recipe, self._method = federation.recipe, federation.method
        self._observer, self._name = together(observer), name or federation.recipe.name
        newcomers = side.fleet.admits_newcomers
        self._stopping = Stopping(self._recipe, federation.clients, federation.metric, admits_newcomers=newcomers)
        self._progress = Progress()
        self._state = self._method.init()
        self._records: list[RoundRecord] = []
        self._spent: list[RoundReleases] = []
        self._scores: Scores | None = None  # of the last evaluation on the test set
        self._stopped: str | None = None
        self._lap = time.monotonic()

    def restore(self, past: Past) -> None:
        """Go on from what a store knows."""
        self._records, self._spent, self._stopped = list(past.records), list(past.spent), past.stopped
        for spent in self._spent:
            self._stopping.note_answers(spent)
        if past.checkpoint is not None:
            self._check_fit(past.checkpoint.state)
            self._progress = Progress.read(past.memory)
            if self._side.may_return:
                self._progress.lost = 0  # a restart is another try
            self._state = past.checkpoint.state
        self._side.restore(past)
        if self._spent:
            self._observer.restored(past)

    def _check_fit(self, state: State) -> None:
        """The model may be the user's own code, which can have changed since."""
        shapes = [
            {name: list(array.shape) for name, array in {"parameters": own.parameters, **own.arrays}.items()}
            for own in (state, self._state)
        ]
        if shapes[0] != shapes[1]:
            raise InvalidInput(
                f"the checkpoint holds {shapes[0]}, and the state here {shapes[1]}: the model or the method has "
                "changed since. Put the old one back, or start the run anew in another folder"
            )

    def go(self, expected: Sequence[str], absent: Mapping[int, str] | None = None) -> Outcome:
        """All rounds that are left, then the outcome; `expected` is the pre-flight, `absent` who is missing, and why.

        Ctrl-C leaves everything stored up to the last whole round.
        """
        stopped = self._stopped or self._stopping.reason(self._progress, self._state.round, self._records)
        if stopped is None:
            self._observer.started(self._federation, expected, self._state.round + 1)
            if absent:
                self._observer.absent(absent)
            try:
                stopped = self._rounds()
            except KeyboardInterrupt:
                self._store.flush()
                raise
        self._store.flush()
        with phase("result"):
            found = self._outcome(stopped, expected)
        with phase("files"):
            outcome = self._store.finish(found, self._federation)
        self._observer.finished(outcome)
        return outcome

    def _rounds(self) -> str:
        """Hold all rounds that are left; why there are no more."""
        rules = Rules(self._recipe.rounds.quorum, self._recipe.rounds.deadline or None)
        fleet = ObservedFleet(self._side.fleet, self._observer) if self._side.may_return else self._side.fleet
        coordinator = Coordinator(self._method, fleet, self._channel, self._name, rules)
        self._lap = time.monotonic()
        self._store.start(self._checkpoint(self._state))
        stopped = None
        try:
            with phase("preparation", 0):
                self._prepare(coordinator)
            while stopped is None:
                with phase("coordinate", self._state.round + 1):
                    self._round(coordinator)
                stopped = self._reason_to_stop()
        except NobodyLeft as end:
            return f"{end}. {_first_reason(end.attendance)}"
        return stopped

    def _reason_to_stop(self) -> str | None:
        progress = self._progress
        if self._side.may_return and progress.lost >= LOST_ROUNDS:
            raise TooFewClients(
                f"{progress.lost} rounds in a row did not count, the last of them because {progress.why_lost}. Nothing "
                "that was recorded is lost: go on with --resume when enough clients are back"
            )
        return self._stopping.reason(progress, self._state.round, self._records)

    # --- the preparation and the rounds

    def _prepare(self, coordinator: Coordinator) -> None:
        """What comes before the first round, unless it is over."""
        made = self._method.preparation(self._name)
        if made is None or any(spent.round == 0 for spent in self._spent):
            return
        self._observer.preparing(self._federation.clients)
        plan, sent = self._store.plan(made)
        try:
            attendance = coordinator.prepare(plan)
        except NobodyLeft as end:
            if sent > 1:  # they may have been prepared before
                self._end(RoundOutcome(plan, end.attendance, _DECLINED_AGAIN), self._state, sent, None)
            raise
        quorum = self._recipe.rounds.quorum
        if self._side.may_return and len(attendance.reported) < quorum:
            raise TooFewClients(
                f"{len(attendance.reported)} of {attendance.asked} clients are prepared, and the quorum is {quorum}. "
                "Nothing is lost: go on with --resume when more of them are back"
            )
        self._progress.note_traffic(attendance, self._seconds())
        self._end(RoundOutcome(plan, attendance), self._state, sent, None)
        self._observer.prepared(attendance)

    def _round(self, coordinator: Coordinator) -> None:
        """One round, stored before anybody hears of it."""
        plan, sent = self._store.plan(self._method.plan(self._state, self._name))
        try:
            after, outcome = coordinator.round(self._state, plan)
        except NobodyLeft as end:
            if sent == 1 and not self._side.fleet.admits_newcomers:
                raise
            # They may have reported before, or others may come: the round is lost, and the next one shows who is left.
            why = _DECLINED_AGAIN if sent > 1 else "all who were asked declined"
            after, outcome = self._state.unchanged(), RoundOutcome(plan, end.attendance, why)
        self._progress.note_round(outcome.attendance, outcome.why_lost, self._recipe.rounds.quorum)
        with phase("evaluate"):
            found = self._evaluate(coordinator, after)
            record = self._graded(self._side.describe(_record(outcome, sent - 1), outcome), after)
        record = replace(record, seconds=self._seconds(), private=None if found is None else self._private(found))
        self._progress.note_traffic(outcome.attendance, record.seconds)
        self._end(outcome, after, sent, record, found)
        self._observer.released(tuple(self._spent))
        self._observer.round(record, outcome.attendance)

    def _evaluate(self, coordinator: Coordinator, state: State) -> EvaluationOutcome | None:
        """What clients say of the model on records that they set aside, where that is due after this round.

        It is part of the round. After a crash the round is held again; where that gives the same model, the plan is the
        same, and clients answer with the same bytes.
        """
        evaluation = self._federation.evaluation
        if evaluation is None or not evaluation.due(state.round):
            return None
        found = coordinator.evaluate(evaluation, state)
        self._progress.note_traffic(found.attendance, 0.0)
        return found

    def _private(self, found: EvaluationOutcome) -> PrivateScores:
        """What the noisy counts say, as the record of a round has it."""
        evaluation, attendance = self._federation.evaluation, found.attendance
        assert evaluation is not None
        reports = len(attendance.reported)
        records, noise = evaluation.records(found.total, reports)
        return PrivateScores(
            tuple(PrivateFigure(**asdict(own)) for own in evaluation.estimates(found.total, reports)),
            records,
            noise,
            evaluation.epsilon,
            evaluation.spec.target.delta,
            asked=attendance.asked,
            reported=reports,
            declined=len(attendance.declined),
            refused=len(attendance.refused),
        )

    def _end(
        self,
        outcome: RoundOutcome,
        state: State,
        sent: int,
        record: RoundRecord | None,
        evaluated: EvaluationOutcome | None = None,
    ) -> None:
        """Make a round part of the run."""
        spent = self._side.spent(outcome.plan, outcome.attendance, sent)
        if evaluated is not None:
            spent = spent.beside(*self._spent_on(evaluated, sent))
        with phase("store"):
            self._store.end(outcome, spent, record, self._checkpoint(state))
        self._state = state
        self._spent.append(spent)
        self._stopping.note_answers(spent)
        if record is not None:
            self._records.append(record)

    def _spent_on(self, evaluated: EvaluationOutcome, sent: int) -> tuple[tuple[Release, ...], list[int]]:
        """What left in an evaluation: of all who were asked and did not decline, be their answer good or not.

        After a restart nobody knows who answered before it.
        """
        evaluation, attendance = self._federation.evaluation, evaluated.attendance
        assert evaluation is not None
        asked = attendance.clients if sent == 1 else attendance.chosen
        who = [client for client in asked if sent > 1 or client not in attendance.declined]
        return evaluation.releases(self._name, evaluated.plan.round), who

    def _checkpoint(self, state: State) -> Checkpoint:
        """What the run goes on from; a round that breaks off later leaves it untouched."""
        memory = {**self._side.memory, "memory": asdict(self._progress)}
        return Checkpoint(state, dict(self._side.states), memory)

    def _seconds(self) -> float:
        """Seconds since the last time."""
        before, self._lap = self._lap, time.monotonic()
        return self._lap - before

    def _graded(self, record: RoundRecord, state: State) -> RoundRecord:
        """The record with figures on the test set (for reporting) and the validation set (for stopping), where due."""
        if state.round % self._recipe.evaluation.every and state.round < self._recipe.rounds.count:
            return record
        self._scores = self._side.score(state, "test")
        if not self._scores.examples:
            return record
        if (metric := self._federation.metric) is not None:
            record = replace(record, metric=metric.kind, score=metric.value(self._scores))
        if "validation" in self._federation.exams:
            scores = self._side.score(state, "validation")
            by_metric = None if metric is None else metric.value(scores)
            record = replace(record, validation_accuracy=_accuracy(scores), validation_score=by_metric)
        return replace(record, accuracy=_accuracy(self._scores), loss=self._scores.loss)

    # --- the outcome

    def _outcome(self, stopped: str, expected: Sequence[str]) -> Outcome:
        federation, recipe, progress, state = self._federation, self._recipe, self._progress, self._state
        view = self._method.view(state)
        scores = self._scores
        if scores is None or not self._records or not self._records[-1].evaluated:
            scores = self._side.score(state, "test")
        counts = self._side.label_counts
        budgets = client_budgets(federation, self._spent, self._side.spending())
        result = Result(
            recipe.name,
            recipe.seed,
            stopped=stopped,
            rounds=len(self._records),
            accuracy=_accuracy(scores),
            loss=scores.loss if scores.examples else None,
            **self._judged(scores),
            private=next((record.private for record in reversed(self._records) if record.private is not None), None),
            test_examples=len(federation.exams["test"].examples),
            confusion=tuple(map(tuple, scores.confusion.tolist())) if scores.confusion.size else None,
            classes=federation.dataset.classes,
            label_counts=None if counts is None else tuple(map(tuple, counts.tolist())),
            budgets=budgets,
            budget_terms=terms(federation.budgets[0])
            if federation.budgets and budgets and budgets[0].limit is not None
            else None,
            parameters=federation.layout.size,
            clients=federation.clients,
            seconds=progress.seconds,
            bytes_up=progress.bytes_up,
            bytes_down=progress.bytes_down,
            preflight=tuple(expected),
            recipe_fingerprint=recipe.fingerprint,
            settings=recipe.settings(),
        )
        statement = statement_of(federation, self._spent, state.round, simulated=counts is not None)
        records, releases, tensors = tuple(self._records), tuple(self._spent), self._tensors(view)
        return Outcome(result, records, statement, view.parameters, tensors, releases=releases)

    def _judged(self, scores: Scores) -> dict[str, Any]:
        """The figure by the run's own metric, with its baseline and how sure it is; of accuracy a result knows both."""
        if (metric := self._federation.metric) is None or not scores.examples:
            return {}
        # every client's own model on the same examples: these are no further examples, and tell nothing of chance
        once = scores.examples == len(self._federation.exams["test"].examples)
        return {
            "metric": metric.kind,
            "score": metric.value(scores),
            "baseline": metric.baseline(scores),
            "interval": metric.interval(scores) if once else None,
            "smaller_is_better": metric.smaller_is_better,
        }

    def _tensors(self, view: ModelView) -> dict[str, NDArray[np.float32]]:
        named = self._federation.layout.unflatten(torch.from_numpy(view.parameters))
        return {name: tensor.numpy() for name, tensor in named.items()} | dict(view.buffers or {})


def _accuracy(scores: Scores) -> float | None:
    """The accuracy; None where nothing was scored, or nothing that has classes."""
    return scores.accuracy if scores.examples and scores.confusion.size else None


def _first_reason(attendance: Attendance) -> str:
    """What one of those who declined says."""
    client, reason = next(iter(attendance.reasons.items()), (0, ""))
    who = attendance.names.get(client, "The first of them")
    return f"{who} says: {reason.partition('. ')[0]}" if reason else "They gave no reason"


def _record(outcome: RoundOutcome, restarts: int) -> RoundRecord:
    """A round as every coordinator sees it."""
    attendance = outcome.attendance
    return RoundRecord(
        outcome.plan.round,
        asked=attendance.asked - len(attendance.vacant),
        reported=len(attendance.reported),
        declined=len(attendance.declined),
        refused=len(attendance.refused),
        late=attendance.strays["late"],
        strays=attendance.others,
        restarts=restarts,
        counted=outcome.counted,
        bytes_up=attendance.bytes_up,
        bytes_down=attendance.bytes_down,
    )


__all__ = ["ClientSide", "Run"]

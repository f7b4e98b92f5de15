"""What every run has beside its rounds, simulated or over a network: figures, why it stops, and what it comes to."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.coordinator import Round as Held
from sordino.learning.evaluation import Scores
from sordino.methods.interface import State, View
from sordino.privacy import history
from sordino.privacy.history import Spent
from sordino.privacy.ledger import terms
from sordino.privacy.statement import Statement
from sordino.recipe import Recipe
from sordino.report.folder import RunFolder
from sordino.report.records import ClientBudget, Result, Round
from sordino.wiring import Federation

REAL = "real clients"  #: the device in environment.json that tells a run with these from a simulation
LOST_ROUNDS = 3  #: rounds in a row without a quorum after which a run gives up


@dataclass(frozen=True, eq=False)
class Outcome:
    """What a run came to."""

    result: Result
    rounds: tuple[Round, ...]
    statement: Statement
    parameters: NDArray[np.float32]
    tensors: Mapping[str, NDArray[np.float32]]
    folder: Path | None = None

    @property
    def accuracy(self) -> float | None:
        """On the test set, after the last round."""
        return self.result.accuracy

    def to_json(self) -> dict[str, Any]:
        """The final figures, the statement and the paths written, ready for `json.dumps`."""
        return figures(self.result, self.statement.to_json(), self.folder)


def figures(result: Result, statement: Mapping[str, Any] | None, folder: Path | None) -> dict[str, Any]:
    """The final figures of a run, its statement and the paths written, ready for `json.dumps`."""
    files = () if folder is None else sorted(p for p in folder.iterdir() if p.is_file() and p.name[0] != ".")
    return {
        "name": result.name,
        "seed": result.seed,
        "accuracy": result.accuracy,
        "loss": result.loss,
        "rounds": result.rounds,
        "clients": result.clients,
        "parameters": result.parameters,
        "seconds": result.seconds,
        "stopped": result.stopped,
        "statement": statement,
        "folder": None if folder is None else str(folder),
        "files": [str(path) for path in files],
    }


def came_to(folder: Path) -> Result | None:
    """What the run in a folder came to; none while it is not over and its page, the last of its files, not written."""
    found = RunFolder.open(folder)
    return found.result() if (found.path / "report.html").exists() else None


def stated(federation: Federation, spent: Sequence[Spent], rounds: int, *, simulated: bool) -> Statement:
    """The privacy statement of a run of so many rounds, without any audit; `simulated` where noise follows a seed."""
    title = f"Privacy statement of {federation.recipe.name}"
    found = history.statement(spent, federation.clients, delta=federation.delta, title=title)
    return replace(found, caveats=_caveats(federation.recipe, rounds), simulated=simulated)


def _caveats(recipe: Recipe, held: int) -> tuple[str, ...]:
    """What a statement must say of a number of rounds that was not fixed in advance."""
    rounds = recipe.rounds
    if not rounds.may_stop_early:
        return ()
    fixed = f"The figures are those of {held} {'round' if held == 1 else 'rounds'} fixed in advance"
    if rounds.stop_on == "validation":
        return (
            "When to stop was decided by examples that clients set aside, which is a release of its own, without noise "
            f"and in none of these figures: of what it tells, nothing is proven. {fixed}.",
        )
    every = f"proven, whatever ends the run, is what all {rounds.count} rounds come to, which the pre-flight has"
    return (f"When to stop was decided by what the model scored. {fixed}; {every}.",) if held < rounds.count else ()


@dataclass
class Memory:
    """What a run remembers besides its state, so that it goes on and stops as if it had never been interrupted."""

    best: float = -1.0
    since_best: int = 0
    lost: int = 0  #: rounds in a row that did not count
    why_lost: str = ""
    seconds: float = 0.0
    bytes_up: int = 0
    bytes_down: int = 0


class Course:
    """The course of one run: what is remembered of its rounds. `scored` grades a state on an exam by its name."""

    def __init__(self, federation: Federation, scored: Callable[[State, str], Scores]) -> None:
        self._federation, self._recipe, self._scored = federation, federation.recipe, scored
        self.memory = Memory()
        self.records: list[Round] = []
        self.unwilling: set[int] = set()  #: clients whose last answer was to decline
        self._scores: Scores | None = None
        self._began = time.monotonic()

    # --- one round

    def held(self, held: Held) -> None:
        """Remember what a round brought and whether it counted."""
        memory, attendance = self.memory, held.attendance
        if held.counted:
            memory.lost = 0
        elif attendance.asked - len(attendance.declined) >= self._recipe.rounds.quorum:
            memory.lost += 1  # enough were willing, and still nothing came of it
            memory.why_lost = held.why_lost
        memory.bytes_up += attendance.bytes_up
        memory.bytes_down += attendance.bytes_down

    def add(self, record: Round, graded: Mapping[str, Any]) -> Round:
        """The record of a round with its figures and its time, which is over now."""
        complete = replace(record, **graded, seconds=self.lap())
        self.memory.seconds += complete.seconds
        self.records.append(complete)
        return complete

    def answered(self, spent: Spent) -> None:
        """Remember who declined in a round, and who no longer does."""
        self.unwilling.update(spent.declined)
        self.unwilling.difference_update(*spent.clients)

    def lap(self) -> float:
        """Seconds since the last time."""
        now = time.monotonic()
        lap, self._began = now - self._began, now
        return lap

    def grade(self, state: State) -> dict[str, Any]:
        """Figures on the test set (for reporting) and the validation set (for stopping), where they are due."""
        rounds = self._recipe.rounds
        if state.round % self._recipe.evaluation.every and state.round < rounds.count:
            return {}
        self._scores = self._scored(state, "test")
        if not self._scores.examples:
            return {}
        found: dict[str, Any] = {"accuracy": self._scores.accuracy, "loss": _finite(self._scores.loss)}
        if "validation" in self._federation.exams:
            found["validation_accuracy"] = self._scored(state, "validation").accuracy
        watched = found["accuracy"] if rounds.stop_on == "test" else found.get("validation_accuracy", 0.0)
        if watched > self.memory.best:
            self.memory.best, self.memory.since_best = watched, 0
        else:
            self.memory.since_best += 1
        return found

    # --- the end

    def why_over(self, state: State) -> str | None:
        """Why there is no further round; None where there is one."""
        rounds, memory = self._recipe.rounds, self.memory
        where = "the test set, which this recipe declares public" if rounds.stop_on == "test" else "validation examples"
        if rounds.target_accuracy and memory.best >= rounds.target_accuracy:
            return f"reached an accuracy of {memory.best:.2%} on {where} in round {state.round}"
        if rounds.patience and memory.since_best >= rounds.patience:
            return f"no improvement on {where} in {memory.since_best} evaluations"
        if memory.lost >= LOST_ROUNDS:
            return f"{memory.lost} rounds in a row did not count, the last of them because {memory.why_lost}"
        if state.round >= rounds.count:
            return f"all {rounds.count} rounds are done" if rounds.count > 1 else "its one round is done"
        return self._too_few_willing(state)

    def _too_few_willing(self, state: State) -> str | None:
        clients, quorum = self._federation.clients, self._recipe.rounds.quorum
        left = clients - len(self.unwilling)
        if left >= quorum:
            return None
        return (
            f"after round {state.round}, {left} of {clients} clients have budget left, fewer than the quorum of "
            f"{quorum}. Raise clients.budget (real clients: each owner its own limit, in client.toml), ask for a "
            "smaller epsilon, or run fewer rounds"
        )

    def finish(
        self,
        state: State,
        stopped: str,
        expected: Sequence[str],
        spent: Sequence[Spent],
        budgets: Sequence[ClientBudget],
        label_counts: Sequence[Sequence[int]] | None,
    ) -> Outcome:
        """What the run came to; nothing is written."""
        federation, recipe = self._federation, self._recipe
        view = federation.method.view(state)
        if self._scores is None or not self.records or self.records[-1].accuracy is None:
            self._scores = self._scored(state, "test")
        statement = stated(federation, spent, state.round, simulated=label_counts is not None)
        result = Result(
            recipe.name,
            recipe.seed,
            stopped=stopped,
            rounds=len(self.records),
            accuracy=self._scores.accuracy if self._scores.examples else None,
            loss=_finite(self._scores.loss) if self._scores.examples else None,
            confusion=tuple(map(tuple, self._scores.confusion.tolist())),
            classes=federation.dataset.classes,
            label_counts=None if label_counts is None else tuple(map(tuple, label_counts)),
            budgets=tuple(budgets),
            budget_terms=terms(federation.budgets[0]) if federation.budgets and budgets[0].limit is not None else None,
            parameters=federation.layout.size,
            clients=federation.clients,
            seconds=self.memory.seconds,
            bytes_up=self.memory.bytes_up,
            bytes_down=self.memory.bytes_down,
            preflight=tuple(expected),
            recipe_fingerprint=recipe.fingerprint,
            settings=recipe.settings(),
        )
        return Outcome(result, tuple(self.records), statement, view.parameters, self._tensors(view))

    def _tensors(self, view: View) -> dict[str, NDArray[np.float32]]:
        named = self._federation.layout.unflatten(torch.from_numpy(view.parameters))
        return {name: tensor.numpy() for name, tensor in named.items()} | dict(view.buffers or {})


def written(folder: RunFolder, outcome: Outcome, model: str) -> Outcome:
    """Write down what a run of this model came to; the page comes last."""
    from sordino.report.page import report_page

    about = {"recipe": outcome.result.name, "model": model, "seed": outcome.result.seed}
    # One text: the file's format keeps several in no fixed order, and the same run gives the same bytes.
    folder.write_model(outcome.tensors, {"sordino": json.dumps(about)})
    folder.write_statement(outcome.statement)
    folder.write_result(outcome.result)
    folder.write_report(report_page(folder))
    return replace(outcome, folder=folder.path)


def client_budgets(
    federation: Federation, history: Sequence[Spent], spending: Sequence[float] | None
) -> tuple[ClientBudget, ...]:
    """Each client's share in the history; `spending` is what their ledgers have counted, None where nobody knows."""
    clients, epsilons = federation.clients, federation.recipe.epsilons()
    limits = None if spending is None else federation.budgets  # real owners set their own, and tell nobody
    reports, declined = np.zeros(clients, np.int64), np.zeros(clients, np.int64)
    for spent in history:
        for who in spent.clients if spent.round else ():  # before the first round nothing is reported
            reports[list(who)] += 1
        declined[list(spent.declined)] += 1
    return tuple(
        ClientBudget(
            k,
            epsilon=None if epsilons is None else epsilons[k],
            limit=None if limits is None else limits[k].limit,
            spent=spending[k] if spending else None,
            reports=int(reports[k]),
            declined=int(declined[k]),
        )
        for k in range(clients)
    )


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


__all__ = [
    "LOST_ROUNDS", "REAL", "Course", "Memory", "Outcome", "came_to", "client_budgets", "figures", "stated", "written",
]  # fmt: skip

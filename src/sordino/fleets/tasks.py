"""What simulated clients compute: their records, everything that a process needs of a run, and jobs for it to do.

A job depends on its own clients' records and their own streams of the seed alone, so results are the same whichever
process does it: to the last bit on a processor, to rounding where processes share a GPU.
"""

from __future__ import annotations

import traceback
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Protocol, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sordino.errors import SordinoError
from sordino.fleets.interface import Tallied
from sordino.learning.cohort import ClientData
from sordino.learning.evaluation import Exam, ExamPiece, Scores, in_pieces, score
from sordino.learning.examples import Examples, Normalisation
from sordino.learning.models import Loss
from sordino.methods.interface import Bench, ClientState, Cohort, LocalView, Method, Reported, Seen
from sordino.methods.private_evaluation import PrivateEvaluation
from sordino.methods.upload import Tally
from sordino.parts.timeline import phase
from sordino.randomness import Keystream
from sordino.wire.messages import ANSWER_BYTES, Plan, answer_to

T_co = TypeVar("T_co", covariant=True)

CACHED_BYTES = 2**21  #: of clients' vectors that are made at a time, or of one width of clients
SUM_BYTES = 8  #: of each value in a sum of reports
MOST_DEATHS = 3  #: of workers at one job, before the run is given up


# --- the clients' data ------------------------------------------------------------------------------------------------


class PackedParts(Sequence[NDArray[np.int64]]):
    """Positions of many clients' records in one array, which is cheap to send and to share for any number of them."""

    def __init__(self, flat: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
        self._flat, self._ends = flat, ends

    @classmethod
    def pack(cls, parts: Sequence[NDArray[np.int64]]) -> PackedParts:
        """The same positions, packed."""
        sizes = np.fromiter(map(len, parts), np.int64, len(parts))
        flat = np.concatenate([np.zeros(0, np.int64), *parts])
        return cls(flat, np.cumsum(sizes))

    def __len__(self) -> int:
        return len(self._ends)

    def __getitem__(self, client: Any) -> Any:
        if not 0 <= client < len(self._ends):
            raise IndexError(client)
        return self._flat[self._ends[client - 1] if client else 0 : self._ends[client]]


@dataclass(frozen=True, eq=False)
class Population:
    """Whose records are whose: all examples and, for each client, the positions of its own."""

    examples: Examples
    parts: Sequence[NDArray[np.int64]]
    normalisation: Normalisation
    _name: object = field(default_factory=object, init=False, repr=False)  # no other population has it
    _ready: dict[tuple[int, torch.device], ClientData | None] = field(default_factory=dict, init=False, repr=False)

    def __len__(self) -> int:
        return len(self.parts)

    def size(self, client: int) -> int:
        """How many records a client holds."""
        return len(self.parts[client])

    def data(self, client: int, device: torch.device) -> ClientData | None:
        """A client's normalised records; None if it has none."""
        rows = self.parts[client]
        if not len(rows):
            return None
        x = torch.from_numpy(self.normalisation.apply(self.examples.x[rows]))
        return ClientData(x.to(device), torch.from_numpy(self.examples.y[rows]).to(device), (self._name, client))

    def kept_data(self, client: int, device: torch.device) -> ClientData | None:
        """The same, made once: for methods that keep much more of every record (`Method.keeps`)."""
        if (client, device) not in self._ready:
            self._ready[client, device] = self.data(client, device)
        return self._ready[client, device]


# --- tasks ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Work:
    """Everything that is needed to compute tasks: it is sent to each worker once."""

    method: Method
    model: nn.Module
    loss: Loss
    population: Population
    exams: Mapping[str, Exam]
    seed: int
    bench: Bench
    evaluation: PrivateEvaluation | None = None
    held_out: Sequence[NDArray[np.int64]] = ()  #: positions of the records that each client sets aside
    _tally: dict[str, Any] = field(default_factory=dict, init=False, repr=False)  # of the plan at hand

    def draw(self, round: int) -> Callable[[Sequence[int]], Keystream]:
        """Clients' randomness in a round of the simulation."""
        return lambda clients: Keystream.simulation(self.seed, list(clients), round)

    def tally(self, plan: Plan) -> Tally:
        """An empty sum for reports on this plan; what it learns of mechanisms is kept for the next one."""
        last = self._tally["last"] if self._tally.get("plan") is plan else self.method.tally(plan)
        empty: Tally = last.emptied()
        self._tally.update(plan=plan, last=empty)
        return empty

    def placed(self, place: Callable[[Examples], Examples]) -> Work:
        """The same with all examples where `place` puts them, for processes to share instead of copying them."""
        exams = {name: replace(exam, examples=place(exam.examples)) for name, exam in self.exams.items()}
        population = replace(
            self.population, examples=place(self.population.examples), parts=PackedParts.pack(self.population.parts)
        )
        return replace(self, population=population, exams=exams, held_out=PackedParts.pack(self.held_out))

    def on(self, device: torch.device) -> Work:
        """The same on another device."""
        return replace(self, bench=Bench(self.bench.execution, device))


@dataclass(frozen=True)
class Task:
    """Some clients' share of a round."""

    clients: tuple[int, ...]
    states: tuple[ClientState, ...]
    prepared: tuple[ClientState, ...] = ()
    home: int | None = None  #: the worker that keeps what was computed from their records; None: whichever is free

    def do(self, work: Work, plan: Plan) -> tuple[tuple[int, ...], Reported]:
        """These clients, and their answers to the plan with what they keep and what their owners see."""
        return self.clients, _answers(plan, self.report(work, plan))

    def report(self, work: Work, plan: Plan) -> Reported:
        """Their reports on the plan."""
        with phase("records"):
            cohort = self.cohort(work)
        with phase("randomise"):  # and train, which is a phase of its own
            return work.method.report(plan, cohort, work.draw(plan.round), work.bench)

    def cohort(self, work: Work) -> Cohort:
        """These clients with their data, or with what they made of it where they have prepared."""
        population, device = work.population, work.bench.device
        data = population.kept_data if work.method.keeps else population.data
        absent = (None,) * len(self.clients)
        return Cohort(
            self.clients,
            absent if self.prepared else tuple(data(client, device) for client in self.clients),
            self.states,
            tuple(population.size(client) for client in self.clients),
            self.prepared,
        )


def _answers(plan: Plan, reported: Reported) -> Reported:
    """The same with each report as the answer that is sent."""
    return replace(reported, bodies=[answer_to(plan, body) for body in reported.bodies])


@dataclass(frozen=True)
class SummedReports(Reported):
    """What K clients report, added up: there are no bodies."""

    sum: Tallied


@dataclass(frozen=True)
class TallyTask(Task):
    """The same where the sum of the reports is all that is wanted: it takes their place where it has fewer bytes."""

    def do(self, work: Work, plan: Plan) -> tuple[tuple[int, ...], Reported]:
        """These clients, and their answers or the sum of these."""
        values, tally, done = work.method.upload(plan).values, work.tally(plan), list[Reported]()
        size, refused, summed = 0, dict[int, str](), None
        for piece in self._pieces(work, values):
            reported = piece.report(work, plan)
            own = sum(map(len, reported.bodies))
            if summed is None:  # the first clients decide for all: reports of other classes may have other sizes
                summed = own * len(self.clients) > SUM_BYTES * values * len(piece.clients)
            if summed:
                with phase("aggregate"):
                    refused |= tally.add(piece.clients, reported.bodies)
                reported = replace(reported, bodies=[])
            size += own
            done.append(reported)
        whole = _joined(done)
        if not summed:
            return self.clients, _answers(plan, whole)
        found = Tallied(self.clients, refused, tally.partial_sum(), size + ANSWER_BYTES * len(self.clients))
        return self.clients, SummedReports([], whole.states, whole.local, found)

    def _pieces(self, work: Work, values: int) -> Iterator[Task]:
        """The same clients a few at a time, so that what is made of their vectors stays in the processor's cache."""
        width = work.bench.execution.width
        size = max(1, CACHED_BYTES // (4 * values) // width) * width
        for first in range(0, len(self.clients), size):
            some = slice(first, first + size)
            yield Task(self.clients[some], self.states[some], self.prepared[some])


def _joined(done: Sequence[Reported]) -> Reported:
    """What several cohorts report, as one."""
    local = (np.concatenate([getattr(own.local, name.name) for own in done]) for name in fields(LocalView))
    bodies = [body for own in done for body in own.bodies]
    return Reported(bodies, tuple(state for own in done for state in own.states), LocalView(*local))


@dataclass(frozen=True)
class Rehearsal:
    """Some clients' training on a plan, of which nothing is sent and nothing kept."""

    clients: tuple[int, ...]

    def do(self, work: Work, plan: Plan) -> LocalView:
        """What the clients' owners see."""
        cohort = Task(self.clients, ({},) * len(self.clients)).cohort(work)
        with phase("rehearsal"):
            return work.method.rehearse(plan, cohort, work.draw(plan.round), work.bench)


@dataclass(frozen=True)
class Preparation:
    """Some clients' work before the first round."""

    clients: tuple[int, ...]

    def do(self, work: Work, plan: Plan) -> tuple[tuple[int, ...], Sequence[ClientState]]:
        """These clients, and what they made of their data."""
        cohort = Task(self.clients, ({},) * len(self.clients)).cohort(work)
        with phase("prepare"):
            return self.clients, work.method.prepare(plan, cohort, work.draw(plan.round), work.bench)


@dataclass(frozen=True)
class Counting:
    """Some clients' private evaluation of a model, on the records that they set aside."""

    clients: tuple[int, ...]

    def do(self, work: Work, plan: Plan) -> tuple[tuple[int, ...], list[bytes]]:
        """These clients, and their answers to the plan."""
        assert work.evaluation is not None
        draw, aside = work.draw(plan.round), replace(work.population, parts=work.held_out)
        cpu = torch.device("cpu")  # where one record's answer depends on no other
        bodies = [work.evaluation.report(plan, aside.data(k, cpu), draw, k) for k in self.clients]
        return self.clients, [answer_to(plan, body) for body in bodies]


@dataclass(frozen=True)
class Showing:
    """A piece of an exam as everybody sees it, for models that see examples through something public."""

    exam: str
    piece: slice
    number: int

    def do(self, work: Work, plan: Plan) -> tuple[int, Seen]:
        """The examples as the model sees them, and the number of the piece."""
        exam = work.exams[self.exam]
        x = torch.from_numpy(exam.normalisation.apply(exam.examples.x[self.piece]))
        return self.number, work.method.shown(x.to(work.bench.device))


@dataclass(frozen=True)
class Look:
    """One client's look at its share of an exam, for models that see examples through what clients prepared."""

    exam: str
    client: int
    prepared: ClientState

    def do(self, work: Work, plan: Plan) -> Seen:
        """The examples of its share as the model sees them, in their order."""
        exam, randomness = work.exams[self.exam], work.draw(0)([self.client])
        share, seen = exam.share(self.client), []
        for piece in in_pieces(len(share)):
            x = torch.from_numpy(exam.normalisation.apply(exam.examples.x[share[piece]])).to(work.bench.device)
            seen.append(work.method.seen(x, share[piece], self.client, self.prepared, randomness))
        return cast("Seen", np.concatenate(seen))


@dataclass(frozen=True)
class Grading:
    """One piece of an exam, the model's parameters being those of the plan at hand."""

    exam: str
    piece: slice | NDArray[np.int64]
    number: int
    inputs: Seen | None = None  #: the examples as a client sees them; None: as they are

    def do(self, work: Work, plan: Plan) -> tuple[int, Scores]:
        """The scores of this piece, and its number."""
        buffers = {name: value for name, value in plan.arrays.items() if name != "parameters"} or None
        parameters = plan.arrays["parameters"]
        exam, device = work.exams[self.exam], work.bench.device
        piece = ExamPiece(exam, self.piece, self.inputs)
        with phase("evaluate"):
            return self.number, score(work.model, parameters, buffers, work.loss, piece, device)


class Job(Protocol[T_co]):
    """What a process computes at a time."""

    def do(self, work: Work, plan: Plan) -> T_co:
        """Do it on a plan."""


def attempt(work: Work, plan: Plan, job: Job[object]) -> object:
    """What came of a job, or what went wrong, for the parent to show."""
    try:
        return job.do(work, plan)
    except SordinoError as error:
        return error
    except Exception:  # of the user's own model or loss, most likely: where it happened is what helps
        return RuntimeError(f"in a worker:\n{traceback.format_exc()}")


# --- jobs that wait ---------------------------------------------------------------------------------------------------


class WorkerLost(SordinoError):
    """Workers died (killed, or out of memory) and nobody could do their jobs: the run can be resumed."""


class JobQueue:
    """Jobs that nobody has taken yet, those with a home apart from the others."""

    def __init__(self, jobs: Sequence[Job[object]]) -> None:
        self._by_home: dict[int | None, deque[Job[object]]] = {}
        self._deaths = Counter[int]()  # of workers, by the job that they had
        for job in jobs:
            self._by_home.setdefault(getattr(job, "home", None), deque()).append(job)

    def __bool__(self) -> bool:
        return any(self._by_home.values())

    def next_for(self, worker: int, crew: Collection[int]) -> Job[object] | None:
        """The next job of this worker's own, else of anybody's, else of one who is not in the crew; or None."""
        homeless = (home for home in self._by_home if home not in crew)
        return next((own.popleft() for home in (worker, None, *homeless) if (own := self._by_home.get(home))), None)

    def put_back(self, job: Job[object], why: str) -> None:
        """Let another worker do a job after the death of the one who had it."""
        self.count_death(why, job)
        self._by_home.setdefault(getattr(job, "home", None), deque()).appendleft(job)

    def count_death(self, why: str, job: Job[object] | None = None) -> None:
        """Count a worker's death, at a job or before its first; the run ends after several in a row."""
        self._deaths[id(job)] += 1
        if self._deaths[id(job)] == MOST_DEATHS:
            raise WorkerLost(
                f"{MOST_DEATHS} workers died one after the other at one job, the last so: {why}. Perhaps there is too "
                "little memory. Nothing recorded is lost: go on with --resume, perhaps with fewer --workers"
            )

    def clear(self) -> None:
        """Forget the jobs."""
        self._by_home.clear()


__all__ = [
    "Job", "JobQueue", "PackedParts", "Population", "SummedReports", "TallyTask", "Task", "Work", "WorkerLost",
    "attempt",
]  # fmt: skip

"""The simulated fleet: N clients on one machine, a few at a time, in one process or in one process per core.

What a client sends depends on its own data and its own stream of the seed alone, so results are the same for any
number of workers: to the last bit on a processor, to rounding where workers share a GPU. Clients decline as real ones
do: a ledger in memory asks before any data is touched. Workers are plain child processes that are handed tasks over a
socket; data lie in files that all of them map.
"""

from __future__ import annotations

import math
import os
import pickle
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from multiprocessing import connection
from pathlib import Path
from typing import Any, Protocol, TypeAlias, TypeVar, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sordino.channels.secure_sum import Members
from sordino.channels.spec import ReleasesOf
from sordino.errors import InvalidInput, SordinoError
from sordino.fleets.interface import Fleet, Reply
from sordino.learning.cohort import ClientData
from sordino.learning.evaluation import Exam, ExamPiece, Scores, in_pieces, score
from sordino.learning.examples import Examples, Normalisation
from sordino.learning.models import Loss
from sordino.methods.interface import Bench, ClientState, Cohort, LocalView, Method, ModelView, Reported, Seen
from sordino.methods.private_evaluation import EVALUATE, PrivateEvaluation
from sordino.parts.timeline import Timeline, count_beside, phase
from sordino.privacy.history import RoundReleases
from sordino.privacy.ledger import MemoryLedger
from sordino.randomness import Keystream
from sordino.wire.messages import Plan, answer_to

Pipe: TypeAlias = "connection.Connection[Any, Any]"
T_co = TypeVar("T_co", covariant=True)

TASK_BYTES = 2**26  #: the reports and vectors of one task take about this much memory, at most
GPU_TASK_BYTES = 2**31  #: on a GPU, which is idle with a few clients at a time
TASK_CLIENTS = 64  #: and of this many clients on a processor, at most
TASKS_PER_WORKER = 6  #: so that no worker waits long for another at the end of a round
WORKER_SECONDS = 2.0  #: how long workers have to end by themselves


class WorkerLost(SordinoError):
    """A worker process died (killed, or out of memory): the round is lost, the run can be resumed."""


class NoRoom(SordinoError):
    """The files that workers share could not be written."""


# --- the clients' data ------------------------------------------------------------------------------------------------


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

    def draw(self, round: int) -> Callable[[Sequence[int]], Keystream]:
        """Clients' randomness in a round of the simulation."""
        return lambda clients: Keystream.simulation(self.seed, list(clients), round)

    def mapped(self, folder: Path) -> Work:
        """The same with all examples in files of a folder, which processes share instead of copying them."""
        exams = {
            name: replace(exam, examples=_MappedExamples.save(exam.examples, folder / name))
            for name, exam in self.exams.items()
        }
        examples = _MappedExamples.save(self.population.examples, folder / "clients")
        return replace(self, population=replace(self.population, examples=examples), exams=exams)


class _MappedExamples(Examples):
    """Examples in mapped files: what travels to another process is where they lie."""

    files: tuple[str, str]

    @classmethod
    def save(cls, examples: Examples, path: Path) -> Examples:
        """Write examples to two files beginning with this path, and map them."""
        files = f"{path}-x.npy", f"{path}-y.npy"
        np.save(files[0], examples.x)
        np.save(files[1], examples.y)
        return cls.load(*files)

    @classmethod
    def load(cls, *files: str) -> Examples:
        """The examples in two files."""
        examples = object.__new__(cls)  # checked once already, when they were read
        x, y = (np.load(file, mmap_mode="c") for file in files)
        vars(examples).update(x=x, y=y, files=files)
        return examples

    def __reduce__(self) -> tuple[Callable[..., Examples], tuple[str, ...]]:
        return _MappedExamples.load, self.files


@dataclass(frozen=True)
class Task:
    """Some clients' share of a round."""

    clients: tuple[int, ...]
    states: tuple[ClientState, ...]
    prepared: tuple[ClientState, ...] = ()
    home: int | None = None  #: the worker that does it; None: whichever is free

    def do(self, work: Work, plan: Plan) -> tuple[tuple[int, ...], Reported]:
        """These clients, and their answers to the plan with what they keep and what their owners see."""
        with phase("records"):
            cohort = self.cohort(work)
        with phase("randomise"):  # and train, which is a phase of its own
            reported = work.method.report(plan, cohort, work.draw(plan.round), work.bench)
        return self.clients, replace(reported, bodies=[answer_to(plan, body) for body in reported.bodies])

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


# --- one process, or several ------------------------------------------------------------------------------------------


class InProcess:
    """Jobs done in this process, one after the other."""

    workers = 1

    def __init__(self, work: Work) -> None:
        self.work = work

    def run(self, plan: Plan, jobs: Sequence[Job[T_co]], deadline: float | None = None) -> Iterator[T_co]:
        """Do the jobs; stop where the deadline has passed."""
        for job in jobs:
            if deadline is not None and time.monotonic() > deadline:
                return
            yield job.do(self.work, plan)

    def close(self) -> None:
        """Nothing to let go of."""


class _Waiting:
    """Jobs that nobody has taken yet, those with a home apart from the others."""

    def __init__(self, jobs: Sequence[Job[object]]) -> None:
        self._by_home: dict[int | None, deque[Job[object]]] = {}
        for job in jobs:
            self._by_home.setdefault(getattr(job, "home", None), deque()).append(job)

    def next_for(self, worker: int) -> Job[object] | None:
        """The next job of this worker's own, else the next that is anybody's; None where there is none."""
        for home in (worker, None):
            if own := self._by_home.get(home):
                return own.popleft()
        return None

    def clear(self) -> None:
        """Forget them."""
        self._by_home.clear()


class Workers:
    """Jobs spread over child processes with one thread each; results come back in any order."""

    def __init__(self, work: Work, workers: int) -> None:
        self.workers = workers
        with _room_for_files():
            self._folder = tempfile.TemporaryDirectory(prefix="sordino-")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._pipes: list[Pipe] = []
        self._behind: list[Pipe] = []  # of workers whose last message nobody waited for
        try:
            with _room_for_files():
                self.work = work.mapped(Path(self._folder.name))
            content = pickle.dumps(self.work, protocol=pickle.HIGHEST_PROTOCOL)
            for _ in range(workers):
                self._start()
            with self._watched():
                for pipe in self._pipes:
                    pipe.send_bytes(content)
                    self._behind.append(pipe)
        except BaseException:
            self.close()
            raise

    def _start(self) -> None:
        ours, theirs = socket.socketpair()
        process = subprocess.Popen(
            [sys.executable, "-c", _WORKER, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
            stdin=subprocess.DEVNULL,
            process_group=0,  # a terminal's Ctrl-C is the parent's to handle
        )
        theirs.close()
        self._processes.append(process)
        self._pipes.append(connection.Connection(ours.detach()))

    def run(self, plan: Plan, jobs: Sequence[Job[T_co]], deadline: float | None = None) -> Iterator[T_co]:
        """Do the jobs, each worker taking the next as soon as it is free."""
        waiting, busy = _Waiting(jobs), list[Pipe]()
        number = {pipe: k for k, pipe in enumerate(self._pipes)}
        with self._watched():
            with phase("start of workers"):
                while self._behind:
                    self._behind.pop().recv()
            self._folder.cleanup()  # everyone has mapped the files: whatever happens now, none are left behind
            try:
                for pipe in self._pipes:
                    if (job := waiting.next_for(number[pipe])) is not None:
                        pipe.send(plan.encode())
                        pipe.send(job)
                        busy.append(pipe)
                while busy:
                    left = None if deadline is None else max(0.0, deadline - time.monotonic())
                    if left == 0.0:
                        waiting.clear()
                    with phase("wait for workers"):
                        ready = connection.wait(busy, left)
                    if not ready:
                        return
                    for pipe in [pipe for pipe in busy if pipe in ready]:
                        answer, spans = pipe.recv()
                        count_beside(spans)
                        if (job := waiting.next_for(number[pipe])) is not None:
                            pipe.send(job)
                        else:
                            busy.remove(pipe)
                        if isinstance(answer, BaseException):
                            raise answer
                        yield answer
            finally:
                self._behind = busy  # heard out before the next jobs, so that an interrupted run ends at once

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Turns the end of a worker into a sentence."""
        try:
            yield
        except (EOFError, ConnectionError):
            time.sleep(0.2)  # the kernel closes a dying process's files before its parent may ask how it ended
            codes = [(k, code) for k, process in enumerate(self._processes) if (code := process.poll()) is not None]
            ended = [
                f"worker {k} ended with {f'signal {signal.Signals(-code).name}' if code < 0 else f'exit code {code}'}"
                for k, code in codes
            ]
            raise WorkerLost(
                f"{'; '.join(ended) or 'a worker closed its end'}: out of memory, or stopped from outside. Nothing "
                "recorded is lost: go on with --resume, perhaps with fewer --workers"
            ) from None

    def close(self) -> None:
        """End the workers and remove their files."""
        for pipe in self._pipes:
            pipe.close()
        patience = time.monotonic() + WORKER_SECONDS
        for process in self._processes:
            try:
                process.wait(timeout=max(0.0, patience - time.monotonic()))
            except subprocess.TimeoutExpired:  # in the middle of a task that nobody waits for
                process.kill()
                process.wait()
        self._folder.cleanup()


@contextmanager
def _room_for_files() -> Iterator[None]:
    """Turns a failure to write into a sentence."""
    try:
        yield
    except OSError as error:
        raise NoRoom(
            f"the workers' copy of the data could not be written to the temporary folder ({error.strerror or error}): "
            "make room there, name another folder in TMPDIR, or take --workers 1, which needs none"
        ) from None


_WORKER = "import sys; from sordino.fleets.simulated import _serve; _serve(int(sys.argv[1]))"


def _serve(descriptor: int) -> None:
    """A worker's life: everything once, then plans and jobs, until the pipe is closed."""
    torch.set_num_threads(1)
    pipe: Pipe = connection.Connection(descriptor)
    try:
        work: Work = pickle.loads(pipe.recv_bytes())
        pipe.send("ready")
        with Timeline() as timeline:
            while True:
                message = pipe.recv()
                if isinstance(message, bytes):
                    plan = Plan.decode(message)
                else:
                    answer = _attempt(work, plan, message)
                    pipe.send((answer, timeline.take()))
    except (EOFError, ConnectionError):
        return


def _attempt(work: Work, plan: Plan, job: Job[object]) -> object:
    """What came of a job, or what went wrong, for the parent to show."""
    try:
        return job.do(work, plan)
    except SordinoError as error:
        return error
    except Exception:  # of the user's own model or loss, most likely: where it happened is what helps
        return RuntimeError(f"in a worker:\n{traceback.format_exc()}")


# --- the fleet --------------------------------------------------------------------------------------------------------


@dataclass
class RoundDiagnostics:
    """What only a simulation can see of one round."""

    failed: list[int] = field(default_factory=list)
    dropped: dict[int, str] = field(default_factory=dict)  #: clients that refused to go on with a sum, and why
    losses: list[float] = field(default_factory=list)  #: of clients that trained
    clipped: list[float] = field(default_factory=list)
    updates: list[float] = field(default_factory=list)

    def add(self, clients: Sequence[int], local: LocalView) -> None:
        """Add what the owners of some clients saw."""
        self.failed += [client for client, failed in zip(clients, local.failed, strict=True) if failed]
        self.losses += local.loss[np.isfinite(local.loss)].tolist()
        self.clipped += local.clipped.tolist()
        self.updates += local.update.tolist()

    @staticmethod
    def mean(values: Sequence[float]) -> float | None:
        """The same in whatever order clients came: fsum rounds once, at the end."""
        return math.fsum(values) / len(values) if values else None


class SimulatedFleet(Fleet):
    """Simulated clients with their data, ledgers and states."""

    def __init__(
        self,
        work: Work,
        ledger: MemoryLedger | None,
        *,
        workers: int = 1,
        members: Members | None = None,
        releases: ReleasesOf | None = None,
        prepared: MutableMapping[int, ClientState] | None = None,
    ) -> None:
        self._ledger = ledger
        self._members = members  # the clients' side of secure sums, where reports travel in these
        self._releases = work.method.releases if releases is None else releases  # with what the channel adds to them
        self._hands: InProcess | Workers = InProcess(work) if workers == 1 else Workers(work, workers)
        self.work = self._hands.work  #: where workers share the examples, these are mapped
        self._report_bytes = 4 * sum(parameter.numel() for parameter in work.model.parameters())
        self.states: dict[int, ClientState] = {}
        #: what clients made before the first round: given back as it was, never made again
        self.prepared: MutableMapping[int, ClientState] = {} if prepared is None else prepared
        self._looks: dict[tuple[str, int], Seen] = {}
        self._showings: dict[str, dict[int, Seen]] = {}
        self.diagnostics = RoundDiagnostics()
        self._spent: RoundReleases | None = None  # of the last round

    def exchange(self, step: str, messages: Mapping[int, bytes], deadline: float | None) -> Generator[Reply]:
        """The clients' replies to a plan, as they are computed; declines come first."""
        if self._members is not None and step in self._members.steps:
            yield from self._sum(self._members, step, messages, deadline)
            return
        if step == EVALUATE:
            yield from self._evaluations(messages, deadline)
            return
        if step not in ("prepare", "report"):
            raise InvalidInput(f"simulated clients know the step 'report' (and 'prepare' before it), not {step!r}")
        self.diagnostics = RoundDiagnostics()
        for message in {id(m): m for m in messages.values()}.values():
            clients = [client for client, own in messages.items() if own is message]
            plan = Plan.decode(message)
            willing = yield from self._willing(plan, clients)
            if step == "prepare":
                yield from self._preparations(plan, willing)
            else:
                yield from self._reports(plan, willing, deadline)

    def _willing(self, plan: Plan, clients: Sequence[int]) -> Generator[Reply, None, list[int]]:
        """Those whose ledgers let them take part; the others decline."""
        declined, answer = self._charge(plan, clients), answer_to(plan, None)
        yield from (Reply(client, answer, declined[client]) for client in clients if client in declined)
        return [client for client in clients if client not in declined]

    def _evaluations(self, messages: Mapping[int, bytes], deadline: float | None) -> Iterator[Reply]:
        """The clients' noisy counts; who has no budget left for them declines, and goes on training."""
        plan, evaluation = Plan.decode(next(iter(messages.values()))), self.work.evaluation
        if evaluation is None:
            raise InvalidInput("simulated clients set no records aside: the recipe has no evaluation.private")
        releases = evaluation.releases(plan.federation, plan.round)
        refused = {} if self._ledger is None else self._ledger.record(dict.fromkeys(messages, releases))
        yield from (Reply(client, answer_to(plan, None), str(why)) for client, why in refused.items())
        jobs = [Counting(piece) for piece in self._pieces([client for client in messages if client not in refused])]
        for clients, answers in self._hands.run(plan, jobs, deadline):
            yield from map(Reply, clients, answers)

    def _preparations(self, plan: Plan, willing: Sequence[int]) -> Iterator[Reply]:
        """Clients say that they are ready, those first that were so before a restart: nothing is drawn twice."""
        yield from (Reply(client, answer_to(plan, b"")) for client in willing if client in self.prepared)
        jobs = [Preparation(piece) for piece in self._pieces([k for k in willing if k not in self.prepared])]
        for clients, made in self._hands.run(plan, jobs):
            for client, kept in zip(clients, made, strict=True):
                self.prepared[client] = kept
                yield Reply(client, answer_to(plan, b""))

    @property
    def kept(self) -> dict[int, ClientState]:
        """All that each client has kept: what it prepared, and what it keeps from round to round."""
        who = sorted({*self.prepared, *self.states})
        return {client: {**self.prepared.get(client, {}), **self.states.get(client, {})} for client in who}

    def _sum(
        self, members: Members, step: str, messages: Mapping[int, bytes], deadline: float | None
    ) -> Iterator[Reply]:
        """The clients' replies to a step of a secure sum; a client that refuses to go on is not heard of again."""
        if step == "keys":
            self.diagnostics = RoundDiagnostics()
            plan = members.begin(next(iter(messages.values())))
            willing = yield from self._willing(plan, list(messages))
        else:
            plan, willing = members.plan, list(messages)
        reports: Iterable[Reply] = map(Reply, willing)
        if step == "masked":
            reports = self._reports(plan, willing, deadline)
        for report in reports:
            client = report.client
            if deadline is not None and time.monotonic() > deadline:
                return
            body = None if report.message is None else report.answer.body
            try:
                answer = members.answer(step, client, messages[client], body)
            except SordinoError as error:
                self.diagnostics.dropped[client] = str(error)
            else:
                yield Reply(client, answer_to(plan, answer))

    def _reports(self, plan: Plan, willing: Sequence[int], deadline: float | None) -> Iterator[Reply]:
        """What clients send on a plan, as it is computed."""
        tasks = []
        for home, those in self._homes(willing).items():
            for piece in self._pieces(those):
                prepared = tuple(self.prepared[client] for client in piece) if self.prepared else ()
                tasks.append(Task(piece, tuple(self.states.get(client, {}) for client in piece), prepared, home))
        for clients, reported in self._hands.run(plan, tasks, deadline):
            self.states |= {client: kept for client, kept in zip(clients, reported.states, strict=True) if kept}
            self.diagnostics.add(clients, reported.local)
            yield from map(Reply, clients, reported.bodies)

    def _charge(self, plan: Plan, clients: Sequence[int]) -> Mapping[int, str]:
        """Charge the clients' ledgers; those without enough budget decline, each with the reason."""
        releases = tuple(tuple(own) for own in self._releases(plan))
        classes = [self.work.method.class_of(client) for client in clients]
        asked = {client: releases[c] for client, c in zip(clients, classes, strict=True)}
        refused = self._ledger.record(asked) if self._ledger is not None else {}
        by_class: list[list[int]] = [[] for _ in releases]
        for client, c in zip(clients, classes, strict=True):
            if client not in refused:
                by_class[c].append(client)
        declined = {client: str(reason) for client, reason in refused.items()}
        self._spent = RoundReleases(plan.round, releases, tuple(map(tuple, by_class)), declined)
        return declined

    def spent_in(self, round: int) -> RoundReleases:
        """What was released in the last round, which may be nothing: then nobody was asked."""
        return self._spent if self._spent is not None and self._spent.round == round else RoundReleases(round, (), ())

    def replay(self, spent: RoundReleases) -> None:
        """Charge an earlier round again, after a restart: the same releases of the same clients."""
        if self._ledger is not None:
            asked = [dict.fromkeys(who, own) for own, who in zip(spent.releases, spent.clients, strict=True)]
            if any(self._ledger.record(own) for own in asked):
                raise InvalidInput("the record of earlier rounds does not fit the budgets: start the run anew")

    def _homes(self, clients: Sequence[int]) -> dict[int | None, list[int]]:
        """Clients by the worker that keeps what was computed from their records; all by none where nothing is kept."""
        if not self.work.method.keeps:
            return {None: list(clients)}
        homes: dict[int | None, list[int]] = {}
        for client in clients:
            homes.setdefault(self._home[client], []).append(client)
        return homes

    @cached_property
    def _home(self) -> dict[int, int]:
        """For each client a worker, the same in every round: the largest are dealt out first, in turn."""
        population = self.work.population
        order = sorted(range(len(population)), key=lambda client: (-population.size(client), client))
        return {client: rank % self._hands.workers for rank, client in enumerate(order)}

    def _pieces(self, clients: Sequence[int]) -> list[tuple[int, ...]]:
        """Clients of like sizes together, the largest first, in pieces that keep all workers busy and memory small."""
        population, bench, workers = self.work.population, self.work.bench, self._hands.workers
        width, on_gpu = bench.execution.width, bench.device.type != "cpu"
        if on_gpu:
            width = max(1, width // workers)  # they share it, so that its width is in work at any time
        order = sorted(clients, key=lambda client: (-population.size(client), client))
        share = -(-len(order) // (workers * TASKS_PER_WORKER))
        fair = -(-len(order) // workers)
        most = (GPU_TASK_BYTES if on_gpu else TASK_BYTES) // max(1, self._report_bytes)
        if not on_gpu:
            most = min(TASK_CLIENTS, most)
        size = max(2, min(-(-share // width) * width, fair, most))
        return [tuple(order[first : first + size]) for first in range(0, len(order), size)]

    def rehearse(self, plan: Plan, clients: Sequence[int]) -> LocalView:
        """Let some clients train on a plan: nothing is sent, nothing charged, nothing kept."""
        task = Task(tuple(clients), ({},) * len(clients))
        return self.work.method.rehearse(plan, task.cohort(self.work), self.work.draw(plan.round), self.work.bench)

    def grade(self, view: ModelView, exam: str) -> Scores:
        """Score a model; the pieces are added in their order, whoever computed them."""
        model = Plan("grading", 0, {}, {"parameters": view.parameters, **(view.buffers or {})})
        if view.client is not None:
            jobs = self._gradings_through(view.client, exam)
        else:
            shown = self._shown(exam)
            pieces = self.work.exams[exam].pieces()
            jobs = [Grading(exam, piece, number, shown.get(number)) for number, piece in enumerate(pieces)]
        scored = dict(self._hands.run(model, jobs))
        none = self.work.exams[exam].none
        return Scores.together([none, *(scored[number] for number in range(len(jobs)))])

    def _shown(self, exam: str) -> Mapping[int, Seen]:
        """The pieces of an exam as everybody sees them, made once; none where examples are scored as they are."""
        if self.work.method.shows and exam not in self._showings:
            jobs = [Showing(exam, piece, number) for number, piece in enumerate(self.work.exams[exam].pieces())]
            self._showings[exam] = dict(self._hands.run(Plan("showing", 0), jobs))
        return self._showings.get(exam, {})

    def _gradings_through(self, client: int, exam: str) -> list[Grading]:
        """The client's own share of an exam, seen through what it prepared."""
        share = self.work.exams[exam].share(client)
        if not len(share):
            return []
        if (exam, client) not in self._looks:
            look = Look(exam, client, self.prepared[client])
            (self._looks[exam, client],) = self._hands.run(Plan("looking", 0), [look])
        seen = self._looks[exam, client]
        return [Grading(exam, share[piece], number, seen[piece]) for number, piece in enumerate(in_pieces(len(share)))]

    def close(self) -> None:
        """Let go of workers and files."""
        self._hands.close()


__all__ = ["NoRoom", "Population", "RoundDiagnostics", "SimulatedFleet", "Task", "Work", "WorkerLost"]

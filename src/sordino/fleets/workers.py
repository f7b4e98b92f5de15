"""Who does a simulation's jobs on one machine: this process, or child processes that share the records.

Workers are plain child processes that are handed jobs over a socket. Records lie in files without a name, which all of
them map: whatever happens, none are left behind.
"""

from __future__ import annotations

import ctypes
import gc
import math
import mmap
import os
import pickle
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import connection
from typing import IO, Any, Protocol, TypeAlias, cast

import numpy as np
import torch

from sordino.errors import SordinoError
from sordino.fleets.forks import Fork, may_fork
from sordino.fleets.tasks import Job, JobQueue, T_co, Work, attempt
from sordino.learning.examples import Examples
from sordino.parts.timeline import Timeline, count_beside, phase
from sordino.wire.messages import Plan

Pipe: TypeAlias = "connection.Connection[Any, Any]"

WORKER_SECONDS = 2.0  #: how long workers have to end by themselves
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of malloc.h
COPIED_BYTES = 2**28  #: of records that copies may hold on to, which this process lets go of after their start
KEPT_BYTES = 2**30  #: of freed memory that a worker keeps, at most
BLOCK_BYTES = 2**25  #: of one block of it, where the C library is older and allows no more


class NoRoom(SordinoError):
    """The records that workers share could not be written."""


class Hands(Protocol):
    """Whoever does a fleet's jobs."""

    work: Work  #: what they compute on, its records where they share them

    @property
    def workers(self) -> int:
        """How many jobs are done at the same time."""

    @property
    def sharing(self) -> int:
        """How many workers share one GPU."""

    def run(self, plan: Plan, jobs: Sequence[Job[T_co]], deadline: float | None = None) -> Iterator[T_co]:
        """What comes of jobs, in any order; only what is there at the deadline."""

    def close(self) -> None:
        """Let go of workers and records."""


def local(workers: int, devices: Sequence[torch.device]) -> Callable[[Work], Hands]:
    """So many workers of this machine, dealt over these devices."""
    return InProcess if workers == 1 else partial(Workers, workers=workers, devices=devices)


class InProcess:
    """Jobs done in this process, one after the other."""

    workers = sharing = 1

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


# --- child processes --------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _Child:
    """A child process, and what its parent waits for."""

    number: int
    process: subprocess.Popen[bytes] | Fork
    pipe: Pipe
    job: Job[object] | None = None  #: the one that it does for the jobs at hand
    behind: bool = True  #: it starts, or does a job that nobody waits for: its next message is to be forgotten
    knows: bytes | None = None  #: the plan that it was sent

    def death(self) -> str:
        """How it ended."""
        time.sleep(0.2)  # the kernel closes a dying process's files before its parent may ask how it ended
        code = self.process.poll()
        if code is None:
            return f"worker {self.number} closed its end"
        how = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return f"worker {self.number} ended with {how}"

    def end(self, patience: float) -> None:
        """End it, in the middle of a job if that takes longer."""
        self.pipe.close()
        try:
            self.process.wait(timeout=max(0.0, patience - time.monotonic()))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


class Workers:
    """Jobs spread over child processes with one thread each.

    A worker that dies costs its job alone: another one takes its place, and the job is done again.
    """

    def __init__(self, work: Work, workers: int, devices: Sequence[torch.device] = ()) -> None:
        self.workers = workers
        self._devices = tuple(devices) or (work.bench.device,)
        self._files: list[IO[bytes]] = []
        self._crew: list[_Child] = []
        _open_standard_files()
        try:
            with _room_for_files():
                self.work = work.placed(self._share)
                self._content = self._save(pickle.dumps(self.work, protocol=pickle.HIGHEST_PROTOCOL))
            self._crew += map(self._start, range(workers))
        except BaseException:
            self.close()
            raise

    @property
    def sharing(self) -> int:
        """How many workers share one device."""
        return math.ceil(self.workers / len(self._devices))

    def _save(self, content: bytes | memoryview) -> int:
        """Write content to a file without a name; its descriptor."""
        file = tempfile.TemporaryFile()  # noqa: SIM115  closed with all others
        self._files.append(file)
        file.write(content)
        file.flush()
        return file.fileno()

    def _share(self, examples: Examples) -> Examples:
        arrays = [np.ascontiguousarray(own) for own in (examples.x, examples.y)]
        return _SharedExamples.load(*((self._save(own.data), own.dtype.str, own.shape) for own in arrays))

    def _start(self, number: int) -> _Child:
        ours, theirs = socket.socketpair()
        device = self._devices[number % len(self._devices)]
        given = (str(theirs.fileno()), str(self._content), str(device))
        process = _process(given, [theirs.fileno(), *(file.fileno() for file in self._files)])
        theirs.close()
        return _Child(number, process, connection.Connection(ours.detach()))

    def run(self, plan: Plan, jobs: Sequence[Job[T_co]], deadline: float | None = None) -> Iterator[T_co]:
        """Do the jobs, each worker taking the next as soon as it is free."""
        queue, message = JobQueue(jobs), plan.encode()
        try:
            for worker in list(self._crew):
                self._give(worker, queue, message)
            while queue or any(worker.job for worker in self._crew):
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                if left == 0.0:
                    queue.clear()
                awaited = {worker.pipe: worker for worker in self._crew if worker.behind or worker.job}
                with phase("wait for workers" if any(worker.job for worker in self._crew) else "start of workers"):
                    ready = connection.wait(list(awaited), left)
                if not ready and not queue:
                    return
                for worker in (awaited[cast("Pipe", pipe)] for pipe in ready):
                    answer = self._hear(worker, queue, message)
                    if isinstance(answer, BaseException):
                        raise answer
                    if answer is not None:
                        yield cast("T_co", answer)
        finally:
            for worker in self._crew:  # who still has a job is heard out later, so that an interrupted run ends at once
                worker.behind, worker.job = worker.behind or worker.job is not None, None

    def _hear(self, worker: _Child, queue: JobQueue, message: bytes) -> object:
        """A worker's answer, None where nobody waits for it; then it has its next job."""
        try:
            answer, spans = worker.pipe.recv()
        except (EOFError, ConnectionError):
            self._replace(worker, queue)
            return None
        count_beside(spans)
        wanted, worker.behind, worker.job = not worker.behind, False, None
        self._give(worker, queue, message)
        return answer if wanted else None

    def _give(self, worker: _Child, queue: JobQueue, message: bytes) -> None:
        """Hand the next job to a worker that waits for one."""
        if worker.behind or (job := queue.next_for(worker.number, range(self.workers))) is None:
            return
        worker.job = job
        try:
            if worker.knows is not message:
                worker.pipe.send(message)
                worker.knows = message
            worker.pipe.send(job)
        except ConnectionError:
            self._replace(worker, queue)

    def _replace(self, worker: _Child, queue: JobQueue) -> None:
        """Start another worker in the place of one that died; its job waits again."""
        why = worker.death()
        worker.end(0.0)
        self._crew[worker.number] = self._start(worker.number)
        if worker.job is None:
            queue.count_death(why)
        else:
            queue.put_back(worker.job, why)

    def close(self) -> None:
        """End the workers and let go of the files."""
        patience = time.monotonic() + WORKER_SECONDS
        for worker in self._crew:
            worker.pipe.close()
        for worker in self._crew:
            worker.end(patience)
        for file in self._files:
            file.close()


class _SharedExamples(Examples):
    """Examples in mapped files: what travels to another process are the descriptors that it inherits."""

    arrays: tuple[tuple[int, str, tuple[int, ...]], ...]

    @classmethod
    def load(cls, *arrays: tuple[int, str, tuple[int, ...]]) -> Examples:
        """The examples in files of these descriptors, types and shapes."""
        examples = object.__new__(cls)  # checked once already, when they were read
        x, y = (_mapped(*own) for own in arrays)
        vars(examples).update(x=x, y=y, arrays=arrays)
        return examples

    def __reduce__(self) -> tuple[Callable[..., Examples], tuple[object, ...]]:
        return _SharedExamples.load, self.arrays


def _mapped(descriptor: int, kind: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    if 0 in shape:  # which cannot be mapped
        return np.zeros(shape, kind)
    with os.fdopen(descriptor, "rb", closefd=False) as file:
        return np.memmap(file, kind, mode="c", shape=shape)


def _open_standard_files() -> None:
    """Where standard files are closed, put nothing in their places: a worker has others there than its parent."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)


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


def starts_at_once(device: torch.device) -> bool:
    """Whether workers are copies of this process: none is made where it has threads, or uses a GPU."""
    return device.type == "cpu" and may_fork() and not torch.cuda.is_initialized()  # type: ignore[no-untyped-call]


def _process(given: tuple[str, str, str], files: Sequence[int]) -> subprocess.Popen[bytes] | Fork:
    """A worker with these files, in a process group of its own: a terminal's Ctrl-C is the parent's to handle."""
    records = sum(os.fstat(file).st_size for file in files if stat.S_ISREG(os.fstat(file).st_mode))
    if records <= COPIED_BYTES and starts_at_once(torch.device(given[2])):
        return Fork(partial(_serve_as_copy, *given), files)
    return subprocess.Popen(
        [sys.executable, "-c", _WORKER, *given],
        pass_fds=files,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        process_group=0,
    )


_WORKER = """
import sys
from sordino.parts.lazy import loading
with loading():
    from sordino.fleets.workers import _serve
_serve(*sys.argv[1:])
"""


def _keep_memory() -> None:
    """Let this process keep what it frees: the next task needs as much, and the system clears every page anew."""
    with suppress(OSError, AttributeError):  # another C library than GNU's
        mallopt = ctypes.CDLL(None).mallopt
        if mallopt(M_MMAP_THRESHOLD, KEPT_BYTES) or mallopt(M_MMAP_THRESHOLD, BLOCK_BYTES):
            mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)  # alone, it would have every large block given back at once


def _serve(descriptor: str, content: str, device: str) -> None:
    """A worker's life: everything once, then plans and jobs, until the pipe is closed."""
    torch.set_num_threads(1)
    _keep_memory()
    gc.freeze()  # what was loaded is no garbage
    pipe: Pipe = connection.Connection(int(descriptor))
    with mmap.mmap(int(content), 0, access=mmap.ACCESS_READ) as whole:
        work: Work = pickle.loads(whole).on(torch.device(device))
    try:
        pipe.send(("ready", ()))
        with Timeline() as timeline:
            while True:
                message = pipe.recv()
                if isinstance(message, bytes):
                    plan = Plan.decode(message)
                else:
                    answer = attempt(work, plan, message)
                    pipe.send((answer, timeline.take()))
    except (EOFError, ConnectionError):
        return


def _serve_as_copy(descriptor: str, content: str, device: str) -> None:
    """The same, wherever its parent stood when it was made: it learns, whether or not gradients were off there.

    Own code that draws from numpy's global generator draws something else in each worker, as in programs.
    """
    np.random.seed()  # noqa: NPY002
    with torch.inference_mode(False), torch.enable_grad():
        _serve(descriptor, content, device)


__all__ = ["Hands", "InProcess", "NoRoom", "Workers", "local", "starts_at_once"]

"""A simulation's jobs done by the machines of a Ray cluster: one worker for each core, or GPU, that the cluster has.

The records are put into Ray's object store once; each machine gets one copy, which its workers map. No folder is
shared: own code that this process has loaded travels with the records. A worker or a machine that dies costs its jobs
alone, which others do again; new ones are used as they come. Several runs may share one pool at the same time.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import os
import signal
import site
import socket
import sys
import sysconfig
import threading
import time
import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import torch

from sordino.errors import InvalidInput, SordinoError
from sordino.fleets.tasks import Job, JobQueue, T_co, Work, WorkerLost, attempt
from sordino.fleets.workers import NoRoom
from sordino.parts.hardware import check_workers
from sordino.parts.timeline import phase
from sordino.wire.messages import Plan

QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",  # Ray calls home unless it is told not to
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # what Ray will do one day, and warns about until then
}
TICK = 1.0  #: seconds after which somebody who waits looks who has come and gone
LOOK_SECONDS = 5.0  #: between two looks at the cluster
CONNECT_SECONDS = 10.0  #: for the first machine of a cluster to be reached
NOBODY_SECONDS = 180.0  #: without any worker, before a run is given up


class RayMissing(SordinoError, ImportError):
    """Ray is not installed."""


def _ray() -> Any:
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        ray = None
    if getattr(ray, "__file__", None) is None:  # a folder called ray, such as Ray leaves in /tmp, is a module too
        raise RayMissing("Ray is not installed: pip install 'sordino[ray]'")
    return ray


# --- the pool ---------------------------------------------------------------------------------------------------------


@dataclass(eq=False)
class _RayWorker:
    """A worker of the cluster."""

    number: int
    actor: Any
    versions: Any  #: the promise of its first answer


class RayPool:
    """The workers of a cluster, until the pool is closed: `with RayPool() as pool: sordino.run(recipe, ray=pool)`.

    `workers` are at most so many (default: one for each core or, on `device` cuda, one for each GPU; more of them share
    the GPUs). The cluster has to be there: `ray start --head` (docs/ray.md).
    """

    def __init__(self, address: str = "auto", *, device: str = "cpu", workers: int | None = None) -> None:
        check_workers(workers)
        if device not in ("cpu", "cuda"):
            raise InvalidInput(f"on a Ray cluster the device is cpu or cuda, got {device!r}: Ray deals out the GPUs")
        self._ray, self.device, self._most = _ray(), device, workers
        self._lock = threading.Lock()
        self._crew: dict[int, _RayWorker] = {}
        self._starting: dict[int, _RayWorker] = {}
        self._looked = -LOOK_SECONDS
        self._slots = 0
        self._runs = itertools.count()
        self._connected = self._connect(address)
        worker = _actor()
        _, self._versions = worker.versions()
        self._actor = self._ray.remote(worker)
        with self._lock:
            self._look()
        if not self._slots:
            self.close()
            what = "GPUs" if device == "cuda" else "cores"
            raise InvalidInput(f"the Ray cluster at {address} has no {what}: add a node that has some (ray start)")

    def __enter__(self) -> RayPool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _connect(self, address: str) -> bool:
        """Join the cluster, unless this process has; whether it was done here."""
        if self._ray.is_initialized():
            return False
        before = signal.getsignal(signal.SIGTERM)
        try:
            _reach(address)
            self._ray.init(address=address, log_to_driver=False, logging_level="error")
        except (OSError, ValueError, OverflowError, RuntimeError, self._ray.exceptions.RayError) as error:
            raise InvalidInput(
                f"no Ray cluster was found at {address} ({_first_line(error)}). This machine has to be one of its "
                "nodes: 'ray start --head' on the first, 'ray start --address=HOST:6379' on all others"
            ) from None
        finally:
            with suppress(ValueError):  # signals reach the main thread alone
                signal.signal(signal.SIGTERM, before)  # how this process ends is not Ray's to choose
        return True

    @property
    def workers(self) -> int:
        """How many workers there are, or will be as soon as they have started."""
        return max(1, self._slots)

    @property
    def sharing(self) -> int:
        """How many workers share one GPU."""
        return self._share

    def crew(self) -> Mapping[int, _RayWorker]:
        """The workers that are ready, by their numbers; a new look at the cluster is taken now and then."""
        with self._lock:
            if time.monotonic() - self._looked >= LOOK_SECONDS:
                self._look()
            if self._starting:
                self._admit()
            return dict(self._crew)

    def _look(self) -> None:
        """Start a worker wherever the cluster has room for one that is missing."""
        key = "GPU" if self.device == "cuda" else "CPU"
        nodes = [node["Resources"] for node in self._ray.nodes() if node["Alive"]]
        places = sum(int(resources.get(key, 0)) for resources in nodes)
        self._share = max(1, -(-self._most // max(1, places))) if self._most and key == "GPU" else 1
        self._slots = min(places * self._share, self._most or places)
        resources = {"num_cpus": 0, "num_gpus": 1 / self._share} if key == "GPU" else {"num_cpus": 1}
        for number in range(self._slots):
            if number not in self._crew and number not in self._starting:
                actor = self._actor.options(**resources).remote(self.device)
                self._starting[number] = _RayWorker(number, actor, actor.versions.remote())
        self._looked = time.monotonic()

    def _admit(self) -> None:
        """Take in the workers that have started; one of other versions is refused."""
        awaited = {worker.versions: worker for worker in self._starting.values()}
        there, _ = self._ray.wait(list(awaited), num_returns=len(awaited), timeout=0)
        for worker in (awaited[ref] for ref in there):
            del self._starting[worker.number]
            try:
                node, found = self._ray.get(worker.versions)
            except self._ray.exceptions.RayError:
                continue  # gone before it was there: the next look starts another one
            self._check(node, found)
            self._crew[worker.number] = worker

    def _check(self, node: str, found: Mapping[str, str | None]) -> None:
        other = [
            f"{name} {found[name] or '(not installed)'} instead of {own}"
            for name, own in self._versions.items()
            if found[name] != own and name != "instructions"
        ]
        if other:
            raise InvalidInput(
                f"the node {node} has {', '.join(other)}: install the same versions on all nodes of the cluster "
                "(pip install 'sordino[learn,ray]' -c constraints.txt), or take it out of the cluster"
            )
        if self.device == "cpu" and found["instructions"] != self._versions["instructions"]:
            warnings.warn(
                f"the node {node} computes with {found['instructions']}, this machine with "
                f"{self._versions['instructions']}: results agree to rounding, not to the last bit",
                stacklevel=2,
            )

    def has(self, worker: _RayWorker) -> bool:
        """Whether a worker is one of the crew still, as far as is known."""
        return self._crew.get(worker.number) is worker

    def lose(self, worker: _RayWorker) -> None:
        """Forget a worker that died; its place is free for another one."""
        with self._lock:
            if self._crew.get(worker.number) is worker:
                del self._crew[worker.number]
                self._looked = -LOOK_SECONDS  # look at once
        self._ray.kill(worker.actor)

    def hands(self, work: Work) -> RayHands:
        """Workers for one run."""
        return RayHands(self, work, next(self._runs))

    def close(self) -> None:
        """End the workers, and leave the cluster if it was joined for this."""
        with self._lock:
            for worker in (*self._crew.values(), *self._starting.values()):
                self._ray.kill(worker.actor)
            self._crew.clear()
            self._starting.clear()
        if self._connected:
            self._ray.shutdown()


# --- the hands of one run ---------------------------------------------------------------------------------------------


class RayHands:
    """One run's jobs, done by a pool's workers."""

    def __init__(self, pool: RayPool, work: Work, run: int) -> None:
        self._pool, self._ray, self._run = pool, pool._ray, run
        self._calls = itertools.count()
        work = work.placed(lambda examples: examples)
        try:
            self._everything = [self._ray.put(own_sources()), self._ray.put(work)]
        except self._ray.exceptions.ObjectStoreFullError as error:
            raise NoRoom(
                f"the records do not fit into Ray's object store ({_first_line(error)}): start this node with a larger "
                "one (ray start --object-store-memory=BYTES)"
            ) from None
        here: Work = self._ray.get(self._everything[1])  # which maps this machine's copy
        self.work = replace(work, population=here.population, exams=here.exams, held_out=here.held_out)

    @property
    def workers(self) -> int:
        """How many jobs are done at the same time."""
        return self._pool.workers

    @property
    def sharing(self) -> int:
        """How many workers share one GPU."""
        return self._pool.sharing

    def run(self, plan: Plan, jobs: Sequence[Job[T_co]], deadline: float | None = None) -> Iterator[T_co]:
        """Do the jobs, each worker taking the next as soon as it is free."""
        queue, busy = JobQueue(jobs), dict[Any, tuple[_RayWorker, Job[object]]]()
        call = (self._run, self._everything, next(self._calls), [self._ray.put(plan.encode())])
        last = time.monotonic()  # when there was anybody

        def give(worker: _RayWorker, crew: Collection[int]) -> None:
            if (job := queue.next_for(worker.number, crew)) is not None:
                busy[worker.actor.do.remote(*call, _dumps(job))] = worker, job

        while queue or busy:
            left = TICK if deadline is None else min(TICK, max(0.0, deadline - time.monotonic()))
            if left == 0.0:
                queue.clear()
            crew = self._pool.crew()
            taken = {worker.number for worker, _ in busy.values()}
            for number in crew.keys() - taken:
                give(crew[number], crew)
            if crew:
                last = time.monotonic()
            elif time.monotonic() - last > NOBODY_SECONDS:
                raise WorkerLost(
                    f"for {NOBODY_SECONDS:.0f} seconds no worker of the Ray cluster was there. Nothing recorded is "
                    "lost: start nodes (ray start), or leave out --ray, and go on with --resume"
                )
            if not busy:
                with phase("start of workers"):
                    time.sleep(min(left, TICK / 4))
                continue
            with phase("wait for workers"):
                ready, _ = self._ray.wait(list(busy), num_returns=1, timeout=left, fetch_local=False)
            if not ready and not queue and left < TICK:
                return
            for promise in ready:
                worker, job = busy.pop(promise)
                if self._pool.has(worker):
                    give(worker, crew)  # so that it computes while its answer travels
                answer = self._answer(promise, worker, job, queue)
                if isinstance(answer, BaseException):
                    raise answer
                if answer is not None:
                    yield cast("T_co", answer)

    def _answer(self, promise: Any, worker: _RayWorker, job: Job[object], queue: JobQueue) -> object:
        """What came of a job; None, and the job waits again, where its worker died."""
        errors = self._ray.exceptions
        try:
            return _loads(self._ray.get(promise))
        except errors.RayTaskError as error:  # before the job: code or records could not be loaded there
            return RuntimeError(f"in a worker of the Ray cluster:\n{error}")
        except errors.RayError as error:
            self._pool.lose(worker)
            queue.put_back(job, f"worker {worker.number}: {_first_line(error)}")
            return None

    def close(self) -> None:
        """Let the workers forget this run."""
        for worker in list(self._pool._crew.values()):
            worker.actor.forget.remote(self._run)


def _reach(address: str) -> None:
    """Look whether anybody listens at HOST:PORT: Ray itself would try for minutes."""
    host, colon, port = address.rpartition(":")
    if colon and "/" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:200] if lines else type(error).__name__


def _dumps(what: object) -> bytes:
    from ray import cloudpickle  # plain pickle finds no class of a notebook

    return cast("bytes", cloudpickle.dumps(what))


def _loads(content: bytes) -> object:
    from ray import cloudpickle

    return cast("object", cloudpickle.loads(content))


# --- on a node --------------------------------------------------------------------------------------------------------


def _actor() -> Any:
    """A worker's class. It is defined here so that it travels as it is, to nodes where nothing is installed too."""

    class RayActor:
        def __init__(self, device: str) -> None:
            self._device: str = device
            self._desk: Desk | None = None

        @staticmethod
        def versions() -> tuple[str, dict[str, str | None]]:
            import importlib
            import socket
            import sys

            found: dict[str, str | None] = {"Python": ".".join(map(str, sys.version_info[:2]))}
            for name in ("sordino", "torch", "numpy"):
                try:
                    found[name] = importlib.import_module(name).__version__.partition("+")[0]
                except ImportError:
                    found[name] = None
            torch = sys.modules.get("torch")
            found["instructions"] = None if torch is None else torch.backends.cpu.get_cpu_capability()
            return socket.gethostname(), found

        def do(self, *given: Any) -> bytes:
            if self._desk is None:
                from sordino.fleets.ray_workers import Desk

                self._desk = Desk(self._device)
            return self._desk.do(*given)

        def forget(self, run: int) -> None:
            if self._desk is not None:
                self._desk.forget(run)

    return RayActor


class Desk:
    """What a worker has at hand: the works of the runs that it computes for, each with its last plan."""

    def __init__(self, device: str) -> None:
        torch.set_num_threads(1)
        self._ray, self._device = _ray(), torch.device(device)
        self._works: dict[int, Work] = {}
        self._plans: dict[int, tuple[int, Plan]] = {}

    def do(self, run: int, everything: Sequence[Any], call: int, plan: Sequence[Any], job: bytes) -> bytes:
        """What came of a job, or what went wrong."""
        if run not in self._works:
            sources, work = everything
            SourceImporter.add(self._ray.get(sources))
            self._works[run] = self._ray.get(work).on(self._device)
        if run not in self._plans or self._plans[run][0] != call:
            self._plans[run] = call, Plan.decode(self._ray.get(plan[0]))
        return _dumps(attempt(self._works[run], self._plans[run][1], cast("Job[object]", _loads(job))))

    def forget(self, run: int) -> None:
        """Let go of a run that is over."""
        self._works.pop(run, None)
        self._plans.pop(run, None)


# --- own code ---------------------------------------------------------------------------------------------------------

Sources = dict[str, tuple[str, bytes]]  #: by a module's name, its file and what is in it


def own_sources() -> Sources:
    """The modules of this process that are not installed, packages whole: own parts, and what they import."""
    installed = {*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), *site.getsitepackages()}
    installed |= {site.getusersitepackages(), str(Path(__file__).parent.parent)}
    places = tuple(f"{Path(folder).resolve()}{os.sep}" for folder in installed)
    found: dict[str, Path] = {}
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if name == "__main__" or not file or not file.endswith(".py") or not (path := Path(file).resolve()).is_file():
            continue
        if not str(path).startswith(places):
            found[name] = path
            if path.name == "__init__.py":  # with what will be imported later
                found |= {".".join((name, *inside)): below for inside, below in _modules_below(path.parent)}
    sources = {name: (str(path), path.read_bytes()) for name, path in found.items()}
    for name in found:  # folders without __init__.py are packages too
        for above in itertools.accumulate(name.split(".")[:-1], "{}.{}".format):
            sources.setdefault(above, (f"{above}/__init__.py", b""))
    return sources


def _modules_below(package: Path) -> Iterator[tuple[tuple[str, ...], Path]]:
    """The modules in a package's folder by their names, as parts."""
    for path in package.rglob("*.py"):
        inside = path.relative_to(package).with_suffix("").parts
        inside = inside[:-1] if inside[-1] == "__init__" else inside
        if inside and all(map(str.isidentifier, inside)):
            yield inside, path


class SourceImporter(importlib.abc.MetaPathFinder, importlib.abc.SourceLoader):  # type: ignore[misc]
    """Imports modules from the sources that came with a run, before any that lie here."""

    def __init__(self) -> None:
        self._sources: Sources = {}

    @classmethod
    def add(cls, sources: Sources) -> None:
        """Let these modules be imported in this process."""
        own = next((finder for finder in sys.meta_path if isinstance(finder, cls)), None)
        if own is None:
            own = cls()
            sys.meta_path.insert(0, own)
        own._sources |= sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._sources:
            return None
        return importlib.util.spec_from_file_location(fullname, self.get_filename(fullname), loader=self)

    def get_filename(self, fullname: str) -> str:
        return self._sources[fullname][0]

    def get_data(self, path: str) -> bytes:
        found = next((content for file, content in self._sources.values() if file == path), None)
        if found is None:
            raise OSError(path)
        return found


__all__ = ["RayMissing", "RayPool"]

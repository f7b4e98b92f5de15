"""The simulated fleet: N clients, a few at a time, in one process or in many.

Clients decline as real ones do: a ledger in memory asks before any data is touched. Results do not depend on who
computes them (`fleets/tasks.py`).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from sordino.channels.secure_sum import Members
from sordino.channels.spec import ReleasesOf
from sordino.errors import InvalidInput, SordinoError
from sordino.fleets.interface import Fleet, Reply, Tallied
from sordino.fleets.tasks import (
    Counting,
    Grading,
    Look,
    Preparation,
    Rehearsal,
    Showing,
    SummedReports,
    TallyTask,
    Task,
    Work,
)
from sordino.fleets.workers import Hands, InProcess
from sordino.learning.evaluation import Scores, in_pieces
from sordino.methods.interface import ClientState, LocalView, ModelView, Reported, Seen
from sordino.methods.private_evaluation import EVALUATE
from sordino.privacy.history import RoundReleases
from sordino.privacy.ledger import MemoryLedger
from sordino.wire.messages import Plan, answer_to

TASK_BYTES = 2**26  #: the reports and vectors of one task take about this much memory, at most
GPU_TASK_BYTES = 2**31  #: on a GPU, which is idle with a few clients at a time
TASK_CLIENTS = 256  #: and of this many clients on a processor, at most
TASKS_PER_WORKER = 6  #: so that no worker waits long for another at the end of a round


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
        hands: Callable[[Work], Hands] = InProcess,
        members: Members | None = None,
        releases: ReleasesOf | None = None,
        prepared: MutableMapping[int, ClientState] | None = None,
    ) -> None:
        self._ledger = ledger
        self._members = members  # the clients' side of secure sums, where reports travel in these
        self._releases = work.method.releases if releases is None else releases  # with what the channel adds to them
        self._hands = hands(work)
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
        elif step == EVALUATE:
            yield from self._evaluations(messages, deadline)
        elif step not in ("prepare", "report"):
            raise InvalidInput(f"simulated clients know the step 'report' (and 'prepare' before it), not {step!r}")
        else:
            for plan, clients in self._asked(messages):
                willing = yield from self._willing(plan, clients)
                if step == "prepare":
                    yield from self._preparations(plan, willing)
                else:
                    yield from self._reports(plan, willing, deadline)

    def exchange_sums(self, messages: Mapping[int, bytes], deadline: float | None) -> Generator[Reply | Tallied]:
        """The same for reports, those of one task added up where a sum takes fewer bytes."""
        for plan, asked in self._asked(messages):
            willing = yield from self._willing(plan, asked)
            for clients, reported in self._done(plan, self._tasks(TallyTask, willing), deadline):
                if isinstance(reported, SummedReports):
                    yield reported.sum
                else:
                    yield from map(Reply, clients, reported.bodies)

    def _asked(self, messages: Mapping[int, bytes]) -> Iterator[tuple[Plan, list[int]]]:
        """Each plan of an exchange, and whom it goes to."""
        self.diagnostics = RoundDiagnostics()
        for message in {id(m): m for m in messages.values()}.values():
            yield Plan.decode(message), [client for client, own in messages.items() if own is message]

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
        for clients, reported in self._done(plan, self._tasks(Task, willing), deadline):
            yield from map(Reply, clients, reported.bodies)

    def _tasks(self, kind: type[Task], willing: Sequence[int]) -> list[Task]:
        """The shares of a round, for whoever is free or keeps what was computed from the records."""
        tasks = []
        for home, those in self._homes(willing).items():
            for piece in self._pieces(those):
                prepared = tuple(self.prepared[client] for client in piece) if self.prepared else ()
                tasks.append(kind(piece, tuple(self.states.get(client, {}) for client in piece), prepared, home))
        return tasks

    def _done(
        self, plan: Plan, tasks: Sequence[Task], deadline: float | None
    ) -> Iterator[tuple[tuple[int, ...], Reported]]:
        """What came of tasks; what clients keep and what their owners see is noted."""
        for clients, reported in self._hands.run(plan, tasks, deadline):
            self.states |= {client: kept for client, kept in zip(clients, reported.states, strict=True) if kept}
            self.diagnostics.add(clients, reported.local)
            yield clients, reported

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
            width = max(1, width // self._hands.sharing)  # so that a GPU has its width in work at any time
        order = sorted(clients, key=lambda client: (-population.size(client), client))
        share = -(-len(order) // (workers * TASKS_PER_WORKER))
        fair = -(-len(order) // workers)
        most = (GPU_TASK_BYTES if on_gpu else TASK_BYTES) // max(1, self._report_bytes)
        if not on_gpu:
            most = min(TASK_CLIENTS, most)
        size = max(2, min(-(-share // width) * width, fair, most))
        if not on_gpu:  # equally many for each worker, of equal sizes: none is left with a small one at the end
            tasks = -(-len(order) // (size * workers)) * workers
            size = max(2, -(-len(order) // max(1, tasks)))
        return [tuple(order[first : first + size]) for first in range(0, len(order), size)]

    def rehearse(self, plan: Plan, clients: Sequence[int]) -> LocalView:
        """Let some clients train on a plan: nothing is sent, nothing charged, nothing kept."""
        (seen,) = self._hands.run(plan, [Rehearsal(tuple(clients))])
        return seen

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


__all__ = ["RoundDiagnostics", "SimulatedFleet"]

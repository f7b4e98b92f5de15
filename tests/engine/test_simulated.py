"""The simulated fleet: the same bits for any number of workers, real processes that get killed, memory that stays."""

import os
import signal
import tempfile
import time
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import sordino
from sordino.channels.direct import Direct
from sordino.errors import InvalidInput, SordinoError
from sordino.fleets.simulated import SimulatedFleet
from sordino.fleets.tasks import JobQueue, PackedParts, Task, Work, WorkerLost
from sordino.fleets.workers import Workers
from sordino.learning.stacked_model import Execution
from sordino.mechanisms import Box, NoPrivacy, TwoPoint
from sordino.methods.aggregation import BySamples, Mean
from sordino.methods.interface import Bench
from sordino.methods.robust import Median
from sordino.methods.upload import Tally, Upload
from sordino.recipe import Recipe
from sordino.runs.coordinator import Coordinator, Rules
from sordino.runs.federation import wire
from sordino.wire.messages import Plan
from tests.engine.federations import fleet, work
from tests.engine.tiny import recipe


# Epsilon makes a closure that no process can be sent: the method is pickled, so its builder must be importable.
def builder(epsilon):
    return TwoPoint(epsilon, Box(0.0, 0.5))


def no_mechanism(_):
    return NoPrivacy()


def work_by_name(**changes):
    return work(**({"build": builder, "epsilons": [1.0, 2.0] * 4, "sizes": [8, 3, 0, 17, 1, 8, 9, 30]} | changes))


def run_with(workers: int) -> tuple[np.ndarray, float]:
    given = work_by_name()
    own = fleet(given, workers=workers)
    try:
        coordinator = Coordinator(given.method, own, Direct(), "test")
        state = given.method.init()
        for _ in range(2):
            state, _ = coordinator.round(state)
        return state.parameters, own.grade(given.method.view(state), "test").loss
    finally:
        own.close()


def test_the_number_of_workers_does_not_change_a_bit():
    one, loss = run_with(1)
    parameters, again = run_with(3)
    assert np.array_equal(parameters, one) and again == loss


def test_the_size_of_tasks_does_not_change_a_bit(monkeypatch):
    one, _ = run_with(1)
    for most in (2, 3, 5):
        monkeypatch.setattr("sordino.fleets.simulated.TASK_BYTES", most * 4 * 18)
        assert np.array_equal(run_with(1)[0], one)


def plan_of(given: Work, round: int) -> bytes:
    return Plan("test", round, {}, {"parameters": given.method.init().parameters}).encode()


def reports(own: SimulatedFleet, given: Work, round: int) -> dict[int, bytes]:
    answers = own.exchange("report", dict.fromkeys(range(8), plan_of(given, round)), None)
    return {reply.client: reply.message for reply in answers}


def test_a_killed_worker_costs_its_jobs_and_not_the_run():
    given = work_by_name()
    alone, own = fleet(given), fleet(given, workers=2)
    try:
        for number in range(1, 5):
            answers = own.exchange("report", dict.fromkeys(range(8), plan_of(given, number)), None)
            first = next(answers)  # so that jobs are under way
            victims = [worker.process for worker in own._hands._crew][: number - 1]  # none, one, both, both
            for process in victims:
                process.kill()
            found = {reply.client: reply.message for reply in (first, *answers)}
            assert found == reports(alone, given, number)
        reports(own, given, 5)  # who died without a job is replaced when there is one
        assert all(worker.process.poll() is None for worker in own._hands._crew)
    finally:
        own.close()


class Deadly:
    """A job that no worker survives."""

    def do(self, work, plan):
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_job_that_kills_its_workers_is_given_up_with_the_remedy():
    given = work_by_name()
    own = fleet(given, workers=2)
    try:
        with pytest.raises(WorkerLost, match=r"worker \d.*SIGKILL.*--resume"):
            list(own._hands.run(Plan("test", 1), [Deadly()]))
        assert reports(own, given, 1) == reports(fleet(given), given, 1)  # the others go on
    finally:
        own.close()


def test_workers_are_gone_after_close():
    given = work_by_name()
    own = fleet(given, workers=2)
    pids = [worker.process.pid for worker in own._hands._crew]
    own.close()
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_the_records_that_workers_share_are_never_in_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    own = fleet(work_by_name(), workers=2)
    try:
        assert not list(tmp_path.iterdir())
    finally:
        own.close()


def test_workers_and_their_parent_share_one_copy_of_the_records():
    given = work_by_name()
    own = fleet(given, workers=2)
    try:
        shared = own.work.population.examples.x
        assert isinstance(shared, np.memmap) and isinstance(own.work.exams["test"].examples.x, np.memmap)
        assert np.array_equal(shared, given.population.examples.x)
    finally:
        own.close()


def test_a_round_given_up_at_its_deadline_leaves_workers_ready_for_the_next():
    given = work_by_name()
    own = fleet(given, workers=2)
    try:
        coordinator = Coordinator(given.method, own, Direct(), "test", Rules(deadline=1e-4))
        state, record = coordinator.round(given.method.init())
        assert len(record.attendance.reported) < 8
        patient = Coordinator(given.method, own, Direct(), "test")
        _, record = patient.round(state)
        assert len(record.attendance.reported) == 8
    finally:
        own.close()


def test_what_goes_wrong_in_a_worker_is_said_here():
    given = work_by_name()
    own = fleet(given, workers=2)
    try:
        broken = Plan("test", 1, {}, {"parameters": np.zeros(3, np.float32)}).encode()
        with pytest.raises(SordinoError, match="must be float32"):
            list(own.exchange("report", dict.fromkeys(range(8), broken), None))
        plan = given.method.plan(given.method.init(), "test").encode()
        assert len(list(own.exchange("report", dict.fromkeys(range(8), plan), None))) == 8
    finally:
        own.close()


def test_a_step_that_simulated_clients_do_not_know_is_refused():
    given = work_by_name()
    with pytest.raises(InvalidInput, match="step 'report'"):
        list(fleet(given).exchange("keys", {0: b""}, None))


def test_charging_again_after_a_restart_gives_the_same_standing():
    from sordino.privacy.guarantee import Budget
    from sordino.privacy.history import RoundReleases
    from sordino.privacy.ledger import MemoryLedger

    given = work_by_name()
    ledgers = [MemoryLedger([Budget(1000.0)] * 8) for _ in range(2)]
    first, second = (fleet(given, ledger) for ledger in ledgers)
    state = given.method.init()
    for _ in range(2):
        plan = given.method.plan(state, "test")
        list(first.exchange("report", dict.fromkeys(range(8), plan.encode()), None))
        second.replay(RoundReleases.from_line(first.spent_in(plan.round).to_line()))
        state = state.unchanged()
    assert [ledgers[0].standing(k).spent for k in range(8)] == [ledgers[1].standing(k).spent for k in range(8)]
    assert ledgers[1].standing(0).spent > 18


def test_memory_does_not_grow_with_the_clients_vectors():
    """Each client's vector takes 12 kB and its report as much; 500 more clients may take names, not vectors."""
    import tracemalloc

    peaks = []
    for clients in (1700, 2200):  # tasks have their full size
        given = work(clients=clients, each=1, features=1000)
        coordinator = Coordinator(given.method, fleet(given), Direct(), "test")
        tracemalloc.start()
        coordinator.round(given.method.init())
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 500 < 1500


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU here")
def test_workers_may_share_a_gpu():
    given = recipe({"split.clients": 8})
    one = sordino.run(given, device="cuda", workers=1)
    three = sordino.run(given, device="cuda", workers=3)
    np.testing.assert_allclose(three.parameters, one.parameters, rtol=1e-4, atol=1e-6)
    here = sordino.run(given)
    np.testing.assert_allclose(three.parameters, here.parameters, rtol=1e-3, atol=1e-5)


def test_workers_divide_the_width_of_a_gpu_between_them():
    many = work_by_name(sizes=[4] * 250, epsilons=[1.0] * 250)
    there = replace(many, bench=Bench(Execution(128), torch.device("cuda")))
    for workers, width in ((1, 128), (8, 16)):
        own = fleet(there, workers=workers)
        try:
            pieces = own._pieces(range(250))
        finally:
            own.close()
        assert {len(piece) for piece in pieces[:-1]} == {width}
        assert sorted(client for piece in pieces for client in piece) == list(range(250))


def test_kept_records_are_made_once_for_each_device() -> None:
    population = wire(Recipe.load("proven-digits")).population
    cpu, other = torch.device("cpu"), torch.device("meta")
    first = population.kept_data(0, cpu)
    assert first is not None and population.kept_data(0, cpu) is first
    elsewhere = population.kept_data(0, other)
    assert elsewhere is not None and elsewhere.x.device == other


# --- who does what ----------------------------------------------------------------------------------------------------


def test_a_job_goes_to_its_home_first_and_elsewhere_only_where_that_is_gone():
    own, other, anyone = (Task((k,), ({},), home=home) for k, home in enumerate((1, 2, None)))
    queue = JobQueue([own, other, anyone])
    crew = [0, 1, 2]
    assert queue.next_for(1, crew) is own
    assert queue.next_for(1, crew) is anyone
    assert queue.next_for(1, crew) is None and queue
    assert queue.next_for(1, [0, 1]) is other  # worker 2 is gone
    assert not queue


def test_a_job_whose_worker_died_is_the_next_of_its_home_and_is_given_up_after_three_deaths():
    first, second = Task((0,), ({},), home=1), Task((1,), ({},), home=1)
    queue = JobQueue([first, second])
    for _ in range(2):
        assert queue.next_for(1, [1]) is first
        queue.put_back(first, "killed")
    queue.next_for(1, [1])
    with pytest.raises(WorkerLost):
        queue.put_back(first, "killed")


def test_packed_positions_are_those_that_were_packed():
    parts = [np.array([3, 1]), np.zeros(0, np.int64), np.array([7])]
    assert [part.tolist() for part in PackedParts.pack(parts)] == [[3, 1], [], [7]]
    assert len(PackedParts.pack([])) == 0


def test_workers_are_dealt_over_devices():
    devices = [torch.device("cpu"), torch.device("meta")]
    own = Workers(work_by_name(), 3, devices)
    try:
        assert own.sharing == 2
        found = list(own.run(Plan("test", 1), [Where(home) for home in (0, 1, 2)]))
        assert sorted(found) == [(0, "cpu"), (1, "meta"), (2, "cpu")]
    finally:
        own.close()


@dataclass(frozen=True)
class Where:
    """Says which device the worker of that number has."""

    home: int

    def do(self, work, plan):
        return self.home, str(work.bench.device)


class Unsummed(Direct):
    """A channel of somebody's own: it gets every report by itself."""


def rounds(given: Work, channel: Direct, workers: int = 1):
    own = fleet(given, workers=workers)
    try:
        coordinator, state, seen = Coordinator(given.method, own, channel, "test"), given.method.init(), []
        for _ in range(2):
            state, outcome = coordinator.round(state)
            seen.append(outcome.attendance)
        return state.parameters.tobytes(), seen, own
    finally:
        own.close()


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("aggregation", [Mean(), BySamples()])
def test_reports_that_are_added_up_where_they_are_computed_change_nothing(aggregation, workers, monkeypatch):
    given = work(sizes=[8, 3, 0, 17, 1, 8, 9, 30], aggregation=aggregation, build=no_mechanism)
    sums = []
    honest = Tally.add_partial
    monkeypatch.setattr(Tally, "add_partial", lambda tally, found: (sums.append(found), honest(tally, found)))
    parameters, seen, _ = rounds(given, Direct(), workers)
    assert sum(found.reports for found in sums) == 16
    assert rounds(given, Unsummed(), workers)[0] == parameters and sum(found.reports for found in sums) == 16
    for own, other in zip(seen, rounds(given, Unsummed())[1], strict=True):
        assert sorted(own.reported) == sorted(other.reported) == list(range(8))
        assert (own.bytes_up, own.bytes_down, own.steps, own.clients) == (
            other.bytes_up, other.bytes_down, other.steps, other.clients,
        )  # fmt: skip


def test_a_bad_report_in_a_sum_is_refused_by_itself(monkeypatch):
    given = work(sizes=[8] * 6)
    honest = type(given.method).report

    def one_bad(method, plan, cohort, draw, bench):
        found = honest(method, plan, cohort, draw, bench)
        bodies = [b"\xff" * len(body) if k == 3 else body for k, body in zip(cohort.clients, found.bodies, strict=True)]
        return replace(found, bodies=bodies)

    monkeypatch.setattr(type(given.method), "report", one_bad)
    (parameters, seen, _), (others, unsummed, _) = rounds(given, Direct()), rounds(given, Unsummed())
    assert parameters == others
    for own, other in zip(seen, unsummed, strict=True):
        assert own.refused == other.refused and list(own.refused) == [3]
        assert sorted(own.reported) == [0, 1, 2, 4, 5]


def bits_or_reals(epsilon):
    return NoPrivacy() if epsilon == 1.0 else TwoPoint(epsilon, Box(0.0, 0.5))


@pytest.mark.parametrize("epsilons", [[1.0, 2.0] * 4, [2.0, 1.0] * 4])
def test_classes_with_reports_of_other_sizes_may_share_a_task(epsilons, monkeypatch):
    monkeypatch.setattr("sordino.fleets.simulated.TASKS_PER_WORKER", 1)
    monkeypatch.setattr("sordino.fleets.tasks.CACHED_BYTES", 1)  # one width of clients at a time
    given = work(sizes=[8] * 8, build=bits_or_reals, epsilons=epsilons)
    given = replace(given, bench=Bench(Execution(1), given.bench.device))
    (parameters, seen, _), (others, unsummed, _) = rounds(given, Direct()), rounds(given, Unsummed())
    assert parameters == others
    for own, other in zip(seen, unsummed, strict=True):
        assert sorted(own.reported) == sorted(other.reported) == list(range(8))
        assert own.refused == other.refused == {} and own.bytes_up == other.bytes_up


def test_small_reports_and_sums_that_look_at_each_report_travel_one_by_one(monkeypatch):
    monkeypatch.setattr(Tally, "add_partial", None)
    rounds(work_by_name(), Direct())  # bits
    rounds(work(sizes=[8] * 6, aggregation=Median()), Direct())


def test_mechanisms_are_asked_for_their_estimates_once_a_round(monkeypatch):
    given = work(sizes=[8] * 8)
    asked = []
    honest = Upload.linear
    monkeypatch.setattr(Upload, "linear", lambda upload, c: (asked.append(c), honest(upload, c))[1])
    rounds(given, Direct())
    assert asked == [0] * 4  # in two rounds, by the server and by the clients


def test_a_sum_that_comes_after_the_deadline_does_not_count(monkeypatch):
    given = work(sizes=[8] * 6)
    own = fleet(given)
    honest = own.exchange_sums

    def slow(messages, deadline):
        for reply in honest(messages, None):
            time.sleep(max(0.0, deadline - time.monotonic()) + 0.01)
            yield reply

    monkeypatch.setattr(own, "exchange_sums", slow)
    state = given.method.init()
    after, outcome = Coordinator(given.method, own, Direct(), "test", Rules(deadline=0.1)).round(state)
    assert not outcome.counted and outcome.attendance.strays["late"] == 6
    assert np.array_equal(after.parameters, state.parameters)

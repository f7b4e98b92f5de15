"""What clients make before the first round: once, charged then, kept in files, and all that later rounds see."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino import run
from sordino.channels.direct import Direct
from sordino.errors import InvalidInput
from sordino.fleets.simulated import SimulatedFleet
from sordino.fleets.tasks import Task
from sordino.methods.chamikara_ldpfl import Ldpfl
from sordino.methods.interface import Bench
from sordino.privacy.guarantee import Budget
from sordino.privacy.history import RoundReleases
from sordino.privacy.ledger import Consents, MemoryLedger
from sordino.report.folder import RunFolder
from sordino.runs.checkpoint import Belongings, DamagedRun
from sordino.runs.coordinator import Coordinator
from sordino.runs.federation import wire
from sordino.runs.observer import Observer
from sordino.runs.store import FileStore
from tests.engine.federations import fleet, work
from tests.engine.tiny import left, recipe

PREPARED: dict[str, Any] = {
    "model": {"name": "ldpfl-dense", "options": {"hidden": [6]}},
    "method": {"name": "ldpfl", "extractor": {"kind": "random", "model": "ldp-fed"}},
    "clients.epsilon": 0.5,
    "data.validation": 0.2,
}


def prepared_recipe(**more: Any) -> Any:
    return recipe(PREPARED, **more)


def own_fleet(ledger: MemoryLedger | None = None) -> tuple[Any, SimulatedFleet]:
    federation = wire(prepared_recipe())
    return federation.method, SimulatedFleet(federation.work(Bench()), ledger)


class StopsAfter(Observer):
    """Ctrl-C after some round."""

    def __init__(self, round: int) -> None:
        self._round = round

    def round(self, record: Any, attendance: Any) -> None:
        if record.round == self._round:
            raise KeyboardInterrupt


# --- in a fleet -------------------------------------------------------------------------------------------------------


def test_methods_without_a_preparation_are_not_asked_for_one():
    given = work()
    assert given.method.preparation("test") is None
    with pytest.raises(InvalidInput, match="nothing to prepare"):
        Coordinator(given.method, fleet(given), Direct(), "test").prepare()


def test_all_clients_prepare_once_and_are_charged_then():
    claimed = Budget(0.5, basis="claimed", adjacency="record (replace)")
    method, own = own_fleet(MemoryLedger([claimed] * 4, Consents(claimed=True)))
    attendance = Coordinator(method, own, Direct(), "tiny").prepare()
    assert sorted(attendance.reported) == [0, 1, 2, 3]
    assert list(map(len, own.spent_in(0).clients)) == [4] and len(own.prepared) == 4
    assert own._ledger.standing(0).spent == 0.5
    _, record = Coordinator(method, own, Direct(), "tiny").round(method.init())
    assert len(record.attendance.reported) == 4 and own._ledger.standing(0).spent == 0.5


def test_clients_that_have_prepared_are_handed_what_they_made_and_not_their_records(monkeypatch):
    method, own = own_fleet()
    coordinator, cohorts, honest = Coordinator(method, own, Direct(), "tiny"), [], Ldpfl.report
    coordinator.prepare()
    monkeypatch.setattr(Ldpfl, "report", lambda own, plan, c, *more: cohorts.append(c) or honest(own, plan, c, *more))
    coordinator.round(method.init())
    made = [kept for cohort in cohorts for kept in cohort.prepared]
    assert [set(kept) for kept in made] == [{"records", "labels"}] * 4
    assert all(data is None for cohort in cohorts for data in cohort.data)
    assert all(data is not None for data in Task((0, 1), ({}, {})).cohort(own.work).data)


def test_whoever_prepared_before_does_not_do_so_again(monkeypatch):
    method, own = own_fleet()
    Coordinator(method, own, Direct(), "tiny").prepare()
    before = {client: dict(made) for client, made in own.prepared.items()}
    monkeypatch.setattr(Ldpfl, "prepare", lambda *_: pytest.fail("drawn again"))
    attendance = Coordinator(method, own, Direct(), "tiny").prepare()
    assert sorted(attendance.reported) == [0, 1, 2, 3]
    assert all(np.array_equal(own.prepared[k]["records"], before[k]["records"]) for k in range(4))


def test_each_clients_own_validation_examples_are_its_share_of_that_exam():
    federation = wire(prepared_recipe())
    exam = federation.exams["validation"]
    shares = [exam.share(client) for client in range(4)]
    assert sorted(np.concatenate(shares)) == list(range(len(exam.examples)))
    held = {tuple(x.ravel()) for x in exam.examples.x[shares[2]]}
    own = {tuple(x.ravel()) for x in federation.dataset.train.x[federation.parts[2]]}
    assert len(held) == 2 and len(own) == 8 and not held & own
    test = federation.exams["test"]
    assert [len(test.share(client)) for client in range(4)] == [8, 8, 7, 7]


def test_an_exam_without_owners_says_so():
    with pytest.raises(InvalidInput, match="give it `owners`"):
        work().exams["test"].share(0)


# --- in a run ---------------------------------------------------------------------------------------------------------


def test_the_number_of_workers_does_not_change_a_bit(tmp_path: Path):
    for workers in (1, 2):
        run(prepared_recipe(), folder=tmp_path / str(workers), workers=workers)
    assert left(tmp_path / "1") == left(tmp_path / "2")


def test_a_resumed_run_reads_what_was_prepared_and_ends_the_same(tmp_path: Path, monkeypatch):
    run(prepared_recipe(), folder=tmp_path / "whole", workers=1)
    with pytest.raises(KeyboardInterrupt):
        run(prepared_recipe(), folder=tmp_path / "cut", workers=1, observer=StopsAfter(2))
    assert len(list((tmp_path / "cut" / "checkpoint" / "clients").iterdir())) == 4
    monkeypatch.setattr(Ldpfl, "prepare", lambda *_: pytest.fail("drawn again"))
    run(prepared_recipe(), folder=tmp_path / "cut", resume=True, workers=1)
    assert left(tmp_path / "cut") == left(tmp_path / "whole")


def test_a_run_cut_off_while_preparing_goes_on_with_those_who_were_ready(tmp_path: Path, monkeypatch):
    run(prepared_recipe(), folder=tmp_path / "whole", workers=1)
    whole, calls = Ldpfl.prepare, []

    def cut_short(self: Ldpfl, plan: Any, cohort: Any, *others: Any) -> Any:
        calls.append(cohort.clients)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return whole(self, plan, cohort, *others)

    monkeypatch.setattr(Ldpfl, "prepare", cut_short)
    monkeypatch.setattr("sordino.fleets.simulated.TASK_BYTES", 1)  # two clients at a time
    with pytest.raises(KeyboardInterrupt):
        run(prepared_recipe(), folder=tmp_path / "cut", workers=1)
    run(prepared_recipe(), folder=tmp_path / "cut", resume=True, workers=1)
    assert calls == [(0, 1), (2, 3), (2, 3)]
    assert left(tmp_path / "cut") == left(tmp_path / "whole")


def test_a_run_without_what_was_prepared_does_not_go_on(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        run(prepared_recipe(), folder=tmp_path / "cut", workers=1, observer=StopsAfter(2))
    (tmp_path / "cut" / "checkpoint" / "clients" / "1.safetensors").unlink()
    with pytest.raises(DamagedRun, match="checkpoint/clients"):
        run(prepared_recipe(), folder=tmp_path / "cut", resume=True, workers=1)


# --- files ------------------------------------------------------------------------------------------------------------


def test_belongings_are_written_once_and_read_back(tmp_path: Path):
    folder = tmp_path / "checkpoint" / "clients"
    made = {"records": np.arange(6, dtype=np.uint8).reshape(2, 3), "labels": np.array([1, 2])}
    first = Belongings(folder)
    first[3] = made
    first[0] = {}
    again = Belongings(folder)
    assert set(again) == {0, 3} and again[0] == {} and np.array_equal(again[3]["records"], made["records"])
    with pytest.raises(InvalidInput, match=r"client 3.*before"):
        again[3] = made


def test_damaged_belongings_are_refused(tmp_path: Path):
    Belongings(tmp_path / "checkpoint" / "clients")[0] = {"records": np.zeros(3, np.uint8)}
    (tmp_path / "checkpoint" / "clients" / "0.safetensors").write_bytes(b"torn")
    with pytest.raises(DamagedRun, match=r"0\.safetensors"):
        Belongings(tmp_path / "checkpoint" / "clients")


def test_history_keeps_what_came_before_the_first_round(tmp_path: Path):
    store = FileStore(RunFolder(tmp_path))
    (tmp_path / "checkpoint").mkdir()
    lines = [RoundReleases(number, (), ()).to_line() + "\n" for number in range(3)]
    (tmp_path / "checkpoint/releases.jsonl").write_text("".join(lines))
    assert [spent.round for spent in store.read_releases(1)] == [0, 1]
    assert [spent.round for spent in store.read_releases(0)] == [0]

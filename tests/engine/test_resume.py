"""Interrupted runs go on to the very same bits: crashes at every write, Ctrl-C, kills, damaged files."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import sordino
from sordino.errors import InvalidInput, SordinoError
from sordino.fleets import simulated, workers
from sordino.fleets.tasks import WorkerLost
from sordino.recipe import Recipe
from sordino.report.folder import RunFolder
from sordino.runs import simulation, store
from sordino.runs.observer import Observer
from tests.engine.tiny import BATCH_NORM, TWO_POINT, left, recipe

#: Two-point, epsilon 1 or 0.5 a value: an upload is claimed to cost 650 or 325, so that two clients decline in the end.
BUDGETS: dict[str, Any] = {
    **TWO_POINT,
    "clients.epsilon": [1.0, 1.0, 0.5, 0.5],
    "clients.budget": {"limit": 1400.0, "basis": "claimed"},
}
CASES: dict[str, dict[str, Any]] = {
    "plain": {},
    "budgets": {**BUDGETS, "rounds.count": 4},
    "nobody left": {**BUDGETS, "rounds.count": 9},
    "spent one by one": {
        **TWO_POINT, "clients.budget": {"limit": 700.0, "basis": "claimed"}, "rounds.count": 40,
        "method.selection": {"kind": "count", "k": 2},
    },
    "batch norm, local": BATCH_NORM,
    "batch norm, released": {**BATCH_NORM, "model.buffers": "release"},
    "patience": {
        "data.validation": 0.3, "rounds.patience": 2, "rounds.count": 9,
        "training.optimizer": {"name": "sgd", "lr": 1e-9},
    },
    "target": {"data.validation": 0.3, "rounds.target_accuracy": 0.15, "rounds.count": 20},
    "another rule": {
        "rounds.stop": {"kind": "tests.methods.test_stopping_rules:AfterEvaluations", "evaluations": 3},
        "rounds.stop_on": "test", "rounds.count": 9,
    },
    "momentum and decay": {
        "training.optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "decay": 0.1},
        "split": {"kind": "sizes", "sizes": [3, 12, 20, 5]},
    },
    "nobody asked at times": {"method.selection": {"kind": "probability", "p": 0.2}, "rounds.count": 6},
}  # fmt: skip


class Stop(Observer):
    """Interrupts a run after a round."""

    def __init__(self, after: int, error: type[BaseException] = KeyboardInterrupt) -> None:
        self.after, self.error = after, error

    def round(self, record, attendance):
        if record.round == self.after:
            raise self.error


@pytest.mark.parametrize("name", CASES)
def test_a_run_interrupted_after_every_round_ends_as_if_it_never_had_been(name, tmp_path):
    given = recipe(CASES[name])
    whole = sordino.run(given, folder=tmp_path / "whole")
    assert whole.result.rounds >= 3
    parts = tmp_path / "parts"
    for number in range(1, whole.result.rounds + 1):
        with pytest.raises(KeyboardInterrupt):
            sordino.run(given, folder=parts, resume=number > 1, observer=Stop(number))
    sordino.run(given, folder=parts, resume=True)
    assert left(parts) == left(tmp_path / "whole")


def test_an_interrupt_in_the_middle_of_a_round_leaves_the_last_whole_one(tmp_path, monkeypatch):
    """Two of four clients have computed their answers, and kept their statistics, when Ctrl-C comes."""
    budget = {"clients.budget": {"limit": 10.0}, "clients.allow_unproven": ["model update"]}
    given = recipe(BATCH_NORM, **budget, **{"rounds.count": 4})
    whole = sordino.run(given, folder=tmp_path / "whole")
    monkeypatch.setattr(simulated, "TASK_CLIENTS", 2)
    honest, calls = simulated.Task.report, []

    def do(task, work, plan):
        calls.append(plan.round)
        if calls.count(3) == 2:
            raise KeyboardInterrupt
        return honest(task, work, plan)

    monkeypatch.setattr(simulated.Task, "report", do)
    with pytest.raises(KeyboardInterrupt):
        sordino.run(given, folder=tmp_path / "parts")
    assert len((tmp_path / "parts/metrics.jsonl").read_text().splitlines()) == 2
    monkeypatch.undo()
    sordino.run(given, folder=tmp_path / "parts", resume=True)
    assert left(tmp_path / "parts") == left(whole.folder or Path())


class Crash(BaseException):
    """The machine stops: no code of the run may act on it."""


def crashing(monkeypatch: pytest.MonkeyPatch, at: int) -> Callable[[], int]:
    """The machine stops in the middle of the `at`-th write, half of it done; tells how many writes there were."""
    write, count = os.write, 0

    def torn(descriptor: int, data: Any) -> int:
        nonlocal count
        count += 1
        if count == at:
            write(descriptor, bytes(data)[: len(data) // 2])
            raise Crash
        return write(descriptor, data)

    monkeypatch.setattr(os, "write", torn)
    monkeypatch.setattr(os, "fsync", lambda _: None)  # a killed process loses nothing that it wrote
    return lambda: count


def budgeted() -> Recipe:
    return recipe(BUDGETS, **{"rounds.count": 2})


def prepared() -> Recipe:
    """Clients randomise their records once, before the first round; what they drew is never drawn again."""
    return Recipe.load("ldpfl-digits", ["data.train_limit=40", "data.test_limit=30", "rounds.count=1"])


@pytest.mark.parametrize(
    ("made", "seconds", "last"),
    [(budgeted, 0.0, 99), (budgeted, 1e9, 99), (prepared, 1e9, 8)],
    ids=["checkpoint every round", "checkpoint at the end", "with a preparation"],
)
def test_a_crash_in_the_middle_of_any_write_costs_nothing(made, seconds, last, tmp_path, monkeypatch):
    monkeypatch.setattr(store, "CHECKPOINT_SECONDS", seconds)
    given = made()
    with monkeypatch.context() as patch:
        writes = crashing(patch, at=0)
        whole = sordino.run(given, folder=tmp_path / "whole")
        total = min(writes(), last)
    expected, began = left(whole.folder or Path()), 0
    assert total >= 8
    for number in range(1, total + 1):
        folder = tmp_path / str(number)
        with monkeypatch.context() as patch, pytest.raises(Crash):
            crashing(patch, number)
            sordino.run(given, folder=folder)
        begun = (folder / "recipe.toml").exists()
        began += begun
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", lambda _: None)
            sordino.run(given, folder=folder, resume=begun)
        assert left(folder) == expected, f"write {number}"
        assert not [path.name for path in folder.rglob(".*")], f"write {number}"  # neither drafts nor a lock
    assert began == total - 2  # environment.json and recipe.toml come first


# --- real processes ---------------------------------------------------------------------------------------------------


def start(*arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "sordino", "run", *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        start_new_session=True, preexec_fn=_heed_ctrl_c,
    )  # fmt: skip


def _heed_ctrl_c() -> None:
    """A shell's background jobs ignore Ctrl-C, and so would everything they start."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for_round(folder: Path, number: int, process: subprocess.Popen[str]) -> None:
    """Until so many rounds are written down."""
    patience = time.monotonic() + 120
    while not (folder / "metrics.jsonl").exists() or (folder / "metrics.jsonl").read_bytes().count(b"\n") < number:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < patience
        time.sleep(0.005)


def on_disk(given: Recipe, folder: Path) -> Path:
    path = folder / "long.toml"
    path.write_text(given.to_toml())
    return path


def _interrupted_twice(path, folder):
    """Whether a run was stopped by Ctrl-C, and killed after it went on, before it was over."""
    process = start(path, "--out", folder, "--workers", 2)
    wait_for_round(folder, 1, process)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    if process.returncode == 0:
        return False
    assert process.returncode == 130, err
    assert out == "" and f"sordino run --resume {folder}" in err and "Traceback" not in err
    assert (folder / "checkpoint/state.safetensors").exists()
    done = (folder / "metrics.jsonl").read_bytes().count(b"\n")
    assert done >= 1
    if done >= 33:
        return False

    process = start("--resume", folder)
    wait_for_round(folder, done + 5, process)
    process.kill()
    process.communicate()
    return not (folder / "result.json").exists()


def test_ctrl_c_and_a_kill_of_real_processes_lose_nothing(tmp_path):
    """First Ctrl-C, which a terminal sends to the whole group, then SIGKILL, then the rest."""
    budget = {"limit": 650.0 * 37, "basis": "claimed"}
    given = recipe(BUDGETS, **{"rounds.count": 40, "training.epochs": 10, "clients.budget": budget})  # takes seconds
    turns = (tmp_path / f"run-{turn}" for turn in range(3))  # a machine that stands still may come too late
    folder = next((own for own in turns if _interrupted_twice(on_disk(given, tmp_path), own)), None)
    assert folder is not None, "the run was over before it was interrupted, three times"
    sordino.run(given, folder=folder, resume=True)
    sordino.run(given, folder=tmp_path / "peace")
    assert left(folder) == left(tmp_path / "peace")
    assert json.loads((folder / "metrics.jsonl").read_text().splitlines()[-1])["declined"] == 2


def test_a_run_that_is_running_is_nobody_elses_until_its_process_is_gone(tmp_path):
    """Two processes in one folder would write over each other; one that was killed keeps nobody out."""
    given = recipe(BUDGETS, **{"rounds.count": 30, "training.epochs": 10, "clients.budget": {"limit": 1e6}})
    for turn in range(3):
        folder = tmp_path / f"run-{turn}"
        first = start(on_disk(given, tmp_path), "--out", folder, "--workers", 1)
        wait_for_round(folder, 1, first)
        first.send_signal(signal.SIGSTOP)  # so that it is not done too early
        if not (folder / "result.json").exists():
            break  # else this process stood still meanwhile
        first.kill()
        first.communicate()
    try:
        for arguments in (("--resume", folder), (tmp_path / "long.toml", "--out", folder)):
            second = start(*arguments)
            out, err = second.communicate(timeout=120)
            assert second.returncode == 1 and out == ""
            assert f"another process is running the run in {folder} (process {first.pid} on " in err.replace("\n", " ")
            assert "Traceback" not in err
    finally:
        first.kill()
        first.communicate()
    assert (folder / ".lock").exists() and not (folder / "result.json").exists()
    sordino.run(given, folder=folder, resume=True)
    sordino.run(given, folder=tmp_path / "peace")
    assert left(folder) == left(tmp_path / "peace")
    assert not (folder / ".lock").exists()


def test_a_killed_worker_does_not_change_a_bit(tmp_path, monkeypatch):
    given = recipe(BATCH_NORM, **{"rounds.count": 6})
    start_worker, started = workers.Workers._start, []

    def remembered(self, number):
        started.append(start_worker(self, number))
        return started[-1]

    class Killer(Observer):
        def round(self, record, attendance):
            if record.round == 3:
                started[0].process.kill()

    monkeypatch.setattr(workers.Workers, "_start", remembered)
    sordino.run(given, folder=tmp_path / "run", workers=2, observer=Killer())
    assert [worker.number for worker in started] == [0, 1, 0]
    sordino.run(given, folder=tmp_path / "peace")
    assert left(tmp_path / "run") == left(tmp_path / "peace")


# --- folders that are not as they were left ---------------------------------------------------------------------------


@pytest.fixture
def halted(tmp_path: Path) -> Path:
    """A run that was interrupted after its second round."""
    with pytest.raises(KeyboardInterrupt):
        sordino.run(recipe(), folder=tmp_path / "run", observer=Stop(2))
    return tmp_path / "run"


def test_a_finished_run_is_not_done_again_but_its_files_are_made_whole(tmp_path):
    sordino.run(recipe(), folder=tmp_path / "run")
    expected = left(tmp_path / "run")
    page = (tmp_path / "run/report.html").read_text()
    for name in ("report.html", "result.json"):
        (tmp_path / "run" / name).unlink()
    sordino.run(recipe(), folder=tmp_path / "run", resume=True)
    assert left(tmp_path / "run") == expected and len((tmp_path / "run/report.html").read_text()) == len(page)


def test_a_folder_that_is_no_run_is_refused(tmp_path):
    (tmp_path / "empty").mkdir()
    for folder in (tmp_path / "empty", tmp_path / "absent"):
        with pytest.raises(InvalidInput, match="folder"):
            sordino.run(recipe(), folder=folder, resume=True)
    with pytest.raises(InvalidInput, match="resume"):
        sordino.run(recipe(), resume=True)
    assert not (tmp_path / "absent").exists()


def never_began(folder: Path) -> None:
    """What a run leaves that is killed while its recipe is being written down."""
    RunFolder.create(folder, "")
    (folder / "recipe.toml").rename(folder / ".recipe.toml.0123456789ab.draft")
    (folder / ".lock").touch()


def test_the_folder_of_a_run_that_never_began_is_taken_over(tmp_path):
    never_began(tmp_path / "run")
    sordino.run(recipe(), folder=tmp_path / "run")
    sordino.run(recipe(), folder=tmp_path / "peace")
    assert left(tmp_path / "run") == left(tmp_path / "peace")
    names = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("run", "peace")]
    assert names[0] == names[1]


@pytest.mark.parametrize(
    "spoil",
    [
        lambda folder: (folder / "environment.json").write_text('{"PATH": "/usr/bin"}'),
        lambda folder: (folder / "environment.json").write_text("FROM python"),
        lambda folder: (folder / "notes.txt").write_text("mine"),
        lambda folder: (folder / ".draft").write_text("mine"),
    ],
    ids=["another program's", "no json", "notes", "another draft"],
)
def test_a_folder_that_may_hold_something_of_value_is_not_taken_over(tmp_path, spoil):
    folder = tmp_path / "run"
    never_began(folder)
    (folder / ".recipe.toml.0123456789ab.draft").unlink()
    (folder / ".lock").unlink()
    spoil(folder)
    before = {path: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(InvalidInput, match="is not empty"):
        sordino.run(recipe(), folder=folder)
    assert before == {path: path.read_bytes() for path in folder.iterdir()}


def test_half_written_files_of_killed_processes_are_gone_when_a_run_goes_on(halted):
    own = [halted / f".{n}.0123456789ab.draft" for n in ("result.json", "model.safetensors")]
    own.append(halted / "checkpoint/.state.safetensors.ba9876543210.draft")
    for path in own:
        path.write_bytes(b"half")
    sordino.run(recipe(), folder=halted, resume=True)
    assert not any(path.exists() for path in own)


def test_another_recipe_is_refused_and_nothing_is_touched(halted):
    before = {path: path.read_bytes() for path in halted.rglob("*") if path.is_file()}
    with pytest.raises(InvalidInput, match="another recipe"):
        sordino.run(recipe({"training.epochs": 2}), folder=halted, resume=True)
    with pytest.raises(InvalidInput, match=r"holds a run.*--resume"):
        sordino.run(recipe(), folder=halted)
    assert before == {path: path.read_bytes() for path in halted.rglob("*") if path.is_file()}


def test_a_torn_line_of_metrics_or_releases_is_forgotten(halted, tmp_path):
    sordino.run(recipe(), folder=tmp_path / "peace")
    for name in ("metrics.jsonl", "checkpoint/releases.jsonl"):
        with (halted / name).open("ab") as file:
            file.write(b'{"round": 3, "accur')
    sordino.run(recipe(), folder=halted, resume=True)
    assert left(halted) == left(tmp_path / "peace")


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def empty(path: Path) -> None:
    path.write_bytes(b"")


def garble(path: Path) -> None:
    path.write_bytes(b"\xff" * 200)


@pytest.mark.parametrize("spoil", [cut, empty, garble], ids=lambda f: f.__name__)
def test_a_damaged_checkpoint_is_named_with_the_remedy(halted, spoil):
    spoil(halted / "checkpoint/state.safetensors")
    with pytest.raises(InvalidInput, match=r"state\.safetensors.*damaged"):
        sordino.run(recipe(), folder=halted, resume=True)


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoint/releases.jsonl"])
@pytest.mark.parametrize("lines", [0, 1])
def test_a_run_whose_records_are_lost_does_not_go_on(halted, name, lines):
    """Without them, what was released in the first rounds would be free."""
    path = halted / name
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[1 : 1 + lines]))
    with pytest.raises(SordinoError, match="damaged or missing"):
        sordino.run(recipe(), folder=halted, resume=True)


def test_without_a_checkpoint_a_run_begins_again(halted, tmp_path):
    sordino.run(recipe(), folder=tmp_path / "peace")
    (halted / "checkpoint/state.safetensors").unlink()
    sordino.run(recipe(), folder=halted, resume=True)
    assert left(halted) == left(tmp_path / "peace")


def test_a_model_that_changed_in_the_meantime_is_refused(tmp_path, monkeypatch):
    def code(width: int) -> str:
        return (
            "from torch import nn\n\nclass Grown(nn.Sequential):\n    def __init__(self):\n"
            f"        super().__init__(nn.Flatten(), nn.Linear(64, {width}), nn.Linear({width}, 10))\n"
        )

    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "grown_before.py").write_text(code(3))
    given = recipe({"model.name": "grown_before:Grown"})
    with pytest.raises(KeyboardInterrupt):
        sordino.run(given, folder=tmp_path / "run", observer=Stop(1))
    (tmp_path / "grown_before.py").write_text(code(44))
    monkeypatch.delitem(sys.modules, "grown_before")
    with pytest.raises(InvalidInput, match="grown_before"):
        sordino.run(given, folder=tmp_path / "run", resume=True)


def test_a_run_that_lost_its_workers_before_the_first_round_goes_on(tmp_path, monkeypatch):
    sordino.run(recipe(), folder=tmp_path / "whole")

    def lose(*_: object) -> None:
        raise WorkerLost("killed")

    with monkeypatch.context() as killed, pytest.raises(WorkerLost):
        killed.setattr(simulation, "rehearse", lose)
        sordino.run(recipe(), folder=tmp_path / "parts")
    sordino.run(recipe(), folder=tmp_path / "parts", resume=True)
    assert left(tmp_path / "parts") == left(tmp_path / "whole")

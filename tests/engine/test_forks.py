"""Workers that are copies of their parent: there at once, alike in all they compute, and never left behind."""

import logging
import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from sordino.fleets import workers as module
from sordino.fleets.forks import Fork, may_fork
from sordino.fleets.workers import KEPT_BYTES, M_MMAP_THRESHOLD, M_TRIM_THRESHOLD, Workers, starts_at_once
from sordino.runs.execution import WORTH_COPIES, WORTH_WORKERS, workers_for
from sordino.wire.messages import Plan
from tests.engine.test_simulated import fleet, reports, work_by_name

CPU = [torch.device("cpu")]
OPEN = Path("/proc/self/fd")
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(sys.platform != "linux", reason="elsewhere workers are programs"),
]


@pytest.fixture
def copies(monkeypatch):
    """As in a process with one thread, whatever the test's own has."""
    monkeypatch.setattr(module, "may_fork", lambda: True)


@dataclass(frozen=True)
class Tell:
    """What a worker finds around itself."""

    home: int = 0

    def do(self, work, plan):
        files = [str(path.readlink()) for path in list(OPEN.iterdir()) if path.exists() or path.is_symlink()]
        return {
            "files": [name for name in files if name.endswith("lock")],
            "sockets": sum(name.startswith("socket:") for name in files),
            "group": os.getpgid(0) == os.getpid(),
            "input": str((OPEN / "0").readlink()),
            "learns": torch.is_grad_enabled() and not torch.is_inference_mode_enabled(),
            "ends politely": signal.getsignal(signal.SIGTERM) == signal.SIG_DFL,
            "threads": torch.get_num_threads(),
        }


def test_copies_report_what_programs_and_the_parent_itself_report(copies, monkeypatch):
    given = work_by_name()
    expected = reports(fleet(given), given, 1)
    for fork in (True, False):
        monkeypatch.setattr(module, "may_fork", lambda fork=fork: fork)
        own = fleet(given, workers=2)
        try:
            assert {isinstance(child.process, Fork) for child in own._hands._crew} == {fork}
            assert reports(own, given, 1) == expected
        finally:
            own.close()


def test_many_records_are_left_to_programs_as_copies_would_hold_on_to_what_the_parent_lets_go_of(copies, monkeypatch):
    given = work_by_name()
    for most, fork in ((module.COPIED_BYTES, True), (0, False)):
        monkeypatch.setattr(module, "COPIED_BYTES", most)
        own = Workers(given, 2)
        try:
            assert {isinstance(child.process, Fork) for child in own._crew} == {fork}
        finally:
            own.close()


def test_a_copy_has_its_own_files_signals_and_gradients(copies, tmp_path):
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (tmp_path / "lock").open("w"), torch.inference_mode():
        own = Workers(work_by_name(), 2)
    try:
        (told,) = own.run(Plan("test", 1), [Tell(1)])
        assert told == {
            "files": [], "sockets": 1, "group": True, "input": "/dev/null", "learns": True, "ends politely": True,
            "threads": 1,
        }  # fmt: skip
    finally:
        own.close()
        signal.signal(signal.SIGTERM, before)


@dataclass(frozen=True)
class Write:
    """Logs a line, and opens files of its own."""

    home: int
    number: int  #: of the parent's file, which a worker's own file must not have

    def do(self, work, plan):
        logging.getLogger("own").warning("from a worker")
        numbers = [os.open(os.devnull, os.O_WRONLY) for _ in range(20)]
        return self.number in numbers, np.random.random()  # noqa: NPY002


def test_a_copy_writes_to_no_file_of_its_parent_and_draws_what_no_other_draws(copies, tmp_path, monkeypatch, capfd):
    handler = logging.FileHandler(tmp_path / "log")
    monkeypatch.setattr(logging.getLogger("own"), "handlers", [handler])
    own = Workers(work_by_name(), 2)
    try:
        found = list(own.run(Plan("test", 1), [Write(k, handler.stream.fileno()) for k in range(2)]))
        assert not any(taken for taken, _ in found)
        assert len({draw for _, draw in found}) == 2
    finally:
        own.close()
        handler.close()
    assert (tmp_path / "log").read_text() == ""
    assert "Error" not in capfd.readouterr().err


def test_a_signal_that_comes_while_a_copy_is_made_never_takes_it_back():
    """The parent's handler would send the copy through what the parent is about to do."""
    armed = [True]
    os.register_at_fork(after_in_child=lambda: armed and signal.setitimer(signal.ITIMER_REAL, 1e-6))
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        assert {Fork(lambda: time.sleep(10), [1, 2]).wait(10.0) for _ in range(20)} == {-signal.SIGALRM}
    finally:
        armed.clear()
        signal.signal(signal.SIGALRM, before)


CLOSED = """
import sys
from sordino.fleets import workers
from tests.engine.test_simulated import fleet, reports, work_by_name
workers.may_fork = lambda: sys.argv[1] == "copies"
given = work_by_name()
own = fleet(given, workers=2)
assert reports(own, given, 1) == reports(fleet(given), given, 1)
own.close()
"""


@pytest.mark.parametrize("kind", ["copies", "programs"])
def test_workers_need_no_standard_files(kind):
    command = f'exec "{sys.executable}" -c "$0" {kind} <&- >&-'
    assert subprocess.run(["sh", "-c", command, CLOSED], check=False).returncode == 0


def test_a_process_with_threads_is_not_copied():
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    try:
        assert not may_fork()
    finally:
        over.set()
        thread.join()


def test_a_worker_of_a_gpu_is_never_a_copy(copies):
    assert starts_at_once(CPU[0]) and not starts_at_once(torch.device("cuda"))


def test_less_work_repays_workers_that_are_there_at_once(monkeypatch):
    monkeypatch.setattr("sordino.runs.execution.cores", lambda: 4)
    for fork, worth in ((True, WORTH_COPIES), (False, WORTH_WORKERS)):
        monkeypatch.setattr(module, "may_fork", lambda fork=fork: fork)
        assert [workers_for(None, CPU, worth * share, 100) for share in (0.9, 1.0)] == [1, 4]


def test_a_copy_tells_how_it_ended_and_never_goes_back(tmp_path):
    """What the parent would tidy up, and what it would still write, is its own."""
    ends = [lambda: None, lambda: sys.exit(3), lambda: os.kill(os.getpid(), signal.SIGKILL)]
    trace = tmp_path / "trace"
    found = []
    for end in ends:
        try:
            found.append(Fork(end, [1, 2]).wait(10.0))
        finally:
            with trace.open("a") as file:
                file.write(f"{os.getpid()}\n")
    assert found == [0, 1, -signal.SIGKILL]
    assert set(trace.read_text().split()) == {str(os.getpid())}


def test_a_copy_that_does_not_end_is_waited_for_no_longer_than_asked():
    fork = Fork(lambda: time.sleep(60), [1, 2])
    with pytest.raises(subprocess.TimeoutExpired):
        fork.wait(0.05)
    fork.kill()
    assert fork.wait(10.0) == -signal.SIGKILL
    fork.kill()  # the second time there is nobody


@pytest.mark.parametrize("most", [2**40, 2**25, 0])
def test_workers_keep_memory_where_the_c_library_allows_it(most, monkeypatch):
    """Older ones refuse large blocks; a threshold for trimming by itself would make all blocks small ones."""
    settings = {}

    def mallopt(name, value):
        accepted = name == M_TRIM_THRESHOLD or value <= most
        return int(accepted and not settings.update({name: value}))

    monkeypatch.setattr(module.ctypes, "CDLL", lambda _: SimpleNamespace(mallopt=mallopt))
    module._keep_memory()
    expected = {M_MMAP_THRESHOLD: min(most, KEPT_BYTES), M_TRIM_THRESHOLD: KEPT_BYTES}
    assert settings == (expected if most else {})


ORPHANS = """
import os, signal
from tests.engine.test_simulated import work_by_name
from sordino.fleets.forks import Fork
from sordino.fleets.workers import Workers
own = Workers(work_by_name(), 3)
print(*(child.process.pid for child in own._crew), *{type(child.process).__name__ for child in own._crew}, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_copies_end_when_their_parent_is_killed_before_it_sends_work():
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True, env=environment
    ) as parent:
        assert parent.stdout is not None
        *pids, kind = parent.stdout.readline().split()
        assert (len(pids), kind) == (3, "Fork")
        until = time.monotonic() + 20
        while left := [pid for pid in pids if runs(pid)]:
            assert time.monotonic() < until, left
            time.sleep(0.05)


def runs(pid: str) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

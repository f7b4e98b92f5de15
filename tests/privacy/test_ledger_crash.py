"""Real processes, killed at many points, racing each other, and running out of disk: no spend is lost or doubled."""

import itertools
import json
import multiprocessing
import os
import random
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import timedelta
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path

import pytest

from sordino.errors import BudgetExceeded, LedgerUnavailable, ReportCompacted, SordinoError
from sordino.privacy.guarantee import SERVER, Adjacency, Budget, Guarantee, Pure, Release
from sordino.privacy.ledger import Ledger, Released, ReportKey

pytestmark = [
    pytest.mark.skipif(sys.platform == "win32", reason="uses fork and signals"),
    pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning"),
]

FORK = multiprocessing.get_context("fork") if sys.platform != "win32" else multiprocessing
EPSILON = 0.01
REPORT_BYTES = 30_000  # several pages, so that a commit is many writes


def key(round: int) -> ReportKey:
    return ReportKey("wards", "north", round, "ab")


def draw() -> tuple[Release, bytes]:
    """A fresh draw every time: two draws never give the same bytes or the same release."""
    guarantee = Guarantee(SERVER, Adjacency.CLIENT, Pure(EPSILON), "by hand")
    return Release(os.urandom(8).hex(), "wards", "update", (guarantee,)), os.urandom(REPORT_BYTES)


def start(target: Callable[..., None], *args: object) -> BaseProcess:
    process = FORK.Process(target=target, args=args, daemon=True)  # a failing test leaves nobody behind
    process.start()
    return process


def finish(process: BaseProcess) -> int:
    process.join(20)
    assert process.exitcode is not None, "the process hangs"
    code = process.exitcode
    process.close()
    return code


def drain(pipe: Connection) -> Iterator[tuple[int, bytes]]:
    """What a client sent before it died; a message cut short by its death never arrived."""
    try:
        while pipe.poll():
            yield pipe.recv()
    except EOFError:
        return


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "ledger.sqlite"
    with Ledger.create(path) as ledger:
        ledger.set_budget("wards", Budget(limit=1000.0))
    return path


def spends(path: Path) -> dict[int, int]:
    """How many reports each round has, from the entries themselves; also checks the whole file."""
    with Ledger.open(path) as ledger:
        ledger.verify()
        rounds = [entry.event.key.round for entry in ledger.entries() if isinstance(entry.event, Released)]
        assert ledger.standing("wards").spent == pytest.approx(EPSILON * len(rounds))
        return dict(Counter(rounds))


def resume(path: Path, round: int) -> bytes:
    with Ledger.open(path) as ledger:
        return ledger.release_once(key(round), draw)


# --- killed at chosen points


def client_killed_before_statement(path: Path, statement: int, pipe: Connection) -> None:
    """Die just before the n-th statement reaches SQLite: before, inside and after the transaction."""
    seen = 0

    def trace(_: str) -> None:
        nonlocal seen
        if seen == statement:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    with Ledger.open(path) as ledger:
        ledger._db.connection.set_trace_callback(trace)
        sent = ledger.release_once(key(1), draw)
        ledger._db.connection.set_trace_callback(None)
    pipe.send((1, sent))


def test_killed_before_any_statement_either_nothing_was_spent_or_the_same_bytes_come_back(path: Path) -> None:
    pristine = path.read_bytes()
    outcomes = []
    for statement in range(100):
        path.write_bytes(pristine)
        receiver, sender = FORK.Pipe(duplex=False)
        code = finish(start(client_killed_before_statement, path, statement, sender))
        sender.close()
        arrived = dict(drain(receiver))
        receiver.close()
        recorded = spends(path)
        outcomes.append((bool(recorded), bool(arrived)))
        assert not arrived or recorded == {1: 1}, "sent without being recorded"
        again = resume(path, 1)
        assert arrived.get(1, again) == again
        assert spends(path) == {1: 1}
        if code == 0:
            break
        assert code == -signal.SIGKILL
    assert outcomes[-1] == (True, True), "one statement after the last, the client must live"
    assert outcomes[:-1] == [(False, False)] * (len(outcomes) - 1), "before COMMIT nothing may be on disk or sent"
    assert len(outcomes) > 8, "the kill points must cover the transaction"


def client_killed_at_size(path: Path, size: int, pipe: Connection) -> None:
    """Die in the very write that would make the journal or the ledger larger than `size`: in the middle of a commit."""
    with Ledger.open(path) as ledger:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        sent = ledger.release_once(key(1), draw)
    pipe.send((1, sent))


def test_killed_in_the_middle_of_a_commit_the_next_start_undoes_it(path: Path) -> None:
    pristine, journal = path.read_bytes(), path.with_name(path.name + "-journal")
    torn = lived = 0
    for size in range(0, len(pristine) + REPORT_BYTES + 16_384, 2048):
        path.write_bytes(pristine)
        receiver, sender = FORK.Pipe(duplex=False)
        code = finish(start(client_killed_at_size, path, size, sender))
        sender.close()
        arrived = dict(drain(receiver))
        receiver.close()
        assert code == (0 if arrived else -signal.SIGXFSZ)
        torn += path.read_bytes() != pristine and not arrived and journal.stat().st_size > 0
        lived += bool(arrived)
        assert spends(path) == ({1: 1} if arrived else {})
        again = resume(path, 1)
        assert arrived.get(1, again) == again
        assert spends(path) == {1: 1}
    assert torn > 3, "no kill hit a half-written ledger: the test does not test"
    assert lived > 1


# --- killed while it compacts


@pytest.fixture(params=["made now", "made before files could shrink"])
def rounds(request: pytest.FixtureRequest, path: Path) -> dict[int, bytes]:
    """A ledger with six reports, and these: five of rounds that are over."""
    with Ledger.open(path) as ledger:
        sent = {round: ledger.release_once(key(round), draw) for round in range(6)}
    if request.param != "made now":
        with closing(sqlite3.connect(path)) as connection:
            connection.execute("PRAGMA auto_vacuum = 0")
            connection.execute("VACUUM")
    return sent


def owner_killed_before_statement(path: Path, statement: int, pipe: Connection) -> None:
    seen = 0

    def trace(_: str) -> None:
        nonlocal seen
        if seen == statement:
            os.kill(os.getpid(), signal.SIGKILL)
        seen += 1

    with Ledger.open(path) as ledger:
        ledger._db.connection.set_trace_callback(trace)
        freed = ledger.compact(timedelta(0))
        ledger._db.connection.set_trace_callback(None)
    pipe.send((freed.reports, freed.not_shrunk.encode()))


def owner_killed_at_size(path: Path, size: int, pipe: Connection) -> None:
    with Ledger.open(path) as ledger:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        freed = ledger.compact(timedelta(0))
    pipe.send((freed.reports, freed.not_shrunk.encode()))


def compacted_or_not(path: Path, sent: dict[int, bytes]) -> bool:
    """Whether the ledger was compacted: wholly, or not at all. It checks the whole file, and draws nothing."""
    assert spends(path) == dict.fromkeys(sent, 1)
    with Ledger.open(path) as ledger:
        holdings = ledger.holdings()
        kept = sent if holdings.hashes == 0 else {5: sent[5]}
        assert (holdings.reports, holdings.hashes) == (len(kept), len(sent) - len(kept))
        for round, report in sent.items():
            if round in kept:
                assert ledger.replay(key(round)) == report
            else:
                with pytest.raises(ReportCompacted):
                    ledger.release_once(key(round), draw)
    return holdings.hashes > 0


def killed(target: Callable[..., None], path: Path, when: int) -> int:
    receiver, sender = FORK.Pipe(duplex=False)
    code = finish(start(target, path, when, sender))
    sender.close()
    assert (code == 0) == bool(dict(drain(receiver)))
    receiver.close()
    return code


def test_killed_before_any_statement_of_a_compaction_all_bytes_are_there_or_all_are_accounted_for(
    path: Path, rounds: dict[int, bytes]
) -> None:
    pristine, outcomes, code = path.read_bytes(), [], -1
    for statement in range(200):
        path.write_bytes(pristine)
        code = killed(owner_killed_before_statement, path, statement)
        outcomes.append(compacted_or_not(path, rounds))
        if code == 0:
            break
    assert code == 0
    assert outcomes == sorted(outcomes), "first not at all, from the commit on wholly"
    assert outcomes.count(False) > 3
    assert outcomes.count(True) > 1, "also while the file shrinks"
    assert path.stat().st_size < 0.5 * len(pristine)


def test_killed_in_the_middle_of_a_write_of_a_compaction_the_next_start_finds_a_whole_ledger(
    path: Path, rounds: dict[int, bytes]
) -> None:
    pristine = path.read_bytes()
    outcomes = set()
    for size in range(0, len(pristine) + 40_000, 8192):
        path.write_bytes(pristine)
        code = killed(owner_killed_at_size, path, size)
        outcomes.add((code == 0, compacted_or_not(path, rounds)))
        with Ledger.open(path) as ledger:  # and the next one ends what was begun
            ledger.compact(timedelta(0))
        assert compacted_or_not(path, rounds)
        assert path.stat().st_size < 0.5 * len(pristine)
    assert {(False, False), (True, True)} <= outcomes


# --- killed at random


def client_at_work(path: Path, first_round: int, pipe: Connection) -> None:
    with Ledger.open(path) as ledger:
        for round in itertools.count(first_round):
            pipe.send((round, ledger.release_once(key(round), draw)))


def test_killed_at_random_moments_every_round_is_spent_once_and_always_sends_the_same_bytes(path: Path) -> None:
    rng = random.Random(4711)
    sent: dict[int, bytes] = {}
    for _ in range(50):
        receiver, sender = FORK.Pipe(duplex=False)
        process = start(client_at_work, path, max(0, len(sent) - 2), sender)
        sender.close()
        wanted = rng.randrange(7)  # with 0 it dies while it opens the ledger
        while wanted > 0:
            assert receiver.poll(20), "the client hangs"
            wanted -= collect(receiver, sent)
        time.sleep(rng.uniform(0.0, 0.004))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        assert finish(process) == -signal.SIGKILL
        collect(receiver, sent)
        receiver.close()
    recorded = spends(path)
    assert set(recorded.values()) == {1}
    assert sent.keys() <= recorded.keys()
    assert len(sent) > 50, "the kills must come between many rounds"
    with Ledger.open(path) as ledger:
        assert {round: ledger.replay(key(round)) for round in sent} == sent


def collect(pipe: Connection, sent: dict[int, bytes]) -> int:
    """Take in what has arrived, which must agree with what arrived before; gives the number of messages."""
    arrived = list(drain(pipe))
    for round, report in arrived:
        assert sent.setdefault(round, report) == report, f"two byte strings for round {round}"
    return len(arrived)


SCRIPT = """
import os, sys
sys.path.insert(0, sys.argv[2])
from test_ledger_crash import draw, key
from sordino.privacy.ledger import Ledger
with Ledger.open(sys.argv[1]) as ledger:
    for round in range(10_000):
        report = ledger.release_once(key(round), draw)
        os.write(1, f"{round} {report.hex()}\\n".encode())
"""


def test_a_separate_interpreter_killed_at_work_loses_nothing(path: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(path), str(Path(__file__).parent)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        process.kill()
        lines += process.stdout.readlines()
    sent = {int(line.split()[0]): bytes.fromhex(line.split()[1].decode()) for line in lines if line.endswith(b"\n")}
    recorded = spends(path)
    assert len(sent) >= 3
    assert set(sent) <= set(recorded)
    assert len(recorded) <= len(sent) + 1, "recorded ahead of sending by more than the one in flight"
    with Ledger.open(path) as ledger:
        assert {round: ledger.replay(key(round)) for round in sent} == sent


# --- two at once


def racer(path: Path, rounds: list[int], pipe: Connection) -> None:
    def counted() -> tuple[Release, bytes]:
        nonlocal draws
        draws += 1
        return draw()

    draws, reports = 0, {}
    with Ledger.open(path) as ledger:
        for round in rounds:
            reports[round] = ledger.release_once(key(round), counted)
    pipe.send((draws, reports))


@pytest.mark.parametrize("seed", [1, 2])
def test_processes_racing_for_the_same_rounds_get_the_same_bytes_from_one_draw(path: Path, seed: int) -> None:
    rng, rounds, results = random.Random(seed), list(range(40)), []
    pipes = [FORK.Pipe(duplex=False) for _ in range(3)]
    racers = [start(racer, path, rng.sample(rounds, 40), sender) for _, sender in pipes]
    for receiver, sender in pipes:
        assert receiver.poll(20), "a racer failed"
        results.append(receiver.recv())
        receiver.close()
        sender.close()
    assert [finish(process) for process in racers] == [0, 0, 0]
    assert all(reports == results[0][1] for _, reports in results)
    assert sum(draws for draws, _ in results) == 40
    assert spends(path) == dict.fromkeys(rounds, 1)


def spender(path: Path, first_round: int, pipe: Connection) -> None:
    accepted = 0
    with Ledger.open(path) as ledger:
        for round in range(first_round, first_round + 30):
            try:
                ledger.release_once(key(round), draw)
                accepted += 1
            except BudgetExceeded:
                pass
    pipe.send(accepted)


def test_processes_spending_from_one_budget_never_exceed_it_together(path: Path) -> None:
    with Ledger.open(path) as ledger:
        ledger.set_budget("wards", Budget(limit=25 * EPSILON))
    pipes = [FORK.Pipe(duplex=False) for _ in range(2)]
    spenders = [start(spender, path, 1000 * i, sender) for i, (_, sender) in enumerate(pipes)]
    accepted = []
    for receiver, sender in pipes:
        assert receiver.poll(20), "a spender failed"
        accepted.append(receiver.recv())
        receiver.close()
        sender.close()
    assert [finish(process) for process in spenders] == [0, 0]
    assert sum(accepted) == 25
    assert sum(spends(path).values()) == 25


def client_that_sleeps_in_its_draw(path: Path, pipe: Connection) -> None:
    def slow() -> tuple[Release, bytes]:
        pipe.send("drawing")
        time.sleep(60)
        return draw()

    with Ledger.open(path) as ledger:
        ledger.release_once(key(1), slow)


def test_a_held_ledger_is_unavailable_until_its_holder_dies(path: Path) -> None:
    receiver, sender = FORK.Pipe(duplex=False)
    holder = start(client_that_sleeps_in_its_draw, path, sender)
    assert receiver.poll(20)
    assert receiver.recv() == "drawing"
    with Ledger.open(path, busy_timeout=0.2) as ledger:
        with pytest.raises(LedgerUnavailable, match="another process"):
            ledger.release_once(key(1), draw)
        assert holder.pid is not None
        os.kill(holder.pid, signal.SIGKILL)
        assert finish(holder) == -signal.SIGKILL
        ledger.release_once(key(1), draw)
    receiver.close()
    sender.close()
    assert spends(path) == {1: 1}


def test_a_ledger_opened_before_a_fork_is_refused_after_it(path: Path) -> None:
    def use(ledger: Ledger, pipe: Connection) -> None:
        try:
            ledger.head()
        except SordinoError as error:
            pipe.send(str(error))

    receiver, sender = FORK.Pipe(duplex=False)
    with Ledger.open(path) as ledger:
        finish(start(use, ledger, sender))
        assert receiver.poll(5), "the ledger could be used after a fork"
        assert "opened before a fork" in receiver.recv()
        assert ledger.verify().sequence == 2
    receiver.close()
    sender.close()


# --- no room, no permission


def fill(path: str) -> None:
    """Record until the ledger refuses; print what was sent, and what the ledger says then and with a little room."""
    sent, refusal, no_room = {}, "", ""
    ballast = Path(path).with_name("ballast")
    ballast.write_bytes(bytes(100_000))
    with Ledger.create(path) as ledger:
        ledger.set_budget("wards", Budget(limit=1000.0))
        for round in range(1000):
            try:
                sent[round] = ledger.release_once(key(round), draw)
            except SordinoError as error:
                refusal = f"{type(error).__name__}: {error}"
                break
        replays = all(ledger.replay(key(round)) == report for round, report in sent.items())
        spent = len(spends(Path(path)))
        try:
            freed = ledger.compact(timedelta(0))
        except LedgerUnavailable as error:
            no_room = str(error)
            replays = replays and all(ledger.replay(key(round)) == report for round, report in sent.items())
            ballast.unlink()
            freed = ledger.compact(timedelta(0))
        again = ledger.release_once(key(1000), draw) == ledger.replay(key(1000))
    told = {"sent": len(sent), "refusal": refusal, "replays": replays, "spends": spent, "no_room": no_room}
    print(json.dumps({**told, "freed": freed.reports, "again": again, "after": len(spends(Path(path)))}))


FILL = "import sys; sys.path.insert(0, sys.argv[2]); import test_ledger_crash; test_ledger_crash.fill(sys.argv[1])"


def fill_command(path: Path) -> list[str]:
    return [sys.executable, "-c", FILL, str(path), str(Path(__file__).parent)]


def test_a_full_disk_refuses_rather_than_reports(tmp_path: Path) -> None:
    mount = f'mount -t tmpfs -o size=512k tmpfs {tmp_path} && exec "$@"'
    inside = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
    if shutil.which("unshare") is None or subprocess.run([*inside, "sh", "-c", mount, "sh", "true"]).returncode:
        pytest.skip("this machine does not let tests mount a small disk")
    command = [*inside, "sh", "-c", mount, "sh", *fill_command(tmp_path / "ledger.sqlite")]
    result = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert result["refusal"].startswith("LedgerUnavailable")
    assert "the disk is full" in result["refusal"]
    assert 5 < result["sent"] == result["spends"] < 14  # 412 kB / 30 kB
    assert result["replays"], "what was recorded can still be sent again from a full disk"
    assert "the disk is full" in result["no_room"], "a compaction needs a page of journal for each entry"
    assert result["freed"] == result["sent"] - 1
    assert result["again"]
    assert result["after"] == result["sent"] + 1


def test_a_file_size_limit_refuses_rather_than_reports(tmp_path: Path) -> None:
    result = json.loads(
        subprocess.run(
            fill_command(tmp_path / "ledger.sqlite"),
            check=True,
            capture_output=True,
            text=True,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000)),
        ).stdout
    )
    assert result["refusal"].startswith("LedgerUnavailable")
    assert 5 < result["sent"] == result["spends"] < 14
    assert result["replays"]


def reader_without_permission(path: Path, pipe: Connection) -> None:
    if os.geteuid() == 0:
        os.setgid(65534)
        os.setuid(65534)
    answers: list[object] = []
    with Ledger.open(path) as ledger:
        answers.append(ledger.replay(key(1)))
        for attempt in (lambda: ledger.release_once(key(2), draw), lambda: ledger.set_budget("wards", Budget(9.0))):
            try:
                answers.append(attempt())
            except LedgerUnavailable as error:
                answers.append(str(error))
    pipe.send(answers)


def test_a_read_only_ledger_can_be_read_and_refuses_to_record() -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ledger.sqlite"
        with Ledger.create(path) as ledger:
            ledger.set_budget("wards", Budget(limit=1.0))
            sent = ledger.release_once(key(1), draw)
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        receiver, sender = FORK.Pipe(duplex=False)
        process = start(reader_without_permission, path, sender)
        assert receiver.poll(30)
        replayed, *refusals = receiver.recv()
        assert finish(process) == 0
        receiver.close()
        sender.close()
        Path(folder).chmod(0o755)
        assert replayed == sent
        assert len(refusals) == 2
        assert all("read-only" in refusal for refusal in refusals)
        assert spends(path) == {1: 1}

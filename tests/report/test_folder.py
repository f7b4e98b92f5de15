"""A run's folder: what is written is there after a crash and on a full disk, and comes back as it was."""

import errno
import json
import math
import os
import subprocess
import sys
import textwrap
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import sordino
from sordino.errors import InvalidInput
from sordino.report.folder import RunFolder, environment, unused_folder
from sordino.report.records import ClientBudget, Result, RoundRecord, Simulation, from_json, plain, to_line, to_page
from sordino.report.statement import to_text
from sordino.runs.journal import JournalStore
from sordino.storage import files
from sordino.storage.files import InUse, NotWritten, exclusive_lock, last_line, whole_lines, write_whole
from tests.power_cut import watched
from tests.report.runs import a_result, a_round, ordinary, stated, unprotected


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", 'name = "x"\n')


def strict(text: str) -> object:
    """JSON as the standard has it: without NaN and infinities."""

    def refuse(token: str) -> None:
        raise AssertionError(f"{token} is not JSON")

    return json.loads(text, parse_constant=refuse)


# --- folders ---------------------------------------------------------------------------------------------------------


def test_a_new_folder_holds_the_recipe_as_given_and_the_environment(tmp_path):
    text = '# my notes\nname = "é"\n'
    made = RunFolder.create(tmp_path / "deep" / "run", text, device="cpu")
    again = RunFolder.open(str(made.path))
    assert again.recipe == text
    assert again.environment["device"] == "cpu"
    assert again.rounds() == ()
    assert again.result() is None
    assert again.statement() is None
    assert again.checkpoint == made.path / "checkpoint"


def test_the_environment_says_what_ran_where_and_how():
    said = environment()
    assert said["sordino"] == sordino.__version__
    assert said["versions"]["numpy"] == np.__version__
    assert said["python"] == ".".join(map(str, sys.version_info[:3]))
    assert said["cpus"] == os.cpu_count()
    assert said["started"].endswith("+00:00")
    assert said["device"] is None


def test_an_empty_folder_is_taken(tmp_path):
    RunFolder.create(tmp_path, "")
    assert (tmp_path / "recipe.toml").read_text() == ""


def test_a_folder_that_holds_a_run_is_left_as_it_is(folder):
    before = folder.recipe
    with pytest.raises(InvalidInput, match=r"holds a run.*--resume.*--out"):
        RunFolder.create(folder.path, "other")
    assert folder.recipe == before


def test_a_folder_with_other_files_is_refused(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(InvalidInput, match=r"thesis\.tex.*--out"):
        RunFolder.create(tmp_path, "")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["thesis.tex"]


def test_a_folder_that_cannot_be_made_is_an_error_of_ours(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotWritten, match="folder"):
        RunFolder.create(tmp_path / "file" / "run", "")


def test_what_is_not_a_run_is_not_opened(tmp_path):
    with pytest.raises(InvalidInput, match=r"recipe\.toml"):
        RunFolder.open(tmp_path)


def test_unused_folders_are_numbered_and_claimed_at_once(tmp_path):
    paths = [unused_folder(tmp_path / "runs", "digits") for _ in range(3)]
    assert [path.name for path in paths] == ["digits", "digits-2", "digits-3"]
    assert all(path.is_dir() for path in paths)


def test_new_folders_are_durable_and_so_are_those_above_them(tmp_path, monkeypatch):
    lost = watched(monkeypatch)
    RunFolder.create(unused_folder(tmp_path / "all/runs", "digits"), "")
    with closing(JournalStore(RunFolder.create(tmp_path / "other/run", ""))) as store:
        store.begin({"federation": "ward"})
        write_whole(tmp_path / "other/run/checkpoint/plan", b"")
    assert lost(tmp_path) == set()


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "a b"], ids=range(5))
def test_a_name_that_leaves_its_folder_is_refused(tmp_path, name):
    with pytest.raises(InvalidInput, match="letters"):
        unused_folder(tmp_path, name)
    assert list(tmp_path.iterdir()) == []


# --- one process at a time --------------------------------------------------------------------------------------------

HOLDER = """
import sys, time
from pathlib import Path
from sordino.storage.files import exclusive_lock

with exclusive_lock(Path(sys.argv[1]), "this"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.mark.process
def test_a_lock_keeps_other_processes_out_and_ends_with_its_own(tmp_path):
    lock = tmp_path / "lock"
    with subprocess.Popen([sys.executable, "-c", HOLDER, str(lock)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "held\n"
        with pytest.raises(InUse, match=rf"another process is running this \(process {other.pid} on .*stop it first"):
            exclusive_lock(lock, "this").__enter__()
        other.kill()
    assert lock.exists()  # a killed process removes nothing; what it left locks nothing
    with exclusive_lock(lock, "this"):
        pass
    assert not lock.exists()


def test_a_lock_that_its_holder_removes_while_others_wait_for_it_is_not_taken_by_two(tmp_path, monkeypatch):
    """The file is opened, then its holder is done and removes it, and a third process makes and locks a new one."""
    lock, opened, flock = tmp_path / "lock", [], files.fcntl.flock
    third = exclusive_lock(lock, "this")

    def late(descriptor, how):
        if not opened:
            opened.append(descriptor)
            lock.unlink()
            third.__enter__()
        flock(descriptor, how)

    monkeypatch.setattr(files.fcntl, "flock", late)
    with pytest.raises(InUse):
        exclusive_lock(lock, "this").__enter__()
    third.__exit__(None, None, None)
    with exclusive_lock(lock, "this"):
        pass


def test_where_locks_are_missing_one_that_is_let_go_meanwhile_is_taken(tmp_path, monkeypatch):
    """The holder removes its file between the two looks at it: nobody holds it then, and nobody is kept out."""
    lock, opening = tmp_path / "lock", os.open
    lock.write_text("process 1\n")

    def late(path, how, *mode):
        try:
            return opening(path, how, *mode)
        except FileExistsError:
            lock.unlink()
            raise

    monkeypatch.setattr(files, "fcntl", None)
    with monkeypatch.context() as racing:
        racing.setattr(os, "open", late)
        holding = exclusive_lock(lock, "this")
        holding.__enter__()
    with pytest.raises(InUse):
        exclusive_lock(lock, "this").__enter__()
    holding.__exit__(None, None, None)
    assert not lock.exists()


def _no_such_lock(descriptor: int, how: int) -> None:
    raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))


@pytest.mark.parametrize("missing", ["in the system", "in the file system"])
def test_where_there_are_no_locks_the_file_keeps_others_out_until_a_person_removes_it(tmp_path, monkeypatch, missing):
    if missing == "in the system":
        monkeypatch.setattr(files, "fcntl", None)
    else:
        monkeypatch.setattr(files.fcntl, "flock", _no_such_lock)
    lock = tmp_path / "lock"
    with exclusive_lock(lock, "this"):
        refused = rf"running this \(process {os.getpid()} on .*or remove {lock} if that process has ended"
        with pytest.raises(InUse, match=refused):
            exclusive_lock(lock, "this").__enter__()
        assert lock.exists()
    with exclusive_lock(lock, "this"):
        pass
    assert not lock.exists()


def test_a_lock_in_a_folder_that_is_not_there_is_an_error_of_ours(tmp_path):
    with pytest.raises(NotWritten, match="written to"), exclusive_lock(tmp_path / "absent/lock", "this"):
        pass


# --- rounds ----------------------------------------------------------------------------------------------------------

_shares = st.none() | st.floats(0, 1)
_measures = st.none() | st.floats(allow_nan=False, allow_infinity=False)
_epsilons = st.none() | st.floats(0, allow_nan=False)
_counts = st.integers(0, 2**70)
_simulations = st.none() | st.builds(
    Simulation, train_loss=_measures, failed=_counts, clipped=_shares, update_norm=_measures, noise_norm=_measures
)
_rounds = st.builds(
    RoundRecord,
    round=st.integers(1, 10**6),
    accuracy=_shares,
    loss=_measures,
    validation_accuracy=_shares,
    asked=_counts,
    counted=st.booleans(),
    seconds=st.floats(0, 1e9),
    bytes_up=_counts,
    spent_max=_epsilons,
    spent_median=_epsilons,
    simulation=_simulations,
)


@given(_rounds)
@settings(deadline=None, derandomize=True)
def test_every_round_comes_back_from_json_as_it_was(record):
    line = to_line(record)
    assert "\n" not in line
    assert from_json(RoundRecord, strict(line)) == record


def test_rounds_are_one_json_object_a_line_with_the_agreed_fields(folder):
    folder.append_round(a_round(1, 0.25))
    folder.append_round(a_round(2))
    lines = (folder.path / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == 2
    assert set(strict(lines[0])) == {
        "round", "accuracy", "loss", "validation_accuracy", "metric", "score", "validation_score", "asked",
        "reported", "declined", "refused", "late", "strays", "restarts", "counted", "seconds", "bytes_up", "bytes_down",
        "spent_max", "spent_median", "simulation", "private",
    }  # fmt: skip
    assert set(strict(lines[0])["simulation"]) == {
        "train_loss", "failed", "clipped", "update_norm", "noise_norm", "delivery",
    }  # fmt: skip
    assert strict(lines[0])["accuracy"] == 0.25
    assert strict(lines[0])["validation_accuracy"] is None


@pytest.mark.parametrize(
    "torn", ['{"round": 3, "accu', to_line(a_round(3)), "\x00\x00\x00"], ids=["half", "no end", "nul"]
)
def test_a_torn_last_line_is_left_out_and_cut_off_when_the_run_goes_on(folder, torn):
    for number in (1, 2):
        folder.append_round(a_round(number))
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write(torn)
    assert [record.round for record in folder.rounds()] == [1, 2]
    folder.append_round(a_round(3, 0.75))
    assert folder.rounds() == (a_round(1), a_round(2), a_round(3, 0.75))
    assert (folder.path / "metrics.jsonl").read_text().count("\n") == 3


def test_a_file_with_nothing_but_a_torn_line_holds_no_round(folder):
    (folder.path / "metrics.jsonl").write_text('{"round"')
    assert folder.rounds() == ()
    folder.append_round(a_round(1))
    assert folder.rounds() == (a_round(1),)


def test_a_torn_line_longer_than_one_block_is_cut_off_whole(folder):
    folder.append_round(a_round(1))
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write("x" * 10_000)
    folder.append_round(a_round(2))
    assert [record.round for record in folder.rounds()] == [1, 2]
    assert (folder.path / "metrics.jsonl").read_text() == f"{to_line(a_round(1))}\n{to_line(a_round(2))}\n"


def test_damage_elsewhere_is_named_and_not_passed_over(folder):
    folder.append_round(a_round(1))
    with (folder.path / "metrics.jsonl").open("a") as file:
        file.write("garbage\n")
    with pytest.raises(InvalidInput, match=r"metrics\.jsonl, line 2"):
        folder.rounds()


def test_rounds_come_in_order_and_a_resumed_run_drops_the_later_ones_first(folder):
    for number in range(1, 6):
        folder.append_round(a_round(number))
    with pytest.raises(InvalidInput, match=r"round 4.*round 5"):
        folder.append_round(a_round(4))
    folder.truncate_rounds(3)
    folder.append_round(a_round(4, 0.125))
    assert [(r.round, r.accuracy) for r in folder.rounds()] == [(1, 0.5), (2, 0.5), (3, 0.5), (4, 0.125)]
    folder.truncate_rounds(0)
    assert folder.rounds() == ()


def test_truncating_before_the_first_round_does_nothing(folder):
    folder.truncate_rounds(0)
    assert not (folder.path / "metrics.jsonl").exists()


def test_rounds_out_of_order_on_disk_are_refused(folder):
    (folder.path / "metrics.jsonl").write_text(f"{to_line(a_round(2))}\n{to_line(a_round(2))}\n")
    with pytest.raises(InvalidInput, match="line 2"):
        folder.rounds()


@given(st.lists(st.binary().map(lambda b: b.replace(b"\n", b"")), max_size=5), st.binary(max_size=9000))
@settings(deadline=None, derandomize=True, max_examples=50)
def test_the_last_whole_line_is_found_from_the_back(tmp_path_factory, lines, torn):
    path = tmp_path_factory.mktemp("lines") / "file"
    path.write_bytes(b"".join(line + b"\n" for line in lines) + torn.replace(b"\n", b""))
    assert whole_lines(path) == lines
    assert last_line(path) == (lines[-1] if lines else None)


# --- numbers that JSON does not have ---------------------------------------------------------------------------------


def test_a_diverged_loss_is_null_and_an_infinite_epsilon_is_a_word(folder):
    wild = RoundRecord(
        1, loss=math.nan, spent_max=math.inf, spent_median=2.5, simulation=Simulation(train_loss=math.inf)
    )
    folder.append_round(wild)
    packed = strict((folder.path / "metrics.jsonl").read_text())
    assert packed["loss"] is None
    assert packed["simulation"]["train_loss"] is None
    assert packed["spent_max"] == "infinite"
    (again,) = folder.rounds()
    assert again.spent_max == math.inf
    assert again.spent_median == 2.5


def test_numpy_values_become_plain_ones(folder):
    record = RoundRecord(np.int64(1), accuracy=np.float32(0.5), counted=np.bool_(False), asked=np.uint8(3))
    folder.append_round(record)
    assert folder.rounds() == (RoundRecord(1, accuracy=0.5, counted=False, asked=3),)
    assert plain({"a": np.arange(3), "b": (np.float64("nan"), -math.inf)}) == {"a": [0, 1, 2], "b": [None, "-infinite"]}


@pytest.mark.parametrize(
    "wrong",
    [
        {"round": 0}, {"round": 1.5}, {"round": True}, {"round": 1, "accuracy": 1.01}, {"round": 1, "accuracy": "high"},
        {"round": 1, "asked": -1}, {"round": 1, "spent_max": math.nan}, {"round": 1, "spent_max": -1.0},
        {"round": 1, "counted": 1}, {"round": 1, "seconds": math.inf}, {"round": 1, "colour": 3}, {},
        {"round": 1, "simulation": {"mood": 1}},
    ],
    ids=range(13),
)  # fmt: skip
def test_malformed_rounds_are_refused(wrong):
    with pytest.raises(InvalidInput):
        from_json(RoundRecord, wrong)


def test_json_of_strange_things_is_refused():
    with pytest.raises(InvalidInput, match="object"):
        to_line({"x": object()})


# --- results, statements, models -------------------------------------------------------------------------------------


def test_a_result_comes_back_as_it_was(folder):
    result = replace(
        a_result([a_round(1)]),
        settings={"split.beta": math.inf, "clients.epsilon": [1.0, 2.0], "x": None},
        budgets=(ClientBudget(0, math.inf, 3.0, math.inf, 2, 1),),
    )
    folder.write_result(result)
    again = folder.result()
    assert again == result
    assert again.budgets[0].spent == math.inf
    packed = strict((folder.path / "result.json").read_text())
    assert packed["budgets"] == [
        {"client": 0, "epsilon": "infinite", "limit": 3.0, "spent": "infinite", "reports": 2, "declined": 1, "name": ""}
    ]
    assert packed["settings"]["split.beta"] == "infinite"
    assert packed["confusion"][0][0] == 15


def test_a_result_that_does_not_fit_its_classes_is_refused():
    with pytest.raises(InvalidInput, match="2 x 2"):
        Result("x", 1, "over", 1, confusion=[[1]], classes=("a", "b"))
    with pytest.raises(InvalidInput, match="label_counts"):
        Result("x", 1, "over", 1, label_counts=[[1, 2, 3]], classes=("a", "b"))
    with pytest.raises(InvalidInput, match="different lengths"):
        Result("x", 1, "over", 1, confusion=[[1, 2], [3]], classes=("a", "b"))


def test_a_damaged_result_is_named(folder):
    (folder.path / "result.json").write_text("{")
    with pytest.raises(InvalidInput, match=r"result\.json is damaged"):
        folder.result()
    (folder.path / "result.json").write_text('{"name": "x"}')
    with pytest.raises(InvalidInput, match=r"result\.json.*seed.*stopped"):
        folder.result()


@pytest.mark.parametrize("statement", [stated([4.0, 2.0]), unprotected()], ids=["vector", "nothing proven"])
def test_a_statement_is_written_exactly_and_in_words(folder, statement):
    folder.write_statement(statement)
    assert folder.statement() == statement
    strict((folder.path / "statement.json").read_text())
    assert (folder.path / "statement.txt").read_text() == to_text(statement)


def test_json_for_people_is_the_same_json():
    value = {"a": [], "b": {}, "c": [[1, 2], [3]], "d": {"x": [1]}, "e": ["<&>"], "f": 1.5, "g": None}
    assert strict(to_page(value)) == value


def test_a_model_comes_back_bit_by_bit(folder):
    table = np.arange(12, dtype=np.float32).reshape(3, 4)
    arrays = {"turned": table.T, "strided": table[:, ::2], "scalar": np.array(2.5, np.float32), "none": table[:0]}
    folder.write_model(arrays, {"model": "logistic", "note": "é"})
    again, texts = folder.model()
    assert set(again) == set(arrays)
    for name, array in arrays.items():
        assert again[name].dtype == np.float32
        assert again[name].shape == array.shape
        assert np.array_equal(again[name], array)
    assert texts == {"model": "logistic", "note": "é"}


def test_buffers_of_other_kinds_come_back_too(folder):
    arrays = {"steps": np.array(7), "double": np.ones(2), "half": np.ones(2, np.float16), "mask": np.array([True])}
    folder.write_model(arrays)
    again, _ = folder.model()
    assert {name: (array.dtype, array.tolist()) for name, array in again.items()} == {
        name: (array.dtype, array.tolist()) for name, array in arrays.items()
    }


def test_models_that_are_no_numbers_absent_or_damaged_are_refused(folder):
    with pytest.raises(InvalidInput, match=r"w \(complex128\)"):
        folder.write_model({"w": np.zeros(3, complex)})
    with pytest.raises(InvalidInput, match="no model yet"):
        folder.model()
    (folder.path / "model.safetensors").write_bytes(b"\x08\x00\x00\x00\x00\x00\x00\x00garbage!")
    with pytest.raises(InvalidInput, match="damaged"):
        folder.model()


# --- crashes and full disks ------------------------------------------------------------------------------------------


@pytest.mark.process
def test_a_reader_sees_the_old_file_or_the_new_one_and_nothing_between(tmp_path):
    path = tmp_path / "file"
    contents = [bytes([65 + k]) * 200_000 for k in range(2)]
    write_whole(path, contents[0])
    program = (
        "import sys; from pathlib import Path; from sordino.storage.files import write_whole\n"
        "for k in range(60): write_whole(Path(sys.argv[1]), bytes([65 + k % 2]) * 200_000)"
    )
    writer = subprocess.Popen([sys.executable, "-c", program, str(path)])
    seen = set()
    while writer.poll() is None:
        seen.add(path.read_bytes())
    assert writer.returncode == 0
    assert seen <= set(contents)
    assert [p.name for p in tmp_path.iterdir()] == ["file"]


def test_files_are_as_readable_as_the_user_makes_them(tmp_path):
    write_whole(tmp_path / "one", b"x")
    (tmp_path / "two").write_bytes(b"x")
    assert (tmp_path / "one").stat().st_mode == (tmp_path / "two").stat().st_mode


def full_disk(folder: Path, limit: int, body: str) -> str:
    """Run `body` where no file can grow beyond `limit` bytes; what it prints."""
    program = f"""
import resource, sys
from pathlib import Path
from sordino.errors import SordinoError
from sordino.report.folder import RunFolder
from tests.report.runs import a_result, a_round
folder = RunFolder.open({str(folder)!r})
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
try:
{textwrap.indent(textwrap.dedent(body), "    ")}
except SordinoError as error:
    print(type(error).__name__, error)
"""
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True, cwd=root)
    return done.stdout


@pytest.mark.process
def test_a_full_disk_leaves_the_old_result_and_says_so(tmp_path):
    folder = ordinary(tmp_path / "run", rounds=3)
    before = {path.name: path.read_bytes() for path in folder.path.iterdir()}
    said = full_disk(folder.path, 500, 'folder.write_result(a_result([a_round(1)], stopped="other"))')
    assert said.startswith("NotWritten")
    assert "Nothing that was on disk is lost: the file that was there is unchanged" in said
    assert {path.name: path.read_bytes() for path in folder.path.iterdir()} == before


@pytest.mark.process
def test_a_full_disk_leaves_no_half_file_where_there_was_none(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "")
    said = full_disk(folder.path, 500, 'folder.write_report("x" * 10_000)')
    assert "no part of it was left behind" in said
    assert sorted(p.name for p in folder.path.iterdir()) == ["environment.json", "recipe.toml"]


@pytest.mark.process
def test_a_full_disk_keeps_all_rounds_before_the_one_that_did_not_fit(tmp_path):
    folder = RunFolder.create(tmp_path / "run", "")
    folder.append_round(a_round(1))
    size = (folder.path / "metrics.jsonl").stat().st_size
    said = full_disk(folder.path, size + 40, "folder.append_round(a_round(2))")
    assert said.startswith("NotWritten")
    assert "the lines before it are unchanged" in said
    assert (folder.path / "metrics.jsonl").stat().st_size == size
    folder.append_round(a_round(2))
    assert [record.round for record in folder.rounds()] == [1, 2]


def test_a_folder_that_is_gone_is_an_error_of_ours(tmp_path):
    with pytest.raises(NotWritten, match="written"):
        write_whole(tmp_path / "gone" / "file", b"x")

"""`sordino run | sweep | compare` as their users call them."""

import json
import re
import signal
import subprocess
import sys
import warnings
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from sordino.fleets import simulated
from sordino.recipe import Recipe, shipped
from sordino.report.compare import compare
from sordino.report.comparison_page import write_comparison
from sordino.report.folder import RunFolder
from sordino.runs import simulation
from sordino.storage.files import NotWritten
from tests.engine.tiny import TINY, TWO_POINT, left, recipe

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from click.testing import Result
    from typer.testing import CliRunner

    from sordino.cli import app

FEW = ("--set", "data.train_limit=60", "--set", "data.test_limit=50")


def sordino(*arguments: object, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(app, list(map(str, arguments)))
    assert result.exit_code == exit_code, (result.output, result.exception)
    assert exit_code in (1, 130) or result.exception is None
    return result


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.toml"
    path.write_text(recipe().to_toml())
    return path


# --- run --------------------------------------------------------------------------------------------------------------


def test_real_clients_are_not_asked_for_what_each_of_them_would_refuse(tmp_path):
    sockets = [word for name in "abc" for word in ("--client", tmp_path / f"{name}.sock")]
    refused = sordino("run", "proven-digits", *sockets, "--out", tmp_path / "run", exit_code=1)
    assert "--set method.announced_size=" in refused.stderr and not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", [name for name, file in shipped().items() if 'source = "digits"' in file.read_text()])
def test_a_shipped_recipe_on_embedded_data_runs(name, tmp_path):
    result = sordino("run", name, *FEW, "--out", tmp_path / "run", "--json")
    found = json.loads(result.stdout)
    assert found["name"] == name and 0 < found["accuracy"] <= 1
    assert found["rounds"] == Recipe.load(name).rounds.count and "rounds are done" in found["stopped"]
    assert {Path(file).name for file in found["files"]} == {
        "environment.json", "metrics.jsonl", "model.safetensors", "recipe.toml", "report.html", "result.json",
        "statement.json", "statement.txt",
    }  # fmt: skip
    assert found["folder"] == str(tmp_path / "run") and found["statement"]["rows"]
    assert all(Path(file).is_file() for file in found["files"])
    ran = Recipe.from_toml((tmp_path / "run/recipe.toml").read_text())
    assert ran == Recipe.load(name, ["data.train_limit=60", "data.test_limit=50"])
    parsed = HTMLParser()
    parsed.feed((tmp_path / "run/report.html").read_text())
    parsed.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_timing_says_where_the_time_of_a_run_went(workers, tiny, tmp_path):
    sordino("run", tiny, "--out", tmp_path / "run", "--workers", workers, "--timing")
    found = json.loads((tmp_path / "run/timing.json").read_text())
    phases = {(each["phase"], each["round"], each["beside"]): each for each in found["phases"]}
    own = [each["seconds"] for each in found["phases"] if not each["beside"]]
    assert sum(own) == pytest.approx(found["seconds"]) and min(own) >= 0
    assert {("recipe", None, False), ("data", None, False), ("composition of privacy", None, False)} <= set(phases)
    rounds = len(RunFolder.open(tmp_path / "run").rounds())
    assert {round for name, round, _ in phases if name == "coordinate"} == set(range(1, rounds + 1))
    assert {(name, rounds, workers > 1) for name in ("train", "randomise")} <= set(phases)


def test_without_json_it_prints_the_table_the_statement_and_where_everything_is(tiny, tmp_path):
    result = sordino("run", tiny, "--out", tmp_path / "run")
    said = json.loads((tmp_path / "run/result.json").read_text())
    assert re.search(rf"accuracy\s+│\s+{said['accuracy']:.2%} on the test set", result.stdout)
    (lead, _, _) = (tmp_path / "run/statement.txt").read_text().partition("All figures")
    assert lead in result.stdout and "All figures" not in result.stdout
    assert re.search(r"epsilon\s+│\s+infinite: nothing is proven", result.stdout)
    assert f"open {tmp_path / 'run/report.html'} in a browser" in result.stdout.replace("\n", " ")
    assert "4 clients, 650 parameters" in result.stderr


def test_settings_and_seed_change_the_recipe_and_the_same_seed_gives_the_same_bits(tiny, tmp_path):
    for name, more in {"a": (), "b": (), "c": ("--seed", 8), "d": ("--set", "training.optimizer.lr=0.2")}.items():
        sordino("run", tiny, *more, "--out", tmp_path / name)
    assert left(tmp_path / "a") == left(tmp_path / "b")
    models = {name: (tmp_path / name / "model.safetensors").read_bytes() for name in "acd"}
    assert len(set(models.values())) == 3
    assert Recipe.from_toml((tmp_path / "c/recipe.toml").read_text()).seed == 8


def test_without_out_runs_are_numbered(tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        sordino("run", tiny, "--set", "rounds.count=1")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["tiny", "tiny-2"]


REFUSED = {
    "no recipe": ((), "name a recipe"),
    "unknown recipe": (("quickstrat",), "quickstart"),
    "no such file": (("absent.toml",), "absent.toml: there is no such file"),
    "unknown key": (("TINY", "--set", "training.epoch=5"), "epochs"),
    "wrong value": (("TINY", "--set", "training.epochs=many"), "training.epochs"),
    "unknown device": (("TINY", "--device", "tpu"), "allowed are cpu, cuda"),
    "no gpu": (("TINY", "--device", "cuda"), "--device cpu"),
    "no workers": (("TINY", "--workers", "0"), "workers must be at least 1"),
    "resume and recipe": (("TINY", "--resume", "x"), "give no recipe"),
    "resume and seed": (("--resume", "x", "--seed", "2"), "give no recipe, --set, --seed or --out"),
    "resume of nothing": (("--resume", "absent"), "absent is not a run's folder"),
    "layers that are not there": (
        (
            "TINY", "--set", "method.mechanism.name=two-point", "--set", "clients.epsilon=1",
            "--set", "method.range={kind='fixed', radius={conv1=0.1}}",
        ),
        "this model has fc",
    ),
    "batch norm in batches of one": (
        ("TINY", "--set", "model.name=tests.engine.tiny:Normed", "--set", "model.buffers=local",
         "--set", "training.batch_size=1"),
        "batch norm needs more than one record",
    ),
}  # fmt: skip


AT_ONCE = {
    "device": (("quickstart", "--device", "gpu"), "unknown device 'gpu'"),
    "workers": (("quickstart", "--workers", "0"), "workers must be at least 1, got 0"),
    "folder": (("quickstart", "--out", "."), "is not empty"),
    "PyTorch itself": (("quickstart",), "this needs PyTorch: pip install 'sordino[learn]'"),
}


def test_what_is_plainly_wrong_is_refused_before_pytorch_is_loaded(tmp_path):
    (tmp_path / "mine").touch()
    code = """
import json, sys, warnings
sys.modules["torch"] = None  # as where it is not installed
warnings.simplefilter("ignore")
from typer.testing import CliRunner
from sordino.cli import app
results = [CliRunner().invoke(app, command) for command in json.load(sys.stdin)]
print(json.dumps([(result.exit_code, result.stderr) for result in results]))
"""
    commands = [["run", *arguments] for arguments, _ in AT_ONCE.values()]
    commands += [["sweep", "quickstart", "--workers", "0"], ["reproduce", "webfed", "--device", "gpu"]]
    commands += [["client", "init", "x", "--data", "digits", "--budget", "5"]]
    commands += [["deploy", "init", "x", "--recipe", "quickstart", "--host", "localhost"]]
    wanted = [sentence for _, sentence in AT_ONCE.values()]
    wanted += [AT_ONCE["workers"][1], AT_ONCE["device"][1]] + [AT_ONCE["PyTorch itself"][1]] * 2
    done = subprocess.run(
        [sys.executable, "-c", code], input=json.dumps(commands), capture_output=True, text=True, cwd=tmp_path
    )
    for (exit_code, said), sentence in zip(json.loads(done.stdout), wanted, strict=True):
        assert exit_code == 1 and said.startswith("Refused: ") and sentence in said


def test_a_place_that_cannot_be_written_to_is_refused_before_anything_heavy_is_loaded(tmp_path):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "loose").symlink_to("nowhere")
    (tmp_path / "fixed").mkdir(mode=0o555)
    for name in ("runs", "sweeps", "reproduction"):
        (tmp_path / name).touch()  # where the commands write unless told otherwise
    tmp_path.chmod(0o777)
    places = {"file": "file", "file/x/y": "file", "loose": "loose", "fixed": "fixed", "fixed/x/y": "fixed"}
    beginnings = ["run quickstart", "sweep quickstart", "reproduce webfed", "compare file"]
    asked = [(f"{words} --out {place}", guilty) for words in beginnings for place, guilty in places.items()]
    asked += [("run quickstart", "runs"), ("sweep quickstart", "sweeps"), ("reproduce webfed", "reproduction")]
    asked += [("reproduce webfed --out new --docs file/x", "file"), ("serve quickstart --folder file/x", "file")]
    asked += [("client init file --data digits --budget 5", "file"), ("join http://localhost:1 --folder file", "file")]
    asked += [("deploy init file --recipe quickstart --host localhost", "file")]
    code = """
import json, os, sys
from typer.testing import CliRunner
from sordino.cli import app
from sordino.cli.reproduce import CLONE
sys.path.append(str(CLONE))
import papers.command  # while this process may still read all of Python's own files
if os.geteuid() == 0:
    os.setuid(65534)  # nothing is read-only to root
results = [CliRunner().invoke(app, command) for command in json.load(sys.stdin)]
heavy = sorted({"torch", "numpy", "scipy", "pydantic"} & set(sys.modules))
print(json.dumps([heavy, [(result.exit_code, result.stdout, result.stderr) for result in results]]))
"""
    given = json.dumps([words.split() for words, _ in asked])
    done = subprocess.run([sys.executable, "-c", code], input=given, capture_output=True, text=True, cwd=tmp_path)
    heavy, results = json.loads(done.stdout)
    assert heavy == []
    for (words, guilty), (exit_code, said, refusal) in zip(asked, results, strict=True):
        why = f": {guilty} is read-only to you. " if guilty == "fixed" else f": {guilty} is not a folder. "
        remedy = f"(chmod u+wx {guilty})" if guilty == "fixed" else f"or move {guilty} away"
        assert (exit_code, said) == (1, ""), words
        assert refusal.startswith("Refused: nothing can be written to ") and why in refusal and remedy in refusal, words
        assert "Choose another place (" in refusal
    assert (tmp_path / "file").read_text() == "mine" and not (tmp_path / "new").exists()


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_is_one_plain_text_and_leaves_no_folder(name, tiny, tmp_path, monkeypatch):
    if name == "no gpu":
        monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.chdir(tmp_path)
    arguments, remedy = REFUSED[name]
    result = sordino("run", *(tiny if a == "TINY" else a for a in arguments), exit_code=1)
    assert result.stderr.startswith("Refused: ") and remedy in result.stderr
    assert result.stdout == "" and "Traceback" not in result.output
    assert [path.name for path in tmp_path.rglob("*")] in (["tiny.toml"], ["tiny.toml", "runs"], ["runs", "tiny.toml"])


def test_a_folder_in_use_is_refused_and_a_refused_one_can_be_used_again(tiny, tmp_path):
    out = ("--out", tmp_path / "run")
    sordino("run", tiny, *out, "--set", "training.batch_size=1", "--set", "model.name=tests.engine.tiny:Normed",
            "--set", "model.buffers=local", exit_code=1)  # fmt: skip
    sordino("run", tiny, *out)
    before = left(tmp_path / "run")
    refused = sordino("run", tiny, *out, exit_code=1)
    assert "--resume" in refused.stderr and left(tmp_path / "run") == before


def test_ctrl_c_before_the_first_round_leaves_nothing_behind(tiny, tmp_path, monkeypatch):
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.chdir(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(simulation, "wire", interrupted)
        result = sordino("run", tiny, exit_code=130)
    assert "Nothing was begun" in result.stderr and list((tmp_path / "runs").iterdir()) == []
    with monkeypatch.context() as patch:
        patch.setattr(simulated.SimulatedFleet, "rehearse", interrupted)
        result = sordino("run", tiny, exit_code=130)
    assert "sordino run --resume runs/tiny" in result.stderr
    sordino("run", "--resume", "runs/tiny")
    assert len(left(tmp_path / "runs/tiny")["rounds"]) == 3


def test_a_polite_end_leaves_a_checkpoint_as_ctrl_c_does(tiny, tmp_path, monkeypatch):
    honest, calls = simulated.SimulatedFleet.exchange_sums, []

    def ending(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGTERM)
        return honest(self, *arguments)

    before = signal.getsignal(signal.SIGTERM)
    with monkeypatch.context() as patch:
        patch.setattr(simulated.SimulatedFleet, "exchange_sums", ending)
        result = sordino("run", tiny, "--out", tmp_path / "a run", exit_code=130)
    assert f"sordino run --resume '{tmp_path}/a run'" in result.stderr  # ready to be pasted
    assert signal.getsignal(signal.SIGTERM) is before
    sordino("run", "--resume", tmp_path / "a run")
    sordino("run", tiny, "--out", tmp_path / "peace")
    assert left(tmp_path / "a run") == left(tmp_path / "peace")


def test_resuming_a_finished_run_says_so_and_gives_its_figures_again(tiny, tmp_path):
    first = json.loads(sordino("run", tiny, "--out", tmp_path / "run", "--json").stdout)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}
    again = sordino("run", "--resume", tmp_path / "run", "--json")
    assert "over already: all 3 rounds are done" in again.stderr
    assert json.loads(again.stdout) == first
    assert sordino("run", "--resume", tmp_path / "run").stdout == ""
    assert before == {path: path.stat().st_mtime_ns for path in (tmp_path / "run").rglob("*")}


def test_a_resumed_run_keeps_its_device_unless_told_otherwise(tiny, tmp_path, monkeypatch):
    """Where a run began on a GPU, going on without one would give other bits; here there is none, so it is refused."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    sordino("run", tiny, "--out", tmp_path / "run")
    (tmp_path / "run/report.html").unlink()  # the last file: without it, the run is not over
    environment = json.loads((tmp_path / "run/environment.json").read_text())
    assert environment["device"] == "cpu"
    (tmp_path / "run/environment.json").write_text(json.dumps({**environment, "device": "cuda"}))
    assert "a GPU was asked for" in sordino("run", "--resume", tmp_path / "run", exit_code=1).stderr
    sordino("run", "--resume", tmp_path / "run", "--device", "cpu")
    assert (tmp_path / "run/report.html").exists()


def test_budgets_that_run_out_end_the_run_with_a_sentence_and_a_whole_report(tiny, tmp_path):
    budget = ("--set", "clients.budget={limit=1400, basis='claimed'}", "--set", "rounds.count=9")
    mechanism = [part for key, value in TWO_POINT.items() for part in ("--set", f"{key}={in_toml(value)}")]
    result = sordino("run", tiny, *mechanism, *budget, "--out", tmp_path / "run", "--json")
    found = json.loads(result.stdout)
    assert found["rounds"] == 2 and "all 4 clients declined in round 3" in found["stopped"]
    assert "46% of the budget spent" in result.stderr
    assert "1300 of 1400 is spent" in found["stopped"] and "clients.budget" in found["stopped"]
    assert "declined in round 3" in (tmp_path / "run/report.html").read_text()
    assert "lasts for 2 of 9 rounds" in result.stderr or "round 3" in result.stderr


def in_toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {in_toml(entry)}" for key, entry in value.items()) + "}"
    return json.dumps(value)


def test_tensorboard_is_written_while_the_run_goes_on(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", ModuleType("tensorboard"))
    scalars: list[str] = []

    class Writer:
        def __init__(self, folder: Path, first: int) -> None:
            assert folder == tmp_path / "logs" and first == 1

        def add_scalar(self, name: str, value: float, step: int) -> None:
            scalars.append(f"{name} {step}")

        def add_text(self, name: str, text: str, step: int) -> None: ...
        def flush(self) -> None: ...
        def close(self) -> None:
            scalars.append("closed")

    monkeypatch.setattr("sordino.runs.tensorboard.summary_writer", Writer)
    sordino("run", tiny, "--out", tmp_path / "run", "--tensorboard", tmp_path / "logs")
    assert "accuracy 3" in scalars and scalars[-1] == "closed"


def test_without_tensorboard_nothing_is_begun(tiny, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.chdir(tmp_path)
    refused = sordino("run", tiny, "--tensorboard", tmp_path / "logs", exit_code=1)
    assert "sordino[notebook]" in refused.stderr and not (tmp_path / "runs").exists()


# --- sweep and compare ------------------------------------------------------------------------------------------------


def sweep(tiny: Path, out: Path, *more: object, exit_code: int = 0) -> Result:
    over = ("--over", "training.optimizer.lr=0.05,0.5", "--over", "training.epochs=1,2")
    return sordino(
        "sweep", tiny, *over, "--seeds", 2, "--set", "rounds.count=2", "--out", out, *more, exit_code=exit_code
    )


def test_an_interrupted_sweep_goes_on_and_leaves_finished_runs_alone(tiny, tmp_path, monkeypatch):
    out = tmp_path / "sweep"
    honest, calls = simulated.SimulatedFleet.exchange_sums, []

    def stopping(self: Any, *arguments: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:  # the second round of the third run
            raise KeyboardInterrupt
        return honest(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(simulated.SimulatedFleet, "exchange_sums", stopping)
        result = sweep(tiny, out, exit_code=130)
    assert "The same command goes on from here" in result.stderr
    finished = {path: path.stat().st_mtime_ns for path in out.rglob("*") if (path.parent / "report.html").exists()}
    assert len({path.parent for path in finished}) == 2

    found = json.loads(sweep(tiny, out, "--json").stdout)
    assert all(path.stat().st_mtime_ns == then for path, then in finished.items())
    folders = sorted(path.name for path in out.iterdir() if path.is_dir())
    assert folders == sorted(
        f"training.optimizer.lr={lr}_training.epochs={epochs}_seed={seed}"
        for lr in ("0.05", "0.5") for epochs in (1, 2) for seed in (7, 8)
    )  # fmt: skip
    assert len(found["groups"]) == 4 and set(found["keys"]) == {"training.optimizer.lr", "training.epochs"}
    assert all(Path(file).is_file() for file in found["files"])

    alone = tmp_path / "alone"
    sordino("run", tiny, "--set", "rounds.count=2", "--set", "training.optimizer.lr=0.05", "--set", "training.epochs=2",
            "--seed", 7, "--out", alone)  # fmt: skip
    third = "training.optimizer.lr=0.05_training.epochs=2_seed=7"
    assert (out / third / "model.safetensors").read_bytes() == (alone / "model.safetensors").read_bytes()

    every = {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.parent != out}
    sweep(tiny, out)
    assert all(path.stat().st_mtime_ns == then for path, then in every.items())  # nothing was left to do

    pair = (out / third, out / third.replace("seed=7", "seed=8"))
    (group,) = json.loads(sordino("compare", *pair, "--out", tmp_path, "--json").stdout)["groups"]
    accuracies = [left(folder)["result"]["accuracy"] for folder in pair]
    assert group["runs"] == "2" and float(group["accuracy mean"]) == pytest.approx(sum(accuracies) / 2)
    table = sordino("compare", out, "--out", tmp_path / "table").stdout
    assert "±" in table and (tmp_path / "table/comparison.csv").exists()

    files = [tmp_path / "paper" / name for name in ("table.tex", "table.md", "figure.svg")]
    sordino("compare", out, "--out", tmp_path, "--table", files[0], "--table", files[1], "--figure", files[2])
    assert all(path.stat().st_size > 100 for path in files)
    sordino("compare", out, "--out", tmp_path / "never", "--figure", "figure.jpg", exit_code=1)
    assert not (tmp_path / "never").exists()  # refused before anything is written


@pytest.mark.parametrize(
    ("over", "remedy"),
    [
        ("training.epochs", "key=value"),
        ("training.epochs=", "key=value"),
        ("training.epochs=1,1", "names a value twice"),
        ("training.epoch=1,2", "did you mean 'epochs'"),
        ("training.epochs=1,0", "training.epochs"),
        ("seed=1,2", "--seeds"),
    ],
    ids=lambda value: re.sub(r"\W+", " ", value),
)
def test_a_sweep_is_checked_whole_before_its_first_run(over, remedy, tiny, tmp_path):
    result = sordino("sweep", tiny, "--over", over, "--out", tmp_path / "sweep", exit_code=1)
    assert remedy in result.stderr and not (tmp_path / "sweep").exists()


def test_two_axes_of_one_key_and_no_seeds_are_refused(tiny, tmp_path):
    twice = ("--over", "training.epochs=1", "--over", "training.epochs=2")
    assert "put all values behind one" in sordino("sweep", tiny, *twice, exit_code=1).stderr
    assert "--seeds must be at least 1" in sordino("sweep", tiny, "--seeds", 0, exit_code=1).stderr


def test_values_that_look_alike_in_a_file_name_have_folders_of_their_own(tmp_path):
    from sordino.runs.sweep import Axis, points

    axis = Axis.parse("training.optimizer.lr=1e+1,1e-1")
    found = points(Recipe.from_dict(TINY), [axis], 1, tmp_path)
    assert [point.recipe.training.optimizer.lr for point in found] == [10.0, 0.1]
    assert len({point.folder for point in found}) == 2


def test_a_sweep_does_not_take_another_run_for_its_own(tiny, tmp_path):
    folder = tmp_path / "sweep/training.epochs=1_seed=7"
    sordino("run", tiny, "--set", "rounds.count=1", "--out", folder)
    refused = sordino("sweep", tiny, "--over", "training.epochs=1,2", "--out", tmp_path / "sweep", exit_code=1)
    assert "holds a run of another recipe" in refused.stderr


def test_a_sweep_takes_over_the_folder_of_a_run_that_was_killed_before_it_began(tiny, tmp_path):
    folder = tmp_path / "sweep/training.epochs=1_seed=7"
    RunFolder.create(folder, "")
    (folder / "recipe.toml").unlink()
    sordino("sweep", tiny, "--over", "training.epochs=1", "--set", "rounds.count=1", "--out", tmp_path / "sweep")
    assert len(left(folder)["rounds"]) == 1


def test_a_comparison_is_written_into_a_folder_and_never_over_a_file(tiny, tmp_path):
    sordino("run", tiny, "--set", "rounds.count=1", "--out", tmp_path / "run")
    (tmp_path / "notes.txt").write_text("mine")
    for out in (tmp_path / "notes.txt", tmp_path / "notes.txt/deeper"):
        refused = sordino("compare", tmp_path / "run", "--out", out, exit_code=1)
        assert refused.stderr.startswith("Refused: nothing can be written to")
        assert "--out" in refused.stderr and "Traceback" not in refused.output
        with pytest.raises(NotWritten, match=out.name):
            write_comparison(compare([tmp_path / "run"]), out)
    assert (tmp_path / "notes.txt").read_text() == "mine"


def test_comparing_what_is_no_run_is_refused(tmp_path):
    assert "holds none" in sordino("compare", tmp_path, exit_code=1).stderr


def test_an_interrupt_after_the_command_is_over_changes_nothing():
    """PyTorch takes a while to be unloaded, and Python has let go of its handlers by then."""
    late = (
        "import atexit, os, signal, sys\n"
        "atexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
        "sys.argv = ['sordino', '--version']\n"
        "from sordino.__main__ import main\n"
        "main()"
    )
    done = subprocess.run([sys.executable, "-c", late], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_an_interrupt_while_text_is_executed_ends_like_any_other(tmp_path):
    """Python remembers such an interrupt, and ends by the signal: dataclasses execute text when they are loaded."""
    (tmp_path / "interrupted.py").write_text("def load(**_):\n    exec('raise KeyboardInterrupt')\n")
    (tmp_path / "tiny.toml").write_text(recipe({"data": {"source": "interrupted:load"}}).to_toml())
    done = subprocess.run([sys.executable, "-m", "sordino", "run", "tiny.toml"], cwd=tmp_path, capture_output=True)
    assert done.returncode == 130

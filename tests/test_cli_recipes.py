"""`sordino recipes` and its commands, as their users call them."""

import json
import re
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from sordino.errors import InvalidInput
from sordino.recipe import Recipe, shipped
from sordino.runs.simulation import run

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from click.testing import Result
    from typer.testing import CliRunner

    from sordino.cli import app


def sordino(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["recipes", *map(str, arguments)])


def as_json(*arguments: object, exit_code: int = 0) -> Any:
    result = sordino(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    return json.loads(result.stdout)


def test_the_list_says_what_each_recipe_is() -> None:
    rows = {row["name"]: row for row in as_json()}
    assert list(rows) == list(shipped())
    assert rows["two-point-digits"] == {
        "name": "two-point-digits",
        "summary": Recipe.load("two-point-digits").summary,
        "data": "digits",
        "clients": 20,
        "model": "logistic",
        "method": "fedavg",
        "mechanism": "two-point",
        "paper": None,
    }
    assert rows["quickstart"]["mechanism"] is None
    text = sordino().stdout
    for name in shipped():
        assert name in text
    assert "fedavg, two-point" in text


def test_the_list_agrees_with_the_recipes_as_they_are_loaded() -> None:
    """It is read without loading any part, so that defaults of methods are written down a second time."""
    for row in as_json():
        recipe = Recipe.load(row["name"])
        mechanism = getattr(recipe.method, "mechanism", None)
        assert row == {
            "name": recipe.name,
            "summary": recipe.summary,
            "data": recipe.data.source,
            "clients": recipe.number_of_clients,
            "model": recipe.model.name,
            "method": recipe.method.name,
            "mechanism": None if mechanism is None else mechanism.name,
            "paper": recipe.paper or None,
        }


@pytest.mark.parametrize(
    ("columns", "shown", "left_out"),
    [
        (80, ["name", "summary"], "clients; data; model; method, mechanism; paper"),
        (120, ["name", "summary", "clients", "method, mechanism"], "data; model; paper"),
        (200, ["name", "summary", "clients", "data", "model", "method, mechanism", "paper"], ""),
    ],
    ids=["80", "120", "200"],
)
def test_a_narrow_terminal_has_fewer_columns_and_whole_names(
    columns: int, shown: list[str], left_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setenv("COLUMNS", str(columns))
    text = re.sub(r"\x1b\[[0-9;]*m", "", sordino().stdout)
    heading = next(line for line in text.splitlines() if line.startswith("┃"))
    assert [cell.strip() for cell in heading.strip("┃").split("┃")] == shown
    names = [line.split("│")[1].strip() for line in text.splitlines() if line.startswith("│")]
    assert [name for name in names if name] == list(shipped())
    assert max(map(len, text.splitlines())) <= columns and "…" not in text
    assert (f"show also: {left_out}." in " ".join(text.split())) == bool(left_out)


def test_show_prints_the_whole_recipe_as_it_would_run() -> None:
    result = sordino("show", "two-point-digits", "--set", "training.epochs=5", "--set", "clients.epsilon=3")
    assert result.exit_code == 0
    shown = Recipe.from_toml(result.stdout)
    assert shown == Recipe.load("two-point-digits", ["training.epochs=5", "clients.epsilon=3"])
    assert "momentum = 0.0" in result.stdout
    assert as_json("show", "quickstart")["name"] == "quickstart"


def test_what_is_shown_can_be_kept_and_used(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(sordino("show", "quickstart").stdout)
    assert Recipe.load(mine) == Recipe.load("quickstart")
    assert sordino("check", mine, "--set", "rounds.count=3").exit_code == 0


@pytest.mark.process
@pytest.mark.parametrize("name", list(shipped()))
def test_nothing_is_wrong_with_shipped_recipes_and_their_models(name: str) -> None:
    if name == "proven-cifar-10-imagenet":
        pytest.importorskip("efficientnet_lite_pytorch")
    result = sordino("check", name)
    assert result.exit_code == 0, result.output
    assert f"{name}: nothing is wrong." in result.stdout
    assert as_json("check", name) == {"valid": True, "problems": [], "fingerprint": Recipe.load(name).fingerprint}


def test_check_says_all_that_is_wrong(tmp_path: Path) -> None:
    mine = tmp_path / "mine.toml"
    mine.write_text(Recipe.load("two-point-digits").to_toml().replace("epochs = 1", "epoch = 1"))
    result = sordino("check", mine, "--set", 'method.range.radius="x"')
    assert result.exit_code == 1
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert lines[0] == f"{mine} has 2 problems:"
    assert [line.strip().partition(":")[0] for line in lines[1:]] == ["training.epoch", "method.range.radius"]
    found = as_json("check", mine, "--set", 'method.range.radius="x"', exit_code=1)
    assert found["valid"] is False
    assert [f"  {problem}" for problem in found["problems"]] == lines[1:]


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        (["model.name=logistics"], "model: unknown model 'logistics'; did you mean 'logistic'?"),
        (["model.name=mlp", "model.options.widths=[3]"], "model: unknown option of mlp 'widths'"),
        (["model.name=lenet"], "model: "),
        (
            ["model.name=tests.engine.tiny:Normed", "model.buffers=refuse"],
            "model: the model keeps running statistics of its client's data (second.running_mean",
        ),
        (["method.range.radius={fc2=0.1}"], "method.range.radius names the layers fc2"),
        (["method.range.centre={a=0.1}"], "method.range.centre names the layers a"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_check_asks_the_model_too(settings: list[str], line: str) -> None:
    changes = [part for setting in settings for part in ("--set", setting)]
    (problem,) = as_json("check", "two-point-digits", *changes, exit_code=1)["problems"]
    assert problem.startswith(line)


OWN = """name = "mine"
seed = 1
data = { source = "SOURCE", classes = ["a", "b"], mean = [0], std = [1] }
split = { kind = "iid", clients = 2 }
model = { name = "logistic" }
method = { name = "fedavg" }
"""


@pytest.mark.parametrize(
    ("write", "settings", "word"),
    [
        (True, [], None),
        (False, [], "no such file"),
        (True, ["split.clients=9"], "at_least"),
        (True, ['model.name="mlp"', "model.options.hidden=0"], "hidden"),
    ],
    ids=["fits", "no file", "too few records", "wrong option"],
)
def test_check_reads_ones_own_data(tmp_path: Path, write: bool, settings: list[str], word: str | None) -> None:
    """And refuses what a run would refuse, in the same words."""
    if write:
        np.savez(tmp_path / "x.npz", x_train=np.zeros((6, 4)), y_train=np.arange(6) % 2,
                 x_test=np.zeros((2, 4)), y_test=np.arange(2))  # fmt: skip
    mine = tmp_path / "mine.toml"
    mine.write_text(OWN.replace("SOURCE", str(tmp_path / "x.npz")))
    recipe = Recipe.load(mine, settings)
    changes = [part for setting in settings for part in ("--set", setting)]
    found = as_json("check", mine, *changes, exit_code=int(word is not None))["problems"]
    if word is None:
        assert found == []
        return
    with pytest.raises(InvalidInput, match=word) as refused:
        run(recipe)
    assert found == [str(refused.value)]


@pytest.mark.parametrize(
    "settings",
    [
        ["model.name=tests.methods.own_networks:Dropping"],
        ["model.name=ldp-fed", "model.buffers=local"],
        ["method.coarsening=24", "method.resolution=4"],
        ['split={kind="sizes",sizes=[0,50],at_least=0}'],
    ],
    ids=["a network that draws", "batch norm", "no room for the noise", "an empty silo"],
)
def test_check_builds_the_method_as_a_run_does(settings: list[str]) -> None:
    changes = [part for setting in settings for part in ("--set", setting)]
    (found,) = as_json("check", "quickstart", *changes, exit_code=1)["problems"]
    with pytest.raises(InvalidInput) as refused:
        run(Recipe.load("quickstart", settings))
    assert found == str(refused.value)


class Averaging(nn.Sequential):
    """Batch norm of a kind that cannot be computed for many clients."""

    def __init__(self, classes: int) -> None:
        super().__init__(nn.Flatten(), nn.BatchNorm1d(64, momentum=None), nn.Linear(64, classes))


def test_check_tries_whether_a_model_can_be_trained() -> None:
    settings = ["model.name=tests.test_cli_recipes:Averaging", "model.buffers=local"]
    changes = [part for setting in settings for part in ("--set", setting)]
    (found,) = as_json("check", "fedavg-digits", *changes, exit_code=1)["problems"]
    with pytest.raises(InvalidInput, match="momentum") as refused:
        run(Recipe.load("fedavg-digits", settings), workers=1)
    assert found == str(refused.value)


def test_the_schema_is_printed_or_written(tmp_path: Path) -> None:
    printed = json.loads(sordino("schema").stdout)
    assert printed == Recipe.json_schema()
    out = tmp_path / "schema.json"
    assert sordino("schema", "--out", out).exit_code == 0
    assert json.loads(out.read_text()) == printed
    refused = sordino("schema", "--out", tmp_path / "no" / "where.json")
    assert refused.exit_code == 1
    assert "cannot be written" in refused.stderr


def test_every_key_can_be_looked_up() -> None:
    found = {key["key"]: key for key in as_json("keys")}
    assert found["training.epochs"]["default"] == "1"
    assert found["training.epochs"]["allowed"] == "a whole number >= 1"
    assert "training.epochs" in sordino("keys").stdout
    assert "| `training.epochs` | a whole number >= 1 | `1` |" in sordino("keys", "--markdown").stdout


@pytest.mark.parametrize("command", ["show", "check"])
@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["quickstrat"], "did you mean 'quickstart'?"),
        (["nowhere.toml"], "there is no such file"),
        (["quickstart", "--set", "epochs=3"], "did you mean 'training.epochs'?"),
        (["quickstart", "--set", "rounds.count"], "is not key=value"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_meant_is_refused_in_plain_words(command: str, arguments: list[str], sentence: str) -> None:
    result = sordino(command, *arguments)
    assert result.exit_code == 1
    assert sentence in result.stderr
    assert "Traceback" not in result.output


def test_json_before_a_command_is_not_passed_over() -> None:
    result = sordino("--json", "show", "quickstart")
    assert result.exit_code == 2
    assert "behind the command" in result.stderr

"""`sordino predict` and `sordino export`, as their users call them."""

import csv
import json
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sordino
from sordino.learning import datasets
from sordino.recipe import Recipe
from sordino.runs import onnx_export
from tests.engine.tiny import BATCH_NORM, TINY

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from click.testing import Result
    from typer.testing import CliRunner

    from sordino.cli import app

NAMES = ("age", "height", "weight")


def command(*arguments: object, exit_code: int = 0) -> Result:
    result = CliRunner().invoke(app, [*map(str, arguments)])
    assert result.exit_code == exit_code, result.output
    return result


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(text.splitlines()))


def people(count: int) -> tuple[np.ndarray[Any, Any], list[str]]:
    """Ill are those who are old and heavy."""
    x = np.random.default_rng(1).normal((50, 170, 70), (20, 10, 15), (count, 3)).round(2)
    return x, ["ill" if (age - 50) / 20 + (weight - 70) / 15 > 0 else "healthy" for age, _, weight in x]


def write(path: Path, header: tuple[str, ...] | None, table: list[list[object]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(([header] if header else []) + table)
    return path


@pytest.fixture(scope="module")
def table(tmp_path_factory) -> Path:
    """A run on a table with names, and one without beside it."""
    place = tmp_path_factory.mktemp("table")
    x, labels = people(200)
    write(place / "named.csv", (*NAMES, "outcome"), [[*map(float, row), y] for row, y in zip(x, labels, strict=True)])
    write(place / "bare.csv", None, [[*map(float, row), y] for row, y in zip(x, labels, strict=True)])
    common = {"classes": ["healthy", "ill"], "mean": [50, 170, 70], "std": [20, 10, 15], "test": 0.2}
    for name, label in (("named", "outcome"), ("bare", 3)):
        data = {"source": str(place / f"{name}.csv"), "label": label, **common}
        sordino.run(Recipe(**{**TINY, "data": data, "rounds": {"count": 20}}), folder=place / name)
    return place


@pytest.fixture(scope="module")
def digits(tmp_path_factory) -> Path:
    folder: Path = tmp_path_factory.mktemp("digits") / "run"
    sordino.run(Recipe(**TINY).with_({"model": {"name": "mlp", "options": {"hidden": [8]}}}), folder=folder)
    return folder


# --- predict ----------------------------------------------------------------------------------------------------------


def test_columns_are_found_by_name(table, tmp_path):
    x, labels = people(50)
    turned = [["note", float(weight), float(age), float(height)] for age, height, weight in x]
    asked = write(tmp_path / "new.csv", ("remark", "weight", "age", "height"), turned)
    found = rows(command("predict", table / "named", asked).stdout)
    assert np.mean([row["class"] == label for row, label in zip(found, labels, strict=True)]) > 0.9
    with torch.no_grad():
        own = sordino.load_model(table / "named").probabilities(torch.from_numpy(x.astype(np.float32))).amax(1)
    assert [float(row["probability"]) for row in found] == pytest.approx(own.tolist(), abs=1e-6)
    assert sordino.load_model(table / "named").about.columns == NAMES


def test_the_result_goes_to_a_file(table, tmp_path):
    asked = write(tmp_path / "new.csv", NAMES, [[20, 170, 50], [80, 170, 95]])
    out = tmp_path / "new folder" / "predictions.csv"
    command("predict", table / "named", asked, "--out", out)
    assert [row["class"] for row in rows(out.read_text())] == ["healthy", "ill"]


def test_columns_without_names_go_by_their_order(table, tmp_path):
    asked = write(tmp_path / "new.csv", None, [[20, 170, 50], [80, 170, 95]])
    found = rows(command("predict", table / "bare" / "model.safetensors", asked).stdout)
    assert [row["class"] for row in found] == ["healthy", "ill"]


def test_images_come_in_an_npz_or_as_rows(digits, tmp_path):
    x = datasets.load("digits").test.x[:12]
    np.savez(tmp_path / "new.npz", x=x, other=np.zeros(1))
    np.savez(tmp_path / "flat.npz", x=x[:, 0])
    write(tmp_path / "new.csv", None, x.reshape(12, 64).tolist())
    found = {command("predict", digits, tmp_path / name).stdout for name in ("new.npz", "flat.npz", "new.csv")}
    assert len(found) == 1 and len(rows(found.pop())) == 12


def test_a_proven_head_predicts(tmp_path):
    outcome = sordino.run(Recipe.load("proven-digits").with_({"rounds.count": 5}), folder=tmp_path / "run")
    test = datasets.load("digits").test
    np.savez(tmp_path / "new.npz", x=test.x)
    found = [row["class"] for row in rows(command("predict", tmp_path / "run", tmp_path / "new.npz").stdout)]
    right = [outcome.result.classes[y] == own for y, own in zip(test.y, found, strict=True)]
    assert np.mean(right) == pytest.approx(outcome.accuracy)


BAD_TABLES: dict[str, tuple[tuple[str, ...] | None, list[list[object]], str]] = {
    "a column is missing": (("age", "height"), [[1, 2]], "lacks weight"),
    "a column is there twice": ((*NAMES, "age"), [[1, 2, 3, 4]], "age"),
    "a cell is no number": (NAMES, [[1, 2, 3], [1, "tall", 3]], "line 3, column 'height'"),
    "a cell is empty": (NAMES, [["", 2, 3]], "line 2, column 'age'"),
    "a row is short": (NAMES, [[1, 2]], "line 2"),
    "no rows": (NAMES, [], "no rows"),
    "no header": (None, [[1, 2, 3]], "lacks age, height, weight"),
}


@pytest.mark.parametrize("case", BAD_TABLES)
def test_a_table_that_does_not_fit_is_refused(case, table, tmp_path):
    header, cells, key = BAD_TABLES[case]
    result = command("predict", table / "named", write(tmp_path / "new.csv", header, cells), exit_code=1)
    assert result.stderr.startswith("Refused: ") and key in result.stderr and not result.stdout


def test_a_table_without_names_has_no_header_and_no_label(table, tmp_path):
    for cells, key in ([[20, 170, 50, "ill"]], "3 numbers"), ([list(NAMES)], "line 1, column 0"):
        asked = write(tmp_path / "new.csv", None, [*cells])
        assert key in command("predict", table / "bare", asked, exit_code=1).stderr


@pytest.mark.parametrize(
    ("arrays", "key"),
    [
        ({"y": np.zeros(3)}, "name the records x"),
        ({"x": np.zeros((3, 64))}, "[n, 1, 8, 8]"),
        ({"x": np.zeros((3, 1, 8, 8), np.int64)}, "int64"),
        ({"x": np.full((3, 1, 8, 8), np.nan)}, "row 0"),
        ({"x": np.zeros((0, 1, 8, 8))}, "[n, 1, 8, 8]"),
    ],
    ids=["no x", "shape", "kind", "nan", "none"],
)
def test_arrays_that_do_not_fit_are_refused(arrays, key, digits, tmp_path):
    np.savez(tmp_path / "new.npz", **arrays)
    assert key in command("predict", digits, tmp_path / "new.npz", exit_code=1).stderr


def test_files_that_are_not_there_or_of_another_kind_are_refused(digits, tmp_path):
    (tmp_path / "new.txt").write_text("1")
    (tmp_path / "new.npz").write_text("1")
    for name, key in ("new.txt", ".npz"), ("new.npz", "np.savez"), ("nothing.csv", "no such file"):
        assert key in command("predict", digits, tmp_path / name, exit_code=1).stderr
    assert "sordino run" in command("predict", tmp_path / "nothing", tmp_path / "new.npz", exit_code=1).stderr


def test_what_is_read_is_not_written_over(table, tmp_path):
    asked = write(tmp_path / "new.csv", NAMES, [[20, 170, 50]])
    before = asked.read_bytes()
    assert "--out" in command("predict", table / "named", asked, "--out", asked, exit_code=1).stderr
    assert asked.read_bytes() == before
    model = table / "named" / "model.safetensors"
    assert "--onnx" in command("export", table / "named", "--onnx", model, exit_code=1).stderr


# --- export -----------------------------------------------------------------------------------------------------------


def needs_the_extra() -> None:
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package, reason="needs pip install 'sordino[export]'")


@pytest.mark.parametrize("model", ["logistic-ovr", "cnn-mnist"])
def test_an_exported_model_says_the_same(model, tmp_path):
    needs_the_extra()
    import onnx
    import onnxruntime

    x = datasets.load("digits").test.x[:9]
    source = {"data.source": "digits", "model": {"name": model}} if model != "cnn-mnist" else large(tmp_path)
    sordino.run(Recipe(**TINY).with_(source), folder=tmp_path / "run")
    if model == "cnn-mnist":
        x = np.kron(x, np.ones((1, 1, 4, 4), np.uint8))[..., 2:30, 2:30].copy()
    out = tmp_path / "new folder" / "model.onnx"
    command("export", tmp_path / "run", "--onnx", out)
    session = onnxruntime.InferenceSession(out, providers=["CPUExecutionProvider"])
    theirs = session.run(None, {"input": x.astype(np.float32)})[0]
    loaded = sordino.load_model(tmp_path / "run")
    with torch.no_grad():
        assert loaded.probabilities(torch.from_numpy(x)).numpy() == pytest.approx(theirs, abs=1e-4)
    packed = onnx.load(out)
    texts = {entry.key: json.loads(entry.value) for entry in packed.metadata_props}
    assert texts == {"classes": list(loaded.classes), "columns": [], "task": "classification"}
    assert str(Path(onnx_export.__file__).parent).encode() not in out.read_bytes()


def large(place: Path) -> dict[str, Any]:
    """Digits of 28 x 28 pixels."""
    digits = datasets.load("digits")
    parts = {"train": digits.train.take(np.arange(40)), "test": digits.test.take(np.arange(30))}
    images = {n: np.kron(own.x, np.ones((1, 1, 4, 4), np.uint8))[..., 2:30, 2:30] for n, own in parts.items()}
    np.savez(
        place / "large.npz", **{f"x_{name}": x for name, x in images.items()},
        **{f"y_{name}": own.y for name, own in parts.items()},
    )  # fmt: skip
    own = {"source": str(place / "large.npz"), "classes": list(digits.classes), "mean": [5.0], "std": [6.0]}
    return {"data": own, "model": {"name": "cnn-mnist"}}


def test_what_differs_from_pytorch_is_not_written(digits, tmp_path, monkeypatch):
    needs_the_extra()
    monkeypatch.setattr(onnx_export, "difference", lambda model, packed: 0.5)
    result = command("export", digits, "--onnx", tmp_path / "model.onnx", exit_code=1)
    assert "0.5" in result.stderr and not (tmp_path / "model.onnx").exists()


def test_a_wrong_export_is_seen(digits, tmp_path):
    needs_the_extra()
    model, other = sordino.load_model(digits), sordino.load_model(digits)
    packed = onnx_export.exported(model)
    assert onnx_export.difference(model, packed) < 1e-5
    with torch.no_grad():
        next(other.network.parameters()).add_(0.1)
    assert onnx_export.difference(other, packed) > onnx_export.LARGEST_DIFFERENCE


@pytest.mark.parametrize("package", ["onnx", "onnxscript", "onnxruntime"])
def test_without_the_extra_the_command_says_how_to_install_it(package, digits, tmp_path, monkeypatch):
    for other in {"onnx", "onnxscript", "onnxruntime"} - {package}:
        pytest.importorskip(other)
    monkeypatch.setitem(sys.modules, package, None)
    result = command("export", digits, "--onnx", tmp_path / "model.onnx", exit_code=1)
    assert "sordino[export]" in result.stderr


@pytest.mark.parametrize(
    ("recipe", "key"),
    [
        (Recipe.load("proven-digits").with_({"rounds.count": 2}), "sordino predict"),
        (Recipe(**TINY).with_(BATCH_NORM), "model.buffers"),
        (Recipe.load("ldpfl-digits", ["rounds.count=1", "method.extractor.training.epochs=1"]), "private-head"),
    ],
    ids=["private-head", "statistics of clients", "ldpfl"],
)
def test_models_that_onnx_cannot_hold_are_refused(recipe, key, tmp_path):
    sordino.run(recipe, folder=tmp_path / "run")
    result = command("export", tmp_path / "run", "--onnx", tmp_path / "model.onnx", exit_code=1)
    assert key in result.stderr and not (tmp_path / "model.onnx").exists()


@pytest.mark.parametrize(
    ("name", "words"), [("predict", ("RUN DATA", "--out")), ("export", ("RUN", "--onnx", "sordino[export]"))]
)
def test_help_names_what_is_needed(name, words):
    text = command(name, "--help").stdout
    assert [word for word in words if word not in text] == []

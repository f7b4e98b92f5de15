"""Data in memory, handed to `sordino.run`: tables, data sets and arrays, known by their form."""

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset, TensorDataset
from typer.testing import CliRunner

import sordino
from sordino.cli import app
from sordino.errors import InvalidInput
from sordino.learning.examples import Dataset, Examples, Normalisation
from sordino.learning.memory import About, fits_check, from_memory
from sordino.learning.tasks import CLASSES, LABELS, Regression
from sordino.recipe import Recipe
from sordino.runs.federation import wire
from sordino.runs.tensorboard import TensorBoard

# --- stand-ins for libraries that need not be installed ---------------------------------------------------------------


class Series(list[object]):
    def tolist(self) -> list[object]:
        return list(self)


class DataFrame:
    """The part of a pandas data frame that is used: `columns`, `iloc[:, n]` and its length."""

    def __init__(self, columns: dict[Any, Sequence[object]], names: Sequence[object] | None = None) -> None:
        self._values = list(columns.values())
        self.columns = list(columns) if names is None else names

    def __len__(self) -> int:
        return len(self._values[0])

    @property
    def iloc(self) -> "DataFrame":
        return self

    def __getitem__(self, place: tuple[slice, int]) -> Series:
        return Series(self._values[place[1]])


class ClassLabel:
    def __init__(self, names: Sequence[str]) -> None:
        self._names = names

    def int2str(self, value: int) -> str:
        return self._names[value]


class HubDataset:
    """The part of a Hugging Face `datasets.Dataset` that is used."""

    def __init__(self, columns: dict[str, Sequence[object]], features: dict[str, object]) -> None:
        self._columns, self.features, self.column_names = columns, features, list(columns)

    def __len__(self) -> int:
        return len(self._columns[self.column_names[0]])

    def __getitem__(self, name: str) -> Sequence[object]:
        return self._columns[name]


COLUMNS: dict[str, list[object]] = {
    "age": [61, None, 35.5, float("nan")] * 10,
    "smoker": [True, False, False, True] * 10,
    "note": ["Fever, cough", "well", None, "fever"] * 10,
    "site": [7.0, 8.0] * 20,
    "outcome": ["ill", "well", "well", "ill"] * 10,
}
ABOUT: dict[str, Any] = {
    "name": "wards",
    "data": {
        "source": "memory",
        "label": "outcome",
        "classes": ["well", "ill"],
        "test": 0.4,
        "columns": {
            "age": {"kind": "number", "missing": 50},
            "smoker": {"kind": "category", "values": ["False", "True"]},
            "note": {"kind": "words", "vocabulary": ["fever"], "missing": ""},
        },
    },
    "split": {"kind": "column", "column": "site", "clients": ["7", "8"], "at_least": 0},
    "model": {"name": "logistic"},
    "method": {"name": "fedavg"},
    "rounds": {"count": 2},
}
ROWS = [[61, 0, 1, 1], [50, 1, 0, 0], [35.5, 1, 0, 0], [50, 0, 1, 1]]


def written(columns: dict[str, list[object]], path: Path) -> Path:
    lines = [",".join(columns)]
    for row in zip(*columns.values(), strict=True):
        cells = ["" if v is None or v != v else int(v) if type(v) is float and v % 1 == 0 else v for v in row]
        lines.append(",".join(f'"{cell}"' for cell in cells))
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_data_frame_is_the_table_that_it_would_be_written_to(tmp_path: Path) -> None:
    recipe = Recipe.from_dict(ABOUT)
    path = written(COLUMNS, tmp_path / "wards.csv")
    by_file = sordino.run(recipe.with_({"data.source": str(path)}))
    by_frame = sordino.run(recipe, data=DataFrame(COLUMNS))
    by_hub = sordino.run(recipe, data=HubDataset(COLUMNS, {}))
    assert np.array_equal(by_frame.parameters, by_file.parameters)
    assert np.array_equal(by_hub.parameters, by_file.parameters)
    found = from_memory(DataFrame(COLUMNS), about(recipe, test=None, second=True))
    assert found.train.x[:4].tolist() == ROWS
    assert found.columns["site"][:3].tolist() == ["7", "8", "7"]


def about(recipe: Recipe, second: bool = False, **changes: Any) -> About:
    data = recipe.data
    given: dict[str, Any] = {
        "names": data.names, "task": data.task, "label": data.label, "rules": data.columns or {}, "test": data.test,
        "column": "site",
    }  # fmt: skip
    return About(**{**given, **changes, **({"test": 1e-9} if second else {})})


def test_class_numbers_of_a_hub_data_set_become_names() -> None:
    numbers = {**COLUMNS, "outcome": [1, 0, 0, 1] * 10}
    parts = {"train": HubDataset(numbers, {"outcome": ClassLabel(["well", "ill"]), "age": None})}
    found = from_memory({**parts, "test": DataFrame(COLUMNS)}, about(Recipe.from_dict(ABOUT)))
    assert found.train.y.tolist() == found.test.y.tolist() == [1, 0, 0, 1] * 10
    assert len(found.held_out) == 0


@pytest.mark.process
def test_a_run_writes_down_which_data_it_was_handed(tmp_path: Path) -> None:
    recipe = Recipe.from_dict(ABOUT)
    outcome = sordino.run(recipe, data=DataFrame(COLUMNS), folder=tmp_path / "run")
    saved = Recipe.load(tmp_path / "run" / "recipe.toml")
    assert saved == recipe, "a recipe says nothing of private data"
    for again in (saved, recipe):
        resumed = sordino.run(again, data=DataFrame(COLUMNS), folder=tmp_path / "run", resume=True)
        assert np.array_equal(resumed.parameters, outcome.parameters)
    with pytest.raises(InvalidInput, match=r"sordino\.run\(recipe, data="):
        sordino.run(saved, folder=tmp_path / "run", resume=True)
    other = {**COLUMNS, "age": [*COLUMNS["age"][:-1], 3]}
    with pytest.raises(InvalidInput, match="other data"):
        sordino.run(saved, data=DataFrame(other), folder=tmp_path / "run", resume=True)
    with pytest.raises(InvalidInput, match="other data"):
        sordino.audit(tmp_path / "run", data=DataFrame(other))
    with pytest.raises(InvalidInput, match=r"sordino\.run\(recipe, data="):
        sordino.audit(tmp_path / "run")
    found = CliRunner().invoke(app, ["run", str(tmp_path / "run" / "recipe.toml")])
    assert found.exit_code != 0
    (tmp_path / "run" / "data.check").unlink()
    with pytest.raises(InvalidInput, match=r"data\.check is missing"):
        sordino.run(saved, data=DataFrame(COLUMNS), folder=tmp_path / "run", resume=True)
    model = sordino.load_model(tmp_path / "run")
    assert model.inputs(DataFrame({"note": ["fever"], "smoker": [True], "age": [None]})).tolist() == [[50, 0, 1, 1]]


class Words:
    """What TensorBoard would be told."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def add_scalar(self, *what: object) -> None:
        self.told.append(what)

    def add_text(self, *what: object) -> None:
        self.told.append(what)

    def close(self) -> None: ...

    flush = close


@pytest.mark.process
def test_nothing_but_one_private_file_confirms_a_guess_of_a_record(tmp_path: Path) -> None:
    """Its digest has a key of its own in every run, and neither is anywhere else."""
    private = {"name": "silo-dp", "noise_multiplier": 2.0, "sampling_rate": 0.5, "steps": 1, "announced_size": 20}
    recipe, words = Recipe.from_dict({**PAIRS, "method": private}), Words()
    board = TensorBoard(tmp_path / "board", write=lambda *_: words)
    x, y = arrays()
    outcome = sordino.run(recipe, data=(x, y), folder=tmp_path / "a", observer=board)
    sordino.run(recipe, data=(x, y), folder=tmp_path / "b")
    checks = [(tmp_path / name / "data.check") for name in "ab"]
    first, second = (check.read_bytes() for check in checks)
    assert first[:32] != second[:32] and first[32:] != second[32:]
    assert checks[0].stat().st_mode & 0o077 == 0
    assert not any("digest" in key or "check" in key for key in outcome.result.settings)
    shown = [path.read_bytes() for path in (tmp_path / "a").rglob("*") if path.is_file() and path != checks[0]]
    shown.append(repr(words.told).encode())
    assert shown[-1] != b"[]"
    for part in (first[:32], first[32:]):
        assert not any(told in page for page in shown for told in (part, part.hex().encode()))
    described = About(["a", "b"], CLASSES, normalisation=Normalisation(), test=0.3, seed=recipe.seed)
    dataset = from_memory((x, y), described)
    assert fits_check(dataset, first) and fits_check(dataset, second)
    y[7] = 1 - y[7]
    assert not fits_check(from_memory((x, y), described), first)


def test_a_run_that_was_cut_off_before_it_began_leaves_its_folder_free(tmp_path: Path) -> None:
    sordino.run(Recipe.from_dict(PAIRS), data=arrays(), folder=tmp_path / "run")
    for path in (tmp_path / "run").iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name not in ("environment.json", "data.check"):
            path.unlink()
    before = (tmp_path / "run" / "data.check").read_bytes()
    sordino.run(Recipe.from_dict(PAIRS), data=arrays(), folder=tmp_path / "run")
    assert (tmp_path / "run" / "data.check").read_bytes() != before


@pytest.mark.process
def test_an_audit_is_handed_the_same_data(tmp_path: Path) -> None:
    changes = {
        "method": {"name": "fedavg", "mechanism": {"name": "two-point"}, "range": {"kind": "fixed", "radius": 1.0}}
    }
    recipe = Recipe.from_dict({**ABOUT, **changes, "clients": {"epsilon": 1.0}})
    sordino.run(recipe, data=DataFrame(COLUMNS), folder=tmp_path / "run")
    assert sordino.audit(tmp_path / "run", data=DataFrame(COLUMNS)).rows


def arrays(rows: int = 60) -> tuple[Any, Any]:
    y = np.arange(rows) % 2
    return np.stack([y * 2.0 - 1, np.arange(rows) / rows], axis=1), y


PAIRS: dict[str, Any] = {
    **ABOUT,
    "data": {"source": "memory", "classes": ["a", "b"], "mean": [0], "std": [1], "test": 0.3},
    "split": {"kind": "iid", "clients": 3},
}


def test_arrays_and_torch_data_sets_are_the_same_data() -> None:
    x, y = arrays()
    torch_set = TensorDataset(torch.from_numpy(x), torch.from_numpy(y))
    by_arrays = sordino.run(Recipe.from_dict(PAIRS), data=(x, y))
    by_torch = sordino.run(Recipe.from_dict(PAIRS), data=torch_set)
    by_tensors = sordino.run(Recipe.from_dict(PAIRS), data=(torch.from_numpy(x), torch.from_numpy(y)))
    assert np.array_equal(by_arrays.parameters, by_torch.parameters)
    assert np.array_equal(by_arrays.parameters, by_tensors.parameters)
    images = TensorDataset(torch.zeros(4, 1, 8, 8), torch.tensor([0, 1, 0, 1]))
    parts = {"train": images, "test": images}
    found = from_memory(parts, About(["a", "b"], CLASSES, normalisation=Normalisation()))
    assert (found.shape, len(found.test)) == ((1, 8, 8), 4)


def test_a_dataset_is_taken_as_it_is() -> None:
    x, y = arrays()
    examples = Examples(x.astype(np.float32), y.astype(np.int64))
    own = Dataset(
        "own", examples, examples, ("a", "b"), Normalisation(), "here", "mine", columns={"who": np.arange(60) % 3}
    )  # type: ignore[dict-item]
    split = {"kind": "column", "column": "who", "clients": 3}
    recipe = Recipe.from_dict({**PAIRS, "data": {"source": "memory"}, "split": split, "rounds": {"count": 9}})
    assert sordino.run(recipe, data=own).accuracy > 0.9
    with pytest.raises(InvalidInput, match=r"data\.classes: a sordino Dataset has its own"):
        sordino.run(Recipe.from_dict({**PAIRS, "data": {"source": "memory", "classes": ["a", "b"]}}), data=own)


def test_numbers_and_labels_are_handed_in_as_well() -> None:
    x, y = arrays()
    scaled = {"normalisation": Normalisation(), "test": 0.3}
    number = from_memory((x, y * 2.5), About(["price"], Regression(0.0, 5.0), **scaled))
    assert (number.task, number.train.y.dtype) == (Regression(0.0, 5.0), np.dtype(np.float32))
    items = TensorDataset(torch.from_numpy(x).float(), torch.from_numpy(np.stack([y, 1 - y], axis=1)))
    labels = from_memory(items, About(["a", "b"], LABELS, **scaled))
    assert (labels.task, labels.train.y.shape[1:]) == (LABELS, (2,))
    table = DataFrame({"age": list(range(40)), "a": [0, 1] * 20, "b": [1, 1] * 20})
    found = from_memory(table, About(["a", "b"], LABELS, **scaled))
    assert (found.shape, set(map(tuple, found.train.y.tolist()))) == ((1,), {(0, 1), (1, 1)})


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from ()


X, Y = arrays()


@pytest.mark.parametrize(
    ("data", "changes", "message"),
    [
        ((X, Y), {"names": ()}, r"data\.classes is missing"),
        ((X, Y), {"normalisation": None}, r"data\.mean and data\.std"),
        ((X, Y), {"test": None}, r"data\.test is missing"),
        ((X, Y), {"test": "other.csv"}, r"data\.test = 'other.csv'"),
        ((X, Y), {"label": "y"}, r"data\.label is for tables"),
        ((X, Y + 1), {}, "label 2"),
        ((X, Y[1:]), {}, "one label for each"),
        ((X, Y / 2), {}, "whole numbers"),
        ((X * np.nan, Y), {}, "NaN"),
        ({"train": (X, Y)}, {}, r"\['train'\]; allowed: train and test"),
        (Stream(), {}, "got Stream; allowed: a pandas data frame"),
        ("wards.csv", {}, "got str; allowed"),
        (7, {}, "got int; allowed"),
        ([(1, 2, 3)], {}, "not pairs"),
        ([("a", "b")], {}, "not pairs"),
        (DataFrame(COLUMNS), {}, r"data\.label: got None"),
        (DataFrame(COLUMNS), {"label": 4}, r"data\.label: got 4"),
        (DataFrame(COLUMNS, ["a", "a", "b", "c", "d"]), {"label": "d"}, "same name"),
        (DataFrame(COLUMNS), {"label": "outcome", "names": ["well", "ill"]}, "line 2, column 'smoker': 'True'"),
    ],
)
def test_what_is_no_data_is_refused(data: Any, changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"names": ["a", "b"], "normalisation": Normalisation(), "test": 0.3, **changes}
    with pytest.raises(InvalidInput, match=message):
        from_memory(data, About(task=CLASSES, **given))


def test_data_is_handed_in_where_the_recipe_says_so() -> None:
    with pytest.raises(InvalidInput, match=r'data\.source = "memory"'):
        sordino.run(Recipe.load("quickstart"), data=arrays())
    with pytest.raises(InvalidInput, match=r"sordino\.run\(recipe, data="):
        wire(Recipe.from_dict(PAIRS))


def test_real_data_frames_are_read_like_the_stand_in() -> None:
    pandas = pytest.importorskip("pandas")
    recipe = Recipe.from_dict(ABOUT)
    frame = pandas.DataFrame(COLUMNS)
    wanted = from_memory(DataFrame(COLUMNS), about(recipe))
    for found in (from_memory(each, about(recipe)) for each in (frame, frame.convert_dtypes())):
        assert found.train.x.tolist() == wanted.train.x.tolist()
        assert found.columns["site"].tolist() == wanted.columns["site"].tolist()


def test_real_hub_data_sets_are_read_like_the_stand_in() -> None:
    datasets, pyarrow = pytest.importorskip("datasets"), pytest.importorskip("pyarrow")
    recipe = Recipe.from_dict(ABOUT)
    kinds = {"age": "float64", "smoker": "bool", "note": "string", "site": "float64"}
    columns = {name: datasets.Value(kind) for name, kind in kinds.items()}
    features = datasets.Features({**columns, "outcome": datasets.ClassLabel(names=["well", "ill"])})
    ages = [None if age != age else age for age in COLUMNS["age"]]
    rows = pyarrow.table({**COLUMNS, "age": ages, "outcome": [1, 0, 0, 1] * 10}, schema=features.arrow_schema)
    made = datasets.Dataset(rows, info=datasets.DatasetInfo(features=features), fingerprint="made-here")
    wanted = from_memory(DataFrame(COLUMNS), about(recipe))
    for found in (from_memory(each, about(recipe)) for each in (made, made.with_format("torch"))):
        assert found.train.x.tolist() == wanted.train.x.tolist()
        assert found.train.y.tolist() == wanted.train.y.tolist()

"""A user's own data: arrays, tables, folders of images, functions; every wrong cell is named."""

import csv
import hashlib
import io
import struct
import sys
import types
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

import sordino
from sordino.errors import InvalidInput
from sordino.learning.examples import Dataset, Normalisation
from sordino.learning.own_data import from_csv, from_function, from_images, from_npz
from sordino.parts import registry
from sordino.parts.registry import CodeNotAllowed
from sordino.recipe import Recipe
from sordino.recipe.sources import read_data
from sordino.runs.federation import wire
from sordino.runs.preflight import of_federation

AS_IT_IS = Normalisation()


# --- npz --------------------------------------------------------------------------------------------------------------


def npz(path: Path, **changes: Any) -> Path:
    values = {
        "x_train": np.arange(12, dtype=np.float64).reshape(4, 3),
        "y_train": np.array([0, 1, 1, 0]),
        "x_test": np.ones((2, 3)),
        "y_test": np.array([1, 0], np.uint8),
    } | changes
    np.savez(path, **{name: value for name, value in values.items() if value is not None})
    return path


def test_npz_features_and_images(tmp_path: Path) -> None:
    dataset = from_npz(npz(tmp_path / "wards.npz"), classes=["well", "ill"], normalisation=AS_IT_IS)
    assert (dataset.name, dataset.shape, dataset.train.x.dtype) == ("wards", (3,), np.float32)
    assert dataset.classes == ("well", "ill")
    assert dataset.test.y.tolist() == [1, 0]
    grey = {"x_train": np.zeros((4, 5, 6), np.uint8), "x_test": np.zeros((2, 5, 6), np.uint8)}
    dataset = from_npz(npz(tmp_path / "grey.npz", **grey), classes=["a", "b"], normalisation=AS_IT_IS)
    assert (dataset.shape, dataset.train.x.dtype) == ((1, 5, 6), np.uint8)


def test_an_npz_file_without_a_test_part_has_one_of_no_examples(tmp_path: Path) -> None:
    no_test = {"x_test": None, "y_test": None}
    plain = no_test | {"x_train": None, "y_train": None, "x": np.ones((4, 2, 2)), "y": np.array([0, 1, 1, 0])}
    for changes, shape in ((no_test, (3,)), (plain, (1, 2, 2)), (plain | {"note": np.zeros(7)}, (1, 2, 2))):
        dataset = from_npz(npz(tmp_path / "wards.npz", **changes), classes=["a", "b"], normalisation=AS_IT_IS)
        assert (dataset.shape, dataset.train.y.tolist()) == (shape, [0, 1, 1, 0])
        assert (len(dataset.test), dataset.test.x.shape, dataset.test.x.dtype) == (0, (0, *shape), np.float32)


HOLDS = "an .npz file holds x and y"
PLAIN: dict[str, Any] = {"x_train": None, "y_train": None, "x_test": None, "y_test": None}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.array([0, 1, 2, 0])}, r"wards\.npz, x_train and y_train: row 2 .*label 2"),
        ({"y_test": np.array([0, -1])}, r"wards\.npz, x_test and y_test: row 1 .*label -1"),
        ({"y_test": np.array([0])}, "x_test and y_test: y .*2 examples"),
        ({"y_train": np.array([0.0, 1, 1, 0])}, r"y_train: y .*float64"),
        ({"y_train": np.array(["a", "b", "b", "a"])}, "y_train: y .*<U1"),
        ({"y_train": np.array([0, 1])}, "y_train: y .*4 examples"),
        ({"x_train": np.array([[1, 2, 3.0]] * 3 + [[1, np.nan, 3]])}, r"y_train: row 3 of x"),
        ({"x_train": np.array([[1, 2, 1e300]] * 4)}, r"y_train: row 0 of x"),
        ({"x_train": np.zeros((4, 3), np.int64)}, "y_train: x .*int64"),
        ({"x_train": np.zeros((4, 8, 8, 3), np.uint8)}, r"channels last: use x\.transpose\(0, 3, 1, 2\)"),
        ({"x_train": np.zeros((4, 5))}, r"\[5\].*\[3\]"),
        ({"x_train": np.array(["a", "b", None, 1], object)}, "cannot be read"),
        ({"y_test": None}, rf"wards\.npz holds x_train, y_train, x_test; {HOLDS}"),
        ({"x_test": None}, f"holds x_train, y_train, y_test; {HOLDS}"),
        ({"x_train": None, "y_train": None}, f"holds x_test, y_test; {HOLDS}"),
        ({"x": np.zeros((4, 3))}, f"holds x_train, y_train, x_test, y_test, x; {HOLDS}"),
        (PLAIN | {"x": np.zeros((4, 3))}, f"holds x; {HOLDS}"),
        (PLAIN | {"images": np.zeros((4, 3)), "y": np.zeros(4, int)}, f"holds images, y; {HOLDS}"),
        (PLAIN, f"holds nothing; {HOLDS}"),
        (
            PLAIN | {"x": np.zeros((4, 3)), "y": np.zeros(3, int)},
            "x and y: y .*of 4",
        ),
        (PLAIN | {"x": np.zeros((4, 3), int), "y": np.zeros(4, int)}, "x and y: x .*uint8"),
        (PLAIN | {"x": np.zeros((4, 3)), "y": np.zeros(4)}, "x and y: y .*float64"),
    ],
)
def test_wrong_npz_files_are_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        from_npz(npz(tmp_path / "wards.npz", **changes), classes=["a", "b"], normalisation=AS_IT_IS)


def test_truncated_and_absent_npz_files_are_refused(tmp_path: Path) -> None:
    path = npz(tmp_path / "wards.npz")
    path.write_bytes(path.read_bytes()[:200])
    with pytest.raises(InvalidInput, match=r"wards\.npz: cannot be read"):
        from_npz(path, classes=["a", "b"], normalisation=AS_IT_IS)
    with pytest.raises(InvalidInput, match=r"none\.npz.*no such file"):
        from_npz(tmp_path / "none.npz", classes=["a", "b"], normalisation=AS_IT_IS)


def test_an_array_of_an_npz_file_says_who_holds_a_row(tmp_path: Path) -> None:
    for column, wanted in (
        (np.array(["N", " S", "S", "N"]), ["N", "S", "S", "N"]),
        (np.array([7, 8, 8, 7]), list("7887")),
    ):
        path = npz(tmp_path / "wards.npz", ward=column)
        dataset = from_npz(path, classes=["a", "b"], normalisation=AS_IT_IS, column="ward")
        assert (dataset.shape, dataset.columns["ward"].tolist()) == ((3,), wanted)
        assert not from_npz(path, classes=["a", "b"], normalisation=AS_IT_IS).columns


def test_a_recipe_deals_an_npz_file_by_its_array(tmp_path: Path) -> None:
    path = npz(tmp_path / "wards.npz", ward=np.array([12, 7, 7, 12]))
    data = {"source": str(path), "classes": ["well", "ill"], "mean": [0], "std": [1]}
    for clients, wanted in (([12, 7], [[0, 3], [1, 2]]), (2, [[1, 2], [0, 3]])):
        split = {"kind": "column", "column": "ward", "clients": clients}
        found = wire(Recipe.from_dict({"name": "wards", "data": data, "split": split, **REST}))
        assert [part.tolist() for part in found.parts] == wanted


@pytest.mark.parametrize(
    ("ward", "column", "message"),
    [
        (np.array([1, 2, 2]), "ward", r"wards\.npz, column 'ward': .*4 rows.*\[3\]"),
        (np.array([1.0, 2, 2, 1]), "ward", "column 'ward': .*float64.*astype"),
        (np.array(["N", "", "S", "N"]), "ward", "column 'ward': row 1 .*no value"),
        (np.array(["N", "S", "nan", "N"]), "ward", "column 'ward': row 2 .*no value"),
        (np.array(["N", None, "S", "N"], object), "ward", "cannot be read"),
        (np.array([1, 2, 2, 1]), "wart", r"no column 'wart'; .*\['ward'\]"),
        (np.array([1, 2, 2, 1]), "y_train", r"no column 'y_train'; .*\['ward'\]"),
        (np.array([1, 2, 2, 1]), 0, "no column 0"),
    ],
)
def test_wrong_arrays_of_holders_are_refused(tmp_path: Path, ward: Any, column: Any, message: str) -> None:
    path = npz(tmp_path / "wards.npz", ward=ward)
    with pytest.raises(InvalidInput, match=message):
        from_npz(path, classes=["a", "b"], normalisation=AS_IT_IS, column=column)


# --- csv --------------------------------------------------------------------------------------------------------------

TABLE = "age,outcome,dose\n61,ill,0.5\n35, well ,1e3\n\n47,ill,-2\n"


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def csv_set(train: Path, test: str | Path | float, **options: Any) -> Dataset:
    chosen: dict[str, Any] = {"label": "outcome", "classes": ["well", "ill"], "normalisation": AS_IT_IS} | options
    return from_csv(train, test=test, **chosen)


def test_the_files_of_a_split_name_rows_of_the_table_though_some_are_held_out(tmp_path: Path) -> None:
    ages = "".join(f"{row},{'ill' if row % 2 else 'well'}\n" for row in range(50))
    write(tmp_path / "wards.csv", f"age,outcome\n{ages}")
    write(tmp_path / "north.txt", "\n".join(map(str, range(20))))
    write(tmp_path / "south.txt", "\n".join(map(str, range(20, 50))))
    recipe = Recipe.from_dict(
        {
            "name": "wards",
            "data": {
                "source": str(tmp_path / "wards.csv"),
                "test": 0.2,
                "label": "outcome",
                "classes": ["well", "ill"],
                "mean": [0],
                "std": [1],
            },
            "split": {"kind": "files", "files": [str(tmp_path / "north.txt"), str(tmp_path / "south.txt")]},
            "model": {"name": "logistic"},
            "method": {"name": "silo-dp", "noise_multiplier": 1.0, "announced_size": 20},
        }
    )
    found = wire(recipe)
    held_out = found.dataset.test.x[:, 0].astype(int).tolist()
    north, south = ([int(found.dataset.train.x[i, 0]) for i in part] for part in found.parts)
    assert 3 < len(held_out) < 20 and found.dataset.held_out.tolist() == held_out
    assert north == [row for row in range(20) if row not in held_out]
    assert south == [row for row in range(20, 50) if row not in held_out]
    assert of_federation(found).facts.left_out == len(held_out)


def test_a_table_with_a_header(tmp_path: Path) -> None:
    train, test = write(tmp_path / "train.csv", TABLE), write(tmp_path / "test.csv", "\ufeff" + TABLE)
    dataset = csv_set(train, test)
    assert dataset.train.x.tolist() == [[61, 0.5], [35, 1000], [47, -2]]
    assert dataset.train.y.tolist() == [1, 0, 1]
    assert dataset.test.x.tolist() == dataset.train.x.tolist()
    assert dataset.name == "train"
    assert csv_set(train, test, features=["dose"]).train.x.tolist() == [[0.5], [1000], [-2]]


def test_a_table_of_a_header_alone_has_no_examples(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "age,outcome,dose\n")
    dataset = csv_set(path, 0.2)
    assert (len(dataset.train), len(dataset.test), dataset.shape) == (0, 0, (2,))


def test_a_table_without_a_header_goes_by_number(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "1;a;2\n3;b;4\n")
    dataset = csv_set(path, path, label=1, classes=["a", "b"], delimiter=";")
    assert dataset.train.x.tolist() == [[1, 2], [3, 4]]
    last = write(tmp_path / "last.csv", "1,2,a\n3,4,b\n")
    assert csv_set(last, last, label=-1, classes=["b", "a"], features=[1]).train.x.tolist() == [[2], [4]]


def test_a_fraction_of_a_table_is_held_out(tmp_path: Path) -> None:
    rows = "".join(f"{n},{'well' if n % 3 else 'ill'}\n" for n in range(1000))
    path = write(tmp_path / "t.csv", "n,outcome\n" + rows)
    dataset = csv_set(path, 0.2, seed=4)
    assert abs(len(dataset.test) - 200) < 6 * 12.6  # the standard deviation; the rows and the seed are fixed
    assert sorted(np.concatenate([dataset.train.x, dataset.test.x])[:, 0].tolist()) == list(range(1000))
    assert csv_set(path, 0.2, seed=4).test.x.tolist() == dataset.test.x.tolist()
    assert csv_set(path, 0.2, seed=5).test.x.tolist() != dataset.test.x.tolist()
    with pytest.raises(InvalidInput, match=r"fraction.*got 1\.5"):
        csv_set(path, 1.5)
    assert len(csv_set(path, 1e-9).test) == 0


def test_one_row_more_or_less_moves_no_other_across_the_hold_out(tmp_path: Path) -> None:
    rows = [f"{n % 40},{'well' if n % 3 else 'ill'}\n" for n in range(120)]

    def sides(lines: list[str]) -> tuple[Counter[tuple[float, int]], Counter[tuple[float, int]]]:
        found = csv_set(write(tmp_path / "t.csv", "n,outcome\n" + "".join(lines)), 0.3)
        return tuple(Counter(zip(p.x[:, 0].tolist(), p.y.tolist(), strict=True)) for p in (found.train, found.test))  # type: ignore[return-value]

    train, test = sides(rows)
    assert not set(train) & set(test), "equal examples lie together"
    assert sides(rows[::-1]) == (train, test), "in any order"
    for left in (0, 1, 57, 119):
        fewer, rest = sides(rows[:left] + rows[left + 1 :])
        assert (train - fewer).total() + (test - rest).total() == 1
        assert not (fewer - train) and not (rest - test)


def test_a_hold_out_is_known_by_the_hash_of_the_page_on_data(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "n,outcome\n" + "".join(f"{n},ill\n" for n in range(64)))
    found = csv_set(path, 0.25, seed=7)
    start = b"sordino hold-out v1" + struct.pack("<Qq", 7, 1)
    wanted = [
        n
        for n in range(64)
        if int.from_bytes(hashlib.sha256(start + struct.pack("<f", n)).digest()[:8], "little") < 2**62
    ]
    assert found.held_out.tolist() == wanted


def test_a_fraction_that_holds_out_nothing_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "n,outcome\n1,ill\n2,well\n")
    data = {"source": str(path), "label": "outcome", "classes": ["well", "ill"], "mean": [0], "std": [1], "test": 1e-9}
    method = {"name": "silo-dp", "noise_multiplier": 1.0, "announced_size": 2}
    split = {"kind": "iid", "clients": 1}
    recipe = Recipe.from_dict(
        {"name": "t", "data": data, "split": split, "model": {"name": "logistic"}, "method": method}
    )
    with pytest.raises(InvalidInput, match="none of 2"):
        wire(recipe)


@given(arrays(np.float32, (7, 3), elements=st.floats(width=32, allow_nan=False, allow_infinity=False)))
def test_every_float32_survives_a_table(tmp_path_factory: pytest.TempPathFactory, x: NDArray[np.float32]) -> None:
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    write(path, "".join(",".join(map(repr, row)) + ",a\n" for row in x.astype(float).tolist()))
    assert (csv_set(path, path, label=-1, classes=["a", "b"]).train.x == x).all()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TABLE.replace("-2", "low"), r"t\.csv, line 5, column 'dose': 'low'"),
        (TABLE.replace("1e3", "nan"), r"line 3, column 'dose': 'nan'"),
        (TABLE.replace("1e3", "1e39"), r"line 3, column 'dose': '1e39'"),
        (TABLE.replace("61", ""), r"line 2, column 'age': ''"),
        (
            TABLE.replace("47,ill", "47,dead"),
            r"line 5, column 'outcome': label 'dead'.*\['well'",
        ),
        (TABLE.replace("47,", ""), r"t\.csv, line 5: 2 cells.*3"),
        (TABLE.replace("-2", "-2,9"), r"t\.csv, line 5: 4 cells.*3"),
        (
            TABLE.replace("outcome", "result"),
            r"t\.csv: .*'outcome'.*\['age', 'result'",
        ),
        (TABLE.replace("dose", "age"), "same name"),
        ("", "empty"),
        ("outcome\nill\n", "columns other than"),
        (TABLE.replace("61", '"61'), "as a table"),
    ],
)
def test_wrong_tables_are_refused_by_line_and_column(tmp_path: Path, text: str, message: str) -> None:
    path = write(tmp_path / "t.csv", text)
    with pytest.raises(InvalidInput, match=message):
        csv_set(path, path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"label": 3}, "no column 3"),
        ({"features": ["outcome"]}, "other than the label 'outcome'"),
        ({"features": ["height"]}, "there is no column 'height'"),
        ({"classes": ["well"]}, "two names"),
        ({"normalisation": Normalisation((0, 0, 0), (1, 1, 1))}, "3 constants for 2 features"),
    ],
)
def test_options_that_do_not_fit_the_table_are_refused(tmp_path: Path, options: Any, message: str) -> None:
    path = write(tmp_path / "t.csv", TABLE)
    with pytest.raises(InvalidInput, match=message):
        csv_set(path, path, **options)


def test_tables_that_are_not_text_or_not_there_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    with pytest.raises(InvalidInput, match=r"t\.csv.*no such file"):
        csv_set(path, path)
    path.write_bytes(b"age,outcome\n\xff\xfe,ill\n")
    with pytest.raises(InvalidInput, match=r"t\.csv.*UTF-8"):
        csv_set(path, path)


def test_a_wrong_cell_far_down_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "n,outcome\n" + "1,ill\n" * 25_000 + "?,ill\n")
    with pytest.raises(InvalidInput, match="line 25002, column 'n': '\\?'"):
        csv_set(path, path)


BY_WARD = "age,ward,outcome\n61,North,ill\n35, South ,well\n\n47,North,ill\n"


def test_a_column_lies_beside_the_records_and_is_no_feature(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", BY_WARD)
    dataset = csv_set(path, path, column="ward")
    assert dataset.train.x.tolist() == [[61], [35], [47]]
    assert dataset.columns["ward"].tolist() == ["North", "South", "North"]
    assert csv_set(path, path, column="ward", features=["age"]).columns["ward"].tolist() == ["North", "South", "North"]
    bare = write(tmp_path / "bare.csv", BY_WARD.partition("\n")[2])
    dataset = csv_set(bare, bare, label=2, column=-2)
    assert (dataset.shape, dataset.columns[-2].tolist()) == ((1,), ["North", "South", "North"])


def test_a_test_table_may_lack_the_column_or_have_other_values(tmp_path: Path) -> None:
    train = write(tmp_path / "t.csv", BY_WARD)
    for text in ("outcome,age\nill,3\n", "ward,outcome,age\nWest,ill,3\n", "ward,outcome,age\n,ill,3\n"):
        dataset = csv_set(train, write(tmp_path / "test.csv", text), column="ward")
        assert dataset.test.x.tolist() == [[3]] and len(dataset.columns["ward"]) == 3


def test_a_column_does_not_move_rows_across_the_hold_out(tmp_path: Path) -> None:
    rows = [f"{n},{'ill' if n % 2 else 'well'}" for n in range(200)]
    plain = csv_set(write(tmp_path / "a.csv", "n,outcome\n" + "\n".join(rows)), 0.2)
    wards = "\n".join(f"{row},{k % 7}" for k, row in enumerate(rows))
    beside = csv_set(write(tmp_path / "b.csv", "n,outcome,ward\n" + wards), 0.2, column="ward")
    assert beside.held_out.tolist() == plain.held_out.tolist()
    assert beside.columns["ward"].tolist() == [str(k % 7) for k in range(200)]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        (BY_WARD, {"column": "wart"}, r"no column 'wart'; the columns are \['age', 'ward'"),
        (BY_WARD, {"column": 3}, "no column 3; there are 3"),
        (BY_WARD, {"column": "outcome"}, "'outcome' is the label 'outcome'"),
        (BY_WARD, {"column": -1}, "-1 is the label 'outcome'"),
        (BY_WARD, {"column": "ward", "features": ["age", "ward"]}, "'ward' .*out of the features"),
        (BY_WARD, {"column": "age", "features": [0]}, "'age' .*out of the features"),
        (BY_WARD.replace(" South ", " "), {"column": "ward"}, r"t\.csv, line 3, column 'ward': '' is a missing value"),
        (BY_WARD.replace(" South ", "NA"), {"column": "ward"}, "line 3, column 'ward': 'NA' is a missing value"),
        (BY_WARD.replace("47,", ""), {"column": "ward"}, r"t\.csv, line 5: 2 cells.*3"),
        (BY_WARD.partition("\n")[2], {"column": "ward", "label": 2}, "no column 'ward'; without a header"),
    ],
)
def test_wrong_columns_are_refused(tmp_path: Path, text: str, options: dict[str, Any], message: str) -> None:
    path = write(tmp_path / "t.csv", text)
    with pytest.raises(InvalidInput, match=message):
        csv_set(path, path, **options)


names_of_wards = st.text(st.characters(codec="utf-8", exclude_categories=["C", "Z"]), min_size=1, max_size=8)


@given(st.lists(names_of_wards.filter(lambda name: name not in ("NA", "NaN", "nan")), min_size=1, max_size=12))
def test_every_name_survives_a_table(tmp_path_factory: pytest.TempPathFactory, wards: list[str]) -> None:
    path = tmp_path_factory.mktemp("csv") / "t.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["age", "outcome", "ward"], *([k, "ill", ward] for k, ward in enumerate(wards))])
    assert csv_set(path, path, column="ward").columns["ward"].tolist() == wards


# --- images -----------------------------------------------------------------------------------------------------------


def image_folder(folder: Path, images: Mapping[str, NDArray[Any]]) -> Path:
    for name, image in images.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(folder / name, image)
    return folder


def grey(value: int, shape: tuple[int, ...] = (4, 5)) -> NDArray[np.uint8]:
    return np.full(shape, value, np.uint8)


def image_set(train: Path, test: str | Path | float, **options: Any) -> Dataset:
    chosen: dict[str, Any] = {"classes": ["dog", "cat", "owl"], "normalisation": AS_IT_IS, "channels": 1} | options
    return from_images(train, test=test, **chosen)


def test_images_by_class(tmp_path: Path) -> None:
    folder = image_folder(
        tmp_path / "pets", {"cat/b.npy": grey(2), "cat/a.npy": grey(1, (4, 5, 1)), "dog/z.npy": grey(3)}
    )
    (folder / ".hidden").write_text("left out")
    (folder / "cat" / ".DS_Store").write_text("left out")
    dataset = image_set(folder, folder)
    assert dataset.train.x.shape == (3, 1, 4, 5)
    assert dataset.train.x[:, 0, 0, 0].tolist() == [3, 1, 2]
    assert dataset.train.y.tolist() == [0, 1, 1]  # nobody holds an owl
    held_out = image_set(folder, 1 / 3)
    assert len(held_out.train) + len(held_out.test) == 3
    assert held_out.held_out.size == len(held_out.test)


def test_colour_comes_channel_first(tmp_path: Path) -> None:
    image = np.zeros((4, 5, 3), np.uint8)
    image[1, 2] = 7, 8, 9
    folder = image_folder(tmp_path, {"dog/a.npy": image, "cat/b.npy": image})
    dataset = image_set(folder, folder, channels=3)
    assert dataset.train.x[0, :, 1, 2].tolist() == [7, 8, 9]


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ({"cow/a.npy": grey(1)}, r"cow: .*\['dog', 'cat', 'owl'\]"),
        ({"dog/a.npy": grey(1), "dog/b.npy": grey(1, (4, 6))}, r"b\.npy: 4x6 .*a\.npy has 4x5"),
        ({"dog/a.npy": grey(1).astype(float)}, r"a\.npy: float64 .*uint8"),
        (
            {"dog/a.npy": grey(1, (4, 5, 3))},
            r"a\.npy: .*\[4, 5, 3\].*\[height, width, 1\]",
        ),
        ({"dog/a.npy": np.array([{}], object)}, r"a\.npy: cannot be read"),
        ({}, "no such folder"),
    ],
)
def test_wrong_image_folders_are_refused(tmp_path: Path, images: Mapping[str, NDArray[Any]], message: str) -> None:
    folder = image_folder(tmp_path / "pets", images)
    with pytest.raises(InvalidInput, match=message):
        image_set(folder, folder)


def test_stray_and_empty_image_folders_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "pets"
    (folder / "dog").mkdir(parents=True)
    with pytest.raises(InvalidInput, match="no images"):
        image_set(folder, folder)
    (folder / "dog" / "notes.txt").write_text("stray")
    with pytest.raises(InvalidInput, match=r"notes\.txt.*\.npy, \.png"):
        image_set(folder, folder)
    (folder / "stray.npy").write_text("stray")
    with pytest.raises(InvalidInput, match=r"stray\.npy: not a folder"):
        image_set(folder, folder)
    with pytest.raises(InvalidInput, match="channels must be 1"):
        image_set(folder, folder, channels=2)


def test_pictures_without_pillow_name_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "a.png").write_bytes(b"")
    with pytest.raises(InvalidInput, match=r"a\.png.*pip install pillow.*\.npy"):
        image_set(tmp_path, tmp_path)


class StandInPicture:
    """The part of Pillow's interface that is used, for pictures that are `.npy` inside; for machines without Pillow."""

    def __init__(self, path: Path) -> None:
        self.pixels = np.load(path)

    def __enter__(self) -> "StandInPicture":
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def convert(self, mode: str) -> NDArray[np.uint8]:
        return self.pixels if mode == "L" else np.stack([self.pixels] * 3, axis=-1)  # type: ignore[no-any-return]


def picture_bytes(pixels: NDArray[np.uint8], monkeypatch: pytest.MonkeyPatch) -> bytes:
    """A grey PNG where Pillow is installed; elsewhere what the stand-in reads."""
    buffer = io.BytesIO()
    try:
        from PIL import Image  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        stand_in = types.ModuleType("PIL.Image")
        stand_in.open = StandInPicture  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "PIL", types.ModuleType("PIL"))
        monkeypatch.setitem(sys.modules, "PIL.Image", stand_in)
        np.save(buffer, pixels)
    else:
        Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_are_turned_into_grey_or_colour(
    tmp_path: Path, channels: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pixels = np.arange(20, dtype=np.uint8).reshape(4, 5)
    (tmp_path / "dog").mkdir()
    (tmp_path / "dog" / "a.PNG").write_bytes(picture_bytes(pixels, monkeypatch))
    dataset = image_set(tmp_path, tmp_path, channels=channels)
    assert dataset.shape == (channels, 4, 5)
    assert (dataset.train.x[0] == pixels).all()
    (tmp_path / "dog" / "b.png").write_bytes(b"torn")
    with pytest.raises(InvalidInput, match=r"b\.png: cannot be read"):
        image_set(tmp_path, tmp_path, channels=channels)


# --- a function -------------------------------------------------------------------------------------------------------


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    monkeypatch.syspath_prepend(tmp_path)
    yield lambda text: (tmp_path / "ward_data.py").write_text(text) and None
    sys.modules.pop("ward_data", None)


SPLIT = {"kind": "iid", "clients": 2}
REST = {"model": {"name": "logistic"}, "method": {"name": "fedavg"}}
WARD_DATA = """
from dataclasses import replace
import numpy as np
from sordino.learning.examples import Dataset, Examples, Normalisation
from sordino.learning.own_data import DataSource
from sordino.parts.tables import Count
seven = 7
def load(rows=2):
    part = Examples(np.zeros((rows, 3), np.float32), np.zeros(rows, np.int64))
    return Dataset("wards", part, part, ("well", "ill"), Normalisation(), "here", "mine")
class Wards(DataSource):
    rows: Count = 2
    def load(self):
        return load(self.rows)
def by_ward(wards, rows=3):
    return replace(load(rows), columns={"ward": np.array(wards)})
def wrong():
    return [1, 2]
def broken():
    import module_that_is_not_there
"""


def test_a_function_by_import_path(module: Callable[[str], None]) -> None:
    module(WARD_DATA)
    assert len(from_function("ward_data:load").train) == 2
    assert len(from_function("ward_data:load", {"rows": 5}).train) == 5


def test_a_data_source_by_import_path_takes_its_keys_and_only_where_it_may_be_named(
    module: Callable[[str], None],
) -> None:
    module(WARD_DATA)
    named = {"name": "wards", "data": {"source": "ward_data:Wards", "arguments": {"rows": 5}}, "split": SPLIT, **REST}
    assert len(read_data(Recipe.from_dict(named)).train) == 5
    assert len(from_function("ward_data:Wards").train) == 2
    with pytest.raises(InvalidInput, match="rows"):
        from_function("ward_data:Wards", {"rows": 0})
    with registry.own_code(()), pytest.raises(CodeNotAllowed):
        from_function("ward_data:Wards")


def test_a_function_may_say_who_holds_a_row(module: Callable[[str], None]) -> None:
    module(WARD_DATA)
    data = {"source": "ward_data:by_ward", "arguments": {"wards": ["S", "N", "S"]}}
    split = {"kind": "column", "column": "ward", "clients": ["S", "N"]}
    found = wire(Recipe.from_dict({"name": "wards", "data": data, "split": split, **REST}))
    assert [part.tolist() for part in found.parts] == [[0, 2], [1]]
    other = {"name": "wards", "data": data, "split": {**split, "column": "floor"}, **REST}
    with pytest.raises(InvalidInput, match=r"no column 'floor' .*\['ward'\].*Dataset\.columns"):
        wire(Recipe.from_dict(other))
    for wards, message in ((["S", "N"], r"3 rows.*\[2\]"), (["S", "", "S"], "row 1 "), ([0.5, 1, 1], "float64")):
        with pytest.raises(InvalidInput, match=rf"ward_data:by_ward, column 'ward': .*{message}"):
            from_function("ward_data:by_ward", {"wards": wards})


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ("ward_data:wrong", "Dataset, got list"),
        ("ward_data:absent", "'absent'"),
        ("ward_data:seven", "ward_data:seven"),
        ("no_such_package.module:load", "'no_such_package'"),
        ("ward_data", "package.module:Class, got 'ward_data'"),
        ("ward_data.load", "package.module:Class"),
        (":load", "package.module:Class"),
        ("ward data:load", "package.module:Class"),
    ],
)
def test_wrong_functions_are_refused(module: Callable[[str], None], where: str, message: str) -> None:
    module(WARD_DATA)
    with pytest.raises(InvalidInput, match=message):
        from_function(where)


def test_errors_inside_the_function_are_its_own(module: Callable[[str], None]) -> None:
    module(WARD_DATA)
    with pytest.raises(ModuleNotFoundError, match="module_that_is_not_there"):
        from_function("ward_data:broken")


@pytest.mark.parametrize("fraction", [0.3, 0.5, 0.8])
def test_a_hold_out_of_equal_rows_is_refused_where_it_misses_its_share(tmp_path: Path, fraction: float) -> None:
    """Equal examples go together: of two different ones in a thousand, none, half or all are held out."""
    path = write(tmp_path / "t.csv", "age,outcome\n" + "1,ill\n2,well\n" * 500)
    given = {"label": "outcome", "classes": ["well", "ill"], "normalisation": Normalisation()}
    try:
        found = from_csv(path, test=fraction, **given)
    except InvalidInput as error:
        assert "equal" in str(error)
    else:
        assert abs(len(found.test) / 1000 - fraction) <= 0.08


def test_a_table_with_other_separators_says_so(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", "age;outcome\n1;ill\n")
    with pytest.raises(InvalidInput, match="semicolons"):
        from_csv(path, test=None, label="outcome", classes=["well", "ill"], normalisation=Normalisation())


def test_a_run_goes_on_with_the_data_that_it_began_with(tmp_path: Path) -> None:
    rows = [f"{n},{n % 7},{'ill' if n % 3 else 'well'}" for n in range(60)]
    path = write(tmp_path / "t.csv", "\n".join(["age,b,outcome", *rows]) + "\n")
    data = {"source": str(path), "label": "outcome", "classes": ["well", "ill"], "test": 0.3, "mean": [0], "std": [1]}
    given = {"name": "t", "data": data, "split": {"kind": "iid", "clients": 2}, "model": {"name": "logistic"}}
    recipe = Recipe.from_dict({**given, "method": {"name": "fedavg"}, "rounds": {"count": 2}})
    sordino.run(recipe, folder=tmp_path / "run")
    assert sordino.run(recipe, folder=tmp_path / "run", resume=True).result.rounds == 2
    write(path, path.read_text().replace("59,3,ill", "59,4,ill"))
    with pytest.raises(InvalidInput, match="other data"):
        sordino.run(recipe, folder=tmp_path / "run", resume=True)

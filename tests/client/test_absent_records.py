"""A record that is refused counts as absent in what a client answers: nothing that travels tells of it."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.format import write_array_header_1_0
from numpy.typing import NDArray
from typer.testing import CliRunner

from sordino.cli import app
from sordino.client.client import Client
from sordino.client.invitation import CommonTerms
from sordino.client.membership import Membership
from sordino.client.offer import Offer
from sordino.client.own_records import OwnRecords
from sordino.client.settings import OwnData, Settings
from sordino.client.socket_service import Service
from sordino.errors import InvalidInput
from sordino.learning import evaluation
from sordino.learning.cohort import CohortTrainer
from sordino.learning.columns import ColumnSpec
from sordino.learning.evaluation import Scores
from sordino.learning.examples import Normalisation
from sordino.learning.metrics import MetricSpec
from sordino.learning.own_data import from_csv
from sordino.learning.stacked_model import StackedModel
from sordino.learning.tables import ClientReading
from sordino.methods.aggregation import AggregationSpec
from sordino.methods.extractors import OrientedExtractor
from sordino.methods.private_evaluation import EVALUATE
from sordino.methods.silo_dp import SiloDp
from sordino.methods.stopping_rules import StoppingSpec
from sordino.methods.upload import Draw
from sordino.parts.tables import tag
from sordino.privacy.guarantee import Adjacency, Infinite
from sordino.randomness import KEY_BYTES, Keystream
from sordino.recipe import Recipe
from sordino.runs.federation import wire
from sordino.web.native_participant import Link, NotJoined, Participant
from sordino.wire.requests import Request, Response, What
from tests.client import people
from tests.client.people import KEY, NAME, body

HEADER = b"age,smoker,note,outcome\n"
ROWS = [
    b'%d,%s,"a ""b""%s c",%s\n' % (k, b"yes" if k % 3 else b"no", b"," * (k % 2), b"ab"[k % 2 :][:1]) for k in range(8)
]
COLUMNS: dict[str, Any] = {
    "age": {"kind": "number", "low": 0, "high": 100},
    "smoker": {"kind": "category", "values": ["yes", "no"]},
    "note": {"kind": "words", "vocabulary": ["b", "fever"]},
}
WRONG = (
    b"9,pipe,b,a\n",  # a value that is not in the list
    b"nine,yes,b,a\n",
    b",yes,b,a\n",  # a gap
    b"9,yes,b,c\n",  # no such class
    b"9,yes,b\n",
    b"9,yes,b,a,1\n",
    b"9,yes,\xff,a\n",  # not in UTF-8
    b'9,yes,"b,a\n',  # a quotation mark that is not closed
    b'"9"1,yes,b,a\n',
    b"9,yes," + b"b" * 140_000 + b",a\n",
    b'9,yes,b,"\n',
    b'9,yes,"b","a\n',
)


def table(path: Path, rows: list[bytes], header: bytes = HEADER) -> Path:
    path.write_bytes(header + b"".join(rows))
    return path


def content(records: OwnRecords) -> tuple[object, object]:
    return records.examples.x.tolist(), records.examples.y.tolist()


def own(path: Path, **keys: Any) -> OwnData:
    given = {"source": str(path), "label": "outcome", "classes": ["a", "b"], "columns": COLUMNS, **keys}
    return Settings.of({"data": given, "budget": {"limit": 1.0}}).data


@given(
    st.lists(
        st.tuples(st.integers(0, len(ROWS)), st.sampled_from(WRONG)), min_size=1, max_size=3, unique_by=itemgetter(1)
    )
)
def test_no_line_of_a_table_takes_another_with_it(tmp_path_factory: pytest.TempPathFactory, added: list[Any]) -> None:
    path = tmp_path_factory.mktemp("own") / "own.csv"
    data = own(path)
    table(path, ROWS)
    before = OwnRecords.read(data, path.parent)
    rows = list(ROWS)
    for place, line in added:
        rows.insert(place, line)
    table(path, rows)
    with pytest.raises(InvalidInput):
        OwnRecords.read(data, path.parent)
    after = OwnRecords.read_apart(data, path.parent, before.shape)
    assert (content(after), len(after.left_out)) == (content(before), len(added))


def test_cells_with_line_ends_are_refused_before_joining_and_absent_after_it(tmp_path: Path) -> None:
    path = tmp_path / "own.csv"
    shape = OwnRecords.read(own(table(path, ROWS)), tmp_path).shape
    table(path, [*ROWS, b'9,yes,"b\nb",a\n'])
    with pytest.raises(InvalidInput, match="line 10"):
        OwnRecords.read(own(path), tmp_path)
    after = OwnRecords.read_apart(own(path), tmp_path, shape)
    assert (len(after), len(after.left_out)) == (8, 2)


@given(st.sampled_from(WRONG), st.integers(0, 7), st.sampled_from([{"rows": "0, 2, 4-6"}, {"train_limit": 5}]))
def test_a_record_moves_no_other_in_or_out(
    tmp_path_factory: pytest.TempPathFactory, line: bytes, place: int, choice: dict[str, Any]
) -> None:
    path = tmp_path_factory.mktemp("own") / "own.csv"
    whole = OwnRecords.read(own(table(path, ROWS)), path.parent)
    chosen = [0, 2, 4, 5, 6] if "rows" in choice else [0, 1, 2, 3, 4]
    data = own(path, **choice)
    assert OwnRecords.read(data, path.parent).examples.x[:, 0].tolist() == whole.examples.x[chosen, 0].tolist()
    for changed in (line, b"\n"):
        table(path, [*ROWS[:place], changed, *ROWS[place + 1 :]])
        after = OwnRecords.read_apart(data, path.parent, whole.shape)
        left = [row for row in chosen if row != place]
        assert after.examples.x[:, 0].tolist() == whole.examples.x[left, 0].tolist()


@pytest.mark.parametrize("place", [0, 3, 6])
@pytest.mark.parametrize("line", [b"1\n", b"1,2,3,4,a\n", b"x,1,a\n", b'"1,2,a\n', b"1,\xff,a\n", b"1,2,c\n"])
def test_the_first_line_of_a_table_without_a_header_is_a_row_too(tmp_path: Path, place: int, line: bytes) -> None:
    rows = [b"%d,%d,%s\n" % (k, k * k, b"ab"[k % 2 :][:1]) for k in range(6)]
    data = own(tmp_path / "own.csv", label=-1, columns=None)
    table(tmp_path / "own.csv", rows, b"")
    before = OwnRecords.read(data, tmp_path)
    table(tmp_path / "own.csv", [*rows[:place], line, *rows[place:]], b"")
    after = OwnRecords.read_apart(data, tmp_path, before.shape)
    assert (content(after), after.shape, len(after.left_out)) == (content(before), before.shape, 1)


def test_the_width_of_a_table_without_a_header_is_the_agreed_one(tmp_path: Path) -> None:
    rows = [b"1,2,a\n", b"1,2,3,b\n", b"1,2,3,a\n", b"1,2,3,b\n"]
    data = own(table(tmp_path / "own.csv", rows, b""), label=-1, columns=None)
    assert [len(OwnRecords.read_apart(data, tmp_path, shape)) for shape in ((2,), (3,), (4,))] == [1, 3, 0]
    with pytest.raises(InvalidInput, match="features"):
        OwnRecords.read(own(table(tmp_path / "own.csv", rows[1:], b""), label=-1, features=[0], columns=None), tmp_path)


def test_equal_records_are_refused_for_a_hold_out_only_before_joining(tmp_path: Path) -> None:
    rows = [b"%d,a\n" % k for k in range(100)] + [b"7,b\n"] * 300
    data = own(table(tmp_path / "own.csv", rows, b"x,outcome\n"), columns=None, test=0.2)
    with pytest.raises(InvalidInput, match="equal"):
        OwnRecords.read(data, tmp_path)
    assert OwnRecords.read_apart(data, tmp_path, (1,)).left_out == ()


def test_rows_that_are_named_and_no_longer_there_are_absent(tmp_path: Path) -> None:
    data = own(table(tmp_path / "own.csv", ROWS), rows="2-7")
    before = OwnRecords.read(data, tmp_path)
    assert len(OwnRecords.read_apart(data, tmp_path, before.shape)) == len(before) == 6
    table(tmp_path / "own.csv", ROWS[:-1])
    assert len(OwnRecords.read_apart(data, tmp_path, before.shape)) == 5


def test_wrong_examples_of_arrays_and_wrong_images_are_absent(tmp_path: Path) -> None:
    x, y = np.arange(12, dtype=np.float32).reshape(6, 2), np.array([0, 1, 0, 5, 1, 0])
    x[1, 0] = np.nan
    np.savez(tmp_path / "own.npz", x=x, y=y)
    found = OwnRecords.read_apart(OwnData(source="own.npz", classes=("a", "b")), tmp_path, (2,))
    assert (found.examples.x[:, 1].tolist(), len(found.left_out)) == ([1, 5, 9, 11], 2)
    for name, image in {
        "a/0": np.zeros((3, 3)),
        "a/1": np.ones((2, 2)),
        "b/2": np.ones((2, 2)),
        "c/3": np.ones((2, 2)),
    }.items():
        (tmp_path / "scans" / name).parent.mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "scans" / f"{name}.npy", image.astype(np.uint8))
    (tmp_path / "scans" / "b" / "4.npy").write_text("no image")
    found = OwnRecords.read_apart(OwnData(source="./scans", classes=("a", "b"), channels=1), tmp_path, (1, 2, 2))
    assert (found.shape, found.examples.y.tolist(), len(found.left_out)) == ((1, 2, 2), [0, 1], 3)


@pytest.mark.parametrize("labels", [[0, 1, np.nan, 1], [0, 1, 0.5, 1], [0, 1, np.inf, 1], [0, 1, 1e300, 1]])
def test_one_label_that_makes_all_others_floating_point_takes_none_with_it(tmp_path: Path, labels: list[float]) -> None:
    np.savez(tmp_path / "own.npz", x=np.arange(8, dtype=np.float32).reshape(4, 2), y=np.array(labels))
    data = OwnData(source="own.npz", classes=("a", "b"))
    found = OwnRecords.read_apart(data, tmp_path, (2,))
    assert (found.examples.y.tolist(), len(found.left_out)) == ([0, 1, 1], 1)
    assert "row 2" in found.left_out[0]
    with pytest.raises(InvalidInput):
        OwnRecords.read(data, tmp_path)
    np.savez(tmp_path / "own.npz", x=np.zeros((0, 2), np.float32), y=np.zeros(0, int))
    assert OwnRecords.read_apart(data, tmp_path, (2,)).left_out == ()


@pytest.mark.parametrize("label", ["?", "", "0.5", "nan", "1e300"])
def test_one_label_that_makes_all_others_text_takes_none_with_it(tmp_path: Path, label: str) -> None:
    np.savez(tmp_path / "own.npz", x=np.arange(8, dtype=np.float32).reshape(4, 2), y=np.array([0, 1, label, 1]))
    found = OwnRecords.read_apart(OwnData(source="own.npz", classes=("a", "b")), tmp_path, (2,))
    assert (found.examples.y.tolist(), len(found.left_out)) == ([0, 1, 1], 1)
    numbers = OwnRecords.read_apart(OwnData(source="own.npz", target=(0.0, 1.0)), tmp_path, (2,))
    assert numbers.examples.y.tolist() == ([0, 1, 0.5, 1] if label == "0.5" else [0, 1, 1])


@pytest.mark.parametrize("odd", [np.array([300, 5]), np.array([-1, 5]), np.array(["?", "5"]), np.array([0.5, 5])])
def test_one_example_that_makes_all_pixels_other_numbers_changes_none_of_them(tmp_path: Path, odd: Any) -> None:
    x, y = np.arange(6, dtype=np.uint8).reshape(3, 2), np.array([0, 1, 0])
    data = OwnData(source="own.npz", classes=("a", "b"))
    np.savez(tmp_path / "own.npz", x=x, y=y)
    before = OwnRecords.read_apart(data, tmp_path, (2,))
    np.savez(tmp_path / "own.npz", x=np.concatenate([x, odd[None]]), y=np.append(y, 1))
    after = OwnRecords.read_apart(data, tmp_path, (2,))
    assert after.examples.x[:3].tolist() == before.examples.x.tolist()
    assert len(after) + len(after.left_out) == 4


TYPES: dict[str, tuple[Any, list[Any]]] = {  # how the file has whole numbers, and what may lie beside them
    "b": (np.bool_, [1, 2, 0.5, 1j, "?", None, 2**70]),
    "u": (np.uint8, [256, -1, 0.5, 1j, "?", None, 2**70, np.timedelta64(1)]),
    "i": (np.int64, [0.5, 1j, "?", None, 2**70, np.timedelta64("NaT")]),
    "f": (np.float32, [np.float64(0.1), np.longdouble(1) / 3, 1j, "?", None, 10**400]),
    "c": (np.complex64, ["?", None, 1j]),
    "U": (np.str_, [None, b"?", 2**70]),
    "S": (np.bytes_, ["?", None, 1]),
    "O": (np.object_, [None, 2**70, [1, 2], b"?", Path("other"), np.float64(1), np.datetime64(1, "D"), np.arange(3)]),
    "M": ("datetime64[D]", [None]),
}


def in_one_array(records: list[Any]) -> NDArray[Any]:
    """Records in the type that numpy gives them."""
    try:
        return np.array(records)
    except (TypeError, ValueError, OverflowError):
        return np.array(records, object)


@pytest.mark.parametrize("place", [0, 7])
@pytest.mark.parametrize("axis", ["x", "y"])
@pytest.mark.parametrize(("kind", "odd"), [(kind, odd) for kind, (_, odds) in TYPES.items() for odd in odds])
def test_no_value_of_any_type_decides_about_another_record(
    tmp_path: Path, kind: str, odd: Any, axis: str, place: int
) -> None:
    given: dict[str, NDArray[Any]] = {"x": np.array([[k % 2, k % 3 == 0.0] for k in range(7)]) + 0.5 * (axis == "y")}
    given["y"] = np.arange(7) % 2
    given[axis] = given[axis].astype(TYPES[kind][0])
    added = {name: in_one_array([*found[:place], found[0], *found[place:]]) for name, found in given.items()}
    records = list(given[axis])
    records.insert(place, [0, odd] if axis == "x" else odd)
    added[axis] = in_one_array([one.tolist() if isinstance(one, np.ndarray) else one for one in records])
    found = []
    for arrays in (given, added):
        np.savez(tmp_path / "own.npz", **arrays)
        found.append(OwnRecords.read_apart(OwnData(source="own.npz", classes=("a", "b")), tmp_path, (2,)))
    before, after = (list(zip(*content(each), strict=True)) for each in found)  # type: ignore[call-overload]
    assert len(before) == (0 if kind == "M" else 7)
    if len(after) > len(before):
        del after[place]
    assert after == before and len(found[1]) + len(found[1].left_out) == 8


@pytest.mark.parametrize("odd", ["?", None, 1j, 0.5])
def test_long_numbers_are_rounded_alike_beside_any_value(tmp_path: Path, odd: Any) -> None:
    """These lie halfway between two float64, which lie beside the middle of two float32."""
    near = [np.longdouble(1) + (2 * k + 1) * np.longdouble(2) ** -24 - np.longdouble(2) ** -53 for k in range(1, 500)]
    found = []
    for records in (near, [*near, odd]):
        np.savez(tmp_path / "own.npz", x=in_one_array([[one, one] for one in records]), y=np.zeros(len(records), int))
        found.append(OwnRecords.read_apart(OwnData(source="own.npz", classes=("a", "b")), tmp_path, (2,)))
    assert len(found[0]) == 499
    assert found[1].examples.x[:499].tolist() == found[0].examples.x.tolist()


def test_float16_is_refused_by_hand_and_named_in_the_log_where_it_gets_in_later(tmp_path: Path) -> None:
    """Beside a text it is 1.1, and 1.099609375 beside a float64: no reading can make one of the two."""
    half, y = np.full((6, 2), 1.1, np.float16), np.zeros(6, int)
    data = OwnData(source=str(tmp_path / "own.npz"), classes=("a", "b"))
    np.savez(tmp_path / "own.npz", x=half.astype(np.float32), y=y)
    assert (OwnRecords.read(data, tmp_path).examples.x == 1.099609375).all()
    Client.create(tmp_path / "client", Settings.of({"data": data.model_dump(), "budget": {"limit": 1.0}})).close()
    np.savez(tmp_path / "own.npz", x=half, y=y)
    with pytest.raises(InvalidInput, match=r"own\.npz holds float16.*astype\(np\.float32\)"):
        OwnRecords.read(data, tmp_path)
    with Client.open(tmp_path / "client") as client:
        records = client.records((2,))
    assert len(records) == 6 and "float16" in (tmp_path / "client" / "log.txt").read_text()
    digits = OwnRecords.read(people.settings().data, tmp_path)
    for warning in (records.warning, ""):
        member = Membership(
            people.invitation(COMPUTING["silo"]), people.settings(budget=RECORDS), replace(digits, warning=warning)
        )
        protected = [release.protects_records for _, left in member.schedule() for release in left]
        assert protected == [not warning] * len(protected)


@pytest.mark.parametrize("odd", [[[1, 2], [3]], [[1, 2], [3, 4], [5, 6]], "?", None])
def test_one_image_of_another_form_takes_none_with_it(tmp_path: Path, odd: Any) -> None:
    images = np.arange(24, dtype=np.float32).reshape(6, 2, 2)
    kept: Any = np.empty(7, object)
    kept[:] = [*images.transpose(0, 2, 1), odd]
    np.savez(tmp_path / "own.npz", x=kept, y=np.zeros(7, int))
    found = OwnRecords.read_apart(OwnData(source="own.npz", classes=("a", "b")), tmp_path, (1, 2, 2))
    assert (found.examples.x[:, 0] == images.transpose(0, 2, 1)).all() and len(found) == 6


@pytest.mark.parametrize(("x", "y"), [(7, 6), (6, 8)])
def test_a_half_record_takes_none_with_it(tmp_path: Path, x: int, y: int) -> None:
    np.savez(tmp_path / "own.npz", x=np.arange(2.0 * x).reshape(x, 2), y=np.zeros(y, int))
    found = OwnRecords.read_apart(OwnData(source="own.npz", classes=("a", "b")), tmp_path, (2,))
    assert (len(found), len(found.left_out)) == (6, x + y - 12)


class Hostile:
    """A value of which reading runs code."""

    def __reduce__(self) -> tuple[Any, ...]:
        return eval, ("__import__('pathlib').Path('ran').touch() or 1",)


def test_nothing_that_a_file_names_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    labels = np.array([0, Hostile(), 1], object)
    np.savez("own.npz", x=np.arange(6.0).reshape(3, 2), y=labels)
    found = OwnRecords.read_apart(OwnData(source="own.npz", classes=("a", "b")), tmp_path, (2,))
    assert found.examples.y.tolist() == [0, 1]
    assert not (tmp_path / "ran").exists()
    with np.load("own.npz", allow_pickle=True) as values:
        assert values["y"][1] == 1 and (tmp_path / "ran").exists(), "as pickle itself does"


class Reciprocal(ColumnSpec):
    """A rule of somebody's own that has no number for 0, fails at 1 and gives up at 2."""

    kind: str = tag("tests.client.test_absent_records:Reciprocal", "one over the number")

    def parts(self) -> tuple[str, ...]:
        return ("",)

    def encode(self, cells: Sequence[str]) -> NDArray[np.float32]:
        if "2" in cells:
            raise SystemExit(2)
        if "1" in cells:
            raise RuntimeError("not this one")
        with np.errstate(divide="ignore"):
            return 1 / np.array(cells, np.float32)[:, None]


@pytest.mark.parametrize("cell", ["0", "1", "2", "nan"])
def test_a_cell_that_an_own_rule_cannot_take_leaves_its_row_out(tmp_path: Path, cell: str) -> None:
    path = table(tmp_path / "own.csv", [b"8,a\n", f"{cell},b\n".encode(), b"4,b\n"], b"x,outcome\n")
    apart = ClientReading((1,))
    found = from_csv(
        path, test=None, label="outcome", classes=("a", "b"), normalisation=Normalisation(), rules={"x": Reciprocal()},
        apart=apart,
    )  # fmt: skip
    assert (found.train.x.tolist(), len(apart.left_out)) == ([[0.125], [0.25]], 1)


def test_rows_of_arrays_and_images_keep_their_numbers(tmp_path: Path) -> None:
    x = np.arange(8, dtype=np.float32).reshape(4, 2)
    x[0] = np.nan
    np.savez(tmp_path / "own.npz", x=x, y=np.zeros(4, int))
    for number, side in enumerate((3, 2, 2, 2)):
        (tmp_path / "scans" / "a").mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "scans" / "a" / f"{number}.npy", np.full((side, side), number, np.uint8))
    two = {"classes": ("a", "b"), "rows": "0-2", "channels": 1}
    arrays = OwnRecords.read_apart(OwnData(source="own.npz", **two), tmp_path, (2,))
    images = OwnRecords.read_apart(OwnData(source="./scans", **two), tmp_path, (1, 2, 2))
    assert arrays.examples.x[:, 0].tolist() == [2, 4] and images.examples.x[:, 0, 0, 0].tolist() == [1, 2]


@pytest.mark.parametrize("shape", [(10**7, 10**7), (10**30, 1), (-4, 4)])
def test_an_image_whose_header_asks_for_too_much_is_absent(tmp_path: Path, shape: tuple[int, int]) -> None:
    (tmp_path / "scans" / "a").mkdir(parents=True)
    np.save(tmp_path / "scans" / "a" / "0.npy", np.ones((2, 2), np.uint8))
    with (tmp_path / "scans" / "a" / "1.npy").open("wb") as file:
        write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
        file.write(bytes(16))
    data = OwnData(source="./scans", classes=("a", "b"), channels=1)
    found = OwnRecords.read_apart(data, tmp_path, (1, 2, 2))
    assert (len(found), len(found.left_out)) == (1, 1)
    with pytest.raises(InvalidInput):
        OwnRecords.read(data, tmp_path)


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    for source in ("absent.csv", "absent.npz", "./absent"):
        with pytest.raises(InvalidInput):
            OwnRecords.read_apart(own(tmp_path / source, columns=None), tmp_path, (1,))
    for header in (b"", b"age,smoker,note\n", b"a,b,c,d\n"):
        with pytest.raises(InvalidInput):
            OwnRecords.read_apart(own(table(tmp_path / "own.csv", ROWS, header)), tmp_path, (1,))


# --- what travels -----------------------------------------------------------------------------------------------------


def fixed(round: int) -> Draw:
    return lambda clients: Keystream(bytes(KEY_BYTES), [0] * len(clients), 0)


class Silo:
    """A client that has joined, and the coordinator's request for its first report."""

    def __init__(self, folder: Path, write: Callable[[], object], data: dict[str, Any], **public: Any) -> None:
        write()
        self.folder = folder / "client"
        recipe = Recipe.from_dict(
            {
                "name": "absent", "data": {**data, **public}, "split": {"kind": "iid", "clients": 2},
                "model": {"name": "logistic"}, "rounds": {"count": 1},
                "method": {"name": "silo-dp", "noise_multiplier": 2.0, "sampling_rate": 0.9, "steps": 1,
                           "announced_size": 50},
            }
        )  # fmt: skip
        federation = wire(recipe)
        terms = CommonTerms.of(recipe, NAME, federation.dataset, KEY.author)
        plan = federation.method.plan(federation.method.init(), NAME)
        self.invitation = terms.invitation(0, KEY).encode()
        self.request = KEY.envelope("report", plan, terms.digest, range(2), plan.encode())
        settings = Settings.of(
            {
                "data": data, "budget": {"limit": 50.0, "delta": 1e-5, "adjacency": "record (add/remove)"},
                "coordinators": {NAME: KEY.author.first.hex()},
            }
        )  # fmt: skip
        Client.create(self.folder, settings).close()

    def join(self) -> None:
        with Client.open(self.folder) as client:
            client.join(self.invitation)

    def answer(self) -> tuple[bytes, int]:
        """What travels, and how many releases the ledger has."""
        with Client.open(self.folder, randomness=fixed) as client:
            client.join(self.invitation)  # as a server asks after a pause
            reply = client.reply("report", self.request)
            assert not reply.reason
            return body(reply.payload), client.standing.releases

    @property
    def log(self) -> str:
        return (self.folder / "log.txt").read_text()


@pytest.fixture
def numbers(tmp_path: Path) -> Callable[[str, str], Silo]:
    def made(name: str, extra: str) -> Silo:
        path = tmp_path / f"{name}.csv"
        rows = "x,y\n" + "".join(f"{k / 40:.3f},{k}\n" for k in range(60))
        data = {"source": str(path), "label": "y", "target": [0.0, 100.0], "mean": [0.0], "std": [1.0]}
        silo = Silo(tmp_path / name, lambda: path.write_text(rows), data, test=0.2)
        silo.join()
        path.write_text(rows + extra)
        return silo

    return made


def test_a_refused_record_changes_nothing_that_travels(numbers: Callable[[str, str], Silo]) -> None:
    without, outside, unclosed = numbers("a", ""), numbers("b", "0.5,101\n"), numbers("c", '"0.5,1\n')
    inside = numbers("d", "0.5,99\n")
    expected = without.answer()
    assert (outside.answer(), unclosed.answer()) == (expected, expected)
    assert len(inside.answer()[0]) == len(expected[0])
    assert ["WARNING" in silo.log for silo in (without, outside, unclosed, inside)] == [False, True, True, False]


def test_a_native_participant_tells_its_owner_and_nobody_else(numbers: Callable[[str, str], Silo]) -> None:
    answers, told = [], []
    for silo in (numbers("a", ""), numbers("b", "0.5,101\n")):
        said: list[str] = []
        with Client.open(silo.folder, randomness=fixed) as client:
            own = Participant(client, Link("http://localhost"), NAME, lambda _: False, said.append)
            joined = own._respond(Request(What.JOIN, payload=silo.invitation))
            reported = own._respond(Request(What.STEP, "report", silo.request))
        answers.append((joined.encode(), reported.fine, reported.payload, reported.reason))
        told.append(any("left out" in sentence for sentence in said))
    assert answers[0] == answers[1] and answers[0][1]
    assert told == [False, True]


def test_the_owner_hears_of_it_before_agreeing(numbers: Callable[[str, str], Silo], tmp_path: Path) -> None:
    silo = numbers("a", "0.5,101\n")
    (tmp_path / "i").write_bytes(silo.invitation)
    asked = ["client", "join", str(silo.folder), str(tmp_path / "i"), "--yes"]
    assert CliRunner().invoke(app, asked).exit_code == 0, "agreed before: nothing is refused any more"
    for path in (silo.folder / "federations" / NAME).iterdir():
        path.unlink()
    done = CliRunner().invoke(app, asked)
    assert done.exit_code != 0 and "line 62" in f"{done.output}{done.exception}"


def test_a_file_without_any_form_is_a_client_without_records(tmp_path: Path) -> None:
    path, x = tmp_path / "own.npz", np.linspace(0, 1, 60, dtype=np.float32).reshape(30, 2)
    y = np.arange(30) % 2
    data = {"source": str(path), "classes": ["a", "b"], "mean": [0.0], "std": [1.0]}
    silo = Silo(tmp_path, lambda: np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y), data)
    silo.join()
    np.savez(path, x=x, y=y.astype(float) / 0.7)
    assert silo.answer()[1] > 0
    assert "WARNING" in silo.log


def test_records_of_another_form_are_for_the_owner_to_hear_of_and_not_for_the_server(tmp_path: Path) -> None:
    """One record of the agreed form among them must not decide whether a client joins."""
    path, x = tmp_path / "own.npz", np.linspace(0, 1, 60, dtype=np.float32).reshape(30, 2)
    y = np.arange(30) % 2
    data = {"source": str(path), "classes": ["a", "b"], "mean": [0.0], "std": [1.0]}
    silo = Silo(tmp_path, lambda: np.savez(path, x_train=x, y_train=y, x_test=x, y_test=y), data)
    np.savez(path, x=x.reshape(20, 3), y=y[:20])
    (tmp_path / "i").write_bytes(silo.invitation)
    assert CliRunner().invoke(app, ["client", "join", str(silo.folder), str(tmp_path / "i"), "--yes"]).exit_code != 0
    silo.join()
    assert "WARNING" in silo.log and silo.answer()[1] > 0


@pytest.mark.parametrize("fits", [False, True])
@pytest.mark.parametrize("kind", ["images", "table"])
def test_no_invitation_finds_out_which_forms_records_have(tmp_path: Path, kind: str, fits: bool) -> None:
    """By invitations with one shape after the other a server would learn it, before any agreement, at no charge."""
    data = {"source": str(tmp_path / "scans/"), "channels": 1, "classes": ["a", "b"]}
    for name, side in [(f"{k:02}", 2) for k in range(20)] + [("odd", 3)] * fits:
        (tmp_path / "scans" / "a").mkdir(parents=True, exist_ok=True)
        np.save(tmp_path / "scans" / "a" / f"{name}.npy", np.ones((side, side), np.uint8))
    if kind == "table":
        data = {"source": str(tmp_path / "own.csv"), "label": -1, "classes": ["a", "b"]}
        (tmp_path / "own.csv").write_text("1,2,a\n" * 20 + "1,2,3,4,5,6,7,8,9,b\n" * fits)
    else:
        data["source"] += "/"
    public = {"mean": [0.0], "std": [1.0], "test": 0.2}
    recipe = Recipe.from_dict(
        {
            "name": "probe", "data": {**data, **public}, "split": {"kind": "iid", "clients": 2},
            "model": {"name": "logistic"}, "rounds": {"count": 1},
            "method": {"name": "silo-dp", "noise_multiplier": 2.0, "steps": 1, "announced_size": 50},
        }
    )  # fmt: skip
    shape = (1, 3, 3) if kind == "images" else (9,)
    terms = CommonTerms(NAME, recipe.to_toml(), shape, ("a", "b"), (0.0,), (1.0,), KEY.author.first.hex())
    message = terms.invitation(0, KEY).encode()
    budget = {"limit": 50.0, **RECORDS}
    given = {"data": data, "budget": budget, "consents": {"federations": [NAME]}}
    Client.create(tmp_path / "named", Settings.of({**given, "coordinators": {NAME: KEY.author.first.hex()}})).close()
    Client.create(tmp_path / "asked", Settings.of(given)).close()
    with Client.open(tmp_path / "named") as client:
        service = Service(client, tmp_path / "socket")
        assert service.respond(Request(What.JOIN, payload=message)) == Response(True)
        service._listening.close()
    shown: list[Offer] = []
    with Client.open(tmp_path / "asked") as client:
        own = Participant(client, Link("http://localhost"), NAME, lambda offer: bool(shown.append(offer)))
        with pytest.raises(NotJoined):
            own._respond(Request(What.JOIN, payload=message))
    assert [bool(offer.unreadable) for offer in shown] == [not fits], "for the owner to hear of"
    assert ("WARNING" in shown[0].to_text()) == (not fits)


@pytest.mark.parametrize("content", ["", "1,2,3\n", "1,a\n", "1,2,3,a\n"])
def test_nothing_in_a_table_without_a_header_makes_a_client_decline(tmp_path: Path, content: str) -> None:
    path = tmp_path / "own.csv"
    rows = "".join(f"{k / 40:.3f},{k % 3},{'ab'[k % 2]}\n" for k in range(40))
    data = {"source": str(path), "label": -1, "classes": ["a", "b"], "mean": [0.0], "std": [1.0]}
    silo = Silo(tmp_path, lambda: path.write_text(rows), data, test=0.2)
    silo.join()
    path.write_text(content)
    assert silo.answer()[1] > 0


# --- records that cannot be computed ----------------------------------------------------------------------------------

RECORDS = {"adjacency": "record (add/remove)", "delta": 1e-5}
SILO = {"model": {"name": "mlp"}, "method.sampling_rate": 1.0}
EVALUATED = {**SILO, "evaluation.private": {"share": 0.4, "every": 1, "target": {"epsilon": 200.0, "delta": 1e-5}}}
COMPUTING: dict[str, Recipe] = {
    "head": people.method_recipe("private-head").with_({"method.extractor": {"kind": "oriented", "cells": 4}}),
    "silo": people.method_recipe("silo-dp").with_(SILO),
    "evaluation": people.method_recipe("silo-dp").with_(EVALUATED),
}


def member_of(folder: Path, what: str, rows: str = "0-19") -> Client:
    """A client with these digits; all have the same noise, so that equal sums are equal bytes."""
    people.client(folder, people.settings(rows, budget=RECORDS)).close()
    client = Client.open(folder, randomness=fixed)
    client.join(people.invitation(COMPUTING[what]).encode())
    return client


def sent_by(client: Client, what: str) -> bytes:
    """What leaves in the first round, or in the evaluation after it."""
    given, step = COMPUTING[what], EVALUATE if what == "evaluation" else "report"
    federation = wire(given)
    plan = federation.method.plan(federation.method.init(), NAME)
    if federation.evaluation is not None:
        plan = federation.evaluation.plan(replace(federation.method.init(), round=1), NAME)
    reply = client.reply(step, people.signed(plan, step, given=given))
    assert not reply.reason
    return body(reply.payload)


def computed(client: Client, what: str) -> torch.Tensor:
    """The records that a client computes on."""
    member = client._member(NAME)
    own = member._held_out if what == "evaluation" else member._records
    data = None if own is None else own.normalised(member.invitation)
    assert data is not None
    return data.x


def meeting(monkeypatch: pytest.MonkeyPatch, act: Callable[[torch.Tensor], object]) -> None:
    """Let shipped code do this with the records that it meets."""
    features, gradients, answers = OrientedExtractor.__call__, StackedModel.gradients, evaluation.answers_alone

    def met(self: Any, x: torch.Tensor, kept: Any) -> torch.Tensor:
        act(x)
        return features(self, x, kept)

    def met_by_gradients(self: Any, parameters: Any, buffers: Any, batch: Any) -> Any:
        act(batch.x.flatten(0, 1))
        return gradients(self, parameters, buffers, batch)

    def met_by_answers(*given: Any) -> Any:
        answer = answers(*given)
        return lambda one: (act(one), answer(one))[1]

    monkeypatch.setattr(OrientedExtractor, "__call__", met)
    monkeypatch.setattr(StackedModel, "gradients", met_by_gradients)
    monkeypatch.setattr(evaluation, "answers_alone", met_by_answers)


@pytest.mark.parametrize("failure", [SystemExit, BaseException, MemoryError, torch.OutOfMemoryError])
@pytest.mark.parametrize("what", COMPUTING)
def test_a_record_that_cannot_be_computed_is_one_that_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str, failure: type[BaseException]
) -> None:
    """The others count: the sum is neither replaced by noise alone nor left out."""
    with member_of(tmp_path / "all", what) as client:
        odd = computed(client, what)[1]
        place = next(k for k, one in enumerate(client.records((1, 8, 8)).normalised(people.invitation()).x)
                     if torch.equal(one, odd))  # fmt: skip

        def fail(x: torch.Tensor) -> None:
            if any(torch.equal(one, odd) for one in x):
                raise failure("not this one")

        with monkeypatch.context() as patched:
            meeting(patched, fail)
            with_it = sent_by(client, what)
        assert not {"no change", "noise alone"} & set((client.folder / "log.txt").read_text().split("reported "))
    with member_of(tmp_path / "others", what, f"0-{place - 1}, {place + 1}-19") as client:
        assert sent_by(client, what) == with_it
    with member_of(tmp_path / "whole", what) as client:
        assert sent_by(client, what) != with_it


@pytest.mark.parametrize("what", COMPUTING)
def test_no_clock_decides_what_a_client_answers_about_its_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """One slow record more would overrun, and the sum would be noise alone."""
    with member_of(tmp_path / "a", what) as client:
        expected = sent_by(client, what)
    with member_of(tmp_path / "b", what) as client:
        client._member(NAME).seconds = 0.3
        computed(client, what)
        meeting(monkeypatch, lambda x: time.sleep(0.1))
        assert sent_by(client, what) == expected


@pytest.mark.parametrize("what", COMPUTING)
def test_a_client_without_records_answers_like_one_with_one(tmp_path: Path, what: str) -> None:
    answers = []
    for number, rows in enumerate(("0", "0-1")):
        path, x = tmp_path / f"{number}.npz", people.read_once("digits").train.x[:number]
        np.savez(path, x=x, y=people.read_once("digits").train.y[:number])
        data = {"source": str(path), "classes": [str(k) for k in range(10)]}
        folder = tmp_path / rows
        Client.create(folder, Settings.of({"data": data, "budget": {"limit": 1e6, **RECORDS}})).close()
        with Client.open(folder) as client:
            client.join(people.invitation(COMPUTING[what]).encode())
            answers.append((len(sent_by(client, what)), client.standing.spent))
    assert answers[0] == answers[1]


@pytest.mark.parametrize("failing", [False, True], ids=["", "fails at first"])
@pytest.mark.parametrize("name", people.METHODS)
def test_no_number_of_records_makes_a_client_of_any_method_decline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, failing: bool
) -> None:
    """Nor does a first round whose training failed change the form of a later answer."""
    recipe, answers = people.method_recipe(name), []
    budget = {"limit": 1e12, "adjacency": people.adjacency(name), "delta": 1e-5}
    for number in (0, 1, 7):
        path, digits = tmp_path / f"{number}.npz", people.read_once("digits").train
        np.savez(path, x=digits.x[:number], y=digits.y[:number])
        data = {"source": str(path), "classes": [str(k) for k in range(10)]}
        consents = {"unproven": ["labels", "randomised features", "randomised records"]}
        Client.create(
            tmp_path / str(number), Settings.of({"data": data, "budget": budget, "consents": consents})
        ).close()
        with Client.open(tmp_path / str(number)) as client:
            client.join(people.invitation(recipe).encode())
            found, of = [], people.plans(recipe)
            for round in (0, 1, 2) if client._member(NAME).prepares else (1, 2):
                with monkeypatch.context() as patched:
                    if failing and round == 1 and "ldpfl" not in name:  # of that, rounds see randomised records alone
                        patched.setattr(CohortTrainer, "train", lambda *_, **__: 1 // 0)
                    reply = client.reply("report" if round else "prepare", people.signed(of(round), given=recipe)
                                         if round else people.signed(of(0), "prepare", given=recipe))  # fmt: skip
                found.append((reply.reason, len(body(reply.payload)), client.standing.spent))
            answers.append(found)
    assert answers[0] == answers[1] == answers[2]
    assert not any(reason for reason, *_ in answers[0])


def test_an_exchange_with_a_record_that_is_left_out_has_no_finite_loss(tmp_path: Path) -> None:
    """LDPFL trains on as many records as there are: what is proven of an exchange says nothing of one fewer."""
    given = people.method_recipe("ldpfl")
    digits = OwnRecords.read(people.settings().data, tmp_path)
    for source in ("digits", "own.npz", "own.csv", "./scans", "rows of another name"):
        whole, others = source == "digits", {"disjoint_from": ("others",)}
        change = others if source.startswith("rows") else {"source": source}
        data = people.settings().data.model_copy(update=change)
        settings = people.settings().model_copy(update={"data": data})
        member = Membership(people.invitation(given), settings, digits)
        (features,) = (own for own in dict(member.schedule())[0] if own.what == "randomised features")
        assert isinstance(features.guarantees[0].loss, Infinite) == (not whole)
        assert not features.protects_records or whole


def test_own_code_that_reads_records_proves_nothing_of_one_of_them(tmp_path: Path) -> None:
    data = people.settings().data.model_copy(update={"source": "tests.learning.test_own_data:digits", "rows": None})
    given = COMPUTING["silo"]
    for own, infinite in ((data, True), (people.settings().data, False)):
        settings = people.settings(budget=RECORDS).model_copy(update={"data": own})
        member = Membership(people.invitation(given), settings, OwnRecords.read(people.settings().data, tmp_path))
        losses = {type(one.loss) for _, own in member.schedule() for release in own for one in release.guarantees}
        assert (losses == {Infinite}) == infinite


@pytest.mark.parametrize("window", [{}, {"rows": "0-19"}, {"train_limit": 20}], ids=["all", "rows", "train_limit"])
def test_records_taken_by_their_place_have_no_figure_for_one_that_is_removed(
    tmp_path: Path, window: dict[str, Any]
) -> None:
    """It brings another one in: two records differ."""
    classes = people.read_once("digits").classes
    lines = [
        ",".join(map(str, [*values, k % 10])) for k, values in enumerate(np.random.default_rng(1).random((30, 64)))
    ]
    taken = []
    for name, written in (("with.csv", lines), ("without.csv", lines[:5] + lines[6:])):
        (tmp_path / name).write_text("\n".join(written))
        data = OwnData(source=str(tmp_path / name), label=64, classes=classes, **window)
        taken.append(OwnRecords.read(data, tmp_path))
    first, second = ({x.tobytes() for x in records.examples.x} for records in taken)
    assert len(first ^ second) == (2 if window else 1)
    settings = people.settings(budget=RECORDS).model_copy(update={"data": data})
    member = Membership(replace(people.invitation(COMPUTING["silo"]), shape=(64,)), settings, taken[1])
    guarantees = [one for _, left in member.schedule() for release in left for one in release.guarantees]
    infinite = {one.adjacency: isinstance(one.loss, Infinite) for one in guarantees}
    assert infinite[Adjacency.RECORD_ADD_REMOVE] == bool(window) and not infinite[Adjacency.RECORD_REPLACE]


class OwnMean(AggregationSpec):
    """Every report counts alike, by somebody else's word."""

    kind: str = tag("own-mean", "every report counts alike")


@pytest.mark.parametrize("step", ["report", EVALUATE])
@pytest.mark.parametrize("own", [True, False])
def test_an_owner_hears_of_figures_that_an_earlier_version_stated_of_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: bool, step: str
) -> None:
    """In reports and in evaluations."""
    given = COMPUTING["evaluation"].with_({"method.name": f"{__name__}:Relabelled"} if own else {})
    people.client(tmp_path, people.settings(budget=RECORDS, code=list(given.own_code))).close()
    with monkeypatch.context() as earlier, Client.open(tmp_path) as client:
        earlier.setattr(Recipe, "own_code", ())
        client.join(people.invitation(given).encode())
        federation = wire(given)
        start = federation.method.init()
        plan = federation.method.plan(start, NAME)
        if step == EVALUATE:
            plan = federation.evaluation.plan(replace(start, round=1), NAME)
        body(client.answer(step, people.signed(plan, step, given=given)))
    with Client.open(tmp_path) as client:
        assert client.unproven_before() == ({NAME: 1} if own else {})
    assert ("WARNING" in (tmp_path / "log.txt").read_text()) == own


def test_a_damaged_invitation_stops_its_own_federation_alone(tmp_path: Path) -> None:
    with people.joined(tmp_path) as client:
        body(client.answer("report", people.signed(people.plans()(1))))
    (tmp_path / "federations" / NAME / "invitation.json").write_text("damaged")
    with Client.open(tmp_path) as client:
        assert client.unproven_before() == {}
        assert client.reply("report", people.signed(people.plans()(2))).reason


class Share(MetricSpec):
    """Of one's own: no share at all."""

    kind: str = tag("share", "none")

    def value(self, scores: Scores) -> float:
        return 0.0


class Never(StoppingSpec):
    """Of one's own: a run goes on."""

    kind: str = tag("never", "never")

    def reason(self, scores: Sequence[float]) -> str | None:
        return None


class Relabelled(SiloDp):
    """A method of one's own with the words of a shipped one: what it really sends, nobody knows."""

    class Spec(SiloDp.Spec):
        """Silos as shipped, under another name."""

        name: str = tag("relabelled", "as silo-dp")


OWN: dict[str, dict[str, Any]] = {
    "method": {"method.name": f"{__name__}:Relabelled"},
    "loss": {"model.loss": {"kind": "tests.learning.test_losses:squared"}},
    "aggregation": {"method.aggregation": {"kind": f"{__name__}:OwnMean"}},
    "metric": {"evaluation.metric": {"kind": f"{__name__}:Share"}},
    "stop": {"rounds.stop": {"kind": f"{__name__}:Never"}, "rounds.stop_on": "test"},
    "none": {},
}


@pytest.mark.parametrize("named_as_source", [False, True], ids=["", "source too"])
@pytest.mark.parametrize("own", OWN)
def test_own_code_in_a_recipe_leaves_nothing_proven_whatever_its_part(
    tmp_path: Path, own: str, named_as_source: bool
) -> None:
    """A client imports all of it, also what is for the server; another table that names the same address hides none."""
    given = COMPUTING["silo"].with_(OWN[own])
    settings = people.settings(budget=RECORDS, code=list(given.own_code))
    terms = people.terms(given)
    if named_as_source and given.own_code:
        terms = replace(terms, recipe=terms.recipe.replace('source = "digits"', f'source = "{given.own_code[0]}"'))
        assert terms != people.terms(given)
    member = Membership(terms.invitation(0, KEY), settings, OwnRecords.read(people.settings().data, tmp_path))
    guarantees = [one for _, left in member.schedule() for release in left for one in release.guarantees]
    if own == "none":
        assert not all(isinstance(one.loss, Infinite) for one in guarantees)
    else:
        assert all(isinstance(one.loss, Infinite) for one in guarantees)

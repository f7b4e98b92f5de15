"""Data sets known by name: read in their published formats, checked, fetched."""

import gzip
import hashlib
import io
import os
import sys
import tarfile
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.learning import datasets
from sordino.learning.datasets import (
    KNOWN,
    Checksum,
    DataDamaged,
    DataFile,
    DataUnavailable,
    Listing,
    check,
    fetch,
    known,
    load,
    locate,
    search_folders,
)
from sordino.learning.examples import Dataset, Examples, Normalisation

PUBLISHED = Path(os.environ.get("SORDINO_DATA") or Path(__file__).parents[3] / "shared" / "data")
AS_IT_IS = Normalisation()


def md5(content: bytes) -> Checksum:
    return Checksum("md5", hashlib.md5(content).hexdigest())


def made(name: str, folder: Path, contents: Mapping[str, bytes]) -> Listing:
    """A known set with small files of ours, written in the same places and formats, and their checksums."""
    listing = KNOWN[name]
    files = tuple(replace(file, checksums=(md5(contents[file.name]),)) for file in listing.files)
    for file in files:
        (folder / file.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / file.path).write_bytes(contents[file.name])
    return replace(listing, files=files)


def idx(values: NDArray[np.uint8]) -> bytes:
    header = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes()
    return gzip.compress(header + values.tobytes())


def idx_contents() -> dict[str, bytes]:
    """Three training and two test images; pixel (i, r, c) is 10i + r + 3c, so that a turned image shows."""
    i, r, c = np.meshgrid(np.arange(5), np.arange(28), np.arange(28), indexing="ij")
    x, y = (10 * i + r + 3 * c).astype(np.uint8), np.array([5, 0, 9, 7, 2], np.uint8)
    return {
        "train-images-idx3-ubyte.gz": idx(x[:3]),
        "train-labels-idx1-ubyte.gz": idx(y[:3]),
        "t10k-images-idx3-ubyte.gz": idx(x[3:]),
        "t10k-labels-idx1-ubyte.gz": idx(y[3:]),
    }


def matrix(count: int, first_label: int) -> bytes:
    from scipy.io import savemat

    x = np.zeros((32, 32, 3, count), np.uint8)
    x[1, 2, 0] = np.arange(count)  # row 1, column 2, red
    buffer = io.BytesIO()
    savemat(buffer, {"X": x, "y": np.full((count, 1), first_label, np.uint8)})
    return buffer.getvalue()


def pack(members: Mapping[str, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


# --- values -----------------------------------------------------------------------------------------------------------


def test_examples_are_taken_by_position() -> None:
    examples = Examples(np.arange(6, dtype=np.float32).reshape(3, 2), np.array([0, 1, 2]))
    taken = examples.take(np.array([2, 0]))
    assert len(examples) == 3
    assert taken.x.tolist() == [[4, 5], [0, 1]]
    assert taken.y.tolist() == [2, 0]


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (np.zeros((2, 3)), [0, 1], "got float64 of shape"),
        (np.zeros(2, np.float32), [0, 1], "got float32 of shape"),
        (np.zeros((2, 28, 28), np.uint8), [0, 1], r"uint8 of shape \[2, 28, 28\]"),
        (np.zeros((2, 0), np.float32), [0, 1], r"of shape \[2, 0\]"),
        (np.zeros((2, 3), np.float32), [0], "2 examples"),
        (np.zeros((2, 3), np.float32), [0.0, 1.0], "y must be int64"),
        (np.array([[0, 1], [np.nan, 1]], np.float32), [0, 1], "row 1 of x holds NaN"),
        (np.array([[np.inf, 1], [0, 1]], np.float32), [0, 1], "row 0 of x"),
    ],
)
def test_wrong_examples_are_refused(x: Any, y: list[int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Examples(x, np.array(y))


def test_normalisation_by_channel_and_by_feature() -> None:
    pixels = np.array([[[[0, 255]], [[51, 102]]]], np.uint8)  # one image, two channels, one row of two
    out = Normalisation.of_pixels([0.5, 0.2], [0.5, 0.1]).apply(pixels)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, [[[[-1, 1]], [[0, 2]]]], atol=1e-6)
    features = np.array([[1, 10], [3, 30]], np.float32)
    np.testing.assert_allclose(Normalisation((1, 10), (2, 20)).apply(features), [[0, 0], [1, 1]])
    assert features.tolist() == [[1, 10], [3, 30]]  # a copy was normalised


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0, 1), (1,), "2 and 1"),
        ((0,), (0,), "standard deviations positive"),
        ((float("nan"),), (1,), "means must be finite"),
        ((), (), "as many means"),
    ],
)
def test_impossible_normalisation_is_refused(mean: Any, std: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Normalisation(mean, std)


def test_normalisation_must_fit_the_examples() -> None:
    with pytest.raises(InvalidInput, match="3 constants for 2"):
        Normalisation((0, 0, 0), (1, 1, 1)).apply(np.zeros((4, 2), np.float32))


def small(labels: list[int], width: int = 2) -> Examples:
    return Examples(np.zeros((len(labels), width), np.float32), np.array(labels, np.int64))


@pytest.mark.parametrize(
    ("train", "test", "classes", "message"),
    [
        (small([0, 2]), small([0]), ("a", "b"), "toy, train: row 1 .*label 2"),
        (small([0]), small([1, -1]), ("a", "b"), "toy, test: row 1 .*-1"),
        (small([0]), small([0], 3), ("a", "b"), r"\[2\], test.*\[3\]"),
        (small([0]), small([0]), ("a", "a"), "classes must differ"),
        (small([0]), small([0]), ("a",), "at least two names"),
        (small([0]), small([0]), "ab", "at least two names"),
    ],
)
def test_inconsistent_data_sets_are_refused(train: Examples, test: Examples, classes: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Dataset("toy", train, test, classes, AS_IT_IS, "here", "none")


# --- the known sets ---------------------------------------------------------------------------------------------------


def test_digits_are_built_in_with_a_fixed_cut() -> None:
    from sklearn.datasets import load_digits

    digits = load("digits", folders=[])
    assert (len(digits.train), len(digits.test), digits.shape) == (1500, 297, (1, 8, 8))
    everything = np.concatenate([digits.train.x, digits.test.x]).reshape(1797, 64)
    assert sorted(map(bytes, everything)) == sorted(map(bytes, load_digits().data.astype(np.uint8)))
    assert (everything.min(), everything.max()) == (0, 16)
    assert digits.normalisation.apply(digits.train.x).max() == 1
    assert np.bincount(digits.test.y).tolist() == [32, 31, 28, 37, 26, 27, 32, 20, 31, 33]
    assert hashlib.md5(digits.test.x.tobytes()).hexdigest() == "82149217366655077ef756c6d4ef7462"


@pytest.mark.parametrize("name", [name for name in KNOWN if name != "digits"])
def test_the_published_files_load_whole(name: str) -> None:
    """Runs where the files are; the made files below pin the same behaviour everywhere."""
    listing = known(name)
    if None in locate(listing, [PUBLISHED]):
        pytest.skip(f"the files of {name} are not in {PUBLISHED}")
    dataset = load(name, folders=[PUBLISHED])
    assert (len(dataset.train), len(dataset.test)) == listing.sizes
    assert dataset.shape == listing.shape
    assert dataset.train.x.flags.writeable
    counts = np.bincount(dataset.train.y, minlength=len(listing.classes))
    assert counts.min() > 0
    first = {"mnist": [5, 0, 4, 1, 9], "fashion-mnist": [9, 0, 0, 3, 0], "cifar-10": [6, 9, 9, 4, 1]}
    if name in first:
        assert dataset.train.y[:5].tolist() == first[name]
    if name != "covertype":  # published constants: the pixels come out with mean 0 and deviation 1, nearly
        sample = dataset.normalisation.apply(dataset.train.x[:4000])
        assert abs(sample.mean()) < 0.05
        assert abs(sample.std() - 1) < 0.05
    else:
        assert counts[0] + np.bincount(dataset.test.y)[0] == 211_840


@pytest.mark.parametrize("name", ["mnist", "fashion-mnist"])
def test_idx_files_keep_rows_and_columns(tmp_path: Path, name: str) -> None:
    dataset = load(made(name, tmp_path, idx_contents()), folders=[tmp_path])
    assert dataset.train.x.shape == (3, 1, 28, 28)
    assert dataset.train.x[2, 0, 1, 4] == 20 + 1 + 12
    assert dataset.train.y.tolist() == [5, 0, 9]
    assert dataset.test.y.tolist() == [7, 2]
    assert dataset.licence == KNOWN[name].licence


def test_cifar10_batches_are_label_then_planes(tmp_path: Path) -> None:
    def batch(label: int) -> bytes:
        row = np.zeros(3073, np.uint8)
        row[[0, 1 + 1024 + 32 + 5]] = label, 200  # green, row 1, column 5
        return row.tobytes()

    contents = {f"data_batch_{n}.bin": batch(n) for n in range(1, 6)} | {"test_batch.bin": batch(9)}
    dataset = load(made("cifar-10", tmp_path, contents), folders=[tmp_path])
    assert dataset.train.y.tolist() == [1, 2, 3, 4, 5]
    assert dataset.test.y.tolist() == [9]
    assert dataset.train.x[4, 1, 1, 5] == 200
    assert dataset.train.x.sum() == 5 * 200


def test_svhn_matrices_are_turned_and_ten_means_zero(tmp_path: Path) -> None:
    contents = {"train_32x32.mat": matrix(3, 10), "test_32x32.mat": matrix(2, 4)}
    dataset = load(made("svhn", tmp_path, contents), folders=[tmp_path])
    assert dataset.train.y.tolist() == [0, 0, 0]
    assert dataset.test.y.tolist() == [4, 4]
    assert dataset.train.x[:, 0, 1, 2].tolist() == [0, 1, 2]
    assert dataset.train.x.sum() == 3


def test_svhn_extra_joins_the_training_part(tmp_path: Path) -> None:
    contents = {f"{part}_32x32.mat": matrix(n, n) for n, part in enumerate(("train", "extra", "test"), 1)}
    dataset = load(made("svhn-extra", tmp_path, contents), folders=[tmp_path])
    assert dataset.train.y.tolist() == [1, 2, 2]
    assert dataset.test.y.tolist() == [3, 3, 3]


def test_the_svhn_subset_says_that_it_is_one(tmp_path: Path) -> None:
    x = np.zeros((2, 32, 32, 3), np.uint8)
    x[1, 4, 5, 2] = 9
    buffer = io.BytesIO()
    np.savez(buffer, X_train=x, y_train=np.array([3, 0], np.uint8), X_test=x[:1], y_test=np.array([8], np.uint8))
    listing = made("svhn-subset", tmp_path, {"svhn_cropped_subset.npz": buffer.getvalue()})
    dataset = load(listing, folders=[tmp_path])
    assert dataset.train.x[1, 2, 4, 5] == 9
    assert dataset.train.y.tolist() == [3, 0]
    assert "SUBSET" in listing.title
    assert dataset.name == "svhn-subset"


def covertype_rows(rows: int) -> str:
    return "".join(f"{n},{-n}," + "0," * 51 + f"1,{n % 7 + 1}\n" for n in range(rows))


def test_covertype_rows_become_features_and_labels_from_zero(tmp_path: Path) -> None:
    listing = made("covertype", tmp_path, {"covtype.data.gz": gzip.compress(covertype_rows(581).encode())})
    dataset = load(listing, folders=[tmp_path])
    assert (len(dataset.train), len(dataset.test)) == (499, 82)
    x = np.concatenate([dataset.train.x, dataset.test.x])
    y = np.concatenate([dataset.train.y, dataset.test.y])
    assert sorted(x[:, 0].tolist()) == list(range(581))
    assert (y == x[:, 0] % 7).all()
    assert (x[:, 1] == -x[:, 0]).all()
    again = load(listing, folders=[tmp_path])
    assert (again.test.x == dataset.test.x).all()


def test_a_file_packed_differently_is_known_by_its_content(tmp_path: Path) -> None:
    text = covertype_rows(50).encode()
    sums = (
        Checksum("sha256", "0" * 64),
        Checksum("sha256 of the unpacked content", hashlib.sha256(text).hexdigest()),
    )
    listing = KNOWN["covertype"]
    listing = replace(listing, files=(replace(listing.files[0], checksums=sums),))
    path = tmp_path / "covtype" / "covtype.data.gz"
    path.parent.mkdir()
    for level in (1, 9):
        path.write_bytes(gzip.compress(text, level))
        assert len(load(listing, folders=[tmp_path]).train) == 43
    path.write_bytes(gzip.compress(text[:-1]))
    with pytest.raises(DataDamaged, match=r"covtype\.data\.gz.*sha256"):
        load(listing, folders=[tmp_path])
    path.write_bytes(gzip.compress(text)[:-20])
    assert [state.state for state in check(listing, [tmp_path])] == ["damaged"]


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"'mnits'.*digits, mnist"):
        load("mnits")


def test_listings_are_complete() -> None:
    for name, listing in KNOWN.items():
        assert name == listing.name
        assert listing.licence
        assert listing.source.startswith("http")
        listing.normalisation.check(listing.shape)
        for file in listing.files:
            assert file.checksums
            assert not file.path.startswith("/")
        if name not in ("digits", "svhn-subset"):
            homes = [listing.archive] if listing.archive else listing.files
            assert all(home is not None and home.urls[0].startswith("https://") for home in homes)
            assert listing.download_size > 1e6


# --- on disk ----------------------------------------------------------------------------------------------------------


def test_the_named_folder_comes_before_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, cache = tmp_path / "mine", tmp_path / "cache"
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    monkeypatch.delenv("SORDINO_DATA", raising=False)
    assert search_folders() == (cache / "sordino",)
    mine.mkdir()
    monkeypatch.setenv("SORDINO_DATA", str(mine))
    assert search_folders() == (mine, cache / "sordino")
    listing = made("mnist", cache / "sordino", idx_contents())
    assert load(listing).train.y.tolist() == [5, 0, 9]
    made("mnist", mine, idx_contents())
    assert {path.parent.parent.parent for path in locate(listing) if path} == {mine}


def test_a_named_folder_that_is_not_there_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(InvalidInput, match=r"SORDINO_DATA.*nowhere'"):
        load("mnist")
    assert len(load("digits").test) == 297  # needs no folder


@pytest.mark.parametrize(
    ("platform", "variable", "place"),
    [
        ("linux", "XDG_CACHE_HOME", "given/sordino"),
        ("linux", None, ".cache/sordino"),
        ("darwin", None, "Library/Caches/sordino"),
        ("win32", "LOCALAPPDATA", "given/sordino/Cache"),
        ("win32", None, "AppData/Local/sordino/Cache"),
    ],
)
def test_the_cache_is_where_the_system_keeps_caches(
    platform: str, variable: str | None, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    if variable:
        monkeypatch.setenv(variable, str(tmp_path / "given"))
    assert datasets.cache_folder() == tmp_path / place


@pytest.mark.parametrize("damage", ["truncated", "altered", "empty"])
def test_damaged_files_are_never_used(tmp_path: Path, damage: str) -> None:
    listing = made("mnist", tmp_path / "first", idx_contents())
    made("mnist", tmp_path / "second", idx_contents())
    path = tmp_path / "first" / "MNIST" / "raw" / "t10k-images-idx3-ubyte.gz"
    content = path.read_bytes()
    altered = bytearray(content)
    altered[len(content) // 2] ^= 1
    path.write_bytes({"truncated": content[:-1], "altered": bytes(altered), "empty": b""}[damage])
    with pytest.raises(DataDamaged, match=r"t10k-images-idx3-ubyte\.gz.*md5.*data fetch mnist"):
        load(listing, folders=[tmp_path / "first", tmp_path / "second"])
    states = check(listing, [tmp_path / "first"])
    assert [state.state for state in states] == ["intact", "intact", "damaged", "intact"]
    assert [state.state for state in check(listing, [tmp_path / "nowhere"])] == ["not here"] * 4


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (gzip.compress(b"\x00\x00\x0d\x01"), "IDX header"),
        (gzip.compress(b""), "IDX header"),
        (gzip.compress(b"\x00\x00\x08\x01\x00\x00\x00\x09abc"), r"3 values.*\[9\]"),
        (b"not gzip at all", "Not a gzipped file"),
        (idx(np.array([1, 2], np.uint8)), "3 examples"),
    ],
    ids=["wrong type", "empty", "too short", "not gzip", "too few"],  # gzip writes the time into its bytes
)
def test_files_with_the_right_sum_but_the_wrong_content_are_damaged(
    tmp_path: Path, content: bytes, message: str
) -> None:
    listing = made("mnist", tmp_path, idx_contents() | {"train-labels-idx1-ubyte.gz": content})
    with pytest.raises(DataDamaged, match=message):
        load(listing, folders=[tmp_path])


# --- from a server ----------------------------------------------------------------------------------------------------


class Served(SimpleHTTPRequestHandler):
    """Serves a folder in silence; names that begin with `short-` break off in the middle."""

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if not self.path.startswith("/short-"):
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        self.wfile.write(b"x" * 1000)
        return None


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder, and the address on loopback below which it is served."""
    monkeypatch.setenv("no_proxy", "*")
    served = tmp_path / "served"
    served.mkdir()
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), lambda *a: Served(*a, directory=str(served)))  # type: ignore[arg-type]
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield served, f"http://127.0.0.1:{httpd.server_port}"
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def serve(served: Path, contents: Mapping[str, bytes]) -> None:
    for name, content in contents.items():
        (served / name).write_bytes(content)


def left_over(folder: Path) -> list[str]:
    return [path.name for path in folder.rglob("*") if path.is_file()]


@pytest.mark.network
def test_missing_files_are_fetched_once(server: tuple[Path, str], tmp_path: Path) -> None:
    served, address = server
    contents = idx_contents()
    listing = made("mnist", tmp_path / "first", contents)
    (tmp_path / "first" / listing.files[1].path).unlink()
    (tmp_path / "first" / listing.files[2].path).unlink()
    serve(served, {listing.files[1].name: contents[listing.files[1].name]})
    serve(served, {listing.files[2].name: contents[listing.files[2].name]})
    folders = [tmp_path / "first", tmp_path / "cache"]
    dataset = load(listing, folders=folders, mirror=address + "/")
    assert dataset.train.y.tolist() == [5, 0, 9]
    assert sorted(left_over(tmp_path / "cache")) == sorted(file.name for file in listing.files[1:3])
    assert (tmp_path / "cache" / listing.files[1].path).stat().st_mode & 0o444 == (
        tmp_path / "first" / listing.files[0].path
    ).stat().st_mode & 0o444
    for path in served.iterdir():
        path.unlink()
    assert len(fetch(listing, folders=folders, mirror=address)) == 4  # all here: the server is not asked


@pytest.mark.network
def test_an_archive_gives_its_files_and_nothing_else(server: tuple[Path, str], tmp_path: Path) -> None:
    served, address = server
    rows = {f"data_batch_{n}.bin": bytes([n]) + bytes(3072) for n in range(1, 6)}
    rows["test_batch.bin"] = bytes([9]) + bytes(3072)
    listing = made("cifar-10", tmp_path / "made", rows)
    packed = pack({file.path: rows[file.name] for file in listing.files} | {"../outside": b"x", "/etc/no": b"x"})
    assert listing.archive is not None
    listing = replace(listing, archive=replace(listing.archive, checksums=(md5(packed),)))
    serve(served, {"cifar-10-binary.tar.gz": packed})
    dataset = load(listing, folders=[tmp_path / "cache"], mirror=address)
    assert dataset.train.y.tolist() == [1, 2, 3, 4, 5]
    assert sorted(left_over(tmp_path / "cache")) == sorted(rows)
    assert not (tmp_path / "outside").exists()


@pytest.mark.network
@pytest.mark.parametrize("fault", ["member missing", "member altered", "not an archive", "a folder"])
def test_wrong_archives_leave_nothing_wrong_behind(server: tuple[Path, str], tmp_path: Path, fault: str) -> None:
    served, address = server
    file = DataFile("cifar-10-batches-bin/test_batch.bin", (md5(b"right"),))
    packed = {
        "member missing": pack({"other": b"right"}),
        "member altered": pack({file.path: b"wrong"}),
        "not an archive": b"plain",
        "a folder": pack({f"{file.path}/inside": b"right"}),
    }[fault]
    archive = DataFile("a.tar.gz", (md5(packed),), ("https://example.org/a.tar.gz",))
    listing = replace(KNOWN["cifar-10"], files=(file,), archive=archive)
    serve(served, {"a.tar.gz": packed})
    with pytest.raises(
        DataUnavailable, match=r"archive.*\n.*\n  cifar-10-batches-bin/test_batch\.bin\nThey are inside"
    ):
        fetch(listing, folders=[tmp_path / "cache"], mirror=address)
    assert left_over(tmp_path / "cache") == []


@pytest.mark.network
def test_another_address_is_tried_when_one_fails(server: tuple[Path, str], tmp_path: Path) -> None:
    served, address = server
    serve(served, {"wrong": b"wrong", "right": b"right"})
    urls = tuple(f"{address}/{name}" for name in ("absent", "wrong", "short-one", "right"))
    listing = replace(KNOWN["svhn-subset"], files=(DataFile("svhn/a.npz", (md5(b"right"),), urls),))
    assert fetch(listing, folders=[tmp_path]) == (tmp_path / "svhn" / "a.npz",)
    assert (tmp_path / "svhn" / "a.npz").read_bytes() == b"right"
    assert left_over(tmp_path / "svhn") == ["a.npz"]


@pytest.mark.network
def test_what_came_wrong_is_told_and_not_kept(server: tuple[Path, str], tmp_path: Path) -> None:
    served, address = server
    serve(served, {"wrong": b"wrong"})
    urls = tuple(f"{address}/{name}" for name in ("absent", "wrong", "short-one"))
    listing = replace(KNOWN["mnist"], files=(DataFile("MNIST/raw/a.gz", (md5(b"right"),), urls),))
    with pytest.raises(DataUnavailable) as refusal:
        fetch(listing, folders=[tmp_path / "cache"])
    message = str(refusal.value)
    assert f"{address}/absent: the server answers 404" in message
    assert f"{address}/wrong: what came is damaged, its md5 is" in message
    assert f"{address}/short-one: " in message
    assert "it has 1,000 bytes" in message
    assert left_over(tmp_path / "cache") == []


@pytest.mark.network
def test_without_a_network_the_error_says_which_files_to_put_where(server: tuple[Path, str], tmp_path: Path) -> None:
    with pytest.raises(DataUnavailable) as refusal:
        load("mnist", folders=[tmp_path / "cache"], mirror="http://127.0.0.1:1/")
    message = str(refusal.value)
    assert "MNIST handwritten digits is not on this machine and could not be downloaded" in message
    assert f"Put these files below {tmp_path / 'cache'}, or below a folder that SORDINO_DATA names:" in message
    for file in KNOWN["mnist"].files:
        assert f"  {file.path}   from https://" in message


def test_a_set_without_a_public_home_says_so(tmp_path: Path) -> None:
    with pytest.raises(DataUnavailable, match=r"it has no public home\.\n.*the whole, which is 'svhn'"):
        load("svhn-subset", folders=[tmp_path])


@pytest.mark.network
def test_a_folder_that_cannot_be_written_is_told_apart_from_the_network(
    server: tuple[Path, str], tmp_path: Path
) -> None:
    (tmp_path / "cache").write_text("a file, not a folder")
    with pytest.raises(DataUnavailable, match=r"written below .*cache"):
        fetch("mnist", folders=[tmp_path / "cache"], mirror=server[1])


@pytest.mark.parametrize("mirror", ["file:///etc", "ftp://example.org", "example.org"])
def test_mirrors_are_web_addresses(mirror: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="https:// or http://"):
        fetch("mnist", folders=[tmp_path], mirror=mirror)

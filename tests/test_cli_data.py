"""`sordino data list|fetch|check`, as its users call it."""

import gzip
import hashlib
import json
import threading
import warnings
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sordino.learning import datasets
from sordino.learning.datasets import KNOWN, Checksum, DataFile

with warnings.catch_warnings():  # typer imports names that click has deprecated
    warnings.simplefilter("ignore", DeprecationWarning)
    from click.testing import Result
    from typer.testing import CliRunner

    from sordino.cli import app


def sordino(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


def as_json(*arguments: object, exit_code: int = 0) -> list[dict[str, Any]]:
    result = sordino(*arguments, "--json")
    assert result.exit_code == exit_code, result.output
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows


def idx(values: list[Any]) -> bytes:
    array = np.array(values, np.uint8)
    return gzip.compress(
        bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes(), mtime=0
    )


CONTENTS = {
    "train-images-idx3-ubyte.gz": idx([[[1, 2]], [[3, 4]]]),
    "train-labels-idx1-ubyte.gz": idx([0, 1]),
    "t10k-images-idx3-ubyte.gz": idx([[[5, 6]]]),
    "t10k-labels-idx1-ubyte.gz": idx([2]),
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder SORDINO_DATA names, and a small MNIST among the known sets, whose files are not there yet."""

    def small(file: DataFile) -> DataFile:
        return replace(file, checksums=(Checksum("md5", hashlib.md5(CONTENTS[file.name]).hexdigest()),))

    listing = replace(KNOWN["mnist"], files=tuple(map(small, KNOWN["mnist"].files)))
    monkeypatch.setattr(datasets, "KNOWN", {"digits": KNOWN["digits"], "mnist": listing})
    monkeypatch.setenv("SORDINO_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(datasets, "cache_folder", lambda: tmp_path / "cache" / "sordino")
    monkeypatch.setenv("no_proxy", "*")
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


def put(folder: Path, **changes: bytes) -> None:
    (folder / "MNIST" / "raw").mkdir(parents=True)
    for name, content in CONTENTS.items():
        (folder / "MNIST" / "raw" / name).write_bytes(changes.get(name.split("-idx")[0].replace("-", "_"), content))


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def mirror(tmp_path: Path) -> Iterator[str]:
    served = tmp_path / "served"
    served.mkdir()
    for name, content in CONTENTS.items():
        (served / name).write_bytes(content)
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(served)))
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{httpd.server_port}"
    finally:
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def test_list_says_what_is_where(folder: Path) -> None:
    text = sordino("list").stdout
    assert "built in" in text
    assert "not here" in text
    assert "60,000" in text
    assert "CC BY-SA 3.0" in text
    assert f"Looked in {folder} and " in text
    put(folder)
    rows = {row["name"]: row for row in as_json("list")}
    assert rows["mnist"]["found"] == str(folder / "MNIST" / "raw")
    assert rows["mnist"]["licence"] == "CC BY-SA 3.0"
    assert rows["digits"]["found"] == "built in"
    (folder / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").unlink()
    assert "not here (3 of 4 files)" in sordino("list").stdout
    assert as_json("list")[1]["found"] is None


def test_list_shows_every_shipped_set() -> None:
    assert [row["name"] for row in as_json("list")] == list(KNOWN)
    assert "SUBSET" in sordino("list").stdout


@pytest.mark.network
def test_fetch_downloads_into_the_cache_and_then_all_is_well(folder: Path, mirror: str) -> None:
    assert sordino("check", "mnist").exit_code == 1  # nothing here yet
    result = sordino("fetch", "mnist", "--mirror", mirror)
    assert result.exit_code == 0, result.output
    assert result.stdout.count("intact") == 4
    assert (folder.parent / "cache" / "sordino" / "MNIST" / "raw" / "t10k-labels-idx1-ubyte.gz").is_file()
    assert not any(folder.iterdir())
    assert [row["state"] for row in as_json("check", "mnist")] == ["intact"] * 4
    assert datasets.load("mnist").train.y.tolist() == [0, 1]


@pytest.mark.network
def test_fetch_into_a_folder_of_ones_own(folder: Path, mirror: str, tmp_path: Path) -> None:
    assert sordino("fetch", "mnist", "--mirror", mirror, "--to", tmp_path / "mine").exit_code == 0
    assert len(list((tmp_path / "mine" / "MNIST" / "raw").iterdir())) == 4


@pytest.mark.network
def test_fetch_without_a_network_says_which_files_to_put_where(folder: Path) -> None:
    result = sordino("fetch", "mnist", "--mirror", "http://127.0.0.1:1")
    assert result.exit_code == 1
    assert "Refused: MNIST handwritten digits is not on this machine" in result.stderr
    assert "MNIST/raw/train-images-idx3-ubyte.gz" in result.stderr
    assert "SORDINO_DATA" in result.stderr


def test_embedded_sets_need_no_fetching(folder: Path) -> None:
    result = sordino("fetch", "digits")
    assert result.exit_code == 0
    assert "nothing to fetch" in result.stdout


def test_check_finds_damage(folder: Path) -> None:
    put(folder, t10k_images=b"torn")
    result = sordino("check")
    assert result.exit_code == 1
    assert "damaged" in result.stdout
    assert "it has 4 bytes" in result.stdout
    assert [row["state"] for row in as_json("check", exit_code=1)] == ["intact", "intact", "damaged", "intact"]
    refused = sordino("fetch", "mnist")
    assert refused.exit_code == 1
    assert "t10k-images-idx3-ubyte.gz is damaged" in refused.stderr
    assert "Delete it and run `sordino data fetch mnist`" in refused.stderr


def test_check_of_everything_passes_over_what_is_not_here(folder: Path) -> None:
    assert as_json("check") == []
    assert sordino("check").exit_code == 0
    assert sordino("check", "digits").exit_code == 0
    assert [row["state"] for row in as_json("check", "mnist", exit_code=1)] == ["not here"] * 4


@pytest.mark.parametrize("command", ["fetch", "check"])
def test_unknown_names_are_refused(command: str) -> None:
    result = sordino(command, "mnits")
    assert result.exit_code == 1
    assert "Refused: unknown data set 'mnits'; known are digits, mnist" in result.stderr

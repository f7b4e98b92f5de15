"""Data sets that are known by name, found on disk or fetched, and checked against published sums.

Their files are looked for in the folder that `SORDINO_DATA` names, then in the user's cache, and are downloaded from
their public homes otherwise. Every load compares their checksums. Class lists and normalisation constants are published
ones.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import sys
import tarfile
import tomllib
import urllib.error
import urllib.parse
import urllib.request
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter

from sordino.errors import InvalidInput, SordinoError
from sordino.learning.examples import Dataset, Examples, Inputs, Labels, Normalisation
from sordino.learning.partition import by_sizes

Paths = Sequence[Path]

FOLDER_VARIABLE = "SORDINO_DATA"
TIMEOUT_SECONDS = 30
CHUNK_BYTES = 1 << 20


class DataUnavailable(SordinoError):
    """Files of a data set are not on this machine and could not be fetched; the message says which to put where."""


class DataDamaged(SordinoError):
    """A file of a data set is truncated, altered or not what its name says; it is never used."""


# --- the sets known by name -------------------------------------------------------------------------------------------

Kind = Literal["md5", "sha256", "sha256 of the unpacked content"]


@dataclass(frozen=True)
class Checksum:
    """A published sum of a file, or of what a gzip file unpacks to."""

    kind: Kind
    value: str

    def of(self, path: Path) -> str:
        """The checksum of a file, of the same kind."""
        digest = hashlib.md5(usedforsecurity=False) if self.kind == "md5" else hashlib.sha256()
        unpacked = self.kind == "sha256 of the unpacked content"
        with gzip.open(path) if unpacked else path.open("rb") as file:
            while chunk := file.read(CHUNK_BYTES):
                digest.update(chunk)
        return digest.hexdigest()


@dataclass(frozen=True)
class DataFile:
    """One file of a set: its place below a data folder, sums of which one must fit, and its public addresses."""

    path: str
    checksums: tuple[Checksum, ...]
    urls: tuple[str, ...] = ()
    size: int = 0  #: bytes to download, for display

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[-1]


@dataclass(frozen=True)
class Listing:
    """A data set known by name; where `archive` is given, its files are fetched together inside that tar file."""

    name: str
    title: str
    sizes: tuple[int, int]
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    normalisation: Normalisation
    source: str
    licence: str
    format: str  #: how its files are read: a key of FORMATS
    files: tuple[DataFile, ...] = ()
    archive: DataFile | None = None
    note: str = ""
    unit_interval: Normalisation | None = None  #: brings every value between 0 and 1

    @property
    def download_size(self) -> int:
        return self.archive.size if self.archive else sum(file.size for file in self.files)


def known(name: str | Listing) -> Listing:
    """The listing of a known data set; a listing stands for itself."""
    if isinstance(name, Listing):
        return name
    if name not in KNOWN:
        raise InvalidInput(f"unknown data set {name!r}; known are {', '.join(KNOWN)}")
    return KNOWN[name]


def load(name: str | Listing, *, folders: Paths | None = None, mirror: str | None = None) -> Dataset:
    """A known data set, from disk or else from its public home, with its checksums compared."""
    listing = known(name)
    paths = fetch(listing, folders=folders, mirror=mirror)
    with _decoding(listing.name):
        train, test = FORMATS[listing.format](paths)
    return Dataset(listing.name, train, test, listing.classes, listing.normalisation, listing.source, listing.licence)


@contextmanager
def _decoding(what: object) -> Iterator[None]:
    """Files that are not in their format are damaged, whatever error their reader meets."""
    try:
        yield
    except (InvalidInput, ValueError, KeyError, TypeError, OSError, EOFError, zlib.error) as error:
        raise DataDamaged(f"{what}: the files cannot be read as what their names say ({error})") from None


def _read_digits(_: Paths) -> tuple[Examples, Examples]:
    """The 1,797 test images of Alpaydin and Kaynak's set, in the order that scikit-learn has them in."""
    with np.load(Path(__file__).with_name("digits.npz")) as digits:
        return _cut(digits["x"][:, None], digits["y"].astype(np.int64), 1500)


def _cut(x: Inputs, y: Labels, train: int) -> tuple[Examples, Examples]:
    """For sets published without a test part: a fixed random cut, the same for everyone (its seed is the size)."""
    first, rest = by_sizes(len(y), [train, len(y) - train], seed=len(y))
    return Examples(x[first], y[first]), Examples(x[rest], y[rest])


def _read_idx_pairs(paths: Paths) -> tuple[Examples, Examples]:
    train_x, train_y, test_x, test_y = map(_read_idx, paths)
    return (
        Examples(train_x[:, None], train_y.astype(np.int64)),
        Examples(test_x[:, None], test_y.astype(np.int64)),
    )


def _read_idx(path: Path) -> NDArray[np.uint8]:
    """LeCun's IDX format: two zero bytes, type 8 (uint8), the number of dimensions, each as big-endian u32, values."""
    with gzip.open(path) as file:
        data = file.read()
    if data[:3] != b"\x00\x00\x08" or len(data) < 4 + 4 * data[3]:
        raise InvalidInput(f"{path} has no IDX header of bytes")
    shape = np.frombuffer(data, ">u4", data[3], 4).tolist()
    values = np.frombuffer(data, np.uint8, offset=4 + 4 * data[3])
    if values.size != int(np.prod(shape)):
        raise InvalidInput(f"{path} holds {values.size:,} values, its header says {shape}")
    return values.reshape(shape).copy()


def _read_cifar10(paths: Paths) -> tuple[Examples, Examples]:
    """Rows of one label byte and 3,072 pixel bytes, already in the order channel, row, column."""
    parts = [np.fromfile(path, np.uint8).reshape(-1, 1 + 3072) for path in paths]
    return _cifar10_examples(np.concatenate(parts[:-1])), _cifar10_examples(parts[-1])


def _cifar10_examples(rows: NDArray[np.uint8]) -> Examples:
    return Examples(rows[:, 1:].reshape(-1, 3, 32, 32).copy(), rows[:, 0].astype(np.int64))


def _read_svhn(paths: Paths) -> tuple[Examples, Examples]:
    *train, test = [_read_svhn_matrix(path) for path in paths]
    if len(train) == 1:
        return train[0], test
    return Examples(np.concatenate([p.x for p in train]), np.concatenate([p.y for p in train])), test


def _read_svhn_matrix(path: Path) -> Examples:
    """A MATLAB file with X `[32, 32, 3, n]` and y `[n, 1]`, in which the digit 0 has the label 10."""
    from scipy.io import loadmat

    values = loadmat(path)
    x = np.ascontiguousarray(values["X"].transpose(3, 2, 0, 1))
    return Examples(x, values["y"].reshape(-1).astype(np.int64) % 10)


def _read_svhn_subset(paths: Paths) -> tuple[Examples, Examples]:
    with np.load(paths[0], allow_pickle=False) as values:
        x_train, x_test = (
            np.ascontiguousarray(values[f"X_{part}"].transpose(0, 3, 1, 2)) for part in ("train", "test")
        )
        y_train, y_test = (values[f"y_{part}"].astype(np.int64) for part in ("train", "test"))
    return Examples(x_train, y_train), Examples(x_test, y_test)


def _read_covertype(paths: Paths) -> tuple[Examples, Examples]:
    with gzip.open(paths[0], "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",", dtype=np.int16, ndmin=2)
    return _cut(table[:, :-1].astype(np.float32), table[:, -1].astype(np.int64) - 1, len(table) * 500_000 // 581_012)


#: what turns the files of a set, in order, into training and test examples, by the name of their format
FORMATS: Mapping[str, Callable[[Paths], tuple[Examples, Examples]]] = {
    "digits": _read_digits,
    "idx": _read_idx_pairs,
    "cifar-10": _read_cifar10,
    "svhn": _read_svhn,
    "svhn-subset": _read_svhn_subset,
    "covertype": _read_covertype,
}


def _catalogue() -> dict[str, Listing]:
    """The listings of `datasets.toml`."""
    tables = tomllib.loads(Path(__file__).with_name("datasets.toml").read_text(encoding="utf-8"))
    for name, table in tables.items():
        table["name"] = name
        if pixels := table.pop("pixels", None):
            table["normalisation"] = Normalisation.of_pixels(**pixels)
    return TypeAdapter(dict[str, Listing]).validate_python(tables)


KNOWN: Mapping[str, Listing] = MappingProxyType(_catalogue())


# --- on disk ----------------------------------------------------------------------------------------------------------


def cache_folder() -> Path:
    """Where downloads go: the user's cache, as the operating system names it."""
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local") / "sordino" / "Cache"
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "sordino"
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sordino"


def search_folders() -> tuple[Path, ...]:
    """Where files are looked for, in order; the last is where downloads go."""
    named = os.environ.get(FOLDER_VARIABLE)
    if not named:
        return (cache_folder(),)
    folder = Path(named).expanduser()
    if not folder.is_dir():
        raise InvalidInput(f"{FOLDER_VARIABLE} names {named!r}, which is not a folder: correct or unset it")
    return (folder, cache_folder())


def locate(name: str | Listing, folders: Paths | None = None) -> tuple[Path | None, ...]:
    """Where each file of a set lies; None where it is in none of the folders."""
    where = search_folders() if folders is None else folders
    places = ([folder / file.path for folder in where] for file in known(name).files)
    return tuple(next((path for path in paths if path.is_file()), None) for paths in places)


@dataclass(frozen=True)
class FileState:
    """What a check found about one file; `fault` says what is wrong with a damaged one."""

    file: DataFile
    path: Path | None
    state: Literal["intact", "damaged", "not here"]
    fault: str = ""


def check(name: str | Listing, folders: Paths | None = None) -> tuple[FileState, ...]:
    """Compare the checksum of every file of a set that is here."""
    found = []
    for file, path in zip(known(name).files, locate(name, folders), strict=True):
        fault = _fault(path, file.checksums) if path else ""
        found.append(FileState(file, path, "damaged" if fault else "intact" if path else "not here", fault))
    return tuple(found)


def _fault(path: Path, checksums: Iterable[Checksum]) -> str:
    """Empty if one of the sums fits, else what was found and expected."""
    found = ""
    for checksum in checksums:
        try:
            value = checksum.of(path)
        except (OSError, EOFError, zlib.error) as error:
            found = found or f"it cannot be read ({error})"
            continue
        if value == checksum.value:
            return ""
        found = found or f"its {checksum.kind} is {value}, the published one {checksum.value}"
    return f"{found}; it has {path.stat().st_size:,} bytes"


# --- from their public homes ------------------------------------------------------------------------------------------


def fetch(name: str | Listing, *, folders: Paths | None = None, mirror: str | None = None) -> tuple[Path, ...]:
    """The checked files of a set, in order, downloading those that are in none of the folders into the last one.

    `mirror` is an address below which the files lie by their bare names, in place of the set's public homes.
    """
    listing = known(name)
    if not listing.files:
        return ()
    where = tuple(search_folders() if folders is None else folders)
    states = check(listing, where)
    for state in states:
        if state.state == "damaged":
            raise DataDamaged(
                f"{state.path} is damaged: {state.fault}. Delete it and run `sordino data fetch {listing.name}`, or "
                "put an undamaged copy in its place"
            )
    if missing := [state.file for state in states if state.path is None]:
        _fetch_missing(listing, missing, where[-1], mirror)
    return tuple(path for path in locate(listing, where) if path is not None)


class _Unreachable(Exception):
    """One address did not give the file; there may be another."""


def _fetch_missing(listing: Listing, missing: Sequence[DataFile], folder: Path, mirror: str | None) -> None:
    try:
        if listing.archive:
            with _temporary(folder / listing.archive.path) as packed:
                _download(listing.archive, packed, mirror)
                _unpack(packed, missing, folder)
        else:
            for file in missing:
                with _temporary(folder / file.path) as part:
                    _download(file, part, mirror)
                    part.replace(folder / file.path)
    except _Unreachable as error:
        raise DataUnavailable(_what_to_put_where(listing, missing, folder, str(error))) from None
    except OSError as error:
        raise DataUnavailable(
            f"{listing.title} could not be written below {folder} ({error}): free some space, or name another folder "
            f"by {FOLDER_VARIABLE} and put the files there"
        ) from None


def _what_to_put_where(listing: Listing, missing: Sequence[DataFile], folder: Path, why: str) -> str:
    lines = [f"{listing.title} is not on this machine and could not be downloaded: {why}."]
    if listing.note:
        lines.append(f"({listing.note})")
    lines.append(f"Put these files below {folder}, or below a folder that {FOLDER_VARIABLE} names:")
    lines += [f"  {file.path}" + (f"   from {file.urls[0]}" if file.urls else "") for file in missing]
    if listing.archive:
        lines.append(f"They are inside {listing.archive.urls[0]}")
    return "\n".join(lines)


@contextmanager
def _temporary(target: Path) -> Iterator[Path]:
    """A name beside the target for a file that is not complete yet; whatever is left there goes away."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        yield part
    finally:
        part.unlink(missing_ok=True)


def _download(file: DataFile, target: Path, mirror: str | None) -> None:
    """From the first address that gives the file with the right checksum."""
    reasons = []
    for url in _addresses(file, mirror):
        try:
            _copy(url, target, file)
        except _Unreachable as error:
            reasons.append(f"{url}: {error}")
            continue
        fault = _fault(target, file.checksums)
        if not fault:
            return
        reasons.append(f"{url}: what came is damaged, {fault}")
    raise _Unreachable("; ".join(reasons) or "it has no public home")


def _addresses(file: DataFile, mirror: str | None) -> tuple[str, ...]:
    if mirror is None:
        return file.urls
    if urllib.parse.urlsplit(mirror).scheme not in ("http", "https"):
        raise InvalidInput(f"a mirror is an address that starts with https:// or http://, got {mirror!r}")
    return (f"{mirror.rstrip('/')}/{file.name}",)


def _copy(url: str, target: Path, file: DataFile) -> None:
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    columns = (TextColumn(f"Downloading {file.name}"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
    request = urllib.request.Request(url, headers={"User-Agent": "sordino"})
    with _reaching():
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    with (
        answer,
        target.open("wb") as out,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task(file.name, total=int(answer.headers.get("Content-Length") or 0) or file.size)
        while True:
            with _reaching():
                chunk = answer.read(CHUNK_BYTES)
            if not chunk:
                return
            out.write(chunk)
            progress.advance(task, len(chunk))


@contextmanager
def _reaching() -> Iterator[None]:
    """What goes wrong here is the address's fault, and not the disk's."""
    try:
        yield
    except (OSError, http.client.HTTPException) as error:
        raise _Unreachable(_reason(error)) from None


def _reason(error: Exception) -> str:
    if isinstance(error, urllib.error.HTTPError):
        return f"the server answers {error.code} {error.reason}"
    return str(error.reason if isinstance(error, urllib.error.URLError) else error) or type(error).__name__


def _unpack(packed: Path, wanted: Sequence[DataFile], folder: Path) -> None:
    """Only the files asked for leave the archive, each under its own name and checked."""
    try:
        with tarfile.open(packed) as archive:
            for file in wanted:
                member = archive.extractfile(file.path)
                if member is None:
                    raise _Unreachable(f"the archive's {file.path} is not a file")
                with _temporary(folder / file.path) as part:
                    part.write_bytes(member.read())
                    if fault := _fault(part, file.checksums):
                        raise _Unreachable(f"the archive's {file.path} is damaged, {fault}")
                    part.replace(folder / file.path)
    except (tarfile.TarError, KeyError, EOFError, zlib.error) as error:
        raise _Unreachable(f"the archive cannot be unpacked ({str(error).partition(chr(10))[0]})") from None

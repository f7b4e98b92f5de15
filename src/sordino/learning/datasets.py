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
from typing import IO, Any, Literal

import numpy as np
from numpy.typing import NDArray

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
        """The same sum of the file at hand."""
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
    """A data set known by name. `read` turns its files, in order, into training and test examples.

    Where `archive` is given, the files are fetched together inside that tar file.
    """

    name: str
    title: str
    sizes: tuple[int, int]
    shape: tuple[int, ...]
    classes: tuple[str, ...]
    normalisation: Normalisation
    source: str
    licence: str
    read: Callable[[Paths], tuple[Examples, Examples]]
    files: tuple[DataFile, ...] = ()
    archive: DataFile | None = None
    note: str = ""

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
        train, test = listing.read(paths)
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


def _idx_files(folder: str, homes: Sequence[str], sums: Sequence[str], sizes: Sequence[int]) -> tuple[DataFile, ...]:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    return tuple(
        DataFile(
            f"{folder}/raw/{name}-ubyte.gz",
            (Checksum("md5", md5),),
            tuple(f"{home}{name}-ubyte.gz" for home in homes),
            size,
        )
        for name, md5, size in zip(names, sums, sizes, strict=True)
    )


_TEN_DIGITS = tuple("0123456789")

_DIGITS = Listing(
    "digits",
    "Handwritten digits, 8x8",
    (1_500, 297),
    (1, 8, 8),
    _TEN_DIGITS,
    Normalisation((0.0,), (16.0,)),
    "https://archive.ics.uci.edu/dataset/80/optical+recognition+of+handwritten+digits",
    "CC BY 4.0",
    _read_digits,
    note="comes with Sordino; pixels 0 to 16; cut at random, the same for everyone",
)

_MNIST = Listing(
    "mnist",
    "MNIST handwritten digits",
    (60_000, 10_000),
    (1, 28, 28),
    _TEN_DIGITS,
    Normalisation.of_pixels([0.1307], [0.3081]),
    "http://yann.lecun.com/exdb/mnist/",
    "CC BY-SA 3.0",
    _read_idx_pairs,
    _idx_files(
        "MNIST",
        ["https://ossci-datasets.s3.amazonaws.com/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"],
        [
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ],
        [9_912_422, 28_881, 1_648_877, 4_542],
    ),
)

_FASHION_MNIST = Listing(
    "fashion-mnist",
    "Fashion-MNIST articles of clothing",
    (60_000, 10_000),
    (1, 28, 28),
    ("T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot"),
    Normalisation.of_pixels([0.2860], [0.3530]),
    "https://github.com/zalandoresearch/fashion-mnist",
    "MIT",
    _read_idx_pairs,
    _idx_files(
        "FashionMNIST",
        [
            "https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion/",
            "https://storage.googleapis.com/tensorflow/tf-keras-datasets/",
        ],
        [
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ],
        [26_421_880, 29_515, 4_422_102, 5_148],
    ),
)

_CIFAR10 = Listing(
    "cifar-10",
    "CIFAR-10 photographs",
    (50_000, 10_000),
    (3, 32, 32),
    ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    Normalisation.of_pixels([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616]),
    "https://www.cs.toronto.edu/~kriz/cifar.html",
    "none stated; cite Krizhevsky (2009)",
    _read_cifar10,
    tuple(
        DataFile(f"cifar-10-batches-bin/{name}.bin", (Checksum("md5", md5),))
        for name, md5 in (
            ("data_batch_1", "5dd7e06a14cb22eb9f671a540d1b7c25"),
            ("data_batch_2", "5ea93a67294ea407fff1d09f752e9692"),
            ("data_batch_3", "942cd6a4bcdd0dd3c604fbe906cb4421"),
            ("data_batch_4", "ae636b3ba5c66a11e91e8cb52e771fcb"),
            ("data_batch_5", "53f37980c15c3d472c316c40844f3f0d"),
            ("test_batch", "803d5f7f4d78ea53de84dbe85f74fb6d"),
        )
    ),
    DataFile(
        "cifar-10-binary.tar.gz",
        (Checksum("md5", "c32a1d4ab5d03f1284b67883e8d87530"),),
        ("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",),
        170_052_171,
    ),
)


def _svhn_file(part: str, md5: str, size: int) -> DataFile:
    url = f"https://ufldl.stanford.edu/housenumbers/{part}_32x32.mat"
    return DataFile(f"svhn/{part}_32x32.mat", (Checksum("md5", md5),), (url, url.replace("https:", "http:")), size)


_SVHN_TRAIN = _svhn_file("train", "e26dedcc434d2e4c54c9b2d4a06d8373", 182_040_794)
_SVHN_TEST = _svhn_file("test", "eb5a983be6a315427106f1b164d9cef3", 64_275_384)
_SVHN_EXTRA = _svhn_file("extra", "a93ce644f1a588dc4d68dda5feec44a7", 1_329_278_602)


def _svhn(
    name: str, title: str, sizes: tuple[int, int], files: tuple[DataFile, ...], read: Any = _read_svhn, note: str = ""
) -> Listing:
    return Listing(
        name,
        title,
        sizes,
        (3, 32, 32),
        _TEN_DIGITS,
        Normalisation.of_pixels([0.4377, 0.4438, 0.4728], [0.1980, 0.2010, 0.1970]),
        "http://ufldl.stanford.edu/housenumbers/",
        "non-commercial use only",
        read,
        files,
        note=note,
    )


_SVHN = _svhn("svhn", "Street View house numbers, cropped", (73_257, 26_032), (_SVHN_TRAIN, _SVHN_TEST))
_SVHN_WITH_EXTRA = _svhn(
    "svhn-extra",
    "SVHN with its extra part",
    (604_388, 26_032),
    (_SVHN_TRAIN, _SVHN_EXTRA, _SVHN_TEST),
    note="train and extra together; loading takes several GB of memory",
)
_SVHN_SUBSET = _svhn(
    "svhn-subset",
    "SVHN, a SUBSET only",
    (4_000, 1_500),
    (DataFile("svhn/svhn_cropped_subset.npz", (Checksum("md5", "b49aec7b367f6891600c58f2d056e1f9"),)),),
    _read_svhn_subset,
    note="the first 4,000 and 1,500 digits, not comparable with the whole, which is 'svhn'; no public home",
)

_COVERTYPE = Listing(
    "covertype",
    "Forest cover types, 54 features",
    (500_000, 81_012),
    (54,),
    ("Spruce/Fir", "Lodgepole Pine", "Ponderosa Pine", "Cottonwood/Willow", "Aspen", "Douglas-fir", "Krummholz"),
    # Ten measurements, with means and deviations from the set's own description (covtype.info), and 44 indicators.
    Normalisation(
        (2959.36, 155.65, 14.10, 269.43, 46.42, 2350.15, 212.15, 223.32, 142.53, 1980.29) + (0.0,) * 44,
        (279.98, 111.91, 7.49, 212.55, 58.30, 1559.25, 26.77, 19.77, 38.27, 1324.19) + (1.0,) * 44,
    ),
    "https://archive.ics.uci.edu/dataset/31/covertype",
    "CC BY 4.0",
    _read_covertype,
    (
        DataFile(
            "covtype/covtype.data.gz",
            (
                Checksum("sha256", "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771"),
                Checksum(
                    "sha256 of the unpacked content",
                    "0a9371cef7c964b5475d6053cc3e0894a5aa6f65ad1ed3ecb01c45aa96217945",
                ),
            ),
            (
                "https://archive.ics.uci.edu/ml/machine-learning-databases/covtype/covtype.data.gz",
                "https://ndownloader.figshare.com/files/5976039",
            ),
            11_240_707,
        ),
    ),
    note="cut at random, the same for everyone",
)

KNOWN: Mapping[str, Listing] = MappingProxyType(
    {
        listing.name: listing
        for listing in (
            _DIGITS,
            _MNIST,
            _FASHION_MNIST,
            _CIFAR10,
            _SVHN,
            _SVHN_WITH_EXTRA,
            _SVHN_SUBSET,
            _COVERTYPE,
        )
    }
)


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
    return tuple(_first_of(folder / file.path for folder in where) for file in known(name).files)


def _first_of(paths: Iterable[Path]) -> Path | None:
    return next((path for path in paths if path.is_file()), None)


@dataclass(frozen=True)
class FileState:
    """What a check found about one file; `fault` says what is wrong with a damaged one."""

    file: DataFile
    path: Path | None
    state: Literal["intact", "damaged", "not here"]
    fault: str = ""


def check(name: str | Listing, folders: Paths | None = None) -> tuple[FileState, ...]:
    """Compare the checksum of every file of a set that is here."""
    return tuple(_state(file, path) for file, path in zip(known(name).files, locate(name, folders), strict=True))


def _state(file: DataFile, path: Path | None) -> FileState:
    if path is None:
        return FileState(file, None, "not here")
    fault = _fault(path, file.checksums)
    return FileState(file, path, "damaged" if fault else "intact", fault)


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
    _refuse_damaged(listing, where)
    missing = [file for file, path in zip(listing.files, locate(listing, where), strict=True) if path is None]
    if missing:
        _fetch_missing(listing, missing, where[-1], mirror)
    return tuple(path for path in locate(listing, where) if path is not None)


def _refuse_damaged(listing: Listing, folders: Paths) -> None:
    for state in check(listing, folders):
        if state.state == "damaged":
            raise DataDamaged(
                f"{state.path} is damaged: {state.fault}. Delete it and run `sordino data fetch {listing.name}`, or "
                "put an undamaged copy in its place"
            )


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
    with (
        _answer(url) as (answer, length),
        target.open("wb") as out,
        Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress,
    ):
        task = progress.add_task(file.name, total=length or file.size)
        for chunk in _chunks(answer):
            out.write(chunk)
            progress.advance(task, len(chunk))


@contextmanager
def _answer(url: str) -> Iterator[tuple[IO[bytes], int]]:
    request = urllib.request.Request(url, headers={"User-Agent": "sordino"})
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS)
    except (OSError, http.client.HTTPException) as error:
        raise _Unreachable(_reason(error)) from None
    with answer:
        yield answer, int(answer.headers.get("Content-Length") or 0)


def _chunks(answer: IO[bytes]) -> Iterator[bytes]:
    """What arrives, piece by piece; a connection that breaks is the address's fault, not the disk's."""
    while True:
        try:
            chunk = answer.read(CHUNK_BYTES)
        except (OSError, http.client.HTTPException) as error:
            raise _Unreachable(_reason(error)) from None
        if not chunk:
            return
        yield chunk


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

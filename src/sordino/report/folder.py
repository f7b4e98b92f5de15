"""A run's folder on disk: everything that a run leaves behind, readable with any editor, safe against crashes.

recipe.toml        the recipe as given           environment.json   where and how it ran
metrics.jsonl      one line per round            result.json        what it came to
statement.json     the privacy statement, exact  statement.txt      the same in plain text
timing.json        where the time went, if asked  attacks.json       what attacks on it found, if any
model.safetensors  the trained model             report.html        the page to open
checkpoint/        what a resumed run starts from
.lock              held by the process that runs it, and gone when it is done
"""

from __future__ import annotations

import itertools
import json
import os
import platform
import re
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

import sordino
from sordino.errors import InvalidInput
from sordino.report.records import Result, RoundRecord, from_json, to_line, to_page
from sordino.storage.files import (
    NotWritten,
    append_line,
    exclusive_lock,
    is_draft,
    keep_lines,
    last_line,
    make_folder,
    remove_drafts,
    sync_folder,
    whole_lines,
    write_whole,
)

if TYPE_CHECKING:
    from sordino.privacy.statement import Statement

_PACKAGES = (
    "numpy", "scipy", "torch", "cryptography", "dp-accounting", "pydantic", "safetensors", "flwr",
)  # fmt: skip


MODEL = "model.safetensors"  #: the trained model
LOCK = ".lock"  #: the file that the process which runs a run holds
DATA_CHECK = "data.check"  #: which own data a run began with, for its owner alone: no page, recipe or result has it
BEGINNINGS = frozenset({"environment.json", DATA_CHECK})  #: what lies there before the recipe makes it a run


def environment(device: str | None = None, code: Mapping[str, str] | None = None) -> dict[str, object]:
    """Where and how this process runs: versions, machine, command line and the time it is."""
    versions = {name: _version(name) for name in _PACKAGES}
    return {
        "sordino": sordino.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "machine": platform.machine(),
        "cpus": os.cpu_count(),
        "device": device,
        "code": dict(code or {}),
        "versions": {name: version for name, version in versions.items() if version is not None},
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def unused_folder(base: Path | str, name: str) -> Path:
    """Make and return `base/name`, or `base/name-2`, `base/name-3`, ... where that is taken.

    The folder is made here, so that two runs that start at once do not get the same.
    """
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", name):
        raise InvalidInput(f"a run's name is made of letters, digits, '-', '_' and '.', got {name!r}")
    make_folder(Path(base))
    for number in itertools.count(1):
        path = Path(base) / (name if number == 1 else f"{name}-{number}")
        try:
            path.mkdir()
            break
        except FileExistsError:
            continue
        except OSError as error:
            raise NotWritten(f"the folder {path} could not be made ({error.strerror}); choose another --out") from None
    sync_folder(path.parent)
    return path


def read_model(path: Path) -> tuple[dict[str, NDArray[np.generic]], dict[str, str]]:
    """A model's arrays by name, and the texts saved with them."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        raise InvalidInput(f"{path.parent} holds no model yet: it is written when the run is over")
    try:
        with safe_open(path, framework="np") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, dict(file.metadata() or {})  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise InvalidInput(f"{path} is damaged or not a model: {error}") from None


@contextmanager
def alone(path: Path | str) -> Iterator[None]:
    """Be the only process that runs what is in this folder, which is made if need be; `InUse` where another one is.

    What killed processes left half-written there is removed.
    """
    folder = Path(path)
    make_folder(folder)
    with exclusive_lock(folder / LOCK, f"the run in {folder}"):
        for part in (folder, folder / "checkpoint", folder / "checkpoint/clients"):
            remove_drafts(part)
        yield


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run; made with `create`, found again with `open`."""

    path: Path

    @classmethod
    def create(
        cls,
        path: Path | str,
        recipe: str,
        *,
        device: str | None = None,
        code: Mapping[str, str] | None = None,
        check: bytes | None = None,
    ) -> RunFolder:
        """Start a run in a new or empty folder, with the recipe's text and this process's environment.

        `code` is the digest of each part of somebody's own, and of each file of weights, that the recipe names; `check`
        tells which data was handed in, and is readable by its owner alone.
        """
        folder = cls(Path(path))
        make_folder(folder.path)
        folder.check_free()
        write_whole(folder.path / "environment.json", to_page(environment(device, code)).encode())
        if check is not None:
            write_whole(folder.path / DATA_CHECK, check, 0o600)
        # The recipe comes last: a folder with a recipe is a run, and everything else can be counted on.
        write_whole(folder.path / "recipe.toml", recipe.encode())
        return folder

    @classmethod
    def open(cls, path: Path | str) -> RunFolder:
        """The folder of a run that exists."""
        folder = cls(Path(path))
        if not (folder.path / "recipe.toml").is_file():
            raise InvalidInput(
                f"{folder.path} is not a run's folder: it has no recipe.toml. Give the folder that 'sordino run' made"
            )
        return folder

    def check_free(self) -> None:
        """Refuse a folder in which no run can start, because something lies there."""
        present = [path for path in sorted(self.path.iterdir()) if path.name != LOCK and not is_draft(path)]
        if (self.path / "recipe.toml").exists():
            raise InvalidInput(
                f"{self.path} already holds a run, which is left as it is. Continue it with --resume, or choose "
                "another folder with --out"
            )
        if present and not ({path.name for path in present} <= BEGINNINGS and self._never_began()):
            raise InvalidInput(
                f"{self.path} is not empty (it holds {present[0].name!r}), and a run needs a folder of its own. Choose "
                "another with --out"
            )

    def _never_began(self) -> bool:
        """Whether it holds the description of an environment that this program wrote: then nothing would be lost."""
        try:
            return {"sordino", "started"} <= set(self.environment)
        except (InvalidInput, OSError):
            return False

    # --- rounds ---

    @property
    def _metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    def append_round(self, record: RoundRecord) -> None:
        """Write one round down, durable on return; rounds come in order."""
        last = self._last_round()
        if record.round <= last:
            raise InvalidInput(
                f"round {record.round} cannot follow round {last} in {self._metrics}; a run that goes on "
                "from a checkpoint drops the rounds after it first (truncate_rounds)"
            )
        append_line(self._metrics, to_line(record).encode())

    def rounds(self) -> tuple[RoundRecord, ...]:
        """All rounds that were written to their end."""
        lines = whole_lines(self._metrics)
        rounds = tuple(self._round(f"line {number}", line) for number, line in enumerate(lines, 1))
        for number, (before, after) in enumerate(pairwise(rounds), 2):
            if after.round <= before.round:
                raise InvalidInput(f"{self._metrics}, line {number}: round {after.round} follows round {before.round}")
        return rounds

    def truncate_rounds(self, last: int) -> None:
        """Drop the rounds after round `last`: a resumed run writes them anew."""
        keep_lines(self._metrics, sum(record.round <= last for record in self.rounds()))

    def _last_round(self) -> int:
        line = last_line(self._metrics)
        return 0 if line is None else self._round("last line", line).round

    def _round(self, where: str, line: bytes) -> RoundRecord:
        try:
            return from_json(RoundRecord, json.loads(line))
        except ValueError as error:
            raise InvalidInput(f"{self._metrics}, {where}: {error}") from None

    # --- what it came to ---

    def write_result(self, result: Result) -> None:
        """Write down what the run came to."""
        write_whole(self.path / "result.json", to_page(result).encode())

    def result(self) -> Result | None:
        """What the run came to; none while it is not over."""
        packed = self._json("result.json")
        try:
            return None if packed is None else from_json(Result, packed)
        except InvalidInput as error:
            raise InvalidInput(f"{self.path / 'result.json'}: {error}") from None

    def final_result(self) -> Result | None:
        """The result of a run that is over and has its page, the last of its files; none while it has not."""
        return self.result() if (self.path / "report.html").exists() else None

    def write_statement(self, statement: Statement) -> None:
        """Write the privacy statement down, exactly and in plain text."""
        from sordino.report.statement import to_json, to_text

        write_whole(self.path / "statement.json", to_page(to_json(statement)).encode())
        write_whole(self.path / "statement.txt", to_text(statement).encode())

    def statement(self) -> Statement | None:
        """The privacy statement; none where there is none yet."""
        from sordino.privacy.statement import Statement

        packed = self._json("statement.json")
        return None if packed is None else Statement.from_json(packed)

    def write_model(self, arrays: Mapping[str, NDArray[np.generic]], metadata: Mapping[str, str] | None = None) -> None:
        """Write the model's arrays down by name, with texts about them."""
        from safetensors.numpy import save

        if wrong := [f"{name} ({array.dtype})" for name, array in arrays.items() if array.dtype.kind not in "biuf"]:
            raise InvalidInput(f"a model is saved as arrays of real numbers; these are not: {', '.join(wrong)}")
        # safetensors writes an array's memory as it lies, so that it must lie in order, the lowest byte first.
        laid_out = {
            name: np.asarray(array, dtype=array.dtype.newbyteorder("<"), order="C") for name, array in arrays.items()
        }
        write_whole(self.path / MODEL, save(laid_out, metadata=dict(metadata or {})))

    def model(self) -> tuple[dict[str, NDArray[np.generic]], dict[str, str]]:
        """The model's arrays by name, and the texts saved with them."""
        return read_model(self.path / MODEL)

    def write_report(self, page: str) -> None:
        """Write the page down, in place of an earlier one."""
        write_whole(self.path / "report.html", page.encode())

    def write_timing(self, timing: Mapping[str, object]) -> None:
        """Write down where the time went (`Timeline.to_json`)."""
        write_whole(self.path / "timing.json", to_page(timing).encode())

    # --- what it started from ---

    @property
    def recipe(self) -> str:
        """The recipe's text as it was given."""
        try:
            return (self.path / "recipe.toml").read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise InvalidInput(f"{self.path / 'recipe.toml'} is no text ({error}): restore it from a backup") from None

    @property
    def environment(self) -> dict[str, object]:
        """Where and how it ran."""
        return self._json("environment.json") or {}

    @property
    def checkpoint(self) -> Path:
        """Where the run keeps what a resumed run starts from."""
        return self.path / "checkpoint"

    def _json(self, name: str) -> dict[str, object] | None:
        path = self.path / name
        if not path.exists():
            return None
        try:
            packed = json.loads(path.read_bytes())
        except ValueError as error:
            raise InvalidInput(f"{path} is damaged: {error}") from None
        if not isinstance(packed, dict):
            raise InvalidInput(f"{path} is damaged: expected a JSON object")
        return packed

"""What a client keeps in files: agreements, what it carries from round to round, and what it made before the first.

Every file is written whole or not at all. What belongs to a report lies in a file that is named after the plan it
answers and is written before the ledger's entry: without that entry it counts for nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file, save

from sordino.client.invitation import Invitation
from sordino.client.sum_progress import SumFolder
from sordino.methods.interface import ClientState
from sordino.storage.files import make_folder, reading, write_whole
from sordino.wire.signing import Author

KEPT_STATES = 2  #: files of earlier rounds that stay beside the last one


@dataclass(frozen=True)
class Agreements:
    """A folder for each federation that the owner agreed to."""

    folder: Path

    def names(self) -> list[str]:
        """All federations agreed to."""
        return sorted(path.parent.name for path in self.folder.glob("*/invitation.json"))

    def find(self, federation: str) -> Invitation | None:
        """The terms that were agreed to; None where there are none."""
        path = self.folder / federation / "invitation.json"
        if not path.is_file():
            return None
        with reading(path, "restore it, or agree anew under another name"):
            return Invitation.agreed(path.read_bytes())

    def add(self, invitation: Invitation, statement: str, data: str) -> None:
        """Write down the terms, the recipe, the statement as it was shown, and the name of the data."""
        place = self.folder / invitation.federation
        make_folder(place)
        write_whole(place / "statement.txt", statement.encode())
        write_whole(place / "recipe.toml", invitation.recipe.encode())
        write_whole(place / "data", data.encode())
        self.keep_rotations(invitation.federation, invitation.rotations)
        write_whole(place / "invitation.json", invitation.stored())  # last: now it is agreed

    def data(self, federation: str) -> str:
        """The name of the data that a federation was joined with; empty where that is not written down."""
        return _text(self.folder / federation / "data")

    def author(self, federation: str, agreed: Invitation) -> Author:
        """Who signs plans in a federation: the key that was agreed to, and what was written down of its rotations."""
        path = self.folder / federation / "rotations.json"
        with reading(path):
            rotations = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else ()
            return Author.of(agreed.coordinator, rotations)

    def keep_rotations(self, federation: str, rotations: Sequence[str]) -> None:
        """Write down which keys signed after the first."""
        write_whole(self.folder / federation / "rotations.json", json.dumps(list(rotations)).encode())

    def receipt(self, federation: str) -> bytes | None:
        """The last receipt that the server returned."""
        text = _text(self.folder / federation / "receipt")
        return bytes.fromhex(text) if text else None

    def keep_receipt(self, federation: str, receipt: bytes) -> None:
        """Keep what the server returned."""
        write_whole(self.folder / federation / "receipt", receipt.hex().encode())

    def posted(self, federation: str) -> str:
        """The plan whose report the shuffler has whole; empty where there is none."""
        return _text(self.folder / federation / "posted").strip()

    def note_posted(self, federation: str, plan_hash: str) -> None:
        """Write down that the shuffler has the whole report on this plan."""
        write_whole(self.folder / federation / "posted", plan_hash.encode())

    def prepared(self, federation: str) -> str:
        """The name of what was prepared for a federation; empty where that is not written down."""
        return _text(self.folder / federation / "prepared").strip()

    def note_prepared(self, federation: str, name: str) -> None:
        """Write down what the rounds of a federation are computed from, whatever becomes of the records."""
        write_whole(self.folder / federation / "prepared", name.encode())

    def sums(self, federation: str) -> SumFolder:
        """What the client keeps of the last secure sum in a federation."""
        return SumFolder(self.folder / federation / "sum")

    def states(self, federation: str) -> States:
        """What the client carries from round to round in a federation."""
        return States(self.folder / federation / "kept")


def _text(path: Path) -> str:
    """What a file says; nothing where there is none."""
    return path.read_text() if path.is_file() else ""


@dataclass(frozen=True)
class States:
    """One file for each of the last rounds, named after round and plan."""

    folder: Path

    def load(self, round: int, plan_hash: str) -> ClientState | None:
        """The state stored with the answer to this plan; None if there is none."""
        return _load(self._path(round, plan_hash))

    def save(self, round: int, plan_hash: str, state: ClientState) -> None:
        """Store the state that goes with the answer to come."""
        _save(self._path(round, plan_hash), state)

    def rounds(self) -> dict[int, str]:
        """The rounds that have a state here, and their plans."""
        found = (path.stem.split("-") for path in sorted(self.folder.glob("*-*.safetensors")))
        return {int(round): plan_hash for round, plan_hash in found}

    def forget_before(self, round: int) -> None:
        """Remove states that no later round needs."""
        for path in self.folder.glob("*-*.safetensors"):
            if int(path.stem.split("-")[0]) < round - KEPT_STATES:
                path.unlink(missing_ok=True)

    def _path(self, round: int, plan_hash: str) -> Path:
        return self.folder / f"{round:06d}-{plan_hash}.safetensors"


@dataclass(frozen=True)
class Preparations:
    """Prepared records by the name of the preparation, and the releases under which each was first released."""

    folder: Path

    def load(self, name: str) -> ClientState | None:
        """The prepared records; None if there are none."""
        return _load(self.folder / f"{name}.safetensors")

    def save(self, name: str, made: ClientState) -> None:
        """Store prepared records; they are never prepared again."""
        _save(self.folder / f"{name}.safetensors", made)

    def releases_of(self, name: str) -> tuple[str, ...]:
        """The ids of the releases under which a preparation was, or was about to be, released first."""
        text = _text(self.folder / f"{name}.json")
        return tuple(json.loads(text)["releases"]) if text else ()

    def note_releases(self, name: str, releases: Iterable[str]) -> None:
        """Write down the ids of the releases under which it is about to be released."""
        make_folder(self.folder)
        write_whole(self.folder / f"{name}.json", json.dumps({"releases": list(releases)}).encode())


def _save(path: Path, state: ClientState) -> None:
    make_folder(path.parent)
    write_whole(path, save({name: np.asarray(array, order="C") for name, array in state.items()}))


def _load(path: Path) -> ClientState | None:
    with reading(path):
        try:
            return dict(load_file(path)) if path.is_file() else None
        except SafetensorError as error:
            raise ValueError(error) from None


__all__ = ["Agreements", "Preparations", "States"]

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

from sordino.client.invitation import Invitation
from sordino.client.sum_progress import SumFolder
from sordino.errors import InvalidInput
from sordino.methods.interface import ClientState
from sordino.storage.files import make_folder, write_whole
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
        return _invitation(path) if path.is_file() else None

    def add(self, invitation: Invitation, statement: str) -> None:
        """Write down the terms, the recipe and the statement as it was shown."""
        place = self.folder / invitation.federation
        make_folder(place)
        write_whole(place / "statement.txt", statement.encode())
        write_whole(place / "recipe.toml", invitation.recipe.encode())
        self.keep_rotations(invitation.federation, invitation.rotations)
        write_whole(place / "invitation.json", invitation.stored())  # last: now it is agreed

    def author(self, federation: str, agreed: Invitation) -> Author:
        """Who signs plans in a federation: the key that was agreed to, and what was written down of its rotations."""
        path = self.folder / federation / "rotations.json"
        try:
            rotations = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else ()
            return Author.of(agreed.coordinator, rotations)
        except (OSError, ValueError, TypeError, InvalidInput) as error:
            raise InvalidInput(f"{path} is damaged ({error}): restore it from a backup") from None

    def keep_rotations(self, federation: str, rotations: Sequence[str]) -> None:
        """Write down which keys signed after the first."""
        write_whole(self.folder / federation / "rotations.json", json.dumps(list(rotations)).encode())

    def receipt(self, federation: str) -> bytes | None:
        """The last receipt that the server returned."""
        path = self.folder / federation / "receipt"
        return bytes.fromhex(path.read_text()) if path.is_file() else None

    def keep_receipt(self, federation: str, receipt: bytes) -> None:
        """Keep what the server returned."""
        write_whole(self.folder / federation / "receipt", receipt.hex().encode())

    def posted(self, federation: str) -> str:
        """The plan whose report the shuffler has whole; empty where there is none."""
        path = self.folder / federation / "posted"
        return path.read_text().strip() if path.is_file() else ""

    def note_posted(self, federation: str, plan_hash: str) -> None:
        """Write down that the shuffler has the whole report on this plan."""
        write_whole(self.folder / federation / "posted", plan_hash.encode())

    def sums(self, federation: str) -> SumFolder:
        """What the client keeps of the last secure sum in a federation."""
        return SumFolder(self.folder / federation / "sum")

    def states(self, federation: str) -> States:
        """What the client carries from round to round in a federation."""
        return States(self.folder / federation / "kept")


def _invitation(path: Path) -> Invitation:
    try:
        return Invitation.agreed(path.read_bytes())
    except (OSError, InvalidInput) as error:
        raise InvalidInput(f"{path} is damaged ({error}): restore it, or agree anew under another name") from None


@dataclass(frozen=True)
class States:
    """One file for each of the last rounds, named after round and plan."""

    folder: Path

    def load(self, round: int, plan_hash: str) -> ClientState | None:
        """What was kept with the answer to this plan; None where nothing was."""
        path = self._path(round, plan_hash)
        return _arrays(path) if path.is_file() else None

    def save(self, round: int, plan_hash: str, state: ClientState) -> None:
        """Keep this beside the answer to come."""
        make_folder(self.folder)
        write_whole(self._path(round, plan_hash), _packed(state))

    def rounds(self) -> dict[int, str]:
        """The rounds of which something is here, with their plans."""
        found = (path.stem.split("-") for path in sorted(self.folder.glob("*-*.safetensors")))
        return {int(round): plan_hash for round, plan_hash in found}

    def forget_before(self, round: int) -> None:
        """Remove what no round to come needs."""
        for path in self.folder.glob("*-*.safetensors"):
            if int(path.stem.split("-")[0]) < round - KEPT_STATES:
                path.unlink(missing_ok=True)

    def _path(self, round: int, plan_hash: str) -> Path:
        return self.folder / f"{round:06d}-{plan_hash}.safetensors"


@dataclass(frozen=True)
class Preparations:
    """What was made of records once, by what it was made from; and under which releases it was first told."""

    folder: Path

    def load(self, name: str) -> ClientState | None:
        """What was made; None where nothing was."""
        path = self.folder / f"{name}.safetensors"
        return _arrays(path) if path.is_file() else None

    def save(self, name: str, made: ClientState) -> None:
        """Keep what was made: it is never made again."""
        make_folder(self.folder)
        write_whole(self.folder / f"{name}.safetensors", _packed(made))

    def told_as(self, name: str) -> tuple[str, ...]:
        """The releases under which it was, or was about to be, told first."""
        path = self.folder / f"{name}.json"
        return tuple(json.loads(path.read_text())["releases"]) if path.is_file() else ()

    def tell_as(self, name: str, releases: Iterable[str]) -> None:
        """Write down the releases under which it is about to be told."""
        make_folder(self.folder)
        write_whole(self.folder / f"{name}.json", json.dumps({"releases": list(releases)}).encode())


def _packed(state: ClientState) -> bytes:
    from safetensors.numpy import save

    return save({name: np.asarray(array, order="C") for name, array in state.items()})


def _arrays(path: Path) -> ClientState:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidInput(f"{path} is damaged ({error}): restore it from a backup") from None


__all__ = ["Agreements", "Preparations", "States"]

"""Beginning a federation anew in its folder: what was there moves to `past/NAME`, and nothing is deleted.

First a file says what is to come, then files move one by one, and last that file goes. Whoever is killed in between
finds it at the next start and does the rest: every step can be done twice.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

from sordino.recipe import Recipe
from sordino.storage.files import NotWritten, make_folder, reading, sync_folder, write_whole

NAME = "federation"  #: the file with the name that plans carry
MODEL = "model.safetensors"  #: in the folder of a run that is over
MOVED = ("run", "participants.jsonl", "receipts.json")  #: what belongs to one federation; keys stay
_CHANGES = "renewal.json"
_NEXT = "renewal.next"


@dataclass(frozen=True)
class Renewal:
    """How a federation that began anew differs from the recipe as it was given."""

    federation: str  #: the name that plans carry
    before: str  #: that of the one before
    rounds: int | None = None  #: the recipe's, if None
    from_model: bool = False  #: whether it starts from the model of the one before

    @classmethod
    def of(cls, folder: Path) -> Renewal | None:
        """The last one in a folder; None where the federation has begun once."""
        return _read(folder / _CHANGES)

    def model(self, folder: Path) -> Path:
        """Where the model of the federation before lies."""
        return folder / "past" / self.before / "run" / MODEL

    def apply(self, recipe: Recipe, model: Path) -> Recipe:
        """The recipe of this federation; `model` is that of the one before."""
        changes: dict[str, object] = {} if self.rounds is None else {"rounds.count": self.rounds}
        if self.from_model:
            changes["model.start"] = str(model.absolute())
        return recipe.with_(changes) if changes else recipe

    def carry_out(self, folder: Path) -> None:
        """Make room for this federation; from now on it is begun, whatever happens."""
        write_whole(folder / _NEXT, json.dumps(asdict(self)).encode())
        finish(folder)


def finish(folder: Path) -> None:
    """Do what is left of a renewal, if there is one."""
    found = _read(folder / _NEXT)
    if found is None:
        return
    past = folder / "past" / found.before
    make_folder(past)
    try:
        for name in MOVED:
            if (folder / name).exists():
                (folder / name).replace(past / name)
        sync_folder(past)
        sync_folder(folder)
        write_whole(past / NAME, found.before.encode())
        write_whole(folder / _CHANGES, json.dumps(asdict(found)).encode())
        write_whole(folder / NAME, found.federation.encode())
        (folder / _NEXT).unlink()
        sync_folder(folder)
    except OSError as error:
        raise NotWritten(
            f"{folder} could not be made ready ({error}): nothing is lost. Let the server write there, and start it "
            "again or begin again"
        ) from None


def _read(path: Path) -> Renewal | None:
    if not path.exists():
        return None
    with reading(path):
        return Renewal(**json.loads(path.read_text()))


__all__ = ["MODEL", "NAME", "Renewal", "finish"]

"""What a run writes down so that it can go on exactly: the state after a round, and what was released in each.

The state is one file that is replaced whole, the releases are a line a round. Whatever a crash leaves behind, the last
state is readable; later lines are cut off and computed again, to the same bits.
"""

from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.durable import append_line, keep_lines, make_folder, whole_lines, write_whole
from sordino.errors import InvalidInput
from sordino.methods.interface import ClientState, State
from sordino.privacy.history import Spent


@dataclass(frozen=True)
class Saved:
    """A state, what the clients kept, and what else the run must remember (all of it JSON)."""

    state: State
    clients: Mapping[int, ClientState]
    memory: Mapping[str, Any]


def packed(saved: Saved) -> bytes:
    """The content of a file that holds a state: its arrays, and the rest as texts about them."""
    from safetensors.numpy import save

    arrays: dict[str, NDArray[Any]] = {"parameters": saved.state.parameters}
    arrays |= {f"server/{name}": array for name, array in saved.state.arrays.items()}
    for client, kept in saved.clients.items():
        arrays |= {f"client/{client}/{name}": np.asarray(array) for name, array in kept.items()}
    ordered = {name: np.asarray(array, order="C") for name, array in arrays.items()}  # counts stay without axes
    metadata = {
        "round": str(saved.state.round),
        "memory": json.dumps(dict(saved.memory)),
        "server": json.dumps(list(saved.state.arrays)),  # their order, which the file does not keep
    }
    return save(ordered, metadata=metadata)


def unpacked(path: Path) -> Saved:
    """The state that lies in a file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="np") as file:
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
            metadata = file.metadata() or {}
        server = {name: arrays[f"server/{name}"] for name in json.loads(metadata["server"])}
        clients: dict[int, dict[str, NDArray[Any]]] = {}
        for name, array in arrays.items():
            if name.startswith("client/"):
                _, client, own = name.split("/", 2)
                clients.setdefault(int(client), {})[own] = array
        state = State(int(metadata["round"]), arrays["parameters"], server)
        return Saved(state, clients, json.loads(metadata["memory"]))
    except (SafetensorError, OSError, KeyError, ValueError) as error:
        raise InvalidInput(
            f"{path} is damaged ({error}): the run cannot go on from it. Start it anew in another folder"
        ) from None


class Checkpoint:
    """The folder `checkpoint` of a run."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._state = folder / "state.safetensors"
        self._history = folder / "releases.jsonl"

    def save(self, saved: Saved) -> None:
        """Replace the state, durably and at once."""
        make_folder(self._folder)
        write_whole(self._state, packed(saved))

    def load(self) -> Saved | None:
        """The last state; None if there is none yet."""
        return unpacked(self._state) if self._state.exists() else None

    def add(self, spent: Spent) -> None:
        """Write down one round's releases."""
        make_folder(self._folder)
        append_line(self._history, spent.to_line().encode())

    def history(self, last: int) -> list[Spent]:
        """The releases up to round `last`, those before the first one included; later ones are cut off."""
        found = [Spent.from_line(line) for line in whole_lines(self._history)]
        kept = [spent for spent in found if spent.round <= last]
        if [spent.round for spent in kept if spent.round] != list(range(1, last + 1)):
            raise InvalidInput(
                f"{self._history} lacks some of the rounds 1 to {last}, so that what was spent is not known. "
                "Start the run anew in another folder"
            )
        if len(kept) < len(found):
            keep_lines(self._history, len(kept))
        return kept

    def belongings(self) -> Belongings:
        """What clients made before the first round, in files of their own."""
        return Belongings(self._folder / "clients")


class Belongings(UserDict[int, ClientState]):
    """What clients made before the first round: kept in memory, and in a file each where there is a folder.

    Each is written once, when it is made, and read when the run goes on: what was drawn is never drawn again.
    """

    def __init__(self, folder: Path | None = None) -> None:
        super().__init__()
        self._folder = folder
        for path in sorted(folder.glob("*.safetensors")) if folder is not None else ():
            self.data[int(path.stem)] = _belongings(path)

    def __setitem__(self, client: int, made: ClientState) -> None:
        from safetensors.numpy import save

        if client in self.data:
            raise InvalidInput(f"client {client} has prepared before: what it made then is what counts")
        if self._folder is not None:
            make_folder(self._folder)
            ordered = {name: np.asarray(array, order="C") for name, array in made.items()}
            write_whole(self._folder / f"{client}.safetensors", save(ordered))
        self.data[client] = made


def _belongings(path: Path) -> ClientState:
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidInput(
            f"{path} is damaged ({error}): what a client made there is not to be made again. Start the run anew in "
            "another folder"
        ) from None


__all__ = ["Belongings", "Checkpoint", "Saved", "packed", "unpacked"]

"""A checkpoint: the state of a run after a round, in one file of arrays. Also what clients prepared, a file each."""

from __future__ import annotations

import json
from collections import UserDict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.methods.interface import ClientState, State
from sordino.storage.files import make_folder, write_whole

Memory = Mapping[str, Mapping[str, Any]]  #: what a run remembers besides arrays, ready for `json.dumps`


class DamagedRun(InvalidInput):
    """A file that a run would go on from is damaged or missing."""

    def __init__(self, path: Path, why: str) -> None:
        super().__init__(
            f"{path} is damaged or missing ({why}): the run cannot go on from it. Restore the folder from a backup, or "
            "start the run anew in another folder, with real clients also under another name"
        )


@dataclass(frozen=True)
class Checkpoint:
    """A state, what simulated clients keep between rounds, and what else the run must remember (all of it JSON)."""

    state: State
    clients: Mapping[int, ClientState]
    memory: Memory

    def encode(self) -> bytes:
        """The content of a file that holds it: its arrays, and the rest as texts about them."""
        from safetensors.numpy import save

        arrays: dict[str, NDArray[np.generic]] = {"parameters": self.state.parameters}
        arrays |= {f"server/{name}": array for name, array in self.state.arrays.items()}
        for client, kept in self.clients.items():
            arrays |= {f"client/{client}/{name}": np.asarray(array) for name, array in kept.items()}
        ordered = {name: np.asarray(array, order="C") for name, array in arrays.items()}  # counts stay without axes
        metadata = {
            "round": str(self.state.round),
            "memory": json.dumps(dict(self.memory)),
            "server": json.dumps(list(self.state.arrays)),  # their order, which the file does not keep
        }
        return save(ordered, metadata=metadata)

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """The checkpoint in a file; a damaged one is refused."""
        from safetensors import SafetensorError, safe_open

        try:
            with safe_open(path, framework="np") as file:
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
                metadata = file.metadata() or {}
            server = {name: arrays[f"server/{name}"] for name in json.loads(metadata["server"])}
            clients: dict[int, dict[str, NDArray[np.generic]]] = {}
            for name, array in arrays.items():
                if name.startswith("client/"):
                    _, client, own = name.split("/", 2)
                    clients.setdefault(int(client), {})[own] = array
            state = State(int(metadata["round"]), arrays["parameters"], server)
            return cls(state, clients, json.loads(metadata["memory"]))
        except (SafetensorError, OSError, KeyError, ValueError) as error:
            raise DamagedRun(path, str(error)) from None


class Belongings(UserDict[int, ClientState]):
    """What clients made before the first round: kept in memory, and in a file each where there is a folder.

    Each is written once, when it is made, and read when the run goes on: what was drawn is never drawn again.
    """

    def __init__(self, folder: Path | None = None) -> None:
        from safetensors import SafetensorError
        from safetensors.numpy import load_file

        super().__init__()
        self._folder = folder
        for path in sorted(folder.glob("*.safetensors")) if folder is not None else ():
            try:
                self.data[int(path.stem)] = dict(load_file(path))
            except (SafetensorError, OSError, ValueError) as error:
                raise DamagedRun(path, f"{error}; what a client made there is not to be made again") from None

    def __setitem__(self, client: int, made: ClientState) -> None:
        from safetensors.numpy import save

        if client in self.data:
            raise InvalidInput(f"client {client} has prepared before: what it made then is what counts")
        if self._folder is not None:
            make_folder(self._folder)
            ordered = {name: np.asarray(array, order="C") for name, array in made.items()}
            write_whole(self._folder / f"{client}.safetensors", save(ordered))
        self.data[client] = made


__all__ = ["Belongings", "Checkpoint", "DamagedRun", "Memory"]

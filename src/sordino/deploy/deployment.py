"""A set-up as data: `deployment.toml` in its folder, and a copy of it in every machine's folder.

deployment.toml     the set-up
authority/          the certificate authority's key: for renewing the server's certificate, and for nothing else
server/             for the server's machine
NAME/               for each client's machine
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import asdict
from pathlib import Path

from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from sordino.errors import InvalidInput
from sordino.parts.toml import inline

VERSION = 2
FILE = "deployment.toml"
SERVER, AUTHORITY = "server", "authority"
CONNECTION = "sordino"  #: by which the server's Flower configuration knows the server
CLIENT, SOCKET = "client", "client.sock"  #: the owner's folder and socket, inside a client's folder
KEY = "coordinator.key"  #: signs plans; of the server alone
TOKEN, SEALED_TO = "shuffler.token", "shuffler.key"  #: for a shuffler: of each machine, and of the server alone


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Deployment:
    """What is known of a set-up."""

    federation: str
    recipe: str  #: its name
    host: str  #: by which nodes reach the server
    port: int
    node_port: int  #: of the first node's own processes, on its machine only
    members: tuple[str, ...]  #: the clients' names, in the order of their numbers
    recipe_sha256: str  #: of the app's recipe
    terms_sha256: str  #: of the recipe as clients agree to it
    options: tuple[str, ...]  #: of `sordino client init`, for each client: what its owner may change
    asks: tuple[str, ...]  #: what each client is asked for, in words
    coordinator: str  #: the public key that signs plans
    shuffler: str  #: its address, where reports go through one
    made: str
    machine: str = ""  #: whose folder this is: server, a client's, or all of them

    def __post_init__(self) -> None:
        if not len(self.members) == len(self.options) == len(self.asks):
            raise ValueError("members, options and asks are about the same clients")

    @property
    def address(self) -> str:
        """Host and port, as Flower writes them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def invitation(self) -> str:
        """The name of the invitation's file in a client's folder."""
        return f"{self.federation}.invitation"

    @property
    def machines(self) -> tuple[str, ...]:
        """All machines that this folder is about."""
        return (self.machine,) if self.machine else (SERVER, *self.members)

    def place(self, folder: Path, machine: str) -> Path:
        """Where a machine's folder lies."""
        return folder if self.machine else folder / machine

    def port_of(self, member: str) -> int:
        """Of a node's own processes: different ones, so that a test may run all nodes on one machine."""
        return self.node_port + self.members.index(member)

    def to_toml(self) -> str:
        """The file."""
        lines = [f"{name} = {inline(value)}" for name, value in asdict(self).items()]
        return "\n".join(
            ["# A federation over Flower: sordino deploy check FOLDER", f"version = {VERSION}", *lines, ""]
        )

    @classmethod
    def read(cls, folder: Path) -> Deployment:
        """The set-up in a folder, or the part of it that belongs to one machine."""
        path = folder / FILE
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InvalidInput(
                f"{path} is missing: {folder} is no set-up's folder. Make one: sordino deploy init FOLDER --recipe ..."
            ) from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidInput(f"{path} cannot be read ({error}): copy the folder again") from None
        if found.pop("version", None) != VERSION:
            raise InvalidInput(f"{path} is of another version: use the version of Sordino that made it")
        try:
            return TypeAdapter(cls).validate_python(found)
        except ValidationError:
            raise InvalidInput(f"{path} is damaged: copy the folder again") from None


def sha256(text: str) -> str:
    """Of a recipe, for telling two of them apart."""
    return hashlib.sha256(text.encode()).hexdigest()


__all__ = ["Deployment", "sha256"]

"""A set-up as data: `deployment.toml` in its folder, and a copy of it in every machine's folder.

deployment.toml     the set-up
authority/          the certificate authority's key: for renewing the server's certificate, and for nothing else
server/             for the server's machine
    coordinators/   a folder for each federation's coordinator: the operator's own
    flower/         what Flower's server needs: certificate, app, the nodes' public keys
    socket/         where the two meet
NAME/               for each client's machine
    client/         the owner's own, once made: records, budget, ledger
    flower/         what Flower's node needs: its key
    socket/         where the two meet
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

VERSION = 3
FILE = "deployment.toml"
SERVER, AUTHORITY = "server", "authority"
CONNECTION = "sordino"  #: by which Flower's configuration knows the server
COORDINATORS, CLIENT, FLOWER, SOCKETS, LOGS = "coordinators", "client", "flower", "socket", "logs"
LIVE_TOKENS = "live-tokens.json"  #: who may watch, in a coordinator's folder
TOKEN, SEALED_TO = "shuffler.token", "shuffler.key"  #: for a shuffler: of each machine, and of the server alone


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class FederationSetup:
    """One federation of a set-up."""

    name: str  #: that clients agree to
    recipe: str  #: its name
    members: tuple[str, ...]  #: the names of all clients that were ever invited
    numbers: tuple[int, ...]  #: the number of each in the federation
    recipe_sha256: str  #: of the coordinator's recipe
    terms_sha256: str  #: of the recipe as clients agree to it
    options: tuple[str, ...]  #: of `sordino client init`, for each client: what its owner may change
    asks: tuple[str, ...]  #: what each client is asked for, in words
    coordinator: str  #: the public key that signs plans
    shuffler: str  #: its address, where reports go through one

    def __post_init__(self) -> None:
        if not len(self.members) == len(self.numbers) == len(self.options) == len(self.asks):
            raise ValueError("members, numbers, options and asks are about the same clients")

    @property
    def invitation(self) -> str:
        """The name of the invitation's file in a client's folder."""
        return f"{self.name}.invitation"

    def coordinator_in(self, server: Path) -> Path:
        """The coordinator's folder in that of the server."""
        return server / COORDINATORS / self.name

    def app_in(self, server: Path) -> Path:
        """The folder of Flower's app in that of the server."""
        return server / FLOWER / "apps" / self.name

    def socket_in(self, server: Path) -> Path:
        """Where Flower's app finds the coordinator."""
        return server / SOCKETS / f"{self.name}.sock"


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class Deployment:
    """What is known of a set-up."""

    host: str  #: by which nodes reach the server
    port: int  #: that nodes reach
    inner_port: int  #: of Flower's server, on the server's machine only
    node_port: int  #: of the first node's own processes, on its machine only
    members: tuple[str, ...]  #: all clients that have a node
    federations: tuple[FederationSetup, ...]
    made: str
    account: str = ""  #: under which Flower runs here; empty: under that of whoever starts it
    machine: str = ""  #: whose folder this is: server, a client's, or all of them

    @property
    def address(self) -> str:
        """Host and port, as Flower writes them."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def inner_address(self) -> str:
        """Where Flower's server listens on its own machine."""
        return f"127.0.0.1:{self.inner_port}"

    @property
    def machines(self) -> tuple[str, ...]:
        """All machines that this folder is about."""
        return (self.machine,) if self.machine else (SERVER, *self.members)

    def federations_of(self, member: str) -> tuple[FederationSetup, ...]:
        """The federations that a client is invited to."""
        return tuple(each for each in self.federations if member in each.members)

    def place(self, folder: Path, machine: str) -> Path:
        """Where a machine's folder lies."""
        return folder if self.machine else folder / machine

    def live_port(self, federation: FederationSetup) -> int:
        """Where a federation can be watched, on the server's machine."""
        return self.inner_port + 1 + self.federations.index(federation)

    def port_of(self, member: str) -> int:
        """Of a node's own processes: different ones, so that a test may run all nodes on one machine."""
        return self.node_port + self.members.index(member)

    def to_toml(self) -> str:
        """The file."""
        told = {name: value for name, value in asdict(self).items() if name != "federations"}
        lines = ["# A set-up over Flower: sordino deploy up FOLDER", f"version = {VERSION}"]
        lines += [f"{name} = {inline(value)}" for name, value in told.items()]
        for each in self.federations:
            lines += ["", "[[federations]]", *(f"{name} = {inline(value)}" for name, value in asdict(each).items())]
        return "\n".join([*lines, ""])

    @classmethod
    def read(cls, folder: Path) -> Deployment:
        """The set-up in a folder, or the part of it that belongs to one machine."""
        path = folder / FILE
        try:
            found = tomllib.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InvalidInput(f"{path} is missing: {folder} is no set-up's folder. {cls._remedy(folder)}") from None
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise InvalidInput(f"{path} cannot be read ({error}): copy the folder again") from None
        if found.pop("version", None) != VERSION:
            raise InvalidInput(f"{path} is of another version: use the version of Sordino that made it")
        try:
            return TypeAdapter(cls).validate_python(found)
        except ValidationError:
            raise InvalidInput(f"{path} is damaged: copy the folder again") from None

    @classmethod
    def _remedy(cls, folder: Path) -> str:
        """What to do about a folder that is none: one beside it may be meant."""
        beside = folder.absolute().parent
        if not (beside / FILE).is_file():
            return "Make one: sordino deploy init FOLDER --recipe ..."
        found = cls.read(beside)
        return f"The machines of the set-up in {beside} are {', '.join(found.machines)}: give {beside}/NAME"


def socket_of_client(place: Path) -> Path:
    """Where a client's process answers, in its machine's folder."""
    return place / SOCKETS / "client.sock"


def sha256(text: str) -> str:
    """Of a recipe, for telling two of them apart."""
    return hashlib.sha256(text.encode()).hexdigest()


__all__ = ["Deployment", "FederationSetup", "sha256", "socket_of_client"]

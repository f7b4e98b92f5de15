"""The processes of a machine: what each runs, where, and under which account.

A machine has two sides. One is its owner's own: the coordinators at the server, the client at a member. The other is
Flower's, which runs whatever app whoever may start one sends. They meet at a socket, and share no file.
"""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from sordino.deploy.deployment import (
    CLIENT,
    CONNECTION,
    FLOWER,
    LIVE_TOKENS,
    LOGS,
    SERVER,
    SOCKETS,
    Deployment,
    FederationSetup,
    socket_of_client,
)
from sordino.errors import InvalidInput
from sordino.flower import QUIET
from sordino.storage.files import make_folder, write_whole

COORDINATOR = "coordinator"
SIDES = (COORDINATOR, CLIENT, FLOWER)
DATABASE = "superlink.db"


@dataclass(frozen=True)
class ServiceSpec:
    """One process that is kept running."""

    name: str
    side: str
    command: tuple[str, ...]
    folder: Path  #: in which it runs
    owner: Path  #: the folder that it cannot do without
    waits_for: tuple[Path | int, ...] = ()  #: sockets and ports of this machine that must be there before it starts
    ends: bool = False  #: whether it has an end of its own, with exit code 0
    shown: bool = False  #: whether what it says is for people
    port: int = 0  #: of this machine, on which it listens; 0: none


def services(deployment: Deployment, place: Path, machine: str) -> tuple[ServiceSpec, ...]:
    """The processes of one machine, in the order in which they start."""
    return _server(deployment, place) if machine == SERVER else _member(deployment, place, machine)


def _server(deployment: Deployment, place: Path) -> tuple[ServiceSpec, ...]:
    flower, port = place / FLOWER, deployment.inner_port
    link = (
        _program("flower-superlink"), "--host", "127.0.0.1", "--port", str(port),
        "--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key", "--ssl-ca-certfile", "ca.crt",
        "--enable-supernode-auth", "--database", DATABASE,
    )  # fmt: skip
    door = (*_sordino(), "deploy", "door", str(place))
    found = [
        ServiceSpec("superlink", FLOWER, link, flower, flower, port=port),
        ServiceSpec("door", FLOWER, door, flower, flower, (port,), port=deployment.port),
    ]
    for each in deployment.federations:
        own, socket, live = each.coordinator_in(place), each.socket_in(place), deployment.live_port(each)
        coordinator = (
            *_sordino(), "coordinator", "serve", str(own), "--socket", str(socket), *_group(deployment),
            "--live", str(live), "--live-tokens", str(own / LIVE_TOKENS),
        )  # fmt: skip
        name = f"coordinator {each.name}"
        found.append(ServiceSpec(name, COORDINATOR, coordinator, place, own, ends=True, shown=True, port=live))
        found.append(_relay(deployment, each, place, socket))
    return tuple(found)


def _relay(deployment: Deployment, federation: FederationSetup, place: Path, socket: Path) -> ServiceSpec:
    """Flower's own command starts the relay on the server, and stays with it."""
    command = (
        _program("flwr"), "run", str(federation.app_in(place)), CONNECTION, "--stream",
        "--run-config", f"coordinator='{socket}'",
    )  # fmt: skip
    flower = place / FLOWER
    return ServiceSpec(f"relay {federation.name}", FLOWER, command, flower, flower, (deployment.inner_port, socket))


def _member(deployment: Deployment, place: Path, member: str) -> tuple[ServiceSpec, ...]:
    own, flower, socket = place / CLIENT, place / FLOWER, socket_of_client(place)
    client = (*_sordino(), "client", "serve", str(own), "--socket", str(socket), *_group(deployment))
    node = (
        _program("flower-supernode"), "--superlink", deployment.address, "--root-certificates", "ca.crt",
        "--auth-supernode-private-key", "node.key", "--port", str(deployment.port_of(member)),
        "--node-config", f"sordino-socket='{socket}'",
    )  # fmt: skip
    return (
        ServiceSpec("client", CLIENT, client, place, own, shown=True),
        ServiceSpec("node", FLOWER, node, flower, flower, (socket,), port=deployment.port_of(member)),
    )


def _sordino() -> tuple[str, ...]:
    return (sys.executable, "-m", "sordino")


def _program(name: str) -> str:
    """A program of Flower's, beside this Python or on the path."""
    found = shutil.which(name, path=search_path())
    if found is None:
        raise InvalidInput(f"{name} is not installed here: pip install 'sordino[flower]'")
    return found


def _group(deployment: Deployment) -> tuple[str, ...]:
    """The account's own group: its processes may open sockets, and nothing else."""
    return ("--group", group_of(deployment.account)) if deployment.account else ()


def group_of(account: str) -> str:
    """The main group of an account; its number where it has no name."""
    import grp
    import pwd

    try:
        return grp.getgrgid(number := pwd.getpwnam(account).pw_gid).gr_name
    except KeyError:
        return str(number)


def search_path() -> str:
    """Where programs are looked for: beside this Python first, since Flower calls its own by name."""
    return f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"


def environment(place: Path) -> dict[str, str]:
    """What processes of a machine find in their environment: nothing of Flower's is sent or installed."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("FLWR_")}
    return {**kept, **QUIET, "PATH": search_path(), "FLWR_HOME": str(place / FLOWER / "home"), "PYTHONUNBUFFERED": "1"}


def logs_of(place: Path, side: str) -> Path:
    """Where the processes of a side write what they say: each account can write to its own alone."""
    return place / FLOWER / LOGS if side == FLOWER else place / LOGS


def prepare(deployment: Deployment, place: Path, machine: str, side: str) -> None:
    """Make the folders that a side's processes need; Flower is told where this machine's folder lies now."""
    make_folder(logs_of(place, side), 0o700)
    if side != FLOWER:
        make_folder(place / SOCKETS, 0o711)
        return
    home = place / FLOWER / "home"
    make_folder(home, 0o700)
    if machine == SERVER:
        config = (
            f'[superlink]\ndefault = "{CONNECTION}"\n\n[superlink.{CONNECTION}]\n'
            f"address = \"{deployment.inner_address}\"\nroot-certificates = '{place / FLOWER / 'ca.crt'}'\n"
        )
        write_whole(home / "config.toml", config.encode())


__all__ = [
    "COORDINATOR", "SIDES", "ServiceSpec", "environment", "group_of", "logs_of", "prepare", "search_path", "services",
]  # fmt: skip

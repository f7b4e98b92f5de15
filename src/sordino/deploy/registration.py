"""Tells Flower's server the nodes' public keys: those in `flower/nodes`, each once, under the member's name."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.serialization import load_pem_public_key

from sordino.deploy import keys
from sordino.deploy.deployment import FLOWER, Deployment

LARGEST = 10_000  #: bytes of a public key
LOOK = 5.0  #: seconds between two looks for new keys


class Registration:
    """Registers what lies in a folder, now and later."""

    def __init__(self, deployment: Deployment, place: Path) -> None:
        self._deployment, self._place = deployment, place
        self._known: frozenset[str] = frozenset()
        self._again = 0.0
        self.done = False  #: whether every key was registered at least once

    def look(self, say: Callable[[str], None]) -> None:
        """Register keys that are new; what fails is tried again."""
        if time.monotonic() < self._again:
            return
        self._again = time.monotonic() + LOOK
        present = frozenset(path.stem for path in (self._place / FLOWER / "nodes").glob("*.pub"))
        if present <= self._known:
            return
        try:
            new = register(self._deployment, self._place)
        except Exception as error:  # Flower's own client is not a published interface: whatever breaks there, go on
            say(f"nodes: their keys could not be registered yet ({str(error).partition(chr(10))[0][:200]})")
            return
        if new:
            say(f"nodes: registered the keys of {', '.join(new)}")
        self._known, self.done = present, True


def register(deployment: Deployment, place: Path) -> list[str]:
    """Register those public keys that the server does not know yet; whose they are."""
    from sordino.flower import require

    require()  # which also keeps Flower from calling home, before it is imported
    from flwr.proto.control_pb2 import RegisterNodeRequest

    known, new = set(list_nodes(deployment.inner_address, place / FLOWER / "ca.crt")), []
    with _control(deployment.inner_address, place / FLOWER / "ca.crt") as client:
        for path in sorted((place / FLOWER / "nodes").glob("*.pub")):
            line = keys.public_line(_small_file(path))
            if line and line not in known:
                client.RegisterNode(RegisterNodeRequest(public_key=keys.pem(line), name=path.stem))
                new.append(path.stem)
    return new


def _small_file(path: Path) -> bytes:
    """What a file says; nothing where it is a link, a pipe or too large for a key: Flower's account can write here."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return b""
    try:
        found = os.fstat(descriptor)
        return os.read(descriptor, LARGEST) if stat.S_ISREG(found.st_mode) and found.st_size < LARGEST else b""
    finally:
        os.close(descriptor)


def list_nodes(address: str, authority: Path) -> dict[bytes, str]:
    """The server's nodes by their public keys, each with its status."""
    from sordino.flower import require

    require()
    from flwr.proto.control_pb2 import ListNodesRequest

    with _control(address, authority) as client:
        nodes = client.ListNodes(ListNodesRequest()).nodes_info
    return {keys.line(load_pem_public_key(node.public_key)): str(node.status) for node in nodes}


def _control(address: str, authority: Path) -> Any:
    from flwr.supercore.control import ControlHttpClient

    return ControlHttpClient.from_server_address(
        address, insecure=False, root_certificates=str(authority), interceptors=[]
    )


__all__ = ["Registration", "list_nodes", "register"]

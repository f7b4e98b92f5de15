"""Who a client is: its name, its number and its keys."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from sordino.client.settings import NAME
from sordino.errors import InvalidInput
from sordino.storage.files import reading


@dataclass(frozen=True)
class ClientIdentity:
    """Who this client is: a name for people, a random number for programs, a key that never leaves."""

    name: str
    id: str
    key: bytes

    @classmethod
    def new(cls, name: str) -> ClientIdentity:
        """A new identity."""
        if not NAME.fullmatch(name):
            raise InvalidInput(f"a client's name has letters, digits, dots, - and _, at most 100, got {name!r}")
        return cls(name, secrets.token_hex(16), secrets.token_bytes(32))

    @classmethod
    def read(cls, path: Path) -> ClientIdentity:
        """The identity in a file."""
        with reading(path):
            found = json.loads(path.read_text(encoding="utf-8"))
            return cls(str(found["name"]), str(found["id"]), bytes.fromhex(found["key"]))

    @cached_property
    def signing(self) -> Ed25519PrivateKey:
        """Signs this client's keys in secure sums, for owners who know its public half."""
        seed = HKDF(SHA256(), 32, None, b"sordino client signing key 1").derive(self.key)
        return Ed25519PrivateKey.from_private_bytes(seed)

    @property
    def public(self) -> str:
        """The public half of the signing key, for the other owners."""
        return self.signing.public_key().public_bytes_raw().hex()

    def encode(self) -> bytes:
        """The file's content."""
        return json.dumps({"name": self.name, "id": self.id, "key": self.key.hex()}, indent=1).encode()


__all__ = ["ClientIdentity"]

"""The server's key pair: clients seal to the public half, which the shuffler shows to all of them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from sordino.errors import InvalidInput
from sordino.storage.files import make_folder, write_whole

Key = TypeVar("Key", X25519PrivateKey, X25519PublicKey)
PRIVATE, PUBLIC = "server.key", "server.pub"


def make(folder: Path) -> X25519PublicKey:
    """A new key pair in a folder; one that is there already is left alone, and that is said."""
    if (folder / PRIVATE).exists() or (folder / PUBLIC).exists():
        raise InvalidInput(
            f"{folder} holds a key of the server already. What was sealed to it can be opened with it only: remove it "
            "yourself if it is not needed any more, or give another folder"
        )
    make_folder(folder)
    private = X25519PrivateKey.generate()
    plain = serialization.NoEncryption()
    text = private.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    write_whole(folder / PRIVATE, text, 0o600)
    public = private.public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    write_whole(folder / PUBLIC, pem)
    return public


def private_key(path: Path) -> X25519PrivateKey:
    """The server's private key from its file."""
    return _read(path, X25519PrivateKey, lambda pem: serialization.load_pem_private_key(pem, None))  # type: ignore[type-abstract]


def public_key(path: Path) -> X25519PublicKey:
    """The server's public key from its file."""
    return _read(path, X25519PublicKey, serialization.load_pem_public_key)  # type: ignore[type-abstract]


def _read(path: Path, kind: type[Key], load: Callable[[bytes], object]) -> Key:
    with suppress(OSError, ValueError, TypeError, UnsupportedAlgorithm):
        if isinstance(key := load(path.read_bytes()), kind):
            return key
    half = "private" if kind is X25519PrivateKey else "public"
    raise InvalidInput(f"{path} is not a {half} key of a server: `sordino shuffler keys FOLDER` makes one")


def fingerprint(key: X25519PublicKey) -> str:
    """What people compare over the telephone: the SHA-256 of the key."""
    digits = hashlib.sha256(key.public_bytes_raw()).hexdigest()
    return " ".join(digits[k : k + 8] for k in range(0, 64, 8))


__all__ = ["PRIVATE", "PUBLIC", "fingerprint", "make", "private_key", "public_key"]

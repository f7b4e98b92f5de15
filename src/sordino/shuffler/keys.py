"""The server's key pair: clients seal to the public half, which the shuffler shows to all of them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey

from sordino.errors import InvalidInput
from sordino.storage.files import make_folder, sync_folder, write_whole

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
    write_secret(folder / PRIVATE, text)
    public = private.public_key()
    pem = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    write_whole(folder / PUBLIC, pem)
    return public


def write_secret(path: Path, data: bytes) -> None:
    """A new file that its owner alone may read."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except OSError as error:
        raise InvalidInput(
            f"{path} could not be made ({error.strerror}): give a folder that can be written to"
        ) from None
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def private_key(path: Path) -> X25519PrivateKey:
    """The server's private key from its file."""
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, X25519PrivateKey):
        raise InvalidInput(f"{path} is not a private key of a server: `sordino shuffler keys FOLDER` makes one")
    return key


def public_key(path: Path) -> X25519PublicKey:
    """The server's public key from its file."""
    try:
        key = serialization.load_pem_public_key(path.read_bytes())
    except (OSError, ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, X25519PublicKey):
        raise InvalidInput(f"{path} is not a public key of a server: `sordino shuffler keys FOLDER` makes one")
    return key


def fingerprint(key: X25519PublicKey) -> str:
    """What people compare over the telephone: the SHA-256 of the key."""
    digits = hashlib.sha256(key.public_bytes_raw()).hexdigest()
    return " ".join(digits[k : k + 8] for k in range(0, 64, 8))


__all__ = ["PRIVATE", "PUBLIC", "fingerprint", "make", "private_key", "public_key", "write_secret"]

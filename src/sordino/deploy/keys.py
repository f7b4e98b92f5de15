"""Node keys: by these Flower's server knows its nodes. P-384, in OpenSSH's form, as Flower reads them."""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PublicKeyTypes

from sordino.errors import InvalidInput


@dataclass(frozen=True)
class NodeKey:
    """A pair: the private key stays with its node, the public one is registered at the server."""

    private: bytes
    public: bytes


def make() -> NodeKey:
    """A new pair."""
    key = ec.generate_private_key(ec.SECP384R1())
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    return NodeKey(private, line(key.public_key()))


def public_of(private: bytes) -> bytes:
    """The public key of a private one, as `make` writes it."""
    try:
        key = serialization.load_ssh_private_key(private, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"this is no node key in OpenSSH's form, without a password ({error})") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise InvalidInput("a node key lies on a NIST curve: make one with ssh-keygen -t ecdsa -b 384 -N ''")
    return line(key.public_key())


def fingerprint(public: bytes) -> str:
    """What `ssh-keygen -l` prints of a public key: short enough to be read out on the telephone."""
    parts = public.split()
    try:
        raw = base64.b64decode(parts[1], validate=True)
    except (IndexError, ValueError):
        raise InvalidInput("this is no public key in OpenSSH's form") from None
    return "SHA256:" + base64.b64encode(hashlib.sha256(raw).digest()).decode().rstrip("=")


def line(key: PublicKeyTypes) -> bytes:
    """A public key in OpenSSH's form, as a file has it."""
    return key.public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH) + b"\n"


def public_line(content: bytes) -> bytes:
    """A public key's file without the comment that ssh-keygen adds."""
    words = content.split()[:2]
    return b" ".join(words) + b"\n" if words else b""


def pem(public: bytes) -> bytes:
    """A public key in OpenSSH's form as Flower's server takes it."""
    try:
        key = serialization.load_ssh_public_key(public)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise InvalidInput(f"this is no public key in OpenSSH's form ({error}): copy it again") from None
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


__all__ = ["NodeKey", "fingerprint", "line", "make", "pem", "public_line", "public_of"]

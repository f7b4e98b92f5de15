"""The coordinator's signature: a plan or a channel's step reaches a real client in an envelope that names its author.

    envelope   "SC" | version u8 | 0 u8 | round u32 | digest of the plan 16 | digest of the terms 32 | signature 64 |
               blobs: federation's name, clients | message
    clients    a bit for each client that is asked: client n is bit n mod 8 of byte n div 8
    rotation   "SK" | 1 u8 | 0 u8 | new public key 32 | signature 64, by the key before it

An invitation pins the coordinator's first public key (Ed25519). A rotation hands over to the next one. The signature is
over the step as well, which travels beside the envelope; the message inside is laid out as without one. The terms are
those of the invitation that all members share (`client.invitation.CommonTerms`): a client that agreed to others, under
the same name and key, does not answer. Invitations are signed with the same key. Rotations also lie in the files of
coordinators and clients, so that their version is their own.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from sordino.errors import InvalidInput
from sordino.storage.files import make_folder, reading, write_whole
from sordino.wire.codec import Layout, join, numbers
from sordino.wire.messages import DIGEST_BYTES, Plan

KEY_BYTES, SIGNATURE_BYTES, TERMS_BYTES = 32, 64, 32
LONGEST_NAME = 100  #: letters of a federation's name
MOST_CLIENTS = 2**24  #: that an envelope can be for
MOST_ROTATIONS = 100
_ENVELOPE = Layout(b"SC", "a signed message", f"I{DIGEST_BYTES}s{TERMS_BYTES}s{SIGNATURE_BYTES}s", blobs=2)
_ROTATION = Layout(b"SK", "a rotation", f"{KEY_BYTES}s{SIGNATURE_BYTES}s", rest=False, version=1)
# What a signature is about: none can stand for another.
_STEP, _KEY, _INVITATION = b"sordino step 3\0", b"sordino key 1\0", b"sordino invitation 1\0"


@dataclass(frozen=True)
class Envelope:
    """A signed message. Nothing in it is to be believed before `is_signed` has said yes."""

    federation: str
    round: int
    plan: bytes  #: digest of the plan that this step belongs to
    terms: bytes  #: digest of the terms that all members agreed to
    clients: bytes  #: who is asked, as bits
    message: bytes
    signature: bytes = bytes(SIGNATURE_BYTES)

    def encode(self) -> bytes:
        """The bytes that are sent."""
        return self._pack(self.signature, self.message)

    def _pack(self, signature: bytes, rest: bytes) -> bytes:
        names = (self.federation.encode(), self.clients)
        return _ENVELOPE.pack(self.round, self.plan, self.terms, signature, blobs=names, rest=rest)

    @classmethod
    def decode(cls, data: bytes) -> Envelope:
        """The envelope that `encode` wrote; anything else is refused."""
        _, (round, plan, terms, signature), (name, clients), message = _ENVELOPE.unpack(data)
        if not 0 < len(name) <= LONGEST_NAME or not name.isascii() or len(clients) > MOST_CLIENTS // 8:
            raise InvalidInput("a signed message is damaged")
        return cls(name.decode(), round, plan, terms, clients, bytes(message), signature)

    def is_for(self, client: int) -> bool:
        """Whether this client is asked."""
        byte = client // 8
        return byte < len(self.clients) and bool(self.clients[byte] >> client % 8 & 1)

    def is_about(self, plan: Plan) -> bool:
        """Whether this is a step of this very plan."""
        return (self.federation, self.round, self.plan) == (plan.federation, plan.round, plan.digest)

    def is_signed(self, step: str, key: bytes) -> bool:
        """Whether the holder of this public key signed the message, for this step."""
        return _verifies(key, self.signature, self._signed(step))

    def signed(self, step: str, key: Ed25519PrivateKey) -> Envelope:
        """The same with a signature."""
        return replace(self, signature=key.sign(self._signed(step)))

    def _signed(self, step: str) -> bytes:
        """The step, and the envelope without its signature; the SHA-256 of the message stands for the message."""
        digest = hashlib.sha256(self.message).digest()
        return _STEP + join(step.encode()) + self._pack(bytes(SIGNATURE_BYTES), digest)


def bits(clients: Iterable[int]) -> bytes:
    """A set of clients as an envelope carries it."""
    numbers = list(clients)
    found = bytearray(max(numbers, default=-1) // 8 + 1)
    for number in numbers:
        found[number // 8] |= 1 << number % 8
    return bytes(found)


@dataclass(frozen=True)
class Author:
    """Who signs in a federation: the public key that its invitations pin, and the rotations since."""

    first: bytes
    rotations: tuple[bytes, ...] = ()

    def __post_init__(self) -> None:
        self.key  # noqa: B018 (a rotation that is none is refused here)

    @classmethod
    def of(cls, first: str, rotations: Sequence[str] = ()) -> Author:
        """From hexadecimal digits, as invitations and tasks have them."""
        try:
            return cls(bytes.fromhex(first), tuple(map(bytes.fromhex, rotations)))
        except ValueError:
            raise InvalidInput("a coordinator's key is not in hexadecimal: ask for the invitation again") from None

    @cached_property
    def key(self) -> bytes:
        """The public key that signs now."""
        key = self.first
        if len(key) != KEY_BYTES or len(self.rotations) > MOST_ROTATIONS:
            raise InvalidInput(
                f"a coordinator has a key of {KEY_BYTES} bytes and at most {MOST_ROTATIONS} rotations of it"
            )
        for rotation in self.rotations:
            key = _next_key(key, rotation)
        return key

    @property
    def in_words(self) -> str:
        """The first key in groups, as people compare it over the telephone."""
        digits = self.first.hex()
        return " ".join(digits[k : k + 8] for k in range(0, len(digits), 8))

    def follows(self, before: Author) -> bool:
        """Whether this is the same author, with no fewer rotations."""
        return self.first == before.first and self.rotations[: len(before.rotations)] == before.rotations

    def invites(self, terms: bytes, places: range, signature: bytes) -> bool:
        """Whether this author signed an invitation to terms of this digest, for these numbers."""
        known = 0 <= places.start < places.stop <= 2**32
        return known and _verifies(self.key, signature, _invitation(terms, places))


def _invitation(terms: bytes, places: range) -> bytes:
    return _INVITATION + terms + numbers((places[0], places[-1]))


def _next_key(key: bytes, rotation: bytes) -> bytes:
    """The key after a rotation; refused where the one before did not sign it."""
    _, (new, signature), _, _ = _ROTATION.unpack(rotation)
    if not _verifies(key, signature, _KEY + key + new):
        raise InvalidInput("the key that signed before did not sign the rotation to a new one")
    return bytes(new)


def _verifies(key: bytes, signature: bytes, text: bytes) -> bool:
    try:
        Ed25519PublicKey.from_public_bytes(key).verify(signature, text)
    except (InvalidSignature, ValueError):
        return False
    return True


@dataclass(frozen=True)
class SigningKey:
    """The coordinator's private key, with all that makes its public half known."""

    private: Ed25519PrivateKey
    author: Author

    @classmethod
    def new(cls) -> SigningKey:
        """A key that nobody knows yet."""
        private = Ed25519PrivateKey.generate()
        return cls(private, Author(_public(private)))

    @classmethod
    def at(cls, path: Path) -> SigningKey:
        """The key in a file; made now where there is none, readable by its owner alone."""
        if not path.exists():
            make_folder(path.parent)
            made = cls.new()
            made.write(path)
            return made
        remedy = "restore it from a backup. Clients answer to this key alone; without it, take another federation name"
        with reading(path, remedy):
            found = json.loads(path.read_text(encoding="utf-8"))
            private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(found["private"]))
            author = Author.of(found["first"], found["rotations"])
            if author.key != _public(private):
                raise InvalidInput("its parts do not belong together")
            return cls(private, author)

    def write(self, path: Path) -> None:
        """Put it into a file that its owner alone may read."""
        found = {
            "private": self.private.private_bytes_raw().hex(), "first": self.author.first.hex(),
            "rotations": [rotation.hex() for rotation in self.author.rotations],
        }  # fmt: skip
        write_whole(path, (json.dumps(found, indent=1) + "\n").encode(), 0o600)

    def rotated(self, private: Ed25519PrivateKey | None = None) -> SigningKey:
        """The given key, or a new one, which the old one signs."""
        private = private or Ed25519PrivateKey.generate()
        old, new = self.author.key, _public(private)
        rotation = _ROTATION.pack(new, self.private.sign(_KEY + old + new))
        return SigningKey(private, replace(self.author, rotations=(*self.author.rotations, rotation)))

    def envelope(self, step: str, plan: Plan, terms: bytes, clients: Iterable[int], message: bytes) -> bytes:
        """A signed message for these clients, who agreed to terms of this digest."""
        made = Envelope(plan.federation, plan.round, plan.digest, terms, bits(clients), message)
        return made.signed(step, self.private).encode()

    def invitation(self, terms: bytes, places: range) -> bytes:
        """The signature of an invitation to terms of this digest, for these numbers."""
        return self.private.sign(_invitation(terms, places))


def _public(private: Ed25519PrivateKey) -> bytes:
    return private.public_key().public_bytes_raw()


def key_file(run: Path) -> Path:
    """Where a run's key lies: beside its folder, since clients agree to the key before the run has one."""
    place = run.absolute()
    return place.with_name(f"{place.name}.key")


__all__ = ["Author", "Envelope", "SigningKey", "bits", "key_file"]

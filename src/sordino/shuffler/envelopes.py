"""Envelopes: HPKE (RFC 9180) with X25519, HKDF-SHA256 and ChaCha20-Poly1305, one for each value of a report.

    envelope   encapsulated key (32 bytes) | sealed content (1 byte for single values) | tag (16 bytes)
    body       what a client sends: class and number of envelopes, their positions, the envelopes
    batch      what leaves the shuffler: class, and for every position the envelopes of n clients in an order of its own

Position and class are outside; the value is inside. Every envelope has an ephemeral key of its own, which is its nonce
too: one key for a client's whole report would be far cheaper, and would tie the report together at the server. The
terms of the round, class and position are bound into the key, so an envelope opens where it belongs and nowhere else.
All this is bytes to bytes, without clocks or sockets.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.hpke import AEAD, KDF, KEM, Suite
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.mechanisms.output import BitOutput, decode_bits
from sordino.methods.upload import ReportSum
from sordino.shuffler.terms import Terms
from sordino.wire.codec import LENGTH_BYTES, Buffer, Layout, numbers

Bytes = NDArray[np.uint8]

NONCE_BYTES = 32  #: the encapsulated key
TAG_BYTES = 16
BODY_BYTES = 2**20  #: a body that `seal` makes is not larger

_BODY = Layout(b"SE", "a body of envelopes", "H32s", blobs=1)  # class, digest of the terms; positions
_BATCH = Layout(b"SB", "a batch of envelopes", "HHII32s")  # class, bytes of an envelope, positions, clients, digest
_SUITE = Suite(KEM.X25519, KDF.HKDF_SHA256, AEAD.CHACHA20_POLY1305)
_LABEL = b"sordino shuffled report 2\0"


def envelope_bytes(terms: Terms) -> int:
    """The length of every envelope of a round, whatever is inside."""
    return NONCE_BYTES + terms.content_bytes + TAG_BYTES


def _place(terms: Terms, group: int) -> bytes:
    """What binds an envelope to its round; class and position follow."""
    if not 0 <= group < terms.classes:
        raise InvalidInput(f"this round has the classes 0 to {terms.classes - 1}, got {group!r}")
    return _LABEL + terms.digest


# --- bodies -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Body:
    """Some envelopes of one client, `[k, bytes]`, and where they belong."""

    group: int  #: the class
    digest: bytes
    positions: NDArray[np.uint32]
    envelopes: Bytes

    def encode(self) -> bytes:
        """The bytes that are sent."""
        where = self.positions.astype("<u4").tobytes()
        return _BODY.pack(self.group, self.digest, blobs=[where], rest=self.envelopes.tobytes())

    @classmethod
    def decode(cls, message: bytes) -> Body:
        """The body that `encode` wrote; anything else is refused."""
        _, (group, digest), (where,), rest = _BODY.unpack(message)
        count = len(where) // 4
        if count == 0 or len(where) % 4 or len(rest) == 0 or len(rest) % count:
            raise InvalidInput(f"a body that announces {count} envelopes has {len(message)} bytes: it was cut off")
        positions = np.frombuffer(where, "<u4").astype(np.uint32)
        return cls(group, digest, positions, np.frombuffer(rest, np.uint8).reshape(count, -1))

    def check(self, terms: Terms) -> None:
        """Refuse a body of another round, or with envelopes that the round has no place for."""
        if self.digest != terms.digest:
            raise InvalidInput("these envelopes are sealed on other terms than those of this round")
        if self.group >= terms.classes:
            raise InvalidInput(f"this round has the classes 0 to {terms.classes - 1}, got {self.group}")
        if self.envelopes.shape[1] != envelope_bytes(terms):
            raise InvalidInput(
                f"an envelope of this round has {envelope_bytes(terms)} bytes, got {self.envelopes.shape[1]}"
            )
        if int(self.positions.max()) >= terms.positions:
            raise InvalidInput(f"this round has the positions 0 to {terms.positions - 1}, got {self.positions.max()}")
        if np.unique(self.positions).size != self.positions.size:
            raise InvalidInput("a body holds two envelopes for one position")


# --- the client's side ------------------------------------------------------------------------------------------------


def seal(report: bytes, terms: Terms, group: int, server: X25519PublicKey) -> list[bytes]:
    """A report of packed bits as bodies of envelopes, ready to be sent in any order, each as often as need be.

    `group` is the client's class of equal epsilon. Sealing again makes other bytes of the same bits: the shuffler takes
    one envelope of a client for every position, so they do not count twice.
    """
    place, contents = _place(terms, group), _contents(report, terms)
    sealed = bytearray()
    for position in range(terms.positions):
        sealed += _SUITE.encrypt(contents[position].tobytes(), server, info=place + numbers((group, position)))
    envelopes = np.frombuffer(bytes(sealed), np.uint8).reshape(terms.positions, -1)
    return _bodies(group, terms.digest, np.arange(terms.positions, dtype=np.uint32), envelopes)


def _contents(report: bytes, terms: Terms) -> Bytes:
    """The bits of every envelope, `[positions, bytes]`; what the last group has too few of is zero."""
    bits = decode_bits([report], terms.values).bits()[0]
    padded = np.zeros(terms.positions * terms.group, np.uint8)
    padded[: terms.values] = bits
    return np.packbits(padded.reshape(terms.positions, terms.group), axis=1, bitorder="little")


def _bodies(group: int, digest: bytes, positions: NDArray[np.uint32], envelopes: Bytes) -> list[bytes]:
    most = max(1, (BODY_BYTES - _BODY.size - LENGTH_BYTES) // (4 + envelopes.shape[1]))
    pieces = (slice(first, first + most) for first in range(0, len(positions), most))
    return [Body(group, digest, positions[piece], envelopes[piece]).encode() for piece in pieces]


def spread(bodies: Sequence[bytes], latency: float, slots: int = 64) -> list[tuple[float, bytes]]:
    """The same envelopes by the time at which they leave: each after a delay of its own from U(0, T) (Algorithm 3).

    T is divided into slots, so that a report is so many messages and not one for each value; what belongs to a slot
    leaves at its end. The delays are drawn by the operating system.
    """
    if not 0 <= latency < float("inf") or slots < 1:
        raise InvalidInput(f"delays need a T >= 0 in seconds and at least one slot, got {latency!r} and {slots!r}")
    decoded = [Body.decode(body) for body in bodies]
    if len({(b.group, b.digest, b.envelopes.shape[1]) for b in decoded}) != 1:
        raise InvalidInput("only the bodies of one report can be spread together")
    positions = np.concatenate([b.positions for b in decoded])
    envelopes = np.concatenate([b.envelopes for b in decoded])
    words = np.frombuffer(os.urandom(8 * len(positions)), "<u8")
    slot = (words >> np.uint64(32)) * np.uint64(slots) >> np.uint64(32)
    leaving: list[tuple[float, bytes]] = []
    for number in np.unique(slot):
        own = slot == number
        seconds = latency * (int(number) + 1) / slots
        made = _bodies(decoded[0].group, decoded[0].digest, positions[own], envelopes[own])
        leaving += [(seconds, body) for body in made]
    return leaving


# --- batches ----------------------------------------------------------------------------------------------------------


def batch_head(terms: Terms, group: int, clients: int) -> bytes:
    """How a batch begins; the envelopes follow, position by position."""
    return _BATCH.pack(group, envelope_bytes(terms), terms.positions, clients, terms.digest)


def mix(envelopes: Bytes) -> Bytes:
    """`[positions, n, bytes]`, for each position in an order of its own, which the operating system draws.

    Sorting n random words of 64 bits gives every order alike, up to n^2 * 2^-65 for two that are equal.
    """
    positions, clients, _ = envelopes.shape
    words = np.frombuffer(os.urandom(8 * positions * clients), "<u8").reshape(positions, clients)
    return np.take_along_axis(envelopes, words.argsort(axis=1)[:, :, None], axis=1)


@dataclass(frozen=True, eq=False)
class OpenedBatch:
    """What the server has of one class: rows of bits, of which nothing but the number of ones in a column means much.

    Where some envelope was refused, the columns have different numbers of good ones. All are cut to the smallest: the
    order is random, so what goes is no choice of anybody's, and a mean over rows stays a mean over clients.
    """

    group: int
    rows: BitOutput
    refused: Mapping[str, int] = field(default_factory=dict)  #: envelopes that did not count, by what was wrong

    @property
    def clients(self) -> int:
        """Reports that count at every position."""
        return len(self.rows.packed)

    def counts(self) -> NDArray[np.int64]:
        """The number of ones for every value `[d]`."""
        return np.asarray(self.rows.bits().sum(axis=0, dtype=np.int64))

    def sum(self, numbers: Iterable[int]) -> ReportSum:
        """All that a tally needs; the numbers are the class's clients', and stand for the class and nobody in it."""
        return ReportSum(self.group, tuple(sorted(numbers)[: self.clients]), self.counts(), 0)


@dataclass(frozen=True, eq=False)
class Opening:
    """Neighbouring positions of a batch that were opened: contents `[clients, k, bytes]`, of which at each of the k
    positions the first `good [k]` are good, and what was wrong with the others.
    """

    contents: Bytes
    good: NDArray[np.int64]
    refused: Mapping[str, int]


@dataclass(frozen=True)
class Sealed:
    """Neighbouring positions of a batch, still sealed."""

    group: int  #: the class
    clients: int
    first: int
    envelopes: Buffer  #: position by position

    def open(self, terms: Terms, server: X25519PrivateKey) -> Opening:
        """Open them. An envelope that is damaged, foreign or a repetition is refused; the others count."""
        size, place = envelope_bytes(terms), _place(terms, self.group)
        count = len(self.envelopes) // (size * self.clients)
        contents = np.zeros((self.clients, count, terms.content_bytes), np.uint8)
        good = np.zeros(count, np.int64)
        refused: Counter[str] = Counter()
        start = 0
        for k in range(count):
            position = self.first + k
            info = place + numbers((self.group, position))
            used = min(terms.group, terms.values - position * terms.group)
            unused = (1 << 8 * terms.content_bytes) - (1 << used)  # bits that stand for no value
            heard: set[bytes] = set()
            for _ in range(self.clients):
                found = _open_one(bytes(self.envelopes[start : start + size]), server, info, heard, unused)
                start += size
                if isinstance(found, str):
                    refused[found] += 1
                else:
                    contents[good[k], k] = np.frombuffer(found, np.uint8)
                    good[k] += 1
        return Opening(contents, good, dict(refused))


def divide(batch: bytes, terms: Terms, parts: int) -> list[Sealed]:
    """A batch in so many parts of about as many positions, fewer where it has not as many; another's is refused."""
    _, (group, size, positions, clients, digest), _, envelopes = _BATCH.unpack(memoryview(batch))
    if digest != terms.digest or (size, positions) != (envelope_bytes(terms), terms.positions):
        raise InvalidInput("this batch is of another round than these terms")
    each = size * clients
    if clients < 1 or len(envelopes) != each * positions:
        raise InvalidInput(f"a batch of {clients} clients has another length than {len(batch)} bytes: fetch it again")
    edges = sorted({positions * k // parts for k in range(parts + 1)})
    return [Sealed(group, clients, a, envelopes[each * a : each * b]) for a, b in pairwise(edges)]


def join_parts(group: int, parts: Sequence[Opening], terms: Terms) -> OpenedBatch:
    """All parts of a batch, in their order, opened."""
    good = min(int(part.good.min()) for part in parts)
    contents = np.concatenate([part.contents for part in parts], axis=1)[:good]
    bits = np.unpackbits(contents, axis=2, bitorder="little")[:, :, : terms.group]
    bits = bits.reshape(good, terms.positions * terms.group)[:, : terms.values]
    refused = sum((Counter(part.refused) for part in parts), Counter[str]())
    return OpenedBatch(group, BitOutput(np.packbits(bits, axis=1, bitorder="little"), terms.values), dict(refused))


def _open_one(envelope: bytes, server: X25519PrivateKey, info: bytes, heard: set[bytes], unused: int) -> bytes | str:
    """The content, or why there is none. A nonce counts as heard once it has opened: no rubbish can take its place."""
    nonce = envelope[:NONCE_BYTES]
    if nonce in heard:
        return "repeated"
    try:
        content = _SUITE.decrypt(envelope, server, info=info)
    except InvalidTag:
        return "damaged"
    if int.from_bytes(content, "little") & unused:
        return "outside the output set"
    heard.add(nonce)
    return content


__all__ = ["Body", "OpenedBatch", "seal", "spread"]

"""One AES-256 keystream for every random decision, laid out so that two languages agree bit for bit (docs/bits.md).

A real client draws a fresh key from the operating system for every release (`Keystream.fresh`); nothing a server sends
selects its randomness. Addressing by client and round (`Keystream.simulation`) serves simulations and test vectors:
there, what a client draws does not depend on the order or grouping in which clients are computed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from enum import IntEnum
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from sordino.errors import InvalidInput

Words = NDArray[np.uint32]
Rows = NDArray[np.intp]

KEY_BYTES = 32
BLOCK_WORDS = 4
MAX_BLOCKS = 2**32
STREAM_WORDS = BLOCK_WORDS * MAX_BLOCKS  #: of one stream


class Purpose(IntEnum):
    """What a stream of words is used for; the number is part of the counter block."""

    NOISE = 1  #: the mechanism's own draw
    ORDER = 2  #: sample order, dropout and augmentation of local training
    SPLIT = 3  #: splitting data among simulated clients
    SELECT = 4  #: choosing clients
    INIT = 5  #: initial parameters
    EVALUATION = 6  #: the noise of a private evaluation
    REDRAW = 256  #: first of the purposes used to draw again what fell outside a range (256, 257, ...)
    LONGER = 2**15  #: first of the purposes in which streams of local training go on that are longer than one


class Randomness(Protocol):
    """Where a mechanism's random words come from: an AES keystream, or a device's own generator in simulations."""

    @property
    def clients(self) -> int: ...

    def words(self, rows: Rows, purpose: int, tensor: int, first: int, count: int) -> Words:
        """`[len(rows), count]` words of each client's stream, from word `first` (a multiple of 4) on."""
        ...


class Keystream:
    """AES-256 over counter blocks `client u32 | round u32 | purpose u16 | tensor u16 | block u32`, big-endian.

    Not to be shared between threads: its cipher has a position.
    """

    def __init__(self, key: bytes, clients: Sequence[int] | NDArray[np.integer], round: int) -> None:
        if len(key) != KEY_BYTES:
            raise InvalidInput(f"an AES-256 key has {KEY_BYTES} bytes, got {len(key)}")
        ids = np.asarray(clients)
        if ids.ndim != 1 or ids.size == 0 or ids.dtype.kind not in "iu":
            raise InvalidInput("clients must be a non-empty list of whole numbers, one per row")
        if ids.min() < 0 or ids.max() >= 2**32:
            raise InvalidInput("client numbers must lie in 0 .. 2^32-1")
        _check_field("round", round, 32)
        self._ids = ids.astype(np.uint64)
        self._round = int(round)
        cipher = algorithms.AES(key)
        self._blocks = Cipher(cipher, modes.ECB()).encryptor()
        self._counting = Cipher(cipher, modes.CTR(bytes(16))).encryptor()
        self._zeros = np.zeros(0, np.uint8)
        self._read_to: dict[tuple[int, int], int] | None = None  # where each stream of a fresh key has been read to

    @classmethod
    def fresh(cls) -> Keystream:
        """A real client's randomness: a new key from the operating system, for one release and no other.

        No word of it is given out twice: two releases under the same words would reveal what differs between them.
        """
        stream = cls(os.urandom(KEY_BYTES), [0], 0)
        stream._read_to = {}
        return stream

    @classmethod
    def simulation(cls, seed: int, clients: Sequence[int] | NDArray[np.integer], round: int) -> Keystream:
        """Reproducible randomness for K simulated clients: the same words whatever the grouping of clients."""
        return cls(simulation_key(seed), clients, round)

    @property
    def clients(self) -> int:
        return int(self._ids.size)

    def words(self, rows: Rows, purpose: int, tensor: int, first: int, count: int) -> Words:
        _check_field("purpose", purpose, 16)
        _check_field("tensor", tensor, 16)
        if first % BLOCK_WORDS or first < 0 or count < 1:
            raise InvalidInput(f"words are read from a multiple of {BLOCK_WORDS} on, got first={first}, count={count}")
        start, blocks = first // BLOCK_WORDS, -(-count // BLOCK_WORDS)
        if start + blocks > MAX_BLOCKS:
            raise InvalidInput("one stream holds 2^34 words: split the vector into several tensors")
        self._forbid_reuse((int(purpose), int(tensor)), start, blocks)
        last = (int(purpose) << 16 | int(tensor)) << 32 | start
        stream = self._one_client(rows, last, blocks) if len(rows) == 1 else self._many_clients(rows, last, blocks)
        return stream.view("<u4").reshape(len(rows), blocks * BLOCK_WORDS)[:, :count]

    def _forbid_reuse(self, stream: tuple[int, int], start: int, blocks: int) -> None:
        if self._read_to is None:
            return
        if start < self._read_to.get(stream, 0):
            raise InvalidInput(
                "this fresh key was already used here: take Keystream.fresh() for every release, and number its tensors"
            )
        self._read_to[stream] = start + blocks

    def _one_client(self, rows: Rows, last: int, blocks: int) -> NDArray[np.uint8]:
        """Counter mode from one counter block on: the cipher counts by itself."""
        nonce = int(self._ids[rows[0]]) << 96 | self._round << 64 | last
        self._counting.reset_nonce(nonce.to_bytes(16, "big"))
        if self._zeros.size < 16 * blocks:
            self._zeros = np.zeros(16 * blocks, np.uint8)
        stream = np.empty(16 * blocks + 15, dtype=np.uint8)
        self._counting.update_into(self._zeros[: 16 * blocks].data, stream.data)
        return stream[: 16 * blocks]

    def _many_clients(self, rows: Rows, last: int, blocks: int) -> NDArray[np.uint8]:
        """One call of the block cipher over the counter blocks of all clients, side by side."""
        counters = np.empty((len(rows), blocks, 2), dtype=">u8")
        counters[:, :, 0] = (self._ids[rows] << np.uint64(32) | np.uint64(self._round))[:, None]
        counters[:, :, 1] = np.arange(last, last + blocks, dtype=np.uint64)
        stream = np.empty(counters.nbytes + 15, dtype=np.uint8)
        self._blocks.update_into(counters.data.cast("B"), stream.data)
        return stream[: counters.nbytes]


def _check_field(name: str, value: int, bits: int) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value < 2**bits:
        raise InvalidInput(f"{name} must be a whole number from 0 to 2^{bits}-1, got {value!r}")


def threshold(rate: float) -> int:
    """floor(rate 2^32), exactly: below it are so many of the 2^32 words that none makes a share above `rate`."""
    if not 0 <= rate <= 1:
        raise InvalidInput(f"a sampling rate must lie in [0, 1], got {rate!r}")
    return int(float(rate) * 2**32)  # a power of two: the product is not rounded


def another_seed(seed: int, number: int) -> int:
    """The seed so many further on; after the last comes the first."""
    return (seed + number) % 2**64


def simulation_key(seed: int) -> bytes:
    """The key of a simulation: SHA-256 of a fixed prefix and the seed as eight little-endian bytes."""
    if not isinstance(seed, int) or not 0 <= seed < 2**64:
        raise InvalidInput(f"a seed is a whole number from 0 to 2^64-1, got {seed!r}")
    return hashlib.sha256(b"sordino simulation v1" + seed.to_bytes(8, "little")).digest()

"""The random decisions of local training, each from the client's own keystream under `Purpose.ORDER`.

Nothing here touches a global generator, and no client's draw depends on which others are computed beside it. A stream
is addressed by (client, round, purpose, kind of draw, position); what is drawn in one step or epoch begins at a
position that depends on that client's own number of records alone.
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from sordino.randomness import BLOCK_WORDS, STREAM_WORDS, Purpose, Randomness, Rows, Words, threshold

Indices = NDArray[np.int64]


class Stream(IntEnum):
    """What a stream of local training is used for; the number is the tensor field of its counter block."""

    ORDER = 0  #: the order of records in each epoch
    SAMPLE = 1  #: Poisson batches of private training
    NOISE = 2  #: discrete Gaussian noise of private training
    AUGMENT = 3  #: augmentation
    DROPOUT = 4  #: dropout masks
    COARSEN = 5  #: how sums of private training are rounded
    SEED = 6  #: where PyTorch's generator starts in a step, for models that draw from it


def draw(randomness: Randomness, rows: Rows, kind: Stream, turn: int, count: int, most: int | None = None) -> Words:
    """`[len(rows), count]` words: what clients who draw at most `most` words each time draw in turn 0, 1, ..."""
    return draw_from(randomness, rows, kind, beginning(turn, most or count), count)


def beginning(turn: int, most: int) -> int:
    """Where turn 0, 1, ... of a client begins who draws at most `most` words each time."""
    return turn * -(-most // BLOCK_WORDS) * BLOCK_WORDS


def draw_from(randomness: Randomness, rows: Rows, kind: Stream, place: int, count: int) -> Words:
    """`[len(rows), count]` words from a place on, which is a multiple of 4: a turn may be drawn in parts."""
    stream, position = divmod(place, STREAM_WORDS)
    here = min(count, STREAM_WORDS - position)
    found = randomness.words(rows, *_address(kind, stream), position, here)
    if here == count:
        return found
    return np.concatenate([found, randomness.words(rows, *_address(kind, stream + 1), 0, count - here)], axis=1)


def _address(kind: Stream, stream: int) -> tuple[int, int]:
    """The purpose and tensor of a draw's stream 0, 1, ...: together 2^60 words.

    How many words are drawn grows with the number of records, which is private: that it is large must break nothing.
    """
    return divmod((Purpose.LONGER << 16) + (kind << 26) + stream, 2**16) if stream else (Purpose.ORDER, kind)


def _wide(words: Words) -> NDArray[np.uint64]:
    """64-bit numbers from pairs of words, the first word being the lower half."""
    return np.ascontiguousarray(words).view("<u8")


def orders(randomness: Randomness, rows: Rows, epoch: int, records: int) -> Indices:
    """A permutation of `records` numbers for each client: the ranks of 64-bit words.

    Uniform but for ties among the words, whose probability is below records^2 / 2^65.
    """
    keys = _wide(draw(randomness, rows, Stream.ORDER, epoch, 2 * records))
    return np.argsort(keys, axis=1, kind="stable")


def poisson_samples(randomness: Randomness, row: int, step: int, records: int, rate: float) -> Indices:
    """The records of one client's Poisson batch: each with probability floor(rate 2^32) / 2^32, never above `rate`."""
    words = draw(randomness, np.array([row]), Stream.SAMPLE, step, records)[0]
    return np.flatnonzero(words.astype(np.uint64) < np.uint64(threshold(rate)))


def seeds(randomness: Randomness, rows: Rows, step: int) -> tuple[int, ...]:
    """A 64-bit seed for each client in this step."""
    return tuple(_wide(draw(randomness, rows, Stream.SEED, step, 2))[:, 0].tolist())


def uniforms(words: Words) -> NDArray[np.float32]:
    """Float32 numbers in [0, 1), one per word."""
    return (words >> np.uint32(8)).astype(np.float32) * np.float32(2.0**-24)


def alike(*keys: NDArray[np.int64]) -> list[Rows]:
    """Positions with equal keys together, so that one call serves each group."""
    if all((key == key[0]).all() for key in keys):
        return [np.arange(len(keys[0]))]
    _, group = np.unique(np.stack(keys), axis=1, return_inverse=True)
    return [np.flatnonzero(group == g) for g in range(int(group.max()) + 1)]

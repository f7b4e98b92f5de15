"""Walker's alias method on integers: one 64-bit word draws from any table of integer weights that sum to 2^64, exactly.

The low m bits of the word choose a cell, the word itself is compared with the cell's threshold, and the cell's own
index or its alias is the result. The probability of index i is weights[i]/2^64, with no rounding anywhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput

TOTAL = 2**64


class AliasTable:
    """Draws indices with probability weights[i] / 2^64."""

    def __init__(self, weights: Sequence[int]) -> None:
        if sum(weights) != TOTAL or min(weights) < 0:
            raise InvalidInput("the weights of a table must be whole numbers >= 0 with sum 2^64")
        self.weights = tuple(weights)
        self.bits = max(1, (len(weights) - 1).bit_length())
        thresholds, aliases = _build(weights, self.bits)
        self.thresholds = np.array(thresholds, dtype=np.uint64)  #: below which a word takes its own cell
        self.aliases = np.array(aliases, dtype=np.int64)  #: the index that other words of a cell take
        self._mask = np.uint64((1 << self.bits) - 1)

    def draw(self, words: NDArray[np.uint64]) -> NDArray[np.int64]:
        """One index per word."""
        index = np.bitwise_and(words, self._mask).view(np.int64)
        keep = words < self.thresholds.take(index, mode="clip")
        return np.where(keep, index, self.aliases.take(index, mode="clip"))

    def packed(self, first: int = 0) -> str:
        """The weights from `first` on, as pages read them: base64 of little-endian 64-bit words."""
        return base64.b64encode(np.array(self.weights[first:], "<u8").tobytes()).decode()

    def sha256(self) -> str:
        """The hash of all weights."""
        return hashlib.sha256(np.array(self.weights, "<u8").tobytes()).hexdigest()


def _build(weights: Sequence[int], bits: int) -> tuple[list[int], list[int]]:
    """Thresholds (shifted to the top of the word) and aliases; cells are filled in ascending order of index."""
    cells, capacity = 1 << bits, TOTAL >> bits
    left = [*weights, *[0] * (cells - len(weights))]
    threshold, alias = [0] * cells, list(range(cells))
    small = [i for i in range(cells - 1, -1, -1) if left[i] < capacity]
    large = [i for i in range(cells - 1, -1, -1) if left[i] > capacity]
    while small:
        i, j = small.pop(), large[-1]
        threshold[i], alias[i] = left[i] << bits, j
        left[j] -= capacity - left[i]
        if left[j] <= capacity:
            large.pop()
            if left[j] < capacity:
                small.append(j)
    return threshold, alias  # an exactly full cell keeps threshold 0 and itself as its alias

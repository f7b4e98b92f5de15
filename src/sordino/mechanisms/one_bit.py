"""Mechanisms that report every value of a box as one randomised bit: what they have in common.

A value becomes a threshold t of 32 bits with a sign, and its bit is 1 when a uniform signed word lies below t. So the
probability of a one is 1/2 + t/2^32, exactly.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino.mechanisms import likelihood, reach
from sordino.mechanisms.arrays import Float32s, Float64s, Floats, Int64s, Vector, store_tile, tile_of, tile_shape, tiles
from sordino.mechanisms.domain import Box
from sordino.mechanisms.integers import HALF
from sordino.mechanisms.interface import Diagnostics, Mechanism, Randomized, values_affected
from sordino.mechanisms.laws import Atoms
from sordino.mechanisms.output import BitOutput, Output, decode_bits
from sordino.privacy.guarantee import SERVER, Adjacency, Guarantee, RandomizedBit
from sordino.randomness import Purpose, Randomness, Rows


class OneBit(Mechanism):
    """One bit per value; of 2^32 words at least `t_min` lead to either bit, whatever the value."""

    domain: Box
    t_min: Int64s  #: one per client, or one for all

    @abstractmethod
    def _thresholds(self, z: Float32s, rows: Rows, out: NDArray[np.int32]) -> None:
        """Write t for values z in [-1, 1] of these rows; z may be overwritten."""

    @abstractmethod
    def _alike(self, rows: int) -> NDArray[np.intp]:
        """`[K]` numbers; `_thresholds` is called with rows that have the same."""

    def _points(self, rows: int) -> tuple[Float64s | float, Float64s | float]:
        """The middle of a value's two estimates, and how far either lies from it."""
        return 0.0, 1.0

    def randomize(self, values: ArrayLike, randomness: Randomness, *, tensor: int = 0) -> Randomized:
        w = self.values_of(values, randomness)
        clients, d = w.shape
        packed = np.empty((clients, -(-d // 8)), np.uint8)
        clipped = np.zeros(clients)
        shape = tile_shape(clients, d)
        scratch = np.empty(shape, np.float32), np.empty(shape, np.int32), np.empty(shape, np.bool_)
        for rows, cols in tiles(self._alike(clients), d):
            window = (slice(0, rows.size), slice(0, cols.stop - cols.start))
            z, t, bits = scratch[0][window], scratch[1][window], scratch[2][window]
            _, outside = self.domain.normalise(tile_of(w, rows, cols), cols, out=z)
            clipped[rows] += outside
            self._thresholds(z, rows, t)
            u = randomness.words(rows, Purpose.NOISE, tensor, cols.start, t.shape[1]).view(np.int32)
            np.less(u, t, out=bits)
            store_tile(packed, rows, slice(cols.start // 8, -(-cols.stop // 8)), BitOutput.pack(bits).packed)
        return Randomized(BitOutput(packed, d), Diagnostics(clipped / d, self._noise_scale(clients)))

    def _noise_scale(self, rows: int) -> Float64s:
        return np.ones(rows)

    def votes(self, output: Output) -> Float32s:
        """`[K, d]` bits as +1 and -1."""
        if not isinstance(output, BitOutput):
            raise TypeError(f"the mechanism {self.name} puts out bits, not {type(output).__name__}")
        self.check_rows(len(output.packed))
        self.domain.check_values(output.values)
        return output.bits().astype(np.float32) * 2 - 1

    def estimate(self, output: Output) -> Floats:
        return self.votes(output)

    def mean(self, values: ArrayLike) -> Float64s:
        """E[vote], exactly: from the very thresholds that words are compared with."""
        w = self.values_of(values)
        z, _ = self.domain.normalise(w, slice(0, w.shape[1]))
        t = np.empty(w.shape, np.int32)
        for k in range(len(w)):
            self._thresholds(z[k : k + 1], np.array([k]), t[k : k + 1])
        return t / HALF

    def bias(self, values: ArrayLike) -> Float64s:
        mean = self.mean(values)
        middle, distance = self._points(len(mean))
        return np.asarray(middle + distance * mean - self.values_of(values))

    def variance(self, values: ArrayLike) -> Float64s:
        mean = self.mean(values)
        return np.asarray(self._points(len(mean))[1] ** 2 * (1 - mean**2))

    def guarantee(self, adjacency: Adjacency = Adjacency.CLIENT, *, values: int = 1, client: int = 0) -> Guarantee:
        row = self.row_of(client)
        t_min = int(self.t_min[row])
        basis = f"bits with probabilities in [{t_min}, 2^32 - {t_min}]/2^32, by enumeration{self._cap_note(row)}"
        return Guarantee(SERVER, adjacency, RandomizedBit(t_min, values_affected(adjacency, values)), basis)

    def _cap_note(self, row: int) -> str:
        """What to say where the epsilon asked for was capped."""
        return ""

    def decode(self, reports: Sequence[bytes], values: int) -> Output:
        self.check_rows(len(reports))
        return decode_bits(reports, values)

    # --- audits

    def one_probability(self, values: Vector) -> Float64s:
        """The probability of a one for `[d]` values of the first client."""
        return np.asarray((1 + self.mean(values[None])[0]) / 2)

    def law(self, values: Vector) -> Atoms:
        return Atoms.bits(self.one_probability(values))

    def likelihood_ratio(self, first: Vector, second: Vector) -> likelihood.Ratio:
        return likelihood.of_bits(self.one_probability(first), self.one_probability(second))

    def _extent(self, values: int, limit: float | None) -> reach.Reach:
        low, high = (BitOutput.pack(np.full((1, values), bit)) for bit in (False, True))
        return reach.between(self, low, high, "a value is one of two points")

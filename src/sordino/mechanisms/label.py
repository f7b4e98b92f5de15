"""k-ary randomised response (Kairouz, Bonawitz, Ramage 2016) for labels: the true one, or any other with equal chance.

    Pr[y = v] = e^eps / (e^eps + k - 1).

All probabilities are whole numbers: the label is kept when a word lies below t, else another is chosen by a second
word; t is the largest for which kept and least likely other keep a ratio of at most e^eps, exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino.errors import InvalidInput
from sordino.mechanisms import cases, reach
from sordino.mechanisms.arrays import Float64s, Floats, Int64s, as_array, per_client, row_parameters, store_tile, tiles
from sordino.mechanisms.cases import Case, Specimen
from sordino.mechanisms.domain import FiniteSet
from sordino.mechanisms.integers import ONE, check_epsilon, exp_bounds, log_ratio
from sordino.mechanisms.interface import Diagnostics, Randomized
from sordino.mechanisms.laws import Atoms
from sordino.mechanisms.output import Output
from sordino.mechanisms.reach import Reach
from sordino.mechanisms.whole_numbers import WholeNumbers
from sordino.privacy.guarantee import SERVER, Adjacency, Guarantee, Pure, as_adjacency, check_count
from sordino.randomness import Purpose, Randomness

_BITS = 192


class RandomizedLabel(WholeNumbers):
    """`[K, n]` labels in 0 .. size-1, each randomised once; `epsilon` is per label."""

    name: ClassVar[str] = "label"
    limited_by = "a label is one of the set"

    def __init__(self, epsilon: ArrayLike, domain: FiniteSet) -> None:
        self.epsilon = per_client("epsilon", epsilon, low=0, high=np.inf)
        self.domain: FiniteSet = domain
        self._keep = np.array([self._threshold(check_epsilon(float(e))) for e in self.epsilon], dtype=np.int64)
        self.parameter_sets = self.epsilon.size

    def _threshold(self, epsilon: float) -> int:
        """The largest t with t 2^32 <= e^eps (2^32 - t) floor(2^32 / (k-1)), and no less than an even chance."""
        others = self.domain.size - 1
        least, most = ONE // others, -(-ONE // others)
        power = Fraction(exp_bounds(Fraction(epsilon), _BITS)[0], 1 << _BITS)
        t = min(int(power * ONE * least / (ONE + power * least)), ONE - 1)
        if t * ONE <= (ONE - t) * most:
            raise InvalidInput(
                f"epsilon {epsilon:g} over {self.domain.size} labels leaves no signal in 32 bits: raise epsilon"
            )
        return t

    def limits(self, values: int, rows: int) -> tuple[Int64s, Int64s]:
        return np.zeros(rows, np.int64), np.full(rows, self.domain.size - 1, np.int64)

    def _labels(self, values: ArrayLike, randomness: Randomness | None = None) -> Int64s:
        array = as_array("labels", values)
        if array.ndim == 1:
            array = array[None, :]
        if array.dtype.kind not in "iu" or array.ndim != 2 or array.size == 0:
            raise InvalidInput(f"labels must be whole numbers [n] or [K, n], got {array.dtype} {array.shape}")
        if array.min() < 0 or array.max() >= self.domain.size:
            raise InvalidInput(f"labels must lie in 0 .. {self.domain.size - 1}, got {array.min()} to {array.max()}")
        self.check_rows(len(array), randomness)
        return array.astype(np.int64)

    def randomize(self, values: ArrayLike, randomness: Randomness, *, tensor: int = 0) -> Randomized:
        labels = self._labels(values, randomness)
        clients, n = labels.shape
        keep = row_parameters(self._keep, clients).astype(np.uint32)
        top, out = self.domain.size - 1, self.empty(clients, n)
        for rows, cols in tiles(np.zeros(clients), n):
            words = randomness.words(rows, Purpose.NOISE, tensor, 2 * cols.start, 2 * (cols.stop - cols.start))
            tile = labels[rows, cols]
            shift = 1 + (words[:, 1::2].astype(np.uint64) * np.uint64(top) >> np.uint64(32)).astype(np.int64)
            other = (tile + shift) % self.domain.size
            store_tile(out.array, rows, cols, np.where(words[:, 0::2] < keep[rows, None], tile, other))
        scale = np.sqrt([self._count_variance(k) for k in row_parameters(self._keep, clients)])
        return Randomized(out, Diagnostics(np.zeros(clients), scale))

    def _row_probabilities(self, rows: int) -> tuple[Float64s, Float64s]:
        """`[K, 1, 1]` each: of the label itself, and of any other."""
        return self._probabilities(row_parameters(self._keep, rows)[:, None, None])

    def _probabilities(self, keep: int | Int64s) -> tuple[Float64s, Float64s]:
        p = np.asarray(keep / ONE, dtype=np.float64)
        return p, (1 - p) / (self.domain.size - 1)

    def _count_variance(self, keep: int) -> float:
        p, q = self._probabilities(keep)
        return float(q * (1 - q) / (p - q) ** 2)

    def estimate(self, output: Output) -> Floats:
        """`[K, n, size]`: an unbiased estimate of each label's one-hot vector; its mean estimates frequencies."""
        whole = self.whole(output)
        p, q = self._row_probabilities(len(whole))
        return np.asarray(((whole[..., None] == np.arange(self.domain.size)) - q) / (p - q))

    def bias(self, values: ArrayLike) -> Float64s:
        """Only what the unequal split of 2^32 words among the other labels leaves."""
        labels = self._labels(values)
        p, q = self._row_probabilities(len(labels))
        steps = (np.arange(self.domain.size) - labels[..., None]) % self.domain.size
        share, hot = self._shares()[steps], steps == 0
        return np.asarray((np.where(hot, p, (1 - p) * share) - q) / (p - q) - hot)

    def _shares(self) -> Float64s:
        """`[size]`: how often a second word chooses the i-th label after the true one; 0 for that itself."""
        edges = -(-np.arange(self.domain.size) * ONE // (self.domain.size - 1))  # words that choose an earlier label
        return np.concatenate([[0.0], np.diff(edges) / ONE])

    def variance(self, values: ArrayLike) -> Float64s:
        labels = self._labels(values)
        p, q = self._row_probabilities(len(labels))
        hot = labels[..., None] == np.arange(self.domain.size)
        return np.where(hot, p * (1 - p), q * (1 - q)) / (p - q) ** 2

    def guarantee(self, adjacency: Adjacency = Adjacency.LABEL, *, values: int = 1, client: int = 0) -> Guarantee:
        """One label (which also covers a record with a changed label), or `values` labels of a whole client."""
        adjacency, values = as_adjacency(adjacency), check_count("values", values)
        keep = int(self._keep[self.row_of(client)])
        least = ONE // (self.domain.size - 1)
        loss = log_ratio(keep * ONE, (ONE - keep) * least)
        if adjacency is Adjacency.RECORD_ADD_REMOVE:
            raise InvalidInput("the number of labels shows whether a record is there: ask for replacement instead")
        count = values if adjacency is Adjacency.CLIENT else 1
        return Guarantee(SERVER, adjacency, Pure(loss * count), f"{count} labels of {self.domain.size}, enumerated")

    # --- audits

    def law(self, values: NDArray[np.integer]) -> Atoms:
        """`[size, d]`: the label itself, or another, which a second word chooses among the rest."""
        keep = int(self._keep[0]) / ONE
        steps = (np.arange(self.domain.size)[:, None] - values[None, :]) % self.domain.size
        return Atoms(np.where(steps == 0, keep, (1 - keep) * self._shares()[steps]))

    def _extent(self, values: int, limit: float | None) -> Reach:
        """Labels estimate one-hot vectors `[n, size]`: another label moves two entries of each."""
        size = self.domain.size
        ends = [reach.whole(y, values, 0, size - 1) for y in (size - 1, 0)]
        low, high = (np.asarray(self.estimate(end)[0], np.float64) for end in ends)
        spread = np.full(values * size, 1.0)
        reports = (self.encode(ends[0])[0], self.encode(ends[1])[0])
        length = float(np.linalg.norm(high - low))
        return Reach(low.min() * spread, low.max() * spread, length, reports, self.limited_by)

    @classmethod
    def audit_cases(cls, epsilon: float) -> Iterator[Case]:
        mechanism = cls(epsilon, FiniteSet(10))
        score = lambda output: (output.numbers()[0] == 3) * 1.0 - (output.numbers()[0] == 7)  # noqa: E731
        sampler = cases.columns(mechanism, 3, 7, score)
        yield Case.of(cases.promised(cls.name, "one label of 10", mechanism.guarantee(), "two labels"), sampler)

    @classmethod
    def specimens(cls, epsilon: float) -> Iterator[Specimen]:
        mechanism = cls(epsilon, FiniteSet(10))
        return cases.deep_and_wide(mechanism, mechanism.guarantee())

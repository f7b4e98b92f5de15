"""The exponential mechanism on integers of LDP-Fed (Truex et al. 2020; Gursoy et al. 2019, Ordinal-CLDP).

An update x is clipped to [-c, c] and coded as the integer v = round(x 10^rho) in [-M, M], M = c 10^rho. Then

    Pr[y | v] = e^(-alpha |v - y| / 2) / sum_z e^(-alpha |v - z| / 2),     y in [-M, M].

The range may hold 2 * 10^10 integers: y - v is drawn as two-sided geometric noise from a few small tables, and drawn
again where y leaves the range, which gives exactly this law in constant time. alpha-CLDP is a metric guarantee; as
plain local privacy on [-M, M] it is epsilon = alpha * M for each value, half of what its definition suggests.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from sordino.errors import InvalidInput
from sordino.mechanisms import cases, likelihood
from sordino.mechanisms.arrays import Float64s, Floats, Int64s, Vector, per_client, store_tile, tile_of, tiles
from sordino.mechanisms.cases import ENDS, Case, Specimen
from sordino.mechanisms.domain import IntegerRange
from sordino.mechanisms.integers import MIN_EPSILON
from sordino.mechanisms.interface import Diagnostics, Mechanism, Randomized, values_affected
from sordino.mechanisms.laws import TwoSided
from sordino.mechanisms.likelihood import Ratio
from sordino.mechanisms.noise import GeometricNoise, geometric_noise
from sordino.mechanisms.output import Output
from sordino.mechanisms.spec import MechanismSpec, Vectors
from sordino.mechanisms.tuning import Ranges, Tuning
from sordino.mechanisms.whole_numbers import WholeNumbers
from sordino.parts.lazy import lazy_module
from sordino.parts.tables import tag
from sordino.privacy.guarantee import SERVER, Adjacency, Claim, Guarantee, Metric, Pure, check_count
from sordino.randomness import Purpose, Randomness, Rows, Words

if TYPE_CHECKING:
    import mpmath
else:
    mpmath = lazy_module("mpmath")

REDRAW_BLOCK = 2**18  #: columns whose redraws are made together
MAX_REDRAWS = 512  #: a draw is kept with probability above 1/5, so this many fail with probability below 10^-49

_Missing = tuple[NDArray[np.intp], NDArray[np.intp], Int64s]  # row in the tile, column, coded value


class Exponential(WholeNumbers):
    """Ordinal-CLDP on updates coded as integers (LDP-Fed); `alpha` is per value: a scalar, or one per client."""

    name: ClassVar[str] = "exponential"
    limited_by = "outputs lie in the clipping range"

    class Spec(MechanismSpec):
        """The exponential mechanism on integers (LDP-Fed); `clients.epsilon` is its alpha."""

        noise: ClassVar[str] = "coded"
        name: str = tag("exponential", "values coded as integers; clients.epsilon is its alpha")
        precision: Annotated[int, Ge(0), Le(18)] = Field(default=10, description="decimals kept when values are coded")
        around_zero: ClassVar[bool] = True

        def build(self, epsilon: float | None, vectors: Vectors) -> Mechanism:
            clip = vectors.radius("updates are coded with one precision")
            return Exponential(self.needed(epsilon), IntegerRange(clip, self.precision))

    def __init__(self, alpha: ArrayLike, domain: IntegerRange) -> None:
        self.alpha = per_client("alpha", alpha, low=0, high=64)
        self.domain: IntegerRange = domain
        self.parameter_sets = self.alpha.size
        if (self.alpha * domain.bound < 1e-6 * (1 - 1e-9)).any():
            raise InvalidInput(
                f"alpha * c * 10^rho is {self.alpha.min() * domain.bound:g}; the tables resolve 1e-6 and more: "
                "raise alpha, c or rho, or spread the budget over fewer values"
            )
        self._noise = [_calibrated(a, domain.bound) for a in self.alpha.tolist()]

    def limits(self, values: int, rows: int) -> tuple[Int64s, Int64s]:
        most = np.full(rows, self.domain.bound, np.int64)
        return -most, most

    def _coded(self, w: Floats) -> tuple[Int64s, NDArray[np.intp]]:
        """v = round(x 10^rho), clipped to [-M, M], and how many of each row lay outside."""
        bound = self.domain.bound
        with np.errstate(over="ignore"):
            scaled = np.multiply(w, 10.0**self.domain.precision, dtype=np.float64)
        if max(scaled.max(), -scaled.min()) <= bound:
            return np.rint(scaled, out=scaled).astype(np.int64), np.zeros(len(w), np.intp)
        outside = (np.abs(scaled) > bound).sum(axis=1)
        return np.rint(np.clip(scaled, -bound, bound, out=scaled), out=scaled).astype(np.int64), outside

    def randomize(self, values: ArrayLike, randomness: Randomness, *, tensor: int = 0) -> Randomized:
        w = self.values_of(values, randomness)
        clients, d = w.shape
        which, bound, out = self.row_sets(clients), self.domain.bound, self.empty(clients, d)
        clipped = np.zeros(clients)
        missing: list[_Missing] = []
        for rows, cols in tiles(which, d, self._noise[0].words_per_value):
            noise = self._noise[which[rows[0]]]
            v, outside = self._coded(tile_of(w, rows, cols))
            clipped[rows] += outside / d
            first = cols.start * noise.words_per_value
            y = noise.draw(randomness.words(rows, Purpose.NOISE, tensor, first, v.shape[1] * noise.words_per_value))
            y += v
            if y.max() > bound or y.min() < -bound:
                row, col = np.nonzero(np.abs(y) > bound)
                missing.append((row, col + cols.start, v[row, col]))
                y[row, col] = 0
            store_tile(out.array, rows, cols, y)
            if missing and (cols.stop == d or cols.stop % REDRAW_BLOCK == 0):
                first = (cols.stop - 1) // REDRAW_BLOCK * REDRAW_BLOCK * noise.words_per_value

                def again(attempt: int, count: int, rows: Rows = rows, first: int = first) -> Words:
                    return randomness.words(rows, Purpose.REDRAW + attempt, tensor, first, count)

                self._redraw(out.array, rows, missing, noise, again)
                missing = []
        distinct, index = np.unique(self.alpha, return_inverse=True)
        scale = np.sqrt([self._moments_at(0, a)[1] for a in distinct.tolist()]) * 10.0**-self.domain.precision
        return Randomized(out, Diagnostics(clipped, scale[index][which]))

    def _redraw(
        self,
        out: NDArray[np.signedinteger],
        rows: Rows,
        missing: list[_Missing],
        noise: GeometricNoise,
        words: Callable[[int, int], Words],
    ) -> None:
        """Draw again what left the range, until all is inside.

        Each attempt has a stream of its own, read in the order of a client's missing values in a block of columns: what
        a client draws does not depend on its neighbours.
        """
        row, col, v = (np.concatenate(part) for part in zip(*missing, strict=True))
        order = np.lexsort((col, row))
        row, col, v = row[order], col[order], v[order]
        w = noise.words_per_value
        for attempt in range(MAX_REDRAWS):
            counts = np.bincount(row, minlength=len(rows))
            rank = np.arange(row.size) - (np.cumsum(counts) - counts)[row]
            fresh = words(attempt, int(counts.max()) * w)
            y = v + noise.draw(fresh.reshape(len(rows), -1, w)[row, rank])[:, 0]
            inside = np.abs(y) <= self.domain.bound
            out[rows[row[inside]], col[inside]] = y[inside]
            row, col, v = row[~inside], col[~inside], v[~inside]
            if not row.size:
                return
        raise ArithmeticError("the exponential mechanism found no output in its range; nothing was released")

    def estimate(self, output: Output) -> Floats:
        return self.whole(output) * 10.0**-self.domain.precision

    def _moments_at(self, v: int, alpha: float) -> tuple[float, float]:
        """Mean and variance of y - v: the closed sums of a truncated two-sided geometric law."""
        a, b = self.domain.bound + v, self.domain.bound - v
        with mpmath.workdps(60):
            lam = mpmath.exp(-mpmath.mpf(alpha) / 2)
            below, above = _sums(lam, a), _sums(lam, b)
            z = 1 + below[0] + above[0]
            mean = (above[1] - below[1]) / z
            return float(mean), float((below[2] + above[2]) / z - mean**2)

    def _moments(self, values: ArrayLike) -> tuple[Floats, Float64s, Float64s]:
        w = self.values_of(values)
        v, _ = self._coded(w)
        alphas = self.alpha[self.row_sets(len(w))].tolist()
        moments = np.array([[self._moments_at(int(x), a) for x in row] for row, a in zip(v, alphas, strict=True)])
        unit = 10.0**-self.domain.precision
        return w, unit * (v + moments[..., 0]), unit**2 * moments[..., 1]

    def bias(self, values: ArrayLike) -> Float64s:
        """Towards zero near the clip: [S1(M - v) - S1(M + v)]/Z, in the units of the values."""
        w, mean, _ = self._moments(values)
        return mean - w

    def variance(self, values: ArrayLike) -> Float64s:
        return self._moments(values)[2]

    def guarantee(self, adjacency: Adjacency = Adjacency.CLIENT, *, values: int = 1, client: int = 0) -> Guarantee:
        k = self.row_of(client)
        alpha, noise, bound = float(self.alpha[k]), self._noise[k], self.domain.bound
        count = values_affected(adjacency, values)
        if _step_loss(noise) <= alpha:
            basis = f"exponential mechanism on {2 * bound + 1} integers: alpha at every distance, table enumerated"
            return Guarantee(SERVER, adjacency, Metric(alpha, bound, count), basis)
        basis = f"exponential mechanism on {2 * bound + 1} integers: alpha M over the range, table enumerated"
        return Guarantee(SERVER, adjacency, Pure(max(_loss(noise, bound), alpha * bound), count), basis)

    def claim(self, *, values: int = 1, client: int = 0) -> Claim | None:
        alpha = float(self.alpha[self.row_of(client)]) * check_count("values", values)
        return Claim(alpha, 0.0, "alpha in condensed LDP, alpha_i = |theta| alpha_p per round (LDP-Fed)")

    # --- planning

    @classmethod
    def tunings(cls, ranges: Ranges) -> Sequence[Tuning]:
        codes = IntegerRange(ranges.each, ranges.precision)
        between = 1.001 * MIN_EPSILON / codes.bound, 63.9
        return (Tuning(cls.name, "alpha per value", lambda a: cls(a, codes), between),)

    @property
    def least_strength(self) -> float:
        return 1.001 * MIN_EPSILON / self.domain.bound

    # --- audits

    def law(self, values: Vector) -> TwoSided:
        bound = self.domain.bound
        v = np.rint(np.clip(values * 10.0**self.domain.precision, -bound, bound)).astype(np.int64)
        return TwoSided(v, bound, float(self._noise[0].rate))

    def likelihood_ratio(self, first: Vector, second: Vector) -> Ratio:
        most = self.domain.clip
        a, b = (np.clip(v.astype(np.float64), -most, most) for v in (first, second))
        return likelihood.of_distances(self, a, b)

    @classmethod
    def _of_strength(cls, epsilon: float) -> Exponential:
        domain = IntegerRange(1.0, 6)
        return cls(epsilon / domain.bound, domain)

    @classmethod
    def audit_cases(cls, epsilon: float) -> Iterator[Case]:
        mechanism = cls._of_strength(epsilon)
        claim = Claim(2 * epsilon, 0.0, "alpha * 2c * 10^rho, as LDP-FL (section 5.2) reads LDP-Fed's alpha")
        guarantee = mechanism.guarantee(Adjacency.COORDINATE)
        told = cases.promised(cls.name, "one value in 2,000,001", guarantee, ENDS, claim)
        yield Case.of(told, cases.columns(mechanism, 1.0, -1.0))

    @classmethod
    def specimens(cls, epsilon: float) -> Iterator[Specimen]:
        return cases.deep_and_wide(cls._of_strength(epsilon))


def _sums(lam: mpmath.mpf, n: int) -> tuple[mpmath.mpf, mpmath.mpf, mpmath.mpf]:
    """sum of lam^k, k lam^k and k^2 lam^k over k = 1 .. n."""
    if n <= 64:
        powers = [lam**k for k in range(1, n + 1)]
        return tuple(mpmath.fsum(k**j * p for k, p in enumerate(powers, 1)) for j in range(3))
    rest, tail = 1 - lam, lam**n
    s0 = lam * (1 - tail) / rest
    s1 = lam * (1 - (n + 1) * tail + n * lam * tail) / rest**2
    s2 = lam * (1 + lam - ((n + 1) ** 2 - (2 * n * n + 2 * n - 1) * lam + n * n * lam * lam) * tail) / rest**3
    return s0, s1, s2


def _loss(noise: GeometricNoise, bound: int) -> float:
    """What one value loses at most: the law's own alpha M, its normalisation included, plus what the tables stray.

    Where a table's smallest weights are rounded up to 1, the bound is instead that of the least probable output:
    noise is kept with probability above 1/5.
    """
    return min(float(2 * noise.rate * bound) + 2 * noise.slack, noise.cap + math.log(5))


def _step_loss(noise: GeometricNoise) -> float:
    """What inputs one step apart lose at most; at distance d it is at most d times as much."""
    return float(2 * noise.rate) + 2 * noise.slack


def _noise(rate: Fraction, bound: int) -> GeometricNoise:
    return geometric_noise(rate, 2 * bound + 1, lump=False, top_size=2**12)


@lru_cache(maxsize=512)
def _calibrated(alpha: float, bound: int) -> GeometricNoise:
    """Noise with rate alpha/2, less what the rounding of its tables costs, on magnitudes up to 2M.

    Where that costs less than a part in 10^5, alpha holds at every distance; elsewhere alpha M holds over the range.
    """
    rate = Fraction(alpha) / 2
    noise = _noise(rate, bound)
    if noise.slack <= 5e-6 * alpha:
        noise = _noise(rate - Fraction(noise.slack) * Fraction(3, 2), bound)
        if _step_loss(noise) <= alpha:
            return noise
    for _ in range(8):
        excess = _loss(noise, bound) - alpha * bound
        lower = noise.rate * Fraction(10**15 - 1, 10**15) - Fraction(max(excess, 0.0)) * Fraction(101, 200) / bound
        if excess <= 0 or lower < rate * Fraction(9, 10):
            break
        noise = _noise(lower, bound)
    return noise

"""Integer-valued noise from integer tables: two-sided geometric (discrete Laplace) and Gaussian.

Every distribution here is defined by whole numbers that sum to 2^64, so what it guarantees is read off its own weights
and not off a formula for real numbers. docs/bits.md gives the layout.

*Geometric.* |noise| has independent digits: a geometric variable's quotient and remainder by 2^s are independent, so a
range of any size needs a few small tables. With magnitude G and a sign s, the noise is G or -G-1 (`~G`); the sign is
drawn with odds e^-rate : 1, which makes Pr[noise = k] proportional to e^(-rate |k|) on both sides.

*Gaussian.* Up to sigma = 512 grid steps a table of the rounded Gaussian, Phi((k+1/2)/sigma) - Phi((k-1/2)/sigma):
rounding is post-processing, so its guarantee is the real Gaussian's. Beyond that, three or more draws y0 + 32 y1 +
1024 y2 + .. of one discrete Gaussian table, which is again a discrete Gaussian (Micciancio & Walter 2017).

*Discrete Gaussian.* Noise for sums of whole numbers, and in shares under a secure sum: Pr[k] ~ e^(-k^2 / (2 sigma^2)),
sigma = 2^bits grid steps. One table per number of bits; what varies is how many grid steps a clip has.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.mechanisms.alias import TOTAL, AliasTable
from sordino.mechanisms.integers import HALF, ONE, exp_fixed, log_ratio
from sordino.randomness import Words

_BITS = 192
_DIGIT_BITS = 12
_LARGEST_TABLE = 2**23  # entries


def _lanes(words: Words) -> NDArray[np.uint64]:
    """`[.., n * 2]` little-endian words as `[.., n]` 64-bit lanes."""
    return np.ascontiguousarray(words).view(np.uint64)


@dataclass(frozen=True)
class Digit:
    """One digit of a geometric magnitude: value a stands for a * 2^shift."""

    shift: int
    table: AliasTable
    slack: float  #: how far ln(weight) strays from a straight line in a, at most
    cap: float  #: ln(2^64 / smallest weight)


@dataclass(frozen=True)
class GeometricNoise:
    """Two-sided geometric noise with |noise| <= reach, Pr[k] ~ e^(-rate |k|), as the tables really give it."""

    rate: Fraction
    reach: int  #: magnitudes 0 .. reach-1 (and one more on the negative side)
    digits: tuple[Digit, ...]  #: most significant first
    negative: int  #: Pr[negative] out of 2^32

    @property
    def words_per_value(self) -> int:
        return 2 * (1 + len(self.digits))

    @property
    def slack(self) -> float:
        """For any k, k' not in the lumped tail: |ln Pr[k]/Pr[k']| <= rate * ||k| - |k'|| + slack."""
        odds = log_ratio(self.negative, ONE - self.negative) + float(self.rate)
        return math.fsum(d.slack for d in self.digits) + abs(odds) + 1e-13

    @property
    def cap(self) -> float:
        """ln(1 / smallest probability), at most: what a finite table with full support can lose at all."""
        sign = log_ratio(ONE, min(self.negative, ONE - self.negative))
        return math.fsum(d.cap for d in self.digits) + sign + 1e-12

    def loss(self, shift: int) -> float:
        """A bound on ln Pr[k]/Pr[k'] (or of the tails from k and k' on) over all k, k' at most `shift` apart."""
        return min(float(self.rate * shift) + self.slack, self.cap)

    def draw(self, words: Words) -> NDArray[np.int64]:
        """`[.., d]` noise from `[.., d * words_per_value]` words: lane 0 the sign, one lane per digit after it."""
        lanes = _lanes(words).reshape(*words.shape[:-1], -1, 1 + len(self.digits))
        noise = self.digits[0].table.draw(lanes[..., 1])
        for lane, digit in enumerate(self.digits[1:], start=2):
            np.left_shift(noise, self.digits[lane - 2].shift - digit.shift, out=noise)
            np.bitwise_or(noise, digit.table.draw(lanes[..., lane]), out=noise)
        sign = words[..., :: self.words_per_value] < np.uint32(self.negative)
        return np.bitwise_xor(noise, np.negative(sign.view(np.int8)).astype(np.int64), out=noise)

    def weights(self) -> tuple[int, NDArray[np.float64]]:
        """The least value, and the probabilities of all values from there up."""
        return _weights(self)


@lru_cache(maxsize=32)
def _weights(noise: GeometricNoise) -> tuple[int, NDArray[np.float64]]:
    magnitude = np.ones(1)
    for digit in noise.digits:
        magnitude = np.outer(magnitude, np.array(digit.table.weights, np.float64) * 2.0**-64).ravel()
    if magnitude.size > _LARGEST_TABLE:
        raise InvalidInput(f"a table of {magnitude.size:,} values is too large to check: take fewer values")
    negative = noise.negative / ONE
    return -magnitude.size, np.concatenate([magnitude[::-1] * negative, magnitude * (1 - negative)])


@lru_cache(maxsize=512)
def geometric_noise(rate: Fraction, reach: int, *, lump: bool, top_size: int = 2**14) -> GeometricNoise:
    """Tables for magnitudes 0 .. reach-1 at least; with `lump`, one more top digit holds all the mass beyond.

    A smaller `top_size` may need one digit more, but its weights are larger and stray less.
    """
    shift = 0
    while -(-reach >> shift) > top_size:
        shift += 1
    top = -(-reach >> shift) + lump
    lower = range((shift - 1) // _DIGIT_BITS * _DIGIT_BITS, -1, -_DIGIT_BITS)
    digits = [_digit(rate, shift, top, lump)]
    digits += [_digit(rate, low, 1 << min(_DIGIT_BITS, shift - low), False) for low in lower]
    odds = exp_fixed(-rate, _BITS)
    negative = max(1, round(Fraction(odds * ONE, odds + (1 << _BITS))))
    return GeometricNoise(rate, top << digits[0].shift, tuple(digits), negative)


def _digit(rate: Fraction, shift: int, size: int, lump: bool) -> Digit:
    ratio = exp_fixed(-rate * (1 << shift), _BITS)
    shape = [1 << _BITS]
    for _ in range(size - 1):
        shape.append(shape[-1] * ratio >> _BITS)
    if lump:  # the geometric tail from the last value on
        shape[-1] = min((shape[-1] << _BITS) // max(1, (1 << _BITS) - ratio), size << _BITS)
    weights = _to_total(shape)
    logs = np.log(np.array(weights, dtype=np.float64))
    straight = logs + float(rate * (1 << shift)) * np.arange(size)
    if lump:
        straight[-1] += math.log(-math.expm1(-float(rate * (1 << shift))))
    return Digit(shift, AliasTable(weights), float(np.ptp(straight)) + 1e-14, log_ratio(TOTAL, min(weights)))


def _to_total(shape: list[int]) -> list[int]:
    """Whole weights >= 1 in proportion to the shape that sum to 2^64; the largest takes up the rounding."""
    total = sum(shape)
    weights = [max(1, (2 * s * TOTAL + total) // (2 * total)) for s in shape]
    largest = max(range(len(weights)), key=weights.__getitem__)
    weights[largest] += TOTAL - sum(weights)
    return weights


_LEVEL = 32  # sigma of a level over this is about 4: what the sum of levels lacks of a discrete Gaussian is < 1e-130
COARSE_SIGMA = 512.0  #: the largest sigma, in grid steps, drawn from one table
FINE_SIGMA = 2**17  #: beyond it sigma is at least this, from three draws or more
LEVEL_FACTOR = _LEVEL


@dataclass(frozen=True)
class LevelledNoise:
    """Integer noise y0 + f y1 + f^2 y2 + ..: `levels` draws of one table, `factor` between one level and the next."""

    sigma: float  #: in grid steps
    levels: int
    factor: int
    table: AliasTable
    offset: int  #: the value that stands for 0 in the table

    @property
    def words_per_value(self) -> int:
        return 2 * self.levels

    @property
    def reach(self) -> int:
        """The largest possible |noise|."""
        return self.offset * int(sum(self.factor**i for i in range(self.levels)))

    def draw(self, words: Words) -> NDArray[np.int64]:
        """`[.., d]` noise from `[.., d * words_per_value]` words, one lane per level, the finest first."""
        lanes = _lanes(words).reshape(*words.shape[:-1], -1, self.levels)
        noise = self.table.draw(lanes[..., self.levels - 1])
        for level in range(self.levels - 2, -1, -1):
            np.multiply(noise, self.factor, out=noise)
            np.add(noise, self.table.draw(lanes[..., level]), out=noise)
        return np.subtract(noise, self.reach, out=noise)


@dataclass(frozen=True)
class GaussianNoise(LevelledNoise):
    """Integer noise that behaves as a Gaussian of `proven_sigma` steps up to (eta, tau) per value.

    For inputs at most `shift` apart, delta_actual(eps) <= delta_Gaussian(eps - eta) + tau: no weight lies below its
    ideal by more than a factor e^-eta, and no more than tau of the mass is in excess of the ideal.
    """

    eta: float
    tau: float

    @property
    def proven_sigma(self) -> float:
        """Sigma of the Gaussian that becomes this noise when rounded; rounding adds 1/12 to the variance."""
        return self.sigma if self.levels == 1 else math.sqrt(self.sigma**2 - 1 / 12)


@lru_cache(maxsize=512)
def gaussian_noise(sigma: float, shift: int) -> GaussianNoise:
    """Noise of `sigma` grid steps for inputs at most `shift` steps apart.

    Sigma lies between 16 and 512, or within [2^17, 2^18) times a power of 32 (one more level for each).
    """
    distance = shift / sigma
    if sigma <= COARSE_SIGMA:
        reach = shift + math.ceil(9.6 * sigma)
        table, short = _gaussian_table(_rounded_gaussian(Fraction(sigma), reach))
        return GaussianNoise(sigma, 1, _LEVEL, table, reach, eta=short, tau=2 * (2 * reach + 1) / TOTAL)
    levels = 3
    while sigma >= 2 * FINE_SIGMA * _LEVEL ** (levels - 3):
        levels += 1
    base = sigma / math.sqrt(sum(_LEVEL ** (2 * i) for i in range(levels)))
    reach = math.ceil((10.5 + distance) * base)
    table, short = _gaussian_table(_discrete_gaussian(Fraction(base), reach))
    z = 10 + distance
    # |ln| of the discrete Gaussian against the rounded one of `proven_sigma`, within z sigma: their expansions agree up
    # to terms (z^4/2880 + z^2/288 + z^2/360)/sigma^4; twice that leaves room for the next ones.
    rounding = 2 * (z**4 / 2880 + z**2 / 150 + 1) / sigma**4
    eta = 2 * rounding + levels * short + 2.0**-58
    tau = 2 * rounding + 2 * levels * (2 * reach + 1) / TOTAL + math.erfc(10 / math.sqrt(2))
    return GaussianNoise(sigma, levels, _LEVEL, table, reach, eta, tau)


# --- discrete Gaussian ------------------------------------------------------------------------------------------------

FARTHEST = 16.0  #: standard deviations that two inputs may lie apart in one value: what tables reach for
_INSIDE = 10.0  #: standard deviations around either input within which probabilities are compared
_TAIL = math.erfc(_INSIDE / math.sqrt(2))  #: 1.5e-23, the mass beyond them
_TABLE_REACH = 28.1  #: of a table, in its standard deviations: more than sqrt((10 + 16)^2 + 10.5^2)
_ONE_TABLE = 9  #: the largest bits of a single table


@dataclass(frozen=True)
class Slack:
    """How far integer noise is from a Gaussian, for one value: delta(eps) <= delta_Gaussian(eps - eta) + tau."""

    sigma: float  #: of the Gaussian, in grid steps
    eta: float
    tau: float


@dataclass(frozen=True)
class DiscreteGaussian(LevelledNoise):
    """Discrete Gaussian noise of sigma = 2^bits, exactly, from levels that are 2^digit apart.

    `short` and `over` say how far the table is from the ideal: no weight is below its ideal by more than e^-short, and
    all weights together exceed theirs by no more than `over`.
    """

    short: float
    over: float

    @property
    def bits(self) -> int:
        """The logarithm of sigma."""
        return int(self.sigma).bit_length() - 1

    @property
    def digit(self) -> int:
        """The logarithm of the factor; 0 for noise of one table."""
        return self.factor.bit_length() - 1

    def slack(self, shares: int = 1, spare: int = 0) -> Slack:
        """The slack of the sum of `shares` independent draws against the Gaussian of variance n sigma^2 - 1/12.

        Without a spare share, n = shares. What is compared: the tables with discrete Gaussians; the sum of levels with
        one discrete Gaussian, which lacks 2 e^(-2 pi^2 4) at most; the sum of shares with one (Kairouz, Liu, Steinke
        2021: a log ratio of at most 10 sum_k e^(-2 pi^2 sigma^2 k/(k+1))); and that with the rounded Gaussian, which is
        post-processing of a real one. `eta` bounds how far a probability lies below the ideal within `_INSIDE` standard
        deviations of either input, `tau` the mass above the ideal and outside.

        With `spare` shares, n = shares - spare, and what the tables lack does not add up: a table draws from the ideal
        with probability e^-short, and else from something that depends on no input. As long as no more than `spare`
        shares do the latter, the others are n ideal draws at least, and adding anything to them is post-processing.
        The chance of more is in `tau`. docs/bits.md has both arguments.
        """
        if not 0 <= spare < shares:
            raise InvalidInput(f"of {shares} shares 0 to {shares - 1} can be spare, got {spare}")
        counted = shares - spare
        total, draws = math.sqrt(counted) * self.sigma, counted * self.levels
        close = 10 * math.fsum(math.exp(-2 * math.pi**2 * self.sigma**2 * k / (k + 1)) for k in range(1, counted))
        z = _INSIDE + FARTHEST
        short, over = (0.0, 0.0) if spare else (self.short, self.over)
        stray = (shares * self.levels * self.short) ** (spare + 1) / math.factorial(spare + 1) if spare else 0.0
        eta = _rounding_gap(z**4, z**2, total) + close + draws * (short + _TAIL) + 1e-30
        tau = _rounding_gap(3, 1, total) + math.expm1(close) + draws * (over + _TAIL) + 3 * _TAIL + stray
        return Slack(summed_sigma(self.bits, counted), eta, tau)


def summed_sigma(bits: int, shares: int) -> float:
    """`Slack.sigma` of so many draws of sigma = 2^bits: it needs no table, and making one takes long."""
    return math.sqrt((math.sqrt(shares) * 2.0**bits) ** 2 - 1 / 12)


def _rounding_gap(fourth: float, square: float, sigma: float) -> float:
    """|ln| of a discrete Gaussian over the rounded Gaussian of variance sigma^2 - 1/12, k being z sigma.

    Their expansions agree up to (z^4/2880 + z^2/288 + z^2/360)/sigma^4; twice that, and a little, leaves room for the
    rest. Given moments of z instead of its powers, it is a mean: so with 3 and 1, a bound on the mass that differs.
    """
    return 2.02 * (fourth / 2880 + square / 150 + 0.01) / sigma**4


@lru_cache(maxsize=64)
def discrete_gaussian(bits: int) -> DiscreteGaussian:
    """Discrete Gaussian noise of sigma = 2^bits grid steps, bits from 1 to 30.

    With levels a digit of m bits apart, one table has the variance 4^bits / (1 + 4^m + 16^m + ..); its sigma is at
    least 2^(m+1), so that a level smooths out the next one's steps: what their sum lacks of a discrete Gaussian is
    below 2 e^(-2 pi^2 4) = 1e-34.
    """
    if not 1 <= bits <= 30:
        raise InvalidInput(f"discrete Gaussian noise has sigma = 2^1 to 2^30 steps, got 2^{bits}")
    levels = 1
    while bits - (levels - 1) * ((bits - 1) // levels) > _ONE_TABLE:
        levels += 1
    digit = (bits - 1) // levels if levels > 1 else 0
    variance = Fraction(4**bits, sum(4 ** (digit * i) for i in range(levels)))
    width = math.sqrt(variance)
    offset = math.ceil(_TABLE_REACH * width) + 1
    weights, short, over = _balanced(_bell(1 / (2 * variance), offset), math.ceil(width))
    return DiscreteGaussian(2.0**bits, levels, 1 << digit, AliasTable(weights), offset, short, over)


def _balanced(shape: list[int], inner: int) -> tuple[list[int], float, float]:
    """Weights with sum 2^64 for k = -reach .. reach; what rounding up costs is taken evenly from |k| <= inner.

    With it the largest ln(ideal/weight), and the total by which weights exceed their ideals.
    """
    total = shape[0] + 2 * sum(shape[1:])
    outer = [max(1, -(-s * TOTAL // total)) for s in shape[inner + 1 :]]
    room, wanted = TOTAL - 2 * sum(outer), shape[0] + 2 * sum(shape[1 : inner + 1])
    near = [s * room // wanted for s in shape[: inner + 1]]
    near[0] += room - near[0] - 2 * sum(near[1:])
    side = [*near[1:], *outer]
    ideals = [-(-s * TOTAL // total) for s in shape]
    short = max(log_ratio(ideal, w) for ideal, w in zip(ideals, [near[0], *side], strict=True) if ideal)
    excess = sum(max(0, w + 1 - ideal) for ideal, w in zip(ideals, [near[0], *side], strict=True))
    return [*reversed(side), near[0], *side], max(0.0, short) + 1e-18, 2 * excess / TOTAL


def _gaussian_table(shape: list[int]) -> tuple[AliasTable, float]:
    """A table with every weight rounded up but the central one, and ln(ideal/weight) of that one."""
    half = shape[1:]
    total = shape[0] + 2 * sum(half)
    side = [-(-s * TOTAL // total) + 1 for s in half]
    centre = TOTAL - 2 * sum(side)
    ideal = -(-shape[0] * TOTAL // total)
    return AliasTable([*reversed(side), centre, *side]), log_ratio(ideal, centre)


def _discrete_gaussian(sigma: Fraction, reach: int) -> list[int]:
    """e^(-k^2 / (2 sigma^2)) for k = 0 .. reach in fixed point."""
    return _bell(1 / (2 * sigma**2), reach)


def _bell(rate: Fraction, reach: int) -> list[int]:
    """e^(-rate k^2) for k = 0 .. reach in fixed point."""
    bits = 256
    decay = exp_fixed(-2 * rate, bits)
    step = exp_fixed(-rate, bits)
    shape = [1 << bits]
    for _ in range(reach):
        shape.append(shape[-1] * step >> bits)
        step = step * decay >> bits
    return shape


def _rounded_gaussian(sigma: Fraction, reach: int) -> list[int]:
    """The integral of the Gaussian density over [k - 1/2, k + 1/2], up to a common factor, for k = 0 .. reach.

    The density's Taylor series around k, integrated: phi(k) * sum_j He_2j(k/sigma) / (sigma^2j (2j+1)! 4^j).
    """
    bits = 160
    inverse = round((1 << bits) / sigma**2)
    shape = []
    for k, density in enumerate(_discrete_gaussian(sigma, min(reach, math.ceil(10 * sigma)))):
        slope = inverse * k
        before, here = 0, 1 << bits  # He_(n-1)/sigma^(n-1), He_n/sigma^n
        factor, scale, n = 1 << bits, 1, 0
        terms = [1, 1]
        while any(terms[-2:]):  # a single zero term may be a root of He
            before, here = here, (slope * here - n * inverse * before) >> bits
            n += 1
            if n % 2 == 0:
                scale *= 4 * n * (n + 1)
                terms.append(here // scale if here >= 0 else -(-here // scale))
                factor += terms[-1]
        shape.append(density * factor >> bits)
    return shape + [0] * (reach + 1 - len(shape))


@lru_cache(maxsize=512)
def normal_thresholds(ratio: float, bins: int) -> tuple[int, ...]:
    """2^32 (Phi(a) - 1/2) at a = ratio (k + 1/2)/(bins + 1/2) for k = 0 .. bins, rounded towards zero, below 2^31."""
    sigma = Fraction(2 * bins + 1, 2) / Fraction(ratio)
    # A lattice of step 1/8 gives sqrt(2 pi) to e^(-2 pi^2 64): no series for pi is needed.
    lattice = _discrete_gaussian(Fraction(8), 160)
    root = Fraction(lattice[0] + 2 * sum(lattice[1:]), 8 << 256)
    total = sigma * root * (1 << 256)
    thresholds, area = [], Fraction(0)
    for k, cell in enumerate(_rounded_gaussian(sigma, bins)):
        area += Fraction(cell, 2 if k == 0 else 1)
        thresholds.append(min(HALF - 1, math.floor(area * ONE / total)))
    return tuple(thresholds)

"""Sums of privacy losses on a grid, by Fourier transform, with every error bounded.

One release is a `Grid`: how likely each multiple of an interval is as its privacy loss, rounded towards less privacy
("Connect the Dots", Doroshenko et al. 2022). What many releases lose together is the sum of such losses.

A transform rounds to about 1e-16 of the largest probability, which would drown the small deltas of long schedules. So
each distribution is tilted first: probabilities are multiplied by e^(theta loss) and made to add up to one, with theta
such that the sum lies where the wanted epsilon is. What is lost by cutting a window out of the sum (bounded by
Chernoff's inequality) and by rounding in the transform (bounded in the sum of absolute values) then is a small part of
delta, however small delta is; it is added to delta. It grows with the number of releases, as does what rounding makes
of their probabilities and losses, which is added too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sordino.parts.lazy import lazy_module

if TYPE_CHECKING:
    from scipy import fft, special
else:
    fft, special = lazy_module("scipy.fft"), lazy_module("scipy.special")

Floats = NDArray[np.float64]

_ROUNDING = 2.0**-52
_TAIL = 1e-13  #: share of a tilted sum that may lie outside its window
_MOST_CELLS = 2**22  #: of a window; wider sums are left to other bounds
_MOST_RELEASES = 10**9  #: more than this, and rounding has eaten the last digit
_BINS = 2000  #: of the rough copies from which theta is chosen
_TILTS = 1.3  #: ratio of neighbouring thetas
_MOST_TILTS = 4  #: kept of one sum
_MOST_TRIALS = 10  #: of thetas whose window may be too wide; every second is tried
_LARGEST_EXPONENT = 500.0


@dataclass(frozen=True, eq=False)
class Grid:
    """Privacy loss of one release: `masses` at (first, first + 1, ...) times the interval, and mass `lost` above all.

    `rounding` bounds the relative error of each mass, `slip` the error of each loss; both are of a single release.
    """

    interval: float
    first: int
    masses: Floats
    lost: float = 0.0
    rounding: float = 0.0
    slip: float = 0.0

    @cached_property
    def losses(self) -> Floats:
        """The loss of each cell."""
        return self.interval * np.arange(self.first, self.first + self.masses.size, dtype=np.float64)


def dots(losses: Floats, masses: Floats, interval: float, *, lost: float = 0.0, rounding: float = 0.0) -> Grid:
    """Move each mass to the two multiples of the interval around its loss, towards less privacy.

    Masses are split so that both worlds keep their total probability; the result dominates the original pair, with an
    error of second order in the interval. A little more than that goes upwards, which covers rounding.
    """
    below = np.floor(losses / interval)
    upwards = np.expm1(below * interval - losses) / math.expm1(-interval)
    upwards = np.clip(upwards + 4 * _ROUNDING * (1 + np.abs(below)), 0, 1)
    return _split(below, masses, upwards, interval, lost, rounding)


def means(losses: Floats, masses: Floats, interval: float, *, rounding: float = 0.0) -> Grid:
    """Move each mass to the two multiples of the interval around its loss so that its mean stays."""
    below = np.floor(losses / interval)
    return _split(below, masses, np.clip(losses / interval - below, 0, 1), interval, 0.0, rounding)


def _split(below: Floats, masses: Floats, upwards: Floats, interval: float, lost: float, rounding: float) -> Grid:
    first = int(below.min())
    cells = (below - first).astype(np.int64)
    size = int(cells.max()) + 2
    grid: Floats = np.zeros(size)
    grid += np.bincount(cells, masses * (1 - upwards), size)
    grid += np.bincount(cells + 1, masses * upwards, size)
    widest = interval * max(abs(first), abs(first + size))
    many = 2 * _ROUNDING * (4 + 2 * int(np.bincount(cells).max()))
    return Grid(interval, first, grid, lost, rounding + many, 512 * _ROUNDING * (1 + widest))


def two_point(epsilon: float, interval: float) -> Grid:
    """One randomised bit, which dominates every pure loss of this epsilon."""
    rare = float(special.expit(-epsilon))
    return dots(np.array([epsilon, -epsilon]), np.array([1 - rare, rare]), interval, rounding=4 * _ROUNDING)


# --- Gaussian noise on a sample -------------------------------------------------------------------------------------

_Mixture = tuple[tuple[float, float], ...]  #: weights and means of normal distributions


@lru_cache(maxsize=8)
def gaussian_steps(q: float, sigma: float, interval: float, *, exchanged: bool, log_tail: float) -> tuple[Grid, ...]:
    """One Gaussian release of this noise multiplier on a Poisson sample, once for each way round it has to be told.

    A record is removed, added or exchanged; the pairs are those of Zhu, Dong & Wang (2022). Between two multiples of
    the interval, the mass of both worlds is known, which is what it takes to connect the dots. `log_tail` is the
    logarithm of the mass that is left out at the top and counted as lost.
    """
    mixed, plain, opposite = ((1 - q, 0.0), (q, 1.0)), ((1.0, 0.0),), ((1 - q, 0.0), (q, -1.0))
    if q == 1:
        return (_cells(q, sigma / 2 if exchanged else sigma, interval, "removed", ((1.0, 1.0),), plain, log_tail),)
    if exchanged:
        return (_cells(q, sigma, interval, "exchanged", mixed, opposite, log_tail),)
    removed = _cells(q, sigma, interval, "removed", mixed, plain, log_tail)
    return removed, _cells(q, sigma, interval, "added", plain, opposite, log_tail)


def _cells(q: float, sigma: float, interval: float, way: str, one: _Mixture, other: _Mixture, log_tail: float) -> Grid:
    reach = math.sqrt(-2 * log_tail) * sigma
    top, bottom = max(mean for _, mean in one) + reach, min(mean for _, mean in one) - reach
    highest, lowest = _loss(q, sigma, way, top), _loss(q, sigma, way, bottom)
    k = np.arange(math.floor(lowest / interval), math.ceil(highest / interval) + 1, dtype=np.float64)
    ends = np.minimum(_place(q, sigma, way, k * interval), top)
    ends[-1] = top
    ends = np.maximum.accumulate(ends)
    (mass, error), (against, error_against) = _between(one, sigma, ends), _between(other, sigma, ends)
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = np.exp(k[:-1] * interval) * (1 + 4 * _ROUNDING * (1 + np.abs(k[:-1] * interval)))
        fewer = np.exp(k[:-1] * interval) * (1 - 4 * _ROUNDING * (1 + np.abs(k[:-1] * interval)))
        upwards = (mass + error - fewer * against + ratio * error_against) / -math.expm1(-interval)
    total = mass + error
    upwards = np.where(np.isfinite(upwards), np.clip(upwards * (1 + 8 * _ROUNDING), 0, total), total)
    grid = np.append(total - upwards, 0.0)
    grid[1:] += upwards
    under, error_under = _between(one, sigma, np.array([-np.inf, ends[0]]))
    grid[0] += float(under[0] + error_under[0])
    over, error_over = _between(one, sigma, np.array([top, np.inf]))
    widest = interval * float(np.abs(k).max()) + (1 + reach) / sigma**2
    lost = float(over[0] + error_over[0])
    return Grid(interval, int(k[0]), grid, lost, 16 * _ROUNDING, 64 * _ROUNDING * (1 + widest))


def _loss(q: float, sigma: float, way: str, x: float) -> float:
    """Privacy loss at a place, which rises with it; at the very top and bottom only, so roughly."""
    if way == "removed":
        return _log_mix(q, (2 * x - 1) / (2 * sigma**2))
    lower = -_log_mix(q, (-2 * x - 1) / (2 * sigma**2))
    return lower if way == "added" else lower + _log_mix(q, (2 * x - 1) / (2 * sigma**2))


def _log_mix(q: float, x: float) -> float:
    """ln(1 - q + q e^x)."""
    if q == 1:
        return x
    return x + math.log(q + (1 - q) * math.exp(-x)) if x > 0 else math.log1p(q * math.expm1(x))


def _place(q: float, sigma: float, way: str, losses: Floats) -> Floats:
    """Where the privacy loss has these values; minus or plus infinity where it never has."""
    if way == "removed":
        return _place_removed(q, sigma, losses)
    if way == "added":
        return -_place_removed(q, sigma, -losses)
    halves = np.abs(losses / 2)
    with np.errstate(divide="ignore"):  # of (1 - q) / q e^(1 / (2 sigma^2)) sinh(losses / 2)
        logs = math.log((1 - q) / q) + 0.5 / sigma**2 + halves + np.log(-np.expm1(-2 * halves)) - math.log(2)
    inverse = np.where(logs > 20, logs + math.log(2), np.arcsinh(np.exp(np.minimum(logs, 20.0))))
    return np.asarray(sigma**2 * np.sign(losses) * (halves + inverse))


def _place_removed(q: float, sigma: float, losses: Floats) -> Floats:
    if q == 1:
        return sigma**2 * losses + 0.5
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        small = np.where(losses < -0.5, np.exp(losses) - (1 - q), np.expm1(losses) + q)
        logs = np.where(losses > 1, losses + np.log1p(-(1 - q) * np.exp(-losses)), np.log(np.maximum(small, 0)))
    return sigma**2 * (logs - math.log(q)) + 0.5


def _between(mixture: _Mixture, sigma: float, ends: Floats) -> tuple[Floats, Floats]:
    """Mass of a mixture of normal distributions between neighbouring ends, and a bound on the rounding of each."""
    mass, error = np.zeros(ends.size - 1), np.zeros(ends.size - 1)
    for weight, mean in mixture:
        at = (ends - mean) / sigma
        below, above = special.ndtr(at), special.ndtr(-at)
        upper = at[:-1] > 0
        mass += weight * np.where(upper, above[:-1] - above[1:], below[1:] - below[:-1])
        far = np.minimum(np.where(upper, at[:-1], at[1:]) ** 2, 1e6)
        error += weight * np.where(upper, above[:-1], below[1:]) * (4 + far) * 2 * _ROUNDING
    return np.maximum(mass, 0), error


# --- sums -----------------------------------------------------------------------------------------------------------


class Sum:
    """What several releases lose together: each grid so many times, all with the same interval."""

    def __init__(self, parts: Sequence[tuple[Grid, int]]) -> None:
        self._parts = tuple(parts)
        self._interval = parts[0][0].interval
        self._releases = sum(count for _, count in parts)
        self._tilts: dict[int, _Tilt | None] = {}

    @property
    def lost(self) -> float:
        """Mass above all cells."""
        return sum(count * grid.lost for grid, count in self._parts) * (1 + 1e-12)

    @cached_property
    def _largest(self) -> float:
        """No loss is larger, but for what is lost."""
        tops = (count * (float(grid.losses[grid.masses > 0][-1]) + grid.slip) for grid, count in self._parts)
        return math.fsum(tops) * (1 + 1e-12)

    def delta(self, epsilon: float) -> float:
        """An upper bound of delta at epsilon."""
        if epsilon >= self._largest:
            return min(1.0, self.lost)
        tilt = self._best(self._rough + _log_peak(self._thetas) - self._thetas * epsilon)  # log of Chernoff's bound
        return 1.0 if tilt is None else min(1.0, tilt.bound(epsilon) + self.lost)

    def epsilon(self, delta: float) -> float:
        """An epsilon >= 0 at which delta is met; infinite where none is found."""
        left = (delta - self.lost) * (1 - 1e-15)
        if left <= 0:
            return math.inf
        tilt = self._best(self._scores_for_delta(left))
        return math.inf if tilt is None else max(0.0, min(tilt.epsilon(left), self._largest))

    def reached(self, delta: float) -> float:
        """An epsilon >= 0 at which delta is surely not met yet; 0 where none is found."""
        tilt = self._best(self._scores_for_delta(delta))
        return 0.0 if tilt is None else tilt.reached(delta)

    def _tilt_at(self, number: int) -> _Tilt | None:
        if number not in self._tilts:
            if len(self._tilts) >= _MOST_TILTS:
                self._tilts.pop(next(iter(self._tilts)))
            worthwhile = self._releases <= _MOST_RELEASES
            self._tilts[number] = _Tilt.of(self._parts, float(self._thetas[number])) if worthwhile else None
        return self._tilts[number]

    # theta is chosen from rough copies of the distributions: any choice is valid, a good one gives a tight bound

    @cached_property
    def _thetas(self) -> Floats:
        if self._releases == 1:
            return np.zeros(1)
        variances = []
        for grid, count in self._parts:
            mean = np.average(grid.losses, weights=grid.masses)
            variances.append(count * float(np.average((grid.losses - mean) ** 2, weights=grid.masses)))
        spread = math.sqrt(sum(variances)) + self._interval
        least, most = 0.01 / spread, 100 / min(spread, *(grid.losses[-1] - grid.losses[0] for grid, _ in self._parts))
        return np.geomspace(least, most, 2 + math.ceil(math.log(most / least) / math.log(_TILTS)))

    @cached_property
    def _rough(self) -> Floats:
        """Logarithm of the sum's moment generating function at each theta, roughly."""
        total = np.zeros(self._thetas.size)
        for grid, count in self._parts:
            step = math.ceil(grid.masses.size / _BINS)
            starts = np.arange(0, grid.masses.size, step)
            masses = np.add.reduceat(grid.masses, starts)
            weighted = np.add.reduceat(grid.masses * grid.losses, starts)
            kept = masses > 0
            at = weighted[kept] / masses[kept]
            total += count * special.logsumexp(self._thetas[:, None] * at + np.log(masses[kept]), axis=1)
        return total

    def _scores_for_delta(self, delta: float) -> Floats:
        """Chernoff's bound of epsilon at each theta."""
        return (self._rough + _log_peak(self._thetas) - math.log(delta)) / np.maximum(self._thetas, 1e-300)

    def _best(self, scores: Floats) -> _Tilt | None:
        """The tilt of the smallest score, or of one of the next where that is too wide to compute."""
        for number in np.argsort(scores, kind="stable")[:_MOST_TRIALS:2].tolist():
            if (tilt := self._tilt_at(number)) is not None:
                return tilt
        return None


def _log_peak(theta: Floats) -> Floats:
    """Logarithm of the largest e^(-theta y) (1 - e^-y) over y > 0."""
    return np.asarray(special.xlogy(theta, theta) - special.xlogy(1 + theta, 1 + theta))


@dataclass(frozen=True, eq=False)
class _Tilt:
    """A sum's tilted distribution in a window: e^log_moment masses * e^(-theta loss) are its true probabilities.

    `error` bounds the sum of the absolute errors of the masses, within the window and outside; `rounding` is the
    logarithm of a factor that covers relative errors, `slip` what errors in single losses add up to.
    """

    theta: float
    log_moment: float
    losses: Floats
    masses: Floats
    error: float
    rounding: float
    slip: float

    @classmethod
    def of(cls, parts: Sequence[tuple[Grid, int]], theta: float) -> _Tilt | None:
        tilted, log_moment, rounding, slip = [], 0.0, 0.0, 0.0
        for grid, count in parts:
            with np.errstate(divide="ignore"):
                logs = np.log(grid.masses) + theta * grid.losses
            moment = float(special.logsumexp(logs))
            tilted.append((np.exp(logs - moment), count))
            log_moment += count * moment
            widest = float(np.abs(grid.losses[[0, -1]]).max())
            rounding += count * (grid.rounding + 4 * _ROUNDING * (1000 + theta * widest))
            slip += count * grid.slip
        interval = parts[0][0].interval
        found = _convolved(tilted)
        if found is None:
            return None
        first, masses, error = found
        start = first + sum(count * grid.first for grid, count in parts)
        losses = interval * np.arange(start, start + masses.size, dtype=np.float64)
        largest = float(np.abs(losses[[0, -1]]).max())
        rounding += 8 * _ROUNDING * (abs(log_moment) + theta * largest + math.log2(masses.size + 1))
        return cls(theta, log_moment, losses, masses, error, rounding, slip + 4 * _ROUNDING * largest)

    def bound(self, epsilon: float) -> float:
        """Delta at epsilon, from above."""
        scaled, scale = self._scaled(epsilon - self.slip)
        return _times_exp(scaled + self._scaled_error, scale + self.rounding)

    def epsilon(self, delta: float) -> float:
        """An epsilon >= 0 at which delta is met."""
        guess = self._guess(delta, self._scaled_error, self.rounding) + self.slip
        step = 1e-13 * max(1.0, abs(guess))
        while self.bound(guess) > delta:
            guess, step = guess + step, 2 * step
        return max(0.0, guess)

    def reached(self, delta: float) -> float:
        """An epsilon >= 0 at which delta is not met yet, or 0."""
        guess = self._guess(delta, -self._scaled_error, -self.rounding) - self.slip
        step = 1e-13 * max(1.0, abs(guess))
        while guess > 0:
            scaled, scale = self._scaled(guess + self.slip)
            if _times_exp(scaled - self._scaled_error, scale - self.rounding) >= delta:
                return guess
            guess, step = guess - step, 2 * step
        return 0.0

    @property
    def _scaled_error(self) -> float:
        return self.error * math.exp(float(_log_peak(np.array(self.theta))))

    def _scaled(self, epsilon: float) -> tuple[float, float]:
        """Delta at epsilon as a number and the logarithm of its factor, e^(log_moment - theta epsilon)."""
        above = self.losses[int(self.losses.searchsorted(epsilon)) :] - epsilon
        masses = self.masses[self.masses.size - above.size :]
        return float(
            (masses * np.exp(-self.theta * above) * -np.expm1(-above)).sum()
        ), self.log_moment - self.theta * epsilon

    def _guess(self, delta: float, error: float, rounding: float) -> float:
        """Where about the bound meets delta, from sums over all losses above each loss."""
        middle = float(np.average(self.losses, weights=self.masses))
        from_here = int(self.losses.searchsorted(middle - _LARGEST_EXPONENT / (self.theta + 1e-300)))
        losses, masses = self.losses[from_here:] - middle, self.masses[from_here:]
        weights = masses * np.exp(-self.theta * losses)
        ones = np.cumsum(weights[::-1])[::-1]
        others = _faded(weights, float(self.losses[1] - self.losses[0]))
        target = math.exp(min(700.0, math.log(delta) - rounding - self.log_moment + self.theta * middle))
        exceeding = np.flatnonzero(ones - others + error * np.exp(-self.theta * losses) > target)
        index = min(int(exceeding[-1]) + 1, losses.size - 1) if exceeding.size else 0
        if index == 0:
            return float(losses[0]) + middle
        low, high, one, other = float(losses[index - 1]), float(losses[index]), float(ones[index]), float(others[index])
        end = high
        for _ in range(60):
            at = (low + high) / 2
            exceeds = one - math.exp(at - end) * other + error * math.exp(-self.theta * at) > target
            low, high = (at, high) if exceeds else (low, at)
        return high + middle


def _faded(weights: Floats, interval: float) -> Floats:
    """From each cell on, the sum of all weights times e^(-interval) to the power of the distance."""
    found, carried, size = np.empty(weights.size), 0.0, max(1, int(_LARGEST_EXPONENT / 2 / interval))
    for start in reversed(range(0, weights.size, size)):
        fading = np.exp(-interval * np.arange(weights[start : start + size].size))
        sums = np.cumsum((weights[start : start + size] * fading)[::-1])[::-1]
        found[start : start + size] = (sums + carried * fading[-1] * math.exp(-interval)) / fading
        carried = float(found[start])
    return found


def _times_exp(factor: float, exponent: float) -> float:
    """factor * e^exponent, at most 1."""
    return math.exp(min(0.0, math.log(factor) + exponent)) if factor > 0 else 0.0


def _convolved(parts: Sequence[tuple[Floats, int]]) -> tuple[int, Floats, float] | None:
    """Window of the convolution of distributions, each so many times, and a bound on the sum of absolute errors.

    A transform of n numbers is wrong by at most 10 u log2(n) times their norm (Higham 2002, Theorem 24.2, which has 7
    for the worst radix), so each of its coefficients z is wrong by at most d = that times sqrt(n); z^count then by
    count (|z| + d)^(count - 1) d, and the way back adds as much again as a norm of the result.
    """
    if len(parts) == 1 and parts[0][1] == 1:
        return 0, parts[0][0], 0.0
    low, high = _window(parts)
    size = max(high - low + 1, *(masses.size for masses, _ in parts))
    if size > _MOST_CELLS:
        return None
    size = fft.next_fast_len(size, real=True)
    unit = 10 * _ROUNDING / 2 * math.log2(size)
    logs, angles = np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
    bound, wrong = np.zeros(size // 2 + 1), np.zeros(size // 2 + 1)
    for masses, count in parts:
        found = fft.rfft(masses, size)
        lengths = np.abs(found)
        off = unit * math.sqrt(size) * float(np.linalg.norm(masses))
        largest = np.minimum(1 + 1e-14, lengths + off)
        with np.errstate(divide="ignore"):
            logs += count * np.log(lengths)
        angles += count * np.angle(found)
        bound += count * np.log(largest)
        wrong += count * (off / largest + 16 * _ROUNDING)
    errors = np.exp(bound) * np.minimum(wrong, 2.0)
    whole = fft.irfft(np.exp(logs) * np.exp(1j * angles), size)
    error = math.sqrt(2 * float(np.sum(errors**2))) + math.sqrt(size) * unit * float(np.linalg.norm(whole))
    window = np.roll(whole, -(low % size))[: high - low + 1]
    whole_range = window.size > sum(count * (masses.size - 1) for masses, count in parts)
    return low, np.maximum(window, 0), error * (1 + 1e-9) + (0 if whole_range else 2 * _TAIL)


def _window(parts: Sequence[tuple[Floats, int]]) -> tuple[int, int]:
    """Between which cells all but twice `_TAIL` of the sum lies, by Chernoff's bound at several exponents."""
    cells, logs, middle, variance = [], [], 0.0, 0.0
    for masses, count in parts:
        own = np.arange(masses.size, dtype=np.float64)
        mean = float(np.average(own, weights=masses))
        middle += count * mean
        variance += count * float(np.average((own - mean) ** 2, weights=masses))
        cells.append(own[masses > 0] - mean)
        logs.append(np.log(masses[masses > 0]))
    low, high = 0.0, float(sum(count * (masses.size - 1) for masses, count in parts))
    for times in (1, 2, 4, 6, 8, 10, 14, -1, -2, -4, -6, -8, -10, -14):
        exponent = times / math.sqrt(variance + 1e-6)
        log_moment = 0.0
        for own, weights, (_, count) in zip(cells, logs, parts, strict=True):
            powers = exponent * own + weights
            peak = float(powers.max())
            log_moment += count * (peak + math.log(float(np.exp(powers - peak).sum())) + 1e-14 * (1 + abs(peak)))
        reach = (log_moment - math.log(_TAIL)) / exponent
        if times > 0:
            high = min(high, middle + reach)
        else:
            low = max(low, middle + reach)
    return math.floor(low), max(math.ceil(high), math.floor(low))

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
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from sordino.parts.lazy import lazy_module
from sordino.privacy.roots import brentq

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
_Way = Literal["removed", "added", "exchanged"]  #: what happens to a record


@lru_cache(maxsize=8)
def gaussian_steps(q: float, sigma: float, interval: float, *, exchanged: bool, log_tail: float) -> tuple[Grid, ...]:
    """One Gaussian release of this noise multiplier on a Poisson sample, once for each way round it has to be told.

    A record is removed, added or exchanged; the pairs are those of Zhu, Dong & Wang (2022). Between two multiples of
    the interval, the mass of both worlds is known, which is what it takes to connect the dots. `log_tail` is the
    logarithm of the mass that is left out at the top and counted as lost.
    """
    if q == 1:
        return (_cells(_SampledStep(q, sigma / 2 if exchanged else sigma, "removed"), interval, log_tail),)
    ways: tuple[_Way, ...] = ("exchanged",) if exchanged else ("removed", "added")
    return tuple(_cells(_SampledStep(q, sigma, way), interval, log_tail) for way in ways)


@dataclass(frozen=True)
class _SampledStep:
    """One release of Gaussian noise on a Poisson sample, told one way round; its privacy loss rises with the place."""

    q: float
    sigma: float
    way: _Way

    @property
    def worlds(self) -> tuple[_Mixture, _Mixture]:
        """The world in which the loss is taken, and the one it is compared with."""
        mixed, plain, opposite = ((1 - self.q, 0.0), (self.q, 1.0)), ((1.0, 0.0),), ((1 - self.q, 0.0), (self.q, -1.0))
        if self.q == 1:
            return ((1.0, 1.0),), plain
        return {"removed": (mixed, plain), "added": (plain, opposite), "exchanged": (mixed, opposite)}[self.way]

    def loss(self, x: float) -> float:
        """Privacy loss at a place; used at the very top and bottom only, so roughly."""
        above, below = ((sign * 2 * x - 1) / (2 * self.sigma**2) for sign in (1, -1))
        if self.way == "removed":
            return self._log_mix(above)
        return -self._log_mix(below) if self.way == "added" else -self._log_mix(below) + self._log_mix(above)

    def _log_mix(self, x: float) -> float:
        """ln(1 - q + q e^x)."""
        q = self.q
        if q == 1:
            return x
        return x + math.log(q + (1 - q) * math.exp(-x)) if x > 0 else math.log1p(q * math.expm1(x))

    def place(self, losses: Floats) -> Floats:
        """Where the privacy loss has these values; minus or plus infinity where it never has."""
        if self.way == "removed":
            return self._place_removed(losses)
        if self.way == "added":
            return -self._place_removed(-losses)
        q, sigma, halves = self.q, self.sigma, np.abs(losses / 2)
        with np.errstate(divide="ignore"):  # of (1 - q) / q e^(1 / (2 sigma^2)) sinh(losses / 2)
            logs = math.log((1 - q) / q) + 0.5 / sigma**2 + halves + np.log(-np.expm1(-2 * halves)) - math.log(2)
        inverse = np.where(logs > 20, logs + math.log(2), np.arcsinh(np.exp(np.minimum(logs, 20.0))))
        return np.asarray(sigma**2 * np.sign(losses) * (halves + inverse))

    def _place_removed(self, losses: Floats) -> Floats:
        q, sigma = self.q, self.sigma
        if q == 1:
            return sigma**2 * losses + 0.5
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            small = np.where(losses < -0.5, np.exp(losses) - (1 - q), np.expm1(losses) + q)
            logs = np.where(losses > 1, losses + np.log1p(-(1 - q) * np.exp(-losses)), np.log(np.maximum(small, 0)))
        return sigma**2 * (logs - math.log(q)) + 0.5


def _cells(step: _SampledStep, interval: float, log_tail: float) -> Grid:
    (one, other), sigma = step.worlds, step.sigma
    reach = math.sqrt(-2 * log_tail) * sigma
    top, bottom = max(mean for _, mean in one) + reach, min(mean for _, mean in one) - reach
    first, last = math.floor(step.loss(bottom) / interval), math.ceil(step.loss(top) / interval)
    k = np.arange(first, last + 1, dtype=np.float64)
    ends = np.minimum(step.place(k * interval), top)
    ends[-1] = top
    ends = np.maximum.accumulate(ends)
    (mass, error), (against, error_against) = _between(one, sigma, ends), _between(other, sigma, ends)
    with np.errstate(over="ignore", invalid="ignore"):
        slack = 4 * _ROUNDING * (1 + np.abs(k[:-1] * interval))
        ratio, fewer = (np.exp(k[:-1] * interval) * (1 + sign * slack) for sign in (1, -1))
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

    def bound(self, epsilon: float, sign: int = 1) -> float:
        """Delta at epsilon, from above; with sign -1 from below."""
        above = self.losses[int(self.losses.searchsorted(epsilon - sign * self.slip)) :] - (epsilon - sign * self.slip)
        masses = self.masses[self.masses.size - above.size :]
        scaled = float((masses * np.exp(-self.theta * above) * -np.expm1(-above)).sum())
        error = sign * self.error * math.exp(float(_log_peak(np.array(self.theta))))
        exponent = self.log_moment - self.theta * (epsilon - sign * self.slip) + sign * self.rounding
        return _times_exp(scaled + error, exponent)

    def epsilon(self, delta: float) -> float:
        """An epsilon >= 0 at which delta is met."""
        guess = self._crossing(delta, 1)
        step = 1e-13 * max(1.0, abs(guess))
        while self.bound(guess) > delta:
            guess, step = guess + step, 2 * step
        return max(0.0, guess)

    def reached(self, delta: float) -> float:
        """An epsilon >= 0 at which delta is not met yet, or 0."""
        guess = self._crossing(delta, -1)
        step = 1e-13 * max(1.0, abs(guess))
        while guess > 0 and self.bound(guess, -1) < delta:
            guess, step = guess - step, 2 * step
        return max(0.0, guess)

    def _crossing(self, delta: float, sign: int) -> float:
        """Where about the bound meets delta: near the middle, and on a logarithmic scale nearly on a straight line."""

        def excess(epsilon: float) -> float:
            return math.log(max(self.bound(epsilon, sign), 1e-320)) - math.log(delta)

        low = high = float(np.average(self.losses, weights=self.masses))
        step = math.sqrt(float(np.average((self.losses - low) ** 2, weights=self.masses))) + 1e-9
        while excess(low) <= 0 and low > self.losses[0]:
            low, step = low - step, 2 * step
        while excess(high) > 0 and high < self.losses[-1]:
            high, step = high + step, 2 * step
        if excess(low) <= 0 or excess(high) > 0:
            return low if excess(low) <= 0 else high
        return brentq(excess, low, high, xtol=1e-14 * max(1.0, abs(high)), rtol=1e-14)


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

"""What releases cost: epsilons for statements about fixed schedules, and an account that enforces a budget.

The two jobs are kept apart on purpose.

*Statements* (`epsilon`, `delta`, `compose`) describe a schedule fixed in advance. They use exact formulas where there
are any (sums of pure epsilons; the binomial formula for equal randomised bits, Kairouz, Oh & Viswanath 2015; the
analytic Gaussian curve, Balle & Wang 2018) and the smallest of several bounds for everything else: privacy loss
distributions (`sordino.privacy.numerical`), the Gaussian curve above all losses, and Renyi divergences.

*Enforcement* (`Account`) must hold when a server chooses each plan after seeing all earlier reports. It uses sums that
stay valid then (privacy filters: Rogers et al. 2016; Feldman & Zrnic 2021; Smith & Thakurta 2022; Koskela, Tobaben &
Honkela 2023), and no amplification that a client cannot check.

Unknown losses are refused with `UnsupportedLoss`; where nothing is proven the answer is infinity.
"""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from sordino.errors import InvalidInput, UnsupportedLoss
from sordino.parts.lazy import lazy_module
from sordino.privacy.guarantee import (
    SERVER,
    Adjacency,
    Adversary,
    Budget,
    Claim,
    Derived,
    Destination,
    GaussianLoss,
    Guarantee,
    Infinite,
    Loss,
    Metric,
    ParallelByRecord,
    PoissonGaussian,
    Pure,
    RandomizedBit,
    Release,
    Sequential,
)
from sordino.privacy.numerical import Floats, Grid, Sum, gaussian_steps, two_point

if TYPE_CHECKING:
    from scipy import special
else:
    special = lazy_module("scipy.special")

_GRID_CELLS = 400_000  #: cells a composed privacy loss distribution may have: a fraction of a second of work
_FINEST_INTERVAL = 1e-6
_USUAL_INTERVAL = 1e-4
_COARSEST_INTERVAL = 1.0  #: coarser than this, a privacy loss distribution says nothing that a Renyi bound does not
#: logarithms of the mass that may be cut off each step's distribution; the smaller ones are for smaller deltas
_LOG_TAILS = (-60.0, -150.0, -740.0)
_NEGLIGIBLE = 1e-6  #: share of delta that may be cut off
#: orders at which Renyi divergences are evaluated
_ORDERS: tuple[float, ...] = (
    *(1.01, 1.02, 1.05),
    *(1 + k / 10 for k in range(1, 100)),
    *range(11, 65),
    *(128, 256, 512, 1024),
)
_HOPELESS_MU = 1e100  #: beyond this a Gaussian hides nothing, and squares would soon overflow
_NO_SQUARE = 1e-150  #: the squares of smaller numbers lose their digits
_HOPELESS_TAIL = 27.0  #: e^(-27^2) is below the smallest normal number
_SMALL_MU = 2.0**-15  #: below this, the Gaussian curve is computed from slopes
_HOPELESS_EPSILON = 1e290  #: beyond this nothing cleverer than the sum is tried
_MANY_BITS = 10**9  #: beyond this the binomial formula gives way to the Gaussian curve above it
_SMALLEST_LINEAR_DELTA = 1e-250  #: below this, probabilities are added as logarithms
_UNIT = 2.0**-52
_ERFCX = 6 * _UNIT  #: relative error of SciPy's erfcx from -1 on
_SERIES = 2e-13  #: covers what is cut off the series of a sampled step's moment, and its rounding
_ROUNDING = 1 + 1e-12  #: factor that covers the rounding of a handful of floating-point operations


# --- one figure at a time -------------------------------------------------------------------------------------------


def bit_epsilon(t_min: int) -> float:
    """Epsilon of one randomised bit whose rarer value has probability t_min / 2^32, to about the last bit."""
    return math.log1p((2**32 - 2 * t_min) / t_min)


def epsilon(loss: Loss, delta: float = 0.0, *, adjacency: Adjacency = Adjacency.CLIENT) -> float:
    """Smallest proven epsilon of one loss at this delta; infinite where nothing is proven.

    `adjacency` matters to `PoissonGaussian` only: its sigma is relative to what one record adds, so exchanging a record
    moves the sum twice as far as adding or removing one. Anything but add/remove is treated as an exchange.
    """
    return compose([loss], adjacency=adjacency).epsilon(delta)


def delta(loss: Loss, epsilon: float, *, adjacency: Adjacency = Adjacency.CLIENT) -> float:
    """Smallest proven delta of one loss at this epsilon; 1 where nothing is proven."""
    return compose([loss], adjacency=adjacency).delta(epsilon)


def mu_for(epsilon: float, delta: float) -> float:
    """Largest mu whose Gaussian curve meets (epsilon, delta): delta_mu(epsilon) <= delta.

    Noise of standard deviation sensitivity / mu is the least that does (Balle & Wang 2018, Theorem 8). It is valid for
    every epsilon, unlike sqrt(2 ln(1.25/delta)) / epsilon, which is not a proof from epsilon = 1 on.
    """
    _check_epsilon(epsilon)
    if not 0 < delta < 1:
        raise InvalidInput(f"delta must lie strictly between 0 and 1 for Gaussian noise, got {delta!r}")
    high = 1.0
    while gaussian_delta(high, epsilon) <= delta:
        high *= 2
    return _bisect(lambda mu: gaussian_delta(mu, epsilon) <= delta, holds=0.0, fails=high)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta_mu(epsilon) = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu), without overflow.

    With a = epsilon/mu - mu/2 and b = epsilon/mu + mu/2, e^epsilon phi(b) = phi(a): so no exponential of epsilon is
    needed, and in the tail the difference is one of scaled complementary error functions. Rounded up, and never below
    the smallest normal number. Where mu is small, that difference would lose its digits: it is the integral of their
    falling, convex slope, so that a trapezium is above it.
    """
    if epsilon < 0:
        return min(1.0, (-math.expm1(epsilon) + math.exp(epsilon) * gaussian_delta(mu, -epsilon)) * (1 + 4 * _UNIT))
    if mu > _HOPELESS_MU:
        return 1.0
    if mu == 0 or epsilon == math.inf:
        return 0.0
    a, b = (epsilon / mu - mu / 2) / math.sqrt(2), (epsilon / mu + mu / 2) / math.sqrt(2)
    rounding = 4 * _UNIT * (4 + (abs(a) + 1) * b)
    if a > 0 or mu < _SMALL_MU:
        if a > _HOPELESS_TAIL:
            return sys.float_info.min
        if mu < _SMALL_MU:
            difference = mu / math.sqrt(8) * (_erfcx_slope(a) + _erfcx_slope(b))
        else:
            first, second = float(special.erfcx(a)), float(special.erfcx(b))
            difference = first - second + 2 * _ERFCX * first
        return max(0.5 * math.exp(-a * a) * difference * (1 + rounding), sys.float_info.min)
    first, last = math.erfc(a), math.exp(-a * a)
    second = last * float(special.erfcx(b))
    return min(1.0, 0.5 * (first - second + rounding * second + 8 * _UNIT * b * last + 4 * _UNIT * first))


def _erfcx_slope(x: float) -> float:
    """How fast e^(x^2) erfc(x) falls at x: 2/sqrt(pi) - 2 x e^(x^2) erfc(x), rounded up."""
    return 2 / math.sqrt(math.pi) - 2 * x * float(special.erfcx(x)) + 2 * _ERFCX


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Smallest epsilon >= 0 with delta_mu(epsilon) <= delta; infinite at delta 0 unless mu is 0."""
    if mu == 0:
        return 0.0
    if delta <= 0 or mu > _HOPELESS_MU:
        return math.inf
    return _smallest_epsilon(lambda e: gaussian_delta(mu, e), delta, start=mu * (mu / 2 + 1))


def _smallest_epsilon(curve: Callable[[float], float], delta: float, *, start: float) -> float:
    """Smallest epsilon >= 0 at which a falling curve is at most delta, from above."""
    if curve(0.0) <= delta:
        return 0.0
    high = start
    while curve(high) > delta:
        high *= 2
    return _bisect(lambda e: curve(e) <= delta, holds=high, fails=0.0)


def _bisect(condition: Callable[[float], bool], *, holds: float, fails: float) -> float:
    """The point nearest to the border, to about 14 digits, at which the condition still holds."""
    while abs(holds - fails) > 1e-14 * max(abs(holds), abs(fails)):
        middle = (holds + fails) / 2
        if middle in (holds, fails):
            break
        holds, fails = (middle, fails) if condition(middle) else (holds, middle)
    return holds


def _check_epsilon(epsilon: float) -> None:
    if math.isnan(epsilon) or epsilon < 0:
        raise InvalidInput(f"epsilon must be a number >= 0, got {epsilon!r}")


# --- statements: schedules fixed in advance -------------------------------------------------------------------------


@dataclass(frozen=True)
class Composed:
    """Losses of a schedule fixed in advance, put together; made by `compose`.

    Every pure epsilon is dominated by one randomised bit of that epsilon, so pure losses are kept as (epsilon, count).
    Gaussian losses add as mu^2, eta and tau: delta(epsilon) <= delta_mu(epsilon - eta) + tau.
    """

    bits: tuple[tuple[float, int], ...] = ()
    mu: float = 0.0
    eta: float = 0.0
    tau: float = 0.0
    sampled: tuple[tuple[float, float, int], ...] = ()  #: (q, sigma, steps)
    adjacency: Adjacency = Adjacency.CLIENT
    unproven: tuple[str, ...] = ()  #: why nothing is proven, where nothing is

    @cached_property
    def pure_sum(self) -> float:
        """Sum of all pure epsilons, ignoring Gaussian losses; rounded up."""
        if any(math.isinf(e) for e, _ in self.bits):
            return math.inf
        return _ceiling(sum((_decimal(e) * count for e, count in self.bits), Fraction(0)))

    def epsilon(self, delta: float = 0.0) -> float:
        """Smallest epsilon proven for the whole schedule at this delta; infinite where nothing is proven."""
        if not 0 <= delta < 1:
            raise InvalidInput(f"delta must lie in [0, 1), got {delta!r}")
        left = delta - self.tau
        if self.unproven or left < 0:
            return math.inf
        if self.mu == 0 and not self.sampled:
            return self._beside_eta(self._bits_epsilon(left))
        if left == 0:
            return math.inf
        if self.sampled:
            return self._beside_eta(self._numerical_epsilon(left))
        separate = self.pure_sum + gaussian_epsilon(self.mu, left)
        return self._beside_eta(min(separate, self._numerical_epsilon(left)) if self.bits else separate)

    def _beside_eta(self, epsilon: float) -> float:
        """The sum, rounded up."""
        return (self.eta + epsilon) * (1 + _UNIT) if self.eta else epsilon

    def delta(self, epsilon: float) -> float:
        """Smallest delta proven for the whole schedule at this epsilon; 1 where nothing is proven."""
        _check_epsilon(epsilon)
        if self.unproven:
            return 1.0
        rest = epsilon - self.eta
        if rest < 0:
            return 1.0 if self.bits or self.sampled else min(1.0, gaussian_delta(self.mu, rest) + self.tau)
        if self.mu == 0 and not self.sampled:
            found = self._bits_delta(rest)
        elif not self.bits and not self.sampled:
            found = gaussian_delta(self.mu, rest)
        else:
            found = self._numerical_delta(rest)
        return min(1.0, found + self.tau)

    def _bits_epsilon(self, delta: float) -> float:
        if delta == 0 or not self.bits or self.pure_sum > _HOPELESS_EPSILON:
            return self.pure_sum
        if len(self.bits) == 1:
            ((each, count),) = self.bits
            return min(self.pure_sum, equal_bits_epsilon(each, count, delta))
        return min(self.pure_sum, self._numerical_epsilon(delta))

    def _bits_delta(self, epsilon: float) -> float:
        if epsilon >= self.pure_sum:
            return 0.0
        if self.pure_sum > _HOPELESS_EPSILON:
            return 1.0
        if len(self.bits) == 1:
            return equal_bits_delta(*self.bits[0], epsilon)
        return self._numerical_delta(epsilon)

    def _numerical_delta(self, epsilon: float) -> float:
        numerical = 1.0 if self._too_wide else self._convolved_delta(epsilon)
        if numerical >= 1:
            numerical = min(_renyi_delta(order, self._renyi(order), epsilon) for order in _ORDERS)
        bounds = [numerical, gaussian_delta(self._gaussian_mu, epsilon)]
        if epsilon > self.pure_sum:
            bounds.append(gaussian_delta(self._noise_mu, epsilon - self.pure_sum))
        return min(bounds)

    def _numerical_epsilon(self, delta: float) -> float:
        numerical = math.inf if self._too_wide else self._convolved_epsilon(delta)
        if math.isinf(numerical):
            numerical = min(renyi_epsilon(order, self._renyi(order), delta) for order in _ORDERS) * _ROUNDING
        together = gaussian_epsilon(self._gaussian_mu, delta)
        return min(numerical, together, self.pure_sum + gaussian_epsilon(self._noise_mu, delta))

    @property
    def _too_wide(self) -> bool:
        return self._interval() > _COARSEST_INTERVAL

    def _convolved_delta(self, epsilon: float) -> float:
        for log_tail in _LOG_TAILS:
            sums = _sums(self, log_tail)
            found = max(one.delta(epsilon) for one in sums)
            if max(one.lost for one in sums) <= _NEGLIGIBLE * found:
                break
        return found

    def _convolved_epsilon(self, delta: float) -> float:
        for log_tail in _LOG_TAILS:
            sums = _sums(self, log_tail)
            if max(one.lost for one in sums) <= _NEGLIGIBLE * delta:
                break
        return max(one.epsilon(delta) for one in sums)

    @property
    def _noise_mu(self) -> float:
        """The mu of all Gaussian noise if samples were everything: never less than what smaller ones cost."""
        reach = 2 if _exchanges(self.adjacency) else 1
        return math.hypot(self.mu, *(math.sqrt(steps) * (reach / sigma) for _, sigma, steps in self.sampled))

    @property
    def _gaussian_mu(self) -> float:
        """The mu of everything: a randomised bit costs no more than the Gaussian whose curve has it for a chord."""
        return math.hypot(self._noise_mu, *(math.sqrt(count) * _pure_mu(e) for e, count in self.bits)) * _ROUNDING

    def _renyi(self, order: float) -> float:
        pure = sum(count * _pure_renyi(e, order) for e, count in self.bits)
        sampled = sum(steps * _sampled_renyi(q, sigma, order, self.adjacency) for q, sigma, steps in self.sampled)
        return pure + order * max(self.mu**2, sys.float_info.min * (self.mu > 0)) / 2 + sampled

    def _parts(self, interval: float, log_tail: float) -> tuple[list[tuple[Grid, int]], ...]:
        """The grids of all losses with their counts, for each way round that a record's change can be told."""
        exchanged = _exchanges(self.adjacency)
        ways: tuple[list[tuple[Grid, int]], ...] = ([], [])
        for each, count in self.bits:
            for way in ways:
                way.append((two_point(each, interval), count))
        noises = [(1.0, 1 / self.mu, 1, False)] if self.mu > 0 else []
        noises += [(q, sigma, steps, exchanged) for q, sigma, steps in self.sampled]
        for q, sigma, steps, replaced in noises:
            grids = gaussian_steps(q, sigma, interval, exchanged=replaced, log_tail=log_tail)
            for way, grid in zip(ways, (grids[0], grids[-1]), strict=True):
                way.append((grid, steps))
        return ways if self.sampled and not exchanged else ways[:1]

    def _interval(self) -> float:
        """Discretisation interval: as fine as usual, coarser where the composed distribution is too wide for that."""
        reach = 2 if _exchanges(self.adjacency) else 1
        variance = self.mu**2 + math.fsum(count * e * e for e, count in self.bits)
        widest = max([self.mu, *(e for e, _ in self.bits)])
        for q, sigma, steps in self.sampled:
            each = (reach / sigma) ** 2
            variance += steps * min(each, q * q * math.expm1(min(each, 50.0)))
            widest = max(widest, 8 * math.sqrt(each) + each)
        finest = min([_USUAL_INTERVAL, *(e / 4 for e, _ in self.bits if e > 0)])
        return max(finest, _FINEST_INTERVAL, (16 * math.sqrt(variance) + widest) / _GRID_CELLS)


@lru_cache(maxsize=4)
def _sums(composed: Composed, log_tail: float) -> tuple[Sum, ...]:
    """The privacy loss distributions, kept for those who ask for several points of their curves."""
    return tuple(map(Sum, composed._parts(composed._interval(), log_tail)))


def compose(losses: Iterable[Loss], *, adjacency: Adjacency = Adjacency.CLIENT) -> Composed:
    """Put together losses about the same data whose order and parameters were fixed in advance.

    Not valid for enforcement where parameters depend on earlier outputs: that is `Account`.
    """
    bits: Counter[float] = Counter()
    sampled: Counter[tuple[float, float]] = Counter()
    mus, etas, taus, unproven = [], [], [], []
    for loss in losses:
        match loss:
            case Infinite(why):
                unproven.append(why)
            case Pure(each, count):
                bits[each] += count
            case Metric(alpha, distance, count):
                bits[_ceiling(_decimal(alpha) * _decimal(distance))] += count
            case RandomizedBit(t_min, count):
                bits[_bit_epsilon_above(t_min)] += count
            case GaussianLoss(mu, eta, tau):
                mus.append(mu)
                etas.append(eta)
                taus.append(tau)
            case PoissonGaussian(q, sigma, steps, eta, tau):
                etas.append(eta)
                taus.append(tau)
                if _samples(loss):
                    sampled[q, sigma] += steps
                else:
                    mus.append(_unsampled_mu(loss, adjacency))
            case _:
                raise _unknown(loss)
    return Composed(
        bits=tuple(sorted((e, n) for e, n in bits.items() if e > 0)),
        mu=math.hypot(*mus) * (1 + 2 * _UNIT) if mus else 0.0,
        eta=_total(etas),
        tau=_total(taus),
        sampled=tuple(sorted((q, sigma, steps) for (q, sigma), steps in sampled.items())),
        adjacency=adjacency,
        unproven=tuple(unproven),
    )


def _bit_epsilon_above(t_min: int) -> float:
    """Epsilon of one randomised bit, rounded up."""
    return bit_epsilon(t_min) * (1 + 2 * _UNIT)


def _total(values: Sequence[float]) -> float:
    """Sum, rounded up."""
    return sum(values) * (1 + len(values) * _UNIT)


@dataclass(frozen=True, eq=False)
class _EqualBits:
    """Privacy loss of randomised bits of equal epsilon: (count - 2i) epsilon_each, where i of them are flipped.

    i is binomial; kept is a window of its values outside which less than e^-800 is left (Bernstein).
    """

    gains: Floats  #: the losses negated, so that they rise
    log_masses: Floats  #: logarithms of their probabilities
    masses: Floats
    sums: Floats  #: of the masses up to each
    rounding: float  #: logarithm of a factor that covers the rounding of the logarithms
    negligible: float  #: share of the mass that is too small to matter

    @classmethod
    def of(cls, epsilon_each: float, count: int) -> _EqualBits:
        flip = float(special.expit(-epsilon_each))
        reach = 40 * math.sqrt(count * flip * (1 - flip)) + 800
        first, last = max(0, math.floor(count * flip - reach)), min(count, math.floor(count * flip + reach))
        i = np.arange(first, last + 1, dtype=np.float64)
        log_kept = -math.log1p(math.exp(-epsilon_each))
        ways = special.gammaln(count + 1) - special.gammaln(i + 1) - special.gammaln(count - i + 1)
        log_masses = ways + (count - i) * log_kept + i * (log_kept - epsilon_each)
        masses = np.exp(log_masses)
        rounding = 4 * _UNIT * (float(special.gammaln(count + 2)) + 4)
        # all masses but the last above an epsilon count with at least 1 - e^(-2 epsilon_each) in its delta, and no mass
        # is more than `count` times the one before: so this share of their sum is about 1e-18 of delta
        negligible = 1e-18 * min(1.0, epsilon_each) / count**2
        gains = (2 * i - count) * epsilon_each - 8 * _UNIT * count * epsilon_each  # losses are rounded up
        return cls(gains, log_masses, masses, np.cumsum(masses), rounding, negligible)

    def delta(self, epsilon: float) -> float:
        """Sum of mass * (1 - e^(epsilon - loss)) over losses above epsilon: all terms are positive; rounded up."""
        above = int(self.gains.searchsorted(-epsilon))
        if not above:
            return 0.0
        first = int(self.sums[:above].searchsorted(self.negligible * self.sums[above - 1]))
        total = float(-(self.masses[first:above] * np.expm1(self.gains[first:above] + epsilon)).sum())
        if total > _SMALLEST_LINEAR_DELTA:
            return min(1.0, total * math.exp(self.rounding))
        terms = self.log_masses[:above] + np.log(-np.expm1(self.gains[:above] + epsilon))
        logarithm = float(special.logsumexp(terms))
        return math.exp(logarithm + self.rounding - 4 * _UNIT * logarithm)  # it is negative, and rounded by its size


def equal_bits_delta(epsilon_each: float, count: int, epsilon: float) -> float:
    """Exact delta(epsilon) of `count` randomised bits of equal epsilon (Kairouz, Oh & Viswanath 2015, Theorem 3.3).

    Beyond a thousand million bits the bound is the curve of the Gaussian that dominates them.
    """
    return _equal_bits_curve(epsilon_each, count)(epsilon)


def equal_bits_epsilon(epsilon_each: float, count: int, delta: float) -> float:
    """Smallest epsilon of `count` randomised bits of equal epsilon at this delta: inverse of `equal_bits_delta`."""
    if delta <= 0:
        return epsilon_each * count
    total = epsilon_each * count
    return min(total, _smallest_epsilon(_equal_bits_curve(epsilon_each, count), delta, start=max(total, 1e-300)))


def _equal_bits_curve(epsilon_each: float, count: int) -> Callable[[float], float]:
    if count > _MANY_BITS:
        mu = math.sqrt(count) * _pure_mu(epsilon_each) * _ROUNDING
        return lambda epsilon: gaussian_delta(mu, epsilon)
    return _EqualBits.of(epsilon_each, count).delta


def _exchanges(adjacency: Adjacency) -> bool:
    return adjacency is not Adjacency.RECORD_ADD_REMOVE


def _samples(loss: PoissonGaussian) -> bool:
    """Whether sampling is accounted for: at the extremes it is ignored, which is on the safe side."""
    return 1e-12 <= loss.q < 1 and 1e-3 <= loss.sigma <= 1e6


def _unsampled_mu(loss: PoissonGaussian, adjacency: Adjacency) -> float:
    """The mu of all steps on all data: what a sample of everything is, and never less than what a smaller one costs."""
    return math.sqrt(loss.steps) * (2 if _exchanges(adjacency) else 1) / loss.sigma


def _unknown(thing: object) -> UnsupportedLoss:
    return UnsupportedLoss(
        f"no accounting is known for {thing!r}; known losses are Pure, Metric, RandomizedBit, Gaussian, "
        "PoissonGaussian and Infinite. Describe an unproven release as Infinite(why)"
    )


# --- Renyi divergences ----------------------------------------------------------------------------------------------


def renyi_epsilon(order: float, divergence: float, delta: float) -> float:
    """Epsilon at delta of a Renyi divergence bound at one order (Canonne, Kamath & Steinke 2020, Proposition 12)."""
    if divergence == 0:
        return 0.0
    if delta <= 0:
        return math.inf
    return max(0.0, divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1))


def _renyi_delta(order: float, divergence: float, epsilon: float) -> float:
    """The same proposition, for delta at epsilon."""
    logarithm = (order - 1) * (divergence + math.log1p(-1 / order) - epsilon) - math.log(order)
    return min(1.0, math.exp(min(0.0, logarithm)) * _ROUNDING)


def _pure_renyi(epsilon: float, order: float) -> float:
    """Largest Renyi divergence of any pure epsilon: that of a randomised bit (Bun & Steinke 2016), at most epsilon."""
    if epsilon < _NO_SQUARE:
        return epsilon
    if order * epsilon > 30:
        log_moment = (order - 1) * epsilon - math.log1p(math.exp(-epsilon)) + math.exp((1 - 2 * order) * epsilon)
    else:
        rise = -math.expm1((1 - order) * epsilon) * math.expm1(order * epsilon)
        log_moment = math.log1p(rise / (1 + math.exp(epsilon)))
    return min(epsilon, log_moment / (order - 1))


@lru_cache(maxsize=64)
def _sampled_renyi(q: float, sigma: float, order: float, adjacency: Adjacency) -> float:
    """Renyi divergence of one Poisson-sampled Gaussian step.

    An exchange is a removal followed by an addition: the weak triangle inequality (Mironov 2017, Proposition 11, with
    both exponents 2) joins the two, at little cost where the divergence grows in proportion to the order. Sampling
    never hurts, so the divergence without it is a bound too.
    """
    if not _exchanges(adjacency):
        return min(_added_or_removed_renyi(q, sigma, order), order / sigma**2 / 2)
    removed = _added_or_removed_renyi(q, sigma, 2 * order)
    added = _added_or_removed_renyi(q, sigma, 2 * order - 1)
    return min((order - 0.5) / (order - 1) * removed + added, order * (2 / sigma) ** 2 / 2)


def _added_or_removed_renyi(q: float, sigma: float, order: float) -> float:
    import dp_accounting
    from dp_accounting.rdp import RdpAccountant

    event = dp_accounting.PoissonSampledDpEvent(q, dp_accounting.GaussianDpEvent(sigma))
    divergence = float(RdpAccountant([order]).compose(event).rdp[0])
    return max(0.0, divergence) + _SERIES / (order - 1)


# --- enforcement: plans chosen adaptively ---------------------------------------------------------------------------

_Amount = Fraction | float  #: an exact sum; a float only where it is infinite


@dataclass(frozen=True)
class Cost:
    """What releases add to each of an account's sums; exact, so that neither order nor rounding matters."""

    pure: _Amount = Fraction(0)  #: pure epsilons
    mu_squared: _Amount = Fraction(0)  #: squares of Gaussian parameters
    renyi: _Amount = Fraction(0)  #: Renyi divergences at the account's order
    tau: _Amount = Fraction(0)  #: delta already used up

    def __add__(self, other: Cost) -> Cost:
        return Cost(*map(_plus, vars(self).values(), vars(other).values()))

    def __mul__(self, times: int) -> Cost:
        return Cost(*(times * amount for amount in vars(self).values()))


def _plus(a: _Amount, b: _Amount) -> _Amount:
    return math.inf if math.inf in (a, b) else a + b


_ANYWHERE = Destination()
_NO_COST = Cost()
_UNPROVEN = Cost(math.inf, math.inf, math.inf)


@dataclass(frozen=True)
class Account:
    """What has been spent of one budget, valid even if every plan was chosen after seeing all earlier reports.

    Three filters run side by side, each fixed by the budget before the first release:

    - A: the sum of pure epsilons is at most the limit; uses no delta.
    - B: sum mu_t^2 stays below the mu^2 whose curve meets the limit at 2/5 of delta. Pure epsilons take part with the
      mu of a randomised bit, 2 Phi^-1(e^eps / (1 + e^eps)). Sampled Gaussian steps do not.
    - C: the sum of Renyi divergences at one order stays below what meets the limit at 2/5 of delta.

    B and C set aside another tenth of delta each for the taus of integer samplers. Etas are folded into mu (see
    `_absorb_slack`); those of sampled steps are added to the Renyi divergence, because its moment of order a is the
    integral of a (a - 1) e^((a - 1) epsilon) delta(epsilon), and moving a curve by eta multiplies that by
    e^((a - 1) eta). A trade between mu, eta and tau decided on the way would not be a filter.

    `spent` is the smallest of the three. Taking the smallest is sound: sums only grow, so a transcript that ends with
    filter X still permitting had X permitting all along, and there the interaction looks like one guarded by X alone.
    The excess P(S) - e^limit Q(S) over such transcripts is therefore at most delta_X; the three kinds of transcript
    cover everything that is allowed to happen, and 0 + delta/2 + delta/2 = delta.

    Why B holds with taus: if all that may follow adds at most delta_nu(epsilon - l) + tau' after loss l, and delta_nu
    is an average of hockey-stick functions, then a step with curve delta_mu + tau in front adds up to at most
    delta_sqrt(mu^2 + nu^2)(epsilon) + tau + tau'. The same induction with K r^order, cut off at slope 1, proves C.

    Epsilons, taus and the limit are added as the decimals they are written as: ten releases of 0.1 fit a limit of 1.
    """

    budget: Budget
    order: float | None = None  #: of the Renyi filter, chosen from the budget alone; None where delta is 0
    cost: Cost = _NO_COST
    schedules: frozenset[tuple[str, Claim]] = frozenset()  #: claims for a federation's whole schedule, counted once

    @classmethod
    def opening(cls, budget: Budget) -> Account:
        """An account with nothing spent."""
        usable = budget.basis == "proven" and _share(budget) > 0
        return cls(budget, _best_order(budget.limit, _share(budget)) if usable else None)

    def after(self, release: Release, destination: Destination = _ANYWHERE, times: int = 1) -> Account:
        """This account with one more release in it, or equal ones, whether or not the budget permits it: ask `permits`.

        The same id given twice is counted twice, and that a derived release names earlier ones is not checked: the
        ledger knows ids.
        """
        claim, schedules = release.claimed, self.schedules
        if claim is not None and claim.covers == "schedule":
            schedules = schedules | {(destination.federation, claim)}
        cost = self.cost + self._cost(release, destination) * times
        return Account(self.budget, self.order, cost, schedules)

    @property
    def spent(self) -> float:
        """Epsilon spent at the budget's delta, on the budget's basis; infinite where nothing is proven."""
        spent = _float(self._exactly_spent())
        if spent <= self.budget.limit and not self.permits:
            return math.nextafter(self.budget.limit, math.inf)
        return spent

    @property
    def remaining(self) -> float:
        """How much of the limit is left, never below 0."""
        return max(0.0, _float(_decimal(self.budget.limit) - min(self._exactly_spent(), _decimal(self.budget.limit))))

    @property
    def permits(self) -> bool:
        """Whether everything in this account stays within the limit."""
        return self._exactly_spent() <= _decimal(self.budget.limit)

    def _exactly_spent(self) -> _Amount:
        if self.budget.basis == "claimed":
            return self.cost.pure if self.cost.tau <= _decimal(self.budget.delta) else math.inf
        if self.cost.tau > _decimal(self.budget.delta) / 10:
            return self.cost.pure
        return min(self.cost.pure, _exact(self._gaussian_spent()), _exact(self._renyi_spent()))

    def _gaussian_spent(self) -> float:
        mu = math.sqrt(_float(self.cost.mu_squared)) * _ROUNDING
        return gaussian_epsilon(mu, _share(self.budget)) * _ROUNDING

    def _renyi_spent(self) -> float:
        if self.order is None:
            return math.inf
        return renyi_epsilon(self.order, _float(self.cost.renyi) * _ROUNDING, _share(self.budget)) * _ROUNDING

    def _cost(self, release: Release, destination: Destination) -> Cost:
        if isinstance(release.composition, Derived):
            return _NO_COST
        if not isinstance(release.composition, (Sequential, ParallelByRecord)):
            raise UnsupportedLoss(
                f"release {release.id!r} composes in an unknown way, {release.composition!r}; known are "
                "Sequential, ParallelByRecord and Derived"
            )
        claimed = self.budget.basis == "claimed"
        return self._claimed_cost(release, destination) if claimed else self._proven_cost(release, destination)

    def _claimed_cost(self, release: Release, destination: Destination) -> Cost:
        """A claim for a schedule is made once in each federation: another one's schedule is another schedule."""
        claim = release.claimed
        if claim is None or not _speaks_of(claim, self.budget):
            return _UNPROVEN
        if (destination.federation, claim) in self.schedules:
            return _NO_COST
        return Cost(pure=_decimal(claim.epsilon), tau=_decimal(claim.delta))

    def _proven_cost(self, release: Release, destination: Destination) -> Cost:
        """Cheapest proof for each filter: every guarantee of a release is true, so each sum may use its best one."""
        costs = [_loss_cost(g.loss, g.adjacency, self.order) for g in release.guarantees]
        usable = [c for c, g in zip(costs, release.guarantees, strict=True) if covers(g, self.budget, destination)]
        if not usable:
            return _UNPROVEN
        approximate = min(usable, key=lambda c: (c.renyi, c.mu_squared, c.tau))
        return Cost(min(c.pure for c in usable), approximate.mu_squared, approximate.renyi, approximate.tau)


def covers(guarantee: Guarantee, budget: Budget, destination: Destination = _ANYWHERE) -> bool:
    """Whether a guarantee speaks of the budget's adversary and adjacency, or of stronger ones, and can be relied upon.

    What holds behind a shuffler depends on others behaving well, which a client cannot check: never used for
    enforcement. What holds in a secure sum is used where the keys of all others are pinned.
    """
    relies = {"shuffled": False, "summed": destination.pinned}.get(guarantee.adversary.kind, True)
    return relies and _speaks_of(guarantee, budget)


def _speaks_of(statement: Guarantee | Claim, budget: Budget) -> bool:
    """Whether it is about the budget's adversary and adjacency, or about stronger ones."""
    return holds_against(statement.adversary, budget.adversary) and implies(statement.adjacency, budget.adjacency)


def holds_against(given: Adversary, wanted: Adversary) -> bool:
    """Whether what holds against one adversary holds against another, who is the same or weaker.

    The server sees everything, so what holds against it holds against everyone. Who knows of more clients behind the
    shuffler, or of more honest ones in a sum, is weaker: what holds with 7 honest clients holds with 8.
    """
    if given in (SERVER, wanted):
        return True
    return given.kind == wanted.kind and (given.parties or 0) <= (wanted.parties or 0)


def implies(given: Adjacency, wanted: Adjacency) -> bool:
    """Whether protection of a change of one kind protects changes of another kind with the same figure."""
    if given is wanted or given is Adjacency.CLIENT:
        return True
    return given is Adjacency.RECORD_REPLACE and wanted is Adjacency.LABEL


def _loss_cost(loss: Loss, adjacency: Adjacency, order: float | None) -> Cost:
    match loss:
        case Infinite():
            return _UNPROVEN
        case Pure(each, count):
            return _pure_cost(_decimal(each), count, order)
        case Metric(alpha, distance, count):
            return _pure_cost(_decimal(alpha) * _decimal(distance), count, order)
        case RandomizedBit(2147483648, _):
            return _NO_COST
        case RandomizedBit(t_min, count):
            return _pure_cost(_decimal(_bit_epsilon_above(t_min)), count, order)
        case GaussianLoss(mu, eta, tau):
            return _gaussian_cost(mu, eta, tau, order)
        case PoissonGaussian(_, _, _, eta, tau) if not _samples(loss):
            return _gaussian_cost(_unsampled_mu(loss, adjacency), eta, tau, order)
        case PoissonGaussian(q, sigma, steps, eta, tau):
            renyi = math.inf if order is None else _up(_sampled_renyi(q, sigma, order, adjacency))
            return Cost(math.inf, math.inf, _plus(steps * renyi, _decimal(eta)), _decimal(tau))
        case _:
            raise _unknown(loss)


def _pure_cost(epsilon: Fraction, count: int, order: float | None) -> Cost:
    each = _float(epsilon)
    if math.isinf(each):
        return Cost(epsilon * count, math.inf, math.inf)
    mu = _pure_mu(each)
    renyi = math.inf if order is None else _up(_pure_renyi(each, order))
    return Cost(epsilon * count, count * _square(mu), count * renyi)


def _gaussian_cost(mu: float, eta: float, tau: float, order: float | None) -> Cost:
    absorbed = _absorb_slack(mu, eta)
    mu_squared = _square(absorbed)
    renyi = math.inf if order is None else mu_squared * _exact(order) / 2
    pure = Fraction(0) if mu == eta == tau == 0 else math.inf
    return Cost(pure, mu_squared, renyi, _decimal(tau))


def _pure_mu(epsilon: float) -> float:
    """The mu of a randomised bit: its trade-off curve is the chords of that Gaussian one, so lies above it."""
    if epsilon < 10:
        return 2 * math.sqrt(2) * float(special.erfinv(math.tanh(epsilon / 2)))
    return -2 * float(special.ndtri_exp(-epsilon - math.log1p(math.exp(-epsilon))))


def _absorb_slack(mu: float, eta: float) -> float:
    """A mu' whose curve lies above delta_mu(epsilon - eta) for every epsilon >= 0.

    Along a path from (mu, epsilon - eta) to (mu', epsilon), delta changes by phi(a) (dmu - M(b) depsilon), where M is
    Mills' ratio and b = epsilon/mu + mu/2 >= mu/2 - eta/mu; M falls, so mu' = mu + eta M(mu/2 - eta/mu) is enough.
    Without noise of its own (mu = 0) the loss is pure.
    """
    if eta == 0:
        return mu
    if mu == 0:
        return _pure_mu(eta)
    mills = math.sqrt(math.pi / 2) * float(special.erfcx((mu / 2 - eta / mu) / math.sqrt(2)))
    return mu + eta * mills


def _best_order(limit: float, delta: float) -> float:
    """The order at which a Gaussian history gets furthest before it meets the limit at delta."""

    def allowed_mu_squared(order: float) -> float:
        return (limit - math.log1p(-1 / order) + math.log(delta * order) / (order - 1)) / order

    return max(_ORDERS, key=allowed_mu_squared)


def _share(budget: Budget) -> float:
    return 0.4 * budget.delta


def _decimal(value: float) -> Fraction:
    """The number as it is written in decimal: 0.1 is a tenth."""
    return Fraction(repr(float(value)))


def _ceiling(amount: Fraction) -> float:
    """The smallest number of double precision that is, as it is written in decimal, not below the amount."""
    nearest = _float(amount)
    return nearest if math.isinf(nearest) or _decimal(nearest) >= amount else math.nextafter(nearest, math.inf)


def _float(amount: _Amount) -> float:
    try:
        return float(amount)
    except OverflowError:
        return math.inf


def _exact(value: float) -> _Amount:
    return Fraction(value) if math.isfinite(value) else math.inf


def _up(value: float) -> _Amount:
    return _exact(value * _ROUNDING)


def _square(mu: float) -> _Amount:
    """The square, rounded up; the one of a tiny number is none in double precision."""
    if mu < _NO_SQUARE:
        root = _up(mu)
        return root * root
    return _up(mu * mu)

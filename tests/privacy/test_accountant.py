"""The accountant against brute force, closed forms and `dp_accounting`, and the filters against their limits."""

import itertools
import math
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction

import dp_accounting
import mpmath
import numpy as np
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.pld import privacy_loss_distribution as pld
from dp_accounting.rdp import RdpAccountant, rdp_privacy_accountant
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import integrate, special

from sordino.errors import InvalidInput, UnsupportedLoss
from sordino.privacy import accountant, numerical
from sordino.privacy.accountant import (
    Account,
    bit_epsilon,
    compose,
    delta,
    epsilon,
    equal_bits_delta,
    equal_bits_epsilon,
    gaussian_delta,
    gaussian_epsilon,
    mu_for,
)
from sordino.privacy.guarantee import (
    MODEL_READER,
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
    PoissonGaussian,
    Pure,
    RandomizedBit,
    Release,
    shuffled,
    summed,
)

ADD_REMOVE = Adjacency.RECORD_ADD_REMOVE


def release(
    loss: Loss,
    *,
    name: str = "r",
    adversary: Adversary = SERVER,
    adjacency: Adjacency = Adjacency.CLIENT,
    claimed: Claim | None = None,
) -> Release:
    modulus = 20 if adversary.kind == "summed" else None
    return Release(name, "data", "a report", (Guarantee(adversary, adjacency, loss, "test", modulus),), claimed)


def account(budget: Budget, *losses: Loss) -> Account:
    state = Account.opening(budget)
    for number, loss in enumerate(losses):
        state = state.after(release(loss, name=f"r{number}"))
    return state


# --- single losses --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "mu"),
    [(0.05, 0.0173), (0.5, 0.1422), (1, 0.2681), (2, 0.5016), (3, 0.7191), (4, 0.9249), (6, 1.3095), (8, 1.666),
     (10, 2.0004)],
)  # fmt: skip
def test_mu_of_common_budgets(target: float, mu: float) -> None:
    assert mu_for(target, 1e-5) == pytest.approx(mu, abs=6e-5)
    assert gaussian_delta(mu_for(target, 1e-5), target) == pytest.approx(1e-5, rel=1e-9)


@pytest.mark.parametrize("mu", [1e-3, 0.3, 2.0, 50.0])
@pytest.mark.parametrize("scaled", [-1.0, 0.0, 0.5, 1.0, 5.0])
def test_gaussian_curve_agrees_with_high_precision(mu: float, scaled: float) -> None:
    target = mu * (mu / 2 + scaled)
    with mpmath.workdps(60):
        m, e = mpmath.mpf(mu), mpmath.mpf(target)
        exact = mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
    assert gaussian_delta(mu, target) == pytest.approx(float(exact), rel=1e-9, abs=1e-300)


def _points_of_the_gaussian_curve() -> Iterator[tuple[float, float]]:
    """A mu from 1e-12 to 50 and an epsilon from 0 to 50: near 0, in the middle and in the tail of that mu's curve."""
    rng = np.random.default_rng(4)
    for mu in 10 ** rng.uniform(-12, math.log10(50), 300):
        wide, square, tail = 10 ** rng.uniform(-13, math.log10(50)), 10 ** rng.uniform(-2, 2), rng.uniform(0, 36)
        yield from ((float(mu), min(float(at), 50.0)) for at in (0.0, wide, mu * mu * square, mu * tail))
    yield from ((0.010342535210573885, 0.0004542142085024568), (1e-6, 2.47e-12), (5e-324, 0.0), (1e-3, 1.0))
    for mu in (10.0, 141.0, 3e4):
        yield from ((mu, mu * mu / 2 * (1 - share)) for share in (0.0, 1e-15, 1e-9, 1e-3))


def test_the_gaussian_curve_is_never_below_the_truth() -> None:
    for mu, target in _points_of_the_gaussian_curve():
        found = gaussian_delta(mu, target)
        with mpmath.workdps(400):
            exact = gaussian_delta_exactly(mpmath.mpf(mu), mpmath.mpf(target))
        assert exact <= found <= max(exact * (1 + mpmath.mpf(10) ** -8), sys.float_info.min)


@given(st.floats(-12, math.log10(50)), st.floats(0, 50), st.floats(-300, -0.1))
@settings(max_examples=100, deadline=None)
def test_what_inverts_the_gaussian_curve_meets_delta(exponent: float, target: float, digits: float) -> None:
    mu, at = 10**exponent, 10**digits
    with mpmath.workdps(400):
        assert gaussian_delta_exactly(mpmath.mpf(mu), mpmath.mpf(gaussian_epsilon(mu, at))) <= at
        assert gaussian_delta_exactly(mpmath.mpf(mu_for(target, at)), mpmath.mpf(target)) <= at


def test_the_gaussian_curve_ends_where_its_arguments_do() -> None:
    assert gaussian_delta(1.0, math.inf) == delta(GaussianLoss(1.0), math.inf) == 0
    assert gaussian_delta(math.nan, 1.0) == gaussian_delta(1.0, math.nan) == gaussian_delta(math.inf, 1.0) == 1
    assert gaussian_epsilon(1.0, 1e-310) == math.inf
    assert gaussian_delta(1.0, 60.0) == sys.float_info.min


def test_gaussian_curve_survives_huge_epsilons() -> None:
    """Upload of the digits setting of 004 at c = 200: no overflow, and monotone."""
    figures = [gaussian_epsilon(mu, 1 / 500) for mu in (60.0, 600.0, 6000.0)]
    assert figures == sorted(figures)
    assert figures[2] == pytest.approx(6000**2 / 2 + 6000 * 2.878, rel=1e-4)


def test_analytic_calibration_is_tight_and_beats_the_classic_formula() -> None:
    sigma = 2.0 / mu_for(0.5, 1e-5)
    assert gaussian_delta(2.0 / sigma, 0.5) == pytest.approx(1e-5, rel=1e-9)
    assert sigma < 2.0 * math.sqrt(2 * math.log(1.25e5)) / 0.5


@pytest.mark.parametrize(
    ("claimed", "pure", "true_delta", "at_1e5"),
    [(5, 0.8334, 1.35e-6, 4.54), (10, 1.7266, 2.27e-5, 10.39), (15, 2.7373, 2.23e-4, 17.37)],
)
def test_randomised_sign_of_004(claimed: float, pure: float, true_delta: float, at_1e5: float) -> None:
    """The classic sigma is invalid for epsilon >= 1: it holds at 5 and is violated at 10 and 15."""
    mu = claimed / math.sqrt(2 * math.log(1.25e5))
    assert delta(GaussianLoss(mu), claimed) == pytest.approx(true_delta, rel=5e-3)
    assert epsilon(GaussianLoss(mu), 1e-5) == pytest.approx(at_1e5, abs=6e-3)
    assert float(special.log_ndtr(mu / 2) - special.log_ndtr(-mu / 2)) == pytest.approx(pure, abs=6e-5)


def test_pure_like_losses_at_delta_zero() -> None:
    assert epsilon(Pure(0.7)) == 0.7
    assert epsilon(Metric(0.02, 50)) == 1.0
    assert epsilon(Pure(0.5, 6)) == epsilon(Metric(0.25, 2.0, 6)) == 3.0
    assert epsilon(RandomizedBit(2**31, 5)) == 0.0
    assert epsilon(RandomizedBit(1, 3)) == pytest.approx(3 * math.log(2**32 - 1), rel=1e-15)


@pytest.mark.parametrize("at", [0.0, 1e-9, 1e-5])
def test_so_many_outputs_lose_what_as_many_releases_of_one_do(at: float) -> None:
    alone = compose([Pure(0.3)] * 40 + [Metric(0.1, 2.0)] * 9).epsilon(at)
    assert compose([Pure(0.3, 40), Metric(0.1, 2.0, 9)]).epsilon(at) == alone
    budget = Budget(100.0, delta=at)
    assert (
        account(budget, Pure(0.3, 40), Metric(0.1, 2.0, 9)).cost
        == account(budget, *[Pure(0.3)] * 40, *[Metric(0.1, 2.0)] * 9).cost
    )


def test_equal_outputs_have_the_closed_form_of_as_many_bits() -> None:
    t_min = 2**30  # a bit that is kept with probability 3/4: epsilon ln 3
    assert epsilon(Pure(math.log(3), 1000), 1e-6) == pytest.approx(epsilon(RandomizedBit(t_min, 1000), 1e-6), rel=1e-12)


def test_nothing_is_proven_where_nothing_can_be() -> None:
    assert epsilon(GaussianLoss(1.0)) == math.inf
    assert epsilon(PoissonGaussian(0.1, 1.0, 3)) == math.inf
    assert epsilon(Infinite("in clear"), 0.5) == math.inf
    assert delta(Infinite("in clear"), 1e9) == 1.0
    assert epsilon(GaussianLoss(1.0, tau=1e-4), 1e-5) == math.inf


def test_slack_of_integer_samplers_adds_up() -> None:
    exact = compose([GaussianLoss(0.3)] * 4).epsilon(1e-5 - 4e-7)
    assert compose([GaussianLoss(0.3, eta=0.01, tau=1e-7)] * 4).epsilon(1e-5) == pytest.approx(exact + 0.04, rel=1e-9)
    assert delta(GaussianLoss(0.3, eta=0.5, tau=1e-3), 0.2) == pytest.approx(gaussian_delta(0.3, -0.3) + 1e-3)


def test_unknown_losses_are_refused() -> None:
    with pytest.raises(UnsupportedLoss, match="Infinite"):
        epsilon("something else")  # type: ignore[arg-type]
    with pytest.raises(UnsupportedLoss):
        account(Budget(1.0), "something else")  # type: ignore[arg-type]


@pytest.mark.parametrize("bad", [-0.1, 1.0, math.nan])
def test_bad_deltas_are_refused(bad: float) -> None:
    with pytest.raises(InvalidInput):
        epsilon(Pure(1.0), bad)
    with pytest.raises(InvalidInput):
        mu_for(1.0, bad)


@pytest.mark.process
def test_importing_the_accountant_does_not_import_dp_accounting() -> None:
    code = "import sys, sordino.privacy.accountant; sys.exit('dp_accounting' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- composition ----------------------------------------------------------------------------------------------------


def brute_force_delta(each: float, count: int, target: float) -> float:
    keep = 1 / (1 + math.exp(-each))
    excess = 0.0
    for flips in itertools.product((0, 1), repeat=count):
        first = math.prod(1 - keep if f else keep for f in flips)
        second = math.prod(keep if f else 1 - keep for f in flips)
        excess += max(0.0, first - math.exp(target) * second)
    return excess


@pytest.mark.parametrize("each", [0.05, 0.8334, 3.0])
@pytest.mark.parametrize("target", [0.0, 0.3, 1.0, 4.0])
def test_binomial_formula_against_brute_force(each: float, target: float) -> None:
    assert equal_bits_delta(each, 10, target) == pytest.approx(
        brute_force_delta(each, 10, target), rel=1e-11, abs=1e-15
    )


@pytest.mark.parametrize(("each", "count", "target"), [(0.05, 2000, 12.0), (1.0, 650, 390.0), (4.0, 650, 2570.0)])
def test_binomial_formula_leaves_out_nothing_that_counts(each: float, count: int, target: float) -> None:
    """All terms one by one; delta is between 1e-7 and 1e-2 here, a sum of hundreds of unlike terms."""

    def term(i: int) -> float:
        ways = math.lgamma(count + 1) - math.lgamma(i + 1) - math.lgamma(count - i + 1)
        mass = math.exp(ways - i * each - count * math.log1p(math.exp(-each)))
        return mass * -math.expm1(min(0.0, target - (count - 2 * i) * each))

    by_hand = math.fsum(term(i) for i in range(count // 2))
    assert 1e-7 < by_hand < 1e-2
    assert equal_bits_delta(each, count, target) == pytest.approx(by_hand, rel=2e-11)


def test_binomial_formula_against_a_privacy_loss_distribution() -> None:
    numerical = pld.from_randomized_response(2 / (1 + math.e), 2, value_discretization_interval=1e-2)
    for count in (30, 650):
        rough = numerical.self_compose(count).get_epsilon_for_delta(1e-5)
        assert equal_bits_epsilon(1.0, count, 1e-5) == pytest.approx(rough, rel=1e-6)


def test_binomial_formula_for_very_many_bits() -> None:
    """218,400 bits: checked by the exact value at high precision, a thousand times faster than a distribution."""
    found = equal_bits_epsilon(1.0, 218_400, 1e-5)
    assert found == pytest.approx(102_689.98, abs=0.01)
    assert equal_bits_delta(1.0, 218_400, found) == pytest.approx(1e-5, rel=1e-6)
    assert equal_bits_epsilon(1.0, 20_000_000, 1e-5) < 20_000_000


@pytest.mark.parametrize("count", [3, 650, 1900, 2000, 2100, 2300])
def test_binomial_formula_down_to_the_smallest_deltas(count: int) -> None:
    """Just below the sum only the unflipped string counts: (e / (e + 1))^count (1 - e^-0.5), to 1e-312 and less."""
    log_delta = -count * math.log1p(math.exp(-1)) + math.log(-math.expm1(-0.5))
    found = equal_bits_delta(1.0, count, count - 0.5)
    assert found == pytest.approx(math.exp(log_delta), rel=1e-9 if log_delta > -700 else 1e-2)
    assert found > 0


# --- never below the truth --------------------------------------------------------------------------------------------

SMALL = [1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1.1e-11, 1e-12]


def least_bits_delta(each: float, count: int, target: float) -> mpmath.mpf:
    """Delta of equal bits at epsilon `target` by the binomial formula, without the terms that hardly count."""
    with mpmath.workdps(50):
        rare = 1 / (1 + mpmath.exp(mpmath.mpf(each)))
        last = min(count, math.floor((count - target / each) / 2))
        first = max(0, last - 200 - math.ceil(10 * math.sqrt(count) / 2))
        mass = mpmath.binomial(count, first) * rare**first * (1 - rare) ** (count - first)
        total = mpmath.mpf(0)
        for i in range(first, last + 1):
            total += mass * max(0, 1 - mpmath.exp(mpmath.mpf(target) - (count - 2 * i) * mpmath.mpf(each)))
            mass *= rare / (1 - rare) * (count - i) / (i + 1)
        return total


def exact_bits_delta(t_min: int, count: int, target: float) -> Fraction:
    """The same in rational arithmetic, all of it, with an e^epsilon that is a little too large."""
    with mpmath.workdps(60):
        ratio = Fraction(int(mpmath.ceil(mpmath.exp(mpmath.mpf(target)) * 10**50)), 10**50)
    rare = Fraction(t_min, 2**32)
    common, total = 1 - rare, Fraction(0)
    for i in range(count + 1):
        gain = rare**i * common ** (count - i) - ratio * common**i * rare ** (count - i)
        total += math.comb(count, i) * max(gain, Fraction(0))
    return total


def gaussian_delta_exactly(mu: mpmath.mpf, target: mpmath.mpf) -> mpmath.mpf:
    return mpmath.ncdf(mu / 2 - target / mu) - mpmath.exp(target) * mpmath.ncdf(-mu / 2 - target / mu)


def least_sampled_delta(q: float, sigma: float, steps: int, target: float, *, reach: int = 1) -> mpmath.mpf:
    """What an attack reaches that knows no more than the sum of all steps, and looks whether it is above a threshold.

    With the record in, the sum has a mean that is binomial; without it (or with its opposite), zero (or the negative).
    """
    with mpmath.workdps(40):
        q, sigma, target = mpmath.mpf(q), mpmath.mpf(sigma), mpmath.mpf(target)
        spread = sigma * mpmath.sqrt(steps)
        middle, wide = steps * q, 12 * mpmath.sqrt(steps * q * (1 - q)) + 12
        first, last = max(0, int(middle - wide)), min(steps, int(middle + wide))
        mass, masses = mpmath.binomial(steps, first) * q**first * (1 - q) ** (steps - first), []
        for b in range(first, last + 1):
            masses.append(mass)
            mass *= q / (1 - q) * mpmath.mpf(steps - b) / (b + 1)

        def excess(threshold: mpmath.mpf) -> mpmath.mpf:
            rows = list(enumerate(masses, first))
            one = mpmath.fsum(m * mpmath.ncdf((b - threshold) / spread) for b, m in rows)
            if reach == 1:
                return one - mpmath.exp(target) * mpmath.ncdf(-threshold / spread)
            other = mpmath.fsum(m * mpmath.ncdf((-b - threshold) / spread) for b, m in rows)
            return one - mpmath.exp(target) * other

        best = spread**2 * target / (reach * middle) + (middle / 2 if reach == 1 else 0)
        return max(excess(best + shift * spread / 100) for shift in (-10, -3, 0, 3, 10))


def test_two_figures_that_were_too_small() -> None:
    """Their loss distributions had been cut off at a mass that did not shrink with the number of compositions."""
    found = epsilon(PoissonGaussian(0.99999, 50, 10**6), 1.1e-11, adjacency=ADD_REMOVE)
    assert least_sampled_delta(0.99999, 50, 10**6, 332.97) > 1.1e-11
    assert 332.97 <= found < 333.1
    assert 1066.5 < epsilon(PoissonGaussian(0.99999, 50, 10**6), 1.1e-11) < 1066.8


@pytest.mark.parametrize("at", SMALL)
@pytest.mark.parametrize(("t_min", "count"), [(2**31 - 2**27, 1), (2**30, 7), (2**29, 40), (2**31 - 2**26, 150)])
def test_bits_are_never_below_the_binomial_formula_in_rational_arithmetic(t_min: int, count: int, at: float) -> None:
    found = compose([RandomizedBit(t_min, count)]).epsilon(at)
    assert exact_bits_delta(t_min, count, found) <= Fraction(at)
    for target in (found, found / 2):
        assert compose([RandomizedBit(t_min, count)]).delta(target) >= exact_bits_delta(t_min, count, target)
    mixed = compose([RandomizedBit(t_min, count), RandomizedBit(t_min - 1, 1)])  # not equal, so numerical
    assert exact_bits_delta(t_min, count + 1, mixed.epsilon(at)) <= Fraction(at)
    assert mixed.delta(found) >= exact_bits_delta(t_min, count + 1, found)
    if found > 0.01:
        assert mixed.epsilon(at) <= compose([RandomizedBit(t_min - 1, count + 1)]).epsilon(at) * (1 + 1e-3)


@pytest.mark.process
@pytest.mark.parametrize("at", [1e-2, 1e-8, 1.1e-11, 1e-12])
@pytest.mark.parametrize(("each", "count"), [(1.0, 1000), (0.1, 100_000), (0.01, 10**6), (0.5, 10**6)])
def test_many_bits_are_never_below_the_binomial_formula(each: float, count: int, at: float) -> None:
    found = compose([Pure(each, count)]).epsilon(at)
    assert least_bits_delta(each, count, found) <= at
    mixed = compose([Pure(each, count - 1), Pure(each * (1 + 1e-9))])
    by_grid = numerical.Sum([(numerical.two_point(each, mixed._interval()), count)])
    for value in (mixed.epsilon(at), by_grid.epsilon(at)):
        assert least_bits_delta(each, count, value) <= at
        assert value <= found * (1 + 1e-3)
    for value in (mixed.delta(found), by_grid.delta(found)):
        assert least_bits_delta(each, count, found) <= value <= at * 1.1


@pytest.mark.process
@given(st.floats(0.001, 3), st.integers(1, 10**6), st.floats(-12, -2))
@settings(max_examples=25, deadline=None)
def test_any_bits_are_never_below_the_binomial_formula(each: float, count: int, exponent: float) -> None:
    at = 10**exponent
    mixed = compose([Pure(each, count), Pure(math.nextafter(each, 10))])
    assert least_bits_delta(each, count + 1, mixed.epsilon(at)) <= at
    target = mixed.epsilon(at) * 0.9
    assert mixed.delta(target) >= least_bits_delta(each, count + 1, target)


@given(st.floats(1e-3, 60), st.floats(-12, -2))
@settings(max_examples=60, deadline=None)
def test_gaussians_are_never_below_the_closed_form(mu: float, exponent: float) -> None:
    at = 10**exponent
    found = epsilon(PoissonGaussian(1.0, 1 / mu, 1), at, adjacency=ADD_REMOVE)
    with mpmath.workdps(40):
        exact = gaussian_delta_exactly(1 / mpmath.mpf(1 / mu), mpmath.mpf(found))
        assert exact <= at
        assert found == 0 or gaussian_delta_exactly(mpmath.mpf(mu), mpmath.mpf(found) * (1 - mpmath.mpf(10) ** -9)) > at
        assert gaussian_delta(mu, found) >= gaussian_delta_exactly(mpmath.mpf(mu), mpmath.mpf(found))


@pytest.mark.parametrize("at", [1e-2, 1e-5, 1e-8, 1.1e-11, 1e-12])
@pytest.mark.parametrize(("mu", "count"), [(0.5, 1), (1.0, 30), (20.0, 10**6), (3.0, 10**5)])
def test_the_grid_is_never_below_a_gaussian(mu: float, count: int, at: float) -> None:
    """Many small Gaussian releases on a grid: what is proven of them in closed form is not used here."""
    interval = max(1e-4, 16 * mu / 400_000)
    (grid,) = numerical.gaussian_steps(1.0, math.sqrt(count) / mu, interval, exchanged=False, log_tail=-60)
    whole = numerical.Sum([(grid, count)])
    found = whole.epsilon(at)
    with mpmath.workdps(40):
        assert gaussian_delta_exactly(mpmath.mpf(mu) * (1 - mpmath.mpf(2) ** -50), mpmath.mpf(found)) <= at
        assert whole.delta(found) >= gaussian_delta_exactly(mpmath.mpf(mu) * (1 - mpmath.mpf(2) ** -50), found)
    assert found <= gaussian_epsilon(mu, at) * 1.002


@pytest.mark.process
@pytest.mark.parametrize("at", [1e-2, 1e-5, 1e-8, 1.1e-11, 1e-12])
@pytest.mark.parametrize(
    ("q", "sigma", "steps"), [(0.99999, 50.0, 10**6), (0.999, 3.0, 100), (0.9, 20.0, 200), (0.5, 50.0, 200)]
)
@pytest.mark.parametrize("reach", [1, 2])
def test_sampled_noise_is_never_below_an_attack(q: float, sigma: float, steps: int, at: float, reach: int) -> None:
    loss, adjacency = PoissonGaussian(q, sigma, steps), ADD_REMOVE if reach == 1 else Adjacency.CLIENT
    found = epsilon(loss, at, adjacency=adjacency)
    assert least_sampled_delta(q, sigma, steps, found, reach=reach) <= at
    assert delta(loss, found, adjacency=adjacency) >= least_sampled_delta(q, sigma, steps, found, reach=reach)
    assert least_sampled_delta(q, sigma, steps, found * 0.9, reach=reach) > at


def one_sampled_step(q: float, sigma: float, target: float) -> mpmath.mpf:
    """Exactly what one step loses at epsilon `target`, the worse of both ways round: what lies beyond the border."""
    with mpmath.workdps(60):
        q, sigma, ratio = mpmath.mpf(q), mpmath.mpf(sigma), mpmath.exp(target)
        border = sigma**2 * mpmath.log((ratio - 1 + q) / q) + 0.5
        plain, shifted = mpmath.ncdf(-border / sigma), mpmath.ncdf((1 - border) / sigma)
        removed = (1 - q) * plain + q * shifted - ratio * plain
        if 1 / ratio <= 1 - q:
            return removed
        border = sigma**2 * mpmath.log((1 / ratio - 1 + q) / q) + 0.5
        plain, shifted = mpmath.ncdf(border / sigma), mpmath.ncdf((border - 1) / sigma)
        return max(removed, plain - ratio * ((1 - q) * plain + q * shifted))


@pytest.mark.process
@given(st.floats(-5, -1e-6), st.floats(0.3, 20), st.floats(-12, -2))
@example(exponent=-0.00001, sigma=1.0, at=-12.0)
@settings(max_examples=25, deadline=None)
def test_one_sampled_step_is_never_below_its_exact_loss(exponent: float, sigma: float, at: float) -> None:
    q, chance = 10**exponent, 10**at
    found = epsilon(PoissonGaussian(q, sigma, 1), chance, adjacency=ADD_REMOVE)
    assert one_sampled_step(q, sigma, found) <= chance * (1 + 1e-15)
    assert delta(PoissonGaussian(q, sigma, 1), found, adjacency=ADD_REMOVE) >= one_sampled_step(q, sigma, found)
    if found > 0.01:
        assert one_sampled_step(q, sigma, found * (1 - 1e-3)) > chance


atoms = st.lists(st.tuples(st.integers(-8, 8), st.integers(1, 1000)), min_size=2, max_size=5)


@pytest.mark.process
@given(atoms, st.integers(1, 60), st.floats(-12, -2))
@settings(max_examples=60, deadline=None)
def test_sums_on_a_grid_are_never_below_exact_ones_and_hardly_above(
    drawn: list[tuple[int, int]], count: int, exponent: float
) -> None:
    """Losses that are multiples of the interval, so that nothing is rounded but by the computation itself."""
    at, interval, bits = 10**exponent, 0.125, 16 * count
    weights = np.zeros(17, np.int64)
    for cell, own in drawn:
        weights[cell + 8] += own
    weights[drawn[0][0] + 8] += 2**13 - weights.sum()
    power = (
        sum(int(weight) << (bits * cell) for cell, weight in enumerate(weights)) ** count
    )  # a polynomial as a number
    with mpmath.workdps(50):
        exact = [mpmath.mpf((power >> (bits * k)) & (2**bits - 1)) / 2 ** (13 * count) for k in range(16 * count + 1)]

        def curve(target: float) -> mpmath.mpf:
            losses = [interval * (k - 8 * count) for k in range(len(exact))]
            return mpmath.fsum(
                m * (1 - mpmath.exp(mpmath.mpf(target) - x)) for m, x in zip(exact, losses, strict=True) if x > target
            )

        total = numerical.Sum([(numerical.Grid(interval, -8, weights / 2**13), count)])
        found, reached = total.epsilon(at), total.reached(at)
        assert curve(found) <= at
        assert found < 1e-6 or curve(found - 1e-6 * (1 + found)) > at
        assert reached == 0 or curve(reached) >= at
        assert curve(found) <= total.delta(found) <= at * (1 + 1e-3)
        assert total.delta(found / 2) >= curve(found / 2)


@pytest.mark.process
def test_a_delta_that_no_distribution_can_answer_gets_an_analytic_bound() -> None:
    for loss in (PoissonGaussian(0.5, 1.0, 10**12), PoissonGaussian(0.01, 1e-2, 10), Pure(1e-3, 10**12)):
        mixed = compose([loss, Pure(0.1)], adjacency=ADD_REMOVE)
        assert 0 < mixed.epsilon(1e-12) < math.inf
        assert 0 <= mixed.delta(mixed.epsilon(1e-12) * 1.01) <= 1e-11
    assert epsilon(PoissonGaussian(4e-10, 0.2345, 4_240_000), 0.7) < 1  # too wide a window at the best tilt
    tiny = compose([PoissonGaussian(0.01, 1.1, 1000)], adjacency=ADD_REMOVE)
    figures = [tiny.epsilon(at) for at in (1e-12, 1e-20, 1e-50, 1e-200, 1e-300)]
    assert figures == sorted(figures)
    assert math.isfinite(figures[-1])


# --- published figures ------------------------------------------------------------------------------------------------


def test_sign_upload_of_004() -> None:
    """6,542 pure for 7,850 values; exactly 2,865.17 at 1e-5, and 26,699.5 over ten rounds."""
    mu = 5 / math.sqrt(2 * math.log(1.25e5))
    each = float(special.log_ndtr(mu / 2) - special.log_ndtr(-mu / 2))
    assert compose([Pure(each)] * 7850).epsilon() == pytest.approx(6542.4, abs=0.1)
    assert compose([Pure(each)] * 7850).epsilon(1e-5) == pytest.approx(2865.17, abs=0.01)
    assert compose([Pure(each)] * 78500).epsilon(1e-5) == pytest.approx(26699.5, abs=0.05)
    assert numerical.Sum([(numerical.two_point(each, 0.01), 7850)]).epsilon(1e-5) == pytest.approx(2865.2, abs=0.2)


@pytest.mark.parametrize(("d", "figure"), [(100, 259.9), (1000, 2246.0)])
def test_laplace_uploads_of_003(d: int, figure: float) -> None:
    """Known to be Laplace, d values of epsilon 3 are cheaper than the pure sum; known as pure only, hardly so."""
    between = (np.arange(20_000) + 0.5) / 20_000
    losses = np.concatenate([[3.0, -3.0], 3 - 6 * between])
    masses = np.concatenate([[0.5, 0.5 * math.exp(-3)], 1.5 * np.exp(-3 * between) / 20_000])
    laplace = numerical.Sum([(numerical.dots(losses, masses, 1e-3), d)])
    assert laplace.epsilon(1e-5) == pytest.approx(figure, rel=5e-4)
    assert figure < compose([Pure(3.0)] * d).epsilon(1e-5) <= 3 * d


def equation_4(target: float, q: float, rounds: int, chance: float) -> float:
    return math.sqrt(4 * q * q * rounds / (1 - q) * (2 / target**2 * math.log(1 / chance) + 1 / target))


@pytest.mark.parametrize(("target", "sigma", "figure"), [(1, 41.460, 0.0898), (5, 9.447, 0.580), (10, 5.358, 1.169)])
def test_equation_4_of_004_as_a_noise_multiplier(target: float, sigma: float, figure: float) -> None:
    found = equation_4(target, 0.8, 10, 1 / 500)
    assert found == pytest.approx(sigma, abs=6e-4)
    assert epsilon(PoissonGaussian(0.8, found, 10), 1 / 500, adjacency=ADD_REMOVE) == pytest.approx(figure, rel=1e-3)


@pytest.mark.parametrize(
    ("c", "d", "rounds", "q", "chance", "figures"),
    [
        (200, 650, 10, 0.8, 1 / 500, {1: (73.4, 3.10e4, 3.05e5), 5: (1017, 5.86e5, 5.84e6),
                                      10: (3000, 1.82e6, 1.81e7)}),
        (2, 7850, 20, 0.9, 1 / 1000, {0.05: (0, 0.419, 2.52), 0.5: (0.0266, 6.80, 58.4), 1: (0.065, 17.0, 179.9)}),
        (2, 385, 50, 0.8, 1 / 50_000, {1: (None, None, 28.9), 5: (None, None, 312), 10: (None, None, 920)}),
    ],
    ids=["digits", "fashion", "covertype"],
)  # fmt: skip
def test_true_client_level_figures_of_004(
    c: float, d: int, rounds: int, q: float, chance: float, figures: dict[float, tuple[float | None, ...]]
) -> None:
    """Scalar, upload and training: Equation 4 lacks the sensitivity 2c per value."""
    for target, expected in figures.items():
        mu = 2 * c / equation_4(target, q, rounds, chance)
        found = [epsilon(GaussianLoss(mu * math.sqrt(times)), chance) for times in (1, d, d * rounds)]
        for value, wanted in zip(found, expected, strict=True):
            assert wanted is None or value == pytest.approx(wanted, rel=3e-3)
        assert compose([GaussianLoss(mu)] * 40).epsilon(chance) == pytest.approx(
            epsilon(GaussianLoss(mu * math.sqrt(40)), chance), rel=1e-9
        )


@pytest.mark.parametrize("relation", [ADD_REMOVE, Adjacency.RECORD_REPLACE])
def test_sampled_gaussian_against_the_library_and_renyi(relation: Adjacency) -> None:
    loss = PoissonGaussian(0.01, 1.1, 1000)
    event = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.1))
    neighbours = (
        dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
        if relation is ADD_REMOVE
        else dp_accounting.NeighboringRelation.REPLACE_ONE
    )
    library = PLDAccountant(neighbours).compose(event, 1000).get_epsilon(1e-5)
    found = epsilon(loss, 1e-5, adjacency=relation)
    assert found == pytest.approx(library, rel=1e-3)
    added = RdpAccountant().compose(event, 1000).get_epsilon(1e-5)
    assert (0.7 * added < found < added) if relation is ADD_REMOVE else (added < found < 2.2 * added)


def test_sampling_everything_is_a_plain_gaussian() -> None:
    whole = PoissonGaussian(1.0, 4.0, 9)
    assert epsilon(whole, 1e-5, adjacency=ADD_REMOVE) == pytest.approx(epsilon(GaussianLoss(0.75), 1e-5))
    assert epsilon(whole, 1e-5) == pytest.approx(epsilon(GaussianLoss(1.5), 1e-5))


@pytest.mark.parametrize("q", [0.1, 1.0])
def test_the_slack_of_sampled_noise_counts_as_that_of_a_gaussian(q: float) -> None:
    ideal, slack = PoissonGaussian(q, 2.0, 10), PoissonGaussian(q, 2.0, 10, eta=0.01, tau=2e-6)
    plain = compose([ideal] * 3, adjacency=ADD_REMOVE)
    loose = compose([slack] * 3, adjacency=ADD_REMOVE)
    assert loose.epsilon(1e-5) == pytest.approx(plain.epsilon(1e-5 - 6e-6) + 0.03, rel=1e-9)
    assert loose.delta(2.0) == pytest.approx(plain.delta(1.97) + 6e-6, rel=1e-9)
    assert loose.epsilon(6e-6) == math.inf
    mixed = [slack, GaussianLoss(0.5, eta=0.02, tau=1e-6), Pure(0.1, 5)]
    bare = [ideal, GaussianLoss(0.5), Pure(0.1, 5)]
    assert compose(mixed).epsilon(1e-5) == pytest.approx(compose(bare).epsilon(1e-5 - 3e-6) + 0.03, rel=1e-9)


def test_mixtures_lie_between_their_parts_and_their_sum() -> None:
    mixed = compose([Pure(0.1)] * 50 + [GaussianLoss(0.5), PoissonGaussian(0.02, 2.0, 100)], adjacency=ADD_REMOVE)
    pure, noisy = compose([Pure(0.1)] * 50).epsilon(1e-5), epsilon(GaussianLoss(0.5), 1e-5)
    assert max(pure, noisy) < mixed.epsilon(1e-5) < pure + noisy + 1
    assert mixed.epsilon(1e-13) > mixed.epsilon(1e-5)
    assert mixed.delta(mixed.epsilon(1e-5)) == pytest.approx(1e-5, rel=1e-3)


def test_mixture_of_two_kinds_of_bits_against_brute_force() -> None:
    """Three bits of 0.5 and two of 0.9: all 32 outcomes by hand."""
    each = [0.5, 0.5, 0.5, 0.9, 0.9]
    excess = 0.0
    for signs in itertools.product((1, -1), repeat=5):
        first = math.prod(special.expit(s * e) for s, e in zip(signs, each, strict=True))
        second = math.prod(special.expit(-s * e) for s, e in zip(signs, each, strict=True))
        excess += max(0.0, first - math.exp(1.0) * second)
    found = compose([Pure(e) for e in each]).delta(1.0)
    assert excess <= found + 1e-12
    assert found == pytest.approx(excess, rel=1e-4)


positive = st.floats(0.01, 2.0)


@given(st.lists(positive, min_size=1, max_size=6), positive, st.sampled_from([0.0, 1e-6, 1e-3]))
@settings(max_examples=25, deadline=None)
def test_more_releases_never_cost_less(each: list[float], extra: float, at: float) -> None:
    before, after = compose(map(Pure, each)).epsilon(at), compose(map(Pure, [*each, extra])).epsilon(at)
    assert after >= before * (1 - 1e-3)
    assert after <= math.fsum([*each, extra]) * (1 + 1e-12)


@given(positive, st.integers(1, 300), st.floats(0.0, 0.9))
@example(1.25, 202, 0.125)
@example(2.0, 300, 0.0)
@settings(max_examples=60, deadline=None)
def test_epsilon_and_delta_are_inverse_for_bits(each: float, count: int, share: float) -> None:
    target = share * each * count
    at = equal_bits_delta(each, count, target)
    if at > 1e-250:
        assert equal_bits_epsilon(each, count, at) <= target * (1 + 1e-9) + 1e-12
        assert equal_bits_delta(each, count, equal_bits_epsilon(each, count, at)) <= at


@given(st.floats(1e-3, 100.0), st.floats(1e-12, 0.5))
@settings(max_examples=100, deadline=None)
def test_epsilon_and_delta_are_inverse_for_gaussians(mu: float, at: float) -> None:
    found = epsilon(GaussianLoss(mu), at)
    assert delta(GaussianLoss(mu), found) <= at
    assert found == 0 or delta(GaussianLoss(mu), found * (1 - 1e-9)) >= at * (1 - 1e-6)


# --- Renyi and Gaussian bounds behind the filters -------------------------------------------------------------------


@pytest.mark.parametrize("each", [1e-6, 0.1, 1.0, 8.0, 40.0])
@pytest.mark.parametrize("order", [1.01, 2.0, 10.9, 64.0])
def test_renyi_divergence_of_a_pure_loss_is_that_of_a_randomised_bit(each: float, order: float) -> None:
    with mpmath.workdps(400):
        p = 1 / (1 + mpmath.exp(-mpmath.mpf(each)))
        a = mpmath.mpf(order)
        exact = mpmath.log(p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)) / (a - 1)
    assert accountant._pure_renyi(each, order) == pytest.approx(min(float(exact), each), rel=1e-9)


@pytest.mark.parametrize("order", [1.1, 3.0, 40.0])
@pytest.mark.parametrize("at", [1e-10, 1e-3])
def test_renyi_conversion_agrees_with_the_library_and_stays_above_the_exact_curve(order: float, at: float) -> None:
    divergence = order * 0.7**2 / 2
    found = accountant.renyi_epsilon(order, divergence, at)
    assert found == pytest.approx(rdp_privacy_accountant.compute_epsilon([order], [divergence], at)[0], rel=1e-12)
    assert found >= gaussian_epsilon(0.7, at)


@pytest.mark.parametrize(
    ("q", "sigma", "order", "factor"), [(0.2, 1.5, 1.5, 3.5), (0.2, 1.5, 4.0, 3.5), (0.05, 4.0, 4.0, 1.4)]
)
def test_renyi_bound_for_an_exchanged_record_covers_the_true_divergence(
    q: float, sigma: float, order: float, factor: float
) -> None:

    def log_mixture(x: float, shift: float) -> float:
        return float(np.logaddexp(math.log(1 - q) - x * x / 2 / sigma**2,
                                  math.log(q) - (x - shift) ** 2 / 2 / sigma**2))  # fmt: skip

    total, _ = integrate.quad(lambda x: math.exp(order * log_mixture(x, 1) + (1 - order) * log_mixture(x, -1)), -60, 60)
    true = math.log(total / sigma / math.sqrt(2 * math.pi)) / (order - 1)
    bound = accountant._sampled_renyi(q, sigma, order, Adjacency.RECORD_REPLACE)
    assert true <= bound <= factor * true


@given(st.floats(0.01, 5.0), st.floats(1e-6, 1.0), st.floats(0.0, 20.0))
@settings(max_examples=200, deadline=None)
def test_absorbed_slack_lies_above_the_slack_curve(mu: float, eta: float, target: float) -> None:
    absorbed = accountant._absorb_slack(mu, eta)
    if absorbed < 1e3:
        assert gaussian_delta(absorbed, target) >= gaussian_delta(mu, target - eta) * (1 - 1e-9) - 1e-15


@given(st.floats(0.01, 15.0), st.floats(0.0, 1.0))
@settings(max_examples=100, deadline=None)
def test_mu_of_a_pure_loss_dominates_the_randomised_bit(each: float, share: float) -> None:
    mu = accountant._pure_mu(each)
    assert gaussian_delta(mu, share * each) >= equal_bits_delta(each, 1, share * each) * (1 - 1e-9)
    assert gaussian_delta(mu, 0) == pytest.approx(math.tanh(each / 2), rel=1e-9)


def test_an_account_never_counts_a_bit_below_its_epsilon() -> None:
    """The nearest number of double precision to the logarithm may be more than one of them below it."""
    shares = np.random.default_rng(0).uniform(0, math.log(2**31 - 1), 20_000)
    for t_min in [*map(int, np.exp(shares)), *(2**31 - int(x) for x in np.exp(shares))]:
        cost = accountant._loss_cost(RandomizedBit(t_min, 1), Adjacency.CLIENT, None)
        with mpmath.workdps(40):
            exact = mpmath.log(mpmath.mpf(2**32 - t_min) / t_min)
            assert mpmath.mpf(cost.pure.numerator) / cost.pure.denominator >= exact


@pytest.mark.parametrize("tiny", [1e-170, 1e-200, 1e-300])
def test_losses_that_have_no_square_in_double_precision_are_counted(tiny: float) -> None:
    budget = Budget(1.0, 1e-5)
    order = Account.opening(budget).order
    for loss in (Pure(tiny), GaussianLoss(tiny)):
        cost = accountant._loss_cost(loss, Adjacency.CLIENT, order)
        assert cost.mu_squared >= (Fraction(1, 10) * Fraction(tiny)) ** 2 > 0
        assert cost.renyi > 0


@pytest.mark.parametrize("tiny", [1e-150, 1e-161, 1e-170])
def test_statements_count_noise_that_has_no_square_in_double_precision(tiny: float) -> None:
    for loss in (GaussianLoss(tiny), PoissonGaussian(1.0, 1 / tiny, 1), PoissonGaussian(0.5, 1 / tiny, 1)):
        assert accountant.epsilon(loss, 0.0) == math.inf
    assert accountant.delta(GaussianLoss(tiny), 0.0) >= tiny / math.sqrt(2 * math.pi) * (1 - 1e-12)


@given(st.floats(0.01, 3.0), st.integers(1, 1000))
def test_a_stated_sum_of_pure_epsilons_is_not_rounded_down(each: float, count: int) -> None:
    exact = Fraction(repr(each)) * count
    stated = accountant.compose([Pure(each, count)]).epsilon()
    assert exact <= Fraction(repr(stated)) <= exact * (1 + Fraction(1, 2**51))


def test_what_is_stated_of_distances_and_etas_is_not_rounded_down() -> None:
    assert accountant.epsilon(Metric(1.16, 2.57, 37)) >= 110.3044 <= accountant.epsilon(Metric(2.57, 1.16, 37))
    assert accountant.compose([Pure(1.13), GaussianLoss(0.0, 0.19)]).epsilon() >= 1.32


@given(st.integers(1, 2**31 - 1))
def test_a_stated_bit_is_not_rounded_down(t_min: int) -> None:
    with mpmath.workdps(40):
        exact = mpmath.log((mpmath.mpf(2**32) - t_min) / t_min)
        assert mpmath.mpf(accountant.epsilon(RandomizedBit(t_min, 1))) >= exact


def test_a_delta_too_small_to_share_leaves_the_sum_of_pure_epsilons() -> None:
    assert account(Budget(1.0, 5e-324), Pure(0.25), Pure(0.25)).spent == 0.5


@pytest.mark.parametrize("count", [2**63, 10**400])
def test_counts_beyond_all_reason_are_refused_and_not_an_accident(count: int) -> None:
    for refused in (
        lambda: Pure(1.0, count), lambda: Metric(1.0, 1.0, count), lambda: RandomizedBit(1, count),
        lambda: PoissonGaussian(0.5, 1.0, count),
    ):  # fmt: skip
        with pytest.raises(InvalidInput):
            refused()
    with pytest.raises(InvalidInput):
        Pure(10**400)


@pytest.mark.parametrize(
    ("each", "count", "target"),
    [(4.805860878827622e-279, 4, 1.0166908534989469e-278), (2.5823074620223126e-265, 7, 1.286800222744357e-265)],
)
def test_deltas_that_are_added_as_logarithms_are_rounded_up(each: float, count: int, target: float) -> None:
    with mpmath.workdps(700):
        rare, ratio = 1 / (1 + mpmath.exp(mpmath.mpf(each))), mpmath.exp(mpmath.mpf(target))
        ways = ((i, math.comb(count, i), count - i) for i in range(count + 1))
        gains = (n * (rare**i * (1 - rare) ** k - ratio * (1 - rare) ** i * rare**k) for i, n, k in ways)
        assert equal_bits_delta(each, count, target) >= mpmath.fsum(max(gain, 0) for gain in gains)


def test_the_gaussian_curve_of_very_many_bits_is_above_them() -> None:
    each, count = 9.976894938830295, 10**9 + 1
    with mpmath.workdps(60):
        rare = 1 / (1 + mpmath.exp(mpmath.mpf(each)))
        mu = mpmath.findroot(lambda m: mpmath.ncdf(-m / 2) - rare, 7.6) * mpmath.sqrt(count)
        target = float(mu) ** 2 / 2
        assert equal_bits_delta(each, count, target) >= gaussian_delta_exactly(mu, mpmath.mpf(target))


# --- enforcement ----------------------------------------------------------------------------------------------------


def test_ten_releases_of_a_tenth_fit_a_budget_of_one_and_an_eleventh_does_not() -> None:
    full = account(Budget(1.0), *[Pure(0.1)] * 10)
    assert full.permits
    assert full.spent == 1.0
    assert full.remaining == 0.0
    over = full.after(release(Pure(1e-15)))
    assert not over.permits
    assert over.spent > 1.0


def test_randomised_bits_are_charged_no_less_than_their_exact_epsilon() -> None:
    t_min = math.ceil(2**32 / (math.e + 1))
    state = account(Budget(100.0), RandomizedBit(t_min, 100))
    with mpmath.workdps(40):
        exact = 100 * mpmath.log((2**32 - mpmath.mpf(t_min)) / t_min)
        assert mpmath.mpf(state.cost.pure.numerator) / state.cost.pure.denominator >= exact
    assert state.permits
    assert bit_epsilon(t_min) <= 1.0


def test_gaussian_releases_add_as_squares_under_a_budget_with_delta() -> None:
    budget = Budget(1.0, delta=1e-5)
    each = mu_for(1.0, 0.4e-5) / 10
    assert account(budget, *[GaussianLoss(each * (1 - 1e-9))] * 100).permits
    assert not account(budget, *[GaussianLoss(each)] * 101).permits
    assert not account(Budget(1.0), GaussianLoss(1e-6)).permits


def test_many_small_pure_releases_use_the_better_of_three_filters() -> None:
    state = account(Budget(3.0, delta=1e-5), *[Pure(0.01)] * 1000)
    assert state.spent < 3.0 < state.cost.pure == Fraction(10)
    assert state.spent >= compose([Pure(0.01)] * 1000).epsilon(1e-5)


def test_sampled_gaussian_is_enforced_by_the_renyi_filter() -> None:
    budget = Budget(8.0, delta=1e-5, adjacency=ADD_REMOVE)
    loss = PoissonGaussian(0.01, 1.1, 1000)
    state = Account.opening(budget).after(release(loss, adjacency=ADD_REMOVE))
    assert epsilon(loss, 1e-5, adjacency=ADD_REMOVE) < state.spent < 8.0
    assert state.after(release(PoissonGaussian(0.01, 1.1, 10**6), adjacency=ADD_REMOVE)).permits is False


@pytest.mark.parametrize("q", [0.01, 1.0])
def test_the_slack_of_sampled_noise_is_enforced(q: float) -> None:
    budget = Budget(8.0, delta=1e-5, adjacency=ADD_REMOVE)

    def spent(*losses: Loss) -> float:
        state = Account.opening(budget)
        for loss in losses:
            state = state.after(release(loss, adjacency=ADD_REMOVE))
        return state.spent

    bare, eta = PoissonGaussian(q, 20.0, 10), PoissonGaussian(q, 20.0, 10, eta=0.01)
    assert spent(bare) + 0.003 < spent(eta) < spent(bare) + 0.06
    assert spent(eta, eta) > spent(bare, bare) + 0.006
    if q < 1:
        assert spent(eta, eta) == pytest.approx(spent(bare, bare) + 0.02, rel=1e-9)
    assert spent(PoissonGaussian(q, 20.0, 10, tau=0.5e-6), GaussianLoss(0.01, tau=0.5e-6)) < 8
    assert spent(PoissonGaussian(q, 20.0, 10, tau=0.6e-6), GaussianLoss(0.01, tau=0.5e-6)) == math.inf


def test_many_steps_on_tiny_samples_are_not_free() -> None:
    """One step's divergence, q^2 (e - 1) at order 2 and more above, is too small to be seen beside 1 in a float."""
    q, steps = 1e-9, 10**17
    budget = Budget(8.0, delta=1e-5, adjacency=ADD_REMOVE)
    state = Account.opening(budget).after(release(PoissonGaussian(q, 1.0, steps), adjacency=ADD_REMOVE))
    assert state.order is not None
    assert state.cost.renyi >= steps * q * q * math.expm1(1)
    found = epsilon(PoissonGaussian(q, 1.0, steps), 1e-5, adjacency=ADD_REMOVE)
    assert found >= 0.9 * gaussian_epsilon(q * math.sqrt(steps), 1e-5)


def test_taus_have_their_own_share_of_delta() -> None:
    budget = Budget(1.0, delta=1e-5)
    assert account(budget, GaussianLoss(0.01, tau=1e-6)).permits
    assert account(budget, GaussianLoss(0.01, tau=1.01e-6)).spent == math.inf
    assert account(budget, GaussianLoss(0.1, eta=0.01)).spent > account(budget, GaussianLoss(0.1)).spent


def test_unproven_releases_are_infinite_but_do_not_raise() -> None:
    state = account(Budget(1.0, delta=0.1), Infinite("labels in clear"))
    assert state.spent == math.inf
    assert state.remaining == 0.0
    assert not state.permits
    assert account(Budget(1.0), Pure(1e300), Pure(1e300)).spent == 2e300


@pytest.mark.parametrize(
    ("given_adversary", "wanted", "usable"),
    [
        (SERVER, SERVER, True),
        (SERVER, MODEL_READER, True),
        (SERVER, shuffled(10), True),
        (SERVER, summed(10), True),
        (MODEL_READER, MODEL_READER, True),
        (MODEL_READER, SERVER, False),
        (shuffled(10), SERVER, False),
        (shuffled(10), shuffled(10), False),
        (summed(10), summed(10), False),
    ],
)
def test_who_a_guarantee_counts_against(given_adversary: Adversary, wanted: Adversary, usable: bool) -> None:
    """The server's view covers weaker ones; what others must do right is never used for enforcement."""
    state = Account.opening(Budget(1.0, adversary=wanted)).after(release(Pure(0.5), adversary=given_adversary))
    assert state.spent == (0.5 if usable else math.inf)


@pytest.mark.parametrize("adjacency", list(Adjacency))
@pytest.mark.parametrize("wanted", list(Adjacency))
def test_what_a_guarantee_counts_for(adjacency: Adjacency, wanted: Adjacency) -> None:
    state = Account.opening(Budget(1.0, adjacency=wanted)).after(release(Pure(0.5), adjacency=adjacency))
    label_of_record = adjacency is Adjacency.RECORD_REPLACE and wanted is Adjacency.LABEL
    narrower = adjacency is wanted or adjacency is Adjacency.CLIENT or label_of_record
    assert state.spent == (0.5 if narrower else math.inf)


def test_the_best_of_several_guarantees_counts() -> None:
    both = Release(
        "r",
        "data",
        "noisy vector",
        (
            Guarantee(SERVER, Adjacency.CLIENT, Pure(50.0), "sum"),
            Guarantee(SERVER, Adjacency.CLIENT, GaussianLoss(0.2), "curve"),
        ),
    )
    assert Account.opening(Budget(60.0)).after(both).spent == 50.0
    assert Account.opening(Budget(60.0, delta=1e-5)).after(both).spent < 1.0


def test_derived_releases_cost_nothing() -> None:
    state = account(Budget(1.0), Pure(0.6))
    derived = Release("model", "data", "trained on r0", (), composition=Derived(("r0",)))
    assert state.after(derived).spent == 0.6
    assert state.after(derived).after(Release("m2", "data", "x", (), composition=Derived(("model",)))).permits


def test_claimed_basis_sums_claims_only() -> None:
    budget = Budget(2.0, delta=1e-5, basis="claimed")
    huge = release(Pure(1e9), claimed=Claim(0.5, 4e-6, "eps"))
    state = Account.opening(budget).after(huge).after(huge)
    assert state.spent == 1.0
    assert state.after(huge).spent == math.inf
    assert Account.opening(budget).after(release(Pure(0.1))).spent == math.inf


losses = st.one_of(
    st.builds(Pure, st.floats(0, 3), st.integers(1, 5)),
    st.builds(GaussianLoss, st.floats(0, 0.5), st.floats(0, 0.01), st.floats(0, 1e-8)),
    st.builds(RandomizedBit, st.integers(2**29, 2**31), st.integers(1, 5)),
    st.builds(Metric, st.floats(0, 1), st.floats(0, 2), st.integers(1, 5)),
)
budgets = st.builds(Budget, st.floats(0.01, 20), st.sampled_from([0.0, 1e-6, 1e-3]))


@given(budgets, st.lists(losses, max_size=6), st.randoms(use_true_random=False))
@settings(max_examples=60, deadline=None)
def test_accounts_add_exactly_in_any_order(budget: Budget, spends: list[Loss], random: object) -> None:
    state = account(budget, *spends)
    shuffled_spends = list(spends)
    random.shuffle(shuffled_spends)  # type: ignore[attr-defined]
    other = account(budget, *shuffled_spends)
    assert other.cost == state.cost
    assert other.spent == state.spent
    joined = [account(budget, loss).cost for loss in spends]
    assert sum(joined, accountant.Cost()) == state.cost


@given(budgets, st.lists(losses, min_size=1, max_size=6))
@settings(max_examples=60, deadline=None)
def test_permission_never_exceeds_the_limit_nor_comes_back(budget: Budget, spends: list[Loss]) -> None:
    state, permitted = Account.opening(budget), True
    for number, loss in enumerate(spends):
        following = state.after(release(loss, name=str(number)))
        assert following.spent >= state.spent
        assert following.permits == (following.spent <= budget.limit)
        assert permitted or not following.permits
        assert following.remaining <= budget.limit
        state, permitted = following, following.permits


@given(st.floats(0.1, 5), st.lists(st.floats(0.001, 1.0), min_size=1, max_size=20))
@settings(max_examples=100, deadline=None)
def test_a_pure_budget_permits_exactly_the_decimal_sums_within_it(limit: float, each: list[float]) -> None:
    total = sum((Fraction(repr(e)) for e in each), Fraction(0))
    assert account(Budget(limit), *map(Pure, each)).permits == (total <= Fraction(repr(limit)))


@given(st.lists(st.floats(0.001, 0.5), min_size=1, max_size=5), st.lists(st.floats(0.01, 0.5), min_size=1, max_size=5))
@settings(max_examples=20, deadline=None)
def test_enforcement_is_never_below_the_statement_of_the_same_fixed_schedule(
    each: list[float], mus: list[float]
) -> None:
    history: list[Loss] = [*map(Pure, each), *map(GaussianLoss, mus)]
    assert account(Budget(50.0, delta=1e-5), *history).spent >= compose(history).epsilon(1e-5) * (1 - 1e-3)


extreme = st.floats(0, 1.7e308)
extreme_losses = st.one_of(
    st.builds(Pure, extreme, st.integers(1, 10**12)),
    st.builds(Metric, extreme, extreme, st.integers(1, 10**12)),
    st.builds(GaussianLoss, extreme, extreme, st.floats(0, 2)),
    st.builds(RandomizedBit, st.integers(1, 2**31), st.integers(1, 10**12)),
    st.builds(PoissonGaussian, st.sampled_from([1e-300, 0.5, 1.0]), st.sampled_from([1e-300, 1e-3, 1e300]),
              st.sampled_from([1, 10**15]), st.just(0.0) | extreme, st.floats(0, 2)),
)  # fmt: skip


@given(st.lists(extreme_losses, min_size=1, max_size=3), st.sampled_from([0.0, 1e-300, 0.5]))
@settings(max_examples=100, deadline=None)
def test_extreme_spends_are_counted_and_never_raise(spends: list[Loss], at: float) -> None:
    state = account(Budget(1.0, delta=at), *spends)
    assert state.spent >= 0
    assert state.permits == (state.spent <= 1.0)


@given(extreme_losses, st.sampled_from([0.0, 1e-300, 1e-5, 0.5]))
@settings(max_examples=100, deadline=None)
def test_extreme_losses_are_stated_and_never_raise(loss: Loss, at: float) -> None:
    assert epsilon(loss, at) >= 0
    assert 0 <= delta(loss, 3.0) <= 1


def test_a_claim_for_a_whole_schedule_is_spent_once() -> None:
    claim = Claim(1.0, 0.001, "eps for all rounds", covers="schedule")
    guarantee = Guarantee(SERVER, Adjacency.CLIENT, Pure(5.0), "sum")
    account = Account.opening(Budget(limit=1.0, delta=0.001, basis="claimed"))
    for i in range(10):
        account = account.after(Release(f"r{i}", "data", "w", (guarantee,), claim))
    assert account.spent == 1.0
    assert account.permits
    other = Claim(0.5, 0.0, "another", covers="schedule")
    assert not account.after(Release("x", "data", "w", (guarantee,), other)).permits


def test_a_claim_for_a_schedule_is_spent_again_in_another_federation() -> None:
    claim = Claim(0.5, 0.0, "eps for all rounds", covers="schedule")
    one = release(Pure(5.0), claimed=claim)
    account = Account.opening(Budget(limit=1.0, basis="claimed"))
    for federation in range(50):
        for _ in range(10):
            account = account.after(one, Destination(f"federation {federation}"))
        assert account.spent == 0.5 * (federation + 1)
        assert account.permits == (federation < 2)


ADVERSARIES = [SERVER, MODEL_READER, *map(shuffled, (1, 99, 100)), *map(summed, (1, 7, 8))]


@pytest.mark.parametrize("given", ADVERSARIES, ids=str)
@pytest.mark.parametrize("wanted", ADVERSARIES, ids=str)
def test_what_holds_against_an_adversary_pays_from_budgets_against_that_one_or_a_weaker_one(
    given: Adversary, wanted: Adversary
) -> None:
    weaker = given == SERVER or (given.kind == wanted.kind and (given.parties or 0) <= (wanted.parties or 0))
    claimed = release(Pure(5.0), claimed=Claim(0.5, 0.0, "eps", adversary=given))
    account = Account.opening(Budget(1.0, basis="claimed", adversary=wanted)).after(claimed)
    assert account.spent == (0.5 if weaker else math.inf)
    for pinned in (False, True):
        reliable = {"shuffled": False, "summed": pinned}.get(given.kind, True)
        proven = Account.opening(Budget(1.0, adversary=wanted))
        spent = proven.after(release(Pure(0.5), adversary=given), Destination("f", pinned)).spent
        assert spent == (0.5 if weaker and reliable else math.inf)


def test_a_claim_about_a_smaller_change_pays_nothing_for_a_larger_one() -> None:
    claimed = release(Pure(5.0), claimed=Claim(0.5, 0.0, "eps", Adjacency.COORDINATE))
    assert Account.opening(Budget(1.0, basis="claimed")).after(claimed).spent == math.inf
    budget = Budget(1.0, basis="claimed", adjacency=Adjacency.COORDINATE)
    assert Account.opening(budget).after(claimed).spent == 0.5

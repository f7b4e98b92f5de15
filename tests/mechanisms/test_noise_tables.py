"""The integer tables: what they draw, and that the loss read off them bounds every ratio they can produce."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from fractions import Fraction
from itertools import accumulate

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mechanisms.exact import probability

from sordino.errors import InvalidInput
from sordino.mechanisms import Box, Laplace
from sordino.mechanisms.alias import TOTAL, AliasTable
from sordino.mechanisms.noise import (
    DiscreteGaussian,
    GaussianNoise,
    GeometricNoise,
    Slack,
    _rounding_gap,
    discrete_gaussian,
    gaussian_noise,
    geometric_noise,
    normal_thresholds,
)
from sordino.privacy import accountant, guarantee
from sordino.privacy.accountant import gaussian_delta
from sordino.randomness import Keystream

# --- alias tables ---------------------------------------------------------------------------------------------------


@st.composite
def weights(draw: st.DrawFn) -> list[int]:
    """Whole numbers that sum to 2^64, some of them zero, some lopsided, some exactly a cell's capacity."""
    raw = draw(st.lists(st.one_of(st.integers(0, 3), st.integers(0, 2**64), st.just(2**60)), min_size=1, max_size=40))
    total = sum(raw) or 1
    scaled = [r * TOTAL // total for r in raw]
    scaled[draw(st.integers(0, len(raw) - 1))] += TOTAL - sum(scaled)
    return scaled


def reconstructed(table: AliasTable) -> list[int]:
    """The exact number of 64-bit words that give each index, from the thresholds and aliases alone.

    A word chooses cell i by its low bits, and gives i while it lies below the cell's threshold. Words of the cell are
    i, i + 2^bits, i + 2 * 2^bits, ...: those below T number ceil((T - i) / 2^bits).
    """
    cells, step = 1 << table.bits, 1 << table.bits
    counts = [0] * cells
    for i, (threshold, alias) in enumerate(zip(table.thresholds.tolist(), table.aliases.tolist(), strict=True)):
        below = max(0, -(-(threshold - i) // step))
        counts[i] += below
        counts[alias] += TOTAL // cells - below
    return counts


@given(weights())
def test_an_alias_table_draws_exactly_its_weights(given_weights: list[int]) -> None:
    table = AliasTable(given_weights)
    counts = reconstructed(table)
    assert counts[: len(given_weights)] == given_weights
    assert not any(counts[len(given_weights) :])


@given(weights(), st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=20))
def test_drawing_follows_the_thresholds_at_every_edge(given_weights: list[int], words: list[int]) -> None:
    table = AliasTable(given_weights)
    edges = {0, 1, 2**64 - 1, 2**63, *words}
    for cell, threshold in enumerate(table.thresholds.tolist()):
        for low in (cell, (1 << table.bits) - 1):
            edges |= {w for w in (threshold - 1, threshold, threshold + low, low) if 0 <= w < TOTAL}
    drawn = table.draw(np.array(sorted(edges), dtype=np.uint64)).tolist()
    for word, index in zip(sorted(edges), drawn, strict=True):
        cell = word % (1 << table.bits)
        assert index == (cell if word < int(table.thresholds[cell]) else int(table.aliases[cell]))
        assert given_weights[index] > 0


@pytest.mark.parametrize("bad", [[1, 2], [TOTAL + 1, -1], [TOTAL // 2], [0, 0]])
def test_weights_that_are_no_distribution_are_refused(bad: list[int]) -> None:
    with pytest.raises(InvalidInput, match="2\\^64"):
        AliasTable(bad)


# --- two-sided geometric noise --------------------------------------------------------------------------------------


def law(noise: GeometricNoise) -> dict[int, int]:
    """Pr[k] * 2^32 * 2^(64 digits), as whole numbers, for every k the tables can draw."""
    magnitudes = [1]
    for above, digit in zip((None, *noise.digits[:-1]), noise.digits, strict=True):
        width = len(digit.table.weights) if above is None else 1 << (above.shift - digit.shift)
        row = [*digit.table.weights, *[0] * (width - len(digit.table.weights))]
        magnitudes = [m * w for m in magnitudes for w in row]
    positive = {k: (2**32 - noise.negative) * m for k, m in enumerate(magnitudes)}
    return positive | {-k - 1: noise.negative * m for k, m in enumerate(magnitudes)}


NOISES = [
    geometric_noise(Fraction(1, 2), 40, lump=True),
    geometric_noise(Fraction(1, 100), 300, lump=False),
    geometric_noise(Fraction(3), 25, lump=True),
    geometric_noise(Fraction(1, 10**9), 5, lump=False),
    geometric_noise(Fraction(1, 5000), 20000, lump=True),
]


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: f"rate={n.rate}")
def test_geometric_probabilities_sum_to_one_exactly_and_are_those_of_the_tables(noise: GeometricNoise) -> None:
    exact = law(noise)
    whole = 2 ** (32 + 64 * len(noise.digits))
    assert sum(exact.values()) == whole
    for k in [*range(-30, 30), noise.reach - 1, -noise.reach, noise.reach, -noise.reach - 1, noise.reach // 2]:
        assert probability(noise, k) == Fraction(exact.get(k, 0), whole)


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: f"rate={n.rate}")
def test_geometric_law_is_two_sided_exponential_within_its_slack(noise: GeometricNoise) -> None:
    exact = law(noise)
    tail = (len(noise.digits[0].table.weights) - 1) << noise.digits[0].shift  # from here on mass may be lumped
    rate, slack = float(noise.rate), noise.slack
    logs = {k: math.log(w) for k, w in exact.items() if abs(k) < tail and w}
    straight = [log + rate * abs(k) for k, log in logs.items()]
    assert max(straight) - min(straight) <= slack + 1e-11
    assert slack < 1e-3 or rate * noise.reach > 30


@pytest.mark.parametrize("noise", NOISES, ids=lambda n: f"rate={n.rate}")
def test_geometric_draws_follow_the_exact_law(noise: GeometricNoise) -> None:
    """Every bin's count within 6 standard deviations, over at most 61 bins: false alarm below 2e-7 a case."""
    n = 200_000
    words = Keystream.simulation(2, [0], 0).words(np.array([0]), 1, 0, 0, n * noise.words_per_value)
    drawn = noise.draw(words)[0]
    assert drawn.min() >= -noise.reach
    assert drawn.max() < noise.reach
    whole = 2 ** (32 + 64 * len(noise.digits))
    exact = law(noise)
    for k in range(-30, 31):
        p = exact.get(k, 0) / whole
        assert abs(np.count_nonzero(drawn == k) - n * p) <= 6 * math.sqrt(n * p * (1 - p)) + 3
    p = sum(w for k, w in exact.items() if k > 30) / whole
    assert abs(np.count_nonzero(drawn > 30) - n * p) <= 6 * math.sqrt(n * p * (1 - p)) + 3


def worst_ratio(noise: GeometricNoise, steps: int, limit: int) -> Fraction:
    """The largest Pr[y|v]/Pr[y|v'] over all inputs v, v' in [-steps, steps] and all outputs y, clamped ends included.

    For an inner output only y - v matters: the largest and least weight in every window of 2 * steps + 1.
    """
    exact = law(noise)
    ks = range(min(exact), max(exact) + 1)
    weight = [exact[k] for k in ks]
    start = -ks[0]
    best = (1, 1)

    def consider(high: int, low: int) -> None:
        nonlocal best
        assert low > 0, "an output excludes an input"
        if high * best[1] > best[0] * low:
            best = (high, low)

    width = 2 * steps + 1
    first, last = -limit + 1 - steps, limit - 1 + steps
    most: deque[int] = deque()
    least: deque[int] = deque()
    for k in range(first, last + 1):
        i = start + k
        for queue, better in ((most, lambda a, b: a >= b), (least, lambda a, b: a <= b)):
            while queue and better(weight[i], weight[queue[-1]]):
                queue.pop()
            queue.append(i)
            if queue[0] <= i - width:
                queue.popleft()
        if k - first + 1 >= width:
            consider(weight[most[0]], weight[least[0]])
    upper = list(accumulate(reversed(weight)))[::-1]  # sum from index i on
    lower = list(accumulate(weight))  # sum up to index i
    highs = [upper[start + limit - v] for v in range(-steps, steps + 1)]
    lows = [lower[start - limit - v] for v in range(-steps, steps + 1)]
    consider(max(highs), min(highs))
    consider(max(lows), min(lows))
    return Fraction(*best)


@pytest.mark.parametrize("epsilon", [0.2, 1.0, 2.5, 5.0, 10.0, 15.0, 20.0, 22.18, 100.0])
def test_laplace_loss_bounds_every_ratio_clamped_ends_included_and_is_tight(epsilon: float) -> None:
    mechanism = Laplace(epsilon, Box())
    grid = mechanism.grid(1)
    assert isinstance(grid.noise, GeometricNoise)
    ratio = worst_ratio(grid.noise, grid.steps, grid.limit)
    proven = mechanism.guarantee().loss.epsilon
    with mpmath.workdps(50):
        true = mpmath.log(mpmath.mpf(ratio.numerator) / ratio.denominator)
        assert true <= proven
        assert proven <= epsilon
        assert true >= min(epsilon, 22.18) * (1 - 1e-5)


@pytest.mark.parametrize("epsilon", [0.6, 3.0])
def test_laplace_of_divided_sensitivity_is_bounded_by_its_finite_tables(epsilon: float) -> None:
    mechanism = Laplace(epsilon, Box(), records=100)
    grid = mechanism.grid(1)
    assert isinstance(grid.noise, GeometricNoise)
    ratio = worst_ratio(grid.noise, grid.steps, grid.limit)
    with mpmath.workdps(50):
        true = mpmath.log(mpmath.mpf(ratio.numerator) / ratio.denominator)
        assert 40 < true <= mechanism.guarantee().loss.epsilon


@settings(max_examples=25)
@given(st.integers(1, 12), st.fractions(Fraction(1, 50), 4, max_denominator=1000), st.integers(0, 30))
def test_geometric_loss_bounds_small_instances(steps: int, rate: Fraction, extra: int) -> None:
    noise = geometric_noise(rate, 4 * steps + extra, lump=True)
    limit = len(noise.digits[0].table.weights) - 1 - steps
    ratio = worst_ratio(noise, steps, limit)
    with mpmath.workdps(50):
        assert mpmath.log(mpmath.mpf(ratio.numerator) / ratio.denominator) <= noise.loss(2 * steps)


# --- Gaussian noise -------------------------------------------------------------------------------------------------


def rounded_gaussian(k: int, sigma: float) -> mpmath.mpf:
    """Pr of a real Gaussian falling in [k - 1/2, k + 1/2]."""
    scale = mpmath.mpf(sigma) * mpmath.sqrt(2)
    k = abs(k)
    if k == 0:
        return mpmath.erf(mpmath.mpf("0.5") / scale)
    return (mpmath.erfc((k - mpmath.mpf("0.5")) / scale) - mpmath.erfc((k + mpmath.mpf("0.5")) / scale)) / 2


SINGLE = [(32.0, 512), (40.0, 64), (32.0, 2048), (100.5, 300), (512.0, 512)]


@pytest.mark.process
@pytest.mark.parametrize(("sigma", "shift"), SINGLE)
def test_single_table_keeps_every_weight_and_has_little_excess(sigma: float, shift: int) -> None:
    noise = gaussian_noise(sigma, shift)
    assert noise.levels == 1
    with mpmath.workdps(50):
        keep = mpmath.exp(-mpmath.mpf(noise.eta))
        excess = mpmath.mpf(0)
        for k in range(noise.offset + 1):
            ideal = rounded_gaussian(k, sigma)
            for index in {noise.offset + k, noise.offset - k}:
                actual = mpmath.mpf(noise.table.weights[index]) / TOTAL
                assert actual >= ideal * keep, k
                excess += max(actual - ideal, mpmath.mpf(0))
        beyond = mpmath.erfc((noise.offset - shift + mpmath.mpf("0.5")) / (mpmath.mpf(sigma) * mpmath.sqrt(2)))
        assert excess + beyond <= noise.tau  # what only one of the two inputs can say counts as excess too
    assert noise.eta < 1e-9
    assert noise.tau < 1e-13


def three_level_probability(noise: GaussianNoise, y: int) -> mpmath.mpf:
    """Pr[y0 + 32 y1 + 1024 y2 = y], exactly, from the table's weights."""
    weight, reach, total = noise.table.weights, noise.offset, 0
    for y2 in range(max(-reach, -(-(y - 33 * reach) // 1024)), min(reach, (y + 33 * reach) // 1024) + 1):
        rest = y - 1024 * y2
        low, high = max(-reach, -(-(rest - reach) // 32)), min(reach, (rest + reach) // 32)
        inner = sum(weight[y1 + reach] * weight[rest - 32 * y1 + reach] for y1 in range(low, high + 1))
        total += weight[y2 + reach] * inner
    return mpmath.mpf(total) / mpmath.mpf(TOTAL) ** 3


THREE = [(float(2**17), 2 * 2**17), (2**17 * 1.37, 2**10), (float(2**18 - 2**10), 20 * 2**17)]


@pytest.mark.parametrize(("sigma", "shift"), THREE)
def test_three_tables_keep_the_weight_of_every_reachable_output(sigma: float, shift: int) -> None:
    noise = gaussian_noise(sigma, shift)
    assert noise.levels == 3
    edge = 10 + shift / sigma
    with mpmath.workdps(60):
        keep = mpmath.exp(-mpmath.mpf(noise.eta))
        for z in [0, 0.1, 0.5, 1, 1.7, 2, 3, 5, 7, 9, 10, edge]:
            for y in {round(z * sigma), -round(z * sigma), round(z * sigma) + 517}:
                assert three_level_probability(noise, y) >= rounded_gaussian(y, noise.proven_sigma) * keep, z


@pytest.mark.process
@pytest.mark.parametrize(("sigma", "shift"), THREE)
def test_three_tables_have_no_more_excess_than_tau(sigma: float, shift: int) -> None:
    """The excess is smooth: Simpson's rule over 80 points within 3 sigma gives it to four digits, from below."""
    noise = gaussian_noise(sigma, shift)
    with mpmath.workdps(60):
        points = [round(z * sigma) for z in np.linspace(-3, 3, 81)]
        gaps = [
            max(three_level_probability(noise, y) - rounded_gaussian(y, noise.proven_sigma), mpmath.mpf(0))
            for y in points
        ]
        simpson = sum(g * (1 if i in (0, 80) else 4 if i % 2 else 2) for i, g in enumerate(gaps))
        excess = simpson * (points[1] - points[0]) / 3
        assert float(excess) <= noise.tau


def table_delta(noise: GaussianNoise, shift: int, epsilon: float) -> float:
    """delta(epsilon) of v + noise against v + shift + noise, enumerated from the weights."""
    weight = np.array(noise.table.weights, dtype=np.float64) / TOTAL
    p, q = np.concatenate([weight, np.zeros(shift)]), np.concatenate([np.zeros(shift), weight])
    return math.fsum(np.maximum(p - math.exp(epsilon) * q, 0))


@pytest.mark.parametrize(("sigma", "shift"), SINGLE)
def test_enumerated_delta_of_a_table_is_at_most_the_accountants_and_close_to_it(sigma: float, shift: int) -> None:
    noise = gaussian_noise(sigma, shift)
    loss = guarantee.GaussianLoss(shift / sigma, noise.eta, noise.tau)
    for epsilon in (0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0):
        actual, bound = table_delta(noise, shift, epsilon), accountant.delta(loss, epsilon)
        assert actual <= bound * (1 + 1e-9)  # rounding of the sum of doubles
        if bound > 1e-9:
            assert actual >= bound * 0.99  # rounding to the grid costs next to nothing
        for closer in (1, shift // 2, shift - 1):
            assert table_delta(noise, closer, epsilon) <= bound * (1 + 1e-9)


def test_halved_sigma_breaks_the_enumerated_bound() -> None:
    noise = gaussian_noise(32.0, 512)
    assert table_delta(noise, 512, 1.0) > accountant.delta(guarantee.GaussianLoss(512 / 64.0, 0, 1e-12), 1.0)


@pytest.mark.parametrize(("sigma", "shift"), [*SINGLE[:2], *THREE[:2]])
def test_gaussian_draws_have_the_gaussian_moments_and_quantiles(sigma: float, shift: int) -> None:
    """Mean, variance and five quantile counts within 6 standard errors: false alarm 2e-8 a case."""
    noise, n = gaussian_noise(sigma, shift), 200_000
    drawn = noise.draw(Keystream.simulation(4, [0], 0).words(np.array([0]), 1, 0, 0, n * noise.words_per_value))[0]
    assert np.abs(drawn).max() <= noise.reach
    variance = sigma**2 + (1 / 12 if noise.levels == 1 else 0)
    assert abs(drawn.mean()) <= 6 * math.sqrt(variance / n)
    assert abs((drawn.astype(float) ** 2).mean() - variance) <= 6 * variance * math.sqrt(2 / n)
    for z in (-2.0, -1.0, 0.0, 1.0, 2.5):
        at = math.floor(z * sigma)
        p = 0.5 * math.erfc(-(at + 0.5) / sigma / math.sqrt(2))
        assert abs(np.count_nonzero(drawn <= at) - n * p) <= 6 * math.sqrt(n * p * (1 - p))


@pytest.mark.parametrize("ratio", [1e-7, 0.01, 1.0, 5.0, 40.0])
def test_normal_thresholds_are_rounded_towards_one_half_and_no_further(ratio: float) -> None:
    bins = 4096
    thresholds = normal_thresholds(ratio, bins)
    assert len(thresholds) == bins + 1
    with mpmath.workdps(50):
        for k in [0, 1, 7, 100, 2000, 4095, 4096]:
            a = mpmath.mpf(ratio) * (k + mpmath.mpf("0.5")) / (bins + mpmath.mpf("0.5"))
            exact = mpmath.mpf(2) ** 32 * (mpmath.ncdf(a) - mpmath.mpf("0.5"))
            assert thresholds[k] == min(2**31 - 1, int(mpmath.floor(exact)))


# --- discrete Gaussian noise ------------------------------------------------------------------------------------------


def probabilities(noise: DiscreteGaussian, shares: int = 1) -> tuple[np.ndarray, int]:
    """Pr[sum = k] of so many draws for k = -reach .. reach, by convolving the table with itself."""
    table = np.array([float(Fraction(w, TOTAL)) for w in noise.table.weights])
    one = table
    for level in range(1, noise.levels):
        spread = np.zeros((len(table) - 1) * (1 << noise.digit * level) + 1)
        spread[:: 1 << noise.digit * level] = table
        one = np.convolve(one, spread)
    total = one
    for _ in range(shares - 1):
        total = np.convolve(total, one)
    return total, (len(total) - 1) // 2


@pytest.mark.parametrize(("bits", "shares"), [(1, 1), (3, 1), (6, 1), (9, 1), (10, 1), (1, 2), (1, 5), (2, 3), (4, 7)])
@pytest.mark.parametrize("distance", [0.05, 0.5, 2.0, 6.0])
def test_discrete_gaussian_noise_loses_no_more_than_its_slack_says(bits: int, shares: int, distance: float) -> None:
    """The exact hockey-stick curve of two shifted sums against delta_mu(eps - eta) + tau, for one value."""
    noise = discrete_gaussian(bits)
    slack = noise.slack(shares)
    p, _ = probabilities(noise, shares)
    shift = max(1, round(distance * math.sqrt(shares) * noise.sigma))
    first, second = np.pad(p, (shift, 0)), np.pad(p, (0, shift))
    for eps in (0.0, 0.1, 1.0, 3.0, 10.0):
        for one, other in ((first, second), (second, first)):
            found = float(np.clip(one - math.exp(eps) * other, 0, None).sum())
            mu = shift / slack.sigma
            assert found <= gaussian_delta(mu, eps - slack.eta) + slack.tau + 1e-14  # floats of this test


@pytest.mark.parametrize(("bits", "shares", "spare"), [(1, 2, 1), (1, 5, 1), (2, 3, 2), (4, 7, 1)])
@pytest.mark.parametrize("distance", [0.05, 0.5, 2.0, 6.0])
def test_a_spare_share_leaves_a_slack_that_holds_too(bits: int, shares: int, spare: int, distance: float) -> None:
    noise = discrete_gaussian(bits)
    slack = noise.slack(shares, spare)
    p, _ = probabilities(noise, shares)
    assert crossings(p, max(1, round(distance * math.sqrt(shares) * noise.sigma)), slack) == 0


def crossings(p: np.ndarray, shift: int, slack: Slack) -> int:
    """At how many epsilons noise with these probabilities loses more than the slack says."""
    first, second = np.pad(p, (shift, 0)), np.pad(p, (0, shift))
    return sum(
        float(np.clip(one - math.exp(eps) * other, 0, None).sum())
        > gaussian_delta(shift / slack.sigma, eps - slack.eta) + slack.tau + 1e-14
        for eps in (0.0, 0.1, 1.0, 3.0, 10.0)
        for one, other in ((first, second), (second, first))
    )


def with_stray_draws(noise: DiscreteGaussian, chance: float, value: int) -> DiscreteGaussian:
    """The same noise, but for so many of its draws, which are always this value."""
    kept = round((1 - chance) * 2**30)
    weights = [weight * kept >> 30 for weight in noise.table.weights]
    weights[noise.offset + value] += TOTAL - sum(weights)
    return replace(noise, table=AliasTable(weights), short=-math.log1p(-1.01 * chance), over=1.01 * chance)


@pytest.mark.parametrize("value", [0, 100])
def test_with_a_spare_share_stray_draws_matter_only_by_twos(value: int) -> None:
    """Of three shares 1 % of draws are no noise at all: two ideal shares and a tau of 0.05 % hold."""
    stray = with_stray_draws(discrete_gaussian(4), 0.01, value)
    p, _ = probabilities(stray, 3)
    slack = stray.slack(3, 1)
    assert (0.03**2 / 2) * 0.9 < slack.tau < (0.03**2 / 2) * 1.1
    shifts = [1, 5, 20, 60, 100]
    assert [crossings(p, shift, slack) for shift in shifts] == [0] * 5
    # what this can see: three ideal shares do not hold, nor do two with hardly a tau
    wrong = replace(slack, sigma=slack.sigma * math.sqrt(3 / 2)) if value == 0 else replace(slack, tau=slack.tau / 1e6)
    assert sum(crossings(p, shift, wrong) for shift in shifts) > 0


@pytest.mark.parametrize("bits", [1, 4, 9])
def test_a_table_is_the_ideal_but_for_a_chance_of_its_shortness(bits: int) -> None:
    """Every weight is at least e^-short times that of a discrete Gaussian within reach."""
    noise = discrete_gaussian(bits)
    with mpmath.workdps(60):
        shape = [mpmath.e ** (-(mpmath.mpf(k) ** 2) / 2 / mpmath.mpf(4) ** bits) for k in range(noise.offset + 1)]
        total = shape[0] + 2 * sum(shape[1:])
        for k, own in enumerate(shape):
            assert noise.table.weights[noise.offset + k] >= mpmath.e**-noise.short * own / total * TOTAL


@pytest.mark.parametrize(("shares", "spare"), [(1, 1), (3, 3), (3, -1)])
def test_no_more_shares_are_spare_than_there_are(shares: int, spare: int) -> None:
    with pytest.raises(InvalidInput, match="spare"):
        discrete_gaussian(4).slack(shares, spare)


def test_four_hundred_silos_have_a_slack_that_many_values_leave_small() -> None:
    """155,530 values in 100 rounds: 1e-5 and more without a spare share, next to nothing with one."""
    noise, draws = discrete_gaussian(14), 155_530 * 100
    assert draws * noise.slack(400).tau > 1e-5
    assert draws * noise.slack(400, 1).tau < 1e-12


def test_noise_that_is_a_tenth_quieter_exceeds_its_slack() -> None:
    """What the test above can see: with sigma stated a tenth too large the curve is crossed."""
    noise = discrete_gaussian(6)
    slack = noise.slack()
    p, _ = probabilities(noise)
    first, second = np.pad(p, (64, 0)), np.pad(p, (0, 64))
    found = float(np.clip(first - math.e * second, 0, None).sum())
    assert found > gaussian_delta(64 / (1.1 * slack.sigma), 1.0 - slack.eta) + slack.tau


@pytest.mark.parametrize("bits", [1, 4, 9])
def test_a_discrete_gaussians_weights_are_those_of_the_formula(bits: int) -> None:
    noise = discrete_gaussian(bits)
    assert sum(noise.table.weights) == TOTAL
    with mpmath.workdps(60):
        sigma = mpmath.mpf(2) ** bits
        shape = [mpmath.e ** (-(mpmath.mpf(k) ** 2) / (2 * sigma**2)) for k in range(noise.offset + 1)]
        total = shape[0] + 2 * sum(shape[1:])
        ideals = [s / total for s in shape]
        actual = [mpmath.mpf(noise.table.weights[noise.offset + k]) / TOTAL for k in range(noise.offset + 1)]
        short = max(mpmath.log(i / a) for i, a in zip(ideals, actual, strict=True))
        over = sum((1 if k == 0 else 2) * max(0, a - i) for k, (i, a) in enumerate(zip(ideals, actual, strict=True)))
    assert short <= noise.short < 1e-14
    assert over <= noise.over < 1e-14
    assert min(noise.table.weights) >= 1
    assert [probability(noise, k) for k in (0, 1, -1)] == [
        Fraction(noise.table.weights[noise.offset + k], TOTAL) for k in (0, 1, -1)
    ]


@pytest.mark.process
@pytest.mark.parametrize("bits", [4, 5])
def test_the_rounded_gaussian_is_as_near_as_the_slack_takes_it(bits: int) -> None:
    """A discrete Gaussian against the rounded Gaussian of variance sigma^2 - 1/12, in forty digits, to 18 sigma."""
    with mpmath.workdps(200):
        sigma = mpmath.mpf(2) ** bits
        proven = mpmath.sqrt(sigma**2 - mpmath.mpf(1) / 12)
        total = 1 + 2 * sum(mpmath.e ** (-(mpmath.mpf(k) ** 2) / (2 * sigma**2)) for k in range(1, 22 * 2**bits))
        differs = mpmath.mpf(0)
        for k in range(26 * 2**bits):
            exact = mpmath.e ** (-(mpmath.mpf(k) ** 2) / (2 * sigma**2)) / total
            ends = ((k - mpmath.mpf(1) / 2) / proven, (k + mpmath.mpf(1) / 2) / proven)
            rounded = (mpmath.erfc(ends[0] / mpmath.sqrt(2)) - mpmath.erfc(ends[1] / mpmath.sqrt(2))) / 2
            z = k / 2**bits
            assert abs(mpmath.log(exact / rounded)) <= _rounding_gap(z**4, z**2, 2.0**bits)
            differs += (1 if k == 0 else 2) * max(0, exact - rounded)
        assert differs <= _rounding_gap(3, 1, 2.0**bits)


@pytest.mark.parametrize("bits", [9, 13, 17, 20, 25])
def test_discrete_gaussian_draws_have_their_variance_and_no_bias(bits: int) -> None:
    """A million draws: mean and variance within 6 standard errors (false alarm 4e-9)."""
    noise, n = discrete_gaussian(bits), 2**20
    stream = Keystream.simulation(9, [0], bits)
    y = noise.draw(stream.words(np.array([0]), 1, 0, 0, n * noise.words_per_value)).astype(np.float64)
    assert abs(y.mean()) < 6 * noise.sigma / math.sqrt(n)
    assert abs(y.var() / noise.sigma**2 - 1) < 6 * math.sqrt(2 / n)
    assert np.abs(y).max() <= noise.reach


@pytest.mark.parametrize("bits", [0, -1, 31])
def test_other_discrete_gaussians_are_refused(bits: int) -> None:
    with pytest.raises(InvalidInput, match=r"2\^1 to 2\^30"):
        discrete_gaussian(bits)

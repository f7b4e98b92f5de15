"""PrivUnitG: the published errors, unbiasedness, a density ratio of epsilon; and what floats must not tell."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from catalogue import stream
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from sordino.errors import InvalidInput
from sordino.mechanisms import PrivUnitG, Sphere
from sordino.mechanisms.output import IntegerOutput
from sordino.mechanisms.privunit import best_cap
from sordino.methods.upload import Upload
from sordino.randomness import Keystream


@pytest.mark.parametrize(
    ("d", "epsilon", "error"),
    [
        (50, 4.0, 21.76), (650, 0.5, 16370.0), (650, 1.0, 4115.0), (650, 4.0, 283.0), (650, 10.0, 61.2),
        (29034, 0.5, 7.3e5), (29034, 1.0, 1.8e5), (29034, 4.0, 1.26e4), (29034, 10.0, 2732.0),
    ],
)  # fmt: skip
def test_published_mean_square_errors(d: int, epsilon: float, error: float) -> None:
    assert PrivUnitG(epsilon).mean_square_error(d) == pytest.approx(error, rel=5e-3 if d < 10_000 else 3e-2)


@pytest.mark.parametrize(("epsilon", "constant"), [(0.5, 12.6), (1.0, 6.33), (4.0, 1.74), (10.0, 0.941)])
def test_error_times_epsilon_over_d(epsilon: float, constant: float) -> None:
    assert PrivUnitG(epsilon).mean_square_error(10**6) * epsilon / 10**6 == pytest.approx(constant, rel=5e-3)


def test_the_split_of_epsilon_is_the_best() -> None:
    best = best_cap(4.0).m
    for share in np.linspace(0.05, 0.95, 19):
        p, q = 1 / (1 + math.exp(-4 * share)), 1 / (1 + math.exp(-4 * (1 - share)))
        gamma = float(mpmath.sqrt(2) * mpmath.erfinv(2 * q - 1))
        m = math.exp(-(gamma**2) / 2) / math.sqrt(2 * math.pi) * (p / (1 - q) - (1 - p) / q)
        assert m <= best * (1 + 1e-9)


@pytest.mark.parametrize("epsilon", [1e-3, 0.5, 1.0, 4.0, 10.0, 20.0, 30.0, 36.0, 38.0, 45.0, 59.0])
def test_log_ratio_of_the_density_is_exactly_epsilon_and_the_scale_is_right(epsilon: float) -> None:
    """Along v the density is phi(a) times p/(1-q) above gamma and (1-p)/q below; m is its mean there."""
    cap = best_cap(epsilon)
    with mpmath.workdps(50):
        above = mpmath.erfc(mpmath.mpf(cap.gamma) / mpmath.sqrt(2)) / 2  # 1 - q
        # p through its own complement: epsilon = ln p/(1-p) + ln q/(1-q)
        odds = mpmath.exp(mpmath.mpf(epsilon)) * above / (1 - above)
        p = odds / (1 + odds)
        assert abs(p - cap.p) <= 1e-9
        ratio = mpmath.log(p / above) - mpmath.log((1 - p) / (1 - above))
        assert abs(ratio - epsilon) <= 1e-12 * max(1.0, epsilon)
        m = mpmath.npdf(cap.gamma) * (p / above - (1 - p) / (1 - above))
        assert cap.m == pytest.approx(float(m), rel=1e-6)
    claim = PrivUnitG(epsilon).claim(values=50)
    assert claim is not None and (claim.epsilon, claim.delta) == (epsilon, 0.0)


def test_the_largest_epsilons_still_give_finite_estimates_close_to_the_vector() -> None:
    """At the top of the range the noise is small: 200 clients, mean within 6 standard errors (false alarm 1e-8)."""
    vector, n = np.full(16, 0.25), 200
    for epsilon in (30.0, 45.0, 59.0):
        mechanism = PrivUnitG(epsilon)
        estimates = mechanism.estimate(mechanism.randomize(np.tile(vector, (n, 1)), stream(n)).output)
        assert np.isfinite(estimates).all()
        along = estimates @ vector
        assert along.mean() == pytest.approx(1.0, abs=6 * max(along.std(), 1e-3) / math.sqrt(n))


def test_monte_carlo_error_at_50_dimensions() -> None:
    """21.76 within 6 standard errors of 8,000 clients; the mean estimate is v within 6 standard errors."""
    mechanism, n = PrivUnitG(4.0), 8000
    v = np.arange(1.0, 51.0)
    v /= np.linalg.norm(v)
    estimates = mechanism.estimate(mechanism.randomize(np.tile(v, (n, 1)), stream(n)).output).astype(np.float64)
    square = ((estimates - v) ** 2).sum(axis=1)
    assert square.mean() == pytest.approx(21.76, abs=6 * square.std() / math.sqrt(n))
    assert (np.abs(estimates.mean(axis=0) - v) <= 6 * np.sqrt(mechanism.variance(v[None])[0] / n)).all()
    assert mechanism.variance(v[None]).sum() == pytest.approx(mechanism.mean_square_error(50), rel=1e-9)


def test_the_component_along_the_vector_falls_above_gamma_with_probability_p() -> None:
    """20,000 clients, both shares within 6 standard deviations: false alarm 4e-9."""
    mechanism, n = PrivUnitG(3.0), 20_000
    cap = best_cap(3.0)
    v = np.array([0.6, 0.8])
    along = mechanism.estimate(mechanism.randomize(np.tile(v, (n, 1)), stream(n)).output) @ v * cap.m
    assert np.mean(along >= cap.gamma) == pytest.approx(cap.p, abs=6 * math.sqrt(cap.p * (1 - cap.p) / n))
    far = cap.p * (1 - ndtr(cap.gamma + 0.5)) / (1 - cap.q)
    assert np.mean(along >= cap.gamma + 0.5) == pytest.approx(far, abs=6 * math.sqrt(far * (1 - far) / n))


@settings(max_examples=30)
@given(st.integers(2, 9), st.floats(1e-3, 1e3), st.integers(0, 10**6))
def test_every_vector_is_rescaled_to_the_sphere(d: int, scale: float, seed: int) -> None:
    vector = np.random.default_rng(seed).normal(size=(1, d)) * scale
    mechanism = PrivUnitG(2.0, Sphere(3.0))
    mean = vector + mechanism.bias(vector)
    assert np.linalg.norm(mean) == pytest.approx(3.0, rel=1e-9)
    same = mechanism.randomize(vector / np.linalg.norm(vector), stream()).output.array
    assert np.abs(mechanism.randomize(vector, stream()).output.array - same).max() <= 1  # of 4,096 steps a deviation


def test_a_zero_vector_says_something_all_the_same() -> None:
    output = PrivUnitG(1.0).randomize(np.zeros((1, 5)), stream()).output
    assert isinstance(output, IntegerOutput)
    assert np.abs(output.array).min() > 0


def test_a_single_value_has_no_direction() -> None:
    with pytest.raises(InvalidInput, match="at least 2"):
        PrivUnitG(1.0).randomize(np.ones((1, 1)), stream())


def test_bounds_hold_at_the_most_extreme_words() -> None:
    class Extreme:
        clients = 1

        def __init__(self, word: int) -> None:
            self.word = word

        def words(self, rows: np.ndarray, purpose: int, tensor: int, first: int, count: int) -> np.ndarray:
            return np.full((len(rows), count), self.word, dtype=np.uint32)

    mechanism = PrivUnitG(4.0)
    for word in (0, 2**32 - 1):
        output = mechanism.randomize(np.ones((1, 30)), Extreme(word)).output
        assert (mechanism.decode(mechanism.encode(output), 30).array == output.array).all()


# --- what the last digits tell ----------------------------------------------------------------------------------------


def outside_single_noise(estimates: np.ndarray, scale: float) -> np.ndarray:
    """Which numbers are no 32-bit noise times the mechanism's constant: none of the zeros' is, if noise is kept so."""
    near = (estimates.astype(np.float64) / scale).astype(np.float32)
    tried = [near, np.nextafter(near, np.float32(np.inf)), np.nextafter(near, np.float32(-np.inf))]
    reached = [(noise.astype(np.float64) * scale).astype(np.float32) == estimates for noise in tried]
    return np.logical_not(np.logical_or.reduce(reached))


def sparse(d: int, nonzero: int, seed: int = 4) -> np.ndarray:
    rng = np.random.default_rng(seed)
    vector = np.zeros(d, np.float32)
    vector[rng.choice(d, nonzero, replace=False)] = rng.normal(size=nonzero)
    return vector


def alike(first: np.ndarray, second: np.ndarray) -> bool:
    """Two shares within 6 standard deviations of each other: false alarm 2e-9."""
    share = np.concatenate([first, second]).mean()
    return abs(first.mean() - second.mean()) <= 6 * math.sqrt(share * (1 - share) * (1 / first.size + 1 / second.size))


def test_zeros_come_out_on_the_same_lattice_as_other_values() -> None:
    """650 values at epsilon 1, of 400 clients: 13.7 % against none with noise kept in 32 bits."""
    vector, n = sparse(650, 325), 400
    mechanism = PrivUnitG(1.0)
    output = mechanism.randomize(np.tile(vector, (n, 1)), stream(n)).output
    odd = outside_single_noise(mechanism.estimate(output), 1 / best_cap(1.0).m)
    assert alike(odd[:, vector != 0].ravel(), odd[:, vector == 0].ravel())
    assert isinstance(output, IntegerOutput)
    for part in (output.array[:, vector != 0].ravel(), output.array[:, vector == 0].ravel()):
        counts = np.bincount(part % 256, minlength=256)  # chi-square, 255 degrees of freedom: false alarm 1e-9
        assert ((counts - part.size / 256) ** 2 / (part.size / 256)).sum() < 420


def test_five_rounds_through_an_upload_name_no_value_that_is_not_zero() -> None:
    """As a client sends them, at 0.05 a round: any output off the lattice of plain noise names its value."""
    vector = sparse(650, 45)
    upload = Upload(lambda e: PrivUnitG(e), [0.05], 650, clients=1, what="update")
    named = np.zeros(650, bool)
    for round in range(5):
        sent = upload.send([0], vector[None], lambda who, r=round: Keystream.simulation(3, list(who), r), [100])
        estimates = PrivUnitG(0.05).estimate(upload.mechanisms[0].decode(sent.bodies, 650))
        named |= outside_single_noise(estimates, 1 / best_cap(0.05).m)[0]
    assert alike(named[vector != 0], named[vector == 0])  # half against none with noise kept in 32 bits


def test_a_zero_value_can_be_said_of_every_vector_that_has_one() -> None:
    """Neither the step nor the limits depend on the input."""
    outputs = [
        PrivUnitG(0.01).randomize(v[None], stream()).output for v in (sparse(30, 1), sparse(30, 30), np.zeros(30))
    ]
    assert len({(int(o.low[0]), int(o.high[0])) for o in outputs}) == 1

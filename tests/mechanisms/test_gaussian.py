"""Gaussian noise: the paper's Eq. 4 figures, the analytic calibration, and what is proven of both."""

from __future__ import annotations

import math

import numpy as np
import pytest
from catalogue import stream

from sordino.errors import InvalidInput
from sordino.mechanisms import Box, Gaussian, L2Ball
from sordino.mechanisms.noise import GaussianNoise
from sordino.privacy import accountant, guarantee
from sordino.privacy.guarantee import Adjacency

DIGITS = {"delta": 1 / 500, "sampling": 0.8, "rounds": 10}
FMNIST = {"delta": 1 / 1000, "sampling": 0.9, "rounds": 20}


@pytest.mark.parametrize(
    ("setting", "reading", "figures"),
    [
        (DIGITS, "derived", {1.0: 41.460, 5.0: 9.447, 10.0: 5.358}),
        (DIGITS, "literal", {1.0: 151.9, 5.0: 7.888, 10.0: 2.538}),
        (FMNIST, "derived", {0.05: 1895.8, 0.5: 192.6, 1.0: 97.98}),
    ],
)
def test_equation_4_gives_the_published_sigmas(setting: dict, reading: str, figures: dict[float, float]) -> None:
    for epsilon, sigma in figures.items():
        mechanism = Gaussian.eq4(epsilon, domain=Box(0.0, 10.0), reading=reading, **setting)
        assert mechanism.sigma[0] == pytest.approx(sigma, rel=5e-4)
        assert mechanism.claim().epsilon == epsilon
        assert mechanism.claim().delta == setting["delta"]


@pytest.mark.parametrize(
    ("epsilon", "scalar", "upload"), [(1.0, 73.4, 3.10e4), (5.0, 1017.0, 5.86e5), (10.0, 3000.0, 1.82e6)]
)
def test_what_equation_4_really_proves_at_the_papers_clipping(epsilon: float, scalar: float, upload: float) -> None:
    """Digits, c = 200, d = 650, delta = 1/500: the sensitivity 2c that Eq. 4 leaves out."""
    mechanism = Gaussian.eq4(epsilon, domain=Box(0.0, 200.0), **DIGITS)
    one = mechanism.guarantee(Adjacency.COORDINATE, values=650).loss
    assert accountant.epsilon(one, 1 / 500) == pytest.approx(scalar, rel=5e-3)
    assert accountant.epsilon(mechanism.guarantee(values=650).loss, 1 / 500) == pytest.approx(upload, rel=5e-3)


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0, 5.0, 10.0])
@pytest.mark.parametrize("delta", [1e-5, 1e-8])
@pytest.mark.parametrize(("domain", "values"), [(Box(1.0, 0.3), 1), (Box(), 650), (L2Ball(2.0), 650)])
def test_analytic_calibration_proves_what_was_asked_and_wastes_nothing(
    epsilon: float, delta: float, domain: Box | L2Ball, values: int
) -> None:
    mechanism = Gaussian.analytic(epsilon, delta, domain, values=values)
    proven = accountant.epsilon(mechanism.guarantee(values=values).loss, delta)
    assert epsilon * (1 - 1e-3) <= proven <= epsilon
    size = 1.0 if isinstance(domain, L2Ball) else math.sqrt(values)
    exact = 2 * float(np.max(domain.radius)) * size / accountant.mu_for(epsilon, delta)
    assert exact * (1 - 1e-12) <= mechanism.sigma[0] <= exact * (1 + 1e-3)


def test_analytic_sigma_at_epsilon_1_is_sensitivity_over_mu() -> None:
    """mu(1, 1e-5) = .2681; a box of radius 1 has sensitivity 2."""
    assert Gaussian.analytic(1.0, 1e-5).sigma[0] == pytest.approx(2 / 0.2681, rel=1e-3)


def test_analytic_calibration_is_per_client() -> None:
    mechanism = Gaussian.analytic([0.5, 5.0], 1e-5)
    for k, epsilon in enumerate((0.5, 5.0)):
        assert accountant.epsilon(mechanism.guarantee(client=k).loss, 1e-5) == pytest.approx(epsilon, rel=1e-3)


@pytest.mark.parametrize("sigma", [0.01, 0.2, 1.0, 1.99, 2.01, 50.0])
def test_mu_is_sensitivity_over_sigma(sigma: float) -> None:
    box, ball = Gaussian(sigma * 3.0, Box(0.0, 3.0)), Gaussian(sigma * 3.0, L2Ball(3.0))
    loss = box.guarantee(values=9).loss
    assert isinstance(loss, guarantee.GaussianLoss)
    assert loss.mu == pytest.approx(2 * 3 / sigma, rel=1e-6)
    assert box.guarantee(Adjacency.COORDINATE, values=9).loss.mu == pytest.approx(2 / sigma, rel=1e-6)
    assert ball.guarantee(values=9).loss.mu == pytest.approx(2 / sigma, rel=1e-6)
    noise = box.grid(9).noise
    assert isinstance(noise, GaussianNoise)
    assert loss.eta == pytest.approx(9 * noise.eta)
    assert loss.tau == pytest.approx(9 * noise.tau)


@pytest.mark.parametrize("sigma", [0.01, 0.2, 1.0, 2.5, 50.0])
def test_the_noise_on_the_grid_has_the_asked_sigma(sigma: float) -> None:
    grid = Gaussian(sigma, Box()).grid(1)
    assert grid.noise.sigma / grid.steps == pytest.approx(sigma, rel=1e-12)
    assert grid.limit == grid.steps + grid.noise.reach  # nothing is clamped


@pytest.mark.parametrize("domain", [Box(), L2Ball(1.0)])
@pytest.mark.parametrize("sigma", [0.5, 4.0])
def test_variance_is_sigma_squared(sigma: float, domain: Box | L2Ball) -> None:
    mechanism = Gaussian(sigma, domain)
    values = np.full((1, 4), 0.1)
    assert mechanism.variance(values) == pytest.approx(np.full((1, 4), sigma**2), rel=1e-3)
    assert np.abs(mechanism.bias(values)).max() <= 1 / 256


def test_rounding_adds_a_twelfth_of_a_squared_step() -> None:
    """Second moments of the coarse table, exactly: sigma^2 + 1/12."""
    noise = Gaussian(0.125, Box()).grid(1).noise
    k = np.arange(-noise.offset, noise.offset + 1)
    weights = [w / 2**64 for w in noise.table.weights]
    assert math.fsum(w * float(x) ** 2 for w, x in zip(weights, k, strict=True)) == pytest.approx(
        noise.sigma**2 + 1 / 12, rel=1e-10
    )


def test_a_vector_beyond_the_ball_is_scaled_not_cut() -> None:
    """Mean of 4,000 clients within 6 standard errors: false alarm below 1e-8."""
    mechanism, n = Gaussian(0.05, L2Ball(1.0)), 4000
    estimates = mechanism.estimate(mechanism.randomize(np.tile([3.0, 4.0], (n, 1)), stream(n)).output)
    assert estimates.mean(axis=0) == pytest.approx([0.6, 0.8], abs=6 * 0.05 / math.sqrt(n))
    assert mechanism.bias(np.array([[3.0, 4.0]]))[0] == pytest.approx([-2.4, -3.2], abs=1e-5)


def test_sigmas_beyond_what_the_tables_hold_are_refused_with_a_reason() -> None:
    for sigma in (1 / 1000, 1e6):
        with pytest.raises(InvalidInput, match="times the radius"):
            Gaussian(sigma, Box())


def test_different_radii_are_refused_since_one_sigma_serves_all() -> None:
    with pytest.raises(InvalidInput, match="radius"):
        Gaussian(1.0, Box(0.0, [1.0, 2.0]))


@pytest.mark.parametrize(
    "bad",
    [
        {"sampling": 0.0}, {"sampling": 1.0}, {"sampling": math.nan}, {"sampling": "a"}, {"sampling": None},
        {"rounds": 0}, {"rounds": 1.5}, {"rounds": True}, {"rounds": "3"}, {"reading": "other"}, {"reading": None},
    ],
)  # fmt: skip
def test_equation_4_refuses_what_it_is_not_defined_for(bad: dict) -> None:
    with pytest.raises(InvalidInput):
        Gaussian.eq4(1.0, **{**DIGITS, **bad})


@pytest.mark.parametrize("epsilon", [1e-200, 1e-160])
def test_equation_4_at_an_absurd_epsilon_is_refused_not_an_overflow(epsilon: float) -> None:
    with pytest.raises(InvalidInput):
        Gaussian.eq4(epsilon, **DIGITS)


@pytest.mark.parametrize("values", [0, -1, 1.5, True, "a", None])
def test_analytic_refuses_a_number_of_values_that_is_no_count(values: object) -> None:
    with pytest.raises(InvalidInput):
        Gaussian.analytic(1.0, 1e-5, values=values)  # type: ignore[arg-type]


def test_a_claim_belongs_to_its_client_and_none_is_made_without_a_paper() -> None:
    mechanism = Gaussian.eq4([1.0, 5.0], domain=Box(0.0, 10.0), **DIGITS)
    assert [mechanism.claim(client=k).epsilon for k in (0, 1)] == [1.0, 5.0]
    assert Gaussian(1.0).claim() is None


def test_truncation_in_a_ball_leaves_long_weak_vectors_their_length() -> None:
    """A million values at eps 0.1: each is a thousandth of the radius and must still be many grid steps long."""
    d = 1_000_000
    mechanism = Gaussian.analytic(0.1, 1e-5, L2Ball(1.0), values=d)
    vector = np.full((1, d), 1 / np.sqrt(d), np.float32)
    kept = 1 + float(mechanism.bias(vector).mean() / vector.mean())
    assert kept > 0.98


def test_a_box_has_at_least_512_steps_across_whatever_the_noise() -> None:
    for sigma in (0.01, 1.0, 10.0, 1e3, 1e5):
        assert Gaussian(sigma, Box()).grid(1).steps >= 256

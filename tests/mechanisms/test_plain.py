"""The doubles without protection: the same interface, and an honest infinite loss."""

from __future__ import annotations

import math

import numpy as np
import pytest
from catalogue import stream

from sordino.errors import InvalidInput
from sordino.mechanisms import Box, ClipOnly, L1Ball, L2Ball, NoPrivacy
from sordino.privacy import accountant
from sordino.privacy.guarantee import Adjacency, Infinite


@pytest.mark.parametrize("mechanism", [NoPrivacy(), ClipOnly(), ClipOnly(L2Ball(1.0))], ids=lambda m: m.name)
def test_nothing_is_proven_and_the_reason_is_given(mechanism: NoPrivacy) -> None:
    for adjacency in (Adjacency.CLIENT, Adjacency.COORDINATE, Adjacency.RECORD_REPLACE):
        guarantee = mechanism.guarantee(adjacency, values=10)
        assert isinstance(guarantee.loss, Infinite)
        assert "noise" in guarantee.loss.why
        assert accountant.epsilon(guarantee.loss, 1e-5) == math.inf
    assert mechanism.claim() is None


def test_values_pass_unchanged() -> None:
    values = np.random.default_rng(1).normal(size=(3, 7)).astype(np.float32) * 1e3
    mechanism = NoPrivacy()
    randomized = mechanism.randomize(values)
    assert (mechanism.estimate(randomized.output) == values).all()
    assert not mechanism.bias(values).any()
    assert not mechanism.variance(values).any()
    assert not randomized.local.clipped_fraction.any()


@pytest.mark.parametrize(
    ("domain", "values", "expected"),
    [
        (Box(1.0, 2.0), [5.0, -5.0, 1.5], [3.0, -1.0, 1.5]),
        (L1Ball(2.0), [3.0, -1.0, 0.0], [1.5, -0.5, 0.0]),
        (L2Ball(1.0), [3.0, 4.0, 0.0], [0.6, 0.8, 0.0]),
        (L2Ball(10.0), [3.0, 4.0, 0.0], [3.0, 4.0, 0.0]),
        (L2Ball(1.0), [3e200, 4e200, 0.0], [0.6, 0.8, 0.0]),
        (L1Ball(2.0), [1.5e308, -0.5e308, 0.0], [1.5, -0.5, 0.0]),
    ],
)
def test_clipping_only_clips(domain: Box, values: list[float], expected: list[float]) -> None:
    mechanism = ClipOnly(domain)
    randomized = mechanism.randomize(np.array([values]), stream())
    assert mechanism.estimate(randomized.output)[0] == pytest.approx(expected)
    assert mechanism.bias(np.array([values]))[0] == pytest.approx(np.array(expected) - values)


def test_a_clipped_report_cannot_hold_what_clipping_would_not_leave() -> None:
    mechanism = ClipOnly(Box(0.0, 1.0))
    forged = np.array([[0.5, 7.0]], "<f4").tobytes()
    with pytest.raises(InvalidInput, match="output set"):
        mechanism.decode([forged], 2)


def test_the_share_of_clipped_values_is_diagnosed() -> None:
    local = ClipOnly(Box()).randomize(np.array([[0.5, 2.0, -3.0, 1.0]]), stream()).local
    assert local.clipped_fraction.tolist() == [0.5]
    assert local.noise_scale.tolist() == [0.0]

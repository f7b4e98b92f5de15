"""The root is the one that scipy finds, to the last bit and by the same steps."""

import math

import numpy as np
import pytest
from scipy import optimize

from sordino.privacy.roots import brentq

FUNCTIONS = {
    "line": lambda x, a: x - a,
    "cube": lambda x, a: x**3 - a,
    "exponential": lambda x, a: math.exp(x) - math.exp(a),
    "steps": lambda x, a: float(math.floor(50 * (x - a))) + 0.5,
    "capped": lambda x, a: max(-1.0, min(1.0, 40 * (x - a))),
    "steep": lambda x, a: math.atan(1e6 * (x - a)),
}


@pytest.mark.parametrize("f", FUNCTIONS.values(), ids=FUNCTIONS)
def test_every_step_is_that_of_scipy(f):
    for a, low, high in np.random.default_rng(3).uniform([-1, -9, 1], [1, -1, 9], (200, 3)):
        tried: tuple[list[float], list[float]] = ([], [])
        found = []
        for own, find in zip(tried, (brentq, optimize.brentq), strict=True):

            def noted(x, a=a, own=own):
                own.append(x)
                return f(x, a)

            found.append(find(noted, low, high, xtol=1e-9, rtol=1e-12))
        assert found[0] == found[1]
        assert tried[0] == tried[1]


def test_a_root_at_an_end_is_found_and_no_change_of_sign_is_refused():
    assert brentq(lambda x: x, 0.0, 1.0, xtol=1e-9, rtol=1e-9) == 0.0
    assert brentq(lambda x: x - 1, 0.0, 1.0, xtol=1e-9, rtol=1e-9) == 1.0
    with pytest.raises(ValueError):
        brentq(lambda x: x + 1, 0.0, 1.0, xtol=1e-9, rtol=1e-9)

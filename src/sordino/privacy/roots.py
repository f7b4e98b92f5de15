"""Brent's method for a root, step by step as `scipy.optimize.brentq` does it: to load that takes longer than to use it.

R. P. Brent, Algorithms for Minimization Without Derivatives, chapter 4 (Prentice-Hall, 1973).
"""

from __future__ import annotations

import math
from collections.abc import Callable

STEPS = 100  #: at most


def brentq(f: Callable[[float], float], low: float, high: float, *, xtol: float, rtol: float) -> float:
    """Where `f` is zero between two places at which it has opposite signs; ValueError where it has not.

    The root is right to `xtol + rtol * |root|`.
    """
    before, now = float(low), float(high)
    f_before, f_now = float(f(before)), float(f(now))
    if f_before == 0:
        return before
    if f_now == 0:
        return now
    if (f_before < 0) == (f_now < 0):
        raise ValueError("f(a) and f(b) must have different signs")
    other = f_other = step = step_before = 0.0
    for _ in range(STEPS):
        if f_before != 0 and f_now != 0 and (f_before < 0) != (f_now < 0):
            other, f_other = before, f_before
            step = step_before = now - before
        if abs(f_other) < abs(f_now):
            before, now, other = now, other, now
            f_before, f_now, f_other = f_now, f_other, f_now
        near = (xtol + rtol * abs(now)) / 2
        half = (other - now) / 2
        if f_now == 0 or abs(half) < near:
            return now
        if abs(step_before) > near and abs(f_now) < abs(f_before):
            if before == other:  # by a straight line
                trial = -f_now * (now - before) / (f_now - f_before)
            else:  # by a hyperbola
                slope = (f_before - f_now) / (before - now)
                slope_other = (f_other - f_now) / (other - now)
                above = -f_now * (f_other * slope_other - f_before * slope)
                below = slope_other * slope * (f_other - f_before)
                trial = above / below if below else math.inf
            short = 2 * abs(trial) < min(abs(step_before), 3 * abs(half) - near)
            step_before, step = (step, trial) if short else (half, half)
        else:
            step_before = step = half
        before, f_before = now, f_now
        now += step if abs(step) > near else (near if half > 0 else -near)
        f_now = float(f(now))
    raise RuntimeError(f"no root was found in {STEPS} steps")


__all__ = ["brentq"]

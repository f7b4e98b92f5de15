"""Log-likelihood ratios of outputs under two inputs: the strongest scores that an audit can use.

A ratio maps outputs to one number for every value, or to one for the whole vector where a mechanism sees vectors only.
The sum over a report speaks for the first input the more the larger it is. Factors and terms that are the same for all
outputs are left out.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from sordino.mechanisms.arrays import Float64s
from sordino.mechanisms.laws import Law
from sordino.mechanisms.output import Output

if TYPE_CHECKING:
    from sordino.mechanisms.interface import Mechanism

Ratio = Callable[[Output], Float64s]  #: outputs of n clients -> `[n, d]`, or `[n, 1]` for mechanisms of whole vectors


def of_bits(p: Float64s, q: Float64s) -> Ratio:
    """Bits that are one with probabilities `p [d]` under the first input and `q [d]` under the second."""
    with np.errstate(divide="ignore"):
        for_one, for_zero = np.log(p) - np.log(q), np.log1p(-p) - np.log1p(-q)
    return lambda output: np.where(output.numbers(), for_one, for_zero)


def of_distances(mechanism: Mechanism, first: Float64s, second: Float64s, radius: ArrayLike = 1.0) -> Ratio:
    """Noise with a probability that falls exponentially with its size, in units of each value's radius."""

    def score(output: Output) -> Float64s:
        y = mechanism.estimate(output).astype(np.float64)
        return np.asarray((np.abs(y - second) - np.abs(y - first)) / np.asarray(radius, np.float64))

    return score


def linear(mechanism: Mechanism, first: Float64s, second: Float64s) -> Ratio:
    """Gaussian noise, and none."""

    def score(output: Output) -> Float64s:
        return np.asarray((mechanism.estimate(output).astype(np.float64) - (first + second) / 2) * (first - second))

    return score


def of_laws(first: Law, second: Law) -> Ratio:
    """Any two laws of independent values."""

    def score(output: Output) -> Float64s:
        with np.errstate(divide="ignore"):
            masses = [np.log(law.interval(output.numbers())[1]) for law in (first, second)]
        return np.asarray(masses[0] - masses[1])

    return score

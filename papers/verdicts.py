"""When a figure counts as reproduced: an accuracy within two points, a difference by a tolerance of its own.

Two points are too many for a difference of one point: they would confirm its opposite. So a difference is judged by its
own standard error, from the spread over seeds and the number of test examples:

    error = 2 sqrt( s^2/n + (p(1 - p) + q(1 - q))/m )

n seeds have the standard deviation s, and accuracies p and q are measured on m test examples: ours or the paper's,
whichever are fewer. The second term is that of two separate test sets: an upper bound where both are the same examples.
"""

from __future__ import annotations

import math
from typing import Literal

Verdict = Literal["reproduced", "undecided", "higher here", "lower here", "not run", "not stated"]

CLOSE = 2.0  #: points within which a figure counts as reproduced
STANDARD_ERRORS = 2.0  #: within which two differences are not told apart


def sampling_error(first: float, second: float, examples: int) -> float:
    """The standard error, in points, of a difference of two accuracies in percent that so many examples allow."""
    return math.sqrt((first * (100 - first) + second * (100 - second)) / examples)


def tolerance(seed_error: float, test_error: float) -> float:
    """The tolerance of a difference, in points, from the standard errors over seeds and of the test set."""
    return STANDARD_ERRORS * math.hypot(seed_error, test_error)


def judge_accuracy(ours: float, figure: float, seed_error: float) -> Verdict:
    """Compare an accuracy in percent with the paper's."""
    apart = abs(ours - figure)
    if apart <= seed_error and seed_error > CLOSE:
        return "undecided"
    return "reproduced" if apart <= CLOSE else _side(ours, figure)


def judge_difference(ours: float, figure: float, error: float | None) -> Verdict:
    """Compare a difference in points with the paper's, by its tolerance; None where one seed says nothing of it.

    It is reproduced where ours is within both tolerances of the paper's and, if the paper's is not zero, beyond the
    own one on the same side of zero.
    """
    if error is None:
        return "undecided"
    apart = abs(ours - figure)
    if apart > error:
        return _side(ours, figure)
    told_from_zero = figure == 0 or math.copysign(1.0, figure) * ours > error
    return "reproduced" if apart <= CLOSE and told_from_zero else "undecided"


def _side(ours: float, figure: float) -> Verdict:
    return "higher here" if ours > figure else "lower here"


__all__ = ["CLOSE", "STANDARD_ERRORS", "Verdict", "judge_accuracy", "judge_difference", "sampling_error", "tolerance"]

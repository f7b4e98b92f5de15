"""What an epsilon means to an attacker: how often a guess between two neighbouring data sets can be right."""

from __future__ import annotations

import math

from sordino.errors import InvalidInput


def best_guess(epsilon: float, delta: float = 0.0) -> float:
    """The largest share of right guesses under (epsilon, delta), where both data sets are equally likely.

    0.5 is a tossed coin, 1.0 no bound. By the trade-off function of (epsilon, delta) the two errors of a test add up to
    at least 2 (1 - delta) / (1 + e^epsilon) (Kairouz, Oh, Viswanath 2015), so (e^epsilon + delta) / (e^epsilon + 1) of
    the guesses are right at most; some mechanism of that (epsilon, delta) reaches it.
    """
    if not (epsilon >= 0 and 0 <= delta <= 1):
        raise InvalidInput(f"an epsilon is at least 0 and a delta from 0 to 1, got {epsilon!r} and {delta!r}")
    odds = math.exp(-epsilon)
    return (1 + delta * odds) / (1 + odds)


__all__ = ["best_guess"]

"""One number per client, from how a recipe puts it: a number, a list, or a distribution drawn from the seed."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sordino.randomness import Keystream, Purpose
from sordino.recipe.grammar import Linear, Shares, Uniform

Strengths = float | tuple[float, ...] | Uniform | Linear | Shares

# Tensor numbers of the split's streams; splits of the data use those from 0 on.
EPSILONS = 0x100
LIMITS = 0x101


def resolved(strength: Strengths, clients: int, seed: int, stream: int) -> list[float]:
    """The number of each client; the same seed gives the same numbers everywhere."""
    match strength:
        case Uniform(uniform=(low, high)):
            unit = (_words(seed, clients, stream) >> np.uint64(11)).astype(np.float64) * 2.0**-53
            return [min(max(round(low + (high - low) * u, 2), low), high) for u in unit.tolist()]
        case Linear(linear=(first, last)):
            between = [first + (last - first) * k / (clients - 1) for k in range(1, clients - 1)]
            return [first, *between, last][:clients]
        case Shares(values=values, shares=shares):
            numbers = [v for v, n in zip(values, _counts(shares, clients), strict=True) for _ in range(n)]
            order = np.argsort(_words(seed, clients, stream), kind="stable")
            return [numbers[place] for place in np.argsort(order, kind="stable").tolist()]
        case tuple():
            return list(strength)
    return [strength] * clients


def _counts(shares: tuple[float, ...], clients: int) -> list[int]:
    """How many clients each share is: rounded down, and the rest to the largest remainders, the first if equal."""
    exact = [Fraction(repr(share)) for share in shares]
    quotas = [clients * share / sum(exact) for share in exact]
    counts = [int(quota) for quota in quotas]
    by_remainder = sorted(range(len(quotas)), key=lambda i: counts[i] - quotas[i])
    for i in by_remainder[: clients - sum(counts)]:
        counts[i] += 1
    return counts


def _words(seed: int, clients: int, stream: int) -> NDArray[np.uint64]:
    """One 64-bit word of each client's own stream."""
    keystream = Keystream.simulation(seed, np.arange(clients), 0)
    words = keystream.words(np.arange(clients), Purpose.SPLIT, stream, 0, 2)
    return np.ascontiguousarray(words).view("<u8")[:, 0]

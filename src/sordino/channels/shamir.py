"""Secret sharing (Shamir, "How to share a secret", CACM 1979): any t shares give the secret, fewer say nothing of it.

f(x) = secret + a_1 x + ... + a_{t-1} x^{t-1}  modulo a prime, with a_i uniform;   the share of point i is f(i)
"""

from __future__ import annotations

import itertools
import math
import secrets
from collections.abc import Callable, Mapping, Sequence

from sordino.errors import InvalidInput

PRIME = 2**256 + 297  #: the smallest prime that leaves room for every 32-byte secret
SECRET_BYTES = 32
SHARE_BYTES = 33


def split(
    secret: int,
    threshold: int,
    points: Sequence[int],
    *,
    prime: int = PRIME,
    draw: Callable[[int], int] = secrets.randbelow,
) -> list[int]:
    """One share for each point; `draw(n)` gives a uniform number below n."""
    _check_points(points, prime)
    if not 0 <= secret < prime:
        raise InvalidInput("a secret must be a whole number from 0 to below the prime of the field")
    if not 1 <= threshold <= len(points):
        raise InvalidInput(f"a threshold must lie in 1 .. {len(points)}, the number of shares; got {threshold}")
    coefficients = [secret, *(draw(prime) for _ in range(threshold - 1))]
    return [_value_at(point, coefficients, prime) for point in points]


def _value_at(point: int, coefficients: Sequence[int], prime: int) -> int:
    value = 0
    for coefficient in reversed(coefficients):  # Horner
        value = (value * point + coefficient) % prime
    return value


def weights(points: Sequence[int], *, prime: int = PRIME) -> list[int]:
    """What the shares of these points are multiplied by; the sum is f(0). They serve any number of secrets."""
    _check_points(points, prime)
    whole = math.prod(points) % prime
    below = [i * math.prod(j - i for j in points if j != i) % prime for i in points]
    return [whole * inverse % prime for inverse in _inverses(below, prime)]


def _inverses(values: Sequence[int], prime: int) -> list[int]:
    """1 / v for each, by one division (Montgomery): all others are products."""
    before = list(itertools.accumulate(values, lambda a, b: a * b % prime, initial=1))
    rest, found = pow(before.pop(), -1, prime), []
    for value, product in zip(reversed(values), reversed(before), strict=True):
        found.append(rest * product % prime)
        rest = rest * value % prime
    return found[::-1]


def join(shares: Mapping[int, int], *, prime: int = PRIME) -> int:
    """The secret behind these shares by point; at least as many as its threshold, or the result means nothing."""
    coefficients = weights(list(shares), prime=prime)
    return sum(w * share for w, share in zip(coefficients, shares.values(), strict=True)) % prime


def _check_points(points: Sequence[int], prime: int) -> None:
    if not points or len(set(points)) != len(points) or not all(0 < point < prime for point in points):
        raise InvalidInput("points must be different whole numbers from 1 on, at least one of them")

"""One number per client, from how a recipe puts it: a number, a list, or a distribution drawn from the seed."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray
from pydantic import AfterValidator, BaseModel, BeforeValidator, Discriminator, Field, Tag

from sordino.parts.tables import Found, Positive, Positives, Says, TomlTable, as_tuple, refusal
from sordino.randomness import Keystream, Purpose


def _rising(pair: tuple[float, float]) -> tuple[float, float]:
    if pair[0] > pair[1]:
        raise refusal(f"got [{pair[0]:g}, {pair[1]:g}]; allowed: [low, high] with low <= high")
    return pair


class UniformStrength(TomlTable):
    """Each client's number drawn evenly between two, from the seed, rounded to two decimals."""

    inline: ClassVar[bool] = True

    uniform: Annotated[
        tuple[Annotated[float, Ge(0.01)], Annotated[float, Ge(0.01)]],
        BeforeValidator(as_tuple),
        AfterValidator(_rising),
        Says("[low, high], both at least 0.01"),
    ] = Field(description="drawn evenly between these two, from the seed, rounded to two decimals")


class LinearStrength(TomlTable):
    """Evenly spaced numbers, the first client's first."""

    inline: ClassVar[bool] = True

    linear: Annotated[tuple[Positive, Positive], BeforeValidator(as_tuple), Says("[first, last], both above 0")] = (
        Field(description="evenly spaced from the first client's to the last one's")
    )


class SharesStrength(TomlTable):
    """A few numbers, each for its share of the clients."""

    inline: ClassVar[bool] = True

    values: Positives = Field(description="the numbers that occur")
    shares: Positives = Field(description="which share of the clients has each of them: as many as values, 1 together")


def _strength_form(value: object) -> str | None:
    match value:
        case UniformStrength() | {"uniform": _}:
            return "uniform"
        case LinearStrength() | {"linear": _}:
            return "linear"
        case SharesStrength() | {"values": _} | {"shares": _}:
            return "shares"
        case dict() | BaseModel():
            return None
        case list() | tuple():
            return "list"
    return "number"


Strength = Annotated[
    Annotated[Positive, Tag("number")]
    | Annotated[Positives, Tag("list")]
    | Annotated[UniformStrength, Tag("uniform")]
    | Annotated[LinearStrength, Tag("linear")]
    | Annotated[SharesStrength, Tag("shares")],
    Discriminator(_strength_form),
    Says(
        "a number above 0 for all clients, a list with one for each, { uniform = [low, high] }, "
        "{ linear = [first, last] } or { values = [...], shares = [...] }"
    ),
]


def strength_problems(key: str, strength: object, clients: int) -> Found:
    """What is wrong with numbers for so many clients."""
    if isinstance(strength, tuple) and len(strength) != clients:
        yield key, f"got {len(strength)} numbers for {clients} clients; allowed: one for each client"
    if not isinstance(strength, SharesStrength):
        return
    if len(strength.values) != len(strength.shares):
        yield f"{key}.shares", f"got {len(strength.shares)} for {len(strength.values)} values; allowed: one for each"
    elif not math.isclose(sum(strength.shares), 1, abs_tol=1e-9):
        yield f"{key}.shares", f"add up to {sum(strength.shares):.12g}; allowed: 1 together"


Strengths = float | tuple[float, ...] | UniformStrength | LinearStrength | SharesStrength

# Tensor numbers of the split's streams; splits of the data use those from 0 on.
EPSILONS = 0x100
LIMITS = 0x101


def resolved(strength: Strengths, clients: int, seed: int, stream: int) -> list[float]:
    """The number of each client; the same seed gives the same numbers everywhere."""
    match strength:
        case UniformStrength(uniform=(low, high)):
            unit = (_words(seed, clients, stream) >> np.uint64(11)).astype(np.float64) * 2.0**-53
            return [min(max(round(low + (high - low) * u, 2), low), high) for u in unit.tolist()]
        case LinearStrength(linear=(first, last)):
            between = [first + (last - first) * k / (clients - 1) for k in range(1, clients - 1)]
            return [first, *between, last][:clients]
        case SharesStrength(values=values, shares=shares):
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

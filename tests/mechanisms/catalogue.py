"""Every mechanism once, built the same way, so that what must hold for all of them is written once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from tests.mechanisms.exact import probability

from sordino.errors import InvalidInput
from sordino.mechanisms import (
    BitRandomizer,
    BitString,
    Box,
    ClipOnly,
    Exponential,
    FiniteSet,
    Gaussian,
    IntegerRange,
    L1Ball,
    L2Ball,
    Laplace,
    Mechanism,
    NoPrivacy,
    Piecewise,
    PrivUnitG,
    RandomizedLabel,
    RandomizedSign,
    TwoPoint,
)
from sordino.randomness import Keystream

LABELS = 10


@dataclass(frozen=True)
class Entry:
    """How to build one mechanism for d values with a parameter for all clients, or one per client."""

    name: str
    make: Callable[[int, Any], Mechanism]
    parameter: float
    personal: tuple[float, ...] | None  #: parameters of five clients; None where it has none per client
    takes: str = "reals"  #: reals, bits or labels
    private: bool = True

    def mechanism(self, values: int = 13) -> Mechanism:
        """With one parameter for all."""
        return self.make(values, self.parameter)

    def inputs(self, clients: int, values: int, seed: int = 3) -> np.ndarray:
        """Valid inputs of the natural type; reals lie partly outside the domain."""
        rng = np.random.default_rng(seed)
        if self.takes == "bits":
            return rng.integers(0, 2, (clients, values), dtype=np.uint8)
        if self.takes == "labels":
            return rng.integers(0, LABELS, (clients, values))
        return rng.uniform(-1.5, 1.5, (clients, values)).astype(np.float32)


_BOX = Box(0.25, 1.0)

ENTRIES = [
    Entry("two-point", lambda d, e: TwoPoint(e, _BOX), 1.0, (0.5, 1.0, 4.0, 1.0, 22.0)),
    Entry("sign-gaussian", lambda d, s: RandomizedSign.gaussian(s, _BOX), 2.0, (0.5, 2.0, 8.0, 2.0, 0.1)),
    Entry("sign-response", lambda d, e: RandomizedSign.response(e, _BOX), 1.0, (0.5, 1.0, 4.0, 1.0, 22.0)),
    Entry("laplace-box", lambda d, e: Laplace(e, _BOX), 1.0, (0.5, 1.0, 4.0, 1.0, 20.0)),
    Entry("laplace-ball", lambda d, e: Laplace(e, L1Ball(1.0)), 1.0, (0.5, 1.0, 4.0, 1.0, 20.0)),
    Entry("laplace-records", lambda d, e: Laplace(e, _BOX, records=50), 1.0, (0.5, 1.0, 4.0, 1.0, 20.0)),
    Entry("gaussian-coarse", lambda d, s: Gaussian(s, _BOX), 0.7, (0.5, 0.7, 1.9, 0.7, 0.1)),
    Entry("gaussian-fine", lambda d, s: Gaussian(s, _BOX), 7.5, (2.5, 7.5, 100.0, 7.5, 3.0)),
    Entry("gaussian-ball", lambda d, s: Gaussian(s, L2Ball(1.0)), 1.0, (0.5, 1.0, 7.0, 1.0, 0.1)),
    Entry("exponential-small", lambda d, a: Exponential(a, IntegerRange(5.0, 1)), 0.1, (0.01, 0.1, 1.0, 0.1, 2.0)),
    Entry(
        "exponential-huge",
        lambda d, a: Exponential(a, IntegerRange(1.0, 10)),
        1e-10,
        (1e-16, 1e-10, 1e-8, 1e-10, 1e-3),
    ),
    Entry("bits-theorem2", lambda d, e: BitRandomizer.theorem2(e, BitString(d), a=2.0), 1.0, None, "bits"),
    Entry("bits-rappor", lambda d, e: BitRandomizer.rappor(e * d, BitString(d)), 1.0, None, "bits"),
    Entry("label", lambda d, e: RandomizedLabel(e, FiniteSet(LABELS)), 1.0, (0.5, 1.0, 4.0, 1.0, 20.0), "labels"),
    Entry("piecewise", lambda d, e: Piecewise(e, _BOX), 1.0, (0.5, 1.0, 4.0, 1.0, 20.0)),
    Entry("privunit", lambda d, e: PrivUnitG(e), 4.0, (0.5, 4.0, 1.0, 4.0, 20.0)),
    Entry("none", lambda d, _: NoPrivacy(), 0.0, None, private=False),
    Entry("clip-box", lambda d, _: ClipOnly(_BOX), 0.0, None, private=False),
    Entry("clip-l1", lambda d, _: ClipOnly(L1Ball(1.0)), 0.0, None, private=False),
    Entry("clip-l2", lambda d, _: ClipOnly(L2Ball(1.0)), 0.0, None, private=False),
]
PRIVATE = [e for e in ENTRIES if e.private]
PERSONAL = [e for e in ENTRIES if e.personal]
REALS = [e for e in ENTRIES if e.takes == "reals"]
WHOLE = [e for e in ENTRIES if e.takes != "reals"]


def law(mechanism: Mechanism, value: float) -> np.ndarray:
    """The probability of every output for one value, from the whole numbers that the sampler compares with."""
    given = np.full((1, 1), value, np.float32)
    match mechanism:
        case TwoPoint():
            z, _ = mechanism.domain.normalise(given, slice(0, 1))
            t = int(np.trunc(z * mechanism._scale[0])[0, 0])
            return np.array([2**31 - t, 2**31 + t]) / 2.0**32
        case RandomizedSign():
            mean = float(mechanism.mean(given)[0, 0])
            return np.array([1 - mean, 1 + mean]) / 2
        case Piecewise():
            piece = mechanism.pieces[0]
            weights = np.full(2**16, float(piece.base))
            left = 2**15 + int(mechanism.on_grid(given)[0, 0]) - piece.near // 2
            weights[left : left + piece.near] += float(piece.threshold) * piece.counts()
            return weights / 2.0**64
        case Laplace():
            grid = mechanism.grid(1)
            z, _ = mechanism.domain.normalise(given, slice(0, 1))
            v = int(np.rint(z[0, 0] * np.float32(grid.steps)))
            noise = np.arange(-grid.noise.reach, grid.noise.reach + 1)
            p = np.array([float(probability(grid.noise, int(k))) for k in noise])
            return np.bincount(np.clip(v + noise, -grid.limit, grid.limit) + grid.limit, p, 2 * grid.limit + 1)
        case Exponential():
            bound, v = mechanism.domain.bound, int(mechanism._coded(given)[0][0, 0])
            kept = np.array([float(probability(mechanism._noise[0], y - v)) for y in range(-bound, bound + 1)])
            return kept / kept.sum()
    raise TypeError(mechanism)


def each(entries: list[Entry]) -> pytest.MarkDecorator:
    """Parametrise a test over entries of the catalogue."""
    return pytest.mark.parametrize("entry", entries, ids=lambda e: e.name)


def stream(clients: int = 1, round: int = 0, seed: int = 7) -> Keystream:
    """The randomness of clients 0 .. clients-1."""
    return Keystream.simulation(seed, np.arange(clients), round)


def reports(mechanism: Mechanism, values: Any, randomness: Keystream, *, tensor: int = 0) -> list[bytes]:
    """The encoded outputs: equal bytes are equal outputs."""
    return mechanism.encode(mechanism.randomize(values, randomness, tensor=tensor).output)


def not_refused(call: Callable[[Any], Any], inputs: list[Any]) -> list[str]:
    """The inputs that a call does not answer with a clear error: accepted, or failed in some other way."""
    problems = []
    for given in inputs:
        try:
            call(given)
            problems.append(f"accepted {given!r}")
        except InvalidInput as error:
            if len(str(error)) < 15:
                problems.append(f"{given!r}: says too little: {error}")
        except Exception as error:
            problems.append(f"{given!r}: {type(error).__name__}: {error}")
    return problems

"""The interchangeable parts of a method: which mechanism on which domain, who is asked, how reports are weighed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.learning.models import Layout
from sordino.mechanisms import (
    Box,
    ClipOnly,
    Exponential,
    Gaussian,
    IntegerRange,
    L1Ball,
    L2Ball,
    Laplace,
    Mechanism,
    NoPrivacy,
    Piecewise,
    PrivUnitG,
    RandomizedSign,
    Sphere,
    TwoPoint,
)
from sordino.methods.upload import Upload
from sordino.randomness import Keystream, Purpose

if TYPE_CHECKING:
    from sordino import recipe as recipes

# --- range and mechanism ----------------------------------------------------------------------------------------------


def per_layer(name: str, given: float | Mapping[str, float], layout: Layout) -> list[float]:
    """One number for every layer, from one for all or from a table by layer."""
    if not isinstance(given, Mapping):
        return [float(given)] * len(layout.layers)
    names = [layer.name for layer in layout.layers]
    if set(given) != set(names):
        raise InvalidInput(
            f"method.range.{name} names the layers {', '.join(sorted(given))}; this model has {', '.join(names)}: "
            "give each of them a number, or one number for all"
        )
    return [float(given[layer]) for layer in names]


def one_number(name: str, given: float | Mapping[str, float], why: str) -> float:
    """A number that cannot differ between layers."""
    if isinstance(given, Mapping):
        raise InvalidInput(f"method.range.{name} must be one number: {why}")
    return float(given)


def box(range_: recipes.FixedRange, layout: Layout) -> Box:
    """The box of a fixed range: one interval for all values, or one per layer."""
    if not isinstance(range_.radius, Mapping) and not isinstance(range_.centre, Mapping):
        return Box(float(range_.centre), float(range_.radius))
    sizes = [layer.size for layer in layout.layers]
    return Box.per_tensor(sizes, per_layer("centre", range_.centre, layout), per_layer("radius", range_.radius, layout))


def ball_radius(range_: recipes.FixedRange) -> float:
    """The radius of a ball or sphere around zero."""
    if one_number("centre", range_.centre, "a ball or sphere lies around zero") != 0:
        raise InvalidInput("method.range.centre must be 0: a ball or sphere lies around zero")
    return one_number("radius", range_.radius, "the mechanism sees the whole vector")


@dataclass(frozen=True, eq=False)
class MechanismBuilder:
    """Epsilon -> the recipe's mechanism for vectors of `values` values laid out as `layout`."""

    spec: Any
    range: recipes.FixedRange
    layout: Layout
    values: int

    def __call__(self, epsilon: float | None) -> Mechanism:
        spec = self.spec
        match spec.name:
            case "none":
                return NoPrivacy()
            case "clip-only":
                return ClipOnly(self._domain(spec.norm))
            case "two-point":
                return TwoPoint(self._needed(epsilon), self._domain("box"))
            case "laplace":
                return Laplace(self._needed(epsilon), self._domain(spec.norm), records=spec.records)
            case "piecewise":
                return Piecewise(self._needed(epsilon), self._domain("box"))
            case "privunit":
                return PrivUnitG(self._needed(epsilon), Sphere(ball_radius(self.range)))
            case "exponential":
                clip = one_number("radius", self.range.radius, "updates are coded with one precision")
                return Exponential(self._needed(epsilon), IntegerRange(clip, spec.precision))
            case "gaussian":
                return _gaussian(spec, epsilon, self._domain(spec.norm), self.values)
            case "sign":
                return _sign(spec, epsilon, self._domain("box"))
        raise InvalidInput(f"unknown mechanism {spec.name!r}")

    def _domain(self, norm: str) -> Any:
        if norm == "box":
            return box(self.range, self.layout)
        return L1Ball(ball_radius(self.range)) if norm == "l1" else L2Ball(ball_radius(self.range))

    def _needed(self, epsilon: float | None) -> float:
        if epsilon is None:
            raise InvalidInput(
                f"the mechanism {self.spec.name} needs clients.epsilon: give a number, a list or a range"
            )
        return epsilon


def _gaussian(spec: recipes.GaussianSpec, epsilon: float | None, domain: Box | L2Ball, values: int) -> Mechanism:
    if spec.calibration == "sigma":
        assert spec.sigma is not None
        return Gaussian(spec.sigma, domain)
    assert epsilon is not None and spec.delta is not None
    if spec.calibration == "analytic":
        return Gaussian.analytic(epsilon, spec.delta, domain, values=values)
    assert isinstance(domain, Box) and spec.sampling is not None and spec.rounds is not None
    return Gaussian.eq4(
        epsilon, spec.delta, sampling=spec.sampling, rounds=spec.rounds, domain=domain, reading=spec.reading
    )


def _sign(spec: recipes.SignSpec, epsilon: float | None, domain: Box) -> Mechanism:
    if spec.calibration == "sigma":
        assert spec.sigma is not None
        return RandomizedSign.gaussian(spec.sigma, domain)
    assert epsilon is not None
    if spec.calibration == "response":
        return RandomizedSign.response(epsilon, domain)
    assert spec.delta is not None
    return RandomizedSign.eq7(epsilon, spec.delta, domain)


# --- selection --------------------------------------------------------------------------------------------------------


def select(selection: Any, clients: int, seed: int, round: int) -> list[int]:
    """Who is asked in this round, in ascending order: the server's choice, from its own stream of the seed."""
    if selection.kind == "all":
        return list(range(clients))
    words = _selection_words(clients, seed, round)
    if selection.kind == "probability":
        return np.flatnonzero(words >> np.uint64(32) < np.uint64(int(selection.p * 2**32))).tolist()
    k = selection.k if selection.kind == "count" else max(1, round_half_up(selection.p * clients))
    return sorted(np.argsort(words, kind="stable")[: min(k, clients)].tolist())


def round_half_up(value: float) -> int:
    """2.5 becomes 3: Python's own rounding would make it 2."""
    return math.floor(value + 0.5)


def _selection_words(clients: int, seed: int, round: int) -> NDArray[np.uint64]:
    stream = Keystream.simulation(seed, [0], round)
    words = stream.words(np.zeros(1, np.intp), Purpose.SELECT, 0, 0, 2 * clients)
    return np.ascontiguousarray(words[0]).view("<u8")


# --- aggregation ------------------------------------------------------------------------------------------------------


def class_weights(aggregation: Any, upload: Upload) -> Sequence[float]:
    """The weight of each class of clients: public numbers, so weighing is post-processing."""
    if aggregation.kind == "budget":
        return [1.0 if epsilon is None else epsilon for epsilon in upload.strengths]
    if aggregation.kind == "inverse-variance":
        variances = upload.variances()
        if not (variances > 0).all():
            raise InvalidInput("aggregation by inverse variance needs a mechanism that adds noise: take the mean")
        return [float(v) for v in variances.min() / variances]
    return [1.0] * len(upload.strengths)


__all__ = ["MechanismBuilder", "ball_radius", "box", "class_weights", "select"]

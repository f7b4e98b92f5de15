"""PrivUnitG (Asi, Feldman, Talwar 2022): a whole vector's direction under pure epsilon, close to the best possible.

The unit vector v becomes (a v + V)/m: a is a Gaussian of variance 1/d, at least gamma with probability p and below it
otherwise; V is a Gaussian vector of the same variance orthogonal to v. With q = Phi(gamma sqrt(d)),
eps = ln(p/(1-p)) + ln(q/(1-q)), and p is chosen for the least variance.

That is a proof for real numbers. The program computes with floats, so nothing is proven of it, and epsilon is claimed
only: it serves simulations. What is put out are whole numbers of public steps of 2^-12 standard deviations, to which
64-bit noise is rounded at the very end, so that no output tells by its last digits which values were zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import ArrayLike

from sordino.errors import InvalidInput
from sordino.mechanisms import cases, reach
from sordino.mechanisms.arrays import TILE, Float64s, Floats, Int64s, Vector, per_client, row_parameters
from sordino.mechanisms.cases import DEEP, WIDE, Case, Specimen
from sordino.mechanisms.domain import Sphere
from sordino.mechanisms.integers import MIN_EPSILON
from sordino.mechanisms.interface import Diagnostics, Mechanism, Randomized, unproven, values_affected
from sordino.mechanisms.laws import Caps
from sordino.mechanisms.likelihood import Ratio
from sordino.mechanisms.output import IntegerOutput, Output
from sordino.mechanisms.reach import Reach
from sordino.mechanisms.spec import MechanismSpec, Vectors
from sordino.mechanisms.whole_numbers import WholeNumbers
from sordino.parts.lazy import lazy_module
from sordino.parts.tables import tag
from sordino.privacy.guarantee import Adjacency, Claim, Guarantee
from sordino.randomness import Purpose, Randomness

if TYPE_CHECKING:
    from scipy import optimize, special
else:
    optimize, special = lazy_module("scipy.optimize"), lazy_module("scipy.special")

_MAX_EPSILON = 60.0
_WHY = (
    "PrivUnitG is proven for real numbers and computed with floats, so it is for simulations only; gaussian with norm "
    "l2 and laplace with norm l1 are proven as they run"
)
STEPS = 2**12  #: outputs are whole numbers of so many steps in a standard deviation of V
_REACH = 16.0  # standard deviations that no draw exceeds: 9 by a 53-bit uniform, a few more within the rarest cap
_ROUNDING = 1 / (12 * STEPS**2)  # the variance of rounding to a step, in units of that of V


@dataclass(frozen=True)
class Cap:
    """The chosen p, the quantile gamma of the cap in standard deviations, 1 - q = Phi(-gamma), and m sqrt(d)."""

    p: float
    gamma: float
    tail: float
    m: float

    @property
    def q(self) -> float:
        return 1 - self.tail


class PrivUnitG(WholeNumbers):
    """Vectors rescaled to a sphere; `epsilon` is for the whole vector: a scalar, or one per client."""

    name: ClassVar[str] = "privunit"
    limited_by = "the reach of the normal draws"

    class Spec(MechanismSpec):
        """PrivUnitG (Asi et al. 2022): the direction of a whole vector; claimed, for simulations."""

        name: str = tag("privunit", "the whole vector's direction; epsilon is per vector, claimed: for simulations")
        around_zero: ClassVar[bool] = True

        def build(self, epsilon: float | None, vectors: Vectors) -> Mechanism:
            return PrivUnitG(self.needed(epsilon), Sphere(vectors.ball_radius()))

    def __init__(self, epsilon: ArrayLike, domain: Sphere | None = None) -> None:
        self.epsilon = per_client("epsilon", epsilon, low=MIN_EPSILON * (1 - 1e-9), high=_MAX_EPSILON)
        self.domain: Sphere = domain or Sphere()
        self.parameter_sets = self.epsilon.size

    def _cap(self, client: int) -> Cap:
        return best_cap(float(self.epsilon[self.row_of(client)]))

    def randomize(self, values: ArrayLike, randomness: Randomness, *, tensor: int = 0) -> Randomized:
        w = self.values_of(values, randomness)
        clients, d = w.shape
        if d < 2:
            raise InvalidInput("PrivUnitG needs vectors of at least 2 values")
        out = self.empty(clients, d)
        for k in range(clients):
            out.array[k] = self._draw(w[k], self._cap(k), _uniforms(randomness, k, tensor, d))
        scale = np.sqrt([self.mean_square_error(d, k) / d for k in range(self.epsilon.size)])
        local = Diagnostics(np.zeros(clients), np.array(row_parameters(scale, clients)))
        return Randomized(out, local)

    @staticmethod
    def _draw(w: Floats, cap: Cap, uniforms: Iterator[tuple[int, Float64s]]) -> Float64s:
        """a v + V in whole steps: the first two uniforms choose a, the next d are V; zeros have no direction."""
        direction = _direction(w)
        _, (choose, level) = next(uniforms)
        out, along = np.empty(w.size, np.float64), 0.0
        for start, u in uniforms:
            out[start : start + u.size] = noise = special.ndtri(u)
            if direction is not None:
                along += float(noise @ (w[start : start + u.size].astype(np.float64) / direction[0])) / direction[1]
        wanted = -special.ndtri(cap.tail * level) if choose < cap.p else special.ndtri(cap.q * level)
        for start in range(0, w.size, TILE):
            piece = out[start : start + TILE]
            if direction is not None:
                part = w[start : start + TILE].astype(np.float64) / direction[0]
                piece += (float(wanted) - along) / direction[1] * part
            np.rint(np.multiply(piece, STEPS, out=piece), out=piece)
        return out

    def limits(self, values: int, rows: int) -> tuple[Int64s, Int64s]:
        """No coordinate can exceed the reach of its own noise plus that along the vector."""
        most = math.ceil(STEPS * _REACH * (2 + math.sqrt(values)))
        return np.full(rows, -most, np.int64), np.full(rows, most, np.int64)

    def step(self, client: int = 0) -> float:
        """What one step of a client's output stands for."""
        return self.domain.radius / self._cap(client).m / STEPS

    def estimate(self, output: Output) -> Floats:
        whole = self.whole(output)
        steps = np.array([self.step(k) for k in range(self.parameter_sets)])
        return np.asarray(whole * row_parameters(steps, len(whole))[:, None], np.float32)

    def bias(self, values: ArrayLike) -> Float64s:
        """None on the sphere; elsewhere the rescaling to it."""
        w = self.values_of(values).astype(np.float64)
        units = (_unit(row) for row in w)
        return np.array([-row if u is None else self.domain.radius * u - row for row, u in zip(w, units, strict=True)])

    def variance(self, values: ArrayLike) -> Float64s:
        """Per coordinate: 1/m^2 across the vector, the variance of a/m along it, and a twelfth of a square step."""
        w = self.values_of(values).astype(np.float64)
        rows = []
        for k, row in enumerate(w):
            cap, unit = self._cap(k), _unit(row)
            along = 0.0 if unit is None else _second_moment(cap) - cap.m**2
            square = np.zeros_like(row) if unit is None else unit**2
            rows.append(self.domain.radius**2 / cap.m**2 * ((1 - square) + square * along + _ROUNDING))
        return np.array(rows)

    def mean_square_error(self, d: int, client: int = 0) -> float:
        """E |estimate - v|^2 of one client."""
        cap = self._cap(client)
        return self.domain.radius**2 * ((d * (1 + _ROUNDING) - 1 + _second_moment(cap)) / cap.m**2 - 1)

    def guarantee(self, adjacency: Adjacency = Adjacency.CLIENT, *, values: int = 1, client: int = 0) -> Guarantee:
        values_affected(adjacency, values)
        self.row_of(client)
        return unproven(adjacency, _WHY)

    def claim(self, *, values: int = 1, client: int = 0) -> Claim | None:
        epsilon = float(self.epsilon[self.row_of(client)])
        return Claim(epsilon, 0.0, "eps for the whole vector (Asi, Feldman, Talwar 2022), in real arithmetic")

    def decode(self, reports: Sequence[bytes], values: int) -> IntegerOutput:
        output = super().decode(reports, values)
        if not (np.linalg.norm(output.array.astype(np.float64), axis=1) <= longest(values)).all():
            raise InvalidInput("a report is longer than any of its mechanism's outputs: it was damaged or forged")
        return output

    # --- audits

    def law(self, values: Vector) -> Caps:
        cap, axis = self._cap(0), values / np.linalg.norm(values.astype(np.float64))
        limit = int(self.limits(values.size, 1)[1][0])
        return Caps(np.zeros(values.size, np.int64), limit, float(STEPS), axis, cap.p, cap.gamma)

    def likelihood_ratio(self, first: Vector, second: Vector) -> Ratio:
        """Whether an output lies in the cap around the one direction or around the other."""
        cap = self._cap(0)
        directions = np.stack([v.astype(np.float64) / np.linalg.norm(v.astype(np.float64)) for v in (first, second)])

        def score(output: Output) -> Float64s:
            along = self.estimate(output).astype(np.float64) @ directions.T * (cap.m / self.domain.radius)
            inside = along >= cap.gamma
            return np.asarray(inside[:, :1].astype(np.float64) - inside[:, 1:])

        return score

    def _extent(self, values: int, limit: float | None) -> Reach:
        steps = longest(values)
        limits, far = self.limits(values, 1), steps * np.eye(1, values, dtype=np.int64)
        ends = IntegerOutput(-far, *limits), IntegerOutput(far, *limits)
        return reach.within_ball(self, steps * self.step(), *ends, self.limited_by)

    @classmethod
    def audit_cases(cls, epsilon: float) -> Iterator[Case]:
        mechanism, north = cls(epsilon), np.eye(8)[0]
        unit, attack = "upload of 8 values", "opposite directions"
        told = cases.promised(cls.name, unit, mechanism.guarantee(values=8), attack, mechanism.claim(values=8))
        yield Case.of(told, cases.rows(mechanism, north, -north, north), 40_000)

    @classmethod
    def specimens(cls, epsilon: float) -> Iterator[Specimen]:
        """Nothing is proven of it: there is a law to check, and no guarantee."""
        for shape in (DEEP, WIDE):
            yield Specimen(f"privunit, {shape[1]:,} values", cls(epsilon), shape)


def longest(values: int) -> int:
    """The L2 norm, in steps, that no output exceeds: V of d normal draws, none beyond 9, and the part along the vector.

    Rounding adds half a step to every value at most, of which no draw comes near 9.
    """
    return math.ceil(STEPS * (9 * math.sqrt(values) + _REACH))


def _uniforms(randomness: Randomness, row: int, tensor: int, d: int) -> Iterator[tuple[int, Float64s]]:
    """First the two that choose a, then those of V with the position of each piece; 53 bits of every lane of 64."""
    for start in range(-2, d, TILE):
        words = randomness.words(np.array([row]), Purpose.NOISE, tensor, 2 * (start + 2), 2 * min(TILE, d - start))[0]
        u = (np.ascontiguousarray(words).view(np.uint64) >> np.uint64(11)).astype(np.float64) * 2.0**-53
        u = np.clip(u, 2.0**-60, 1 - 2.0**-53)
        if start == -2:
            yield -2, u[:2]
            yield 0, u[2:]
        else:
            yield start, u


def _direction(w: Floats) -> tuple[float, float] | None:
    """The two numbers (largest value, norm over it) that make w a unit vector; None for zeros."""
    largest = float(max(abs(w.max()), abs(w.min())))
    if largest == 0:
        return None
    pieces = (w[start : start + TILE].astype(np.float64) / largest for start in range(0, w.size, TILE))
    return largest, math.sqrt(math.fsum(float(np.square(piece).sum()) for piece in pieces))


def _unit(w: Float64s) -> Float64s | None:
    direction = _direction(w)
    return None if direction is None else w / direction[0] / direction[1]


def _density(x: float) -> float:
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def _cap(epsilon: float, share: float) -> Cap:
    """Spend `share` of epsilon on p, the rest on q."""
    p, tail = float(special.expit(share * epsilon)), float(special.expit(-(1 - share) * epsilon))
    gamma = float(-special.ndtri(tail))
    return Cap(p, gamma, tail, _density(gamma) * (p / tail - float(special.expit(-share * epsilon)) / (1 - tail)))


def _second_moment(cap: Cap) -> float:
    """E[a^2] d: of a Gaussian cut at gamma."""
    ends = cap.gamma * _density(cap.gamma)
    return cap.p * (1 + ends / cap.tail) + (1 - cap.p) * (1 - ends / cap.q)


@lru_cache(maxsize=1024)
def best_cap(epsilon: float) -> Cap:
    """The split of epsilon between p and q with the largest m, which is the least variance in high dimension."""
    best = optimize.minimize_scalar(
        lambda s: -_cap(epsilon, s).m, bounds=(1e-6, 1 - 1e-6), method="bounded", options={"xatol": 1e-9}
    )
    return _cap(epsilon, float(best.x))

"""Laplace noise (WebFed, Lian et al. 2022: w + Lap(Delta s / eps)), drawn as two-sided geometric noise on a grid.

The paper never defines Delta s and never clips. Three readings:

* `Laplace(eps, Box(0, C))`: each value clipped to [-C, C], Delta s = 2C. Exactly eps per value, d * eps per upload.
* `Laplace(eps, L1Ball(C))`: the vector clipped to L1 norm C, Delta s = 2C. Exactly eps for the whole upload.
* `Laplace(eps, Box(0, C), records=m)`: Delta s = 2C/m (Wei et al. 2020, which the paper cites), the only reading that
  fits the paper's accuracy. Its eps is claimed only: one record can move a trained weight by 2C, so what is proven is
  m * eps per value, or what the tables can lose at all where that is less: no output is rarer than about e^-45. For
  eps = 3 and m = 300 that is 45.8, not 900.

Outputs are clamped where the noise still reaches them from every input, so no output excludes any input.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from annotated_types import Ge, Le
from numpy.typing import ArrayLike
from pydantic import Field

from sordino.errors import InvalidInput
from sordino.mechanisms import cases, likelihood
from sordino.mechanisms.additive import AdditiveNoise, NoiseGrid
from sordino.mechanisms.arrays import Float64s, Vector, per_client
from sordino.mechanisms.cases import Case, Specimen
from sordino.mechanisms.domain import Box, L1Ball
from sordino.mechanisms.integers import MAX_EPSILON, MIN_EPSILON, cap_note
from sordino.mechanisms.interface import Mechanism, values_affected
from sordino.mechanisms.likelihood import Ratio
from sordino.mechanisms.noise import GeometricNoise, geometric_noise
from sordino.mechanisms.spec import MechanismSpec, Vectors
from sordino.mechanisms.tuning import Ranges, Tuning
from sordino.parts.tables import Found, reads, tag
from sordino.privacy.guarantee import SERVER, Adjacency, Claim, Guarantee, Pure

_MAX_STEPS = 2**22  # beyond it float32 inputs would not reach every grid point


class Laplace(AdditiveNoise):
    """Laplace noise on values in a box, or on vectors in an L1 ball (WebFed).

    `epsilon` is per value in a box and per vector in a ball: a scalar, or one per client. With `records`, the noise is
    divided by that number, as the paper's reference does; the result is claimed, not proven.
    """

    name: ClassVar[str] = "laplace"
    in_pages: ClassVar[bool] = True

    class Spec(MechanismSpec):
        """Laplace noise (WebFed)."""

        noise: ClassVar[str] = "laplace"
        name: str = tag("laplace", "Laplace noise; epsilon is per value, or per vector with l1")
        norm: Literal["box", "l1"] = Field(default="box", description="each value, or the vector's L1 norm")
        records: Annotated[int, Ge(1), Le(10**9)] = Field(
            default=1,
            description="above 1: the reading that divides the noise by so many records; its epsilon is claimed only",
        )

        def build(self, epsilon: float | None, vectors: Vectors) -> Mechanism:
            return Laplace(self.needed(epsilon), vectors.within(self.norm), records=self.records)

        @reads(".", "method.name")
        def records_of_single_values(self, recipe: Any) -> Found:
            """Noise is divided by records only where it is added to each value by itself."""
            if self.records > 1 and self.norm != "box":
                yield ".records", f"got {self.records}; allowed with norm = {self.norm}: 1"

    def __init__(self, epsilon: ArrayLike, domain: Box | L1Ball | None = None, *, records: int = 1) -> None:
        self.domain: Box | L1Ball = domain or Box()
        if isinstance(records, bool) or not isinstance(records, int) or not 1 <= records <= 10**9:
            raise InvalidInput(f"records must be a whole number from 1 to 1e9, got {records!r}")
        if records > 1 and isinstance(self.domain, L1Ball):
            raise InvalidInput("the reading with `records` clips each value: give it a Box, not an L1Ball")
        self.epsilon = per_client("epsilon", epsilon, low=MIN_EPSILON * (1 - 1e-9), high=1e6)
        self.records, self.parameter_sets = records, self.epsilon.size
        self._strengths = self.epsilon if records > 1 else np.minimum(self.epsilon, MAX_EPSILON)
        if self._strengths.max() * records > _MAX_STEPS / 8:
            raise InvalidInput(
                f"epsilon * records is {self._strengths.max() * records:g}: noise that small is lost in the grid; "
                f"it may be at most {_MAX_STEPS / 8:g}. Use ClipOnly for no noise at all"
            )

    def grid(self, values: int, client: int = 0) -> NoiseGrid:
        epsilon = float(self._strengths[self.row_of(client)])
        if isinstance(self.domain, L1Ball):
            return _calibrated(epsilon, 1 << max(8, (64 * values - 1).bit_length()), values)
        effective = epsilon * self.records
        return _calibrated(effective, 1 << max(8, math.ceil(math.log2(8 * effective))), 1)

    def _noise_moments(self, grid: NoiseGrid, v: Float64s) -> tuple[Float64s, Float64s]:
        """Mean and variance of v + noise clamped to [-limit, limit], less v, in closed form."""
        assert isinstance(grid.noise, GeometricNoise)
        rate = float(grid.noise.rate)
        lam, one_less = math.exp(-rate), -math.expm1(-rate)
        above = lam ** (grid.limit - v) / (1 + lam)
        below = lam ** (grid.limit + v) / (1 + lam)
        mean = (below - above) * lam / one_less
        beyond = 2 * grid.limit * lam / one_less + lam * (1 + lam) / one_less**2
        square = v**2 + 2 * lam / one_less**2 - (above + below) * beyond
        return mean, square - (v + mean) ** 2

    def guarantee(self, adjacency: Adjacency = Adjacency.CLIENT, *, values: int = 1, client: int = 0) -> Guarantee:
        count = values_affected(adjacency, values)
        grid = self.grid(values, client)
        assert isinstance(grid.noise, GeometricNoise)
        asked = float(self.epsilon[self.row_of(client)])
        if isinstance(self.domain, L1Ball):
            loss = float(grid.noise.rate * 2 * grid.steps) + values * grid.noise.slack
            basis = f"L1 distance of integer vectors, table enumerated{cap_note(asked)}"
            return Guarantee(SERVER, adjacency, Pure(loss), basis)
        note = cap_note(asked) if self.records == 1 else ""
        basis = f"{count} values in a box, table enumerated{note}"
        return Guarantee(SERVER, adjacency, Pure(grid.noise.loss(2 * grid.steps), count), basis)

    def claim(self, *, values: int = 1, client: int = 0) -> Claim | None:
        epsilon = float(self.epsilon[self.row_of(client)])
        reading = "2C/m (a reading after Wei et al. 2020)" if self.records > 1 else "2C (a reading)"
        return Claim(epsilon, 0.0, f"Lap(Delta s / eps) per weight, Delta s = {reading} (WebFed, Algorithm 1)")

    def page_settings(self, values: int) -> dict[str, object]:
        grid = self.grid(values)
        noise = grid.noise
        assert isinstance(noise, GeometricNoise)
        digits = [
            {"shift": d.shift, "size": len(d.table.weights), "weights": d.table.packed(), "sha256": d.table.sha256()}
            for d in noise.digits
        ]
        rate = [str(noise.rate.numerator), str(noise.rate.denominator)]
        return {
            "name": self.name, "steps": grid.steps, "rate": rate, "negative": noise.negative, "digits": digits,
            "limit": grid.limit,
        }  # fmt: skip

    # --- planning

    @classmethod
    def tunings(cls, ranges: Ranges) -> Sequence[Tuning]:
        box, ball, between = Box(0.0, ranges.each), L1Ball(ranges.whole), (MIN_EPSILON, MAX_EPSILON)
        return (
            Tuning("laplace (box)", "epsilon per value", lambda e: cls(e, box), between),
            Tuning("laplace (l1)", "epsilon per upload", lambda e: cls(e, ball), between, norm="l1"),
        )

    # --- audits

    def likelihood_ratio(self, first: Vector, second: Vector) -> Ratio:
        return likelihood.of_distances(self, self._clipped(first), self._clipped(second), self.domain.radius)

    @classmethod
    def audit_cases(cls, epsilon: float) -> Iterator[Case]:
        yield cases.one_value(cls(epsilon, Box()))
        ball, corner = cls(epsilon, L1Ball(1.0)), np.array([1.0, 0.0, 0.0, 0.0])
        unit, attack = "upload of 4 values", "two corners of the L1 ball"
        told = cases.promised("laplace (L1 ball)", unit, ball.guarantee(values=4), attack, ball.claim())
        yield Case.of(told, cases.rows(ball, corner, -corner, corner), 200_000)
        mean = cls(epsilon, Box(), records=100)
        attack = "the two ends: a learner that is a median of 100 records moves so far by one"
        guarantee, unit = mean.guarantee(Adjacency.RECORD_REPLACE), "one value, 100 records"
        told = cases.promised("laplace (2C/m)", unit, guarantee, attack, mean.claim())
        yield Case.of(told, cases.columns(mean, 1.0, -1.0))

    @classmethod
    def specimens(cls, epsilon: float) -> Iterator[Specimen]:
        yield from cases.deep_and_wide(cls(epsilon, Box()))
        yield cases.specimen("laplace (L1 ball)", cls(epsilon, L1Ball(1.0)))
        yield cases.specimen("laplace (2C/m)", cls(epsilon, Box(), records=100))


@lru_cache(maxsize=512)
def _calibrated(epsilon: float, steps: int, values: int) -> NoiseGrid:
    """Noise that loses at most epsilon over 2 * steps (in a ball, over `values` coordinates), by enumeration."""
    target, ball = Fraction(epsilon), values > 1
    # How far the tables reach, in units of the noise's scale: the further, the smaller their last weights, and the more
    # these stray; in a ball every value strays.
    room = 34.6 - math.log(values) if ball else 31.0
    tail = 20.0 if epsilon > 22.5 else max(6.0 if ball else 9.0, min(20.0, room - epsilon))
    for attempt in range(40):
        rate = target / (2 * steps)
        reach = 2 * steps + math.ceil(tail / rate) + 1
        noise = geometric_noise(rate, reach, lump=True, top_size=2**9 if ball else 2**14)
        loss = noise.loss(2 * steps) + (values - 1) * noise.slack
        if loss <= epsilon:
            top = noise.digits[0]
            return NoiseGrid(steps, noise, ((len(top.table.weights) - 1) << top.shift) - steps)
        target -= Fraction(loss - epsilon) * (
            1 + attempt
        )  # the slack of another rate is another: overshoot more and more
        if target <= 0:
            break
    raise InvalidInput(
        f"epsilon {epsilon:g} over {values} values is finer than the noise tables resolve: "
        "spread the budget over fewer values or rounds"
    )

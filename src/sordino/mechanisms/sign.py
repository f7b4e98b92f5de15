"""The randomised sign of personalised LDP-FL (Wu et al. 2023, Eqs. 6 and 7; Jin et al. 2020): each value one vote.

    ldpsign(p) = +1 with probability Phi(p / sigma), else -1,      sigma = Delta_2 / eps * sqrt(2 ln(1.25 / delta)).

The paper derives (eps, delta) from the Gaussian mechanism, whose formula for sigma fails from eps = 1 up. Yet the vote
is a single bit and p is clipped to [-c, c], so the guarantee is pure, and stronger than claimed:
eps = ln(Phi(c/sigma) / Phi(-c/sigma)) per value. `RandomizedSign.response` spends a given eps per value outright.

Thresholds are whole numbers out of 2^32 in a table over 4,097 bins of |p|/c, each rounded towards one half.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from sordino.errors import InvalidInput
from sordino.mechanisms import cases, tuning
from sordino.mechanisms.cases import DELTA, Case, Specimen
from sordino.mechanisms.domain import Box
from sordino.mechanisms.integers import HALF, MIN_EPSILON, bit_threshold
from sordino.mechanisms.interface import (
    Diagnostics,
    Float64s,
    Floats,
    Randomized,
    as_matrix,
    as_shaped,
    check_cohort,
    check_delta,
    client_index,
    per_client,
    row_parameters,
    store_tile,
    tile_of,
    tiles,
)
from sordino.mechanisms.noise import normal_thresholds
from sordino.mechanisms.one_bit import OneBit
from sordino.mechanisms.output import BitOutput, Output
from sordino.mechanisms.spec import MechanismSpec, Vectors
from sordino.mechanisms.tuning import Ranges, Tuning
from sordino.parts.tables import Found, Inside, Positive, missing_or_superfluous, reads, tag
from sordino.privacy.guarantee import Claim
from sordino.randomness import Purpose, Randomness

BINS = 4096
_SCALE = np.float32(BINS + 0.5)


class RandomizedSign(OneBit):
    """One vote, +1 or -1, per value (personalised LDP-FL). Build it with `gaussian`, `eq7` or `response`."""

    name: ClassVar[str] = "sign"
    in_pages: ClassVar[bool] = True

    class Spec(MechanismSpec):
        """One randomised vote per value (personalised LDP-FL)."""

        noise: ClassVar[str] = "votes"
        name: str = tag("sign", "one vote per value, +1 or -1")
        calibration: Literal["response", "eq7", "sigma"] = Field(
            default="response",
            description="response: randomised response at epsilon per value; eq7: personalised LDP-FL, claimed; sigma: "
            "as given",
        )
        delta: Inside | None = Field(default=None, description="delta of the calibration (eq7)")
        sigma: Positive | None = Field(default=None, description="standard deviation of the noise (sigma)")

        @property
        def takes_epsilon(self) -> bool:
            return self.calibration != "sigma"

        @property
        def one_radius(self) -> bool:
            return self.calibration != "response"

        def build(self, epsilon: float | None, vectors: Vectors) -> RandomizedSign:
            domain = vectors.box()
            if self.calibration == "sigma":
                assert self.sigma is not None
                return RandomizedSign.gaussian(self.sigma, domain)
            if self.calibration == "response":
                return RandomizedSign.response(self.needed(epsilon), domain)
            assert self.delta is not None
            return RandomizedSign.eq7(self.needed(epsilon), self.delta, domain)

        @reads(".", "method.name")
        def a_calibration_has_its_own_fields(self, recipe: Any) -> Found:
            """Each calibration has the numbers that it needs, and no others."""
            needs = {"response": (), "eq7": ("delta",), "sigma": ("sigma",)}
            whom = f"{self.label} with calibration = {self.calibration}"
            yield from missing_or_superfluous(self, needs[self.calibration], (), ("delta", "sigma"), whom)

    def __init__(self, thresholds: Sequence[Sequence[int]], domain: Box, claims: tuple[Claim, ...] = ()) -> None:
        upper = np.array(thresholds, dtype=np.int64)
        if upper.ndim != 2 or upper.shape[1] != BINS + 1 or (np.diff(upper) < 0).any() or (upper < 0).any():
            raise InvalidInput(f"thresholds must be {BINS + 1} rising whole numbers >= 0 per client")
        self.domain: Box = domain
        upper[:, 0] = 0  # a value of zero is a fair coin
        self.t_min = HALF - upper[:, -1]
        if (self.t_min < 1).any():
            raise InvalidInput("thresholds must stay below 2^31")
        self._tables = np.concatenate([-upper[:, :0:-1], upper], axis=1).astype(np.int32)
        self._claims = claims

    @classmethod
    def gaussian(cls, sigma: ArrayLike, domain: Box | None = None, *, claims: tuple[Claim, ...] = ()) -> RandomizedSign:
        """Pr[+1] = Phi(p / sigma) for p clipped to the domain; sigma per client (Eq. 6)."""
        domain = domain or Box()
        if np.unique(domain.radius).size > 1:
            raise InvalidInput("one sigma needs one radius for all values: use one mechanism per tensor")
        ratios = float(domain.radius[0]) / per_client("sigma", sigma, low=1e-37, high=1e37)
        if not (ratios >= 1e-7).all() or not (ratios <= 40).all():
            raise InvalidInput(
                f"sigma must lie between 1/40 and 1e7 times the clipping threshold, got {1 / ratios.max():g} to "
                f"{1 / ratios.min():g} times"
            )
        return cls([normal_thresholds(float(r), BINS) for r in ratios], domain, claims)

    @classmethod
    def eq7(cls, epsilon: ArrayLike, delta: float, domain: Box | None = None) -> RandomizedSign:
        """sigma by Eq. 7 with Delta_2 = 2c, the distance of two clipped values; (eps, delta) is the paper's claim."""
        domain = domain or Box()
        delta = check_delta(delta)
        eps = per_client("epsilon", epsilon, low=MIN_EPSILON * (1 - 1e-9), high=1e6)
        sigma = 2 * float(domain.radius[0]) / eps * math.sqrt(2 * math.log(1.25 / delta))
        formula = "(eps, delta) by the Gaussian mechanism, Eq. 7 (personalised LDP-FL)"
        return cls.gaussian(
            sigma, domain, claims=tuple(Claim(float(e), delta, formula, covers="schedule") for e in eps)
        )

    @classmethod
    def response(cls, epsilon: ArrayLike, domain: Box | None = None) -> RandomizedSign:
        """Randomised response on the sign alone: eps per value, with the least noise that allows."""
        eps = per_client("epsilon", epsilon, low=MIN_EPSILON * (1 - 1e-9), high=np.inf)
        reach = [HALF - bit_threshold(float(e)) for e in eps]
        return cls([[0] + [a] * BINS for a in reach], domain or Box())

    @property
    def clients(self) -> int | None:
        return None if len(self._tables) == 1 else len(self._tables)

    @property
    def thresholds(self) -> NDArray[np.int32]:
        """T[4096] .. T[8192] of each client (docs/bits.md); those below are their negatives."""
        return self._tables[:, BINS:]

    def _thresholds(
        self, w: Floats, cols: slice, table: NDArray[np.int32]
    ) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
        """t for every value, and how many of each row lay outside the box."""
        z, outside = self.domain.normalise(w, cols)
        bins = np.multiply(z, _SCALE, out=z).astype(np.int32)
        return table.take(np.add(bins, BINS, out=bins), mode="clip"), outside

    def randomize(self, values: ArrayLike, randomness: Randomness, *, tensor: int = 0) -> Randomized:
        w = as_shaped(values)
        clients, d = w.shape
        self.domain.check_values(d)
        check_cohort(self, clients, randomness)
        which = row_parameters(np.arange(len(self._tables)), clients)
        packed = np.empty((clients, -(-d // 8)), np.uint8)
        clipped = np.zeros(clients)
        for rows, cols in tiles(which, d):
            t, outside = self._thresholds(tile_of(w, rows, cols), cols, self._tables[which[rows[0]]])
            clipped[rows] += outside
            u = randomness.words(rows, Purpose.NOISE, tensor, cols.start, t.shape[1]).view(np.int32)
            store_tile(packed, rows, slice(cols.start // 8, -(-cols.stop // 8)), BitOutput.pack(u < t).packed)
        return Randomized(BitOutput(packed, d), Diagnostics(clipped / d, np.ones(clients)))

    def estimate(self, output: Output) -> Floats:
        """The votes, +1 or -1: an estimate of 2 Phi(p/sigma) - 1, not of p."""
        return self.votes(output)

    def mean(self, values: ArrayLike) -> Float64s:
        """E[vote], exactly."""
        w = as_matrix(values)
        check_cohort(self, len(w))
        self.domain.check_values(w.shape[1])
        which = row_parameters(np.arange(len(self._tables)), len(w))
        cols = slice(0, w.shape[1])
        rows = [self._thresholds(w[k : k + 1], cols, self._tables[i])[0] / HALF for k, i in enumerate(which)]
        return np.concatenate(rows).astype(np.float64)

    def bias(self, values: ArrayLike) -> Float64s:
        return self.mean(values) - as_matrix(values)

    def variance(self, values: ArrayLike) -> Float64s:
        return 1 - self.mean(values) ** 2

    def claim(self, *, values: int = 1, client: int = 0) -> Claim | None:
        return self._claims[client_index(len(self._claims), client)] if self._claims else None

    def page_settings(self, values: int) -> dict[str, Any]:
        return {"name": self.name, "t_min": int(self.t_min[0]), "thresholds": self.thresholds[0].tolist()}

    # --- planning

    @classmethod
    def tunings(cls, ranges: Ranges) -> Sequence[Tuning]:
        return tuning.by_value(cls.name, cls.response, ranges)

    @classmethod
    def sigma_range(cls, radius: float) -> tuple[float, float]:
        return radius / 39.9, 9.9e6 * radius

    # --- audits

    def one_probability(self, values: Floats) -> Float64s:
        return np.asarray((1 + self.mean(values[None])[0]) / 2)

    @classmethod
    def audit_cases(cls, epsilon: float) -> Iterator[Case]:
        yield cases.one_value(cls.eq7(5 * epsilon, DELTA, Box()), name="sign (Eq. 7)")
        yield cases.one_value(cls.response(epsilon, Box()), name="sign (response)")

    @classmethod
    def specimens(cls, epsilon: float) -> Iterator[Specimen]:
        yield from cases.deep_and_wide(cls.eq7(5 * epsilon, DELTA, Box()), name="sign (Eq. 7)")
        yield cases.specimen("sign (response)", cls.response(epsilon, Box()))

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
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from sordino.errors import InvalidInput
from sordino.mechanisms import cases, tuning
from sordino.mechanisms.arrays import Float32s, per_client
from sordino.mechanisms.cases import DELTA, Case, Specimen
from sordino.mechanisms.domain import Box
from sordino.mechanisms.integers import HALF, MIN_EPSILON, bit_threshold
from sordino.mechanisms.interface import check_delta
from sordino.mechanisms.noise import normal_thresholds
from sordino.mechanisms.one_bit import OneBit
from sordino.mechanisms.spec import MechanismSpec, Vectors
from sordino.mechanisms.tuning import Ranges, Tuning
from sordino.parts.tables import Inside, Positive, tag
from sordino.privacy.guarantee import Claim
from sordino.randomness import Rows

BINS = 4096
_SCALE = np.float32(BINS + 0.5)


class RandomizedSign(OneBit):
    """One vote, +1 or -1, per value (personalised LDP-FL). Build it with `gaussian`, `eq7` or `response`.

    Its estimate is the vote: of 2 Phi(p/sigma) - 1, not of p.
    """

    name: ClassVar[str] = "sign"
    in_pages: ClassVar[bool] = True

    class Spec(MechanismSpec):
        """One randomised vote per value (personalised LDP-FL)."""

        noise: ClassVar[str] = "votes"
        calibrations: ClassVar = {"response": (), "eq7": ("delta",), "sigma": ("sigma",)}
        name: str = tag("sign", "one vote per value, +1 or -1")
        calibration: Literal["response", "eq7", "sigma"] = Field(
            default="response",
            description="response: randomised response at epsilon per value; eq7: personalised LDP-FL, claimed; sigma: "
            "as given",
        )
        delta: Inside | None = Field(default=None, description="delta of the calibration (eq7)")
        sigma: Positive | None = Field(default=None, description="standard deviation of the noise (sigma)")

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
        self.claims, self.parameter_sets = claims, len(upper)

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
    def thresholds(self) -> NDArray[np.int32]:
        """T[4096] .. T[8192] of each client (docs/bits.md); those below are their negatives."""
        return self._tables[:, BINS:]

    def _alike(self, rows: int) -> NDArray[np.intp]:
        return self.row_sets(rows)

    def _thresholds(self, z: Float32s, rows: Rows, out: NDArray[np.int32]) -> None:
        table = self._tables[self.row_of(int(rows[0]))]
        bins = np.multiply(z, _SCALE, out=z).astype(np.int32)
        np.take(table, np.add(bins, BINS, out=bins), out=out, mode="clip")

    def page_settings(self, values: int) -> dict[str, object]:
        return {"name": self.name, "t_min": int(self.t_min[0]), "thresholds": self.thresholds[0].tolist()}

    # --- planning

    @classmethod
    def tunings(cls, ranges: Ranges) -> Sequence[Tuning]:
        return tuning.by_value(cls.name, cls.response, ranges)

    @classmethod
    def sigma_range(cls, radius: float) -> tuple[float, float]:
        return radius / 39.9, 9.9e6 * radius

    # --- audits

    @classmethod
    def audit_cases(cls, epsilon: float) -> Iterator[Case]:
        yield cases.one_value(cls.eq7(5 * epsilon, DELTA, Box()), name="sign (Eq. 7)")
        yield cases.one_value(cls.response(epsilon, Box()), name="sign (response)")

    @classmethod
    def specimens(cls, epsilon: float) -> Iterator[Specimen]:
        yield from cases.deep_and_wide(cls.eq7(5 * epsilon, DELTA, Box()), name="sign (Eq. 7)")
        yield cases.specimen("sign (response)", cls.response(epsilon, Box()))

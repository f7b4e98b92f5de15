"""Gaussian noise on a grid: the perturbation of personalised LDP-FL (Wu et al. 2023, Eq. 4), and its honest version.

`Gaussian.eq4` takes the paper's sigma: a noise multiplier for sensitivity 1 in which the clipping threshold c is
missing, derived for sampled gradients but added to a trained model. Its (eps, delta) is therefore a claim; what is
proven follows from sigma and the domain: mu = sensitivity/sigma in Gaussian differential privacy (Dong, Roth, Su 2022),
with sensitivity 2c for a value in a box, 2c sqrt(d) for an upload, and 2C for a vector in an L2 ball.
`Gaussian.analytic` calibrates sigma so that the proven (eps, delta) is the one asked for (Balle & Wang 2018).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from sordino.errors import InvalidInput
from sordino.mechanisms import cases, likelihood
from sordino.mechanisms.additive import AdditiveNoise, NoiseGrid
from sordino.mechanisms.arrays import Float64s, Vector, per_client
from sordino.mechanisms.cases import DEEP, DELTA, ENDS, Case, Specimen
from sordino.mechanisms.domain import Box, L2Ball
from sordino.mechanisms.integers import MIN_EPSILON
from sordino.mechanisms.interface import Mechanism, check_delta, values_affected
from sordino.mechanisms.likelihood import Ratio
from sordino.mechanisms.noise import COARSE_SIGMA, FINE_SIGMA, LEVEL_FACTOR, GaussianNoise, gaussian_noise
from sordino.mechanisms.spec import MechanismSpec, Vectors
from sordino.mechanisms.tuning import Ranges, Tuning
from sordino.parts.tables import Count, Found, Inside, Positive, reads, tag
from sordino.privacy import accountant, guarantee
from sordino.privacy.guarantee import SERVER, Adjacency, Claim, Guarantee, check_count

_MIN_SIGMA = 32.0  # in grid steps: below it the rounding of inputs would show


class Gaussian(AdditiveNoise):
    """Gaussian noise of standard deviation `sigma` (per client) on values in a box or on vectors in an L2 ball."""

    name: ClassVar[str] = "gaussian"
    in_pages: ClassVar[bool] = True

    class Spec(MechanismSpec):
        """Gaussian noise, calibrated honestly, by a sigma of one's own, or by a paper's formula."""

        noise: ClassVar[str] = "gaussian"
        calibrations: ClassVar = {"analytic": ("delta",), "sigma": ("sigma",), "eq4": ("delta", "sampling", "rounds")}
        name: str = tag("gaussian", "Gaussian noise")
        norm: Literal["box", "l2"] = Field(default="box", description="each value, or the vector's L2 norm")
        calibration: Literal["analytic", "sigma", "eq4"] = Field(
            default="analytic",
            description="analytic: one upload is proven (epsilon, delta); sigma: as given; eq4: by personalised "
            "LDP-FL, claimed",
        )
        delta: Inside | None = Field(default=None, description="delta of the calibration (analytic, eq4)")
        sigma: Positive | None = Field(default=None, description="standard deviation of the noise (sigma)")
        sampling: Inside | None = Field(default=None, description="sampling probability q of Eq. 4 (eq4)")
        rounds: Count | None = Field(default=None, description="number of rounds R of Eq. 4 (eq4)")
        reading: Literal["derived", "literal"] = Field(
            default="derived", description="the root over the whole product, or over its first factor as printed (eq4)"
        )
        one_radius: ClassVar[bool] = True

        def build(self, epsilon: float | None, vectors: Vectors) -> Mechanism:
            domain = vectors.within(self.norm)
            if self.calibration == "sigma":
                assert self.sigma is not None
                return Gaussian(self.sigma, domain)
            assert self.delta is not None
            if self.calibration == "analytic":
                return Gaussian.analytic(self.needed(epsilon), self.delta, domain, values=vectors.values)
            assert isinstance(domain, Box) and self.sampling is not None and self.rounds is not None
            return Gaussian.eq4(
                self.needed(epsilon),
                self.delta,
                sampling=self.sampling,
                rounds=self.rounds,
                domain=domain,
                reading=self.reading,
            )

        @reads(".", "method.name")
        def what_only_eq4_takes(self, recipe: Any) -> Found:
            """Eq. 4 speaks of single values, and alone has two readings."""
            if self.calibration == "eq4" and self.norm != "box":
                yield ".norm", f"got {self.norm}; allowed with calibration = eq4: box"
            if self.calibration != "eq4" and self.reading != "derived":
                whom = f"{self.label} with calibration = {self.calibration}"
                yield ".reading", f"got {self.reading}; {whom} takes none: leave it out"

        @reads("method", "rounds.count")
        def eq4_speaks_of_this_recipe(self, recipe: Any) -> Found:
            """A claim of Eq. 4 is for R rounds of records sampled with q: both must be the recipe's."""
            if self.calibration != "eq4":
                return
            same = "Eq. 4 speaks of one and the same: give both alike"
            count, q = recipe.rounds.count, recipe.method.record_sampling
            if self.rounds is not None and self.rounds != count:
                yield ".rounds", f"got {self.rounds:g}, but rounds.count is {count:g}; {same}"
            if self.sampling is None or self.sampling == q:
                return
            if q is not None:
                yield ".sampling", f"got {self.sampling:g}, but method.sampling is {q:g}; {same}"
            else:
                yield (
                    ".sampling",
                    f"got {self.sampling:g}, but {recipe.method.name} trains on all records, and Eq. 4 is of records "
                    "that are sampled: take calibration = analytic or sigma, or the method personalized, which samples",
                )

    def __init__(self, sigma: ArrayLike, domain: Box | L2Ball | None = None, *, claims: tuple[Claim, ...] = ()) -> None:
        self.domain: Box | L2Ball = domain or Box()
        if isinstance(self.domain, Box) and np.unique(self.domain.radius).size > 1:
            raise InvalidInput("Gaussian noise needs one radius for all values: use one mechanism per tensor")
        self.sigma = per_client("sigma", sigma, low=1e-37, high=1e37)
        self.claims, self.parameter_sets = claims, self.sigma.size
        self._strengths = self.sigma / float(np.max(self.domain.radius))
        if not (self._strengths >= 1 / 512).all() or not (self._strengths <= FINE_SIGMA).all():
            raise InvalidInput(
                f"sigma must lie between 1/512 and {FINE_SIGMA} times the radius of the domain, got "
                f"{self._strengths.min():g} to {self._strengths.max():g} times. Below, there is no protection to "
                "speak of (ClipOnly says so openly); above, no signal"
            )

    @classmethod
    def eq4(
        cls,
        epsilon: ArrayLike,
        delta: float,
        *,
        sampling: float,
        rounds: int,
        domain: Box | None = None,
        reading: Literal["derived", "literal"] = "derived",
    ) -> Gaussian:
        """sigma by Eq. 4 of the paper, with sampling probability q and R rounds; (eps, delta) is claimed.

        `derived` takes the root over the whole product, as the moments bound it comes from requires; `literal` takes it
        over the first factor only, as printed.
        """
        eps = per_client("epsilon", epsilon, low=MIN_EPSILON * (1 - 1e-9), high=1e6)
        delta = check_delta(delta)
        check_count("rounds", rounds)
        if not isinstance(sampling, float) or not 0 < sampling < 1:
            raise InvalidInput(f"Eq. 4 needs a sampling probability 0 < q < 1, got {sampling!r}")
        if reading not in ("derived", "literal"):
            raise InvalidInput(f"reading is 'derived' or 'literal', got {reading!r}")
        first = 4 * sampling**2 * rounds / (1 - sampling)
        second = 2 / eps**2 * math.log(1 / delta) + 1 / eps
        sigma = np.sqrt(first * second) if reading == "derived" else math.sqrt(first) * second
        formula = f"(eps, delta) for {rounds} rounds by Eq. 4, {reading} (personalised LDP-FL)"
        return cls(sigma, domain, claims=tuple(Claim(float(e), delta, formula, covers="schedule") for e in eps))

    @classmethod
    def analytic(
        cls, epsilon: ArrayLike, delta: float, domain: Box | L2Ball | None = None, *, values: int = 1
    ) -> Gaussian:
        """The least sigma for which one upload of `values` values is proven (eps, delta)."""
        domain = domain or Box()
        eps = per_client("epsilon", epsilon, low=MIN_EPSILON * (1 - 1e-9), high=1e6)
        delta, values = check_delta(delta), check_count("values", values)
        return cls(np.array([_least_sigma(domain, float(e), delta, values) for e in eps]), domain)

    def grid(self, values: int, client: int = 0) -> NoiseGrid:
        relative = float(self._strengths[self.row_of(client)])
        if isinstance(self.domain, Box) and relative * 2**8 <= COARSE_SIGMA:
            steps = 1 << max(8, math.ceil(math.log2(_MIN_SIGMA / relative)))
        else:
            steps = _fine_steps(relative, 64 * math.isqrt(values) if isinstance(self.domain, L2Ball) else 2**8)
        noise = gaussian_noise(relative * steps, 2 * steps)
        return NoiseGrid(steps, noise, steps + noise.reach)

    def _noise_moments(self, grid: NoiseGrid, v: Float64s) -> tuple[Float64s, Float64s]:
        """No bias; a Gaussian rounded to whole steps has a twelfth of a step squared more variance."""
        assert isinstance(grid.noise, GaussianNoise)
        rounding = 1 / 12 if grid.noise.levels == 1 else 0.0
        return np.zeros_like(v), np.full_like(v, grid.noise.sigma**2 + rounding)

    def guarantee(self, adjacency: Adjacency = Adjacency.CLIENT, *, values: int = 1, client: int = 0) -> Guarantee:
        count = values_affected(adjacency, values)
        grid = self.grid(values, client)
        noise = grid.noise
        assert isinstance(noise, GaussianNoise)
        mu, what = 2 * grid.steps / noise.proven_sigma, "an L2 ball"
        if isinstance(self.domain, Box):
            mu, what = mu * math.sqrt(count), "a box"
        else:
            count = values  # a change of one coordinate may move the whole scaled vector
        loss = guarantee.GaussianLoss(mu, eta=count * noise.eta, tau=count * noise.tau)
        return Guarantee(SERVER, adjacency, loss, f"{count} values in {what}; rounded Gaussian, table enumerated")

    def page_settings(self, values: int) -> dict[str, object]:
        grid = self.grid(values)
        noise = grid.noise
        assert isinstance(noise, GaussianNoise)
        table, sizes = noise.table, {"levels": noise.levels, "reach": noise.offset}
        return {
            "name": self.name, "steps": grid.steps, "sigma": noise.sigma, **sizes,
            "weights": table.packed(noise.offset), "sha256": table.sha256(), "limit": grid.limit,
        }  # fmt: skip

    # --- planning

    @classmethod
    def tunings(cls, ranges: Ranges) -> Sequence[Tuning]:
        box, ball = Box(0.0, ranges.each), L2Ball(ranges.whole)
        each, whole = cls.sigma_range(ranges.each), cls.sigma_range(ranges.whole)
        return (
            Tuning("gaussian (box)", "sigma", lambda s: cls(s, box), each, "least", needs_delta=True),
            Tuning("gaussian (l2)", "sigma", lambda s: cls(s, ball), whole, "least", "l2", needs_delta=True),
        )

    @classmethod
    def sigma_range(cls, radius: float) -> tuple[float, float]:
        return radius / 511, 0.999 * radius * FINE_SIGMA

    # --- audits

    def likelihood_ratio(self, first: Vector, second: Vector) -> Ratio:
        return likelihood.linear(self, self._clipped(first), self._clipped(second))

    @classmethod
    def _as_in_the_paper(cls, epsilon: float) -> Gaussian:
        return cls.eq4(epsilon, 1 / 500, sampling=0.8, rounds=10, domain=Box(0, 200.0))

    @classmethod
    def audit_cases(cls, epsilon: float) -> Iterator[Case]:
        paper = cls._as_in_the_paper(epsilon)
        guarantee, unit = paper.guarantee(Adjacency.COORDINATE), "one value, one round"
        told = cases.promised("gaussian (Eq. 4)", unit, guarantee, ENDS, paper.claim(), 1 / 500)
        yield Case.of(told, cases.columns(paper, 200.0, -200.0))
        yield cases.one_value(cls.analytic(epsilon, DELTA, Box()), delta=DELTA, name="gaussian (analytic)")
        ball, side = cls.analytic(epsilon, DELTA, L2Ball(1.0), values=16), np.full(16, 0.25)
        unit, attack = "upload of 16 values", "opposite points of the ball"
        told = cases.promised("gaussian (L2 ball)", unit, ball.guarantee(values=16), attack, delta=DELTA)
        yield Case.of(told, cases.rows(ball, side, -side, side), 100_000)

    @classmethod
    def specimens(cls, epsilon: float) -> Iterator[Specimen]:
        box, ball = cls.analytic(epsilon, DELTA, Box()), cls.analytic(epsilon, DELTA, L2Ball(1.0), values=DEEP[1])
        yield from cases.deep_and_wide(box, delta=DELTA, name="gaussian (analytic)")
        yield cases.specimen("gaussian (Eq. 4)", cls._as_in_the_paper(epsilon), 1 / 500)
        yield cases.specimen("gaussian (L2 ball)", ball, DELTA)


def _fine_steps(relative: float, least: int) -> int:
    """Steps from the centre to the edge: at least `least`, with sigma in [2^17, 2^18) steps times a power of 32.

    In a ball a value is about radius/sqrt(d) and truncated towards zero, so the steps grow with sqrt(d); beyond 2^26
    the check that the integer vector is in the ball would no longer be exact.
    """
    steps = 1 << max(0, math.ceil(math.log2(FINE_SIGMA / relative)))
    while steps < least and steps * LEVEL_FACTOR <= 2**26:
        steps *= LEVEL_FACTOR
    return steps


def _least_sigma(domain: Box | L2Ball, epsilon: float, delta: float, values: int) -> float:
    """The analytic sigma, raised until the integer sampler's own (eta, tau) is paid for as well."""
    size = 1.0 if isinstance(domain, L2Ball) else math.sqrt(values)
    sensitivity = 2 * float(np.max(domain.radius)) * size
    target = epsilon
    for _ in range(16):
        sigma = sensitivity / accountant.mu_for(target, delta)
        proven = accountant.epsilon(Gaussian(sigma, domain).guarantee(values=values).loss, delta)
        if proven <= epsilon:
            return sigma
        target -= 1.01 * (proven - epsilon) + 1e-12 * epsilon
        if target <= 0:
            break
    raise InvalidInput(
        f"(eps, delta) = ({epsilon:g}, {delta:g}) over {values} values is finer than the noise tables resolve: "
        "choose a larger delta or fewer values"
    )

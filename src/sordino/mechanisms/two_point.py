"""The two-point mechanism of LDP-FL (Sun, Qian, Chen 2021, Eq. 2; Duchi et al. 2013): each value becomes one bit.

A value w in [c - r, c + r] is reported as c + r*K or c - r*K with K = (e^eps + 1)/(e^eps - 1) and

    Pr[+] = ((w - c)(e^eps - 1) + r(e^eps + 1)) / (2 r (e^eps + 1)).                                        (Eq. 2)

With z = (w - c)/r this is 1/2 + z/(2K). Here the probability is a whole number out of 2^32: z is scaled to the integer
t in [-A, A], and the bit is 1 when a uniform signed 32-bit word lies below t. A = 2^31 - t_min, and t_min is rounded
towards privacy, so the likelihood ratio is exactly (2^32 - t_min)/t_min <= e^eps, and K is exactly 2^31/A.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sordino.mechanisms import cases, tuning
from sordino.mechanisms.arrays import Float32s, Float64s, Floats, Int64s, per_client, row_parameters
from sordino.mechanisms.cases import DELTA, Case, Promise, Scores, Specimen
from sordino.mechanisms.domain import Box
from sordino.mechanisms.integers import HALF, MIN_EPSILON, bit_threshold, cap_note
from sordino.mechanisms.one_bit import OneBit
from sordino.mechanisms.output import Output
from sordino.mechanisms.spec import MechanismSpec, Vectors
from sordino.mechanisms.tuning import Ranges, Tuning
from sordino.parts.tables import tag
from sordino.privacy import amplification
from sordino.privacy.accountant import bit_epsilon
from sordino.privacy.guarantee import Adjacency, Claim, check_count, shuffled
from sordino.randomness import Keystream, Rows


class TwoPoint(OneBit):
    """Values in a box, each reported as one of two points around the centre (LDP-FL).

    `epsilon` is per value: a scalar, or one per client. `centre` and `radius` are scalars or one per value
    (`Box.per_tensor` spreads them over tensors); they must not depend on the client's data.
    """

    name: ClassVar[str] = "two-point"
    in_pages: ClassVar[bool] = True

    class Spec(MechanismSpec):
        """One of two values for each coordinate (LDP-FL)."""

        noise: ClassVar[str] = "points"
        name: str = tag("two-point", "one bit per value; epsilon is per value")

        def build(self, epsilon: float | None, vectors: Vectors) -> TwoPoint:
            return TwoPoint(self.needed(epsilon), vectors.box())

    def __init__(self, epsilon: ArrayLike, domain: Box | None = None) -> None:
        self.epsilon = per_client("epsilon", epsilon, low=MIN_EPSILON * (1 - 1e-9), high=np.inf)
        self.domain: Box = domain or Box()
        self.t_min = np.array([bit_threshold(float(e)) for e in self.epsilon], dtype=np.int64)
        self._reach = HALF - self.t_min  # A
        self._scale = largest_float32(self._reach)  # S
        self.parameter_sets = self.epsilon.size

    def _alike(self, rows: int) -> NDArray[np.intp]:
        return np.zeros(rows, np.intp)

    def _thresholds(self, z: Float32s, rows: Rows, out: NDArray[np.int32]) -> None:
        scale = self._scale if self._scale.size == 1 else self._scale[rows, None]
        out[:] = np.multiply(z, scale, out=z)  # towards zero

    def _k(self, rows: int) -> Float64s:
        """K of every row, `[K, 1]`."""
        return np.asarray(HALF / row_parameters(self._reach, rows)[:, None])

    def _points(self, rows: int) -> tuple[Float64s, Float64s]:
        centre, radius = self.domain.in_float64()
        return centre, radius * self._k(rows)

    def _noise_scale(self, rows: int) -> Float64s:
        radius = float(np.mean(self.domain.radius, dtype=np.float64))
        return np.asarray(radius * HALF / row_parameters(self._reach, rows))

    def estimate(self, output: Output) -> Floats:
        signs = self.votes(output)
        return self.domain.centre + self.domain.radius * self._k(len(signs)).astype(np.float32) * signs

    def _cap_note(self, row: int) -> str:
        return cap_note(self.epsilon[row])

    def claim(self, *, values: int = 1, client: int = 0) -> Claim | None:
        epsilon = float(self.epsilon[self.row_of(client)]) * check_count("values", values)
        return Claim(epsilon, 0.0, "d * eps a round where reports are not shuffled (LDP-FL, section 4)")

    def shuffled_claim(self, clients: int, *, client: int = 0) -> Claim:
        epsilon = float(self.epsilon[self.row_of(client)])
        formula = "eps, with no growth in weights or rounds, where single parameters are shuffled (LDP-FL, section 4)"
        return Claim(epsilon, 0.0, formula, adversary=shuffled(clients), covers="schedule")

    def proven_epsilon(self, client: int = 0) -> float:
        """The exact epsilon of one value."""
        return bit_epsilon(int(self.t_min[self.row_of(client)]))

    def page_settings(self, values: int) -> dict[str, object]:
        return {"name": self.name, "t_min": int(self.t_min[0])}

    # --- planning

    @classmethod
    def tunings(cls, ranges: Ranges) -> Sequence[Tuning]:
        return tuning.by_value(cls.name, cls, ranges)

    # --- audits

    @classmethod
    def audit_cases(cls, epsilon: float) -> Iterator[Case]:
        mechanism = cls(epsilon, Box())
        yield cases.one_value(mechanism)
        yield cases.upload(mechanism, 100)
        yield mechanism._shuffled_upload(clients=100, values=500)

    def _shuffled_upload(self, *, clients: int, values: int) -> Case:
        """LDP-FL's own setting: the server sees per weight how many of n reports were +; the others are mid-range."""

        def sample(world: bool, trials: int, seed: int) -> Scores:
            scores = np.empty(trials)
            others = np.zeros((clients, values))
            others[0] = 1.0 if world else -1.0
            for trial in range(trials):
                randomness = Keystream.simulation(seed, np.arange(clients), 2 * trial + world)
                scores[trial] = self.estimate(self.randomize(others, randomness).output).sum()
            return scores

        each, unit = self.proven_epsilon(), f"shuffled upload of {values} values"
        proven = amplification.shuffled_bits(each, clients, DELTA, values).upper
        basis = "trusted shuffler; dominating pair of Feldman, McMillan, Talwar 2023, composed numerically"
        attack, claim = "sum of the counts; one client at one end or the other", self.shuffled_claim(clients)
        behind = Adjacency.CLIENT, shuffled(clients)
        return Case.of(Promise(self.name, unit, *behind, claim, proven, DELTA, basis, attack), sample, 1_500)

    @classmethod
    def specimens(cls, epsilon: float) -> Iterator[Specimen]:
        return cases.deep_and_wide(cls(epsilon, Box()))


def largest_float32(bounds: Int64s) -> Float32s:
    """S, the largest float32 that does not exceed each bound: float32(z * S) can then never exceed it either."""
    nearest = bounds.astype(np.float32)
    return np.where(nearest.astype(np.float64) > bounds, np.nextafter(nearest, np.float32(0)), nearest)

"""Mechanisms that report every value of a box as one randomised bit: what they have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sordino.mechanisms import likelihood, reach
from sordino.mechanisms.domain import Box
from sordino.mechanisms.interface import (
    Float64s,
    Floats,
    Mechanism,
    check_cohort,
    client_index,
    values_affected,
)
from sordino.mechanisms.laws import Atoms
from sordino.mechanisms.output import BitOutput, Output, decode_bits
from sordino.privacy.guarantee import SERVER, Adjacency, Guarantee, RandomizedBit


class OneBit(Mechanism):
    """One bit per value; of 2^32 words at least `t_min` lead to either bit, whatever the value."""

    domain: Box
    t_min: NDArray[np.int64]  #: one per client, or one for all

    @abstractmethod
    def one_probability(self, values: Floats) -> Float64s:
        """The probability of a one for `[d]` values, from the very thresholds that words are compared with."""

    def votes(self, output: Output) -> NDArray[np.float32]:
        """`[K, d]` bits as +1 and -1."""
        if not isinstance(output, BitOutput):
            raise TypeError(f"the mechanism {self.name} puts out bits, not {type(output).__name__}")
        check_cohort(self, len(output.packed))
        self.domain.check_values(output.values)
        return output.bits().astype(np.float32) * 2 - 1

    def guarantee(self, adjacency: Adjacency = Adjacency.CLIENT, *, values: int = 1, client: int = 0) -> Guarantee:
        row = client_index(self.t_min.size, client)
        t_min = int(self.t_min[row])
        basis = f"bits with probabilities in [{t_min}, 2^32 - {t_min}]/2^32, by enumeration{self._cap_note(row)}"
        return Guarantee(SERVER, adjacency, RandomizedBit(t_min, values_affected(adjacency, values)), basis)

    def _cap_note(self, row: int) -> str:
        """What to say where the epsilon asked for was capped."""
        return ""

    def decode(self, reports: Sequence[bytes], values: int) -> Output:
        check_cohort(self, len(reports))
        return decode_bits(reports, values)

    # --- audits

    def law(self, values: NDArray[np.floating]) -> Atoms:
        return Atoms.bits(self.one_probability(values))

    def likelihood_ratio(self, first: likelihood.Vector, second: likelihood.Vector) -> likelihood.Ratio:
        return likelihood.of_bits(likelihood.ones(self, first), likelihood.ones(self, second))

    def _extent(self, values: int, limit: float | None) -> reach.Reach:
        low, high = (BitOutput.pack(np.full((1, values), bit)) for bit in (False, True))
        return reach.between(self, low, high, "a value is one of two points")

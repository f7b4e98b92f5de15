"""Mechanisms that report whole numbers within public limits: what they have in common."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sordino.mechanisms import reach
from sordino.mechanisms.arrays import Int64s
from sordino.mechanisms.interface import Mechanism
from sordino.mechanisms.output import IntegerOutput, Output, decode_integers, integer_dtype
from sordino.mechanisms.reach import Reach
from sordino.privacy.guarantee import check_count


class WholeNumbers(Mechanism):
    """Every output is a whole number between the client's limits."""

    limited_by: ClassVar[str]  #: what sets the limits, in words

    @abstractmethod
    def limits(self, values: int, rows: int) -> tuple[Int64s, Int64s]:
        """`[K]` each: the smallest and the largest output of vectors of d values."""

    def empty(self, rows: int, values: int) -> IntegerOutput:
        """An output to be filled, `[K, d]`, of the smallest type that holds it."""
        low, high = self.limits(values, rows)
        return IntegerOutput(np.empty((rows, values), integer_dtype(int(low.min()), int(high.max()))), low, high)

    def whole(self, output: Output) -> NDArray[np.signedinteger]:
        """`[K, d]` whole numbers of an output that fits the parameters and the domain."""
        if not isinstance(output, IntegerOutput):
            raise TypeError(f"the mechanism {self.name} puts out whole numbers, not {type(output).__name__}")
        self.check_rows(len(output.array))
        self.domain.check_values(output.values)
        return output.array

    def decode(self, reports: Sequence[bytes], values: int) -> IntegerOutput:
        self.check_rows(len(reports))
        check_count("values", values)
        return decode_integers(reports, values, *self.limits(values, len(reports)))

    def _extent(self, values: int, limit: float | None) -> Reach:
        low, high = (int(end[0]) for end in self.limits(values, 1))
        return reach.between_whole(self, values, low, high, self.limited_by)

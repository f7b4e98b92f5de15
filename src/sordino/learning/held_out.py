"""Which records a client sets aside, by a public rule about each record alone."""

from __future__ import annotations

import hashlib
import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from sordino.learning.examples import Inputs

_RULE = b"sordino private evaluation v1"


def held_out(x: Inputs, share: float, seed: int) -> NDArray[np.bool_]:
    """Which of the records `x` are set aside: each by a hash of its own values, of which this share is below a limit.

    Another record more or less moves no record to the other side. Neither does another label: equal records go
    together, whatever their labels. The seed is public, and so is the rule.
    """
    limit, begin = math.floor(Fraction(share) * 2**64), hashlib.sha256(_RULE + seed.to_bytes(8, "little"))
    aside = np.zeros(len(x), np.bool_)
    for row, values in enumerate(x):
        own = begin.copy()
        own.update(np.asarray(values, "<f4").tobytes())  # pixels and floats alike: the same record, the same side
        aside[row] = int.from_bytes(own.digest()[:8], "little") < limit
    return aside


__all__ = ["held_out"]

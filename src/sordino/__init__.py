"""Sordino: federated learning under local differential privacy, with an honest account of what is protected.

import numpy as np, sordino
mechanism = sordino.TwoPoint(epsilon=1.0, domain=sordino.Box(0.0, 0.075))
output, local = mechanism.randomize(np.zeros(1000), sordino.Keystream.fresh())
mechanism.guarantee(values=1000)
"""

from sordino.errors import SordinoError
from sordino.mechanisms import (
    BitRandomizer,
    BitString,
    Box,
    ClipOnly,
    Exponential,
    FiniteSet,
    FixedPoint,
    Gaussian,
    IntegerRange,
    L1Ball,
    L2Ball,
    Laplace,
    Mechanism,
    NoPrivacy,
    Piecewise,
    PrivUnitG,
    RandomizedLabel,
    RandomizedSign,
    Sphere,
    TwoPoint,
)
from sordino.privacy.guarantee import Adjacency, Budget, Claim, Guarantee, Release
from sordino.privacy.ledger import Ledger, MemoryLedger
from sordino.privacy.statement import Statement
from sordino.randomness import Keystream

__version__ = "0.1.0"

__all__ = [
    "Adjacency",
    "BitRandomizer",
    "BitString",
    "Box",
    "Budget",
    "Claim",
    "ClipOnly",
    "Exponential",
    "FiniteSet",
    "FixedPoint",
    "Gaussian",
    "Guarantee",
    "IntegerRange",
    "Keystream",
    "L1Ball",
    "L2Ball",
    "Laplace",
    "Ledger",
    "Mechanism",
    "MemoryLedger",
    "NoPrivacy",
    "Piecewise",
    "PrivUnitG",
    "RandomizedLabel",
    "RandomizedSign",
    "Release",
    "SordinoError",
    "Sphere",
    "Statement",
    "TwoPoint",
]

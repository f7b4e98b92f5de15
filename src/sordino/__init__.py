"""Sordino: federated learning under local differential privacy, with an honest account of what is protected.

import numpy as np, sordino
outcome = sordino.run(sordino.Recipe.load("quickstart"))
mechanism = sordino.TwoPoint(epsilon=1.0, domain=sordino.Box(0.0, 0.075))
output, local = mechanism.randomize(np.zeros(1000), sordino.Keystream.fresh())
mechanism.guarantee(values=1000)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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
    from sordino.recipe import Recipe
    from sordino.runs.simulation import run

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
    "Recipe",
    "Release",
    "SordinoError",
    "Sphere",
    "Statement",
    "TwoPoint",
    "run",
]

_HOMES = {
    "sordino.errors": ("SordinoError",),
    "sordino.privacy.guarantee": ("Adjacency", "Budget", "Claim", "Guarantee", "Release"),
    "sordino.privacy.ledger": ("Ledger", "MemoryLedger"),
    "sordino.privacy.statement": ("Statement",),
    "sordino.randomness": ("Keystream",),
    "sordino.recipe": ("Recipe",),
    "sordino.runs.simulation": ("run",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Public names are loaded when first used, so that `import sordino` and the command line start at once."""
    if name not in __all__:
        raise AttributeError(f"module 'sordino' has no attribute {name!r}")
    return getattr(import_module(_HOME_OF.get(name, "sordino.mechanisms")), name)


def __dir__() -> list[str]:
    return __all__

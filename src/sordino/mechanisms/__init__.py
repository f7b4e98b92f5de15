"""Randomisers: one file each, pure, vectorised over `[K, d]`, with exact guarantees."""

from pkgutil import resolve_name

from sordino.errors import InvalidInput
from sordino.mechanisms.bits import BitRandomizer, FixedPoint
from sordino.mechanisms.domain import BitString, Box, FiniteSet, IntegerRange, L1Ball, L2Ball, Sphere
from sordino.mechanisms.exponential import Exponential
from sordino.mechanisms.gaussian import Gaussian
from sordino.mechanisms.interface import Diagnostics, Mechanism, Randomized
from sordino.mechanisms.label import RandomizedLabel
from sordino.mechanisms.laplace import Laplace
from sordino.mechanisms.piecewise import Piecewise
from sordino.mechanisms.plain import ClipOnly, NoisySums, NoPrivacy
from sordino.mechanisms.privunit import PrivUnitG
from sordino.mechanisms.sign import RandomizedSign
from sordino.mechanisms.two_point import TwoPoint

MECHANISMS: tuple[type[Mechanism], ...] = (
    TwoPoint,
    Laplace,
    Gaussian,
    RandomizedSign,
    Exponential,
    BitRandomizer,
    RandomizedLabel,
    Piecewise,
    PrivUnitG,
    NoPrivacy,
    ClipOnly,
)


def mechanism_named(name: str) -> type[Mechanism]:
    """A mechanism by its name, or anybody's own as `package.module:Class`."""
    if ":" not in name:
        found = {mechanism.name: mechanism for mechanism in MECHANISMS}
        if name not in found:
            raise InvalidInput(f"no mechanism {name!r}; there are {', '.join(found)}")
        return found[name]
    try:
        own = resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidInput(f"no mechanism {name!r}: {error}") from None
    if not (isinstance(own, type) and issubclass(own, Mechanism)):
        raise InvalidInput(f"{name} is not a subclass of sordino.Mechanism")
    return own


__all__ = [
    "MECHANISMS",
    "BitRandomizer",
    "BitString",
    "Box",
    "ClipOnly",
    "Diagnostics",
    "Exponential",
    "FiniteSet",
    "FixedPoint",
    "Gaussian",
    "IntegerRange",
    "L1Ball",
    "L2Ball",
    "Laplace",
    "Mechanism",
    "NoPrivacy",
    "NoisySums",
    "Piecewise",
    "PrivUnitG",
    "Randomized",
    "RandomizedLabel",
    "RandomizedSign",
    "Sphere",
    "TwoPoint",
    "mechanism_named",
]

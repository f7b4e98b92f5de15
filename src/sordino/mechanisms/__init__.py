"""Randomisers: one file each, pure, vectorised over `[K, d]`, with exact guarantees."""

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
from sordino.parts import registry

PARTS = ("mechanism", "randomizer")  #: the kinds of parts that are mechanisms


def mechanisms() -> dict[str, type[Mechanism]]:
    """Every mechanism by name: the shipped ones, and those that installed packages offer."""
    return {name: mechanism_named(name) for part in PARTS for name in registry.addresses(part)}


def mechanism_named(name: str) -> type[Mechanism]:
    """A mechanism by its name, or anybody's own as `package.module:Class`."""
    address = registry.address_of("mechanism", name) or registry.address_of("randomizer", name)
    if address is None:
        raise InvalidInput(f"no mechanism {name!r}; there are {', '.join(mechanisms())}")
    own = registry.load(address)
    if not (isinstance(own, type) and issubclass(own, Mechanism)):
        raise InvalidInput(f"{name} is not a subclass of sordino.Mechanism")
    return own


__all__ = [
    "BitRandomizer", "BitString", "Box", "ClipOnly", "Diagnostics", "Exponential", "FiniteSet", "FixedPoint",
    "Gaussian", "IntegerRange", "L1Ball", "L2Ball", "Laplace", "Mechanism", "NoPrivacy", "NoisySums", "Piecewise",
    "PrivUnitG", "Randomized", "RandomizedLabel", "RandomizedSign", "Sphere", "TwoPoint", "mechanism_named",
    "mechanisms",
]  # fmt: skip

"""Randomisers: one file each, pure, vectorised over `[K, d]`, with exact guarantees."""

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

__all__ = [
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
]

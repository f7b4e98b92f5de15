"""How a mechanism is fitted to a budget: which parameter is sought, and between which bounds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from sordino.mechanisms.domain import Box
from sordino.mechanisms.integers import MAX_EPSILON, MIN_EPSILON

if TYPE_CHECKING:
    from sordino.mechanisms.interface import Mechanism


@dataclass(frozen=True)
class Ranges:
    """What an update is clipped to before it is randomised."""

    each: float  #: a value's largest distance from the centre
    whole: float  #: a vector's largest norm
    precision: int = 10  #: decimals that whole-number codes keep


@dataclass(frozen=True, eq=False)
class Tuning:
    """One way to fit a mechanism: `build` makes it from its parameter, which is sought within `between`."""

    name: str
    parameter: str
    build: Callable[[float], Mechanism]
    between: tuple[float, float]
    sought: Literal["largest", "least"] = "largest"
    norm: Literal["box", "l1", "l2"] = "box"
    needs_delta: bool = False  #: whether nothing is proven at delta 0


def by_value(name: str, build: Callable[[float, Box], Mechanism], ranges: Ranges) -> tuple[Tuning]:
    """A mechanism that spends its epsilon on each value of a box by itself."""
    box = Box(0.0, ranges.each)
    return (Tuning(name, "epsilon per value", lambda e: build(e, box), (MIN_EPSILON, MAX_EPSILON)),)

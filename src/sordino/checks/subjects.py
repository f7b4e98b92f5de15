"""What is checked: something that draws, the law that its draws must have, and what a guarantee says of that law."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from sordino.checks.statistics import Draws, Look

Enumerated = Callable[[], Look]  #: a check without chance: of tables and thresholds, not of draws


@dataclass(frozen=True, eq=False)
class Subject:
    """Something to check: `draw(seed)` runs the real code; `enumerated` are checks of its exact tables."""

    name: str
    shape: tuple[int, int]  #: draws and values of each
    draw: Callable[[int], Draws]
    enumerated: tuple[Enumerated, ...] = ()


__all__ = ["Enumerated", "Subject"]

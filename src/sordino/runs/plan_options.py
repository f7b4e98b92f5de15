"""The options of `sordino plan`: what to plan for, as far as it was said."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TypeVar

from sordino.errors import InvalidInput
from sordino.mechanisms.tuning import Ranges
from sordino.privacy.guarantee import Adjacency, Budget, check_count
from sordino.privacy.terms import adjacency_named

T = TypeVar("T")


@dataclass(frozen=True)
class PlanOptions:
    """What to plan for, as far as it was said: the options of `sordino plan`."""

    epsilon: float | None = None
    delta: float | None = None
    adjacency: str | None = None
    rounds: int | None = None
    values: int | None = None
    norm: str | None = None
    radius: float | None = None
    precision: int = 10
    steps: int | None = None
    rate: float | None = None
    clients: int | None = None
    update_norm: float | None = None
    maps: int | None = None
    classes: int | None = None
    records: int | None = None
    honest: int | None = None
    box: float | None = None  #: a recipe's range for single values
    ball: float | None = None  #: a recipe's range for whole vectors

    def __post_init__(self) -> None:
        if self.norm not in (None, "box", "l1", "l2"):
            raise InvalidInput(f"--norm is box, l1 or l2, got {self.norm!r}")
        for option in ("rounds", "values", "steps", "clients", "maps", "classes", "records", "honest"):
            if (count := getattr(self, option)) is not None:
                check_count(f"--{option}", count)
        for option in ("update_norm", "radius"):
            size = getattr(self, option)
            if size is not None and not (math.isfinite(size) and size > 0):
                raise InvalidInput(f"--{option.replace('_', '-')} must be a finite number > 0, got {size!r}")

    def budget(self, *, of_records: bool) -> Budget:
        """The budget asked for; by default of a client, and of records where silos train by DP-SGD."""
        limit = needed(self.epsilon, "--epsilon is missing: how much may be spent in all?")
        hidden = Adjacency.RECORD_ADD_REMOVE if of_records else Adjacency.CLIENT
        if self.adjacency is not None:
            hidden = adjacency_named(self.adjacency)
        if hidden is Adjacency.LABEL:
            raise InvalidInput(
                "an update is not a label: plan for client, record-replace, record-add-remove or coordinate"
            )
        return Budget(limit, self.delta or 0.0, adjacency=hidden)

    def ranges(self, values: int) -> Ranges:
        """What updates are clipped to: as given, or what fits an update of the norm given."""
        norm = self.update_norm
        each, whole = (1.0, 1.0) if norm is None else (3 * norm / math.sqrt(values), norm)
        return Ranges(self.radius or self.box or each, self.radius or self.ball or whole, self.precision)


def needed(value: T | None, otherwise: str) -> T:
    """The value of an option; refused where it was left out."""
    if value is None:
        raise InvalidInput(otherwise)
    return value


__all__ = ["PlanOptions", "needed"]

"""Everything that can be checked by name: mechanisms, private training, keys, channels."""

from __future__ import annotations

from collections.abc import Callable

from sordino.checks import channels, mechanisms, training
from sordino.checks.subjects import Subject

PROGRAMS: dict[str, Callable[[], list[Subject]]] = {
    "dp-sgd": training.dp_sgd,
    "keys": mechanisms.fresh_keys,
    "secure-sum": channels.secure_sum,
    "shuffler": channels.shuffler,
}  #: what has no epsilon of its own
NAMES = (*mechanisms.CATALOGUE, *PROGRAMS)


def subjects(name: str, epsilon: float = 1.0) -> list[Subject]:
    """What is checked under this name; for mechanisms at this strength."""
    return PROGRAMS[name]() if name in PROGRAMS else mechanisms.subjects(name, epsilon)


__all__ = ["NAMES", "PROGRAMS", "subjects"]

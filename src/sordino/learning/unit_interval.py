"""Data sets with every feature between 0 and 1, by ranges that are public: nothing is learnt from anybody's records."""

from __future__ import annotations

from dataclasses import replace

from sordino.errors import InvalidInput
from sordino.learning import datasets
from sordino.learning.examples import Dataset, Normalisation

#: The smallest and the largest value of Covertype's ten measurements; its 44 indicators are 0 or 1 already.
_COVERTYPE = (
    (1859, 3858), (0, 360), (0, 66), (0, 1397), (-173, 601), (0, 7117), (0, 254), (0, 254), (0, 254), (0, 7173),
)  # fmt: skip
UNIT = {
    "digits": Normalisation((0.0,), (16.0,)),
    "mnist": Normalisation((0.0,), (255.0,)),
    "fashion-mnist": Normalisation((0.0,), (255.0,)),
    "covertype": Normalisation(
        (*(float(low) for low, _ in _COVERTYPE), *(0.0,) * 44),
        (*(float(high - low) for low, high in _COVERTYPE), *(1.0,) * 44),
    ),
}


def unit_interval(name: str) -> Dataset:
    """A data set with every feature between 0 and 1: recipes name it as their source.

    Personalised LDP-FL does not say how its features are scaled. This is the one reading under which the thresholds c
    that it states and the accuracies without noise fit each other on all its data sets.
    """
    if name not in UNIT:
        raise InvalidInput(f"no range is known of {name!r}; allowed: {', '.join(UNIT)}")
    return replace(datasets.load(name), normalisation=UNIT[name])


__all__ = ["UNIT", "unit_interval"]

"""Data sets with every feature between 0 and 1, by ranges that are public: nothing is learnt from anybody's records."""

from __future__ import annotations

from dataclasses import replace

from sordino.errors import InvalidInput
from sordino.learning import datasets
from sordino.learning.examples import Dataset


def unit_interval(name: str) -> Dataset:
    """A data set with every feature between 0 and 1: recipes name it as their source.

    Personalised LDP-FL does not say how its features are scaled. This is the one reading under which the thresholds c
    that it states and the accuracies without noise fit each other on all its data sets.
    """
    scaled = datasets.known(name).unit_interval
    if scaled is None:
        raise InvalidInput(f"no range is known of {name!r}: take another data set")
    return replace(datasets.load(name), normalisation=scaled)


__all__ = ["unit_interval"]

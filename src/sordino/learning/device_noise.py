"""Whole noise drawn where sums are: on a GPU the same numbers as on a processor, to the last bit.

The words come from the client's own keystream, on the processor. What follows is comparing, looking up and adding
64-bit whole numbers, which no device rounds.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from sordino.mechanisms.noise import LevelledNoise
from sordino.randomness import Words

_LOWEST = -(2**63)  # added to a word, it turns the order of unsigned numbers into that of signed ones


class DeviceNoise:
    """The tables of a noise on one device."""

    def __init__(self, noise: LevelledNoise, device: torch.device) -> None:
        self._noise, self._device = noise, device
        table = noise.table
        self._mask = (1 << table.bits) - 1
        self._thresholds = torch.from_numpy(table.thresholds.view(np.int64)).to(device) ^ _LOWEST
        self._aliases = torch.from_numpy(table.aliases).to(device)

    def draw(self, words: Words) -> Tensor:
        """`[.., d]` noise from `[.., d * words_per_value]` words, as `LevelledNoise.draw` has it."""
        wide = torch.from_numpy(np.ascontiguousarray(words).view(np.int64)).to(self._device)
        lanes = wide.view(*wide.shape[:-1], -1, self._noise.levels)
        found = torch.zeros(lanes.shape[:-1], dtype=torch.int64, device=self._device)
        for level in range(self._noise.levels - 1, -1, -1):
            found = found.mul_(self._noise.factor).add_(self._indices(lanes[..., level]))
        return found.sub_(self._noise.reach)

    def _indices(self, words: Tensor) -> Tensor:
        cells = words & self._mask
        return torch.where((words ^ _LOWEST) < self._thresholds[cells], cells, self._aliases[cells])


__all__ = ["DeviceNoise"]

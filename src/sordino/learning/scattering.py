"""Scattering: public features of an image, computed in whole numbers.

    order 0    phi * x
    order 1    phi * |psi_a * x|
    order 2    phi * |psi_b * |psi_a * x||,  b coarser than a

psi are oriented waves under a bell (Morlet wavelets) of `scales` widths and `angles` directions, phi is a bell that
averages over 2^scales pixels (Bruna and Mallat, "Invariant scattering convolution networks", PAMI 2013). Nothing is
learnt.

Every step is exact: pixels and filters are whole numbers, and sums of their products stay below 2^53, so that float64
has them in any order and on any machine. The modulus is one correctly rounded operation at a time. So the features of
an image depend on that image alone, not on those that are computed beside it, and processors and GPUs agree to the
last bit.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from sordino.errors import InvalidInput

VALUE_BITS = 20  #: binary places of a pixel, and of a feature
LARGEST = 4.0  #: pixels beyond it count as it
WAVE_BITS = 26  #: binary places of a wave's taps, of which the moduli add up to 2 at most: sums stay below 2^50
BELL_BITS = 24  #: of a bell's taps along one axis, which add up to 1: sums stay below 2^27 * 2^24 = 2^51
BETWEEN = 3  #: more binary places of a value that is averaged along one axis and not yet along the other
BLOCK = 2**23  #: values of rows laid side by side at a time


@dataclass(frozen=True)
class Scattering:
    """Features of images `[channels, height, width]`: maps of cells, each cell 2^scales pixels wide."""

    channels: int
    height: int
    width: int
    scales: int = 2
    angles: int = 8
    orders: int = 2

    def __post_init__(self) -> None:
        if not (1 <= self.scales <= 6 and 1 <= self.angles <= 32 and self.orders in (1, 2)):
            raise InvalidInput(
                f"scattering takes 1 to 6 scales, 1 to 32 angles and 1 or 2 orders, got {self.scales}, {self.angles} "
                f"and {self.orders}"
            )
        if min(self.height, self.width) < 2**self.scales:
            raise InvalidInput(
                f"an image of {self.height}x{self.width} has no cell of {2**self.scales} pixels: take fewer scales"
            )

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of the features of one image: maps, cells down, cells across."""
        pairs = self.scales * (self.scales - 1) // 2 if self.orders == 2 else 0
        maps = 1 + self.scales * self.angles + pairs * self.angles**2
        return self.channels * maps, -(-self.height >> self.scales), -(-self.width >> self.scales)

    def __call__(self, images: Tensor) -> Tensor:
        """`[n, maps, down, across]` in float32: multiples of 2^-20. All maps of a channel stand together."""
        if images.shape[1:] != (self.channels, self.height, self.width):
            raise InvalidInput(
                f"scattering was set up for images of {self.channels}x{self.height}x{self.width}, got "
                f"{'x'.join(map(str, images.shape[1:]))}"
            )
        found = torch.empty(len(images), *self.shape, dtype=torch.float32, device=images.device)
        for part in self._blocks(len(images)):
            pixels = torch.nan_to_num(images[part].double()).clamp(-LARGEST, LARGEST)
            whole = torch.round(pixels * 2.0**VALUE_BITS)
            found[part] = self._maps(whole.flatten(0, 1)).reshape(len(whole), *self.shape) * 2.0**-VALUE_BITS
        return found

    def _blocks(self, images: int) -> list[slice]:
        values = self.channels * self.angles * self.height * self.width * (2 * _reach(self.scales - 1) + 1)
        step = max(1, BLOCK // values)
        return [slice(first, first + step) for first in range(0, images, step)]

    def _maps(self, x: Tensor) -> Tensor:
        """`[n, maps, down, across]` of single channels `[n, height, width]`."""
        found, second = [self._averaged(x, 0).unsqueeze(1)], []
        for a in range(self.scales):
            first = self._modulus(x, a, 0)
            found.append(self._averaged(first.flatten(0, 1), a).unflatten(0, first.shape[:2]))
            for b in range(a + 1, self.scales) if self.orders == 2 else ():
                both = self._modulus(first.flatten(0, 1), b, a)
                cells = self._averaged(both.flatten(0, 1), b)
                second.append(cells.reshape(len(x), -1, *cells.shape[1:]))
        return torch.cat(found + second, dim=1)

    def _modulus(self, x: Tensor, scale: int, known: int) -> Tensor:
        """`[n, angles, h, w]`: |psi * x| of every angle at every 2^(scale - known)th place of `[n, H, W]`."""
        wave, stride = scale - known, 2 ** (scale - known)
        height, width = x.shape[1:]
        rows, bands = _bands(height, width, wave, stride, self.angles, x.device)
        beside = x[:, rows].flatten(2)  # [n, h, taps * W]: the rows that one row of the result is made of
        waves = (beside @ bands).unflatten(2, (2, self.angles, -1)) * 2.0**-WAVE_BITS
        squares = waves * waves
        return torch.round(torch.sqrt(squares[:, :, 0] + squares[:, :, 1])).transpose(1, 2)

    def _averaged(self, x: Tensor, known: int) -> Tensor:
        """`[n, down, across]`: phi * x at every cell of `[n, H, W]`."""
        stride = 2 ** (self.scales - known)
        down = _bell(x.shape[1], self.scales - 1 - known, stride, x.device)
        across = _bell(x.shape[2], self.scales - 1 - known, stride, x.device)
        half = torch.round((x @ across.T) * 2.0 ** (BETWEEN - BELL_BITS))
        return torch.round((down @ half) * 2.0 ** (-BETWEEN - BELL_BITS))


def _width(scale: int) -> float:
    """The standard deviation of a wave's bell across its stripes, in pixels."""
    return 0.8 * 2.0**scale


def _reach(scale: int) -> int:
    """How many pixels a wave of this scale reaches to each side: three deviations along its stripes."""
    return math.ceil(6 * _width(scale))


def _mirrored(place: int, size: int) -> int:
    """The pixel that stands at a place beyond the border: an image goes on as in a mirror."""
    period = max(1, 2 * size - 2)
    place %= period
    return min(place, period - place)


def wave(scale: int, angle: int, angles: int) -> Tensor:
    """`[2, taps, taps]`: the real and imaginary part of one Morlet wavelet, as whole numbers of 2^-26."""
    reach, width, frequency = _reach(scale), _width(scale), 0.75 * math.pi / 2**scale
    slant, turn = 4 / angles, math.pi * angle / angles
    real, imaginary, bell = (torch.zeros(2 * reach + 1, 2 * reach + 1, dtype=torch.float64) for _ in range(3))
    for row in range(-reach, reach + 1):
        for column in range(-reach, reach + 1):
            along = math.cos(turn) * column + math.sin(turn) * row
            beside = math.cos(turn) * row - math.sin(turn) * column
            height = math.exp(-(along**2 + (slant * beside) ** 2) / (2 * width**2)) * slant / (2 * math.pi * width**2)
            at = reach + row, reach + column
            bell[at] = height
            real[at], imaginary[at] = height * math.cos(frequency * along), height * math.sin(frequency * along)
    real -= bell * (_total(real) / _total(bell))  # no answer to an even surface
    return torch.round(torch.stack([real, imaginary]) * 2.0**WAVE_BITS)


def _total(values: Tensor) -> float:
    """The sum, rounded once: the same on every machine."""
    return math.fsum(values.flatten().tolist())


@lru_cache(maxsize=64)
def _bands(
    height: int, width: int, scale: int, stride: int, angles: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Which rows make a row of the result, `[h, taps]`, and their factors, `[taps * W, 2 * angles * w]`."""
    reach = _reach(scale)
    taps = 2 * reach + 1
    rows = [[_mirrored(row + k - reach, height) for k in range(taps)] for row in range(0, height, stride)]
    columns = range(0, width, stride)
    bands = torch.zeros(taps, width, 2, angles, len(columns), dtype=torch.float64)
    for angle in range(angles):
        own = wave(scale, angle, angles)
        for at, column in enumerate(columns):
            for k in range(taps):
                bands[:, _mirrored(column + k - reach, width), :, angle, at] += own[:, :, k].T
    return torch.tensor(rows, device=device), bands.flatten(2).flatten(0, 1).to(device)


@lru_cache(maxsize=64)
def _bell(size: int, scale: int, stride: int, device: torch.device) -> Tensor:
    """`[cells, size]`: a Gaussian bell around every stride-th place, as whole numbers of 2^-24."""
    width, reach = _width(scale), _reach(scale)
    taps = torch.tensor([math.exp(-(k**2) / (2 * width**2)) for k in range(-reach, reach + 1)], dtype=torch.float64)
    taps = torch.round(taps / _total(taps) * 2.0**BELL_BITS)
    found = torch.zeros(-(-size // stride), size, dtype=torch.float64)
    for cell in range(len(found)):
        for k in range(-reach, reach + 1):
            found[cell, _mirrored(cell * stride + k, size)] += taps[k + reach]
    return found.to(device)


__all__ = ["LARGEST", "VALUE_BITS", "Scattering", "wave"]

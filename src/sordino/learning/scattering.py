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
from sordino.learning.correct_rounding import root_

VALUE_BITS = 20  #: binary places of a pixel, and of a feature
LARGEST = 4.0  #: pixels beyond it count as it
WAVE_BITS = 26  #: binary places of a wave's taps, of which the moduli add up to 2 at most: sums stay below 2^50
BELL_BITS = 24  #: of a bell's taps along one axis, which add up to 1: sums stay below 2^27 * 2^24 = 2^51
BETWEEN = 3  #: more binary places of a value that is averaged along one axis and not yet along the other
BLOCKS = {"cpu": 2**19, "cuda": 2**26}  #: values of first-order maps that are computed at a time


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
        for part in self._blocks(len(images), images.device):
            pixels = torch.nan_to_num(images[part].double()).clamp(-LARGEST, LARGEST)
            whole = torch.round(pixels * 2.0**VALUE_BITS)
            maps = self._maps(whole.flatten(0, 1).permute(1, 2, 0).contiguous())
            found[part] = (maps.permute(3, 2, 0, 1) * 2.0**-VALUE_BITS).reshape(len(whole), *self.shape)
        return found

    def _blocks(self, images: int, device: torch.device) -> list[slice]:
        values = self.channels * self.angles * self.height * self.width
        step = max(1, BLOCKS[device.type] // values)
        return [slice(first, first + step) for first in range(0, images, step)]

    # Below, images lie side by side in the last axis: every operation runs along it.

    def _maps(self, x: Tensor) -> Tensor:
        """`[down, across, maps, n]` of single channels `[height, width, n]`."""
        found, second = [self._averaged(x, 0).unsqueeze(2)], []
        for a in range(self.scales):
            first = self._modulus(x, a, 0).flatten(2)
            cells = self._averaged(first, a)
            found.append(cells.reshape(*cells.shape[:2], self.angles, -1))
            for b in range(a + 1, self.scales) if self.orders == 2 else ():
                cells = self._averaged(self._modulus(first, b, a).flatten(2), b)
                pairs = cells.reshape(*cells.shape[:2], self.angles, self.angles, -1)
                second.append(pairs.transpose(2, 3).flatten(2, 3))
        return torch.cat(found + second, dim=2)

    def _modulus(self, x: Tensor, scale: int, known: int) -> Tensor:
        """`[h, w, angles, n]`: |psi * x| of every angle at every 2^(scale - known)th place of `[H, W, n]`."""
        bank = _bank(*x.shape[:2], scale - known, 2 ** (scale - known), self.angles, x.device)
        found = x.new_empty(*bank.shape, self.angles, x.shape[2])
        forth = x[bank.rows]
        back = forth.flip(0)
        for row in range(len(found)):  # one at a time, as all of them would not fit into a processor's cache
            for strip in bank.strips:
                found[row, strip.outputs] = bank.moduli(row, strip, forth, back).transpose(0, 1)
        return found

    def _averaged(self, x: Tensor, known: int) -> Tensor:
        """`[down, across, n]`: phi * x at every cell of `[H, W, n]`."""
        stride = 2 ** (self.scales - known)
        down = _bell(x.shape[0], self.scales - 1 - known, stride, x.device)
        across = _bell(x.shape[1], self.scales - 1 - known, stride, x.device)
        half = torch.round(across.expand(len(x), *across.shape).bmm(x) * 2.0 ** (BETWEEN - BELL_BITS))
        cells = torch.round(down @ half.flatten(1) * 2.0 ** (-BETWEEN - BELL_BITS))
        return cells.reshape(len(down), *half.shape[1:])


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
    """`[2, taps, taps]`: the real and imaginary part of one Morlet wavelet, as whole numbers of 2^-26.

    Those of angles t and pi - t are mirror images to the last bit.
    """
    if 2 * angle > angles:
        return wave(scale, angles - angle, angles).flip(1) * torch.tensor([1.0, -1.0]).view(2, 1, 1)
    reach, width, frequency = _reach(scale), _width(scale), 0.75 * math.pi / 2**scale
    slant, turn = 4 / angles, math.pi * angle / angles
    cosine, sine = (0.0, 1.0) if 2 * angle == angles else (math.cos(turn), math.sin(turn))
    real, imaginary, bell = (torch.zeros(2 * reach + 1, 2 * reach + 1, dtype=torch.float64) for _ in range(3))
    for row in range(-reach, reach + 1):
        for column in range(-reach, reach + 1):
            along, beside = cosine * column + sine * row, cosine * row - sine * column
            height = math.exp(-(along**2 + (slant * beside) ** 2) / (2 * width**2)) * slant / (2 * math.pi * width**2)
            at = reach + row, reach + column
            bell[at] = height
            real[at], imaginary[at] = height * math.cos(frequency * along), height * math.sin(frequency * along)
    real -= bell * (_total(real) / _total(bell))  # no answer to an even surface
    return torch.round(torch.stack([real, imaginary]) * 2.0**WAVE_BITS)


def _total(values: Tensor) -> float:
    """The sum, rounded once: the same on every machine."""
    return math.fsum(values.flatten().tolist())


@dataclass(frozen=True)
class _Strip:
    """Some columns of the result: from which columns they are made, and by which factors."""

    inputs: slice
    outputs: slice
    even: Tensor  #: `[parts * outputs, (reach + 1) * inputs]`, for sums of a row before and a row after
    odd: Tensor  #: the same for their differences


@dataclass(frozen=True)
class _Bank:
    """The waves of one scale and all angles over images of one size.

    A wave is the sum of an even and an odd one under exchange of rows before and after its centre, and the wave of
    the mirrored angle is their difference, conjugated. So both take the work of one.
    """

    angles: int
    shape: tuple[int, int]  #: of the result
    reach: int
    stride: int
    rows: Tensor  #: of the image, with those beyond its borders
    strips: tuple[_Strip, ...]

    @property
    def paired(self) -> int:
        """How many angles have a mirrored one that is another."""
        return (self.angles - 1) // 2

    def moduli(self, row: int, strip: _Strip, forth: Tensor, back: Tensor) -> Tensor:
        """`[angles, w, n]`, rounded, of one row and strip, from images `[H, W, n]` with their rows in both orders."""
        centre, inputs = self.reach + row * self.stride, strip.inputs
        after = forth[centre : centre + self.reach + 1, inputs]
        before = back[len(back) - 1 - centre : len(back) + self.reach - centre, inputs]
        width, images = strip.outputs.stop - strip.outputs.start, forth.shape[2]
        even = (strip.even @ (after + before).flatten(0, 1)).view(self.angles + 1, width, images)
        odd = (strip.odd @ (after[1:] - before[1:]).flatten(0, 1)).view(self.angles - 1, width, images)
        found = torch.empty_like(even[1:])
        pairs, both = self.paired, 2 * self.paired
        found[0] = _modulus(even[both], even[both + 1])
        first, mirrored = even[:both] + odd[:both], even[:both] - odd[:both]
        found[1 : pairs + 1] = _modulus(first[:pairs], first[pairs:])
        found[self.angles - pairs :] = _modulus(mirrored[:pairs], mirrored[pairs:]).flip(0)
        if self.angles % 2 == 0:
            found[self.angles // 2] = _modulus(even[both + 2], odd[both])
        return found


def _modulus(real: Tensor, imaginary: Tensor) -> Tensor:
    """Each operation is rounded by itself."""
    return root_((real * real).add_(imaginary * imaginary)).round_()


@lru_cache(maxsize=64)
def _bank(height: int, width: int, scale: int, stride: int, angles: int, device: torch.device) -> _Bank:
    reach = _reach(scale)
    rows = torch.tensor([_mirrored(row, height) for row in range(-reach, height + reach)], device=device)
    even, odd = _parts(scale, angles)
    columns = -(-width // stride)
    step = -(-columns // -(-width // (2 * reach + 1)))
    strips = []
    for first in range(0, columns, step):
        outputs = slice(first, min(columns, first + step))
        centres = range(outputs.start * stride, (outputs.stop - 1) * stride + 1, stride)
        inputs = slice(max(0, centres[0] - reach), min(width, centres[-1] + reach + 1))
        made = (_banded(part, inputs, centres, width).to(device) for part in (even, odd))
        strips.append(_Strip(inputs, outputs, *made))
    return _Bank(angles, (-(-height // stride), columns), reach, stride, rows, tuple(strips))


def _parts(scale: int, angles: int) -> tuple[Tensor, Tensor]:
    """`[parts, reach + 1, taps]`: factors for sums and for differences of rows, without those that are zero.

    First the real parts of all paired angles, then their imaginary ones; then of angle 0, which is even, both parts;
    then the one across it, with an even real and an odd imaginary part.
    """
    reach = _reach(scale)
    taps = torch.stack([wave(scale, angle, angles) for angle in range(angles // 2 + 1)])
    after, before = taps[:, :, reach:], taps[:, :, : reach + 1].flip(2)
    even, odd = (after + before) * 2.0 ** (-WAVE_BITS - 1), (after - before) * 2.0 ** (-WAVE_BITS - 1)
    even[:, :, 0] /= 2  # the centre's row is added to itself
    paired = slice(1, (angles + 1) // 2)
    across = [angles // 2] if angles % 2 == 0 else []
    return (
        torch.cat([even[paired, 0], even[paired, 1], even[0], even[across, 0]]),
        torch.cat([odd[paired, 0], odd[paired, 1], odd[across, 1]])[:, 1:],
    )


def _banded(parts: Tensor, inputs: slice, centres: range, width: int) -> Tensor:
    """`[parts * centres, rows * inputs]`: the factors `[parts, rows, taps]` around centres, mirrored at borders."""
    reach = parts.shape[2] // 2
    found = parts.new_zeros(len(parts), len(centres), parts.shape[1], inputs.stop - inputs.start)
    for at, centre in enumerate(centres):
        for k in range(-reach, reach + 1):
            found[:, at, :, _mirrored(centre + k, width) - inputs.start] += parts[:, :, k + reach]
    return found.flatten(2).flatten(0, 1)


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

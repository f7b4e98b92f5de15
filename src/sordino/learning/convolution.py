"""Convolution and pooling of K clients' images `[K, C, H, W, B]`, by batched matrix products.

With the batch as the fastest axis, every copy and comparison runs over long stretches of memory. A convolution copies
its image once for every column of the kernel; the kernel's rows are then stretches of that copy, one product each.
Copying for every pixel of the kernel instead takes as many times the memory as the kernel has rows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

Pair = tuple[int, int]
BATCH_LAST = (0, 2, 3, 4, 1)  #: [K, B, C, H, W] -> [K, C, H, W, B]
BATCH_SECOND = (0, 4, 1, 2, 3)  #: and back


@dataclass(frozen=True)
class Convolution:
    """Images `[K, C, H, W, B]` by kernels `[K, O, C, kh, kw]`, and its two gradients."""

    stride: Pair
    padding: Pair

    def forward(self, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        """The result `[K, O, oh, ow, B]`, and the columns `[K, C, kw, H, ow, B]` that the gradients need."""
        (down, across), (kh, kw) = self.padding, weight.shape[3:]
        if self.padding != (0, 0):
            x = functional.pad(x, (0, 0, across, across, down, down))
        columns = x.unfold(3, kw, self.stride[1]).permute(0, 1, 5, 2, 3, 4).contiguous()
        height = (x.shape[2] - kh) // self.stride[0] + 1
        first, *others = _by_row(weight)
        y = torch.bmm(first, self._stretch(columns, 0, height))
        for row, kernel in enumerate(others, 1):
            y.baddbmm_(kernel, self._stretch(columns, row, height))
        return y.view(*weight.shape[:2], height, *columns.shape[4:]), columns

    def weight_gradient(self, gradient: Tensor, columns: Tensor, shape: torch.Size) -> Tensor:
        """`[K, O, C, kh, kw]`, from the result's gradient."""
        flat, height = gradient.flatten(2), gradient.shape[2]
        rows = [torch.bmm(flat, self._stretch(columns, row, height).transpose(1, 2)) for row in range(shape[3])]
        return torch.stack(rows, 2).view(*shape[:2], shape[3], shape[2], shape[4]).transpose(2, 3)

    def input_gradient(self, gradient: Tensor, columns: Tensor, weight: Tensor, width: int) -> Tensor:
        """`[K, C, H, W, B]`, from the result's gradient; it takes the memory of the columns, which are lost."""
        flat, (rows, places) = gradient.flatten(2), gradient.shape[2:4]
        columns.zero_()
        for row, kernel in enumerate(_by_row(weight)):
            if self.stride[0] == 1:
                self._stretch(columns, row, rows).baddbmm_(kernel.transpose(1, 2), flat)
            else:
                part = columns[:, :, :, self._rows(row, rows)]
                part += torch.bmm(kernel.transpose(1, 2), flat).view(part.shape)
        (down, across), step = self.padding, self.stride[1]
        k, c, kw, height, _, b = columns.shape
        image = columns.new_zeros(k, c, height, width + 2 * across, b)
        for column in range(kw):
            image[:, :, :, column : column + step * (places - 1) + 1 : step] += columns[:, :, column]
        return image[:, :, down : height - down, across : across + width]

    def _rows(self, row: int, height: int) -> slice:
        return slice(row, row + self.stride[0] * (height - 1) + 1, self.stride[0])

    def _stretch(self, columns: Tensor, row: int, height: int) -> Tensor:
        """What one row of the kernel sees, `[K, C * kw, oh * ow * B]`: without a copy where rows follow each other."""
        return columns[:, :, :, self._rows(row, height)].flatten(3).flatten(1, 2)


def _by_row(weight: Tensor) -> Tensor:
    """`[K, O, C, kh, kw]` -> `[kh, K, O, C * kw]`."""
    return weight.permute(3, 0, 1, 2, 4).flatten(3)


def pool(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """2x2 maxima of `[K, C, H, W, B]`, odd edges dropped, and where they were: ones and zeros of left and of upper.

    Ties go to the first in reading order, as in PyTorch.
    """
    height, width = x.shape[2] // 2 * 2, x.shape[3] // 2 * 2
    left, right = x[:, :, :height, 0:width:2], x[:, :, :height, 1:width:2]
    across = torch.maximum(left, right)
    upper, lower = across[:, :, 0::2], across[:, :, 1::2]
    pooled = torch.maximum(upper, lower)
    # Ones and zeros of x's own dtype: a product with booleans converts them first, at twice the cost.
    at_left = torch.ge(left, right, out=torch.empty_like(across))
    return pooled, at_left, torch.ge(upper, lower, out=torch.empty_like(pooled))


def pool_gradient(gradient: Tensor, at_left: Tensor, at_upper: Tensor, image: Tensor) -> Tensor:
    """The gradient of what was pooled, written into `image [K, C, H, W, B]`."""
    across = torch.empty_like(at_left)
    upper = torch.mul(gradient, at_upper, out=across[:, :, 0::2])
    torch.sub(gradient, upper, out=across[:, :, 1::2])
    height, width = across.shape[2], 2 * across.shape[3]
    image[:, :, height:] = 0
    image[:, :, :, width:] = 0
    left = torch.mul(across, at_left, out=image[:, :, :height, 0:width:2])
    torch.sub(across, left, out=image[:, :, :height, 1:width:2])
    return image


__all__ = ["BATCH_LAST", "BATCH_SECOND", "Convolution", "Pair", "pool", "pool_gradient"]

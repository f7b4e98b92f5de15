"""How alike a reconstruction and its original are, which of many records it is nearest to, and pictures of both.

Pictures are `[B, channels, height, width]` with values from 0 to 1. Records of a table are `[B, d]`.
"""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

WINDOW, SPREAD = 11, 1.5  #: the Gaussian window of Wang et al. 2004, section III-C; smaller pictures take a smaller one
C1, C2 = 0.01**2, 0.03**2  #: their constants, for values from 0 to 1


def psnr(pictures: Tensor, originals: Tensor) -> Tensor:
    """`[B]` decibels: -10 log10 of the mean squared error; infinite where both are the same."""
    errors = (pictures - originals).flatten(1).double().square().mean(1)
    return -10 * torch.log10(errors)


def ssim(pictures: Tensor, originals: Tensor) -> Tensor:
    """`[B]` structural similarities (Wang et al. 2004, Eq. 13), the mean over windows and channels: 1 for the same."""
    x, y = (each.double().flatten(0, 1).unsqueeze(1) for each in (pictures, originals))
    window = _window(min(WINDOW, *pictures.shape[2:])).to(x)

    def mean(values: Tensor) -> Tensor:
        return functional.conv2d(values, window)

    mx, my = mean(x), mean(y)
    vx, vy, both = mean(x * x) - mx * mx, mean(y * y) - my * my, mean(x * y) - mx * my
    alike = (2 * mx * my + C1) * (2 * both + C2) / ((mx * mx + my * my + C1) * (vx + vy + C2))
    return alike.flatten(1).mean(1).reshape(pictures.shape[:2]).mean(1)


def _window(side: int) -> Tensor:
    places = torch.arange(side, dtype=torch.float64) - (side - 1) / 2
    line = torch.exp(-(places**2) / (2 * SPREAD**2))
    line = line / line.sum()
    return torch.outer(line, line)[None, None]


def nearness(pictures: Tensor, candidates: Tensor) -> Tensor:
    """`[B, M]` correlations of reconstructions `[B, ...]` and candidates `[M, ...]`.

    The highest is the nearest: the least squared error once brightness and contrast are fitted, which noise falsifies.
    """
    return _standard(pictures) @ _standard(candidates).T


def nearest(pictures: Tensor, candidates: Tensor) -> Tensor:
    """`[B]`: which candidate is nearest to each reconstruction."""
    return nearness(pictures, candidates).argmax(1)


def _standard(values: Tensor) -> Tensor:
    rows = torch.nan_to_num(values.flatten(1).double())
    return functional.normalize(rows - rows.mean(1, keepdim=True), dim=1)


# --- pictures ---------------------------------------------------------------------------------------------------------


def is_picture(shape: tuple[int, ...]) -> bool:
    """Whether records of this shape can be shown: grey or in three colours."""
    return len(shape) == 3 and shape[0] in (1, 3)


def png(picture: Tensor | NDArray[np.floating]) -> str:
    """A picture `[height, width]` or `[1 or 3, height, width]`, values from 0 to 1, as PNG in base64."""
    values = np.nan_to_num(np.asarray(picture, np.float64))
    values = values[None] if values.ndim == 2 else values
    channels, height, width = values.shape
    pixels = np.rint(255 * np.clip(values, 0, 1)).astype(np.uint8).transpose(1, 2, 0).reshape(height, -1)
    lines = b"".join(b"\0" + row.tobytes() for row in pixels)  # 0: no filter
    header = struct.pack(">IIBBBBB", width, height, 8, 0 if channels == 1 else 2, 0, 0, 0)
    chunks = ((b"IHDR", header), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b""))
    packed = b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)) for kind, body in chunks
    )
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + packed).decode()


def mean_figure(values: Tensor, most: float = 100.0) -> float:
    """The mean, no value above `most`: figures in files are finite, and the same picture has an infinite PSNR."""
    return float(torch.nan_to_num(values, nan=0.0, posinf=most).clamp(max=most).mean())


__all__ = ["is_picture", "mean_figure", "nearest", "nearness", "png", "psnr", "ssim"]

"""Random changes of images while training: each record turned, moved, scaled and mirrored by its own few numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Affine:
    """Turned by up to `rotation` degrees, moved by up to `shift` of a side, scaled by up to `zoom`, mirrored by chance.

    Every amount is drawn evenly between its negative and itself. What comes in from outside is the nearest pixel.
    """

    rotation: float = 0.0
    shift: float = 0.0
    zoom: float = 0.0
    flip: bool = False

    draws = 5  #: uniform numbers per record: rotation, two shifts, zoom, mirror

    def __call__(self, x: Tensor, uniforms: Tensor) -> Tensor:
        """Images `x [n, channels, height, width]` changed by numbers `uniforms [n, 5]` in [0, 1)."""
        turn, across, down, zoom = (2 * uniforms[:, :4] - 1).unbind(1)
        angle = turn * math.radians(self.rotation)
        scale = 1 + zoom * self.zoom
        mirror = torch.where(uniforms[:, 4] < 0.5, -1.0, 1.0) if self.flip else torch.ones_like(angle)
        cos, sin = torch.cos(angle) * scale, torch.sin(angle) * scale
        moved = 2 * self.shift * torch.stack([across, down], dim=1)  # the grid spans 2 from side to side
        rows = torch.stack([cos * mirror, -sin, moved[:, 0], sin * mirror, cos, moved[:, 1]], dim=1)
        grid = F.affine_grid(rows.view(-1, 2, 3), list(x.shape), align_corners=False)
        return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


__all__ = ["Affine"]

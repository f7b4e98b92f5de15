"""Writes features.json, the features of images that a page in TypeScript must reproduce bit for bit.

Images are not stored: both sides draw or make them (`images`). Long vectors are stored as a hash of their whole numbers
(32-bit, little-endian; 64-bit floats for sums) and about a hundred of them.

python -m tests.golden.make_features
"""

from __future__ import annotations

import hashlib
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.learning.linear_head import aim, rounded_within
from sordino.learning.scattering import Scattering
from tests.golden.make_web import RECORDS, numbers

FEATURES = Path(__file__).with_name("features.json")

#: shape of an image, what scattering takes, groups of maps, norm of a whole vector
CASES: tuple[tuple[tuple[int, int, int], dict[str, int], int, int], ...] = (
    ((1, 28, 28), {"scales": 2, "angles": 8, "orders": 2}, 27, 1000),
    ((1, 8, 8), {"scales": 1, "angles": 8, "orders": 2}, 9, 1000),
    ((3, 9, 13), {"scales": 2, "angles": 4, "orders": 2}, 15, 60),
    ((2, 16, 11), {"scales": 3, "angles": 6, "orders": 2}, 1, 4096),
    ((1, 12, 12), {"scales": 2, "angles": 3, "orders": 1}, 7, 3),
)


def images(shape: tuple[int, int, int]) -> Tensor:
    """Noise, noise far beyond the largest pixel, an even surface, a stroke, nothing, and pixels that are no numbers."""
    size = math.prod(shape)
    noise = numbers(RECORDS, size, 2.0)
    rows = [noise, noise * np.float32(16), np.full(size, 1.5, np.float32), np.arange(size) % (shape[2] + 1) < 2]
    odd = noise.copy()
    odd[:3] = np.nan, np.inf, -np.inf
    rows += [np.zeros(size, np.float32), odd]
    return torch.from_numpy(np.stack(rows).astype(np.float32)).reshape(-1, *shape)


def hashed(values: NDArray[Any] | Tensor, dtype: str) -> dict[str, Any]:
    flat = np.asarray(values).reshape(-1)
    every = max(1, flat.size // 97)
    digest = hashlib.sha256(flat.astype(dtype).tobytes()).hexdigest()
    return {"size": flat.size, "sha256": digest, "every": every, "values": flat[::every].astype(np.int64).tolist()}


def normal_form(features: Tensor, groups: int, limit: int) -> Tensor:
    """`[n, maps, cells]`: group norm, then one length for all, as whole vectors."""
    shape = features.shape
    v = features.double().reshape(shape[0], groups, -1)
    each = v.shape[2]
    farthest = 2.0 ** ((53 - (each - 1).bit_length()) // 2)
    c = torch.round(v - v.sum(dim=2, keepdim=True) / each).clamp(-farthest, farthest)
    g = c / torch.sqrt((c * c).sum(dim=2, keepdim=True) / each + 1)
    w = torch.round(g * 2.0**12).flatten(1)
    norm = torch.sqrt((w * w).sum(dim=1, keepdim=True))
    return rounded_within(w * (aim(limit, w.shape[1]) / norm.clamp(min=1)), limit)[0].reshape(shape[0], shape[1], -1)


def second_moments(u: Tensor) -> Tensor:
    """The upper triangles, with the diagonal, of the sums of u u^T and u^T u."""
    a, s = torch.einsum("nip,njp->ij", u, u), torch.einsum("nip,niq->pq", u, u)
    return torch.cat([m[tuple(torch.triu_indices(*m.shape))] for m in (a, s)])


def features() -> list[dict[str, Any]]:
    rows = []
    for shape, options, groups, limit in CASES:
        scattering = Scattering(*shape, **options)
        found = scattering(images(shape))
        u = normal_form(found.double(), groups, limit)
        rows.append({
            "shape": list(shape), "options": options, "groups": groups, "limit": limit, "maps": list(scattering.shape),
            "features": [hashed(one, "<i4") for one in found], "whole": [hashed(one, "<i4") for one in u],
            "moments": hashed(second_moments(u), "<f8"),
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    FEATURES.write_text(json.dumps(features(), separators=(",", ":")) + "\n")

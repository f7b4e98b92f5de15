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

from sordino.learning.linear_head import LinearHead
from sordino.learning.scattering import Scattering
from sordino.learning.unit_vectors import Form, second_moments, unit_vectors, whitened
from tests.golden.make_web import RECORDS, VALUES, WEIGHTS, numbers

FEATURES = Path(__file__).with_name("features.json")

#: shape of an image, what scattering takes, groups of maps, square roots, norm of a whole vector, of a whitened one
CASES: tuple[tuple[tuple[int, int, int], dict[str, int], int, int, int, int], ...] = (
    ((1, 28, 28), {"scales": 2, "angles": 8, "orders": 2}, 1, 1, 1448, 256),
    ((1, 28, 28), {"scales": 2, "angles": 8, "orders": 2}, 27, 0, 1000, 100),
    ((1, 8, 8), {"scales": 1, "angles": 8, "orders": 2}, 9, 1, 1000, 128),
    ((3, 9, 13), {"scales": 2, "angles": 4, "orders": 2}, 0, 0, 60, 17),
    ((3, 9, 13), {"scales": 2, "angles": 4, "orders": 2}, 0, 3, 700, 256),
    ((2, 16, 11), {"scales": 3, "angles": 6, "orders": 2}, 1, 2, 1448, 250),
    ((1, 12, 12), {"scales": 2, "angles": 3, "orders": 1}, 7, 1, 3, 8),
)
CLASSES, BIAS, CLIP, RESIDUAL = 4, 0.1, 0.03, 31


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


def whitening(maps: int) -> tuple[Tensor, Tensor]:
    """A whole matrix and a whole vector, nothing special."""
    left = torch.from_numpy(np.rint(numbers(VALUES, maps * maps, 2.0**16))).reshape(maps, maps)
    return left, torch.from_numpy(np.rint(numbers(WEIGHTS, maps, 2.0**20)))


def features() -> list[dict[str, Any]]:
    rows = []
    for shape, options, groups, roots, limit, row in CASES:
        scattering = Scattering(*shape, **options)
        found = scattering(images(shape))
        maps, down, across = scattering.shape
        form = Form(maps, down * across, groups, roots)
        u = unit_vectors(found.flatten(1), form, limit)
        left, centre = whitening(maps)
        white = whitened(u, form, left, centre, BIAS, row)
        head = LinearHead(form.size, CLASSES, True)
        parameters = torch.from_numpy(numbers(WEIGHTS, head.size, 1.0))
        labels = torch.arange(len(u)) % CLASSES
        rows.append({
            "shape": list(shape), "options": options, "groups": groups, "roots": roots, "limit": limit, "row": row,
            "bias": BIAS, "clip": CLIP, "residual": RESIDUAL, "classes": CLASSES, "maps": list(scattering.shape),
            "features": [hashed(one.double() * 2.0**20, "<i4") for one in found],
            "whole": [hashed(one, "<i4") for one in u], "moments": hashed(second_moments(u, form, limit), "<f8"),
            "whitened": [hashed(one, "<i4") for one in white.whole],
            "scales": white.scale.tolist(),
            "sums": hashed(head.sums(head.weights(parameters), white, labels, CLIP, RESIDUAL).sums, "<f8"),
        })  # fmt: skip
    return rows


if __name__ == "__main__":
    FEATURES.write_text(json.dumps(features(), separators=(",", ":")) + "\n")

"""Leaks by hand: what attacks on a run might have found."""

from __future__ import annotations

import base64
import struct
import zlib
from typing import Any

import numpy as np

from sordino.privacy.leaks import Leak, Share, membership_bound


def png(picture: np.ndarray) -> str:
    """A grey picture [h, w] of values in 0 to 1, as PNG in base64."""
    height, width = picture.shape
    rows = np.pad((np.clip(picture, 0, 1) * 255).astype(np.uint8), ((0, 0), (1, 0))).tobytes()
    parts = {b"IHDR": struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0), b"IDAT": zlib.compress(rows), b"IEND": b""}
    packed = [struct.pack(">I", len(d)) + n + d + struct.pack(">I", zlib.crc32(n + d)) for n, d in parts.items()]
    return base64.b64encode(b"\x89PNG\r\n\x1a\n" + b"".join(packed)).decode()


def pictures(count: int, noise: float, seed: int = 1) -> tuple[str, ...]:
    """Eight by eight pixels each: a shape, and noise upon it."""
    generator = np.random.default_rng(seed)
    grid = np.indices((8, 8)).sum(0)
    shapes = [(np.abs(grid - 3 - k % 9) < 2).astype(float) for k in range(count)]
    return tuple(png(shape + noise * generator.normal(size=(8, 8))) for shape in shapes)


ORIGINALS = pictures(12, 0.0)


def reconstruction(variant: str, hits: int, **changes: Any) -> Leak:
    """Twelve pictures of 32 shown, each among 1,000."""
    noise = {"bare": 0.05, "run": 2.0, "proven": 4.0}[variant]
    given: dict[str, Any] = {
        "how": "gradient matching", "chance": 0.001, "originals": ORIGINALS, "pictures": pictures(12, noise),
        "figures": {"candidates": 1000, "ssim": 0.91 if variant == "bare" else 0.07},
        "bound": {"bare": None, "run": 1.0, "proven": 0.0271}[variant],
        "deed": "pictures, each among 1,000 candidates, the attack identifies",
    }  # fmt: skip
    return Leak("reconstruction", variant, share=Share(hits, 32), **given | changes)  # type: ignore[arg-type]


def membership(variant: str, hits: int, power: float) -> Leak:
    """A curve y = x^power, with the bound of epsilon 2 where this run's noise is there."""
    alarms = [float(x) for x in np.logspace(-4, 0, 80)]
    limit = tuple((x, membership_bound(2.0, 1e-5, x)) for x in alarms) if variant == "run" else ()
    return Leak(
        "membership", variant, "likelihood ratio", Share(hits, 500), chance=0.01,  # type: ignore[arg-type]
        bound=membership_bound(2.0, 1e-5, 0.01) if variant == "run" else None, limit=limit,
        figures={"auc": 1 / (1 + power)}, curve=tuple((x, x**power) for x in alarms), deed="cases the attack tells",
    )  # fmt: skip


PICTURES = (reconstruction("bare", 31), reconstruction("run", 2))
MEMBERS = (membership("bare", 210, 0.3), membership("run", 9, 0.95))
LEAKS = (*PICTURES, *MEMBERS)

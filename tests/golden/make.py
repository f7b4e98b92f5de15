"""Writes vectors.json: what every implementation of docs/bits.md must reproduce bit for bit.

python -m tests.golden.make        # rewrites the file; do so only when the layout's version changes
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np

from sordino import mechanisms as m
from sordino.mechanisms.noise import Digit, GaussianNoise, GeometricNoise
from sordino.randomness import Keystream, Purpose

VECTORS = Path(__file__).with_name("vectors.json")
KEY = bytes(range(32))
CLIENT, ROUND, TENSOR = 7, 3, 2


def stream() -> Keystream:
    return Keystream(KEY, [CLIENT], ROUND)


def inputs(scale: float = 1.0) -> np.ndarray:
    """Twenty float32 values: the ends, the centre, values outside, tiny ones, and some in between."""
    some = [
        -1.5,
        -1.0,
        -0.75,
        -0.5,
        -0.25,
        -1e-3,
        -1e-8,
        0.0,
        1e-8,
        1e-3,
        0.1,
        0.25,
        1 / 3,
        0.5,
        2 / 3,
        0.75,
        0.9,
        0.999,
        1,
        1.5,
    ]
    return (np.array(some) * scale).astype(np.float32)


def sha256(values: np.ndarray) -> str:
    return hashlib.sha256(values.tobytes()).hexdigest()


def weights_sha256(weights: tuple[int, ...]) -> str:
    """Of the weights as little-endian 64-bit words (a weight is below 2^64)."""
    return sha256(np.array(weights, dtype="<u8"))


def randomized(mechanism: m.Mechanism, values: Any) -> dict[str, Any]:
    output = mechanism.randomize(values, stream(), tensor=TENSOR).output
    row: dict[str, Any] = {"report_hex": mechanism.encode(output)[0].hex()}
    array = getattr(output, "array", None)
    return row if array is None else {"output": array[0].tolist(), **row}


def keystream() -> dict[str, Any]:
    words = stream().words(np.array([0]), Purpose.NOISE, TENSOR, 0, 12)[0]
    later = stream().words(np.array([0]), Purpose.NOISE, TENSOR, 4 * 1000, 4)[0]
    return {"words_from_0": words.tolist(), "words_from_4000": later.tolist()}


def two_point() -> list[dict[str, Any]]:
    rows = []
    for epsilon, centre, radius in ((1.0, 0.0, 1.0), (0.1, 0.0, 1.0), (8.0, 0.05, 0.075), (30.0, 0.0, 1.0)):
        mechanism = m.TwoPoint(epsilon, m.Box(centre, radius))
        values = inputs(radius)
        rows.append({
            "epsilon": epsilon, "t_min": int(mechanism.t_min[0]), "centre": centre, "radius": radius,
            "values": values.tolist(), "t": thresholds(mechanism, values), **randomized(mechanism, values),
        })  # fmt: skip
    return rows


def thresholds(mechanism: m.TwoPoint, values: np.ndarray) -> list[int]:
    z, _ = mechanism.domain.normalise(values[None, :], slice(0, values.size))
    return np.trunc(z[0] * mechanism._scale[0]).astype(np.int64).tolist()


def sign() -> list[dict[str, Any]]:
    rows = []
    for name, mechanism in (
        ("gaussian, ratio 0.5", m.RandomizedSign.gaussian(2.0, m.Box(0, 1.0))),
        ("response, epsilon 1", m.RandomizedSign.response(1.0, m.Box(0, 1.0))),
    ):
        table = mechanism._tables[0].astype("<i4")
        rows.append({
            "what": name, "table_sha256": sha256(table), "table_ends": [int(table[0]), int(table[-1])],
            "values": inputs().tolist(), **randomized(mechanism, inputs()),
        })  # fmt: skip
    return rows


def laplace() -> list[dict[str, Any]]:
    rows = []
    for epsilon in (1.0, 0.05, 8.0):
        mechanism = m.Laplace(epsilon, m.Box(0, 1.0))
        grid = mechanism.grid(20)
        noise = grid.noise
        assert isinstance(noise, GeometricNoise)
        rows.append({
            "epsilon": epsilon, "steps": grid.steps, "limit": grid.limit,
            "rate": [str(noise.rate.numerator), str(noise.rate.denominator)], "negative": noise.negative,
            "digits": [digit(d) for d in noise.digits],
            "values": inputs().tolist(), **randomized(mechanism, inputs()),
        })  # fmt: skip
    return rows


def digit(given: Digit) -> dict[str, Any]:
    weights = given.table.weights
    return {"shift": given.shift, "size": len(weights), "weights_sha256": weights_sha256(weights)}


def gaussian() -> list[dict[str, Any]]:
    rows = []
    pairs = (
        (1.0, 1.0),
        (0.25, 1.0),
        (0.2501, 1.0),
        (0.2502, 1.0),
        (0.0201, 0.3),
        (50.0, 1.0),
        (7.7, 0.3),
        (2e3, 1.0),
    )
    for sigma, radius in pairs:
        mechanism = m.Gaussian(sigma, m.Box(0, radius))
        grid = mechanism.grid(20)
        noise = grid.noise
        assert isinstance(noise, GaussianNoise)
        rows.append({
            "sigma": sigma, "radius": radius, "steps": grid.steps, "limit": grid.limit,
            "levels": noise.levels, "offset": noise.offset,
            "weights_sha256": weights_sha256(noise.table.weights),
            "values": inputs(radius).tolist(), **randomized(mechanism, inputs(radius)),
        })  # fmt: skip
    return rows


def bits() -> dict[str, Any]:
    mechanism = m.BitRandomizer.theorem2(0.5, m.BitString(20))
    values = (np.arange(20) % 3 == 0).astype(np.uint8)
    thresholds = {"ones": mechanism.ones[:2].tolist(), "zeros": mechanism.zeros[:2].tolist()}
    return {"epsilon": 0.5, "a": 10, **thresholds, "bits": values.tolist(), **randomized(mechanism, values)}


def label() -> dict[str, Any]:
    mechanism = m.RandomizedLabel(1.0, m.FiniteSet(10))
    values = np.arange(20) % 10
    given = {"epsilon": 1.0, "size": 10, "keep": int(mechanism._keep[0]), "labels": values.tolist()}
    return {**given, **randomized(mechanism, values)}


def vectors() -> dict[str, Any]:
    return {
        "version": 1,
        "key_hex": KEY.hex(),
        "client": CLIENT,
        "round": ROUND,
        "purpose": int(Purpose.NOISE),
        "tensor": TENSOR,
        "keystream": keystream(),
        "two_point": two_point(),
        "sign": sign(),
        "laplace": laplace(),
        "gaussian": gaussian(),
        "bits": bits(),
        "label": label(),
    }


if __name__ == "__main__":
    VECTORS.write_text(json.dumps(vectors(), indent=1) + "\n")

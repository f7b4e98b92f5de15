"""What travels between coordinator and clients: plans out, answers back. Versioned, checked, and never a pickle.

A plan is a JSON header and float32 arrays. An answer is 24 bytes of envelope and the body that the client's mechanism
encoded; it names the plan it answers by a hash, so that an answer to another round or another plan is recognised.
"""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput

VERSION = 1
DIGEST_BYTES = 16
_PLAN = struct.Struct("<2sBxI")  # magic, version, length of the header
_ANSWER = struct.Struct(f"<2sBBI{DIGEST_BYTES}s")  # magic, version, kind, round, digest of the plan
ANSWER_BYTES = _ANSWER.size
MOST_SIDES = 16  #: dimensions of an array

Arrays = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, eq=False)
class Plan:
    """What the coordinator asks of clients in one round: the method's settings, and float32 arrays by name."""

    federation: str
    round: int
    settings: Mapping[str, Any] = field(default_factory=dict)
    arrays: Arrays = field(default_factory=dict)

    def encode(self) -> bytes:
        """The bytes that are sent."""
        return self._encoded

    @cached_property
    def _encoded(self) -> bytes:
        arrays = {name: np.ascontiguousarray(array, "<f4") for name, array in sorted(self.arrays.items())}
        shapes = {name: list(array.shape) for name, array in arrays.items()}
        text = _canonical(
            {"federation": self.federation, "round": self.round, "settings": self.settings, "arrays": shapes}
        )
        return b"".join([_PLAN.pack(b"SP", VERSION, len(text)), text, *(array.tobytes() for array in arrays.values())])

    @cached_property
    def digest(self) -> bytes:
        """The first 16 bytes of the SHA-256 of what is sent."""
        return hashlib.sha256(self.encode()).digest()[:DIGEST_BYTES]

    @classmethod
    def decode(cls, message: bytes) -> Plan:
        """The plan that `encode` wrote; anything else is refused."""
        if len(message) < _PLAN.size:
            raise InvalidInput(f"a plan has at least {_PLAN.size} bytes, got {len(message)}: it was cut off")
        magic, version, length = _PLAN.unpack_from(message)
        _check_kind("plan", magic, b"SP", version)
        start = _PLAN.size + length
        try:
            header = _read_header(bytes(message[_PLAN.size : start]))
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise InvalidInput(f"a plan's header is damaged ({type(error).__name__}): ask for it again") from None
        arrays = _read_arrays(message, start, {name: tuple(shape) for name, shape in header["arrays"].items()})
        return cls(header["federation"], header["round"], header["settings"], arrays)


def _canonical(header: Mapping[str, Any]) -> bytes:
    return json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def _read_header(text: bytes) -> dict[str, Any]:
    """A plan's header in the one form that `encode` writes: its digest is then that of the bytes that came."""
    header: dict[str, Any] = json.loads(text)
    if _canonical(header) != text or set(header) != {"arrays", "federation", "round", "settings"}:
        raise ValueError("not in its canonical form")
    kinds = {"arrays": dict, "federation": str, "round": int, "settings": dict}
    if any(type(header[name]) is not kind for name, kind in kinds.items()) or not 0 <= header["round"] < 2**32:
        raise TypeError("a part of another type")
    if not all(_is_shape(shape) for shape in header["arrays"].values()):
        raise ValueError("not a shape")
    return header


def _is_shape(shape: Any) -> bool:
    whole = type(shape) is list and all(type(side) is int for side in shape)
    sides = whole and len(shape) <= MOST_SIDES and all(0 <= side < 2**32 for side in shape)
    return sides and math.prod(max(1, side) for side in shape) < 2**48  # also of an array that one side makes empty


def _read_arrays(message: bytes, start: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, NDArray[np.float32]]:
    sizes = [4 * math.prod(shape) for shape in shapes.values()]
    if start + sum(sizes) != len(message):
        raise InvalidInput(
            f"a plan of {len(message)} bytes announces {start + sum(sizes)}: it was damaged, ask for it again"
        )
    arrays = {}
    for (name, shape), size in zip(shapes.items(), sizes, strict=True):
        arrays[name] = np.frombuffer(message, "<f4", size // 4, start).astype(np.float32).reshape(shape)
        start += size
    return arrays


class Kind(IntEnum):
    """What an answer is."""

    REPORT = 1  #: the body is the client's report
    DECLINED = 2  #: the client takes no part in this round (its budget is spent, or its owner refuses the plan)


@dataclass(frozen=True)
class Answer:
    """A client's answer to one plan; the body is empty when it declines."""

    kind: Kind
    round: int
    digest: bytes
    body: bytes = b""

    def encode(self) -> bytes:
        """The bytes that are sent."""
        return _ANSWER.pack(b"SR", VERSION, self.kind, self.round, self.digest) + self.body

    @classmethod
    def decode(cls, message: bytes) -> Answer:
        """The answer that `encode` wrote; anything else is refused."""
        if not isinstance(message, (bytes, bytearray, memoryview)) or len(message) < ANSWER_BYTES:
            raise InvalidInput(f"an answer has at least {ANSWER_BYTES} bytes: this one was cut off")
        magic, version, kind, round, digest = _ANSWER.unpack_from(message)
        _check_kind("answer", magic, b"SR", version)
        if kind not in (Kind.REPORT, Kind.DECLINED):
            raise InvalidInput(f"an answer of unknown kind {kind}: allowed are {', '.join(f'{k:d}' for k in Kind)}")
        body = bytes(message[ANSWER_BYTES:])
        if kind == Kind.DECLINED and body:
            raise InvalidInput("a client that declines sends nothing else, but this answer has a body")
        return cls(Kind(kind), round, digest, body)


def answer_to(plan: Plan, body: bytes | None) -> bytes:
    """A report on this plan, or (without a body) a refusal to take part, ready to be sent."""
    kind = Kind.DECLINED if body is None else Kind.REPORT
    return Answer(kind, plan.round, plan.digest, body or b"").encode()


def _check_kind(what: str, magic: bytes, expected: bytes, version: int) -> None:
    if magic != expected:
        raise InvalidInput(f"this is not a {what} of a federation")
    if version != VERSION:
        raise InvalidInput(f"this {what} speaks version {version} of the protocol, here it is {VERSION}: update one")


__all__ = ["ANSWER_BYTES", "VERSION", "Answer", "Kind", "Plan", "answer_to"]

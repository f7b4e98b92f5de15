"""What travels between coordinator and clients: plans out, answers back. Versioned, checked, and never a pickle.

A plan is a JSON header and float32 arrays. An answer is 24 bytes of envelope and the body that the client's mechanism
encoded; it names the plan it answers by a hash, so that an answer to another round or another plan is recognised.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.wire.codec import Buffer, Form, Layout, canonical, read_header

DIGEST_BYTES = 16
MOST_SIDES = 16  #: dimensions of an array
_PLAN = Layout(b"SP", "a plan", blobs=1)
_HEADER: dict[str, Form] = {"arrays": dict, "federation": str, "round": int, "settings": dict}

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
        header = {"federation": self.federation, "round": self.round, "settings": self.settings, "arrays": shapes}
        return _PLAN.pack(blobs=[canonical(header)], rest=b"".join(array.tobytes() for array in arrays.values()))

    @cached_property
    def digest(self) -> bytes:
        """The first 16 bytes of the SHA-256 of what is sent."""
        return hashlib.sha256(self.encode()).digest()[:DIGEST_BYTES]

    @classmethod
    def decode(cls, message: bytes) -> Plan:
        """The plan that `encode` wrote; anything else is refused."""
        _, _, (text,), rest = _PLAN.unpack(message)
        header = read_header(text, "a plan", _HEADER)
        if not 0 <= header["round"] < 2**32 or not all(map(_is_shape, header["arrays"].values())):
            raise InvalidInput("a plan has a round below 2^32 and arrays with shapes: ask for it again")
        return cls(header["federation"], header["round"], header["settings"], _read_arrays(rest, header["arrays"]))


def _is_shape(shape: object) -> bool:
    if not isinstance(shape, list) or not all(type(side) is int and 0 <= side < 2**32 for side in shape):
        return False
    # no array is larger, were its empty sides not empty
    return len(shape) <= MOST_SIDES and math.prod(max(1, side) for side in shape) < 2**48


def _read_arrays(raw: Buffer, shapes: Mapping[str, list[int]]) -> dict[str, NDArray[np.float32]]:
    sizes = [math.prod(shape) for shape in shapes.values()]
    if 4 * sum(sizes) != len(raw):
        raise InvalidInput(
            f"the arrays of a plan have {len(raw)} bytes and {4 * sum(sizes)} are announced: ask for it again"
        )
    arrays, start = {}, 0
    for (name, shape), size in zip(shapes.items(), sizes, strict=True):
        arrays[name] = np.frombuffer(raw, "<f4", size, start).astype(np.float32).reshape(shape)
        start += 4 * size
    return arrays


class Kind(IntEnum):
    """What an answer is."""

    REPORT = 1  #: the body is the client's report
    DECLINED = 2  #: the client takes no part in this round (its budget is spent, or its owner refuses the plan)


_ANSWER = Layout(b"SR", "an answer", f"I{DIGEST_BYTES}s", kinds=Kind)
ANSWER_BYTES = _ANSWER.size


@dataclass(frozen=True)
class Answer:
    """A client's answer to one plan; the body is empty when it declines."""

    kind: Kind
    round: int
    digest: bytes
    body: bytes = b""

    def encode(self) -> bytes:
        """The bytes that are sent."""
        return _ANSWER.pack(self.round, self.digest, kind=self.kind, rest=self.body)

    @classmethod
    def decode(cls, message: bytes) -> Answer:
        """The answer that `encode` wrote; anything else is refused."""
        kind, (round, digest), _, body = _ANSWER.unpack(message)
        if kind == Kind.DECLINED and body:
            raise InvalidInput("a client that declines sends nothing else, but this answer has a body")
        return cls(Kind(kind), round, digest, bytes(body))


def answer_to(plan: Plan, body: bytes | None) -> bytes:
    """A report on this plan, or (without a body) a refusal to take part, ready to be sent."""
    kind = Kind.DECLINED if body is None else Kind.REPORT
    return Answer(kind, plan.round, plan.digest, body or b"").encode()


__all__ = ["ANSWER_BYTES", "Answer", "Kind", "Plan", "answer_to"]

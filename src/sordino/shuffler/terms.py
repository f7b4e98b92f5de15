"""What all parties of one shuffled round agree on: the shuffler tells everybody the same, and every envelope is bound
to it. A server that told each client something else could tell their envelopes apart.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from typing import Annotated, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from sordino.errors import InvalidInput
from sordino.wire.codec import canonical
from sordino.wire.messages import Plan

MOST_VALUES = 2**24  #: values of a report
MOST_GROUP = 2**16  #: values in one envelope
MOST_CLASSES = 256
MOST_CLIENTS = 2**20
MOST_SECONDS = 7 * 86_400.0
LONGEST_NAME = 200

STRICT = ConfigDict(strict=True, extra="forbid", arbitrary_types_allowed=True)
T = TypeVar("T")


@contextmanager
def _refusal(what: str) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidInput(f"this is not {what}: {' '.join([*map(str, first['loc']), first['msg']])}") from None


def read_json(kind: type[T], text: str | bytes, what: str) -> T:
    """The value that a JSON text holds; anything else than `what` is refused."""
    with _refusal(what):
        return TypeAdapter(kind).validate_json(text)


@dataclass(frozen=True, config=STRICT)
class Terms:
    """One round: which plan is answered, how many bits a report has, and how many of them lie in one envelope."""

    federation: Annotated[str, Field(min_length=1, max_length=LONGEST_NAME)]
    round: Annotated[int, Field(ge=1, lt=2**32)]
    subject: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """SHA-256 of the plan, in hexadecimal: a client that was sent another plan takes no part."""
    values: Annotated[int, Field(ge=1, le=MOST_VALUES)]  #: bits of a report
    asked: Annotated[
        tuple[Annotated[int, Field(ge=0, le=MOST_CLIENTS)], ...], Field(min_length=1, max_length=MOST_CLASSES)
    ]
    """Clients asked, of every class of equal epsilon."""
    seconds: Annotated[float, Field(gt=0, le=MOST_SECONDS)]  #: how long the shuffler waits for them
    group: Annotated[int, Field(ge=1, le=MOST_GROUP)] = 1
    """Neighbouring values in one envelope: one linked message, of local epsilon group * epsilon."""

    def __post_init__(self) -> None:
        if self.group > self.values:
            raise ValueError(f"an envelope cannot hold {self.group} of {self.values} values")

    @classmethod
    def of(cls, plan: Plan, values: int, asked: Sequence[int], seconds: float, group: int = 1) -> Terms:
        """The terms on which this plan is answered."""
        with _refusal("a round that a shuffler can hold"):
            return cls(plan.federation, plan.round, _digest(plan), values, tuple(asked), seconds, group)

    @property
    def positions(self) -> int:
        """Envelopes of one client: one for each value, or for each group of them."""
        return math.ceil(self.values / self.group)

    @property
    def content_bytes(self) -> int:
        """Bytes inside an envelope; the last group is filled up with zeros."""
        return math.ceil(self.group / 8)

    @property
    def classes(self) -> int:
        """Number of strengths; reports are mixed with those of equal strength alone."""
        return len(self.asked)

    @cached_property
    def digest(self) -> bytes:
        """32 bytes that stand for everything that was agreed."""
        return hashlib.sha256(b"sordino shuffler terms 1\0" + self.to_json().encode()).digest()

    def to_json(self) -> str:
        """One line, the same for equal terms."""
        return canonical(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Terms:
        """The terms that `to_json` wrote; anything else is refused."""
        return read_json(cls, text, "the terms of a round")

    def check_answer(self, plan: Plan) -> None:
        """At the client: refuse to seal for another plan than the one that it was sent."""
        if (self.federation, self.round, self.subject) != (plan.federation, plan.round, _digest(plan)):
            raise InvalidInput(
                "the shuffler's round is about another plan than the one this client was sent: a server that gives "
                "clients different plans can tell their reports apart. Nothing was sealed"
            )


def _digest(plan: Plan) -> str:
    return hashlib.sha256(plan.encode()).hexdigest()


__all__ = ["MOST_CLIENTS", "Terms", "read_json"]

"""What all parties of one shuffled round agree on: the shuffler tells everybody the same, and every envelope is bound
to it. A server that told each client something else could tell their envelopes apart.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import Any

from sordino.errors import InvalidInput
from sordino.wire.codec import canonical
from sordino.wire.messages import Plan

MOST_VALUES = 2**24  #: values of a report
MOST_GROUP = 2**16  #: values in one envelope
MOST_CLASSES = 256
MOST_CLIENTS = 2**20
MOST_SECONDS = 7 * 86_400.0
LONGEST_NAME = 200


@dataclass(frozen=True)
class Terms:
    """One round: which plan is answered, how many bits a report has, and how many of them lie in one envelope."""

    federation: str
    round: int
    subject: str  #: the SHA-256 of the plan, in hexadecimal: who was sent another plan takes no part
    values: int  #: bits of a report
    asked: tuple[int, ...]  #: clients asked, of every class of equal epsilon
    seconds: float  #: how long the shuffler waits for them
    group: int = 1  #: g: neighbouring values in one envelope are one linked message, of local epsilon g * epsilon

    def __post_init__(self) -> None:
        for name, most in (("values", MOST_VALUES), ("group", MOST_GROUP), ("round", 2**32 - 1)):
            _check_whole(name, getattr(self, name), 1, most)
        if not isinstance(self.federation, str) or not 1 <= len(self.federation) <= LONGEST_NAME:
            raise InvalidInput(f"a federation has a name of 1 to {LONGEST_NAME} letters")
        if not _is_digest(self.subject):
            raise InvalidInput("the subject of a round is the SHA-256 of its plan: 64 hexadecimal digits")
        if not isinstance(self.asked, tuple) or not 1 <= len(self.asked) <= MOST_CLASSES:
            raise InvalidInput(f"say how many clients were asked of each of 1 to {MOST_CLASSES} classes")
        for count in self.asked:
            _check_whole("clients asked", count, 0, MOST_CLIENTS)
        if type(self.seconds) not in (int, float) or not 0 < self.seconds <= MOST_SECONDS:
            raise InvalidInput(f"a round lasts more than 0 and at most {MOST_SECONDS:g} seconds, got {self.seconds!r}")
        if self.group > self.values:
            raise InvalidInput(f"an envelope cannot hold {self.group} of {self.values} values")

    @classmethod
    def of(cls, plan: Plan, values: int, asked: Sequence[int], seconds: float, group: int = 1) -> Terms:
        """The terms on which this plan is answered."""
        subject = hashlib.sha256(plan.encode()).hexdigest()
        return cls(plan.federation, plan.round, subject, values, tuple(asked), float(seconds), group)

    @property
    def positions(self) -> int:
        """Envelopes of one client: one for each value, or for each group of them."""
        return math.ceil(self.values / self.group)

    @property
    def content_bytes(self) -> int:
        """What is inside an envelope; of the last group, what is too much is zero."""
        return math.ceil(self.group / 8)

    @property
    def classes(self) -> int:
        """How many strengths there are; reports are mixed with those of equal strength alone."""
        return len(self.asked)

    @cached_property
    def digest(self) -> bytes:
        """Of everything that was agreed: 32 bytes."""
        return hashlib.sha256(b"sordino shuffler terms 1\0" + self.to_json().encode()).digest()

    def to_json(self) -> str:
        """One line, the same for equal terms."""
        return canonical(asdict(self)).decode()

    @classmethod
    def from_json(cls, text: str | bytes) -> Terms:
        """The terms that `to_json` wrote; anything else is refused."""
        try:
            given = json.loads(text)
        except (ValueError, RecursionError):
            raise InvalidInput("the terms of a round are an object in JSON") from None
        return cls.from_object(given)

    @classmethod
    def from_object(cls, given: Any) -> Terms:
        """Terms from what JSON gave."""
        names = {f.name for f in fields(cls)}
        if not isinstance(given, dict) or not names - {"group"} <= set(given) <= names:
            raise InvalidInput(f"the terms of a round are {', '.join(sorted(names))} and nothing else")
        asked = given["asked"]
        return cls(**{**given, "asked": tuple(asked) if isinstance(asked, list) else asked})

    def check_answer(self, plan: Plan) -> None:
        """At the client: refuse to seal for another plan than the one that it was sent."""
        if (self.federation, self.round, self.subject) != (
            plan.federation, plan.round, hashlib.sha256(plan.encode()).hexdigest(),
        ):  # fmt: skip
            raise InvalidInput(
                "the shuffler's round is about another plan than the one this client was sent: a server that gives "
                "clients different plans can tell their reports apart. Nothing was sealed"
            )


def _check_whole(name: str, value: Any, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise InvalidInput(f"{name} must be a whole number from {least} to {most}, got {value!r}")


def _is_digest(text: Any) -> bool:
    return isinstance(text, str) and len(text) == 64 and set(text) <= set("0123456789abcdef")


__all__ = ["MOST_CLIENTS", "Terms"]

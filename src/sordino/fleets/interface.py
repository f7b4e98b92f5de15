"""What the coordinator knows of a fleet: how to ask its clients, and what comes back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from sordino.errors import InvalidInput
from sordino.wire.messages import Answer
from sordino.wire.requests import Response

if TYPE_CHECKING:
    from sordino.methods.upload import PartialSum

WHOLE_STEPS = ("prepare", "report", "post", "evaluate")  #: steps that carry the plan, and are all of an exchange


@dataclass(frozen=True)
class Reply:
    """What became of one client's message."""

    client: int
    message: bytes | None = None  #: the client's answer, as it came; None where it gave none
    reason: str = ""  #: why it declined or gave no answer, in its own words
    receipt: bytes = b""  #: the receipt that came with the answer
    reached: bool = True  #: False where nothing of this exchange was sent to the client
    stray: str = ""  #: what is wrong with an answer that the fleet itself turned away, such as "late"

    @classmethod
    def of(cls, client: int, response: Response) -> Reply:
        """What a client's process responded."""
        return cls(client, response.payload or None, response.reason, response.receipt)

    @cached_property
    def answer(self) -> Answer:
        """The answer in the message, decoded once; `InvalidInput` where there is none."""
        if self.message is None:
            raise InvalidInput(f"client {self.client} gave no answer")
        return Answer.decode(self.message)


@dataclass(frozen=True, eq=False)
class Tallied:
    """Reports of several simulated clients on one plan, added up where they were computed."""

    clients: tuple[int, ...]  #: in the order of their reports
    refused: Mapping[int, str]  #: those of them with a report that is not in the sum, and why
    sum: PartialSum
    size: int  #: bytes of all their answers


class Fleet(ABC):
    """Where clients live. `exchange` is the only network primitive."""

    groups: Sequence[range] = ()  #: clients that share one signed invitation; every other client gets its own
    admits_newcomers: bool = False  #: whether anybody may still join: a place that declines may get another holder

    @abstractmethod
    def exchange(self, step: str, messages: Mapping[int, bytes], deadline: float | None) -> Generator[Reply]:
        """Send each client its message and yield replies as they arrive, until all have come or the deadline passed.

        The deadline is a time of `time.monotonic`. Clients that were sent nothing come last, as replies that are not
        `reached`. A generator that is closed early abandons what is under way, and everybody counts as reached.
        """

    def exchange_sums(self, messages: Mapping[int, bytes], deadline: float | None) -> Generator[Reply | Tallied]:
        """The same for the step `report`, by whoever may add up reports before they travel: simulated clients alone."""
        yield from self.exchange("report", messages, deadline)

    def begin_round(self, round: int) -> None:  # noqa: B027 (nothing to do where clients never change)
        """Take notice that a round begins (0 is the preparation), before its exchanges: who takes part may change."""

    def names(self, round: int) -> Mapping[int, str]:
        """The names of the clients in a round, as far as they are known; a name is one member's and no other's."""
        return {}

    def vacant(self, round: int) -> Collection[int]:
        """Numbers that nobody holds in a round: nothing is sent there, and nobody is waited for."""
        return ()

    def invite(self, invitations: Mapping[int, bytes]) -> Mapping[int, str]:
        """Hand every client its invitation, before the first round and after every restart; who is absent, and why."""
        return {}


class OuterFleet(Fleet):
    """Another fleet with something around it: what a subclass does not change is the inner one's."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.groups, self.admits_newcomers = fleet.groups, fleet.admits_newcomers

    def exchange(self, step: str, messages: Mapping[int, bytes], deadline: float | None) -> Generator[Reply]:
        return self._fleet.exchange(step, messages, deadline)

    def begin_round(self, round: int) -> None:
        self._fleet.begin_round(round)

    def names(self, round: int) -> Mapping[int, str]:
        return self._fleet.names(round)

    def vacant(self, round: int) -> Collection[int]:
        return self._fleet.vacant(round)

    def invite(self, invitations: Mapping[int, bytes]) -> Mapping[int, str]:
        return self._fleet.invite(invitations)


__all__ = ["WHOLE_STEPS", "Fleet", "OuterFleet", "Reply", "Tallied"]

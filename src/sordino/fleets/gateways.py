"""Clients behind gateways: each gateway is one client of another fleet, and answers for many pages with one message.

A gateway hands a plan on to its participants and sends their answers together. Everything in them was randomised before
it left its participant, so that putting answers into one message takes nothing from any guarantee. Every answer is
still checked, counted and refused by itself, at the coordinator.

    gather   "SG" | version u8 | 0 u8 | seconds u32 (0: no deadline) | blob: clients | plan
    bundle   "SN" | version u8 | 0 u8 | blobs: clients that were not reached, clients that answered | blobs: answers
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from sordino.errors import InvalidInput
from sordino.fleets.interface import Fleet, Reply
from sordino.wire.codec import Layout, join, numbers, read_numbers, split

STEP = "gather"
MOST = 10**6  #: clients behind one gateway
SHARE = 0.9  #: of the time to the deadline that a gateway may take
_GATHER = Layout(b"SG", "a gateway's request", "I", blobs=1)
_BUNDLE = Layout(b"SN", "a gateway's bundle", blobs=2)


@dataclass(frozen=True)
class Gather:
    """What a gateway is asked: the answers of these clients to a plan, within so many seconds."""

    clients: tuple[int, ...]
    plan: bytes
    seconds: float | None = None

    def encode(self) -> bytes:
        """The bytes that are sent."""
        whole = 0 if self.seconds is None else max(1, int(self.seconds))
        return _GATHER.pack(whole, blobs=[numbers(self.clients)], rest=self.plan)

    @classmethod
    def decode(cls, message: bytes) -> Gather:
        """What `encode` wrote; anything else is refused."""
        _, (seconds,), (listed,), plan = _GATHER.unpack(message)
        return cls(_clients(listed), bytes(plan), seconds or None)


@dataclass(frozen=True)
class Bundle:
    """What a gateway sends: the answers of its clients, and to whom nothing was sent."""

    answers: Mapping[int, bytes]
    unreached: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """The bytes that are sent."""
        clients = (numbers(self.unreached), numbers(list(self.answers)))
        return _BUNDLE.pack(blobs=clients, rest=join(*self.answers.values()))

    @classmethod
    def decode(cls, message: bytes) -> Bundle:
        """What `encode` wrote; anything else is refused."""
        _, _, (away, listed), rest = _BUNDLE.unpack(message)
        unreached, clients = _clients(away), _clients(listed)
        answers, end = split(rest, len(clients), "a gateway's bundle")
        if len(end) or len(set(clients)) != len(clients):
            raise InvalidInput("a gateway's bundle names a client twice, or goes on after its last answer")
        return cls(dict(zip(clients, answers, strict=True)), unreached)


def _clients(listed: bytes) -> tuple[int, ...]:
    clients = read_numbers(listed, "a gateway's list of clients")
    if len(clients) > MOST:
        raise InvalidInput(f"a gateway has at most {MOST:,} clients, and {len(clients):,} are listed")
    return clients


def slots(clients: int, gateways: int) -> list[range]:
    """The clients of each gateway: equal shares in order, the last one perhaps smaller."""
    if not 1 <= gateways <= clients:
        raise InvalidInput(f"there are {clients} clients: give 1 to {clients} gateways, got {gateways}")
    each = math.ceil(clients / gateways)
    found = [range(first, min(first + each, clients)) for first in range(0, clients, each)]
    if len(found) != gateways:
        raise InvalidInput(f"{clients} clients cannot be shared by {gateways} gateways evenly: take {len(found)}")
    return found


class Gateways(Fleet):
    """The clients of a recipe, reached through the gateways of another fleet.

    A gateway's answers for clients that are not its own are dropped: it cannot speak for those of another.
    """

    def __init__(self, fleet: Fleet, clients: int, gateways: int) -> None:
        self._fleet, self._slots = fleet, slots(clients, gateways)
        self.groups = self._slots  # the invitation of a gateway is signed for all of its clients
        self._of = {client: gateway for gateway, own in enumerate(self._slots) for client in own}

    def begin_round(self, round: int) -> None:
        """Begin a round at the gateways."""
        self._fleet.begin_round(round)

    def vacant(self, round: int) -> Collection[int]:
        """All clients of places that no gateway holds; names are those of gateways, and so nobody's here."""
        return frozenset(client for gateway in self._fleet.vacant(round) for client in self._slots[gateway])

    def invite(self, invitations: Mapping[int, bytes]) -> dict[int, str]:
        """Hand each gateway the invitation of its first client: it is signed for all of them."""
        absent = self._fleet.invite({gateway: invitations[own[0]] for gateway, own in enumerate(self._slots)})
        return {client: why for gateway, why in absent.items() for client in self._slots[gateway]}

    def exchange(self, step: str, messages: Mapping[int, bytes], deadline: float | None) -> Generator[Reply]:
        """The replies of all clients, gateway by gateway."""
        if step != "report":
            raise InvalidInput(f"gateways hand on reports, and not the step {step!r}: take the direct channel")
        asked = self._asked(messages, deadline)
        with closing(self._fleet.exchange(STEP, asked, deadline)) as bundles:
            for reply in bundles:
                yield from self._replies(reply, [client for client in self._slots[reply.client] if client in messages])

    def _asked(self, messages: Mapping[int, bytes], deadline: float | None) -> dict[int, bytes]:
        left = None if deadline is None else SHARE * max(1.0, deadline - time.monotonic())
        groups: dict[int, list[int]] = {}
        for client in messages:
            groups.setdefault(self._of[client], []).append(client)
        found = {}
        for gateway, clients in groups.items():
            plans: Sequence[bytes] = list({messages[client] for client in clients})
            if len(plans) != 1:
                raise InvalidInput("all clients behind a gateway get the same plan")
            found[gateway] = Gather(tuple(clients), plans[0], left).encode()
        return found

    def _replies(self, reply: Reply, clients: Sequence[int]) -> Generator[Reply]:
        """What a gateway's reply means for its clients that were asked."""
        if reply.message is None:
            yield from (replace(reply, client=client) for client in clients)
            return
        try:
            bundle = Bundle.decode(reply.message)
        except InvalidInput as error:
            yield from (Reply(client, reason=str(error)) for client in clients)
            return
        own = self._slots[reply.client]
        yield from (Reply(client, answer) for client, answer in bundle.answers.items() if client in own)
        yield from (Reply(client, reached=False) for client in bundle.unreached if client in clients)


__all__ = ["STEP", "Bundle", "Gateways", "Gather", "slots"]

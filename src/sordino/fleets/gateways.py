"""Clients behind gateways: each gateway is one client of another fleet, and answers for many pages with one message.

A gateway hands a plan on to its participants and sends their answers together. Everything in them was randomised before
it left its participant, so that putting answers into one message takes nothing from any guarantee. Every answer is
still checked, counted and refused by itself, at the coordinator.

    gather   "SG" | version u8 | 0 u8 | seconds u32 (0: no deadline) | count u32 | client u32 ... | plan
    bundle   "SB" | version u8 | 0 u8 | not reached u32 | answers u32 | client u32 ... | (client u32 | length u32 | answer) ...
"""  # noqa: E501 (a message in one line)

from __future__ import annotations

import math
import struct
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from sordino.errors import InvalidInput
from sordino.fleets.interface import Fleet, Reply

VERSION = 1
STEP = "gather"
MOST = 10**6  #: clients behind one gateway
SHARE = 0.9  #: of the time to the deadline that a gateway may take
_GATHER = struct.Struct("<2sBxII")
_BUNDLE = struct.Struct("<2sBxII")
_ENTRY = struct.Struct("<II")


@dataclass(frozen=True)
class Gather:
    """What a gateway is asked: the answers of these clients to a plan, within so many seconds."""

    clients: tuple[int, ...]
    plan: bytes
    seconds: float | None = None

    def encode(self) -> bytes:
        """The bytes that are sent."""
        whole = 0 if self.seconds is None else max(1, int(self.seconds))
        head = _GATHER.pack(b"SG", VERSION, whole, len(self.clients))
        return head + struct.pack(f"<{len(self.clients)}I", *self.clients) + self.plan

    @classmethod
    def decode(cls, message: bytes) -> Gather:
        """What `encode` wrote; anything else is refused."""
        seconds, count = _head(message, _GATHER, b"SG")
        end = _GATHER.size + 4 * count
        if count > MOST or len(message) < end:
            raise InvalidInput("a gateway's request was cut off")
        clients = struct.unpack_from(f"<{count}I", message, _GATHER.size)
        return cls(clients, bytes(message[end:]), seconds or None)


@dataclass(frozen=True)
class Bundle:
    """What a gateway sends: the answers of its clients, and to whom nothing was sent."""

    answers: Mapping[int, bytes]
    unreached: tuple[int, ...] = ()

    def encode(self) -> bytes:
        """The bytes that are sent."""
        parts = [
            _BUNDLE.pack(b"SB", VERSION, len(self.unreached), len(self.answers)),
            struct.pack(f"<{len(self.unreached)}I", *self.unreached),
        ]
        for client, answer in self.answers.items():
            parts += (_ENTRY.pack(client, len(answer)), answer)
        return b"".join(parts)

    @classmethod
    def decode(cls, message: bytes) -> Bundle:
        """What `encode` wrote; anything else is refused."""
        away, count = _head(message, _BUNDLE, b"SB")
        place = _BUNDLE.size + 4 * away
        if max(away, count) > MOST or len(message) < place:
            raise InvalidInput("a gateway's bundle was cut off")
        unreached = struct.unpack_from(f"<{away}I", message, _BUNDLE.size)
        answers: dict[int, bytes] = {}
        for _ in range(count):
            if len(message) < place + _ENTRY.size:
                raise InvalidInput("a gateway's bundle was cut off")
            client, length = _ENTRY.unpack_from(message, place)
            place += _ENTRY.size
            if len(message) < place + length or client in answers:
                raise InvalidInput("a gateway's bundle was cut off, or names a client twice")
            answers[client] = bytes(message[place : place + length])
            place += length
        if place != len(message):
            raise InvalidInput("a gateway's bundle has something after its last answer")
        return cls(answers, unreached)


def _head(message: bytes, form: struct.Struct, magic: bytes) -> tuple[int, int]:
    if len(message) < form.size:
        raise InvalidInput("a gateway's message was cut off")
    found, version, first, second = form.unpack_from(message)
    if (found, version) != (magic, VERSION):
        raise InvalidInput(f"this is no message of a gateway of version {VERSION}")
    return int(first), int(second)


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

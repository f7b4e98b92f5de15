"""How much a participant may ask of the server: sizes, rates and times."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Hashable
from dataclasses import dataclass
from ipaddress import IPv4Address, ip_address, ip_network

ADDRESSES = 10_000  #: that a limit by address remembers


@dataclass(frozen=True)
class Limits:
    """All limits, as docs/web-protocol.md lists them."""

    text: int = 4096  #: bytes of a text frame
    spare: int = 2048  #: bytes of a binary frame beyond the largest report: envelope, reason and receipt
    receipt: int = 512  #: bytes
    rate: float = 20.0  #: text frames of a connection each second, on average
    burst: float = 60.0  #: and at once
    frames: float = 100.0  #: small frames of a participant each second, pings and pongs too, beside its responses
    frames_burst: float = 1000.0  #: and at once
    first_frames: float = 16.0  #: small frames of a connection before its hello was accepted
    request: float = 10.0  #: seconds in which an HTTP request arrives, headers and body, and a TLS handshake is done
    body: int = 2**12  #: bytes of a request's body that are read: the operator sends a few, and nobody else any
    requests: float = 10.0  #: HTTP requests of one address each second, and one more for each place that it may take
    requests_burst: float = 20.0  #: seconds of them at once
    turn: float = 10.0  #: seconds that a request beyond them waits; where it would be longer, it is refused
    hello: float = 10.0  #: seconds until the first message
    refused: int = 10  #: refused attempts from one address (`network`)
    within: float = 60.0  #: seconds
    places: int = 40  #: of an open federation that one address may take: a class behind one router
    absence: float = 600.0  #: seconds without a connection after which a place may go to somebody else
    sending: float = 10.0  #: seconds between looks at whether somebody takes what is sent
    slowest: int = 2**15  #: bytes that a connection takes each second, where more waits
    waiting: int = 256  #: messages that may wait for a participant
    idle: float = 20.0  #: seconds without a sign of life (answers to the server's own pings count)
    pulse: float = 5.0  #: seconds between two signs of life that a page asks for, if plans are small
    connections: int = 10_000  #: of participants
    watching: int = 2_000  #: event streams at the same time
    streams: int = 2  #: of them, for each place that one address may take: a page's own, and one that looks on
    in_flight: int = 2**26  #: bytes of plans that are on their way at the same time


def network(address: str) -> str:
    """The address that limits count: itself, or with IPv6 its /64, since one household has all of it."""
    try:
        found = ip_address(address)
    except ValueError:
        return address
    if isinstance(found, IPv4Address):
        return address
    return str(found.ipv4_mapped or ip_network((int(found), 64), strict=False))


class Bucket:
    """Lets messages of each sender pass at a rate, and `burst` at once; the last 10,000 senders are known."""

    def __init__(self, rate: float, burst: float) -> None:
        self._each, self._ahead = 1 / rate, burst / rate
        self._spent: dict[Hashable, float] = {}  # until when the rate is used up; who asked last is last

    def wait(self, cost: float = 1.0, who: Hashable = None) -> float:
        """Seconds until something of this cost may pass; 0 if it may now."""
        now = time.monotonic()
        return max(0.0, max(self._spent.get(who, 0.0), now - self._ahead) + cost * self._each - now)

    def note(self, cost: float = 1.0, who: Hashable = None) -> None:
        """Count something that passes; a negative cost gives back, though never more than there is room for."""
        spent = max(self._spent.pop(who, 0.0), time.monotonic() - self._ahead)
        self._spent[who] = spent + cost * self._each
        if len(self._spent) > ADDRESSES:
            del self._spent[next(iter(self._spent))]

    def take(self) -> bool:
        """Whether one more may pass now; if so, it counts."""
        if self.wait() > 1e-6:  # less is rounding
            return False
        self.note()
        return True


class Watchers:
    """Event streams that are open, by address (`network`)."""

    def __init__(self, limits: Limits, room: int) -> None:
        self._most, self.each = min(limits.watching, room // 4), limits.streams * limits.places
        self._open: Counter[str] = Counter()

    @property
    def full(self) -> bool:
        """Whether no more are open to anybody."""
        return self._open.total() >= self._most

    def has_all(self, address: str) -> bool:
        """Whether one address holds as many as it may."""
        return self._open[address] >= self.each

    def come(self, address: str) -> None:
        """One more is open."""
        self._open[address] += 1

    def go(self, address: str) -> None:
        """One has ended."""
        self._open[address] -= 1
        if not self._open[address]:
            del self._open[address]  # addresses that are gone take no memory


class Attempts:
    """Refused attempts by address, within the last minute; memory is bounded."""

    def __init__(self, most: int, within: float) -> None:
        self._most, self._within = most, within
        self._seen: dict[str, deque[float]] = {}

    def note(self, address: str) -> None:
        """One more attempt was refused."""
        if address not in self._seen and len(self._seen) >= ADDRESSES:
            self._seen.pop(next(iter(self._seen)))
        self._seen.setdefault(address, deque(maxlen=self._most)).append(time.monotonic())

    def wait(self, address: str) -> float:
        """Seconds until this address may try again; 0 if it may now."""
        times = self._seen.get(address)
        if times is None or len(times) < self._most:
            return 0.0
        return max(0.0, times[0] + self._within - time.monotonic())


__all__ = ["Attempts", "Bucket", "Limits", "Watchers", "network"]

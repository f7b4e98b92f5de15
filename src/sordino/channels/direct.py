"""The direct channel: every report goes from its client to the coordinator in one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sordino.channels.interface import Channel, Exchange


class Direct(Channel):
    """One step, `report`: the plan out, the reports back, each with its client's name."""

    def collect(self, exchange: Exchange, plan: bytes, clients: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """The bodies of the reports on this plan, as they arrive."""
        yield from exchange("report", dict.fromkeys(clients, plan))


__all__ = ["Direct"]

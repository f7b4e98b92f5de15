"""The relay: all reports go to it, and it hands k of them to the coordinator, without names.

It is the k-client selection module of LDP-Fed (Truex et al. 2020, section 3) read as a party of its own, between the
clients and the aggregator. All that were asked have randomised and sent, so all of them have spent their budget: the
reports that are dropped are unseen by the aggregator, not by the relay. The relay sees every report and whose it is; it
must be trusted with that as a shuffler is, or what holds against it is what holds against a server that gets them all.

The aggregator gets each report under the name of *some* client of the same class (clients of one class have one
mechanism): it can decode it, and learns no more than the class. Who is handed on is decided by the relay's own draw.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from sordino.channels.interface import Channel, Exchange
from sordino.channels.spec import ChannelSpec
from sordino.errors import InvalidInput
from sordino.parts.tables import Count, Found, reads, tag
from sordino.randomness import Keystream, Purpose
from sordino.wire.messages import Plan

if TYPE_CHECKING:
    from sordino.methods.interface import Method
    from sordino.recipe import Recipe

RELAY = 1  #: the tensor number of the relay's draws; the server's own selection has 0

Lots = Callable[[int, Sequence[int]], NDArray[np.uint64]]  #: round, clients -> a random number for each of them


class Relay(Channel):
    """One step, `report`, and k of the reports: those whose clients drew the smallest lots among all that came."""

    class Spec(ChannelSpec):
        """All reports go to a relay, which hands k of them to the server without names; it sees everything itself."""

        uses: ClassVar[frozenset[str]] = frozenset({"lots"})
        simulated: ClassVar[bool] = True
        kind: str = tag("relay", "all reports go to a trusted relay, which hands on k of them without names")
        k: Count = Field(description="how many are handed on; those asked spend their budget all the same")

        def build(self, recipe: Recipe, method: Method) -> Relay:
            return Relay.simulated(self.k, [method.class_of(client) for client in range(method.clients)], recipe.seed)

        def handed_on(self, asked: int) -> int:
            return min(asked, self.k)

        @reads("method.selection", ".", "split")
        def no_more_than_it_gets(self, recipe: Recipe) -> Found:
            """A relay hands on no more reports than it gets."""
            asked = recipe.method.selection.asked(recipe.number_of_clients)
            if self.k > asked:
                yield ".k", f"got {self.k}; allowed: at most {asked}, the clients asked in a round"

    def __init__(self, k: int, class_of: Sequence[int], lots: Lots) -> None:
        if not 1 <= k <= len(class_of):
            raise InvalidInput(f"a relay hands on from 1 to {len(class_of)} reports, one for each client, got k = {k}")
        self._k, self._class_of, self._lots = k, np.asarray(class_of), lots

    @classmethod
    def simulated(cls, k: int, class_of: Sequence[int], seed: int) -> Relay:
        """A relay that draws lots from the seed."""
        return cls(k, class_of, partial(seeded_lots, seed))

    def collect(self, exchange: Exchange, plan: bytes, clients: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """The bodies of k reports, as many of each class as happened to be drawn, under other clients' names."""
        lots = self._lots(Plan.decode(plan).round, clients)
        drawn = dict(zip(clients, lots.tolist(), strict=True))
        kept: list[tuple[int, int, bytes]] = []  # the largest lot first: never more than k reports are held
        for client, body in exchange("report", dict.fromkeys(clients, plan)):
            heapq.heappush(kept, (-drawn[client], client, body))
            if len(kept) > self._k:
                heapq.heappop(kept)
        names = {c: iter(np.flatnonzero(self._class_of == c).tolist()) for c in np.unique(self._class_of).tolist()}
        for _, client, body in sorted(kept, reverse=True):  # by lot, an order that says nothing of who they are
            yield next(names[int(self._class_of[client])]), body


def seeded_lots(seed: int, round: int, clients: Sequence[int]) -> NDArray[np.uint64]:
    """Lots for simulations: the same seed gives the same ones, whoever else takes part."""
    stream = Keystream.simulation(seed, list(clients), round)
    words = stream.words(np.arange(len(clients)), Purpose.SELECT, RELAY, 0, 4)
    return np.ascontiguousarray(words[:, :2]).view("<u8")[:, 0]

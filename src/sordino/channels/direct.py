"""The direct channel: every report goes from its client to the coordinator in one step."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, ClassVar

from sordino.channels.interface import Channel, Exchange
from sordino.channels.spec import ChannelSpec
from sordino.parts.tables import tag

if TYPE_CHECKING:
    from sordino.methods.interface import Method
    from sordino.recipe import Recipe


class Direct(Channel):
    """One step, `report`: the plan out, the reports back, each with its client's name."""

    class Spec(ChannelSpec):
        """Each report goes straight to the server."""

        in_pages: ClassVar[bool] = True
        kind: str = tag("direct", "each report goes straight to the server")

        def build(self, recipe: Recipe, method: Method) -> Direct:
            return Direct()

    @property
    def adds_up(self) -> bool:
        """A channel that extends this one may look at each report."""
        return type(self) is Direct

    def collect(self, exchange: Exchange, plan: bytes, clients: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """The bodies of the reports on this plan, as they arrive."""
        yield from exchange("report", dict.fromkeys(clients, plan))

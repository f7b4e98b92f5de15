"""What the coordinator knows of a channel: how reports travel from clients to the server."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sordino.channels.shuffle import Timing
    from sordino.methods.upload import Lost, ReportSum

Exchange = Callable[[str, Mapping[int, bytes]], Iterator[tuple[int, bytes]]]
#: step, {client: message} -> (client, body) as they arrive; the coordinator has checked envelope, round and sender


class Channel(ABC):
    """How reports travel; a channel of several steps calls `exchange` once for each."""

    leaving: str | None = None  #: the step in which a report leaves its client; None: one may leave in any step
    timing: Timing | None = None  #: when the reports of the last round arrived, where delays are simulated

    @property
    def adds_up(self) -> bool:
        """Whether reports that simulated clients have added up may take the place of single ones."""
        return False

    @abstractmethod
    def collect(
        self, exchange: Exchange, plan: bytes, clients: Sequence[int]
    ) -> Iterator[tuple[int, bytes]] | Iterator[ReportSum | Lost]:
        """The bodies of the reports on this plan with their clients, as they arrive; or sums in their place."""

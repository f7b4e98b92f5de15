"""Flower's own `Grid` as a carrier: one flat array of bytes in a message, and one in its reply."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from sordino.errors import InvalidInput
from sordino.fleets.carrier import Carrier, Letter, LetterReply, NodeFacts
from sordino.flower import bundles, require

require()

from flwr.app import Message  # noqa: E402 (after what says that it is missing)

if TYPE_CHECKING:
    from flwr.app import ArrayRecord
    from flwr.serverapp import Grid

QUERY = "query"  #: the kind of message that the clients' relay takes


class GridCarrier(Carrier):
    """Nodes of a `Grid`."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid

    def nodes(self) -> list[NodeFacts]:
        """All nodes that are online."""
        return [NodeFacts(node.node_id, node.last_activated_at, node.name) for node in self._grid.get_nodes()]

    def push(self, letters: Sequence[Letter]) -> list[str]:
        """Send letters; nodes that are sent the same share one array, which Flower stores once."""
        shared: dict[bytes, ArrayRecord] = {}
        found = []
        for letter in letters:
            if letter.frames not in shared:
                shared[letter.frames] = bundles.array(letter.frames)
            content = bundles.content(shared[letter.frames], letter.before)
            message = Message(content, letter.node, QUERY, ttl=letter.seconds)
            found += [id or "" for id in self._grid.push_messages([message])] or [""]
        return found

    def pull(self, letters: Sequence[str]) -> list[LetterReply]:
        """Those replies to these letters that have come."""
        return [_delivered(reply) for reply in self._grid.pull_messages(list(letters))] if letters else []


def _delivered(reply: Message) -> LetterReply:
    letter = reply.metadata.reply_to_message_id
    if reply.has_error():
        return LetterReply(letter, error=f"did not answer: {reply.error.reason}")
    try:
        return LetterReply(letter, bundles.bundle_in(reply))
    except InvalidInput as error:
        return LetterReply(letter, error=f"sent what cannot be read: {error}")


__all__ = ["GridCarrier"]

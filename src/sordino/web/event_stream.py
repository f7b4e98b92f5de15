"""Event streams: what has changed in a federation, told to whoever watches."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Hashable
from typing import Protocol

from fastapi import HTTPException, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from sordino.web.limits import Watchers, network
from sordino.web.premises import Premises
from sordino.wire.codec import JsonObject

BEAT = 1.0  #: seconds between looks at what has changed
STILL = 5.0  #: seconds after which an event stream says that it is alive
WATCH_AGAIN = 60.0  #: seconds after which one who may not watch now may ask again


class Shown(Protocol):
    """A federation as it is shown to somebody."""

    @property
    def federation(self) -> str:
        """The name that plans carry."""

    @property
    def audience(self) -> Hashable:
        """To whom it is shown: who is shown the same has the same."""

    @property
    def changes(self) -> int:
        """Grows whenever something that is shown has changed."""

    @property
    def statement_changes(self) -> int:
        """Grows whenever the statement has changed."""

    @property
    def state(self) -> str:
        """Where it stands: waiting, training, finished or failed."""

    @property
    def last_round(self) -> int:
        """The last finished round."""

    def summary(self) -> JsonObject:
        """The federation in short."""

    def history(self, after: int = 0) -> list[JsonObject]:
        """The finished rounds after a given one."""

    def live(self) -> JsonObject:
        """Single participants, as far as they are shown."""

    def statement(self) -> JsonObject | None:
        """What is proven; None where nobody knows yet."""


def stream(
    premises: Premises, request: Request, name: str, find: Callable[[], Shown], *, after: int | None, live: bool
) -> Response:
    """The events of a federation from now on, or after a round that is known; refused where too many watch."""
    address = network(request.client.host if request.client is not None else "")
    _require_room(premises.watchers, address, name)
    if request.method == "HEAD":  # nobody would read the events
        return StreamingResponse(iter(()), media_type="text/event-stream")
    known = find().last_round if after is None else after
    return _Watched(_events(premises, find, live, known), premises.watchers, address)


def _require_room(watchers: Watchers, address: str, name: str) -> None:
    """Refuse one event stream too many: one visitor must not hold all that there are."""
    instead = f"read /api/federations/{name} from time to time instead"
    later = {"Retry-After": f"{WATCH_AGAIN:g}"}
    if watchers.has_all(address):
        raise HTTPException(
            429,
            f"{watchers.each} event streams are open from your network address, and one address may open no more: "
            f"close some, {instead}, or ask the operator to allow more (--per-address)",
            later,
        )
    if watchers.full:
        raise HTTPException(503, f"too many watch this server already: try again later, or {instead}", later)


class _Watched(StreamingResponse):
    """The events of one who watches, counted from the moment they are promised until they end."""

    def __init__(self, events: AsyncIterator[str], watchers: Watchers, address: str) -> None:
        super().__init__(events, media_type="text/event-stream")
        self._watchers, self._address = watchers, address
        watchers.come(address)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._watchers.go(self._address)


async def _events(premises: Premises, find: Callable[[], Shown], live: bool, rounds: int) -> AsyncIterator[str]:
    """Server-sent events: what has changed, once a second at most; `live`: of single participants and proofs, too.

    They begin with the rounds after those that are known already, the first `rounds`. Where the federation begins anew,
    its summary comes first. When the server stops, what is new is told once more.
    """
    shown = find()
    number, seen, stated, still = 0, -1, shown.statement_changes, 0.0

    def encoded(view: Callable[[], JsonObject | None], version: int) -> str:
        return premises.encode((shown.federation, shown.audience, view.__name__), version, view)

    while True:
        last, news = premises.stopping, list[tuple[str, str]]()
        try:
            now = find()
        except HTTPException:  # who asked may no longer see it
            return
        if now.audience != shown.audience:
            shown, seen = now, -1
        if now.federation != shown.federation:
            shown, rounds, seen, stated = now, 0, -1, now.statement_changes
            news.append(("summary", encoded(shown.summary, shown.changes)))
        if shown.changes != seen:
            over = shown.state in ("finished", "failed")
            fresh = shown.history(rounds)
            rounds = max([rounds, *(entry["round"] for entry in fresh)])
            seen = shown.changes
            summary = encoded(shown.summary, seen)
            news += [("round", json.dumps(entry, allow_nan=False)) for entry in fresh]
            news += [("summary", summary), *([("live", encoded(shown.live, seen))] if live else [])]
            if live and shown.statement_changes != stated:
                stated = shown.statement_changes
                news.append(("statement", encoded(shown.statement, stated)))
            news += [("ended", summary)] if over else []
            still = 0.0
        elif still >= STILL:
            yield "event: still\ndata: {}\n\n"  # a comment would be seen by proxies, and not by the page
            still = 0.0
        for kind, content in news:
            number += 1
            yield f"id: {number}\nevent: {kind}\ndata: {content}\n\n"
        if last:
            return
        await asyncio.sleep(BEAT)
        still += BEAT


__all__ = ["BEAT", "Shown", "stream"]

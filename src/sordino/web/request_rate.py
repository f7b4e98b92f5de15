"""Requests of one address are answered at a rate. Those beyond it wait, and too many of them are refused.

Waiting costs the server nothing, since a connection is not read further while its request waits; and whoever shares an
address with somebody who asks without end is served a little later, instead of not at all.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Hashable
from typing import Any

from fastapi.responses import JSONResponse
from starlette.websockets import WebSocket

from sordino.web.connection import deny
from sordino.web.limits import Limits, network

COSTLY = ("/sample", "/model.bin")  #: endings of paths: an answer that is made anew, with megabytes
COST = 10.0  #: turns that such a request takes


class RequestRate:
    """When the next request of each kind and address (`network`) has its turn; memory is bounded."""

    def __init__(self, limits: Limits, addresses: int = 10_000) -> None:
        self._rate = limits.requests + limits.places
        self._longest, self._ahead, self._addresses = limits.turn, limits.requests_burst, addresses
        self._spent: dict[Hashable, float] = {}  # until when the rate is used up; who asked last is last

    def take(self, who: Hashable, cost: float = 1.0) -> float:
        """Seconds until a request has its turn; one for which that is longer than `Limits.turn` takes none."""
        now = time.monotonic()
        before = max(self._spent.pop(who, 0.0), now - self._ahead)
        after = before + cost / self._rate
        wait = max(0.0, after - now)
        self._spent[who] = after if wait <= self._longest else before
        if len(self._spent) > self._addresses:
            del self._spent[next(iter(self._spent))]
        return wait


class RateLimit:
    """Lets requests wait for their turn; WebSockets have their own, so that participants get in beside a flood."""

    def __init__(self, app: Any, turns: RequestRate, longest: float) -> None:
        self._app, self._turns, self._longest = app, turns, longest

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Answer a request in its turn, or refuse it; that too takes its time."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        who = scope["type"], network(client[0] if client else "")
        wait = self._turns.take(who, COST if scope["path"].endswith(COSTLY) else 1.0)
        if wait:
            await asyncio.sleep(min(wait, self._longest))
        if wait <= self._longest:
            await self._app(scope, receive, send)
            return
        retry = math.ceil(wait)
        why = f"too many requests from your network address: try again in {retry} seconds"
        if scope["type"] == "websocket":
            await deny(WebSocket(scope, receive, send), 429, why)
        else:
            headers = {"Retry-After": str(retry), "Connection": "close"}
            await JSONResponse({"error": why}, 429, headers)(scope, receive, send)


__all__ = ["RateLimit", "RequestRate"]

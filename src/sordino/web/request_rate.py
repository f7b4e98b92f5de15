"""Requests of one address are answered at a rate. Those beyond it wait, and too many of them are refused.

Waiting costs the server nothing, since a connection is not read further while its request waits; and whoever shares an
address with somebody who asks without end is served a little later, instead of not at all.
"""

from __future__ import annotations

import asyncio
import math

from fastapi.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send
from starlette.websockets import WebSocket

from sordino.web.connection import deny
from sordino.web.limits import Bucket, Limits, network

COSTLY = ("/sample", "/model.bin")  #: endings of paths: an answer that is made anew, with megabytes
COST = 10.0  #: turns that such a request takes


class RateLimit:
    """Lets requests wait for their turn; WebSockets have their own, so that participants get in beside a flood."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app, self._longest, rate = app, limits.turn, limits.requests + limits.places
        self._bucket = Bucket(rate, limits.requests_burst * rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request in its turn, or refuse it; that too takes its time."""
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        client = scope.get("client")
        who = scope["type"], network(client[0] if client else "")
        cost = COST if scope["path"].endswith(COSTLY) else 1.0
        wait = self._bucket.wait(cost, who)
        if wait <= self._longest:
            self._bucket.note(cost, who)
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


__all__ = ["RateLimit"]

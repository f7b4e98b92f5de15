"""Servers on loopback and participants without a browser: what a page sends, said in Python."""

import asyncio
import hmac
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from sordino.recipe import Recipe
from sordino.web.app import Site, create_app
from sordino.web.hosted_federation import HostedFederation, HostingRules
from sordino.web.limits import Limits
from sordino.web.page_task import PROTOCOL
from sordino.web.server import serve_in_thread
from sordino.wire.messages import Plan, answer_to
from sordino.wire.requests import Request, Response, What
from sordino.wire.tls_address import TlsAddress
from tests.client import people

BITS = -(-650 // 8)  #: bytes of a two-point report on digits with logistic regression


def recipe(changes: dict[str, Any] | None = None) -> Recipe:
    """Two-point updates of three clients with a few digits each."""
    return people.recipe({"name": "demo", "rounds.count": 2, **(changes or {})})


def hosted(folder: Path, changes: dict[str, Any] | None = None, **options: Any) -> HostedFederation:
    return HostedFederation(recipe(changes), folder / "demo", HostingRules(**{"patience": 0.3, **options}))


@contextmanager
def serving(site: Site, place: TlsAddress | None = None) -> Iterator[int]:
    """Serve in a thread, for as long as it is needed; the port comes back."""
    with serve_in_thread(site, create_app(site), place or TlsAddress()) as port:
        yield port


@contextmanager
def server(found: HostedFederation, **rules: Any) -> Iterator[int]:
    """A running server with one federation; its port."""
    limits = rules.pop("limits", Limits())
    with serving(Site({found.name: found}, limits, **rules)) as port:
        yield port


def get(port: int, path: str) -> Any:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        return json.loads(answer.read())


def fetch(port: int, path: str) -> tuple[int, Any, bytes]:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            return answer.status, answer.headers, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.headers, error.read()


def operate(port: int, method: str, path: str, headers: dict[str, str] | None = None, body: Any = None) -> int:
    """The status of an operator's request; a refusal says why."""
    address, content = f"http://127.0.0.1:{port}{path}", None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(address, content, headers or {}, method=method)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        with error:
            assert json.loads(error.read())["error"]
            return error.code


def strangers(port: int) -> list[dict[str, str]]:
    """Headers of requests that do not come from the operator at the server's own page."""
    own = f"http://127.0.0.1:{port}"
    return [
        {"Origin": "https://evil.example"},
        {"Origin": "https://page.example"},  # it may connect, and no more
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": f"http://localhost:{port}"},  # another origin than the one that was asked
        {"Origin": own, "Sec-Fetch-Site": "cross-site"},
        {"Origin": own, "Sec-Fetch-Site": "same-site"},
        {"Origin": own, "X-Forwarded-For": "192.0.2.7"},
        {"X-Forwarded-For": "127.0.0.1"},  # anybody can write this where a proxy on another machine is trusted
        {"X-Forwarded-Host": "learn.example"},  # some tunnels put this machine's name into Host
        {"Via": "1.1 learn.example"},
        {"Forwarded": "for=127.0.0.1"},
        {"X-Real-IP": "192.0.2.7"},
        {"Origin": "http://rebound.example", "Host": "rebound.example"},
    ]


class Visitor:
    """One connection of one identity."""

    def __init__(self, socket: ClientConnection, found: HostedFederation) -> None:
        self.socket, self.hosted = socket, found
        self.heard: list[dict[str, Any]] = []

    async def until(self, kind: str) -> dict[str, Any]:
        """The next control message of a kind."""
        while True:
            message = await asyncio.wait_for(self.socket.recv(), 30)
            if isinstance(message, str):
                self.heard.append(json.loads(message))
                if self.heard[-1]["type"] == kind:
                    return self.heard[-1]

    async def plan(self) -> Plan:
        """The next plan."""
        while True:
            message = await asyncio.wait_for(self.socket.recv(), 30)
            if isinstance(message, bytes):
                request = Request.decode(message)
                assert request.what is What.STEP
                assert request.step == "report"
                return Plan.decode(people.unsigned(request.payload))
            self.heard.append(json.loads(message))

    async def report(self, plan: Plan, body: bytes | None = b"\x00" * BITS) -> None:
        reason = "" if body is not None else "the owner's budget does not allow it"
        await self.socket.send(Response(body is not None, answer_to(plan, body), reason).encode())

    async def rounds(self) -> int:
        """Answer all plans with zeros until the federation is over; how many there were."""
        count = 0
        async for message in self.socket:
            if isinstance(message, bytes):
                await self.report(Plan.decode(people.unsigned(Request.decode(message).payload)))
                count += 1
            elif json.loads(message)["type"] == "ended":
                break
        return count


def hello(found: HostedFederation, secret: bytes, **changes: Any) -> dict[str, Any]:
    name = found.federation.encode()
    return {
        "type": "hello",
        "protocol": PROTOCOL,
        "kind": "page",
        "token": "",
        "task": found.task.digest,
        "last": None,
        "id": hmac.digest(secret, b"sordino web id 1\0" + name, "sha256")[:16].hex(),
        "proof": hmac.digest(secret, b"sordino web proof 1\0" + name, "sha256").hex(),
        **changes,
    }


@asynccontextmanager
async def visit(
    port: int, found: HostedFederation, secret: bytes | str = b"me", origin: str | None = "", **changes: Any
) -> AsyncIterator[Visitor]:
    """A page that has said hello; `origin` None is none, empty is the server's own."""
    own = f"http://127.0.0.1:{port}" if origin == "" else origin
    address = f"ws://127.0.0.1:{port}/api/federations/{found.name}/ws"
    async with connect(address, origin=own, subprotocols=[f"sordino.{PROTOCOL}"], max_size=2**24) as socket:
        key = secret.encode() if isinstance(secret, str) else secret
        with suppress(ConnectionClosed):  # a server that has no time says so at once
            await socket.send(json.dumps(hello(found, key, **changes)))
        yield Visitor(socket, found)


def zeros() -> np.ndarray[Any, Any]:
    return np.zeros(650, np.float32)

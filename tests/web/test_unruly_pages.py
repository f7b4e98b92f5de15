"""Two honest pages and an unruly one, over real sockets: the others' rounds go on."""

import asyncio
import time
from contextlib import suppress

import pytest
from websockets.exceptions import ConnectionClosed

from sordino.web.hosted_federation import HostedFederation
from sordino.wire.messages import Answer, Plan, answer_to
from sordino.wire.requests import Request, Response
from tests.client import people
from tests.web.visitors import BITS, recipe, server, visit

ALONE, DISTURBED = 1.5, 6.0  #: seconds for which the pace is measured


async def honest(port, found, secret):
    async with visit(port, found, secret) as visitor:
        with suppress(ConnectionClosed):
            await visitor.rounds()


async def leaves(port, found, secret):
    """Takes the plan, and comes anew every five seconds."""
    while True:
        async with visit(port, found, secret) as visitor:
            with suppress(TimeoutError):
                async with asyncio.timeout(5):
                    async for _ in visitor.socket:
                        pass


async def answers(port, found, secret, change, seconds=0.0):
    """Answers each plan, changed and later."""
    async with visit(port, found, secret) as visitor:
        try:
            async for message in visitor.socket:
                if isinstance(message, bytes):
                    plan = Plan.decode(people.unsigned(Request.decode(message).payload))
                    await asyncio.sleep(seconds)
                    answer = change(Answer.decode(answer_to(plan, b"\0" * BITS)))
                    if answer is not None:
                        await visitor.socket.send(Response(True, answer.encode(), "").encode())
        finally:
            visitor.socket.transport.abort()  # plans that it has not read are in the way of a closing handshake


UNRULY = {
    "takes the plan and leaves every five seconds": leaves,
    "wrong digest": lambda *whom: answers(*whom, lambda one: Answer(one.kind, one.round, b"x" * 16, one.body)),
    "silent": lambda *whom: answers(*whom, lambda _: None),
    "answers after 20 seconds": lambda *whom: answers(*whom, lambda one: one, 20.0),
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A federation in which every unruly page has a place of its own."""
    changes = {"rounds.count": 5000, "rounds.quorum": 2, "split.clients": 2 + len(UNRULY)}
    found = HostedFederation(recipe(changes), tmp_path_factory.mktemp("unruly") / "demo")
    with server(found) as port:
        yield found, port


@pytest.mark.parametrize("name", UNRULY)
def test_two_honest_pages_keep_half_their_pace_beside_an_unruly_one(served, name):
    found, port = served

    async def pace(seconds):
        before, began = found.last_round, time.monotonic()
        await asyncio.sleep(seconds)
        return (found.last_round - before) / (time.monotonic() - began)

    async def paces():
        tasks = [asyncio.create_task(honest(port, found, secret)) for secret in "ab"]
        begun = found.last_round + 3
        while found.last_round < begun:
            await asyncio.sleep(0.05)
        alone = await pace(ALONE)
        tasks.append(asyncio.create_task(UNRULY[name](port, found, name)))
        while len(found.fleet.connected) < 3:
            await asyncio.sleep(0.01)
        disturbed = await pace(DISTURBED)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return alone, disturbed

    alone, disturbed = asyncio.run(paces())
    assert disturbed >= alone / 2

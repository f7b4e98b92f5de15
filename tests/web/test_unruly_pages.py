"""Two honest pages and an unruly one, over real sockets: the others' rounds go on."""

import asyncio
from contextlib import suppress

import pytest
from websockets.exceptions import ConnectionClosed

from sordino.web.hosted_federation import PATIENCE, HostedFederation
from sordino.wire.messages import Answer, Plan, answer_to
from sordino.wire.requests import Request, Response
from tests.client import people
from tests.web.visitors import BITS, recipe, server, visit

SECONDS = 6.0  #: for which rounds are counted, on a machine as busy as may be


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
def test_honest_pages_wait_for_no_unruly_one_round_after_round(served, name):
    """A server that waited for it in every round would have one in each stretch of patience."""
    found, port = served

    async def rounds():
        tasks = [asyncio.create_task(honest(port, found, secret)) for secret in "ab"]
        tasks.append(asyncio.create_task(UNRULY[name](port, found, name)))
        while len(found.fleet.connected) < 3:
            await asyncio.sleep(0.01)
        before = found.last_round
        await asyncio.sleep(SECONDS)
        count = found.last_round - before
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return count

    assert asyncio.run(rounds()) >= 4 * SECONDS / PATIENCE

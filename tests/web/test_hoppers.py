"""Visitors who leave and come back as somebody else, decline everywhere or send rubbish, over real sockets."""

import asyncio
import json
import time
from collections import Counter
from contextlib import asynccontextmanager, suppress

import pytest
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed

from sordino.web.hosted_federation import HostedFederation, HostingRules
from sordino.web.limits import Limits
from sordino.web.page_task import PROTOCOL
from sordino.web.places import REMEMBERED, Places, Receipts
from sordino.wire.messages import Plan
from sordino.wire.requests import Request, What
from tests.client import people
from tests.web.visitors import Visitor, hello, recipe, server

HOSTILE = "127.0.0.9"
ONE_PLACE = Limits(places=1)


@asynccontextmanager
async def visit(port, found, secret, source):
    """A page that has said hello from an address of its own."""
    address = f"ws://127.0.0.1:{port}/api/federations/{found.name}/ws"
    options = {"origin": f"http://127.0.0.1:{port}", "subprotocols": [f"sordino.{PROTOCOL}"], "max_size": 2**24}
    async with connect(address, local_addr=(source, 0), close_timeout=0.5, **options) as socket:
        with suppress(ConnectionClosed):
            token = "" if found.link is None else found.link.token  # a hostile visitor has the link too
            await socket.send(json.dumps(hello(found, secret.encode(), token=token)))
        yield Visitor(socket, found)


async def honest(port, found, secret, source, answers=None):
    async with visit(port, found, secret, source) as visitor:
        with suppress(ConnectionClosed):
            async for message in visitor.socket:
                if isinstance(message, bytes) and (request := Request.decode(message)).what is What.STEP:
                    await visitor.report(Plan.decode(people.unsigned(request.payload)))
                    if answers is not None:
                        answers[secret] += 1


@asynccontextmanager
async def honest_pages(port, found, count, answers=None):
    pages = [asyncio.create_task(honest(port, found, f"honest {k}", f"127.0.0.{2 + k}", answers)) for k in range(count)]
    while len(found.fleet.connected) < count:
        await asyncio.sleep(0.01)
    try:
        yield
    finally:
        for page in pages:
            page.cancel()
        await asyncio.gather(*pages, return_exceptions=True)


async def hop(port, found, identity, answer):
    """Join as somebody, answer one plan (or see two), and leave for good; the place, or why there is none."""
    place = None
    async with visit(port, found, identity, HOSTILE) as visitor:
        with suppress(TimeoutError, ConnectionClosed):
            async with asyncio.timeout(3):
                async for message in visitor.socket:
                    if isinstance(message, bytes):
                        if await answer(visitor, Plan.decode(people.unsigned(Request.decode(message).payload))):
                            break
                    elif (told := json.loads(message))["type"] in ("welcome", "refused"):
                        place = told.get("client", told.get("code"))
        with suppress(TimeoutError, ConnectionClosed):
            await visitor.socket.send(json.dumps({"type": "leave"}))
            async with asyncio.timeout(1):
                async for _ in visitor.socket:
                    pass
    return place


async def declines(visitor, plan):
    await visitor.report(plan, None)
    await visitor.until("received")
    return True


@pytest.mark.parametrize("shared_link", [False, True])
@pytest.mark.parametrize(("quorum", "pages"), [(3, 2), (1, 0)])
def test_who_declines_and_comes_anew_ends_no_federation(tmp_path, quorum, pages, shared_link):
    changes = {"rounds.count": 1000, "rounds.quorum": quorum, "split.clients": 5}
    rules = HostingRules(limits=ONE_PLACE, patience=0.3, shared_link=shared_link)
    found = HostedFederation(recipe(changes), tmp_path / "demo", rules)

    async def go(port):
        async with honest_pages(port, found, pages):
            places = [await hop(port, found, f"somebody {k}", declines) for k in range(6)]
            assert set(places) == {pages}  # one place and no more
            assert found.state in ("waiting", "training")
            async with visit(port, found, "newcomer", "127.0.0.8") as newcomer:
                assert (await newcomer.until("welcome"))["client"] == pages + 1

    with server(found, limits=ONE_PLACE) as port:
        asyncio.run(go(port))


def test_who_is_silent_and_comes_anew_does_not_slow_the_others_for_long(tmp_path):
    changes = {"rounds.count": 5000, "rounds.quorum": 2, "split.clients": 50}
    found = HostedFederation(recipe(changes), tmp_path / "demo", HostingRules(limits=ONE_PLACE, patience=0.5))

    async def keeps_hopping(port):
        for k in range(100):
            seen = Counter()

            async def two_plans(visitor, plan, seen=seen):
                seen["plans"] += 1
                return seen["plans"] > 1

            await hop(port, found, f"somebody {k}", two_plans)

    async def pace(seconds):
        before, began = found.last_round, time.monotonic()
        await asyncio.sleep(seconds)
        return (found.last_round - before) / (time.monotonic() - began)

    async def go(port):
        async with honest_pages(port, found, 2):
            while found.last_round < 3:
                await asyncio.sleep(0.02)
            alone = await pace(1.5)
            hopping = asyncio.create_task(keeps_hopping(port))
            disturbed = await pace(6.0)
            hopping.cancel()
            await asyncio.gather(hopping, return_exceptions=True)
            return alone, disturbed

    with server(found, limits=ONE_PLACE) as port:
        alone, disturbed = asyncio.run(go(port))
    assert disturbed >= alone / 2


def test_one_visitor_has_one_report_in_a_round_under_how_many_names(tmp_path):
    changes = {"rounds.count": 2, "rounds.quorum": 3, "split.clients": 5}
    found = HostedFederation(recipe(changes), tmp_path / "demo", HostingRules(limits=ONE_PLACE, patience=0.3))

    async def reports(visitor, plan):
        await visitor.report(plan)
        await visitor.until("received")
        return True

    async def go(port):
        async with visit(port, found, "a", "127.0.0.2") as a, visit(port, found, "b", "127.0.0.3") as b:
            await a.until("welcome")
            await b.until("welcome")
            names = [await hop(port, found, "first", reports)]
            names += [await hop(port, found, f"name {k}", reports) for k in range(2)]
            assert len(set(names)) == 1
            await asyncio.gather(a.rounds(), b.rounds(), hop(port, found, "last", reports))

    with server(found, limits=ONE_PLACE) as port:
        asyncio.run(go(port))
    assert [entry["reported"] for entry in found.history()] == [3, 3]


def test_rubbish_costs_one_round_and_nobodys_budget_after_it(tmp_path):
    changes = {"rounds.count": 6, "rounds.quorum": 2, "split.clients": 5}
    found = HostedFederation(recipe(changes), tmp_path / "demo", HostingRules(limits=ONE_PLACE, patience=0.3))
    answers = Counter()

    async def rubbish(port):
        async with visit(port, found, "bad", HOSTILE) as visitor:
            with suppress(ConnectionClosed):
                async for message in visitor.socket:
                    if isinstance(message, bytes):
                        await visitor.report(Plan.decode(people.unsigned(Request.decode(message).payload)), b"x")

    async def go(port):
        async with honest_pages(port, found, 1, answers):
            bad = asyncio.create_task(rubbish(port))
            await asyncio.sleep(2.0)
            assert (found.state, found.last_round, answers["honest 0"]) == ("waiting", 1, 1)
            async with visit(port, found, "second", "127.0.0.3") as second:
                await second.rounds()  # two honest pages are enough, whatever the third sends
            bad.cancel()
            await asyncio.gather(bad, return_exceptions=True)

    with server(found, limits=ONE_PLACE) as port:
        asyncio.run(go(port))
    assert [entry["counted"] for entry in found.history()] == [False] + [True] * 5


def test_who_declines_and_reconnects_uses_up_few_rounds(tmp_path):
    changes = {"rounds.count": 50, "rounds.quorum": 2, "split.clients": 5}
    found = HostedFederation(recipe(changes), tmp_path / "demo", HostingRules(limits=ONE_PLACE, patience=0.1))
    answers = Counter()

    async def reconnects(port):
        while True:
            async with visit(port, found, "bad", HOSTILE) as visitor:
                with suppress(ConnectionClosed, TimeoutError):
                    async with asyncio.timeout(2):
                        await declines(visitor, await visitor.plan())

    async def go(port):
        async with honest_pages(port, found, 1, answers):
            bad = asyncio.create_task(reconnects(port))
            await asyncio.sleep(4.0)
            bad.cancel()
            await asyncio.gather(bad, return_exceptions=True)

    with server(found, limits=ONE_PLACE) as port:
        asyncio.run(go(port))
    assert answers["honest 0"] <= 4


# --- what is kept of those who left -----------------------------------------------------------------------------------


def test_the_roster_forgets_who_left_long_ago_and_no_member(tmp_path):
    path, slots = tmp_path / "participants.jsonl", range(3)
    places = Places(path, slots)
    stays, _ = places.admit("a" * 32, "stays", "page", "", "127.0.0.2")
    for k in range(3 * REMEMBERED):
        member, known = places.admit(f"{k:032x}", "p", "page", "", HOSTILE)
        assert not known
        places.leave(member)
        if k % 100 == 0:
            places.settle()
    places.settle()
    assert len(path.read_bytes().splitlines()) <= 2 * (2 * len(slots) + REMEMBERED)
    again = Places(path, slots)
    assert again.members == {stays.client: stays}
    back, known = again.admit("a" * 32, "stays", "page", "", "127.0.0.2")
    assert (back, known) == (stays, True)
    last, _ = again.admit(f"{3 * REMEMBERED - 1:032x}", "p", "page", "", HOSTILE)
    assert last.client == member.client  # the place that it had last


def test_receipts_of_members_are_kept_and_of_few_who_left(tmp_path):
    places = Places(tmp_path / "p", range(3))
    stays, _ = places.admit("a" * 32, "stays", "page", "", "127.0.0.2")
    kept = Receipts(tmp_path / "r", lambda id: places.find(id) is not None)
    kept.take(stays, b"of the one who stays")
    for k in range(2 * REMEMBERED):
        member, _ = places.admit(f"{k:032x}", "p", "page", "", HOSTILE)
        kept.take(member, b"r")
        places.leave(member)
    kept.settle()
    assert len(json.loads((tmp_path / "r").read_text())) == REMEMBERED + 1
    assert kept.of(stays) == b"of the one who stays"
    assert kept.of(member) == b"r"

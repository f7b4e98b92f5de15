"""Native participants on the wire: invitations, receipts, places that are kept and places that are left."""

import asyncio
import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from websockets.exceptions import ConnectionClosed

from sordino.client.invitation import Invitation
from sordino.web.connection import CLOSING
from sordino.web.limits import Limits
from sordino.wire.messages import Plan, answer_to
from sordino.wire.requests import Request, Response, What
from tests.client import people
from tests.web.visitors import BITS, get, hosted, server, visit

ALONE = {"split": {"kind": "iid", "clients": 1}, "rounds.count": 5}
NATIVE = {"kind": "native", "task": ""}
LEAVE = json.dumps({"type": "leave"})


async def requested(visitor, what):
    """The next request, which is of this kind."""
    while isinstance(message := await asyncio.wait_for(visitor.socket.recv(), 30), str):
        visitor.heard.append(json.loads(message))
    request = Request.decode(message)
    assert request.what is what
    return request.payload


async def closed(visitor):
    with suppress(ConnectionClosed):
        await visitor.until("never")


async def gone(found):
    """Until the server has noticed that nobody is here any more."""
    while found.places._connections:
        await asyncio.sleep(0.01)


async def greeted(visitor):
    """The receipts in welcome and invitation, which are the same."""
    told = (await visitor.until("welcome"))["receipt"]
    assert Invitation.decode(await requested(visitor, What.JOIN)).receipt == told
    return bytes.fromhex(told)


def test_a_receipt_goes_back_to_its_maker_and_to_nobody_else_in_its_place(tmp_path):
    def served(secret, stays):
        async def go(port, found):
            async with visit(port, found, secret, **NATIVE) as visitor:
                had = await greeted(visitor)
                await visitor.socket.send(Response(True).encode())
                await stays(visitor)
                return had

        found = hosted(tmp_path, ALONE)
        with server(found) as port:
            return asyncio.run(go(port, found))

    async def answers_a_round(visitor):
        plan = Plan.decode(people.unsigned(await requested(visitor, What.STEP)))
        await visitor.socket.send(Response(True, answer_to(plan, bytes(BITS)), receipt=b"of a").encode())
        assert await requested(visitor, What.RECEIPT) == b"of a"
        await visitor.socket.send(Response(True).encode())
        await requested(visitor, What.STEP)  # the first round is over

    async def leaves(visitor):
        await visitor.socket.send(LEAVE)
        await closed(visitor)

    assert served("a", answers_a_round) == b""
    assert served("a", leaves) == b"of a"  # whatever the restart in between
    assert served("b", leaves) == b""


def test_a_refused_invitation_frees_the_place_of_a_newcomer_and_of_nobody_else(tmp_path):
    """A member that cannot agree again just now, say because its disk is full, finds its place when it is back."""
    found = hosted(tmp_path, {"rounds.quorum": 3})

    async def joins(port, response):
        async with visit(port, found, "x", **NATIVE) as visitor:
            place = (await visitor.until("welcome"))["client"]
            await requested(visitor, What.JOIN)
            await visitor.socket.send(response.encode())
            if not response.fine:
                assert (await visitor.until("refused"))["code"] == "terms"
                await closed(visitor)
            return place

    async def go(port):
        no = Response(False, reason="this client cannot answer now")
        async with visit(port, found, "page") as page:
            await page.until("welcome")
            await joins(port, no)
            assert [member.kind for member in found.places.members.values()] == ["page"]
            place = await joins(port, Response(True))
            assert await joins(port, no) == place
            assert await joins(port, Response(True)) == place

    with server(found) as port:
        asyncio.run(go(port))


def test_a_newcomer_that_comes_back_before_it_has_agreed_and_refuses_then_keeps_no_place(tmp_path):
    found = hosted(tmp_path, {"rounds.quorum": 3})

    async def go(port):
        async with visit(port, found, "x", **NATIVE) as visitor:
            await requested(visitor, What.JOIN)  # the connection breaks while its owner reads
        async with visit(port, found, "x", **NATIVE) as visitor:
            assert (await visitor.until("welcome"))["known"]
            await requested(visitor, What.JOIN)
            await visitor.socket.send(Response(False, reason="the budget does not allow it").encode())
            await closed(visitor)

    with server(found) as port:
        asyncio.run(go(port))
    assert found.places.members == {}


@pytest.mark.parametrize("invited", [False, True], ids=["open", "by invitation"])
def test_a_place_is_kept_for_who_reads_and_for_who_agreed_and_for_nobody_who_went_before(tmp_path, invited):
    """An owner who says no, or stops, without a network cannot give the place back: the next who needs it gets it."""
    found = hosted(tmp_path, {**ALONE, "rounds.quorum": 1}, by_invitation=invited)
    token = found.invitations.token(0) if invited else ""

    async def comes(port, secret, **kind):
        """What somebody hears first, who then goes without a word."""
        async with visit(port, found, secret, token=token, **kind) as visitor:
            return json.loads(await asyncio.wait_for(visitor.socket.recv(), 30))

    async def go(port):
        no_room = "token" if invited else "full"
        async with visit(port, found, "reads", token=token, **NATIVE) as visitor:
            await requested(visitor, What.JOIN)
            assert (await comes(port, "reads", **NATIVE))["known"]  # over a second line, which ends first
            assert (await comes(port, "other", **NATIVE))["code"] == no_room
        await gone(found)
        assert not (await comes(port, "other", **NATIVE))["known"]
        await gone(found)
        assert (await comes(port, "other", **NATIVE))["known"]  # while nobody needs it
        await gone(found)
        async with visit(port, found, "agrees", token=token, **NATIVE) as visitor:
            await requested(visitor, What.JOIN)
            await visitor.socket.send(Response(True).encode())
            await requested(visitor, What.STEP)
        await gone(found)
        assert (await comes(port, "other", **NATIVE))["code"] == no_room

    with server(found) as port:
        asyncio.run(go(port))


def test_places_that_were_abandoned_do_not_count_against_an_address(tmp_path):
    found = hosted(tmp_path, {"rounds.quorum": 3}, limits=Limits(places=1))

    async def go(port):
        async with visit(port, found, "x", **NATIVE) as visitor:
            await requested(visitor, What.JOIN)
        await gone(found)
        async with visit(port, found, "page") as page:
            return await asyncio.wait_for(page.socket.recv(), 30)

    with server(found) as port:
        assert json.loads(asyncio.run(go(port)))["type"] == "welcome"


def test_a_late_refusal_is_of_the_plan_that_it_was_asked_for(tmp_path):
    """Over the wire: responses come in the order of requests, and the round of the first may be over."""
    found = hosted(tmp_path, {**ALONE, "rounds.deadline": 4.0, "rounds.count": 2})

    async def go(port):
        async with visit(port, found) as page:
            first, second = await page.plan(), await page.plan()
            assert (first.round, second.round) == (1, 2)
            await page.socket.send(Response(False, reason="this client cannot answer now").encode())
            await asyncio.sleep(0.2)  # in which a refusal of the second would end its round
            await page.report(second)
            await page.until("ended")

    with server(found) as port:
        asyncio.run(go(port))
        assert [record["reported"] for record in get(port, "/api/federations/demo")["history"]] == [0, 1]


def test_a_receipt_is_kept_before_its_answer_can_end_a_round(tmp_path, monkeypatch):
    found = hosted(tmp_path, ALONE)
    deliver, kept = found.fleet.deliver, []

    def delivered(client, response):
        kept.append(found.receipts.of(found.places.members[client]))
        return deliver(client, response)

    monkeypatch.setattr(found.fleet, "deliver", delivered)

    async def go(port):
        async with visit(port, found) as page:
            plan = await page.plan()
            await page.socket.send(Response(True, answer_to(plan, bytes(BITS)), receipt=b"of me").encode())
            await page.until("received")

    with server(found) as port:
        asyncio.run(go(port))
    assert kept == [b"of me"]


def test_what_a_page_takes_from_a_bare_close_is_what_the_server_means_by_it():
    """A close whose words were lost must not be final where one may try again."""
    line = (Path(__file__).parents[2] / "web/src/session/line.ts").read_text()
    (codes,) = re.findall(r"const CODES\b.*?\{(.*?)\}", line)
    known = {int(number): name for number, name in re.findall(r'(\d+): "(\w+)"', codes)}
    assert known[4408] == "replaced"
    for number, name in known.items():
        assert [code for code, close in CLOSING.items() if close == number] == [name]

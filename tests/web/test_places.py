"""Places over real sockets: closed windows, who comes back, and the operator's button."""

import asyncio
import json
import time
import urllib.error
import urllib.request

import pytest
from websockets.exceptions import ConnectionClosed

from tests.web.visitors import get, hello, hosted, operate, server, strangers, visit

FIVE = {"split.clients": 5, "rounds.quorum": 5}


async def joins(port, found, secret, **changes):
    """What somebody hears who joins and closes the window."""
    async with visit(port, found, secret, **changes) as visitor:
        while True:
            message = json.loads(await visitor.socket.recv())
            if message["type"] in ("welcome", "refused"):
                return message


async def gone(found):
    """Until the server has noticed that nobody is here any more."""
    while found.places._connections:
        await asyncio.sleep(0.01)


class Clock:
    """The places', so that nobody has to wait ten minutes."""

    def __init__(self, found):
        self.now = 0.0
        found.places._clock = lambda: self.now


def test_five_closed_windows_free_their_places(tmp_path):
    found = hosted(tmp_path, {**FIVE, "rounds.quorum": 1, "rounds.count": 1})
    clock = Clock(found)

    async def go(port):
        for k in range(5):
            assert (await joins(port, found, f"p{k}"))["limits"]["absence"] == 600.0
            await gone(found)
            clock.now += 1.0
        assert (await joins(port, found, "sixth"))["code"] == "full"
        assert get(port, "/api/federations")[0]["free"] == 0
        clock.now = 599.0
        back = await joins(port, found, "p0")
        assert (back["client"], back["known"]) == (0, True)  # in time
        await gone(found)
        clock.now = 1199.0
        assert get(port, "/api/federations")[0]["free"] == 5
        async with visit(port, found, "sixth") as sixth:
            assert (await sixth.until("welcome"))["client"] == 1  # p1 has been absent longest
            await sixth.report(await sixth.plan())
            late = await joins(port, found, "p1")
            assert (late["client"], late["known"]) == (2, False)
            await sixth.until("ended")

    with server(found) as port:
        asyncio.run(go(port))
        assert get(port, "/api/federations/demo")["history"][0]["reported"] == 1


def test_a_summary_in_the_event_stream_tells_that_a_place_has_become_free(tmp_path):
    found = hosted(tmp_path, {"split": {"kind": "iid", "clients": 1}})
    clock = Clock(found)
    with server(found) as port:
        asyncio.run(joins(port, found, "a"))
        asyncio.run(gone(found))
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/federations/demo/events", timeout=10) as stream:
            for expected in (0, 1):
                while b'"free"' not in (line := stream.readline()):
                    pass
                assert json.loads(line[6:])["free"] == expected
                clock.now = 600.0


def freed(port, client, headers, name="demo"):
    """The status of the operator's request to free a place."""
    return operate(port, "DELETE", f"/api/federations/{name}/places/{client}", headers)


def test_the_operator_frees_a_place_and_its_holder_hears_so_and_stays_away(tmp_path):
    found = hosted(tmp_path, FIVE)

    async def go(port):
        async with visit(port, found, "a") as a, visit(port, found, "b") as b:
            client = (await a.until("welcome"))["client"]
            await b.until("welcome")
            assert await asyncio.to_thread(freed, port, client, {"Origin": f"http://127.0.0.1:{port}"}) == 204
            assert (await a.until("refused"))["code"] == "freed"
            with pytest.raises(ConnectionClosed):
                await a.until("never")
            assert a.socket.close_code == 4414
            assert await asyncio.to_thread(freed, port, client, {}) == 404
            told = await asyncio.to_thread(get, port, "/api/federations/demo")
            assert (told["free"], told["may_free"]) == (4, True)
            holds = {person["client"]: person["holds_place"] for person in told["live"]["participants"]}
            assert holds == {client: False, 1 - client: True}
            await b.socket.send(json.dumps({"type": "ping"}))
            await b.until("pong")  # nobody else is concerned

    with server(found) as port:
        asyncio.run(go(port))
        assert found.fleet.connected <= {0, 1}
    kept = (found.folder / "participants.jsonl").read_text()
    assert json.loads(kept.splitlines()[-1])["what"] == "left"
    assert hello(found, b"a")["id"] not in {member.id for member in found.places.members.values()}


def test_a_round_that_waits_for_a_freed_place_goes_on(tmp_path):
    found = hosted(tmp_path, {"rounds.count": 1}, patience=600.0)

    async def go(port):
        async with visit(port, found, "mute") as mute, visit(port, found, "a") as a:
            client = (await mute.until("welcome"))["client"]
            await mute.plan()
            await a.report(await a.plan())
            assert await asyncio.to_thread(freed, port, client, {}) == 204
            await a.until("ended")

    with server(found) as port:
        began = time.monotonic()
        asyncio.run(go(port))
        assert time.monotonic() - began < 60


@pytest.mark.parametrize("live_for_all", [False, True])
def test_no_other_page_and_no_other_machine_frees_a_place(tmp_path, live_for_all):
    found = hosted(tmp_path, FIVE)
    with server(found, origins=frozenset({"https://page.example"}), live_for_all=live_for_all) as port:
        asyncio.run(joins(port, found, "a"))
        own = f"http://127.0.0.1:{port}"
        for headers in strangers(port):
            assert freed(port, 0, headers) == 403, headers
        assert 0 in found.places.members
        assert freed(port, 3, {"Origin": own}) == 404
        assert freed(port, 0, {"Origin": own}, "another") == 404
        assert freed(port, 0, {"Origin": own, "Sec-Fetch-Site": "same-origin"}) == 204


def test_an_open_round_that_lacks_participants_waits(tmp_path):
    found = hosted(tmp_path, {"split.clients": 2, "rounds.quorum": 2, "rounds.count": 1})

    def told(port):
        summary = get(port, "/api/federations")[0]
        return summary["state"], summary["participants"]

    async def go(port):
        async with visit(port, found, "a") as first, visit(port, found, "b") as second:
            plans = await first.plan(), await second.plan()
            assert told(port) == ("training", 2)
        await gone(found)
        assert told(port) == ("waiting", 0)
        async with visit(port, found, "a") as first, visit(port, found, "b") as second:
            await first.until("welcome")
            await second.until("welcome")
            assert told(port) == ("training", 2)
            await first.report(plans[0])
            await second.report(plans[1])
            await first.until("ended")
        await gone(found)
        assert told(port) == ("finished", 0)

    with server(found) as port:
        asyncio.run(go(port))

"""Before the first round: a countdown once enough are here, its end by the operator, and the pace of rounds."""

import asyncio
import threading
import time

import pytest

from sordino.fleets.web import WebFleet
from tests.web.visitors import get, hosted, operate, server, strangers, visit

TWO = {"rounds.quorum": 2, "rounds.count": 1}
START = "/api/federations/demo/start"


class Line:
    def post(self, frame, plan):
        pass


def eventually(holds):
    end = time.monotonic() + 10
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.01)


def waiting(fleet, gather):
    thread = threading.Thread(target=fleet.await_quorum, args=(gather,), daemon=True)
    thread.start()
    return thread


def test_a_countdown_runs_once_enough_are_here_and_begins_anew_when_too_few_are_left():
    fleet, lines = WebFleet(3, quorum=2), [Line(), Line(), Line()]
    thread = waiting(fleet, 60.0)
    fleet.come(0, lines[0])
    assert fleet.starts_in is None
    assert not fleet.begin()
    fleet.come(1, lines[1])
    eventually(lambda: fleet.starts_in is not None)
    assert 50 < fleet.starts_in <= 60
    fleet.go(1, lines[1])
    eventually(lambda: fleet.starts_in is None)
    fleet.come(1, lines[1])
    eventually(lambda: fleet.starts_in is not None)
    assert fleet.starts_in > 50
    assert thread.is_alive()
    fleet.come(2, lines[2])  # all places are taken
    thread.join(10)
    assert not thread.is_alive()
    assert fleet.starts_in is None


def test_a_countdown_ends_by_itself_and_by_the_operator():
    fleet = WebFleet(3, quorum=1)
    fleet.come(0, Line())
    began = time.monotonic()
    fleet.await_quorum(0.3)
    assert 0.3 <= time.monotonic() - began < 10
    thread = waiting(fleet, 600.0)
    eventually(lambda: fleet.starts_in is not None)
    assert fleet.begin()
    thread.join(10)
    assert not thread.is_alive()
    assert not fleet.begin()  # a round is open


def test_the_operator_starts_and_everybody_is_told_when_it_begins(tmp_path):
    found = hosted(tmp_path, TWO, gather=600.0)

    async def go(port):
        async with visit(port, found, "a") as a:
            status = (await a.until("welcome"))["status"]
            assert (status["starts_in"], status["places"], status["needed"]) == (None, 3, 2)
            assert await asyncio.to_thread(operate, port, "POST", START) == 409
            async with visit(port, found, "b") as b:
                while (told := await a.until("status"))["starts_in"] is None:
                    pass
                assert 500 < told["starts_in"] <= 600
                summary = await asyncio.to_thread(get, port, "/api/federations/demo")
                assert (summary["state"], summary["participants"]) == ("waiting", 2)
                assert 500 < summary["starts_in"] <= 600
                assert await asyncio.to_thread(operate, port, "POST", START) == 204
                await a.report(await a.plan())
                await b.report(await b.plan())
                await a.until("ended")

    with server(found) as port:
        asyncio.run(go(port))
        told = get(port, "/api/federations/demo")
        assert (told["state"], told["starts_in"]) == ("finished", None)
        assert operate(port, "POST", START) == 409
        assert operate(port, "POST", "/api/federations/another/start") == 404


@pytest.mark.parametrize("live_for_all", [False, True])
def test_nobody_else_starts_a_federation(tmp_path, live_for_all):
    found = hosted(tmp_path, TWO, gather=600.0)
    with server(found, origins=frozenset({"https://page.example"}), live_for_all=live_for_all) as port:
        for headers in strangers(port):
            assert operate(port, "POST", START, headers) == 403, headers
        assert operate(port, "POST", START, {"Origin": f"http://127.0.0.1:{port}"}) == 409


def test_a_round_takes_as_long_as_the_pace_and_the_server_stops_meanwhile(tmp_path):
    found = hosted(tmp_path, {"rounds.count": 3}, pace=0.7)

    async def go(port):
        async with visit(port, found, "a") as a:
            times = []
            for _ in range(2):
                await a.report(await a.plan())
                times.append(time.monotonic())
            return times

    with server(found) as port:
        first, second = asyncio.run(go(port))
    assert second - first >= 0.6
    again = hosted(tmp_path, {"rounds.count": 3}, pace=600.0)

    async def one(port):
        async with visit(port, again, "a") as a:
            await a.report(await a.plan())
            await a.until("received")

    with server(again) as port:
        asyncio.run(one(port))
        began = time.monotonic()
    assert time.monotonic() - began < 20

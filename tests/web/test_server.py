"""A real server on loopback and real WebSockets: joining, rounds, refusals, restarts, and what is shown of them."""

import asyncio
import json
import time
from contextlib import ExitStack, suppress

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from websockets.asyncio.client import connect
from websockets.exceptions import ConnectionClosed, InvalidStatus

from sordino.storage.files import InUse, keep_lines
from sordino.web.headers import POLICY
from sordino.web.limits import Limits
from sordino.web.places import Places
from sordino.wire.messages import Plan
from sordino.wire.requests import Response
from tests.web.visitors import BITS, fetch, get, hello, hosted, server, visit

THREE = {"rounds.quorum": 3}


@pytest.fixture(scope="module")
def demo(tmp_path_factory):
    """A federation that waits for three participants, for all tests that need none of its rounds."""
    found = hosted(tmp_path_factory.mktemp("demo"), THREE)
    with server(found, limits=Limits(refused=10_000)) as port:
        yield found, port


async def refused(port, found, secret=b"me", **changes):
    """The refusal that a hello meets, and the code of the closed connection."""
    async with visit(port, found, secret, **changes) as visitor:
        told = await visitor.until("refused")
        with pytest.raises(ConnectionClosed):
            await visitor.socket.recv()
        return told["code"], visitor.socket.close_code


# --- rounds


def test_three_pages_go_through_all_rounds_and_everything_is_shown(tmp_path):
    found = hosted(tmp_path, THREE)

    async def page(port, secret):
        async with visit(port, found, secret) as visitor:
            return await visitor.rounds()

    async def everybody(port):
        return await asyncio.gather(*(page(port, secret) for secret in "abc"))

    with server(found) as port:
        assert get(port, "/api/federations")[0]["state"] == "waiting"
        assert asyncio.run(everybody(port)) == [2, 2, 2]
        told = get(port, "/api/federations/demo")
        assert (told["state"], told["round"], told["why"]) == ("finished", 2, "all 2 rounds are done")
        assert [entry["reported"] for entry in told["history"]] == [3, 3]
        assert told["accuracy"] == told["history"][-1]["accuracy"]
        assert told["statement"]["scope"] == "run"
        assert [person["reports"] for person in told["live"]["participants"]] == [2, 2, 2]
        status, headers, model = fetch(port, "/api/federations/demo/model.bin")
        assert (status, headers["X-Sordino-Round"], len(model)) == (200, "2", 4 * 650)
        # all reports were zeros: each moves every weight by -radius * 2^31/A, and A = 2^31 - t_min
        step = 0.1 * 2**31 / (2**31 - 1_155_094_610)
        start = found.parts.method.init().parameters
        assert np.allclose(np.frombuffer(model, "<f4"), start - 2 * step, atol=1e-5)
        for name in ("model.safetensors", "report.html", "statement.json"):
            assert fetch(port, f"/api/federations/demo/{name}")[0] == 200
        assert asyncio.run(refused(port, found, "late")) == ("finished", 4411)


@pytest.mark.parametrize("lines", [1, 0], ids=["stopped", "killed before the round was in metrics.jsonl"])
def test_a_server_that_restarts_goes_on_with_the_same_plan(tmp_path, lines):
    async def first(port, found):
        async with visit(port, found, "a") as a:
            plan = await a.plan()
            await a.report(plan)
            await a.until("received")
            plan = await a.plan()  # the second round is open when the server goes
            return plan.encode()

    async def second(port, found):
        async with visit(port, found, "b") as other, visit(port, found, "a") as a:
            welcome = await a.until("welcome")
            plan = await a.plan()
            await a.report(plan)
            await other.report(await other.plan())
            await a.until("ended")
            return welcome, plan.encode()

    before = hosted(tmp_path)
    with server(before) as port:
        sent = asyncio.run(first(port, before))
    keep_lines(before.run_folder / "metrics.jsonl", lines)
    after = hosted(tmp_path)
    assert (after.federation, after.task.digest) == (before.federation, before.task.digest)
    with server(after) as port:
        assert get(port, "/api/federations/demo")["round"] == 1
        _, headers, model = fetch(port, "/api/federations/demo/model.bin")  # of the round that is over, before any plan
        assert (headers["X-Sordino-Round"], model) == ("1", Plan.decode(sent).arrays["parameters"].tobytes())
        welcome, again = asyncio.run(second(port, after))
        assert (welcome["client"], welcome["known"]) == (0, True)
        assert again == sent
        told = get(port, "/api/federations/demo")
    assert [entry["reported"] for entry in told["history"]] == [1, 2]
    # Who was asked before a crash is not known for sure: the second round counts for all three places.
    assert {row["members"] for row in told["statement"]["rows"]} == {"0", "1-2"}


def test_two_servers_do_not_share_a_folder(tmp_path):
    found = hosted(tmp_path)
    with pytest.raises(InUse):
        hosted(tmp_path)
    found.stop()
    hosted(tmp_path).stop()


def test_who_cannot_be_written_down_is_refused_in_words_and_joins_when_that_is_mended(tmp_path):
    found = hosted(tmp_path, THREE)
    path = tmp_path / "demo" / "participants.jsonl"

    async def joins(port, secret):
        async with visit(port, found, secret) as visitor:
            return (await visitor.until("welcome"))["client"]

    async def stays(port):
        """One who is there before, all through it, and after."""
        async with visit(port, found, "first") as first:
            assert (await first.until("welcome"))["client"] == 0
            kept = path.read_bytes()
            path.unlink()
            path.mkdir()  # as good as a full disk
            async with visit(port, found, "second") as second:
                told = await second.until("refused")
            assert (told["code"], told["retry"]) == ("busy", 60.0) and "operator" in told["reason"]
            assert get(port, "/api/federations")[0]["state"] == "waiting"  # the server goes on
            path.rmdir()
            path.write_bytes(kept)
            assert await joins(port, "third") == 2
            assert await joins(port, "second") == 1

    with server(found) as port:
        asyncio.run(stays(port))
    assert sorted(Places(path, range(3)).members) == [0, 1, 2]


def test_a_server_that_stops_on_a_full_disk_says_so_and_lets_go_of_its_folder(tmp_path):
    said = []
    found = hosted(tmp_path, say=said.append)
    found.places.admit("0" * 32, "0" * 64, "page", "")
    (tmp_path / "demo" / "participants.jsonl").mkdir()
    said.clear()
    found.stop()
    assert len(said) == 1 and "participants.jsonl" in said[0]
    (tmp_path / "demo" / "participants.jsonl").rmdir()
    hosted(tmp_path).stop()


def test_extra_bits_are_refused_told_and_shown(tmp_path):
    found = hosted(tmp_path)

    async def attack(port):
        async with visit(port, found, "good") as good, visit(port, found, "bad") as bad:
            await good.until("welcome")
            await bad.until("welcome")
            for number in range(2):
                plan = await good.plan()
                await bad.plan()
                await bad.report(plan, b"\x00" * BITS + b"\x01" if number == 0 else b"\x00" * (BITS - 1) + b"\xff")
                await bad.until("received")
                await good.report(plan)
            await bad.until("ended")
            return [message["round"] for message in bad.heard if message["type"] == "rejected"]

    with server(found) as port:
        assert asyncio.run(attack(port)) == [1, 2]
        shown = get(port, "/api/federations/demo")
        refusals = shown["live"]["refused"]
        assert [(entry["client"], entry["round"]) for entry in refusals] == [(1, 1), (1, 2)]
        assert "bytes" in refusals[0]["reason"]
        assert [entry["refused"] for entry in shown["history"]] == [1, 1]
        assert [entry["reported"] for entry in shown["history"]] == [1, 1]


def test_a_page_that_declines_is_counted_and_the_rest_goes_on(tmp_path):
    found = hosted(tmp_path)

    async def page(port, secret, body):
        async with visit(port, found, secret) as visitor:
            for _ in range(2):
                plan = await visitor.plan()
                found.fleet.quorum = 1
                await visitor.report(plan, body)
            await visitor.until("ended")

    async def both(port):
        await asyncio.gather(page(port, "a", b"\0" * BITS), page(port, "b", None))

    found.fleet.quorum = 2  # the first round begins when both are here
    with server(found) as port:
        asyncio.run(both(port))
        told = get(port, "/api/federations/demo")
    assert [entry["declined"] for entry in told["history"]] == [1, 1]
    assert [entry["reported"] for entry in told["history"]] == [1, 1]
    assert {row["members"] for row in told["statement"]["rows"]} == {"0"}
    assert sorted(person["declined"] for person in told["live"]["participants"]) == [0, 2]


def test_a_round_that_somebody_declined_waits_for_another_and_says_so(tmp_path):
    found = hosted(tmp_path, {"rounds.quorum": 2, "rounds.count": 1})

    async def go(port):
        async with visit(port, found, "a") as a, visit(port, found, "b") as b:
            plans = await asyncio.gather(a.plan(), b.plan())
            await asyncio.gather(a.report(plans[0], None), b.report(plans[1]))
            await asyncio.gather(a.until("received"), b.until("received"))
            why = get(port, "/api/federations/demo")["why"]
            async with visit(port, found, "c") as c:
                await c.report(await c.plan())
                await c.until("ended")
            return why

    with server(found) as port:
        why = asyncio.run(go(port))
        told = get(port, "/api/federations/demo")
    assert "1 of at least 2" in why
    assert [(entry["reported"], entry["declined"], entry["counted"]) for entry in told["history"]] == [(2, 1, True)]


def test_a_second_tab_takes_over_and_the_first_is_told(tmp_path):
    found = hosted(tmp_path)

    async def tabs(port):
        async with visit(port, found, "me") as first:
            plan = await first.plan()
            async with visit(port, found, "me") as second:
                told = await first.until("refused")
                with pytest.raises(ConnectionClosed):
                    await first.socket.recv()
                again = await second.plan()
                assert again.encode() == plan.encode()
                await second.report(again)
                await second.until("received")
                await second.socket.send(json.dumps({"type": "ping"}))
                await second.until("pong")
                return told["code"], first.socket.close_code

    with server(found) as port:
        assert asyncio.run(tabs(port)) == ("replaced", 4408)
        assert len(get(port, "/api/federations/demo")["live"]["participants"]) == 1


def test_leaving_frees_the_slot(demo):
    found, port = demo

    async def leave():
        async with visit(port, found, "leaver") as visitor:
            client = (await visitor.until("welcome"))["client"]
            await visitor.socket.send(json.dumps({"type": "leave"}))
            with suppress(ConnectionClosed):
                await visitor.until("never")
        return client

    assert asyncio.run(leave()) not in found.places.members
    kept = Places(found.folder / "participants.jsonl", found.slots)  # what a server that is killed now would find
    assert kept.members == found.places.members


def test_a_place_whose_holder_left_unheard_is_given_back_when_it_says_so_later(tmp_path):
    found = hosted(tmp_path, {"rounds.count": 1})

    async def go(port):
        async with visit(port, found, "gone") as gone:
            place = (await gone.until("welcome"))["client"]
            await gone.plan()  # its round stays open: what is asked of it is never answered
            gone.socket.transport.abort()  # as a network that fails
        assert place in found.places.members
        async with visit(port, found, "gone") as back:
            assert (await back.until("welcome"))["client"] == place
            await back.socket.send(json.dumps({"type": "leave"}))
            with suppress(ConnectionClosed):
                await back.until("never")
            assert back.socket.close_code == 1000
        assert found.places.members == {}
        async with visit(port, found, "other") as other:
            await other.report(await other.plan())
            await other.until("ended")

    with server(found) as port:
        asyncio.run(go(port))
        assert [entry["reported"] for entry in get(port, "/api/federations/demo")["history"]] == [1]


@pytest.mark.parametrize("says", [Response(True).encode(), json.dumps({"type": "leave"})], ids=["joins", "leaves"])
def test_a_place_that_was_left_is_not_taken_back_over_an_older_connection(tmp_path, says):
    found = hosted(tmp_path, THREE)

    async def go(port):
        native = {"kind": "native", "task": ""}
        async with visit(port, found, "a") as a, visit(port, found, "b") as b:
            await asyncio.gather(a.until("welcome"), b.until("welcome"))
            async with visit(port, found, "x", **native) as older:
                await older.until("welcome")  # before the newer one says hello
                async with visit(port, found, "x", **native) as newer:
                    place = (await newer.until("welcome"))["client"]
                    await newer.socket.send(json.dumps({"type": "leave"}))
                    with suppress(ConnectionClosed):
                        await newer.until("never")
                async with visit(port, found, "y") as y:
                    assert (await y.until("welcome"))["client"] == place
                    await older.socket.send(says)
                    told = await older.until("refused")
                    await y.socket.send(json.dumps({"type": "ping"}))
                    await y.until("pong")
                    assert found.places.members[place].id == hello(found, b"y")["id"]
                    return told["code"], [message["type"] for message in y.heard]

    with server(found) as port:
        code, heard = asyncio.run(go(port))
    assert code == "replaced"
    assert "refused" not in heard


# --- who is turned away


def test_a_forged_invitation_is_turned_away_and_a_real_one_admits(tmp_path):
    found = hosted(tmp_path, by_invitation=True)
    token = found.invitations.token(1)
    forged = token[:-1] + ("a" if token[-1] != "a" else "b")

    async def invited(port):
        async with visit(port, found, token=token) as visitor:
            return (await visitor.until("welcome"))["client"]

    with server(found) as port:
        for wrong in ("", forged):
            assert asyncio.run(refused(port, found, token=wrong)) == ("token", 4401)
        assert asyncio.run(invited(port)) == 1
        assert asyncio.run(refused(port, found, "another", token=token)) == ("token", 4401)
        assert get(port, "/api/server")["invited"] is True


def test_pages_of_other_origins_are_turned_away(demo):
    _, port = demo

    async def status(origin, name="demo"):
        try:
            async with connect(f"ws://127.0.0.1:{port}/api/federations/{name}/ws", origin=origin):
                return 101
        except InvalidStatus as error:
            return error.response.status_code

    assert asyncio.run(status("https://evil.example")) == 403
    assert asyncio.run(status(f"http://127.0.0.1:{port}.evil.example")) == 403
    assert asyncio.run(status("null")) == 403
    assert asyncio.run(status(None)) == 101  # native clients say nothing
    assert asyncio.run(status(f"http://127.0.0.1:{port}", "another")) == 404


def test_an_origin_may_be_allowed(tmp_path):
    found = hosted(tmp_path, THREE)

    async def joins(port):
        async with visit(port, found, origin="https://page.example") as visitor:
            return await visitor.until("welcome")

    with server(found, origins=frozenset({"https://page.example"})) as port:
        assert asyncio.run(joins(port))["client"] == 0


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"protocol": 1}, "protocol"),
        ({"type": "welcome"}, "protocol"),
        ({"id": "x"}, "protocol"),
        ({"proof": ["1"]}, "protocol"),
        ({"token": 7}, "protocol"),
        ({"kind": "robot"}, "protocol"),
        ({"task": "0" * 64}, "terms"),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)
def test_a_hello_that_does_not_fit_is_refused(demo, changes, code):
    found, port = demo
    assert asyncio.run(refused(port, found, **changes))[0] == code


def test_many_refused_attempts_have_to_wait(tmp_path):
    found = hosted(tmp_path, THREE)
    with server(found, limits=Limits(refused=3)) as port:
        codes = [asyncio.run(refused(port, found, protocol=0))[0] for _ in range(4)]
    assert codes == ["protocol", "protocol", "protocol", "busy"]


@pytest.mark.parametrize("kind", ["page", "native"])
def test_refused_attempts_of_others_keep_no_known_participant_out(tmp_path, kind):
    found = hosted(tmp_path, THREE)
    known = {"kind": kind, "task": found.task.digest if kind == "page" else ""}

    async def welcomed(port, secret):
        async with visit(port, found, secret, **known) as visitor:
            if kind == "native":
                await visitor.socket.send(Response(True).encode())  # it agrees
            return (await visitor.until("welcome"))["known"]

    with server(found, limits=Limits(refused=3)) as port:
        assert asyncio.run(welcomed(port, "known")) is False
        for _ in range(3):
            assert asyncio.run(refused(port, found, "known", proof="0" * 64))[0] == "proof"
        for stranger in ({}, {"protocol": 0}, {"proof": "1" * 64}):
            assert asyncio.run(refused(port, found, "stranger", **stranger)) == ("busy", 4429)
        assert asyncio.run(refused(port, found, "known", proof="0" * 64))[0] == "busy"
        assert asyncio.run(welcomed(port, "known")) is True
    assert len(found.places.members) == 1


def test_refused_attempts_keep_no_invited_person_out_and_the_invited_are_not_counted(tmp_path):
    found = hosted(tmp_path, by_invitation=True)

    async def invited(port, client):
        async with visit(port, found, f"guest {client}", token=found.invitations.token(client)) as visitor:
            return (await visitor.until("welcome"))["client"]

    with server(found, limits=Limits(refused=3)) as port:
        assert asyncio.run(invited(port, 0)) == 0
        used = {"token": found.invitations.token(0)}
        codes = [asyncio.run(refused(port, found, f"late {k}", **used))[0] for k in range(4)]
        assert codes == ["token"] * 4  # a real invitation, used by somebody else
        codes = [asyncio.run(refused(port, found, "stranger", token="2-guess"))[0] for _ in range(4)]
        assert codes == ["token"] * 3 + ["busy"]
        assert asyncio.run(invited(port, 1)) == 1


def test_too_many_messages_and_too_large_ones_end_the_connection(demo):
    found, port = demo

    async def flood(message, times):
        async with visit(port, found, "flood") as visitor:
            await visitor.until("welcome")
            with suppress(ConnectionClosed):
                for _ in range(times):
                    await visitor.socket.send(message)
            return (await visitor.until("refused"))["code"]

    assert asyncio.run(flood(json.dumps({"type": "ping"}), 600)) == "rate"
    assert asyncio.run(flood("x" * 5000, 1)) == "size"
    assert asyncio.run(flood(b"x" * 10_000, 1)) == "size"
    shown = get(port, "/api/federations/demo")["live"]["refused"]
    assert "10,000 bytes" in shown[-1]["reason"]

    async def huge():
        async with visit(port, found, "huge") as visitor:
            await visitor.until("welcome")
            with pytest.raises(ConnectionClosed):
                await visitor.socket.send(b"x" * 2**22)
                await visitor.until("never")
            return visitor.socket.close_code

    assert asyncio.run(huge()) == 1009


def test_one_address_takes_so_many_places_and_is_told_why(tmp_path):
    found = hosted(tmp_path, THREE, limits=Limits(places=2))

    async def go(port):
        async with visit(port, found, "a") as a, visit(port, found, "b") as b:
            await asyncio.gather(a.until("welcome"), b.until("welcome"))
            return await refused(port, found, "c")

    with server(found) as port:
        assert asyncio.run(go(port)) == ("address", 4412)
        assert len(found.places.members) == 2


# --- bad frames

FRAMES = st.one_of(
    st.binary(max_size=300),
    st.text(max_size=300),
    st.binary(max_size=60).map(lambda rest: b"SA\x02" + rest),
    st.builds(lambda body, reason: Response(True, body, reason).encode(), st.binary(max_size=90), st.text(max_size=20)),
    st.just(json.dumps({"type": ["hello"]})),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=5), lambda x: st.lists(x), max_leaves=20
    ).map(json.dumps),
    st.just("[" * 4000),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(frames=st.lists(FRAMES, min_size=1, max_size=3), greets=st.booleans())
def test_whatever_arrives_the_server_lives_and_others_are_served(demo, frames, greets):
    found, port = demo
    found_before = len(found.places.members)

    async def send_all():
        address = f"ws://127.0.0.1:{port}/api/federations/demo/ws"
        async with connect(address, origin=f"http://127.0.0.1:{port}") as socket:
            if greets:
                await socket.send(json.dumps(hello(found, b"fuzz")))
            with suppress(ConnectionClosed, TimeoutError):
                for frame in frames:
                    await socket.send(frame)
                async with asyncio.timeout(0.05 if greets else 2):
                    while True:
                        await socket.recv()

    asyncio.run(send_all())
    assert get(port, "/api/server")["protocol"] == 2
    assert len(found.places.members) <= found_before + 1


# --- HTTP


def test_every_answer_has_the_headers_that_keep_strangers_out(demo):
    _, port = demo
    for path in ("/", "/api/server", "/api/federations/demo/task", "/nothing", "/assets/../app.py"):
        _, headers, _ = fetch(port, path)
        assert headers["Content-Security-Policy"] == POLICY, path
        assert headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert headers["Cross-Origin-Embedder-Policy"] == "require-corp"
        assert headers["X-Content-Type-Options"] == "nosniff"
    assert "unsafe-inline" not in POLICY
    assert "'unsafe-eval'" not in POLICY


def test_the_task_is_served_in_the_bytes_of_its_digest(demo):
    found, port = demo
    import hashlib

    _, _, body = fetch(port, "/api/federations/demo/task")
    assert hashlib.sha256(body).hexdigest() == found.task.digest == get(port, "/api/federations")[0]["task_digest"]


def test_sample_records_are_those_of_the_slot(demo):
    import base64

    found, port = demo
    told = get(port, "/api/federations/demo/sample?client=1")
    part = found.parts.parts[1]
    assert told["public"] is True
    x = np.frombuffer(base64.b64decode(told["x"]), "u1" if told["dtype"] == "u8" else "<f4").reshape(-1, 1, 8, 8)
    assert np.array_equal(x, found.parts.dataset.train.x[part])
    assert list(base64.b64decode(told["y"])) == found.parts.dataset.train.y[part].tolist()
    status, _, body = fetch(port, "/api/federations/demo/sample?client=9")
    assert status == 400
    assert "0 to 2" in json.loads(body)["error"]


def test_what_is_not_there_is_said_plainly(demo):
    _, port = demo
    status, _, body = fetch(port, "/api/federations/nobody")
    assert status == 404
    assert "demo" in json.loads(body)["error"]
    status, _, body = fetch(port, "/api/federations/demo/model.safetensors")
    assert status == 404
    assert "not over yet" in json.loads(body)["error"]
    status, _, body = fetch(port, "/api/federations/demo/sample?client=first")
    assert status == 400
    assert json.loads(body)["error"].startswith("client:")
    for path in ("/api/nothing/at/all", "/nothing.js"):
        status, _, body = fetch(port, path)
        assert (status, json.loads(body)) == (404, {"error": "there is nothing here"})


def test_a_page_is_served_from_its_folder_and_nothing_outside_it(tmp_path):
    page = tmp_path / "page"
    (page / "assets").mkdir(parents=True)
    (page / "index.html").write_text("<!doctype html><title>here</title>")
    (page / "assets" / "main.js").write_text("1")
    (tmp_path / "secret.txt").write_text("no")
    found = hosted(tmp_path, THREE)
    with server(found, page=page) as port:
        assert b"here" in fetch(port, "/")[2]
        status, headers, _ = fetch(port, "/assets/main.js")
        assert status == 200
        assert "javascript" in headers["Content-Type"]
        for path in ("/assets/%2e%2e/%2e%2e/secret.txt", "/..%2fsecret.txt", "/assets/..%2f..%2fsecret.txt"):
            assert fetch(port, path)[0] == 404
        status, _, body = fetch(port, "/live")  # this one was not built
        assert status == 503
        assert b"make page" in body


def test_event_streams_are_limited_and_one_that_ends_makes_room(tmp_path):
    import urllib.request

    found = hosted(tmp_path, THREE)
    with server(found, limits=Limits(watching=1)) as port:
        path = "/api/federations/demo/events"
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=10) as stream:
            assert stream.readline() == b"id: 1\n"
            status, _, body = fetch(port, path)
            assert status == 503
            assert "try again later" in json.loads(body)["error"]
        watch_until_there_is_room(port, path)


def watch_until_there_is_room(port, path, headers=None):
    """A stream that has ended is noticed in a moment."""
    import urllib.request

    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers or {})
    began = time.monotonic()
    while time.monotonic() - began < 10:
        with suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=10):
            return
        time.sleep(0.1)
    raise AssertionError("the first stream was counted for ever")


def test_one_address_cannot_hold_all_event_streams_and_hears_what_to_do(tmp_path):
    import urllib.request

    found = hosted(tmp_path, THREE)
    path = "/api/federations/demo/events"

    def watch(port, address):
        headers = {"X-Forwarded-For": address}
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
        return urllib.request.urlopen(request, timeout=10)

    with server(found, limits=Limits(places=2, watching=6)) as port, ExitStack() as open_ones:
        mine = [open_ones.enter_context(watch(port, "192.0.2.7")) for _ in range(4)]  # two for each place
        with pytest.raises(urllib.error.HTTPError) as caught:
            watch(port, "192.0.2.7")
        with caught.value as answer:
            told = json.loads(answer.read())["error"]
            assert (answer.code, answer.headers["Retry-After"]) == (429, "60")
        assert told.startswith("4 event streams are open from your network address")
        assert "/api/federations/demo" in told and "--per-address" in told
        for address in ("2001:db8::1", "192.0.2.8"):  # others watch as before, until all streams are taken
            assert open_ones.enter_context(watch(port, address)).readline() == b"id: 1\n"
        with pytest.raises(urllib.error.HTTPError) as caught:
            watch(port, "192.0.2.9")
        with caught.value as answer:
            assert answer.code == 503
        mine.pop().close()
        watch_until_there_is_room(port, path, {"X-Forwarded-For": "192.0.2.7"})


def test_event_streams_that_are_asked_for_at_once_are_counted_before_they_begin(tmp_path):
    async def asked(port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /api/federations/demo/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        status = (await asyncio.wait_for(reader.readline(), 30)).split()[1]
        return writer, int(status)

    async def all_at_once(port):
        answers = await asyncio.gather(*(asked(port) for _ in range(12)))
        for writer, _ in answers:
            writer.close()
        return sorted(status for _, status in answers)

    with server(hosted(tmp_path, THREE), limits=Limits(places=1)) as port:
        assert asyncio.run(all_at_once(port)) == [200] * 2 + [429] * 10


def test_single_participants_are_shown_on_this_machine_only(tmp_path):
    import urllib.request

    def asked(port, path, host):
        request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Host": host})
        return urllib.request.urlopen(request, timeout=10)

    def streamed(port, host):
        """The kinds of events until the second change is told."""
        kinds = []
        with asked(port, "/api/federations/demo/events", host) as stream:
            while kinds.count(b"summary") < 2:
                line = stream.readline()
                if line.startswith(b"event: "):
                    kinds.append(line[7:].strip())
                    found.late(0)
        return kinds

    found = hosted(tmp_path, THREE)
    with server(found) as port:
        for host, shown in ((f"localhost:{port}", True), ("federation.example", False)):
            with asked(port, "/api/federations/demo", host) as answer:
                assert (json.loads(answer.read())["live"] is not None) is shown
            assert streamed(port, host) == [b"summary", *([b"live"] if shown else []), b"summary"]
    elsewhere = hosted(tmp_path / "more", THREE)
    with server(elsewhere, live_for_all=True) as port, asked(port, "/api/federations/demo", "a.example") as answer:
        assert json.loads(answer.read())["live"] is not None


def test_what_a_proxy_passes_on_is_not_this_machine(demo):
    _, port = demo
    import urllib.request

    headers = {"X-Forwarded-For": "192.0.2.7"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}/api/federations/demo", headers=headers)
    with urllib.request.urlopen(request, timeout=10) as answer:
        assert json.loads(answer.read())["live"] is None


def test_events_tell_what_changes(tmp_path):
    import urllib.request

    found = hosted(tmp_path)

    async def take_part(port):
        async with visit(port, found) as visitor:
            await visitor.rounds()

    with server(found) as port:
        stream = urllib.request.urlopen(f"http://127.0.0.1:{port}/api/federations/demo/events", timeout=10)
        with stream:
            assert stream.headers["Content-Type"].startswith("text/event-stream")
            asyncio.run(take_part(port))
            kinds, began = [], time.monotonic()
            while "ended" not in kinds and time.monotonic() - began < 10:
                line = stream.readline().decode()
                if line.startswith("event: "):
                    kinds.append(line[7:].strip())
    assert kinds[:2] == ["summary", "live"]
    assert kinds.count("round") == 2
    assert kinds[-1] == "ended"


def test_events_begin_with_the_rounds_that_one_who_comes_back_has_missed_and_have_a_word_now_and_then(
    tmp_path, monkeypatch
):
    import urllib.request

    monkeypatch.setattr("sordino.web.event_stream.BEAT", 0.02)
    monkeypatch.setattr("sordino.web.event_stream.STILL", 0.02)
    found = hosted(tmp_path)

    async def take_part(port):
        async with visit(port, found) as visitor:
            await visitor.rounds()

    def told(port, query):
        """The rounds that are told before there is nothing more to tell."""
        rounds, kind = [], ""
        with urllib.request.urlopen(
            f"http://127.0.0.1:{port}/api/federations/demo/events{query}", timeout=10
        ) as stream:
            while kind != "still":
                line = stream.readline().decode()
                kind = line[7:].strip() if line.startswith("event: ") else kind
                if kind == "round" and line.startswith("data: "):
                    rounds.append(json.loads(line[6:])["round"])
        return rounds

    with server(found) as port:
        asyncio.run(take_part(port))
        assert [told(port, query) for query in ("?after=0", "?after=1", "?after=7", "")] == [[1, 2], [2], [], []]
        assert fetch(port, "/api/federations/demo/events?after=x")[0] == 400

"""Visitors who are slow, deaf or many, over real sockets: they are cut off, and everybody else is served."""

import asyncio
import contextlib
import http.client
import json
import os
import resource
import signal
import socket
import ssl
import struct
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from websockets.asyncio.client import connect
from websockets.server import ServerProtocol

from sordino.web.app import Site
from sordino.web.connection import Credit
from sordino.web.doorway import Doorway, room_for
from sordino.web.limits import Limits
from sordino.web.page_task import PROTOCOL
from sordino.web.places import TurnedAway
from sordino.web.request_rate import RateLimit
from sordino.wire.messages import Plan, answer_to
from sordino.wire.requests import Request, Response, What
from sordino.wire.tls_address import TlsAddress
from tests.client import people
from tests.web.visitors import BITS, fetch, get, hello, hosted, server, serving, visit

THREE = {"rounds.quorum": 3}
LARGE = {"model": {"name": "mlp", "options": {"hidden": [4000]}}, "rounds.count": 3}  # plans of 1.2 MB
LARGE_BITS = -(-(64 * 4000 + 4000 + 4000 * 10 + 10) // 8)
HEADER = b"GET /api/server HTTP/1.1\r\nHost: x\r\nX-a: "
BODY = b"GET /api/server HTTP/1.1\r\nHost: x\r\nContent-Length: 100000\r\n\r\n"


def wait_until(condition, seconds=10.0):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not come to that in time"
        time.sleep(0.02)


# --- the count


class Cut:
    """A transport that knows whether it was cut off."""

    def __init__(self):
        self.off = False

    def abort(self):
        self.off = True


def test_the_oldest_stranger_of_the_address_that_has_most_is_cut_off():
    doorway = Doorway(Limits(connections=4), room=8)
    alone = doorway.enter(one := Cut(), "10.0.0.1")
    crowd = [Cut() for _ in range(9)]
    for transport in crowd:
        doorway.enter(transport, "10.0.0.2")
    assert doorway.strangers == 4  # half of the room is the participants'
    assert not one.off
    assert [transport.off for transport in crowd] == [True] * 6 + [False] * 3
    doorway.leave(alone)
    doorway.leave(alone)  # twice is no matter
    assert doorway.strangers == 3


def test_participants_are_never_cut_off_and_there_is_room_for_so_many():
    doorway = Doorway(Limits(connections=100), room=8)
    visits = [doorway.enter(Cut(), "10.0.0.1") for _ in range(2)]
    for number in range(7):
        visits.append(visit := doorway.enter(Cut(), "10.0.0.1"))
        assert doorway.identify(visit, number) is True
    assert doorway.participants == 7
    late = doorway.enter(Cut(), "10.0.0.2")
    assert doorway.identify(late, "one more") is False  # an eighth of the room stays for those who come
    assert doorway.strangers == 1
    doorway.enter(Cut(), "10.0.0.3")
    assert late.transport.off
    assert not any(visit.transport.off for visit in visits[2:])
    doorway.leave(visits[2])
    assert doorway.participants == 6


def test_one_identity_holds_one_connection_of_the_reserve():
    doorway = Doorway(Limits(connections=4), room=8)
    first, second = (doorway.enter(Cut(), "10.0.0.1") for _ in range(2))
    assert doorway.identify(first, "me") and doorway.identify(second, "me")
    assert (doorway.participants, doorway.strangers) == (1, 1)
    doorway.leave(first)
    doorway.leave(second)
    assert (doorway.participants, doorway.strangers) == (0, 0)


def test_who_was_cut_off_before_its_hello_was_read_is_not_counted_after_it():
    doorway = Doorway(Limits(connections=4), room=2)
    cut = doorway.enter(Cut(), "10.0.0.1")
    doorway.enter(Cut(), "10.0.0.1")
    assert cut.transport.off
    assert doorway.identify(cut, "me") is True
    assert doorway.participants == 0


def test_there_is_room_for_what_the_limits_and_the_system_allow():
    assert room_for(Limits(connections=30, watching=10)) == 40
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    assert room_for(Limits(connections=10**9)) < max(soft, resource.getrlimit(resource.RLIMIT_NOFILE)[1])


# --- slow requests


def slow(port, first):
    """A connection that has begun a request."""
    found = socket.create_connection(("127.0.0.1", port), timeout=5)
    found.sendall(first)
    return found


def last_words(found, seconds=5.0):
    """What a connection hears until it is closed, while it dribbles on."""
    heard, end = b"", time.monotonic() + seconds
    found.settimeout(0.1)
    while time.monotonic() < end:
        with contextlib.suppress(TimeoutError):
            try:
                found.sendall(b"a")
                more = found.recv(4096)
            except OSError as error:
                if isinstance(error, TimeoutError):
                    continue
                return heard
            if not more:
                return heard
            heard += more
    raise AssertionError("it was never closed")


def test_a_request_that_dribbles_is_cut_off_in_its_header_and_in_its_body(tmp_path):
    with server(hosted(tmp_path, THREE), limits=Limits(request=0.5)) as port:
        with slow(port, HEADER) as header, slow(port, BODY) as body, slow(port, b"") as silent:
            began = time.monotonic()
            assert last_words(header).startswith(b"HTTP/1.1 408")
            assert b"200 OK" in last_words(body)  # it was answered before its body came
            assert time.monotonic() - began < 3
            assert silent.recv(100).startswith(b"HTTP/1.1 408")
        assert get(port, "/api/server")["protocol"] == PROTOCOL


def test_a_connection_that_is_kept_has_the_whole_time_for_each_request(tmp_path):
    with server(hosted(tmp_path, THREE), limits=Limits(request=1.0)) as port:
        with slow(port, b"") as found:
            for _ in range(2):
                for piece in (b"GET /api/server HTTP/1.1\r\n", b"Host: x\r\n", b"\r\n"):
                    time.sleep(0.2)
                    found.sendall(piece)
                answer = b""
                while not answer.endswith(b"}"):
                    more = found.recv(4096)
                    assert more
                    answer += more
                assert answer.startswith(b"HTTP/1.1 200")
                time.sleep(0.6)
        with slow(port, b"GET /api/federations/demo/events HTTP/1.1\r\nHost: x\r\n\r\n") as stream:
            stream.settimeout(1.5)
            assert stream.recv(4096).startswith(b"HTTP/1.1 200")
            with contextlib.suppress(TimeoutError):
                while True:
                    assert stream.recv(4096)  # an answer may take longer than a request


# --- descriptors

SERVER = """
import sys
from pathlib import Path
from sordino.web.app import Site
from sordino.web.limits import Limits
from sordino.web.server import serve
from sordino.wire.tls_address import TlsAddress
from tests.web.visitors import hosted, serving

found = hosted(Path(sys.argv[1]), {"rounds.quorum": 3})
site = Site({found.name: found}, Limits(request=1.5, refused=10_000, requests=1000))
certified = [Path(each) for each in sys.argv[3:]]
if sys.argv[2] == "serve":
    serve(site, TlsAddress("127.0.0.1", 0, *certified), lambda port: print(port, flush=True))
else:
    with serving(site) as port:
        print(port, flush=True)
        sys.stdin.read()
"""


@contextlib.contextmanager
def small_server(folder, how, *certified):
    """A server in a process of its own that may open 400 files; its port, and what it says on the way."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    said = (folder / "said").open("w+")
    command = [sys.executable, "-c", SERVER, str(folder), how, *map(str, certified)]
    process = subprocess.Popen(
        command, env=environment, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400)),
    )  # fmt: skip
    try:
        yield int(process.stdout.readline()), process, said
    finally:
        process.stdin.close()
        if how == "serve":
            process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        finally:
            process.kill()
            process.stdout.close()
            said.close()


#: where the slow ones come from: the newcomer at another address is never the oldest of the largest crowd
ELSEWHERE = ("127.0.0.2", 0)


async def dribble(port, first, closed):
    """One slow visitor, who comes again whenever it is cut off."""
    while True:
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                reading, writing = await asyncio.open_connection("127.0.0.1", port, local_addr=ELSEWHERE)
            try:
                writing.write(first)
                while True:
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(1.0):
                            if not await reading.read(1000):
                                break
                    writing.write(b"a")
                    await writing.drain()
            finally:
                closed.append(1)
                writing.transport.abort()
        await asyncio.sleep(1.0)


@pytest.mark.parametrize("how", ["serve", "serving"])  # as a command, and in a thread
def test_800_slow_connections_at_400_descriptors_leave_everybody_else_served(tmp_path, how):
    descriptors = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(descriptors[0], min(4096, descriptors[1])), descriptors[1]))

    async def attacked(port, process):
        told = get(port, "/api/federations/demo")
        task = SimpleNamespace(digest=told["task_digest"])
        found = SimpleNamespace(name="demo", federation=told["federation"], task=task)
        closed, took = [], []
        async with visit(port, found, "before") as before:
            await before.until("welcome")
            process.send_signal(signal.SIGSTOP)  # so that all of them come at once
            slow_ones = [asyncio.create_task(dribble(port, (HEADER, BODY)[n % 2], closed)) for n in range(800)]
            await asyncio.sleep(1.0)
            process.send_signal(signal.SIGCONT)
            for number in range(5):
                began = time.monotonic()
                assert (await asyncio.to_thread(get, port, "/api/server"))["federations"] == ["demo"]
                if number == 2:
                    async with visit(port, found, "newcomer") as newcomer:
                        await newcomer.until("welcome")
                await before.socket.send(json.dumps({"type": "ping"}))
                await before.until("pong")
                took.append(time.monotonic() - began)
                await asyncio.sleep(0.3)
            for each in slow_ones:
                each.cancel()
            await asyncio.gather(*slow_ones, return_exceptions=True)
        return took, len(closed)

    with small_server(tmp_path, how) as (port, process, said):
        took, closed = asyncio.run(attacked(port, process))
        assert max(took) < 10  # in most cases milliseconds; this machine has other work
        assert closed > 800
        said.seek(0)
        assert said.read() == ""


# --- TLS


@pytest.fixture(scope="module")
def certified(tmp_path_factory):
    """Where a server with a certificate of its own listens."""
    folder, key = tmp_path_factory.mktemp("tls"), ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    now = datetime.now(UTC)
    signed = (
        x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key()).serial_number(1)
        .not_valid_before(now - timedelta(1)).not_valid_after(now + timedelta(1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), False)
        .sign(key, hashes.SHA256())
    )  # fmt: skip
    (folder / "certificate").write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    (folder / "key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return TlsAddress(certificate=folder / "certificate", key=folder / "key")


def test_a_connection_counts_before_its_tls_handshake_which_has_to_be_quick(tmp_path, certified):
    found = hosted(tmp_path, THREE)
    site = Site({"demo": found}, Limits(request=0.7))
    trust = ssl.create_default_context(cafile=str(certified.certificate))

    async def join(port):
        address = f"wss://localhost:{port}/api/federations/demo/ws"
        async with connect(address, ssl=trust, subprotocols=[f"sordino.{PROTOCOL}"]) as page:
            await page.send(json.dumps(hello(found, b"me")))
            return json.loads(await page.recv())["type"], site.doorway.participants

    with serving(site, certified) as port:
        mute, nonsense = slow(port, b""), slow(port, b"GET / HTTP/1.1\r\n\r\n")
        wait_until(lambda: site.doorway.strangers)
        mute.settimeout(5)
        began = time.monotonic()
        with mute, nonsense, contextlib.suppress(ConnectionResetError):
            assert mute.recv(100) == b""
        assert time.monotonic() - began < 3
        wait_until(lambda: site.doorway.strangers == 0)
        page = http.client.HTTPSConnection("localhost", port, timeout=5, context=trust)
        for _ in range(2):
            page.request("GET", "/api/server")
            assert json.loads(page.getresponse().read())["https"] is True
        assert site.doorway.strangers == 1
        page.close()
        assert asyncio.run(join(port)) == ("welcome", 1)
        wait_until(lambda: site.doorway.strangers + site.doorway.participants == 0)


def test_a_server_with_a_certificate_completes_every_handshake_and_refuses_without_a_traceback(tmp_path, certified):
    """On the event loop of `sordino serve`: uvloop lost most handshakes, and asyncio's TLS breaks when closed twice."""
    trust = ssl.create_default_context(cafile=str(certified.certificate))
    with small_server(tmp_path, "serve", certified.certificate, certified.key) as (port, process, said):
        for _ in range(8):
            page = http.client.HTTPSConnection("localhost", port, timeout=3, context=trust)
            page.request("GET", "/api/server")
            assert json.loads(page.getresponse().read())["https"] is True
            page.close()
        for _ in range(3):
            with trust.wrap_socket(slow(port, b""), server_hostname="localhost") as secured:
                secured.sendall(upgrade(port))
                assert secured.recv(1000).startswith(b"HTTP/1.1 101")
                secured.sendall(framed(0x81, b"{}"))
                heard = b""
                while more := secured.recv(1000):
                    heard += more
                assert b"refused" in heard
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        said.seek(0)
        assert said.read() == ""


def test_a_server_ends_in_order_while_a_refused_visitor_keeps_the_connection_open(tmp_path, certified):
    trust = ssl.create_default_context(cafile=str(certified.certificate))
    with (
        small_server(tmp_path, "serve", certified.certificate, certified.key) as (port, process, said),
        trust.wrap_socket(slow(port, b""), server_hostname="localhost") as lingering,
    ):
        lingering.sendall(upgrade(port))
        assert lingering.recv(1000).startswith(b"HTTP/1.1 101")
        lingering.sendall(framed(0x81, b"{}"))
        assert b"refused" in lingering.recv(1000)
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0
        said.seek(0)
        assert said.read() == ""


# --- who does not read


def deaf(port, found, secret=b"deaf", room=4096, trust=None):
    """A participant that says hello and reads nothing from then on."""
    ear = socket.socket()
    ear.settimeout(10)
    ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, room)
    ear.connect(("127.0.0.1", port))
    ear = ear if trust is None else trust.wrap_socket(ear, server_hostname="localhost")
    ear.sendall(upgrade(port))
    assert ear.recv(1000).startswith(b"HTTP/1.1 101")
    ear.sendall(framed(0x81, json.dumps(hello(found, secret)).encode()))
    return ear


def upgrade(port, origin="", name="demo"):
    told = f"Origin: {origin}\r\n" if origin else ""
    return (
        f"GET /api/federations/{name}/ws HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\n{told}Connection: Upgrade\r\n"
        "Upgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
    ).encode()


def framed(opcode, body):
    size = bytes([0x80 | len(body)]) if len(body) < 126 else bytes([0x80 | 126]) + len(body).to_bytes(2, "big")
    return bytes([opcode]) + size + bytes(4) + body


def test_a_participant_that_never_reads_is_cut_off_and_the_others_go_on(tmp_path):
    found = hosted(tmp_path, {**LARGE, "rounds.quorum": 2}, gather=1.0)

    async def honest(port, secret):
        async with visit(port, found, secret) as visitor:
            count = 0
            async for message in visitor.socket:
                if isinstance(message, bytes):
                    count += 1
                    await visitor.report(plan_of(Request.decode(message)), b"\0" * LARGE_BITS)
                elif json.loads(message)["type"] == "ended":
                    break
            return count

    async def both(port):
        return await asyncio.wait_for(asyncio.gather(honest(port, "a"), honest(port, "b")), 20)

    with server(found, limits=Limits(sending=0.5)) as port, deaf(port, found):
        wait_until(lambda: found.fleet.connected)
        client = next(iter(found.fleet.connected))
        assert asyncio.run(both(port)) == [3, 3]
        wait_until(lambda: client not in found.fleet.connected, 2)


def plan_of(request):
    return Plan.decode(people.unsigned(request.payload))


def test_a_participant_that_never_reads_is_cut_off_over_tls_too(tmp_path, certified):
    found = hosted(tmp_path, {**LARGE, "rounds.count": 1, "split.clients": 1})
    site = Site({"demo": found}, Limits(sending=0.5))
    trust = ssl.create_default_context(cafile=str(certified.certificate))
    with serving(site, certified) as port, deaf(port, found, trust=trust) as ear:
        wait_until(lambda: found.fleet.connected)
        ear.sendall(framed(0x8A, b""))  # it is alive
        wait_until(lambda: not found.fleet.connected, 5)
        wait_until(lambda: site.doorway.participants + site.doorway.strangers == 0, 2)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_who_reads_slowly_but_steadily_gets_its_plan_whole(tmp_path, certified, scheme):
    found = hosted(tmp_path, {**LARGE, "rounds.count": 1, "split.clients": 1})
    site = Site({"demo": found}, Limits(sending=1.2, slowest=20_000))  # a busy machine may stand still for a second
    place, trust = None, None
    if scheme == "https":
        place, trust = certified, ssl.create_default_context(cafile=str(certified.certificate))
    with serving(site, place) as port, deaf(port, found, room=65536, trust=trust) as ear:
        heard, began = 0, time.monotonic()
        while heard < 4 * found.parts.layout.size:
            more = ear.recv(40_000)
            assert more
            heard += len(more)
            time.sleep(0.07)
        assert time.monotonic() - began > 2.4  # it was looked at twice
        assert found.fleet.connected == {0}


def test_pings_of_somebody_who_reads_nothing_do_not_pile_up(tmp_path):
    found = hosted(tmp_path, THREE)
    site = Site({"demo": found}, Limits(sending=1.0, frames_burst=1e9))
    with serving(site) as port, deaf(port, found) as ear:
        wait_until(lambda: site.doorway.participants)
        (visit,) = site.doorway._participants.values()
        most, pings = 0, framed(0x89, b"x" * 125) * 1000
        with contextlib.suppress(OSError):
            ear.settimeout(5)
            while site.doorway.participants:
                ear.sendall(pings)
                most = max(most, visit.transport.get_write_buffer_size())
        wait_until(lambda: not site.doorway.participants)
        assert 0 < most < 2**20


def test_answers_that_are_not_taken_are_held_once_and_cut_off(tmp_path):
    found = hosted(tmp_path, {**LARGE, **THREE})
    site = Site({"demo": found}, Limits(sending=1.0))
    with serving(site) as port, contextlib.ExitStack() as ears:
        for _ in range(5):
            ear = ears.enter_context(socket.socket())
            ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            ear.connect(("127.0.0.1", port))
            ear.sendall(b"GET /api/federations/demo/model.bin HTTP/1.1\r\nHost: x\r\n\r\n")
            assert ear.recv(100).startswith(b"HTTP/1.1 200")
        (visits,) = site.doorway._strangers.values()
        assert [len(visits), len(site.answers)] == [5, 1]
        assert max(visit.transport.get_write_buffer_size() for visit in list(visits)) < 2**18
        wait_until(lambda: site.doorway.strangers == 0, 5)
        wait_until(lambda: not site.answers)
        assert len(fetch(port, "/api/federations/demo/model.bin")[2]) == 4 * found.parts.layout.size


def open_files():
    """Names of the files that this process has open, where the system tells."""
    found = set()
    for each in Path("/proc/self/fd").glob("*"):
        with contextlib.suppress(OSError):
            found.add(each.readlink().name)
    return found


def test_files_that_are_not_taken_hold_no_descriptor(tmp_path):
    page = tmp_path / "page"
    (page / "assets").mkdir(parents=True)
    (page / "assets" / "large.js").write_bytes(b"/" * 2**21)
    found = hosted(tmp_path, THREE)
    found.run_folder.mkdir()
    (found.run_folder / "model.safetensors").write_bytes(bytes(2**21))
    paths = ("/assets/large.js", "/api/federations/demo/model.safetensors")
    site = Site({"demo": found}, page=page)
    with serving(site) as port, contextlib.ExitStack() as ears:
        for path in paths * 5:
            ear = ears.enter_context(socket.socket())
            ear.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            ear.connect(("127.0.0.1", port))
            ear.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
            assert ear.recv(100).startswith(b"HTTP/1.1 200")
        assert not {"large.js", "model.safetensors"} & open_files()
        assert len(site.answers) == len(paths)
        _, headers, body = fetch(port, paths[0])
        assert (len(body), headers["Content-Type"]) == (2**21, "text/javascript; charset=utf-8")
        disposition = fetch(port, paths[1])[1]["Content-Disposition"]
        assert disposition == "attachment; filename*=utf-8''demo-model.safetensors"


def test_plans_that_nobody_takes_hold_up_each_other_alone():
    """Room for two plans: one is that of those who took the last one in time."""

    async def lend():
        credit, never, sent = Credit(20, 0.05), asyncio.Event(), []

        async def send(who):
            sent.append(who)
            if who.startswith("deaf"):
                await never.wait()

        def lent(who):
            return asyncio.create_task(credit.lend(who, 10, lambda: send(who)))

        first = lent("deaf 1")
        await asyncio.sleep(0.1)  # it takes too long, so that it is one of the slow
        await asyncio.wait_for(lent("quick"), 1)
        second = lent("deaf 2")
        await asyncio.wait((second,), timeout=1)
        assert isinstance(second.exception(), TurnedAway)  # the slow have no more room
        again = lent("deaf 2")
        await asyncio.sleep(0.1)
        assert "deaf 2" not in sent[3:]  # and it waits there from now on
        for _ in range(3):
            await asyncio.wait_for(lent("quick"), 1)
        never.set()
        await asyncio.wait_for(asyncio.gather(first, again), 1)
        await asyncio.wait_for(asyncio.gather(lent("deaf 1"), lent("deaf 2")), 1)
        return sent

    assert asyncio.run(lend()).count("quick") == 4


def test_of_the_plans_that_wait_for_somebody_only_the_last_is_sent(tmp_path):
    found = hosted(tmp_path, THREE)
    site = Site({"demo": found})

    async def wait(port):
        async with visit(port, found) as visitor:
            await visitor.until("welcome")
            (line,) = site.connections

            def post():
                for number in range(300):
                    line.post(Request(What.STEP, "report", bytes([number % 256])).encode(), b"")

            line._loop.call_soon_threadsafe(post)
            message = await asyncio.wait_for(visitor.socket.recv(), 5)
            while isinstance(message, str):
                message = await asyncio.wait_for(visitor.socket.recv(), 5)
            await visitor.socket.send(json.dumps({"type": "ping"}))
            while not isinstance(more := await asyncio.wait_for(visitor.socket.recv(), 5), bytes):
                if json.loads(more)["type"] == "pong":
                    return Request.decode(message).payload
            raise AssertionError("another one was sent")

    with serving(site) as port:
        assert asyncio.run(wait(port)) == bytes([299 % 256])


# --- signs of life


def test_who_is_gone_without_a_word_is_noticed_and_who_is_busy_sending_is_not(tmp_path):
    found = hosted(tmp_path, {**LARGE, **THREE})
    with server(found, limits=Limits(idle=0.9)) as port, deaf(port, found, b"gone"), deaf(port, found, b"busy") as busy:
        wait_until(lambda: len(found.fleet.connected) == 2)
        sending = max(found.places.members)
        busy.sendall(bytes([0x82, 0x80 | 126]) + (30_000).to_bytes(2, "big") + bytes(4))  # a report on a thin line
        end = time.monotonic() + 2.5
        while time.monotonic() < end:
            busy.sendall(b"x" * 100)
            time.sleep(0.1)
        assert found.fleet.connected == {sending}
        wait_until(lambda: not found.fleet.connected, 5)


def test_a_page_hears_how_often_to_ask_for_a_sign_of_life(tmp_path):
    async def pulse(port, found):
        async with visit(port, found) as visitor:
            return (await visitor.until("welcome"))["limits"]["pulse"]

    small, large = hosted(tmp_path / "a", THREE), hosted(tmp_path / "b", {**LARGE, **THREE})
    with server(small) as port:
        assert asyncio.run(pulse(port, small)) == 5.0
    with server(large) as port:  # longer than a plan may take on the slowest line
        assert asyncio.run(pulse(port, large)) == 4 * large.parts.layout.size / Limits().slowest


# --- rate, HEAD and the log


EMPTY = {"pings": framed(0x89, b""), "pongs": framed(0x8A, b""), "continuations": framed(0x00, b"")}


def is_cut_off(found, seconds=3.0):
    """Whether the server closes a connection, whatever it says before."""
    found.settimeout(seconds)
    try:
        while found.recv(65536):
            pass
    except TimeoutError:
        return False
    except OSError:
        pass
    return True


@pytest.mark.parametrize("kind", EMPTY)
def test_empty_frames_are_counted_and_those_of_strangers_are_few(tmp_path, kind):
    found = hosted(tmp_path, THREE)
    begun = framed(0x01, b"") if kind == "continuations" else b""  # a text that goes on
    site = Site({"demo": found}, Limits(frames=20, frames_burst=100))
    with serving(site) as port:
        with slow(port, upgrade(port)) as stranger:
            assert stranger.recv(1000).startswith(b"HTTP/1.1 101")
            stranger.sendall(begun + EMPTY[kind] * 40)
            assert is_cut_off(stranger)
        with deaf(port, found) as participant:
            wait_until(lambda: site.doorway.participants)
            participant.sendall(begun + EMPTY[kind] * 80)
            assert not is_cut_off(participant, 0.5)
            participant.sendall(EMPTY[kind] * 200)
            assert is_cut_off(participant)


def test_a_flood_of_frames_is_cut_off_before_it_is_read(tmp_path, monkeypatch):
    found, read, receive_data = hosted(tmp_path, THREE), [], ServerProtocol.receive_data
    monkeypatch.setattr(
        ServerProtocol, "receive_data", lambda self, data: (read.append(data), receive_data(self, data))
    )
    with server(found) as port, slow(port, upgrade(port)) as stranger:
        assert stranger.recv(1000).startswith(b"HTTP/1.1 101")
        with contextlib.suppress(OSError):
            stranger.sendall(EMPTY["pings"] * 100_000)
        assert is_cut_off(stranger)
        assert sum(map(len, read)) < 10_000  # of 600,000 bytes: a read may have 256 kB, and 40,000 frames


def test_a_body_of_empty_chunks_is_not_read_to_its_end(tmp_path):
    head = b"GET /api/server HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    chunk, end = b"1\r\na\r\n", b"0\r\n\r\n"
    with server(hosted(tmp_path, THREE)) as port, slow(port, head) as short, slow(port, head) as long:
        short.sendall(chunk * 100 + end)
        assert short.recv(1000).startswith(b"HTTP/1.1 200")
        with contextlib.suppress(OSError):
            long.sendall(chunk * 2000)
        assert is_cut_off(long)


def test_answers_that_the_server_asked_for_are_not_charged_to_the_rate(tmp_path):
    found = hosted(tmp_path, {"rounds.count": 30, "split.clients": 1, "rounds.quorum": 1})

    async def fast(port):
        async with visit(port, found) as visitor:
            async for message in visitor.socket:
                if isinstance(message, str):
                    if (told := json.loads(message)["type"]) in ("ended", "refused"):
                        break
                elif (request := Request.decode(message)).what is What.RECEIPT:
                    await visitor.socket.send(Response(True).encode())
                else:
                    answer = answer_to(plan_of(request), b"\0" * BITS)
                    await visitor.socket.send(Response(True, answer, "", b"receipt").encode())
            return told

    with server(found, limits=Limits(rate=0.1, burst=5, frames=0.1, frames_burst=5)) as port:
        assert asyncio.run(fast(port)) == "ended"
    assert found.last_round == 30


def answers(found, count, seconds=10.0):
    """The status lines of so many answers, or of all until the connection is closed."""
    heard, end = b"", time.monotonic() + seconds
    while heard.count(b"HTTP/1.1 ") < count and time.monotonic() < end:
        more = found.recv(65536)
        if not more:
            break
        heard += more
    return [int(part[:3]) for part in heard.split(b"HTTP/1.1 ")[1:]]


def test_the_requests_of_one_address_have_their_turn_and_hold_up_no_other(tmp_path):
    asked = b"GET /api/federations/demo HTTP/1.1\r\nHost: x\r\n\r\n"
    with server(hosted(tmp_path, THREE), limits=Limits(places=5, requests=5, requests_burst=1)) as port:
        began = time.monotonic()
        with slow(port, asked * 45) as pipelined:  # ten at once, then ten a second
            with contextlib.closing(http.client.HTTPConnection("127.0.0.1", port, 5, ("127.0.0.2", 0))) as other:
                other.request("GET", "/api/server")
                assert other.getresponse().status == 200
            assert time.monotonic() - began < 3.2
            assert answers(pipelined, 45) == [200] * 45
        assert time.monotonic() - began > 3.4


def test_what_is_long_of_a_federation_is_encoded_once(tmp_path, monkeypatch):
    found, encoded = hosted(tmp_path, THREE), []
    for name in ("history", "statement"):
        made = getattr(found, name)
        monkeypatch.setattr(found, name, lambda name=name, made=made: (encoded.append(name), made())[1])
    with server(found) as port:
        first, *others = (get(port, "/api/federations/demo") for _ in range(3))
    assert sorted(encoded) == ["history", "statement"]
    assert first["task"] == found.task.content
    assert [other["statement"] for other in others] == [first["statement"]] * 2


def test_where_too_many_requests_wait_one_more_is_refused(tmp_path):
    asked = b"GET /api/server HTTP/1.1\r\nHost: x\r\n\r\n"
    limits = Limits(places=5, requests=5, requests_burst=0.1, turn=0.5)
    with server(hosted(tmp_path, THREE), limits=limits) as port, contextlib.ExitStack() as crowd:
        many = [crowd.enter_context(slow(port, asked * 2)) for _ in range(12)]
        upgrades = [crowd.enter_context(slow(port, upgrade(port))) for _ in range(12)]
        first = [answers(each, 1)[0] for each in many]
        assert {200, 429} == set(first)
        assert is_cut_off(many[first.index(429)])
        assert {answers(each, 1)[0] for each in upgrades} == {101, 429}  # they have turns of their own
        time.sleep(0.6)
        assert fetch(port, "/api/server")[0] == 200


def test_a_class_that_opens_its_pages_at_once_does_not_wait():
    bucket = RateLimit(None, Limits())._bucket
    for cost in [1.0] * 14 + [10.0]:
        for _ in range(40):
            assert bucket.wait(cost, "10.0.0.1") == 0.0
            bucket.note(cost, "10.0.0.1")
    assert bucket.wait(1000, "10.0.0.1") > 10
    assert bucket.wait(10, "10.0.0.2") == 0.0


ADDRESSES = [
    "/", "/live", "/nothing", "/api/server", "/api/federations", "/api/federations/demo", "/api/federations/nothing",
    *(f"/api/federations/demo/{name}" for name in (
        "task", "sample", "sample?client=x", "statement.json", "model.bin", "model.safetensors", "report.html",
        "events",
    )),
]  # fmt: skip


def test_head_is_get_without_its_body(tmp_path):
    site = Site({"demo": hosted(tmp_path, THREE)}, Limits(watching=4))

    def asked(port, method, path):
        page = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        page.request(method, path)
        answer = page.getresponse()
        body = answer.read() if method == "HEAD" else b""
        told = {name.lower(): value for name, value in answer.getheaders()} | {"date": ""}
        page.close()
        return answer.status, told, body

    with serving(site) as port:
        for path in ADDRESSES:
            status, headers, body = asked(port, "HEAD", path)
            assert body == b""
            likewise = asked(port, "GET", path)
            if path == "/api/federations/demo":  # it says how long the server has run
                assert headers.pop("content-length").isdigit() and likewise[1].pop("content-length").isdigit()
            assert (status, headers) == likewise[:2], path
        for _ in range(5):  # streams that are asked about are not held
            assert asked(port, "HEAD", "/api/federations/demo/events")[0] == 200
        wait_until(lambda: not site.watchers._open)
        assert asked(port, "POST", "/api/server")[0] == 405


def test_attempts_of_strangers_leave_no_line_in_the_log(tmp_path, caplog, capfd):
    found = hosted(tmp_path, THREE)

    def attempt(port, sent, how="wait"):
        with socket.create_connection(("127.0.0.1", port), timeout=5) as one:
            one.sendall(sent)
            if how == "reset":
                one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return b""
            return one.recv(3000)

    with server(found) as port:
        evil = upgrade(port, "https://evil.example")
        for _ in range(5):
            denied = attempt(port, evil)
            assert denied.startswith(b"HTTP/1.1 403")
            assert denied.lower().count(b"content-type:") == 1
            attempt(port, evil, "reset")
            assert attempt(port, evil + framed(0x81, b"hello")).startswith(b"HTTP/1.1 403")
            assert attempt(port, upgrade(port, "http://[::1")).startswith(b"HTTP/1.1 403")
            assert attempt(port, upgrade(port, name="nothing")).startswith(b"HTTP/1.1 404")
            assert attempt(port, b"no request\r\n\r\n").startswith(b"HTTP/1.1 400")
            assert attempt(port, upgrade(port, "http://é")).startswith(b"HTTP/1.1 400")
            assert attempt(port, BODY.replace(b"Content-Length: 100000", b"Transfer-Encoding: chunked") + b"zz\r\n")
            attempt(port, upgrade(port).replace(b"websocket", b"h2c"))
            with slow(port, upgrade(port)) as one:
                one.recv(1000)
                one.sendall(framed(0x81, b"\xff\xfe"))
                assert b"\x03\xef" in one.recv(1000)  # 1007: not UTF-8
        time.sleep(0.2)
    assert [record for record in caplog.records if record.levelname in ("WARNING", "ERROR")] == []
    assert capfd.readouterr().err == ""


def test_who_is_turned_away_for_lack_of_room_hears_it(tmp_path):
    async def both(port, found):
        async with visit(port, found, "a") as first, visit(port, found, "b") as second:
            await first.until("welcome")
            return await second.until("refused")

    found = hosted(tmp_path, THREE)
    with server(found, limits=Limits(connections=1)) as port:
        told = asyncio.run(both(port, found))
        assert told["code"] == "busy"
        assert told["retry"] == 30.0
        assert fetch(port, "/api/server")[0] == 200

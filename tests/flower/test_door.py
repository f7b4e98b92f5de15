"""The door before Flower's server, attacked with raw bytes: the built-in one, and nginx with the file that we emit."""

import http.server
import os
import re
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sordino.deploy import certificates
from sordino.deploy import door_server as door_server_module
from sordino.deploy.deployment import Deployment
from sordino.deploy.door import PATH, nginx_conf
from sordino.deploy.door_server import door_app, door_server
from sordino.web.server import listen
from sordino.wire.tls_address import TlsAddress, trusting
from tests.flower.https import serving
from tests.flower.machines import free_ports

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
FLEET = b"POST /v1/fleet/pull-messages HTTP/1.1\r\n"
REST = b"Host: 127.0.0.1\r\nContent-Length: 4\r\nConnection: close\r\n\r\nbody"
CONTROL = b"POST /v1/control/start-run HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


@dataclass
class Upstream:
    """A stand-in for Flower's server, which writes down whatever reaches it."""

    port: int
    lines: list[bytes] = field(default_factory=list)  #: request lines, well formed or not
    requests: list[tuple[str, bytes, dict[str, str]]] = field(default_factory=list)  #: path, body, headers

    @contextmanager
    def serve(self, folder: Path) -> Iterator[None]:
        upstream = self

        class Recorder(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def parse_request(self) -> bool:
                upstream.lines.append(self.raw_requestline)
                return super().parse_request()

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                upstream.requests.append((self.path, body, {k.lower(): v for k, v in self.headers.items()}))
                self.send_response(200)
                self.send_header("Content-Length", "8")
                self.send_header("X-Flower", "yes")
                self.end_headers()
                self.wfile.write(b"answered")

            def log_message(self, *_: object) -> None: ...

        with serving(self.port, Recorder, folder / "server.crt"):
            yield


@dataclass
class Door:
    """A door with its upstream."""

    port: int
    folder: Path
    upstream: Upstream

    def send(self, raw: bytes) -> bytes:
        """Send bytes over TLS as they are; what comes back until the door closes the connection or keeps silent."""
        plain = socket.create_connection(("127.0.0.1", self.port), 5)
        answer = bytearray()
        own = trusting(self.folder / "ca.crt").wrap_socket(plain, server_hostname="127.0.0.1")
        with own, suppress(OSError):  # closed while it was written to, or silent
            own.sendall(raw)
            own.settimeout(1.0)
            while piece := own.recv(65536):
                answer += piece
        return bytes(answer)

    def reached(self, raw: bytes) -> list[bytes]:
        """The request lines that reached Flower's server after these bytes."""
        self.upstream.lines.clear()
        self.upstream.requests.clear()
        self.send(raw)
        return list(self.upstream.lines)


@contextmanager
def built_in(deployment: Deployment, folder: Path) -> Iterator[None]:
    where = TlsAddress("127.0.0.1", deployment.port, folder / "server.crt", folder / "server.key")
    with closing(listen(where)) as listening:
        running = door_server(door_app(deployment.inner_address, trusting(folder / "ca.crt")), where)
        thread = threading.Thread(target=running.run, args=([listening],))
        thread.start()
        try:
            yield
        finally:
            running.should_exit = True
            thread.join()


@contextmanager
def nginx(deployment: Deployment, folder: Path) -> Iterator[None]:
    assert NGINX
    (folder / "nginx.conf").write_text(nginx_conf(deployment))
    command = [NGINX, "-p", str(folder), "-c", "nginx.conf", "-e", "nginx-error.log"]
    if os.geteuid() == 0:  # its workers would be another account's, which cannot enter the folder
        command += ["-g", "user root;"]
    running = subprocess.Popen(command, stderr=subprocess.PIPE)
    try:
        yield
    finally:
        running.terminate()
        said = running.communicate(timeout=10)[1]
    assert not said, said


def until_open(port: int) -> None:
    end = time.monotonic() + 10
    while time.monotonic() < end:
        with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            return
        time.sleep(0.02)
    raise AssertionError(f"nobody listens at {port}")


without_nginx = pytest.mark.skipif(NGINX is None, reason="nginx is not installed here: make test-more installs it")


@pytest.fixture(scope="module", params=["built-in", pytest.param("nginx", marks=without_nginx)])
def door(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    folder = tmp_path_factory.mktemp("door")
    issuer = certificates.authority()
    own = certificates.server(["127.0.0.1"], issuer)
    for name, data in (("ca.crt", issuer.certificate), ("server.crt", own.certificate), ("server.key", own.key)):
        (folder / name).write_bytes(data)
    port = free_ports(2)
    deployment = Deployment("127.0.0.1", port, port + 1, 9094, ("client-1",), (), "")
    upstream = Upstream(port + 1)
    serve = {"built-in": built_in, "nginx": nginx}[request.param]
    with upstream.serve(folder), serve(deployment, folder):
        until_open(port)
        yield Door(port, folder, upstream)


def test_what_nodes_send_gets_through_with_its_body_and_its_own_headers(door):
    body = bytes(range(256)) * 4000
    head = b"Host: door\r\nX-Node: \xe9\r\nExpect-Nothing: 1\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(
        body
    )
    assert len(door.reached(FLEET + head + body)) == 1
    ((path, arrived, headers),) = door.upstream.requests
    assert (path, arrived) == ("/v1/fleet/pull-messages", body)
    assert headers["x-node"] == "\xe9" and headers["host"] == f"127.0.0.1:{door.upstream.port}"
    answer = door.send(FLEET + REST)
    head, _, text = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200") and b"x-flower: yes" in head.lower() and text == b"answered"


def test_a_body_in_pieces_gets_through_whole(door):
    pieces = b"Host: a\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n3\r\nabc\r\n2;x=y\r\nde\r\n0\r\n\r\n"
    door.reached(FLEET + pieces)
    assert [(path, body) for path, body, _ in door.upstream.requests] == [("/v1/fleet/pull-messages", b"abcde")]


TARGETS = [
    b"/", b"*", b"/openapi.json", b"/v1/control/start-run", b"/v1/runtime/pull-task", b"/v1/fleet", b"/v1/fleet/",
    b"/v1/fleet/../control/start-run", b"/v1/control/../fleet/pull-messages", b"/v1/fleet/./pull-messages",
    b"/v1/fleet/..%2fcontrol/start-run", b"/v1/fleet/%2e%2e/control/start-run", b"/v1/%66leet/pull-messages",
    b"/v1/fleet/%2e%2e%2fcontrol%2fstart-run", b"/v1/fleet/pull%2dmessages", b"/v1/fleet/x%00", b"/v1/fleet/x%0d%0aA:b",
    b"/v1/fleet%2fpull-messages", b"/v1/fleet\\..\\control\\start-run", b"/v1/fleet/x;/../../control/start-run",
    b"//v1/fleet/pull-messages", b"/v1//fleet/pull-messages", b"/v1/fleet//pull-messages", b"/v1/fleet/pull-messages/",
    b"//evil.example/v1/fleet/pull-messages", b"/v1/fleet/pull-messages?to=/v1/control", b"/v1/fleet/a/b",
    b"/V1/fleet/pull-messages", b"/v1/fleet/Pull", b"/v1/fleet/" + 101 * b"a", b"/v1/fleet/x#/../control",
    b"http://127.0.0.1/v1/control/start-run", b"http://127.0.0.1/v1/fleet/pull-messages",
    b"https://evil.example/v1/fleet/pull-messages", b"v1/fleet/pull-messages", b"127.0.0.1:443", b"/v1/fleet/\xc3\xa9",
]  # fmt: skip


@pytest.mark.parametrize("target", TARGETS)
def test_no_other_target_reaches_flowers_server(door, target):
    assert door.reached(b"POST " + target + b" HTTP/1.1\r\n" + REST) == []


@pytest.mark.parametrize(
    "method", [b"GET", b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"CONNECT", b"TRACE", b"post", b"PRI"]
)
def test_no_other_method_reaches_flowers_server(door, method):
    assert door.reached(method + b" /v1/fleet/pull-messages HTTP/1.1\r\n" + REST) == []


#: Ways to hide a second request in a first one: each server on the way must agree on where the first ends.
SMUGGLED = {
    "length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n" + CONTROL,
    "chunks and length": b"Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n" + CONTROL,
    "chunks of another name": b"Content-Length: 4\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n" + CONTROL,
    "chunks twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n0\r\n\r\n" + CONTROL,
    "space before colon": b"Content-Length: 4\r\nTransfer-Encoding : chunked\r\n\r\n0\r\n\r\n" + CONTROL,
    "folded line": b"Content-Length: 4\r\nTransfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n" + CONTROL,
    "vertical tab": b"Content-Length: 4\r\nTransfer-Encoding: \x0bchunked\r\n\r\n0\r\n\r\n" + CONTROL,
    "two lengths": b"Content-Length: 0\r\nContent-Length: %d\r\n\r\n" % len(CONTROL) + CONTROL,
    "list of lengths": b"Content-Length: 0, %d\r\n\r\n" % len(CONTROL) + CONTROL,
    "signed length": b"Content-Length: +%d\r\n\r\n" % len(CONTROL) + CONTROL,
    "negative length": b"Content-Length: -1\r\n\r\n" + CONTROL,
    "no length": b"\r\n" + CONTROL,
    "length in words": b"Content-Length: 0x10\r\n\r\n" + CONTROL,
    "bare line feeds": b"X: y\nContent-Length: 0\n\n" + CONTROL,
    "bare carriage return": b"X: y\rContent-Length: 9\r\nContent-Length: 0\r\n\r\n" + CONTROL,
    "zero byte": b"X: \x00\r\nContent-Length: 0\r\n\r\n" + CONTROL,
    "line feed in a chunk's extension": b"Transfer-Encoding: chunked\r\n\r\n1;\nx\r\na\r\n0\r\n\r\n" + CONTROL,
    "trailer": b"Transfer-Encoding: chunked\r\n\r\n0\r\nContent-Length: 9\r\n\r\n" + CONTROL,
    "overlong chunk size": b"Transfer-Encoding: chunked\r\n\r\n" + 30 * b"0" + b"0\r\n\r\n" + CONTROL,
    "pipelined": b"Content-Length: 0\r\n\r\n" + CONTROL,
    "upgrade": b"Connection: Upgrade\r\nUpgrade: websocket\r\nContent-Length: 0\r\n\r\n" + CONTROL,
    "another version": b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQ\r\n"
    b"Content-Length: 0\r\n\r\n" + CONTROL,
    "length named by Connection": b"Connection: content-length\r\nContent-Length: %d\r\n\r\n" % len(CONTROL) + CONTROL,
    "promised body": b"Expect: 100-continue\r\nContent-Length: 0\r\n\r\n" + CONTROL,
}


@pytest.mark.parametrize("way", SMUGGLED)
def test_no_second_request_hides_in_one_for_nodes(door, way):
    """The first may get through, once; the second only as its body."""
    lines = door.reached(FLEET + b"Host: 127.0.0.1\r\n" + SMUGGLED[way])
    assert len(lines) <= 1 and all(line.startswith(b"POST /v1/fleet/pull-messages HTTP/1.") for line in lines)


def test_a_second_request_for_nodes_is_a_request_like_any_other(door):
    """So that the ones above show that the second was looked at, and not just that nobody read on."""
    first = FLEET + b"Host: a\r\nContent-Length: 3\r\n\r\none"
    door.reached(first + FLEET + b"Host: a\r\nContent-Length: 3\r\nConnection: close\r\n\r\ntwo")
    assert [body for _, body, _ in door.upstream.requests] == [b"one", b"two"]


PIECES = ["/", "v1", "fleet", "control", "..", ".", "%2e", "%2f", "%", "?", ";", "\\", "x-1", "A", "//h", ":"]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(PIECES), max_size=9))
def test_whatever_the_target_only_paths_for_nodes_get_through(door, pieces):
    target = "/v1/fleet/" + "".join(pieces)
    lines = door.reached(f"POST {target} HTTP/1.1\r\n".encode() + REST)
    assert len(lines) == bool(re.fullmatch(PATH, target))


@pytest.fixture
def small_door(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Door]:
    """A built-in door with room for few connections, short requests and few bytes."""
    issuer = certificates.authority()
    own = certificates.server(["127.0.0.1"], issuer)
    for name, data in (("ca.crt", issuer.certificate), ("server.crt", own.certificate), ("server.key", own.key)):
        (tmp_path / name).write_bytes(data)
    limits = replace(door_server_module.LIMITS, request=2.0, connections=24)
    monkeypatch.setattr(door_server_module.DoorPremises, "limits", limits)
    monkeypatch.setattr(door_server_module, "HELD_EACH", 200_000)
    port = free_ports(2)
    upstream = Upstream(port + 1)
    with upstream.serve(tmp_path), built_in(Deployment("127.0.0.1", port, port + 1, 9094, (), (), ""), tmp_path):
        until_open(port)
        yield Door(port, tmp_path, upstream)


def test_strangers_who_only_stand_there_shut_nobody_out(small_door):
    context = trusting(small_door.folder / "ca.crt")
    with ExitStack() as idle:
        for number in range(60):
            plain = idle.enter_context(closing(socket.create_connection(("127.0.0.1", small_door.port), 5)))
            if number % 2:
                with suppress(OSError):
                    idle.enter_context(closing(context.wrap_socket(plain, server_hostname="127.0.0.1")))
        assert len(small_door.reached(FLEET + REST)) == 1


def test_bodies_that_never_arrive_whole_hold_little_and_not_for_long(small_door):
    head = FLEET + b"Host: door\r\nContent-Length: 1000000\r\n\r\n"
    context = trusting(small_door.folder / "ca.crt")
    with ExitStack() as open_ones:
        for _ in range(4):  # each sends a part of its body, and together they send more than one address may have here
            plain = socket.create_connection(("127.0.0.1", small_door.port), 5)
            own = open_ones.enter_context(closing(context.wrap_socket(plain, server_hostname="127.0.0.1")))
            with suppress(OSError):
                own.sendall(head + bytes(90_000))
        time.sleep(3.0)  # longer than a request may take
        assert len(small_door.reached(FLEET + REST)) == 1
    assert small_door.upstream.requests[0][1] == b"body"

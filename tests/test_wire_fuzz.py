"""Whatever bytes come from the network: refused in words, at once, and in no more memory than was sent."""

import json
import struct
import threading
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from sordino.channels import secagg, secure_sum
from sordino.channels.direct import Direct
from sordino.client.invitation import Invitation
from sordino.errors import InvalidInput, SordinoError
from sordino.fleets.gateways import Bundle, Gather
from sordino.fleets.interface import Fleet, Reply
from sordino.mechanisms import Box, TwoPoint
from sordino.runs.coordinator import Coordinator
from sordino.shuffler.envelopes import Body
from sordino.shuffler.parallel import open_batch
from sordino.shuffler.remote import Announcement, Rejected, Remote, ShufflerUnreachable
from sordino.shuffler.terms import Terms
from sordino.wire.codec import VERSION
from sordino.wire.messages import Answer, Plan, answer_to
from sordino.wire.receipt import Seal
from sordino.wire.requests import Request, Response
from sordino.wire.signing import Author, Envelope
from tests.engine.federations import VALUES, work
from tests.engine.test_upload import BUILDERS, D, draw, upload, vectors
from tests.golden import wire

GOLDEN = wire.kept()
SERVER = X25519PrivateKey.from_private_bytes(wire.KEY)
SLOW = 10_000  #: milliseconds that no message may take, even where machines are busy

PARSERS: dict[str, Callable[[bytes], Any]] = {
    "plan": Plan.decode,
    "signed-plan": Envelope.decode,
    "rotation": lambda raw: Author(wire.author().first, (raw,)),
    "gather": Gather.decode,
    "bundle": Bundle.decode,
    "answer-report": Answer.decode,
    "request-step": Request.decode,
    "response-fine": Response.decode,
    "invitation": Invitation.decode,
    "receipt": lambda raw: Seal(wire.KEY).head(wire.FEDERATION, raw),
    "sum-session": secagg.Session.decode,
    "sparse-sum-session": secagg.Session.decode,
    "sum-keys-to-0": secagg.invitation,
    "sum-invitation": secure_sum.plan_in,
    "terms": Terms.from_json,
    "announcement": Announcement.from_json,
    "envelopes-body-0": lambda raw: Body.decode(raw).check(wire.terms()),
    "envelopes-batch": lambda raw: open_batch(raw, wire.terms(), SERVER),
}


@st.composite
def hostile(draw: Any, whole: bytes) -> bytes:
    """Noise, or a good message with a piece of it cut out, doubled, or put in another's place."""
    kind = draw(st.sampled_from(["noise", "piece", "cut", "number", "doubled"]))
    place = draw(st.integers(0, len(whole)))
    match kind:
        case "noise":
            return draw(st.binary(max_size=300))
        case "piece":
            return whole[:place] + draw(st.binary(max_size=40)) + whole[place + draw(st.integers(0, 40)) :]
        case "cut":
            return whole[:place]
        case "number":
            extreme = draw(st.sampled_from([0, 1, 2**15, 2**16 - 1, 2**31, 2**32 - 1]))
            form = draw(st.sampled_from(["<H", "<I"]))
            return whole[:place] + struct.pack(form, extreme % (1 << (8 * struct.calcsize(form)))) + whole[place + 4 :]
    return whole + whole[place:]


GOLDEN["gather"] = Gather((0, 2, 9), GOLDEN["signed-plan"], 30.0).encode()
GOLDEN["bundle"] = Bundle({0: GOLDEN["answer-report"], 9: GOLDEN["answer-declined"]}, (2,)).encode()
KEY = SERVER.public_key().public_bytes_raw().hex()
GOLDEN["announcement"] = json.dumps(
    {"at_least": 3, "key": KEY, "latency": 0.0, "terms": json.loads(GOLDEN["terms"])}
).encode()


@pytest.mark.parametrize("name", PARSERS)
@settings(max_examples=60, deadline=SLOW)
@given(data=st.data())
def test_a_parser_reads_or_refuses_in_words(name, data):
    message = data.draw(hostile(GOLDEN[name]))
    try:
        PARSERS[name](message)
    except SordinoError as refused:
        assert str(refused)


WITH_JSON = ["plan", "invitation", "sum-session", "sum-keys-to-0", "terms", "announcement"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=SLOW)
@given(st.sampled_from(WITH_JSON), st.data())
def test_any_json_in_the_place_of_the_right_one_is_read_or_refused(name, data):
    whole = GOLDEN[name]
    start = whole.index(b"{")
    text = whole[start : whole.rindex(b"}") + 1]
    fields = json.loads(text)
    for key in data.draw(st.sets(st.sampled_from(sorted(fields)), max_size=3)):
        fields[key] = data.draw(json_values)
    changed = json.dumps(fields, sort_keys=True, separators=(",", ":")).encode()
    head = struct.pack("<2sBxI", b"SP", VERSION, len(changed)) if name == "plan" else whole[:start]
    try:
        PARSERS[name](head + changed + whole[start + len(text) :])
    except SordinoError as refused:
        assert str(refused)


DEEP = b"[" * 200_000
HOSTILE = {
    "plan": [
        struct.pack("<2sBxI", b"SP", VERSION, 2**32 - 1) + b"{}",
        struct.pack("<2sBxI", b"SP", VERSION, len(DEEP)) + DEEP,
        *(
            struct.pack("<2sBxI", b"SP", VERSION, len(text)) + text
            for shape in ("[0,4294967295,4294967295]", "[4294967295,4294967295]", str([1] * 70).replace(" ", ""))
            for text in [b'{"arrays":{"a":%s},"federation":"f","round":1,"settings":{}}' % shape.encode()]
        ),
        *(
            struct.pack("<2sBxI", b"SP", VERSION, len(text)) + text
            for text in (
                b'{"arrays":{},"federation":"f","round":-1,"settings":{}}',
                b'{"arrays":{},"federation":"f","round":1,"settings":{"a":NaN}}',
                b'{"arrays":{},"federation":"f","round":"1","settings":{}}',
                b'{"arrays":{},"federation":"f","round":1,"settings":{} }',
                b'{"arrays":{},"federation":"f","round":1,"round":1,"settings":{}}',
            )
        ),
    ],
    "invitation": [b"SI\x02\x00" + DEEP],
    "sum-session": [DEEP, b'{"values":' + b"9" * 5000 + b"}"],
    "sum-keys-to-0": [GOLDEN["sum-keys-to-0"][:28] + DEEP],
    "sum-invitation": [struct.pack("<I", 2**32 - 1) + b"x", b""],
    "terms": [DEEP],
    "announcement": [DEEP, GOLDEN["announcement"].replace(b'"at_least": 3', b'"at_least": 1e999')],
    "envelopes-body-0": [struct.pack("<2sBxH32sI", b"SE", VERSION, 0, bytes(32), 2**32 - 1) + b"x" * 100],
    "envelopes-batch": [
        struct.pack("<2sBxHHII32s", b"SB", VERSION, 0, 49, 3, 2**32 - 1, wire.terms().digest) + b"x" * 100,
    ],
    "signed-plan": [b"SC\x02\x00" + bytes(116) + b"\xff" * 8],
    "gather": [b"SG\x02\x00" + bytes(4) + b"\xff\xff\xff\xff"],
    "bundle": [b"SN\x02\x00" + bytes(4) + struct.pack("<II", 4, 1) + b"\xff\xff\xff\xff"],
    "request-step": [b"SQ\x02\x03\xff\xff\xff\xff"],
    "response-fine": [b"SA\x02\x01\xff\xff\xff\xff"],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_what_a_message_announces_takes_no_memory(name):
    for message in HOSTILE[name]:
        tracemalloc.start()
        with pytest.raises(SordinoError):
            PARSERS[name](message)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**20 + 20 * len(message), message[:60]


# --- a shuffler that is none ------------------------------------------------------------------------------------------


class Rude(BaseHTTPRequestHandler):
    """Answers every request with the status and the bytes that the test chose."""

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        status, body = self.server.answer  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)

    do_GET = do_POST = do_PUT = do_DELETE = _answer

    def log_message(self, *said: Any) -> None: ...


@pytest.fixture(scope="module")
def rude():
    with HTTPServer(("127.0.0.1", 0), Rude) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


ANSWERS = [
    b"",
    b"null",
    b"[]",
    b"{}",
    b'{"accepted":"x"}',
    b'{"accepted":1e999}',
    b"\xff" * 40,
    DEEP,
    b"x" * (2**20 + 2),
]


@pytest.mark.network
@pytest.mark.parametrize("status", [200, 404, 425, 500])
@pytest.mark.parametrize("answer", ANSWERS, ids=lambda raw: f"{raw[:12]!r} {len(raw)}")
def test_whatever_a_shuffler_answers_its_parties_say_so_in_words(rude, status, answer):
    rude.answer = status, answer
    remote = Remote(f"http://127.0.0.1:{rude.server_port}", "token", timeout=5)
    for ask in (lambda: remote.announced(1), lambda: remote.send(1, b"x")):
        with pytest.raises((InvalidInput, Rejected, ShufflerUnreachable)) as refused:
            ask()
        assert str(refused.value)


# --- a secure sum -----------------------------------------------------------------------------------------------------


def server_at(step: str, kind: str) -> secagg.SumServer:
    """A server that has heard everybody up to a step, and nobody in it."""
    server = secagg.SumServer(wire.session(kind), (*wire.SUMS[kind], 9))
    for at in secagg.STEPS:
        asked = server.requests(at)
        if at == step:
            break
        for client in asked:
            if (answer := GOLDEN.get(f"{kind}-{at}-from-{client}")) is not None:
                server.receive(at, client, answer)
    return server


def client_at(step: str, kind: str, number: int = 2) -> secagg.SumClient:
    client = wire.sum_client(number, kind)
    for at in secagg.STEPS[: secagg.STEPS.index(step)]:
        with wire.drawn_from(f"client {number} {at}"):
            client.answer(at, GOLDEN[f"{kind}-{at}-to-{number}"], vector(number) if at == "masked" else None)
    return client


def vector(number: int) -> np.ndarray:
    return np.array(wire.ADDED[number], np.int64)


@pytest.mark.parametrize("kind", wire.SUMS)
@pytest.mark.parametrize("step", secagg.STEPS)
@settings(max_examples=25, deadline=SLOW)
@given(data=st.data())
def test_the_server_of_a_sum_takes_an_answer_or_refuses_it_in_words(kind, step, data):
    server = server_at(step, kind)
    try:
        server.receive(step, 2, data.draw(hostile(GOLDEN[f"{kind}-{step}-from-2"])))
    except SordinoError as refused:
        assert str(refused)


@pytest.mark.parametrize("kind", wire.SUMS)
@pytest.mark.parametrize("step", secagg.STEPS)
@settings(max_examples=25, deadline=SLOW)
@given(data=st.data())
def test_a_client_of_a_sum_answers_a_request_or_refuses_it_and_then_falls_silent(kind, step, data):
    client = client_at(step, kind)
    request = data.draw(hostile(GOLDEN[f"{kind}-{step}-to-2"]))
    try:
        client.answer(step, request, vector(2) if step == "masked" else None)
    except SordinoError as refused:
        assert str(refused)
        with pytest.raises(SordinoError):
            client.answer(step, GOLDEN[f"{kind}-{step}-to-2"], vector(2) if step == "masked" else None)


# --- reports ----------------------------------------------------------------------------------------------------------


@settings(max_examples=80, deadline=SLOW)
@given(st.sampled_from(sorted(BUILDERS)), st.booleans(), st.data())
def test_any_report_is_added_or_refused_alone(name, samples, data):
    part = upload(name, samples=samples)
    sent = part.send(range(6), vectors(6), draw, [3] * 6).bodies
    bad = data.draw(hostile(sent[2]))
    tally = part.tally()
    refused = tally.add(list(range(6)), [*sent[:2], bad, *sent[3:]])
    assert set(refused) <= {2} and tally.reports == 6 - len(refused)
    assert np.isfinite(tally.mean()).all()


@settings(max_examples=60, deadline=SLOW)
@given(st.binary(min_size=(D + 7) // 8, max_size=(D + 7) // 8))
@example(b"\xff" * ((D + 7) // 8))
def test_reports_of_bits_with_set_padding_are_refused(raw):
    refused = upload("two-point").tally().add([0], [raw])
    assert bool(refused) == bool(raw[-1] >> (D % 8))


class Noise(Fleet):
    """A fleet of which one client answers with whatever was drawn, and the others well."""

    def __init__(self, strange: list[tuple[int, bytes]]) -> None:
        self.strange = strange

    def exchange(self, step: str, messages: Any, deadline: Any) -> Any:
        yield from (Reply(*answer) for answer in self.strange)
        for client, message in messages.items():
            if client != 1:
                yield Reply(client, answer_to(Plan.decode(message), bytes((VALUES + 7) // 8)))


GIVEN = work(4, build=lambda _: TwoPoint(1.0, Box(0.0, 0.1)))


@settings(max_examples=60, deadline=SLOW, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_round_goes_on_whatever_one_client_answers(data):
    method = GIVEN.method
    good = answer_to(method.plan(method.init(), "f"), bytes((VALUES + 7) // 8))
    answers = data.draw(st.lists(st.tuples(st.sampled_from([1, 1, 77]), hostile(good)), max_size=4))
    state, held = Coordinator(method, Noise(answers), Direct(), "f").round(method.init())
    assert held.counted and set(held.attendance.reported) - {1} == {0, 2, 3}
    assert state.finite

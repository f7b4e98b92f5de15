"""Whatever bytes come, a client refuses in words: no crash, no hang, nothing spent."""

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given
from hypothesis import settings as tried
from hypothesis import strategies as st

from sordino.client.client import Client
from sordino.client.invitation import Invitation
from sordino.client.refusal import Reason, Refused
from sordino.errors import InvalidInput
from sordino.wire import requests
from sordino.wire.messages import Plan
from sordino.wire.requests import Request, Response, What
from sordino.wire.signing import Envelope
from tests.client.people import KEY, NAME, invitation, joined, plans, signed, terms

ROUNDS = 150
STEPS = ["report", "prepare", "post", "keys", "masked", "x"]
PLAN = plans()(1).encode()
SIGNED = signed(plans()(1))
INVITATION = invitation().encode()

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def damaged(message: bytes) -> st.SearchStrategy[bytes]:
    """The message with a piece of it replaced by something else."""
    place = st.integers(0, min(len(message), 200))
    return st.builds(
        lambda start, length, new: message[:start] + new + message[start + length :],
        place, st.integers(0, 40), st.binary(max_size=40),
    )  # fmt: skip


def as_invitation(value: Any) -> bytes:
    return b"SI\x02\x00" + json.dumps(value).encode()


@st.composite
def plan_messages(draw: Any) -> bytes:
    """A plan whose header says anything, with some bytes after it."""
    header = {"federation": NAME, "round": 1, "settings": {}, "arrays": {"parameters": [650]}}
    for key in draw(st.sets(st.sampled_from(sorted(header)), min_size=1)):
        header[key] = draw(json_values)
    if draw(st.booleans()):
        header["arrays"] = {"parameters": draw(st.lists(st.integers(-(2**66), 2**66), max_size=3))}
    text = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
    return struct.pack("<2sBxI", b"SP", 2, len(text)) + text + draw(st.binary(max_size=64))


@pytest.fixture(scope="module")
def member(tmp_path_factory: Any) -> Iterator[Client]:
    with joined(tmp_path_factory.mktemp("fuzz") / "a") as client:
        yield client


def well_formed(message: bytes) -> bool:
    """Whether it is a plan of this federation after all, with other numbers in its array: that one is answered."""
    try:
        found = Plan.decode(message)
    except InvalidInput:
        return False
    own = Plan.decode(PLAN)
    shapes = ({name: array.shape for name, array in plan.arrays.items()} for plan in (found, own))
    return (found.federation, found.settings) == (own.federation, own.settings) and next(shapes) == next(shapes)


def nested(depth: int) -> bytes:
    text = b'{"arrays":' + b"[" * depth + b"]" * depth + b"}"
    return struct.pack("<2sBxI", b"SP", 2, len(text)) + text


@tried(max_examples=ROUNDS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=300), damaged(PLAN), plan_messages()), st.sampled_from(STEPS))
@example(nested(100_000), "report")
@example(
    b"SP\x02\x00" + struct.pack("<I", 60) + b'{"arrays":{},"federation":"x","round":1e999,"settings":{}}  ', "report"
)
def test_any_plan_that_its_coordinator_signed_is_answered_in_words(member, message, step):
    assume(not well_formed(message))
    reply = member.reply(step, KEY.envelope(step, Plan.decode(PLAN), terms().digest, [0], message))
    assert reply.reason in {reason.value for reason in Reason}
    assert member.standing.spent == 0


@tried(max_examples=ROUNDS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=300), damaged(SIGNED), damaged(PLAN)), st.sampled_from(STEPS))
def test_whatever_the_coordinator_did_not_sign_is_refused_for_that(member, message, step):
    assume((step, message) != ("report", SIGNED))
    reply = member.reply(step, message)
    assert (reply.payload, reply.reason) in ((b"", Reason.NOT_SIGNED.value), (b"", Reason.NOT_AGREED.value))
    assert member.standing.spent == 0


@tried(max_examples=ROUNDS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.one_of(st.binary(max_size=300), damaged(INVITATION), json_values.map(as_invitation)))
@example(INVITATION.replace(b"digits-demo", b"digitsmo"))
@example(b"SI\x02\x00" + b"[" * 100_000)
def test_any_invitation_is_refused_in_words_or_offered_as_it_stands(member, message):
    """A damaged one may happen to be another federation's: it is offered under that name, and nothing is agreed to."""
    try:
        offer = member.offer(message)
    except Refused as refused:
        assert str(refused)
    else:
        assert offer.invitation == Invitation.decode(message)
    assert list(member.federations()) == [NAME]
    assert not member.stopped


@tried(max_examples=ROUNDS)
@given(st.binary(max_size=80))
def test_decoders_give_back_what_they_wrote_or_refuse(raw):
    for decode in (Request.decode, Response.decode, Invitation.decode, Envelope.decode):
        try:
            found: Any = decode(raw)
        except InvalidInput:
            continue
        assert found.encode() == raw


@tried(max_examples=ROUNDS)
@given(st.sampled_from(list(What)), st.text(max_size=50), st.binary(max_size=50), st.booleans(), st.binary(max_size=70))
def test_requests_and_responses_survive_the_wire(what, text, payload, fine, receipt):
    request = Request(what, text, payload)
    response = Response(fine, payload, text, receipt)
    assert Request.decode(request.encode()) == request
    assert Response.decode(response.encode()) == response


@tried(max_examples=50, deadline=None)
@given(st.binary(max_size=60))
def test_frames_end_with_what_came(raw):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(5)
        ours.sendall(raw)
        ours.close()
        read = b""
        try:
            while True:
                read += requests.receive(theirs, largest=40)
        except (requests.Closed, InvalidInput):
            pass
        assert len(read) <= len(raw)


def test_a_frame_has_one_deadline_however_many_pieces_it_comes_in():
    """Every piece comes well within the second of a timeout; the frame would take ten of them."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(1.0)
        ours.sendall(struct.pack("<I", 100))

        def drip() -> None:
            with contextlib.suppress(OSError):
                for _ in range(100):
                    ours.sendall(b"x")
                    time.sleep(0.1)

        threading.Thread(target=drip, daemon=True).start()
        began = time.monotonic()
        with pytest.raises(TimeoutError):
            requests.receive(theirs)
        assert 0.9 < time.monotonic() - began < 5
        assert theirs.gettimeout() == 1.0


def test_memory_does_not_grow_with_what_is_announced():
    import tracemalloc

    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(struct.pack("<I", 2**27) + b"x")
        ours.close()
        tracemalloc.start()
        with pytest.raises(requests.Closed, match="in the middle"):
            requests.receive(theirs)
        assert tracemalloc.get_traced_memory()[1] < 2**20
        tracemalloc.stop()


@tried(max_examples=ROUNDS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=100))
def test_any_receipt_is_refused(member, raw):
    with pytest.raises(Refused):
        member.receive_receipt(NAME, raw)
    assert not member.stopped


def test_the_plan_that_is_damaged_here_is_a_good_one(member):
    assert Plan.decode(PLAN).encode() == PLAN
    assert member.offer(INVITATION).agreed

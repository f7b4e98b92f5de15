"""Plans and answers survive the journey exactly, and nothing else is taken for one."""

import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.errors import InvalidInput
from sordino.wire.codec import VERSION
from sordino.wire.messages import ANSWER_BYTES, Answer, Kind, Plan, answer_to

ARRAYS = {"parameters": np.arange(6, dtype=np.float32), "more": np.ones((2, 3), np.float32)}


def plan(**changes: object) -> Plan:
    return Plan(**({"federation": "f", "round": 3, "settings": {"a": [1, "b"]}, "arrays": ARRAYS} | changes))  # type: ignore[arg-type]


def test_plan_survives_the_journey():
    got = Plan.decode(plan().encode())
    assert (got.federation, got.round, got.settings) == ("f", 3, {"a": [1, "b"]})
    assert all(np.array_equal(got.arrays[name], array) for name, array in ARRAYS.items())
    assert got.digest == plan().digest


@pytest.mark.parametrize(
    "changes", [{"round": 4}, {"federation": "g"}, {"settings": {}}, {"arrays": {}}], ids=lambda c: next(iter(c))
)
def test_another_plan_has_another_digest(changes):
    assert plan(**changes).digest != plan().digest


@given(st.integers(0, 400))
def test_a_plan_cut_off_anywhere_is_refused(length):
    whole = plan().encode()
    if length < len(whole):
        with pytest.raises(InvalidInput):
            Plan.decode(whole[:length])


HEADER = '{"federation":"f","round":1,"settings":{},"arrays":{"a":%s}}'


@pytest.mark.parametrize(
    "shape",
    ["[4294967296, 4294967296]", "[1e400]", "[-1, -1]", "[" * 5000 + "]" * 5000, "[65536, 65536, 65536, 65536, 4]"],
    ids=["beyond 64 bits", "infinite", "negative", "nested", "2^66"],
)
def test_a_plan_with_an_impossible_shape_is_refused(shape):
    header = (HEADER % shape).encode()
    whole = plan().encode()[:4] + struct.pack("<I", len(header)) + header
    with pytest.raises(InvalidInput):
        Plan.decode(whole)


@given(st.binary(max_size=200))
def test_noise_is_never_taken_for_a_message(data):
    for kind in (Plan, Answer):
        with pytest.raises(InvalidInput):
            kind.decode(b"xx" + data)


@given(st.integers(0, 2**32 - 1), st.binary(max_size=50))
def test_answer_survives_the_journey(round_, body):
    answer = Answer(Kind.REPORT, round_, b"d" * 16, body)
    assert Answer.decode(answer.encode()) == answer
    assert len(answer.encode()) == ANSWER_BYTES + len(body)


def test_a_decline_carries_nothing():
    declined = answer_to(plan(), None)
    assert Answer.decode(declined).kind is Kind.DECLINED
    with pytest.raises(InvalidInput, match="nothing else"):
        Answer.decode(declined + b"x")


@pytest.mark.parametrize("message", [plan().encode(), answer_to(plan(), b"x")], ids=["plan", "answer"])
def test_another_version_is_refused_with_the_remedy(message):
    newer = message[:2] + bytes([VERSION + 1]) + message[3:]
    with pytest.raises(InvalidInput, match=f"version {VERSION + 1}"):
        (Plan if message[:2] == b"SP" else Answer).decode(newer)


def test_an_unknown_kind_of_answer_is_refused():
    message = bytearray(answer_to(plan(), b"x"))
    message[3] = 9
    with pytest.raises(InvalidInput, match="unknown kind 9"):
        Answer.decode(bytes(message))

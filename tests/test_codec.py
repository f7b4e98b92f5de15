"""The one form of binary messages: what was packed comes back, and nothing else is read."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.errors import InvalidInput
from sordino.wire.codec import VERSION, Layout, canonical, join, numbers, read_header, read_numbers, split

WITH_REST = Layout(b"XY", "a letter", "H4s", kinds=(1, 2), blobs=2)
WHOLE = Layout(b"XZ", "a card", "H4s", blobs=1, rest=False)
FORMS = {"name": str, "numbers": [int], "more": dict}


@given(st.integers(0, 2**16 - 1), st.binary(max_size=40), st.binary(max_size=40), st.binary(max_size=40))
def test_what_was_packed_comes_back(number, one, two, rest):
    message = WITH_REST.pack(number, b"abcd", kind=2, blobs=(one, two), rest=rest)
    assert WITH_REST.unpack(message) == (2, (number, b"abcd"), [one, two], rest)
    assert WITH_REST.unpack(memoryview(message)) == (2, (number, b"abcd"), [one, two], rest)


def test_the_bytes_are_those_of_the_page():
    message = WITH_REST.pack(5, b"abcd", kind=1, blobs=(b"x", b""), rest=b"!")
    assert message == b"XY\x02\x01" + b"\x05\0abcd" + b"\x01\0\0\0x" + b"\0\0\0\0" + b"!"


def test_every_cut_and_every_byte_too_many_are_refused():
    message = WHOLE.pack(5, b"abcd", blobs=[b"hello"])
    for end in range(len(message)):
        with pytest.raises(InvalidInput):
            WHOLE.unpack(message[:end])
    with pytest.raises(InvalidInput, match="too many"):
        WHOLE.unpack(message + b"x")


@pytest.mark.parametrize(
    ("place", "byte", "why"),
    [(0, ord("W"), "not a card"), (2, VERSION - 1, "same version"), (2, VERSION + 1, "same version"), (3, 1, "kind 1")],
)
def test_other_letters_versions_and_kinds_are_refused(place, byte, why):
    message = bytearray(WHOLE.pack(5, b"abcd", blobs=[b""]))
    message[place] = byte
    with pytest.raises(InvalidInput, match=why):
        WHOLE.unpack(message)


@pytest.mark.parametrize("message", [None, "XZ", 7, []])
def test_what_is_no_bytes_is_refused(message):
    with pytest.raises(InvalidInput):
        WHOLE.unpack(message)


@given(st.lists(st.binary(max_size=20), max_size=5), st.binary(max_size=20))
def test_blobs_come_back_in_order(blobs, rest):
    assert split(join(*blobs) + rest, len(blobs), "blobs") == (blobs, rest)


@given(st.lists(st.integers(0, 2**32 - 1), max_size=20))
def test_numbers_come_back(values):
    assert list(read_numbers(numbers(values), "numbers")) == values
    with pytest.raises(InvalidInput):
        read_numbers(numbers(values) + b"x", "numbers")


def test_only_the_canonical_header_is_read():
    header = {"name": "caf\u00e9", "numbers": [1, 2], "more": {"b": 0.5, "a": None}}
    text = canonical(header)
    assert read_header(text, "a header", FORMS) == header
    others = [
        text.replace(b":", b": ", 1), text.replace(b"[1,2]", b"[1,2.0]"), text.replace(b"[1,2]", b"[1,true]"),
        text.replace(b'"name"', b'"nom"'), text[:-1] + b',"x":1}', text.replace(b"0.5", b"NaN"), b"[]", b"null", b"",
        text.replace(b"\\u00e9", "\u00e9".encode()), b"\xff", text + b" ",
    ]  # fmt: skip
    for other in others:
        with pytest.raises(InvalidInput):
            read_header(other, "a header", FORMS)

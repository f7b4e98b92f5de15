"""The one form of all binary messages (docs/wire.md). Everything is little-endian.

    message    two letters | version u8 | kind u8 | fixed fields | blob ... | rest
    blob       length u32 | bytes

A `Layout` says which letters, kinds, fields and how many blobs a message has. Headers are canonical JSON: equal headers
are equal bytes. Whatever is not in its one form is refused with `InvalidInput`.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from sordino.errors import InvalidInput

VERSION = 2  #: of the whole wire format; a reader refuses any other
LENGTH_BYTES = 4
Buffer = bytes | bytearray | memoryview
JsonObject = dict[str, Any]  #: what JSON holds between braces
_LENGTH = struct.Struct("<I")


class Parts(NamedTuple):
    """What a message holds."""

    kind: int
    fields: tuple[Any, ...]
    blobs: list[bytes]
    rest: Buffer


@dataclass(frozen=True)
class Layout:
    """How one kind of message is laid out."""

    magic: bytes
    what: str  #: its name in refusals
    fields: str = ""  #: those of `struct`, without a byte order
    kinds: Iterable[int] = (0,)
    blobs: int = 0
    rest: bool = True  #: whether something may follow the blobs
    version: int = VERSION  #: another one for what is also kept in files of other versions

    @cached_property
    def _head(self) -> struct.Struct:
        return struct.Struct(f"<2sBB{self.fields}")

    @cached_property
    def _kinds(self) -> frozenset[int]:
        return frozenset(self.kinds)

    @property
    def size(self) -> int:
        """Bytes before the first blob."""
        return self._head.size

    def pack(self, *fields: object, kind: int = 0, blobs: Iterable[bytes] = (), rest: Buffer = b"") -> bytes:
        """The bytes of a message."""
        return b"".join((self._head.pack(self.magic, self.version, kind, *fields), join(*blobs), rest))

    def unpack(self, message: Buffer) -> Parts:
        """What `pack` put together; anything else is refused."""
        if not isinstance(message, Buffer) or len(message) < self.size:
            self._check_version(message)
            raise InvalidInput(f"{self.what} has at least {self.size} bytes: this one was cut off")
        magic, version, kind, *fields = self._head.unpack_from(message)
        if (magic, version) != (self.magic, self.version):
            self._check_version(message)
        if kind not in self._kinds:
            raise InvalidInput(f"{self.what} of an unknown kind {kind}")
        blobs, rest = split(message, self.blobs, self.what, self.size)
        if len(rest) and not self.rest:
            raise InvalidInput(f"{self.what} has {len(rest)} bytes too many")
        return Parts(kind, tuple(fields), blobs, rest)

    def _check_version(self, message: Buffer) -> None:
        """Refuse what is no message of this layout, and one of another version with what to do."""
        start = bytes(message[:3]) if isinstance(message, Buffer) else b""
        if start[:2] != self.magic[: len(start)]:
            raise InvalidInput(f"this is not {self.what}")
        if len(start) == 3 and start[2] != self.version:
            raise InvalidInput(
                f"{self.what} came in version {start[2]} of the wire format, here it is {self.version}: run the same "
                "version of Sordino on both sides, and ask for a new one"
            )


def join(*blobs: Buffer) -> bytes:
    """Blobs one after the other, each with its length."""
    return b"".join(part for blob in blobs for part in (_LENGTH.pack(len(blob)), blob))


def split(raw: Buffer, count: int, what: str, at: int = 0) -> tuple[list[bytes], Buffer]:
    """The first `count` of the blobs that `join` put together, from `at` on, and what comes after them."""
    found: list[bytes] = []
    for _ in range(count):
        start = at + LENGTH_BYTES
        at = start + (_LENGTH.unpack_from(raw, at)[0] if len(raw) >= start else 0)
        if len(raw) < max(start, at):
            raise InvalidInput(f"{what} was cut off")
        found.append(bytes(raw[start:at]))
    return found, raw[at:]


def numbers(values: Sequence[int]) -> bytes:
    """Whole numbers below 2^32, such as those of clients, as u32 each."""
    return struct.pack(f"<{len(values)}I", *values)


def read_numbers(raw: bytes, what: str) -> tuple[int, ...]:
    """The numbers that `numbers` wrote."""
    if len(raw) % 4:
        raise InvalidInput(f"{what} was cut off in the middle of a number")
    return struct.unpack(f"<{len(raw) // 4}I", raw)


def text(raw: bytes, what: str) -> str:
    """UTF-8, or refused."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"a text in {what} is not UTF-8") from None


# --- headers ----------------------------------------------------------------------------------------------------------

Form = type | list[type]  #: of a header's field: a type, or a list of values of one type


def canonical(header: Mapping[str, object]) -> bytes:
    """JSON with sorted keys, without spaces, in ASCII, without numbers that are not finite."""
    return json.dumps(header, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def read_header(raw: Buffer, what: str, forms: Mapping[str, Form]) -> JsonObject:
    """The header that `canonical` wrote, with exactly these fields of exactly these types."""
    try:
        header: JsonObject = json.loads(bytes(raw))
        good = type(header) is dict and set(header) == set(forms) and canonical(header) == raw
        good = good and all(_has_form(header[name], form) for name, form in forms.items())
    except (ValueError, TypeError, OverflowError, RecursionError):
        good = False
    if not good:
        raise InvalidInput(f"the header of {what} is damaged, or not in its canonical form: ask for it again")
    return header


def _has_form(value: object, form: Form) -> bool:
    if isinstance(form, list):
        return type(value) is list and all(type(each) is form[0] for each in value)
    return type(value) is form


__all__ = [
    "LENGTH_BYTES", "VERSION", "Buffer", "Form", "JsonObject", "Layout", "Parts", "canonical", "join", "numbers",
    "read_header", "read_numbers", "split", "text",
]  # fmt: skip

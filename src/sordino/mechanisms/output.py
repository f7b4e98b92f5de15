"""What a mechanism puts out, and its compact encoding: one bit per value where it is one bit, whole bytes otherwise.

The encoding is the only form in which an output may leave a client. Decoding checks every value against the
mechanism's output set, so that a forged report cannot hold what the mechanism could never have said.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.errors import InvalidInput
from sordino.privacy.guarantee import check_count


@dataclass(frozen=True)
class BitOutput:
    """`[K, ceil(d/8)]` bytes holding d bits per client, least significant bit first, padding zero."""

    packed: NDArray[np.uint8]
    values: int

    @classmethod
    def pack(cls, bits: NDArray[np.bool_]) -> BitOutput:
        """Pack `[K, d]` booleans."""
        return cls(np.packbits(bits, axis=1, bitorder="little"), bits.shape[1])

    def bits(self) -> NDArray[np.uint8]:
        """The bits as a `[K, d]` array of 0 and 1."""
        return np.unpackbits(self.packed, axis=1, count=self.values, bitorder="little")

    def numbers(self) -> NDArray[np.uint8]:
        """The outputs as an array `[K, d]`."""
        return self.bits()

    def ones(self) -> Iterator[tuple[slice, NDArray[np.uint8]]]:
        """How many of the (at most 255) clients have a one at each value, a block of values after the other."""
        if len(self.packed) > 255:
            raise InvalidInput(f"ones are counted of at most 255 clients at a time, got {len(self.packed)}")
        for start in range(0, self.packed.shape[1], _BLOCK):
            counted = _counted(self.packed[:, start : start + _BLOCK])
            cols = slice(8 * start, min(8 * start + counted.size, self.values))
            yield cols, counted[: cols.stop - cols.start]


_BLOCK = 2**13  # bytes of packed bits counted at a time: what is made of them stays in the cache


def _counted(packed: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The sums over rows of packed bits, by full adders: three rows of one weight become one, and one of twice it.

    That takes five operations on eight bits at once for each row, where unpacking takes one on every bit.
    """
    total = np.zeros(8 * packed.shape[1], np.uint8)
    rows, weight = packed, 0
    while len(rows):
        carries = []
        while len(rows) > 2:
            third = len(rows) // 3
            a, b, c = rows[:third], rows[third : 2 * third], rows[2 * third : 3 * third]
            half, carry = a ^ b, a & b
            carry |= half & c
            carries.append(carry)
            half ^= c
            rows = np.concatenate([half, rows[3 * third :]]) if len(rows) % 3 else half
        for row in rows:
            total += np.unpackbits(row, bitorder="little") << np.uint8(weight)
        rows, weight = (np.concatenate(carries) if carries else rows[:0]), weight + 1
    return total


@dataclass(frozen=True)
class IntegerOutput:
    """`[K, d]` whole numbers, each client's between low[k] and high[k]."""

    array: NDArray[np.signedinteger]
    low: NDArray[np.int64]
    high: NDArray[np.int64]

    @property
    def values(self) -> int:
        return int(self.array.shape[1])

    def numbers(self) -> NDArray[np.int64]:
        """The outputs as an array `[K, d]`."""
        return self.array.astype(np.int64)


@dataclass(frozen=True)
class RealOutput:
    """`[K, d]` float32 values within [-bound[k], bound[k]]; nothing is proven of them."""

    array: NDArray[np.float32]
    bound: NDArray[np.float64]

    @property
    def values(self) -> int:
        return int(self.array.shape[1])

    def numbers(self) -> NDArray[np.float32]:
        """The outputs as an array `[K, d]`."""
        return self.array


Output = BitOutput | IntegerOutput | RealOutput


def integer_width(low: int, high: int) -> int:
    """Bytes per value for whole numbers in low .. high."""
    return ((high - low).bit_length() + 7) // 8


def integer_dtype(low: int, high: int) -> type[np.signedinteger]:
    """The smallest signed type that holds low .. high."""
    for dtype in (np.int8, np.int16, np.int32, np.int64):
        if np.iinfo(dtype).min <= low and high <= np.iinfo(dtype).max:
            return dtype
    raise InvalidInput(f"outputs between {low} and {high} do not fit 64 bits")


def encode(output: Output) -> list[bytes]:
    """One byte string per client."""
    if isinstance(output, BitOutput):
        return [row.tobytes() for row in output.packed]
    if isinstance(output, RealOutput):
        return [row.astype("<f4").tobytes() for row in output.array]
    if isinstance(output, IntegerOutput):
        limits = zip(output.array, output.low.tolist(), output.high.tolist(), strict=True)
        return [_encode_integers(row, low, high) for row, low, high in limits]
    raise InvalidInput(f"only a mechanism's output can be encoded, got {type(output).__name__}")


_PIECE = 2**16  # values coded at a time


def _encode_integers(row: NDArray[np.signedinteger], low: int, high: int) -> bytes:
    width = integer_width(low, high)
    if width in (1, 2, 4, 8):
        return (row.astype(np.int64) - low).astype(f"<u{width}").tobytes()
    out = np.empty((row.size, width), np.uint8)
    for start in range(0, row.size, _PIECE):
        offset = (row[start : start + _PIECE].astype(np.int64) - low).astype("<u8")
        out[start : start + _PIECE] = offset.view(np.uint8).reshape(-1, 8)[:, :width]
    return out.tobytes()


def _check_reports(reports: Sequence[bytes], values: int) -> None:
    check_count("values", values)
    if not reports:
        raise InvalidInput("there is no report to decode")


def _check_lengths(reports: Sequence[bytes], expected: Sequence[int]) -> None:
    for k, (report, length) in enumerate(zip(reports, expected, strict=True)):
        if not isinstance(report, (bytes, bytearray, memoryview)):
            raise InvalidInput(f"report {k} is not a byte string but {type(report).__name__}")
        if len(report) != length:
            raise InvalidInput(f"report {k} has {len(report)} bytes, {length} were expected")


def decode_bits(reports: Sequence[bytes], values: int) -> BitOutput:
    """Reports of d bits each; refused when the length is wrong or a padding bit is set."""
    _check_reports(reports, values)
    width = -(-values // 8)
    _check_lengths(reports, [width] * len(reports))
    packed = np.frombuffer(b"".join(reports), np.uint8).reshape(len(reports), width)
    padding = -values % 8
    if padding and (packed[:, -1] >> (8 - padding)).any():
        raise InvalidInput("a report's padding bits must be zero: it was damaged or forged")
    return BitOutput(packed, values)


def decode_integers(
    reports: Sequence[bytes], values: int, low: NDArray[np.int64], high: NDArray[np.int64]
) -> IntegerOutput:
    """Reports of d whole numbers each; refused when one lies outside the output set."""
    _check_reports(reports, values)
    widths = [integer_width(a, b) for a, b in zip(low.tolist(), high.tolist(), strict=True)]
    _check_lengths(reports, [values * width for width in widths])
    array = np.empty((len(reports), values), dtype=integer_dtype(int(low.min()), int(high.max())))
    for k, (report, width) in enumerate(zip(reports, widths, strict=True)):
        given = np.frombuffer(report, np.uint8).reshape(values, width)
        for start in range(0, values, _PIECE):
            array[k, start : start + _PIECE] = _decode_piece(given[start : start + _PIECE], int(low[k]), int(high[k]))
    return IntegerOutput(array, low, high)


def _decode_piece(given: NDArray[np.uint8], low: int, high: int) -> NDArray[np.int64]:
    width = given.shape[1]
    if width in (1, 2, 4, 8):
        offset = given.view(f"<u{width}")[:, 0].astype(np.uint64)
    else:
        lanes = np.zeros((len(given), 8), np.uint8)
        lanes[:, :width] = given
        offset = lanes.view("<u8")[:, 0]
    if (offset > np.uint64(high - low)).any():
        raise InvalidInput("a report holds a number outside its mechanism's output set: it was damaged or forged")
    return offset.astype(np.int64) + low


def decode_reals(reports: Sequence[bytes], values: int, bound: NDArray[np.float64]) -> RealOutput:
    """Reports of d float32 values each; refused when one is not finite or exceeds the bound."""
    _check_reports(reports, values)
    _check_lengths(reports, [4 * values] * len(reports))
    array = np.frombuffer(bytearray().join(reports), "<f4").reshape(len(reports), values).astype(np.float32, copy=False)
    with np.errstate(invalid="ignore"):  # of NaN, some kinds of which raise a warning when they are converted
        largest, smallest = (end(array, axis=1).astype(np.float64) for end in (np.max, np.min))  # NaN if any value is
    if not ((largest <= bound) & (-bound <= smallest)).all():
        raise InvalidInput("a report holds a value outside its mechanism's output set: it was damaged or forged")
    return RealOutput(array, bound)

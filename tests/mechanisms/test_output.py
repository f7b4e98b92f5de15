"""Ones are counted by full adders over packed bits, and come out as if they had been unpacked and added up."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.errors import InvalidInput
from sordino.mechanisms import Box, ClipOnly
from sordino.mechanisms import output as outputs
from sordino.mechanisms.output import BitOutput, decode_reals


def counted(output: BitOutput) -> np.ndarray:
    found = np.zeros(output.values, np.int64)
    for cols, ones in output.ones():
        found[cols] = ones
    return found


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 255), st.integers(1, 70), st.integers(0, 99), st.sampled_from([1, 3, 8]))
def test_ones_are_the_sum_of_the_bits(clients, values, seed, block):
    bits = np.random.default_rng(seed).integers(0, 2, (clients, values), dtype=np.uint8).astype(np.bool_)
    before = outputs._BLOCK
    outputs._BLOCK = block  # bytes at a time: here a few, so that several blocks and a last one are met
    try:
        assert np.array_equal(counted(BitOutput.pack(bits)), bits.sum(axis=0))
    finally:
        outputs._BLOCK = before


@pytest.mark.parametrize("clients", [1, 2, 3, 4, 128, 255])
def test_as_many_ones_as_clients_are_counted(clients):
    ones = np.ones((clients, 8 * outputs._BLOCK + 5), np.bool_)
    assert (counted(BitOutput.pack(ones)) == clients).all()
    assert (counted(BitOutput.pack(~ones)) == 0).all()


def test_more_than_a_byte_can_count_is_refused():
    with pytest.raises(InvalidInput, match="at most 255"):
        list(BitOutput.pack(np.ones((256, 3), np.bool_)).ones())


def test_every_kind_of_nan_is_refused_without_a_warning():
    for raw in (b"\x00\x00\x81\x7f", b"\x00\x00\xc0\x7f", b"\x01\x00\x80\xff"):  # signalling ones and a quiet one
        with pytest.raises(InvalidInput, match="outside"):
            ClipOnly(Box()).decode([raw], 1)
        with pytest.raises(InvalidInput, match="outside"):
            decode_reals([raw], 1, np.array([np.inf]))

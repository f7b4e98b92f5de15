"""The keystream is AES-256 over a documented counter block, addressed so that grouping never matters."""

from __future__ import annotations

import hashlib
import struct

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given
from hypothesis import strategies as st

from sordino.errors import InvalidInput
from sordino.mechanisms import Laplace, TwoPoint
from sordino.randomness import Keystream, Purpose, simulation_key

u32, u16 = st.integers(0, 2**32 - 1), st.integers(0, 2**16 - 1)
FIRST = np.array([0])


def independent(key: bytes, client: int, round: int, purpose: int, tensor: int, word: int) -> int:
    """One word of the stream, straight from the layout: one block, one cipher, one struct."""
    block = struct.pack(">IIHHI", client, round, purpose, tensor, word // 4)
    encryptor = Cipher(algorithms.AES(key), modes.ECB()).encryptor()
    return struct.unpack("<4I", encryptor.update(block) + encryptor.finalize())[word % 4]


@given(st.binary(min_size=32, max_size=32), u32, u32, u16, u16, st.integers(0, 2**32 - 4), st.integers(1, 9))
def test_words_are_aes_of_the_documented_counter_block(
    key: bytes, client: int, round: int, purpose: int, tensor: int, block: int, count: int
) -> None:
    words = Keystream(key, [client], round).words(FIRST, purpose, tensor, 4 * block, count)
    expected = [independent(key, client, round, purpose, tensor, 4 * block + i) for i in range(count)]
    assert words.dtype.itemsize == 4
    assert words.shape == (1, count)
    assert words[0].tolist() == expected


def test_aes_256_itself_matches_the_standard() -> None:
    """FIPS 197, appendix C.3: the counter block spelt as client, round, purpose, tensor and block."""
    stream = Keystream(bytes(range(32)), [0x00112233], 0x44556677)
    words = stream.words(FIRST, 0x8899, 0xAABB, 4 * 0xCCDDEEFF, 4)
    assert words.astype("<u4").tobytes().hex() == "8ea2b7ca516745bfeafc49904b496089"


def test_a_simulation_key_is_the_hash_of_prefix_and_seed() -> None:
    expected = hashlib.sha256(b"sordino simulation v1" + (12345).to_bytes(8, "little")).digest()
    assert simulation_key(12345) == expected
    words = Keystream.simulation(12345, [9], 2).words(FIRST, Purpose.NOISE, 1, 0, 5)
    assert words[0].tolist() == [independent(expected, 9, 2, 1, 1, i) for i in range(5)]


@given(st.permutations(list(range(6))), st.integers(1, 40))
def test_order_and_grouping_of_clients_do_not_matter(order: list[int], count: int) -> None:
    whole = Keystream.simulation(5, np.arange(6), 3).words(np.arange(6), 1, 0, 8, count)
    mixed = Keystream.simulation(5, order, 3).words(np.arange(6), 1, 0, 8, count)
    assert (mixed == whole[order]).all()
    for client in order[:3]:
        alone = Keystream.simulation(5, [client], 3).words(FIRST, 1, 0, 8, count)
        assert (alone[0] == whole[client]).all()
    some = Keystream.simulation(5, np.arange(6), 3).words(np.array(order[:4]), 1, 0, 8, count)
    assert (some == whole[order[:4]]).all()


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6))
def test_how_a_range_is_read_does_not_matter(blocks: list[int]) -> None:
    stream = Keystream.simulation(1, [4], 0)
    whole = stream.words(FIRST, 1, 0, 0, 4 * sum(blocks))[0]
    starts = np.cumsum([0, *blocks])[:-1]
    parts = [stream.words(FIRST, 1, 0, 4 * int(s), 4 * n)[0] for s, n in zip(starts, blocks, strict=True)]
    assert (np.concatenate(parts) == whole).all()


def test_every_part_of_the_address_changes_the_stream() -> None:
    def words(
        seed: int = 1, client: int = 2, round: int = 3, purpose: int = 1, tensor: int = 0, first: int = 0
    ) -> tuple:
        return tuple(Keystream.simulation(seed, [client], round).words(FIRST, purpose, tensor, first, 4)[0].tolist())

    changed = [{}, {"seed": 2}, {"client": 3}, {"round": 2}, {"purpose": 2}, {"tensor": 1}, {"first": 4}]
    assert len({words(**c) for c in changed}) == len(changed)


def test_fresh_randomness_never_repeats() -> None:
    streams = {Keystream.fresh().words(FIRST, 1, 0, 0, 4).tobytes() for _ in range(200)}
    assert len(streams) == 200


def test_the_last_block_of_a_stream_is_readable_and_the_next_is_refused() -> None:
    stream = Keystream.simulation(1, [0], 0)
    words = stream.words(FIRST, 1, 0, 4 * (2**32 - 1), 4)
    assert words[0].tolist() == [independent(simulation_key(1), 0, 0, 1, 0, 4 * (2**32 - 1) + i) for i in range(4)]
    with pytest.raises(InvalidInput, match="2\\^34"):
        stream.words(FIRST, 1, 0, 4 * (2**32 - 1), 5)


def test_words_look_uniform() -> None:
    """Chi-square over 256 values of each byte of 2^18 words; false alarm 1e-9 per byte position."""
    from scipy.stats import chi2

    words = Keystream.simulation(11, [0], 0).words(FIRST, 1, 0, 0, 2**18)
    for byte in words.view(np.uint8).reshape(-1, 4).T:
        counts = np.bincount(byte, minlength=256)
        statistic = float(((counts - 1024) ** 2 / 1024).sum())
        assert chi2.ppf(1e-9, 255) < statistic < chi2.isf(1e-9, 255)


@pytest.mark.parametrize("key", [b"", b"short", bytes(16), bytes(33)])
def test_a_key_of_another_length_is_refused(key: bytes) -> None:
    with pytest.raises(InvalidInput, match="32 bytes"):
        Keystream(key, [0], 0)


@pytest.mark.parametrize("clients", [[], [-1], [2**32], [0.5], [[0]], ["a"], [True], [None]])
def test_clients_that_are_not_numbers_of_32_bits_are_refused(clients: list) -> None:
    with pytest.raises(InvalidInput, match="client"):
        Keystream(bytes(32), clients, 0)


@pytest.mark.parametrize("round", [-1, 2**32, 1.5, 1.0, "a", None, float("nan")])
def test_a_round_that_is_not_a_number_of_32_bits_is_refused(round: object) -> None:
    """A round of 1.5 that silently became 1 would draw the same noise twice."""
    with pytest.raises(InvalidInput, match="round"):
        Keystream(bytes(32), [0], round)  # type: ignore[arg-type]


@pytest.mark.parametrize("address", [(-1, 0), (2**16, 0), (1, -1), (1, 2**16), (1, 1.5), (1, "a"), (1, None)])
def test_a_purpose_or_tensor_outside_16_bits_is_refused(address: tuple) -> None:
    with pytest.raises(InvalidInput, match=r"purpose|tensor"):
        Keystream.simulation(1, [0], 0).words(FIRST, *address, 0, 4)


@pytest.mark.parametrize(("first", "count"), [(1, 4), (-4, 4), (0, 0), (0, -1), (2, 1)])
def test_a_range_off_the_blocks_is_refused(first: int, count: int) -> None:
    with pytest.raises(InvalidInput, match="multiple of 4"):
        Keystream.simulation(1, [0], 0).words(FIRST, 1, 0, first, count)


@pytest.mark.parametrize("seed", [-1, 2**64, 1.0, "1", None])
def test_a_seed_that_is_no_64_bit_number_is_refused(seed: object) -> None:
    with pytest.raises(InvalidInput, match="seed"):
        Keystream.simulation(seed, [0], 0)  # type: ignore[arg-type]


def test_a_fresh_key_serves_one_release_and_no_second() -> None:
    """Two releases under the same words differ by exactly what the data differ by."""
    key, laplace = Keystream.fresh(), Laplace(0.01)
    laplace.randomize(np.zeros(5), key)
    with pytest.raises(InvalidInput, match=r"fresh\(\)"):
        laplace.randomize(np.full(5, 0.5), key)


def test_a_fresh_key_serves_the_tensors_of_one_release() -> None:
    key = Keystream.fresh()
    values = np.zeros(200_000)
    outputs = [TwoPoint(1.0).randomize(values, key, tensor=tensor).output for tensor in (0, 1)]
    assert (outputs[0].packed != outputs[1].packed).any()

"""The shuffler: sums stay, whose bit is whose goes, classes stay apart; and what the paper's delays would cost."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sordino.channels.shuffle import (
    Delays,
    Shuffled,
    exposed_share,
    mixed_models,
    mixed_parameters,
)
from sordino.errors import InvalidInput
from sordino.wire.messages import Plan


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def bits_of(packed: np.ndarray) -> np.ndarray:
    return np.unpackbits(packed, axis=1, bitorder="little")


def packed(bits: np.ndarray) -> np.ndarray:
    return np.packbits(bits, axis=1, bitorder="little")


def exchange(bodies: Mapping[int, bytes]):
    """Clients whose reports are given."""

    def answers(step: str, messages: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        assert step == "report" and set(messages) >= set(bodies)
        yield from bodies.items()

    return answers


def collected(channel: Shuffled, bodies: Mapping[int, bytes], round: int = 1) -> dict[int, bytes]:
    return dict(channel.collect(exchange(bodies), Plan("test", round).encode(), list(bodies)))


# --- mixing -----------------------------------------------------------------------------------------------------------


@given(n=st.integers(1, 40), width=st.integers(1, 30), seed=st.integers(0, 99), mix=st.sampled_from(["model", "bit"]))
def test_the_count_of_every_parameter_stays(n: int, width: int, seed: int, mix: str) -> None:
    reports = rng(seed).integers(0, 256, (n, width), dtype=np.uint8)
    mixed = (mixed_models if mix == "model" else mixed_parameters)(reports, rng(seed))
    assert mixed.shape == reports.shape
    assert (bits_of(mixed).sum(axis=0) == bits_of(reports).sum(axis=0)).all()


def test_reports_wider_than_a_piece_keep_their_counts() -> None:
    reports = rng().integers(0, 256, (7, 10_000), dtype=np.uint8)
    mixed = mixed_parameters(reports, rng(2))
    assert (bits_of(mixed).sum(axis=0) == bits_of(reports).sum(axis=0)).all()
    assert (mixed != reports).any(axis=0).mean() > 0.9


@pytest.mark.parametrize(("n", "ones", "places"), [(5, 1, 5), (4, 2, 6), (4, 3, 4)])
def test_every_order_of_a_parameters_bits_is_equally_likely(n: int, ones: int, places: int) -> None:
    """60,000 columns; each order's share within five standard deviations: a false alarm in 10^5 such tests."""
    columns = 60_000
    start = np.zeros((n, columns), np.uint8)
    start[:ones] = 1
    orders = Counter(map(bytes, bits_of(mixed_parameters(packed(start), rng())).T))
    assert len(orders) == places
    for count in orders.values():
        assert abs(count - columns / places) < 5 * np.sqrt(columns / places)


def test_parameters_are_mixed_independently_of_each_other() -> None:
    """One client has ones in both of two columns: afterwards they sit with the same client in 1 case of n only."""
    n, pairs = 4, 40_000
    start = np.zeros((n, 2 * pairs), np.uint8)
    start[0] = 1
    place = bits_of(mixed_parameters(packed(start), rng())).argmax(axis=0).reshape(pairs, 2)
    together = np.count_nonzero(place[:, 0] == place[:, 1])
    assert abs(together - pairs / n) < 5 * np.sqrt(pairs / n)


def test_whole_reports_stay_whole_and_come_in_any_order() -> None:
    rows = np.arange(3, dtype=np.uint8).reshape(3, 1).repeat(4, axis=1)
    source = rng()
    orders = Counter(tuple(mixed_models(rows, source)[:, 0].tolist()) for _ in range(6000))
    assert set(orders) == set(permutations(range(3)))
    assert all(abs(count - 1000) < 5 * np.sqrt(1000) for count in orders.values())


# --- the channel ------------------------------------------------------------------------------------------------------

VALUES = 515  # three bits in the last byte, and five of padding


def reports(clients: int, seed: int = 3) -> dict[int, bytes]:
    rows = packed(rng(seed).integers(0, 2, (clients, VALUES), dtype=np.uint8))
    return {client: row.tobytes() for client, row in enumerate(rows)}


def total(bodies: Mapping[int, bytes]) -> list[int]:
    return bits_of(np.array([list(body) for body in bodies.values()], np.uint8)).sum(axis=0).tolist()


@pytest.mark.parametrize("granularity", ["parameter", "model"])
def test_the_coordinator_gets_the_same_sum(granularity: str) -> None:
    given_ = reports(20)
    got = collected(Shuffled([0] * 20, VALUES, [20], granularity), given_)
    assert list(got) == list(range(20))
    assert total(got) == total(given_)


def test_shuffled_models_are_the_clients_own_under_other_names() -> None:
    given_ = reports(20)
    got = collected(Shuffled([0] * 20, VALUES, [20], "model", randomness=rng()), given_)
    assert sorted(got.values()) == sorted(given_.values())
    assert sum(got[client] == given_[client] for client in given_) < 10


def test_shuffled_parameters_leave_no_report_as_it_was() -> None:
    given_ = reports(20)
    got = collected(Shuffled([0] * 20, VALUES, [20], "parameter"), given_)
    assert not set(got.values()) & set(given_.values())


@pytest.mark.parametrize("granularity", ["parameter", "model"])
def test_reports_are_mixed_with_those_of_their_class_only(granularity: str) -> None:
    ones, zeros = bytes([255] * 64 + [7]), bytes(65)
    class_of = [0, 1, 0, 1, 1, 0]
    given_ = {client: ones if c else zeros for client, c in enumerate(class_of)}
    got = collected(Shuffled(class_of, VALUES, [3, 3], granularity), given_)
    assert got == given_


def test_nothing_but_the_operating_system_decides_the_order() -> None:
    given_ = reports(20)
    channels = [Shuffled([0] * 20, VALUES, [20], "parameter") for _ in range(2)]
    assert collected(channels[0], given_) != collected(channels[1], given_)
    assert collected(channels[0], given_) != collected(channels[0], given_)


@pytest.mark.parametrize("bad", [b"", b"short", bytes(66), bytes(64) + b"\x08"], ids=["empty", "short", "long", "pad"])
def test_what_is_not_made_of_bits_is_not_mixed_in(bad: bytes) -> None:
    given_ = reports(5)
    got = collected(Shuffled([0] * 6, VALUES, [5], "parameter"), {**given_, 5: bad})
    assert got.pop(5) == bad
    assert total(got) == total(given_)


def test_a_crowd_that_is_too_small_is_withheld() -> None:
    class_of = [0, 0, 0, 1, 1]
    channel = Shuffled(class_of, VALUES, [3, 2], "parameter")
    given_ = reports(5)
    assert set(collected(channel, {c: given_[c] for c in (0, 1, 3, 4)})) == {3, 4}
    assert channel.withheld == 2
    assert set(collected(channel, given_)) == set(range(5))
    assert channel.withheld == 0


def test_a_damaged_report_does_not_fill_up_a_crowd() -> None:
    channel = Shuffled([0] * 3, VALUES, [3], "parameter")
    got = collected(channel, {**reports(2), 2: b"bad"})
    assert got == {2: b"bad"} and channel.withheld == 2


def test_an_unknown_granularity_is_refused() -> None:
    with pytest.raises(InvalidInput, match="layer"):
        Shuffled([0], 8, [1], "layer")  # type: ignore[arg-type]


# --- delays (Algorithm 3) ---------------------------------------------------------------------------------------------


def test_one_dishonest_proposal_does_not_decide_t() -> None:
    assert Delays([1, 2, 1e9], [0.0] * 3, [0.0] * 3).latency == 2
    assert Delays([1, 2, 3, 10], [0.0] * 4, [0.0] * 4).latency == 2.5


@given(latency=st.floats(0, 100), seed=st.integers(0, 99))
def test_delays_cost_at_most_t_beyond_the_slowest_client(latency: float, seed: int) -> None:
    timing = Delays(latency, [3.0, 8.0, 5.0], [1.0, 1.0, 6.0], seed=seed).round([0, 1, 2], 50, 1)
    assert timing.slowest == 11
    assert 11 <= timing.unpadded <= timing.finished <= 11 + latency + 1e-12
    assert 0 <= timing.finished - timing.slowest <= latency + 1e-12
    assert 0 <= timing.exposed <= 1


def test_only_those_who_are_asked_are_waited_for() -> None:
    delays = Delays(0.0, [3.0, 8.0, 5.0], [1.0, 1.0, 1.0])
    assert delays.round([0, 2], 50, 1).finished == 6


def test_the_last_of_all_parameters_comes_when_order_statistics_say() -> None:
    """Mean of the largest of nd = 6 uniform draws: 6/7 T, its deviation 0.124 T; 4,000 rounds, five deviations."""
    delays = Delays(10.0, [2.0] * 3, [0.0] * 3)
    mean = np.mean([delays.round([0, 1, 2], 2, number).finished for number in range(4000)])
    assert abs(mean - (2 + 60 / 7)) < 5 * 1.24 / np.sqrt(4000)


def test_clients_that_do_not_wait_for_the_slowest_give_themselves_away() -> None:
    assert exposed_share([0.0, 0.5], 1.0) == pytest.approx(0.5)  # alone in [0, 0.5) and (1, 1.5], 1 of 2 T
    assert exposed_share([4.0, 4.0, 4.0], 1.0) == 0
    assert exposed_share([0.0, 2.0, 4.0], 1.0) == pytest.approx(1.0)
    assert exposed_share([0.0, 0.0, 4.0], 1.0) == pytest.approx(1 / 3)
    assert exposed_share([1.0, 1.0, 2.0], 0.0) == pytest.approx(1 / 3)
    assert exposed_share([7.0], 1.0) == 1


def test_simulated_delays_are_noted_for_the_round() -> None:
    channel = Shuffled([0] * 4, VALUES, [4], "parameter", delays=Delays(5.0, [1.0] * 4, [1.0] * 4))
    assert channel.timing is None
    collected(channel, reports(4))
    first = channel.timing
    assert first is not None
    assert 2 < first.finished <= 7
    collected(channel, reports(4), round=2)
    assert channel.timing != first
    collected(channel, reports(4))
    assert channel.timing == first


@pytest.mark.parametrize("bad", [[], [-1.0], [float("nan")], [float("inf")], [[1.0]]], ids=str)
def test_delays_that_are_no_seconds_are_refused(bad: list[float]) -> None:
    with pytest.raises(InvalidInput, match="seconds >= 0"):
        Delays(bad, [1.0], [1.0])

"""What the shuffler holds: batches leave full and mixed or not at all, once, and forget who sent what."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import chi2

from sordino.errors import InvalidInput
from sordino.shuffler.store import Contradiction, EnvelopeStore, NoSuchRound, NotYet, Over

from .parties import by_position, opaque, terms_of


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def store(tmp_path, clock):
    with EnvelopeStore(tmp_path, at_least=3, clock=clock) as store:
        store.register([f"client {k}" for k in range(1, 7)])
        yield store


def batch_of(store: EnvelopeStore, round: int = 1, group: int = 0) -> bytes:
    length, pieces = store.batch(round, group)
    whole = b"".join(pieces)
    assert len(whole) == length
    return whole


def rows(store: EnvelopeStore, table: str) -> int:
    return store._db.one(f"SELECT count(*) FROM {table}")[0]


# --- mixing -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("arrivals", [(1, 2, 3), (3, 1, 2)], ids=["in order", "another order"])
def test_every_order_is_equally_likely_whoever_came_first(store, arrivals):
    """6,000 positions of three clients: six orders, and pairs of neighbours 36; false alarms one in a million each."""
    terms = terms_of(6000)
    store.announce(terms)
    for client in arrivals:
        store.accept(1, client, opaque(terms, client))
    assert store.settle() == [(1, 0)]
    senders = by_position(batch_of(store), terms)[:, :, 0]
    orders = [tuple(row) for row in senders.tolist()]
    found = Counter(orders)
    assert set(found) == set(permutations((1, 2, 3)))
    assert sum((n - 1000) ** 2 / 1000 for n in found.values()) < chi2.isf(1e-6, 5)
    pairs = Counter(zip(orders[::2], orders[1::2], strict=True))
    expected = 3000 / 36
    spread = sum((n - expected) ** 2 / expected for n in pairs.values()) + (36 - len(pairs)) * expected
    assert spread < chi2.isf(1e-6, 35)


def test_the_server_gets_every_envelope_at_its_position_and_no_other(store):
    terms = terms_of(500)
    store.announce(terms)
    for client in (5, 2, 4):
        for piece in np.array_split(np.random.default_rng(client).permutation(500), 7):
            store.accept(1, client, opaque(terms, client, piece))
    store.settle()
    found = by_position(batch_of(store), terms)
    assert (np.sort(found[:, :, 0], axis=1) == [2, 4, 5]).all()
    where = found[:, :, 1:5].copy().view("<u4")[:, :, 0]
    assert (where == np.arange(500)[:, None]).all()


def test_pieces_mixed_one_after_the_other_make_one_batch(store, monkeypatch):
    monkeypatch.setattr("sordino.shuffler.store.MOST_POSITIONS", 64)
    test_the_server_gets_every_envelope_at_its_position_and_no_other(store)
    assert rows(store, "pieces") == 8


# --- when a batch leaves ----------------------------------------------------------------------------------------------


def test_a_batch_below_the_threshold_never_leaves(store, clock):
    terms = terms_of(4, (2,), seconds=60)  # the server says that it asked two; the shuffler wants three
    store.announce(terms)
    for client in (1, 2):
        store.accept(1, client, opaque(terms, client))
    store.accept(1, 3, opaque(terms, 3, [0, 1, 2]))
    assert store.settle() == []
    with pytest.raises(NotYet):
        store.batch(1, 0)
    clock.now += 60
    assert store.settle() == [(1, 0)]
    with pytest.raises(Over, match="fewer than 3"):
        store.batch(1, 0)
    assert rows(store, "held") == rows(store, "pieces") == rows(store, "progress") == 0


def test_a_batch_leaves_when_all_asked_are_there_or_the_time_is_up_and_enough_are(store, clock):
    for round, asked, here in ((1, 4, 4), (2, 6, 3)):
        terms = terms_of(4, (asked,), round=round, seconds=60)
        store.announce(terms)
        for client in range(1, here + 1):
            assert store.settle() == []
            store.accept(round, client, opaque(terms, client))
        if here < asked:
            assert store.settle() == []
            clock.now += 60
        assert store.settle() == [(round, 0)]
        assert by_position(batch_of(store, round), terms).shape[1] == here


def test_a_report_enters_whole_or_not_at_all(store, clock):
    terms = terms_of(4, (6,), seconds=60)
    store.announce(terms)
    for client in (1, 2, 3):
        store.accept(1, client, opaque(terms, client))
    store.accept(1, 4, opaque(terms, 4, [0, 3]))
    clock.now += 60
    store.settle()
    assert (np.sort(by_position(batch_of(store), terms)[:, :, 0], axis=1) == [1, 2, 3]).all()


def test_what_comes_late_is_refused(store, clock):
    terms = terms_of(4, (6,), seconds=60)
    store.announce(terms)
    store.accept(1, 1, opaque(terms, 1))
    clock.now += 60
    with pytest.raises(Over):
        store.accept(1, 2, opaque(terms, 2))
    store.settle()
    with pytest.raises(Over):
        store.accept(1, 2, opaque(terms, 2))


def test_anonymity_is_within_a_class(store, clock):
    terms = terms_of(4, (3, 2), seconds=60)
    store.announce(terms)
    for client, group in ((1, 0), (2, 0), (3, 0), (4, 1), (5, 1)):
        store.accept(1, client, opaque(terms, client, group=group))
    assert store.settle() == [(1, 0)]
    clock.now += 60
    assert store.settle() == [(1, 1)]
    assert by_position(batch_of(store), terms).shape[1] == 3
    with pytest.raises(Over):
        store.batch(1, 1)
    with pytest.raises(NoSuchRound):
        store.batch(1, 2)


def test_a_client_is_in_one_class(store):
    terms = terms_of(4, (3, 3))
    store.announce(terms)
    store.accept(1, 1, opaque(terms, 1, [0], group=0))
    with pytest.raises(Contradiction, match="class 0"):
        store.accept(1, 1, opaque(terms, 1, [1], group=1))


# --- once -------------------------------------------------------------------------------------------------------------


def test_the_first_envelope_of_a_client_and_position_counts(store):
    terms = terms_of(4)
    store.announce(terms)
    first, second = opaque(terms, 1, [0, 1]), opaque(terms, 9, [1, 2, 3])  # the same client, other bytes
    assert store.accept(1, 1, first) == 2
    assert store.accept(1, 1, first) == 0
    assert store.accept(1, 1, second) == 2
    for client in (2, 3):
        store.accept(1, client, opaque(terms, client))
    store.settle()
    found = np.sort(by_position(batch_of(store), terms)[:, :, 0], axis=1)
    assert found.tolist() == [[1, 2, 3], [1, 2, 3], [2, 3, 9], [2, 3, 9]]


def test_a_batch_is_mixed_once_and_gone_when_taken(store, tmp_path, clock):
    terms = terms_of(50)
    store.announce(terms)
    for client in (1, 2, 3):
        store.accept(1, client, opaque(terms, client))
    with pytest.raises(NotYet):
        store.taken(1, 0)
    store.settle()
    bytes_before = batch_of(store)
    store.close()
    with EnvelopeStore(tmp_path, at_least=3, clock=clock) as again:
        assert again.settle() == []
        assert batch_of(again) == bytes_before
        again.taken(1, 0)
        again.taken(1, 0)
        assert rows(again, "pieces") == 0
        with pytest.raises(Over, match="taken"):
            again.batch(1, 0)
        again.announce(terms)  # the same round again: it stays over
        with pytest.raises(Over):
            again.accept(1, 4, opaque(terms, 4))


def test_who_sent_what_is_forgotten_with_the_mixing(store, tmp_path):
    terms = terms_of(50)
    store.announce(terms)
    for client in (1, 2, 3):
        store.accept(1, client, opaque(terms, client))
    in_order = opaque(terms, 1).envelopes.tobytes()
    files = [path for path in tmp_path.iterdir() if path.name.startswith("shuffler.sqlite")]
    assert any(in_order in path.read_bytes() for path in files), "what is looked for can be found"
    store.settle()
    assert rows(store, "held") == rows(store, "progress") == 0
    assert not any(in_order in path.read_bytes() for path in files if path.exists())


# --- rounds -----------------------------------------------------------------------------------------------------------


def test_a_round_is_held_once_and_rounds_go_upwards(store):
    store.announce(terms_of(4, round=5))
    store.announce(terms_of(4, round=5))
    with pytest.raises(Contradiction, match="other terms"):
        store.announce(terms_of(5, round=5))
    with pytest.raises(Contradiction, match="upwards"):
        store.announce(terms_of(4, round=4))
    with pytest.raises(NoSuchRound):
        store.accept(6, 1, opaque(terms_of(4, round=6), 1))


def test_a_body_for_other_terms_or_places_is_refused(store):
    terms = terms_of(4)
    store.announce(terms)
    for body in (
        opaque(terms_of(5), 1),
        opaque(terms, 1, [4]),
        opaque(terms, 1, [2, 2]),
        opaque(terms, 1, group=1),
    ):
        with pytest.raises(InvalidInput):
            store.accept(1, 1, body)
    assert rows(store, "held") == 0


def test_no_more_is_promised_than_there_is_room_for(tmp_path, monkeypatch):
    monkeypatch.setattr(EnvelopeStore, "MOST_ROUNDS", 2)
    monkeypatch.setattr(EnvelopeStore, "MOST_BYTES", 10_000)
    with EnvelopeStore(tmp_path) as store:
        store.register(["a", "b"])
        with pytest.raises(Contradiction, match="room for 10,000"):
            store.announce(terms_of(200))
        store.announce(terms_of(100))
        store.announce(terms_of(100, round=2))
        with pytest.raises(Contradiction, match="taken"):
            store.announce(terms_of(100, round=3))


def test_a_restart_with_a_lower_threshold_keeps_what_was_announced(store, tmp_path, clock):
    terms = terms_of(4, seconds=60)
    store.announce(terms)
    for client in (1, 2):
        store.accept(1, client, opaque(terms, client))
    store.close()
    with EnvelopeStore(tmp_path, at_least=2, clock=clock) as again:
        assert again.round(1).at_least == 3
        clock.now += 60
        again.settle()
        with pytest.raises(Over):
            again.batch(1, 0)


def test_one_alone_cannot_be_mixed(tmp_path):
    with pytest.raises(InvalidInput, match="hidden by nobody"):
        EnvelopeStore(tmp_path, at_least=1)


# --- clients ----------------------------------------------------------------------------------------------------------


def test_tokens_are_kept_as_hashes_and_told_apart(tmp_path):
    with EnvelopeStore(tmp_path) as store:
        tokens = store.register(["north", "south"])
        assert [store.client_of(tokens[name]) for name in ("north", "south")] == [1, 2]
        server = (tmp_path / "server.token").read_text().strip()
        assert store.is_server(server) and store.client_of(server) is None
        assert not store.is_server(tokens["north"]) and store.client_of("") is None
        with pytest.raises(InvalidInput, match="registered already"):
            store.register(["east", "north"])
        assert store.registered() == 2
    everything = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.name != "server.token")
    assert not any(token.encode() in everything for token in [*tokens.values(), server])
    assert (tmp_path / "server.token").stat().st_mode & 0o077 == 0


def test_t_is_the_median_of_the_proposals(store):
    assert store.latency() == 0
    for client, seconds in ((1, 1.0), (2, 3600.0), (3, 5.0), (3, 7)):
        store.propose(client, seconds)
    assert store.latency() == 7
    store.propose(4, 9.0)
    assert store.latency() == 8
    for bad in (-1.0, float("nan"), float("inf")):
        with pytest.raises(InvalidInput):
            store.propose(1, bad)


def test_t_of_a_round_is_what_had_been_proposed_when_it_was_opened(store):
    store.propose(1, 4.0)
    store.announce(terms_of(5))
    store.propose(2, 10.0)
    store.announce(terms_of(5, round=2))
    assert [store.round(round).latency for round in (1, 2)] == [4.0, 7.0]
    with pytest.raises(NoSuchRound):
        store.round(3)


# --- the server gives up ----------------------------------------------------------------------------------------------


def test_what_the_server_withdraws_is_deleted_unopened_and_never_leaves(store):
    terms = terms_of(5, (3, 3))
    store.announce(terms)
    for client in (1, 2, 3):
        store.accept(1, client, opaque(terms, client, group=0))
    store.accept(1, 4, opaque(terms, 4, group=1))
    store.settle()
    store.withdraw(1, 1)
    assert rows(store, "held") == rows(store, "progress") == 0
    with pytest.raises(Over, match="waited no longer"):
        store.batch(1, 1)
    with pytest.raises(Over):
        store.accept(1, 5, opaque(terms, 5, group=1))
    whole = batch_of(store)
    store.withdraw(1, 0)  # has left already: it stays
    assert batch_of(store) == whole
    with pytest.raises(NoSuchRound):
        store.withdraw(1, 2)


def test_a_class_of_which_nobody_is_asked_is_not_waited_for(store):
    for round in range(1, 9):  # more rounds than may wait
        terms = terms_of(5, (3, 0), round=round)
        store.announce(terms)
        with pytest.raises(Over):
            store.batch(round, 1)
        for client in (1, 2, 3):
            store.accept(round, client, opaque(terms, client))
        store.settle()
        store.taken(round, 0)

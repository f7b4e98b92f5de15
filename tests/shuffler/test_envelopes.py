"""Sealing and opening: what goes in comes out, mixed; nothing else counts, and nothing spoils the rest."""

import json
from pathlib import Path

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from sordino.channels.shuffle import ShuffledChannel, ShufflerChannel
from sordino.errors import InvalidInput
from sordino.mechanisms import TwoPoint
from sordino.methods.upload import Upload
from sordino.privacy.guarantee import SERVER, Adjacency, Pure, shuffled
from sordino.shuffler import Terms, open_batch, seal, spread
from sordino.shuffler.envelopes import NONCE_BYTES, Body, batch_head, envelope_bytes, mix

from .parties import report, terms_of

KEY = X25519PrivateKey.from_private_bytes(bytes(range(32)))
PUBLIC = KEY.public_key()
GOLDEN = Path(__file__).parent / "batch.json"


def sealed(bits, terms: Terms, group: int = 0) -> np.ndarray:
    """One client's envelopes `[positions, bytes]`."""
    return np.concatenate([Body.decode(body).envelopes for body in seal(report(bits), terms, group, PUBLIC)])


def batch(envelopes: list[np.ndarray], terms: Terms, group: int = 0) -> bytes:
    """A batch of these clients' envelopes, in the order in which they are given."""
    return batch_head(terms, group, len(envelopes)) + np.stack(envelopes, axis=1).tobytes()


# --- what goes in comes out -------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(values=st.integers(1, 40), group=st.integers(1, 12), clients=st.integers(1, 4), seed=st.integers(0, 99))
def test_the_server_gets_the_counts_of_what_clients_sealed(values, group, clients, seed):
    terms = terms_of(values, group=min(group, values))
    bits = np.random.default_rng(seed).integers(0, 2, (clients, values), dtype=np.uint8)
    together = np.stack([sealed(row, terms) for row in bits], axis=1)
    opened = open_batch(batch_head(terms, 0, clients) + mix(together).tobytes(), terms, KEY)
    assert opened.clients == clients and not opened.refused
    assert opened.counts().tolist() == bits.sum(axis=0).tolist()


def test_the_tally_of_a_batch_is_that_of_the_direct_channel_to_the_last_bit():
    epsilons, values = [1.0, 4.0, 1.0, 4.0, 1.0], 30
    upload = Upload(lambda epsilon: TwoPoint(epsilon), epsilons, values, clients=5, what="weights")
    bits = np.random.default_rng(3).integers(0, 2, (5, values), dtype=np.uint8)
    terms = terms_of(values, (3, 2))
    direct, by_sums = upload.tally(), upload.tally()
    assert direct.add(range(5), [report(row) for row in bits]) == {}
    for group in (0, 1):
        own = [k for k in range(5) if upload.class_of[k] == group]
        mixed_up = mix(np.stack([sealed(bits[k], terms, group) for k in own], axis=1))
        opened = open_batch(batch_head(terms, group, len(own)) + mixed_up.tobytes(), terms, KEY)
        by_sums.add_sum(opened.sum(own))
    assert direct.mean().tobytes() == by_sums.mean().tobytes()


def test_a_large_report_is_several_bodies_of_bounded_size(monkeypatch):
    monkeypatch.setattr("sordino.shuffler.envelopes.BODY_BYTES", 1000)
    terms = terms_of(50)
    bodies = seal(report(np.ones(50)), terms, 0, PUBLIC)
    assert len(bodies) == 3 and max(map(len, bodies)) <= 1000
    where = np.concatenate([Body.decode(body).positions for body in bodies])
    assert where.tolist() == list(range(50))


# --- what an envelope shows -------------------------------------------------------------------------------------------


def test_envelopes_are_alike_outside_and_share_nothing():
    terms = terms_of(64)
    zeros, ones = sealed(np.zeros(64), terms), sealed(np.ones(64), terms)
    assert zeros.shape == ones.shape == (64, envelope_bytes(terms)) == (64, 49)
    nonces = {row[:NONCE_BYTES].tobytes() for row in np.concatenate([zeros, ones])}
    assert len(nonces) == 128, "a key that is used for two envelopes ties them together"


def test_an_envelope_opens_in_its_own_place_only():
    terms, later, grouped = terms_of(2, (1, 1)), terms_of(2, (1, 1), round=2), terms_of(2, (1, 1), group=2)
    own = sealed([1, 1], terms)
    assert open_batch(batch([own], terms), terms, KEY).counts().tolist() == [1, 1]
    assert open_batch(batch([own[::-1]], terms), terms, KEY).refused == {"damaged": 2}
    assert open_batch(batch([own], terms, group=1), terms, KEY).refused == {"damaged": 2}
    assert open_batch(batch([own], later), later, KEY).refused == {"damaged": 2}
    assert open_batch(batch([own[:1]], grouped), grouped, KEY).refused == {"damaged": 1}
    other = X25519PrivateKey.generate()
    assert open_batch(batch([own], terms), terms, other).refused == {"damaged": 2}


# --- what does not count ----------------------------------------------------------------------------------------------


@settings(max_examples=30, deadline=None)
@example(byte=31, flip=128, client=0, position=0)  # the one bit of a point that X25519 itself does not look at
@given(byte=st.integers(0, 48), flip=st.integers(1, 255), client=st.integers(0, 2), position=st.integers(0, 3))
def test_a_tampered_envelope_is_refused_and_the_others_count(byte, flip, client, position):
    terms = terms_of(4)
    envelopes = [sealed([1, 1, 1, 1], terms) for _ in range(3)]
    envelopes[client][position, byte] ^= flip
    opened = open_batch(batch(envelopes, terms), terms, KEY)
    assert opened.refused == {"damaged": 1}
    assert opened.clients == 2 and opened.counts().tolist() == [2, 2, 2, 2]


def test_two_reports_with_one_nonce_count_once():
    terms = terms_of(3)
    honest, other = sealed([1, 1, 1], terms), sealed([0, 0, 0], terms)
    opened = open_batch(batch([honest, other, honest], terms), terms, KEY)
    assert opened.refused == {"repeated": 3}
    assert opened.clients == 2 and opened.counts().tolist() == [1, 1, 1]


def test_rubbish_under_a_stolen_nonce_does_not_push_the_honest_envelope_out():
    terms = terms_of(1)
    honest = sealed([1], terms)
    rubbish = honest.copy()
    rubbish[:, NONCE_BYTES:] = 0
    opened = open_batch(batch([rubbish, honest], terms), terms, KEY)
    assert opened.refused == {"damaged": 1} and opened.counts().tolist() == [1]


def test_bits_that_stand_for_no_value_are_refused(monkeypatch):
    terms = terms_of(5, group=4)  # the second envelope holds one value
    good = sealed([1, 0, 1, 0, 1], terms)
    monkeypatch.setattr("sordino.shuffler.envelopes._contents", lambda *_: np.array([[0b10000], [0b10]], np.uint8))
    forged = sealed([0, 0, 0, 0, 0], terms)
    opened = open_batch(batch([forged, good], terms), terms, KEY)
    assert opened.refused == {"outside the output set": 2}
    assert opened.counts().tolist() == [1, 0, 1, 0, 1]


def test_a_report_that_is_not_made_of_so_many_bits_is_not_sealed():
    with pytest.raises(InvalidInput, match="bytes"):
        seal(b"\1\1", terms_of(8), 0, PUBLIC)
    with pytest.raises(InvalidInput, match="padding"):
        seal(b"\xff", terms_of(4), 0, PUBLIC)
    with pytest.raises(InvalidInput, match="classes"):
        seal(b"\1", terms_of(4), 1, PUBLIC)


@given(st.binary(max_size=300), st.booleans())
def test_rubbish_is_no_batch_and_no_body(rubbish, headed):
    terms = terms_of(3)
    with pytest.raises(InvalidInput):
        open_batch((batch_head(terms, 0, 2) + rubbish)[: 51 if headed else None], terms, KEY)
    try:
        Body.decode(rubbish).check(terms)
    except InvalidInput:
        return
    pytest.fail("rubbish was taken for a body")


def test_a_recorded_batch_is_read():
    golden = json.loads(GOLDEN.read_text())
    key = X25519PrivateKey.from_private_bytes(bytes.fromhex(golden["key"]))
    opened = open_batch(bytes.fromhex(golden["batch"]), Terms.from_json(json.dumps(golden["terms"])), key)
    assert opened.rows.bits().tolist() == golden["bits"] and not opened.refused


# --- terms ------------------------------------------------------------------------------------------------------------


def test_terms_survive_json_and_bind_everything():
    terms = terms_of(10, (4, 2), group=3)
    assert Terms.from_json(terms.to_json()) == terms
    others = [terms_of(11, (4, 2), group=3), terms_of(10, (4, 3), group=3), terms_of(10, (4, 2), group=2)]
    others += [terms_of(10, (4, 2), group=3, round=2), terms_of(10, (4, 2), group=3, seconds=1.0)]
    assert len({t.digest for t in [terms, *others]}) == 6


@given(st.recursive(st.none() | st.booleans() | st.floats() | st.text(), lambda x: st.lists(x) | st.dictionaries(
    st.sampled_from(["round", "values", "asked", "seconds", "group", "subject", "federation"]), x), max_leaves=8,
))  # fmt: skip
def test_rubbish_is_no_terms(rubbish):
    with pytest.raises(InvalidInput):
        Terms.from_json(json.dumps(rubbish))


# --- delays -----------------------------------------------------------------------------------------------------------


def test_delays_send_every_envelope_once_at_even_times():
    terms, slots = terms_of(6400), 8
    envelopes = np.arange(6400 * 49, dtype=np.uint64).astype(np.uint8).reshape(6400, 49)
    body = Body(0, terms.digest, np.arange(6400, dtype=np.uint32), envelopes).encode()
    leaving = spread([body], latency=4.0, slots=slots)
    assert [seconds for seconds, _ in leaving] == pytest.approx([0.5 * k for k in range(1, 9)])
    bodies = [Body.decode(b) for _, b in leaving]
    where = np.concatenate([b.positions for b in bodies])
    assert sorted(where.tolist()) == list(range(6400))
    assert (np.concatenate([b.envelopes for b in bodies]) == envelopes[where]).all()
    sizes = np.array([len(b.positions) for b in bodies])
    assert ((sizes - 800) ** 2 / 800).sum() < chi2.isf(1e-7, slots - 1)  # false alarms: one in ten million


# --- what a statement may say -----------------------------------------------------------------------------------------


def test_single_values_have_the_guarantee_of_the_simulated_shuffler():
    mechanism = TwoPoint(1.0)
    upload = Upload(lambda epsilon: mechanism, [1.0] * 5, 12, clients=5, what="weights")
    ((release,),) = upload.releases("bakery/1", "data")
    simulated = ShuffledChannel(granularity="parameter").guarantee(release, 5, mechanism)
    assert ShufflerChannel(at_least=5).guarantee(release, 5, mechanism) == simulated


def test_a_group_is_one_linked_message_of_so_many_epsilons():
    mechanism = TwoPoint(1.0)
    upload = Upload(lambda epsilon: mechanism, [1.0] * 5, 10, clients=5, what="weights")
    ((release,),) = upload.releases("bakery/1", "data")
    behind = ShufflerChannel(at_least=5, group=4).guarantee(release, 5, mechanism)
    assert behind.claimed is None
    assert behind.guarantees[:2] == release.guarantees and behind.guarantees[0].adversary == SERVER
    losses = {g.adjacency: g.loss for g in behind.guarantees if g.adversary == shuffled(5)}
    each = mechanism.proven_epsilon()
    assert losses == {Adjacency.CLIENT: Pure(4 * each, 3), Adjacency.COORDINATE: Pure(each)}

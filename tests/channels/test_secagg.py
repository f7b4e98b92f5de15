"""Secure sums: exact, with whoever drops out; nothing but the sum can be had, and no forged message counts."""

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from benchmarks.secagg import KINDS, measure, sparse_session
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sordino.channels import neighbours, secagg, shamir
from sordino.channels.secagg import (
    STEPS,
    Ed25519Identity,
    Session,
    SumClient,
    SumLost,
    SumRefused,
    SumServer,
    invitation,
)
from sordino.channels.secure_sum import Summed
from sordino.errors import InvalidInput
from sordino.wire.codec import LENGTH_BYTES, join, numbers
from tests.client.test_commands import CliRunner, app

LAST = len(STEPS)


def session(**changes) -> Session:
    given = {
        "federation": "f", "round": 3, "group": 0, "subject": "plan", "values": 20, "low": -50, "high": 50,
        "clients": 9, "threshold": 5,
    }  # fmt: skip
    given |= changes
    if GRAPHS[-1] == "complete":
        return Session(**{key: value for key, value in given.items() if key not in ("neighbours", "quorum")})
    size = max(2, given["clients"] - 2)
    return Session(**({"neighbours": size, "quorum": size // 2 + 1} | given))


GRAPHS = ["complete"]  #: the last is the one of `session`


@pytest.fixture(params=["complete", "sparse"])
def graph(request):
    """Sums in which every client shares with all others, or with all but one whom it left out by chance."""
    GRAPHS.append(request.param)
    yield request.param
    GRAPHS.pop()


on_both_graphs = pytest.mark.usefixtures("graph")


def vectors(agreed: Session, seed: int = 0) -> dict[int, np.ndarray]:
    rng = np.random.default_rng(seed)
    low, high = (agreed.low, agreed.high) if not agreed.modulus else (-(2**40), 2**40)
    return {7 * k + 2: rng.integers(low, high, agreed.values, endpoint=True) for k in range(agreed.clients)}


class Round:
    """A server and its clients on one machine; whoever is in `gone[step]` does not answer that step or any later."""

    def __init__(self, agreed: Session, given: dict[int, np.ndarray] | None = None, identities=None):
        self.session = agreed
        self.vectors = vectors(agreed) if given is None else given
        self.server = SumServer(agreed, self.vectors)
        self.clients = {
            c: SumClient(agreed, c, identity=None if identities is None else identities[c], invited=self.vectors)
            for c in self.vectors
        }
        self.requests: dict[int, bytes] = {}

    def step(self, step: str, gone=(), change=lambda requests: requests, forge=lambda client, answer: answer):
        self.requests = change(self.server.requests(step))
        for client, request in self.requests.items():
            if client not in gone:
                vector = self.vectors[client] if step == "masked" else None
                self.server.receive(step, client, forge(client, self.clients[client].answer(step, request, vector)))
        return self

    def to(self, step: str, gone: dict[str, set[int]] | None = None):
        """All steps before this one."""
        away: set[int] = set()
        for name in STEPS[: STEPS.index(step) if step in STEPS else LAST]:
            away |= (gone or {}).get(name, set())
            self.step(name, away)
        return self

    def total(self, gone: dict[str, set[int]] | None = None) -> np.ndarray:
        self.to("the end", gone)
        return self.server.total()


# --- sums -------------------------------------------------------------------------------------------------------------


@on_both_graphs
def test_the_sum_is_the_plain_sum():
    held = Round(session())
    assert np.array_equal(held.total(), sum(held.vectors.values()))
    assert held.server.summed == tuple(held.vectors)


@on_both_graphs
@pytest.mark.parametrize("step", STEPS)
def test_a_third_may_drop_out_at_any_step(step):
    """Who drops out before its masked vector arrives is not in the sum; who drops out later still is."""
    held = Round(session())
    gone = set(list(held.vectors)[2:5])
    there = [c for c in held.vectors if c not in gone or STEPS.index(step) > STEPS.index("masked")]
    assert np.array_equal(held.total({step: gone}), sum(held.vectors[c] for c in there))
    assert held.server.summed == tuple(there)


@on_both_graphs
def test_clients_may_drop_out_at_every_step_as_long_as_the_threshold_is_met():
    held = Round(session(clients=12, threshold=7, neighbours=11, quorum=6))
    names = list(held.vectors)
    gone = {step: {names[2 * k]} for k, step in enumerate(STEPS)}
    expected = sum(held.vectors[c] for c in names if c not in (names[0], names[2], names[4]))
    assert np.array_equal(held.total(gone), expected)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_size_any_range_any_dropouts(data):
    clients = data.draw(st.integers(2, 9), "clients")
    threshold = data.draw(st.integers(clients // 2 + 1, clients), "threshold")
    low = data.draw(st.one_of(st.integers(-3, 0), st.integers(-(2**40), 2**40)), "low")
    width = data.draw(st.one_of(st.just(1), st.integers(1, 300), st.integers(2**13, 2**59)), "width")
    agreed = session(
        clients=clients, threshold=threshold, low=low, high=low + width, values=data.draw(st.integers(1, 40), "values")
    )
    held = Round(agreed, vectors(agreed, data.draw(st.integers(0, 99), "seed")))
    leaving = data.draw(st.permutations(list(held.vectors)), "order")[: clients - threshold]
    gone: dict[str, set[int]] = {}
    for client in leaving:
        gone.setdefault(data.draw(st.sampled_from(STEPS), "when"), set()).add(client)
    out = set().union(*(gone.get(step, set()) for step in STEPS[:3]))
    expected = sum(vector.astype(object) for client, vector in held.vectors.items() if client not in out)
    assert held.total(gone).tolist() == expected.tolist()


@pytest.mark.parametrize(
    ("low", "high", "clients", "bits"),
    [
        (0, 1, 255, 8), (0, 1, 256, 16), (-1, 1, 127, 8), (-1, 1, 128, 16), (0, 2**24, 200, 32),
        (-(10**14), 10**14, 100, 56),
    ],
)  # fmt: skip
def test_sums_have_just_the_bytes_that_they_need(low, high, clients, bits):
    assert session(low=low, high=high, clients=clients, threshold=clients).bits == bits


@on_both_graphs
@pytest.mark.parametrize("extreme", ["low", "high"])
@pytest.mark.parametrize("span", [(0, 1), (-1, 1), (-(2**31), 2**31), (-(2**60), 2**60)], ids=str)
def test_extreme_values_do_not_wrap_around(span, extreme):
    """7 times 2^60 needs all 64 bits of a signed sum."""
    agreed = session(low=span[0], high=span[1], clients=7, threshold=4)
    value = getattr(agreed, extreme)
    held = Round(agreed, {c: np.full(agreed.values, value, np.int64) for c in range(7)})
    assert held.total().tolist() == [7 * value] * agreed.values


def test_a_sum_beyond_64_bits_is_refused_before_anything_is_sent():
    with pytest.raises(InvalidInput, match="64 bits"):
        session(low=0, high=2**61, clients=9)


@on_both_graphs
def test_many_values_are_masked_in_tiles_as_in_one(monkeypatch):
    agreed = session(values=1000)
    monkeypatch.setattr(secagg, "TILE", 96)
    held = Round(agreed)
    held.to("confirm", {"masked": {2}})
    monkeypatch.undo()
    held.step("confirm", {2}).step("unmask", {2})
    assert np.array_equal(held.server.total(), sum(v for c, v in held.vectors.items() if c != 2))


# --- too few ----------------------------------------------------------------------------------------------------------


@on_both_graphs
@pytest.mark.parametrize("step", STEPS)
def test_below_the_threshold_there_is_no_sum_and_the_error_says_so(step):
    held = Round(session())
    gone = {step: set(list(held.vectors)[:5])}
    with pytest.raises(SumLost, match=rf"4 of 9.*{step}"):
        held.total(gone)


@on_both_graphs
def test_below_the_threshold_the_shares_say_nothing_of_the_secrets():
    """With one share too few, every secret fits: the server's view of the last step is consistent with any b."""
    held = Round(session())
    held.to("unmask")
    holders = held.clients[2]._holders
    held.step("unmask", gone=set(holders[held.session.shares_needed - 1 :]))
    shares = {holders.index(helper) + 1: own[2] for helper, own in held.server._heard.items() if helper in holders}
    assert len(shares) == held.session.shares_needed - 1
    for secret in (0, 1, 2**255):
        fitted = shamir.join({**shares, 77: 0})  # any further share is possible, and each gives another secret
        shift = shamir.weights([*shares, 77])[-1]
        further = (secret - fitted) * pow(shift, -1, shamir.PRIME) % shamir.PRIME
        assert shamir.join({**shares, 77: further}) == secret


@on_both_graphs
@pytest.mark.parametrize("step", ["shares", "masked", "confirm", "unmask"])
def test_a_client_refuses_a_list_below_the_threshold(step):
    """The server goes on although too few are left: it lowers its own threshold, but not the clients'."""
    held = Round(session())
    few = set(list(held.vectors)[:5])
    held.to(STEPS[STEPS.index(step) - 1]).step(STEPS[STEPS.index(step) - 1], gone=few)
    object.__setattr__(held.server.session, "threshold", 4)
    requests = held.server.requests(step)
    object.__setattr__(held.server.session, "threshold", 5)
    client = min(requests)
    with pytest.raises(SumRefused, match="threshold of 5"):
        held.clients[client].answer(step, requests[client], held.vectors[client])


# --- what the server sees ---------------------------------------------------------------------------------------------

FALSE_ALARM = 1e-6  #: of each chi-square test below


def looks_uniform(agreed: Session, words: np.ndarray) -> bool:
    """Bytes in equal shares, by a chi-square test that errs about truly uniform ones once in a million times."""
    counts = np.bincount(np.frombuffer(secagg._packed(words, agreed), np.uint8), minlength=256)
    return stats.chisquare(counts).pvalue > FALSE_ALARM


def masked_vector(held: Round, client: int) -> np.ndarray:
    """What the server gets of one client in the step `masked`."""
    held.to("masked")
    requests = held.server.requests("masked")
    sent = held.clients[client].answer("masked", requests[client], held.vectors[client])
    return secagg._unpacked(sent[-held.session.vector_bytes :], held.session).copy()


def take_off_pairwise(held: Round, client: int, masked: np.ndarray) -> np.ndarray:
    """What remains for a server that knows all keys that the client agreed on with others."""
    own = held.clients[client]
    for peer in own._secrets:
        secret = secagg._agree(own._mask_key, own._roster[peer].mask)
        secagg._add_mask(masked, secagg._derive(secret, b"mask", own._context), -1 if peer > client else +1)
    return masked


@on_both_graphs
@pytest.mark.parametrize("high", [1, 2**30, 2**60], ids=["bits", "thirty bits", "sixty bits"])
def test_a_masked_vector_looks_uniform(high):
    agreed = session(values=30_000, low=0, high=high, clients=4, threshold=3)
    constant = {c: np.full(agreed.values, agreed.high, np.int64) for c in range(4)}
    assert looks_uniform(agreed, masked_vector(Round(agreed, constant), 1))


@on_both_graphs
def test_a_masked_vector_looks_uniform_even_to_one_who_knows_all_pairwise_keys():
    agreed = session(values=30_000, low=0, high=1, clients=4, threshold=3)
    held = Round(agreed)
    client = next(iter(held.vectors))
    remaining = take_off_pairwise(held, client, masked_vector(held, client))
    assert looks_uniform(agreed, remaining)
    assert not np.array_equal(remaining, held.vectors[client])


@on_both_graphs
def test_without_the_self_mask_it_would_not(monkeypatch):
    agreed = session(values=30_000, low=0, high=1, clients=4, threshold=3)
    held = Round(agreed)
    client = next(iter(held.vectors))
    derive = secagg._derive
    seeds = {own._self_seed for own in held.clients.values()}
    unmasked = []

    def forget(total, key, sign, real=secagg._add_mask):
        if key not in unmasked:
            real(total, key, sign)

    def watch(secret, purpose, *rest):
        key = derive(secret, purpose, *rest)
        if secret in seeds:
            unmasked.append(key)
        return key

    monkeypatch.setattr(secagg, "_derive", watch)
    monkeypatch.setattr(secagg, "_add_mask", forget)
    remaining = take_off_pairwise(held, client, masked_vector(held, client))
    assert not looks_uniform(agreed, remaining)
    assert np.array_equal(remaining, held.vectors[client])


@on_both_graphs
def test_masks_are_fresh_in_every_session():
    """The same vectors, the same names: the difference of two masked vectors is as uniform as each."""
    agreed = session(values=30_000, low=0, high=2**30, clients=4, threshold=3)
    one, two = (masked_vector(Round(agreed, vectors(agreed)), 2) for _ in range(2))
    assert looks_uniform(agreed, one - two)


@on_both_graphs
def test_the_masks_of_all_cancel_but_for_the_self_masks():
    agreed = session(clients=5, threshold=3)
    held = Round(agreed)
    held.to("masked").step("masked")
    total = held.server._sum.copy()
    for own in held.clients.values():
        secagg._add_mask(total, secagg._derive(own._self_seed, b"self", own._context), -1)
    assert agreed.bits == 16
    assert np.array_equal(total.astype(np.int16), sum(held.vectors.values()))


# --- never both shares ------------------------------------------------------------------------------------------------


@on_both_graphs
def test_an_answer_holds_one_share_for_each_client_and_never_the_other():
    held = Round(session())
    dropped = list(held.vectors)[3]
    held.to("the end", {"masked": {dropped}})
    for client, answer in held.server._heard.items():
        shares = held.clients[client]._shares
        kind = {peer: int(peer == dropped) for peer in shares}
        assert answer == {peer: int.from_bytes(pair[kind[peer]], "big") for peer, pair in shares.items()}


@on_both_graphs
def test_a_client_unmasks_once_and_refuses_every_further_request():
    held = Round(session())
    held.to("the end")
    for client, step in itertools.product(held.vectors, ("confirm", "unmask")):
        with pytest.raises(SumRefused, match="answered twice"):
            held.clients[client].answer(step, held.requests[client])


HEAD = secagg._SUM.size + LENGTH_BYTES  #: where a message goes on that lists no clients


def told(held: Round, step: str, client: int, sent: dict[int, dict[int, bytes]]) -> bytes:
    """The request that the server would make of these tags; one that is missing is made up."""
    tags = b"".join(sent[by].get(client, b"?" * 16) for by in held.server._peers(client) if by in sent)
    return secagg._message(step, held.session, client, sent, tags)


def tags(held: Round, client: int, listed, answer: bytes) -> dict[int, bytes]:
    """What a client, which was told of so many, sent to its peers among them."""
    receivers = held.clients[client]._peers(sorted(listed))
    return {to: answer[HEAD + 16 * k :][:16] for k, to in enumerate(receivers)}


def masked_answers(held: Round, requests: dict[int, bytes]) -> dict[int, bytes]:
    return {c: held.clients[c].answer("masked", requests[c], held.vectors[c]) for c in held.vectors}


@on_both_graphs
def test_a_server_that_tells_clients_of_different_survivors_gets_no_shares():
    """Half of the clients hear that one of them dropped out, the others that all are there: both seem plausible."""
    held = Round(session())
    held.to("masked")
    answers = masked_answers(held, held.server.requests("masked"))
    sent = {c: tags(held, c, held.vectors, answer) for c, answer in answers.items()}
    victim, *others = held.vectors
    without = {c: own for c, own in sent.items() if c != victim}
    lied_to = others[:4]
    confirmed = {}
    for c in held.vectors:
        heard = without if c in lied_to else sent
        answer = held.clients[c].answer("confirm", told(held, "confirm", c, heard))
        confirmed[c] = tags(held, c, heard, answer)
    for c in held.vectors:
        heard = {k: v for k, v in confirmed.items() if k != victim} if c in lied_to else confirmed
        with pytest.raises(SumRefused, match="differ"):
            held.clients[c].answer("unmask", told(held, "unmask", c, heard))


@on_both_graphs
def test_a_server_that_tells_clients_of_different_sharers_gets_no_confirmation():
    """One client hears that all but two shared secrets, the others that all did: their masks would not cancel."""
    held = Round(session())
    held.to("masked")
    client, *others = held.vectors
    requests = held.server.requests("masked")
    fewer = {c: sealed for c, sealed in held.server._sealed.items() if c not in others[:2]}
    rest = held.server._forwarded(fewer)[client]
    requests[client] = secagg._message("masked", held.session, client, fewer, rest)
    answers = masked_answers(held, requests)
    sent = {c: tags(held, c, fewer if c == client else held.vectors, answer) for c, answer in answers.items()}
    for c in set(others) & set(held.server._peers(client)):
        with pytest.raises(SumRefused, match=rf"client {client}.*differ"):
            held.clients[c].answer("confirm", told(held, "confirm", c, sent))
    with pytest.raises(SumRefused, match="shared no secrets"):
        held.clients[client].answer("confirm", told(held, "confirm", client, sent))


# --- messages that are refused ----------------------------------------------------------------------------------------


@on_both_graphs
@pytest.mark.parametrize("step", STEPS)
def test_a_tampered_request_is_refused_by_the_client(step):
    """Any bit of any request: it is recognised at once, or (in keys and lists of others) by the next step's tags."""
    rng = np.random.default_rng(STEPS.index(step))
    for _ in range(12):
        held = Round(session(clients=4, threshold=3))
        client = list(held.vectors)[1]
        held.to(step)

        def change(requests, client=client):
            spoilt = bytearray(requests[client])
            spoilt[rng.integers(len(spoilt))] ^= 1 << rng.integers(8)
            return {**requests, client: bytes(spoilt)}

        with pytest.raises((SumRefused, SumLost)):
            for at in STEPS[STEPS.index(step) :]:
                held.step(at, change=change if at == step else lambda requests: requests)
            held.server.total()


@on_both_graphs
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("spoil", [lambda m: m[:-1], lambda m: m + b"x", lambda m: b"", lambda m: m[:9]],
                         ids=["cut", "longer", "empty", "head cut"])  # fmt: skip
def test_a_message_of_another_length_is_refused_on_both_sides(step, spoil):
    held = Round(session(clients=4, threshold=3))
    client = next(iter(held.vectors))
    held.to(step)
    requests = held.server.requests(step)
    answer = held.clients[client].answer(step, requests[client], held.vectors[client])
    with pytest.raises(SumRefused):
        held.server.receive(step, client, spoil(answer))
    other = list(held.vectors)[1]
    with pytest.raises(SumRefused):
        held.clients[other].answer(step, spoil(requests[other]), held.vectors[other])


@on_both_graphs
@pytest.mark.parametrize("step", STEPS)
def test_a_duplicate_answer_does_not_count_twice(step):
    held = Round(session())
    held.to(step)
    client = next(iter(held.vectors))
    requests = held.server.requests(step)
    answer = held.clients[client].answer(step, requests[client], held.vectors[client])
    held.server.receive(step, client, answer)
    before = held.server._sum.copy()
    with pytest.raises(SumRefused, match=f"client {client}.*twice"):
        held.server.receive(step, client, answer)
    assert np.array_equal(before, held.server._sum)


@on_both_graphs
@pytest.mark.parametrize("step", STEPS)
def test_messages_of_another_round_federation_sum_or_client_are_refused(step):
    others = (
        ("round", 4),
        ("federation", "g"),
        ("group", 1),
        ("subject", "another plan"),
        ("threshold", 6),
        ("attempt", "b"),
    )
    for other in ({name: value} for name, value in others):
        held, elsewhere = Round(session()), Round(session(**other))
        held.to(step), elsewhere.to(step)
        client = next(iter(held.vectors))
        requests, foreign = held.server.requests(step), elsewhere.server.requests(step)
        with pytest.raises(SumRefused, match="another sum"):
            held.clients[client].answer(step, foreign[client], held.vectors[client])
        answer = elsewhere.clients[client].answer(step, foreign[client], held.vectors[client])
        with pytest.raises(SumRefused, match="another sum"):
            held.server.receive(step, client, answer)
        second, third = list(held.vectors)[1:3]
        if not held.session.is_common(step):
            with pytest.raises(SumRefused, match=f"client {third}.*client {second}"):
                held.clients[second].answer(step, requests[third], held.vectors[second])
        honest = held.clients[third].answer(step, requests[third], held.vectors[third])
        with pytest.raises(SumRefused, match=f"client {third}.*client {second}"):
            held.server.receive(step, second, honest)


@on_both_graphs
def test_a_seal_from_another_session_is_refused_even_under_a_new_head():
    """The server replays what was sealed in the last round."""
    last, held = Round(session(round=2)), Round(session())
    last.to("masked"), held.to("masked")
    client = next(iter(held.vectors))
    old = last.server.requests("masked")[client]
    listed, rest = secagg._read(old, "masked", last.session, client)
    replayed = secagg._message("masked", held.session, client, listed, rest)
    with pytest.raises(SumRefused, match="forged" if held.session.neighbours == 0 else "forged|pieces"):
        held.clients[client].answer("masked", replayed, held.vectors[client])


@on_both_graphs
def test_steps_come_in_turn_on_both_sides():
    held = Round(session())
    client = next(iter(held.vectors))
    with pytest.raises(InvalidInput, match="in this order"):
        held.server.requests("masked")
    with pytest.raises(SumRefused, match="out of turn"):
        held.server.receive("keys", client, b"")
    held.step("keys")
    with pytest.raises(SumRefused, match="out of turn"):
        held.server.receive("shares", client, b"")
    with pytest.raises(SumRefused, match="shares"):
        held.clients[client].answer("unmask", b"")
    with pytest.raises(SumRefused, match="is over"):
        held.clients[client].answer("shares", b"")
    with pytest.raises(InvalidInput, match="last step"):
        held.server.total()


@on_both_graphs
def test_strangers_are_not_heard():
    held = Round(session())
    held.server.requests("keys")
    with pytest.raises(SumRefused, match="not asked"):
        held.server.receive("keys", 1, b"")


@on_both_graphs
def test_a_client_that_takes_anothers_keys_is_refused():
    held = Round(session())
    one, two = list(held.vectors)[:2]
    requests = held.server.requests("keys")
    held.server.receive("keys", one, held.clients[one].answer("keys", requests[one]))
    copied = replace(held.clients[one]._entry, client=two).encode() + numbers(held.clients[two]._holders)
    with pytest.raises(SumRefused, match="not its own"):
        held.server.receive("keys", two, secagg._message("keys", held.session, two, (), copied))


# --- what clients say of a sum that was revealed before

FOUR = {2, 9, 16, 23}
SEVEN = {*FOUR, 30, 37, 44}


def pledged(names: set[int], pledges: dict[int, set[int]]) -> Round:
    """A sum of four or seven, for which clients have sent their keys, some bound by a sum that they say was revealed.

    On the sparse graph each draws all others: whoever one of them leaves out, enough are left.
    """
    others = len(names) - 1
    agreed = session(clients=len(names), threshold=2 * len(names) // 3 + 1, neighbours=others, quorum=others // 2 + 1)
    found = Round(agreed)
    assert set(found.vectors) == names
    for client, pledge in pledges.items():
        found.clients[client] = SumClient(agreed, client, invited=names, pledge=pledge)
    found.requests = found.server.requests("keys")
    for client, request in found.requests.items():
        try:
            found.server.receive("keys", client, found.clients[client].answer("keys", request))
        except SumRefused:
            assert client in pledges
    return found


@on_both_graphs
@pytest.mark.parametrize(
    "lie",
    [{2, 9, 16}, {2, 9, 77}, {9, 16, 23}, {2, 9}],
    ids=["without somebody", "with a number that nobody has", "without itself", "too few"],
)
def test_what_one_client_says_of_an_earlier_sum_neither_shuts_anybody_out_nor_loses_the_sum(lie):
    found = pledged(FOUR, {2: lie})
    for step in STEPS[1:]:
        found.step(step)
    assert found.server.summed == (9, 16, 23)
    assert np.array_equal(found.server.total(), sum(found.vectors[client] for client in (9, 16, 23)))


@on_both_graphs
def test_a_lie_about_everybody_does_not_bind_those_who_stay():
    """One of seven says that a sum of all was revealed, and another drops out; the liar alone does not confirm."""
    found = pledged(SEVEN, {2: SEVEN})
    found.step("shares", {44}).step("masked", {44})
    confirming = found.server.requests("confirm")
    with pytest.raises(SumRefused, match="revealed before"):
        found.clients[2].answer("confirm", confirming.pop(2))
    for client, request in confirming.items():
        found.server.receive("confirm", client, found.clients[client].answer("confirm", request))
    found.step("unmask")
    assert np.array_equal(found.server.total(), sum(found.vectors[client] for client in (2, 9, 16, 23, 30, 37)))


@on_both_graphs
@pytest.mark.parametrize("bound", [1, 2, 3, 4])
def test_clients_who_began_to_reveal_a_sum_of_all_reveal_it_again(bound):
    """However many of them had answered the last step when the server was killed."""
    found = pledged(FOUR, dict.fromkeys(sorted(FOUR)[:bound], FOUR))
    for step in STEPS[1:]:
        found.step(step)
    assert np.array_equal(found.server.total(), sum(found.vectors.values()))


@on_both_graphs
def test_a_sum_that_enough_clients_revealed_is_begun_again_with_those_in_it_and_nobody_else():
    before = {2, 9, 16}
    found = pledged(FOUR, dict.fromkeys(before, before))
    assert sorted(found.server.requests("shares")) == [2, 9, 16]
    before = {2, 9, 16, 23, 30, 37}
    found = pledged(SEVEN, dict.fromkeys((2, 9, 16, 23, 30), before) | {44: SEVEN})
    assert sorted(found.server.requests("shares")) == [2, 9, 16, 23, 30, 37], "whatever another one says"


@on_both_graphs
def test_a_sum_that_enough_clients_revealed_is_lost_without_somebody_who_is_in_it():
    before = {2, 9, 16, 23, 30, 37}
    found = pledged(SEVEN, dict.fromkeys((2, 9, 16, 23, 30), before))
    found.step("shares", {37})
    found.step("masked", {37})
    with pytest.raises(SumLost, match=r"client 37.*not there"):
        found.server.requests("confirm")


@on_both_graphs
def test_a_key_that_agrees_with_everybody_is_refused():
    """Zero is a point of small order: the agreed secret would be zero whatever the other key is."""
    held = Round(session())
    held.step("keys")
    requests = held.server.requests("shares")
    client = next(iter(held.vectors))
    weak = held.server._peers(client)[0]
    spoilt = requests[client].replace(held.clients[weak]._entry.seal, bytes(32))
    with pytest.raises(SumRefused, match="same secret"):
        held.clients[client].answer("shares", spoilt)


@on_both_graphs
@pytest.mark.parametrize(
    "vector",
    [None, np.zeros(19, np.int64), np.zeros(20, np.float64)],
    ids=["none", "short", "floats"],
)
def test_what_is_no_vector_of_the_sum_does_not_leave(vector):
    held = Round(session())
    held.to("masked")
    client = next(iter(held.vectors))
    with pytest.raises(InvalidInput):
        held.clients[client].answer("masked", held.server.requests("masked")[client], vector)


# --- sums in a ring ---------------------------------------------------------------------------------------------------


def in_ring(bits: int, **changes) -> Session:
    """Nine clients on the complete graph whose sum is known modulo 2^bits alone."""
    given = {"federation": "f", "round": 3, "group": 0, "subject": "plan", "values": 20, "clients": 9, "threshold": 5}
    return Session(**(given | changes), low=0, high=0, modulus=bits)


def around_zero(numbers, bits: int) -> list[int]:
    half = 1 << (bits - 1)
    return [(int(number) + half) % (2 * half) - half for number in numbers]


@settings(max_examples=40, deadline=None)
@given(bits=st.integers(1, 62), values=st.integers(1, 40), data=st.data())
def test_a_sum_in_a_ring_is_that_of_the_residues_around_zero(bits, values, data):
    numbers = st.integers(-(2**62), 2**62)
    given = {c: np.array([data.draw(numbers) for _ in range(values)], np.int64) for c in (1, 5, 6)}
    held = Round(in_ring(bits, values=values, clients=3, threshold=3), given)
    exact = [sum(int(vector[k]) for vector in given.values()) for k in range(values)]
    assert held.total().tolist() == around_zero(exact, bits)


@pytest.mark.parametrize("bits", [1, 8, 15, 20, 32, 33, 48, 62])
@pytest.mark.parametrize("dropped", [0, 2])
def test_a_silo_that_wrapped_around_sends_what_one_that_did_not_would(bits, dropped):
    """A client taken up from its file, given x and given x + 2^m: identical bytes, so that no sum can tell them."""
    held = Round(in_ring(bits), {c: np.arange(20, dtype=np.int64) * (c - 3) for c in range(9)})
    held.to("masked", {"shares": set(range(9 - dropped, 9))})
    own = held.clients[2]
    request = held.server.requests("masked")[2]
    sent = []
    for times in (0, 1, -1, 5 if bits < 60 else 1):
        again = SumClient.restored(json.loads(json.dumps(own.kept())))
        sent.append(again.answer("masked", request, held.vectors[2] + times * 2**bits))
    assert len(set(sent)) == 1
    assert len(sent[0]) <= HEAD + 8 * 16 + -(-20 * bits // 8)


def test_what_leaves_for_a_value_has_as_many_bits_as_the_modulus():
    """20 values of 13 bits are 260: 33 bytes, with four zeros at the end; other padding is refused."""
    held = Round(in_ring(13))
    assert held.session.vector_bytes == 33
    held.to("masked")
    requests = held.server.requests("masked")
    answers = {c: held.clients[c].answer("masked", requests[c], held.vectors[c]) for c in requests}
    assert all(answer[-1] < 2**4 for answer in answers.values())
    first = min(answers)
    with pytest.raises(SumRefused):
        held.server.receive("masked", first, answers[first][:-1] + bytes([answers[first][-1] | 2**4]))
    held.server.receive("masked", first, answers[first])


def test_masked_values_of_a_ring_are_even_over_it():
    """Every one of 2^5 residues of a value without noise is sent about equally often: chi-squared, 31 degrees."""
    counts = np.zeros(32)
    for _ in range(5):
        held = Round(in_ring(5, values=2000), {c: np.full(2000, 7 * c) for c in range(9)})
        held.to("masked")
        request = held.server.requests("masked")[0]
        sent = held.clients[0].answer("masked", request, held.vectors[0])
        counts += np.bincount(secagg._unpacked(sent[-held.session.vector_bytes :], held.session), minlength=32)
    expected = counts.sum() / 32
    assert ((counts - expected) ** 2 / expected).sum() < 83, "a false alarm in a million"


@pytest.mark.parametrize(
    "changes",
    [{"modulus": 63}, {"modulus": -1}, {"low": -8, "high": 7}, {"neighbours": 4, "quorum": 3}, {"modulus": True}],
    ids=str,
)
def test_a_ring_that_is_none_is_refused(changes):
    given = {"federation": "f", "round": 3, "group": 0, "subject": "", "values": 20, "clients": 9, "threshold": 5}
    with pytest.raises(InvalidInput):
        Session(**(given | {"low": 0, "high": 0, "modulus": 8} | changes))


def test_the_modulus_is_in_the_sessions_digest_and_sums_without_one_keep_theirs():
    assert in_ring(20).digest != in_ring(21).digest
    assert Session.decode(in_ring(20).encode()) == in_ring(20)
    assert "modulus" not in json.loads(session().encode())


def test_a_sum_that_an_earlier_version_began_is_void():
    kept = Round(session()).clients[2].kept()
    del kept["session"]["modulus"]
    with pytest.raises(SumRefused):
        SumClient.restored(kept)


@on_both_graphs
def test_a_false_share_of_a_key_is_noticed():
    held = Round(session())
    liar, dropped = list(held.vectors)[:2]

    def forge(client, answer):
        return answer[:HEAD] + bytes(len(answer) - HEAD) if client == liar else answer

    held.to("unmask", {"masked": {dropped}})
    held.step("unmask", {dropped}, forge=forge)
    with pytest.raises(SumLost, match=r"false one|false share"):
        held.server.total()


@on_both_graphs
def test_a_value_out_of_range_is_noticed_in_the_sum(monkeypatch):
    held = Round(session())
    held.vectors[2] = np.full(20, 5000)
    monkeypatch.setattr(secagg, "_checked_vector", lambda vector, agreed: vector)  # a client that does not check
    with pytest.raises(SumLost, match="9 clients cannot"):
        held.total()


# --- who vouches for keys ---------------------------------------------------------------------------------------------


def identities(names) -> dict[int, Ed25519Identity]:
    private = {name: Ed25519PrivateKey.generate() for name in names}
    known = {name: key.public_key() for name, key in private.items()}
    return {name: Ed25519Identity(key, known) for name, key in private.items()}


def between(held: Round, client: int) -> dict[int, SumClient]:
    """The server answers for everybody else: it knows all keys but one client's own."""
    return {c: SumClient(held.session, c, invited=held.vectors) for c in held.vectors if c != client}


def roster(held: Round, client: int, entries) -> bytes:
    """The request for shares that the server would make of these keys; all others have drawn the client."""
    keys = {entry.client: entry.encode() for entry in sorted(entries, key=lambda entry: entry.client)}
    if not held.session.is_sparse:
        return secagg._message("shares", held.session, secagg._EVERYBODY, keys, b"".join(keys.values()))
    others = [c for c in keys if c != client]
    rest = join(numbers(others)) + b"".join(keys[c] for c in others)
    return secagg._message("shares", held.session, client, keys, rest)


@on_both_graphs
def test_without_identities_a_server_that_puts_in_its_own_keys_goes_unnoticed():
    """The documented limit: nothing tells a client that all of its peers are the server."""
    held = Round(session())
    held.step("keys")
    client = next(iter(held.vectors))
    false = [own._entry for own in between(held, client).values()]
    body = roster(held, client, [*false, held.clients[client]._entry])
    held.clients[client].answer("shares", body)


@on_both_graphs
def test_with_identities_it_is_refused():
    held = Round(session(), identities=identities(vectors(session())))
    held.step("keys")
    client = next(iter(held.vectors))
    false = [own._entry for own in between(held, client).values()]
    body = roster(held, client, [*false, held.clients[client]._entry])
    with pytest.raises(SumRefused, match="not signed"):
        held.clients[client].answer("shares", body)


@on_both_graphs
def test_signed_keys_serve_one_session_only():
    names = vectors(session())
    vouching = identities(names)
    last, held = Round(session(round=2), identities=vouching), Round(session(), identities=vouching)
    last.step("keys"), held.step("keys")
    client = next(iter(names))
    old = [last.clients[c]._entry for c in names if c != client]
    body = roster(held, client, [*old, held.clients[client]._entry])
    with pytest.raises(SumRefused, match="not signed"):
        held.clients[client].answer("shares", body)


@on_both_graphs
def test_with_identities_sums_are_as_exact():
    held = Round(session(), identities=identities(vectors(session())))
    gone = set(list(held.vectors)[:2])
    assert np.array_equal(held.total({"masked": gone}), sum(v for c, v in held.vectors.items() if c not in gone))


@on_both_graphs
@pytest.mark.parametrize("lie", ["own keys", "twice"])
def test_a_roster_that_is_wrong_about_the_client_itself_is_refused(lie):
    """On the sparse graph a client is not sent its own keys: those are in the place of another's."""
    held = Round(session())
    held.step("keys")
    client, other, third = list(held.vectors)[:3]
    entries = {c: own._entry for c, own in held.clients.items()}
    if lie == "own keys" and held.session.is_sparse:
        entries[other] = replace(entries[client], client=other)
    elif lie == "own keys":
        entries[client] = SumClient(held.session, client, invited=held.vectors)._entry
    else:
        entries[other] = replace(entries[third], client=other)
    body = roster(held, client, entries.values())
    with pytest.raises(SumRefused, match="roster"):
        held.clients[client].answer("shares", body)


# --- sessions ---------------------------------------------------------------------------------------------------------


@on_both_graphs
def test_a_session_survives_the_journey_and_has_a_digest_of_its_own():
    agreed = session()
    assert invitation(SumServer(agreed, vectors(agreed)).requests("keys")[2]) == agreed
    others = [session(**{name: value}) for name, value in (("round", 4), ("low", -51), ("subject", "b"), ("group", 1))]
    assert len({s.digest for s in [agreed, *others]}) == 5


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b'{"round": 1}', b"\xff", b"null"])
def test_what_is_no_session_is_refused(text):
    with pytest.raises(SumRefused, match="not a session"):
        Session.decode(text)


@pytest.mark.parametrize(
    "changes",
    [
        {"threshold": 4}, {"threshold": 10}, {"clients": 1, "threshold": 1}, {"values": 0}, {"low": 5, "high": 5},
        {"round": -1}, {"threshold": 5.0}, {"federation": 3}, {"clients": 2**17, "threshold": 2**17},
    ],
    ids=str,
)  # fmt: skip
def test_senseless_sessions_are_refused(changes):
    with pytest.raises(InvalidInput):
        session(**changes)


@pytest.mark.parametrize(
    ("clients", "threshold", "colluders", "honest"), [(20, 14, 7, 7), (20, 11, 1, 10), (9, 5, 0, 5), (100, 67, 33, 34)]
)
def test_how_many_may_collude(clients, threshold, colluders, honest):
    """2t > n + c, so that no two lists can both be confirmed by t clients of which c confirm everything."""
    agreed = session(clients=clients, threshold=threshold)
    assert (agreed.colluders, agreed.honest) == (colluders, honest)
    assert 2 * threshold > clients + colluders and not 2 * threshold > clients + colluders + 1


def test_a_server_names_as_many_clients_as_the_session():
    with pytest.raises(InvalidInput, match="9 clients"):
        SumServer(session(), range(8))
    with pytest.raises(InvalidInput, match="9 clients"):
        SumServer(session(), [0] * 9)
    with pytest.raises(InvalidInput, match="numbers from 0"):
        SumServer(session(), [-1, *range(8)])


# --- secret sharing ---------------------------------------------------------------------------------------------------


def test_the_field_is_prime_and_holds_every_secret():
    """Fermat with the first twenty primes as bases; the number is the next prime after 2^256."""
    bases = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71]
    assert all(pow(base, shamir.PRIME - 1, shamir.PRIME) == 1 for base in bases)
    assert shamir.PRIME > 2 ** (8 * shamir.SECRET_BYTES) and shamir.PRIME < 2 ** (8 * shamir.SHARE_BYTES)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**256 - 1), st.integers(1, 8), st.data())
def test_any_t_shares_give_the_secret(secret, shares, data):
    threshold = data.draw(st.integers(1, shares))
    given_out = dict(enumerate(shamir.split(secret, threshold, range(1, shares + 1)), 1))
    for some in itertools.combinations(given_out, threshold):
        assert shamir.join({point: given_out[point] for point in some}) == secret
    assert shamir.join(given_out) == secret


@pytest.mark.parametrize("threshold", [2, 3])
def test_fewer_shares_are_distributed_alike_for_every_secret(threshold):
    """All polynomials over the field of 7 elements: t - 1 shares take every combination equally often."""
    prime, points = 7, (1, 2, 3, 4)
    seen = []
    for secret in range(prime):
        counts: dict[tuple[int, ...], int] = {}
        for coefficients in itertools.product(range(prime), repeat=threshold - 1):
            drawn = iter(coefficients)
            shares = shamir.split(secret, threshold, points, prime=prime, draw=lambda _, drawn=drawn: next(drawn))
            for some in itertools.combinations(range(4), threshold - 1):
                key = (*some, *(shares[k] for k in some))
                counts[key] = counts.get(key, 0) + 1
        seen.append(counts)
    assert all(counts == seen[0] for counts in seen)
    assert set(seen[0].values()) == {1}


def test_too_few_shares_give_something_else():
    shares = dict(enumerate(shamir.split(12345, 3, [1, 2, 3, 4]), 1))
    assert shamir.join({1: shares[1], 2: shares[2]}) != 12345


@pytest.mark.parametrize(
    "call",
    [
        lambda: shamir.split(1, 2, [1, 1]),
        lambda: shamir.split(1, 2, [0, 1]),
        lambda: shamir.split(1, 3, [1, 2]),
        lambda: shamir.split(1, 0, [1, 2]),
        lambda: shamir.split(-1, 1, [1, 2]),
        lambda: shamir.split(shamir.PRIME, 1, [1]),
        lambda: shamir.join({}),
    ],
    ids=["same point", "point zero", "threshold above", "threshold zero", "negative", "too large", "no shares"],
)  # fmt: skip
def test_senseless_sharing_is_refused(call):
    with pytest.raises(InvalidInput):
        call()


# --- the page about it ------------------------------------------------------------------------------------------------

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "secure-aggregation.md").read_text()
LARGE = (ROOT / "docs" / "large-sums.md").read_text()


@pytest.mark.process
@pytest.mark.parametrize("command", re.findall(r"^\$ sordino (run .*)", PAGE + LARGE, re.MULTILINE))
def test_the_pages_commands_run(command, tmp_path):
    words = [*command.split(), "--set", "rounds.count=1", "--workers", "1", "--out", str(tmp_path / "run")]
    assert CliRunner().invoke(app, words).exit_code == 0


@pytest.mark.parametrize(("share", "shown"), [(1 / 2, "1/2"), (2 / 3, "2/3"), (0.8, "0.8")])
def test_the_pages_thresholds_are_the_codes(share, shown):
    agreed = session(clients=100, threshold=Summed.Spec(threshold=share).least(100))
    t = agreed.threshold
    assert f"| {shown} | {t} | {100 - t} | {agreed.colluders} | {agreed.honest} |" in PAGE


def recorded_costs() -> dict[str, dict[str, dict[str, float]]]:
    found: dict[str, dict[str, dict[str, float]]] = json.loads(
        (ROOT / "benchmarks" / "results" / "secagg.json").read_text()
    )["complete"]["results"]
    return found


@pytest.mark.process
def test_the_recorded_bytes_are_those_that_travel_now():
    """A sum of one value, and what a million values add: their number in the invitation, and the masked vector."""
    for kind, (low, high) in KINDS.items():
        one = Session("benchmark", 1, 0, "", 1, low, high, 100, 67)
        cost, more = recorded_costs()[f"{kind}, {one.bits} bits, 0 dropouts"], len("1000000") - len("1")
        assert len(SumServer(one, range(100)).requests("keys")[0]) + more == cost["bytes_down"]["keys"]
    low, high = KINDS["bits"]
    now = measure(replace(one, low=low, high=high), 0)
    now.bytes_down["keys"] += more
    now.bytes_up["masked"] += 10**6 - 1
    assert now.bytes_up == recorded_costs()["bits, 8 bits, 0 dropouts"]["bytes_up"]
    assert now.bytes_down == recorded_costs()["bits, 8 bits, 0 dropouts"]["bytes_down"]


@pytest.mark.parametrize(("kind", "bits"), [("bits", 8), ("ten decimals", 56)])
def test_the_pages_costs_are_those_recorded(kind, bits):
    whole, fewer = (recorded_costs()[f"{kind}, {bits} bits, {dropouts} dropouts"] for dropouts in (0, 33))
    client, up, down, server = (
        sum(whole[what].values()) for what in ("client_seconds", "bytes_up", "bytes_down", "server_seconds")
    )
    worst = sum(fewer["server_seconds"].values())
    costs = (f"{1e3 * client:.1f}", *(f"{cost:,.0f}" for cost in (up, down, 1e3 * server, 1e3 * worst)))
    assert f"| {kind} ({bits} bits) | {' | '.join(costs)} |" in PAGE


@pytest.mark.parametrize(
    ("clients", "share", "shown"),
    [(500, 0.9, "0.9"), (1000, 0.9, "0.9"), (1000, 0.8, "0.8"), (5000, 0.9, "0.9"), (5000, 2 / 3, "2/3")],
)
def test_the_pages_neighbours_are_the_codes(clients, share, shown):
    rule, helpers = Summed.Spec(threshold=share), clients // 20
    drawn = neighbours.neighbourhood(clients, rule.least(clients), helpers)
    honest = neighbours.honest(clients, helpers)
    assert f"| {clients:,} | {shown} | {drawn.size} | {drawn.quorum} | {helpers} | {honest:,} |" in LARGE


def recorded_sparse_costs() -> list[dict[str, Any]]:
    record = json.loads((ROOT / "benchmarks" / "results" / "secagg.json").read_text())
    found: list[dict[str, Any]] = record["sparse"]["sums"]
    return found


@pytest.mark.parametrize("k", [0, 1])
def test_the_pages_costs_of_many_clients_are_those_recorded(k):
    cost = recorded_sparse_costs()[k]
    agreed = Session(**cost["session"])
    assert agreed == sparse_session(agreed.clients, 10**5)
    client, up, down, server = (
        sum(cost[what].values()) for what in ("client_seconds", "bytes_up", "bytes_down", "server_seconds")
    )
    values = agreed.values * agreed.bits // 8
    costs = (f"{1e3 * client:.0f}", f"{values:,}", f"{up - values:,.0f}", f"{down:,.0f}", f"{server:.1f}")
    assert f"| {agreed.clients:,} | {agreed.neighbours} | {' | '.join(costs)} |" in LARGE
    if agreed.clients == 1000:
        assert f"{1e3 * client:.0f} ms of a client and {server:.1f} s of the server" in LARGE
        assert client < 0.5 and up - values + down < 250_000 and server < 60

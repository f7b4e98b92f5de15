"""Channels as subjects: what a server sees of one client in a secure sum, and in which order a shuffler hands on.

A masked vector must be even over all words, whatever is in it: under the pairs' masks alone (the server learns the
self-masks of all who stayed), and under the self-mask alone (it learns the pairs' masks of whoever seemed to be gone).
The sum of silos that share a noise must show the noise of all, also where a silo lies at the edge of the ring.
Behind a shuffler every report, or every bit, must be in any place equally often.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from sordino.audits.inspection import Subject
from sordino.audits.statistics import Sample
from sordino.audits.training import noise_law
from sordino.channels import secagg
from sordino.channels.secagg import Session, SumClient, SumServer, Words
from sordino.channels.shuffle import Granularity, Shuffled
from sordino.mechanisms import NoisySums
from sordino.mechanisms.laws import Atoms, EvenWords
from sordino.mechanisms.noise import discrete_gaussian
from sordino.randomness import Keystream, Purpose
from sordino.wire.messages import Plan

SUM_CLIENTS, SUM_VALUES, SUMS = 5, 2_000, 16
CROWD, BITS, ROUNDS = 16, 257, 400
MODELS = 2_000  #: rounds in which whole models are mixed

RING = 20  #: bits of the ring in which noise is shared

Member = Callable[[Session, int], SumClient]


# --- the secure sum ---------------------------------------------------------------------------------------------------


def secure_sum(member: Member = SumClient) -> list[Subject]:
    """Both views of a masked vector, and a sum of silos that share their noise."""
    views = (("under the pairs' masks", _less_self_mask), ("under its self-mask", _less_pair_masks))
    shape = SUMS * (SUM_CLIENTS - 1), SUM_VALUES
    return [
        *(Subject(f"secure sum, a vector {words}", shape, partial(_masked, member, less)) for words, less in views),
        shared_noise(),
    ]  # fmt: skip


def _in_ring(round: int) -> Session:
    return Session("audit", round, 0, "shared", SUM_VALUES, 0, 0, SUM_CLIENTS, SUM_CLIENTS - 1, modulus=RING)


def shared_noise(session: Callable[[int], Session] = _in_ring) -> Subject:
    """Sums of silos of which two lie at opposite edges of the ring: half of their reports wrap around."""
    noise = discrete_gaussian(9)
    mechanism, edge = NoisySums(1.0, RING, noise.sigma), np.zeros((SUM_CLIENTS, 1), np.int64)
    edge[0], edge[1] = 2 ** (RING - 1), -(2 ** (RING - 1))

    def draw(seed: int) -> Sample:
        totals = []
        for round in range(SUMS):
            agreed, stream = session(round), Keystream.simulation(seed, range(SUM_CLIENTS), round)
            rows, count = np.arange(SUM_CLIENTS), SUM_VALUES * noise.words_per_value
            own = mechanism.output(edge + noise.draw(stream.words(rows, Purpose.NOISE, 0, 0, count))).numbers()
            clients = {k: SumClient(agreed, k) for k in range(SUM_CLIENTS)}
            server = SumServer(agreed, clients)
            for step in secagg.STEPS:
                for k, request in server.requests(step).items():
                    server.receive(step, k, clients[k].answer(step, request, own[k] if step == "masked" else None))
            totals.append(server.total())
        return Sample(np.stack(totals), noise_law(noise, SUM_VALUES, SUM_CLIENTS))

    return Subject("secure sum, noise in shares", (SUMS, SUM_VALUES), draw)


def _masked(member: Member, less: Callable[[SumClient, Words], None], seed: int) -> Sample:
    """The masked vectors of all clients but the last, which follows from the others and the sum."""
    rows, bits = [], 0
    for round in range(SUMS):
        session = Session("audit", round, 0, "check", SUM_VALUES, -1000, 1000, SUM_CLIENTS, SUM_CLIENTS - 1)
        bits = session.bits
        clients = {k: member(session, k) for k in range(SUM_CLIENTS)}
        vectors = {k: _vector(k) for k in clients}
        for k, words in _sent(session, clients, vectors):
            if k < SUM_CLIENTS - 1:
                less(clients[k], words)
                rows.append(words & np.array(2**bits - 1, words.dtype))
    return Sample(np.stack(rows), EvenWords(np.zeros(SUM_VALUES, np.int64), 2**bits - 1))


def _vector(client: int) -> NDArray[np.int64]:
    """Zeros, ends, and numbers in between: the auditor's own."""
    return (np.arange(SUM_VALUES) % 5 - 2) * 500 * (client % 2)


def _sent(
    session: Session, clients: Mapping[int, SumClient], vectors: Mapping[int, NDArray[np.int64]]
) -> Iterator[tuple[int, Words]]:
    """The first three steps of a sum, and every client's masked vector as the server reads it."""
    server = SumServer(session, clients)
    for step in secagg.STEPS[:3]:
        for k, request in server.requests(step).items():
            answer = clients[k].answer(step, request, vectors[k] if step == "masked" else None)
            if step == "masked":
                body = answer[-session.vector_bytes :]
                yield k, secagg._unpacked(body, session)
            else:
                server.receive(step, k, answer)


def _less_self_mask(client: SumClient, words: Words) -> None:
    secagg._add_mask(words, secagg._derive(client._self_seed, b"self", client._context), -1)


def _less_pair_masks(client: SumClient, words: Words) -> None:
    for other, entry in client._roster.items():
        if other != client.client:
            secret = secagg._agree(client._mask_key, entry.mask)
            sign = -1 if other > client.client else +1
            secagg._add_mask(words, secagg._derive(secret, b"mask", client._context), sign)


# --- the shuffler -----------------------------------------------------------------------------------------------------


def shuffler(mixer: type[Shuffled] = Shuffled) -> list[Subject]:
    """Where one client's bits, or its whole report, come out."""
    return [
        Subject("shuffler, single values", (ROUNDS, BITS), partial(_behind, mixer, "parameter", (ROUNDS, BITS))),
        Subject("shuffler, whole models", (MODELS, 1), partial(_behind, mixer, "model", (MODELS, 1))),
    ]


def _behind(mixer: type[Shuffled], granularity: Granularity, shape: tuple[int, int], seed: int) -> Sample:
    """One client holds ones, the others zeros: in which report each of its first bits comes out."""
    rounds, seen = shape
    own = np.zeros((CROWD, max(seen, 8)), np.bool_)
    own[0] = True
    randomness = np.random.default_rng([seed, 3])
    channel = mixer(np.zeros(CROWD, np.intp), own.shape[1], [CROWD], granularity, randomness=randomness)
    found = [_passed(channel, own)[:, :seen].argmax(axis=0) for _ in range(rounds)]
    return Sample(np.stack(found), Atoms(np.full((CROWD, seen), 1 / CROWD)))


def _passed(channel: Shuffled, bits: NDArray[np.bool_]) -> NDArray[np.uint8]:
    """One round's reports, as the server gets them: rows in the order of the numbers that it sees."""
    packed = np.packbits(bits, axis=1, bitorder="little")

    def exchange(step: str, requests: Mapping[int, bytes]) -> Iterator[tuple[int, bytes]]:
        return ((client, packed[client].tobytes()) for client in requests)

    there = dict(channel.collect(exchange, Plan("audit", 1).encode(), range(len(bits))))
    bodies = np.frombuffer(b"".join(there[k] for k in sorted(there)), np.uint8).reshape(len(bits), -1)
    return np.unpackbits(bodies, axis=1, count=bits.shape[1], bitorder="little")

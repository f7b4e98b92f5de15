"""Which of 1,000 records a client of one record trained on: the one whose update is the nearest to its reports.

A client with one record computes what anybody can compute who knows that record. The attacker does so for every
candidate and compares, in units of the noise of each weight. What clipping takes off every report, and the noise, it
learns from reports on records of its own. This is the attacker for noise: it needs no picture, only a list of suspects.

Under a channel that mixes reports it takes them before they are mixed, as whoever breaks the channel does.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from sordino.audits.attack_options import AttackOptions
from sordino.audits.candidate_likelihood import HOW, nearest_part
from sordino.audits.finished_run import FinishedRun
from sordino.audits.reconstruction_game import RecordPool, Rows, leak_from_hits, unique_rows
from sordino.audits.server_view import Reporters, is_mixed, rounds_of
from sordino.learning.cohort import ClientData
from sordino.privacy.leaks import Leak, Variant
from sordino.randomness import another_seed

BEFORE_MIXING = "likeliest candidate, reports before they are mixed"
RECORDS, MANY_RECORDS = 64, 512  #: records that are attacked, quickly and thoroughly
ROUNDS, MANY_ROUNDS = 10, 30  #: rounds with reports that are put together
OWN = 64  #: reports of its own that the attacker learns from
VALUES = 2**26  #: of all candidates' updates: large models have fewer candidates

VARIANTS: tuple[Variant, ...] = ("bare", "run")

Float64s = NDArray[np.float64]


def attack(run: FinishedRun, client: int, asked: AttackOptions) -> Iterator[Leak]:
    """Give clients one of the candidates, drawn at random, and look for it."""
    pool = RecordPool(run.federation.dataset, asked.seed)
    learnt = min(OWN, len(pool) // 2)
    most = max(2, min(pool.candidates, len(pool) - learnt, VALUES // run.federation.layout.size))
    drawn = pool.draw(most + learnt)
    rows, own = drawn[:most], drawn[most:]
    count, rounds = (MANY_RECORDS, MANY_ROUNDS) if asked.thorough else (RECORDS, ROUNDS)
    chosen = np.random.default_rng([asked.seed, 6]).integers(0, most, count)
    reports = rounds_of(run, client, rounds)
    bare, noisy = (Updates(run, client, reports, pool, variant, asked) for variant in VARIANTS)
    known = bare.of(rows, 0)
    unique = unique_rows(known)[chosen]
    how = BEFORE_MIXING if is_mixed(run) else HOW
    for variant in asked.track(VARIANTS, "Comparing candidates"):
        began = time.perf_counter()
        if variant == "bare":
            guesses = nearest_part(known[chosen], known)
        else:
            errors = noisy.of(own, 1) - bare.of(own, 1)
            spread = errors.std(axis=0)
            scale = np.where(spread > 0, spread, 1.0)  # all others are 0 in every report, or no noise is added at all
            left = noisy.of(rows[chosen], 2) - errors.mean(axis=0)
            guesses = nearest_part(left / scale, known / scale)
        hits = (known[guesses] == known[chosen]).all(axis=1) & unique
        figures = {"records": 1.0, "rounds": float(len(reports)), "seconds": time.perf_counter() - began}
        yield leak_from_hits(run, client, variant, how, pool, hits, None, rows[chosen], figures, candidates=most)


class Updates:
    """How clients of one record move the model, as the mean over rounds."""

    def __init__(
        self,
        run: FinishedRun,
        client: int,
        rounds: Sequence[int],
        pool: RecordPool,
        variant: Variant,
        asked: AttackOptions,
    ) -> None:
        self._reporters = Reporters(run, variant, asked.device)
        self._client, self._rounds, self._pool, self._seed = client, rounds, pool, asked.seed

    def of(self, rows: Rows, draws: int) -> Float64s:
        """`[K, d]`: of clients that hold these records; other `draws` have other noise."""
        records = self._pool.records(rows)
        data = [ClientData(records.x[k : k + 1], records.y[k : k + 1]) for k in range(len(rows))]
        found = self._reporters.updates(self._client, data, self._rounds, another_seed(self._seed, draws))
        return np.asarray(found.double().numpy())


__all__ = ["attack"]

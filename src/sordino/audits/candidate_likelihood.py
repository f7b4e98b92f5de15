"""Which of 1,000 records is in a noisy sum whose other records are all known: the attacker that a proof is about.

A report of private-head is a sum over records of what each adds, plus noise of a known law. Who knows all records but
one takes what these add off the sum. What is left is what the unknown record adds, plus noise; the likeliest candidate
is the one that adds what is nearest to it. Reports of all rounds are put together.

All rounds are played with the model that the run began with: a server may send it again, and the proof covers that.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.audits.attack_options import AttackOptions
from sordino.audits.finished_run import FinishedRun
from sordino.audits.linear_decoder import decode_noisy
from sordino.audits.linear_heads import method_of
from sordino.audits.reconstruction_game import SHOWN, RecordPool, Rows, leak_from_hits, unique_rows
from sordino.audits.server_view import rounds_of
from sordino.learning.cohort import ClientData
from sordino.methods.interface import Bench, Cohort
from sordino.privacy.leaks import Leak, Variant
from sordino.randomness import Keystream, another_seed
from sordino.wire.messages import Plan

HOW = "likeliest candidate, all other records known"
RECORDS, MANY_RECORDS = 64, 512  #: records that are attacked, quickly and thoroughly
ROUNDS = 30  #: reports that a quick attack puts together
AT_ONCE = 2**23  #: values computed at a time
VARIANTS: tuple[Variant, ...] = ("bare", "run")

Float64s = NDArray[np.float64]


def attack(
    run: FinishedRun, asked: AttackOptions, variants: Sequence[Variant] = VARIANTS, shown: Rows | None = None
) -> tuple[Leak, ...]:
    """Put one of the candidates, drawn at random, beside records that are known, and look for it.

    Pictures are of the records `shown`, or of the first that were looked for.
    """
    client = run.group_of(asked.client).clients[0] if asked.client is None else asked.client
    run.releases(client)  # refuses clients that took no part
    pool = RecordPool(run.federation.dataset, asked.seed)
    rows = pool.draw(pool.candidates)  # the same for all: what they add is computed once
    count = MANY_RECORDS if asked.thorough else RECORDS
    own = np.random.default_rng([asked.seed, 4]).integers(0, len(rows), count)
    shown = rows[own[:SHOWN]] if shown is None else shown
    gradients = len(rounds_of(run, client, run.rounds)) - (method_of(run).budgeting.moments is not None)
    rounds = gradients if asked.thorough else min(ROUNDS, gradients)
    known = SumsLessKnown(run, client, pool.records(rows), asked.seed)
    unique, found = unique_rows(known.parts), []
    for variant in asked.track(variants, "Comparing candidates"):
        began, noisy = time.perf_counter(), rounds if variant == "run" else 0
        guesses = nearest_part(known.left(own, noisy), known.parts)
        hits = (known.parts[guesses] == known.parts[own]).all(axis=1) & unique[own]
        pictures = _pictures(known, pool, rows, shown, noisy)
        figures = {
            "rounds": float(rounds), "clients": float(known.shares), "seconds": time.perf_counter() - began
        }  # fmt: skip
        found.append(leak_from_hits(run, client, variant, HOW, pool, hits, pictures, shown, figures, seen=known.shares))
    return tuple(found)


def _pictures(known: SumsLessKnown, pool: RecordPool, rows: Rows, shown: Rows, rounds: int) -> Tensor:
    """What a linear decoder makes of sums with the records `shown` in them: it learns from all other candidates."""
    others = ~np.isin(rows, shown)
    sums = replace(known, candidates=pool.records(shown), seed=another_seed(known.seed, 1))  # other noise than before
    decoded = decode_noisy(
        torch.from_numpy(known.parts[others]), pool.pictures(rows[others]).flatten(1),
        torch.from_numpy(sums.left(np.arange(len(shown)), rounds)), known.variance(rounds),
    )  # fmt: skip
    return decoded.reshape(len(shown), *pool.pixels.shape).clamp(0, 1).float()


def nearest_part(left: Float64s, parts: Float64s) -> Rows:
    """`[K]`: the candidate whose part `[M, v]` is the nearest to what is left `[K, v]`, the likeliest under noise."""
    return np.asarray((2 * left @ parts.T - np.square(parts).sum(axis=1)).argmax(axis=1))


@dataclass(frozen=True, eq=False)
class SumsLessKnown:
    """Sums of gradients with one unknown record in them, once all that known ones add is taken off."""

    run: FinishedRun
    client: int
    candidates: ClientData
    seed: int

    @property
    def shares(self) -> int:
        """Silos whose noises are in a sum."""
        return method_of(self.run).budgeting.shares

    @cached_property
    def _plan(self) -> Plan:
        """Of the first round that sums gradients, with nothing learnt."""
        method = method_of(self.run)
        early = replace(method.init(), round=int(method.budgeting.moments is not None))
        return method.plan(early, self.run.recipe.name)

    @cached_property
    def parts(self) -> Float64s:
        """`[M, values]`: what each candidate adds."""
        method, data, bench = method_of(self.run), self.candidates, Bench()
        group, step = method.class_of(self.client), max(1, AT_ONCE // method.stage(self._plan).values)
        pieces = [ClientData(data.x[k : k + step], data.y[k : k + step]) for k in range(0, len(data), step)]
        each = [method.parts(self._plan, group, piece, bench).double() for piece in pieces]
        return np.asarray(torch.cat(each).numpy())

    def variance(self, rounds: int) -> float:
        """Of the noise in each value of the mean over so many rounds."""
        part = method_of(self.run).stage(self._plan)
        return part.slack(self.shares).sigma ** 2 / rounds if rounds else 0.0

    def left(self, own: Rows, rounds: int) -> Float64s:
        """`[K, values]`: the mean over rounds of what is left of sums with these candidates; bare if 0."""
        if not rounds:
            return self.parts[own]
        step = max(1, AT_ONCE // (self.shares * self.parts.shape[1]))
        return np.concatenate([self._left(own[k : k + step], rounds, k) for k in range(0, len(own), step)])

    def _left(self, own: Sequence[int] | Rows, rounds: int, first: int) -> Float64s:
        method, shares, bench = method_of(self.run), self.shares, Bench()
        part = method.stage(self._plan)
        x, y = self.candidates.x, self.candidates.y
        silos: list[ClientData | None] = []
        for trial, one in enumerate(own):
            silos += [ClientData(x[one : one + 1], y[one : one + 1], key=trial), *[None] * (shares - 1)]
        cohort = Cohort((self.client,) * len(silos), tuple(silos), ({},) * len(silos), (0,) * len(silos))
        numbers, total = first * shares + np.arange(len(silos)), np.zeros((len(own), part.values))
        for round in range(1, rounds + 1):
            draw = lambda who, round=round: Keystream.simulation(self.seed, numbers[: len(who)], round)  # noqa: E731
            bodies = method.report(self._plan, cohort, draw, bench).bodies
            sent = part.mechanism.decode(bodies, part.values).numbers().astype(np.int64)
            total += part.mechanism.wrapped(sent.reshape(len(own), shares, -1).sum(axis=1))
        return total / rounds


__all__ = ["SumsLessKnown", "attack", "nearest_part"]

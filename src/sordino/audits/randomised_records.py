"""Distinguishing tests of LDPFL's randomised records: one record's features against another's.

The guarantee is about the randomised record, which never leaves its client as such: the server sees networks that were
computed from it, and no more than that. The attack sees the record itself. What it shows is a bound for what the
theorem speaks of; an attack that sees networks only may show less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.audits import run_draws
from sordino.audits.findings import AuditOptions, Findings, answers, checked
from sordino.audits.finished_run import FinishedRun, View, figures, once, promise
from sordino.mechanisms import BitString, PrivUnitG, Sphere
from sordino.mechanisms.cases import Case, Sampler, Scores
from sordino.mechanisms.output import BitOutput, IntegerOutput
from sordino.methods.chamikara_ldpfl import Ldpfl
from sordino.methods.interface import DATASET
from sordino.methods.randomised_records import RECORDS, JointRecords, RandomisedRecords
from sordino.privacy.guarantee import SERVER, Adjacency
from sordino.randomness import Keystream

Features = NDArray[np.float32]

BEYOND = np.float32(2.0**24)  #: a feature that every code clips to its end
VALUES = 2**26  #: values drawn from each of the two worlds, at most
AT_ONCE = 2**21  #: values randomised at a time

SEEN = "the randomised record itself, which the theorem is about (the server sees networks computed from it)"


def audit(run: FinishedRun, asked: AuditOptions) -> Findings:
    """One record of one client."""
    method = run.federation.method
    assert isinstance(method, Ldpfl)
    group = run.group_of(asked.client)
    client = group.clients[0] if asked.client is None else asked.client
    run.releases(client, 0)
    question = _question(run, method.records, client)
    others = group.releases[1:]
    left_out = [f"{release.what}: they are used as they are, so nothing bounds what they tell" for release, _ in others]
    return checked(Findings(group, answers([question], asked), tuple(left_out)), run_draws.records(run, client), asked)


def _question(run: FinishedRun, records: RandomisedRecords, client: int) -> tuple[Case, View]:
    view = SERVER, Adjacency.RECORD_REPLACE
    stated = run.stated(run.group_of(client))[view]
    claim = stated.claimed
    delta = max(run.federation.delta, claim.delta if claim is not None else 0.0)
    alone = records.releases("audit", DATASET, client, 1)[:1]  # one record, its features, whatever the extractor
    row = replace(figures(once(alone), delta)[view], claimed=claim)
    values, sampler, attack = _sampler(run, records, client)
    unit = f"one randomised record, {values:,} {'values' if isinstance(records, JointRecords) else 'bits'}"
    promised = promise(row, _named(run), unit, f"client {client}: {attack}; seen: {SEEN}")
    return Case.of(promised, sampler, max(1000, VALUES // values)), view


def _named(run: FinishedRun) -> str:
    method: Any = run.recipe.method
    return str(method.mechanism.name)


def _sampler(run: FinishedRun, records: RandomisedRecords, client: int) -> tuple[int, Sampler, str]:
    """How many values a randomised record has, its draws in both worlds, and the pair in words."""
    method: Any = run.recipe.method
    if isinstance(records, JointRecords):
        north = np.eye(1, records.shape[0], dtype=np.float32)
        values = len(run.federation.dataset.classes) * records.shape[0]
        score = _joint_score(records, north, client, len(run.federation.dataset.classes))
        return values, _draws(records, client, north, -north, values, score), "opposite features, the same label"
    bits = records.shape[0]
    features = bits // (method.encoding.whole + method.encoding.fraction + 1)
    end = -BEYOND if method.encoding.reading == "text" else BEYOND  # with a sign bit, negative features set that too
    zeros, ends = np.zeros((1, features), np.float32), np.full((1, features), end, np.float32)
    score = _bit_score(method.mechanism, records.strengths[client], bits)
    words = "every feature at the end of its code, all bits one, against every feature zero"
    return bits, _draws(records, client, ends, zeros, bits, score), words


def _draws(
    records: RandomisedRecords,
    client: int,
    first: Features,
    second: Features,
    values: int,
    score: Callable[[NDArray[Any]], Scores],
) -> Sampler:
    def sample(world: bool, trials: int, seed: int) -> Scores:
        found, each = [], max(1, AT_ONCE // values)
        for start in range(0, trials, each):
            n = min(each, trials - start)
            own = Keystream.simulation(seed, [start], int(world))
            features = np.repeat(first if world else second, n, axis=0)
            found.append(score(np.asarray(records.randomise(features, np.zeros(n, np.int64), client, own)[RECORDS])))
        return np.concatenate(found)

    return sample


def _bit_score(spec: Any, epsilon: float | None, bits: int) -> Callable[[NDArray[Any]], Scores]:
    mechanism = spec.randomizer(epsilon, BitString(bits))
    if mechanism is None:
        return lambda packed: BitOutput(packed, bits).bits().sum(axis=1, dtype=np.float64)
    by_bit = mechanism.likelihood_ratio(np.ones(bits), np.zeros(bits))
    return lambda packed: np.asarray(by_bit(BitOutput(packed, bits)).sum(axis=1))


def _joint_score(
    records: JointRecords, features: Features, client: int, classes: int
) -> Callable[[NDArray[Any]], Scores]:
    epsilon = records.strengths[client]
    assert epsilon is not None
    mechanism = PrivUnitG(epsilon, Sphere(math.sqrt(1 - 1 / classes)))
    direction = records.directions(features, np.zeros(1, np.int64))[0]
    in_caps, limits = mechanism.likelihood_ratio(direction, -direction), mechanism.limits(direction.size, 1)
    return lambda array: in_caps(IntegerOutput(np.rint(array / mechanism.step()).astype(np.int64), *limits))[:, 0]

"""Distinguishing tests of LDPFL's randomised records: one record's features against another's.

The guarantee is about the randomised record, which never leaves its client as such: the server sees networks that were
computed from it, and no more than that. The attack sees the record itself. What it shows is a bound for what the
theorem speaks of; an attack that sees networks only may show less.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sordino.audits.findings import AuditOptions, Findings, answers, checked
from sordino.audits.finished_run import MOST_ROWS, FinishedRun, View, promise, rows_for
from sordino.audits.inspection import Subject
from sordino.audits.mechanisms import exact_law
from sordino.audits.statistics import Sample
from sordino.mechanisms import BitString, Mechanism, PrivUnitG, Sphere
from sordino.mechanisms.arrays import Float32s, Numbers
from sordino.mechanisms.cases import Case, Scores
from sordino.mechanisms.output import BitOutput, IntegerOutput, Output
from sordino.methods.chamikara_ldpfl import Ldpfl
from sordino.methods.interface import DATASET
from sordino.methods.randomised_records import RECORDS, JointRecords, RandomisedRecords
from sordino.privacy.guarantee import SERVER, Adjacency
from sordino.randomness import Keystream

Features = Float32s

BEYOND = np.float32(2.0**24)  #: a feature that every code clips to its end
VALUES = 2**26  #: values drawn from each of the two worlds, at most
AT_ONCE = 2**21  #: values randomised at a time
JOINT_ROWS = 2_000  #: records whose features and label are randomised together

SEEN = "the randomised record itself, which the theorem is about (the server sees networks computed from it)"


@dataclass(frozen=True, eq=False)
class Attack:
    """One client's record as an attack sees it: two inputs as different as can be, and what randomises them."""

    unit: str
    values: int  #: of a randomised record
    mechanism: Mechanism | None  #: None where records are used as they are
    features: tuple[Features, Features]  #: `[1, r]` each
    inputs: tuple[Numbers, Numbers]  #: what the mechanism is given for them
    words: str  #: the pair, in words
    output: Callable[[Numbers], Output]  #: what was made of records -> the mechanism's output
    most_rows: int  #: draws that are checked

    def scores(self, made: Numbers) -> Scores:
        """How much each randomised record speaks for the first input."""
        output = self.output(made)
        if self.mechanism is None:
            return np.asarray(output.numbers().sum(axis=1, dtype=np.float64))
        return np.asarray(self.mechanism.likelihood_ratio(*self.inputs)(output).sum(axis=1))


def audit(run: FinishedRun, asked: AuditOptions) -> Findings:
    """One record of one client."""
    method = run.federation.method
    assert isinstance(method, Ldpfl)
    group = run.group_of(asked.client)
    client = group.clients[0] if asked.client is None else asked.client
    run.releases(client, 0)
    attack = _attack(run, method.records, client)
    others = group.releases[1:]
    left_out = [f"{release.what}: they are used as they are, so nothing bounds what they tell" for release, _ in others]
    found = Findings(group, answers([_case(run, method.records, client, attack)], asked), tuple(left_out))
    return checked(found, _subjects(method.records, client, attack), asked)


def _attack(run: FinishedRun, records: RandomisedRecords, client: int) -> Attack:
    spec, epsilon, (size, *_) = run.recipe.method, records.strengths[client], records.shape
    if isinstance(records, JointRecords):
        assert epsilon is not None
        mechanism = PrivUnitG(epsilon, Sphere(math.sqrt(1 - 1 / len(run.federation.dataset.classes))))
        north = np.eye(1, size, dtype=np.float32)
        direction = records.directions(north, np.zeros(1, np.int64))[0]
        step, limits = mechanism.step(), mechanism.limits(direction.size, 1)
        return Attack(
            "values", direction.size, mechanism, (north, -north), (direction, -direction),
            "opposite features, the same label",
            lambda made: IntegerOutput(np.rint(made / step).astype(np.int64), *limits), JOINT_ROWS,
        )  # fmt: skip
    features = size // (spec.encoding.whole + spec.encoding.fraction + 1)
    end = -BEYOND if spec.encoding.reading == "text" else BEYOND  # with a sign bit, negative features set that too
    ends = np.full((1, features), end, np.float32)
    return Attack(
        "bits", size, spec.mechanism.randomizer(epsilon, BitString(size)), (ends, np.zeros_like(ends)),
        (np.ones(size), np.zeros(size)),
        "every feature at the end of its code, all bits one, against every feature zero",
        lambda made: BitOutput(made, size), MOST_ROWS,
    )  # fmt: skip


def _case(run: FinishedRun, records: RandomisedRecords, client: int, attack: Attack) -> tuple[Case, View]:
    view = SERVER, Adjacency.RECORD_REPLACE
    alone = records.releases("audit", DATASET, client, 1)[:1]  # one record, its features, whatever the extractor
    row = run.row(client, view, alone)
    unit = f"one randomised record, {attack.values:,} {attack.unit}"
    name, what = str(run.recipe.method.mechanism.name), f"client {client}: {attack.words}; seen: {SEEN}"

    def sample(world: bool, trials: int, seed: int) -> Scores:
        found, each = [], max(1, AT_ONCE // attack.values)
        for start in range(0, trials, each):
            features = np.repeat(attack.features[0 if world else 1], min(each, trials - start), axis=0)
            made = _randomised(records, features, client, Keystream.simulation(seed, [start], int(world)))
            found.append(attack.scores(made))
        return np.concatenate(found)

    return Case.of(promise(row, name, unit, what), sample, max(1000, VALUES // attack.values)), view


def _subjects(records: RandomisedRecords, client: int, attack: Attack) -> list[Subject]:
    """Randomised records of one client, all with the features of the attack's second input, and one label."""
    mechanism = attack.mechanism
    if mechanism is None:
        return []
    shape = min(rows_for(attack.values), attack.most_rows), attack.values
    law = exact_law(mechanism, attack.inputs[1])

    def draw(seed: int) -> Sample:
        features = np.repeat(attack.features[1], shape[0], axis=0)
        made = _randomised(records, features, client, Keystream.simulation(seed, [client], 0))
        return Sample(attack.output(made).numbers(), law)

    return [Subject(f"{mechanism.name}: randomised records of client {client}", shape, draw)]


def _randomised(records: RandomisedRecords, features: Features, client: int, randomness: Keystream) -> Numbers:
    return np.asarray(records.randomise(features, np.zeros(len(features), np.int64), client, randomness)[RECORDS])

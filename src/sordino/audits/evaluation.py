"""Private evaluation as a subject: the noise of released counts, and how far one record moves them before it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sordino.audits.inspection import Subject
from sordino.audits.statistics import Check, Sample
from sordino.audits.training import noise_law
from sordino.learning.alone import Alone
from sordino.learning.evaluation import answers_alone
from sordino.learning.models import cross_entropy
from sordino.learning.tasks import CLASSES
from sordino.mechanisms.noisy_counts import NoisyCounts
from sordino.methods.private_evaluation import Tallying
from sordino.privacy.guarantee import Adjacency, GaussianLoss
from sordino.randomness import Keystream

ROUNDS = 4_000  #: evaluations whose noise is looked at
NAMES = ("a", "b", "c")
FEATURES, RECORDS = 6, 12


def private_evaluation(rounds: int = ROUNDS) -> list[Subject]:
    """The counts of a confusion matrix and of the loss, as a client releases them."""
    tallying = Tallying(("f1", "loss"), CLASSES, NAMES, 4.0)
    counts = NoisyCounts.within(tallying.cells, tallying.amounts, epsilon=1.0, delta=1e-6, times=4)

    def draw(seed: int) -> Sample:
        exact = np.full(counts.values, 7 * counts.weight, np.int64)
        bodies = [counts.encode(counts.randomize(exact, Keystream.simulation(seed, [0], k))) for k in range(rounds)]
        found = np.stack([counts.decode(body) for body in bodies]) - exact
        return Sample(found, noise_law(counts.noise, counts.values), frozenset(map(len, bodies)))

    exact = (lambda: keeps(counts), lambda: neighbours(tallying, counts))
    return [Subject("private evaluation, noise", (rounds, counts.values), draw, exact)]


def keeps(counts: NoisyCounts) -> Check:
    """Whether noise and weight are those of the guarantee."""
    wrong = []
    for adjacency, cells in ((Adjacency.RECORD_ADD_REMOVE, 1), (Adjacency.RECORD_REPLACE, 2)):
        loss = counts.guarantee(adjacency).loss
        mu = counts.weight * np.sqrt(cells + counts.amounts) / counts.noise.slack().sigma
        if not isinstance(loss, GaussianLoss) or loss.mu < mu * (1 - 1e-12):
            wrong.append(f"{adjacency}: {loss}, and a record moves the counts by {mu:.6g} of their noise")
    sees = "noise or weight that are not those of the guarantee, by any amount"
    return Check("guarantee", 0.0 if wrong else 1.0, sees, "; ".join(wrong))


def neighbours(tallying: Tallying, counts: NoisyCounts) -> Check:
    """Whether each record moves one cell by its weight and amounts by no more, beside others as it does alone."""
    rng = np.random.default_rng(1)
    x = torch.from_numpy(rng.normal(size=(RECORDS, FEATURES)).astype(np.float32))
    y = torch.from_numpy(rng.integers(0, len(NAMES), RECORDS))
    model, wrong = nn.Linear(FEATURES, len(NAMES)), []
    parameters = rng.normal(size=(FEATURES + 1) * len(NAMES)).astype(np.float32)
    answer = answers_alone(model, parameters, None)

    def sums(rows: Sequence[int]) -> NDArray[np.int64]:
        chosen = torch.tensor(rows, dtype=torch.int64)
        return tallying.sums(answer, x[chosen], y[chosen], counts.weight, cross_entropy, Alone(model))

    everybody = list(range(RECORDS))
    for row in everybody:
        alone, moved = sums([row]), sums(everybody) - sums([k for k in everybody if k != row])
        cells, amounts = moved[: counts.cells], moved[counts.cells :]
        fits = sorted(cells.tolist())[-2:] == [0, counts.weight] and (cells >= 0).all()
        if not (fits and (amounts >= 0).all() and (amounts <= counts.weight).all()):
            wrong.append(f"record {row} moves the counts by {moved.tolist()}")
        elif moved.tolist() != alone.tolist():
            wrong.append(f"record {row} counts differently beside others")
    sees = "one record that moves more than its own counts, or differently beside others, by a single grid step"
    return Check("neighbours", 0.0 if wrong else 1.0, sees, "; ".join(wrong[:3]))


__all__ = ["private_evaluation"]

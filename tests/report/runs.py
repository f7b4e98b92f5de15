"""Synthetic runs on disk, as an engine would leave them: the raw material of this folder's tests."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from sordino.privacy.guarantee import SERVER, Adjacency, Claim, Guarantee, Infinite, RandomizedBit, Release, shuffled
from sordino.privacy.statement import Statement
from sordino.report.folder import RunFolder
from sordino.report.records import ClientBudget, Result, RoundRecord, Simulation
from tests.privacy.statements import statement_of

CLASSES = tuple(map(str, range(10)))
TERMS = "proven, against server, adjacency client, delta 0"
RECIPE = """name = "{name}"
summary = "Two-point randomised updates of a logistic model on handwritten digits"
seed = {seed}

[data]
source = "digits"

[clients]
epsilon = 4.0
"""


def bits(epsilon: float) -> int:
    """The threshold of one randomised bit of this epsilon."""
    return math.ceil(2**32 / (math.exp(epsilon) + 1))


def upload(number: int, epsilon: float, values: int = 650, clients: int = 20) -> Release:
    """One upload of bits, against the server and behind a shuffler, with a paper's claim."""
    t_min = bits(epsilon)
    guarantees = (
        Guarantee(SERVER, Adjacency.CLIENT, RandomizedBit(t_min, values), "sum over the upload's bits"),
        Guarantee(SERVER, Adjacency.COORDINATE, RandomizedBit(t_min, 1), "probabilities of one bit"),
        Guarantee(shuffled(clients), Adjacency.CLIENT, RandomizedBit(t_min, values), "a trusted shuffler"),
    )
    return Release(f"r{number}", "digits", "update", guarantees, Claim(epsilon, 0.0, "Eq. 2 <per weight>"))


def stated(epsilons: Sequence[float] = (4.0,), rounds: int = 1) -> Statement:
    """The statement of clients with these epsilons."""
    releases = {f"client {k}": [upload(n, epsilon) for n in range(rounds)] for k, epsilon in enumerate(epsilons)}
    return statement_of(releases, title="Privacy statement of a run")


def unprotected() -> Statement:
    """The statement of a run that sends everything as it is."""
    guarantee = Guarantee(SERVER, Adjacency.CLIENT, Infinite("updates leave as they are"), "none")
    return statement_of([Release("r0", "digits", "update", (guarantee,))])


def a_round(number: int, accuracy: float | None = 0.5, clients: int = 20) -> RoundRecord:
    """One round in which everyone reports."""
    return RoundRecord(
        number,
        accuracy=accuracy,
        loss=None if accuracy is None else 2.3 * (1 - accuracy) + 0.1,
        asked=clients,
        reported=clients,
        seconds=0.25,
        bytes_up=82 * clients,
        bytes_down=2600 * clients,
        spent_max=2.0 * number,
        spent_median=1.8 * number,
        simulation=Simulation(
            train_loss=2.3 * 0.9**number, clipped=0.3 / number, update_norm=0.4 * 0.97**number, noise_norm=1.7
        ),
    )


def learning_curve(rounds: int, best: float = 0.9, seed: int = 1) -> list[float]:
    noise = np.random.default_rng(seed).normal(0, 0.008, rounds)
    return [
        float(np.clip(0.1 + (best - 0.1) * (1 - math.exp(-6 * k / rounds)) + noise[k - 1], 0, 1))
        for k in range(1, rounds + 1)
    ]


def confusion(accuracy: float, examples: int = 30, classes: int = 10) -> tuple[tuple[int, ...], ...]:
    right = round(accuracy * examples)
    table = np.full((classes, classes), 0)
    for k in range(classes):
        table[k, k] = right
        for j in range(examples - right):
            table[k, (k + 1 + j * (k % 3 + 1) % (classes - 1)) % classes] += 1
    return tuple(map(tuple, table.tolist()))


def label_counts(clients: int, beta: float = 0.5, classes: int = 10, seed: int = 1) -> tuple[tuple[int, ...], ...]:
    generator = np.random.default_rng(seed)
    shares = generator.dirichlet([beta] * classes, clients)
    sizes = generator.integers(20, 120, clients)
    return tuple(tuple(int(v) for v in generator.multinomial(n, p)) for n, p in zip(sizes, shares, strict=True))


def a_result(rounds: Sequence[RoundRecord], *, seed: int = 1, clients: int = 20, **changes: object) -> Result:
    last = rounds[-1].accuracy if rounds else None
    result = Result(
        "two-point-digits",
        seed,
        f"all {len(rounds)} rounds are done",
        len(rounds),
        accuracy=last,
        loss=0.42,
        confusion=confusion(last or 0.1),
        classes=CLASSES,
        label_counts=label_counts(clients),
        budgets=tuple(
            ClientBudget(k, 4.0, 120.0, 60.0 + 60.0 * ((7 * k) % 20) / 19, len(rounds), k % 3) for k in range(clients)
        ),
        budget_terms=TERMS,
        parameters=650,
        clients=clients,
        seconds=sum(r.seconds for r in rounds),
        bytes_up=sum(r.bytes_up for r in rounds),
        bytes_down=sum(r.bytes_down for r in rounds),
        preflight=(
            "Noise in the averaged update is 4.2 times as long as the update itself.",
            "One round takes 0.25 s.",
        ),
        recipe_fingerprint="5f1c9a",
        settings={"seed": seed, "name": "two-point-digits", "clients.epsilon": 4.0, "training.optimizer.lr": 0.1},
    )
    return replace(result, **changes)  # type: ignore[arg-type]


def leave(path: Path, rounds: Sequence[RoundRecord], result: Result | None, statement: Statement | None) -> RunFolder:
    """A run's folder with all of this in it."""
    folder = RunFolder.create(path, RECIPE.format(name="two-point-digits", seed=1))
    for record in rounds:
        folder.append_round(record)
    if statement is not None:
        folder.write_statement(statement)
    if result is not None:
        folder.write_result(result)
    return folder


def ordinary(path: Path, *, rounds: int = 30, seed: int = 1, best: float = 0.9, **changes: object) -> RunFolder:
    """A run of twenty clients that went well."""
    records = [a_round(k, accuracy) for k, accuracy in enumerate(learning_curve(rounds, best, seed), 1)]
    return leave(path, records, a_result(records, seed=seed, **changes), stated())  # type: ignore[arg-type]

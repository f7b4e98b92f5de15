"""Which classes a client holds: its label distribution, from the last layer of its reports.

The gradient of cross-entropy in the bias of class c is the mean of p_c - [label is c] over the records: negative where
the class is more common than the model expects. The rows of the last layer's weights move alike. How far a whole local
training moves them follows from the recipe, which is public. So the attacker plays clients itself, with records of the
public test set in known shares of classes, lets them report on the same plan through the same mechanism, and fits the
shares to the last layers of these reports by ridge regression; the penalty is the best by leave-one-out. Predictions
from several rounds are averaged, weighted by how well each round predicts. From which predicted share on a class is
said to be there is chosen on the attacker's own clients, too.

Differential privacy of one record does not hide this: label shares are about all records of a client.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from sordino.audits.attack_interface import RunAttack
from sordino.audits.attack_options import AttackOptions
from sordino.audits.finished_run import FinishedRun
from sordino.audits.server_view import (
    HeardRound,
    Member,
    Reporters,
    check_simulated,
    hear,
    reports_models,
    shows_reports,
)
from sordino.errors import InvalidInput
from sordino.learning.cohort import ClientData
from sordino.learning.models import ParameterLayout
from sordino.privacy.leaks import Leak, Share, Variant

Floats = NDArray[np.float64]
Columns = tuple[NDArray[np.int64], NDArray[np.int64]]  #: biases [C] and weights [C, h] in the flat vector; [0] if none

ROUNDS, THOROUGH_ROUNDS = 3, 20  #: whose reports are used
PLAYED, MOST_PLAYED = 200, 1_000  #: clients that the attacker plays; at most
MOST_CLIENTS = 100  #: that are attacked
AT_ONCE = 2**26  #: values of records that are held at a time
WORK = 1e9  #: records that the attacker trains on in a round, times parameters, at most
EVENNESS = (0.05, 0.3, 1.0, 10.0)  #: concentrations of label shares: from one class to all alike
PENALTIES = np.logspace(-6, 4, 21)


def infer_labels(run: FinishedRun, asked: AttackOptions) -> tuple[Leak, ...]:
    """Say which classes each client holds; nothing where the server sees no single reports of trained models.

    The share is that of all pairs of a client and a class of which the presence was told right.
    """
    check_simulated(run)
    classes = len(run.federation.dataset.classes)
    columns = last_layer(run.federation.layout, classes)
    if not reports_models(run) or not shows_reports(run) or columns is None:
        return ()
    heard = hear(run, asked, THOROUGH_ROUNDS if asked.thorough else ROUNDS)
    clients = _clients(run, heard, asked.client)
    if all(len(np.unique(run.federation.dataset.train.y[run.federation.parts[k]])) == classes for k in clients):
        return ()  # there is nothing to guess
    return tuple(_attack(run, heard, clients, columns, variant, asked) for variant in Reporters.variants(run))


class LabelInference(RunAttack):
    """Infer which classes a client's records have."""

    name = "labels"
    needs = "single reports of models with a last layer, by clients that lack some class"

    def carry_out(self, run: FinishedRun, asked: AttackOptions) -> tuple[Leak, ...]:
        """See `infer_labels`."""
        return infer_labels(run, asked)

    def deed(self, leak: Leak) -> str:
        """Pairs of a client and a class are guessed."""
        return "guesses whether a client has a class, the attack gets right"


def last_layer(layout: ParameterLayout, classes: int) -> Columns | None:
    """Where the biases and the weights of the last layer lie; None where it has not one row for each class."""
    ends = np.cumsum(layout.sizes)
    biases, weights = np.empty(0, np.int64), np.empty((0, 0), np.int64)
    for shape, size, end in list(zip(layout.shapes, layout.sizes, ends, strict=True))[-2:]:
        own = np.arange(end - size, end)
        if shape == (classes,):
            biases = own
        elif len(shape) == 2 and shape[0] == classes:
            weights = own.reshape(shape)
    return (biases, weights) if biases.size or weights.size else None


def features(changes: NDArray[np.float32], columns: Columns) -> Floats:
    """`[K, f]`: the change of each class's bias and of the sum of its weights, and its part of all that rose and fell.

    Without noise no bias rises but those of classes that are there: of one class alone, that part is exactly 1.
    """
    biases, weights = columns
    parts = [changes[:, biases].astype(np.float64)] if biases.size else []
    parts += [changes[:, weights].sum(axis=2, dtype=np.float64)] if weights.size else []
    sides = (np.maximum(sign * parts[0], 0.0) for sign in (1, -1))
    parts += [side / np.maximum(side.sum(axis=1, keepdims=True), 1e-300) for side in sides]
    return np.concatenate(parts, axis=1)


def _clients(run: FinishedRun, heard: Sequence[HeardRound], wanted: int | None) -> list[int]:
    there = sorted({client for one in heard for client, body in one.bodies.items() if body})
    own = [client for client in there if len(run.federation.parts[client])]
    if wanted is None:
        return own[:MOST_CLIENTS]
    if wanted not in own:
        raise InvalidInput(f"client {wanted} reported in none of the {len(heard)} rounds that are attacked")
    return [wanted]


def _attack(
    run: FinishedRun,
    heard: Sequence[HeardRound],
    clients: Sequence[int],
    columns: Columns,
    variant: Variant,
    asked: AttackOptions,
) -> Leak:
    began = time.monotonic()
    reporters, population = Reporters(run, variant, asked.device), run.federation.population
    played, shares = _played(run, clients, asked)
    predicted = np.zeros((len(clients), shares.shape[1]))
    expected, weights = np.zeros_like(shares), np.zeros(len(clients))
    total = 0.0
    for number, one in enumerate(asked.track(heard, "Reading last layers")):
        there = [k for k, client in enumerate(clients) if one.bodies.get(client)]
        own = np.concatenate(
            [
                features(
                    reporters.answers(one.plan, some, asked.seed, first=number * MOST_PLAYED + first).changes, columns
                )
                for first, some in _in_batches(run, played)
            ]
        )
        fitted = Ridge.fit(own, shares)
        if variant == "run":
            seen = [reporters.heard(one, clients[k]) for k in there]
        else:
            members = [(clients[k], population.data(clients[k], torch.device("cpu"))) for k in there]
            seen = list(reporters.answers(one.plan, members, run.recipe.seed).changes) if there else []
        weight = 1 / max(fitted.error, 1e-12)
        if seen:
            predicted[there] += weight * fitted.predict(features(np.stack(seen), columns))
        weights[there] += weight
        expected += weight * fitted.held_out
        total += weight
    found = _proper(predicted / weights[:, None])
    truth = run.federation.label_counts[list(clients)].astype(np.float64)
    truth /= truth.sum(axis=1, keepdims=True)
    threshold = _threshold(_proper(expected / total), shares)
    right = (found > threshold) == (truth > 0)
    rate = float((truth > 0).mean())
    return Leak(
        "labels", variant, "last layer", Share(int(right.sum()), right.size), max(rate, 1 - rate),
        figures={
            "mean_absolute_error": float(np.abs(found - truth).mean()),
            "correlation": _correlation(found, truth),
            "clients": len(clients), "rounds": len(heard), "played": len(played),
            "seconds": time.monotonic() - began,
        },
        seed=asked.seed,
    )  # fmt: skip


Played = tuple[int, NDArray[np.int64]]  #: whose place it takes, and the positions of its public examples


def _in_batches(run: FinishedRun, played: Sequence[Played]) -> Iterator[tuple[int, list[Member]]]:
    """The records of a few clients that the attacker plays at a time, with the number of the first of them."""
    public, normalise = run.federation.dataset.test, run.federation.dataset.normalisation.apply
    each = max(1, AT_ONCE // max(1, played[0][1].size * int(np.prod(public.x.shape[1:]))))
    for first in range(0, len(played), each):
        yield (
            first,
            [
                (place, ClientData(torch.from_numpy(normalise(public.x[rows])), torch.from_numpy(public.y[rows])))
                for place, rows in played[first : first + each]
            ],
        )


def _played(run: FinishedRun, clients: Sequence[int], asked: AttackOptions) -> tuple[list[Played], Floats]:
    """Clients of the attacker's own, made of public test examples, and their label shares `[P, C]`.

    They stand in the places of clients with a report, so that they have the same mechanisms, and are as large as these
    are on average.
    """
    federation = run.federation
    public, classes = federation.dataset.test, len(federation.dataset.classes)
    rng = np.random.default_rng([asked.seed, classes, len(public)])
    size = max(1, round(float(np.mean([len(federation.parts[client]) for client in clients]))))
    each = federation.method.training.effort([size])[1] * federation.layout.size
    most = MOST_PLAYED if asked.thorough else max(40, min(PLAYED, int(WORK / each)))
    by_class = [np.flatnonzero(public.y == c) for c in range(classes)]
    known = np.array([len(own) > 0 for own in by_class])
    played: list[Played] = []
    shares = np.zeros((most, classes))
    for k in range(most):
        wanted = rng.dirichlet(np.full(classes, EVENNESS[k % len(EVENNESS)])) * known
        counts = rng.multinomial(size, wanted / wanted.sum() if wanted.sum() else known / known.sum())
        rows = np.concatenate([rng.choice(by_class[c], n) for c, n in enumerate(counts) if n])
        played.append((clients[k % len(clients)], rows))
        shares[k] = counts / size
    return played, shares


@dataclass(frozen=True, eq=False)
class Ridge:
    """Linear predictions of label shares, with the penalty that predicts best what was left out."""

    centre: Floats
    scale: Floats
    mean: Floats
    slopes: Floats  #: [f, C]
    held_out: Floats  #: [P, C] each row as the others predict it
    error: float  #: mean square of what is left

    @classmethod
    def fit(cls, x: Floats, y: Floats) -> Ridge:
        """`x [P, f]` and `y [P, C]`."""
        centre, scale, mean = x.mean(0), x.std(0) + 1e-12, y.mean(0)
        left, values, right = np.linalg.svd((x - centre) / scale, full_matrices=False)
        best: Ridge | None = None
        for penalty in PENALTIES * len(x):
            shrink = values**2 / (values**2 + penalty)
            hat = (left**2 * shrink).sum(1) + 1 / len(x)  # leverage, the mean included
            residual = (y - mean - left @ (shrink[:, None] * (left.T @ (y - mean)))) / (1 - hat)[:, None]
            error = float((residual**2).mean())
            if best is None or error < best.error:
                slopes = right.T @ ((shrink / np.maximum(values, 1e-12))[:, None] * (left.T @ (y - mean)))
                best = cls(centre, scale, mean, slopes, y - residual, error)
        assert best is not None
        return best

    def predict(self, x: Floats) -> Floats:
        """`[n, C]`."""
        return np.asarray(self.mean + (x - self.centre) / self.scale @ self.slopes)


def _proper(shares: Floats) -> Floats:
    """Not negative, adding up to 1."""
    positive = np.maximum(shares, 0.0) + 1e-12
    return np.asarray(positive / positive.sum(axis=1, keepdims=True))


def _threshold(expected: Floats, shares: Floats) -> float:
    """From which predicted share on a class is said to be there: most often right of the attacker's own clients."""
    order = np.argsort(expected, axis=None)
    values, there = expected.reshape(-1)[order], (shares > 0).reshape(-1)[order]
    right = np.concatenate([[there.sum()], there.sum() - np.cumsum(there) + np.cumsum(~there)])  # below it: k values
    cut = int(np.argmax(right))
    if cut in (0, len(values)):
        return -1.0 if cut == 0 else 1.0
    return float((values[cut - 1] + values[cut]) / 2)


def _correlation(found: Floats, truth: Floats) -> float:
    both = np.corrcoef(found.reshape(-1), truth.reshape(-1)) if found.std() and truth.std() else np.zeros((2, 2))
    return float(both[0, 1])


__all__ = ["LabelInference", "infer_labels"]

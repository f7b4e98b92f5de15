"""The game that reconstructions are judged by: which of 1,000 records is the one that was attacked."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.audits import likeness
from sordino.audits.finished_run import FinishedRun
from sordino.audits.gradient_matching import Pixels
from sordino.errors import InvalidInput
from sordino.learning.cohort import ClientData
from sordino.learning.examples import Dataset
from sordino.privacy.guarantee import MODEL_READER, Adjacency
from sordino.privacy.leaks import Leak, Share, Variant, identification_bound, tail_bound
from sordino.privacy.statement import Row

CANDIDATES = 1000  #: the attacked record and 999 others, or as many as the data set has
FEWEST = 100  #: training records of others from which these alone are candidates
SHOWN = 8  #: originals and pictures that are kept for reports

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class RecordPool:
    """All records of a data set, by number: the training examples first, then the test set's."""

    dataset: Dataset
    seed: int
    #: records that are no candidates beside an attacked one, such as others of its client: a picture may be of them
    known: Rows = field(default_factory=lambda: np.zeros(0, np.int64))

    def __len__(self) -> int:
        return len(self.dataset.train) + len(self.dataset.test)

    @property
    def candidates(self) -> int:
        """How many records a reconstruction is compared with, the right one included."""
        return min(CANDIDATES, len(self) - len(self.known) + 1) if len(self.known) else min(CANDIDATES, len(self))

    @property
    def chance(self) -> float:
        """The share that guessing identifies."""
        return 1 / self.candidates

    @cached_property
    def pixels(self) -> Pixels:
        """How pictures of values from 0 to 1 become what models see."""
        test = (self.dataset.test if len(self.dataset.test) else self.dataset.train).x  # the test set is public
        if test.dtype == np.uint8:
            ends = np.zeros(test.shape[1:], np.float32), np.full(test.shape[1:], test.max(), np.float32)
        elif test.ndim == 4:
            ends = np.full(test.shape[1:], test.min()), np.full(test.shape[1:], test.max())
        else:  # every column of a table has its own range
            ends = test.min(axis=0), np.maximum(test.max(axis=0), test.min(axis=0) + 1e-6)
        low, high = (torch.from_numpy(self.dataset.normalisation.apply(end[None])[0]) for end in ends)
        return Pixels(tuple(test.shape[1:]), low, high)

    def raw(self, rows: Rows) -> NDArray[np.generic]:
        """The records as they are stored, `[n, ...]`."""
        train, test = self.dataset.train, self.dataset.test
        found = np.empty((len(rows), *self.dataset.shape), train.x.dtype)
        early = rows < len(train)
        found[early], found[~early] = train.x[rows[early]], test.x[rows[~early] - len(train)]
        return found

    def records(self, rows: Rows) -> ClientData:
        """Normalised records and their labels."""
        labels = np.concatenate([self.dataset.train.y, self.dataset.test.y])[rows]
        x = self.dataset.normalisation.apply(self.raw(rows))  # type: ignore[arg-type]
        return ClientData(torch.from_numpy(x), torch.from_numpy(labels))

    def pictures(self, rows: Rows) -> Tensor:
        """The records as pictures."""
        return self.pixels.pictures(self.records(rows).x)

    def draw(self, count: int) -> Rows:
        """Different records to attack, all equally likely."""
        return np.random.default_rng([self.seed, 1]).permutation(len(self))[:count]

    def without_public(self, most: int) -> tuple[RecordPool, Rows]:
        """Pictures that the attacker has anyway, at most half of those left, and the pool of all others.

        No candidate is among them: a decoder knows by heart what it was trained on.
        """
        free = np.setdiff1d(np.arange(len(self)), self.known)
        chosen = np.random.default_rng([self.seed, 5]).permutation(free)[: min(most, len(free) // 2)]
        return replace(self, known=np.concatenate([self.known, chosen])), chosen

    def others(self, target: int) -> Rows:
        """The other candidates beside a record: none that is known, and no two records that are the same.

        Who saw a double among candidates would know that it is not the record that is attacked.
        """
        order = np.random.default_rng([self.seed, 2, target]).permutation(len(self))
        some = order[~np.isin(order, self.known) & (order != target)][: 2 * self.candidates]
        values = self.raw(np.array([target, *some])).reshape(len(some) + 1, -1)
        first = np.sort(np.unique(values, axis=0, return_index=True)[1])[1:]  # 0 is the record itself
        if not first.size:
            raise InvalidInput("no record differs from the one that is attacked, so there is nothing to identify")
        return np.asarray(some[first - 1][: self.candidates - 1])

    def identified(self, found: Sequence[Tensor], targets: Rows) -> NDArray[np.bool_]:
        """Whether each target is the candidate nearest to any of its pictures, `[P, ...]` for each of them."""
        hits = []
        for pictures, target in zip(found, targets, strict=True):
            rows = np.array([target, *self.others(int(target))])
            near = likeness.nearness(pictures.cpu(), self.pictures(rows)).amax(0)
            hits.append(bool(near[0] > near[1:].max()))  # ties are lost
        return np.array(hits, np.bool_)

    def best(self, found: Sequence[Tensor], targets: Rows) -> Tensor:
        """Of the pictures `[P, ...]` for each target, the one most like it: what a strip shows."""
        originals = self.pictures(targets)
        return torch.stack([
            pictures.cpu()[likeness.nearness(pictures.cpu(), own.unsqueeze(0))[:, 0].argmax()]
            for pictures, own in zip(found, originals, strict=True)
        ])  # fmt: skip


def pool_beside(run: FinishedRun, seed: int, own: Rows) -> tuple[RecordPool, bool]:
    """Candidates beside clients' own records, and whether each was equally likely to be in a record's place.

    So it is with training records alone, where these were handed out at random: no client holds a record of the test
    set, and elsewhere a client's other records tell what it may hold.
    """
    dataset = run.federation.dataset
    tested = len(dataset.train) + np.arange(len(dataset.test))
    if getattr(run.recipe.split, "kind", "") == "iid" and len(dataset.train) - len(own) >= FEWEST:
        return RecordPool(dataset, seed, np.concatenate([own, tested])), True
    return RecordPool(dataset, seed, own), False


def unique_rows(values: NDArray[np.generic]) -> NDArray[np.bool_]:
    """`[M]`: which of the rows `[M, ...]` no other row equals."""
    rows = [row.tobytes() for row in values]
    counts = Counter(rows)
    return np.array([counts[row] == 1 for row in rows])


# --- what is proven, and what was found -------------------------------------------------------------------------------


def proven_bound(run: FinishedRun, client: int, candidates: int, seen: int = 1) -> float | None:
    """The largest share of records that the run's statement allows to identify; None where it proves nothing.

    The attacker sees the mean of `seen` reports, or single ones. What holds against a server that sees every report
    holds against it; so does what holds for sums of at most so many.
    """
    bounds = []
    for row in run.stated(run.group_of(client)).values():
        if row.adversary != MODEL_READER and (row.adversary.parties or 1) <= seen:
            bounds += [identification_bound(epsilon, delta, candidates) for epsilon, delta in _exchanged(row)]
    return min(bounds, default=None)


def _exchanged(row: Row) -> list[tuple[float, float]]:
    """The (epsilon, delta) that a row proves for one record in the place of another."""
    finite = [(row.proven, row.delta)] * math.isfinite(row.proven) + [(row.pure, 0.0)] * math.isfinite(row.pure)
    match row.adjacency:
        case Adjacency.CLIENT | Adjacency.RECORD_REPLACE:
            return finite
        case Adjacency.RECORD_ADD_REMOVE:  # one leaves, another comes
            return [(2 * epsilon, (1 + math.exp(min(epsilon, 700.0))) * delta) for epsilon, delta in finite]
    return []


def leak_of(
    run: FinishedRun,
    client: int,
    variant: Variant,
    how: str,
    pool: RecordPool,
    found: Sequence[Tensor],
    targets: Rows,
    figures: Mapping[str, float],
    *,
    seen: int = 1,
    bounded: bool = True,
    together: int = 1,
) -> Leak:
    """What pictures `[P, ...]` for each target are worth, beside what is proven about the run's own reports."""
    hits = pool.identified(found, targets)
    fewest = 1 + min(len(pool.others(int(target))) for target in targets)
    return leak_from_hits(run, client, variant, how, pool, hits, pool.best(found, targets), targets, figures,
                          seen=seen, bounded=bounded, together=together, candidates=fewest)  # fmt: skip


def leak_from_hits(
    run: FinishedRun,
    client: int,
    variant: Variant,
    how: str,
    pool: RecordPool,
    hits: NDArray[np.bool_],
    pictures: Tensor | None,
    targets: Rows,
    figures: Mapping[str, float],
    *,
    seen: int = 1,
    bounded: bool = True,
    together: int = 1,
    candidates: int | None = None,
) -> Leak:
    """The same where it is known which targets were identified; `pictures [K, ...]` of these are shown, if given.

    At most `together` of the targets were looked for in the same reports. Candidates are the pool's if no number is
    given.
    """
    candidates = pool.candidates if candidates is None else candidates
    like, shown = {"candidates": float(candidates)}, dict[str, tuple[str, ...]]()
    if pictures is not None and likeness.is_picture(pool.pixels.shape):
        originals = pool.pictures(targets)
        like["psnr"] = likeness.mean_figure(likeness.psnr(pictures, originals))
        like["ssim"] = likeness.mean_figure(likeness.ssim(pictures, originals))
        both = {"originals": originals, "pictures": pictures}
        shown = {name: tuple(likeness.png(own) for own in each[:SHOWN]) for name, each in both.items()}
    bound = proven_bound(run, client, candidates, seen) if variant == "run" and bounded else None
    share = Share(int(hits.sum()), len(hits))
    return Leak(
        "reconstruction", variant, how, share, 1 / candidates, bound,
        {**like, **figures}, seed=pool.seed,
        originals=shown.get("originals", ()), pictures=shown.get("pictures", ()),
        likelihood=None if bound is None or together == 1 else tail_bound(share, bound, together),
    )  # fmt: skip


__all__ = [
    "CANDIDATES",
    "SHOWN",
    "RecordPool",
    "Rows",
    "leak_from_hits",
    "leak_of",
    "pool_beside",
    "proven_bound",
    "unique_rows",
]

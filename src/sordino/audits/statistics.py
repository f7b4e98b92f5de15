"""The checks: each takes normal scores `[n, d]` (n draws of d values) and returns a p-value that counts all its looks.

If the program draws what it should, scores are independent standard normal numbers (see `laws`), so that no p-value
rests on an approximation. Every check names the smallest fault that it finds in 99 of 100 audits.

    coordinate by coordinate    mean and spread of every column, and how often each of a few outputs came
    row by row                  the same for every client, round or step
    all values together         mean, spread, and the whole distribution with its tails
    correlation                 all pairs of rows and of columns, lags, sums under many signs
    support                     outputs that are impossible for a neighbour; lattices; lengths of reports
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special
from scipy.stats import binom, chi2

from sordino.mechanisms.arrays import Float64s, Numbers
from sordino.mechanisms.laws import Law, Whole

FAMILY = 1e-6  #: an unbroken program fails a whole audit once in a million
SUBJECTS, CHECKS = 40, 25  #: so many of each share that level, at least
POWER = 2.3263  #: standard deviations for 99 of 100
ROWS = 128  #: rows of which every pair is compared
COLUMNS = 1024  #: columns of which every pair is compared; where there are more, lags and neighbours are
LATTICE = (2, 3, 5, 7)  #: spacings of lattices that are looked for
LATTICE_VALUES = 2**18  #: values looked at for each of them
SIGNS = 16  #: sums of a row under random signs
TAILS = (1e-5, 1e-4, 1e-3, 1e-2)  #: shares at both ends
BINS = 32
ALIKE = 64  #: different probabilities of outputs whose counts are added up


@dataclass(frozen=True, eq=False)
class Sample:
    """n draws of d values from the real code, and the law that they must have."""

    outputs: Numbers
    law: Law
    lengths: frozenset[int] = frozenset()  #: of encoded reports, in bytes
    strides: tuple[int, ...] = ()  #: how many rows on the next client, round or step is


@dataclass(frozen=True)
class Check:
    """What a check found: the chance of something as odd in an unbroken program, and the smallest fault it sees."""

    check: str
    p: float
    sees: str
    where: str = ""


def look(draws: Sample, seed: int, level: float) -> Iterator[Check]:
    """All checks that apply to these draws, one after the other."""
    yield support(draws)
    yield from lattices(draws, seed, level)
    yield from atoms(draws, level)
    rng = np.random.default_rng([seed, 1])
    z = draws.law.scores(draws.outputs, rng)
    squares = np.square(z)
    yield from _lines(z, squares, 0, "coordinate", level)
    yield from _lines(z, squares, 1, "row", level)
    yield from _together(z, squares, draws.law.direction(), level)
    yield from row_pairs(z, level)
    yield from column_pairs(z, level)
    yield from _lags(z, draws.strides, level)
    yield sums_of_rows(z, rng, level)


# --- support ----------------------------------------------------------------------------------------------------------


def support(draws: Sample) -> Check:
    """Outputs that no draw, or no neighbouring input, can give; and reports that tell by their length."""
    sees = "a single output that is impossible for a neighbour; one report of another length"
    if len(draws.lengths) > 1:
        return Check("support", 0.0, sees, f"reports of {min(draws.lengths)} to {max(draws.lengths)} bytes")
    bad = ~draws.law.possible(draws.outputs)
    count = int(np.count_nonzero(bad))
    where = "" if not count else f"{count} outputs, the first in coordinate {int(np.argmax(bad.any(axis=0)))}"
    return Check("support", 0.0 if count else 1.0, sees, where)


def lattices(draws: Sample, seed: int, level: float) -> Iterator[Check]:
    """Whether the noise lies on a coarser lattice than it should: its place within blocks of 2, 3, 5 and 7 steps."""
    rows = max(1, LATTICE_VALUES // draws.outputs.shape[1])
    outputs, law = draws.outputs[:rows], draws.law
    if not isinstance(law, Whole) or not law.possible(outputs).all():
        return
    noise = outputs.astype(np.int64) - law.centre
    rng = np.random.default_rng([seed, 2])
    below, mass = law.interval(outputs)
    worst = Check("lattice", 1.0, "")
    for spacing in LATTICE:
        start = law.centre + noise - noise % spacing
        first, last = law.interval(start)[0], law.interval(start + spacing)[0]
        u = (below - first + rng.random(outputs.shape) * mass) / np.maximum(last - first, 1e-300)
        counts = np.bincount(np.clip((u * spacing).astype(np.int64), 0, spacing - 1).ravel(), minlength=spacing)
        p, _ = _binomials(counts, outputs.size, np.full(spacing, 1 / spacing))
        if p <= worst.p:
            worst = Check("lattice", p, "", f"multiples of {spacing}")
    share = _rate_seen(outputs.size, 1 / LATTICE[0], level / sum(LATTICE))
    sees = f"noise on a lattice of 2, 3, 5 or 7 steps in {share:.2g} of the values"
    yield Check("lattice", min(1.0, worst.p * len(LATTICE)), sees, worst.where)


# --- coordinate by coordinate -----------------------------------------------------------------------------------------


def atoms(draws: Sample, level: float) -> Iterator[Check]:
    """How often each of a few outputs came: in every column, and in all columns where it is equally likely."""
    probabilities = draws.law.atoms()
    if probabilities is None:
        return
    n, d = draws.outputs.shape
    counts = np.stack([np.count_nonzero(draws.outputs == value, axis=0) for value in range(len(probabilities))])
    p, which = _binomials(counts, n, probabilities)
    typical = float(np.median(probabilities[-1]))
    seen = _rate_seen(n, typical, level / counts.size)
    sees = f"one coordinate of {d:,} with an output's probability {typical:.3g} off by {seen:.2g}"
    value, column = divmod(which, d)
    yield Check("frequencies by coordinate", p, sees, f"output {value} of coordinate {column}")
    distinct = np.unique(probabilities.round(9))
    found = [_alike(counts, n, probabilities, each) for each in distinct] if distinct.size <= ALIKE else []
    if found:
        p, each, _ = min(found)
        seen = min(_rate_seen(trials, each, level / len(found)) / each for _, each, trials in found)
        sees = f"all outputs of one probability off by {100 * seen:.2g} % of it"
        yield Check("frequencies of all", min(1.0, p * len(found)), sees, f"outputs of probability {each:.4g}")


def _alike(counts: NDArray[np.int64], n: int, probabilities: Float64s, each: float) -> tuple[float, float, int]:
    """The p-value for all outputs of one probability in columns that have equally many such, and how many they are."""
    here = np.abs(probabilities - each) < 1e-9
    several = here.sum(axis=0)
    columns = several == several.max()
    if several.max() == len(here):  # all are equally likely: how often the last one came
        here[:-1] = False
    total, trials = int((counts * here)[:, columns].sum()), n * int(columns.sum())
    rate = float((probabilities * here)[:, columns].sum() / columns.sum())
    return _binomials(np.array([total]), trials, np.array([min(rate, 1.0)]))[0], rate, trials


def _lines(z: Float64s, squares: Float64s, axis: int, name: str, level: float) -> Iterator[Check]:
    """Mean and spread of every column (axis 0) or row (axis 1)."""
    n, d = z.shape[axis], z.shape[1 - axis]
    if n < 2:
        return
    shift = (_far(level / d) + POWER) / math.sqrt(n)
    p, which = _farthest(z.sum(axis=axis) / math.sqrt(n))
    yield Check(f"mean by {name}", p, f"one {name} of {d:,} shifted by {shift:.2g} of its noise", f"{name} {which}")
    p, which = _chi_squares(squares.sum(axis=axis), n)
    factor = math.sqrt(chi2.ppf(level / (2 * d), n) / chi2.ppf(0.99, n))
    what = f"one {name} of {d:,} at {factor:.3g} of its noise" if factor > 0.01 else f"one {name} of {d:,} bare"
    yield Check(f"noise by {name}", p, what, f"{name} {which}")


# --- all values together ----------------------------------------------------------------------------------------------


def _together(z: Float64s, squares: Float64s, direction: Float64s, level: float) -> Iterator[Check]:
    count = z.size
    columns = z.sum(axis=0)
    signs = [np.ones(z.shape[1]), *([direction] if direction.any() else [])]
    p, which = _farthest(np.array([float(columns @ s) / math.sqrt(len(z) * float(s @ s)) for s in signs]))
    bias = (_far(level / 2) + POWER) / math.sqrt(len(z) * float(signs[-1] @ signs[-1]))
    towards = ("upwards or downwards", "towards or away from the input")[which]
    yield Check("mean of all", p, f"a bias of {bias:.2g} of the noise, in one direction or along the input", towards)
    p, _ = _chi_squares(np.array([squares.sum()]), count)
    factor = math.sqrt(chi2.ppf(level / 2, count) / chi2.ppf(0.99, count))
    yield Check("noise of all", p, f"all noise at {factor:.5g} of what it should be")
    even = np.arange(1, BINS) / BINS
    edges = np.sort(np.concatenate([TAILS, even, 1 - np.array(TAILS)]))
    widths = np.diff(np.concatenate([[0.0], edges, [1.0]]))
    counts = np.bincount(np.searchsorted(special.ndtri(edges), z.ravel()), minlength=widths.size)
    p, which = _binomials(counts, count, widths)
    share = _rate_seen(count, 1 / BINS, level / widths.size)
    where = f"shares {np.concatenate([[0.0], edges])[which]:.3g} to {np.concatenate([edges, [1.0]])[which]:.3g}"
    yield Check("distribution", p, f"{share:.2g} of all values bare, or noise cut off beyond 1 in 10,000", where)


# --- correlation ------------------------------------------------------------------------------------------------------


def row_pairs(z: Float64s, level: float) -> Iterator[Check]:
    """All pairs among rows from both halves: clients, rounds or steps that share noise."""
    half = len(z) // 2
    rows = np.unique(np.concatenate([np.arange(min(half, ROWS // 2)), half + np.arange(min(len(z) - half, ROWS // 2))]))
    p, where = _gram(z[rows])
    pairs = rows.size * (rows.size - 1) // 2
    share = (_far(level / max(1, pairs)) + POWER) / math.sqrt(z.shape[1])
    if pairs and share < 1:
        sees = f"two of {rows.size} rows that share {share:.2g} of their noise"
        yield Check("pairs of rows", p, sees, f"rows {rows[where[0]]} and {rows[where[1]]}")


def column_pairs(z: Float64s, level: float) -> Iterator[Check]:
    """All pairs of columns, or each column and those a few places on where there are too many."""
    n, d = z.shape
    if d <= COLUMNS:
        p, where = _gram(np.ascontiguousarray(z.T))
        looks = d * (d - 1) // 2
    else:
        p, looks, where = 1.0, 0, (0, 0)
        for lag in (1, 2, 3, 4, 8):
            t = np.einsum("ij,ij->j", z[:, :-lag], z[:, lag:]) / np.linalg.norm(z[:, lag:], axis=0)
            found, which = _farthest(t)
            looks += t.size
            if found / t.size < p:
                p, where = found / t.size, (which, which + lag)
        p = min(1.0, p * looks)
    share = (_far(level / max(1, looks)) + POWER) / math.sqrt(n)
    if looks and share < 1:
        sees = f"two of {d:,} coordinates that share {share:.2g} of their noise"
        yield Check("pairs of coordinates", p, sees, f"coordinates {where[0]} and {where[1]}")


def _lags(z: Float64s, strides: tuple[int, ...], level: float) -> Iterator[Check]:
    """Every value against the one some places on: along rows and along columns, all together.

    Blocks of `lag` values are paired with the next block, so that no value is in two products: the sum of products over
    the length of the second factors is then exactly normal.
    """
    for axis, name in ((1, "coordinates"), (0, "rows")):
        if z.shape[axis] < 2:
            continue
        worst, looks, fewest = (1.0, ""), 0, z.size
        powers = {2**k for k in range(z.shape[axis].bit_length())}
        for lag in sorted(powers | set(strides)) if axis == 0 else sorted(powers):
            for offset in (0, lag):
                t, count = _lagged(z if axis == 1 else z.T, lag, offset)
                looks, fewest = looks + (count > 0), min(fewest, count or fewest)
                worst = min(worst, (2 * float(special.ndtr(-abs(t))), f"{lag} {name} on"))
        share = (_far(level / max(1, looks)) + POWER) / math.sqrt(fewest)
        sees = f"values that share {share:.2g} of their noise with those some {name} on"
        if share < 1:
            yield Check(f"lags of {name}", min(1.0, worst[0] * looks), sees, worst[1])


def _lagged(z: Float64s, lag: int, offset: int) -> tuple[float, int]:
    blocks = (z.shape[1] - offset) // (2 * lag)
    if not blocks:
        return 0.0, 0
    paired = z[:, offset : offset + 2 * lag * blocks].reshape(len(z), blocks, 2, lag)
    first, second = paired[:, :, 0], paired[:, :, 1]
    length = math.sqrt(float(np.einsum("ijk,ijk->", second, second)))
    return float(np.einsum("ijk,ijk->", first, second)) / max(length, 1e-300), first.size


def sums_of_rows(z: Float64s, rng: np.random.Generator, level: float) -> Check:
    """The sum of every row under many patterns of signs: a part that all or many values share makes it too large."""
    n, d = z.shape
    signs = np.concatenate([np.ones((1, d)), np.where(np.arange(d) % 2, -1.0, 1.0)[None], _signs(rng, SIGNS, d)])
    sums = z @ signs.T / math.sqrt(d)
    p, which = _chi_squares(np.square(sums).sum(axis=0), n)
    part = (chi2.isf(level / len(signs), n) / chi2.ppf(0.01, n) - 1) / d
    sees = f"a common part of {math.sqrt(part):.2g} of the noise in all values of a row"
    return Check("sums of rows", p, sees, ("plain", "alternating")[which] if which < 2 else "random signs")


def _signs(rng: np.random.Generator, count: int, d: int) -> Float64s:
    return np.asarray(rng.integers(0, 2, (count, d)) * 2.0 - 1, np.float64)


# --- p-values ---------------------------------------------------------------------------------------------------------


def _gram(z: Float64s) -> tuple[float, tuple[int, int]]:
    """The least likely scalar product of two rows: over the second's length it is standard normal."""
    if len(z) < 2:
        return 1.0, (0, 0)
    lengths = np.maximum(np.linalg.norm(z, axis=1), 1e-300)
    t = np.triu(np.abs(z @ z.T) / lengths[None, :], 1)
    i, j = divmod(int(np.argmax(t)), len(z))
    looks = len(z) * (len(z) - 1) // 2
    return min(1.0, 2 * float(special.ndtr(-t[i, j])) * looks), (i, j)


def _farthest(t: Float64s) -> tuple[float, int]:
    """The least likely of standard normal numbers, and its place."""
    which = int(np.argmax(np.abs(t)))
    return min(1.0, 2 * float(special.ndtr(-abs(t[which]))) * t.size), which


def _chi_squares(sums: Float64s, n: int) -> tuple[float, int]:
    """The least likely of sums of n squares, on either side."""
    low, high = int(np.argmin(sums)), int(np.argmax(sums))
    sides = [(float(chi2.cdf(sums[low], n)), low), (float(chi2.sf(sums[high], n)), high)]
    p, which = min(sides)
    return min(1.0, 2 * p * sums.size), which


def _binomials(counts: NDArray[np.int64], n: int, probabilities: Float64s) -> tuple[float, int]:
    """The least likely of counts among n, on either side."""
    tails = np.minimum(binom.cdf(counts, n, probabilities), binom.sf(counts - 1, n, probabilities))
    which = int(np.argmin(tails))
    return min(1.0, 2 * float(tails.flat[which]) * tails.size), which


def _far(level: float) -> float:
    """How many standard deviations lie beyond a level on two sides."""
    return float(-special.ndtri(level / 2))


def _rate_seen(n: int, p: float, level: float) -> float:
    return (_far(level) + POWER) * math.sqrt(p * (1 - p) / n)

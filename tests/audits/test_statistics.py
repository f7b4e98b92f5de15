"""P-values are valid, and every check sees the smallest fault that it names."""

from __future__ import annotations

import re

import numpy as np
import pytest

from sordino.audits.inspection import Subject, inspect_one, level
from sordino.audits.statistics import CHECKS, FAMILY, SUBJECTS, Sample, look
from sordino.mechanisms.laws import Law, normal

LEVEL = level(0)


class Standard(Law):
    """Outputs that are normal numbers already."""

    def interval(self, outputs):
        raise NotImplementedError

    def possible(self, outputs):
        return np.isfinite(outputs)

    def scores(self, outputs, rng):
        return outputs.astype(np.float64)


def looks(z, each=LEVEL):
    return {one.check: one for one in look(Sample(z, Standard()), 1, each)}


def noise(n=2000, d=40, seed=0):
    return np.random.default_rng(seed).normal(size=(n, d))


def test_p_values_of_unbroken_draws_are_small_as_rarely_as_they_say():
    """400 sets of draws: of each check, p <= 0.05 in 20 on average; above 40 in one of 10^5 such tests."""
    small: dict[str, int] = {}
    for seed in range(400):
        for name, one in looks(noise(200, 12, seed), 0.05).items():
            small[name] = small.get(name, 0) + (one.p <= 0.05)
    assert len(small) == 12
    assert max(small.values()) <= 40


def test_the_level_is_shared_by_all_checks_of_an_audit():
    assert level(1) == level(SUBJECTS) == FAMILY / (SUBJECTS * CHECKS)
    assert level(10 * SUBJECTS) == pytest.approx(level(1) / 10)
    assert len(looks(noise())) + 5 <= CHECKS  # besides: guarantee, lattice, two of frequencies


def named(sees):
    """The last number of a check's smallest fault."""
    return float(re.findall(r"[0-9.]+(?:e-?[0-9]+)?", sees.replace(",", ""))[-1])


@pytest.mark.parametrize(
    ("check", "change"),
    [
        ("mean by coordinate", lambda z, s: _put(z, np.s_[:, 7], z[:, 7] + s)),
        ("noise by coordinate", lambda z, s: _put(z, np.s_[:, -1], z[:, -1] * s)),
        ("mean by row", lambda z, s: _put(z, np.s_[5], z[5] + s)),
        ("noise by row", lambda z, s: _put(z, np.s_[-1], z[-1] * s)),
        ("noise of all", lambda z, s: z * s),
        ("pairs of coordinates", lambda z, s: _put(z, np.s_[:, 9], _mix(z[:, 9], z[:, 30], s))),
        ("lags of coordinates", lambda z, s: _put(z, np.s_[:, 1::2], _mix(z[:, 1::2], z[:, ::2], s))),
        ("lags of rows", lambda z, s: _put(z, np.s_[1::2], _mix(z[1::2], z[::2], s))),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_check_sees_the_smallest_fault_that_it_names(check, change):
    """A fault of the size that is named is caught in 99 of 100: two misses in ten have a probability of 0.4 %."""
    caught = 0
    for seed in range(10):
        honest = looks(noise(seed=seed))
        assert all(one.p >= LEVEL for one in honest.values())
        broken = looks(change(noise(seed=seed), named(honest[check].sees)))
        caught += broken[check].p < LEVEL
    assert caught >= 9


def _put(z, where, values):
    z[where] = values
    return z


def _mix(own, other, share):
    return np.sqrt(1 - share**2) * own + share * other


def test_a_common_part_and_shared_rows_are_seen():
    z = noise()
    common = looks(np.sqrt(1 - 0.1**2) * z + 0.1 * z[:, :1])
    assert common["sums of rows"].p < LEVEL
    wide = noise(60, 400)
    wide[35] = wide[4]
    found = looks(wide)["pairs of rows"]
    assert (found.p < LEVEL, found.where) == (True, "rows 4 and 35")


def test_what_cannot_be_seen_is_not_claimed_to_be_looked_at():
    assert "pairs of rows" not in looks(noise(50, 8))
    assert "lags of coordinates" not in looks(noise(500, 1))


def test_a_subject_without_support_has_not_passed():
    honest = Subject("normal numbers", (2000, 40), lambda seed: Sample(noise(seed=seed), Standard()))
    found = inspect_one(honest, 1, LEVEL)
    assert found.passed
    assert found.sees.startswith("one coordinate of 40 at")
    holed = noise()
    holed[3, 7] = np.inf
    bad = inspect_one(
        Subject("holed", (2000, 40), lambda _: Sample(np.nan_to_num(holed, posinf=9.0), Holed())), 1, LEVEL
    )
    assert not bad.passed
    assert bad.failures[0].startswith("holed: support, 1 outputs, the first in coordinate 7")


class Holed(Standard):
    def possible(self, outputs):
        return outputs != 9.0


def test_scores_stay_finite_for_impossible_outputs():
    assert np.isfinite(normal(np.array([0.0, 1.0, 2.0]))).all()

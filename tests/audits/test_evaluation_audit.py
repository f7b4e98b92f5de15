"""The audit of private evaluation catches planted faults of its noise and of its counts."""

import numpy as np
import pytest

from sordino.audits.evaluation import RECORDS, private_evaluation
from sordino.audits.inspection import inspect_one, level
from sordino.mechanisms.noisy_counts import NoisyCounts
from sordino.methods.private_evaluation import Tallying

RANDOMIZE, SUMS = NoisyCounts.randomize, Tallying.sums


def halved(self, sums, randomness):
    return sums + (RANDOMIZE(self, sums, randomness) - sums) // 2


def bare(self, sums, randomness):
    found = RANDOMIZE(self, sums, randomness)
    found[4] = sums[4]
    return found


def one_noise(self, sums, randomness):
    return sums + (RANDOMIZE(self, sums, randomness) - sums)[0]


def twice(self, *given):
    return 2 * SUMS(self, *given)


def among_others(self, answer, x, y, *given):
    return SUMS(self, answer, x, y, *given) + len(y) // RECORDS  # a single step, where all records are there


def test_an_unbroken_evaluation_passes():
    """Once in a million seeds it would not."""
    (subject,) = private_evaluation(1000)
    found = inspect_one(subject, 3, level(0))
    assert found.passed, found.failures


@pytest.mark.parametrize(
    ("where", "name", "broken", "check"),
    [
        (NoisyCounts, "randomize", halved, None),
        (NoisyCounts, "randomize", bare, None),
        (NoisyCounts, "randomize", one_noise, None),
        (Tallying, "sums", twice, "neighbours"),
        (Tallying, "sums", among_others, "neighbours"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_a_planted_fault_is_caught(monkeypatch, where, name, broken, check):
    monkeypatch.setattr(where, name, broken)
    (subject,) = private_evaluation(1000)
    failed = {one.check for one in inspect_one(subject, 3, level(0)).failed}
    assert failed
    assert check is None or failed == {check}


def test_a_weight_beyond_the_guarantee_is_caught(monkeypatch):
    honest = NoisyCounts.guarantee
    monkeypatch.setattr(NoisyCounts, "guarantee", lambda self, a: honest(NoisyCounts(2, 1, self.weight - 1), a))
    (subject,) = private_evaluation(10)
    assert [one.p for one in (check() for check in subject.enumerated) if one.check == "guarantee"] == [0.0]


def test_the_noise_is_as_the_audit_takes_it_to_be():
    (subject,) = private_evaluation(50)
    assert np.abs(subject.draw(1).outputs).max() > 0

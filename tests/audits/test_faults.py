"""Every planted fault is caught by the check that is meant for it, and the unbroken programs pass all of them.

`python -m benchmarks.faults` does the same with a hundred seeds of each.
"""

from __future__ import annotations

import pytest

from sordino.audits import catalogue, training
from sordino.audits.faults import FAULTS, TRAINED_ROUNDS, attempt, by_address
from sordino.audits.inspection import inspect_one, level
from sordino.audits.mechanisms import subjects as mechanism_subjects
from sordino.mechanisms import mechanism_named

BY = {
    "noise halved": "noise of all",
    "noise x 0.9": "noise of all",
    "one coordinate at 0.9 of its noise": "noise by coordinate",
    "one coordinate in a hundred bare": "noise by coordinate",
    "one bit in a hundred bare": "frequencies by coordinate",
    "first coordinate bare": "noise by coordinate",
    "last of 65,601 coordinates bare": "noise by coordinate",
    "last of 65,601 bits bare": "frequencies by coordinate",
    "one value in a hundred bare, anywhere": "distribution",
    "noise cut off at 3 sigma": "distribution",
    "signs biased by 1 %": "mean of all",
    "a tenth of one noise in all values": "sums of rows",
    "noise on every eighth step": "lattice",
    "float lattice": "support",
    "zeros left out of reports": "support",
    "missing clip": "mean by coordinate",
    "wrong adjacency: add/remove for replace": "guarantee",
    "threshold off by 2 %": "frequencies of all",
    "some bits equal to those before": "pairs of coordinates",
    "odd bits as even ones": "frequencies by coordinate",
    "label never flipped": "frequencies by coordinate",
    "reused key: one noise for two clients": "pairs of rows",
    "reused noise: the same in two rounds": "pairs of rows",
    "half of the values with the other half's words": "lags of coordinates",
    "seeded noise in place of fresh keys": "pairs of rows",
    "DP-SGD: noise x 0.9": "noise of all",
    "DP-SGD: 1 % of coordinates bare": "noise by coordinate",
    "DP-SGD: one noise for all steps": "lags of rows",
    "DP-SGD: sampling rate x 1.5": "frequencies of all",
    "DP-SGD: one sample for all steps": "lags of rows",
    "DP-SGD: missing clip": "neighbours",
    "DP-SGD: sums rounded as floats": "neighbours",
    "share of the noise 1/h for 1/sqrt(h)": "noise of all",
    "no pairwise masks": "distribution",
    "self-mask missing": "distribution",
    "modulus before the secure sum": "support",
    "shuffler off: order kept": "frequencies by coordinate",
    "shuffler: one order for all rounds": "frequencies by coordinate",
    "DP-SGD: a sum beyond a limit replaced by zeros": "neighbours",
    "DP-SGD: sampling rate x 1.02": "sampling threshold",
    "two names of one row have two budgets": "guarantee",
    "DP-SGD: one record silences a silo": "neighbours",
    "one line decides the column of the class": "neighbours",
    "more classes than sums are exact for": "neighbours",
    "the Gaussian curve rounded to nearest": "guarantee",
    "records computed where they lie in memory": "neighbours",
}


def test_at_least_twenty_faults_are_planted_under_names_of_their_own():
    assert len(FAULTS) >= 20
    assert {fault.name for fault in FAULTS} == set(BY)
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_planted_fault_is_caught(fault):
    found = attempt(fault, seed=2)
    assert found.caught
    assert BY[fault.name] in {one.check for one in found.looks}


@pytest.mark.parametrize("seed", [3, 4, 5])
@pytest.mark.parametrize(
    "name", ["threshold off by 2 %", "one coordinate at 0.9 of its noise", "seeded noise in place "]
)
def test_faults_near_the_limit_are_caught_with_other_seeds(name, seed):
    (fault,) = (one for one in FAULTS if one.name.startswith(name))
    assert attempt(fault, seed).caught


def test_a_library_that_depends_on_addresses_passes_where_each_record_has_an_array_of_its_own():
    (own,) = by_address()
    assert inspect_one(own, 2, level(0)).passed


@pytest.mark.parametrize("name", [*catalogue.audited(), *catalogue.PROGRAMS])
def test_an_unbroken_program_passes(name, monkeypatch):
    """Keys of secure sums and of real clients are fresh, so that this fails once in a million times by chance."""
    monkeypatch.setitem(catalogue.PROGRAMS, "dp-sgd", lambda: training.dp_sgd(TRAINED_ROUNDS))
    programs = catalogue.PROGRAMS
    subjects = programs[name]() if name in programs else mechanism_subjects(mechanism_named(name), 1.0)
    found = [inspect_one(one, 7, level(0)) for one in subjects if one.shape[1] < 10_000]
    assert found
    for one in found:
        assert one.passed, one.failures

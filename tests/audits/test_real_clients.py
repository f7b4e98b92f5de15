"""Real clients' releases: every one has noise of its own, whoever releases and in whichever round."""

from __future__ import annotations

import numpy as np
import pytest

from sordino.audits.inspection import inspect_one, level
from sordino.audits.mechanisms import fresh_keys
from sordino.client.client import fresh
from sordino.randomness import Keystream


class Releases:
    """A client for every row, each asking the client's own source of randomness."""

    def __init__(self, clients, round, source):
        self._own = [source(round)([client]) for client in clients.tolist()]

    @property
    def clients(self):
        return len(self._own)

    def words(self, rows, purpose, tensor, first, count):
        alone = np.zeros(1, np.intp)
        return np.concatenate([self._own[row].words(alone, purpose, tensor, first, count) for row in rows])


def check(source):
    (subject,) = fresh_keys(lambda seed, clients, round: Releases(clients, round + 1, source))
    return inspect_one(subject, 1, level(0))


def test_the_keys_of_real_clients_pass():
    """Keys are the operating system's: this fails once in a million times by chance."""
    found = check(fresh)
    assert found.passed, found.failures


def test_a_key_that_follows_from_the_client_is_caught():
    seeded = check(lambda round: lambda clients: Keystream.simulation(7, clients, 0))
    assert {one.check for one in seeded.failed} >= {"pairs of rows", "lags of rows"}


@pytest.mark.parametrize("round", [0, 1])
def test_two_draws_of_one_client_differ(round):
    first, second = (fresh(round)([0]).words(np.zeros(1, np.intp), 1, 0, 0, 8) for _ in range(2))
    assert not np.array_equal(first, second)

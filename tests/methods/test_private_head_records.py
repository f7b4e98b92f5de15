"""An inexact extractor on a real client: one record at a time, so that no record changes what another adds."""

import numpy as np
import pytest
import torch

from sordino.client.client import Client
from sordino.learning.cohort import ClientData
from sordino.learning.stacked_model import LOOP, Execution
from sordino.methods.extractors import OrientedExtractor
from sordino.methods.interface import Bench
from sordino.privacy.guarantee import Infinite
from sordino.runs.federation import wire
from tests.client import people

ORIENTED = {"method.extractor": {"kind": "oriented", "cells": 4}}
LIMIT = 200


def method_and_data():
    federation = wire(people.method_recipe("private-head").with_(ORIENTED))
    x = torch.rand(7, 1, 8, 8, generator=torch.Generator().manual_seed(3))
    return federation.method, ClientData(x, torch.arange(7) % 10, None)


def test_a_real_client_computes_every_record_as_if_it_were_alone(monkeypatch):
    method, data = method_and_data()
    sizes, threads = [], []
    plain = OrientedExtractor.__call__

    def watched(self, x, kept):
        sizes.append(len(x))
        threads.append(torch.get_num_threads())
        return plain(self, x, kept)

    monkeypatch.setattr(OrientedExtractor, "__call__", watched)
    together = method._kept_units(data, LIMIT, Bench(LOOP))
    assert set(sizes) == {1} and set(threads) == {1}
    for k in range(7):
        alone = method._kept_units(ClientData(data.x[k : k + 1], data.y[k : k + 1], None), LIMIT, Bench(LOOP))
        assert torch.equal(alone[0], together[k])
    sizes.clear()
    method._kept_units(data, LIMIT, Bench(Execution()))
    assert sizes == [7], "a simulation computes many at a time"


FAILURES = (
    RuntimeError, SystemExit, GeneratorExit, MemoryError, RecursionError, torch.OutOfMemoryError, StopIteration,
    BaseException,
)  # fmt: skip


@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("execution", [LOOP, Execution()], ids=["alone", "together"])
def test_a_record_on_which_the_extractor_fails_adds_nothing_and_the_others_do(monkeypatch, failure, execution):
    method, data = method_and_data()
    whole = method._kept_units(data, LIMIT, Bench(LOOP))
    plain = OrientedExtractor.__call__

    def failing(self, x, kept):
        if any(torch.equal(one, data.x[2]) for one in x):
            raise failure("not this one")
        return plain(self, x, kept)

    monkeypatch.setattr(OrientedExtractor, "__call__", failing)
    found = method._kept_units(data, LIMIT, Bench(execution))
    others = [k for k in range(7) if k != 2]
    assert not found[2].any() and torch.equal(found[others], whole[others])
    assert np.linalg.norm(whole[2].double().numpy()) > LIMIT / 2


@pytest.mark.parametrize(("execution", "proven"), [(LOOP, True), (Execution(), False)])
def test_nothing_is_proven_where_records_are_computed_several_at_a_time(tmp_path, execution, proven):
    given = people.method_recipe("private-head").with_(ORIENTED)
    budget = {"adjacency": "record-add-remove", "delta": 1e-5}
    kinds = ["second moments of features", "gradient of a linear head"]
    people.client(tmp_path / "a", people.settings(budget=budget, unproven=kinds)).close()
    with Client.open(tmp_path / "a", execution=execution) as client:
        client.join(people.invitation(given).encode())
        for _, releases in client._member(people.NAME).schedule():
            assert all(isinstance(g.loss, Infinite) != proven for release in releases for g in release.guarantees)

"""A proven recipe between ten silos over Flower: real processes, secure sums, one silo killed in every second round.

The SuperLink is missing here, and its grid is in this process; `python -m benchmarks.proven_flower` has all of it.
"""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from benchmarks.proven_flower import NAME, Killer, Silos, proven, recipe_for
from benchmarks.soak import Nursery

from sordino.fleets import flower
from sordino.flower.client_app import SOCKET
from sordino.flower.coordinator import CoordinatorSettings, coordinate
from sordino.flower.grid import GridCarrier
from sordino.learning import datasets
from sordino.recipe import Recipe
from sordino.runs.simulation import run
from tests.client import people
from tests.flower.nodes import LocalGrid

pytest.importorskip("flwr")

EPSILON = 8.0  #: against the sum
DIGITS: dict[str, Any] = {
    "data": {"source": "digits"},
    "method.extractor": {"kind": "scattering", "scales": 1, "angles": 4},
    "clients.epsilon": EPSILON,
    "rounds.count": 7,
}


@pytest.fixture
def silos() -> Iterator[Silos]:
    """Ten silos of digits under a short path; nothing is left running."""
    place, nursery = Path(tempfile.mkdtemp(prefix="sdo-")), Nursery()
    made = Silos(place, recipe_for(Recipe.load("proven-mnist").with_(DIGITS), 10), nursery)
    try:
        yield made
    finally:
        made.end()
        nursery.close()
        shutil.rmtree(place)


@pytest.mark.timeout(300)
def test_ten_silos_of_which_one_is_killed_every_other_round_come_to_what_is_proven(silos, monkeypatch):
    for name, seconds in {"SOONEST": 0.01, "SLOWEST": 0.05, "AGAIN": 0.05, "SELDOM": 0.2}.items():
        monkeypatch.setattr(flower, name, seconds)
    monkeypatch.setattr(datasets, "load", people.read_once)
    silos.set_up()
    silos.serve_all()
    killer = Killer(silos, latest=0.1, victims=[3])  # always the same: it may take longer than a round to be back
    killer.start()
    grid = LocalGrid({10 + number: {SOCKET: str(silos.socket(number))} for number in range(10)})
    settings = CoordinatorSettings(NAME, silos.names, wait=60.0, patience=2.0)
    outcome = coordinate(silos.recipe, GridCarrier(grid), settings, silos.coordinator)
    killer.stop()
    silos.end()
    assert [round for round, _ in silos.kills] == [2, 4, 6]
    assert all(record.counted and record.reported >= 9 for record in outcome.rounds)
    assert min(record.reported for record in outcome.rounds) == 9, "who was killed is missing from some sum"
    found = proven(outcome.statement)
    assert found["summed(8)"] <= EPSILON < found["server"]
    assert all(row.unproven == () for row in outcome.statement.rows)
    server, against_sum = zip(*silos.spent(), strict=True)
    assert 0.95 * EPSILON < max(against_sum) <= EPSILON < max(server), "the noise was planned for these ledgers"
    simulated = run(silos.recipe, workers=1).accuracy
    assert simulated is not None and outcome.accuracy is not None
    assert outcome.accuracy == pytest.approx(simulated, abs=0.04)  # five seeds of the simulation lie within 0.01

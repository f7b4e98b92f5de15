"""`sordino.run`: every mechanism, aggregation, selection, model and source of data, from the recipe to the report."""

import importlib
import json
import math
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file

import sordino
from sordino.errors import InvalidInput
from sordino.learning import models
from sordino.mechanisms import (
    Box,
    Exponential,
    Gaussian,
    IntegerRange,
    L1Ball,
    L2Ball,
    Laplace,
    Mechanism,
    Piecewise,
    PrivUnitG,
    RandomizedSign,
    Sphere,
    TwoPoint,
)
from sordino.observer import Observer
from sordino.privacy.accountant import compose
from sordino.privacy.accountant import epsilon as epsilon_of
from sordino.privacy.guarantee import Adjacency
from sordino.recipe import Recipe
from sordino.runs import Outcome
from tests.engine.tiny import TWO_POINT, VALUES, left, recipe

DELTA = 1e-5  #: at which a statement gives its figures where the recipe names none

# --- mechanisms -------------------------------------------------------------------------------------------------------

#: The recipe's table, radius and clients.epsilon; and the same mechanism built by hand (None: nothing is proven).
MECHANISMS: dict[str, tuple[dict[str, Any], float | None, float | None, Mechanism | None]] = {
    "none": ({"name": "none"}, None, None, None),
    "clip-only box": ({"name": "clip-only"}, 0.1, None, None),
    "clip-only l1": ({"name": "clip-only", "norm": "l1"}, 1.0, None, None),
    "clip-only l2": ({"name": "clip-only", "norm": "l2"}, 1.0, None, None),
    "two-point": ({"name": "two-point"}, 0.1, 2.0, TwoPoint(2.0, Box(0.0, 0.1))),
    "laplace box": ({"name": "laplace"}, 0.1, 2.0, Laplace(2.0, Box(0.0, 0.1))),
    "laplace l1": ({"name": "laplace", "norm": "l1"}, 1.0, 2.0, Laplace(2.0, L1Ball(1.0))),
    "gaussian box": (
        {"name": "gaussian", "norm": "box", "delta": 1e-6},
        0.1,
        2.0,
        Gaussian.analytic(2.0, 1e-6, Box(0.0, 0.1), values=VALUES),
    ),
    "gaussian l2": (
        {"name": "gaussian", "norm": "l2", "delta": 1e-6},
        1.0,
        2.0,
        Gaussian.analytic(2.0, 1e-6, L2Ball(1.0), values=VALUES),
    ),
    "gaussian sigma": (
        {"name": "gaussian", "norm": "l2", "calibration": "sigma", "sigma": 1.5},
        1.0,
        None,
        Gaussian(1.5, L2Ball(1.0)),
    ),
    "gaussian eq4": (
        {"name": "gaussian", "norm": "box", "calibration": "eq4", "delta": 1e-5, "sampling": 0.5, "rounds": 2},
        0.1,
        2.0,
        Gaussian.eq4(2.0, 1e-5, sampling=0.5, rounds=2, domain=Box(0.0, 0.1)),
    ),
    "sign": ({"name": "sign"}, 0.1, 2.0, RandomizedSign.response(2.0, Box(0.0, 0.1))),
    "sign eq7": (
        {"name": "sign", "calibration": "eq7", "delta": 1e-5},
        0.1,
        2.0,
        RandomizedSign.eq7(2.0, 1e-5, Box(0.0, 0.1)),
    ),
    "sign sigma": (
        {"name": "sign", "calibration": "sigma", "sigma": 0.5},
        0.1,
        None,
        RandomizedSign.gaussian(0.5, Box(0.0, 0.1)),
    ),
    "exponential": (
        {"name": "exponential", "precision": 6},
        1.0,
        0.01,
        Exponential(0.01, IntegerRange(1.0, 6)),
    ),
    "piecewise": ({"name": "piecewise"}, 0.1, 2.0, Piecewise(2.0, Box(0.0, 0.1))),
    "privunit": ({"name": "privunit"}, 1.0, 2.0, PrivUnitG(2.0, Sphere(1.0))),
}
ROUNDS = 2


def with_mechanism(name: str, **more: Any) -> Recipe:
    table, radius, epsilon, _ = MECHANISMS[name]
    changes: dict[str, Any] = {"method.mechanism": table, "rounds.count": ROUNDS, **more}
    if radius is not None:
        changes["method.range"] = {"kind": "fixed", "radius": radius}
    if epsilon is not None:
        changes["clients.epsilon"] = epsilon
    return recipe(changes)


def figures(outcome: Outcome, adjacency: str) -> list[dict[str, Any]]:
    """The proven figures of all rows of the statement with this adjacency."""
    return [row["proven"] for row in outcome.statement.to_json()["rows"] if row["adjacency"] == adjacency]


@pytest.mark.parametrize("upload", ["update", "weights"])
@pytest.mark.parametrize("name", MECHANISMS)
def test_every_mechanism_runs_and_states_its_own_guarantee_composed_over_the_rounds(name, upload):
    outcome = sordino.run(with_mechanism(name, **{"method.upload": upload}))
    assert [record.reported for record in outcome.rounds] == [4] * ROUNDS
    assert np.isfinite(outcome.parameters).all()
    (client,), (coordinate,) = figures(outcome, "client"), figures(outcome, "coordinate")
    mechanism = MECHANISMS[name][3]
    if mechanism is None:
        assert client["epsilon"] == coordinate["epsilon"] == "infinity" and client["unproven"]
        return
    guarantees = [mechanism.guarantee(Adjacency.CLIENT, values=VALUES)] * ROUNDS
    assert client["epsilon"] == pytest.approx(compose([g.loss for g in guarantees], DELTA).epsilon, rel=1e-6)
    one_value = mechanism.guarantee(Adjacency.COORDINATE, values=VALUES)
    assert coordinate["epsilon"] == pytest.approx(epsilon_of(one_value.loss, DELTA), rel=1e-6)
    assert client["unproven"] == []

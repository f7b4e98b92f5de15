"""What one malicious client can shift the model by: the tables of `docs/malicious.md`, computed and not measured.

python -m benchmarks.influence            # writes the tables
python -m benchmarks.influence --print    # shows them
"""

from __future__ import annotations

import argparse
import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from benchmarks.influence_bounds import Influence, in_sum, on_mean, on_model
from benchmarks.simulation import Rows, insert, show
from sordino.mechanisms import (
    BitRandomizer,
    BitString,
    Box,
    ClipOnly,
    Exponential,
    FiniteSet,
    Gaussian,
    IntegerRange,
    L1Ball,
    L2Ball,
    Laplace,
    Mechanism,
    NoPrivacy,
    Piecewise,
    PrivUnitG,
    RandomizedLabel,
    RandomizedSign,
    TwoPoint,
)
from sordino.methods.blueprint import blueprint_of
from sordino.methods.upload import PLAIN_LIMIT, Upload
from sordino.methods.wu_personalized import Selection
from sordino.recipe import Recipe

PAGE = Path(__file__).resolve().parent.parent / "docs" / "malicious.md"
VALUES = 1000
SHAPES = {"digits": ((1, 8, 8), 10), "mnist": ((1, 28, 28), 10), "fashion-mnist": ((1, 28, 28), 10)}


# --- mechanisms -------------------------------------------------------------------------------------------------------


def _mechanisms() -> dict[str, tuple[Mechanism, str]]:
    """Each by name, for vectors of 1,000 values where it matters, with the largest estimate that is honest."""
    box = Box(0.0, 1.0)
    return {
        "two-point": (TwoPoint(1.0, box), ""),
        "sign": (RandomizedSign.response(1.0, box), "a vote: its mean is not the value"),
        "bits (LDPFL's records)": (BitRandomizer.rappor(VALUES * 1.0, BitString(VALUES)), "per bit"),
        "label, of 10": (RandomizedLabel(1.0, FiniteSet(10)), "of one entry of a one-hot vector"),
        "exponential": (Exponential(1e-3, IntegerRange(1.0, 3)), "alpha M = 1"),
        "laplace, box": (Laplace(1.0, box), ""),
        "laplace, L1 ball": (Laplace(1.0, L1Ball(1.0)), "epsilon for the whole vector"),
        "laplace, records = 300": (Laplace(1.0, box, records=300), "claimed, not proven"),
        "gaussian, sigma = 1": (Gaussian(1.0, box), ""),
        "gaussian, sigma = 10": (Gaussian(10.0, box), ""),
        "gaussian, L2 ball, sigma = 1": (Gaussian(1.0, L2Ball(1.0)), ""),
        "piecewise": (Piecewise(1.0, box), ""),
        "privunit": (PrivUnitG(1.0), "epsilon for the whole vector"),
        "clip-only, box": (ClipOnly(box), "no protection"),
        "clip-only, L2 ball": (ClipOnly(L2Ball(1.0)), "no protection"),
        "none": (NoPrivacy(), "no protection"),
    }


def mechanism_rows() -> Rows:
    rows: Rows = [["mechanism", "honest values", "estimates of legal reports", "vector, L2", "what bounds it", ""]]
    for name, (mechanism, note) in _mechanisms().items():
        found = mechanism.reach(VALUES, limit=PLAIN_LIMIT)
        honest = {"bits (LDPFL's records)": "0 or 1", "label, of 10": "0 or 1", "none": "any"}.get(name, "-1 to 1")
        low, high = float(found.lowest.min()), float(found.highest.max())
        rows.append([name, honest, f"{low:,.4g} to {high:,.4g}", f"{found.length:,.4g}", found.bound, note])
    return rows


# --- methods ----------------------------------------------------------------------------------------------------------

SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("two-point-digits", {}),
    ("ldp-fl-mnist", {}),
    ("ldp-fl-mnist", {"method.channel": {"kind": "summed"}}),
    ("ldp-fl-mnist-privunit", {}),
    ("ldp-fed-fashion-mnist", {}),
    ("webfed-mnist", {}),
    ("personalized-digits", {}),
    ("personalized-mnist-non-iid", {}),
    ("ldpfl-digits", {}),
    ("ldpfl-digits", {"method.clamp": 1.0}),
    ("quickstart", {}),
    ("quickstart", {"method.clamp": 0.1}),
    ("ldp-fed-fashion-mnist-hybrid", {}),
    ("fedavg-mnist", {}),
)


def influences(recipe: Recipe) -> tuple[list[Influence], int]:
    """What a client of every class can do in the first round, in which all who are asked report; and of how many."""
    shape, classes = SHAPES.get(recipe.data.source, SHAPES["mnist"])  # a function of MNIST otherwise
    n = recipe.number_of_clients
    each = 60_000 // n
    method = recipe.method.build(blueprint_of(recipe, shape, classes, (each,) * n)[0])
    given: Any = recipe.method
    tally = method.tally(method.plan(method.init(), "f"))
    asked = given.selection.asked(n)
    counts = np.bincount(tally.upload.class_of, minlength=len(tally.upload.strengths)).tolist()
    if asked < n:
        counts = [max(1, round(count * asked / n)) for count in counts]
    found = []
    for group in range(len(counts)):
        if given.channel.kind == "summed":
            mean = in_sum(tally, counts, group)
        else:
            mean = on_mean(tally, counts, group, samples=(asked - 1) * each)
        found.append(on_model(given, mean, recipe.training.optimizer.lr))
    return found, asked


def method_rows() -> Rows:
    rows: Rows = [["recipe", "method", "reports", "weighing", "its part of the mean", "one parameter", "model, L2"]]
    for name, changes in SETTINGS:
        recipe = Recipe.load(name).with_(changes)
        given: Any = recipe.method
        found, asked = influences(recipe)
        worst = max(found, key=lambda influence: influence.value)
        said = ", ".join(f"{key.removeprefix('method.')} = {_brief(value)}" for key, value in changes.items())
        rows.append(
            [
                f"`{name}`" + (f", {said}" if said else ""),
                given.name + (", summed" if given.channel.kind == "summed" else ""),
                f"{asked:,}",
                given.aggregation.kind,
                "any sign" if math.isinf(worst.step) else f"{worst.share:.4g}",
                f"{worst.value:,.3g}",
                f"{worst.length:,.3g}",
            ]
        )
    return rows


def _brief(value: Any) -> str:
    return str(value["kind"]) if isinstance(value, dict) else f"{value:g}"


# --- lies about epsilon -----------------------------------------------------------------------------------------------

HONEST = 9
ANNOUNCED = (0.1, 1.0, 4.0, 8.0)


def lying(announced: float, weighing: str) -> float:
    """How far a liar moves one value of the mean: nine others have epsilon 1; two-point bits in [-1, 1]."""
    upload = Upload(
        lambda e: TwoPoint(e or 1.0, Box(0.0, 1.0)), [1.0] * HONEST + [announced], 1, clients=HONEST + 1, what="update"
    )
    own, counts = int(upload.class_of[-1]), np.bincount(upload.class_of).tolist()
    possible = (weights for weights in _weights(upload, weighing) if weights[own])
    return max(on_mean(upload.tally(weights.tolist()), counts, own).value for weights in possible)


def _weights(upload: Upload, weighing: str) -> list[NDArray[np.float64]]:
    """The weights of the classes; of a selection, those of every draw that there can be."""
    strengths = np.array(upload.strengths, np.float64)
    match weighing:
        case "budget":
            return [strengths]
        case "inverse-variance":
            return [1 / upload.variances()]
        case "selection":
            chances = Selection.of(upload, "redraw").probabilities
            return [(chances >= least).astype(np.float64) for least in np.unique(chances)]
    return [np.ones_like(strengths)]


def lie_rows() -> Rows:
    kinds = ("mean", "budget", "inverse-variance", "selection")
    rows: Rows = [["epsilon that the client announces", *kinds[:-1], "selection, at worst"]]
    for announced in ANNOUNCED:
        said = f"{announced:g}" + (" (the truth)" if announced == 1 else "")
        rows.append([said, *(f"{lying(announced, kind):.3g}" for kind in kinds)])
    return rows


def tables() -> dict[str, Rows]:
    """All tables of the page."""
    return {"mechanisms": mechanism_rows(), "methods": method_rows(), "lies": lie_rows()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--print", action="store_true", help="show the tables and write nothing")
    found = tables()
    if parser.parse_args().print:
        for name, rows in found.items():
            show(Console(), name, rows)
    else:
        insert(PAGE, found)


if __name__ == "__main__":
    main()

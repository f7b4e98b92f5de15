"""What one malicious client can shift the model by: the tables of `docs/malicious.md`, computed and not measured.

python -m benchmarks.influence            # writes the tables
python -m benchmarks.influence --print    # shows them
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.influence_bounds import Influence, in_sum, on_mean, on_model
from benchmarks.simulation import Rows, insert, show
from sordino.mechanisms import (
    Box,
    Gaussian,
    Laplace,
    Mechanism,
    NoPrivacy,
    TwoPoint,
)
from sordino.methods.blueprint import blueprint_of
from sordino.methods.upload import PLAIN_LIMIT
from sordino.recipe import Recipe

PAGE = Path(__file__).resolve().parent.parent / "docs" / "malicious.md"
VALUES = 1000
SHAPES = {"digits": ((1, 8, 8), 10), "mnist": ((1, 28, 28), 10), "fashion-mnist": ((1, 28, 28), 10)}


# --- mechanisms -------------------------------------------------------------------------------------------------------


MECHANISMS: dict[str, Mechanism] = {
    "two-point": TwoPoint(1.0, Box(0.0, 1.0)),
    "laplace": Laplace(1.0, Box(0.0, 1.0)),
    "gaussian, sigma = 1": Gaussian(1.0, Box(0.0, 1.0)),
    "none": NoPrivacy(),
}


def mechanism_rows() -> Rows:
    rows: Rows = [["mechanism", "estimates of legal reports", "vector, L2", "what bounds it"]]
    for name, mechanism in MECHANISMS.items():
        found = mechanism.reach(VALUES, limit=PLAIN_LIMIT)
        low, high = float(found.lowest.min()), float(found.highest.max())
        rows.append([name, f"{low:,.4g} to {high:,.4g}", f"{found.length:,.4g}", found.bound])
    return rows


# --- methods ----------------------------------------------------------------------------------------------------------

SETTINGS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ldp-fl-mnist", {}),
    ("ldp-fl-mnist", {"method.channel": {"kind": "summed"}}),
    ("quickstart", {}),
    ("quickstart", {"method.clamp": 0.1}),
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
    rows: Rows = [["recipe", "reports", "its part of the mean", "one parameter", "model, L2"]]
    for name, changes in SETTINGS:
        found, asked = influences(Recipe.load(name).with_(changes))
        worst = max(found, key=lambda influence: influence.value)
        said = ", ".join(f"{key.removeprefix('method.')} = {_brief(value)}" for key, value in changes.items())
        rows.append([
            f"`{name}`" + (f", {said}" if said else ""), f"{asked:,}", f"{worst.share:.4g}", f"{worst.value:,.3g}",
            f"{worst.length:,.3g}",
        ])  # fmt: skip
    return rows


def _brief(value: Any) -> str:
    return str(value["kind"]) if isinstance(value, dict) else f"{value:g}"


def tables() -> dict[str, Rows]:
    """All tables of the page."""
    return {"mechanisms": mechanism_rows(), "methods": method_rows()}


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

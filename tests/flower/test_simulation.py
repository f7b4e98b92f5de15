"""Flower's simulation: virtual nodes that open their client's folder for each message; with Ray where it is there."""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from flwr.app import Context, Message

from sordino.errors import InvalidInput
from sordino.fleets import flower
from sordino.flower import FlowerMissing, simulate, simulation
from sordino.flower.coordinator import CoordinatorSettings, coordinate
from sordino.flower.grid import GridCarrier
from sordino.learning import datasets
from sordino.privacy.ledger import Ledger
from sordino.recipe import Recipe
from sordino.runs.outcome import Outcome
from sordino.runs.simulation import run
from tests.client import people
from tests.flower.nodes import ONE_AT_A_TIME, LocalGrid

ROOT = Path(__file__).parent.parent.parent
WITHOUT_RAY = "Ray is not installed, which Flower's simulation needs: pip install 'flwr[simulation]'"


def virtual(recipe: Recipe, place: Path, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """The run over nodes as Flower's simulation makes them, without its processes."""
    monkeypatch.setattr(flower, "SOONEST", 0.005)
    monkeypatch.setattr(datasets, "load", people.read_once)
    simulation._make_clients(recipe, place / "clients")
    nodes = {100 + number: {"partition-id": number} for number in range(recipe.number_of_clients)}
    app = simulation.client_app(place / "clients", recipe.seed)

    def alone(message: Message, context: Context) -> Message:
        with ONE_AT_A_TIME:
            return app(message, context)

    settings = CoordinatorSettings("virtual", simulation._names(recipe), wait=20.0)
    return coordinate(recipe, GridCarrier(LocalGrid(nodes, alone)), settings, place / "virtual")


SUMS = {"split": {"kind": "iid", "clients": 4}, "method.channel": {"kind": "summed"}, "rounds.count": 1}
RECIPES = {"fedavg": people.recipe(), "ldpfl": people.method_recipe("ldpfl"), "summed": people.recipe(SUMS)}


@pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES.keys())
def test_virtual_nodes_come_to_what_the_simulation_comes_to(tmp_path, monkeypatch, recipe):
    outcome = virtual(recipe, tmp_path, monkeypatch)
    assert [record.reported for record in outcome.rounds] == [recipe.number_of_clients] * recipe.rounds.count
    assert np.array_equal(outcome.parameters, run(recipe, workers=1).parameters)


def test_budgets_of_the_recipe_are_the_clients_own(tmp_path, monkeypatch):
    budget = {"limit": 2.5 * people.COST, "basis": "proven", "adjacency": "client", "adversary": "server"}
    recipe = people.recipe({"clients.budget": budget})
    outcome = virtual(recipe, tmp_path, monkeypatch)
    assert [(record.reported, record.declined) for record in outcome.rounds] == [(3, 0), (3, 0)]
    assert "declined" in outcome.result.stopped
    for number in range(3):
        with Ledger.open(tmp_path / "clients" / str(number) / "ledger.sqlite") as ledger:
            assert ledger.standing("records").spent == pytest.approx(2 * people.COST)


def test_clients_hold_their_own_records_alone(tmp_path):
    recipe = people.recipe()
    simulation._make_clients(recipe, tmp_path / "clients")
    sizes = [len(np.load(tmp_path / "clients" / f"records-{number}.npz")["y"]) for number in range(3)]
    assert sizes == [20, 20, 20]
    before = sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "clients").rglob("*"))
    simulation._make_clients(recipe, tmp_path / "clients")  # an interrupted run goes on with the same
    assert sorted((path, path.stat().st_mtime_ns) for path in (tmp_path / "clients").rglob("*")) == before


def test_what_virtual_nodes_cannot_do_is_refused_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setattr(simulation, "require", lambda _: None)
    tables = people.method_recipe("ldp-fl").to_dict()
    tables["method"]["channel"] = {"kind": "shuffled", "granularity": "parameter"}
    with pytest.raises(InvalidInput, match="kind = summed"):
        simulate(Recipe.from_dict(tables), tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed")
def test_without_ray_the_remedy_is_named(tmp_path):
    with pytest.raises(FlowerMissing, match=r"flwr\[simulation\]"):
        simulate(people.recipe(), tmp_path)


@pytest.mark.skipif(find_spec("ray") is None, reason=WITHOUT_RAY)
@pytest.mark.timeout(300)
def test_ray_computes_a_recipe_to_the_last_bit(tmp_path):
    """In a process of its own: Ray leaves threads and handlers behind."""
    program = (
        "import sys, numpy as np\n"
        "from sordino.flower import simulate\n"
        "from sordino.recipe import Recipe\n"
        "from sordino.runs.simulation import run\n"
        "if __name__ == '__main__':\n"
        "    recipe = Recipe.load(sys.argv[1])\n"
        "    outcome = simulate(recipe, sys.argv[2], cpus=2)\n"
        "    assert [r.reported for r in outcome.rounds] == [3, 3, 3]\n"
        "    assert np.array_equal(outcome.parameters, run(recipe, workers=1).parameters)\n"
    )
    (tmp_path / "recipe.toml").write_text(people.recipe().to_toml())
    (tmp_path / "program.py").write_text(program)
    command = [sys.executable, str(tmp_path / "program.py"), str(tmp_path / "recipe.toml"), str(tmp_path / "runs")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not list((tmp_path / "runs").glob("*/clients"))

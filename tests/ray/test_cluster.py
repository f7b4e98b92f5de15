"""Simulations on a real cluster of this machine: a head without cores, and nodes of one core each."""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import sordino
from sordino.audits.attack_options import AttackOptions
from sordino.cli import app
from sordino.errors import InvalidInput
from sordino.fleets import ray_workers
from sordino.fleets.ray_workers import RayMissing, RayPool
from sordino.fleets.tasks import WorkerLost
from sordino.parts.timeline import Timeline
from sordino.recipe import Recipe
from sordino.runs.observer import Observer
from sordino.runs.sweep import Axis, at_the_same_time, points
from sordino.wire.messages import Plan
from tests.engine.federations import work
from tests.engine.test_simulated import Deadly, work_by_name
from tests.engine.tiny import BATCH_NORM, TWO_POINT, left, recipe

HERE = find_spec("ray") is not None
needs_ray = pytest.mark.skipif(not HERE, reason="Ray is not installed: make test-more")
pytestmark = pytest.mark.filterwarnings("ignore")  # Ray has many of its own


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes of one core behind a head that computes nothing."""
    for name, value in ray_workers.QUIET.items():
        os.environ.setdefault(name, value)
    from ray.cluster_utils import Cluster

    limits = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **limits})
    found.limits = limits
    for _ in range(2):
        found.add_node(num_cpus=1, **limits)
    try:
        yield found
    finally:
        found.shutdown()


@pytest.fixture
def pool(cluster: Any) -> Iterator[RayPool]:
    with RayPool(cluster.address) as found:
        yield found


def actors() -> list[int]:
    """The processes of all workers that run on this machine."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if place.read_bytes().startswith(b"ray::RayActor"):
                found.append(int(place.parent.name))
        except OSError:
            continue
    return found


def all_there(pool: RayPool, count: int) -> None:
    """Wait until so many workers are ready."""
    patience = time.monotonic() + 60
    while len(pool.crew()) != count:
        assert time.monotonic() < patience
        time.sleep(0.1)


class After(Observer):
    """Does something once, after a round."""

    def __init__(self, round: int, do: Any) -> None:
        self._round, self._do = round, do

    def round(self, record, attendance):
        if record.round == self._round:
            self._do()


def stop() -> None:
    raise KeyboardInterrupt


SUMS = {"method.channel": {"kind": "summed"}, **TWO_POINT}
RECIPES = {"states": recipe(BATCH_NORM), "noise": recipe(TWO_POINT), "sums": recipe(SUMS)}


@needs_ray
@pytest.mark.parametrize("given", RECIPES.values(), ids=RECIPES.keys())
def test_a_cluster_gives_the_bits_of_one_process(pool, tmp_path, given):
    sordino.run(given, folder=tmp_path / "cluster", ray=pool)
    sordino.run(given, folder=tmp_path / "alone", workers=1)
    assert left(tmp_path / "cluster") == left(tmp_path / "alone")


@needs_ray
def test_clients_whose_records_are_kept_by_a_worker_have_the_same_bits(pool):
    given = Recipe.load("proven-digits", ["rounds.count=3"])
    assert np.array_equal(sordino.run(given, ray=pool).parameters, sordino.run(given, workers=1).parameters)


@needs_ray
def test_an_address_is_enough(cluster, tmp_path):
    given = recipe()
    found = sordino.run(given, ray=cluster.address, workers=1)
    assert np.array_equal(found.parameters, sordino.run(given, workers=1).parameters)


@needs_ray
def test_waiting_for_a_cluster_is_a_phase_of_its_own(cluster):
    with Timeline() as timeline:
        sordino.run(recipe(), ray=cluster.address)
    phases = {span.phase: span.seconds for span in timeline.spans}
    assert phases["start of workers"] > phases["pre-flight"]  # which waits for them
    assert "wait for workers" in phases


@needs_ray
def test_killed_workers_cost_their_jobs_and_not_the_run(pool, tmp_path):
    given = recipe(BATCH_NORM, **{"rounds.count": 8})
    all_there(pool, 2)
    victims = actors()
    assert len(victims) == 2
    kills = [
        After(2, lambda: os.kill(victims[0], signal.SIGKILL)),
        After(4, lambda: os.kill(victims[1], signal.SIGKILL)),
    ]
    sordino.run(given, folder=tmp_path / "run", ray=pool, observer=kills)
    sordino.run(given, folder=tmp_path / "peace", workers=1)
    assert left(tmp_path / "run") == left(tmp_path / "peace")
    all_there(pool, 2)  # others have taken their places
    assert not set(actors()) & set(victims)


@needs_ray
def test_a_killed_node_costs_its_jobs_and_a_new_one_is_used(cluster, tmp_path):
    given = recipe(BATCH_NORM, **{"rounds.count": 6})
    node = cluster.add_node(num_cpus=1, **cluster.limits)
    with RayPool(cluster.address) as pool:
        all_there(pool, 3)

        def kill() -> None:  # in the middle of the next round
            threading.Timer(0.02, lambda: cluster.remove_node(node, allow_graceful=False)).start()

        sordino.run(given, folder=tmp_path / "run", ray=pool, observer=After(2, kill))
        sordino.run(given, folder=tmp_path / "peace", workers=1)
        assert left(tmp_path / "run") == left(tmp_path / "peace")
        again = cluster.add_node(num_cpus=1, **cluster.limits)
        all_there(pool, 3)
    cluster.remove_node(again)


@needs_ray
def test_a_job_that_kills_its_workers_is_given_up_with_the_remedy(pool):
    hands = pool.hands(work())
    with pytest.raises(WorkerLost, match="--resume"):
        list(hands.run(Plan("test", 1), [Deadly()]))


@needs_ray
def test_a_cluster_without_workers_for_long_is_given_up_with_the_remedy(pool, monkeypatch):
    monkeypatch.setattr(ray_workers, "NOBODY_SECONDS", 0.5)
    monkeypatch.setattr(pool, "crew", dict)
    hands = pool.hands(work_by_name())
    with pytest.raises(WorkerLost, match=r"--resume"):
        list(hands.run(Plan("test", 1), [Deadly()]))


@needs_ray
def test_a_run_goes_on_with_another_size_and_without_ray(cluster, tmp_path):
    given = recipe(BATCH_NORM, **{"rounds.count": 6})
    ways: list[dict[str, Any]] = [
        {"ray": cluster.address, "workers": 2}, {"workers": 1}, {"ray": cluster.address, "workers": 1}, {"workers": 2},
    ]  # fmt: skip
    for number, where in enumerate(ways, start=1):
        with pytest.raises(KeyboardInterrupt):
            sordino.run(given, folder=tmp_path / "run", resume=number > 1, observer=After(number, stop), **where)
    sordino.run(given, folder=tmp_path / "run", resume=True, ray=cluster.address)
    sordino.run(given, folder=tmp_path / "peace", workers=1)
    assert left(tmp_path / "run") == left(tmp_path / "peace")


OWN = """
import os, sys
from importlib.machinery import SourceFileLoader
from torch import nn
import {beside}

if os.getpid() != {pid} and isinstance(__loader__, SourceFileLoader):
    raise ImportError("this is the file of another machine")

class Net(nn.Module):
    def __init__(self, classes):
        super().__init__()
        self.dense = nn.Linear(64, classes)

    def forward(self, x):
        from own_layers.late import same  # which the first process to train is the first to load

        return same({beside}.flat(self.dense, x))
"""


@needs_ray
def test_own_code_beside_a_recipe_travels_to_nodes_that_cannot_see_it(pool, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "own_net.py").write_text(OWN.format(pid=os.getpid(), beside="own_layers.flattening"))
    (tmp_path / "own_layers").mkdir()
    (tmp_path / "own_layers/__init__.py").write_text("")
    (tmp_path / "own_layers/flattening.py").write_text("def flat(layer, x):\n    return layer(x.flatten(1))\n")
    (tmp_path / "own_layers/late.py").write_text("def same(x):\n    return x\n")
    given = recipe(model={"name": "own_net:Net"})
    try:
        assert np.array_equal(sordino.run(given, ray=pool).parameters, sordino.run(given, workers=1).parameters)
    finally:
        for name in [name for name in sys.modules if name.startswith("own_")]:
            del sys.modules[name]


@needs_ray
def test_a_node_with_another_version_is_refused(cluster, monkeypatch):
    monkeypatch.setattr(sordino, "__version__", "9.9.9")
    with pytest.raises(InvalidInput, match=r"sordino \S+ instead of 9\.9\.9"):
        sordino.run(recipe(), ray=cluster.address)


@needs_ray
def test_runs_of_a_sweep_share_a_pool_at_the_same_time_and_keep_their_bits(pool, tmp_path):
    todo = points(recipe(TWO_POINT), [Axis.parse("clients.epsilon=1,2")], 2, tmp_path / "sweep")
    under_way, most = set(), []

    class Watch(Observer):
        def __init__(self, name: str) -> None:
            self._name = name

        def round(self, record, attendance):
            under_way.add(self._name)
            most.append(len(under_way))

        def finished(self, outcome):
            under_way.discard(self._name)

    def do(point, observer):
        watch = Watch(point.folder.name)
        return sordino.run(point.recipe, folder=point.folder, ray=pool, observer=[observer, watch])

    found = {point.folder.name: outcome.parameters for point, outcome in at_the_same_time(todo, do, pool)}
    assert len(found) == 4 and max(most) > 1
    for point in todo:
        assert np.array_equal(found[point.folder.name], sordino.run(point.recipe, workers=1).parameters)


@needs_ray
def test_where_one_run_of_a_sweep_fails_the_others_stop_and_go_on_later(pool, tmp_path):
    todo = points(recipe(**{"rounds.count": 200}), [], 3, tmp_path / "sweep")

    def do(point, observer):
        if point is todo[1]:
            raise InvalidInput("no")
        return sordino.run(point.recipe, folder=point.folder, ray=pool, observer=observer)

    with pytest.raises(InvalidInput):
        list(at_the_same_time(todo, do, pool))
    assert todo[0].begun and not todo[0].finished and not todo[2].finished


def store_bytes() -> float:
    """What the object stores of all nodes hold."""
    import ray

    return float(ray.cluster_resources()["object_store_memory"] - ray.available_resources()["object_store_memory"])


def own_bytes(pid: int) -> int:
    """The memory of a process without what it maps, such as its node's object store."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


@needs_ray
def test_the_memory_of_nodes_does_not_grow_over_rounds(pool):
    given = recipe({"model": {"name": "mlp", "options": {"hidden": [2000]}}, "rounds.count": 45})
    seen: list[tuple[float, int]] = []

    class Watch(Observer):
        def round(self, record, attendance):
            if record.round in (5, 45):
                time.sleep(1.0)  # what is let go of is told to the nodes now and then
                seen.append((store_bytes(), max(map(own_bytes, actors()))))

    outcome = sordino.run(given, ray=pool, observer=Watch())
    vector = outcome.parameters.nbytes
    (stored, memory), (stored_later, memory_later) = seen
    assert stored_later - stored <= vector
    assert memory_later - memory < 10 * vector  # of 40 rounds, each with a plan and reports of that size


@pytest.mark.parametrize("module", [None, ModuleType("ray")], ids=["nothing", "a folder of that name"])
def test_without_ray_the_extra_is_named(module, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", module)
    with pytest.raises(RayMissing, match=r"sordino\[ray\]"):
        sordino.run(recipe(), ray="auto")


WRONG = ["not an address", "127.0.0.1:1", "127.0.0.1:port", "127.0.0.1:99999", "no.invalid:6379"]


@needs_ray
@pytest.mark.parametrize("address", WRONG)
def test_an_address_without_a_cluster_names_the_remedy_without_ray_s_minutes(address, monkeypatch, tmp_path):
    import ray

    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    assert not ray.is_initialized()
    if ":" in address:
        monkeypatch.setattr(ray, "init", None)
    with pytest.raises(InvalidInput, match="ray start --head"):
        sordino.run(recipe(), ray=address, folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_gpus_of_a_cluster_are_not_named_one_by_one():
    with pytest.raises(InvalidInput, match="cpu or cuda"):
        sordino.run(recipe(), ray="auto", device="cuda:0,1")


@needs_ray
def test_the_command_line_runs_and_audits_on_a_cluster(cluster, tmp_path):
    runner, place = CliRunner(), str(tmp_path / "run")
    changes = ["--set", "rounds.count=2", "--set", "data.train_limit=200"]
    found = runner.invoke(app, ["run", "quickstart", *changes, "--out", place, "--ray", cluster.address, "--json"])
    assert found.exit_code == 0, found.output
    audits = [runner.invoke(app, ["audit", place, "--canaries", "200", "--trials", "2000", "--json", *more]) for more in
              ([], ["--ray", cluster.address])]  # fmt: skip
    assert [audit.exit_code for audit in audits] == [0, 0], audits[1].output
    assert json.loads(audits[0].stdout)["rows"] == json.loads(audits[1].stdout)["rows"]


@needs_ray
def test_shadow_models_are_trained_on_a_cluster_to_the_same_figures(pool, tmp_path):
    sordino.run(recipe({"split.clients": 2}), folder=tmp_path / "run", workers=1)
    found = [
        sordino.attack(tmp_path / "run", ["membership"], options).leaks
        for options in (AttackOptions(workers=1), AttackOptions(pool=pool))
    ]
    timeless = [[replace(leak, figures={**leak.figures, "seconds": 0.0}) for leak in leaks] for leaks in found]
    assert timeless[0]
    assert timeless[0] == timeless[1]

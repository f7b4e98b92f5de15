"""Parts of one's own: by address, from an installed package, and only where an owner lists them."""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import sordino
from sordino.audits import lower_bound
from sordino.cli import app
from sordino.client.refusal import Reason, Refused
from sordino.mechanisms import Box, mechanism_named
from sordino.parts import registry
from sordino.privacy.guarantee import Adjacency, Infinite
from sordino.recipe import EVERYTHING, CodeNotAllowed, Recipe, RecipeInvalid
from sordino.runs.federation import wire
from tests.client import people
from tests.engine.test_resume import Stop
from tests.engine.tiny import left

EXAMPLES = Path(__file__).parent.parent.parent / "examples"
MODULES = {"own_mechanism": "rounding", "own_proof": "kary", "own_method": "fedadam", "own_aggregation": "krum"}
KEYS = {
    "own_mechanism": "method.mechanism.name",
    "own_proof": "method.mechanism.name",
    "own_method": "method.name",
    "own_aggregation": "method.aggregation.kind",
}


@pytest.fixture
def example(request, monkeypatch):
    """The recipe of an example, in whose folder Python looks for modules."""
    folder = EXAMPLES / request.param
    monkeypatch.syspath_prepend(folder)
    yield Recipe.load(folder / "recipe.toml", ["rounds.count=2", "data.train_limit=90", "data.test_limit=30"])
    sys.modules.pop(MODULES[request.param], None)
    registry._table.cache_clear()


def each(*names):
    return pytest.mark.parametrize("example", names or list(MODULES), indirect=True)


@each()
def test_examples_are_short_and_written_back_as_they_were(example):
    assert Recipe.from_toml(example.to_toml(), EVERYTHING) == example
    (address,) = example.own_code
    lines = Path(str(sys.modules[address.partition(":")[0]].__file__)).read_text().splitlines()
    assert len([line for line in lines if line]) < (90 if "kary" in address else 50)


@each()
def test_text_from_elsewhere_imports_nothing_that_is_not_listed(example):
    (address,) = example.own_code
    module = address.partition(":")[0]
    registry._table.cache_clear()
    del sys.modules[module]
    with pytest.raises(CodeNotAllowed, match=address):
        Recipe.from_toml(example.to_toml())
    assert module not in sys.modules
    assert Recipe.from_toml(example.to_toml(), [address]).own_code == (address,)


@each("own_mechanism")
def test_a_mechanism_without_a_proof_runs_in_simulation_and_says_so(example):
    assert sordino.run(example, workers=1).accuracy > 0
    method = wire(example).method
    (release,) = method.releases(method.plan(method.init(), "x"))[0]
    assert all(isinstance(guarantee.loss, Infinite) for guarantee in release.guarantees)


@each("own_proof")
def test_a_proven_mechanism_counts_its_words(example):
    """4 levels: P[y] lies between (1 - q)/4 and (1 - q)/4 + q, and the ends of the range reach both."""
    mechanism = mechanism_named("kary:Kary")(1.0, Box(), 4)
    loss = mechanism.guarantee(values=650).loss
    assert loss.count == 650 and 1 - 1e-8 < loss.epsilon <= 1
    ends = mechanism.law(np.array([-1.0, 1.0], np.float32)).probabilities
    q = mechanism.kept / 2**32
    assert np.allclose(ends, (1 - q) / 4 + q * np.eye(4)[[0, 3]].T)
    assert np.log(ends.max() / ends.min()) == pytest.approx(loss.epsilon)
    assert np.allclose(mechanism.bias(np.array([-1.0, 0.3, 1.0])), 0, atol=1e-7)


@each("own_proof")
def test_an_audit_sees_half_the_noise_of_the_proven_mechanism(example):
    """The seed is fixed; a fresh one would exceed a tight bound with probability 5 %."""
    own = mechanism_named("kary:Kary")
    honest, weak = (next(own.audit_cases(epsilon)) for epsilon in (1.0, 2.0))
    assert lower_bound.run(honest, trials=40_000, seed=11).audited <= honest.proven
    broken = replace(honest, sampler=weak.sampler)
    assert lower_bound.run(broken, trials=40_000, seed=12).verdict == lower_bound.VIOLATED


@each("own_proof")
def test_a_proven_mechanism_runs_resumes_is_planned_and_audited(example, tmp_path, monkeypatch):
    whole, parts = (tmp_path / name for name in ("whole", "parts"))
    outcome = sordino.run(example, folder=whole, workers=1)
    (row,) = [row for row in outcome.statement.rows if row.adjacency is Adjacency.COORDINATE]
    assert row.pure == pytest.approx(4.0, abs=1e-6)
    with pytest.raises(KeyboardInterrupt):
        sordino.run(example, folder=parts, workers=1, observer=Stop(1))
    sordino.run(example, folder=parts, workers=1, resume=True)
    assert left(parts) == left(whole)

    monkeypatch.setattr("sordino.mechanisms.cases.WIDE", (128, 3_001))
    (plan,) = said("plan", "--mechanism", "kary:Kary", "--values", "20", "--rounds", "2", "--epsilon", "8")
    assert plan["parameter"]["value"] == pytest.approx(0.2, abs=1e-4)
    audited = said("audit", "kary:Kary", "--trials", "20000")
    assert len(audited["rows"]) == len(audited["checks"]) == 2
    assert all(check["passed"] for check in audited["checks"])
    of_the_run = said("audit", whole, "--trials", "2000")
    assert not of_the_run["violated"] and of_the_run["rows"]


def said(*words: str | Path) -> Any:
    """What a command prints as JSON."""
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


@each("own_method")
def test_the_servers_state_goes_from_round_to_round(example):
    method = wire(example).method
    start = method.init()
    assert set(start.arrays) == {"first_moment", "second_moment"}
    plan = method.plan(start, "x")
    assert set(plan.arrays) == {"parameters"}  # what the server keeps for itself is not sent
    tally = method.tally(plan)
    ones = np.ones(start.parameters.size, "<f4").tobytes()
    assert not tally.add([0], [ones])
    after = method.update(start, plan, tally)
    assert np.allclose(after.arrays["first_moment"], 0.1) and np.allclose(after.arrays["second_moment"], 0.05)
    step = 0.05 * 0.1 / (np.sqrt(0.05) + 1e-3)
    assert np.allclose(after.parameters - start.parameters, step, atol=1e-6)


@each("own_method")
def test_the_servers_state_survives_a_stop(example, tmp_path):
    whole, parts = (tmp_path / name for name in ("whole", "parts"))
    sordino.run(example, folder=whole, workers=1)
    with pytest.raises(KeyboardInterrupt):
        sordino.run(example, folder=parts, workers=1, observer=Stop(1))
    sordino.run(example, folder=parts, workers=1, resume=True)
    assert left(parts) == left(whole)


@each("own_aggregation")
def test_a_client_declines_a_part_that_its_owner_did_not_list(example, tmp_path):
    (address,), invited = example.own_code, people.invitation(example).encode()
    registry._table.cache_clear()
    del sys.modules["krum"]
    with people.client(tmp_path / "a") as careful, pytest.raises(Refused) as caught:
        careful.offer(invited)
    assert caught.value.reason is Reason.CONSENT
    assert "krum" not in sys.modules
    with people.client(tmp_path / "b", people.settings(code=[address], unproven=["model update"])) as willing:
        offer = willing.offer(invited)
    assert offer.fits == 2
    assert any(address in caveat for caveat in offer.statement.caveats)


@each("own_aggregation")
def test_krum_takes_a_report_and_is_refused_under_a_sum(example):
    rows = np.array([[0.0, 0.0], [0.1, 0.0], [0.0, 0.1], [9.0, 9.0], [0.05, 0.05]], np.float32)
    assert np.allclose(example.method.aggregation.rule(rows), [0.05, 0.05])
    with pytest.raises(RecipeInvalid, match="in a secure sum the server sees no single report"):
        example.override(["method.channel.kind=summed"])
    with pytest.raises(RecipeInvalid, match=r"method\.aggregation\.hostile: got 2; allowed: at most 1 of 6 asked"):
        example.override(["method.aggregation.hostile=2"])
    assert sordino.run(example, workers=1).accuracy > 0


@pytest.mark.parametrize("folder", list(MODULES))
def test_an_installed_package_offers_its_part_by_name(folder, tmp_path):
    """In a process of its own: what is installed is read once."""
    name, key = MODULES[folder], KEYS[folder]
    source = shutil.copytree(EXAMPLES / folder, tmp_path / "source")
    site = tmp_path / "site"
    install(source, site)
    program = f"""
import sys; sys.path.insert(0, {str(site)!r})
from sordino.recipe import CodeNotAllowed, Recipe
recipe = Recipe.load({str(source / "recipe.toml")!r}, ["{key}={name}"])
assert recipe.settings()["{key}"] == "{name}"
address, = recipe.own_code
assert Recipe.from_toml(recipe.to_toml(), [address]) == recipe
assert "{name}" in next(k for k in Recipe.all_keys() if k.key == "{key}").allowed
assert "{name}" in str(Recipe.json_schema())
try:
    Recipe.from_toml(recipe.to_toml())
except CodeNotAllowed as error:
    print(error.address)
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stderr
    assert found.stdout.startswith(f"{name}:")


def install(source: Path, site: Path) -> None:
    """With pip and setuptools where they are at hand; else what they would leave behind."""
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-build-isolation", "--target"]
    done = subprocess.run([*command, str(site), str(source)], capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return
    text = (source / "pyproject.toml").read_text()
    entry = next(line for line in text.splitlines() if line.startswith('"')).replace('"', "")
    info = site / "own-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: own\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sordino.parts]\n{entry}\n")
    for module in source.glob("*.py"):
        shutil.copy(module, site)


def test_a_copy_of_the_two_point_mechanism_serves_every_method_that_the_original_does(tmp_path, monkeypatch):
    text = Path(str(sordino.__file__)).with_name("mechanisms").joinpath("two_point.py").read_text()
    (tmp_path / "foreign_file.py").write_text(text.replace("TwoPoint", "Foreign").replace('"two-point"', '"foreign"'))
    monkeypatch.syspath_prepend(tmp_path)
    fedavg = Recipe.load("two-point-digits", ["rounds.count=1", "data.train_limit=100", "data.test_limit=30"])
    channel = {"kind": "shuffled", "granularity": "parameter"}
    ldp_fl = fedavg.with_({"method": {"name": "ldp-fl", "range": {"kind": "fixed", "radius": 0.1}, "channel": channel}})
    for before in (fedavg, ldp_fl):
        after = before.override(["method.mechanism.name=foreign_file:Foreign"])
        assert after.own_code == ("foreign_file:Foreign",)
        assert after.to_dict()["method"]["mechanism"] == {"name": "foreign_file:Foreign"}
        assert sordino.run(before, workers=1).accuracy == sordino.run(after, workers=1).accuracy


def test_the_optimizer_of_the_page_pulls_clients_back_to_the_global_model(tmp_path, monkeypatch):
    page = (EXAMPLES.parent / "docs" / "own-parts.md").read_text()
    (tmp_path / "prox.py").write_text(page.partition("```python\n")[2].partition("```")[0])
    monkeypatch.syspath_prepend(tmp_path)
    plain = Recipe.load("fedavg-digits", ["rounds.count=1", "data.train_limit=100", "data.test_limit=30"])

    def distance(*changes: str) -> float:
        recipe = plain.override([*changes, "training.epochs=3"])
        return float(np.linalg.norm(sordino.run(recipe, workers=1).parameters - wire(recipe).method.init().parameters))

    prox = "training.optimizer.name=prox:Prox"
    assert distance(prox, "training.optimizer.mu=0.0") == pytest.approx(distance(), rel=1e-5)
    assert distance(prox, "training.optimizer.mu=1.0") < 0.9 * distance()


def test_what_is_no_part_and_what_is_not_there_are_refused():
    for address, why in (("json:loads", "is no part"), ("nowhere_at_all:Part", "could not be imported")):
        with pytest.raises(RecipeInvalid, match=why):
            Recipe.load("quickstart", [f"method.aggregation.kind={address}"])

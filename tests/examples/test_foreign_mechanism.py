"""A copy of the two-point mechanism's file, renamed, in somebody else's installed package: all doors are open to it."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr")

import sordino
from sordino.cli import app
from sordino.client.client import Client
from sordino.client.refusal import Reason
from sordino.learning import datasets
from sordino.mechanisms import two_point
from sordino.parts import registry
from sordino.privacy.ledger import Released
from sordino.recipe import Recipe
from sordino.wire.signing import SigningKey
from tests.client import people
from tests.engine.tiny import left
from tests.flower.test_fleet import Parties

NAME, ADDRESS = "foreign", "foreign_points.mechanism:Foreign"
KILLED = """
import os, signal, sys
import sordino  # noqa: E402
from sordino.runs.observer import Observer

class Kill(Observer):
    def round(self, record, attendance):
        os.kill(os.getpid(), signal.SIGKILL)

sordino.run(sordino.Recipe.load(sys.argv[1]), folder=sys.argv[2], workers=1, observer=Kill())
"""


@pytest.fixture
def foreign(tmp_path, monkeypatch):
    """The package as an installer leaves it, on the path of this process and of those that it starts."""
    site = tmp_path / "site"
    package, info = site / "foreign_points", site / "foreign_points-1.0.dist-info"
    package.mkdir(parents=True)
    info.mkdir()
    source = Path(two_point.__file__).read_text().replace("TwoPoint", "Foreign").replace('"two-point"', f'"{NAME}"')
    (package / "__init__.py").touch()
    (package / "mechanism.py").write_text(source)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: foreign-points\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[sordino.parts]\nmechanism.{NAME} = {ADDRESS}\n")
    monkeypatch.syspath_prepend(site)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(site), *filter(None, [os.environ.get("PYTHONPATH")])]))
    monkeypatch.setattr(datasets, "load", people.read_once)
    monkeypatch.setattr("sordino.mechanisms.cases.WIDE", (128, 3_001))
    monkeypatch.setattr(SigningKey, "new", classmethod(lambda _: people.KEY))  # the coordinator that all clients know
    for cached in (registry._installed, registry._table):
        cached.cache_clear()
    yield
    for cached in (registry._installed, registry._table):
        cached.cache_clear()
    for name in [name for name in sys.modules if name.startswith("foreign_points")]:
        del sys.modules[name]


def said(*words: str | Path) -> dict | list:
    result = CliRunner().invoke(app, [*map(str, words), "--json"])
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_a_copy_of_the_two_point_file_runs_is_planned_and_audited_and_leaves_a_real_client_without_a_proof(
    foreign, tmp_path
):
    shipped = people.recipe()
    recipe = shipped.override([f"method.mechanism.name={NAME}"])
    assert recipe.own_code == (ADDRESS,)

    # run: the same bits as the shipped mechanism's
    outcome = sordino.run(recipe, folder=tmp_path / "whole", workers=1)
    assert np.array_equal(outcome.parameters, sordino.run(shipped, workers=1).parameters)

    # resume after a kill
    written = tmp_path / "recipe.toml"
    written.write_text(recipe.to_toml())
    program = [sys.executable, "-c", KILLED, str(written), str(tmp_path / "parts")]
    assert subprocess.run(program, check=False).returncode == -signal.SIGKILL
    sordino.run(Recipe.load(written), folder=tmp_path / "parts", workers=1, resume=True)
    assert left(tmp_path / "parts") == left(tmp_path / "whole")

    # plan
    asked = ("--values", "20", "--rounds", "2", "--epsilon", "8")
    (own,), (theirs,) = (said("plan", "--mechanism", name, *asked) for name in (NAME, "two-point"))
    assert {**own, "mechanism": "two-point"} == theirs

    # audit, of the mechanism and of the run
    audited = said("audit", NAME, "--trials", "20000")
    assert {row["mechanism"] for row in audited["rows"]} == {NAME}
    assert audited["checks"] and all(check["passed"] for check in audited["checks"])
    of_the_run = said("audit", tmp_path / "whole", "--trials", "2000")
    assert not of_the_run["violated"] and {row["mechanism"] for row in of_the_run["rows"]} == {NAME}

    # ledger: whoever did not list the code declines, and so does who did, until the owner lets it leave without a proof
    invited, plans, willing = people.invitation(recipe).encode(), people.plans(recipe), {"code": [ADDRESS]}
    for name, consents in (("careful", {}), ("willing", willing)):
        with people.client(tmp_path / name, people.settings(**consents)) as client, people.refused(Reason.CONSENT):
            client.join(invited)
    willing["unproven"] = ["model update"]
    with people.client(tmp_path / "unproven", people.settings(**willing)) as client:
        client.join(invited)
        assert all(client.reply("report", people.signed(plans(round), given=recipe)).fine for round in (1, 2, 3))
    with Client.open(tmp_path / "unproven") as again:
        assert (again.standing.spent, again.standing.unprotected) == (0, 3)
        assert sum(isinstance(entry.event, Released) for entry in again.ledger.entries()) == 3

    # Flower: real clients behind its nodes, and the simulation's model to the last bit
    with tempfile.TemporaryDirectory(prefix="sdo-") as place:  # paths of sockets have about a hundred letters
        parties = Parties(Path(place), recipe, **willing)
        parties.serve_all(injected=True)
        try:
            assert np.array_equal(parties.run().parameters, outcome.parameters)
            assert parties.spent(0)[0] == recipe.rounds.count
        finally:
            for served in parties.served.values():
                served.stop()

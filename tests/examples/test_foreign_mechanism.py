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
from sordino.client.refusal import Reason, Refused
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


def test_a_copy_of_the_two_point_file_runs_resumes_is_planned_audited_accounted_and_sent_by_flower(foreign, tmp_path):
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

    # ledger: whoever did not list the code declines; whoever did spends the budget, and no more
    invited, plans = people.invitation(recipe).encode(), people.plans(recipe)
    with people.client(tmp_path / "careful") as careful, pytest.raises(Refused) as caught:
        careful.offer(invited)
    assert caught.value.reason is Reason.CONSENT
    with people.client(tmp_path / "willing", people.settings(limit=2.5 * people.COST, code=[ADDRESS])) as willing:
        willing.join(invited)
        replies = [willing.reply("report", people.signed(plans(round), given=recipe)) for round in (1, 2, 3)]
    assert [reply.fine for reply in replies[:2]] == [True, True] and replies[2].reason
    with Client.open(tmp_path / "willing") as again:
        assert again.standing.spent == pytest.approx(2 * people.COST)
        assert sum(isinstance(entry.event, Released) for entry in again.ledger.entries()) == 2

    # Flower: real clients behind its nodes, and the simulation's model to the last bit
    with tempfile.TemporaryDirectory(prefix="sdo-") as place:  # paths of sockets have about a hundred letters
        parties = Parties(Path(place), recipe, code=[ADDRESS])
        parties.serve_all(injected=True)
        try:
            assert np.array_equal(parties.run().parameters, outcome.parameters)
            assert parties.spent(0)[0] == recipe.rounds.count
        finally:
            for served in parties.served.values():
                served.stop()

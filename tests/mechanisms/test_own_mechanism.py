"""A mechanism of somebody's own, in a package of theirs: a copy of the two-point file is audited like a shipped one."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from sordino.audits import catalogue, lower_bound
from sordino.audits.inspection import inspect_one, level
from sordino.audits.mechanisms import subjects
from sordino.audits.uploads import AuditedClient, whole
from sordino.cli import app
from sordino.errors import InvalidInput
from sordino.mechanisms import Box, mechanism_named, two_point
from sordino.mechanisms.cases import Case
from sordino.methods.upload import Upload
from sordino.privacy.accountant import epsilon
from sordino.privacy.guarantee import SERVER, Adjacency

HONEST, BROKEN, BARE = "their_package.honest:Coin", "their_package.broken:Coin", "their_package.bare:Coin"
BROKEN_SOURCE = """
import numpy as np
from their_package.honest import Coin as Honest


class HalfTheNoise:
    def __init__(self, inner):
        self.inner, self.clients = inner, inner.clients

    def words(self, *where):
        return (self.inner.words(*where).view(np.int32) // 2).view(np.uint32)


class Coin(Honest):
    guarantee = Honest.guarantee

    def randomize(self, values, randomness, *, tensor=0):
        return super().randomize(values, HalfTheNoise(randomness), tensor=tensor)

    guarantee = Honest.guarantee
"""
BARE_SOURCE = """
from their_package.honest import Coin as Honest
from sordino import Mechanism


class Coin(Honest):
    audit_cases, specimens = Mechanism.audit_cases, Mechanism.specimens
    law, likelihood_ratio, reach = Mechanism.law, Mechanism.likelihood_ratio, Mechanism.reach
"""


@pytest.fixture(autouse=True)
def their_package(tmp_path, monkeypatch):
    """`honest` is the shipped file under other names, `broken` has half its noise, `bare` says nothing for audits."""
    source = Path(two_point.__file__).read_text().replace("class TwoPoint", "class Coin")
    source = source.replace('"two-point"', '"coin"')
    folder = tmp_path / "their_package"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "honest.py").write_text(source)
    (folder / "broken.py").write_text(BROKEN_SOURCE)
    (folder / "bare.py").write_text(BARE_SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("sordino.mechanisms.cases.WIDE", (128, 3_001))
    yield
    for name in [name for name in sys.modules if name.startswith("their_package")]:
        del sys.modules[name]


def audit(name: str, *options: str):
    return CliRunner().invoke(app, ["audit", name, "--trials", "20000", "--json", *options])


def test_the_command_finds_the_cases_of_an_own_mechanism():
    result = audit(HONEST)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert {row["mechanism"] for row in found["rows"]} == {"coin"}
    assert len(found["rows"]) == 3
    assert len(found["checks"]) == 2
    assert all(check["passed"] for check in found["checks"])


def test_the_command_finds_half_the_noise():
    result = audit(BROKEN)
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert {row["verdict"] for row in found["rows"]} == {lower_bound.VIOLATED}
    assert not any(check["passed"] for check in found["checks"])


@pytest.mark.parametrize(("name", "passed"), [(HONEST, True), (BROKEN, False)])
def test_draws_are_checked_against_its_own_law(name, passed):
    for subject in subjects(mechanism_named(name), 1.0):
        assert inspect_one(subject, 3, level(0)).passed is passed


def of_an_upload(name: str) -> lower_bound.AuditRow:
    """The audit of 4 values that a client of a run sends, at epsilon 0.5 each."""
    mechanism = mechanism_named(name)(0.5, Box())  # type: ignore[call-arg]
    sender = AuditedClient(Upload(lambda _: mechanism, None, 4, clients=3, what="update"), 1, 0)
    proven = epsilon(mechanism.guarantee(values=4).loss, 0.0)
    sampler = whole(sender, *mechanism.worst_pair(4))
    case = Case("coin", "upload", Adjacency.CLIENT, SERVER, None, proven, 0.0, "", "ends", sampler=sampler)
    return lower_bound.run(case, trials=200_000, seed=4)


def test_the_likelihood_of_its_reports_is_audited():
    """Half the noise doubles each value's signal: 2 is proven, and far more is seen."""
    honest, broken = of_an_upload(HONEST), of_an_upload(BROKEN)
    assert 1.5 < honest.audited <= honest.proven
    assert broken.verdict == lower_bound.VIOLATED


def test_without_a_law_reports_are_scored_by_their_estimates():
    """Of values that all lie at the same ends, the sum of estimates orders reports as the likelihood does."""
    assert of_an_upload(BARE).audited == pytest.approx(of_an_upload(HONEST).audited, abs=0.2)
    values = np.ones(3, np.float32)
    mechanism = mechanism_named(BARE)(1.0)  # type: ignore[call-arg]
    assert mechanism.law(values) is None
    assert not catalogue.cases(type(mechanism))


def test_it_is_planned_as_the_shipped_one():
    asked = ["--values", "20", "--rounds", "2", "--epsilon", "8", "--json"]
    own, shipped = (
        json.loads(CliRunner().invoke(app, ["plan", "--mechanism", name, *asked]).stdout)[0]
        for name in (HONEST, "two-point")
    )
    assert {**own, "mechanism": "two-point"} == shipped


def test_a_mechanism_that_says_nothing_for_audits_is_refused_with_the_remedy():
    result = audit(BARE)
    assert result.exit_code == 1
    assert "audit_cases" in result.stderr


@pytest.mark.parametrize("name", ["their_package.honest:None", "their_package.missing:Coin", "json:loads"])
def test_what_is_no_mechanism_is_refused(name):
    with pytest.raises(InvalidInput):
        mechanism_named(name)

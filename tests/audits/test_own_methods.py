"""Attacks on methods of one's own: which of them fit follows from what a method states of its reports."""

import sys
from pathlib import Path
from typing import ClassVar

import pytest

from sordino.audits.attack_options import AttackOptions
from sordino.audits.finished_run import FinishedRun
from sordino.audits.label_inference import infer_labels
from sordino.audits.linking import link
from sordino.audits.membership import ShadowEffort, tell
from sordino.audits.reconstruction import reconstruct
from sordino.errors import InvalidInput
from sordino.mechanisms import NoPrivacy
from sordino.mechanisms.spec import MechanismSpec
from sordino.methods.aggregation import Mean
from sordino.methods.blueprint import Blueprint
from sordino.methods.interface import Bench, Cohort, Method, ReportContent, Reported, State
from sordino.methods.round_steps import moved, send, train
from sordino.methods.selection import SelectAll
from sordino.methods.spec import MeanSpec
from sordino.methods.upload import Draw, Same, Tally, Upload
from sordino.parts import registry
from sordino.parts.tables import tag
from sordino.recipe import Recipe
from sordino.runs.simulation import run
from sordino.wire.messages import Plan
from tests.engine.tiny import VALUES, recipe

EXAMPLE = Path(__file__).parent.parent.parent / "examples" / "own_method"
FEW = ShadowEffort(shadows=8, held_out=100, trials=100, records=10, rounds=1, repeated=1e12, work=1e12)


class Part(Method):
    """Sends the updates of the first half of the parameters, and says so."""

    sent: ClassVar[int] = VALUES // 2

    class Spec(MeanSpec):
        """Half of the updates."""

        sends_updates: ClassVar[bool] = True
        name: str = tag("part", "half of the updates")
        selection: ClassVar[SelectAll] = SelectAll()
        mechanism: ClassVar[MechanismSpec] = NoPrivacy.Spec()
        aggregation: ClassVar[Mean] = Mean()

        def build(self, blueprint: Blueprint) -> "Part":
            return self.made(Part, blueprint)

        def made(self, kind: type["Part"], blueprint: Blueprint) -> "Part":
            return kind(blueprint, Upload(Same(NoPrivacy()), None, kind.sent, clients=blueprint.clients, what="part"))

    def columns(self, plan: Plan) -> slice:
        return slice(0, self.sent)

    def report(self, plan: Plan, cohort: Cohort, draw: Draw, bench: Bench) -> Reported:
        trained = train(self, plan, cohort, draw, bench)
        return send(self.upload(plan), cohort, trained.update[:, : self.sent], draw, trained)

    def update(self, state: State, plan: Plan, tally: Tally) -> State:
        return moved(state, tally.mean(), self.statistics, slice(0, self.sent))


class Sketch(Part):
    """The same without a word on which parameters these are."""

    class Spec(Part.Spec):
        """Half of the updates, unsaid."""

        name: str = tag("sketch", "half of the updates")

        def build(self, blueprint: Blueprint) -> Part:
            return self.made(Sketch, blueprint)

    def columns(self, plan: Plan) -> slice:
        return Method.columns(self, plan)


class Trusting(Part):
    """The same for a server that adds the noise."""

    report_content: ClassVar[ReportContent] = "model for a trusted server"

    class Spec(Part.Spec):
        """Half of the updates, for a trusted server."""

        name: str = tag("trusting", "half of the updates")

        def build(self, blueprint: Blueprint) -> Part:
            return self.made(Trusting, blueprint)


@pytest.fixture
def finished(tmp_path):
    def carry_out(given: Recipe) -> FinishedRun:
        run(given, folder=tmp_path / "run", workers=1)
        return FinishedRun.open(tmp_path / "run")

    return carry_out


def attacks(own: FinishedRun) -> dict[str, int]:
    """How many leaks each attack on reports of models finds; linking and labels as well as members."""
    asked = AttackOptions()
    found = {"membership": tell(own, asked, FEW), "labels": infer_labels(own, asked), "linking": link(own, asked)}
    return {name: len(leaks) for name, leaks in found.items()}


def test_the_example_is_attacked_in_every_way(finished, monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLE)
    changes = ["rounds.count=2", "data.train_limit=90", "data.test_limit=60"]
    try:
        own = finished(Recipe.load(EXAMPLE / "recipe.toml", changes))
        assert attacks(own) == {"membership": 2, "labels": 1, "linking": 1}
        (alone, *_) = reconstruct(own, AttackOptions())
        assert alone.share.rate > 0.9
    finally:
        sys.modules.pop("fedadam", None)
        registry._table.cache_clear()


def test_a_method_that_says_which_parameters_it_sends_is_attacked(finished):
    own = finished(recipe({"method": {"name": f"{__name__}:Part"}}))
    assert attacks(own) == {"membership": 2, "labels": 1, "linking": 1}


def test_reports_that_are_no_parameters_are_left_out(finished):
    own = finished(recipe({"method": {"name": f"{__name__}:Sketch"}}))
    assert attacks(own) == {"membership": 0, "labels": 0, "linking": 0}
    with pytest.raises(InvalidInput, match="no parameters"):
        reconstruct(own, AttackOptions())


def test_noise_of_a_trusted_server_is_not_taken_for_the_reports_own(finished):
    own = finished(recipe({"method": {"name": f"{__name__}:Trusting"}}))
    assert attacks(own) == {"membership": 0, "labels": 0, "linking": 0}

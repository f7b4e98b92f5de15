"""Stopping rules: shipped ones by hand-made accuracies, and one of somebody's own in a run."""

from collections.abc import Sequence

import pytest
from pydantic import Field

import sordino
from sordino.methods.stopping_rules import Patience, StoppingSpec, TargetAccuracy
from sordino.parts.tables import Count, tag
from sordino.privacy.history import RoundReleases
from sordino.recipe import CodeNotAllowed, Recipe, RecipeInvalid
from sordino.report.records import RoundRecord
from sordino.runs.stopping import Progress, Stopping
from tests.engine.tiny import recipe

OWN = "tests.methods.test_stopping_rules:AfterEvaluations"


class AfterEvaluations(StoppingSpec):
    """Stop after so many evaluations, whatever they say."""

    kind: str = tag("after", "after so many evaluations")
    evaluations: Count = Field(description="how many")

    def reason(self, scores: Sequence[float]) -> str | None:
        return "enough is enough" if len(scores) >= self.evaluations else None


@pytest.mark.parametrize(
    ("accuracies", "stops"),
    [([], False), ([0.5], False), ([0.1, 0.8], True), ([0.9, 0.1], True)],
    ids=["none", "below", "reached", "reached before"],
)
def test_a_target_stops_once_it_was_reached(accuracies, stops):
    assert (TargetAccuracy(accuracy=0.8).reason(accuracies) is not None) == stops


@pytest.mark.parametrize(
    ("accuracies", "stops"),
    [([], False), ([0.5, 0.5], False), ([0.5, 0.5, 0.4], True), ([0.5, 0.4, 0.6], False)],
    ids=["none", "one since", "two since", "improved"],
)
def test_patience_counts_evaluations_since_the_first_best(accuracies, stops):
    assert (Patience(evaluations=2).reason(accuracies) is not None) == stops


@pytest.mark.parametrize(
    ("metric", "value", "scores", "stops"),
    [
        ("log-loss", 0.5, [0.9, 0.6], False),
        ("log-loss", 0.5, [0.9, 0.4], True),
        ("f1", 0.5, [0.2, 0.4], False),
        ("f1", 0.5, [0.2, 0.6], True),
    ],
)
def test_a_score_is_reached_in_the_direction_of_its_metric(metric, value, scores, stops):
    given = recipe(
        {"rounds.stop": {"kind": "score", "value": value}, "rounds.stop_on": "test", "evaluation.metric.kind": metric}
    )
    records = [RoundRecord(k, metric=metric, score=score) for k, score in enumerate(scores, 1)]
    stopping = Stopping(given, 4, given.evaluation.metric)
    assert (stopping.reason(Progress(), len(records), records) is not None) == stops


@pytest.mark.parametrize(("scores", "stops"), [([0.9, 0.5, 0.6, 0.7], True), ([0.9, 0.8, 0.6, 0.5], False)])
def test_patience_waits_for_a_smaller_loss(scores, stops):
    given = recipe(
        {"rounds.patience": 2, "rounds.stop_on": "test", "evaluation.metric.kind": "log-loss", "rounds.count": 9}
    )
    records = [RoundRecord(k, metric="log-loss", score=score) for k, score in enumerate(scores, 1)]
    assert (Stopping(given, 4, given.evaluation.metric).reason(Progress(), 4, records) is not None) == stops


def test_who_comes_in_the_place_of_one_whose_budget_was_spent_is_not_given_up_before_it_is_asked():
    given = recipe({"rounds.quorum": 3, "rounds.count": 9})
    stopping, names = Stopping(given, 4), {n: f"m{n}" for n in range(4)}
    stopping.note_answers(RoundReleases(1, (), (), {1: "no budget"}, names))
    assert stopping.reason(Progress(), 1, []) is None
    stopping.note_answers(RoundReleases(2, (), (), {2: "no budget"}, {**names, 1: "new"}))
    assert stopping.reason(Progress(), 2, []) is None  # one of four has no budget, and not two
    stopping.note_answers(RoundReleases(3, (), (), {1: "none either"}, {**names, 1: "new"}))
    assert stopping.reason(Progress(), 3, []) is not None


def test_a_target_accuracy_is_refused_where_smaller_is_better():
    with pytest.raises(RecipeInvalid, match=r"rounds\.target_accuracy"):
        recipe({"rounds.target_accuracy": 0.9, "rounds.stop_on": "test", "evaluation.metric.kind": "log-loss"})


def test_a_recipe_names_a_rule_of_its_own_and_the_run_ends_by_it():
    rules = {"rounds.stop": {"kind": OWN, "evaluations": 2}, "rounds.stop_on": "test", "rounds.patience": 9}
    given = recipe(rules)
    assert given.own_code == (OWN,)
    outcome = sordino.run(given)
    assert outcome.result.rounds == 2 and outcome.result.stopped.startswith("enough is enough on the test set")
    assert outcome.statement.caveats  # when to stop was decided by what the model scored
    with pytest.raises(CodeNotAllowed):
        Recipe.from_toml(given.to_toml())


def test_the_shipped_rules_have_a_short_form():
    written = recipe({"rounds.stop": {"kind": "patience", "evaluations": 3}, "rounds.stop_on": "test"})
    short = recipe({"rounds.patience": 3, "rounds.stop_on": "test"})
    assert written.rounds.stopping_rules == short.rounds.stopping_rules == [Patience(evaluations=3)]
    assert "rounds.stop" not in short.to_toml()


def test_a_rule_that_goes_by_examples_set_aside_needs_some():
    with pytest.raises(RecipeInvalid, match=r"rounds\.stop: .*data\.validation"):
        recipe({"rounds.stop": {"kind": OWN, "evaluations": 2}})

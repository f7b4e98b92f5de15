"""What a round is scored by: shipped figures by hand, and one of somebody's own, which decides when to stop."""

from pathlib import Path

import numpy as np
import pytest

import sordino
from sordino.learning.evaluation import Scores
from sordino.learning.metrics import Accuracy, BalancedAccuracy
from sordino.parts.registry import CodeNotAllowed
from sordino.recipe import Recipe

OWN = """
from sordino.learning.metrics import MetricSpec
from sordino.parts.tables import Positive

class Gain(MetricSpec):
    kind: str = "gain_metric:Gain"
    each: Positive = 1.0

    def value(self, scores):
        return self.each * scores.examples
"""
RECIPE = """
name = "scored"
[data]
source = "digits"
train_limit = 60
test_limit = 20
[split]
kind = "iid"
clients = 3
[model]
name = "logistic"
[method]
name = "fedavg"
[rounds]
count = 3
[evaluation.metric]
"""


def test_shipped_figures_by_hand() -> None:
    scores = Scores(np.array([[6, 2, 0], [1, 1, 0], [0, 0, 0]]), 1.0)
    assert Accuracy().value(scores) == 0.7
    assert BalancedAccuracy().value(scores) == (0.75 + 0.5) / 2  # nobody has examples of the third class
    assert BalancedAccuracy().value(Scores.none(3)) == 0.0


def test_the_metric_is_in_every_round_and_leaves_recipes_without_one_as_they_were() -> None:
    scored = Recipe.from_toml(RECIPE + 'kind = "balanced-accuracy"\n')
    outcome = sordino.run(scored, workers=1)
    confusion = np.array(outcome.result.confusion)
    shares = np.diag(confusion) / np.maximum(confusion.sum(axis=1), 1)
    assert outcome.rounds[-1].score == pytest.approx(shares[confusion.sum(axis=1) > 0].mean())
    plain = Recipe.from_toml(RECIPE.replace("[evaluation.metric]", ""))
    assert "evaluation.metric" not in plain.to_toml()
    assert all(record.score is None for record in sordino.run(plain, workers=1).rounds)


def test_a_metric_of_ones_own_decides_when_to_stop_and_is_imported_only_where_it_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gain_metric.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    text = (
        RECIPE.replace("count = 3", 'count = 3\npatience = 1\nstop_on = "test"')
        + 'kind = "gain_metric:Gain"\neach = 0.5\n'
    )
    with pytest.raises(CodeNotAllowed):
        Recipe.from_toml(text)
    outcome = sordino.run(Recipe.from_toml(text, ["gain_metric:Gain"]), workers=1)
    assert [record.score for record in outcome.rounds] == [10.0, 10.0]  # of 20 examples; the second round gains nothing

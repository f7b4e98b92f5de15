"""What a round is scored by: shipped figures by hand, and one of somebody's own, which decides when to stop."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import sordino
from sordino.learning.evaluation import Scores
from sordino.learning.metrics import F1, Accuracy, AveragePrecision, BalancedAccuracy, Calibration, MetricSpec, RocAuc
from sordino.parts.registry import CodeNotAllowed
from sordino.recipe import Recipe
from sordino.report.records import Result

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


def scores_of(labels: list[int], chances: list[list[float]]) -> Scores:
    """Scores as `score` makes them of examples with these labels and chances."""
    y, given = np.array(labels), np.array(chances, np.float32).reshape(len(labels), -1)
    classes = given.shape[1]
    counts = np.bincount(y * classes + given.argmax(axis=1), minlength=classes**2)
    return Scores(counts.reshape(classes, classes), 0.0, y, given)


def test_figures_from_chances_by_hand() -> None:
    """Two examples of each class; of the four pairs one is in the wrong order and one is tied."""
    second = [0.1, 0.6, 0.6, 0.9]
    scores = scores_of([0, 0, 1, 1], [[1 - c, c] for c in second])
    assert RocAuc().value(scores) == pytest.approx(3.5 / 4)
    assert AveragePrecision().value(scores) == pytest.approx((1 + 2 / 3) / 2)
    assert F1().value(scores) == pytest.approx(2 * 2 / (3 + 2))
    # answers: 0 at 0.9 (right), 1 at 0.6 (wrong), 1 at 0.6 (right), 1 at 0.9 (right)
    assert Calibration().value(scores) == pytest.approx(1 - (abs(1.2 - 1) + abs(1.8 - 2)) / 4, abs=1e-6)


def test_of_more_than_two_classes_the_mean_counts_of_those_that_are_there() -> None:
    scores = scores_of([0, 1], [[0.8, 0.1, 0.1], [0.3, 0.6, 0.1]])
    assert [metric.value(scores) for metric in (F1(), RocAuc(), AveragePrecision())] == [1.0, 1.0, 1.0]


@given(
    labels=st.lists(st.integers(0, 1), min_size=2, max_size=30),
    seed=st.integers(0, 2**31),
)
def test_figures_are_what_their_definitions_say(labels: list[int], seed: int) -> None:
    """Pair by pair and threshold by threshold; with ties, as chances are rounded to one place."""
    assume(0 < sum(labels) < len(labels))
    second = np.random.default_rng(seed).random(len(labels)).round(1).astype(np.float32)
    scores = scores_of(labels, np.stack([1 - second, second], axis=1).tolist())
    own, others = ([c for c, y in zip(second, labels, strict=True) if y == k] for k in (1, 0))
    pairs = [float(a > b) + 0.5 * float(a == b) for a in own for b in others]
    assert RocAuc().value(scores) == pytest.approx(np.mean(pairs))
    precision = [sum(a >= c for a in own) / sum(a >= c for a in second) for c in own]
    assert AveragePrecision().value(scores) == pytest.approx(np.mean(precision))


@pytest.mark.parametrize("metric", [F1(), RocAuc(), AveragePrecision(), Calibration()])
def test_figures_of_no_examples_are_numbers(metric: MetricSpec) -> None:
    assert metric.value(Scores.none(2)) in (0.0, 0.5)


@pytest.mark.process
@pytest.mark.parametrize("kind", ["f1", "roc-auc", "average-precision", "calibration"])
def test_every_metric_scores_a_run_the_same_in_any_number_of_workers(kind: str) -> None:
    recipe = Recipe.from_toml(RECIPE + f'kind = "{kind}"\n')
    alone, together = (sordino.run(recipe, workers=workers).rounds[-1].score for workers in (1, 2))
    assert alone is not None and 0 < alone <= 1 and alone == together


def test_a_result_says_how_sure_its_accuracy_is_and_what_knowing_nothing_has() -> None:
    """Wilson's interval of 80 right of 100: 0.711 to 0.867."""
    result = Result("x", 1, "over", 1, accuracy=0.8, confusion=((60, 10), (10, 20)), classes=("a", "b"))
    assert result.accuracy_interval == pytest.approx((0.7112, 0.8666), abs=1e-4)
    assert result.commonest == 0.7
    assert Result("x", 1, "over", 1).accuracy_interval is None


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

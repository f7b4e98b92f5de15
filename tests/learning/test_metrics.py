"""What a round is scored by: shipped figures by hand, and one of somebody's own, which decides when to stop."""

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from sklearn import metrics as reference

import sordino
from sordino.learning.evaluation import Scores
from sordino.learning.metrics import (
    F1,
    R2,
    Accuracy,
    AveragePrecision,
    BalancedAccuracy,
    Calibration,
    LogLoss,
    MeanAbsoluteError,
    MetricSpec,
    RocAuc,
    RootMeanSquaredError,
)
from sordino.learning.tasks import CLASSES, LABELS, LearningTask, Regression
from sordino.parts import registry
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


NONE = np.zeros((0, 0), np.int64)
RANGE = Regression(-100, 100)


@settings(max_examples=30)
@given(n=st.integers(2, 40), seed=st.integers(0, 2**31))
def test_figures_of_numbers_are_those_of_scikit_learn(n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth, said = (rng.normal(50, 20, n).astype(np.float32) for _ in range(2))
    scores = Scores(NONE, 0.0, truth, answers=said)
    assert MeanAbsoluteError().value(scores) == pytest.approx(reference.mean_absolute_error(truth, said), rel=1e-5)
    assert RootMeanSquaredError().value(scores) == pytest.approx(
        reference.root_mean_squared_error(truth, said), rel=1e-5
    )
    wide = truth.astype(np.float64), said.astype(np.float64)
    assert R2().value(scores) == pytest.approx(reference.r2_score(*wide), rel=1e-5, abs=1e-6)
    assert R2().baseline(scores) == pytest.approx(0, abs=1e-5)


@settings(max_examples=30)
@given(n=st.integers(4, 40), labels=st.integers(1, 4), seed=st.integers(0, 2**31))
def test_figures_of_labels_are_those_of_scikit_learn(n: int, labels: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth, chances = rng.integers(0, 2, (n, labels)), rng.random((n, labels)).round(1).astype(np.float32)
    assume(((truth.sum(axis=0) > 0) & (truth.sum(axis=0) < n)).all())
    scores = Scores(NONE, 0.0, truth, chances)
    kinds = {"average": "macro"}
    said = chances > 0.5
    single = [reference.f1_score(truth[:, k], said[:, k], zero_division=0) for k in range(labels)]
    assert F1().value(scores) == pytest.approx(np.mean(single))
    assert RocAuc().value(scores) == pytest.approx(reference.roc_auc_score(truth, chances, **kinds))
    assert AveragePrecision().value(scores) == pytest.approx(reference.average_precision_score(truth, chances, **kinds))
    inside = Scores(NONE, 0.0, truth, chances.clip(0.1, 0.9))
    logs = [reference.log_loss(truth[:, k], inside.chances[:, k].astype(float)) for k in range(labels)]
    assert LogLoss().value(inside) == pytest.approx(np.mean(logs), rel=1e-5)


@settings(max_examples=30)
@given(n=st.integers(2, 40), classes=st.integers(2, 4), seed=st.integers(0, 2**31))
def test_the_log_loss_of_classes_is_that_of_scikit_learn(n: int, classes: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    truth, chances = rng.integers(0, classes, n), rng.dirichlet(np.ones(classes), n).astype(np.float32)
    wide = chances.astype(np.float64)
    told = reference.log_loss(truth, wide / wide.sum(axis=1, keepdims=True), labels=list(range(classes)))
    assert LogLoss().value(scores_of(truth.tolist(), chances.tolist())) == pytest.approx(told, rel=1e-4)


def test_baselines_are_those_of_the_best_constant_answer() -> None:
    """Nine of twelve examples are of the first class: it is the commonest answer, and its share the best chance."""
    scores = scores_of([0] * 9 + [1] * 3, [[0.2, 0.8]] * 12)
    entropy = -(0.75 * np.log(0.75) + 0.25 * np.log(0.25))
    for metric, value in ((Accuracy(), 0.75), (BalancedAccuracy(), 0.5), (F1(), 0.0), (RocAuc(), 0.5)):
        assert metric.baseline(scores) == value
    assert LogLoss().baseline(scores) == pytest.approx(entropy) and AveragePrecision().baseline(scores) == 0.25
    numbers = Scores(NONE, 0.0, np.array([1, 2, 6], np.float32), answers=np.zeros(3, np.float32))
    assert MeanAbsoluteError().baseline(numbers) == pytest.approx((2 + 1 + 3) / 3)
    labels = Scores(NONE, 0.0, np.array([[1, 0], [1, 0], [1, 1]]), np.zeros((3, 2), np.float32))
    assert F1().baseline(labels) == pytest.approx((1 + 0) / 2)


def test_an_interval_covers_the_figure_of_the_population_as_often_as_it_says() -> None:
    """Of 100 test sets, about 95 intervals hold the true mean error; fewer than 87 have a chance below 1e-3."""
    rng, held = np.random.default_rng(5), 0
    for _ in range(100):
        errors = rng.exponential(size=150).astype(np.float32)  # with mean 1
        low, high = MeanAbsoluteError().interval(Scores(NONE, 0.0, np.zeros(150, np.float32), answers=errors)) or (9, 9)
        held += low <= 1 <= high
    assert 87 <= held < 100


@pytest.mark.parametrize("task", [CLASSES, LABELS, RANGE])
def test_pieces_of_scores_add_up(task: LearningTask) -> None:
    none = Scores.none(2, task)
    assert none.examples == 0 and Scores.together([none, none]).examples == 0
    for spec in registry.tables("metric").values():
        if task.kind in spec.tasks:
            assert np.isfinite(spec().value(none))


def test_every_metric_of_classes_is_the_same_of_examples_in_pieces() -> None:
    """As workers make them: the same bits, however many examples each of them scores."""
    rng = np.random.default_rng(3)
    labels, chances = rng.integers(0, 3, 40), rng.random((40, 3), np.float32)

    def scores(part: slice) -> Scores:
        confusion = np.zeros((3, 3), np.int64)
        np.add.at(confusion, (labels[part], chances[part].argmax(axis=1)), 1)
        return Scores(confusion, 2.0 * len(labels[part]), labels[part], chances[part])

    whole = scores(slice(None))
    for spec in registry.tables("metric").values():
        if CLASSES.kind in spec.tasks:
            for ends in ([0, 40], [0, 1, 20, 40], [0, 13, 13, 26, 40]):
                pieces = [scores(slice(a, b)) for a, b in itertools.pairwise(ends)]
                assert spec().value(Scores.together(pieces)) == spec().value(whole)


@pytest.mark.process
@pytest.mark.parametrize("kind", ["f1", "roc-auc"])  # of counts, of likelihoods; the test above has all others
def test_a_run_is_scored_the_same_in_any_number_of_workers(kind: str) -> None:
    recipe = Recipe.from_toml(RECIPE + f'kind = "{kind}"\n')
    alone, together = (sordino.run(recipe, workers=workers).rounds[-1].score for workers in (1, 2))
    assert alone is not None and 0 < alone <= 1 and alone == together


def test_a_result_says_how_sure_its_accuracy_is_and_what_knowing_nothing_has() -> None:
    """Wilson's interval of 80 right of 100: 0.711 to 0.867."""
    result = Result("x", 1, "over", 1, accuracy=0.8, confusion=((60, 10), (10, 20)), classes=("a", "b"))
    assert result.accuracy_interval == pytest.approx((0.7112, 0.8666), abs=1e-4)
    assert result.commonest == 0.7
    assert Result("x", 1, "over", 1).accuracy_interval is None
    models = ((600, 100), (100, 200))  # ten models on the same examples are as sure as one
    ten = Result("x", 1, "over", 1, accuracy=0.8, confusion=models, classes=("a", "b"), test_examples=100)
    assert ten.accuracy_interval == result.accuracy_interval


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

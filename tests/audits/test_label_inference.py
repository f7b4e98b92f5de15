"""Classes of clients' records, from the last layers of their reports."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from sordino.audits.attack_options import AttackOptions
from sordino.audits.finished_run import FinishedRun
from sordino.audits.label_inference import Ridge, infer_labels, last_layer
from sordino.errors import InvalidInput
from sordino.learning.models import build, parameter_layout
from sordino.learning.partition import Partition
from sordino.runs.simulation import run
from tests.audits.runs import SGD, small
from tests.engine.tiny import recipe

TEN: dict[str, Any] = {"split.clients": 10, "data.train_limit": 200, "data.test_limit": 200}
NOISY: dict[str, Any] = {
    **TEN,
    "training": SGD,
    "method": {"name": "silo-dp", "clip": 1.0, "noise_multiplier": 50.0, "sampling_rate": 1.0, "steps": 1},
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory):
    """Finished runs by name, of which each is run once."""

    @cache
    def opened(name: str) -> FinishedRun:
        path = tmp_path_factory.mktemp("runs") / "run"
        given = {"plain": lambda: recipe(TEN), "noisy": lambda: recipe(NOISY)}
        run(given.get(name, lambda: small(name))(), folder=path, workers=1)
        return FinishedRun.open(path)

    return opened


def by_class(own: FinishedRun, classes_each: int = 1) -> FinishedRun:
    """The same run with other records: client c holds those of class c, and of the next ones."""
    labels = own.federation.dataset.train.y
    parts = [np.flatnonzero((labels - client) % 10 < classes_each) for client in range(10)]
    return replace(own, federation=replace(own.federation, parts=Partition(parts)))


def test_clients_with_one_class_are_told_exactly(runs):
    (leak,) = infer_labels(by_class(runs("plain")), AttackOptions())
    assert (leak.variant, leak.share.hits, leak.share.trials) == ("run", 100, 100)
    assert leak.chance == pytest.approx(0.9)
    assert leak.figures["mean_absolute_error"] < 0.02
    assert leak.figures["correlation"] > 0.98


def test_clients_with_three_classes_are_told(runs):
    (leak,) = infer_labels(by_class(runs("plain"), 3), AttackOptions())
    assert leak.chance == pytest.approx(0.7)
    assert leak.share.interval()[0] > 0.85
    assert leak.figures["correlation"] > 0.9


def test_much_noise_hides_classes_and_what_is_under_it_does_not(runs):
    noisy, bare = infer_labels(by_class(runs("noisy")), AttackOptions())
    assert (noisy.variant, bare.variant) == ("run", "bare")
    assert noisy.figures["correlation"] < 0.5
    assert bare.figures["correlation"] > 0.9
    assert bare.share.rate > noisy.share.rate


def test_one_client_may_be_named(runs):
    (leak,) = infer_labels(runs("plain"), AttackOptions(client=4))
    assert leak.share.trials == 10
    with pytest.raises(InvalidInput, match="client 99"):
        infer_labels(runs("plain"), AttackOptions(client=99))


@pytest.mark.parametrize("name", ["summed", "ldp-fl", "ldp-fl, models", "private-head", "central-dp"])
def test_there_is_nothing_to_read_where_no_report_is_seen(runs, name):
    assert infer_labels(runs(name), AttackOptions()) == ()


def test_real_clients_are_refused(runs):
    with pytest.raises(InvalidInput, match="real"):
        infer_labels(replace(runs("plain"), simulated=False), AttackOptions())


def test_the_last_layer_is_found():
    layout = parameter_layout(build("mlp", input_shape=(64,), classes=10, hidden=(8,)))
    biases, weights = last_layer(layout, 10)
    assert biases.tolist() == list(range(layout.size - 10, layout.size))
    assert weights.shape == (10, 8)
    assert weights[0, 0] == 64 * 8 + 8
    assert last_layer(parameter_layout(torch.nn.Linear(4, 3)), 10) is None


def test_the_regression_leaves_each_row_out():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(30, 4)), rng.normal(size=(30, 2))
    y += 3 * x[:, :2]
    fitted = Ridge.fit(x, y)
    assert fitted.error < 2
    assert np.abs(fitted.predict(x) - y).mean() < np.abs(fitted.held_out - y).mean()

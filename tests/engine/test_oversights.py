"""What is easily overlooked before a run: said or refused before the first round."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn

import sordino
from sordino.channels.direct import Direct
from sordino.errors import InvalidInput
from sordino.mechanisms import Box, TwoPoint
from sordino.report import expectations
from sordino.runs import preflight
from sordino.runs.coordinator import Coordinator
from sordino.runs.federation import wire
from tests.engine import tiny
from tests.engine.federations import fleet, work

SILO: dict[str, Any] = {
    "method": {"name": "silo-dp", "noise_multiplier": 1.0},
    "training": {"optimizer": {"name": "sgd", "lr": 0.1}},
    "clients.epsilon": None,
}


class Embedded(nn.Module):
    """Pixels as tokens, of which it knows a few."""

    def __init__(self, classes: int, rows: int) -> None:
        super().__init__()
        self.rows, self.head = nn.Embedding(rows, 4), nn.Linear(4, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.rows(x.flatten(1).long()).mean(1))


@pytest.mark.parametrize(("rows", "fits"), [(17, True), (16, False)])
def test_an_embedding_with_too_few_rows_is_refused_before_the_first_round(
    tmp_path: Path, rows: int, fits: bool
) -> None:
    x = np.zeros((12, 4), np.float32)
    x[3, 2] = 16
    np.savez(tmp_path / "own.npz", x_train=x, y_train=np.arange(12) % 2, x_test=x, y_test=np.arange(12) % 2)
    data = {"source": str(tmp_path / "own.npz"), "classes": ["a", "b"], "mean": [0], "std": [1]}
    given = tiny.recipe().to_dict() | {
        "data": data,
        "model": {"name": f"{__name__}:Embedded", "options": {"rows": rows}},
    }
    recipe = sordino.Recipe.from_dict(given)
    if fits:
        wire(recipe)
    else:
        with pytest.raises(InvalidInput, match="embedding"):
            wire(recipe)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, 0),
        ({"method.announced_size": 5}, 0),
        ({"method.announced_size": 10_000}, 1),
        ({"model.loss": {"kind": "cross-entropy", "weights": [1.0] * 9 + [8.0]}}, 1),
        ({"model.loss": {"kind": "cross-entropy", "weights": [0.1] * 9 + [1.0]}}, 0),
    ],
    ids=["plain", "about right", "far off", "weights that clipping undoes", "weights up to 1"],
)
def test_a_simulation_says_what_an_owner_overlooked(changes: dict[str, Any], said: int) -> None:
    federation = wire(tiny.recipe({**SILO, **changes}))
    if changes.get("method.announced_size") == 5:  # about as many as a client holds
        held = round(float(np.mean(federation.parts.sizes)))
        federation = wire(tiny.recipe({**SILO, "method.announced_size": held}))
    assert len(preflight._oversights(federation)) == said


def test_the_words_name_both_sizes() -> None:
    assert "900" in expectations.announced(900, 90) and "90 " in expectations.announced(900, 90)


def test_a_method_whose_update_returns_no_state_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    given = work(build=half, epsilons=[1.0, 1.0], sizes=[4, 4])
    own = fleet(given, workers=1)
    monkeypatch.setattr(type(given.method), "update", lambda *_: np.zeros(3))
    try:
        with pytest.raises(InvalidInput, match=r"\.update must return a State"):
            Coordinator(given.method, own, Direct(), "test").round(given.method.init())
    finally:
        own.close()


def half(epsilon: float) -> TwoPoint:
    return TwoPoint(epsilon, Box(0.0, 0.5))


class Told:
    """No observer, though it looks like one."""

    def round(self, record: object, attendance: object) -> None:
        """Never called."""


@pytest.mark.parametrize("observer", [Told(), sordino.Observer, [Told()], 7])
def test_what_is_no_observer_is_refused_before_anything_is_begun(observer: Any, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"sordino\.Observer"):
        sordino.run(tiny.recipe(), observer=observer)

"""Local learning: clients go on from their own models, nothing leaves them, and the mean of their accuracies counts."""

import itertools
from typing import Any

import numpy as np
import pytest

from sordino.fleets.tasks import Task
from sordino.learning.evaluation import ExamPiece, score
from sordino.methods.interface import Bench
from sordino.methods.local_only import PARAMETERS, LocalOnly
from sordino.privacy.statement import Statement
from sordino.recipe import Recipe, RecipeInvalid
from sordino.runs.federation import wire
from sordino.runs.observer import Observer
from sordino.runs.simulation import run
from tests.engine.tiny import TINY, left


class StopsAfterTwo(Observer):
    def round(self, record: Any, attendance: Any) -> None:
        if record.round == 2:
            raise KeyboardInterrupt


def settings(changes: dict[str, Any] | None = None) -> Recipe:
    return Recipe.from_dict({**TINY, "method": {"name": "local-only"}}).with_(changes or {})


def trained(recipe: Recipe) -> tuple[Any, dict[int, Any]]:
    """The method, and what its clients keep after all rounds, computed one by one."""
    federation = wire(recipe)
    method, work = federation.method, federation.work(Bench())
    assert isinstance(method, LocalOnly)
    state, kept = method.init(), dict[int, Any]()
    for _ in range(recipe.rounds.count):
        plan = method.plan(state, "test")
        for client in range(method.clients):
            _, done = Task((client,), (kept.get(client, {}),)).do(work, plan)
            kept[client] = done.states[0]
        state = state.unchanged()
    return federation, kept


def test_accuracy_is_the_mean_of_the_clients_own_models() -> None:
    recipe = settings()
    federation, kept = trained(recipe)
    exam, loss = federation.exams["test"], federation.graded[1]
    piece = ExamPiece(exam, slice(0, 30))
    own = [score(federation.model, kept[k][PARAMETERS], None, loss, piece).accuracy for k in range(4)]
    assert len(set(own)) > 1
    assert run(recipe, workers=1).accuracy == pytest.approx(np.mean(own), abs=1e-12)


def test_a_client_goes_on_from_its_own_model() -> None:
    _, once = trained(settings({"rounds.count": 1}))
    _, twice = trained(settings({"rounds.count": 2}))
    initial = wire(settings()).method.init().parameters
    for client in range(4):
        first, second = once[client][PARAMETERS], twice[client][PARAMETERS]
        assert 0 < np.linalg.norm(first - initial) < np.linalg.norm(second - initial)
    for one, other in itertools.combinations(range(4), 2):
        assert not np.array_equal(twice[one][PARAMETERS], twice[other][PARAMETERS])


def test_nothing_is_sent_and_nothing_is_lost() -> None:
    outcome = run(settings(), workers=1)
    assert outcome.statement.rows == Statement.of([]).rows == ()
    assert outcome.result.bytes_up == 3 * 4 * 24  # the envelopes of four answers in three rounds
    assert outcome.result.preflight == ("Clients send nothing.",)


def test_a_client_that_sends_something_is_refused() -> None:
    method = wire(settings()).method
    tally = method.tally(method.plan(method.init(), "test"))
    assert tally.add([0, 1, 2], [b"", b"secret", b""]) == {1: "clients that learn alone send nothing"}
    assert (tally.reports, tally.weight, tally.noise()) == (2, 2.0, 0.0)


def test_running_statistics_are_each_clients_own() -> None:
    federation, kept = trained(settings({"model": {"name": "ldp-fed", "buffers": "release"}, "rounds.count": 1}))
    views = federation.method.views(federation.method.init(), kept)
    assert len(views) == 4
    means = [view.buffers["bn1.running_mean"] for view in views]
    assert not np.array_equal(means[0], means[1])


def test_before_the_first_round_the_common_start_is_scored() -> None:
    method = wire(settings()).method
    (view,) = method.views(method.init(), {})
    assert np.array_equal(view.parameters, method.init().parameters)


def test_an_interrupted_run_goes_on_to_the_same_result(tmp_path: Any) -> None:
    whole = run(settings(), folder=tmp_path / "whole", workers=1)

    with pytest.raises(KeyboardInterrupt):
        run(settings(), folder=tmp_path / "cut", workers=1, observer=StopsAfterTwo())
    again = run(settings(), folder=tmp_path / "cut", resume=True, workers=2)
    assert again.accuracy == whole.accuracy
    assert left(tmp_path / "cut") == left(tmp_path / "whole")


def test_there_is_no_strength_to_choose() -> None:
    with pytest.raises(RecipeInvalid, match=r"clients\.epsilon.*none takes"):
        settings({"clients.epsilon": 1.0})

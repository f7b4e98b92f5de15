"""Audits of private-head: what broken programs show, and that the attack is as strong as the noise allows."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from sordino.audits import linear_heads
from sordino.audits.canaries import Flock, Played, play
from sordino.audits.canary_game import coins
from sordino.audits.findings import AuditOptions
from sordino.audits.finished_run import FinishedRun
from sordino.audits.inspection import inspect_one, level
from sordino.audits.lower_bound import VIOLATED
from sordino.audits.lower_bound import run as attack
from sordino.audits.silos import judged, views_of
from sordino.learning.alone import ALIGNMENT, Alone
from sordino.learning.cohort import ClientData
from sordino.methods import private_head
from sordino.methods.blueprint import blueprint_of
from sordino.methods.extractors import OrientedExtractor
from sordino.methods.private_head import PrivateHead
from sordino.privacy.guarantee import SERVER, Adjacency, PoissonGaussian, summed
from sordino.recipe import Recipe
from sordino.runs.execution import one_thread
from sordino.runs.simulation import run
from tests.audits.runs import small

RECORD = Adjacency.RECORD_ADD_REMOVE
Change = Callable[[np.ndarray], np.ndarray]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, FinishedRun]:
    """Runs that are over: in sums, and every silo alone, that also with features that are not exact."""
    found = {}
    oriented = {"method.extractor": {"kind": "oriented", "orientations": 2, "cells": 4}}
    for name, changes in (("private-head", {}), ("private-head, alone", {}), ("oriented", oriented)):
        folder = tmp_path_factory.mktemp("runs") / "one"
        run(small(name if not changes else "private-head, alone").with_(changes), folder=folder, workers=1)
        found[name] = FinishedRun.open(folder)
    return found


def failed(finished: FinishedRun) -> set[tuple[str, str]]:
    """Which checks of which subjects fail."""
    with one_thread():
        found = [inspect_one(one, 1, level(0)) for one in linear_heads.subjects(finished, 0)]
    return {(one.subject, look.check) for one in found for look in one.failed}


@pytest.mark.parametrize("in_place", [True, False])
def test_features_that_depend_on_where_a_record_lies_are_caught(
    monkeypatch: pytest.MonkeyPatch, in_place: bool
) -> None:
    """Of records of 100 bytes, unless each is computed in an aligned array of its own."""
    extractor = {"kind": "oriented", "orientations": 2, "cells": 2}
    recipe = Recipe.load("proven-digits").with_({"method.extractor": extractor, "rounds.count": 2})
    shape, make = (1, 5, 5), OrientedExtractor.__call__
    method = recipe.method.build(blueprint_of(recipe, shape, 10, (100,) * recipe.number_of_clients)[0])

    def by_address(self: OrientedExtractor, x: torch.Tensor, kept: Any) -> torch.Tensor:
        found = make(self, x, kept)
        found[:, 0] += x.data_ptr() % ALIGNMENT
        return found

    monkeypatch.setattr(OrientedExtractor, "__call__", by_address)
    if in_place:
        monkeypatch.setattr(Alone, "_of_record", lambda _, function, *tensors: function(*tensors))
    x = torch.rand(5, *shape, generator=torch.Generator().manual_seed(1))
    plan = method.plan(method.init(), "test")
    found = linear_heads.neighbours(method, plan, 0, ClientData(x, torch.arange(5)))
    assert (found.p == 0) is in_place


def noise_changed(monkeypatch: pytest.MonkeyPatch, change: Change) -> None:
    honest = private_head._noise
    monkeypatch.setattr(private_head, "_noise", lambda *given: torch.from_numpy(change(honest(*given).numpy())))


def bare(column: int) -> Change:
    def change(noise: np.ndarray) -> np.ndarray:
        noise[:, column] = 0
        return noise

    return change


def one_for_all(noise: np.ndarray) -> np.ndarray:
    noise[1:] = noise[:1]
    return noise


@pytest.mark.parametrize("name", ["private-head", "private-head, alone", "oriented"])
def test_an_unbroken_program_passes(runs: dict[str, FinishedRun], name: str) -> None:
    assert not failed(runs[name])
    sums = {one.name for one in linear_heads.subjects(runs[name], 0)}
    assert len(sums) == (4 if name == "private-head" else 2)


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda noise: noise // 2, "noise of all"),
        (lambda noise: np.rint(0.9 * noise).astype(np.int64), "noise of all"),
        (bare(0), "noise by coordinate"),
        (bare(-1), "noise by coordinate"),
        (lambda noise: 8 * (noise // 8), "lattice"),
        (one_for_all, ""),
    ],
    ids=["halved", "x 0.9", "first bare", "last bare", "every eighth step", "one noise for all"],
)
def test_broken_noise_is_caught_in_both_sums(
    runs: dict[str, FinishedRun], monkeypatch: pytest.MonkeyPatch, change: Change, check: str
) -> None:
    noise_changed(monkeypatch, change)
    found = failed(runs["private-head"])
    for part in ("second moments of features", "gradient of a linear head"):
        assert any(subject.startswith(part) and look.startswith(check) for subject, look in found), found


@pytest.mark.parametrize("broken", ["missing clip", "neighbours"])
def test_a_record_that_moves_a_sum_too_far_is_caught(
    runs: dict[str, FinishedRun], monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    honest = PrivateHead._summed

    def summed_wrongly(self: PrivateHead, plan: Any, group: int, data: Any, bench: Any) -> Any:
        found = honest(self, plan, group, data, bench)
        return replace(found, sums=10 * found.sums if broken == "missing clip" else found.sums // len(data))

    monkeypatch.setattr(PrivateHead, "_summed", summed_wrongly)
    assert {look for _, look in failed(runs["private-head, alone"])} == {"neighbours"}


def test_less_noise_than_stated_is_caught_without_chance(
    runs: dict[str, FinishedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The statement counts half the sensitivity: what is drawn is right, and what is promised is not."""
    monkeypatch.setattr(PrivateHead, "_guarantees", _halved)
    assert {look for _, look in failed(runs["private-head, alone"])} == {"guarantee"}


def _halved(method: PrivateHead, part: Any, scale: float) -> list[Any]:
    return [part.guarantee(SERVER, adjacency, scale / 2) for adjacency in (RECORD, Adjacency.RECORD_REPLACE)]


# --- attacks ----------------------------------------------------------------------------------------------------------


def game(finished: FinishedRun, count: int) -> tuple[Flock, dict[int | None, np.ndarray]]:
    """Canaries in all silos, and the scores that each adversary gives them."""
    records = linear_heads.canaries(finished, count, 1)
    flock = Flock(records, np.arange(count) % 4, coins(count, 1))  # silos whose parts are all unknown
    views = views_of(finished, finished.group_of(None))
    known = linear_heads.KnownSums(finished)
    adversaries = {by.parties: linear_heads.HeadAttacker(known, flock, by.parties) for by, _ in views}
    method = linear_heads.method_of(finished)

    def losses(state: Any) -> np.ndarray:
        return linear_heads.losses(method, records, state)

    with one_thread():
        played = play(finished, flock, adversaries, losses, AuditOptions())
    return flock, dict(played.by_uploads)


def apart(flock: Flock, scores: np.ndarray) -> float:
    """By how many standard deviations the scores of those in and out differ."""
    inside, outside = scores[flock.present], scores[~flock.present]
    return float((inside.mean() - outside.mean()) / math.sqrt((inside.var() + outside.var()) / 2))


def test_scores_tell_coins_nearly_as_well_as_the_noise_allows(runs: dict[str, FinishedRun]) -> None:
    """Scores in and out differ by the mu of a whole run at most; few canaries share their directions, so by most of it.

    The standard error of a difference of 40 scores is about 0.32.
    """
    flock, scores = game(runs["private-head"], 40)
    method = linear_heads.method_of(runs["private-head"])
    for parties, shares in ((4, 4), (None, 1)):
        squares = [
            times * (part.sensitivity / part.noise.slack(shares).sigma) ** 2
            for part, times in zip(method.stages, (1, 2), strict=True)
        ]
        mu = math.sqrt(sum(squares))
        assert 0.5 * mu < apart(flock, scores[parties]) < mu + 1


def test_halved_noise_is_told_by_the_attack_alone(
    runs: dict[str, FinishedRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A quarter of the noise: so many right answers about one record in one report cannot be under what is proven."""
    finished = runs["private-head, alone"]
    made_up = linear_heads.canaries(finished, 20, 1)
    case = linear_heads.one_record(finished, 0, made_up, (SERVER, RECORD))
    with one_thread():
        honest = attack(case, trials=1000, seed=1)
        noise_changed(monkeypatch, lambda noise: noise // 4)
        broken = attack(case, trials=1000, seed=1)
    assert honest.verdict != VIOLATED
    assert honest.audited <= honest.proven
    assert broken.verdict == VIOLATED


def test_sums_are_attacked_with_the_noise_of_those_who_share_it(runs: dict[str, FinishedRun]) -> None:
    finished = runs["private-head"]
    made_up = linear_heads.canaries(finished, 20, 1)
    case = linear_heads.one_record(finished, 0, made_up, (summed(4), RECORD))
    with one_thread():
        without, beside = (case.sampler(world, 400, 1) for world in (False, True))
    method = linear_heads.method_of(finished)
    part = method.budgeting.gradient
    mu = part.sensitivity / part.noise.slack(4).sigma
    found = (beside.mean() - without.mean()) / math.sqrt((beside.var() + without.var()) / 2)
    assert 0.7 * mu < found < mu + 0.3  # the standard error is 0.07


def test_a_game_of_too_many_right_guesses_is_a_violation(runs: dict[str, FinishedRun]) -> None:
    """What the attacker would say of a program without noise: all guesses right, under a proof of epsilon 4."""
    finished = runs["private-head"]
    flock = Flock(linear_heads.canaries(finished, 400, 1), np.arange(400) % 6, coins(400, 1))
    knows = flock.present.astype(np.float64)

    played = Played({4: knows, None: knows}, knows)
    group = finished.group_of(None)
    found = judged(finished, group, flock, played, linear_heads.NAME, AuditOptions())
    assert next(f for f in found if f.view == (summed(4), RECORD)).row.verdict == VIOLATED


def test_the_guarantee_check_sees_records_that_are_too_long_where_a_silo_is_spare(runs: dict[str, FinishedRun]) -> None:
    method = runs["private-head"].federation.method
    assert isinstance(method, PrivateHead)
    part = replace(method.budgeting.gradient, spare=1)
    loss = part.guarantee(summed(4), Adjacency.RECORD_ADD_REMOVE).loss
    assert isinstance(loss, PoissonGaussian)
    assert linear_heads._holds(part, 1.0, loss, 4).p == 1
    assert linear_heads._holds(part, 1.001, loss, 4).p == 0
